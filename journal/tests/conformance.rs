//! Every journal of this crate passes the same suite.

use std::path::Path;
use std::sync::Arc;

use chancery_events::record::Record;
use chancery_journal::conformance::{FLEET, JournalFixture, run};
use chancery_journal::memory::MemoryLog;
use chancery_journal::segments::{SegmentJournal, SegmentOptions};
use chancery_journal::{AppendError, ChainCursor, CloseError, DeliverySink, Journal, JournalReader};

struct MemoryFixture(MemoryLog);

impl JournalFixture for MemoryFixture {
    fn new() -> MemoryFixture {
        MemoryFixture(MemoryLog::new(FLEET))
    }

    fn open(&mut self, sink: DeliverySink) -> Box<dyn Journal> {
        Box::new(self.0.open(sink).expect("open"))
    }

    fn open_alongside(&mut self, sink: DeliverySink) -> Option<Box<dyn Journal>> {
        Some(self.open(sink))
    }

    fn inject(&mut self, bytes: &[u8]) -> bool {
        self.0.inject(bytes);
        true
    }
}

#[test]
fn the_journal_in_memory_conforms() {
    run::<MemoryFixture>();
}

/// Segments that start with `FIRST` bytes and grow up to `LARGEST`.
struct SegmentsFixture<const FIRST: u64, const LARGEST: u64>(tempfile::TempDir);

impl<const FIRST: u64, const LARGEST: u64> SegmentsFixture<FIRST, LARGEST> {
    fn options(dir: &Path) -> SegmentOptions {
        let sizes = SegmentOptions {
            first_segment: FIRST,
            largest_segment: LARGEST,
            ..SegmentOptions::new(dir, FLEET)
        };
        SegmentOptions { pause: std::time::Duration::from_millis(1), ..sizes }
    }
}

impl<const FIRST: u64, const LARGEST: u64> JournalFixture for SegmentsFixture<FIRST, LARGEST> {
    fn new() -> Self {
        SegmentsFixture(tempfile::tempdir().expect("a directory"))
    }

    fn open(&mut self, sink: DeliverySink) -> Box<dyn Journal> {
        let (journal, opened) = SegmentJournal::open(&Self::options(self.0.path()), sink).expect("open");
        assert_eq!(opened.cut, None);
        Box::new(journal)
    }

    fn open_alongside(&mut self, sink: DeliverySink) -> Option<Box<dyn Journal>> {
        assert!(SegmentJournal::open(&Self::options(self.0.path()), sink).is_err(), "locked");
        None
    }

    fn inject(&mut self, _: &[u8]) -> bool {
        false
    }
}

#[test]
fn the_journal_in_segments_conforms() {
    run::<SegmentsFixture<{ 4 << 20 }, { 64 << 20 }>>();
}

#[test]
fn the_journal_in_small_segments_conforms() {
    run::<SegmentsFixture<2048, 8192>>();
}

#[test]
fn the_journal_in_segments_of_one_record_conforms() {
    run::<SegmentsFixture<1, 1>>();
}

/// Records are written by the thread that appends them.
struct AppendHereFixture(SegmentsFixture<2048, 8192>);

struct HereJournal(Box<dyn Journal>);

impl JournalFixture for AppendHereFixture {
    fn new() -> AppendHereFixture {
        AppendHereFixture(SegmentsFixture::new())
    }

    fn open(&mut self, sink: DeliverySink) -> Box<dyn Journal> {
        Box::new(HereJournal(self.0.open(sink)))
    }

    fn open_alongside(&mut self, sink: DeliverySink) -> Option<Box<dyn Journal>> {
        self.0.open_alongside(sink)
    }

    fn inject(&mut self, bytes: &[u8]) -> bool {
        self.0.inject(bytes)
    }
}

impl Journal for HereJournal {
    fn append(&self, record: Record) -> Result<(), AppendError> {
        self.0.append_here(record)
    }

    fn head(&self) -> Option<ChainCursor> {
        self.0.head()
    }

    fn source(&self) -> Arc<dyn JournalReader> {
        self.0.source()
    }

    fn close(&self) -> Result<(), CloseError> {
        self.0.close()
    }
}

#[test]
fn the_journal_in_segments_conforms_when_its_appenders_write() {
    run::<AppendHereFixture>();
}
