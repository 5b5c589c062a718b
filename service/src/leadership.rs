//! Leadership: this server, another server, or currently no server decides.
//!
//! Every server follows its fleet's journal and answers reads. The elected server takes over: it folds to the
//! end of what the journal has delivered and starts a decider. The decider's first commit starts a term. The
//! election is only a hint; the journal decides whether that commit counts. A server whose decider was
//! fenced, or that is no longer elected, follows again.
//!
//! | role | it is elected | it is no longer elected | the decider is fenced | the journal stops | the server stops |
//! |---|---|---|---|---|---|
//! | follower | takes over | – | – | the server ends | the server ends |
//! | leader | – | drains, then follows | follows; without election, the server ends | the server ends | drains, ends |
//!
//! Invariants: each record is published once, in order, by the owner of the journal's follower. A decider
//! starts with the state at exactly the last published record.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use chancery_decider::core::DeciderSettings;
use chancery_decider::inbox::{InboxMismatch, InboxStart};
use chancery_decider::leader_router::LeaderRole;
use chancery_decider::troubles::{FleetPart, FleetTroubles};
use chancery_decider::wall_clock::{ClockAhead, JudgedClock, WallClock};
use chancery_decider::{
    DeciderEnd, DeciderExit, DeciderHandle, DeciderInput, DeciderStart, JournalFollower, random, start,
};
use chancery_events::id::{Lineage, Position, WriterId};
use chancery_events::record::InboxWatermark;
use chancery_journal::{Journal, JournalDelivery, JournalReader, SkipReason};
use chancery_machine::fleet::FleetState;
use chancery_projector::{FoldError, JournalFold};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::projector_thread::StateRequests;

/// Time before a server whose decider has ended takes over again, if the server is still elected.
const PAUSE: Duration = Duration::from_millis(500);
/// Time after which a decider counts as settled; the cause of an earlier end may also end the next decider.
const CALM: Duration = Duration::from_secs(10);
/// Maximum pause between takeovers.
const LONGEST: Duration = Duration::from_secs(8);

/// Source of leadership.
#[derive(Clone, Debug)]
pub enum LeadershipSource {
    /// This server always decides: no other server can write.
    Ours,
    /// This server decides while the value is true.
    Elected(watch::Receiver<bool>),
}

/// Tasks that run alongside a decider, for as long as this server has one.
pub trait LeaderTasks: Send + Sync {
    /// Opens the inbox, if there is one, at the first unanswered message: its offset is the watermark.
    /// An [`InboxMismatch`] ends the server; any other error is retried. Blocks.
    fn take_up(&self, watermark: Option<&InboxWatermark>) -> Result<Option<InboxStart>>;

    /// Starts the tasks, which end with the decider. `writer` is the decider's. `inbox` is where inbox
    /// messages must be read from, and up to where before deadlines count.
    fn begin(
        &self,
        decider: &DeciderHandle,
        writer: WriterId,
        inbox: Option<InboxStart>,
        source: Arc<dyn JournalReader>,
    ) -> Result<()>;
}

/// Leader loop of a server for one fleet.
pub struct LeaderLoop {
    /// Settings of the deciders; each decider is a writer of its own.
    pub settings: DeciderSettings,
    /// Journal of the fleet.
    pub journal: Arc<dyn Journal>,
    /// Follower of the journal.
    pub following: JournalFollower,
    /// Requests copies of the state.
    pub states: StateRequests,
    /// Maximum number of inputs that wait for a decider.
    pub queue: usize,
    /// Tasks that run alongside a decider.
    pub tasks: Option<Arc<dyn LeaderTasks>>,
    /// Publishes the location of the leader.
    pub duty: watch::Sender<LeaderRole>,
    /// Check of the wall clock.
    pub clock: Arc<WallClock>,
    /// Problems that keep parts of the fleet from working on this server.
    pub troubles: Arc<FleetTroubles>,
}

