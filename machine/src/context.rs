//! What a decision needs and the state does not hold: time, and where its facts will stand.

use std::collections::BTreeSet;
use std::time::Duration;

use chancery_events::fact::Fact;
use chancery_events::id::{Id, Kind, Lineage, Position};
use chancery_events::name::Actor;
use chancery_events::time::Time;

use crate::fleet::DeploymentKey;

/// Comes into every decision; nothing else does.
#[derive(Clone, Debug)]
pub struct Context {
    /// The commit's time.
    pub now: Time,
    /// The wall clock, by which senders date intents, if it is followed and ahead of the commit's time; else that.
    pub wall: Time,
    /// The position that the first fact of the decision will have.
    pub next: Position,
    /// The journal's identity.
    pub lineage: Lineage,
    /// Who asks, if somebody does.
    pub actor: Option<Actor>,
    /// Replicas that one deployment may ask for, at most: what follows from one intent stays bounded.
    pub replicas: u32,
}

/// How failed commands are tried again: `initial`, then `factor` times as long each time, up to `max`, with up to a
/// tenth more that differs between incarnations; given up after `attempts`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Before the second attempt.
    pub initial: Duration,
    /// Times as long each time.
    pub factor: u32,
    /// Never longer.
    pub max: Duration,
    /// Attempts in all.
    pub attempts: u32,
}

/// The backoff of commands.
pub const BACKOFF: Backoff =
    Backoff { initial: Duration::from_secs(1), factor: 2, max: Duration::from_mins(1), attempts: 5 };

impl Backoff {
    /// How long to wait after the failed `attempt` (from 1); `None` when it was the last. `salt` draws the jitter.
    pub fn wait(self, attempt: u32, salt: u64) -> Option<Duration> {
        if attempt >= self.attempts {
            return None;
        }
        let factor = self.factor.saturating_pow(attempt.saturating_sub(1));
        let wait = self.initial.saturating_mul(factor).min(self.max);
        // Knuth's multiplicative hash: spreads neighbours, and is the same on every build.
        let mixed = (salt ^ u64::from(attempt)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        Some(wait + wait / 10 * u32::try_from(mixed).unwrap_or(0) / 1024)
    }
}

/// Facts in the making: knows where each will stand, so that ids can be made.
#[derive(Debug)]
pub(crate) struct Draft {
    now: Time,
    lineage: Lineage,
    next: Position,
    facts: Vec<Fact>,
    failed: BTreeSet<DeploymentKey>,
}

impl Draft {
    pub(crate) fn new(ctx: &Context) -> Draft {
        Draft {
            now: ctx.now,
            lineage: ctx.lineage,
            next: ctx.next,
            facts: Vec::new(),
            failed: BTreeSet::new(),
        }
    }

    /// The commit's time.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// The position of the next fact.
    pub(crate) fn position(&self) -> Position {
        self.next
    }

    /// The id that the next fact issues.
    pub(crate) fn id<K: Kind>(&self) -> Id<K> {
        Id::issue(self.lineage, self.next)
    }

    pub(crate) fn push(&mut self, fact: impl Into<Fact>) {
        self.facts.push(fact.into());
        self.next = self.next.plus(1);
    }

    /// Whether nothing of the draft has failed the deployment yet: it fails once, whatever comes to nothing together.
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
    fn a_command_waits_longer_each_time_and_is_given_up() {
        let waits: Vec<_> = (1..=5).map(|attempt| BACKOFF.wait(attempt, 7)).collect();
        for (attempt, least) in [1, 2, 4, 8].into_iter().enumerate() {
            let wait = waits[attempt].expect("tried again");
            let least = Duration::from_secs(least);
            assert!(wait >= least && wait <= least + least / 10, "attempt {}: {wait:?}", attempt + 1);
        }
        assert_eq!(waits[4], None);
    }
}
