//! Commands that ask for one thing: delete, cancel, stop, start, a node's life, activate and deactivate.

use std::fmt::Display;
use std::io::{BufRead, Write};
use std::str::FromStr;

use chancery_events::intent::{
    CapabilityDelete, CapabilitySetActivity, Cascade, ClusterDelete, ClusterSetActivity, DeploymentCancel,
    Intent, NodeDelete, NodeSetState, PlanDelete, PlanSetActivity, ReplicaDelete, ReplicaStart, ReplicaStop,
};
use chancery_events::name::ClusterName;
use chancery_events::spec::{Activity, NodeState};
use chancery_projector::rows::NodeRow;
use serde_json::json;

use super::client::Client;
use super::columns::typed;
use super::context::Output;
use super::error::CliError;
use super::get;
use super::kind::Kind;

/// Asks, and says what came of it: `done` for a change.
pub(super) fn ask(
    client: &Client<'_>,
    verb: &str,
    intent: &Intent,
    done: &str,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let output = client.context.output(&[Output::Table, Output::Name, Output::Json, Output::Jsonl])?;
    let subject = intent.subject().map(|subject| subject.to_string()).unwrap_or_default();
    let verdict = client.ask(&format!("{verb} {subject}"), intent)?;
    let outcome = if verdict.outcome == "unchanged" { "unchanged" } else { done };
    let name = verdict.subject.as_deref().unwrap_or(&subject);
    match output {
        Output::Name => writeln!(out, "{name}")?,
        Output::Json | Output::Jsonl => {
            let json = json!({
                "subject": name, "outcome": outcome, "position": verdict.position, "version": verdict.version,
            });
            writeln!(out, "{json}")?;
        }
        _ => writeln!(out, "{name} {outcome}")?,
    }
    Ok(())
}

/// The same for a replica, whose operation may wait for approval.
fn ask_replica(
    client: &Client<'_>,
    verb: &str,
    name: &str,
    intent: &Intent,
    done: &str,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    ask(client, verb, intent, done, out)?;
    let filters = [("replica", name.to_owned()), ("state", "pending_approval".to_owned())];
    if !get::list(client, Kind::Operation, &filters, 1)?.items.is_empty() {
        eprintln!("its operation waits for approval: chancery approve --replica {name} --all");
    }
    Ok(())
}

pub(super) fn delete(
    kind: Kind,
    name: &str,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let intent = match kind {
        Kind::Cluster => ClusterDelete { name: read(kind, name)? }.into(),
        Kind::Capability => CapabilityDelete { name: read(kind, name)? }.into(),
        Kind::Node => NodeDelete { name: read(kind, name)?, cascade: Cascade::No }.into(),
        Kind::Plan => PlanDelete { name: read(kind, name)?, cascade: Cascade::No }.into(),
        Kind::Replica => {
            let intent = ReplicaDelete { name: read(kind, name)? }.into();
            return ask_replica(client, "delete", name, &intent, "is to be deleted", out);
        }
        Kind::Deployment => {
            let advice = format!("chancery cancel deployment {name}, or deploy a count of 0");
            return Err(CliError::usage(format!(
                "deployments are not deleted, their history is kept: {advice}"
            )));
        }
        Kind::Incarnation | Kind::Operation | Kind::Session | Kind::Command => {
            return Err(CliError::usage(format!("{} come and go with what they serve", kind.plural())));
        }
    };
    ask(client, "delete", &intent, "deleted", out)
}

pub(super) fn cancel(
    kind: Kind,
    name: &str,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    if kind != Kind::Deployment {
        let advice = "deployments alone are cancelled; operations are rejected, replicas stopped or deleted";
        return Err(CliError::usage(format!("cancel {}/{name}: {advice}", kind.word())));
    }
    let (plan, deployment) = name
        .split_once('/')
        .ok_or_else(|| CliError::usage(format!("write the deployment as PLAN/NAME, not {name:?}")))?;
    let intent =
        DeploymentCancel { plan: read(Kind::Plan, plan)?, name: read(Kind::Deployment, deployment)? }.into();
    ask(client, "cancel", &intent, "cancelled", out)
}

