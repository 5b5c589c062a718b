//! Retired names of the wire do not occur in their places, types of events have their form, and no operation id ends
//! in a digit.
//!
//! By review: titles of problems, and the column `STATE` where it shows an activity.

use crate::source::{RuleViolation, SourceFile, SourceToken, TokenKind, group_end, passages, product_code};

/// Place in which a name is retired. Owners are types of events and names of schemas; `*Row` has all rows.
enum WirePlace {
    /// Types of events: in file names of schemas and samples, schemas, literals, comments and Markdown.
    EventType,
    /// Property of schemas.
    Field(&'static [&'static str]),
    /// Value in schemas.
    Value(&'static [&'static str]),
    /// Query parameter, operation id or code of a problem in the OpenAPI description.
    OpenApi(&'static str),
    /// Text in the OpenAPI description, literals, comments and Markdown.
    Anywhere,
    /// Literal in files whose paths start so.
    Literal(&'static str),
    /// Field, or variant with fields, in files whose paths start so.
    Declared(&'static str),
    /// Setting: a literal of the register, a row of the reference, and its environment variable.
    Setting,
    /// Metric: a literal in `metrics.rs`, and its name with the prefix.
    Metric,
}

use WirePlace::{Anywhere, Declared, EventType, Field, Literal, Metric, OpenApi, Setting, Value};

const PROTOCOL: &str = "events/src/protocol";
const COLUMNS: &str = "cli/src/";
/// Columns of lists; `CPU` is also a type of capability.
const LISTS: &str = "cli/src/columns.rs";
const COMMANDS: &str = "cli/src/args";
const PROBLEMS: &str = "api/src/problem.rs";
const RESERVED: &[&str] = &["incarnation.reserved", "IncarnationRow"];
const ENDED: &[&str] = &["incarnation.ended"];
const PLAN_SPEC: &[&str] = &["PlanSpec"];
const AFFINITY: &[&str] = &["Affinity", "AffinityRule"];
const STRATEGY: &[&str] = &["Strategy", "DeploymentStrategy"];
const WINDOW: &[&str] = &["Window", "ApprovalWindow"];
const ORPHAN: &[&str] = &["object.judged", "object.reported", "orphan.resolved", "orphan.reported"];
const REPLICA_ROW: &[&str] = &["ReplicaRow"];
const ENTRY: &[&str] = &["Entry", "HistoryEntry"];
const BACKOFF: &[&str] = &["Again", "RestartBackoff"];
const SAW: &[&str] = &["Saw", "ObservedState"];
const COMPANY: &[&str] = &["Company", "AffinityKind"];
const EVICT: &[&str] = &["Evict", "DisruptionAction"];
const BEGINS: &[&str] = &["Begins", "ApprovalStart"];
const SESSION_END: &[&str] = &["SessionEnd", "SessionWord", "SessionStatus"];
const HOPE: &[&str] = &["Hope", "RetryClass"];

/// Place, retired name, and its replacement.
const RETIRED: &[(WirePlace, &str, &str)] = &[
    (EventType, "session.hello", "session.requested"),
    (EventType, "session.over", "session.ended"),
    (EventType, "object.reported", "orphan.reported"),
    (EventType, "object.judged", "orphan.resolved"),
    (EventType, "entity.parked", "entity.quarantined"),
    (EventType, "inbox.refused", "inbox.message_refused"),
    (EventType, "node.moved", "node.state_changed"),
    (EventType, "plan.waiting", "plan.unschedulable"),
    (EventType, "plan.removing", "plan.deletion_started"),
    (EventType, "deployment.ending", "deployment.halted"),
    (EventType, "deployment.withdraw", "deployment.rollback"),
    (EventType, "replica.assigned", "replica.deployment_changed"),
    (EventType, "operation.opened", "operation.created"),
    (EventType, "operation.begun", "operation.started"),
    (EventType, "incarnation.begun", "incarnation.start_requested"),
    (EventType, "incarnation.commanded", "incarnation.stop_requested"),
    (EventType, "incarnation.ensured", "incarnation.started"),
    (EventType, "incarnation.status", "incarnation.processes_changed"),
    (EventType, "command.failed", "incarnation.command_failed"),
    (EventType, "volume.failed", "volume.command_failed"),
    (EventType, "volume.removing", "volume.deletion_started"),
    (EventType, "volume.destroying", "volume.destroy_requested"),
    (Field(RESERVED), "strained", "affinity_violated"),
    (Field(RESERVED), "follows", "starts_after"),
    (Field(RESERVED), "amounts", "resources"),
    (Field(RESERVED), "volumes", "reserved_storage"),
    (Field(ENDED), "displaces", "reschedules"),
    (Field(ENDED), "again", "restart_backoff"),
    (Field(BACKOFF), "at", "not_before"),
    (Field(BACKOFF), "row", "consecutive"),
    (Field(&["incarnation.commanded", "incarnation.stop_requested"]), "then", "end"),
    (Field(&["deployment.ending", "deployment.halted"]), "why", "end"),
    (Field(&["node.moved", "node.state_changed"]), "to", "state"),
    (Field(&["*"]), "by", "requested_by, approved_by, rejected_by"),
    (Field(&["operation.approved"]), "begins", "start"),
    (Field(ORPHAN), "judgement", "resolution"),
    (Field(ORPHAN), "incarnation", "object"),
    (Field(&["Report"]), "saw", "observed"),
    (Field(SAW), "hope", "retry"),
    (Field(&["SessionRow", "session.hello", "session.requested", "session.opened"]), "scope", "store"),
    (Field(&["/v1/fleets/{fleet}/intents"]), "expect", "expectedversion"),
    (Field(&["NodeSpec"]), "total", "resources"),
    (Field(PLAN_SPEC), "budget", "max_unavailable"),
    (Field(PLAN_SPEC), "cooldown", "restart_delay"),
    (Field(PLAN_SPEC), "update", "update_order"),
    (Field(AFFINITY), "nodes", "kind"),
    (Field(AFFINITY), "otherwise", "policy"),
    (Field(STRATEGY), "wave", "max_parallel"),
    (Field(STRATEGY), "pause", "delay"),
    (Field(&["DeploymentCreateV1", "deployment.create"]), "turn", "overlap"),
    (Field(&["DisruptionSpec", "DisruptionRow"]), "evict", "action"),
    (Field(&["Rule", "PolicyRule"]), "in_flight", "max_in_flight"),
    (Field(WINDOW), "from", "start"),
    (Field(WINDOW), "for", "duration"),
    (Field(WINDOW), "minutes", "duration"),
    (Field(REPLICA_ROW), "will", "desired"),
    (Field(REPLICA_ROW), "again", "next_restart"),
    (Field(REPLICA_ROW), "passive", "secondary"),
    (Field(&["OperationRow"]), "runs_by", "target_deployment"),
    (Field(&["PlanRow"]), "waiting", "unschedulable"),
    (Field(&["DeploymentRow"]), "set", "active_set"),
    (Field(&["VolumeRow"]), "removing", "deletion_requested_by"),
    (Field(&["CapabilityRow"]), "kind", "type"),
    (Field(&["*Row"]), "created", "created_at"),
    (Field(&["*Row"]), "changed", "updated_at"),
    (Field(ENTRY), "who", "initiator"),
    (Field(ENTRY), "because", "root_cause"),
    (Field(&["Problem", "ProblemBody"]), "see", "help"),
    (Value(COMPANY), "together", "affinity"),
    (Value(COMPANY), "apart", "anti_affinity"),
    (Value(&["Succession", "UpdateOrder"]), "beside", "start_first"),
    (Value(&["Restart", "RestartPolicy"]), "best_effort", "on_failure"),
    (Value(STRATEGY), "graceful", "blue_green"),
    (Field(STRATEGY), "graceful", "blue_green"),
    (Value(&["OnTimeout"]), "commit", "cut_over"),
    (Value(EVICT), "no", "none"),
    (Value(EVICT), "yes", "drain"),
    (Value(EVICT), "and_remove", "drain_and_delete"),
    (Value(BEGINS), "now", "immediate"),
    (Value(BEGINS), "later", "queued"),
    (Value(&["Judgement", "OrphanResolution"]), "quarantine", "leave"),
    (Value(SESSION_END), "lost", "expired"),
    (Value(SESSION_END), "removed", "cluster_deleted"),
    (Value(&["VolumeWord", "VolumeStatus"]), "ensuring", "creating"),
    (Value(SAW), "ensured", "started"),
    (Field(SAW), "ensured", "started"),
    (Value(HOPE), "retry", "retryable"),
    (Value(HOPE), "never", "permanent"),
    (Value(&["ProcessStatus"]), "online", "ready"),
    (Value(&["ProcessStatus"]), "initializing", "starting"),
    (Literal(PROBLEMS), "bad_transition", "invalid_transition"),
    (Literal(PROBLEMS), "bad_parameter", "invalid_parameter"),
    (Literal(PROBLEMS), "from_the_future", "timestamp_in_future"),
    (Literal(PROBLEMS), "expired", "intent_expired"),
    (Literal(PROBLEMS), "key_reused", "idempotency_key_reused"),
    (Literal(PROBLEMS), "no_decider", "no_leader"),
    (Literal(PROBLEMS), "behind", "position_not_applied"),
    (Literal(PROBLEMS), "no_such_route", "route_not_found"),
    (OpenApi("code"), "bad_transition", "invalid_transition"),
    (OpenApi("code"), "bad_parameter", "invalid_parameter"),
    (OpenApi("code"), "from_the_future", "timestamp_in_future"),
    (OpenApi("code"), "expired", "intent_expired"),
    (OpenApi("code"), "key_reused", "idempotency_key_reused"),
    (OpenApi("code"), "no_decider", "no_leader"),
    (OpenApi("code"), "behind", "position_not_applied"),
    (OpenApi("code"), "no_such_route", "route_not_found"),
    (Literal("events/src/record"), "begins", "starts"),
    (Declared(PROTOCOL), "attach", "connection"),
    (Declared(PROTOCOL), "life", "epoch"),
    (Declared(PROTOCOL), "scope", "store"),
    (Declared(PROTOCOL), "standing", "status"),
    (Declared(PROTOCOL), "again", "retry"),
    (Declared(PROTOCOL), "rest", "next_after"),
    (Declared(PROTOCOL), "beat", "sequence"),
    (Declared(PROTOCOL), "Level", "FullReport"),
    (Declared(PROTOCOL), "More", "InventoryRequest"),
    (Declared(PROTOCOL), "Accepted", "ReportsAccepted"),
    (Declared(PROTOCOL), "Forget", "Purge"),
    (Declared(PROTOCOL), "Judged", "OrphanResolved"),
    (Declared(PROTOCOL), "Beat", "HeartbeatAck"),
    (Declared(PROTOCOL), "Closed", "ConnectionClosed"),
    (Declared(PROTOCOL), "NewerElsewhere", "StaleDecider"),
    (Declared(PROTOCOL), "Open", "Pending"),
    (Declared(PROTOCOL), "Met", "Fulfilled"),
    (Anywhere, "/links", "/channels"),
    (Anywhere, "Chancery-Link", "Chancery-Channel"),
    (Anywhere, "/withdraw", "/rollback"),
    (OpenApi("name"), "will", "desired"),
    (OpenApi("operationId"), "get_*s", "get_*"),
    (OpenApi("operationId"), "history_of_*", "get_*_history"),
    (OpenApi("operationId"), "link", "open_channel"),
    (OpenApi("operationId"), "say", "send_messages"),
    (Anywhere, "chancery withdraw", "chancery rollback"),
    (Anywhere, "chancery disrupt", "chancery schedule"),
    (Anywhere, "chancery keeper", "chancery supervisor"),
    (Anywhere, "exec-when-told", "trampoline"),
    (Declared(COMMANDS), "Withdraw", "Rollback"),
    (Declared(COMMANDS), "Disrupt", "Schedule"),
    (Anywhere, "--on", "--node"),
    (Anywhere, "--evict", "--drain"),
    (Anywhere, "--copies", "--replication-factor"),
    (Declared(COMMANDS), "on", "node"),
    (Declared(COMMANDS), "evict", "drain"),
    (Literal(COLUMNS), "WILL", "DESIRED"),
    (Literal(COLUMNS), "AGAIN", "NEXT RESTART"),
    (Literal(COLUMNS), "OF", "OWNER"),
    (Literal(COLUMNS), "OTHER RUN", "SECONDARY"),
    (Literal(COLUMNS), "ASKED BY", "REQUESTED BY"),
    (Literal(COLUMNS), "RUNS BY", "TARGET DEPLOYMENT"),
    (Literal(COLUMNS), "RUNS", "INCARNATIONS"),
    (Literal(COLUMNS), "HOLDS", "RESOURCES"),
    (Literal(COLUMNS), "FOLLOWS", "STARTS AFTER"),
    (Literal(COLUMNS), "STRAINED", "AFFINITY VIOLATED"),
    (Literal(COLUMNS), "CHANGED", "UPDATED"),
    (Literal(COLUMNS), "EVICT", "ACTION"),
    (Literal(COLUMNS), "SET", "ACTIVE SET"),
    (Literal(COLUMNS), "IN FLIGHT", "MAX IN FLIGHT"),
    (Literal(LISTS), "CPU", "CPU FREE/TOTAL"),
    (Setting, "lease", "session_lease"),
    (Setting, "log", "log_filter"),
    (Setting, "executors", "embedded_executors"),
    (Setting, "cgroup", "cgroup_root"),
    (Setting, "sled_cache", "store_cache_bytes"),
    (Setting, "snapshot_events", "snapshot_interval_events"),
    (Setting, "limits.body", "limits.body_bytes"),
    (Setting, "limits.queue", "limits.decider_queue"),
    (Setting, "limits.request_time", "limits.request_timeout"),
    (Setting, "output.file_bytes", "output.max_file_bytes"),
    (Setting, "output.files", "output.max_files"),
    (Setting, "kafka.session", "kafka.session_timeout"),
    (Setting, "kafka.unsafe_topics", "kafka.allow_unsafe_topics"),
    (Setting, "kafka.events", "kafka.export_events"),
    (Setting, "kafka.client", "kafka.client_properties"),
    (Setting, "inbox.scope", "inbox.allowed_intents"),
    (Metric, "verdicts", "intent_verdicts"),
    (Metric, "http_request_seconds", "http_request_duration_seconds"),
    (Metric, "http_connections_turned_away", "http_connections_rejected"),
    (Metric, "journal_skipped", "journal_records_skipped"),
    (Metric, "applied_position", "read_model_position"),
    (Metric, "applied_lag", "read_model_lag_events"),
    (Metric, "decides", "is_leader"),
    (Metric, "decider_backlog", "decider_queue_length"),
    (Metric, "stream_followers", "open_streams"),
    (Metric, "executor_links", "executor_channels"),
    (Anywhere, "keeper.lock", "supervisor.lock"),
    (Anywhere, "keeper.sock", "supervisor.sock"),
    (Anywhere, "scope.json", "store.json"),
    (Anywhere, "CHANCERY_FOLDER", "CHANCERY_DIRECTORY"),
];

/// Verbs of intents.
const VERBS: &[&str] = &[
    "apply",
    "approve",
    "cancel",
    "complete",
    "create",
    "cut_over",
    "delete",
    "open",
    "pause",
    "promote",
    "raise",
    "rebalance",
    "reboot",
    "reject",
    "relocate",
    "restart",
    "resume",
    "rollback",
    "schedule",
    "set_activity",
    "set_state",
    "skip",
    "snapshot",
    "start",
    "stop",
];

/// States and irregular participles that types of facts and observations end in.
const STATES: &[&str] = &["cut_over", "lost", "ready", "running", "unschedulable"];

/// Retired names of the wire, types of events without their form, and operation ids that end in a digit.
pub(crate) fn wire(files: &[SourceFile]) -> Vec<RuleViolation> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| !file.has_tables()) {
        let mut occurrences = Vec::new();
        if file.is_schema() {
            schema_names(file, &mut occurrences);
        }
        if file.path.starts_with("schemas/") {
            occurrences.push((1, WireName::Text(file.path.clone())));
        }
        if file.is_rust() {
            rust_names(file, &mut occurrences);
        }
        occurrences.extend(wire_texts(file));
        for (line, name) in &occurrences {
            for (place, retired, new) in RETIRED {
                if is_in_place(file, place, retired, name) {
                    violations.push(file.violation(*line, "wire", format!("{retired}: use {new}")));
                }
            }
            violations.extend(shape(name).map(|text| file.violation(*line, "wire", text)));
        }
    }
    violations.sort();
    violations.dedup();
    violations
}

