//! Indexes of a plan and of each of its deployments. See [`super::work`] for the work derived from them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Deref};

use chancery_events::digest::Digest;
use chancery_events::fact::Requester;
use chancery_events::id::{IncarnationId, OperationId, Position};
use chancery_events::lifecycle::SetWord;
use chancery_events::name::{DeploymentName, DomainName, GroupName, ReplicaName};
use chancery_events::spec::{DeploymentStrategy, OperationKind, ProbePurpose};
use chancery_events::time::Time;

use super::{PlanSpread, count, follow, follow_by};
use crate::capacity_index::CapacityIndex;
use crate::index_keys::{
    DeploymentIndexKey, IndexChange, OperationIndexKey, OperationStage, PlanIndexKey, ReplicaIndexKey, sides,
};
use crate::state::{Operation, Replica};

/// Operations by update domain.
pub type OperationQueue = BTreeSet<(Option<DomainName>, OperationId)>;

/// Approved operations of a deployment that are queued.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RolloutQueues {
    /// Queued updates.
    pub updates: OperationQueue,
    /// Other queued operations.
    pub others: OperationQueue,
}

impl RolloutQueues {
    /// Whether no operation is queued.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty() && self.others.is_empty()
    }

    /// Number of queued operations.
    pub fn len(&self) -> usize {
        self.updates.len() + self.others.len()
    }
}

/// Oldest first: comparing a position does not dereference the name.
type OldestFirst = (Position, ReplicaName);

/// Newest first, then by name.
type NewestFirst = (Reverse<Position>, ReplicaName);

/// Index of a deployment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeploymentIndex {
    /// Indexed fields of the deployment.
    pub(super) own: DeploymentIndexKey,
    /// Operations of the deployment that are not approved.
    pub unstarted: BTreeSet<OperationId>,
    /// Operations of the deployment that wait for approval.
    pub asking: BTreeSet<OperationId>,
    /// Number of starts of the deployment's replicas that wait for approval and that no deployment requested.
    pub asked_starts: u32,
    /// Number of other operations, except deletes, that wait for approval and that no deployment requested.
    pub asked_others: u32,
    /// Starts of the deployment's replicas by a rule that have started, and of which nothing is ready.
    pub starts_by_rule: BTreeSet<OperationId>,
    /// Operations of the deployment that are approved and queued.
    pub queue: RolloutQueues,
    /// Running operations of the deployment, with their update domains.
    pub running: BTreeMap<OperationId, Option<DomainName>>,
    /// Running operations that can be aborted: the incarnation that they start is not ready.
    pub may_abort: BTreeSet<OperationId>,
    /// Number of replicas of the deployment that are not being deleted.
    pub present: u32,
    /// Number of replicas of the deployment.
    pub replicas: u32,
    /// Number of present replicas that run and are healthy.
    pub healthy: u32,
    /// Number of present replicas that run and are unhealthy, without an operation.
    pub unhealthy: u32,
    /// Number of present replicas that should run and do not yet, with work in progress.
    pub unsettled: u32,
    /// Number of present replicas that are being restored.
    pub regaining: u32,
    /// Present replicas that should run and do not, without an operation.
    pub needs_start: BTreeSet<OldestFirst>,
    /// Present replicas without an incarnation, and without an operation that has a placement.
    pub not_running: BTreeSet<OldestFirst>,
    /// Present replicas that run, and may be updated.
    pub updatable: BTreeSet<OldestFirst>,
    /// Present replicas by health (unhealthy first) and domain: candidates when there are too many.
    candidates: BTreeMap<(bool, Option<DomainName>), BTreeSet<NewestFirst>>,
}

/// Moves of a plan's rebalance that have not ended, by stage.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct RebalanceMoves {
    /// Moves without placement.
    pub(crate) unplaced: BTreeSet<OperationId>,
    /// Moves with a placement that have not started.
    pub(crate) placed: BTreeSet<OperationId>,
    /// Number of moves that have started.
    pub(crate) running: u32,
}

impl RebalanceMoves {
    pub(crate) fn len(&self) -> usize {
        self.unplaced.len() + self.placed.len() + self.running as usize
    }

