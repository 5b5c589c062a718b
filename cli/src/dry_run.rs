//! Dry runs: what manifests or a command would change, and what would follow before an approval or a report.

use std::collections::BTreeMap;
use std::path::PathBuf;

use chancery_events::intent::{Intent, OverlapPolicy};
use chancery_events::text::counted;
use chancery_projector::rows::RequestRow;
use serde_json::Value;

use super::apply::{ask, change, documents, error_texts, known, name, read};
use super::client::{ApiClient, CommandIo, VerdictResponse, not_ours};
use super::columns::typed;
use super::context::OutputFormat;
use super::diff;
use super::error::{CliError, CliExit};
use super::request;
use super::table::TextTable;
use crate::manifest::ManifestDocument;
use crate::note;

/// Output formats of dry runs.
const FORMATS: &[OutputFormat] =
    &[OutputFormat::Table, OutputFormat::Name, OutputFormat::Json, OutputFormat::Yaml];
/// Maximum number of replicas that are named for an effect.
const NAMED: usize = 10;
/// Note after a dry run.
const NOTHING_RECORDED: &str = "dry run: nothing was recorded. Later steps, which need an approval or a report of an executor, are not shown; names of new \
     replicas and ids are not assigned yet";
/// Maximum number of documents, which is the limit of servers.
const MOST: usize = 1000;

/// Whether a command sends its intents, or shows what these would change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendMode {
    Send,
    DryRun,
}

impl SendMode {
    pub(super) const fn of(dry_run: bool) -> SendMode {
        if dry_run { SendMode::DryRun } else { SendMode::Send }
    }

    /// Returns the verb of a consequence.
    pub(super) const fn will_be(self) -> &'static str {
        match self {
            SendMode::Send => "is",
            SendMode::DryRun => "would be",
        }
    }
}

/// Documents that are shown.
#[derive(Clone, Copy, PartialEq)]
enum ShownDocuments {
    All,
    /// Documents that would change something, or be refused.
    Differences,
}

pub(super) fn run(
    files: &[PathBuf],
    overlap: Option<OverlapPolicy>,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let manifests = documents(files, overlap)?;
    decide(ShownDocuments::All, &manifests, io).map(|_| ())
}

/// Shows what the intents of a command would change, each with the entity that it is about, in their order. Each refusal is an
/// error, and the first one gives the exit code. `done` is the outcome of an accepted intent.
pub(super) fn preview(
    (verb, done): (&str, &str),
    intents: &[(String, Intent)],
    missing: MissingEntity,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let output = io.client.context.output(FORMATS)?;
    check_count(&format!("cannot {verb}"), intents.len())?;
    let answer = io.client.dry_run(&format!("cannot {verb}"), intents.iter().map(|(_, intent)| intent))?;
    let mut table = diff::table(&[]);
    let mut changes = by_subject(&answer, "changes", diff::entity);
    let (mut failed, mut cascades) = (None, false);
    for (at, (name, intent)) in intents.iter().enumerate() {
        let decided = &answer["intents"][at]["answer"];
        let outcome = match status_of(decided) {
            None => "not decided",
            Some(200..300) => {
                let verdict = verdict_of(decided)?;
                verdict.note_superseded(SendMode::DryRun);
                if output == OutputFormat::Name {
                    writeln!(io.out, "{name}")?;
                }
                // What waits for approval ends nothing yet.
                cascades |= intent.cascades() && verdict.request().is_none();
                if let Some(change) = changes.remove(name) {
                    diff::add(&mut table, change);
                    continue;
                }
                verdict.shown(done)
            }
            Some(status) => {
                let doing = format!("cannot {verb} {name}");
                let error = ApiClient::item_error(&doing, at, status, decided.clone());
                match error.exit {
                    CliExit::NotFound if missing == MissingEntity::Skipped => "not found",
                    // An entity is deleted after its dependents, which a dry run does not await.
                    CliExit::Conflict if cascades => "after its dependents",
                    exit => {
                        note!("chancery: {error}");
                        failed.get_or_insert(exit);
                        "refused"
                    }
                }
            }
        };
        table.add([name.as_str(), outcome, "", "", ""]);
    }
    for restored in facts(&answer, "deployment.created.v1").map(|data| &data["rollback"]["to"]) {
        if let Some(name) = restored.as_str() {
            note!("hint: the version of deployment {name} would be restored");
        }
    }
    show(output, table, &answer, io)?;
    note!("{NOTHING_RECORDED}");
    failed.map_or(Ok(()), |exit| Err(CliError::new(exit, "")))
}

