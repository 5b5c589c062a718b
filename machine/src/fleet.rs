//! State of a fleet: a table for each kind of entity, idempotency keys, and indexes that make steps cheap.
//!
//! All changes go through [`Fleet::put`], [`Fleet::change`] or [`Fleet::remove`], which update the indexes
//! and record the previous state. A failed commit is thus rolled back as a whole, and a projector learns what
//! changed.
#![allow(unused_parens, reason = "the keys of most kinds have one part, and are no tuples")]

use std::hash::Hash;
use std::sync::Arc;

use chancery_events::each_kind;
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position, Term};
use chancery_events::kind::keys;
pub use chancery_events::lineage::Lineages;
use chancery_events::name::{ClusterName, DeploymentName, DomainName, NodeName, PlanName, ReplicaName};
use chancery_events::refusal::Refusal;
use chancery_events::subject::Subject;
use serde::{Deserialize, Serialize};

use crate::index::Index;
use crate::keys::{Keys, KeysBefore};
use crate::marks::Both;
use crate::meta::{At, Meta};
use crate::refuse::not_found;
pub use crate::state::IMAGE_FINGERPRINT;
use crate::state::{self, Deployment, Incarnation, Operation, Replica};
use crate::table::{Scope, Slot, Table};

/// Fact that does not fit the state: the journal contradicts itself, or this build misreads it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {problem}")]
pub struct Contradiction {
    /// Affected entity.
    pub subject: Subject,
    /// Description of the contradiction.
    pub problem: String,
}

/// Key of a deployment.
pub type DeploymentKey = (PlanName, DeploymentName);

/// Previous values of fields that belong to no entity.
#[derive(Clone, Debug)]
pub(crate) struct Globals {
    head: Position,
    term: Term,
    lineages: Lineages,
    decider: Option<Arc<str>>,
    keys: KeysBefore,
    /// Field of the index, the only one that does not follow from the tables. A value that stayed ahead of
    /// the head would hide capacity that grows up to there.
    grown: Position,
}

