//! Command line of the client: its commands, and the functions that carry them out.
#![expect(clippy::doc_markdown, rustdoc::bare_urls, reason = "the comments are the help texts")]

use std::path::PathBuf;

use chancery_events::intent::OverlapPolicy;
use chancery_events::spec::{ClusterActivity, NodeState};
use clap::{Args, Subcommand};

use super::approve::{self, ApprovalDecision};
use super::client::CommandIo;
use super::dry_run::SendMode;
use super::error::CliError;
use super::flags::{
    ConsoleArgs, DeleteArgs, DiffArgs, DrainArgs, EntityArgs, EventsArgs, ExplainArgs, GetArgs, LogsArgs,
    NodeArgs, OperationArgs, ScheduleArgs, SnapshotArgs, StopArgs, WaitArgs, WhyArgs, as_of, of_deployments,
    of_disruptions, of_volumes,
};
use super::kind::{EntityKind, EntitySelector, EntitySelectorParser};
use super::output::{OutputChoice, OutputChoiceParser};
use super::{
    act, apply, console, delete, describe, diff, disruption, drain, dry_run, edit, events, explain, get,
    logs, replica, request, rollout, snapshot, status, version, wait, why,
};

/// Help heading of the flags of every command.
const EVERY: &str = "Options of every command";

