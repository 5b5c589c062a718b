//! `delete`: named entities, or with `-f` the entities of manifests.
//!
//! `delete -f` deletes the entities of manifests, in the reverse order of `apply`. A missing entity is
//! reported and is no failure, so that the command is idempotent. Manifests of more than one entity need a confirmation:
//! what a directory contains is easily more than what was meant.

use std::collections::BTreeSet;
use std::mem::discriminant;
use std::time::{Duration, Instant};

use chancery_events::intent::{CascadePolicy, Intent};
use chancery_events::text::counted;
use serde_json::json;

use super::act::{self, DeletionProgress};
use super::apply::{ApplyReport, ask, name, names, read};
use super::bulk::ask_all;
use super::client::{ApiClient, CommandIo};
use super::context::{CliContext, OutputFormat};
use super::dry_run::{self, MissingEntity};
use super::error::{CliError, CliExit};
use super::flags::DeleteArgs;
use super::kind::{EntityKind, KindNaming as _};
use super::table::add;
use super::{confirm, request, wait};
use crate::manifest::ManifestDocument;
use crate::note;

/// Maximum number of entities that are listed before a confirmation.
const NAMED: usize = 50;
/// Time between two checks of entities that are being deleted.
const POLL: Duration = Duration::from_millis(250);

pub(super) fn run(delete: &DeleteArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let cascade = if delete.cascade { CascadePolicy::Yes } else { CascadePolicy::No };
    let Some(what) = &delete.what else { return manifests(delete, cascade, io) };
    let entities = what.all(&delete.names)?;
    if delete.dry_run {
        let intents = entities.iter().map(|(kind, name)| {
            let intent = act::requested_deletion(*kind, name, cascade)?;
            Ok((format!("{}/{name}", kind.word()), intent))
        });
        let intents = intents.collect::<Result<Vec<_>, CliError>>()?;
        return dry_run::preview(("delete", "deleted"), &intents, MissingEntity::Refused, io);
    }
    let (mut going, mut failed) = (Vec::new(), Vec::new());
    for (kind, name) in &entities {
        if entities.len() > 1 && io.client.context.output == Some(OutputFormat::Yaml) {
            writeln!(io.out, "---")?;
        }
        match act::delete(*kind, name, cascade, io) {
            Ok(DeletionProgress::Deleted) => {}
            Ok(progress) => going.push((*kind, name, progress)),
            // The verdict on one entity is independent of the others.
            Err(error) if entities.len() > 1 && is_about_one(error.exit) => {
                note!("chancery: {error}");
                failed.push(error.exit);
            }
            Err(error) => return Err(error),
        }
    }
    let end = Instant::now() + delete.timeout;
    for (kind, name, progress) in going.into_iter().filter(|_| delete.wait) {
        let left = end.saturating_duration_since(Instant::now());
        let request = if let DeletionProgress::Waits(id) = &progress { Some(id.as_str()) } else { None };
        wait::after(format!("{}/{name}", kind.word()), "deleted", (left, request), io)?;
    }
    let Some(exit) = failed.first() else { return Ok(()) };
    let what = format!("{} of {} entities were not deleted", failed.len(), entities.len());
    Err(CliError::new(*exit, what))
}

/// Whether the failure to delete an entity does not concern others.
const fn is_about_one(exit: CliExit) -> bool {
    matches!(exit, CliExit::NotFound | CliExit::Conflict | CliExit::Denied | CliExit::Failure)
}

/// Deletes the entities of manifests.
fn manifests(delete: &DeleteArgs, cascade: CascadePolicy, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let mut manifests = read("delete", "deleted", &delete.files)?;
    manifests.reverse();
    if delete.dry_run {
        let intents = manifests.iter().filter_map(|manifest| {
            let intent = deletion(manifest, cascade).transpose()?;
            Some(intent.map(|intent| (name(manifest), intent)))
        });
        let intents = intents.collect::<Result<Vec<_>, _>>()?;
        return dry_run::preview(("delete", "deleted"), &intents, MissingEntity::Skipped, io);
    }
    let mut report = ApplyReport::of(io.client, io.out)?;
    if !delete.yes {
        confirm_all(&manifests, cascade, io.client.context)?;
    }
    let sent = by_kind(&manifests, cascade, delete.timeout, io.client, &mut report);
    report.end(sent, |exit, deleted| {
        let mut message = match deleted {
            0 => "nothing was deleted".to_owned(),
            _ => format!("{} of {} documents were refused", manifests.len() - deleted, manifests.len()),
        };
        if exit == CliExit::Conflict && cascade == CascadePolicy::No {
            let all = act::kinds("delete", act::cascades);
            add(&mut message, format_args!("\nhint: to delete {all} with their dependents, add --cascade"));
        }
        message
    })
}

/// Asks for confirmation if more than one entity would be deleted, and lists them.
fn confirm_all(
    manifests: &[ManifestDocument],
    cascade: CascadePolicy,
    context: &CliContext,
) -> Result<(), CliError> {
    let mut names = Vec::new();
    for manifest in manifests {
        if deletion(manifest, cascade)?.is_some() {
            names.push(name(manifest));
        }
    }
    if names.len() < 2 {
        return Ok(());
    }
    let what = format!("deletes {}", counted(names.len(), "entity"));
    if context.person {
        let hidden = names.len().saturating_sub(NAMED);
        let mut listed = names[..names.len() - hidden].join("\n  ");
        if hidden > 0 {
            add(&mut listed, format_args!("\n  and {hidden} more"));
        }
        note!("to delete:\n  {listed}");
    }
    confirm::ask("delete", &what, context)
}

/// Deletes the entities of each kind after those of the kinds that depend on it. `timeout` is the maximum time to wait for
/// cascading deletions before the next kind.
fn by_kind(
    manifests: &[ManifestDocument],
    cascade: CascadePolicy,
    timeout: Duration,
    client: &ApiClient<'_>,
    report: &mut ApplyReport<'_>,
) -> Result<(), CliError> {
    let end = Instant::now() + timeout;
    let mut kinds = manifests.chunk_by(|a, b| discriminant(&a.intent) == discriminant(&b.intent)).peekable();
    while let Some(of_kind) = kinds.next() {
        let going = delete(of_kind, cascade, client, report)?;
        if kinds.peek().is_some() {
            await_deletion(going, end, client)?;
        }
    }
    Ok(())
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
