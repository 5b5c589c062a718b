//! `diff`: the entities whose rows differ between two moments, page by page.

use serde_json::{Value, json};

use super::client::CommandIo;
use super::context::OutputFormat;
use super::error::CliError;
use super::flags::DiffArgs;
use super::kind::EntityKind;
use super::table::{TextTable, plain};

use crate::note;

/// Number of changes in a page, which is the limit of servers.
const PAGE: &str = "1000";

pub(super) fn run(from: &str, diff: &DiffArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let possible = [OutputFormat::Table, OutputFormat::Json, OutputFormat::Yaml, OutputFormat::Jsonl];
    let output = io.client.context.output(&possible)?;
    let doing = "cannot compare moments";
    let mut query = vec![("from", from.to_owned()), ("limit", PAGE.to_owned())];
    query.extend(diff.to.clone().map(|to| ("to", to)));
    if let Some(named) = diff.kinds.iter().find(|kind| matches!(kind.name(None), Ok(Some(_)))) {
        let kind = named.kind.word();
        return Err(CliError::usage(format!(
            "invalid flag --kind: must be a kind as in {kind}, without a name"
        )));
    }
    if !diff.kinds.is_empty() {
        let kinds: Vec<_> = diff.kinds.iter().map(|kind| kind.kind.plural()).collect();
        query.push(("kinds", kinds.join(",")));
    }
    if diff.kinds.is_empty() && !diff.filters.is_empty() {
        return Err(CliError::usage("invalid flag --filter: must be used with --kind"));
    }
    query.extend(diff.filters.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let mut items = Vec::new();
    loop {
        let mut page = io.client.get(doing, "/diff", &query)?;
        let Value::Array(found) = page["items"].take() else {
            return Err(CliError::failure(format!("{doing}: the answer has no items")));
        };
        items.extend(found);
        let ends = ["from", "to"].map(|end| page[end]["position"].as_u64().unwrap_or(0));
        let Some(token) = page["next_page_token"].as_str() else {
            let [from, to] =
                ["from", "to"].map(|end| page[end]["time"].as_str().unwrap_or_default().to_owned());
            note!("from position {}, {from}, to position {}, {to}", ends[0], ends[1]);
            return show(&items, output, [&page["from"], &page["to"]], io);
        };
        // The moments of the first page: others may have been recorded since.
        let named = ["from", "to"].into_iter().zip(ends.map(|end| io.client.named(end).to_string()));
        query.retain(|(name, _)| !["from", "to", "page_token"].contains(name));
        query.extend(named);
        query.push(("page_token", token.to_owned()));
    }
}

fn show(
    items: &[Value],
    output: OutputFormat,
    [from, to]: [&Value; 2],
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    match output {
        OutputFormat::Json | OutputFormat::Yaml => {
            output.value(&json!({ "items": items, "from": from, "to": to }), io.out)
        }
        OutputFormat::Jsonl => Ok(items.iter().try_for_each(|item| writeln!(io.out, "{item}"))?),
        _ if items.is_empty() => {
            note!("no differences");
            Ok(())
        }
        _ => Ok(io.out.write_all(table(items).lines("").as_bytes())?),
    }
}

/// Returns a line for each new or deleted entity, and for each changed field.
pub(super) fn table(items: &[Value]) -> TextTable {
    let mut rows = TextTable::new(["ENTITY", "CHANGE", "FIELD", "OLD", "NEW"]);
    for item in items {
        add(&mut rows, item);
    }
    rows
}

/// Adds a line for a new or deleted entity, or for each changed field of another.
pub(super) fn add(rows: &mut TextTable, item: &Value) {
    let (entity, change) = (entity(item), item["change"].as_str().unwrap_or_default());
    if change != "changed" {
        return rows.add([entity, change.to_owned(), String::new(), String::new(), String::new()]);
    }
    for field in item["fields"].as_array().map_or(&[][..], Vec::as_slice) {
        let name = field["field"].as_str().unwrap_or_default().to_owned();
        rows.add([entity.clone(), "changed".to_owned(), name, value(&field["old"]), value(&field["new"])]);
    }
}

/// Returns the entity of a change, as `node/node-1`.
pub(super) fn entity(change: &Value) -> String {
    let [kind, key] = ["kind", "key"].map(|field| change[field].as_str().unwrap_or_default());
    format!("{}/{key}", EntityKind::named(kind).map_or(kind, |kind| kind.word()))
}

/// Returns the text of a value in a table; empty without one.
pub(super) fn value(value: &Value) -> String {
    if value.is_null() { String::new() } else { plain(value) }
}
