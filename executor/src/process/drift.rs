//! What is done behind our backs: how it is seen, and what comes of it.
//!
//! | what is done | who sees it, and how soon | what comes of it |
//! |---|---|---|
//! | a process is killed | its keeper, at once: it is the parent | its siblings are ended; it has ended, with its status |
//! | the keeper is killed | the executor, at once: the connection ends | the processes run on as orphans, adopted by identity |
//! | an orphan is killed | the executor, at once: it holds a descriptor of it | as above; its status is unknown |
//! | the folder, or one above it, is removed, renamed or replaced | the executor, in half a second; if there is none, the keeper, in five | everything is killed; it has ended, with that reason |
//! | a record is removed or altered | the same; the executor, of one that is overwritten in place, in a second | it is written again: from its other copy, or as it is known in memory |
//! | `keeper.lock` or `keeper.sock` is removed | the same | the keeper makes it anew |
//! | the folder is removed, with neither keeper nor executor alive | the next executor, when it begins: processes name their folder in their environment | as above |
//!
//! **Without its folder nothing may run.** Whoever comes next would not find it: it could neither be adopted nor proved
//! to have ended, and the decider, told that nothing is there, would start it a second time. So whoever still knows what
//! runs ends it: the keeper, whose children they are; or the executor, which knows the orphans' identities. At once and
//! without grace, for each moment is one in which the last who knows of them may die too. When nothing is left, the
//! folder is made anew with the end in it, and only then is the end told. It is a failure: what follows from that is the
//! decider's rule. The keeper leaves the end in the folder that was moved away as well, so that it is not taken for
//! cut off if it is moved back. Everything else in such a folder stays as it is.
//!
//! **A record that is lost or altered in a folder that stands** endangers nothing as long as somebody knows what stood in
//! it. To end what runs for it would do more harm than was done. So it is written again, with a warning, each by its own
//! writer: `processes.json` by the keeper (or the executor, of orphans), `spec.json` by the executor (or the keeper, while
//! there is none). Not looked after: a tombstone (while something runs, there is none that counts), `ready`, and what
//! processes wrote or work on.
//!
//! **What it costs.** Twice a second an executor asks for the state (`stat`) of the folder of each incarnation that runs,
//! and every other time also of both copies of two records; it reads those only when one has changed. Measured with a
//! thousand incarnations and a debug build, that is 1.8 % of one core; the thousand keepers, which sleep while an executor
//! is connected, take 1.0 % of one when there is none. A poll for each, without a common round, took 3.5 %. There is no
//! `inotify`: a watch does not see what happens above its folder, and one instance for each keeper would
//! exceed the 128 instances that a user may have.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chancery_events::id::IncarnationId;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use super::folder::Folder;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);
/// Each second look is at the records too. What gives or takes a name changes the folder; this finds what is overwritten.
const SKIPS: u32 = 1;
/// Folders that are looked at before others have a turn on the thread.
const AT_ONCE: usize = 50;

/// What has become of a folder in which something runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Loss {
    /// It is not where it was.
    Removed,
    /// Another one is there.
    Replaced,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Removed => "its folder was removed",
            Loss::Replaced => "its folder was replaced by another",
        })
    }
}

/// Which file or folder it is, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    device: u64,
    inode: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.device, self.inode)
    }
}

impl Place {
    /// The number of the file within its file system.
    pub(super) fn inode(self) -> u64 {
        self.inode
    }

    pub(super) fn from(metadata: &Metadata) -> Place {
        Place { device: metadata.dev(), inode: metadata.ino() }
    }

    /// Of what stands at a path, if anything does.
    pub(super) fn of(path: &Path) -> io::Result<Option<Place>> {
        Ok(stat(path)?.as_ref().map(Place::from))
    }

    pub(super) fn of_file(file: &File) -> io::Result<Place> {
        Ok(Place::from(&file.metadata()?))
    }

    /// Whether it is the one that was recorded in this boot, or in another: device numbers may change with that.
    pub(super) fn is(self, recorded: Place, in_this_boot: bool) -> bool {
        self.inode == recorded.inode && (self.device == recorded.device || !in_this_boot)
    }

    /// What has become of it, if it does not stand at the path any more. What cannot be found out is no loss.
    pub(super) fn loss(self, path: &Path) -> Option<Loss> {
        match Place::of(path) {
            Ok(None) => Some(Loss::Removed),
            Ok(Some(place)) if place != self => Some(Loss::Replaced),
            Ok(Some(_)) | Err(_) => None,
        }
    }
}

fn stat(path: &Path) -> io::Result<Option<Metadata>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What changes with every change of a file, and cannot be set back.
type Stamp = Option<(Place, i64, i64)>;

