//! Approval requests: intents that wait until they are approved as a whole. Their immediate effect requires
//! approval in single operations, or would weaken approval.
//!
//! | state | same intent again | other intent for its target | approve | reject | expiry |
//! |---|---|---|---|---|---|
//! | (none) | → pending, if it needs approval; else carried out | | not found | not found | – |
//! | pending | no-op | → superseded, and the other one is pending | → approved, and carried out in the same commit | → rejected | → expired |
//! | ended | → pending, as a new request | → pending, as a new request | refused | refused | – |
//!
//! Requirements of a request, evaluated when it is created and again when it is approved:
//!
//! | change | waits if | approved by |
//! |---|---|---|
//! | plan deleted with its replicas | the plan's `delete` is manual | any person; another person if a four-eyes policy covers a delete of the plan |
//! | node deleted with its incarnations | a plan's `relocate` is manual | any person; another person if a four-eyes policy covers one of the moves |
//! | disruption that empties its node approved | a four-eyes policy covers one of the moves, and the plan's `relocate` is manual | another person |
//! | node expunged | a four-eyes policy covers `expunge` | another person; none with `break_glass` |
//! | volume deleted | a four-eyes policy covers a delete, and the `delete` of its owner's plan is manual or the volume has no owner | another person |
//! | plan changed | a manual kind becomes automatic, and a four-eyes policy covers that kind | another person |
//! | policy changed or deleted | a four-eyes policy would cover less, or be bypassed by more | another person |
//!
//! The hash of a request covers its change, with the replaced value, and every replica and volume that it
//! ends or moves. An approval carries the hash that was shown. If other objects would be ended or replaced by
//! now, the request is void: it cannot be approved, and the intent must be submitted again. Ended requests
//! are kept for a while, for inspection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chancery_events::digest::Digest;
use chancery_events::fact::{
    Fact, RequestApproved, RequestEffect, RequestEnd, RequestEnded, RequestOpened, RequestedChange,
};
use chancery_events::id::RequestId;
use chancery_events::intent::{
    CascadePolicy, DisruptionApprove, Intent, NodeDelete, NodeSetState, PlanApply, PlanDelete, PolicyApply,
    PolicyDelete, RequestApprove, RequestReject, VolumeDelete,
};
use chancery_events::lifecycle::{RequestStatus, WillWord};
use chancery_events::name::{NodeName, PlanName, PolicyName, ReplicaName, VolumeName};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{
    ApprovalMode, DisruptionAction, DisruptionState, NodeState, OperationKind, PlanSpec, PolicyKind,
    PolicySpec,
};

use crate::context::{DecisionContext, FactDraft};
use crate::decide::by_type;
use crate::fleet::{FleetState, FoldResult};
use crate::meta::{EntityMeta, FactPosition};
use crate::policy;
use crate::refuse::{BodyErrors, DecidedFacts};
use crate::state::{ApprovalRequest, Node, RequestState};

/// Time that a request waits for approval, where no plan's timeout is shorter.
const WAIT: Duration = Duration::from_hours(24);
/// Maximum number of ended requests that are kept.
const KEPT: usize = 100;
/// Maximum number of replicas named in an effect.
const NAMES: usize = 64;

/// Approval that a change needs.
#[derive(Clone, PartialEq, Eq, Debug)]
enum RequiredApproval {
    /// No approval.
    Nothing,
    /// Any person.
    Person,
    /// Person other than the requester, because of these policies.
    Another(BTreeSet<PolicyName>),
}

impl RequiredApproval {
    fn of(person: ApprovalMode, policies: BTreeSet<PolicyName>) -> RequiredApproval {
        match (person, policies.is_empty()) {
            (_, false) => RequiredApproval::Another(policies),
            (ApprovalMode::Manual, true) => RequiredApproval::Person,
            (ApprovalMode::Automatic, true) => RequiredApproval::Nothing,
        }
    }

    fn policies(self) -> BTreeSet<PolicyName> {
        match self {
            RequiredApproval::Nothing | RequiredApproval::Person => BTreeSet::new(),
            RequiredApproval::Another(policies) => policies,
        }
    }
}

