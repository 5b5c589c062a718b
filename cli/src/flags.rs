//! What commands are told: their arguments and flags.

use std::time::Duration;

use chancery_events::lineage::NamedPosition;
use chancery_events::time::{Time, parse_span};
use clap::Args;

use super::error::CliError;
use super::kind::{EntityKind, EntitySelector, EntitySelectorParser, FieldPath, FieldPathParser};

/// Which one.
#[derive(Args, Debug)]
pub struct EntityArgs {
    /// Its kind, or KIND/NAME
    #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
    pub what: EntitySelector,
    /// PLAN/NAME of a deployment, NODE/NAME of a disruption, if that is not in KIND/NAME
    pub name: Option<String>,
}

/// Which node to empty.
#[derive(Args, Debug)]
pub struct DrainArgs {
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
pub struct UndrainArgs {
    /// The node
    pub node: String,
}

/// What is planned to be done to a node.
#[derive(Args, Debug)]
pub struct ScheduleArgs {
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

/// Kind or field to explain.
#[derive(Args, Debug, Default)]
pub struct ExplainArgs {
    /// Kind, or path of a field below it, as in plan.spec.payloads.ports (default: list the kinds)
    #[arg(value_name = "KIND[.FIELD...]", value_parser = FieldPathParser, hide_possible_values = true)]
    pub path: Option<FieldPath>,
    /// Print only names and types, of all fields below
    #[arg(long, requires = "path")]
    pub recursive: bool,
}

/// What to list.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The kind, or KIND/NAME
    #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
    pub what: EntitySelector,
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

impl GetArgs {
    /// The kind.
    pub(super) fn kind(&self) -> EntityKind {
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
pub struct OperationArgs {
    /// Their ids; or request/ID, or disruption NODE/NAME
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
pub struct EventsArgs {
    /// Those from this position on: a number, or POSITION.LINEAGE as the server gave it
    #[arg(long, value_name = "POSITION", default_value = "0")]
    pub from: NamedPosition,
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
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct LogsArgs {
    /// A replica, the id of an incarnation, or KIND/NAME of one of them
    pub of: String,
    /// Which payload, if there are several
    #[arg(long)]
    pub payload: Option<String>,
    /// Which of its processes, from 0
    #[arg(long)]
    pub process: Option<u16>,
    /// Show only standard output, without marks (default: both, marked `out |` and `err |`)
    #[arg(long)]
    pub stdout: bool,
    /// Show only standard error, without marks
    #[arg(long)]
    pub stderr: bool,
    /// Continue as it writes
    #[arg(short, long)]
    pub follow: bool,
    /// Show the run before the present one of the replica
    #[arg(long)]
    pub previous: bool,
    /// Maximum number of last lines of each output (default: what fits in 1 MiB)
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u64>,
    /// Show what was written since: a duration as in 5m, or a time as in 2026-11-21T09:00:00Z; up to 10s more are shown
    #[arg(long, value_name = "DURATION|TIME")]
    pub since: Option<String>,
}

/// What to wait for.
#[derive(Args, Debug)]
pub struct WaitArgs {
    /// KIND/NAME, as in replica/web-7f3k or deployment/web/deployment-1
    pub of: String,
    /// A field and its value, or deleted: phase=running, state=completed, replicas.running=3
    #[arg(long = "for", value_name = "FIELD=VALUE|deleted")]
    pub until: String,
    /// For how long
    #[arg(long, default_value = "60s", value_parser = parse_span)]
    pub timeout: Duration,
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
