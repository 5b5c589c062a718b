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
use chancery_machine::fleet::FleetState;
use chancery_machine::state::{Incarnation, Replica};

use crate::build_row::{RowVisitor, every};
use crate::counts::RowCounts;
use crate::figures::FleetFigures;
use crate::index::IndexEntries;
use crate::kind::ReadModelRow;
use crate::projector::Projector;
use crate::rows::WillWord;
use crate::store::{StoreTuning, encode};
use driver::{FLEET, TestDriver};
use serde_json::Value;

fn tuning() -> StoreTuning {
    StoreTuning { cache: 8 << 20, batch: 64 }
}

pub(crate) fn open(dir: &Path, driver: &TestDriver, snapshots: Option<&SnapshotStore>) -> Projector {
    Projector::open(dir, FLEET, driver.source(), snapshots, tuning()).expect("opened")
}

/// Returns the items of the start of a page.
pub(crate) fn items_of(start: &str) -> Vec<Value> {
    let page: BTreeMap<String, Vec<Value>> = serde_json::from_str(&format!("{start}}}")).expect("lists");
    page["items"].clone()
}

/// Returns the content of the store without the cursor.
fn stored(projector: &Projector) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let all = projector.store().tree().iter().map(|entry| entry.expect("read"));
    all.filter(|(key, _)| key[0] != 0).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Asserts that figures are those that a visit of every entity finds.
fn assert_figures(figures: &FleetFigures, fleet: &FleetState, what: &str) {
    let replicas = fleet.replicas().sorted();
    let all = || figures.own.iter().map(|(_, of)| of).chain([&figures.others]);
    let desired = replicas.iter().filter(|replica| replica.desired == WillWord::Running).count() as u64;
    assert_eq!(all().map(|of| of.desired).sum::<u64>(), desired, "{what}: desired replicas");
    let is_ready = |replica: &&Replica| replica.active.as_ref().is_some_and(|active| active.healthy);
    let ready = replicas.iter().copied().filter(is_ready).count() as u64;
    assert_eq!(all().map(|of| of.ready).sum::<u64>(), ready, "{what}: ready replicas");
    let phases = all().flat_map(|of| of.phases).sum::<u64>();
    assert_eq!(phases, replicas.len() as u64, "{what}: each replica has one phase");
    for (name, of) in &figures.own {
        let of_plan = replicas.iter().filter(|replica| replica.plan == *name).count() as u64;
        assert_eq!(of.phases.iter().sum::<u64>(), of_plan, "{what}: replicas of {name}");
    }
    let open = fleet.operations().unordered().filter(|operation| operation.is_open()).count() as u64;
    assert_eq!(figures.operations.iter().map(|(_, _, count)| count).sum::<u64>(), open, "{what}: operations");
    let nodes = figures.nodes.iter().map(|(_, count)| count).sum::<u64>();
    assert_eq!(nodes, fleet.nodes().len() as u64, "{what}: nodes");
    let is_pending = |incarnation: &&Incarnation| incarnation.command.is_some();
    let volumes = fleet.volumes().unordered().filter(|volume| volume.command.is_some()).count();
    let commands = fleet.incarnations().unordered().filter(is_pending).count() + volumes;
    assert_eq!(figures.commands, commands as u64, "{what}: commands");
}

/// Returns all rows and index entries as they are stored, for comparisons with a rebuild.
fn snapshot_of(fleet: &FleetState) -> BTreeMap<Vec<u8>, Vec<u8>> {
    struct StoredRows(BTreeMap<Vec<u8>, Vec<u8>>);
    impl RowVisitor for StoredRows {
        type Error = std::convert::Infallible;
        fn row<R: ReadModelRow>(&mut self, row: &R) -> Result<(), Self::Error> {
            self.0.insert(row.key().stored(), encode(row));
            let mut entries = IndexEntries::default();
            row.index(&mut entries);
            self.0.extend(entries.0.into_iter().map(|entry| (entry, Vec::new())));
            Ok(())
        }
    }
    let mut all = StoredRows(BTreeMap::new());
    let Ok(()) = every(fleet, &RowCounts::of(fleet), &mut all);
    all.0
}

/// Asserts that stored rows, entries and counts are those of the state.
fn assert_right(projector: &Projector, what: &str) {
    let Some(state) = projector.state() else {
        assert!(stored(projector).is_empty(), "{what}: rows without a state");
        return;
    };
    assert_eq!(*projector.counts(), RowCounts::of(&state.fleet), "{what}: counts");
    assert_figures(&projector.figures().expect("figures of a state"), &state.fleet, what);
    let (kept, made) = (stored(projector), snapshot_of(&state.fleet));
    for (key, row) in &made {
        assert_eq!(kept.get(key), Some(row), "{what}: row {}", String::from_utf8_lossy(key));
    }
    for key in kept.keys() {
        assert!(made.contains_key(key), "{what}: row {} is still there", String::from_utf8_lossy(key));
    }
}
