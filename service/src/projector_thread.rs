//! Distribution of durable records to followers: consumers, and the projector on a thread of its own.
//!
//! The decider's thread publishes and never waits. The projector reads records that exceed its queue from the
//! journal. Its batches start at least [`PACE`] apart, or [`SOON`] while a reader waits. Each batch costs two
//! writes and two syncs on the disk that verdicts also wait for; later records share the next batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use chancery_decider::{EventHub, PublishFn};
use chancery_events::event::Event;
use chancery_events::fact::{Fact, TermStarted};
use chancery_events::id::Position;
use chancery_events::level::FleetLevel;
use chancery_events::record::Record;
use chancery_journal::JournalReader;
use chancery_journal::snapshots::SnapshotStore;
use chancery_projector::{FleetFigures, FoldError, JournalFold, ProjectError, Projector};
use tokio::sync::{oneshot, watch};

/// Published records that wait for the projector; beyond this number it reads the journal itself.
const WAITING: usize = 256;
/// Time between the starts of two batches of rows, while no reader waits for one.
const PACE: Duration = Duration::from_millis(4);
/// Time between the starts of two batches of rows, while a reader waits.
const SOON: Duration = Duration::from_millis(1);

/// Sending half of the projector's queue.
#[derive(Debug)]
pub struct RecordQueue {
    waiting: SyncSender<Vec<Arc<Record>>>,
    missed: Arc<AtomicBool>,
}

/// Request to the projector.
#[derive(Debug)]
enum ProjectorRequest {
    /// Copy of the state.
    State(oneshot::Sender<JournalFold>),
    /// Figures for metrics.
    Figures(oneshot::Sender<Option<FleetFigures>>),
}

/// Requests copies of the projector's state, and figures of it.
#[derive(Clone, Debug)]
pub struct StateRequests {
    asked: Sender<ProjectorRequest>,
    waiting: SyncSender<Vec<Arc<Record>>>,
}

/// Receiving half, for the projector.
#[derive(Debug)]
pub struct ProjectorQueue {
    waiting: Receiver<Vec<Arc<Record>>>,
    asked: Receiver<ProjectorRequest>,
    /// Whether a record did not fit into the queue since the last batch.
    missed: Arc<AtomicBool>,
}

impl StateRequests {
    /// Returns the current state, which may be behind the journal; `None` if the projector has stopped.
    pub async fn ask(&self) -> Option<JournalFold> {
        let (answer, state) = oneshot::channel();
        self.request(ProjectorRequest::State(answer));
        state.await.ok()
    }

    /// Requests figures of the current state. The receiver fails if the projector has stopped.
    pub fn figures(&self) -> oneshot::Receiver<Option<FleetFigures>> {
        let (answer, figures) = oneshot::channel();
        self.request(ProjectorRequest::Figures(answer));
        figures
    }

    fn request(&self, request: ProjectorRequest) {
        // A projector that has stopped drops the request, which the receiver of the answer notices.
        let _ = self.asked.send(request);
        // If the queue is full, the projector has records that wake it up.
        let _ = self.waiting.try_send(Vec::new());
    }
}

impl ProjectorQueue {
    /// Returns all ends of a new queue.
    pub fn open() -> (RecordQueue, StateRequests, ProjectorQueue) {
        let (sender, waiting) = sync_channel(WAITING);
        let (ask, asked) = channel();
        let missed = Arc::new(AtomicBool::new(false));
        let states = StateRequests { asked: ask, waiting: sender.clone() };
        (
            RecordQueue { waiting: sender, missed: Arc::clone(&missed) },
            states,
            ProjectorQueue { waiting, asked, missed },
        )
    }

    /// Waits for records, and takes all available ones; `None` if there will be no more.
    fn next(&self) -> Option<Vec<Arc<Record>>> {
        let mut records = self.waiting.recv().ok()?;
        records.extend(self.waiting.try_iter().take(WAITING).flatten());
        Some(records)
    }
}

