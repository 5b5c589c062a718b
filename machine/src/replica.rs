//! Replicas: named entities with a desired state. Requests about a replica become operations.
//!
//! | intent \ now | create or start waits | create or start runs | other waits | other runs | stop open | delete open | runs | does not run |
//! |---|---|---|---|---|---|---|---|---|
//! | start | no-op | no-op | no-op | no-op | cancels a stop that waits, else refused | refused | no-op | start |
//! | relocate | refused | refused | superseded; same relocate: no-op | refused | refused | refused | relocate | refused |
//! | restart | refused | refused | superseded; a restart: no-op | refused | refused | refused | restart | start |
//! | reboot | refused | refused | refused; a reboot: no-op | refused; a reboot: no-op | refused | refused | reboot, unless it is no virtual machine | refused |
//! | stop | a start is superseded; refused if nothing was ever approved | stop waits behind it | superseded | stop waits behind it | no-op | refused | stop | stop; no-op if stopped |
//! | delete | superseded by delete | delete waits behind it | superseded | delete waits behind it | superseded, or waits behind it | no-op | delete | delete |
//!
//! The console of a replica can be opened while an incarnation of it runs, whatever operation is open.
//!
//! A replica whose create was never approved is deleted with it: there is nothing to stop or delete.
//!
//! Clients see the *phase* of a replica, computed only by [`phase`]. The phases `stopped` and `failed` appear
//! only when a start would be accepted.

use chancery_events::fact::{
    ConsoleOpened, Fact, IncarnationEnd, OperationEnd, OperationEnded, ReplicaCreated, ReplicaDeleted,
    ReplicaDeploymentChanged, Requester, RestartBackoff,
};
use chancery_events::id::OperationId;
use chancery_events::intent::{
    ConsoleOpen, ReplicaCreate, ReplicaDelete, ReplicaReboot, ReplicaRelocate, ReplicaRestart, ReplicaStart,
    ReplicaStop,
};
use chancery_events::lifecycle::{PhaseStatus, WillWord};
use chancery_events::name::{NodeName, ReplicaName};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{ClusterActivity, ClusterRuntime, OperationKind, RestartPolicy};
use smallvec::SmallVec;

use crate::context::{DecisionContext, FactDraft};
use crate::fleet::{FleetState, FoldResult};
use crate::meta::{EntityMeta, FactPosition};
use crate::operation::{self, OperationRequest};
use crate::refuse::{DecidedFacts, invalid_transition};
use crate::state::{
    Deployment, DeploymentState, Incarnation, IncarnationState, Node, OpenOperation, Operation,
    OperationState, Plan, Replica,
};
use crate::{deployment, volume};

impl Replica {
    /// Scheduled automatic restart, unless an open operation or an incarnation precedes it.
    pub fn scheduled_restart(&self) -> Option<RestartBackoff> {
        let up = |open: OpenOperation| !matches!(open.kind, OperationKind::Stop | OperationKind::Delete);
        self.next_restart.filter(|_| !self.open().any(up) && self.runs().next().is_none())
    }
}

