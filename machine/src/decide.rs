//! Pure functions that the decider calls: [`decide`] for intents, [`observe`] for observations, and
//! [`evolve`] to fold facts. No clock, no randomness, no I/O: equal state and input always give equal facts.

use std::sync::Arc;
use std::time::Duration;

use chancery_events::expected_version::ExpectedVersion;
use chancery_events::fact::{Fact, InboxSkipped, IntentAccepted, IntentOutcome, IntentRefused};
use chancery_events::id::{Position, SessionId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::name::ClusterName;
use chancery_events::observation::Observation;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::subject::Subject;

use crate::context::DecisionContext;
use crate::fleet::{FleetState, FoldResult};
use crate::keys::{AHEAD, AcceptedIntent, IdempotencyKeys, StoredVerdict};
use crate::meta::FactPosition;
use crate::refuse::DecidedFacts;
use crate::state::{ApprovalRequest, Cluster, Incarnation, Operation, Plan, Replica, RequestState, Volume};
use crate::{
    catalogue, deployment, disruption, incarnation, level, node, operation, plan, policy, rebalance, replica,
    request, session, volume,
};

/// Result of looking up the key of an intent.
#[derive(Debug)]
pub enum IdempotencyCheck<'a> {
    /// New intent, to be decided.
    New,
    /// Repeated intent, which gets the same verdict.
    Repeat(&'a StoredVerdict),
    /// Refusal of an intent whose key was used for another body; the first verdict stays.
    KeyReused(Refusal),
}

/// Looks up the idempotency key of an intent.
pub fn repeat<'a>(keys: &'a IdempotencyKeys, request: &IntentRequest) -> IdempotencyCheck<'a> {
    match keys.get(request.key()) {
        None => IdempotencyCheck::New,
        Some(known) if known.digest == request.digest() => IdempotencyCheck::Repeat(known),
        Some(known) => {
            let detail =
                format!("id {} was used for another intent, at position {}", request.id, known.verdict);
            IdempotencyCheck::KeyReused(Refusal::new(RefusalCode::IdempotencyKeyReused, detail))
        }
    }
}

/// Decides a new intent: returns its facts, or a refusal. No facts mean that the intent changes nothing.
pub fn decide(fleet: &FleetState, request: &IntentRequest, ctx: &DecisionContext) -> DecidedFacts {
    fleet.index().assert_settled();
    if let Some(time) = request.time {
        let floor = fleet.keys().floor(request.key());
        if time <= floor {
            let IntentRequest { actor, source, .. } = request;
            let retry = match floor.since(ctx.wall) {
                Duration::ZERO => "dated now".to_owned(),
                wait => format!("in {} s, dated then", wait.as_secs() + 1),
            };
            let detail = format!(
                "the intent is dated {time}; intents of {actor} from {source} up to {floor} may have been decided: if it was not, \
                 send it with another id {retry}"
            );
            return Err(Refusal::new(RefusalCode::IntentExpired, detail));
        }
        // Journal time may be far behind a correct clock: after the machine slept, or its clock was set.
        if time > ctx.wall + AHEAD {
            let detail = format!("the intent is dated {time}, more than five minutes ahead of {}", ctx.wall);
            return Err(Refusal::new(RefusalCode::TimestampInFuture, detail));
        }
    }
    let subject = request.intent.subject();
    if let Some(expected) = request.expect {
        let found = subject.as_ref().and_then(|subject| fleet.meta(subject)).map_or(0, |meta| meta.version);
        if !expected.fits(found) {
            let detail = match expected {
                ExpectedVersion::Exactly(version) => {
                    format!("the expected version is {version}, and the current version is {found}")
                }
                ExpectedVersion::Any => "any version is expected, and there is no such entity".to_owned(),
            };
            return Err(Refusal::new(RefusalCode::VersionConflict, detail));
        }
    }
    let decided = by_type(fleet, &request.intent, ctx)?;
    request::hold(fleet, &request.intent, decided, ctx)
}

