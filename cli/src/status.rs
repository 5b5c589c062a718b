//! `status`: a page about the fleet: whether it is well, what waits, and what failed last.

use std::collections::BTreeMap;

use chancery_events::lifecycle::DeploymentStatus;
use chancery_events::spec::DisruptionState;
use chancery_events::text::counted;
use chancery_projector::rows::{ClusterRow, NodeRow, PlanRow};
use serde_json::{Value, json};

use super::client::{ApiClient, CommandIo};
use super::columns::{count_of, table, typed};
use super::context::OutputFormat;
use super::disruption;
use super::error::CliError;
use super::get::list;
use super::kind::EntityKind;
use super::table::{TextTable, add};

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

/// Section of the entities that a filter of the server selects.
struct ListedSection {
    title: &'static str,
    kind: EntityKind,
    filter: (&'static str, &'static str),
    advice: &'static str,
}

/// Sections of what waits for a person or for a node.
const WAITING: &[ListedSection] = &[
    ListedSection {
        title: "Pending requests",
        kind: EntityKind::Request,
        filter: ("state", "pending"),
        advice: "chancery approve request/ID",
    },
    ListedSection {
        title: "Operations pending approval",
        kind: EntityKind::Operation,
        filter: ("state", "pending_approval"),
        advice: "chancery approve",
    },
    ListedSection {
        title: "Operations without a node",
        kind: EntityKind::Operation,
        filter: ("state", "preparing"),
        advice: "chancery describe plan/PLAN",
    },
];

/// Sections of what makes no progress or has failed.
const FAILING: &[ListedSection] = &[
    ListedSection {
        title: "Stalled deployments",
        kind: EntityKind::Deployment,
        filter: ("stalled", "yes"),
        advice: "chancery describe deployment/PLAN/NAME",
    },
    ListedSection {
        title: "Failed replicas",
        kind: EntityKind::Replica,
        filter: ("phase", "failed"),
        advice: "chancery describe replica/NAME",
    },
];

/// Part of the message of a deployment whose canary is ready: it waits only for a person. The row has no field for this.
const AWAITS_PROMOTION: &str = "waits for the promotion of its canary";

/// Numbers of a fleet, and sections of what waits and what failed.
#[derive(Default)]
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
        OutputFormat::Table => Ok(io.out.write_all(summary.page()?.as_bytes())?),
        _ => output.value(&summary.json(), io.out),
    }
}

/// Reads the deployments whose canaries wait for promotion, and those that have failed, with one request.
fn read_deployments(client: &ApiClient<'_>) -> Result<(StatusSection, StatusSection), CliError> {
    let states = format!("{},{}", DeploymentStatus::InProgress, DeploymentStatus::Failed);
    let mut items = list(client, EntityKind::Deployment, &[("state", states)], u64::MAX)?.items;
    newest_first(&mut items);
    let failed = DeploymentStatus::Failed.word();
    let (failed, open): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item["state"] == failed);
    let canaries: Vec<_> = open.into_iter().filter(awaits_promotion).collect();
    let section = |title, items: Vec<Value>, advice| StatusSection {
        title,
        kind: EntityKind::Deployment,
        count: items.len(),
        items,
        advice,
    };
    Ok((
        section("Canaries to be promoted or rolled back", canaries, "chancery promote deployment/PLAN/NAME"),
        section("Failed deployments, the last ones first", failed, "chancery describe deployment/PLAN/NAME"),
    ))
}

/// Whether a deployment in progress waits for a person to promote its canary.
fn awaits_promotion(deployment: &Value) -> bool {
    deployment["message"].as_str().is_some_and(|message| message.contains(AWAITS_PROMOTION))
}

fn newest_first(items: &mut [Value]) {
    items.sort_by_cached_key(|item| std::cmp::Reverse(item["position"].as_u64()));
}

/// Returns the table of a section. That of operations has their plans, which the advice below it names.
fn section_table(kind: EntityKind, items: &[Value]) -> Result<TextTable, CliError> {
    let plain = table(kind, items, false)?;
    if kind != EntityKind::Operation {
        return Ok(plain);
    }
    let at = plain.heads().position(|head| head == "REPLICA").unwrap_or(0);
    let plans = items.iter().map(|item| item["plan"].as_str().unwrap_or_default().to_owned());
    Ok(plain.with_column(at, "PLAN", plans))
}

impl StatusOverview {
    fn read(client: &ApiClient<'_>) -> Result<StatusOverview, CliError> {
        let all = |kind| list(client, kind, &[], u64::MAX).map(|listed| listed.items);
        let mut summary = StatusOverview::default();
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
        for listed in WAITING {
            summary.add_listed(client, listed)?;
        }
        let (canaries, failed) = read_deployments(client)?;
        summary.add_section(canaries);
        for listed in FAILING {
            summary.add_listed(client, listed)?;
        }
        summary.add_section(failed);
        Ok(summary)
    }

