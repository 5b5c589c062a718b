//! Incarnations: placed runs of replicas. Each belongs to one replica and one node for ever.
//!
//! | state | ensured | ready | not ready | ended, by proof | gone | failed | stop asked | deadline | node expunged |
//! |---|---|---|---|---|---|---|---|---|---|
//! | reserved | – | – | – | – | – | – | unwound | – | unwound; its operation looks for another place |
//! | creating | → starting | → running | → starting | failed, destroyed | unwound | again, or stopping | stopping | stopping | failed |
//! | starting | status | → running | status | failed, destroyed | failed | – | stopping | stopping | failed |
//! | running | status | status | status | failed, destroyed | failed | – | stopping | – | failed |
//! | stopping | – | – | – | as remembered | as remembered | again | destroyed is remembered | kill | failed |
//! | ended | final | | | | | | | | |
//!
//! A report names the revision that it reflects. Proof of an end counts whatever command it reflects, because
//! nothing is ever started twice in one incarnation; `gone` counts only if nothing at or below the last command can
//! still happen; a failure counts only for the command that waits for an outcome. A lost session proves nothing.

use chancery_events::fact::{
    CommandFailed, Effect, Fact, IncarnationCommanded, IncarnationEnd, IncarnationEnded, IncarnationEnsured,
    IncarnationReserved, IncarnationRunning, IncarnationStatus, OperationEnd, OperationEnded, ReplicaDeleted,
};
use chancery_events::id::IncarnationId;
use chancery_events::observation::{Exit, Hope, Process, ProcessStatus, Report, Saw};
use chancery_events::planted::{self, Bug};
use chancery_events::spec::OperationKind;
use chancery_events::time::Time;

use crate::context::{BACKOFF, Context, Draft};
use crate::deployment;
use crate::fleet::{Contradiction, Fleet};
use crate::meta::{At, Meta};
use crate::operation::{self, Version};
use crate::state::{
    Active, Incarnation, IncarnationState, Node, Operation, OperationState, Outstanding, Plan, Replica,
};

/// Incarnations of a replica that are over are kept so many.
const KEPT: usize = 20;
/// After SIGTERM's grace, the executor has this long to say so before it is asked to kill.
const SLACK: std::time::Duration = std::time::Duration::from_secs(5);

/// When a stop that is asked now has lasted too long.
pub(crate) fn stop_deadline(fleet: &Fleet, incarnation: &Incarnation, now: Time) -> Time {
    let plan = fleet.plans().get(&incarnation.plan);
    now + plan.map_or(SLACK, |plan| plan.spec.timeouts.stop() + SLACK)
}

/// What follows from a report.
pub(crate) fn report(fleet: &Fleet, report: &Report, ctx: &Context) -> Vec<Fact> {
    let Some(incarnation) = fleet.incarnations().get(&report.incarnation) else { return Vec::new() };
    let mut draft = Draft::new(ctx);
    match (&incarnation.state, &report.saw) {
        (IncarnationState::Reserved | IncarnationState::Ended(_), _) => {}
        (_, Saw::Ended { exit, processes }) => {
            let end = match (&incarnation.state, exit) {
                (IncarnationState::Stopping(then), _) => then.clone(),
                (_, Exit::Clean) => IncarnationEnd::Destroyed,
                (_, Exit::Failed { reason }) => IncarnationEnd::Failed { reason: reason.clone() },
            };
            end_by_proof(fleet, incarnation, end, processes.clone(), &mut draft);
        }
        (state, Saw::Gone) if report.revision >= incarnation.revision || planted::is(Bug::TakesOldGone) => {
            let end = match state {
                IncarnationState::Stopping(then) => then.clone(),
                IncarnationState::Creating => {
                    IncarnationEnd::Unwound { reason: "the executor never started it, and never will".into() }
                }
                IncarnationState::Starting
                | IncarnationState::Running
                | IncarnationState::Reserved
                | IncarnationState::Ended(_) => {
                    IncarnationEnd::Failed { reason: "nothing of it was there any more".into() }
                }
            };
            end_by_proof(fleet, incarnation, end, Vec::new(), &mut draft);
        }
        (_, Saw::Gone) => {}
        (_, Saw::Failed { message, hope }) => {
            failed(fleet, incarnation, report.revision, message, *hope, ctx, &mut draft);
        }
        // It reflects less than what is asked now: what it saw may be over.
        (_, Saw::Ready { .. } | Saw::Ensured { .. } | Saw::NotReady { .. })
            if report.revision < incarnation.revision => {}
        (IncarnationState::Creating | IncarnationState::Starting, Saw::Ready { processes }) => {
            draft.push(IncarnationRunning {
                incarnation: incarnation.id,
                replica: incarnation.replica.clone(),
                operation: brings_up(fleet, incarnation).map(|operation| operation.id),
                processes: processes.clone(),
            });
        }
        (IncarnationState::Creating, Saw::Ensured { processes } | Saw::NotReady { processes }) => {
            let (incarnation, replica) = (incarnation.id, incarnation.replica.clone());
            draft.push(IncarnationEnsured { incarnation, replica, processes: processes.clone() });
        }
        (
            IncarnationState::Starting | IncarnationState::Running,
            Saw::Ready { processes } | Saw::Ensured { processes } | Saw::NotReady { processes },
        ) => {
            if *processes != incarnation.processes {
                let (incarnation, replica) = (incarnation.id, incarnation.replica.clone());
                draft.push(IncarnationStatus { incarnation, replica, processes: processes.clone() });
            }
        }
        (IncarnationState::Stopping(_), Saw::Ready { .. } | Saw::Ensured { .. } | Saw::NotReady { .. }) => {}
    }
    draft.done()
}