/// Decides an intent without regard to the approval that it may need as a whole.
pub(crate) fn by_type(fleet: &FleetState, intent: &Intent, ctx: &DecisionContext) -> DecidedFacts {
    match intent {
        Intent::ClusterApply(ask) => catalogue::cluster_apply(fleet, ask),
        Intent::ClusterSetActivity(ask) => catalogue::cluster_set_activity(fleet, ask),
        Intent::ClusterDelete(ask) => catalogue::cluster_delete(fleet, ask),
        Intent::CapabilityApply(ask) => Ok(catalogue::capability_apply(fleet, ask)),
        Intent::CapabilitySetActivity(ask) => catalogue::capability_set_activity(fleet, ask),
        Intent::CapabilityDelete(ask) => catalogue::capability_delete(fleet, ask),
        Intent::NodeApply(ask) => node::apply(fleet, ask),
        Intent::NodeSetState(ask) => node::set_state(fleet, ask, ctx),
        Intent::NodeDelete(ask) => node::delete(fleet, ask, ctx),
        Intent::DisruptionSchedule(ask) => disruption::schedule(fleet, ask),
        Intent::DisruptionApprove(ask) => disruption::approve(fleet, ask, ctx),
        Intent::DisruptionComplete(ask) => disruption::complete(fleet, ask, ctx),
        Intent::DisruptionDelete(ask) => disruption::delete(fleet, ask),
        Intent::PolicyApply(ask) => policy::apply(fleet, ask),
        Intent::PolicyDelete(ask) => policy::delete(fleet, ask),
        Intent::PlanApply(ask) => plan::apply(fleet, ask),
        Intent::PlanSetActivity(ask) => plan::set_activity(fleet, ask),
        Intent::PlanRollback(ask) => deployment::rollback(fleet, ask, ctx),
        Intent::PlanRebalance(ask) => rebalance::ask(fleet, ask, ctx),
        Intent::PlanDelete(ask) => plan::delete(fleet, ask, ctx),
        Intent::DeploymentCreate(ask) => deployment::create(fleet, ask, ctx),
        Intent::DeploymentCancel(ask) => deployment::cancel(fleet, ask),
        Intent::DeploymentPause(ask) => deployment::pause(fleet, ask),
        Intent::DeploymentResume(ask) => deployment::resume(fleet, ask),
        Intent::DeploymentPromote(ask) => deployment::promote(fleet, ask),
        Intent::DeploymentRollback(ask) => deployment::roll_back(fleet, ask),
        Intent::ReplicaCreate(ask) => replica::create(fleet, ask, ctx),
        Intent::ReplicaRelocate(ask) => replica::relocate(fleet, ask, ctx),
        Intent::ReplicaReboot(ask) => replica::reboot(fleet, ask, ctx),
        Intent::ConsoleOpen(ask) => replica::open_console(fleet, ask, ctx),
        Intent::ReplicaRestart(ask) => replica::restart(fleet, ask, ctx),
        Intent::ReplicaStart(ask) => replica::start(fleet, ask, ctx),
        Intent::ReplicaStop(ask) => replica::stop(fleet, ask, ctx),
        Intent::ReplicaDelete(ask) => replica::delete(fleet, ask, ctx),
        Intent::VolumeSnapshot(ask) => volume::snapshot(fleet, ask),
        Intent::VolumeDelete(ask) => volume::delete(fleet, ask, ctx),
        Intent::OperationApprove(ask) => operation::approve(fleet, ask, ctx),
        Intent::OperationReject(ask) => operation::reject(fleet, ask, ctx),
        Intent::RequestApprove(ask) => request::approve(fleet, ask, ctx),
        Intent::RequestReject(ask) => request::reject(fleet, ask, ctx),
        Intent::FleetRaise(ask) => level::raise(fleet, ask, ctx),
        // The decider's reader checks the position of the inbox.
        Intent::InboxSkip(ask) => Ok(vec![InboxSkipped { offset: ask.offset }.into()]),
    }
}