/// Occurrence of a name.
enum WireName {
    /// Owner and property of a schema.
    Field(String, String),
    /// Owner and value of a schema.
    Value(String, String),
    /// Key and value in the OpenAPI description.
    OpenApi(String, String),
    Literal(String),
    Declared(String),
    /// Any text.
    Text(String),
    /// Type of an intent, without version.
    Intent(String),
    /// Type of a fact or observation, without version.
    Fact(String),
}

fn is_in_place(file: &SourceFile, place: &WirePlace, retired: &str, name: &WireName) -> bool {
    match (place, name) {
        (Field(owners), WireName::Field(owner, name)) | (Value(owners), WireName::Value(owner, name)) => {
            name == retired && owners.iter().any(|pattern| matches(pattern, owner))
        }
        (OpenApi(key), WireName::OpenApi(found, value)) => found == key && matches(retired, value),
        (Literal(path), WireName::Literal(text)) => file.path.starts_with(path) && text == retired,
        (Declared(path), WireName::Declared(name)) => file.path.starts_with(path) && name == retired,
        (Setting, WireName::Literal(text)) => {
            file.path == "service/src/config/settings.rs" && text == retired
        }
        (Metric, WireName::Literal(text)) => file.path.starts_with("api/src/metrics") && text == retired,
        (EventType, WireName::Text(text)) => has_event_type(text, retired),
        (Anywhere, WireName::Text(text)) => has_word(text, retired),
        (Setting, WireName::Text(text)) if text.contains("CHANCERY_") => {
            has_word(text, &format!("CHANCERY_{}", retired.to_uppercase().replace('.', "_")))
        }
        (Setting, WireName::Text(text)) => {
            file.path == "docs/settings.md" && text.starts_with(&format!("| `{retired}` |"))
        }
        (Metric, WireName::Text(text)) if text.contains("chancery_") => {
            ["", "_total", "_bucket", "_sum", "_count"]
                .iter()
                .any(|end| has_word(text, &format!("chancery_{retired}{end}")))
        }
        _ => false,
    }
}

