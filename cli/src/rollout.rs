//! Commands for a deployment in progress: cancel, pause, resume, promote; rollback of a canary or of a plan.

use chancery_events::intent::{DeploymentCreate, Intent, OverlapPolicy, PlanRollback};
use chancery_events::lifecycle::DeploymentStatus;
use chancery_events::spec::{DeploymentSpec, DeploymentStrategy, FieldClass};
use chancery_projector::rows::{DeploymentRow, PlanRow};
use serde_json::Value;

use super::act::{ask, intent, read};
use super::args::NOT_CANARIES;
use super::client::{ApiClient, CommandIo, RepeatAdvice};
use super::columns::typed;
use super::dry_run::{self, MissingEntity, SendMode};
use super::error::CliError;
use super::get::{list, one};
use super::kind::{self, EntityKind, KindNaming as _};

use crate::note;

/// Sends the intent `deployment.VERB`, with the verb as one word. `done` is the outcome that is shown, and
/// `instead` the advice for other kinds.
pub(super) fn run(
    (verb, done, instead): (&str, &str, &str),
    kind: EntityKind,
    name: &str,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let word = kind.word();
    let intent = match kind {
        EntityKind::Deployment => intent(kind, &verb.replace(' ', ""), name, &[])?,
        _ => None,
    };
    let Some(intent) = intent else {
        let message = format!("cannot {verb} {word}/{name}: only deployments are {done}\nhint: {instead}");
        return Err(CliError::usage(message));
    };
    ask(io, verb, &intent, done)
}

/// Deploys another number of replicas, with the version of the last completed deployment. Without a name, the new
/// deployment is named after the time.
pub(super) fn scale(
    plan: &str,
    count: u32,
    name: Option<&str>,
    mode: SendMode,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let plan = EntityKind::Plan.name_in(plan)?;
    let plan_name = read(EntityKind::Plan, plan)?;
    let filters = [("plan", plan.to_owned()), ("state", DeploymentStatus::Completed.to_string())];
    let items = list(io.client, EntityKind::Deployment, &filters, u64::MAX)?.items;
    let rows = items.iter().map(typed::<DeploymentRow>).collect::<Result<Vec<_>, _>>()?;
    let Some(last) = rows.iter().max_by_key(|row| row.created_at) else {
        // A typo in the name must not read as a plan without deployments.
        one(io.client, EntityKind::Plan, plan)?;
        return Err(CliError::conflict(format!(
            "cannot scale plan/{plan}: no deployment of the plan is completed\ntry: chancery apply -f FILE"
        )));
    };
    let deployed =
        rows.iter().filter(|row| row.generation == last.generation).min_by_key(|row| row.created_at);
    let now = one(io.client, EntityKind::Plan, plan)?;
    check_version(plan, last, deployed.unwrap_or(last), &now, io.client)?;
    check_current(plan, last, &now, io.client)?;
    let strategy = match last.strategy {
        rolling @ DeploymentStrategy::Rolling { .. } => rolling,
        // The version is in use already.
        DeploymentStrategy::BlueGreen { .. } | DeploymentStrategy::Canary { .. } => {
            DeploymentStrategy::default()
        }
    };
    let name = name.map_or_else(|| timed("scale", io), str::to_owned);
    let intent = DeploymentCreate {
        plan: plan_name,
        name: read(EntityKind::Deployment, &name)?,
        spec: DeploymentSpec {
            coordinates: last.coordinates.clone(),
            count,
            strategy,
            progress_deadline: last.progress_deadline,
            auto_rollback: last.auto_rollback,
        },
        overlap: OverlapPolicy::default(),
    };
    send(io, "scale", intent.into(), mode)
}

/// Refuses to scale a plan that is being updated to another version: the new deployment would deploy the version before again. The plan
/// has the version of its last completed deployment.
fn check_current(
    plan: &str,
    last: &DeploymentRow,
    now: &Value,
    client: &ApiClient<'_>,
) -> Result<(), CliError> {
    let Some(current) = now["current"].as_str() else { return Ok(()) };
    let of = format!("{plan}/{current}");
    let row: DeploymentRow = typed(&one(client, EntityKind::Deployment, &of)?)?;
    let is_same_plan = row.generation == last.generation || now["generation"] == row.generation;
    if is_same_plan && row.coordinates == last.coordinates {
        return Ok(());
    }
    let name = &last.name;
    Err(CliError::conflict(format!(
        "cannot scale plan/{plan}: deployment/{of} is in progress with another version than that of \
         deployment/{plan}/{name}, which the new deployment would deploy again\n\
         hint: wait until it has ended, or apply a Deployment with the version and the number of replicas"
    )))
}

/// Refuses to scale a plan whose version was edited since its last completed deployment: a new deployment would deploy the edit.
/// `first` is the first deployment of the same generation, at whose creation the plan had this generation.
fn check_version(
    plan: &str,
    last: &DeploymentRow,
    first: &DeploymentRow,
    now: &Value,
    client: &ApiClient<'_>,
) -> Result<(), CliError> {
    if now["generation"] == last.generation {
        return Ok(());
    }
    let now: PlanRow = typed(now)?;
    let past = ApiClient::new(client.context);
    let moment = first.created_at.to_string();
    past.read_silently_at(&moment);
    let then: PlanRow = typed(&one(&past, EntityKind::Plan, plan)?)?;
    let changed = now.spec.changed(&then.spec).into_iter();
    let changed: Vec<_> =
        changed.filter(|(_, class)| *class == FieldClass::Deployed).map(|(name, _)| name).collect();
    if then.generation == last.generation && changed.is_empty() {
        return Ok(());
    }
    let (name, what) = (&last.name, if changed.is_empty() { "spec".to_owned() } else { changed.join(", ") });
    Err(CliError::conflict(format!(
        "cannot scale plan/{plan}: {what} changed since deployment/{plan}/{name}, and a new deployment would deploy that too\n\
         hint: to deploy the change, apply a Deployment with the number of replicas; to keep the version, restore the plan first, with all \
         of its fields\n\
         try: chancery get plan {plan} --as-of {moment} -o yaml | chancery apply -f -"
    )))
}

