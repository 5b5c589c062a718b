//! Search for what is left of an incarnation whose supervisor died: `wait` cannot prove an end any more.
//!
//! | incarnation | proof that nothing is left |
//! |---|---|
//! | started in another boot | the boot |
//! | has a control group that is visible here | the group is empty (`cgroup`), no process here has a mark |
//! | started in this PID namespace, without a group | every living process is accounted for |
//! | other | none: the result is unknown |
//!
//! A process is accounted for, and not of the incarnation, if it
//!
//! - was started before the first process of the incarnation, or
//! - lacks `no_new_privs`, which every trampoline sets, which is inherited, and which cannot be unset, or
//! - is recorded by another incarnation of the executor, as its supervisor or its process, or
//! - descends from such a process that cannot have adopted children of the dead supervisor. The kernel gives
//!   these only to an ancestor of the supervisor or to the init of the namespace.
//!
//! All processes are read while no process is started (the kernel counts), so that none is missed between two
//! reads. A process that cannot be read is not taken for absent: the result is unknown then.
//!
//! Any kind of process may be left. It is killed only if it has a *mark* of the incarnation. Marks are its
//! session or process group, a working directory or open pipe in its directory, and the directory in the
//! environment. Directories are compared by device and inode. A process without a mark is neither killed nor
//! taken for absent.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use super::cgroup::IncarnationCgroup;
use super::identity::{self, BootId, EnvironmentReader, ProcStat, ProcessHandle};
use super::incarnation_dir::{IncarnationDirectory, ProcessesFile, StartPhase};
use super::integrity::FileId;
use crate::executor_store::ObjectStore as _;
use crate::placeholders::DIRECTORY_VARIABLE;
use crate::state_file::FileAccess;

/// Maximum number of attempts to read all processes while none is started.
const TRIES: usize = 20;

/// Processes that are left of an incarnation, or in a control group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RemainingProcesses {
    Nothing,
    Something,
    /// Undetermined result, for this reason.
    Unknown(String),
}

/// Whether the pids of a record are valid here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StartedIn {
    /// Valid pids: this boot and PID namespace.
    Here,
    /// Invalid pids: everything recorded is dead.
    OtherBoot,
    /// Invalid pids: they are of another PID namespace.
    OtherNamespace,
}

impl StartedIn {
    /// Returns whether the pids of the record are valid.
    pub(super) fn of(record: &ProcessesFile, boot: &BootId) -> std::io::Result<StartedIn> {
        Ok(if record.boot != boot.id {
            StartedIn::OtherBoot
        } else if record.pid_namespace != identity::pid_namespace()? {
            StartedIn::OtherNamespace
        } else {
            StartedIn::Here
        })
    }
}

/// Result of a search for an incarnation's processes.
pub(super) struct ProcessSearch {
    /// Processes known to be of the incarnation.
    pub(super) ours: Vec<ProcessHandle>,
    pub(super) rest: RemainingProcesses,
}

/// Searches for processes that are left of the recorded incarnation.
pub(super) fn search(
    directory: &IncarnationDirectory,
    record: &ProcessesFile,
    origin: StartedIn,
) -> ProcessSearch {
    let populated = record.group.as_ref().map(IncarnationCgroup::populated);
    let (mut ours, accounted, unread) = match origin {
        StartedIn::OtherBoot => return ProcessSearch { ours: Vec::new(), rest: RemainingProcesses::Nothing },
        StartedIn::OtherNamespace => {
            (Vec::new(), RemainingProcesses::Unknown("started in another PID namespace".to_owned()), None)
        }
        StartedIn::Here => search_here(directory, record),
    };
    ours.extend(record.group.iter().flat_map(IncarnationCgroup::members));
    let rest = weigh(!ours.is_empty(), populated, accounted, unread);
    ProcessSearch { ours, rest }
}

/// Combines the findings: any process found, the state of the control group, the result without a group, and
/// why a process could not be judged.
fn weigh(
    has_any: bool,
    populated: Option<RemainingProcesses>,
    accounted: RemainingProcesses,
    unread: Option<String>,
) -> RemainingProcesses {
    match populated {
        _ if has_any => RemainingProcesses::Something,
        Some(RemainingProcesses::Something) => RemainingProcesses::Something,
        // An unread process may have left the group.
        _ if let Some(why) = unread => RemainingProcesses::Unknown(why),
        Some(RemainingProcesses::Nothing) => RemainingProcesses::Nothing,
        Some(RemainingProcesses::Unknown(why)) => match accounted {
            RemainingProcesses::Unknown(also) => RemainingProcesses::Unknown(format!("{also}, and {why}")),
            rest => rest,
        },
        None => accounted,
    }
}

