//! Election: the group of a fleet's servers on the inbox assigns the fleet's partition to one of them.
//!
//! Each partition has a group of its own, so that fleets with servers of their own may share topics. Of the
//! partitions that a group assigns to its members, only the fleet's has a meaning.
//!
//! A member that is silent for the session timeout loses its partition to another member; a member that
//! leaves releases it immediately. The election is a hint: the term defines whose commits count. A member
//! reads no messages and commits no offsets: the journal records how far the inbox is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use chancery_decider::troubles::{FleetPart, FleetTroubles};
use chancery_events::id::Position;
use chancery_journal::JournalReader;
use chancery_journal::kafka::{KafkaClient, KafkaClientError, discard};
use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use tokio::sync::watch;

use super::election_watch::{ElectionTrouble, ElectionWatch, GroupAnswer, SESSIONS};
use super::group::{GroupMember, SERVER, ask_coordinator, members, observer};

/// Time to wait for news of the group before checking for shutdown.
const WAIT: Duration = Duration::from_millis(100);
/// Maximum time for a member to leave the group.
const LEAVING: Duration = Duration::from_secs(3);
/// Interval at which it is checked whether the member has left.
const SOON: Duration = Duration::from_millis(5);

/// Parameters of a server that joins a group.
pub struct ElectionCandidate {
    /// Client for the brokers.
    pub client: KafkaClient,
    /// Inbox topic, whose partitions the group assigns.
    pub inbox: String,
    /// Partition of the fleet.
    pub partition: i32,
    /// Time without contact until a member loses its partition.
    pub session: Duration,
    /// Address of the server, for operators who list the group's members.
    pub address: Arc<str>,
    /// Journal, to which the leader adds records.
    pub source: Arc<dyn JournalReader>,
    /// Receiver of the problem that no server has the partition.
    pub troubles: Arc<FleetTroubles>,
}

/// Member of the group, on a thread of its own. It leaves the group when dropped.
#[derive(Debug)]
pub struct ElectionMember {
    stops: Arc<AtomicBool>,
    member: Option<JoinHandle<()>>,
}

struct RebalanceListener {
    partition: i32,
    is_ours: watch::Sender<bool>,
}

impl ClientContext for RebalanceListener {}

impl ConsumerContext for RebalanceListener {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // With only other partitions the state is unchanged: the group moves no more than it must.
        if let Rebalance::Revoke(partitions) = rebalance
            && partitions.elements().iter().any(|one| one.partition() == self.partition)
        {
            self.is_ours.send_replace(false);
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(partitions) => {
                // The inbox is read elsewhere, from the offset in the journal.
                if let Err(error) = consumer.pause(partitions) {
                    tracing::warn!(%error, "cannot pause partitions of the group, reading them needlessly");
                }
                if partitions.elements().iter().any(|one| one.partition() == self.partition) {
                    self.is_ours.send_replace(true);
                }
            }
            Rebalance::Revoke(_) => {}
            Rebalance::Error(error) => {
                tracing::warn!(%error, "rebalance failed, not the leader");
                self.is_ours.send_replace(false);
            }
        }
    }
}

/// Returns the name of a partition's group of deciders.
pub(super) fn group_of(inbox: &str, partition: i32) -> String {
    format!("{inbox}.deciders.{partition}")
}

/// Joins the election; the receiver's value is true while this server has the partition.
pub fn stand(candidate: ElectionCandidate) -> Result<(ElectionMember, watch::Receiver<bool>)> {
    let ElectionCandidate { client, inbox, partition, session, address, .. } = &candidate;
    let partition = *partition;
    let (is_ours, elected) = watch::channel(false);
    let mut config = client.of_group(&group_of(inbox, partition));
    config
        .set("client.id", format!("{SERVER}{address}"))
        .set("session.timeout.ms", session.as_millis().to_string())
        .set("heartbeat.interval.ms", (session.as_millis() / 5).max(100).to_string())
        .set("max.poll.interval.ms", (session.as_millis() * 2).to_string())
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("auto.offset.reset", "latest");
    let turns = RebalanceListener { partition, is_ours };
    let consumer: BaseConsumer<RebalanceListener> = config
        .create_with_context(turns)
        .map_err(KafkaClientError)
        .context("cannot join group of deciders")?;
    consumer
        .subscribe(&[inbox.as_str()])
        .map_err(KafkaClientError)
        .with_context(|| format!("cannot join group of deciders on {inbox}"))?;
    let stops = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stops);
    let run = move || {
        while !stop.load(Ordering::Acquire) {
            // A paused partition returns nothing. Errors are temporary, or the group revokes the partition.
            match consumer.poll(WAIT) {
                None | Some(Ok(_)) => {}
                Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                    tracing::error!(%error, "left the group of deciders permanently");
                    consumer.context().is_ours.send_replace(false);
                    return;
                }
                Some(Err(error)) => tracing::warn!(%error, "poll of the group of deciders failed"),
            }
        }
        consumer.context().is_ours.send_replace(false);
    };
    let thread = std::thread::Builder::new()
        .name("election".into())
        .spawn(run)
        .context("cannot start election thread")?;
    let election = ElectionMember { stops: Arc::clone(&stops), member: Some(thread) };
    let turn = elected.clone();
    let watch = move || candidate.watch_members(&turn, &stops);
    // Not joined: a request may take longer than a stop.
    std::thread::Builder::new()
        .name("election-members".into())
        .spawn(watch)
        .context("cannot start thread that watches election members")?;
    Ok((election, elected))
}

