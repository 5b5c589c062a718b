//! Stored rows of this build and of invented ones, compared with a state.

use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::projector::Projector;
use crate::tests::driver::{FLEET, TestDriver};

/// Fleet, and its rows in a directory.
struct ComparedFleet {
    driver: TestDriver,
    rows: TempDir,
}

impl ComparedFleet {
    fn new(seed: u64) -> ComparedFleet {
        let mut driver = TestDriver::new(seed);
        driver.found(6, 4);
        (0..300).for_each(|_| driver.stir());
        driver.seal();
        let rows = tempfile::tempdir().expect("a directory");
        let source = Arc::clone(&driver.source());
        let mut projector =
            Projector::open(rows.path(), FLEET, source, None, StoreTuning::default()).expect("opened");
        projector.catch_up().expect("folded");
        projector.flush().expect("flushed");
        ComparedFleet { driver, rows }
    }

    fn state(&self) -> FoldedState {
        let mut fold = crate::fold::JournalFold::default();
        self.driver.records.iter().for_each(|record| {
            fold.take(record).expect("folded");
        });
        fold.into_state().expect("a state")
    }

    fn stored(&self) -> OpenedRows {
        OpenedRows::open(self.rows.path()).expect("rows")
    }
}

/// Compares values of an invented kind of a row, as differences and counts of added fields.
fn compared(layout: &RowLayout, stored: &Value, built: &Value) -> (Vec<String>, BTreeMap<String, u64>) {
    let mut result = RowComparison::default();
    let key = RowKey::parse(RowKind::Plans, "a").expect("a key");
    let mut fields =
        FieldComparer { kind: "plans", key: &key, limit: 9, path: Vec::new(), result: &mut result };
    fields.compare(layout, stored, built);
    let shown = |value: Option<Value>| value.map_or_else(|| "none".to_owned(), |value| value.to_string());
    let shown = |found: RowDifference| {
        format!("{}: {} {}", found.field.unwrap_or_default(), shown(found.stored), shown(found.built))
    };
    let added = result.added.into_iter().map(|((_, field), count)| (field, count)).collect();
    (result.differences.into_iter().map(shown).collect(), added)
}