    fn follow(&mut self, id: OperationId, both: IndexChange<'_, OperationIndexKey>) {
        follow(
            &mut self.unplaced,
            both,
            |key| (key.turn == OperationStage::Preparing).then_some(id),
            |id| id,
        );
        let placed = |turn| matches!(turn, OperationStage::Waiting { .. } | OperationStage::Approved);
        follow(&mut self.placed, both, |index_key| placed(index_key.turn).then_some(id), |id| id);
        count(&mut self.running, both, |marks| marks.turn == OperationStage::Running);
    }
}

/// Work of a plan, as far as indexes of all plans contain it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct PlanAgenda {
    /// Whether work is due now.
    pub(super) is_due: bool,
    /// Time at which work is due, if not now.
    pub(super) later: Option<Time>,
    /// Time at which the current deployment will have made no progress for too long.
    pub(super) stalls_at: Option<Time>,
    /// Whether operations have no placement.
    pub(super) is_unplaced: bool,
    /// Whether an earlier policy placed a reservation.
    pub(super) is_outdated: bool,
    /// Whether the spread may be uneven.
    pub(super) is_crowded: bool,
}

/// Index of a plan.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct PlanIndex {
    /// Indexed fields of the plan.
    pub(super) own: PlanIndexKey,
    pub(super) agenda: PlanAgenda,
    /// Whether the plan has changed since its agenda was computed.
    pub(super) is_unsettled: bool,
    /// Groups that the plan's replicas belong to.
    pub(crate) groups: Vec<GroupName>,
    /// Unstarted reservations, by the generation whose policy placed them.
    pub(crate) held: BTreeSet<(u32, IncarnationId)>,
    /// Deployments of the plan.
    pub deployments: BTreeMap<DeploymentName, DeploymentIndex>,
    /// Number of replicas.
    pub replicas: u32,
    /// Number of replicas that are not being deleted.
    pub present: u32,
    /// Replicas being deleted: a delete of each is open, or was carried out in part.
    pub(crate) going: BTreeSet<ReplicaName>,
    /// Replicas whose delete has not started, each with its deployment.
    pub(crate) undecided: BTreeSet<(DeploymentName, ReplicaName)>,
    /// Spread of the plan's replicas.
    pub spread: PlanSpread,
    /// Moves of the plan's rebalance that have not ended, by stage.
    pub(crate) moves: RebalanceMoves,
    /// Operations without placement, by the deployment that determines their requirements. An operation with
    /// a search of its own is its own group.
    pub unplaced: BTreeMap<(DeploymentName, Option<OperationId>), BTreeSet<OperationId>>,
    /// Number of operations that have not ended.
    pub open: u32,
    /// Number of operations by disruptions that have not ended, and of replicas that a failed one stopped.
    pub evictions: u32,
}

impl Deref for PlanIndex {
    type Target = PlanIndexKey;
    fn deref(&self) -> &PlanIndexKey {
        &self.own
    }
}

impl Deref for DeploymentIndex {
    type Target = DeploymentIndexKey;
    fn deref(&self) -> &DeploymentIndexKey {
        &self.own
    }
}

impl PlanIndex {
    /// Replicas of the plan.
    pub(crate) fn members(&self) -> impl Iterator<Item = &ReplicaName> {
        self.deployments.values().flat_map(DeploymentIndex::members).chain(&self.going)
    }
}

impl DeploymentIndex {
    /// Whether the old replicas run alongside the new ones, and are left unchanged.
    pub(crate) fn runs_alongside(&self) -> bool {
        !matches!(self.strategy, DeploymentStrategy::Rolling { .. }) && self.active_set == SetWord::Old
    }

    /// Counts an operation on a replica of the deployment that no deployment requested.
    fn asked_besides(&mut self, operation: &Operation, both: IndexChange<'_, OperationIndexKey>) {
        let asked = match operation.kind {
            OperationKind::Delete => return,
            OperationKind::Start => {
                if matches!(operation.requested_by.as_deref(), Some(Requester::Rule(_))) {
                    let id = operation.id;
                    follow(&mut self.starts_by_rule, both, |key| key.may_abort.then_some(id), |id| id);
                }
                &mut self.asked_starts
            }
            OperationKind::Create
            | OperationKind::Update
            | OperationKind::Relocate
            | OperationKind::Restart
            | OperationKind::Reboot
            | OperationKind::Stop => &mut self.asked_others,
        };
        count(asked, both, |index_key| index_key.waits_until().is_some());
    }

