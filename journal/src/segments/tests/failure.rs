//! Failing disks: the journal stops, and all acknowledged records are present afterwards.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use super::super::catalog::list;
use super::super::{SegmentJournal, VerifyOutcome, verify};
use super::*;
use crate::chain::ChainCursor;
use crate::journal::{AppendError, CloseError, Journal};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InjectedFault {
    Sync,
    Write,
    /// Half of the bytes are written.
    Full,
}

/// Disk that fails one kind of operation after `left` of them.
struct FaultCountdown {
    fault: InjectedFault,
    left: AtomicI64,
    syncs_after: AtomicU64,
}

impl FaultCountdown {
    fn passes(&self, fault: InjectedFault) -> bool {
        self.fault != fault || self.left.fetch_sub(1, Ordering::SeqCst) > 0
    }
}

struct FailingDisk(Arc<FaultCountdown>);

struct FailingFile(Arc<FaultCountdown>, Box<dyn DiskFile>);

impl DiskAccess for FailingDisk {
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
        if !self.0.passes(InjectedFault::Write) {
            return Err(io::ErrorKind::Other.into());
        }
        if !self.0.passes(InjectedFault::Full) {
            self.1.write_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.1.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        if self.0.left.load(Ordering::SeqCst) < 0 {
            self.0.syncs_after.fetch_add(1, Ordering::SeqCst);
        }
        if !self.0.passes(InjectedFault::Sync) {
            return Err(io::ErrorKind::Other.into());
        }
        self.1.sync()
    }
}

#[test]
fn a_disk_that_refuses_stops_everything_and_loses_nothing_that_was_acknowledged() {
    for fault in [InjectedFault::Sync, InjectedFault::Write, InjectedFault::Full] {
        for passes in 2..25 {
            let dir = tempfile::tempdir().expect("a directory");
            // One size for all segments, so that the spare's operations are few and the same.
            let options = options(dir.path(), 2000, 2000);
            let failing = Arc::new(FaultCountdown {
                fault,
                left: AtomicI64::new(passes),
                syncs_after: AtomicU64::new(0),
            });
            let how = [SegmentJournal::append, SegmentJournal::append_here][passes as usize % 2];
            let (acknowledged, notifications) = play(&options, &failing, how);
            assert_eq!(notifications, 1, "{fault:?} after {passes}: notified once of the stop");
            let (_, found) = recover(&options).expect("open");
            assert!(found.len() >= acknowledged.len(), "{fault:?} after {passes}");
            assert_prefix(&acknowledged, &found);
            assert_prefix(&found, &some_records(40));
            assert_eq!(verify(dir.path()).expect("readable").outcome, VerifyOutcome::Intact);
        }
    }
}

type AppendFunction = fn(&SegmentJournal, Record) -> Result<(), AppendError>;

fn play(
    options: &SegmentOptions,
    failing: &Arc<FaultCountdown>,
    append: AppendFunction,
) -> (Vec<Record>, usize) {
    let (to, delivered) = sink();
    let disk = arc(FailingDisk(failing.clone()));
    let (journal, _) = SegmentJournal::open_on(disk, options, to).expect("open");
    let (mut acknowledged, mut notifications) = (Vec::new(), 0);
    for record in some_records(40) {
        if append(&journal, record).is_err() {
            break;
        }
        match delivered.recv_timeout(Duration::from_secs(20)) {
            Ok(JournalDelivery::Records(records)) => {
                acknowledged.extend(records.iter().map(|one| Record::clone(one)));
            }
            Ok(JournalDelivery::Stopped(error)) => {
                let text = error.to_string();
                assert!(
                    text.contains(&options.dir.display().to_string()),
                    "the error names the directory: {text}"
                );
                notifications += 1;
            }
            other => panic!("not {other:?}"),
        }
    }
    assert!(matches!(append(&journal, some_records(1).remove(0)), Err(AppendError::Closed)));
    assert!(matches!(journal.close(), Err(CloseError::Stopped)));
    assert!(delivered.try_recv().is_err(), "nothing is delivered after a stop");
    if failing.fault == InjectedFault::Sync {
        assert!(failing.syncs_after.load(Ordering::SeqCst) <= 1, "no sync is retried");
    }
    (acknowledged, notifications)
}

/// Disk that has no descriptor for the next `short` openings of a file or a directory.
#[derive(Default)]
struct DescriptorShortage {
    short: AtomicI64,
    refused: AtomicU64,
}

struct ScarceDisk(Arc<DescriptorShortage>);