/// Returns the fact that records the verdict on an intent. An undated intent gets the commit's time.
pub fn verdict(
    fleet: &FleetState,
    request: &IntentRequest,
    decided: &DecidedFacts,
    ctx: &DecisionContext,
) -> Fact {
    let (key, digest, at) = (request.key(), request.digest(), request.time.unwrap_or(ctx.now));
    let subject = request.intent.subject();
    let now = subject.as_ref().and_then(|subject| fleet.meta(subject)).map(|meta| meta.version);
    match decided {
        Ok(facts) => {
            let outcome = if facts.is_empty() { IntentOutcome::Unchanged } else { IntentOutcome::Changed };
            if let Some(id) = request::of_verdict(fleet, &request.intent, facts, ctx) {
                let version = fleet.approval_requests().get(&id).map_or(1, |request| request.meta.version);
                let (subject, version) = (Some(Subject::Request(id)), Some(version));
                return IntentAccepted { key, digest, at, outcome, subject, version }.into();
            }
            let about =
                facts.iter().filter(|fact| fact.subjects().first() == subject.as_ref()).count() as u64;
            let version = now.or((about > 0).then_some(0)).map(|version| version + about);
            IntentAccepted { key, digest, at, outcome, subject, version }.into()
        }
        Err(refusal) => IntentRefused {
            key,
            digest,
            at,
            code: refusal.code,
            detail: refusal.detail.clone(),
            subject: refusal.subject.clone().or(subject),
            version: refusal.version.or(now),
            errors: refusal.errors.clone(),
        }
        .into(),
    }
}

/// Returns the facts that follow from an observation. A stale observation, or one that changes nothing, has
/// none and is not recorded.
pub fn observe(fleet: &FleetState, observation: &Observation, ctx: &DecisionContext) -> Vec<Fact> {
    fleet.index().assert_settled();
    // An executor reports on the objects of its cluster, and on nothing else.
    let hosts = |session: SessionId, cluster: Option<&ClusterName>| {
        let session = fleet.sessions().get(&session);
        session.is_some_and(|session| session.end.is_none() && cluster == Some(&session.cluster))
    };
    match observation {
        Observation::SessionRequested(request) => session::hello(fleet, request),
        Observation::SessionEnded(end) => session::ended(fleet, end),
        Observation::IncarnationReported(reported) => {
            let cluster = fleet.incarnations().get(&reported.report.incarnation).map(|of| &of.cluster);
            if !hosts(reported.session, cluster) {
                return Vec::new();
            }
            incarnation::report(fleet, &reported.report, ctx)
        }
        Observation::VolumeReported(reported) => {
            let cluster = fleet.volumes().get(&reported.name).map(|of| &of.cluster);
            if !hosts(reported.session, cluster) {
                return Vec::new();
            }
            volume::report(fleet, &reported.name, &reported.report, ctx)
        }
        Observation::OrphanReported(reported) => session::object(fleet, reported),
    }
}

