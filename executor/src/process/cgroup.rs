//! Control groups (cgroup v2): proof that nothing of an incarnation is left, a kill of all its processes,
//! memory limits.
//!
//! | directory | holds |
//! |---|---|
//! | `PARENT/DEVICE-INODE` | groups of one executor, named after its directory |
//! | `…/INCARNATION` | every process of one incarnation, and all that they start |
//! | `…/INCARNATION/PAYLOAD-N` | one process with its limit, if the parent delegates the memory controller |
//!
//! A group is populated while anything lives in it, also in another PID namespace, and only an empty one can
//! be removed. So `populated 0` proves an end. So does a missing group, while the same file system is mounted
//! at the same path. Groups do not outlive a boot, and none is moved.
//!
//! Without a usable directory for groups, ends are proved by a search (`proof`), and a limit applies to each
//! process separately (`trampoline`). The cause of an end cannot be proved then.
//!
//! Source of the files and their meaning: the kernel's `Documentation/admin-guide/cgroup-v2.rst`.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chancery_events::id::IncarnationId;
use chancery_events::text::counted;
use serde::{Deserialize, Serialize};

use super::identity::{ProcStat, ProcessHandle};
use super::integrity::FileId;
use super::proof::RemainingProcesses;
use crate::state_file::if_found;

pub(super) mod detect;

/// Time for the trampolines of a dead supervisor to leave their group.
const EMPTYING: Duration = Duration::from_secs(2);
/// Maximum number of attempts to make a group in a directory that another supervisor is removing.
const TRIES: usize = 8;

/// Directory in which an executor makes the groups of its incarnations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct CgroupParent {
    pub(super) path: PathBuf,
    /// Mount point of the file system; `None` if groups only limit memory, and prove nothing.
    pub(super) mount: Option<PathBuf>,
    /// Whether groups get the memory controller.
    pub(super) memory: bool,
}

impl CgroupParent {
    /// Returns the directory of an incarnation's group.
    pub(super) fn path_of(&self, incarnation: IncarnationId) -> PathBuf {
        self.path.join(incarnation.to_string())
    }

    /// Makes the group of an incarnation. Trampolines of a supervisor that died before it recorded anything
    /// are killed; they have executed nothing.
    pub(super) fn make(&self, incarnation: IncarnationId) -> io::Result<Option<IncarnationCgroup>> {
        let path = self.path_of(incarnation);
        clear(&path)?;
        let mut made = self.try_make(&path);
        for _ in 1..TRIES {
            if !matches!(&made, Err(error) if error.kind() == ErrorKind::NotFound) {
                break;
            }
            made = self.try_make(&path);
        }
        made?;
        self.recorded(path)
    }

    fn try_make(&self, path: &Path) -> io::Result<()> {
        // The directory above belongs to the operator, or was found: it is not made.
        make_directory(&self.path)?;
        make_directory(path)?;
        if self.memory {
            std::fs::write(self.path.join("cgroup.subtree_control"), "+memory")?;
            std::fs::write(path.join("cgroup.subtree_control"), "+memory")?;
        }
        Ok(())
    }

    fn recorded(&self, path: PathBuf) -> io::Result<Option<IncarnationCgroup>> {
        let Some(mount) = self.mount.clone() else { return Ok(None) };
        let place = FileId::of(&mount)?.ok_or(ErrorKind::NotFound)?;
        Ok(Some(IncarnationCgroup { path, mount, place }))
    }

    /// Prepares the kernel for moving a process. The first move after a while waits some ten milliseconds,
    /// until each processor has passed a quiescent state. Here this process waits, as it moves to its own
    /// group, which changes nothing. The start continues meanwhile.
    pub(super) fn warm_up(&self) {
        let Some(mount) = self.mount.clone() else { return };
        std::thread::spawn(move || {
            let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            if let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::/")) {
                // Without permission, starts take longer.
                let _ = write(&mount.join(own).join("cgroup.procs"), "0");
            }
        });
    }

    /// Returns the control group of an incarnation without a record, if the group exists.
    pub(super) fn found(&self, incarnation: IncarnationId) -> io::Result<Option<IncarnationCgroup>> {
        let path = self.path_of(incarnation);
        if path.try_exists()? { self.recorded(path) } else { Ok(None) }
    }

    /// Returns all incarnations that have a control group.
    pub(super) fn incarnations(&self) -> io::Result<Vec<IncarnationId>> {
        let name = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
        Ok(subgroups(&self.path)?.into_iter().filter_map(name).collect())
    }
}

