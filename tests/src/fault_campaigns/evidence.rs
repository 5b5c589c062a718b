//! Evidence that a campaign leaves, and the judgement on it: the journal's directory, the history of
//! producers, served rows, and processes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use chancery_events::event::Event;
use chancery_events::fact::Fact;
use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::refusal::RefusalCode;
use chancery_journal::segments::{SegmentJournal, SegmentOptions};
use chancery_journal::{Journal as _, JournalDelivery};
use chancery_projector::RowKind;

use super::fleet::{empty, fill};
use crate::check::{JournalChecker, RunningProcesses};
use crate::history::{InvocationHistory, InvocationOutcome, Verdict};
use crate::ledger::CountMap;
use crate::model::{ModelRows, SecondModel, comparable, differences, key_of};
use crate::{ServerProcess, payloads};

/// Rows and processes at one position of a server's journal.
#[derive(Debug)]
pub struct ServerEvidence {
    position: Position,
    rows: ModelRows,
    alive: Vec<RunningProcesses>,
}

/// Verifies that everything still ends and starts, with evidence, and leaves nothing running.
pub(super) fn wind_up(server: &ServerProcess, evidence: &mut Vec<ServerEvidence>) -> Result<()> {
    empty(server, "end");
    fill(server, "end", 5);
    evidence.push(ServerEvidence::gather(server)?);
    empty(server, "over");
    Ok(())
}

impl ServerEvidence {
    /// Collects rows and processes of an idle server, between reads at the same position.
    pub fn gather(server: &ServerProcess) -> Result<ServerEvidence> {
        ServerEvidence::gather_with(server, || alive(server.data()))
    }

