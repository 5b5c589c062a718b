//! Outside changes to processes and directories: their detection and consequences.
//!
//! | change | detected by | after | consequence |
//! |---|---|---|---|
//! | a process is killed | its supervisor (parent) | no delay | its siblings are ended; its status is known |
//! | an unsupervised process is killed | executor, by a descriptor | no delay | as above; status unknown |
//! | the supervisor is killed | executor, by the connection | no delay | its processes are adopted |
//! | directory or one above removed, renamed, replaced | executor, else supervisor | 0.5 s, else 5 s | (a) |
//! | a record is removed or altered | the same; overwritten in place: executor | the same; 1 s | (b) |
//! | `supervisor.lock` or `supervisor.sock` is removed | the same | the same | the supervisor makes it again |
//! | directory removed without supervisor, executor | next executor, by environments | its start | (a) |
//!
//! (a) Everything is killed; the incarnation ends with that reason.
//!
//! (b) The record is written again, from its other copy or from memory.
//!
//! **Nothing may run without its directory.** A later executor could neither adopt the processes nor prove
//! their end. The decider, informed that nothing exists, would start them a second time. So their parent, the
//! supervisor, ends them, or the executor, which knows the identities of unsupervised processes. They are
//! ended immediately and without grace, because the last process that knows them may die at any moment. When
//! nothing is left, the directory is made again with the end in it, and only then is the end reported. The
//! end is a failure; the decider's rules apply to it. The supervisor also records the end in the directory
//! that was moved away. If that is moved back, it is not taken for cut off. Everything else in such a
//! directory stays as it is.
//!
//! **A lost or altered record in an intact directory** endangers nothing while a process knows its content.
//! Ending the incarnation would do more harm. So the writer of the record writes it again, with a warning.
//! The writer of `processes.json` is the supervisor (or the executor, for unsupervised processes). The writer
//! of `spec.json` is the executor (or the supervisor, while no executor is connected). Not checked: a
//! tombstone (none counts while anything runs), `ready`, and the output and working files of processes.
//!
//! **Costs.** Twice a second an executor calls `stat` for the directory of each running incarnation. Every
//! other time it does so for both copies of two records, which are read only after a change. With a thousand
//! incarnations and a debug build, that takes 1.8 % of one core. The thousand supervisors sleep while an
//! executor is connected, and take 1.0 % of one core without. A poll for each incarnation, without a common
//! round, took 3.5 %. `inotify` is not used: a watch misses changes above its directory. One instance for
//! each supervisor would exceed the 128 that a user may have.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chancery_events::id::IncarnationId;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use super::incarnation_dir::IncarnationDirectory;
use super::lock;
use crate::state_file::if_found;

/// Interval of checks.
const EVERY: Duration = Duration::from_millis(500);
/// Checks of the directory alone between two that include the records. A changed name changes the directory;
/// the records are checked for overwriting in place.
const SKIPS: u32 = 1;
/// Number of directories that are checked before the thread yields.
const AT_ONCE: usize = 50;

/// Loss of a directory in which anything runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DirectoryLoss {
    /// No directory at the path.
    Removed,
    /// Another directory at the path.
    Replaced,
}

impl fmt::Display for DirectoryLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DirectoryLoss::Removed => "incarnation directory removed",
            DirectoryLoss::Replaced => "incarnation directory replaced",
        })
    }
}

/// Identity of a file or directory, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) struct FileId {
    device: u64,
    /// Number of the file within its file system.
    pub(super) inode: u64,
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.device, self.inode)
    }
}

impl FileId {
    pub(super) fn from(metadata: &Metadata) -> FileId {
        FileId { device: metadata.dev(), inode: metadata.ino() }
    }

    /// Returns the identity of the file at a path, if there is one.
    pub(super) fn of(path: &Path) -> io::Result<Option<FileId>> {
        Ok(stat(path)?.as_ref().map(FileId::from))
    }

    pub(super) fn of_file(file: &File) -> io::Result<FileId> {
        Ok(FileId::from(&file.metadata()?))
    }

    /// Whether this is the recorded file. Device numbers may differ in another boot.
    pub(super) fn is(self, recorded: FileId, in_this_boot: bool) -> bool {
        self.inode == recorded.inode && (self.device == recorded.device || !in_this_boot)
    }

    /// Returns the loss, if the file is not at the path any more. An error is not a loss.
    pub(super) fn loss(self, path: &Path) -> Option<DirectoryLoss> {
        match FileId::of(path) {
            Ok(None) => Some(DirectoryLoss::Removed),
            Ok(Some(place)) if place != self => Some(DirectoryLoss::Replaced),
            Ok(Some(_)) | Err(_) => None,
        }
    }
}

/// Returns the result of an operation on a path, or `None` if the path does not exist, or one above it is no directory.
pub(super) fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(None),
        result => if_found(result),
    }
}

fn stat(path: &Path) -> io::Result<Option<Metadata>> {
    if_exists(std::fs::metadata(path))
}

/// Values that change with every change of a file, and cannot be set back.
type ChangeStamp = Option<(FileId, i64, i64)>;

/// Result of checking a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DirectoryCheck {
    /// No change.
    Same,
    /// Change, perhaps by this program.
    Changed,
    /// Loss of the directory.
    Lost(DirectoryLoss),
}

