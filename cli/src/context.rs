//! What every command needs to know: which server, fleet and actor, and how to show what it finds.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use chancery_events::name::{Actor, FleetName};
use clap::ValueEnum;
use serde_json::Value;

use super::error::CliError;

/// How data is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OutputFormat {
    /// A line each, the columns that matter.
    Table,
    /// A line each, every column.
    Wide,
    /// JSON, as the server has it.
    Json,
    /// YAML, as the server has it.
    Yaml,
    /// KIND/NAME, a line each.
    Name,
    /// A JSON object a line, for streams.
    Jsonl,
}

impl OutputFormat {
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
            OutputFormat::Table | OutputFormat::Wide | OutputFormat::Yaml => writeln!(out, "{name} {text}"),
        }?)
    }
}

/// What every command needs to know.
#[derive(Clone, Debug)]
pub struct CliContext {
    /// The server, without a slash at its end.
    pub server: String,
    /// The fleet.
    pub fleet: FleetName,
    /// Who asks.
    pub actor: Actor,
    /// How data is shown, if it was said.
    pub output: Option<OutputFormat>,
    /// Whether a person sits there: input and output are a terminal.
    pub person: bool,
    /// Whether a command shows its progress: standard error is a terminal.
    pub shows_progress: bool,
    /// How long to wait before the second try; later ones wait longer.
    pub backoff: Duration,
}

impl CliContext {
    /// From the settings and how this process was started.
    pub fn new(server: String, fleet: FleetName, actor: Actor, output: Option<OutputFormat>) -> CliContext {
        CliContext {
            server,
            fleet,
            actor,
            output,
            person: std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
            shows_progress: std::io::stderr().is_terminal(),
            backoff: Duration::from_millis(200),
        }
    }

    /// How data is shown, where only some ways make sense; the first is taken unless one was said.
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
            "this command cannot show {}: write -o {}",
            word(&output),
            words.join(" or ")
        )))
    }
}
