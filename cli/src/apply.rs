//! `apply`: creates or updates entities from manifests. Documents are sent in batches, referenced kinds
//! first. Each document is reported separately, and a failed document does not stop the others.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::mem::discriminant;
use std::path::PathBuf;

use chancery_events::intent::{Intent, OverlapPolicy};
use serde_json::{Value, json};

use super::act::FORMS;
use super::bulk::{BulkIntent, ask_all};
use super::client::{ApiClient, CommandIo, PlanChanges, VerdictResponse};
use super::context::OutputFormat;
use super::dry_run::SendMode;
use super::error::{CliError, CliExit, PointerError};
use super::files::texts;
use super::get::{find, list, name_of};
use super::kind::{EntityKind, KindNaming as _};
use super::request;
use crate::manifest::{self, ManifestDocument};
use crate::note;

/// Maximum number of entities of a kind that are read one by one; for more, the kind is listed in pages.
const LOOKED_UP: usize = 100;

/// Applies manifests. `overlap` overrides whether their deployments wait for deployments in progress.
pub(super) fn run(
    files: &[PathBuf],
    overlap: Option<OverlapPolicy>,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    io.client.context.output(FORMS)?;
    let manifests = documents(files, overlap)?;
    // The verdict does not show whether the entity existed before: a node that is also allocated has more
    // than one version from the start.
    let mut known = known(io.client, &manifests)?;
    let asks: Vec<_> = manifests.iter().map(|manifest| ask("apply", manifest, &manifest.intent)).collect();
    let mut report = ApplyReport::of(io.client, io.out)?;
    let sent = ask_all(io.client, "documents", &asks, &mut |at, answer| {
        let manifest = &manifests[at];
        let verdict = match answer {
            Ok(verdict) => verdict,
            Err(error) => return report.fault("apply", manifest, &error),
        };
        let name = name(manifest);
        report_verdict(&mut report, manifest, &verdict, known.contains(&name), io.client)?;
        if verdict.request().is_none() {
            known.insert(name);
        }
        Ok(())
    });
    report.end(sent, |_, applied| {
        if applied == 0 {
            return "nothing was applied".into();
        }
        let all = manifests.len();
        format!("applied {applied} of {all} documents: fix the others and apply again")
    })
}

/// Reports the verdict on a document. `is_known` is whether its entity existed before.
pub(super) fn report_verdict(
    report: &mut ApplyReport<'_>,
    manifest: &ManifestDocument,
    verdict: &VerdictResponse,
    is_known: bool,
    client: &ApiClient<'_>,
) -> Result<(), CliError> {
    let name = name(manifest);
    let outcome = verdict.shown(change(is_known));
    let mut json = verdict.json(&name, outcome);
    let PlanChanges { immediate, deployed } = &verdict.changed;
    if !immediate.is_empty() || !deployed.is_empty() {
        json["changed"] = json!({ "immediate": immediate, "deployed": deployed });
    }
    for hint in hints(&name, &verdict.changed) {
        note!("{hint}");
    }
    report.line(&name, outcome, json)?;
    verdict.note_superseded(SendMode::Send);
    verdict.request().map_or(Ok(()), |id| request::hint(client, id))
}

/// Reads the documents of the files, in the order in which they are applied.
pub(super) fn documents(
    files: &[PathBuf],
    overlap: Option<OverlapPolicy>,
) -> Result<Vec<ManifestDocument>, CliError> {
    let mut manifests = read("apply", "applied", files)?;
    for manifest in &mut manifests {
        if let (Some(turn), Intent::DeploymentCreate(create)) = (overlap, &mut manifest.intent) {
            create.overlap = turn;
        }
    }
    Ok(manifests)
}

/// Returns the outcome of a change of an entity, which existed before or not.
pub(super) const fn change(is_known: bool) -> &'static str {
    if is_known { "configured" } else { "created" }
}

/// Output for each document of a command, and the number of documents that succeeded.
pub(super) struct ApplyReport<'a> {
    out: &'a mut dyn Write,
    output: OutputFormat,
    lines: Vec<Value>,
    done: usize,
    failed: Option<CliExit>,
}

impl<'a> ApplyReport<'a> {
    pub(super) fn of(client: &ApiClient<'_>, out: &'a mut dyn Write) -> Result<ApplyReport<'a>, CliError> {
        let output = client.context.output(FORMS)?;
        Ok(ApplyReport { out, output, lines: Vec::new(), done: 0, failed: None })
    }

    pub(super) fn line(&mut self, name: &str, outcome: impl Display, json: Value) -> Result<(), CliError> {
        self.done += 1;
        if matches!(self.output, OutputFormat::Json | OutputFormat::Yaml) {
            self.lines.push(json);
            return Ok(());
        }
        self.output.outcome(name, outcome, &json, self.out)
    }

    /// Writes an error of one document; the others continue.
    #[expect(clippy::unnecessary_wraps, reason = "called instead of `line`")]
    pub(super) fn fault(
        &mut self,
        verb: &str,
        manifest: &ManifestDocument,
        error: &CliError,
    ) -> Result<(), CliError> {
        for error in error_texts(verb, manifest, error) {
            note!("chancery: {error}");
        }
        self.failed.get_or_insert(error.exit);
        Ok(())
    }

    /// Ends the output, also after an error that ended the command: what was done before it is shown. Errors of documents
    /// are written already; `message` gets their first exit code and the number of successes.
    pub(super) fn end(
        self,
        sent: Result<(), CliError>,
        message: impl FnOnce(CliExit, usize) -> String,
    ) -> Result<(), CliError> {
        if matches!(self.output, OutputFormat::Json | OutputFormat::Yaml) {
            self.output.value(&self.lines.into(), self.out)?;
        }
        sent?;
        self.failed.map_or(Ok(()), |exit| Err(CliError::new(exit, message(exit, self.done))))
    }
}

