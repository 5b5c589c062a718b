//! The client: commands that send requests to a server, [`manifest`]s, and output.
//!
//! Data is written to standard output and everything else to standard error, so that `-o json | jq` reads
//! only data. Without a terminal, no command prompts and no output is coloured. This crate runs no server and
//! no executor.

mod act;
mod apply;
mod approve;
mod args;
mod bulk;
mod client;
mod columns;
mod confirm;
mod console;
mod context;
mod contexts;
mod delete;
mod describe;
mod diff;
mod disruption;
mod drain;
mod dry_run;
mod edit;
mod error;
mod event_summary;
mod events;
mod explain;
mod fields;
mod files;
mod flags;
mod get;
mod kind;
mod logs;
pub mod manifest;
pub mod note;
mod order;
mod output;
#[cfg(test)]
mod page_tests;
mod plan_page;
mod process;
mod replica;
mod request;
mod rollout;
mod screen;
mod selection;
mod short_id;
mod snapshot;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod version;
mod wait;
mod watch;
mod why;

use std::io::Write;

pub use args::{GlobalArgs, ServerCommand as ClientCommand};
pub use client::problem;
pub use context::{CliContext, OutputFormat};
pub use contexts::{
    CONTEXTS_ENV, ContextCommand, ContextEntry, SelectedContext, run_contexts, selected as selected_context,
};
pub use error::{CliError, CliExit, exit_of};
pub use flags::as_of;
pub use get::json_text;
pub use kind::EntityKind;
pub use table::TextTable;

use client::{ApiClient, CommandIo};

/// Runs a client command, and writes its data to `out`.
pub fn run(command: &ClientCommand, context: &CliContext, out: &mut impl Write) -> Result<(), CliError> {
    command.run(&mut CommandIo { client: &ApiClient::new(context), out })
}
