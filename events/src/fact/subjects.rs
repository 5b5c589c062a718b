//! What a fact is about: every entity that it changes, and the one that it issues.

use super::Fact;
use crate::id::{IncarnationId, Lineage, OperationId, Position, RequestId, SessionId};
use crate::subject::Subject;

impl Fact {
    /// Every entity that it changes. The version of the first alone rises.
    #[expect(clippy::too_many_lines, reason = "a line or two for each type")]
    pub fn subjects(&self) -> Vec<Subject> {
        use Subject as S;
        match self {
            Fact::TermStarted(_) | Fact::LineageStarted(_) => vec![S::Fleet],
            Fact::IntentAccepted(x) => x.subject.iter().cloned().collect(),
            Fact::IntentRefused(x) => x.subject.iter().cloned().collect(),
            // What came of a place in a topic is about none of our entities.
            Fact::InboxRefused(_) | Fact::InboxSkipped(_) | Fact::InboxAdvanced(_) => Vec::new(),
            // The header holds it all.
            Fact::TimeRecorded(_) => Vec::new(),
            Fact::EntityParked(x) => vec![x.subject.clone()],
            Fact::ClusterApplied(x) => vec![S::Cluster(x.name.clone())],
            Fact::ClusterActivityChanged(x) => vec![S::Cluster(x.name.clone())],
            Fact::ClusterDeleted(x) => vec![S::Cluster(x.name.clone())],
            Fact::CapabilityApplied(x) => vec![S::Capability(x.name.clone())],
            Fact::CapabilityActivityChanged(x) => vec![S::Capability(x.name.clone())],
            Fact::CapabilityDeleted(x) => vec![S::Capability(x.name.clone())],
            Fact::NodeApplied(x) => vec![S::Node(x.name.clone())],
            Fact::NodeMoved(x) => vec![S::Node(x.name.clone())],
            Fact::NodeDeleted(x) => vec![S::Node(x.name.clone())],
            Fact::DisruptionScheduled(x) => vec![S::Node(x.node.clone())],
            Fact::DisruptionApproved(x) => vec![S::Node(x.node.clone())],
            Fact::DisruptionCompleted(x) => vec![S::Node(x.node.clone())],
            Fact::DisruptionDeleted(x) => vec![S::Node(x.node.clone())],
            Fact::PolicyApplied(x) => vec![S::Policy(x.name.clone())],
            Fact::PolicyDeleted(x) => vec![S::Policy(x.name.clone())],
            Fact::PlanBalanceChanged(x) => vec![S::Plan(x.plan.clone())],
            Fact::PlanRebalanceStarted(x) => vec![S::Plan(x.plan.clone())],
            Fact::PlanRebalanceEnded(x) => vec![S::Plan(x.plan.clone())],
            Fact::PlanRemoving(x) => vec![S::Plan(x.name.clone())],
            Fact::PlanApplied(x) => vec![S::Plan(x.name.clone())],
            Fact::PlanActivityChanged(x) => vec![S::Plan(x.name.clone())],
            Fact::PlanDeleted(x) => vec![S::Plan(x.name.clone())],
            Fact::DeploymentCreated(x) => {
                vec![S::Deployment(x.plan.clone(), x.name.clone()), S::Plan(x.plan.clone())]
            }
            Fact::DeploymentStarted(x) => {
                vec![S::Deployment(x.plan.clone(), x.name.clone()), S::Plan(x.plan.clone())]
            }
            Fact::DeploymentPaused(x) => vec![S::Deployment(x.plan.clone(), x.name.clone())],
            Fact::DeploymentResumed(x) => vec![S::Deployment(x.plan.clone(), x.name.clone())],
            Fact::DeploymentStalled(x) => vec![S::Deployment(x.plan.clone(), x.name.clone())],
            Fact::DeploymentCutOver(x) => vec![S::Deployment(x.plan.clone(), x.name.clone())],
            Fact::DeploymentEnding(x) => vec![S::Deployment(x.plan.clone(), x.name.clone())],
            Fact::DeploymentEnded(x) => {
                vec![S::Deployment(x.plan.clone(), x.name.clone()), S::Plan(x.plan.clone())]
            }
            Fact::ReplicaCreated(x) => vec![
                S::Replica(x.name.clone()),
                S::Deployment(x.plan.clone(), x.deployment.clone()),
                S::Plan(x.plan.clone()),
            ],
            Fact::ReplicaAssigned(x) => {
                vec![S::Replica(x.name.clone()), S::Deployment(x.plan.clone(), x.deployment.clone())]
            }
            Fact::ReplicaDeleted(x) => {
                let volumes = x.volumes.iter().cloned().map(S::Volume);
                std::iter::once(S::Replica(x.name.clone())).chain(volumes).collect()
            }
            Fact::OperationOpened(x) => vec![S::Replica(x.replica.clone())],
            Fact::PlanWaiting(x) => vec![S::Plan(x.plan.clone())],
            Fact::OperationApproved(x) => {
                let mut all = vec![S::Operation(x.operation), S::Replica(x.replica.clone())];
                all.extend(x.incarnation.map(S::Incarnation));
                all
            }
            Fact::OperationBegun(x) => {
                let mut all = vec![S::Operation(x.operation), S::Replica(x.replica.clone())];
                all.extend(x.incarnation.map(S::Incarnation));
                all
            }
            Fact::OperationEnded(x) => vec![S::Operation(x.operation), S::Replica(x.replica.clone())],
            // What it is about changes only when it is approved.
            Fact::RequestOpened(_) => Vec::new(),
            Fact::RequestApproved(x) => vec![S::Request(x.request)],
            Fact::RequestEnded(x) => vec![S::Request(x.request)],
            Fact::ApprovalBypassed(x) => vec![S::Node(x.node.clone())],
            Fact::IncarnationReserved(x) => {
                vec![S::Operation(x.operation), S::Replica(x.replica.clone()), S::Node(x.node.clone())]
            }
            Fact::IncarnationCommanded(x) => {
                vec![S::Incarnation(x.incarnation), S::Replica(x.replica.clone())]
            }
            Fact::IncarnationBegun(x) => {
                let mut all = vec![S::Incarnation(x.incarnation), S::Replica(x.replica.clone())];
                all.extend(x.mounts.iter().cloned().map(S::Volume));
                all
            }
            Fact::CommandFailed(x) => vec![S::Incarnation(x.incarnation)],
            Fact::IncarnationEnsured(x) => vec![S::Incarnation(x.incarnation), S::Replica(x.replica.clone())],
            Fact::IncarnationRunning(x) => {
                let mut all = vec![S::Incarnation(x.incarnation), S::Replica(x.replica.clone())];
                all.extend(x.operation.map(S::Operation));
                all
            }
            Fact::IncarnationStatus(x) => vec![S::Incarnation(x.incarnation), S::Replica(x.replica.clone())],
            Fact::IncarnationEnded(x) => {
                let mut all = vec![
                    S::Incarnation(x.incarnation),
                    S::Replica(x.replica.clone()),
                    S::Node(x.node.clone()),
                ];
                all.extend(x.displaces.map(S::Operation));
                all.extend(x.mounts.iter().cloned().map(S::Volume));
                all
            }
            Fact::VolumeCreated(x) => {
                vec![S::Volume(x.name.clone()), S::Incarnation(x.incarnation), S::Node(x.node.clone())]
            }
            Fact::VolumeReady(x) => vec![S::Volume(x.name.clone())],
            Fact::VolumeFailed(x) => vec![S::Volume(x.name.clone())],
            Fact::VolumeLost(x) => vec![S::Volume(x.name.clone())],
            Fact::VolumeRemoving(x) => vec![S::Volume(x.name.clone())],
            Fact::VolumeDestroying(x) => vec![S::Volume(x.name.clone())],
            Fact::VolumeDestroyed(x) => vec![S::Volume(x.name.clone())],
            Fact::SessionOpened(x) => vec![S::Cluster(x.cluster.clone())],
            Fact::SessionClosed(x) => vec![S::Session(x.session), S::Cluster(x.cluster.clone())],
            Fact::ObjectJudged(x) => vec![S::Cluster(x.cluster.clone())],
        }
    }

    /// The entity whose id is made from the fact's own position, if it issues one.
    pub fn issues(&self, lineage: Lineage, position: Position) -> Option<Subject> {
        match self {
            Fact::OperationOpened(_) => Some(Subject::Operation(OperationId::issue(lineage, position))),
            Fact::IncarnationReserved(_) => {
                Some(Subject::Incarnation(IncarnationId::issue(lineage, position)))
            }
            Fact::RequestOpened(_) => Some(Subject::Request(RequestId::issue(lineage, position))),
            Fact::SessionOpened(_) => Some(Subject::Session(SessionId::issue(lineage, position))),
            // All others are about what has its name or id already.
            _ => None,
        }
    }
}