/// Sends the intent that creates a deployment, or shows what it would do.
fn send(io: &mut CommandIo<'_>, verb: &str, intent: Intent, mode: SendMode) -> Result<(), CliError> {
    match mode {
        SendMode::Send => ask(io, verb, &intent, "created"),
        SendMode::DryRun => {
            let name = intent.subject().map_or_else(String::new, |subject| subject.to_string());
            dry_run::preview((verb, "created"), &[(name, intent)], MissingEntity::Refused, io)
        }
    }
}

/// Returns a name after the time, which a repeated command must be given to be the same.
fn timed(verb: &str, io: &CommandIo<'_>) -> String {
    let name = format!("{verb}-{}", chrono::Utc::now().timestamp_millis());
    io.client.repeats(RepeatAdvice::Key(format!("--name {name} ")));
    name
}

/// Target of `rollback`.
#[derive(PartialEq, Debug)]
enum RollbackTarget<'a> {
    Plan(&'a str),
    /// Canary of the deployment `PLAN/NAME`.
    Canary(&'a str),
}

/// Reads the target: `PLAN`, `PLAN/NAME`, or either with its kind. Names of plans have no slash.
fn target(what: &str) -> Result<RollbackTarget<'_>, CliError> {
    if let Ok(plan) = EntityKind::Plan.name_in(what)
        && !plan.contains('/')
    {
        return Ok(RollbackTarget::Plan(plan));
    }
    if let Some((kind, name)) = what.split_once('/')
        && !name.contains('/')
        && kind::named(kind) == Some(EntityKind::Deployment)
    {
        return Err(CliError::usage(format!(
            "invalid target {what:?}: must be the plan, as in plan/{name}, or deployment/PLAN/NAME for its canary"
        )));
    }
    EntityKind::Deployment.name_in(what).map(RollbackTarget::Canary)
}

/// Drops the canary of a deployment, or rolls a plan back by a new deployment. Without a name, the new
/// deployment is named after the time.
pub(super) fn rollback(
    what: &str,
    to: Option<&str>,
    name: Option<&str>,
    mode: SendMode,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let plan = match target(what)? {
        RollbackTarget::Plan(plan) => plan,
        RollbackTarget::Canary(canary) if to.is_some() || name.is_some() => {
            return Err(CliError::usage(format!(
                "invalid options --to and --name: the canary of deployment {canary} ends without a new deployment"
            )));
        }
        RollbackTarget::Canary(canary) if mode == SendMode::DryRun => {
            let Some(rollback) = intent(EntityKind::Deployment, "rollback", canary, &[])? else {
                return Err(CliError::failure("cannot roll back: deployments have no such command"));
            };
            let intents = [(format!("deployment/{canary}"), rollback)];
            return dry_run::preview(("roll back", "rolled back"), &intents, MissingEntity::Refused, io);
        }
        RollbackTarget::Canary(canary) => {
            let verb = ("roll back", "rolled back", NOT_CANARIES);
            return run(verb, EntityKind::Deployment, canary, io);
        }
    };
    let to = to
        .map(|to| {
            let to = EntityKind::Deployment.name_in(to)?;
            read(EntityKind::Deployment, to.strip_prefix(&format!("{plan}/")).unwrap_or(to))
        })
        .transpose()?;
    let name = name.map_or_else(|| timed("rollback", io), str::to_owned);
    let intent =
        PlanRollback { plan: read(EntityKind::Plan, plan)?, name: read(EntityKind::Deployment, &name)?, to };
    let of = format!("{plan}/{name}");
    send(io, "roll back", intent.into(), mode)?;
    // The rollback is accepted: a row that cannot be read only leaves the hint out.
    if mode == SendMode::Send
        && let Ok(row) =
            one(io.client, EntityKind::Deployment, &of).and_then(|row| typed::<DeploymentRow>(&row))
        && let Some(rollback) = row.rollback
    {
        note!("hint: the version of deployment/{plan}/{} is restored", rollback.to);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::RollbackTarget::{Canary, Plan};
    use super::*;

    #[test]
    fn a_target_is_a_plan_or_the_canary_of_a_deployment() {
        for (what, wanted) in [
            ("web", Plan("web")),
            ("plan/web", Plan("web")),
            ("plans/web", Plan("web")),
            ("pl/web", Plan("web")),
            ("web/d-1", Canary("web/d-1")),
            ("deployment/web/d-1", Canary("web/d-1")),
            ("dep/web/d-1", Canary("web/d-1")),
        ] {
            assert_eq!(target(what).expect(what), wanted, "{what}");
        }
        assert!(target("node/web/d-1").is_err() && target("deployment/web").is_err());
    }
}
