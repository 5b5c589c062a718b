//! `chancery verify`: checks journals offline, changes nothing, and reports its findings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, ensure};
use chancery_journal::segments::{VerifyFinding, VerifyOutcome, VerifyReport, postings_in, verify_each};
use chancery_journal::witness::against;
use chancery_journal::{JournalLoss, JournalWitness, is_mirror};
use serde_json::{Value, json};

use crate::loss;

/// Result of the check of one journal.
#[derive(Debug)]
pub struct VerifiedJournal {
    directory: PathBuf,
    report: VerifyReport,
    /// Records that are proved to be missing by the witnesses near the journal.
    loss: Option<JournalLoss>,
}

/// Checks a journal's own directory, or the journals of all readable fleets in a server's directory.
pub fn check(dir: &Path) -> Result<Vec<Result<VerifiedJournal>>> {
    let fleets = dir.join("fleets");
    let mut directories = Vec::new();
    if fleets.is_dir() {
        for entry in
            std::fs::read_dir(&fleets).with_context(|| format!("cannot list {}", fleets.display()))?
        {
            directories.push(entry?.path().join("journal"));
        }
        directories.sort();
    } else {
        directories.push(dir.to_owned());
    }
    ensure!(!directories.is_empty(), "cannot find journal in {}", dir.display());
    Ok(directories.into_iter().map(one).collect())
}

fn one(directory: PathBuf) -> Result<VerifiedJournal> {
    // Before the journal, which may grow meanwhile. Only a server checks the read models.
    let witnesses = witnesses(&directory)?;
    let named: BTreeSet<_> = witnesses.iter().map(|witness| witness.position).collect();
    let mut found = BTreeMap::new();
    let report = verify_each(&directory, &mut |record| {
        if named.contains(&record.last()) {
            found.insert(record.last(), record.hash());
        }
    });
    let report = report.with_context(|| format!("cannot verify {}", directory.display()))?;
    let recorded = |position| Ok::<_, Error>(found.get(&position).copied());
    let loss = against(report.head, report.held.clone(), &witnesses, recorded)?;
    ensure!(report.segments > 0 || loss.is_some(), "cannot find journal in {}", directory.display());
    Ok(VerifiedJournal { directory, report, loss })
}

/// Returns the witnesses in a server's directory. A mirror has none: its original is elsewhere.
fn witnesses(journal: &Path) -> Result<Vec<JournalWitness>> {
    if is_mirror(journal)? || !journal.is_dir() {
        return Ok(Vec::new());
    }
    let fleet_dir = journal.parent().unwrap_or(journal);
    let executors = fleet_dir.parent().and_then(Path::parent).zip(fleet_dir.file_name());
    let executors = executors.map(|(data, fleet)| data.join("executors").join(fleet)).unwrap_or_default();
    let mut found = loss::local_witnesses(fleet_dir, &executors)?;
    found.extend(postings_in(journal)?);
    Ok(found)
}

impl VerifiedJournal {
    /// Whether everything is as written. A tail that a running server is just writing counts as complete.
    pub fn holds(&self) -> bool {
        match self.report.outcome {
            VerifyOutcome::Intact => self.loss.is_none(),
            VerifyOutcome::TornTail(_) => self.report.is_open && self.loss.is_none(),
            VerifyOutcome::Damaged(_) => false,
        }
    }

    /// Returns the result as text for people.
    pub fn text(&self) -> String {
        let report = &self.report;
        let mut text = format!("journal {}\n", self.directory.display());
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
            let _ =
                writeln!(text, "  note      open in a server; records that it is writing are not checked");
        } else if report.named < head.position {
            let _ = writeln!(
                text,
                "  note      proved to be synced up to {}; after it, a clean end cannot be distinguished from a cut one",
                report.named
            );
        }
        text + &self.outcome()
    }

    fn outcome(&self) -> String {
        let place = |found: &VerifyFinding| {
            format!(
                "{} at byte {}, position {}: {}",
                found.file.display(),
                found.offset,
                found.position,
                found.reason
            )
        };
        match (&self.report.outcome, &self.loss) {
            (VerifyOutcome::Intact | VerifyOutcome::TornTail(_), Some(loss)) => format!(
                "  SHORT     {loss}\n            restore the journal from a copy that reaches further; without one, chancery serve \
                 --accept-loss\n            continues under a new lineage\n"
            ),
            (VerifyOutcome::Intact, None) => {
                "  sound     the chain holds: every record is as it was written\n".into()
            }
            (VerifyOutcome::TornTail(_), _) if self.report.is_open => {
                "  sound     the chain holds as far as it is synced\n".into()
            }
            (VerifyOutcome::TornTail(found), _) => {
                format!(
                    "  TORN      {}\n            opening the journal cuts it there, and keeps the removed bytes\n",
                    place(found)
                )
            }
            (VerifyOutcome::Damaged(found), _) => {
                format!(
                    "  DAMAGED   {}\n            the journal cannot be opened: restore it from a copy\n",
                    place(found)
                )
            }
        }
    }

    /// Returns the result as JSON for programs.
    pub fn json(&self) -> Value {
        let report = &self.report;
        let found = match &report.outcome {
            VerifyOutcome::Intact => Value::Null,
            VerifyOutcome::TornTail(found) | VerifyOutcome::Damaged(found) => json!({
                "file": found.file, "offset": found.offset, "position": found.position, "reason": found.reason,
            }),
        };
        let outcome = match &report.outcome {
            VerifyOutcome::Intact | VerifyOutcome::TornTail(_) if self.loss.is_some() => "short",
            VerifyOutcome::Intact => "sound",
            VerifyOutcome::TornTail(_) => "torn",
            VerifyOutcome::Damaged(_) => "damaged",
        };
        json!({
            "directory": self.directory, "fleet": report.fleet, "records": report.records, "events": report.events,
            "bytes": report.bytes, "segments": report.segments, "terms": report.terms, "open": report.is_open,
            "named": report.named, "position": report.head.map(|head| head.position),
            "hash": report.head.map(|head| head.hash), "outcome": outcome, "found": found, "holds": self.holds(),
        })
    }
}
