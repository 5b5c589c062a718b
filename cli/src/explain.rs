//! `explain`: the fields of a kind, from the schemas of its manifest and of its rows. The command needs no
//! server.

#[cfg(test)]
mod tests;

use std::io::Write;

use serde_json::{Map, Value};
use unicode_width::UnicodeWidthStr as _;

use super::context::{CliContext, OutputFormat};
use super::error::CliError;
use super::fields::{schema, values};
use super::flags::ExplainArgs;
use super::get::json_text;
use super::kind::{EntityKind, FieldPath};
use super::table::{TextTable, add, plain};
use crate::manifest;
use crate::manifest::suggest::nearest;

/// Columns of a line of text.
const WIDTH: usize = 80;

pub(super) fn run(explain: &ExplainArgs, context: &CliContext, out: &mut dyn Write) -> Result<(), CliError> {
    let Some(path) = &explain.path else {
        context.output(&[OutputFormat::Table])?;
        return Ok(out.write_all(kinds().as_bytes())?);
    };
    let output = context.output(&[OutputFormat::Table, OutputFormat::Json])?;
    let documents = documents(path.kind);
    let found = find(path, &documents)?;
    if output == OutputFormat::Json {
        let schemas =
            found.iter().map(|(document, field)| (document.word.to_owned(), document.schema_of(field)));
        return json_text(&schemas.collect::<Map<_, _>>().into(), out);
    }
    Ok(out.write_all(text(explain, path, &found).as_bytes())?)
}

/// Table of the kinds.
fn kinds() -> String {
    let mut rows = TextTable::new(["KIND", "ALIASES", "MANIFEST", "DESCRIPTION"]);
    for entry in EntityKind::ALL.iter().map(|kind| kind.entry()) {
        let manifest = if entry.manifest.is_some() { "yes" } else { "no" };
        rows.add([entry.word, aliases(entry.plural, entry.aliases).as_str(), manifest, entry.about]);
    }
    rows.lines("")
}

fn aliases(plural: &str, others: &[&str]) -> String {
    [&[plural][..], others].concat().join(", ")
}

/// Schema of one form of a kind: its manifest or its row.
struct SchemaDocument {
    word: &'static str,
    title: String,
    schema: Value,
}

/// Documents of a kind, the manifest first.
fn documents(kind: EntityKind) -> Vec<SchemaDocument> {
    let manifest = manifest::schemas().into_iter().find(|(name, _)| *name == kind.entry().name);
    let manifest = manifest.map(|(_, schema)| SchemaDocument {
        word: "manifest",
        title: "MANIFEST (chancery apply -f)".to_owned(),
        schema: schema.to_value(),
    });
    let row = SchemaDocument {
        word: "row",
        title: format!("ROW (chancery get {} -o json)", kind.plural()),
        schema: schema(kind).to_value(),
    };
    manifest.into_iter().chain([row]).collect()
}

/// Field of an object.
#[derive(Clone, Copy)]
struct SchemaField<'a> {
    name: &'a str,
    node: &'a Value,
    about: &'a str,
    is_required: bool,
}

type FoundField<'a> = (&'a SchemaDocument, SchemaField<'a>);

/// Returns the field in each document that has it. Without field names, it is the whole document.
fn find<'a>(path: &FieldPath, documents: &'a [SchemaDocument]) -> Result<Vec<FoundField<'a>>, CliError> {
    let name = path.kind.word();
    let whole = documents.iter().map(|document| {
        (document, SchemaField { name, node: &document.schema, about: "", is_required: false })
    });
    let mut found: Vec<FoundField<'a>> = whole.collect();
    let mut parent = name.to_owned();
    for name in &path.fields {
        let fields = |(document, field): &FoundField<'a>| {
            let document = *document;
            document.fields(field.node).into_iter().map(move |field| (document, field))
        };
        let known: Vec<_> = found.iter().flat_map(fields).collect();
        found = known.iter().copied().filter(|(_, field)| field.name == name).collect();
        if found.is_empty() {
            return Err(unknown(&parent, name, known.iter().map(|(_, field)| field.name).collect()));
        }
        parent = format!("{parent}.{name}");
    }
    Ok(found)
}

