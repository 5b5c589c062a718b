//! Approval requests; invariant 6. A change that ends or moves many replicas together, or weakens approval,
//! is approved as a whole, by people who satisfy the policies in force.

use std::collections::BTreeSet;
use std::sync::Arc;

use chancery_events::event::Event;
use chancery_events::fact::{
    ApprovalBypassed, RequestApproved, RequestEnd, RequestEnded, RequestOpened, RequestedChange,
};
use chancery_events::id::RequestId;
use chancery_events::intent::{
    CascadePolicy, DisruptionApprove, Intent, NodeDelete, NodeSetState, PlanApply, PlanDelete, PolicyApply,
    PolicyDelete, VolumeDelete,
};
use chancery_events::lifecycle::WillWord;
use chancery_events::name::{
    Actor, DisruptionName, DomainName, NodeName, PlanName, PolicyName, ReplicaName, VolumeName,
};
use chancery_events::spec::{
    ApprovalMode, DisruptionAction, NodeState, OperationKind, PlanSpec, PolicyKind, PolicyRule, PolicySpec,
};
use chancery_events::time::Time;

use super::approvals::is_open;
use super::state::{ApprovedChange, CheckedFleet, FactLocation, InputVerdict, LastInput, OpenedRequest};
use super::violation::{InvariantViolation, RuleResult, demand};

/// Microseconds in a minute.
const MINUTE: i64 = 60_000_000;

/// Number of people who must have approved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ApproverCount {
    Zero,
    One,
    Two,
}

/// Rules by plan, and policies, for what one person can do alone.
struct ApprovalRules<'a> {
    policies: Vec<&'a PolicySpec>,
    automatic: &'a dyn Fn(&PlanName, OperationKind) -> bool,
}

fn is_about(
    spec: &PolicySpec,
    kind: PolicyKind,
    plan: Option<&PlanName>,
    domain: Option<&DomainName>,
) -> bool {
    (spec.kinds.is_empty() || spec.kinds.contains(&kind))
        && (spec.plans.is_empty() || plan.is_some_and(|plan| spec.plans.contains(plan)))
        && (spec.domains.is_empty() || domain.is_some_and(|domain| spec.domains.contains(domain)))
}

impl ApprovalRules<'_> {
    fn alone(
        &self,
        kind: OperationKind,
        plan: &PlanName,
        domain: Option<&DomainName>,
        (now, others): (Time, u32),
    ) -> bool {
        let about = |spec: &&&PolicySpec| is_about(spec, kind.into(), Some(plan), domain);
        let mut all = self.policies.iter().filter(about);
        let approves = |spec: &&PolicySpec| match &spec.rule {
            PolicyRule::FourEyes {} => false,
            PolicyRule::Approve { windows, max_in_flight: in_flight } => {
                let open = windows.is_empty() || windows.iter().any(|window| is_open(window, now));
                open && in_flight.is_none_or(|most| others < most)
            }
        };
        (self.automatic)(plan, kind)
            || self.policies.iter().filter(about).any(approves)
            || !all.any(|spec| spec.rule == PolicyRule::FourEyes {})
    }
}

/// Returns the intent that the request was opened for.
fn intent(change: &RequestedChange) -> Intent {
    match change.clone() {
        RequestedChange::PlanDelete { name } => PlanDelete { name, cascade: CascadePolicy::Yes }.into(),
        RequestedChange::NodeDelete { name } => NodeDelete { name, cascade: CascadePolicy::Yes }.into(),
        RequestedChange::NodeExpunge { name, .. } => {
            NodeSetState { name, state: NodeState::Expunged, cluster: None, break_glass: None }.into()
        }
        RequestedChange::DisruptionApprove { node, name, .. } => DisruptionApprove { node, name }.into(),
        RequestedChange::PlanApply { name, to, .. } => PlanApply { name, spec: *to }.into(),
        RequestedChange::PolicyApply { name, to, .. } => PolicyApply { name, spec: to }.into(),
        RequestedChange::PolicyDelete { name, .. } => PolicyDelete { name }.into(),
        RequestedChange::VolumeDelete { name, .. } => VolumeDelete { name }.into(),
    }
}

impl CheckedFleet {
    fn four_eyes(&self, kind: PolicyKind, plan: Option<&PlanName>, domain: Option<&DomainName>) -> bool {
        let mut two = self.policies.values().filter(|policy| policy.rule == PolicyRule::FourEyes {});
        two.any(|policy| is_about(policy, kind, plan, domain))
    }

