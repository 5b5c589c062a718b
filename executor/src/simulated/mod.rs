//! Nodes in memory: for tests, sizing and play. Thousands of them cost nothing, and every fault can be had.
//!
//! The truth ([`World`]) is apart from the orchestrator, so that an executor that starts again finds it again. It is
//! sync and takes the time from outside; the orchestrator here adds the clock and the board.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chancery_events::id::ObjectId;
use chancery_events::observation::Report;
use chancery_events::protocol::Command;
use tokio::sync::Notify;
use tokio::time::Instant;

mod faults;
mod item;
mod world;

pub use faults::{BadBehaviour, Behaviour, Faults, Readiness, Which};
pub use world::World;

use crate::board::Board;
use crate::logs::{LogSource, NoLogSource};
use crate::orchestrator::{InventoryError, Orchestrator, WatchLost, WorkProgress};
use crate::plan::Changes;

/// Time after which a world that is out of reach is known to be.
const PAUSE: Duration = Duration::from_millis(10);

/// An orchestrator of nodes in memory.
#[derive(Debug)]
pub struct Simulated {
    world: Arc<Mutex<World>>,
    board: Board,
    /// A timer may be due sooner than the reader of changes knows.
    sooner: Notify,
    origin: Instant,
    origin_of_world: Duration,
    /// Changes may have been missed since the last list.
    is_lost: AtomicBool,
}

impl Simulated {
    /// An orchestrator of what is in `world`, which goes on from the time that it has reached.
    pub fn new(world: Arc<Mutex<World>>) -> Simulated {
        let origin_of_world = {
            let mut world = lock(&world);
            world.read_store();
            world.now()
        };
        Simulated {
            world,
            board: Board::default(),
            sooner: Notify::new(),
            origin: Instant::now(),
            origin_of_world,
            is_lost: AtomicBool::new(false),
        }
    }

    /// Whether the world is in reach. If not, that is known after a pause, and changes are missed.
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

    /// Does something to the world at its present time, and shows what came of it.
    fn at_present<T>(&self, act: impl FnOnce(&mut World) -> T) -> (T, Option<Duration>) {
        let mut world = lock(&self.world);
        for told in world.advance(self.now()) {
            self.board.show_told(told);
        }
        let result = act(&mut world);
        (result, world.due())
    }
}

impl Orchestrator for Simulated {
    const CHANGES: Changes = Changes::InPlace;

    async fn carry_out(&self, command: Command) -> WorkProgress {
        if !self.reaches().await {
            return WorkProgress::PutOff;
        }
        let (told, _) = self.at_present(|world| world.carry_out(&command));
        self.board.show_told(told);
        self.sooner.notify_one();
        WorkProgress::Begun
    }

    async fn remove(&self, object: ObjectId, revision: u32) -> WorkProgress {
        if !self.reaches().await {
            return WorkProgress::PutOff;
        }
        let (told, _) = self.at_present(|world| world.remove(object, revision));
        self.board.show_told(told);
        WorkProgress::Begun
    }

    async fn forget(&self, object: ObjectId) -> WorkProgress {
        if !self.reaches().await {
            return WorkProgress::PutOff;
        }
        let (told, _) = self.at_present(|world| world.forget(object));
        match told {
            Some(told) => self.board.show_told(told),
            None => self.board.clear(object),
        }
        WorkProgress::Begun
    }

    async fn list(&self) -> Result<Vec<Report>, InventoryError> {
        if !self.reaches().await {
            let (unreachable, reason) = ("the world".to_owned(), "it is out of reach".to_owned());
            return Err(InventoryError { unreachable, reason });
        }
        self.is_lost.store(false, Ordering::Relaxed);
        // The board first: what is shown between the two is then told twice, not never.
        self.board.list();
        Ok(self.at_present(|world| world.list()).0)
    }

    async fn changes(&self, limit: usize) -> Result<Vec<Report>, WatchLost> {
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

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    // A panic in a test that holds it must not hide itself behind others.
    world.lock().unwrap_or_else(PoisonError::into_inner)
}
