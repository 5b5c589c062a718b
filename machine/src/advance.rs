//! Work that is due, one step at a time. What intents only record is carried out here, from ordered queues:
//! one intent for a million replicas is never one giant commit. No step costs more than what it changes.
//!
//! The first step that is due is taken, in this order:
//!
//! | step | function |
//! |---|---|
//! | incarnations on expunged nodes end | `overdue` |
//! | volumes of expunged nodes are lost, unused ones are destroyed, commands that waited for a volume are issued | `overdue` |
//! | deadlines expire | `overdue` |
//! | reservations that an edited plan no longer allows get another node, before anything lets an operation start | `replace` |
//! | work whose time has come, such as an automatic restart after its delay | `fire_timers` |
//! | disruptions drain their nodes | `disruption::step` |
//! | policies approve operations | `policy::step` |
//! | the next plan in rotation gets one step of its deployment | `advance_rollouts` |
//! | rebalances move a replica, or end | `rebalance` |
//! | operations without a node get one | `place_operations` |
// tidy: allow(look)
//! | the spread of plans without other work is compared with the best one | `look` |

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use chancery_events::fact::Fact;
use chancery_events::id::{IncarnationId, OperationId, Position};
use chancery_events::name::{DeploymentName, PlanName, VolumeName};
use chancery_events::subject::Subject;
use chancery_events::time::Time;

use crate::context::DecisionContext;
use crate::fleet::FleetState;
use crate::grace::DeadlineGrace;
use crate::index::{DeadlineKey, TimerKey};
use crate::rebalance::RebalanceRounds;
use crate::scheduler::PlacementCache;
use crate::{deployment, disruption, incarnation, operation, policy, rebalance, replica, request, volume};

/// Progress of checking the outdated reservations of a plan.
#[derive(Clone, Debug)]
struct ReservationCheck {
    /// Generation whose policy was applied.
    generation: u32,
    /// Token of the nodes and capabilities.
    topology_token: Arc<()>,
    /// Last reservation checked.
    last: Option<(u32, IncarnationId)>,
}

/// Step of due work: its subject, its cause and its facts.
#[derive(Clone, PartialEq, Debug)]
pub struct DueStep {
    /// Entity that the step is about.
    pub subject: Subject,
    /// Position of the cause.
    pub cause: Position,
    /// Facts of the step.
    pub facts: Vec<Fact>,
}

/// State of the decider between steps that no journal needs: the rotation of plans, and failed searches.
#[derive(Clone, Debug)]
pub struct AdvanceState {
    /// Time until which deadlines wait. Executors have a lease to return after a takeover, and half a lease
    /// where their messages are late.
    pub grace: DeadlineGrace,
    /// Time of the last request for a step.
    now: Time,
    search: PlacementCache,
    last: Option<PlanName>,
    failed_searches: BTreeMap<(PlanName, (DeploymentName, Option<OperationId>)), Position>,
    /// Plans with outdated reservations, and how far these were checked.
    checked: BTreeMap<PlanName, ReservationCheck>,
    rounds: RebalanceRounds,
    quarantined: BTreeSet<Subject>,
    in_progress: Option<(Subject, Position)>,
}

impl AdvanceState {
    /// Creates an agenda without failed searches or quarantined entities. Deadlines wait until `grace`.
    pub fn new(grace: Time) -> AdvanceState {
        AdvanceState {
            grace: DeadlineGrace::until(grace),
            now: Time::EPOCH,
            search: PlacementCache::default(),
            last: None,
            failed_searches: BTreeMap::new(),
            checked: BTreeMap::new(),
            rounds: RebalanceRounds::default(),
            quarantined: BTreeSet::new(),
            in_progress: None,
        }
    }

    /// Quarantines an entity, because a step on it failed.
    pub fn quarantine(&mut self, subject: Subject) {
        self.quarantined.insert(subject);
    }

    /// Whether an entity is quarantined.
    pub fn is_quarantined(&self, subject: &Subject) -> bool {
        self.quarantined.contains(subject)
    }

    /// Records the subject of the work and its cause, before anything of it is read.
    pub fn turn_to(&mut self, subject: &Subject, cause: Position) {
        self.in_progress = Some((subject.clone(), cause));
    }

    /// Records the subject and its cause, unless quarantined. Returns whether it did.
    fn begin(&mut self, subject: &Subject, cause: Position) -> bool {
        begin(&self.quarantined, &mut self.in_progress, subject, cause)
    }