/// Whether an entity that does not exist is an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MissingEntity {
    Skipped,
    Refused,
}

/// Returns the data of the facts of a type that the intents cause.
fn facts<'a>(answer: &'a Value, type_name: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = items(answer, "intents").flat_map(|intent| items(intent, "facts"));
    all.filter(move |fact| fact["type"] == type_name).map(|fact| &fact["data"])
}

/// Reads the answer to an accepted intent.
fn verdict_of(answer: &Value) -> Result<VerdictResponse, CliError> {
    serde_json::from_value(answer.clone()).map_err(|error| not_ours("cannot read the dry run", error))
}

/// Shows what the documents would change. Differences end with the exit code 1, and errors with higher ones.
pub(super) fn differences(files: &[PathBuf], io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let found = read("compare", "compared", files)
        .and_then(|manifests| decide(ShownDocuments::Differences, &manifests, io));
    match found {
        Ok(0) => {
            note!("no differences");
            Ok(())
        }
        // The differences are the output.
        Ok(_) => Err(CliError::new(CliExit::Failure, "")),
        Err(error) if error.exit == CliExit::Failure => Err(CliError { exit: CliExit::Usage, ..error }),
        Err(error) => Err(error),
    }
}

/// Decides on the documents, shows the outcomes, and returns the number of documents that would change something.
fn decide(
    documents_shown: ShownDocuments,
    manifests: &[ManifestDocument],
    io: &mut CommandIo<'_>,
) -> Result<usize, CliError> {
    let output = io.client.context.output(FORMATS)?;
    let doing = match documents_shown {
        ShownDocuments::All => "cannot apply in a dry run",
        ShownDocuments::Differences => "cannot compare with the current state",
    };
    check_count(doing, manifests.len())?;
    let answer = io.client.dry_run(doing, manifests.iter().map(|manifest| &manifest.intent))?;
    let mut known = known(io.client, manifests)?;
    let mut rows = TextTable::new(["ENTITY", "OUTCOME", "FIELD", "OLD", "NEW"]);
    let mut fields = by_subject(&answer, "changes", diff::entity);
    // The names of documents that are shown and would not be refused, and the first refusal with the number of refusals.
    let (mut names, mut changes, mut refused) = (Vec::new(), 0, None);
    for (at, manifest) in manifests.iter().enumerate() {
        let (name, answer) = (name(manifest), &answer["intents"][at]["answer"]);
        let Some(status) = status_of(answer) else {
            changes += 1;
            rows.add([name.as_str(), "not decided", "", "", ""]);
            continue;
        };
        if !(200..300).contains(&status) {
            let doing = ask("apply", manifest, &manifest.intent).doing;
            let error = ApiClient::item_error(&doing, at, status, answer.clone());
            for error in error_texts("apply", manifest, &error) {
                note!("chancery: {error}");
            }
            let (_, count) = refused.get_or_insert((error.exit, 0));
            *count += 1;
            rows.add([name.as_str(), "refused", "", "", ""]);
            continue;
        }
        let verdict = verdict_of(answer)?;
        verdict.note_superseded(SendMode::DryRun);
        let outcome = verdict.shown(change(known.contains(&name)));
        let is_change = outcome != "unchanged";
        changes += usize::from(is_change);
        if is_change || documents_shown == ShownDocuments::All {
            names.push(name.clone());
        }
        match fields.remove(&name).filter(|change| is_change && change["change"] == "changed") {
            Some(change) => {
                for field in items(change, "fields") {
                    let [old, new] = ["old", "new"].map(|side| diff::value(&field[side]));
                    rows.add([name.clone(), outcome.to_owned(), text(&field["field"]), old, new]);
                }
            }
            None if is_change || documents_shown == ShownDocuments::All => {
                rows.add([name.as_str(), outcome, "", "", ""]);
            }
            None => {}
        }
        known.insert(name);
    }
    if output == OutputFormat::Name {
        names.iter().try_for_each(|name| writeln!(io.out, "{name}"))?;
    }
    show(output, rows, &answer, io)?;
    if documents_shown == ShownDocuments::All {
        note!("{NOTHING_RECORDED}");
    }
    match refused {
        None => Ok(changes),
        Some((exit, count)) => {
            let all = counted(manifests.len(), "document");
            Err(CliError::new(exit, format!("{count} of {all} would be refused")))
        }
    }
}

