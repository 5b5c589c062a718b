//! Cgroups v2 that this process can see.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::mounts;

/// Mount points of cgroup v2 hierarchies.
pub(super) fn roots() -> Vec<PathBuf> {
    mounts::of_type("cgroup2").unwrap_or_default()
}

/// All cgroups, parents before their children.
pub(super) fn all() -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut open = mounts::of_type("cgroup2")?;
    while let Some(dir) = open.pop() {
        // A cgroup that is removed meanwhile is not left.
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", dir.display()))?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
                found.insert(entry.path());
            }
        }
    }
    Ok(found)
}

/// Whether the name contains the id of one of the incarnations.
pub(super) fn names_one_of(cgroup: &Path, incarnations: &BTreeSet<&str>) -> bool {
    let Some(name) = cgroup.file_name().and_then(|name| name.to_str()) else { return false };
    // An id is 36 bytes of hexadecimal digits and hyphens.
    let ids = (0..name.len()).filter_map(|at| name.get(at..at + 36));
    ids.into_iter().any(|id| incarnations.contains(id))
}

/// Kills all processes in the cgroup, and removes the cgroup.
pub(super) fn end(cgroup: &Path) {
    let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
    for _ in 0..50 {
        if std::fs::remove_dir(cgroup).is_ok() || !cgroup.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Whether a cgroup can be created in one of the hierarchies.
pub fn is_writable() -> bool {
    roots().iter().any(|root| {
        let probe =
            root.join(format!("chancery-tests-{}-{:?}", std::process::id(), std::thread::current().id()));
        std::fs::create_dir(&probe).is_ok_and(|()| std::fs::remove_dir(&probe).is_ok())
    })
}
