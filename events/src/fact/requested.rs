//! Parts of facts about approval requests: intents that wait for approval as a whole.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{RequestId, VolumeId};
use crate::name::{Actor, DisruptionName, NodeName, PlanName, PolicyName, ReplicaName, VolumeName};
use crate::spec::{DisruptionSpec, PlanSpec, PolicyKind, PolicySpec};
use crate::subject::Subject;

/// Change that waits for approval. The fact contains it in full; snapshots and rows contain it too.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestedChange {
    /// Deletes a plan with everything that it has.
    PlanDelete {
        /// Name of the plan.
        name: PlanName,
    },
    /// Drains a node and deletes it.
    NodeDelete {
        /// Name of the node.
        name: NodeName,
    },
    /// Declares a node and everything on it lost.
    NodeExpunge {
        /// Name of the node.
        name: NodeName,
        /// Number of volumes on the node, which are lost with it.
        volumes: u32,
    },
    /// Approves a disruption that drains its node.
    DisruptionApprove {
        /// Name of the node.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
        /// Disruption as it was when the change was requested.
        spec: DisruptionSpec,
    },
    /// Updates a plan to approve with fewer people than before.
    PlanApply {
        /// Name of the plan.
        name: PlanName,
        /// Plan as it was when the change was requested.
        from: Box<PlanSpec>,
        /// Requested plan.
        to: Box<PlanSpec>,
    },
    /// Creates or updates a policy, so that less approval is required than before.
    PolicyApply {
        /// Name of the policy.
        name: PolicyName,
        /// Policy as it was when the change was requested; absent for a new policy.
        from: Option<PolicySpec>,
        /// Requested policy.
        to: PolicySpec,
    },
    /// Deletes a policy.
    PolicyDelete {
        /// Name of the policy.
        name: PolicyName,
        /// Policy as it was when the change was requested.
        from: PolicySpec,
    },
    /// Destroys a volume once no incarnation uses it.
    VolumeDelete {
        /// Name of the volume.
        name: VolumeName,
        /// Id of the volume: another volume may have the same name later.
        id: VolumeId,
    },
}

impl RequestedChange {
    /// Entity that would change.
    pub fn subject(&self) -> Subject {
        match self {
            RequestedChange::PlanDelete { name } | RequestedChange::PlanApply { name, .. } => {
                Subject::Plan(name.clone())
            }
            RequestedChange::NodeDelete { name }
            | RequestedChange::NodeExpunge { name, .. }
            | RequestedChange::DisruptionApprove { node: name, .. } => Subject::Node(name.clone()),
            RequestedChange::PolicyApply { name, .. } | RequestedChange::PolicyDelete { name, .. } => {
                Subject::Policy(name.clone())
            }
            RequestedChange::VolumeDelete { name, .. } => Subject::Volume(name.clone()),
        }
    }

    /// Change as compact JSON: what the hash of a request covers.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("changes have string keys and no failing parts")
    }

    /// Target of the change: at most one request waits for each target.
    pub fn target(&self) -> (Subject, String) {
        let what = match self {
            RequestedChange::PlanDelete { .. }
            | RequestedChange::NodeDelete { .. }
            | RequestedChange::VolumeDelete { .. } => "delete".to_owned(),
            RequestedChange::NodeExpunge { .. } => "expunge".to_owned(),
            RequestedChange::DisruptionApprove { name, .. } => format!("disruption/{name}"),
            RequestedChange::PlanApply { .. }
            | RequestedChange::PolicyApply { .. }
            | RequestedChange::PolicyDelete { .. } => "change".to_owned(),
        };
        (self.subject(), what)
    }
}

/// Replicas of one plan that a requested change ends or moves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RequestEffect {
    /// Kind of the work, as policies name it.
    pub kind: PolicyKind,
    /// Plan of the replicas.
    pub plan: PlanName,
    /// Number of the replicas.
    pub count: u32,
    /// First of the replicas by name, at most 64.
    pub replicas: Vec<ReplicaName>,
}

/// Outcome of an approval request that was not approved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestEnd {
    /// Rejected by a person.
    Rejected {
        /// Actor who rejected the request.
        rejected_by: Actor,
        /// Reason, for people.
        reason: String,
    },
    /// Not approved in time.
    Expired,
    /// Replaced by a later request for the same subject.
    Superseded {
        /// Id of the later request.
        successor: RequestId,
    },
}
