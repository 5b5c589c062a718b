//! A disk that refuses: everything stops, and what was acknowledged is there afterwards.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::super::catalog::list;
use super::super::{Outcome, SegmentJournal, verify};
use super::*;
use crate::journal::{AppendError, CloseError, Journal};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Sync,
    Write,
    /// Half of it is written.
    Full,
}

/// Fails one kind of operation after so many of it have passed.
struct Failing {
    fault: Fault,
    left: AtomicI64,
    syncs_after: AtomicU64,
}

impl Failing {
    fn passes(&self, fault: Fault) -> bool {
        self.fault != fault || self.left.fetch_sub(1, Ordering::SeqCst) > 0
    }
}

struct FailingDisk(Arc<Failing>);

struct FailingFile(Arc<Failing>, Box<dyn DiskFile>);

impl Disk for FailingDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(FailingFile(self.0.clone(), FileSystem.create(path)?)))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(FailingFile(self.0.clone(), FileSystem.open(path)?)))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        FileSystem.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        FileSystem.sync_dir(dir)
    }
}

impl DiskFile for FailingFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if !self.0.passes(Fault::Write) {
            return Err(io::ErrorKind::Other.into());
        }
        if !self.0.passes(Fault::Full) {
            self.1.write_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.1.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        if self.0.left.load(Ordering::SeqCst) < 0 {
            self.0.syncs_after.fetch_add(1, Ordering::SeqCst);
        }
        if !self.0.passes(Fault::Sync) {
            return Err(io::ErrorKind::Other.into());
        }
        self.1.sync()
    }
}

#[test]
fn a_disk_that_refuses_stops_everything_and_loses_nothing_that_was_acknowledged() {
    for fault in [Fault::Sync, Fault::Write, Fault::Full] {
        for passes in 2..25 {
            let dir = tempfile::tempdir().expect("a folder");
            // One size for all segments, so that the spare's operations are few and the same.
            let options = options(dir.path(), 2000, 2000);
            let failing =
                Arc::new(Failing { fault, left: AtomicI64::new(passes), syncs_after: AtomicU64::new(0) });
            let (acknowledged, was_told) = play(&options, &failing);
            assert_eq!(was_told, 1, "{fault:?} after {passes}: told once that it has stopped");
            let (_, found) = recover(&options).expect("open");
            assert!(found.len() >= acknowledged.len(), "{fault:?} after {passes}");
            assert_prefix(&acknowledged, &found);
            assert_prefix(&found, &some_records(40));
            assert_eq!(verify(dir.path()).expect("readable").outcome, Outcome::Sound);
        }
    }
}

fn play(options: &Options, failing: &Arc<Failing>) -> (Vec<Record>, usize) {
    let (to, delivered) = sink();
    let disk = arc(FailingDisk(failing.clone()));
    let (journal, _) = SegmentJournal::open_on(disk, options, to).expect("open");
    let (mut acknowledged, mut was_told) = (Vec::new(), 0);
    for record in some_records(40) {
        if journal.append(record).is_err() {
            break;
        }
        match delivered.recv_timeout(Duration::from_secs(20)) {
            Ok(Delivery::Records(records)) => {
                acknowledged.extend(records.iter().map(|one| Record::clone(one)));
            }
            Ok(Delivery::Stopped(_)) => was_told += 1,
            other => panic!("not {other:?}"),
        }
    }
    assert!(matches!(journal.append(some_records(1).remove(0)), Err(AppendError::Closed)));
    assert!(matches!(journal.close(), Err(CloseError::Stopped)));
    assert!(delivered.try_recv().is_err(), "nothing is delivered after that");
    if failing.fault == Fault::Sync {
        assert!(failing.syncs_after.load(Ordering::SeqCst) <= 1, "no sync is tried again");
    }
    (acknowledged, was_told)
}

#[test]
fn a_full_queue_says_so_and_takes_more_later() {
    let dir = tempfile::tempdir().expect("a folder");
    let bounds = super::super::Bounds { records: 3, bytes: 1 << 20 };
    let options = Options { queue: bounds, ..options(dir.path(), 1 << 16, 1 << 16) };
    let gate = Arc::new(Mutex::new(()));
    let (its_gate, (to, delivered)) = (gate.clone(), channel());
    let sink: Sink = Box::new(move |delivery| {
        drop(its_gate.lock());
        drop(to.send(delivery));
    });
    let (journal, _) = SegmentJournal::open(&options, sink).expect("open");
    let shut = gate.lock().expect("a gate");
    let mut records = some_records(20).into_iter();
    let mut refused = None;
    // One in the hands of the writer, or several, then three that wait.
    for record in records.by_ref() {
        match journal.append(record) {
            Ok(()) => std::thread::sleep(Duration::from_millis(1)),
            Err(AppendError::Busy(record)) => {
                refused = Some(*record);
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let refused = refused.expect("the queue is bounded");
    drop(shut);
    let last = loop {
        match journal.append(refused.clone()) {
            Ok(()) => break refused,
            Err(AppendError::Busy(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    wait_for(&delivered, &last);
    journal.close().expect("closed");
}

#[test]
fn one_process_has_the_folder_and_the_next_is_told_which() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = options(dir.path(), 1 << 16, 1 << 16);
    let (journal, _) = SegmentJournal::open(&options, sink().0).expect("open");
    assert!(verify(dir.path()).expect("readable").is_open);
    let error = SegmentJournal::open(&options, sink().0).err().expect("locked").to_string();
    assert!(error.contains(&dir.path().display().to_string()), "{error}");
    journal.close().expect("closed");
    assert!(!verify(dir.path()).expect("readable").is_open);
    SegmentJournal::open(&options, sink().0).expect("open");
}

#[test]
fn segments_grow_and_an_idle_journal_is_named_to_its_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = Options { pause: Duration::from_millis(1), ..options(dir.path(), 1024, 16 << 10) };
    let records = some_records(300);
    let (to, delivered) = sink();
    let (journal, _) = SegmentJournal::open(&options, to).expect("open");
    for record in &records {
        journal.append(record.clone()).expect("queued");
    }
    wait_for(&delivered, &records[299]);
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while verify(dir.path()).expect("readable").named != position_of(&records) {
        assert!(std::time::Instant::now() < end, "a marker was to come");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sizes: Vec<_> = list(dir.path()).expect("listed").iter().map(|(_, file)| len(file)).collect();
    assert_eq!(sizes[..6], [1024, 2048, 4096, 8192, 16 << 10, 16 << 10]);
    drop(journal);
    assert_eq!(recover(&options).expect("open").1, records);
}

fn len(file: &Path) -> u64 {
    fs::metadata(file).expect("there").len()
}