    /// Returns the first step that has facts, skipping quarantined entities. `about` returns the subject and
    /// cause of an item, `facts` its facts.
    fn first<T>(
        &mut self,
        mut due: impl Iterator<Item = T>,
        about: impl Fn(&T) -> Option<(Subject, Position)>,
        facts: impl Fn(&T) -> Vec<Fact>,
    ) -> Option<DueStep> {
        due.find_map(|due| {
            let (subject, cause) = about(&due)?;
            if !self.begin(&subject, cause) {
                return None;
            }
            let facts = facts(&due);
            (!facts.is_empty()).then_some(DueStep { subject, cause, facts })
        })
    }

    /// Takes the subject and cause of the last work. After a panic, they are what the panic was about.
    pub fn in_progress(&mut self) -> Option<(Subject, Position)> {
        self.in_progress.take()
    }
}

fn begin(
    quarantined: &BTreeSet<Subject>,
    at_work: &mut Option<(Subject, Position)>,
    subject: &Subject,
    cause: Position,
) -> bool {
    let may = !quarantined.contains(subject);
    if may {
        *at_work = Some((subject.clone(), cause));
    }
    may
}

/// Returns the next step, if anything is due at `ctx.now`.
pub fn advance(fleet: &FleetState, agenda: &mut AdvanceState, ctx: &DecisionContext) -> Option<DueStep> {
    fleet.index().assert_settled();
    agenda.now = ctx.now;
    overdue(fleet, agenda, ctx)
        // Before anything that lets an operation start, which the end of a delay does too.
        .or_else(|| replace(fleet, agenda, ctx))
        .or_else(|| fire_timers(fleet, agenda, ctx))
        .or_else(|| disruption::step(fleet, ctx, |subject, cause| agenda.begin(subject, cause)))
        .or_else(|| policy::step(fleet, ctx, |subject, cause| agenda.begin(subject, cause)))
        .or_else(|| advance_rollouts(fleet, agenda, ctx))
        .or_else(|| rebalance(fleet, agenda, ctx))
        .or_else(|| place_operations(fleet, agenda, ctx))
        .or_else(|| look(fleet, agenda, ctx))
}

/// Returns when work is due next, if nothing happens before.
pub fn next_alarm(fleet: &FleetState, agenda: &AdvanceState) -> Option<Time> {
    fleet.index().assert_settled();
    let (index, now) = (fleet.index(), agenda.now);
    let alarm = index.deadlines.first().map(|(when, _)| agenda.grace.rings_at(*when));
    let timer = index.timers.first().map(|(when, _)| *when);
    let round = rebalance::next_round(fleet, &agenda.rounds, now);
    let others = [timer, disruption::next_start(fleet, now), policy::next_window(fleet, now), round];
    others.into_iter().flatten().chain(alarm).min()
}

