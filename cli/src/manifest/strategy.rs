//! How a deployment is carried out, as people write it: a block with one of the strategies, or the word `rolling`.

use std::borrow::Cow;
use std::fmt;

use chancery_events::spec::{OnTimeout, Strategy};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::edge::Span;
use super::suggest;

const WORDS: &[&str] = &["rolling", "graceful", "canary"];

/// `rolling`, `{rolling: {wave: 2}}`, `{graceful: {timeout: 5m}}` or `{canary: {count: 1}}`.
#[derive(Clone, Copy, Default)]
pub(super) struct StrategyForm(pub(super) Strategy);

/// A few at a time, the next ones when those are well.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rolling {
    /// So many operations of it may run at once; one of those that update and all others, unless set.
    #[serde(default)]
    wave: Option<u32>,
    /// Whether those that run at once must be in one update domain.
    #[serde(default)]
    per_domain: bool,
    /// After each that is done, how long until the next begins: no time, unless set.
    #[serde(default)]
    pause: Option<Span>,
}

/// The whole new set beside the old one; when all are ready, the old ones go.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Graceful {
    /// How long that may take.
    timeout: Span,
    /// What then: the new ones go, unless set.
    #[serde(default)]
    on_timeout: Option<OnTimeout>,
}

/// Some of the new version beside the old ones, until they are promoted or withdrawn.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Canary {
    /// How many.
    count: u32,
}

/// One of them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
struct Block {
    /// A few at a time, the next ones when those are well.
    #[serde(default)]
    rolling: Option<Rolling>,
    /// The whole new set beside the old one; when all are ready, the old ones go.
    #[serde(default)]
    graceful: Option<Graceful>,
    /// Some of the new version beside the old ones, until they are promoted or withdrawn.
    #[serde(default)]
    canary: Option<Canary>,
}

impl Block {
    fn strategy(self) -> Option<Strategy> {
        match (self.rolling, self.graceful, self.canary) {
            (Some(Rolling { wave, per_domain, pause }), None, None) => {
                Some(Strategy::Rolling { wave, per_domain, pause: pause.map_or(0, |Span(millis)| millis) })
            }
            (None, Some(Graceful { timeout: Span(timeout), on_timeout }), None) => {
                Some(Strategy::Graceful { timeout, on_timeout: on_timeout.unwrap_or(OnTimeout::Rollback) })
            }
            (None, None, Some(Canary { count })) => Some(Strategy::Canary { count }),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for StrategyForm {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<StrategyForm, D::Error> {
        from.deserialize_any(Visit)
    }
}

struct Visit;

impl<'de> Visitor<'de> for Visit {
    type Value = StrategyForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rolling, graceful or canary")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<StrategyForm, E> {
        match word {
            "rolling" => Ok(StrategyForm::default()),
            "graceful" => Err(E::custom("say how long it may take: {graceful: {timeout: 5m}}")),
            "canary" => Err(E::custom("say how many: {canary: {count: 1}}")),
            other => Err(E::custom(format!("unknown strategy {other:?}{}", suggest::instead(other, WORDS)))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<StrategyForm, A::Error> {
        let block = Block::deserialize(MapAccessDeserializer::new(map))?;
        let strategy = block.strategy();
        strategy.map(StrategyForm).ok_or_else(|| A::Error::custom("write one of rolling, graceful, canary"))
    }
}

impl JsonSchema for StrategyForm {
    fn schema_name() -> Cow<'static, str> {
        "StrategyForm".into()
    }
    fn json_schema(schemas: &mut SchemaGenerator) -> Schema {
        let block = schemas.subschema_for::<Block>();
        json_schema!({ "anyOf": [{ "type": "string", "enum": ["rolling"] }, block] })
    }
}
