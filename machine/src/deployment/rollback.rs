//! Rollbacks: deployments that run again what an earlier one had that completed.
//!
//! | asked for | a person | `auto_rollback` of a deployment that fails |
//! |---|---|---|
//! | to a deployment that completed | its version; supersedes what is carried out and what waits | – |
//! | to one that did not complete, or is unknown | refused | – |
//! | to none | the last that completed with another version than that of the deployment started last | the same |
//! | there is none | refused | the deployment has failed, and nothing follows |
//! | the version that failed is that which completed last, as where a plan is scaled | – | nothing follows: what runs is as it was |
//! | a rollback is under way, and none is named | refused | a rollback is never rolled back |
//! | another deployment waits for its turn | superseded | nothing: it follows |
//!
//! The version is coordinates and that of the plan's generation; the policy is the newest, as of any deployment. The strategy is that of the target, but for a canary, which
//! would wait for people to promote what has been seen to run: that is rolling. The count is that of the last deployment
//! that completed with any, so that what was scaled since stays so. The actor of a rollback by rule is the one who asked for
//! the deployment that failed, and for `auto_rollback` with it.

use chancery_events::fact::{DeploymentCreated, Fact, Rollback, RollbackRule};
use chancery_events::intent::PlanRollback;
use chancery_events::name::DeploymentName;
use chancery_events::refusal::{Code, Refusal};
use chancery_events::spec::{Activity, DeploymentSpec, Strategy};

use super::{can_run, check, current, state_word, supersede_current, supersede_next};
use crate::context::{Context, Draft};
use crate::fleet::Fleet;
use crate::state::{Deployment, Plan};

pub(crate) fn rollback(fleet: &Fleet, ask: &PlanRollback, ctx: &Context) -> Result<Vec<Fact>, Refusal> {
    let owner = fleet.find::<Plan>(&ask.plan)?;
    if let Some(now) = fleet.deployment(&ask.plan, &ask.name) {
        let same = |of: &Rollback| ask.to.as_ref().is_none_or(|to| *to == of.to);
        if now.rollback.as_ref().is_some_and(same) {
            return Ok(vec![]);
        }
        let detail = format!("plan {} has a deployment {} that is something else", ask.plan, ask.name);
        let advice = "is taken: give the rollback a name of its own";
        return Err(Refusal::new(Code::AlreadyExists, detail).at("/name", advice));
    }
    if owner.activity == Activity::Inactive {
        return Err(Refusal::new(Code::Inactive, format!("plan {} is inactive", ask.plan)));
    }
    if owner.removing.is_some() {
        return Err(Refusal::new(Code::InUse, format!("plan {} is being removed", ask.plan)));
    }
    let to = if let Some(to) = &ask.to {
        named(fleet, owner, to)?
    } else {
        if let Some((name, to)) = under_way(fleet, owner) {
            let detail = format!("deployment {name} rolls plan {} back to {to} already", ask.plan);
            return Err(Refusal::new(Code::BadTransition, detail).at("/to", "must name a deployment"));
        }
        last(fleet, owner).ok_or_else(|| {
            let detail = format!("plan {} has no earlier deployment that completed", ask.plan);
            Refusal::new(Code::BadTransition, detail)
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
    let mut draft = Draft::new(ctx);
    supersede_next(owner, &ask.name, &mut draft);
    supersede_current(fleet, owner, &ask.name, &mut draft);
    draft.push(DeploymentCreated {
        plan: ask.plan.clone(),
        name: ask.name.clone(),
        generation: to.generation,
        spec,
        by: ctx.actor.clone(),
        rollback: Some(Rollback { to: to.name.clone(), rule: None }),
    });
    Ok(draft.done())
}

/// The rollback that follows the end of a deployment that failed, if that wants one.
pub(super) fn follow(
    fleet: &Fleet,
    plan: &Plan,
    failed: &Deployment,
    reason: &str,
    ctx: &Context,
    draft: &mut Draft,
) {
    if !failed.spec.auto_rollback
        || failed.rollback.is_some()
        || plan.next.is_some()
        || plan.removing.is_some()
        || plan.activity == Activity::Inactive
    {
        return;
    }
    // What serves is of this version: only what was to be added to it failed.
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
        // Who asked for the deployment asked for this too: four eyes are needed as for the deployment.
        by: failed.by.clone(),
        rollback: Some(Rollback { to: to.name.clone(), rule: Some(rule) }),
    });
}

/// A name that no deployment of the plan has, from the position of the fact that gives it.
fn free_name(fleet: &Fleet, plan: &Plan, draft: &Draft) -> Option<DeploymentName> {
    let first = format!("rollback-{}", draft.position());
    let names = std::iter::once(first.clone()).chain((2u32..).map(|n| format!("{first}-{n}")));
    let mut free = names.map_while(|name| name.parse::<DeploymentName>().ok());
    free.find(|name| fleet.deployment(&plan.name, name).is_none())
}

/// The plan's deployments, newest first.
fn newest<'a>(fleet: &'a Fleet, plan: &'a Plan) -> impl Iterator<Item = &'a Deployment> {
    let names = plan.deployments.iter().rev();
    names.filter_map(|name| fleet.deployment(&plan.name, name))
}

fn named<'a>(fleet: &'a Fleet, plan: &Plan, to: &DeploymentName) -> Result<&'a Deployment, Refusal> {
    let key = (plan.name.clone(), to.clone());
    let found = fleet.find::<Deployment>(&key).map_err(|refusal| refusal.at("/to", "does not exist"))?;
    if !found.is_completed() {
        let detail =
            format!("deployment {to} is {}: a rollback needs one that completed", state_word(&found.state));
        return Err(Refusal::new(Code::BadTransition, detail).at("/to", "has not completed"));
    }
    Ok(found)
}

/// The rollback that waits for its turn or is carried out, and what it rolls back to.
fn under_way<'a>(fleet: &'a Fleet, plan: &Plan) -> Option<(&'a DeploymentName, &'a DeploymentName)> {
    let next = plan.next.as_ref().and_then(|name| fleet.deployment(&plan.name, name));
    let now = next.or_else(|| current(fleet, plan).filter(|current| super::is_begun(current)))?;
    now.rollback.as_ref().map(|of| (&now.name, &of.to))
}

/// The last deployment that completed with any replicas and another version than that of the deployment that was started
/// last.
fn last<'a>(fleet: &'a Fleet, plan: &'a Plan) -> Option<&'a Deployment> {
    let now = newest(fleet, plan).find(|deployment| deployment.progressed.is_some())?;
    newest(fleet, plan).find(|deployment| {
        deployment.is_completed() && deployment.spec.count > 0 && deployment.version != now.version
    })
}

fn spec(fleet: &Fleet, plan: &Plan, to: &Deployment) -> DeploymentSpec {
    let mut counts = newest(fleet, plan).filter(|of| of.is_completed()).map(|of| of.spec.count);
    let strategy = match to.spec.strategy {
        Strategy::Canary { .. } => Strategy::default(),
        strategy @ (Strategy::Rolling { .. } | Strategy::Graceful { .. }) => strategy,
    };
    DeploymentSpec {
        count: counts.find(|count| *count > 0).unwrap_or(to.spec.count),
        strategy,
        auto_rollback: false,
        ..(*to.spec).clone()
    }
}
