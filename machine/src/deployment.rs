//! Deployments: a version of a plan's payloads and a count, carried out one at a time for each plan.
//!
//! | state | its turn | nothing left to do | an operation of it failed | cancel | a newer one |
//! |---|---|---|---|---|---|
//! | pending | → in progress | – | – | → cancelled | → superseded |
//! | in progress | – | → completed | → ending (failed) | → ending (cancelled) | the newer one waits |
//! | ending | – | → failed, cancelled, as remembered | – | same | the newer one waits |
//! | ended | final | | | | |
//!
//! Work is taken a step at a time by [`step`], from what the index counts: create what lacks, start what should run
//! and does not, delete the surplus; replicas that are right get no operation. While ending, operations that wait
//! are cancelled and those that run settle.

use std::sync::Arc;

use chancery_events::fact::{
    DeploymentCreated, DeploymentEnd, DeploymentEnded, DeploymentEnding, DeploymentStarted, Fact,
    OperationEnd, OperationOpened, ReplicaCreated,
};
use chancery_events::intent::{DeploymentCancel, DeploymentCreate};
use chancery_events::name::{DeploymentName, PlanName, ReplicaName};
use chancery_events::refusal::{Code, Refusal};
use chancery_events::spec::{Activity, DeploymentSpec, OperationKind, PlanSpec};
use chancery_events::subject::Subject;
use chancery_events::template;

use crate::context::{Context, Draft};
use crate::fleet::{Contradiction, Fleet};
use crate::meta::{At, Meta};
use crate::refuse::{Faults, bad_transition, not_found};
use crate::state::{Deployment, DeploymentState, Incarnation, Operation, Plan};
use crate::{operation, plan};

/// Deployments that are over and to which no replica refers are kept so many.
const KEPT: usize = 20;

pub(crate) fn create(fleet: &Fleet, ask: &DeploymentCreate, ctx: &Context) -> Result<Vec<Fact>, Refusal> {
    let owner = fleet.plans().get(&ask.plan).ok_or_else(|| not_found(&Subject::Plan(ask.plan.clone())))?;
    if let Some(now) = fleet.deployments().get(&(ask.plan.clone(), ask.name.clone())) {
        if *now.spec == ask.spec {
            return Ok(vec![]);
        }
        let detail = format!("plan {} has a deployment {} that asks for something else", ask.plan, ask.name);
        return Err(Refusal::new(Code::AlreadyExists, detail).at("/name", "is taken"));
    }
    if owner.activity == Activity::Inactive {
        return Err(Refusal::new(Code::Inactive, format!("plan {} is inactive", ask.plan)));
    }
    check(&owner.spec, &ask.spec, ctx.replicas)?;
    if let Some(running) = other_version(fleet, owner, owner.generation, &ask.spec) {
        let detail = format!(
            "replicas of deployment {running} run another version, and replacing what runs is not possible yet: \
             deploy a count of 0 first"
        );
        return Err(Refusal::new(Code::Unsupported, detail).at("/spec/coordinates", "differ from what runs"));
    }
    let (plan, name) = (ask.plan.clone(), ask.name.clone());
    let superseded = owner.next.clone().map(|next| {
        let end = DeploymentEnd::Superseded { by: name.clone() };
        DeploymentEnded { plan: plan.clone(), name: next, end }.into()
    });
    let created = DeploymentCreated {
        plan: plan.clone(),
        name: name.clone(),
        generation: owner.generation,
        spec: ask.spec.clone(),
    };
    Ok(superseded.into_iter().chain([created.into()]).collect())
}

