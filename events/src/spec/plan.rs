//! Specifications of plans: approvals, timeouts, affinities.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AffinityKind, AffinityPolicy, ApprovalMode, CapabilityMatcher, NodeSharing, OperationKind, Payload,
    PlacementPolicy, RestartPolicy, UnreadyAction, UpdateOrder, VolumeClaim,
};
use crate::name::{
    ClusterName, GroupName, KeyName, Namespace, ReplicaName, ServiceName, StorageClass, VolumeName, ZoneName,
};
use crate::observation::{
    ADDRESS_BYTES, OBJECT_NAME_BYTES, OBJECT_UID_BYTES, PortAddress, ProcessInfo, ProcessStatus,
    RuntimeObject, WAITING_REASON_BYTES,
};
use crate::resources::Resources;
use crate::size::json_bytes;
use crate::time::Time;

/// Approval modes of a plan, by kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalPolicy {
    /// Approval mode of `create`; manual if absent.
    #[serde(default)]
    pub create: ApprovalMode,
    /// Approval mode of `update`; manual if absent.
    #[serde(default)]
    pub update: ApprovalMode,
    /// Approval mode of `relocate`; manual if absent.
    #[serde(default)]
    pub relocate: ApprovalMode,
    /// Approval mode of `restart`; manual if absent.
    #[serde(default)]
    pub restart: ApprovalMode,
    /// Approval mode of `start`; manual if absent.
    #[serde(default)]
    pub start: ApprovalMode,
    /// Approval mode of `stop`; manual if absent.
    #[serde(default)]
    pub stop: ApprovalMode,
    /// Approval mode of `delete`; manual if absent.
    #[serde(default)]
    pub delete: ApprovalMode,
    /// Approval mode of `reboot`; manual if absent.
    #[serde(default)]
    pub reboot: ApprovalMode,
}

impl ApprovalPolicy {
    /// Returns the policy with the same mode for every kind of operation.
    pub const fn all(approval: ApprovalMode) -> ApprovalPolicy {
        ApprovalPolicy {
            create: approval,
            update: approval,
            relocate: approval,
            restart: approval,
            start: approval,
            stop: approval,
            delete: approval,
            reboot: approval,
        }
    }

    /// Returns the approval mode of operations of `kind`.
    pub const fn of(self, kind: OperationKind) -> ApprovalMode {
        match kind {
            OperationKind::Create => self.create,
            OperationKind::Update => self.update,
            OperationKind::Relocate => self.relocate,
            OperationKind::Restart => self.restart,
            OperationKind::Start => self.start,
            OperationKind::Stop => self.stop,
            OperationKind::Delete => self.delete,
            OperationKind::Reboot => self.reboot,
        }
    }
}

/// Timeouts of a plan, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlanTimeouts {
    /// Maximum time that an operation waits for approval, in milliseconds; 24 hours if absent.
    pub approval: u64,
    /// Maximum time from the first command until ready, in milliseconds; 5 minutes if absent.
    pub start: u64,
    /// Time from SIGTERM until SIGKILL, in milliseconds; 10 seconds if absent.
    pub stop: u64,
}

impl PlanTimeouts {
    /// Returns the maximum time that an operation waits for approval.
    pub const fn approval(self) -> Duration {
        Duration::from_millis(self.approval)
    }

    /// Returns the maximum time from the first command until ready.
    pub const fn start(self) -> Duration {
        Duration::from_millis(self.start)
    }

    /// Returns the time from SIGTERM until SIGKILL.
    pub const fn stop(self) -> Duration {
        Duration::from_millis(self.stop)
    }
}

impl Default for PlanTimeouts {
    fn default() -> PlanTimeouts {
        PlanTimeouts { approval: 24 * 60 * 60 * 1000, start: 5 * 60 * 1000, stop: 10 * 1000 }
    }
}

/// Rule for an incarnation that was ready, and stays unready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UnreadyRule {
    /// Unready time after which the action is taken, in milliseconds; 300000 if absent.
    pub after: u64,
    /// Action on the incarnation; `show` if absent.
    pub action: UnreadyAction,
}

impl UnreadyRule {
    /// Unready time after which the action is taken.
    pub const fn after(self) -> Duration {
        Duration::from_millis(self.after)
    }
}

impl Default for UnreadyRule {
    fn default() -> UnreadyRule {
        UnreadyRule { after: 5 * 60 * 1000, action: UnreadyAction::default() }
    }
}

/// Affinity: a relation of the nodes of replicas to those of a group, whatever plans the group's replicas
/// belong to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AffinityRule {
    /// Name of the group: the replicas of every plan that names it.
    pub group: GroupName,
    /// Demand on nodes: another replica of the group, if any node has one; or none of its other replicas.
    pub kind: AffinityKind,
    /// Fallback if there is no such node; `fail` if absent.
    #[serde(default)]
    pub policy: AffinityPolicy,
}

