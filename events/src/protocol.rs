//! What an executor and the decider say to each other: one JSON text a message, in one process or over a wire.
//!
//! ```text
//! executor                                     decider
//!   Hello{executor, cluster, scope, life, …} ─►        opens or resumes the session, draws an attach
//!                          ◄─  Welcome{envelope, lease, commands, rest}
//!   More{after}            ─►   ◄─  Inventory{commands, rest}         until there is no rest
//!   Level{..., more|last}  ─►                          everything that it has, each as a report
//!                          ◄─  Command{envelope, …} | Forget{object} | Accepted{sequence}
//!   Report{sequence, …}    ─►                          one change
//!   Heartbeat{beat}        ─►   ◄─  Beat{beat}         renews the lease from its sending
//!   Goodbye                ─►
//! ```
//! Nothing that was decided on state that is not durable is sent. Everything may be said twice.

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
    PayloadName, PlanName, ReplicaName, StorageClass, VolumeName, ZoneName,
};
use crate::observation::ObjectReport;
use crate::record::RecordHash;
use crate::spec::{ClusterRuntime, ExecSpec, PayloadPort, ReadinessProbe, RestartPolicy};

/// The head of the journal as someone has seen it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JournalHead {
    /// The last position.
    pub position: Position,
    /// The hash of the record that ends there.
    pub hash: RecordHash,
    /// The term that wrote it.
    pub term: Term,
}

/// What every message of the decider carries: who speaks, and how much it knows.
///
/// An executor keeps the highest head on disk, refuses lower terms, and stops if the hash at a position that it
/// knows differs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeciderEnvelope {
    /// The session.
    pub session: SessionId,
    /// This connection of it.
    pub attach: ConnectionToken,
    /// The durable head.
    pub head: JournalHead,
}

/// One life of an executor: it starts again over the same scope, one life after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExecutorEpoch {
    /// Counts the lives over the scope; on its disk before the life begins.
    pub number: u64,
    /// Tells it from that of a copy of the scope.
    pub instance: EpochNonce,
}

/// What a life is to one that was heard before it, over the same scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EpochOrder {
    /// It is the same.
    Same,
    /// It came after it, which must have ended: a scope has a lock.
    Newer,
    /// It came before it, and should have ended.
    Older,
    /// Both are the same life of one scope: there is a copy of it.
    Cloned,
}

impl ExecutorEpoch {
    /// What it is to `known`.
    pub fn after(self, known: ExecutorEpoch) -> EpochOrder {
        match self.number.cmp(&known.number) {
            Ordering::Greater => EpochOrder::Newer,
            Ordering::Less => EpochOrder::Older,
            Ordering::Equal if self.instance == known.instance => EpochOrder::Same,
            Ordering::Equal => EpochOrder::Cloned,
        }
    }
}

/// What an executor says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorMessage {
    /// The first word of a connection.
    Hello {
        /// Who.
        executor: ExecutorName,
        /// The scope wanted. The sender holds the scope's lock.
        cluster: ClusterName,
        /// What it drives.
        runtime: ClusterRuntime,
        /// Where it looks for what runs.
        scope: ExecutorStoreId,
        /// Which life of it this is.
        life: ExecutorEpoch,
        /// The highest head that it has seen, with the lineage.
        seen: Option<(Lineage, JournalHead)>,
    },
    /// A part of everything that it has: what was seen of each incarnation, and objects without a command.
    Level {
        /// This connection.
        attach: ConnectionToken,
        /// Reports.
        reports: Vec<ObjectReport>,
        /// Whether this is the last part.
        part: ReportPart,
    },
    /// A change, after the level.
    Report {
        /// This connection.
        attach: ConnectionToken,
        /// Counts the reports of this connection, from 1.
        sequence: u64,
        /// What was seen.
        report: ObjectReport,
    },
    /// The next part of the inventory is wanted.
    More {
        /// This connection.
        attach: ConnectionToken,
        /// Behind which object, as the last part said.
        after: ObjectId,
    },
    /// Still here.
    Heartbeat {
        /// This connection.
        attach: ConnectionToken,
        /// Given back in [`DeciderMessage::Beat`], so that the executor knows when the lease it renews was sent.
        beat: u64,
    },
    /// Leaves, with everything left running.
    Goodbye {
        /// This connection.
        attach: ConnectionToken,
    },
}

