//! Volumes: directories that outlive their users. A volume is the directory `volumes/<id>/`, reconciled by a
//! task of the executor.
//!
//! | file | holds |
//! |---|---|
//! | `volume.json`, `volume.copy` | highest target, spec and phase (`state_file`); makes the directory ours |
//! | `data` | the content; on an executor of virtual machines with a disk (`disk`) |
//! | `data.new` | the same while it is being made or copied, never used |
//! | `doomed` | the same while it is being destroyed |
//! | `used` | the usage; a hint, not synced |
//!
//! A directory without our record, or whose record names another id, is foreign: no command changes it.
//!
//! A crash at any point leaves one of these states, and repeating the command ends in one volume, or in none:
//!
//! | crash after | state found | result |
//! |---|---|---|
//! | making the directory | an empty directory | no volume until the command is repeated |
//! | recording the target | a record, no `data` | the repeated command makes `data` |
//! | making `data.new`, or a part of its disk | the same, and `data.new` | the repeated command makes `data` |
//! | renaming `data.new` | the same, and unused `data` | the repeated command uses `data` |
//! | recording that the volume was made | that record, and `data` | the volume exists |
//! | recording that it will be destroyed | that record, and `data` | the next executor continues |
//! | moving `data` away, removing some of it | that record, and `doomed` | the next executor continues |
//! | recording the deletion | the tombstone | the volume is deleted |
//!
//! *A volume is made only once.* A volume with that record and without `data` is lost, which is recorded and
//! reported as an end. A new empty directory instead would hide the loss from the owner of the data.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::RetryClass;
use chancery_events::protocol::{ObjectSpec, VolumeSpec};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod destroying;
mod directory;
mod disk;
mod mark;
mod snapshot;
mod usage;
mod users;

pub(super) use disk::disk;
pub use usage::VolumeUsage;
pub(super) use users::{check, mounts_any, place};

use super::integrity::FileId;
use super::reconciler::ReconcilerRequest;
use super::{ProcessOrchestrator, ProcessShared, leave};
use crate::executor_store::{DirectoryStore, ExecutorStore as _, VolumeLookup};
use crate::or_never;
use crate::orchestrator::{Orchestrator as _, WorkProgress};
use crate::reconcile::{self, ObjectTarget, ReconcileStep, StatusUpdate, TargetGoal};
use destroying::VolumeJob;
use directory::{VolumeDirectory, VolumeFile, VolumePhase};
use disk::ContentForm;

/// Interval of checks that a volume's content exists.
const LOOK: Duration = Duration::from_secs(2);

/// Returns the directory of all volumes.
pub(super) fn root(root: &Path) -> PathBuf {
    root.join("volumes")
}

/// Returns the volumes of earlier executor epochs.
pub(super) fn find(volumes: &Path) -> io::Result<Vec<VolumeId>> {
    let mut found = Vec::new();
    for (id, path) in DirectoryStore::at(volumes.to_owned()).list()? {
        match id {
            _ if mark::is_mark(&path) => {}
            Some(ObjectId::Volume(id)) => match VolumeDirectory::of(volumes, id).look() {
                Ok(VolumeLookup::Ours(_)) => found.push(id),
                // A crash came before the first record, or after the last.
                Ok(VolumeLookup::Nothing) => {}
                Ok(VolumeLookup::Foreign(why)) => leave(&path, &why),
                Err(error) => leave(&path, &error.to_string()),
            },
            Some(ObjectId::Incarnation(_)) | None => leave(&path, "name is not a volume id"),
        }
    }
    Ok(found)
}

/// Reconciler of one volume.
pub(super) struct VolumeReconciler {
    volume: VolumeId,
    directory: VolumeDirectory,
    shared: Arc<ProcessShared>,
    found: Option<VolumeLookup<VolumeFile>>,
    /// Directory that was found to be ours.
    is: Option<FileId>,
    /// Reason that the state cannot be determined.
    unknown: Option<String>,
    shown: Option<StatusUpdate>,
    removal: Option<VolumeJob>,
    snapshot: Option<VolumeJob>,
    measuring: Option<JoinHandle<io::Result<(VolumeUsage, Duration)>>>,
    measured_at: Instant,
    /// Whether the usage exceeds the capacity, which was logged.
    is_over: bool,
}

impl VolumeReconciler {
    pub(super) fn new(volume: VolumeId, shared: Arc<ProcessShared>) -> VolumeReconciler {
        VolumeReconciler {
            volume,
            directory: VolumeDirectory::of(&shared.volumes(), volume),
            shared,
            found: None,
            is: None,
            unknown: None,
            shown: None,
            removal: None,
            snapshot: None,
            measuring: None,
            measured_at: Instant::now(),
            is_over: false,
        }
    }

