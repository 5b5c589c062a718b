//! Rows of clusters, capabilities, nodes, policies, approval requests, volumes and sessions.

use chancery_events::fact::{RequestEnd, RequestedChange};
use chancery_events::id::{RequestId, SessionId};
use chancery_events::name::{
    CapabilityName, CapabilityType, ClusterName, DisruptionName, DomainName, KeyName, NodeName, PolicyName,
    ReplicaName, VolumeName, ZoneName,
};
use chancery_events::observation::SessionEnd;
use chancery_events::resources::{GIB, parse_bytes, parse_cpu};
use chancery_events::spec::{ClusterActivity, ClusterRuntime, NodeState};
use chancery_events::subject::Subject;
use chancery_machine::fleet::FleetState;
use chancery_machine::request;
use chancery_machine::state::{ApprovalRequest, Disruption, RequestState, Volume, VolumeState};

use super::row;
use crate::counts::CountSource;
use crate::filter::{FilterDef, RowFilter, by_id, by_name, by_word};
use crate::index::{IndexEntries, RowIndex};
use crate::kind::ReadModelRow;
use crate::rows::{
    BypassRow, CapabilityRow, ClusterRow, DisruptionRow, NodeRow, PolicyRow, RequestRow, RequestStatus,
    RequestedKind, SessionRow, SessionStatus, StorageRow, VolumeRow, VolumeStatus,
};
use crate::why::FieldFacts;

impl ReadModelRow for ClusterRow {
    const FILTERS: &'static [FilterDef<ClusterRow>] = &[
        by_word!("runtime", ClusterRuntime::ALL, |row| row.runtime),
        by_word!("activity", ClusterActivity::ALL, |row| row.activity),
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (&["runtime", "kubernetes"], &["cluster.applied"]),
        (&["activity"], &["cluster.applied", "cluster.activity_changed"]),
        (&["executor", "session"], &["session.opened", "session.closed"]),
    ];

    fn of(fleet: &FleetState, counts: &dyn CountSource, name: &ClusterName) -> Option<ClusterRow> {
        let cluster = fleet.clusters().get(name)?;
        let session = cluster.session.and_then(|id| fleet.sessions().get(&id));
        Some(row!(ClusterRow, cluster.meta, {
            name: cluster.name.clone(),
            runtime: cluster.spec.runtime,
            kubernetes: cluster.spec.kubernetes.clone(),
            activity: cluster.activity,
            executor: session.map(|session| session.executor.clone()),
            session: cluster.session,
            nodes: counts.nodes(name),
        }))
    }
}

impl ReadModelRow for CapabilityRow {
    const FILTERS: &'static [FilterDef<CapabilityRow>] = &[
        by_name!("type", CapabilityType, |row, kind| row.type_name == *kind),
        by_word!("activity", ClusterActivity::ALL, |row| row.activity),
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (&["type", "score"], &["capability.applied"]),
        (&["activity"], &["capability.applied", "capability.activity_changed"]),
    ];

    fn of(fleet: &FleetState, _: &dyn CountSource, name: &CapabilityName) -> Option<CapabilityRow> {
        let capability = fleet.capabilities().get(name)?;
        Some(row!(CapabilityRow, capability.meta, {
            name: capability.name.clone(),
            type_name: capability.spec.kind.clone(),
            score: capability.spec.score,
            activity: capability.activity,
        }))
    }
}

impl ReadModelRow for NodeRow {
    const FILTERS: &'static [FilterDef<NodeRow>] = &[
        by_word!("state", NodeState::ALL, |row| row.state),
        by_name!("cluster", ClusterName, |row, it| row.cluster.as_ref() == Some(it), RowIndex::NodeCluster),
        by_name!("domain", DomainName, |row, it| row.domain == *it, RowIndex::NodeDomain),
        by_name!("zone", ZoneName, |row, it| row.zone.as_ref() == Some(it), RowIndex::NodeZone),
        by_name!("capability", CapabilityName, |row, name| row.capabilities.contains(name)),
        FilterDef { name: "label", read: label },
        FilterDef {
            name: "remaining_cpu_gte",
            read: |text| at_least(parse_cpu(text), |row| row.remaining.cpu),
        },
        FilterDef {
            name: "remaining_memory_gte",
            read: |text| at_least(parse_bytes(text, GIB), |row| row.remaining.memory),
        },
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (&["domain", "zone", "labels", "resources", "reserved", "capabilities"], &["node.applied"]),
        (&["state", "cluster"], &["node.applied", "node.state_changed", "disruption.completed"]),
        (
            &["disruptions"],
            &[
                "disruption.scheduled",
                "disruption.approved",
                "disruption.completed",
                "disruption.deleted",
                "node.state_changed",
            ],
        ),
        (&["bypass"], &["approval.bypassed", "node.state_changed"]),
    ];

    fn of(fleet: &FleetState, _: &dyn CountSource, name: &NodeName) -> Option<NodeRow> {
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
            resources: node.spec.resources,
            reserved: node.spec.reserved,
            remaining: fleet.index().places.free(node),
            capabilities: node.spec.capabilities.clone(),
            storage: storage.collect(),
            incarnations: held.incarnations.len() as u64,
            disruptions: node.disruptions.iter().map(disruption).collect(),
            bypass: node.bypass.as_ref().map(|bypass| BypassRow {
                requested_by: bypass.requested_by.clone(),
                reason: bypass.reason.clone(),
                policies: bypass.policies.clone(),
            }),
        }))
    }

    fn index(&self, to: &mut IndexEntries) {
        let key = self.name.as_str().as_bytes();
        if let Some(cluster) = &self.cluster {
            to.put(RowIndex::NodeCluster.of(cluster.as_str()), key);
        }
        to.put(RowIndex::NodeDomain.of(self.domain.as_str()), key);
        if let Some(zone) = &self.zone {
            to.put(RowIndex::NodeZone.of(zone.as_str()), key);
        }
    }

    fn is_indexed_as(&self, other: &Self) -> bool {
        self.cluster == other.cluster && self.domain == other.domain && self.zone == other.zone
    }
}

