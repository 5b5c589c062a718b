//! Deployments: a version of a plan's payloads and a count, carried out one at a time for each plan.
//!
//! | state | dequeued | nothing left to do | an operation failed | cancel, rollback | pause | resume | promote | newer deployment |
//! |---|---|---|---|---|---|---|---|---|
//! | pending | → in progress | – | – | → cancelled | – | – | – | → superseded |
//! | in progress | – | → completed | → halted (failed) | → halted (cancelled) | → paused | no-op | the new set is active | the newer one waits, or → halted (superseded) |
//! | paused | – | – | → halted (failed) | → halted (cancelled) | no-op | → in progress | the new set is active | as above |
//! | halted | – | → failed, cancelled, superseded, as recorded | – | no-op; failing: → halted (cancelled) | – | – | – | the newer one waits; failing: or → halted (superseded) |
//! | ended | final | | | | | | | |
//!
//! Work is taken one step at a time from the counts of the index ([`crate::index`]), and becomes facts
//! ([`step`]). The steps create missing replicas, start stopped ones, update others and delete the surplus.
//! Replicas in the right state get no operation. A halted deployment cancels operations that have not
//! started. Running operations finish if the deployment fails, and are aborted if it is cancelled or
//! superseded. An abort stops the new incarnation unless it is ready; the previous one stays active, or is
//! started again.
//!
//! Two deployments have the same *version* if their payloads and coordinates are equal. With `rolling`,
//! replicas are updated one by one. With `blue_green` and `canary`, replicas of the new version run alongside
//! the old ones, until one fact makes the new *set* active. From then on the deployment continues like
//! `rolling`, with the old ones as the surplus. If it ends before, the replicas that it created are deleted.

mod fold;
mod rollback;
mod step;
mod waits;

use chancery_events::fact::{
    DeploymentCreated, DeploymentCutOver, DeploymentEnd, DeploymentEnded, DeploymentHalted, DeploymentPaused,
    DeploymentResumed,
};
use chancery_events::intent::{
    DeploymentCancel, DeploymentCreate, DeploymentPause, DeploymentPromote, DeploymentResume,
    DeploymentRollback, OverlapPolicy,
};
use chancery_events::lifecycle::{DeploymentStatus, SetWord};
use chancery_events::name::{DeploymentName, PlanName};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{
    ClusterActivity, DeploymentSpec, DeploymentStrategy, OperationKind, PlanVersion,
};
use chancery_events::template;

use crate::context::{DecisionContext, FactDraft};
use crate::fleet::FleetState;
use crate::plan;
use crate::refuse::{BodyErrors, DecidedFacts, invalid_transition};
use crate::state::{Deployment, DeploymentState, Plan};

pub(crate) use fold::{created, cut_over, ended, halted, paused, progress, resumed, stalled, started};
pub(crate) use rollback::{newest, rollback};
pub(crate) use step::{cause, disturb, fail, no_progress, overdue, step, take_over, takes_over};
pub use waits::{DeploymentWait, waits_for};

/// Maximum size of a payload's filled arguments and environment, in bytes: Linux allows at most 2 MiB.
const FILLED_BYTES: usize = 1 << 20;

pub(crate) fn create(fleet: &FleetState, ask: &DeploymentCreate, ctx: &DecisionContext) -> DecidedFacts {
    let owner = fleet.find::<Plan>(&ask.plan)?;
    let superseded = || DeploymentEnd::Superseded { successor: ask.name.clone() };
    let mut draft = FactDraft::new(ctx);
    if let Some(now) = fleet.deployment(&ask.plan, &ask.name) {
        if *now.spec == ask.spec {
            // A pending deployment can be asked to supersede the current one.
            if now.state == DeploymentState::Pending && ask.overlap == OverlapPolicy::Supersede {
                end_current(fleet, owner, superseded(), &mut draft);
            }
            return Ok(draft.done());
        }
        let detail = format!("plan {} has another deployment {}", ask.plan, ask.name);
        let advice = "is taken: a deployment is never changed, so use another name";
        return Err(Refusal::new(RefusalCode::AlreadyExists, detail).at("/name", advice));
    }
    if owner.activity == ClusterActivity::Inactive {
        return Err(Refusal::new(RefusalCode::Inactive, format!("plan {} is inactive", ask.plan)));
    }
    check(owner.version_of(owner.generation), &ask.spec, ctx.replicas)?;
    if owner.deletion_requested_by.is_some() {
        return Err(Refusal::new(RefusalCode::InUse, format!("plan {} is being deleted", ask.plan)));
    }
    end_next(owner, superseded(), &mut draft);
    if ask.overlap == OverlapPolicy::Supersede {
        end_current(fleet, owner, superseded(), &mut draft);
    }
    draft.push(DeploymentCreated {
        plan: ask.plan.clone(),
        name: ask.name.clone(),
        generation: owner.generation,
        spec: ask.spec.clone(),
        requested_by: ctx.require_actor("a deployment")?,
        rollback: None,
    });
    Ok(draft.done())
}