fn check(plan: &PlanSpec, spec: &DeploymentSpec, most: u32) -> Result<(), Refusal> {
    let mut faults = Faults::default();
    let bound = format!("must be at most {most}, which is the server's setting limits.replicas");
    faults.check(spec.count <= most, "/spec/count", bound);
    for payload in spec.coordinates.keys() {
        let known = plan.payloads.iter().any(|p| p.name == *payload);
        faults.check(known, format!("/spec/coordinates/{payload}"), "names no payload of the plan");
    }
    // Nothing of a deployment of none is ever filled in.
    for payload in plan.payloads.iter().filter(|_| spec.count > 0) {
        let coordinates = spec.coordinates.get(&payload.name);
        for (text, place) in plan::texts(payload, "") {
            let filled = template::fill(text, |name| {
                let executor = plan::FILLED_BY_EXECUTOR.contains(&name) || name.starts_with("port.");
                if executor { Some(String::new()) } else { coordinates.and_then(|c| c.get(name).cloned()) }
            });
            if let Err(error) = filled {
                faults.add(
                    format!("/spec/coordinates/{}", payload.name),
                    format!("{error} in {}", &place[1..]),
                );
            }
        }
    }
    faults.done()
}

/// A deployment whose replicas are, or will be, of another version than the one asked for.
fn other_version(
    fleet: &Fleet,
    plan: &Plan,
    generation: u32,
    spec: &DeploymentSpec,
) -> Option<DeploymentName> {
    if spec.count == 0 {
        return None;
    }
    let index = fleet.index().plan_index(&plan.name)?;
    let present = index.deployments.iter().filter(|(_, of)| of.present > 0).map(|(name, _)| name);
    let stays = |name: &&DeploymentName| {
        // What the current deployment is about to delete need not be right.
        let current = plan
            .current
            .as_ref()
            .and_then(|current| fleet.deployments().get(&(plan.name.clone(), current.clone())));
        current.is_none_or(|current| current.spec.count > 0 || current.name == **name)
    };
    let wanted = (&plan.spec_of(generation).payloads, &spec.coordinates);
    present.filter(stays).chain(plan.current.as_ref()).find_map(|name| {
        let other = fleet.deployments().get(&(plan.name.clone(), name.clone()))?;
        let same = (&plan.spec_of(other.generation).payloads, &other.spec.coordinates) == wanted;
        (!same && other.spec.count > 0).then(|| name.clone())
    })
}

pub(crate) fn cancel(fleet: &Fleet, ask: &DeploymentCancel) -> Result<Vec<Fact>, Refusal> {
    let key = (ask.plan.clone(), ask.name.clone());
    let (plan, name) = key.clone();
    let now = fleet
        .deployments()
        .get(&key)
        .ok_or_else(|| not_found(&Subject::Deployment(plan.clone(), name.clone())))?;
    match &now.state {
        DeploymentState::Pending => {
            Ok(vec![DeploymentEnded { plan, name, end: DeploymentEnd::Cancelled }.into()])
        }
        DeploymentState::InProgress => {
            Ok(vec![DeploymentEnding { plan, name, why: DeploymentEnd::Cancelled }.into()])
        }
        DeploymentState::Ending(DeploymentEnd::Cancelled)
        | DeploymentState::Ended(DeploymentEnd::Cancelled) => Ok(vec![]),
        DeploymentState::Ending(end) | DeploymentState::Ended(end) => {
            Err(bad_transition(&format!("deployment {name}"), end_word(end), "cancelled"))
        }
    }
}

/// The word for how a deployment ended.
pub fn end_word(end: &DeploymentEnd) -> &'static str {
    match end {
        DeploymentEnd::Completed => "completed",
        DeploymentEnd::Failed { .. } => "failed",
        DeploymentEnd::Cancelled => "cancelled",
        DeploymentEnd::Superseded { .. } => "superseded",
    }
}

