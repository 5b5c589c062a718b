//! Moments compared with the rows that readers saw at the time, and the cache of moments.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chancery_events::id::Position;
use chancery_events::lineage::NamedPosition;
use chancery_events::record::Record;
use chancery_events::time::Time;
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{ChainCursor, JournalReader, ReadError, RecordIter};
use chancery_machine::fleet::FleetState;
use serde_json::{Value, json};

use super::*;
use crate::kind::KeyedRow as _;
use crate::position_watch::{AppliedPosition, PositionWatch};
use crate::projector::Projector;
use crate::query::RowReader;
use crate::tests::driver::{FLEET, TestDriver};
use crate::tests::{items_of, open};

/// Page of a list, as compared: items, number, position, and whether another page follows.
type SeenPage = (String, usize, Position, bool);

/// Pages and rows that readers saw at one position.
#[derive(PartialEq, Debug)]
struct SeenRows {
    pages: Vec<SeenPage>,
    rows: Vec<Option<JsonRow>>,
}

fn named(position: u64) -> NamedMoment {
    NamedMoment::Position(NamedPosition { position: Position::new(position), lineage: None })
}

fn cache(driver: &TestDriver, snapshots: Option<&SnapshotStore>, limits: MomentLimits) -> MomentCache {
    let head = driver.source().head().map_or(Position::ZERO, |head| head.position);
    let watch = PositionWatch::new(AppliedPosition { position: head, ..AppliedPosition::default() });
    MomentCache::new(FLEET.into(), driver.source(), snapshots.cloned(), watch, limits)
}

fn fold(cache: &MomentCache, at: &ChainCursor) -> Arc<FleetMoment> {
    cache.fold(at, &AtomicBool::new(false)).expect("a moment")
}

fn at(record: &Record) -> ChainCursor {
    ChainCursor::after(record)
}

/// Returns every page of every list that the queries name.
fn walk(queries: &[(RowKind, ListQuery)], list: impl Fn(RowKind, &ListQuery) -> JsonPage) -> Vec<SeenPage> {
    let mut all = Vec::new();
    for (kind, query) in queries {
        let mut query = query.clone();
        loop {
            let page = list(*kind, &query);
            all.push((page.start, page.count, page.position, page.next.is_some()));
            let Some(next) = page.next else { break };
            query.token = Some(next);
        }
    }
    all
}

/// Returns lists of every kind, with and without filters.
fn queries() -> Vec<(RowKind, ListQuery)> {
    let all = RowKind::ALL.iter().map(|kind| (*kind, ListQuery::all().limit(3)));
    let filtered = [
        (RowKind::Replicas, ListQuery::all().by("plan", "plan-0").limit(2)),
        (RowKind::Replicas, ListQuery::all().by("phase", "stopped").limit(2)),
        (RowKind::Incarnations, ListQuery::all().by("node", "node-1").limit(2)),
        (RowKind::Operations, ListQuery::all().by("state", "preparing").limit(2)),
        (RowKind::Operations, ListQuery::all().by("node", "node-2").by("kind", "create").limit(2)),
        (RowKind::Nodes, ListQuery::all().by("cluster", "east").by("domain", "rack-2").limit(2)),
        (RowKind::Deployments, ListQuery::all().by("plan", "plan-1").limit(2)),
    ];
    all.chain(filtered).collect()
}

/// Returns what readers see now, of the keys that exist at the end.
fn seen(reader: &RowReader, keys: &[RowKey]) -> SeenRows {
    let pages = walk(&queries(), |kind, query| reader.list_json(kind, query).expect("a page"));
    let rows = keys.iter().map(|key| reader.get_json(key).expect("read")).collect();
    SeenRows { pages, rows }
}

fn seen_at(moment: &FleetMoment, keys: &[RowKey]) -> SeenRows {
    let pages = walk(&queries(), |kind, query| moment.list_json(kind, query).expect("a page"));
    let rows = keys.iter().map(|key| moment.get_json(key).expect("read")).collect();
    SeenRows { pages, rows }
}

fn stirred(seed: u64, actions: usize) -> TestDriver {
    let mut driver = TestDriver::new(seed);
    driver.found(6, 4);
    (0..actions).for_each(|_| driver.stir());
    driver.settle();
    driver
}

