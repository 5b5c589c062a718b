//! The rows that follow from the entities, each computed from all of them.

use std::collections::BTreeMap;

use chancery_events::amount::Amounts;
use chancery_events::fact::{DeploymentEnd, IncarnationEnd};
use chancery_events::id::{IncarnationId, OperationId, SessionId};
use chancery_events::name::{DeploymentName, NodeName, PlanName, ReplicaName};
use chancery_events::observation::{ProcessStatus, SessionEnd};
use chancery_events::spec::OperationKind;
use chancery_projector::RowKind;
use chancery_projector::rows::{
    CapabilityRow, ClusterRow, CommandRow, DeploymentRow, DeploymentWord, IncarnationRow, IncarnationWord,
    NodeRow, OperationRow, OperationWord, PhaseWord, PlanRow, Reachability, ReplicaRow, SessionRow,
    SessionWord, StorageRow, WillWord,
};
use serde::Serialize;
use serde_json::Value;

use super::entities::{
    Deployment, Entities, Incarnation, Kept, Life, Node, Operation, Plan, Replica, Session,
};

/// Every row, by kind and key.
pub(super) fn of(all: &Entities) -> BTreeMap<(RowKind, String), Value> {
    let mut rows = BTreeMap::new();
    let mut put = |kind, key: String, row: Value| {
        rows.insert((kind, key), row);
    };
    for (name, kept) in &all.clusters {
        let session = all.sessions.iter().find(|(_, s)| s.is.fact.cluster == *name && s.is.end.is_none());
        let row = ClusterRow {
            name: name.clone(),
            runtime: kept.is.spec.runtime,
            activity: kept.is.activity,
            executor: session.map(|(_, session)| session.is.fact.executor.clone()),
            session: session.map(|(id, _)| *id),
            nodes: all.nodes.values().filter(|node| node.is.cluster.as_ref() == Some(name)).count() as u64,
            version: kept.stamps.version,
            created: kept.stamps.created,
            changed: kept.stamps.changed,
            position: kept.stamps.position,
        };
        put(RowKind::Clusters, name.to_string(), json(&row));
    }
    for (name, kept) in &all.capabilities {
        let row = CapabilityRow {
            name: name.clone(),
            kind: kept.is.spec.kind.clone(),
            score: kept.is.spec.score,
            activity: kept.is.activity,
            version: kept.stamps.version,
            created: kept.stamps.created,
            changed: kept.stamps.changed,
            position: kept.stamps.position,
        };
        put(RowKind::Capabilities, name.to_string(), json(&row));
    }
    all.nodes
        .iter()
        .for_each(|(name, kept)| put(RowKind::Nodes, name.to_string(), json(&node(all, name, kept))));
    all.plans
        .iter()
        .for_each(|(name, kept)| put(RowKind::Plans, name.to_string(), json(&plan(all, name, kept))));
    for ((plan, name), kept) in &all.deployments {
        put(RowKind::Deployments, format!("{plan}/{name}"), json(&deployment(plan, name, kept)));
    }
    for (name, kept) in &all.replicas {
        put(RowKind::Replicas, name.to_string(), json(&replica(all, name, kept)));
    }
    for (id, kept) in &all.incarnations {
        put(RowKind::Incarnations, id.to_string(), json(&incarnation(all, *id, kept)));
        if let Some(row) = command(*id, kept) {
            put(RowKind::Commands, format!("{id}/{}", row.revision), json(&row));
        }
    }
    for (id, kept) in &all.operations {
        put(RowKind::Operations, id.to_string(), json(&operation(*id, kept)));
    }
    all.sessions
        .iter()
        .for_each(|(id, kept)| put(RowKind::Sessions, id.to_string(), json(&session(*id, kept))));
    rows
}

fn json(row: &impl Serialize) -> Value {
    serde_json::to_value(row).expect("rows have string keys and no failing parts")
}

fn node(all: &Entities, name: &NodeName, kept: &Kept<Node>) -> NodeRow {
    let spec = &kept.is.spec;
    let on_it: Vec<_> = all
        .incarnations
        .values()
        .filter(|i| i.is.fact.node == *name && !matches!(i.is.life, Life::Over(_)))
        .map(|i| &i.is.fact)
        .collect();
    let held: Amounts = on_it.iter().map(|fact| fact.amounts).sum();
    let room = spec.total.checked_sub(spec.reserved).and_then(|room| room.checked_sub(held));
    let storage = spec.storage.iter().map(|has| {
        let held: u64 = on_it.iter().filter_map(|fact| fact.volumes.get(&has.class)).sum();
        let remaining = has.capacity.saturating_sub(held);
        StorageRow { class: has.class.clone(), capacity: has.capacity, remaining }
    });
    NodeRow {
        name: name.clone(),
        state: kept.is.state,
        cluster: kept.is.cluster.clone(),
        domain: spec.domain.clone(),
        zone: spec.zone.clone(),
        labels: spec.labels.clone(),
        total: spec.total,
        reserved: spec.reserved,
        remaining: room.unwrap_or_default(),
        capabilities: spec.capabilities.clone(),
        storage: storage.collect(),
        incarnations: on_it.len() as u64,
        version: kept.stamps.version,
        created: kept.stamps.created,
        changed: kept.stamps.changed,
        position: kept.stamps.position,
    }
}