fn unknown(parent: &str, name: &str, mut known: Vec<&str>) -> CliError {
    if known.is_empty() {
        return CliError::usage(format!("invalid field {name:?}: {parent} has no fields"));
    }
    known.sort_unstable();
    known.dedup();
    let proposal = nearest(name, &known)
        .map_or(String::new(), |nearest| format!("\ntry: chancery explain {parent}.{nearest}"));
    let known = known.join(", ");
    CliError::usage(format!("invalid field {name:?} of {parent}: must be one of {known}{proposal}"))
}

impl SchemaDocument {
    /// Alternatives of a node, behind references. The absent value is not one of them.
    fn choices<'a>(&'a self, node: &'a Value) -> Vec<&'a Value> {
        if let Some(pointer) = node["$ref"].as_str() {
            let target = pointer.strip_prefix('#').and_then(|pointer| self.schema.pointer(pointer));
            return self.choices(target.expect("a schema refers to its own definitions"));
        }
        match node["anyOf"].as_array().or_else(|| node["oneOf"].as_array()) {
            Some(all) => all.iter().flat_map(|choice| self.choices(choice)).collect(),
            None if node["type"] == "null" => Vec::new(),
            None => vec![node],
        }
    }

    /// The same; of a list, the alternatives of its items.
    fn parts<'a>(&'a self, node: &'a Value) -> Vec<&'a Value> {
        let part = |choice: &'a Value| match &choice["items"] {
            Value::Null => vec![choice],
            items => self.parts(items),
        };
        self.choices(node).into_iter().flat_map(part).collect()
    }

    /// Fields of an object, of the objects of a list, or of each alternative.
    fn fields<'a>(&'a self, node: &'a Value) -> Vec<SchemaField<'a>> {
        let parts = self.parts(node);
        let is_choice = parts.len() > 1;
        let fields = |part: &'a Value| {
            let required = part["required"].as_array();
            // The description of an alternative is above its only field.
            let about = part["description"].as_str().filter(|_| is_choice).unwrap_or_default();
            part["properties"].as_object().into_iter().flatten().map(move |(name, node)| SchemaField {
                name,
                node,
                about: node["description"].as_str().unwrap_or(about),
                is_required: !is_choice && required.is_some_and(|names| names.iter().any(|one| one == name)),
            })
        };
        parts.into_iter().flat_map(fields).collect()
    }

    /// Type of a node: `string`, `list of object`, `map of integer`, `string or object`.
    fn type_of(&self, node: &Value) -> String {
        let mut types = Vec::new();
        for choice in self.choices(node) {
            let names: Vec<&str> = match &choice["type"] {
                Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
                name => name.as_str().into_iter().collect(),
            };
            for name in names.into_iter().filter(|name| *name != "null") {
                let name = match (name, values(choice)) {
                    ("array", _) => format!("list of {}", self.type_of(&choice["items"])),
                    ("object", Some(values)) => format!("map of {}", self.type_of(values)),
                    (name, _) => name.to_owned(),
                };
                if !types.contains(&name) {
                    types.push(name);
                }
            }
        }
        types.join(" or ")
    }

    /// Values of an enum, or of the items of a list, each with its description if it has one.
    fn enum_values<'a>(&'a self, node: &'a Value) -> Vec<(&'a str, &'a str)> {
        let parts = self.parts(node);
        // The description of an only alternative is that of the field.
        let is_described = |about: &str, value| parts.len() > 1 && !repeats(about, value);
        let mut all = Vec::new();
        for part in &parts {
            let listed = part["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
            all.extend(listed.map(|value| (value, "")));
            if let Some(value) = part["const"].as_str() {
                let about = part["description"].as_str().filter(|about| is_described(about, value));
                all.push((value, about.unwrap_or_default()));
            }
        }
        all
    }

    /// Schema of a field that can be read without its document.
    fn schema_of(&self, field: &SchemaField<'_>) -> Value {
        let mut schema = field.node.clone();
        if schema.to_string().contains("\"$ref\"") {
            schema["$defs"] = self.schema["$defs"].clone();
        }
        schema
    }

    /// Writes name and type of a field.
    fn head(&self, field: &SchemaField<'_>, indent: usize, text: &mut String) {
        let required = if field.is_required { " -required-" } else { "" };
        let (name, type_name) = (field.name, self.type_of(field.node));
        add(text, format_args!("{:indent$}{name} <{type_name}>{required}\n", ""));
    }

    /// Writes a field, with its description and default.
    fn entry(&self, field: &SchemaField<'_>, indent: usize, text: &mut String) {
        self.head(field, indent, text);
        wrap(field.about, indent + 2, text);
        if let Some(default) = default(field.node) {
            wrap(&format!("default: {default}"), indent + 2, text);
        }
    }

    /// Writes the fields of a node.
    fn list(&self, node: &Value, indent: usize, text: &mut String) {
        for field in self.fields(node) {
            self.entry(&field, indent, text);
            let values: Vec<_> = self.enum_values(field.node).into_iter().map(|(value, _)| value).collect();
            if !values.is_empty() {
                wrap(&format!("enum: {}", values.join(", ")), indent + 2, text);
            }
        }
    }

    /// Writes names and types of all fields below a node.
    fn tree(&self, node: &Value, indent: usize, text: &mut String) {
        for field in self.fields(node) {
            self.head(&field, indent, text);
            self.tree(field.node, indent + 2, text);
        }
    }
}

