//! Work for a plan's deployments, derived from the counts of its index: one item at a time, found without
//! reading any replica that needs none.

use chancery_events::digest::Digest;
use chancery_events::id::{Lineage, OperationId, Position};
use chancery_events::lifecycle::SetWord;
use chancery_events::name::{DeploymentName, ReplicaName};
use chancery_events::spec::DeploymentStrategy;
use chancery_events::time::Time;

use super::{DeploymentIndex, OperationQueue, PlanIndex};
use crate::index_keys::DeploymentStage;

/// Item of work for a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeploymentWork {
    /// Starts the queued deployment.
    Start,
    /// Cancels an operation that has not started.
    Cancel(OperationId),
    /// Aborts an operation that has started.
    Abort(OperationId),
    /// Aborts a start by a rule, because the replica needs another version.
    AbortStart(OperationId),
    /// Removes a replica that the deployment created.
    TakeBack(ReplicaName),
    /// Ends the deployment with its recorded outcome.
    End,
    /// Completes the deployment, which has reached its goal.
    Complete,
    /// Makes the new set active.
    CutOver,
    /// Creates one more replica.
    Create,
    /// Deletes a surplus replica.
    Delete,
    /// Assigns the version to a replica without an incarnation.
    Assign(ReplicaName),
    /// Starts a replica that should run and does not.
    Restart(ReplicaName),
    /// Creates the update of a replica.
    Update(ReplicaName),
    /// Starts an approved operation.
    Begin(OperationId),
    /// Deletes a replica of a plan that is being deleted.
    Remove,
    /// Deletes a plan of which nothing is left.
    Forget,
}

impl PlanIndex {
    /// Returns the work and its time, [`Time::EPOCH`] for now; `None` if the plan waits for something else.
    pub fn work(&self) -> Option<(Time, DeploymentWork)> {
        let now = |work| Some((Time::EPOCH, work));
        if self.quarantined {
            return None;
        }
        let Some((name, current)) = self.current() else {
            return match () {
                () if self.deleting && (self.present > 0 || !self.undecided.is_empty()) => {
                    now(DeploymentWork::Remove)
                }
                () if self.deleting && self.replicas == 0 => now(DeploymentWork::Forget),
                () if self.waiting => now(DeploymentWork::Start),
                () => None,
            };
        };
        match current.stage {
            Some(DeploymentStage::Settling | DeploymentStage::Aborting) => {
                self.ending(name, current).and_then(now)
            }
            Some(DeploymentStage::InProgress) => self.going_on(current),
            Some(DeploymentStage::Pending | DeploymentStage::Paused | DeploymentStage::Over) | None => None,
        }
    }

    fn ending(&self, name: &DeploymentName, current: &DeploymentIndex) -> Option<DeploymentWork> {
        if let Some(operation) = current.unstarted.first().or(current.queued().next()) {
            return Some(DeploymentWork::Cancel(*operation));
        }
        let alongside = current.runs_alongside();
        let built = self.deployments.get(name).filter(|_| alongside);
        // A replica whose delete another actor requested does not wait for the approval of that delete.
        let undecided =
            || self.undecided.iter().find(|(of, _)| alongside && of == name).map(|(_, replica)| replica);
        if let Some(replica) = built.and_then(DeploymentIndex::any).or_else(undecided) {
            return Some(DeploymentWork::TakeBack(replica.clone()));
        }
        let aborts = current.stage == Some(DeploymentStage::Aborting);
        if let Some(operation) = current.may_abort.first().filter(|_| aborts) {
            return Some(DeploymentWork::Abort(*operation));
        }
        let left = built.map_or(0, |built| built.replicas);
        (current.running.is_empty() && left == 0).then_some(DeploymentWork::End)
    }

    /// Deployments that are, or are not, of the version.
    fn of_version(&self, version: Option<Digest>, right: bool) -> impl Iterator<Item = &DeploymentIndex> {
        self.deployments.values().filter(move |of| (of.version == version) == right)
    }

    /// Number of ready replicas that have the version of the current deployment.
    pub fn ready_in_version(&self) -> u32 {
        let current = self.current().map(|(_, current)| current);
        current.map_or(0, |current| self.healthy_of_version(current))
    }

    fn healthy_of_version(&self, current: &DeploymentIndex) -> u32 {
        self.of_version(current.version, true).map(|of| of.healthy).sum()
    }

