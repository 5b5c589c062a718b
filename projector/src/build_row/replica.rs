//! Rows of replicas, incarnations, commands and operations.

use chancery_events::fact::{CommandEffect, IncarnationEnd, OperationEnd};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::name::{ClusterName, DeploymentName, NodeName, PlanName, ReplicaName};
use chancery_events::observation::{ProcessInfo, ProcessStatus};
use chancery_events::spec::OperationKind;
use chancery_events::time::Time;
use chancery_machine::fleet::FleetState;
use chancery_machine::operation;
use chancery_machine::replica::phase;
use chancery_machine::state::{Incarnation, IncarnationState, OperationState, Replica};

use super::{WAITS, row};
use crate::counts::{CountSource, CountedReplica};
use crate::filter::{AccessPath, FilterDef, by_id, by_name, by_word};
use crate::fold::StateView;
use crate::index::{IndexEntries, RowIndex};
use crate::kind::ReadModelRow;
use crate::reachability::{ReachabilityFields, ReachabilitySource};
use crate::rows::{
    CommandRow, IncarnationRow, IncarnationStatus, OperationRow, OperationStatus, PhaseStatus, Reachability,
    ReplicaRow, SecondaryRow, WillWord,
};
use crate::why::FieldFacts;

/// Facts that set what is known of the processes of an incarnation, also in the row of its replica.
const OF_PROCESSES: &[&str] = &[
    "replica.created",
    "incarnation.reserved",
    "incarnation.started",
    "incarnation.running",
    "incarnation.processes_changed",
    "incarnation.ended",
    "incarnation.stop_requested",
    "incarnation.start_requested",
    "operation.approved",
    "operation.started",
];

impl ReadModelRow for ReplicaRow {
    const FILTERS: &'static [FilterDef<ReplicaRow>] = &[
        by_name!("plan", PlanName, |row, plan| row.plan == *plan, RowIndex::ReplicaPlan),
        by_name!("deployment", DeploymentName, |row, name| row.deployment == *name),
        by_name!("node", NodeName, |row, node| row.node.as_ref() == Some(node), RowIndex::ReplicaNode),
        by_word!("phase", PhaseStatus::ALL, |row| row.phase, |phase| {
            let is_kept = phase != PhaseStatus::Running;
            is_kept.then(|| AccessPath::Entries(RowIndex::ReplicaPhase.of_word(phase as u8)))
        }),
        by_word!("desired", WillWord::ALL, |row| row.desired),
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (&["plan"], &["replica.created"]),
        (
            &["deployment"],
            &[
                "replica.created",
                "replica.deployment_changed",
                "incarnation.reserved",
                "incarnation.start_requested",
                "incarnation.running",
                "operation.created",
            ],
        ),
        (&["node", "incarnation"], &["incarnation.reserved", "incarnation.running", "incarnation.ended"]),
        (&["ready", "processes", "unready_at"], OF_PROCESSES),
        (&["operation"], &["operation.created", "operation.ended", "incarnation.running", "replica.created"]),
        (
            &["desired"],
            &[
                "replica.created",
                "operation.created",
                "operation.approved",
                "operation.started",
                "operation.ended",
                "incarnation.ended",
            ],
        ),
        (
            &["phase"],
            &[
                "replica.created",
                "operation.created",
                "operation.approved",
                "operation.started",
                "operation.ended",
                "incarnation.reserved",
                "incarnation.started",
                "incarnation.start_requested",
                "incarnation.stop_requested",
                "incarnation.running",
                "incarnation.processes_changed",
                "incarnation.ended",
            ],
        ),
        (&["next_restart"], &["incarnation.ended", "operation.created", "operation.ended"]),
    ];

    fn of(fleet: &FleetState, _: &dyn CountSource, name: &ReplicaName) -> Option<ReplicaRow> {
        replica(fleet, name)
    }

    fn index(&self, to: &mut IndexEntries) {
        let key = self.name.as_str().as_bytes();
        to.put(RowIndex::ReplicaPlan.of(self.plan.as_str()), key);
        if let Some(node) = &self.node {
            to.put(RowIndex::ReplicaNode.of(node.as_str()), key);
        }
        if self.phase != PhaseStatus::Running {
            to.put(RowIndex::ReplicaPhase.of_word(self.phase as u8), key);
        }
    }

    fn is_indexed_as(&self, other: &Self) -> bool {
        self.node == other.node && self.phase == other.phase
    }

    fn waits_with(&mut self) -> Option<(&PlanName, &mut String)> {
        (self.message == WAITS).then_some((&self.plan, &mut self.message))
    }

    fn reached_through(&mut self) -> Option<(ReachabilitySource, ReachabilityFields<'_>)> {
        let id = self.incarnation?;
        ReachabilityFields::of(&mut self.reachability, &mut self.message)
            .map(|reached| (ReachabilitySource::Incarnation(id), reached))
    }
}

