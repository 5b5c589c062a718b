//! Folds records into the state, and tells what they touched.
//!
//! The same `evolve` as the decider's, so that what is read is what was decided. What must stay true: nothing is
//! skipped; a record is folded whole or not at all; what cannot be folded stops the fold where it stands.

use std::sync::Arc;

use chancery_events::event::{BadEvent, Told};
use chancery_events::fact::Fact;
use chancery_events::id::{IncarnationId, OperationId, Position};
use chancery_events::name::ReplicaName;
use chancery_events::record::{Record, Watermark};
use chancery_events::subject::Subject;
use chancery_journal::Cursor;
use chancery_machine::decide::{evolve, pass};
use chancery_machine::fleet::{Contradiction, Fleet, Was};
use chancery_machine::meta::At;
use chancery_machine::state::{Incarnation, Operation, Replica};
use rustc_hash::{FxHashMap, FxHashSet};

/// A record cannot be folded. The fold stands before it.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// A newer build wrote it: put that one in place.
    #[error(
        "fold the event at position {position}: its type {type_name} is unknown here, and needs a newer build"
    )]
    Newer {
        /// The position.
        position: Position,
        /// The type.
        type_name: String,
    },
    /// The event cannot be read: a damaged journal, or a broken writer.
    #[error("fold the event at position {position}")]
    Event {
        /// The position.
        position: Position,
        /// What is wrong with it.
        source: BadEvent,
    },
    /// The journal contradicts itself, or this build misreads it.
    #[error("fold the event at position {position}")]
    Contradiction {
        /// The position.
        position: Position,
        /// What does not fit.
        source: Contradiction,
    },
    /// The record is not the next one: read from where the fold stands.
    #[error("fold the record at position {found}: the next one begins at {expected}")]
    Gap {
        /// The next position.
        expected: Position,
        /// The record's first position.
        found: Position,
    },
    /// The record continues another history than the one folded: start over.
    #[error("fold the record at position {found}: it continues another record than the one folded before it")]
    Fork {
        /// The record's first position.
        found: Position,
    },
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Folded {
    /// It is in the state now.
    Now,
    /// It was already.
    Before,
}

/// A state at a place in the journal.
#[derive(Clone, Debug)]
pub struct Folding {
    /// The state.
    pub fleet: Fleet,
    /// Where it stands: behind this record.
    pub at: Cursor,
    /// Up to where the inbox is answered there.
    pub watermark: Option<Watermark>,
}

/// Folds a journal, from its beginning or from a state.
#[derive(Clone, Default, Debug)]
pub struct Fold(Option<Folding>);

impl Fold {
    /// Goes on from a state; `None` is the beginning.
    pub const fn from(state: Option<Folding>) -> Fold {
        Fold(state)
    }

    /// The state, and where it stands; `None` before the first record.
    pub const fn state(&self) -> Option<&Folding> {
        self.0.as_ref()
    }

    /// The same, for whoever goes on with it.
    pub fn into_state(self) -> Option<Folding> {
        self.0
    }

    /// The last position folded.
    pub fn position(&self) -> Position {
        self.0.as_ref().map_or(Position::ZERO, |state| state.at.position)
    }

    /// Folds the next record. One that was folded before changes nothing.
    pub fn take(&mut self, record: &Record) -> Result<Folded, FoldError> {
        self.next(record, || facts(record), None)
    }

    /// The same, and adds what it touched.
    pub fn take_touching(&mut self, record: &Record, touched: &mut Touched) -> Result<Folded, FoldError> {
        self.next(record, || facts(record), Some(touched))
    }

    /// Folds what a thread of its own has decoded.
    pub(crate) fn take_decoded(&mut self, decoded: Decoded) -> Result<Folded, FoldError> {
        self.next(&decoded.record, || decoded.facts, None)
    }

    fn next(
        &mut self,
        record: &Record,
        facts: impl FnOnce() -> Result<Facts, FoldError>,
        touched: Option<&mut Touched>,
    ) -> Result<Folded, FoldError> {
        let position = self.position();
        if record.last() <= position {
            return Ok(Folded::Before);
        }
        let (expected, found) = (position.plus(1), record.first());
        if found != expected {
            return Err(FoldError::Gap { expected, found });
        }
        let header = record.header();
        let Some(state) = &mut self.0 else {
            let mut fleet = Fleet::new(header.lineage);
            fold(&mut fleet, record, &facts()?, touched)?;
            self.0 = Some(Folding { fleet, at: Cursor::after(record), watermark: header.watermark.clone() });
            return Ok(Folded::Now);
        };
        if header.prev != state.at.hash {
            return Err(FoldError::Fork { found });
        }
        fold(&mut state.fleet, record, &facts()?, touched)?;
        state.at = Cursor::after(record);
        if header.watermark.is_some() {
            state.watermark.clone_from(&header.watermark);
        }
        Ok(Folded::Now)
    }
}

