//! Several servers of one fleet on a real Kafka, of which one decides.

use crate::kafka::Cluster;
use crate::{Server, program, until};

/// See the module. Servers keep their addresses.
pub struct Standbys {
    /// The servers.
    pub servers: Vec<Server>,
    journal: String,
}

impl Standbys {
    /// Makes the topics of a prefix and starts so many servers with them, and with settings.
    pub fn start(cluster: &Cluster, prefix: &str, count: usize, settings: &[(&str, &str)]) -> Standbys {
        let journal = format!("kafka://{}/{prefix}", cluster.bootstrap());
        let copies = cluster.bootstrap().split(',').count();
        let made = std::process::Command::new(program())
            .args(["init-topics", "--journal", &journal, "--copies", &copies.to_string()])
            .envs(settings.iter().copied())
            .output()
            .expect("the program runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let servers = (0..count).map(|_| {
            let mut server = Server::new();
            server.set("CHANCERY_JOURNAL", &journal);
            server.set("CHANCERY_KAFKA_SESSION", "6s");
            // On one broker nothing is safe.
            server.set("CHANCERY_KAFKA_UNSAFE_TOPICS", "yes");
            server.set("CHANCERY_LOG", "info");
            for (name, value) in settings {
                server.set(name, value);
            }
            server.start_again();
            server.stay_at_this_address();
            server
        });
        let standbys = Standbys { servers: servers.collect(), journal };
        standbys.decider();
        standbys
    }

    /// Where the journal is, as servers are told.
    pub fn journal(&self) -> &str {
        &self.journal
    }

    /// Which one decides, once one of them does.
    pub fn decider(&self) -> usize {
        until("a server decides", || self.decides())
    }

    /// Which one says that it decides now.
    pub fn decides(&self) -> Option<usize> {
        self.decides_for("default")
    }

    /// The same, for one fleet of several.
    pub fn decides_for(&self, fleet: &str) -> Option<usize> {
        (0..self.servers.len())
            .find(|at| self.servers[*at].is_up() && decides(&self.servers[*at], fleet) == Some(true))
    }

    /// Where all of them are, for executors.
    pub fn urls(&self) -> String {
        self.servers.iter().map(Server::url).collect::<Vec<_>>().join(",")
    }
}

/// Whether the server decides for the fleet, if it says so.
pub fn decides(server: &Server, fleet: &str) -> Option<bool> {
    let figures = server.client().get("/metrics").text;
    let figure = format!("\nchancery_decides{{fleet=\"{fleet}\"}} ");
    let (_, value) = figures.split_once(&figure)?;
    Some(value.starts_with('1'))
}
