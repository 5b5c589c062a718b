//! Rows of plans and deployments.

use std::collections::BTreeMap;

use chancery_events::fact::{DeploymentEnd, UnschedulableReason};
use chancery_events::name::{Namespace, PlanName, ServiceName};
use chancery_events::spec::{BalancePolicy, ClusterActivity, DeploymentStrategy, OperationKind};
use chancery_events::text::counted;
use chancery_machine::deployment::{self, waits_for};
use chancery_machine::fleet::{DeploymentKey, FleetState};
use chancery_machine::index::PlanIndex;
use chancery_machine::state::{Deployment, DeploymentState, Plan};

use super::{row, waits_because};
use crate::counts::{CountSource, OPEN, PlanCounts};
use crate::filter::{AccessPath, FilterDef, RowFilter, by_name, by_word};
use crate::index::{IndexEntries, RowIndex};
use crate::kind::{ReadModelRow, RowKind};
use crate::rows::{
    DeploymentRow, DeploymentStatus, OperationStatus, PhaseStatus, PlanRow, SetWord, SpreadRow,
};
use crate::why::FieldFacts;

impl ReadModelRow for PlanRow {
    const FILTERS: &'static [FilterDef<PlanRow>] = &[
        by_word!("activity", ClusterActivity::ALL, |row| row.activity),
        by_name!("namespace", Namespace, |row, it| row.spec.namespace == *it),
        by_name!("service", ServiceName, |row, it| row.spec.service == *it),
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (&["spec", "generation"], &["plan.applied"]),
        (&["activity"], &["plan.applied", "plan.activity_changed"]),
        (&["current"], &["deployment.started", "deployment.ended"]),
        (&["next"], &["deployment.created", "deployment.started", "deployment.ended"]),
    ];

    fn of(fleet: &FleetState, counts: &dyn CountSource, name: &PlanName) -> Option<PlanRow> {
        let plan = fleet.plans().get(name)?;
        let of = counts.counts().plan(name);
        let is_waiting = waits(fleet, name);
        Some(row!(PlanRow, plan.meta, {
            name: plan.name.clone(),
            generation: plan.generation,
            activity: plan.activity,
            spec: (**plan.specs.newest()).clone(),
            current: plan.current.clone(),
            next: plan.next.clone(),
            replicas: replicas(of),
            operations: operations(plan, of),
            unschedulable: unschedulable(fleet, plan).to_vec(),
            spread: spread(fleet, plan),
            message: plan_message(fleet, plan, of, is_waiting),
        }))
    }
}

/// Whether an operation of the plan waits for a placement.
fn waits(fleet: &FleetState, plan: &PlanName) -> bool {
    fleet.index().plan_index(plan).is_some_and(|index| !index.unplaced.is_empty())
}

/// Returns why operations of the plan have no placement.
pub(crate) fn unschedulable<'a>(fleet: &FleetState, plan: &'a Plan) -> &'a [UnschedulableReason] {
    // Reasons stay in the state after a placement; they count only while an operation waits.
    if waits(fleet, &plan.name) { &plan.unschedulable } else { &[] }
}

fn spread(fleet: &FleetState, plan: &Plan) -> SpreadRow {
    SpreadRow {
        domains: fleet.index().plan_index(&plan.name).map(|index| index.spread.domains()).unwrap_or_default(),
        balance: plan.balance,
        rebalance_requested_by: plan.rebalance.as_ref().map(|rebalance| rebalance.requested_by.clone()),
    }
}

/// Returns the counts of all phases, and `total`.
fn replicas(of: &PlanCounts) -> BTreeMap<String, u64> {
    let phases = PhaseStatus::ALL.iter().map(|phase| (phase.word().to_owned(), of.in_phase(*phase)));
    phases.chain([("total".to_owned(), of.replicas())]).collect()
}

