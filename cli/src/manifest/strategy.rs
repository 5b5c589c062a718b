//! How a deployment is carried out, as people write it: a block with one of the strategies, or the word `rolling`.

use std::borrow::Cow;
use std::fmt;

use chancery_events::spec::{DeploymentStrategy, TimeoutAction};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::edge::DurationText;
use super::suggest;

const WORDS: &[&str] = &["rolling", "graceful", "canary"];

/// `rolling`, `{rolling: {wave: 2}}`, `{graceful: {timeout: 5m}}` or `{canary: {count: 1}}`.
#[derive(Clone, Copy, Default)]
pub(super) struct StrategyForm(pub(super) DeploymentStrategy);

/// A few at a time, the next ones when those are well.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RollingForm {
    /// So many operations of it may run at once; one of those that update and all others, unless set.
    #[serde(default)]
    wave: Option<u32>,
    /// Whether those that run at once must be in one update domain.
    #[serde(default)]
    per_domain: bool,
    /// After each that is done, how long until the next begins: no time, unless set.
    #[serde(default)]
    pause: Option<DurationText>,
}

/// The whole new set beside the old one; when all are ready, the old ones go.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BlueGreenForm {
    /// How long that may take.
    timeout: DurationText,
    /// What then: the new ones go, unless set.
    #[serde(default)]
    on_timeout: Option<TimeoutAction>,
}

/// Some of the new version beside the old ones, until they are promoted or withdrawn.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CanaryForm {
    /// How many.
    count: u32,
}

/// One of them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
struct StrategyBlock {
    /// A few at a time, the next ones when those are well.
    #[serde(default)]
    rolling: Option<RollingForm>,
    /// The whole new set beside the old one; when all are ready, the old ones go.
    #[serde(default)]
    graceful: Option<BlueGreenForm>,
    /// Some of the new version beside the old ones, until they are promoted or withdrawn.
    #[serde(default)]
    canary: Option<CanaryForm>,
}

impl StrategyBlock {
    fn strategy(self) -> Option<DeploymentStrategy> {
        match (self.rolling, self.graceful, self.canary) {
            (Some(RollingForm { wave, per_domain, pause }), None, None) => {
                Some(DeploymentStrategy::Rolling {
                    wave,
                    per_domain,
                    pause: pause.map_or(0, |DurationText(millis)| millis),
                })
            }
            (None, Some(BlueGreenForm { timeout: DurationText(timeout), on_timeout }), None) => {
                Some(DeploymentStrategy::Graceful {
                    timeout,
                    on_timeout: on_timeout.unwrap_or(TimeoutAction::Rollback),
                })
            }
            (None, None, Some(CanaryForm { count })) => Some(DeploymentStrategy::Canary { count }),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for StrategyForm {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<StrategyForm, D::Error> {
        from.deserialize_any(StrategyVisitor)
    }
}

struct StrategyVisitor;

impl<'de> Visitor<'de> for StrategyVisitor {
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
        let block = StrategyBlock::deserialize(MapAccessDeserializer::new(map))?;
        let strategy = block.strategy();
        strategy.map(StrategyForm).ok_or_else(|| A::Error::custom("write one of rolling, graceful, canary"))
    }
}

impl JsonSchema for StrategyForm {
    fn schema_name() -> Cow<'static, str> {
        "StrategyForm".into()
    }
    fn json_schema(schemas: &mut SchemaGenerator) -> Schema {
        let block = schemas.subschema_for::<StrategyBlock>();
        json_schema!({ "anyOf": [{ "type": "string", "enum": ["rolling"] }, block] })
    }
}
