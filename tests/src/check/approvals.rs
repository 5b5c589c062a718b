//! Approvers of operations; invariant 6: an entitled actor, or a rule that applies.

use chancery_events::fact::{ApprovalActor, OperationApproved, Requester};
use chancery_events::intent::Intent;
use chancery_events::name::{Actor, PolicyName};
use chancery_events::spec::{
    ApprovalMode, ApprovalWindow, DisruptionState, OperationKind, PolicyRule, PolicySpec,
};
use chancery_events::time::Time;

use super::state::{CheckedFleet, FactLocation, InputVerdict, Operation};
use super::violation::{InvariantViolation, RuleResult, demand};

/// Microseconds in a minute, and minutes in a day and in a week.
const MINUTE: i64 = 60_000_000;
const DAY: i64 = 24 * 60;
const WEEK: i64 = 7 * DAY;

impl CheckedFleet {
    /// Checks that the approver is entitled.
    pub(super) fn entitled(
        &mut self,
        fact: &OperationApproved,
        operation: &Operation,
        at: FactLocation,
    ) -> RuleResult {
        match &fact.approved_by {
            ApprovalActor::Rule(rule) => self.rule_applies(fact, operation, rule, at),
            ApprovalActor::Actor(actor) => self.actor_may(fact, operation, actor, at),
        }
    }

    fn actor_may(
        &mut self,
        fact: &OperationApproved,
        operation: &Operation,
        actor: &Actor,
        at: FactLocation,
    ) -> RuleResult {
        let id = fact.operation;
        let input = self.input_of(at);
        let asked = input.as_deref().is_some_and(|input| {
            input.verdict == InputVerdict::Accepted
                && input.request().is_some_and(|request| {
                    request.actor == *actor
                        && matches!(&request.intent, Intent::OperationApprove(ask)
                            if ask.operations.iter().any(|shown| shown.operation == id && shown.hash == fact.hash))
                })
        });
        demand!(6, asked, "operation {id} is called approved by {actor}, who did not approve this");
        // A move concerns both domains, and a replica may have changed its domain since the request.
        let active = self.replicas.get(&operation.replica).and_then(|replica| replica.active);
        let node = active.and_then(|run| self.nodes.get(&self.incarnations.get(&run)?.node));
        let leaves = Operation { domain: node.map(|node| node.spec.domain.clone()), ..operation.clone() };
        let mut two = self.policies.iter().filter(|(_, policy)| policy.rule == PolicyRule::FourEyes {});
        let policy = two.find(|(_, policy)| is_about(policy, operation) || is_about(policy, &leaves));
        if let Some((policy, _)) = policy {
            let own = self.asked_by(operation).is_some_and(|by| by == *actor);
            demand!(
                6,
                !own,
                "operation {id} is approved by its requester {actor}, in spite of policy {policy}"
            );
        }
        Ok(())
    }

    /// Returns the operation's human requester, if any.
    fn asked_by(&self, operation: &Operation) -> Option<Actor> {
        match &operation.requested_by {
            Some(Requester::Actor(actor)) => Some(actor.clone()),
            Some(Requester::Disruption { node, name }) => {
                self.nodes.get(node)?.disruptions.get(name)?.approved_by.clone()
            }
            Some(Requester::Rule(_)) => None,
            None => {
                let deployment = operation.deployment.as_ref()?;
                Some(self.plans.get(&operation.plan)?.deployments.get(deployment)?.requested_by.clone())
            }
        }
    }

