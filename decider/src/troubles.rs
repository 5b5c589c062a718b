//! What keeps parts of a fleet from working on this server.
//!
//! A part (its journal, its inbox, its events topic, its election) reports a trouble when the part stands still and takes the report
//! back when it works again. `/readyz` and the metric `chancery_trouble` show all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A part of a fleet that may stand still while the server runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FleetPart {
    /// The journal.
    Journal,
    /// Taking over as decider.
    Decider,
    /// The inbox topic.
    Inbox,
    /// The events topic.
    Events,
    /// The group that gives the turn to decide to one server.
    Election,
}

impl FleetPart {
    /// Every part.
    pub const ALL: [FleetPart; 5] =
        [FleetPart::Journal, FleetPart::Decider, FleetPart::Inbox, FleetPart::Events, FleetPart::Election];

    /// As metrics and problems name it.
    pub fn name(self) -> &'static str {
        match self {
            FleetPart::Journal => "journal",
            FleetPart::Decider => "decider",
            FleetPart::Inbox => "inbox",
            FleetPart::Events => "events",
            FleetPart::Election => "election",
        }
    }
}

impl fmt::Display for FleetPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The troubles of one fleet on this server, by part.
#[derive(Debug, Default)]
pub struct FleetTroubles(Mutex<BTreeMap<FleetPart, String>>);

impl FleetTroubles {
    /// The part stands still, for that reason. Written to the log once, until the reason is another.
    pub fn report(&self, part: FleetPart, trouble: String) {
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.get(&part) != Some(&trouble) {
            tracing::error!(%part, "{trouble}");
            troubles.insert(part, trouble);
        }
    }

    /// The part works, or is not this server's to run any more.
    pub fn clear(&self, part: FleetPart) {
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.remove(&part).is_some() {
            tracing::info!(%part, "works again");
        }
    }

    /// The parts that stand still, each with its reason.
    pub fn all(&self) -> Vec<(FleetPart, String)> {
        let troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.iter().map(|(part, trouble)| (*part, trouble.clone())).collect()
    }
}