/// Control group of one incarnation, as recorded with its processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct IncarnationCgroup {
    pub(super) path: PathBuf,
    /// Mount point of the file system, and its identity: elsewhere the path means another group, or none.
    mount: PathBuf,
    place: FileId,
}

impl IncarnationCgroup {
    /// Returns whether the control group contains a process.
    pub(super) fn populated(&self) -> RemainingProcesses {
        if !self.is_same_view() {
            let mount = self.mount.display();
            return RemainingProcesses::Unknown(format!(
                "control group not visible: {mount} is another file system than at creation"
            ));
        }
        match std::fs::read_to_string(self.path.join("cgroup.events")) {
            Ok(events) if count_of(&events, "populated") == Some(0) => RemainingProcesses::Nothing,
            Ok(_) => RemainingProcesses::Something,
            Err(error) if error.kind() == ErrorKind::NotFound => RemainingProcesses::Nothing,
            Err(error) => RemainingProcesses::Unknown(format!(
                "cannot read control group {}: {error}",
                self.path.display()
            )),
        }
    }

    fn is_same_view(&self) -> bool {
        matches!(FileId::of(&self.mount), Ok(Some(place)) if place == self.place)
    }

    /// Kills everything in the group, and in groups below it.
    pub(super) fn kill(&self) -> io::Result<()> {
        if self.is_same_view() { kill(&self.path) } else { Ok(()) }
    }

    /// Returns the pids, valid here, of processes in the group.
    pub(super) fn pids(&self) -> BTreeSet<u32> {
        if self.is_same_view() { pids(&self.path) } else { BTreeSet::new() }
    }

    /// Returns every process in the group that has a pid here.
    pub(super) fn members(&self) -> Vec<ProcessHandle> {
        if !self.is_same_view() {
            return Vec::new();
        }
        let opened =
            |pid: u32| Some((pid, ProcessHandle::open(pid, ProcStat::of(pid).ok()??.start_time).ok()??));
        let handles: Vec<_> = pids(&self.path).into_iter().filter_map(opened).collect();
        // Read again after opening: from here on the descriptor cannot refer to another process.
        let still = pids(&self.path);
        handles.into_iter().filter(|(pid, _)| still.contains(pid)).map(|(_, handle)| handle).collect()
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Pids in a group and in groups below it. A process of another PID namespace has none here, and is listed as
/// 0.
fn pids(path: &Path) -> BTreeSet<u32> {
    let listed = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut all: BTreeSet<u32> =
        listed.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect();
    for group in subgroups(path).unwrap_or_default() {
        all.extend(pids(&group));
    }
    all
}

fn subgroups(path: &Path) -> io::Result<Vec<PathBuf>> {
    super::entries(path).map(|entries| entries.into_iter().filter(|entry| entry.is_dir()).collect())
}

fn kill(path: &Path) -> io::Result<()> {
    if_found(write(&path.join("cgroup.kill"), "1")).map(drop)
}

/// Writes to an existing file.
fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Kills everything in a group, and removes the group.
fn clear(path: &Path) -> io::Result<()> {
    let until = Instant::now() + EMPTYING;
    while let Err(error) = remove(path) {
        if Instant::now() > until {
            return Err(error);
        }
        kill(path)?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Makes the group of a process, limited to this memory in bytes, none of it swapped out.
///
/// When the limit is exceeded, the kernel kills everything in the group (`memory.oom.group`). So a counted
/// kill is the end of each process in the group, never of a helper alone.
pub(super) fn limit(path: &Path, memory: Option<NonZeroU64>) -> io::Result<()> {
    std::fs::create_dir(path)?;
    let Some(memory) = memory else { return Ok(()) };
    std::fs::write(path.join("memory.oom.group"), "1")?;
    std::fs::write(path.join("memory.max"), memory.to_string())?;
    // Missing where the kernel does not account for swap.
    let swap = path.join("memory.swap.max");
    if swap.exists() { std::fs::write(swap, "0") } else { Ok(()) }
}

/// Moves a process into a group, with all that it starts from then on.
pub(super) fn put(path: &Path, pid: u32) -> io::Result<()> {
    std::fs::write(path.join("cgroup.procs"), pid.to_string())
}

/// Whether the kernel has killed the group for lack of memory. The kernel counts before it kills: an observer
/// of the death sees the count.
pub(super) fn was_ended(path: &Path) -> io::Result<bool> {
    let events = std::fs::read_to_string(path.join("memory.events"))?;
    Ok(count_of(&events, "oom_kill").is_some_and(|kills| kills > 0))
}

/// Number of times that a process met its group's memory limit, as counted by the kernel until its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct LimitHits {
    /// Number of times that memory had to be reclaimed at the limit (`max`).
    pub(super) reached: u64,
    /// Number of times that an allocation was about to fail at the limit (`oom`).
    pub(super) refused: u64,
}

impl LimitHits {
    /// Returns the counts of the group; zero if they cannot be read.
    pub(super) fn of(path: &Path) -> LimitHits {
        LimitHits::read(&std::fs::read_to_string(path.join("memory.events")).unwrap_or_default())
    }

    fn read(events: &str) -> LimitHits {
        let count = |key| count_of(events, key).unwrap_or(0);
        LimitHits { reached: count("max"), refused: count("oom") }
    }
}

impl fmt::Display for LimitHits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LimitHits { refused: 0, reached: 0 } => Ok(()),
            LimitHits { refused: 0, reached } => {
                write!(f, "; its memory was reclaimed at its limit {}", counted(reached, "time"))
            }
            LimitHits { refused, .. } => {
                write!(f, "; it was refused memory at its limit {}", counted(refused, "time"))
            }
        }
    }
}

