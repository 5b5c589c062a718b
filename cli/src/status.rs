//! `status`: a page about the fleet: whether it is well, what waits, and what failed last.

use std::collections::BTreeMap;

use chancery_events::spec::DisruptionState;
use chancery_events::text::counted;
use chancery_projector::rows::{ClusterRow, NodeRow, PlanRow};
use serde_json::{Value, json};

use super::client::{ApiClient, CommandIo};
use super::columns::{count_of, table, typed};
use super::context::OutputFormat;
use super::disruption;
use super::error::CliError;
use super::get::{json_text, list, yaml_text};
use super::kind::EntityKind;
use super::table::add;

/// Maximum number of rows of each section.
const MOST: usize = 10;
/// Maximum number of counted entities that are all read, so that the newest are shown.
const FEW: u64 = 1000;

/// Part of the page: entities of one kind that need attention.
struct StatusSection {
    title: &'static str,
    kind: EntityKind,
    items: Vec<Value>,
    /// Number of entities, of which the section shows some.
    count: usize,
    /// Command that helps with them.
    advice: &'static str,
}

/// Numbers of a fleet, and sections of what waits and what failed.
struct StatusOverview {
    /// Nodes by state.
    nodes: BTreeMap<String, u64>,
    /// Disruptions that are not completed.
    disruptions: u64,
    /// Clusters without an executor.
    disconnected: Vec<String>,
    clusters: usize,
    plans: usize,
    replicas: u64,
    running: u64,
    failed: u64,
    /// Operations that wait for an approval.
    pending_operations: u64,
    /// Approval requests and disruptions that wait for an approval.
    pending_others: u64,
    /// Operations that wait for a node.
    preparing: u64,
    sections: Vec<StatusSection>,
}

pub(super) fn run(io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let output = io.client.context.output(&[OutputFormat::Table, OutputFormat::Json, OutputFormat::Yaml])?;
    let summary = StatusOverview::read(io.client)?;
    match output {
        OutputFormat::Json => json_text(&summary.json(), io.out),
        OutputFormat::Yaml => yaml_text(&summary.json(), io.out),
        _ => Ok(io.out.write_all(summary.page()?.as_bytes())?),
    }
}

impl StatusOverview {
    fn read(client: &ApiClient<'_>) -> Result<StatusOverview, CliError> {
        let all = |kind| list(client, kind, &[], u64::MAX).map(|listed| listed.items);
        let mut summary = StatusOverview {
            nodes: BTreeMap::new(),
            disruptions: 0,
            disconnected: Vec::new(),
            clusters: 0,
            plans: 0,
            replicas: 0,
            running: 0,
            failed: 0,
            pending_operations: 0,
            pending_others: 0,
            preparing: 0,
            sections: Vec::new(),
        };
        for item in all(EntityKind::Cluster)? {
            let row: ClusterRow = typed(&item)?;
            summary.clusters += 1;
            if row.session.is_none() {
                summary.disconnected.push(row.name.to_string());
            }
        }
        summary.add_nodes(&all(EntityKind::Node)?)?;
        for item in all(EntityKind::Plan)? {
            let row: PlanRow = typed(&item)?;
            let count = |phase: &str| row.replicas.get(phase).copied().unwrap_or(0);
            summary.plans += 1;
            summary.replicas += count("total");
            summary.running += count("running");
            summary.failed += count("failed");
            summary.pending_operations += count_of(&row, "pending_approval");
            summary.preparing += count_of(&row, "preparing");
        }
        let sections: [(_, _, &[(&str, &str)], _); 6] = [
            ("Pending requests", EntityKind::Request, &[("state", "pending")], "chancery approve request/ID"),
            (
                "Operations pending approval",
                EntityKind::Operation,
                &[("state", "pending_approval")],
                "chancery approve",
            ),
            (
                "Operations without a node",
                EntityKind::Operation,
                &[("state", "preparing")],
                "chancery describe plan/NAME",
            ),
            (
                "Stalled deployments",
                EntityKind::Deployment,
                &[("stalled", "yes")],
                "chancery describe deployment/PLAN/NAME",
            ),
            (
                "Failed replicas",
                EntityKind::Replica,
                &[("phase", "failed")],
                "chancery describe replica/NAME",
            ),
            (
                "Failed deployments, the last ones first",
                EntityKind::Deployment,
                &[("state", "failed")],
                "chancery describe deployment/PLAN/NAME",
            ),
        ];
        for (title, kind, filters, advice) in sections {
            let filters: Vec<_> = filters.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            // Rows of plans have some counts; servers count no others.
            let counted = match kind {
                EntityKind::Operation if filters.iter().any(|(_, state)| state == "preparing") => {
                    Some(summary.preparing)
                }
                EntityKind::Operation => Some(summary.pending_operations),
                EntityKind::Replica => Some(summary.failed),
                _ => None,
            };
            if counted == Some(0) {
                continue;
            }
            // The newest of few, and some of many.
            let most = counted.filter(|count| *count > FEW).map_or(u64::MAX, |_| MOST as u64);
            let mut items = list(client, kind, &filters, most)?.items;
            items.sort_by_cached_key(|item| std::cmp::Reverse(item["position"].as_u64()));
            let count = counted.map_or(items.len(), |count| usize::try_from(count).unwrap_or(usize::MAX));
            if kind == EntityKind::Request {
                summary.pending_others += count as u64;
            }
            summary.add_section(StatusSection { title, kind, items, count, advice });
        }
        Ok(summary)
    }

