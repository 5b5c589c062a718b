//! Where the journal of a fleet with one server is, for tests that must pass wherever it is: in the server's folder, or on a
//! real Kafka. There no server drives clusters, so that the executor is outside.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use crate::kafka::shared;
use crate::{Executor, Server, Standbys};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the server's folder.
    Embedded,
    /// On a Kafka of one broker.
    OneBroker,
    /// On a Kafka of three.
    ThreeBrokers,
}

/// A server, and the executor of the cluster `local` if that is outside.
pub struct Site {
    /// The executor, which goes first.
    pub executor: Option<Executor>,
    /// The server.
    pub server: Server,
}

impl Place {
    /// Every one.
    pub const ALL: &[Place] = &[Place::Embedded, Place::OneBroker, Place::ThreeBrokers];

    /// Starts a server whose journal is here. It decides.
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

    /// The same, with an executor if the server has none.
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
    /// Asks all to stop, which they must do as they should.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(executor) = &mut self.executor {
            let (code, log) = (executor.stop(), executor.log());
            ensure!(code == Some(0), "the executor does not stop as it is asked to: {code:?}\n{log}");
        }
        let (code, log) = (self.server.stop(), self.server.log());
        ensure!(code == Some(0), "the server does not stop as it is asked to: {code:?}\n{log}");
        Ok(())
    }
}

/// What to say behind the name of a lane.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Embedded => "embedded",
            Place::OneBroker => "on one broker",
            Place::ThreeBrokers => "on three brokers",
        })
    }
}

/// By the number of brokers.
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
