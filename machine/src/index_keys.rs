//! Indexed fields of each entity, compared before and after a change. Entities can thus be changed in place,
//! and other changes cost no index update. Indexes read fields that never change (name, plan, creation) from
//! the entity itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::digest::Digest;
use chancery_events::fact::DeploymentEnd;
use chancery_events::lifecycle::{SetWord, WillWord};
use chancery_events::name::{DeploymentName, DomainName, NodeName, ReplicaName, StorageClass, VolumeName};
use chancery_events::resources::Resources;
use chancery_events::spec::{ApprovalMode, BalancePolicy, DeploymentStrategy, OperationKind, PlanSpec};
use chancery_events::time::Time;

use crate::state::{
    ApprovalRequest, Deployment, DeploymentState, Incarnation, IncarnationRef, IncarnationState, Operation,
    OperationState, Plan, Replica, RequestState, Volume, VolumeState,
};

/// Indexed fields of an entity before and after a change; `None` where it does not exist.
pub(crate) type IndexChange<'a, M> = [Option<&'a M>; 2];

/// Applies a function to both sides of a change. `array::map` is not always inlined: without link-time
/// optimization, it took a tenth of the instructions of a placement.
#[inline]
pub(crate) fn sides<'a, M, T>(both: IndexChange<'a, M>, of: impl Fn(Option<&'a M>) -> T) -> [T; 2] {
    let [old, new] = both;
    [of(old), of(new)]
}

/// Whole entity, for kinds that rarely change.
#[derive(PartialEq)]
pub(crate) struct WholeEntity<E>(pub(crate) E);

impl<E: Clone> From<&E> for WholeEntity<E> {
    fn from(entity: &E) -> WholeEntity<E> {
        WholeEntity(entity.clone())
    }
}

impl<E> WholeEntity<E> {
    pub(crate) fn both(both: IndexChange<'_, WholeEntity<E>>) -> IndexChange<'_, E> {
        sides(both, |whole| whole.map(|whole| &whole.0))
    }
}

/// No indexed field.
#[derive(PartialEq)]
pub(crate) struct NotIndexed;

impl<E> From<&E> for NotIndexed {
    fn from(_: &E) -> NotIndexed {
        NotIndexed
    }
}

/// Indexed fields of a plan.
#[derive(Clone, PartialEq, Default, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct PlanIndexKey {
    pub(crate) current: Option<DeploymentName>,
    pub(crate) waiting: bool,
    pub(crate) quarantined: bool,
    pub(crate) deleting: bool,
    /// Whether updates are approved automatically.
    pub(crate) updates_alone: bool,
    pub(crate) generation: u32,
    pub(crate) spec: Option<Arc<PlanSpec>>,
    /// Time before which no disruption moves a replica of the plan.
    pub(crate) setback: Option<Time>,
    /// Whether the spread was found to be uneven.
    pub(crate) uneven: bool,
    pub(crate) rebalancing: bool,
}

impl From<&Plan> for PlanIndexKey {
    fn from(plan: &Plan) -> PlanIndexKey {
        PlanIndexKey {
            current: plan.current.clone(),
            waiting: plan.next.is_some(),
            quarantined: plan.quarantined.is_some(),
            deleting: plan.deletion_requested_by.is_some(),
            setback: plan.setback.map(|setback| setback.until),
            updates_alone: plan.immediate().approval().of(OperationKind::Update) == ApprovalMode::Automatic,
            generation: plan.generation,
            spec: Some(Arc::clone(plan.immediate().shared())),
            uneven: plan.balance == BalancePolicy::Uneven,
            rebalancing: plan.rebalance.is_some(),
        }
    }
}

#[derive(PartialEq)]
pub(crate) struct RequestIndexKey {
    /// Expiry time, while the request waits.
    pub(crate) waits_until: Option<Time>,
}

impl From<&ApprovalRequest> for RequestIndexKey {
    fn from(request: &ApprovalRequest) -> RequestIndexKey {
        let waits_until = match request.state {
            RequestState::Pending { expires } => Some(expires),
            RequestState::Approved { .. } | RequestState::Ended(_) => None,
        };
        RequestIndexKey { waits_until }
    }
}

/// Stage of a deployment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeploymentStage {
    Pending,
    InProgress,
    Paused,
    /// Starts nothing; running operations continue.
    Settling,
    /// Starts nothing, and aborts running operations.
    Aborting,
    Over,
}

/// Indexed fields of a deployment; without stage and version, if it does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DeploymentIndexKey {
    pub(crate) stage: Option<DeploymentStage>,
    pub(crate) count: u32,
    pub(crate) version: Option<Digest>,
    pub(crate) strategy: DeploymentStrategy,
    pub(crate) active_set: SetWord,
    pub(crate) last_success: Option<Time>,
    /// Last progress, and time limit until the next, while the deployment is in progress and not stalled.
    pub(crate) progress: Option<(Time, Duration)>,
    /// Time by which the new set must be ready, until it is active.
    pub(crate) deadline: Option<Time>,
}

