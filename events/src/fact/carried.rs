//! Bodies of facts about what is carried out: incarnations, volumes, sessions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Again, Asker, Effect, IncarnationEnd, Judgement, Proposal};
use crate::amount::Amounts;
use crate::id::{IncarnationId, ObjectId, OperationId, ScopeId, SessionId};
use crate::name::{
    ClusterName, DeploymentName, ExecutorName, GroupName, NodeName, ReplicaName, StorageClass, VolumeName,
};
use crate::observation::{Process, SessionEnd};
use crate::spec::{OnDelete, Runtime};
use crate::time::Time;

body! {
    /// Body of [`Fact::IncarnationReserved`].
    IncarnationReserved {
        /// On behalf of which operation.
        operation: OperationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Where.
        node: NodeName,
        /// By which deployment's coordinates.
        deployment: DeploymentName,
        /// What it holds.
        amounts: Amounts,
        /// What it holds of storage, by class.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        volumes: BTreeMap<StorageClass, u64>,
        /// What may be approved.
        proposal: Proposal,
        /// The run of the same replica that must be over before this one is begun. On the same node, this one holds
        /// of what both need only what that one does not, until then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        follows: Option<IncarnationId>,
        /// The groups of replicas that it is of.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        groups: Vec<GroupName>,
        /// Which affinity could not be kept, where that is allowed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        strained: Option<String>,
        /// The volumes that it uses, from when it is begun.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// Body of [`Fact::IncarnationCommanded`].
    IncarnationCommanded {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// The command.
        effect: Effect,
        /// What it becomes when its end is proved.
        then: IncarnationEnd,
        /// When that has lasted too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Body of [`Fact::IncarnationBegun`].
    IncarnationBegun {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// By which deployment's coordinates.
        deployment: DeploymentName,
        /// When that has lasted too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
        /// The volumes that it uses alone from now on. Those that were on another node come to its own.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// Body of [`Fact::CommandFailed`].
    CommandFailed {
        /// Of which incarnation.
        incarnation: IncarnationId,
        /// Which command.
        revision: u32,
        /// Which attempt at it, from 1.
        attempt: u32,
        /// What went wrong.
        error: String,
        /// When it is tried again; never, if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Time>,
    }
    /// Body of [`Fact::IncarnationEnsured`].
    IncarnationEnsured {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Each process.
        processes: Vec<Process>,
        /// Time at which it is ended if it is not ready again by then, by the plan's `unready`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Body of [`Fact::IncarnationRunning`].
    IncarnationRunning {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// The operation that has succeeded by it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operation: Option<OperationId>,
        /// The run of the same replica whose place it takes, and that goes now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<IncarnationId>,
        /// Each process.
        processes: Vec<Process>,
    }
    /// Body of [`Fact::IncarnationStatus`].
    IncarnationStatus {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Each process.
        processes: Vec<Process>,
        /// Time at which it is ended if it is not ready again by then, by the plan's `unready`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Body of [`Fact::IncarnationEnded`].
    IncarnationEnded {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Where it was.
        node: NodeName,
        /// How.
        end: IncarnationEnd,
        /// The operation whose place it only held, and that looks for another one now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        displaces: Option<OperationId>,
        /// Each process, as far as its end was seen.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        processes: Vec<Process>,
        /// When the plan's rule starts the replica again, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<Again>,
        /// The volumes that it used, and that are free for others now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// Body of [`Fact::VolumeCreated`].
    VolumeCreated {
        /// Which.
        name: VolumeName,
        /// Where.
        node: NodeName,
        /// Of which storage there.
        class: StorageClass,
        /// Bytes, which it holds of that.
        capacity: u64,
        /// For which incarnation, which held them until now.
        incarnation: IncarnationId,
        /// The replica whose own it is, if it is no one's to share.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<ReplicaName>,
        /// What becomes of it when that is deleted.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        on_delete: OnDelete,
    }
    /// Body of [`Fact::VolumeReady`].
    VolumeReady {
        /// Which.
        name: VolumeName,
    }
    /// Body of [`Fact::VolumeFailed`].
    VolumeFailed {
        /// Which.
        name: VolumeName,
        /// Which command.
        revision: u32,
        /// Which attempt at it, from 1.
        attempt: u32,
        /// What went wrong.
        error: String,
        /// When it is tried again; never, if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Time>,
    }
    /// Body of [`Fact::VolumeLost`].
    VolumeLost {
        /// Which.
        name: VolumeName,
        /// How that is known.
        reason: String,
    }
    /// Body of [`Fact::VolumeRemoving`].
    VolumeRemoving {
        /// Which.
        name: VolumeName,
        /// Who asked for it.
        by: Asker,
    }
    /// Body of [`Fact::VolumeDestroying`].
    VolumeDestroying {
        /// Which.
        name: VolumeName,
    }
    /// Body of [`Fact::VolumeDestroyed`].
    VolumeDestroyed {
        /// Which.
        name: VolumeName,
    }
    /// Body of [`Fact::SessionOpened`]. Issues the session's id.
    SessionOpened {
        /// Its scope.
        cluster: ClusterName,
        /// Who.
        executor: ExecutorName,
        /// What it drives.
        runtime: Runtime,
        /// What the cluster runs is in it from now on, and nobody without it may say what has become of that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<ScopeId>,
    }
    /// Body of [`Fact::SessionClosed`].
    SessionClosed {
        /// Which.
        session: SessionId,
        /// Its scope.
        cluster: ClusterName,
        /// Why.
        end: SessionEnd,
    }
    /// Body of [`Fact::ObjectJudged`].
    ObjectJudged {
        /// Where.
        cluster: ClusterName,
        /// What it says it is. Called after what all objects were at first.
        #[serde(rename = "incarnation")]
        object: ObjectId,
        /// What is to be done with it.
        judgement: Judgement,
        /// The revision of the command to remove it.
        revision: u32,
    }
}
