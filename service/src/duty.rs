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
use chancery_decider::core::Settings;
use chancery_decider::desk::Duty;
use chancery_decider::inbox::{Inbox, InboxGone};
use chancery_decider::troubles::{FleetPart, FleetTroubles};
use chancery_decider::wall_clock::{ClockAhead, JudgedClock, WallClock};
use chancery_decider::{Decider, Ended, Following, Input, Over, Start, random, start};
use chancery_events::id::{Lineage, Position, Writer};
use chancery_events::record::Watermark;
use chancery_journal::{Delivery, Journal, SkipReason, Source};
use chancery_machine::fleet::Fleet;
use chancery_projector::{Fold, FoldError};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::rows::States;

/// Time before a server whose decider has ended takes over again, if the server is still elected.
const PAUSE: Duration = Duration::from_millis(500);
/// Minimum life of a settled decider; the cause of an earlier end may also end the next decider.
const CALM: Duration = Duration::from_secs(10);
/// Maximum pause between takeovers.
const LONGEST: Duration = Duration::from_secs(8);

/// Source of leadership.
#[derive(Clone, Debug)]
pub enum Turns {
    /// This server always decides: no other server can write.
    Ours,
    /// This server decides while the value is true.
    Told(watch::Receiver<bool>),
}

/// Tasks that run alongside a decider, for as long as this server has one.
pub trait Beside: Send + Sync {
    /// Opens the inbox, if there is one, from the offset that the journal has answered up to the watermark.
    /// An [`InboxGone`] ends the server; any other error is retried. Blocks.
    fn take_up(&self, watermark: Option<&Watermark>) -> Result<Option<Inbox>>;

    /// Starts the tasks, which end with the decider. `writer` is the decider's. `inbox` is where inbox
    /// messages must be read from, and up to where before deadlines count.
    fn begin(
        &self,
        decider: &Decider,
        writer: Writer,
        inbox: Option<Inbox>,
        source: Arc<dyn Source>,
    ) -> Result<()>;
}

/// Leader loop of a server for one fleet.
pub struct Office {
    /// Settings of the deciders; each decider is a writer of its own.
    pub settings: Settings,
    /// Journal of the fleet.
    pub journal: Arc<dyn Journal>,
    /// Follower of the journal.
    pub following: Following,
    /// Requests copies of the state.
    pub states: States,
    /// Maximum number of inputs that wait for a decider.
    pub queue: usize,
    /// Tasks that run alongside a decider.
    pub beside: Option<Arc<dyn Beside>>,
    /// Publishes the location of the leader.
    pub duty: watch::Sender<Duty>,
    /// Check of the wall clock.
    pub clock: Arc<WallClock>,
    /// Problems that keep parts of the fleet from working on this server.
    pub troubles: Arc<FleetTroubles>,
}