/// What is seen of a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// Nothing was done to it.
    Same,
    /// Something was: by us, perhaps.
    Changed,
    /// It is not what it was.
    Lost(Loss),
}

/// Sees what was done to the folder of one incarnation.
#[derive(Debug)]
pub(super) struct Sight {
    folder: PathBuf,
    records: [PathBuf; 4],
    /// Which folder it is.
    place: Option<Place>,
    of_folder: Stamp,
    of_records: [Stamp; 4],
    /// So many looks are at the folder alone before one is at the records.
    skips: u32,
    skipped: u32,
}

impl Sight {
    /// Its first look finds a change. Without a place, the folder is the one that is found there.
    pub(super) fn of(folder: &Folder, place: Option<Place>, skips: u32) -> Sight {
        let (folder, records) = (folder.path().to_owned(), folder.records_of_what_runs());
        Sight { folder, records, place, of_folder: None, of_records: [None; 4], skips, skipped: 0 }
    }

    /// Looks. What cannot be found out now is the same.
    pub(super) fn look(&mut self) -> Seen {
        let metadata = match stat(&self.folder) {
            Ok(Some(metadata)) => metadata,
            Ok(None) => return Seen::Lost(Loss::Removed),
            Err(_) => return Seen::Same,
        };
        let place = Place::from(&metadata);
        if *self.place.get_or_insert(place) != place {
            return Seen::Lost(Loss::Replaced);
        }
        let stamp = |metadata: &Metadata| (Place::from(metadata), metadata.ctime(), metadata.ctime_nsec());
        let of_folder = Some(stamp(&metadata));
        if of_folder == self.of_folder && self.skipped < self.skips {
            self.skipped += 1;
            return Seen::Same;
        }
        self.skipped = 0;
        let of_records = self.records.each_ref().map(|file| stat(file).ok().flatten().as_ref().map(stamp));
        if (of_folder, of_records) == (self.of_folder, self.of_records) {
            return Seen::Same;
        }
        (self.of_folder, self.of_records) = (of_folder, of_records);
        Seen::Changed
    }

    /// Lets the next look find a change: what was found could not be put right, or may not show.
    pub(super) fn again(&mut self) {
        self.of_folder = None;
    }
}

/// Looks at the folders of all that runs, one after the other: to wake up for each would cost more than to look.
#[derive(Debug, Default)]
pub(super) struct Watcher(Mutex<BTreeMap<IncarnationId, Arc<Watched>>>);

#[derive(Debug)]
struct Watched {
    sight: Mutex<Sight>,
    seen: Mutex<Option<Seen>>,
    news: Notify,
}

impl Watcher {
    /// Looks twice a second for as long as the runtime lives.
    pub(super) async fn look_for_ever(&self) {
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let all: Vec<Arc<Watched>> = lock(&self.0).values().cloned().collect();
            for some in all.chunks(AT_ONCE) {
                for watched in some {
                    watched.look();
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Begins to look at a folder, at once, which finds it changed.
    pub(super) fn watch(self: &Arc<Watcher>, id: IncarnationId, folder: &Folder) -> Watch {
        let sight = Mutex::new(Sight::of(folder, None, SKIPS));
        let watched = Arc::new(Watched { sight, seen: Mutex::default(), news: Notify::new() });
        watched.look();
        lock(&self.0).insert(id, watched.clone());
        Watch { watcher: self.clone(), id, watched }
    }
}

impl Watched {
    fn look(&self) {
        let now = lock(&self.sight).look();
        let mut seen = lock(&self.seen);
        *seen = match (now, *seen) {
            (Seen::Same, seen) => seen,
            // What was lost stays so.
            (_, Some(Seen::Lost(loss))) => Some(Seen::Lost(loss)),
            (now, _) => Some(now),
        };
        if seen.is_some() {
            self.news.notify_one();
        }
    }
}

/// The looks at one folder; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    watcher: Arc<Watcher>,
    id: IncarnationId,
    watched: Arc<Watched>,
}

impl Watch {
    /// Waits until something was done. Safe to cancel.
    pub(super) async fn next(&self) -> Seen {
        loop {
            if let Some(seen) = lock(&self.watched.seen).take() {
                return seen;
            }
            self.watched.news.notified().await;
        }
    }

    /// Lets the next look find a change.
    pub(super) fn again(&self) {
        lock(&self.watched.sight).again();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut all = lock(&self.watcher.0);
        // By now it may be another's.
        if all.get(&self.id).is_some_and(|watched| Arc::ptr_eq(watched, &self.watched)) {
            all.remove(&self.id);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under a lock is whole, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
