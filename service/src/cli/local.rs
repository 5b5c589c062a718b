//! Command line of the program: client commands, and commands that run in this process.
#![expect(clippy::doc_markdown, reason = "the comments are the help, as people read it")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use chancery_cli::{CliExit, ClientCommand, GlobalArgs};
use chancery_events::time::parse_span;
use clap::{Args, Parser, Subcommand};

use super::executor::ExecutorArgs;

/// Chancery: an event-sourced control plane.
#[derive(Parser, Debug)]
#[command(name = "chancery", version, about, max_term_width = 120, disable_help_subcommand = true)]
#[command(after_help = CliExit::help())]
pub struct CliArgs {
    #[command(flatten)]
    pub(super) globals: GlobalArgs,
    /// Command to run.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// Commands of the program.
#[derive(Subcommand, Debug)]
pub enum CliCommand {
    /// Commands of a client.
    #[command(flatten)]
    Client(ClientCommand),
    /// Show settings and where each value comes from
    Config {
        /// Part of the settings to show
        #[command(subcommand)]
        what: ConfigCommand,
    },
    /// Commands that run in this process.
    #[command(flatten)]
    Local(LocalCommand),
}

/// Commands about settings.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Show every setting, its value, and the source of the value
    Show,
}

/// Commands that run in this process.
#[derive(Subcommand, Debug)]
pub enum LocalCommand {
    /// Everything in one process, for development: server and executor, journal in ./chancery-data
    Dev(ServerArgs),
    /// The server
    Serve(ServerArgs),
    /// An executor for one cluster of a server elsewhere
    Executor(ExecutorArgs),
    /// A tour on real processes: what happened, and why
    Demo(DemoArgs),
    /// Check a journal offline: every frame, every record, the whole chain
    Verify {
        /// Its folder, unless it is that of the configuration
        dir: Option<PathBuf>,
    },
    /// Make the topics of a journal on Kafka; those that are there stay as they are
    InitTopics {
        /// Destination of the journal: kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
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
        /// Destination of the journal: kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
        #[arg(long, value_name = "WHERE")]
        journal: Option<String>,
        /// Maximum duration: a minute less than brokers allow a transaction
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
        /// Location of the journal: kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
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
    Keeper(PassthroughArgs),
    /// Becomes a process when it is told to (started by the keeper)
    #[command(name = "exec-when-told", hide = true)]
    ExecWhenTold(PassthroughArgs),
    /// A small HTTP server to deploy (started by examples)
    #[command(name = "demo-payload", hide = true)]
    DemoPayload(PassthroughArgs),
}

/// Parses at most a day: brokers count milliseconds in 32 bits, and block their readers as long.
fn day(text: &str) -> Result<Duration, String> {
    match parse_span(text) {
        Ok(span) if span > Duration::from_hours(24) => Err("write at most 24h".into()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// Flags of a server; each overrides the configuration.
#[derive(Args, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct ServerArgs {
    /// Directory of the journal and everything derived from it [env: CHANCERY_DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Address on which requests are accepted [env: CHANCERY_LISTEN]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Location of the journal: embedded, or kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
    #[arg(long, value_name = "WHERE")]
    pub journal: Option<String>,
    /// The fleets it has, between commas; on Kafka NAME=PARTITION [env: CHANCERY_FLEETS] [default: that of --fleet]
    #[arg(long, value_name = "NAMES")]
    pub fleets: Option<String>,
    /// Address at which other servers reach this server [env: CHANCERY_ADVERTISE]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Clusters driven from here: all, none, or names between commas [env: CHANCERY_EXECUTORS]
    #[arg(long, value_name = "NAMES")]
    pub executors: Option<String>,
    /// Decide with a wall clock that is further ahead of the journal than clock.max_gap: the clock is right
    #[arg(long)]
    pub accept_clock: bool,
    /// Continue from a copied data directory in the place of the original, which must never be used again
    #[arg(long)]
    pub adopt_copy: bool,
    /// Filter of log lines [env: CHANCERY_LOG]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Format of log lines: text or json [env: CHANCERY_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// If the events topic contains events that the journal has lost, write an event that names them, and continue
    #[arg(long)]
    pub correct_events: bool,
    /// Give up every message of the inbox up to the offset that is not answered, and record that, before the inbox is read
    #[arg(long, value_name = "OFFSET")]
    pub skip_inbox: Option<u64>,
    /// Continue under a new lineage if records at the journal's end are missing, and tell which
    #[arg(long)]
    pub accept_loss: bool,
}

/// Flags of the tour.
#[derive(Args, Debug, Default)]
pub struct DemoArgs {
    /// Directory for data, instead of a temporary directory
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Leave everything running and in place
    #[arg(long)]
    pub keep: bool,
}

/// Arguments that are passed through.
#[derive(Args, Debug, Default)]
#[command(disable_help_flag = true)]
pub struct PassthroughArgs {
    /// As they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}
