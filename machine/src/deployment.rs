//! Deployments: a version of a plan's payloads and a count, carried out one at a time for each plan.
//!
//! | state | its turn | nothing left to do | an operation of it failed | cancel, withdraw | pause | resume | promote | a newer one |
//! |---|---|---|---|---|---|---|---|---|
//! | pending | → in progress | – | – | → cancelled | – | – | – | → superseded |
//! | in progress | – | → completed | → ending (failed) | → ending (cancelled) | → paused | same | the new set counts | the newer one waits, or → ending (superseded) |
//! | paused | – | – | → ending (failed) | → ending (cancelled) | same | → in progress | the new set counts | the same |
//! | ending | – | → failed, cancelled, superseded, as remembered | – | same; one that fails → ending (cancelled) | – | – | – | the newer one waits; one that fails, or → ending (superseded) |
//! | ended | final | | | | | | | |
//!
//! Work is taken a step at a time from what the index counts ([`crate::index`]), and made into facts ([`step`]): create what
//! lacks, start what should run and does not, update what is of another version, delete the surplus; replicas that
//! are right get no operation. While ending, operations that have not begun are cancelled. Those that run settle if the
//! deployment fails, and are aborted if it is cancelled or superseded: what they bring up is stopped unless it is ready,
//! and the run that was there stays the one that counts, or is started again.
//!
//! Two deployments are of one *version* if their payloads and coordinates are the same. With `rolling`, replicas are
//! updated one by one; with `graceful` and `canary`, replicas of the new version stand beside the old ones, until one
//! fact makes the new *set* count: then it goes on like `rolling`, with the old ones as the surplus. If it ends
//! before that, what it created goes.

mod fold;
mod rollback;
mod step;
mod waits;

use chancery_events::fact::{
    DeploymentCreated, DeploymentCutOver, DeploymentEnd, DeploymentEnded, DeploymentEnding, DeploymentPaused,
    DeploymentResumed, Fact,
};
use chancery_events::intent::{
    DeploymentCancel, DeploymentCreate, DeploymentPause, DeploymentPromote, DeploymentResume,
    DeploymentWithdraw, Turn,
};
use chancery_events::lifecycle::{DeploymentWord, SetWord};
use chancery_events::name::{DeploymentName, PlanName};
use chancery_events::refusal::{Code, Refusal};
use chancery_events::spec::{Activity, DeploymentSpec, OperationKind, PlanVersion, Strategy};
use chancery_events::template;

use crate::context::{Context, Draft};
use crate::fleet::Fleet;
use crate::plan;
use crate::refuse::{Faults, bad_transition};
use crate::state::{Deployment, DeploymentState, Plan};

pub(crate) use fold::{created, cut_over, ended, ending, paused, progress, resumed, stalled, started};
pub(crate) use rollback::rollback;
pub(crate) use step::{disturb, fail, no_progress, overdue, step, take_over, takes_over};
pub use waits::{Wait, waits_for};

/// Maximum size of a payload's filled arguments and environment, in bytes: Linux gives a program no more than 2 MiB.
const FILLED_BYTES: usize = 1 << 20;

pub(crate) fn create(fleet: &Fleet, ask: &DeploymentCreate, ctx: &Context) -> Result<Vec<Fact>, Refusal> {
    let owner = fleet.find::<Plan>(&ask.plan)?;
    if let Some(now) = fleet.deployment(&ask.plan, &ask.name) {
        if *now.spec == ask.spec {
            // One that waits may be told not to wait for what is carried out.
            let waits = now.state == DeploymentState::Pending && ask.turn == Turn::Supersede;
            let mut draft = Draft::new(ctx);
            if waits {
                supersede_current(fleet, owner, &ask.name, &mut draft);
            }
            return Ok(draft.done());
        }
        let detail = format!("plan {} has a deployment {} that asks for something else", ask.plan, ask.name);
        let advice = "is taken: a deployment is never changed, so give this one a name of its own";
        return Err(Refusal::new(Code::AlreadyExists, detail).at("/name", advice));
    }
    if owner.activity == Activity::Inactive {
        return Err(Refusal::new(Code::Inactive, format!("plan {} is inactive", ask.plan)));
    }
    check(owner.next_version(), &ask.spec, ctx.replicas)?;
    if owner.removing.is_some() {
        return Err(Refusal::new(Code::InUse, format!("plan {} is being removed", ask.plan)));
    }
    let (plan, name) = (ask.plan.clone(), ask.name.clone());
    let mut draft = Draft::new(ctx);
    supersede_next(owner, &name, &mut draft);
    if ask.turn == Turn::Supersede {
        supersede_current(fleet, owner, &name, &mut draft);
    }
    let (generation, by) = (owner.generation, ctx.actor.clone());
    draft.push(DeploymentCreated { plan, name, generation, spec: ask.spec.clone(), by, rollback: None });
    Ok(draft.done())
}

