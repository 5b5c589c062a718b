//! Power cuts at every operation, with any part of the unsynced writes lost, torn or reordered. Acknowledged
//! records are present when the directory is opened again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use super::super::SegmentJournal;
use super::*;
use crate::journal::Journal;

/// Unit of disk writes in bytes: smaller than any real one, so that small records are torn as well.
const SECTOR: usize = 64;

#[derive(Clone, Debug)]
enum DiskOperation {
    Create {
        file: usize,
        path: PathBuf,
    },
    Write {
        file: usize,
        offset: usize,
        bytes: Vec<u8>,
    },
    Sync {
        file: usize,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Remove {
        path: PathBuf,
    },
    SyncDir,
    /// The sink was notified of all records up to this position.
    Acknowledged {
        position: Position,
    },
}

#[derive(Clone, Default)]
struct OperationLog(Arc<Mutex<Vec<DiskOperation>>>);

impl OperationLog {
    fn push(&self, op: DiskOperation) {
        self.0.lock().expect("a log").push(op);
    }
}

/// Disk that executes operations and records them.
struct RecordingDisk {
    log: OperationLog,
    /// Numbers of existing files.
    known: Mutex<BTreeMap<PathBuf, usize>>,
}

struct RecordingFile {
    log: OperationLog,
    file: usize,
    inner: Box<dyn DiskFile>,
}

impl DiskAccess for RecordingDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let inner = NoSync.create(path)?;
        let mut log = self.log.0.lock().expect("a log");
        let file = 1000 + log.len();
        log.push(DiskOperation::Create { file, path: path.to_owned() });
        self.known.lock().expect("names").insert(path.to_owned(), file);
        Ok(Box::new(RecordingFile { log: self.log.clone(), file, inner }))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.known.lock().expect("names")[path];
        Ok(Box::new(RecordingFile { log: self.log.clone(), file, inner: NoSync.open(path)? }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut known = self.known.lock().expect("names");
        let file = known.remove(from).expect("a file");
        known.insert(to.to_owned(), file);
        self.log.push(DiskOperation::Rename { from: from.to_owned(), to: to.to_owned() });
        NoSync.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.log.push(DiskOperation::Remove { path: path.to_owned() });
        NoSync.remove(path)
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.log.push(DiskOperation::SyncDir);
        Ok(())
    }
}

impl DiskFile for RecordingFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.log.push(DiskOperation::Write {
            file: self.file,
            offset: offset as usize,
            bytes: bytes.to_vec(),
        });
        self.inner.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.log.push(DiskOperation::Sync { file: self.file });
        self.inner.sync()
    }
}

/// Part of the unsynced writes that a power cut loses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UnsyncedLoss {
    /// Nothing: the process was killed.
    None,
    /// All of them.
    All,
    /// Random sectors, chosen by this seed.
    Sectors(u64),
    /// All but the first sector of each write.
    Front,
    /// End of each write, from about the middle.
    Back,
}

struct SeededChoice(u64);

impl SeededChoice {
    fn toss(&mut self) -> bool {
        // Xorshift: the quality of the bits does not matter.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 & 0x10 != 0
    }
}

fn apply(content: &mut Vec<u8>, offset: usize, bytes: &[u8], loss: UnsyncedLoss, coin: &mut SeededChoice) {
    let end = offset + bytes.len();
    if content.len() < end && loss != UnsyncedLoss::All {
        content.resize(end, 0);
    }
    for (at, byte) in (offset..).zip(bytes) {
        let is_first_of_sector = at == offset || at % SECTOR == 0;
        if is_first_of_sector {
            coin.0 = coin.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(at as u64 | 1);
        }
        let is_kept = match loss {
            UnsyncedLoss::None => true,
            UnsyncedLoss::All => false,
            UnsyncedLoss::Sectors(_) => SeededChoice(coin.0).toss(),
            UnsyncedLoss::Front => at / SECTOR != offset / SECTOR,
            UnsyncedLoss::Back => at < offset + bytes.len() / 2,
        };
        if is_kept {
            content[at] = *byte;
        }
    }
}

/// Returns the directory as it is after a power cut that follows the first `ops`.
fn after_crash(
    before: &BTreeMap<PathBuf, Vec<u8>>,
    ops: &[DiskOperation],
    loss: UnsyncedLoss,
) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut coin = SeededChoice(match loss {
        UnsyncedLoss::Sectors(seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        UnsyncedLoss::None | UnsyncedLoss::All | UnsyncedLoss::Front | UnsyncedLoss::Back => 1,
    });
    let mut names: BTreeMap<PathBuf, usize> = before.keys().cloned().zip(0..).collect();
    let mut contents: BTreeMap<usize, Vec<u8>> = (0..).zip(before.values().cloned()).collect();
    let durable_names = ops.iter().rposition(|op| matches!(op, DiskOperation::SyncDir)).unwrap_or(0);
    for (at, op) in ops.iter().enumerate() {
        // Names that the directory's sync has not reached may be lost or not; later ones never come first.
        let is_name_lost = at > durable_names && matches!(loss, UnsyncedLoss::All | UnsyncedLoss::Back);
        match op {
            DiskOperation::Create { file, path } => {
                contents.insert(*file, Vec::new());
                if !is_name_lost {
                    names.insert(path.clone(), *file);
                }
            }
            DiskOperation::Write { file, offset, bytes } => {
                let is_synced = ops[at..]
                    .iter()
                    .any(|op| matches!(op, DiskOperation::Sync { file: synced } if synced == file));
                let loss = if is_synced { UnsyncedLoss::None } else { loss };
                apply(contents.get_mut(file).expect("a file"), *offset, bytes, loss, &mut coin);
            }
            DiskOperation::Rename { from, to } if !is_name_lost => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            DiskOperation::Remove { path } if !is_name_lost => drop(names.remove(path)),
            DiskOperation::Rename { .. }
            | DiskOperation::Remove { .. }
            | DiskOperation::Sync { .. }
            | DiskOperation::SyncDir
            | DiskOperation::Acknowledged { .. } => {}
        }
    }
    names.into_iter().filter_map(|(path, file)| Some((path, contents.get(&file)?.clone()))).collect()
}

