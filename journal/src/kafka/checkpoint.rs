//! Offset checkpoint of a record in the mirror, so that a start reads only newer records.
//!
//! The file is a hint: if it cannot be read, the topic is read from its start. Its content is checked against
//! the topic before it is used. Its presence marks the directory as a mirror ([`crate::mirror`]).

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::{Record, RecordHash};
use serde::{Deserialize, Serialize};

use crate::mirror::FILE;
use crate::private;

const TEMPORARY: &str = "kafka.json-new";

/// Offset in the topic of the record that ends at `position`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct OffsetCheckpoint {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) position: Position,
    pub(super) hash: RecordHash,
}

impl OffsetCheckpoint {
    /// Returns a checkpoint without a record, at offset 0, to mark the directory as a mirror.
    pub(super) fn unknown(topic: &str, partition: i32) -> OffsetCheckpoint {
        OffsetCheckpoint {
            topic: topic.into(),
            partition,
            offset: 0,
            position: Position::ZERO,
            hash: RecordHash::ZERO,
        }
    }

    pub(super) fn of(topic: &Arc<str>, partition: i32, offset: i64, record: &Record) -> OffsetCheckpoint {
        let (position, hash) = (record.last(), record.hash());
        OffsetCheckpoint { topic: Arc::clone(topic), partition, offset, position, hash }
    }

    /// Reads the checkpoint from the mirror's directory; `None` if the file is unreadable, or for another
    /// partition.
    pub(super) fn load(dir: &Path, topic: &str, partition: i32) -> Option<OffsetCheckpoint> {
        OffsetCheckpoint::read(dir).filter(|place| *place.topic == *topic && place.partition == partition)
    }

    /// Returns the topic and partition whose mirror the directory is, if they differ from the given ones.
    pub(super) fn of_another(dir: &Path, topic: &str, partition: i32) -> Option<(Arc<str>, i32)> {
        let place = OffsetCheckpoint::read(dir)
            .filter(|place| *place.topic != *topic || place.partition != partition)?;
        Some((place.topic, place.partition))
    }

    fn read(dir: &Path) -> Option<OffsetCheckpoint> {
        let place = content(dir).and_then(|bytes| {
            let place = bytes.as_deref().map(serde_json::from_slice::<OffsetCheckpoint>);
            place.transpose().map_err(io::Error::from)
        });
        if let Err(error) = &place {
            tracing::warn!(%error, file = FILE, "cannot read offset checkpoint, reading the whole topic again");
        }
        place.ok().flatten()
    }

    /// Stores the checkpoint. Its record must be durable in the mirror.
    pub(super) fn store(&self, dir: &Path) -> io::Result<()> {
        private::write(&dir.join(TEMPORARY), &serde_json::to_vec(self)?)?;
        fs::rename(dir.join(TEMPORARY), dir.join(FILE))
    }

    /// Stores the checkpoint durably, because the file marks the directory as a mirror.
    pub(super) fn mark(&self, dir: &Path) -> io::Result<()> {
        write_durably(dir, &serde_json::to_vec(self)?)
    }
}

/// Content of the checkpoint file before an import, to be restored if the import fails.
pub(super) struct CheckpointBackup(Option<Vec<u8>>);

impl CheckpointBackup {
    pub(super) fn read(dir: &Path) -> io::Result<CheckpointBackup> {
        content(dir).map(CheckpointBackup)
    }

    pub(super) fn put_back(&self, dir: &Path) -> io::Result<()> {
        if let Some(bytes) = &self.0 {
            return write_durably(dir, bytes);
        }
        match fs::remove_file(dir.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| File::open(dir)?.sync_all()),
        }
    }
}

/// Returns the content of the file in a directory; `None` if there is no file.
fn content(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(dir.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

fn write_durably(dir: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = private::create(&dir.join(TEMPORARY))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(dir.join(TEMPORARY), dir.join(FILE))?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::is_mirror;

    #[test]
    fn what_is_not_of_this_partition_or_damaged_is_no_checkpoint() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(OffsetCheckpoint::load(dir.path(), "j", 0), None);
        let hash = RecordHash::of(b"x");
        let place =
            OffsetCheckpoint { topic: "j".into(), partition: 0, offset: 7, position: Position::new(9), hash };
        place.store(dir.path()).expect("stored");
        assert_eq!(OffsetCheckpoint::load(dir.path(), "j", 0), Some(place));
        assert_eq!(OffsetCheckpoint::load(dir.path(), "j", 1), None);
        assert_eq!(OffsetCheckpoint::of_another(dir.path(), "j", 0), None);
        assert_eq!(OffsetCheckpoint::of_another(dir.path(), "k", 0), Some(("j".into(), 0)));
        assert_eq!(OffsetCheckpoint::load(dir.path(), "k", 0), None);
        std::fs::write(dir.path().join(FILE), b"{\"topic").expect("written");
        assert_eq!(OffsetCheckpoint::load(dir.path(), "j", 0), None);
    }

    #[test]
    fn a_directory_is_a_mirror_as_long_as_it_has_a_checkpoint_and_what_was_there_is_restored() {
        let dir = tempfile::tempdir().expect("a directory");
        let is_one = || is_mirror(dir.path()).expect("readable");
        let nothing = CheckpointBackup::read(dir.path()).expect("read");
        assert!(!is_one());
        let first = OffsetCheckpoint::unknown("j", 0);
        first.mark(dir.path()).expect("marked");
        assert!(is_one());
        let before = CheckpointBackup::read(dir.path()).expect("read");
        OffsetCheckpoint::unknown("k", 3).mark(dir.path()).expect("marked");
        before.put_back(dir.path()).expect("restored");
        assert_eq!(OffsetCheckpoint::load(dir.path(), "j", 0), Some(first));
        nothing.put_back(dir.path()).expect("restored");
        assert!(!is_one());
    }
}
