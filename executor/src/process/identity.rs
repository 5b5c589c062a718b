//! Which process is meant: pid, start time and boot, never a pid alone, because pids are given anew.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stat {
    pub(super) pid: u32,
    pub(super) parent: u32,
    pub(super) group: u32,
    pub(super) start_time: u64,
    state: u8,
}

impl Stat {
    /// Reads it; `None` if there is no such process.
    pub(super) fn of(pid: u32) -> Option<Stat> {
        // The name of the program may hold anything, also what is not UTF-8.
        let bytes = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let after_name = bytes.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(bytes.get(after_name + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Stat {
            pid,
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            // Field 22 of the whole line; the first here is field 3.
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    /// Dead, though perhaps not reaped yet: init may take seconds over that.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// All processes that can be seen.
    pub(super) fn all() -> io::Result<Vec<Stat>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
                all.extend(Stat::of(pid));
            }
        }
        Ok(all)
    }
}

/// Which boot of which machine it is: where pids and start times mean something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Boot {
    /// Drawn by the kernel each time.
    pub id: String,
    /// The same after each reboot, and another one on every other machine; none if that cannot be told.
    pub machine: Option<String>,
}

impl Boot {
    /// As the kernel and `machine-id(5)` say.
    pub fn of_this_machine() -> io::Result<Boot> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let is_id = |word: &&str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        Ok(Boot { id, machine: Some(machine.trim()).filter(is_id).map(str::to_owned) })
    }
}

/// A living process that is the one that was meant.
#[derive(Debug)]
pub(super) struct Handle(OwnedFd);

impl Handle {
    /// `None` if it is dead, also if its pid is another's by now.
    pub(super) fn open(pid: u32, start_time: u64) -> io::Result<Option<Handle>> {
        let Some(pid_number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        let fd = match pidfd_open(pid_number, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Looked at after opening: from here on the descriptor cannot come to mean another process.
        let is_meant = Stat::of(pid).is_some_and(|stat| stat.start_time == start_time && !stat.is_dead());
        Ok(is_meant.then_some(Handle(fd)))
    }

    /// Sends a signal; a process that is dead by now is fine.
    pub(super) fn signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(&self.0, signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, "signal a process");
        }
    }
}

/// The descriptor becomes readable when the process ends.
impl AsRawFd for Handle {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// All living descendants of `root`, without itself.
pub(super) fn descendants(root: u32, all: &[Stat]) -> Vec<Stat> {
    let mut found: Vec<Stat> = Vec::new();
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
