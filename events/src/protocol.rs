//! Messages between an executor and the decider: one JSON text per message, in one process or over a network.
//!
//! ```text
//! executor                                        decider
//!   Hello{executor, cluster, store, epoch, …}  ─►        opens or resumes the session, creates a connection token
//!                             ◄─  Welcome{envelope, lease, commands, next_after}
//!   InventoryRequest{after}   ─►   ◄─  Inventory{commands, next_after}   until `next_after` is absent
//!   FullReport{…, partial|last} ─►                       one report per object
//!                             ◄─  Command{envelope, …} | Purge{object} | ReportsAccepted{sequence}
//!   Report{sequence, …}       ─►                         one change
//!   Heartbeat{sequence}       ─►   ◄─  HeartbeatAck{sequence}   renews the lease, from the sending on
//!   Goodbye                   ─►
//! ```
//! No message depends on state that is not durable. Any message may be repeated.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fact::{CommandEffect, OrphanResolution};
use crate::id::{
    ConnectionToken, EpochNonce, ExecutorStoreId, Lineage, ObjectId, Position, SessionId, Term, VolumeId,
};
use crate::name::{
    ClusterName, DeploymentName, DomainName, ExecutorName, FleetName, KeyName, Namespace, NodeName,
    PayloadName, PlanName, ReplicaName, ServiceName, StorageClass, VolumeName, ZoneName,
};
use crate::observation::ObjectReport;
use crate::record::RecordHash;
use crate::spec::{
    ClusterRuntime, ContainerSpec, ExecSpec, PayloadPort, ReadinessProbe, RestartPolicy, VirtualMachineSpec,
};

/// Head of the journal as one party has seen it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JournalHead {
    /// Position of the last event.
    pub position: Position,
    /// Hash of the record that ends at `position`.
    pub hash: RecordHash,
    /// Term that wrote the record.
    pub term: Term,
}

/// Envelope of every message from the decider: the session and the durable head.
///
/// An executor stores the highest head on disk and refuses lower terms. It stops if the hash at a position
/// that it knows differs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeciderEnvelope {
    /// Session of the connection.
    pub session: SessionId,
    /// Token of this connection.
    pub connection: ConnectionToken,
    /// Durable head of the journal.
    pub head: JournalHead,
}

/// Epoch of an executor store: one start of its executor. Epochs of one store do not overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExecutorEpoch {
    /// Number of the epoch in its executor store, stored before the epoch starts.
    pub number: u64,
    /// Random value that distinguishes the epoch from an epoch of a copy of the store.
    pub instance: EpochNonce,
}

/// Relation of an epoch to an earlier received epoch of the same executor store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EpochOrder {
    /// The epochs are the same.
    Same,
    /// The epoch came later. The earlier epoch has ended, because an executor store has a lock.
    Newer,
    /// The epoch came earlier and should have ended.
    Older,
    /// Both epochs have the same number but different random values: the executor store was copied.
    Cloned,
}

impl ExecutorEpoch {
    /// Returns the relation of this epoch to `known`.
    pub fn after(self, known: ExecutorEpoch) -> EpochOrder {
        match self.number.cmp(&known.number) {
            Ordering::Greater => EpochOrder::Newer,
            Ordering::Less => EpochOrder::Older,
            Ordering::Equal if self.instance == known.instance => EpochOrder::Same,
            Ordering::Equal => EpochOrder::Cloned,
        }
    }
}

/// Message from an executor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorMessage {
    /// First message of a connection.
    Hello {
        /// Name of the executor.
        executor: ExecutorName,
        /// Cluster that the executor requests. The executor has the lock of its store.
        cluster: ClusterName,
        /// Runtime that the executor drives.
        runtime: ClusterRuntime,
        /// Id of the executor store.
        store: ExecutorStoreId,
        /// Epoch of the executor store.
        epoch: ExecutorEpoch,
        /// Highest head that the executor has seen, with its lineage; `None` if it has seen no head.
        seen: Option<(Lineage, JournalHead)>,
    },
    /// Part of the full report: the observed state of each incarnation, and objects without a command.
    FullReport {
        /// Token of this connection.
        connection: ConnectionToken,
        /// Reports of this part.
        reports: Vec<ObjectReport>,
        /// Whether this is the last part.
        part: ReportPart,
    },
    /// Change after the full report.
    Report {
        /// Token of this connection.
        connection: ConnectionToken,
        /// Number of the report in this connection, from 1.
        sequence: u64,
        /// Observed state of one object.
        report: ObjectReport,
    },
    /// Request for the next part of the inventory.
    InventoryRequest {
        /// Token of this connection.
        connection: ConnectionToken,
        /// Object after which the next part starts, as given in the last part.
        after: ObjectId,
    },
    /// Heartbeat: renews the lease of the session.
    Heartbeat {
        /// Token of this connection.
        connection: ConnectionToken,
        /// Number that [`DeciderMessage::HeartbeatAck`] returns, so that the executor knows when the renewed lease
        /// was sent.
        sequence: u64,
    },
    /// Executor leaves; everything that it started keeps running.
    Goodbye {
        /// Token of this connection.
        connection: ConnectionToken,
    },
}