/// Whether `name` is the pattern, in which one `*` is any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => {
            name.len() >= pattern.len() - 1 && name.starts_with(start) && name.ends_with(end)
        }
        None => name == pattern,
    }
}

/// Whether `text` has `name` between characters that are no part of a name.
fn has_word(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(name).any(|(start, _)| {
        let is_start = !name.starts_with(is_part) || !text[..start].ends_with(is_part);
        is_start && !text[start + name.len()..].starts_with(is_part)
    })
}

/// Whether `text` has the type of event, perhaps with a prefix and a version.
fn has_event_type(text: &str, name: &str) -> bool {
    let versioned = format!("{name}.v");
    has_word(text, name)
        || text.match_indices(&versioned).any(|(start, _)| {
            text[start + versioned.len()..].starts_with(|c: char| c.is_ascii_digit())
                && !text[..start].ends_with(char::is_alphanumeric)
        })
}

/// Description of a type or an operation id without its form.
fn shape(name: &WireName) -> Option<String> {
    match name {
        WireName::Intent(name) if !VERBS.contains(&last_part(name)) => {
            Some(format!("{name} does not end in a verb"))
        }
        WireName::Fact(name) => {
            let last = last_part(name);
            (!last.ends_with("ed") && !STATES.contains(&last))
                .then(|| format!("{name} does not end in a past participle or a state"))
        }
        WireName::OpenApi(key, id) if key == "operationId" && id.ends_with(|c: char| c.is_ascii_digit()) => {
            Some(format!("operation id {id} ends in a digit"))
        }
        _ => None,
    }
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

/// Appends properties and values of a schema with their owners. The file has one name in a line, indented by its depth.
fn schema_names(file: &SourceFile, found: &mut Vec<(usize, WireName)>) {
    let stem = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
    let event = stem.rsplit_once(".v").map_or(stem, |(name, _)| name);
    let mut keys: Vec<&str> = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let depth = (line.len() - line.trim_start().len()) / 2;
        let line = line.trim().trim_end_matches(',');
        let (key, value) = match line.split_once("\": ") {
            Some((key, value)) => (key.trim_start_matches('"'), value.trim_matches('"')),
            None => ("", line.trim_matches('"')),
        };
        keys.truncate(depth.saturating_sub(1));
        let parent = keys.iter().rev().find(|key| !key.is_empty()).copied().unwrap_or_default();
        let named = keys.windows(2).rev().find(|pair| matches!(pair[0], "$defs" | "schemas"));
        let path = keys.iter().find(|key| key.starts_with('/')).copied();
        let owner = named.map(|pair| pair[1]).or(path).unwrap_or(event).to_owned();
        if keys.last() == Some(&"properties") && !key.is_empty() {
            found.push((index + 1, WireName::Field(owner, key.to_owned())));
        } else if key == "const" || (key.is_empty() && parent == "enum") {
            found.push((index + 1, WireName::Value(owner, value.to_owned())));
        }
        if event == "openapi" && matches!(key, "operationId" | "code" | "name") {
            found.push((index + 1, WireName::OpenApi(key.to_owned(), value.to_owned())));
        }
        keys.resize(depth.saturating_sub(1), "");
        keys.push(key);
    }
}