fn plan(all: &Entities, name: &PlanName, kept: &Kept<Plan>) -> PlanRow {
    let mine = |started| {
        let mut of = all.deployments.iter().filter(|((plan, _), _)| plan == name);
        let found = of.find(|(_, kept)| kept.is.end.is_none() && kept.is.has_started == started);
        found.map(|((_, name), _)| name.clone())
    };
    let mut replicas = BTreeMap::new();
    for (replica, kept) in all.replicas.iter().filter(|(_, kept)| kept.is.plan == *name) {
        *replicas.entry(phase(all, replica, kept).word().to_owned()).or_default() += 1;
        *replicas.entry("total".to_owned()).or_default() += 1;
    }
    let open = all.operations.values().filter(|kept| kept.is.plan == *name && kept.is.end.is_none());
    let open = open.map(|kept| (kept.is.kind, kept.is.word()));
    let mut operations: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (kind, word) in kept.is.outcomes.iter().copied().chain(open) {
        *operations.entry(kind.to_string()).or_default().entry(word.to_owned()).or_default() += 1;
    }
    // Reasons are those of operations that wait now.
    let waits = operations.values().any(|counts| counts.contains_key("preparing"));
    let waiting = if waits { kept.is.waiting.clone() } else { Vec::new() };
    PlanRow {
        name: name.clone(),
        generation: kept.is.generation,
        activity: kept.is.activity,
        spec: kept.is.spec.clone(),
        current: mine(true),
        next: mine(false),
        replicas,
        operations,
        waiting,
        message: String::new(),
        version: kept.stamps.version,
        created: kept.stamps.created,
        changed: kept.stamps.changed,
        position: kept.stamps.position,
    }
}

fn deployment(plan: &PlanName, name: &DeploymentName, kept: &Kept<Deployment>) -> DeploymentRow {
    DeploymentRow {
        plan: plan.clone(),
        name: name.clone(),
        generation: kept.is.generation,
        count: kept.is.spec.count,
        coordinates: kept.is.spec.coordinates.clone(),
        state: match &kept.is.end {
            Some(DeploymentEnd::Completed) => DeploymentWord::Completed,
            Some(DeploymentEnd::Failed { .. }) => DeploymentWord::Failed,
            Some(DeploymentEnd::Cancelled) => DeploymentWord::Cancelled,
            Some(DeploymentEnd::Superseded { .. }) => DeploymentWord::Superseded,
            None if kept.is.has_started => DeploymentWord::InProgress,
            None => DeploymentWord::Pending,
        },
        message: String::new(),
        version: kept.stamps.version,
        created: kept.stamps.created,
        changed: kept.stamps.changed,
        position: kept.stamps.position,
    }
}

const fn will(kept: &Kept<Replica>) -> WillWord {
    match kept.is.approved {
        None => WillWord::Proposed,
        Some(OperationKind::Create | OperationKind::Start) => WillWord::Running,
        Some(OperationKind::Stop) => WillWord::Stopped,
        Some(OperationKind::Delete) => WillWord::Deleted,
    }
}

/// What people see of a replica.
fn phase(all: &Entities, name: &ReplicaName, kept: &Kept<Replica>) -> PhaseWord {
    let comes_up = |(_, operation): &(OperationId, &Operation)| {
        matches!(operation.kind, OperationKind::Create | OperationKind::Start)
    };
    let fell = !matches!(kept.is.last, Some(IncarnationEnd::Destroyed));
    match (will(kept), all.live(name).map(|(_, live)| &live.is.life)) {
        (WillWord::Deleted, _) => PhaseWord::Deleting,
        (_, Some(Life::Reserved)) => PhaseWord::Pending,
        (_, Some(Life::Creating | Life::Starting)) => PhaseWord::Starting,
        (_, Some(Life::Running)) => PhaseWord::Running,
        (_, Some(Life::Stopping)) => PhaseWord::Stopping,
        (_, None | Some(Life::Over(_))) if all.open(name).iter().any(comes_up) => PhaseWord::Pending,
        (WillWord::Running, _) if fell => PhaseWord::Failed,
        (_, _) => PhaseWord::Stopped,
    }
}

