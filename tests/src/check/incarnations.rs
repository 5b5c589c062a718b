//! Incarnations and their commands; invariants 3, 5 and 6: each is requested in order, and each command has
//! one outcome.

use chancery_events::fact::{
    CommandEffect, ConsoleOpened, IncarnationCommandFailed, IncarnationEnd, IncarnationRunning,
    IncarnationStartRequested, IncarnationStarted, IncarnationStopRequested, OperationEnd,
};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::intent::Intent;
use chancery_events::name::ReplicaName;
use chancery_events::observation::{ObservedState, ProcessInfo, ProcessStatus};
use chancery_events::spec::{ClusterRuntime, OperationKind};

use super::deployments::OperationTrigger;
use super::obligations::RecordObligation;
use super::operations::is_up;
use super::readiness::resets;
use super::state::{
    CheckedFleet, FactLocation, Incarnation, IncarnationProgress, Operation, OperationProgress, Replica,
};
use super::violation::{InvariantViolation, RuleResult, demand};

impl Incarnation {
    /// Issues the next command. A previous command without an outcome is superseded.
    pub(super) fn command(&mut self, effect: CommandEffect) {
        self.revision += 1;
        self.command = Some((effect, 1));
    }

    /// Whether a requested reset has no outcome yet.
    pub(super) fn is_asked_to_reboot(&self) -> bool {
        matches!(self.command, Some((CommandEffect::Reboot, _)))
    }

    /// Requests the end as wanted. An incarnation that is already stopping gets no further command.
    fn stop(&mut self) {
        if !matches!(self.progress, IncarnationProgress::Stopping(_)) {
            self.command(CommandEffect::Stop);
        }
        self.progress = IncarnationProgress::Stopping(IncarnationEnd::Destroyed);
    }
}

impl CheckedFleet {
    /// Checks that a console is opened on request, for the incarnation that runs, and for whom.
    pub(super) fn console_opened(&self, fact: &ConsoleOpened) -> RuleResult {
        let id = fact.incarnation;
        let request = self.input.as_ref().and_then(|input| input.request());
        let is_requested = request.is_some_and(|request| {
            let actor = fact.opened_by.as_ref() == Some(&request.actor);
            matches!(&request.intent, Intent::ConsoleOpen(ask)
                if actor && (&ask.name, &ask.payload, ask.access) == (&fact.replica, &fact.payload, fact.access))
        });
        demand!(5, is_requested, "the console of incarnation {id} was not requested like that");
        let run = self.incarnation(id)?;
        let runs = !run.progress.is_over() && !matches!(run.progress, IncarnationProgress::Reserved);
        demand!(5, runs && run.replica == fact.replica, "incarnation {id} does not run for {}", fact.replica);
        let runtime = self.clusters.get(&run.cluster).map(|cluster| cluster.runtime);
        demand!(5, runtime.is_some_and(ClusterRuntime::has_console), "incarnation {id} has no console");
        Ok(())
    }

    pub(super) fn incarnation(&self, id: IncarnationId) -> Result<&Incarnation, InvariantViolation> {
        self.incarnations
            .get(&id)
            .ok_or_else(|| InvariantViolation::new(5, format!("incarnation {id} was never issued")))
    }

    /// Returns an incarnation that has not ended.
    pub(super) fn incarnation_mut(
        &mut self,
        id: IncarnationId,
    ) -> Result<&mut Incarnation, InvariantViolation> {
        let unknown = || InvariantViolation::new(5, format!("incarnation {id} was never issued"));
        let found = self.incarnations.get_mut(&id).ok_or_else(unknown)?;
        demand!(5, !found.progress.is_over(), "incarnation {id} has ended, and changes");
        Ok(found)
    }

