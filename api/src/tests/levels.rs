//! Each type of event, member and value that is not of level 1 has a level.

use std::collections::BTreeSet;
use std::path::Path;

use chancery_events::fact::Fact;
use chancery_events::intent::Intent;
use chancery_events::level::{ADDITIONS, FleetLevel};
use chancery_events::observation::Observation;
use serde_json::Value;

use crate::schemas::schemas;

/// Collects members and string values of a schema as `POINTER` and `POINTER=VALUE`.
fn collect(root: &Value, schema: &Value, at: &str, refs: &[&str], found: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        // A schema that contains itself has no other members one level deeper.
        if !refs.contains(&reference) {
            let target = root.pointer(reference.trim_start_matches('#')).expect("a definition");
            collect(root, target, at, &[refs, &[reference]].concat(), found);
        }
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}/{name}");
        found.insert(at.clone());
        collect(root, member, &at, refs, found);
    }
    for elements in ["items", "additionalProperties"] {
        if schema[elements].is_object() {
            collect(root, &schema[elements], &format!("{at}/*"), refs, found);
        }
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        for schema in schema[choice].as_array().into_iter().flatten() {
            collect(root, schema, at, refs, found);
        }
    }
    let values = schema["enum"].as_array().into_iter().flatten().chain([&schema["const"]]);
    found.extend(values.filter_map(Value::as_str).map(|value| format!("{at}={value}")));
}

/// Returns every member and value of each event, without those that have a level above 1.
fn of_level_1() -> BTreeSet<String> {
    let types = [Intent::TYPES, Observation::TYPES, Fact::TYPES].concat();
    let levels = [Intent::LEVELS, Observation::LEVELS, Fact::LEVELS].concat();
    let mut all = BTreeSet::new();
    for (type_name, _) in types.iter().zip(levels).filter(|(_, level)| *level == 1) {
        let schema: Value = serde_json::from_str(&schemas()[type_name]).expect("JSON");
        let mut found = BTreeSet::from([String::new()]);
        collect(&schema, &schema, "", &[], &mut found);
        for addition in ADDITIONS.iter().filter(|addition| addition.type_name == *type_name) {
            let named = addition
                .value
                .map_or(addition.member.to_owned(), |value| format!("{}={value}", addition.member));
            let is_part = |found: &&String| {
                found.strip_prefix(&named).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '=']))
            };
            let parts: Vec<_> = found.iter().filter(is_part).cloned().collect();
            assert!(!parts.is_empty(), "{type_name} has no {named}");
            found.retain(|found| !parts.contains(found));
        }
        all.extend(found.into_iter().map(|found| format!("{type_name} {found}").trim_end().to_owned()));
    }
    all
}

#[test]
fn each_addition_to_the_events_of_level_1_has_a_level() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/level-1.txt");
    let now = of_level_1();
    // Once a level follows, the list is final.
    if std::env::var_os("UPDATE").is_some() && FleetLevel::HIGHEST.is_first() {
        let text = now.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        std::fs::write(&path, text + "\n").expect("written");
    }
    let stored = std::fs::read_to_string(&path).expect("the list");
    let stored: BTreeSet<_> = stored.lines().map(str::to_owned).collect();
    let added: Vec<_> = now.difference(&stored).collect();
    assert!(added.is_empty(), "these need a level (see CONTRIBUTING.md): {added:#?}");
    let removed: Vec<_> = stored.difference(&now).collect();
    assert!(removed.is_empty(), "events of level 1 have lost: {removed:#?}");
}
