//! Arguments and flags of commands.

use std::path::PathBuf;
use std::time::Duration;

use chancery_events::lineage::NamedPosition;
use chancery_events::time::{Time, parse_span};
use clap::{Arg, ArgGroup, Args};

use super::console::EscapeKey;
use super::error::CliError;
use super::kind::{EntityKind, EntitySelector, EntitySelectorParser, FieldPath, FieldPathParser};
use super::selection::{KindSelection, KindSelectionParser, LabelSelector, SelectedEntities};

/// Entity that a command acts on.
#[derive(Args, Debug)]
pub struct EntityArgs {
    /// Kind of the entity, or KIND/NAME
    #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
    pub what: EntitySelector,
    /// Name of the entity, unless given in KIND/NAME
    pub name: Option<String>,
}

impl EntityArgs {
    /// Returns the name of the entity; a missing name is an error.
    pub(super) fn name(&self) -> Result<String, CliError> {
        self.what.one(self.name.as_ref())
    }
}

/// Describes [`EntityArgs`] of a command that takes only deployments.
pub(super) fn of_deployments(arg: Arg) -> Arg {
    of_kind(arg, "`deployment`, or deployment/PLAN/NAME", "PLAN/NAME of the deployment, unless given before")
}

/// Describes [`EntityArgs`] of a command that takes only disruptions.
pub(super) fn of_disruptions(arg: Arg) -> Arg {
    of_kind(arg, "`disruption`, or disruption/NODE/NAME", "NODE/NAME of the disruption, unless given before")
}

/// Describes [`EntityArgs`] of a command that takes only volumes.
pub(super) fn of_volumes(arg: Arg) -> Arg {
    of_kind(arg, "`volume`, or volume/NAME", "Name of the volume, unless given before")
}

fn of_kind(arg: Arg, what: &'static str, name: &'static str) -> Arg {
    match arg.get_id().as_str() {
        "what" => arg.help(what),
        "name" => arg.help(name),
        _ => arg,
    }
}

/// Node to drain.
#[derive(Args, Debug)]
pub struct DrainArgs {
    /// Name of the node
    pub node: String,
    /// Reason, shown with the disruption (default: none)
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
    /// Wait until the node is empty, and report the incarnations left
    #[arg(long, conflicts_with = "dry_run")]
    pub wait: bool,
    /// Show which replicas would move first, to which nodes, and record nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Maximum time to wait for an empty node
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_span, requires = "wait")]
    pub timeout: Duration,
}

/// Volume to copy.
#[derive(Args, Debug)]
pub struct SnapshotArgs {
    /// Volume to copy
    #[command(flatten)]
    pub which: EntityArgs,
    /// Name of the new volume
    #[arg(long = "as", value_name = "NAME")]
    pub new: String,
    /// Wait until the new volume is ready
    #[arg(long)]
    pub wait: bool,
    /// Maximum time to wait for the new volume
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_span, requires = "wait")]
    pub timeout: Duration,
}

/// Node that a command acts on.
#[derive(Args, Debug)]
pub struct NodeArgs {
    /// Name of the node
    pub node: String,
}

/// Disruption to schedule.
#[derive(Args, Debug)]
pub struct ScheduleArgs {
    /// Disruption to schedule
    #[command(flatten)]
    pub which: EntityArgs,
    /// Start as a time, 2026-11-21T22:00:00Z, or a duration from now, 2h (default: on approval)
    #[arg(long, value_name = "TIME|DURATION", value_parser = moment)]
    pub start: Option<Time>,
    /// Move the replicas of the node away
    #[arg(long)]
    pub drain: bool,
    /// Reason, shown with the disruption (default: none)
    #[arg(long, default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Entities to delete.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[command(group = ArgGroup::new("waits").args(["wait", "cascade"]).multiple(true))]
pub struct DeleteArgs {
    /// Kind of the entity, or KIND/NAME
    #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
    #[arg(required_unless_present = "files")]
    pub what: Option<EntitySelector>,
    /// Names of the entities, unless given in KIND/NAME; or more KIND/NAME after a KIND/NAME
    #[arg(value_name = "NAME|KIND/NAME")]
    pub names: Vec<String>,
    /// Delete the entities of these manifests, dependents first; repeatable
    #[arg(short, long = "filename", value_name = "FILE|DIR|URL|-", conflicts_with_all = ["what", "names"])]
    pub files: Vec<PathBuf>,
    /// Also remove dependents: move the replicas of a node away, delete the replicas of a plan
    #[arg(long)]
    pub cascade: bool,
    /// Do not ask for confirmation, which manifests of more than one entity need
    #[arg(short, long)]
    pub yes: bool,
    /// Wait until the entities are deleted
    #[arg(long, conflicts_with_all = ["files", "dry_run"])]
    pub wait: bool,
    /// Show what would be deleted and which approvals it requires, and record nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Maximum time to wait, with --wait, or for dependents with -f and --cascade
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_span, requires = "waits")]
    pub timeout: Duration,
}

