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

pub use args::{Client as ClientCommand, Globals, InboxCommand};
pub use context::{Context, Output};
pub use error::{CliError, Exit};
pub use flags::{Choose, Disrupt, Drain, Events, Get, Logs, Undrain, Wait, Which};
pub use get::json_text;
pub use kind::{Kind, What};
pub use table::Rows;

use client::Client;

/// Carries out a command that asks a server, and writes its data to `out`.
pub fn run(command: &ClientCommand, context: &Context, out: &mut impl Write) -> Result<(), CliError> {
    command.run(&Client::new(context), out)
}
