//! What people write: the specs of clusters, capabilities, nodes, plans and deployments.
//!
//! These shapes stand in intents, in facts, in the state and in answers. Nothing is left out when they are
//! written (`skip_serializing_if` would break the positional codec of snapshots and rows), and unknown fields are
//! refused when they are read.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amounts;
use crate::name::{
    CapabilityName, CapabilityType, ClusterName, DomainName, GroupName, Key, Namespace, PayloadName,
    PlanName, PortName, ReplicaName, ServiceName, StorageClass, VolumeName, ZoneName,
};
use crate::time::Time;

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant),*
        }

        impl $name {
            /// Every one, in order.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The word for it, everywhere.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }
    )*};
}
pub(crate) use words;

words! {
    /// What an orchestrator is made of.
    Runtime {
        /// Operating-system processes on the executor's own machine.
        Process = "process",
        /// Nothing real: for tests, sizing and play.
        Simulated = "simulated",
    }
    /// Whether something is in use.
    Activity {
        /// In use.
        Active = "active",
        /// Kept, but not to be chosen.
        Inactive = "inactive",
    }
    /// How the named capabilities are compared with those of a node, within one type.
    Comparator {
        /// At least one of the named.
        In = "in",
        /// None of the named.
        NotIn = "not_in",
        /// All of the named.
        Eq = "eq",
        /// A score of at least each of the named.
        Gte = "gte",
        /// A score of at most each of the named.
        Lte = "lte",
    }
    /// Whether replicas of one plan may share a node.
    Sharing {
        /// One replica of the plan a node.
        Never = "never",
        /// As many as fit.
        Allowed = "allowed",
    }
    /// A transport protocol.
    Protocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
    }
    /// Who approves an operation.
    Approval {
        /// A person.
        Manual = "manual",
        /// The plan's own rule, at once.
        Automatic = "automatic",
    }
    /// What an operation does to its replica.
    OperationKind {
        /// Brings a new replica up.
        Create = "create",
        /// Gives a replica another version.
        Update = "update",
        /// Moves a replica to another node.
        Relocate = "relocate",
        /// Ends a replica's run and brings it up again.
        Restart = "restart",
        /// Brings a replica up again.
        Start = "start",
        /// Ends its run and keeps the replica.
        Stop = "stop",
        /// Ends its run and removes the replica.
        Delete = "delete",
    }
    /// When what ended by itself is started again by its plan's own rule.
    Restart {
        /// However it ended.
        Always = "always",
        /// When it failed.
        BestEffort = "best_effort",
        /// Never.
        Never = "never",
    }
    /// How what runs gives way to what takes its place, where the orchestrator cannot change it in place.
    Succession {
        /// The new one is ready before the old one is stopped.
        Beside = "beside",
        /// The old one is over before the new one is started.
        StopFirst = "stop_first",
    }
    /// What an affinity asks of the nodes of a group's replicas.
    Company {
        /// A node that hosts one of the group, if any does.
        Together = "together",
        /// A node that hosts none of the group.
        Apart = "apart",
    }
    /// What to do where an affinity cannot be kept.
    Otherwise {
        /// There is no place.
        Fail = "fail",
        /// The place is taken all the same, and it is said so.
        Allow = "allow",
    }
    /// What becomes of a graceful deployment whose replicas are not all ready in time.
    OnTimeout {
        /// The new ones go, the old ones stay.
        Rollback = "rollback",
        /// The old ones go all the same.
        Commit = "commit",
    }
    /// The states of a disruption.
    DisruptionState {
        /// Known, and not to be acted on yet.
        Scheduled = "scheduled",
        /// Its node takes no placements; from its start on, it is emptied if that is wanted.
        Approved = "approved",
        /// Is over.
        Completed = "completed",
    }
    /// A day of the week, in UTC.
    Day {
        /// Monday.
        Mon = "mon",
        /// Tuesday.
        Tue = "tue",
        /// Wednesday.
        Wed = "wed",
        /// Thursday.
        Thu = "thu",
        /// Friday.
        Fri = "fri",
        /// Saturday.
        Sat = "sat",
        /// Sunday.
        Sun = "sun",
    }
    /// The states of a node.
    NodeState {
        /// Known, in no cluster.
        Unallocated = "unallocated",
        /// On its way into a cluster.
        Allocating = "allocating",
        /// In a cluster; takes placements.
        Allocated = "allocated",
        /// Taken out of its cluster.
        Evicted = "evicted",
        /// Being cleaned.
        Sanitizing = "sanitizing",
        /// Gone, on the operator's word, with everything on it.
        Expunged = "expunged",
    }
}