/// Ends the deployment that waits for its turn.
fn supersede_next(plan: &Plan, by: &DeploymentName, draft: &mut Draft) {
    if let Some(next) = plan.next.clone() {
        let end = DeploymentEnd::Superseded { by: by.clone() };
        draft.push(DeploymentEnded { plan: plan.name.clone(), name: next, end });
    }
}

/// Ends the deployment that is carried out, unless it is ending in a way that aborts what has begun.
fn supersede_current(fleet: &Fleet, plan: &Plan, by: &DeploymentName, draft: &mut Draft) {
    if let Some(current) = current(fleet, plan).filter(|current| may_abort(current)) {
        let why = DeploymentEnd::Superseded { by: by.clone() };
        draft.push(DeploymentEnding { plan: plan.name.clone(), name: current.name.clone(), why });
    }
}

fn check(plan: PlanVersion<'_>, spec: &DeploymentSpec, most: u32) -> Result<(), Refusal> {
    let mut faults = Faults::default();
    let bound = format!("must be at most {most}, which is the server's setting limits.replicas");
    faults.check(spec.count <= most, "/spec/count", bound);
    check_strategy(&mut faults, spec);
    let right = (1000..=plan::LONGEST).contains(&spec.progress_deadline);
    faults.check(right, "/spec/progress_deadline", "must be from 1 s to a year");
    if plan.claims_by_name() {
        let one = "must be at most one: the plan claims a volume by name, which has one user at a time";
        faults.check(spec.count <= 1, "/spec/count", one);
    }
    let rolling = matches!(spec.strategy, Strategy::Rolling { .. });
    let beside = "must be rolling: the plan has volumes, and another set would begin without what is in them";
    faults.check(rolling || !plan.has_volumes(), "/spec/strategy", beside);
    for payload in spec.coordinates.keys() {
        let known = plan.payloads().iter().any(|p| p.name == *payload);
        faults.check(known, format!("/spec/coordinates/{payload}"), "names no payload of the plan");
    }
    // A deployment of none may leave them out: nothing of it is filled in.
    if spec.count > 0 {
        check_texts(&mut faults, plan, spec);
    }
    faults.done()
}

/// Whether the coordinates fill the texts of the version.
fn check_texts(faults: &mut Faults, plan: PlanVersion<'_>, spec: &DeploymentSpec) {
    for payload in plan.payloads() {
        let coordinates = spec.coordinates.get(&payload.name);
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
                Err(error) => {
                    let at = format!("/spec/coordinates/{}", payload.name);
                    faults.add(at, format!("{error} in {}", &place[1..]));
                }
            }
            if bytes > FILLED_BYTES {
                let at = format!("/spec/coordinates/{}", payload.name);
                faults.add(at, format!("the filled texts must have at most {FILLED_BYTES} bytes"));
                break;
            }
        }
    }
}

