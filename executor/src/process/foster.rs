//! Orphans: processes whose keeper died. They are adopted by identity, watched, and ended like others; only how they
//! ended stays unknown, because the parent that could have asked is gone.
//!
//! Besides the recorded processes, descendants are known by the incarnation's folder in their environment: a group's
//! number may have been given to another group meanwhile, and a copy of the fleet in another root has the same ids;
//! a folder is one incarnation's alone.
//!
//! What orphans write is passed on from here.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use chancery_events::observation::{Exit, ProcessStatus};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::capture::{self, Capture, Copied, OutputLimits};
use super::drift::Place;
use super::folder::{Cause, End, Folder, Phase, Record, Wanted, remove_groups};
use super::identity::{Boot, Handle, Stat};
use super::start::FOLDER_VARIABLE;
use super::wire::LONGEST_GRACE;
use crate::durable::Lock;

/// A trampoline whose keeper died exits at once; what lives after this was told to execute its program.
const TRAMPOLINES_GONE: Duration = Duration::from_secs(1);
const SWEEP: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(super) struct Foster {
    /// For as long as this lives, no keeper starts anything here. None if there is no folder any more.
    lock: Option<File>,
    folder: Folder,
    living: Vec<(usize, AsyncFd<Handle>)>,
    captures: Vec<AsyncFd<Capture>>,
    chunk: Vec<u8>,
    kill_at: Option<Instant>,
    /// When to look again though nothing died.
    next: Option<Instant>,
}

impl Foster {
    /// Takes over what the record names and still lives; notes the rest as ended.
    pub(super) fn adopt(
        lock: Option<File>,
        folder: Folder,
        output: OutputLimits,
        record: &mut Record,
        boot: &Boot,
    ) -> io::Result<Foster> {
        // What is to be started again names processes of an earlier boot.
        let same_boot = record.boot == boot.id && record.phase != Phase::Again;
        let (mut living, mut captures) = (Vec::new(), Vec::new());
        for (number, process) in
            record.processes.iter_mut().enumerate().filter(|(_, process)| process.end.is_none())
        {
            match Handle::open(process.pid, process.start_time)? {
                Some(handle) if same_boot => {
                    living.push((number, watched(handle)?));
                    for name in process.outputs() {
                        match capture::take_over(&folder.file(&name), output) {
                            Ok(capture) => captures.push(watched(capture)?),
                            // Its output goes elsewhere; that is no reason to leave it alone.
                            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                            Err(error) => return Err(error),
                        }
                    }
                }
                Some(_) | None => process.end = Some(unseen(Cause::Itself)),
            }
        }
        let next = (record.phase == Phase::Recorded).then(|| Instant::now() + TRAMPOLINES_GONE);
        Ok(Foster { lock, folder, living, captures, chunk: Vec::new(), kill_at: None, next })
    }

    /// Waits until one dies, by its number in the record, or until it is time for [`Foster::go_on`]. Safe to cancel.
    pub(super) async fn next(&mut self) -> Option<usize> {
        let dead = std::future::poll_fn(|context| {
            let chunk = &mut self.chunk;
            self.captures.retain_mut(|capture| {
                // Ready only so often in one turn: the runtime sees to that.
                while let Poll::Ready(Ok(mut ready)) = capture.poll_read_ready_mut(context) {
                    match ready.get_inner_mut().copy(chunk) {
                        Copied::More => {}
                        Copied::Nothing => ready.clear_ready(),
                        Copied::Over => return false,
                    }
                }
                true
            });
            for (place, (_, fd)) in self.living.iter().enumerate() {
                if fd.poll_read_ready(context).is_ready() {
                    return Poll::Ready(place);
                }
            }
            Poll::Pending
        });
        tokio::select! {
            place = dead => Some(self.living.swap_remove(place).0),
            () = tokio::time::sleep_until(self.next.unwrap_or_else(Instant::now)), if self.next.is_some() => None,
        }
    }

