//! The command line.
#![expect(clippy::doc_markdown, rustdoc::bare_urls, reason = "the comments are the help, as people read it")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use chancery_events::time::Time;
use clap::{Args, Parser, Subcommand};

use super::context::Output;
use super::error::CliError;
use super::executor::Executor;
use super::kind::{Kind, What, WhatParser};
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
    /// Remove a replica, plan, node, cluster, capability, policy or disruption
    Delete {
        /// Its kind, or KIND/NAME
        #[arg(value_name = "KIND[/NAME]", value_parser = WhatParser, hide_possible_values = true)]
        what: What,
        /// Its name, if that is not in KIND/NAME
        name: Option<String>,
        /// With what needs it: the runs on a node are moved away, the replicas of a plan deleted
        #[arg(long)]
        cascade: bool,
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
    /// Let operations run, exactly as they are shown, or let a disruption be acted on
    Approve(Choose),
    /// Refuse operations
    Reject {
        /// Which
        #[command(flatten)]
        choose: Choose,
        /// Why, for the journal
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
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
    /// Show settings and where each value comes from
    Config {
        /// What of them
        #[command(subcommand)]
        what: ConfigCommand,
    },
}

/// Which one.
#[derive(Args, Debug)]
pub struct Which {
    /// Its kind, or KIND/NAME
    #[arg(value_name = "KIND[/NAME]", value_parser = WhatParser, hide_possible_values = true)]
    pub what: What,
    /// PLAN/NAME of a deployment, NODE/NAME of a disruption, if that is not in KIND/NAME
    pub name: Option<String>,
}

/// Which node to empty.
#[derive(Args, Debug)]
pub struct Drain {
    /// The node
    pub node: String,
    /// Why, for people
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    /// Until it is empty, telling what is left
    #[arg(long)]
    pub wait: bool,
    /// For how long
    #[arg(long, default_value = "10m", value_parser = parse_span, requires = "wait")]
    pub timeout: Duration,
}

/// Which node to put back into use.
#[derive(Args, Debug)]
pub struct Undrain {
    /// The node
    pub node: String,
}

/// What is planned to be done to a node.
#[derive(Args, Debug)]
pub struct Disrupt {
    /// The node
    pub node: String,
    /// What it is called, among those of the node
    #[arg(long)]
    pub name: String,
    /// When it begins, as in 2026-11-21T22:00:00Z or, from now, 2h; when it is approved, if not said
    #[arg(long, value_name = "TIME|SPAN", value_parser = moment)]
    pub start: Option<Time>,
    /// Move what runs there away
    #[arg(long)]
    pub evict: bool,
    /// Why, for people
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// What to list.
#[derive(Args, Debug)]
pub struct Get {
    /// The kind, or KIND/NAME
    #[arg(value_name = "KIND[/NAME]", value_parser = WhatParser, hide_possible_values = true)]
    pub what: What,
    /// A name or id; PLAN/NAME of a deployment
    pub name: Option<String>,
    /// Only those whose field has this value; repeatable
    #[arg(short = 'l', long = "filter", value_name = "NAME=VALUE", value_parser = pair)]
    pub filters: Vec<(String, String)>,
    /// At most so many
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// Every one, however many
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Show every change as it comes: a live table on a terminal, lines off it
    #[arg(short, long, conflicts_with = "limit")]
    pub watch: bool,
}

impl Get {
    /// The kind.
    pub(super) fn kind(&self) -> Kind {
        self.what.kind
    }

    /// Which one, if not all; then there is nothing to filter.
    pub(super) fn name(&self) -> Result<Option<String>, CliError> {
        let name = self.what.name(self.name.as_ref())?;
        if name.is_some() && (!self.filters.is_empty() || self.all) {
            return Err(CliError::usage("a name leaves nothing to filter or page: leave out -l and --all"));
        }
        Ok(name)
    }
}

/// Which operations.
#[derive(Args, Debug, Default)]
pub struct Choose {
    /// Their ids; or disruption NODE/NAME
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Those of a plan
    #[arg(long, value_name = "PLAN", conflicts_with = "ids")]
    pub plan: Option<String>,
    /// That of a replica
    #[arg(long, value_name = "REPLICA", conflicts_with = "ids")]
    pub replica: Option<String>,
    /// Every one that waits, without asking
    #[arg(short = 'y', long, visible_alias = "yes", conflicts_with = "ids")]
    pub all: bool,
}

/// Which events.
#[derive(Args, Debug)]
pub struct Events {
    /// Those from this position on
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    pub from: u64,
    /// Go on as they come
    #[arg(short, long)]
    pub follow: bool,
    /// Only those about this entity, as in replica/web-7f3k
    #[arg(long, value_name = "KIND/NAME")]
    pub subject: Option<String>,
    /// Only those of these types, as in replica.created.v1
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<String>,
}

/// Whose output.
#[derive(Args, Debug)]
pub struct Logs {
    /// A replica, the id of an incarnation, or KIND/NAME of one of them
    pub of: String,
    /// Which payload, if there are several
    #[arg(long)]
    pub payload: Option<String>,
    /// Which of its processes, from 0
    #[arg(long)]
    pub process: Option<u16>,
    /// What it wrote to its standard error
    #[arg(long)]
    pub stderr: bool,
    /// Go on as it writes
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last so many lines
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u64>,
}

/// What to wait for.
#[derive(Args, Debug)]
pub struct Wait {
    /// KIND/NAME, as in replica/web-7f3k or deployment/web/deployment-1
    pub of: String,
    /// A field and its value, or deleted: phase=running, state=completed, replicas.running=3
    #[arg(long = "for", value_name = "FIELD=VALUE|deleted")]
    pub until: String,
    /// For how long
    #[arg(long, default_value = "60s", value_parser = parse_span)]
    pub timeout: Duration,
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
    /// Look whether the topics of a journal on Kafka may lose what was acknowledged, and say how to mend it
    Doctor {
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

/// Flags of a server; each overrides the configuration.
#[derive(Args, Debug, Default)]
pub struct Server {
    /// Where the journal and everything made from it are kept [env: CHANCERY_DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Where requests are taken [env: CHANCERY_LISTEN]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Where the journal is: embedded, or kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
    #[arg(long, value_name = "WHERE")]
    pub journal: Option<String>,
    /// The fleets it has, between commas; on Kafka NAME=PARTITION [env: CHANCERY_FLEETS] [default: that of --fleet]
    #[arg(long, value_name = "NAMES")]
    pub fleets: Option<String>,
    /// Where the other servers reach this one [env: CHANCERY_ADVERTISE]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Clusters driven from here: all, none, or names between commas [env: CHANCERY_EXECUTORS]
    #[arg(long, value_name = "NAMES")]
    pub executors: Option<String>,
    /// Which log lines are written [env: CHANCERY_LOG]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// How log lines are written: text or json [env: CHANCERY_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

/// Flags of the tour.
#[derive(Args, Debug, Default)]
pub struct Demo {
    /// Where to keep its data, instead of a temporary folder
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Leave everything running and in place
    #[arg(long)]
    pub keep: bool,
}

/// Arguments that are passed through.
#[derive(Args, Debug, Default)]
#[command(disable_help_flag = true)]
pub struct Passed {
    /// As they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// At most a day: brokers count milliseconds in 32 bits, and lock their readers out for as long.
fn day(text: &str) -> Result<Duration, String> {
    match parse_span(text) {
        Ok(span) if span > Duration::from_hours(24) => Err("write at most 24h".into()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// A moment, or how far it is from now.
fn moment(text: &str) -> Result<Time, String> {
    if let Ok(span) = parse_span(text) {
        return Ok(Time::from_micros(chrono::Utc::now().timestamp_micros()) + span);
    }
    text.parse().map_err(|_| "write a time as in 2026-11-21T22:00:00Z, or a span from now as in 2h".into())
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write NAME=VALUE, as in state=running".into()),
    }
}