/// Reads `key:value`, as in a selector.
fn label(text: &str) -> Result<RowFilter<NodeRow>, String> {
    let (key, value) = text.split_once(':').ok_or("must have the form key:value")?;
    let key: KeyName = key.parse().map_err(|error: chancery_events::name::InvalidName| error.to_string())?;
    let value = value.to_owned();
    Ok(RowFilter { holds: Box::new(move |row: &NodeRow| row.labels.get(&key) == Some(&value)), way: None })
}

fn at_least(
    least: Result<u64, chancery_events::resources::InvalidAmount>,
    of: fn(&NodeRow) -> u64,
) -> Result<RowFilter<NodeRow>, String> {
    let least = least.map_err(|error| error.to_string())?;
    Ok(RowFilter { holds: Box::new(move |row: &NodeRow| of(row) >= least), way: None })
}

fn disruption((name, disruption): (&DisruptionName, &Disruption)) -> DisruptionRow {
    DisruptionRow {
        name: name.clone(),
        state: disruption.state,
        action: disruption.spec.action,
        start: disruption.spec.start,
        reason: disruption.spec.reason.clone(),
        approved_by: disruption.approved_by.clone(),
        since: disruption.since.time,
    }
}

impl ReadModelRow for PolicyRow {
    const FILTERS: &'static [FilterDef<PolicyRow>] = &[];
    const SETTERS: &'static [FieldFacts] = &[(&["spec"], &["policy.applied"])];

    fn of(fleet: &FleetState, _: &dyn CountSource, name: &PolicyName) -> Option<PolicyRow> {
        let policy = fleet.policies().get(name)?;
        Some(row!(PolicyRow, policy.meta, {
            name: policy.name.clone(),
            spec: (*policy.spec).clone(),
        }))
    }
}

impl ReadModelRow for RequestRow {
    const FILTERS: &'static [FilterDef<RequestRow>] = &[
        by_id!(Requests),
        by_word!("state", RequestStatus::ALL, |row| row.state),
        by_word!("kind", RequestedKind::ALL, |row| row.kind),
        by_name!("subject", Subject, |row, subject| row.subject == *subject),
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (&["kind", "subject", "change", "effects", "requested_by", "policies", "hash"], &["request.opened"]),
        (&["state", "expires", "decided"], &["request.opened", "request.approved", "request.ended"]),
    ];

    fn of(fleet: &FleetState, _: &dyn CountSource, id: &RequestId) -> Option<RequestRow> {
        let request = fleet.approval_requests().get(id)?;
        let (expires, decided) = match &request.state {
            RequestState::Pending { expires } => (Some(*expires), None),
            RequestState::Approved { approved_by: by }
            | RequestState::Ended(RequestEnd::Rejected { rejected_by: by, .. }) => (None, Some(by.clone())),
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
            requested_by: request.requested_by.clone(),
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
        RequestState::Pending { .. } if request.policies.is_empty() => {
            "waits for approval by a person".to_owned()
        }
        RequestState::Pending { .. } => {
            let policies: Vec<_> = request.policies.iter().map(|name| format!("policy {name}")).collect();
            format!(
                "waits for approval by a person other than {}: {}",
                request.requested_by,
                policies.join(", ")
            )
        }
        RequestState::Approved { approved_by: by } => format!("approved by {by}"),
        RequestState::Ended(RequestEnd::Rejected { rejected_by: by, reason }) if reason.is_empty() => {
            format!("rejected by {by}")
        }
        RequestState::Ended(RequestEnd::Rejected { rejected_by: by, reason }) => {
            format!("rejected by {by}: {reason}")
        }
        RequestState::Ended(RequestEnd::Expired) => "not approved in time".to_owned(),
        RequestState::Ended(RequestEnd::Superseded { successor: by }) => {
            format!("superseded by request {by}")
        }
    }
}

