//! Command line of the program: client commands, and commands that run in this process.
#![expect(clippy::doc_markdown, reason = "the comments are the help, as people read it")]

use std::path::PathBuf;
use std::time::Duration;

use chancery_cli::{CliExit, ClientCommand, ContextCommand, GlobalArgs};
use chancery_events::name::{ClusterName, Namespace};
use chancery_events::time::parse_span;
use chancery_projector::NamedMoment;
use chancery_projector::moment::InvalidMoment;
use clap::{Args, Parser, Subcommand};

use super::executor::{CredentialArgs, ExecutorArgs};

/// Chancery: an event-sourced control plane.
#[derive(Parser, Debug)]
#[command(name = "chancery", version, about, max_term_width = 120)]
#[command(after_help = CliExit::help())]
pub struct CliArgs {
    /// Flags of every command.
    #[command(flatten)]
    pub globals: GlobalArgs,
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
    /// Use, list, set, delete or show contexts: named servers and fleets
    Context {
        /// Action on the contexts
        #[command(subcommand)]
        what: ContextCommand,
    },
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

/// Commands that print manifests of what a runtime has.
#[derive(Subcommand, Debug)]
pub enum DiscoverCommand {
    /// Print a manifest for each node of a Kubernetes cluster: its allocatable resources, and what other pods request as reserved
    #[command(
        after_help = "Review the manifests, then apply them: chancery discover nodes --cluster NAME > nodes.yaml; \
        chancery apply -f nodes.yaml"
    )]
    Nodes {
        /// Cluster of the fleet that the nodes are for
        #[arg(long, value_name = "NAME")]
        cluster: ClusterName,
        /// Credentials of Kubernetes.
        #[command(flatten)]
        credentials: CredentialArgs,
    },
}

/// Commands to run before an upgrade.
#[derive(Subcommand, Debug)]
pub enum UpgradeCommand {
    /// Fold a journal offline, and compare the rows of this program with the stored rows, which another one has written
    Check(UpgradeCheckArgs),
}

/// Flags of the check before an upgrade.
#[derive(Args, Debug, Default)]
pub struct UpgradeCheckArgs {
    /// Directory of a server, of which --fleet names the fleet, or of a journal [default: directory of the
    /// configuration]
    pub dir: Option<PathBuf>,
    /// Maximum number of differences to print; all are counted
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u16))]
    pub limit: u16,
}

/// Commands that run in this process.
#[derive(Subcommand, Debug)]
pub enum LocalCommand {
    /// Run server and executors in one process, for development; the journal is in ./chancery-data
    Dev(ServerArgs),
    /// Run a server
    Serve(ServerArgs),
    /// Run an executor for one cluster of a remote server
    Executor(ExecutorArgs),
    /// Run a demonstration on real processes
    Demo(DemoArgs),
    /// Check a journal offline: every frame, every record, the whole chain
    Verify {
        /// Directory of a journal or of a server [default: directory of the configuration]
        dir: Option<PathBuf>,
    },
    /// Fold a journal offline, print what it contains, and compare its state with its snapshots
    Replay(ReplayArgs),
    /// Commands to run before an upgrade, with the new program
    Upgrade {
        /// Part of the upgrade
        #[command(subcommand)]
        what: UpgradeCommand,
    },
    /// Create missing topics of a journal on Kafka; existing topics stay unchanged
    InitTopics {
        /// Destination of the journal: kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
        #[arg(long, value_name = "LOCATION")]
        journal: Option<String>,
        /// Partitions of each topic, one for each fleet [default: as many as the configured fleets need]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
        partitions: Option<u16>,
        /// Copies of each partition, each on a broker of its own
        #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
        replication_factor: u16,
    },
    /// Import the journals of a stopped server into empty partitions on Kafka: each completely or not at all
    Import {
        /// Directory of the server; its journals become mirrors [default: directory of the configuration]
        dir: Option<PathBuf>,
        /// Destination of the journal: kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
        #[arg(long, value_name = "LOCATION")]
        journal: Option<String>,
        /// Maximum duration; the default is a minute less than the default limit of brokers for a transaction
        #[arg(long, value_name = "DURATION", default_value = "14m", value_parser = day)]
        timeout: Duration,
    },
    /// Print manifests of what a runtime has, for review: nothing is applied
    Discover {
        /// Part of the runtime to print
        #[command(subcommand)]
        what: DiscoverCommand,
    },
    /// Check how this host proves that processes have ended, the permissions of the data directory, the wall
    /// clock, whether topics on Kafka may lose acknowledged records, and the rights of an executor in Kubernetes
    Doctor {
        /// Remove permissions of other users in the data directory
        #[arg(long)]
        fix: bool,
        /// Data directory to check [env: CHANCERY_DATA_DIR]
        #[arg(long, value_name = "DIR")]
        data_dir: Option<String>,
        /// Location of the journal: kafka://HOST:PORT,…/PREFIX [env: CHANCERY_JOURNAL]
        #[arg(long, value_name = "LOCATION")]
        journal: Option<String>,
        /// Cluster whose Kubernetes API is checked with these credentials
        #[arg(long, value_name = "NAME", requires = "namespace")]
        cluster: Option<ClusterName>,
        /// Namespace of the executor's records in Kubernetes, as in the cluster's spec
        #[arg(long, value_name = "NAME", requires = "cluster")]
        namespace: Option<Namespace>,
        /// Credentials of Kubernetes.
        #[command(flatten)]
        credentials: CredentialArgs,
    },
    /// Print the OpenAPI description
    Openapi,
    /// Print a script that completes commands, kinds and flags in a shell
    #[command(
        after_help = "bash: chancery completion bash > ~/.local/share/bash-completion/completions/chancery\n\
        zsh:  chancery completion zsh > \"${fpath[1]}/_chancery\"\n\
        fish: chancery completion fish > ~/.config/fish/completions/chancery.fish"
    )]
    Completion {
        /// Shell that runs the script
        shell: clap_complete::Shell,
    },
    /// Write a manual page of each command to a directory, as packages have them
    Man {
        /// Directory of the pages, which exists
        dir: PathBuf,
    },
}