/// Returns the keys of all rows at the head.
fn keys(driver: &TestDriver) -> Vec<RowKey> {
    let mut keys = Vec::new();
    for kind in RowKind::ALL {
        crate::kind::each_key(&driver.fleet, *kind, &mut |key| keys.push(key));
    }
    keys
}

/// Applies every record to rows on a disk, and returns what readers saw at each position.
fn recorded(driver: &TestDriver, keys: &[RowKey]) -> BTreeMap<Position, SeenRows> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector: Projector = open(dir.path(), driver, None);
    let reader = projector.reader();
    let mut all = BTreeMap::new();
    for record in &driver.records {
        projector.apply(std::slice::from_ref(record)).expect("applied");
        all.insert(record.last(), seen(&reader, keys));
    }
    all
}

#[test]
fn a_moment_has_the_bytes_that_readers_saw_at_its_position() {
    for seed in [90, 91] {
        let driver = stirred(seed, 150);
        let dir = tempfile::tempdir().expect("a directory");
        let snapshots = SnapshotStore::open(dir.path()).expect("a directory");
        let mut keys = keys(&driver);
        let every = keys.len() / 40 + 1;
        keys = keys.into_iter().step_by(every).collect();
        let wanted = recorded(&driver, &keys);
        let with = cache(&driver, Some(&snapshots), MomentLimits::default());
        let without = cache(&driver, None, MomentLimits { moments: 1, ..MomentLimits::default() });
        // In an order without direction, with snapshots that appear meanwhile.
        let mut order: Vec<_> = driver.records.iter().collect();
        order.sort_by_key(|record| record.hash().bytes()[..8].to_owned());
        for (n, record) in order.into_iter().enumerate() {
            let at = at(record);
            let moment = fold(&with, &at);
            assert_eq!(moment.at(), at);
            assert_eq!(seen_at(&moment, &keys), wanted[&at.position], "seed {seed} at {}", at.position);
            if n % 9 == 0 {
                assert_eq!(seen_at(&fold(&without, &at), &keys), wanted[&at.position], "alone");
                moment.state.write(FLEET.into(), &snapshots, &*driver.source()).expect("a snapshot");
            }
        }
        assert_eq!((with.len(), without.len()), (4, 1));
    }
}

#[test]
fn a_stored_key_reads_back() {
    let driver = stirred(92, 100);
    let keys = keys(&driver);
    for kind in RowKind::ALL.iter().filter(|kind| **kind != RowKind::Commands) {
        let is_there = keys.iter().any(|key| key.kind() == *kind);
        assert!(is_there || matches!(kind, RowKind::Policies | RowKind::Requests), "no key of {kind}");
    }
    for key in keys {
        let stored = key.stored();
        assert_eq!(RowKey::from_stored(&stored), Some(key));
        assert_eq!(
            RowKey::from_stored(&stored[..stored.len() - 1]).filter(|key| key.stored() == stored),
            None
        );
    }
    assert_eq!(RowKey::from_stored(&[]), None);
    assert_eq!(RowKey::from_stored(&[250, 1]), None);
}

#[test]
fn a_token_is_good_for_its_own_moment_alone() {
    let driver = stirred(93, 150);
    let cache = cache(&driver, None, MomentLimits::default());
    let query = ListQuery::all().limit(1);
    let [before, last] = [driver.records.len() - 2, driver.records.len() - 1].map(|n| at(&driver.records[n]));
    let (before, last) = (fold(&cache, &before), fold(&cache, &last));
    let token = last.list_json(RowKind::Nodes, &query).expect("a page").next.expect("a second page");
    let next = query.clone().after(token.clone());
    assert!(last.list_json(RowKind::Nodes, &next).is_ok());
    let other = before.list_json(RowKind::Nodes, &next);
    assert!(matches!(other, Err(QueryError::OtherToken { .. })), "{other:?}");
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    projector.catch_up().expect("caught up");
    let present = projector.reader().list_json(RowKind::Nodes, &next);
    assert!(matches!(present, Err(QueryError::OtherToken { .. })), "the present is no moment");
    let token = projector.reader().list_json(RowKind::Nodes, &query).expect("a page").next.expect("more");
    let of_present = last.list_json(RowKind::Nodes, &query.after(token));
    assert!(matches!(of_present, Err(QueryError::OtherToken { .. })));
}

