//! Who decides: this server, another one, or nobody for the moment.
//!
//! Every server follows its fleet's journal and answers reads. The one whose turn it is takes over: it folds to the end
//! of what the journal has delivered and starts a decider, whose first commit begins a term. Whose turn it is, is a
//! hint; whether that commit counts is for the journal to say. A server whose decider was overtaken, or whose turn is
//! over, follows again.
//!
//! | | its turn begins | its turn is over | the decider is overtaken | the journal stops | the server stops |
//! |---|---|---|---|---|---|
//! | follows | takes over | – | – | the server ends | the server ends |
//! | decides | – | drains, then follows | follows; where nobody else can be, the server ends | the server ends | drains, ends |
//!
//! What must stay true: each record is published once, in order, by whoever holds what follows the journal; a decider
//! begins with the state at exactly the record that was published last.

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

/// Before a server whose decider has ended takes over again, if it is still its turn.
const PAUSE: Duration = Duration::from_millis(500);
/// A decider that ends sooner has not settled: what ended it may end the next one.
const CALM: Duration = Duration::from_secs(10);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(8);

/// Whose turn it can be.
#[derive(Clone, Debug)]
pub enum Turns {
    /// It is always this server's: nobody else can write.
    Ours,
    /// It is this server's while that says so.
    Told(watch::Receiver<bool>),
}

/// What goes on beside a decider, for as long as there is one here.
pub trait Beside: Send + Sync {
    /// Takes up the inbox, if there is one, where the journal has answered it up to the watermark. An
    /// [`InboxGone`] ends the server; whatever else fails is tried again. Blocks.
    fn take_up(&self, watermark: Option<&Watermark>) -> Result<Option<Inbox>>;

    /// Begins; it ends when the decider does. `writer` is the decider's. `inbox` is where letters are to be read, and up to
    /// where they must be before deadlines count.
    fn begin(
        &self,
        decider: &Decider,
        writer: Writer,
        inbox: Option<Inbox>,
        source: Arc<dyn Source>,
    ) -> Result<()>;
}

/// A server's share in deciding.
pub struct Office {
    /// How it decides; each decider is a writer of its own.
    pub settings: Settings,
    /// The journal.
    pub journal: Arc<dyn Journal>,
    /// What follows it.
    pub following: Following,
    /// The state.
    pub states: States,
    /// Inputs that wait for a decider, at most.
    pub queue: usize,
    /// What goes on beside a decider.
    pub beside: Option<Arc<dyn Beside>>,
    /// Where it tells who decides.
    pub duty: watch::Sender<Duty>,
    /// Whether the wall clock is trusted.
    pub clock: Arc<WallClock>,
    /// What keeps parts of the fleet from working on this server.
    pub troubles: Arc<FleetTroubles>,
}

impl Office {
    /// Follows and decides by turns, until `drain` says true or nothing can go on.
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

    /// Publishes what the journal tells until it is this server's turn, and not before `from`; false if it is to stop.
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
            // Of a decider that has stepped down since: what became of it is read.
            Some(Delivery::Indefinite(error)) => tracing::warn!(%error, "an append has no outcome"),
            Some(Delivery::Stopped(error)) => return Err(Ended::Stopped(error.to_string()).into()),
            None => return Err(Lost("the journal is gone").into()),
        }
        Ok(())
    }

    /// Starts a decider with the state at what was published last, after all that there is.
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
            // What can be read was delivered, or is about to be.
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
        // What follows the journal has been lent: whatever fails now is the end.
        let (decider, ended) = start(begin).context(Lost("the decider could not be started"))?;
        if let Some(beside) = &self.beside {
            let also = beside.begin(&decider, writer, letters, self.journal.source());
            also.context(Lost("what goes on beside the decider could not be started"))?;
        }
        Ok((decider, ended))
    }

    /// What follows the journal, until it is given back.
    fn lend(&mut self) -> Following {
        std::mem::replace(&mut self.following, Following::nothing())
    }
}

/// How long to follow before taking over again: longer each time a decider has ended soon.
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
    /// The pause after a takeover that began then, and whose decider has ended now, if there was one.
    fn after(self, began: Instant) -> Pause {
        let length = if began.elapsed() < CALM { (self.length * 2).min(LONGEST) } else { PAUSE };
        Pause { over: Instant::now() + length, length }
    }
}

/// Whether trying again is of no use.
fn is_final(turns: &Turns, error: &anyhow::Error) -> bool {
    matches!(turns, Turns::Ours)
        || error.is::<InboxGone>()
        // It leaves the group of deciders, and one whose clock is right decides.
        || error.is::<ClockAhead>()
        || error.is::<FoldError>()
        || error.is::<Ended>()
        || error.is::<Lost>()
}

/// Until the decider has ended; it is asked to when its turn is over or the server stops.
async fn decide(
    decider: &Decider,
    mut ended: oneshot::Receiver<Over>,
    mut turns: Turns,
    drain: &mut watch::Receiver<bool>,
) -> Result<Over> {
    let early = tokio::select! {
        over = &mut ended => Some(over),
        _ = drain.wait_for(|drain| *drain) => None,
        // Where the election has ended, following says so.
        _ = turns.end() => None,
    };
    let over = if let Some(over) = early {
        over
    } else {
        // It may have ended by itself meanwhile, and says why.
        let _ = decider.tell(Input::Drain).await;
        ended.await
    };
    over.map_err(|_| anyhow!("the decider panicked"))
}

impl Turns {
    /// Waits until it is this server's turn.
    async fn come(&mut self) -> Result<(), Lost> {
        self.wait(true).await
    }

    /// Waits until it is not this server's turn any more.
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

/// A part of the server has ended: so must the rest.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lost(&'static str);

#[cfg(test)]
mod tests;
