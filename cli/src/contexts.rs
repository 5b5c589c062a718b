//! `context`: named servers and fleets, in one file of the user.
//!
//! ```yaml
//! current: prod
//! contexts:
//!   prod:
//!     server: https://chancery.example
//!     fleet: main
//! ```
//!
//! Only client commands read the file. Flags, the environment and the configuration file override the current context;
//! `--context` is a flag, which only other flags override. A file with invalid content is an error of every client
//! command, so that no command is sent to another server than the user chose.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use chancery_events::name::FleetName;
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::NamedTempFile;

use super::act::FORMS;
use super::args::GlobalArgs;
use super::context::{CliContext, OutputFormat};
use super::error::{CliError, CliExit};
use super::table::TextTable;
use crate::manifest::suggest::instead;
use crate::note;

/// Environment variable that names the file of the contexts.
pub const CONTEXTS_ENV: &str = "CHANCERY_CONTEXTS";
/// Environment variables that override parts of a context.
const OVERRIDES: [&str; 2] = ["CHANCERY_SERVER", "CHANCERY_FLEET"];

/// Commands about contexts.
#[derive(Subcommand, Debug)]
pub enum ContextCommand {
    /// Use a context from now on, unless a flag or the environment overrides it
    Use {
        /// Name of the context
        name: String,
    },
    /// List the contexts
    List,
    /// Create a context, or change it, with --server and --fleet; what is not given stays as it is
    Set {
        /// Name of the context
        name: String,
    },
    /// Delete a context
    Delete {
        /// Name of the context
        name: String,
    },
    /// Show a context
    Show {
        /// Name of the context (default: the current context)
        name: Option<String>,
    },
}

/// Server and fleet of a context.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextEntry {
    /// URL of the server; several are separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Name of the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetName>,
}

impl ContextEntry {
    /// Returns the settings of the context, each with its value.
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, String)> {
        let fleet = self.fleet.as_ref().map(|fleet| ("fleet", fleet.to_string()));
        let server = self.server.as_ref().map(|server| ("server", server.clone()));
        server.into_iter().chain(fleet)
    }
}

/// Context that a command uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelectedContext {
    /// Name of the context.
    pub name: String,
    /// Server and fleet of the context.
    pub entry: ContextEntry,
    /// Whether a flag names the context, so that it overrides the environment.
    pub is_named: bool,
}

/// Content of the file.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, ContextEntry>,
}

impl ContextFile {
    /// Reads the file; one that does not exist is empty.
    fn read(path: &Path) -> Result<ContextFile, CliError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            // Where the user cannot go, there is no file of the user: services have homes of others, or none.
            Err(_) if path.metadata().is_err() => return Ok(ContextFile::default()),
            Err(error) => {
                return Err(CliError::usage(format!("cannot read contexts {}: {error}", path.display())));
            }
        };
        if text.trim().is_empty() {
            return Ok(ContextFile::default());
        }
        serde_saphyr::from_str(&text).map_err(|error| {
            let error = error.without_snippet();
            let (line, column) = error.location().map_or((1, 1), |at| (at.line().max(1), at.column().max(1)));
            let text = error.to_string();
            let what = text.find(" at line ").map_or(text.as_str(), |end| text[..end].trim_end_matches(','));
            CliError::usage(format!("{}:{line}:{column}: invalid contexts: {what}", path.display()))
        })
    }

    /// Writes the file, which only the user can read, in place of the one before.
    fn write(&self, path: &Path) -> Result<(), CliError> {
        let failed = |error: std::io::Error| {
            CliError::failure(format!("cannot write contexts {}: {error}", path.display()))
        };
        let text = serde_saphyr::to_string(self)
            .map_err(|error| CliError::failure(format!("cannot write contexts: {error}")))?;
        // The target of a link is replaced, not the link.
        let target = if path.exists() { path.canonicalize().map_err(failed)? } else { path.to_owned() };
        let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or_else(|| Path::new("."));
        std::fs::create_dir_all(directory).map_err(failed)?;
        let mut file = NamedTempFile::new_in(directory).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        file.persist(&target).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Returns the context of that name, or the current one, if there is one.
    fn selected(&self, name: Option<&str>) -> Result<Option<SelectedContext>, CliError> {
        let Some(used) = name.or(self.current.as_deref()) else { return Ok(None) };
        let entry = self.entry(used)?.clone();
        Ok(Some(SelectedContext { name: used.to_owned(), entry, is_named: name.is_some() }))
    }

    fn entry(&self, name: &str) -> Result<&ContextEntry, CliError> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<_> = self.contexts.keys().map(String::as_str).collect();
            let what = format!("invalid context {name:?}: it does not exist{}", instead(name, &known));
            CliError::new(CliExit::NotFound, what)
        })
    }
}