#[test]
fn a_position_or_a_time_names_the_record() {
    let driver = stirred(94, 120);
    let cache = cache(&driver, None, MomentLimits::default());
    for record in &driver.records {
        for position in record.first().get()..=record.last().get() {
            assert_eq!(cache.find(named(position)).expect("a record"), at(record), "{position}");
        }
        let time = record.header().time;
        let not_later = driver.records.iter().rev().find(|other| other.header().time <= time);
        let wanted = at(not_later.expect("the record itself"));
        assert_eq!(cache.find(NamedMoment::Time(time)).expect("a record"), wanted, "{time}");
        let until = driver.records.last().expect("a record").header().time;
        let later = time + Duration::from_micros(1);
        if later <= until {
            let wanted = driver.records.iter().rev().find(|other| other.header().time <= later);
            let found = cache.find(NamedMoment::Time(later)).expect("a record");
            assert_eq!(found, at(wanted.expect("a record")), "{later}");
        }
    }
    let (first, last) = (driver.records.first(), driver.records.last());
    let ends = [first, last].map(|record| MomentEnd::from(at(record.expect("a record"))));
    let [start, end] = ends;
    let outside = [
        (named(0), true),
        (named(end.position.get() + 1), false),
        (NamedMoment::Time(Time::EPOCH), true),
        (NamedMoment::Time(end.time + Duration::from_micros(1)), false),
    ];
    for (moment, before) in outside {
        match cache.find(moment) {
            Err(MomentError::OutOfRange { is_before, first, last }) => {
                assert_eq!((is_before, [first, last]), (before, [start, end]), "{moment:?}");
            }
            other => panic!("{moment:?}: {other:?}"),
        }
    }
}

/// Journal without its records up to a position, as after a loss of segments.
struct JournalWithGap {
    journal: Arc<dyn JournalReader>,
    /// First and last record that cannot be read, by their last positions.
    gap: [Position; 2],
}

impl JournalReader for JournalWithGap {
    fn head(&self) -> Option<ChainCursor> {
        self.journal.head()
    }

    fn records(&self, from: Position) -> Result<RecordIter, ReadError> {
        let record = self.journal.records(from)?.next().transpose()?;
        match record {
            Some(record) if (self.gap[0]..=self.gap[1]).contains(&record.last()) => {
                let source = std::io::ErrorKind::NotFound.into();
                Err(ReadError::Io { place: "a lost segment".into(), source })
            }
            _ => self.journal.records(from),
        }
    }
}

#[test]
fn a_time_is_found_wherever_records_are_lost_and_is_never_guessed() {
    let driver = stirred(97, 60);
    let records = &driver.records;
    for (first, last) in
        [(0, records.len() / 2), (records.len() / 3, records.len() / 2), (5, records.len() - 2)]
    {
        let gap = [records[first].last(), records[last].last()];
        let journal = JournalWithGap { journal: driver.source(), gap };
        let (mut found, mut unreadable) = (0, 0);
        for record in records {
            let time = record.header().time;
            let wanted = records.iter().rev().find(|other| other.header().time <= time).expect("the record");
            let is_lost = (gap[0]..=gap[1]).contains(&wanted.last());
            match find::find(&journal, NamedMoment::Time(time)) {
                Ok(at) => {
                    assert!(!is_lost && at == ChainCursor::after(wanted), "{time}: {at:?}");
                    found += 1;
                }
                Err(MomentError::Unreadable { .. }) => {
                    assert!(wanted.last() <= gap[1], "{time} is after the gap");
                    unreadable += 1;
                }
                Err(other) => panic!("{time}: {other}"),
            }
        }
        assert!(found > 0 && unreadable > 0, "{gap:?}: {found} found, {unreadable} not");
    }
}

/// Journal of which only the head is read.
struct JournalHead(ChainCursor);

impl JournalReader for JournalHead {
    fn head(&self) -> Option<ChainCursor> {
        Some(self.0)
    }

