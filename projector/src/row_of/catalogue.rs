//! Rows of clusters, capabilities, nodes, policies, approval requests, volumes and sessions.

use chancery_events::amount::{GIB, parse_bytes, parse_cpu};
use chancery_events::fact::{RequestEnd, RequestedChange};
use chancery_events::id::{RequestId, SessionId};
use chancery_events::name::{
    CapabilityName, CapabilityType, ClusterName, DisruptionName, DomainName, Key, NodeName, PolicyName,
    ReplicaName, VolumeName, ZoneName,
};
use chancery_events::observation::SessionEnd;
use chancery_events::spec::{Activity, NodeState, Runtime};
use chancery_events::subject::Subject;
use chancery_machine::fleet::Fleet;
use chancery_machine::request;
use chancery_machine::state::{ApprovalRequest, Disruption, RequestState, Volume, VolumeState};

use super::row;
use crate::counts::Counts;
use crate::filter::{Def, Filter, by_name, by_word};
use crate::index::{Entries, Index};
use crate::kind::Row;
use crate::rows::{
    BypassRow, CapabilityRow, ClusterRow, DisruptionRow, NodeRow, PolicyRow, RequestRow, RequestWord,
    RequestedKind, SessionRow, SessionWord, StorageRow, VolumeRow, VolumeWord,
};

impl Row for ClusterRow {
    const FILTERS: &'static [Def<ClusterRow>] = &[
        by_word!("runtime", Runtime::ALL, |row| row.runtime),
        by_word!("activity", Activity::ALL, |row| row.activity),
    ];

    fn of(fleet: &Fleet, counts: &Counts, name: &ClusterName) -> Option<ClusterRow> {
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
}

impl Row for CapabilityRow {
    const FILTERS: &'static [Def<CapabilityRow>] = &[
        by_name!("type", CapabilityType, |row, kind| row.kind == *kind),
        by_word!("activity", Activity::ALL, |row| row.activity),
    ];

    fn of(fleet: &Fleet, _: &Counts, name: &CapabilityName) -> Option<CapabilityRow> {
        let capability = fleet.capabilities().get(name)?;
        Some(row!(CapabilityRow, capability.meta, {
            name: capability.name.clone(),
            kind: capability.spec.kind.clone(),
            score: capability.spec.score,
            activity: capability.activity,
        }))
    }
}

impl Row for NodeRow {
    const FILTERS: &'static [Def<NodeRow>] = &[
        by_word!("state", NodeState::ALL, |row| row.state),
        by_name!("cluster", ClusterName, |row, it| row.cluster.as_ref() == Some(it), Index::NodeCluster),
        by_name!("domain", DomainName, |row, it| row.domain == *it, Index::NodeDomain),
        by_name!("zone", ZoneName, |row, it| row.zone.as_ref() == Some(it), Index::NodeZone),
        by_name!("capability", CapabilityName, |row, name| row.capabilities.contains(name)),
        Def { name: "label", read: label },
        Def { name: "remaining_cpu_gte", read: |text| at_least(parse_cpu(text), |row| row.remaining.cpu) },
        Def {
            name: "remaining_memory_gte",
            read: |text| at_least(parse_bytes(text, GIB), |row| row.remaining.memory),
        },
    ];

    fn of(fleet: &Fleet, _: &Counts, name: &NodeName) -> Option<NodeRow> {
        let node = fleet.nodes().get(name)?;
        let held = fleet.index().places.held(name);
        let storage = node.spec.storage.iter().map(|storage| StorageRow {
            class: storage.class.clone(),
            capacity: storage.capacity,
            remaining: storage.capacity.saturating_sub(held.storage(&storage.class)),
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
            bypass: node.bypass.as_ref().map(|bypass| BypassRow {
                by: bypass.by.clone(),
                reason: bypass.reason.clone(),
                policies: bypass.policies.clone(),
            }),
        }))
    }

    fn index(&self, to: &mut Entries) {
        let key = self.name.as_str().as_bytes();
        if let Some(cluster) = &self.cluster {
            to.put(Index::NodeCluster.of(cluster.as_str()), key);
        }
        to.put(Index::NodeDomain.of(self.domain.as_str()), key);
        if let Some(zone) = &self.zone {
            to.put(Index::NodeZone.of(zone.as_str()), key);
        }
    }

    fn is_indexed_as(&self, other: &Self) -> bool {
        self.cluster == other.cluster && self.domain == other.domain && self.zone == other.zone
    }
}

/// Reads `key:value`, as in a selector.
fn label(text: &str) -> Result<Filter<NodeRow>, String> {
    let (key, value) = text.split_once(':').ok_or("write it as key:value")?;
    let key: Key = key.parse().map_err(|error: chancery_events::name::BadName| error.to_string())?;
    let value = value.to_owned();
    Ok(Filter { holds: Box::new(move |row: &NodeRow| row.labels.get(&key) == Some(&value)), way: None })
}

