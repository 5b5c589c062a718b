//! Snapshots: volumes that are created with the content of another volume, as of one moment.
//!
//! | use of the source | content |
//! |---|---|
//! | by the guest of a running QEMU | a backup by QEMU: what a power cut at that moment would have left on the disk |
//! | by nothing | a copy, which is discarded if anything uses the source before it is complete |
//! | by anything else | none: the attempt fails |
//!
//! The content is made in `data.new`, and gets its name once it is complete and on disk. So an interruption at any point leaves no
//! volume or a complete one.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chancery_events::id::VolumeId;
use chancery_events::observation::RetryClass;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit};
use tokio::time::timeout;

use super::super::guest;
use super::super::incarnation_dir::{IncarnationDirectory, ProcessesFile, StartedProcess};
use super::super::integrity::FileId;
use super::super::{ProcessShared, lock, removal};
use super::VolumeReconciler;
use super::destroying::VolumeJob;
use super::directory::{VolumeDirectory, VolumeFile, VolumePhase};
use super::disk::{self, ContentForm};
use super::usage;
use super::users::{self, VolumeUser};
use crate::executor_store::ObjectStore as _;
use crate::reconcile::TargetGoal;
use crate::state_file::FileAccess;

/// Time from one check of a copying program to the next.
const CHECK: Duration = Duration::from_millis(20);
/// Time from one check whether the snapshot was stopped to the next, while it waits for its turn.
const TURN: Duration = Duration::from_millis(200);
/// Maximum size of an error of a copying program, in bytes.
const ERROR: usize = 1024;

/// New content of a volume.
struct NewContent {
    volume: VolumeDirectory,
    source: VolumeId,
    form: ContentForm,
    /// Capacity of the volume, in bytes.
    capacity: u64,
    shared: Arc<ProcessShared>,
    stop: Arc<AtomicBool>,
}

impl VolumeReconciler {
    /// Starts to make the content from that of the source.
    pub(super) fn begin_snapshot(&mut self, source: VolumeId, capacity: u64) {
        let stop = Arc::new(AtomicBool::new(false));
        let (volume, shared) = (self.directory.clone(), self.shared.clone());
        let content = NewContent { volume, source, form: self.form(), capacity, shared, stop: stop.clone() };
        let job = tokio::spawn(async move {
            let (threads, content) = (content.shared.volume_threads.clone(), Arc::new(content));
            let _turn = content.turn().await?;
            // Without the lock of users: there may be much to remove.
            let prepared = content.clone();
            let is_complete = threads.spawn_blocking(move || prepared.prepare());
            if is_complete.await.map_err(io::Error::other)?? {
                return Ok(());
            }
            let using = content.shared.using.clone().lock_owned().await;
            threads.spawn_blocking(move || content.make(using)).await.map_err(io::Error::other)?
        });
        self.snapshot = Some(VolumeJob { stop, job });
    }

    /// Records the result of a snapshot.
    pub(super) fn copied(&mut self, copied: io::Result<()>) {
        let Some(kept) = self.kept().filter(|kept| kept.order.aim == TargetGoal::Up).cloned() else { return };
        let phase = match copied {
            Ok(()) => VolumePhase::Made,
            Err(error) => {
                tracing::warn!(%error, volume = %self.volume, "cannot create snapshot");
                let is_permanent = error.kind() == io::ErrorKind::InvalidInput;
                VolumePhase::Failed {
                    message: format!("cannot create snapshot: {error}"),
                    retry_class: if is_permanent { RetryClass::Permanent } else { RetryClass::Retryable },
                }
            }
        };
        self.shown = None;
        if let Err(error) = self.keep(VolumeFile { phase, ..kept }) {
            tracing::error!(%error, volume = %self.volume, "cannot record result of snapshot");
        }
    }
}

impl NewContent {
    /// Waits for the permit to make a snapshot.
    async fn turn(&self) -> io::Result<OwnedSemaphorePermit> {
        loop {
            self.check_stop()?;
            if let Ok(turn) = timeout(TURN, self.shared.snapshots.clone().acquire_owned()).await {
                return turn.map_err(io::Error::other);
            }
        }
    }

