//! Rows that follow from the entities, each computed from all of them: existing and desired entities.

use std::collections::BTreeMap;

use chancery_events::fact::{DeploymentEnd, RequestEnd};
use chancery_events::id::{RequestId, SessionId};
use chancery_events::name::{DeploymentName, DomainName, NodeName, PlanName};
use chancery_events::observation::SessionEnd;
use chancery_events::resources::Resources;
use chancery_events::spec::OperationKind;
use chancery_projector::RowKind;
use chancery_projector::rows::{
    BypassRow, CapabilityRow, ClusterRow, DeploymentRow, DeploymentStatus, DisruptionRow, NodeRow, PlanRow,
    PolicyRow, RequestRow, RequestStatus, RequestedKind, SessionRow, SessionStatus, SetWord, SpreadRow,
    StorageRow,
};
use serde::Serialize;
use serde_json::Value;

use super::entities::{
    Deployment, FoldedRequest, IncarnationProgress, Node, Plan, Session, StampedEntity, VisibleEntities,
};
use super::running::{command, incarnation, operation, phase, replica};
use super::volumes;

/// Returns every row, by kind and key.
pub(super) fn of(all: &VisibleEntities) -> BTreeMap<(RowKind, String), Value> {
    let mut rows = BTreeMap::new();
    let mut put = |kind, key: String, row: Value| {
        rows.insert((kind, key), row);
    };
    for (name, kept) in &all.clusters {
        let session = all.sessions.iter().find(|(_, s)| s.is.fact.cluster == *name && s.is.end.is_none());
        let row = row!(ClusterRow, kept, {
            name: name.clone(),
            runtime: kept.is.spec.runtime,
            kubernetes: kept.is.spec.kubernetes.clone(),
            activity: kept.is.activity,
            executor: session.map(|(_, session)| session.is.fact.executor.clone()),
            session: session.map(|(id, _)| *id),
            nodes: all.nodes.values().filter(|node| node.is.cluster.as_ref() == Some(name)).count() as u64,
        });
        put(RowKind::Clusters, name.to_string(), json(&row));
    }
    for (name, kept) in &all.capabilities {
        let row = row!(CapabilityRow, kept, {
            name: name.clone(),
            type_name: kept.is.spec.kind.clone(),
            score: kept.is.spec.score,
            activity: kept.is.activity,
        });
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
    for (name, kept) in &all.volumes {
        put(RowKind::Volumes, name.to_string(), json(&volumes::row(all, name, kept)));
    }
    for (name, kept) in &all.policies {
        let row = row!(PolicyRow, kept, {
            name: name.clone(),
            spec: kept.is.clone(),
        });
        put(RowKind::Policies, name.to_string(), json(&row));
    }
    for (id, kept) in &all.requests {
        put(RowKind::Requests, id.to_string(), json(&request(*id, kept)));
    }
    all.sessions
        .iter()
        .for_each(|(id, kept)| put(RowKind::Sessions, id.to_string(), json(&session(*id, kept))));
    rows
}

fn json(row: &impl Serialize) -> Value {
    serde_json::to_value(row).expect("rows have string keys and no failing parts")
}

fn request(id: RequestId, kept: &StampedEntity<FoldedRequest>) -> RequestRow {
    let FoldedRequest { fact, approved, end } = &kept.is;
    let kind = serde_json::to_value(&fact.change).expect("a change");
    let kind = kind.as_object().and_then(|change| change.keys().next()).cloned();
    let kind = RequestedKind::ALL.iter().copied().find(|it| Some(it.word()) == kind.as_deref());
    let (state, decided) = match (approved, end) {
        (Some(by), _) => (RequestStatus::Approved, Some(by.clone())),
        (None, Some(RequestEnd::Rejected { rejected_by: by, .. })) => {
            (RequestStatus::Rejected, Some(by.clone()))
        }
        (None, Some(RequestEnd::Expired)) => (RequestStatus::Expired, None),
        (None, Some(RequestEnd::Superseded { .. })) => (RequestStatus::Superseded, None),
        (None, None) => (RequestStatus::Pending, None),
    };
    row!(RequestRow, kept, {
        id: id,
        state: state,
        kind: kind.expect("every change has a kind"),
        subject: fact.change.subject(),
        change: fact.change.clone(),
        effects: fact.effects.clone(),
        requested_by: fact.requested_by.clone(),
        policies: fact.policies.clone(),
        hash: fact.hash,
        expires: (state == RequestStatus::Pending).then_some(fact.expires),
        decided: decided,
        message: String::new(),
    })
}

fn node(all: &VisibleEntities, name: &NodeName, kept: &StampedEntity<Node>) -> NodeRow {
    let spec = &kept.is.spec;
    let on_it: Vec<_> = all
        .incarnations
        .values()
        .filter(|i| i.is.fact.node == *name && !i.is.is_over())
        .map(|i| &i.is)
        .collect();
    let held: Resources = on_it.iter().map(|i| all.holds(i)).sum();
    let free = spec.resources.checked_sub(spec.reserved).and_then(|free| free.checked_sub(held));
    let stored = all.storage(name);
    let storage = spec.storage.iter().map(|has| {
        let held = stored.get(&has.class).copied().unwrap_or(0);
        let remaining = has.capacity.saturating_sub(held);
        StorageRow { class: has.class.clone(), capacity: has.capacity, remaining }
    });
    let disruptions = kept.is.disruptions.iter().map(|(name, disruption)| DisruptionRow {
        name: name.clone(),
        state: disruption.state,
        action: disruption.spec.action,
        start: disruption.spec.start,
        reason: disruption.spec.reason.clone(),
        approved_by: disruption.approved_by.clone(),
        since: disruption.since,
    });
    row!(NodeRow, kept, {
        name: name.clone(),
        state: kept.is.state,
        cluster: kept.is.cluster.clone(),
        domain: spec.domain.clone(),
        zone: spec.zone.clone(),
        labels: spec.labels.clone(),
        resources: spec.resources,
        reserved: spec.reserved,
        remaining: free.unwrap_or_default(),
        capabilities: spec.capabilities.clone(),
        storage: storage.collect(),
        incarnations: on_it.len() as u64,
        disruptions: disruptions.collect(),
        bypass: kept.is.bypass.as_ref().map(|bypass| BypassRow {
            requested_by: bypass.requested_by.clone(),
            reason: bypass.reason.clone(),
            policies: bypass.policies.clone(),
        }),
    })
}

fn plan(all: &VisibleEntities, name: &PlanName, kept: &StampedEntity<Plan>) -> PlanRow {
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
    let waiting = if waits { kept.is.unschedulable.clone() } else { Vec::new() };
    row!(PlanRow, kept, {
        name: name.clone(),
        generation: kept.is.generation,
        activity: kept.is.activity,
        spec: kept.is.spec.clone(),
        current: mine(true),
        next: mine(false),
        replicas: replicas,
        operations: operations,
        unschedulable: waiting,
        spread: SpreadRow {
            domains: remaining(all, name),
            balance: kept.is.balance,
            rebalance_requested_by: kept.is.rebalance.clone(),
        },
        message: String::new(),
    })
}

/// Counts replicas by the update domain where they are when all open operations succeed.
fn remaining(all: &VisibleEntities, plan: &PlanName) -> BTreeMap<DomainName, u32> {
    let mut domains = BTreeMap::new();
    for (name, kept) in all.replicas.iter().filter(|(_, kept)| kept.is.plan == *plan) {
        let deletes = all.open(name).iter().any(|(_, it)| it.kind == OperationKind::Delete);
        if deletes || kept.is.approved == Some(OperationKind::Delete) {
            continue;
        }
        let runs = kept.is.secondary.iter().chain(&kept.is.active).filter_map(|id| all.incarnations.get(id));
        let mut stays = runs.filter(|run| {
            !matches!(run.is.progress, IncarnationProgress::Stopping | IncarnationProgress::Ended(_))
        });
        let node = stays.next().and_then(|run| all.nodes.get(&run.is.fact.node));
        if let Some(node) = node {
            *domains.entry(node.is.spec.domain.clone()).or_default() += 1;
        }
    }
    domains
}

fn deployment(plan: &PlanName, name: &DeploymentName, kept: &StampedEntity<Deployment>) -> DeploymentRow {
    row!(DeploymentRow, kept, {
        plan: plan.clone(),
        name: name.clone(),
        generation: kept.is.generation,
        count: kept.is.spec.count,
        coordinates: kept.is.spec.coordinates.clone(),
        strategy: kept.is.spec.strategy,
        progress_deadline: kept.is.spec.progress_deadline,
        auto_rollback: kept.is.spec.auto_rollback,
        rollback: kept.is.rollback.clone(),
        last_progress_at: kept.is.progressed,
        stalled_at: kept.is.stalled,
        requested_by: kept.is.requested_by.clone(),
        state: match &kept.is.end {
            Some(DeploymentEnd::Completed) => DeploymentStatus::Completed,
            Some(DeploymentEnd::Failed { .. }) => DeploymentStatus::Failed,
            Some(DeploymentEnd::Cancelled) => DeploymentStatus::Cancelled,
            Some(DeploymentEnd::Superseded { .. }) => DeploymentStatus::Superseded,
            None if kept.is.is_paused => DeploymentStatus::Paused,
            None if kept.is.has_started => DeploymentStatus::InProgress,
            None => DeploymentStatus::Pending,
        },
        active_set: if kept.is.has_cut_over { SetWord::New } else { SetWord::Old },
        message: String::new(),
    })
}

fn session(id: SessionId, kept: &StampedEntity<Session>) -> SessionRow {
    row!(SessionRow, kept, {
        id: id,
        cluster: kept.is.fact.cluster.clone(),
        executor: kept.is.fact.executor.clone(),
        runtime: kept.is.fact.runtime,
        store: kept.is.fact.store,
        state: match kept.is.end {
            None => SessionStatus::Open,
            Some(SessionEnd::Expired) => SessionStatus::Expired,
            Some(SessionEnd::Left) => SessionStatus::Left,
            Some(SessionEnd::ClusterDeleted) => SessionStatus::ClusterDeleted,
        },
    })
}