/// Work that waits for nothing else.
enum DueWork<'a> {
    /// Incarnation on an expunged node.
    Lost(IncarnationId),
    /// Volume on an expunged node.
    LostVolume(&'a VolumeName),
    /// Unused volume that will be deleted.
    UnusedVolume(&'a VolumeName),
    /// Incarnation whose volumes are available.
    Served(IncarnationId),
    /// Deadline that has passed.
    Alarm(&'a DeadlineKey),
}

impl DueWork<'_> {
    /// Subject of the work, and position of its cause.
    fn about(&self, fleet: &FleetState) -> Option<(Subject, Position)> {
        let (subject, cause) = match self {
            DueWork::Lost(id) => {
                let node = fleet.incarnations().get(id)?.node.clone();
                (Subject::Incarnation(*id), Some(Subject::Node(node)))
            }
            DueWork::LostVolume(name) | DueWork::UnusedVolume(name) => {
                (Subject::Volume((*name).clone()), None)
            }
            DueWork::Served(id) => return Some((Subject::Incarnation(*id), volume::served_at(fleet, *id)?)),
            DueWork::Alarm(DeadlineKey::Incarnation(id)) => (Subject::Incarnation(*id), None),
            DueWork::Alarm(DeadlineKey::Operation(id)) => (Subject::Operation(*id), None),
            DueWork::Alarm(DeadlineKey::Request(id)) => (Subject::Request(*id), None),
            DueWork::Alarm(DeadlineKey::Deployment(key)) => {
                let (plan, name) = (**key).clone();
                (Subject::Plan(plan.clone()), Some(Subject::Deployment(plan, name)))
            }
            DueWork::Alarm(DeadlineKey::Progress(plan)) => {
                let current = fleet.plans().get(plan)?.current.clone()?;
                (Subject::Plan(plan.clone()), Some(Subject::Deployment(plan.clone(), current)))
            }
        };
        let cause = fleet.meta(cause.as_ref().unwrap_or(&subject))?.changed.position;
        Some((subject, cause))
    }

    fn facts(&self, fleet: &FleetState, ctx: &DecisionContext) -> Vec<Fact> {
        match self {
            DueWork::Lost(id) => incarnation::lost(fleet, *id, ctx),
            DueWork::LostVolume(name) => volume::lost(fleet, name),
            DueWork::UnusedVolume(name) => volume::destroy(fleet, name),
            DueWork::Served(id) => volume::serve(fleet, *id, ctx),
            DueWork::Alarm(DeadlineKey::Operation(id)) => operation::expire(fleet, *id, ctx),
            DueWork::Alarm(DeadlineKey::Incarnation(id)) => incarnation::overdue(fleet, *id, ctx),
            DueWork::Alarm(DeadlineKey::Deployment(key)) => deployment::overdue(fleet, key),
            DueWork::Alarm(DeadlineKey::Progress(name)) => deployment::no_progress(fleet, name, ctx),
            DueWork::Alarm(DeadlineKey::Request(id)) => request::expire(fleet, *id, ctx),
        }
    }
}

fn overdue(fleet: &FleetState, agenda: &mut AdvanceState, ctx: &DecisionContext) -> Option<DueStep> {
    let (index, grace) = (fleet.index(), agenda.grace);
    let lost = index.lost.iter().map(|id| DueWork::Lost(*id));
    let volumes = index.volumes.lost.iter().map(DueWork::LostVolume);
    let volumes = volumes.chain(index.volumes.unused.iter().map(DueWork::UnusedVolume));
    let served = index.volumes.served.iter().map(|id| DueWork::Served(*id));
    let alarms = index.deadlines.iter().take_while(|(when, _)| grace.rings_at(*when) <= ctx.now);
    let due = lost.chain(volumes).chain(served).chain(alarms.map(|(_, alarm)| DueWork::Alarm(alarm)));
    agenda.first(due, |due| due.about(fleet), |due| due.facts(fleet, ctx))
}

/// Returns a step of scheduled work.
fn fire_timers(fleet: &FleetState, agenda: &mut AdvanceState, ctx: &DecisionContext) -> Option<DueStep> {
    let due = fleet.index().timers.iter().take_while(|(when, _)| *when <= ctx.now).map(|(_, timer)| timer);
    let about = |timer: &&TimerKey| {
        Some(match timer {
            TimerKey::Replica(name) => {
                let replica = fleet.replicas().get(name)?;
                (Subject::Replica(name.clone()), replica.meta.changed.position)
            }
            TimerKey::Plan(name) => (Subject::Plan(name.clone()), deployment::cause(fleet, name)?),
        })
    };
    agenda.first(due, about, |timer| match timer {
        TimerKey::Replica(name) => replica::start_again(fleet, name, ctx),
        TimerKey::Plan(name) => deployment::step(fleet, name, ctx),
    })
}

/// Checks unstarted reservations that an earlier policy of their plan placed: once after an edit, and again
/// when nodes have changed. A reservation that the policy forbids gets another placement.
fn replace(fleet: &FleetState, agenda: &mut AdvanceState, ctx: &DecisionContext) -> Option<DueStep> {
    let outdated = &fleet.index().outdated;
    let shape = &fleet.index().places.topology_token;
    agenda.checked.retain(|name, _| outdated.contains(name));
    for name in outdated {
        let (Some(plan), Some(index)) = (fleet.plans().get(name), fleet.index().plan_index(name)) else {
            continue;
        };
        let known = agenda.checked.get(name);
        let known =
            known.filter(|of| of.generation == plan.generation && Arc::ptr_eq(&of.topology_token, shape));
        let mut last = known.and_then(|of| of.last);
        while let Some(place) = index.outdated(last).next() {
            last = Some(place);
            let subject = Subject::Plan(name.clone());
            if agenda.is_quarantined(&subject) {
                break;
            }
            agenda.turn_to(&subject, plan.meta.changed.position);
            let facts = operation::replace(fleet, place.1, ctx);
            let checked =
                ReservationCheck { generation: plan.generation, topology_token: Arc::clone(shape), last };
            agenda.checked.insert(name.clone(), checked);
            if !facts.is_empty() {
                return Some(DueStep { subject, cause: plan.meta.changed.position, facts });
            }
        }
    }
    None
}

/// Returns the next move of a rebalance, or its end.
fn rebalance(fleet: &FleetState, agenda: &mut AdvanceState, ctx: &DecisionContext) -> Option<DueStep> {
    let AdvanceState { rounds, search, quarantined: parked, in_progress: at_work, .. } = agenda;
    rebalance::advance(fleet, rounds, search, ctx, |subject, cause| begin(parked, at_work, subject, cause))
}

/// Finds plans whose spread has become uneven, or even.
fn look(fleet: &FleetState, agenda: &mut AdvanceState, ctx: &DecisionContext) -> Option<DueStep> {
    let AdvanceState { rounds, search, quarantined: parked, in_progress: at_work, .. } = agenda;
    rebalance::look(fleet, rounds, search, ctx, |subject, cause| begin(parked, at_work, subject, cause))
}

/// Returns one step for the next due plan in rotation, so that a large deployment does not delay others.
fn advance_rollouts(fleet: &FleetState, agenda: &mut AdvanceState, ctx: &DecisionContext) -> Option<DueStep> {
    let due = &fleet.index().due;
    let after = agenda.last.clone().map_or(Bound::Unbounded, Bound::Excluded);
    let turn = due.range((after, Bound::Unbounded)).chain(due.iter());
    let about = |name: &&PlanName| Some((Subject::Plan((*name).clone()), deployment::cause(fleet, name)?));
    let step = agenda.first(turn.take(due.len() + 1), about, |name| deployment::step(fleet, name, ctx))?;
    if let Subject::Plan(name) = &step.subject {
        agenda.last = Some(name.clone());
    }
    Some(step)
}

/// Searches placements for operations without one. The operations of a deployment have equal requirements:
/// after one search fails, the others wait until capacity may have grown.
fn place_operations(fleet: &FleetState, agenda: &mut AdvanceState, ctx: &DecisionContext) -> Option<DueStep> {
    let grown = fleet.index().capacity_grew_at;
    for name in &fleet.index().unplaced {
        let subject = Subject::Plan(name.clone());
        let (Some(plan), false) = (fleet.plans().get(name), agenda.is_quarantined(&subject)) else {
            continue;
        };
        let Some(groups) = fleet.index().plan_index(name).map(|index| &index.unplaced) else { continue };
        // The oldest operation reports for all why the plan waits.
        let speaker = groups.values().filter_map(BTreeSet::first).min();
        for (kind, waiting) in groups {
            let Some(operation) = waiting.first() else { continue };
            let group = (name.clone(), kind.clone());
            let failed = agenda.failed_searches.get(&group).copied();
            let tried = failed.is_some_and(|failed| failed >= grown);
            let speaks = Some(operation) == speaker;
            let asks_again = || {
                speaks && plan.unschedulable.is_empty() || operation::is_replaceable(fleet, plan, *operation)
            };
            if tried && !asks_again() {
                continue;
            }
            // What an earlier search lacked may be free now. After a takeover, only the plan shows that one failed.
            let has_waited = failed.map_or(!plan.unschedulable.is_empty(), |failed| failed < grown);
            let cause = operation.position().max(if has_waited { grown } else { Position::ZERO });
            agenda.turn_to(&subject, cause);
            let found = operation::prepare(fleet, &mut agenda.search, plan, *operation, speaks, ctx);
            let in_vain =
                |facts: &Vec<Fact>| facts.iter().any(|fact| matches!(fact, Fact::PlanUnschedulable(_)));
            if found.as_ref().is_none_or(in_vain) {
                agenda.failed_searches.insert(group, grown);
            }
            if let Some(facts) = found {
                return Some(DueStep { subject, cause, facts });
            }
        }
    }
    agenda.failed_searches.retain(|(name, _), _| fleet.index().unplaced.contains(name));
    agenda.search.retain(|name| fleet.index().unplaced.contains(name));
    None
}
