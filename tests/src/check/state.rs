//! State that the checker keeps of each entity: what the rules need, and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chancery_events::digest::Digest;
use chancery_events::event::Event;
use chancery_events::fact::{
    ApprovalActor, ApprovalProposal, CommandEffect, DeploymentEnd, IncarnationEnd, RequestedChange,
    Requester, RestartBackoff, RollbackReference,
};
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position, RequestId, SessionId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::lifecycle::WillWord;
use chancery_events::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, DomainName, ExecutorName, KeyName,
    Namespace, NodeName, PlanName, PolicyName, ReplicaName, ServiceName, StorageClass, VolumeName,
};
use chancery_events::observation::Observation;
use chancery_events::resources::Resources;
use chancery_events::spec::{
    BalancePolicy, ClusterActivity, ClusterRuntime, DeploymentSpec, DisruptionSpec, DisruptionState,
    NodeSpec, NodeState, OperationKind, Payload, PayloadCoordinates, PlanSpec, PolicySpec, ProbePurpose,
};
use chancery_events::time::Time;

use super::obligations::RecordObligation;
use super::volumes::Volume;

/// Location of a fact in the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct FactLocation {
    pub(super) position: Position,
    pub(super) cause: Position,
    pub(super) time: Time,
    pub(super) lineage: Lineage,
}

/// Last intent or observation, and its results.
#[derive(Clone, Debug)]
pub(super) struct LastInput {
    pub(super) position: Position,
    pub(super) event: Event,
    pub(super) verdict: InputVerdict,
    /// Whether the input has an effect beyond its verdict.
    pub(super) has_effect: bool,
}

/// Verdict on an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InputVerdict {
    /// No verdict yet.
    Nothing,
    /// Accepted, and must have an effect.
    Accepted,
    Unchanged,
    Refused,
}

impl LastInput {
    pub(super) fn request(&self) -> Option<&IntentRequest> {
        match &self.event {
            Event::Intent(request) => Some(request),
            Event::Observation { .. } | Event::Fact { .. } => None,
        }
    }

    pub(super) fn intent(&self) -> Option<&Intent> {
        self.request().map(|request| &request.intent)
    }

    pub(super) fn observation(&self) -> Option<(&ExecutorName, &Observation)> {
        match &self.event {
            Event::Observation { by, observation } => Some((by, observation)),
            Event::Intent(_) | Event::Fact { .. } => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) runtime: ClusterRuntime,
    pub(super) activity: ClusterActivity,
    /// Open session of the cluster.
    pub(super) session: Option<SessionId>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) spec: NodeSpec,
    pub(super) state: NodeState,
    pub(super) cluster: Option<ClusterName>,
    pub(super) disruptions: BTreeMap<DisruptionName, Disruption>,
    pub(super) held: Resources,
    pub(super) volumes: BTreeMap<StorageClass, u64>,
    /// Incarnations with a reservation on the node.
    pub(super) reservations: BTreeSet<IncarnationId>,
}

#[derive(Clone, Debug)]
pub(super) struct Disruption {
    pub(super) spec: DisruptionSpec,
    pub(super) state: DisruptionState,
    /// Approver of the disruption.
    pub(super) approved_by: Option<Actor>,
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) cluster: ClusterName,
    pub(super) executor: ExecutorName,
    pub(super) is_open: bool,
}

/// Content of a deployment for its replicas: a difference is another version.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct WantedVersion {
    pub(super) namespace: Namespace,
    pub(super) service: ServiceName,
    pub(super) labels: BTreeMap<KeyName, String>,
    pub(super) payloads: Vec<Payload>,
    pub(super) coordinates: PayloadCoordinates,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) activity: ClusterActivity,
    /// Whether the plan is being deleted, with all its entities.
    pub(super) is_removing: bool,
    pub(super) generation: u32,
    pub(super) specs: BTreeMap<u32, Arc<PlanSpec>>,
    /// Distinct versions of the plan's deployments.
    pub(super) versions: Vec<WantedVersion>,
    pub(super) deployments: BTreeMap<DeploymentName, Deployment>,
    /// Deployment in progress.
    pub(super) current: Option<DeploymentName>,
    /// Queued deployment.
    pub(super) next: Option<DeploymentName>,
    /// Last started deployment.
    pub(super) started: Option<DeploymentName>,
    /// Last deployment that was carried out.
    pub(super) carried_out: Option<DeploymentName>,
    /// Last deployment with replicas that was carried out.
    pub(super) had_replicas: Option<DeploymentName>,
    /// Number of ended deployments.
    pub(super) ended: u64,
    pub(super) replicas: u64,
    /// Recorded balance of the plan's spread.
    pub(super) balance: BalancePolicy,
    /// Requester of the rebalance in progress.
    pub(super) rebalance: Option<Actor>,
    /// Counts of replicas that are not being deleted, by their deployment.
    pub(super) counts: BTreeMap<DeploymentName, ReplicaCounts>,
}