/// Returns the phase of a replica, given its active incarnation.
pub fn phase(replica: &Replica, active: Option<&Incarnation>) -> PhaseStatus {
    if replica.desired == WillWord::Deleted {
        return PhaseStatus::Deleting;
    }
    match replica.operation.filter(|open| open.started).map(|open| open.kind) {
        Some(OperationKind::Update) if active.is_some() => return PhaseStatus::Updating,
        Some(OperationKind::Restart) if active.is_some() => return PhaseStatus::Restarting,
        Some(OperationKind::Reboot) if active.is_some() => return PhaseStatus::Rebooting,
        // Otherwise the incarnation determines the phase.
        Some(_) | None => {}
    }
    match active.map(|incarnation| &incarnation.state) {
        Some(IncarnationState::Reserved) => return PhaseStatus::Pending,
        Some(IncarnationState::Creating | IncarnationState::Starting) => return PhaseStatus::Starting,
        Some(IncarnationState::Running) if active.is_some_and(Incarnation::is_rebooting) => {
            return PhaseStatus::Rebooting;
        }
        Some(IncarnationState::Running) => return PhaseStatus::Running,
        // The incarnation is being reverted.
        Some(IncarnationState::Updating(_)) => return PhaseStatus::Updating,
        Some(IncarnationState::Stopping(_)) => return PhaseStatus::Stopping,
        Some(IncarnationState::Ended(_)) | None => {}
    }
    let brings_up = |open: OpenOperation| !matches!(open.kind, OperationKind::Stop | OperationKind::Delete);
    if replica.open().any(brings_up) {
        return PhaseStatus::Pending;
    }
    match (replica.desired, replica.last_end.as_deref()) {
        (WillWord::Running, Some(IncarnationEnd::Failed { .. } | IncarnationEnd::Unwound { .. }) | None) => {
            PhaseStatus::Failed
        }
        // The replica was stopped for a replacement that failed.
        (WillWord::Running, Some(IncarnationEnd::Destroyed | IncarnationEnd::PoweredOff))
            if replica.next_restart.is_some() =>
        {
            PhaseStatus::Failed
        }
        (WillWord::Running, Some(IncarnationEnd::Destroyed | IncarnationEnd::PoweredOff))
        | (WillWord::Stopped | WillWord::GuestShutdown | WillWord::Proposed, _) => PhaseStatus::Stopped,
        (WillWord::Deleted, _) => PhaseStatus::Deleting,
    }
}

/// Open operation of the replica with the given kind, if any.
fn open<'a>(fleet: &'a FleetState, replica: &Replica, wanted: OperationKind) -> Option<&'a Operation> {
    replica.open().find(|open| open.kind == wanted).and_then(|open| fleet.operations().get(&open.id))
}

/// Returns only the facts that create an operation.
fn opened(
    fleet: &FleetState,
    replica: &Replica,
    want: &OperationRequest<'_>,
    ctx: &DecisionContext,
) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    operation::open(fleet, replica, want, ctx, &mut draft);
    draft.done()
}

/// Checks that a requested node exists.
fn check_node(fleet: &FleetState, node: Option<&NodeName>) -> Result<(), Refusal> {
    let found = node.map_or(Ok(()), |name| fleet.find::<Node>(name).map(|_| ()));
    found.map_err(|refusal| refusal.at("/node", "does not exist"))
}

pub(crate) fn start(fleet: &FleetState, ask: &ReplicaStart, ctx: &DecisionContext) -> DecidedFacts {
    let replica = fleet.find::<Replica>(&ask.name)?;
    check_node(fleet, ask.node.as_ref())?;
    let what = format!("replica {}", ask.name);
    if replica.is_deleting() {
        return Err(invalid_transition(&what, "being deleted", "running"));
    }
    let stop = open(fleet, replica, OperationKind::Stop);
    let down = [OperationKind::Stop, OperationKind::Delete];
    let is_coming = replica.open().any(|open| !down.contains(&open.kind));
    let active = replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation));
    let mut draft = FactDraft::new(ctx);
    if let Some(stop) = stop {
        if matches!(stop.state, OperationState::Running) {
            return Err(invalid_transition(&what, "stopping", "running"));
        }
        let reason = format!("{} requested a start", ctx.actor.as_ref().map_or("someone", |a| a.as_str()));
        // Only the stop ends: the replica stays, whatever the state of its create.
        let (operation, replica) = (stop.id, stop.replica.clone());
        draft.push(OperationEnded { operation, replica, end: OperationEnd::Cancelled { reason } });
    }
    match active.map(|incarnation| &incarnation.state) {
        Some(IncarnationState::Stopping(_)) if replica.secondary.is_none() => {
            return Err(invalid_transition(&what, "stopping", "running"));
        }
        None if !is_coming => {}
        Some(_) | None => return Ok(draft.done()),
    }
    let plan = fleet.plans().get(&replica.plan);
    if plan.is_none_or(|plan| plan.activity == ClusterActivity::Inactive) {
        return Err(Refusal::new(RefusalCode::Inactive, format!("plan {} is inactive", replica.plan)));
    }
    let want = OperationRequest::asked(OperationKind::Start, ask.node.as_ref(), ctx);
    operation::push_opened(&ask.name, &want, None, &mut draft);
    Ok(draft.done())
}