/// Changed entity in its previous state: `None` if it did not exist. Rare kinds have only the subject.
#[derive(Clone, Debug)]
pub enum Was<'a> {
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
pub(crate) trait Indexed: Clone + Sized {
    /// Indexed fields: no other field of the entity affects the indexes.
    type Marks: PartialEq + for<'a> From<&'a Self>;
    /// Updates the indexes after a change at `at`. `this` is the entity after the change, or before removal.
    fn index(_index: &mut Index, _this: &Self, _both: Both<'_, Self::Marks>, _at: Position) {}
}

/// Entity with a table in the fleet.
pub(crate) trait Entity: Indexed {
    type Key: Clone + Eq + Hash + Ord;
    fn key(&self) -> Self::Key;
    fn subject(key: &Self::Key) -> Subject;
    fn table(fleet: &Fleet) -> &Table<Self::Key, Self>;
    fn table_mut(fleet: &mut Fleet) -> &mut Table<Self::Key, Self>;
    /// Returns the table, and the undo log and index that follow each change of it.
    fn parts(fleet: &mut Fleet) -> (&mut Table<Self::Key, Self>, &mut Option<Vec<Before>>, &mut Index);
    fn before(key: Self::Key, entity: Option<Arc<Self>>) -> Before;
    fn meta_mut(&mut self) -> &mut Meta;
    fn marks(&self) -> Self::Marks {
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
        pub struct Fleet {
            pub(crate) head: Position,
            pub(crate) term: Term,
            pub(crate) lineages: Lineages,
            /// Address of the decider of the term, if reported.
            pub(crate) decider: Option<Arc<str>>,
            pub(crate) keys: Keys,
            $(pub(crate) $table: Table<($(keys::$type),+), state::$entity>,)*
            pub(crate) index: Index,
            notes: Option<Vec<Before>>,
            /// Current savepoint of the notes.
            scope: Scope,
        }

        /// Entity in its state before a change.
        #[derive(Clone, Debug)]
        pub(crate) enum Before {
            $($entity(($(keys::$type),+), Option<Arc<state::$entity>>),)*
            Globals(Box<Globals>),
        }

        impl Before {
            /// Subject of the entity; `None` for fields of no entity.
            fn subject(&self) -> Option<Subject> {
                match self {
                    $(Before::$entity(key, _) => Some(state::$entity::subject(key)),)*
                    Before::Globals(_) => None,
                }
            }
        }

        $(impl Entity for state::$entity {
            type Key = ($(keys::$type),+);
            fn key(&self) -> Self::Key {
                ($(self.$field.clone()),+)
            }
            fn subject(key: &Self::Key) -> Subject {
                let ($($field),+) = key;
                Subject::$kind($($field.clone()),+)
            }
            fn table(fleet: &Fleet) -> &Table<Self::Key, state::$entity> {
                &fleet.$table
            }
            fn table_mut(fleet: &mut Fleet) -> &mut Table<Self::Key, state::$entity> {
                &mut fleet.$table
            }
            fn parts(
                fleet: &mut Fleet,
            ) -> (&mut Table<Self::Key, state::$entity>, &mut Option<Vec<Before>>, &mut Index) {
                (&mut fleet.$table, &mut fleet.notes, &mut fleet.index)
            }
            fn before(key: Self::Key, entity: Option<Arc<state::$entity>>) -> Before {
                Before::$entity(key, entity)
            }
            fn meta_mut(&mut self) -> &mut Meta {
                &mut self.meta
            }
        })*

        impl Fleet {
            /// Creates the state of an empty journal.
            pub fn new(lineage: Lineage) -> Fleet {
                Fleet {
                    head: Position::ZERO,
                    term: Term::default(),
                    lineages: Lineages::new(lineage),
                    decider: None,
                    keys: Keys::default(),
                    $($table: Table::default(),)*
                    index: Index::default(),
                    notes: None,
                    scope: 0,
                }
            }

            $(
                /// All entities of the kind, by key.
                pub fn $table(&self) -> &Table<($(keys::$type),+), state::$entity> {
                    &self.$table
                }
            )*

            /// Metadata of an entity, if it exists.
            pub(crate) fn meta(&self, subject: &Subject) -> Option<&Meta> {
                match subject {
                    Subject::Fleet => None,
                    $(Subject::$kind($($field),+) => {
                        self.$table.get(&($($field.clone()),+)).map(|entity| &entity.meta)
                    })*
                }
            }

            fn index_everything(&mut self) {
                $(self.index_all::<state::$entity>();)*
            }

            /// Restores an entity; returns the fields that belong to no entity.
            fn put_back_entity(&mut self, before: Before, indexes: Indexes) -> Option<Box<Globals>> {
                match before {
                    $(Before::$entity(key, entity) => self.restore::<state::$entity>(key, entity.as_ref(), indexes),)*
                    Before::Globals(globals) => return Some(globals),
                }
                None
            }
        }

        /// Fleet without derived data, as stored in a snapshot.
        #[derive(Serialize, Deserialize)]
        pub struct Image {
            head: Position,
            term: Term,
            lineages: Lineages,
            decider: Option<Arc<str>>,
            keys: Keys,
            $($table: Vec<Arc<state::$entity>>,)*
        }

        impl Image {
            /// Creates the image, in the order of keys: equal fleets have equal images.
            pub fn of(fleet: &Fleet) -> Image {
                Image {
                    head: fleet.head,
                    term: fleet.term,
                    lineages: fleet.lineages.clone(),
                    decider: fleet.decider.clone(),
                    keys: fleet.keys.clone(),
                    $($table: fleet.$table.in_order().into_iter().cloned().collect(),)*
                }
            }

            /// Creates the fleet, with its indexes.
            pub fn fleet(self) -> Fleet {
                let mut fleet = Fleet::new(self.lineages.current);
                fleet.head = self.head;
                fleet.term = self.term;
                fleet.lineages = self.lineages;
                fleet.decider = self.decider;
                fleet.keys = self.keys;
                // In the register's order: nodes need capabilities and clusters, incarnations their nodes,
                // plan indexes everything.
                $(self.$table.iter().for_each(|entity| fleet.put_shared(entity));)*
                fleet.settle();
                fleet
            }
        }
    };
}

each_kind!(tables);

impl Fleet {
    /// Last folded position.
    pub fn head(&self) -> Position {
        self.head
    }

