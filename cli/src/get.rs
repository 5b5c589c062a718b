//! `get`: lists entities of one kind or several, page by page, or shows named entities.

use std::io::Write;
use std::time::Duration;

use chancery_events::time::Time;
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
use super::table::{TextTable, one_line, plain};
use super::{short_id, watch};

use crate::manifest::of_row::RowManifest;
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
    let format = io.client.context.output.unwrap_or(OutputFormat::Table);
    let view = GetOutput { get, format, client: io.client };
    let selected = get.selected()?;
    io.client.read_at(get.as_of.as_ref());
    let mut missing = Vec::new();
    let mut lists = Vec::new();
    for SelectedEntities { kind, names } in &selected {
        let mut listed = match names.as_slice() {
            [] => all(get, *kind, io.client)?,
            names => named(*kind, names, &mut missing, io.client)?,
        };
        view.sort(*kind, &mut listed.items)?;
        lists.push((*kind, listed));
    }
    match (lists.as_slice(), selected.as_slice()) {
        _ if view.manifests(&lists, io.out)? => {}
        // The errors name what is missing.
        ([(_, listed)], [of]) if !of.names.is_empty() && listed.items.is_empty() => {}
        // A single entity is no list.
        ([(_, listed)], [of]) if of.names.len() == 1 && view.is_whole() => {
            listed.items.iter().try_for_each(|item| view.value(item, io.out))?;
        }
        ([(kind, listed)], _) => view.one_kind(*kind, listed, io.out)?,
        (lists, _) => view.kinds(lists, io.out)?,
    }
    if missing.is_empty() { Ok(()) } else { Err(CliError::new(CliExit::NotFound, missing.join("\n"))) }
}

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
    let mut positions = Vec::new();
    for name in names {
        match shown(client, kind, name) {
            Ok(item) => {
                items.push(item);
                positions.push(client.reached());
            }
            Err(error) if error.exit == CliExit::NotFound => missing.push(error.message),
            Err(error) => return Err(error),
        }
    }
    let since = positions.iter().min().copied().unwrap_or(0);
    let position = positions.iter().max().copied().unwrap_or(0);
    Ok(EntityList { items, since, position, more: false })
}

