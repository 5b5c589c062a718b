//! Commands that send one intent: delete, states of nodes, activate and deactivate.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use chancery_events::intent::{
    CascadePolicy, FleetRaise, InboxSkip, Intent, IntentEntry, NodeSetState, PlanRebalance,
};
use chancery_events::level::FleetLevel;
use chancery_events::name::DisruptionName;
use chancery_events::spec::{ClusterActivity, NodeState};
use chancery_events::subject::{InvalidSubject, Subject};
use chancery_events::text::counted;
use chancery_projector::rows::NodeRow;
use serde_json::json;

use super::client::{CommandIo, VerdictResponse};
use super::columns::typed;
use super::context::OutputFormat;
use super::dry_run::SendMode;
use super::error::{CliError, CliExit};
use super::flags::EntityArgs;
use super::get;
use super::kind::{EntityKind, KindNaming as _};
use super::table::add;
use super::{confirm, replica, request};
use crate::note;

/// Sends an intent, and shows its outcome: `done` for a change.
pub(super) fn ask(io: &mut CommandIo<'_>, verb: &str, intent: &Intent, done: &str) -> Result<(), CliError> {
    let subject = intent.subject().map(|subject| subject.to_string()).unwrap_or_default();
    ask_as(io, verb, &subject, intent, done).map(|_| ())
}

/// Sends an intent as [`ask`] does, shows the entity as `name`, and returns the verdict.
pub(super) fn ask_as(
    io: &mut CommandIo<'_>,
    verb: &str,
    name: &str,
    intent: &Intent,
    done: &str,
) -> Result<VerdictResponse, CliError> {
    io.client.context.output(FORMS)?;
    let verdict = io.client.ask(&format!("cannot {verb} {name}"), intent)?;
    shown(io, name, done, &verdict)?;
    Ok(verdict)
}

/// Output formats of a verdict.
pub(super) const FORMS: &[OutputFormat] =
    &[OutputFormat::Table, OutputFormat::Name, OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Jsonl];

/// Shows the outcome of an intent.
pub(super) fn shown(
    io: &mut CommandIo<'_>,
    name: &str,
    done: &str,
    verdict: &VerdictResponse,
) -> Result<(), CliError> {
    let (waits, outcome) = (verdict.request(), verdict.shown(done));
    let mut json = verdict.json(name, outcome);
    if let Some(id) = waits {
        json["request"] = id.into();
    }
    io.client.context.output(FORMS)?.outcome(name, outcome, &json, io.out)?;
    verdict.note_superseded(SendMode::Send);
    waits.map_or(Ok(()), |id| request::hint(io.client, id))
}

/// Returns the intent of `delete KIND NAME`.
pub(super) fn requested_deletion(
    kind: EntityKind,
    name: &str,
    cascade: CascadePolicy,
) -> Result<Intent, CliError> {
    let may_cascade = intent_entry(kind, "delete").is_some_and(cascades);
    if cascade == CascadePolicy::Yes && !may_cascade {
        let (all, plural) = (kinds("delete", cascades), kind.plural());
        return Err(CliError::usage(format!(
            "invalid flag --cascade: must be used with {all}, not {plural}"
        )));
    }
    match kind {
        EntityKind::Deployment => {
            let advice = format!("chancery cancel deployment {name}\nhint: or deploy a count of 0");
            return Err(CliError::usage(format!(
                "cannot delete a deployment: its history is kept\ntry: {advice}"
            )));
        }
        EntityKind::Request => {
            return Err(CliError::usage(format!(
                "cannot delete a request: requests are only approved or rejected\ntry: chancery reject request/{name}"
            )));
        }
        _ => {}
    }
    deletion(kind, name, cascade)?.ok_or_else(|| {
        CliError::usage(format!(
            "cannot delete {}: they are deleted with the entities that they belong to",
            kind.plural()
        ))
    })
}

/// Progress of a deletion after its verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum DeletionProgress {
    Deleted,
    /// The entity exists until it is unused, or its dependents are deleted.
    Started,
    /// The deletion waits for the approval of the request with this id.
    Waits(String),
}

