//! What the indexes need to know of an entity: taken before and after each change, so that entities can be changed
//! where they stand, and a change that no index follows costs no index anything.

use std::collections::BTreeMap;

use chancery_events::amount::Amounts;
use chancery_events::fact::DeploymentEnd;
use chancery_events::id::{IncarnationId, OperationId, Position};
use chancery_events::name::{
    ClusterName, DeploymentName, DomainName, NodeName, PlanName, ReplicaName, StorageClass,
};
use chancery_events::time::Time;

use crate::state::{
    Deployment, DeploymentState, Incarnation, IncarnationState, Operation, OperationState, Plan, Replica,
    Session,
};

/// All of it: of what changes seldom.
#[derive(PartialEq)]
pub(crate) struct Whole<E>(pub(crate) E);

impl<E: Clone> From<&E> for Whole<E> {
    fn from(entity: &E) -> Whole<E> {
        Whole(entity.clone())
    }
}

/// Nothing: no index follows it.
#[derive(PartialEq)]
pub(crate) struct Unmarked;

impl From<&Session> for Unmarked {
    fn from(_: &Session) -> Unmarked {
        Unmarked
    }
}

/// Of a plan.
#[derive(PartialEq)]
pub(crate) struct PlanMarks {
    pub(crate) name: PlanName,
    pub(crate) current: Option<DeploymentName>,
    pub(crate) waiting: bool,
    pub(crate) parked: bool,
}

impl From<&Plan> for PlanMarks {
    fn from(plan: &Plan) -> PlanMarks {
        PlanMarks {
            name: plan.name.clone(),
            current: plan.current.clone(),
            waiting: plan.next.is_some(),
            parked: plan.parked.is_some(),
        }
    }
}

/// What a deployment has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Pending,
    InProgress,
    Ending,
    Over,
}

/// Of a deployment.
#[derive(PartialEq)]
pub(crate) struct DeploymentMarks {
    pub(crate) plan: PlanName,
    pub(crate) name: DeploymentName,
    pub(crate) stage: Stage,
    pub(crate) count: u32,
}

impl From<&Deployment> for DeploymentMarks {
    fn from(deployment: &Deployment) -> DeploymentMarks {
        let stage = match &deployment.state {
            DeploymentState::Pending => Stage::Pending,
            DeploymentState::InProgress => Stage::InProgress,
            DeploymentState::Ending(
                DeploymentEnd::Failed { .. }
                | DeploymentEnd::Cancelled
                | DeploymentEnd::Completed
                | DeploymentEnd::Superseded { .. },
            ) => Stage::Ending,
            DeploymentState::Ended(_) => Stage::Over,
        };
        let (plan, name) = (deployment.plan.clone(), deployment.name.clone());
        DeploymentMarks { plan, name, stage, count: deployment.spec.count }
    }
}

/// Of a replica.
#[derive(PartialEq)]
pub(crate) struct ReplicaMarks {
    pub(crate) name: ReplicaName,
    pub(crate) created: Position,
    pub(crate) plan: PlanName,
    pub(crate) deployment: DeploymentName,
    pub(crate) going: bool,
    pub(crate) idle: bool,
    /// Where it holds a place.
    pub(crate) place: Option<(NodeName, DomainName)>,
    pub(crate) healthy: bool,
}

impl From<&Replica> for ReplicaMarks {
    fn from(replica: &Replica) -> ReplicaMarks {
        let active = replica.active.as_ref();
        ReplicaMarks {
            name: replica.name.clone(),
            created: replica.meta.created.position,
            plan: replica.plan.clone(),
            deployment: replica.deployment.clone(),
            going: replica.is_going(),
            idle: replica.is_idle(),
            place: active.map(|active| (active.node.clone(), active.domain.clone())),
            healthy: active.is_some_and(|active| active.healthy),
        }
    }
}

/// How far an operation has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Preparing,
    Waiting { until: Time },
    Running,
    Over,
}

/// Of an operation.
#[derive(PartialEq)]
pub(crate) struct OperationMarks {
    pub(crate) id: OperationId,
    pub(crate) plan: PlanName,
    pub(crate) deployment: Option<DeploymentName>,
    pub(crate) version: DeploymentName,
    pub(crate) turn: Turn,
}

impl From<&Operation> for OperationMarks {
    fn from(operation: &Operation) -> OperationMarks {
        let turn = match &operation.state {
            OperationState::Preparing => Turn::Preparing,
            OperationState::PendingApproval(proposal) => Turn::Waiting { until: proposal.expires },
            OperationState::Running(_) => Turn::Running,
            OperationState::Ended(_) => Turn::Over,
        };
        OperationMarks {
            id: operation.id,
            plan: operation.plan.clone(),
            deployment: operation.deployment.clone(),
            version: operation.version.clone(),
            turn,
        }
    }
}

/// Of an incarnation.
#[derive(PartialEq)]
pub(crate) struct IncarnationMarks {
    pub(crate) id: IncarnationId,
    pub(crate) node: NodeName,
    pub(crate) cluster: ClusterName,
    pub(crate) amounts: Amounts,
    pub(crate) volumes: BTreeMap<StorageClass, u64>,
    pub(crate) live: bool,
    pub(crate) commanded: bool,
    pub(crate) deadline: Option<Time>,
    /// When its command may be sent.
    pub(crate) outstanding: Option<Time>,
}

impl From<&Incarnation> for IncarnationMarks {
    fn from(incarnation: &Incarnation) -> IncarnationMarks {
        let live = incarnation.is_live();
        IncarnationMarks {
            id: incarnation.id,
            node: incarnation.node.clone(),
            cluster: incarnation.cluster.clone(),
            amounts: incarnation.amounts,
            volumes: incarnation.volumes.clone(),
            live,
            commanded: live && incarnation.state != IncarnationState::Reserved,
            deadline: incarnation.deadline.filter(|_| live),
            outstanding: incarnation.command.filter(|_| live).map(|command| command.not_before),
        }
    }
}