    fn records(&self, _: Position) -> Result<RecordIter, ReadError> {
        Ok(Box::new(std::iter::empty()))
    }
}

#[test]
fn a_fold_waits_for_a_projector_that_catches_up() {
    let last = stirred(5, 20).records.last().map(|record| at(record)).expect("a record");
    let journal = JournalHead(ChainCursor { position: Position::new(1 << 20), ..last });
    let rows = |position: u64| AppliedPosition { position: Position::new(position), ..Default::default() };
    let is_cancelled = AtomicBool::new(true);
    let watch = PositionWatch::new(rows(1));
    let pace = fold::FoldPace::new(&is_cancelled, &watch, &journal);
    let since = Mutex::default();
    assert!(matches!(pace.await_projector(&since), Err(MomentError::Cancelled)));
    is_cancelled.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A fold that waits has the lock.
            let start = Instant::now();
            while since.try_lock().is_ok() && start.elapsed() < fold::CATCH_UP {
                std::thread::yield_now();
            }
            watch.publish(rows(1 << 20));
        });
        pace.await_projector(&since).expect("it is not cancelled");
        assert_eq!((pace.lag(), *since.lock().expect("no panic")), (0, None), "it has waited");
    });
    // Folds have waited long enough for this catch-up.
    watch.publish(rows(1));
    let long_ago = Instant::now().checked_sub(fold::CATCH_UP).expect("a time");
    let since = Mutex::new(Some(long_ago));
    pace.await_projector(&since).expect("it is not cancelled");
    assert_eq!((pace.lag() > 0, *since.lock().expect("no panic")), (true, Some(long_ago)));
    // A projector that has stopped catches up no more.
    let stopped = PositionWatch::new(rows(1));
    stopped.stop("a test");
    let since = Mutex::default();
    fold::FoldPace::new(&is_cancelled, &stopped, &journal).await_projector(&since).expect("not cancelled");
    assert_eq!(*since.lock().expect("no panic"), None);
}

#[test]
fn moments_are_read_from_text() {
    let time: Time = "2026-11-21T09:00:00Z".parse().expect("a time");
    assert_eq!("120".parse(), Ok(named(120)));
    assert_eq!("2026-11-21T10:00:00+01:00".parse(), Ok(NamedMoment::Time(time)));
    assert!(
        matches!("7.0000000000001f3a".parse(), Ok(NamedMoment::Position(named)) if named.lineage.is_some())
    );
    for wrong in ["", "x", "-1", "2026-11-21", "now"] {
        assert_eq!(wrong.parse::<NamedMoment>(), Err(InvalidMoment), "{wrong:?}");
    }
}

#[test]
fn memory_is_bounded_and_is_released_with_the_moments() {
    let driver = stirred(95, 150);
    let records = &driver.records;
    let last = at(records.last().expect("a record"));
    let whole = cache(&driver, None, MomentLimits::default());
    let one = fold(&whole, &last).reserved.bytes;
    assert_eq!(whole.used(), one);
    let growing = memory::memory_of(4 << 20);
    // One fold fits, with its growth; the moments that it leaves must be evicted for the next one.
    let limits = MomentLimits { moments: 100, memory: growing, ..MomentLimits::default() };
    let small = cache(&driver, None, limits);
    for record in records {
        fold(&small, &at(record));
        assert!(small.used() <= limits.memory, "{} bytes", small.used());
    }
    assert!(small.len() > 1);
    let tiny = cache(&driver, None, MomentLimits { memory: 1 << 20, ..MomentLimits::default() });
    let refused = tiny.fold(&last, &AtomicBool::new(false));
    assert!(matches!(refused, Err(MomentError::TooLarge { limit: 1_048_576, .. })), "{refused:?}");
    assert_eq!((tiny.used(), tiny.len()), (0, 0), "a fold that fails leaves nothing");

    let readers: Vec<_> = records[..3].iter().map(|record| fold(&small, &at(record))).collect();
    let used = small.used();
    drop(readers);
    assert_eq!(small.used(), used, "cached moments stay");
    drop(fold(&whole, &last));
    let cancelled = whole.fold(&at(&records[1]), &AtomicBool::new(true));
    assert!(matches!(cancelled, Err(MomentError::Cancelled)), "{cancelled:?}");
    assert_eq!((whole.used(), whole.len()), (one, 1));
}

