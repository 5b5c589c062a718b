//! Natural order of names: numbers within names are compared by their values.

use std::cmp::Ordering;

use serde_json::Value;

use super::columns;
use super::diff;
use super::error::CliError;
use super::get::name_of;
use super::kind::EntityKind;
use super::output::{found, path};
use super::table::ABSENT;

/// Sorts the rows of a table by name. Rows whose names follow the journal keep the order of the server.
pub(super) fn sort(kind: EntityKind, items: &mut [Value]) {
    if !is_issued(kind) {
        items.sort_by_cached_key(|item| NaturalKey(name_of(kind, item)));
    }
}

/// Sorts rows by a column of their wide table, or by a JSON path. Equal rows keep their order.
pub(super) fn sort_by(kind: EntityKind, items: &mut Vec<Value>, field: &str) -> Result<(), CliError> {
    if field.eq_ignore_ascii_case("age") {
        sort_by(kind, items, ".created_at")?;
        // The newest has the smallest age.
        items.reverse();
        return Ok(());
    }
    let keys: Vec<_> = if field.starts_with(['.', '{', '$', '[']) {
        let path = path(field).map_err(CliError::usage)?;
        let values: Vec<_> = items.iter().map(|item| found(&path, item).first().copied()).collect();
        if !items.is_empty() && values.iter().all(Option::is_none) {
            let plural = kind.plural();
            return Err(CliError::usage(format!(
                "invalid path {field:?} of {plural}: none of them has such a field\ntry: chancery get {plural} -o json"
            )));
        }
        values.into_iter().map(|value| value.map_or_else(String::new, diff::value)).collect()
    } else {
        column(kind, items, field)?
    };
    let mut keyed: Vec<_> = keys.into_iter().map(NaturalKey).zip(std::mem::take(items)).collect();
    keyed.sort_by(|(one, _), (two, _)| one.cmp(two));
    items.extend(keyed.into_iter().map(|(_, item)| item));
    Ok(())
}

/// Returns the cells of a column.
fn column(kind: EntityKind, items: &[Value], field: &str) -> Result<Vec<String>, CliError> {
    let rows = columns::table(kind, items, true)?;
    let heads: Vec<_> = rows.heads().collect();
    let Some(at) = heads.iter().position(|head| head.eq_ignore_ascii_case(field)) else {
        let known = heads.join(", ");
        return Err(CliError::usage(format!(
            "invalid column {field:?} of {}: must be one of {known}, AGE, or a JSON path as in .created_at",
            kind.plural()
        )));
    };
    let cells: Vec<_> = rows.cells().filter_map(|mut cells| cells.nth(at).map(str::to_owned)).collect();
    Ok(amounts(&cells).unwrap_or(cells))
}

/// Units of amounts in tables, in thousandths of the base unit.
const UNITS: [(&str, f64); 11] = [
    ("m", 1.0),
    ("B", 1e3),
    ("kB", 1e6),
    ("MB", 1e9),
    ("GB", 1e12),
    ("TB", 1e15),
    ("KiB", 1024e3),
    ("MiB", 1_048_576e3),
    ("GiB", 1_073_741_824e3),
    ("TiB", 1_099_511_627_776e3),
    ("", 1e3),
];

/// Returns the amounts before the slash of each cell, as numbers of one unit; `None` if a cell has none, or no cell has a unit.
fn amounts(cells: &[String]) -> Option<Vec<String>> {
    let firsts = cells.iter().filter_map(|cell| cell.split('/').next());
    let has_unit = firsts.clone().any(|first| first.ends_with(|c: char| c.is_ascii_alphabetic()));
    let amount = |first: &str| {
        if first == ABSENT {
            return Some(String::new());
        }
        let (number, unit) =
            first.split_at(first.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(first.len()));
        let (_, factor) = UNITS.iter().find(|(known, _)| *known == unit)?;
        Some(format!("{:.0}", number.parse::<f64>().ok()? * factor))
    };
    firsts.map(amount).collect::<Option<Vec<_>>>().filter(|_| has_unit)
}

/// Whether names of the kind are ids, or derive from positions: their digits are no decimal numbers. People name disruptions, and
/// what manifests describe.
fn is_issued(kind: EntityKind) -> bool {
    kind.entry().manifest.is_none() && kind != EntityKind::Disruption
}

