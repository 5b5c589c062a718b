//! Nodes in memory, for tests, sizing and experiments. Thousands of nodes cost nothing, and every fault is
//! available.
//!
//! The [`SimulatedWorld`] is separate from the orchestrator, so that a restarted executor finds it again. It
//! is synchronous and takes the time from its caller; the orchestrator adds the clock and the cache of
//! reports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chancery_events::id::ObjectId;
use chancery_events::observation::ObjectReport;
use chancery_events::protocol::Command;
use tokio::sync::Notify;
use tokio::time::Instant;

mod faults;
mod object;
mod world;

pub use faults::{FaultRules, FaultTarget, InvalidBehaviour, SimulatedBehaviour, SimulatedReadiness};
pub use world::SimulatedWorld;

use crate::logs::{LogSource, NoLogSource};
use crate::orchestrator::{InventoryError, Orchestrator, WatchLost, WorkProgress};
use crate::reconcile::UpdateSupport;
use crate::status_cache::StatusCache;

/// Time after which the world counts as unreachable.
const PAUSE: Duration = Duration::from_millis(10);

/// Orchestrator of nodes in memory.
#[derive(Debug)]
pub struct SimulatedOrchestrator {
    world: Arc<Mutex<SimulatedWorld>>,
    board: StatusCache,
    /// Notified when a timer may be due earlier than the reader of changes knows.
    sooner: Notify,
    origin: Instant,
    origin_of_world: Duration,
    /// Whether changes may have been missed since the last list.
    is_lost: AtomicBool,
}

impl SimulatedOrchestrator {
    /// Returns an orchestrator of `world`, which continues from the time that `world` has reached.
    pub fn new(world: Arc<Mutex<SimulatedWorld>>) -> SimulatedOrchestrator {
        let origin_of_world = {
            let mut world = lock(&world);
            world.read_store();
            world.now()
        };
        SimulatedOrchestrator {
            world,
            board: StatusCache::default(),
            sooner: Notify::new(),
            origin: Instant::now(),
            origin_of_world,
            is_lost: AtomicBool::new(false),
        }
    }

    /// Whether the world is reachable. If not, returns after a pause, and changes are missed.
    async fn reaches(&self) -> bool {
        let reaches = !lock(&self.world).is_out_of_reach();
        if !reaches {
            self.is_lost.store(true, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
        reaches
    }

    fn now(&self) -> Duration {
        self.origin_of_world + self.origin.elapsed()
    }

    fn at_present<T>(&self, act: impl FnOnce(&mut SimulatedWorld) -> T) -> (T, Option<Duration>) {
        let mut world = lock(&self.world);
        for update in world.advance(self.now()) {
            self.board.show_update(update);
        }
        let result = act(&mut world);
        (result, world.due())
    }
}

impl Orchestrator for SimulatedOrchestrator {
    const CHANGES: UpdateSupport = UpdateSupport::InPlace;

    async fn carry_out(&self, command: Command) -> WorkProgress {
        if !self.reaches().await {
            return WorkProgress::PutOff;
        }
        let (update, _) = self.at_present(|world| world.carry_out(&command));
        self.board.show_update(update);
        self.sooner.notify_one();
        WorkProgress::Begun
    }

    async fn remove(&self, object: ObjectId, revision: u32) -> WorkProgress {
        if !self.reaches().await {
            return WorkProgress::PutOff;
        }
        let (update, _) = self.at_present(|world| world.remove(object, revision));
        self.board.show_update(update);
        WorkProgress::Begun
    }

    async fn forget(&self, object: ObjectId) -> WorkProgress {
        if !self.reaches().await {
            return WorkProgress::PutOff;
        }
        let (update, _) = self.at_present(|world| world.forget(object));
        match update {
            Some(update) => self.board.show_update(update),
            None => self.board.clear(object),
        }
        WorkProgress::Begun
    }

    async fn list(&self) -> Result<Vec<ObjectReport>, InventoryError> {
        if !self.reaches().await {
            let (unreachable, reason) = ("the world".to_owned(), "unreachable".to_owned());
            return Err(InventoryError { unreachable, reason });
        }
        self.is_lost.store(false, Ordering::Relaxed);
        // The cache first: a change between the two steps is then reported twice, not never.
        self.board.list();
        Ok(self.at_present(|world| world.list()).0)
    }

    async fn changes(&self, limit: usize) -> Result<Vec<ObjectReport>, WatchLost> {
        loop {
            if !self.reaches().await || self.is_lost.load(Ordering::Relaxed) {
                return Err(WatchLost);
            }
            let ((), due) = self.at_present(|_| ());
            let pause = due.map(|due| due.saturating_sub(self.now()));
            tokio::select! {
                biased;
                reports = self.board.read(limit) => return Ok(reports),
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    fn logs(&self) -> Arc<dyn LogSource> {
        Arc::new(NoLogSource)
    }
}

fn lock(world: &Mutex<SimulatedWorld>) -> MutexGuard<'_, SimulatedWorld> {
    // A panic in a test that has the lock must not be hidden by others.
    world.lock().unwrap_or_else(PoisonError::into_inner)
}