impl LeaderLoop {
    /// Follows and decides alternately, until `drain` is true or an error is final.
    pub async fn run(mut self, turns: LeadershipSource, mut drain: watch::Receiver<bool>) -> Result<()> {
        let mut pause = TakeoverDelay { over: Instant::now(), ..TakeoverDelay::default() };
        loop {
            if !self.follow(turns.clone(), pause.over, &mut drain).await? {
                return Ok(());
            }
            let took_over = Instant::now();
            let begun = tokio::select! {
                biased;
                _ = drain.wait_for(|drain| *drain) => return Ok(()),
                begun = self.take_over() => begun,
            };
            let (decider, ended) = match begun {
                Ok(begun) => begun,
                Err(error) if is_final(&turns, &error) => return Err(error),
                Err(error) => {
                    self.troubles.report(FleetPart::Decider, format!("cannot become leader: {error:#}"));
                    tracing::warn!(error = format!("{error:#}"), "takeover failed, retrying");
                    pause = TakeoverDelay::default();
                    continue;
                }
            };
            self.troubles.clear(FleetPart::Decider);
            self.duty.send_replace(LeaderRole::Leader(decider.clone()));
            let (why, following) = decide(&decider, ended, turns.clone(), &mut drain).await?;
            self.following = following;
            self.clock.unfollow();
            self.duty.send_replace(LeaderRole::Standby);
            self.troubles.clear(FleetPart::Inbox);
            self.troubles.clear(FleetPart::Events);
            match (why, &turns) {
                (DeciderEnd::Drained, _) if *drain.borrow() => return Ok(()),
                (DeciderEnd::Drained, _) => tracing::info!("stopped being leader"),
                (why @ DeciderEnd::Fenced(_), LeadershipSource::Elected(_)) => {
                    tracing::warn!(%why, "stopped being leader");
                }
                (why, _) => return Err(why.into()),
            }
            pause = pause.after(took_over);
        }
    }

    /// Publishes delivered records until this server is elected, not before `from`; false on shutdown.
    async fn follow(
        &mut self,
        mut turns: LeadershipSource,
        from: Instant,
        drain: &mut watch::Receiver<bool>,
    ) -> Result<bool> {
        loop {
            let elected = async {
                tokio::time::sleep_until(from).await;
                turns.wait(true).await
            };
            tokio::select! {
                biased;
                _ = drain.wait_for(|drain| *drain) => return Ok(false),
                turn = elected => return turn.map(|()| true).map_err(Into::into),
                delivery = self.following.deliveries.recv() => self.take(delivery)?,
            }
        }
    }

    fn take(&mut self, delivery: Option<JournalDelivery>) -> Result<()> {
        match delivery {
            Some(JournalDelivery::Records(records)) => self.following.publish(&records),
            Some(JournalDelivery::Skipped(skipped))
                if skipped.reason == SkipReason::Fleet && self.following.published == Position::ZERO =>
            {
                return Err(ComponentStopped(
                    "cannot use partition: it has records of another fleet\nhint: assign a partition that no other fleet uses",
                )
                .into());
            }
            Some(JournalDelivery::Skipped(skipped)) => {
                tracing::warn!(?skipped, "invalid record skipped");
                (self.following.skipped)();
            }
            // From a decider that has stepped down since: the outcome is read from the journal.
            Some(JournalDelivery::OutcomeUnknown(error)) => {
                tracing::warn!(%error, "append has no outcome");
            }
            Some(JournalDelivery::Stopped(error)) => {
                return Err(DeciderEnd::JournalStopped(error.to_string()).into());
            }
            None => return Err(ComponentStopped("cannot follow journal: it was closed").into()),
        }
        Ok(())
    }