    /// Takes in a death, and does what is due.
    pub(super) fn go_on(&mut self, dead: Option<usize>, record: &mut Record, grace: Duration) {
        let cause = if self.kill_at.is_some() { Cause::Asked } else { Cause::Itself };
        if let Some(process) = dead.and_then(|number| record.processes.get_mut(number)) {
            process.end.get_or_insert(unseen(cause));
        }
        if record.processes.iter().any(|process| process.end.is_some()) {
            self.end(grace);
        }
        let now = Instant::now();
        if let Some(kill_at) = self.kill_at {
            if now >= kill_at {
                self.signal_all(Signal::KILL);
            }
            self.next = Some(self.look_again(now));
        } else {
            if record.phase == Phase::Recorded {
                record.phase = Phase::Started;
            }
            self.next = None;
        }
    }

    /// While it is being ended: deaths of those that are watched wake us, deaths of others are looked for.
    fn look_again(&self, now: Instant) -> Instant {
        let kill_at = self.kill_at.unwrap_or(now);
        if self.living.is_empty() || kill_at <= now { now + SWEEP } else { kill_at }
    }

    /// Begins to end everything, or brings the time of killing nearer.
    pub(super) fn end(&mut self, grace: Duration) {
        let kill_at = Instant::now() + grace.min(LONGEST_GRACE);
        if let Some(at) = &mut self.kill_at {
            *at = kill_at.min(*at);
        } else {
            self.kill_at = Some(kill_at);
            self.signal_all(Signal::TERM);
        }
        self.next = Some(self.look_again(Instant::now()));
    }

    /// Makes the lock anew, if somebody has taken its file away: it keeps nobody out then.
    pub(super) fn check_lock(&mut self) -> io::Result<()> {
        let Some(lock) = &self.lock else { return Ok(()) };
        if Place::of(&self.folder.file("keeper.lock"))? == Some(Place::of_file(lock)?) {
            return Ok(());
        }
        match self.folder.lock()? {
            Lock::Ours(lock) => self.lock = Some(lock),
            // A keeper looks whether it may start, and finds that it may not.
            Lock::Theirs => return Err(io::Error::other("somebody else has the lock for now")),
        }
        Ok(())
    }

    /// Whether nothing of it lives any more.
    pub(super) fn is_over(&self) -> bool {
        self.living.is_empty() && others(&self.folder).is_empty()
    }

    /// Passes on the last of what was written, once nothing lives any more.
    pub(super) fn finish_output(&mut self) {
        for capture in self.captures.drain(..) {
            if let Err(error) = capture.into_inner().finish() {
                tracing::warn!(%error, folder = %self.folder.path().display(), "pass on what orphans wrote");
            }
        }
    }

    fn signal_all(&self, signal: Signal) {
        for (_, fd) in &self.living {
            fd.get_ref().signal(signal);
        }
        for handle in others(&self.folder) {
            handle.signal(signal);
        }
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe, for types that may lie about their descriptor; these own theirs"
)]
fn watched<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}

/// Writes how it all ended. The caller holds the lock.
pub(super) fn finish(
    folder: &Folder,
    wanted: Option<&Wanted>,
    record: &mut Record,
    exit: Exit,
) -> io::Result<()> {
    for error in remove_groups(wanted, Some(record)) {
        tracing::warn!(%error, folder = %folder.path().display(), "an orphan's group stays");
    }
    record.phase = Phase::Ended { exit };
    folder.write_record(record)
}

fn unseen(cause: Cause) -> End {
    End { status: ProcessStatus::Unknown, cause }
}

/// Everything living that names the folder in its environment.
fn others(folder: &Folder) -> Vec<Handle> {
    let all = Stat::all().unwrap_or_default();
    let named = all.iter().filter(|stat| folder_named_by(stat).is_some_and(|named| named == folder.path()));
    named.filter_map(|stat| Handle::open(stat.pid, stat.start_time).ok().flatten()).collect()
}

/// The folders under `root` that living processes name as theirs, whether or not they are there.
pub(super) fn folders_named(root: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let named = Stat::all()?.iter().filter_map(folder_named_by).collect::<BTreeSet<_>>();
    Ok(named.into_iter().filter(|folder| folder.starts_with(root)).collect())
}

fn folder_named_by(stat: &Stat) -> Option<PathBuf> {
    let environment = std::fs::read(format!("/proc/{}/environ", stat.pid)).ok()?;
    let value = |entry: &[u8]| {
        let value = entry.strip_prefix(FOLDER_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        Some(PathBuf::from(OsStr::from_bytes(value)))
    };
    environment.split(|byte| *byte == 0).find_map(value).filter(|_| !stat.is_dead())
}
