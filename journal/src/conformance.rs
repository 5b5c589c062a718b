//! Conformance suite for every kind of journal: memory, segments and Kafka run the same checks.
//!
//! A [`JournalFixture`] opens the same log repeatedly, and puts foreign bytes into the log if the kind of
//! journal allows that. Each check starts with an empty log. A failed check panics and states what it
//! expected.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use chancery_events::id::{Lineage, Position, WriterId};
use chancery_events::record::{DraftError, HeaderParts, MAX_BYTES, Record, RecordDraft, TERM_STARTED};
use chancery_events::time::Time;

use crate::chain::{ChainCursor, SkipReason, WriterIdentity, genesis};
use crate::journal::{AppendError, DeliverySink, Journal, JournalDelivery};

/// Fleet of the journals under test.
pub const FLEET: &str = "conformance";
/// Maximum time of a wait: after it, a delivery counts as missing.
const PATIENCE: Duration = Duration::from_secs(20);

/// Fixture that opens the journals under test.
pub trait JournalFixture {
    /// Creates an empty log.
    fn new() -> Self;
    /// Opens the log. The previous journal has been closed.
    fn open(&mut self, sink: DeliverySink) -> Box<dyn Journal>;
    /// Opens the log for another writer while others have it open; `None` if only one can.
    fn open_alongside(&mut self, sink: DeliverySink) -> Option<Box<dyn Journal>>;
    /// Puts bytes into the log, bypassing the journal. Returns whether that is possible.
    fn inject(&mut self, bytes: &[u8]) -> bool;
}

/// Runs every check.
pub fn run<B: JournalFixture>() {
    starts_empty::<B>();
    delivers_in_order::<B>();
    is_the_same_when_opened_again::<B>();
    is_read_from_any_position::<B>();
    a_reader_continues::<B>();
    refuses_what_does_not_continue::<B>();
    no_record_is_too_large::<B>();
    a_takeover_fences_the_last_writer::<B>();
    a_lineage_can_start::<B>();
    foreign_records_are_skipped_or_delivered::<B>();
    nothing_is_taken_after_closing::<B>();
}

/// Writer that creates records as a decider does.
pub struct TestWriter {
    by: WriterIdentity,
    at: Option<ChainCursor>,
    time: i64,
}

impl TestWriter {
    /// Creates a writer that continues after `at`.
    pub fn new(writer: u64, at: Option<ChainCursor>) -> TestWriter {
        let by = WriterIdentity {
            fleet: FLEET.into(),
            build: "0.0.0".into(),
            writer: WriterId::from_random(writer),
        };
        TestWriter { by, at, time: at.map_or(0, |at| at.time.micros()) }
    }

    /// Returns the cursor after the last record.
    pub fn at(&self) -> Option<ChainCursor> {
        self.at
    }

    fn seal(&mut self, parts: impl FnOnce(&Self, Time) -> HeaderParts, lines: &[String]) -> Record {
        self.time += 1;
        let mut draft = RecordDraft::new();
        for line in lines {
            draft.push(line.as_bytes()).expect("an event fits");
        }
        let parts = parts(self, Time::from_micros(self.time));
        let record = draft.seal(parts).expect("a record");
        self.at = Some(ChainCursor::after(&record));
        record
    }

    /// Creates the journal's first record.
    pub fn genesis(&mut self) -> Record {
        let lineage = Lineage::from_random(0x00c0_ffee);
        self.seal(|me, now| genesis(&me.by, now, lineage), &[event(TERM_STARTED, 0)])
    }

    /// Creates the next record, with `count` events of about `size` bytes each.
    pub fn record(&mut self, count: usize, size: usize) -> Record {
        let at = self.at.expect("a genesis record exists");
        let lines: Vec<_> = (0..count).map(|_| event("thing.happened.v1", size)).collect();
        self.seal(|me, now| at.follow(&me.by, now, None), &lines)
    }

    /// Creates the next record, with these events.
    pub fn record_of(&mut self, lines: &[String]) -> Record {
        let at = self.at.expect("a genesis record exists");
        self.seal(|me, now| at.follow(&me.by, now, None), lines)
    }

    /// Creates the record of a takeover.
    pub fn takeover(&mut self) -> Record {
        let at = self.at.expect("a genesis record exists");
        self.seal(|me, now| at.take_over(&me.by, now, None), &[event(TERM_STARTED, 0)])
    }

    /// Creates the record that starts another lineage.
    pub fn renewal(&mut self) -> Record {
        let at = self.at.expect("a genesis record exists");
        let lineage = Lineage::from_random(at.lineage.bits() + 1);
        let line = event(chancery_events::record::LINEAGE_STARTED, 0);
        self.seal(|me, now| at.renew(&me.by, now, lineage), &[line])
    }
}

