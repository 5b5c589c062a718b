//! Where intents go: to the decider of this server, to that of another one, or to nobody for the moment.

use std::sync::Arc;

use chancery_events::time::Time;
use tokio::sync::watch;

use super::handle::Decider;
use super::troubles::FleetTroubles;
use super::wall_clock::WallClock;

/// What this server does.
#[derive(Clone, Debug)]
pub enum Duty {
    /// It decides.
    Decides(Decider),
    /// It follows.
    StandsBy,
}

/// Where intents go.
#[derive(Debug)]
pub enum Where {
    /// This server decides.
    Here(Decider),
    /// Another one does, and is reached there.
    There(Arc<str>),
    /// Nobody, as far as is known.
    Nobody,
}

/// Knows where intents go.
#[derive(Clone, Debug)]
pub struct Desk {
    /// What this server does.
    pub duty: watch::Receiver<Duty>,
    /// Where the decider of the last term is reached.
    pub decider: watch::Receiver<Option<Arc<str>>>,
    /// Where this server is.
    pub own: Arc<str>,
    /// Whether the wall clock is trusted.
    pub clock: Arc<WallClock>,
    /// What keeps parts of the fleet from working on this server.
    pub troubles: Arc<FleetTroubles>,
}

impl Desk {
    /// Where a decider is here for good.
    pub fn with(decider: Decider) -> Desk {
        let (_, duty) = watch::channel(Duty::Decides(decider));
        let (_, there) = watch::channel(None);
        Desk {
            duty,
            decider: there,
            own: "".into(),
            clock: Arc::new(WallClock::trusted()),
            troubles: Arc::default(),
        }
    }

    /// Where they go now.
    pub fn find(&self) -> Where {
        if let Duty::Decides(decider) = &*self.duty.borrow() {
            return Where::Here(decider.clone());
        }
        let there = self.decider.borrow().clone();
        // The last decider of this address has stepped down, or died.
        there.filter(|there| *there != self.own).map_or(Where::Nobody, Where::There)
    }

    /// Waits until this server decides; for ever if it never will.
    pub async fn decides(&self) {
        let mut duty = self.duty.clone();
        if duty.wait_for(|duty| matches!(duty, Duty::Decides(_))).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Why the wall clock is not trusted, if that is so: of a server that follows, beside the last record of the journal
    /// as it is now.
    pub async fn clock_trouble(&self, last: Option<Time>) -> Option<String> {
        if self.here().is_some() {
            return self.clock.trouble();
        }
        let (clock, last) = (Arc::clone(&self.clock), last?);
        let admitted = tokio::task::spawn_blocking(move || clock.try_admit(last)).await;
        admitted.ok().and_then(Result::err).map(|error| error.to_string())
    }

    /// The decider, if it is here.
    pub fn here(&self) -> Option<Decider> {
        match &*self.duty.borrow() {
            Duty::Decides(decider) => Some(decider.clone()),
            Duty::StandsBy => None,
        }
    }
}
