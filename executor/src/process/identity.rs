//! Identity of a process: pid, start time and boot, never a pid alone, because pids are reused.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::integrity::FileId;
use super::{lock, named};
use crate::state_file::if_found;

/// Content of `/proc/PID/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ProcStat {
    pub(super) pid: u32,
    pub(super) parent: u32,
    pub(super) group: u32,
    pub(super) session: u32,
    pub(super) start_time: u64,
    state: u8,
    threads: u32,
}

impl ProcStat {
    /// Reads the file; `None` if there is no such process. After an error there may be one.
    pub(super) fn of(pid: u32) -> io::Result<Option<ProcStat>> {
        let Some(bytes) = read(pid, "stat")? else { return Ok(None) };
        let unclear = || io::Error::new(ErrorKind::InvalidData, format!("cannot parse /proc/{pid}/stat"));
        ProcStat::parse(pid, &bytes).map(Some).ok_or_else(unclear)
    }

    fn parse(pid: u32, bytes: &[u8]) -> Option<ProcStat> {
        // The name of the program may hold any bytes, also invalid UTF-8.
        let after_name = bytes.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(bytes.get(after_name + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(ProcStat {
            pid,
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            // Field 22 of the line; the first here is field 3.
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether the process is dead, perhaps not reaped yet: init may take seconds. A process whose first
    /// thread has ended lives while other threads do.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, b'X' | b'x') || (self.state == b'Z' && self.threads <= 1)
    }

    pub(super) fn identity(&self) -> ProcessIdentity {
        ProcessIdentity { pid: self.pid, start_time: self.start_time }
    }

    /// Returns all processes. Fails if one exists and cannot be read.
    pub(super) fn all() -> io::Result<Vec<ProcStat>> {
        pids()?.into_iter().filter_map(|pid| ProcStat::of(pid).transpose()).collect()
    }

    /// Returns all processes but those that a security module hides.
    pub(super) fn shown() -> io::Result<Vec<ProcStat>> {
        let is_shown = |stat: &io::Result<ProcStat>| {
            let is_hidden = |kind| matches!(kind, ErrorKind::PermissionDenied | ErrorKind::InvalidData);
            !stat.as_ref().is_err_and(|error| is_hidden(error.kind()))
        };
        pids()?.into_iter().filter_map(|pid| ProcStat::of(pid).transpose()).filter(is_shown).collect()
    }
}

fn pids() -> io::Result<Vec<u32>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        all.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(all)
}

/// Reads a file of a process; `None` if there is no such process. Any other failure, as a lack of
/// descriptors, proves nothing about the process.
fn read(pid: u32, file: &str) -> io::Result<Option<Vec<u8>>> {
    match if_found(std::fs::read(format!("/proc/{pid}/{file}"))) {
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        read => read.map_err(named(format_args!("cannot read /proc/{pid}/{file}"))),
    }
}

/// Time limit for the kernel to read an environment, and for a disk to resolve a path.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time limit of a reader after its first timeout: many processes may wait for one disk.
const SHORT_PATIENCE: Duration = Duration::from_millis(10);

/// Processes whose environments are still being read after a timeout.
static HANGING: Mutex<BTreeSet<ProcessIdentity>> = Mutex::new(BTreeSet::new());

/// Reader of process environments.
///
/// The kernel reads an environment from the memory of the process. The kernel waits while the process waits
/// for a disk with its memory locked (`mmap` of a file on a network file system without server). So
/// environments are read on a separate thread. A read that takes longer than 1 s fails, and its thread is
/// abandoned; until it ends, further reads of the same process fail immediately. A reader waits only 10 ms
/// for each read after its first timeout.
pub(super) struct EnvironmentReader {
    patience: Duration,
    read: Arc<dyn Fn(u32) -> io::Result<Vec<u8>> + Send + Sync>,
    thread: Option<ReadingThread>,
}

struct ReadingThread {
    wanted: mpsc::Sender<ProcessIdentity>,
    found: mpsc::Receiver<io::Result<Vec<u8>>>,
}

impl EnvironmentReader {
    /// Creates a reader of `/proc`.
    pub(super) fn new() -> EnvironmentReader {
        EnvironmentReader {
            patience: PATIENCE,
            read: Arc::new(|pid| match read(pid, "environ") {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(Vec::new()),
                read => Ok(read?.unwrap_or_default()),
            }),
            thread: None,
        }
    }

    /// Reads the environment of a process; empty if there is no such process, or if access is denied.
    pub(super) fn read(&mut self, process: &ProcStat) -> io::Result<Vec<u8>> {
        let (pid, identity) = (process.pid, process.identity());
        let late = || {
            let why = "the process waits for a disk with its memory locked";
            io::Error::new(ErrorKind::TimedOut, format!("cannot read /proc/{pid}/environ: {why}"))
        };
        if lock(&HANGING).contains(&identity) {
            return Err(late());
        }
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => ReadingThread::begin(self.read.clone())?,
        };
        let _ = thread.wanted.send(identity);
        let found = thread.found.recv_timeout(self.patience).or_else(|_| {
            self.patience = SHORT_PATIENCE;
            // The thread removes the process after it has answered, so that no entry stays.
            let mut hanging = lock(&HANGING);
            thread.found.try_recv().inspect_err(|_| _ = hanging.insert(identity))
        });
        let found = found.map_err(|_| late())?;
        self.thread = Some(thread);
        found
    }
}

impl ReadingThread {
    fn begin(read: Arc<dyn Fn(u32) -> io::Result<Vec<u8>> + Send + Sync>) -> io::Result<ReadingThread> {
        let ((wanted, asked), (answers, found)) = (mpsc::channel::<ProcessIdentity>(), mpsc::channel());
        thread::Builder::new().name("environments".into()).spawn(move || {
            for identity in asked {
                let answered = answers.send(read(identity.pid));
                lock(&HANGING).remove(&identity);
                if answered.is_err() {
                    return;
                }
            }
        })?;
        Ok(ReadingThread { wanted, found })
    }
}

/// Returns the identity of the file at another program's path, if its disk answers in time.
pub(super) fn place_in_time(path: PathBuf) -> Option<FileId> {
    let (sender, found) = mpsc::channel();
    let look = move || drop(sender.send(FileId::of(&path)));
    thread::Builder::new().name("place".into()).spawn(look).ok()?;
    let found = found.recv_timeout(PATIENCE).inspect_err(|_| {
        tracing::warn!("directory in environment of a process skipped: its disk does not answer");
    });
    found.ok()?.ok()?
}

/// Pid with its start time, in clock ticks since the boot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    pub(super) pid: u32,
    pub(super) start_time: u64,
}

/// Returns the number of process ids after which the kernel reuses one: all but those reserved for the boot.
pub(super) fn pid_numbers() -> io::Result<u64> {
    const RESERVED: u64 = 300;
    let text = std::fs::read_to_string("/proc/sys/kernel/pid_max")?;
    let numbers: u64 = text.trim().parse().map_err(io::Error::other)?;
    Ok(numbers.saturating_sub(RESERVED))
}

/// Returns this process and its ancestors: besides the init of the namespace, all that may adopt its orphaned
/// children. Empty if they cannot all be read: any process may be one then.
pub(super) fn self_and_ancestors() -> Vec<ProcessIdentity> {
    let read = || {
        let mut all: Vec<ProcessIdentity> = Vec::new();
        let mut next = ProcStat::of(std::process::id())?;
        while let Some(stat) = next {
            all.push(stat.identity());
            next = ProcStat::of(stat.parent)?;
            // An ancestor that ends meanwhile leaves its children to another.
            if next.is_none() && stat.parent != 0 {
                return Ok(Vec::new());
            }
        }
        Ok::<_, io::Error>(all)
    };
    read().unwrap_or_default()
}

/// Returns the PID namespace of this process: pids are valid only within one. Its number is reused only once
/// nothing lives in the namespace.
pub(super) fn pid_namespace() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    if pids.split_ascii_whitespace().count() > 1 {
        let why =
            "it belongs to another PID namespace\nhint: mount the executor's own (unshare --mount-proc)";
        return Err(io::Error::other(format!("cannot use /proc: {why}")));
    }
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino())
}

