//! Steps of executors of pods in a world, and faults of their clusters.

use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::{EpochNonce, IncarnationId};
use chancery_events::observation::{ObjectReport, ObservedState};
use chancery_events::protocol::ExecutorEpoch;
use chancery_executor::WorkProgress;
use chancery_executor::session::{ObjectWork, SessionInput};

use super::api::lock;
use super::executor::{PodEvent, PodExecutor};
use super::resource::ClusterChange;
use crate::check::InvariantViolation;
use crate::sim::executor::ListProgress;
use crate::sim::oracle::violation;
use crate::sim::rendering;
use crate::sim::universe::{ScriptedWorld, trace_step};

/// Requests that the API answers in one step.
const SERVED: u64 = 4;

impl ScriptedWorld {
    /// Starts an executor of pods. Whether the machine's cluster has any.
    pub fn start_pods(&mut self, machine: usize) -> bool {
        let Some(api) = &self.machines[machine].api else { return false };
        let (api, cluster, now) = (Arc::clone(api), self.machines[machine].cluster, self.now);
        trace_step!(self, "executor {machine} of pods starts");
        self.machines[machine].pods = Some(PodExecutor::start(&api, cluster, now));
        true
    }

    /// Lets an executor of pods run, and its API answer.
    pub(in crate::sim) fn drive(&mut self, machine: usize) -> Result<(), InvariantViolation> {
        let mut is_resting = false;
        for _ in 0..self.random.between(1, 8) {
            let takes =
                self.machines[machine].process.as_ref().is_some_and(|process| process.core.takes_changes());
            let Some(pods) = &mut self.machines[machine].pods else { return Ok(()) };
            if takes {
                pods.watch();
            }
            let events = pods.run(self.now);
            let Some(api) = &self.machines[machine].api else { return Ok(()) };
            let served = lock(api).serve(SERVED);
            is_resting = events.is_empty() && served == 0;
            if is_resting {
                break;
            }
            for event in events {
                self.take_event(machine, event)?;
            }
        }
        if is_resting && let Some(pods) = &mut self.machines[machine].pods {
            pods.is_stirred = false;
        }
        Ok(())
    }

    /// Lets an API answer one request, whose sender may have ended.
    pub(in crate::sim) fn serve(&mut self, machine: usize) {
        if let Some(api) = &self.machines[machine].api {
            lock(api).serve(1);
        }
        let cluster = self.machines[machine].cluster;
        for pods in
            self.machines.iter_mut().filter(|of| of.cluster == cluster).filter_map(|of| of.pods.as_mut())
        {
            pods.is_stirred = true;
        }
    }

    fn take_event(&mut self, machine: usize, event: PodEvent) -> Result<(), InvariantViolation> {
        match event {
            PodEvent::Opened(opened) => {
                let (number, seen) = (opened.epoch(), opened.seen);
                let instance = EpochNonce::from_random(self.random.bits());
                trace_step!(self, "executor {machine} has opened its store: epoch {number}");
                let Some(pods) = &mut self.machines[machine].pods else { return Ok(()) };
                pods.open(*opened);
                self.machines[machine].start(ExecutorEpoch { number, instance }, seen);
                Ok(())
            }
            PodEvent::Listed(Ok(reports)) => {
                self.check_proofs(machine, &reports)?;
                self.executor(machine, SessionInput::Listed(reports))
            }
            PodEvent::Listed(Err(error)) => self.executor(machine, SessionInput::NotListed(error)),
            PodEvent::Changed(Ok(reports)) => {
                trace_step!(self, "executor {machine} sees {}", rendering::reports(&reports));
                self.check_proofs(machine, &reports)?;
                self.executor(machine, SessionInput::Changed(reports))
            }
            PodEvent::Changed(Err(lost)) => self.executor(machine, SessionInput::WatchLost(lost)),
            PodEvent::Done(work, WorkProgress::Begun) => {
                self.executor(machine, SessionInput::Done(work.object()))
            }
            PodEvent::Done(work, WorkProgress::PutOff) => {
                self.counts.add("work put off");
                self.executor(machine, SessionInput::PutOff(work))
            }
            PodEvent::Stopped(stop) => {
                trace_step!(self, "executor {machine} stops: {stop}");
                self.counts.add("executor stopped: taken over");
                self.stop_executor(machine);
                Ok(())
            }
        }
    }