/// Replica to stop.
#[derive(Args, Debug)]
pub struct StopArgs {
    /// Name of the replica
    pub replica: String,
    /// Wait until the replica is stopped
    #[arg(long)]
    pub wait: bool,
    /// Maximum time to wait for the end of the replica
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_span, requires = "wait")]
    pub timeout: Duration,
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

/// Entities to list or show.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// Kinds of the entities, or KIND/NAME; `all` for clusters, nodes, plans, deployments, replicas and volumes
    #[arg(value_name = "KIND[,KIND...]|KIND/NAME", value_parser = KindSelectionParser, hide_possible_values = true)]
    pub what: KindSelection,
    /// Names or ids of entities, PLAN/NAME for a deployment; or more KIND/NAME after a KIND/NAME (default: all
    /// entities)
    #[arg(value_name = "NAME|KIND/NAME")]
    pub names: Vec<String>,
    /// Show only entities with this value, as in node=node-1; each kind has its own filters; repeatable
    #[arg(long = "filter", value_name = "NAME=VALUE", value_parser = pair)]
    pub filters: Vec<(String, String)>,
    /// Show only nodes or plans with these labels: KEY=VALUE, KEY!=VALUE, KEY or !KEY, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS", default_value = "", hide_default_value = true, value_parser = labels)]
    pub selector: LabelSelector,
    /// Maximum number of entities
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// Show all entities, without a limit
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Show tables and csv without their heads
    #[arg(long)]
    pub no_headers: bool,
    /// Sort by a column, as in NODE, or by a JSON path, as in .node (default: by name); lines of --watch after the first
    /// rows follow their changes
    #[arg(long, value_name = "COLUMN|JSONPATH")]
    pub sort_by: Option<String>,
    /// Show each change when it happens: as a live table on a terminal, otherwise as lines
    #[arg(short, long, conflicts_with = "limit")]
    pub watch: bool,
    /// Show the state after a position, 120, at a time, 2026-11-21T09:00:00Z, or a duration ago, --as-of=-10m
    /// (default: the current state)
    #[arg(long, value_name = "POSITION|TIME|DURATION", value_parser = as_of, allow_hyphen_values = true, conflicts_with = "watch")]
    pub as_of: Option<String>,
}

/// Manifests or moments to compare.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// Earlier moment: a position, 120, a time, 2026-11-21T09:00:00Z, or a duration ago, "10m ago"
    #[arg(value_name = "START", value_parser = as_of, allow_hyphen_values = true, required_unless_present = "files")]
    pub from: Option<String>,
    /// Compare these manifests with the current state: what `apply` would create, change or refuse; repeatable
    #[arg(short, long = "filename", value_name = "FILE|DIR|URL|-", conflicts_with_all = ["from", "to", "kinds", "filters"])]
    pub files: Vec<PathBuf>,
    /// Later moment, in the same form (default: the last record)
    #[arg(value_name = "END", value_parser = as_of, allow_hyphen_values = true)]
    pub to: Option<String>,
    /// Compare only entities of this kind; repeatable
    #[arg(short, long = "kind", value_name = "KIND", value_parser = EntitySelectorParser, hide_possible_values = true)]
    pub kinds: Vec<EntitySelector>,
    /// Compare only entities that have this value at either moment, as in plan=web with --kind replica; repeatable
    #[arg(long = "filter", value_name = "NAME=VALUE", value_parser = pair)]
    pub filters: Vec<(String, String)>,
}

/// Value to explain.
#[derive(Args, Debug)]
pub struct WhyArgs {
    /// Kind of the entity, or KIND/NAME, of which to explain a field or the last change
    #[arg(value_name = "KIND[/NAME]", value_parser = EntitySelectorParser, hide_possible_values = true)]
    pub what: EntitySelector,
    /// Name of the entity, unless given in KIND/NAME; then the field of its row to explain, with its expected value as in
    /// node=node-2 (default: the last change of the entity)
    #[arg(value_names = ["NAME", "FIELD[=VALUE]"], num_args = 0..=2)]
    pub words: Vec<String>,
    /// Also compute again why the node was chosen, and why others were not; this is not recorded
    #[arg(long)]
    pub recompute: bool,
    /// Explain the value after a position, 120, at a time, 2026-11-21T09:00:00Z, or a duration ago, --as-of=-10m
    /// (default: the current value)
    #[arg(long, value_name = "POSITION|TIME|DURATION", value_parser = as_of, allow_hyphen_values = true)]
    pub as_of: Option<String>,
}

