//! Destruction of a volume: only if unused, in order, and concurrently with other requests.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chancery_events::observation::RetryClass;
use chancery_events::protocol::VolumeSpec;
use tokio::task::JoinHandle;

use super::super::removal;
use super::directory::{VolumeDirectory, VolumeFile, VolumePhase};
use super::{VolumeReconciler, snapshot, users};
use crate::executor_store::VolumeLookup;
use crate::reconcile::{ObjectTarget, TargetGoal};
use crate::state_file;

/// Removal or snapshot in progress, which stops when this is dropped.
pub(super) struct VolumeJob {
    pub(super) stop: Arc<AtomicBool>,
    pub(super) job: JoinHandle<io::Result<()>>,
}

impl VolumeJob {
    /// Stops the job, and waits for its end.
    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // What the job did so far counts for nothing.
        let _ = (&mut self.job).await;
    }
}

impl Drop for VolumeJob {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl VolumeReconciler {
    pub(super) async fn destroy(&mut self, order: ObjectTarget, spec: Option<VolumeSpec>) -> io::Result<()> {
        let shared = self.shared.clone();
        let was = self.is;
        let _using = shared.using.lock().await;
        let phase = self.kept().map_or(VolumePhase::Accepted, |kept| kept.phase.clone());
        let kept = VolumeFile { volume: self.volume, order, spec, form: self.form(), phase };
        if !self.kept().is_some_and(|kept| kept.order.aim == TargetGoal::Removed) {
            if let Some((_, user)) =
                users::user(&shared, &BTreeMap::from([(self.volume, self.directory.clone())]), None)?
            {
                let message = format!("cannot destroy volume {}: in use by {user}", self.volume);
                self.refuse(order.revision, message, RetryClass::Retryable);
                return Ok(());
            }
            if let Err(error) = removal::refuse_mounts(self.directory.path()) {
                self.refuse(order.revision, error.to_string(), RetryClass::Retryable);
                return Ok(());
            }
        }
        shared.interrupt_copy(self.volume);
        // The disk may have been removed meanwhile.
        self.look();
        if self.is != was || !matches!(self.found, Some(VolumeLookup::Nothing | VolumeLookup::Ours(_))) {
            let message = format!("cannot destroy volume {}: replaced since the command", self.volume);
            self.refuse(order.revision, message, RetryClass::Retryable);
            return Ok(());
        }
        self.shown = None;
        self.keep(kept)?;
        self.begin_removal();
        Ok(())
    }

    /// Starts to remove everything that is left; the volume is deleted once that is done.
    pub(super) fn begin_removal(&mut self) {
        if self.removal.is_some() {
            return;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (directory, ours, stops) = (self.directory.clone(), self.is, stop.clone());
        let before = self.snapshot.take();
        let source = self.kept().and_then(|kept| kept.spec.as_ref()?.source);
        let volume = self.volume;
        let (shared, left) = (self.shared.clone(), self.directory.clone());
        let remove = move || {
            if directory.identity()? != ours {
                return Err(io::Error::other(format!(
                    "another directory is at {}",
                    directory.path().display()
                )));
            }
            empty(&directory, &stops)
        };
        let job = tokio::spawn(async move {
            if let Some(before) = before {
                before.end().await;
            }
            if let Some(source) = source {
                let cancel = move || snapshot::cancel_backup(&shared, &left, source);
                let cancelled = tokio::task::spawn_blocking(cancel).await.map_err(io::Error::other).flatten();
                if let Err(error) = cancelled {
                    tracing::warn!(%error, volume = %volume, "cannot end backup of deleted snapshot");
                }
            }
            tokio::task::spawn_blocking(remove).await.map_err(io::Error::other)?
        });
        self.removal = Some(VolumeJob { stop, job });
    }

    pub(super) fn removed(&mut self, removed: io::Result<()>) {
        let Some(kept) = self.kept().filter(|kept| kept.order.aim == TargetGoal::Removed).cloned() else {
            return;
        };
        let revision = kept.order.revision;
        let buried = removed.and_then(|()| self.keep(VolumeFile { phase: VolumePhase::Gone, ..kept }));
        if let Err(error) = buried {
            tracing::error!(%error, volume = %self.volume, "cannot destroy volume");
            self.refuse(revision, format!("cannot destroy volume: {error}"), RetryClass::Retryable);
        }
    }
}

/// Removes everything but the record. The content is moved away, durably, before any of it is removed. Stops
/// when `stop` is set; another call continues.
fn empty(directory: &VolumeDirectory, stop: &AtomicBool) -> io::Result<()> {
    let doomed = directory.file("doomed");
    removal::remove(&doomed, stop)?;
    removal::relocate(&directory.data(), &doomed)?;
    for name in ["doomed", "data.new", "used", "used.new"] {
        removal::remove(&directory.file(name), stop)?;
    }
    state_file::sync_directory(&doomed)
}
