//! Selection of `get`: kinds, names and labels.

use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use serde_json::Value;

use super::error::CliError;
use super::kind::{EntityKind, KindNaming as _, kind_and_name, possible, words};

/// Word for the kinds of [`ALL`].
const EVERY_KIND: &str = "all";
/// Kinds that `all` selects: what manifests and plans create, without histories and settings.
const ALL: &[EntityKind] = &[
    EntityKind::Cluster,
    EntityKind::Node,
    EntityKind::Plan,
    EntityKind::Deployment,
    EntityKind::Replica,
    EntityKind::Volume,
];

/// Kinds, with a name if both are one argument: `nodes`, `nodes,clusters`, `all`, `node/node-1`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KindSelection {
    /// Kinds of the entities, each once.
    pub kinds: Vec<EntityKind>,
    /// Name after the slash.
    pub name: Option<String>,
}

/// Entities of one kind that are selected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SelectedEntities {
    pub(super) kind: EntityKind,
    /// Names of the entities; empty for all entities that pass the filters.
    pub(super) names: Vec<String>,
}

impl KindSelection {
    /// Returns the selected entities of each kind, in the order of the arguments. `after` has the arguments after
    /// this one: names, or `KIND/NAME` if this one is `KIND/NAME`.
    pub(super) fn entities(&self, after: &[String]) -> Result<Vec<SelectedEntities>, CliError> {
        let Some(name) = &self.name else {
            let of_kind = |kind: &EntityKind| {
                let names = after.iter().map(|name| kind.name_in(name).map(str::to_owned));
                Ok(SelectedEntities { kind: *kind, names: names.collect::<Result<_, CliError>>()? })
            };
            return self.kinds.iter().map(of_kind).collect();
        };
        let [kind] = self.kinds.as_slice() else {
            return Err(CliError::usage(format!(
                "invalid argument \"…/{name}\": a name has one kind, as in node/node-1"
            )));
        };
        let mut selected = vec![SelectedEntities { kind: *kind, names: vec![name.clone()] }];
        for one in after {
            let (kind, name) = EntityKind::split(one)?;
            match selected.iter_mut().find(|of| of.kind == kind) {
                Some(of) => of.names.push(name.to_owned()),
                None => selected.push(SelectedEntities { kind, names: vec![name.to_owned()] }),
            }
        }
        Ok(selected)
    }
}

/// Reads [`KindSelection`], and lists the kinds for completion.
#[derive(Clone, Debug)]
pub(super) struct KindSelectionParser;

impl TypedValueParser for KindSelectionParser {
    type Value = KindSelection;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<KindSelection, clap::Error> {
        let text = value.to_string_lossy();
        let (listed, name) = kind_and_name(&text);
        let mut kinds = Vec::new();
        for word in listed.split(',') {
            let more = if word == EVERY_KIND { ALL.to_vec() } else { vec![possible(command, arg, word)?] };
            for kind in more {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
        }
        Ok(KindSelection { kinds, name })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let all =
            PossibleValue::new(EVERY_KIND).help("Clusters, nodes, plans, deployments, replicas and volumes");
        Some(Box::new(words().chain([all])))
    }
}

/// Labels that a row must have, all of them: `disk=fast,rack!=r1,ssd,!old`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LabelSelector(Vec<LabelCondition>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct LabelCondition {
    key: String,
    /// Value of the label; any value if absent.
    value: Option<String>,
    /// Whether the label must have another value, or be absent.
    is_negated: bool,
}

impl LabelSelector {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that the kind has labels.
    pub(super) fn check(&self, kind: EntityKind) -> Result<(), CliError> {
        if self.is_empty() || path(kind).is_some() {
            return Ok(());
        }
        let plural = kind.plural();
        Err(CliError::usage(format!(
            "invalid flag -l: {plural} have no labels, only nodes and plans have\nhint: to select by a field, use \
             --filter NAME=VALUE"
        )))
    }

    /// Whether the row of an entity has the labels.
    pub(super) fn holds(&self, kind: EntityKind, row: &Value) -> bool {
        let label = |key: &str| row.pointer(path(kind)?)?.get(key)?.as_str();
        self.0.iter().all(|LabelCondition { key, value, is_negated }| {
            let found = label(key).is_some_and(|label| value.as_ref().is_none_or(|value| label == value));
            found != *is_negated
        })
    }
}

/// Returns the location of the labels in a row; `None` if the kind has no labels.
fn path(kind: EntityKind) -> Option<&'static str> {
    match kind {
        EntityKind::Node => Some("/labels"),
        EntityKind::Plan => Some("/spec/labels"),
        _ => None,
    }
}

impl FromStr for LabelSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<LabelSelector, String> {
        let condition = |part: &str| {
            let (key, value, is_negated) = if let Some((key, value)) = part.split_once("!=") {
                (key, Some(value), true)
            } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (key, Some(value), false)
            } else if let Some(key) = part.trim().strip_prefix('!') {
                (key, None, true)
            } else {
                (part, None, false)
            };
            let (key, value) = (key.trim().to_owned(), value.map(|value| value.trim().to_owned()));
            if key.is_empty() || key.contains(char::is_whitespace) {
                return Err(format!(
                    "invalid label {part:?}: must be KEY=VALUE, KEY!=VALUE, KEY or !KEY, as in disk=fast"
                ));
            }
            Ok(LabelCondition { key, value, is_negated })
        };
        text.split(',').map(condition).collect::<Result<_, _>>().map(LabelSelector)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_select_as_in_kubectl() {
        let node = json!({ "labels": { "disk": "fast", "rack": "r2" } });
        let plan = json!({ "spec": { "labels": { "disk": "fast", "rack": "r2" } } });
        for (text, wanted) in [
            ("disk=fast", true),
            ("disk==fast", true),
            ("disk=slow", false),
            ("disk=fast,rack!=r1", true),
            ("disk=fast,rack!=r2", false),
            ("zone!=a", true),
            ("disk", true),
            ("zone", false),
            ("!zone, disk", true),
            ("!disk", false),
            ("zone=", false),
        ] {
            let selector: LabelSelector = text.parse().expect(text);
            assert_eq!(selector.holds(EntityKind::Node, &node), wanted, "{text}");
            assert_eq!(selector.holds(EntityKind::Plan, &plan), wanted, "{text}");
        }
        for text in ["", "=fast", "disk=fast,", "disk in (fast)"] {
            assert!(text.parse::<LabelSelector>().is_err(), "{text}");
        }
    }
}