    /// Adds nodes, and the disruptions in their rows.
    fn add_nodes(&mut self, nodes: &[Value]) -> Result<(), CliError> {
        let mut scheduled = Vec::new();
        for item in nodes {
            let row: NodeRow = typed(item)?;
            *self.nodes.entry(row.state.to_string()).or_default() += 1;
            let open = row.disruptions.iter().filter(|one| one.state != DisruptionState::Completed);
            self.disruptions += open.count() as u64;
            let disruptions = disruption::of_node(item)?;
            scheduled.extend(disruptions.into_iter().filter(|one| one["state"] == "scheduled"));
        }
        self.pending_others += scheduled.len() as u64;
        self.add_section(StatusSection {
            title: "Disruptions pending approval",
            kind: EntityKind::Disruption,
            count: scheduled.len(),
            items: scheduled,
            advice: "chancery approve disruption/NODE/NAME",
        });
        Ok(())
    }

    /// Adds a section with some of its entities, unless it has none.
    fn add_section(&mut self, mut section: StatusSection) {
        section.items.truncate(MOST);
        if section.count > 0 {
            self.sections.push(section);
        }
    }

    fn json(&self) -> Value {
        let sections = self.sections.iter().map(|section| {
            let StatusSection { title, kind, items, count, .. } = section;
            json!({ "title": title, "kind": kind.word(), "count": count, "items": items })
        });
        json!({
            "clusters": { "total": self.clusters, "without_executor": self.disconnected },
            "nodes": self.nodes,
            "open_disruptions": self.disruptions,
            "plans": self.plans,
            "replicas": { "total": self.replicas, "running": self.running },
            "pending_approvals": self.pending_operations + self.pending_others,
            "sections": sections.collect::<Vec<_>>(),
        })
    }

    fn page(&self) -> Result<String, CliError> {
        let mut text = String::new();
        let line = |text: &mut String, name: &str, value: &str| {
            add(text, format_args!("{:<14} {value}\n", format!("{name}:")));
        };
        let without = match self.disconnected.as_slice() {
            [] => String::new(),
            names => format!(", without executor: {}", names.join(", ")),
        };
        line(&mut text, "clusters", &format!("{}{without}", self.clusters));
        let total: u64 = self.nodes.values().sum();
        let states: Vec<_> = self.nodes.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let states = if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
        let disruptions = match self.disruptions {
            0 => String::new(),
            count => format!("; {}", counted(count, "open disruption")),
        };
        line(&mut text, "nodes", &format!("{total}{states}{disruptions}"));
        line(&mut text, "plans", &self.plans.to_string());
        line(&mut text, "replicas", &format!("{}/{} running", self.running, self.replicas));
        let pending = self.pending_operations + self.pending_others;
        line(&mut text, "approvals", &format!("{pending} pending"));
        for StatusSection { title, kind, items, count, advice } in &self.sections {
            let more = count.saturating_sub(items.len());
            add(&mut text, format_args!("\n{title}\n{}", table(*kind, items, false)?.lines("  ")));
            if more > 0 {
                add(&mut text, format_args!("  and {more} more\n"));
            }
            add(&mut text, format_args!("  try: {advice}\n"));
        }
        if self.sections.is_empty() {
            text.push_str("\nNothing waits, and nothing has failed.\n");
        }
        Ok(text)
    }
}