    /// Operations that were approved, and have not started.
    pub fn queued(&self) -> impl Iterator<Item = &OperationId> {
        self.queue.others.iter().chain(&self.queue.updates).map(|(_, id)| id)
    }

    /// Replicas that are not being deleted, unhealthy ones first.
    pub(crate) fn members(&self) -> impl Iterator<Item = &ReplicaName> {
        self.candidates.values().flatten().map(|(_, name)| name)
    }

    /// Number of the deployment's replicas that remain in the domain and are not being deleted.
    fn in_domain(&self, domain: &DomainName) -> u32 {
        let groups = [true, false].map(|healthy| self.candidates.get(&(healthy, Some(domain.clone()))));
        let count: usize = groups.into_iter().flatten().map(BTreeSet::len).sum();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Names of the deployment's replicas that remain in the domain and are not being deleted.
    pub(crate) fn in_domain_by_name(&self, domain: &DomainName) -> impl Iterator<Item = &ReplicaName> {
        let groups = [true, false].map(|healthy| self.candidates.get(&(healthy, Some(domain.clone()))));
        groups.into_iter().flatten().flatten().map(|(_, name)| name)
    }

    /// Replica that is not being deleted, if any: the newest of the first group.
    pub fn any(&self) -> Option<&ReplicaName> {
        self.candidates.values().next()?.first().map(|(_, name)| name)
    }

    pub(super) fn is_empty(&self) -> bool {
        // Mostly decided by the first conditions, without creating another index.
        self.stage.is_none() && self.replicas == 0 && *self == DeploymentIndex::default()
    }

    fn replica(&mut self, this: &Replica, both: IndexChange<'_, ReplicaIndexKey>) {
        count(&mut self.replicas, both, |_| true);
        let both = sides(both, |key| key.filter(|index_key| !index_key.going));
        count(&mut self.present, both, |_| true);
        count(&mut self.healthy, both, |marks| marks.healthy);
        count(&mut self.unhealthy, both, |marks| marks.ailing);
        count(&mut self.unsettled, both, |marks| marks.unsettled);
        count(&mut self.regaining, both, |marks| marks.regains);
        let created = this.meta.created.position;
        let oldest = |(): ()| (created, this.name.clone());
        follow(&mut self.needs_start, both, |marks| marks.idle.then_some(()), oldest);
        follow(&mut self.not_running, both, |marks| marks.still.then_some(()), oldest);
        follow(&mut self.updatable, both, |marks| marks.free.then_some(()), oldest);
        follow_by(
            &mut self.candidates,
            both,
            |marks| Some((marks.healthy, marks.remains().map(|(_, domain)| domain))),
            |(healthy, domain)| (healthy, domain.cloned()),
            || (Reverse(created), this.name.clone()),
        );
    }

    fn operation(&mut self, operation: &Operation, both: IndexChange<'_, OperationIndexKey>) {
        let id = operation.id;
        let unstarted = |turn| matches!(turn, OperationStage::Preparing | OperationStage::Waiting { .. });
        follow(&mut self.unstarted, both, |key| unstarted(key.turn).then_some(id), |id| id);
        follow(&mut self.asking, both, |index_key| index_key.waits_until().map(|_| id), |id| id);
        follow(&mut self.may_abort, both, |marks| marks.may_abort.then_some(id), |id| id);
        let queue = match operation.kind {
            OperationKind::Update => &mut self.queue.updates,
            OperationKind::Create
            | OperationKind::Relocate
            | OperationKind::Restart
            | OperationKind::Reboot
            | OperationKind::Start
            | OperationKind::Stop
            | OperationKind::Delete => &mut self.queue.others,
        };
        let queued = |marks: &OperationIndexKey| marks.turn == OperationStage::Approved;
        follow(queue, both, |marks| queued(marks).then_some(&marks.domain), |domain| (domain.clone(), id));
        match both[1].filter(|marks| marks.turn == OperationStage::Running) {
            Some(marks) => self.running.insert(id, marks.domain.clone()),
            None => self.running.remove(&id),
        };
    }
}

/// Replicas of which one is deleted.
pub(crate) struct DeletionCandidates<'a> {
    /// Update domain of the replicas.
    pub(crate) domain: Option<DomainName>,
    sets: Vec<&'a BTreeSet<NewestFirst>>,
}

