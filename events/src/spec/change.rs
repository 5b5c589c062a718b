//! The specs of what changes a fleet: deployments, disruptions, policies.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PolicyKind, TimeoutAction, Weekday};
use crate::name::{DomainName, KeyName, PayloadName, PlanName};
use crate::time::Time;

/// Coordinates of the version of each payload to run, in the payload's own keys.
pub type PayloadCoordinates = BTreeMap<PayloadName, BTreeMap<KeyName, String>>;

/// A version of a plan's payloads, and a count.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentSpec {
    /// Coordinates for each payload that has any.
    #[serde(default)]
    pub coordinates: PayloadCoordinates,
    /// Number of replicas of the plan.
    pub count: u32,
    /// Strategy by which the deployment is carried out; rolling if absent.
    #[serde(default)]
    pub strategy: DeploymentStrategy,
    /// Milliseconds without progress until the deployment is called stalled, from 1 s to a year; 10 minutes if absent.
    #[serde(default = "progress_deadline")]
    pub progress_deadline: u64,
    /// Whether the deployment is rolled back when it fails or is stalled.
    #[serde(default)]
    pub auto_rollback: bool,
}

/// The default of [`DeploymentSpec::progress_deadline`].
pub const PROGRESS_DEADLINE: u64 = 10 * 60 * 1000;

const fn progress_deadline() -> u64 {
    PROGRESS_DEADLINE
}

/// The strategy by which a deployment is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DeploymentStrategy {
    /// A few at a time, the next ones when those are well.
    Rolling {
        /// Operations of the deployment that may run at once. If absent: one at a time of those that update,
        /// and any number of all others.
        #[serde(default)]
        wave: Option<u32>,
        /// Whether the operations that run at once must be in one update domain; false if absent.
        #[serde(default)]
        per_domain: bool,
        /// Milliseconds from the end of an operation until the next starts; 0 if absent.
        #[serde(default)]
        pause: u64,
    },
    /// The whole new set beside the old one; when all are ready, the old ones go.
    Graceful {
        /// Time until all new replicas must be ready, in milliseconds from the start of the deployment.
        timeout: u64,
        /// Action at the timeout.
        on_timeout: TimeoutAction,
    },
    /// Some of the new version beside the old ones, until they are promoted or withdrawn.
    Canary {
        /// Number of replicas of the new version.
        count: u32,
    },
}

impl Default for DeploymentStrategy {
    fn default() -> DeploymentStrategy {
        DeploymentStrategy::Rolling { wave: None, per_domain: false, pause: 0 }
    }
}

/// A planned interference with a node.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisruptionSpec {
    /// When the node is emptied, if it is, once the disruption is approved; at once, if absent.
    #[serde(default)]
    pub start: Option<Time>,
    /// Whether replicas are moved away from the node.
    #[serde(default)]
    pub evict: DisruptionAction,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

words! {
    /// The action of a disruption on the incarnations of its node.
    #[derive(Default)]
    DisruptionAction {
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
    /// Operations of these kinds, and the expunge of nodes; of every kind, if empty.
    #[serde(default)]
    pub kinds: Vec<PolicyKind>,
    /// Plans that the policy applies to; every plan, if empty.
    #[serde(default)]
    pub plans: Vec<PlanName>,
    /// Update domains of the nodes that the policy applies to; all, if empty.
    #[serde(default)]
    pub domains: Vec<DomainName>,
    /// Rule of the policy about these operations.
    pub rule: PolicyRule,
}

/// The rule of a policy about operations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PolicyRule {
    /// Approves them, while all of this holds.
    Approve {
        /// Only in one of these windows; at any time, if empty.
        #[serde(default)]
        windows: Vec<ApprovalWindow>,
        /// Limit on its approved operations: approves only while fewer are unfinished; none if absent.
        #[serde(default)]
        in_flight: Option<u32>,
    },
    /// Requires that the approver is another than the requester.
    FourEyes {},
}

/// A time of the week, in UTC.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalWindow {
    /// The days on which it opens; every day, if empty.
    #[serde(default)]
    pub days: Vec<Weekday>,
    /// When it opens, in minutes from midnight, below 1440.
    pub from: u16,
    /// Length of the window, in minutes, from 1 to 10080.
    pub minutes: u16,
}
