//! The client: the commands that ask a server, the [`manifest`]s that people write, and what they read.
//!
//! Data goes to the standard output and everything else to standard error, so that `-o json | jq` sees data alone.
//! Nothing asks and nothing is coloured off a terminal. Nothing here runs a server or an executor.

mod act;
mod apply;
mod approve;
mod args;
mod bulk;
mod client;
mod columns;
mod context;
mod delete;
mod describe;
mod disruption;
mod drain;
mod error;
mod events;
mod explain;
#[cfg(test)]
mod fake;
mod fields;
mod flags;
mod get;
mod kind;
mod logs;
pub mod manifest;
pub mod note;
#[cfg(test)]
mod page_tests;
mod plan_page;
mod process;
mod replica;
mod request;
mod rollout;
mod screen;
mod table;
#[cfg(test)]
mod tests;
mod told;
mod wait;
mod watch;

use std::io::Write;

pub use args::{GlobalArgs, InboxCommand, ServerCommand as ClientCommand};
pub use context::{CliContext, OutputFormat};
pub use error::{CliError, CliExit, exit_of};
pub use flags::{
    DrainArgs, EntityArgs, EventsArgs, ExplainArgs, GetArgs, LogsArgs, OperationArgs, ScheduleArgs,
    UndrainArgs, WaitArgs,
};
pub use get::json_text;
pub use kind::{EntityKind, EntitySelector, FieldPath};
pub use table::TextTable;

use client::ApiClient;

/// Carries out a command that asks a server, and writes its data to `out`.
pub fn run(command: &ClientCommand, context: &CliContext, out: &mut impl Write) -> Result<(), CliError> {
    command.run(&ApiClient::new(context), out)
}