    /// Starts an approved operation, which first requests something of an incarnation.
    pub(super) fn begin(
        &mut self,
        id: OperationId,
        asked: Option<IncarnationId>,
        trigger: OperationTrigger,
        at: FactLocation,
    ) -> RuleResult {
        let operation = self.operation(id)?.clone();
        let replica = self.replica(&operation.replica)?.clone();
        let concurrent = replica
            .open
            .iter()
            .find(|other| self.operations.get(other).is_some_and(|o| o.stage == OperationProgress::Running));
        demand!(
            6,
            concurrent.is_none(),
            "operation {id} runs concurrently with another one on replica {}",
            operation.replica
        );
        if let Some(held) = operation.incarnation {
            self.keeps_policy(held)?;
        }
        self.begins_for(id, &operation, trigger, at)?;
        if is_up(operation.kind) {
            self.asks_up(id, &operation, asked, at)?;
        } else {
            self.asks_down(id, &replica, asked)?;
        }
        let keeps_promise = operation.kind == OperationKind::Start && operation.requested_by.is_none();
        let begins = self.operation(id)?;
        (begins.stage, begins.begun) = (OperationProgress::Running, Some(at.time));
        let replica = self.replica(&operation.replica)?;
        replica.recovers = false;
        if !keeps_promise {
            replica.next_restart = None;
        }
        Ok(())
    }

    /// Checks that a stop or delete names its first incarnation; the second gets its own command.
    fn asks_down(&mut self, id: OperationId, replica: &Replica, asked: Option<IncarnationId>) -> RuleResult {
        let asked_for =
            |run: &IncarnationId| self.incarnations.get(run).is_some_and(|run| run.progress.is_asked_for());
        let runs: Vec<_> =
            [replica.active, replica.secondary].into_iter().flatten().filter(asked_for).collect();
        demand!(
            6,
            asked == runs.first().copied(),
            "operation {id} is about {runs:?}, and is approved for {asked:?}"
        );
        if let Some(first) = asked {
            self.incarnation_mut(first)?.stop();
        }
        self.obligations.extend(runs.iter().map(|run| RecordObligation::Stopping(*run)));
        Ok(())
    }

    /// Requests the start, or first the end of the incarnation that it must wait for.
    fn asks_up(
        &mut self,
        id: OperationId,
        operation: &Operation,
        asked: Option<IncarnationId>,
        at: FactLocation,
    ) -> RuleResult {
        let Some(own) = operation.incarnation else {
            return Err(InvariantViolation::new(6, format!("operation {id} starts, and has no reservation")));
        };
        let run = self.incarnation(own)?;
        let followed = run
            .starts_after
            .filter(|old| self.incarnations.get(old).is_some_and(|old| !old.progress.is_over()));
        let first = followed.filter(|_| run.progress == IncarnationProgress::Reserved).unwrap_or(own);
        demand!(
            6,
            asked == Some(first),
            "operation {id} must command incarnation {first} first, and commands {asked:?}"
        );
        if first != own {
            self.incarnation_mut(first)?.stop();
            return Ok(());
        }
        if run.progress == IncarnationProgress::Reserved && !run.mounts.is_empty() {
            // The incarnation is started when its volumes are available.
            return Ok(());
        }
        if operation.kind == OperationKind::Reboot {
            let start = self.plan(&operation.plan)?.latest()?.timeouts.start();
            let run = self.incarnation_mut(own)?;
            demand!(
                5,
                run.progress == IncarnationProgress::Running,
                "incarnation {own} is reset, and does not run"
            );
            run.command(CommandEffect::Reboot);
            run.reboot_due = Some(at.time + start);
            run.resets_before = run.resets.clone();
            return Ok(());
        }
        let version = operation.version.clone();
        let run = self.incarnation_mut(own)?;
        run.progress = match run.progress {
            IncarnationProgress::Reserved => IncarnationProgress::Creating,
            IncarnationProgress::Running | IncarnationProgress::Updating(_)
                if operation.kind == OperationKind::Update =>
            {
                IncarnationProgress::Updating(version)
            }
            _ => {
                return Err(InvariantViolation::new(
                    5,
                    format!("incarnation {own} is started a second time"),
                ));
            }
        };
        run.command(CommandEffect::Ensure);
        Ok(())
    }

