//! Nodes in memory: for tests, sizing and play. Thousands of them cost nothing, and every fault can be had.
//!
//! The truth ([`World`]) is apart from the orchestrator, so that an executor that starts again finds it again. It is
//! sync and takes the time from outside; the orchestrator here adds the clock and the board.

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
use crate::orchestrator::{Orchestrator, WorkProgress};
use crate::plan::{Changes, Told};

/// An orchestrator of nodes in memory.
#[derive(Debug)]
pub struct Simulated {
    world: Arc<Mutex<World>>,
    board: Board,
    /// A timer may be due sooner than the reader of changes knows.
    sooner: Notify,
    origin: Instant,
    origin_of_world: Duration,
}

impl Simulated {
    /// An orchestrator of what is in `world`, which goes on from the time that it has reached.
    pub fn new(world: Arc<Mutex<World>>) -> Simulated {
        let origin_of_world = lock(&world).now();
        Simulated {
            world,
            board: Board::default(),
            sooner: Notify::new(),
            origin: Instant::now(),
            origin_of_world,
        }
    }

    fn now(&self) -> Duration {
        self.origin_of_world + self.origin.elapsed()
    }

    /// Does something to the world at its present time, and shows what came of it.
    fn at_present<T>(&self, act: impl FnOnce(&mut World) -> T) -> (T, Option<Duration>) {
        let mut world = lock(&self.world);
        for told in world.advance(self.now()) {
            self.show(told);
        }
        let result = act(&mut world);
        (result, world.due())
    }

    fn show(&self, told: Told) {
        match told {
            Told::Change(report) => self.board.show(report),
            Told::ListOnly(report) => self.board.show_in_lists(report),
        }
    }
}

impl Orchestrator for Simulated {
    const CHANGES: Changes = Changes::InPlace;

    async fn carry_out(&self, command: Command) -> WorkProgress {
        let (told, _) = self.at_present(|world| world.carry_out(&command));
        self.show(told);
        self.sooner.notify_one();
        WorkProgress::Begun
    }

    async fn remove(&self, object: ObjectId, revision: u32) {
        let (told, _) = self.at_present(|world| world.remove(object, revision));
        self.show(told);
    }

    async fn forget(&self, object: ObjectId) {
        let (told, _) = self.at_present(|world| world.forget(object));
        match told {
            Some(told) => self.show(told),
            None => self.board.clear(object),
        }
    }

    async fn list(&self) -> Vec<Report> {
        // The board first: what is shown between the two is then told twice, not never.
        self.board.list();
        self.at_present(|world| world.list()).0
    }

    async fn changes(&self, limit: usize) -> Vec<Report> {
        loop {
            let ((), due) = self.at_present(|_| ());
            let pause = due.map(|due| due.saturating_sub(self.now()));
            tokio::select! {
                biased;
                reports = self.board.read(limit) => return reports,
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
                () = self.sooner.notified() => {}
            }
        }
    }
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    // A panic in a test that holds it must not hide itself behind others.
    world.lock().unwrap_or_else(PoisonError::into_inner)
}