/// Whether a trampoline may have started the process: each sets `no_new_privs`, which is inherited and never
/// unset. False for an ended process, true for an unreadable one.
pub(super) fn may_have_no_new_privs(pid: u32) -> bool {
    let Ok(status) = read(pid, "status") else { return true };
    let has = |status: &[u8]| {
        let mut lines = status.split(|byte| *byte == b'\n');
        lines
            .find_map(|line| line.strip_prefix(b"NoNewPrivs:"))
            .is_none_or(|value| value.trim_ascii() != b"0")
    };
    status.is_some_and(|status| has(&status))
}

/// Number of processes and threads started since the boot, ended ones included.
pub(super) fn started_since_boot() -> io::Result<u64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let count = stat.lines().find_map(|line| line.strip_prefix("processes ")?.trim().parse().ok());
    count.ok_or_else(|| io::Error::other("cannot read /proc/stat: no count of processes"))
}

/// Whether a process is in the control groups of this process.
pub(super) fn is_in_own_group(pid: u32) -> bool {
    let groups = |pid: &dyn std::fmt::Display| std::fs::read(format!("/proc/{pid}/cgroup"));
    matches!((groups(&pid), groups(&"self")), (Ok(its), Ok(own)) if its == own)
}

/// Whether `/proc` may hide processes.
pub(super) fn hides_processes() -> bool {
    std::fs::read("/proc/self/mountinfo").map_or(true, |mounts| {
        let mounts = String::from_utf8_lossy(&mounts);
        let proc = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/proc"));
        proc.flat_map(|line| line.split([' ', ',']))
            .any(|option| option.strip_prefix("hidepid=").is_some_and(|value| !matches!(value, "0" | "off")))
    })
}