/// Returns counts by kind and state: of open operations now, and of all that have ended.
fn operations(plan: &Plan, of: &PlanCounts) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut all = BTreeMap::<String, BTreeMap<String, u64>>::new();
    for ((kind, outcome), count) in &plan.totals {
        all.entry(kind.word().to_owned()).or_default().insert(outcome.clone(), *count);
    }
    for kind in OperationKind::ALL {
        for state in OPEN {
            let count = of.open(*kind, state);
            if count > 0 {
                all.entry(kind.word().to_owned()).or_default().insert(state.word().to_owned(), count);
            }
        }
    }
    all
}

fn plan_message(fleet: &FleetState, plan: &Plan, of: &PlanCounts, is_waiting: bool) -> String {
    if let Some(detail) = &plan.quarantined {
        return format!("quarantined: {detail}");
    }
    if let Some(by) = &plan.deletion_requested_by {
        return format!("deletion requested by {by}: {} left", counted(of.replicas(), "replica"));
    }
    if is_waiting {
        return waits_because(&plan.unschedulable);
    }
    let find = |name| fleet.deployments().get(&(plan.name.clone(), name));
    if let Some(current) = plan.current.clone().and_then(find) {
        return format!("{}: {}", current.name, deployment_message(fleet, current, of));
    }
    let failed = of.in_phase(PhaseStatus::Failed);
    if failed > 0 {
        return format!("{failed} of {} failed", of.replicas());
    }
    match plan.deployments.last().cloned().and_then(find) {
        Some(last) if matches!(last.state, DeploymentState::Ended(DeploymentEnd::Failed { .. })) => {
            format!("{}: {}", last.name, deployment_message(fleet, last, of))
        }
        _ => spread_message(fleet, plan),
    }
}

fn spread_message(fleet: &FleetState, plan: &Plan) -> String {
    let SpreadRow { domains, balance, rebalance_requested_by } = spread(fleet, plan);
    let counts = domains.values().map(ToString::to_string).collect::<Vec<_>>().join("/");
    match (rebalance_requested_by, balance) {
        (Some(by), _) => {
            format!("rebalance requested by {by} in progress: spread {counts} over update domains")
        }
        (None, BalancePolicy::Uneven) => {
            format!("spread {counts} over update domains: rebalance would even it out")
        }
        (None, BalancePolicy::Even) => String::new(),
    }
}

impl ReadModelRow for DeploymentRow {
    const FILTERS: &'static [FilterDef<DeploymentRow>] = &[
        by_name!("plan", PlanName, |row, plan| row.plan == *plan, |plan| {
            let mut prefix = vec![RowKind::Deployments as u8];
            prefix.extend_from_slice(plan.as_str().as_bytes());
            prefix.push(0);
            Some(AccessPath::Rows(prefix))
        }),
        by_word!("state", DeploymentStatus::ALL, |row| row.state),
        FilterDef { name: "stalled", read: stalled },
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (
            &[
                "generation",
                "count",
                "coordinates",
                "strategy",
                "progress_deadline",
                "auto_rollback",
                "rollback",
                "requested_by",
            ],
            &["deployment.created"],
        ),
        (
            &["state"],
            &[
                "deployment.created",
                "deployment.started",
                "deployment.paused",
                "deployment.resumed",
                "deployment.halted",
                "deployment.ended",
            ],
        ),
        (&["active_set"], &["deployment.created", "deployment.cut_over"]),
    ];

    fn of(fleet: &FleetState, counts: &dyn CountSource, key: &DeploymentKey) -> Option<DeploymentRow> {
        let deployment = fleet.deployments().get(key)?;
        let state = match &deployment.state {
            DeploymentState::Halted(_) => DeploymentStatus::InProgress,
            state => deployment::state_word(state),
        };
        Some(row!(DeploymentRow, deployment.meta, {
            plan: deployment.plan.clone(),
            name: deployment.name.clone(),
            generation: deployment.generation,
            count: deployment.spec.count,
            coordinates: deployment.spec.coordinates.clone(),
            strategy: deployment.spec.strategy,
            progress_deadline: deployment.spec.progress_deadline,
            auto_rollback: deployment.spec.auto_rollback,
            rollback: deployment.rollback.clone(),
            requested_by: deployment.requested_by.clone(),
            state: state,
            last_progress_at: deployment.progressed,
            stalled_at: deployment.stalled,
            active_set: deployment.active_set,
            message: deployment_message(fleet, deployment, counts.counts().plan(&key.0)),
        }))
    }

    fn index(&self, to: &mut IndexEntries) {
        if self.stalled_at.is_some() {
            let key = format!("{}\0{}", self.plan, self.name);
            to.put(RowIndex::DeploymentStalled.of_word(1), key.as_bytes());
        }
    }

    fn is_indexed_as(&self, other: &Self) -> bool {
        self.stalled_at.is_some() == other.stalled_at.is_some()
    }
}

