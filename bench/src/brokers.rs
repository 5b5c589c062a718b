//! Real Kafka cluster, as in the tests, and servers with their journal on it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use chancery_journal::kafka::KafkaClient;
use chancery_journal::kafka::topics::{TopicAdmin, TopicNames, TopicRole};

use crate::server::BenchmarkServer;

/// Kafka cluster of one benchmark, which is removed on drop.
pub(crate) struct BenchmarkBrokers {
    pub(crate) client: KafkaClient,
    dir: PathBuf,
    copies: i32,
    holder: Child,
}

impl BenchmarkBrokers {
    /// Starts one broker, or three.
    pub(crate) fn start(count: i32) -> Result<BenchmarkBrokers> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kafka/hold");
        let dir = crate::directory()?.keep();
        let mut holder = Command::new(script)
            .arg(count.to_string())
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start Kafka")?;
        let mut bootstrap = String::new();
        BufReader::new(holder.stdout.take().context("its words")?).read_line(&mut bootstrap)?;
        ensure!(!bootstrap.is_empty(), "Kafka did not start: see above");
        let client = KafkaClient::new(bootstrap.trim(), BTreeMap::new())?;
        Ok(BenchmarkBrokers { client, dir, copies: count, holder })
    }

    /// Pauses or resumes a node.
    pub(crate) fn node(&self, what: &str, id: u32) -> Result<()> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kafka/node");
        let status = Command::new(script).arg(what).arg(&self.dir).arg(id.to_string()).status()?;
        ensure!(status.success(), "{what} node {id}: {status}");
        Ok(())
    }

    /// Returns the topics of a new fleet, and the location of its journal for servers.
    pub(crate) fn fleet(&self) -> Result<(TopicNames, String)> {
        static FLEETS: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("bench-{}", FLEETS.fetch_add(1, Ordering::Relaxed));
        let names = TopicNames::of(&prefix);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let topics = TopicAdmin::of(&self.client)?;
            topics.make(&names.journal, TopicRole::Journal, 1, self.copies).await?;
            topics.make(&names.inbox, TopicRole::Inbox, 1, self.copies).await?;
            topics.make(&names.events, TopicRole::Events, 1, self.copies).await
        })?;
        Ok((names, format!("kafka://{}/{prefix}", self.client.brokers())))
    }
}

impl Drop for BenchmarkBrokers {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // The script removes the cluster; its result has no receiver.
        let _ = self.holder.wait();
    }
}

/// Session timeout of the group: time until it replaces a silent server.
pub(crate) const SESSION: Duration = Duration::from_secs(6);

/// Starts a server of a fleet.
pub(crate) fn server(journal: &str) -> Result<BenchmarkServer> {
    let session = format!("{}s", SESSION.as_secs());
    BenchmarkServer::start_with(&[
        ("CHANCERY_JOURNAL", journal),
        ("CHANCERY_KAFKA_SESSION_TIMEOUT", &session),
        // One broker is never safe.
        ("CHANCERY_KAFKA_ALLOW_UNSAFE_TOPICS", "yes"),
        ("CHANCERY_LOG_FILTER", "error"),
    ])
}

/// Returns the index of the leader, once there is one.
pub(crate) fn decider(servers: &[BenchmarkServer]) -> Result<usize> {
    let began = Instant::now();
    loop {
        for (at, server) in servers.iter().enumerate() {
            let mut client = server.client()?;
            let figures = String::from_utf8_lossy(client.ask("GET", "/metrics", "")?).into_owned();
            if figures.contains("\nchancery_is_leader{fleet=\"default\"} 1\n") {
                return Ok(at);
            }
        }
        ensure!(began.elapsed() < Duration::from_mins(1), "there is no leader");
        std::thread::sleep(Duration::from_millis(20));
    }
}
