//! Commands for one replica: create, start, stop, relocate, restart, delete. They report whether the
//! operation waits for a placement or for approval.

use std::time::{Duration, Instant};

use chancery_events::intent::{Intent, ReplicaCreate};
use chancery_events::name::NodeName;
use chancery_events::spec::{NodeState, OperationKind};
use chancery_projector::rows::{NodeRow, OperationRow, OperationStatus};

use super::act::{self, read, read_in, shown};
use super::client::{ApiClient, CommandIo};
use super::columns::typed;
use super::error::{CliError, CliExit};
use super::flags::StopArgs;
use super::get;
use super::kind::{EntityKind, KindNaming as _};
use super::wait;

use crate::note;

/// Maximum time to wait for a placement before the command reports that the operation waits for one.
const MOMENT: Duration = Duration::from_secs(1);

/// Sends the intent `replica.VERB`, with a node if one is given, and shows what its operation waits for.
pub(super) fn ask(
    verb: &str,
    name: &str,
    on: Option<&String>,
    done: &str,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let name = EntityKind::Replica.name_in(name)?;
    let node: Option<NodeName> = on.map(|node| read_in(EntityKind::Node, node)).transpose()?;
    let more: Vec<_> = node.iter().map(|node| ("node", node.as_str())).collect();
    let Some(intent) = act::intent(EntityKind::Replica, verb, name, &more)? else {
        return Err(CliError::usage(format!("cannot {verb}: replicas have no such command")));
    };
    act::ask(io, verb, &intent, done).map_err(|error| if_plan(error, name, io.client))?;
    report_pending(io.client, name, node.as_ref())
}

/// Adds to the error about a replica that does not exist which commands act on the plan of that name, if there is one.
fn if_plan(error: CliError, name: &str, client: &ApiClient<'_>) -> CliError {
    let is_plan =
        || get::find(client, "cannot read plan", EntityKind::Plan, name).is_ok_and(|row| row.is_some());
    if error.exit != CliExit::NotFound || !is_plan() {
        return error;
    }
    let advice = format!(
        "hint: {name} is a plan: its replicas are ended by a number of 0, or with the plan\n\
         try: chancery scale {name} --count 0\ntry: chancery delete plan {name} --cascade"
    );
    CliError { message: format!("{}\n{advice}", error.message), ..error }
}

/// Stops a replica, and waits for its end if that is requested.
pub(super) fn stop(stop: &StopArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    ask("stop", &stop.replica, None, "stop requested", io)?;
    if !stop.wait {
        return Ok(());
    }
    let of = format!("replica/{}", EntityKind::Replica.name_in(&stop.replica)?);
    wait::after(of, "phase=stopped", (stop.timeout, None), io)
}

/// Reports what the last operation of a replica waits for, if it has not ended.
fn report_pending(client: &ApiClient<'_>, replica: &str, node: Option<&NodeName>) -> Result<(), CliError> {
    let began = Instant::now();
    loop {
        let Some(row) = last(client, replica)? else { return Ok(()) };
        match row.state {
            OperationStatus::PendingApproval => {
                let to = if row.kind == OperationKind::Relocate { "to" } else { "on" };
                let place = row.node.map_or(String::new(), |node| format!(" {to} {node}"));
                let kind = row.kind;
                note!(
                    "hint: {kind}{place} is pending approval\ntry: chancery approve --replica {replica} --all"
                );
            }
            OperationStatus::Preparing if began.elapsed() < MOMENT => {
                std::thread::sleep(client.context.backoff / 10);
                continue;
            }
            OperationStatus::Preparing => {
                let kind = row.kind;
                match node.map(|node| outside(client, node)).transpose()?.flatten() {
                    Some(node) => note!(
                        "hint: {kind} waits until node/{name} is in use: it is {state}\ntry: chancery undrain {name}",
                        name = node.name,
                        state = node.state
                    ),
                    None => {
                        note!("hint: {kind} waits for a placement\ntry: chancery describe plan {}", row.plan);
                    }
                }
            }
            OperationStatus::Approved
            | OperationStatus::Running
            | OperationStatus::Succeeded
            | OperationStatus::Failed
            | OperationStatus::Rejected
            | OperationStatus::Expired
            | OperationStatus::Cancelled
            | OperationStatus::Superseded => {}
        }
        return Ok(());
    }
}

/// Returns the row of a node that is not in use, so that nothing can be placed on it.
fn outside(client: &ApiClient<'_>, node: &NodeName) -> Result<Option<NodeRow>, CliError> {
    let row: NodeRow = typed(&get::one(client, EntityKind::Node, node.as_str())?)?;
    Ok(Some(row).filter(|row| row.state != NodeState::Allocated))
}

/// Returns the last operation of a replica. Ids sort in the order of their issue.
fn last(client: &ApiClient<'_>, replica: &str) -> Result<Option<OperationRow>, CliError> {
    let items = get::list(client, EntityKind::Operation, &[("replica", replica.to_owned())], u64::MAX)?.items;
    let rows = items.iter().map(typed::<OperationRow>).collect::<Result<Vec<_>, _>>()?;
    Ok(rows.into_iter().max_by_key(|row| row.id))
}

pub(super) fn create(
    kind: EntityKind,
    plan: &str,
    on: Option<&String>,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    if kind != EntityKind::Replica {
        let advice = "only replicas are created this way\ntry: chancery apply -f FILE";
        return Err(CliError::usage(format!("cannot create {}: {advice}", kind.word())));
    }
    let plan = EntityKind::Plan.name_in(plan)?;
    let node = on.map(|node| read_in(EntityKind::Node, node)).transpose()?;
    let intent: Intent = ReplicaCreate { plan: read(EntityKind::Plan, plan)?, node: node.clone() }.into();
    io.client.context.output(act::FORMS)?;
    let verdict = io.client.ask(&format!("cannot create replica of plan/{plan}"), &intent)?;
    let subject = verdict.subject.clone().unwrap_or_else(|| format!("plan/{plan}"));
    shown(io, &subject, "created", &verdict)?;
    let Some(replica) = subject.strip_prefix("replica/") else { return Ok(()) };
    report_pending(io.client, replica, node.as_ref())
}