impl<'a> DeletionCandidates<'a> {
    /// Newest replica; of several as new, the first by name.
    pub(crate) fn newest(&self) -> Option<&'a ReplicaName> {
        self.sets.iter().filter_map(|set| set.first()).min().map(|(_, name)| name)
    }

    /// Whether the replica is a candidate.
    pub(crate) fn contains(&self, replica: &Replica) -> bool {
        let key = (Reverse(replica.meta.created.position), replica.name.clone());
        self.sets.iter().any(|set| set.contains(&key))
    }
}

impl PlanIndex {
    /// Deployment that is being carried out.
    pub(crate) fn current(&self) -> Option<(&DeploymentName, &DeploymentIndex)> {
        let name = self.current.as_ref()?;
        self.deployments.get(name).map(|of| (name, of))
    }

    /// Whether the current deployment needs a human decision to continue. People must approve all that is
    /// left to do, or an operation that the deployment waits for, or promote its canary.
    fn waits_for_people(&self, current: &DeploymentIndex) -> bool {
        if !current.running.is_empty()
            || !current.queue.is_empty()
            || current.asking.len() != current.unstarted.len()
        {
            return false;
        }
        let canary = matches!(current.strategy, DeploymentStrategy::Canary { .. })
            && current.active_set == SetWord::Old;
        let besides = || {
            self.deployments.values().any(|of| {
                // Replicas of the version should run; others must be free for their update.
                let right = of.version == current.version;
                (right && of.asked_starts > 0)
                    || (!right && !current.runs_alongside() && of.asked_starts + of.asked_others > 0)
            })
        };
        let mut undecided = self.undecided.iter();
        let mut deletes = || {
            undecided.any(|(of, _)| self.deployments.get(of).is_some_and(|of| of.version != current.version))
        };
        !current.asking.is_empty() || canary || besides() || deletes()
    }

    /// Time at which the current deployment will have made no progress for too long, unless it waits for
    /// people. `later` is the end of its strategy's current delay.
    fn stalls_at(&self, later: Option<Time>) -> Option<Time> {
        let (_, current) = self.current()?;
        let (last, patience) = current.progress?;
        let counts = !self.quarantined && !self.waits_for_people(current);
        counts.then(|| later.map_or(last, |later| last.max(later)) + patience)
    }

    /// Computes the work from the counts.
    pub(super) fn agenda(&self) -> PlanAgenda {
        let from = self.work().map(|(from, _)| from);
        let later = from.filter(|from| *from > Time::EPOCH);
        PlanAgenda {
            is_due: from == Some(Time::EPOCH),
            later,
            stalls_at: self.stalls_at(later),
            is_unplaced: !self.unplaced.is_empty(),
            is_outdated: self.outdated(None).next().is_some(),
            is_crowded: self.may_be_uneven(),
        }
    }

    /// Changes the index of a deployment.
    pub(super) fn with_deployment(&mut self, name: &DeploymentName, how: impl FnOnce(&mut DeploymentIndex)) {
        let deployment = match self.deployments.get_mut(name) {
            Some(deployment) => deployment,
            None => self.deployments.entry(name.clone()).or_default(),
        };
        how(deployment);
        if deployment.is_empty() {
            self.deployments.remove(name);
        }
    }

