//! Comparison of a partition's content with the journal to be imported.
//!
//! | the partition's records | result |
//! |---|---|
//! | none | the import can start |
//! | exactly the records of the directory | an earlier import succeeded, and its end was not observed |
//! | anything else | the partition must not be changed; [`PartitionMismatch`] describes what to do |

use std::fmt;
use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::text::counted;

use super::backlog::PartitionValue;
use super::checkpoint::OffsetCheckpoint;
use crate::chain::{ChainEntry, ChainReader, SkipReason};
use crate::journal::{JournalReader, ReadError, RecordIter};

pub(super) enum PartitionContent {
    /// No committed record.
    Nothing,
    /// Exactly the directory's records; checkpoint of the last one.
    All(OffsetCheckpoint),
    /// Other content.
    Other(PartitionMismatch),
}

/// Reason why a journal is not imported into a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartitionMismatch {
    /// First records deleted: the partition starts at this offset.
    BeginsLate(i64),
    /// Content removed while it was read.
    Gone(String),
    /// Another history from this position on.
    Differs(Position),
    /// This history, but only up to this position.
    Less(Position),
    /// This history, continued at this position.
    Further(Position),
    /// Only values that start no history; their number.
    Noise(u64),
    /// Records of another fleet, and none of this fleet.
    Fleet,
    /// Record that this build cannot accept.
    Broken(String),
    /// This history, written by a concurrent import.
    Meanwhile,
}

impl fmt::Display for PartitionMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RECREATE_HINT: &str = "hint: name another prefix or partition; a topic that is created again is empty for every fleet with a \
             partition in it";
        match self {
            PartitionMismatch::BeginsLate(offset) => {
                write!(
                    f,
                    "it starts at offset {offset}, because records were deleted from it\n{RECREATE_HINT}"
                )
            }
            PartitionMismatch::Gone(reason) => write!(f, "{reason}\n{RECREATE_HINT}"),
            PartitionMismatch::Differs(at) => {
                write!(f, "it contains another history from position {at} on\n{RECREATE_HINT}")
            }
            PartitionMismatch::Less(at) => {
                write!(f, "it contains this history only up to position {at}\n{RECREATE_HINT}")
            }
            PartitionMismatch::Further(at) => write!(
                f,
                "it contains this history, which servers continued at position {at}\nhint: start the server of this directory \
                 with --journal kafka://… too: it reads the newer records"
            ),
            PartitionMismatch::Noise(count) => {
                let values = counted(*count, "value");
                write!(f, "it contains {values}, and no start of a history\n{RECREATE_HINT}")
            }
            PartitionMismatch::Fleet => {
                write!(f, "it contains records of another fleet\nhint: name this fleet's own partition")
            }
            PartitionMismatch::Broken(reason) => write!(f, "{reason}\n{RECREATE_HINT}"),
            PartitionMismatch::Meanwhile => write!(f, "another import has just written the same records"),
        }
    }
}

/// Comparison in progress, value by value.
pub(super) struct PartitionComparison {
    chain: ChainReader,
    /// Expected records.
    same: RecordIter,
    values: u64,
    /// Whether any record is of another fleet.
    has_other: bool,
    /// Checkpoint of the last equal record; before all records if there is none.
    place: OffsetCheckpoint,
}

impl PartitionComparison {
    /// Compares a partition with a journal. `place` is the checkpoint before every record.
    pub(super) fn new(
        source: &dyn JournalReader,
        fleet: &Arc<str>,
        place: OffsetCheckpoint,
    ) -> Result<PartitionComparison, ReadError> {
        let same = source.records(Position::FIRST)?;
        Ok(PartitionComparison {
            chain: ChainReader::new(Arc::clone(fleet), None),
            same,
            values: 0,
            has_other: false,
            place,
        })
    }

