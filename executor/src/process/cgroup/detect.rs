//! Directory for control groups on this host, found by making a group.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use super::super::integrity::FileId;
use super::super::named;
use super::super::removal::unescaped;
use super::{CgroupParent, count_of, make_directory, remove};
use crate::locked_directory::random;

/// Directory in which groups are made, unless the setting names another one.
const NAME: &str = "chancery";
/// Prefix of the names of trial groups.
const TRIAL: &str = "trial-";
/// Age from which a trial group is a leftover.
const STALE: Duration = Duration::from_mins(1);

/// Location of control groups.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CgroupSetting {
    /// Executor's own group, or for root the root of the mount, if usable (default).
    #[default]
    Detect,
    /// No control groups.
    Off,
    /// This directory, with memory limits.
    At(PathBuf),
}

/// Method that proves ends of processes on a host when their supervisor has died.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EndProof {
    /// Control groups in this directory.
    Cgroup(PathBuf),
    /// Search through `/proc`, for this reason.
    Search(String),
}

/// Control group support of a host.
#[derive(Debug)]
pub struct CgroupSupport {
    /// Method that proves ends.
    pub proof: EndProof,
    /// Directory of the groups of all executors, if groups can be made.
    parent: Option<CgroupParent>,
}

/// Mount of cgroup v2: the group at the root of the mount, and the mount point.
type CgroupMount = (PathBuf, PathBuf);

