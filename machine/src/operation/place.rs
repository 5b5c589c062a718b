//! Placement of operations, and reservations until approval.

use chancery_events::digest::Digest;
use chancery_events::fact::{
    ApprovalProposal, Fact, IncarnationReserved, OperationEnd, PlanUnschedulable, UnschedulableReason,
};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::name::{NodeName, ReplicaName};
use chancery_events::spec::{NodeState, OperationKind, PlanVersion, ProbePurpose, UpdateOrder};

use super::begin::{StartTrigger, StartingOperation};
use super::end::holds_place;
use super::{begin, end, rule, version_of};
use crate::context::{DecisionContext, FactDraft};
use crate::fleet::FleetState;
use crate::scheduler::{
    self, AffinityFilter, ExistingVolume, NodePlacement, PlacementCache, PlacementConstraints,
    PlacementRequest,
};
use crate::state::{Deployment, Incarnation, Node, Operation, OperationState, Plan, Replica};
use crate::{deployment, disruption, incarnation, rebalance, volume};

/// Searches a placement for an unplaced operation of the plan. Returns `None` if the result is unchanged, or
/// if a failure is not valid for all unplaced operations of the plan (`speaks`).
pub(crate) fn prepare(
    fleet: &FleetState,
    search: &mut PlacementCache,
    plan: &Plan,
    operation: OperationId,
    speaks: bool,
    ctx: &DecisionContext,
) -> Option<Vec<Fact>> {
    let operation = fleet.operations().get(&operation)?;
    let replica = fleet.replicas().get(&operation.replica)?;
    let (deployment, version) = version_of(fleet, plan, operation)?;
    let old = replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation));
    let mut draft = FactDraft::new(ctx);
    if disruption::is_over(fleet, operation) {
        let reason = "the disruption has ended".to_owned();
        end(fleet, operation, OperationEnd::Cancelled { reason }, &mut draft);
        return Some(draft.done());
    }
    // The rest of an earlier incarnation must end first: a replica has at most two reservations.
    if replica.secondary.is_some() {
        return None;
    }
    let stored = volume::stored(fleet, version, &replica.name);
    let found = stored.map_err(|reason| vec![scheduler::without_nodes(reason)]).and_then(|stored| {
        let sought = SearchCriteria {
            kind: operation.kind,
            required_node: operation.required_node.as_ref(),
            reports: speaks,
        };
        find(fleet, search, plan, &sought, (replica, old), (deployment, version), &stored)
            .map(|found| (found, stored))
    });
    if operation.purpose == Some(ProbePurpose::Rebalance) {
        let spread = fleet.index().plan_index(&plan.name).map(|index| &index.spread);
        let to = found.as_ref().ok().map(|(found, _)| &found.place);
        let improves = |((spread, from), to)| rebalance::improves(fleet, spread, from, to);
        if !spread.zip(replica.remaining()).zip(to).is_some_and(improves) {
            let reason = "the move would no longer make the spread more even".to_owned();
            end(fleet, operation, OperationEnd::Cancelled { reason }, &mut draft);
            return Some(draft.done());
        }
    }
    match found {
        Ok((found, stored)) => {
            reserve(fleet, plan, operation, replica, deployment, &found, &stored, ctx, &mut draft);
        }
        Err(_) if deployment::takes_over(fleet, plan, operation, replica) => {
            deployment::take_over(fleet, plan, replica, &mut draft);
        }
        Err(reasons) if reasons == plan.unschedulable || !speaks => return None,
        Err(reasons) => draft.push(PlanUnschedulable { plan: plan.name.clone(), reasons }),
    }
    Some(draft.done())
}

/// Whether the operation, if it finds no placement, is replaced by the current deployment's version.
pub(crate) fn is_replaceable(fleet: &FleetState, plan: &Plan, operation: OperationId) -> bool {
    let Some(operation) = fleet.operations().get(&operation) else { return false };
    let replica = fleet.replicas().get(&operation.replica);
    replica.is_some_and(|replica| deployment::takes_over(fleet, plan, operation, replica))
}