/// The next step for the plan's deployments. Empty if there is none: then the plan was not due.
pub(crate) fn step(fleet: &Fleet, plan: &Plan, ctx: &Context) -> Vec<Fact> {
    let mut draft = Draft::new(ctx);
    let key = |name: &DeploymentName| (plan.name.clone(), name.clone());
    let Some(current) = plan.current.as_ref().and_then(|name| fleet.deployments().get(&key(name))) else {
        if let Some(next) = plan.next.as_ref().and_then(|name| fleet.deployments().get(&key(name))) {
            start(fleet, plan, next, &mut draft);
        }
        return draft.done();
    };
    let Some(index) = fleet.index().plan_index(&plan.name) else { return Vec::new() };
    let empty = crate::index::DeploymentIndex::default();
    let counts = index.deployments.get(&current.name).unwrap_or(&empty);
    let settled = counts.unstarted.is_empty() && counts.running.is_empty();
    let end = |end| DeploymentEnded { plan: plan.name.clone(), name: current.name.clone(), end };
    match &current.state {
        DeploymentState::Ending(why) => {
            let unstarted = counts.unstarted.first().and_then(|id| fleet.operations().get(id));
            if let Some(operation) = unstarted {
                let reason = format!("deployment {} is ending", current.name);
                operation::end(fleet, operation, OperationEnd::Cancelled { reason }, &mut draft);
            } else if settled {
                draft.push(end(why.clone()));
            }
        }
        DeploymentState::InProgress => {
            let surplus = index.present > current.spec.count;
            let victim = if surplus { index.victim() } else { None };
            if let Some(victim) = victim.and_then(|name| fleet.replicas().get(name)) {
                operation::open_end(
                    fleet,
                    victim,
                    OperationKind::Delete,
                    Some(&current.name),
                    ctx,
                    &mut draft,
                );
            } else if index.present < current.spec.count {
                create_one(plan, current, &mut draft);
            } else if let Some(idle) = index.idle.first() {
                let deployment = Some(current.name.clone());
                let kind = OperationKind::Start;
                draft.push(OperationOpened { replica: idle.clone(), kind, deployment, proposal: None });
            } else if settled {
                draft.push(end(DeploymentEnd::Completed));
            }
        }
        DeploymentState::Pending | DeploymentState::Ended(_) => {}
    }
    draft.done()
}

/// Checks once more: a failed deployment may have left replicas of another version since this one was accepted.
fn start(fleet: &Fleet, plan: &Plan, next: &Deployment, draft: &mut Draft) {
    let (owner, name) = (plan.name.clone(), next.name.clone());
    match other_version(fleet, plan, next.generation, &next.spec) {
        Some(other) => {
            let cause = format!(
                "replicas of deployment {other} run another version, and replacing them is not possible yet"
            );
            draft.push(DeploymentEnded { plan: owner, name, end: DeploymentEnd::Failed { cause } });
        }
        None => draft.push(DeploymentStarted { plan: owner, name }),
    }
}

fn create_one(plan: &Plan, deployment: &Deployment, draft: &mut Draft) {
    let name = ReplicaName::issue(&plan.spec_of(deployment.generation).service, draft.position());
    let by = deployment.name.clone();
    draft.push(ReplicaCreated { name: name.clone(), plan: plan.name.clone(), deployment: by.clone() });
    let kind = OperationKind::Create;
    draft.push(OperationOpened { replica: name, kind, deployment: Some(by), proposal: None });
}

/// An operation of the deployment came to nothing: the deployment fails with that cause.
pub(crate) fn fail(fleet: &Fleet, operation: &Operation, cause: String, draft: &mut Draft) {
    let Some(name) = &operation.deployment else { return };
    let key = (operation.plan.clone(), name.clone());
    let running = fleet.deployments().get(&key).is_some_and(|d| d.state == DeploymentState::InProgress);
    if running {
        let why = DeploymentEnd::Failed { cause };
        draft.push(DeploymentEnding { plan: key.0, name: key.1, why });
    }
}

/// A replica that ran has ended by itself: the deployment that is being carried out fails with that cause.
pub(crate) fn disturb(fleet: &Fleet, incarnation: &Incarnation, draft: &mut Draft) {
    let current = fleet.plans().get(&incarnation.plan).and_then(|plan| plan.current.clone());
    let Some(name) = current else { return };
    let key = (incarnation.plan.clone(), name);
    if fleet.deployments().get(&key).is_some_and(|d| d.state == DeploymentState::InProgress) {
        let cause = format!("replica {} ended by itself", incarnation.replica);
        draft.push(DeploymentEnding { plan: key.0, name: key.1, why: DeploymentEnd::Failed { cause } });
    }
}