/// Deletes an entity.
pub(super) fn delete(
    kind: EntityKind,
    name: &str,
    cascade: CascadePolicy,
    io: &mut CommandIo<'_>,
) -> Result<DeletionProgress, CliError> {
    let may_cascade = intent_entry(kind, "delete").is_some_and(cascades);
    let intent = requested_deletion(kind, name, cascade)?;
    if kind == EntityKind::Replica {
        replica::ask("delete", name, None, "deletion requested", io)?;
        return Ok(DeletionProgress::Started);
    }
    // Dependents are deleted first, which takes time.
    let done = match kind {
        _ if cascade == CascadePolicy::Yes => "deletion started, dependents first",
        EntityKind::Volume => "deletion started, destroyed once unused",
        _ => "deleted",
    };
    let of = format!("{}/{name}", kind.word());
    let verdict = ask_as(io, "delete", &of, &intent, done).map_err(|mut error| {
        if error.exit == CliExit::Conflict && cascade == CascadePolicy::No && may_cascade {
            add(&mut error.message, format_args!("\ntry: chancery delete {} {name} --cascade", kind.word()));
        }
        error
    })?;
    Ok(match verdict.request() {
        Some(id) => DeletionProgress::Waits(id.to_owned()),
        None if cascade == CascadePolicy::Yes || kind == EntityKind::Volume => DeletionProgress::Started,
        None => DeletionProgress::Deleted,
    })
}

pub(super) fn set_state(
    verb: &str,
    name: &str,
    state: NodeState,
    (cluster, break_glass): (Option<&String>, Option<&String>),
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let name = EntityKind::Node.name_in(name)?;
    let cluster = cluster.map(|cluster| read_in(EntityKind::Cluster, cluster)).transpose()?;
    let name = read(EntityKind::Node, name)?;
    let intent = NodeSetState { name, state, cluster, break_glass: break_glass.cloned() }.into();
    ask(io, verb, &intent, state.word())
}

/// Starts a rebalance, or reports why none is needed.
pub(super) fn rebalance(name: &str, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let name = EntityKind::Plan.name_in(name)?;
    let intent = PlanRebalance { name: read(EntityKind::Plan, name)? }.into();
    let verdict = ask_as(io, "rebalance", &format!("plan/{name}"), &intent, "rebalance started")?;
    if verdict.outcome == "unchanged" {
        note!("hint: a rebalance is in progress, or no permitted move makes the spread more even");
    } else {
        note!("try: chancery get operations --filter plan={name} --filter kind=relocate");
    }
    Ok(())
}

/// Raises the level of the fleet.
pub(super) fn raise(to: Option<u32>, without: &[String], io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let intent =
        FleetRaise { to: to.map_or(FleetLevel::HIGHEST, FleetLevel::new), without: without.to_vec() }.into();
    ask_as(io, "raise", "fleet", &intent, "raised").map(|_| ())
}

/// Skips the message that blocks the inbox.
pub(super) fn skip_message(offset: u64, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let intent = InboxSkip { offset }.into();
    ask_as(io, "skip", &format!("inbox message {offset}"), &intent, "skipped").map(|_| ())
}

/// Expunges a node. The command cannot be undone and ends replicas, so it asks for confirmation.
pub(super) fn expunge(
    name: &str,
    yes: bool,
    break_glass: Option<&String>,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let name = EntityKind::Node.name_in(name)?;
    if !yes {
        let node: NodeRow = typed(&get::one(io.client, EntityKind::Node, name)?)?;
        let incarnations = counted(node.incarnations, "incarnation");
        let what = format!("declares node/{name} permanently lost, with its {incarnations}");
        confirm::ask("expunge", &what, io.client.context)?;
    }
    set_state("expunge", name, NodeState::Expunged, (None, break_glass), io)
}

pub(super) fn set_activity(
    what: &EntityArgs,
    activity: ClusterActivity,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let more = [("activity", activity.word())];
    let Some(intent) = intent(what.what.kind, "set_activity", &what.name()?, &more)? else {
        let all = kinds("set_activity", |_| true);
        return Err(CliError::usage(format!("invalid kind: must be one of {all}")));
    };
    let verb = if activity == ClusterActivity::Active { "activate" } else { "deactivate" };
    ask(io, verb, &intent, activity.word())
}