impl ScarceDisk {
    fn open_one(&self) -> io::Result<()> {
        if self.0.short.fetch_sub(1, Ordering::SeqCst) > 0 {
            self.0.refused.fetch_add(1, Ordering::SeqCst);
            return Err(rustix::io::Errno::MFILE.into());
        }
        Ok(())
    }
}

impl DiskAccess for ScarceDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open_one()?;
        FileSystem.create(path)
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open_one()?;
        FileSystem.open(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        FileSystem.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.open_one()?;
        FileSystem.sync_dir(dir)
    }
}

#[test]
fn a_moment_without_descriptors_blocks_the_journal_and_does_not_end_it() {
    for short in [1, 2, 3] {
        let dir = tempfile::tempdir().expect("a directory");
        let options = options(dir.path(), 2000, 2000);
        let scarce = Arc::new(DescriptorShortage::default());
        let (to, delivered) = sink();
        let disk = arc(ScarceDisk(scarce.clone()));
        let (journal, _) = SegmentJournal::open_on(disk, &options, to).expect("open");
        let records = some_records(40);
        for (n, record) in records.iter().enumerate() {
            // Some of the forty records start a segment, and half of these find it preallocated.
            scarce.short.store(short, Ordering::SeqCst);
            let how = [SegmentJournal::append, SegmentJournal::append_here][n % 2];
            how(&journal, record.clone()).expect("accepted");
            wait_for(&delivered, record);
        }
        scarce.short.store(0, Ordering::SeqCst);
        journal.close().expect("closed");
        assert!(scarce.refused.load(Ordering::SeqCst) > 0, "no segment was started meanwhile");
        let (_, found) = recover(&options).expect("open");
        assert_eq!(found.len(), records.len());
    }
}

#[test]
fn a_full_queue_is_reported_and_takes_more_later() {
    let dir = tempfile::tempdir().expect("a directory");
    let bounds = super::super::QueueBounds { records: 3, bytes: 1 << 20 };
    let options = SegmentOptions { queue: bounds, ..options(dir.path(), 1 << 16, 1 << 16) };
    let gate = Arc::new(Mutex::new(()));
    let (its_gate, (to, delivered)) = (gate.clone(), channel());
    let sink: DeliverySink = Box::new(move |delivery| {
        drop(its_gate.lock());
        drop(to.send(delivery));
    });
    let (journal, _) = SegmentJournal::open(&options, sink).expect("open");
    let shut = gate.lock().expect("a gate");
    let mut records = some_records(20).into_iter();
    let mut refused = None;
    // The writer has one or several records, then three wait in the queue.
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
fn an_appender_that_writes_waits_for_the_disk_and_wakes_no_thread() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = options(dir.path(), 1 << 16, 1 << 16);
    let (to, delivered) = channel();
    let sink: DeliverySink = Box::new(move |_| to.send(std::thread::current().id()).expect("received"));
    let (journal, _) = SegmentJournal::open(&options, sink).expect("open");
    for record in some_records(9) {
        let last = record.last();
        journal.append_here(record).expect("accepted");
        assert_eq!(journal.head().map(|head| head.position), Some(last));
        assert_eq!(delivered.try_recv(), Ok(std::thread::current().id()), "delivered before it returned");
    }
    journal.close().expect("closed");
}

/// Disk that syncs when permitted.
#[derive(Default)]
struct SyncControl {
    gate: Mutex<SyncGate>,
    moved: Condvar,
}

#[derive(Default)]
struct SyncGate {
    is_shut: bool,
    waits: usize,
}

impl SyncControl {
    fn shut(&self) {
        self.gate.lock().expect("a gate").is_shut = true;
    }
    /// Waits until a sync waits at the gate.
    fn until_held_up(&self) {
        let gate = self.gate.lock().expect("a gate");
        let held = self
            .moved
            .wait_timeout_while(gate, Duration::from_secs(20), |gate| gate.waits == 0)
            .expect("a gate");
        assert!(!held.1.timed_out(), "no sync waits");
    }
    fn open(&self) {
        self.gate.lock().expect("a gate").is_shut = false;
        self.moved.notify_all();
    }
}

struct SlowDisk(Arc<SyncControl>);

struct SlowFile(Arc<SyncControl>, Box<dyn DiskFile>);

impl DiskAccess for SlowDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SlowFile(self.0.clone(), FileSystem.create(path)?)))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SlowFile(self.0.clone(), FileSystem.open(path)?)))
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

