//! Rows of clusters, capabilities, nodes and sessions.

use chancery_events::id::SessionId;
use chancery_events::name::{CapabilityName, ClusterName, DisruptionName, NodeName, PolicyName};
use chancery_events::observation::SessionEnd;
use chancery_machine::fleet::Fleet;
use chancery_machine::state::Disruption;

use super::row;
use crate::counts::Counts;
use crate::rows::{
    CapabilityRow, ClusterRow, DisruptionRow, NodeRow, PolicyRow, SessionRow, SessionWord, StorageRow,
};

/// The row of a cluster.
pub fn cluster(fleet: &Fleet, counts: &Counts, name: &ClusterName) -> Option<ClusterRow> {
    let cluster = fleet.clusters().get(name)?;
    let session = cluster.session.and_then(|id| fleet.sessions().get(&id));
    Some(row!(ClusterRow, cluster.meta, {
        name: cluster.name.clone(),
        runtime: cluster.spec.runtime,
        activity: cluster.activity,
        executor: session.map(|session| session.executor.clone()),
        session: cluster.session,
        nodes: counts.nodes(name),
    }))
}

/// The row of a capability.
pub fn capability(fleet: &Fleet, name: &CapabilityName) -> Option<CapabilityRow> {
    let capability = fleet.capabilities().get(name)?;
    Some(row!(CapabilityRow, capability.meta, {
        name: capability.name.clone(),
        kind: capability.spec.kind.clone(),
        score: capability.spec.score,
        activity: capability.activity,
    }))
}

/// The row of a node.
pub fn node(fleet: &Fleet, name: &NodeName) -> Option<NodeRow> {
    let node = fleet.nodes().get(name)?;
    let held = fleet.index().places.held(name);
    let storage = node.spec.storage.iter().map(|storage| StorageRow {
        class: storage.class.clone(),
        capacity: storage.capacity,
        remaining: storage.capacity.saturating_sub(held.volumes.get(&storage.class).copied().unwrap_or(0)),
    });
    Some(row!(NodeRow, node.meta, {
        name: node.name.clone(),
        state: node.state,
        cluster: node.cluster.clone(),
        domain: node.spec.domain.clone(),
        zone: node.spec.zone.clone(),
        labels: node.spec.labels.clone(),
        total: node.spec.total,
        reserved: node.spec.reserved,
        remaining: fleet.index().places.free(node),
        capabilities: node.spec.capabilities.clone(),
        storage: storage.collect(),
        incarnations: held.incarnations.len() as u64,
        disruptions: node.disruptions.iter().map(disruption).collect(),
    }))
}

fn disruption((name, disruption): (&DisruptionName, &Disruption)) -> DisruptionRow {
    DisruptionRow {
        name: name.clone(),
        state: disruption.state,
        evict: disruption.spec.evict,
        start: disruption.spec.start,
        reason: disruption.spec.reason.clone(),
        by: disruption.by.clone(),
        since: disruption.since.time,
    }
}

/// The row of a policy.
pub fn policy(fleet: &Fleet, name: &PolicyName) -> Option<PolicyRow> {
    let policy = fleet.policies().get(name)?;
    Some(row!(PolicyRow, policy.meta, {
        name: policy.name.clone(),
        spec: (*policy.spec).clone(),
    }))
}

/// The row of a session.
pub fn session(fleet: &Fleet, id: SessionId) -> Option<SessionRow> {
    let session = fleet.sessions().get(&id)?;
    let state = match session.end {
        None => SessionWord::Open,
        Some(SessionEnd::Lost) => SessionWord::Lost,
        Some(SessionEnd::Left) => SessionWord::Left,
        Some(SessionEnd::Removed) => SessionWord::Removed,
    };
    Some(row!(SessionRow, session.meta, {
        id: session.id,
        cluster: session.cluster.clone(),
        executor: session.executor.clone(),
        runtime: session.runtime,
        scope: session.scope,
        state: state,
    }))
}
