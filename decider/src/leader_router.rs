//! Destination of intents: the decider of this server, of another one, or none for the moment.

use std::sync::Arc;

use chancery_events::time::Time;
use tokio::sync::watch;

use super::handle::DeciderHandle;
use super::troubles::FleetTroubles;
use super::wall_clock::WallClock;

/// Role of this server.
#[derive(Clone, Debug)]
pub enum LeaderRole {
    /// Leader, with its decider.
    Leader(DeciderHandle),
    /// Standby without decider.
    Standby,
    /// Server that only shows a journal, and never decides.
    ReadOnly,
}

/// Destination of intents.
#[derive(Debug)]
pub enum LeaderLocation {
    /// Decider of this server.
    Local(DeciderHandle),
    /// Address of another server's decider.
    Remote(Arc<str>),
    /// No known decider.
    Unknown,
}

/// Finds the destination of intents.
#[derive(Clone, Debug)]
pub struct LeaderRouter {
    /// Role of this server.
    pub leader_role: watch::Receiver<LeaderRole>,
    /// Address of the last term's decider.
    pub decider: watch::Receiver<Option<Arc<str>>>,
    /// Address of this server.
    pub own: Arc<str>,
    /// Trust in the wall clock of this server.
    pub clock: Arc<WallClock>,
    /// Troubles of parts of the fleet on this server.
    pub troubles: Arc<FleetTroubles>,
}

impl LeaderRouter {
    /// Returns a router whose decider is permanently local.
    pub fn with(decider: DeciderHandle) -> LeaderRouter {
        LeaderRouter::always(LeaderRole::Leader(decider))
    }

    /// Returns a router that finds no decider, because the server only shows a journal.
    pub fn read_only() -> LeaderRouter {
        LeaderRouter::always(LeaderRole::ReadOnly)
    }

    fn always(role: LeaderRole) -> LeaderRouter {
        let (_, role) = watch::channel(role);
        let (_, there) = watch::channel(None);
        LeaderRouter {
            leader_role: role,
            decider: there,
            own: "".into(),
            clock: Arc::new(WallClock::trusted()),
            troubles: Arc::default(),
        }
    }

    /// Returns the current destination.
    pub fn find(&self) -> LeaderLocation {
        if let LeaderRole::Leader(decider) = &*self.leader_role.borrow() {
            return LeaderLocation::Local(decider.clone());
        }
        let there = self.decider.borrow().clone();
        // The last decider of this address has stepped down, or died.
        there.filter(|there| *there != self.own).map_or(LeaderLocation::Unknown, LeaderLocation::Remote)
    }

    /// Whether this server only shows a journal.
    pub fn is_read_only(&self) -> bool {
        matches!(&*self.leader_role.borrow(), LeaderRole::ReadOnly)
    }

    /// Waits until this server is the leader; permanently if it never is.
    pub async fn decides(&self) {
        self.has_role(|role| matches!(role, LeaderRole::Leader(_))).await;
    }

    /// Waits until this server is a standby; permanently if it never is.
    pub async fn stands_by(&self) {
        self.has_role(|role| matches!(role, LeaderRole::Standby)).await;
    }

    async fn has_role(&self, is_wanted: impl FnMut(&LeaderRole) -> bool) {
        let mut role = self.leader_role.clone();
        if role.wait_for(is_wanted).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns why the wall clock is not trusted, if so. A standby compares it with `last`, the time of the
    /// journal's last record.
    pub async fn clock_trouble(&self, last: Option<Time>) -> Option<String> {
        if self.here().is_some() {
            return self.clock.trouble();
        }
        let (clock, last) = (Arc::clone(&self.clock), last?);
        let admitted = tokio::task::spawn_blocking(move || clock.try_admit(last)).await;
        admitted.ok().and_then(Result::err).map(|error| error.to_string())
    }

    /// Returns the decider, if it is here.
    pub fn here(&self) -> Option<DeciderHandle> {
        match &*self.leader_role.borrow() {
            LeaderRole::Leader(decider) => Some(decider.clone()),
            LeaderRole::Standby | LeaderRole::ReadOnly => None,
        }
    }
}
