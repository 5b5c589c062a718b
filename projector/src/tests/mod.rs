//! Tests of the crate as a whole.

pub(crate) mod driver;
mod folding;
mod histories;
mod reading;
mod starting;
mod stir;
mod why;
mod writing;

use std::collections::BTreeMap;
use std::path::Path;

use chancery_journal::snapshots::SnapshotStore;

use crate::build_row::snapshot_of;
use crate::counts::RowCounts;
use crate::projector::Projector;
use crate::store::StoreTuning;
use driver::{FLEET, TestDriver};

fn tuning() -> StoreTuning {
    StoreTuning { cache: 8 << 20, batch: 64 }
}

pub(crate) fn open(dir: &Path, driver: &TestDriver, snapshots: Option<&SnapshotStore>) -> Projector {
    Projector::open(dir, FLEET, driver.source(), snapshots, tuning()).expect("opened")
}

/// Returns the content of the store without the cursor.
fn stored(projector: &Projector) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let all = projector.store().tree().iter().map(|entry| entry.expect("read"));
    all.filter(|(key, _)| key[0] != 0).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Asserts that stored rows, entries and counts are those of the state.
fn assert_right(projector: &Projector, what: &str) {
    let Some(state) = projector.state() else {
        assert!(stored(projector).is_empty(), "{what}: rows without a state");
        return;
    };
    assert_eq!(*projector.counts(), RowCounts::of(&state.fleet), "{what}: counts");
    let (kept, made) = (stored(projector), snapshot_of(&state.fleet));
    for (key, row) in &made {
        assert_eq!(kept.get(key), Some(row), "{what}: row {}", String::from_utf8_lossy(key));
    }
    for key in kept.keys() {
        assert!(made.contains_key(key), "{what}: row {} is still there", String::from_utf8_lossy(key));
    }
}