/// Change with its current effects and the approval that it needs.
struct AssessedChange {
    change: RequestedChange,
    effects: Vec<RequestEffect>,
    hash: Digest,
    needs: RequiredApproval,
    /// Time that the request waits for approval.
    wait: Duration,
}

/// Replicas by plan.
type PlanMembers = BTreeMap<PlanName, BTreeSet<ReplicaName>>;

impl AssessedChange {
    /// Change that ends and moves nothing, and concerns these policies.
    fn without_effects(change: RequestedChange, policies: BTreeSet<PolicyName>) -> AssessedChange {
        let needs = RequiredApproval::of(ApprovalMode::Automatic, policies);
        AssessedChange::new(change, needs, PolicyKind::Delete, &PlanMembers::new(), &BTreeSet::new())
    }

    fn new(
        change: RequestedChange,
        needs: RequiredApproval,
        kind: PolicyKind,
        members: &PlanMembers,
        volumes: &BTreeSet<VolumeName>,
    ) -> AssessedChange {
        let mut digests = vec![change.json()];
        digests.extend(volumes.iter().map(|name| name.as_str().to_owned()));
        let mut effects = Vec::with_capacity(members.len());
        for (plan, names) in members {
            let replicas: Vec<_> = names.iter().take(NAMES).cloned().collect();
            let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
            effects.push(RequestEffect { kind, plan: plan.clone(), count, replicas });
            digests.push(plan.as_str().to_owned());
            digests.extend(names.iter().map(|name| name.as_str().to_owned()));
        }
        let parts: Vec<_> = digests.iter().map(String::as_bytes).collect();
        let hash = Digest::of(&parts);
        AssessedChange { change, effects, hash, needs, wait: WAIT }
    }
}

/// Assesses an intent whose immediate effect would need approval in single operations. `None` for others.
fn assess(fleet: &FleetState, intent: &Intent) -> Option<AssessedChange> {
    match intent {
        Intent::PlanDelete(ask) if ask.cascade == CascadePolicy::Yes => plan_delete(fleet, &ask.name),
        Intent::NodeDelete(ask) if ask.cascade == CascadePolicy::Yes => {
            let node = fleet.nodes().get(&ask.name)?;
            let change = RequestedChange::NodeDelete { name: ask.name.clone() };
            let (moves, manual, policies) = moves(fleet, node);
            let needs = RequiredApproval::of(manual, policies);
            let assessed = AssessedChange::new(change, needs, PolicyKind::Relocate, &moves, &BTreeSet::new());
            (!moves.is_empty()).then_some(assessed)
        }
        Intent::DisruptionApprove(ask) => {
            let node = fleet.nodes().get(&ask.node)?;
            let disruption = node.disruptions.get(&ask.name)?;
            let empties = disruption.state == DisruptionState::Scheduled
                && disruption.spec.action != DisruptionAction::None;
            let (node_name, name) = (ask.node.clone(), ask.name.clone());
            let spec = disruption.spec.clone();
            let change = RequestedChange::DisruptionApprove { node: node_name, name, spec };
            let (moves, _, policies) = moves(fleet, node);
            // The approval of a disruption is already a person's approval of its moves.
            let needs = RequiredApproval::of(ApprovalMode::Automatic, policies);
            let assessed = AssessedChange::new(change, needs, PolicyKind::Relocate, &moves, &BTreeSet::new());
            empties.then_some(assessed)
        }
        Intent::NodeSetState(ask) if ask.state == NodeState::Expunged => expunge(fleet, &ask.name),
        Intent::VolumeDelete(ask) => volume_delete(fleet, &ask.name),
        Intent::PlanApply(ask) => {
            let from = fleet.plans().get(&ask.name)?.specs.newest();
            let weakened = weakened_by_plan(fleet, &ask.name, from, &ask.spec);
            let (from, to) = (Box::new((**from).clone()), Box::new(ask.spec.clone()));
            let change = RequestedChange::PlanApply { name: ask.name.clone(), from, to };
            Some(AssessedChange::without_effects(change, weakened))
        }
        Intent::PolicyApply(ask) => {
            let now = fleet.policies().get(&ask.name);
            let weakened = policy::weakened(fleet, &ask.name, Some(&ask.spec));
            let from = now.map(|policy| (*policy.spec).clone());
            let change = RequestedChange::PolicyApply { name: ask.name.clone(), from, to: ask.spec.clone() };
            Some(AssessedChange::without_effects(change, weakened))
        }
        Intent::PolicyDelete(ask) => {
            let from = (*fleet.policies().get(&ask.name)?.spec).clone();
            let change = RequestedChange::PolicyDelete { name: ask.name.clone(), from };
            Some(AssessedChange::without_effects(change, policy::weakened(fleet, &ask.name, None)))
        }
        // Other intents end nothing, or only by operations. A test checks every intent that may wait.
        _ => None,
    }
}

