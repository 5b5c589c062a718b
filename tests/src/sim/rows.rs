//! Rows and reads of a server in a simulated world. Rows follow the journal after a delay; reads wait for the
//! position of [`LastVerdict`], as reads over HTTP do.
//!
//! Rows belong to the process of a server, also while it is a standby. A row is applied after its delay, and
//! its reads are answered then, each at its time. A read that is not answered within [`PATIENCE`] is refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::subject::Subject;
use chancery_journal::RecordIter;
use chancery_journal::memory::MemoryLog;
use chancery_machine::fleet::FleetState;
use chancery_projector::rows::{
    CapabilityRow, ClusterRow, DeploymentRow, IncarnationRow, NodeRow, OperationRow, PlanRow, PolicyRow,
    ReplicaRow, RequestRow, SessionRow, VolumeRow,
};
use chancery_projector::{
    AppliedPosition, FoldError, FoldedState, JournalFold, LastVerdict, ReadConsistency, ReadModelRow,
    RowCounts,
};
use serde_json::Value;

use crate::check::{RowStamp, StampList};

/// Time for which a read waits, like the limit for `min_position` in the API.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kinds with lists that are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListedKind {
    /// List of clusters.
    Clusters,
    /// List of nodes.
    Nodes,
    /// List of plans.
    Plans,
    /// List of policies.
    Policies,
    /// List of replicas.
    Replicas,
}

impl ListedKind {
    /// All kinds.
    pub const ALL: [ListedKind; 5] = [
        ListedKind::Clusters,
        ListedKind::Nodes,
        ListedKind::Plans,
        ListedKind::Policies,
        ListedKind::Replicas,
    ];

    /// Name of the kind.
    pub const fn word(self) -> &'static str {
        match self {
            ListedKind::Clusters => "cluster",
            ListedKind::Nodes => "node",
            ListedKind::Plans => "plan",
            ListedKind::Policies => "policy",
            ListedKind::Replicas => "replica",
        }
    }

    fn subjects(self, fleet: &FleetState) -> Vec<Subject> {
        match self {
            ListedKind::Clusters => named(fleet.clusters().sorted(), |of| Subject::Cluster(of.name.clone())),
            ListedKind::Nodes => named(fleet.nodes().sorted(), |of| Subject::Node(of.name.clone())),
            ListedKind::Plans => named(fleet.plans().sorted(), |of| Subject::Plan(of.name.clone())),
            ListedKind::Policies => named(fleet.policies().sorted(), |of| Subject::Policy(of.name.clone())),
            ListedKind::Replicas => named(fleet.replicas().sorted(), |of| Subject::Replica(of.name.clone())),
        }
    }
}

fn named<T>(all: Vec<&T>, name: impl Fn(&T) -> Subject) -> Vec<Subject> {
    all.into_iter().map(name).collect()
}

/// Target of a read.
#[derive(Clone, PartialEq, Debug)]
pub enum ReadTarget {
    /// Row of an entity.
    Row(Subject),
    /// All rows of a kind.
    List(ListedKind),
}

/// Whether rows are shown whole, or only their history fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowDetail {
    /// All fields.
    All,
    /// Version and position, which costs less.
    Stamps,
}

/// Row that was found.
#[derive(Clone, PartialEq, Debug)]
pub struct FoundRow {
    /// History fields of the row.
    pub stamp: RowStamp,
    /// Whole row, if requested.
    pub whole: Option<Value>,
}

/// Answer to a read.
#[derive(Clone, PartialEq, Debug)]
pub enum ReadAnswer {
    /// Row, or `None` if there is none.
    Row(Option<FoundRow>),
    /// Rows of a list.
    List(StampList),
    /// The rows are behind the position.
    NotApplied,
}

/// Read that came to a server.
#[derive(Clone, Debug)]
pub struct ServerRead {
    /// Target of the read.
    pub of: ReadTarget,
    /// Requested parts of a row.
    pub parts: RowDetail,
    /// Consistency in addition to `named`.
    pub consistency: ReadConsistency,
    /// Position that the reader named.
    pub named: Option<Position>,
    /// Position that the answer must have reached, by the oracle.
    pub least: Position,
}

/// Read that waits or has ended.
#[derive(Clone, Debug)]
pub struct WaitingRead {
    /// Requested read.
    pub read: ServerRead,
    /// Position that the server waits for.
    pub wanted: Position,
    /// Arrival time.
    pub since: Duration,
}

