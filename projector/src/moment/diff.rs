//! Difference of two moments: the entities whose rows differ, in the order of their kinds and keys.
//!
//! Rows are compared as readers see them, with the fields that readers add. An entity that was deleted and
//! created again under its name is changed, not new: the difference is one of states, not of events. An entity
//! about which facts changed nothing that a row shows is no difference.

use std::iter::Peekable;

use chancery_events::id::Position;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use sled::IVec;

use super::FleetMoment;
use crate::filter::{self, RowFilter};
use crate::kind::{ReadModelRow, RowKey, RowKind, with_row};
use crate::page::{JsonItems, JsonRow, LIMIT_DEFAULT, LIMIT_MAX, ListQuery, PageToken, QueryError};
use crate::query::{CompletedRows, RowTree as _};
use crate::store::StoreError;

/// Maximum number of keys compared for one page.
const LOOKS: usize = 20_000;
/// Fields of a row that change with each fact about the entity: their values are not shown.
const ALWAYS: [&str; 3] = ["version", "updated_at", "position"];

/// Kind of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeWord {
    /// The entity exists only at the later moment.
    Created,
    /// The entity exists only at the earlier moment.
    Deleted,
    /// The entity exists at both moments, with different rows.
    Changed,
}

/// Changed field of a row.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct FieldChange {
    /// Path of the field in the row, as in `spec.payloads[0].processes`. Of a new or deleted entity, the name of a field.
    pub field: String,
    /// Value at the earlier moment.
    pub old: Value,
    /// Value at the later moment.
    pub new: Value,
}

/// Entity whose rows differ.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct EntityChange {
    /// Kind of the entity, as in paths.
    pub kind: String,
    /// Key of the entity, as in paths.
    pub key: String,
    /// Kind of the change.
    pub change: ChangeWord,
    /// Changed fields, divided into the members of objects that differ. Of a new entity, the fields of its row, with old values of null; of a deleted one, with
    /// new values of null.
    pub fields: Vec<FieldChange>,
    /// Position of the last change of the entity before the earlier moment, if it existed.
    pub old_position: Option<Position>,
    /// Position of the last change of the entity before the later moment, if it existed.
    pub new_position: Option<Position>,
}

/// Page of a difference.
#[derive(Clone, Debug)]
pub struct DiffPage {
    /// Start of a JSON object with the changes, without the end of the object: `{"items":[…]`.
    pub start: String,
    /// Number of changes.
    pub count: usize,
    /// Token of the next page; `None` on the last page. A page before the last may be short or empty.
    pub next: Option<PageToken>,
}

/// Page that is being built.
struct DiffBuilder {
    items: JsonItems,
    looks: usize,
    limit: usize,
    max_bytes: usize,
}

/// Reason why a page ends before the end of a kind.
enum PageEnd {
    /// Page that is full, with the last key on it or skipped before it.
    Full(Option<Vec<u8>>),
    /// End of the kind.
    Kind,
}

/// Returns a page of the entities of these kinds whose rows at `old` and `new` differ. An entity is included if
/// its row at either moment passes the filters, which each kind must have.
pub fn diff(
    old: &FleetMoment,
    new: &FleetMoment,
    kinds: &[RowKind],
    query: &ListQuery,
) -> Result<DiffPage, QueryError> {
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    let mut kinds = kinds.to_vec();
    kinds.sort_unstable_by_key(|kind| *kind as u8);
    kinds.dedup();
    let first = kinds.first().copied().unwrap_or(RowKind::ALL[0]);
    if limit == 0 || limit > LIMIT_MAX {
        return Err(QueryError::Limit { kind: first, limit });
    }
    let digest = query.digest_of_diff(&kinds, [old.at().hash, new.at().hash]);
    let (mut kind_number, mut after) = (0, None);
    if let Some(token) = &query.token {
        if token.digest != digest {
            return Err(QueryError::OtherToken { kind: first });
        }
        (kind_number, after) = (token.way, Some(token.last.clone()));
    }
    let max_bytes = query.max_bytes.unwrap_or(usize::MAX);
    let mut page = DiffBuilder { items: JsonItems::default(), looks: 0, limit, max_bytes };
    for kind in kinds.iter().copied().filter(|kind| *kind as u8 >= kind_number) {
        let after = after.take().filter(|_| kind as u8 == kind_number);
        if after.as_ref().and_then(|last| last.first()).is_some_and(|first| *first != kind as u8) {
            return Err(QueryError::OtherToken { kind });
        }
        let ended = with_row!(kind, R => {
            let filters = filter::read::<R>(&query.filters)?;
            page.kind::<R>([old, new], &filters, after.clone())?
        });
        if let PageEnd::Full(last) = ended {
            let last = last.or(after).unwrap_or_default();
            let next = Some(PageToken { digest, way: kind as u8, last });
            return Ok(DiffPage { count: page.items.count, start: page.items.end(), next });
        }
    }
    Ok(DiffPage { count: page.items.count, start: page.items.end(), next: None })
}

