//! Work that waits: one piece an object, the newest, in the order of arrival; so many at once, and never two on
//! one object.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use chancery_events::id::ObjectId;
use chancery_events::protocol::Command;

/// What an orchestrator is to begin.
#[derive(Clone, PartialEq, Debug)]
pub enum Work {
    /// [`crate::Orchestrator::carry_out`].
    CarryOut(Command),
    /// [`crate::Orchestrator::remove`].
    Remove {
        /// Which.
        object: ObjectId,
        /// At which revision.
        revision: u32,
    },
    /// [`crate::Orchestrator::forget`].
    Forget(ObjectId),
}

impl Work {
    /// On which object.
    pub fn object(&self) -> ObjectId {
        match self {
            Work::CarryOut(command) => command.object,
            Work::Remove { object, .. } | Work::Forget(object) => *object,
        }
    }

    /// What takes the place of what. A forget comes after the end, so nothing comes after it.
    fn rank(&self) -> (bool, u32, u32) {
        match self {
            Work::CarryOut(command) => (false, command.revision, command.attempt),
            Work::Remove { revision, .. } => (false, *revision, u32::MAX),
            Work::Forget(_) => (true, 0, 0),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queue {
    at_once: usize,
    waiting: BTreeMap<ObjectId, Work>,
    order: VecDeque<ObjectId>,
    busy: BTreeSet<ObjectId>,
    /// Waiting, but with work on the same object under way when their turn came.
    held: BTreeSet<ObjectId>,
}

impl Queue {
    pub(super) fn new(at_once: usize) -> Queue {
        Queue {
            at_once: at_once.max(1),
            waiting: BTreeMap::new(),
            order: VecDeque::new(),
            busy: BTreeSet::new(),
            held: BTreeSet::new(),
        }
    }

    /// Lets work wait, in the place of older work on the same object.
    pub(super) fn add(&mut self, work: Work) {
        let id = work.object();
        match self.waiting.get_mut(&id) {
            Some(waits) if waits.rank() > work.rank() => {}
            Some(waits) => *waits = work,
            None => {
                self.waiting.insert(id, work);
                self.order.push_back(id);
            }
        }
    }

    /// Drops what waits.
    pub(super) fn clear_waiting(&mut self) {
        self.waiting.clear();
        self.order.clear();
        self.held.clear();
    }

    /// Takes the next piece that may be begun; it is busy until [`Queue::done`].
    pub(super) fn next(&mut self) -> Option<Work> {
        while self.busy.len() < self.at_once {
            let id = self.order.pop_front()?;
            if self.busy.contains(&id) {
                self.held.insert(id);
                continue;
            }
            let work = self.waiting.remove(&id)?;
            self.busy.insert(id);
            return Some(work);
        }
        None
    }

    /// The work on an object was begun, or is over.
    pub(super) fn done(&mut self, object: ObjectId) {
        self.busy.remove(&object);
        if self.held.remove(&object) {
            self.order.push_front(object);
        }
    }
}