/// Read that has ended.
#[derive(Debug)]
pub struct EndedRead {
    /// Read with its wait.
    pub waited: WaitingRead,
    /// Position of the rows at the end of the read.
    pub position: Position,
    /// Answer of the server.
    pub answer: ReadAnswer,
}

/// Rows of a server's process: see the module.
pub struct ServerRows {
    /// Number of the process.
    pub process: u64,
    /// Last verdict that the process returned.
    pub last: LastVerdict,
    fold: JournalFold,
    /// Records that the process has and the rows lack, each with the time of its application.
    waiting: VecDeque<(Duration, Arc<Record>)>,
    /// Source of records for a standby. A leader gets records with its deliveries.
    follows: Option<RecordIter>,
    reads: VecDeque<WaitingRead>,
}

/// Folded log for a starting server.
pub struct FoldedLog {
    /// State at the end of the log.
    pub head: Option<FoldedState>,
    /// Rows, which may be behind the end.
    pub rows: JournalFold,
    /// Records that the rows lack.
    pub behind: Vec<Arc<Record>>,
}

impl FoldedLog {
    /// Folds the log, from a snapshot if there is one. Rows are behind by this number of records, but not
    /// before `least`, the position that the process had already.
    pub fn fold(
        log: &MemoryLog,
        snapshot: Option<FoldedState>,
        behind: usize,
        least: Position,
    ) -> Result<FoldedLog, FoldError> {
        let mut rows = JournalFold::from(snapshot);
        let records = log.source().records(rows.position().plus(1)).expect("a log in memory can be read");
        let mut records: Vec<_> = records.map(|record| record.expect("the chain is unbroken")).collect();
        let known = records.partition_point(|record| record.last() <= least);
        let behind = records.split_off(records.len().saturating_sub(behind).max(known));
        for record in records {
            rows.take(&record)?;
        }
        let mut head = rows.clone();
        for record in &behind {
            head.take(record)?;
        }
        Ok(FoldedLog { head: head.into_state(), rows, behind })
    }
}

impl ServerRows {
    /// Returns the rows of a starting process: its verdicts start at the head of the journal.
    pub fn new(process: u64, fold: JournalFold, head: Position) -> ServerRows {
        let (last, waiting, asked) = (LastVerdict::at(head), VecDeque::new(), VecDeque::new());
        ServerRows { process, last, fold, waiting, follows: None, reads: asked }
    }

    /// Makes the process a leader, which stops following, with newly folded rows.
    pub fn decide(&mut self, fold: JournalFold) {
        self.fold = fold;
        self.waiting.clear();
        self.follows = None;
    }

    /// Makes the process a standby, which follows the log.
    pub fn stand_by(&mut self, log: &MemoryLog) {
        let end = self.waiting.back().map_or(self.fold.position(), |(_, record)| record.last());
        self.follows = log.source().records(end.plus(1)).ok();
    }

    /// Adds records of the process. The records reach the rows after a delay, and never before earlier ones.
    pub fn publish(&mut self, records: impl IntoIterator<Item = Arc<Record>>, due: Duration) {
        let due = self.waiting.back().map_or(due, |(last, _)| due.max(*last));
        self.waiting.extend(records.into_iter().map(|record| (due, record)));
    }

    /// Adds the records that the log has by now, due as given, if the process is a standby.
    pub fn follow(&mut self, due: Duration) {
        let Some(log) = &mut self.follows else { return };
        // The oracle finds unreadable records.
        let records: Vec<_> = log.by_ref().map_while(Result::ok).collect();
        self.publish(records, due);
    }

    /// Returns the position of the rows.
    pub fn position(&self) -> Position {
        self.fold.position()
    }

    /// Returns the state that the rows show.
    pub fn state(&self) -> Option<&FoldedState> {
        self.fold.state()
    }

    /// Applies all records of the process before they are due, as a faster projector would.
    pub fn catch_up(&mut self) {
        while let Some((_, record)) = self.waiting.pop_front() {
            self.apply(&record);
        }
    }

    fn apply(&mut self, record: &Record) {
        if let Err(error) = self.fold.take(record) {
            panic!("a projector cannot fold delivered records: {error:?}");
        }
    }

