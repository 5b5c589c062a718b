//! Incarnations that run though their directory was removed while neither supervisor nor executor was alive.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chancery_events::id::IncarnationId;

use super::cgroup::{self, CgroupParent};
use super::identity::{self, EnvironmentReader, ProcStat};
use super::incarnation_dir::IncarnationDirectory;
use super::integrity::{DirectoryLoss, FileId};
use super::proof::{RemainingProcesses, directory_named_by};
use super::{ANSWER, ReconcilerKey};

/// Delay before unreadable processes are tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// Finds incarnations by the directory in the environment of processes, and by populated control groups.
/// Removes empty groups. Incarnations that have a directory, even without a readable record, are left out.
/// `listed` must have been listed before directories were read.
pub(super) fn find(
    root: &Path,
    cgroup: Option<&CgroupParent>,
    listed: Vec<IncarnationId>,
    kept: &BTreeSet<IncarnationId>,
) -> io::Result<Vec<ReconcilerKey>> {
    let nodes = root.join("nodes");
    let place = FileId::of(&nodes)?;
    let mut known = kept.clone();
    let mut lost = Vec::new();
    let mut add = |id, directory: IncarnationDirectory| {
        if known.insert(id) {
            tracing::error!(incarnation = %id, "processes run without their directory");
            lost.push(ReconcilerKey::Incarnation(id, directory, Some(DirectoryLoss::Removed)));
        }
    };
    let mut above_is_ours = BTreeMap::from([(nodes.clone(), place.is_some())]);
    for named in named_directories()? {
        let id = named.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let node = named.parent().and_then(Path::file_name);
        // Anything else that a program wrote there is not ours, and delays nothing.
        let above = named.ancestors().nth(2).filter(|above| above.file_name() == nodes.file_name());
        let (Some(id), Some(node), Some(above)) = (id, node, above) else { continue };
        let is_ours = above_is_ours
            .entry(above.to_owned())
            .or_insert_with(|| place.is_some() && identity::place_in_time(above.to_owned()) == place);
        if *is_ours {
            add(id, IncarnationDirectory::at(nodes.join(node).join(id.to_string())));
        }
    }
    for (id, group) in groups(cgroup, listed, kept)? {
        match group.populated() {
            // The node is unknown by now.
            RemainingProcesses::Something => {
                add(id, IncarnationDirectory::at(root.join("removed").join(id.to_string())));
            }
            RemainingProcesses::Nothing => {
                if let Err(error) = cgroup::remove(&group.path) {
                    tracing::warn!(%error, incarnation = %id, "cannot remove empty control group");
                }
            }
            RemainingProcesses::Unknown(why) => {
                tracing::warn!(why, incarnation = %id, "cannot determine whether processes are left");
            }
        }
    }
    Ok(lost)
}

/// Returns the directories that processes have in their environments. An unreadable process, which may only
/// be slow, is retried for some seconds.
fn named_directories() -> io::Result<Vec<PathBuf>> {
    let (mut named, mut until) = (Vec::new(), None);
    let mut unread = ProcStat::shown()?;
    unread.retain(|stat| identity::may_have_no_new_privs(stat.pid));
    loop {
        let mut environments = EnvironmentReader::new();
        let mut late = Vec::new();
        for stat in unread {
            match directory_named_by(&stat, &mut environments) {
                Ok(directory) => named.extend(directory),
                Err(error) => late.push((stat, error)),
            }
        }
        let until = *until.get_or_insert_with(|| Instant::now() + ANSWER);
        if late.is_empty() || Instant::now() >= until {
            for (_, error) in late {
                tracing::error!(%error, "cannot determine whether process belongs to an incarnation");
            }
            return Ok(named);
        }
        unread = late.into_iter().map(|(stat, _)| stat).collect();
        std::thread::sleep(AGAIN);
    }
}

/// Returns incarnations that have a group. A group is made after its directory: to compare both, list groups
/// first.
pub(super) fn listed(cgroup: Option<&CgroupParent>) -> io::Result<Vec<IncarnationId>> {
    cgroup.map_or(Ok(Vec::new()), CgroupParent::incarnations)
}

/// Returns the groups of incarnations without a directory.
fn groups(
    cgroup: Option<&CgroupParent>,
    listed: Vec<IncarnationId>,
    kept: &BTreeSet<IncarnationId>,
) -> io::Result<Vec<(IncarnationId, cgroup::IncarnationCgroup)>> {
    let Some(parent) = cgroup else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for id in listed.into_iter().filter(|id| !kept.contains(id)) {
        all.extend(parent.found(id)?.map(|group| (id, group)));
    }
    Ok(all)
}

/// Returns an incarnation without a directory of which anything may live, if its group was listed before
/// directories.
pub(super) fn user(
    cgroup: Option<&CgroupParent>,
    listed: Vec<IncarnationId>,
    kept: &BTreeSet<IncarnationId>,
) -> io::Result<Option<IncarnationId>> {
    let all = groups(cgroup, listed, kept)?;
    Ok(all.into_iter().find(|(_, group)| group.populated() != RemainingProcesses::Nothing).map(|(id, _)| id))
}
