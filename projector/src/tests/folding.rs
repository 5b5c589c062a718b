//! Rows that were updated step by step are equal to the rows of the state.

use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::RecordDraft;
use chancery_journal::{ChainCursor, WriterIdentity};

use super::driver::{FLEET, TestDriver};
use super::{assert_right, open, stored, tuning};
use crate::build_row::replica_count;
use crate::fold::{FoldError, FoldOutcome, JournalFold};
use crate::projector::{ProjectError, Projector};
use crate::rows::PhaseStatus;

#[test]
fn rows_kept_along_the_way_are_those_made_from_the_state_whatever_happened() {
    let mut phases = std::collections::BTreeSet::new();
    for seed in 0..12 {
        let mut driver = TestDriver::new(seed);
        let dir = tempfile::tempdir().expect("a directory");
        let mut projector = open(dir.path(), &driver, None);
        driver.found(6, 4);
        let mut taken = 0;
        for round in 0..60 {
            for _ in 0..10 {
                driver.stir();
            }
            driver.seal();
            projector.apply(&driver.records[taken..]).expect("applied");
            taken = driver.records.len();
            assert_right(&projector, &format!("seed {seed} round {round}"));
            let replicas = driver.fleet.replicas().sorted();
            phases.extend(replicas.into_iter().map(|replica| replica_count(&driver.fleet, replica).phase));
        }
    }
    assert_eq!(phases.len(), PhaseStatus::ALL.len(), "every phase occurred: {phases:?}");
}

#[test]
fn a_snapshot_and_the_tail_are_the_whole_journal_to_the_last_bit() {
    for seed in 20..24 {
        let mut driver = TestDriver::new(seed);
        driver.found(6, 4);
        (0..300).for_each(|_| driver.stir());
        driver.seal();
        let dir = tempfile::tempdir().expect("a directory");
        let snapshots =
            chancery_journal::snapshots::SnapshotStore::open(dir.path().join("s")).expect("a directory");
        let mut first = open(&dir.path().join("a"), &driver, None);
        first.catch_up().expect("caught up");
        let meta = first
            .state()
            .expect("a state")
            .write(FLEET.into(), &snapshots, &*driver.source())
            .expect("written");
        assert_eq!(meta.state_hash, first.state().expect("a state").hash().expect("hashed"));
        (0..300).for_each(|_| driver.stir());
        driver.seal();
        first.catch_up().expect("caught up");
        let mut second = open(&dir.path().join("b"), &driver, Some(&snapshots));
        let begins = second.state().expect("a state").at.position;
        assert_eq!(begins, meta.position, "the state starts at the snapshot");
        second.catch_up().expect("caught up");
        let hash = |projector: &Projector| projector.state().expect("a state").hash().expect("hashed");
        assert_eq!(hash(&first), hash(&second), "seed {seed}");
        assert_eq!(stored(&first), stored(&second), "seed {seed}");
    }
}

