//! What the end-to-end tests share: the real program as a server on a free port and a folder of its own, a client
//! of its API, a look at the processes that it started, and a real Kafka. Then what judges a run, whatever ran it: the history of
//! what producers were told, the checker of invariants, the second model of what readers see, and the checker that looks at the host alone; and what is run: lanes of
//! real faults, whose ledger grows, and simulated worlds.

pub mod check;
pub mod clock;
pub mod fuzz;
pub mod history;
pub mod host;
pub mod kafka;
pub mod lanes;
pub mod ledger;
pub mod model;
pub mod resolver;
pub mod sim;

#[cfg(test)]
mod story;

mod client;
mod executor;
mod launch;
mod place;
mod preload;
mod processes;
mod server;
mod standbys;

pub use client::{Answer, Client};
pub use executor::Executor;
pub use launch::Launch;
pub use place::{Place, Site};
pub use processes::{Payload, payloads};
pub use server::{NotUp, Server, program};
pub use standbys::{Standbys, decides};

use std::time::{Duration, Instant};

/// Waits until `ready` gives something. Panics with `what` when that takes longer than anything should.
pub fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_mins(1), "still waiting after a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
