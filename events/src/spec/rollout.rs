//! Specifications of changes to a fleet: deployments, disruptions, policies.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PolicyKind, TimeoutAction, Weekday};
use crate::name::{DomainName, KeyName, PayloadName, PlanName};
use crate::time::Time;

/// Coordinates of the version of each payload to run, with keys that the payload defines.
pub type PayloadCoordinates = BTreeMap<PayloadName, BTreeMap<KeyName, String>>;

/// Version of a plan's payloads, with a number of replicas.
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
    /// Time without progress until the deployment is stalled, in milliseconds, from 1 s to 365 days; 10
    /// minutes if absent.
    #[serde(default = "progress_deadline")]
    pub progress_deadline: u64,
    /// Whether the deployment is rolled back when it fails or is stalled.
    #[serde(default)]
    pub auto_rollback: bool,
}

/// Default of [`DeploymentSpec::progress_deadline`].
pub const PROGRESS_DEADLINE: u64 = 10 * 60 * 1000;

const fn progress_deadline() -> u64 {
    PROGRESS_DEADLINE
}

/// Strategy by which a deployment is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DeploymentStrategy {
    /// A few replicas at a time; the next replicas follow when these are ready.
    Rolling {
        /// Maximum number of concurrent operations of the deployment. If absent: one update at a time;
        /// creates, deletes and other operations without limit.
        #[serde(default)]
        max_parallel: Option<u32>,
        /// Whether concurrent operations must be in one update domain; false if absent.
        #[serde(default)]
        per_domain: bool,
        /// Milliseconds from the end of an operation until the next starts; 0 if absent.
        #[serde(default)]
        delay: u64,
    },
    /// A whole new set alongside the old set; when all new replicas are ready, the old replicas are removed.
    BlueGreen {
        /// Time until all new replicas must be ready, in milliseconds from the start of the deployment.
        timeout: u64,
        /// Action at the timeout.
        on_timeout: TimeoutAction,
    },
    /// Some replicas of the new version alongside the old replicas, until the deployment is promoted or
    /// rolled back.
    Canary {
        /// Number of replicas of the new version.
        count: u32,
    },
}

impl Default for DeploymentStrategy {
    fn default() -> DeploymentStrategy {
        DeploymentStrategy::Rolling { max_parallel: None, per_domain: false, delay: 0 }
    }
}

/// Disruption: planned interference with a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisruptionSpec {
    /// Time from which the node of an approved disruption is drained, if requested; immediately, if absent. A request may
    /// also give it as RFC 3339, as in `2026-11-21T09:00:00Z`; the journal has microseconds.
    #[serde(default, deserialize_with = "crate::time::requested")]
    pub start: Option<Time>,
    /// Whether replicas are moved away from the node.
    #[serde(default)]
    pub action: DisruptionAction,
    /// Reason of the disruption, for people.
    #[serde(default)]
    pub reason: String,
}

words! {
    /// Action of a disruption on the incarnations of its node.
    #[derive(Default)]
    DisruptionAction {
        /// No action, except that the node takes no placements.
        #[default]
        None = "none",
        /// Drains the node, one update domain at a time and within the budgets of plans; then the disruption
        /// is completed.
        Drain = "drain",
        /// Drains the node, and then deletes it.
        DrainAndDelete = "drain_and_delete",
    }
}

/// Policy: a rule for approvals, in addition to those of plans.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySpec {
    /// Kinds of work that the policy applies to: kinds of operations, and the expunge of nodes; all kinds, if
    /// empty.
    #[serde(default)]
    pub kinds: Vec<PolicyKind>,
    /// Plans that the policy applies to; all plans, if empty.
    #[serde(default)]
    pub plans: Vec<PlanName>,
    /// Update domains of the nodes that the policy applies to; all domains, if empty.
    #[serde(default)]
    pub domains: Vec<DomainName>,
    /// Rule of the policy for this work.
    pub rule: PolicyRule,
}

/// Rule of a policy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PolicyRule {
    /// Approves operations while all conditions hold.
    Approve {
        /// Windows in which operations are approved; any time, if empty.
        #[serde(default)]
        windows: Vec<ApprovalWindow>,
        /// Maximum number of approved operations that have not ended; unlimited if absent.
        #[serde(default)]
        max_in_flight: Option<u32>,
    },
    /// Requires that the approver is not the requester.
    FourEyes {},
}

/// Window of the week, in UTC.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalWindow {
    /// Days on which the window opens; every day, if empty.
    #[serde(default)]
    pub days: Vec<Weekday>,
    /// Time at which the window opens, in minutes after midnight, from 0 to 1439.
    pub start: u16,
    /// Length of the window, in minutes, from 1 to 10080.
    pub duration: u16,
}