/// Returns the row of a replica.
pub(crate) fn replica(state: &impl StateView, name: &ReplicaName) -> Option<ReplicaRow> {
    let replica = state.replica(name)?;
    let active = active(state, replica);
    let phase = phase(replica, active);
    Some(row!(ReplicaRow, replica.meta, {
        name: replica.name.clone(),
        plan: replica.plan.clone(),
        deployment: replica.deployment.clone(),
        desired: replica.desired,
        phase: phase,
        ready: is_ready(replica),
        reachability: active.map_or(Reachability::Known, reachability),
        node: replica.active.as_ref().map(|active| active.node.clone()),
        incarnation: replica.active.as_ref().map(|active| active.incarnation),
        secondary: secondary(state, replica),
        processes: active.map_or_else(Vec::new, |active| active.processes.clone()),
        operation: replica.operation.map(|open| open.id),
        next_restart: replica.scheduled_restart().map(|again| again.not_before),
        unready_at: active.and_then(unready_at),
        message: replica_message(state, replica, active, phase),
    }))
}

fn active<'a>(state: &'a impl StateView, replica: &Replica) -> Option<&'a Incarnation> {
    replica.active.as_ref().and_then(|active| state.incarnation(active.incarnation))
}

fn secondary(state: &impl StateView, replica: &Replica) -> Option<SecondaryRow> {
    let run = replica.secondary.as_ref()?;
    let incarnation = state.incarnation(run.incarnation)?;
    let (node, state) = (run.node.clone(), incarnation_word(incarnation));
    Some(SecondaryRow { incarnation: run.incarnation, node, state })
}

/// Returns what is counted of a replica, without building its row.
pub(crate) fn replica_count(state: &impl StateView, replica: &Replica) -> CountedReplica {
    let phase = phase(replica, active(state, replica));
    CountedReplica { phase, desired: replica.desired, ready: is_ready(replica) }
}

fn is_ready(replica: &Replica) -> bool {
    replica.active.as_ref().is_some_and(|active| active.healthy)
}

impl ReplicaRow {
    /// Returns what is counted of the replica.
    pub(crate) fn counted(&self) -> CountedReplica {
        CountedReplica { phase: self.phase, desired: self.desired, ready: self.ready }
    }
}

fn replica_message(
    state: &impl StateView,
    replica: &Replica,
    active: Option<&Incarnation>,
    phase: PhaseStatus,
) -> String {
    let open = [replica.queued_operation, replica.operation].into_iter().flatten();
    let mut open = open.filter_map(|open| state.operation(open.id));
    let waits = open.find_map(|operation| match operation.state {
        OperationState::Preparing => Some(WAITS.to_owned()),
        OperationState::PendingApproval(_) => Some(format!("{} waits for approval", operation.kind)),
        OperationState::Approved => Some(format!("{} is queued", operation.kind)),
        OperationState::Running | OperationState::Ended(_) => None,
    });
    if let Some(waits) = waits {
        return waits;
    }
    if let Some(moves) = moves(state, replica) {
        return moves;
    }
    if let (PhaseStatus::Failed, Some(again)) = (phase, replica.next_restart) {
        let why = replica.last_end.as_deref().map_or_else(String::new, end_message);
        let at = format!("restarts at {}", again.not_before);
        return if why.is_empty() { at } else { format!("{why}; {at}") };
    }
    match (phase, active) {
        (PhaseStatus::Failed | PhaseStatus::Stopped, _) => {
            replica.last_end.as_deref().map_or_else(String::new, |end| match end {
                IncarnationEnd::Destroyed if replica.desired == WillWord::Running => {
                    "ended without a stop request".into()
                }
                end => end_message(end),
            })
        }
        (_, Some(active)) => incarnation_message(active),
        (_, None) => String::new(),
    }
}