/// The running operation that brings the incarnation up.
fn brings_up<'a>(fleet: &'a Fleet, incarnation: &Incarnation) -> Option<&'a Operation> {
    let (operation, kind) = running_operation(fleet, incarnation)?;
    let up = matches!(kind, OperationKind::Create | OperationKind::Start);
    (up && operation.incarnation == Some(incarnation.id)).then_some(operation)
}

fn running_operation<'a>(
    fleet: &'a Fleet,
    incarnation: &Incarnation,
) -> Option<(&'a Operation, OperationKind)> {
    let replica = fleet.replicas().get(&incarnation.replica)?;
    let (id, kind) = replica.operation?;
    let operation = fleet.operations().get(&id)?;
    matches!(operation.state, OperationState::Running(_)).then_some((operation, kind))
}

/// Ends the incarnation, and with it the operation that waited for that, or that needed it alive.
fn end_by_proof(
    fleet: &Fleet,
    incarnation: &Incarnation,
    end: IncarnationEnd,
    processes: Vec<Process>,
    draft: &mut Draft,
) {
    let why = match &end {
        IncarnationEnd::Destroyed => "it ended before it was ready".to_owned(),
        IncarnationEnd::Failed { reason } | IncarnationEnd::Unwound { reason } => {
            format!("it ended before it was ready: {reason}")
        }
    };
    draft.push(IncarnationEnded {
        incarnation: incarnation.id,
        replica: incarnation.replica.clone(),
        node: incarnation.node.clone(),
        end,
        displaces: None,
        processes,
    });
    let Some((operation, kind)) = running_operation(fleet, incarnation) else {
        if incarnation.state == IncarnationState::Running {
            // Nobody asked for it: a deployment that goes on must not start it again and again.
            deployment::disturb(fleet, incarnation, draft);
        }
        return;
    };
    match kind {
        OperationKind::Create | OperationKind::Start => {
            if operation.incarnation == Some(incarnation.id) {
                operation::end(fleet, operation, OperationEnd::Failed { reason: why }, draft);
            }
        }
        OperationKind::Stop | OperationKind::Delete => {
            let (id, replica) = (operation.id, incarnation.replica.clone());
            draft.push(OperationEnded {
                operation: id,
                replica: replica.clone(),
                end: OperationEnd::Succeeded,
            });
            if kind == OperationKind::Delete {
                draft.push(ReplicaDeleted { name: replica });
            }
        }
    }
}