/// Whether more parts follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportPart {
    /// More parts follow.
    Partial,
    /// This part is the last.
    Last,
}

/// Message from the decider.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeciderMessage {
    /// Answer to a hello: the session belongs to this executor.
    Welcome {
        /// Session and durable head.
        envelope: DeciderEnvelope,
        /// Lineage of the journal.
        lineage: Lineage,
        /// Name of the fleet.
        fleet: FleetName,
        /// Time without a heartbeat until the session expires, in milliseconds.
        #[serde(with = "millis")]
        lease: Duration,
        /// Last command of every volume and of every incarnation that has not ended: the inventory, or its
        /// first part.
        commands: Vec<Command>,
        /// Object after which the next part of the inventory starts; `None` if this part is the last.
        next_after: Option<ObjectId>,
    },
    /// Next part of the inventory.
    Inventory {
        /// Session and durable head.
        envelope: DeciderEnvelope,
        /// Commands of this part.
        commands: Vec<Command>,
        /// Object after which the next part starts; `None` if this part is the last.
        next_after: Option<ObjectId>,
    },
    /// Answer to a hello: the decider refused the session.
    Refused {
        /// Reason of the refusal, for people.
        reason: String,
        /// Whether and when the executor should repeat the hello.
        retry: HelloRetry,
    },
    /// Command to carry out.
    Command {
        /// Session and durable head.
        envelope: DeciderEnvelope,
        /// The command.
        command: Command,
    },
    /// Reports up to `sequence` are decided and durable.
    ReportsAccepted {
        /// Session and durable head.
        envelope: DeciderEnvelope,
        /// Number of the last accepted report.
        sequence: u64,
    },
    /// Object has ended in the journal: its executor may purge its exit statuses and tombstone.
    Purge {
        /// Session and durable head.
        envelope: DeciderEnvelope,
        /// Object to purge.
        object: ObjectId,
    },
    /// Resolution of an object that the fleet does not want.
    OrphanResolved {
        /// Session and durable head.
        envelope: DeciderEnvelope,
        /// The object.
        object: ObjectId,
        /// Resolution of the object.
        resolution: OrphanResolution,
        /// Revision of the removal.
        revision: u32,
    },
    /// Answer to a heartbeat.
    HeartbeatAck {
        /// Session and durable head.
        envelope: DeciderEnvelope,
        /// Number of the heartbeat.
        sequence: u64,
    },
    /// Session or connection has ended: the executor sends a hello again.
    ConnectionClosed {
        /// Reason, for people.
        reason: String,
    },
}

impl DeciderMessage {
    /// Returns the envelope, if the message has one.
    pub fn envelope_mut(&mut self) -> Option<&mut DeciderEnvelope> {
        match self {
            DeciderMessage::Welcome { envelope, .. }
            | DeciderMessage::Inventory { envelope, .. }
            | DeciderMessage::Command { envelope, .. }
            | DeciderMessage::ReportsAccepted { envelope, .. }
            | DeciderMessage::Purge { envelope, .. }
            | DeciderMessage::OrphanResolved { envelope, .. }
            | DeciderMessage::HeartbeatAck { envelope, .. } => Some(envelope),
            DeciderMessage::Refused { .. } | DeciderMessage::ConnectionClosed { .. } => None,
        }
    }
}

/// Whether a refused hello is worth repeating.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelloRetry {
    /// Repeat the hello later.
    Later,
    /// This executor knows more than the decider: a newer decider exists. Stop acting, and exit.
    StaleDecider,
    /// The journal is a different one, or was altered. Stop acting, and exit.
    Never,
}

/// Command: one idempotent effect on one object, with exactly one outcome. Object and revision identify it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Object of the command.
    pub object: ObjectId,
    /// Revision of the command. A higher revision closes all lower revisions of the object.
    pub revision: u32,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Effect on the object.
    pub effect: CommandEffect,
    /// Whether the command still waits for its outcome.
    pub status: CommandStatus,
    /// Time from the request to stop until the kill, in milliseconds.
    #[serde(with = "millis")]
    pub grace: Duration,
    /// Specification of the object, for labels and for `ensure`.
    pub spec: ObjectSpec,
    /// W3C trace context of the command's span; absent if the decider records no spans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// Whether a command still waits for its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandStatus {
    /// No outcome yet: carry out the command.
    Pending,
    /// Outcome decided: adopt the existing object. If the object does not exist, it is not started again.
    Fulfilled,
}

/// Specification of an object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectSpec {
    /// An incarnation.
    Incarnation(IncarnationSpec),
    /// A volume.
    Volume(VolumeSpec),
}

impl ObjectSpec {
    /// Returns the incarnation's specification, if the object is an incarnation.
    pub fn incarnation(&self) -> Option<&IncarnationSpec> {
        match self {
            ObjectSpec::Incarnation(spec) => Some(spec),
            ObjectSpec::Volume(_) => None,
        }
    }

