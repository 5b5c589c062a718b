//! Disruptions: planned maintenance of nodes.
//!
//! | state | approve | its start | the node is empty | complete | delete |
//! |---|---|---|---|---|---|
//! | scheduled | → approved | – | – | → completed | refused |
//! | approved | no-op | its replicas are moved away, if requested | → completed, the node evicted, if requested | → completed | refused |
//! | completed | refused | – | – | no-op | deleted |
//!
//! A node with an approved disruption takes no placements, and unused reservations on it are placed
//! elsewhere. Replicas are moved away in one update domain at a time, in the order in which the disruptions
//! start. The budget of a plan limits its concurrent moves; the approval of the disruption covers them. A
//! replica without another placement stays, and the plan states the reason. An emptied node is evicted from
//! its cluster: it stays empty until an operator allocates it again.

use std::collections::BTreeSet;

use chancery_events::fact::{
    DisruptionApproved, DisruptionCompleted, DisruptionDeleted, DisruptionScheduled, NodeDeleted,
    NodeStateChanged, OperationEnd, Requester,
};
use chancery_events::id::Position;
use chancery_events::intent::{
    DisruptionApprove, DisruptionComplete, DisruptionDelete, DisruptionSchedule, NodeDelete,
};
use chancery_events::name::{DisruptionName, DomainName, NodeName, ReplicaName};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{DisruptionAction, DisruptionSpec, DisruptionState, NodeState, OperationKind};
use chancery_events::subject::Subject;
use chancery_events::time::Time;

use crate::advance::DueStep;
use crate::context::{DecisionContext, FactDraft};
use crate::fleet::{FleetState, FoldResult, StateContradiction};
use crate::incarnation;
use crate::meta::{FactPosition, FactStamp};
use crate::node::check_not_expunged;
use crate::operation::{self, OperationRequest};
use crate::refuse::{BodyErrors, DecidedFacts, invalid_transition};
use crate::state::{
    Disruption, Incarnation, IncarnationState, Node, OpenOperation, Operation, OperationState, Plan, Replica,
};
use crate::volume;

/// Maximum number of waiting moves that the completion of a disruption ends in its own commit.
const MOVES: usize = 200;
/// Maximum number of disruptions of a node.
const MOST: usize = 100;
/// Name of the disruption that empties a node before its deletion.
const REMOVAL: &str = "removal";

fn find<'a>(fleet: &'a FleetState, on: &NodeName, name: &DisruptionName) -> Result<&'a Disruption, Refusal> {
    fleet.find::<Node>(on)?.disruptions.get(name).ok_or_else(|| {
        let detail = format!("node {on} has no disruption {name}");
        Refusal::new(RefusalCode::NotFound, detail).at("/name", "does not exist")
    })
}

pub(crate) fn schedule(fleet: &FleetState, ask: &DisruptionSchedule) -> DecidedFacts {
    let node = fleet.find::<Node>(&ask.node)?;
    check_not_expunged(node)?;
    let mut faults = BodyErrors::default();
    let reason = &ask.spec.reason;
    let plain = reason.len() <= 512 && !reason.chars().any(char::is_control);
    let is_dated = ask.spec.start.is_none_or(|start| start >= Time::EPOCH);
    faults.check(is_dated, "/spec/start", "must not be before 1970");
    faults.check(plain, "/spec/reason", "must be at most 512 bytes, without control characters");
    faults.done()?;
    match node.disruptions.get(&ask.name) {
        Some(now) if now.spec == ask.spec => Ok(vec![]),
        Some(_) => {
            let detail = format!("node {} has another disruption {}", ask.node, ask.name);
            Err(Refusal::new(RefusalCode::AlreadyExists, detail).at("/name", "is taken"))
        }
        None if node.disruptions.len() >= MOST => {
            let detail = format!("node {} has {MOST} disruptions: delete a completed one", ask.node);
            Err(Refusal::new(RefusalCode::TooLarge, detail))
        }
        None => {
            let (on, name) = (ask.node.clone(), ask.name.clone());
            Ok(vec![DisruptionScheduled { node: on, name, spec: ask.spec.clone() }.into()])
        }
    }
}

