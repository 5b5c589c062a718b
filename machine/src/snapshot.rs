//! Snapshot of a fleet: its state without derived data. Tables and indexes are built again when it is read.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use chancery_events::each_kind;
use chancery_events::id::{Position, Term};
use chancery_events::lineage::LineageHistory;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fleet::{FleetEntity, FleetState, index_all};
use crate::index::FleetIndex;
use crate::keys::IdempotencyKeys;
use crate::level::LevelState;
use crate::state;
use crate::table::EntityTable;

/// Maximum number of kinds that are read before their indexes are built.
const AHEAD: usize = 2;

/// Reader of the parts of a snapshot.
pub trait SnapshotReader {
    /// Problem of the snapshot.
    type Error;

    /// Reads the next part.
    fn part<T: DeserializeOwned>(&mut self) -> Result<T, Self::Error>;
}

/// Meter of the parts of a snapshot.
pub trait SnapshotMeter {
    /// Problem of a part.
    type Error;

    /// Adds a part.
    fn part<T: Serialize>(&mut self, part: &T) -> Result<(), Self::Error>;

    /// Adds the entries of a map or list, in no order.
    fn entries<T: Serialize>(&mut self, entries: impl ExactSizeIterator<Item = T>)
    -> Result<(), Self::Error>;
}

/// Fields of a snapshot that belong to no entity.
#[derive(Serialize, Deserialize)]
struct SnapshotFields {
    head: Position,
    term: Term,
    lineages: LineageHistory,
    decider: Option<Arc<str>>,
    levels: Arc<LevelState>,
    keys: IdempotencyKeys,
}

impl SnapshotFields {
    fn of(fleet: &FleetState) -> SnapshotFields {
        SnapshotFields {
            head: fleet.head,
            term: fleet.term,
            lineages: fleet.lineages.clone(),
            decider: fleet.decider.clone(),
            levels: Arc::clone(&fleet.levels),
            keys: fleet.keys.clone(),
        }
    }

    /// Creates a fleet without entities.
    fn fleet(self) -> FleetState {
        let mut fleet = FleetState::new(self.lineages.current);
        fleet.head = self.head;
        fleet.term = self.term;
        fleet.lineages = self.lineages;
        fleet.decider = self.decider;
        fleet.levels = self.levels;
        fleet.keys = self.keys;
        fleet
    }
}

macro_rules! snapshots {
    ($($kind:ident $word:literal $plural:literal $aliases:tt $place:literal $about:literal {
        key $key:tt $(owner $owner:tt)? $(entity($table:ident: $entity:ident))? $(row $row:tt)?
        $(ends $ends:tt)? $(manifest $manifest:tt)?
    })*) => {
        snapshots! { @entities $($($table $entity)?)* }
    };
    (@entities $($table:ident $entity:ident)*) => {
        /// Fleet without derived data, as stored in a snapshot.
        #[derive(Serialize, Deserialize)]
        pub struct FleetSnapshot {
            fields: SnapshotFields,
            $($table: Vec<Arc<state::$entity>>,)*
        }

        impl FleetSnapshot {
            /// Creates the image, in the order of keys: equal fleets have equal images.
            pub fn of(fleet: &FleetState) -> FleetSnapshot {
                FleetSnapshot {
                    fields: SnapshotFields::of(fleet),
                    $($table: fleet.$table.in_order().into_iter().cloned().collect(),)*
                }
            }

            /// Creates the fleet, with its indexes.
            pub fn fleet(self) -> FleetState {
                let mut fleet = self.fields.fleet();
                // In the register's order: nodes need capabilities and clusters, incarnations their nodes,
                // plan indexes everything.
                $(
                    fleet.$table = EntityTable::of(&self.$table, FleetEntity::key);
                    index_all(&mut fleet.index, self.$table.iter().map(AsRef::as_ref), fleet.head);
                )*
                fleet.settle();
                fleet
            }
        }

        /// Entities of a kind, as stored in a snapshot.
        enum StoredEntities {
            $($entity(Vec<Arc<state::$entity>>),)*
        }

        impl FleetState {
            /// Reads a [`FleetSnapshot`], and creates the fleet. Another thread builds the indexes while further kinds are
            /// read.
            pub fn read<R: SnapshotReader>(from: &mut R) -> Result<FleetState, R::Error> {
                let mut fleet = from.part::<SnapshotFields>()?.fleet();
                let head = fleet.head;
                fleet.index = thread::scope(|scope| {
                    let (read, entities) = sync_channel(AHEAD);
                    let built = scope.spawn(move || {
                        let mut index = FleetIndex::default();
                        for stored in entities {
                            match stored {
                                $(StoredEntities::$entity(entities) => {
                                    index_all(&mut index, entities.iter().map(AsRef::as_ref), head);
                                })*
                            }
                        }
                        index
                    });
                    $(
                        let entities = from.part::<Vec<_>>()?;
                        fleet.$table = EntityTable::of(&entities, FleetEntity::key);
                        // A receiver that is gone has panicked, which is resumed below.
                        let _ = read.send(StoredEntities::$entity(entities));
                    )*
                    drop(read);
                    Ok(built.join().unwrap_or_else(|panic| resume_unwind(panic)))
                })?;
                fleet.settle();
                Ok(fleet)
            }

            /// Adds every part of the fleet's [`FleetSnapshot`] to a meter.
            pub fn measure<M: SnapshotMeter>(&self, by: &mut M) -> Result<(), M::Error> {
                by.part(&(self.head, self.term, &self.lineages, &self.decider, &self.levels))?;
                self.keys.measure(by)?;
                $(
                    by.entries(self.$table.unordered())?;
                )*
                Ok(())
            }
        }
    };
}

each_kind!(snapshots);