    /// Checks that an end is recorded before it is reported, and that no answer is no failure.
    fn check_proofs(&self, machine: usize, reports: &[ObjectReport]) -> Result<(), InvariantViolation> {
        let Some(api) = &self.machines[machine].api else { return Ok(()) };
        for report in reports {
            let what = match &report.observed {
                ObservedState::Ended { .. } | ObservedState::Gone => {
                    let record = lock(api).record(report.object);
                    // A record that was purged was one of an end.
                    let Some(record) = record else { continue };
                    if record["tombstone"].is_u64() || record["end"]["is_proved"] == true {
                        continue;
                    }
                    format!("{} without a record of its end", rendering::report(report))
                }
                ObservedState::Failed { message, .. } if message.contains("no answer") => {
                    format!("{}, though the API did not answer", rendering::report(report))
                }
                _ => continue,
            };
            return Err(violation(14, what, None));
        }
        Ok(())
    }

    /// Does a work item on a cluster with pods.
    pub(in crate::sim) fn work_on_pods(&mut self, machine: usize, work: ObjectWork) {
        self.counts.add("work done");
        if let Some(pods) = &mut self.machines[machine].pods {
            pods.work(work);
        }
    }

    /// Lists the objects of a cluster with pods. Whether the machine's cluster has any.
    pub(in crate::sim) fn list_pods(&mut self, machine: usize) -> bool {
        let Some(pods) = &mut self.machines[machine].pods else { return false };
        pods.list();
        if let Some(process) = &mut self.machines[machine].process {
            process.listing = ListProgress::No;
        }
        true
    }

    /// Lets time pass in all clusters with pods.
    pub(in crate::sim) fn pass_in_clusters(&mut self) {
        for machine in &mut self.machines {
            if let Some(api) = machine.api.as_ref().filter(|_| machine.is_first()) {
                lock(api).advance(self.now);
            }
            if let Some(pods) = &mut machine.pods {
                pods.is_stirred = true;
            }
        }
    }

    /// Returns the incarnations with pods.
    pub(in crate::sim) fn alive_in_clusters(&self) -> Vec<(IncarnationId, usize)> {
        let mut alive = Vec::new();
        for machine in self.machines.iter().filter(|machine| machine.is_first()) {
            if let Some(api) = &machine.api {
                alive.extend(lock(api).alive());
            }
        }
        alive
    }

    /// Takes over the violations and the counts of clusters.
    pub(in crate::sim) fn consult_clusters(&mut self) -> Result<(), InvariantViolation> {
        for machine in &self.machines {
            let Some(api) = &machine.api else { continue };
            let mut api = lock(api);
            self.counts.merge(&std::mem::take(&mut api.counts));
            if let Some(violation) = api.violation.take() {
                return Err(violation);
            }
        }
        Ok(())
    }

    /// Makes the API of a machine's cluster silent for minutes.
    pub(in crate::sim) fn silence_api(&mut self, machine: usize) -> bool {
        let until = self.now + Duration::from_secs(self.random.between(20, 600));
        let Some(api) = &self.machines[machine].api else { return false };
        lock(api).silence(until);
        true
    }

    /// Starts a second executor of the machine's cluster. The first one sleeps meanwhile, or continues.
    pub(in crate::sim) fn start_second(&mut self, machine: usize) -> bool {
        let cluster = self.machines[machine].cluster;
        let second = self.machines.iter().position(|other| other.cluster == cluster && !other.is_first());
        let Some(second) = second.filter(|second| self.machines[*second].pods.is_none()) else {
            return false;
        };
        let lease = u64::try_from(self.script.lease.as_millis()).unwrap_or(1000);
        let until = self.now + Duration::from_millis(self.random.between(lease, 4 * lease));
        let sleeps = self.random.chance(700);
        let name =
            if self.random.chance(500) { format!("ex{cluster}") } else { format!("ex{cluster}-second") };
        self.machines[second].name = name;
        self.machines[second].down = self.now;
        if let Some(process) = self.machines[cluster].process.as_mut().filter(|_| sleeps) {
            process.paused = Some(until);
        }
        true
    }

    /// Ends a running pod, or makes it unready. Whether the machine's cluster has any.
    pub(in crate::sim) fn strike_pod(&mut self, machine: usize, change: ClusterChange) -> bool {
        self.machines[machine].api.as_ref().is_some_and(|api| lock(api).strike(change))
    }
}
