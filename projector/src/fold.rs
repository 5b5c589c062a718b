//! Folds records into the state, and collects the touched entities.
//!
//! Uses the decider's `evolve`, so that reads show what was decided. Invariants: nothing is skipped; no
//! state has a part of a record; an event that cannot be folded stops the fold.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use chancery_events::event::{FoldableEvent, InvalidEvent};
use chancery_events::fact::Fact;
use chancery_events::id::{IncarnationId, OperationId, Position};
use chancery_events::level::FleetLevel;
use chancery_events::name::ReplicaName;
use chancery_events::record::{InboxWatermark, Record};
use chancery_events::subject::Subject;
use chancery_journal::{ChainCursor, ReadError};
use chancery_machine::decide::{evolve, pass};
use chancery_machine::fleet::{ChangedEntity, FleetState, StateContradiction};
use chancery_machine::meta::FactPosition;
use chancery_machine::state::{Incarnation, Operation, Replica};
use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum number of batches decoded ahead of the fold.
const AHEAD: usize = 4;
/// Bytes of records after which a batch is complete. A batch for each record would switch between the threads for each:
/// most records of single intents have half a kilobyte.
const BATCH: usize = 32 << 10;

/// Record that cannot be folded. The fold stays before it, unless it discards its state.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// Event of a newer build: use that build.
    #[error("cannot fold event at position {position}: unknown type {type_name}\nhint: use a newer build")]
    Newer {
        /// Position of the event.
        position: Position,
        /// Type of the event.
        type_name: String,
    },
    /// Raise of the fleet to a level that this build does not know: later events cannot be folded.
    #[error(
        "cannot fold event at position {position}: the fleet is raised to level {level}, and this build knows levels up to {known}\nhint: \
         use a newer build"
    )]
    Level {
        /// Position of the raise.
        position: Position,
        /// Level of the fleet from there on.
        level: FleetLevel,
        /// Highest level that this build knows.
        known: FleetLevel,
    },
    /// Event that cannot be read: a damaged journal, or a broken writer.
    #[error("cannot fold event at position {position}")]
    Event {
        /// Position of the event.
        position: Position,
        /// Problem of the event.
        source: InvalidEvent,
    },
    /// Journal that contradicts itself, or is misread by this build.
    #[error("cannot fold event at position {position}: {type_name} does not fit the state")]
    Contradiction {
        /// Position of the event.
        position: Position,
        /// Type of the event.
        type_name: &'static str,
        /// Fact that does not fit the state.
        source: StateContradiction,
    },
    /// Record that is not the next one: read from the fold's position.
    #[error("cannot fold record at position {found}: the next position is {expected}")]
    Gap {
        /// Next position of the fold.
        expected: Position,
        /// First position of the record.
        found: Position,
    },
    /// Record of another history than the folded one: start again.
    #[error("cannot fold record at position {found}: it does not continue the last folded record")]
    Fork {
        /// First position of the record.
        found: Position,
    },
}

/// Result of folding a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoldOutcome {
    /// Record folded now.
    Applied,
    /// Record that was folded before.
    AlreadyApplied,
}

/// State at a position of the journal.
#[derive(Clone, Debug)]
pub struct FoldedState {
    /// State of the fleet.
    pub fleet: FleetState,
    /// Last record that was folded.
    pub at: ChainCursor,
    /// Watermark of the inbox at that record.
    pub watermark: Option<InboxWatermark>,
}

/// Folds a journal, from its start or from a state.
#[derive(Clone, Default, Debug)]
pub struct JournalFold {
    state: Option<FoldedState>,
    /// Whether an event that cannot be folded discards the state. A fold then copies nothing that a record changes.
    discards: bool,
}

impl JournalFold {
    /// Continues from a state; `None` is the start. An error leaves the state at the last folded record.
    pub const fn from(state: Option<FoldedState>) -> JournalFold {
        JournalFold { state, discards: false }
    }

    /// Continues from a state; `None` is the start. An event that cannot be folded discards the state.
    pub fn discarding(mut state: Option<FoldedState>) -> JournalFold {
        if let Some(state) = &mut state {
            state.fleet.release_savepoint();
        }
        JournalFold { state, discards: true }
    }

