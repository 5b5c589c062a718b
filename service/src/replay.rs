//! `chancery replay`: folds a journal offline, prints what it contains, and compares its state with snapshots. With
//! `--listen`, it then serves the state ([`serve`]).
//!
//! It takes no lock and changes no file of the data directory, so a server may use the directory meanwhile.

mod progress;
mod serve;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_cli::TextTable;
use chancery_events::lineage::NamedPosition;
use chancery_events::name::FleetName;
use chancery_events::text::counted;
use chancery_journal::segments::FrozenSegments;
use chancery_journal::{snapshots, witness};
use chancery_projector::replay::{ComparedSnapshot, JournalReplay, SnapshotResult, replay};
use chancery_projector::{FoldedState, NamedMoment, moment};
use serde_json::{Value, json};

use progress::ReplayProgress;
pub use serve::{listen, serve};

/// Journal to replay.
#[derive(Debug)]
pub struct ReplayTarget {
    /// Directory of the journal.
    journal: PathBuf,
    /// Directory of its snapshots, which may be missing.
    snapshots: PathBuf,
    /// Directory of its rows, which may be missing.
    pub(crate) rows: PathBuf,
}

impl ReplayTarget {
    /// Finds the journal of a fleet in a server's directory; another directory is that of a journal.
    pub fn find(dir: &Path, fleet: &FleetName) -> Result<ReplayTarget> {
        let dir = dir.canonicalize().with_context(|| format!("cannot read directory {}", dir.display()))?;
        let fleets = dir.join("fleets");
        let is_server = fleets.is_dir();
        let journal = if is_server { fleets.join(fleet.as_str()).join("journal") } else { dir.clone() };
        if !is_server || journal.is_dir() {
            let of_fleet = journal.parent().unwrap_or(&journal);
            let (snapshots, rows) = (of_fleet.join("snapshots"), of_fleet.join("rows"));
            return Ok(ReplayTarget { journal, snapshots, rows });
        }
        let mut names = Vec::new();
        let failed = || format!("cannot list {}", fleets.display());
        for entry in std::fs::read_dir(&fleets).with_context(failed)? {
            names.push(entry.with_context(failed)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        bail!(
            "cannot find journal of fleet {fleet} in {}\nhint: name one of its fleets with --fleet: {}",
            dir.display(),
            names.join(", ")
        )
    }

    /// Folds the journal up to a moment, or to its last record. `each` receives the state after each record. Progress is
    /// written to standard error.
    pub fn replay(
        self,
        until: Option<NamedMoment>,
        mut each: impl FnMut(&FoldedState),
    ) -> Result<ReplayedJournal> {
        let ReplayTarget { journal, snapshots, .. } = self;
        let frozen = FrozenSegments::open(&journal)?;
        let frozen = frozen.with_context(|| format!("cannot find records in {}", journal.display()))?;
        let frozen = match until {
            Some(until) => ending_at(frozen, until)?,
            None => frozen,
        };
        let source = frozen.source();
        let head = source.head().context("cannot read journal: it has no last record")?;
        let listed = if snapshots.is_dir() { snapshots::list(&snapshots)? } else { Vec::new() };
        let mut progress = ReplayProgress::new(head.position);
        let replayed = replay(&*source, frozen.fleet(), listed, |state| {
            progress.show(state.at.position);
            each(state);
        });
        progress.end();
        let replayed = replayed.with_context(|| format!("cannot replay {}", journal.display()))?;
        let state = replayed.state.as_ref().filter(|state| state.at == head);
        ensure!(
            state.is_some(),
            "cannot replay {}: the journal ends at position {}, but its records cannot be read from position {} on",
            journal.display(),
            head.position,
            replayed.state.as_ref().map_or(1, |state| state.at.next().get())
        );
        Ok(ReplayedJournal { directory: journal, snapshots, frozen, replayed })
    }
}

/// Returns the journal up to the record of a moment.
fn ending_at(frozen: FrozenSegments, until: NamedMoment) -> Result<FrozenSegments> {
    let source = frozen.source();
    if let NamedMoment::Position(NamedPosition { position, lineage: Some(lineage) }) = until {
        let lineages = witness::lineages(&*source)?;
        let is_known = lineages.is_some_and(|lineages| lineages.has(lineage, position));
        ensure!(
            is_known,
            "cannot replay up to position {position} of lineage {lineage}: the journal does not have it\n\
             hint: omit the lineage to replay up to the position of this journal"
        );
    }
    // A replay ends at the last record that was found when it started.
    if let NamedMoment::Time(time) = until
        && source.head().is_some_and(|head| head.time < time)
    {
        return Ok(frozen);
    }
    let at = moment::find(&*source, until)?;
    Ok(frozen.ending_at(&at)?)
}

/// Journal that was folded.
#[derive(Debug)]
pub struct ReplayedJournal {
    /// Directory of the journal.
    pub(crate) directory: PathBuf,
    snapshots: PathBuf,
    frozen: FrozenSegments,
    replayed: JournalReplay,
}

/// Returns a result for people and programs.
fn word(result: &SnapshotResult) -> &'static str {
    match result {
        SnapshotResult::Agrees => "agrees",
        SnapshotResult::Differs => "differs",
        SnapshotResult::Damaged(_) => "damaged",
        SnapshotResult::OtherBuild => "skipped: of another build",
        SnapshotResult::OtherHistory => "skipped: its record is not in the journal",
    }
}

/// Returns a table with its title; empty without rows. `count` is the number of all rows, of which some may be left out.
pub(crate) fn titled(name: &str, count: usize, heads: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut lines = TextTable::new(heads.iter().copied());
    let count =
        if rows.len() == count { count.to_string() } else { format!("first {} of {count}", rows.len()) };
    for cells in rows {
        lines.add(cells);
    }
    format!("\n{name} ({count})\n{}", lines.lines("  "))
}

/// Returns the reason of a result that contradicts the journal.
fn contradiction(snapshot: &ComparedSnapshot) -> Option<String> {
    let (position, path) = (snapshot.position, snapshot.path.display());
    match &snapshot.result {
        SnapshotResult::Differs => Some(format!(
            "snapshot at position {position} has another state than the journal gives: {path}\n\
             hint: keep a copy of the file and of the journal, and report a defect. A server that starts without the \
             file folds the journal instead"
        )),
        SnapshotResult::Damaged(reason) => Some(format!(
            "snapshot at position {position} is damaged: {reason}: {path}\n\
             hint: remove the file, from which no server starts"
        )),
        SnapshotResult::Agrees | SnapshotResult::OtherBuild | SnapshotResult::OtherHistory => None,
    }
}

impl ReplayedJournal {
    /// Returns what is wrong with the journal after its last record, or with its snapshots; empty if all is well.
    pub fn contradictions(&self) -> Vec<String> {
        let damage = self.frozen.damage().map(|error| {
            let hint =
                "hint: --until replays the records before it, and chancery verify checks the whole journal";
            format!("{error}\n{hint}")
        });
        damage.into_iter().chain(self.replayed.snapshots.iter().filter_map(contradiction)).collect()
    }

