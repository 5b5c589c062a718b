//! Disruptions of nodes, and policies: nothing happens to either without a request.

use chancery_events::fact::{
    DisruptionApproved, DisruptionCompleted, DisruptionDeleted, DisruptionScheduled, PolicyApplied,
    PolicyDeleted,
};
use chancery_events::intent::{CascadePolicy, Intent};
use chancery_events::name::{DisruptionName, NodeName};
use chancery_events::spec::{DisruptionAction, DisruptionState};
use chancery_events::time::Time;

use super::obligations::RecordObligation;
use super::state::{CheckedFleet, Disruption, FactLocation, LastInput, Node};
use super::violation::{InvariantViolation, RuleResult, demand};

impl Disruption {
    /// Whether the disruption drains its node now.
    pub(super) fn empties(&self, now: Time) -> bool {
        let begun = self.spec.start.is_none_or(|start| start <= now);
        self.state == DisruptionState::Approved && self.spec.action != DisruptionAction::None && begun
    }
}

impl Node {
    /// Whether a disruption of the node is approved.
    pub(super) fn is_disrupted(&self) -> bool {
        self.disruptions.values().any(|disruption| disruption.state == DisruptionState::Approved)
    }
}

/// Whether the input requests deletion of the node, with everything on it.
fn deletes_node(input: Option<&LastInput>, node: &NodeName) -> bool {
    matches!(
        input.and_then(LastInput::intent),
        Some(Intent::NodeDelete(ask)) if ask.name == *node && ask.cascade == CascadePolicy::Yes
    )
}

impl CheckedFleet {
    fn disruption(
        &mut self,
        on: &NodeName,
        name: &DisruptionName,
    ) -> Result<&mut Disruption, InvariantViolation> {
        let unknown = || InvariantViolation::new(5, format!("node {on} has no disruption {name}"));
        self.nodes.get_mut(on).and_then(|node| node.disruptions.get_mut(name)).ok_or_else(unknown)
    }

    pub(super) fn disruption_scheduled(
        &mut self,
        fact: &DisruptionScheduled,
        at: FactLocation,
    ) -> RuleResult {
        let (on, name) = (&fact.node, &fact.name);
        let input = self.input_of(at);
        let asked = match input.as_deref().and_then(LastInput::intent) {
            Some(Intent::DisruptionSchedule(ask)) => {
                ask.node == *on && ask.name == *name && ask.spec == fact.spec
            }
            _ => deletes_node(input.as_deref(), on) && fact.spec.action == DisruptionAction::DrainAndDelete,
        };
        demand!(6, asked, "disruption {name} of node {on} was not requested");
        let node = self.nodes.get_mut(on);
        let node = node.ok_or_else(|| InvariantViolation::new(5, format!("there is no node {on}")))?;
        let (spec, state) = (fact.spec.clone(), DisruptionState::Scheduled);
        let old = node.disruptions.insert(name.clone(), Disruption { spec, state, approved_by: None });
        demand!(5, old.is_none(), "disruption {name} of node {on} is scheduled a second time");
        Ok(())
    }

    pub(super) fn disruption_approved(&mut self, fact: &DisruptionApproved, at: FactLocation) -> RuleResult {
        let (on, name) = (&fact.node, &fact.name);
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::DisruptionApprove(ask)) if ask.node == *on && ask.name == *name
        );
        let asked = asked || deletes_node(input.as_deref(), on);
        let person = input.as_deref().and_then(LastInput::request).map(|request| request.actor.clone());
        let person = self.carried.as_ref().map(|carried| carried.approver.clone()).or(person);
        let own = person.is_some_and(|person| person == fact.approved_by);
        self.may_empty(on, name, deletes_node(input.as_deref(), on), at)?;
        demand!(
            6,
            asked && own,
            "disruption {name} of {on} is called approved by {}, who did not",
            fact.approved_by
        );
        let disruption = self.disruption(on, name)?;
        let state = disruption.state;
        demand!(
            5,
            state == DisruptionState::Scheduled,
            "disruption {name} of {on} is {state}, and is approved"
        );
        (disruption.state, disruption.approved_by) =
            (DisruptionState::Approved, Some(fact.approved_by.clone()));
        Ok(())
    }

    pub(super) fn disruption_completed(
        &mut self,
        fact: &DisruptionCompleted,
        at: FactLocation,
    ) -> RuleResult {
        let (on, name) = (&fact.node, &fact.name);
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::DisruptionComplete(ask)) if ask.node == *on && ask.name == *name
        );
        let disruption = self.disruption(on, name)?;
        let state = disruption.state;
        demand!(5, state != DisruptionState::Completed, "disruption {name} of {on} is over a second time");
        disruption.state = DisruptionState::Completed;
        if asked {
            return Ok(());
        }
        let was = Disruption { state, ..disruption.clone() };
        demand!(
            6,
            was.empties(at.time),
            "disruption {name} of {on} is completed without a request, and is no drain"
        );
        let left = self.node(on)?.reservations.len();
        demand!(6, left == 0, "disruption {name} of {on} is completed, and {left} reservations are left");
        if was.spec.action == DisruptionAction::DrainAndDelete {
            self.now.emptied.insert(on.clone());
            self.obligations.push(RecordObligation::Forgotten(on.clone()));
        }
        Ok(())
    }

    pub(super) fn disruption_deleted(&mut self, fact: &DisruptionDeleted, at: FactLocation) -> RuleResult {
        let (on, name) = (&fact.node, &fact.name);
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::DisruptionDelete(ask)) if ask.node == *on && ask.name == *name
        );
        demand!(6, asked, "disruption {name} of {on} is deleted without a request");
        let state = self.disruption(on, name)?.state;
        demand!(
            5,
            state == DisruptionState::Completed,
            "disruption {name} of {on} is {state}, and is deleted"
        );
        if let Some(node) = self.nodes.get_mut(on) {
            node.disruptions.remove(name);
        }
        Ok(())
    }

    pub(super) fn policy_applied(&mut self, fact: &PolicyApplied, at: FactLocation) -> RuleResult {
        let name = &fact.name;
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::PolicyApply(ask)) if ask.name == *name && ask.spec == fact.spec
        );
        demand!(6, asked, "policy {name} was not requested");
        self.policy_may_become(name, Some(&fact.spec), at)?;
        self.policies.insert(name.clone(), fact.spec.clone());
        Ok(())
    }

    pub(super) fn policy_deleted(&mut self, fact: &PolicyDeleted, at: FactLocation) -> RuleResult {
        let name = &fact.name;
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::PolicyDelete(ask)) if ask.name == *name
        );
        demand!(6, asked, "policy {name} is deleted without a request");
        self.policy_may_become(name, None, at)?;
        demand!(5, self.policies.remove(name).is_some(), "there is no policy {name}");
        Ok(())
    }
}