/// Returns the message about the other incarnation of a replica, while one replaces the other.
fn moves(state: &impl StateView, replica: &Replica) -> Option<String> {
    let kind = replica.operation.filter(|open| open.started)?.kind;
    let run = replica.secondary.as_ref()?;
    let incarnation = state.incarnation(run.incarnation)?;
    let does = match &incarnation.state {
        IncarnationState::Reserved => "starts when this one has ended",
        IncarnationState::Creating | IncarnationState::Starting => "is starting",
        IncarnationState::Stopping(_) => "is stopping",
        IncarnationState::Running | IncarnationState::Updating(_) | IncarnationState::Ended(_) => {
            return None;
        }
    };
    Some(format!("{kind}: other incarnation on {} {does}", run.node))
}

fn end_message(end: &IncarnationEnd) -> String {
    match end {
        IncarnationEnd::Destroyed => String::new(),
        IncarnationEnd::PoweredOff => "its guest powered itself off".to_owned(),
        IncarnationEnd::Failed { reason } | IncarnationEnd::Unwound { reason } => reason.clone(),
    }
}

impl ReadModelRow for IncarnationRow {
    const FILTERS: &'static [FilterDef<IncarnationRow>] = &[
        by_id!(Incarnations),
        by_name!("replica", ReplicaName, |row, replica| row.replica == *replica, |replica| {
            Some(AccessPath::Replica(RowIndex::IncarnationReplica, replica))
        }),
        by_name!("plan", PlanName, |row, plan| row.plan == *plan, RowIndex::IncarnationReplica),
        by_name!("node", NodeName, |row, node| row.node == *node, RowIndex::IncarnationNode),
        by_name!("cluster", ClusterName, |row, cluster| row.cluster == *cluster),
        by_word!("state", IncarnationStatus::ALL, |row| row.state),
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (
            &[
                "replica",
                "plan",
                "deployment",
                "node",
                "cluster",
                "resources",
                "operation",
                "starts_after",
                "affinity_violated",
            ],
            &["incarnation.reserved"],
        ),
        (
            &["state"],
            &[
                "incarnation.reserved",
                "operation.approved",
                "operation.started",
                "incarnation.start_requested",
                "incarnation.started",
                "incarnation.running",
                "incarnation.processes_changed",
                "incarnation.stop_requested",
                "incarnation.command_failed",
                "incarnation.ended",
            ],
        ),
        (&["ready", "processes", "unready_at"], OF_PROCESSES),
        (
            &["revision"],
            &[
                "incarnation.reserved",
                "operation.approved",
                "operation.started",
                "incarnation.start_requested",
                "incarnation.stop_requested",
                "incarnation.command_failed",
            ],
        ),
    ];

    fn of(fleet: &FleetState, _: &dyn CountSource, id: &IncarnationId) -> Option<IncarnationRow> {
        incarnation(fleet, *id)
    }

    fn index(&self, to: &mut IndexEntries) {
        let id = self.id.uuid();
        to.put(RowIndex::IncarnationReplica.of_replica(&self.plan, &self.replica), id.as_bytes());
        to.put(RowIndex::IncarnationNode.of(self.node.as_str()), id.as_bytes());
    }

    fn reached_through(&mut self) -> Option<(ReachabilitySource, ReachabilityFields<'_>)> {
        ReachabilityFields::of(&mut self.reachability, &mut self.message)
            .map(|reached| (ReachabilitySource::Cluster(self.cluster.clone()), reached))
    }
}

/// Returns the row of an incarnation.
pub(crate) fn incarnation(state: &impl StateView, id: IncarnationId) -> Option<IncarnationRow> {
    let incarnation = state.incarnation(id)?;
    Some(row!(IncarnationRow, incarnation.meta, {
        id: incarnation.id,
        replica: incarnation.replica.clone(),
        plan: incarnation.plan.clone(),
        deployment: incarnation.deployment.clone(),
        node: incarnation.node.clone(),
        cluster: incarnation.cluster.clone(),
        state: incarnation_word(incarnation),
        ready: incarnation.ready,
        reachability: reachability(incarnation),
        resources: incarnation.resources,
        reserved_storage: incarnation.ties.reserved_storage.clone(),
        mounts: incarnation.ties.mounts.clone(),
        processes: incarnation.processes.clone(),
        revision: incarnation.revision,
        operation: incarnation.operation,
        starts_after: incarnation.ties.starts_after,
        affinity_violated: incarnation.ties.affinity_violated.clone(),
        unready_at: unready_at(incarnation),
        message: incarnation_message(incarnation),
    }))
}

