//! Input of a decision that the state does not contain: the time, and the positions of its facts.

use std::collections::BTreeSet;
use std::time::Duration;

use chancery_events::fact::Fact;
use chancery_events::id::{EntityId, IdKind, Lineage, Position};
use chancery_events::level::FleetLevel;
use chancery_events::name::Actor;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::time::Time;

use crate::fleet::DeploymentKey;

/// Input of every decision besides the state: nothing else affects it.
#[derive(Clone, Debug)]
pub struct DecisionContext {
    /// Time of the commit.
    pub now: Time,
    /// Wall clock, by which senders date intents, if followed and ahead of the commit's time; else that time.
    pub wall: Time,
    /// Position of the first fact of the decision.
    pub next: Position,
    /// Lineage of the journal.
    pub lineage: Lineage,
    /// Actor of the request, if any.
    pub actor: Option<Actor>,
    /// Maximum number of replicas that a deployment may request: bounds what follows from one intent.
    pub replicas: u32,
    /// Levels that the fleet can be raised to.
    pub levels: LevelLimits,
}

/// Limits of the level of a fleet, by its servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LevelLimits {
    /// Highest level that the build of the leader knows.
    pub highest: FleetLevel,
    /// Whether other servers can take over the fleet.
    pub has_standbys: bool,
}

impl LevelLimits {
    /// Limits of a server of this build without standbys.
    pub const ALONE: LevelLimits = LevelLimits { highest: FleetLevel::HIGHEST, has_standbys: false };
}

impl DecisionContext {
    /// Returns the actor of the request, or the refusal for `what`, which needs one.
    pub(crate) fn require_actor(&self, what: &str) -> Result<Actor, Refusal> {
        self.actor.clone().ok_or_else(|| Refusal::new(RefusalCode::Invalid, format!("{what} needs an actor")))
    }
}

/// Delay before the second attempt of a command. Each later delay is twice as long.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay before an attempt of a command, before jitter.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_mins(1);
/// Maximum number of attempts of a command, including the first.
pub(crate) const ATTEMPTS: u32 = 5;

/// Returns the delay after the failed `attempt` (from 1) of a command, `None` if it was the last. `salt` draws
/// the jitter of up to a tenth, which differs between incarnations.
pub(crate) fn retry_delay(attempt: u32, salt: u64) -> Option<Duration> {
    if attempt >= ATTEMPTS {
        return None;
    }
    let factor = 2_u32.saturating_pow(attempt.saturating_sub(1));
    let wait = FIRST_DELAY.saturating_mul(factor).min(LONGEST_DELAY);
    // Knuth's multiplicative hash: spreads neighbours, and is the same on every build.
    let mixed = (salt ^ u64::from(attempt)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    Some(wait + wait / 10 * u32::try_from(mixed).unwrap_or(0) / 1024)
}

/// Draft of facts, with the positions that ids derive from.
#[derive(Debug)]
pub(crate) struct FactDraft {
    now: Time,
    lineage: Lineage,
    next: Position,
    facts: Vec<Fact>,
    failed: BTreeSet<DeploymentKey>,
}

impl FactDraft {
    pub(crate) fn new(ctx: &DecisionContext) -> FactDraft {
        FactDraft {
            now: ctx.now,
            lineage: ctx.lineage,
            next: ctx.next,
            facts: Vec::new(),
            failed: BTreeSet::new(),
        }
    }

    /// Time of the commit.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Position of the next fact.
    pub(crate) fn position(&self) -> Position {
        self.next
    }

    /// Id that the next fact issues.
    pub(crate) fn id<K: IdKind>(&self) -> EntityId<K> {
        EntityId::issue(self.lineage, self.next)
    }

    pub(crate) fn push(&mut self, fact: impl Into<Fact>) {
        self.facts.push(fact.into());
        self.next = self.next.plus(1);
    }

    /// Whether the draft fails the deployment for the first time: it fails once, however much fails together.
    pub(crate) fn first_to_fail(&mut self, deployment: &DeploymentKey) -> bool {
        self.failed.insert(deployment.clone())
    }

    pub(crate) fn done(self) -> Vec<Fact> {
        self.facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_retried_with_growing_backoff_and_then_abandoned() {
        let waits: Vec<_> = (1..=5).map(|attempt| retry_delay(attempt, 7)).collect();
        for (attempt, least) in [1, 2, 4, 8].into_iter().enumerate() {
            let wait = waits[attempt].expect("tried again");
            let least = Duration::from_secs(least);
            assert!(wait >= least && wait <= least + least / 10, "attempt {}: {wait:?}", attempt + 1);
        }
        assert_eq!(waits[4], None);
    }
}
