//! Commands for a deployment in progress: cancel, pause, resume, promote; rollback of a canary or of a plan.

use std::io::Write;

use chancery_events::intent::PlanRollback;

use super::act::{ask, intent, read};
use super::args::NOT_CANARIES;
use super::client::ApiClient;
use super::error::CliError;
use super::kind::{EntityKind, KindNaming as _};

/// Sends the intent `deployment.VERB`. `done` is the outcome that is shown, and `instead` the advice for
/// other kinds.
pub(super) fn run(
    (verb, done, instead): (&str, &str, &str),
    kind: EntityKind,
    name: &str,
    client: &ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let word = kind.word();
    let intent = match kind {
        EntityKind::Deployment if !name.contains('/') => {
            return Err(CliError::usage(format!("invalid deployment {name:?}: must be PLAN/NAME")));
        }
        EntityKind::Deployment => intent(kind, verb, name, &[])?,
        _ => None,
    };
    let Some(intent) = intent else {
        let told = format!("cannot {verb} {word}/{name}: only deployments are {done}\nhint: {instead}");
        return Err(CliError::usage(told));
    };
    ask(client, verb, &intent, done, out)
}

/// Returns `PLAN/NAME` if the argument of `rollback` is a deployment; names of plans have no slash.
fn canary(what: &str) -> Option<&str> {
    let name = what.strip_prefix("deployment/").unwrap_or(what);
    (name.contains('/') && !what.starts_with("plan/")).then_some(name)
}

/// Drops the canary of a deployment, or rolls a plan back by a new deployment. Without a name, the new
/// deployment is named after the time.
pub(super) fn rollback(
    what: &str,
    to: Option<&str>,
    name: Option<&str>,
    client: &ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    if let Some(canary) = canary(what) {
        if to.is_some() || name.is_some() {
            return Err(CliError::usage(format!(
                "invalid options --to and --name: the canary of deployment {canary} ends without a new deployment"
            )));
        }
        return run(("rollback", "rolled back", NOT_CANARIES), EntityKind::Deployment, canary, client, out);
    }
    let plan = EntityKind::Plan.name_in(what)?;
    let to = to
        .map(|to| read(EntityKind::Deployment, to.strip_prefix(&format!("{plan}/")).unwrap_or(to)))
        .transpose()?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => format!("rollback-{}", chrono::Utc::now().timestamp()),
    };
    let intent =
        PlanRollback { plan: read(EntityKind::Plan, plan)?, name: read(EntityKind::Deployment, &name)?, to };
    ask(client, "rollback", &intent.into(), "created", out)
}
