//! What of an entity changes, and indexes follow: taken before and after each change, so that entities can be changed
//! where they stand, and a change that no index follows costs no index anything. What never changes of one (its name, its
//! plan, when it was created), indexes read from the entity itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::amount::Amounts;
use chancery_events::digest::Digest;
use chancery_events::fact::DeploymentEnd;
use chancery_events::lifecycle::{SetWord, WillWord};
use chancery_events::name::{DeploymentName, DomainName, NodeName, ReplicaName, StorageClass, VolumeName};
use chancery_events::spec::{Approval, Balance, OperationKind, PlanSpec, Strategy};
use chancery_events::time::Time;

use crate::state::{
    Active, ApprovalRequest, Deployment, DeploymentState, Incarnation, IncarnationState, Operation,
    OperationState, Plan, Replica, RequestState, Volume, VolumeState,
};

/// What indexes follow of an entity before a change and after it: nothing, where it does not exist.
pub(crate) type Both<'a, M> = [Option<&'a M>; 2];

/// All of it: of what changes seldom.
#[derive(PartialEq)]
pub(crate) struct Whole<E>(pub(crate) E);

impl<E: Clone> From<&E> for Whole<E> {
    fn from(entity: &E) -> Whole<E> {
        Whole(entity.clone())
    }
}

impl<E> Whole<E> {
    pub(crate) fn both(both: Both<'_, Whole<E>>) -> Both<'_, E> {
        both.map(|whole| whole.map(|whole| &whole.0))
    }
}

/// Nothing: no index follows it.
#[derive(PartialEq)]
pub(crate) struct Unmarked;

impl<E> From<&E> for Unmarked {
    fn from(_: &E) -> Unmarked {
        Unmarked
    }
}

/// Of a plan.
#[derive(Clone, PartialEq, Default, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct PlanMarks {
    pub(crate) current: Option<DeploymentName>,
    pub(crate) waiting: bool,
    pub(crate) parked: bool,
    pub(crate) removing: bool,
    /// Whether a rule approves updates, and not people.
    pub(crate) updates_alone: bool,
    /// Counts its edits.
    pub(crate) generation: u32,
    /// What it is now.
    pub(crate) spec: Option<Arc<PlanSpec>>,
    /// Until when no disruption moves a replica of it.
    pub(crate) setback: Option<Time>,
    /// Whether its spread was found to be uneven.
    pub(crate) uneven: bool,
    pub(crate) rebalancing: bool,
}

impl From<&Plan> for PlanMarks {
    fn from(plan: &Plan) -> PlanMarks {
        PlanMarks {
            current: plan.current.clone(),
            waiting: plan.next.is_some(),
            parked: plan.parked.is_some(),
            removing: plan.removing.is_some(),
            setback: plan.setback.map(|setback| setback.until),
            updates_alone: plan.policy().approval().of(OperationKind::Update) == Approval::Automatic,
            generation: plan.generation,
            spec: Some(Arc::clone(plan.policy().shared())),
            uneven: plan.balance == Balance::Uneven,
            rebalancing: plan.rebalance.is_some(),
        }
    }
}

/// Of an approval request.
#[derive(PartialEq)]
pub(crate) struct RequestMarks {
    /// Time at which it expires, while it waits.
    pub(crate) waits_until: Option<Time>,
}

impl From<&ApprovalRequest> for RequestMarks {
    fn from(request: &ApprovalRequest) -> RequestMarks {
        let waits_until = match request.state {
            RequestState::Pending { expires } => Some(expires),
            RequestState::Approved { .. } | RequestState::Ended(_) => None,
        };
        RequestMarks { waits_until }
    }
}

/// What a deployment has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Pending,
    InProgress,
    Paused,
    /// It begins nothing more; what has begun goes on.
    Settling,
    /// It begins nothing more, and aborts what has begun.
    Aborting,
    Over,
}

/// Of a deployment; without a stage and a version, if there is none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DeploymentMarks {
    pub(crate) stage: Option<Stage>,
    pub(crate) count: u32,
    pub(crate) version: Option<Digest>,
    pub(crate) strategy: Strategy,
    pub(crate) set: SetWord,
    pub(crate) rested: Option<Time>,
    /// Its last progress, and how long it may take until the next, while it is in progress and not called stalled.
    pub(crate) progress: Option<(Time, Duration)>,
    /// When its new set must be ready, while it need not be yet.
    pub(crate) deadline: Option<Time>,
}

