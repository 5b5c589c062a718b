//! Data of earlier builds (`tests/golden`) with the same meaning for this build.
//!
//! `GOLDEN=NAME` writes data of the types that have none: see `tests/golden/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_journal::segments::{FrozenSegments, SegmentJournal, SegmentOptions, verify_each};
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{Journal as _, JournalReader};
use chancery_projector::{JournalFold, ListQuery, Projector, RowKind, StoreTuning, snapshot};
use chancery_tests::golden::{JournalStart, journals_with, types, types_of};
use chancery_tests::program;
use serde_json::{Value, json};
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
    // The name matters only to snapshots, which are all of this fleet.
    let mut projector = Projector::open(dir.path(), "default", source, snapshots, StoreTuning::default())
        .expect("a projector");
    assert_eq!(projector.snapshot(), position, "position of the snapshot that is used");
    projector.catch_up().expect("a journal that can be folded");
    let reader = projector.reader();
    let of = |kind: &RowKind| {
        let page = reader.list_json(*kind, &ListQuery::all().limit(1000)).expect("a page");
        let text = format!(r#"{},"next_page_token":null,"position":{}}}"#, page.start, page.position);
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

/// Directories with golden data of earlier builds, apart from the data that `play.sh` wrote first.
fn directories() -> Vec<String> {
    let entries = fs::read_dir(golden("")).expect("golden data").map(|entry| entry.expect("an entry"));
    let directories = entries.filter(|entry| entry.path().join("fleet.tar.gz").is_file());
    let mut names: Vec<_> =
        directories.map(|entry| entry.file_name().into_string().expect("a name")).collect();
    names.sort();
    names
}

/// Rows of a kind, as golden data have them; a kind without rows has no file.
fn rows_of(directory: &str, kind: &str) -> Value {
    let file = golden(&format!("{directory}/rows/{kind}.json"));
    if !file.is_file() {
        return json!({"items": []});
    }
    serde_json::from_str(&fs::read_to_string(file).expect("rows")).expect("JSON")
}

#[test]
fn every_earlier_journal_gives_the_same_rows_with_added_fields() {
    let all = directories();
    assert!(all.len() > 5, "{all:?}");
    for directory in all {
        let fleet = unpacked(&format!("{directory}/fleet.tar.gz"));
        assert_eq!(report(&fleet), read(&format!("{directory}/verify.txt")), "{directory}");
        let frozen =
            FrozenSegments::open(&fleet.path().join("journal")).expect("a journal").expect("records");
        for (kind, text) in rows(frozen.source(), None, Position::ZERO) {
            let (before, now) = (rows_of(&directory, kind), serde_json::from_str(&text).expect("JSON"));
            assert!(contains(&now, &before), "{directory}, {kind}: {now}\nbefore: {before}");
        }
    }
}

/// Types that occur in the golden journals.
fn golden_types() -> BTreeSet<String> {
    let archives = directories().into_iter().map(|directory| format!("{directory}/fleet.tar.gz"));
    let mut found = BTreeSet::new();
    for archive in archives.chain(["fleet.tar.gz".to_owned()]) {
        let mut add = |record: &Record| found.extend(types_of(record));
        verify_each(&unpacked(&archive).path().join("journal"), &mut add).expect("a journal");
    }
    found
}

/// Number of worlds among whose journals the written ones are chosen.
const WORLDS: u64 = 1000;

/// Returns the types that occur in no golden journal.
fn missing_types() -> BTreeSet<&'static str> {
    let found = golden_types();
    types().into_iter().filter(|name| !found.contains(*name)).collect()
}

#[test]
fn every_type_of_the_registers_occurs_in_a_golden_journal() {
    if let Ok(name) = std::env::var("GOLDEN") {
        for (number, records) in (1..).zip(journals_with(&missing_types(), 1..=WORLDS)) {
            write(&golden(&format!("{name}-{number}")), &records);
        }
    }
    let missing = missing_types();
    assert!(missing.is_empty(), "{missing:?}: write golden data as tests/golden/README.md describes");
}

/// Writes golden data: the journal, its report, and the rows of each kind that has any.
fn write(directory: &Path, records: &JournalStart) {
    let fleet = tempfile::tempdir().expect("a temporary directory");
    let header = records[0].header();
    let mut options = SegmentOptions::new(fleet.path().join("journal"), &header.fleet);
    (options.first_segment, options.largest_segment) = (64 << 10, 64 << 10);
    let (journal, _) = SegmentJournal::open(&options, Box::new(|_| ())).expect("a journal");
    for record in records {
        journal.append_here(Record::clone(record)).expect("appended");
    }
    fs::create_dir_all(directory.join("rows")).expect("a directory");
    let all = rows(journal.source(), None, Position::ZERO).into_iter();
    for (kind, text) in all.filter(|(_, text)| !text.starts_with(r#"{"items":[],"#)) {
        fs::write(directory.join("rows").join(format!("{kind}.json")), text).expect("written");
    }
    journal.close().expect("synced");
    fs::write(directory.join("verify.txt"), report(&fleet)).expect("written");
    let tar = Command::new("tar")
        .arg("-C")
        .arg(fleet.path())
        .args(["--exclude", "lock", "--exclude", "spare", "-czf"])
        .arg(directory.join("fleet.tar.gz"))
        .arg("journal")
        .status();
    assert!(tar.expect("tar runs").success());
}