/// Ends the plan's pending deployment.
pub(crate) fn end_next(plan: &Plan, end: DeploymentEnd, draft: &mut FactDraft) {
    if let Some(name) = plan.next.clone() {
        draft.push(DeploymentEnded { plan: plan.name.clone(), name, end });
    }
}

/// Halts the plan's current deployment, unless it was halted before and its running operations are aborted.
pub(crate) fn end_current(fleet: &FleetState, plan: &Plan, end: DeploymentEnd, draft: &mut FactDraft) {
    if let Some(current) = current(fleet, plan).filter(|current| may_abort(current)) {
        draft.push(DeploymentHalted { plan: plan.name.clone(), name: current.name.clone(), end });
    }
}

fn check(plan: PlanVersion<'_>, spec: &DeploymentSpec, most: u32) -> Result<(), Refusal> {
    let mut faults = BodyErrors::default();
    let bound = format!("must be at most {most}, which is the server's setting limits.replicas");
    faults.check(spec.count <= most, "/spec/count", bound);
    check_strategy(&mut faults, spec);
    let right = (1000..=plan::LONGEST).contains(&spec.progress_deadline);
    faults.check(right, "/spec/progress_deadline", "must be from 1 s to a year");
    if plan.claims_by_name() {
        let one = "must be at most one: the plan claims a volume by name, which has one user at a time";
        faults.check(spec.count <= 1, "/spec/count", one);
    }
    let rolling = matches!(spec.strategy, DeploymentStrategy::Rolling { .. });
    let rule = "must be rolling: the plan has volumes, and another set would start without their data";
    faults.check(rolling || !plan.has_volumes(), "/spec/strategy", rule);
    for payload in spec.coordinates.keys() {
        let known = plan.payloads().iter().any(|p| p.name == *payload);
        faults.check(known, format!("/spec/coordinates/{payload}"), "names no payload of the plan");
    }
    // Coordinates may be missing with a count of 0: nothing is filled in.
    if spec.count > 0 {
        check_texts(&mut faults, plan, spec);
    }
    faults.done()
}

/// Checks that the coordinates fill the texts of the version.
fn check_texts(faults: &mut BodyErrors, plan: PlanVersion<'_>, spec: &DeploymentSpec) {
    for payload in plan.payloads() {
        let coordinates = spec.coordinates.get(&payload.name);
        let at = format!("/spec/coordinates/{}", payload.name);
        let mut bytes = 0;
        for (text, place) in plan::texts(payload, "") {
            let filled = template::fill(text, |name| {
                let executor = plan::FILLED_BY_EXECUTOR.contains(&name)
                    || name.starts_with("port.")
                    || name.starts_with("volume.");
                if executor { Some(String::new()) } else { coordinates.and_then(|c| c.get(name).cloned()) }
            });
            match filled {
                Ok(filled) => bytes += filled.len(),
                Err(error) => faults.add(at.as_str(), format!("{error} in {}", &place[1..])),
            }
            if bytes > FILLED_BYTES {
                faults.add(at, format!("the filled texts must have at most {FILLED_BYTES} bytes"));
                break;
            }
        }
    }
}