impl Runtime {
    /// Whether what runs can be changed where it stands, without another run of it.
    pub const fn changes_in_place(self) -> bool {
        match self {
            // What a process was started with, it has until it ends.
            Runtime::Process => false,
            Runtime::Simulated => true,
        }
    }
}

/// A set of nodes behind one orchestrator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// What its orchestrator is made of.
    pub runtime: Runtime,
}

/// Something a node may have, with a score.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilitySpec {
    /// What it is a measure of, as `GPU`.
    #[serde(rename = "type")]
    pub kind: CapabilityType,
    /// Higher is better, within a type.
    pub score: u32,
}

/// Storage of one class on a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Its class.
    pub class: StorageClass,
    /// Bytes.
    pub capacity: u64,
}

/// A place with capacity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// The update domain: nodes that may go together.
    pub domain: DomainName,
    /// Where it stands.
    #[serde(default)]
    pub zone: Option<ZoneName>,
    /// For selectors.
    #[serde(default)]
    pub labels: BTreeMap<Key, String>,
    /// All that it has.
    pub total: Amounts,
    /// What of it is not for placements.
    #[serde(default)]
    pub reserved: Amounts,
    /// What it has, by name.
    #[serde(default)]
    pub capabilities: Vec<CapabilityName>,
    /// Storage, at most one entry a class.
    #[serde(default)]
    pub storage: Vec<Storage>,
}

/// A condition on a node's capabilities of one type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Matcher {
    /// The type whose capabilities are compared.
    #[serde(rename = "type")]
    pub kind: CapabilityType,
    /// How.
    pub comparator: Comparator,
    /// With which.
    pub names: Vec<CapabilityName>,
}

/// A port of a payload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its name, for `${port.NAME}`.
    pub name: PortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// The number inside the run, where the runtime has an inside; processes are assigned free ones.
    pub port: u16,
}

/// Storage that a payload needs on its node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeClaim {
    /// The volume, if it is one with a name of its own, which plans may hand to each other: it has one user at a time.
    /// Without, each replica has its own.
    #[serde(default)]
    pub volume: Option<VolumeName>,
    /// What becomes of a replica's own volume when the replica is deleted.
    #[serde(default)]
    pub on_delete: OnDelete,
    /// Its class.
    pub class: StorageClass,
    /// Bytes.
    pub capacity: u64,
    /// Where the payload sees it.
    pub mount: String,
}

words! {
    /// What becomes of a replica's own volume when the replica is deleted.
    #[derive(Default)]
    OnDelete {
        /// It is kept, with all that is in it, until somebody deletes it.
        #[default]
        Keep = "keep",
        /// It is destroyed, once nothing can use it any more.
        Destroy = "destroy",
    }
}

impl VolumeClaim {
    /// The name of the volume that it is for a payload of the replica.
    pub fn name(&self, replica: &ReplicaName, payload: &PayloadName) -> VolumeName {
        self.volume.clone().unwrap_or_else(|| VolumeName::of(replica, payload, &self.mount))
    }
}

/// The variable in which a process is told of a port: `PORT_HTTP` of `http`.
pub fn port_variable(name: &PortName) -> String {
    format!("PORT_{}", upper(name.as_str()))
}

/// What the variables that tell of volumes begin with.
pub const VOLUME_VARIABLE: &str = "CHANCERY_VOLUME_";

/// The variable in which a process is told where a volume is: `CHANCERY_VOLUME_VAR_LIB_DB` of `/var/lib/db`.
pub fn volume_variable(mount: &str) -> String {
    format!("{VOLUME_VARIABLE}{}", upper(mount).trim_start_matches('_'))
}

fn upper(name: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(upper).collect()
}

/// What a process executor starts.
///
/// `argv` and the values of `env` may name `${KEY}` of the deployment's coordinates for the payload,
/// `${port.NAME}`, `${volume.MOUNT}` (where the volume is that is to be mounted there), and `${replica}`, `${incarnation}`, `${node}`, `${process}`; `$$` is a dollar.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The program and its arguments; no shell.
    pub argv: Vec<String>,
    /// The whole environment, but for what the executor adds (`docs`: executor).
    #[serde(default)]
    pub env: BTreeMap<Key, String>,
}

