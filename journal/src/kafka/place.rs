//! Where in the topic a record of the mirror stands, so that a start reads what came since and not everything.
//!
//! A hint in a file: if it is gone, the topic is read from its beginning. What it says is checked against the topic
//! before anything else is believed.

use std::io;
use std::path::Path;
use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::Hash;
use serde::{Deserialize, Serialize};

const FILE: &str = "kafka.json";

/// The record that ends at `position` stands at `offset`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) position: Position,
    pub(super) hash: Hash,
}

impl Place {
    /// What was kept in the mirror's folder; none if it cannot be read, or is of another partition.
    pub(super) fn load(dir: &Path, topic: &str, partition: i32) -> Option<Place> {
        let bytes = match std::fs::read(dir.join(FILE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(%error, file = FILE, "the place in the topic cannot be read; all of it is read again");
                return None;
            }
        };
        match serde_json::from_slice::<Place>(&bytes) {
            Ok(place) => Some(place).filter(|place| *place.topic == *topic && place.partition == partition),
            Err(error) => {
                tracing::warn!(%error, file = FILE, "the place in the topic cannot be read; all of it is read again");
                None
            }
        }
    }

    /// Keeps it. The record must be durable in the mirror.
    pub(super) fn store(&self, dir: &Path) -> io::Result<()> {
        let temporary = dir.join("kafka.json-new");
        std::fs::write(&temporary, serde_json::to_vec(self)?)?;
        std::fs::rename(&temporary, dir.join(FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_of_this_partition_or_damaged_is_no_place() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(Place::load(dir.path(), "j", 0), None);
        let hash = Hash::of(b"x");
        let place = Place { topic: "j".into(), partition: 0, offset: 7, position: Position::new(9), hash };
        place.store(dir.path()).expect("stored");
        assert_eq!(Place::load(dir.path(), "j", 0), Some(place));
        assert_eq!(Place::load(dir.path(), "j", 1), None);
        assert_eq!(Place::load(dir.path(), "k", 0), None);
        std::fs::write(dir.path().join(FILE), b"{\"topic").expect("written");
        assert_eq!(Place::load(dir.path(), "j", 0), None);
    }
}