/// The facts of a record, with their positions.
type Facts = Vec<(Position, Fact)>;

/// A record whose events have been read, as far as they could be.
pub(crate) struct Decoded {
    record: Arc<Record>,
    facts: Result<Facts, FoldError>,
}

impl Decoded {
    pub(crate) fn new(record: Arc<Record>) -> Decoded {
        Decoded { facts: facts(&record), record }
    }
}

/// Of intents and observations the data is not read; but one that is unknown shows a newer build.
fn facts(record: &Record) -> Result<Facts, FoldError> {
    let mut facts = Facts::with_capacity(record.header().count as usize);
    for (position, line) in record.events() {
        match Told::read(line) {
            Ok(Told::Fact(fact)) => facts.push((position, fact)),
            Ok(Told::Nothing) => {}
            Err(BadEvent::UnknownType { type_name }) => return Err(FoldError::Newer { position, type_name }),
            Err(source) => return Err(FoldError::Event { position, source }),
        }
    }
    Ok(facts)
}

fn fold(
    fleet: &mut Fleet,
    record: &Record,
    facts: &Facts,
    touched: Option<&mut Touched>,
) -> Result<(), FoldError> {
    let header = record.header();
    fleet.note();
    let folded = facts.iter().try_for_each(|(position, fact)| {
        let at = At { position: *position, time: header.time, term: header.term, lineage: header.lineage };
        evolve(fleet, fact, at).map_err(|source| FoldError::Contradiction { position: *position, source })
    });
    if folded.is_err() {
        fleet.roll_back();
        return folded;
    }
    pass(fleet, record.last());
    if let Some(touched) = touched {
        touched.add(fleet);
    }
    Ok(())
}

/// Entities that were touched, each once; of those of which there are many, as they were before.
#[derive(Clone, Default, Debug)]
pub struct Touched {
    pub(crate) replicas: FxHashMap<ReplicaName, Option<Arc<Replica>>>,
    pub(crate) incarnations: FxHashMap<IncarnationId, Option<Arc<Incarnation>>>,
    pub(crate) operations: FxHashMap<OperationId, Option<Arc<Operation>>>,
    pub(crate) others: FxHashSet<Subject>,
}

impl Touched {
    /// How many.
    pub fn len(&self) -> usize {
        self.replicas.len() + self.incarnations.len() + self.operations.len() + self.others.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the last fold has changed. As it was before the first change of all: so an earlier one stays.
    fn add(&mut self, fleet: &Fleet) {
        for was in fleet.changed() {
            match was {
                Was::Replica(name, was) => {
                    self.replicas.entry(name.clone()).or_insert_with(|| was.cloned());
                }
                Was::Incarnation(id, was) => {
                    self.incarnations.entry(id).or_insert_with(|| was.cloned());
                }
                Was::Operation(id, was) => {
                    self.operations.entry(id).or_insert_with(|| was.cloned());
                }
                Was::Other(subject) => {
                    self.others.insert(subject);
                }
            }
        }
    }
}

/// A state's entities of which there are many.
pub trait View {
    /// A replica.
    fn replica(&self, name: &ReplicaName) -> Option<&Replica>;
    /// An incarnation.
    fn incarnation(&self, id: IncarnationId) -> Option<&Incarnation>;
    /// An operation.
    fn operation(&self, id: OperationId) -> Option<&Operation>;
}

impl View for Fleet {
    fn replica(&self, name: &ReplicaName) -> Option<&Replica> {
        self.replicas().get(name)
    }

    fn incarnation(&self, id: IncarnationId) -> Option<&Incarnation> {
        self.incarnations().get(&id)
    }

    fn operation(&self, id: OperationId) -> Option<&Operation> {
        self.operations().get(&id)
    }
}

/// A state as it was before what was touched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) touched: &'a Touched,
}

impl View for Past<'_> {
    fn replica(&self, name: &ReplicaName) -> Option<&Replica> {
        self.touched.replicas.get(name).map_or_else(|| self.fleet.replica(name), Option::as_deref)
    }

    fn incarnation(&self, id: IncarnationId) -> Option<&Incarnation> {
        self.touched.incarnations.get(&id).map_or_else(|| self.fleet.incarnation(id), Option::as_deref)
    }

    fn operation(&self, id: OperationId) -> Option<&Operation> {
        self.touched.operations.get(&id).map_or_else(|| self.fleet.operation(id), Option::as_deref)
    }
}
