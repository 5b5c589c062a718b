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

use chancery_events::intent::{Cascade, Turn};
use chancery_events::spec::{Activity, NodeState};

pub use args::{Client as ClientCommand, Globals, InboxCommand};
pub use context::{Context, Output};
pub use error::{CliError, Exit};
pub use flags::{Choose, Disrupt, Drain, Events, Get, Logs, Undrain, Wait, Which};
pub use get::json_text;
pub use kind::{Kind, What};
pub use table::Rows;

use approve::Decision;
use client::Client;
use rollout::Verb;

impl Which {
    /// Asks something of the deployment that is meant.
    fn of_deployment(&self, verb: Verb, client: &Client<'_>, out: &mut dyn Write) -> Result<(), CliError> {
        rollout::run(verb, self.what.kind, &self.what.one(self.name.as_ref())?, client, out)
    }
}

/// Approves or rejects what is named: requests, or else operations.
fn decide(
    decision: Decision<'_>,
    choose: &Choose,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let requests = request::named(&choose.ids)?;
    if requests.is_empty() {
        return approve::run(decision, choose, client, out);
    }
    request::decide(decision, &requests, client, out)
}

/// Carries out a command that asks a server, and writes its data to `out`.
pub fn run(command: &ClientCommand, context: &Context, out: &mut impl Write) -> Result<(), CliError> {
    let client = Client::new(context);
    let out: &mut dyn Write = out;
    match command {
        ClientCommand::Apply { files, supersede } => {
            let turn = if *supersede { Some(Turn::Supersede) } else { None };
            apply::run(files, turn, &client, out)
        }
        ClientCommand::Get(what) => get::run(what, &client, out),
        ClientCommand::Describe { what, name } => {
            describe::run(what.kind, &what.one(name.as_ref())?, &client, out)
        }
        ClientCommand::Delete { what, name, files, cascade, timeout } => {
            let cascade = if *cascade { Cascade::Yes } else { Cascade::No };
            match what {
                Some(what) => act::delete(what.kind, &what.one(name.as_ref())?, cascade, &client, out),
                None => delete::run(files, cascade, *timeout, &client, out),
            }
        }
        ClientCommand::Create { what, plan, on } => {
            replica::create(what.kind, plan, on.as_ref(), &client, out)
        }
        ClientCommand::Approve(choose) => match disruption::named(&choose.ids)? {
            Some(name) => disruption::approve(name, &client, out),
            None => decide(Decision::Approve, choose, &client, out),
        },
        ClientCommand::Reject { choose, reason } => decide(Decision::Reject { reason }, choose, &client, out),
        ClientCommand::Rollback { plan, to, name } => {
            rollout::rollback(plan, to.as_deref(), name.as_deref(), &client, out)
        }
        ClientCommand::Cancel(which) => which.of_deployment(Verb::Cancel, &client, out),
        ClientCommand::Pause(which) => which.of_deployment(Verb::Pause, &client, out),
        ClientCommand::Resume(which) => which.of_deployment(Verb::Resume, &client, out),
        ClientCommand::Promote(which) => which.of_deployment(Verb::Promote, &client, out),
        ClientCommand::Withdraw(which) => which.of_deployment(Verb::Withdraw, &client, out),
        ClientCommand::Stop { replica } => replica::stop(replica, &client, out),
        ClientCommand::Start { replica, on } => replica::start(replica, on.as_ref(), &client, out),
        ClientCommand::Relocate { replica, to } => replica::relocate(replica, to.as_ref(), &client, out),
        ClientCommand::Rebalance { plan } => act::rebalance(plan, &client, out),
        ClientCommand::Restart { replica } => replica::restart(replica, &client, out),
        ClientCommand::Drain(what) => drain::drain(what, &client, out),
        ClientCommand::Undrain(what) => drain::undrain(what, &client, out),
        ClientCommand::Disrupt(what) => disruption::schedule(what, &client, out),
        ClientCommand::Complete(Which { what, name }) => {
            disruption::complete(what.kind, &what.one(name.as_ref())?, &client, out)
        }
        ClientCommand::Allocate { node, cluster } => {
            act::move_node("allocate", node, NodeState::Allocated, Some(cluster), &client, out)
        }
        ClientCommand::Evict { node } => {
            act::move_node("evict", node, NodeState::Evicted, None, &client, out)
        }
        ClientCommand::Sanitize { node } => {
            act::move_node("sanitize", node, NodeState::Sanitizing, None, &client, out)
        }
        ClientCommand::Release { node } => {
            act::move_node("release", node, NodeState::Unallocated, None, &client, out)
        }
        ClientCommand::Expunge { node, yes, break_glass } => {
            act::expunge(node, *yes, break_glass.as_ref(), &client, out)
        }
        ClientCommand::Activate { what, name } => {
            act::set_activity(what.kind, &what.one(name.as_ref())?, Activity::Active, &client, out)
        }
        ClientCommand::Deactivate { what, name } => {
            act::set_activity(what.kind, &what.one(name.as_ref())?, Activity::Inactive, &client, out)
        }
        ClientCommand::Events(which) => events::run(which, &client, out),
        ClientCommand::History { what, name } => {
            events::history(what.kind, &what.one(name.as_ref())?, &client, out)
        }
        ClientCommand::Logs(whose) => logs::run(whose, &client, out),
        ClientCommand::Wait(what) => wait::run(what, &client, out),
        ClientCommand::Inbox { what: InboxCommand::Skip { offset } } => {
            act::skip_message(*offset, &client, out)
        }
    }
}