impl DiskFile for SlowFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.1.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        let mut gate = self.0.gate.lock().expect("a gate");
        gate.waits += 1;
        self.0.moved.notify_all();
        gate = self.0.moved.wait_while(gate, |gate| gate.is_shut).expect("a gate");
        gate.waits -= 1;
        drop(gate);
        self.1.sync()
    }
}

#[test]
fn a_slow_disk_delays_deliveries_but_neither_appenders_nor_readers() {
    for append in [SegmentJournal::append, SegmentJournal::append_here] {
        let dir = tempfile::tempdir().expect("a directory");
        let options = options(dir.path(), 1 << 16, 1 << 16);
        let slow = Arc::new(SyncControl::default());
        let (to, delivered) = sink();
        let (journal, _) = SegmentJournal::open_on(arc(SlowDisk(slow.clone())), &options, to).expect("open");
        let records = some_records(12);
        journal.append_here(records[0].clone()).expect("accepted");
        wait_for(&delivered, &records[0]);
        slow.shut();
        std::thread::scope(|scope| {
            scope.spawn(|| append(&journal, records[1].clone()).expect("queued"));
            slow.until_held_up();
            for record in &records[2..] {
                append(&journal, record.clone()).expect("queued although the disk is slow");
            }
            assert!(delivered.try_recv().is_err(), "nothing is delivered before its sync");
            assert_eq!(journal.head(), Some(ChainCursor::after(&records[0])));
            let source = journal.source();
            assert_eq!(source.records(Position::FIRST).expect("readable").count(), 1);
            slow.open();
        });
        wait_for(&delivered, &records[11]);
        journal.close().expect("closed");
        assert_eq!(recover(&options).expect("open").1, records);
    }
}

#[test]
fn whichever_thread_writes_records_stay_in_order_and_all_arrive() {
    let dir = tempfile::tempdir().expect("a directory");
    // Markers, segments that end, and both ways to append, all concurrently.
    let options =
        SegmentOptions { pause: Duration::from_micros(50), ..options(dir.path(), 4 << 10, 16 << 10) };
    let records = some_records(600);
    let (to, delivered) = sink();
    let (journal, _) = SegmentJournal::open(&options, to).expect("open");
    for (at, record) in records.iter().enumerate() {
        let append = if at % 5 < 3 { SegmentJournal::append_here } else { SegmentJournal::append };
        append(&journal, record.clone()).expect("queued");
    }
    journal.close().expect("closed");
    let arrived: Vec<Record> = delivered
        .iter()
        .flat_map(|delivery| match delivery {
            JournalDelivery::Records(records) => records,
            other => panic!("not {other:?}"),
        })
        .map(|record| Record::clone(&record))
        .collect();
    assert_eq!(arrived, records);
    assert_eq!(recover(&options).expect("open").1, records);
    assert_eq!(verify(dir.path()).expect("readable").outcome, VerifyOutcome::Intact);
}

#[test]
fn what_was_written_by_an_appender_is_named_after_a_pause() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = SegmentOptions { pause: Duration::from_millis(1), ..options(dir.path(), 1 << 16, 1 << 16) };
    let (journal, _) = SegmentJournal::open(&options, sink().0).expect("open");
    for record in some_records(3) {
        let last = record.last();
        journal.append_here(record).expect("accepted");
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while verify(dir.path()).expect("readable").named != last {
            assert!(std::time::Instant::now() < end, "no marker was written");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    journal.close().expect("closed");
}

#[test]
fn one_process_has_the_directory_and_is_named_to_the_next() {
    let dir = tempfile::tempdir().expect("a directory");
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
    let dir = tempfile::tempdir().expect("a directory");
    let options = SegmentOptions { pause: Duration::from_millis(1), ..options(dir.path(), 1024, 16 << 10) };
    let records = some_records(300);
    let (to, delivered) = sink();
    let (journal, _) = SegmentJournal::open(&options, to).expect("open");
    for record in &records {
        journal.append(record.clone()).expect("queued");
    }
    wait_for(&delivered, &records[299]);
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while verify(dir.path()).expect("readable").named != position_of(&records) {
        assert!(std::time::Instant::now() < end, "no marker was written");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sizes: Vec<_> = list(dir.path()).expect("listed").iter().map(|(_, file)| len(file)).collect();
    assert_eq!(sizes[..6], [1024, 2048, 4096, 8192, 16 << 10, 16 << 10]);
    drop(journal);
    assert_eq!(recover(&options).expect("open").1, records);
}

fn len(file: &Path) -> u64 {
    fs::metadata(file).expect("present").len()
}
