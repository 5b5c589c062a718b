//! Readiness of running incarnations; invariants 5 and 6: it changes by reports only, and an incarnation that stays unready has one
//! deadline.

use chancery_events::fact::IncarnationProcessesChanged;
use chancery_events::id::IncarnationId;
use chancery_events::observation::{ObservedState, ProcessInfo, ProcessStatus};
use chancery_events::spec::UnreadyAction;
use chancery_events::time::Time;

use super::incarnations::all_online;
use super::obligations::RecordObligation;
use super::state::{CheckedFleet, FactLocation, Incarnation, IncarnationProgress, ResetCounts};
use super::violation::{InvariantViolation, RuleResult, demand};

impl Incarnation {
    /// Notes how often guests were reset, and whether one is not ready again.
    pub(super) fn observe_resets(&mut self, processes: &[ProcessInfo]) {
        self.is_rebooting = is_rebooting(processes);
        self.resets = resets(processes);
    }
}

impl CheckedFleet {
    /// Notes since when the incarnation is unready, and its deadline: by the plan when a probe fails, in the
    /// session of that report.
    pub(super) fn unready(
        &mut self,
        id: IncarnationId,
        processes: &[ProcessInfo],
        deadline: Option<Time>,
        at: FactLocation,
    ) -> RuleResult {
        let run = self.incarnation(id)?.clone();
        let session = self.clusters.get(&run.cluster).and_then(|cluster| cluster.session);
        let name = self.replica(&run.replica)?.plan.clone();
        if run.is_asked_to_reboot() {
            demand!(
                6,
                deadline == run.reboot_due,
                "the reboot of incarnation {id} has another deadline: {deadline:?}"
            );
            let since = run.unready.map_or(at.time, |(since, _)| since);
            self.incarnation_mut(id)?.unready = (!run.is_ready).then_some((since, deadline.zip(session)));
            return Ok(());
        }
        let spec = self.plan(&name)?.latest()?;
        let (unready, start) = (spec.unready, spec.timeouts.start());
        let now = if run.is_ready {
            None
        } else {
            let (since, kept) = run.unready.unwrap_or((at.time, None));
            let boots = is_rebooting(processes);
            let begins = boots && !run.is_rebooting;
            let kept = kept.filter(|(_, of)| session == Some(*of) && !begins);
            let after = if boots {
                Some(start)
            } else {
                let ends = unready.action == UnreadyAction::Restart && processes.iter().any(fails);
                ends.then(|| unready.after())
            };
            let due = session.zip(after).map(|(session, after)| (at.time + after, session));
            Some((since, kept.or(due)))
        };
        demand!(
            6,
            deadline == now.and_then(|(_, due)| due).map(|(due, _)| due),
            "incarnation {id} is ended as unready at {deadline:?}, and should be by {now:?}"
        );
        self.incarnation_mut(id)?.unready = now;
        Ok(())
    }

    /// Requires the stop of an incarnation that was ready and fails its liveness probe.
    pub(super) fn owes_stop(&mut self, id: IncarnationId, processes: &[ProcessInfo]) -> RuleResult {
        if self.incarnation(id)?.progress.is_up() && is_hung(processes) {
            self.obligations.push(RecordObligation::Stopping(id));
            self.now.hung.insert(id);
        }
        Ok(())
    }

    pub(super) fn processes_changed(
        &mut self,
        fact: &IncarnationProcessesChanged,
        at: FactLocation,
    ) -> RuleResult {
        let (id, processes) = (fact.incarnation, &fact.processes);
        if self.waits_for_session(id, fact, at)? || self.is_unwatched(id, fact, at)? {
            return Ok(());
        }
        let current = self.incarnation(id)?.revision;
        let report = self.report(id, at)?;
        let is_reported = report.is_some_and(|r| {
            matches!(
                r.observed,
                ObservedState::Ready { .. } | ObservedState::Started { .. } | ObservedState::NotReady { .. }
            ) && r.revision >= current
        });
        demand!(5, is_reported, "the processes of incarnation {id} change without a report");
        let incarnation = self.incarnation_mut(id)?;
        let up = matches!(
            incarnation.progress,
            IncarnationProgress::Starting | IncarnationProgress::Running | IncarnationProgress::Updating(_)
        );
        demand!(5, up, "the processes of incarnation {id} change, and it is {}", incarnation.progress.word());
        incarnation.is_ready = all_online(processes);
        if incarnation.progress == IncarnationProgress::Running {
            self.unready(id, processes, fact.deadline, at)?;
        }
        self.incarnation_mut(id)?.observe_resets(processes);
        self.owes_stop(id, processes)
    }

    /// Whether the fact gives a requested reset more time because no executor is connected.
    fn waits_for_session(
        &mut self,
        id: IncarnationId,
        fact: &IncarnationProcessesChanged,
        at: FactLocation,
    ) -> Result<bool, InvariantViolation> {
        let run = self.incarnation(id)?.clone();
        let has_session = self.clusters.get(&run.cluster).is_some_and(|cluster| cluster.session.is_some());
        let is_due = run.is_asked_to_reboot() && run.reboot_due.is_some_and(|due| due <= at.time);
        if !is_due || has_session || self.report(id, at)?.is_some() {
            return Ok(false);
        }
        let name = self.replica(&run.replica)?.plan.clone();
        let due = Some(at.time + self.plan(&name)?.latest()?.timeouts.start());
        demand!(
            6,
            fact.deadline == due,
            "the reboot of incarnation {id} is due at {:?}, not {due:?}",
            fact.deadline
        );
        let run = self.incarnation_mut(id)?;
        run.reboot_due = due;
        let since = run.unready.map_or(at.time, |(since, _)| since);
        run.unready = (!run.is_ready).then_some((since, None));
        Ok(true)
    }

    /// Whether the fact states that a deadline has passed and the session that set the deadline has ended.
    fn is_unwatched(
        &mut self,
        id: IncarnationId,
        fact: &IncarnationProcessesChanged,
        at: FactLocation,
    ) -> Result<bool, InvariantViolation> {
        let run = self.incarnation(id)?.clone();
        let session = self.clusters.get(&run.cluster).and_then(|cluster| cluster.session);
        let Some((since, Some((due, of)))) = run.unready else { return Ok(false) };
        let is_so = due <= at.time
            && session != Some(of)
            && fact.deadline.is_none()
            && self.report(id, at)?.is_none();
        if is_so {
            self.incarnation_mut(id)?.unready = Some((since, None));
        }
        Ok(is_so)
    }
}

fn fails(process: &ProcessInfo) -> bool {
    matches!(process.status, ProcessStatus::Unready { .. } | ProcessStatus::Unresponsive { .. })
}

pub(super) fn resets(processes: &[ProcessInfo]) -> ResetCounts {
    processes.iter().map(|process| (process.pid, process.resets)).collect()
}

pub(super) fn is_rebooting(processes: &[ProcessInfo]) -> bool {
    processes.iter().any(|process| process.status == ProcessStatus::Rebooting)
}

fn is_hung(processes: &[ProcessInfo]) -> bool {
    processes.iter().any(|process| matches!(process.status, ProcessStatus::Unresponsive { .. }))
}
