//! Comparison of stored rows with the rows that this build gives, before an upgrade.
//!
//! The stored rows may be of another build: they are read by the layout that is stored with them
//! ([`crate::layout`]), and the rows of this build are built from the state at the position of the stored ones.
//!
//! | stored row | row of this build | result |
//! |---|---|---|
//! | a field | the same value | equal |
//! | a field | another value, or none | difference |
//! | no such field | a field | added: counted |
//! | an entry of a map, an item of a list | none, or reversed | difference |
//! | a row | none, or reversed | difference of the whole row |
//!
//! Invariants: nothing is written to the rows; the fold and the functions that build rows are those of the
//! projector.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use chancery_journal::ChainCursor;
use data_encoding::HEXLOWER;
use serde::Serialize;
use serde_json::Value;

use crate::build_row::{RowVisitor, every};
use crate::counts::RowCounts;
use crate::fold::FoldedState;
use crate::kind::{ReadModelRow, RowKey, RowKind, each_key};
use crate::layout::{KindLayout, RowLayout, RowLayouts};
use crate::store::{FoundRows, RowStore, StoreError, StoreTuning, failed};

/// Rows of some build, opened to be read.
#[derive(Debug)]
pub struct OpenedRows {
    store: RowStore,
    layouts: RowLayouts,
    at: ChainCursor,
    is_current: bool,
}

/// Reason why stored rows cannot be read. A server that cannot read them builds them again.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableRows {
    /// Directory without rows.
    #[error("cannot compare rows: there are none")]
    Missing,
    /// Rows without a position: their build was interrupted.
    #[error("cannot compare rows: they are incomplete")]
    Incomplete,
    /// Rows without a layout that this build can read.
    #[error(
        "cannot compare rows: they have no layout that this build can read, because a much older or newer build wrote them"
    )]
    NoLayout,
    /// Rows that cannot be opened.
    #[error("cannot compare rows")]
    Store(#[source] StoreError),
}

impl OpenedRows {
    /// Opens the rows in a directory that no other process uses. Opening may change files: give a copy.
    pub fn open(dir: &Path) -> Result<OpenedRows, UnreadableRows> {
        let store = FoundRows::open(dir, StoreTuning::default()).and_then(FoundRows::into_store);
        let store = store.map_err(UnreadableRows::Store)?;
        if store.tree().is_empty() {
            return Err(UnreadableRows::Missing);
        }
        // Builds without layouts may have stored another cursor, too: an error of the cursor comes after the layouts.
        let layouts = store.layouts().map_err(UnreadableRows::Store)?;
        let cursor = store.cursor();
        if matches!(cursor, Ok(None)) {
            return Err(UnreadableRows::Incomplete);
        }
        let layouts = layouts.ok_or(UnreadableRows::NoLayout)?;
        let at = cursor.map_err(UnreadableRows::Store)?.ok_or(UnreadableRows::Incomplete)?;
        let is_current = store.is_current().map_err(UnreadableRows::Store)?;
        Ok(OpenedRows { store, layouts, at, is_current })
    }

    /// Returns the last record in the rows.
    pub fn at(&self) -> ChainCursor {
        self.at
    }

    /// Whether a server of this build continues with the rows. It builds others again.
    pub fn is_current(&self) -> bool {
        self.is_current
    }

    /// Compares the rows with those of the state at their position. Of the differences, the first `limit` are kept.
    pub fn compare(&self, state: &FoldedState, limit: usize) -> Result<RowComparison, StoreError> {
        let mut comparing =
            RowComparer { stored: self, limit, found: BTreeMap::new(), result: RowComparison::default() };
        every(&state.fleet, &RowCounts::of(&state.fleet), &mut comparing)?;
        for (number, layout) in &self.layouts.0 {
            comparing.leftover(*number, layout, state)?;
        }
        Ok(comparing.result)
    }
}

/// Field, or whole row, that differs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RowDifference {
    /// Kind of the row, as in paths.
    pub kind: String,
    /// Key of the row, as in paths.
    pub key: String,
    /// Path of the field; `None` if one of the rows does not exist.
    pub field: Option<String>,
    /// Stored value; `None` if it does not exist.
    pub stored: Option<Value>,
    /// Value of this build; `None` if it does not exist.
    pub built: Option<Value>,
}

/// Result of a comparison.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct RowComparison {
    /// Number of rows that exist in both.
    pub rows: u64,
    /// Number of differences.
    pub count: u64,
    /// First differences, by kind and key.
    pub differences: Vec<RowDifference>,
    /// Number of values of fields that this build adds, by kind and path of the field.
    pub added: BTreeMap<(String, String), u64>,
}

/// Part of the path of a field.
#[derive(Clone, Copy)]
enum PathPart<'a> {
    /// Field of a row or of a value in it.
    Field(&'a str),
    /// Key of an entry in a map.
    Entry(&'a str),
    /// Number of an item in a list.
    Item(usize),
}

/// Returns the path of a field; `of_any` omits keys and numbers.
fn path(parts: &[PathPart<'_>], of_any: bool) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            PathPart::Field(name) if text.is_empty() => text.push_str(name),
            PathPart::Field(name) => text = format!("{text}.{name}"),
            PathPart::Entry(_) | PathPart::Item(_) if of_any => text.push_str("[]"),
            PathPart::Entry(key) => text = format!("{text}[{key}]"),
            PathPart::Item(number) => text = format!("{text}[{number}]"),
        }
    }
    text
}