/// Reads a file of procfs. Names of mount points are bytes, which need not be UTF-8.
fn read_lossy(path: &str) -> io::Result<String> {
    let bytes = std::fs::read(path).map_err(named(format_args!("cannot read {path}")))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl CgroupSupport {
    /// Tries what the setting requests. Fails if a directory named by the setting cannot be used.
    pub fn detect(setting: &CgroupSetting) -> io::Result<CgroupSupport> {
        let none = |reason| CgroupSupport { proof: EndProof::Search(reason), parent: None };
        match setting {
            CgroupSetting::Off => Ok(none("the setting cgroup is none".to_owned())),
            CgroupSetting::At(path) => {
                let mounts = mounts(&read_lossy("/proc/self/mountinfo")?);
                check_memory(path)?;
                let real = path.canonicalize()?;
                let mount = mounts.into_iter().map(|(_, at)| at).filter(|at| real.starts_with(at));
                let mount = mount.max_by_key(|at| at.components().count());
                let (proof, mount) = match (mount, trial(path)) {
                    (Some(mount), Ok(())) => (EndProof::Cgroup(path.clone()), Some(mount)),
                    (None, _) => {
                        let reason = format!("{} is not in a mount of cgroup v2", path.display());
                        (EndProof::Search(reason), None)
                    }
                    (Some(_), Err(error)) => (EndProof::Search(error.to_string()), None),
                };
                let parent = CgroupParent { path: path.clone(), mount, memory: true };
                Ok(CgroupSupport { proof, parent: Some(parent) })
            }
            CgroupSetting::Detect => {
                // Missing without procfs, or in a kernel without control groups.
                let (mounts, own) =
                    match (read_lossy("/proc/self/mountinfo"), read_lossy("/proc/self/cgroup")) {
                        (Ok(mountinfo), Ok(own)) => (mounts(&mountinfo), own),
                        (Err(error), _) | (_, Err(error)) => return Ok(none(error.to_string())),
                    };
                let mut reasons = Vec::new();
                for (mount, path) in candidates(&mounts, &own, rustix::process::geteuid().is_root()) {
                    match trial_below(&path) {
                        Ok(path) => {
                            let proof = EndProof::Cgroup(path.clone());
                            let parent = CgroupParent { path, mount: Some(mount), memory: false };
                            return Ok(CgroupSupport { proof, parent: Some(parent) });
                        }
                        Err(error) => reasons.push(error.to_string()),
                    }
                }
                let missing =
                    || "cgroup v2 is not mounted, or the executor's group is outside of its mount".to_owned();
                let reason = reasons.into_iter().reduce(|all, one| format!("{all}; {one}"));
                Ok(none(reason.unwrap_or_else(missing)))
            }
        }
    }

    /// Returns the directory for the groups of the executor in the directory `root`.
    pub(in super::super) fn parent(self, root: &Path) -> io::Result<Option<CgroupParent>> {
        let Some(parent) = self.parent else { return Ok(None) };
        let place = FileId::of(root)?.ok_or(ErrorKind::NotFound)?;
        Ok(Some(CgroupParent { path: parent.path.join(place.to_string()), ..parent }))
    }
}

/// Fails if a directory does not delegate the memory controller; the error names what is missing.
fn check_memory(parent: &Path) -> io::Result<()> {
    let passed_on = parent.join("cgroup.subtree_control");
    let shown = passed_on.display();
    let controllers = std::fs::read_to_string(&passed_on).map_err(|error| {
        let advice = "name a directory of cgroup v2 as cgroup";
        io::Error::new(error.kind(), format!("cannot read {shown}: {error}; {advice}"))
    })?;
    if controllers.split_ascii_whitespace().any(|controller| controller == "memory") {
        return Ok(());
    }
    Err(io::Error::other(format!("cannot limit memory: write +memory to {shown}")))
}

/// Mounts of cgroup v2 in the text of `/proc/self/mountinfo`.
fn mounts(mountinfo: &str) -> Vec<CgroupMount> {
    let mount = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        file_system.starts_with("cgroup2 ").then(|| (unescaped(root.as_bytes()), unescaped(at.as_bytes())))
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// Groups to try, each with its mount point: the own group first.
fn candidates(mounts: &[CgroupMount], own: &str, is_root: bool) -> Vec<CgroupMount> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"));
    let own_in = |(root, at): &CgroupMount| {
        let below = Path::new(own?).strip_prefix(root).ok()?;
        // Joined by components: an empty remainder adds none.
        Some((at.clone(), at.components().chain(below.components()).collect()))
    };
    let all_of = mounts.iter().filter(|_| is_root).map(|(_, at)| (at.clone(), at.clone()));
    let mut all: Vec<CgroupMount> = mounts.iter().filter_map(own_in).chain(all_of).collect();
    all.dedup();
    all
}

/// Makes the directory for groups in a group, and a trial group in that.
fn trial_below(group: &Path) -> io::Result<PathBuf> {
    let parent = group.join(NAME);
    let named = named(format!("cannot create {}", parent.display()));
    make_directory(&parent).map_err(&named)?;
    // A process is moved only by a caller that may write to the common ancestor of both groups.
    access(group.join("cgroup.procs"), Access::WRITE_OK).map_err(|error| named(error.into()))?;
    trial(&parent)?;
    Ok(parent)
}

/// Makes and removes a group, and checks that it has what a proof needs.
fn trial(parent: &Path) -> io::Result<()> {
    clear_trials(parent);
    let path = parent.join(format!("{TRIAL}{:016x}", random()?));
    std::fs::create_dir(&path)
        .and_then(|()| {
            let tried = try_group(&path);
            remove(&path).and(tried)
        })
        .map_err(named(format_args!("cannot use control groups in {}", parent.display())))
}

/// Removes trial groups of executors that were killed during a trial.
fn clear_trials(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        let is_trial = entry.file_name().to_string_lossy().starts_with(TRIAL);
        if is_trial && age().is_some_and(|age| age > STALE) {
            // Another executor may be quicker.
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

fn try_group(path: &Path) -> io::Result<()> {
    let events = std::fs::read_to_string(path.join("cgroup.events"))?;
    if count_of(&events, "populated") != Some(0) {
        return Err(io::Error::other("cgroup.events of a new group does not report whether it is populated"));
    }
    if std::fs::read_to_string(path.join("cgroup.type"))?.trim() != "domain" {
        return Err(io::Error::other("a new group is not a domain"));
    }
    if !path.join("cgroup.kill").exists() {
        return Err(io::Error::other("cgroup.kill is missing: the kernel is older than 5.14"));
    }
    Ok(access(path.join("cgroup.procs"), Access::WRITE_OK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_the_controller_is_refused_with_advice() {
        let directory = tempfile::tempdir().unwrap();
        let error = check_memory(directory.path()).unwrap_err().to_string();
        assert!(error.contains("name a directory of cgroup v2"), "{error}");
        for (controllers, is_fine) in [("cpu memory\n", true), ("cpu io\n", false), ("memoryx", false)] {
            std::fs::write(directory.path().join("cgroup.subtree_control"), controllers).unwrap();
            assert_eq!(check_memory(directory.path()).is_ok(), is_fine, "{controllers}");
        }
    }

    #[test]
    fn the_own_group_is_tried_first_and_the_root_of_the_mount_by_root_alone() {
        let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            31 22 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n\
            32 22 0:28 /part /mnt/a\\040b rw - cgroup2 cgroup2 rw\n";
        let mounts = mounts(text);
        let tried = |own: &str, is_root| {
            let all = candidates(&mounts, own, is_root).into_iter().map(|(_, path)| path);
            all.map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(tried("1:cpu:/x\n0::/part/web\n", false), ["/sys/fs/cgroup/part/web", "/mnt/a b/web"]);
        assert_eq!(tried("0::/user\n", false), ["/sys/fs/cgroup/user"], "outside of the second mount");
        assert_eq!(tried("0::/\n", true), ["/sys/fs/cgroup", "/mnt/a b"]);
        assert_eq!(tried("1:cpu:/x\n", false), Vec::<String>::new(), "version 1 alone");
        assert_eq!(tried("1:cpu:/x\n", true), ["/sys/fs/cgroup", "/mnt/a b"]);
    }

    #[test]
    fn a_plain_directory_is_no_control_group() {
        let directory = tempfile::tempdir().unwrap();
        let error = trial_below(directory.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot create "), "{error}");
        assert!(trial(directory.path()).is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no trial is left");
    }
}