/// Returns the time since which a formerly ready incarnation is not ready.
fn unready_at(incarnation: &Incarnation) -> Option<Time> {
    incarnation.unready.filter(|_| incarnation.state == IncarnationState::Running)
}

fn incarnation_word(incarnation: &Incarnation) -> IncarnationStatus {
    match &incarnation.state {
        IncarnationState::Reserved => IncarnationStatus::Reserved,
        IncarnationState::Creating => IncarnationStatus::Creating,
        IncarnationState::Starting => IncarnationStatus::Starting,
        IncarnationState::Running if incarnation.is_rebooting() => IncarnationStatus::Rebooting,
        IncarnationState::Running => IncarnationStatus::Running,
        IncarnationState::Updating(_) => IncarnationStatus::Updating,
        IncarnationState::Stopping(_) => IncarnationStatus::Stopping,
        IncarnationState::Ended(end) => match **end {
            IncarnationEnd::Destroyed => IncarnationStatus::Destroyed,
            IncarnationEnd::PoweredOff => IncarnationStatus::PoweredOff,
            IncarnationEnd::Failed { .. } => IncarnationStatus::Failed,
            IncarnationEnd::Unwound { .. } => IncarnationStatus::Unwound,
        },
    }
}

/// Returns the reachability as far as the incarnation shows it. Reachability through an executor is looked up
/// at a read, so that a session change does not touch every row of the cluster.
fn reachability(incarnation: &Incarnation) -> Reachability {
    match incarnation.state {
        IncarnationState::Reserved | IncarnationState::Ended(_) => Reachability::Known,
        IncarnationState::Creating
        | IncarnationState::Starting
        | IncarnationState::Running
        | IncarnationState::Updating(_)
        | IncarnationState::Stopping(_) => Reachability::Unknown,
    }
}

fn incarnation_message(incarnation: &Incarnation) -> String {
    let retried = incarnation.command.filter(|command| command.attempt > 1);
    if let Some(command) = retried {
        let what = match command.effect {
            CommandEffect::Ensure => "start",
            CommandEffect::Stop => "stop",
            CommandEffect::Kill => "kill",
            CommandEffect::Reboot => "reboot",
        };
        return format!("attempt {} to {what}, not before {}", command.attempt, command.not_before);
    }
    match &incarnation.state {
        _ if incarnation.awaits_volumes => {
            let mounts: Vec<_> = incarnation.ties.mounts.iter().map(ToString::to_string).collect();
            format!("waits for volumes: {}", mounts.join(", "))
        }
        IncarnationState::Ended(end) | IncarnationState::Stopping(end) => end_message(end),
        IncarnationState::Running => {
            let trouble = incarnation.processes.iter().find_map(ProcessInfo::trouble).unwrap_or_default();
            match incarnation.unready {
                Some(since) if trouble.is_empty() => format!("not ready since {since}"),
                Some(since) => format!("not ready since {since}: {trouble}"),
                None => trouble,
            }
        }
        // A starting process has no trouble before a probe reports it.
        IncarnationState::Starting => {
            let failing = |process: &&ProcessInfo| process.status != ProcessStatus::Starting;
            incarnation.processes.iter().filter(failing).find_map(ProcessInfo::trouble).unwrap_or_default()
        }
        IncarnationState::Updating(to) => format!("updating to deployment {to}"),
        IncarnationState::Reserved | IncarnationState::Creating => String::new(),
    }
}

impl ReadModelRow for CommandRow {
    const FILTERS: &'static [FilterDef<CommandRow>] = &[
        by_name!("cluster", ClusterName, |row, cluster| row.cluster == *cluster),
        by_name!("node", NodeName, |row, node| row.node == *node),
    ];

    fn of(fleet: &FleetState, _: &dyn CountSource, (id, revision): &Self::Key) -> Option<CommandRow> {
        command(fleet, *id).filter(|row| row.revision == *revision)
    }
}

/// Returns the row of an incarnation's command, while it has no outcome.
pub(crate) fn command(state: &impl StateView, id: IncarnationId) -> Option<CommandRow> {
    let incarnation = state.incarnation(id)?;
    let command = incarnation.command.filter(|_| incarnation.is_live())?;
    Some(row!(CommandRow, incarnation.meta, {
        incarnation: incarnation.id,
        revision: incarnation.revision,
        effect: command.effect,
        attempt: command.attempt,
        node: incarnation.node.clone(),
        cluster: incarnation.cluster.clone(),
        replica: incarnation.replica.clone(),
    }))
}

