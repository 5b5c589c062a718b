//! What the checker remembers of each entity: what the rules need, and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chancery_events::amount::Amounts;
use chancery_events::digest::Digest;
use chancery_events::event::Event;
use chancery_events::fact::{
    Again, Approver, Asker, DeploymentEnd, Effect, IncarnationEnd, Proposal, RequestedChange, Rollback,
};
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position, RequestId, SessionId};
use chancery_events::intent::{Intent, Request};
use chancery_events::lifecycle::WillWord;
use chancery_events::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, DomainName, ExecutorName, Namespace,
    NodeName, PlanName, PolicyName, ReplicaName, ServiceName, StorageClass, VolumeName,
};
use chancery_events::observation::Observation;
use chancery_events::spec::{
    Activity, Balance, Coordinates, DeploymentSpec, DisruptionSpec, DisruptionState, NodeSpec, NodeState,
    OperationKind, Payload, PlanSpec, PolicySpec, Purpose, Runtime,
};
use chancery_events::time::Time;

use super::debts::Debt;
use super::volumes::Volume;

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
pub(super) struct Cluster {
    pub(super) runtime: Runtime,
    pub(super) activity: Activity,
    /// Its open session.
    pub(super) session: Option<SessionId>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) spec: NodeSpec,
    pub(super) state: NodeState,
    pub(super) cluster: Option<ClusterName>,
    pub(super) disruptions: BTreeMap<DisruptionName, Disruption>,
    pub(super) held: Amounts,
    pub(super) volumes: BTreeMap<StorageClass, u64>,
    /// Those that hold a place on it.
    pub(super) places: BTreeSet<IncarnationId>,
}

#[derive(Clone, Debug)]
pub(super) struct Disruption {
    pub(super) spec: DisruptionSpec,
    pub(super) state: DisruptionState,
    /// Who approved it.
    pub(super) by: Option<Actor>,
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
    /// Whether it is to go, with all that it has.
    pub(super) is_removing: bool,
    pub(super) generation: u32,
    pub(super) specs: BTreeMap<u32, Arc<PlanSpec>>,
    /// What its deployments want to run: each once, however many want the same.
    pub(super) versions: Vec<(Namespace, ServiceName, Vec<Payload>, Coordinates)>,
    pub(super) deployments: BTreeMap<DeploymentName, Deployment>,
    /// Being carried out.
    pub(super) current: Option<DeploymentName>,
    /// Waits for its turn.
    pub(super) next: Option<DeploymentName>,
    /// The last that was started.
    pub(super) started: Option<DeploymentName>,
    /// The last that was carried out.
    pub(super) carried_out: Option<DeploymentName>,
    /// The last that was carried out, of those that wanted anything to run.
    pub(super) had_replicas: Option<DeploymentName>,
    /// How many deployments are over.
    pub(super) ended: u64,
    pub(super) replicas: u64,
    /// What is said of its spread.
    pub(super) balance: Balance,
    /// Who asked for the rebalance in progress.
    pub(super) rebalance: Option<Actor>,
    /// Of its replicas, those that are not on their way out, by the deployment that they run by.
    pub(super) counts: BTreeMap<DeploymentName, Count>,
}