    /// Reconciles until the volume is purged or the orchestrator is dropped.
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
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                ask = asks.recv() => match ask {
                    None => return,
                    Some(_) if self.shared.check_open().is_err() => return,
                    Some(ReconcilerRequest::Order { order, spec, done }) => {
                        if let Err((message, retry)) = self.order(order, spec).await {
                            self.refuse(order.revision, message, retry);
                        }
                        self.settle();
                        let _ = done.send(WorkProgress::Begun);
                    }
                    Some(ReconcilerRequest::Forget(done)) => {
                        if self.forget().is_break() {
                            // Closed first: the caller must see that this task has ended.
                            asks.close();
                            let _ = done.send(WorkProgress::Begun);
                            return;
                        }
                        let _ = done.send(WorkProgress::Begun);
                    }
                },
                removed = over(self.removal.as_mut().map(|removal| &mut removal.job)) => {
                    self.removal = None;
                    self.removed(removed);
                    self.settle();
                }
                copied = over(self.snapshot.as_mut().map(|snapshot| &mut snapshot.job)) => {
                    self.snapshot = None;
                    self.copied(copied);
                    self.settle();
                }
                measured = over(self.measuring.as_mut()) => {
                    self.measuring = None;
                    self.measured(measured);
                }
                _ = looks.tick() => {
                    self.look();
                    self.measure();
                    self.settle();
                }
            }
        }
    }

    /// Returns the record, if the volume is ours.
    fn kept(&self) -> Option<&VolumeFile> {
        match &self.found {
            Some(VolumeLookup::Ours(kept)) => Some(kept),
            Some(VolumeLookup::Nothing | VolumeLookup::Foreign(_)) | None => None,
        }
    }

    /// Returns the form of the content: that of the record, or the one in which this executor makes content.
    fn form(&self) -> ContentForm {
        let configured = if self.shared.qemu.is_some() { ContentForm::Disk } else { ContentForm::Directory };
        self.kept().map_or(configured, |kept| kept.form)
    }

    /// Determines the state; continues a destruction from an earlier executor epoch.
    fn look(&mut self) {
        // The disk matters only if something is missing.
        if self.is_whole() {
            return;
        }
        let unknown = mark::missing(&self.shared.root).unwrap_or_else(|error| Some(error.to_string()));
        if let Some(why) = unknown {
            if self.unknown.is_none() {
                tracing::error!(why, volume = %self.volume, "cannot determine state of volume");
            }
            (self.found, self.unknown) = (None, Some(why));
            return;
        }
        self.unknown = None;
        // Another directory may have replaced ours.
        if self.kept().is_some()
            && !self.directory.identity().is_ok_and(|now| now.is_none() || now == self.is)
        {
            self.found = None;
        }
        if self.kept().is_none() {
            let was_foreign = matches!(self.found, Some(VolumeLookup::Foreign(_)));
            let found = self.directory.look().inspect_err(|error| {
                tracing::error!(%error, volume = %self.volume, "cannot read volume directory");
            });
            self.found = found.ok();
            self.is = self.directory.identity().ok().flatten();
            if let (Some(VolumeLookup::Foreign(why)), false) = (&self.found, was_foreign) {
                tracing::warn!(why, volume = %self.volume, "unknown volume directory left in place");
            }
            if let Some(kept) = self.kept() {
                let continues = kept.is_being_destroyed();
                if let Err(error) = self.directory.repair() {
                    tracing::warn!(%error, volume = %self.volume, "cannot repair record copies of volume");
                }
                if continues {
                    self.begin_removal();
                }
            }
        }
        self.find_lost();
    }

    /// Whether the volume exists with its content, in the directory that was found to be ours.
    fn is_whole(&self) -> bool {
        self.kept().is_some_and(VolumeFile::is_up)
            && self.is.is_some()
            && self.directory.identity().is_ok_and(|now| now == self.is)
            && self.directory.missing(self.form()).is_ok_and(|missing| missing.is_none())
    }

    /// Records that the volume is lost, or that a lost disk exists again. An error is not a loss.
    fn find_lost(&mut self) {
        let Some(kept) = self.kept().filter(|kept| kept.order.aim == TargetGoal::Up) else { return };
        let phase = match (&kept.phase, self.directory.missing(kept.form)) {
            (VolumePhase::Made, Ok(Some(missing))) => {
                let reason = format!("volume content is missing: {missing}");
                tracing::error!(reason, volume = %self.volume, "volume lost");
                VolumePhase::Lost { reason }
            }
            // No guest can create its disk. A directory might be an empty one, created by a process that uses its path.
            (VolumePhase::Lost { .. }, Ok(None)) if kept.has_whole_disk(&self.directory) => {
                tracing::info!(volume = %self.volume, "disk of lost volume found again");
                VolumePhase::Made
            }
            // An error shows nothing, and other phases stay.
            _ => return,
        };
        if let Err(error) = self.keep(VolumeFile { phase, ..kept.clone() }) {
            tracing::error!(%error, volume = %self.volume, "cannot record state of volume");
        }
    }

    /// Writes a new record. If that fails, the state on disk counts, and is checked again.
    fn keep(&mut self, kept: VolumeFile) -> io::Result<()> {
        self.shared.check_open()?;
        let last = self.kept().map(|kept| &kept.order);
        let written = self.directory.keep(last, &kept, self.is);
        self.found = written.is_ok().then_some(VolumeLookup::Ours(kept));
        self.is = written.as_ref().ok().copied();
        written.map(drop)
    }

    fn settle(&mut self) {
        let Some(kept) = self.kept() else { return };
        let update = reconcile::report(self.volume.into(), &kept.present());
        if self.shown.as_ref() == Some(&update) {
            return;
        }
        self.shared.board.show_update(update.clone());
        self.shown = Some(update);
    }

    fn refuse(&self, revision: u32, message: String, retry: RetryClass) {
        self.shared.board.refuse(self.volume.into(), revision, message, retry);
    }

    /// Carries out a target. The error is why it is refused, and whether a retry can help.
    async fn order(
        &mut self,
        order: ObjectTarget,
        spec: Option<ObjectSpec>,
    ) -> Result<(), (String, RetryClass)> {
        self.look();
        match &self.found {
            Some(VolumeLookup::Nothing | VolumeLookup::Ours(_)) => {}
            Some(VolumeLookup::Foreign(why)) => {
                return Err((format!("cannot use volume directory: {why}"), RetryClass::Retryable));
            }
            None => {
                let why = self.unknown.as_deref().unwrap_or("cannot determine state of volume");
                return Err((why.to_owned(), RetryClass::Retryable));
            }
        }
        let present = self.kept().map(VolumeFile::present);
        let step = reconcile::step(present.as_ref(), &order, spec.as_ref(), ProcessOrchestrator::CHANGES);
        let there = present.and_then(|present| present.spec);
        let spec = match reconcile::accepted(&step, there, spec.as_ref()) {
            Some(ObjectSpec::Volume(spec)) => Some(spec),
            Some(ObjectSpec::Incarnation(_)) | None => None,
        };
        let carried_out = match step {
            ReconcileStep::ReportAgain => {
                self.shown = None;
                Ok(())
            }
            ReconcileStep::Refuse(message, retry) => return Err((message.to_owned(), retry)),
            ReconcileStep::Start => self.make(order, spec),
            // A volume is never changed.
            ReconcileStep::Adopt | ReconcileStep::Change | ReconcileStep::Reboot => self.adopt(order, spec),
            ReconcileStep::WriteTombstone if order.aim == TargetGoal::Up => self.take_as_it_is(order, spec),
            ReconcileStep::Stop(_) | ReconcileStep::WriteTombstone => self.destroy(order, spec).await,
        };
        carried_out.map_err(|error| (format!("cannot carry out command: {error}"), RetryClass::Retryable))
    }

    fn make(&mut self, order: ObjectTarget, spec: Option<VolumeSpec>) -> io::Result<()> {
        let capacity = spec.as_ref().map_or(0, |spec| spec.capacity);
        let form = self.form();
        let source = spec.as_ref().and_then(|spec| spec.source);
        let kept = VolumeFile { volume: self.volume, order, spec, form, phase: VolumePhase::Accepted };
        self.shared.check_open()?;
        mark::make(&self.shared.root)?;
        self.shown = None;
        self.keep(kept.clone())?;
        if self.snapshot.is_some() {
            return Ok(());
        }
        if let Some(reason) = disk::unfit(capacity).filter(|_| form == ContentForm::Disk) {
            let message = format!("cannot create disk: {reason}");
            let phase = VolumePhase::Failed { message, retry_class: RetryClass::Permanent };
            return self.keep(VolumeFile { phase, ..kept });
        }
        if let Some(source) = source {
            self.begin_snapshot(source, capacity);
            return Ok(());
        }
        let free = usage::free(self.directory.path())?;
        if free < capacity {
            let message = format!("cannot create volume: {capacity} bytes requested, {free} free");
            let phase = VolumePhase::Failed { message, retry_class: RetryClass::Retryable };
            return self.keep(VolumeFile { phase, ..kept });
        }
        self.shared.check_open()?;
        self.directory.make_data(form, capacity)?;
        self.keep(VolumeFile { phase: VolumePhase::Made, ..kept })
    }

    /// Records a volume that was reported to exist: it still does, or is deleted. Nothing is removed for lack
    /// of a record.
    fn take_as_it_is(&mut self, order: ObjectTarget, spec: Option<VolumeSpec>) -> io::Result<()> {
        let phase = if self.directory.has_data()? { VolumePhase::Made } else { VolumePhase::Gone };
        self.shown = None;
        self.keep(VolumeFile { volume: self.volume, order, spec, form: self.form(), phase })
    }

    fn adopt(&mut self, order: ObjectTarget, spec: Option<VolumeSpec>) -> io::Result<()> {
        let Some(kept) = self.kept() else { return Ok(()) };
        let kept = VolumeFile { order, spec, ..kept.clone() };
        self.shown = None;
        self.keep(kept)
    }

    /// Deletes everything stored of an ended volume, and nothing that was ever used.
    fn forget(&mut self) -> ControlFlow<()> {
        match self.try_forget() {
            Ok(()) => {
                self.shared.board.clear(ObjectId::Volume(self.volume));
                ControlFlow::Break(())
            }
            Err(error) => {
                tracing::error!(%error, volume = %self.volume, "cannot purge volume");
                self.shown = None;
                self.settle();
                ControlFlow::Continue(())
            }
        }
    }

    fn try_forget(&self) -> io::Result<()> {
        let Some(kept) = self.kept() else {
            // A foreign directory is not known to the decider either.
            return Ok(());
        };
        let was_never_reported = matches!(kept.phase, VolumePhase::Accepted | VolumePhase::Failed { .. });
        if let Some(snapshot) = &self.snapshot {
            snapshot.stop.store(true, Ordering::Relaxed);
            return Err(io::Error::other("a snapshot is being made"));
        }
        if kept.is_being_destroyed()
            || kept.phase == VolumePhase::Made
            || (!was_never_reported && self.directory.has_data()?)
        {
            return Err(io::Error::other("volume still exists"));
        }
        if kept.spec.as_ref().is_some_and(|spec| spec.source.is_some()) {
            snapshot::discard(&self.directory)?;
        }
        // Fails if the directory is not empty.
        for name in ["data", "data.new"] {
            directory::remove_unused(&self.directory.file(name), kept.form)?;
        }
        self.directory.drop_record()
    }

    /// Starts to measure the volume, if that is due.
    fn measure(&mut self) {
        let is_up = self.kept().is_some_and(VolumeFile::is_up);
        if !is_up || self.measuring.is_some() || Instant::now() < self.measured_at {
            return;
        }
        let (data, one_at_a_time) = (self.directory.data(), self.shared.measures.clone());
        self.measuring = Some(tokio::spawn(async move {
            let _turn = one_at_a_time.acquire_owned().await.map_err(io::Error::other)?;
            tokio::task::spawn_blocking(move || usage::measure(&data)).await.map_err(io::Error::other)?
        }));
    }

    fn measured(&mut self, measured: io::Result<(VolumeUsage, Duration)>) {
        let used = match measured {
            Ok((used, pause)) => {
                self.measured_at = Instant::now() + pause;
                used
            }
            Err(error) => {
                tracing::warn!(%error, volume = %self.volume, "cannot measure usage of volume");
                self.measured_at = Instant::now() + usage::EVERY;
                return;
            }
        };
        let Some(kept) = self.kept().filter(|kept| kept.is_up()) else { return };
        let (bytes, capacity) = (used.bytes, kept.spec.as_ref().map_or(u64::MAX, |spec| spec.capacity));
        if let Err(error) = used.note(&self.directory) {
            tracing::warn!(%error, volume = %self.volume, "cannot record usage of volume");
        }
        // A disk cannot grow; a full one has its capacity, and its directory.
        let is_over = bytes > capacity && kept.form == ContentForm::Directory;
        if is_over && !self.is_over {
            tracing::warn!(volume = %self.volume, bytes, capacity, "volume usage exceeds its capacity");
        }
        self.is_over = is_over;
    }
}

/// Waits for the concurrent job, if there is one.
async fn over<T>(job: Option<&mut JoinHandle<io::Result<T>>>) -> io::Result<T> {
    or_never(job).await.map_err(io::Error::other)?
}
