//! Finding a place for an operation, and holding it until somebody approves.

use chancery_events::digest::Digest;
use chancery_events::fact::{Fact, IncarnationReserved, OperationEnd, PlanWaiting, Proposal, Unfit};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::name::{NodeName, ReplicaName};
use chancery_events::spec::{NodeState, OperationKind, PlanSpec, Sharing, Succession};

use super::begin::{Begun, How};
use super::{begin, end, obstacle, rule, spec_of};
use crate::context::{Context, Draft};
use crate::fleet::Fleet;
use crate::scheduler::{Limits, Need, Place, Search, Stored};
use crate::state::{Deployment, Incarnation, Operation, Plan, Replica};
use crate::{deployment, disruption, volume};

/// Looks for a place for an operation of the plan that has none: facts if something came of it, `None` if the
/// answer is the same as before, or if it does not speak for all of the plan's that have none.
pub(crate) fn prepare(
    fleet: &Fleet,
    search: &mut Search,
    plan: &Plan,
    operation: OperationId,
    speaks: bool,
    ctx: &Context,
) -> Option<Vec<Fact>> {
    let operation = fleet.operations().get(&operation)?;
    let replica = fleet.replicas().get(&operation.replica)?;
    let (deployment, spec) = spec_of(fleet, plan, operation)?;
    let old = replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation));
    let mut draft = Draft::new(ctx);
    if disruption::is_over(fleet, operation) {
        let reason = "the disruption is over".to_owned();
        end(fleet, operation, OperationEnd::Cancelled { reason }, &mut draft);
        return Some(draft.done());
    }
    // What is left of an earlier run has to be over first: at most two hold a place.
    if replica.passive.is_some() {
        return None;
    }
    let stored = volume::stored(fleet, spec, &replica.name);
    let found =
        stored.map_err(|reason| vec![Unfit { reason, count: 0, nodes: Vec::new() }]).and_then(|stored| {
            find(fleet, search, plan, operation, old, (deployment, spec), &stored)
                .map(|found| (found, stored))
        });
    match found {
        Ok((found, stored)) => {
            reserve(fleet, plan, operation, replica, deployment, &found, &stored, ctx, &mut draft);
        }
        Err(reasons) if reasons == plan.unfit || !speaks => return None,
        Err(reasons) => draft.push(PlanWaiting { plan: plan.name.clone(), reasons }),
    }
    Some(draft.done())
}

/// A place, and the run that must be over before it is used.
struct Found {
    place: Place,
    follows: Option<IncarnationId>,
}

fn find(
    fleet: &Fleet,
    search: &mut Search,
    plan: &Plan,
    operation: &Operation,
    old: Option<&Incarnation>,
    (deployment, spec): (&Deployment, &std::sync::Arc<PlanSpec>),
    stored: &[Stored],
) -> Result<Found, Vec<Unfit>> {
    let stop_first = match operation.kind {
        OperationKind::Restart => true,
        OperationKind::Update => spec.update == Succession::StopFirst,
        OperationKind::Create
        | OperationKind::Start
        | OperationKind::Relocate
        | OperationKind::Stop
        | OperationKind::Delete => false,
    };
    // What is in a volume cannot be in two places.
    let shares = |old: &Incarnation| {
        volume::names(spec, &operation.replica).iter().any(|name| old.ties.mounts.contains(name))
    };
    let stop_first = stop_first || old.is_some_and(shares);
    // What runs is not stopped for what cannot begin yet.
    if let Some(old) = old.filter(|_| stop_first)
        && let Some(reason) = volume::used_by_another(fleet, spec, &operation.replica, old)
    {
        return Err(vec![Unfit { reason, count: 0, nodes: Vec::new() }]);
    }
    let follows = old.filter(|_| stop_first).map(|old| old.id);
    if let Some(old) = old.filter(|_| stop_first)
        && operation.wants.is_none()
        && operation.kind != OperationKind::Relocate
        && let Some(place) = stays(fleet, plan, spec, old, stored)
    {
        return Ok(Found { place, follows });
    }
    let limits = Limits {
        only: operation.wants.as_ref(),
        not: old.filter(|_| operation.kind == OperationKind::Relocate).map(|old| &old.node),
        own: old,
        stored,
    };
    let need = Need { plan: &plan.name, deployment: &deployment.name, spec };
    // Where its volumes are, if they are somewhere: they need not come elsewhere.
    let near = stored.first().map(|volume| &volume.node).filter(|_| limits.only.is_none());
    if let Some(near) = near
        && let Ok(place) = search.place(fleet, &need, &Limits { only: Some(near), ..limits })
    {
        return Ok(Found { place, follows });
    }
    search.place(fleet, &need, &limits).map(|place| Found { place, follows })
}

