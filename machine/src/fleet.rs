//! State of a fleet: a table for each kind of entity, idempotency keys, and indexes that make steps cheap.
//!
//! All changes go through [`FleetState::put`], [`FleetState::change`] or [`FleetState::remove`], which update
//! the indexes and record the previous state. A failed commit is thus rolled back as a whole, and a projector
//! learns what changed.
#![allow(unused_parens, reason = "the keys of most kinds have one part, and are no tuples")]

use std::hash::Hash;
use std::sync::Arc;

use chancery_events::each_kind;
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position, Term};
use chancery_events::kind::keys;
use chancery_events::level::FleetLevel;
pub use chancery_events::lineage::LineageHistory;
use chancery_events::name::{ClusterName, DeploymentName, DomainName, NodeName, PlanName, ReplicaName};
use chancery_events::refusal::Refusal;
use chancery_events::subject::Subject;
use chancery_events::time::Time;

use crate::index::FleetIndex;
use crate::index_keys::IndexChange;
use crate::keys::IdempotencyKeys;
use crate::level::LevelState;
use crate::meta::{EntityMeta, FactPosition};
use crate::refuse::not_found;
pub use crate::state::IMAGE_FINGERPRINT;
use crate::state::{self, Deployment, Incarnation, Operation, Replica};
use crate::table::{EntityTable, SavepointId, TableSlot};

/// Fact that does not fit the state: the journal contradicts itself, or this build misreads it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot fold fact of {subject}: {problem}")]
pub struct StateContradiction {
    /// Affected entity.
    pub subject: Subject,
    /// Description of the contradiction.
    pub problem: String,
}

/// Result of a change of the state by a fact.
pub type FoldResult = Result<(), StateContradiction>;

/// Key of a deployment.
pub type DeploymentKey = (PlanName, DeploymentName);

/// Previous values of fields that belong to no entity.
#[derive(Clone, Debug)]
pub(crate) struct FleetGlobals {
    head: Position,
    term: Term,
    lineages: LineageHistory,
    decider: Option<Arc<str>>,
    levels: Arc<LevelState>,
    keys_floor: Time,
    /// Field of the index, the only one that does not follow from the tables. A value that stayed ahead of
    /// the head would hide capacity that grows up to there.
    capacity_grew_at: Position,
}

