//! A table of entities by key. Looking up is by hash; walking is in the order of keys, so that no hash order can
//! leak into a decision.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Entities by key, each shared: a copy of the table copies no entity.
#[derive(Clone, Debug)]
pub struct Table<K, V>(FxHashMap<K, Slot<V>>);

/// An entity, and when it was last noted.
#[derive(Debug)]
pub(crate) struct Slot<V> {
    pub(crate) entity: Arc<V>,
    pub(crate) noted: Scope,
}

impl<V> Clone for Slot<V> {
    fn clone(&self) -> Slot<V> {
        Slot { entity: Arc::clone(&self.entity), noted: self.noted }
    }
}

/// Counts the times that noting began.
pub(crate) type Scope = u64;

impl<K: Clone + Eq + Hash + Ord, V> Table<K, V> {
    /// The entity of the key.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.get(key).map(|slot| &*slot.entity)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them in the order of their keys. For snapshots, rows and checks: it sorts.
    pub fn sorted(&self) -> Vec<&V> {
        self.in_order().into_iter().map(|entity| &**entity).collect()
    }

    /// The same, to be kept.
    pub(crate) fn in_order(&self) -> Vec<&Arc<V>> {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        sorted.into_iter().map(|(_, slot)| &slot.entity).collect()
    }

    /// The slot of the key.
    pub(crate) fn slot(&mut self, key: &K) -> Option<&mut Slot<V>> {
        self.0.get_mut(key)
    }

    /// Sets or removes, giving back what was there.
    pub(crate) fn set(&mut self, key: K, slot: Option<Slot<V>>) -> Option<Slot<V>> {
        match slot {
            Some(slot) => self.0.insert(key, slot),
            None => self.0.remove(&key),
        }
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Table<K, V> {
        Table(FxHashMap::default())
    }
}