impl From<&Deployment> for DeploymentIndexKey {
    fn from(deployment: &Deployment) -> DeploymentIndexKey {
        let stage = match &deployment.state {
            DeploymentState::Pending => DeploymentStage::Pending,
            DeploymentState::InProgress => DeploymentStage::InProgress,
            DeploymentState::Paused => DeploymentStage::Paused,
            DeploymentState::Halted(DeploymentEnd::Failed { .. }) if !deployment.spec.auto_rollback => {
                DeploymentStage::Settling
            }
            DeploymentState::Halted(_) => DeploymentStage::Aborting,
            DeploymentState::Ended(_) => DeploymentStage::Over,
        };
        let begun = matches!(stage, DeploymentStage::InProgress | DeploymentStage::Paused);
        let patience = Duration::from_millis(deployment.spec.progress_deadline);
        let waits = stage == DeploymentStage::InProgress && deployment.stalled.is_none();
        DeploymentIndexKey {
            stage: Some(stage),
            progress: deployment.progressed.filter(|_| waits).map(|last| (last, patience)),
            count: deployment.spec.count,
            version: Some(deployment.version),
            strategy: deployment.spec.strategy,
            active_set: deployment.active_set,
            last_success: deployment.last_success.map(|last| last.time),
            deadline: deployment.deadline.filter(|_| begun && deployment.active_set == SetWord::Old),
        }
    }
}

#[derive(PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(crate) struct ReplicaIndexKey {
    pub(crate) deployment: DeploymentName,
    pub(crate) going: bool,
    /// Whether the delete of the replica has not started.
    pub(crate) undecided: bool,
    pub(crate) idle: bool,
    pub(crate) still: bool,
    pub(crate) free: bool,
    pub(crate) ailing: bool,
    /// Whether the replica should run and does not yet: an operation starts it, or its incarnation is ending.
    pub(crate) unsettled: bool,
    /// Whether the replica is being restored: its incarnation was stopped for an operation that was aborted,
    /// or a start is in progress.
    pub(crate) regains: bool,
    /// Nodes with a reservation of the replica, the active one first.
    pub(crate) places: [Option<(NodeName, DomainName)>; 2],
    /// Index in `places` of the node where the replica remains if everything in progress succeeds.
    remains: Option<usize>,
    pub(crate) healthy: bool,
    /// Whether a move by a disruption stopped the replica.
    pub(crate) downed: bool,
    /// Time of the next automatic restart.
    pub(crate) next_restart: Option<Time>,
}

impl ReplicaIndexKey {
    /// Whether the replica has a reservation at the place.
    pub(crate) fn holds(&self, place: &(NodeName, DomainName)) -> bool {
        self.places.iter().flatten().any(|held| held == place)
    }

    /// Node where the replica remains if everything in progress succeeds.
    pub(crate) fn remains(&self) -> Option<&(NodeName, DomainName)> {
        self.places[self.remains?].as_ref()
    }
}

impl From<&Replica> for ReplicaIndexKey {
    fn from(replica: &Replica) -> ReplicaIndexKey {
        let active = replica.active.as_ref();
        let healthy = active.is_some_and(|active| active.healthy);
        let idle = replica.needs_start();
        let place = |run: &IncarnationRef| (run.node.clone(), run.domain.clone());
        // Two incarnations of the replica on one node count as one replica there.
        let elsewhere = |other: &&IncarnationRef| active.is_none_or(|active| active.node != other.node);
        let other = replica.secondary.as_deref().filter(elsewhere);
        let remaining = replica.remaining();
        let operation = replica.operation;
        let starts = operation.is_some_and(|open| open.kind == OperationKind::Start);
        let comes =
            starts || operation.is_some_and(|open| open.started) || active.is_some_and(|run| run.ending);
        let remains = [active, other]
            .iter()
            .position(|run| run.zip(remaining).is_some_and(|(run, remaining)| run.node == remaining.node));
        ReplicaIndexKey {
            deployment: replica.deployment.clone(),
            going: replica.is_deleting(),
            undecided: replica.is_deleting() && replica.desired != WillWord::Deleted,
            idle,
            still: !replica.recovers && (replica.is_not_running() || replica.is_without_place()),
            free: replica.is_updatable(),
            ailing: active.is_some() && !healthy && replica.operation.is_none(),
            unsettled: replica.desired == WillWord::Running && !healthy && comes,
            regains: replica.recovers || operation.is_some_and(|open| open.regains),
            places: [active.map(place), other.map(place)],
            remains,
            healthy,
            downed: replica.down_after_drain,
            next_restart: replica.next_restart.filter(|_| idle).map(|again| again.not_before),
        }
    }
}