/// Checks that another replica can run by the deployment: with a count of 0, coordinates may be missing.
pub(crate) fn can_run(plan: &Plan, deployment: &Deployment) -> Result<(), Refusal> {
    if deployment.spec.count > 0 {
        return Ok(());
    }
    let mut faults = BodyErrors::default();
    check_texts(&mut faults, plan.version_of(deployment.generation), &deployment.spec);
    faults.done().map_err(|refusal| {
        let (plan, name) = (&plan.name, &deployment.name);
        let detail = format!(
            "deployment {name} of plan {plan} had a count of 0 and lacks coordinates: deploy with them first ({})",
            refusal.detail
        );
        Refusal::new(RefusalCode::InvalidTransition, detail)
    })
}

fn check_strategy(faults: &mut BodyErrors, spec: &DeploymentSpec) {
    let at = "/spec/strategy";
    match spec.strategy {
        DeploymentStrategy::Rolling { max_parallel: wave, delay: pause, .. } => {
            faults.check(wave != Some(0), format!("{at}/rolling/max_parallel"), "must be at least one");
            let right = pause <= plan::LONGEST;
            faults.check(right, format!("{at}/rolling/pause"), "must be at most a year");
        }
        DeploymentStrategy::BlueGreen { timeout, .. } => {
            let right = (1..=plan::LONGEST).contains(&timeout);
            faults.check(right, format!("{at}/blue_green/timeout"), "must be from 1 ms to a year");
        }
        DeploymentStrategy::Canary { count } => {
            let right = (1..=spec.count).contains(&count);
            faults.check(right, format!("{at}/canary/count"), "must be from one to the deployment's count");
        }
    }
}

/// Current deployment of the plan: in progress, paused or halted.
pub(crate) fn current<'a>(fleet: &'a FleetState, plan: &Plan) -> Option<&'a Deployment> {
    fleet.deployments().get(&(plan.name.clone(), plan.current.clone()?))
}

/// Whether the deployment is in progress or paused.
pub(crate) fn is_begun(deployment: &Deployment) -> bool {
    matches!(deployment.state, DeploymentState::InProgress | DeploymentState::Paused)
}

/// Whether running operations of the deployment can still be aborted: a failing one lets them finish.
fn may_abort(deployment: &Deployment) -> bool {
    is_begun(deployment) || matches!(deployment.state, DeploymentState::Halted(DeploymentEnd::Failed { .. }))
}

/// Returns the status value of a deployment's state; for a halted one, that of its recorded end.
pub const fn state_word(state: &DeploymentState) -> DeploymentStatus {
    match state {
        DeploymentState::Pending => DeploymentStatus::Pending,
        DeploymentState::InProgress => DeploymentStatus::InProgress,
        DeploymentState::Paused => DeploymentStatus::Paused,
        DeploymentState::Halted(end) | DeploymentState::Ended(end) => end_word(end),
    }
}

pub(crate) fn cancel(fleet: &FleetState, ask: &DeploymentCancel) -> DecidedFacts {
    let now = fleet.find::<Deployment>(&(ask.plan.clone(), ask.name.clone()))?;
    let (plan, name) = (ask.plan.clone(), ask.name.clone());
    let end = DeploymentEnd::Cancelled;
    match &now.state {
        DeploymentState::Pending => Ok(vec![DeploymentEnded { plan, name, end }.into()]),
        DeploymentState::InProgress
        | DeploymentState::Paused
        | DeploymentState::Halted(DeploymentEnd::Failed { .. }) => {
            Ok(vec![DeploymentHalted { plan, name, end }.into()])
        }
        DeploymentState::Halted(DeploymentEnd::Cancelled)
        | DeploymentState::Ended(DeploymentEnd::Cancelled) => Ok(vec![]),
        DeploymentState::Halted(_) | DeploymentState::Ended(_) => Err(impossible(now, "cancelled")),
    }
}

pub(crate) fn pause(fleet: &FleetState, ask: &DeploymentPause) -> DecidedFacts {
    let now = fleet.find::<Deployment>(&(ask.plan.clone(), ask.name.clone()))?;
    match &now.state {
        DeploymentState::Paused => Ok(vec![]),
        DeploymentState::InProgress => {
            Ok(vec![DeploymentPaused { plan: ask.plan.clone(), name: ask.name.clone() }.into()])
        }
        DeploymentState::Pending | DeploymentState::Halted(_) | DeploymentState::Ended(_) => {
            Err(impossible(now, "paused"))
        }
    }
}

