//! JSON Schemas of the data of every event type, as published.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::body::Body;
use axum::http::Response;
use chancery_events::cloudevent::TYPE_PREFIX;
use chancery_events::fact::Fact;
use chancery_events::intent::Intent;
use chancery_events::observation::Observation;
use serde_json::Value;

use super::middleware::with_type;
use super::problem::{NOT_FOUND, ProblemDetails};

/// Schema of each type, as text.
static SCHEMAS: LazyLock<BTreeMap<&'static str, String>> = LazyLock::new(|| {
    let all = [Intent::schemas(), Observation::schemas(), Fact::schemas()];
    let text = |(name, schema): (&'static str, schemars::Schema)| {
        let mut value = schema.to_value();
        value["$id"] = format!("/v1/schemas/{name}").into();
        (name, pretty(&value))
    };
    all.into_iter().flatten().map(text).collect()
});

/// Returns the text of a schema as it is stored and served.
pub(super) fn pretty(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

/// Returns the schema of the data of each event type, as it is published.
pub fn schemas() -> &'static BTreeMap<&'static str, String> {
    &SCHEMAS
}

/// Answers a request for a schema.
pub(super) fn get(type_name: &str) -> Result<Response<Body>, ProblemDetails> {
    let bare = type_name.strip_prefix(TYPE_PREFIX).unwrap_or(type_name);
    let Some(schema) = SCHEMAS.get(bare) else {
        let shown: String = type_name.chars().take(100).collect();
        return Err(ProblemDetails::new(
            NOT_FOUND,
            format!("cannot find schema: no event has the type {shown:?}"),
        ));
    };
    Ok(with_type("application/schema+json", schema.as_str()))
}
