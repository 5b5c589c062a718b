//! Tests of the segments' guarantees, on directories that are damaged or truncated, and on failing disks.

mod crash;
mod damage;
mod failure;
mod frozen;
mod postings;
mod torn;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::record::Record;

use super::open::{OpenedSegments, SegmentOpenError, SegmentParts, open};
use super::reader::SegmentSource;
use super::{DiskAccess, DiskFile, FileSystem, SegmentOptions};
use crate::conformance::{FLEET, TestWriter};
use crate::journal::{DeliverySink, JournalDelivery, JournalReader};

/// Only a final marker, so that the bytes are the same every time.
const NEVER: Duration = Duration::from_hours(1);

fn options(dir: &Path, first_segment: u64, largest_segment: u64) -> SegmentOptions {
    SegmentOptions { first_segment, largest_segment, pause: NEVER, ..SegmentOptions::new(dir, FLEET) }
}

fn sink() -> (DeliverySink, Receiver<JournalDelivery>) {
    let (to, delivered) = channel();
    (Box::new(move |delivery| drop(to.send(delivery))), delivered)
}

/// File system without waiting for syncs.
struct NoSync;

struct NoSyncFile(Box<dyn DiskFile>);

impl DiskAccess for NoSync {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NoSyncFile(FileSystem.create(path)?)))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NoSyncFile(FileSystem.open(path)?)))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        FileSystem.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove(path)
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for NoSyncFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens without lock and thread, and reads everything.
fn recover(options: &SegmentOptions) -> Result<(OpenedSegments, Vec<Record>), SegmentOpenError> {
    let SegmentParts { opened, catalog, .. } = open(options, &NoSync)?;
    let records = SegmentSource(catalog).records(Position::ZERO).expect("readable");
    Ok((opened, records.map(|record| Record::clone(&record.expect("a record"))).collect()))
}

/// Creates a genesis and `count - 1` further records, of one to three events.
fn some_records(count: usize) -> Vec<Record> {
    let mut author = TestWriter::new(1, None);
    let mut records = vec![author.genesis()];
    records.extend((1..count).map(|at| author.record(1 + at % 3, 5)));
    records
}

fn wait_for(delivered: &Receiver<JournalDelivery>, last: &Record) {
    loop {
        match delivered.recv_timeout(Duration::from_secs(20)) {
            Ok(JournalDelivery::Records(records))
                if records.last().map(|record| record.hash()) == Some(last.hash()) =>
            {
                return;
            }
            Ok(JournalDelivery::Records(_)) => {}
            other => panic!("wanted {last:?}, not {other:?}"),
        }
    }
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("listed") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("copied");
    }
}

/// Replaces a file. Truncating the existing one would be simpler, but makes some file systems write it out
/// immediately.
fn put(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).expect("removed");
    fs::write(path, bytes).expect("written");
}

fn position_of(records: &[Record]) -> Position {
    records.last().map_or(Position::ZERO, Record::last)
}

fn assert_prefix(found: &[Record], all: &[Record]) {
    assert!(all.starts_with(found), "the records are a prefix of those written");
}

fn arc<T: DiskAccess + 'static>(disk: T) -> Arc<dyn DiskAccess> {
    Arc::new(disk)
}
