//! Reconciler of one incarnation: a task that handles targets one after the other, follows the supervisor or
//! the unsupervised processes, and publishes the state. [`crate::reconcile`] makes all decisions.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::IncarnationId;
use chancery_events::observation::{ObjectReport, ObservedState, ProcessStatus, RetryClass};
use chancery_events::protocol::ObjectSpec;
use tokio::sync::{mpsc, oneshot};

use super::guest::GuestRecord;
use super::incarnation_dir::{
    IncarnationDirectory, ProcessesFile, RecordOrigin, SpecFile, StartPhase, present,
};
use super::integrity::{DirectoryLoss, DirectoryWatch, FileId};
use super::lock_holder::{self, HolderEvent, LockHolder, SupervisorSocket};
use super::probe::ProbeSet;
use super::proof::RemainingProcesses;
use super::removal::{RETRY, RemovalDebt};
use super::unsupervised::UnsupervisedProcesses;
use super::{ProcessOrchestrator, ProcessShared, reboot};
use crate::executor_store::{ObjectStore as _, TombstoneFile};
use crate::or_never;
use crate::orchestrator::{Orchestrator as _, WorkProgress};
use crate::reconcile::{
    self, KnownObject, ObjectState, ObjectTarget, ReadyHistory, ReconcileStep, StatusUpdate, TargetGoal,
};
use crate::state_file::{FileAccess, LockAttempt};

mod directory_lost;
mod forgetting;
mod starting;
mod unproved;

/// Time a finished supervisor has to release its lock.
const SUPERVISOR_LEAVES: Duration = Duration::from_secs(5);

/// Request to a reconciler, answered once the work has started.
#[derive(Debug)]
pub(super) enum ReconcilerRequest {
    Order { order: ObjectTarget, spec: Option<ObjectSpec>, done: oneshot::Sender<WorkProgress> },
    Forget(oneshot::Sender<WorkProgress>),
}

/// Reconciler of one incarnation.
pub(super) struct IncarnationReconciler {
    incarnation: IncarnationId,
    incarnation_directory: IncarnationDirectory,
    shared: Arc<ProcessShared>,
    hold: LockHolder,
    wanted: Option<SpecFile>,
    tombstone: Option<TombstoneFile>,
    record: Option<ProcessesFile>,
    before: ReadyHistory,
    /// Number of resets of guests when the incarnation was last ready.
    ready_resets: u32,
    probes: Option<ProbeSet>,
    /// Whether a supervisor of this executor is starting, and nothing was recorded yet.
    starting: bool,
    shown: Option<StatusUpdate>,
    /// Watch of the directory, while anything runs.
    watch: Option<DirectoryWatch>,
    /// Loss of the directory of a running incarnation, until its end is recorded in a new one.
    lost: Option<DirectoryLoss>,
    /// Reason that the state cannot be determined.
    unknown: Option<String>,
    /// Reason that the directory of a purged incarnation cannot be removed yet.
    debt: Option<RemovalDebt>,
    /// Reason that the end cannot be proved, as logged.
    doubt: Option<String>,
    /// Revision and attempt of the last target that was answered with `doubt`.
    doubted: Option<(u32, u32)>,
}

impl IncarnationReconciler {
    /// Creates the reconciler of a directory, or of a running incarnation whose directory was lost.
    pub(super) fn new(
        incarnation: IncarnationId,
        directory: IncarnationDirectory,
        shared: Arc<ProcessShared>,
        lost: Option<DirectoryLoss>,
    ) -> IncarnationReconciler {
        IncarnationReconciler {
            incarnation,
            incarnation_directory: directory,
            shared,
            hold: LockHolder::Unknown,
            wanted: None,
            tombstone: None,
            record: None,
            before: ReadyHistory::NeverReady,
            ready_resets: 0,
            probes: None,
            starting: false,
            shown: None,
            watch: None,
            lost,
            unknown: None,
            debt: None,
            doubt: None,
            doubted: None,
        }
    }

    /// Reconciles until the incarnation is purged or the orchestrator is dropped.
    pub(super) async fn tend(
        mut self,
        mut asks: mpsc::Receiver<ReconcilerRequest>,
        settled: Option<oneshot::Sender<()>>,
    ) {
        self.look();
        self.settle();
        if let Some(settled) = settled {
            let _ = settled.send(());
        }
        loop {
            tokio::select! {
                biased;
                ask = asks.recv() => match ask {
                    None => return,
                    Some(ReconcilerRequest::Order { order, spec, done }) => {
                        let progress = self.order(order, spec).await;
                        self.settle();
                        let _ = done.send(progress);
                    }
                    Some(ReconcilerRequest::Forget(done)) => {
                        self.catch_up().await;
                        let is_over = self.forget().is_break();
                        if is_over {
                            // Closed first: the caller must see that this reconciler has ended.
                            asks.close();
                        }
                        let _ = done.send(WorkProgress::Begun);
                        if is_over {
                            return;
                        }
                    }
                },
                () = tokio::time::sleep(RETRY), if self.debt.is_some() => {
                    if self.forget().is_break() {
                        return;
                    }
                }
                event = self.hold.next() => {
                    self.handle_event(event).await;
                    self.settle();
                }
                seen = or_never(self.watch.as_ref().map(DirectoryWatch::next)) => {
                    self.look_after_directory(seen);
                    self.settle();
                }
                () = or_never(self.probes.as_mut().map(ProbeSet::changed)) => self.settle(),
            }
        }
    }

