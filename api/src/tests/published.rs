//! Published files in `schemas/`: the description of the API, and the schema and samples of each event.
//!
//! `UPDATE=1` writes changed files, unless the change would break clients: then the type needs a new version.

use std::fs;
use std::path::{Path, PathBuf};

use chancery_events::event::{Event, EventLine, FoldableEvent};
use serde_json::Value;

use super::schema_comparison::breaks;
use super::world::ServedFleet;
use crate::problem::KINDS;
use crate::schemas::{pretty, schemas};
use crate::{event_filter, openapi};

fn directory() -> PathBuf {
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
    keep(&directory().join("openapi.json"), &pretty(&openapi()));
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
        let path = directory().join(format!("events/{type_name}.json"));
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
    for entry in fs::read_dir(directory().join("events")).expect("the directory") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        let type_name = name.strip_suffix(".json").expect("a JSON file");
        assert!(
            schemas().contains_key(type_name),
            "{type_name} was published, and this build does not know it"
        );
    }
}

#[test]
fn a_line_of_every_type_is_read_by_this_build_and_written_as_it_was() {
    let types: Vec<_> = event_filter::types().collect();
    for &type_name in &types {
        let line = stored(&directory().join(format!("samples/{type_name}.json")));
        let line = line.unwrap_or_else(|| panic!("there is no sample of {type_name}"));
        let line = line.trim_end();
        let event_line = EventLine::read(line.as_bytes()).expect("a line");
        assert_eq!(event_line.type_name, type_name);
        let data: Value = serde_json::from_str(event_line.data.get()).expect("JSON");
        let schema: Value = serde_json::from_str(&schemas()[type_name]).expect("JSON");
        for property in schema["properties"].as_object().into_iter().flat_map(|all| all.keys()) {
            assert!(data.get(property).is_some(), "the sample of {type_name} has no {property}");
        }
        let event = Event::read(line.as_bytes()).unwrap_or_else(|error| panic!("{type_name}: {error:?}"));
        let foldable =
            FoldableEvent::read(line.as_bytes()).unwrap_or_else(|error| panic!("{type_name}: {error:?}"));
        let fact = if let Event::Fact { fact, .. } = &event {
            FoldableEvent::Fact(fact.clone())
        } else {
            FoldableEvent::NoChange(event.type_name())
        };
        assert_eq!(foldable, fact, "{type_name}");
        assert_eq!(str::from_utf8(&event.line()), Ok(line));
    }
    let stored = fs::read_dir(directory().join("samples")).expect("the directory").count();
    assert_eq!(stored, types.len(), "a sample has an unknown type");
}

#[tokio::test]
async fn both_are_served() {
    let world = ServedFleet::new();
    let api = world.get("//v1/openapi.json").await;
    assert_eq!((api.status.as_u16(), &api.json()["openapi"]), (200, &"3.1.0".into()));
    for name in ["replica.created.v1", "dev.chancery.replica.created.v1"] {
        let schema = world.get(&format!("//v1/schemas/{name}")).await;
        assert_eq!(schema.json()["$id"], "/v1/schemas/replica.created.v1");
    }
}

#[tokio::test]
async fn every_code_is_described_where_the_type_of_its_problems_leads() {
    let world = ServedFleet::new();
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
    let world = ServedFleet::new();
    for path in ["//nowhere", "//errors/unheard_of", "/nodes?limit=0"] {
        let problem = world.get(path).await;
        let (_, code, _) = problem.problem();
        let problem_type = problem.json()["type"].as_str().expect("a type").to_owned();
        let entry = world.get(&format!("/{problem_type}")).await;
        assert_eq!(entry.status, 200, "{path}");
        assert!(entry.body.starts_with(format!("## `{code}`").as_bytes()), "{path}");
    }
}
