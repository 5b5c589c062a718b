//! The specs of plans: approvals, timeouts, affinities.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AffinityKind, AffinityPolicy, ApprovalMode, CapabilityMatcher, NodeSharing, OperationKind, Payload,
    PlacementPolicy, RestartPolicy, UnreadyAction, UpdateOrder, VolumeClaim,
};
use crate::amount::Resources;
use crate::name::{
    ClusterName, GroupName, KeyName, Namespace, ReplicaName, ServiceName, StorageClass, VolumeName, ZoneName,
};
use crate::observation::{ADDRESS_BYTES, PortAddress, ProbeError, ProcessInfo, ProcessStatus};
use crate::size::json_bytes;

/// Who approves, by kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalPolicy {
    /// Of `create`.
    #[serde(default = "manual")]
    pub create: ApprovalMode,
    /// Of `update`.
    #[serde(default = "manual")]
    pub update: ApprovalMode,
    /// Of `relocate`.
    #[serde(default = "manual")]
    pub relocate: ApprovalMode,
    /// Of `restart`.
    #[serde(default = "manual")]
    pub restart: ApprovalMode,
    /// Of `start`.
    #[serde(default = "manual")]
    pub start: ApprovalMode,
    /// Of `stop`.
    #[serde(default = "manual")]
    pub stop: ApprovalMode,
    /// Of `delete`.
    #[serde(default = "manual")]
    pub delete: ApprovalMode,
}

fn manual() -> ApprovalMode {
    ApprovalMode::Manual
}

impl ApprovalPolicy {
    /// The same for every kind.
    pub const fn all(approval: ApprovalMode) -> ApprovalPolicy {
        ApprovalPolicy {
            create: approval,
            update: approval,
            relocate: approval,
            restart: approval,
            start: approval,
            stop: approval,
            delete: approval,
        }
    }

    /// Who approves operations of `kind`.
    pub const fn of(self, kind: OperationKind) -> ApprovalMode {
        match kind {
            OperationKind::Create => self.create,
            OperationKind::Update => self.update,
            OperationKind::Relocate => self.relocate,
            OperationKind::Restart => self.restart,
            OperationKind::Start => self.start,
            OperationKind::Stop => self.stop,
            OperationKind::Delete => self.delete,
        }
    }
}

impl Default for ApprovalPolicy {
    fn default() -> ApprovalPolicy {
        ApprovalPolicy::all(ApprovalMode::Manual)
    }
}

/// How long things may take, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanTimeouts {
    /// An operation waits for approval at most this long.
    #[serde(default = "PlanTimeouts::approval_default")]
    pub approval: u64,
    /// From the first command until ready.
    #[serde(default = "PlanTimeouts::start_default")]
    pub start: u64,
    /// From SIGTERM until SIGKILL.
    #[serde(default = "PlanTimeouts::stop_default")]
    pub stop: u64,
}

impl PlanTimeouts {
    const fn approval_default() -> u64 {
        24 * 60 * 60 * 1000
    }
    const fn start_default() -> u64 {
        5 * 60 * 1000
    }
    const fn stop_default() -> u64 {
        10 * 1000
    }

    /// An operation waits for approval at most this long.
    pub const fn approval(self) -> Duration {
        Duration::from_millis(self.approval)
    }

    /// From the first command until ready.
    pub const fn start(self) -> Duration {
        Duration::from_millis(self.start)
    }

    /// From SIGTERM until SIGKILL.
    pub const fn stop(self) -> Duration {
        Duration::from_millis(self.stop)
    }
}

impl Default for PlanTimeouts {
    fn default() -> PlanTimeouts {
        PlanTimeouts {
            approval: PlanTimeouts::approval_default(),
            start: PlanTimeouts::start_default(),
            stop: PlanTimeouts::stop_default(),
        }
    }
}

/// What is done about a run that was ready, is not ready any more, and does not become ready again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnreadyRule {
    /// Time of being unready after which the action is taken, in milliseconds: 300000 unless set.
    #[serde(default = "UnreadyRule::default_after")]
    pub after: u64,
    /// The action: show unless set.
    #[serde(default)]
    pub action: UnreadyAction,
}

impl UnreadyRule {
    const fn default_after() -> u64 {
        5 * 60 * 1000
    }

    /// Time of being unready after which the action is taken.
    pub const fn after(self) -> Duration {
        Duration::from_millis(self.after)
    }
}

impl Default for UnreadyRule {
    fn default() -> UnreadyRule {
        UnreadyRule { after: UnreadyRule::default_after(), action: UnreadyAction::default() }
    }
}

/// What the nodes of replicas have to do with those of a group, whatever plans its replicas are of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AffinityRule {
    /// The group. Every plan that names it adds its replicas.
    pub group: GroupName,
    /// What is asked.
    pub nodes: AffinityKind,
    /// What if there is no such node.
    #[serde(default = "fail")]
    pub otherwise: AffinityPolicy,
}