pub(crate) fn approve(fleet: &FleetState, ask: &DisruptionApprove, ctx: &DecisionContext) -> DecidedFacts {
    let now = find(fleet, &ask.node, &ask.name)?;
    let approved_by = ctx.require_actor("an approval")?;
    let (on, name) = (ask.node.clone(), ask.name.clone());
    match now.state {
        DisruptionState::Scheduled => Ok(vec![DisruptionApproved { node: on, name, approved_by }.into()]),
        DisruptionState::Approved => Ok(vec![]),
        DisruptionState::Completed => {
            Err(invalid_transition(&format!("disruption {name} of node {on}"), "completed", "approved"))
        }
    }
}

pub(crate) fn complete(fleet: &FleetState, ask: &DisruptionComplete, ctx: &DecisionContext) -> DecidedFacts {
    let now = find(fleet, &ask.node, &ask.name)?;
    let (on, name) = (ask.node.clone(), ask.name.clone());
    let mut draft = FactDraft::new(ctx);
    if now.state != DisruptionState::Completed {
        let by = Requester::Disruption { node: on.clone(), name: name.clone() };
        draft.push(DisruptionCompleted { node: on, name });
        // A remaining move ends when a placement is searched for it.
        for operation in waiting_moves(fleet, &ask.node, &by).into_iter().take(MOVES) {
            let reason = "the disruption has ended".to_owned();
            operation::end(fleet, operation, OperationEnd::Cancelled { reason }, &mut draft);
        }
    }
    Ok(draft.done())
}

/// Whether the operation was requested by a disruption that has ended.
pub(crate) fn is_over(fleet: &FleetState, operation: &Operation) -> bool {
    let Some(Requester::Disruption { node, name }) = operation.requested_by.as_deref() else { return false };
    let disruption = fleet.nodes().get(node).and_then(|node| node.disruptions.get(name));
    // A later disruption with the same name, which is not approved, did not request the operation.
    disruption.is_none_or(|disruption| disruption.state != DisruptionState::Approved)
}

/// Moves away from the node that the disruption requested and that have not started.
fn waiting_moves<'a>(fleet: &'a FleetState, node: &NodeName, by: &Requester) -> Vec<&'a Operation> {
    let held = fleet.index().places.incarnations(node).filter_map(|id| fleet.incarnations().get(&id));
    // A replica may have two incarnations there.
    let names: BTreeSet<&ReplicaName> = held.map(|incarnation| &incarnation.replica).collect();
    let replicas = names.into_iter().filter_map(|name| fleet.replicas().get(name));
    let open = replicas.flat_map(Replica::open).filter(|open| !open.started);
    let operations = open.filter_map(|open| fleet.operations().get(&open.id));
    operations.filter(|operation| operation.requested_by.as_deref() == Some(by)).collect()
}

pub(crate) fn delete(fleet: &FleetState, ask: &DisruptionDelete) -> DecidedFacts {
    let now = find(fleet, &ask.node, &ask.name)?;
    let (on, name) = (ask.node.clone(), ask.name.clone());
    match now.state {
        DisruptionState::Completed => Ok(vec![DisruptionDeleted { node: on, name }.into()]),
        DisruptionState::Scheduled | DisruptionState::Approved => {
            let detail = format!("disruption {name} of node {on} is {}: complete it first", now.state);
            Err(Refusal::new(RefusalCode::InUse, detail))
        }
    }
}

/// Empties a node, and deletes it then.
pub(crate) fn remove_node(fleet: &FleetState, ask: &NodeDelete, ctx: &DecisionContext) -> DecidedFacts {
    let on = fleet.find::<Node>(&ask.name)?;
    let approved_by = ctx.require_actor("a deletion")?;
    let going = |disruption: &Disruption| {
        disruption.state == DisruptionState::Approved
            && disruption.spec.action == DisruptionAction::DrainAndDelete
    };
    if on.disruptions.values().any(going) {
        return Ok(vec![]);
    }
    let name = removal(on)?;
    let reason = format!("{approved_by} deletes the node");
    let spec = DisruptionSpec { start: None, action: DisruptionAction::DrainAndDelete, reason };
    let (node, again) = (ask.name.clone(), name.clone());
    Ok(vec![
        DisruptionScheduled { node: node.clone(), name, spec }.into(),
        DisruptionApproved { node, name: again, approved_by }.into(),
    ])
}

