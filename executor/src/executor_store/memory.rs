//! Records in memory: they outlive an orchestrator, but not the process.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chancery_events::id::ObjectId;

use super::{CommandRecord, ExecutorStore, ObjectStore, StoreRecord};
use crate::state_file::FileAccess;

/// Records by object and name.
type MemoryObjects = BTreeMap<ObjectId, BTreeMap<&'static str, Box<dyn Any + Send>>>;

/// Store in memory. Clones share the records.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryStore {
    records: Arc<Mutex<MemoryObjects>>,
}

impl MemoryStore {
    fn lock(&self) -> MutexGuard<'_, MemoryObjects> {
        // Every change under the lock is complete.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }
}

impl ExecutorStore for MemoryStore {
    type Object = MemoryObject;

    fn object(&self, object: ObjectId) -> MemoryObject {
        MemoryObject { store: self.clone(), object }
    }

    fn list(&self) -> io::Result<Vec<(Option<ObjectId>, MemoryObject)>> {
        let all = self.lock().keys().copied().collect::<Vec<_>>();
        Ok(all.into_iter().map(|object| (Some(object), self.object(object))).collect())
    }
}

#[derive(Debug)]
pub(crate) struct MemoryObject {
    store: MemoryStore,
    object: ObjectId,
}

impl ObjectStore for MemoryObject {
    fn make(&self) -> io::Result<()> {
        Ok(())
    }

    fn read<R: StoreRecord>(&self, _by: FileAccess) -> io::Result<Option<R>> {
        let all = self.store.lock();
        let record = all.get(&self.object).and_then(|records| records.get(R::NAME));
        Ok(record.and_then(|record| record.downcast_ref::<R>()).cloned())
    }

    fn write<R: StoreRecord>(&self, record: &R) -> io::Result<()> {
        let mut all = self.store.lock();
        all.entry(self.object).or_default().insert(R::NAME, Box::new(record.clone()));
        Ok(())
    }

    fn remove<R: StoreRecord>(&self) -> io::Result<()> {
        if let Some(records) = self.store.lock().get_mut(&self.object) {
            records.remove(R::NAME);
        }
        Ok(())
    }

    fn purge<C: CommandRecord>(&self) -> io::Result<()> {
        self.store.lock().remove(&self.object);
        Ok(())
    }
}
