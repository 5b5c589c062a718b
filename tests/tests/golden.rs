//! Data of an earlier build (`tests/golden`) with the same meaning for this build.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use chancery_events::id::Position;
use chancery_journal::segments::{SegmentJournal, SegmentOptions, verify_each};
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{Journal as _, JournalReader};
use chancery_projector::{JournalFold, ListQuery, Projector, RowKind, StoreTuning, snapshot};
use chancery_tests::program;
use serde_json::Value;
use tempfile::TempDir;

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(golden(file)).expect(file)
}

/// Copy of the journal and the snapshots.
fn fleet() -> TempDir {
    unpacked("fleet.tar.gz")
}

fn unpacked(archive: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tar = Command::new("tar").arg("-C").arg(dir.path()).arg("-xzf").arg(golden(archive)).status();
    assert!(tar.expect("tar runs").success());
    dir
}

/// Report of `verify` about a journal, without the path.
fn report(fleet: &TempDir) -> String {
    let output =
        Command::new(program()).arg("verify").arg(fleet.path().join("journal")).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let (_, report) = text.split_once('\n').expect("a line with the path");
    assert!(output.status.success(), "{text}");
    report.to_owned()
}

#[test]
fn an_earlier_journal_is_verified_with_the_same_report() {
    assert_eq!(report(&fleet()), read("verify.txt"));
}

#[test]
fn an_earlier_journal_is_replayed_to_the_states_of_its_snapshots() {
    let fleet = fleet();
    let snapshots = SnapshotStore::open(fleet.path().join("snapshots")).expect("snapshots");
    let mut expected = BTreeMap::new();
    for (position, _) in snapshots.list().expect("snapshots") {
        let found = snapshots.load_newest(|meta| meta.position == position).expect("it is read");
        let meta = found.expect("it is whole").meta;
        assert_eq!(meta.fingerprint, snapshot::fingerprint(), "state of another shape");
        expected.insert(position, meta.state_hash);
    }
    let mut fold = JournalFold::from(None);
    let mut hashes = BTreeMap::new();
    verify_each(&fleet.path().join("journal"), &mut |record| {
        fold.take(record).expect("a record that can be folded");
        if expected.contains_key(&record.last()) {
            let state = fold.state().expect("a state");
            hashes.insert(record.last(), state.hash().expect("a hash"));
        }
    })
    .expect("a journal");
    assert_eq!((hashes.len(), hashes), (4, expected));
}

/// Rows of each kind as the API returns them, built from the newest snapshot, which must be at the given
/// position.
fn rows(
    source: Arc<dyn JournalReader>,
    snapshots: Option<&SnapshotStore>,
    position: Position,
) -> BTreeMap<&'static str, String> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut projector = Projector::open(dir.path(), "default", source, snapshots, StoreTuning::default())
        .expect("a projector");
    assert_eq!(projector.snapshot(), position, "position of the snapshot that is used");
    projector.catch_up().expect("a journal that can be folded");
    let reader = projector.reader();
    let of = |kind: &RowKind| {
        let page = reader.list_json(*kind, &ListQuery::all().limit(1000)).expect("a page");
        let text =
            format!(r#"{{"items":{},"next_page_token":null,"position":{}}}"#, page.items, page.position);
        (kind.word(), text)
    };
    RowKind::ALL.iter().map(of).collect()
}

#[test]
fn an_earlier_journal_and_its_snapshots_give_the_same_rows() {
    let fleet = fleet();
    let options = SegmentOptions::new(fleet.path().join("journal"), "default");
    let (journal, _) = SegmentJournal::open(&options, Box::new(|_| ())).expect("a journal");
    let snapshots = SnapshotStore::open(fleet.path().join("snapshots")).expect("snapshots");
    let expected: BTreeMap<_, _> =
        RowKind::ALL.iter().map(|kind| (kind.word(), read(&format!("rows/{}.json", kind.word())))).collect();
    assert_eq!(rows(journal.source(), None, Position::ZERO), expected, "replay of everything");
    for (position, path) in snapshots.list().expect("snapshots") {
        assert_eq!(rows(journal.source(), Some(&snapshots), position), expected, "replay from {position}");
        fs::remove_file(path).expect("the newest snapshot");
    }
}

/// Whether a value has everything that an earlier one had: fields may have been added.
fn contains(now: &Value, before: &Value) -> bool {
    match (now, before) {
        (Value::Object(now), Value::Object(before)) => {
            before.iter().all(|(key, value)| now.get(key).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(now), Value::Array(before)) => {
            now.len() == before.len() && now.iter().zip(before).all(|(now, before)| contains(now, before))
        }
        (now, before) => now == before,
    }
}

#[test]
fn journals_of_plans_with_fewer_fields_give_the_same_rows_with_added_fields() {
    for directory in [
        "before-containers",
        "before-machines",
        "before-shutdowns",
        "before-snapshots",
        "before-causes",
        "before-levels",
    ] {
        let fleet = unpacked(&format!("{directory}/fleet.tar.gz"));
        assert_eq!(report(&fleet), read(&format!("{directory}/verify.txt")), "{directory}");
        let options = SegmentOptions::new(fleet.path().join("journal"), "default");
        let (journal, _) = SegmentJournal::open(&options, Box::new(|_| ())).expect("a journal");
        for (kind, text) in rows(journal.source(), None, Position::ZERO) {
            let before = read(&format!("{directory}/rows/{kind}.json"));
            let before: Value = serde_json::from_str(&before).expect("JSON");
            let now: Value = serde_json::from_str(&text).expect("JSON");
            assert!(contains(&now, &before), "{directory}, {kind}: {now}\nbefore: {before}");
        }
    }
}