/// Whether more parts follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportPart {
    /// More follow.
    More,
    /// This is the last.
    Last,
}

/// What the decider says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeciderMessage {
    /// The answer to a hello: the session is this executor's.
    Welcome {
        /// Who speaks.
        envelope: DeciderEnvelope,
        /// The journal's identity.
        lineage: Lineage,
        /// The fleet.
        fleet: FleetName,
        /// How long the session lives without a heartbeat.
        #[serde(with = "millis")]
        lease: Duration,
        /// The last command of every volume and incarnation that is not over: the desired inventory, or its first part.
        commands: Vec<Command>,
        /// If there is more of it, behind which object it goes on.
        rest: Option<ObjectId>,
    },
    /// A further part of the inventory.
    Inventory {
        /// Who speaks.
        envelope: DeciderEnvelope,
        /// As in the welcome.
        commands: Vec<Command>,
        /// If there is more, behind which object it goes on.
        rest: Option<ObjectId>,
    },
    /// The answer to a hello: not now, or never.
    Refused {
        /// Why.
        reason: String,
        /// Whether it is worth asking again.
        again: HelloRetry,
    },
    /// Something is to be done.
    Command {
        /// Who speaks.
        envelope: DeciderEnvelope,
        /// What.
        command: Command,
    },
    /// The reports up to `sequence` are decided and durable.
    Accepted {
        /// Who speaks.
        envelope: DeciderEnvelope,
        /// The last of them.
        sequence: u64,
    },
    /// The object is over in the journal: what was kept of it (exit statuses, tombstone) may go.
    Forget {
        /// Who speaks.
        envelope: DeciderEnvelope,
        /// Which.
        object: ObjectId,
    },
    /// What to do with an object that the fleet does not want.
    Judged {
        /// Who speaks.
        envelope: DeciderEnvelope,
        /// Which.
        object: ObjectId,
        /// What.
        judgement: OrphanResolution,
        /// The revision of the removal.
        revision: u32,
    },
    /// The answer to a heartbeat.
    Beat {
        /// Who speaks.
        envelope: DeciderEnvelope,
        /// Which heartbeat.
        beat: u64,
    },
    /// The session or this connection of it is over: say hello again.
    Closed {
        /// Why.
        reason: String,
    },
}

impl DeciderMessage {
    /// The envelope, if the message has one.
    pub fn envelope_mut(&mut self) -> Option<&mut DeciderEnvelope> {
        match self {
            DeciderMessage::Welcome { envelope, .. }
            | DeciderMessage::Inventory { envelope, .. }
            | DeciderMessage::Command { envelope, .. }
            | DeciderMessage::Accepted { envelope, .. }
            | DeciderMessage::Forget { envelope, .. }
            | DeciderMessage::Judged { envelope, .. }
            | DeciderMessage::Beat { envelope, .. } => Some(envelope),
            DeciderMessage::Refused { .. } | DeciderMessage::Closed { .. } => None,
        }
    }
}

/// Whether a refused hello is worth repeating.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelloRetry {
    /// Later, perhaps.
    Later,
    /// This executor knows more than the decider: there is a newer one. Stop acting, and exit.
    NewerElsewhere,
    /// The journal is another one, or has been altered. Stop acting, and exit.
    Never,
}

/// One effect on one object, idempotent, ending in exactly one outcome. Named by object and revision.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Command {
    /// On which.
    pub object: ObjectId,
    /// A higher one closes all lower ones.
    pub revision: u32,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// What.
    pub effect: CommandEffect,
    /// Whether it still waits for its outcome.
    pub standing: CommandStatus,
    /// From asking until killing.
    #[serde(with = "millis")]
    pub grace: Duration,
    /// What it is, for labels and for an ensure.
    pub spec: ObjectSpec,
}

