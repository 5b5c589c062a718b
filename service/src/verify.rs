//! `chancery verify`: checks journals offline, changes nothing, and says what it found.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use chancery_journal::segments::{Finding, Outcome, Report, verify};
use chancery_journal::snapshots;
use serde_json::{Value, json};

/// What was found in one journal.
#[derive(Debug)]
pub struct Verified {
    folder: PathBuf,
    report: Report,
    /// A snapshot of what an empty journal must have held.
    snapshot: Option<PathBuf>,
}

/// Checks a journal's own folder, or the journal of every fleet in a server's folder: those that can be read.
pub fn check(dir: &Path) -> Result<Vec<Result<Verified>>> {
    let fleets = dir.join("fleets");
    let mut folders = Vec::new();
    if fleets.is_dir() {
        for entry in std::fs::read_dir(&fleets).with_context(|| format!("list {}", fleets.display()))? {
            folders.push(entry?.path().join("journal"));
        }
        folders.sort();
    } else {
        folders.push(dir.to_owned());
    }
    ensure!(!folders.is_empty(), "there is no journal in {}", dir.display());
    Ok(folders.into_iter().map(one).collect())
}

fn one(folder: PathBuf) -> Result<Verified> {
    let report = verify(&folder).with_context(|| format!("verify {}", folder.display()))?;
    ensure!(report.segments > 0, "there is no journal in {}", folder.display());
    let snapshot = if report.head.is_none() { snapshot_beside(&folder)? } else { None };
    Ok(Verified { folder, report, snapshot })
}

/// A server makes snapshots of what is in its journal alone.
fn snapshot_beside(journal: &Path) -> Result<Option<PathBuf>> {
    let folder = journal.with_file_name("snapshots");
    if !folder.is_dir() {
        return Ok(None);
    }
    Ok(snapshots::list(&folder)?.into_iter().next().map(|(_, file)| file))
}

impl Verified {
    /// Whether everything is as it was written. A tail that a running server is just writing counts as whole.
    pub fn holds(&self) -> bool {
        match self.report.outcome {
            Outcome::Sound => self.snapshot.is_none(),
            Outcome::Torn(_) => self.report.is_open,
            Outcome::Damaged(_) => false,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let report = &self.report;
        let mut text = format!("journal {}\n", self.folder.display());
        let Some(head) = &report.head else {
            text.push_str("  empty\n");
            return text + &self.outcome();
        };
        let fleet = report.fleet.as_deref().unwrap_or("?");
        let _ = writeln!(text, "  fleet     {fleet}");
        for (lineage, first) in &report.lineages {
            let _ = writeln!(text, "  lineage   {lineage} from position {first}");
        }
        let _ = writeln!(
            text,
            "  holds     {} events in {} records, {} bytes, {} segments, {} terms",
            report.events, report.records, report.bytes, report.segments, report.terms
        );
        let _ = writeln!(text, "  head      position {}, {}", head.position, head.time);
        let _ = writeln!(text, "  hash      {}", head.hash);
        if report.is_open {
            let _ = writeln!(text, "  note      a server has it open; what it is writing now is not checked");
        } else if report.named < head.position {
            let _ = writeln!(
                text,
                "  note      synced as far as {} is named; behind it a clean end cannot be told from a cut one",
                report.named
            );
        }
        text + &self.outcome()
    }

    fn outcome(&self) -> String {
        let place = |found: &Finding| {
            format!(
                "{} at byte {}, position {}: {}",
                found.file.display(),
                found.offset,
                found.position,
                found.reason
            )
        };
        match (&self.report.outcome, &self.snapshot) {
            (Outcome::Sound, Some(snapshot)) => format!(
                "  LOST      the journal is empty, and {} is a snapshot of one\n            put it back from a copy; it will not \
                 open\n",
                snapshot.display()
            ),
            (Outcome::Sound, None) => {
                "  sound     the chain holds: every record is as it was written\n".into()
            }
            (Outcome::Torn(_), _) if self.report.is_open => {
                "  sound     the chain holds as far as it is synced\n".into()
            }
            (Outcome::Torn(found), _) => {
                format!(
                    "  TORN      {}\n            opening the journal cuts it there, and keeps what it cuts\n",
                    place(found)
                )
            }
            (Outcome::Damaged(found), _) => {
                format!(
                    "  DAMAGED   {}\n            restore the journal from a copy; it will not open\n",
                    place(found)
                )
            }
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let report = &self.report;
        let found = match &report.outcome {
            Outcome::Sound => Value::Null,
            Outcome::Torn(found) | Outcome::Damaged(found) => json!({
                "file": found.file, "offset": found.offset, "position": found.position, "reason": found.reason,
            }),
        };
        let outcome = match &report.outcome {
            Outcome::Sound if self.snapshot.is_some() => "lost",
            Outcome::Sound => "sound",
            Outcome::Torn(_) => "torn",
            Outcome::Damaged(_) => "damaged",
        };
        json!({
            "folder": self.folder, "fleet": report.fleet, "records": report.records, "events": report.events,
            "bytes": report.bytes, "segments": report.segments, "terms": report.terms, "open": report.is_open,
            "named": report.named, "position": report.head.map(|head| head.position),
            "hash": report.head.map(|head| head.hash), "outcome": outcome, "found": found, "holds": self.holds(),
        })
    }
}