/// Folds one fact without judging it. An error is a contradiction in the journal: the caller must stop.
///
/// After the last of consecutive facts, the caller calls [`FleetState::settle`] before it decides anything.
pub fn evolve(fleet: &mut FleetState, fact: &Fact, at: FactPosition) -> FoldResult {
    fleet.head = at.position;
    match fact {
        Fact::TermStarted(fact) => {
            fleet.term = at.term;
            fleet.decider = fact.address.as_deref().map(Arc::from);
            fleet.lineages.current = at.lineage;
            level::term_started(Arc::make_mut(&mut fleet.levels), fact, at);
        }
        Fact::FleetLevelRaised(fact) => return level::raised(Arc::make_mut(&mut fleet.levels), fact),
        Fact::LineageStarted(fact) => {
            fleet.term = at.term;
            fleet.decider = None;
            fleet.lineages.start(at.lineage, fact);
        }
        Fact::IntentAccepted(fact) => accepted(fleet, fact, at),
        Fact::IntentRefused(fact) => refused(fleet, fact, at),
        // The header records which inbox messages are answered; no entity changes.
        Fact::InboxMessageRefused(_) | Fact::InboxSkipped(_) | Fact::InboxAdvanced(_) => {}
        // The time is that of the record.
        Fact::TimeRecorded(_) => {}
        Fact::EntityQuarantined(fact) => return quarantine(fleet, &fact.subject, &fact.detail, at),
        Fact::ClusterApplied(fact) => return catalogue::cluster_applied(fleet, fact, at),
        Fact::ClusterActivityChanged(fact) => return catalogue::cluster_activity_changed(fleet, fact, at),
        Fact::ClusterDeleted(fact) => return catalogue::cluster_deleted(fleet, fact),
        Fact::CapabilityApplied(fact) => catalogue::capability_applied(fleet, fact, at),
        Fact::CapabilityActivityChanged(fact) => {
            return catalogue::capability_activity_changed(fleet, fact, at);
        }
        Fact::CapabilityDeleted(fact) => return catalogue::capability_deleted(fleet, fact),
        Fact::NodeApplied(fact) => return node::applied(fleet, fact, at),
        Fact::NodeStateChanged(fact) => return node::state_changed(fleet, fact, at),
        Fact::NodeDeleted(fact) => return node::deleted(fleet, fact),
        Fact::DisruptionScheduled(fact) => return disruption::scheduled(fleet, fact, at),
        Fact::DisruptionApproved(fact) => return disruption::approved(fleet, fact, at),
        Fact::DisruptionCompleted(fact) => return disruption::over(fleet, fact, at),
        Fact::DisruptionDeleted(fact) => return disruption::deleted(fleet, fact, at),
        Fact::PolicyApplied(fact) => return policy::applied(fleet, fact, at),
        Fact::PolicyDeleted(fact) => return policy::deleted(fleet, fact),
        Fact::PlanBalanceChanged(fact) => return rebalance::balance_changed(fleet, fact, at),
        Fact::PlanRebalanceStarted(fact) => return rebalance::started(fleet, fact, at),
        Fact::PlanRebalanceEnded(fact) => return rebalance::ended(fleet, fact, at),
        Fact::PlanDeletionStarted(fact) => return plan::deletion_started(fleet, fact, at),
        Fact::PlanApplied(fact) => return plan::applied(fleet, fact, at),
        Fact::PlanActivityChanged(fact) => return plan::activity_changed(fleet, fact, at),
        Fact::PlanUnschedulable(fact) => return plan::unschedulable(fleet, fact, at),
        Fact::PlanDeleted(fact) => return plan::deleted(fleet, fact),
        Fact::DeploymentCreated(fact) => return deployment::created(fleet, fact, at),
        Fact::DeploymentStarted(fact) => return deployment::started(fleet, fact, at),
        Fact::DeploymentPaused(fact) => return deployment::paused(fleet, fact, at),
        Fact::DeploymentResumed(fact) => return deployment::resumed(fleet, fact, at),
        Fact::DeploymentStalled(fact) => return deployment::stalled(fleet, fact, at),
        Fact::DeploymentCutOver(fact) => return deployment::cut_over(fleet, fact, at),
        Fact::DeploymentHalted(fact) => return deployment::halted(fleet, fact, at),
        Fact::DeploymentEnded(fact) => return deployment::ended(fleet, fact, at),
        Fact::ReplicaCreated(fact) => replica::created(fleet, fact, at),
        Fact::ReplicaDeploymentChanged(fact) => return replica::deployment_changed(fleet, fact, at),
        Fact::ReplicaDeleted(fact) => return replica::deleted(fleet, fact, at),
        Fact::OperationCreated(fact) => return operation::created(fleet, fact, at),
        Fact::OperationApproved(fact) => return operation::approved(fleet, fact, at),
        Fact::OperationStarted(fact) => return operation::started(fleet, fact, at),
        Fact::OperationEnded(fact) => return operation::ended(fleet, fact, at),
        Fact::RequestOpened(fact) => request::opened(fleet, fact, at),
        Fact::RequestApproved(fact) => return request::approved(fleet, fact, at),
        Fact::RequestEnded(fact) => return request::ended(fleet, fact, at),
        Fact::ApprovalBypassed(fact) => return node::bypassed(fleet, fact, at),
        Fact::IncarnationReserved(fact) => return incarnation::reserved(fleet, fact, at),
        Fact::IncarnationStopRequested(fact) => return incarnation::stop_requested(fleet, fact, at),
        Fact::IncarnationStartRequested(fact) => return incarnation::start_requested(fleet, fact, at),
        Fact::IncarnationCommandFailed(fact) => return incarnation::command_failed(fleet, fact, at),
        Fact::IncarnationStarted(fact) => return incarnation::started(fleet, fact, at),
        Fact::ConsoleOpened(fact) => return replica::console_opened(fleet, fact, at),
        Fact::IncarnationRunning(fact) => return incarnation::running(fleet, fact, at),
        Fact::IncarnationProcessesChanged(fact) => return incarnation::processes_changed(fleet, fact, at),
        Fact::IncarnationEnded(fact) => return incarnation::ended(fleet, fact, at),
        Fact::VolumeCreated(fact) => return volume::created(fleet, fact, at),
        Fact::VolumeSnapshotStarted(fact) => return volume::snapshot_started(fleet, fact, at),
        Fact::VolumeReady(fact) => return volume::ready(fleet, fact, at),
        Fact::VolumeCommandFailed(fact) => return volume::command_failed(fleet, fact, at),
        Fact::VolumeLost(fact) => return volume::was_lost(fleet, fact, at),
        Fact::VolumeDeletionStarted(fact) => return volume::deletion_started(fleet, fact, at),
        Fact::VolumeDestroyRequested(fact) => return volume::destroy_requested(fleet, fact, at),
        Fact::VolumeDestroyed(fact) => return volume::destroyed(fleet, fact),
        Fact::SessionOpened(fact) => return session::opened(fleet, fact, at),
        Fact::SessionClosed(fact) => return session::closed(fleet, fact, at),
        Fact::OrphanResolved(fact) => return fleet.bump::<Cluster>(&fact.cluster, at, |_| {}),
    }
    Ok(())
}

