//! Shared parts of the end-to-end tests. Under test are the real program as a server, a client of its API,
//! the processes that it started, and a real Kafka.
//!
//! Oracles of any execution: the history of producers, the checker of invariants, the second model of what
//! readers see, and the checker of the host. Executions: campaigns of real faults, with a ledger, and
//! simulated worlds.

pub mod check;
pub mod clock;
pub mod fault_campaigns;
pub mod fuzz;
pub mod golden;
pub mod history;
pub mod host;
pub mod kafka;
pub mod kubernetes;
pub mod ledger;
pub mod model;
pub mod past;
pub mod qemu;
pub mod resolver;
pub mod sim;

#[cfg(test)]
mod trace;

mod backend;
mod client;
mod executor;
mod launch;
mod pod_fleet;
mod preload;
mod processes;
mod replay;
mod server;
mod standbys;

pub use backend::{FleetProcesses, JournalBackend};
pub use client::{ServerAnswer, TestClient};
pub use executor::ExecutorProcess;
pub use launch::StartConditions;
pub use pod_fleet::{PodFleet, uids};
pub use processes::{PayloadProcess, payloads, resident_kib};
pub use replay::ReplayProcess;
pub use server::{NotUp, ServerProcess, program};
pub use standbys::{StandbyServers, decides};

use std::time::{Duration, Instant};

/// Waits until `ready` returns a value. Panics with `what` after one minute.
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
