//! Policies: rules about approvals, in addition to those of plans.
//!
//! | rule | effect on the operations that it covers |
//! |---|---|
//! | `approve` | approves them, oldest first, while a window is open (always, without windows) and fewer that it approved are open than its maximum |
//! | `four_eyes` | refuses the approval of a person who requested the operation, or its deployment |
//!
//! The fact of an approval by a rule names the rule: `policy/NAME`. A plan's own rule takes precedence.
//!
//! A change after which one person can do what required two before ([`weakened`]) waits as an approval
//! request ([`crate::request`]); any other change applies immediately.

use std::collections::BTreeSet;

use chancery_events::fact::{ApprovalActor, PolicyApplied, PolicyDeleted};
use chancery_events::id::Position;
use chancery_events::intent::{PolicyApply, PolicyDelete};
use chancery_events::name::{PlanName, PolicyName};
use chancery_events::spec::{ApprovalWindow, OperationKind, PolicyKind, PolicyRule, PolicySpec, Weekday};
use chancery_events::subject::Subject;
use chancery_events::time::Time;

use crate::advance::DueStep;
use crate::context::{DecisionContext, FactDraft};
use crate::fleet::{FleetState, FoldResult};
pub(crate) use crate::index::is_about_work;
use crate::meta::{EntityMeta, FactPosition};
use crate::operation::{self, StartTrigger};
use crate::refuse::{BodyErrors, DecidedFacts};
use crate::state::{Operation, OperationState, Policy};

/// Maximum number of windows of a policy.
const WINDOWS: usize = 100;
const MINUTE: i64 = 60_000_000;
const DAY: i64 = 24 * 60 * MINUTE;
const WEEK: i64 = 7 * DAY;

/// Whether the policy covers such work of the plan in some domain.
pub(crate) fn is_about_plan(spec: &PolicySpec, kind: PolicyKind, plan: &PlanName) -> bool {
    let anywhere = spec.domains.is_empty();
    anywhere && is_about_work(spec, kind, Some(plan), None)
        || spec.domains.iter().any(|domain| is_about_work(spec, kind, Some(plan), Some(domain)))
}

/// Four-eyes policies that are weakened if the policy is changed, or, without a `new` one, deleted. Empty if
/// all work that required two people still does. May name a policy that is not weakened: combinations of
/// policies are not considered.
pub(crate) fn weakened(
    fleet: &FleetState,
    name: &PolicyName,
    new: Option<&PolicySpec>,
) -> BTreeSet<PolicyName> {
    let four_eyes = &fleet.index().policies.four_eyes;
    let old = fleet.policies().get(name).map(|policy| &*policy.spec);
    let mut found = BTreeSet::new();
    if let Some(old) = old.filter(|old| old.rule == PolicyRule::FourEyes {}) {
        let by_itself = new.is_some_and(|new| new.rule == PolicyRule::FourEyes {} && covers(new, old));
        let others = || four_eyes.iter().filter(|(other, _)| *other != name);
        if !by_itself && !others().any(|(_, other)| covers(other, old)) {
            found.insert(name.clone());
        }
    }
    if let Some(new) = new.filter(|new| matches!(new.rule, PolicyRule::Approve { .. })) {
        let approved_already = old.is_some_and(|old| covers(old, new) && approves_no_more(new, old));
        if !approved_already {
            let passed = four_eyes.iter().filter(|(_, spec)| meets(spec, new));
            found.extend(passed.map(|(name, _)| name.clone()));
        }
    }
    found
}

/// Whether the outer policy covers all work that the inner one covers.
fn covers(outer: &PolicySpec, inner: &PolicySpec) -> bool {
    fn within<T: PartialEq>(inner: &[T], outer: &[T]) -> bool {
        outer.is_empty() || !inner.is_empty() && inner.iter().all(|one| outer.contains(one))
    }
    let every_kind = PolicyKind::ALL.iter().all(|kind| outer.kinds.contains(kind));
    (every_kind || within(&inner.kinds, &outer.kinds))
        && within(&inner.plans, &outer.plans)
        && within(&inner.domains, &outer.domains)
}

/// Whether both policies cover some work. A move is in two domains, and each policy may cover one.
fn meets(one: &PolicySpec, other: &PolicySpec) -> bool {
    fn common<T: PartialEq>(one: &[T], other: &[T]) -> bool {
        one.is_empty() || other.is_empty() || one.iter().any(|it| other.contains(it))
    }
    let is_about = |spec: &PolicySpec, kind| spec.kinds.is_empty() || spec.kinds.contains(kind);
    let moves =
        [OperationKind::Update, OperationKind::Relocate, OperationKind::Restart].map(PolicyKind::from);
    let both_move = moves.iter().any(|kind| is_about(one, kind) && is_about(other, kind));
    common(&one.kinds, &other.kinds)
        && common(&one.plans, &other.plans)
        && (both_move || common(&one.domains, &other.domains))
}