    /// Determines the lock holder, and reads the records.
    fn look(&mut self) {
        self.hold = match self.try_look() {
            Ok(hold) => {
                self.unknown = None;
                hold
            }
            Err(error) => {
                let why = error.to_string();
                if self.unknown.as_ref() != Some(&why) {
                    tracing::error!(%error, incarnation = %self.incarnation, "cannot inspect incarnation");
                }
                self.unknown = Some(why);
                LockHolder::Unknown
            }
        };
    }

    fn try_look(&mut self) -> io::Result<LockHolder> {
        if self.lost.is_none() {
            self.lost = self.loss_of_directory()?;
        }
        if self.lost.is_some() {
            return self.look_without_directory();
        }
        if !self.incarnation_directory.path().try_exists()? {
            return Ok(LockHolder::None);
        }
        self.read_wanted()?;
        let lock = self.incarnation_directory.lock()?;
        // After locking: no other process writes the record if the lock is ours.
        self.tombstone = self.incarnation_directory.read::<TombstoneFile>(FileAccess::Owner)?;
        // Nothing that can fail comes between the record and the check of its origin.
        let place = FileId::of(self.incarnation_directory.path())?;
        self.read_record(&lock)?;
        let origin = self.origin(place)?;
        (self.before, self.ready_resets) = self.incarnation_directory.was_ready();
        let aim = self.wanted.as_ref().map(|wanted| wanted.order);
        let boot = &self.shared.boot;
        Ok(match (lock, &mut self.record) {
            (LockAttempt::Acquired(lock), Some(record))
                if origin == RecordOrigin::Here
                    && reboot::must_restart(self.wanted.as_ref(), self.tombstone, record, boot) =>
            {
                let spec = self.wanted.as_ref().and_then(|wanted| wanted.spec.as_ref());
                LockHolder::RestartPending(lock, self.shared.starts_of(spec))
            }
            (LockAttempt::Acquired(lock), Some(record)) if !record.is_over() => {
                let directory = self.incarnation_directory.clone();
                let mut unsupervised =
                    UnsupervisedProcesses::adopt(Some(lock), directory, self.wanted.as_ref(), record, boot)?;
                let grace = aim.map(|order| order.grace).unwrap_or_default();
                if aim.is_some_and(|order| order.aim != TargetGoal::Up)
                    || record.processes.iter().any(|p| p.end.is_some())
                {
                    unsupervised.end(grace);
                }
                if let Some(order) = aim.filter(|order| order.is_reboot) {
                    unsupervised.reset(record, order.revision);
                }
                LockHolder::Unsupervised(Box::new(unsupervised))
            }
            (LockAttempt::Acquired(lock), _) => LockHolder::Executor(lock),
            (LockAttempt::HeldElsewhere, _) => {
                let mut socket = SupervisorSocket::new(self.incarnation_directory.clone(), None, None);
                // An earlier executor epoch may have ended before its request.
                if let Some(order) = aim.filter(|order| order.aim != TargetGoal::Up) {
                    socket.stop(order.grace);
                }
                if let Some(revision) = self.pending_reset() {
                    socket.reset(revision);
                }
                LockHolder::Supervisor(Box::new(socket))
            }
        })
    }

    /// Returns the origin of the recorded processes. Fails while processes of another directory may run:
    /// their state is unknown.
    fn origin(&mut self, place: Option<FileId>) -> io::Result<RecordOrigin> {
        let Some(record) = self.record.as_ref().filter(|record| !record.is_over()) else {
            return Ok(RecordOrigin::Here);
        };
        let origin = record.origin(place, &self.shared.boot);
        if origin == RecordOrigin::Elsewhere {
            // No later step may take them for ours.
            self.record = None;
            return Err(io::Error::other(
                "its directory is a copy: recorded processes may run, and belong to the original",
            ));
        }
        Ok(origin)
    }

