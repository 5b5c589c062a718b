//! Queue of waiting work: the newest piece for each object, in order of arrival. The number of concurrent
//! pieces is limited, and no two are on one object.
//!
//! Work on volumes has slots of its own: their disk can hang, and other work does not wait for that disk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use chancery_events::fact::CommandEffect;
use chancery_events::id::ObjectId;
use chancery_events::protocol::Command;

/// Work that an orchestrator starts.
#[derive(Clone, PartialEq, Debug)]
pub enum ObjectWork {
    /// Call of [`crate::Orchestrator::carry_out`].
    CarryOut(Command),
    /// Call of [`crate::Orchestrator::remove`].
    Remove {
        /// Object to remove.
        object: ObjectId,
        /// Revision of the removal.
        revision: u32,
    },
    /// Purge of an ended object.
    Purge(ObjectId),
}

impl ObjectWork {
    /// Returns the object of the work.
    pub fn object(&self) -> ObjectId {
        match self {
            ObjectWork::CarryOut(command) => command.object,
            ObjectWork::Remove { object, .. } | ObjectWork::Purge(object) => *object,
        }
    }

    /// Returns the resource that the work uses. Stopping or purging an incarnation accesses no volume.
    fn slots(&self) -> WorkResource {
        let mounts = match self {
            ObjectWork::CarryOut(Command { effect: CommandEffect::Ensure, spec, .. }) => {
                spec.incarnation().is_some_and(|spec| spec.mounts().next().is_some())
            }
            ObjectWork::CarryOut(_) | ObjectWork::Remove { .. } | ObjectWork::Purge(_) => false,
        };
        match self.object() {
            ObjectId::Incarnation(_) if !mounts => WorkResource::Others,
            ObjectId::Incarnation(_) | ObjectId::Volume(_) => WorkResource::Volumes,
        }
    }

    /// Returns the precedence of the work: a higher one replaces a lower. A purge follows the end, so nothing
    /// follows it.
    fn rank(&self) -> (bool, u32, u32) {
        match self {
            ObjectWork::CarryOut(command) => (false, command.revision, command.attempt),
            ObjectWork::Remove { revision, .. } => (false, *revision, u32::MAX),
            ObjectWork::Purge(_) => (true, 0, 0),
        }
    }
}

/// Resource that a piece of work may wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum WorkResource {
    /// Working directories only.
    Others,
    /// Disk of volumes.
    Volumes,
}

#[derive(Debug, Default)]
pub(super) struct WorkQueue {
    /// Maximum number of concurrent pieces of work for each resource.
    at_once: usize,
    waiting: BTreeMap<ObjectId, ObjectWork>,
    /// Order of waiting work, by resource. An object whose newer work uses the other resource is in both.
    orders: BTreeMap<WorkResource, VecDeque<ObjectId>>,
    /// Contents of `orders`, to add no object twice.
    ordered: BTreeSet<(WorkResource, ObjectId)>,
    busy: BTreeMap<ObjectId, WorkResource>,
    /// Objects whose work was dequeued while earlier work on them was running.
    held: BTreeSet<ObjectId>,
    /// Objects whose running work was requested by an earlier connection.
    outdated: BTreeSet<ObjectId>,
}

impl WorkQueue {
    pub(super) fn new(at_once: usize) -> WorkQueue {
        WorkQueue { at_once: at_once.max(1), ..WorkQueue::default() }
    }

    /// Adds work; it replaces older work on the same object.
    pub(super) fn add(&mut self, work: ObjectWork) {
        let (id, slots) = (work.object(), work.slots());
        if self.waiting.get(&id).is_some_and(|waits| waits.rank() > work.rank()) {
            return;
        }
        self.waiting.insert(id, work);
        if !self.held.contains(&id) && self.ordered.insert((slots, id)) {
            self.order(slots).push_back(id);
        }
    }

    fn order(&mut self, slots: WorkResource) -> &mut VecDeque<ObjectId> {
        self.orders.entry(slots).or_default()
    }

    pub(super) fn clear_waiting(&mut self) {
        self.waiting.clear();
        self.orders.values_mut().for_each(VecDeque::clear);
        self.ordered.clear();
        self.held.clear();
        self.outdated = self.busy.keys().copied().collect();
    }

    /// Returns the next work that may start; its object is busy until [`WorkQueue::done`].
    pub(super) fn next(&mut self) -> Option<ObjectWork> {
        self.next_for(WorkResource::Others).or_else(|| self.next_for(WorkResource::Volumes))
    }

    fn next_for(&mut self, slots: WorkResource) -> Option<ObjectWork> {
        while self.busy.values().filter(|busy| **busy == slots).count() < self.at_once {
            let id = self.order(slots).pop_front()?;
            self.ordered.remove(&(slots, id));
            match self.waiting.get(&id) {
                Some(_) if self.busy.contains_key(&id) => {
                    self.held.insert(id);
                }
                Some(work) if work.slots() == slots => {
                    self.busy.insert(id, slots);
                    return self.waiting.remove(&id);
                }
                // The object is dequeued with the other kind of slots, or was already.
                Some(_) | None => {}
            }
        }
        None
    }

    /// Queues work that was not started again, behind all other work, unless newer work on its object waits.
    /// Work of an earlier connection is dropped.
    pub(super) fn put_off(&mut self, work: ObjectWork) {
        let object = work.object();
        let is_outdated = self.outdated.contains(&object);
        self.done(object);
        let is_replaced = self.waiting.get(&object).is_some_and(|waits| waits.rank() >= work.rank());
        if !is_outdated && !is_replaced {
            self.add(work);
        }
    }

    /// Marks the work on an object as started, or ended.
    pub(super) fn done(&mut self, object: ObjectId) {
        self.busy.remove(&object);
        self.outdated.remove(&object);
        if self.held.remove(&object)
            && let Some(slots) = self.waiting.get(&object).map(ObjectWork::slots)
            && self.ordered.insert((slots, object))
        {
            self.order(slots).push_front(object);
        }
    }
}