impl DiffBuilder {
    /// Compares the rows of a kind after a key.
    fn kind<R: ReadModelRow>(
        &mut self,
        moments: [&FleetMoment; 2],
        filters: &[RowFilter<R>],
        after: Option<Vec<u8>>,
    ) -> Result<PageEnd, QueryError> {
        let from = after.map_or_else(
            || vec![R::KIND as u8],
            |mut key| {
                key.push(0); // the smallest key after it
                key
            },
        );
        let [mut old, mut new]: [PairIter<'_>; 2] =
            moments.map(|moment| moment.range(R::KIND, from.clone()).peekable());
        let [mut old_rows, mut new_rows] = moments.map(CompletedRows::new);
        let mut last = None;
        loop {
            let key = match (next_key(&mut old)?, next_key(&mut new)?) {
                (None, None) => return Ok(PageEnd::Kind),
                (Some(key), None) | (None, Some(key)) => key,
                (Some(one), Some(other)) => one.min(other),
            };
            if self.items.count == self.limit || self.looks == LOOKS {
                return Ok(PageEnd::Full(last));
            }
            self.looks += 1;
            let was = take(&mut old, &key).map(|value| old_rows.show::<R>(&key, &value)).transpose()?;
            let is = take(&mut new, &key).map(|value| new_rows.show::<R>(&key, &value)).transpose()?;
            let passes = |row: &R| filters.iter().all(|filter| (filter.holds)(row));
            let is_wanted = was.as_ref().is_some_and(passes) || is.as_ref().is_some_and(passes);
            if let Some(change) = change(was.as_ref(), is.as_ref()).filter(|_| is_wanted)
                && !self.items.add(&change, self.max_bytes)
            {
                return Ok(PageEnd::Full(last));
            }
            last = Some(key.to_vec());
        }
    }
}

/// Pairs of a moment that have not been compared yet.
type PairIter<'a> = Peekable<Box<dyn Iterator<Item = Result<(IVec, IVec), StoreError>> + 'a>>;

/// Returns the next key; `None` at the end.
fn next_key(pairs: &mut PairIter<'_>) -> Result<Option<IVec>, StoreError> {
    match pairs.peek() {
        None => Ok(None),
        Some(Ok((key, _))) => Ok(Some(key.clone())),
        Some(Err(_)) => pairs.next().transpose().map(|pair| pair.map(|(key, _)| key)),
    }
}

/// Takes the value of a key, if it is the next one.
fn take(pairs: &mut PairIter<'_>, key: &IVec) -> Option<IVec> {
    let is_next = matches!(pairs.peek(), Some(Ok((next, _))) if next == key);
    let pair = if is_next { pairs.next() } else { None };
    pair.and_then(Result::ok).map(|(_, value)| value)
}

/// Returns the change from one row to another; `None` if they are equal.
fn change<R: ReadModelRow>(old: Option<&R>, new: Option<&R>) -> Option<EntityChange> {
    if old == new {
        return None;
    }
    let object = |row: Option<&R>| row.map(serde_json::to_value).and_then(Result::ok);
    let positions = [old.map(R::position), new.map(R::position)];
    object_change(&old.or(new)?.key(), [object(old), object(new)], positions)
}

/// Returns the change from a row to the row of the same key at another moment; `None` if no shown field differs.
pub fn row_change(key: &RowKey, old: Option<&JsonRow>, new: Option<&JsonRow>) -> Option<EntityChange> {
    let object = |row: Option<&JsonRow>| row.and_then(|row| serde_json::from_str(&row.body).ok());
    let positions = [old, new].map(|row| row.map(|row| row.position));
    object_change(key, [object(old), object(new)], positions)
}

fn object_change(
    key: &RowKey,
    rows: [Option<Value>; 2],
    [old_position, new_position]: [Option<Position>; 2],
) -> Option<EntityChange> {
    let word = match &rows {
        [None, None] => return None,
        [None, _] => ChangeWord::Created,
        [_, None] => ChangeWord::Deleted,
        [Some(_), Some(_)] => ChangeWord::Changed,
    };
    let [was, mut is] = rows.map(|row| match row {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    });
    let mut fields = Vec::new();
    for (field, old) in was {
        let new = is.remove(&field).unwrap_or(Value::Null);
        fields.push(FieldChange { field, old, new });
    }
    fields.extend(is.into_iter().map(|(field, new)| FieldChange { field, old: Value::Null, new }));
    let is_shown =
        |change: &FieldChange| !ALWAYS.contains(&change.field.as_str()) && change.old != change.new;
    fields.retain(is_shown);
    if word == ChangeWord::Changed {
        for change in std::mem::take(&mut fields) {
            add_parts(change, &mut fields);
        }
        if fields.is_empty() {
            return None;
        }
    }
    let (kind, key) = (key.kind().word().to_owned(), key.to_string());
    Some(EntityChange { kind, key, change: word, fields, old_position, new_position })
}

/// Adds the parts of a field that differ: members of objects, and elements of lists of the same length. Other values are
/// not divided.
fn add_parts(change: FieldChange, to: &mut Vec<FieldChange>) {
    let FieldChange { field, old, new } = change;
    match (old, new) {
        (old, new) if old == new => {}
        (Value::Object(old), Value::Object(mut new)) => {
            let path = |name: &str| format!("{field}{}", member(name));
            for (name, old) in old {
                let new = new.remove(&name).unwrap_or(Value::Null);
                add_parts(FieldChange { field: path(&name), old, new }, to);
            }
            for (name, new) in new {
                add_parts(FieldChange { field: path(&name), old: Value::Null, new }, to);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (at, (old, new)) in old.into_iter().zip(new).enumerate() {
                add_parts(FieldChange { field: format!("{field}[{at}]"), old, new }, to);
            }
        }
        (old, new) => to.push(FieldChange { field, old, new }),
    }
}

/// Returns the part of a JSON path that names a member.
fn member(name: &str) -> String {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_plain { format!(".{name}") } else { format!("['{name}']") }
}