fn plan_delete(fleet: &FleetState, name: &PlanName) -> Option<AssessedChange> {
    let plan = fleet.plans().get(name)?;
    let index = fleet.index().plan_index(name)?;
    let members = index.members().filter_map(|name| Some((name, fleet.replicas().get(name)?.desired)));
    // A replica whose delete was approved is deleted anyway.
    let members = members.filter(|(_, desired)| *desired != WillWord::Deleted);
    let (replicas, proposed): (BTreeSet<_>, BTreeSet<_>) =
        members.map(|(name, desired)| (name.clone(), desired == WillWord::Proposed)).unzip();
    // The end of a replica whose create was never approved needs no approval. A request still lists it: the
    // approval covers every replica that is deleted.
    if !proposed.contains(&false) {
        return None;
    }
    let manual = plan.immediate().approval().of(OperationKind::Delete);
    let mut policies = BTreeSet::new();
    if manual == ApprovalMode::Manual {
        let nodes = index.spread.nodes(&fleet.index().places);
        let nodes = nodes.filter_map(|(node, _)| fleet.nodes().get(node));
        let domains: BTreeSet<_> = nodes.map(|node| Some(&node.spec.domain)).chain([None]).collect();
        policies = four_eyes(fleet, |spec| {
            domains.iter().any(|domain| policy::is_about_work(spec, PolicyKind::Delete, Some(name), *domain))
        });
    }
    let change = RequestedChange::PlanDelete { name: name.clone() };
    let members = PlanMembers::from([(name.clone(), replicas)]);
    let needs = RequiredApproval::of(manual, policies);
    let wait = WAIT.min(plan.immediate().timeouts().approval());
    let assessed = AssessedChange::new(change, needs, PolicyKind::Delete, &members, &BTreeSet::new());
    Some(AssessedChange { wait, ..assessed })
}

/// Four-eyes policies that match the predicate.
fn four_eyes(fleet: &FleetState, about: impl Fn(&PolicySpec) -> bool) -> BTreeSet<PolicyName> {
    let all = fleet.index().policies.four_eyes.iter();
    all.filter(|(_, spec)| about(spec)).map(|(name, _)| name.clone()).collect()
}

/// Replicas that emptying the node would move, and the approval that single moves would need.
fn moves(fleet: &FleetState, node: &Node) -> (PlanMembers, ApprovalMode, BTreeSet<PolicyName>) {
    let (mut manual, mut policies) = (ApprovalMode::Automatic, BTreeSet::new());
    let members = on_node(fleet, &node.name);
    for plan in members.keys() {
        let by = fleet.plans().get(plan).map(|plan| plan.immediate().approval().of(OperationKind::Relocate));
        if by == Some(ApprovalMode::Manual) {
            manual = ApprovalMode::Manual;
            // The destination of a replica is not known yet.
            policies.extend(four_eyes(fleet, |spec| policy::is_about_plan(spec, PolicyKind::Relocate, plan)));
        }
    }
    (members, manual, policies)
}