    /// Returns the plan's replicas that a delete would end. Replicas whose create was never approved are included.
    fn of_plan(&self, plan: &PlanName) -> BTreeSet<(PlanName, ReplicaName)> {
        let all = self.replicas.iter().filter(|(_, replica)| replica.plan == *plan);
        let there = all.filter(|(_, replica)| replica.desired != WillWord::Deleted);
        there.map(|(name, _)| (plan.clone(), name.clone())).collect()
    }

    /// Returns the replicas with a reservation on the node.
    fn on_node(&self, node: &NodeName) -> BTreeSet<(PlanName, ReplicaName)> {
        let Some(node) = self.nodes.get(node) else { return BTreeSet::new() };
        let runs = node.reservations.iter().filter_map(|id| self.incarnations.get(id));
        let of =
            runs.filter_map(|run| Some((self.replicas.get(&run.replica)?.plan.clone(), run.replica.clone())));
        of.collect()
    }

    fn members(&self, change: &RequestedChange) -> BTreeSet<(PlanName, ReplicaName)> {
        match change {
            RequestedChange::PlanDelete { name } => self.of_plan(name),
            RequestedChange::NodeDelete { name }
            | RequestedChange::NodeExpunge { name, .. }
            | RequestedChange::DisruptionApprove { node: name, .. } => self.on_node(name),
            RequestedChange::PlanApply { .. }
            | RequestedChange::PolicyApply { .. }
            | RequestedChange::VolumeDelete { .. }
            | RequestedChange::PolicyDelete { .. } => BTreeSet::new(),
        }
    }

    /// Whether the state that the change replaces is the current one.
    fn replaces(&self, change: &RequestedChange) -> bool {
        match change {
            RequestedChange::PlanApply { name, from, .. } => {
                let now = self.plans.get(name).and_then(|plan| plan.latest().ok());
                now.is_some_and(|now| **now == **from)
            }
            RequestedChange::PolicyApply { name, from, .. } => self.policies.get(name) == from.as_ref(),
            RequestedChange::PolicyDelete { name, from } => self.policies.get(name) == Some(from),
            RequestedChange::DisruptionApprove { node, name, spec } => {
                let now = self.nodes.get(node).and_then(|node| node.disruptions.get(name));
                now.is_some_and(|now| now.spec == *spec)
            }
            RequestedChange::VolumeDelete { name, id } => {
                self.volumes.get(name).is_some_and(|volume| volume.id == *id)
            }
            RequestedChange::PlanDelete { .. }
            | RequestedChange::NodeDelete { .. }
            | RequestedChange::NodeExpunge { .. } => true,
        }
    }

