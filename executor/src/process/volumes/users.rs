//! Who uses a volume, and whether one may be used.
//!
//! A run is recorded, and a volume's destruction too, while the same lock is held (`Shared::using`): so either the one
//! finds the other, or the other way round.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::protocol::RunSpec;
use chancery_events::spec::VOLUME_VARIABLE;

use super::super::drift::Place;
use super::super::folder::Folder;
use super::super::identity::Stat;
use super::super::{Shared, entries, lost};
use super::home::{Found, Home};
use crate::durable::Reader;

/// Where what is in a volume is, if it may be used; else, why not.
pub(in super::super) fn place(volumes: &Path, volume: VolumeId) -> Result<PathBuf, String> {
    let home = Home::of(volumes, volume);
    let is_here = match home.look() {
        Ok(Found::Ours(kept)) if kept.is_up() => home.has_data(),
        Ok(Found::Ours(_) | Found::Nothing) => Ok(false),
        Ok(Found::Foreign(why)) => return Err(format!("volume {volume} is not here: {why}")),
        Err(error) => Err(error),
    };
    match is_here {
        Ok(true) => Ok(home.data()),
        Ok(false) => Err(format!("volume {volume} is not here")),
        Err(error) => Err(format!("volume {volume} cannot be looked at: {error}")),
    }
}

/// Whether everything that a run mounts may be used; else, what not.
pub(in super::super) fn check(volumes: &Path, spec: &RunSpec) -> Result<(), String> {
    let mut mounts = spec.payloads.iter().flat_map(|payload| &payload.mounts);
    mounts.try_for_each(|mount| place(volumes, mount.volume).map(drop))
}

/// Who uses a volume, or may yet: an incarnation that is not over, or a process that is left of one.
pub(super) fn user(shared: &Shared, home: &Home, volume: VolumeId) -> io::Result<Option<String>> {
    let nodes = shared.root.join("nodes");
    let mut kept = BTreeSet::new();
    for path in entries(&nodes)?.iter().map(|node| entries(node)).collect::<io::Result<Vec<_>>>()?.concat() {
        let id = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let Some(id) = id else { continue };
        kept.insert(id);
        if uses(&Folder::at(path), id, volume) {
            return Ok(Some(id.to_string()));
        }
    }
    // What such an incarnation uses is not known any more.
    if let Some(id) = lost::user(shared.cgroup.as_ref(), &kept)? {
        return Ok(Some(format!("{id}, whose directory was removed")));
    }
    // Of an incarnation whose folder was lost, or whose records cannot be read.
    let data = home.data();
    let place = Place::of(&data)?;
    let left = Stat::all()?.into_iter().find(|stat| !stat.is_dead() && is_given(stat.pid, &data, place));
    Ok(left.map(|stat| format!("process {}", stat.pid)))
}

fn uses(folder: &Folder, id: IncarnationId, volume: VolumeId) -> bool {
    let Ok(Some(wanted)) = folder.wanted(Reader::Another) else { return false };
    let payloads = wanted.spec.iter().flat_map(|spec| &spec.payloads);
    if wanted.incarnation != id || !payloads.flat_map(|p| &p.mounts).any(|mount| mount.volume == volume) {
        return false;
    }
    // What cannot be read may say that it runs.
    let is_over = matches!(folder.record(Reader::Another), Ok(Some(record)) if record.is_over());
    let revision = wanted.order.revision;
    let is_buried = matches!(folder.tombstone(Reader::Another), Ok(Some(tomb)) if tomb.revision >= revision);
    !is_over && !is_buried
}

/// Whether a process was given the volume, by whatever path.
fn is_given(pid: u32, data: &Path, place: Option<Place>) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let is_volume =
        |path: &Path| path == data || (place.is_some() && Place::of(path).ok().flatten() == place);
    environment.split(|byte| *byte == 0).any(|entry| {
        let value = entry.strip_prefix(VOLUME_VARIABLE.as_bytes()).and_then(|rest| {
            let equals = rest.iter().position(|byte| *byte == b'=')?;
            Some(&rest[equals + 1..])
        });
        value.is_some_and(|value| is_volume(Path::new(OsStr::from_bytes(value))))
    })
}
