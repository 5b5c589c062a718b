//! Whose turn it is: the group of a fleet's servers on the inbox gives the fleet's partition to one of them.
//!
//! Each partition has a group of its own, so that fleets with servers of their own may share topics: of what a group gives
//! to its members, that partition alone has a meaning.
//!
//! A member that is not heard for the session's length loses what it has, and another gets it; one that leaves gives it
//! back at once. That is a hint: the term says whose commits count. Nothing is read here, and nothing is committed to
//! the group: how far the inbox is answered stands in the journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use chancery_journal::kafka::Client;
use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use tokio::sync::watch;

/// How long to wait for news of the group, before looking whether to stop.
const WAIT: Duration = Duration::from_millis(100);

/// A member of the group, on a thread of its own. When it goes, it leaves the group.
#[derive(Debug)]
pub struct Election {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Turns {
    partition: i32,
    is_ours: watch::Sender<bool>,
}

impl ClientContext for Turns {}

impl ConsumerContext for Turns {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // With others' partitions only it stays as it is: the group moves no more than it must.
        if let Rebalance::Revoke(partitions) = rebalance
            && partitions.elements().iter().any(|one| one.partition() == self.partition)
        {
            self.is_ours.send_replace(false);
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(partitions) => {
                // The inbox is read elsewhere, from where the journal says.
                if let Err(error) = consumer.pause(partitions) {
                    tracing::warn!(%error, "the group's partitions could not be paused; they are read for nothing");
                }
                if partitions.elements().iter().any(|one| one.partition() == self.partition) {
                    self.is_ours.send_replace(true);
                }
            }
            Rebalance::Revoke(_) => {}
            Rebalance::Error(error) => {
                tracing::warn!(%error, "the group could not be divided; it is not this server's turn");
                self.is_ours.send_replace(false);
            }
        }
    }
}

/// Stands for election: the receiver says whether it is this server's turn for the partition.
pub fn stand(
    client: &Client,
    inbox: &str,
    partition: i32,
    session: Duration,
) -> Result<(Election, watch::Receiver<bool>)> {
    let (is_ours, told) = watch::channel(false);
    let mut config = client.config();
    config
        .set("group.id", format!("{inbox}.deciders.{partition}"))
        .set("session.timeout.ms", session.as_millis().to_string())
        .set("heartbeat.interval.ms", (session.as_millis() / 5).max(100).to_string())
        .set("max.poll.interval.ms", (session.as_millis() * 2).to_string())
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "latest")
        .set("allow.auto.create.topics", "false");
    let turns = Turns { partition, is_ours };
    let consumer: BaseConsumer<Turns> =
        config.create_with_context(turns).context("join the group of deciders")?;
    consumer.subscribe(&[inbox]).with_context(|| format!("join the group of deciders on {inbox}"))?;
    let stops = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stops);
    let run = move || {
        while !stop.load(Ordering::Acquire) {
            // What is paused gives nothing; errors pass, or take the turn away through the group.
            match consumer.poll(WAIT) {
                None | Some(Ok(_)) => {}
                Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                    tracing::error!(%error, "this server is out of the group of deciders for good");
                    consumer.context().is_ours.send_replace(false);
                    return;
                }
                Some(Err(error)) => tracing::warn!(%error, "the group of deciders"),
            }
        }
        consumer.context().is_ours.send_replace(false);
    };
    let thread = std::thread::Builder::new().name("election".into()).spawn(run).context("start a thread")?;
    Ok((Election { stops, thread: Some(thread) }, told))
}

impl Election {
    /// Leaves the group: another server may decide at once.
    pub fn leave(self) {}
}

impl Drop for Election {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It told what was wrong.
            let _ = thread.join();
        }
    }
}
