//! Control groups (cgroup v2) that hold processes to their memory: a group for each, with all that it starts.
//!
//! Where no folder for groups is given, a limit holds for each process by itself (`trampoline`), and nothing can be
//! proved about why one of them ended.
//!
//! Source of the files and their meaning: the kernel's `Documentation/admin-guide/cgroup-v2.rst`.

use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// Says whether groups can be made in a folder; an error names what is missing.
pub(super) fn check(parent: &Path) -> io::Result<()> {
    let passed_on = parent.join("cgroup.subtree_control");
    let controllers = std::fs::read_to_string(&passed_on).map_err(|error| {
        let shown = passed_on.display();
        io::Error::new(error.kind(), format!("read {shown}: {error}; name a folder of cgroup v2 as cgroup"))
    })?;
    if controllers.split_ascii_whitespace().any(|controller| controller == "memory") {
        return Ok(());
    }
    let shown = passed_on.display();
    Err(io::Error::other(format!("groups get no memory controller: write +memory to {shown}")))
}

/// Makes a group of at most so much memory, none of it swapped out.
///
/// When it is exceeded the kernel ends everything in it (`memory.oom.group`): one that was counted is the end of each
/// process in the group, never that of a helper alone.
pub(super) fn make(path: &Path, memory: NonZeroU64) -> io::Result<()> {
    // A keeper that died before it recorded anything leaves an empty one.
    remove(path)?;
    std::fs::create_dir(path)?;
    std::fs::write(path.join("memory.oom.group"), "1")?;
    std::fs::write(path.join("memory.max"), memory.to_string())?;
    // Missing where the kernel does not count what is swapped out.
    let swap = path.join("memory.swap.max");
    if swap.exists() { std::fs::write(swap, "0") } else { Ok(()) }
}

/// Puts a process into a group; what it starts from then on is in it as well.
pub(super) fn put(path: &Path, pid: u32) -> io::Result<()> {
    std::fs::write(path.join("cgroup.procs"), pid.to_string())
}

/// Whether the kernel has ended the group for want of memory. It counts before it kills: who has seen the death sees
/// the count.
pub(super) fn was_ended(path: &Path) -> io::Result<bool> {
    Ok(is_ended(&std::fs::read_to_string(path.join("memory.events"))?))
}

fn is_ended(events: &str) -> bool {
    let kills = |line: &str| line.strip_prefix("oom_kill ")?.parse::<u64>().ok();
    events.lines().find_map(kills).is_some_and(|kills| kills > 0)
}

/// Removes an empty group; one that is not there is fine.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The group of a process.
pub(super) fn of(parent: &Path, incarnation: impl std::fmt::Display, process: &str) -> PathBuf {
    parent.join(format!("{incarnation}.{process}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_counted_end_of_the_group_is_one() {
        let events = "low 0\nhigh 0\nmax 41\noom 3\noom_kill ";
        assert!(is_ended(&format!("{events}2\noom_group_kill 1\n")));
        for events in [&format!("{events}0\n"), "max 41\noom 3\n", "oom_kill x", ""] {
            assert!(!is_ended(events), "{events}");
        }
    }

    #[test]
    fn a_folder_without_the_controller_is_refused_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let error = check(folder.path()).unwrap_err().to_string();
        assert!(error.contains("name a folder of cgroup v2"), "{error}");
        for (controllers, is_fine) in [("cpu memory\n", true), ("cpu io\n", false), ("memoryx", false)] {
            std::fs::write(folder.path().join("cgroup.subtree_control"), controllers).unwrap();
            assert_eq!(check(folder.path()).is_ok(), is_fine, "{controllers}");
        }
    }
}
