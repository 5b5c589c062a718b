//! The command line of a client: the commands, and what carries each out.
#![expect(clippy::doc_markdown, rustdoc::bare_urls, reason = "the comments are the help, as people read it")]

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use chancery_events::intent::{CascadePolicy, OverlapPolicy};
use chancery_events::spec::{ClusterActivity, NodeState};
use chancery_events::time::parse_span;
use clap::{Args, Subcommand};

use super::approve::{self, ApprovalDecision};
use super::client::ApiClient as HttpClient;
use super::context::OutputFormat;
use super::error::CliError;
use super::flags::{
    DrainArgs, EntityArgs, EventsArgs, ExplainArgs, GetArgs, LogsArgs, OperationArgs, ScheduleArgs,
    UndrainArgs, WaitArgs,
};
use super::kind::{EntityKind, EntitySelector, EntitySelectorParser};
use super::{
    act, apply, delete, describe, disruption, drain, events, explain, get, logs, replica, request, rollout,
    wait,
};

/// Above the flags of every command, in its help.
const EVERY: &str = "Options of every command";

/// Flags of every command. Each overrides the environment, the configuration file and the default.
#[derive(Args, Debug, Default)]
pub struct GlobalArgs {
    /// The server that is asked [env: CHANCERY_SERVER] [default: http://127.0.0.1:7440]
    #[arg(long, global = true, help_heading = EVERY, value_name = "URL")]
    pub server: Option<String>,
    /// The fleet [env: CHANCERY_FLEET] [default: default]
    #[arg(long, global = true, help_heading = EVERY, value_name = "NAME")]
    pub fleet: Option<String>,
    /// Who asks [env: CHANCERY_ACTOR] [default: local]
    #[arg(long, global = true, help_heading = EVERY, value_name = "NAME")]
    pub actor: Option<String>,
    /// The configuration file [env: CHANCERY_CONFIG] [default: chancery.toml, if it is there]
    #[arg(long, global = true, help_heading = EVERY, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How data is shown: table, wide, json, yaml or name; for streams jsonl
    #[arg(short, long, global = true, help_heading = EVERY, value_enum, hide_possible_values = true, value_name = "FORM")]
    pub output: Option<OutputFormat>,
}