/// Detector of changes to the directory of one incarnation.
#[derive(Debug)]
pub(super) struct DirectoryInspector {
    directory: PathBuf,
    records: [PathBuf; 4],
    /// Identity of the directory.
    place: Option<FileId>,
    of_directory: ChangeStamp,
    of_records: [ChangeStamp; 4],
    /// Number of checks of the directory alone before one of the records.
    skips: u32,
    skipped: u32,
}

impl DirectoryInspector {
    /// Creates a detector whose first check finds a change. Without a place, that check determines the
    /// directory's identity.
    pub(super) fn of(
        incarnation_directory: &IncarnationDirectory,
        place: Option<FileId>,
        skips: u32,
    ) -> DirectoryInspector {
        DirectoryInspector {
            directory: incarnation_directory.path().to_owned(),
            records: incarnation_directory.records_of_what_runs(),
            place,
            of_directory: None,
            of_records: [None; 4],
            skips,
            skipped: 0,
        }
    }

    /// Checks the directory. An error is not a change.
    pub(super) fn look(&mut self) -> DirectoryCheck {
        let metadata = match stat(&self.directory) {
            Ok(Some(metadata)) => metadata,
            Ok(None) => return DirectoryCheck::Lost(DirectoryLoss::Removed),
            Err(_) => return DirectoryCheck::Same,
        };
        let place = FileId::from(&metadata);
        if *self.place.get_or_insert(place) != place {
            return DirectoryCheck::Lost(DirectoryLoss::Replaced);
        }
        let stamp = |metadata: &Metadata| (FileId::from(metadata), metadata.ctime(), metadata.ctime_nsec());
        let of_directory = Some(stamp(&metadata));
        if of_directory == self.of_directory && self.skipped < self.skips {
            self.skipped += 1;
            return DirectoryCheck::Same;
        }
        self.skipped = 0;
        let of_records = self.records.each_ref().map(|file| stat(file).ok().flatten().as_ref().map(stamp));
        if (of_directory, of_records) == (self.of_directory, self.of_records) {
            return DirectoryCheck::Same;
        }
        (self.of_directory, self.of_records) = (of_directory, of_records);
        DirectoryCheck::Changed
    }

    /// Lets the next check find a change: a repair failed, or a change may be invisible.
    pub(super) fn again(&mut self) {
        self.of_directory = None;
    }
}

/// Checks of the directories of all that runs, one after the other: a timer for each would cost more than a
/// check.
#[derive(Debug, Default)]
pub(super) struct DirectoryWatcher(Mutex<BTreeMap<IncarnationId, Arc<WatchedDirectory>>>);

#[derive(Debug)]
struct WatchedDirectory {
    sight: Mutex<DirectoryInspector>,
    seen: Mutex<Option<DirectoryCheck>>,
    news: Notify,
}

impl DirectoryWatcher {
    /// Checks twice a second for as long as the runtime lives.
    pub(super) async fn check_periodically(&self) {
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let all: Vec<Arc<WatchedDirectory>> = lock(&self.0).values().cloned().collect();
            for some in all.chunks(AT_ONCE) {
                for watched in some {
                    watched.look();
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Starts to check a directory; the first check, made immediately, finds a change.
    pub(super) fn watch(
        self: &Arc<DirectoryWatcher>,
        id: IncarnationId,
        directory: &IncarnationDirectory,
    ) -> DirectoryWatch {
        let sight = Mutex::new(DirectoryInspector::of(directory, None, SKIPS));
        let watched = Arc::new(WatchedDirectory { sight, seen: Mutex::default(), news: Notify::new() });
        watched.look();
        lock(&self.0).insert(id, watched.clone());
        DirectoryWatch { watcher: self.clone(), id, watched }
    }
}

impl WatchedDirectory {
    fn look(&self) {
        let now = lock(&self.sight).look();
        let mut seen = lock(&self.seen);
        *seen = match (now, *seen) {
            (DirectoryCheck::Same, seen) => seen,
            // A loss is permanent.
            (_, Some(DirectoryCheck::Lost(loss))) => Some(DirectoryCheck::Lost(loss)),
            (now, _) => Some(now),
        };
        if seen.is_some() {
            self.news.notify_one();
        }
    }
}

/// Checks of one directory, which end when this is dropped.
#[derive(Debug)]
pub(super) struct DirectoryWatch {
    watcher: Arc<DirectoryWatcher>,
    id: IncarnationId,
    watched: Arc<WatchedDirectory>,
}

impl DirectoryWatch {
    /// Waits for a change. Safe to cancel.
    pub(super) async fn next(&self) -> DirectoryCheck {
        loop {
            if let Some(seen) = lock(&self.watched.seen).take() {
                return seen;
            }
            self.watched.news.notified().await;
        }
    }

    /// Lets the next check find a change.
    pub(super) fn again(&self) {
        lock(&self.watched.sight).again();
    }
}

impl Drop for DirectoryWatch {
    fn drop(&mut self) {
        let mut all = lock(&self.watcher.0);
        // By now the entry may belong to another watch.
        if all.get(&self.id).is_some_and(|watched| Arc::ptr_eq(watched, &self.watched)) {
            all.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests;