/// Whether a command still waits for its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandStatus {
    /// It does: carry it out.
    Open,
    /// It had its outcome: adopt what is there. If nothing is there, nothing is started again: it is gone.
    Met,
}

/// What an object is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectSpec {
    /// An incarnation.
    Run(IncarnationSpec),
    /// A volume.
    Volume(VolumeSpec),
}

impl ObjectSpec {
    /// What an incarnation runs, if this is one.
    pub fn run(&self) -> Option<&IncarnationSpec> {
        match self {
            ObjectSpec::Run(spec) => Some(spec),
            ObjectSpec::Volume(_) => None,
        }
    }

    /// Whether what is there by `other` is right by this one too.
    pub fn is_as(&self, other: &ObjectSpec) -> bool {
        match (self, other) {
            (ObjectSpec::Run(this), ObjectSpec::Run(other)) => this.runs_as(other),
            // Where it is counted says nothing of what is in it.
            (ObjectSpec::Volume(_), ObjectSpec::Volume(_)) => true,
            (ObjectSpec::Run(_), ObjectSpec::Volume(_)) | (ObjectSpec::Volume(_), ObjectSpec::Run(_)) => {
                false
            }
        }
    }
}

impl From<IncarnationSpec> for ObjectSpec {
    fn from(spec: IncarnationSpec) -> ObjectSpec {
        ObjectSpec::Run(spec)
    }
}

/// What a volume is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Its name, for people who look for it.
    pub name: VolumeName,
    /// The node whose storage it is counted in.
    pub node: NodeName,
    /// Of which class.
    pub class: StorageClass,
    /// Bytes.
    pub capacity: u64,
}

/// A volume as a payload has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Where the payload sees it, or asks for it.
    pub path: String,
    /// Which.
    pub volume: VolumeId,
}

/// What an incarnation is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IncarnationSpec {
    /// Of which replica.
    pub replica: ReplicaName,
    /// Of which plan.
    pub plan: PlanName,
    /// On which node.
    pub node: NodeName,
    /// When the plan has it started again. An executor goes by it after a reboot of its machine, and never else.
    #[serde(default = "best_effort")]
    pub restart: RestartPolicy,
    /// Where it belongs, for the environment of its processes.
    #[serde(default)]
    pub labels: Box<RunLabels>,
    /// Its parts.
    pub payloads: Vec<IncarnationPayload>,
}

/// Where an incarnation belongs. Processes receive it when they start, and what runs does not depend on it later.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunLabels {
    /// Namespace of its plan.
    pub namespace: Option<Namespace>,
    /// Deployment by whose version it runs.
    pub deployment: Option<DeploymentName>,
    /// Update domain of its node.
    pub domain: Option<DomainName>,
    /// Zone of its node.
    pub zone: Option<ZoneName>,
}

fn best_effort() -> RestartPolicy {
    RestartPolicy::BestEffort
}

impl IncarnationSpec {
    /// Whether what runs by `other` runs by this one too: they differ at most in the rule of starting again, and in
    /// labels.
    pub fn runs_as(&self, other: &IncarnationSpec) -> bool {
        *self == IncarnationSpec { restart: self.restart, labels: self.labels.clone(), ..other.clone() }
    }
}

/// A part of an incarnation, with coordinates filled in; `${port.…}` and the like are the executor's to fill.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IncarnationPayload {
    /// Its name.
    pub name: PayloadName,
    /// How many processes.
    pub processes: u16,
    /// Bytes of memory that each may have; without, as much as there is.
    #[serde(default)]
    pub memory: Option<NonZeroU64>,
    /// Ports of each process.
    pub ports: Vec<PayloadPort>,
    /// The coordinates that the deployment gave it, also for `${KEY}`.
    pub coordinates: BTreeMap<KeyName, String>,
    /// What to start.
    pub run: Option<ExecSpec>,
    /// When it is ready.
    pub ready: Option<ReadinessProbe>,
    /// Whether it still answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<ReadinessProbe>,
    /// Its storage.
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