    fn going_on(&self, current: &DeploymentIndex) -> Option<(Time, DeploymentWork)> {
        let now = |work| Some((Time::EPOCH, work));
        let right = || self.of_version(current.version, true);
        let stale = || self.of_version(current.version, false);
        // A delete that is not approved may be rejected, and the replica stays.
        let undecided = || {
            let version = |of: &DeploymentName| self.deployments.get(of).and_then(|of| of.version);
            self.undecided.iter().any(|(of, _)| version(of) != current.version)
        };
        let old = || stale().map(|of| of.present).sum::<u32>();
        let is_old_left = || old() > 0 || undecided();
        let settled = current.unstarted.is_empty() && current.running.is_empty() && current.queue.is_empty();
        let start = || {
            right()
                .find_map(|of| of.needs_start.first())
                .map(|(_, name)| DeploymentWork::Restart(name.clone()))
        };
        if let (SetWord::Old, Some(wanted)) = (current.active_set, current.alongside())
            && is_old_left()
        {
            let fit = right().map(|of| of.present).sum::<u32>();
            if fit < wanted {
                return now(DeploymentWork::Create);
            }
            if let Some(start) = start() {
                return now(start);
            }
            if let Some(turn) = self.turn(current) {
                return Some(turn);
            }
            let ready = self.healthy_of_version(current) == fit;
            let alone = matches!(current.strategy, DeploymentStrategy::BlueGreen { .. });
            return (settled && ready && alone).then_some((Time::EPOCH, DeploymentWork::CutOver));
        }
        if self.present > current.count {
            return now(DeploymentWork::Delete);
        }
        if self.present < current.count {
            return now(DeploymentWork::Create);
        }
        if let Some((_, replica)) = stale().find_map(|of| of.not_running.first()) {
            return now(DeploymentWork::Assign(replica.clone()));
        }
        if let Some(start) = start() {
            return now(start);
        }
        let update = stale().find_map(|of| of.updatable.first());
        if let Some((_, replica)) = update.filter(|_| self.opens_update(current)) {
            return now(DeploymentWork::Update(replica.clone()));
        }
        if let Some(turn) = self.turn(current) {
            return Some(turn);
        }
        // An operation of a rule or a person must settle as well.
        let comes = right().any(|of| of.unsettled > 0);
        if settled
            && !comes
            && !self.holds_back(current)
            && let Some(start) = stale().find_map(|of| of.starts_by_rule.first())
        {
            return now(DeploymentWork::AbortStart(*start));
        }
        (settled && !comes && !is_old_left()).then_some((Time::EPOCH, DeploymentWork::Complete))
    }

    /// Whether an update may be created. People see all updates together, to approve them together. Automatic
    /// approval creates each when it can start, so that no more is reserved than needed.
    fn opens_update(&self, current: &DeploymentIndex) -> bool {
        let open = current.unstarted.len() + current.running.len() + current.queue.len();
        !self.updates_alone || (open as u64) < u64::from(current.wave())
    }

    /// Whether the deployment must not stop another replica: one of its version is unhealthy, or one of
    /// another version is being restored.
    fn holds_back(&self, current: &DeploymentIndex) -> bool {
        let ailing = self.of_version(current.version, true).any(|of| of.unhealthy > 0);
        // A new set alongside the old one stops nothing.
        let regaining =
            !current.runs_alongside() && self.of_version(current.version, false).any(|of| of.regaining > 0);
        ailing || regaining
    }

    /// Returns the approved operation to start, and the time. No more than a wave runs concurrently, in one
    /// update domain if required, with a pause after each. Nothing starts while a replica of the version is
    /// unhealthy, or another is being restored.
    fn turn(&self, current: &DeploymentIndex) -> Option<(Time, DeploymentWork)> {
        if current.queue.is_empty() {
            return None;
        }
        if self.holds_back(current) {
            return None;
        }
        let (per_domain, pause) = match current.strategy {
            DeploymentStrategy::Rolling { per_domain, delay: pause, .. } => (per_domain, pause),
            DeploymentStrategy::BlueGreen { .. } | DeploymentStrategy::Canary { .. } => (false, 0),
        };
        let mut domains = current.running.values();
        let domain = domains.next().filter(|_| per_domain);
        let in_domain = |queue: &OperationQueue| match domain {
            None => queue.first().map(|(_, id)| *id),
            Some(domain) => {
                let from = (domain.clone(), first_id());
                queue.range(from..).next().filter(|(found, _)| found == domain).map(|(_, id)| *id)
            }
        };
        let full = |limit: u32| current.running.len() as u64 >= u64::from(limit);
        let any = in_domain(&current.queue.others).filter(|_| !full(current.bound()));
        // Replicas that were stopped for another version are started before anything else is stopped.
        let returns = self.of_version(current.version, true).any(|of| of.regaining > 0);
        let update = in_domain(&current.queue.updates).filter(|_| !returns && !full(current.wave()));
        let next = any.or(update)?;
        let from = match current.last_success {
            Some(rested) if pause > 0 => rested + std::time::Duration::from_millis(pause),
            _ => Time::EPOCH,
        };
        Some((from, DeploymentWork::Begin(next)))
    }
}

/// Lowest id of an operation.
fn first_id() -> OperationId {
    OperationId::issue(Lineage::from_random(0), Position::ZERO)
}

impl DeploymentIndex {
    /// Number of new replicas that run alongside the old ones, for strategies that do so.
    fn alongside(&self) -> Option<u32> {
        match self.strategy {
            DeploymentStrategy::Rolling { .. } => None,
            DeploymentStrategy::BlueGreen { .. } => Some(self.count),
            DeploymentStrategy::Canary { count } => Some(count.min(self.count)),
        }
    }

    /// Maximum number of concurrent operations while an update is one of them.
    fn wave(&self) -> u32 {
        match self.strategy {
            DeploymentStrategy::Rolling { max_parallel: wave, .. } => wave.unwrap_or(1),
            DeploymentStrategy::BlueGreen { .. } | DeploymentStrategy::Canary { .. } => 1,
        }
    }

    /// Maximum number of concurrent operations.
    fn bound(&self) -> u32 {
        match self.strategy {
            DeploymentStrategy::Rolling { max_parallel: wave, .. } => wave.unwrap_or(u32::MAX),
            DeploymentStrategy::BlueGreen { .. } | DeploymentStrategy::Canary { .. } => u32::MAX,
        }
    }
}
