//! Bodies of facts about plans, deployments, replicas and operations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Approver, Asker, Begins, DeploymentEnd, OperationEnd, Proposal, RebalanceEnd, Rollback, Unfit};
use crate::digest::Digest;
use crate::id::{IncarnationId, OperationId};
use crate::name::{Actor, DeploymentName, NodeName, PlanName, ReplicaName, VolumeName};
use crate::spec::{Activity, Balance, DeploymentSpec, OperationKind, PlanSpec, Purpose};
use crate::time::Time;

body! {
    /// Body of [`Fact::PlanApplied`].
    PlanApplied {
        /// Which.
        name: PlanName,
        /// Counts its edits, from 1.
        generation: u32,
        /// What it is.
        spec: PlanSpec,
        /// Fields that differ from the generation before. Absent in what older builds wrote, and of a new plan.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed: Vec<String>,
    }
    /// Body of [`Fact::PlanActivityChanged`].
    PlanActivityChanged {
        /// Which.
        name: PlanName,
        /// What it is.
        activity: Activity,
    }
    /// Body of [`Fact::PlanBalanceChanged`].
    PlanBalanceChanged {
        /// Name of the plan.
        plan: PlanName,
        /// Whether a move of one replica would make the spread more even.
        balance: Balance,
    }
    /// Body of [`Fact::PlanRebalanceStarted`].
    PlanRebalanceStarted {
        /// Name of the plan.
        plan: PlanName,
        /// Actor on whose behalf the moves are requested.
        requested_by: Actor,
    }
    /// Body of [`Fact::PlanRebalanceEnded`].
    PlanRebalanceEnded {
        /// Name of the plan.
        plan: PlanName,
        /// Outcome of the rebalance.
        end: RebalanceEnd,
    }
    /// Body of [`Fact::PlanRemoving`].
    PlanRemoving {
        /// Which.
        name: PlanName,
        /// Who wants it.
        by: Actor,
    }
    /// Body of [`Fact::PlanDeleted`].
    PlanDeleted {
        /// Which.
        name: PlanName,
    }
    /// Body of [`Fact::DeploymentCreated`].
    DeploymentCreated {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// Of which generation of the plan.
        generation: u32,
        /// What should run.
        spec: DeploymentSpec,
        /// Who asked for it. Absent in what older builds wrote, and if a rule did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Actor>,
        /// What the deployment rolls back to, if it is a rollback.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rollback: Option<Rollback>,
    }
    /// Body of [`Fact::DeploymentStarted`].
    DeploymentStarted {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// When its new set must be ready, if it has such a time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Body of [`Fact::DeploymentPaused`].
    DeploymentPaused {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// Body of [`Fact::DeploymentResumed`].
    DeploymentResumed {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// Body of [`Fact::DeploymentStalled`].
    DeploymentStalled {
        /// Plan the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment.
        name: DeploymentName,
        /// Time of its last progress.
        since: Time,
        /// What the deployment waits for, for people.
        waits_for: String,
    }
    /// Body of [`Fact::DeploymentCutOver`].
    DeploymentCutOver {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// Body of [`Fact::DeploymentEnding`].
    DeploymentEnding {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// How it will end.
        why: DeploymentEnd,
    }
    /// Body of [`Fact::DeploymentEnded`].
    DeploymentEnded {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// How.
        end: DeploymentEnd,
    }
    /// Body of [`Fact::ReplicaCreated`].
    ReplicaCreated {
        /// Which.
        name: ReplicaName,
        /// Of which plan.
        plan: PlanName,
        /// By which deployment of it.
        deployment: DeploymentName,
    }
    /// Body of [`Fact::ReplicaAssigned`].
    ReplicaAssigned {
        /// Which.
        name: ReplicaName,
        /// Of which plan.
        plan: PlanName,
        /// By which deployment it runs when it runs again.
        deployment: DeploymentName,
    }
    /// Body of [`Fact::ReplicaDeleted`].
    ReplicaDeleted {
        /// Which.
        name: ReplicaName,
        /// The volumes that were its own: each is destroyed or kept, as it was made.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        volumes: Vec<VolumeName>,
    }
    /// Body of [`Fact::OperationOpened`].
    OperationOpened {
        /// On which replica.
        replica: ReplicaName,
        /// What.
        kind: OperationKind,
        /// On whose behalf: a deployment of the replica's plan, or else whoever [`by`](OperationOpened::by) says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deployment: Option<DeploymentName>,
        /// Who asked, where no deployment did. Absent in what older builds wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Asker>,
        /// The deployment whose version the replica is to have, where that is another than it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<DeploymentName>,
        /// The only node that will do, if there is such a one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
        /// What may be approved, where no place has to be found first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proposal: Option<Proposal>,
        /// The purpose, where the kind and the asker do not imply it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        purpose: Option<Purpose>,
    }
    /// Body of [`Fact::PlanWaiting`].
    PlanWaiting {
        /// Which.
        plan: PlanName,
        /// Why not, by node.
        reasons: Vec<Unfit>,
    }
    /// Body of [`Fact::OperationApproved`].
    OperationApproved {
        /// Which.
        operation: OperationId,
        /// On which replica.
        replica: ReplicaName,
        /// Who.
        by: Approver,
        /// On exactly what.
        hash: Digest,
        /// The incarnation that it commands, if one is concerned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<IncarnationId>,
        /// When what it commands has lasted too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
        /// Whether it begins now, or its turn comes later.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        begins: Begins,
    }
    /// Body of [`Fact::OperationBegun`].
    OperationBegun {
        /// Which.
        operation: OperationId,
        /// On which replica.
        replica: ReplicaName,
        /// The incarnation that it commands, if one is concerned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<IncarnationId>,
        /// When what it commands has lasted too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Body of [`Fact::OperationEnded`].
    OperationEnded {
        /// Which.
        operation: OperationId,
        /// On which replica.
        replica: ReplicaName,
        /// How.
        end: OperationEnd,
    }
}