fn failed(
    fleet: &Fleet,
    incarnation: &Incarnation,
    revision: u32,
    error: &str,
    hope: Hope,
    ctx: &Context,
    draft: &mut Draft,
) {
    let Some(command) = incarnation.command.filter(|_| revision == incarnation.revision) else { return };
    if command.not_before > ctx.now {
        return; // the attempt that failed has been counted, and the next was not sent yet
    }
    let salt = incarnation.id.position().get();
    let wait = match (hope, command.effect) {
        (Hope::Never, Effect::Ensure) => None,
        (Hope::Retry, Effect::Ensure) => BACKOFF.wait(command.attempt, salt),
        // An end that fails is a debt that is never given up.
        (_, Effect::Stop | Effect::Kill) => BACKOFF.wait(command.attempt, salt).or(Some(BACKOFF.max)),
    };
    draft.push(CommandFailed {
        incarnation: incarnation.id,
        revision,
        attempt: command.attempt,
        error: error.into(),
        not_before: wait.map(|wait| ctx.now + wait),
    });
    if wait.is_none() {
        unwind(
            fleet,
            incarnation,
            error.into(),
            IncarnationEnd::Unwound { reason: error.into() },
            ctx,
            draft,
        );
    }
}

/// Gives up bringing it up: the operation fails now, and what may have been built is taken down until that is proved.
fn unwind(
    fleet: &Fleet,
    incarnation: &Incarnation,
    reason: String,
    then: IncarnationEnd,
    ctx: &Context,
    draft: &mut Draft,
) {
    draft.push(IncarnationCommanded {
        incarnation: incarnation.id,
        replica: incarnation.replica.clone(),
        effect: Effect::Stop,
        then,
        deadline: Some(stop_deadline(fleet, incarnation, ctx.now)),
    });
    if let Some(operation) = brings_up(fleet, incarnation) {
        operation::end(fleet, operation, OperationEnd::Failed { reason }, draft);
    }
}

/// Its state has lasted too long.
pub(crate) fn overdue(fleet: &Fleet, id: IncarnationId, ctx: &Context) -> Vec<Fact> {
    let mut draft = Draft::new(ctx);
    let Some(incarnation) = fleet.incarnations().get(&id) else { return Vec::new() };
    match &incarnation.state {
        IncarnationState::Creating | IncarnationState::Starting => {
            let reason = "it was not ready in time".to_owned();
            let then = IncarnationEnd::Failed { reason: reason.clone() };
            unwind(fleet, incarnation, reason, then, ctx, &mut draft);
        }
        IncarnationState::Stopping(then) if planted::is(Bug::TimeoutIsDeath) => {
            end_by_proof(fleet, incarnation, then.clone(), Vec::new(), &mut draft);
        }
        IncarnationState::Stopping(then) => draft.push(IncarnationCommanded {
            incarnation: id,
            replica: incarnation.replica.clone(),
            effect: Effect::Kill,
            then: then.clone(),
            deadline: None,
        }),
        IncarnationState::Reserved | IncarnationState::Running | IncarnationState::Ended(_) => {}
    }
    draft.done()
}

/// Its node is gone, on the operator's word.
pub(crate) fn lost(fleet: &Fleet, id: IncarnationId, ctx: &Context) -> Vec<Fact> {
    let mut draft = Draft::new(ctx);
    let Some(incarnation) = fleet.incarnations().get(&id) else { return Vec::new() };
    let reason = format!("node {} was expunged", incarnation.node);
    if incarnation.state != IncarnationState::Reserved {
        end_by_proof(fleet, incarnation, IncarnationEnd::Failed { reason }, Vec::new(), &mut draft);
        return draft.done();
    }
    // Nobody was asked to start it: its operation looks for another place, and what was shown of it is void.
    let held_by = fleet.replicas().get(&incarnation.replica).and_then(|replica| replica.operation);
    draft.push(IncarnationEnded {
        incarnation: id,
        replica: incarnation.replica.clone(),
        node: incarnation.node.clone(),
        end: IncarnationEnd::Unwound { reason },
        displaces: held_by.map(|(operation, _)| operation),
        processes: Vec::new(),
    });
    draft.done()
}