    pub(super) fn stop_requested(&mut self, fact: &IncarnationStopRequested, at: FactLocation) -> RuleResult {
        let id = fact.incarnation;
        let incarnation = self.incarnation_mut(id)?.clone();
        demand!(
            5,
            incarnation.replica == fact.replica,
            "incarnation {id} is of replica {}",
            incarnation.replica
        );
        let allowed = match (&incarnation.progress, fact.effect) {
            (IncarnationProgress::Stopping(then), CommandEffect::Kill) => {
                demand!(6, *then == fact.end, "incarnation {id} changes its recorded end");
                true
            }
            (
                IncarnationProgress::Creating
                | IncarnationProgress::Starting
                | IncarnationProgress::Running
                | IncarnationProgress::Updating(_),
                CommandEffect::Stop,
            ) => self.may_be_stopped(id, &incarnation, &fact.end, at)?,
            (
                _,
                CommandEffect::Ensure | CommandEffect::Stop | CommandEffect::Kill | CommandEffect::Reboot,
            ) => false,
        };
        demand!(
            6,
            allowed,
            "a {} of incarnation {id}, which is {}, was not approved",
            fact.effect,
            incarnation.progress.word()
        );
        if incarnation.progress.is_up() && matches!(fact.end, IncarnationEnd::Failed { .. }) {
            self.fails(&fact.replica)?;
        }
        let incarnation = self.incarnation_mut(id)?;
        incarnation.progress = IncarnationProgress::Stopping(fact.end.clone());
        incarnation.command(fact.effect);
        Ok(())
    }

    /// Closes operations that wait to replace or change an incarnation that must end because it failed.
    fn fails(&mut self, name: &ReplicaName) -> RuleResult {
        let replica = self.replica(name)?.clone();
        let waits = |open: &&OperationId| {
            let found = self.operations.get(open);
            found
                .is_some_and(|open| open.kind.needs_incarnation() && open.stage != OperationProgress::Running)
        };
        let waiting: Vec<_> = replica.open.iter().filter(waits).copied().collect();
        self.obligations.extend(waiting.into_iter().map(RecordObligation::Closed));
        self.now.failing.insert(name.clone());
        Ok(())
    }

    /// Whether an incarnation may be asked to end without an operation that names it. Reasons: a stop or
    /// delete of both, a replacement, a failed start, a failed probe, or unreadiness.
    fn may_be_stopped(
        &mut self,
        id: IncarnationId,
        run: &Incarnation,
        then: &IncarnationEnd,
        at: FactLocation,
    ) -> Result<bool, InvariantViolation> {
        let replica = self.replica(&run.replica)?.clone();
        let mut open = replica.open.iter().filter_map(|open| self.operations.get(open));
        if open.any(|open| open.stage == OperationProgress::Running && !is_up(open.kind)) {
            return Ok(*then == IncarnationEnd::Destroyed);
        }
        if run.progress.is_up() {
            let winner = replica.active.and_then(|active| self.incarnations.get(&active));
            let lost = replica.secondary == Some(id)
                && winner.is_some_and(|new| new.progress == IncarnationProgress::Running);
            if matches!(then, IncarnationEnd::Failed { .. }) {
                let session = self.clusters.get(&run.cluster).and_then(|cluster| cluster.session);
                let due = run.unready.and_then(|(_, due)| due);
                let stays_unready = due.is_some_and(|(due, of)| due <= at.time && session == Some(of));
                let is_late = run.is_asked_to_reboot() && run.reboot_due.is_some_and(|due| due <= at.time);
                return Ok(self.now.hung.contains(&id) || stays_unready || is_late);
            }
            return Ok(lost && *then == IncarnationEnd::Destroyed);
        }
        self.obligations.push(RecordObligation::Closed(run.operation));
        Ok(true)
    }