    async fn handle_event(&mut self, event: HolderEvent) {
        match event {
            HolderEvent::Record(record) => {
                self.starting = false;
                self.record = Some(*record);
            }
            HolderEvent::Look => self.look(),
            HolderEvent::Silent => self.end_silent_supervisor(),
            HolderEvent::Turn(permit) => self.start_again(permit).await,
            HolderEvent::Orphan(dead) => {
                let (LockHolder::Unsupervised(unsupervised), Some(record)) =
                    (&mut self.hold, &mut self.record)
                else {
                    return;
                };
                let grace = self.wanted.as_ref().map(|wanted| wanted.order.grace).unwrap_or_default();
                unsupervised.go_on(dead, record, grace);
            }
        }
    }

    /// Returns the known state.
    fn present(&self) -> Option<KnownObject> {
        let record = self.record.as_ref();
        let guest = |number: usize| record?.processes.get(number)?.guest.as_ref();
        let is_guest = |number: usize| guest(number).is_some();
        let awaits = |number: usize| {
            self.pending_reset().is_some() || guest(number).is_some_and(GuestRecord::awaits_line)
        };
        let probed = |number| match self.probes.as_ref().map(|probes| probes.status(number)) {
            Some(ProcessStatus::Ready) if !awaits(number) => ProcessStatus::Ready,
            _ if self.is_rebooting() && is_guest(number) => ProcessStatus::Rebooting,
            // The guest is about to be reset, or has not written the awaited line.
            Some(ProcessStatus::Ready) => ProcessStatus::Starting,
            Some(status) => status,
            None => ProcessStatus::Starting,
        };
        let mut present = present(self.wanted.as_ref()?, self.tombstone, record, self.before, probed);
        if let LockHolder::RestartPending(..) = self.hold {
            // The recorded processes ran before the reboot.
            present.state = ObjectState::Starting { processes: Vec::new() };
        }
        if matches!(&self.hold, LockHolder::Unsupervised(unsupervised) if unsupervised.is_elsewhere()) {
            present.state.lose_sight();
        }
        // A supervisor may send a record at any moment.
        if present.state == ObjectState::Accepted && matches!(self.hold, LockHolder::Supervisor(_)) {
            present.state = ObjectState::Starting { processes: Vec::new() };
        }
        Some(present)
    }

    /// Whether a guest was reset since the incarnation was last ready, or must be reset.
    fn is_rebooting(&self) -> bool {
        let resets = self.record.as_ref().map_or(0, ProcessesFile::resets);
        self.before == ReadyHistory::Ready && (resets > self.ready_resets || self.pending_reset().is_some())
    }

    /// Revision of the target for which the guests must be reset, and were not yet.
    fn pending_reset(&self) -> Option<u32> {
        let order = self.wanted.as_ref()?.order;
        let is_reset = self.record.as_ref()?.is_reset_for(order.revision);
        (order.is_reboot && !is_reset).then_some(order.revision)
    }

    /// Updates everything that depends on the state.
    fn settle(&mut self) {
        self.conclude();
        let is_here = match &self.hold {
            LockHolder::RestartPending(..) => false,
            LockHolder::Unsupervised(unsupervised) => !unsupervised.is_elsewhere(),
            LockHolder::None | LockHolder::Unknown | LockHolder::Executor(_) | LockHolder::Supervisor(_) => {
                true
            }
        };
        let up = self.record.as_ref().filter(|record| record.phase == StartPhase::Started && is_here);
        match (up, self.wanted.as_ref().and_then(|wanted| wanted.spec.as_ref())) {
            (Some(record), Some(spec)) => {
                // Results of probes from before a reset do not count after it.
                let probes = self.probes.take().filter(|probes| probes.resets == record.resets());
                let before = if self.is_rebooting() { ReadyHistory::NeverReady } else { self.before };
                self.probes = Some(probes.unwrap_or_else(|| ProbeSet::begin(spec, record, before)));
            }
            _ => self.probes = None,
        }
        self.keep_watch();
        let Some(present) = self.present() else { return };
        let update = reconcile::report(self.incarnation.into(), &present);
        if let StatusUpdate::Change(ObjectReport { observed: ObservedState::Ready { .. }, .. }) = &update
            && (self.before == ReadyHistory::NeverReady || self.is_rebooting())
        {
            self.before = ReadyHistory::Ready;
            self.ready_resets = self.record.as_ref().map_or(0, ProcessesFile::resets);
            self.incarnation_directory.note_ready(self.ready_resets);
        }
        if self.before == ReadyHistory::Ready
            && !self.is_rebooting()
            && let Some(probes) = &mut self.probes
        {
            probes.watch_liveness();
        }
        // An undetermined state is not reported: the incarnation may run.
        if self.shown.as_ref() != Some(&update) && !matches!(self.hold, LockHolder::Unknown) {
            self.show(update);
        }
    }

    fn show(&mut self, update: StatusUpdate) {
        self.shared.board.show_update(update.clone());
        self.shown = Some(update);
    }