impl Office {
    /// Follows and decides alternately, until `drain` is true or an error is final.
    pub async fn run(mut self, turns: Turns, mut drain: watch::Receiver<bool>) -> Result<()> {
        let mut pause = Pause { over: Instant::now(), ..Pause::default() };
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
                    self.troubles
                        .report(FleetPart::Decider, format!("this server cannot take over: {error:#}"));
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "this server could not take over; it tries again"
                    );
                    pause = Pause::default();
                    continue;
                }
            };
            self.troubles.clear(FleetPart::Decider);
            self.duty.send_replace(Duty::Decides(decider.clone()));
            let (why, following) = decide(&decider, ended, turns.clone(), &mut drain).await?;
            self.following = following;
            self.clock.unfollow();
            self.duty.send_replace(Duty::StandsBy);
            self.troubles.clear(FleetPart::Inbox);
            self.troubles.clear(FleetPart::Events);
            match (why, &turns) {
                (Ended::Drained, _) if *drain.borrow() => return Ok(()),
                (Ended::Drained, _) => tracing::info!("this server stands by"),
                (why @ Ended::Overtaken(_), Turns::Told(_)) => tracing::warn!(%why, "this server stands by"),
                (why, _) => return Err(why.into()),
            }
            pause = pause.after(took_over);
        }
    }

    /// Publishes delivered records until this server is elected, not before `from`; false on shutdown.
    async fn follow(
        &mut self,
        mut turns: Turns,
        from: Instant,
        drain: &mut watch::Receiver<bool>,
    ) -> Result<bool> {
        loop {
            let come = async {
                tokio::time::sleep_until(from).await;
                turns.come().await
            };
            tokio::select! {
                biased;
                _ = drain.wait_for(|drain| *drain) => return Ok(false),
                turn = come => return turn.map(|()| true).map_err(Into::into),
                delivery = self.following.deliveries.recv() => self.take(delivery)?,
            }
        }
    }

    fn take(&mut self, delivery: Option<Delivery>) -> Result<()> {
        match delivery {
            Some(Delivery::Records(records)) => self.following.publish(&records),
            Some(Delivery::Skipped(skipped))
                if skipped.reason == SkipReason::Fleet && self.following.published == Position::ZERO =>
            {
                return Err(Lost(
                    "another fleet has begun in this one's partition: name one that is its own",
                )
                .into());
            }
            Some(Delivery::Skipped(skipped)) => {
                tracing::warn!(?skipped, "a record in the journal does not count");
                (self.following.skipped)();
            }
            // From a decider that has stepped down since: the outcome is read from the journal.
            Some(Delivery::Indefinite(error)) => tracing::warn!(%error, "an append has no outcome"),
            Some(Delivery::Stopped(error)) => return Err(Ended::Stopped(error.to_string()).into()),
            None => return Err(Lost("the journal is gone").into()),
        }
        Ok(())
    }

    /// Starts a decider with the state at the last published record, after all delivered records.
    async fn take_over(&mut self) -> Result<(Decider, oneshot::Receiver<Over>)> {
        let mut fold = self.states.ask().await.ok_or(Lost("the projector has stopped"))?;
        loop {
            let source = self.journal.source();
            fold = tokio::task::spawn_blocking(move || -> Result<Fold> {
                for record in source.records(fold.position().plus(1))? {
                    fold.take(&*record?)?;
                }
                Ok(fold)
            })
            .await?
            .context("fold the journal")?;
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
            None => (Fleet::new(Lineage::from_random(random())), None, None),
        };
        let judged = if let Some(last) = head.as_ref().map(|head| head.time) {
            let clock = Arc::clone(&self.clock);
            tokio::task::spawn_blocking(move || clock.admit(last)).await??
        } else {
            JudgedClock::now()
        };
        self.clock.follow();
        let inbox = match self.beside.clone() {
            Some(beside) => tokio::task::spawn_blocking(move || beside.take_up(watermark.as_ref())).await??,
            None => None,
        };
        let letters = inbox.clone();
        tracing::info!(position = %head.map_or(Position::ZERO, |head| head.position), "this server decides");
        let writer = Writer::from_random(random());
        let settings = Settings { writer, inbox, ..self.settings.clone() };
        let following = self.lend();
        let (journal, clock) = (Arc::clone(&self.journal), Arc::clone(&self.clock));
        let begin = Start { settings, fleet, head, journal, following, queue: self.queue, clock, judged };
        // The follower has been lent: any error from here on is final.
        let (decider, ended) = start(begin).context(Lost("the decider could not be started"))?;
        if let Some(beside) = &self.beside {
            let also = beside.begin(&decider, writer, letters, self.journal.source());
            also.context(Lost("what goes on beside the decider could not be started"))?;
        }
        Ok((decider, ended))
    }

    /// Lends the follower of the journal until it is returned.
    fn lend(&mut self) -> Following {
        std::mem::replace(&mut self.following, Following::nothing())
    }
}

/// Time to follow before taking over again; it doubles each time a decider has ended soon.
#[derive(Clone, Copy, Debug)]
struct Pause {
    over: Instant,
    length: Duration,
}

impl Default for Pause {
    fn default() -> Pause {
        Pause { over: Instant::now() + PAUSE, length: PAUSE }
    }
}

impl Pause {
    /// Returns the pause after a takeover at `began` whose decider, if any, has ended now.
    fn after(self, began: Instant) -> Pause {
        let length = if began.elapsed() < CALM { (self.length * 2).min(LONGEST) } else { PAUSE };
        Pause { over: Instant::now() + length, length }
    }
}

/// Whether a retry is useless.
fn is_final(turns: &Turns, error: &anyhow::Error) -> bool {
    matches!(turns, Turns::Ours)
        || error.is::<InboxGone>()
        // The server leaves the election, so that a server with a right clock decides.
        || error.is::<ClockAhead>()
        || error.is::<FoldError>()
        || error.is::<Ended>()
        || error.is::<Lost>()
}

/// Waits until the decider has ended; drains it when the server is no longer elected or stops.
async fn decide(
    decider: &Decider,
    mut ended: oneshot::Receiver<Over>,
    mut turns: Turns,
    drain: &mut watch::Receiver<bool>,
) -> Result<Over> {
    let early = tokio::select! {
        over = &mut ended => Some(over),
        _ = drain.wait_for(|drain| *drain) => None,
        // If the election has ended, the follower reports it.
        _ = turns.end() => None,
    };
    let over = if let Some(over) = early {
        over
    } else {
        // The decider may have ended on its own meanwhile, and reports the reason.
        let _ = decider.tell(Input::Drain).await;
        ended.await
    };
    over.map_err(|_| anyhow!("the decider panicked"))
}

impl Turns {
    /// Waits until this server is elected.
    async fn come(&mut self) -> Result<(), Lost> {
        self.wait(true).await
    }

    /// Waits until this server is no longer elected.
    async fn end(&mut self) -> Result<(), Lost> {
        self.wait(false).await
    }

    async fn wait(&mut self, is_ours: bool) -> Result<(), Lost> {
        match self {
            Turns::Ours if is_ours => Ok(()),
            Turns::Ours => std::future::pending().await,
            Turns::Told(told) => match told.wait_for(|told| *told == is_ours).await {
                Ok(_) => Ok(()),
                Err(_) => Err(Lost("the election has ended: this server would never decide again")),
            },
        }
    }
}

/// Component whose end stops the server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lost(&'static str);

#[cfg(test)]
mod tests;