/// Returns a name for a removal that no disruption of the node has.
fn removal(node: &Node) -> Result<DisruptionName, Refusal> {
    let names = std::iter::once(REMOVAL.to_owned()).chain((2..=MOST).map(|n| format!("{REMOVAL}-{n}")));
    let mut free = names.filter_map(|name| name.parse::<DisruptionName>().ok());
    free.find(|name| !node.disruptions.contains_key(name)).ok_or_else(|| {
        Refusal::new(RefusalCode::TooLarge, format!("node {} has {MOST} disruptions: delete one", node.name))
    })
}

/// Returns the next step of the disruptions that drain nodes, if one is due. Each node is first passed to the
/// callback, which returns whether it may be considered.
pub(crate) fn step(
    fleet: &FleetState,
    ctx: &DecisionContext,
    mut begin: impl FnMut(&Subject, Position) -> bool,
) -> Option<DueStep> {
    let due = fleet.index().evicting.iter().take_while(|(from, ..)| *from <= ctx.now);
    let mut turn: Option<&DomainName> = None;
    for (_, _, domain, name, disruption) in due {
        let Some(node) = fleet.nodes().get(name) else { continue };
        let (subject, cause) = (Subject::Node(name.clone()), node.meta.changed.position);
        if !begin(&subject, cause) {
            continue;
        }
        let mut draft = FactDraft::new(ctx);
        if fleet.index().places.held(name).incarnations.is_empty() {
            // A node with volumes is never deleted: a client deletes them first.
            let action = node.disruptions.get(disruption).map(|of| of.spec.action);
            let goes = action == Some(DisruptionAction::DrainAndDelete);
            if goes && volume::on_node(fleet, name).is_some() {
                continue;
            }
            draft.push(DisruptionCompleted { node: name.clone(), name: disruption.clone() });
            if matches!(node.state, NodeState::Allocated | NodeState::Allocating) {
                let state = NodeState::Evicted;
                draft.push(NodeStateChanged { name: name.clone(), state, cluster: None });
            }
            if goes {
                draft.push(NodeDeleted { name: name.clone() });
            }
        } else if turn.is_none_or(|turn| turn == domain) {
            turn = Some(domain);
            move_one(fleet, node, disruption, ctx, &mut draft);
        } else {
            // Later nodes wait too: otherwise a second domain would be disturbed concurrently.
            return None;
        }
        let facts = draft.done();
        if !facts.is_empty() {
            return Some(DueStep { subject, cause, facts });
        }
    }
    None
}

/// Returns when the next disruption starts to empty its node, or a plan's next move may be made, if that is
/// later than now.
pub(crate) fn next_start(fleet: &FleetState, now: Time) -> Option<Time> {
    let index = fleet.index();
    let start = index.evicting.iter().map(|(from, ..)| *from).find(|from| *from > now);
    let setback = index.setbacks.iter().map(|(until, _)| *until).find(|until| *until > now);
    start.into_iter().chain(setback.filter(|_| !index.evicting.is_empty())).min()
}

fn move_one(
    fleet: &FleetState,
    node: &Node,
    name: &DisruptionName,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let held = fleet.index().places.held(&node.name);
    let mut reserved = held.reserved.iter().filter_map(|id| fleet.incarnations().get(id));
    if let Some(incarnation) = reserved.find(|incarnation| !has_begun(fleet, incarnation)) {
        let reason = format!("disruption {name} of node {} replaces it", node.name);
        return incarnation::displace(fleet, incarnation, reason, draft);
    }
    let mut plans = held.plans().filter_map(|plan| fleet.plans().get(plan));
    let replica = plans.find_map(|plan| {
        let evictions = fleet.index().plan_index(&plan.name).map_or(0, |index| index.evictions);
        let within = evictions < *plan.immediate().max_unavailable();
        let setback = plan.setback;
        if !within || setback.is_some_and(|setback| setback.until > ctx.now) {
            return None;
        }
        // After a failed move, other replicas come first.
        let mut runs = held.of_plan(&plan.name, setback.map(|setback| setback.run));
        runs.find_map(|id| movable(fleet, plan, fleet.incarnations().get(&id)?))
    });
    if let Some(replica) = replica {
        let by = Requester::Disruption { node: node.name.clone(), name: name.clone() };
        let want = OperationRequest::by(OperationKind::Relocate, Some(by));
        operation::open(fleet, replica, &want, ctx, draft);
    }
}

