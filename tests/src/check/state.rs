//! What the checker remembers of each entity: what the rules need, and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chancery_events::amount::Amounts;
use chancery_events::event::Event;
use chancery_events::fact::{DeploymentEnd, Effect, IncarnationEnd, Proposal};
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position};
use chancery_events::intent::{Intent, Request};
use chancery_events::name::{
    ClusterName, DeploymentName, ExecutorName, NodeName, PlanName, ReplicaName, StorageClass,
};
use chancery_events::observation::Observation;
use chancery_events::spec::{Activity, NodeSpec, NodeState, OperationKind, PlanSpec};
use chancery_events::time::Time;

/// Where a fact stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) position: Position,
    pub(super) cause: Position,
    pub(super) time: Time,
    pub(super) lineage: Lineage,
}

/// The last intent or observation, and what has become of it.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) position: Position,
    pub(super) event: Event,
    pub(super) said: Said,
    /// Whether a fact beside the verdict came of it.
    pub(super) has_effect: bool,
}

/// What was said to an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Said {
    /// Nothing yet.
    Nothing,
    /// It holds, and changes something or nothing.
    Accepted,
    Unchanged,
    Refused,
}

impl Input {
    pub(super) fn request(&self) -> Option<&Request> {
        match &self.event {
            Event::Intent(request) => Some(request),
            Event::Observation { .. } | Event::Fact { .. } => None,
        }
    }

    pub(super) fn intent(&self) -> Option<&Intent> {
        self.request().map(|request| &request.intent)
    }

    pub(super) fn saw(&self) -> Option<(&ExecutorName, &Observation)> {
        match &self.event {
            Event::Observation { by, observation } => Some((by, observation)),
            Event::Intent(_) | Event::Fact { .. } => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) spec: NodeSpec,
    pub(super) state: NodeState,
    pub(super) cluster: Option<ClusterName>,
    pub(super) held: Amounts,
    pub(super) volumes: BTreeMap<StorageClass, u64>,
    pub(super) incarnations: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) cluster: ClusterName,
    pub(super) executor: ExecutorName,
    pub(super) is_open: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) activity: Activity,
    pub(super) generation: u32,
    pub(super) specs: BTreeMap<u32, Arc<PlanSpec>>,
    pub(super) deployments: BTreeMap<DeploymentName, Deployment>,
    /// Being carried out.
    pub(super) current: Option<DeploymentName>,
    /// Waits for its turn.
    pub(super) next: Option<DeploymentName>,
    /// How many deployments are over.
    pub(super) ended: u64,
    pub(super) replicas: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Deployment {
    pub(super) generation: u32,
    pub(super) stage: DeploymentStage,
    /// Operations on its behalf that are not over.
    pub(super) open: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum DeploymentStage {
    Pending,
    InProgress,
    Ending(DeploymentEnd),
    /// With how many of the plan's that were over before it.
    Over(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) plan: PlanName,
    pub(super) deployment: DeploymentName,
    /// Its operations that are not over.
    pub(super) open: Vec<OperationId>,
    /// Its incarnation that is not over.
    pub(super) live: Option<IncarnationId>,
    pub(super) was_approved: bool,
    /// A delete of it has succeeded.
    pub(super) is_going: bool,
    pub(super) stop: Option<Stop>,
}

/// A user's stop that stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    pub(super) at: Position,
    /// The operation that carries it out, if one had to.
    pub(super) operation: Option<OperationId>,
}

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) replica: ReplicaName,
    pub(super) plan: PlanName,
    pub(super) kind: OperationKind,
    pub(super) deployment: Option<DeploymentName>,
    pub(super) stage: Stage,
    pub(super) proposal: Option<Proposal>,
    pub(super) incarnation: Option<IncarnationId>,
    /// Left alone: it does not expire any more.
    pub(super) is_parked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Preparing,
    Pending,
    Running,
    Over,
}

#[derive(Clone, Debug)]
pub(super) struct Incarnation {
    pub(super) replica: ReplicaName,
    pub(super) operation: OperationId,
    pub(super) node: NodeName,
    pub(super) cluster: ClusterName,
    pub(super) amounts: Amounts,
    pub(super) volumes: BTreeMap<StorageClass, u64>,
    /// Processes of its spec.
    pub(super) processes: usize,
    pub(super) life: Life,
    pub(super) revision: u32,
    /// The command without an outcome, with its attempt.
    pub(super) command: Option<(Effect, u32)>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Life {
    /// Holds a place; nobody was asked to start it.
    Reserved,
    Creating,
    Starting,
    Running,
    /// With what it becomes when its end is proved.
    Stopping(IncarnationEnd),
    Over,
    /// Over on the operator's word that its node is gone: what still runs is not the fleet's.
    Expunged,
}

impl Life {
    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Life::Over | Life::Expunged)
    }
}

/// Something that must be so by the end of the record.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Debt {
    /// The operation that supersedes another one exists, on the same replica.
    Opened(OperationId, ReplicaName),
    /// The deployment that supersedes another one exists.
    Created(PlanName, DeploymentName),
    /// The place that an operation held is free.
    Freed(IncarnationId),
}

/// Every entity.
#[derive(Clone, Default, Debug)]
pub(super) struct World {
    /// Each cluster, with its open session.
    pub(super) clusters: BTreeMap<ClusterName, Option<chancery_events::id::SessionId>>,
    pub(super) capabilities: BTreeSet<chancery_events::name::CapabilityName>,
    pub(super) nodes: BTreeMap<NodeName, Node>,
    pub(super) sessions: BTreeMap<chancery_events::id::SessionId, Session>,
    pub(super) plans: BTreeMap<PlanName, Plan>,
    pub(super) replicas: BTreeMap<ReplicaName, Replica>,
    pub(super) operations: BTreeMap<OperationId, Operation>,
    pub(super) incarnations: BTreeMap<IncarnationId, Incarnation>,
    pub(super) debts: Vec<Debt>,
    pub(super) input: Option<Arc<Input>>,
}
