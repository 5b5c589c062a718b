//! Reference of the manifests, `docs/manifests.md`, and JSON Schemas for editors, `schemas/manifests`: both are generated from
//! the same schemas, so that they agree. `UPDATE=1` writes them.

use std::fmt::Write as _;
use std::path::Path;

use schemars::Schema;
use serde_json::{Value, json};

use crate::manifest::{API_VERSION, KINDS, LARGEST, schemas};

const FILE: &str = "../docs/manifests.md";

/// Returns the page: a table of the fields of each kind.
fn reference() -> String {
    let mut text = format!(
        "# Manifests\n\n\
         Manifests are files that `chancery apply -f` reads. They contain YAML documents, separated by `---`, each of one \
         kind.\nUnknown fields are refused. This page is generated from the program; `chancery openapi` describes the \
         HTTP API.\n\n\
         Every document starts with `apiVersion: {API_VERSION}` and its `kind`, and has its name in `metadata.name`. \
         Resources and\ndurations have units: `cpu: 500m`, `memory: 64MiB`, `disk: 100GB`, `30s`.\n\
         `status` is ignored, in every document: `chancery get KIND NAME -o yaml` writes the manifest of an entity, with its state \
         there.\n\n\
         Editors that use yaml-language-server check a file with this line at its start; the path is that of the file \
         in the repository,\nor of a copy of its directory. `manifest.json` is for files with documents of several \
         kinds, and each kind has a file of its own,\nas in `plan.json`:\n\n\
         ```yaml\n# yaml-language-server: $schema=schemas/manifests/manifest.json\n```\n\n\
         A directory is read with its `.yaml`, `.yml` and `.json` files, in the order of their names, without its \
         subdirectories.\n`-f` also reads an `http` address, which has one file.\n\n\
         A file has at most {} MiB. Documents are applied in the order {}, in any order of files;\n\
         documents of one kind keep their order. They are sent in batches of up to 1,000. `chancery delete -f` deletes the \
         named\nentities in reverse order; more than one entity needs a confirmation, or `--yes`. A missing entity is reported and is no failure. Deployments are deleted with \
         their plan.\nWith `--cascade`, plans and nodes are deleted with their dependents, and then the entities that \
         they depend on.\n",
        LARGEST >> 20,
        KINDS.join(", ")
    );
    for (kind, schema) in schemas() {
        let spec = resolve(&schema, &schema.as_value()["properties"]["spec"]);
        write!(text, "\n## {kind}\n\n").expect("text");
        if let Some(about) = spec["description"].as_str() {
            write!(text, "{}\n\n", one_line(about)).expect("text");
        }
        text.push_str("| field | type | required | meaning |\n|---|---|---|---|\n");
        if kind == "Node" {
            text.push_str(
                "| `metadata.labels` | map of strings | | Labels, for selectors of plans; nodes only. |\n",
            );
        }
        rows(&schema, spec, "spec", &mut text);
        if kind == "Plan" {
            text.push_str(&classes());
        }
    }
    text
}

/// Returns the section about when an edit of each field of a plan takes effect.
fn classes() -> String {
    let mut text = "\n### When an edit of a plan takes effect\n\n\
        An *immediate* field takes effect with the edit, for every later decision about any replica of the plan. A \
        *deployed* field\ndefines what runs, and takes effect with the next deployment.\n\n\
        | field | class |\n|---|---|\n"
        .to_owned();
    for (field, class) in chancery_events::spec::PlanSpec::FIELDS {
        writeln!(text, "| `spec.{field}` | {class} |").expect("text");
    }
    text
}

/// Writes a row for each field of an object, each followed by the rows of its parts.
fn rows(schema: &Schema, object: &Value, path: &str, text: &mut String) {
    let required = object["required"].as_array();
    let Some(properties) = object["properties"].as_object() else { return };
    for (name, field) in properties {
        let needed = required.is_some_and(|names| names.iter().any(|one| one == name));
        let node = resolve(schema, field);
        let meaning = field["description"].as_str().or(node["description"].as_str()).unwrap_or_default();
        let path = format!("{path}.{name}");
        let (mut what, part, below) = shape(schema, node);
        let blocks = blocks(schema, field);
        if !blocks.is_empty() && part.is_none() {
            what.push_str(", or an object");
        }
        let needed = if needed { "yes" } else { "" };
        let usual = usual(field);
        let meaning = one_line(meaning);
        writeln!(text, "| `{path}` | {what} | {needed} | {meaning}{usual} |").expect("text");
        if let Some(part) = part {
            rows(schema, part, &format!("{path}{below}"), text);
        }
        for choice in node["oneOf"].as_array().into_iter().flatten() {
            rows(schema, &as_choice(choice), &path, text);
        }
        for block in blocks.iter().filter(|_| part.is_none()) {
            rows(schema, block, &path, text);
        }
    }
}

