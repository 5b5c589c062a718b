//! Rebalancing: detection of moves that make the spread of a plan more even, and such moves on request.
//!
//! A move is an improvement if its target domain, or its node in the same domain, has at least two fewer of
//! the plan's replicas. Each makes the spread more even, so that a sequence of them ends.
//!
//! | | a rebalance is requested | an improvement is found, within the budget | none is found, or it stops |
//! |---|---|---|---|
//! | none in progress | → in progress, if there is an improvement; else no-op | the plan is `uneven` | the plan is `even` |
//! | in progress | no-op | a relocate is created | → none, once its moves have ended |
//!
//! A rebalance stops when one of its moves fails, is rejected or expires, and when a deployment is created:
//! the deployment places replicas itself. Moves that have not started are cancelled then.
//!
//! Plans at rest are checked in rounds, at least [`ROUND`] apart, and only plans with more than one replica
//! in a domain. No event costs a check of unrelated plans.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::fact::{
    Fact, OperationEnd, PlanBalanceChanged, PlanRebalanceEnded, PlanRebalanceStarted, RebalanceEnd, Requester,
};
use chancery_events::id::Position;
use chancery_events::intent::PlanRebalance;
use chancery_events::name::{DeploymentName, PlanName};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{
    AffinityKind, ApprovalMode, BalancePolicy, ClusterActivity, ImmediateFields, OperationKind,
    PlacementPolicy, PlanVersion, ProbePurpose,
};
use chancery_events::subject::Subject;
use chancery_events::time::Time;

use crate::advance::DueStep;
use crate::context::{DecisionContext, FactDraft};
use crate::disruption;
use crate::fleet::{FleetState, FoldResult};
use crate::index::{PlanIndex, PlanSpread};
use crate::meta::FactPosition;
use crate::operation::{self, OperationRequest};
use crate::refuse::DecidedFacts;
use crate::scheduler::{NodePlacement, PlacementCache};
use crate::state::{IncarnationRef, Operation, Plan, RebalanceProgress, Replica};

/// Minimum time from the start of one round of checks to the start of the next.
const ROUND: Duration = Duration::from_secs(10);
/// Maximum number of plans that are checked in one step.
const STEP: usize = 64;

/// Whether a placement makes the spread more even than the replica's current one.
pub(crate) fn improves(
    fleet: &FleetState,
    spread: &PlanSpread,
    from: &IncarnationRef,
    to: &NodePlacement,
) -> bool {
    if from.domain == to.domain {
        let on_node = |node| spread.on_node(&fleet.index().places, node).remaining;
        on_node(&to.node) + 1 < on_node(&from.node)
    } else {
        spread.in_domain(&to.domain) + 1 < spread.in_domain(&from.domain)
    }
}

