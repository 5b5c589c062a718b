//! `version`: the versions of this program and of the server.

use serde_json::{Value, json};

use super::client::CommandIo;
use super::context::OutputFormat;
use super::error::CliError;

/// Version of this program.
const CLIENT: &str = env!("CARGO_PKG_VERSION");

/// Writes the versions. Without a server, the version of this program is written first.
pub(super) fn run(is_client_alone: bool, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let output = io.client.context.output(&[OutputFormat::Table, OutputFormat::Json, OutputFormat::Yaml])?;
    let server = if is_client_alone { Ok(Value::Null) } else { of_server(io) };
    let found = server.as_ref().unwrap_or(&Value::Null);
    if output == OutputFormat::Table {
        writeln!(io.out, "client {CLIENT}")?;
        if !found.is_null() {
            // A server of an older build does not report its version.
            writeln!(io.out, "server {}", found["version"].as_str().unwrap_or("unknown"))?;
        }
    } else {
        output.value(&json!({ "client": { "version": CLIENT }, "server": found }), io.out)?;
    }
    server.map(|_| ())
}

fn of_server(io: &CommandIo<'_>) -> Result<Value, CliError> {
    let read = io.client.find_root("cannot read version of server", "/version")?;
    Ok(read.unwrap_or_else(|| json!({ "version": null })))
}