    /// Compares the next value; returns the result once it is certain. Skipped values are ignored.
    pub(super) fn take(
        &mut self,
        (offset, value): PartitionValue,
    ) -> Result<Option<PartitionMismatch>, ReadError> {
        self.values += 1;
        let record = match self.chain.take(value) {
            Ok(ChainEntry::Record(record)) => record,
            Ok(ChainEntry::Skip(skipped)) => {
                self.has_other |= skipped.reason == SkipReason::Fleet;
                return Ok(None);
            }
            Err(broken) => return Ok(Some(PartitionMismatch::Broken(broken.to_string()))),
        };
        Ok(match self.same.next().transpose()? {
            Some(held) if held.hash() == record.hash() => {
                let (position, hash) = (record.last(), record.hash());
                (self.place.offset, self.place.position, self.place.hash) = (offset, position, hash);
                None
            }
            Some(_) => Some(PartitionMismatch::Differs(record.first())),
            None => Some(PartitionMismatch::Further(record.first())),
        })
    }

    /// Returns the result after the last value.
    pub(super) fn end(mut self) -> Result<PartitionContent, ReadError> {
        let is_all = self.same.next().transpose()?.is_none();
        Ok(match self.place.position {
            _ if self.values == 0 => PartitionContent::Nothing,
            Position::ZERO if self.has_other => PartitionContent::Other(PartitionMismatch::Fleet),
            Position::ZERO => PartitionContent::Other(PartitionMismatch::Noise(self.values)),
            _ if is_all => PartitionContent::All(self.place),
            position => PartitionContent::Other(PartitionMismatch::Less(position)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{FLEET, TestWriter};
    use crate::journal::Journal as _;
    use crate::memory::MemoryLog;

    fn found(holds: &[&[u8]], source: &dyn JournalReader) -> PartitionContent {
        let mut comparison =
            PartitionComparison::new(source, &FLEET.into(), OffsetCheckpoint::unknown("j", 0))
                .expect("readable");
        for (offset, value) in holds.iter().enumerate() {
            if let Some(other) = comparison.take((offset as i64, (*value).into())).expect("readable") {
                return PartitionContent::Other(other);
            }
        }
        comparison.end().expect("readable")
    }

    #[test]
    fn a_partition_is_empty_or_filled_or_not_to_be_touched() {
        let log = MemoryLog::new(FLEET);
        let journal = log.open(Box::new(|_| {})).expect("open");
        let mut author = TestWriter::new(1, None);
        let records = [author.genesis(), author.record(2, 10), author.record(1, 10)];
        for record in &records {
            journal.append(record.clone()).expect("appended");
        }
        let source = journal.source();
        let [a, b, c] = records.each_ref().map(|record| &**record.bytes());
        let (next, other) = (author.record(1, 10), TestWriter::new(2, None).genesis());
        let (next, other) = (&**next.bytes(), &**other.bytes());
        let after = Position::new(5);
        let stray = "stray".into();
        let mut comparison =
            PartitionComparison::new(&*source, &stray, OffsetCheckpoint::unknown("j", 0)).expect("readable");
        assert!(comparison.take((0, a.into())).expect("readable").is_none());
        assert!(matches!(
            comparison.end().expect("readable"),
            PartitionContent::Other(PartitionMismatch::Fleet)
        ));
        for (holds, wanted) in [
            (&[][..], None),
            (&[&b"stray"[..]], Some(PartitionMismatch::Noise(1))),
            (&[other], Some(PartitionMismatch::Differs(Position::FIRST))),
            (&[other, a, b, c], Some(PartitionMismatch::Differs(Position::FIRST))),
            (&[a], Some(PartitionMismatch::Less(Position::FIRST))),
            (&[a, c], Some(PartitionMismatch::Less(Position::FIRST))),
            (&[a, b, c, next], Some(PartitionMismatch::Further(after))),
        ] {
            match (found(holds, &*source), wanted) {
                (PartitionContent::Nothing, None) => {}
                (PartitionContent::Other(found), Some(wanted)) => assert_eq!(found, wanted),
                (
                    PartitionContent::Nothing | PartitionContent::All(_) | PartitionContent::Other(_),
                    wanted,
                ) => {
                    panic!("{holds:?} is not {wanted:?}")
                }
            }
        }
        // Skipped values do not matter, at any offset.
        for (holds, offset) in [(&[a, b, c][..], 2), (&[&b"stray"[..], a, other, b, b, c, a], 5)] {
            let PartitionContent::All(place) = found(holds, &*source) else {
                panic!("{holds:?} contains all records")
            };
            let last = &records[2];
            assert_eq!((place.offset, place.position, place.hash), (offset, last.last(), last.hash()));
        }
    }
}