/// Appends literals, declared names and types of events of a Rust source.
fn rust_names(file: &SourceFile, found: &mut Vec<(usize, WireName)>) {
    let tokens = product_code(&file.text);
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Text => found.push((token.line, WireName::Literal(token.text.to_owned()))),
            TokenKind::Name => {
                let next = tokens.get(index + 1);
                let is_declared =
                    next.is_some_and(|next| [":", "{", "(", ","].iter().any(|sign| next.is(sign)));
                let is_path = tokens.get(index + 2).is_some_and(|colon| colon.is(":"))
                    && next.is_some_and(|colon| colon.is(":"));
                if is_declared && !is_path {
                    found.push((token.line, WireName::Declared(token.text.to_owned())));
                }
                found.extend(declared_types(&code_of_call(&tokens, index)));
            }
            _ => {}
        }
    }
}

/// Name and group of a macro call at `index`; empty if there is none.
fn code_of_call<'a>(tokens: &[SourceToken<'a>], index: usize) -> Vec<SourceToken<'a>> {
    let is_call = tokens.get(index + 1).is_some_and(|bang| bang.is("!"))
        && tokens.get(index + 2).is_some_and(|open| open.is("{"));
    if !is_call {
        return Vec::new();
    }
    tokens[index..group_end(tokens, index + 2)].to_vec()
}

