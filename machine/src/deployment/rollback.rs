//! Rollbacks: deployments of a version that completed earlier.
//!
//! | request | by a client | by `auto_rollback` of a failed deployment |
//! |---|---|---|
//! | to a completed deployment | its version; supersedes the current and the pending deployment | – |
//! | to one that did not complete, or is unknown | refused | – |
//! | without a target | the last that completed with another version than the deployment started last | the same |
//! | no such target | refused | the deployment has failed, and nothing follows |
//! | the failed version completed last, as where a plan is scaled | – | nothing follows: the running version stays |
//! | a rollback is in progress or pending, no target is named | refused | a rollback is never rolled back |
//! | another deployment is pending | superseded | nothing: that deployment follows |
//!
//! The version consists of coordinates and the version of the plan's generation; the policy is the newest, as
//! for any deployment. The strategy is that of the target, but rolling for a canary, which would wait for the
//! promotion of a proven version. The count is that of the last deployment that completed with replicas, so
//! that scaling persists. The actor of an automatic rollback is the requester of the failed deployment, and
//! thereby of `auto_rollback`.

use chancery_events::fact::{DeploymentCreated, DeploymentEnd, RollbackReference, RollbackRule};
use chancery_events::intent::PlanRollback;
use chancery_events::name::DeploymentName;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{ClusterActivity, DeploymentSpec, DeploymentStrategy};

use super::{can_run, check, current, end_current, end_next, state_word};
use crate::context::{DecisionContext, FactDraft};
use crate::fleet::FleetState;
use crate::refuse::DecidedFacts;
use crate::state::{Deployment, Plan};

pub(crate) fn rollback(fleet: &FleetState, ask: &PlanRollback, ctx: &DecisionContext) -> DecidedFacts {
    let owner = fleet.find::<Plan>(&ask.plan)?;
    if let Some(now) = fleet.deployment(&ask.plan, &ask.name) {
        let same = |of: &RollbackReference| ask.to.as_ref().is_none_or(|to| *to == of.to);
        if now.rollback.as_ref().is_some_and(same) {
            return Ok(vec![]);
        }
        let detail = format!("plan {} has another deployment {}", ask.plan, ask.name);
        let advice = "is taken: use another name";
        return Err(Refusal::new(RefusalCode::AlreadyExists, detail).at("/name", advice));
    }
    if owner.activity == ClusterActivity::Inactive {
        return Err(Refusal::new(RefusalCode::Inactive, format!("plan {} is inactive", ask.plan)));
    }
    if owner.deletion_requested_by.is_some() {
        return Err(Refusal::new(RefusalCode::InUse, format!("plan {} is being deleted", ask.plan)));
    }
    let to = if let Some(to) = &ask.to {
        named(fleet, owner, to)?
    } else {
        if let Some((name, to)) = under_way(fleet, owner) {
            let detail = format!("deployment {name} already rolls plan {} back to {to}", ask.plan);
            return Err(
                Refusal::new(RefusalCode::InvalidTransition, detail).at("/to", "must name a deployment")
            );
        }
        last(fleet, owner).ok_or_else(|| {
            let detail =
                format!("plan {} has no earlier completed deployment with another version", ask.plan);
            Refusal::new(RefusalCode::InvalidTransition, detail)
        })?
    };
    let spec = spec(fleet, owner, to);
    if spec.count > 0 {
        can_run(owner, to)?;
    }
    check(owner.version_of(to.generation), &spec, ctx.replicas).map_err(|refusal| {
        let faults: Vec<_> = refusal.errors.iter().map(|(at, what)| format!("{at} {what}")).collect();
        let detail = format!("deployment {} cannot be deployed again: {}", to.name, faults.join("; "));
        Refusal::new(refusal.code, detail)
    })?;
    let requested_by = ctx.require_actor("a rollback")?;
    let mut draft = FactDraft::new(ctx);
    let superseded = || DeploymentEnd::Superseded { successor: ask.name.clone() };
    end_next(owner, superseded(), &mut draft);
    end_current(fleet, owner, superseded(), &mut draft);
    draft.push(DeploymentCreated {
        plan: ask.plan.clone(),
        name: ask.name.clone(),
        generation: to.generation,
        spec,
        requested_by,
        rollback: Some(RollbackReference { to: to.name.clone(), rule: None }),
    });
    Ok(draft.done())
}