impl From<&Deployment> for DeploymentMarks {
    fn from(deployment: &Deployment) -> DeploymentMarks {
        let stage = match &deployment.state {
            DeploymentState::Pending => Stage::Pending,
            DeploymentState::InProgress => Stage::InProgress,
            DeploymentState::Paused => Stage::Paused,
            DeploymentState::Ending(DeploymentEnd::Failed { .. }) if !deployment.spec.auto_rollback => {
                Stage::Settling
            }
            DeploymentState::Ending(_) => Stage::Aborting,
            DeploymentState::Ended(_) => Stage::Over,
        };
        let begun = matches!(stage, Stage::InProgress | Stage::Paused);
        let patience = Duration::from_millis(deployment.spec.progress_deadline);
        let waits = stage == Stage::InProgress && deployment.stalled.is_none();
        DeploymentMarks {
            stage: Some(stage),
            progress: deployment.progressed.filter(|_| waits).map(|last| (last, patience)),
            count: deployment.spec.count,
            version: Some(deployment.version),
            strategy: deployment.spec.strategy,
            set: deployment.set,
            rested: deployment.rested,
            deadline: deployment.deadline.filter(|_| begun && deployment.set == SetWord::Old),
        }
    }
}

/// Of a replica.
#[derive(PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(crate) struct ReplicaMarks {
    pub(crate) deployment: DeploymentName,
    pub(crate) going: bool,
    /// Whether the delete that the replica is going by has not begun.
    pub(crate) undecided: bool,
    pub(crate) idle: bool,
    pub(crate) still: bool,
    pub(crate) free: bool,
    pub(crate) ailing: bool,
    /// Whether the replica should run and does not yet: an operation brings it up, or its incarnation is ending.
    pub(crate) unsettled: bool,
    /// Whether the replica is being brought back to what it was: its incarnation was stopped for an operation that was
    /// aborted, or a start is under way.
    pub(crate) regains: bool,
    /// Where it holds a place, the one that counts first.
    pub(crate) places: [Option<(NodeName, DomainName)>; 2],
    /// Which of these places it has when everything that is under way has succeeded.
    remains: Option<usize>,
    pub(crate) healthy: bool,
    /// Whether a disruption's move has brought it down.
    pub(crate) downed: bool,
    /// When its plan's rule starts it again.
    pub(crate) again: Option<Time>,
}

impl ReplicaMarks {
    /// Whether it holds the place.
    pub(crate) fn holds(&self, place: &(NodeName, DomainName)) -> bool {
        self.places.iter().flatten().any(|held| held == place)
    }

    /// The place that it has when everything that is under way has succeeded.
    pub(crate) fn remains(&self) -> Option<&(NodeName, DomainName)> {
        self.places[self.remains?].as_ref()
    }
}

impl From<&Replica> for ReplicaMarks {
    fn from(replica: &Replica) -> ReplicaMarks {
        let active = replica.active.as_ref();
        let healthy = active.is_some_and(|active| active.healthy);
        let place = |run: &Active| (run.node.clone(), run.domain.clone());
        // On one node, its two runs are one of the plan's replicas there.
        let elsewhere = |other: &&Active| active.is_none_or(|active| active.node != other.node);
        let other = replica.passive.as_deref().filter(elsewhere);
        let remaining = replica.remaining();
        let operation = replica.operation;
        let starts = operation.is_some_and(|open| open.kind == OperationKind::Start);
        let comes =
            starts || operation.is_some_and(|open| open.begun) || active.is_some_and(|run| run.ending);
        let remains = [active, other]
            .iter()
            .position(|run| run.zip(remaining).is_some_and(|(run, remaining)| run.node == remaining.node));
        ReplicaMarks {
            deployment: replica.deployment.clone(),
            going: replica.is_going(),
            undecided: replica.is_going() && replica.will != WillWord::Deleted,
            idle: replica.is_idle(),
            still: !replica.recovers && (replica.is_still() || replica.is_without_place()),
            free: replica.is_free(),
            ailing: active.is_some() && !healthy && replica.operation.is_none(),
            unsettled: replica.will == WillWord::Running && !healthy && comes,
            regains: replica.recovers || operation.is_some_and(|open| open.regains),
            places: [active.map(place), other.map(place)],
            remains,
            healthy,
            downed: replica.downed,
            again: replica.again.filter(|_| replica.is_idle()).map(|again| again.at),
        }
    }
}

