//! Explanations of operations, for readers. They follow from the state and are recorded nowhere.

use chancery_events::fact::UnschedulableReason;
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::name::{Actor, PolicyName};
use chancery_events::spec::{OperationKind, PlacementPolicy};

use super::place::request;
use super::{asked_by, version_of};
use crate::fleet::FleetState;
use crate::scheduler::{self, ExistingVolume, PlacementConstraints, PlacementRequest};
use crate::state::{Incarnation, Node, Operation, OperationState, Plan};
use crate::{policy, volume};

/// Node of a reservation, and the reasons for it.
#[derive(Clone, PartialEq, Debug)]
pub struct ChosenNode {
    /// Reason for the node, for people.
    pub reason: String,
    /// Reasons against other nodes, each with its nodes. A node without a reason fits too, and ranks lower.
    pub others: Vec<UnschedulableReason>,
}

impl ChosenNode {
    /// Explains the reservation of an operation, in the state right after it. `None` if the operation has no
    /// incarnation. Checks every node.
    pub fn of(fleet: &FleetState, operation: OperationId) -> Option<ChosenNode> {
        let operation = fleet.operations().get(&operation)?;
        let held = operation.incarnation.and_then(|id| fleet.incarnations().get(&id))?;
        let plan = fleet.plans().get(&operation.plan)?;
        let node = fleet.nodes().get(&held.node)?;
        let (deployment, version) = version_of(fleet, plan, operation)?;
        let need = request(plan, deployment, version);
        let active = fleet.replicas().get(&operation.replica)?.active.as_ref();
        let active = active.filter(|active| active.incarnation != held.id);
        let old = active.and_then(|active| fleet.incarnations().get(&active.incarnation));
        let stored = stored_before(fleet, &need, held);
        let limits = PlacementConstraints {
            only: operation.required_node.as_ref(),
            not: old.filter(|_| operation.kind == OperationKind::Relocate).map(|old| &old.node),
            own: old,
            held: Some(held),
            leaves: None,
            stored: &stored,
        };
        let mut others = scheduler::explain(fleet, &need, &limits);
        for reason in &mut others {
            // The reservation may have used what the node had.
            let named = reason.nodes.len();
            reason.nodes.retain(|other| *other != node.name);
            reason.count -= u32::from(reason.nodes.len() < named);
        }
        others.retain(|reason| reason.count > 0);
        let reason = chosen_because((plan, operation), (node, held, old), &stored, fleet);
        Some(ChosenNode { reason, others })
    }
}

/// Returns the volumes of the replica that existed before the reservation.
fn stored_before(fleet: &FleetState, need: &PlacementRequest<'_>, held: &Incarnation) -> Vec<ExistingVolume> {
    let is_new = |name| {
        let volume = fleet.volumes().get(name);
        volume.is_some_and(|volume| volume.meta.created.position > held.meta.created.position)
    };
    if volume::names(need.version, &held.replica).iter().any(is_new) {
        return Vec::new();
    }
    volume::stored(fleet, need.version, &held.replica).unwrap_or_default()
}

fn chosen_because(
    (plan, operation): (&Plan, &Operation),
    (node, held, old): (&Node, &Incarnation, Option<&Incarnation>),
    stored: &[ExistingVolume],
    fleet: &FleetState,
) -> String {
    let mut reason = if operation.required_node.is_some() {
        "the request names the node".to_owned()
    } else if old.is_some_and(|old| old.node == node.name && held.ties.starts_after == Some(old.id)) {
        "the replica stays on its node".to_owned()
    } else if stored.iter().any(|volume| volume.node == node.name) {
        "the volumes of the replica are on the node".to_owned()
    } else if *plan.immediate().placement() == PlacementPolicy::Pack {
        "of the nodes that fit, the node has the least free capacity".to_owned()
    } else {
        let domain = &node.spec.domain;
        let spread = fleet.index().plan_index(&plan.name).map(|index| index.spread.domains());
        let others = spread.and_then(|domains| domains.get(domain).copied()).unwrap_or(1).saturating_sub(1);
        format!(
            "update domain {domain} has the fewest other replicas of the plan that remain ({others}); in it, the node has the \
             fewest, then the least free capacity"
        )
    };
    if let Some(violated) = &held.ties.affinity_violated {
        reason = format!("{reason}; no node satisfies every affinity: {violated}");
    }
    reason
}

/// Condition that an unfinished operation waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperationWait {
    /// Placement: no node fits, or none was searched yet.
    Placement,
    /// Approval by an actor.
    Approval {
        /// Actor who requested the operation.
        requested_by: Option<Actor>,
        /// Policy that refuses the approval of that actor, if any.
        four_eyes: Option<PolicyName>,
    },
    /// Start by its deployment, which limits how many of its operations run.
    Deployment,
    /// End of another incarnation of the replica.
    Incarnation(IncarnationId),
    /// Report of an executor.
    Report,
}

impl OperationWait {
    /// Returns what the operation waits for; `None` if it has ended or does not exist.
    pub fn of(fleet: &FleetState, operation: OperationId) -> Option<OperationWait> {
        let operation = fleet.operations().get(&operation)?;
        Some(match &operation.state {
            OperationState::Preparing => OperationWait::Placement,
            OperationState::PendingApproval(_) => OperationWait::Approval {
                requested_by: asked_by(fleet, operation),
                four_eyes: policy::four_eyes(fleet, operation).cloned(),
            },
            OperationState::Approved => OperationWait::Deployment,
            OperationState::Running => {
                let incarnation = operation.incarnation.and_then(|id| fleet.incarnations().get(&id));
                let before = incarnation.and_then(|incarnation| incarnation.ties.starts_after);
                let before = before.and_then(|id| fleet.incarnations().get(&id)).filter(|it| it.is_live());
                before.map_or(OperationWait::Report, |before| OperationWait::Incarnation(before.id))
            }
            OperationState::Ended(_) => return None,
        })
    }
}