/// Returns the path of the file: in the user's directory for configuration, as the platform has it. Without such a directory
/// there are no contexts.
fn location(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let directory = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = directory(CONTEXTS_ENV) {
        return Some(file);
    }
    let usual = if cfg!(windows) {
        directory("APPDATA")
    } else if cfg!(target_os = "macos") {
        directory("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        directory("HOME").map(|home| home.join(".config"))
    };
    // A relative path is invalid, as the specification of XDG has it.
    let named = directory("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    Some(named.or(usual)?.join("chancery").join("contexts.yaml"))
}

/// Returns the context of that name, or the current one, if there is one.
pub fn selected(name: Option<&str>) -> Result<Option<SelectedContext>, CliError> {
    match location(|name| std::env::var_os(name)) {
        Some(path) => selected_in(&path, name),
        None => ContextFile::default().selected(name),
    }
}

fn selected_in(path: &Path, name: Option<&str>) -> Result<Option<SelectedContext>, CliError> {
    ContextFile::read(path)?.selected(name).map_err(|error| {
        if name.is_some() {
            return error;
        }
        let hint = "try: chancery context use NAME";
        CliError::usage(format!("{}: current: {}\n{hint}", path.display(), error.message))
    })
}

/// Runs a command about contexts. `globals` has the server and the fleet of `set`, which are valid.
pub fn run_contexts(
    command: &ContextCommand,
    globals: &GlobalArgs,
    context: &CliContext,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let path = location(|name| std::env::var_os(name)).ok_or_else(|| {
        CliError::failure(format!(
            "cannot find contexts: no directory for configuration is known\nhint: set {CONTEXTS_ENV} to a file"
        ))
    })?;
    let is_read = matches!(command, ContextCommand::List | ContextCommand::Show { .. });
    let lock = if is_read { None } else { Some(locked(&path)?) };
    let mut file = ContextFile::read(&path)?;
    let (name, outcome) = match command {
        ContextCommand::List => return list(&file, context, out),
        ContextCommand::Show { name } => return show(&file, name.as_deref(), context, out),
        ContextCommand::Use { name } => {
            file.entry(name)?;
            file.current = Some(name.clone());
            for variable in OVERRIDES.iter().filter(|name| std::env::var_os(name).is_some()) {
                note!("hint: {variable} is set, and overrides the context");
            }
            (name, "in use")
        }
        ContextCommand::Set { name } => (name, set(&mut file, name, globals)?),
        ContextCommand::Delete { name } => {
            file.entry(name)?;
            file.contexts.remove(name);
            if file.current.as_ref() == Some(name) {
                file.current = None;
                note!("hint: it was the current context; commands use the defaults now");
            }
            (name, "deleted")
        }
    };
    let output = context.output(FORMS)?;
    file.write(&path)?;
    // The output may wait for its reader.
    drop(lock);
    let subject = format!("context/{name}");
    output.outcome(&subject, outcome, &json!({ "subject": subject, "outcome": outcome }), out)
}

/// Locks the file of the contexts until the result is dropped: of two commands at the same time, neither loses its change. The lock is
/// another file, as a change replaces the file of the contexts.
fn locked(path: &Path) -> Result<File, CliError> {
    let lock = path.with_added_extension("lock");
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let opened = directory.map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
        let file = File::options().create(true).truncate(false).write(true).open(&lock)?;
        match file.lock() {
            // Some network file systems have no locks.
            Err(error) if error.kind() != std::io::ErrorKind::Unsupported => Err(error),
            _ => Ok(file),
        }
    });
    opened.map_err(|error| CliError::failure(format!("cannot lock contexts {}: {error}", lock.display())))
}

/// Creates or changes a context.
fn set(file: &mut ContextFile, name: &str, globals: &GlobalArgs) -> Result<&'static str, CliError> {
    if name.is_empty()
        || name.starts_with('-')
        || name.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        return Err(CliError::usage(format!(
            "invalid context name {name:?}: must have no space, and no - in front"
        )));
    }
    if globals.server.is_none() && globals.fleet.is_none() {
        return Err(CliError::usage(format!(
            "cannot set context {name:?}: no server or fleet is given\ntry: chancery context set {name} --server URL --fleet NAME"
        )));
    }
    let outcome = if file.contexts.contains_key(name) { "configured" } else { "created" };
    let entry = file.contexts.entry(name.to_owned()).or_default();
    if let Some(server) = &globals.server {
        entry.server = Some(server.clone());
    }
    if let Some(fleet) = &globals.fleet {
        let fleet = fleet.parse().map_err(|error| CliError::usage(format!("invalid fleet: {error}")))?;
        entry.fleet = Some(fleet);
    }
    if file.current.is_none() {
        note!("try: chancery context use {name}");
    }
    Ok(outcome)
}

const SHOWN: &[OutputFormat] =
    &[OutputFormat::Table, OutputFormat::Name, OutputFormat::Json, OutputFormat::Yaml];