/// Returns the incarnation that a relocate or restart would replace, `None` if an equal operation is open.
fn replaceable<'a>(
    fleet: &'a FleetState,
    replica: &Replica,
    kind: OperationKind,
    node: Option<&NodeName>,
) -> Result<Option<&'a Incarnation>, Refusal> {
    let what = format!("replica {}", replica.name);
    let to = if kind == OperationKind::Relocate { "relocated" } else { "restarted" };
    if replica.is_deleting() {
        return Err(invalid_transition(&what, "being deleted", to));
    }
    for open in replica.open() {
        let wants = fleet.operations().get(&open.id).and_then(|operation| operation.required_node.as_ref());
        if open.kind == kind && wants == node {
            return Ok(None);
        }
        if open.started || !open.kind.needs_incarnation() {
            return Err(busy(&what, to, open));
        }
    }
    let active = replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation));
    let runs =
        |run: &Incarnation| matches!(run.state, IncarnationState::Running | IncarnationState::Updating(_));
    if active.is_some_and(runs) {
        return Ok(active);
    }
    Err(invalid_transition(&what, phase(replica, active).word(), to))
}

/// Refusal for a replica of which another operation is open.
fn busy(what: &str, to: &str, open: OpenOperation) -> Refusal {
    let done = if open.started { "is being carried out" } else { "waits" };
    Refusal::new(RefusalCode::InUse, format!("{what} cannot be {to} now: a {} of it {done}", open.kind))
}

pub(crate) fn relocate(fleet: &FleetState, ask: &ReplicaRelocate, ctx: &DecisionContext) -> DecidedFacts {
    let replica = fleet.find::<Replica>(&ask.name)?;
    check_node(fleet, ask.node.as_ref())?;
    let Some(active) = replaceable(fleet, replica, OperationKind::Relocate, ask.node.as_ref())? else {
        return Ok(vec![]);
    };
    if let Some(node) = ask.node.as_ref().filter(|node| active.node == **node) {
        let detail = format!("replica {} is already on node {node}", ask.name);
        return Err(Refusal::new(RefusalCode::Invalid, detail).at("/node", "is its current node"));
    }
    let want = OperationRequest::asked(OperationKind::Relocate, ask.node.as_ref(), ctx);
    Ok(opened(fleet, replica, &want, ctx))
}

pub(crate) fn restart(fleet: &FleetState, ask: &ReplicaRestart, ctx: &DecisionContext) -> DecidedFacts {
    let replica = fleet.find::<Replica>(&ask.name)?;
    if replica.active.is_none() && replica.operation.is_none() {
        return start(fleet, &ReplicaStart { name: ask.name.clone(), node: None }, ctx);
    }
    if replaceable(fleet, replica, OperationKind::Restart, None)?.is_none() {
        return Ok(vec![]);
    }
    Ok(opened(fleet, replica, &OperationRequest::asked(OperationKind::Restart, None, ctx), ctx))
}

/// Resets the guest of a running replica, within its incarnation.
pub(crate) fn reboot(fleet: &FleetState, ask: &ReplicaReboot, ctx: &DecisionContext) -> DecidedFacts {
    let replica = fleet.find::<Replica>(&ask.name)?;
    let what = format!("replica {}", ask.name);
    if replica.is_deleting() {
        return Err(invalid_transition(&what, "being deleted", "rebooted"));
    }
    match replica.open().next() {
        Some(open) if open.kind == OperationKind::Reboot => return Ok(vec![]),
        Some(open) => return Err(busy(&what, "rebooted", open)),
        None => {}
    }
    let active = replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation));
    let now = phase(replica, active);
    let Some(active) = active.filter(|_| now == PhaseStatus::Running) else {
        return Err(invalid_transition(&what, now.word(), "rebooted"));
    };
    let runtime = fleet.clusters().get(&active.cluster).map(|cluster| cluster.spec.runtime);
    if !runtime.is_some_and(ClusterRuntime::reboots) {
        let detail = format!("{what} is no virtual machine: it can be restarted, and not rebooted");
        return Err(Refusal::new(RefusalCode::InvalidTransition, detail));
    }
    Ok(opened(fleet, replica, &OperationRequest::asked(OperationKind::Reboot, None, ctx), ctx))
}