/// Plan: the payloads to run, and the nodes where they may run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// Namespace of the plan's incarnations: a label, which isolates nothing.
    pub namespace: Namespace,
    /// Service that the plan provides; replicas are named after it.
    pub service: ServiceName,
    /// Labels of the plan's incarnations, for runtimes whose objects have labels; none if absent.
    #[serde(default)]
    pub labels: BTreeMap<KeyName, String>,
    /// Cluster whose nodes may be used; any cluster, if absent.
    #[serde(default)]
    pub cluster: Option<ClusterName>,
    /// Zone whose nodes may be used; any zone, if `zone` and `zones` are absent.
    #[serde(default)]
    pub zone: Option<ZoneName>,
    /// Further zones whose nodes may be used.
    #[serde(default)]
    pub zones: Vec<ZoneName>,
    /// Labels that a node must have; none if absent.
    #[serde(default)]
    pub selectors: BTreeMap<KeyName, String>,
    /// Conditions on the capabilities of nodes: all must hold, at most one per type; none if absent.
    #[serde(default)]
    pub matchers: Vec<CapabilityMatcher>,
    /// Whether replicas of the plan may share a node; `never` if absent.
    #[serde(default)]
    pub sharing: NodeSharing,
    /// Rule that chooses among the nodes that are suitable for a replica; `spread` if absent.
    #[serde(default)]
    pub placement: PlacementPolicy,
    /// Affinities of the plan's replicas to groups; at most one entry per group.
    #[serde(default)]
    pub affinity: Vec<AffinityRule>,
    /// Payloads of the plan, at least one.
    pub payloads: Vec<Payload>,
    /// Rule for starting an incarnation again that ended without a request; `on_failure` if absent.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Delay between the first and the second automatic restart, in milliseconds; 10000 if absent. The first
    /// restart is immediate. The delay doubles with each consecutive restart, up to 32 times its first value.
    /// An incarnation that lasted 32 times the first value after it was ready ends the series.
    #[serde(default = "restart_delay")]
    pub restart_delay: u64,
    /// Order of an update that cannot be done in place; `start_first` if absent.
    #[serde(default)]
    pub update_order: UpdateOrder,
    /// Maximum number of the plan's replicas that disruptions move concurrently, at least one; 1 if absent.
    #[serde(default = "one_replica")]
    pub max_unavailable: u32,
    /// Approval modes of the plan's operations; all manual if absent. No requested change starts before its
    /// approval. After a failure, `restart` starts a replica again without approval.
    #[serde(default)]
    pub approval: ApprovalPolicy,
    /// Timeouts of the plan.
    #[serde(default)]
    pub timeouts: PlanTimeouts,
    /// Rule for an incarnation that was ready, and stays unready.
    #[serde(default)]
    pub unready: UnreadyRule,
}

fn restart_delay() -> u64 {
    10_000
}

fn one_replica() -> u32 {
    1
}

impl PlanSpec {
    /// Returns the resources that one replica needs of a node.
    pub fn resources(&self) -> Resources {
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

    /// Returns the claims of a replica, each with the name of its volume.
    pub fn claims(&self, replica: &ReplicaName) -> impl Iterator<Item = (VolumeName, &VolumeClaim)> {
        let all = self
            .payloads
            .iter()
            .flat_map(|payload| payload.volumes.iter().map(move |claim| (payload, claim)));
        all.map(move |(payload, claim)| (claim.name(replica, &payload.name), claim))
    }

    /// Returns the maximum size of the processes of one replica's report as JSON, in bytes.
    pub fn processes_bytes(&self) -> usize {
        self.payloads
            .iter()
            .map(|payload| usize::from(payload.processes) * (json_bytes(&largest(payload)) + 1))
            .sum()
    }

    /// Whether the plan claims any volume.
    pub fn has_volumes(&self) -> bool {
        self.payloads.iter().any(|payload| !payload.volumes.is_empty())
    }

    /// Whether the plan claims a volume that only one replica can have.
    pub fn claims_by_name(&self) -> bool {
        self.payloads.iter().flat_map(|payload| &payload.volumes).any(|claim| claim.volume.is_some())
    }

    /// Returns the bytes that one replica needs of a node's storage, by class.
    pub fn volumes(&self) -> BTreeMap<StorageClass, u64> {
        let mut sums = BTreeMap::new();
        for claim in self.payloads.iter().flat_map(|p| &p.volumes) {
            let sum: &mut u64 = sums.entry(claim.class.clone()).or_default();
            *sum = sum.saturating_add(claim.capacity);
        }
        sums
    }
}

/// Returns a process of the payload with the maximum size in a report.
fn largest(payload: &Payload) -> ProcessInfo {
    let address = |port: &super::PayloadPort| PortAddress {
        port: port.name.clone(),
        address: "0".repeat(ADDRESS_BYTES),
    };
    let object = RuntimeObject { name: "0".repeat(OBJECT_NAME_BYTES), uid: "0".repeat(OBJECT_UID_BYTES) };
    ProcessInfo {
        payload: payload.name.clone(),
        index: u16::MAX,
        pid: None,
        object: Some(object),
        addresses: payload.ports.iter().map(address).collect(),
        // A report that is too large loses the messages of processes that wait.
        status: ProcessStatus::Waiting { reason: "0".repeat(WAITING_REASON_BYTES), message: String::new() },
        since: Some(Time::FAR),
        resets: u32::MAX,
    }
}
