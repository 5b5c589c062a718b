//! The naive second model: what readers should see, from facts alone, in the plainest way.
//!
//! Maps, no index, everything computed anew at each reading. Written from the rules and the words, beside the state
//! machine and the projector's rows, to be compared with both.

use std::collections::BTreeMap;

use chancery_events::event::BadEvent;
use chancery_events::record::Record;
use chancery_projector::RowKind;
use serde_json::Value;

/// Folds facts and gives rows.
#[derive(Clone, Default, Debug)]
pub struct Model {}

impl Model {
    /// Nothing has happened yet.
    pub fn new() -> Model {
        Model::default()
    }

    /// Takes the next valid record of the journal.
    pub fn take(&mut self, _record: &Record) -> Result<(), BadEvent> {
        Ok(())
    }

    /// The rows, by kind and key, without their messages, which are prose.
    pub fn rows(&self) -> BTreeMap<(RowKind, String), Value> {
        BTreeMap::new()
    }
}
