//! Page of a plan: its spec, its progress, and what waits for approval.

use chancery_events::resources::{show_bytes, show_cpu};
use chancery_events::spec::{FieldClass, OperationKind, Payload, PlanSpec};
use chancery_projector::rows::{
    DeploymentRow, IncarnationRow, OperationRow, OperationStatus, PlanRow, ReplicaRow,
};

use super::columns::{approver, asker, coordinates, count_of, list, short, span, strategy};
use super::process;
use super::table::{TextTable, add, one_line, plain};

/// Replica with its incarnations and operations.
pub(super) struct ReplicaSection {
    pub(super) replica: ReplicaRow,
    pub(super) incarnations: Vec<IncarnationRow>,
    pub(super) operations: Vec<OperationRow>,
}

/// Plan with its deployments and replicas.
pub(super) struct PlanPage<'a> {
    pub(super) plan: &'a PlanRow,
    pub(super) deployments: &'a [DeploymentRow],
    pub(super) members: &'a [ReplicaSection],
}

impl PlanPage<'_> {
    pub(super) fn text(&self) -> String {
        let sections = [
            self.head(),
            self.fields(
                FieldClass::Immediate,
                "Immediate fields (an edit takes effect immediately, for every later decision)",
            ),
            self.fields(
                FieldClass::Deployed,
                "Deployed fields (an edit takes effect with the next deployment)",
            ),
            self.all_payloads(),
            section("Deployments", self.deployments.len(), &self.deployments()),
            self.replicas_summary(),
            self.operations_summary(),
            self.waiting(),
            self.replicas(),
        ];
        sections.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
    }

    fn head(&self) -> String {
        let plan = self.plan;
        let mut text = format!("plan/{}\n", plan.name);
        let fields = [
            ("Activity", plan.activity.to_string()),
            ("Message", plan.message.clone()),
            ("Generation", plan.generation.to_string()),
            ("Row version", plan.version.to_string()),
            ("Spread", spread(plan)),
            ("Updated", short(plan.updated_at)),
        ];
        for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
            add(&mut text, format_args!("  {:<12} {}\n", format!("{name}:"), one_line(value)));
        }
        text
    }

    /// Formats every field of the class.
    fn fields(&self, class: FieldClass, title: &str) -> String {
        let mut text = format!("{title}\n");
        for (field, _) in PlanSpec::FIELDS.iter().filter(|(_, of)| *of == class) {
            let value = value(&self.plan.spec, field);
            add(&mut text, format_args!("  {:<16} {}\n", format!("{field}:"), one_line(&value)));
        }
        text
    }

    /// Formats the payloads: their resources, then their programs and readiness probes.
    fn all_payloads(&self) -> String {
        let payloads = &self.plan.spec.payloads;
        let mut text = section("Payloads", payloads.len(), &self.payloads());
        for payload in payloads {
            let none = || "none".to_owned();
            let run = Some(payload.run.as_ref().map_or_else(none, json));
            let ready = Some(payload.ready.as_ref().map_or_else(none, json));
            let (container, vm) = (payload.container.as_ref().map(json), payload.vm.as_ref().map(json));
            for (part, value) in [("run", run), ("container", container), ("vm", vm), ("ready", ready)] {
                if let Some(value) = value {
                    add(&mut text, format_args!("  {} {part}: {}\n", payload.name, one_line(&value)));
                }
            }
        }
        text
    }

    fn payloads(&self) -> TextTable {
        let mut rows = TextTable::new(["NAME", "PROCESSES", "CPU", "MEMORY", "DISK", "PORTS", "VOLUMES"]);
        for payload in &self.plan.spec.payloads {
            rows.add([
                payload.name.to_string(),
                payload.processes.to_string(),
                show_cpu(payload.resources.cpu),
                show_bytes(payload.resources.memory),
                show_bytes(payload.resources.disk),
                ports(payload),
                volumes(payload),
            ]);
        }
        rows
    }

    fn deployments(&self) -> TextTable {
        let heads = ["NAME", "COUNT", "STATE", "STRATEGY", "REQUESTED BY", "MESSAGE", "COORDINATES"];
        let mut rows = TextTable::new(heads);
        for row in self.deployments {
            rows.add([
                row.name.to_string(),
                row.count.to_string(),
                row.state.to_string(),
                strategy(row.strategy),
                row.requested_by.to_string(),
                row.message.clone(),
                coordinates(row),
            ]);
        }
        rows
    }

    /// Counts the replicas by phase. A replica that is neither running, failed nor stopped is pending.
    fn replicas_summary(&self) -> String {
        let count = |phase: &str| self.plan.replicas.get(phase).copied().unwrap_or(0);
        let (total, running, failed, stopped) =
            (count("total"), count("running"), count("failed"), count("stopped"));
        let pending = total.saturating_sub(running + failed + stopped);
        let mut rows = TextTable::new(["TOTAL", "RUNNING", "PENDING", "FAILED", "STOPPED"]);
        rows.add([total, running, pending, failed, stopped].map(|count| count.to_string()));
        format!("All replicas\n{}", rows.lines("  "))
    }

    fn operations_summary(&self) -> String {
        let heads = OperationStatus::ALL.iter().map(|state| state.word().replace('_', " ").to_uppercase());
        let heads: Vec<_> = std::iter::once("KIND".to_owned()).chain(heads).collect();
        let mut rows = TextTable::new(heads.iter().map(String::as_str));
        for kind in OperationKind::ALL {
            let states = self.plan.operations.get(kind.word());
            let count = |state: &OperationStatus| states.and_then(|states| states.get(state.word())).copied();
            let counts = OperationStatus::ALL.iter().map(|state| count(state).unwrap_or(0).to_string());
            rows.add(std::iter::once(kind.to_string()).chain(counts));
        }
        let mut text = format!("All operations\n{}", rows.lines("  "));
        if count_of(self.plan, "pending_approval") > 0 {
            add(&mut text, format_args!("  try: chancery approve --plan {} --all\n", self.plan.name));
        }
        text
    }

    /// Formats the reasons for which operations have no placement.
    fn waiting(&self) -> String {
        if self.plan.unschedulable.is_empty() {
            return String::new();
        }
        let mut rows = TextTable::new(["REASON", "NODES", "NODE NAMES"]);
        for unfit in &self.plan.unschedulable {
            let hidden = u64::from(unfit.count).saturating_sub(unfit.nodes.len() as u64);
            let more = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
            rows.add([
                unfit.reason.clone(),
                unfit.count.to_string(),
                format!("{}{more}", list(&unfit.nodes)),
            ]);
        }
        format!("Waiting for a placement\n{}", rows.lines("  "))
    }

    fn replicas(&self) -> String {
        let mut text = format!("Replicas ({})\n", self.members.len());
        for ReplicaSection { replica, incarnations, operations } in self.members {
            let message = one_line(&replica.message);
            let line = format!("{}  {}  by {}  {message}", replica.name, replica.phase, replica.deployment);
            add(&mut text, format_args!("  {}\n", line.trim_end()));
            for row in incarnations {
                text.push_str(&incarnation(replica, row));
            }
            for row in operations {
                text.push_str(&operation(row));
            }
        }
        text
    }
}