pub(super) fn stop(name: &str, client: &Client<'_>, out: &mut dyn Write) -> Result<(), CliError> {
    let name = Kind::Replica.name_in(name)?;
    let intent = ReplicaStop { name: read(Kind::Replica, name)? }.into();
    ask_replica(client, "stop", name, &intent, "is to stop", out)
}

pub(super) fn start(name: &str, client: &Client<'_>, out: &mut dyn Write) -> Result<(), CliError> {
    let name = Kind::Replica.name_in(name)?;
    let intent = ReplicaStart { name: read(Kind::Replica, name)?, node: None }.into();
    ask_replica(client, "start", name, &intent, "is to start", out)
}

pub(super) fn move_node(
    verb: &str,
    name: &str,
    state: NodeState,
    cluster: Option<&str>,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let name = Kind::Node.name_in(name)?;
    let cluster = cluster.map(|cluster| Kind::Cluster.name_in(cluster)).transpose()?;
    let cluster: Option<ClusterName> = cluster.map(|cluster| read(Kind::Cluster, cluster)).transpose()?;
    let intent = NodeSetState { name: read(Kind::Node, name)?, state, cluster }.into();
    ask(client, verb, &intent, state.word(), out)
}

/// The one command that cannot be undone, and takes down what it is not about: it asks first.
pub(super) fn expunge(
    name: &str,
    yes: bool,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let name = Kind::Node.name_in(name)?;
    if !yes {
        let node: NodeRow = typed(&get::one(client, Kind::Node, name)?)?;
        let what =
            format!("node/{name} is declared gone for ever, with the {} runs on it", node.incarnations);
        if !client.context.person {
            return Err(CliError::usage(format!("expunge: {what}: write --yes if that is so")));
        }
        if !agreed(&what, &mut std::io::stdin().lock(), &mut std::io::stderr())? {
            return Err(CliError::failure("expunge: nothing was done"));
        }
    }
    move_node("expunge", name, NodeState::Expunged, None, client, out)
}

/// Asks for a yes; anything else is a no.
fn agreed(what: &str, input: &mut dyn BufRead, prompt: &mut dyn Write) -> Result<bool, CliError> {
    write!(prompt, "{what}; go on? [y/N] ")?;
    prompt.flush()?;
    let mut answer = String::new();
    let read = input.read_line(&mut answer);
    read.map_err(|error| CliError::failure(format!("read the answer: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

pub(super) fn set_activity(
    kind: Kind,
    name: &str,
    activity: Activity,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let intent = match kind {
        Kind::Cluster => ClusterSetActivity { name: read(kind, name)?, activity }.into(),
        Kind::Capability => CapabilitySetActivity { name: read(kind, name)?, activity }.into(),
        Kind::Plan => PlanSetActivity { name: read(kind, name)?, activity }.into(),
        _ => return Err(CliError::usage("only clusters, capabilities and plans are active or inactive")),
    };
    let verb = if activity == Activity::Active { "activate" } else { "deactivate" };
    ask(client, verb, &intent, activity.word(), out)
}

/// A name of the command line.
fn read<T: FromStr<Err: Display>>(kind: Kind, name: &str) -> Result<T, CliError> {
    name.parse()
        .map_err(|error| CliError::usage(format!("read the name of the {} {name:?}: {error}", kind.word())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for (answer, wanted) in
            [("y\n", true), ("yes\n", true), ("n\n", false), ("\n", false), ("", false), ("yep\n", false)]
        {
            let mut prompt = Vec::new();
            assert_eq!(agreed("node/a goes", &mut answer.as_bytes(), &mut prompt), Ok(wanted), "{answer:?}");
            assert_eq!(prompt, b"node/a goes; go on? [y/N] ");
        }
    }
}