impl ReadModelRow for VolumeRow {
    const FILTERS: &'static [FilterDef<VolumeRow>] = &[
        by_name!("cluster", ClusterName, |row, cluster| row.cluster == *cluster),
        by_name!("node", NodeName, |row, node| row.node == *node),
        by_name!("owner", ReplicaName, |row, owner| row.owner.as_ref() == Some(owner)),
        by_name!("replica", ReplicaName, |row, replica| row.replica.as_ref() == Some(replica)),
        by_name!("source", VolumeName, |row, source| row.source.as_ref() == Some(source)),
        by_word!("state", VolumeStatus::ALL, |row| row.state),
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (
            &["id", "cluster", "class", "capacity", "on_delete", "source"],
            &["volume.created", "volume.snapshot_started"],
        ),
        (
            &["state"],
            &[
                "volume.created",
                "volume.snapshot_started",
                "volume.ready",
                "volume.lost",
                "volume.deletion_started",
                "volume.destroy_requested",
            ],
        ),
        (&["node"], &["volume.created", "volume.snapshot_started", "incarnation.start_requested"]),
        (
            &["owner", "deletion_requested_by"],
            &[
                "volume.created",
                "volume.snapshot_started",
                "volume.deletion_started",
                "replica.deleted",
                "volume.command_failed",
            ],
        ),
        (
            &["replica", "incarnation"],
            &["incarnation.start_requested", "incarnation.ended", "replica.deleted"],
        ),
    ];

    fn of(fleet: &FleetState, _: &dyn CountSource, name: &VolumeName) -> Option<VolumeRow> {
        let volume = fleet.volumes().get(name)?;
        let user = volume.used_by.and_then(|user| fleet.incarnations().get(&user));
        Some(row!(VolumeRow, volume.meta, {
            name: volume.name.clone(),
            id: volume.id,
            state: match volume.state {
                VolumeState::Creating => VolumeStatus::Creating,
                VolumeState::Ready => VolumeStatus::Ready,
                VolumeState::Lost(_) => VolumeStatus::Lost,
                VolumeState::Destroying => VolumeStatus::Destroying,
            },
            cluster: volume.cluster.clone(),
            node: volume.node.clone(),
            class: volume.class.clone(),
            capacity: volume.capacity,
            owner: volume.owner.clone(),
            on_delete: volume.on_delete,
            replica: user.map(|user| user.replica.clone()),
            incarnation: volume.used_by,
            source: volume.source.as_ref().map(|(name, _)| name.clone()),
            deletion_requested_by: volume.deletion_requested_by.clone(),
            message: volume_message(volume),
        }))
    }
}

fn volume_message(volume: &Volume) -> String {
    let waits = volume.used_by.is_some() && volume.deletion_requested_by.is_some();
    match (&volume.state, &volume.error, volume.command) {
        (VolumeState::Lost(reason), ..) => reason.clone(),
        (_, Some(error), Some(command)) => {
            format!("{error}; attempt {} not before {}", command.attempt, command.not_before)
        }
        (_, Some(error), None) => error.clone(),
        (_, None, _) if waits => "deleted once unused".into(),
        (_, None, _) => String::new(),
    }
}

impl ReadModelRow for SessionRow {
    const FILTERS: &'static [FilterDef<SessionRow>] = &[
        by_id!(Sessions),
        by_name!("cluster", ClusterName, |row, cluster| row.cluster == *cluster),
        by_word!("state", SessionStatus::ALL, |row| row.state),
    ];
    const SETTERS: &'static [FieldFacts] = &[
        (&["cluster", "executor", "runtime", "store"], &["session.opened"]),
        (&["state"], &["session.opened", "session.closed"]),
    ];

    fn of(fleet: &FleetState, _: &dyn CountSource, id: &SessionId) -> Option<SessionRow> {
        let session = fleet.sessions().get(id)?;
        let state = match session.end {
            None => SessionStatus::Open,
            Some(SessionEnd::Expired) => SessionStatus::Expired,
            Some(SessionEnd::Left) => SessionStatus::Left,
            Some(SessionEnd::ClusterDeleted) => SessionStatus::ClusterDeleted,
        };
        Some(row!(SessionRow, session.meta, {
            id: session.id,
            cluster: session.cluster.clone(),
            executor: session.executor.clone(),
            runtime: session.runtime,
            store: session.store,
            state: state,
        }))
    }
}
