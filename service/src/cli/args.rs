//! The command line.
#![expect(clippy::doc_markdown, rustdoc::bare_urls, reason = "the comments are the help, as people read it")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use super::context::Output;
use super::executor::Executor;
use super::flags::{Choose, Demo, Disrupt, Drain, Events, Get, Logs, Passed, Server, Undrain, Wait, Which};
use super::kind::{What, WhatParser};
use crate::manifest::parse_span;

/// Chancery: an event-sourced control plane.
#[derive(Parser, Debug)]
#[command(name = "chancery", version, about, max_term_width = 120, disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 conflict, 5 denied, \
    6 awaiting approval, 7 unknown outcome or timeout, 8 unreachable")]
pub struct Cli {
    #[command(flatten)]
    pub(super) globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Above the flags of every command, in its help.
const EVERY: &str = "Options of every command";

/// Flags of every command. Each overrides the environment, the configuration file and the default.
#[derive(Args, Debug, Default)]
pub(super) struct Globals {
    /// The server that is asked [env: CHANCERY_SERVER] [default: http://127.0.0.1:7440]
    #[arg(long, global = true, help_heading = EVERY, value_name = "URL")]
    pub(super) server: Option<String>,
    /// The fleet [env: CHANCERY_FLEET] [default: default]
    #[arg(long, global = true, help_heading = EVERY, value_name = "NAME")]
    pub(super) fleet: Option<String>,
    /// Who asks [env: CHANCERY_ACTOR] [default: local]
    #[arg(long, global = true, help_heading = EVERY, value_name = "NAME")]
    pub(super) actor: Option<String>,
    /// The configuration file [env: CHANCERY_CONFIG] [default: chancery.toml, if it is there]
    #[arg(long, global = true, help_heading = EVERY, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// How data is shown: table, wide, json, yaml or name; for streams jsonl
    #[arg(short, long, global = true, help_heading = EVERY, value_enum, hide_possible_values = true, value_name = "FORM")]
    pub(super) output: Option<Output>,
}

/// What can be done.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// What asks a server, or nobody.
    #[command(flatten)]
    Client(Client),
    /// What runs here.
    #[command(flatten)]
    Local(Local),
}

/// Commands that ask a server.
#[derive(Subcommand, Debug)]
pub enum Client {
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
    Get(Get),
    /// Tell everything about one entity
    Describe {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = WhatParser, hide_possible_values = true)]
        what: What,
        /// Its name or id, if that is not in KIND/NAME; PLAN/NAME of a deployment
        name: Option<String>,
    },
    /// Remove a replica, volume, plan, node, cluster, capability, policy or disruption, or what manifests name
    Delete {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = WhatParser, hide_possible_values = true)]
        #[arg(required_unless_present = "files")]
        what: Option<What>,
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
        #[arg(value_name = "KIND", value_parser = WhatParser, hide_possible_values = true)]
        what: What,
        /// Of which plan
        #[arg(long)]
        plan: String,
        /// The node, if it matters
        #[arg(long, value_name = "NODE")]
        on: Option<String>,
    },
    /// Approve operations, requests or a disruption, exactly as they are shown
    Approve(Choose),
    /// Reject operations or requests
    Reject {
        /// Which
        #[command(flatten)]
        choose: Choose,
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
    Cancel(Which),
    /// Let a deployment begin nothing more until it is resumed
    Pause(Which),
    /// Let a deployment that is paused go on
    Resume(Which),
    /// Make the version of a deployment's canary that of all
    Promote(Which),
    /// Take a deployment's canary back
    Withdraw(Which),
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
    Drain(Drain),
    /// Put a node back into use that is being emptied, or that was
    Undrain(Undrain),
    /// Plan an interference with a node, to be approved
    Disrupt(Disrupt),
    /// End a disruption
    Complete(Which),
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
    /// Put a cluster, capability or plan into use
    Activate {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = WhatParser, hide_possible_values = true)]
        what: What,
        /// Its name, if that is not in KIND/NAME
        name: Option<String>,
    },
    /// Take a cluster, capability or plan out of use
    Deactivate {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = WhatParser, hide_possible_values = true)]
        what: What,
        /// Its name, if that is not in KIND/NAME
        name: Option<String>,
    },
    /// Show events, in their order
    Events(Events),
    /// Show what happened to one entity, when, by whom and why
    History {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = WhatParser, hide_possible_values = true)]
        what: What,
        /// Its name or id, if that is not in KIND/NAME; PLAN/NAME of a deployment
        name: Option<String>,
    },
    /// Show what processes have written
    Logs(Logs),
    /// Wait until something is so
    Wait(Wait),
    /// Give up a message of the inbox that cannot be read
    Inbox {
        /// What to do
        #[command(subcommand)]
        what: InboxCommand,
    },
    /// Show settings and where each value comes from
    Config {
        /// What of them
        #[command(subcommand)]
        what: ConfigCommand,
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

/// What about settings.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Every setting, its value, and where that comes from
    Show,
}

