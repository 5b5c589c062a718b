//! What is asked of a deployment that is being carried out: cancel, pause, resume, promote, withdraw; and rolling a plan
//! back.

use std::io::Write;

use chancery_events::intent::{
    DeploymentCancel, DeploymentPause, DeploymentPromote, DeploymentResume, DeploymentWithdraw, Intent,
    PlanRollback,
};

use super::act::{ask, read};
use super::client::Client;
use super::error::CliError;
use super::kind::Kind;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Cancel,
    Pause,
    Resume,
    Promote,
    Withdraw,
}

impl Verb {
    /// The word, and the word for what was done.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Verb::Cancel => ("cancel", "cancelled"),
            Verb::Pause => ("pause", "paused"),
            Verb::Resume => ("resume", "resumed"),
            Verb::Promote => ("promote", "promoted"),
            Verb::Withdraw => ("withdraw", "withdrawn"),
        }
    }

    /// What to do instead with something that is no deployment.
    const fn instead(self) -> &'static str {
        match self {
            Verb::Cancel => "operations are rejected, replicas stopped or deleted, disruptions completed",
            Verb::Pause | Verb::Resume => "replicas are stopped and started, plans deactivated and activated",
            Verb::Promote | Verb::Withdraw => "operations are approved or rejected",
        }
    }
}

pub(super) fn run(
    verb: Verb,
    kind: Kind,
    name: &str,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let (word, done) = verb.words();
    if kind != Kind::Deployment {
        let told = format!("{word} {}/{name}: deployments alone are {done}; {}", kind.word(), verb.instead());
        return Err(CliError::usage(told));
    }
    let (plan, deployment) = name
        .split_once('/')
        .ok_or_else(|| CliError::usage(format!("write the deployment as PLAN/NAME, not {name:?}")))?;
    let (plan, name) = (read(Kind::Plan, plan)?, read(Kind::Deployment, deployment)?);
    let intent: Intent = match verb {
        Verb::Cancel => DeploymentCancel { plan, name }.into(),
        Verb::Pause => DeploymentPause { plan, name }.into(),
        Verb::Resume => DeploymentResume { plan, name }.into(),
        Verb::Promote => DeploymentPromote { plan, name }.into(),
        Verb::Withdraw => DeploymentWithdraw { plan, name }.into(),
    };
    ask(client, word, &intent, done, out)
}

/// Rolls a plan back, by a deployment that is named after the time if no name is given.
pub(super) fn rollback(
    plan: &str,
    to: Option<&str>,
    name: Option<&str>,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let to = to
        .map(|to| read(Kind::Deployment, to.strip_prefix(&format!("{plan}/")).unwrap_or(to)))
        .transpose()?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => format!("rollback-{}", chrono::Utc::now().timestamp()),
    };
    let intent = PlanRollback { plan: read(Kind::Plan, plan)?, name: read(Kind::Deployment, &name)?, to };
    ask(client, "rollback", &intent.into(), "created", out)
}