fn on_node(fleet: &FleetState, node: &NodeName) -> PlanMembers {
    let mut members = PlanMembers::new();
    for (plan, id) in &fleet.index().places.held(node).incarnations {
        if let Some(incarnation) = fleet.incarnations().get(id) {
            members.entry(plan.clone()).or_default().insert(incarnation.replica.clone());
        }
    }
    members
}

fn expunge(fleet: &FleetState, name: &NodeName) -> Option<AssessedChange> {
    let node = fleet.nodes().get(name)?;
    let members = on_node(fleet, name);
    let volumes: BTreeSet<VolumeName> =
        fleet.index().volumes.on_node(name).into_iter().flatten().cloned().collect();
    let owner = |volume| fleet.replicas().get(fleet.volumes().get(volume)?.owner.as_ref()?);
    let mut plans: BTreeSet<Option<PlanName>> = members.keys().cloned().map(Some).collect();
    plans.extend(volumes.iter().map(|volume| owner(volume).map(|owner| owner.plan.clone())));
    let about = |spec: &PolicySpec| {
        plans.iter().any(|plan| {
            // A volume without owner may be kept for any plan.
            let plan = plan.as_ref().or(spec.plans.first());
            policy::is_about_work(spec, PolicyKind::Expunge, plan, Some(&node.spec.domain))
        })
    };
    let count = u32::try_from(volumes.len()).unwrap_or(u32::MAX);
    let change = RequestedChange::NodeExpunge { name: name.clone(), volumes: count };
    let needs = RequiredApproval::of(ApprovalMode::Automatic, four_eyes(fleet, about));
    Some(AssessedChange::new(change, needs, PolicyKind::Expunge, &members, &volumes))
}

fn volume_delete(fleet: &FleetState, name: &VolumeName) -> Option<AssessedChange> {
    let volume = fleet.volumes().get(name)?;
    let owner = volume.owner.as_ref().and_then(|owner| fleet.replicas().get(owner));
    let plan = owner.and_then(|owner| fleet.plans().get(&owner.plan));
    let manual =
        plan.is_none_or(|plan| plan.immediate().approval().of(OperationKind::Delete) == ApprovalMode::Manual);
    let domain = fleet.nodes().get(&volume.node).map(|node| &node.spec.domain);
    let about = |spec: &PolicySpec| {
        // A volume without owner may be kept for any plan.
        let plan = plan.map(|plan| &plan.name).or(spec.plans.first());
        policy::is_about_work(spec, PolicyKind::Delete, plan, domain)
    };
    let change = RequestedChange::VolumeDelete { name: name.clone(), id: volume.id };
    Some(AssessedChange::without_effects(change, four_eyes(fleet, |spec| manual && about(spec))))
}

/// Four-eyes policies that the plan would bypass by approving kinds automatically.
fn weakened_by_plan(
    fleet: &FleetState,
    name: &PlanName,
    from: &PlanSpec,
    to: &PlanSpec,
) -> BTreeSet<PolicyName> {
    let weaker = |kind: &&OperationKind| {
        from.approval.of(**kind) == ApprovalMode::Manual && to.approval.of(**kind) == ApprovalMode::Automatic
    };
    let kinds: Vec<_> =
        OperationKind::ALL.iter().filter(weaker).map(|kind| PolicyKind::from(*kind)).collect();
    four_eyes(fleet, |spec| kinds.iter().any(|kind| policy::is_about_plan(spec, *kind, name)))
}

/// Returns the facts of an accepted intent, or those of a request if the intent needs approval.
pub(crate) fn hold(
    fleet: &FleetState,
    intent: &Intent,
    decided: Vec<Fact>,
    ctx: &DecisionContext,
) -> DecidedFacts {
    let may_wait = intent.entry().ending.may_wait() && !decided.is_empty() && !breaks_glass(intent);
    let held = may_wait.then(|| assess(fleet, intent)).flatten();
    match held.filter(|held| held.needs != RequiredApproval::Nothing) {
        Some(held) => open(fleet, held, ctx),
        None => Ok(decided),
    }
}

