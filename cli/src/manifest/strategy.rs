//! Strategy of a deployment in manifests: an object with one of the strategies, or the value `rolling`.

use std::borrow::Cow;
use std::fmt;

use chancery_events::spec::{DeploymentStrategy, TimeoutAction};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::suggest;
use super::units::DurationText;

const WORDS: &[&str] = &["rolling", "blue_green", "canary"];

/// Strategy: `rolling`, `{rolling: {max_parallel: 2}}`, `{blue_green: {timeout: 5m}}` or `{canary: {count: 1}}`.
#[derive(Clone, Copy, Default)]
pub(super) struct StrategyForm(pub(super) DeploymentStrategy);

/// Rolling update: a few replicas at a time, the next ones when those are ready.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RollingForm {
    /// Maximum number of concurrent operations (default: one update at a time; creates,
    /// deletes and other operations without limit).
    #[serde(default)]
    max_parallel: Option<u32>,
    /// Whether concurrent operations must be in one update domain.
    #[serde(default)]
    per_domain: bool,
    /// Delay after each completed operation (default: none).
    #[serde(default)]
    delay: Option<DurationText>,
}

/// Blue-green update: a whole new set alongside the old one; once all are ready, the old ones are deleted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BlueGreenForm {
    /// Maximum time until all new replicas are ready.
    timeout: DurationText,
    /// Action after the timeout (default: `rollback`). `rollback` deletes the new replicas, `cut_over` the
    /// old ones.
    #[serde(default)]
    on_timeout: Option<TimeoutAction>,
}

/// Canary update: some replicas of the new version alongside the old ones, until they are promoted or
/// rolled back.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CanaryForm {
    /// Number of canary replicas.
    count: u32,
}

/// One of the strategies.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
struct StrategyBlock {
    /// Rolling update: a few replicas at a time, the next ones when those are ready.
    #[serde(default)]
    rolling: Option<RollingForm>,
    /// Blue-green update: a whole new set alongside the old one; once all are ready, the old ones are
    /// deleted.
    #[serde(default)]
    blue_green: Option<BlueGreenForm>,
    /// Canary update: some replicas of the new version alongside the old ones, until they are promoted or
    /// rolled back.
    #[serde(default)]
    canary: Option<CanaryForm>,
}

impl StrategyBlock {
    fn strategy(self) -> Option<DeploymentStrategy> {
        match (self.rolling, self.blue_green, self.canary) {
            (Some(RollingForm { max_parallel, per_domain, delay }), None, None) => {
                let delay = delay.map_or(0, |DurationText(millis)| millis);
                Some(DeploymentStrategy::Rolling { max_parallel, per_domain, delay })
            }
            (None, Some(BlueGreenForm { timeout: DurationText(timeout), on_timeout }), None) => {
                let on_timeout = on_timeout.unwrap_or(TimeoutAction::Rollback);
                Some(DeploymentStrategy::BlueGreen { timeout, on_timeout })
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
        f.write_str("rolling, blue_green or canary")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<StrategyForm, E> {
        match word {
            "rolling" => Ok(StrategyForm::default()),
            "blue_green" => Err(E::custom(
                "invalid strategy \"blue_green\": must have a timeout, as {blue_green: {timeout: 5m}}",
            )),
            "canary" => {
                Err(E::custom("invalid strategy \"canary\": must have a count, as {canary: {count: 1}}"))
            }
            other => Err(E::custom(format!("invalid strategy {other:?}{}", suggest::instead(other, WORDS)))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<StrategyForm, A::Error> {
        let block = StrategyBlock::deserialize(MapAccessDeserializer::new(map))?;
        let strategy = block.strategy();
        let fault =
            || A::Error::custom("invalid strategy: must be exactly one of rolling, blue_green, canary");
        strategy.map(StrategyForm).ok_or_else(fault)
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
