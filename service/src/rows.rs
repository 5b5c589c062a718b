//! From durable records to those who follow them: consumers, and the projector on a thread of its own.
//!
//! The decider's thread publishes and never waits. What the projector has no room for is in the journal, from which
//! it reads what it missed. Its batches begin at least [`PACE`] apart: each costs two writes and two syncs of its own,
//! on the disk for which verdicts wait too, and what comes meanwhile goes into the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use chancery_events::event::Event;
use chancery_events::fact::{Fact, TermStarted};
use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_journal::Source;
use chancery_journal::snapshots::Snapshots;
use chancery_projector::{Fold, FoldError, ProjectError, Projector};
use tokio::sync::{oneshot, watch};

use crate::decider::Publish;
use crate::http::Hub;

/// Published records that wait for the projector; beyond, it reads the journal itself.
const WAITING: usize = 256;
/// So far apart do batches of rows begin. A reader that waits for a position waits this much longer at most.
const PACE: Duration = Duration::from_millis(4);

/// The way to the projector.
#[derive(Debug)]
pub struct Records {
    waiting: SyncSender<Vec<Arc<Record>>>,
    missed: Arc<AtomicBool>,
}

/// Asks the projector for a copy of its state.
#[derive(Clone, Debug)]
pub struct States {
    asked: Sender<oneshot::Sender<Fold>>,
    waiting: SyncSender<Vec<Arc<Record>>>,
}

/// The other end.
#[derive(Debug)]
pub struct Queue {
    waiting: Receiver<Vec<Arc<Record>>>,
    asked: Receiver<oneshot::Sender<Fold>>,
    /// Set after something did not find room.
    missed: Arc<AtomicBool>,
}

impl States {
    /// The state as it is now, which may be behind the journal. None if the projector has stopped.
    pub async fn ask(&self) -> Option<Fold> {
        let (answer, state) = oneshot::channel();
        self.asked.send(answer).ok()?;
        // If there is no room, it has something to wake up for.
        let _ = self.waiting.try_send(Vec::new());
        state.await.ok()
    }
}

impl Queue {
    /// All ends.
    pub fn open() -> (Records, States, Queue) {
        let (sender, waiting) = sync_channel(WAITING);
        let (ask, asked) = channel();
        let missed = Arc::new(AtomicBool::new(false));
        let states = States { asked: ask, waiting: sender.clone() };
        (Records { waiting: sender, missed: Arc::clone(&missed) }, states, Queue { waiting, asked, missed })
    }

    /// Waits for records, and takes all there are; `None` if there will be no more.
    fn next(&self) -> Option<Vec<Arc<Record>>> {
        let mut records = self.waiting.recv().ok()?;
        records.extend(self.waiting.try_iter().take(WAITING).flatten());
        Some(records)
    }
}

/// Gives durable records to everybody, and tells of clusters that changed and of who decides. It never waits for any of
/// them.
pub fn publisher(
    hub: Arc<Hub>,
    clusters: watch::Sender<Position>,
    deciders: watch::Sender<Option<Arc<str>>>,
    rows: Records,
) -> Publish {
    Box::new(move |records| {
        for record in records {
            hub.publish(Arc::clone(record));
        }
        match rows.waiting.try_send(records.to_vec()) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                rows.missed.store(true, Ordering::Release);
                // It wakes up after this was set: with this one, or with one that still stands in its way.
                let _ = rows.waiting.try_send(Vec::new());
            }
            Err(TrySendError::Disconnected(_)) => tracing::error!("the projector has stopped"),
        }
        let about_clusters = |record: &Arc<Record>| {
            record.events().any(|(_, line)| line.starts_with(b"{\"k\":\"fact\",\"t\":\"cluster."))
        };
        if let Some(term) = records.iter().rev().find_map(|record| term_of(record)) {
            deciders.send_replace(term.address.map(Arc::from));
        }
        if let Some(last) = records.iter().rev().find(|record| about_clusters(record)) {
            clusters.send_replace(last.last());
        }
    })
}

/// The term that the record begins, if it begins one.
fn term_of(record: &Record) -> Option<TermStarted> {
    record.header().begins?;
    match Event::read(record.events().next()?.1) {
        Ok(Event::Fact { fact: Fact::TermStarted(fact), .. }) => Some(fact),
        // One that a lineage begins has no decider yet.
        _ => Some(TermStarted { address: None }),
    }
}

/// The projector, and the snapshots that it takes.
pub struct Rows {
    /// Caught up, or not far from it.
    pub projector: Projector,
    /// What it follows.
    pub source: Arc<dyn Source>,
    /// Where snapshots go.
    pub snapshots: Snapshots,
    /// Whose they are.
    pub fleet: Arc<str>,
    /// Events between snapshots, at least. In a larger fleet as many as it has entities: a snapshot costs in
    /// proportion to them, and so does reading it, beside which those events are replayed.
    pub every: u64,
}

impl Rows {
    /// Follows until nobody publishes any more; then takes a last snapshot.
    pub fn follow(&mut self, queue: &Queue) -> Result<()> {
        let mut last = self.projector.position();
        let mut writing: Option<JoinHandle<()>> = None;
        while let Some(records) = queue.next() {
            let began = Instant::now();
            self.take(&records, queue.missed.swap(false, Ordering::Acquire))?;
            for answer in queue.asked.try_iter() {
                // Whoever asked may be gone.
                let _ = answer.send(Fold::from(self.projector.state().cloned()));
            }
            let size = self.projector.state().map_or(0, |state| state.fleet.size() as u64);
            let is_due = self.projector.position().get() - last.get() >= self.every.max(size);
            if is_due && writing.as_ref().is_none_or(JoinHandle::is_finished) {
                last = self.projector.position();
                writing = self.snapshot();
            }
            std::thread::sleep(PACE.saturating_sub(began.elapsed()));
        }
        self.catch_up()?;
        if let Some(writing) = writing {
            // It logs what went wrong; a snapshot can be made again.
            let _ = writing.join();
        }
        if self.projector.position() > last
            && let Some(writing) = self.snapshot()
        {
            let _ = writing.join();
        }
        self.projector.flush().context("flush the read models")
    }

    /// The records that came, and those that found no room behind or between them.
    fn take(&mut self, records: &[Arc<Record>], has_missed: bool) -> Result<()> {
        match self.projector.apply(records) {
            Ok(_) if !has_missed => Ok(()),
            Ok(_) | Err(ProjectError::Fold(FoldError::Gap { .. })) => self.catch_up(),
            Err(error) => Err(error).context("fold the journal"),
        }
    }

    fn catch_up(&mut self) -> Result<()> {
        self.projector.catch_up().map(drop).context("catch up with the journal")
    }

    /// Writes a copy of the state on a thread of its own.
    fn snapshot(&self) -> Option<JoinHandle<()>> {
        let state = self.projector.state()?.clone();
        let (snapshots, fleet) = (self.snapshots.clone(), Arc::clone(&self.fleet));
        let source = Arc::clone(&self.source);
        let write = move || match state.write(fleet, &snapshots, &*source) {
            Ok(meta) => tracing::info!(position = %meta.position, "snapshot written"),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a snapshot could not be written");
            }
        };
        std::thread::Builder::new().name("snapshot".into()).spawn(write).ok()
    }
}