/// Refuses more intents than one dry run decides.
fn check_count(doing: &str, count: usize) -> Result<(), CliError> {
    if count <= MOST {
        return Ok(());
    }
    Err(CliError::failure(format!(
        "{doing}: {count} documents, at most {MOST} are decided in one dry run\nhint: give fewer files"
    )))
}

/// Shows the answer, as tables after the first one or as a value.
fn show(
    output: OutputFormat,
    first: TextTable,
    answer: &Value,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    match output {
        OutputFormat::Json | OutputFormat::Yaml => output.value(answer, io.out)?,
        OutputFormat::Table => {
            let tables =
                [first, operations(answer), effects(answer), unschedulable(answer), approvals(answer)];
            let shown: Vec<_> =
                tables.iter().filter(|table| !table.is_empty()).map(|table| table.lines("")).collect();
            io.out.write_all(shown.join("\n").as_bytes())?;
        }
        _ => {}
    }
    if let Some(reason) = answer["truncated_because"].as_str() {
        note!("warning: the dry run stopped early, so the output is incomplete: {reason}");
    }
    Ok(())
}

/// Returns the status of the answer to an intent; `None` if the intent was not decided.
fn status_of(answer: &Value) -> Option<u16> {
    answer["status"].as_u64().and_then(|status| u16::try_from(status).ok())
}

fn items<'a>(answer: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    answer[name].as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the items by their subject.
fn by_subject<'a>(
    answer: &'a Value,
    name: &str,
    subject: impl Fn(&Value) -> String,
) -> BTreeMap<String, &'a Value> {
    items(answer, name).map(|item| (subject(item), item)).collect()
}

fn operation_of(item: &Value) -> String {
    format!("operation/{}", text(&item["id"]))
}

fn operations(answer: &Value) -> TextTable {
    let mut rows = TextTable::new(["OPERATION", "REPLICA", "NODE", "STATE", "REASON"]);
    let waits = by_subject(answer, "waits", |wait| text(&wait["subject"]));
    for item in items(answer, "operations") {
        let wait = || waits.get(&operation_of(item))?["reason"].as_str();
        let reason = item["placement"]["reason"].as_str().or_else(wait);
        let [kind, replica, node, state] = ["kind", "replica", "node", "state"].map(|name| text(&item[name]));
        rows.add([kind, replica, node, state, reason.unwrap_or_default().to_owned()]);
    }
    rows
}

/// Returns what requests that wait for approval would end or move.
fn effects(answer: &Value) -> TextTable {
    let mut rows = TextTable::new(["EFFECT", "PLAN", "COUNT", "REPLICAS"]);
    for effect in facts(answer, "request.opened.v1").flat_map(|data| items(data, "effects")) {
        let mut names: Vec<_> = items(effect, "replicas").take(NAMED).map(text).collect();
        if effect["count"].as_u64().is_some_and(|count| count > names.len() as u64) {
            names.push("…".to_owned());
        }
        let [kind, plan] = ["kind", "plan"].map(|name| text(&effect[name]));
        rows.add([kind, plan, effect["count"].to_string(), names.join(" ")]);
    }
    rows
}

fn unschedulable(answer: &Value) -> TextTable {
    let mut rows = TextTable::new(["PLAN", "NODES", "REASON"]);
    for (plan, reasons) in answer["unschedulable"].as_object().into_iter().flatten() {
        for reason in reasons.as_array().into_iter().flatten() {
            rows.add([plan.clone(), reason["count"].to_string(), text(&reason["reason"])]);
        }
    }
    rows
}

fn approvals(answer: &Value) -> TextTable {
    let mut rows = TextTable::new(["APPROVAL OF", "COUNT", "BY", "POLICIES"]);
    let operations = by_subject(answer, "operations", operation_of);
    let requests = by_subject(answer, "requests", |item| format!("request/{}", text(&item["id"])));
    for item in items(answer, "approvals") {
        let policies: Vec<_> = items(item, "policies").map(text).collect();
        let by = match item["requested_by"].as_str() {
            Some(actor) if !policies.is_empty() => format!("anyone but {actor}"),
            _ => "anyone".to_owned(),
        };
        let subject = text(&item["subject"]);
        let shown = match operations.get(&subject) {
            Some(operation) => format!("{} {}", text(&operation["kind"]), text(&operation["replica"])),
            // The id of the request is not assigned yet.
            None => requests
                .get(&subject)
                .and_then(|row| typed::<RequestRow>(row).ok())
                .map_or(subject, |row| request::change(&row)),
        };
        rows.add([shown, item["count"].to_string(), by, policies.join(", ")]);
    }
    rows
}