fn breaks_glass(intent: &Intent) -> bool {
    matches!(intent, Intent::NodeSetState(NodeSetState { break_glass: Some(_), .. }))
}

/// Policies that an expunge with `break_glass` bypasses.
pub(crate) fn bypassed(fleet: &FleetState, node: &NodeName) -> Vec<PolicyName> {
    expunge(fleet, node).map(|held| held.needs.policies().into_iter().collect()).unwrap_or_default()
}

fn open(fleet: &FleetState, held: AssessedChange, ctx: &DecisionContext) -> DecidedFacts {
    let by = ctx.require_actor("a request")?;
    let waiting = waiting(fleet, &held.change);
    if waiting.is_some_and(|waiting| waiting.hash == held.hash && waiting.is_pending_at(ctx)) {
        return Ok(Vec::new());
    }
    let mut draft = FactDraft::new(ctx);
    let id = draft.id();
    let AssessedChange { change, effects, hash, needs, wait } = held;
    let policies = needs.policies().into_iter().collect();
    draft.push(RequestOpened { change, requested_by: by, effects, policies, hash, expires: ctx.now + wait });
    if let Some(waiting) = waiting {
        draft.push(RequestEnded { request: waiting.id, end: RequestEnd::Superseded { successor: id } });
    }
    Ok(draft.done())
}

/// Request that waits for the target of the change, if any.
fn waiting<'a>(fleet: &'a FleetState, change: &RequestedChange) -> Option<&'a ApprovalRequest> {
    fleet.approval_requests().get(&fleet.index().requests.waiting(&change.target())?)
}

/// Request as which an intent without other facts waits, if any: a request that was just created, or an
/// earlier one for the same change.
pub(crate) fn of_verdict(
    fleet: &FleetState,
    intent: &Intent,
    facts: &[Fact],
    ctx: &DecisionContext,
) -> Option<RequestId> {
    match (facts.first(), intent.entry().ending) {
        (Some(Fact::RequestOpened(_)), _) => Some(RequestId::issue(ctx.lineage, ctx.next)),
        (None, ending) if ending.may_wait() => {
            let held = assess(fleet, intent)?;
            let waiting = waiting(fleet, &held.change)?;
            (held.needs != RequiredApproval::Nothing && waiting.hash == held.hash).then_some(waiting.id)
        }
        _ => None,
    }
}

impl ApprovalRequest {
    /// Whether the request can be approved at the time of the context.
    fn is_pending_at(&self, ctx: &DecisionContext) -> bool {
        matches!(self.state, RequestState::Pending { expires } if expires > ctx.now)
    }

    /// Intent that is carried out when the request is approved.
    fn intent(&self) -> Intent {
        match self.change.clone() {
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
}

/// Returns the request if it is pending.
fn pending<'a>(
    fleet: &'a FleetState,
    id: RequestId,
    ctx: &DecisionContext,
) -> Result<&'a ApprovalRequest, Refusal> {
    let request = fleet.find::<ApprovalRequest>(&id)?;
    if request.is_pending_at(ctx) {
        return Ok(request);
    }
    let state = match &request.state {
        RequestState::Pending { .. } => RequestStatus::Expired,
        state => state_word(state),
    };
    Err(Refusal::new(RefusalCode::NotPending, format!("request {id} is {state}, not pending")))
}

