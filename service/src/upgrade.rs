//! `chancery upgrade check`: compares what this build gives for a journal with what another build has stored.
//!
//! It folds the journal offline as a replay does, compares the stored rows with those of the state at their position,
//! and the snapshots of this build with the state at theirs. It takes no lock and changes no file of the directory:
//! the rows are read from a copy ([`TemporaryRows`]).

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Error, Result};
use chancery_events::name::FleetName;
use chancery_events::text::counted;
use chancery_projector::moment::MomentEnd;
use chancery_projector::upgrade::{OpenedRows, RowComparison, RowDifference, UnreadableRows};
use serde_json::{Value, json};

use crate::replay::{ReplayTarget, ReplayedJournal, titled};
use crate::temporary_rows::TemporaryRows;

/// Maximum number of characters of a value in a table.
const SHOWN: usize = 60;

/// Result of a check.
#[derive(Debug)]
pub struct CheckedUpgrade {
    replayed: ReplayedJournal,
    rows: CheckedRows,
}

/// Result for the stored rows.
#[derive(Debug)]
enum CheckedRows {
    /// Rows that were compared.
    Compared {
        /// Last record in the rows.
        at: MomentEnd,
        /// Whether a server of this build continues with the rows.
        is_current: bool,
        /// Result of the comparison.
        found: RowComparison,
    },
    /// Rows that were not compared, for this reason.
    NotCompared(String),
}

/// Checks the journal of a fleet in a server's directory, or that in a directory of its own. Of the differences, the
/// first `limit` are kept.
pub fn check(dir: &Path, fleet: &FleetName, limit: usize) -> Result<CheckedUpgrade> {
    let target = ReplayTarget::find(dir, fleet)?;
    // Before the journal is read, so that it is not behind its rows.
    let copy = TemporaryRows::copy_of(&target.rows)?;
    let stored = match &copy {
        None => Err(UnreadableRows::Missing.to_string()),
        Some(copy) => OpenedRows::open(copy.path()).map_err(|error| format!("{:#}", Error::from(error))),
    };
    let mut compared = None;
    let replayed = target.replay(None, |state| {
        if let Ok(stored) = &stored
            && stored.at() == state.at
        {
            compared = Some(stored.compare(state, limit));
        }
    })?;
    let rows = match (stored, compared.transpose().context("cannot compare rows")?) {
        (Err(reason), _) => CheckedRows::NotCompared(reason),
        (Ok(stored), None) => CheckedRows::NotCompared(format!(
            "cannot compare rows: the journal does not have their last record, at position {}",
            stored.at().position
        )),
        (Ok(stored), Some(found)) => {
            CheckedRows::Compared { at: stored.at().into(), is_current: stored.is_current(), found }
        }
    };
    Ok(CheckedUpgrade { replayed, rows })
}

impl CheckedUpgrade {
    /// Returns what is wrong; empty if nothing differs.
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = self.replayed.contradictions();
        if let CheckedRows::Compared { found: rows, .. } = &self.rows
            && rows.count > 0
        {
            found.push(format!(
                "stored rows and those of this build have {}\nhint: readers get other values after the upgrade. If the \
                 release notes do not announce the change, keep a copy of the directory, and report a defect",
                counted(rows.count, "difference")
            ));
        }
        found
    }

    /// Returns the result as text for people.
    pub fn text(&self) -> Result<String> {
        let mut text = format!("journal {}\n", self.replayed.directory.display());
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<9} {value}");
        };
        let at: MomentEnd = self.replayed.state()?.at.into();
        line("folded", format!("up to {at}"));
        match &self.rows {
            CheckedRows::NotCompared(reason) => {
                line("rows", reason.clone());
                line("start", "a server of this build builds the rows again".to_owned());
            }
            CheckedRows::Compared { at, is_current, found } => {
                line("rows", format!("{} compared, at {at}", counted(found.rows, "row")));
                line("differ", counted(found.count, "difference"));
                let start = if *is_current { "continues with the rows" } else { "builds the rows again" };
                line("start", format!("a server of this build {start}"));
                text.push_str(&tables(found));
            }
        }
        Ok(text + &self.replayed.snapshot_table())
    }

    /// Returns the result as JSON for programs.
    pub fn json(&self) -> Result<Value> {
        let replayed = self.replayed.json()?;
        let rows = match &self.rows {
            CheckedRows::NotCompared(reason) => json!({"compared": false, "reason": reason, "rebuilt": true}),
            CheckedRows::Compared { at, is_current, found } => {
                let added = found
                    .added
                    .iter()
                    .map(|((kind, field), count)| json!({"kind": kind, "field": field, "count": count}));
                json!({
                    "compared": true,
                    "position": at.position,
                    "time": at.time.to_string(),
                    "rows": found.rows,
                    "rebuilt": !is_current,
                    "count": found.count,
                    "differences": found.differences,
                    "added": added.collect::<Vec<_>>(),
                })
            }
        };
        Ok(json!({
            "directory": replayed["directory"],
            "fleet": replayed["fleet"],
            "lineage": replayed["lineage"],
            "last": replayed["last"],
            "state_hash": replayed["state_hash"],
            "rows": rows,
            "snapshots": replayed["snapshots"],
            "contradictions": self.contradictions(),
        }))
    }
}

fn tables(found: &RowComparison) -> String {
    let differences = found.differences.iter().map(|one: &RowDifference| {
        let field = one.field.clone().unwrap_or_else(|| "(whole row)".to_owned());
        vec![one.kind.clone(), one.key.clone(), field, shown(one.stored.as_ref()), shown(one.built.as_ref())]
    });
    let heads = ["KIND", "KEY", "FIELD", "STORED", "THIS BUILD"];
    let count = usize::try_from(found.count).unwrap_or(usize::MAX);
    let differences = titled("Differences", count, &heads, differences.collect());
    let added = found.added.iter().map(|((kind, field), count)| {
        vec![
            kind.clone(),
            if field.is_empty() { "(whole row)".to_owned() } else { field.clone() },
            count.to_string(),
        ]
    });
    let added = titled("Added fields", found.added.len(), &["KIND", "FIELD", "VALUES"], added.collect());
    differences + &added
}

/// Returns a value in at most [`SHOWN`] characters; `-o json` has all of it.
fn shown(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "(none)".to_owned(), Value::to_string);
    if text.chars().count() <= SHOWN { text } else { text.chars().take(SHOWN - 1).chain(['…']).collect() }
}
