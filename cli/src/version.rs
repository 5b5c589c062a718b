//! `version`: the versions of this program and of the server.

use serde_json::{Value, json};

use super::client::CommandIo;
use super::context::OutputFormat;
use super::error::CliError;
use super::get::{json_text, yaml_text};

/// Version of this program.
const CLIENT: &str = env!("CARGO_PKG_VERSION");

/// Writes the versions. Without a server, the version of this program is written first.
pub(super) fn run(is_client_alone: bool, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let output = io.client.context.output(&[OutputFormat::Table, OutputFormat::Json, OutputFormat::Yaml])?;
    let server = if is_client_alone { Ok(Value::Null) } else { of_server(io) };
    // A server of an older build does not report its version.
    let text = match &server {
        Ok(Value::Null) | Err(_) => None,
        Ok(server) => Some(server["version"].as_str().unwrap_or("unknown").to_owned()),
    };
    let versions =
        json!({ "client": { "version": CLIENT }, "server": server.as_ref().unwrap_or(&Value::Null) });
    match output {
        OutputFormat::Json => json_text(&versions, io.out)?,
        OutputFormat::Yaml => yaml_text(&versions, io.out)?,
        _ => {
            writeln!(io.out, "client {CLIENT}")?;
            if let Some(text) = text {
                writeln!(io.out, "server {text}")?;
            }
        }
    }
    server.map(|_| ())
}

fn of_server(io: &CommandIo<'_>) -> Result<Value, CliError> {
    let read = io.client.find_root("cannot read version of server", "/version")?;
    Ok(read.unwrap_or_else(|| json!({ "version": null })))
}