/// Skips an event that is not a fact: only the head changes.
pub fn pass(fleet: &mut FleetState, position: Position) {
    fleet.head = position;
}

fn accepted(fleet: &mut FleetState, fact: &IntentAccepted, at: FactPosition) {
    let reply =
        AcceptedIntent { outcome: fact.outcome, subject: fact.subject.clone(), version: fact.version };
    let (verdict, decided) = (at.position, at.time);
    let known = StoredVerdict { digest: fact.digest, verdict, reply: Ok(reply), at: fact.at, decided };
    fleet.keys.remember(fact.key, known);
}

fn refused(fleet: &mut FleetState, fact: &IntentRefused, at: FactPosition) {
    // These codes are about the key or its time, not about the intent: they must not move the window.
    if matches!(
        fact.code,
        RefusalCode::IdempotencyKeyReused | RefusalCode::IntentExpired | RefusalCode::TimestampInFuture
    ) {
        return;
    }
    let refusal = Refusal {
        code: fact.code,
        detail: fact.detail.clone(),
        subject: fact.subject.clone(),
        version: fact.version,
        errors: fact.errors.clone(),
    };
    let (verdict, decided) = (at.position, at.time);
    let known =
        StoredVerdict { digest: fact.digest, verdict, reply: Err(Arc::new(refusal)), at: fact.at, decided };
    fleet.keys.remember(fact.key, known);
}

/// Removes a quarantined entity from the queues that lead to it.
fn quarantine(fleet: &mut FleetState, subject: &Subject, detail: &str, at: FactPosition) -> FoldResult {
    match subject {
        Subject::Plan(name) => {
            fleet.bump::<Plan>(name, at, |plan| plan.quarantined = Some(detail.to_owned()))
        }
        Subject::Incarnation(id) => fleet.bump::<Incarnation>(id, at, |incarnation| {
            (incarnation.deadline, incarnation.awaits_volumes) = (None, false);
        }),
        Subject::Operation(id) => fleet.bump::<Operation>(id, at, |operation| {
            if let crate::state::OperationState::PendingApproval(proposal) = &mut operation.state {
                proposal.expires = chancery_events::time::Time::FAR;
            }
        }),
        Subject::Replica(name) => fleet
            .bump::<Replica>(name, at, |replica| (replica.next_restart, replica.recovers) = (None, false)),
        // The volume stays until its deletion is requested again.
        Subject::Volume(name) => fleet.bump::<Volume>(name, at, |volume| volume.deletion_requested_by = None),
        // The request waits until it is rejected or made again.
        Subject::Request(id) => fleet.bump::<ApprovalRequest>(id, at, |request| {
            if let RequestState::Pending { expires } = &mut request.state {
                *expires = chancery_events::time::Time::FAR;
            }
        }),
        // The agenda skips other entities, which is enough.
        _ => Ok(()),
    }
}
