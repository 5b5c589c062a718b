//! Common parts of the bodies of facts: requesters, proposals, approvers and outcomes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::id::OperationId;
use crate::name::{Actor, DeploymentName, DisruptionName, NodeName, PolicyName};
use crate::spec::words;
use crate::time::Time;

words! {
    /// Outcome of an accepted intent.
    IntentOutcome {
        /// The intent changed something, or will.
        Changed = "changed",
        /// The requested state was set already.
        Unchanged = "unchanged",
    }
    /// Effect that a command requests for an incarnation.
    CommandEffect {
        /// Start the incarnation by its specification; no effect if it runs.
        Ensure = "ensure",
        /// Stop the incarnation, and kill it when the time to stop has passed.
        Stop = "stop",
        /// Kill the incarnation immediately.
        Kill = "kill",
        /// Reset the guests of the incarnation once.
        Reboot = "reboot",
    }
    /// Start of an approved operation.
    #[derive(Default)]
    ApprovalStart {
        /// Starts with its approval.
        #[default]
        Immediate = "immediate",
        /// Starts when the operation is dequeued.
        Queued = "queued",
    }
    /// Resolution of an orphan: an object unknown to the fleet.
    OrphanResolution {
        /// Remove the orphan: this journal issued its id, and it has ended.
        Remove = "remove",
        /// Leave the orphan in place and report it: the fleet must not remove it.
        Leave = "leave",
    }
}

/// Requester of an operation that no deployment requested.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Requester {
    /// Person or program that sent an intent.
    Actor(Actor),
    /// Rule, by its name.
    Rule(String),
    /// Disruption of the node of the replica.
    Disruption {
        /// Node of the disruption.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
    },
}

/// Automatic restart by the plan's restart rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RestartBackoff {
    /// Time before which the restart does not happen.
    pub not_before: Time,
    /// Number of consecutive automatic restarts, from 1.
    pub consecutive: u32,
}

/// Deployment whose version a rollback deploys again, and the rule that requested the rollback, if any.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RollbackReference {
    /// Name of the completed deployment.
    pub to: DeploymentName,
    /// Rule that requested the rollback, if no person requested it.
    pub rule: Option<RollbackRule>,
}

/// Rule of a deployment that rolls its plan back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RollbackRule {
    /// Name of the rule: `deployment/PLAN/NAME/auto_rollback`.
    pub name: String,
    /// Reason why the deployment failed.
    pub reason: String,
}

/// Nodes that are ruled out for the same reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UnschedulableReason {
    /// Reason, for people.
    pub reason: String,
    /// Number of nodes.
    pub count: u32,
    /// First of the nodes by name, at most 64.
    pub nodes: Vec<NodeName>,
}

/// Proposed change that can be approved, and its expiry time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalProposal {
    /// Hash of the proposed change.
    pub hash: Digest,
    /// Time at which the proposal expires.
    pub expires: Time,
}

/// Approver of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalActor {
    /// Person or program that sent an intent.
    Actor(Actor),
    /// Rule, by its name.
    Rule(String),
}

/// Prefix of the rule of a policy, before the name of the policy.
const POLICY: &str = "policy/";

impl ApprovalActor {
    /// Returns the approver for the rule of a policy.
    pub fn of_policy(name: &PolicyName) -> ApprovalActor {
        ApprovalActor::Rule(format!("{POLICY}{name}"))
    }

    /// Returns the name of the policy whose rule approved, if one did.
    pub fn policy(&self) -> Option<&str> {
        match self {
            ApprovalActor::Rule(rule) => rule.strip_prefix(POLICY),
            ApprovalActor::Actor(_) => None,
        }
    }
}

/// Outcome of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationEnd {
    /// The operation had its effect.
    Succeeded,
    /// The operation failed.
    Failed {
        /// Reason of the failure.
        reason: String,
    },
    /// An approver rejected the operation.
    Rejected {
        /// Actor who rejected the operation.
        rejected_by: Actor,
        /// Reason of the rejection.
        reason: String,
    },
    /// The operation was not approved in time.
    Expired,
    /// The deployment of the operation was stopped.
    Cancelled {
        /// Reason of the cancellation.
        reason: String,
    },
    /// Another operation replaced this operation.
    Superseded {
        /// Id of the other operation.
        successor: OperationId,
    },
}

/// Outcome of a rebalance of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebalanceEnd {
    /// No allowed move would make the spread more even.
    Completed,
    /// The rebalance makes no further moves.
    Stopped {
        /// Reason, for people.
        reason: String,
    },
}

/// Outcome of a deployment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentEnd {
    /// The requested version and replica count are set.
    Completed,
    /// An operation of the deployment failed.
    Failed {
        /// Operation that failed, and the reason.
        cause: String,
    },
    /// An actor cancelled the deployment.
    Cancelled,
    /// A newer deployment replaced this deployment.
    Superseded {
        /// Name of the newer deployment.
        successor: DeploymentName,
    },
}

/// Outcome of an incarnation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IncarnationEnd {
    /// The incarnation ended as requested, or ended cleanly on its own.
    Destroyed,
    /// The guest of the incarnation powered itself off without a request.
    PoweredOff,
    /// The incarnation ended neither as requested nor cleanly on its own.
    Failed {
        /// Reason of the failure.
        reason: String,
    },
    /// The incarnation was never started, or its start was given up.
    Unwound {
        /// Reason why the incarnation was not started.
        reason: String,
    },
}