#[test]
fn a_snapshot_of_another_history_or_of_another_build_is_no_start() {
    let (driver, other) = (stirred(96, 120), stirred(97, 120));
    let dir = tempfile::tempdir().expect("a directory");
    let snapshots = SnapshotStore::open(dir.path()).expect("a directory");
    let last = at(driver.records.last().expect("a record"));
    let others = cache(&other, None, MomentLimits::default());
    let foreign = other.records.iter().rev().find(|record| record.last() < last.position);
    let foreign = fold(&others, &at(foreign.expect("an earlier record")));
    foreign.state.write(FLEET.into(), &snapshots, &*other.source()).expect("a snapshot");
    let cache = cache(&driver, Some(&snapshots), MomentLimits::default());
    let moment = fold(&cache, &last);
    assert_eq!(moment.state.hash().ok(), FoldedStateOf(&driver).hash(), "folded from the start");
}

/// Returns every change, page by page.
fn changes(old: &FleetMoment, new: &FleetMoment, kinds: &[RowKind], query: &ListQuery) -> Vec<Value> {
    let (mut query, mut all) = (query.clone(), Vec::new());
    loop {
        let page = diff(old, new, kinds, &query).expect("a page");
        let items = items_of(&page.start);
        assert_eq!(items.len(), page.count);
        all.extend(items);
        let Some(next) = page.next else { return all };
        query.token = Some(next.to_string().parse().expect("a token"));
    }
}

/// Returns all rows of a moment as readers see them, by kind and key.
fn shown_at(moment: &FleetMoment) -> BTreeMap<(u8, Vec<u8>), (RowKey, Value)> {
    let mut all = BTreeMap::new();
    for kind in RowKind::ALL {
        crate::kind::each_key(&moment.state.fleet, *kind, &mut |key| {
            let row = moment.get_json(&key).expect("read").expect("a row");
            let row = serde_json::from_str(&row.body).expect("JSON");
            all.insert((*kind as u8, key.stored()), (key, row));
        });
    }
    all
}

/// Returns the field of rows that has a changed part, with its values in both rows. Checks the values of the part.
fn whole_field(path: &str, part: [&Value; 2], rows: [&Value; 2]) -> (String, [Value; 2]) {
    let pointer = path.replace("['", "/").replace("']", "").replace(['.', '['], "/").replace(']', "");
    let found = rows.map(|row| row.pointer(&format!("/{pointer}")).unwrap_or(&Value::Null));
    assert_eq!(found, part, "{path}");
    assert_ne!(part[0], part[1], "{path}");
    let name = pointer.split('/').next().unwrap_or_default();
    (name.to_owned(), rows.map(|row| row[name].clone()))
}

#[test]
fn changed_fields_are_divided_into_the_parts_that_differ() {
    let key = RowKey::Plan("web".parse().expect("a name"));
    let row = |body: Value| JsonRow { body: body.to_string(), version: 1, position: Position::new(1) };
    let old =
        row(json!({"spec": {"a": [{"x": 1, "y": 2}], "l": {"a/b": "1", "c": null}, "n": [1]}, "version": 1}));
    let new = row(
        json!({"spec": {"a": [{"x": 1, "y": 3}], "l": {"a/b": "2", "d": "1"}, "n": [1, 2]}, "version": 2}),
    );
    let change = row_change(&key, Some(&old), Some(&new)).expect("a change");
    let fields: Vec<_> = change.fields.iter().map(|of| (of.field.as_str(), &of.old, &of.new)).collect();
    assert_eq!(
        fields,
        [
            ("spec.a[0].y", &json!(2), &json!(3)),
            ("spec.l['a/b']", &json!("1"), &json!("2")),
            ("spec.l.d", &Value::Null, &json!("1")),
            ("spec.n", &json!([1]), &json!([1, 2])),
        ]
    );
    assert_eq!(row_change(&key, Some(&old), Some(&old)), None);
    let created = row_change(&key, None, Some(&new)).expect("a change");
    assert_eq!((created.change, created.fields.len()), (ChangeWord::Created, 1));
}