fn replica(all: &Entities, name: &ReplicaName, kept: &Kept<Replica>) -> ReplicaRow {
    let live = all.live(name);
    let phase = phase(all, name, kept);
    ReplicaRow {
        name: name.clone(),
        plan: kept.is.plan.clone(),
        deployment: kept.is.deployment.clone(),
        will: will(kept),
        phase,
        ready: live.is_some_and(|(_, live)| live.is.life == Life::Running && all_online(&live.is)),
        reachability: live.map_or(Reachability::Known, |(_, live)| reachability(all, &live.is)),
        node: live.map(|(_, live)| live.is.fact.node.clone()),
        incarnation: live.map(|(id, _)| id),
        processes: live.map(|(_, live)| live.is.processes.clone()).unwrap_or_default(),
        operation: all.open(name).first().map(|(id, _)| *id),
        message: String::new(),
        version: kept.stamps.version,
        created: kept.stamps.created,
        changed: kept.stamps.changed,
        position: kept.stamps.position,
    }
}

/// What an executor has to do with is out of sight while its cluster has none.
fn reachability(all: &Entities, incarnation: &Incarnation) -> Reachability {
    let concerns = !matches!(incarnation.life, Life::Reserved | Life::Over(_));
    let mut sessions = all.sessions.values();
    let heard =
        sessions.any(|s| Some(&s.is.fact.cluster) == incarnation.cluster.as_ref() && s.is.end.is_none());
    if concerns && !heard { Reachability::Unknown } else { Reachability::Known }
}

/// Whether it has processes, as far as anybody saw, and all are online; of one that is over none is.
fn all_online(incarnation: &Incarnation) -> bool {
    let seen = !incarnation.processes.is_empty() && !matches!(incarnation.life, Life::Over(_));
    seen && incarnation.processes.iter().all(|process| process.status == ProcessStatus::Online)
}

fn incarnation(all: &Entities, id: IncarnationId, kept: &Kept<Incarnation>) -> IncarnationRow {
    let fact = &kept.is.fact;
    let state = match &kept.is.life {
        Life::Reserved => IncarnationWord::Reserved,
        Life::Creating => IncarnationWord::Creating,
        Life::Starting => IncarnationWord::Starting,
        Life::Running => IncarnationWord::Running,
        Life::Stopping => IncarnationWord::Stopping,
        Life::Over(IncarnationEnd::Destroyed) => IncarnationWord::Destroyed,
        Life::Over(IncarnationEnd::Failed { .. }) => IncarnationWord::Failed,
        Life::Over(IncarnationEnd::Unwound { .. }) => IncarnationWord::Unwound,
    };
    IncarnationRow {
        id,
        replica: fact.replica.clone(),
        plan: kept.is.plan.clone(),
        deployment: fact.deployment.clone(),
        node: fact.node.clone(),
        cluster: kept.is.cluster.clone().expect("places are held on nodes of clusters"),
        state,
        ready: all_online(&kept.is),
        reachability: reachability(all, &kept.is),
        amounts: fact.amounts,
        volumes: fact.volumes.clone(),
        processes: kept.is.processes.clone(),
        revision: kept.is.revision,
        message: String::new(),
        version: kept.stamps.version,
        created: kept.stamps.created,
        changed: kept.stamps.changed,
        position: kept.stamps.position,
    }
}

fn command(id: IncarnationId, kept: &Kept<Incarnation>) -> Option<CommandRow> {
    let (effect, attempt) = kept.is.command?;
    Some(CommandRow {
        incarnation: id,
        revision: kept.is.revision,
        effect,
        attempt,
        node: kept.is.fact.node.clone(),
        cluster: kept.is.cluster.clone()?,
        replica: kept.is.fact.replica.clone(),
        version: kept.stamps.version,
        created: kept.stamps.created,
        changed: kept.stamps.changed,
        position: kept.stamps.position,
    })
}

fn operation(id: OperationId, kept: &Kept<Operation>) -> OperationRow {
    let word = kept.is.word();
    let state = OperationWord::ALL.iter().find(|state| state.word() == word);
    OperationRow {
        id,
        replica: kept.is.replica.clone(),
        plan: kept.is.plan.clone(),
        kind: kept.is.kind,
        deployment: kept.is.deployment.clone(),
        state: *state.expect("every state has its word"),
        hash: kept.is.proposal.map(|proposal| proposal.hash),
        node: kept.is.node.clone(),
        incarnation: kept.is.place,
        approved_by: kept.is.approved.clone(),
        message: String::new(),
        version: kept.stamps.version,
        created: kept.stamps.created,
        changed: kept.stamps.changed,
        position: kept.stamps.position,
    }
}

fn session(id: SessionId, kept: &Kept<Session>) -> SessionRow {
    SessionRow {
        id,
        cluster: kept.is.fact.cluster.clone(),
        executor: kept.is.fact.executor.clone(),
        runtime: kept.is.fact.runtime,
        scope: kept.is.fact.scope,
        state: match kept.is.end {
            None => SessionWord::Open,
            Some(SessionEnd::Lost) => SessionWord::Lost,
            Some(SessionEnd::Left) => SessionWord::Left,
            Some(SessionEnd::Removed) => SessionWord::Removed,
        },
        version: kept.stamps.version,
        created: kept.stamps.created,
        changed: kept.stamps.changed,
        position: kept.stamps.position,
    }
}