/// How far an operation has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Preparing,
    Waiting { until: Time },
    Approved,
    Running,
    Over,
}

/// Of an operation.
#[derive(PartialEq)]
pub(crate) struct OperationMarks {
    pub(crate) turn: Turn,
    pub(crate) domain: Option<DomainName>,
    /// Whether it brings something up, has begun, and can still be aborted.
    pub(crate) may_abort: bool,
    /// The policy that approved it, while it is not over.
    pub(crate) by_policy: Option<String>,
}

impl OperationMarks {
    /// When it expires, if it waits for approval.
    pub(crate) fn waits_until(&self) -> Option<Time> {
        match self.turn {
            Turn::Waiting { until } => Some(until),
            Turn::Preparing | Turn::Approved | Turn::Running | Turn::Over => None,
        }
    }
}

impl From<&Operation> for OperationMarks {
    fn from(operation: &Operation) -> OperationMarks {
        let turn = match &operation.state {
            OperationState::Preparing => Turn::Preparing,
            OperationState::PendingApproval(proposal) => Turn::Waiting { until: proposal.expires },
            OperationState::Approved => Turn::Approved,
            OperationState::Running => Turn::Running,
            OperationState::Ended(_) => Turn::Over,
        };
        let is_over = matches!(turn, Turn::Over);
        let approved = operation.approved.as_ref().filter(|_| !is_over);
        let by_policy = approved.and_then(|(by, _)| by.policy()).map(str::to_owned);
        let brings_up =
            matches!(operation.kind, OperationKind::Create | OperationKind::Start | OperationKind::Update);
        let may_abort = matches!(turn, Turn::Running) && brings_up && !operation.is_past_return;
        OperationMarks { turn, domain: operation.domain.clone(), may_abort, by_policy }
    }
}

/// Of an incarnation.
#[derive(PartialEq)]
pub(crate) struct IncarnationMarks {
    /// Whether nobody was asked to start it.
    pub(crate) reserved: bool,
    /// What it holds.
    pub(crate) amounts: Amounts,
    pub(crate) volumes: BTreeMap<StorageClass, u64>,
    pub(crate) live: bool,
    pub(crate) commanded: bool,
    pub(crate) deadline: Option<Time>,
    /// When its command may be sent.
    pub(crate) outstanding: Option<Time>,
    /// The volumes that it waits for, if it waits for nothing else.
    pub(crate) waits_for: Option<Vec<VolumeName>>,
}

impl From<&Incarnation> for IncarnationMarks {
    fn from(incarnation: &Incarnation) -> IncarnationMarks {
        let live = incarnation.is_live();
        IncarnationMarks {
            reserved: incarnation.state == IncarnationState::Reserved,
            amounts: incarnation.holds(),
            volumes: incarnation.ties.volumes.clone(),
            live,
            commanded: live && incarnation.state != IncarnationState::Reserved,
            deadline: incarnation.deadline.filter(|_| live),
            outstanding: incarnation.command.filter(|_| live).map(|command| command.not_before),
            waits_for: (live && incarnation.due).then(|| incarnation.ties.mounts.clone()),
        }
    }
}

/// Of a volume.
#[derive(PartialEq)]
pub(crate) struct VolumeMarks {
    pub(crate) node: NodeName,
    pub(crate) owner: Option<ReplicaName>,
    /// Whether who is to use it has to wait.
    pub(crate) blocks: bool,
    /// Whether it is to go, and may.
    pub(crate) is_unused: bool,
    /// Whether it may be there, for all that is known.
    pub(crate) may_be: bool,
    /// When its command may be sent.
    pub(crate) outstanding: Option<Time>,
}

impl From<&Volume> for VolumeMarks {
    fn from(volume: &Volume) -> VolumeMarks {
        let goes = volume.removing.is_some();
        let blocks = match volume.state {
            VolumeState::Ready => goes || volume.user.is_some(),
            VolumeState::Ensuring | VolumeState::Destroying => true,
            // Whoever waits is told that it waits in vain, unless it goes.
            VolumeState::Lost(_) => goes,
        };
        VolumeMarks {
            node: volume.node.clone(),
            owner: volume.owner.clone(),
            blocks,
            is_unused: goes && volume.user.is_none() && volume.state != VolumeState::Destroying,
            may_be: matches!(volume.state, VolumeState::Ensuring | VolumeState::Ready),
            outstanding: volume.command.map(|command| command.not_before),
        }
    }
}