/// Movable replica whose move would make the spread of its plan more even, if any.
///
/// Of equal replicas (of one deployment, in one domain) one is checked, on the fullest node of them. All are
/// checked where volumes or affinities distinguish them.
pub(crate) fn improvement<'a>(
    fleet: &'a FleetState,
    search: &mut PlacementCache,
    plan: &Plan,
) -> Option<&'a Replica> {
    let index = fleet.index().plan_index(&plan.name)?;
    if *plan.immediate().placement() == PlacementPolicy::Pack || !index.spread.is_crowded() {
        return None;
    }
    let mut domains: Vec<_> = index.spread.domains().into_iter().filter(|(_, count)| *count > 1).collect();
    domains.sort_by_key(|(_, count)| Reverse(*count));
    // In a domain with fewer replicas, an equal one finds no better domain either.
    let mut known: BTreeSet<&DeploymentName> = BTreeSet::new();
    for (domain, _) in &domains {
        for (name, of) in &index.deployments {
            let deployment = fleet.deployment(&plan.name, name);
            let Some(deployment) = deployment.filter(|_| of.present > 0) else { continue };
            let each = are_different(plan.immediate(), plan.version_of(deployment.generation));
            let is_crowded = index.spread.crowded_nodes(domain).next().is_some();
            if known.contains(name) && !is_crowded && !each {
                continue;
            }
            let in_domain = || of.in_domain_by_name(domain).filter_map(|name| fleet.replicas().get(name));
            let of_deployment = |replica: &&Replica| replica.deployment == *name;
            let crowded = index.spread.crowded_nodes(domain);
            let on_crowded = crowded.flat_map(|(_, node)| fleet.replicas_on(node, &plan.name));
            let candidates = on_crowded.filter(of_deployment).chain(in_domain());
            let candidates = candidates.filter(|replica| is_movable(fleet, plan, replica));
            let found = candidates.take(if each { usize::MAX } else { 1 }).find(|replica| {
                known.insert(name);
                is_improved(fleet, search, plan, &index.spread, replica)
            });
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// Whether acceptable placements may differ between replicas of the version.
fn are_different(immediate: ImmediateFields<'_>, version: PlanVersion<'_>) -> bool {
    version.has_volumes()
        || immediate.affinity().iter().any(|affinity| affinity.kind == AffinityKind::Affinity)
}

/// Whether any replica of the plan has a version with volumes. The old incarnation of such a replica ends
/// before the new one is started.
fn has_volumes(fleet: &FleetState, plan: &Plan, index: &PlanIndex) -> bool {
    let used = index.deployments.iter().filter(|(_, of)| of.present > 0).map(|(name, _)| name);
    let mut deployments = used.filter_map(|name| fleet.deployment(&plan.name, name));
    deployments.any(|deployment| plan.version_of(deployment.generation).has_volumes())
}

/// Whether a running replica has no open operation, and its volumes can move with it.
fn is_movable(fleet: &FleetState, plan: &Plan, replica: &Replica) -> bool {
    let run = replica.remaining().and_then(|run| fleet.incarnations().get(&run.incarnation));
    let is_free = replica.open().next().is_none() && replica.secondary.is_none();
    is_free && run.is_some_and(|run| disruption::movable(fleet, plan, run).is_some())
}

fn is_improved(
    fleet: &FleetState,
    search: &mut PlacementCache,
    plan: &Plan,
    spread: &PlanSpread,
    replica: &Replica,
) -> bool {
    let place = operation::place_of_move(fleet, search, plan, replica);
    replica.remaining().zip(place).is_some_and(|(from, to)| improves(fleet, spread, from, &to))
}

pub(crate) fn ask(fleet: &FleetState, ask: &PlanRebalance, ctx: &DecisionContext) -> DecidedFacts {
    let plan = fleet.find::<Plan>(&ask.name)?;
    let requested_by = ctx.require_actor("a rebalance")?;
    if plan.rebalance.is_some() {
        return Ok(vec![]);
    }
    if plan.deletion_requested_by.is_some() {
        return Err(Refusal::new(RefusalCode::InUse, format!("plan {} is being deleted", ask.name)));
    }
    if plan.activity == ClusterActivity::Inactive {
        return Err(Refusal::new(RefusalCode::Inactive, format!("plan {} is inactive", ask.name)));
    }
    if let Some(current) = plan.current.as_ref().or(plan.next.as_ref()) {
        let detail =
            format!("deployment {current} of plan {} has not ended, and places its replicas", ask.name);
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    if *plan.immediate().placement() == PlacementPolicy::Pack {
        let detail = format!("plan {} has placement pack, which does not spread its replicas", ask.name);
        return Err(Refusal::new(RefusalCode::Unsupported, detail));
    }
    if improvement(fleet, &mut PlacementCache::default(), plan).is_none() {
        return match bound_by_volumes(fleet, plan) {
            Some(reason) => Err(Refusal::new(RefusalCode::InUse, reason)),
            None => Ok(vec![]),
        };
    }
    Ok(vec![PlanRebalanceStarted { plan: ask.name.clone(), requested_by }.into()])
}

/// Reason why volumes prevent the rebalance of a plan with uneven domains.
fn bound_by_volumes(fleet: &FleetState, plan: &Plan) -> Option<String> {
    let index = fleet.index().plan_index(&plan.name)?;
    let spread = &index.spread;
    let counts = spread.domains();
    let (fewest, most) = (counts.values().min()?, counts.values().max()?);
    let bound = has_volumes(fleet, plan, index) && (fewest + 1 < *most || counts.len() == 1 && *most > 1);
    bound.then(|| {
        format!(
            "replicas of plan {} cannot be moved to domains with fewer: their volumes bind them to their cluster, and \
             no other node of it has the storage",
            plan.name
        )
    })
}

/// Maximum number of concurrent moves of the plan. Unlimited where people approve moves and both incarnations
/// run concurrently; else the rest of the budget that disruptions leave.
fn bound(fleet: &FleetState, plan: &Plan, index: &PlanIndex) -> usize {
    let by_rule = plan.immediate().approval().of(OperationKind::Relocate) == ApprovalMode::Automatic;
    if by_rule || has_volumes(fleet, plan, index) {
        plan.immediate().max_unavailable().saturating_sub(index.evictions) as usize
    } else {
        usize::MAX
    }
}

/// Reason why the plan makes no further moves.
fn stops_because(plan: &Plan, rebalance: &RebalanceProgress) -> Option<String> {
    let deployment = || plan.current.as_ref().or(plan.next.as_ref());
    let deployed = || deployment().map(|name| format!("deployment {name} places the replicas"));
    let packs = || {
        (*plan.immediate().placement() == PlacementPolicy::Pack)
            .then(|| "the placement is pack now".to_owned())
    };
    let inactive = || (plan.activity == ClusterActivity::Inactive).then(|| "the plan is inactive".to_owned());
    let removed = || plan.deletion_requested_by.as_ref().map(|by| format!("{by} deletes the plan"));
    rebalance.stops.clone().or_else(deployed).or_else(packs).or_else(inactive).or_else(removed)
}

/// Returns the next step of a rebalance: a move, or its end. Empty if the rebalance waits.
pub(crate) fn step(
    fleet: &FleetState,
    search: &mut PlacementCache,
    plan: &Plan,
    ctx: &DecisionContext,
) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    let (Some(rebalance), Some(index)) = (&plan.rebalance, fleet.index().plan_index(&plan.name)) else {
        return Vec::new();
    };
    let name = plan.name.clone();
    let moves = &index.moves;
    if let Some(reason) = stops_because(plan, rebalance) {
        let idle = moves.unplaced.first().or(moves.placed.first()).and_then(|id| fleet.operations().get(id));
        match idle {
            Some(operation) => {
                operation::end(fleet, operation, OperationEnd::Cancelled { reason }, &mut draft);
            }
            None if moves.len() == 0 => {
                draft.push(PlanRebalanceEnded { plan: name, end: RebalanceEnd::Stopped { reason } });
            }
            None => {}
        }
        return draft.done();
    }
    // The next move cannot be chosen before this one has a placement.
    if !moves.unplaced.is_empty() || moves.len() >= bound(fleet, plan, index) {
        return Vec::new();
    }
    if let Some(replica) = improvement(fleet, search, plan) {
        let by = Some(Requester::Actor(rebalance.requested_by.clone()));
        let purpose = Some(ProbePurpose::Rebalance);
        let want = OperationRequest { purpose, ..OperationRequest::by(OperationKind::Relocate, by) };
        operation::open(fleet, replica, &want, ctx, &mut draft);
    } else if moves.len() == 0 {
        draft.push(PlanRebalanceEnded { plan: name, end: RebalanceEnd::Completed });
    }
    draft.done()
}

/// State in which a plan's rebalance had nothing to do, valid until any part changes.
#[derive(Clone, Debug)]
struct RebalanceIdle {
    at: Position,
    open: u32,
    thinned: Option<Arc<()>>,
    freed: Arc<()>,
    topology_token: Arc<()>,
}

impl RebalanceIdle {
    fn new(fleet: &FleetState, plan: &Plan) -> RebalanceIdle {
        let index = fleet.index();
        let own = index.plan_index(&plan.name);
        RebalanceIdle {
            at: plan.meta.changed.position,
            open: own.map_or(0, |own| own.open),
            thinned: own.map(|own| Arc::clone(&own.spread.thinned)),
            freed: Arc::clone(&index.places.freed),
            topology_token: Arc::clone(&index.places.topology_token),
        }
    }

    fn holds(&self, fleet: &FleetState, plan: &Plan) -> bool {
        let now = RebalanceIdle::new(fleet, plan);
        let thinned = self.thinned.as_ref().zip(now.thinned.as_ref());
        let same = Arc::ptr_eq(&self.freed, &now.freed)
            && Arc::ptr_eq(&self.topology_token, &now.topology_token)
            && thinned.is_none_or(|(then, now)| Arc::ptr_eq(then, now));
        same && (self.at, self.open) == (now.at, now.open)
    }
}

/// State of the rounds of checks: not journaled, a new decider starts again.
#[derive(Clone, Debug, Default)]
pub(crate) struct RebalanceRounds {
    /// Time at which the last round started.
    began: Time,
    /// Head at which the last round started.
    since: Position,
    /// Plan that was checked last in the current round.
    last: Option<PlanName>,
    in_progress: bool,
    waits: BTreeMap<PlanName, RebalanceIdle>,
}

/// Returns the next step of the rebalances in progress.
pub(crate) fn advance(
    fleet: &FleetState,
    rounds: &mut RebalanceRounds,
    search: &mut PlacementCache,
    ctx: &DecisionContext,
    mut begin: impl FnMut(&Subject, Position) -> bool,
) -> Option<DueStep> {
    let rebalancing = &fleet.index().rebalancing;
    rounds.waits.retain(|name, _| rebalancing.contains(name));
    for plan in rebalancing.iter().filter_map(|name| fleet.plans().get(name)) {
        let (subject, cause) = (Subject::Plan(plan.name.clone()), plan.meta.changed.position);
        let waits = rounds.waits.get(&plan.name).is_some_and(|waits| waits.holds(fleet, plan));
        if waits || !begin(&subject, cause) {
            continue;
        }
        let facts = step(fleet, search, plan, ctx);
        if !facts.is_empty() {
            return Some(DueStep { subject, cause, facts });
        }
        rounds.waits.insert(plan.name.clone(), RebalanceIdle::new(fleet, plan));
    }
    None
}

/// Returns the step for the next plan whose recorded balance is outdated.
pub(crate) fn look(
    fleet: &FleetState,
    rounds: &mut RebalanceRounds,
    search: &mut PlacementCache,
    ctx: &DecisionContext,
    mut begin: impl FnMut(&Subject, Position) -> bool,
) -> Option<DueStep> {
    if !rounds.in_progress {
        if next_round(fleet, rounds, ctx.now).is_none_or(|next| ctx.now < next) {
            return None;
        }
        (rounds.began, rounds.since, rounds.last, rounds.in_progress) = (ctx.now, fleet.head(), None, true);
    }
    let crowded = &fleet.index().crowded;
    let behind = rounds.last.take().map_or(Bound::Unbounded, Bound::Excluded);
    let mut left = STEP;
    for name in crowded.range((behind, Bound::Unbounded)).take(STEP) {
        left -= 1;
        rounds.last = Some(name.clone());
        let Some(plan) = fleet.plans().get(name) else { continue };
        let (subject, cause) = (Subject::Plan(name.clone()), plan.meta.changed.position);
        if !begin(&subject, cause) {
            continue;
        }
        let balance = if improvement(fleet, search, plan).is_some() {
            BalancePolicy::Uneven
        } else {
            BalancePolicy::Even
        };
        if balance != plan.balance {
            let facts = vec![PlanBalanceChanged { plan: name.clone(), balance }.into()];
            return Some(DueStep { subject, cause, facts });
        }
    }
    rounds.in_progress = left == 0;
    None
}

/// Time of the next round, if anything has happened since the last one started.
pub(crate) fn next_round(fleet: &FleetState, rounds: &RebalanceRounds, now: Time) -> Option<Time> {
    if rounds.in_progress {
        return Some(now);
    }
    let owed = !fleet.index().crowded.is_empty() && fleet.head() > rounds.since;
    owed.then(|| rounds.began + ROUND)
}

pub(crate) fn balance_changed(
    fleet: &mut FleetState,
    fact: &PlanBalanceChanged,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Plan>(&fact.plan, at, |plan| plan.balance = fact.balance)
}

pub(crate) fn started(fleet: &mut FleetState, fact: &PlanRebalanceStarted, at: FactPosition) -> FoldResult {
    let requested_by = fact.requested_by.clone();
    fleet.bump::<Plan>(&fact.plan, at, |plan| {
        plan.rebalance = Some(RebalanceProgress { requested_by, stops: None });
    })
}

pub(crate) fn ended(fleet: &mut FleetState, fact: &PlanRebalanceEnded, at: FactPosition) -> FoldResult {
    fleet.bump::<Plan>(&fact.plan, at, |plan| plan.rebalance = None)
}

/// Reason why a rebalance stops after this end of one of its moves.
pub(crate) fn stops_after(operation: &Operation, end: &OperationEnd) -> Option<String> {
    let why = match end {
        OperationEnd::Failed { reason } => format!("failed: {reason}"),
        OperationEnd::Rejected { rejected_by: by, reason } if reason.is_empty() => {
            format!("was rejected by {by}")
        }
        OperationEnd::Rejected { rejected_by: by, reason } => format!("was rejected by {by}: {reason}"),
        OperationEnd::Expired => "was not approved in time".to_owned(),
        OperationEnd::Succeeded | OperationEnd::Cancelled { .. } | OperationEnd::Superseded { .. } => {
            return None;
        }
    };
    let is_move = operation.purpose == Some(ProbePurpose::Rebalance);
    is_move.then(|| format!("the relocate of {} {why}", operation.replica))
}