pub(crate) fn reserved(fleet: &mut Fleet, fact: &IncarnationReserved, at: At) -> Result<(), Contradiction> {
    let mut id = IncarnationId::issue(at.lineage, at.position);
    if planted::is(Bug::ReusesIds) {
        id = IncarnationId::issue(at.lineage, fact.operation.position());
    }
    let node = fleet.want::<Node>(&fact.node)?;
    let domain = node.spec.domain.clone();
    let cluster = node.cluster.clone().ok_or_else(|| Contradiction {
        subject: chancery_events::subject::Subject::Node(fact.node.clone()),
        problem: "a place is reserved on it, and it is in no cluster".into(),
    })?;
    let plan = fleet.want::<Replica>(&fact.replica)?.plan.clone();
    fleet.change::<Operation>(&fact.operation, |operation| {
        operation.state = OperationState::PendingApproval(fact.proposal);
        operation.hash = Some(fact.proposal.hash);
        operation.incarnation = Some(id);
        operation.node = Some(fact.node.clone());
        operation.meta.bump(at);
    })?;
    fleet.change::<Replica>(&fact.replica, |replica| {
        replica.active = Some(Active { incarnation: id, node: fact.node.clone(), domain, healthy: false });
        replica.incarnations.push(id);
        replica.meta.touch(at);
    })?;
    let waiting = fleet.index().plan_index(&plan).is_some_and(|index| !index.unplaced.is_empty());
    if !waiting && !fleet.want::<Plan>(&plan)?.unfit.is_empty() {
        // Nothing waits any more: the reasons are history.
        fleet.change::<Plan>(&plan, |plan| plan.unfit.clear())?;
    }
    fleet.put(Incarnation {
        id,
        replica: fact.replica.clone(),
        plan,
        deployment: fact.deployment.clone(),
        node: fact.node.clone(),
        cluster,
        state: IncarnationState::Reserved,
        amounts: fact.amounts,
        volumes: fact.volumes.clone(),
        processes: Vec::new(),
        ready: false,
        revision: 0,
        commanded: None,
        asked: None,
        command: None,
        deadline: None,
        meta: Meta::new(at),
    });
    Ok(())
}

fn command(incarnation: &mut Incarnation, effect: Effect, deadline: Option<Time>, at: At) {
    incarnation.revision += 1;
    incarnation.commanded.get_or_insert(at.position);
    incarnation.asked = Some(effect);
    incarnation.command = Some(Outstanding { effect, attempt: 1, not_before: at.time });
    incarnation.deadline = deadline;
}

/// Its operation was approved: it is asked to come up, or to end.
pub(crate) fn begun(
    fleet: &mut Fleet,
    id: IncarnationId,
    kind: OperationKind,
    deadline: Option<Time>,
    at: At,
) -> Result<(), Contradiction> {
    if !fleet.want::<Incarnation>(&id)?.is_live() {
        let subject = chancery_events::subject::Subject::Incarnation(id);
        return Err(Contradiction { subject, problem: "it is commanded, and it is over".into() });
    }
    fleet.change::<Incarnation>(&id, |incarnation| {
        match kind {
            OperationKind::Create | OperationKind::Start => {
                incarnation.state = IncarnationState::Creating;
                command(incarnation, Effect::Ensure, deadline.filter(|_| !planted::is(Bug::NoDeadline)), at);
            }
            OperationKind::Stop | OperationKind::Delete => {
                // One that is being stopped already is only remembered differently.
                if !matches!(incarnation.state, IncarnationState::Stopping(_)) {
                    command(incarnation, Effect::Stop, deadline, at);
                }
                incarnation.state = IncarnationState::Stopping(IncarnationEnd::Destroyed);
            }
        }
        incarnation.meta.touch(at);
    })?;
    set_health(fleet, id, at)
}

pub(crate) fn commanded(fleet: &mut Fleet, fact: &IncarnationCommanded, at: At) -> Result<(), Contradiction> {
    fleet.change::<Incarnation>(&fact.incarnation, |incarnation| {
        incarnation.state = IncarnationState::Stopping(fact.then.clone());
        command(incarnation, fact.effect, fact.deadline, at);
        incarnation.meta.bump(at);
    })?;
    set_health(fleet, fact.incarnation, at)
}