/// Placement that a move of the replica would find now.
pub(crate) fn place_of_move(
    fleet: &FleetState,
    search: &mut PlacementCache,
    plan: &Plan,
    replica: &Replica,
) -> Option<NodePlacement> {
    let deployment = fleet.deployment(&plan.name, &replica.deployment)?;
    let version = plan.version_of(deployment.generation);
    let old = replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation));
    let stored = volume::stored(fleet, version, &replica.name).ok()?;
    let sought = SearchCriteria { kind: OperationKind::Relocate, required_node: None, reports: false };
    let found = find(fleet, search, plan, &sought, (replica, old), (deployment, version), &stored);
    found.ok().map(|found| found.place)
}

/// Criteria of a placement search.
struct SearchCriteria<'a> {
    kind: OperationKind,
    /// Required node, if any.
    required_node: Option<&'a NodeName>,
    /// Whether the caller reports the reasons for a failed search: collecting them visits every node.
    reports: bool,
}

/// Placement, and the incarnation that must end before its use.
struct FoundPlacement {
    place: NodePlacement,
    starts_after: Option<IncarnationId>,
}

fn find(
    fleet: &FleetState,
    search: &mut PlacementCache,
    plan: &Plan,
    sought: &SearchCriteria<'_>,
    (replica, old): (&Replica, Option<&Incarnation>),
    (deployment, version): (&Deployment, PlanVersion<'_>),
    stored: &[ExistingVolume],
) -> Result<FoundPlacement, Vec<UnschedulableReason>> {
    let stop_first = stops_first(plan, sought.kind, &replica.name, version, old);
    // An incarnation is not stopped for a replacement that cannot start yet.
    if let Some(old) = old.filter(|_| stop_first)
        && let Some(reason) = volume::used_by_another(fleet, version, &replica.name, old)
    {
        return Err(vec![scheduler::without_nodes(reason)]);
    }
    let starts_after = old.filter(|_| stop_first).map(|old| old.id);
    let need = request(plan, deployment, version);
    if let Some(old) = old.filter(|_| stop_first)
        && sought.required_node.is_none()
        && sought.kind != OperationKind::Relocate
        && let Some(place) = stays(fleet, &need, old, stored)
    {
        return Ok(FoundPlacement { place, starts_after });
    }
    let limits = PlacementConstraints {
        only: sought.required_node,
        not: old.filter(|_| sought.kind == OperationKind::Relocate).map(|old| &old.node),
        own: old,
        held: None,
        leaves: replica.remaining(),
        stored,
    };
    // The node of the volumes comes first: there they need not move.
    let near = stored.first().map(|volume| &volume.node);
    let near = near.filter(|near| limits.only.is_none() && limits.not != Some(*near));
    let near = near
        .and_then(|near| search.place(fleet, &need, &PlacementConstraints { only: Some(near), ..limits }));
    match near.or_else(|| search.place(fleet, &need, &limits)) {
        Some(place) => Ok(FoundPlacement { place, starts_after }),
        None if !sought.reports => Err(Vec::new()),
        None => Err(scheduler::explain(fleet, &need, &limits)),
    }
}

/// Returns the request for a placement of the deployment's version.
pub(super) fn request<'a>(
    plan: &'a Plan,
    deployment: &'a Deployment,
    version: PlanVersion<'a>,
) -> PlacementRequest<'a> {
    PlacementRequest {
        plan: &plan.name,
        deployment: &deployment.name,
        immediate: plan.immediate(),
        version,
        coordinates: &deployment.spec.coordinates,
    }
}

/// Whether the old incarnation ends before the new one is started.
fn stops_first(
    plan: &Plan,
    kind: OperationKind,
    replica: &ReplicaName,
    version: PlanVersion<'_>,
    old: Option<&Incarnation>,
) -> bool {
    // A volume's data cannot be in two places.
    let shares =
        |old: &Incarnation| volume::names(version, replica).iter().any(|name| old.ties.mounts.contains(name));
    let by_kind = match kind {
        OperationKind::Restart => true,
        OperationKind::Update => *plan.immediate().update_order() == UpdateOrder::StopFirst,
        OperationKind::Create
        | OperationKind::Start
        | OperationKind::Relocate
        | OperationKind::Reboot
        | OperationKind::Stop
        | OperationKind::Delete => false,
    };
    by_kind || old.is_some_and(shares)
}

