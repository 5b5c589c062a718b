//! Lost records at a journal's end: witnesses that prove the loss, and the continuation if it is accepted.
//!
//! Every witness is written after the journal was synced. Snapshots and read models contain delivered
//! records, and an executor receives a head once it is durable. So a plain crash leaves no witness ahead.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context as _, Result, bail};
use chancery_cli::note;
use chancery_decider::random;
use chancery_events::event::Event;
use chancery_events::fact::{Fact, LineageStarted, TermStarted};
use chancery_events::id::{Lineage, Position, WriterId};
use chancery_events::level::FleetLevel;
use chancery_events::name::FleetName;
use chancery_events::record::{HeaderParts, Record, RecordDraft};
use chancery_events::time::Time;
use chancery_journal::segments::{OpenEvidence, SegmentJournal, SegmentOptions, TruncatedTail};
use chancery_journal::witness::JournalWitness;
use chancery_journal::{
    ChainCursor, Journal as _, JournalDelivery, JournalLoss, WriterIdentity, genesis, snapshots,
};

/// Returns the witnesses of a fleet in a server's directory; each names a record of the journal. `rows` is
/// the cursor of the read models, if they are open.
pub(crate) fn witnesses(
    data: &Path,
    fleet: &FleetName,
    rows: Option<ChainCursor>,
) -> Result<Vec<JournalWitness>> {
    let fleet_dir = data.join("fleets").join(fleet.as_str());
    let mut found = local_witnesses(&fleet_dir, &data.join("executors").join(fleet.as_str()))?;
    if let Some(rows) = rows {
        let name = format!("the cursor of the read models in {}", fleet_dir.join("rows").display());
        found.push(JournalWitness::at(name, &rows));
    }
    Ok(found)
}

/// Returns the witnesses in a fleet's snapshots and its embedded executors' stores. Changes nothing.
pub(crate) fn local_witnesses(fleet_dir: &Path, executors: &Path) -> Result<Vec<JournalWitness>> {
    let dir = fleet_dir.join("snapshots");
    let mut found = if dir.is_dir() { snapshots::witnesses(&dir)? } else { Vec::new() };
    if !executors.is_dir() {
        return Ok(found);
    }
    for entry in
        std::fs::read_dir(executors).with_context(|| format!("cannot list {}", executors.display()))?
    {
        let store = entry.with_context(|| format!("cannot list {}", executors.display()))?.path();
        let name = format!("the executor store {}", store.display());
        match chancery_executor::remembered(&store) {
            Ok(None) => {}
            Ok(Some(seen)) => {
                let (position, hash) = (seen.head.position, Some(seen.head.hash));
                found.push(JournalWitness { name, lineage: seen.lineage, position, hash });
            }
            // An unreadable store proves nothing; its executor reports what to do about it.
            Err(error) => tracing::warn!(%error, "cannot read {name}"),
        }
    }
    Ok(found)
}

/// Continues under a new lineage if the embedded journal lacks records; the change is durable on return.
pub(crate) fn accept(options: &SegmentOptions) -> Result<()> {
    let OpenEvidence::Witnesses(witnesses) = options.against.clone() else { return Ok(()) };
    let options = SegmentOptions { against: OpenEvidence::AcceptedLoss(witnesses), ..options.clone() };
    let (sender, deliveries) = channel();
    // After the journal is closed there is no receiver.
    let sink = Box::new(move |delivery| drop(sender.send(delivery)));
    let (journal, opened) = SegmentJournal::open(&options, sink)?;
    if let Some(cut) = &opened.cut {
        report_cut(cut);
    }
    match &opened.loss {
        Some(loss) => {
            let lineage = Lineage::from_random(random());
            for record in records(&options, loss, lineage)? {
                append(&journal, record, &deliveries)?;
            }
            report(loss, lineage);
        }
        None => note!(
            "chancery: --accept-loss has no effect: no evidence that the journal in {} has lost records; starting as usual",
            options.dir.display()
        ),
    }
    journal.close().context("cannot close journal")
}

/// Reports a tail that was cut off a journal.
pub(crate) fn report_cut(cut: &TruncatedTail) {
    note!(
        "chancery: the journal's tail was cut from position {} ({} bytes, {}): unacknowledged records, or the last group \
         before a power failure; the removed bytes are kept in {}",
        cut.from,
        cut.bytes,
        cut.reason,
        cut.kept.display()
    );
}

/// Reports the records that are known to be missing.
fn report(loss: &JournalLoss, lineage: Lineage) {
    let (first, last) = (loss.at().plus(1), loss.missing_through());
    tracing::warn!(%lineage, %first, last = last.map(Position::get), "loss accepted");
    let missing = match last {
        None => "the missing records belong to another history, so their positions are unknown".to_owned(),
        Some(_) if loss.differs() => format!(
            "from position {first} on, records may be missing, or replaced by records of another history"
        ),
        Some(last) => {
            format!("known to be missing: positions {first} to {last}, and perhaps later positions")
        }
    };
    note!(
        "chancery: the loss is accepted, and the journal continues as lineage {lineage}\n\
         {missing}\n\
         evidence: {loss}\n\
         hint: executors report incarnations that the journal does not know as orphans, and leave them running: end \
         them manually"
    );
}

/// Returns the record that starts the lineage; in an empty journal, the first record precedes it.
fn records(options: &SegmentOptions, loss: &JournalLoss, lineage: Lineage) -> Result<Vec<Record>> {
    let writer = WriterId::from_random(random());
    let by = WriterIdentity { fleet: options.fleet.clone(), build: env!("CARGO_PKG_VERSION").into(), writer };
    let mut records = Vec::new();
    let (head, at) = if let Some(head) = loss.head {
        (head, loss.at())
    } else {
        let now = Time::from_micros(chrono::Utc::now().timestamp_micros());
        let parts = genesis(&by, now, Lineage::from_random(random()));
        let record = seal(parts, TermStarted { address: None, level: FleetLevel::HIGHEST }.into())?;
        let head = ChainCursor::after(&record);
        records.push(record);
        (head, head.position)
    };
    let fact = LineageStarted {
        previous: head.lineage,
        at,
        missing_through: loss.missing_through(),
        abandoned: loss.abandoned(),
    };
    // Its time is that of the last record: the next leader determines the current time.
    records.push(seal(head.renew(&by, head.time, lineage), fact.into())?);
    Ok(records)
}

fn seal(parts: HeaderParts, fact: Fact) -> Result<Record> {
    let mut draft = RecordDraft::new();
    let event = Event::Fact { cause: Position::new(parts.first.get()), fact };
    draft.push(&event.line()).context("cannot create record")?;
    draft.seal(parts).context("cannot create record")
}

fn append(journal: &SegmentJournal, record: Record, deliveries: &Receiver<JournalDelivery>) -> Result<()> {
    journal.append(record).context("cannot start lineage")?;
    match deliveries.recv().context("cannot start lineage")? {
        JournalDelivery::Records(_) => Ok(()),
        JournalDelivery::Skipped(skipped) => bail!("cannot start lineage: {skipped}"),
        JournalDelivery::OutcomeUnknown(error) | JournalDelivery::Stopped(error) => {
            bail!("cannot start lineage: {error}")
        }
    }
}