    /// Unstarted reservations placed by an earlier policy, after the given one.
    pub(crate) fn outdated(
        &self,
        after: Option<(u32, IncarnationId)>,
    ) -> impl Iterator<Item = (u32, IncarnationId)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let held = self.held.range((from, Bound::Unbounded)).copied();
        held.take_while(|(placed_by, _)| *placed_by < self.generation)
    }

    /// Whether no work of the plan is in progress, and its spread may be uneven or was found to be.
    fn may_be_uneven(&self) -> bool {
        let busy =
            self.open > 0 || self.current.is_some() || self.waiting || self.deleting || self.quarantined;
        !busy && (self.uneven || self.spread.is_crowded())
    }

    pub(super) fn replica(
        &mut self,
        places: &CapacityIndex,
        this: &Replica,
        both: IndexChange<'_, ReplicaIndexKey>,
    ) {
        let name = || this.name.clone();
        count(&mut self.replicas, both, |_| true);
        count(&mut self.present, both, |key| !key.going);
        count(&mut self.evictions, both, |index_key| index_key.downed);
        follow(&mut self.going, both, |marks| marks.going.then_some(()), |()| name());
        let undecided = |marks: &ReplicaIndexKey| marks.undecided.then(|| marks.deployment.clone());
        follow(&mut self.undecided, both, undecided, |of| (of, name()));
        self.spread.replica(places, both);
        match both {
            [Some(old), Some(new)] if old.deployment != new.deployment => {
                self.with_deployment(&old.deployment, |of| of.replica(this, [Some(old), None]));
                self.with_deployment(&new.deployment, |of| of.replica(this, [None, Some(new)]));
            }
            [_, Some(marks)] | [Some(marks), None] => {
                self.with_deployment(&marks.deployment, |of| of.replica(this, both));
            }
            [None, None] => {}
        }
    }

    pub(super) fn operation(&mut self, this: &Operation, both: IndexChange<'_, OperationIndexKey>) {
        follow_by(
            &mut self.unplaced,
            both,
            |key| (key.turn == OperationStage::Preparing).then_some(()),
            |()| (this.version.clone(), this.needs_own_search().then_some(this.id)),
            || this.id,
        );
        let is_open = |index_key: &OperationIndexKey| index_key.turn != OperationStage::Over;
        count(&mut self.open, both, is_open);
        if this.is_drain() {
            count(&mut self.evictions, both, is_open);
        }
        if this.purpose == Some(ProbePurpose::Rebalance) {
            self.moves.follow(this.id, both);
        }
        // The plan and deployment of an operation never change.
        match &this.deployment {
            Some(name) => self.with_deployment(name, |of| of.operation(this, both)),
            None => self.with_deployment(&this.version, |of| of.asked_besides(this, both)),
        }
    }

    /// Version of the new set, while a blue-green deployment has both.
    pub(crate) fn new_set(&self) -> Option<Digest> {
        let (_, current) = self.current()?;
        let two = matches!(current.strategy, DeploymentStrategy::BlueGreen { .. })
            && current.active_set == SetWord::Old;
        current.version.filter(|_| two)
    }

    /// Number of replicas that remain in the domain and are not being deleted: of the set with `version` if
    /// `is_new`, otherwise of the other set.
    pub(crate) fn in_domain_of_set(&self, version: Digest, is_new: bool, domain: &DomainName) -> u32 {
        let of_set = self.deployments.values().filter(|of| (of.version == Some(version)) == is_new);
        of_set.map(|of| of.in_domain(domain)).sum()
    }

    /// Candidates of each deployment, with whether their version differs from the desired one.
    fn candidates(
        &self,
    ) -> impl Iterator<Item = (bool, &(bool, Option<DomainName>), &BTreeSet<NewestFirst>)> {
        let version = self.current().map(|(_, current)| current.version);
        self.deployments.values().flat_map(move |of| {
            let stale = version.is_some_and(|version| version != of.version);
            of.candidates.iter().map(move |(key, set)| (stale, key, set))
        })
    }

    /// Replicas of which one is deleted when there are too many. Order: unhealthy ones, those of another than
    /// the desired version, those in the fullest domain. Of equally full domains, the first by name.
    pub(crate) fn victims(&self) -> Option<DeletionCandidates<'_>> {
        // Replicas being deleted no longer count.
        let mut stay: BTreeMap<&DomainName, usize> = BTreeMap::new();
        for (_, (_, domain), set) in self.candidates() {
            if let Some(domain) = domain {
                *stay.entry(domain).or_default() += set.len();
            }
        }
        let fullness =
            |domain: &Option<DomainName>| domain.as_ref().and_then(|domain| stay.get(domain)).copied();
        let rank = |stale: bool, (healthy, domain): &(bool, Option<DomainName>)| {
            (!*healthy, stale, fullness(domain), Reverse(domain.clone()))
        };
        let best = self.candidates().map(|(stale, key, _)| rank(stale, key)).max()?;
        let sets = self.candidates().filter(|(stale, key, _)| rank(*stale, key) == best);
        let sets = sets.map(|(_, _, set)| set).collect();
        let Reverse(domain) = best.3;
        Some(DeletionCandidates { domain, sets })
    }

    /// Whether all candidates are healthy.
    pub(crate) fn victim_is_well(&self) -> bool {
        self.candidates().all(|(_, (healthy, _), _)| *healthy)
    }

    pub(super) fn is_empty(&self) -> bool {
        // Mostly decided by the first conditions, without creating another index.
        self.replicas == 0 && self.open == 0 && self.deployments.is_empty() && *self == PlanIndex::default()
    }
}