/// Creates the rollback that follows a failed deployment, if that deployment requests one.
pub(super) fn follow(
    fleet: &FleetState,
    plan: &Plan,
    failed: &Deployment,
    reason: &str,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    if !failed.spec.auto_rollback
        || failed.rollback.is_some()
        || plan.next.is_some()
        || plan.deletion_requested_by.is_some()
        || plan.activity == ClusterActivity::Inactive
    {
        return;
    }
    // The active replicas have this version: only the scaling failed.
    let completed = newest(fleet, plan).find(|of| of.is_completed() && of.spec.count > 0);
    if completed.is_some_and(|completed| completed.version == failed.version) {
        return;
    }
    let Some(to) = last(fleet, plan) else { return };
    let spec = spec(fleet, plan, to);
    if check(plan.version_of(to.generation), &spec, ctx.replicas).is_err() {
        return;
    }
    let rule = RollbackRule {
        name: format!("deployment/{}/{}/auto_rollback", plan.name, failed.name),
        reason: reason.to_owned(),
    };
    let Some(name) = free_name(fleet, plan, draft) else { return };
    draft.push(DeploymentCreated {
        plan: plan.name.clone(),
        name,
        generation: to.generation,
        spec,
        // The deployment's requester also requested this rollback: the same four-eyes rules apply.
        requested_by: failed.requested_by.clone(),
        rollback: Some(RollbackReference { to: to.name.clone(), rule: Some(rule) }),
    });
}

/// Name that no deployment of the plan has, from the position of the fact that creates it.
fn free_name(fleet: &FleetState, plan: &Plan, draft: &FactDraft) -> Option<DeploymentName> {
    let first = format!("rollback-{}", draft.position());
    let names = std::iter::once(first.clone()).chain((2u32..).map(|n| format!("{first}-{n}")));
    let mut free = names.map_while(|name| name.parse::<DeploymentName>().ok());
    free.find(|name| fleet.deployment(&plan.name, name).is_none())
}

/// Deployments of the plan, newest first.
pub(crate) fn newest<'a>(fleet: &'a FleetState, plan: &'a Plan) -> impl Iterator<Item = &'a Deployment> {
    let names = plan.deployments.iter().rev();
    names.filter_map(|name| fleet.deployment(&plan.name, name))
}

fn named<'a>(fleet: &'a FleetState, plan: &Plan, to: &DeploymentName) -> Result<&'a Deployment, Refusal> {
    let key = (plan.name.clone(), to.clone());
    let found = fleet.find::<Deployment>(&key).map_err(|refusal| refusal.at("/to", "does not exist"))?;
    if !found.is_completed() {
        let detail = format!("deployment {to} is {}, not completed", state_word(&found.state));
        return Err(Refusal::new(RefusalCode::InvalidTransition, detail).at("/to", "has not completed"));
    }
    Ok(found)
}

/// Name and target of the rollback that is pending or in progress.
fn under_way<'a>(fleet: &'a FleetState, plan: &Plan) -> Option<(&'a DeploymentName, &'a DeploymentName)> {
    let next = plan.next.as_ref().and_then(|name| fleet.deployment(&plan.name, name));
    let now = next.or_else(|| current(fleet, plan).filter(|current| super::is_begun(current)))?;
    now.rollback.as_ref().map(|of| (&now.name, &of.to))
}

/// Last deployment that completed with replicas and another version than the deployment started last.
fn last<'a>(fleet: &'a FleetState, plan: &'a Plan) -> Option<&'a Deployment> {
    let now = newest(fleet, plan).find(|deployment| deployment.progressed.is_some())?;
    newest(fleet, plan).find(|deployment| {
        deployment.is_completed() && deployment.spec.count > 0 && deployment.version != now.version
    })
}

fn spec(fleet: &FleetState, plan: &Plan, to: &Deployment) -> DeploymentSpec {
    let mut counts = newest(fleet, plan).filter(|of| of.is_completed()).map(|of| of.spec.count);
    let strategy = match to.spec.strategy {
        DeploymentStrategy::Canary { .. } => DeploymentStrategy::default(),
        strategy @ (DeploymentStrategy::Rolling { .. } | DeploymentStrategy::BlueGreen { .. }) => strategy,
    };
    DeploymentSpec {
        count: counts.find(|count| *count > 0).unwrap_or(to.spec.count),
        strategy,
        auto_rollback: false,
        ..(*to.spec).clone()
    }
}