/// Flags of every command. Each flag overrides the environment, the configuration file, the context and the default.
#[derive(Args, Debug, Default)]
pub struct GlobalArgs {
    /// Send requests to this server; a comma-separated list tries each server [env: CHANCERY_SERVER]
    /// [default: http://127.0.0.1:7440]
    #[arg(long, global = true, help_heading = EVERY, value_name = "URL")]
    pub server: Option<String>,
    /// Use this fleet [env: CHANCERY_FLEET] [default: default]
    #[arg(long, global = true, help_heading = EVERY, value_name = "NAME")]
    pub fleet: Option<String>,
    /// Use the server and the fleet of this context, unless --server or --fleet is given (default: the current context)
    #[arg(long, global = true, help_heading = EVERY, value_name = "NAME")]
    pub context: Option<String>,
    /// Send requests in the name of this actor [env: CHANCERY_ACTOR] [default: local]
    #[arg(long, global = true, help_heading = EVERY, value_name = "NAME")]
    pub actor: Option<String>,
    /// Read settings from this file [env: CHANCERY_CONFIG] [default: chancery.toml, if it exists]
    #[arg(long, global = true, help_heading = EVERY, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Show data as table, wide, csv, json, yaml, name or jsonpath=TEMPLATE, or jsonl for streams (default: table)
    #[arg(short, long, global = true, help_heading = EVERY, value_parser = OutputChoiceParser, hide_possible_values = true, value_name = "FORMAT")]
    pub output: Option<OutputChoice>,
    /// Use this idempotency key: a command that is repeated with the key of its first run has its effects once
    #[arg(long, global = true, help_heading = EVERY, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

/// Commands that send requests to a server, and `explain`, which needs no server.
#[derive(Subcommand, Debug)]
pub enum ServerCommand {
    /// Create or update entities from manifests (idempotent)
    Apply {
        /// Read manifests from a file, a directory of .yaml, .yml and .json files, an http address, or - for standard
        /// input; repeatable
        #[arg(short, long = "filename", value_name = "FILE|DIR|URL|-", required = true)]
        files: Vec<PathBuf>,
        /// Supersede deployments in progress with those of the manifests (default: as in the manifests)
        #[arg(long)]
        supersede: bool,
        /// Show what would change, field by field, with operations and required approvals, and record nothing
        #[arg(long)]
        dry_run: bool,
        /// Decide on the state after a position, 120, or at a time, 2026-11-21T09:00:00Z (default: the current state)
        #[arg(long, value_name = "POSITION|TIME|DURATION", value_parser = as_of, allow_hyphen_values = true, requires = "dry_run")]
        as_of: Option<String>,
    },
    /// List entities, or show one entity
    Get(GetArgs),
    /// Explain the fields of a kind: names, types, defaults, meanings; needs no server (default: list the
    /// kinds)
    Explain(ExplainArgs),
    /// Show one entity with its related entities and recent events
    Describe {
        /// Kind of the entity, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
        what: EntitySelector,
        /// Name or id of the entity, unless given in KIND/NAME; PLAN/NAME for a deployment
        name: Option<String>,
        /// Show the state after a position, 120, or at a time, 2026-11-21T09:00:00Z (default: the current state)
        #[arg(long, value_name = "POSITION|TIME|DURATION", value_parser = as_of, allow_hyphen_values = true)]
        as_of: Option<String>,
    },
    /// Show which entities manifests would change, or which differ between two moments
    ///
    /// With -f, the exit code is 0 without differences, 1 with differences, and higher for errors.
    Diff(DiffArgs),
    /// Show the facts behind a value: who requested and approved the change, and what was observed
    Why(WhyArgs),
    /// Edit the manifest of an entity in an editor, and apply it
    ///
    /// The editor is that of VISUAL or EDITOR, or vi; on Windows notepad. The result is applied unless the entity has changed
    /// meanwhile: then the edited file is kept. An invalid manifest is opened again.
    Edit(EntityArgs),
    /// Delete an entity, or the entities of manifests
    #[command(about = format!("Delete one of the {}, or the entities of manifests", act::kinds("delete", |_| true)))]
    Delete(DeleteArgs),
    /// Create one more replica of a plan, with the version of the last completed deployment
    Create {
        /// Kind to create: replica
        #[arg(value_name = "KIND", value_parser = EntitySelectorParser, hide_possible_values = true)]
        what: EntitySelector,
        /// Plan that the replica belongs to
        #[arg(long)]
        plan: String,
        /// Node to start the replica on (default: placed automatically)
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// Approve operations, requests or a disruption, exactly as shown
    Approve(OperationArgs),
    /// Reject operations or requests; a disruption is called off with complete
    #[command(mut_arg("ids", |ids| ids.help("Ids of operations, or request/ID (default: choose from a list)")))]
    Reject {
        /// Operations or requests to reject
        #[command(flatten)]
        choose: OperationArgs,
        /// Reason, recorded in the journal (default: none)
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Deploy the version of an earlier completed deployment again, or end an unpromoted canary
    ///
    /// A plan gets a new deployment, which supersedes those in progress. The replicas of a canary return to the
    /// version of the plan's last completed deployment.
    Rollback {
        /// Plan to roll back, or the deployment whose canary to end
        #[arg(value_name = "PLAN|deployment/PLAN/NAME")]
        what: String,
        /// Deployment whose version to restore [default: the last completed deployment with another version]
        #[arg(long, value_name = "DEPLOYMENT")]
        to: Option<String>,
        /// Name of the new deployment [default: rollback-TIME]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Show what would change, with operations and required approvals, and record nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Deploy another number of replicas, with the version of the last completed deployment
    ///
    /// The plan gets a new deployment, which is queued behind one in progress, and supersedes one that is queued. A plan whose version
    /// was edited since the last completed deployment is not scaled: its new deployment would deploy the edit.
    Scale {
        /// Plan to scale
        #[arg(value_name = "PLAN")]
        plan: String,
        /// Number of replicas
        #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
        count: u32,
        /// Name of the new deployment [default: scale-TIME]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Show what would change, with operations and required approvals, and record nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Cancel a deployment; finished operations are not reverted
    #[command(mut_args(of_deployments))]
    Cancel(EntityArgs),
    /// Pause a deployment: start no more operations until it is resumed
    #[command(mut_args(of_deployments))]
    Pause(EntityArgs),
    /// Resume a paused deployment
    #[command(mut_args(of_deployments))]
    Resume(EntityArgs),
    /// Promote the canary of a deployment: update all replicas to its version, also if the canary is not ready
    #[command(mut_args(of_deployments))]
    Promote(EntityArgs),
    /// Stop a replica, and keep it stopped until it is started
    Stop(StopArgs),
    /// Start a stopped replica
    Start {
        /// Name of the replica
        replica: String,
        /// Node to start the replica on (default: placed automatically)
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// Move a replica to another node; the new incarnation is ready before the old one is stopped
    Relocate {
        /// Name of the replica
        replica: String,
        /// Node to move the replica to (default: chosen by the placement rules)
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
    },
    /// Relocate replicas of a plan until no move makes its spread over update domains and nodes more even
    Rebalance {
        /// Name of the plan
        plan: String,
    },
    /// Restart a replica: end its incarnation, and start another
    Restart {
        /// Name of the replica
        replica: String,
    },
    /// Reboot a replica that is a virtual machine: reset its guest, in the same incarnation
    Reboot {
        /// Name of the replica
        replica: String,
    },
    /// Create a volume with the content that a volume has at one moment: snapshot volume NAME --as NEW
    #[command(mut_args(of_volumes))]
    Snapshot(SnapshotArgs),
    /// Attach a terminal to the console of a virtual machine: the first serial port of its guest
    ///
    /// What is typed reaches the guest, and its output is shown. Ctrl-] detaches. One client at a time writes. Everyone who
    /// attaches is recorded in the journal, without what is typed or shown. `chancery logs` shows earlier output.
    Console(ConsoleArgs),
    /// Drain a node: move its replicas away within the budgets of their plans, then evict it from its cluster
    Drain(DrainArgs),
    /// Put a draining or drained node back into use
    Undrain(NodeArgs),
    /// Schedule a disruption of a node, which needs approval: schedule disruption NODE/NAME
    #[command(mut_args(of_disruptions))]
    Schedule(ScheduleArgs),
    /// Complete a disruption, or call it off before it starts
    #[command(mut_args(of_disruptions))]
    Complete(EntityArgs),
    /// Allocate a node to a cluster
    Allocate {
        /// Name of the node
        node: String,
        /// Name of the cluster
        #[arg(long)]
        cluster: String,
    },
    /// Evict an empty node from its cluster
    Evict(NodeArgs),
    /// Mark an evicted node as being sanitized, which operators do themselves
    Sanitize(NodeArgs),
    /// Mark a node as sanitized, so that it can be allocated
    Release(NodeArgs),
    /// Declare a node permanently lost, with its incarnations and volumes
    Expunge {
        /// Name of the node
        node: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
        /// Do not wait for the approval that policies require; the journal and metrics record the reason
        #[arg(long, value_name = "REASON")]
        break_glass: Option<String>,
    },
    /// Activate an entity
    #[command(about = activity_help("Activate", ""))]
    Activate(EntityArgs),
    /// Deactivate an entity
    #[command(about = activity_help("Deactivate", "no "))]
    Deactivate(EntityArgs),
    /// Show events in the order of the journal
    Events(EventsArgs),
    /// Show the events of one entity, with their initiators and reasons
    History {
        /// Kind of the entity, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
        what: EntitySelector,
        /// Name or id of the entity, unless given in KIND/NAME; PLAN/NAME for a deployment
        name: Option<String>,
        /// Show the events up to a position, 120, or a time, 2026-11-21T09:00:00Z (default: all events)
        #[arg(long, value_name = "POSITION|TIME|DURATION", value_parser = as_of, allow_hyphen_values = true)]
        as_of: Option<String>,
    },
    /// Show the output of processes
    Logs(LogsArgs),
    /// Wait until a field of an entity has a value, or the entity is deleted
    Wait(WaitArgs),
    /// Check that the server is ready: exit with 0 if it is, for health checks
    #[command(
        after_help = "The request is sent once to each server of --server until one answers. A server is ready if it knows \
        the leader of each fleet, and its rows keep up with the journal."
    )]
    Ready,
    /// Show whether the fleet is well, what waits, and what failed last
    Status,
    /// Show the versions of this program and of the server
    Version {
        /// Show only the version of this program, without a request
        #[arg(long)]
        client: bool,
    },
    /// Raise the level of the fleet, after all servers have a newer build: raise fleet
    ///
    /// A server records only what the level of the fleet permits, so that servers of an older build can fold it. After the
    /// raise, builds that do not know the level stop.
    Raise {
        /// Always `fleet`
        #[arg(value_name = "fleet", value_parser = ["fleet"], hide_possible_values = true)]
        what: String,
        /// Level to raise the fleet to (default: the highest that this program knows)
        #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u32).range(1..))]
        to: Option<u32>,
        /// Address of a server that the raise does not wait for: it is gone, or starts again only with a newer build; repeatable
        #[arg(long, value_name = "ADDRESS")]
        without: Vec<String>,
    },
    /// Skip a message that blocks the inbox
    Inbox {
        /// Action on the inbox
        #[command(subcommand)]
        what: InboxCommand,
    },
}

/// Actions on the inbox.
#[derive(Subcommand, Debug)]
pub enum InboxCommand {
    /// Skip the message that blocks the inbox, and continue after it
    Skip {
        /// Offset of the message, as /readyz reports it
        offset: u64,
    },
}

/// Advice for commands of deployments that name an entity of another kind.
const NOT_CANCELLED: &str = "reject operations, stop or delete replicas, complete disruptions";
const NOT_PAUSED: &str = "stop and start replicas, deactivate and activate plans";
pub(super) const NOT_CANARIES: &str = "approve or reject operations";

impl EntityArgs {
    /// Sends an intent about the deployment. `verb` is the verb, the outcome shown, and the advice for other
    /// kinds.
    fn of_deployment(&self, verb: (&str, &str, &str), io: &mut CommandIo<'_>) -> Result<(), CliError> {
        rollout::run(verb, self.what.kind, &self.name()?, io)
    }
}

fn activity_help(verb: &str, no: &str) -> String {
    let kinds = act::kinds("set_activity", |_| true);
    format!("{verb} one of the {kinds}: it takes {no}placements, matches or deployments")
}

/// Approves or rejects the named requests, or operations if no request is named.
fn decide(
    decision: ApprovalDecision<'_>,
    choose: &OperationArgs,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let requests = request::named(&choose.ids)?;
    if requests.is_empty() {
        return approve::run(decision, choose, io);
    }
    request::decide(decision, &requests, io)
}

impl ServerCommand {
    /// Whether the command sends no intents.
    const fn is_read(&self) -> bool {
        matches!(
            self,
            ServerCommand::Get(_)
                | ServerCommand::Explain(_)
                | ServerCommand::Describe { .. }
                | ServerCommand::Diff(_)
                | ServerCommand::Why(_)
                | ServerCommand::Events(_)
                | ServerCommand::History { .. }
                | ServerCommand::Logs(_)
                | ServerCommand::Wait(_)
                | ServerCommand::Status
                | ServerCommand::Version { .. }
        )
    }

    /// Runs the command, and writes its data to `out`.
    pub(super) fn run(&self, io: &mut CommandIo<'_>) -> Result<(), CliError> {
        if io.client.context.idempotency_key.is_some() && self.is_read() {
            return Err(CliError::usage("invalid flag --idempotency-key: this command changes nothing"));
        }
        match self {
            ServerCommand::Apply { files, supersede, dry_run, as_of } => {
                let overlap = if *supersede { Some(OverlapPolicy::Supersede) } else { None };
                io.client.read_at(as_of.as_ref());
                if *dry_run { dry_run::run(files, overlap, io) } else { apply::run(files, overlap, io) }
            }
            ServerCommand::Get(what) => get::run(what, io),
            ServerCommand::Explain(what) => explain::run(what, io.client.context, io.out),
            ServerCommand::Describe { what, name, as_of } => {
                io.client.read_at(as_of.as_ref());
                describe::run(what.kind, &what.one(name.as_ref())?, io)
            }
            ServerCommand::Diff(what) => match &what.from {
                Some(from) => diff::run(from, what, io),
                None => dry_run::differences(&what.files, io),
            },
            ServerCommand::Why(value) => why::run(value, io),
            ServerCommand::Edit(what) => edit::run(what.what.kind, &what.name()?, io),
            ServerCommand::Delete(what) => delete::run(what, io),
            ServerCommand::Create { what, plan, node: on } => {
                replica::create(what.kind, plan, on.as_ref(), io)
            }
            ServerCommand::Approve(choose) => match disruption::named(&choose.ids)? {
                Some(name) => disruption::ask("approve", "approved", EntityKind::Disruption, name, io),
                None => decide(ApprovalDecision::Approve, choose, io),
            },
            ServerCommand::Reject { choose, reason } => {
                disruption::not_rejected(&choose.ids)?;
                decide(ApprovalDecision::Reject { reason }, choose, io)
            }
            ServerCommand::Rollback { what, to, name, dry_run } => {
                rollout::rollback(what, to.as_deref(), name.as_deref(), SendMode::of(*dry_run), io)
            }
            ServerCommand::Scale { plan, count, name, dry_run } => {
                rollout::scale(plan, *count, name.as_deref(), SendMode::of(*dry_run), io)
            }
            ServerCommand::Cancel(which) => which.of_deployment(("cancel", "cancelled", NOT_CANCELLED), io),
            ServerCommand::Pause(which) => which.of_deployment(("pause", "paused", NOT_PAUSED), io),
            ServerCommand::Resume(which) => which.of_deployment(("resume", "resumed", NOT_PAUSED), io),
            ServerCommand::Promote(which) => which.of_deployment(("promote", "promoted", NOT_CANARIES), io),
            ServerCommand::Stop(what) => replica::stop(what, io),
            ServerCommand::Start { replica, node: on } => {
                replica::ask("start", replica, on.as_ref(), "start requested", io)
            }
            ServerCommand::Relocate { replica, to } => {
                replica::ask("relocate", replica, to.as_ref(), "relocation requested", io)
            }
            ServerCommand::Rebalance { plan } => act::rebalance(plan, io),
            ServerCommand::Raise { to, without, .. } => act::raise(*to, without, io),
            ServerCommand::Restart { replica } => {
                replica::ask("restart", replica, None, "restart requested", io)
            }
            ServerCommand::Reboot { replica } => {
                replica::ask("reboot", replica, None, "reboot requested", io)
            }
            ServerCommand::Snapshot(what) => snapshot::run(what, io),
            ServerCommand::Console(which) => console::run(which, io),
            ServerCommand::Drain(what) => drain::drain(what, io),
            ServerCommand::Undrain(what) => drain::undrain(what, io),
            ServerCommand::Schedule(what) => disruption::schedule(what, io),
            ServerCommand::Complete(which) => {
                disruption::ask("complete", "completed", which.what.kind, &which.name()?, io)
            }
            ServerCommand::Allocate { node, cluster } => {
                act::set_state("allocate", node, NodeState::Allocated, (Some(cluster), None), io)
            }
            ServerCommand::Evict(which) => {
                act::set_state("evict", &which.node, NodeState::Evicted, (None, None), io)
            }
            ServerCommand::Sanitize(which) => {
                act::set_state("sanitize", &which.node, NodeState::Sanitizing, (None, None), io)
            }
            ServerCommand::Release(which) => {
                act::set_state("release", &which.node, NodeState::Unallocated, (None, None), io)
            }
            ServerCommand::Expunge { node, yes, break_glass } => {
                act::expunge(node, *yes, break_glass.as_ref(), io)
            }
            ServerCommand::Activate(what) => act::set_activity(what, ClusterActivity::Active, io),
            ServerCommand::Deactivate(what) => act::set_activity(what, ClusterActivity::Inactive, io),
            ServerCommand::Events(which) => events::run(which, io),
            ServerCommand::History { what, name, as_of } => {
                io.client.read_at(as_of.as_ref());
                events::history(what.kind, &what.one(name.as_ref())?, io)
            }
            ServerCommand::Logs(whose) => logs::run(whose, io),
            ServerCommand::Wait(what) => wait::run(what, None, io),
            ServerCommand::Ready => io.ready(),
            ServerCommand::Status => status::run(io),
            ServerCommand::Version { client } => version::run(*client, io),
            ServerCommand::Inbox { what: InboxCommand::Skip { offset } } => act::skip_message(*offset, io),
        }
    }
}