fn list(file: &ContextFile, context: &CliContext, out: &mut dyn Write) -> Result<(), CliError> {
    match context.output(SHOWN)? {
        output @ (OutputFormat::Json | OutputFormat::Yaml) => output.value(&json!(file), out),
        OutputFormat::Name => {
            Ok(file.contexts.keys().try_for_each(|name| writeln!(out, "context/{name}"))?)
        }
        _ if file.contexts.is_empty() => {
            note!("no contexts");
            Ok(())
        }
        _ => {
            let mut rows = TextTable::new(["CURRENT", "NAME", "SERVER", "FLEET"]);
            for (name, ContextEntry { server, fleet }) in &file.contexts {
                rows.add([
                    if file.current.as_ref() == Some(name) { "*".to_owned() } else { String::new() },
                    name.clone(),
                    server.clone().unwrap_or_default(),
                    fleet.as_ref().map(ToString::to_string).unwrap_or_default(),
                ]);
            }
            Ok(out.write_all(rows.lines("").as_bytes())?)
        }
    }
}

/// Shows the context of that name, or the current one.
fn show(
    file: &ContextFile,
    name: Option<&str>,
    context: &CliContext,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let Some(name) = name.or(file.current.as_deref()) else {
        return Err(CliError::new(
            CliExit::NotFound,
            "cannot show the current context: none is in use\ntry: chancery context use NAME",
        ));
    };
    let entry = file.entry(name)?;
    let one = ContextFile {
        current: file.current.clone().filter(|current| current == name),
        contexts: BTreeMap::from([(name.to_owned(), entry.clone())]),
    };
    match context.output(SHOWN)? {
        OutputFormat::Table => list(&one, context, out),
        OutputFormat::Name => Ok(writeln!(out, "context/{name}")?),
        output => {
            let mut json = json!(entry);
            json["name"] = name.into();
            output.value(&json, out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(server: Option<&str>, fleet: Option<&str>) -> ContextEntry {
        ContextEntry {
            server: server.map(str::to_owned),
            fleet: fleet.map(|fleet| fleet.parse().expect("a name")),
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_only_by_its_user() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new").join("contexts.yaml");
        assert_eq!(ContextFile::read(&path).expect("no file"), ContextFile::default());
        let nowhere = Path::new("/dev/null/contexts.yaml");
        assert_eq!(ContextFile::read(nowhere).expect("no directory"), ContextFile::default());
        let prod = entry(Some("https://a.example,https://b.example"), Some("main"));
        let mut file = ContextFile {
            current: Some("prod".into()),
            contexts: [("prod".into(), prod), ("null".into(), entry(None, Some("x")))].into(),
        };
        for _ in 0..2 {
            file.write(&path).expect("written");
            assert_eq!(ContextFile::read(&path).expect("a file"), file);
            file.contexts.insert("more".into(), ContextEntry::default());
        }
        let files = path.parent().expect("a directory").read_dir().expect("a directory").count();
        assert_eq!(files, 1, "no temporary file is left");
    }

    #[test]
    fn invalid_content_is_an_error_with_its_location() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("contexts.yaml");
        for (text, line, what) in [
            ("contexts:\n  prod:\n    sevrer: x\n", 3, "sevrer"),
            ("contexts:\n  prod:\n    fleet: No!\n", 3, "invalid"),
            ("contexts: [\n", 1, "invalid contexts"),
            ("- a\n", 1, "invalid contexts"),
        ] {
            std::fs::write(&path, text).expect("a file");
            let error = ContextFile::read(&path).expect_err(text);
            let wanted = format!("{}:{line}:", path.display());
            assert!(error.message.starts_with(&wanted) && error.message.contains(what), "{text}: {error}");
            assert_eq!(error.exit, CliExit::Usage, "{error}");
        }
        std::fs::write(&path, "contexts:\n  p: {}\ncurrent: q\n").expect("a file");
        assert!(selected_in(&path, Some("p")).expect("a context").is_some());
        let error = selected_in(&path, None).expect_err("no such context");
        let wanted = format!("{}: current: invalid context \"q\": it does not exist", path.display());
        assert!(error.message.starts_with(&wanted) && error.message.ends_with("context use NAME"), "{error}");
        std::fs::write(&path, "\n").expect("a file");
        assert_eq!(ContextFile::read(&path).expect("an empty file"), ContextFile::default());
    }

    #[test]
    fn the_file_is_in_the_directory_of_the_user() {
        let of = |variables: &[(&str, &str)]| {
            location(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        let usual = if cfg!(target_os = "macos") {
            "/home/u/Library/Application Support/chancery/contexts.yaml"
        } else {
            "/home/u/.config/chancery/contexts.yaml"
        };
        let home = ("HOME", "/home/u");
        if !cfg!(windows) {
            assert_eq!(of(&[home]), Some(usual.into()));
            assert_eq!(of(&[home, ("XDG_CONFIG_HOME", "relative")]), Some(usual.into()));
            let named = of(&[home, ("XDG_CONFIG_HOME", "/c")]);
            assert_eq!(named, Some("/c/chancery/contexts.yaml".into()));
        }
        assert_eq!(of(&[home, ("XDG_CONFIG_HOME", "/c"), (CONTEXTS_ENV, "f")]), Some("f".into()));
        assert_eq!(of(&[(CONTEXTS_ENV, "")]), None);
    }
}