fn fail() -> AffinityPolicy {
    AffinityPolicy::Fail
}

/// What to run and where it may run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// The namespace that its runs live in.
    pub namespace: Namespace,
    /// The service that it provides; replicas are named after it.
    pub service: ServiceName,
    /// Only nodes of this cluster.
    #[serde(default)]
    pub cluster: Option<ClusterName>,
    /// Only nodes of this zone.
    #[serde(default)]
    pub zone: Option<ZoneName>,
    /// Only nodes with these labels.
    #[serde(default)]
    pub selectors: BTreeMap<KeyName, String>,
    /// Only nodes with such capabilities; all must hold, at most one a type.
    #[serde(default)]
    pub matchers: Vec<CapabilityMatcher>,
    /// Whether its replicas may share a node.
    #[serde(default = "never")]
    pub sharing: NodeSharing,
    /// Where its replicas are placed, among the nodes that will do.
    #[serde(default = "spread")]
    pub placement: PlacementPolicy,
    /// Where its replicas may be, given those of groups; at most one entry a group.
    #[serde(default)]
    pub affinity: Vec<AffinityRule>,
    /// Its parts, at least one.
    pub payloads: Vec<Payload>,
    /// When what ended by itself is started again.
    #[serde(default = "best_effort")]
    pub restart: RestartPolicy,
    /// From the first to the second such start, in milliseconds; twice as long each time in a row, up to 32 times.
    /// A row ends when a run lasted 32 times as long.
    #[serde(default = "cooldown")]
    pub cooldown: u64,
    /// How an update gives way where it cannot be done in place.
    #[serde(default = "beside")]
    pub update: UpdateOrder,
    /// How many of its replicas disruptions may move at once, at least one.
    #[serde(default = "one_replica")]
    pub budget: u32,
    /// Who approves.
    #[serde(default)]
    pub approval: ApprovalPolicy,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: PlanTimeouts,
    /// What is done about a run that was ready, is not ready any more, and does not become ready again.
    #[serde(default)]
    pub unready: UnreadyRule,
}

fn never() -> NodeSharing {
    NodeSharing::Never
}

fn spread() -> PlacementPolicy {
    PlacementPolicy::Spread
}

fn best_effort() -> RestartPolicy {
    RestartPolicy::BestEffort
}

fn cooldown() -> u64 {
    10_000
}

fn beside() -> UpdateOrder {
    UpdateOrder::Beside
}

fn one_replica() -> u32 {
    1
}

impl PlanSpec {
    /// What one replica needs of a node.
    pub fn amounts(&self) -> Resources {
        self.payloads
            .iter()
            .map(|p| {
                let n = u64::from(p.processes);
                Resources {
                    cpu: p.resources.cpu.saturating_mul(n),
                    memory: p.resources.memory.saturating_mul(n),
                    disk: p.resources.disk.saturating_mul(n),
                }
            })
            .sum()
    }

    /// The claims of a replica, each with the name of its volume.
    pub fn claims(&self, replica: &ReplicaName) -> impl Iterator<Item = (VolumeName, &VolumeClaim)> {
        let all = self
            .payloads
            .iter()
            .flat_map(|payload| payload.volumes.iter().map(move |claim| (payload, claim)));
        all.map(move |(payload, claim)| (claim.name(replica, &payload.name), claim))
    }

    /// The largest size that the processes of one replica's report can have as JSON, in bytes.
    pub fn processes_bytes(&self) -> usize {
        self.payloads
            .iter()
            .map(|payload| usize::from(payload.processes) * (json_bytes(&largest(payload)) + 1))
            .sum()
    }

    /// Whether it claims any volume.
    pub fn has_volumes(&self) -> bool {
        self.payloads.iter().any(|payload| !payload.volumes.is_empty())
    }

    /// Whether it claims a volume that only one replica can have.
    pub fn claims_by_name(&self) -> bool {
        self.payloads.iter().flat_map(|payload| &payload.volumes).any(|claim| claim.volume.is_some())
    }

    /// What one replica needs of a node's storage, by class.
    pub fn volumes(&self) -> BTreeMap<StorageClass, u64> {
        let mut sums = BTreeMap::new();
        for claim in self.payloads.iter().flat_map(|p| &p.volumes) {
            let sum: &mut u64 = sums.entry(claim.class.clone()).or_default();
            *sum = sum.saturating_add(claim.capacity);
        }
        sums
    }
}

/// A process of the payload as the largest report shows it.
fn largest(payload: &Payload) -> ProcessInfo {
    let address = |port: &super::PayloadPort| PortAddress {
        port: port.name.clone(),
        address: "0".repeat(ADDRESS_BYTES),
    };
    ProcessInfo {
        payload: payload.name.clone(),
        index: u16::MAX,
        pid: Some(u32::MAX),
        addresses: payload.ports.iter().map(address).collect(),
        status: ProcessStatus::Unresponsive { error: ProbeError::Status { code: u16::MAX } },
    }
}