/// Field, and its expected value, if any.
type ExplainedField = (String, Option<String>);

impl WhyArgs {
    /// Name of the entity, and the field to explain, if one is named.
    pub(super) fn named(&self) -> Result<(String, Option<ExplainedField>), CliError> {
        let (name, rest) = match (self.what.name(None)?, self.words.split_first()) {
            (None, Some((_, rest))) => (self.what.one(self.words.first())?, rest),
            _ => (self.what.one(None)?, self.words.as_slice()),
        };
        let [text] = rest else {
            let Some(second) = rest.get(1) else { return Ok((name, None)) };
            return Err(CliError::usage(format!("invalid argument {second:?}: one field is explained")));
        };
        let (field, value) = match text.split_once('=') {
            Some((field, value)) => (field, Some(value.to_owned())),
            None => (text.as_str(), None),
        };
        if field.is_empty() {
            return Err(CliError::usage("invalid field: must be FIELD or FIELD=VALUE, as in node=node-2"));
        }
        Ok((name, Some((field.to_owned(), value))))
    }
}

impl GetArgs {
    /// Selected entities of each kind. A name with filters or labels is an error.
    pub(super) fn selected(&self) -> Result<Vec<SelectedEntities>, CliError> {
        let selected = self.what.entities(&self.names)?;
        let has_names = selected.iter().any(|of| !of.names.is_empty());
        if has_names && (!self.filters.is_empty() || !self.selector.is_empty() || self.all) {
            return Err(CliError::usage(
                "invalid flags --filter, -l and --all: must not be used with a name",
            ));
        }
        selected.iter().try_for_each(|of| self.selector.check(of.kind))?;
        Ok(selected)
    }

    /// Kind to watch, and the name of the entity if only one is watched.
    pub(super) fn watched(&self) -> Result<(EntityKind, Option<String>), CliError> {
        match self.selected()?.as_slice() {
            [SelectedEntities { kind, names }] if names.len() < 2 => Ok((*kind, names.first().cloned())),
            _ => Err(CliError::usage("invalid flag --watch: must be used with one kind, or with one entity")),
        }
    }
}

/// Operations, requests or a disruption to decide.
#[derive(Args, Debug, Default)]
pub struct OperationArgs {
    /// Ids of operations, request/ID, or disruption NODE/NAME (default: choose from a list)
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Select only the pending operations of this plan
    #[arg(long, value_name = "PLAN", conflicts_with = "ids")]
    pub plan: Option<String>,
    /// Select only the pending operation of this replica
    #[arg(long, value_name = "REPLICA", conflicts_with = "ids")]
    pub replica: Option<String>,
    /// Take all selected operations, without confirmation (default selection: all that are pending)
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
    /// Ask for no confirmation; without ids, as --all
    #[arg(short, long)]
    pub yes: bool,
}

impl OperationArgs {
    /// Whether all selected operations are taken.
    pub(super) const fn takes_all(&self) -> bool {
        self.all || (self.yes && self.ids.is_empty())
    }
}

/// Events to show.
#[derive(Args, Debug)]
pub struct EventsArgs {
    /// Show events from this position on: a number, or POSITION.LINEAGE as returned by a server
    #[arg(long, value_name = "POSITION", default_value = "0")]
    pub from: NamedPosition,
    /// Continue with new events
    #[arg(short, long)]
    pub follow: bool,
    /// Show only events about this entity, as in replica/web-7f3k
    #[arg(long, value_name = "KIND/NAME")]
    pub subject: Option<String>,
    /// Show only events of these types, as in replica.created.v1
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<String>,
}

/// Output to show.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct LogsArgs {
    /// Name of a replica, id of an incarnation, or KIND/NAME of either
    #[arg(value_name = "NAME|KIND/NAME")]
    pub of: String,
    /// Name of the payload (default: the only payload)
    #[arg(long)]
    pub payload: Option<String>,
    /// Index of the process in its payload, from 0
    #[arg(long, value_name = "NUMBER")]
    pub process: Option<u16>,
    /// Show only standard output, without marks (default: both, marked `out |` and `err |`)
    #[arg(long)]
    pub stdout: bool,
    /// Show only standard error, without marks
    #[arg(long)]
    pub stderr: bool,
    /// Continue with new output
    #[arg(short, long)]
    pub follow: bool,
    /// Show the previous incarnation of the replica
    #[arg(long)]
    pub previous: bool,
    /// Maximum number of last lines of each output (default: what fits in 1 MiB)
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u64>,
    /// Show output since a duration ago, 5m, or a time, 2026-11-21T09:00:00Z; up to 10s more are shown
    #[arg(long, value_name = "DURATION|TIME")]
    pub since: Option<String>,
}

