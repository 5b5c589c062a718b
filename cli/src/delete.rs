//! `delete`: one entity, or with `-f` the entities of manifests.
//!
//! `delete -f` deletes the entities of manifests, in the reverse order of `apply`. A missing entity is
//! reported and is no failure, so that the command is idempotent.

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use chancery_events::intent::{CascadePolicy, Intent};
use chancery_events::text::counted;
use serde_json::json;

use super::act;
use super::apply::{ApplyReport, ask, name, names, read};
use super::bulk::ask_all;
use super::client::{ApiClient, CommandIo};
use super::error::{CliError, CliExit};
use super::flags::DeleteArgs;
use super::kind::{EntityKind, KindNaming as _};
use super::table::add;
use super::{request, wait};
use crate::manifest::ManifestDocument;

/// Time between two checks of entities that are being deleted.
const POLL: Duration = Duration::from_millis(250);

pub(super) fn run(delete: &DeleteArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let cascade = if delete.cascade { CascadePolicy::Yes } else { CascadePolicy::No };
    let Some(what) = &delete.what else { return manifests(&delete.files, cascade, delete.timeout, io) };
    let name = what.one(delete.name.as_ref())?;
    act::delete(what.kind, &name, cascade, io)?;
    // Other entities are deleted with the verdict.
    let takes_time = matches!(what.kind, EntityKind::Replica | EntityKind::Volume) || delete.cascade;
    if delete.wait && takes_time {
        return wait::after(format!("{}/{name}", what.kind.word()), "deleted", delete.timeout, io);
    }
    Ok(())
}

/// Deletes the entities. `timeout` is the maximum time to wait for cascading deletions before the next kind.
fn manifests(
    files: &[PathBuf],
    cascade: CascadePolicy,
    timeout: Duration,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let mut report = ApplyReport::of(io.client, io.out)?;
    let mut manifests = read("delete", "deleted", files)?;
    manifests.reverse();
    let end = Instant::now() + timeout;
    let mut kinds = manifests.chunk_by(|a, b| discriminant(&a.intent) == discriminant(&b.intent)).peekable();
    while let Some(of_kind) = kinds.next() {
        let going = delete(of_kind, cascade, io.client, &mut report)?;
        if kinds.peek().is_some() {
            await_deletion(going, end, io.client)?;
        }
    }
    report.end(|exit, deleted| {
        let mut message = match deleted {
            0 => "nothing was deleted".to_owned(),
            _ => format!("{} of {} documents were not deleted", manifests.len() - deleted, manifests.len()),
        };
        if exit == CliExit::Conflict && cascade == CascadePolicy::No {
            let all = act::kinds("delete", act::cascades);
            add(&mut message, format_args!("\nhint: to delete {all} with their dependents, add --cascade"));
        }
        message
    })
}

/// Deletes entities of one kind. Returns the entities that remain until their dependents are deleted.
fn delete(
    of_kind: &[ManifestDocument],
    cascade: CascadePolicy,
    client: &ApiClient<'_>,
    report: &mut ApplyReport<'_>,
) -> Result<BTreeSet<String>, CliError> {
    let mut going = BTreeSet::new();
    let show = |report: &mut ApplyReport<'_>, name: &str, outcome: &str, position: Option<u64>| {
        report.line(name, outcome, json!({ "subject": name, "outcome": outcome, "position": position }))
    };
    let intents = of_kind.iter().filter_map(|manifest| deletion(manifest, cascade).transpose());
    let intents = intents.collect::<Result<Vec<_>, _>>()?;
    if intents.len() < of_kind.len() {
        for name in of_kind.iter().map(name) {
            let kind = EntityKind::split(&name)?.0;
            let (all, owner) = (kind.plural(), kind.entry().owner.map_or("fleet", EntityKind::word));
            show(report, &name, &format!("skipped: {all} are deleted with their {owner}"), None)?;
        }
        return Ok(going);
    }
    let asks: Vec<_> =
        of_kind.iter().zip(&intents).map(|(manifest, intent)| ask("delete", manifest, intent)).collect();
    ask_all(client, "documents", &asks, &mut |at, answer| {
        let (manifest, name) = (&of_kind[at], name(&of_kind[at]));
        match answer {
            Ok(verdict) if verdict.request().is_some() => {
                show(report, &name, "waits for approval", Some(verdict.position))?;
                verdict.request().map_or(Ok(()), |id| request::hint(client, id))
            }
            Ok(verdict) if intents[at].cascades() => {
                show(report, &name, "deletion started, dependents first", Some(verdict.position))?;
                going.insert(name);
                Ok(())
            }
            Ok(verdict) => show(report, &name, "deleted", Some(verdict.position)),
            Err(error) if error.exit == CliExit::NotFound => show(report, &name, "not found", None),
            Err(error) => report.fault("delete", manifest, &error),
        }
    })?;
    Ok(going)
}

/// Returns the intent that deletes the entity of a document; `None` for a deployment.
fn deletion(manifest: &ManifestDocument, cascade: CascadePolicy) -> Result<Option<Intent>, CliError> {
    let name = name(manifest);
    let (kind, name) = EntityKind::split(&name)?;
    act::deletion(kind, name, cascade)
}

/// Waits until entities of one kind are deleted: the entities that they depend on cannot be deleted before.
fn await_deletion(mut going: BTreeSet<String>, end: Instant, client: &ApiClient<'_>) -> Result<(), CliError> {
    while let Some(first) = going.first().cloned() {
        let (kind, _) = EntityKind::split(&first)?;
        let there = names(client, kind)?;
        going.retain(|name| there.contains(name));
        if going.is_empty() {
            break;
        }
        if Instant::now() >= end {
            let message = format!(
                "cannot delete dependencies: timeout, {} not deleted yet, such as {first}",
                counted(going.len(), "entity")
            );
            return Err(CliError::new(CliExit::Unknown, message));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