/// Releases a reservation that an earlier spec of the plan allowed and the current one forbids. A running
/// operation keeps its reservation.
pub(crate) fn replace(fleet: &FleetState, held: IncarnationId, ctx: &DecisionContext) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    let Some(held) = fleet.incarnations().get(&held) else { return Vec::new() };
    let operation = fleet.operations().get(&held.operation);
    let broken = operation.and_then(|operation| {
        let outdated = OutdatedReservation::of(fleet, operation)?;
        outdated.forbidden(fleet, operation).or_else(|| outdated.unwanted(fleet, operation))
    });
    if let Some(broken) = broken {
        let reason = format!("plan {} has changed: {broken}", held.plan);
        incarnation::displace(fleet, held, reason, &mut draft);
    }
    draft.done()
}

/// Unused reservation from an earlier spec of its plan.
struct OutdatedReservation<'a> {
    plan: &'a Plan,
    held: &'a Incarnation,
    node: &'a Node,
    /// Existing incarnation of the replica.
    old: Option<&'a Incarnation>,
}

impl<'a> OutdatedReservation<'a> {
    fn of(fleet: &'a FleetState, operation: &Operation) -> Option<OutdatedReservation<'a>> {
        let held = holds_place(fleet, operation)?;
        let plan = fleet.plans().get(&operation.plan).filter(|plan| held.placed_by < plan.generation)?;
        if matches!(operation.state, OperationState::Running) {
            return None;
        }
        let node = fleet.nodes().get(&held.node)?;
        let active = fleet.replicas().get(&operation.replica)?.active.as_ref();
        let old = active.filter(|active| active.incarnation != held.id);
        let old = old.and_then(|active| fleet.incarnations().get(&active.incarnation));
        Some(OutdatedReservation { plan, held, node, old })
    }

    fn limits(&self) -> PlacementConstraints<'a> {
        PlacementConstraints { own: self.old, held: Some(self.held), ..PlacementConstraints::default() }
    }

    /// Reason why the plan forbids the node, considering only the plan's replicas on it.
    fn forbidden(&self, fleet: &FleetState, operation: &Operation) -> Option<String> {
        let immediate = self.plan.immediate();
        let (deployment, version) = version_of(fleet, self.plan, operation)?;
        scheduler::unfit_class(fleet, &request(self.plan, deployment, version), self.node).or_else(|| {
            let known = scheduler::on_node(fleet, &self.plan.name, &self.node.name);
            let shared = scheduler::is_shared(immediate, known, &self.node.name, &self.limits());
            shared.then(|| "the node already has a replica of the plan".into())
        })
    }

    /// Other reasons why the plan forbids the placement: affinity, and the order of updates.
    fn unwanted(&self, fleet: &FleetState, operation: &Operation) -> Option<String> {
        let (immediate, limits, node) = (self.plan.immediate(), self.limits(), &self.node.name);
        if let Some(reason) =
            scheduler::violated_affinities(fleet, immediate, node, &limits, AffinityFilter::RequiredOnly)
        {
            return Some(reason);
        }
        let affinity_violated =
            scheduler::violated_affinities(fleet, immediate, node, &limits, AffinityFilter::All);
        if let Some(reason) =
            affinity_violated.filter(|strained| self.held.ties.affinity_violated.as_ref() != Some(strained))
        {
            return Some(reason);
        }
        let (_, version) = version_of(fleet, self.plan, operation)?;
        let stop_first = self.old.is_some()
            && stops_first(self.plan, operation.kind, &operation.replica, version, self.old);
        (stop_first != self.held.ties.starts_after.is_some())
            .then(|| "its replicas are updated in another order".into())
    }
}

/// Reason why the plan forbids the node of an operation's reservation, if an earlier spec chose
/// that node. [`replace`] finds the same reason: the operation does not keep the reservation.
pub(super) fn forbidden(fleet: &FleetState, operation: &Operation) -> Option<String> {
    OutdatedReservation::of(fleet, operation)?.forbidden(fleet, operation)
}

