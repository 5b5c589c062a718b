//! Recording of targets, and starts of supervisors: by command, or again after a reboot.

use std::io;
use std::time::Duration;

use chancery_events::observation::IncarnationExit;
use chancery_events::protocol::{IncarnationSpec, ObjectSpec};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit};
use tokio::time::{sleep, timeout};

use super::super::guest::GuestRecord;
use super::super::incarnation_dir::{ProcessesFile, SpecFile, StartPhase};
use super::super::integrity::FileId;
use super::super::lock_holder::{self, LockHolder, StartPermit, SupervisorSocket};
use super::super::{ANSWER, reboot, unsupervised, volumes};
use super::IncarnationReconciler;
use crate::executor_store::ObjectStore as _;
use crate::orchestrator::WorkProgress;
use crate::reconcile::{self, ObjectTarget, ReadyHistory, ReconcileStep, TargetGoal};

/// Time limit of the check of volumes, which reads every process and incarnation of the machine.
const CHECK: Duration = Duration::from_secs(15);
/// Delay before a check is repeated, if a process could not be read or no guest runs on the accelerator.
const AGAIN: Duration = Duration::from_secs(2);

/// Permit for a concurrent start now, and the lock that keeps volumes from being destroyed.
type StartLeave = (OwnedSemaphorePermit, Option<OwnedMutexGuard<()>>);

impl IncarnationReconciler {
    /// Records the target, then carries out the step. Tombstones are left to `conclude`.
    pub(super) async fn take(
        &mut self,
        step: &ReconcileStep,
        order: ObjectTarget,
        spec: Option<ObjectSpec>,
    ) -> io::Result<WorkProgress> {
        if let (ReconcileStep::Start, Some(parent)) = (step, &self.shared.cgroup) {
            parent.warm_up();
        }
        let mut leave = None;
        if *step == ReconcileStep::Start {
            leave = self.leave_to_start(spec.as_ref()).await?;
            if leave.is_none() {
                tracing::warn!(incarnation = %self.incarnation, "cannot check volumes now, start put off");
                return Ok(WorkProgress::PutOff);
            }
        }
        self.write(step, order, spec.as_ref())?;
        self.shown = None;
        if let Some((permit, using)) = leave {
            drop(using);
            self.spawn(permit)?;
            return Ok(WorkProgress::Begun);
        }
        match (step, &mut self.hold) {
            (ReconcileStep::Stop(grace), LockHolder::Supervisor(socket)) => socket.stop(*grace),
            (ReconcileStep::Stop(grace), LockHolder::Unsupervised(unsupervised)) => unsupervised.end(*grace),
            (ReconcileStep::Reboot, LockHolder::Supervisor(socket)) => socket.reset(order.revision),
            (ReconcileStep::Reboot, LockHolder::Unsupervised(unsupervised)) => {
                if let Some(record) = &self.record {
                    unsupervised.reset(record, order.revision);
                }
            }
            // A pending restart is cancelled by `conclude_again`.
            (
                ReconcileStep::Stop(_) | ReconcileStep::Reboot,
                LockHolder::None
                | LockHolder::Unknown
                | LockHolder::Executor(_)
                | LockHolder::RestartPending(..),
            ) => {}
            // Processes are never changed.
            (
                ReconcileStep::Start
                | ReconcileStep::Adopt
                | ReconcileStep::WriteTombstone
                | ReconcileStep::ReportAgain
                | ReconcileStep::Refuse(..)
                | ReconcileStep::Change,
                _,
            ) => {}
        }
        Ok(WorkProgress::Begun)
    }

    /// Records the target.
    fn write(
        &mut self,
        step: &ReconcileStep,
        order: ObjectTarget,
        spec: Option<&ObjectSpec>,
    ) -> io::Result<()> {
        if let LockHolder::None = self.hold {
            self.incarnation_directory.make()?;
            self.look();
        }
        if *step == ReconcileStep::Start {
            // An earlier failure would be taken for the outcome of this target.
            self.incarnation_directory.remove::<ProcessesFile>()?;
            self.record = None;
        }
        let last = self.wanted.take();
        let (before, there) = last.map(|wanted| (wanted.order, wanted.spec)).unzip();
        let there = there.flatten().map(ObjectSpec::Incarnation);
        let spec = match reconcile::accepted(step, there, spec) {
            Some(ObjectSpec::Incarnation(spec)) => Some(spec),
            Some(ObjectSpec::Volume(_)) | None => None,
        };
        let wanted = self.as_configured(order, spec);
        let written = self.incarnation_directory.accept(before.as_ref(), &wanted);
        self.wanted = Some(wanted);
        if written.is_err() {
            // The state on disk counts.
            self.hold = LockHolder::Unknown;
        }
        written
    }

