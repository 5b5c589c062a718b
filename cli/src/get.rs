//! `get`: lists entities, page by page, or shows one entity.

use std::io::Write;

use serde_json::{Value, json};

use super::client::{ApiClient, CommandIo};
use super::columns;
use super::context::OutputFormat;
use super::disruption;
use super::error::{CliError, CliExit};
use super::flags::GetArgs;
use super::kind::{EntityKind, KindNaming as _};
use super::table::one_line;
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
    io.client.read_at(get.as_of.as_ref());
    let (kind, possible) = (
        get.kind(),
        [
            OutputFormat::Table,
            OutputFormat::Wide,
            OutputFormat::Json,
            OutputFormat::Yaml,
            OutputFormat::Name,
            OutputFormat::Jsonl,
        ],
    );
    let output = io.client.context.output(&possible)?;
    let Some(name) = get.name()? else {
        let filters: Vec<_> =
            get.filters.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let most = if get.all { u64::MAX } else { get.limit };
        let listed = list(io.client, kind, &filters, most)?;
        if listed.more {
            note!("hint: only the first {} are shown; use --all to show all", listed.items.len());
        }
        return show(kind, &listed, output, io.out);
    };
    let item = one(io.client, kind, &name)?;
    match output {
        OutputFormat::Json => json_text(&item, io.out),
        OutputFormat::Yaml => yaml_text(&item, io.out),
        _ => {
            show(kind, &EntityList { items: vec![item], since: 0, position: 0, more: false }, output, io.out)
        }
    }
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
    if kind == EntityKind::Disruption {
        return disruption::list(client, filters, most);
    }
    let doing = format!("cannot list {}", kind.plural());
    let mut listed = EntityList { items: Vec::new(), since: 0, position: 0, more: false };
    let mut token: Option<String> = None;
    loop {
        let is_first = token.is_none();
        let mut query = filters.to_vec();
        query.push(("limit", (most - listed.items.len() as u64).min(PAGE).to_string()));
        query.extend(token.take().map(|token| ("page_token", token)));
        let mut page = client.get(&doing, &format!("/{}", kind.plural()), &query)?;
        let Value::Array(items) = page["items"].take() else {
            return Err(CliError::failure(format!("{doing}: the answer has no items")));
        };
        listed.items.extend(items);
        listed.position = page["position"].as_u64().unwrap_or(0);
        if is_first {
            listed.since = listed.position;
        }
        token = page["next_page_token"].as_str().map(str::to_owned);
        listed.more = token.is_some();
        // A page may be empty and not be the last.
        if token.is_none() || listed.items.len() as u64 >= most {
            return Ok(listed);
        }
    }
}

fn show(
    kind: EntityKind,
    listed: &EntityList,
    output: OutputFormat,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    match output {
        OutputFormat::Table | OutputFormat::Wide if listed.items.is_empty() => note!("no {}", kind.plural()),
        OutputFormat::Table | OutputFormat::Wide => {
            let rows = columns::table(kind, &listed.items, output == OutputFormat::Wide)?;
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
