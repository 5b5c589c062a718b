//! Users of a volume, and the check that a volume may be used.
//!
//! The same lock (`Shared::using`) is held while a user or a volume's destruction is recorded: one of the two
//! finds the other.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use chancery_events::id::{IncarnationId, ObjectId, VolumeId};
use chancery_events::protocol::IncarnationSpec;
use chancery_events::spec::VOLUME_VARIABLE;

use super::super::identity::{self, EnvironmentReader, ProcStat};
use super::super::incarnation_dir::{IncarnationDirectory, ProcessesFile, SpecFile};
use super::super::integrity::FileId;
use super::super::proof;
use super::super::{ProcessShared, entries, lost, named};
use super::directory::{VolumeDirectory, VolumeFile};
use crate::executor_store::{
    DirectoryStore, ExecutorStore as _, ObjectStore as _, TombstoneFile, VolumeLookup,
};
use crate::state_file::FileAccess;

/// Returns the path of a volume's content if the volume may be used, else the reason.
pub(in super::super) fn place(volumes: &Path, volume: VolumeId) -> Result<PathBuf, String> {
    usable(volumes, volume).map(|(directory, _)| directory.data())
}

/// Returns a volume's directory and record if the volume may be used, else the reason.
pub(super) fn usable(volumes: &Path, volume: VolumeId) -> Result<(VolumeDirectory, VolumeFile), String> {
    let directory = VolumeDirectory::of(volumes, volume);
    let unreadable = |error: io::Error| format!("cannot read volume {volume}: {error}");
    match directory.look().map_err(unreadable)? {
        VolumeLookup::Ours(kept)
            if kept.is_up() && directory.missing(kept.form).map_err(unreadable)?.is_none() =>
        {
            Ok((directory, kept))
        }
        VolumeLookup::Ours(_) | VolumeLookup::Nothing => {
            Err(format!("cannot use volume {volume}: not found"))
        }
        VolumeLookup::Foreign(why) => Err(format!("cannot use volume {volume}: {why}")),
    }
}

/// Whether the spec mounts any volume.
pub(in super::super) fn mounts_any(spec: &IncarnationSpec) -> bool {
    spec.payloads.iter().any(|payload| !payload.mounts.is_empty())
}

/// Checks that an incarnation may use each volume that it mounts: the volume exists, and has no other user.
/// An orphan unknown to the decider may be one. A copy of one of the volumes is interrupted. Fails with `TimedOut` if a process cannot be read.
pub(in super::super) fn check(
    shared: &ProcessShared,
    spec: &IncarnationSpec,
    of: IncarnationId,
) -> io::Result<()> {
    let volumes = shared.volumes();
    let mounts = spec.payloads.iter().flat_map(|payload| &payload.mounts);
    let mounted: BTreeMap<_, _> =
        mounts.map(|mount| (mount.volume, VolumeDirectory::of(&volumes, mount.volume))).collect();
    for volume in mounted.keys() {
        place(&volumes, *volume).map_err(io::Error::other)?;
    }
    match user(shared, &mounted, Some(of)) {
        Ok(None) => {
            for volume in mounted.keys() {
                shared.interrupt_copy(*volume);
            }
            Ok(())
        }
        Ok(Some((volume, user))) => {
            Err(io::Error::other(format!("cannot use volume {volume}: in use by {user}")))
        }
        Err(error) => Err(named("cannot determine users of volumes")(error)),
    }
}

/// User or possible user of a volume.
pub(super) enum VolumeUser {
    /// Incarnation that has not ended, with its directory.
    Incarnation(IncarnationId, IncarnationDirectory),
    /// Incarnation whose records are lost.
    Lost(IncarnationId),
    /// Process that was given the volume.
    Process(u32),
}

impl fmt::Display for VolumeUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeUser::Incarnation(id, _) => write!(f, "{id}"),
            VolumeUser::Lost(id) => write!(f, "{id}, whose records are lost"),
            VolumeUser::Process(pid) => write!(f, "process {pid}"),
        }
    }
}