/// Stage of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperationStage {
    Preparing,
    Waiting { until: Time },
    Approved,
    Running,
    Over,
}

#[derive(PartialEq)]
pub(crate) struct OperationIndexKey {
    pub(crate) turn: OperationStage,
    pub(crate) domain: Option<DomainName>,
    /// Whether the operation starts an incarnation, is running, and can still be aborted.
    pub(crate) may_abort: bool,
    /// Policy that approved the operation, until it ends.
    pub(crate) by_policy: Option<String>,
}

impl OperationIndexKey {
    /// Expiry time, if the operation waits for approval.
    pub(crate) fn waits_until(&self) -> Option<Time> {
        match self.turn {
            OperationStage::Waiting { until } => Some(until),
            OperationStage::Preparing
            | OperationStage::Approved
            | OperationStage::Running
            | OperationStage::Over => None,
        }
    }
}

impl From<&Operation> for OperationIndexKey {
    fn from(operation: &Operation) -> OperationIndexKey {
        let turn = match &operation.state {
            OperationState::Preparing => OperationStage::Preparing,
            OperationState::PendingApproval(proposal) => OperationStage::Waiting { until: proposal.expires },
            OperationState::Approved => OperationStage::Approved,
            OperationState::Running => OperationStage::Running,
            OperationState::Ended(_) => OperationStage::Over,
        };
        let is_over = matches!(turn, OperationStage::Over);
        let approved = operation.approved.as_ref().filter(|_| !is_over);
        let by_policy = approved.and_then(|(by, _)| by.policy()).map(str::to_owned);
        let brings_up =
            matches!(operation.kind, OperationKind::Create | OperationKind::Start | OperationKind::Update);
        let may_abort = matches!(turn, OperationStage::Running) && brings_up && !operation.is_past_return;
        OperationIndexKey { turn, domain: operation.domain.clone(), may_abort, by_policy }
    }
}

#[derive(PartialEq)]
pub(crate) struct IncarnationIndexKey {
    /// Whether no start was requested.
    pub(crate) reserved: bool,
    /// Reserved resources.
    pub(crate) resources: Resources,
    pub(crate) reserved_storage: BTreeMap<StorageClass, u64>,
    pub(crate) live: bool,
    pub(crate) in_inventory: bool,
    pub(crate) deadline: Option<Time>,
    /// Time from which the pending command may be sent.
    pub(crate) pending_command: Option<Time>,
    /// Volumes that the incarnation waits for, if it waits for nothing else.
    pub(crate) waits_for: Option<Vec<VolumeName>>,
}

impl From<&Incarnation> for IncarnationIndexKey {
    fn from(incarnation: &Incarnation) -> IncarnationIndexKey {
        let live = incarnation.is_live();
        IncarnationIndexKey {
            reserved: incarnation.state == IncarnationState::Reserved,
            resources: incarnation.holds(),
            reserved_storage: incarnation.ties.reserved_storage.clone(),
            live,
            in_inventory: live && incarnation.state != IncarnationState::Reserved,
            deadline: incarnation.deadline.filter(|_| live),
            pending_command: incarnation.command.filter(|_| live).map(|command| command.not_before),
            waits_for: (live && incarnation.awaits_volumes).then(|| incarnation.ties.mounts.clone()),
        }
    }
}

#[derive(PartialEq)]
pub(crate) struct VolumeIndexKey {
    pub(crate) node: NodeName,
    pub(crate) owner: Option<ReplicaName>,
    /// Whether incarnations that will use the volume must wait.
    pub(crate) blocks: bool,
    /// Whether the volume will be deleted, and can be.
    pub(crate) is_unused: bool,
    /// Whether the volume may still exist.
    pub(crate) may_be: bool,
    /// Time from which the pending command may be sent.
    pub(crate) pending_command: Option<Time>,
}

impl From<&Volume> for VolumeIndexKey {
    fn from(volume: &Volume) -> VolumeIndexKey {
        let goes = volume.deletion_requested_by.is_some();
        let blocks = match volume.state {
            VolumeState::Ready => goes || volume.used_by.is_some(),
            VolumeState::Creating | VolumeState::Destroying => true,
            // Incarnations that wait for the volume proceed and fail, unless it will be deleted.
            VolumeState::Lost(_) => goes,
        };
        VolumeIndexKey {
            node: volume.node.clone(),
            owner: volume.owner.clone(),
            blocks,
            is_unused: goes && volume.used_by.is_none() && volume.state != VolumeState::Destroying,
            may_be: matches!(volume.state, VolumeState::Creating | VolumeState::Ready),
            pending_command: volume.command.map(|command| command.not_before),
        }
    }
}