    /// Reads a section that one filter selects, and adds it.
    fn add_listed(&mut self, client: &ApiClient<'_>, listed: &ListedSection) -> Result<(), CliError> {
        let ListedSection { title, kind, filter: (name, value), advice } = *listed;
        // Rows of plans have some counts; servers count no others.
        let counted = match kind {
            EntityKind::Operation if value == "preparing" => Some(self.preparing),
            EntityKind::Operation => Some(self.pending_operations),
            EntityKind::Replica => Some(self.failed),
            _ => None,
        };
        if counted == Some(0) {
            return Ok(());
        }
        // The newest of few, and some of many.
        let most = counted.filter(|count| *count > FEW).map_or(u64::MAX, |_| MOST as u64);
        let mut items = list(client, kind, &[(name, value.to_owned())], most)?.items;
        newest_first(&mut items);
        let count = counted.map_or(items.len(), |count| usize::try_from(count).unwrap_or(usize::MAX));
        if kind == EntityKind::Request {
            self.pending_others += count as u64;
        }
        self.add_section(StatusSection { title, kind, items, count, advice });
        Ok(())
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
            add(&mut text, format_args!("\n{title}\n{}", section_table(*kind, items)?.lines("  ")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake::{FakeAction, context, serve};

    fn page(items: &Value) -> FakeAction {
        let page = json!({ "items": items, "next_page_token": null, "position": 1 });
        FakeAction::Respond(200, page.to_string())
    }

    fn deployment(name: &str, state: &str, message: &str) -> Value {
        json!({
            "plan": "web", "name": name, "generation": 1, "count": 3, "coordinates": {}, "state": state, "message": message,
            "strategy": { "canary": { "count": 1 } }, "requested_by": "ann", "active_set": "old",
            "progress_deadline": 600_000, "auto_rollback": false, "rollback": null, "last_progress_at": null,
            "stalled_at": null, "version": 3, "position": 12, "created_at": "2026-11-21T09:00:00Z",
            "updated_at": "2026-11-21T09:00:00Z",
        })
    }

    /// Returns the page and the JSON of a fleet that has only these deployments, and the paths that were requested.
    fn shown(deployments: &Value) -> (String, Value, Vec<String>) {
        let none = || page(&json!([]));
        let (server, asked) = serve(vec![none(), none(), none(), none(), page(deployments), none()]);
        let context = context(server, None);
        let overview = StatusOverview::read(&ApiClient::new(&context)).expect("an overview");
        let asked = asked.try_iter().map(|request| request.line).collect();
        (overview.page().expect("a page"), overview.json(), asked)
    }

    #[test]
    fn a_canary_that_is_ready_waits_for_a_person_and_one_that_starts_does_not() {
        let ready = "1 of 3 ready in this version, 1 to be promoted or rolled back; waits for the promotion of its canary since \
                     2026-11-21T09:00:00Z; to end the wait: promote or roll back deployment web/web-2";
        let starts = "0 of 3 ready in this version, 1 to be promoted or rolled back; waits for operation x to complete";
        let (text, all, asked) = shown(&json!([
            deployment("web-2", "in_progress", ready),
            deployment("web-3", "in_progress", starts),
            deployment("web-1", "failed", "the probe failed"),
        ]));
        let canaries =
            text.find("\nCanaries to be promoted or rolled back\n  PLAN  NAME ").expect("canaries");
        let failed = text.find("\nFailed deployments, the last ones first\n").expect("failures");
        let section = &text[canaries..failed];
        assert!(section.contains("  web   web-2 ") && !section.contains("web-3"), "{text}");
        assert!(section.ends_with("  try: chancery promote deployment/PLAN/NAME\n"), "{text}");
        assert!(!text.contains("web-3") && text[failed..].contains("web-1"), "{text}");
        let section = &all["sections"][0];
        assert_eq!((&section["kind"], &section["count"]), (&json!("deployment"), &json!(1)), "{all}");
        assert_eq!(section["items"][0]["name"], "web-2", "{all}");
        assert!(asked[4].contains("/deployments?state=in_progress%2Cfailed&"), "{asked:?}");
        let (text, ..) = shown(&json!([deployment("web-3", "in_progress", starts)]));
        assert!(text.ends_with("\nNothing waits, and nothing has failed.\n"), "{text}");
    }

    #[test]
    fn operations_are_listed_with_their_plan() {
        let operation = json!({
            "id": "00000000-0000-8252-8001-b24adb924579", "replica": "web-0100", "plan": "shop", "kind": "create",
            "deployment": "d-1", "requested_by": null, "target_deployment": "d-1", "state": "preparing", "hash": null,
            "node": null, "incarnation": null, "approved_by": null, "message": "", "version": 1, "position": 3,
            "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:00Z",
        });
        let text = section_table(EntityKind::Operation, &[operation]).expect("a table").lines("");
        let mut lines = text.lines().map(|line| line.split_whitespace().take(4).collect::<Vec<_>>());
        assert_eq!(lines.next().expect("heads"), ["ID", "KIND", "PLAN", "REPLICA"]);
        assert_eq!(lines.next().expect("a row"), ["00000000-0000-8252", "create", "shop", "web-0100"]);
    }
}
