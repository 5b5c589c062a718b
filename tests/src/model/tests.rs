//! Tests of the model against the projector, on the same journals.

use std::sync::Arc;

use chancery_events::record::Record;
use chancery_journal::{ChainCursor, JournalReader, ReadError, RecordIter};
use chancery_projector::{ListQuery, Projector, RowKind, StoreTuning};
use serde_json::{Value, json};

use super::{ModelRows, SecondModel, comparable, differences, items_of};
use crate::trace::{JournalTrace, TraceStage, trace};

/// Journal that does not grow.
struct FixedJournal(Vec<Arc<Record>>);

impl JournalReader for FixedJournal {
    fn head(&self) -> Option<ChainCursor> {
        self.0.last().map(|record| ChainCursor::after(record))
    }

    fn records(&self, from: chancery_events::id::Position) -> Result<RecordIter, ReadError> {
        let rest: Vec<_> = self.0.iter().filter(|record| record.last() >= from).cloned().map(Ok).collect();
        Ok(Box::new(rest.into_iter()))
    }
}

/// Returns the rows that the projector builds.
fn projected(records: &[Record]) -> ModelRows {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let source = Arc::new(FixedJournal(records.iter().cloned().map(Arc::new).collect()));
    let mut projector =
        Projector::open(dir.path(), "default", source, None, StoreTuning::default()).expect("a projector");
    projector.catch_up().expect("a journal that can be folded");
    let reader = projector.reader();
    let mut rows = ModelRows::new();
    for kind in RowKind::ALL {
        let page = reader
            .list_json(*kind, &ListQuery { limit: Some(1000), ..ListQuery::default() })
            .expect("a page");
        assert!(page.next.is_none(), "a page holds all");
        let items = items_of(&page);
        rows.extend(items.into_iter().map(|row| ((*kind, key(*kind, &row)), comparable(*kind, row))));
    }
    rows
}

/// Returns the key of a row, from its fields.
fn key(kind: RowKind, row: &Value) -> String {
    super::key_of(kind, row).expect("a row names itself")
}

fn modelled(records: &[Record]) -> ModelRows {
    let mut model = SecondModel::new();
    for record in records {
        model.take(record).expect("a record that can be read");
    }
    model.rows()
}

fn compare(what: &str, trace: &JournalTrace) {
    let records = trace.records();
    let found = differences(&modelled(&records), &projected(&records));
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn model_and_projector_agree_at_every_stage() {
    for stage in TraceStage::ALL {
        compare(&format!("{stage:?}"), &trace(*stage));
    }
}

#[test]
fn what_differs_is_named() {
    let mut rows = modelled(&trace(TraceStage::Running).records());
    let right = rows.clone();
    assert_eq!(differences(&right, &rows), [""; 0]);
    let node = rows.get_mut(&(RowKind::Nodes, "n1".to_owned())).expect("a node");
    node["remaining"]["cpu"] = json!(1);
    let found = differences(&right, &rows);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("nodes/n1: remaining should be"), "{found:?}");
    rows.remove(&(RowKind::Nodes, "n1".to_owned()));
    assert_eq!(differences(&right, &rows), ["nodes/n1: is missing"]);
    assert_eq!(differences(&rows, &right), ["nodes/n1: should not be there"]);
}
