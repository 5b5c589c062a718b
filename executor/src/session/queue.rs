//! Work that waits: one piece an object, the newest, in the order of arrival; so many at once, and never two on
//! one object.
//!
//! Work that looks at volumes has slots of its own: the disk that they are on may not answer, and other work does not wait
//! for that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use chancery_events::fact::Effect;
use chancery_events::id::ObjectId;
use chancery_events::protocol::{Command, ObjectSpec};

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

    /// Which slots it takes: what is ended or forgotten looks at no volumes, unless it is one.
    fn slots(&self) -> Slots {
        let mounts = match self {
            Work::CarryOut(Command { effect: Effect::Ensure, spec: ObjectSpec::Run(spec), .. }) => {
                spec.payloads.iter().any(|payload| !payload.mounts.is_empty())
            }
            Work::CarryOut(_) | Work::Remove { .. } | Work::Forget(_) => false,
        };
        match self.object() {
            ObjectId::Volume(_) => Slots::Volumes,
            ObjectId::Incarnation(_) if mounts => Slots::Volumes,
            ObjectId::Incarnation(_) => Slots::Others,
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

/// What a piece of work may have to wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Slots {
    /// Nothing but working directories.
    Others,
    /// The disk of volumes.
    Volumes,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Queue {
    /// For each kind of slots.
    at_once: usize,
    waiting: BTreeMap<ObjectId, Work>,
    /// What waits for each kind of slots. An object whose newer work wants the other kind is in both.
    orders: BTreeMap<Slots, VecDeque<ObjectId>>,
    /// What is in `orders`.
    ordered: BTreeSet<(Slots, ObjectId)>,
    busy: BTreeMap<ObjectId, Slots>,
    /// Waiting, but with work on the same object under way when their turn came.
    held: BTreeSet<ObjectId>,
    /// Busy with work that an earlier connection asked for.
    outdated: BTreeSet<ObjectId>,
}

impl Queue {
    pub(super) fn new(at_once: usize) -> Queue {
        Queue {
            at_once: at_once.max(1),
            waiting: BTreeMap::new(),
            orders: [Slots::Others, Slots::Volumes].map(|slots| (slots, VecDeque::new())).into(),
            ordered: BTreeSet::new(),
            busy: BTreeMap::new(),
            held: BTreeSet::new(),
            outdated: BTreeSet::new(),
        }
    }

    /// Lets work wait, in the place of older work on the same object.
    pub(super) fn add(&mut self, work: Work) {
        let (id, slots) = (work.object(), work.slots());
        if self.waiting.get(&id).is_some_and(|waits| waits.rank() > work.rank()) {
            return;
        }
        self.waiting.insert(id, work);
        if !self.held.contains(&id) && self.ordered.insert((slots, id)) {
            self.order(slots).push_back(id);
        }
    }

    fn order(&mut self, slots: Slots) -> &mut VecDeque<ObjectId> {
        self.orders.entry(slots).or_default()
    }

    /// Drops what waits.
    pub(super) fn clear_waiting(&mut self) {
        self.waiting.clear();
        self.orders.values_mut().for_each(VecDeque::clear);
        self.ordered.clear();
        self.held.clear();
        self.outdated = self.busy.keys().copied().collect();
    }

    /// Takes the next piece that may be begun; it is busy until [`Queue::done`].
    pub(super) fn next(&mut self) -> Option<Work> {
        self.next_for(Slots::Others).or_else(|| self.next_for(Slots::Volumes))
    }

    fn next_for(&mut self, slots: Slots) -> Option<Work> {
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
                // Its turn comes among the others, or it has had it.
                Some(_) | None => {}
            }
        }
        None
    }

    /// Work was not begun: it waits again, behind all that waits, unless newer work on the object does. What an earlier
    /// connection asked for does not.
    pub(super) fn put_off(&mut self, work: Work) {
        let object = work.object();
        let is_outdated = self.outdated.contains(&object);
        self.done(object);
        let is_replaced = self.waiting.get(&object).is_some_and(|waits| waits.rank() >= work.rank());
        if !is_outdated && !is_replaced {
            self.add(work);
        }
    }

    /// The work on an object was begun, or is over.
    pub(super) fn done(&mut self, object: ObjectId) {
        self.busy.remove(&object);
        self.outdated.remove(&object);
        if self.held.remove(&object)
            && let Some(slots) = self.waiting.get(&object).map(Work::slots)
            && self.ordered.insert((slots, object))
        {
            self.order(slots).push_front(object);
        }
    }
}
