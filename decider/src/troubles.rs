//! Troubles, which prevent parts of a fleet from working on this server.
//!
//! A part (the journal, inbox, events topic or election) reports a trouble when it stops working, and clears
//! it when it works again. `/readyz` and the metric `chancery_trouble` show all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Part of a fleet that may stop working while the server runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FleetPart {
    /// Journal of the fleet.
    Journal,
    /// Takeover as leader.
    Decider,
    /// Inbox topic.
    Inbox,
    /// Events topic.
    Events,
    /// Consumer group that elects one server as leader.
    Election,
}

impl FleetPart {
    /// All parts.
    pub const ALL: [FleetPart; 5] =
        [FleetPart::Journal, FleetPart::Decider, FleetPart::Inbox, FleetPart::Events, FleetPart::Election];

    /// Returns the name in metrics and problems.
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

/// Troubles of one fleet on this server, by part.
#[derive(Debug, Default)]
pub struct FleetTroubles {
    current: Mutex<BTreeMap<FleetPart, String>>,
    /// Number of reports of each part, in the order of [`FleetPart::ALL`].
    reports: [AtomicU64; FleetPart::ALL.len()],
}

impl FleetTroubles {
    /// Reports why the part does not work. Logged once, until the reason changes.
    pub fn report(&self, part: FleetPart, trouble: String) {
        let mut troubles = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.get(&part) != Some(&trouble) {
            let (reason, advice) = log_fields(&trouble);
            tracing::error!(%part, advice, "{reason}");
            troubles.insert(part, trouble);
            self.reports[part as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how often a part was reported, counting each reason until it changes once.
    pub fn reports(&self, part: FleetPart) -> u64 {
        self.reports[part as usize].load(Ordering::Relaxed)
    }

    /// Clears the trouble of a part that works, or no longer runs on this server.
    pub fn clear(&self, part: FleetPart) {
        let mut troubles = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.remove(&part).is_some() {
            tracing::info!(%part, "part works again");
        }
    }

    /// Returns the parts that do not work, each with its reason.
    pub fn all(&self) -> Vec<(FleetPart, String)> {
        let troubles = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.iter().map(|(part, trouble)| (*part, trouble.clone())).collect()
    }
}

/// Splits a trouble into its reason and its hints, which follow on lines of their own: an event of the log has
/// one line.
fn log_fields(trouble: &str) -> (&str, Option<String>) {
    match trouble.split_once('\n') {
        Some((reason, hints)) => (reason, Some(hints.replace('\n', "; "))),
        None => (trouble, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_of_a_trouble_are_logged_in_a_field() {
        assert_eq!(log_fields("the disk is full"), ("the disk is full", None));
        let trouble =
            "cannot continue inbox at offset 7: damaged\nhint: it is lost\ntry: chancery inbox skip 7";
        let advice = "hint: it is lost; try: chancery inbox skip 7".to_owned();
        assert_eq!(log_fields(trouble), ("cannot continue inbox at offset 7: damaged", Some(advice)));
    }
}