/// Approves a request: its intent is decided as if it needed no approval.
pub(crate) fn approve(fleet: &FleetState, ask: &RequestApprove, ctx: &DecisionContext) -> DecidedFacts {
    let request = pending(fleet, ask.request, ctx)?;
    let by = ctx.require_actor("an approval")?;
    let (id, intent) = (request.id, request.intent());
    let now = assess(fleet, &intent).filter(|now| now.hash == request.hash);
    if now.is_none() || ask.hash != request.hash {
        let detail = format!("request {id} has other effects than were shown: request the change again");
        return Err(Refusal::new(RefusalCode::HashMismatch, detail).at("/hash", "differs"));
    }
    // The current policies count, not those at the time of the request.
    let policies = now.map(|now| now.needs.policies()).unwrap_or_default();
    if let Some(policy) = policies.first().filter(|_| request.requested_by == by) {
        let detail =
            format!("policy {policy} requires another approver of request {id} than {by}, who requested it");
        return Err(Refusal::new(RefusalCode::Denied, detail));
    }
    // The intent is carried out for its requester.
    let context =
        DecisionContext { actor: Some(request.requested_by.clone()), next: ctx.next.plus(1), ..ctx.clone() };
    let carried_out = by_type(fleet, &intent, &context)?;
    let mut draft = FactDraft::new(ctx);
    draft.push(RequestApproved { request: id, approved_by: by.clone(), hash: ask.hash });
    for mut fact in carried_out {
        if let Fact::DisruptionApproved(fact) = &mut fact {
            fact.approved_by = by.clone();
        }
        draft.push(fact);
    }
    Ok(draft.done())
}

pub(crate) fn reject(fleet: &FleetState, ask: &RequestReject, ctx: &DecisionContext) -> DecidedFacts {
    let mut faults = BodyErrors::default();
    let plain = ask.reason.len() <= 512 && !ask.reason.chars().any(char::is_control);
    faults.check(plain, "/reason", "must be at most 512 bytes, without control characters");
    faults.done()?;
    let request = pending(fleet, ask.request, ctx)?;
    let by = ctx.require_actor("a rejection")?;
    let end = RequestEnd::Rejected { rejected_by: by, reason: ask.reason.clone() };
    Ok(vec![RequestEnded { request: request.id, end }.into()])
}

/// Ends a request that was not approved in time.
pub(crate) fn expire(fleet: &FleetState, id: RequestId, ctx: &DecisionContext) -> Vec<Fact> {
    let overdue = fleet
        .approval_requests()
        .get(&id)
        .filter(|request| matches!(request.state, RequestState::Pending { expires } if expires <= ctx.now));
    overdue.map(|_| RequestEnded { request: id, end: RequestEnd::Expired }.into()).into_iter().collect()
}

/// Returns the status value of a state.
pub const fn state_word(state: &RequestState) -> RequestStatus {
    match state {
        RequestState::Pending { .. } => RequestStatus::Pending,
        RequestState::Approved { .. } => RequestStatus::Approved,
        RequestState::Ended(RequestEnd::Rejected { .. }) => RequestStatus::Rejected,
        RequestState::Ended(RequestEnd::Expired) => RequestStatus::Expired,
        RequestState::Ended(RequestEnd::Superseded { .. }) => RequestStatus::Superseded,
    }
}

pub(crate) fn opened(fleet: &mut FleetState, fact: &RequestOpened, at: FactPosition) {
    fleet.put(ApprovalRequest {
        id: RequestId::issue(at.lineage, at.position),
        change: fact.change.clone(),
        requested_by: fact.requested_by.clone(),
        effects: fact.effects.clone(),
        policies: fact.policies.clone(),
        hash: fact.hash,
        state: RequestState::Pending { expires: fact.expires },
        meta: EntityMeta::new(at),
    });
}

pub(crate) fn approved(fleet: &mut FleetState, fact: &RequestApproved, at: FactPosition) -> FoldResult {
    close(fleet, fact.request, RequestState::Approved { approved_by: fact.approved_by.clone() }, at)
}

pub(crate) fn ended(fleet: &mut FleetState, fact: &RequestEnded, at: FactPosition) -> FoldResult {
    close(fleet, fact.request, RequestState::Ended(fact.end.clone()), at)
}

fn close(fleet: &mut FleetState, id: RequestId, state: RequestState, at: FactPosition) -> FoldResult {
    fleet.bump::<ApprovalRequest>(&id, at, |request| request.state = state)?;
    let ended = &fleet.index().requests.ended;
    let surplus: Vec<_> = ended.iter().take(ended.len().saturating_sub(KEPT)).copied().collect();
    surplus.into_iter().try_for_each(|id| fleet.remove::<ApprovalRequest>(&id))
}
