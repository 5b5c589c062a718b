//! Manifests of existing entities, from their rows: for `get -o yaml` and `edit`.
//!
//! | row | manifest |
//! |---|---|
//! | name | `metadata.name` |
//! | labels of a node | `metadata.labels` |
//! | `spec`, or the fields that the spec of the manifest has | `spec` |
//! | other fields | `status`, which reading a manifest ignores |
//!
//! A row is converted along the schema of the kind's manifest: numbers become amounts with units where the schema has them,
//! and values that are absent or empty are omitted. Reading the manifest gives the spec of the row again.

use chancery_events::kind::EntityKind;
use chancery_events::resources::show_cpu;
use serde_json::{Map, Value, json};

use super::write::bytes;
use super::{API_VERSION, schemas};
use crate::columns::span;
use crate::error::CliError;

/// Members of specs whose fields manifests have one level higher.
const FLATTENED: [&str; 2] = ["timing", "rule"];

/// Writer of the manifests of one kind.
pub(crate) struct RowManifest {
    kind: EntityKind,
    schema: Value,
}

impl RowManifest {
    /// Returns the writer for a kind; `None` if the kind has no manifest.
    pub(crate) fn of(kind: EntityKind) -> Option<RowManifest> {
        let (_, schema) = schemas().into_iter().find(|(name, _)| *name == kind.entry().name)?;
        Some(RowManifest { kind, schema: schema.to_value() })
    }

    /// Returns the manifest of a row as a YAML document, with the state of the entity in `status`.
    pub(crate) fn text(&self, row: &Value) -> Result<String, CliError> {
        yaml(&self.document(row))
    }

    /// Returns the manifest of a row as a YAML document without `status`.
    pub(crate) fn desired(&self, row: &Value) -> Result<String, CliError> {
        let mut document = self.document(row);
        if let Some(members) = document.as_object_mut() {
            members.remove("status");
        }
        yaml(&document)
    }

    fn document(&self, row: &Value) -> Value {
        let (_, form) = self.definition(&self.schema["properties"]["spec"]);
        let is_in_form = |name: &str| !form["properties"][name].is_null();
        let name = self.kind.entry().key.last().copied().unwrap_or("name");
        let mut metadata = json!({ "name": row[name] });
        let mut status = row.as_object().cloned().unwrap_or_default();
        status.remove(name);
        if !is_in_form("labels")
            && let Some(labels) = status.remove("labels")
            && !is_empty(&labels)
        {
            metadata["labels"] = labels;
        }
        let spec = if let Some(spec) = status.remove("spec") {
            self.value(form, &spec)
        } else {
            status.retain(|name, _| !is_in_form(name));
            self.value(form, row)
        };
        json!({
            "apiVersion": API_VERSION,
            "kind": self.kind.entry().name,
            "metadata": metadata,
            "spec": spec,
            "status": status,
        })
    }

    /// Returns a part of a row in the form of the schema's node.
    fn value(&self, node: &Value, value: &Value) -> Value {
        let (name, node) = self.definition(node);
        if let (Some(show), Some(number)) = (unit(name), value.as_u64()) {
            return show(number).into();
        }
        if let Some(forms) = alternatives(node) {
            let form = forms.iter().find(|form| self.fits(form, value));
            return form.map_or_else(|| value.clone(), |form| self.value(form, value));
        }
        match value {
            Value::Array(items) => items.iter().map(|item| self.value(&node["items"], item)).collect(),
            Value::Object(members) if node["properties"].is_object() => self.object(node, members),
            Value::Object(members) => {
                let of = node["patternProperties"].as_object().and_then(|of| of.values().next());
                let of = of.unwrap_or(&Value::Null);
                members.iter().map(|(name, value)| (name.clone(), self.value(of, value))).collect()
            }
            other => other.clone(),
        }
    }