/// How many replicas of a deployment there are, of those that are not on their way out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Count {
    pub(super) present: u64,
    /// That run and are well.
    pub(super) ready: u64,
    /// That run and are not well, and nothing is being done about it.
    pub(super) ailing: u64,
    /// That should run and do not, and nothing is being done about it.
    pub(super) idle: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Deployment {
    pub(super) generation: u32,
    pub(super) spec: DeploymentSpec,
    /// What it wants to run, as a number in its plan.
    pub(super) version: usize,
    pub(super) stage: DeploymentStage,
    /// Whether its new set is the one that counts.
    pub(super) has_cut_over: bool,
    /// When its new set must be ready.
    pub(super) deadline: Option<Time>,
    /// Who asked for it.
    pub(super) by: Option<Actor>,
    /// Operations on its behalf that are not over.
    pub(super) open: u64,
    /// Those of them that have begun.
    pub(super) begun: BTreeSet<OperationId>,
    /// When one of them last succeeded.
    pub(super) rested: Option<Time>,
    /// Whether it brought about what it wanted.
    pub(super) has_completed: bool,
    /// What it rolls back to, if it is a rollback.
    pub(super) rollback: Option<Rollback>,
    /// When it last made progress.
    pub(super) progressed: Time,
    /// Whether it was called stalled, and has made no progress since.
    pub(super) is_stalled: bool,
    /// Replicas that it created and that are still there.
    pub(super) created: BTreeSet<ReplicaName>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum DeploymentStage {
    Pending,
    InProgress,
    Paused,
    /// Since when it is, and how it will end.
    Ending(Time, DeploymentEnd),
    /// With how many of the plan's that were over before it.
    Over(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) plan: PlanName,
    pub(super) deployment: DeploymentName,
    /// The deployment that created it, if one did.
    pub(super) by: Option<DeploymentName>,
    pub(super) will: WillWord,
    /// Its operations that are not over, the oldest first.
    pub(super) open: Vec<OperationId>,
    /// Its run that is not over, and that counts.
    pub(super) active: Option<IncarnationId>,
    /// Its other run: that is to take the place of that one, or has lost it.
    pub(super) passive: Option<IncarnationId>,
    /// A delete of it has succeeded.
    pub(super) is_going: bool,
    pub(super) stop: Option<Stop>,
    /// A disruption's move stopped it and failed, and it does not run again yet.
    pub(super) downed: bool,
    /// Its run was stopped for an operation that was aborted, and nothing has begun on it since.
    pub(super) recovers: bool,
    /// When its plan's rule starts it again.
    pub(super) again: Option<Again>,
    /// The last start by that rule, in a row of them: when it was asked for, and the how manieth it is.
    pub(super) row: Option<Again>,
    /// As what it is counted in its plan.
    pub(super) counted: Option<(DeploymentName, Count)>,
}

/// A user's stop that stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    pub(super) at: Position,
    /// The operation that carries it out, if one had to.
    pub(super) operation: Option<OperationId>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct Operation {
    pub(super) replica: ReplicaName,
    pub(super) plan: PlanName,
    pub(super) kind: OperationKind,
    pub(super) deployment: Option<DeploymentName>,
    /// Who asked, where no deployment did, or by which rule it did.
    pub(super) by: Option<Asker>,
    /// The deployment whose version the replica has when it has succeeded.
    pub(super) version: DeploymentName,
    /// The only node that will do.
    pub(super) wants: Option<NodeName>,
    pub(super) purpose: Option<Purpose>,
    pub(super) stage: Stage,
    /// When it began.
    pub(super) begun: Option<Time>,
    /// It had begun, and has failed or was aborted.
    pub(super) failed: bool,
    /// It had begun, and was aborted.
    pub(super) aborted: bool,
    /// What it brings up is ready, and the run that was there is asked to end.
    pub(super) is_past_return: bool,
    pub(super) proposal: Option<Proposal>,
    /// The run that it brings up, or changes.
    pub(super) incarnation: Option<IncarnationId>,
    /// The update domain that it is about.
    pub(super) domain: Option<DomainName>,
    pub(super) approver: Option<Approver>,
    /// Left alone: it does not expire any more.
    pub(super) is_parked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Preparing,
    Pending,
    /// Its turn comes later.
    Approved,
    Running,
    Over,
}

#[derive(Clone, Debug)]
pub(super) struct Incarnation {
    pub(super) replica: ReplicaName,
    pub(super) operation: OperationId,
    pub(super) node: NodeName,
    pub(super) cluster: ClusterName,
    /// By which it runs.
    pub(super) deployment: DeploymentName,
    /// The run that must be over before it is begun.
    pub(super) follows: Option<IncarnationId>,
    /// What it needs.
    pub(super) amounts: Amounts,
    /// What of that it holds: less, while the run that it follows on its node is not over.
    pub(super) holds: Amounts,
    /// What it holds of storage, for volumes that are not on its node yet.
    pub(super) volumes: BTreeMap<StorageClass, u64>,
    /// The volumes that it is to use.
    pub(super) mounts: Vec<VolumeName>,
    /// The plan's generation by whose policy its place was found.
    pub(super) placed_by: u32,
    /// Processes of its spec.
    pub(super) processes: usize,
    pub(super) life: Life,
    /// Whether all its processes were online when they were last seen.
    pub(super) is_ready: bool,
    /// When it was first ready.
    pub(super) since: Option<Time>,
    /// Since when it is not ready, of one that was, and when it is ended for that, if the session goes on in which that was
    /// said.
    pub(super) unready: Option<(Time, Option<(Time, SessionId)>)>,
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
    /// Asked to be what this deployment says.
    Updating(DeploymentName),
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

    /// Whether somebody was asked for it, and it is not over.
    pub(super) const fn is_asked_for(&self) -> bool {
        match self {
            Life::Creating | Life::Starting | Life::Running | Life::Updating(_) | Life::Stopping(_) => true,
            Life::Reserved | Life::Over | Life::Expunged => false,
        }
    }

    /// Whether it was ready, and was not asked to end.
    pub(super) const fn is_up(&self) -> bool {
        matches!(self, Life::Running | Life::Updating(_))
    }

    /// Whether it was up, and is asked to end only because it failed.
    pub(super) const fn is_failing(&self) -> bool {
        matches!(self, Life::Stopping(IncarnationEnd::Failed { .. }))
    }

    /// How it is, for people.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Life::Reserved => "reserved",
            Life::Creating => "creating",
            Life::Starting => "starting",
            Life::Running => "running",
            Life::Updating(_) => "updating",
            Life::Stopping(_) => "stopping",
            Life::Over | Life::Expunged => "over",
        }
    }
}