/// Console to attach to.
#[derive(Args, Debug)]
pub struct ConsoleArgs {
    /// Name of the replica
    pub replica: String,
    /// Payload whose guest has the console (default: the only payload)
    #[arg(long, value_name = "NAME")]
    pub payload: Option<String>,
    /// Show the output alone: the guest receives nothing, and another client can write
    #[arg(long)]
    pub read_only: bool,
    /// Key that detaches, as in ^] for Ctrl-], or none
    #[arg(long, value_name = "KEY", default_value = "^]")]
    pub escape: EscapeKey,
}

/// Condition to wait for.
#[derive(Args, Debug)]
pub struct WaitArgs {
    /// KIND/NAME of the entity, as in replica/web-7f3k or deployment/web/deployment-1
    #[arg(value_name = "KIND/NAME")]
    pub of: String,
    /// Value that a field must have, as in phase=running or replicas.running=3; or deleted
    #[arg(long = "for", value_name = "FIELD=VALUE|deleted")]
    pub until: String,
    /// Maximum time to wait
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_span)]
    pub timeout: Duration,
}

/// Reads a time, or a duration from now.
fn moment(text: &str) -> Result<Time, String> {
    if let Ok(span) = parse_span(text) {
        return Ok(Time::from_micros(chrono::Utc::now().timestamp_micros()) + span);
    }
    text.parse().map_err(|_| {
        "invalid time: must be as in 2026-11-21T22:00:00Z, or a duration from now as in 2h".into()
    })
}

/// Reads a duration before now, as in `-10m` or `10m ago`; `None` if the text has another form.
pub(super) fn ago(text: &str) -> Option<Time> {
    let span = text.strip_prefix('-').or_else(|| text.strip_suffix("ago"))?;
    let span = parse_span(span.trim()).ok()?;
    Some(Time::from_micros(chrono::Utc::now().timestamp_micros()).before(span))
}

/// Time from the start of a second to its last microsecond.
const LAST_OF_SECOND: Duration = Duration::from_micros(999_999);

/// Reads a position, a time, or a duration before now, which becomes a time.
pub fn as_of(text: &str) -> Result<String, String> {
    if let Some(time) = ago(text) {
        return Ok(time.to_string());
    }
    if text.parse::<NamedPosition>().is_ok() {
        return Ok(text.to_owned());
    }
    if let Ok(time) = text.parse::<Time>() {
        // Tables show whole seconds, so that a whole second means its end.
        let is_whole = !text.contains('.');
        return Ok((if is_whole { time + LAST_OF_SECOND } else { time }).to_string());
    }
    Err("invalid moment: must be a position as in 120, a time as in 2026-11-21T09:00:00Z, or a duration before now \
         as in -10m or \"10m ago\""
        .into())
}

/// Reads labels; an empty text selects all.
fn labels(text: &str) -> Result<LabelSelector, String> {
    if text.is_empty() { Ok(LabelSelector::default()) } else { text.parse() }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("invalid filter: must be NAME=VALUE, as in state=running".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_position_a_time_or_a_duration_before_now() {
        for kept in ["120", "120.1f3a5c7e9b2d4f60", "2026-11-21T09:00:00.250000Z"] {
            assert_eq!(as_of(kept).as_deref(), Ok(kept));
        }
        assert_eq!(as_of("2026-11-21T10:00:00+01:00").as_deref(), Ok("2026-11-21T09:00:00.999999Z"));
        let now = || Time::from_micros(chrono::Utc::now().timestamp_micros());
        for relative in ["-10m", "10m ago", "600sago"] {
            let before = now();
            let time: Time = as_of(relative).expect(relative).parse().expect("a time");
            let span = Duration::from_mins(10);
            assert!((before.before(span)..=now().before(span)).contains(&time), "{relative}: {time}");
        }
        for wrong in ["10m", "-", "ago", "-10", "- ago", "soon", "-10m ago"] {
            assert!(as_of(wrong).is_err(), "{wrong}");
        }
    }
}