impl ReadModelRow for OperationRow {
    const FILTERS: &'static [FilterDef<OperationRow>] = &[
        by_id!(Operations),
        by_name!("plan", PlanName, |row, plan| row.plan == *plan, RowIndex::OperationReplica),
        by_name!("replica", ReplicaName, |row, replica| row.replica == *replica, |replica| {
            Some(AccessPath::Replica(RowIndex::OperationReplica, replica))
        }),
        by_word!("kind", OperationKind::ALL, |row| row.kind),
        by_word!("state", OperationStatus::ALL, |row| row.state, |state| {
            let is_kept = state != OperationStatus::Succeeded;
            is_kept.then(|| AccessPath::Entries(RowIndex::OperationState.of_word(state as u8)))
        }),
        by_name!("deployment", DeploymentName, |row, name| row.deployment.as_ref() == Some(name)),
        by_name!("node", NodeName, |row, node| row.node.as_ref() == Some(node), RowIndex::OperationNode),
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (
            &["replica", "plan", "kind", "deployment", "requested_by", "target_deployment"],
            &["operation.created"],
        ),
        (
            &["state"],
            &[
                "operation.created",
                "incarnation.reserved",
                "operation.approved",
                "operation.started",
                "operation.ended",
                "incarnation.running",
                "incarnation.ended",
            ],
        ),
        (
            &["hash", "node", "incarnation"],
            &[
                "operation.created",
                "incarnation.reserved",
                "operation.approved",
                "operation.started",
                "incarnation.ended",
            ],
        ),
        (&["approved_by"], &["operation.approved", "incarnation.ended"]),
    ];

    fn of(fleet: &FleetState, _: &dyn CountSource, id: &OperationId) -> Option<OperationRow> {
        operation(fleet, *id)
    }

    fn index(&self, to: &mut IndexEntries) {
        let id = self.id.uuid();
        to.put(RowIndex::OperationReplica.of_replica(&self.plan, &self.replica), id.as_bytes());
        if let Some(node) = &self.node {
            to.put(RowIndex::OperationNode.of(node.as_str()), id.as_bytes());
        }
        if self.state != OperationStatus::Succeeded {
            to.put(RowIndex::OperationState.of_word(self.state as u8), id.as_bytes());
        }
    }

    fn is_indexed_as(&self, other: &Self) -> bool {
        self.node == other.node && self.state == other.state
    }

    fn waits_with(&mut self) -> Option<(&PlanName, &mut String)> {
        (self.message == WAITS).then_some((&self.plan, &mut self.message))
    }
}

/// Returns the row of an operation.
pub(crate) fn operation(state: &impl StateView, id: OperationId) -> Option<OperationRow> {
    let operation = state.operation(id)?;
    Some(row!(OperationRow, operation.meta, {
        id: operation.id,
        replica: operation.replica.clone(),
        plan: operation.plan.clone(),
        kind: operation.kind,
        deployment: operation.deployment.clone(),
        requested_by: operation.requested_by.as_deref().cloned(),
        target_deployment: operation.version.clone(),
        state: operation::state_word(&operation.state),
        hash: operation.hash,
        node: operation.node.clone(),
        incarnation: operation.incarnation,
        approved_by: operation.approved.as_ref().map(|(by, _)| by.clone()),
        message: operation_message(&operation.state),
    }))
}

/// Returns the reason for the state of an operation.
pub(crate) fn operation_message(state: &OperationState) -> String {
    match state {
        OperationState::Preparing => WAITS.to_owned(),
        OperationState::PendingApproval(proposal) => format!("waits for approval until {}", proposal.expires),
        OperationState::Approved => "queued".into(),
        OperationState::Running | OperationState::Ended(OperationEnd::Succeeded) => String::new(),
        OperationState::Ended(OperationEnd::Failed { reason } | OperationEnd::Cancelled { reason }) => {
            reason.clone()
        }
        OperationState::Ended(OperationEnd::Rejected { rejected_by: by, reason }) if reason.is_empty() => {
            format!("rejected by {by}")
        }
        OperationState::Ended(OperationEnd::Rejected { rejected_by: by, reason }) => {
            format!("rejected by {by}: {reason}")
        }
        OperationState::Ended(OperationEnd::Expired) => "not approved in time".into(),
        OperationState::Ended(OperationEnd::Superseded { successor: by }) => {
            format!("superseded by operation {by}")
        }
    }
}