#[test]
fn a_decoded_state_has_the_indexes_of_the_encoded_one_and_the_estimated_length() {
    for seed in 30..34 {
        let mut driver = TestDriver::new(seed);
        driver.found(6, 4);
        (0..300).for_each(|_| driver.stir());
        driver.seal();
        let mut fold = JournalFold::default();
        driver.records.iter().for_each(|record| assert!(fold.take(record).is_ok()));
        let state = fold.into_state().expect("a state");
        let mut bytes = Vec::new();
        state.encode(&mut bytes).expect("encoded");
        assert_eq!(
            state.encoded_len().expect("a length"),
            bytes.len() as u64,
            "a small state is measured whole"
        );
        let decoded = crate::snapshot::decode(&bytes).expect("decoded");
        let [mut was, mut is] = [&state.fleet, &decoded].map(|fleet| fleet.index().clone());
        // Not derived from the entities.
        (was.capacity_grew_at, is.capacity_grew_at) = (Position::ZERO, Position::ZERO);
        assert_eq!(format!("{was:?}"), format!("{is:?}"), "seed {seed}");
        for cut in [1, bytes.len() / 2, bytes.len() - 1] {
            assert!(crate::snapshot::decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
    }
}

#[test]
fn a_discarding_fold_has_the_same_state_records_no_changes_and_keeps_nothing_after_an_error() {
    let mut driver = TestDriver::new(5);
    driver.found(4, 2);
    (0..200).for_each(|_| driver.stir());
    driver.seal();
    let (mut keeping, mut discarding) = (JournalFold::default(), JournalFold::discarding(None));
    for record in &driver.records {
        assert_eq!(keeping.take(record).expect("folded"), discarding.take(record).expect("folded"));
    }
    let hash = |fold: &JournalFold| fold.state().expect("a state").hash().expect("hashed");
    assert_eq!(hash(&keeping), hash(&discarding));
    let mut continued = JournalFold::discarding(keeping.state().cloned());
    for fold in [&discarding, &continued] {
        assert_eq!(fold.state().expect("a state").fleet.changed().count(), 0);
    }
    let last = driver.records.last().expect("a record");
    let mut draft = RecordDraft::new();
    draft
        .push(br#"{"k":"fact","t":"cluster.activity_changed.v1","c":1,"d":{"name":"no-such-cluster","activity":"inactive"}}"#)
        .expect("space");
    let by = WriterIdentity { fleet: FLEET.into(), build: "other".into(), writer: last.header().writer };
    let parts = ChainCursor::after(last).follow(&by, last.header().time, None);
    let broken = draft.seal(parts).expect("sealed");
    for (fold, kept) in [(&mut keeping, last.last()), (&mut continued, Position::ZERO)] {
        let error = fold.take(&broken).expect_err("a contradiction");
        assert!(matches!(error, FoldError::Contradiction { .. }), "{error}");
        assert_eq!(fold.position(), kept);
    }
}

#[test]
fn what_is_applied_twice_changes_nothing_and_a_gap_is_reported() {
    let mut driver = TestDriver::new(3);
    driver.found(4, 2);
    (0..50).for_each(|_| driver.stir());
    driver.seal();
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    let middle = driver.records.len() / 2;
    projector.apply(&driver.records[..middle]).expect("applied");
    let once = stored(&projector);
    let at = projector.apply(&driver.records[..middle]).expect("applied again");
    assert_eq!((at, stored(&projector)), (driver.records[middle - 1].last(), once));
    let gap = projector.apply(&driver.records[middle + 1..]);
    assert!(matches!(gap, Err(ProjectError::Fold(FoldError::Gap { .. }))), "{gap:?}");
    projector.catch_up().expect("the gap is closed");
    assert_right(&projector, "after a gap");
}

#[test]
fn an_event_of_a_newer_build_stops_the_fold_before_its_record_and_is_reported() {
    for (kind, more) in [("fact", r#""c":1,"#), ("intent", r#""by":"x","#), ("observation", r#""by":"x","#)] {
        let mut driver = TestDriver::new(4);
        driver.found(3, 2);
        driver.deploy(0, "deployment-1", 3);
        driver.settle();
        let dir = tempfile::tempdir().expect("a directory");
        let mut projector = open(dir.path(), &driver, None);
        let good = projector.catch_up().expect("caught up");
        let reader = projector.reader();
        let before = stored(&projector);
        let last = driver.records.last().expect("a record");
        let mut draft = RecordDraft::new();
        // Earlier events of the record must not stay folded.
        draft.push(br#"{"k":"fact","t":"cluster.activity_changed.v1","c":1,"d":{"name":"east","activity":"inactive"}}"#).expect("space");
        let line = format!(r#"{{"k":"{kind}","t":"moon.landed.v1",{more}"d":{{}}}}"#);
        draft.push(line.as_bytes()).expect("space");
        let by = WriterIdentity { fleet: FLEET.into(), build: "newer".into(), writer: last.header().writer };
        let parts = ChainCursor::after(last).follow(&by, last.header().time, None);
        driver.log.inject(draft.seal(parts).expect("sealed").bytes().clone());
        if kind == "intent" {
            // Earlier records of the same call are applied.
            let mut late = Projector::open(&dir.path().join("late"), FLEET, driver.source(), None, tuning())
                .expect("opened");
            late.catch_up().expect_err("a newer build is needed");
            assert_eq!((late.position(), late.reader().applied().position), (good, good));
            assert_right(&late, "stopped late");
        }
        let error = projector.catch_up().expect_err("a newer build is needed");
        assert_eq!(
            error.to_string(),
            format!(
                "cannot fold event at position {}: unknown type moon.landed.v1\nhint: use a newer build",
                good.plus(2)
            )
        );
        assert_eq!((projector.position(), stored(&projector)), (good, before));
        assert_right(&projector, "stopped");
        assert!(matches!(projector.catch_up(), Err(ProjectError::Stopped)));
        let error = reader.applied().reaches(good.plus(1)).expect_err("stopped");
        assert!(error.to_string().contains("moon.landed.v1"), "{error}");
    }
}

#[test]
fn a_record_of_another_history_is_not_folded() {
    let mut ours = TestDriver::new(5);
    ours.found(2, 1);
    let mut fold = JournalFold::default();
    for record in &ours.records {
        assert_eq!(fold.take(record).expect("folded"), FoldOutcome::Applied);
    }
    // The same again, except for the time: the same number of events, with other bytes.
    let mut theirs = TestDriver::new(5);
    theirs.pass_time(std::time::Duration::from_secs(1));
    theirs.found(2, 1);
    theirs.deploy(0, "deployment-1", 1);
    theirs.seal();
    let next = fold.position().plus(1);
    let foreign =
        theirs.records.iter().find(|record| record.first() == next).map(Arc::clone).expect("a record");
    let error = fold.take(&foreign).expect_err("another history");
    assert!(matches!(error, FoldError::Fork { .. }), "{error}");
}

#[test]
fn an_empty_journal_gives_an_empty_projector_that_continues_from_nothing() {
    let mut driver = TestDriver::new(6);
    let dir = tempfile::tempdir().expect("a directory");
    let empty = chancery_journal::memory::MemoryLog::new(FLEET);
    let mut projector = Projector::open(dir.path(), FLEET, empty.source(), None, tuning()).expect("opened");
    assert_eq!(projector.catch_up().expect("nothing to do"), Position::ZERO);
    assert!(projector.state().is_none());
    driver.found(2, 1);
    projector.apply(&driver.records).expect("applied");
    assert_right(&projector, "from nothing");
}

#[test]
fn an_empty_store_is_filled_once_and_followed_in_batches() {
    let mut driver = TestDriver::new(3);
    driver.found(4, 4);
    driver.deploy(0, "first", 60);
    driver.settle();
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    assert_eq!(
        (projector.position(), projector.reader().applied().position),
        (Position::ZERO, Position::ZERO)
    );
    projector.catch_up().expect("caught up");
    assert_right(&projector, "filled");
    // Each row is written once, however often its entity has changed.
    assert_eq!(projector.rows_written(), stored(&projector).len() as u64);
    assert_eq!(projector.batches(), 1);
    for n in 1..4 {
        driver.deploy(n, "first", 60);
    }
    driver.settle();
    projector.catch_up().expect("caught up");
    assert_right(&projector, "followed");
    assert!(projector.batches() > 2, "{} batches", projector.batches());
}
