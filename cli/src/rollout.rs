//! Commands for a deployment in progress: cancel, pause, resume, promote, withdraw. `rollback` of a plan.

use std::io::Write;

use chancery_events::intent::PlanRollback;

use super::act::{ask, intent, read};
use super::client::ApiClient;
use super::error::CliError;
use super::kind::EntityKind;

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

/// Rolls a plan back, by a new deployment. Without a name, it is named after the time.
pub(super) fn rollback(
    plan: &str,
    to: Option<&str>,
    name: Option<&str>,
    client: &ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
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