/// Whether another replica can run by the deployment: one that wanted none may have left out what it needs.
pub(crate) fn can_run(plan: &Plan, deployment: &Deployment) -> Result<(), Refusal> {
    if deployment.spec.count > 0 {
        return Ok(());
    }
    let mut faults = Faults::default();
    check_texts(&mut faults, plan.version_of(deployment.generation), &deployment.spec);
    faults.done().map_err(|refusal| {
        let (plan, name) = (&plan.name, &deployment.name);
        let detail = format!(
            "deployment {name} of plan {plan} wanted no replicas and lacks coordinates: deploy with them first ({})",
            refusal.detail
        );
        Refusal::new(Code::BadTransition, detail)
    })
}

fn check_strategy(faults: &mut Faults, spec: &DeploymentSpec) {
    let at = "/spec/strategy";
    match spec.strategy {
        Strategy::Rolling { wave, pause, .. } => {
            faults.check(wave != Some(0), format!("{at}/rolling/wave"), "must be at least one");
            let right = pause <= plan::LONGEST;
            faults.check(right, format!("{at}/rolling/pause"), "must be at most a year");
        }
        Strategy::Graceful { timeout, .. } => {
            let right = (1..=plan::LONGEST).contains(&timeout);
            faults.check(right, format!("{at}/graceful/timeout"), "must be from 1 ms to a year");
        }
        Strategy::Canary { count } => {
            let right = (1..=spec.count).contains(&count);
            faults.check(right, format!("{at}/canary/count"), "must be from one to the deployment's count");
        }
    }
}

/// The deployment that is being carried out.
pub(crate) fn current<'a>(fleet: &'a Fleet, plan: &Plan) -> Option<&'a Deployment> {
    fleet.deployments().get(&(plan.name.clone(), plan.current.clone()?))
}

/// Whether it is being carried out and not ending.
fn is_begun(deployment: &Deployment) -> bool {
    matches!(deployment.state, DeploymentState::InProgress | DeploymentState::Paused)
}

/// Whether it may still be ended by aborting what has begun: one that fails waits for that to settle.
pub(crate) fn may_abort(deployment: &Deployment) -> bool {
    is_begun(deployment) || matches!(deployment.state, DeploymentState::Ending(DeploymentEnd::Failed { .. }))
}

/// Word for the state of a deployment: of one that is ending, for how it will have ended.
pub const fn state_word(state: &DeploymentState) -> DeploymentWord {
    match state {
        DeploymentState::Pending => DeploymentWord::Pending,
        DeploymentState::InProgress => DeploymentWord::InProgress,
        DeploymentState::Paused => DeploymentWord::Paused,
        DeploymentState::Ending(end) | DeploymentState::Ended(end) => end_word(end),
    }
}

pub(crate) fn cancel(fleet: &Fleet, ask: &DeploymentCancel) -> Result<Vec<Fact>, Refusal> {
    let now = fleet.find::<Deployment>(&(ask.plan.clone(), ask.name.clone()))?;
    let (plan, name) = (ask.plan.clone(), ask.name.clone());
    match &now.state {
        DeploymentState::Pending => {
            Ok(vec![DeploymentEnded { plan, name, end: DeploymentEnd::Cancelled }.into()])
        }
        DeploymentState::InProgress
        | DeploymentState::Paused
        | DeploymentState::Ending(DeploymentEnd::Failed { .. }) => {
            Ok(vec![DeploymentEnding { plan, name, why: DeploymentEnd::Cancelled }.into()])
        }
        DeploymentState::Ending(DeploymentEnd::Cancelled)
        | DeploymentState::Ended(DeploymentEnd::Cancelled) => Ok(vec![]),
        DeploymentState::Ending(end) | DeploymentState::Ended(end) => {
            Err(bad_transition(&format!("deployment {name}"), end_word(end).word(), "cancelled"))
        }
    }
}

pub(crate) fn pause(fleet: &Fleet, ask: &DeploymentPause) -> Result<Vec<Fact>, Refusal> {
    let now = fleet.find::<Deployment>(&(ask.plan.clone(), ask.name.clone()))?;
    match &now.state {
        DeploymentState::Paused => Ok(vec![]),
        DeploymentState::InProgress => {
            Ok(vec![DeploymentPaused { plan: ask.plan.clone(), name: ask.name.clone() }.into()])
        }
        DeploymentState::Pending | DeploymentState::Ending(_) | DeploymentState::Ended(_) => {
            Err(bad_transition(&format!("deployment {}", ask.name), state_word(&now.state).word(), "paused"))
        }
    }
}

