//! Rows of the entities that intents name, before and after a dry run.

use std::collections::{BTreeMap, BTreeSet};

use chancery_decider::dry_run::{DryRunResult, DryVerdict};
use chancery_events::intent::IntentRequest;
use chancery_events::size::json_bytes;
use chancery_projector::moment::{EntityChange, row_change};
use chancery_projector::{FleetMoment, JsonRow, QueryError, RowKey};

use super::answer::take_bytes;

/// Rows before a dry run, of the entities that its intents name.
pub(super) struct RowsBefore {
    /// Entity of each intent; `None` if it names none that has a row.
    keys: Vec<Option<RowKey>>,
    /// Row of each entity; `None` if the entity does not exist.
    rows: BTreeMap<RowKey, Option<JsonRow>>,
    /// Whether the rows of some entities did not fit.
    is_cut: bool,
}

impl RowsBefore {
    /// Reads rows of at most `max_bytes` bytes.
    pub(super) fn read(
        moment: &FleetMoment,
        intents: &[IntentRequest],
        max_bytes: usize,
    ) -> Result<RowsBefore, QueryError> {
        let keys: Vec<_> = intents.iter().map(|request| RowKey::of(request.intent.subject()?)).collect();
        let (mut rows, mut left) = (BTreeMap::new(), max_bytes);
        for key in keys.iter().flatten() {
            if rows.contains_key(key) {
                continue;
            }
            let row = moment.get_json(key)?;
            if !take_bytes(&mut left, row.as_ref().map_or(1, |row| row.body.len())) {
                break;
            }
            rows.insert(key.clone(), row);
        }
        Ok(RowsBefore { keys, rows, is_cut: left == 0 })
    }

    /// Returns the changes of the entities whose intents were accepted and change something, in the order of the intents, as
    /// far as they fit the bytes that are left. `after` has the rows at the end.
    pub(super) fn changes(
        &self,
        after: &FleetMoment,
        result: &DryRunResult,
        left: &mut usize,
    ) -> Result<Vec<EntityChange>, QueryError> {
        let changes_something =
            |decided: &DryVerdict| decided.record.is_some() && decided.verdict.result.is_ok();
        let (mut all, mut compared) = (Vec::new(), BTreeSet::new());
        for (key, decided) in self.keys.iter().zip(&result.intents) {
            let Some(key) = key.as_ref().filter(|_| changes_something(decided)) else { continue };
            let Some(before) = self.rows.get(key).filter(|_| compared.insert(key)) else { continue };
            let after = after.get_json(key)?;
            let Some(change) = row_change(key, before.as_ref(), after.as_ref()) else { continue };
            if !take_bytes(left, json_bytes(&change)) {
                break;
            }
            all.push(change);
        }
        if self.is_cut {
            *left = 0;
        }
        Ok(all)
    }
}
