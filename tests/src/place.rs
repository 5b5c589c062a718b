//! Locations of the journal of a one-server fleet, for tests that must pass with each: the server's
//! directory, or a real Kafka. With Kafka no server drives clusters, so the executor is separate.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use crate::kafka::shared;
use crate::{Executor, Server, Standbys};

/// Location of the journal: see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the server's directory.
    Embedded,
    /// Kafka of one broker.
    OneBroker,
    /// Kafka of three brokers.
    ThreeBrokers,
}

/// Server, with a separate executor of the cluster `local` if the server has none.
pub struct Site {
    /// Separate executor, which is dropped first.
    pub executor: Option<Executor>,
    /// Server of the fleet.
    pub server: Server,
}

impl Place {
    /// All locations.
    pub const ALL: &[Place] = &[Place::Embedded, Place::OneBroker, Place::ThreeBrokers];

    /// Starts a server with its journal here, and waits until it leads.
    pub fn serve(self, settings: &[(&str, &str)]) -> Server {
        static PREFIXES: AtomicU64 = AtomicU64::new(0);
        let brokers = match self {
            Place::Embedded => return Server::start_with(settings),
            Place::OneBroker => 1,
            Place::ThreeBrokers => 3,
        };
        let prefix = format!("place-{}", PREFIXES.fetch_add(1, Ordering::Relaxed));
        let mut standbys = Standbys::start(shared(brokers), &prefix, 1, settings);
        standbys.servers.pop().expect("one was started")
    }

    /// Starts a server, and an executor if the server has none.
    pub fn start(self, settings: &[(&str, &str)]) -> Site {
        let server = self.serve(settings);
        let executor = match self {
            Place::Embedded => None,
            Place::OneBroker | Place::ThreeBrokers => {
                Some(Executor::start_within(&server, "local-1", "--process"))
            }
        };
        Site { executor, server }
    }
}

impl Site {
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
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Embedded => "embedded",
            Place::OneBroker => "on one broker",
            Place::ThreeBrokers => "on three brokers",
        })
    }
}

/// Parses the number of brokers: 0, 1 or 3.
impl FromStr for Place {
    type Err = String;
    fn from_str(text: &str) -> Result<Place, String> {
        match text {
            "0" => Ok(Place::Embedded),
            "1" => Ok(Place::OneBroker),
            "3" => Ok(Place::ThreeBrokers),
            _ => Err(format!("a Kafka of how many brokers, 1 or 3? not {text:?}")),
        }
    }
}