    /// Whether an object that was created from `other` satisfies this specification.
    pub fn is_as(&self, other: &ObjectSpec) -> bool {
        match (self, other) {
            (ObjectSpec::Incarnation(this), ObjectSpec::Incarnation(other)) => this.runs_as(other),
            // A volume's node is where its bytes are counted; its content does not depend on that.
            (ObjectSpec::Volume(_), ObjectSpec::Volume(_)) => true,
            (ObjectSpec::Incarnation(_), ObjectSpec::Volume(_))
            | (ObjectSpec::Volume(_), ObjectSpec::Incarnation(_)) => false,
        }
    }
}

impl From<IncarnationSpec> for ObjectSpec {
    fn from(spec: IncarnationSpec) -> ObjectSpec {
        ObjectSpec::Incarnation(spec)
    }
}

/// Specification of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Name of the volume, for people who inspect the storage.
    pub name: VolumeName,
    /// Namespace of the plan whose replica uses the volume first, for runtimes whose objects have namespaces.
    pub namespace: Namespace,
    /// Node on whose storage the volume is counted.
    pub node: NodeName,
    /// Storage class of the volume.
    pub class: StorageClass,
    /// Capacity of the volume, in bytes.
    pub capacity: u64,
    /// Volume whose content is copied when this volume is created; absent if it is created empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<VolumeId>,
}

/// Mount of a volume in a payload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Path at which the payload sees the volume, or by which it requests the volume.
    pub path: String,
    /// Volume that is mounted.
    pub volume: VolumeId,
}

/// Specification of an incarnation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IncarnationSpec {
    /// Replica the incarnation belongs to.
    pub replica: ReplicaName,
    /// Plan the incarnation belongs to.
    pub plan: PlanName,
    /// Node on which the incarnation is placed.
    pub node: NodeName,
    /// Restart policy of the plan. An executor uses it only after a reboot of its machine.
    pub restart: RestartPolicy,
    /// Labels for the environment of the incarnation's processes.
    pub labels: Box<RunLabels>,
    /// Payloads of the incarnation.
    pub payloads: Vec<IncarnationPayload>,
}

/// Labels of an incarnation. Processes receive them when they start; later behavior does not depend on them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunLabels {
    /// Namespace of the incarnation's plan.
    pub namespace: Namespace,
    /// Service that the incarnation's plan provides.
    pub service: ServiceName,
    /// Labels of the plan's version.
    pub labels: BTreeMap<KeyName, String>,
    /// Deployment whose version the incarnation runs.
    pub deployment: DeploymentName,
    /// Update domain of the incarnation's node; absent if the node was deleted.
    pub domain: Option<DomainName>,
    /// Zone of the incarnation's node, if it has one.
    pub zone: Option<ZoneName>,
    /// Labels of the incarnation's node, if the cluster binds by labels.
    pub node_labels: Option<BTreeMap<KeyName, String>>,
}

impl IncarnationSpec {
    /// Volumes that the payloads mount; a volume that several payloads mount is repeated.
    pub fn mounts(&self) -> impl Iterator<Item = VolumeId> {
        self.payloads.iter().flat_map(|payload| &payload.mounts).map(|mount| mount.volume)
    }

    /// Whether an incarnation that was started from `other` satisfies this specification: the two differ at
    /// most in restart policy and labels.
    pub fn runs_as(&self, other: &IncarnationSpec) -> bool {
        *self == IncarnationSpec { restart: self.restart, labels: self.labels.clone(), ..other.clone() }
    }
}

/// Payload of an incarnation, with coordinates filled in. The executor fills `${port.…}` and similar
/// placeholders.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IncarnationPayload {
    /// Name of the payload.
    pub name: PayloadName,
    /// Number of processes.
    pub processes: u16,
    /// Processor time of each process, in thousandths of a processor; unspecified if absent.
    pub cpu: Option<NonZeroU64>,
    /// Maximum memory of each process, in bytes; unlimited if absent.
    pub memory: Option<NonZeroU64>,
    /// Disk space of each process, in bytes; unspecified if absent.
    pub disk: Option<NonZeroU64>,
    /// Ports of each process.
    pub ports: Vec<PayloadPort>,
    /// Coordinates that the deployment gave the payload, also for `${KEY}`.
    pub coordinates: BTreeMap<KeyName, String>,
    /// Program to start on a runtime of processes, if any.
    pub run: Option<ExecSpec>,
    /// Container to start on a runtime of container images, if any.
    pub container: Option<ContainerSpec>,
    /// Virtual machine to boot on a runtime of virtual machines, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VirtualMachineSpec>,
    /// Readiness probe, if any.
    pub ready: Option<ReadinessProbe>,
    /// Liveness probe, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<ReadinessProbe>,
    /// Volumes that the payload mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<VolumeMount>,
}

/// Durations as whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}