    /// Waits for permission to start. Mounted volumes are checked, and none of them is destroyed while the
    /// guard lives. Returns `None`, so that later targets are handled, if their disk does not answer, or a process
    /// that may use one.
    async fn leave_to_start(&self, spec: Option<&ObjectSpec>) -> io::Result<Option<StartLeave>> {
        self.check_accelerator().await?;
        let spec = spec.and_then(ObjectSpec::incarnation);
        let permit = self.shared.starts_of(spec).acquire_owned();
        let Some(spec) = spec.filter(|spec| volumes::mounts_any(spec)) else {
            return Ok(Some((permit.await.map_err(io::Error::other)?, None)));
        };
        let turn = async { (permit.await, self.shared.using.clone().lock_owned().await) };
        let Ok((permit, using)) = timeout(ANSWER, turn).await else { return Ok(None) };
        let (shared, spec, incarnation) = (self.shared.clone(), spec.clone(), self.incarnation);
        // A check that hangs keeps the guard after its timeout.
        let check = move || volumes::check(&shared, &spec, incarnation).map(|()| using);
        let checking = self.shared.volume_threads.spawn_blocking(check);
        let Ok(checked) = timeout(CHECK, checking).await else { return Ok(None) };
        let using = match checked.map_err(io::Error::other)? {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::warn!(%error, incarnation = %self.incarnation, "cannot check volumes, retrying");
                drop(permit);
                sleep(AGAIN).await;
                return Ok(None);
            }
            using => using?,
        };
        Ok(Some((permit.map_err(io::Error::other)?, Some(using))))
    }

    /// Checks that guests run on the accelerator, if the incarnations are virtual machines.
    async fn check_accelerator(&self) -> io::Result<()> {
        match &self.shared.qemu {
            Some(settings) => self.shared.accelerator.check(settings).await,
            None => Ok(()),
        }
    }

    /// Returns a specification with the configuration of this executor.
    pub(super) fn as_configured(&self, order: ObjectTarget, spec: Option<IncarnationSpec>) -> SpecFile {
        SpecFile {
            incarnation: self.incarnation,
            order,
            spec,
            program: self.shared.program.clone(),
            output: self.shared.output,
            cgroup: self.shared.cgroup.clone(),
            files: self.shared.files,
            qemu: self.shared.qemu.clone(),
            boot: self.shared.given_boot.clone(),
            volumes: self.shared.volumes(),
        }
    }

    /// Starts a supervisor and releases the lock, for which the supervisor waits.
    fn spawn(&mut self, permit: OwnedSemaphorePermit) -> io::Result<()> {
        let child = lock_holder::spawn_supervisor(&self.incarnation_directory, &self.shared.program)?;
        self.starting = true;
        let start = Some(StartPermit::new(permit));
        let socket = SupervisorSocket::new(self.incarnation_directory.clone(), Some(child), start);
        self.hold = LockHolder::Supervisor(Box::new(socket));
        Ok(())
    }

    /// Restarts what ran before a reboot. On failure, the incarnation has ended with the reboot. As long as no guest runs on the
    /// accelerator, the restart stays pending.
    pub(super) async fn start_again(&mut self, permit: OwnedSemaphorePermit) {
        if let Err(error) = self.check_accelerator().await {
            drop(permit);
            tracing::warn!(%error, incarnation = %self.incarnation, "cannot restart incarnation, retrying");
            return sleep(AGAIN).await;
        }
        let Err(error) = self.try_start_again(permit) else { return };
        if let Err(error) = self.stay_ended(Some(reboot::not_again(error))) {
            tracing::error!(%error, incarnation = %self.incarnation, "cannot record end: not restarted");
            // Checked again soon, and retried.
            self.hold = LockHolder::Unknown;
        }
    }

    fn try_start_again(&mut self, permit: OwnedSemaphorePermit) -> io::Result<()> {
        let (Some(wanted), Some(record)) = (&self.wanted, &self.record) else { return Ok(()) };
        // The program may have changed or moved. A guest that is booted again needs no reset.
        let order = ObjectTarget { is_reboot: false, ..wanted.order };
        let wanted = self.as_configured(order, wanted.spec.clone());
        if self.wanted.as_ref() != Some(&wanted) {
            self.incarnation_directory.write(&wanted)?;
        }
        // The record of the earlier boot starts nothing; this one starts processes once.
        let mut processes = record.processes.clone();
        for process in &mut processes {
            process.end = None;
            process.guest = process.guest.take().map(|guest| GuestRecord::begin(guest.name, None));
        }
        let directory = FileId::of(self.incarnation_directory.path())?;
        let record = ProcessesFile {
            directory,
            phase: StartPhase::Again,
            processes,
            ..ProcessesFile::begin(&self.shared.boot)?
        };
        self.incarnation_directory.write(&record)?;
        // The new processes were not ready yet.
        self.incarnation_directory.forget_ready()?;
        (self.before, self.ready_resets) = (ReadyHistory::NeverReady, 0);
        tracing::info!(incarnation = %self.incarnation, "incarnation restarting after reboot");
        (self.wanted, self.record) = (Some(wanted), Some(record));
        self.spawn(permit)
    }

    /// Records the end instead of a restart after a reboot, if the end is requested by now or the supervisor
    /// failed.
    pub(super) fn conclude_again(&mut self) -> io::Result<()> {
        let (LockHolder::RestartPending(..), Some(wanted)) = (&self.hold, &self.wanted) else {
            return Ok(());
        };
        if wanted.order.aim != TargetGoal::Up {
            return self.stay_ended(None);
        }
        if self.starting {
            self.stay_ended(Some(reboot::not_again(lock_holder::last_words(&self.incarnation_directory))))?;
        }
        Ok(())
    }

    /// Records the end that the reboot caused.
    fn stay_ended(&mut self, reason: Option<String>) -> io::Result<()> {
        let Some(record) = &mut self.record else { return Ok(()) };
        record.end_unseen();
        let exit = reason.map_or_else(|| record.exit(), |reason| IncarnationExit::Failed { reason });
        unsupervised::finish(&self.incarnation_directory, self.wanted.as_ref(), record, exit)?;
        self.starting = false;
        if let LockHolder::RestartPending(lock, _) = std::mem::replace(&mut self.hold, LockHolder::None) {
            self.hold = LockHolder::Executor(lock);
        }
        Ok(())
    }
}
