//! What a server of a simulated world shows: rows, which follow the journal behind a delay, and reads, which wait for the
//! position that [`LastVerdict`] says, as those over HTTP do.
//!
//! Rows belong to the process of a server. It has them also while it stands by, when another server decides. A row is applied
//! when its delay has passed, and its reads are answered then, each at its time. A read that is not answered within
//! [`PATIENCE`] is refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::subject::Subject;
use chancery_journal::Records;
use chancery_journal::memory::MemoryLog;
use chancery_machine::fleet::Fleet;
use chancery_projector::rows::{
    CapabilityRow, ClusterRow, DeploymentRow, IncarnationRow, NodeRow, OperationRow, PlanRow, PolicyRow,
    ReplicaRow, RequestRow, SessionRow, VolumeRow,
};
use chancery_projector::{Applied, Consistency, Counts, Fold, FoldError, Folding, LastVerdict, Row};
use serde_json::Value;

use crate::check::{List, Shown};

/// Time for which a read waits, as for the limit `min_position` of the API.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kinds of which lists are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
    /// Clusters.
    Clusters,
    /// Nodes.
    Nodes,
    /// Plans.
    Plans,
    /// Policies.
    Policies,
    /// Replicas.
    Replicas,
}

impl Listed {
    /// Every one.
    pub const ALL: [Listed; 5] =
        [Listed::Clusters, Listed::Nodes, Listed::Plans, Listed::Policies, Listed::Replicas];

    /// The word of the kind.
    pub const fn word(self) -> &'static str {
        match self {
            Listed::Clusters => "cluster",
            Listed::Nodes => "node",
            Listed::Plans => "plan",
            Listed::Policies => "policy",
            Listed::Replicas => "replica",
        }
    }

    fn subjects(self, fleet: &Fleet) -> Vec<Subject> {
        match self {
            Listed::Clusters => named(fleet.clusters().sorted(), |of| Subject::Cluster(of.name.clone())),
            Listed::Nodes => named(fleet.nodes().sorted(), |of| Subject::Node(of.name.clone())),
            Listed::Plans => named(fleet.plans().sorted(), |of| Subject::Plan(of.name.clone())),
            Listed::Policies => named(fleet.policies().sorted(), |of| Subject::Policy(of.name.clone())),
            Listed::Replicas => named(fleet.replicas().sorted(), |of| Subject::Replica(of.name.clone())),
        }
    }
}

fn named<T>(all: Vec<&T>, name: impl Fn(&T) -> Subject) -> Vec<Subject> {
    all.into_iter().map(name).collect()
}

/// What a read is of.
#[derive(Clone, PartialEq, Debug)]
pub enum Wanted {
    /// The row of an entity.
    Row(Subject),
    /// All rows of a kind.
    List(Listed),
}

/// Whether rows are shown whole, or only what they say of their history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parts {
    /// With every member.
    All,
    /// Version and position, which costs less.
    Stamps,
}

/// A row that was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// What it says of its history.
    pub shown: Shown,
    /// All of it, if it was asked for whole.
    pub whole: Option<Value>,
}

/// What a read was answered.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// A row, or that there is none.
    Row(Option<Found>),
    /// A list.
    List(List),
    /// The rows are behind the position.
    NotApplied,
}

/// A read that came to a server.
#[derive(Clone, Debug)]
pub struct Read {
    /// Of what.
    pub of: Wanted,
    /// How much of a row.
    pub parts: Parts,
    /// Besides `named`.
    pub consistency: Consistency,
    /// The position that the reader named.
    pub named: Option<Position>,
    /// The position that the answer must have reached, as the judge has it.
    pub least: Position,
}

/// A read that waits, or is over.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What.
    pub read: Read,
    /// The position for which the server lets it wait.
    pub wanted: Position,
    /// When it came.
    pub since: Duration,
}

/// A read that is over.
#[derive(Debug)]
pub struct Done {
    /// What was asked.
    pub asked: Asked,
    /// The position of the rows then.
    pub position: Position,
    /// What the server said.
    pub answer: Answer,
}

/// See the module.
pub struct Rows {
    /// Tells processes apart.
    pub process: u64,
    /// The last verdict that the process gave.
    pub last: LastVerdict,
    fold: Fold,
    /// Records that the process has and the rows do not, each with the time at which they will.
    waiting: VecDeque<(Duration, Arc<Record>)>,
    /// Where a server that stands by finds records. One that decides gets them with its deliveries.
    follows: Option<Records>,
    asked: VecDeque<Asked>,
}

/// A log that was folded for a server that starts.
pub struct Started {
    /// The state at the end.
    pub head: Option<Folding>,
    /// The rows, which may be behind it,
    pub rows: Fold,
    /// by these records.
    pub behind: Vec<Arc<Record>>,
}

impl Started {
    /// Folds the log, from a snapshot if there is one. Rows are behind by as many records, unless they were past those
    /// already: `least` is the position that they had.
    pub fn fold(
        log: &MemoryLog,
        snapshot: Option<Folding>,
        behind: usize,
        least: Position,
    ) -> Result<Started, FoldError> {
        let mut rows = Fold::from(snapshot);
        let records = log.source().records(rows.position().plus(1)).expect("a log in memory can be read");
        let mut records: Vec<_> = records.map(|record| record.expect("nobody breaks the chain")).collect();
        let known = records.partition_point(|record| record.last() <= least);
        let behind = records.split_off(records.len().saturating_sub(behind).max(known));
        for record in records {
            rows.take(&record)?;
        }
        let mut head = rows.clone();
        for record in &behind {
            head.take(record)?;
        }
        Ok(Started { head: head.into_state(), rows, behind })
    }
}