/// Returns the function that passes durable records to all followers, and announces changed clusters and the
/// leader. It never waits for any of them.
pub fn publisher(
    hub: Arc<EventHub>,
    clusters: watch::Sender<Position>,
    deciders: watch::Sender<Option<Arc<str>>>,
    rows: RecordQueue,
) -> PublishFn {
    Box::new(move |records| {
        for record in records {
            hub.publish(Arc::clone(record));
        }
        match rows.waiting.try_send(records.to_vec()) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                rows.missed.store(true, Ordering::Release);
                // The projector wakes up after the flag was set, by this message or by one in the full queue.
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

/// Returns the term that the record starts, if it starts one.
fn term_of(record: &Record) -> Option<TermStarted> {
    record.header().starts?;
    match Event::read(record.events().next()?.1) {
        Ok(Event::Fact { fact: Fact::TermStarted(fact), .. }) => Some(fact),
        // A record that starts a lineage has no decider yet.
        _ => Some(TermStarted { address: None, level: FleetLevel::HIGHEST }),
    }
}

/// Projector, and the snapshots that it takes.
pub struct ProjectorThread {
    /// Projector that is caught up, or nearly so.
    pub projector: Projector,
    /// Journal that the projector follows.
    pub source: Arc<dyn JournalReader>,
    /// Directory of the snapshots.
    pub snapshots: SnapshotStore,
    /// Fleet of the snapshots.
    pub fleet: Arc<str>,
    /// Minimum number of events between snapshots. A larger fleet uses half its number of entities. The costs of
    /// writing and reading a snapshot are proportional to that number, and a start replays those events as
    /// well.
    pub every: u64,
}

impl ProjectorThread {
    /// Follows until the publisher is dropped; then takes a last snapshot.
    pub fn follow(&mut self, queue: &ProjectorQueue) -> Result<()> {
        // Replayed events count: otherwise a server that is killed early would never leave a snapshot.
        let mut last = self.projector.snapshot();
        let mut writing: Option<JoinHandle<()>> = None;
        let watch = self.projector.reader().watch().clone();
        while let Some(records) = queue.next() {
            let began = Instant::now();
            self.take(&records, queue.missed.swap(false, Ordering::Acquire))?;
            for request in queue.asked.try_iter() {
                self.answer(request);
            }
            let passed = self.projector.position().get() - last.get();
            let is_due =
                self.projector.state().is_some_and(|state| state.is_snapshot_due(passed, self.every));
            if is_due && writing.as_ref().is_none_or(JoinHandle::is_finished) {
                last = self.projector.position();
                writing = self.snapshot()?;
            }
            watch.pause(began + SOON, began + PACE);
        }
        self.catch_up()?;
        if let Some(writing) = writing {
            // The thread logs its error; a snapshot can be taken again.
            let _ = writing.join();
        }
        if self.projector.position() > last
            && let Some(writing) = self.snapshot()?
        {
            let _ = writing.join();
        }
        self.projector.flush().context("cannot flush read models")
    }

    fn answer(&self, request: ProjectorRequest) {
        // The requester may have left.
        match request {
            ProjectorRequest::State(answer) => {
                let _ = answer.send(JournalFold::from(self.projector.state().cloned()));
            }
            ProjectorRequest::Figures(answer) if answer.is_closed() => drop(answer),
            ProjectorRequest::Figures(answer) => {
                let _ = answer.send(self.projector.figures());
            }
        }
    }

    /// Applies the received records, and the records after or between them that did not fit into the queue.
    fn take(&mut self, records: &[Arc<Record>], has_missed: bool) -> Result<()> {
        match self.projector.apply(records) {
            Ok(_) if !has_missed => Ok(()),
            Ok(_) | Err(ProjectError::Fold(FoldError::Gap { .. })) => self.catch_up(),
            Err(error) => Err(error).context("cannot fold journal"),
        }
    }

    fn catch_up(&mut self) -> Result<()> {
        self.projector.catch_up().map(drop).context("cannot catch up with journal")
    }

    /// Flushes the rows to disk, then writes a copy of the state on a thread of its own.
    fn snapshot(&self) -> Result<Option<JoinHandle<()>>> {
        let Some(state) = self.projector.state().cloned() else { return Ok(None) };
        self.projector.flush().context("cannot flush read models before a snapshot")?;
        let (snapshots, fleet) = (self.snapshots.clone(), Arc::clone(&self.fleet));
        let source = Arc::clone(&self.source);
        let write = move || match state.write(fleet, &snapshots, &*source) {
            Ok(meta) => tracing::info!(position = %meta.position, "snapshot written"),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot write snapshot");
            }
        };
        match std::thread::Builder::new().name("snapshot".into()).spawn(write) {
            Ok(writing) => Ok(Some(writing)),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "cannot start snapshot thread");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use chancery_events::event::Event;
    use chancery_events::fact::Fact;
    use chancery_events::id::{Lineage, WriterId};
    use chancery_events::record::RecordDraft;
    use chancery_events::time::Time;
    use chancery_journal::memory::MemoryLog;
    use chancery_journal::{Journal, JournalDelivery, WriterIdentity, genesis};
    use chancery_projector::StoreTuning;

    use super::*;

    /// Events between snapshots in these tests.
    const EVERY: u64 = 10;

    /// Journal that outlives the servers over it, and the directory of their snapshots and rows.
    struct ProjectorFixture {
        log: MemoryLog,
        dir: tempfile::TempDir,
        snapshots: SnapshotStore,
        made: u64,
    }

    /// One server, from its start to its end.
    struct ServerLife {
        records: RecordQueue,
        following: JoinHandle<Result<()>>,
    }

    impl ProjectorFixture {
        fn new() -> ProjectorFixture {
            let dir = tempfile::tempdir().expect("a directory");
            let snapshots = SnapshotStore::open(dir.path().join("snapshots")).expect("a directory");
            ProjectorFixture { log: MemoryLog::new("default"), dir, snapshots, made: 0 }
        }

        /// Opens a projector as a server does.
        fn open(&self, rows: &str) -> Projector {
            let tuning = StoreTuning::default();
            let (dir, snapshots) = (self.dir.path().join(rows), Some(&self.snapshots));
            Projector::open(&dir, "default", self.log.source(), snapshots, tuning).expect("rows")
        }

        /// Starts a server in rows of its own, as if the last one was killed before any row was on disk.
        fn start(&self) -> ServerLife {
            let (records, _, queue) = ProjectorQueue::open();
            let mut projector = self.open(&format!("rows-{}", self.made));
            projector.catch_up().expect("caught up");
            let (source, snapshots) = (self.log.source(), self.snapshots.clone());
            let mut rows =
                ProjectorThread { projector, source, snapshots, fleet: "default".into(), every: EVERY };
            let following = std::thread::spawn(move || rows.follow(&queue));
            ServerLife { records, following }
        }

        /// Commits durable records of an event each, and publishes them to the server.
        fn commit(&mut self, life: &ServerLife, count: u64) {
            let (sender, delivered) = std::sync::mpsc::channel();
            let sink = Box::new(move |delivery| {
                if let JournalDelivery::Records(records) = delivery {
                    sender.send(records).expect("a test that listens");
                }
            });
            let journal = self.log.open(sink).expect("a journal");
            let by = WriterIdentity {
                fleet: "default".into(),
                build: "test".into(),
                writer: WriterId::from_random(1),
            };
            for _ in 0..count {
                self.made += 1;
                let now = Time::from_micros(1_795_251_600_000_000);
                let (parts, type_name, data) = match journal.head() {
                    None => (genesis(&by, now, Lineage::from_random(7)), "term.started.v1", "{}".into()),
                    Some(head) => {
                        let spec = r#"{"domain":"d1","resources":{"cpu":1}}"#;
                        let data = format!(r#"{{"name":"n-{}","spec":{spec}}}"#, self.made);
                        (head.follow(&by, now, None), "node.applied.v1", data)
                    }
                };
                let fact = Fact::read(type_name, &data).expect("a known type").expect("data");
                let mut draft = RecordDraft::new();
                draft.push(&Event::Fact { cause: Position::FIRST, fact }.line()).expect("space");
                journal.append(draft.seal(parts).expect("a record")).expect("space");
                let records = delivered.recv().expect("a delivery");
                life.records.waiting.send(records).expect("a follower");
            }
        }

        /// Waits for the first snapshot.
        fn snapshot(&self) -> Option<Position> {
            for _ in 0..1000 {
                if let Some((position, _)) = self.snapshots.list().expect("listed").first() {
                    return Some(*position);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            None
        }
    }

    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).expect("a directory");
        for entry in std::fs::read_dir(from).expect("listed") {
            let entry = entry.expect("an entry");
            let to = to.join(entry.file_name());
            if entry.file_type().expect("a type").is_dir() {
                copy(&entry.path(), &to);
            } else {
                std::fs::copy(entry.path(), to).expect("copied");
            }
        }
    }

    #[test]
    fn runs_that_are_each_too_short_for_a_snapshot_leave_one_together() {
        let mut rig = ProjectorFixture::new();
        let mut lives = Vec::new();
        for _ in 0..2 {
            let life = rig.start();
            rig.commit(&life, EVERY - 3);
            // Killed: no part of it ends in order before the test does.
            lives.push(life);
        }
        let found = rig
            .snapshot()
            .expect("a snapshot, although each server had fewer events than between two snapshots");
        assert!(found.get() >= EVERY, "{found}");
        for life in lives {
            drop(life.records);
            life.following.join().expect("no panic").expect("no error");
        }
    }

    #[test]
    fn rows_are_on_the_disk_before_a_snapshot_has_its_name() {
        let mut rig = ProjectorFixture::new();
        let life = rig.start();
        rig.commit(&life, EVERY + 1);
        let snapshot = rig.snapshot().expect("a snapshot");
        copy(&rig.dir.path().join("rows-0"), &rig.dir.path().join("left"));
        let opened = rig.open("left");
        assert!(opened.position() >= snapshot, "rows at {}, a snapshot at {snapshot}", opened.position());
        drop(life.records);
        life.following.join().expect("no panic").expect("no error");
    }
}
