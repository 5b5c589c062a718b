//! `get`: lists entities of one kind or several, page by page, or shows named entities.

use std::io::Write;

use serde_json::{Value, json};

use super::client::{ApiClient, CommandIo};
use super::columns;
use super::context::OutputFormat;
use super::disruption;
use super::error::{CliError, CliExit};
use super::flags::GetArgs;
use super::kind::{EntityKind, KindNaming as _};
use super::order;
use super::selection::{LabelSelector, SelectedEntities};
use super::table::{TextTable, one_line};
use super::watch;

use crate::note;

/// Number of entities in a page, which is the limit of servers.
const PAGE: u64 = 1000;

/// Entities of one kind.
pub(super) struct EntityList {
    pub(super) items: Vec<Value>,
    /// Position of the first page.
    pub(super) since: u64,
    /// Position of the last page.
    pub(super) position: u64,
    /// Whether more entities exist.
    pub(super) more: bool,
}

pub(super) fn run(get: &GetArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    if get.watch {
        return watch::run(get, io);
    }
    let output = io.client.context.output(FORMATS)?;
    let selected = get.selected()?;
    io.client.read_at(get.as_of.as_ref());
    let mut missing = Vec::new();
    let mut lists = Vec::new();
    for SelectedEntities { kind, names } in &selected {
        let listed = match names.as_slice() {
            [] => all(get, *kind, io.client)?,
            names => named(*kind, names, &mut missing, io.client)?,
        };
        lists.push((*kind, listed));
    }
    match (lists.as_mut_slice(), selected.as_slice()) {
        ([(kind, listed)], [of]) if of.names.len() == 1 => {
            // A single entity is no list.
            match (listed.items.first(), output) {
                (None, _) => {}
                (Some(item), OutputFormat::Json) => json_text(item, io.out)?,
                (Some(item), OutputFormat::Yaml) => yaml_text(item, io.out)?,
                (Some(_), _) => show(*kind, listed, output, io.out)?,
            }
        }
        ([(kind, listed)], _) => show(*kind, listed, output, io.out)?,
        (lists, _) => show_kinds(lists, output, io.out)?,
    }
    if missing.is_empty() { Ok(()) } else { Err(CliError::new(CliExit::NotFound, missing.join("\n"))) }
}

const FORMATS: &[OutputFormat] = &[
    OutputFormat::Table,
    OutputFormat::Wide,
    OutputFormat::Json,
    OutputFormat::Yaml,
    OutputFormat::Name,
    OutputFormat::Jsonl,
];

/// Returns the entities of a kind that pass the filters.
fn all(get: &GetArgs, kind: EntityKind, client: &ApiClient<'_>) -> Result<EntityList, CliError> {
    let filters: Vec<_> = get.filters.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let most = if get.all { u64::MAX } else { get.limit };
    let listed = list_labelled(client, kind, &filters, &get.selector, most)?;
    if listed.more {
        let (count, plural) = (listed.items.len(), kind.plural());
        note!("hint: only the first {count} {plural} are shown; use --all to show all");
    }
    Ok(listed)
}

/// Returns the entities of these names. The errors of those that do not exist are added to `missing`.
fn named(
    kind: EntityKind,
    names: &[String],
    missing: &mut Vec<String>,
    client: &ApiClient<'_>,
) -> Result<EntityList, CliError> {
    let mut items = Vec::new();
    for name in names {
        match one(client, kind, name) {
            Ok(item) => items.push(item),
            Err(error) if error.exit == CliExit::NotFound => missing.push(error.message),
            Err(error) => return Err(error),
        }
    }
    Ok(EntityList { items, since: 0, position: 0, more: false })
}

/// Returns the entity of that name.
pub(super) fn one(client: &ApiClient<'_>, kind: EntityKind, name: &str) -> Result<Value, CliError> {
    let doing = format!("cannot read {}/{name}", kind.word());
    let row = client.get(&doing, &kind.path_of(name)?, &[])?;
    if kind != EntityKind::Disruption {
        return Ok(row);
    }
    disruption::of_name(&row, name)?.ok_or_else(|| {
        let what = format!("{doing}: disruption {name:?} does not exist");
        CliError::new(CliExit::NotFound, what)
    })
}

/// Returns the entity of that name; `None` if it does not exist.
pub(super) fn find(
    client: &ApiClient<'_>,
    doing: &str,
    kind: EntityKind,
    name: &str,
) -> Result<Option<Value>, CliError> {
    let row = client.find(doing, &kind.path_of(name)?)?;
    match row {
        Some(node) if kind == EntityKind::Disruption => disruption::of_name(&node, name),
        row => Ok(row),
    }
}

/// Returns at most `most` entities that pass the filters, in the order of the server.
pub(super) fn list(
    client: &ApiClient<'_>,
    kind: EntityKind,
    filters: &[(&str, String)],
    most: u64,
) -> Result<EntityList, CliError> {
    list_labelled(client, kind, filters, &LabelSelector::default(), most)
}

