//! A table of entities by key. Looking up is by hash; walking is in the order of keys, so that no hash order can
//! leak into a decision.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Entities by key, each shared: a copy of the table copies no entity.
#[derive(Clone, Debug)]
pub struct Table<K, V>(FxHashMap<K, Arc<V>>);

impl<K: Clone + Eq + Hash + Ord, V> Table<K, V> {
    /// The entity of the key.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.get(key).map(|entity| &**entity)
    }

    /// The entity of the key, to be kept.
    pub fn shared(&self, key: &K) -> Option<Arc<V>> {
        self.0.get(key).cloned()
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
        let sorted: BTreeMap<&K, &Arc<V>> = self.0.iter().collect();
        sorted.into_values().map(|entity| &**entity).collect()
    }

    /// Sets or removes, giving back what was there.
    pub(crate) fn set(&mut self, key: K, entity: Option<Arc<V>>) -> Option<Arc<V>> {
        match entity {
            Some(entity) => self.0.insert(key, entity),
            None => self.0.remove(&key),
        }
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Table<K, V> {
        Table(FxHashMap::default())
    }
}