/// Parses a moment; a duration before now becomes a time.
fn until(text: &str) -> Result<NamedMoment, String> {
    chancery_cli::as_of(text)?.parse().map_err(|error: InvalidMoment| error.to_string())
}

/// Parses a duration of at most a day: brokers count milliseconds in 32 bits, and block readers for as long.
fn day(text: &str) -> Result<Duration, String> {
    match parse_span(text) {
        Ok(span) if span > Duration::from_hours(24) => Err("must be at most 24h".into()),
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
    #[arg(long, value_name = "LOCATION")]
    pub journal: Option<String>,
    /// Fleets, separated by commas; on Kafka NAME=PARTITION [env: CHANCERY_FLEETS] [default: value of --fleet]
    #[arg(long, value_name = "NAMES")]
    pub fleets: Option<String>,
    /// Address at which other servers reach this server [env: CHANCERY_ADVERTISE]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Clusters with executors in the server: all, none, or names separated by commas [env: CHANCERY_EMBEDDED_EXECUTORS]
    #[arg(long, value_name = "NAMES")]
    pub embedded_executors: Option<String>,
    /// Confirm that the wall clock is right, although it is ahead of the journal by more than clock.max_gap
    #[arg(long)]
    pub accept_clock: bool,
    /// Continue from a copied data directory instead of the original, which must never be used again
    #[arg(long)]
    pub adopt_copy: bool,
    /// Filter of log lines [env: CHANCERY_LOG_FILTER]
    #[arg(long, value_name = "FILTER")]
    pub log_filter: Option<String>,
    /// Format of log lines: text or json [env: CHANCERY_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// If the events topic contains events that the journal has lost, write an event that names them, and continue
    #[arg(long)]
    pub correct_events: bool,
    /// Skip every unanswered inbox message up to the offset, and record that, before the inbox is read
    #[arg(long, value_name = "OFFSET")]
    pub skip_inbox: Option<u64>,
    /// Continue under a new lineage if records at the journal's end are missing, and report their positions
    #[arg(long)]
    pub accept_loss: bool,
}

/// Flags of a replay.
#[derive(Args, Debug, Default)]
pub struct ReplayArgs {
    /// Directory of a server, of which --fleet names the fleet, or of a journal [default: directory of the
    /// configuration]
    pub dir: Option<PathBuf>,
    /// Last record to fold: the one with this position, or the last one not later than this time, or than a duration ago,
    /// --until=-10m [default: the last record]
    #[arg(long, value_name = "POSITION|TIME|DURATION", value_parser = until)]
    pub until: Option<NamedMoment>,
    /// Then serve the folded state on this address, for reads only
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
}

/// Flags of the demonstration.
#[derive(Args, Debug, Default)]
pub struct DemoArgs {
    /// Directory for data, instead of a temporary directory
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Leave everything running and in place
    #[arg(long)]
    pub keep: bool,
}