/// Opens the console of the newest incarnation that runs, also before it is ready and while it is stopped.
pub(crate) fn open_console(fleet: &FleetState, ask: &ConsoleOpen, ctx: &DecisionContext) -> DecidedFacts {
    let replica = fleet.find::<Replica>(&ask.name)?;
    let what = format!("replica {}", ask.name);
    let was_requested = |incarnation: &&Incarnation| {
        !matches!(incarnation.state, IncarnationState::Reserved | IncarnationState::Ended(_))
    };
    let runs = replica.runs().filter_map(|run| fleet.incarnations().get(&run.incarnation));
    let Some(incarnation) = runs.filter(was_requested).max_by_key(|incarnation| incarnation.id) else {
        let detail = format!("{what} has no incarnation that runs");
        return Err(Refusal::new(RefusalCode::InvalidTransition, detail));
    };
    let runtime = fleet.clusters().get(&incarnation.cluster).map(|cluster| cluster.spec.runtime);
    if !runtime.is_some_and(ClusterRuntime::has_console) {
        let detail = format!("{what} is no virtual machine: it has no console");
        return Err(Refusal::new(RefusalCode::InvalidTransition, detail));
    }
    let opened = ConsoleOpened {
        replica: ask.name.clone(),
        incarnation: incarnation.id,
        payload: ask.payload.clone(),
        access: ask.access,
        opened_by: ctx.actor.clone(),
    };
    Ok(vec![opened.into()])
}

/// Notes that a console was opened. Attachments are no part of the state: no restart of a server leaves one behind.
pub(crate) fn console_opened(fleet: &mut FleetState, fact: &ConsoleOpened, at: FactPosition) -> FoldResult {
    fleet.touch::<Incarnation>(&fact.incarnation, at, |_| {})?;
    fleet.bump::<Replica>(&fact.replica, at, |_| {})
}

pub(crate) fn create(fleet: &FleetState, ask: &ReplicaCreate, ctx: &DecisionContext) -> DecidedFacts {
    let plan = fleet.find::<Plan>(&ask.plan)?;
    check_node(fleet, ask.node.as_ref())?;
    if plan.activity == ClusterActivity::Inactive || plan.deletion_requested_by.is_some() {
        return Err(Refusal::new(RefusalCode::Inactive, format!("plan {} is inactive", ask.plan)));
    }
    if let Some(current) = plan.current.as_ref().or(plan.next.as_ref()) {
        let detail = format!(
            "deployment {current} of plan {} has not ended, and defines the number of replicas",
            ask.plan
        );
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    let completed = deployment::newest(fleet, plan).find(|deployment| deployment.is_completed());
    let deployment = completed.ok_or_else(|| {
        let detail = format!("plan {} has no completed deployment: deploy one first", ask.plan);
        Refusal::new(RefusalCode::InvalidTransition, detail)
    })?;
    deployment::can_run(plan, deployment)?;
    let version = plan.version_of(deployment.generation);
    let replicas = fleet.index().plan_index(&plan.name).map_or(0, |index| index.replicas);
    if version.claims_by_name() && replicas > 0 {
        let detail = format!("plan {} claims a volume by name, which only one replica can use", plan.name);
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    let mut draft = FactDraft::new(ctx);
    let name = ReplicaName::issue(version.service(), draft.position());
    let (plan, deployment) = (plan.name.clone(), deployment.name.clone());
    draft.push(ReplicaCreated { name: name.clone(), plan, deployment });
    let want = OperationRequest::asked(OperationKind::Create, ask.node.as_ref(), ctx);
    operation::push_opened(&name, &want, None, &mut draft);
    Ok(draft.done())
}

/// Starts a replica by its plan's rule, unless an edit has set the rule to `never` since. A replica that was
/// stopped for an aborted operation, or for a failed one after which the rule restarts it, starts in any
/// case. While a deployment of its version is in progress, that deployment starts the replica, with its queue
/// and failure handling.
pub(crate) fn start_again(fleet: &FleetState, name: &ReplicaName, ctx: &DecisionContext) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    let Some(replica) = fleet.replicas().get(name) else { return Vec::new() };
    if let Some(deployment) = carried_out(fleet, replica) {
        return opened(fleet, replica, &OperationRequest::of(OperationKind::Start, &deployment.name), ctx);
    }
    let by = Some(Requester::Rule(format!("plan/{}/restart", replica.plan)));
    let operation = OperationId::issue(ctx.lineage, draft.position());
    operation::push_opened(name, &OperationRequest::by(OperationKind::Start, by), None, &mut draft);
    let plan = fleet.plans().get(&replica.plan);
    let is_never = plan.is_some_and(|plan| *plan.immediate().restart() == RestartPolicy::Never);
    if is_never && !replica.recovers {
        let reason = format!("plan {} has changed: restart is never", replica.plan);
        let end = OperationEnd::Failed { reason };
        draft.push(OperationEnded { operation, replica: name.clone(), end });
    }
    draft.done()
}

/// Deployment in progress that has the replica's version, if any.
fn carried_out<'a>(fleet: &'a FleetState, replica: &Replica) -> Option<&'a Deployment> {
    let current = deployment::current(fleet, fleet.plans().get(&replica.plan)?)?;
    let own = fleet.deployment(&replica.plan, &replica.deployment)?;
    (current.state == DeploymentState::InProgress && own.version == current.version).then_some(current)
}