    pub(super) fn start_requested(&mut self, fact: &IncarnationStartRequested) -> RuleResult {
        let id = fact.incarnation;
        let run = self.incarnation_mut(id)?.clone();
        demand!(5, run.replica == fact.replica, "incarnation {id} is of replica {}", run.replica);
        demand!(
            6,
            run.deployment == fact.deployment,
            "incarnation {id} is commanded to be of {}, and is of {}",
            fact.deployment,
            run.deployment
        );
        let open = self.replica(&run.replica)?.open.clone();
        let mut open = open.iter().filter_map(|open| Some((*open, self.operations.get(open)?)));
        let by =
            open.find(|(_, open)| open.stage == OperationProgress::Running && open.incarnation == Some(id));
        let by = by.map(|(by, _)| by);
        let life = match &run.progress {
            IncarnationProgress::Reserved => {
                demand!(
                    6,
                    by.is_some(),
                    "the start of incarnation {id} is requested, and no operation of it has started"
                );
                let over = match run.starts_after {
                    Some(old) if run.mounts.is_empty() => {
                        self.now.ended.iter().any(|ended| ended.incarnation == old)
                    }
                    Some(old) => self.incarnation(old)?.progress.is_over(),
                    None => !run.mounts.is_empty(),
                };
                demand!(
                    3,
                    over,
                    "incarnation {id} is requested, and its predecessor did not end directly before"
                );
                self.take_volumes(id, &run, &fact.mounts)?;
                IncarnationProgress::Creating
            }
            IncarnationProgress::Updating(to) if *to != run.deployment => {
                demand!(6, fact.deadline.is_none(), "the revert of incarnation {id} has a deadline");
                self.obligations.extend(by.map(RecordObligation::Closed));
                IncarnationProgress::Updating(run.deployment.clone())
            }
            // A reset was refused: the same version is requested again.
            IncarnationProgress::Running if run.command.is_none() && run.reboot_due.is_some() => {
                demand!(6, fact.deadline.is_none(), "the version of incarnation {id} has a deadline");
                self.obligations.extend(by.map(RecordObligation::Closed));
                IncarnationProgress::Updating(run.deployment.clone())
            }
            life => {
                let what = format!("the start of incarnation {id} is requested, and it was {}", life.word());
                return Err(InvariantViolation::new(6, what));
            }
        };
        let run = self.incarnation_mut(id)?;
        run.progress = life;
        run.reboot_due = None;
        run.command(CommandEffect::Ensure);
        Ok(())
    }

    pub(super) fn command_failed(&mut self, fact: &IncarnationCommandFailed, at: FactLocation) -> RuleResult {
        let id = fact.incarnation;
        let report = self.report(id, at)?;
        let is_reported = report.is_some_and(|r| {
            matches!(r.observed, ObservedState::Failed { .. }) && r.revision == fact.revision
        });
        demand!(5, is_reported, "a command of incarnation {id} has failed without a report");
        let incarnation = self.incarnation_mut(id)?;
        let current = incarnation.revision;
        demand!(
            5,
            fact.revision == current,
            "command {} of incarnation {id} fails, and {current} is the last",
            fact.revision
        );
        let Some((effect, attempt)) = incarnation.command else {
            return Err(InvariantViolation::new(
                6,
                format!("command {current} of incarnation {id} has a second outcome"),
            ));
        };
        demand!(
            5,
            fact.attempt == attempt,
            "attempt {} of incarnation {id} fails, and {attempt} is the last",
            fact.attempt
        );
        let is_tried_again = fact.not_before.is_some();
        let goes_back = matches!(&incarnation.progress, IncarnationProgress::Updating(to) if *to == incarnation.deployment);
        let reboots = effect == CommandEffect::Reboot;
        let may_be_given_up = reboots || effect == CommandEffect::Ensure && !goes_back;
        if reboots && !is_tried_again {
            incarnation.unready = incarnation.unready.map(|(since, _)| (since, None));
        }
        demand!(6, is_tried_again || may_be_given_up, "a {effect} of incarnation {id} is given up");
        incarnation.command = is_tried_again.then_some((effect, attempt + 1));
        Ok(())
    }