fn lay_out(dir: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    fs::create_dir_all(dir).expect("a directory");
    for entry in fs::read_dir(dir).expect("listed") {
        fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    for (path, content) in files {
        fs::write(dir.join(path.file_name().expect("a name")), content).expect("written");
    }
}

fn acknowledged(ops: &[DiskOperation]) -> Position {
    let last = ops.iter().rev().find_map(|op| match op {
        DiskOperation::Acknowledged { position } => Some(*position),
        _ => None,
    });
    last.unwrap_or_default()
}

/// Writes records in groups of several sizes, with segments that end now and then, and markers in between.
fn recorded_run(dir: &Path, records: &[Record]) -> Vec<DiskOperation> {
    let log = OperationLog::default();
    let its_log = log.clone();
    let (to, delivered) = channel();
    let sink: DeliverySink = Box::new(move |delivery| {
        if let JournalDelivery::Records(records) = &delivery {
            let position = records.last().map_or(Position::ZERO, |record| record.last());
            its_log.push(DiskOperation::Acknowledged { position });
        }
        drop(to.send(delivery));
    });
    let disk = arc(RecordingDisk { log: log.clone(), known: Mutex::default() });
    let options = SegmentOptions { pause: Duration::from_millis(1), ..options(dir, 1500, 4000) };
    let (journal, _) = SegmentJournal::open_on(disk, &options, sink).expect("open");
    let mut rest = records;
    for size in [1, 1, 2, 4, 3, 1, 6].iter().cycle() {
        let (group, behind) = rest.split_at(rest.len().min(*size));
        let Some(last) = group.last() else { break };
        for record in group {
            let append = if *size == 2 { SegmentJournal::append_here } else { SegmentJournal::append };
            append(&journal, record.clone()).expect("queued");
        }
        wait_for(&delivered, last);
        if *size == 4 {
            std::thread::sleep(Duration::from_millis(5));
        }
        rest = behind;
    }
    journal.close().expect("closed");
    log.0.lock().expect("a log").clone()
}

fn losses() -> impl Iterator<Item = UnsyncedLoss> {
    [UnsyncedLoss::None, UnsyncedLoss::All, UnsyncedLoss::Front, UnsyncedLoss::Back]
        .into_iter()
        .chain((1..6).map(UnsyncedLoss::Sectors))
}

#[test]
fn a_power_failure_at_any_moment_loses_no_acknowledged_record() {
    let (live, found) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let records = some_records(36);
    let ops = recorded_run(live.path(), &records);
    let options = options(found.path(), 1500, 4000);
    let mut cuts = 0;
    for crash in 0..=ops.len() {
        for loss in losses() {
            lay_out(found.path(), &after_crash(&BTreeMap::new(), &ops[..crash], loss));
            let (opened, kept) =
                recover(&options).unwrap_or_else(|error| panic!("{crash} {loss:?}: {error}"));
            cuts += usize::from(opened.cut.is_some());
            assert_prefix(&kept, &records);
            assert!(position_of(&kept) >= acknowledged(&ops[..crash]), "{crash} {loss:?}: {opened:?}");
            assert!(loss != UnsyncedLoss::None || opened.cut.is_none(), "{crash}: nothing was torn");
            let (again, kept_again) = recover(&options).expect("open");
            assert_eq!((again.cut, kept_again.len()), (None, kept.len()));
        }
    }
    assert!(cuts > 20, "too few torn tails for a meaningful test: {cuts}");
}

#[test]
fn a_power_cut_while_a_torn_tail_is_repaired_is_no_worse() {
    let (live, found) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let records = some_records(20);
    let ops = recorded_run(live.path(), &records);
    let options = options(found.path(), 1500, 4000);
    let (mut tried, mut rewritten) = (0, 0);
    for crash in (0..=ops.len()).step_by(3) {
        let torn = after_crash(&BTreeMap::new(), &ops[..crash], UnsyncedLoss::Sectors(crash as u64));
        lay_out(found.path(), &torn);
        let log = OperationLog::default();
        let torn: BTreeMap<_, _> = torn
            .into_iter()
            .map(|(path, content)| (found.path().join(path.file_name().expect("a name")), content))
            .collect();
        let known = torn.keys().cloned().zip(0..).collect();
        let ready =
            open(&options, &RecordingDisk { log: log.clone(), known: Mutex::new(known) }).expect("open");
        let repair = log.0.lock().expect("a log").clone();
        if ready.opened.rewritten.is_some() {
            // Data left in memory by a failed sync appears intact, and is written and synced again all
            // the same.
            assert!(
                matches!(repair[..], [.., DiskOperation::Write { .. }, DiskOperation::Sync { .. }]),
                "{repair:?}"
            );
            rewritten += 1;
        }
        for second in 0..=repair.len() {
            for loss in losses() {
                lay_out(found.path(), &after_crash(&torn, &repair[..second], loss));
                let (_, kept) = recover(&options).expect("open");
                assert_prefix(&kept, &records);
                assert!(position_of(&kept) >= acknowledged(&ops[..crash]), "{crash} {second} {loss:?}");
                tried += 1;
            }
        }
    }
    assert!(tried > 200 && rewritten > 5, "{tried} {rewritten}");
}