/// Returns the registered intent `KIND.VERB`.
fn intent_entry(kind: EntityKind, verb: &str) -> Option<&'static IntentEntry> {
    let type_name = format!("{}.{verb}.v1", kind.word());
    Intent::REGISTER.iter().find(|entry| entry.type_name == type_name)
}

/// Lists the kinds that have an intent `KIND.VERB` with the property: `clusters, capabilities and plans`.
pub(super) fn kinds(verb: &str, holds: fn(&IntentEntry) -> bool) -> String {
    let all = EntityKind::ALL.iter().filter(|kind| intent_entry(**kind, verb).is_some_and(holds));
    let words = all.map(|kind| kind.plural()).collect::<Vec<_>>().join(", ");
    match words.rsplit_once(", ") {
        Some((others, last)) => format!("{others} and {last}"),
        None => words,
    }
}

/// Returns the intent `KIND.VERB` about an entity, with more members; `None` if the kind has no such intent.
pub(super) fn intent(
    kind: EntityKind,
    verb: &str,
    name: &str,
    more: &[(&str, &str)],
) -> Result<Option<Intent>, CliError> {
    let Some(entry) = intent_entry(kind, verb) else { return Ok(None) };
    let key = match kind.entry().owner {
        Some(owner) => {
            let (of, own) = kind.halves(name)?;
            check_name(owner, of, of)?;
            vec![of, own]
        }
        None => vec![name],
    };
    check_name(kind, name, key[key.len() - 1])?;
    let members = kind.entry().key.iter().copied().zip(key).chain(more.iter().copied());
    let body = json!(members.collect::<BTreeMap<_, _>>()).to_string();
    let read = Intent::read(entry.type_name, &body).transpose();
    read.map_err(|error| CliError::failure(format!("cannot {verb} {}/{name}: {error}", kind.word())))
}

/// Checks the name of an entity; `own` is its last part, for the message.
fn check_name(kind: EntityKind, name: &str, own: &str) -> Result<(), CliError> {
    if kind == EntityKind::Disruption {
        // A disruption is part of its node, and no subject.
        return read::<DisruptionName>(kind, own).map(|_| ());
    }
    match format!("{}/{name}", kind.word()).parse::<Subject>() {
        Err(InvalidSubject::Name { reason, .. }) => Err(bad_name(kind, own, &reason)),
        Err(error @ InvalidSubject::Form(_)) => Err(bad_name(kind, own, &error)),
        Ok(_) => Ok(()),
    }
}

/// Whether an intent can delete its entity with the dependents.
pub(super) fn cascades(entry: &IntentEntry) -> bool {
    entry.query.contains(&"cascade")
}

/// Returns the intent that deletes an entity, if a name suffices for its kind. It cascades where the kind
/// can.
pub(super) fn deletion(
    kind: EntityKind,
    name: &str,
    cascade: CascadePolicy,
) -> Result<Option<Intent>, CliError> {
    let entry = intent_entry(kind, "delete").filter(|entry| cascade == CascadePolicy::Yes && cascades(entry));
    let more: &[_] = if entry.is_some() { &[("cascade", "yes")] } else { &[] };
    intent(kind, "delete", name, more)
}

fn bad_name(kind: EntityKind, name: &str, reason: &dyn Display) -> CliError {
    CliError::usage(format!("invalid {} name {name:?}: {reason}", kind.word()))
}

/// Reads a name of the command line, with or without its kind, as in `node/n1`.
pub(super) fn read_in<T: FromStr<Err: Display>>(kind: EntityKind, text: &str) -> Result<T, CliError> {
    read(kind, kind.name_in(text)?)
}

/// Reads a name of the command line.
pub(super) fn read<T: FromStr<Err: Display>>(kind: EntityKind, name: &str) -> Result<T, CliError> {
    name.parse().map_err(|error| bad_name(kind, name, &error))
}