impl ElectionCandidate {
    /// Reports that no server has the partition, or that it is unknown whether one has; only while this
    /// server does not have it. See [`super::election_watch`].
    fn watch_members(&self, turn: &watch::Receiver<bool>, stops: &AtomicBool) {
        let group = group_of(&self.inbox, self.partition);
        let (mut watch, mut asked) = (ElectionWatch::default(), Instant::now());
        let (mut head, mut came) = (self.head(), None);
        let mut asking = None;
        while !stops.load(Ordering::Acquire) {
            std::thread::sleep(WAIT);
            if *turn.borrow() {
                (watch, asked) = (ElectionWatch::default(), Instant::now());
                self.troubles.clear(FleetPart::Election);
            }
            if self.head() != head {
                (head, came) = (self.head(), Some(Instant::now()));
            }
            asking.iter().for_each(drain_errors);
            if asked.elapsed() < self.session {
                continue;
            }
            asked = Instant::now();
            watch.take(self.ask(&mut asking, &group));
            if watch.wants_another_client()
                && let Some(client) = asking.take()
            {
                discard(client);
            }
            let records_come = came.is_some_and(|came| came.elapsed() < self.session * SESSIONS);
            match watch.trouble(records_come) {
                Some(trouble) => self.troubles.report(FleetPart::Election, self.describe(&trouble, &group)),
                None => self.troubles.clear(FleetPart::Election),
            }
        }
        if let Some(client) = asking {
            discard(client);
        }
    }

    fn head(&self) -> Option<Position> {
        self.source.head().map(|head| head.position)
    }

    /// Requests from the brokers which member has the partition, with the existing client or a new one.
    fn ask(&self, asking: &mut Option<BaseConsumer>, group: &str) -> GroupAnswer {
        let asking = match asking {
            Some(asking) => asking,
            None => match observer(&self.client, group) {
                Ok(made) => asking.insert(made),
                Err(error) => {
                    tracing::warn!(%error, "cannot list members of the group of deciders");
                    return GroupAnswer::NoAnswer;
                }
            },
        };
        match members(asking, group, &self.inbox, self.partition) {
            Ok(members) => match members.into_iter().find(|member| member.has_partition) {
                Some(holder) if holder.client.starts_with(SERVER) => GroupAnswer::Server,
                holder => GroupAnswer::NoServer(holder),
            },
            Err(error) => {
                tracing::debug!("{error:#}");
                let Err(error) = ask_coordinator(asking, &self.inbox, self.partition) else {
                    return GroupAnswer::Incomplete;
                };
                tracing::debug!("{error:#}");
                GroupAnswer::NoAnswer
            }
        }
    }

    fn describe(&self, trouble: &ElectionTrouble, group: &str) -> String {
        let partition = self.partition;
        let holder = match trouble {
            ElectionTrouble::Unknown => {
                return format!(
                    "unknown whether there is a leader: the coordinator of group {group} does not answer, and no record \
                     arrives\nhint: `chancery doctor` names brokers that do not answer"
                );
            }
            ElectionTrouble::NoServer(None) => "no member".to_owned(),
            ElectionTrouble::NoServer(Some(GroupMember { client, host, .. })) => {
                format!("client {client:?} at {host}, which is no server of the fleet,")
            }
        };
        format!(
            "no leader: {holder} has partition {partition} in group {group}\nhint: `chancery doctor` lists the \
             members; docs/operations.md has the permissions that keep other clients out of the group"
        )
    }
}

/// Discards errors that the client library reports: they would accumulate while brokers are unavailable.
fn drain_errors(client: &BaseConsumer) {
    while let Some(reported) = client.poll(Duration::ZERO) {
        if let Err(error) = reported {
            tracing::debug!(%error, "error of the client that watches the group of deciders");
        }
    }
}

impl ElectionMember {
    /// Leaves the group, so that another server can decide immediately.
    pub fn leave(self) {}
}

impl Drop for ElectionMember {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Release);
        let Some(member) = self.member.take() else { return };
        let began = Instant::now();
        // A member leaves through its coordinator, which may be unavailable as long as its broker.
        while !member.is_finished() && began.elapsed() < LEAVING {
            std::thread::sleep(SOON);
        }
        if member.is_finished() {
            // Errors are in the log.
            let _ = member.join();
        } else {
            tracing::warn!("cannot leave group of deciders, waiting for its session to expire");
        }
    }
}
