//! `apply`: makes what there is as manifests say. Every document is asked for by itself, in an order in which what
//! is named comes before what names it; those that fail are told, and the others go on.

use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};

use chancery_events::intent::{Intent, Turn};
use serde_json::json;

use super::client::{Client, Verdict};
use super::context::Output;
use super::error::{CliError, Exit, Pointed};
use super::get::json_text;
use super::kind::Kind;
use crate::manifest::{self, Manifest};
use crate::note;

/// `turn`: when the turn of deployments comes, whatever the manifests say.
pub(super) fn run(
    files: &[PathBuf],
    turn: Option<Turn>,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let output = client.context.output(&[Output::Table, Output::Name, Output::Json, Output::Jsonl])?;
    let mut manifests = read(files)?;
    for manifest in &mut manifests {
        if let (Some(turn), Intent::DeploymentCreate(create)) = (turn, &mut manifest.intent) {
            create.turn = turn;
        }
    }
    let mut done = Vec::new();
    let mut applied = 0;
    let mut failed: Option<Exit> = None;
    for manifest in &manifests {
        match apply(client, manifest) {
            Ok((name, outcome, verdict)) => {
                applied += 1;
                let json = json!({
                    "subject": name, "outcome": outcome, "position": verdict.position, "version": verdict.version,
                });
                match output {
                    Output::Name => writeln!(out, "{name}")?,
                    Output::Json => done.push(json),
                    Output::Jsonl => writeln!(out, "{json}")?,
                    _ => writeln!(out, "{name} {outcome}")?,
                }
            }
            // Nothing that follows would fare better.
            Err(error) if matches!(error.exit, Exit::Unreachable | Exit::Unknown) => return Err(error),
            Err(error) => {
                note!("{}", told(manifest, &error));
                failed.get_or_insert(error.exit);
            }
        }
    }
    if output == Output::Json {
        json_text(&json!(done), out)?;
    }
    // What failed is told already; what is left to say is how many.
    match failed {
        None => Ok(()),
        Some(exit) if applied == 0 => Err(CliError::new(exit, "nothing was applied")),
        Some(exit) => Err(CliError::new(
            exit,
            format!(
                "{applied} of {} documents were applied: apply again when the others are right",
                manifests.len()
            ),
        )),
    }
}

/// What a server says about a document, each thing with its place in the file.
fn told(manifest: &Manifest, error: &CliError) -> String {
    let name = manifest.intent.subject().expect("a manifest is about one entity");
    let each = error.faults.iter().map(|Pointed { pointer, detail }| {
        let (place, value) = manifest.locate(pointer);
        let part = pointer.trim_start_matches('/').replace('/', ".");
        let value = value.map_or_else(String::new, |value| format!(": {value:?}"));
        format!("{place}: apply {name}: {part} {detail}{value}")
    });
    let each: Vec<_> = each.collect();
    if each.is_empty() { error.to_string() } else { each.join("\n") }
}

fn apply(client: &Client<'_>, manifest: &Manifest) -> Result<(String, &'static str, Verdict), CliError> {
    let subject = manifest.intent.subject().expect("a manifest is about one entity");
    let name = subject.to_string();
    let doing = format!("{}: apply {name}", manifest.place);
    let (kind, key) = Kind::split(&name)?;
    // The verdict tells that something changed, and not whether anything was there: a node that is allocated as
    // well has more than one version from the start.
    let known = client.find(&doing, &kind.path(key)?)?.is_some();
    let verdict = client.ask(&doing, &manifest.intent)?;
    let outcome = match (verdict.outcome.as_str(), known) {
        ("unchanged", _) => "unchanged",
        (_, true) => "configured",
        (_, false) => "created",
    };
    Ok((name, outcome, verdict))
}

/// Reads all files before anything is asked for: a slip in the last must not leave half of them applied.
fn read(files: &[PathBuf]) -> Result<Vec<Manifest>, CliError> {
    let mut manifests = Vec::new();
    let mut faults = Vec::new();
    for (name, text) in texts(files)? {
        match manifest::read(&name, &text) {
            Ok(found) => manifests.extend(found),
            Err(error) => faults.push(error.to_string()),
        }
    }
    if !faults.is_empty() {
        return Err(CliError::failure(format!("{}\nnothing was applied", faults.join("\n"))));
    }
    if manifests.is_empty() {
        return Err(CliError::failure("apply: the files hold no documents"));
    }
    manifest::sort(&mut manifests);
    Ok(manifests)
}

fn texts(files: &[PathBuf]) -> Result<Vec<(String, String)>, CliError> {
    let mut texts = Vec::new();
    for file in files {
        if file.as_os_str() == "-" {
            let mut text = String::new();
            // One byte more than is allowed, so that what is too long is told and not cut.
            let most = manifest::LARGEST as u64 + 1;
            std::io::stdin().take(most).read_to_string(&mut text).map_err(|error| unreadable("-", &error))?;
            texts.push(("-".into(), text));
        } else if file.is_dir() {
            for path in manifests_in(file)? {
                texts.push(text_of(&path)?);
            }
        } else {
            texts.push(text_of(file)?);
        }
    }
    Ok(texts)
}

fn manifests_in(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let bad = |error: std::io::Error| unreadable(&folder.display().to_string(), &error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(bad)? {
        let path = entry.map_err(bad)?.path();
        if path.extension().is_some_and(|end| end == "yaml" || end == "yml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn text_of(path: &Path) -> Result<(String, String), CliError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&name, &error))?;
    Ok((name, text))
}

fn unreadable(name: &str, error: &std::io::Error) -> CliError {
    CliError::failure(format!("read {name}: {error}"))
}
