//! Faults that affect a topic, in addition to faults of brokers and servers.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::faults::{FaultTargets, in_sync, leader};
use super::messages::{EVENTS, INBOX, JOURNAL, holds_message, is_refused, last_exported, put_foreign};
use crate::kafka::batch::StoredBatch;
use crate::until;

/// Maximum time until a consumer's fetch is answered, even without messages.
const FETCH: Duration = Duration::from_millis(500);

impl FaultTargets<'_> {
    pub(super) fn add_partitions(&self) {
        for topic in [JOURNAL, INBOX, EVENTS] {
            let has = self.cluster.tool("kafka-topics", &["--describe", "--topic", topic]);
            let count = (has.matches("Partition: ").count() + 1).to_string();
            self.cluster.tool("kafka-topics", &["--alter", "--topic", topic, "--partitions", &count]);
        }
    }

    pub(super) fn compact(&mut self) {
        let cluster = self.cluster;
        let set = |policy| {
            for topic in [JOURNAL, INBOX] {
                cluster.set_topic(topic, "cleanup.policy", Some(policy));
            }
        };
        set("compact");
        self.sleep(500, 3000);
        set("delete");
    }

    /// Requires one in-sync broker more for the events topic than there are. The leader keeps deciding.
    pub(super) fn close_events(&mut self) -> Result<()> {
        let cluster = self.cluster;
        // A value above the replication factor would mean all replicas.
        cluster.set_topic(EVENTS, "min.insync.replicas", Some("3"));
        let follower = 1 + leader(cluster, EVENTS) % 3;
        cluster.kill(follower);
        until("a write to the events topic is refused", || {
            is_refused(cluster.bootstrap(), EVENTS).unwrap_or(false).then_some(())
        });
        self.check_leader_continues();
        self.sleep(500, 3000);
        self.check_leader_continues();
        ensure!(is_refused(cluster.bootstrap(), EVENTS)?, "the events topic could be written");
        cluster.set_topic(EVENTS, "min.insync.replicas", Some("2"));
        cluster.restart(follower);
        Ok(())
    }

    /// Deletes everything that the events topic has now.
    pub(super) fn empty_events(&mut self) -> Result<()> {
        let (end, last) = last_exported(self.cluster.bootstrap())?;
        let file = self.standbys.servers[0].directory().join("delete.json");
        let all = json!({"partitions": [{"topic": EVENTS, "partition": 0, "offset": end}], "version": 1});
        std::fs::write(&file, all.to_string())?;
        let file = file.to_str().context("a path that is text")?;
        self.cluster.tool("kafka-delete-records", &["--offset-json-file", file]);
        *self.deleted = Some(last);
        Ok(())
    }

    /// Sends an inbox message that no client can read, and skips it. No server must have read the message
    /// before, so all servers are paused meanwhile. At the end every disk has the message as it was sent.
    pub(super) fn break_message(&mut self) -> Result<()> {
        let (cluster, text) = (self.cluster, format!("broken {:016x}", self.random.bits()));
        let servers = &self.standbys.servers;
        for server in servers {
            server.signal(Signal::STOP);
        }
        // Pending fetches have been answered by then.
        std::thread::sleep(FETCH);
        let put = put_foreign(cluster.bootstrap(), std::slice::from_ref(&text));
        let batches = put.map(|()| {
            [1, 2, 3].map(|broker| {
                until("every broker has the message", || StoredBatch::find(cluster, broker, INBOX, &text))
            })
        });
        if let Ok(batches) = &batches {
            batches.iter().for_each(StoredBatch::set_unknown_codec);
        }
        for server in servers {
            server.signal(Signal::CONT);
        }
        let batches = batches?;
        let damaged = batches[0].offset();
        // Offsets before the message may hold ends of transactions: reading stops at each.
        let (mut skipped, mut at): (Vec<i64>, _) = (Vec::new(), 0);
        while skipped.last() != Some(&damaged) {
            let (server, offset) = until("a server names the offset at which the inbox stops", || {
                (0..3).find_map(|at| {
                    let ready = servers[at].client().get("/readyz");
                    let (_, rest) = ready.text.split_once("chancery inbox skip ")?;
                    let digits = rest.find(|message: char| !message.is_ascii_digit()).unwrap_or(rest.len());
                    let offset = rest[..digits].parse().ok()?;
                    (ready.status == 503 && !skipped.contains(&offset)).then_some((at, offset))
                })
            });
            ensure!(
                offset <= damaged,
                "the message at {damaged} cannot be read, and server {server} names {offset}, skipped: {skipped:?}"
            );
            until("the offset is skipped", || {
                servers[server].run(&["inbox", "skip", &offset.to_string()]).status.success().then_some(())
            });
            skipped.push(offset);
            at = server;
        }
        until("the inbox continues", || (servers[at].client().get("/readyz").status == 200).then_some(()));
        batches.iter().for_each(StoredBatch::restore);
        for offset in skipped {
            let holds = holds_message(cluster.bootstrap(), INBOX, offset)?;
            ensure!(holds == (offset == damaged), "offset {offset} was skipped, message there: {holds}");
        }
        Ok(())
    }

    /// Moves the inbox and events topics to one broker that does not lead the journal, and pauses that
    /// broker.
    pub(super) fn pause_inbox_broker(&mut self) -> Result<()> {
        let cluster = self.cluster;
        let other = |by: u32| 1 + (leader(cluster, JOURNAL) - 1 + by) % 3;
        let (paused, second, third) = (other(1), other(0), other(2));
        self.assign(&[INBOX, EVENTS], &[paused])?;
        cluster.pause(paused);
        let servers = &self.standbys.servers;
        // Leadership may change meanwhile.
        let (mut unnamed, began) = (vec!["inbox: ", "events: "], Instant::now());
        while !unnamed.is_empty() {
            let ready: Vec<_> = servers.iter().map(|server| server.client().get("/readyz")).collect();
            unnamed
                .retain(|part| !ready.iter().any(|ready| ready.status == 503 && ready.text.contains(part)));
            let late = began.elapsed() > Duration::from_mins(1);
            ensure!(
                !late,
                "/readyz does not name {unnamed:?}: {:?}",
                ready.iter().map(|ready| &ready.text).collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        self.check_leader_continues();
        cluster.resume(paused);
        self.assign(&[INBOX, EVENTS], &[paused, second, third])?;
        in_sync(cluster);
        Ok(())
    }

    /// Assigns partition 0 of the topics to the brokers, the first of which leads, and waits until the move
    /// is complete.
    fn assign(&self, topics: &[&str], brokers: &[u32]) -> Result<()> {
        let file = self.standbys.servers[0].directory().join("assign.json");
        let partition = |topic: &&str| json!({"topic": topic, "partition": 0, "replicas": brokers});
        let all = json!({"version": 1, "partitions": topics.iter().map(partition).collect::<Vec<_>>()});
        std::fs::write(&file, all.to_string())?;
        let file = file.to_str().context("a path that is text")?;
        let tool =
            |what| self.cluster.tool("kafka-reassign-partitions", &["--reassignment-json-file", file, what]);
        tool("--execute");
        until("the brokers have the topics", || {
            (tool("--verify").matches("is completed").count() == topics.len()).then_some(())
        });
        Ok(())
    }
}