pub(crate) fn stop(fleet: &FleetState, ask: &ReplicaStop, ctx: &DecisionContext) -> DecidedFacts {
    let replica = fleet.find::<Replica>(&ask.name)?;
    if replica.is_deleting() {
        return Err(invalid_transition(&format!("replica {}", ask.name), "being deleted", "stopped"));
    }
    if replica.desired == WillWord::Proposed {
        let detail = format!("replica {} was never approved: reject its create, or delete it", ask.name);
        return Err(Refusal::new(RefusalCode::InvalidTransition, detail));
    }
    let stopped =
        replica.desired == WillWord::Stopped && replica.active.is_none() && replica.operation.is_none();
    if stopped || open(fleet, replica, OperationKind::Stop).is_some() {
        return Ok(vec![]);
    }
    Ok(opened(fleet, replica, &OperationRequest::asked(OperationKind::Stop, None, ctx), ctx))
}

pub(crate) fn delete(fleet: &FleetState, ask: &ReplicaDelete, ctx: &DecisionContext) -> DecidedFacts {
    let replica = fleet.find::<Replica>(&ask.name)?;
    if replica.is_deleting() {
        return Ok(vec![]);
    }
    Ok(opened(fleet, replica, &OperationRequest::asked(OperationKind::Delete, None, ctx), ctx))
}

pub(crate) fn created(fleet: &mut FleetState, fact: &ReplicaCreated, at: FactPosition) {
    fleet.put(Replica {
        name: fact.name.clone(),
        plan: fact.plan.clone(),
        deployment: fact.deployment.clone(),
        desired: WillWord::Proposed,
        active: None,
        secondary: None,
        operation: None,
        queued_operation: None,
        next_restart: None,
        down_after_drain: false,
        recovers: false,
        last_restart: None,
        last_end: None,
        operations: SmallVec::new(),
        incarnations: SmallVec::new(),
        meta: EntityMeta::new(at),
    });
}

pub(crate) fn deployment_changed(
    fleet: &mut FleetState,
    fact: &ReplicaDeploymentChanged,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Replica>(&fact.name, at, |replica| {
        replica.deployment = fact.deployment.clone();
        // The previous restarts were of the previous version.
        replica.last_restart = None;
    })
}

/// Deletes a replica with its operations and incarnations; the plan keeps the totals.
pub(crate) fn deleted(fleet: &mut FleetState, fact: &ReplicaDeleted, at: FactPosition) -> FoldResult {
    let replica = fleet.require::<Replica>(&fact.name)?;
    let (operations, incarnations) = (replica.operations.clone(), replica.incarnations.clone());
    let plan = replica.plan.clone();
    volume::leave(fleet, &fact.volumes, at)?;
    for id in operations {
        fleet.remove::<Operation>(&id)?;
    }
    for id in incarnations {
        fleet.remove::<Incarnation>(&id)?;
    }
    fleet.remove::<Replica>(&fact.name)?;
    fleet.touch::<Plan>(&plan, at, |_| {})
}
