//! Published files in `schemas/`: the description of the API, and the schema and samples of each event.
//!
//! `UPDATE=1` writes changed files, unless the change would break clients: then the type needs a new version.

use std::fs;
use std::path::{Path, PathBuf};

use chancery_events::event::{Event, EventLine, FoldableEvent};
use serde_json::Value;

use super::world::World;
use crate::problem::KINDS;
use crate::schemas::{breaks, pretty, schemas};
use crate::{openapi, wanted};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas")
}

fn stored(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Compares the file, or writes it.
fn keep(path: &Path, text: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("written");
    }
    let found = stored(path).unwrap_or_default();
    assert!(found == text, "{} is not what this build publishes: run the test with UPDATE=1", path.display());
}

#[test]
fn the_description_of_the_api_is_stored() {
    keep(&folder().join("openapi.json"), &pretty(&openapi()));
}

#[test]
fn every_reference_in_the_description_leads_somewhere() {
    let api = openapi();
    let text = api.to_string();
    for part in text.split("\"$ref\":\"#").skip(1) {
        let pointer = part.split('"').next().expect("an end");
        assert!(api.pointer(pointer).is_some(), "{pointer}");
    }
    assert!(text.contains("\"NodeApplyV1\"") && !text.contains("$defs"));
}

#[test]
fn the_schemas_of_events_are_stored_and_stay_compatible() {
    for (type_name, text) in schemas() {
        let path = folder().join(format!("events/{type_name}.json"));
        if let Some(old) = stored(&path) {
            let (old, new): (Value, Value) =
                (serde_json::from_str(&old).expect("JSON"), serde_json::from_str(text).expect("JSON"));
            let found = breaks(&old, &new);
            assert!(
                found.is_empty(),
                "{type_name} has changed incompatibly and needs a new version: {found:#?}"
            );
        }
        keep(&path, text);
    }
    for entry in fs::read_dir(folder().join("events")).expect("the directory") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        let type_name = name.strip_suffix(".json").expect("a JSON file");
        assert!(
            schemas().contains_key(type_name),
            "{type_name} was published, and this build does not know it"
        );
    }
}

/// Types whose data contains an extended spec. Their first samples are still read, and are written with the
/// added fields.
const SAY_MORE: &[&str] = &[
    "plan.apply.v1",
    "plan.applied.v1",
    "deployment.create.v1",
    "deployment.created.v1",
    "request.opened.v1",
];

/// Returns the samples of a type, oldest first: `TYPE.json`, then `TYPE.2.json` and so on for added fields.
fn lines(type_name: &str) -> Vec<String> {
    let more = (2..).map(|number| format!("samples/{type_name}.{number}.json"));
    let names = std::iter::once(format!("samples/{type_name}.json")).chain(more);
    names.map_while(|name| stored(&folder().join(name))).collect()
}

#[test]
fn a_line_of_every_type_is_read_by_this_build_and_written_as_it_was() {
    let mut count = 0;
    for type_name in wanted::types() {
        let lines = lines(type_name);
        count += lines.len();
        for (index, line) in lines.iter().enumerate() {
            let line = line.trim_end();
            assert_eq!(EventLine::read(line.as_bytes()).expect("a line").type_name, type_name);
            let event = Event::read(line.as_bytes()).unwrap_or_else(|error| panic!("{type_name}: {error:?}"));
            let told =
                FoldableEvent::read(line.as_bytes()).unwrap_or_else(|error| panic!("{type_name}: {error:?}"));
            let fact = if let Event::Fact { fact, .. } = &event {
                FoldableEvent::Fact(fact.clone())
            } else {
                FoldableEvent::NoChange
            };
            assert_eq!(told, fact, "{type_name}");
            let written = String::from_utf8(event.line()).expect("text");
            if index + 1 < lines.len() && SAY_MORE.contains(&type_name) {
                let [old, new] = [line, &written].map(|text| serde_json::from_str(text).expect("JSON"));
                assert!(holds(&new, &old), "{type_name} lost something: {old} is now {new}");
                assert_eq!(Event::read(written.as_bytes()).expect("a line"), event);
            } else {
                assert_eq!(written, line);
            }
        }
        assert!(!lines.is_empty(), "there is no sample of {type_name}");
    }
    let stored = fs::read_dir(folder().join("samples")).expect("the directory").count();
    assert_eq!(stored, count, "a sample has an unknown type, or a number before it is missing");
}

/// Whether the new value contains everything in the old one.
fn holds(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            old.iter().all(|(name, old)| new.get(name).is_some_and(|new| holds(new, old)))
        }
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| holds(new, old))
        }
        (new, old) => new == old,
    }
}

#[tokio::test]
async fn both_are_served() {
    let world = World::new();
    let api = world.get("//v1/openapi.json").await;
    assert_eq!((api.status.as_u16(), &api.json()["openapi"]), (200, &"3.1.0".into()));
    for name in ["replica.created.v1", "chancery.replica.created.v1"] {
        let schema = world.get(&format!("//v1/schemas/{name}")).await;
        assert_eq!(schema.json()["$id"], "/v1/schemas/replica.created.v1");
    }
}

#[tokio::test]
async fn every_code_is_described_where_the_type_of_its_problems_leads() {
    let world = World::new();
    for kind in KINDS {
        let entry = world.get(&format!("/{}", kind.path())).await;
        assert_eq!(entry.status, 200, "{kind:?}");
        assert_eq!(entry.header("content-type"), "text/markdown; charset=utf-8");
        let text = std::str::from_utf8(&entry.body).expect("text");
        assert!(text.starts_with(&format!("## `{}`\n", kind.code)), "{text}");
        for part in [kind.status.to_string().as_str(), kind.meaning, kind.remedy] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[tokio::test]
async fn the_type_of_a_problem_resolves() {
    let world = World::new();
    for path in ["//nowhere", "//errors/unheard_of", "/nodes?limit=0"] {
        let problem = world.get(path).await;
        let (_, code, _) = problem.problem();
        let problem_type = problem.json()["type"].as_str().expect("a type").to_owned();
        let entry = world.get(&format!("/{problem_type}")).await;
        assert_eq!(entry.status, 200, "{path}");
        assert!(entry.body.starts_with(format!("## `{code}`").as_bytes()), "{path}");
    }
}