    /// Whether a reader waits.
    pub fn is_waited_for(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Adds a read.
    pub fn ask(&mut self, read: ServerRead, now: Duration) {
        let wanted = self.last.wanted(read.consistency, read.named);
        self.reads.push_back(WaitingRead { read, wanted, since: now });
    }

    /// Advances until now: applies what is due, and answers or refuses reads, each at its time.
    pub fn go_on(&mut self, now: Duration) -> Vec<EndedRead> {
        let mut done = Vec::new();
        loop {
            self.answer(&mut done);
            let due = self.waiting.front().map(|(due, _)| *due).filter(|due| *due <= now);
            let end = self.reads.front().map(|asked| asked.since + PATIENCE).filter(|end| *end <= now);
            match (due, end) {
                // Rows that come exactly at the end are in time.
                (Some(due), end) if end.is_none_or(|end| due <= end) => {
                    if let Some((_, record)) = self.waiting.pop_front() {
                        self.apply(&record);
                    }
                }
                (_, Some(_)) => {
                    let position = self.position();
                    let refused =
                        |asked| EndedRead { waited: asked, position, answer: ReadAnswer::NotApplied };
                    done.extend(self.reads.pop_front().map(refused));
                }
                (_, None) => return done,
            }
        }
    }

    /// Answers the reads whose position the rows have reached.
    fn answer(&mut self, done: &mut Vec<EndedRead>) {
        if self.reads.is_empty() {
            return;
        }
        let position = self.position();
        let applied = AppliedPosition { position, ..AppliedPosition::default() };
        for asked in std::mem::take(&mut self.reads) {
            if applied.reaches(asked.wanted) == Ok(true) {
                let fleet = self.fold.state().map(|state| &state.fleet);
                let answer = answer(fleet, &asked.read);
                done.push(EndedRead { waited: asked, position, answer });
            } else {
                self.reads.push_back(asked);
            }
        }
    }
}

/// Returns the answer of a state to a read.
fn answer(fleet: Option<&FleetState>, read: &ServerRead) -> ReadAnswer {
    match &read.of {
        ReadTarget::Row(subject) => ReadAnswer::Row(fleet.and_then(|fleet| row(fleet, subject, read.parts))),
        ReadTarget::List(kind) => {
            let all = fleet.into_iter().flat_map(|fleet| {
                let row = |of: Subject| row(fleet, &of, RowDetail::Stamps).map(|found| (of, found.stamp));
                kind.subjects(fleet).into_iter().filter_map(row)
            });
            ReadAnswer::List(all.collect())
        }
    }
}

/// Returns the row of an entity, as the projector builds it from the state.
pub fn row(fleet: &FleetState, subject: &Subject, parts: RowDetail) -> Option<FoundRow> {
    match subject {
        Subject::Fleet => None,
        Subject::Cluster(name) => found::<ClusterRow>(fleet, name, parts),
        Subject::Capability(name) => found::<CapabilityRow>(fleet, name, parts),
        Subject::Node(name) => found::<NodeRow>(fleet, name, parts),
        Subject::Plan(name) => found::<PlanRow>(fleet, name, parts),
        Subject::Deployment(plan, name) => {
            found::<DeploymentRow>(fleet, &(plan.clone(), name.clone()), parts)
        }
        Subject::Replica(name) => found::<ReplicaRow>(fleet, name, parts),
        Subject::Incarnation(id) => found::<IncarnationRow>(fleet, id, parts),
        Subject::Operation(id) => found::<OperationRow>(fleet, id, parts),
        Subject::Session(id) => found::<SessionRow>(fleet, id, parts),
        Subject::Policy(name) => found::<PolicyRow>(fleet, name, parts),
        Subject::Volume(name) => found::<VolumeRow>(fleet, name, parts),
        Subject::Request(id) => found::<RequestRow>(fleet, id, parts),
    }
}

fn found<R: ReadModelRow>(fleet: &FleetState, key: &R::Key, parts: RowDetail) -> Option<FoundRow> {
    // Counts are no part of a row's history.
    let counts = if parts == RowDetail::All { RowCounts::of(fleet) } else { RowCounts::default() };
    let row = R::of(fleet, &counts, key)?;
    let json = || serde_json::to_value(&row).expect("rows have string keys and no failing parts");
    let shown = RowStamp { version: row.version(), changed: row.position() };
    Some(FoundRow { stamp: shown, whole: (parts == RowDetail::All).then(json) })
}