/// Returns the value of a key in a file of `KEY VALUE` lines.
fn count_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
}

/// Removes an empty group with the groups below it; a missing group is not an error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    for group in subgroups(path)? {
        remove(&group)?;
    }
    if_found(std::fs::remove_dir(path)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_counted_end_of_the_group_is_one() {
        let events = "low 0\nhigh 0\nmax 41\noom 3\noom_kill ";
        assert_eq!(count_of(&format!("{events}2\noom_group_kill 1\n"), "oom_kill"), Some(2));
        assert_eq!(count_of(&format!("{events}0\n"), "oom_kill"), Some(0));
        for events in ["max 41\noom 3\n", "oom_kill x", "", "oom_killed 3"] {
            assert_eq!(count_of(events, "oom_kill"), None, "{events}");
        }
    }

    #[test]
    fn a_process_that_was_refused_memory_is_distinguished_from_one_whose_memory_was_reclaimed() {
        let table = [
            ("low 0\nhigh 0\nmax 41\noom 3\noom_kill 0\n", "; it was refused memory at its limit 3 times"),
            (
                "low 0\nhigh 0\nmax 41\noom 0\noom_kill 0\n",
                "; its memory was reclaimed at its limit 41 times",
            ),
            ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n", ""),
            ("", ""),
        ];
        for (events, text) in table {
            assert_eq!(LimitHits::read(events).to_string(), text, "{events:?}");
        }
    }

    #[test]
    fn a_removed_group_proves_an_end_only_under_the_same_mount() {
        let mount = tempfile::tempdir().unwrap();
        let parent =
            CgroupParent { path: mount.path().join("x"), mount: Some(mount.path().into()), memory: false };
        let mut group = parent.recorded(parent.path.join("y")).unwrap().unwrap();
        assert_eq!(group.populated(), RemainingProcesses::Nothing, "it was removed");
        std::fs::create_dir_all(&group.path).unwrap();
        for (events, populated) in [
            ("populated 1\nfrozen 0\n", RemainingProcesses::Something),
            ("populated 0\n", RemainingProcesses::Nothing),
        ] {
            std::fs::write(group.path.join("cgroup.events"), events).unwrap();
            assert_eq!(group.populated(), populated, "{events}");
        }
        let elsewhere = tempfile::tempdir().unwrap();
        group.mount = elsewhere.path().into();
        assert!(
            matches!(group.populated(), RemainingProcesses::Unknown(_)),
            "another file system is mounted there"
        );
    }
}