/// Whether the new policy approves at no other time, and no more concurrently, than the old one.
fn approves_no_more(new: &PolicySpec, old: &PolicySpec) -> bool {
    let (
        PolicyRule::Approve { windows: new, max_in_flight: new_most },
        PolicyRule::Approve { windows: old, max_in_flight: old_most },
    ) = (&new.rule, &old.rule)
    else {
        return false;
    };
    let fewer = old_most.is_none_or(|old| new_most.is_some_and(|new| new <= old));
    let (new, old) = (open_minutes(new), open_minutes(old));
    fewer && new.iter().zip(&old).all(|(new, old)| *old || !*new)
}

/// Whether a policy with these windows approves, for each minute of the week from Monday.
fn open_minutes(windows: &[ApprovalWindow]) -> Vec<bool> {
    const MINUTES: usize = 7 * 24 * 60;
    // Openings less closings at each minute of two weeks: a window may last into the next week.
    let mut steps = vec![0_i32; 2 * MINUTES + 1];
    for window in windows {
        let days = if window.days.is_empty() { Weekday::ALL } else { &window.days };
        for day in days {
            let from = *day as usize * 24 * 60 + usize::from(window.start);
            steps[from] += 1;
            steps[from + usize::from(window.duration)] -= 1;
        }
    }
    let mut open = vec![windows.is_empty(); MINUTES];
    let mut count = 0;
    for (minute, step) in steps.iter().enumerate() {
        count += step;
        open[minute % MINUTES] |= count > 0;
    }
    open
}

pub(crate) fn apply(fleet: &FleetState, ask: &PolicyApply) -> DecidedFacts {
    let mut faults = BodyErrors::default();
    if let PolicyRule::Approve { windows, max_in_flight: in_flight } = &ask.spec.rule {
        let at = "/spec/rule/approve";
        faults.check(*in_flight != Some(0), format!("{at}/max_in_flight"), "must be at least one");
        faults.check(windows.len() <= WINDOWS, format!("{at}/windows"), format!("must be at most {WINDOWS}"));
        for (i, window) in windows.iter().enumerate() {
            let at = format!("{at}/windows/{i}");
            faults.check(window.start < 24 * 60, format!("{at}/start"), "must be below 1440");
            let right = (1..=7 * 24 * 60).contains(&window.duration);
            faults.check(right, format!("{at}/duration"), "must be from 1 to 10080");
        }
    }
    faults.done()?;
    let same = fleet.policies().get(&ask.name).is_some_and(|now| *now.spec == ask.spec);
    let applied = || PolicyApplied { name: ask.name.clone(), spec: ask.spec.clone() }.into();
    Ok(if same { vec![] } else { vec![applied()] })
}

pub(crate) fn delete(fleet: &FleetState, ask: &PolicyDelete) -> DecidedFacts {
    fleet.find::<Policy>(&ask.name)?;
    Ok(vec![PolicyDeleted { name: ask.name.clone() }.into()])
}

pub(crate) fn applied(fleet: &mut FleetState, fact: &PolicyApplied, at: FactPosition) -> FoldResult {
    let spec = std::sync::Arc::new(fact.spec.clone());
    if fleet.policies().get(&fact.name).is_some() {
        return fleet.bump::<Policy>(&fact.name, at, |policy| policy.spec = spec);
    }
    fleet.put(Policy { name: fact.name.clone(), spec, meta: EntityMeta::new(at) });
    Ok(())
}

pub(crate) fn deleted(fleet: &mut FleetState, fact: &PolicyDeleted) -> FoldResult {
    fleet.remove::<Policy>(&fact.name)
}

/// Four-eyes policy that covers the operation, if any: the approver must be another person than the
/// requester. A policy covers a move by the domain that the replica leaves, and by the domain that it moves
/// to.
pub(crate) fn four_eyes<'a>(fleet: &'a FleetState, operation: &Operation) -> Option<&'a PolicyName> {
    let replica = fleet.replicas().get(&operation.replica);
    let active = replica.and_then(|replica| replica.active.as_ref()).map(|active| &active.domain);
    let about =
        |spec: &PolicySpec, domain| is_about_work(spec, operation.kind.into(), Some(&operation.plan), domain);
    let mut all = fleet.index().policies.four_eyes.iter();
    all.find(|(_, spec)| about(spec, operation.domain.as_ref()) || about(spec, active)).map(|(name, _)| name)
}

