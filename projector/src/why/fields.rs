//! Facts that give the fields of rows their values, by kind of row.
//!
//! A field that is missing here follows from other entities, or changes with time alone. A test folds random
//! fleets and compares: whenever a field listed here changes, one of its facts about the entity is in the record.

use crate::kind::{RowKind, with_row};

/// Fields of a row, and the types of the facts about its entity that set them, without version.
pub type FieldFacts = (&'static [&'static str], &'static [&'static str]);

/// Whether a fact of the type may set the field.
pub(crate) fn sets(kind: RowKind, field: &str, type_name: &str) -> bool {
    let bare = type_name.rsplit_once(".v").map_or(type_name, |(bare, _)| bare);
    setters(kind).iter().any(|(fields, facts)| fields.contains(&field) && facts.contains(&bare))
}

impl RowKind {
    /// Returns the fields of which the facts behind their values are known.
    pub fn explained_fields(self) -> Vec<&'static str> {
        setters(self).iter().flat_map(|(fields, _)| fields.iter().copied()).collect()
    }
}

fn setters(kind: RowKind) -> &'static [FieldFacts] {
    with_row!(kind, R => <R as crate::kind::ReadModelRow>::SETTERS)
}
