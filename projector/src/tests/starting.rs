//! Start-up: from any position of rows, snapshots and journal, state and rows end up the same.

use std::fs;
use std::sync::Arc;

use chancery_events::id::Position;
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{ChainCursor, JournalReader, ReadError, RecordIter};

use super::driver::{FLEET, TestDriver};
use super::{assert_right, open, stored, tuning};
use crate::projector::{ProjectError, Projector};
use crate::store::StoreError;

struct StoreFixture {
    dir: tempfile::TempDir,
    driver: TestDriver,
}

impl StoreFixture {
    fn new(seed: u64) -> StoreFixture {
        let mut driver = TestDriver::new(seed);
        driver.found(6, 4);
        (0..150).for_each(|_| driver.stir());
        driver.settle();
        StoreFixture { dir: tempfile::tempdir().expect("a directory"), driver }
    }

    fn rows(&self) -> std::path::PathBuf {
        self.dir.path().join("rows")
    }

    fn snapshots(&self) -> SnapshotStore {
        SnapshotStore::open(self.dir.path().join("snapshots")).expect("a directory")
    }

    fn go_on(&mut self) {
        (0..150).for_each(|_| self.driver.stir());
        self.driver.settle();
    }

    fn head(&self) -> Position {
        self.driver.source().head().expect("a head").position
    }

    /// Opens the projector, and checks the state's start, the rows if any, and both at the head.
    fn check(&self, with: Option<&SnapshotStore>, begins: Position) {
        let mut projector = open(&self.rows(), &self.driver, with);
        assert_eq!(projector.state().map_or(Position::ZERO, |state| state.at.position), begins);
        if projector.position() == Position::ZERO {
            assert!(stored(&projector).is_empty(), "rows without a cursor");
        } else {
            assert_eq!(projector.position(), begins);
            assert_right(&projector, "opened");
        }
        assert_eq!(projector.catch_up().expect("caught up"), self.head());
        assert_right(&projector, "caught up");
        let fresh = tempfile::tempdir().expect("a directory");
        let mut whole = open(fresh.path(), &self.driver, None);
        whole.catch_up().expect("caught up");
        assert_eq!(stored(&whole), stored(&projector));
        assert_eq!(
            whole.state().expect("a state").hash().ok(),
            projector.state().expect("a state").hash().ok()
        );
    }
}

#[test]
fn rows_continue_where_they_were() {
    let mut place = StoreFixture::new(30);
    let mut projector = open(&place.rows(), &place.driver, None);
    let stood = projector.catch_up().expect("caught up");
    drop(projector);
    place.go_on();
    place.check(None, stood);
}

#[test]
fn rows_ahead_of_the_snapshot_stay_and_the_state_is_replayed_to_them() {
    let mut place = StoreFixture::new(31);
    let mut projector = open(&place.rows(), &place.driver, None);
    projector.catch_up().expect("caught up");
    projector
        .state()
        .expect("a state")
        .write(FLEET.into(), &place.snapshots(), &*place.driver.source())
        .expect("written");
    place.go_on();
    let stood = projector.catch_up().expect("caught up");
    let marker = projector.store().tree().insert(b"\0marker", b"the same store");
    marker.expect("written");
    drop(projector);
    place.go_on();
    let snapshots = place.snapshots();
    {
        let projector = open(&place.rows(), &place.driver, Some(&snapshots));
        assert!(projector.store().tree().get(b"\0marker").expect("read").is_some(), "the rows were removed");
    }
    place.check(Some(&snapshots), stood);
}

#[test]
fn rows_behind_the_snapshot_are_made_again_from_its_state() {
    let mut place = StoreFixture::new(32);
    let mut projector = open(&place.rows(), &place.driver, None);
    projector.catch_up().expect("caught up");
    drop(projector);
    place.go_on();
    let snapshots = place.snapshots();
    let other = tempfile::tempdir().expect("a directory");
    let mut elsewhere = open(other.path(), &place.driver, None);
    let at = elsewhere.catch_up().expect("caught up");
    elsewhere
        .state()
        .expect("a state")
        .write(FLEET.into(), &snapshots, &*place.driver.source())
        .expect("written");
    place.go_on();
    place.check(Some(&snapshots), at);
}