    /// Returns the state after the last record.
    pub(crate) fn state(&self) -> Result<&FoldedState> {
        self.replayed.state.as_ref().context("cannot read state: the journal is empty")
    }

    /// Returns the summary as text for people.
    pub fn text(&self) -> Result<String> {
        let (counts, state) = (&self.replayed.counts, self.state()?);
        let mut text = format!("journal {}\n", self.directory.display());
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<9} {value}");
        };
        line("fleet", self.frozen.fleet().to_string());
        line("lineage", state.at.lineage.to_string());
        let (events, records) = (counted(counts.events(), "event"), counted(counts.records, "record"));
        line("folded", format!("{events} in {records}, {}", counted(counts.bytes, "byte")));
        if let Some((first, last)) = counts.span {
            line("first", first.to_string());
            line("last", last.to_string());
        }
        line("hash", state.at.hash.to_string());
        line("state", state.hash().context("cannot hash state")?.to_string());
        line("terms", counts.terms.to_string());
        let (failed, highest) = counts.attempts;
        line(
            "attempts",
            match failed {
                0 => "none failed".to_owned(),
                _ => format!("{failed} failed, at most {highest} of one command"),
            },
        );
        text.push_str(&self.tables());
        Ok(text)
    }

    fn tables(&self) -> String {
        let counts = &self.replayed.counts;
        let mut text = String::new();
        let mut table = |name: &str, heads: &[&str], rows: Vec<Vec<String>>| {
            text.push_str(&titled(name, rows.len(), heads, rows));
        };
        let builds = counts.builds.iter().map(|(name, build)| {
            vec![name.to_string(), build.first.to_string(), build.last.to_string(), build.records.to_string()]
        });
        table("Builds", &["BUILD", "FIRST", "LAST", "RECORDS"], builds.collect());
        let entities = self.replayed.entities().into_iter().filter(|(_, count)| *count > 0);
        let entities = entities.map(|(kind, count)| vec![kind.to_string(), count.to_string()]);
        table("Entities", &["KIND", "COUNT"], entities.collect());
        let types = counts.types().into_iter().map(|(name, count)| vec![name.to_owned(), count.to_string()]);
        table("Events", &["TYPE", "COUNT"], types.collect());
        let codes = counts.refusals.iter().map(|(code, count)| vec![(*code).to_owned(), count.to_string()]);
        table("Refusals", &["CODE", "COUNT"], codes.collect());
        text + &self.snapshot_table()
    }

    /// Returns the table of the snapshots, with its title; empty without snapshots.
    pub(crate) fn snapshot_table(&self) -> String {
        let snapshots = self.replayed.snapshots.iter();
        let snapshots =
            snapshots.map(|snapshot| vec![snapshot.position.to_string(), word(&snapshot.result).to_owned()]);
        titled("Snapshots", self.replayed.snapshots.len(), &["POSITION", "STATE"], snapshots.collect())
    }

    /// Returns the summary as JSON for programs.
    pub fn json(&self) -> Result<Value> {
        let (counts, state) = (&self.replayed.counts, self.state()?);
        let end = |end: moment::MomentEnd| json!({"position": end.position, "time": end.time.to_string()});
        let builds = counts.builds.iter().map(|(name, build)| {
            json!({"build": name, "first": build.first, "last": build.last, "records": build.records})
        });
        let snapshots = self.replayed.snapshots.iter().map(|snapshot| {
            json!({"position": snapshot.position, "file": snapshot.path, "result": word(&snapshot.result)})
        });
        let entities = self.replayed.entities().into_iter();
        let entities = entities.map(|(kind, count)| (kind.to_string(), count.into()));
        Ok(json!({
            "directory": self.directory,
            "fleet": self.frozen.fleet(),
            "lineage": state.at.lineage,
            "records": counts.records,
            "events": counts.events(),
            "bytes": counts.bytes,
            "first": counts.span.map(|(first, _)| end(first)),
            "last": counts.span.map(|(_, last)| end(last)),
            "hash": state.at.hash,
            "state_hash": state.hash().context("cannot hash state")?,
            "terms": counts.terms,
            "attempts": {"failed": counts.attempts.0, "highest": counts.attempts.1},
            "builds": builds.collect::<Vec<_>>(),
            "entities": entities.collect::<serde_json::Map<_, _>>(),
            "types": counts.types(),
            "refusals": counts.refusals,
            "snapshots": snapshots.collect::<Vec<_>>(),
            "contradictions": self.contradictions(),
        }))
    }
}