/// Text that sorts in natural order.
#[derive(PartialEq, Eq)]
pub(super) struct NaturalKey(pub(super) String);

impl Ord for NaturalKey {
    fn cmp(&self, other: &NaturalKey) -> Ordering {
        let (mut one, mut two) = (self.0.as_str(), other.0.as_str());
        while !one.is_empty() && !two.is_empty() {
            let ((a, rest_of_a), (b, rest_of_b)) = (first_part(one), first_part(two));
            let [value_a, value_b] = [a, b].map(|part| part.trim_start_matches('0'));
            let are_numbers = [a, b].iter().all(|part| part.starts_with(|c: char| c.is_ascii_digit()));
            let order = if are_numbers {
                value_a.len().cmp(&value_b.len()).then_with(|| value_a.cmp(value_b))
            } else {
                a.cmp(b)
            };
            if order != Ordering::Equal {
                return order;
            }
            (one, two) = (rest_of_a, rest_of_b);
        }
        // Names that differ only in zeros before their numbers keep one order.
        one.len().cmp(&two.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for NaturalKey {
    fn partial_cmp(&self, other: &NaturalKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Splits off the digits, or the other characters, with which the text starts.
fn first_part(text: &str) -> (&str, &str) {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_in_names_are_compared_by_their_values() {
        let mut names: Vec<_> = ["b", "d-10", "d-2", "d-2-a", "a-1.10", "d-02", "d", "a-1.9", "10", "9"]
            .map(str::to_owned)
            .into();
        names.sort_by_key(|name| NaturalKey(name.clone()));
        assert_eq!(names, ["9", "10", "a-1.9", "a-1.10", "b", "d", "d-02", "d-2", "d-2-a", "d-10"]);
    }

    #[test]
    fn amounts_are_compared_in_one_unit() {
        let sorted = |cells: &[&str]| {
            let cells: Vec<_> = cells.iter().map(|cell| (*cell).to_owned()).collect();
            let keys = amounts(&cells).unwrap_or_else(|| cells.clone());
            let mut keyed: Vec<_> = keys.into_iter().map(NaturalKey).zip(cells).collect();
            keyed.sort_by(|(one, _), (two, _)| one.cmp(two));
            keyed.into_iter().map(|(_, cell)| cell).collect::<Vec<_>>()
        };
        assert_eq!(
            sorted(&["7GiB/8GiB", "10GiB/10GiB", "7104MiB/8GiB", "-"]),
            ["-", "7104MiB/8GiB", "7GiB/8GiB", "10GiB/10GiB"]
        );
        assert_eq!(sorted(&["2TB", "500MB", "999GB"]), ["500MB", "999GB", "2TB"]);
        assert_eq!(sorted(&["4/4", "3500m/4", "3/4"]), ["3/4", "3500m/4", "4/4"]);
        assert_eq!(sorted(&["10", "9", "1"]), ["1", "9", "10"]);
        assert_eq!(sorted(&["b-2m", "a-10m"]), ["a-10m", "b-2m"]);
    }

    #[test]
    fn ages_are_those_of_the_creation() {
        let row = |name: &str, at: &str| json!({ "name": name, "created_at": at });
        let mut rows =
            vec![row("old", "2026-11-21T09:00:00.000000Z"), row("new", "2026-11-21T10:00:00.000000Z")];
        for field in ["AGE", "age"] {
            sort_by(EntityKind::Node, &mut rows, field).expect("a column");
            assert_eq!(rows[0]["name"], "new");
            rows.reverse();
        }
    }

    #[test]
    fn rows_with_issued_names_keep_their_order() {
        let rows = |kind, names: [&str; 2]| {
            let mut rows = names.map(|name| json!({ "name": name, "plan": "web" }));
            sort(kind, &mut rows);
            rows.map(|row| row["name"].as_str().unwrap_or_default().to_owned())
        };
        assert_eq!(rows(EntityKind::Deployment, ["d-10", "d-2"]), ["d-2", "d-10"]);
        assert_eq!(rows(EntityKind::Replica, ["web-10a0", "web-2a00"]), ["web-10a0", "web-2a00"]);
    }
}
