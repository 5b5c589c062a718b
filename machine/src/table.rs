//! Table of entities by key. Lookup is by hash, iteration in key order where an order has an effect: no hash
//! order affects a decision.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Entities by key, each shared: cloning the table clones no entity.
#[derive(Clone, Debug)]
pub struct EntityTable<K, V>(FxHashMap<K, TableSlot<V>>);

/// Entity, and the savepoint at which it was last noted.
#[derive(Debug)]
pub(crate) struct TableSlot<V> {
    pub(crate) entity: Arc<V>,
    pub(crate) noted: SavepointId,
}

impl<V> Clone for TableSlot<V> {
    fn clone(&self) -> TableSlot<V> {
        TableSlot { entity: Arc::clone(&self.entity), noted: self.noted }
    }
}

/// Number of a savepoint, counted from the first.
pub(crate) type SavepointId = u64;

impl<K: Clone + Eq + Hash + Ord, V> EntityTable<K, V> {
    /// Creates a table of shared entities.
    pub(crate) fn of(entities: &[Arc<V>], key: impl Fn(&V) -> K) -> EntityTable<K, V> {
        let slot = |entity: &Arc<V>| (key(entity), TableSlot { entity: Arc::clone(entity), noted: 0 });
        EntityTable(entities.iter().map(slot).collect())
    }

    /// Returns the entity with the key.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.get(key).map(|slot| &*slot.entity)
    }

    /// Number of entities.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the table has no entities.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Visits all entities, in no order: only for results that no order affects, such as sums, and for estimates.
    pub fn unordered(&self) -> impl ExactSizeIterator<Item = &V> {
        self.0.values().map(|slot| &*slot.entity)
    }

    /// Visits all keys, in no order.
    pub fn unordered_keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    /// Returns all entities in the order of their keys. Sorts each time: for snapshots, rows and checks.
    pub fn sorted(&self) -> Vec<&V> {
        self.in_order().into_iter().map(|entity| &**entity).collect()
    }

    /// Returns all entities in the order of their keys, shared.
    pub(crate) fn in_order(&self) -> Vec<&Arc<V>> {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        sorted.into_iter().map(|(_, slot)| &slot.entity).collect()
    }

    /// Slot of the key.
    pub(crate) fn slot(&mut self, key: &K) -> Option<&mut TableSlot<V>> {
        self.0.get_mut(key)
    }

    /// Sets or removes a slot; returns the previous one.
    pub(crate) fn set(&mut self, key: K, slot: Option<TableSlot<V>>) -> Option<TableSlot<V>> {
        match slot {
            Some(slot) => self.0.insert(key, slot),
            None => self.0.remove(&key),
        }
    }
}

impl<K, V> Default for EntityTable<K, V> {
    fn default() -> EntityTable<K, V> {
        EntityTable(FxHashMap::default())
    }
}