/// Row of this build, the fields that differ from the stored one, and the numbers of added fields.
type ChangedRow<'a> = (Value, &'a [&'a str], &'a [(&'a str, u64)]);

#[test]
fn differences_are_named_and_added_fields_are_counted() {
    let leaf = || Box::new(RowLayout::Fields(vec![("x".into(), RowLayout::Unsigned)]));
    let layout = RowLayout::Fields(vec![
        ("n".into(), RowLayout::Unsigned),
        ("gone".into(), RowLayout::Bool),
        ("list".into(), RowLayout::List(leaf())),
        ("map".into(), RowLayout::Map(Box::new(RowLayout::Text), leaf())),
        ("maybe".into(), RowLayout::Optional(leaf())),
        ("one".into(), RowLayout::Variants(vec![("a".into(), *leaf()), ("b".into(), RowLayout::Unit)])),
    ]);
    let stored = json!({
        "n": 1, "gone": true, "list": [{"x": 1}], "map": {"k": {"x": 1}}, "maybe": {"x": 1}, "one": {"a": {"x": 1}},
    });
    let same = |changes: Value| {
        let mut built = stored.clone();
        for (name, value) in changes.as_object().expect("changes") {
            built[name] = value.clone();
        }
        built
    };
    // Changes of the row, the differences, the added fields.
    let cases: [ChangedRow<'_>; 9] = [
        (json!({}), &[], &[]),
        (json!({"n": 2}), &["n: 1 2"], &[]),
        (json!({"new": 1, "newer": null}), &[], &[("new", 1), ("newer", 1)]),
        (json!({"list": [{"x": 1, "y": 2}]}), &[], &[("list[].y", 1)]),
        (json!({"list": [{"x": 2}]}), &["list[0].x: 1 2"], &[]),
        (json!({"list": []}), &[r#"list: [{"x":1}] []"#], &[]),
        // A map has the same entries, and those may have added fields.
        (
            json!({"map": {"k": {"x": 1, "y": 1}, "l": {"x": 1}}}),
            &[r#"map[l]: none {"x":1}"#],
            &[("map[].y", 1)],
        ),
        (json!({"maybe": null}), &[r#"maybe: {"x":1} null"#], &[]),
        (json!({"maybe": {"x": 1, "y": 1}, "one": "b"}), &[r#"one: {"a":{"x":1}} "b""#], &[("maybe.y", 1)]),
    ];
    for (changes, differences, added) in cases {
        let found = compared(&layout, &stored, &same(changes.clone()));
        let added = added.iter().map(|(field, count)| ((*field).to_owned(), *count)).collect();
        assert_eq!(found, (differences.iter().map(|text| (*text).to_owned()).collect(), added), "{changes}");
    }
    let mut without = stored.clone();
    without.as_object_mut().expect("fields").remove("gone");
    without["one"] = json!({"a": {"x": 1, "y": 1}});
    let (differences, added) = compared(&layout, &stored, &without);
    assert_eq!(
        (differences, added),
        (vec!["gone: true none".to_owned()], BTreeMap::from([("one.a.y".to_owned(), 1)]))
    );
}

#[test]
fn stored_rows_of_this_build_are_those_of_the_state() {
    for seed in 0..3 {
        let fleet = ComparedFleet::new(seed);
        let (stored, state) = (fleet.stored(), fleet.state());
        assert!(stored.is_current());
        assert_eq!(stored.at(), state.at);
        let found = stored.compare(&state, 9).expect("compared");
        let rows = stored.store.tree().iter().keys().filter_map(Result::ok);
        let rows = rows.filter(|key| RowKind::ALL.iter().any(|kind| *kind as u8 == key[0])).count() as u64;
        assert_eq!(found, RowComparison { rows, ..RowComparison::default() });
        assert!(rows > 20, "{rows}");
    }
}

#[test]
fn rows_of_another_build_are_read_by_their_own_layout() {
    let fleet = ComparedFleet::new(7);
    let (stored, state) = (fleet.stored(), fleet.state());
    let tree = stored.store.tree();
    // A build that had no session in a cluster's row, more fields in it, and another order.
    let clusters = RowKind::Clusters as u8;
    let mut layouts = stored.layouts.clone();
    let old = RowLayout::Fields(vec![
        ("weight".into(), RowLayout::Unsigned),
        ("nodes".into(), RowLayout::Unsigned),
        ("name".into(), RowLayout::Text),
    ]);
    layouts.0.get_mut(&clusters).expect("a kind").row = old;
    let keys: Vec<_> = tree.scan_prefix([clusters]).keys().filter_map(Result::ok).collect();
    let (key, name) = (keys[0].clone(), String::from_utf8(keys[0][1..].to_vec()).expect("a name"));
    let nodes = {
        let row = stored.layouts.0[&clusters].row.read(&key, &tree.get(&key).expect("read").expect("a row"));
        row.expect("a row")["nodes"].as_u64().expect("a number")
    };
    for key in &keys {
        tree.remove(key).expect("removed");
    }
    let put = |key: &[u8], nodes: u64, name: &str| {
        tree.insert(key, crate::store::encode(&(5_u64, nodes, name))).expect("written");
    };
    put(&key, nodes + 1, &name);
    put(&[&[clusters][..], b"zz-gone"].concat(), 0, "zz-gone");
    let old = OpenedRows { layouts, ..stored };
    let found = old.compare(&state, 9).expect("compared");
    let shown: Vec<_> =
        found.differences.iter().map(|one| (one.key.as_str(), one.field.as_deref())).collect();
    let missing = keys.len() - 1;
    assert_eq!(found.count as usize, 3 + missing, "{shown:?}");
    assert!(
        shown.contains(&(&*name, Some("weight"))) && shown.contains(&(&*name, Some("nodes"))),
        "{shown:?}"
    );
    assert_eq!(shown.last(), Some(&("zz-gone", None)));
    assert_eq!(found.added.get(&("clusters".to_owned(), "session".to_owned())), Some(&1));
    let limited = old.compare(&state, 1).expect("compared");
    assert_eq!((limited.differences.len(), limited.count), (1, found.count));
}

#[test]
fn rows_that_cannot_be_read_have_a_reason() {
    let empty = tempfile::tempdir().expect("a directory");
    assert!(matches!(OpenedRows::open(empty.path()), Err(UnreadableRows::Missing)));
    let fleet = ComparedFleet::new(1);
    let stored = fleet.stored();
    stored.store.tree().insert(b"\0layout", &b"[]"[..]).expect("written");
    drop(stored);
    assert!(matches!(OpenedRows::open(fleet.rows.path()), Err(UnreadableRows::NoLayout)));
    let found = FoundRows::open(fleet.rows.path(), StoreTuning::default())
        .and_then(FoundRows::into_store)
        .expect("rows");
    found.tree().remove(b"\0cursor").expect("removed");
    drop(found);
    assert!(matches!(OpenedRows::open(fleet.rows.path()), Err(UnreadableRows::Incomplete)));
}