fn event(type_name: &str, size: usize) -> String {
    format!(r#"{{"k":"fact","t":"{type_name}","d":{{"x":"{}"}}}}"#, "x".repeat(size))
}

struct TestJournal {
    journal: Box<dyn Journal>,
    delivered: Receiver<JournalDelivery>,
}

fn sink() -> (DeliverySink, Receiver<JournalDelivery>) {
    let (to, delivered) = channel();
    // A test journal that was dropped does not receive.
    (Box::new(move |delivery| drop(to.send(delivery))), delivered)
}

impl TestJournal {
    fn open(bench: &mut impl JournalFixture) -> TestJournal {
        let (sink, delivered) = sink();
        TestJournal { journal: bench.open(sink), delivered }
    }

    fn append(&self, record: &Record) {
        self.journal.append(record.clone()).expect("queued");
    }

    /// Returns the next `count` records, ignoring skipped ones between them.
    fn records(&self, count: usize) -> Vec<Arc<Record>> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.delivered.recv_timeout(PATIENCE) {
                Ok(JournalDelivery::Records(records)) => {
                    assert!(!records.is_empty(), "a delivery contains a record");
                    all.extend(records);
                }
                Ok(JournalDelivery::Skipped(_)) => {}
                other => panic!("wanted {count} records, had {}, then {other:?}", all.len()),
            }
        }
        assert_eq!(all.len(), count, "no more records than were appended");
        all
    }

    /// Returns the reason why the record was skipped.
    fn skipped(&self, record: &Record) -> SkipReason {
        loop {
            match self.delivered.recv_timeout(PATIENCE) {
                Ok(JournalDelivery::Skipped(skipped)) if skipped.hash == record.hash() => {
                    return skipped.reason;
                }
                Ok(JournalDelivery::Skipped(_)) => {}
                other => panic!("wanted {record:?} to be skipped, not {other:?}"),
            }
        }
    }

    /// Appends an invalid record, which is refused immediately or skipped later.
    fn append_invalid(&self, record: &Record) -> SkipReason {
        match self.journal.append(record.clone()) {
            Ok(()) => self.skipped(record),
            Err(AppendError::Invalid(reason)) => reason,
            Err(error) => panic!("wanted {record:?} to be invalid, not: {error}"),
        }
    }

    fn close(self) {
        self.journal.close().expect("closed");
        match self.delivered.recv_timeout(Duration::ZERO) {
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            Ok(delivery) => panic!("wanted no more deliveries, not {delivery:?}"),
        }
    }

    fn all(&self, from: u64) -> Vec<Arc<Record>> {
        let records = self.journal.source().records(Position::new(from)).expect("readable");
        records.map(|record| record.expect("a record")).collect()
    }
}

fn assert_same(found: &[Arc<Record>], wanted: &[Record]) {
    assert_eq!(found.len(), wanted.len(), "the same number of records");
    for (found, wanted) in found.iter().zip(wanted) {
        assert_eq!(**found, *wanted, "the same record, byte for byte");
    }
}

fn written<B: JournalFixture>(count: usize) -> (B, TestJournal, TestWriter, Vec<Record>) {
    let mut bench = B::new();
    let router = TestJournal::open(&mut bench);
    let mut author = TestWriter::new(1, None);
    let mut records = vec![author.genesis()];
    records.extend((1..count).map(|at| author.record(1 + at % 3, 300)));
    for record in &records {
        router.append(record);
    }
    assert_same(&router.records(count), &records);
    (bench, router, author, records)
}

fn starts_empty<B: JournalFixture>() {
    let mut bench = B::new();
    let router = TestJournal::open(&mut bench);
    assert_eq!((router.journal.head(), router.journal.source().head()), (None, None));
    assert!(router.all(1).is_empty());
    router.close();
}

fn delivers_in_order<B: JournalFixture>() {
    let (_bench, router, author, records) = written::<B>(500);
    assert_eq!(router.journal.head(), author.at());
    assert_eq!(router.journal.source().head(), author.at());
    assert_same(&router.all(1), &records);
    router.close();
}

fn is_the_same_when_opened_again<B: JournalFixture>() {
    let (mut bench, router, mut author, mut records) = written::<B>(20);
    router.close();
    for _ in 0..3 {
        let opened = TestJournal::open(&mut bench);
        assert_eq!(opened.journal.head(), author.at());
        let more = author.record(2, 100);
        opened.append(&more);
        records.push(more);
        assert_same(&opened.records(1), &records[records.len() - 1..]);
        assert_same(&opened.all(0), &records);
        opened.close();
    }
}

fn is_read_from_any_position<B: JournalFixture>() {
    let (_bench, router, author, records) = written::<B>(300);
    let last = author.at().expect("a head").position.get();
    for from in (0..=last).step_by(7).chain(last - 3..=last + 2) {
        let wanted = records.partition_point(|record| record.last().get() < from);
        assert_same(&router.all(from), &records[wanted..]);
    }
    router.close();
}

