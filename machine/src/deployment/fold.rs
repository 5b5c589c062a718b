//! Folding of deployment facts.

use std::sync::Arc;

use chancery_events::digest::Digest;
use chancery_events::fact::{
    DeploymentCreated, DeploymentCutOver, DeploymentEnded, DeploymentHalted, DeploymentPaused,
    DeploymentResumed, DeploymentStalled, DeploymentStarted,
};
use chancery_events::lifecycle::SetWord;
use chancery_events::name::{DeploymentName, PlanName};
use chancery_events::spec::{DeploymentSpec, PlanVersion};

use crate::fleet::{FleetState, FoldResult};
use crate::meta::{EntityMeta, FactPosition};
use crate::state::{Deployment, DeploymentState, Plan};

/// Maximum number of ended deployments that are kept without replicas.
const KEPT: usize = 20;

/// Number of deployments that completed with replicas and are kept in addition.
const COMPLETED: usize = 10;

/// Digest of a version: equal if no replica has to be updated from one deployment to the other.
fn version(plan: PlanVersion<'_>, spec: &DeploymentSpec) -> Digest {
    let json =
        |value: serde_json::Result<Vec<u8>>| value.expect("specs have string keys and no failing parts");
    Digest::of(&[&json(serde_json::to_vec(&plan)), &json(serde_json::to_vec(&spec.coordinates))])
}

pub(crate) fn created(fleet: &mut FleetState, fact: &DeploymentCreated, at: FactPosition) -> FoldResult {
    let version = version(fleet.require::<Plan>(&fact.plan)?.version_of(fact.generation), &fact.spec);
    fleet.touch::<Plan>(&fact.plan, at, |plan| {
        plan.deployments.push(fact.name.clone());
        plan.next = Some(fact.name.clone());
    })?;
    fleet.put(Deployment {
        plan: fact.plan.clone(),
        name: fact.name.clone(),
        generation: fact.generation,
        spec: Arc::new(fact.spec.clone()),
        version,
        state: DeploymentState::Pending,
        active_set: SetWord::Old,
        deadline: None,
        last_success: None,
        progressed: None,
        stalled: None,
        rollback: fact.rollback.clone(),
        requested_by: fact.requested_by.clone(),
        meta: EntityMeta::new(at),
    });
    forget(fleet, &fact.plan)
}

/// Records progress of a deployment.
pub(crate) fn progress(
    fleet: &mut FleetState,
    plan: &PlanName,
    name: &DeploymentName,
    at: FactPosition,
) -> FoldResult {
    let key = (plan.clone(), name.clone());
    if fleet.deployments().get(&key).is_some_and(super::is_begun) {
        fleet.change::<Deployment>(&key, |deployment| {
            (deployment.progressed, deployment.stalled) = (Some(at.time), None);
        })?;
    }
    Ok(())
}

pub(crate) fn stalled(fleet: &mut FleetState, fact: &DeploymentStalled, at: FactPosition) -> FoldResult {
    fleet.bump::<Deployment>(&(fact.plan.clone(), fact.name.clone()), at, |deployment| {
        deployment.stalled = Some(at.time);
    })
}

fn set(
    fleet: &mut FleetState,
    plan: &PlanName,
    name: &DeploymentName,
    state: DeploymentState,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Deployment>(&(plan.clone(), name.clone()), at, |deployment| {
        deployment.stalled = None;
        if state == DeploymentState::InProgress {
            deployment.progressed = Some(at.time);
        }
        deployment.state = state;
    })
}

pub(crate) fn started(fleet: &mut FleetState, fact: &DeploymentStarted, at: FactPosition) -> FoldResult {
    set(fleet, &fact.plan, &fact.name, DeploymentState::InProgress, at)?;
    fleet.change::<Deployment>(&(fact.plan.clone(), fact.name.clone()), |it| it.deadline = fact.deadline)?;
    fleet.touch::<Plan>(&fact.plan, at, |plan| {
        plan.current = Some(fact.name.clone());
        plan.next = None;
    })
}

pub(crate) fn paused(fleet: &mut FleetState, fact: &DeploymentPaused, at: FactPosition) -> FoldResult {
    set(fleet, &fact.plan, &fact.name, DeploymentState::Paused, at)
}

pub(crate) fn resumed(fleet: &mut FleetState, fact: &DeploymentResumed, at: FactPosition) -> FoldResult {
    set(fleet, &fact.plan, &fact.name, DeploymentState::InProgress, at)
}

pub(crate) fn cut_over(fleet: &mut FleetState, fact: &DeploymentCutOver, at: FactPosition) -> FoldResult {
    fleet.bump::<Deployment>(&(fact.plan.clone(), fact.name.clone()), at, |deployment| {
        deployment.active_set = SetWord::New;
        deployment.deadline = None;
        (deployment.progressed, deployment.stalled) = (Some(at.time), None);
    })
}

pub(crate) fn halted(fleet: &mut FleetState, fact: &DeploymentHalted, at: FactPosition) -> FoldResult {
    set(fleet, &fact.plan, &fact.name, DeploymentState::Halted(fact.end.clone()), at)
}

pub(crate) fn ended(fleet: &mut FleetState, fact: &DeploymentEnded, at: FactPosition) -> FoldResult {
    set(fleet, &fact.plan, &fact.name, DeploymentState::Ended(fact.end.clone()), at)?;
    fleet.touch::<Plan>(&fact.plan, at, |plan| {
        for slot in [&mut plan.current, &mut plan.next] {
            if slot.as_ref() == Some(&fact.name) {
                *slot = None;
            }
        }
    })
}

/// Deletes the oldest ended deployments to which no replica refers, and unused generations. The last
/// completed ones stay as rollback targets. This happens when a deployment is created, which may be a
/// rollback to one of them.
fn forget(fleet: &mut FleetState, owner: &PlanName) -> FoldResult {
    let plan = fleet.require::<Plan>(owner)?;
    let replicas = |name: &DeploymentName| {
        let of = fleet.index().plan_index(owner).and_then(|index| index.deployments.get(name));
        of.map_or(0, |of| of.replicas)
    };
    let over = |name: &&DeploymentName| {
        let found = fleet.deployment(owner, name);
        found.is_some_and(Deployment::is_over) && replicas(name) == 0
    };
    let completed = |name: &&DeploymentName| {
        let found = fleet.deployment(owner, name);
        found.is_some_and(|found| found.is_completed() && found.spec.count > 0)
    };
    let good: Vec<_> = plan.deployments.iter().rev().filter(completed).take(COMPLETED).cloned().collect();
    let over: Vec<_> = plan.deployments.iter().filter(over).cloned().collect();
    let old = &over[..over.len().saturating_sub(KEPT)];
    let gone: Vec<_> = old.iter().filter(|name| !good.contains(name)).cloned().collect();
    for name in &gone {
        fleet.remove::<Deployment>(&(owner.clone(), name.clone()))?;
    }
    let plan = fleet.require::<Plan>(owner)?;
    let kept: Vec<_> = plan.deployments.iter().filter(|name| !gone.contains(name)).cloned().collect();
    let used: Vec<_> = kept
        .iter()
        .filter_map(|name| fleet.deployment(owner, name))
        .map(|deployment| deployment.generation)
        .collect();
    fleet.change::<Plan>(owner, |plan| {
        plan.deployments = kept;
        plan.specs.retain(|generation| used.contains(&generation));
    })
}