pub(crate) fn created(fleet: &mut Fleet, fact: &DeploymentCreated, at: At) -> Result<(), Contradiction> {
    fleet.change::<Plan>(&fact.plan, |plan| {
        plan.deployments.push(fact.name.clone());
        plan.next = Some(fact.name.clone());
        plan.meta.touch(at);
    })?;
    fleet.put(Deployment {
        plan: fact.plan.clone(),
        name: fact.name.clone(),
        generation: fact.generation,
        spec: Arc::new(fact.spec.clone()),
        state: DeploymentState::Pending,
        meta: Meta::new(at),
    });
    Ok(())
}

fn set(
    fleet: &mut Fleet,
    plan: &PlanName,
    name: &DeploymentName,
    state: DeploymentState,
    at: At,
) -> Result<(), Contradiction> {
    fleet.change::<Deployment>(&(plan.clone(), name.clone()), |deployment| {
        deployment.state = state;
        deployment.meta.bump(at);
    })
}

pub(crate) fn started(fleet: &mut Fleet, fact: &DeploymentStarted, at: At) -> Result<(), Contradiction> {
    set(fleet, &fact.plan, &fact.name, DeploymentState::InProgress, at)?;
    fleet.change::<Plan>(&fact.plan, |plan| {
        plan.current = Some(fact.name.clone());
        plan.next = None;
        plan.meta.touch(at);
    })
}

pub(crate) fn ending(fleet: &mut Fleet, fact: &DeploymentEnding, at: At) -> Result<(), Contradiction> {
    set(fleet, &fact.plan, &fact.name, DeploymentState::Ending(fact.why.clone()), at)
}

pub(crate) fn ended(fleet: &mut Fleet, fact: &DeploymentEnded, at: At) -> Result<(), Contradiction> {
    set(fleet, &fact.plan, &fact.name, DeploymentState::Ended(fact.end.clone()), at)?;
    fleet.change::<Plan>(&fact.plan, |plan| {
        for slot in [&mut plan.current, &mut plan.next] {
            if slot.as_ref() == Some(&fact.name) {
                *slot = None;
            }
        }
        plan.meta.touch(at);
    })?;
    forget(fleet, &fact.plan)
}

/// Lets go of the oldest deployments that are over and to which nothing refers, and of generations likewise.
fn forget(fleet: &mut Fleet, owner: &PlanName) -> Result<(), Contradiction> {
    let plan = fleet.want::<Plan>(owner)?;
    let replicas = |name: &DeploymentName| {
        let of = fleet.index().plan_index(owner).and_then(|index| index.deployments.get(name));
        of.map_or(0, |of| of.replicas)
    };
    let over = |name: &&DeploymentName| {
        let found = fleet.deployments().get(&(owner.clone(), (*name).clone()));
        found.is_some_and(Deployment::is_over) && replicas(name) == 0
    };
    let over: Vec<_> = plan.deployments.iter().filter(over).cloned().collect();
    let gone = &over[..over.len().saturating_sub(KEPT)];
    for name in gone {
        fleet.remove::<Deployment>(&(owner.clone(), name.clone()))?;
    }
    let plan = fleet.want::<Plan>(owner)?;
    let kept: Vec<_> = plan.deployments.iter().filter(|name| !gone.contains(name)).cloned().collect();
    let used: Vec<_> = kept
        .iter()
        .filter_map(|name| fleet.deployments().get(&(owner.clone(), name.clone())))
        .map(|deployment| deployment.generation)
        .collect();
    fleet.change::<Plan>(owner, |plan| {
        plan.deployments = kept;
        let latest = plan.generation;
        plan.generations.retain(|generation, _| *generation == latest || used.contains(generation));
    })
}