    /// Term of the last folded commit.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Lineages of the journal.
    pub fn lineages(&self) -> &Lineages {
        &self.lineages
    }

    /// Address of the decider of the term, if reported.
    pub fn decider(&self) -> Option<&Arc<str>> {
        self.decider.as_ref()
    }

    /// Approximate number of entities, counting only the most numerous kinds.
    pub fn size(&self) -> usize {
        self.nodes.len() + self.replicas.len() + self.incarnations.len() + self.operations.len()
    }

    /// Stored idempotency keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Indexes derived from the tables.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Cluster, if any, and update domain of an existing node.
    pub(crate) fn whereabouts(&self, node: &NodeName) -> Option<(Option<&ClusterName>, &DomainName)> {
        // A placement reads the index entry of the node anyway, but mostly not the node.
        let indexed = self.index.places.whereabouts(node).map(|(cluster, domain)| (Some(cluster), domain));
        indexed.or_else(|| self.nodes.get(node).map(|node| (node.cluster.as_ref(), &node.spec.domain)))
    }

    /// Starts to record changes, for [`Fleet::roll_back`] or [`Fleet::changed`]. Discards earlier records.
    pub fn note(&mut self) {
        let globals = Globals {
            head: self.head,
            term: self.term,
            lineages: self.lineages.clone(),
            decider: self.decider.clone(),
            keys: self.keys.begin(),
            grown: self.index.grown,
        };
        let mut notes = self.notes.take().unwrap_or_default();
        notes.clear();
        notes.push(Before::Globals(Box::new(globals)));
        self.notes = Some(notes);
        self.scope += 1;
    }

    /// Restores the state at the last call of [`Fleet::note`].
    pub fn roll_back(&mut self) {
        self.put_back(Indexes::Follow);
        self.settle();
    }

    /// Rolls back after a panic, which may leave an entity or index half changed: rebuilds the indexes.
    pub fn roll_back_broken(&mut self) {
        self.put_back(Indexes::Broken);
        let grown = self.index.grown;
        self.index = Index::default();
        self.index_everything();
        self.index.grown = grown;
        self.settle();
    }

    fn index_all<E: Entity>(&mut self) {
        let mut index = std::mem::take(&mut self.index);
        for entity in E::table(self).in_order() {
            E::index(&mut index, entity, [None, Some(&entity.marks())], self.head);
        }
        self.index = index;
    }

    fn put_back(&mut self, indexes: Indexes) {
        let Some(notes) = self.notes.take() else { return };
        for before in notes.into_iter().rev() {
            let Some(globals) = self.put_back_entity(before, indexes) else { continue };
            // The first of the notes: after it, nothing is restored that could change these fields.
            let Globals { head, term, lineages, decider, keys, grown } = *globals;
            self.head = head;
            self.term = term;
            self.lineages = lineages;
            self.decider = decider;
            self.keys.roll_back(keys);
            self.index.grown = grown;
        }
    }

    /// Completes a change of entities: the work that is due depends on all of them.
    pub(crate) fn settle(&mut self) {
        self.index.settle();
    }

    fn restore<E: Entity>(&mut self, key: E::Key, entity: Option<&Arc<E>>, indexes: Indexes) {
        let now = self.place(key, entity).map(|slot| slot.entity);
        if indexes == Indexes::Follow {
            self.follow(now.as_deref(), entity.map(AsRef::as_ref));
        }
    }

    /// Changes the table only; returns the previous slot.
    fn place<E: Entity>(&mut self, key: E::Key, entity: Option<&Arc<E>>) -> Option<Slot<E>> {
        let slot = entity.map(|entity| Slot { entity: Arc::clone(entity), noted: self.scope });
        E::table_mut(self).set(key, slot)
    }

    /// Returns every entity changed since the last [`Fleet::note`], in its state then, in order. Of an entity
    /// that was removed and set again, the first entry counts.
    pub fn changed(&self) -> impl Iterator<Item = Was<'_>> {
        self.notes.iter().flatten().filter_map(|before| match before {
            Before::Replica(key, entity) => Some(Was::Replica(key, entity.as_ref())),
            Before::Incarnation(key, entity) => Some(Was::Incarnation(*key, entity.as_ref())),
            Before::Operation(key, entity) => Some(Was::Operation(*key, entity.as_ref())),
            other => other.subject().map(Was::Other),
        })
    }