/// Reads `yes` or `no`: whether the deployment is stalled.
fn stalled(text: &str) -> Result<RowFilter<DeploymentRow>, String> {
    let wanted = match text {
        "yes" => true,
        "no" => false,
        _ => return Err("must be one of yes, no".to_owned()),
    };
    let way = wanted.then(|| AccessPath::Entries(RowIndex::DeploymentStalled.of_word(1)));
    Ok(RowFilter { holds: Box::new(move |row: &DeploymentRow| row.stalled_at.is_some() == wanted), way })
}

/// Returns the message of a deployment. Replicas of the same version that an earlier deployment started count.
/// The message of an ended deployment never changes.
fn deployment_message(fleet: &FleetState, deployment: &Deployment, of: &PlanCounts) -> String {
    let count = deployment.spec.count;
    let wait = || fleet.plans().get(&deployment.plan).and_then(|plan| waits_for(fleet, plan, deployment));
    let waits = |text: String| match wait() {
        Some(wait) => format!("{text}; waits for {wait}"),
        None => text,
    };
    match &deployment.state {
        DeploymentState::Pending => match wait() {
            Some(wait) => format!("waits for {wait}"),
            None => "queued".into(),
        },
        DeploymentState::Paused => "starts nothing until resumed".into(),
        DeploymentState::InProgress => {
            let pending: u64 =
                OperationKind::ALL.iter().map(|kind| of.open(*kind, OperationStatus::PendingApproval)).sum();
            let index = fleet.index().plan_index(&deployment.plan);
            let ready = index.map_or(0, PlanIndex::ready_in_version);
            let approval = if pending > 0 { format!(", {pending} pending approval") } else { String::new() };
            let canary = match (deployment.spec.strategy, deployment.active_set) {
                (DeploymentStrategy::Canary { count }, SetWord::Old) => {
                    format!(", {count} to be promoted or rolled back")
                }
                _ => String::new(),
            };
            let progress = match (deployment.stalled, deployment.progressed) {
                (Some(_), Some(last)) => format!("no progress since {last}: "),
                _ => String::new(),
            };
            waits(format!("{progress}{ready} of {count} ready in this version{approval}{canary}"))
        }
        DeploymentState::Halted(DeploymentEnd::Failed { cause }) => waits(format!("failing: {cause}")),
        DeploymentState::Halted(DeploymentEnd::Superseded { successor: by }) => {
            waits(format!("superseded by {by}"))
        }
        DeploymentState::Halted(_) => waits("cancelled".into()),
        DeploymentState::Ended(DeploymentEnd::Completed) if count == 0 => "all replicas deleted".into(),
        DeploymentState::Ended(DeploymentEnd::Completed) => format!("{count} of {count} started"),
        DeploymentState::Ended(DeploymentEnd::Failed { cause }) => cause.clone(),
        DeploymentState::Ended(DeploymentEnd::Cancelled) => String::new(),
        DeploymentState::Ended(DeploymentEnd::Superseded { successor: by }) => format!("superseded by {by}"),
    }
}