/// Whether a description only repeats the value.
fn repeats(about: &str, value: &str) -> bool {
    about.trim_matches(['`', '.']).eq_ignore_ascii_case(value)
}

/// Default of a field, unless it is absent or empty.
fn default(node: &Value) -> Option<String> {
    match &node["default"] {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Object(members) if members.is_empty() => None,
        other => Some(plain(other)),
    }
}

/// Writes a paragraph in lines of at most [`WIDTH`] columns.
fn wrap(paragraph: &str, indent: usize, text: &mut String) {
    let mut width = 0;
    for word in paragraph.split_whitespace() {
        let is_first = width == 0;
        width += 1 + word.width();
        if is_first || width > WIDTH {
            let end = if is_first { "" } else { "\n" };
            add(text, format_args!("{end}{:indent$}{word}", ""));
            width = indent + word.width();
        } else {
            add(text, format_args!(" {word}"));
        }
    }
    if width > 0 {
        text.push('\n');
    }
}

/// Text about a kind or a field.
fn text(explain: &ExplainArgs, path: &FieldPath, found: &[FoundField<'_>]) -> String {
    let entry = path.kind.entry();
    let mut text = format!("KIND:   {} ({})\n", entry.word, aliases(entry.plural, entry.aliases));
    let is_field = !path.fields.is_empty();
    if is_field {
        add(&mut text, format_args!("FIELD:  {}\n", path.fields.join(".")));
    } else {
        add(&mut text, format_args!("        {}\n", entry.about));
    }
    for (document, field) in found {
        add(&mut text, format_args!("\n{}\n", document.title));
        if is_field {
            document.entry(field, 2, &mut text);
            let values = document.enum_values(field.node);
            if !values.is_empty() {
                text.push_str("    enum:\n");
            }
            for (value, about) in values {
                add(&mut text, format_args!("      {value}\n"));
                wrap(about, 8, &mut text);
            }
        }
        let indent = if is_field { 4 } else { 2 };
        if is_field && !document.fields(field.node).is_empty() {
            text.push_str("  FIELDS\n");
        }
        if explain.recursive {
            document.tree(field.node, indent, &mut text);
        } else {
            document.list(field.node, indent, &mut text);
        }
    }
    text
}
