//! Locations of the journal of a one-server fleet, for tests that must pass with each: the server's
//! directory, or a real Kafka. With Kafka no server drives clusters, so the executor is separate.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use crate::kafka::shared;
use crate::{ExecutorProcess, ServerProcess, StandbyServers};

/// Location of the journal: see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalBackend {
    /// In the server's directory.
    Embedded,
    /// Kafka of one broker.
    OneBroker,
    /// Kafka of three brokers.
    ThreeBrokers,
}

/// Server, with a separate executor of the cluster `local` if the server has none.
pub struct FleetProcesses {
    /// Separate executor, which is dropped first.
    pub executor: Option<ExecutorProcess>,
    /// Server of the fleet.
    pub server: ServerProcess,
}

impl JournalBackend {
    /// All locations.
    pub const ALL: &[JournalBackend] =
        &[JournalBackend::Embedded, JournalBackend::OneBroker, JournalBackend::ThreeBrokers];

    /// Starts a server with its journal here, and waits until it leads.
    pub fn serve(self, settings: &[(&str, &str)]) -> ServerProcess {
        static PREFIXES: AtomicU64 = AtomicU64::new(0);
        let brokers = match self {
            JournalBackend::Embedded => return ServerProcess::start_with(settings),
            JournalBackend::OneBroker => 1,
            JournalBackend::ThreeBrokers => 3,
        };
        let prefix = format!("place-{}", PREFIXES.fetch_add(1, Ordering::Relaxed));
        let mut standbys = StandbyServers::start(shared(brokers), &prefix, 1, settings);
        standbys.servers.pop().expect("one was started")
    }

    /// Starts a server, and an executor if the server has none.
    pub fn start(self, settings: &[(&str, &str)]) -> FleetProcesses {
        let server = self.serve(settings);
        let executor = match self {
            JournalBackend::Embedded => None,
            JournalBackend::OneBroker | JournalBackend::ThreeBrokers => {
                Some(ExecutorProcess::start_within(&server, "local-1", "--process"))
            }
        };
        FleetProcesses { executor, server }
    }
}

impl FleetProcesses {
    /// Asks the executor and the server to stop, which must succeed.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(executor) = &mut self.executor {
            let (code, log) = (executor.stop(), executor.log());
            ensure!(code == Some(0), "the executor does not stop on request: {code:?}\n{log}");
        }
        let (code, log) = (self.server.stop(), self.server.log());
        ensure!(code == Some(0), "the server does not stop on request: {code:?}\n{log}");
        Ok(())
    }
}

/// Suffix of a campaign's name.
impl fmt::Display for JournalBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JournalBackend::Embedded => "embedded",
            JournalBackend::OneBroker => "on one broker",
            JournalBackend::ThreeBrokers => "on three brokers",
        })
    }
}

/// Parses the number of brokers: 0, 1 or 3.
impl FromStr for JournalBackend {
    type Err = String;
    fn from_str(text: &str) -> Result<JournalBackend, String> {
        match text {
            "0" => Ok(JournalBackend::Embedded),
            "1" => Ok(JournalBackend::OneBroker),
            "3" => Ok(JournalBackend::ThreeBrokers),
            _ => Err(format!("a Kafka of how many brokers, 1 or 3? not {text:?}")),
        }
    }
}
