//! JSON Schemas of manifests, for editors.

use schemars::{JsonSchema, Schema, schema_for};
use serde_json::json;

use super::{API_VERSION, ManifestForm};

/// Returns the kind with the schema of its manifest.
pub(super) fn schema<N: JsonSchema, S: JsonSchema>(kind: &'static str) -> (&'static str, Schema) {
    let mut schema = schema_for!(ManifestForm<N, S>);
    schema.insert("title".into(), json!(format!("Chancery manifest: {kind}")));
    // Reading a form ignores these fields, but they distinguish the kinds in an editor.
    if let Some(properties) = schema.get_mut("properties").and_then(|p| p.as_object_mut()) {
        properties["apiVersion"]["const"] = API_VERSION.into();
        properties["kind"]["const"] = kind.into();
    }
    schema.insert("required".into(), json!(["apiVersion", "kind", "metadata", "spec"]));
    (kind, schema)
}