/// Comparison under way.
struct RowComparer<'a> {
    stored: &'a OpenedRows,
    limit: usize,
    /// Number of rows of each kind that exist in both.
    found: BTreeMap<u8, usize>,
    result: RowComparison,
}

impl RowVisitor for RowComparer<'_> {
    type Error = StoreError;

    fn row<R: ReadModelRow>(&mut self, row: &R) -> Result<(), StoreError> {
        let (key, kind) = (row.key(), R::KIND.word());
        let built = serde_json::to_value(row).expect("rows can be encoded as JSON");
        let Some(layout) = self.stored.layouts.0.get(&(R::KIND as u8)) else {
            *self.result.added.entry((kind.to_owned(), String::new())).or_default() += 1;
            return Ok(());
        };
        let bytes = key.stored();
        let Some(value) = self.stored.store.row(&bytes)? else {
            self.result.add(self.limit, || RowDifference {
                kind: kind.to_owned(),
                key: key.to_string(),
                field: None,
                stored: None,
                built: Some(built),
            });
            return Ok(());
        };
        *self.found.entry(R::KIND as u8).or_default() += 1;
        self.result.rows += 1;
        let value = layout.row.read(&bytes, &value)?;
        let mut fields =
            FieldComparer { kind, key: &key, limit: self.limit, path: Vec::new(), result: &mut self.result };
        fields.compare(&layout.row, &value, &built);
        Ok(())
    }
}

impl RowComparer<'_> {
    /// Adds the stored rows of a kind for which this build has none.
    fn leftover(&mut self, number: u8, layout: &KindLayout, state: &FoldedState) -> Result<(), StoreError> {
        let stored = self.stored.store.tree().scan_prefix([number]);
        let found = self.found.get(&number).copied().unwrap_or_default();
        if stored.keys().count() == found {
            return Ok(());
        }
        let mut built = HashSet::new();
        if let Some(kind) = RowKind::ALL.iter().find(|kind| **kind as u8 == number) {
            each_key(&state.fleet, *kind, &mut |key| {
                built.insert(key.stored());
            });
        }
        for pair in self.stored.store.tree().scan_prefix([number]) {
            let (key, value) = pair.map_err(failed("read"))?;
            if built.contains(&*key) {
                continue;
            }
            let value = layout.row.read(&key, &value)?;
            let text = RowKey::from_stored(&key).map(|key| key.to_string());
            self.result.add(self.limit, || RowDifference {
                kind: layout.kind.clone(),
                key: text.unwrap_or_else(|| HEXLOWER.encode(&key[1..])),
                field: None,
                stored: Some(value),
                built: None,
            });
        }
        Ok(())
    }
}

impl RowComparison {
    fn add(&mut self, limit: usize, difference: impl FnOnce() -> RowDifference) {
        self.count += 1;
        if self.differences.len() < limit {
            self.differences.push(difference());
        }
    }
}

/// Comparison of the fields of one row.
struct FieldComparer<'a> {
    kind: &'a str,
    key: &'a RowKey,
    limit: usize,
    path: Vec<PathPart<'a>>,
    result: &'a mut RowComparison,
}

impl<'a> FieldComparer<'a> {
    /// Compares a stored value with that of this build.
    fn compare(&mut self, layout: &'a RowLayout, stored: &'a Value, built: &'a Value) {
        if stored == built {
            return;
        }
        match (layout, stored, built) {
            (RowLayout::Optional(value), stored, built) if !stored.is_null() && !built.is_null() => {
                self.compare(value, stored, built);
            }
            (RowLayout::List(item), Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
                for (number, (old, new)) in old.iter().zip(new).enumerate() {
                    self.part(PathPart::Item(number), item, Some(old), Some(new));
                }
            }
            (RowLayout::Map(_, value), Value::Object(old), Value::Object(new)) => {
                for (key, old) in old {
                    self.part(PathPart::Entry(key), value, Some(old), new.get(key));
                }
                for (key, new) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
                    self.part(PathPart::Entry(key), value, None, Some(new));
                }
            }
            (RowLayout::Fields(fields), Value::Object(old), Value::Object(new)) => {
                for (name, field) in fields {
                    self.part(PathPart::Field(name), field, old.get(name), new.get(name));
                }
                for name in new.keys().filter(|name| !old.contains_key(*name)) {
                    self.path.push(PathPart::Field(name));
                    let field = (self.kind.to_owned(), path(&self.path, true));
                    *self.result.added.entry(field).or_default() += 1;
                    self.path.pop();
                }
            }
            (RowLayout::Variants(variants), Value::Object(old), Value::Object(new))
                if old.keys().eq(new.keys()) =>
            {
                for (name, value) in variants.iter().filter(|(name, _)| old.contains_key(name)) {
                    self.part(PathPart::Field(name), value, old.get(name), new.get(name));
                }
            }
            (_, stored, built) => self.differs(Some(stored), Some(built)),
        }
    }

    fn part(
        &mut self,
        part: PathPart<'a>,
        layout: &'a RowLayout,
        stored: Option<&'a Value>,
        built: Option<&'a Value>,
    ) {
        self.path.push(part);
        match (stored, built) {
            (Some(stored), Some(built)) => self.compare(layout, stored, built),
            (stored, built) => self.differs(stored, built),
        }
        self.path.pop();
    }

    fn differs(&mut self, stored: Option<&Value>, built: Option<&Value>) {
        self.result.add(self.limit, || RowDifference {
            kind: self.kind.to_owned(),
            key: self.key.to_string(),
            field: Some(path(&self.path, false)),
            stored: stored.cloned(),
            built: built.cloned(),
        });
    }
}

#[cfg(test)]
mod tests;