    /// Fails if the snapshot was stopped: it is deleted, or its source is in use.
    fn check_stop(&self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other(format!("volume {} is in use since the copy started", self.source)));
        }
        Ok(())
    }

    /// Removes what an earlier attempt has left. Returns whether the content is complete: it was not recorded.
    fn prepare(&self) -> io::Result<bool> {
        self.check_stop()?;
        self.shared.check_open()?;
        if self.volume.has_data()? {
            let missing = self.volume.missing(self.form)?;
            return missing.map_or(Ok(true), |missing| Err(io::Error::other(missing)));
        }
        removal::remove(&self.volume.file("data.new"), &self.stop)?;
        Ok(false)
    }

    /// Makes the content. The lock of users is held at first.
    fn make(&self, using: OwnedMutexGuard<()>) -> io::Result<()> {
        self.check_stop()?;
        let new = self.volume.begin_data()?;
        let place = FileId::of(&new)?;
        let made = self.copy(&new, using).and_then(|()| self.publish(&new, place));
        self.set_copied(None);
        // Another executor of this process may have made a directory of its own there.
        if made.is_err() && self.shared.check_open().is_ok() && FileId::of(&new)? == place {
            discard(&self.volume)?;
        }
        made
    }

    /// Gives the new content its name, unless its source has been in use since the copy started.
    fn publish(&self, new: &Path, place: Option<FileId>) -> io::Result<()> {
        let _using = self.shared.using.blocking_lock();
        self.check_stop()?;
        self.shared.check_open()?;
        if FileId::of(new)? != place {
            return Err(io::Error::other(format!("another directory is at {}", new.display())));
        }
        if self.form == ContentForm::Disk && !disk::is_whole(new, self.capacity) {
            return Err(io::Error::other(format!("the copy is no disk of {} bytes", self.capacity)));
        }
        self.volume.publish_data()
    }

    fn copy(&self, new: &Path, using: OwnedMutexGuard<()>) -> io::Result<()> {
        let (source, kept) = users::usable(&self.shared.volumes(), self.source).map_err(io::Error::other)?;
        if kept.form != self.form {
            let forms = |form| if form == ContentForm::Disk { "a disk" } else { "a directory" };
            let message = format!("volume {} is {}, not {}", self.source, forms(kept.form), forms(self.form));
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        match users::user(&self.shared, &BTreeMap::from([(self.source, source.clone())]), None)? {
            None => {
                removal::refuse_mounts(source.path())?;
                self.set_copied(Some(self.source));
                drop(using);
                let (used, _) = usage::measure(&source.data())?;
                let (free, needed) = (usage::free(new)?, used.bytes.max(self.capacity));
                if free <= needed {
                    return Err(io::Error::other(format!("{needed} bytes needed, {free} free")));
                }
                self.run_copy(&source.data(), new)
            }
            Some((_, VolumeUser::Incarnation(_, user))) if self.form == ContentForm::Disk => {
                drop(using);
                self.back_up(&source, &user, new)
            }
            Some((_, user)) => Err(io::Error::other(format!("volume {} is in use by {user}", self.source))),
        }
    }

    fn set_copied(&self, source: Option<VolumeId>) {
        *lock(&self.shared.copied) = source.map(|source| (source, self.stop.clone()));
    }

    /// Copies a tree with its modes, owners, links, holes and attributes.
    fn run_copy(&self, from: &Path, new: &Path) -> io::Result<()> {
        // The target is the working directory. A program that outlives this one finds it removed, and writes nothing to the directory
        // that a later attempt has made.
        let mut command = Command::new("cp");
        command.args(["-a", "--"]).arg(from.join(".")).arg(".").current_dir(new).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| io::Error::other(format!("cannot start cp: {error}")))?;
        let finished = self.await_copy(&mut child);
        if finished.is_err() {
            child.kill()?;
            child.wait()?;
        }
        finished?;
        rustix::fs::syncfs(std::fs::File::open(new)?)?;
        Ok(())
    }

    fn await_copy(&self, child: &mut Child) -> io::Result<()> {
        let mut errors = child.stderr.take().ok_or_else(|| io::Error::other("no errors of cp"))?;
        rustix::io::ioctl_fionbio(&errors, true)?;
        let (mut text, mut chunk) = (Vec::new(), [0; ERROR]);
        loop {
            let ended = child.try_wait()?;
            loop {
                match errors.read(&mut chunk) {
                    Ok(0) => break,
                    // The first errors: what is not read would stop the program.
                    Ok(count) => text.extend_from_slice(&chunk[..count.min(ERROR - text.len())]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            match ended {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let text = String::from_utf8_lossy(&text);
                    let first = text.lines().next().unwrap_or_default();
                    return Err(io::Error::other(format!("cp failed with {status}: {first}")));
                }
                None => {
                    self.check_stop()?;
                    std::thread::sleep(CHECK);
                }
            }
        }
    }

    /// Copies the disk of a running guest.
    fn back_up(&self, source: &VolumeDirectory, user: &IncarnationDirectory, new: &Path) -> io::Result<()> {
        disk::create(new, self.capacity)?;
        let (from, to) = (disk::path(&source.data()), disk::path(new));
        for (directory, name) in guests(user)? {
            if guest::back_up(&directory, &name, &from, &to, &self.stop)? {
                return Ok(());
            }
        }
        Err(io::Error::other(format!("no guest of the user of volume {} has its disk", self.source)))
    }
}

/// Returns the directories and names of the guests of an incarnation that have not ended.
fn guests(user: &IncarnationDirectory) -> io::Result<Vec<(PathBuf, String)>> {
    let record = user.read::<ProcessesFile>(FileAccess::Observer)?;
    let processes = record.iter().flat_map(|record| &record.processes);
    let living = processes.filter(|process| process.end.is_none());
    let guest = |process: &StartedProcess| {
        Some((user.path().join(process.name()), process.guest.as_ref()?.name.clone()))
    };
    Ok(living.filter_map(guest).collect())
}

/// Ends a backup that an earlier executor has started for the volume: QEMU would keep the space of the removed file.
pub(super) fn cancel_backup(
    shared: &ProcessShared,
    volume: &VolumeDirectory,
    source: VolumeId,
) -> io::Result<()> {
    let copy = disk::path(&volume.file("data.new"));
    if !copy.try_exists()? {
        return Ok(());
    }
    let directory = VolumeDirectory::of(&shared.volumes(), source);
    let user = users::user(shared, &BTreeMap::from([(source, directory)]), None)?;
    let Some((_, VolumeUser::Incarnation(_, user))) = user else { return Ok(()) };
    for (directory, name) in guests(&user)? {
        guest::cancel_backup(&directory, &name, &copy)?;
    }
    Ok(())
}

/// Removes content that is not complete.
pub(super) fn discard(volume: &VolumeDirectory) -> io::Result<()> {
    removal::remove_directory(&volume.file("data.new"))
}