    /// Records ends and absences that are proved.
    fn conclude(&mut self) {
        if let Err(error) = self.try_conclude() {
            tracing::error!(%error, incarnation = %self.incarnation, "cannot record end of incarnation");
            // Checked again soon, and recorded then.
            self.hold = LockHolder::Unknown;
        }
        if self.starting && matches!(self.hold, LockHolder::Executor(_) | LockHolder::None) {
            self.starting = false;
            if self.record.is_none() {
                let revision = self.wanted.as_ref().map_or(0, |wanted| wanted.order.revision);
                let message = lock_holder::last_words(&self.incarnation_directory);
                self.refuse(revision, message, RetryClass::Retryable);
            }
        }
    }

    fn try_conclude(&mut self) -> io::Result<()> {
        let rest = match &mut self.hold {
            LockHolder::Unsupervised(unsupervised) => Some(unsupervised.rest()),
            LockHolder::None
            | LockHolder::Unknown
            | LockHolder::Executor(_)
            | LockHolder::RestartPending(..)
            | LockHolder::Supervisor(_) => None,
        };
        match &rest {
            Some(RemainingProcesses::Nothing) => self.end_orphans()?,
            Some(RemainingProcesses::Unknown(why)) => self.doubt_end(why),
            Some(RemainingProcesses::Something) | None => self.doubt = None,
        }
        self.conclude_lost(rest.as_ref())?;
        self.conclude_again()?;
        let (LockHolder::Executor(_), Some(wanted)) = (&self.hold, &self.wanted) else { return Ok(()) };
        let has_run =
            self.record.as_ref().is_some_and(|record| !matches!(record.phase, StartPhase::Failed { .. }));
        let kept = has_run && wanted.order.aim != TargetGoal::Removed;
        let buried = self.tombstone.is_some_and(|tombstone| tombstone.covers(&wanted.order));
        let over = wanted.order.aim != TargetGoal::Up || (self.record.is_none() && !wanted.order.may_start());
        if over && !kept && !buried {
            self.tombstone = Some(self.incarnation_directory.bury(wanted.order.revision)?);
            self.starting = false;
        }
        Ok(())
    }

    /// Waits for the lock, if everything has ended but the lock is still held, as by a supervisor that
    /// reports its end.
    async fn catch_up(&mut self) {
        let freed = async {
            while matches!(self.hold, LockHolder::Supervisor(_))
                && self.present().is_some_and(|present| present.state.is_over())
            {
                let event = self.hold.next().await;
                self.handle_event(event).await;
                self.settle();
            }
        };
        if tokio::time::timeout(SUPERVISOR_LEAVES, freed).await.is_err() {
            tracing::warn!(incarnation = %self.incarnation, "finished supervisor has not released its lock");
        }
    }

    async fn order(&mut self, order: ObjectTarget, spec: Option<ObjectSpec>) -> WorkProgress {
        self.try_order(order, spec).await.unwrap_or_else(|(message, retry)| {
            self.refuse(order.revision, message, retry);
            WorkProgress::Begun
        })
    }

    /// Carries out a target. The error is why it is refused, and whether a retry can help.
    async fn try_order(
        &mut self,
        order: ObjectTarget,
        spec: Option<ObjectSpec>,
    ) -> Result<WorkProgress, (String, RetryClass)> {
        // The decider knows the incarnation after all.
        self.debt = None;
        self.catch_up().await;
        if let LockHolder::Unknown = self.hold {
            self.look();
        }
        if let LockHolder::Unknown = self.hold {
            let why = self.unknown.as_deref().unwrap_or("cannot record its end");
            return Err((format!("cannot determine state of incarnation: {why}"), RetryClass::Retryable));
        }
        if let Some(loss) = self.lost {
            return Err((format!("{loss}, incarnation is being ended"), RetryClass::Retryable));
        }
        let present = self.present();
        let unrecorded = matches!(self.hold, LockHolder::Supervisor(_)) && self.record.is_none();
        // The target fails if the starting supervisor starts nothing.
        self.starting |= unrecorded && order.may_start();
        match reconcile::step(present.as_ref(), &order, spec.as_ref(), ProcessOrchestrator::CHANGES) {
            ReconcileStep::ReportAgain => {
                self.shown = None;
                Ok(WorkProgress::Begun)
            }
            ReconcileStep::Refuse(message, retry) => Err((message.to_owned(), retry)),
            ReconcileStep::Reboot if !self.record.as_ref().is_some_and(ProcessesFile::has_guests) => {
                Err((reconcile::NO_VIRTUAL_MACHINE.to_owned(), RetryClass::Permanent))
            }
            step => self
                .take(&step, order, spec)
                .await
                .map_err(|error| (format!("cannot carry out command: {error}"), RetryClass::Retryable)),
        }
    }

    fn refuse(&self, revision: u32, message: String, retry: RetryClass) {
        self.shared.board.refuse(self.incarnation.into(), revision, message, retry);
    }
}