    /// Collects rows of an idle server, and what `alive` finds running, between reads at the same position.
    pub(super) fn gather_with(
        server: &ServerProcess,
        alive: impl Fn() -> Result<Vec<RunningProcesses>>,
    ) -> Result<ServerEvidence> {
        for _ in 0..600 {
            let before = read(server)?;
            let alive = alive()?;
            let after = read(server)?;
            if let (Some((position, rows)), Some((same, _))) = (before, after)
                && position == same
            {
                return Ok(ServerEvidence { position, rows, alive });
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        bail!("the unused server does not become idle")
    }
}

/// Returns all rows, if all reads have the same position.
fn read(server: &ServerProcess) -> Result<Option<(Position, ModelRows)>> {
    let client = server.client();
    let (mut rows, mut at) = (ModelRows::new(), None);
    for kind in RowKind::ALL {
        let mut token = String::new();
        loop {
            let answer = client.get(&format!("/v1/fleets/default/{}?limit=1000{token}", kind.word()));
            ensure!(answer.status == 200, "list {kind}: {} {}", answer.status, answer.text);
            let page = answer.json();
            let position =
                page["position"].as_u64().map(Position::new).context("a page names its position")?;
            if *at.get_or_insert(position) != position {
                return Ok(None);
            }
            for row in page["items"].as_array().context("a page has items")? {
                let key =
                    key_of(*kind, row).with_context(|| format!("a row of {kind} names itself: {row}"))?;
                rows.insert((*kind, key), comparable(*kind, row.clone()));
            }
            match page["next_page_token"].as_str() {
                Some(next) => token = format!("&page_token={next}"),
                None => break,
            }
        }
    }
    Ok(at.map(|at| (at, rows)))
}

/// Live processes of each incarnation.
fn alive(data: &Path) -> Result<Vec<RunningProcesses>> {
    let mut found = BTreeMap::new();
    for payload in payloads(data) {
        let id = payload.incarnation.parse().map_err(|error| anyhow!("{payload:?}: {error}"))?;
        *found.entry(id).or_insert(0) += 1;
    }
    Ok(found
        .into_iter()
        .map(|(incarnation, processes)| RunningProcesses { incarnation, processes })
        .collect())
}

/// Reads the records of a journal that no server has open.
pub fn records(data: &Path) -> Result<Vec<Arc<Record>>> {
    let options = SegmentOptions::new(data.join("fleets/default/journal"), "default");
    let no_sink = Box::new(|_: JournalDelivery| {});
    let (journal, _) =
        SegmentJournal::open(&options, no_sink).context("cannot open journal of the campaign")?;
    let records = journal.source().records(Position::FIRST).context("cannot read journal of the campaign")?;
    let records = records.collect::<Result<Vec<_>, _>>().context("cannot read journal of the campaign")?;
    journal.close()?;
    Ok(records)
}

/// Judges the evidence: adds findings to the tally, and fails with the first violation.
pub fn judge(
    data: &Path,
    history: &InvocationHistory,
    evidence: &[ServerEvidence],
    tally: &mut CountMap,
) -> Result<()> {
    let records = records(data)?;
    tally.events += records.last().map_or(0, |record| record.last().get());
    tally.acknowledged += history.acknowledged();
    let unanswered =
        history.invocations().iter().filter(|op| op.ending == InvocationOutcome::Unknown).count();
    tally.unanswered += unanswered as u64;
    let verdicts = verdicts(&records)?;
    let verdicts_received = history.invocations().iter().filter_map(|op| match op.ending {
        // The journal has no verdict on an intent that changes nothing.
        InvocationOutcome::Ok { verdict: Verdict::Unchanged, .. } => None,
        InvocationOutcome::Ok { position, .. } => Some(position),
        InvocationOutcome::Fail | InvocationOutcome::Unknown => None,
    });
    tally.lost += verdicts_received.filter(|position| !verdicts.contains_key(position)).count() as u64;
    tally.decided_twice += decided_twice(&verdicts);
    violation(&records, history, evidence)
}

fn violation(
    records: &[Arc<Record>],
    history: &InvocationHistory,
    evidence: &[ServerEvidence],
) -> Result<()> {
    let (mut checker, mut model) = (JournalChecker::new(), SecondModel::new());
    let mut evidence = evidence.iter().peekable();
    for record in records {
        checker.take(record)?;
        model.take(record)?;
        while let Some(seen) = evidence.next_if(|seen| seen.position <= record.last()) {
            ensure!(
                seen.position == record.last(),
                "rows were served of position {}, inside a record",
                seen.position
            );
            checker.alive(&seen.alive).with_context(|| format!("processes at position {}", seen.position))?;
            let found = differences(&model.rows(), &seen.rows);
            ensure!(found.is_empty(), "rows of position {}:\n  {}", seen.position, found.join("\n  "));
        }
    }
    ensure!(evidence.next().is_none(), "rows were served of a position that is not in the journal");
    checker.history(history)?;
    Ok(())
}

type KeyDigest = chancery_events::digest::Digest;

/// Key of each verdict, and whether the verdict decides the key, or only concerns it (reused, expired, in the
/// future).
fn verdicts(records: &[Arc<Record>]) -> Result<BTreeMap<Position, (KeyDigest, bool)>> {
    let mut found = BTreeMap::new();
    for (position, line) in records.iter().flat_map(|record| record.events()) {
        match Event::read(line)? {
            Event::Fact { fact: Fact::IntentAccepted(fact), .. } => {
                found.insert(position, (fact.key, true));
            }
            Event::Fact { fact: Fact::IntentRefused(fact), .. } => {
                let about_key = matches!(
                    fact.code,
                    RefusalCode::IdempotencyKeyReused
                        | RefusalCode::IntentExpired
                        | RefusalCode::TimestampInFuture
                );
                found.insert(position, (fact.key, !about_key));
            }
            Event::Fact { .. } | Event::Intent(_) | Event::Observation { .. } => {}
        }
    }
    Ok(found)
}

fn decided_twice(verdicts: &BTreeMap<Position, (KeyDigest, bool)>) -> u64 {
    let mut counts: BTreeMap<KeyDigest, u64> = BTreeMap::new();
    for (key, decides) in verdicts.values() {
        *counts.entry(*key).or_default() += u64::from(*decides);
    }
    counts.values().filter(|count| **count > 1).count() as u64
}