fn at_least(
    least: Result<u64, chancery_events::amount::BadAmount>,
    of: fn(&NodeRow) -> u64,
) -> Result<Filter<NodeRow>, String> {
    let least = least.map_err(|error| error.to_string())?;
    Ok(Filter { holds: Box::new(move |row: &NodeRow| of(row) >= least), way: None })
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

impl Row for PolicyRow {
    const FILTERS: &'static [Def<PolicyRow>] = &[];

    fn of(fleet: &Fleet, _: &Counts, name: &PolicyName) -> Option<PolicyRow> {
        let policy = fleet.policies().get(name)?;
        Some(row!(PolicyRow, policy.meta, {
            name: policy.name.clone(),
            spec: (*policy.spec).clone(),
        }))
    }
}

impl Row for RequestRow {
    const FILTERS: &'static [Def<RequestRow>] = &[
        by_word!("state", RequestWord::ALL, |row| row.state),
        by_word!("kind", RequestedKind::ALL, |row| row.kind),
        by_name!("subject", Subject, |row, subject| row.subject == *subject),
    ];

    fn of(fleet: &Fleet, _: &Counts, id: &RequestId) -> Option<RequestRow> {
        let request = fleet.approval_requests().get(id)?;
        let (expires, decided) = match &request.state {
            RequestState::Pending { expires } => (Some(*expires), None),
            RequestState::Approved { by } | RequestState::Ended(RequestEnd::Rejected { by, .. }) => {
                (None, Some(by.clone()))
            }
            RequestState::Ended(RequestEnd::Expired | RequestEnd::Superseded { .. }) => (None, None),
        };
        Some(row!(RequestRow, request.meta, {
            id: request.id,
            state: request::state_word(&request.state),
            kind: match &request.change {
                RequestedChange::PlanDelete { .. } => RequestedKind::PlanDelete,
                RequestedChange::NodeDelete { .. } => RequestedKind::NodeDelete,
                RequestedChange::NodeExpunge { .. } => RequestedKind::NodeExpunge,
                RequestedChange::DisruptionApprove { .. } => RequestedKind::DisruptionApprove,
                RequestedChange::PlanApply { .. } => RequestedKind::PlanApply,
                RequestedChange::PolicyApply { .. } => RequestedKind::PolicyApply,
                RequestedChange::PolicyDelete { .. } => RequestedKind::PolicyDelete,
                RequestedChange::VolumeDelete { .. } => RequestedKind::VolumeDelete,
            },
            subject: request.change.subject(),
            change: request.change.clone(),
            effects: request.effects.clone(),
            by: request.by.clone(),
            policies: request.policies.clone(),
            hash: request.hash,
            expires: expires,
            decided: decided,
            message: request_message(request),
        }))
    }
}

fn request_message(request: &ApprovalRequest) -> String {
    match &request.state {
        RequestState::Pending { .. } if request.policies.is_empty() => "waits for a person".to_owned(),
        RequestState::Pending { .. } => {
            let policies: Vec<_> = request.policies.iter().map(|name| format!("policy {name}")).collect();
            format!("waits for another person than {}: {}", request.by, policies.join(", "))
        }
        RequestState::Approved { by } => format!("approved by {by}"),
        RequestState::Ended(RequestEnd::Rejected { by, reason }) if reason.is_empty() => {
            format!("rejected by {by}")
        }
        RequestState::Ended(RequestEnd::Rejected { by, reason }) => format!("rejected by {by}: {reason}"),
        RequestState::Ended(RequestEnd::Expired) => "not approved in time".to_owned(),
        RequestState::Ended(RequestEnd::Superseded { by }) => format!("superseded by request {by}"),
    }
}

impl Row for VolumeRow {
    const FILTERS: &'static [Def<VolumeRow>] = &[
        by_name!("cluster", ClusterName, |row, cluster| row.cluster == *cluster),
        by_name!("node", NodeName, |row, node| row.node == *node),
        by_name!("owner", ReplicaName, |row, owner| row.owner.as_ref() == Some(owner)),
        by_name!("replica", ReplicaName, |row, replica| row.replica.as_ref() == Some(replica)),
        by_word!("state", VolumeWord::ALL, |row| row.state),
    ];

    fn of(fleet: &Fleet, _: &Counts, name: &VolumeName) -> Option<VolumeRow> {
        let volume = fleet.volumes().get(name)?;
        let user = volume.user.and_then(|user| fleet.incarnations().get(&user));
        Some(row!(VolumeRow, volume.meta, {
            name: volume.name.clone(),
            id: volume.id,
            state: match volume.state {
                VolumeState::Ensuring => VolumeWord::Ensuring,
                VolumeState::Ready => VolumeWord::Ready,
                VolumeState::Lost(_) => VolumeWord::Lost,
                VolumeState::Destroying => VolumeWord::Destroying,
            },
            cluster: volume.cluster.clone(),
            node: volume.node.clone(),
            class: volume.class.clone(),
            capacity: volume.capacity,
            owner: volume.owner.clone(),
            on_delete: volume.on_delete,
            replica: user.map(|user| user.replica.clone()),
            incarnation: volume.user,
            removing: volume.removing.clone(),
            message: volume_message(volume),
        }))
    }
}

fn volume_message(volume: &Volume) -> String {
    let waits = volume.user.is_some() && volume.removing.is_some();
    match (&volume.state, &volume.error, volume.command) {
        (VolumeState::Lost(reason), ..) => reason.clone(),
        (_, Some(error), Some(command)) => {
            format!("{error}; attempt {} from {}", command.attempt, command.not_before)
        }
        (_, Some(error), None) => error.clone(),
        (_, None, _) if waits => "goes when it is not used any more".into(),
        (_, None, _) => String::new(),
    }
}

impl Row for SessionRow {
    const FILTERS: &'static [Def<SessionRow>] = &[
        by_name!("cluster", ClusterName, |row, cluster| row.cluster == *cluster),
        by_word!("state", SessionWord::ALL, |row| row.state),
    ];

    fn of(fleet: &Fleet, _: &Counts, id: &SessionId) -> Option<SessionRow> {
        let session = fleet.sessions().get(id)?;
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
}