pub(crate) fn resume(fleet: &FleetState, ask: &DeploymentResume) -> DecidedFacts {
    let now = fleet.find::<Deployment>(&(ask.plan.clone(), ask.name.clone()))?;
    match &now.state {
        DeploymentState::InProgress => Ok(vec![]),
        DeploymentState::Paused => {
            Ok(vec![DeploymentResumed { plan: ask.plan.clone(), name: ask.name.clone() }.into()])
        }
        DeploymentState::Pending | DeploymentState::Halted(_) | DeploymentState::Ended(_) => {
            Err(impossible(now, "in_progress"))
        }
    }
}

/// Refusal for a deployment that cannot get the state from its current one.
fn impossible(now: &Deployment, to: &str) -> Refusal {
    invalid_transition(&format!("deployment {}", now.name), state_word(&now.state).word(), to)
}

/// Returns the canary deployment, if it is in progress or paused.
fn canary<'a>(
    fleet: &'a FleetState,
    plan: &PlanName,
    name: &DeploymentName,
    to: &str,
) -> Result<&'a Deployment, Refusal> {
    let now = fleet.find::<Deployment>(&(plan.clone(), name.clone()))?;
    if !matches!(now.spec.strategy, DeploymentStrategy::Canary { .. }) {
        let detail = format!("deployment {name} has no canary: its strategy is not canary");
        return Err(Refusal::new(RefusalCode::InvalidTransition, detail));
    }
    if is_begun(now) { Ok(now) } else { Err(impossible(now, to)) }
}

pub(crate) fn promote(fleet: &FleetState, ask: &DeploymentPromote) -> DecidedFacts {
    let now = canary(fleet, &ask.plan, &ask.name, "promoted")?;
    let (plan, name) = (ask.plan.clone(), ask.name.clone());
    Ok(match now.active_set {
        SetWord::New => vec![],
        SetWord::Old => vec![DeploymentCutOver { plan, name }.into()],
    })
}

pub(crate) fn roll_back(fleet: &FleetState, ask: &DeploymentRollback) -> DecidedFacts {
    let now = canary(fleet, &ask.plan, &ask.name, "rolled back")?;
    let (plan, name) = (ask.plan.clone(), ask.name.clone());
    match now.active_set {
        SetWord::Old => Ok(vec![DeploymentHalted { plan, name, end: DeploymentEnd::Cancelled }.into()]),
        SetWord::New => Err(invalid_transition(&format!("deployment {name}"), "promoted", "rolled back")),
    }
}

/// Whether an operation of the deployment is queued after its approval.
pub(crate) fn takes_turns(
    fleet: &FleetState,
    plan: &PlanName,
    deployment: Option<&DeploymentName>,
    kind: OperationKind,
) -> bool {
    let found = deployment.and_then(|name| fleet.deployment(plan, name));
    found.is_some_and(|deployment| match deployment.state {
        DeploymentState::Paused => true,
        DeploymentState::InProgress => match deployment.spec.strategy {
            DeploymentStrategy::Rolling { max_parallel: wave, per_domain, delay: pause } => {
                wave.is_some() || per_domain || pause > 0 || kind == OperationKind::Update
            }
            DeploymentStrategy::BlueGreen { .. } | DeploymentStrategy::Canary { .. } => {
                kind == OperationKind::Update
            }
        },
        DeploymentState::Pending | DeploymentState::Halted(_) | DeploymentState::Ended(_) => false,
    })
}

/// Returns the status value of a deployment's end.
pub const fn end_word(end: &DeploymentEnd) -> DeploymentStatus {
    match end {
        DeploymentEnd::Completed => DeploymentStatus::Completed,
        DeploymentEnd::Failed { .. } => DeploymentStatus::Failed,
        DeploymentEnd::Cancelled => DeploymentStatus::Cancelled,
        DeploymentEnd::Superseded { .. } => DeploymentStatus::Superseded,
    }
}