/// Commands that ask a server, and `explain`, which needs none.
#[derive(Subcommand, Debug)]
pub enum ServerCommand {
    /// Make what there is as manifests say; safe to repeat
    Apply {
        /// A file, a folder of .yaml and .yml files, or - for the standard input; repeatable
        #[arg(short, long = "filename", value_name = "FILE|DIR|-", required = true)]
        files: Vec<PathBuf>,
        /// Deployments take the place of those that are being carried out, and do not wait for them
        #[arg(long)]
        supersede: bool,
    },
    /// List entities, or show one
    Get(GetArgs),
    /// Explain the fields of a kind: names, types, defaults, meanings. Needs no server (default: list the kinds)
    Explain(ExplainArgs),
    /// Tell everything about one entity
    Describe {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
        what: EntitySelector,
        /// Its name or id, if that is not in KIND/NAME; PLAN/NAME of a deployment
        name: Option<String>,
    },
    /// Remove an entity, or what manifests name
    #[command(about = format!("Remove one of the {}, or what manifests name", act::kinds("delete", |_| true)))]
    Delete {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
        #[arg(required_unless_present = "files")]
        what: Option<EntitySelector>,
        /// Its name, if that is not in KIND/NAME
        name: Option<String>,
        /// Delete what the manifests name, what depends on others first; FILE|DIR|-, repeatable
        #[arg(short, long = "filename", value_name = "FILE|DIR|-", conflicts_with_all = ["what", "name"])]
        files: Vec<PathBuf>,
        /// With what needs it: the runs on a node are moved away, the replicas of a plan deleted
        #[arg(long)]
        cascade: bool,
        /// With -f and --cascade: maximum time to wait until what is deleted first is gone
        #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = parse_span, requires = "cascade", conflicts_with = "what")]
        timeout: Duration,
    },
    /// Bring up one more replica of a plan, by the deployment that was completed last
    Create {
        /// replica
        #[arg(value_name = "KIND", value_parser = EntitySelectorParser, hide_possible_values = true)]
        what: EntitySelector,
        /// Of which plan
        #[arg(long)]
        plan: String,
        /// The node, if it matters
        #[arg(long, value_name = "NODE")]
        on: Option<String>,
    },
    /// Approve operations, requests or a disruption, exactly as they are shown
    Approve(OperationArgs),
    /// Reject operations or requests
    Reject {
        /// Which
        #[command(flatten)]
        choose: OperationArgs,
        /// Why, for the journal
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Deploy again what an earlier completed deployment of a plan had, and supersede what is in progress
    Rollback {
        /// The plan
        plan: String,
        /// The deployment to go back to [default: the last that completed with another version]
        #[arg(long, value_name = "DEPLOYMENT")]
        to: Option<String>,
        /// Name of the new deployment [default: rollback-TIME]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Let a deployment go no further
    Cancel(EntityArgs),
    /// Let a deployment begin nothing more until it is resumed
    Pause(EntityArgs),
    /// Let a deployment that is paused go on
    Resume(EntityArgs),
    /// Make the version of a deployment's canary that of all
    Promote(EntityArgs),
    /// Take a deployment's canary back
    Withdraw(EntityArgs),
    /// Stop a replica, and keep it stopped
    Stop {
        /// Its name
        replica: String,
    },
    /// Bring a stopped replica up again
    Start {
        /// Its name
        replica: String,
        /// The node, if it matters
        #[arg(long, value_name = "NODE")]
        on: Option<String>,
    },
    /// Run a replica on another node: the new run is ready before the old one is stopped
    Relocate {
        /// Its name
        replica: String,
        /// The node, unless the best one will do
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
    },
    /// Move replicas of a plan, one relocate each, until no move makes its spread over update domains and nodes more even
    Rebalance {
        /// Name of the plan
        plan: String,
    },
    /// End a replica's run, and bring it up again
    Restart {
        /// Its name
        replica: String,
    },
    /// Empty a node: its replicas are moved away, within the budgets of their plans; then it is out of its cluster
    Drain(DrainArgs),
    /// Put a node back into use that is being emptied, or that was
    Undrain(UndrainArgs),
    /// Plan an interference with a node, to be approved
    Disrupt(ScheduleArgs),
    /// End a disruption
    Complete(EntityArgs),
    /// Put a node into a cluster
    Allocate {
        /// The node
        node: String,
        /// The cluster
        #[arg(long)]
        cluster: String,
    },
    /// Take an empty node out of its cluster
    Evict {
        /// The node
        node: String,
    },
    /// Begin to clean an evicted node
    Sanitize {
        /// The node
        node: String,
    },
    /// Make a cleaned node free for a cluster
    Release {
        /// The node
        node: String,
    },
    /// Declare a node gone for ever, with everything on it
    Expunge {
        /// The node
        node: String,
        /// Without asking
        #[arg(short, long)]
        yes: bool,
        /// Do not wait for the approval that policies require; the journal and metrics record the reason
        #[arg(long, value_name = "REASON")]
        break_glass: Option<String>,
    },
    /// Put an entity into use
    #[command(about = format!("Put one of the {} into use", act::kinds("set_activity", |_| true)))]
    Activate {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
        what: EntitySelector,
        /// Its name, if that is not in KIND/NAME
        name: Option<String>,
    },
    /// Take an entity out of use
    #[command(about = format!("Take one of the {} out of use", act::kinds("set_activity", |_| true)))]
    Deactivate {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
        what: EntitySelector,
        /// Its name, if that is not in KIND/NAME
        name: Option<String>,
    },
    /// Show events, in their order
    Events(EventsArgs),
    /// Show what happened to one entity, when, by whom and why
    History {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
        what: EntitySelector,
        /// Its name or id, if that is not in KIND/NAME; PLAN/NAME of a deployment
        name: Option<String>,
    },
    /// Show what processes have written
    Logs(LogsArgs),
    /// Wait until something is so
    Wait(WaitArgs),
    /// Give up a message of the inbox that cannot be read
    Inbox {
        /// What to do
        #[command(subcommand)]
        what: InboxCommand,
    },
}

/// What to do with the inbox.
#[derive(Subcommand, Debug)]
pub enum InboxCommand {
    /// Continue behind the message at which the inbox stands
    Skip {
        /// Its offset, as /readyz says it
        offset: u64,
    },
}

/// Advice for the commands of deployments where another kind is named.
const NOT_CANCELLED: &str = "operations are rejected, replicas stopped or deleted, disruptions completed";
const NOT_PAUSED: &str = "replicas are stopped and started, plans deactivated and activated";
const NOT_CANARIES: &str = "operations are approved or rejected";

impl EntityArgs {
    /// Sends an intent about the deployment: its verb, the outcome that is shown, and the advice for other kinds.
    fn of_deployment(
        &self,
        verb: (&str, &str, &str),
        client: &HttpClient<'_>,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        rollout::run(verb, self.what.kind, &self.what.one(self.name.as_ref())?, client, out)
    }
}

/// Approves or rejects what is named: requests, or else operations.
fn decide(
    decision: ApprovalDecision<'_>,
    choose: &OperationArgs,
    client: &HttpClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let requests = request::named(&choose.ids)?;
    if requests.is_empty() {
        return approve::run(decision, choose, client, out);
    }
    request::decide(decision, &requests, client, out)
}

impl ServerCommand {
    /// Carries the command out, and writes its data to `out`.
    pub(super) fn run(&self, client: &HttpClient<'_>, out: &mut dyn Write) -> Result<(), CliError> {
        match self {
            ServerCommand::Apply { files, supersede } => {
                let turn = if *supersede { Some(OverlapPolicy::Supersede) } else { None };
                apply::run(files, turn, client, out)
            }
            ServerCommand::Get(what) => get::run(what, client, out),
            ServerCommand::Explain(what) => explain::run(what, client.context, out),
            ServerCommand::Describe { what, name } => {
                describe::run(what.kind, &what.one(name.as_ref())?, client, out)
            }
            ServerCommand::Delete { what, name, files, cascade, timeout } => {
                let cascade = if *cascade { CascadePolicy::Yes } else { CascadePolicy::No };
                match what {
                    Some(what) => act::delete(what.kind, &what.one(name.as_ref())?, cascade, client, out),
                    None => delete::run(files, cascade, *timeout, client, out),
                }
            }
            ServerCommand::Create { what, plan, on } => {
                replica::create(what.kind, plan, on.as_ref(), client, out)
            }
            ServerCommand::Approve(choose) => match disruption::named(&choose.ids)? {
                Some(name) => {
                    disruption::ask("approve", "approved", EntityKind::Disruption, name, client, out)
                }
                None => decide(ApprovalDecision::Approve, choose, client, out),
            },
            ServerCommand::Reject { choose, reason } => {
                decide(ApprovalDecision::Reject { reason }, choose, client, out)
            }
            ServerCommand::Rollback { plan, to, name } => {
                rollout::rollback(plan, to.as_deref(), name.as_deref(), client, out)
            }
            ServerCommand::Cancel(which) => {
                which.of_deployment(("cancel", "cancelled", NOT_CANCELLED), client, out)
            }
            ServerCommand::Pause(which) => which.of_deployment(("pause", "paused", NOT_PAUSED), client, out),
            ServerCommand::Resume(which) => {
                which.of_deployment(("resume", "resumed", NOT_PAUSED), client, out)
            }
            ServerCommand::Promote(which) => {
                which.of_deployment(("promote", "promoted", NOT_CANARIES), client, out)
            }
            ServerCommand::Withdraw(which) => {
                which.of_deployment(("withdraw", "withdrawn", NOT_CANARIES), client, out)
            }
            ServerCommand::Stop { replica } => replica::ask("stop", replica, None, "is to stop", client, out),
            ServerCommand::Start { replica, on } => {
                replica::ask("start", replica, on.as_ref(), "is to start", client, out)
            }
            ServerCommand::Relocate { replica, to } => {
                replica::ask("relocate", replica, to.as_ref(), "is to move", client, out)
            }
            ServerCommand::Rebalance { plan } => act::rebalance(plan, client, out),
            ServerCommand::Restart { replica } => {
                replica::ask("restart", replica, None, "is to restart", client, out)
            }
            ServerCommand::Drain(what) => drain::drain(what, client, out),
            ServerCommand::Undrain(what) => drain::undrain(what, client, out),
            ServerCommand::Disrupt(what) => disruption::schedule(what, client, out),
            ServerCommand::Complete(EntityArgs { what, name }) => {
                let name = what.one(name.as_ref())?;
                disruption::ask("complete", "completed", what.kind, &name, client, out)
            }
            ServerCommand::Allocate { node, cluster } => {
                act::set_state("allocate", node, NodeState::Allocated, (Some(cluster), None), client, out)
            }
            ServerCommand::Evict { node } => {
                act::set_state("evict", node, NodeState::Evicted, (None, None), client, out)
            }
            ServerCommand::Sanitize { node } => {
                act::set_state("sanitize", node, NodeState::Sanitizing, (None, None), client, out)
            }
            ServerCommand::Release { node } => {
                act::set_state("release", node, NodeState::Unallocated, (None, None), client, out)
            }
            ServerCommand::Expunge { node, yes, break_glass } => {
                act::expunge(node, *yes, break_glass.as_ref(), client, out)
            }
            ServerCommand::Activate { what, name } => {
                act::set_activity(what.kind, &what.one(name.as_ref())?, ClusterActivity::Active, client, out)
            }
            ServerCommand::Deactivate { what, name } => act::set_activity(
                what.kind,
                &what.one(name.as_ref())?,
                ClusterActivity::Inactive,
                client,
                out,
            ),
            ServerCommand::Events(which) => events::run(which, client, out),
            ServerCommand::History { what, name } => {
                events::history(what.kind, &what.one(name.as_ref())?, client, out)
            }
            ServerCommand::Logs(whose) => logs::run(whose, client, out),
            ServerCommand::Wait(what) => wait::run(what, client, out),
            ServerCommand::Inbox { what: InboxCommand::Skip { offset } } => {
                act::skip_message(*offset, client, out)
            }
        }
    }
}