/// Returns a user or possible user of one of the volumes, except `besides`: an incarnation that has not
/// ended, or a remaining process of one. One search is for all volumes, as a host may have many processes.
pub(super) fn user(
    shared: &ProcessShared,
    directories: &BTreeMap<VolumeId, VolumeDirectory>,
    besides: Option<IncarnationId>,
) -> io::Result<Option<(VolumeId, VolumeUser)>> {
    let nodes = shared.root.join("nodes");
    // Incarnations that are recorded meanwhile mount no volumes.
    let listed = lost::listed(shared.cgroup.as_ref())?;
    let (mut kept, mut bystanders) = (BTreeSet::new(), Vec::new());
    let listed_nodes = entries(&nodes)?.into_iter().map(|node| DirectoryStore::at(node).list());
    for (id, path) in listed_nodes.collect::<io::Result<Vec<_>>>()?.into_iter().flatten() {
        let Some(ObjectId::Incarnation(id)) = id else { continue };
        // The volumes of other incarnations are unknown: the control group shows whether anything of them
        // lives.
        let Ok(VolumeLookup::Ours(wanted)) = path.look::<SpecFile>(id.into()) else { continue };
        let directory = IncarnationDirectory::at(path);
        kept.insert(id);
        if !mounts(&wanted).any(|volume| directories.contains_key(&volume)) {
            bystanders.push(directory);
        } else if besides != Some(id)
            && let Some(volume) = directories.keys().find(|volume| uses(&directory, &wanted, **volume))
        {
            return Ok(Some((*volume, VolumeUser::Incarnation(id, directory))));
        }
    }
    // The volumes of such an incarnation are unknown by now.
    if let (Some(id), Some(volume)) =
        (lost::user(shared.cgroup.as_ref(), listed, &kept)?, directories.keys().next())
    {
        return Ok(Some((*volume, VolumeUser::Lost(id))));
    }
    // Processes of an incarnation whose directory was lost, or whose records are unreadable.
    let mut data = Vec::new();
    for (volume, directory) in directories {
        data.push((*volume, directory.data(), FileId::of(&directory.data())?));
    }
    let all: BTreeMap<u32, ProcStat> = ProcStat::shown()?.into_iter().map(|stat| (stat.pid, stat)).collect();
    let (mut environments, mut unread) = (EnvironmentReader::new(), Vec::new());
    for stat in all.values().filter(|stat| !stat.is_dead()) {
        let environment = match environments.read(stat) {
            // Whatever delays that process, no trampoline started it.
            Err(_) if !identity::may_have_no_new_privs(stat.pid) => continue,
            Err(error) => {
                unread.push((stat, error));
                continue;
            }
            Ok(environment) => environment,
        };
        if let Some((volume, ..)) = data.iter().find(|(_, data, place)| is_given(&environment, data, *place))
        {
            return Ok(Some((*volume, VolumeUser::Process(stat.pid))));
        }
    }
    if unread.is_empty() {
        return Ok(None);
    }
    // A process of an incarnation that mounts none of the volumes uses none of them.
    let known = proof::recorded(bystanders.into_iter(), &shared.boot.id, identity::pid_namespace()?);
    let belongs = |stat: &ProcStat| {
        let chain = std::iter::successors(Some(stat), |stat| all.get(&stat.parent));
        // No chain is longer than the number of processes.
        chain.take(all.len()).any(|stat| known.contains(&(stat.pid, stat.start_time)))
    };
    unread.into_iter().find(|(stat, _)| !belongs(stat)).map_or(Ok(None), |(_, error)| Err(error))
}

/// Returns the volumes that an incarnation mounts.
fn mounts(wanted: &SpecFile) -> impl Iterator<Item = VolumeId> {
    let payloads = wanted.spec.iter().flat_map(|spec| &spec.payloads);
    payloads.flat_map(|payload| &payload.mounts).map(|mount| mount.volume)
}

fn uses(directory: &IncarnationDirectory, wanted: &SpecFile, volume: VolumeId) -> bool {
    if !mounts(wanted).any(|mounted| mounted == volume) {
        return false;
    }
    // An unreadable record may be that of a running incarnation.
    let is_over =
        matches!(directory.read::<ProcessesFile>(FileAccess::Observer), Ok(Some(record)) if record.is_over());
    let tombstone = directory.read::<TombstoneFile>(FileAccess::Observer);
    let is_buried = matches!(tombstone, Ok(Some(tombstone)) if tombstone.covers(&wanted.order));
    !is_over && !is_buried
}

/// Whether a process with this environment was given the volume, by whatever path. A path that ends in other
/// names is not resolved: its file system might not answer.
fn is_given(environment: &[u8], data: &Path, place: Option<FileId>) -> bool {
    let name = |path: &Path| Some((path.parent()?.file_name()?.to_owned(), path.file_name()?.to_owned()));
    let is_same = |path: &Path| place.is_some() && FileId::of(path).ok().flatten() == place;
    let is_volume = |path: &Path| path == data || (name(path) == name(data) && is_same(path));
    environment.split(|byte| *byte == 0).any(|entry| {
        let value = entry.strip_prefix(VOLUME_VARIABLE.as_bytes()).and_then(|rest| {
            let equals = rest.iter().position(|byte| *byte == b'=')?;
            Some(&rest[equals + 1..])
        });
        value.is_some_and(|value| is_volume(Path::new(OsStr::from_bytes(value))))
    })
}
