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
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use chancery_journal::kafka::Client;
use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use tokio::sync::watch;

use super::group::{GroupMember, SERVER, members};
use crate::troubles::{FleetPart, FleetTroubles};

/// How long to wait for news of the group, before looking whether to stop.
const WAIT: Duration = Duration::from_millis(100);
/// How long a member may take to leave the group, and how often it is looked whether it has.
const LEAVING: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_millis(5);
/// So many sessions without a server that has the partition are no election that goes on, but a trouble.
const SESSIONS: u32 = 3;

/// Which group a server joins, and as whom.
#[derive(Debug)]
pub struct Candidate {
    /// How the brokers are reached.
    pub client: Client,
    /// The inbox topic, whose partitions the group divides.
    pub inbox: String,
    /// The fleet's partition.
    pub partition: i32,
    /// How long a member may be silent.
    pub session: Duration,
    /// Where the server is reached, for people who look at the group's members.
    pub address: Arc<str>,
    /// Where it is reported that no server has the partition.
    pub troubles: Arc<FleetTroubles>,
}

/// A member of the group, on a thread of its own. When it goes, it leaves the group.
#[derive(Debug)]
pub struct Election {
    stops: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
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

/// The group of deciders of a partition.
pub(super) fn group_of(inbox: &str, partition: i32) -> String {
    format!("{inbox}.deciders.{partition}")
}

/// Stands for election: the receiver says whether it is this server's turn for the partition.
pub fn stand(candidate: Candidate) -> Result<(Election, watch::Receiver<bool>)> {
    let Candidate { client, inbox, partition, session, address, .. } = &candidate;
    let partition = *partition;
    let (is_ours, told) = watch::channel(false);
    let mut config = client.config();
    config
        .set("client.id", format!("{SERVER}{address}"))
        .set("group.id", group_of(inbox, partition))
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
    consumer
        .subscribe(&[inbox.as_str()])
        .with_context(|| format!("join the group of deciders on {inbox}"))?;
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
    let mut election = Election { stops: Arc::clone(&stops), threads: vec![thread] };
    let turn = told.clone();
    let watch = move || candidate.watch_members(&turn, &stops);
    let watcher = std::thread::Builder::new().name("election-members".into()).spawn(watch);
    election.threads.push(watcher.context("start a thread")?);
    Ok((election, told))
}

impl Candidate {
    /// Reports, for as long as it is not this server's turn, that no server has the partition: nobody has, or a client
    /// that is none of the fleet's servers. Then nobody decides, however long one waits.
    fn watch_members(&self, turn: &watch::Receiver<bool>, stops: &AtomicBool) {
        let group = group_of(&self.inbox, self.partition);
        let (mut missed, mut asked) = (0, Instant::now());
        let asking = match self.client.watcher() {
            Ok(asking) => asking,
            Err(error) => {
                return tracing::warn!(%error, "the members of the group of deciders are not looked at");
            }
        };
        while !stops.load(Ordering::Acquire) {
            std::thread::sleep(WAIT);
            if *turn.borrow() {
                (missed, asked) = (0, Instant::now());
                self.troubles.clear(FleetPart::Election);
            }
            if asked.elapsed() < self.session {
                continue;
            }
            asked = Instant::now();
            // Brokers that do not answer say nothing about who has the partition.
            let Ok(members) = members(&asking, &group, &self.inbox, self.partition) else { continue };
            let holder = members.iter().find(|member| member.has_partition);
            if holder.is_some_and(|member| member.client.starts_with(SERVER)) {
                missed = 0;
                self.troubles.clear(FleetPart::Election);
                continue;
            }
            missed += 1;
            if missed >= SESSIONS {
                let partition = self.partition;
                let holder = holder.map_or("no member".to_owned(), |GroupMember { client, host, .. }| {
                    format!("client {client:?} at {host}, which is no server of the fleet,")
                });
                self.troubles.report(
                    FleetPart::Election,
                    format!(
                        "nobody decides: {holder} has partition {partition} in group {group}. `chancery doctor` shows the \
                         members; docs/operations.md says which permissions keep others out of the group"
                    ),
                );
            }
        }
    }
}

impl Election {
    /// Leaves the group: another server may decide at once.
    pub fn leave(self) {}
}

impl Drop for Election {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Release);
        let began = Instant::now();
        // A member leaves by its coordinator, which may be away for as long as its broker is.
        while self.threads.iter().any(|thread| !thread.is_finished()) && began.elapsed() < LEAVING {
            std::thread::sleep(SOON);
        }
        for thread in self.threads.drain(..) {
            if thread.is_finished() {
                // What was wrong is in the log.
                let _ = thread.join();
            } else {
                tracing::warn!("this server could not leave the group of deciders: its session must run out");
            }
        }
    }
}
