//! Invariant 15: no event has a higher level than the fleet had before it.

use chancery_events::event::Event;
use chancery_events::fact::FleetLevelRaised;
use chancery_events::level::FleetLevel;

use super::violation::{RuleResult, demand};

/// Level of the fleet.
#[derive(Clone, Default, Debug)]
pub(super) struct CheckedLevel(FleetLevel);

impl CheckedLevel {
    pub(super) fn permits(&self, event: &Event) -> RuleResult {
        let (level, fleet) = (event.level(), self.0);
        demand!(15, level <= fleet, "the event has level {level}, and the fleet has level {fleet}");
        Ok(())
    }

    pub(super) fn raised(&mut self, fact: &FleetLevelRaised) -> RuleResult {
        let FleetLevelRaised { from, to } = fact;
        demand!(15, *from == self.0, "the fleet has level {}, and is raised from {from}", self.0);
        demand!(15, to > from, "the fleet is raised from level {from} to {to}");
        self.0 = *to;
        Ok(())
    }
}