/// Returns at most `most` entities that pass the filters and have the labels, in the order of the server. Servers have
/// no filter for labels: pages are read until there are as many entities.
pub(super) fn list_labelled(
    client: &ApiClient<'_>,
    kind: EntityKind,
    filters: &[(&str, String)],
    labels: &LabelSelector,
    most: u64,
) -> Result<EntityList, CliError> {
    if kind == EntityKind::Disruption {
        return disruption::list(client, filters, most);
    }
    let doing = format!("cannot list {}", kind.plural());
    let mut listed = EntityList { items: Vec::new(), since: 0, position: 0, more: false };
    let mut token: Option<String> = None;
    loop {
        let is_first = token.is_none();
        let left = if labels.is_empty() { most - listed.items.len() as u64 } else { PAGE };
        let mut query = filters.to_vec();
        query.push(("limit", left.min(PAGE).to_string()));
        query.extend(token.take().map(|token| ("page_token", token)));
        let mut page = client.get(&doing, &format!("/{}", kind.plural()), &query)?;
        let Value::Array(mut items) = page["items"].take() else {
            return Err(CliError::failure(format!("{doing}: the answer has no items")));
        };
        items.retain(|item| labels.holds(kind, item));
        listed.items.extend(items);
        listed.position = page["position"].as_u64().unwrap_or(0);
        if is_first {
            listed.since = listed.position;
        }
        token = page["next_page_token"].as_str().map(str::to_owned);
        listed.more = token.is_some();
        let excess = (listed.items.len() as u64).saturating_sub(most);
        // A page may be empty and not be the last.
        if token.is_none() || listed.items.len() as u64 >= most {
            listed.items.truncate(listed.items.len() - usize::try_from(excess).unwrap_or(0));
            listed.more |= excess > 0;
            return Ok(listed);
        }
    }
}

/// Shows entities of several kinds: a table with the kind in front for each kind that has entities, or one object with a
/// member for each kind.
fn show_kinds(
    lists: &mut [(EntityKind, EntityList)],
    output: OutputFormat,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    match output {
        OutputFormat::Json | OutputFormat::Yaml => {
            let mut all = serde_json::Map::new();
            for (kind, listed) in lists {
                all.insert(kind.plural().to_owned(), std::mem::take(&mut listed.items).into());
            }
            if output == OutputFormat::Json {
                json_text(&all.into(), out)
            } else {
                yaml_text(&all.into(), out)
            }
        }
        OutputFormat::Jsonl => {
            for (kind, listed) in lists {
                for item in &listed.items {
                    let subject = format!("{}/{}", kind.word(), name_of(*kind, item));
                    writeln!(out, "{}", json!({ "subject": subject, "row": item }))?;
                }
            }
            Ok(())
        }
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name => {
            let mut shown = lists.iter_mut().filter(|(_, listed)| !listed.items.is_empty()).peekable();
            if shown.peek().is_none() {
                note!("no entities");
            }
            let mut is_first = true;
            for (kind, listed) in shown {
                if output == OutputFormat::Name {
                    show(*kind, listed, output, out)?;
                    continue;
                }
                if !is_first {
                    writeln!(out)?;
                }
                is_first = false;
                let rows = sorted_table(*kind, listed, output)?.after_column("KIND", kind.word());
                out.write_all(rows.lines("").as_bytes())?;
            }
            Ok(())
        }
    }
}

/// Returns the table of entities, in natural order of their names.
fn sorted_table(
    kind: EntityKind,
    listed: &mut EntityList,
    output: OutputFormat,
) -> Result<TextTable, CliError> {
    order::sort(kind, &mut listed.items);
    columns::table(kind, &listed.items, output == OutputFormat::Wide)
}

fn show(
    kind: EntityKind,
    listed: &mut EntityList,
    output: OutputFormat,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    match output {
        OutputFormat::Table | OutputFormat::Wide if listed.items.is_empty() => note!("no {}", kind.plural()),
        OutputFormat::Table | OutputFormat::Wide => {
            let rows = sorted_table(kind, listed, output)?;
            out.write_all(rows.lines("").as_bytes())?;
        }
        OutputFormat::Json => json_text(&json!({ "items": listed.items, "position": listed.position }), out)?,
        OutputFormat::Yaml => yaml_text(&json!({ "items": listed.items, "position": listed.position }), out)?,
        OutputFormat::Name => {
            for item in &listed.items {
                writeln!(out, "{}/{}", kind.word(), name_of(kind, item))?;
            }
        }
        OutputFormat::Jsonl => {
            for item in &listed.items {
                writeln!(out, "{item}")?;
            }
        }
    }
    Ok(())
}

/// Returns the name of an entity, in paths and on command lines.
pub(super) fn name_of(kind: EntityKind, item: &Value) -> String {
    let text = |field: &&str| match &item[*field] {
        Value::String(text) => one_line(text),
        Value::Null => "?".to_owned(),
        other => other.to_string(),
    };
    kind.entry().key.iter().map(text).collect::<Vec<_>>().join("/")
}

/// Writes a value as JSON.
pub fn json_text(value: &Value, out: &mut dyn Write) -> Result<(), CliError> {
    Ok(writeln!(out, "{value:#}")?)
}

pub(super) fn yaml_text(value: &Value, out: &mut dyn Write) -> Result<(), CliError> {
    let text = serde_saphyr::to_string(value)
        .map_err(|error| CliError::failure(format!("cannot write YAML: {error}")))?;
    Ok(out.write_all(text.as_bytes())?)
}
