//! The state of a fleet: a table an entity, what is remembered of idempotency keys, and the indexes that make each
//! step cheap.
//!
//! Every change goes through [`Fleet::put`], [`Fleet::change`] or [`Fleet::remove`], which keep the indexes and note
//! what was there before. So a commit that goes wrong is taken back whole, and a projector learns what was touched,
//! by the same few lines.
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

/// A fact that does not fit the state: the journal contradicts itself, or this build misreads it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {problem}")]
pub struct Contradiction {
    /// The entity concerned.
    pub subject: Subject,
    /// What does not fit.
    pub problem: String,
}

/// The key of a deployment.
pub type DeploymentKey = (PlanName, DeploymentName);

/// What belongs to no entity, as it was.
#[derive(Clone, Debug)]
pub(crate) struct Globals {
    head: Position,
    term: Term,
    lineages: Lineages,
    decider: Option<Arc<str>>,
    keys: KeysBefore,
    /// Of the index: the one thing in it that does not follow from what stands in the tables. One that stayed ahead
    /// of the head would hide what really grows up to there.
    grown: Position,
}

/// An entity that has changed, as it was before: `None` if it did not exist. Of kinds of which there are few, only
/// which one it was.
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

/// What the indexes follow of an entity; nothing, unless it says otherwise.
pub(crate) trait Indexed: Clone + Sized {
    /// Nothing else of an entity changes the indexes.
    type Marks: PartialEq + for<'a> From<&'a Self>;
    /// `this`: the entity, as it is or was. `at`: when the change was.
    fn index(_index: &mut Index, _this: &Self, _both: Both<'_, Self::Marks>, _at: Position) {}
}

/// What a table holds.
pub(crate) trait Entity: Indexed {
    type Key: Clone + Eq + Hash + Ord;
    fn key(&self) -> Self::Key;
    fn subject(key: &Self::Key) -> Subject;
    fn table(fleet: &Fleet) -> &Table<Self::Key, Self>;
    fn table_mut(fleet: &mut Fleet) -> &mut Table<Self::Key, Self>;
    /// The table, and what follows each change of it.
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
        /// Everything that the facts so far tell of a fleet.
        #[derive(Clone, Debug)]
        pub struct Fleet {
            pub(crate) head: Position,
            pub(crate) term: Term,
            pub(crate) lineages: Lineages,
            /// Where the decider of the term is reached, if it said so.
            pub(crate) decider: Option<Arc<str>>,
            pub(crate) keys: Keys,
            $(pub(crate) $table: Table<($(keys::$type),+), state::$entity>,)*
            pub(crate) index: Index,
            notes: Option<Vec<Before>>,
            /// Of the notes.
            scope: Scope,
        }

        /// An entity as it was before it was changed.
        #[derive(Clone, Debug)]
        pub(crate) enum Before {
            $($entity(($(keys::$type),+), Option<Arc<state::$entity>>),)*
            Globals(Box<Globals>),
        }

        impl Before {
            /// Which entity it was; none of what belongs to no entity.
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
            /// Of a journal in which nothing stands yet.
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
                /// All of the kind, by key.
                pub fn $table(&self) -> &Table<($(keys::$type),+), state::$entity> {
                    &self.$table
                }
            )*

            /// The history of an entity, if it exists.
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

            /// Puts an entity back; gives back what belongs to no entity.
            fn put_back_entity(&mut self, before: Before, indexes: Indexes) -> Option<Box<Globals>> {
                match before {
                    $(Before::$entity(key, entity) => self.restore::<state::$entity>(key, entity.as_ref(), indexes),)*
                    Before::Globals(globals) => return Some(globals),
                }
                None
            }
        }

        /// A fleet without what follows from it: what a snapshot keeps.
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
            /// Of the fleet, in the order of keys: equal fleets have equal images.
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

            /// The fleet, with its indexes.
            pub fn fleet(self) -> Fleet {
                let mut fleet = Fleet::new(self.lineages.current);
                fleet.head = self.head;
                fleet.term = self.term;
                fleet.lineages = self.lineages;
                fleet.decider = self.decider;
                fleet.keys = self.keys;
                // In the register's order: nodes need capabilities and clusters, incarnations their nodes, plans'
                // indexes everything.
                $(self.$table.iter().for_each(|entity| fleet.put_shared(entity));)*
                fleet.settle();
                fleet
            }
        }
    };
}

each_kind!(tables);

impl Fleet {
    /// The last position folded.
    pub fn head(&self) -> Position {
        self.head
    }

    /// The term of the last commit folded.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The journal's identities.
    pub fn lineages(&self) -> &Lineages {
        &self.lineages
    }

    /// Where the decider of the term is reached, if it said so.
    pub fn decider(&self) -> Option<&Arc<str>> {
        self.decider.as_ref()
    }

    /// About how many entities there are: those of which there are many.
    pub fn size(&self) -> usize {
        self.nodes.len() + self.replicas.len() + self.incarnations.len() + self.operations.len()
    }