/// Returns marked processes, the result without a control group, and why a process could not be judged.
fn search_here(
    directory: &IncarnationDirectory,
    record: &ProcessesFile,
) -> (Vec<ProcessHandle>, RemainingProcesses, Option<String>) {
    let (all, candidates, missed) = snapshot(directory, record);
    let (marks, mut environments) = (ProcessMarks::of(directory, record), EnvironmentReader::new());
    let (mut marked, mut others, mut unread) = (Vec::new(), Vec::new(), None);
    for stat in &candidates {
        match marks.are_on(stat, &all, &mut environments) {
            Ok(true) => marked.push(stat),
            Ok(false) => others.push(stat),
            Err(error) => unread = Some(error.to_string()),
        }
    }
    let open = |stat: &&ProcStat| ProcessHandle::open(stat.pid, stat.start_time).ok().flatten();
    let ours: Vec<ProcessHandle> = marked.iter().filter_map(open).collect();
    let rest = match others.first() {
        _ if identity::hides_processes() => RemainingProcesses::Unknown("/proc hides processes".to_owned()),
        _ if let Some(why) = missed => RemainingProcesses::Unknown(why),
        _ if let Some(why) = &unread => RemainingProcesses::Unknown(why.clone()),
        Some(stat) => {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", stat.pid)).unwrap_or_default();
            RemainingProcesses::Unknown(format!("process {} ({}) may belong to it", stat.pid, name.trim()))
        }
        // Marked processes may have ended since.
        None if marked.is_empty() => RemainingProcesses::Nothing,
        None => RemainingProcesses::Something,
    };
    (ours, rest, unread)
}

/// Returns all processes, those not accounted for, and why some may have been missed.
fn snapshot(
    directory: &IncarnationDirectory,
    record: &ProcessesFile,
) -> (BTreeMap<u32, ProcStat>, Vec<ProcStat>, Option<String>) {
    let mut found = (BTreeMap::new(), Vec::new(), None);
    for _ in 0..TRIES {
        let before = identity::started_since_boot().ok();
        let (all, unread) = match ProcStat::all() {
            Ok(all) => (all, None),
            Err(error) => (ProcStat::shown().unwrap_or_default(), Some(error.to_string())),
        };
        let all: BTreeMap<u32, ProcStat> = all.into_iter().map(|stat| (stat.pid, stat)).collect();
        let mut candidates = self::candidates(record, &all, &BTreeSet::new());
        if !candidates.is_empty() {
            candidates = self::candidates(record, &all, &recorded_elsewhere(directory, record));
        }
        let is_complete =
            unread.is_none() && before.is_some() && before == identity::started_since_boot().ok();
        let is_hopeless = unread.is_some();
        let faster = "processes are started faster than all can be read".to_owned();
        found = (all, candidates, (!is_complete).then(|| unread.unwrap_or(faster)));
        if is_complete || is_hopeless {
            break;
        }
    }
    found
}

/// Processes and supervisors that other incarnations of the executor recorded in this boot and namespace.
fn recorded_elsewhere(directory: &IncarnationDirectory, record: &ProcessesFile) -> BTreeSet<(u32, u64)> {
    let Some(nodes) = directory.path().ancestors().nth(2) else { return BTreeSet::new() };
    let nodes = super::entries(nodes).unwrap_or_default();
    let directories = nodes.iter().flat_map(|node| super::entries(node).unwrap_or_default());
    let others = directories.filter(|path| path != directory.path()).map(IncarnationDirectory::at);
    recorded(others, &record.boot, record.pid_namespace)
}

/// Processes and supervisors that incarnations in those directories recorded, in that boot and PID namespace.
pub(super) fn recorded(
    directories: impl Iterator<Item = IncarnationDirectory>,
    boot: &str,
    pid_namespace: u64,
) -> BTreeSet<(u32, u64)> {
    // A pending restart names the processes of an earlier boot.
    let are_here = |one: &ProcessesFile| {
        one.phase != StartPhase::Again && one.boot == boot && one.pid_namespace == pid_namespace
    };
    let records = directories
        .filter_map(|directory| directory.read::<ProcessesFile>(FileAccess::Observer).ok().flatten());
    let mut all = BTreeSet::new();
    for one in records.filter(are_here) {
        all.extend(one.ancestors.first().map(|supervisor| (supervisor.pid, supervisor.start_time)));
        all.extend(one.processes.iter().map(|process| (process.pid, process.start_time)));
    }
    all
}