/// What has happened in the record so far that others of its facts may follow from.
#[derive(Clone, Default, Debug)]
pub(super) struct Now {
    /// Runs that are over by it.
    pub(super) ended: Vec<Ended>,
    /// Runs that were ready and do not answer, as it says.
    pub(super) hung: BTreeSet<IncarnationId>,
    /// Replicas whose run was up and is asked to end because it failed.
    pub(super) failing: BTreeSet<ReplicaName>,
    /// Deployments of which an operation came to nothing by it.
    pub(super) failed: BTreeSet<(PlanName, DeploymentName)>,
    /// Deployments that were called stalled by it.
    pub(super) stalled: BTreeSet<(PlanName, DeploymentName)>,
    /// Deployments that failed by it, and are over.
    pub(super) ended_failed: BTreeSet<(PlanName, DeploymentName)>,
    /// Starts that people asked for, and that gave way to another version: who, and where they wanted them.
    pub(super) gave_way: Vec<(ReplicaName, Option<Asker>, Option<NodeName>)>,
    /// Nodes that were emptied to be forgotten, and are.
    pub(super) emptied: BTreeSet<NodeName>,
    /// Nodes whose expunge waits for nobody, by break-glass.
    pub(super) bypassed: BTreeSet<NodeName>,
    /// Requests that were opened.
    pub(super) requested: BTreeSet<RequestId>,
}

/// A run that is over.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) incarnation: IncarnationId,
    pub(super) replica: ReplicaName,
    pub(super) plan: PlanName,
    pub(super) deployment: DeploymentName,
    /// It was up, and nobody had asked it to end.
    pub(super) by_itself: bool,
}

/// Every entity.
#[derive(Clone, Default, Debug)]
pub(super) struct World {
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
    /// Operations that disruptions asked for and that are not over.
    pub(super) evictions: BTreeSet<OperationId>,
    /// Operations that a policy approved and that are not over.
    pub(super) in_flight: BTreeMap<PolicyName, BTreeSet<OperationId>>,
    /// Time of the last fact, and of the last one of the record before.
    pub(super) time: Option<Time>,
    pub(super) time_before: Option<Time>,
    /// When the last decider took over, or the clock leapt since.
    pub(super) steady_since: Option<Time>,
    pub(super) debts: Vec<Debt>,
    pub(super) now: Now,
    pub(super) input: Option<Arc<Input>>,
    pub(super) requests: BTreeMap<RequestId, Requested>,
    /// The change of a request that was approved, as if its intent came then, and who approved it.
    pub(super) carried: Option<Carried>,
}

/// An approval request.
#[derive(Clone, Debug)]
pub(super) struct Requested {
    pub(super) change: RequestedChange,
    pub(super) by: Actor,
    pub(super) hash: Digest,
    pub(super) expires: Time,
    /// Replicas that would be ended or moved when it was opened.
    pub(super) members: BTreeSet<(PlanName, ReplicaName)>,
    /// Volumes that would be destroyed when it was opened.
    pub(super) volumes: BTreeSet<VolumeName>,
    pub(super) is_over: bool,
}

/// A change that is carried out because its request was approved.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    /// The approval's own position, and the intent that the request was opened for.
    pub(super) input: Arc<Input>,
    pub(super) approver: Actor,
}