    pub(super) fn started(&mut self, fact: &IncarnationStarted, at: FactLocation) -> RuleResult {
        let (id, processes) = (fact.incarnation, &fact.processes);
        let current = self.incarnation(id)?.revision;
        let report = self.report(id, at)?;
        let is_reported = report.is_some_and(|r| {
            matches!(r.observed, ObservedState::Started { .. } | ObservedState::NotReady { .. })
                && r.revision >= current
        });
        demand!(5, is_reported, "incarnation {id} is called started without a report about its last command");
        let incarnation = self.incarnation_mut(id)?;
        match &incarnation.progress {
            IncarnationProgress::Creating => incarnation.progress = IncarnationProgress::Starting,
            IncarnationProgress::Updating(to) if incarnation.command.is_some() => {
                if *to == incarnation.deployment {
                    incarnation.progress = IncarnationProgress::Running;
                }
            }
            life => {
                let what = format!("incarnation {id} is started, and was {}", life.word());
                return Err(InvariantViolation::new(5, what));
            }
        }
        incarnation.command = None;
        incarnation.is_ready = all_online(processes);
        let reverted = incarnation.progress == IncarnationProgress::Running;
        self.fill_volumes(id);
        if reverted {
            self.incarnation_mut(id)?.unready = None;
            self.unready(id, processes, fact.deadline, at)?;
        } else {
            demand!(
                6,
                fact.deadline.is_none(),
                "incarnation {id} has a deadline as unready, and never was ready"
            );
        }
        self.incarnation_mut(id)?.observe_resets(processes);
        self.owes_stop(id, processes)
    }

    pub(super) fn running(&mut self, fact: &IncarnationRunning, at: FactLocation) -> RuleResult {
        let id = fact.incarnation;
        let current = self.incarnation(id)?.revision;
        let report = self.report(id, at)?;
        let is_reported = report
            .is_some_and(|r| matches!(r.observed, ObservedState::Ready { .. }) && r.revision >= current);
        demand!(5, is_reported, "incarnation {id} is called ready without a report about its last command");
        let run = self.incarnation_mut(id)?;
        match &run.progress {
            IncarnationProgress::Creating | IncarnationProgress::Starting => {}
            IncarnationProgress::Updating(to) => run.deployment = to.clone(),
            IncarnationProgress::Running if run.is_asked_to_reboot() => {
                let was_reset = resets(&fact.processes) != run.resets_before;
                demand!(
                    5,
                    was_reset,
                    "incarnation {id} is called rebooted, and none of its guests was reset"
                );
            }
            life => {
                return Err(InvariantViolation::new(
                    5,
                    format!("incarnation {id} becomes ready, and was {}", life.word()),
                ));
            }
        }
        (run.progress, run.command, run.is_ready) =
            (IncarnationProgress::Running, None, all_online(&fact.processes));
        run.since = run.since.or(Some(at.time));
        run.observe_resets(&fact.processes);
        run.unready = None;
        let (name, deployment) = (run.replica.clone(), run.deployment.clone());
        demand!(5, name == fact.replica, "incarnation {id} is of replica {name}");
        self.fill_volumes(id);
        let replica = self.replica(&name)?;
        replica.downed = false;
        replica.deployment = deployment;
        let replaced = replica.active.filter(|active| *active != id);
        if replaced.is_some() {
            (replica.active, replica.secondary) = (Some(id), replaced);
        }
        let open = replica.open.clone();
        self.moves_waiting(&name);
        demand!(
            3,
            fact.replaces == replaced,
            "incarnation {id} replaces {replaced:?}, and {:?} is named",
            fact.replaces
        );
        self.obligations.extend(replaced.map(RecordObligation::Stopping));
        let mut open = open.iter().filter_map(|open| Some((*open, self.operations.get(open)?)));
        let by = open.find(|(_, open)| {
            open.stage == OperationProgress::Running && is_up(open.kind) && open.incarnation == Some(id)
        });
        // An incarnation that replaces another has succeeded when the other ended.
        let by = by.map(|(by, _)| by);
        if let Some(by) = by {
            let operation = self.operation(by)?.clone();
            self.was_aborted_in_time(by, &operation, at)?;
            self.operation(by)?.is_past_return = replaced.is_some();
            if replaced.is_some() {
                self.was_called_stalled(by, &operation, at)?;
                self.progresses(&operation, at);
            }
        }
        let succeeds = by.filter(|_| replaced.is_none());
        demand!(
            6,
            fact.operation == succeeds,
            "incarnation {id} is ready, and operation {:?} has its outcome by that, not {succeeds:?}",
            fact.operation
        );
        match succeeds {
            Some(by) => self.close(by, &OperationEnd::Succeeded, at),
            None => Ok(()),
        }
    }
}

pub(super) fn all_online(processes: &[ProcessInfo]) -> bool {
    processes.iter().all(|process| process.status == ProcessStatus::Ready)
}