/// Node of the old incarnation, if the new one fits there afterwards: until then, the old one's reservation
/// covers what both need.
fn stays(
    fleet: &FleetState,
    need: &PlacementRequest<'_>,
    old: &Incarnation,
    stored: &[ExistingVolume],
) -> Option<NodePlacement> {
    let node = fleet.nodes().get(&old.node)?;
    if node.state != NodeState::Allocated || !node.is_schedulable() {
        return None;
    }
    let (immediate, version) = (need.immediate, need.version);
    let limits = PlacementConstraints { own: Some(old), ..PlacementConstraints::default() };
    let known = scheduler::on_node(fleet, need.plan, &node.name);
    let alone = !scheduler::is_shared(immediate, known, &node.name, &limits);
    let more = version.resources().less(old.resources);
    let places = &fleet.index().places;
    let storage = scheduler::storage(version, stored, &node.name);
    let near = stored.iter().all(|volume| node.cluster.as_ref() == Some(&volume.cluster));
    let fits = more.fits(places.free(node))
        && near
        && places.lacks_storage(&node.name, &storage).is_none()
        && scheduler::unfit_class(fleet, need, node).is_none();
    let firm =
        scheduler::violated_affinities(fleet, immediate, &node.name, &limits, AffinityFilter::RequiredOnly);
    let affinity_violated =
        scheduler::violated_affinities(fleet, immediate, &node.name, &limits, AffinityFilter::All);
    let place =
        NodePlacement { node: node.name.clone(), domain: node.spec.domain.clone(), affinity_violated };
    (alone && fits && firm.is_none()).then_some(place)
}

#[expect(
    clippy::too_many_arguments,
    reason = "each is a different thing, and a struct would only rename them"
)]
fn reserve(
    fleet: &FleetState,
    plan: &Plan,
    operation: &Operation,
    replica: &Replica,
    deployment: &Deployment,
    found: &FoundPlacement,
    stored: &[ExistingVolume],
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let (immediate, version) = (plan.immediate(), plan.version_of(deployment.generation));
    let FoundPlacement { place, starts_after: follows } = found;
    let rule = rule(plan, operation.kind, operation.requested_by.as_deref());
    let where_to = (&place.node, *follows, place.affinity_violated.as_deref());
    let hash = up_hash(operation.kind, &replica.name, where_to, deployment);
    let incarnation = draft.id();
    draft.push(IncarnationReserved {
        operation: operation.id,
        replica: replica.name.clone(),
        node: place.node.clone(),
        deployment: deployment.name.clone(),
        resources: version.resources(),
        reserved_storage: scheduler::storage(version, stored, &place.node),
        proposal: ApprovalProposal { hash, expires: ctx.now + immediate.timeouts().approval() },
        starts_after: *follows,
        groups: immediate.groups(),
        affinity_violated: place.affinity_violated.clone(),
        mounts: volume::names(version, &replica.name),
    });
    let Some(by) = rule else { return };
    let begun = StartingOperation {
        id: operation.id,
        kind: operation.kind,
        replica,
        deployment: operation.deployment.as_ref(),
        incarnation: Some(incarnation),
        starts_after: *follows,
    };
    let how = StartTrigger::Approval { approved_by: by, hash };
    begin(fleet, &begun, how, ctx, draft);
}

/// Hash of the effects of an operation that starts or changes an incarnation: node, payloads and coordinates,
/// the incarnation that ends first, and violated affinities.
pub(super) fn up_hash(
    kind: OperationKind,
    replica: &ReplicaName,
    (node, follows, strained): (&NodeName, Option<IncarnationId>, Option<&str>),
    deployment: &Deployment,
) -> Digest {
    let version = deployment.version.bits().to_be_bytes();
    let starts_after = follows.map(|id| id.to_string());
    let mut parts =
        vec![kind.word().as_bytes(), replica.as_str().as_bytes(), node.as_str().as_bytes(), &version];
    parts.extend(starts_after.as_ref().map(String::as_bytes));
    parts.extend(strained.map(str::as_bytes));
    Digest::of(&parts)
}