#[test]
fn a_difference_is_that_of_all_rows_in_the_order_of_keys() {
    let driver = stirred(100, 150);
    let cache = cache(&driver, None, MomentLimits::default());
    let count = driver.records.len();
    for [from, to] in [[count / 3, count - 1], [0, count / 2], [count - 1, count / 3], [5, 5]] {
        let [old, new] = [from, to].map(|n| fold(&cache, &at(&driver.records[n])));
        let (was, is) = (shown_at(&old), shown_at(&new));
        let mut wanted = Vec::new();
        let keys: std::collections::BTreeSet<_> = was.keys().chain(is.keys()).cloned().collect();
        for key in keys {
            let [was, is] = [was.get(&key), is.get(&key)];
            let name = was.or(is).map(|(key, _)| key.clone()).expect("a key");
            let field = |row: Option<&(RowKey, Value)>, field: &str| {
                row.map_or(Value::Null, |row| row.1[field].clone())
            };
            let fields: std::collections::BTreeSet<_> = [was, is]
                .iter()
                .flatten()
                .flat_map(|(_, row)| row.as_object().expect("a row").keys().cloned())
                .collect();
            let differs = |name: &String| {
                !["version", "updated_at", "position"].contains(&name.as_str())
                    && field(was, name) != field(is, name)
            };
            let changed: BTreeMap<String, [Value; 2]> = fields
                .into_iter()
                .filter(differs)
                .map(|name| (name.clone(), [field(was, &name), field(is, &name)]))
                .collect();
            let word = match (was, is) {
                (None, _) => "created",
                (_, None) => "deleted",
                _ => "changed",
            };
            if word != "changed" || !changed.is_empty() {
                wanted.push((
                    name.kind().word().to_owned(),
                    name.to_string(),
                    word.to_owned(),
                    changed,
                    [field(was, "position"), field(is, "position")],
                ));
            }
        }
        for limit in [3, 1000] {
            let found = changes(&old, &new, RowKind::ALL, &ListQuery::all().limit(limit));
            let text = |value: &Value| value.as_str().expect("text").to_owned();
            let found: Vec<_> = found
                .iter()
                .map(|change| {
                    let fields = change["fields"].as_array().expect("fields").iter();
                    let [was, is] = [&was, &is].map(|rows| {
                        let is_key = |key: &RowKey| {
                            key.kind().word() == change["kind"] && *key.to_string() == change["key"]
                        };
                        rows.values().find(|(key, _)| is_key(key)).map_or(Value::Null, |(_, row)| row.clone())
                    });
                    let fields: BTreeMap<_, _> = fields
                        .map(|field| {
                            whole_field(&text(&field["field"]), [&field["old"], &field["new"]], [&was, &is])
                        })
                        .collect();
                    let positions = [change["old_position"].clone(), change["new_position"].clone()];
                    (text(&change["kind"]), text(&change["key"]), text(&change["change"]), fields, positions)
                })
                .collect();
            assert_eq!(found, wanted, "{from} to {to}, {limit} at a time");
        }
        assert_eq!(wanted.is_empty(), from == to);
    }
}

