//! Comparison of two schemas of one event type: whether the new one accepts all data of the old one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// Returns the reasons why data that fits the old schema can be invalid for the new schema, each with its
/// location. The comparison is structural: a change that it does not understand counts as a break.
pub(super) fn breaks(old: &Value, new: &Value) -> Vec<String> {
    let mut compare = SchemaComparison { old, new, found: Vec::new(), done: BTreeSet::new() };
    compare.node(old, new, "");
    compare.found
}

struct SchemaComparison<'a> {
    old: &'a Value,
    new: &'a Value,
    found: Vec<String>,
    /// Pairs of references that have been followed: schemas may refer to themselves.
    done: BTreeSet<(String, String)>,
}

/// Keywords that do not constrain data.
const PROSE: &[&str] = &["$schema", "$id", "$defs", "title", "description", "examples", "default"];
/// Keywords that are compared.
const KNOWN: &[&str] =
    &["$ref", "type", "enum", "properties", "required", "items", "additionalProperties", "anyOf", "oneOf"];

impl<'a> SchemaComparison<'a> {
    fn node(&mut self, old: &'a Value, new: &'a Value, at: &str) {
        if let (Some(old_ref), Some(new_ref)) = (old["$ref"].as_str(), new["$ref"].as_str())
            && !self.done.insert((old_ref.to_owned(), new_ref.to_owned()))
        {
            return;
        }
        let (old, new) = (follow(self.old, old), follow(self.new, new));
        if old == new && !has_ref(old) {
            return;
        }
        self.types(old, new, at);
        self.properties(old, new, at);
        self.lists(old, new, at);
        for word in ["items", "additionalProperties"] {
            match (&old[word], &new[word]) {
                (Value::Object(_), Value::Object(_)) => {
                    self.node(&old[word], &new[word], &format!("{at}/{word}"));
                }
                (same, other) if same == other => {}
                // Members that were refused may be accepted now, but not vice versa.
                (Value::Bool(false), _) | (_, Value::Null | Value::Bool(true)) => {}
                _ => self.found.push(format!("{at}: {word} became narrower")),
            }
        }
        let (old, new) = (words(old), words(new));
        for word in old.keys().chain(new.keys()).filter(|word| !PROSE.contains(word) && !KNOWN.contains(word))
        {
            if old.get(word) != new.get(word) {
                self.found.push(format!("{at}: {word} changed"));
            }
        }
    }

    fn types(&mut self, old: &Value, new: &Value, at: &str) {
        let (was, is) = (strings(&old["type"]), strings(&new["type"]));
        if !is.is_empty() && (was.is_empty() || !was.is_subset(&is)) {
            self.found.push(format!("{at}: type {was:?} became {is:?}"));
        }
        if let Some(values) = new["enum"].as_array() {
            let was = old["enum"].as_array().cloned().unwrap_or_else(|| vec![Value::Null]);
            for value in was.iter().filter(|value| !values.contains(value)) {
                self.found.push(format!("{at}: {value} is no longer allowed"));
            }
        }
    }

    fn properties(&mut self, old: &'a Value, new: &'a Value, at: &str) {
        for (name, schema) in old["properties"].as_object().into_iter().flatten() {
            if let Some(other) = new["properties"].get(name) {
                self.node(schema, other, &format!("{at}/{name}"));
            } else {
                self.found.push(format!("{at}/{name}: removed"));
            }
        }
        let (was, is) = (strings(&old["required"]), strings(&new["required"]));
        for name in is.difference(&was) {
            self.found.push(format!("{at}/{name}: newly required"));
        }
        // Readers of written data may rely on the member.
        for name in was.difference(&is) {
            self.found.push(format!("{at}/{name}: no longer always there"));
        }
    }

    /// Checks that each old branch still fits one of the new branches.
    fn lists(&mut self, old: &'a Value, new: &'a Value, at: &str) {
        for word in ["anyOf", "oneOf"] {
            let (Some(was), is) = (old[word].as_array(), new[word].as_array()) else {
                if new[word].is_array() {
                    self.found.push(format!("{at}: {word} is new"));
                }
                continue;
            };
            for (index, branch) in was.iter().enumerate() {
                let fits = is.is_some_and(|is| {
                    is.iter().any(|other| {
                        let mut inner = SchemaComparison {
                            old: self.old,
                            new: self.new,
                            found: Vec::new(),
                            done: self.done.clone(),
                        };
                        inner.node(branch, other, at);
                        inner.found.is_empty()
                    })
                });
                if !fits {
                    self.found.push(format!("{at}: {word} {index} fits none of the new ones"));
                }
            }
        }
    }
}

fn words(schema: &Value) -> BTreeMap<&str, &Value> {
    schema.as_object().into_iter().flatten().map(|(word, value)| (word.as_str(), value)).collect()
}

fn follow<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let place = schema["$ref"].as_str().and_then(|place| place.strip_prefix('#'));
    place.and_then(|place| root.pointer(place)).unwrap_or(schema)
}

fn has_ref(schema: &Value) -> bool {
    schema.to_string().contains("\"$ref\"")
}

fn strings(value: &Value) -> BTreeSet<&str> {
    match value {
        Value::String(text) => BTreeSet::from([text.as_str()]),
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => BTreeSet::new(),
    }
}

#[test]
fn a_change_that_old_data_does_not_survive_is_reported() {
    let old = json!({
        "type": "object", "additionalProperties": false, "required": ["a"],
        "properties": {
            "a": {"$ref": "#/$defs/Word"}, "b": {"type": ["integer", "null"], "minimum": 0},
            "c": {"type": "array", "items": {"oneOf": [{"const": 1}, {"type": "object", "properties": {"x": {"type": "string"}}}]}},
        },
        "$defs": {"Word": {"type": "string", "enum": ["x", "y"]}},
    });
    assert!(breaks(&old, &old).is_empty());
    let changed = |pointer: &str, value: Value| {
        let mut new = old.clone();
        *new.pointer_mut(pointer).expect(pointer) = value;
        breaks(&old, &new)
    };
    for (pointer, value, reported) in [
        ("/properties", json!({}), "/a: removed"),
        ("/properties/a", json!({"type": "integer"}), "/a: type"),
        ("/properties/b/type", json!("integer"), "/b: type"),
        ("/properties/b/minimum", json!(1), "/b: minimum changed"),
        ("/required", json!(["a", "b"]), "/b: newly required"),
        ("/required", json!([]), "/a: no longer always there"),
        ("/$defs/Word/enum", json!(["x"]), "/a: \"y\" is no longer allowed"),
        ("/properties/c/items/oneOf", json!([{"const": 1}]), "/c/items: oneOf 1 fits none"),
        ("/properties/c/items/oneOf/1/properties", json!({}), "/c/items: oneOf 1 fits none"),
    ] {
        let found = changed(pointer, value);
        assert!(found.iter().any(|what| what.starts_with(reported)), "{pointer}: {found:?}");
    }
    for (pointer, value) in [
        ("/$defs/Word/enum", json!(["x", "y", "z"])),
        ("/additionalProperties", json!(true)),
        ("/properties/b/type", json!(["integer", "null", "string"])),
        ("/properties/a", json!({"$ref": "#/$defs/Word", "description": "better words"})),
    ] {
        assert_eq!(changed(pointer, value), Vec::<String>::new(), "{pointer}");
    }
    let mut more = old.clone();
    more["properties"]["d"] = json!({"type": "string"});
    assert!(breaks(&old, &more).is_empty());
}