/// Types of events in a call of a register.
fn declared_types(call: &[SourceToken<'_>]) -> Vec<(usize, WireName)> {
    let Some(register) = call.first().filter(|name| matches!(name.text, "intents" | "facts" | "bodies"))
    else {
        return Vec::new();
    };
    call.windows(2)
        .filter(|pair| pair[0].is("=") && pair[1].kind == TokenKind::Text)
        .filter_map(|pair| {
            let (name, _) = pair[1].text.rsplit_once(".v")?;
            let name = name.to_owned();
            let name = if register.is("intents") { WireName::Intent(name) } else { WireName::Fact(name) };
            Some((pair[1].line, name))
        })
        .collect()
}

/// Lines of passages, of Markdown and of schemas.
fn wire_texts(file: &SourceFile) -> Vec<(usize, WireName)> {
    let passages = if file.is_schema() { Vec::new() } else { passages(file) };
    let mut texts: Vec<_> = passages
        .iter()
        .flat_map(|passage| {
            passage.text.lines().enumerate().map(|(index, line)| (passage.line + index, line.to_owned()))
        })
        .collect();
    if file.is_schema() {
        texts.extend(file.text.lines().enumerate().map(|(index, line)| (index + 1, line.to_owned())));
    }
    texts.into_iter().map(|(line, text)| (line, WireName::Text(text))).collect()
}