#[test]
fn rows_of_another_build_are_made_again() {
    let place = StoreFixture::new(33);
    let mut projector = open(&place.rows(), &place.driver, None);
    projector.catch_up().expect("caught up");
    // The cursor starts with the shape.
    let tree = projector.store().tree().clone();
    let mut cursor = tree.get(b"\0cursor").expect("read").expect("a cursor").to_vec();
    cursor[3] = if cursor[3] == b'0' { b'1' } else { b'0' };
    tree.insert(b"\0cursor", cursor).expect("written");
    drop((projector, tree));
    place.check(None, Position::ZERO);
}

#[test]
fn rows_that_were_not_finished_are_made_again() {
    let place = StoreFixture::new(34);
    let mut projector = open(&place.rows(), &place.driver, None);
    projector.catch_up().expect("caught up");
    projector.store().tree().remove(b"\0cursor").expect("removed");
    drop(projector);
    place.check(None, Position::ZERO);
}

#[test]
fn rows_of_another_journal_are_made_again() {
    let (place, other) = (StoreFixture::new(35), StoreFixture::new(36));
    let mut projector = open(&place.rows(), &other.driver, None);
    projector.catch_up().expect("caught up");
    drop(projector);
    place.check(None, Position::ZERO);
}

#[test]
fn rows_ahead_of_the_journal_are_made_again() {
    let mut place = StoreFixture::new(37);
    let mut ahead = StoreFixture::new(37);
    ahead.go_on();
    let mut projector = open(&place.rows(), &ahead.driver, None);
    projector.catch_up().expect("caught up");
    drop(projector);
    assert!(ahead.head() > place.head());
    place.check(None, Position::ZERO);
    place.go_on();
}

#[test]
fn damaged_files_are_dropped_and_made_again() {
    let place = StoreFixture::new(38);
    let mut projector = open(&place.rows(), &place.driver, None);
    projector.catch_up().expect("caught up");
    projector.flush().expect("flushed");
    drop(projector);
    for entry in fs::read_dir(place.rows()).expect("listed") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            let len = fs::metadata(&path).expect("readable").len() as usize;
            fs::write(&path, vec![0x5a; len]).expect("written");
        }
    }
    place.check(None, Position::ZERO);
}

#[test]
fn a_snapshot_that_cannot_be_used_is_skipped() {
    let mut place = StoreFixture::new(39);
    let snapshots = place.snapshots();
    let write = |place: &StoreFixture| {
        let fresh = tempfile::tempdir().expect("a directory");
        let mut projector = open(fresh.path(), &place.driver, None);
        let at = projector.catch_up().expect("caught up");
        projector
            .state()
            .expect("a state")
            .write(FLEET.into(), &snapshots, &*place.driver.source())
            .expect("written");
        at
    };
    let older = write(&place);
    place.go_on();
    write(&place);
    place.go_on();
    let (_, newest) = snapshots.list().expect("listed").swap_remove(0);
    let mut bytes = fs::read(&newest).expect("read");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&newest, bytes).expect("written");
    place.check(Some(&snapshots), older);
    // A snapshot of another journal is not usable either.
    let other = StoreFixture::new(40);
    let projector = open(&place.dir.path().join("other"), &other.driver, Some(&snapshots));
    assert_eq!(projector.position(), Position::ZERO);
}

