//! Facts behind the fields of rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chancery_events::event::Event;
use chancery_events::fact::{Fact, OperationEnd};
use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::subject::Subject;
use serde_json::Value;

use super::driver::TestDriver;
use crate::build_row::shown;
use crate::causes::CauseReader;
use crate::fold::JournalFold;
use crate::history::HistoryError;
use crate::kind::{RowKey, RowKind};
use crate::why::{ReasonReader, ReasonRole, RowField, sets};

/// Rows by kind and key.
type ShownRows = BTreeMap<(RowKind, String), Value>;

fn world(seed: u64) -> TestDriver {
    let mut driver = TestDriver::new(seed);
    driver.record_events = 0; // a record for each decision
    driver.found(6, 4);
    (0..400).for_each(|_| driver.stir());
    driver.seal();
    driver
}

fn facts_about(record: &Record, subject: &Subject) -> BTreeSet<&'static str> {
    let about = record.events().filter_map(|(position, line)| match Event::read(line) {
        Ok(Event::Fact { fact, .. }) => {
            let issued = fact.issues(record.header().lineage, position);
            (fact.subjects().contains(subject) || issued.as_ref() == Some(subject)).then(|| fact.type_name())
        }
        _ => None,
    });
    about.collect()
}

/// Calls `visit` with each explained field that a record changes, and its record; a new row changes all of them.
/// Returns the rows at the end.
fn changes(driver: &TestDriver, mut visit: impl FnMut(&Record, &RowKey, &'static str, bool)) -> ShownRows {
    let (mut fold, mut before) = (JournalFold::default(), ShownRows::new());
    for record in &driver.records {
        fold.take(record).expect("folded");
        let after = shown(&fold.state().expect("a state").fleet);
        for ((kind, key), row) in &after {
            let old = before.get(&(*kind, key.clone()));
            if old == Some(row) {
                continue;
            }
            let key = RowKey::parse(*kind, key).expect("a key");
            for field in kind.explained_fields() {
                // A field that was never set has no fact.
                let was = old.map_or(&Value::Null, |old| &old[field]);
                if *was != row[field] {
                    visit(record, &key, field, old.is_none());
                }
            }
        }
        before = after;
    }
    before
}

#[test]
fn every_change_of_an_explained_field_has_a_fact_that_sets_it() {
    let mut seen = BTreeSet::new();
    for seed in 0..8 {
        let driver = world(seed);
        changes(&driver, |record, key, field, is_new| {
            let about = facts_about(record, &key.subject());
            let is_set = about.iter().any(|type_name| sets(key.kind(), field, type_name));
            assert!(is_set, "seed {seed}: {field} of {} {key}: {about:?}", key.kind());
            if !is_new {
                seen.insert((key.kind(), field));
            }
        });
    }
    assert!(seen.len() > 25, "{seen:?}");
}

#[test]
fn the_fact_of_a_value_is_never_older_than_the_last_change_of_the_field() {
    let (mut all, mut exact) = (0, BTreeMap::new());
    for seed in 0..6 {
        let driver = world(seed);
        let mut last: BTreeMap<(RowKind, String, &str), Position> = BTreeMap::new();
        let rows = changes(&driver, |record, key, field, _| {
            last.insert((key.kind(), key.to_string(), field), record.last());
        });
        let head = driver.records.last().expect("a record").last();
        let reader = ReasonReader::new(CauseReader::new(driver.source(), head));
        for ((kind, key, name), changed) in last {
            let Some(row) = rows.get(&(kind, key.clone())) else { continue };
            let subject = RowKey::parse(kind, &key).expect("a key").subject();
            let reasons = reader.reasons(kind, &subject, Some(RowField { name, row })).expect("readable");
            let value = reasons.first().filter(|reason| reason.role == ReasonRole::Value);
            let found = value.unwrap_or_else(|| panic!("seed {seed}: {name} of {kind} {key}")).event.position;
            let found = driver.records.iter().find(|record| record.last() >= found).expect("a record").last();
            let of_field = exact.entry((kind, name)).or_insert((0, 0));
            all += 1;
            of_field.1 += 1;
            of_field.0 += usize::from(found == changed);
            assert!(found >= changed, "seed {seed}: {name} of {kind} {key}: {found} {changed}");
        }
    }
    // Fields whose value is in the data have the very fact.
    let is_exact = |kind, field| exact.get(&(kind, field)).is_some_and(|(exact, all)| exact == all);
    for field in ["labels", "resources", "domain"] {
        assert!(is_exact(RowKind::Nodes, field), "{field}: {exact:?}");
    }
    assert!(all > 500, "{all}");
}

#[test]
fn reasons_name_the_operation_its_requester_and_its_approval_with_the_stored_hash() {
    let mut approvals = 0;
    for seed in 0..8 {
        let driver = world(seed);
        let head = driver.records.last().expect("a record").last();
        let reader = ReasonReader::new(CauseReader::new(driver.source(), head));
        for row in shown(&driver.fleet)
            .iter()
            .filter(|((kind, _), _)| *kind == RowKind::Replicas)
            .map(|(_, row)| row)
        {
            let Some(incarnation) = row["incarnation"].as_str() else { continue };
            let subject: Subject =
                format!("replica/{}", row["name"].as_str().expect("a name")).parse().expect("a subject");
            let field = Some(RowField { name: "node", row });
            let reasons = reader.reasons(RowKind::Replicas, &subject, field).expect("readable");
            let of =
                |role| reasons.iter().filter(move |reason| reason.role == role).map(|reason| &reason.event);
            let reserved = of(ReasonRole::Value)
                .chain(of(ReasonRole::Reservation))
                .map(|event| serde_json::from_str::<Value>(event.json.get()).expect("JSON"))
                .find(|event| {
                    event["type"] == "dev.chancery.incarnation.reserved.v1"
                        && event["subject"] == format!("incarnation/{incarnation}")
                });
            let reserved = reserved.expect("a reservation");
            assert_eq!(reserved["data"]["node"], row["node"], "seed {seed}");
            let operation = &reserved["data"]["operation"];
            let operations = of(ReasonRole::Operation).map(|event| event.json.get().to_owned());
            assert!(operations.into_iter().any(|event| event.contains(operation.as_str().expect("an id"))));
            for event in of(ReasonRole::Approval) {
                let event: Value = serde_json::from_str(event.json.get()).expect("JSON");
                if event["data"]["operation"] == *operation {
                    assert_eq!(event["data"]["hash"], reserved["data"]["proposal"]["hash"], "seed {seed}");
                    approvals += 1;
                }
            }
        }
    }
    assert!(approvals > 3, "{approvals}");
}

#[test]
fn an_end_has_the_operation_that_succeeded_with_it() {
    let mut ends = 0;
    for seed in 0..8 {
        let driver = world(seed);
        for record in &driver.records {
            let facts = record.events().filter_map(|(_, line)| match Event::read(line) {
                Ok(Event::Fact { fact, .. }) => Some(fact),
                _ => None,
            });
            let facts: Vec<_> = facts.collect();
            let ended = facts.iter().find_map(|fact| match fact {
                Fact::IncarnationEnded(ended) => Some(ended),
                _ => None,
            });
            let succeeded = facts.iter().find_map(|fact| match fact {
                Fact::OperationEnded(ended) if ended.end == OperationEnd::Succeeded => Some(ended),
                _ => None,
            });
            let (Some(ended), Some(succeeded)) = (ended, succeeded) else { continue };
            if ended.replica != succeeded.replica {
                continue;
            }
            let reader = ReasonReader::new(CauseReader::new(driver.source(), record.last()));
            let subject = Subject::Incarnation(ended.incarnation);
            let reasons = reader.reasons(RowKind::Incarnations, &subject, None).expect("readable");
            let operations = reasons.iter().filter(|reason| reason.role == ReasonRole::Operation);
            let operations: Vec<_> = operations.map(|reason| reason.event.position).collect();
            assert_eq!(operations, [succeeded.operation.position()], "seed {seed}: {ended:?}");
            ends += 1;
        }
    }
    assert!(ends > 3, "{ends}");
}

#[test]
fn a_cancelled_request_reads_no_more_reasons() {
    let driver = world(3);
    let head = driver.records.last().expect("a record").last();
    let flag = Arc::new(AtomicBool::new(false));
    let reader = ReasonReader::new(CauseReader::new(driver.source(), head).cancelled_by(Arc::clone(&flag)));
    let subject = Subject::Node(driver.fleet.nodes().sorted().first().expect("a node").name.clone());
    let reasons = || reader.reasons(RowKind::Nodes, &subject, None);
    assert!(!reasons().expect("readable").is_empty());
    flag.store(true, Ordering::Relaxed);
    assert!(matches!(reasons(), Err(HistoryError::Cancelled)));
}