fn a_reader_continues<B: JournalFixture>() {
    let (_bench, router, mut author, records) = written::<B>(10);
    let mut reader = router.journal.source().records(Position::new(5)).expect("readable");
    let wanted = records.partition_point(|record| record.last().get() < 5);
    assert_eq!(reader.by_ref().count(), records.len() - wanted);
    for _ in 0..200 {
        assert!(reader.next().is_none());
        let more = author.record(1, 900);
        router.append(&more);
        router.records(1);
        assert_eq!(reader.next().and_then(Result::ok).as_deref(), Some(&more));
    }
    router.close();
}

fn refuses_what_does_not_continue<B: JournalFixture>() {
    let (_bench, router, author, records) = written::<B>(5);
    assert_eq!(router.append_invalid(&records[4]), SkipReason::Taken);
    let mut ahead = TestWriter::new(1, author.at());
    ahead.record(1, 10);
    assert_eq!(router.append_invalid(&ahead.record(1, 10)), SkipReason::Gap);
    let other_past = author.at().map(|at| ChainCursor { hash: records[2].hash(), ..at });
    assert_eq!(router.append_invalid(&TestWriter::new(1, other_past).record(1, 10)), SkipReason::Prev);
    assert_eq!(router.append_invalid(&TestWriter::new(2, author.at()).record(1, 10)), SkipReason::Writer);
    assert_eq!(router.journal.head(), author.at());
    assert_same(&router.all(1), &records);
    router.close();
}

fn no_record_is_too_large<B: JournalFixture>() {
    let (_bench, router, mut author, _) = written::<B>(1);
    let mut draft = RecordDraft::new();
    assert!(matches!(
        draft.push(event("thing.happened.v1", MAX_BYTES).as_bytes()),
        Err(DraftError::TooLarge { .. })
    ));
    let largest = author.record(1, MAX_BYTES - 1200);
    router.append(&largest);
    assert_same(&router.records(1), std::slice::from_ref(&largest));
    assert_eq!(router.all(2).first().map(|record| record.hash()), Some(largest.hash()));
    router.close();
}

fn a_takeover_fences_the_last_writer<B: JournalFixture>() {
    let (mut bench, router, mut zombie, _) = written::<B>(5);
    let mut author = TestWriter::new(2, zombie.at());
    let (takeover, late) = (author.takeover(), zombie.record(1, 10));
    let (sink, delivered) = sink();
    let Some(journal) = bench.open_alongside(sink) else {
        // One process at a time: the new writer uses the same journal.
        router.append(&takeover);
        assert_same(&router.records(1), &[takeover]);
        assert_eq!(router.append_invalid(&late), SkipReason::Taken);
        return router.close();
    };
    let other = TestJournal { journal, delivered };
    other.append(&takeover);
    assert_same(&other.records(1), std::slice::from_ref(&takeover));
    assert_same(&router.records(1), &[takeover]);
    assert_eq!(router.append_invalid(&late), SkipReason::Taken);
    let more = author.record(1, 10);
    other.append(&more);
    assert_same(&other.records(1), std::slice::from_ref(&more));
    assert_same(&router.records(1), &[more]);
    router.close();
    other.close();
}

fn a_lineage_can_start<B: JournalFixture>() {
    let (mut bench, router, mut author, mut records) = written::<B>(5);
    records.push(author.renewal());
    records.push(author.record(1, 10));
    for record in &records[5..] {
        router.append(record);
    }
    assert_same(&router.records(2), &records[5..]);
    router.close();
    let opened = TestJournal::open(&mut bench);
    assert_eq!(opened.journal.head(), author.at());
    assert_same(&opened.all(1), &records);
    opened.close();
}

fn foreign_records_are_skipped_or_delivered<B: JournalFixture>() {
    let (mut bench, router, author, mut records) = written::<B>(5);
    if !bench.inject(b"stray bytes") {
        return router.close();
    }
    let mut stranger = TestWriter::new(3, author.at());
    records.push(stranger.takeover());
    for bytes in [records[3].bytes().to_vec(), records[5].bytes().to_vec(), records[5].bytes().to_vec()] {
        bench.inject(&bytes);
    }
    assert_same(&router.records(1), &records[5..]);
    assert_eq!(router.skipped(&records[5]), SkipReason::Taken);
    assert_eq!(router.journal.head(), stranger.at());
    assert_same(&router.all(1), &records);
    router.close();
    let opened = TestJournal::open(&mut bench);
    assert_eq!(opened.journal.head(), stranger.at());
    opened.close();
}

fn nothing_is_taken_after_closing<B: JournalFixture>() {
    let (_bench, router, mut author, _) = written::<B>(2);
    router.journal.close().expect("closed");
    router.journal.close().expect("closed once more");
    let late = router.journal.append(author.record(1, 10));
    assert!(matches!(late, Err(AppendError::Closed)), "{late:?}");
}