#[test]
fn snapshots_that_an_abandoned_history_left_ahead_are_replaced_by_new_ones() {
    let (mut place, mut abandoned) = (StoreFixture::new(44), StoreFixture::new(45));
    let snapshots = place.snapshots();
    let write = |of: &StoreFixture| {
        let fresh = tempfile::tempdir().expect("a directory");
        let mut projector = open(fresh.path(), &of.driver, None);
        let at = projector.catch_up().expect("caught up");
        let state = projector.state().expect("a state");
        state.write(FLEET.into(), &snapshots, &*of.driver.source()).expect("written");
        at
    };
    (0..20).for_each(|_| abandoned.go_on());
    let mut ahead = Vec::new();
    for _ in 0..2 {
        abandoned.go_on();
        ahead.push(write(&abandoned));
    }
    let mut ours = Vec::new();
    for _ in 0..3 {
        place.go_on();
        ours.push(write(&place));
    }
    assert!(ours[2] < ahead[0], "{ours:?} {ahead:?}");
    let kept: Vec<_> = snapshots.list().expect("listed").into_iter().map(|(position, _)| position).collect();
    assert!(kept.starts_with(&[ours[2], ours[1]]), "{kept:?}");
    place.check(Some(&snapshots), ours[2]);
}

#[test]
fn rows_that_another_projector_has_open_are_not_changed() {
    let place = StoreFixture::new(41);
    let mut projector = open(&place.rows(), &place.driver, None);
    projector.catch_up().expect("caught up");
    let second = Projector::open(&place.rows(), FLEET, place.driver.source(), None, tuning());
    assert!(matches!(second.map(drop), Err(ProjectError::Store(StoreError::InUse(_)))));
    assert_right(&projector, "the first");
}

#[test]
fn a_crash_after_any_batch_leaves_rows_that_continue() {
    let mut driver = TestDriver::new(42);
    driver.found(5, 3);
    (0..60).for_each(|_| driver.stir());
    driver.settle();
    let dir = tempfile::tempdir().expect("a directory");
    let mut taken = 0;
    while taken < driver.records.len() {
        let mut projector = open(dir.path(), &driver, None);
        let stood = projector.position();
        assert_right(&projector, "opened again");
        let until = (taken + 7).min(driver.records.len());
        // From the start: records applied before must not count twice.
        projector.apply(&driver.records[..until]).expect("applied");
        assert!(projector.position() > stood);
        assert_right(&projector, "continued");
        taken = until;
    }
}

#[test]
fn files_as_a_crash_leaves_them_give_rows_of_one_position() {
    let mut driver = TestDriver::new(43);
    driver.found(5, 3);
    (0..200).for_each(|_| driver.stir());
    driver.settle();
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(&dir.path().join("rows"), &driver, None);
    let mut positions = std::collections::BTreeSet::new();
    for (n, records) in driver.records.chunks(12).enumerate() {
        projector.apply(records).expect("applied");
        let left = dir.path().join(format!("left-{n}"));
        copy(&dir.path().join("rows"), &left);
        let found = open(&left, &driver, None);
        positions.insert(found.position());
        if found.state().is_some() {
            assert_right(&found, "after a crash");
        }
    }
    assert!(positions.len() > 1, "the disk never had rows");
}

/// Journal that grows by all its records before the reader reaches the end that it saw first.
struct GrowingJournal {
    log: Arc<dyn JournalReader>,
    seen: ChainCursor,
}

impl JournalReader for GrowingJournal {
    fn head(&self) -> Option<ChainCursor> {
        Some(self.seen)
    }

    fn records(&self, from: Position) -> Result<RecordIter, ReadError> {
        self.log.records(from)
    }
}

#[test]
fn catching_up_ends_at_the_head_as_it_was_however_fast_the_journal_grows() {
    let mut driver = TestDriver::new(41);
    driver.found(6, 4);
    (0..100).for_each(|_| driver.stir());
    driver.settle();
    for whole in [1, driver.records.len() / 2] {
        let dir = tempfile::tempdir().expect("a directory");
        let seen = ChainCursor::after(&driver.records[whole - 1]);
        let growing = Arc::new(GrowingJournal { log: driver.source(), seen });
        let mut projector = Projector::open(dir.path(), FLEET, growing, None, tuning()).expect("opened");
        for _ in 0..2 {
            assert_eq!(projector.catch_up().expect("caught up"), seen.position);
        }
        assert_right(&projector, "caught up");
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copied");
        }
    }
}