/// Returns the entity of a document, as `node/node-1`.
pub(super) fn name(manifest: &ManifestDocument) -> String {
    manifest.intent.subject().expect("a manifest is about one entity").to_string()
}

/// Returns the intent of a document, with the start of its errors.
pub(super) fn ask<'i>(verb: &str, manifest: &ManifestDocument, intent: &'i Intent) -> BulkIntent<'i> {
    BulkIntent { doing: format!("{}: cannot {verb} {}", manifest.place, name(manifest)), intent }
}

/// Returns the entities of the documents that exist. Documents must be sorted by kind.
pub(super) fn known(
    client: &ApiClient<'_>,
    manifests: &[ManifestDocument],
) -> Result<BTreeSet<String>, CliError> {
    let mut known = BTreeSet::new();
    let is_same =
        |a: &ManifestDocument, b: &ManifestDocument| discriminant(&a.intent) == discriminant(&b.intent);
    for of_kind in manifests.chunk_by(is_same) {
        if of_kind.len() > LOOKED_UP {
            let name = of_kind.first().map(name).unwrap_or_default();
            known.extend(names(client, EntityKind::split(&name)?.0)?);
            continue;
        }
        for manifest in of_kind {
            let name = name(manifest);
            let (kind, key) = EntityKind::split(&name)?;
            let doing = format!("{}: cannot apply {name}", manifest.place);
            if find(client, &doing, kind, key)?.is_some() {
                known.insert(name);
            }
        }
    }
    Ok(known)
}

/// Returns the names of all entities of a kind, as `node/node-1`.
pub(super) fn names(client: &ApiClient<'_>, kind: EntityKind) -> Result<BTreeSet<String>, CliError> {
    let items = list(client, kind, &[], u64::MAX)?.items;
    Ok(items.iter().map(|item| format!("{}/{}", kind.word(), name_of(kind, item))).collect())
}

/// Returns hints about when the changed fields of a plan take effect.
fn hints(name: &str, changed: &PlanChanges) -> Vec<String> {
    let plan = name.strip_prefix("plan/").unwrap_or(name);
    let mut hints = Vec::new();
    if !changed.immediate.is_empty() {
        hints.push(format!("hint: {name}: takes effect immediately: {}", changed.immediate.join(", ")));
    }
    if !changed.deployed.is_empty() {
        hints.push(format!(
            "hint: {name}: takes effect with the next deployment: {}\nhint: apply a new Deployment of plan \
             {plan}",
            changed.deployed.join(", ")
        ));
    }
    hints
}

/// Returns the errors of a document, each with its location in the file.
pub(super) fn error_texts(verb: &str, manifest: &ManifestDocument, error: &CliError) -> Vec<String> {
    let name = name(manifest);
    let each = error.faults.iter().map(|PointerError { pointer, detail, .. }| {
        let (place, value) = manifest.locate(pointer);
        let part = pointer.trim_start_matches('/').replace('/', ".");
        let value = value.map_or_else(String::new, |value| format!(" (given: {value:?})"));
        format!("{place}: cannot {verb} {name}: {part} {detail}{value}")
    });
    let each: Vec<_> = each.collect();
    if each.is_empty() { vec![error.to_string()] } else { each }
}

/// Reads all files before the first request, so that an error in the last file does not leave half of them
/// applied.
pub(super) fn read(verb: &str, done: &str, files: &[PathBuf]) -> Result<Vec<ManifestDocument>, CliError> {
    let mut manifests = Vec::new();
    let mut faults = Vec::new();
    for (name, text) in texts(files)? {
        match manifest::read(&name, &text) {
            Ok(found) => manifests.extend(found),
            Err(errors) => faults.extend(errors.0),
        }
    }
    if !faults.is_empty() {
        for error in faults {
            note!("chancery: {error}");
        }
        return Err(CliError::failure(format!("nothing was {done}")));
    }
    if manifests.is_empty() {
        return Err(CliError::failure(format!("cannot {verb}: the files have no documents")));
    }
    manifest::sort(&mut manifests);
    Ok(manifests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_followed_by_what_is_in_effect_and_by_what_needs_a_deployment() {
        let fields = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let now = "hint: plan/web: takes effect immediately: sharing, max_unavailable";
        let later = "hint: plan/web: takes effect with the next deployment: payloads\nhint: apply a new \
                     Deployment of plan web";
        let cases: [(&[&str], &[&str], &[&str]); 4] = [
            (&[], &[], &[]),
            (&["sharing", "max_unavailable"], &[], &[now]),
            (&[], &["payloads"], &[later]),
            (&["sharing", "max_unavailable"], &["payloads"], &[now, later]),
        ];
        for (immediate, deployed, wanted) in cases {
            let changed = PlanChanges { immediate: fields(immediate), deployed: fields(deployed) };
            assert_eq!(hints("plan/web", &changed), wanted);
        }
    }
}