/// Returns living processes that are not accounted for.
fn candidates(
    record: &ProcessesFile,
    all: &BTreeMap<u32, ProcStat>,
    elsewhere: &BTreeSet<(u32, u64)>,
) -> Vec<ProcStat> {
    let first = record.processes.iter().map(|process| process.start_time).min().unwrap_or(0);
    let me = std::process::id();
    let may_be = |stat: &&ProcStat| {
        stat.start_time >= first
            && stat.pid != me
            && !elsewhere.contains(&(stat.pid, stat.start_time))
            && !stat.is_dead()
            && identity::may_have_no_new_privs(stat.pid)
    };
    let suspects: BTreeSet<u32> = all.values().filter(may_be).map(|stat| stat.pid).collect();
    let is_adopter = |stat: &ProcStat| {
        stat.pid == 1 || record.ancestors.is_empty() || record.ancestors.contains(&stat.identity())
    };
    let is_left = |pid: u32| {
        let mut at = pid;
        // No chain is longer than the number of processes.
        for _ in 0..=all.len() {
            match all.get(&at).map(|stat| stat.parent) {
                // The parent is in a namespace above.
                Some(0) => return false,
                Some(parent) if suspects.contains(&parent) => at = parent,
                // A parent that has ended left its child to another process, which the next search finds.
                Some(parent) => return all.get(&parent).is_none_or(is_adopter),
                None => return true,
            }
        }
        true
    };
    suspects.iter().filter(|pid| is_left(**pid)).filter_map(|pid| all.get(pid)).copied().collect()
}

/// Marks on processes of an incarnation, unless the processes take care to drop them.
struct ProcessMarks<'a> {
    directory: &'a Path,
    place: Option<FileId>,
    /// Pipes in the directory, which the programs write into. Other files there may be read by any process.
    pipes: BTreeMap<OsString, FileId>,
    /// Numbers of sessions and groups, with the start times of their leaders.
    leaders: BTreeMap<u32, u64>,
    /// Whether each process id was most likely used only once since the record was created.
    are_ids_unique: bool,
}

/// Whether process ids were most likely not reused since a record was created: fewer processes were started than half
/// of the numbers. Forks that a control group limit refused take numbers too, and are not counted.
fn are_ids_unique(record: &ProcessesFile) -> bool {
    let (now, numbers) = (identity::started_since_boot(), identity::pid_numbers());
    let (Some(before), Ok(now), Ok(numbers)) = (record.started_before, now, numbers) else { return false };
    // Numbers in use are skipped, so that others are reused sooner.
    now.saturating_sub(before) < numbers / 2
}

/// Whether a session or group is the recorded one, by the start times of its recorded leader and its
/// current one. A leader of `None` has ended.
fn same_session(are_ids_unique: bool, recorded: u64, leader: Option<u64>) -> SameSession {
    match leader {
        Some(now) if now == recorded => SameSession::Yes,
        None if are_ids_unique => SameSession::Likely,
        Some(_) | None => SameSession::No,
    }
}

/// Whether a session or group is the one that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum SameSession {
    No,
    /// The leader has ended, and its number has most likely not been reused.
    Likely,
    Yes,
}

impl ProcessMarks<'_> {
    fn of<'a>(incarnation_directory: &'a IncarnationDirectory, record: &ProcessesFile) -> ProcessMarks<'a> {
        let place = |path: &Path| FileId::of(path).ok().flatten();
        let files = super::entries(incarnation_directory.path()).unwrap_or_default();
        let supervisor = record.ancestors.first().map(|one| (one.pid, one.start_time));
        let processes = record.processes.iter().map(|process| (process.pid, process.start_time));
        ProcessMarks {
            directory: incarnation_directory.path(),
            place: place(incarnation_directory.path()),
            pipes: files
                .iter()
                .filter(|path| is_pipe(path))
                .filter_map(|path| Some((path.file_name()?.to_owned(), place(path)?)))
                .collect(),
            leaders: processes.chain(supervisor).collect(),
            are_ids_unique: are_ids_unique(record),
        }
    }

    fn are_on(
        &self,
        stat: &ProcStat,
        all: &BTreeMap<u32, ProcStat>,
        environments: &mut EnvironmentReader,
    ) -> io::Result<bool> {
        // A number is reused only when its session and group have ended. A process that reused the number may
        // have led others, and ended.
        let same = |number: u32| {
            let leader = all.get(&number).map(|leader| leader.start_time);
            let recorded = self.leaders.get(&number);
            recorded.map_or(SameSession::No, |recorded| same_session(self.are_ids_unique, *recorded, leader))
        };
        let same = same(stat.session).max(same(stat.group));
        let has_any = same == SameSession::Yes
            || self.works_in(stat.pid)
            || identity::has_open(stat.pid, &self.pipes)
            || directory_named_by(stat, environments)?.is_some_and(|named| self.is_directory(&named));
        match same {
            _ if has_any => Ok(true),
            SameSession::No | SameSession::Yes => Ok(false),
            // Without its own control group, an incarnation is in that of the executor.
            SameSession::Likely if identity::is_in_own_group(stat.pid) => Ok(true),
            SameSession::Likely => Err(io::Error::other(format!(
                "process {} shares session or group {} with it, whose leader has ended, in another control group",
                stat.pid, stat.session
            ))),
        }
    }

    /// Whether the path is that directory. A path with another name is not resolved: its file system might
    /// not answer.
    fn is_directory(&self, path: &Path) -> bool {
        let is_same = || self.place.is_some() && FileId::of(path).ok().flatten() == self.place;
        path == self.directory || (path.file_name() == self.directory.file_name() && is_same())
    }

    fn works_in(&self, pid: u32) -> bool {
        let Ok(cwd) = std::fs::read_link(format!("/proc/{pid}/cwd")) else { return false };
        cwd.ancestors().any(|path| self.is_directory(path))
    }
}