/// Formats a field of a plan in one line. A field without a format of its own is shown as JSON.
fn value(spec: &PlanSpec, field: &str) -> String {
    let or = |none: &str, value: Option<String>| value.unwrap_or_else(|| none.to_owned());
    let each = |values: Vec<String>| or("none", Some(values.join("; ")).filter(|text| !text.is_empty()));
    match field {
        "cluster" => or("any", spec.cluster.as_ref().map(ToString::to_string)),
        "zone" => or("any", spec.zone.as_ref().map(ToString::to_string)),
        "zones" => each(spec.zones.iter().map(ToString::to_string).collect()),
        "labels" => each(spec.labels.iter().map(|(key, value)| format!("{key}={value}")).collect()),
        "selectors" => each(spec.selectors.iter().map(|(key, value)| format!("{key}={value}")).collect()),
        "matchers" => each(
            spec.matchers
                .iter()
                .map(|of| format!("{} {} {}", of.kind, of.comparator, list(&of.names)))
                .collect(),
        ),
        "affinity" => each(
            spec.affinity
                .iter()
                .map(|of| format!("{} {} (policy {})", of.kind, of.group, of.policy))
                .collect(),
        ),
        "restart_delay" => span(spec.restart_delay),
        "timeouts" => {
            let of = spec.timeouts;
            format!("approval {}, start {}, stop {}", span(of.approval), span(of.start), span(of.stop))
        }
        "unready" => format!("{} after {}", spec.unready.action, span(spec.unready.after)),
        "approval" => {
            let by_kind = OperationKind::ALL.iter().map(|kind| format!("{kind} {}", spec.approval.of(*kind)));
            let same = OperationKind::ALL.iter().all(|kind| spec.approval.of(*kind) == spec.approval.create);
            if same { spec.approval.create.to_string() } else { each(by_kind.collect()) }
        }
        "payloads" => each(spec.payloads.iter().map(|payload| payload.name.to_string()).collect()),
        _ => serde_json::to_value(spec).map_or_else(|_| String::new(), |spec| plain(&spec[field])),
    }
}