    /// What is remembered of idempotency keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// What follows from the tables.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Cluster, if it is in one, and update domain of a node that exists.
    pub(crate) fn whereabouts(&self, node: &NodeName) -> Option<(Option<&ClusterName>, &DomainName)> {
        // The index is at hand where a placement is about the node; most of the time the node is not.
        let indexed = self.index.places.whereabouts(node).map(|(cluster, domain)| (Some(cluster), domain));
        indexed.or_else(|| self.nodes.get(node).map(|node| (node.cluster.as_ref(), &node.spec.domain)))
    }

    /// Begins to note what changes, for [`Fleet::roll_back`] or [`Fleet::changed`]. Forgets earlier notes.
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

    /// Puts everything back as it was when [`Fleet::note`] was called last.
    pub fn roll_back(&mut self) {
        self.put_back(Indexes::Follow);
        self.settle();
    }

    /// The same after a panic, which may have left an entity or an index half changed: the indexes are made anew.
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
            // The first of the notes: after it, nothing is put back that could move them.
            let Globals { head, term, lineages, decider, keys, grown } = *globals;
            self.head = head;
            self.term = term;
            self.lineages = lineages;
            self.decider = decider;
            self.keys.roll_back(keys);
            self.index.grown = grown;
        }
    }

    /// Completes a change of entities: what is due follows from all of it.
    pub(crate) fn settle(&mut self) {
        self.index.settle();
    }

    fn restore<E: Entity>(&mut self, key: E::Key, entity: Option<&Arc<E>>, indexes: Indexes) {
        let now = self.place(key, entity).map(|slot| slot.entity);
        if indexes == Indexes::Follow {
            self.follow(now.as_deref(), entity.map(AsRef::as_ref));
        }
    }

    /// Only the table; returns what was there.
    fn place<E: Entity>(&mut self, key: E::Key, entity: Option<&Arc<E>>) -> Option<Slot<E>> {
        let slot = entity.map(|entity| Slot { entity: Arc::clone(entity), noted: self.scope });
        E::table_mut(self).set(key, slot)
    }

    /// Every entity changed since [`Fleet::note`] was called last, as it was then, in order. One that was removed and
    /// set again comes more than once: the first time counts.
    pub fn changed(&self) -> impl Iterator<Item = Was<'_>> {
        self.notes.iter().flatten().filter_map(|before| match before {
            Before::Replica(key, entity) => Some(Was::Replica(key, entity.as_ref())),
            Before::Incarnation(key, entity) => Some(Was::Incarnation(*key, entity.as_ref())),
            Before::Operation(key, entity) => Some(Was::Operation(*key, entity.as_ref())),
            other => other.subject().map(Was::Other),
        })
    }

    /// The entity, or the refusal of an intent that names it.
    pub(crate) fn find<E: Entity>(&self, key: &E::Key) -> Result<&E, Refusal> {
        E::table(self).get(key).ok_or_else(|| not_found(&E::subject(key)))
    }

    /// Deployment of a plan.
    pub fn deployment(&self, plan: &PlanName, name: &DeploymentName) -> Option<&Deployment> {
        self.deployments().get(&(plan.clone(), name.clone()))
    }

    /// The entity, or the contradiction that it is not there.
    pub(crate) fn want<E: Entity>(&self, key: &E::Key) -> Result<&E, Contradiction> {
        E::table(self).get(key).ok_or_else(|| absent::<E>(key))
    }

    /// Sets an entity, new or not.
    pub(crate) fn put<E: Entity>(&mut self, entity: E) {
        self.put_shared(&Arc::new(entity));
    }

    fn put_shared<E: Entity>(&mut self, entity: &Arc<E>) {
        self.set::<E>(&entity.key(), Some(entity));
    }

    /// Changes an entity that is there, where it stands: it is copied only to be noted, or for others who keep it.
    pub(crate) fn change<E: Entity>(
        &mut self,
        key: &E::Key,
        how: impl FnOnce(&mut E),
    ) -> Result<(), Contradiction> {
        self.change_and(key, how)
    }

    /// The same, and tells something of it.
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

    /// Removes an entity that is there.
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
        // One that was noted before, and what came of it since, is put back by that note.
        if let Some(notes) = self.notes.as_mut().filter(|_| !is_noted) {
            notes.push(E::before(key.clone(), old.clone()));
        }
        self.follow(old.as_deref(), entity.map(AsRef::as_ref));
    }

    /// The indexes follow one that takes the place of another, or of none.
    fn follow<E: Entity>(&mut self, old: Option<&E>, new: Option<&E>) {
        let Some(this) = new.or(old) else { return };
        let (old, new) = (old.map(E::marks), new.map(E::marks));
        E::index(&mut self.index, this, [old.as_ref(), new.as_ref()], self.head);
    }
}

/// Whether indexes are followed while entities are put back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Indexes {
    Follow,
    Broken,
}

pub(crate) fn absent<E: Entity>(key: &E::Key) -> Contradiction {
    Contradiction { subject: E::subject(key), problem: "the fact is about it, and it does not exist".into() }
}