/// Returns the entity of that name, or of the id that starts with it.
pub(super) fn one(client: &ApiClient<'_>, kind: EntityKind, name: &str) -> Result<Value, CliError> {
    let name = &short_id::resolve(client, kind, name)?;
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

/// Returns the entity of that name or id as [`one`] does, with the command that shows the events of a deleted one.
pub(super) fn shown(client: &ApiClient<'_>, kind: EntityKind, name: &str) -> Result<Value, CliError> {
    one(client, kind, name).map_err(|error| with_history(error, kind, name, client))
}

/// Adds to the error about an entity that does not exist which command shows its events, if the journal has some: it was deleted,
/// or an intent about it was refused.
fn with_history(error: CliError, kind: EntityKind, name: &str, client: &ApiClient<'_>) -> CliError {
    let has_events = || {
        let path = format!("{}/history", kind.path_of(name)?);
        let page = client.get("cannot read history", &path, &[("limit", "1".to_owned())])?;
        Ok::<_, CliError>(page["items"].as_array().is_some_and(|items| !items.is_empty()))
    };
    // A history that cannot be read adds nothing to the error. Events of a disruption are part of its node's history.
    if error.exit != CliExit::NotFound || kind == EntityKind::Disruption || !has_events().unwrap_or(false) {
        return error;
    }
    let (word, message) = (kind.word(), error.message);
    CliError::new(error.exit, format!("{message}\nhint: its events are kept: chancery history {word} {name}"))
}

/// Returns the entity of that name; `None` if it does not exist.
pub(super) fn find(
    client: &ApiClient<'_>,
    doing: &str,
    kind: EntityKind,
    name: &str,
) -> Result<Option<Value>, CliError> {
    match client.get(doing, &kind.path_of(name)?, &[]) {
        Ok(node) if kind == EntityKind::Disruption => disruption::of_name(&node, name),
        Ok(row) => Ok(Some(row)),
        Err(error) if error.exit == CliExit::NotFound => Ok(None),
        Err(error) => Err(error),
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

/// Output of `get`.
struct GetOutput<'a> {
    get: &'a GetArgs,
    format: OutputFormat,
    client: &'a ApiClient<'a>,
}

impl GetOutput<'_> {
    /// Whether the output is one value.
    fn is_whole(&self) -> bool {
        matches!(self.format, OutputFormat::Json | OutputFormat::Yaml | OutputFormat::Jsonpath)
    }

    /// Sorts the rows as requested; rows of tables are sorted by name otherwise.
    fn sort(&self, kind: EntityKind, items: &mut Vec<Value>) -> Result<(), CliError> {
        match &self.get.sort_by {
            Some(field) => order::sort_by(kind, items, field)?,
            None if matches!(self.format, OutputFormat::Table | OutputFormat::Wide | OutputFormat::Csv) => {
                order::sort(kind, items);
            }
            None => {}
        }
        Ok(())
    }

    /// Writes entities as manifests, if YAML is requested and each kind has manifests. Returns whether it did.
    fn manifests(&self, lists: &[(EntityKind, EntityList)], out: &mut dyn Write) -> Result<bool, CliError> {
        let writers = lists.iter().map(|(kind, _)| RowManifest::of(*kind)).collect::<Option<Vec<_>>>();
        let Some(writers) = writers.filter(|_| self.format == OutputFormat::Yaml) else { return Ok(false) };
        for (writer, (_, listed)) in writers.iter().zip(lists) {
            for item in &listed.items {
                write!(out, "---\n{}", writer.text(item)?)?;
            }
        }
        Ok(true)
    }

    /// Writes one value.
    fn value(&self, value: &Value, out: &mut dyn Write) -> Result<(), CliError> {
        match (self.format, &self.client.context.template) {
            (OutputFormat::Jsonpath, Some(template)) => Ok(out.write_all(template.render(value).as_bytes())?),
            (format, _) => format.value(value, out),
        }
    }

    /// Shows entities of one kind.
    fn one_kind(&self, kind: EntityKind, listed: &EntityList, out: &mut dyn Write) -> Result<(), CliError> {
        match self.format {
            OutputFormat::Table | OutputFormat::Wide if listed.items.is_empty() => {
                note!("no {}", kind.plural());
            }
            OutputFormat::Table | OutputFormat::Wide => {
                out.write_all(self.table(kind, &listed.items)?.lines("").as_bytes())?;
            }
            OutputFormat::Csv => out.write_all(self.table(kind, &listed.items)?.csv().as_bytes())?,
            OutputFormat::Json | OutputFormat::Yaml | OutputFormat::Jsonpath => {
                self.value(&json!({ "items": listed.items, "position": listed.position }), out)?;
            }
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

    /// Shows entities of several kinds: a table with the kind in front for each kind that has entities, or one object with
    /// a member for each kind.
    fn kinds(&self, lists: &[(EntityKind, EntityList)], out: &mut dyn Write) -> Result<(), CliError> {
        match self.format {
            OutputFormat::Csv => {
                Err(CliError::usage("invalid output format \"csv\": must be used with one kind"))
            }
            OutputFormat::Json | OutputFormat::Yaml | OutputFormat::Jsonpath => {
                let members = lists.iter().map(|(kind, of)| (kind.plural().to_owned(), json!(of.items)));
                self.value(&Value::Object(members.collect()), out)
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
            OutputFormat::Name => lists.iter().try_for_each(|(kind, of)| self.one_kind(*kind, of, out)),
            OutputFormat::Table | OutputFormat::Wide => {
                let shown: Vec<_> = lists.iter().filter(|(_, listed)| !listed.items.is_empty()).collect();
                if shown.is_empty() {
                    note!("no entities");
                }
                for (at, (kind, listed)) in shown.into_iter().enumerate() {
                    let words = listed.items.iter().map(|_| kind.word().to_owned());
                    let rows = self.table(*kind, &listed.items)?.with_column(0, "KIND", words);
                    let before = if at == 0 { "" } else { "\n" };
                    write!(out, "{before}{}", rows.lines(""))?;
                }
                Ok(())
            }
        }
    }

    /// Returns the table of entities, without heads if requested.
    fn table(&self, kind: EntityKind, items: &[Value]) -> Result<TextTable, CliError> {
        let rows = table(kind, items, self.format != OutputFormat::Table, self.client.time())?;
        Ok(if self.get.no_headers { rows.without_heads() } else { rows })
    }
}

/// Returns the table of entities, with their ages where rows have the time of the creation.
pub(super) fn table(
    kind: EntityKind,
    items: &[Value],
    is_wide: bool,
    now: Time,
) -> Result<TextTable, CliError> {
    let rows = columns::table(kind, items, is_wide)?;
    let age = |item: &Value| {
        let created = item["created_at"].as_str().and_then(|text| text.parse::<Time>().ok());
        created.map_or_else(String::new, |created| age(now.since(created)))
    };
    // The row of a disruption is part of the row of its node.
    if kind == EntityKind::Disruption {
        return Ok(rows);
    }
    let count = rows.heads().count();
    Ok(rows.with_column(count, "AGE", items.iter().map(age)))
}

/// Formats an age in one unit, of which there are at least two: `90s`, `5m`, `47h`, `3d`.
fn age(span: Duration) -> String {
    let seconds = span.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "m")];
    let unit = units.iter().find(|(unit, _)| seconds >= 2 * unit);
    unit.map_or_else(|| format!("{seconds}s"), |(unit, word)| format!("{}{word}", seconds / unit))
}

/// Returns the name of an entity, in paths and on command lines.
pub(super) fn name_of(kind: EntityKind, item: &Value) -> String {
    let text = |field: &&str| match &item[*field] {
        Value::Null => "?".to_owned(),
        other => one_line(&plain(other)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_one_unit() {
        for (seconds, wanted) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7199, "119m"),
            (7200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (864_000, "10d"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), wanted);
        }
    }
}