#[test]
fn a_difference_has_the_entities_that_pass_the_filters_at_either_moment() {
    let driver = stirred(101, 200);
    let cache = cache(&driver, None, MomentLimits::default());
    let [old, new] =
        [driver.records.len() / 3, driver.records.len() - 1].map(|n| fold(&cache, &at(&driver.records[n])));
    let kinds = [RowKind::Operations, RowKind::Replicas];
    let all = changes(&old, &new, &kinds, &ListQuery::all().limit(7));
    let of_plan = changes(&old, &new, &kinds, &ListQuery::all().by("plan", "plan-0").limit(7));
    let is_of_plan = |change: &&Value| {
        let kind = RowKind::from_word(change["kind"].as_str().expect("a kind")).expect("a kind");
        let key = RowKey::parse(kind, change["key"].as_str().expect("a key")).expect("a key");
        [&old, &new].iter().any(|moment| {
            let row = moment.get_json(&key).expect("read");
            row.is_some_and(|row| row.body.contains("\"plan\":\"plan-0\""))
        })
    };
    assert_eq!(of_plan, all.iter().filter(is_of_plan).cloned().collect::<Vec<_>>());
    assert!(!of_plan.is_empty() && of_plan.len() < all.len());
    let unknown = diff(&old, &new, &[RowKind::Nodes], &ListQuery::all().by("plan", "plan-0"));
    assert!(matches!(unknown, Err(QueryError::Filter(_))), "{unknown:?}");
    let page = diff(&old, &new, &kinds, &ListQuery::all().limit(1)).expect("a page");
    let next = ListQuery::all().limit(1).after(page.next.expect("more"));
    assert!(diff(&old, &new, &kinds, &next).is_ok());
    for other in [diff(&new, &old, &kinds, &next), diff(&old, &new, &kinds[..1], &next)] {
        assert!(matches!(other, Err(QueryError::OtherToken { .. })), "{other:?}");
    }
}

#[test]
fn a_long_fold_writes_snapshots_from_which_the_next_one_starts() {
    let driver = stirred(99, 200);
    let dir = tempfile::tempdir().expect("a directory");
    let snapshots = SnapshotStore::open(dir.path()).expect("a directory");
    let limits = MomentLimits { moments: 1, snapshot_interval: 200, ..MomentLimits::default() };
    let last = at(driver.records.last().expect("a record"));
    let first = cache(&driver, Some(&snapshots), limits);
    fold(&first, &last);
    let written = snapshots.list().expect("listed");
    assert!(written.len() > 1, "{written:?}");
    let second = cache(&driver, Some(&snapshots), limits);
    fold(&second, &last);
    assert_eq!(snapshots.list().expect("listed"), written, "nothing is written twice");
    let early = at(&driver.records[driver.records.len() / 2]);
    let alone = cache(&driver, None, limits);
    assert_eq!(fold(&second, &early).state.hash().ok(), fold(&alone, &early).state.hash().ok());
}

/// State of a driver, folded without a cache.
struct FoldedStateOf<'a>(&'a TestDriver);

impl FoldedStateOf<'_> {
    fn hash(&self) -> Option<chancery_events::record::RecordHash> {
        let mut fold = crate::fold::JournalFold::default();
        for record in &self.0.records {
            fold.take(record).expect("folded");
        }
        fold.state()?.hash().ok()
    }
}

#[test]
fn the_position_of_a_row_is_that_of_its_read() {
    let driver = stirred(98, 60);
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    let reader = projector.reader();
    for record in &driver.records {
        projector.apply(std::slice::from_ref(record)).expect("applied");
        let key = crate::rows::NodeRow::row_key(&"node-0".parse().expect("a name"));
        assert_eq!(reader.get_json_at(&key).expect("read").1, record.last());
        let page = reader.list_json(RowKind::Nodes, &ListQuery::all()).expect("a page");
        assert_eq!(page.position, record.last());
    }
}

#[test]
fn a_copy_changes_apart_from_its_moment_and_releases_its_memory() {
    let driver = stirred(7, 40);
    let cache = cache(&driver, None, MomentLimits::default());
    let moment = fold(&cache, &driver.source().head().expect("a record"));
    let (keys, used) = (keys(&driver), cache.used());
    let before = seen_at(&moment, &keys);
    let copy = cache.copy(Arc::clone(&moment), 1 << 20).expect("memory");
    assert!(cache.used() >= used + (1 << 20), "the memory of the copy is not reserved");
    assert_eq!(copy.at(), moment.at());
    let (rows, found) = copy.change(|fleet| {
        let found = fleet.size();
        (FleetState::new(fleet.lineages().current), found)
    });
    assert!(found > 0 && keys.iter().all(|key| rows.get_json(key).expect("read").is_none()));
    assert_eq!(seen_at(&moment, &keys), before);
    drop(rows);
    assert_eq!(cache.used(), used);
    let too_large = cache.copy(moment, MomentLimits::default().memory);
    assert!(matches!(too_large, Err(MomentError::TooLarge { .. })));
    assert!(cache.used() <= used, "nothing stays reserved");
}
