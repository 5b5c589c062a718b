//! `edit`: opens the manifest of an entity in an editor, and applies the result to the version that was read.
//!
//! | result of the editor | next step |
//! |---|---|
//! | the same manifest, or none | end without a request |
//! | an invalid manifest, or one that the server calls invalid | open it again, with the errors as comments |
//! | the same invalid manifest again | end with its errors; the file is kept |
//! | refused for another reason, such as another version | end with the error; the file is kept |

use std::path::Path;
use std::process::{Command, ExitStatus};

use tempfile::TempPath;

use super::apply::{ApplyReport, error_texts, report_verdict};
use super::client::CommandIo;
use super::error::{CliError, CliExit};
use super::get::one;
use super::kind::EntityKind;
use crate::manifest::of_row::{RowManifest, comments};
use crate::manifest::{self, ManifestDocument};
use crate::note;

/// Environment variables that name the editor, the first one that is set.
const EDITORS: [&str; 2] = ["VISUAL", "EDITOR"];
/// Start of the file.
const HEAD: &str = "Edit the manifest, then save and close it. Lines that start with # are ignored.\n\
                    Without a change, nothing is applied.";

pub(super) fn run(kind: EntityKind, name: &str, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let subject = format!("{}/{name}", kind.word());
    let Some(writer) = RowManifest::of(kind) else {
        let plural = kind.plural();
        return Err(CliError::usage(format!(
            "cannot edit {subject}: {plural} have no manifest\nhint: `chancery explain` lists the kinds that have one"
        )));
    };
    if kind == EntityKind::Deployment {
        let plan = name.split('/').next().unwrap_or(name);
        return Err(CliError::usage(format!(
            "cannot edit {subject}: a deployment is never changed\nhint: apply a Deployment with another name, or change the \
             number of replicas: chancery scale {plan} --count NUMBER"
        )));
    }
    let mut report = ApplyReport::of(io.client, io.out)?;
    let row = one(io.client, kind, name)?;
    let version = row["version"].as_u64().unwrap_or_default();
    let mut edit = ManifestEdit::start(subject, writer.desired(&row)?)?;
    let manifest = loop {
        edit.open().map_err(|error| edit.keep(error))?;
        if edit.is_cancelled() {
            note!("edit cancelled: {} is unchanged", edit.subject);
            return Ok(());
        }
        let applied = edit.read().and_then(|manifest| {
            let doing = format!("{}: cannot apply {}", manifest.place, edit.subject);
            let verdict = io.client.ask_if(&doing, &manifest.intent, version)?;
            Ok((manifest, verdict))
        });
        match applied {
            Ok(applied) => break applied,
            Err(error) if error.exit == CliExit::Failure && edit.is_new() => {
                edit.explain(&error).map_err(|error| edit.keep(error))?;
            }
            Err(error) => return Err(edit.keep(error)),
        }
    };
    let sent = report_verdict(&mut report, &manifest.0, &manifest.1, true, io.client);
    report.end(sent, |_, _| String::new())
}

/// File that is being edited.
struct ManifestEdit {
    /// Entity of the manifest, as `node/node-1`.
    subject: String,
    path: TempPath,
    /// Manifest of the entity as it is.
    original: String,
    /// Manifest before the editor was last opened.
    before: String,
    /// Manifest after the editor was last opened.
    text: String,
}

impl ManifestEdit {
    fn start(subject: String, original: String) -> Result<ManifestEdit, CliError> {
        let file = tempfile::Builder::new().prefix("chancery-edit-").suffix(".yaml").tempfile();
        let path = file.map_err(|error| failed("create a file", &error))?.into_temp_path();
        let (before, text) = (original.clone(), original.clone());
        let edit = ManifestEdit { subject, path, original, before, text };
        edit.write("")?;
        Ok(edit)
    }

    /// Writes the manifest, with the errors as comments before it.
    fn write(&self, errors: &str) -> Result<(), CliError> {
        let text = format!("{}{}", comments(&format!("{HEAD}\n{errors}")), self.text);
        std::fs::write(&self.path, text).map_err(|error| failed("write the file", &error))
    }

    /// Opens the editor, and waits until it ends.
    fn open(&mut self) -> Result<(), CliError> {
        let editor =
            EDITORS.iter().find_map(|name| std::env::var(name).ok().filter(|text| !text.trim().is_empty()));
        let editor = editor.unwrap_or_else(|| if cfg!(windows) { "notepad" } else { "vi" }.to_owned());
        let status = start(&editor, &self.path)
            .map_err(|error| failed(&format!("start editor {editor:?}"), &error))?;
        if !status.success() {
            return Err(CliError::failure(format!("cannot edit: editor {editor:?} ended with {status}")));
        }
        let text = std::fs::read_to_string(&self.path).map_err(|error| failed("read the file", &error))?;
        let manifest = text.lines().skip_while(|line| line.starts_with('#')).map(|line| format!("{line}\n"));
        self.before = std::mem::replace(&mut self.text, manifest.collect());
        Ok(())
    }

    /// Whether nothing is left to apply.
    fn is_cancelled(&self) -> bool {
        self.text.trim().is_empty() || self.text == self.original
    }

    /// Whether the editor has changed the manifest.
    fn is_new(&self) -> bool {
        self.text != self.before
    }

    /// Reads the manifest, which must be that of the entity.
    fn read(&self) -> Result<ManifestDocument, CliError> {
        let text = std::fs::read_to_string(&self.path).map_err(|error| failed("read the file", &error))?;
        let name = self.path.display().to_string();
        let read = manifest::read(&name, &text).map_err(|errors| CliError::failure(errors.to_string()))?;
        let mut read = read.into_iter();
        match (read.next(), read.next()) {
            (Some(manifest), None) if super::apply::name(&manifest) == self.subject => Ok(manifest),
            _ => {
                Err(CliError::failure(format!("invalid manifest: must be the one of {} alone", self.subject)))
            }
        }
    }

    /// Writes the errors into the file, with locations in the file as it is then.
    fn explain(&self, error: &CliError) -> Result<(), CliError> {
        self.write(&self.shown(error))?;
        // The comments have moved the manifest.
        let Err(again) = self.read() else { return self.write(&self.shown(error)) };
        self.write(&self.shown(&again))
    }

    /// Returns the errors, those of the server with their locations in the file.
    fn shown(&self, error: &CliError) -> String {
        match self.read() {
            Ok(manifest) => error_texts("apply", &manifest, error).join("\n"),
            Err(_) => error.to_string(),
        }
    }

    /// Keeps the file, and names it in the error.
    fn keep(&mut self, error: CliError) -> CliError {
        let path = self.path.to_path_buf();
        self.path.disable_cleanup(true);
        let message = format!("{error}\nhint: the edited manifest is kept: {}", path.display());
        CliError { message, ..error }
    }
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> CliError {
    CliError::failure(format!("cannot {what}: {error}"))
}

/// Runs the editor, which may have arguments. On Unix a shell divides them.
fn start(editor: &str, path: &Path) -> std::io::Result<ExitStatus> {
    if cfg!(windows) {
        let mut words = editor.split_whitespace();
        return Command::new(words.next().unwrap_or_default()).args(words).arg(path).status();
    }
    Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(path).status()
}