/// Commands that run here.
#[derive(Subcommand, Debug)]
pub enum Local {
    /// Everything in one process, for development: server and executor, journal in ./chancery-data
    Dev(Server),
    /// The server
    Serve(Server),
    /// An executor for one cluster of a server elsewhere
    Executor(Executor),
    /// A tour on real processes: what happened, and why
    Demo(Demo),
    /// Check a journal offline: every frame, every record, the whole chain
    Verify {
        /// Its folder, unless it is that of the configuration
        dir: Option<PathBuf>,
    },
    /// Make the topics of a journal on Kafka; those that are there stay as they are
    InitTopics {
        /// Where the journal is to be: kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
        #[arg(long, value_name = "WHERE")]
        journal: Option<String>,
        /// Partitions of each: fleets that there is room for [default: as many as the fleets of the settings need]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
        partitions: Option<u16>,
        /// Copies of each partition, each on a broker of its own
        #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
        copies: u16,
    },
    /// Fill an empty partition on Kafka with a fleet's journal from the folder of a stopped server: all of it or nothing
    Import {
        /// The server's folder, unless it is that of the configuration; its journal becomes the mirror of the topic
        dir: Option<PathBuf>,
        /// Where the journal is to be: kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
        #[arg(long, value_name = "WHERE")]
        journal: Option<String>,
        /// How long it may take: a minute less than brokers allow a transaction
        #[arg(long, value_name = "SPAN", default_value = "14m", value_parser = day)]
        timeout: Duration,
    },
    /// Check the proof of ends on this host, who may read the data directory, the wall clock, and whether topics on Kafka may
    /// lose acknowledged records
    Doctor {
        /// Take from others what they may do in the data directory
        #[arg(long)]
        fix: bool,
        /// The data directory [env: CHANCERY_DATA_DIR]
        #[arg(long, value_name = "DIR")]
        data_dir: Option<String>,
        /// Where the journal is: kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
        #[arg(long, value_name = "WHERE")]
        journal: Option<String>,
    },
    /// Print the OpenAPI description
    Openapi,
    /// Print what makes a shell complete commands, kinds and flags
    #[command(
        after_help = "bash: chancery completion bash > ~/.local/share/bash-completion/completions/chancery\n\
        zsh:  chancery completion zsh > \"${fpath[1]}/_chancery\"\n\
        fish: chancery completion fish > ~/.config/fish/completions/chancery.fish"
    )]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Watches the processes of one incarnation (started by the executor)
    #[command(hide = true)]
    Keeper(Passed),
    /// Becomes a process when it is told to (started by the keeper)
    #[command(name = "exec-when-told", hide = true)]
    ExecWhenTold(Passed),
    /// A small HTTP server to deploy (started by examples)
    #[command(name = "demo-payload", hide = true)]
    DemoPayload(Passed),
}

/// At most a day: brokers count milliseconds in 32 bits, and lock their readers out for as long.
fn day(text: &str) -> Result<Duration, String> {
    match parse_span(text) {
        Ok(span) if span > Duration::from_hours(24) => Err("write at most 24h".into()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}
