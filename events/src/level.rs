//! Levels: each type of event, and each member or value that was added to a type later, has a level.
//!
//! A fleet has a level, too. Its decider writes no event of a higher level, so that servers of an older build can fold
//! everything until an operator raises the level of the fleet (`fleet.raise`). Everything of the first version has level 1.
//!
//! | addition | where its level is declared |
//! |---|---|
//! | type of an intent, observation or fact | `since LEVEL` in its entry in the register |
//! | member of an existing type, or value of a member | entry in [`ADDITIONS`] |

use std::fmt;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fact::Fact;
use crate::intent::Intent;
use crate::observation::Observation;

/// Level of a fleet or of an event: an integer from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct FleetLevel(NonZeroU32);

impl FleetLevel {
    /// Level of the first version.
    pub const FIRST: FleetLevel = FleetLevel(NonZeroU32::MIN);

    /// Highest level that this build knows.
    pub const HIGHEST: FleetLevel = highest();

    /// Returns the level with this number, or the first level for 0.
    pub const fn new(number: u32) -> FleetLevel {
        match NonZeroU32::new(number) {
            Some(number) => FleetLevel(number),
            None => FleetLevel::FIRST,
        }
    }

    /// Returns the number of the level.
    pub const fn number(self) -> u32 {
        self.0.get()
    }

    /// Whether this is the level of the first version.
    pub fn is_first(&self) -> bool {
        *self == FleetLevel::FIRST
    }
}

impl Default for FleetLevel {
    fn default() -> FleetLevel {
        FleetLevel::FIRST
    }
}

impl fmt::Display for FleetLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Member of an event's data that was added after its type, or a value that a member did not have before.
#[derive(Clone, Copy, Debug)]
pub struct LevelAddition {
    /// Type of the event, with its version.
    pub type_name: &'static str,
    /// JSON Pointer to the member. `*` matches each element of an array, and each member of an object.
    pub member: &'static str,
    /// Value of the member; any value but null if absent.
    pub value: Option<&'static str>,
    /// Level of the addition.
    pub level: u32,
}

/// Members and values that were added after level 1.
pub const ADDITIONS: &[LevelAddition] = &[];

const fn highest() -> FleetLevel {
    let mut level = 1;
    let registers = [Intent::LEVELS, Observation::LEVELS, Fact::LEVELS];
    let mut register = 0;
    while register < registers.len() {
        let mut of = 0;
        while of < registers[register].len() {
            if registers[register][of] > level {
                level = registers[register][of];
            }
            of += 1;
        }
        register += 1;
    }
    let mut addition = 0;
    while addition < ADDITIONS.len() {
        if ADDITIONS[addition].level > level {
            level = ADDITIONS[addition].level;
        }
        addition += 1;
    }
    FleetLevel::new(level)
}

/// Returns the level of data: that of its type, or of the highest addition that it has.
pub(crate) fn level_of(
    additions: &[LevelAddition],
    (type_name, level): (&str, u32),
    data: impl FnOnce() -> String,
) -> FleetLevel {
    let of_type = |addition: &&LevelAddition| addition.type_name == type_name && addition.level > level;
    if !additions.iter().any(|addition| of_type(&addition)) {
        return FleetLevel::new(level);
    }
    // Data that is not JSON has no members.
    let data = serde_json::from_str(&data()).unwrap_or(Value::Null);
    let present =
        additions.iter().filter(of_type).filter(|addition| has(&data, addition.member, addition.value));
    FleetLevel::new(present.map(|addition| addition.level).fold(level, u32::max))
}

/// Whether the data has the member, with the value.
fn has(data: &Value, member: &str, value: Option<&str>) -> bool {
    let Some(path) = member.strip_prefix('/') else {
        return value.map_or(!data.is_null(), |value| data.as_str() == Some(value));
    };
    let (name, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
    let has = |part: &Value| has(part, rest, value);
    match data {
        Value::Array(elements) if name == "*" => elements.iter().any(has),
        Value::Object(members) if name == "*" => members.values().any(has),
        Value::Object(members) => members.get(name).is_some_and(has),
        // No other value has members.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_has_the_level_of_its_type_or_of_its_highest_addition() {
        let addition =
            |member, value, level| LevelAddition { type_name: "plan.applied.v1", member, value, level };
        let additions = [
            addition("/spec/tls", None, 2),
            addition("/spec/payloads/*/restart", Some("never"), 3),
            addition("/spec/labels/*", Some("x"), 4),
            LevelAddition { type_name: "node.applied.v1", member: "/spec", value: None, level: 9 },
        ];
        for (of_type, data, level) in [
            (1, r#"{"spec":{}}"#, 1),
            (5, r#"{"spec":{"tls":{}}}"#, 5),
            (1, r#"{"spec":{"tls":null}}"#, 1),
            (1, r#"{"spec":{"tls":{}}}"#, 2),
            (1, r#"{"tls":{}}"#, 1),
            (1, r#"{"spec":{"tls":1,"payloads":[{"restart":"always"},{"restart":"never"}]}}"#, 3),
            (1, r#"{"spec":{"tls":1,"payloads":[{"restart":"always"}]}}"#, 2),
            (1, r#"{"spec":{"labels":{"a":"y","b":"x"}}}"#, 4),
            (1, r#"{"spec":{"payloads":"never"}}"#, 1),
        ] {
            let found = level_of(&additions, ("plan.applied.v1", of_type), || data.to_owned());
            assert_eq!(found, FleetLevel::new(level), "{of_type} {data}");
        }
    }

    #[test]
    fn the_highest_level_is_that_of_the_registers() {
        let types = [Intent::LEVELS, Observation::LEVELS, Fact::LEVELS].concat();
        let all = types.into_iter().chain(ADDITIONS.iter().map(|addition| addition.level));
        assert_eq!(Some(FleetLevel::HIGHEST), all.max().map(FleetLevel::new));
        assert!(ADDITIONS.iter().all(|addition| addition.level > 1));
    }
}
