//! Snapshots of the state: written from a clone of the projector's state, and read at every start.

use std::io::{self, Write};
use std::ops::RangeBounds;
use std::sync::Arc;

use bincode::config::standard;
use bincode::enc::write::Writer;
use bincode::error::{DecodeError, EncodeError};
use chancery_events::id::Position;
use chancery_events::name_texts::sharing_texts;
use chancery_events::record::RecordHash;
use chancery_journal::JournalReader;
use chancery_journal::snapshots::{SnapshotError, SnapshotMeta, SnapshotStore};
use chancery_journal::witness::has_record_of;
use chancery_machine::fleet::{FleetState, IMAGE_FINGERPRINT};
use chancery_machine::snapshot::{FleetSnapshot, SnapshotMeter, SnapshotReader};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::fold::FoldedState;

/// Maximum number of entries of a map or list whose length is measured.
const SAMPLE: usize = 4_096;

/// Returns the fingerprint of a snapshot's state: the shape of the image, and the codec.
pub fn fingerprint() -> String {
    format!("{IMAGE_FINGERPRINT} bincode-2")
}

impl FoldedState {
    /// Writes the state: the same bytes on every server for the same position.
    pub fn encode(&self, mut to: &mut dyn Write) -> io::Result<()> {
        let image = FleetSnapshot::of(&self.fleet);
        bincode::serde::encode_into_std_write(&image, &mut to, standard()).map_err(io::Error::other)?;
        Ok(())
    }

    /// Returns the approximate number of bytes that [`FoldedState::encode`] writes: of numerous entries, a sample is
    /// measured.
    pub(crate) fn encoded_len(&self) -> Result<u64, EncodeError> {
        #[derive(Default)]
        struct EncodingLength(u64);
        impl Writer for &mut EncodingLength {
            fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
                self.0 += bytes.len() as u64;
                Ok(())
            }
        }
        impl SnapshotMeter for EncodingLength {
            type Error = EncodeError;
            fn part<T: Serialize>(&mut self, part: &T) -> Result<(), EncodeError> {
                bincode::serde::encode_into_writer(part, self, standard())
            }
            fn entries<T: Serialize>(
                &mut self,
                entries: impl ExactSizeIterator<Item = T>,
            ) -> Result<(), EncodeError> {
                let all = entries.len();
                self.part(&all)?;
                let mut sample = EncodingLength::default();
                let step = all.div_ceil(SAMPLE).max(1);
                entries.step_by(step).try_for_each(|entry| sample.part(&entry))?;
                self.0 += sample.0 * all as u64 / all.div_ceil(step).max(1) as u64;
                Ok(())
            }
        }
        let mut length = EncodingLength::default();
        self.fleet.measure(&mut length)?;
        Ok(length.0)
    }

    /// Whether a snapshot is due this many events after the last one. For each event, at most two entities are written
    /// to snapshots, whatever the size of the state.
    pub fn is_snapshot_due(&self, events: u64, interval: u64) -> bool {
        events >= interval.max(self.fleet.size() as u64 / 2)
    }

    /// Returns the SHA-256 of the state.
    pub fn hash(&self) -> io::Result<RecordHash> {
        struct StateHasher(Sha256);
        impl Write for StateHasher {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.update(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut hashing = StateHasher(Sha256::new());
        self.encode(&mut hashing)?;
        Ok(RecordHash::from_bytes(hashing.0.finalize().into()))
    }

    /// Writes a snapshot. This may take long, and needs no projector: clone the state and write it elsewhere.
    /// Snapshots of another history than the journal's are removed.
    pub fn write(
        &self,
        fleet: Arc<str>,
        to: &SnapshotStore,
        journal: &dyn JournalReader,
    ) -> Result<SnapshotMeta, SnapshotError> {
        let stands = |meta: &SnapshotMeta| look_up(meta, journal).unwrap_or(true);
        to.write(fleet, &self.at, self.watermark.clone(), &fingerprint(), |to| self.encode(to), stands)
    }
}

/// Reads a state that [`FoldedState::encode`] wrote.
pub fn decode(bytes: &[u8]) -> Result<FleetState, DecodeError> {
    struct EncodedParts<'a>(&'a [u8]);
    impl SnapshotReader for EncodedParts<'_> {
        type Error = DecodeError;
        fn part<T: DeserializeOwned>(&mut self) -> Result<T, DecodeError> {
            let (part, length) = bincode::serde::borrow_decode_from_slice(self.0, standard())?;
            self.0 = &self.0[length..];
            Ok(part)
        }
    }
    sharing_texts(|| FleetState::read(&mut EncodedParts(bytes)))
}

/// Whether the journal has the snapshot's record; `None` if the journal cannot be read.
fn look_up(meta: &SnapshotMeta, journal: &dyn JournalReader) -> Option<bool> {
    let found = has_record_of(journal, &meta.cursor()).inspect_err(|error| {
        let error = error as &dyn std::error::Error;
        tracing::warn!(position = %meta.position, error, "cannot look up record of snapshot");
    });
    found.ok()
}

/// Returns the newest usable state: of this fleet and this build's shape, whole, and at a record of the
/// journal. Unusable snapshots are skipped, and logged.
pub fn newest(
    from: &SnapshotStore,
    fleet: &str,
    journal: &dyn JournalReader,
) -> Result<Option<FoldedState>, SnapshotError> {
    let admit = |meta: &SnapshotMeta, is_usable: bool| {
        if !is_usable {
            tracing::warn!(position = %meta.position, "snapshot skipped: not usable");
        }
        is_usable
    };
    newest_within(.., from, fleet, journal, admit)
}

/// Returns the newest usable state at one of the positions, as [`newest`] does. `admit` receives each snapshot
/// before its state is read, with the result of these checks, and returns whether the state is read.
pub(crate) fn newest_within(
    positions: impl RangeBounds<Position> + Clone,
    from: &SnapshotStore,
    fleet: &str,
    journal: &dyn JournalReader,
    mut admit: impl FnMut(&SnapshotMeta, bool) -> bool,
) -> Result<Option<FoldedState>, SnapshotError> {
    let mut tried = Vec::new();
    loop {
        let found = from.load_newest_within(positions.clone(), |meta| {
            !tried.contains(&meta.position) && admit(meta, is_usable(meta, fleet, journal))
        })?;
        let Some(found) = found else { return Ok(None) };
        let at = found.meta.cursor();
        tried.push(at.position);
        match decode(&found.state) {
            Ok(fleet) => {
                if fleet.head() == at.position && fleet.lineages().current == at.lineage {
                    return Ok(Some(FoldedState { fleet, at, watermark: found.meta.watermark }));
                }
                tracing::error!(position = %at.position, "snapshot skipped: its state has another position");
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(position = %at.position, error, "snapshot skipped: cannot read its state");
            }
        }
    }
}

/// Whether the snapshot is of this fleet and this build's shape, and at a record of the journal.
pub(crate) fn is_usable(meta: &SnapshotMeta, fleet: &str, journal: &dyn JournalReader) -> bool {
    let fits = meta.fingerprint == fingerprint() && *meta.fleet == *fleet;
    fits && look_up(meta, journal).unwrap_or(false)
}
