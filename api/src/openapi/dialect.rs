//! Form of schemas that generators of clients know. The schemas of events keep the form in which they are published.
//!
//! | generated | here |
//! |---|---|
//! | `oneOf` of constants | `enum`; the description lists the meaning of each value |
//! | `format` of unsigned integers | `int64` with the bounds of the type |
//! | `patternProperties` that are all properties | `additionalProperties`, with the pattern of their names |
//! | `title` with the name of a type | none: the name of the component is enough |
//! | `default` alongside `$ref`, or null | none: generators cannot read them |
//! | `true` | `{}` |
//! | object within an alternative | component of its own |
//! | links to Rust items, and line breaks of comments, in descriptions | plain text |

use serde_json::{Map, Value, json};

/// Changes every schema of a description.
pub(super) fn apply(description: &mut Value) {
    each_schema(description);
    if let Some(Value::Object(components)) = description.pointer_mut("/components/schemas") {
        lift(components);
    }
}

/// Makes a component of each object that is the only member of an alternative.
fn lift(components: &mut Map<String, Value>) {
    let mut lifted = Map::new();
    for (of, component) in components.iter_mut() {
        let alternatives = component.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten();
        for members in alternatives.filter_map(|one| one.get_mut("properties")?.as_object_mut()) {
            for (member, part) in members.iter_mut().filter(|(_, part)| part.get("properties").is_some()) {
                let name = format!("{of}{}", super::pascal(member));
                let reference = super::named(&name);
                lifted.insert(name, std::mem::replace(part, reference));
            }
        }
    }
    components.append(&mut lifted);
}

fn each_schema(description: &mut Value) {
    match description {
        Value::Object(members) => {
            for (name, part) in members {
                match (name.as_str(), part) {
                    ("schema", part) => schema(part),
                    ("schemas", Value::Object(all)) => all.values_mut().for_each(schema),
                    (_, part) => each_schema(part),
                }
            }
        }
        Value::Array(parts) => parts.iter_mut().for_each(each_schema),
        _ => {}
    }
}

fn schema(value: &mut Value) {
    if *value == Value::Bool(true) {
        *value = json!({});
    }
    let Value::Object(schema) = value else { return };
    schema.remove("title");
    if schema.contains_key("$ref") || schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    constants(schema);
    bounds(schema);
    names(schema);
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = plain(text);
    }
    for (name, part) in schema {
        match (name.as_str(), part) {
            ("properties", Value::Object(all)) => all.values_mut().for_each(self::schema),
            ("oneOf" | "anyOf" | "allOf" | "prefixItems", Value::Array(all)) => {
                all.iter_mut().for_each(self::schema);
            }
            ("items" | "not", part) => self::schema(part),
            // Here generators know true and false.
            ("additionalProperties", part @ Value::Object(_)) => self::schema(part),
            _ => {}
        }
    }
}

/// Replaces constants by enumerations, and several alternatives that are constants by one.
fn constants(schema: &mut Map<String, Value>) {
    if let Some(value) = schema.remove("const") {
        schema.insert("enum".into(), json!([value]));
    }
    let Some(Value::Array(all)) = schema.remove("oneOf") else { return };
    let (words, mut others): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.get("const").is_some());
    if words.is_empty() {
        schema.insert("oneOf".into(), others.into());
        return;
    }
    let meaning = |one: &Value| {
        let text = one.get("description").and_then(Value::as_str).map(plain)?;
        Some(format!("- `{}`: {text}", one["const"].as_str()?))
    };
    let meanings: Vec<_> = words.iter().filter_map(meaning).collect();
    let values: Vec<_> = words.iter().map(|one| one["const"].clone()).collect();
    let about = schema.get("description").and_then(Value::as_str).map(plain).unwrap_or_default();
    if others.is_empty() {
        schema.insert("type".into(), "string".into());
        schema.insert("enum".into(), values.into());
        schema.insert("description".into(), format!("{about}\n\n{}", meanings.join("\n")).into());
        return;
    }
    let words = json!({"type": "string", "enum": values, "description": meanings.join("\n")});
    others.push(words);
    schema.insert("oneOf".into(), others.into());
}

