//! Invariant 1, as far as intents and verdicts show it. Each intent has one verdict, each key one decision;
//! producers received the verdicts of the journal, or `unchanged` without a record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chancery_events::digest::Digest;
use chancery_events::fact::{IntentAccepted, IntentRefused};
use chancery_events::id::Position;
use chancery_events::intent::IntentRequest;
use chancery_events::refusal::RefusalCode;
use chancery_events::time::Time;

use super::violation::{InvariantViolation, RuleResult, demand};
use crate::history::{InvocationHistory, InvocationOutcome, Verdict};

/// Minimum time that keys are kept, up to the maximum number of keys.
const KEPT: Duration = Duration::from_hours(7 * 24);
const KEYS: usize = 250_000;

#[derive(Clone, Debug)]
struct RecordedVerdict {
    key: Digest,
    digest: Digest,
    type_name: &'static str,
    verdict: Verdict,
}

/// Decision on a key.
#[derive(Clone, Copy, Debug)]
struct KeyDecision {
    position: Position,
    digest: Digest,
    dated: Time,
}

/// Verdicts of the journal.
#[derive(Clone, Default, Debug)]
pub(super) struct RecordedVerdicts {
    verdicts: BTreeMap<Position, RecordedVerdict>,
    keys: BTreeMap<Digest, KeyDecision>,
    /// Keys of all intents that the journal contains.
    recorded: BTreeSet<Digest>,
    /// Time of the last verdict.
    latest: Time,
}

impl RecordedVerdicts {
    pub(super) fn accepted(
        &mut self,
        request: &IntentRequest,
        fact: &IntentAccepted,
        at: Position,
        now: Time,
    ) -> RuleResult {
        check(request, fact.key, fact.digest)?;
        self.decide(request, fact.at, at, now)?;
        self.record(request, Verdict::Accepted, at);
        Ok(())
    }

    pub(super) fn refused(
        &mut self,
        request: &IntentRequest,
        fact: &IntentRefused,
        at: Position,
        now: Time,
    ) -> RuleResult {
        check(request, fact.key, fact.digest)?;
        match fact.code {
            // These verdicts are about the key or its date, not about the intent: the first verdict stays.
            RefusalCode::IdempotencyKeyReused => {
                let known = self.keys.get(&fact.key);
                let other = known.is_some_and(|known| known.digest != fact.digest);
                demand!(1, other, "a key is called used, and no other intent had it");
            }
            RefusalCode::IntentExpired | RefusalCode::TimestampInFuture => {}
            _ => self.decide(request, fact.at, at, now)?,
        }
        self.record(request, Verdict::Refused(fact.code), at);
        Ok(())
    }

    fn decide(&mut self, request: &IntentRequest, dated: Time, at: Position, now: Time) -> RuleResult {
        let (key, digest) = (request.key(), request.digest());
        self.latest = now;
        if let Some(first) = self.keys.get(&key) {
            // Beyond these bounds a key may be deleted; then only the intent's date protects it.
            let forgotten = first.dated + KEPT <= now || self.keys.len() > KEYS;
            let same = request.time.is_some_and(|time| time <= first.dated);
            demand!(
                1,
                forgotten && !same,
                "intent {} is decided again; its verdict is at {}",
                request.id,
                first.position
            );
        }
        self.keys.insert(key, KeyDecision { position: at, digest, dated });
        Ok(())
    }

    fn record(&mut self, request: &IntentRequest, verdict: Verdict, at: Position) {
        let (key, digest) = (request.key(), request.digest());
        self.recorded.insert(key);
        let type_name = request.intent.type_name();
        self.verdicts.insert(at, RecordedVerdict { key, digest, type_name, verdict });
    }

    /// Checks that no intent with this key was decided up to the position of a verdict that is not recorded: its
    /// verdict would be the answer.
    fn unrecorded(&self, what: &str, key: Digest, position: Position) -> RuleResult {
        let Some(first) = self.keys.get(&key).filter(|first| first.position <= position) else {
            return Ok(());
        };
        let forgotten = first.dated + KEPT <= self.latest || self.keys.len() > KEYS;
        demand!(
            1,
            forgotten,
            "{what}, is answered as new at {position}; its verdict is at {}",
            first.position
        );
        Ok(())
    }

    /// Checks that received verdicts are in the journal.
    pub(super) fn history(&self, history: &InvocationHistory) -> RuleResult {
        // A key that was sent several times may be recorded by any attempt that did not surely fail.
        let open: BTreeSet<Digest> = history
            .invocations()
            .iter()
            .filter(|op| op.ending != InvocationOutcome::Fail)
            .map(|op| op.key)
            .collect();
        for (number, op) in history.invocations().iter().enumerate() {
            let what = format!("invocation {number}, {}", op.type_name);
            match op.ending {
                InvocationOutcome::Ok { position, verdict: Verdict::Unchanged } => {
                    self.unrecorded(&what, op.key, position)?;
                }
                InvocationOutcome::Ok { position, verdict } => {
                    let lost = || {
                        InvariantViolation::new(
                            1,
                            format!("{what}, received a verdict that is not in the journal"),
                        )
                        .at(position)
                    };
                    let found = self.verdicts.get(&position).ok_or_else(lost)?;
                    let same =
                        found.key == op.key && found.digest == op.digest && found.type_name == op.type_name;
                    demand!(
                        1,
                        same,
                        "{what}, received {position} as its verdict's, which is that of another intent"
                    );
                    demand!(
                        1,
                        found.verdict == verdict,
                        "{what}, received {verdict:?}, and {position} is {:?}",
                        found.verdict
                    );
                }
                InvocationOutcome::Fail => {
                    let recorded = !open.contains(&op.key) && self.recorded.contains(&op.key);
                    demand!(1, !recorded, "{what}, received that nothing was recorded, and it was");
                }
                // The journal may contain it or not; that it occurs at most once is checked as it is read.
                InvocationOutcome::Unknown => {}
            }
        }
        Ok(())
    }
}

fn check(request: &IntentRequest, key: Digest, digest: Digest) -> RuleResult {
    demand!(1, key == request.key(), "the verdict is of another key than the intent's");
    demand!(1, digest == request.digest(), "the verdict is of another body than the intent's");
    Ok(())
}
