//! The specs of plans: approvals, timeouts, affinities.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Approval, Company, Matcher, OperationKind, Otherwise, Payload, Placement, Restart, Sharing, Succession,
    UnreadyAction, VolumeClaim,
};
use crate::amount::Amounts;
use crate::name::{
    ClusterName, GroupName, Key, Namespace, ReplicaName, ServiceName, StorageClass, VolumeName, ZoneName,
};
use crate::observation::{ADDRESS_BYTES, Address, ProbeError, Process, ProcessStatus};
use crate::size::json_bytes;

/// Who approves, by kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalPolicy {
    /// Of `create`.
    #[serde(default = "manual")]
    pub create: Approval,
    /// Of `update`.
    #[serde(default = "manual")]
    pub update: Approval,
    /// Of `relocate`.
    #[serde(default = "manual")]
    pub relocate: Approval,
    /// Of `restart`.
    #[serde(default = "manual")]
    pub restart: Approval,
    /// Of `start`.
    #[serde(default = "manual")]
    pub start: Approval,
    /// Of `stop`.
    #[serde(default = "manual")]
    pub stop: Approval,
    /// Of `delete`.
    #[serde(default = "manual")]
    pub delete: Approval,
}

fn manual() -> Approval {
    Approval::Manual
}

impl ApprovalPolicy {
    /// The same for every kind.
    pub const fn all(approval: Approval) -> ApprovalPolicy {
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
    pub const fn of(self, kind: OperationKind) -> Approval {
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
        ApprovalPolicy::all(Approval::Manual)
    }
}

/// How long things may take, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timeouts {
    /// An operation waits for approval at most this long.
    #[serde(default = "Timeouts::approval_default")]
    pub approval: u64,
    /// From the first command until ready.
    #[serde(default = "Timeouts::start_default")]
    pub start: u64,
    /// From SIGTERM until SIGKILL.
    #[serde(default = "Timeouts::stop_default")]
    pub stop: u64,
}

impl Timeouts {
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

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            approval: Timeouts::approval_default(),
            start: Timeouts::start_default(),
            stop: Timeouts::stop_default(),
        }
    }
}

/// What is done about a run that was ready, is not ready any more, and does not become ready again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unready {
    /// Time of being unready after which the action is taken, in milliseconds: 300000 unless set.
    #[serde(default = "Unready::default_after")]
    pub after: u64,
    /// The action: show unless set.
    #[serde(default)]
    pub action: UnreadyAction,
}

impl Unready {
    const fn default_after() -> u64 {
        5 * 60 * 1000
    }

    /// Time of being unready after which the action is taken.
    pub const fn after(self) -> Duration {
        Duration::from_millis(self.after)
    }
}

impl Default for Unready {
    fn default() -> Unready {
        Unready { after: Unready::default_after(), action: UnreadyAction::default() }
    }
}

/// What the nodes of replicas have to do with those of a group, whatever plans its replicas are of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Affinity {
    /// The group. Every plan that names it adds its replicas.
    pub group: GroupName,
    /// What is asked.
    pub nodes: Company,
    /// What if there is no such node.
    #[serde(default = "fail")]
    pub otherwise: Otherwise,
}

fn fail() -> Otherwise {
    Otherwise::Fail
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
    pub selectors: BTreeMap<Key, String>,
    /// Only nodes with such capabilities; all must hold, at most one a type.
    #[serde(default)]
    pub matchers: Vec<Matcher>,
    /// Whether its replicas may share a node.
    #[serde(default = "never")]
    pub sharing: Sharing,
    /// Where its replicas are placed, among the nodes that will do.
    #[serde(default = "spread")]
    pub placement: Placement,
    /// Where its replicas may be, given those of groups; at most one entry a group.
    #[serde(default)]
    pub affinity: Vec<Affinity>,
    /// Its parts, at least one.
    pub payloads: Vec<Payload>,
    /// When what ended by itself is started again.
    #[serde(default = "best_effort")]
    pub restart: Restart,
    /// From the first to the second such start, in milliseconds; twice as long each time in a row, up to 32 times.
    /// A row ends when a run lasted 32 times as long.
    #[serde(default = "cooldown")]
    pub cooldown: u64,
    /// How an update gives way where it cannot be done in place.
    #[serde(default = "beside")]
    pub update: Succession,
    /// How many of its replicas disruptions may move at once, at least one.
    #[serde(default = "one_replica")]
    pub budget: u32,
    /// Who approves.
    #[serde(default)]
    pub approval: ApprovalPolicy,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// What is done about a run that was ready, is not ready any more, and does not become ready again.
    #[serde(default)]
    pub unready: Unready,
}

fn never() -> Sharing {
    Sharing::Never
}

fn spread() -> Placement {
    Placement::Spread
}

fn best_effort() -> Restart {
    Restart::BestEffort
}

fn cooldown() -> u64 {
    10_000
}

fn beside() -> Succession {
    Succession::Beside
}

fn one_replica() -> u32 {
    1
}

impl PlanSpec {
    /// What one replica needs of a node.
    pub fn amounts(&self) -> Amounts {
        self.payloads
            .iter()
            .map(|p| {
                let n = u64::from(p.processes);
                Amounts {
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
fn largest(payload: &Payload) -> Process {
    let address =
        |port: &super::Port| Address { port: port.name.clone(), address: "0".repeat(ADDRESS_BYTES) };
    Process {
        payload: payload.name.clone(),
        index: u16::MAX,
        pid: Some(u32::MAX),
        addresses: payload.ports.iter().map(address).collect(),
        status: ProcessStatus::Unresponsive { error: ProbeError::Status { code: u16::MAX } },
    }
}