pub(crate) fn command_failed(fleet: &mut Fleet, fact: &CommandFailed, at: At) -> Result<(), Contradiction> {
    fleet.change::<Incarnation>(&fact.incarnation, |incarnation| {
        incarnation.command = match (incarnation.command, fact.not_before) {
            (Some(command), Some(not_before)) => {
                Some(Outstanding { effect: command.effect, attempt: fact.attempt + 1, not_before })
            }
            (_, None) | (None, _) => None,
        };
        incarnation.meta.bump(at);
    })
}

pub(crate) fn ensured(fleet: &mut Fleet, fact: &IncarnationEnsured, at: At) -> Result<(), Contradiction> {
    fleet.change::<Incarnation>(&fact.incarnation, |incarnation| {
        incarnation.state = IncarnationState::Starting;
        incarnation.command = None;
        incarnation.processes.clone_from(&fact.processes);
        incarnation.meta.bump(at);
    })
}

pub(crate) fn running(fleet: &mut Fleet, fact: &IncarnationRunning, at: At) -> Result<(), Contradiction> {
    fleet.change::<Incarnation>(&fact.incarnation, |incarnation| {
        incarnation.state = IncarnationState::Running;
        incarnation.command = None;
        incarnation.deadline = None;
        incarnation.processes.clone_from(&fact.processes);
        incarnation.ready = true;
        incarnation.meta.bump(at);
    })?;
    set_health(fleet, fact.incarnation, at)?;
    match fact.operation {
        Some(operation) => operation::close(fleet, operation, &OperationEnd::Succeeded, at, Version::Touch),
        None => Ok(()),
    }
}

pub(crate) fn status(fleet: &mut Fleet, fact: &IncarnationStatus, at: At) -> Result<(), Contradiction> {
    fleet.change::<Incarnation>(&fact.incarnation, |incarnation| {
        incarnation.processes.clone_from(&fact.processes);
        incarnation.ready = fact.processes.iter().all(|process| process.status == ProcessStatus::Online);
        incarnation.meta.bump(at);
    })?;
    set_health(fleet, fact.incarnation, at)
}

/// The replica remembers whether its run is a good one.
fn set_health(fleet: &mut Fleet, id: IncarnationId, at: At) -> Result<(), Contradiction> {
    let incarnation = fleet.want::<Incarnation>(&id)?;
    let healthy = incarnation.state == IncarnationState::Running && incarnation.ready;
    let name = incarnation.replica.clone();
    let known = fleet.want::<Replica>(&name)?.active.as_ref().map(|active| active.healthy);
    if known == Some(healthy) {
        return Ok(());
    }
    fleet.change::<Replica>(&name, |replica| {
        if let Some(active) = &mut replica.active {
            active.healthy = healthy;
        }
        replica.meta.touch(at);
    })
}

pub(crate) fn ended(fleet: &mut Fleet, fact: &IncarnationEnded, at: At) -> Result<(), Contradiction> {
    fleet.change::<Incarnation>(&fact.incarnation, |incarnation| {
        incarnation.state = IncarnationState::Ended(fact.end.clone());
        incarnation.command = None;
        incarnation.deadline = None;
        incarnation.ready = false;
        if !fact.processes.is_empty() {
            incarnation.processes.clone_from(&fact.processes);
        }
        incarnation.meta.bump(at);
    })?;
    let over: Vec<_> = {
        let live = |id: &IncarnationId| fleet.incarnations().get(id).is_some_and(Incarnation::is_live);
        fleet.want::<Replica>(&fact.replica)?.incarnations.iter().filter(|id| !live(id)).copied().collect()
    };
    let gone = &over[..over.len().saturating_sub(KEPT)];
    for id in gone {
        fleet.remove::<Incarnation>(id)?;
    }
    fleet.change::<Replica>(&fact.replica, |replica| {
        if replica.active.as_ref().is_some_and(|active| active.incarnation == fact.incarnation) {
            replica.active = None;
        }
        replica.last = Some(fact.end.clone());
        replica.incarnations.retain(|id| !gone.contains(id));
        replica.meta.touch(at);
    })?;
    let Some(displaced) = fact.displaces else { return Ok(()) };
    fleet.change::<Operation>(&displaced, |operation| {
        operation.state = OperationState::Preparing;
        (operation.hash, operation.incarnation, operation.node) = (None, None, None);
        operation.meta.touch(at);
    })
}
