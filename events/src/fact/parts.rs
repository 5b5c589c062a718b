//! What several bodies of facts say: who asked, what was proposed, who approved, how things end.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::id::OperationId;
use crate::name::{Actor, DeploymentName, DisruptionName, NodeName, PolicyName};
use crate::spec::words;
use crate::time::Time;

words! {
    /// What came of an accepted intent.
    IntentOutcome {
        /// Something changed, or will.
        Changed = "changed",
        /// It was so already.
        Unchanged = "unchanged",
    }
    /// What an executor is asked to do with an incarnation.
    CommandEffect {
        /// Bring it up as its spec says; nothing, if it is.
        Ensure = "ensure",
        /// End it: ask, and kill when the time for that is over.
        Stop = "stop",
        /// End it at once.
        Kill = "kill",
    }
    /// When what was approved begins.
    #[derive(Default)]
    ApprovalStart {
        /// With its approval.
        #[default]
        Now = "now",
        /// When its turn comes.
        Later = "later",
    }
    /// What is to be done with an object that the fleet does not want.
    OrphanResolution {
        /// It was ours and is over: remove it.
        Remove = "remove",
        /// It is not ours to remove: leave it, and tell.
        Quarantine = "quarantine",
    }
}

/// Who asked for an operation, where no deployment did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Requester {
    /// A person or program, by an intent.
    Actor(Actor),
    /// A rule, by its name.
    Rule(String),
    /// A disruption of its node.
    Disruption {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
    },
}

/// A start by the plan's own rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RestartBackoff {
    /// Not before.
    pub at: Time,
    /// The how manieth in a row it is, from 1.
    pub row: u32,
}

/// The deployment whose version a rollback deploys again, and the rule that requested the rollback, if one did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RollbackReference {
    /// Name of that deployment, which completed.
    pub to: DeploymentName,
    /// The rule, where no person requested the rollback.
    #[serde(default)]
    pub rule: Option<RollbackRule>,
}

/// The rule of a deployment that rolls its plan back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RollbackRule {
    /// Name of the rule: `deployment/PLAN/NAME/auto_rollback`.
    pub name: String,
    /// Why that deployment failed.
    pub reason: String,
}

/// Nodes that one reason rules out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UnschedulableReason {
    /// Why, for people.
    pub reason: String,
    /// How many nodes.
    pub count: u32,
    /// The first of them by name, at most 64.
    pub nodes: Vec<NodeName>,
}

/// What may be approved, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalProposal {
    /// The hash of what will be done.
    pub hash: Digest,
    /// When it expires.
    pub expires: Time,
}

/// Who approved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalActor {
    /// A person or program, by an intent.
    Actor(Actor),
    /// A rule, by its name.
    Rule(String),
}

/// Begins the rule of a policy, before its name.
const POLICY: &str = "policy/";

impl ApprovalActor {
    /// By the rule of a policy.
    pub fn of_policy(name: &PolicyName) -> ApprovalActor {
        ApprovalActor::Rule(format!("{POLICY}{name}"))
    }

    /// The policy by whose rule it is.
    pub fn policy(&self) -> Option<&str> {
        match self {
            ApprovalActor::Rule(rule) => rule.strip_prefix(POLICY),
            ApprovalActor::Actor(_) => None,
        }
    }
}

/// How an operation ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationEnd {
    /// It did what it was to do.
    Succeeded,
    /// It did not.
    Failed {
        /// Why.
        reason: String,
    },
    /// Someone refused to approve it.
    Rejected {
        /// Who.
        by: Actor,
        /// Why.
        reason: String,
    },
    /// Nobody approved it in time.
    Expired,
    /// Its deployment went no further.
    Cancelled {
        /// Why.
        reason: String,
    },
    /// Another operation took its place.
    Superseded {
        /// Which.
        by: OperationId,
    },
}

/// How a rebalance of a plan ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RebalanceEnd {
    /// No move that is allowed would make the spread more even.
    Completed,
    /// No further move is made.
    Stopped {
        /// Why, for people.
        reason: String,
    },
}

/// How a deployment ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentEnd {
    /// What it wanted is so.
    Completed,
    /// An operation of it failed.
    Failed {
        /// Which, and why.
        cause: String,
    },
    /// Someone cancelled it.
    Cancelled,
    /// A newer one took its place.
    Superseded {
        /// Which.
        by: DeploymentName,
    },
}

/// How an incarnation ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IncarnationEnd {
    /// It ended as it was asked to, or cleanly by itself.
    Destroyed,
    /// It ended otherwise.
    Failed {
        /// Why.
        reason: String,
    },
    /// It never came to run.
    Unwound {
        /// Why.
        reason: String,
    },
}