/// Numbers of a deployment's replicas that are not being deleted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ReplicaCounts {
    pub(super) present: u64,
    /// Running and healthy.
    pub(super) ready: u64,
    /// Running and unhealthy, without an open operation.
    pub(super) ailing: u64,
    /// Not running though they should, without an open operation.
    pub(super) idle: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Deployment {
    pub(super) generation: u32,
    pub(super) spec: DeploymentSpec,
    /// Requested version, as an index into the plan's versions.
    pub(super) version: usize,
    pub(super) stage: DeploymentStage,
    /// Whether the new set counts.
    pub(super) has_cut_over: bool,
    /// Deadline for readiness of the new set.
    pub(super) deadline: Option<Time>,
    /// Requester of the deployment.
    pub(super) requested_by: Actor,
    /// Number of open operations.
    pub(super) open: u64,
    /// Started open operations.
    pub(super) begun: BTreeSet<OperationId>,
    /// Time of the operations' last success.
    pub(super) rested: Option<Time>,
    /// Whether the deployment completed.
    pub(super) has_completed: bool,
    /// Target, if the deployment is a rollback.
    pub(super) rollback: Option<RollbackReference>,
    /// Time of the last progress.
    pub(super) progressed: Time,
    /// Whether the deployment was marked stalled, and has made no progress since.
    pub(super) is_stalled: bool,
    /// Existing replicas that the deployment created.
    pub(super) created: BTreeSet<ReplicaName>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum DeploymentStage {
    Pending,
    InProgress,
    Paused,
    /// Since the time, with the end that it will have.
    Ending(Time, DeploymentEnd),
    /// With the number of the plan's deployments that ended before.
    Ended(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) plan: PlanName,
    pub(super) deployment: DeploymentName,
    /// Creating deployment, if any.
    pub(super) created_by: Option<DeploymentName>,
    pub(super) desired: WillWord,
    /// Open operations, the oldest first.
    pub(super) open: Vec<OperationId>,
    /// Live incarnation that counts.
    pub(super) active: Option<IncarnationId>,
    /// Second incarnation: successor or predecessor of the active one.
    pub(super) secondary: Option<IncarnationId>,
    /// Whether a delete of the replica succeeded.
    pub(super) is_going: bool,
    pub(super) stop: Option<UserStop>,
    /// Whether a failed disruption move stopped the replica, and it does not run again yet.
    pub(super) downed: bool,
    /// Whether the replica was stopped for an aborted operation, and nothing was started on it since.
    pub(super) recovers: bool,
    /// Time of the next restart by the plan's rule.
    pub(super) next_restart: Option<RestartBackoff>,
    /// Last of consecutive restarts by that rule: the time of its request, and its number.
    pub(super) last_restart: Option<RestartBackoff>,
    /// Replica's contribution to its plan's counts.
    pub(super) counted: Option<(DeploymentName, ReplicaCounts)>,
}

/// User's stop that is in force.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserStop {
    pub(super) at: Position,
    /// Operation that carries the stop out, if one had to.
    pub(super) operation: Option<OperationId>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct Operation {
    pub(super) replica: ReplicaName,
    pub(super) plan: PlanName,
    pub(super) kind: OperationKind,
    pub(super) deployment: Option<DeploymentName>,
    /// Requester that is no deployment, or the rule of a deployment.
    pub(super) requested_by: Option<Requester>,
    /// Deployment whose version the replica has after success.
    pub(super) version: DeploymentName,
    /// Only node that the operation accepts.
    pub(super) wants: Option<NodeName>,
    pub(super) purpose: Option<ProbePurpose>,
    pub(super) stage: OperationProgress,
    /// Time of the start.
    pub(super) begun: Option<Time>,
    /// Whether a started operation failed or was aborted.
    pub(super) failed: bool,
    /// Whether a started operation was aborted.
    pub(super) aborted: bool,
    /// Whether the new incarnation is ready, and the end of the old one is requested.
    pub(super) is_past_return: bool,
    pub(super) proposal: Option<ApprovalProposal>,
    /// Incarnation that the operation starts or changes.
    pub(super) incarnation: Option<IncarnationId>,
    /// Update domain that the operation concerns.
    pub(super) domain: Option<DomainName>,
    pub(super) approver: Option<ApprovalActor>,
    /// Whether the operation is quarantined, and so never expires.
    pub(super) is_quarantined: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperationProgress {
    Preparing,
    Pending,
    /// Queued after its approval.
    Approved,
    Running,
    Ended,
}

#[derive(Clone, Debug)]
pub(super) struct Incarnation {
    pub(super) replica: ReplicaName,
    pub(super) operation: OperationId,
    pub(super) node: NodeName,
    pub(super) cluster: ClusterName,
    /// Incarnation's deployment.
    pub(super) deployment: DeploymentName,
    /// Incarnation that must end before the start.
    pub(super) starts_after: Option<IncarnationId>,
    /// Needed resources.
    pub(super) resources: Resources,
    /// Reserved resources: fewer than needed until the followed incarnation on the node ended.
    pub(super) holds: Resources,
    /// Storage reserved for volumes not on the node yet.
    pub(super) reserved_storage: BTreeMap<StorageClass, u64>,
    /// Volumes that the incarnation will use.
    pub(super) mounts: Vec<VolumeName>,
    /// Generation of the plan whose policy placed the incarnation.
    pub(super) placed_by: u32,
    /// Number of processes in the spec.
    pub(super) processes: usize,
    pub(super) progress: IncarnationProgress,
    /// Whether all processes were ready when last observed.
    pub(super) is_ready: bool,
    /// Time of first readiness.
    pub(super) since: Option<Time>,
    /// Start of unreadiness, if ever ready; with the deadline that ends the incarnation if the session of the
    /// failed probe continues.
    pub(super) unready: Option<(Time, Option<(Time, SessionId)>)>,
    pub(super) revision: u32,
    /// Command without an outcome, with its attempt.
    pub(super) command: Option<(CommandEffect, u32)>,
    /// Whether a guest was reset and was not ready again when last observed.
    pub(super) is_rebooting: bool,
    /// Time by which the incarnation must be ready after its last requested reset.
    pub(super) reboot_due: Option<Time>,
    /// Resets of each process when last observed.
    pub(super) resets: ResetCounts,
    /// Resets when the last reset was requested.
    pub(super) resets_before: ResetCounts,
}

/// Processes of an incarnation, each with the number of its guest's resets. Only another process has fewer.
pub(super) type ResetCounts = Vec<(Option<u32>, u32)>;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum IncarnationProgress {
    /// Only reserved; no start was requested.
    Reserved,
    Creating,
    Starting,
    Running,
    /// Asked to become this deployment's version.
    Updating(DeploymentName),
    /// With the end that counts when the end is proved.
    Stopping(IncarnationEnd),
    Ended,
    /// Ended by the operator's expunge of the node: what still runs is not the fleet's.
    Expunged,
}

impl IncarnationProgress {
    pub(super) const fn is_over(&self) -> bool {
        matches!(self, IncarnationProgress::Ended | IncarnationProgress::Expunged)
    }

    /// Whether a start was requested, and the incarnation has not ended.
    pub(super) const fn is_asked_for(&self) -> bool {
        match self {
            IncarnationProgress::Creating
            | IncarnationProgress::Starting
            | IncarnationProgress::Running
            | IncarnationProgress::Updating(_)
            | IncarnationProgress::Stopping(_) => true,
            IncarnationProgress::Reserved | IncarnationProgress::Ended | IncarnationProgress::Expunged => {
                false
            }
        }
    }

    /// Whether the incarnation became ready, and no end was requested.
    pub(super) const fn is_up(&self) -> bool {
        matches!(self, IncarnationProgress::Running | IncarnationProgress::Updating(_))
    }

    /// Whether an incarnation that was ready is ending only because it failed.
    pub(super) const fn is_failing(&self) -> bool {
        matches!(self, IncarnationProgress::Stopping(IncarnationEnd::Failed { .. }))
    }

    /// Name of the state, for messages.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            IncarnationProgress::Reserved => "reserved",
            IncarnationProgress::Creating => "creating",
            IncarnationProgress::Starting => "starting",
            IncarnationProgress::Running => "running",
            IncarnationProgress::Updating(_) => "updating",
            IncarnationProgress::Stopping(_) => "stopping",
            IncarnationProgress::Ended | IncarnationProgress::Expunged => "ended",
        }
    }
}