/// Approves the oldest operation that a policy may approve now. Each operation is first passed to
/// the callback, which returns whether it may be considered.
pub(crate) fn step(
    fleet: &FleetState,
    ctx: &DecisionContext,
    mut begin: impl FnMut(&Subject, Position) -> bool,
) -> Option<DueStep> {
    let policies = &fleet.index().policies;
    policies.approving.iter().find_map(|(name, of)| {
        // The opening of a window is no fact: the policy with the window is named.
        let applied = fleet.policies().get(name)?.meta.changed.position;
        if !is_open(&of.spec, ctx.now) || !has_capacity(fleet, name, &of.spec) {
            return None;
        }
        of.waiting.iter().find_map(|id| {
            let operation = fleet.operations().get(id)?;
            let OperationState::PendingApproval(proposal) = &operation.state else { return None };
            let (subject, cause) = (Subject::Operation(*id), operation.meta.changed.position.max(applied));
            if proposal.expires <= ctx.now
                || !begin(&subject, cause)
                || operation::is_given_up(fleet, operation)
            {
                return None;
            }
            let mut draft = FactDraft::new(ctx);
            let how =
                StartTrigger::Approval { approved_by: ApprovalActor::of_policy(name), hash: proposal.hash };
            operation::begin_existing(fleet, operation, how, ctx, &mut draft);
            let facts = draft.done();
            (!facts.is_empty()).then_some(DueStep { subject, cause, facts })
        })
    })
}

fn has_capacity(fleet: &FleetState, name: &PolicyName, spec: &PolicySpec) -> bool {
    let PolicyRule::Approve { max_in_flight: Some(most), .. } = spec.rule else { return true };
    let in_flight = fleet.index().policies.in_flight.get(name.as_str()).map_or(0, BTreeSet::len);
    (in_flight as u64) < u64::from(most)
}

fn is_open(spec: &PolicySpec, now: Time) -> bool {
    opens(spec, now).is_some_and(|at| at <= now)
}

/// Returns when a policy with waiting operations may approve next, if that is later than now.
pub(crate) fn next_window(fleet: &FleetState, now: Time) -> Option<Time> {
    let waiting = fleet.index().policies.approving.values().filter(|of| !of.waiting.is_empty());
    waiting.filter_map(|of| opens(&of.spec, now)).filter(|at| *at > now).min()
}

/// Returns now if a window of the policy is open, or else when the next one opens.
fn opens(spec: &PolicySpec, now: Time) -> Option<Time> {
    match &spec.rule {
        PolicyRule::FourEyes {} => None,
        PolicyRule::Approve { windows, .. } if windows.is_empty() => Some(now),
        PolicyRule::Approve { windows, .. } => {
            windows.iter().flat_map(|window| occurrences(window, now)).min()
        }
    }
}

/// Returns for each day of the window: now if it is open since then, or else its next opening.
fn occurrences(window: &ApprovalWindow, now: Time) -> impl Iterator<Item = Time> {
    let days = if window.days.is_empty() { Weekday::ALL } else { &window.days };
    days.iter().map(move |day| {
        // The epoch was a Thursday.
        let monday = now.micros() - (now.micros() + 3 * DAY).rem_euclid(WEEK);
        let this = monday + (*day as i64) * DAY + i64::from(window.start) * MINUTE;
        let lasts = i64::from(window.duration) * MINUTE;
        // The window may be open since last week, or open this week or the next.
        let open = |from: i64| (from..from + lasts).contains(&now.micros());
        let next = [this - WEEK, this, this + WEEK];
        if next.into_iter().any(open) {
            return now;
        }
        let later = next.into_iter().find(|from| *from > now.micros()).unwrap_or(this + WEEK);
        Time::from_micros(later)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_opens_on_its_days_and_may_extend_past_midnight_and_the_week() {
        // 2026-11-21 was a Saturday.
        let at = |text: &str| text.parse::<Time>().expect("a time");
        let nightly =
            ApprovalWindow { days: vec![Weekday::Sat, Weekday::Sun], start: 22 * 60, duration: 8 * 60 };
        let spec = |window: &ApprovalWindow| PolicySpec {
            kinds: vec![],
            plans: vec![],
            domains: vec![],
            rule: PolicyRule::Approve { windows: vec![window.clone()], max_in_flight: None },
        };
        let cases = [
            ("2026-11-21T21:59:59Z", "2026-11-21T22:00:00Z", "before it"),
            ("2026-11-21T22:00:00Z", "2026-11-21T22:00:00Z", "as it opens"),
            ("2026-11-22T05:59:59Z", "2026-11-22T05:59:59Z", "after midnight"),
            ("2026-11-22T06:00:00Z", "2026-11-22T22:00:00Z", "as it closes"),
            ("2026-11-23T05:00:00Z", "2026-11-23T05:00:00Z", "of Sunday, on Monday"),
            ("2026-11-23T06:00:00Z", "2026-11-28T22:00:00Z", "not before Saturday"),
        ];
        for (now, opens_at, why) in cases {
            assert_eq!(opens(&spec(&nightly), at(now)), Some(at(opens_at)), "{why}");
        }
        let always = ApprovalWindow { days: vec![], start: 0, duration: 24 * 60 };
        assert_eq!(opens(&spec(&always), at("2026-11-23T06:00:00Z")), Some(at("2026-11-23T06:00:00Z")));
    }
}