fn is_pipe(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Returns the incarnation directory that the environment of a process names, if the process is alive.
pub(super) fn directory_named_by(
    stat: &ProcStat,
    environments: &mut EnvironmentReader,
) -> io::Result<Option<PathBuf>> {
    let environment = environments.read(stat)?;
    let value = |entry: &[u8]| {
        let value = entry.strip_prefix(DIRECTORY_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        Some(PathBuf::from(OsStr::from_bytes(value)))
    };
    Ok(environment.split(|byte| *byte == 0).find_map(value).filter(|_| !stat.is_dead()))
}

/// Supervisors of a directory that are visible here: the recorded one, and the holder of the lock.
pub(super) fn supervisors(
    directory: &IncarnationDirectory,
    record: Option<&ProcessesFile>,
    origin: Option<StartedIn>,
) -> Vec<ProcessHandle> {
    let recorded =
        record.and_then(|record| record.ancestors.first()).filter(|_| origin == Some(StartedIn::Here));
    let recorded = recorded.map(|one| (one.pid, one.start_time));
    let lock = FileId::of(&directory.file("supervisor.lock")).ok().flatten();
    let me = std::process::id();
    let all = lock.map(|_| ProcStat::shown().unwrap_or_default()).unwrap_or_default();
    let others = all.into_iter().filter(|stat| stat.pid != me);
    let holders = others.filter(|stat| lock.is_some_and(|lock| identity::has_locked(stat.pid, lock)));
    let all: BTreeMap<u32, u64> = holders.map(|stat| (stat.pid, stat.start_time)).chain(recorded).collect();
    all.into_iter()
        .filter_map(|(pid, start_time)| ProcessHandle::open(pid, start_time).ok().flatten())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_without_its_leader_is_a_mark_only_while_its_id_cannot_be_reused() {
        for (are_ids_unique, leader, wanted) in [
            (true, Some(7), SameSession::Yes),
            (true, Some(8), SameSession::No),
            (true, None, SameSession::Likely),
            (false, Some(7), SameSession::Yes),
            (false, Some(8), SameSession::No),
            (false, None, SameSession::No),
        ] {
            assert_eq!(same_session(are_ids_unique, 7, leader), wanted, "{are_ids_unique}, {leader:?}");
        }
    }

    #[test]
    fn a_process_that_cannot_be_identified_leaves_the_end_unknown_whatever_its_group_reports() {
        let unknown = || RemainingProcesses::Unknown("hidden".into());
        let why = || Some("unread".to_owned());
        for (has_any, populated, accounted, unread, wanted) in [
            (false, Some(RemainingProcesses::Nothing), unknown(), None, RemainingProcesses::Nothing),
            (
                false,
                Some(RemainingProcesses::Nothing),
                unknown(),
                why(),
                RemainingProcesses::Unknown("unread".into()),
            ),
            (false, None, RemainingProcesses::Nothing, why(), RemainingProcesses::Unknown("unread".into())),
            (false, None, RemainingProcesses::Nothing, None, RemainingProcesses::Nothing),
            (
                true,
                Some(RemainingProcesses::Nothing),
                RemainingProcesses::Nothing,
                why(),
                RemainingProcesses::Something,
            ),
            (
                false,
                Some(RemainingProcesses::Something),
                RemainingProcesses::Nothing,
                why(),
                RemainingProcesses::Something,
            ),
            (
                false,
                Some(RemainingProcesses::Unknown("ended".into())),
                unknown(),
                None,
                RemainingProcesses::Unknown("hidden, and ended".into()),
            ),
        ] {
            assert_eq!(weigh(has_any, populated, accounted, unread), wanted);
        }
    }
}
