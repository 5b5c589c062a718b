//! Processes as `/proc` shows them.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::cgroups;

/// Live process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostProcess {
    /// Process id in this PID namespace.
    pub pid: u32,
    /// Process id in the process's own PID namespace.
    pub inner_pid: u32,
    /// Process id of the parent.
    pub parent: u32,
    /// Start time in clock ticks since the boot.
    pub start_time: u64,
    name: String,
}

impl HostProcess {
    /// All visible processes.
    pub fn all() -> Result<Vec<HostProcess>> {
        let entries = std::fs::read_dir("/proc").context("cannot list /proc")?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(pids.filter_map(HostProcess::of).collect())
    }

    /// Process with this id; `None` if there is none or a zombie.
    pub fn of(pid: u32) -> Option<HostProcess> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        Some(HostProcess {
            pid,
            inner_pid: inner_pid(pid)?,
            parent: fields.get(1)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
            name: head.split_once('(')?.1.to_owned(),
        })
    }

    /// Whether the process is still alive.
    pub fn is_alive(&self) -> bool {
        HostProcess::of(self.pid).is_some_and(|now| now.start_time == self.start_time)
    }

    /// Cgroups v2 of the process as directories, innermost first.
    pub(super) fn cgroups(&self) -> Vec<PathBuf> {
        let text = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
        let within = Path::new(path).ancestors().filter(|path| !path.as_os_str().is_empty());
        let within: Vec<_> = within.collect();
        cgroups::roots().iter().flat_map(|root| within.iter().map(|path| root.join(path))).collect()
    }

    /// Working directory, if it can be read.
    pub fn directory(&self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()
    }

    /// Whether the environment names a volume.
    pub(super) fn uses_volume(&self) -> bool {
        self.environ().split(|byte| *byte == 0).any(|pair| pair.starts_with(b"CHANCERY_VOLUME_"))
    }

    /// Whether the environment names a replica of the plan.
    pub(crate) fn is_of_plan(&self, plan: &str) -> bool {
        let start = format!("CHANCERY_REPLICA={plan}-");
        self.environ().split(|byte| *byte == 0).any(|pair| pair.starts_with(start.as_bytes()))
    }

    /// Whether the environment is a payload's with a working directory under `root`.
    pub(super) fn is_payload_under(&self, root: &Path) -> bool {
        let environ = self.environ();
        let value = |name: &[u8]| environ.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(name));
        let home = value(b"HOME=").map(|home| PathBuf::from(std::ffi::OsStr::from_bytes(home)));
        value(b"CHANCERY_INCARNATION=").is_some()
            && home.is_some_and(|home| home.canonicalize().unwrap_or(home).starts_with(root))
    }

    /// Whether the environment contains the path `root`.
    pub(super) fn names(&self, root: &Path) -> bool {
        let bytes = root.as_os_str().as_bytes();
        self.environ().windows(bytes.len()).any(|part| part == bytes)
    }

    /// Whether arguments or environment contain `root`, or the working directory, root or an open file is
    /// under it.
    pub(super) fn has_anything_under(&self, root: &Path) -> bool {
        let bytes = root.as_os_str().as_bytes();
        let names = |text: &[u8]| text.windows(bytes.len()).any(|part| part == bytes);
        let proc = |what: &str| format!("/proc/{}/{what}", self.pid);
        if names(&std::fs::read(proc("cmdline")).unwrap_or_default()) || names(&self.environ()) {
            return true;
        }
        let descriptors =
            std::fs::read_dir(proc("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        let links = [PathBuf::from(proc("cwd")), PathBuf::from(proc("root"))].into_iter().chain(descriptors);
        links.filter_map(|link| std::fs::read_link(link).ok()).any(|target| target.starts_with(root))
    }

    fn environ(&self) -> Vec<u8> {
        std::fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default()
    }
}

impl fmt::Display for HostProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}, child of {})", self.pid, self.name, self.parent)
    }
}

fn inner_pid(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().next_back()?.parse().ok()
}
