//! Several servers of one fleet on a real Kafka, one of which is the leader.

use crate::clock::ServerClock;
use crate::kafka::KafkaCluster;
use crate::{ServerProcess, program, until};

/// Maximum number of lines of each log in a test failure.
const LINES: usize = 60;

/// Servers of one fleet: see the module. Servers keep their addresses.
pub struct StandbyServers {
    /// Servers of the fleet.
    pub servers: Vec<ServerProcess>,
    journal: String,
}

impl StandbyServers {
    /// Creates the topics of a prefix and starts `count` servers with them and with settings.
    pub fn start(
        cluster: &KafkaCluster,
        prefix: &str,
        count: usize,
        settings: &[(&str, &str)],
    ) -> StandbyServers {
        StandbyServers::start_each(cluster, prefix, count, settings, |_, _| {})
    }

    /// Creates the topics and starts a server for each clock.
    pub fn start_with_clocks(
        cluster: &KafkaCluster,
        prefix: &str,
        clocks: &[ServerClock],
        settings: &[(&str, &str)],
    ) -> StandbyServers {
        StandbyServers::start_each(cluster, prefix, clocks.len(), settings, |at, server| {
            clocks[at].give_to(server);
        })
    }

    fn start_each(
        cluster: &KafkaCluster,
        prefix: &str,
        count: usize,
        settings: &[(&str, &str)],
        prepare: impl Fn(usize, &mut ServerProcess),
    ) -> StandbyServers {
        let journal = format!("kafka://{}/{prefix}", cluster.bootstrap());
        let copies = cluster.bootstrap().split(',').count();
        let made = std::process::Command::new(program())
            .args(["init-topics", "--journal", &journal, "--replication-factor", &copies.to_string()])
            .envs(settings.iter().copied())
            .output()
            .expect("the program runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let servers = (0..count).map(|at| {
            let mut server = ServerProcess::new();
            server.set("CHANCERY_JOURNAL", &journal);
            server.set("CHANCERY_KAFKA_SESSION_TIMEOUT", "6s");
            // Topics on one broker are never safe.
            server.set("CHANCERY_KAFKA_ALLOW_UNSAFE_TOPICS", "yes");
            server.set("CHANCERY_LOG_FILTER", "info");
            for (name, value) in settings {
                server.set(name, value);
            }
            prepare(at, &mut server);
            server.start_again();
            server.stay_at_this_address();
            server
        });
        let standbys = StandbyServers { servers: servers.collect(), journal };
        standbys.decider();
        standbys
    }

    /// Returns the journal's location, as in the settings.
    pub fn journal(&self) -> &str {
        &self.journal
    }

    /// Returns the index of the leader, and waits for one.
    pub fn decider(&self) -> usize {
        until("a server decides", || self.decides())
    }

    /// Returns the index of the reported leader.
    pub fn decides(&self) -> Option<usize> {
        self.decides_for("default")
    }

    /// Returns the index of the fleet's reported leader.
    pub fn decides_for(&self, fleet: &str) -> Option<usize> {
        (0..self.servers.len())
            .find(|at| self.servers[*at].is_up() && decides(&self.servers[*at], fleet) == Some(true))
    }

    /// Returns the URLs of all servers, for executors.
    pub fn urls(&self) -> String {
        self.servers.iter().map(ServerProcess::url).collect::<Vec<_>>().join(",")
    }
}

/// Prints the ends of the logs if the test panics.
impl Drop for StandbyServers {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for server in &self.servers {
            let log = server.log();
            let lines: Vec<_> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
            eprintln!("the last lines of the server in {}:\n{last}", server.data().display());
        }
    }
}

/// Whether the server reports to lead the fleet, if known.
pub fn decides(server: &ServerProcess, fleet: &str) -> Option<bool> {
    let figures = server.client().get("/metrics").text;
    let figure = format!("\nchancery_is_leader{{fleet=\"{fleet}\"}} ");
    let (_, value) = figures.split_once(&figure)?;
    Some(value.starts_with('1'))
}