impl Rows {
    /// Those of a process that starts: its verdicts begin at the head of the journal.
    pub fn new(process: u64, fold: Fold, head: Position) -> Rows {
        let (last, waiting, asked) = (LastVerdict::at(head), VecDeque::new(), VecDeque::new());
        Rows { process, last, fold, waiting, follows: None, asked }
    }

    /// The process stops following and decides, with rows that were folded anew.
    pub fn decide(&mut self, fold: Fold) {
        self.fold = fold;
        self.waiting.clear();
        self.follows = None;
    }

    /// The process does not decide any more, and follows the log.
    pub fn stand_by(&mut self, log: &MemoryLog) {
        let end = self.waiting.back().map_or(self.fold.position(), |(_, record)| record.last());
        self.follows = log.source().records(end.plus(1)).ok();
    }

    /// The process has records, which are in the rows after a delay, and not before those that came earlier.
    pub fn publish(&mut self, records: impl IntoIterator<Item = Arc<Record>>, due: Duration) {
        let due = self.waiting.back().map_or(due, |(last, _)| due.max(*last));
        self.waiting.extend(records.into_iter().map(|record| (due, record)));
    }

    /// Of a process that stands by: the records that the log has by now, due as given.
    pub fn follow(&mut self, due: Duration) {
        let Some(log) = &mut self.follows else { return };
        // The judge finds what cannot be read.
        let records: Vec<_> = log.by_ref().map_while(Result::ok).collect();
        self.publish(records, due);
    }

    /// The position of the rows.
    pub fn position(&self) -> Position {
        self.fold.position()
    }

    /// The state that the rows show.
    pub fn state(&self) -> Option<&Folding> {
        self.fold.state()
    }

    /// Applies all that the process has, before it is due: as if its projector had been quicker.
    pub fn catch_up(&mut self) {
        while let Some((_, record)) = self.waiting.pop_front() {
            self.apply(&record);
        }
    }

    fn apply(&mut self, record: &Record) {
        if let Err(error) = self.fold.take(record) {
            panic!("a projector cannot fold what was delivered: {error:?}");
        }
    }

    /// Whether a reader waits.
    pub fn is_waited_for(&self) -> bool {
        !self.asked.is_empty()
    }

    /// A read comes.
    pub fn ask(&mut self, read: Read, now: Duration) {
        let wanted = self.last.wanted(read.consistency, read.named);
        self.asked.push_back(Asked { read, wanted, since: now });
    }

    /// Goes on until now: applies what is due, and answers or refuses reads, each at its time.
    pub fn go_on(&mut self, now: Duration) -> Vec<Done> {
        let mut done = Vec::new();
        loop {
            self.answer(&mut done);
            let due = self.waiting.front().map(|(due, _)| *due).filter(|due| *due <= now);
            let end = self.asked.front().map(|asked| asked.since + PATIENCE).filter(|end| *end <= now);
            match (due, end) {
                // Rows that come at the very moment are in time.
                (Some(due), end) if end.is_none_or(|end| due <= end) => {
                    if let Some((_, record)) = self.waiting.pop_front() {
                        self.apply(&record);
                    }
                }
                (_, Some(_)) => {
                    let position = self.position();
                    let refused = |asked| Done { asked, position, answer: Answer::NotApplied };
                    done.extend(self.asked.pop_front().map(refused));
                }
                (_, None) => return done,
            }
        }
    }

    /// Answers the reads that waited for no more than the rows have.
    fn answer(&mut self, done: &mut Vec<Done>) {
        if self.asked.is_empty() {
            return;
        }
        let position = self.position();
        let applied = Applied { position, ..Applied::default() };
        for asked in std::mem::take(&mut self.asked) {
            if applied.reaches(asked.wanted) == Ok(true) {
                let fleet = self.fold.state().map(|state| &state.fleet);
                let answer = shown(fleet, &asked.read);
                done.push(Done { asked, position, answer });
            } else {
                self.asked.push_back(asked);
            }
        }
    }
}

/// What a state answers to a read.
fn shown(fleet: Option<&Fleet>, read: &Read) -> Answer {
    match &read.of {
        Wanted::Row(subject) => Answer::Row(fleet.and_then(|fleet| row(fleet, subject, read.parts))),
        Wanted::List(kind) => {
            let all = fleet.into_iter().flat_map(|fleet| {
                let row = |of: Subject| row(fleet, &of, Parts::Stamps).map(|found| (of, found.shown));
                kind.subjects(fleet).into_iter().filter_map(row)
            });
            Answer::List(all.collect())
        }
    }
}

/// The row of an entity by a state, as the projector makes it.
pub fn row(fleet: &Fleet, subject: &Subject, parts: Parts) -> Option<Found> {
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

fn found<R: Row>(fleet: &Fleet, key: &R::Key, parts: Parts) -> Option<Found> {
    // What is counted is no part of a row's history.
    let counts = if parts == Parts::All { Counts::of(fleet) } else { Counts::default() };
    let row = R::of(fleet, &counts, key)?;
    let json = || serde_json::to_value(&row).expect("rows have string keys and no failing parts");
    let shown = Shown { version: row.version(), changed: row.position() };
    Some(Found { shown, whole: (parts == Parts::All).then(json) })
}