/// Effects of the record so far that its other facts may follow from.
#[derive(Clone, Default, Debug)]
pub(super) struct RecordEffects {
    /// Incarnations that ended.
    pub(super) ended: Vec<EndedIncarnation>,
    /// Incarnations that were ready and are reported as hung.
    pub(super) hung: BTreeSet<IncarnationId>,
    /// Replicas whose incarnation was ready and must end because it failed.
    pub(super) failing: BTreeSet<ReplicaName>,
    /// Deployments with a failed operation.
    pub(super) failed: BTreeSet<(PlanName, DeploymentName)>,
    /// Deployments that were marked stalled.
    pub(super) stalled: BTreeSet<(PlanName, DeploymentName)>,
    /// Deployments that ended as failed.
    pub(super) ended_failed: BTreeSet<(PlanName, DeploymentName)>,
    /// Starts by people that were replaced by another version: their requester and node.
    pub(super) replaced: Vec<(ReplicaName, Option<Requester>, Option<NodeName>)>,
    /// Nodes that were emptied for their deletion.
    pub(super) emptied: BTreeSet<NodeName>,
    /// Nodes whose expunge needs no approval, by break-glass.
    pub(super) bypassed: BTreeSet<NodeName>,
    /// Requests that were opened.
    pub(super) requested: BTreeSet<RequestId>,
}