/// Whether the operation of the reservation has started.
fn has_begun(fleet: &FleetState, incarnation: &Incarnation) -> bool {
    let holder = fleet.operations().get(&incarnation.operation);
    holder.is_some_and(|operation| matches!(operation.state, OperationState::Running))
}

/// Replica of an incarnation that may be moved away now. The incarnation is active and runs, no open
/// operation has started or ends it, and its volumes can move.
pub(crate) fn movable<'a>(
    fleet: &'a FleetState,
    plan: &Plan,
    incarnation: &Incarnation,
) -> Option<&'a Replica> {
    let replica = fleet.replicas().get(&incarnation.replica)?;
    let active = replica.active.as_ref().is_some_and(|active| active.incarnation == incarnation.id);
    let runs = matches!(incarnation.state, IncarnationState::Running | IncarnationState::Updating(_));
    // A move replaces operations that have not started and need the incarnation.
    let gives_way = |open: OpenOperation| {
        let operation = fleet.operations().get(&open.id);
        let moves =
            operation.is_some_and(|operation| operation.is_drain() || operation.required_node.is_some());
        !open.started && open.kind.needs_incarnation() && !moves
    };
    let movable = active && runs && replica.open().all(gives_way) && {
        let version = fleet.deployment(&plan.name, &replica.deployment)?;
        volume::stored(fleet, plan.version_of(version.generation), &replica.name).is_ok()
    };
    movable.then_some(replica)
}

fn change(
    fleet: &mut FleetState,
    node: &NodeName,
    name: &DisruptionName,
    at: FactPosition,
    how: impl FnOnce(&mut Disruption),
) -> FoldResult {
    if !fleet.require::<Node>(node)?.disruptions.contains_key(name) {
        let problem = format!("the fact is about disruption {name}, which the node does not have");
        return Err(StateContradiction { subject: Subject::Node(node.clone()), problem });
    }
    fleet.bump::<Node>(node, at, |node| {
        if let Some(disruption) = node.disruptions.get_mut(name) {
            how(disruption);
            disruption.since = FactStamp::from(at);
        }
    })
}

pub(crate) fn scheduled(fleet: &mut FleetState, fact: &DisruptionScheduled, at: FactPosition) -> FoldResult {
    let (spec, state) = (fact.spec.clone(), DisruptionState::Scheduled);
    let disruption = Disruption { spec, state, approved_by: None, since: FactStamp::from(at) };
    fleet.bump::<Node>(&fact.node, at, |node| {
        node.disruptions.insert(fact.name.clone(), disruption);
    })
}

pub(crate) fn approved(fleet: &mut FleetState, fact: &DisruptionApproved, at: FactPosition) -> FoldResult {
    change(fleet, &fact.node, &fact.name, at, |disruption| {
        disruption.state = DisruptionState::Approved;
        disruption.approved_by = Some(fact.approved_by.clone());
    })
}

pub(crate) fn over(fleet: &mut FleetState, fact: &DisruptionCompleted, at: FactPosition) -> FoldResult {
    change(fleet, &fact.node, &fact.name, at, |disruption| disruption.state = DisruptionState::Completed)
}

pub(crate) fn deleted(fleet: &mut FleetState, fact: &DisruptionDeleted, at: FactPosition) -> FoldResult {
    fleet.bump::<Node>(&fact.node, at, |node| {
        node.disruptions.remove(&fact.name);
    })
}