    /// Returns the members that the form has. Absent values are omitted, and empty ones unless they are required.
    fn object(&self, node: &Value, members: &Map<String, Value>) -> Value {
        let mut members = members.clone();
        for name in FLATTENED {
            if node["properties"][name].is_null()
                && let Some(Value::Object(inner)) = members.remove(name)
            {
                members.extend(inner);
            }
        }
        let mut all = Map::new();
        for (name, of) in node["properties"].as_object().into_iter().flatten() {
            let Some(value) = members.get(name) else { continue };
            // A rule without fields of its own.
            if value.is_object() && has_type(of, "boolean") {
                all.insert(name.clone(), true.into());
                continue;
            }
            let is_required =
                || node["required"].as_array().is_some_and(|names| names.contains(&name.as_str().into()));
            if !is_empty(value) || is_required() {
                all.insert(name.clone(), self.value(of, value));
            }
        }
        all.into()
    }

    /// Whether a value can have the form of the schema's node.
    fn fits(&self, node: &Value, value: &Value) -> bool {
        let (name, node) = self.definition(node);
        if unit(name).is_some() {
            return value.is_number();
        }
        if let Some(forms) = alternatives(node) {
            return forms.iter().any(|form| self.fits(form, value));
        }
        if let Some(only) = node.get("const") {
            return only == value;
        }
        match value {
            Value::Null => has_type(node, "null"),
            Value::Bool(_) => has_type(node, "boolean"),
            Value::Number(_) => has_type(node, "integer") || has_type(node, "number"),
            Value::String(_) => has_type(node, "string"),
            Value::Array(_) => has_type(node, "array"),
            Value::Object(members) => {
                let mut required = node["required"].as_array().into_iter().flatten();
                let is_there = |name: &Value| name.as_str().is_some_and(|name| members.contains_key(name));
                has_type(node, "object") && required.all(is_there)
            }
        }
    }

    /// Follows references. Returns the name of the last definition, empty without one, and its node.
    fn definition<'a>(&'a self, mut node: &'a Value) -> (&'a str, &'a Value) {
        let mut name = "";
        while let Some(of) = node["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
            (name, node) = (of, &self.schema["$defs"][of]);
        }
        (name, node)
    }
}

fn alternatives(node: &Value) -> Option<&Vec<Value>> {
    node["anyOf"].as_array().or_else(|| node["oneOf"].as_array())
}