/// Replaces the format of an unsigned integer by the bounds of its type.
fn bounds(schema: &mut Map<String, Value>) {
    let most = match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => i64::from(u8::MAX),
        Some("uint16") => i64::from(u16::MAX),
        Some("uint32") => i64::from(u32::MAX),
        Some("uint64" | "uint") => i64::MAX,
        _ => return,
    };
    schema.insert("format".into(), "int64".into());
    schema.entry("minimum").or_insert_with(|| 0.into());
    schema.entry("maximum").or_insert_with(|| most.into());
}

/// Replaces a pattern of all names by that of `propertyNames`.
fn names(schema: &mut Map<String, Value>) {
    let Some(Value::Object(patterns)) = schema.remove("patternProperties") else { return };
    let mut patterns = patterns.into_iter();
    if let (Some((pattern, of_each)), None) = (patterns.next(), patterns.next()) {
        schema.insert("propertyNames".into(), json!({"type": "string", "pattern": pattern}));
        schema.insert("additionalProperties".into(), of_each);
    }
}

/// Returns a text without links to Rust items. Line breaks remain only between paragraphs and items of lists.
fn plain(text: &str) -> String {
    let text = text.replace("[`", "`").replace("`]", "`");
    let mut lines = text.lines();
    let mut joined = lines.next().unwrap_or_default().to_owned();
    let mut was_empty = false;
    for line in lines {
        let is_new = line.is_empty() || was_empty || line.starts_with("- ");
        was_empty = line.is_empty();
        joined.push(if is_new { '\n' } else { ' ' });
        joined.push_str(line);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_have_the_form_that_generators_know() {
        let (word, other) =
            (json!({"const": "a", "description": "First\nof all."}), json!({"type": "object"}));
        for (generated, here) in [
            (json!({"title": "T", "type": "string"}), json!({"type": "string"})),
            (
                json!({"properties": {"title": {"title": "T"}}, "default": null}),
                json!({"properties": {"title": {}}}),
            ),
            (json!({"items": true}), json!({"items": {}})),
            (json!({"$ref": "#/x", "default": {"a": 1}}), json!({"$ref": "#/x"})),
            (
                json!({"description": "Word of [`X`].", "oneOf": [word.clone()]}),
                json!({"type": "string", "enum": ["a"], "description": "Word of `X`.\n\n- `a`: First of all."}),
            ),
            (
                json!({"oneOf": [word, other.clone()]}),
                json!({"oneOf": [other, {"type": "string", "enum": ["a"], "description": "- `a`: First of all."}]}),
            ),
            (
                json!({"type": ["integer", "null"], "format": "uint16", "minimum": 1}),
                json!({"type": ["integer", "null"], "format": "int64", "minimum": 1, "maximum": 65535}),
            ),
            (
                json!({"items": {"type": "integer", "format": "uint64"}}),
                json!({"items": {"type": "integer", "format": "int64", "minimum": 0, "maximum": i64::MAX}}),
            ),
            (
                json!({"additionalProperties": false, "patternProperties": {"^a$": {"title": "T"}}}),
                json!({"additionalProperties": {}, "propertyNames": {"type": "string", "pattern": "^a$"}}),
            ),
        ] {
            let mut document = json!({"paths": [{"schema": generated}]});
            apply(&mut document);
            assert_eq!(document["paths"][0]["schema"], here);
        }
    }

    #[test]
    fn an_object_within_an_alternative_is_a_component() {
        let inner = json!({"type": "object", "properties": {"port": {"type": "string"}}});
        let mut document =
            json!({"components": {"schemas": {"Probe": {"oneOf": [{"properties": {"tcp_port": inner}}]}}}});
        apply(&mut document);
        let components = &document["components"]["schemas"];
        assert_eq!(components["ProbeTcpPort"], inner);
        assert_eq!(
            components["Probe"]["oneOf"][0]["properties"]["tcp_port"],
            super::super::named("ProbeTcpPort")
        );
    }

    #[test]
    fn paragraphs_and_lists_keep_their_lines() {
        assert_eq!(
            plain("One\ntwo.\n\nThree:\n- four\n- five\nsix"),
            "One two.\n\nThree:\n- four\n- five six"
        );
    }
}