    /// Returns the state and its cursor; `None` before the first record.
    pub const fn state(&self) -> Option<&FoldedState> {
        self.state.as_ref()
    }

    /// Returns the state, by value.
    pub fn into_state(self) -> Option<FoldedState> {
        self.state
    }

    /// Returns the last position folded.
    pub fn position(&self) -> Position {
        self.state.as_ref().map_or(Position::ZERO, |state| state.at.position)
    }

    /// Folds the next record. A record that was folded before changes nothing.
    pub fn take(&mut self, record: &Record) -> Result<FoldOutcome, FoldError> {
        self.next(record, || facts(record, &mut |_| ()), None)
    }

    /// Folds the next record, and adds the entities that it touched to `touched`.
    pub fn take_touching(
        &mut self,
        record: &Record,
        touched: &mut TouchedEntities,
    ) -> Result<FoldOutcome, FoldError> {
        self.next(record, || facts(record, &mut |_| ()), Some(touched))
    }

    fn next(
        &mut self,
        record: &Record,
        facts: impl FnOnce() -> Result<RecordFacts, FoldError>,
        touched: Option<&mut TouchedEntities>,
    ) -> Result<FoldOutcome, FoldError> {
        let position = self.position();
        if record.last() <= position {
            return Ok(FoldOutcome::AlreadyApplied);
        }
        let (expected, found) = (position.plus(1), record.first());
        if found != expected {
            return Err(FoldError::Gap { expected, found });
        }
        let header = record.header();
        let discards = self.discards;
        let fold = |fleet: &mut FleetState| {
            let facts = facts()?;
            let has_savepoint = !discards || touched.is_some();
            if has_savepoint {
                fleet.savepoint();
            }
            let folded = fold_facts(fleet, record, &facts);
            if folded.is_err() && has_savepoint {
                fleet.roll_back();
            }
            if let (Ok(()), Some(touched)) = (&folded, touched) {
                touched.add(fleet);
            }
            folded
        };
        let Some(state) = &mut self.state else {
            let mut fleet = FleetState::new(header.lineage);
            fold(&mut fleet)?;
            self.state = Some(FoldedState {
                fleet,
                at: ChainCursor::after(record),
                watermark: header.watermark.clone(),
            });
            return Ok(FoldOutcome::Applied);
        };
        if header.prev != state.at.hash {
            return Err(FoldError::Fork { found });
        }
        if let Err(error) = fold(&mut state.fleet) {
            if discards {
                self.state = None;
            }
            return Err(error);
        }
        state.at = ChainCursor::after(record);
        if header.watermark.is_some() {
            state.watermark.clone_from(&header.watermark);
        }
        Ok(FoldOutcome::Applied)
    }
}

/// Facts of a record, with their positions.
type RecordFacts = Vec<(Position, Fact)>;

/// Record whose events have been read, up to the first error.
pub(crate) struct DecodedRecord {
    record: Arc<Record>,
    facts: Result<RecordFacts, FoldError>,
}

impl DecodedRecord {
    pub(crate) fn new(record: Arc<Record>) -> DecodedRecord {
        DecodedRecord::visiting(record, |_| ())
    }

    /// Reads the events, and passes each to `visit`.
    pub(crate) fn visiting(record: Arc<Record>, mut visit: impl FnMut(&FoldableEvent)) -> DecodedRecord {
        DecodedRecord { facts: facts(&record, &mut visit), record }
    }
}

/// Folds records that another thread reads and decodes, in batches. `each` receives each record, and the state after it.
pub(crate) fn fold_ahead<E: From<ReadError> + From<FoldError>>(
    fold: &mut JournalFold,
    records: impl IntoIterator<Item = Result<Arc<Record>, ReadError>> + Send,
    mut decode: impl FnMut(Arc<Record>) -> DecodedRecord + Send,
    mut each: impl FnMut(&Record, &FoldedState) -> Result<(), E>,
) -> Result<(), E> {
    thread::scope(|scope| {
        let (decoded, ahead) = sync_channel(AHEAD);
        scope.spawn(move || {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            for record in records {
                bytes += record.as_ref().map_or(BATCH, |record| record.bytes().len());
                batch.push(record.map(&mut decode));
                if bytes < BATCH {
                    continue;
                }
                bytes = 0;
                if decoded.send(std::mem::take(&mut batch)).is_err() {
                    return;
                }
            }
            // The fold may have failed.
            let _ = decoded.send(batch);
        });
        ahead.into_iter().flatten().try_for_each(|decoded| {
            let DecodedRecord { record, facts } = decoded?;
            fold.next(&record, || facts, None)?;
            fold.state().map_or(Ok(()), |state| each(&record, state))
        })
    })
}