/// Formats an incarnation: the active one, the secondary one (its replacement or predecessor), or a past one.
fn incarnation(replica: &ReplicaRow, row: &IncarnationRow) -> String {
    let secondary = replica.secondary.as_ref().map(|passive| passive.incarnation);
    let (word, lives) = match row.id {
        id if replica.incarnation == Some(id) => ("active", true),
        id if secondary == Some(id) => ("secondary", true),
        _ => ("past", false),
    };
    let affinity_violated =
        row.affinity_violated.as_ref().map(|what| format!("  ({what})")).unwrap_or_default();
    let line = format!(
        "incarnation {} on {}  {}  {word}  by {}{affinity_violated}  {}",
        row.id,
        row.node,
        row.state,
        row.deployment,
        one_line(&row.message)
    );
    let mut text = format!("    {}\n", line.trim_end());
    if lives {
        text.extend(row.processes.iter().map(|one| format!("      {}\n", process::line(one))));
    }
    text
}

fn operation(row: &OperationRow) -> String {
    let approved =
        row.approved_by.as_ref().map(|by| format!("  approved by {}", approver(by))).unwrap_or_default();
    let line = format!(
        "operation {} {}  requested by {}  {}{approved}  {}",
        row.id,
        row.kind,
        asker(row),
        row.state,
        one_line(&row.message)
    );
    format!("    {}\n", line.trim_end())
}

/// Formats the number of replicas in each update domain, and whether a move would make them more even.
fn spread(plan: &PlanRow) -> String {
    let domains = &plan.spread.domains;
    let counts = domains.iter().map(|(domain, count)| format!("{domain} {count}")).collect::<Vec<_>>();
    if counts.is_empty() { String::new() } else { format!("{}, {}", plan.spread.balance, counts.join(", ")) }
}

fn section(title: &str, count: usize, rows: &TextTable) -> String {
    if count == 0 { String::new() } else { format!("{title} ({count})\n{}", rows.lines("  ")) }
}

/// Formats a part as JSON in one line.
fn json<T: serde::Serialize>(part: &T) -> String {
    serde_json::to_string(part).unwrap_or_default()
}

fn ports(payload: &Payload) -> String {
    let all = payload.ports.iter().map(|port| format!("{}:{} {}", port.protocol, port.port, port.name));
    all.collect::<Vec<_>>().join(", ")
}

fn volumes(payload: &Payload) -> String {
    let claims = payload.volumes.iter();
    let all = claims.map(|one| format!("{} {} at {}", one.class, show_bytes(one.capacity), one.mount));
    all.collect::<Vec<_>>().join(", ")
}