    /// Starts a decider with the state at the last published record, after all delivered records.
    async fn take_over(&mut self) -> Result<(DeciderHandle, oneshot::Receiver<DeciderExit>)> {
        let mut fold = self
            .states
            .ask()
            .await
            .ok_or(ComponentStopped("cannot copy state: the projector has stopped"))?;
        loop {
            let source = self.journal.source();
            fold = tokio::task::spawn_blocking(move || -> Result<JournalFold> {
                for record in source.records(fold.position().plus(1))? {
                    fold.take(&*record?)?;
                }
                Ok(fold)
            })
            .await??;
            // Records that can be read were delivered, or are about to be.
            while self.following.published < fold.position() {
                let delivery = self.following.deliveries.recv().await;
                self.take(delivery)?;
            }
            while let Ok(delivery) = self.following.deliveries.try_recv() {
                self.take(Some(delivery))?;
            }
            if self.following.published == fold.position() {
                break;
            }
        }
        let (fleet, head, watermark) = match fold.into_state() {
            Some(state) => (state.fleet, Some(state.at), state.watermark),
            None => (FleetState::new(Lineage::from_random(random())), None, None),
        };
        let judged = if let Some(last) = head.as_ref().map(|head| head.time) {
            let clock = Arc::clone(&self.clock);
            tokio::task::spawn_blocking(move || clock.admit(last)).await??
        } else {
            JudgedClock::now()
        };
        self.clock.follow();
        let inbox = match self.tasks.clone() {
            Some(tasks) => tokio::task::spawn_blocking(move || tasks.take_up(watermark.as_ref())).await??,
            None => None,
        };
        let messages = inbox.clone();
        tracing::info!(position = %head.map_or(Position::ZERO, |head| head.position), "became leader");
        let writer = WriterId::from_random(random());
        let settings = DeciderSettings { writer, inbox, ..self.settings.clone() };
        // Lent until the decider returns it.
        let following = std::mem::replace(&mut self.following, JournalFollower::nothing());
        let (journal, clock) = (Arc::clone(&self.journal), Arc::clone(&self.clock));
        let begin =
            DeciderStart { settings, fleet, head, journal, following, queue: self.queue, clock, judged };
        // The follower has been lent: every further error is final.
        let (decider, ended) = start(begin).context(ComponentStopped("cannot start decider"))?;
        if let Some(tasks) = &self.tasks {
            let also = tasks.begin(&decider, writer, messages, self.journal.source());
            also.context(ComponentStopped("cannot start tasks of the leader"))?;
        }
        Ok((decider, ended))
    }
}

/// Time to follow before taking over again; it doubles each time a decider has ended soon.
#[derive(Clone, Copy, Debug)]
struct TakeoverDelay {
    over: Instant,
    length: Duration,
}

impl Default for TakeoverDelay {
    fn default() -> TakeoverDelay {
        TakeoverDelay { over: Instant::now() + PAUSE, length: PAUSE }
    }
}

impl TakeoverDelay {
    /// Returns the pause after a takeover whose decider, if any, has ended now.
    fn after(self, began: Instant) -> TakeoverDelay {
        let length = if began.elapsed() < CALM { (self.length * 2).min(LONGEST) } else { PAUSE };
        TakeoverDelay { over: Instant::now() + length, length }
    }
}

/// Whether a retry is useless.
fn is_final(turns: &LeadershipSource, error: &anyhow::Error) -> bool {
    matches!(turns, LeadershipSource::Ours)
        || error.is::<InboxMismatch>()
        // The server leaves the election, so that a server with a right clock decides.
        || error.is::<ClockAhead>()
        || error.is::<FoldError>()
        || error.is::<DeciderEnd>()
        || error.is::<ComponentStopped>()
}

/// Waits until the decider has ended; drains it when the server is no longer elected or stops.
async fn decide(
    decider: &DeciderHandle,
    mut ended: oneshot::Receiver<DeciderExit>,
    mut turns: LeadershipSource,
    drain: &mut watch::Receiver<bool>,
) -> Result<DeciderExit> {
    let early = tokio::select! {
        over = &mut ended => Some(over),
        _ = drain.wait_for(|drain| *drain) => None,
        // If the election has ended, the follower reports it.
        _ = turns.wait(false) => None,
    };
    let over = if let Some(over) = early {
        over
    } else {
        // The decider may have ended on its own meanwhile, and reports the reason.
        let _ = decider.send(DeciderInput::Drain).await;
        ended.await
    };
    over.map_err(|_| anyhow!("cannot continue as leader: the decider panicked"))
}

impl LeadershipSource {
    /// Waits until this server is elected, or until it no longer is.
    async fn wait(&mut self, is_ours: bool) -> Result<(), ComponentStopped> {
        match self {
            LeadershipSource::Ours if is_ours => Ok(()),
            LeadershipSource::Ours => std::future::pending().await,
            LeadershipSource::Elected(elected) => match elected.wait_for(|elected| *elected == is_ours).await
            {
                Ok(_) => Ok(()),
                Err(_) => Err(ComponentStopped("cannot become leader again: the election has ended")),
            },
        }
    }
}

/// Component whose end stops the server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct ComponentStopped(&'static str);

#[cfg(test)]
mod tests;