/// Changed entity in its previous state: `None` if it did not exist. Rare kinds have only the subject.
#[derive(Clone, Debug)]
pub enum ChangedEntity<'a> {
    /// A replica.
    Replica(&'a ReplicaName, Option<&'a Arc<Replica>>),
    /// An incarnation.
    Incarnation(IncarnationId, Option<&'a Arc<Incarnation>>),
    /// An operation.
    Operation(OperationId, Option<&'a Arc<Operation>>),
    /// Another entity.
    Other(Subject),
}

/// Fields of an entity that the indexes depend on; by default, no index does.
pub(crate) trait IndexedEntity: Clone + Sized {
    /// Indexed fields: no other field of the entity affects the indexes.
    type Marks: PartialEq + for<'a> From<&'a Self>;
    /// Updates the indexes after a change at `at`. `this` is the entity after the change, or before removal.
    fn index(_index: &mut FleetIndex, _this: &Self, _both: IndexChange<'_, Self::Marks>, _at: Position) {}
}

/// Entity with a table in the fleet.
pub(crate) trait FleetEntity: IndexedEntity {
    type Key: Clone + Eq + Hash + Ord;
    fn key(&self) -> Self::Key;
    fn subject(key: &Self::Key) -> Subject;
    fn table(fleet: &FleetState) -> &EntityTable<Self::Key, Self>;
    /// Returns the table, with the undo log and the index, which must follow each change of the table.
    fn parts(
        fleet: &mut FleetState,
    ) -> (&mut EntityTable<Self::Key, Self>, &mut Option<Vec<UndoEntry>>, &mut FleetIndex);
    fn before(key: Self::Key, entity: Option<Arc<Self>>) -> UndoEntry;
    fn meta_mut(&mut self) -> &mut EntityMeta;
    fn index_key(&self) -> Self::Marks {
        self.into()
    }
}

macro_rules! tables {
    ($($kind:ident $word:literal $plural:literal $aliases:tt $place:literal $about:literal {
        key $key:tt $(owner $owner:tt)? $(entity($table:ident: $entity:ident))? $(row $row:tt)?
        $(ends $ends:tt)? $(manifest $manifest:tt)?
    })*) => {
        tables! { @entities $($($kind $table $entity $key)?)* }
    };
    (@entities $($kind:ident $table:ident $entity:ident ($($field:ident: $type:ident),+))*) => {
        /// State of a fleet, folded from all facts so far.
        #[derive(Clone, Debug)]
        pub struct FleetState {
            pub(crate) head: Position,
            pub(crate) term: Term,
            pub(crate) lineages: LineageHistory,
            /// Address of the decider of the term, if reported.
            pub(crate) decider: Option<Arc<str>>,
            pub(crate) levels: Arc<LevelState>,
            pub(crate) keys: IdempotencyKeys,
            $(pub(crate) $table: EntityTable<($(keys::$type),+), state::$entity>,)*
            pub(crate) index: FleetIndex,
            notes: Option<Vec<UndoEntry>>,
            /// Current savepoint of the notes.
            scope: SavepointId,
        }

        /// Entity in its state before a change.
        #[derive(Clone, Debug)]
        pub(crate) enum UndoEntry {
            $($entity(($(keys::$type),+), Option<Arc<state::$entity>>),)*
            Globals(Box<FleetGlobals>),
        }

        impl UndoEntry {
            /// Subject of the entity; `None` for fields of no entity.
            fn subject(&self) -> Option<Subject> {
                match self {
                    $(UndoEntry::$entity(key, _) => Some(state::$entity::subject(key)),)*
                    UndoEntry::Globals(_) => None,
                }
            }
        }

        $(impl FleetEntity for state::$entity {
            type Key = ($(keys::$type),+);
            fn key(&self) -> Self::Key {
                ($(self.$field.clone()),+)
            }
            fn subject(key: &Self::Key) -> Subject {
                let ($($field),+) = key;
                Subject::$kind($($field.clone()),+)
            }
            fn table(fleet: &FleetState) -> &EntityTable<Self::Key, state::$entity> {
                &fleet.$table
            }
            fn parts(
                fleet: &mut FleetState,
            ) -> (&mut EntityTable<Self::Key, state::$entity>, &mut Option<Vec<UndoEntry>>, &mut FleetIndex) {
                (&mut fleet.$table, &mut fleet.notes, &mut fleet.index)
            }
            fn before(key: Self::Key, entity: Option<Arc<state::$entity>>) -> UndoEntry {
                UndoEntry::$entity(key, entity)
            }
            fn meta_mut(&mut self) -> &mut EntityMeta {
                &mut self.meta
            }
        })*

        impl FleetState {
            /// Creates the state of an empty journal.
            pub fn new(lineage: Lineage) -> FleetState {
                FleetState {
                    head: Position::ZERO,
                    term: Term::default(),
                    lineages: LineageHistory::new(lineage),
                    decider: None,
                    levels: Arc::default(),
                    keys: IdempotencyKeys::default(),
                    $($table: EntityTable::default(),)*
                    index: FleetIndex::default(),
                    notes: None,
                    scope: 0,
                }
            }

            $(
                /// All entities of the kind, by key.
                pub fn $table(&self) -> &EntityTable<($(keys::$type),+), state::$entity> {
                    &self.$table
                }
            )*

            /// Metadata of an entity, if it exists.
            pub(crate) fn meta(&self, subject: &Subject) -> Option<&EntityMeta> {
                match subject {
                    Subject::Fleet => None,
                    $(Subject::$kind($($field),+) => {
                        self.$table.get(&($($field.clone()),+)).map(|entity| &entity.meta)
                    })*
                }
            }

            /// Rebuilds the indexes.
            fn index_everything(&mut self) {
                self.index = FleetIndex::default();
                $(index_all(&mut self.index, self.$table.sorted(), self.head);)*
            }

            /// Restores an entity; returns the fields that belong to no entity.
            fn undo_entity(&mut self, before: UndoEntry, indexes: IndexMode) -> Option<Box<FleetGlobals>> {
                match before {
                    $(UndoEntry::$entity(key, entity) => self.restore::<state::$entity>(key, entity.as_ref(), indexes),)*
                    UndoEntry::Globals(globals) => return Some(globals),
                }
                None
            }
        }
    };
}

each_kind!(tables);

impl FleetState {
    /// Last folded position.
    pub fn head(&self) -> Position {
        self.head
    }

    /// Term of the last folded commit.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Lineages of the journal.
    pub fn lineages(&self) -> &LineageHistory {
        &self.lineages
    }

    /// Address of the decider of the term, if reported.
    pub fn decider(&self) -> Option<&Arc<str>> {
        self.decider.as_ref()
    }

    /// Level of the fleet.
    pub fn level(&self) -> FleetLevel {
        self.levels.level
    }

    /// Level of the fleet, and levels that servers know.
    pub fn levels(&self) -> &LevelState {
        &self.levels
    }

    /// Approximate number of entities, counting only the most numerous kinds.
    pub fn size(&self) -> usize {
        self.nodes.len() + self.replicas.len() + self.incarnations.len() + self.operations.len()
    }

    /// Stored idempotency keys.
    pub fn keys(&self) -> &IdempotencyKeys {
        &self.keys
    }

    /// Indexes derived from the tables.
    pub fn index(&self) -> &FleetIndex {
        &self.index
    }

    /// Cluster, if any, and update domain of an existing node.
    pub(crate) fn whereabouts(&self, node: &NodeName) -> Option<(Option<&ClusterName>, &DomainName)> {
        // A placement reads the index entry of the node anyway, but mostly not the node.
        let indexed = self.index.places.whereabouts(node).map(|(cluster, domain)| (Some(cluster), domain));
        indexed.or_else(|| self.nodes.get(node).map(|node| (node.cluster.as_ref(), &node.spec.domain)))
    }

    /// Starts to record changes, for [`FleetState::roll_back`] or [`FleetState::changed`]. Discards earlier
    /// records.
    pub fn savepoint(&mut self) {
        let globals = FleetGlobals {
            head: self.head,
            term: self.term,
            lineages: self.lineages.clone(),
            decider: self.decider.clone(),
            levels: Arc::clone(&self.levels),
            keys_floor: self.keys.begin(),
            capacity_grew_at: self.index.capacity_grew_at,
        };
        let notes = self.notes.get_or_insert_default();
        notes.clear();
        notes.push(UndoEntry::Globals(Box::new(globals)));
        self.scope += 1;
    }

    /// Stops recording changes, until the next call of [`FleetState::savepoint`].
    pub fn release_savepoint(&mut self) {
        self.notes = None;
        self.keys.release();
    }

    /// Restores the state at the last call of [`FleetState::savepoint`].
    pub fn roll_back(&mut self) {
        self.undo(IndexMode::Follow);
        self.settle();
    }

    /// Rolls back after a panic, which may leave an entity or index half changed: rebuilds the indexes.
    pub fn roll_back_broken(&mut self) {
        self.undo(IndexMode::Broken);
        let grown = self.index.capacity_grew_at;
        self.index_everything();
        self.index.capacity_grew_at = grown;
        self.settle();
    }

    fn undo(&mut self, indexes: IndexMode) {
        let Some(notes) = self.notes.take() else { return };
        for before in notes.into_iter().rev() {
            let Some(globals) = self.undo_entity(before, indexes) else { continue };
            // The first of the notes: after it, nothing is restored that could change these fields.
            let FleetGlobals { head, term, lineages, decider, levels, keys_floor, capacity_grew_at: grown } =
                *globals;
            self.head = head;
            self.term = term;
            self.lineages = lineages;
            self.decider = decider;
            self.levels = levels;
            self.keys.roll_back(keys_floor);
            self.index.capacity_grew_at = grown;
        }
    }

    /// Completes the indexes after facts were folded. Decisions need complete indexes.
    pub fn settle(&mut self) {
        self.index.settle();
    }

    fn restore<E: FleetEntity>(&mut self, key: E::Key, entity: Option<&Arc<E>>, indexes: IndexMode) {
        let now = self.place(key, entity).map(|slot| slot.entity);
        if indexes == IndexMode::Follow {
            self.follow(now.as_deref(), entity.map(AsRef::as_ref));
        }
    }

    /// Changes the table only; returns the previous slot.
    fn place<E: FleetEntity>(&mut self, key: E::Key, entity: Option<&Arc<E>>) -> Option<TableSlot<E>> {
        let slot = entity.map(|entity| TableSlot { entity: Arc::clone(entity), noted: self.scope });
        E::parts(self).0.set(key, slot)
    }

    /// Returns every entity changed since the last [`FleetState::savepoint`], in its state then, in order. Of an
    /// entity that was removed and set again, the first entry counts.
    pub fn changed(&self) -> impl Iterator<Item = ChangedEntity<'_>> {
        self.notes.iter().flatten().filter_map(|before| match before {
            UndoEntry::Replica(key, entity) => Some(ChangedEntity::Replica(key, entity.as_ref())),
            UndoEntry::Incarnation(key, entity) => Some(ChangedEntity::Incarnation(*key, entity.as_ref())),
            UndoEntry::Operation(key, entity) => Some(ChangedEntity::Operation(*key, entity.as_ref())),
            other => other.subject().map(ChangedEntity::Other),
        })
    }

    /// Returns the entity, or the refusal for an intent that names it.
    pub(crate) fn find<E: FleetEntity>(&self, key: &E::Key) -> Result<&E, Refusal> {
        E::table(self).get(key).ok_or_else(|| not_found(&E::subject(key)))
    }

    /// Deployment of a plan.
    pub fn deployment(&self, plan: &PlanName, name: &DeploymentName) -> Option<&Deployment> {
        self.deployments().get(&(plan.clone(), name.clone()))
    }

    /// Replicas of the plan with a reservation on the node. A replica with two reservations is visited twice.
    pub(crate) fn replicas_on(&self, node: &NodeName, plan: &PlanName) -> impl Iterator<Item = &Replica> {
        let runs = self.index.places.held(node).of_plan(plan, None);
        runs.filter_map(|id| self.incarnations.get(&id)).filter_map(|run| self.replicas.get(&run.replica))
    }

    /// Returns the entity, or the contradiction that it does not exist.
    pub(crate) fn require<E: FleetEntity>(&self, key: &E::Key) -> Result<&E, StateContradiction> {
        E::table(self).get(key).ok_or_else(|| absent::<E>(key))
    }

    /// Inserts or replaces an entity.
    pub(crate) fn put<E: FleetEntity>(&mut self, entity: E) {
        self.set(&entity.key(), Some(&Arc::new(entity)));
    }

    /// Changes an existing entity in place; clones it only for the notes or if it is shared.
    pub(crate) fn change<E: FleetEntity>(&mut self, key: &E::Key, how: impl FnOnce(&mut E)) -> FoldResult {
        self.change_and(key, how)
    }

    /// Changes an existing entity in place, and returns the result of `how`.
    pub(crate) fn change_and<E: FleetEntity, T>(
        &mut self,
        key: &E::Key,
        how: impl FnOnce(&mut E) -> T,
    ) -> Result<T, StateContradiction> {
        let (scope, head) = (self.scope, self.head);
        let (table, notes, index) = E::parts(self);
        let slot = table.slot(key).ok_or_else(|| absent::<E>(key))?;
        let before = slot.entity.index_key();
        if let Some(notes) = notes.as_mut().filter(|_| slot.noted != scope) {
            slot.noted = scope;
            notes.push(E::before(key.clone(), Some(Arc::clone(&slot.entity))));
        }
        let result = how(Arc::make_mut(&mut slot.entity));
        let after = slot.entity.index_key();
        if before != after {
            E::index(index, &slot.entity, [Some(&before), Some(&after)], head);
        }
        Ok(result)
    }

    /// Changes an entity by a fact about it.
    pub(crate) fn bump<E: FleetEntity>(
        &mut self,
        key: &E::Key,
        at: FactPosition,
        how: impl FnOnce(&mut E),
    ) -> FoldResult {
        self.change_and(key, |entity| {
            how(entity);
            entity.meta_mut().bump(at);
        })
    }

    /// Changes an entity by a fact about something else.
    pub(crate) fn touch<E: FleetEntity>(
        &mut self,
        key: &E::Key,
        at: FactPosition,
        how: impl FnOnce(&mut E),
    ) -> FoldResult {
        self.change_and(key, |entity| {
            how(entity);
            entity.meta_mut().touch(at);
        })
    }

    /// Removes an existing entity.
    pub(crate) fn remove<E: FleetEntity>(&mut self, key: &E::Key) -> FoldResult {
        self.require::<E>(key)?;
        self.set::<E>(key, None);
        Ok(())
    }

    fn set<E: FleetEntity>(&mut self, key: &E::Key, entity: Option<&Arc<E>>) {
        let old = self.place(key.clone(), entity);
        let is_noted = old.as_ref().is_some_and(|old| old.noted == self.scope);
        let old = old.map(|old| old.entity);
        // The earlier note of an entity restores it, and covers this change.
        if let Some(notes) = self.notes.as_mut().filter(|_| !is_noted) {
            notes.push(E::before(key.clone(), old.clone()));
        }
        self.follow(old.as_deref(), entity.map(AsRef::as_ref));
    }

    /// Updates the indexes after an entity was inserted, replaced or removed.
    fn follow<E: FleetEntity>(&mut self, old: Option<&E>, new: Option<&E>) {
        let Some(this) = new.or(old) else { return };
        let (old, new) = (old.map(E::index_key), new.map(E::index_key));
        E::index(&mut self.index, this, [old.as_ref(), new.as_ref()], self.head);
    }
}

/// Adds entities to the indexes.
pub(crate) fn index_all<'a, E: FleetEntity + 'a>(
    index: &mut FleetIndex,
    entities: impl IntoIterator<Item = &'a E>,
    at: Position,
) {
    for entity in entities {
        E::index(index, entity, [None, Some(&entity.index_key())], at);
    }
}

/// Whether indexes are updated while entities are restored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IndexMode {
    Follow,
    Broken,
}

pub(crate) fn absent<E: FleetEntity>(key: &E::Key) -> StateContradiction {
    StateContradiction { subject: E::subject(key), problem: "the entity does not exist".into() }
}