/// Returns the facts, and passes every event to `visit`. Data of intents and observations is not read, but an
/// unknown type shows a newer build.
fn facts(record: &Record, visit: &mut dyn FnMut(&FoldableEvent)) -> Result<RecordFacts, FoldError> {
    let mut facts = RecordFacts::with_capacity(record.header().count as usize);
    for (position, line) in record.events() {
        match FoldableEvent::read(line).inspect(&mut *visit) {
            Ok(FoldableEvent::Fact(Fact::FleetLevelRaised(raised))) if raised.to > FleetLevel::HIGHEST => {
                return Err(FoldError::Level { position, level: raised.to, known: FleetLevel::HIGHEST });
            }
            Ok(FoldableEvent::Fact(fact)) => facts.push((position, fact)),
            Ok(FoldableEvent::NoChange(_)) => {}
            Err(InvalidEvent::UnknownType { type_name }) => {
                return Err(FoldError::Newer { position, type_name });
            }
            Err(source) => return Err(FoldError::Event { position, source }),
        }
    }
    Ok(facts)
}

/// Folds the facts of a record. An error leaves a part of them folded.
fn fold_facts(fleet: &mut FleetState, record: &Record, facts: &RecordFacts) -> Result<(), FoldError> {
    let header = record.header();
    for (position, fact) in facts {
        let at = FactPosition {
            position: *position,
            time: header.time,
            term: header.term,
            lineage: header.lineage,
        };
        evolve(fleet, fact, at).map_err(|source| FoldError::Contradiction {
            position: *position,
            type_name: fact.type_name(),
            source,
        })?;
    }
    fleet.settle();
    pass(fleet, record.last());
    Ok(())
}

/// Entities that were touched, each once; of numerous kinds, with their value before.
#[derive(Clone, Default, Debug)]
pub struct TouchedEntities {
    pub(crate) replicas: FxHashMap<ReplicaName, Option<Arc<Replica>>>,
    pub(crate) incarnations: FxHashMap<IncarnationId, Option<Arc<Incarnation>>>,
    pub(crate) operations: FxHashMap<OperationId, Option<Arc<Operation>>>,
    pub(crate) others: FxHashSet<Subject>,
}

impl TouchedEntities {
    /// Returns the number of entities.
    pub fn len(&self) -> usize {
        self.replicas.len() + self.incarnations.len() + self.operations.len() + self.others.len()
    }

    /// Whether no entity was touched.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the entities that the last fold changed. The value before the first of all changes stays.
    fn add(&mut self, fleet: &FleetState) {
        for was in fleet.changed() {
            match was {
                ChangedEntity::Replica(name, was) => {
                    self.replicas.entry(name.clone()).or_insert_with(|| was.cloned());
                }
                ChangedEntity::Incarnation(id, was) => {
                    self.incarnations.entry(id).or_insert_with(|| was.cloned());
                }
                ChangedEntity::Operation(id, was) => {
                    self.operations.entry(id).or_insert_with(|| was.cloned());
                }
                ChangedEntity::Other(subject) => {
                    self.others.insert(subject);
                }
            }
        }
    }
}

/// Entities of numerous kinds in a state.
pub trait StateView {
    /// Returns a replica.
    fn replica(&self, name: &ReplicaName) -> Option<&Replica>;
    /// Returns an incarnation.
    fn incarnation(&self, id: IncarnationId) -> Option<&Incarnation>;
    /// Returns an operation.
    fn operation(&self, id: OperationId) -> Option<&Operation>;
}

impl StateView for FleetState {
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

/// State before the touched entities changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastState<'a> {
    pub(crate) fleet: &'a FleetState,
    pub(crate) touched: &'a TouchedEntities,
}

impl StateView for PastState<'_> {
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
