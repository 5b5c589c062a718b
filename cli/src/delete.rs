//! `delete -f`: deletes what manifests name, in the reverse of the order in which it is applied. What is not there is
//! reported and is no failure, so that the command is safe to repeat.

use std::collections::BTreeSet;
use std::io::Write;
use std::mem::discriminant;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use chancery_events::intent::{Cascade, Intent};
use serde_json::json;

use super::act;
use super::apply::{ask, name, read, told};
use super::bulk::ask_all;
use super::client::Client;
use super::context::Output;
use super::error::{CliError, Exit};
use super::get::{json_text, list, name_of};
use super::kind::{Kind, Naming as _};
use super::request;
use crate::manifest::Manifest;
use crate::note;

/// Time between two looks at what is being deleted.
const POLL: Duration = Duration::from_millis(250);

/// `timeout`: the maximum time to wait for what is deleted with what needs it, before what it depends on is deleted.
pub(super) fn run(
    files: &[PathBuf],
    cascade: Cascade,
    timeout: Duration,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let output = client.context.output(&[Output::Table, Output::Name, Output::Json, Output::Jsonl])?;
    let mut manifests = read("delete", "deleted", files)?;
    manifests.reverse();
    let mut report = Report { out, output, done: Vec::new(), deleted: 0, failed: None };
    let end = Instant::now() + timeout;
    let mut kinds = manifests.chunk_by(|a, b| discriminant(&a.intent) == discriminant(&b.intent)).peekable();
    while let Some(of_kind) = kinds.next() {
        let going = delete(of_kind, cascade, client, &mut report)?;
        if kinds.peek().is_some() {
            wait(going, end, client)?;
        }
    }
    report.end(manifests.len(), cascade)
}

/// Deletes entities of one kind. Those that are still there until what needs them is deleted.
fn delete(
    of_kind: &[Manifest],
    cascade: Cascade,
    client: &Client<'_>,
    report: &mut Report<'_>,
) -> Result<BTreeSet<String>, CliError> {
    let mut going = BTreeSet::new();
    let intents = of_kind.iter().filter_map(|manifest| deletion(manifest, cascade).transpose());
    let intents = intents.collect::<Result<Vec<_>, _>>()?;
    if intents.len() < of_kind.len() {
        for manifest in of_kind {
            report.line(&name(manifest), "skipped: deployments are deleted with their plan", None)?;
        }
        return Ok(going);
    }
    let asks: Vec<_> =
        of_kind.iter().zip(&intents).map(|(manifest, intent)| ask("delete", manifest, intent)).collect();
    ask_all(client, "documents", &asks, &mut |at, answer| {
        let manifest = &of_kind[at];
        let takes_time = intents[at].cascades();
        match answer {
            Ok(verdict) if verdict.request().is_some() => {
                report.line(&name(manifest), "waits for approval", Some(verdict.position))?;
                verdict.request().map_or(Ok(()), |id| request::hint(client, id))
            }
            Ok(verdict) if takes_time => {
                going.insert(name(manifest));
                report.line(&name(manifest), "is to be deleted, with what needs it", Some(verdict.position))
            }
            Ok(verdict) => report.line(&name(manifest), "deleted", Some(verdict.position)),
            Err(error) if error.exit == Exit::NotFound => report.line(&name(manifest), "not found", None),
            Err(error) => {
                note!("{}", told("delete", manifest, &error));
                report.failed.get_or_insert(error.exit);
                Ok(())
            }
        }
    })?;
    Ok(going)
}

/// What deletes the entity that a document is about; none for a deployment.
fn deletion(manifest: &Manifest, cascade: Cascade) -> Result<Option<Intent>, CliError> {
    let name = name(manifest);
    let (kind, name) = Kind::split(&name)?;
    act::deletion(kind, name, cascade)
}

/// Waits until entities of one kind are gone: what they depend on cannot be deleted before.
fn wait(mut going: BTreeSet<String>, end: Instant, client: &Client<'_>) -> Result<(), CliError> {
    while let Some(first) = going.first().cloned() {
        let (kind, _) = Kind::split(&first)?;
        let items = list(client, kind, &[], u64::MAX)?.items;
        let there: BTreeSet<_> =
            items.iter().map(|item| format!("{}/{}", kind.word(), name_of(kind, item))).collect();
        going.retain(|name| there.contains(name));
        if going.is_empty() {
            break;
        }
        if Instant::now() >= end {
            let message = format!(
                "{} of what was to be deleted is still there, {first} among it; nothing that it depends on was deleted",
                going.len()
            );
            return Err(CliError::new(Exit::Unknown, message));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// What is shown, and how it ends.
struct Report<'a> {
    out: &'a mut dyn Write,
    output: Output,
    done: Vec<serde_json::Value>,
    deleted: usize,
    failed: Option<Exit>,
}

impl Report<'_> {
    fn line(&mut self, name: &str, outcome: &str, position: Option<u64>) -> Result<(), CliError> {
        self.deleted += 1;
        let json = json!({ "subject": name, "outcome": outcome, "position": position });
        match self.output {
            Output::Name => writeln!(self.out, "{name}")?,
            Output::Json => self.done.push(json),
            Output::Jsonl => writeln!(self.out, "{json}")?,
            _ => writeln!(self.out, "{name} {outcome}")?,
        }
        Ok(())
    }

    fn end(self, all: usize, cascade: Cascade) -> Result<(), CliError> {
        if self.output == Output::Json {
            json_text(&json!(self.done), self.out)?;
        }
        let Some(exit) = self.failed else { return Ok(()) };
        let mut message = match self.deleted {
            0 => "nothing was deleted".to_owned(),
            deleted => format!("{} of {all} documents were not deleted", all - deleted),
        };
        if exit == Exit::Conflict && cascade == Cascade::No {
            message.push_str("; to delete nodes and plans with what needs them, add --cascade");
        }
        Err(CliError::new(exit, message))
    }
}