    /// Returns the volumes that the change destroys.
    fn lost_volumes(&self, change: &RequestedChange) -> BTreeSet<VolumeName> {
        let RequestedChange::NodeExpunge { name: node, .. } = change else { return BTreeSet::new() };
        let on_it = self.volumes.iter().filter(|(_, volume)| volume.node == *node);
        on_it.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn request_opened(&mut self, fact: &RequestOpened, at: FactLocation) -> RuleResult {
        let input = self.input_of(at);
        let asked = input.as_deref().and_then(LastInput::request).is_some_and(|request| {
            request.actor == fact.requested_by && request.intent == intent(&fact.change)
        });
        let what = fact.change.subject();
        demand!(6, asked, "a request about {what} is opened, and {} did not ask for that", fact.requested_by);
        demand!(6, self.replaces(&fact.change), "a request about {what} names another version to replace");
        let id = RequestId::issue(at.lineage, at.position);
        let target = fact.change.target();
        let others = self.requests.iter().filter(|(_, of)| !of.is_over && of.change.target() == target);
        demand!(6, others.count() <= 1, "two requests about {what} wait");
        let members = self.members(&fact.change);
        let shown: u64 = fact.effects.iter().map(|effect| u64::from(effect.count)).sum();
        let count = members.len() as u64;
        demand!(
            6,
            shown == count,
            "a request about {what} shows {shown} replicas, and {count} are concerned"
        );
        let volumes = self.lost_volumes(&fact.change);
        if let RequestedChange::NodeExpunge { volumes: shown, .. } = &fact.change {
            let lost = volumes.len();
            demand!(6, *shown as usize == lost, "a request about {what} shows {shown} volumes of {lost}");
        }
        let (change, by, hash, expires) =
            (fact.change.clone(), fact.requested_by.clone(), fact.hash, fact.expires);
        self.requests
            .insert(id, OpenedRequest { change, actor: by, hash, expires, members, volumes, is_over: false });
        self.now.requested.insert(id);
        Ok(())
    }

    fn decided(&mut self, id: RequestId) -> Result<OpenedRequest, InvariantViolation> {
        let unknown = || InvariantViolation::new(5, format!("there is no request {id}"));
        let request = self.requests.get_mut(&id).ok_or_else(unknown)?;
        demand!(5, !request.is_over, "request {id} has ended, and is decided again");
        request.is_over = true;
        Ok(request.clone())
    }

    pub(super) fn request_approved(&mut self, fact: &RequestApproved, at: FactLocation) -> RuleResult {
        let (id, by) = (fact.request, &fact.approved_by);
        let request = self.decided(id)?;
        let input = self.input_of(at);
        let asked = input.as_deref().and_then(LastInput::request).is_some_and(|asked| {
            asked.actor == *by
                && matches!(&asked.intent, Intent::RequestApprove(ask) if ask.request == id && ask.hash == fact.hash)
        });
        demand!(6, asked, "request {id} is called approved by {by}, who did not");
        demand!(6, request.hash == fact.hash, "request {id} is approved on another hash than was shown");
        demand!(6, request.expires > at.time, "request {id} is approved, and expired before");
        let same = self.members(&request.change) == request.members
            && self.lost_volumes(&request.change) == request.volumes
            && self.replaces(&request.change);
        demand!(6, same, "request {id} is approved, and does something else by now than was shown");
        if let Some(Event::Intent(approval)) = input.as_deref().map(|input| &input.event) {
            let mut asked = approval.clone();
            (asked.actor, asked.intent) = (request.actor.clone(), intent(&request.change));
            let (position, event) = (at.cause, Event::Intent(asked));
            let input = LastInput { position, event, verdict: InputVerdict::Accepted, has_effect: true };
            self.carried = Some(ApprovedChange { input: Arc::new(input), approver: by.clone() });
        }
        Ok(())
    }

    pub(super) fn request_ended(&mut self, fact: &RequestEnded, at: FactLocation) -> RuleResult {
        let id = fact.request;
        let request = self.decided(id)?;
        let input = self.input_of(at);
        match &fact.end {
            RequestEnd::Rejected { rejected_by: by, .. } => {
                let asked = input.as_deref().and_then(LastInput::request).is_some_and(|asked| {
                    asked.actor == *by
                        && matches!(&asked.intent, Intent::RequestReject(ask) if ask.request == id)
                });
                demand!(6, asked, "request {id} is called rejected by {by}, who did not");
            }
            RequestEnd::Expired => {
                demand!(6, request.expires <= at.time, "request {id} expires before its time");
            }
            RequestEnd::Superseded { successor: by } => {
                let other = self.requests.get(by).map(|other| other.change.target());
                let same = other == Some(request.change.target()) && self.now.requested.contains(by);
                demand!(6, same, "request {id} is superseded by {by}, which is about something else");
            }
        }
        Ok(())
    }

    pub(super) fn bypassed(&mut self, fact: &ApprovalBypassed, at: FactLocation) -> RuleResult {
        let input = self.input_of(at);
        let asked = input.as_deref().and_then(LastInput::request).is_some_and(|asked| {
            asked.actor == fact.requested_by
                && matches!(&asked.intent, Intent::NodeSetState(ask)
                    if ask.name == fact.node && ask.break_glass.as_ref() == Some(&fact.reason))
        });
        demand!(
            6,
            asked,
            "node {} is expunged past its approval, and {} gave no reason",
            fact.node,
            fact.requested_by
        );
        self.now.bypassed.insert(fact.node.clone());
        Ok(())
    }

    /// Checks that the required people have approved.
    fn approved_by(&self, people: ApproverCount, at: FactLocation, what: &str) -> RuleResult {
        let carried = self.carried.as_ref().filter(|carried| carried.input.position == at.cause);
        let asker: Option<&Actor> =
            carried.and_then(|carried| carried.input.request()).map(|request| &request.actor);
        match (people, carried) {
            (ApproverCount::Zero, _) | (ApproverCount::One, Some(_)) => Ok(()),
            (ApproverCount::Two, Some(carried)) => {
                let own = asker == Some(&carried.approver);
                demand!(6, !own, "{what} takes two people, and {} did it alone", carried.approver);
                Ok(())
            }
            (ApproverCount::One | ApproverCount::Two, None) => {
                Err(InvariantViolation::new(6, format!("{what}, without approval")))
            }
        }
    }

    pub(super) fn may_remove(&mut self, plan: &PlanName, at: FactLocation) -> RuleResult {
        let manual = self.plan(plan)?.latest()?.approval.delete == ApprovalMode::Manual;
        let members = self.of_plan(plan);
        let replicas = || members.iter().filter_map(|(_, name)| self.replicas.get(name));
        let approved = replicas().any(|replica| replica.desired != WillWord::Proposed);
        let runs = replicas().flat_map(|replica| replica.active.into_iter().chain(replica.secondary));
        let nodes = runs.filter_map(|id| self.nodes.get(&self.incarnations.get(&id)?.node));
        let domains: BTreeSet<_> = nodes.map(|node| Some(&node.spec.domain)).chain([None]).collect();
        let two = domains.iter().any(|domain| self.four_eyes(PolicyKind::Delete, Some(plan), *domain));
        let people = match (approved, manual, two) {
            (false, ..) | (_, false, _) => ApproverCount::Zero,
            (true, true, true) => ApproverCount::Two,
            (true, true, false) => ApproverCount::One,
        };
        self.approved_by(people, at, &format!("plan {plan} is deleted with its replicas"))
    }

    /// Checks that a disruption may empty the node. The node's deletion then (`is_deleted`) is no approval.
    pub(super) fn may_empty(
        &mut self,
        node: &NodeName,
        name: &DisruptionName,
        is_deleted: bool,
        at: FactLocation,
    ) -> RuleResult {
        let Some(of) = self.nodes.get(node) else { return Ok(()) };
        let evicts = of
            .disruptions
            .get(name)
            .is_some_and(|disruption| disruption.spec.action != DisruptionAction::None);
        let mut people = ApproverCount::Zero;
        for (plan, _) in self.on_node(node).iter().filter(|_| evicts) {
            let spec = self.plans.get(plan).and_then(|plan| plan.latest().ok());
            if spec.is_some_and(|spec| spec.approval.relocate == ApprovalMode::Automatic) {
                continue;
            }
            // A replica may be moved to any domain.
            let domains = self.policies.values().flat_map(|policy| policy.domains.iter().map(Some));
            if domains.chain([None]).any(|domain| self.four_eyes(PolicyKind::Relocate, Some(plan), domain)) {
                people = ApproverCount::Two;
            } else if is_deleted && people == ApproverCount::Zero {
                people = ApproverCount::One;
            }
        }
        self.approved_by(people, at, &format!("node {node} is emptied by disruption {name}"))
    }

    pub(super) fn may_delete_volume(&self, name: &VolumeName, at: FactLocation) -> RuleResult {
        let Some(volume) = self.volumes.get(name) else { return Ok(()) };
        let plan = volume.owner.as_ref().and_then(|owner| self.replicas.get(owner)).map(|owner| &owner.plan);
        let spec = plan.and_then(|plan| self.plans.get(plan)?.latest().ok());
        let alone = spec.is_some_and(|spec| spec.approval.delete == ApprovalMode::Automatic);
        let domain = self.nodes.get(&volume.node).map(|node| &node.spec.domain);
        // A volume without owner may be kept for any plan.
        let plans: Vec<_> = if let Some(plan) = plan {
            vec![Some(plan)]
        } else {
            let named = self.policies.values().flat_map(|policy| policy.plans.iter());
            named.map(Some).chain([None]).collect()
        };
        let two = plans.iter().any(|plan| self.four_eyes(PolicyKind::Delete, *plan, domain));
        let people = if two && !alone { ApproverCount::Two } else { ApproverCount::Zero };
        self.approved_by(people, at, &format!("volume {name} is deleted"))
    }

    pub(super) fn may_expunge(&self, node: &NodeName, at: FactLocation) -> RuleResult {
        let Some(of) = self.nodes.get(node) else { return Ok(()) };
        let mut plans: BTreeSet<_> = self.on_node(node).into_iter().map(|(plan, _)| Some(plan)).collect();
        for volume in self.volumes.values().filter(|volume| volume.node == *node) {
            let owner = volume.owner.as_ref().and_then(|owner| self.replicas.get(owner));
            plans.insert(owner.map(|owner| owner.plan.clone()));
        }
        let domain = Some(&of.spec.domain);
        // A volume without owner may be kept for any plan.
        let any: Vec<_> = self.policies.values().flat_map(|policy| policy.plans.iter()).collect();
        let two = plans.iter().any(|plan| match plan {
            Some(plan) => self.four_eyes(PolicyKind::Expunge, Some(plan), domain),
            None => any
                .iter()
                .map(|plan| Some(*plan))
                .chain([None])
                .any(|plan| self.four_eyes(PolicyKind::Expunge, plan, domain)),
        });
        let people =
            if two && !self.now.bypassed.contains(node) { ApproverCount::Two } else { ApproverCount::Zero };
        self.approved_by(people, at, &format!("node {node} is expunged"))
    }

    pub(super) fn plan_may_become(&self, name: &PlanName, to: &PlanSpec, at: FactLocation) -> RuleResult {
        let Some(from) = self.plans.get(name).and_then(|plan| plan.latest().ok()) else { return Ok(()) };
        let policies: Vec<_> = self.policies.values().collect();
        let (before, after) = (
            |_: &PlanName, kind| from.approval.of(kind) == ApprovalMode::Automatic,
            |_: &PlanName, kind| to.approval.of(kind) == ApprovalMode::Automatic,
        );
        let before = ApprovalRules { policies: policies.clone(), automatic: &before };
        let after = ApprovalRules { policies, automatic: &after };
        let weaker = CheckedFleet::weaker(&before, &after, std::slice::from_ref(name));
        let people = if weaker.is_some() { ApproverCount::Two } else { ApproverCount::Zero };
        let what = weaker.unwrap_or_default();
        self.approved_by(people, at, &format!("plan {name} lets one person do {what} alone"))
    }

    pub(super) fn policy_may_become(
        &self,
        name: &PolicyName,
        to: Option<&PolicySpec>,
        at: FactLocation,
    ) -> RuleResult {
        let others = || self.policies.iter().filter(|(other, _)| *other != name).map(|(_, spec)| spec);
        let automatic = |plan: &PlanName, kind| {
            let spec = self.plans.get(plan).and_then(|plan| plan.latest().ok());
            spec.is_some_and(|spec| spec.approval.of(kind) == ApprovalMode::Automatic)
        };
        let before = ApprovalRules { policies: self.policies.values().collect(), automatic: &automatic };
        let after = ApprovalRules { policies: others().chain(to).collect(), automatic: &automatic };
        let mut plans: BTreeSet<_> = self.plans.keys().cloned().collect();
        plans.extend(self.policies.values().chain(to).flat_map(|spec| spec.plans.iter().cloned()));
        let plans: Vec<_> = plans.into_iter().collect();
        let weaker = CheckedFleet::weaker(&before, &after, &plans);
        let people = if weaker.is_some() { ApproverCount::Two } else { ApproverCount::Zero };
        let what = weaker.unwrap_or_default();
        self.approved_by(people, at, &format!("policy {name} lets one person do {what} alone"))
    }

    /// Returns an operation that one person can have carried out alone after a change, and could not before.
    fn weaker(before: &ApprovalRules<'_>, after: &ApprovalRules<'_>, plans: &[PlanName]) -> Option<String> {
        let all = || before.policies.iter().chain(&after.policies);
        let mut domains: BTreeSet<_> = all().flat_map(|spec| spec.domains.iter().map(Some)).collect();
        domains.insert(None);
        let windows = all().filter_map(|spec| match &spec.rule {
            PolicyRule::Approve { windows, .. } => Some(windows.iter()),
            PolicyRule::FourEyes {} => None,
        });
        // As each window opens and closes, on every day of a week.
        let mut times = BTreeSet::from([0]);
        for window in windows.flatten() {
            for day in 0..7 {
                let from = day * 24 * 60 + i64::from(window.start);
                times.extend([from, from - 1, from + i64::from(window.duration)]);
            }
        }
        for kind in OperationKind::ALL {
            for plan in plans {
                for domain in &domains {
                    for minute in &times {
                        for others in [0, 1] {
                            let at = (Time::from_micros((minute + 7 * 24 * 60) * MINUTE), others);
                            let now = after.alone(*kind, plan, *domain, at);
                            if now && !before.alone(*kind, plan, *domain, at) {
                                return Some(format!("a {kind} of plan {plan}"));
                            }
                        }
                    }
                }
            }
        }
        None
    }
}