/// Whether a process has one of these files open, given by name. Files with other names are not resolved:
/// their file system might not answer.
pub(super) fn has_open(pid: u32, files: &BTreeMap<OsString, FileId>) -> bool {
    descriptors(pid).iter().any(|descriptor| {
        let file = std::fs::read_link(descriptor).unwrap_or_default();
        let place = file.file_name().and_then(|name| files.get(name));
        place.is_some_and(|place| matches!(FileId::of(descriptor), Ok(Some(found)) if found == *place))
    })
}

/// Whether a process holds a lock (`flock(2)`) on a file. Descriptors without a lock on that inode are not
/// resolved.
pub(super) fn has_locked(pid: u32, file: FileId) -> bool {
    descriptors(pid).iter().any(|descriptor| {
        let info = descriptor.file_name().map(|number| format!("/proc/{pid}/fdinfo/{}", number.display()));
        let info = info.and_then(|info| std::fs::read_to_string(info).ok()).unwrap_or_default();
        let is_its_inode = |line: &str| {
            line.contains("FLOCK") && line.split([' ', ':']).any(|word| word.parse() == Ok(file.inode))
        };
        info.lines().any(is_its_inode) && matches!(FileId::of(descriptor), Ok(Some(found)) if found == file)
    })
}

fn descriptors(pid: u32) -> Vec<PathBuf> {
    super::entries(Path::new(&format!("/proc/{pid}/fd"))).unwrap_or_default()
}

/// Boot and machine in which pids and start times are valid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BootId {
    /// Random id that the kernel generates at each boot.
    pub id: String,
    /// Id that is the same after each reboot, and differs between machines; `None` if unknown.
    pub machine: Option<String>,
}

impl BootId {
    /// Returns the ids of the kernel and of `machine-id(5)`.
    pub fn of_this_machine() -> io::Result<BootId> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let is_id = |word: &&str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        Ok(BootId { id, machine: Some(machine.trim()).filter(is_id).map(str::to_owned) })
    }
}

/// Handle of a living process whose identity was verified.
#[derive(Debug)]
pub(super) struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// Opens a process; `None` if it is dead, also if another process has its pid.
    pub(super) fn open(pid: u32, start_time: u64) -> io::Result<Option<ProcessHandle>> {
        let Some(pid_number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        let fd = match pidfd_open(pid_number, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Checked after opening: from here on the descriptor cannot refer to another process.
        let is_meant =
            ProcStat::of(pid)?.is_some_and(|stat| stat.start_time == start_time && !stat.is_dead());
        Ok(is_meant.then_some(ProcessHandle(fd)))
    }

    /// Sends a signal; a dead process is not an error.
    pub(super) fn signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(&self.0, signal)
            && error != Errno::SRCH
        {
            tracing::warn!(%error, "cannot signal process");
        }
    }
}

/// Descriptor that is readable once the process ends.
impl AsRawFd for ProcessHandle {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Returns all living descendants of `root`, without `root`.
pub(super) fn descendants(root: u32, all: &[ProcStat]) -> Vec<ProcStat> {
    let mut found: Vec<ProcStat> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for stat in all.iter().filter(|stat| stat.parent == parent) {
            parents.push(stat.pid);
            if !stat.is_dead() {
                found.push(*stat);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_process_whose_environment_cannot_be_read_blocks_nothing() {
        let process = |pid| ProcStat { pid, ..ProcStat::of(std::process::id()).unwrap().unwrap() };
        // No process has one of these pids.
        let (hanging, other) = (process(u32::MAX), process(u32::MAX - 1));
        let (release, hangs) = mpsc::channel::<()>();
        let (hangs, reads) = (Mutex::new(hangs), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&reads);
        let read = move |pid| {
            count.fetch_add(1, Ordering::Relaxed);
            if pid == u32::MAX {
                let _ = lock(&hangs).recv();
            }
            Ok(b"A=b".to_vec())
        };
        let mut reader = EnvironmentReader { read: Arc::new(read), ..EnvironmentReader::new() };
        for _ in 0..3 {
            assert_eq!(reader.read(&hanging).map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
            assert_eq!(reader.read(&other).ok(), Some(b"A=b".to_vec()));
        }
        assert_eq!(reads.load(Ordering::Relaxed), 4, "a path that hangs is not read again");
        drop(release);
        while lock(&HANGING).contains(&hanging.identity()) {
            thread::yield_now();
        }
        assert_eq!(reader.read(&hanging).ok(), Some(b"A=b".to_vec()));
    }
}