/// The node that the old run is on, if the new one can be there when that is over: what both need, the old one holds
/// for it until then.
fn stays(fleet: &Fleet, plan: &Plan, spec: &PlanSpec, old: &Incarnation, stored: &[Stored]) -> Option<Place> {
    let node = fleet.nodes().get(&old.node)?;
    if node.state != NodeState::Allocated || !node.is_undisturbed() {
        return None;
    }
    let hosts = fleet.index().plan_index(&plan.name).map_or(0, |index| index.hosts.get(&node.name));
    let alone = spec.sharing == Sharing::Allowed || hosts <= 1;
    let more = spec.amounts().less(old.amounts);
    let places = &fleet.index().places;
    let storage = crate::scheduler::storage(spec, stored, &node.name);
    let near = stored.iter().all(|volume| node.cluster.as_ref() == Some(&volume.cluster));
    let fits = more.fits(places.free(node))
        && near
        && places.lacks_storage(&node.name, &storage).is_none()
        && crate::scheduler::suits_class(fleet, spec, node);
    let limits = Limits { own: Some(old), ..Limits::default() };
    let firm = crate::scheduler::strain(fleet, spec, &node.name, &limits, crate::scheduler::Strict::Firm);
    let strained = crate::scheduler::strain(fleet, spec, &node.name, &limits, crate::scheduler::Strict::All);
    let place = Place { node: node.name.clone(), domain: node.spec.domain.clone(), strained };
    (alone && fits && firm.is_none()).then_some(place)
}

#[expect(
    clippy::too_many_arguments,
    reason = "each is a different thing, and a struct would only rename them"
)]
fn reserve(
    fleet: &Fleet,
    plan: &Plan,
    operation: &Operation,
    replica: &Replica,
    deployment: &Deployment,
    found: &Found,
    stored: &[Stored],
    ctx: &Context,
    draft: &mut Draft,
) {
    let spec = plan.spec_of(deployment.generation);
    let Found { place, follows } = found;
    let rule = rule(plan, operation.kind, operation.by.as_deref());
    if let Some(reason) = obstacle(fleet, &place.node, spec).filter(|_| rule.is_some()) {
        end(fleet, operation, OperationEnd::Failed { reason }, draft);
        return;
    }
    let where_to = (&place.node, *follows, place.strained.as_deref());
    let hash = up_hash(operation.kind, &replica.name, where_to, deployment);
    let incarnation = draft.id();
    draft.push(IncarnationReserved {
        operation: operation.id,
        replica: replica.name.clone(),
        node: place.node.clone(),
        deployment: deployment.name.clone(),
        amounts: spec.amounts(),
        volumes: crate::scheduler::storage(spec, stored, &place.node),
        proposal: Proposal { hash, expires: ctx.now + plan.spec.timeouts.approval() },
        follows: *follows,
        groups: deployment::affinity(spec),
        strained: place.strained.clone(),
        mounts: volume::names(spec, &replica.name),
    });
    let Some(by) = rule else { return };
    let begun = Begun {
        id: operation.id,
        kind: operation.kind,
        replica,
        deployment: operation.deployment.as_ref(),
        incarnation: Some(incarnation),
        follows: *follows,
        version: &deployment.name,
    };
    let how = How::Approved { by, hash };
    begin(fleet, &begun, how, ctx, draft);
}

/// The hash of everything that an operation that brings something up, or changes it, will do: where, by which payloads
/// and coordinates, what is over before that, and what it breaks there.
pub(super) fn up_hash(
    kind: OperationKind,
    replica: &ReplicaName,
    (node, follows, strained): (&NodeName, Option<IncarnationId>, Option<&str>),
    deployment: &Deployment,
) -> Digest {
    let version = deployment.version.bits().to_be_bytes();
    let follows = follows.map(|id| id.to_string());
    let mut parts =
        vec![kind.word().as_bytes(), replica.as_str().as_bytes(), node.as_str().as_bytes(), &version];
    parts.extend(follows.as_ref().map(String::as_bytes));
    parts.extend(strained.map(str::as_bytes));
    Digest::of(&parts)
}
