//! Delivered records that are not durable in the mirror yet, and a reader over both.
//!
//! Kafka made these records durable, so no delivery waits for the mirror's disk. Invariant: every record up
//! to the head is here or in the mirror; it is removed here only after it can be read there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::subject::Subject;

use super::lock;
use crate::chain::ChainCursor;
use crate::journal::{JournalReader, ReadError, RecordIter, records_by};

/// Records not in the mirror yet, bounded by the mirror's queue.
#[derive(Default)]
pub(super) struct UnmirroredTail(Mutex<TailState>);

#[derive(Default)]
struct TailState {
    records: VecDeque<Arc<Record>>,
    head: Option<ChainCursor>,
    trouble: Option<String>,
}

impl UnmirroredTail {
    /// Sets the head to that of the mirror.
    pub(super) fn begin(&self, head: Option<ChainCursor>) {
        lock(&self.0).head = head;
    }

    pub(super) fn head(&self) -> Option<ChainCursor> {
        lock(&self.0).head
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        lock(&self.0).trouble = trouble;
    }

    fn trouble(&self) -> Option<String> {
        lock(&self.0).trouble.clone()
    }

    pub(super) fn push(&self, record: &Arc<Record>) {
        let mut state = lock(&self.0);
        state.records.push_back(Arc::clone(record));
        state.head = Some(ChainCursor::after(record));
    }

    /// Removes the records up to `through`, which are in the mirror.
    pub(super) fn forget(&self, through: Position) {
        let mut state = lock(&self.0);
        while state.records.front().is_some_and(|record| record.last() <= through) {
            state.records.pop_front();
        }
    }

    /// Returns the record that contains the position, if it is here.
    fn find(&self, position: Position) -> Option<Arc<Record>> {
        let state = lock(&self.0);
        let at = state.records.partition_point(|record| record.last() < position);
        state.records.get(at).filter(|record| record.first() <= position).cloned()
    }

    fn all(&self) -> Vec<Arc<Record>> {
        lock(&self.0).records.iter().cloned().collect()
    }
}

/// Reader of the mirror and of the records that are not in it yet.
pub(super) struct MergedReader {
    pub(super) mirror: Arc<dyn JournalReader>,
    pub(super) recent: Arc<UnmirroredTail>,
}

impl JournalReader for MergedReader {
    fn head(&self) -> Option<ChainCursor> {
        self.recent.head()
    }

    fn trouble(&self) -> Option<String> {
        self.recent.trouble()
    }

    fn records(&self, from: Position) -> Result<RecordIter, ReadError> {
        let (mirror, recent) = (Arc::clone(&self.mirror), Arc::clone(&self.recent));
        let mut tail = MergedRecords { mirror, recent, older: None, next: from.max(Position::FIRST) };
        Ok(records_by(move || Ok(tail.step()?.inspect(|record| tail.next = record.last().plus(1)))))
    }

    fn records_about(&self, subject: &Subject, from: Position) -> Result<RecordIter, ReadError> {
        self.merged(from, |mirror| mirror.records_about(subject, from))
    }

    fn records_caused_by(&self, cause: Position, from: Position) -> Result<RecordIter, ReadError> {
        self.merged(from, |mirror| mirror.records_caused_by(cause, from))
    }
}

impl MergedReader {
    /// Returns records that the mirror finds by an index, and all recent ones.
    fn merged(
        &self,
        from: Position,
        find: impl FnOnce(&dyn JournalReader) -> Result<RecordIter, ReadError>,
    ) -> Result<RecordIter, ReadError> {
        // Copied first: a record that moves to the mirror meanwhile is seen twice and returned once.
        let recent = self.recent.all();
        let older = find(&*self.mirror)?;
        let newer = recent.into_iter().map(Ok);
        let mut given = from.get().saturating_sub(1);
        let once = older.chain(newer).filter(move |record| match record {
            Ok(record) if record.last().get() <= given => false,
            Ok(record) => {
                given = record.last().get();
                true
            }
            Err(_) => true,
        });
        Ok(Box::new(once))
    }
}

struct MergedRecords {
    mirror: Arc<dyn JournalReader>,
    recent: Arc<UnmirroredTail>,
    /// Records of the mirror; opened when it has some.
    older: Option<RecordIter>,
    next: Position,
}

impl MergedRecords {
    fn step(&mut self) -> Result<Option<Arc<Record>>, ReadError> {
        loop {
            if let Some(record) = self.recent.find(self.next) {
                return Ok(Some(record));
            }
            // Not here: the record is in the mirror by now, or does not exist yet.
            if self.mirror.head().is_none_or(|head| head.position < self.next) {
                // The record may have arrived after the check.
                if self.recent.head().is_some_and(|head| head.position >= self.next) {
                    continue;
                }
                return Ok(None);
            }
            let older = match self.older.take() {
                Some(older) => older,
                None => self.mirror.records(self.next)?,
            };
            match self.older.insert(older).find(|record| match record {
                Ok(record) => record.last() >= self.next,
                Err(_) => true,
            }) {
                Some(record) => return record.map(Some),
                None => self.older = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{FLEET, TestWriter};
    use crate::journal::Journal as _;
    use crate::memory::MemoryLog;

    /// Creates a reader over a mirror with the first `durable` of `count` records; the others, from `kept`
    /// on, are recent.
    fn both(count: usize, durable: usize, kept: usize) -> (MergedReader, Vec<Arc<Record>>) {
        let log = MemoryLog::new(FLEET);
        let journal = log.open(Box::new(|_| {})).expect("open");
        let mut author = TestWriter::new(1, None);
        let mut records = vec![Arc::new(author.genesis())];
        records.extend((1..count).map(|at| Arc::new(author.record(1 + at % 3, 10))));
        let recent = UnmirroredTail::default();
        for record in &records {
            recent.push(record);
        }
        for record in &records[..durable] {
            journal.append((**record).clone()).expect("appended");
        }
        if let Some(last) = records[..kept].last() {
            recent.forget(last.last());
        }
        (MergedReader { mirror: journal.source(), recent: Arc::new(recent) }, records)
    }

    #[test]
    fn every_record_is_returned_once_from_either_source() {
        // Records in the mirror may still be recent; never the other way round.
        for (count, durable, kept) in [(1, 0, 0), (9, 0, 0), (9, 4, 4), (9, 6, 2), (9, 9, 9), (9, 9, 0)] {
            let (both, records) = both(count, durable, kept);
            let last = records.last().map_or(0, |record| record.last().get());
            assert_eq!(both.head().map(|head| head.position.get()), Some(last));
            for from in 0..=last + 1 {
                let at = records.partition_point(|record| record.last().get() < from);
                let found = both.records(Position::new(from)).expect("readable");
                let found: Vec<_> = found.map(|record| record.expect("a record")).collect();
                assert_eq!(found, records[at..], "{count} {durable} {kept} from {from}");
                let subject: Subject = "node/n".parse().expect("a subject");
                let about = both.records_about(&subject, Position::new(from)).expect("readable");
                let about: Vec<_> = about.map(|record| record.expect("a record")).collect();
                assert_eq!(about, records[at..], "about, {count} {durable} {kept} from {from}");
                let caused = both.records_caused_by(Position::FIRST, Position::new(from)).expect("readable");
                let caused: Vec<_> = caused.map(|record| record.expect("a record")).collect();
                assert_eq!(caused, records[at..], "caused, {count} {durable} {kept} from {from}");
            }
        }
    }
}
