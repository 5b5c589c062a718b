//! Naive second model: the rows that readers should see, from facts alone, in the plainest way.
//!
//! Maps without indexes; each reading computes everything again. Written from the rules and the vocabulary,
//! independently of the state machine and the projector's rows, to be compared with both.
//!
//! Reading order: the state of entities, their changes by facts, and their rows: existing and desired
//! entities (`rows`), running ones (`running`), and volumes (`volumes`).

/// Builds a row of an entity from its stamps and fields.
macro_rules! row {
    ($name:ident, $kept:expr, { $($field:ident: $value:expr),* $(,)? }) => {{
        let $crate::model::entities::EntityStamps { version, created, changed, position } = $kept.stamps;
        $name { $($field: $value,)* version, created_at: created, updated_at: changed, position }
    }};
}

mod entities;
mod fold;
mod rows;
mod running;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::BTreeMap;

use chancery_events::event::{Event, InvalidEvent};
use chancery_events::record::Record;
use chancery_projector::{JsonPage, RowKind};
use serde_json::Value;

use entities::{FactLocation, VisibleEntities};

/// Rows of all entities, by kind and key.
pub type ModelRows = BTreeMap<(RowKind, String), Value>;

/// Folds facts and returns rows.
#[derive(Clone, Default, Debug)]
pub struct SecondModel {
    entities: VisibleEntities,
}

impl SecondModel {
    /// Returns an empty model.
    pub fn new() -> SecondModel {
        SecondModel::default()
    }

    /// Takes the next valid record of the journal.
    pub fn take(&mut self, record: &Record) -> Result<(), InvalidEvent> {
        let header = record.header();
        for (position, line) in record.events() {
            if let Event::Fact { fact, .. } = Event::read(line)? {
                self.entities
                    .fold(&fact, FactLocation { position, time: header.time, lineage: header.lineage });
            }
        }
        Ok(())
    }

    /// Returns the rows as [`comparable`] returns them.
    pub fn rows(&self) -> ModelRows {
        rows::of(&self.entities)
            .into_iter()
            .map(|(key, row)| {
                let row = comparable(key.0, row);
                (key, row)
            })
            .collect()
    }
}

/// Returns the key of a served row, from its fields; `None` if a field is missing.
pub fn key_of(kind: RowKind, row: &Value) -> Option<String> {
    let part = |field: &&str| match &row[*field] {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    Some(kind.kind().entry().key.iter().map(part).collect::<Option<Vec<_>>>()?.join("/"))
}

/// Returns the rows of a page.
pub fn items_of(page: &JsonPage) -> Vec<Value> {
    let mut object: BTreeMap<String, Vec<Value>> =
        serde_json::from_str(&format!("{}}}", page.start)).expect("rows are JSON");
    object.remove("items").expect("a page has items")
}

/// Returns a row without what the rules leave open: messages, which are prose, and counts of zero. For rows
/// that contain other entities, also whether their change counts, and so its time.
pub fn comparable(kind: RowKind, mut row: Value) -> Value {
    fn drop_zeros(counts: &mut Value) {
        if let Value::Object(counts) = counts {
            counts.values_mut().for_each(drop_zeros);
            counts.retain(|_, count| *count != 0 && *count != Value::Object(serde_json::Map::new()));
        }
    }
    if let Value::Object(fields) = &mut row {
        fields.remove("message");
        if matches!(kind, RowKind::Nodes | RowKind::Plans | RowKind::Deployments | RowKind::Replicas) {
            fields.remove("updated_at");
            fields.remove("position");
        }
        if kind == RowKind::Plans {
            for of in ["replicas", "operations"] {
                fields.get_mut(of).into_iter().for_each(drop_zeros);
            }
        }
    }
    row
}

/// Describes up to ten differences between the model's and the served rows, made [`comparable`].
pub fn differences(model: &ModelRows, served: &ModelRows) -> Vec<String> {
    let keys: std::collections::BTreeSet<_> = model.keys().chain(served.keys()).collect();
    let mut found = Vec::new();
    for key in keys {
        let name = format!("{}/{}", key.0, key.1);
        match (model.get(key), served.get(key)) {
            (Some(a), Some(b)) if a == b => {}
            (Some(Value::Object(a)), Some(Value::Object(b))) => {
                let fields: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
                for field in fields.into_iter().filter(|field| a.get(*field) != b.get(*field)) {
                    let show = |value: Option<&Value>| value.map_or_else(|| "none".into(), Value::to_string);
                    let (a, b) = (show(a.get(field)), show(b.get(field)));
                    found.push(format!("{name}: {field} should be {a}, and is {b}"));
                }
            }
            (Some(_), None) => found.push(format!("{name}: is missing")),
            (None, Some(_)) => found.push(format!("{name}: should not be there")),
            (a, b) => found.push(format!("{name}: should be {a:?}, and is {b:?}")),
        }
        if found.len() >= 10 {
            break;
        }
    }
    found
}