/// Returns the alternatives of a field that are objects.
fn blocks<'a>(schema: &'a Schema, field: &'a Value) -> Vec<&'a Value> {
    let mut node = field;
    while let Some(name) = node["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        node = &schema.as_value()["$defs"][name];
    }
    let choices = node["anyOf"].as_array().into_iter().flatten();
    choices
        .flat_map(|choice| {
            let own = resolve(schema, choice);
            if own["properties"].is_object() { vec![own] } else { blocks(schema, choice) }
        })
        .collect()
}

/// Returns an alternative of several objects: not required, with its description on its only field.
fn as_choice(choice: &Value) -> Value {
    let mut choice = choice.clone();
    let about = choice["description"].clone();
    choice["required"] = Value::Null;
    for field in choice["properties"].as_object_mut().into_iter().flat_map(|fields| fields.values_mut()) {
        field["description"] = about.clone();
    }
    choice
}

/// Returns the type of a field as text, the schema of its parts, and what its path gets for them.
fn shape<'a>(schema: &'a Schema, node: &'a Value) -> (String, Option<&'a Value>, &'static str) {
    if let Some(words) = words(node) {
        return (words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "), None, "");
    }
    let kinds: Vec<_> = match &node["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => {
            kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect()
        }
        _ if node["oneOf"].is_array() => return ("object with one field".to_owned(), None, ""),
        _ => vec![],
    };
    match kinds[..] {
        ["array"] => {
            let items = resolve(schema, &node["items"]);
            let (what, part, _) = shape(schema, items);
            (if part.is_some() { "list".to_owned() } else { format!("list of {}", many(&what)) }, part, "[]")
        }
        ["object"] if node["properties"].is_object() => ("object".to_owned(), Some(node), ""),
        ["object"] => {
            let by_pattern = || node["patternProperties"].as_object()?.values().next();
            let of = Some(&node["additionalProperties"]).filter(|of| of.is_object()).or_else(by_pattern);
            let of = of.map_or("string".to_owned(), |of| shape(schema, resolve(schema, of)).0);
            (format!("map of {}", many(&of)), None, "")
        }
        ["integer"] => ("integer".to_owned(), None, ""),
        ["number", "string"] => ("number or string".to_owned(), None, ""),
        ["boolean"] => ("boolean".to_owned(), None, ""),
        _ => ("string".to_owned(), None, ""),
    }
}

/// Returns the plural of a type.
fn many(what: &str) -> String {
    match what.strip_prefix("map of ") {
        Some(of) => format!("maps of {of}"),
        None if what.starts_with('`') => what.to_owned(),
        None => format!("{what}s"),
    }
}

/// Returns the default of a field as text, empty if there is none.
fn usual(field: &Value) -> String {
    match &field["default"] {
        Value::Number(number) => format!(" Default: {number}."),
        Value::String(word) => format!(" Default: `{word}`."),
        _ => String::new(),
    }
}

/// Returns the values of an enum.
fn words(node: &Value) -> Option<Vec<&str>> {
    let constants = || node["oneOf"].as_array()?.iter().map(|choice| choice["const"].as_str()).collect();
    match node["enum"].as_array() {
        Some(words) => words.iter().map(Value::as_str).collect(),
        None => constants(),
    }
}

/// Follows references, and skips the alternative `null`.
fn resolve<'a>(schema: &'a Schema, mut node: &'a Value) -> &'a Value {
    loop {
        if let Some(name) = node["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
            node = &schema.as_value()["$defs"][name];
        } else if let Some(choice) =
            node["anyOf"].as_array().and_then(|all| all.iter().find(|c| c["type"] != "null"))
        {
            node = choice;
        } else {
            return node;
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Returns the files with the schemas: one for each kind, and one for documents of all kinds.
fn files() -> Vec<(String, Value)> {
    let mut files: Vec<_> = schemas()
        .into_iter()
        .map(|(kind, schema)| (format!("{}.json", kind.to_lowercase()), schema.to_value()))
        .collect();
    let any: Vec<_> = files.iter().map(|(name, _)| json!({ "$ref": name })).collect();
    let draft = files[0].1["$schema"].clone();
    files.push((
        "manifest.json".into(),
        json!({ "$schema": draft, "title": "Chancery manifest", "oneOf": any }),
    ));
    files
}

#[test]
fn the_schemas_for_editors_are_what_the_program_reads() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/manifests");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(&directory).expect("a directory");
    }
    for (name, schema) in files() {
        let (path, wanted) = (directory.join(&name), format!("{schema:#}\n"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &wanted).expect("schemas can be written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "schemas/manifests/{name} is out of date: UPDATE=1 cargo test -p chancery-cli editors"
        );
    }
    let stored = std::fs::read_dir(&directory).expect("a directory").count();
    assert_eq!(stored, files().len(), "a file of a kind that no longer exists");
}

#[test]
fn the_reference_in_docs_is_what_the_program_reads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let wanted = reference();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).expect("docs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/manifests.md is out of date: UPDATE=1 cargo test -p chancery-cli reference"
    );
}
