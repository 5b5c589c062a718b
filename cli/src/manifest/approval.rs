//! Approval policy in manifests: one value for every kind of operation, or one for each.

use std::borrow::Cow;
use std::fmt;

use chancery_events::spec::{ApprovalMode, ApprovalPolicy};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Approval: `manual`, `automatic`, or `{create: automatic, delete: manual}`.
#[derive(Clone, Copy)]
pub(super) struct ApprovalForm(pub(super) ApprovalPolicy);

impl<'de> Deserialize<'de> for ApprovalForm {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ApprovalForm, D::Error> {
        from.deserialize_any(ApprovalVisitor)
    }
}

struct ApprovalVisitor;

impl<'de> Visitor<'de> for ApprovalVisitor {
    type Value = ApprovalForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("manual, automatic, or one of them for each kind of operation")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<ApprovalForm, E> {
        let approval = ApprovalMode::deserialize(StrDeserializer::<E>::new(word))?;
        Ok(ApprovalForm(ApprovalPolicy::all(approval)))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ApprovalForm, A::Error> {
        ApprovalPolicy::deserialize(MapAccessDeserializer::new(map)).map(ApprovalForm)
    }
}

impl JsonSchema for ApprovalForm {
    fn schema_name() -> Cow<'static, str> {
        "ApprovalForm".into()
    }
    fn json_schema(schemas: &mut SchemaGenerator) -> Schema {
        let all = schemas.subschema_for::<ApprovalMode>();
        let each = schemas.subschema_for::<ApprovalPolicy>();
        json_schema!({ "anyOf": [all, each] })
    }
}