    /// Returns the entity, or the refusal for an intent that names it.
    pub(crate) fn find<E: Entity>(&self, key: &E::Key) -> Result<&E, Refusal> {
        E::table(self).get(key).ok_or_else(|| not_found(&E::subject(key)))
    }

    /// Deployment of a plan.
    pub fn deployment(&self, plan: &PlanName, name: &DeploymentName) -> Option<&Deployment> {
        self.deployments().get(&(plan.clone(), name.clone()))
    }

    /// Returns the entity, or the contradiction that it does not exist.
    pub(crate) fn want<E: Entity>(&self, key: &E::Key) -> Result<&E, Contradiction> {
        E::table(self).get(key).ok_or_else(|| absent::<E>(key))
    }

    /// Inserts or replaces an entity.
    pub(crate) fn put<E: Entity>(&mut self, entity: E) {
        self.put_shared(&Arc::new(entity));
    }

    fn put_shared<E: Entity>(&mut self, entity: &Arc<E>) {
        self.set::<E>(&entity.key(), Some(entity));
    }

    /// Changes an existing entity in place; clones it only for the notes or if it is shared.
    pub(crate) fn change<E: Entity>(
        &mut self,
        key: &E::Key,
        how: impl FnOnce(&mut E),
    ) -> Result<(), Contradiction> {
        self.change_and(key, how)
    }

    /// Changes an existing entity in place, and returns the result of `how`.
    pub(crate) fn change_and<E: Entity, T>(
        &mut self,
        key: &E::Key,
        how: impl FnOnce(&mut E) -> T,
    ) -> Result<T, Contradiction> {
        let (scope, head) = (self.scope, self.head);
        let (table, notes, index) = E::parts(self);
        let slot = table.slot(key).ok_or_else(|| absent::<E>(key))?;
        let before = slot.entity.marks();
        if let Some(notes) = notes.as_mut().filter(|_| slot.noted != scope) {
            slot.noted = scope;
            notes.push(E::before(key.clone(), Some(Arc::clone(&slot.entity))));
        }
        let told = how(Arc::make_mut(&mut slot.entity));
        let after = slot.entity.marks();
        if before != after {
            E::index(index, &slot.entity, [Some(&before), Some(&after)], head);
        }
        Ok(told)
    }

    /// Changes an entity by a fact about it.
    pub(crate) fn bump<E: Entity>(
        &mut self,
        key: &E::Key,
        at: At,
        how: impl FnOnce(&mut E),
    ) -> Result<(), Contradiction> {
        self.change_and(key, |entity| {
            how(entity);
            entity.meta_mut().bump(at);
        })
    }

    /// Changes an entity by a fact about something else.
    pub(crate) fn touch<E: Entity>(
        &mut self,
        key: &E::Key,
        at: At,
        how: impl FnOnce(&mut E),
    ) -> Result<(), Contradiction> {
        self.change_and(key, |entity| {
            how(entity);
            entity.meta_mut().touch(at);
        })
    }

    /// Removes an existing entity.
    pub(crate) fn remove<E: Entity>(&mut self, key: &E::Key) -> Result<(), Contradiction> {
        if E::table(self).get(key).is_none() {
            return Err(absent::<E>(key));
        }
        self.set::<E>(key, None);
        Ok(())
    }

    fn set<E: Entity>(&mut self, key: &E::Key, entity: Option<&Arc<E>>) {
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
    fn follow<E: Entity>(&mut self, old: Option<&E>, new: Option<&E>) {
        let Some(this) = new.or(old) else { return };
        let (old, new) = (old.map(E::marks), new.map(E::marks));
        E::index(&mut self.index, this, [old.as_ref(), new.as_ref()], self.head);
    }
}

/// Whether indexes are updated while entities are restored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Indexes {
    Follow,
    Broken,
}

pub(crate) fn absent<E: Entity>(key: &E::Key) -> Contradiction {
    Contradiction { subject: E::subject(key), problem: "the fact is about it, and it does not exist".into() }
}