    fn rule_applies(
        &mut self,
        fact: &OperationApproved,
        operation: &Operation,
        rule: &str,
        at: FactLocation,
    ) -> RuleResult {
        let (id, kind, name) = (fact.operation, operation.kind, &operation.plan);
        if let Some(policy) = rule.strip_prefix("policy/") {
            return self.policy_applies(fact, operation, policy, at);
        }
        // A rule that requests an operation has approved it.
        let asked_itself = operation.requested_by == Some(Requester::Rule(rule.to_owned()));
        if rule == format!("plan/{name}/restart") {
            demand!(
                6,
                asked_itself && kind == OperationKind::Start,
                "operation {id}, a {kind}, is approved by {rule}"
            );
            return Ok(());
        }
        if rule == format!("plan/{name}/removal") {
            let goes = self.plan(name)?.is_removing && kind == OperationKind::Delete;
            demand!(6, asked_itself && goes, "operation {id}, a {kind}, is approved by {rule}");
            return Ok(());
        }
        if rule.starts_with("deployment/") {
            let own = operation.deployment.as_ref().is_some_and(|of| operation.takes_back(of));
            demand!(6, asked_itself && own, "operation {id}, a {kind}, is approved by {rule}");
            return Ok(());
        }
        if let (Some(Requester::Disruption { node, name }), true) =
            (&operation.requested_by, rule.starts_with("disruption/"))
        {
            let disruption = self.nodes.get(node).and_then(|node| node.disruptions.get(name));
            let approved = disruption.is_some_and(|of| of.state == DisruptionState::Approved);
            let own = rule == format!("disruption/{node}/{name}") && kind == OperationKind::Relocate;
            demand!(6, approved && own, "operation {id}, a {kind}, is approved by {rule}");
            return Ok(());
        }
        let policy = self.plan(name)?.latest()?.approval.of(kind);
        demand!(
            6,
            policy == ApprovalMode::Automatic,
            "rule {rule} approves operation {id}, and plan {name} wants a person to"
        );
        let own = format!("plan/{name}/approval/{kind}");
        demand!(6, *rule == own, "operation {id} is approved by rule {rule}, not by {own}");
        Ok(())
    }

    fn policy_applies(
        &self,
        fact: &OperationApproved,
        operation: &Operation,
        policy: &str,
        at: FactLocation,
    ) -> RuleResult {
        let id = fact.operation;
        let unknown = || {
            InvariantViolation::new(6, format!("operation {id} is approved by policy {policy}, which is not"))
        };
        let name: PolicyName = policy.parse().map_err(|_| unknown())?;
        let spec = self.policies.get(&name).ok_or_else(unknown)?;
        let PolicyRule::Approve { windows, max_in_flight: in_flight } = &spec.rule else {
            return Err(unknown());
        };
        demand!(6, is_about(spec, operation), "policy {policy} approves operation {id}, and is not about it");
        let open = windows.is_empty() || windows.iter().any(|window| is_open(window, at.time));
        demand!(6, open, "policy {policy} approves operation {id} at {}, outside its windows", at.time);
        let others = self.in_flight.get(&name).map_or(0, |of| of.len() as u64);
        let is_permitted = in_flight.is_none_or(|most| others < u64::from(most));
        demand!(6, is_permitted, "policy {policy} approves operation {id} concurrently with {others} others");
        Ok(())
    }
}

/// Whether the policy concerns the operation.
fn is_about(policy: &PolicySpec, operation: &Operation) -> bool {
    let kind = policy.kinds.is_empty() || policy.kinds.contains(&operation.kind.into());
    let plan = policy.plans.is_empty() || policy.plans.contains(&operation.plan);
    let domain = || operation.domain.as_ref().is_some_and(|domain| policy.domains.contains(domain));
    kind && plan && (policy.domains.is_empty() || domain())
}

/// Whether a window is open, in UTC: it opens on each of its days and may cross midnight and the week's end.
pub(super) fn is_open(window: &ApprovalWindow, now: Time) -> bool {
    // Time zero was a Thursday: three days after a Monday.
    let minute = (now.micros().div_euclid(MINUTE) + 3 * DAY).rem_euclid(WEEK);
    (0..7).any(|weekday| {
        let opens_then = window.days.is_empty() || window.days.iter().any(|day| *day as i64 == weekday);
        let opens = weekday * DAY + i64::from(window.start);
        opens_then && (minute - opens).rem_euclid(WEEK) < i64::from(window.duration)
    })
}
