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
use chancery_decider::troubles::{FleetPart, FleetTroubles};
use chancery_events::id::Position;
use chancery_journal::Source;
use chancery_journal::kafka::{Client, discard};
use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use tokio::sync::watch;

use super::election_watch::{ElectionTrouble, ElectionWatch, GroupAnswer, SESSIONS};
use super::group::{GroupMember, SERVER, ask_coordinator, members, observer};

/// How long to wait for news of the group, before looking whether to stop.
const WAIT: Duration = Duration::from_millis(100);
/// How long a member may take to leave the group, and how often it is looked whether it has.
const LEAVING: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_millis(5);

/// Which group a server joins, and as whom.
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
    /// The journal, to which a server that decides adds records.
    pub source: Arc<dyn Source>,
    /// Where it is reported that no server has the partition.
    pub troubles: Arc<FleetTroubles>,
}

/// A member of the group, on a thread of its own. When it goes, it leaves the group.
#[derive(Debug)]
pub struct Election {
    stops: Arc<AtomicBool>,
    member: Option<JoinHandle<()>>,
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
    let mut config = client.of_group(&group_of(inbox, partition));
    config
        .set("client.id", format!("{SERVER}{address}"))
        .set("session.timeout.ms", session.as_millis().to_string())
        .set("heartbeat.interval.ms", (session.as_millis() / 5).max(100).to_string())
        .set("max.poll.interval.ms", (session.as_millis() * 2).to_string())
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("auto.offset.reset", "latest");
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
    let election = Election { stops: Arc::clone(&stops), member: Some(thread) };
    let turn = told.clone();
    let watch = move || candidate.watch_members(&turn, &stops);
    // It is not waited for: a question may take longer than a stop.
    std::thread::Builder::new().name("election-members".into()).spawn(watch).context("start a thread")?;
    Ok((election, told))
}

impl Candidate {
    /// Reports, for as long as it is not this server's turn, that no server has the turn, or that it is not known whether one
    /// has. See [`super::election_watch`].
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
                Some(trouble) => self.troubles.report(FleetPart::Election, self.tell(&trouble, &group)),
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

    /// Asks the brokers who has the partition, with the client that is there or a new one.
    fn ask(&self, asking: &mut Option<BaseConsumer>, group: &str) -> GroupAnswer {
        let asking = match asking {
            Some(asking) => asking,
            None => match observer(&self.client, group) {
                Ok(made) => asking.insert(made),
                Err(error) => {
                    tracing::warn!(%error, "the members of the group of deciders are not known");
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

    fn tell(&self, trouble: &ElectionTrouble, group: &str) -> String {
        let partition = self.partition;
        let holder = match trouble {
            ElectionTrouble::Unknown => {
                return format!(
                    "it is not known whether a server decides: the coordinator of group {group} does not answer, and no \
                     record comes. `chancery doctor` names brokers that do not answer"
                );
            }
            ElectionTrouble::NoServer(None) => "no member".to_owned(),
            ElectionTrouble::NoServer(Some(GroupMember { client, host, .. })) => {
                format!("client {client:?} at {host}, which is no server of the fleet,")
            }
        };
        format!(
            "no server decides: {holder} has partition {partition} in group {group}. `chancery doctor` shows the \
             members; docs/operations.md says which permissions keep others out of the group"
        )
    }
}

/// Takes what the client library reports: it would be kept, and grow for as long as brokers are away.
fn drain_errors(client: &BaseConsumer) {
    while let Some(reported) = client.poll(Duration::ZERO) {
        if let Err(error) = reported {
            tracing::debug!(%error, "the client that asks for the group of deciders");
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
        let Some(member) = self.member.take() else { return };
        let began = Instant::now();
        // A member leaves by its coordinator, which may be away for as long as its broker is.
        while !member.is_finished() && began.elapsed() < LEAVING {
            std::thread::sleep(SOON);
        }
        if member.is_finished() {
            // What was wrong is in the log.
            let _ = member.join();
        } else {
            tracing::warn!("this server could not leave the group of deciders: its session must run out");
        }
    }
}