/// Incarnation that ended.
#[derive(Clone, Debug)]
pub(super) struct EndedIncarnation {
    pub(super) incarnation: IncarnationId,
    pub(super) replica: ReplicaName,
    pub(super) plan: PlanName,
    pub(super) deployment: DeploymentName,
    /// Whether a ready incarnation ended without request.
    pub(super) by_itself: bool,
}

/// All entities of the fleet.
#[derive(Clone, Default, Debug)]
pub(super) struct CheckedFleet {
    pub(super) clusters: BTreeMap<ClusterName, Cluster>,
    pub(super) capabilities: BTreeSet<CapabilityName>,
    pub(super) nodes: BTreeMap<NodeName, Node>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) policies: BTreeMap<PolicyName, PolicySpec>,
    pub(super) plans: BTreeMap<PlanName, Plan>,
    pub(super) replicas: BTreeMap<ReplicaName, Replica>,
    pub(super) operations: BTreeMap<OperationId, Operation>,
    pub(super) incarnations: BTreeMap<IncarnationId, Incarnation>,
    pub(super) volumes: BTreeMap<VolumeName, Volume>,
    /// Open operations of disruptions.
    pub(super) evictions: BTreeSet<OperationId>,
    /// Open operations that a policy approved.
    pub(super) in_flight: BTreeMap<PolicyName, BTreeSet<OperationId>>,
    /// Times of the last fact, and of the previous record's last fact.
    pub(super) time: Option<Time>,
    pub(super) time_before: Option<Time>,
    /// Time when the last decider took over, or of a later clock jump.
    pub(super) steady_since: Option<Time>,
    /// Whether the record, and the record before it, starts a term. The decider is active from the next record on: the start
    /// of a term may have become durable late.
    pub(super) starts_term: [bool; 2],
    pub(super) obligations: Vec<RecordObligation>,
    pub(super) now: RecordEffects,
    pub(super) input: Option<Arc<LastInput>>,
    pub(super) requests: BTreeMap<RequestId, OpenedRequest>,
    /// Change of an approved request, as if its intent came then, and its approver.
    pub(super) carried: Option<ApprovedChange>,
}

/// Approval request.
#[derive(Clone, Debug)]
pub(super) struct OpenedRequest {
    pub(super) change: RequestedChange,
    pub(super) actor: Actor,
    pub(super) hash: Digest,
    pub(super) expires: Time,
    /// Replicas that the change would end or move, as of the request.
    pub(super) members: BTreeSet<(PlanName, ReplicaName)>,
    /// Volumes that the change would destroy, as of the request.
    pub(super) volumes: BTreeSet<VolumeName>,
    pub(super) is_over: bool,
}

/// Change that is carried out because its request was approved.
#[derive(Clone, Debug)]
pub(super) struct ApprovedChange {
    /// Position of the approval, with the intent that the request was opened for.
    pub(super) input: Arc<LastInput>,
    pub(super) approver: Actor,
}
