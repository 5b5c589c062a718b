//! Context of every command: server, fleet, actor and output.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use chancery_events::name::{Actor, FleetName};
use clap::ValueEnum;
use serde_json::Value;

use super::error::CliError;
use super::get::{json_text, yaml_text};
use super::output::{OutputChoice, OutputTemplate};

/// Output format of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OutputFormat {
    /// Table of the important columns, a line for each item.
    Table,
    /// Table of all columns, a line for each item.
    Wide,
    /// JSON, as returned by the server.
    Json,
    /// YAML, converted from the server's JSON.
    Yaml,
    /// KIND/NAME, a line for each item.
    Name,
    /// JSON object on each line, for streams.
    Jsonl,
    /// All columns, separated by commas.
    Csv,
    /// Template of JSON paths, as in jsonpath='{.name}'.
    Jsonpath,
}

impl OutputFormat {
    /// Writes a value as YAML if that is the format, and as JSON otherwise.
    pub(super) fn value(self, value: &Value, out: &mut dyn Write) -> Result<(), CliError> {
        if self == OutputFormat::Yaml { yaml_text(value, out) } else { json_text(value, out) }
    }

    /// Writes the outcome for an entity: its name, the JSON, or its name and `text`.
    pub(super) fn outcome(
        self,
        name: &str,
        text: impl Display,
        json: &Value,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        Ok(match self {
            OutputFormat::Name => writeln!(out, "{name}"),
            OutputFormat::Json | OutputFormat::Jsonl => writeln!(out, "{json}"),
            OutputFormat::Yaml => return self.value(json, out),
            OutputFormat::Table | OutputFormat::Wide | OutputFormat::Csv | OutputFormat::Jsonpath => {
                writeln!(out, "{name} {text}")
            }
        }?)
    }
}

/// Context of every command.
#[derive(Clone, Debug)]
pub struct CliContext {
    /// URL of the server, without a slash at its end; several are separated by commas.
    pub server: String,
    /// Name of the fleet.
    pub fleet: FleetName,
    /// Actor of the requests.
    pub actor: Actor,
    /// Output format, if one was given.
    pub output: Option<OutputFormat>,
    /// Template of the output, with [`OutputFormat::Jsonpath`].
    pub template: Option<OutputTemplate>,
    /// Idempotency key of the first intent; the keys of further intents derive from it.
    pub idempotency_key: Option<String>,
    /// Whether the command is interactive: input and output are a terminal.
    pub person: bool,
    /// Whether a command shows its progress: standard error is a terminal.
    pub shows_progress: bool,
    /// Time before the second attempt (default: 200 ms); later attempts wait longer.
    pub backoff: Duration,
}

impl CliContext {
    /// Creates a context from the settings and the terminals of this process.
    pub fn new(server: String, fleet: FleetName, actor: Actor, output: Option<OutputChoice>) -> CliContext {
        let (output, template) = output.map_or((None, None), |output| (Some(output.format), output.template));
        CliContext {
            server,
            fleet,
            actor,
            output,
            template,
            idempotency_key: None,
            person: std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
            shows_progress: std::io::stderr().is_terminal(),
            backoff: Duration::from_millis(200),
        }
    }

    /// Returns the output format, which must be a possible one (default: the first).
    pub fn output(&self, possible: &[OutputFormat]) -> Result<OutputFormat, CliError> {
        let Some(output) = self.output else { return Ok(possible[0]) };
        if possible.contains(&output) {
            return Ok(output);
        }
        let word = |output: &OutputFormat| {
            output.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned())
        };
        let words: Vec<_> = possible.iter().map(word).collect();
        Err(CliError::usage(format!(
            "invalid output format {:?}: must be {}",
            word(&output),
            words.join(" or ")
        )))
    }
}