/// How a process shows that it is ready. Without a probe it is ready when it runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Probe {
    /// The port accepts a connection.
    Tcp {
        /// The port's name.
        port: PortName,
    },
    /// `GET path` at the port answers 2xx.
    Http {
        /// The port's name.
        port: PortName,
        /// The path, beginning with `/`.
        path: String,
    },
}

/// A part of a plan's replica: one or more equal processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// Its name, unique in the plan.
    pub name: PayloadName,
    /// What each of its processes needs, and of memory may have at most.
    pub resources: Amounts,
    /// How many processes, at least one.
    #[serde(default = "one")]
    pub processes: u16,
    /// Its ports, each process its own.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// Its storage.
    #[serde(default)]
    pub volumes: Vec<VolumeClaim>,
    /// What to start.
    #[serde(default)]
    pub run: Option<Run>,
    /// When it is ready.
    #[serde(default)]
    pub ready: Option<Probe>,
}

fn one() -> u16 {
    1
}

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
}

fn never() -> Sharing {
    Sharing::Never
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

/// Which version of each payload to run, as the payload's own keys say it.
pub type Coordinates = BTreeMap<PayloadName, BTreeMap<Key, String>>;

/// A version of a plan's payloads, and a count.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentSpec {
    /// For each payload that has any.
    #[serde(default)]
    pub coordinates: Coordinates,
    /// How many replicas.
    pub count: u32,
    /// How the plan's replicas come to be so.
    #[serde(default)]
    pub strategy: Strategy,
}

/// How a deployment is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Strategy {
    /// A few at a time, the next ones when those are well.
    Rolling {
        /// So many operations of it may run at once. Without it, one at a time of those that update, and as many as
        /// there are of all others.
        #[serde(default)]
        wave: Option<u32>,
        /// Whether those that run at once must be in one update domain.
        #[serde(default)]
        per_domain: bool,
        /// After each that is done, milliseconds until the next begins.
        #[serde(default)]
        pause: u64,
    },
    /// The whole new set beside the old one; when all are ready, the old ones go.
    Graceful {
        /// How long that may take, in milliseconds from its start.
        timeout: u64,
        /// What then.
        on_timeout: OnTimeout,
    },
    /// Some of the new version beside the old ones, until they are promoted or withdrawn.
    Canary {
        /// How many.
        count: u32,
    },
}

impl Default for Strategy {
    fn default() -> Strategy {
        Strategy::Rolling { wave: None, per_domain: false, pause: 0 }
    }
}

/// A planned interference with a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisruptionSpec {
    /// When the node is emptied, if it is, once the disruption is approved; at once, if absent.
    #[serde(default)]
    pub start: Option<Time>,
    /// Whether replicas are moved away from the node.
    #[serde(default)]
    pub evict: Evict,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

words! {
    /// What a disruption does to what runs on its node.
    #[derive(Default)]
    Evict {
        /// Nothing: only no placement is added.
        #[default]
        No = "no",
        /// Moves it away, one update domain at a time and within the budgets of plans; then the disruption is over.
        Yes = "yes",
        /// The same; then the node is forgotten.
        AndRemove = "and_remove",
    }
}

/// A rule about approvals, beside those of plans.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// Operations of these kinds; of every kind, if empty.
    #[serde(default)]
    pub kinds: Vec<OperationKind>,
    /// Of these plans; of every plan, if empty.
    #[serde(default)]
    pub plans: Vec<PlanName>,
    /// On nodes of these update domains; anywhere, if empty.
    #[serde(default)]
    pub domains: Vec<DomainName>,
    /// What it does about them.
    pub rule: Rule,
}

/// What a policy does about operations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Rule {
    /// Approves them, while all of this holds.
    Approve {
        /// Only in one of these windows; at any time, if empty.
        #[serde(default)]
        windows: Vec<Window>,
        /// Only while fewer that it approved are not over.
        #[serde(default)]
        in_flight: Option<u32>,
    },
    /// Whoever approves must be another than whoever asked.
    FourEyes {},
}

/// A time of the week, in UTC.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The days on which it opens; every day, if empty.
    #[serde(default)]
    pub days: Vec<Day>,
    /// When it opens, in minutes from midnight, below 1440.
    pub from: u16,
    /// How long it stays open, in minutes, from 1 to 10080.
    pub minutes: u16,
}