pub(crate) fn resume(fleet: &Fleet, ask: &DeploymentResume) -> Result<Vec<Fact>, Refusal> {
    let now = fleet.find::<Deployment>(&(ask.plan.clone(), ask.name.clone()))?;
    match &now.state {
        DeploymentState::InProgress => Ok(vec![]),
        DeploymentState::Paused => {
            Ok(vec![DeploymentResumed { plan: ask.plan.clone(), name: ask.name.clone() }.into()])
        }
        DeploymentState::Pending | DeploymentState::Ending(_) | DeploymentState::Ended(_) => Err(
            bad_transition(&format!("deployment {}", ask.name), state_word(&now.state).word(), "in_progress"),
        ),
    }
}

/// A canary that is begun and not promoted.
fn canary<'a>(
    fleet: &'a Fleet,
    plan: &PlanName,
    name: &DeploymentName,
    to: &str,
) -> Result<&'a Deployment, Refusal> {
    let now = fleet.find::<Deployment>(&(plan.clone(), name.clone()))?;
    if !matches!(now.spec.strategy, Strategy::Canary { .. }) {
        let detail = format!("deployment {name} has no canary: its strategy is another one");
        return Err(Refusal::new(Code::BadTransition, detail));
    }
    if !is_begun(now) {
        return Err(bad_transition(&format!("deployment {name}"), state_word(&now.state).word(), to));
    }
    Ok(now)
}

pub(crate) fn promote(fleet: &Fleet, ask: &DeploymentPromote) -> Result<Vec<Fact>, Refusal> {
    let now = canary(fleet, &ask.plan, &ask.name, "promoted")?;
    let (plan, name) = (ask.plan.clone(), ask.name.clone());
    Ok(match now.set {
        SetWord::New => vec![],
        SetWord::Old => vec![DeploymentCutOver { plan, name }.into()],
    })
}

pub(crate) fn withdraw(fleet: &Fleet, ask: &DeploymentWithdraw) -> Result<Vec<Fact>, Refusal> {
    let now = canary(fleet, &ask.plan, &ask.name, "withdrawn")?;
    let (plan, name) = (ask.plan.clone(), ask.name.clone());
    match now.set {
        SetWord::Old => Ok(vec![DeploymentEnding { plan, name, why: DeploymentEnd::Cancelled }.into()]),
        SetWord::New => Err(bad_transition(&format!("deployment {name}"), "promoted", "withdrawn")),
    }
}

/// Whether an operation of the deployment begins when its turn comes, and not with its approval.
pub(crate) fn takes_turns(
    fleet: &Fleet,
    plan: &PlanName,
    deployment: Option<&DeploymentName>,
    kind: OperationKind,
) -> bool {
    let found = deployment.and_then(|name| fleet.deployment(plan, name));
    found.is_some_and(|deployment| match deployment.state {
        DeploymentState::Paused => true,
        DeploymentState::InProgress => match deployment.spec.strategy {
            Strategy::Rolling { wave, per_domain, pause } => {
                wave.is_some() || per_domain || pause > 0 || kind == OperationKind::Update
            }
            Strategy::Graceful { .. } | Strategy::Canary { .. } => kind == OperationKind::Update,
        },
        DeploymentState::Pending | DeploymentState::Ending(_) | DeploymentState::Ended(_) => false,
    })
}

/// The word for how a deployment ended.
pub const fn end_word(end: &DeploymentEnd) -> DeploymentWord {
    match end {
        DeploymentEnd::Completed => DeploymentWord::Completed,
        DeploymentEnd::Failed { .. } => DeploymentWord::Failed,
        DeploymentEnd::Cancelled => DeploymentWord::Cancelled,
        DeploymentEnd::Superseded { .. } => DeploymentWord::Superseded,
    }
}