fn has_type(node: &Value, name: &str) -> bool {
    match &node["type"] {
        Value::Array(types) => types.contains(&name.into()),
        other => *other == name,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

/// Returns the text form of the numbers of a type, if it has one.
fn unit(name: &str) -> Option<fn(u64) -> String> {
    match name {
        "CpuAmount" => Some(show_cpu),
        "MemoryAmount" | "DiskAmount" => Some(bytes),
        "DurationText" => Some(span),
        "MinuteSpan" => Some(|minutes| span(minutes.saturating_mul(60_000))),
        "ClockTime" => Some(|minutes| format!("{:02}:{:02}", minutes / 60, minutes % 60)),
        _ => None,
    }
}

fn yaml(document: &Value) -> Result<String, CliError> {
    serde_saphyr::to_string(document)
        .map_err(|error| CliError::failure(format!("cannot write a manifest: {error}")))
}

/// Returns a text with the lines as comments of YAML.
pub(crate) fn comments(lines: &str) -> String {
    let comments = lines.lines().map(|line| format!("# {}\n", line.replace(char::is_control, " ")));
    comments.collect()
}

#[cfg(test)]
mod tests {
    use chancery_events::event::Event;

    use super::*;

    /// Returns the row of an entity that the intent creates, with its spec.
    fn row(kind: EntityKind, intent: &Value) -> Value {
        let has_spec = matches!(kind, EntityKind::Plan | EntityKind::Policy);
        let mut row = if has_spec { json!({ "spec": intent["spec"] }) } else { intent["spec"].clone() };
        for (name, value) in intent.as_object().expect("an object") {
            if name != "spec" {
                row[name.as_str()] = value.clone();
            }
        }
        row["version"] = 3.into();
        row["message"] = "2 replicas: # \"running\"".into();
        row
    }

    #[test]
    fn the_manifest_of_a_row_gives_its_intent_again() {
        let mut specs = 0;
        for kind in EntityKind::ALL.iter().copied().filter(|kind| kind.entry().manifest.is_some()) {
            let verb = if kind == EntityKind::Deployment { "create" } else { "apply" };
            let path =
                format!("{}/../schemas/samples/{}.{verb}.v1.json", env!("CARGO_MANIFEST_DIR"), kind.word());
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            let writer = RowManifest::of(kind).expect("a kind with a manifest");
            for line in text.lines() {
                let Ok(Event::Intent(event)) = Event::read(line.as_bytes()) else { panic!("{line}") };
                let sample: Value = serde_json::from_str(&event.intent.data_json()).expect("JSON");
                for text in [writer.text(&row(kind, &sample)), writer.desired(&row(kind, &sample))] {
                    let text = text.expect("a manifest");
                    let read = crate::manifest::read("f.yaml", &text);
                    let read = read.unwrap_or_else(|error| panic!("{error}\n{text}"));
                    let mut again: Value = serde_json::from_str(&read[0].intent.data_json()).expect("JSON");
                    // Rows do not have it.
                    if kind == EntityKind::Deployment {
                        again["overlap"] = sample["overlap"].clone();
                    }
                    assert_eq!(again, sample, "{text}");
                    specs += 1;
                }
            }
        }
        assert!(specs >= 12, "{specs}");
    }

    #[test]
    fn every_form_of_a_spec_is_read_as_it_was_written() {
        let plan = "apiVersion: chancery/v1\nkind: Plan\nmetadata: {name: x}\nspec:\n  namespace: n\n  service: s\n  \
                    restart_delay: 1500ms\n  timeouts: {approval: 36h, start: 90s, stop: 0s}\n  \
                    unready: {after: 1d, action: restart}\n  approval: {create: automatic}\n  payloads:\n  - name: \
                    timing\n    resources: {cpu: 1.5, memory: 1.5GiB, disk: 1000001B}\n    ports: [{protocol: TCP, port: \
                    80}]\n    ready: {http: {port: tcp-80, path: /, period: 250ms}}\n    alive: {tcp: {port: tcp-80, \
                    initial_delay: 1m}}\n    volumes: [{class: a, capacity: 1, mount: /d}]\n    run: {argv: [a, '']}\n";
        let policy = |spec: &str| {
            format!("apiVersion: chancery/v1\nkind: Policy\nmetadata: {{name: x}}\nspec: {spec}\n")
        };
        let deployment = |spec: &str| {
            format!(
                "apiVersion: chancery/v1\nkind: Deployment\nmetadata: {{name: x}}\nspec: {{plan: p, count: 0, {spec}}}\n"
            )
        };
        for text in [
            plan.to_owned(),
            policy("{four_eyes: true}"),
            policy("{approve: {}}"),
            policy("{approve: {windows: [{start: '00:05', duration: 7d}]}}"),
            deployment("strategy: rolling"),
            deployment("strategy: {canary: {count: 2}}, coordinates: {timing: {image: 'a:1'}, rule: {}}"),
            deployment("strategy: {blue_green: {timeout: 5m}}, progress_deadline: 1h"),
        ] {
            let read = |text: &str| {
                let read = crate::manifest::read("f.yaml", text);
                read.unwrap_or_else(|error| panic!("{error}\n{text}")).remove(0).intent
            };
            let intent = read(&text);
            let subject = intent.subject().expect("a subject");
            let kind = EntityKind::named(subject.kind()).expect("a kind");
            let sample: Value = serde_json::from_str(&intent.data_json()).expect("JSON");
            let written = RowManifest::of(kind).expect("a manifest").text(&row(kind, &sample)).expect("text");
            assert_eq!(read(&written), intent, "{written}");
        }
    }

    #[test]
    fn durations_are_exact() {
        for (millis, wanted) in
            [(0, "0ms"), (1, "1ms"), (1500, "1500ms"), (90_000, "90s"), (120_000, "2m"), (86_400_000, "1d")]
        {
            assert_eq!(span(millis), wanted);
        }
        assert_eq!([bytes(0), bytes(1 << 40), bytes(1_000_001)], ["0B", "1TiB", "1000001B"]);
    }
}
