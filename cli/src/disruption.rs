//! Disruptions of nodes, which are part of the rows of nodes and named NODE/NAME. `schedule` schedules a
//! disruption, `approve` permits its action, and `complete` ends it.

use chancery_events::intent::DisruptionSchedule;
use chancery_events::name::NodeName;
use chancery_events::spec::{DisruptionAction, DisruptionSpec};
use chancery_projector::rows::DisruptionRow;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::act::{self, read};
use super::client::{ApiClient, CommandIo, RepeatAdvice};
use super::columns::typed;
use super::error::CliError;
use super::flags::ScheduleArgs;
use super::get::{self, EntityList};
use super::kind::{EntityKind, KindNaming as _, named as named_kind};

use crate::note;

/// Disruption with its node, as listed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct DisruptionItem {
    /// Node of the disruption.
    pub(super) node: NodeName,
    /// Row of the disruption.
    #[serde(flatten)]
    pub(super) row: DisruptionRow,
}

/// Returns the disruptions of a node, from its row.
pub(super) fn of_node(node: &Value) -> Result<Vec<Value>, CliError> {
    let Value::Array(rows) = &node["disruptions"] else {
        return Err(CliError::failure("cannot read node: its row has no disruptions"));
    };
    let with_node = |row: &Value| {
        let mut item = json!({ "node": node["name"] });
        if let (Some(item), Some(row)) = (item.as_object_mut(), row.as_object()) {
            item.extend(row.clone());
        }
        item
    };
    Ok(rows.iter().map(with_node).collect())
}

/// Returns the disruption of that name, from the row of its node.
pub(super) fn of_name(node: &Value, name: &str) -> Result<Option<Value>, CliError> {
    let (_, name) = EntityKind::Disruption.halves(name)?;
    Ok(of_node(node)?.into_iter().find(|item| item["name"] == name))
}

/// Lists the disruptions that pass the filters.
pub(super) fn list(
    client: &ApiClient<'_>,
    filters: &[(&str, String)],
    most: u64,
) -> Result<EntityList, CliError> {
    const FIELDS: [&str; 4] = ["node", "name", "state", "action"];
    if let Some((name, _)) = filters.iter().find(|(name, _)| !FIELDS.contains(name)) {
        let known = FIELDS.join(", ");
        return Err(CliError::usage(format!("invalid filter {name:?}: must be one of {known}")));
    }
    let nodes = get::list(client, EntityKind::Node, &[], u64::MAX)?;
    let mut items = Vec::new();
    for node in &nodes.items {
        // Values of one filter, repeated or separated by commas, are alternatives.
        let is_one_of = |item: &Value, name: &str| {
            let values = filters.iter().filter(|(other, _)| *other == name);
            values.flat_map(|(_, value)| value.split(',')).any(|value| item[name] == value)
        };
        let matches = |item: &Value| filters.iter().all(|(name, _)| is_one_of(item, name));
        items.extend(of_node(node)?.into_iter().filter(matches));
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let more = items.len() > most;
    items.truncate(most);
    Ok(EntityList { items, more, ..nodes })
}

/// Returns the disruption that the arguments of `approve` name, if any: `disruption NODE/NAME` or
/// `disruption/NODE/NAME`.
pub(super) fn named(words: &[String]) -> Result<Option<&str>, CliError> {
    let Some((first, rest)) = words.split_first() else { return Ok(None) };
    let (word, name) = match first.split_once('/') {
        Some((word, name)) => (word, Some(name)),
        None => (first.as_str(), None),
    };
    if named_kind(word) != Some(EntityKind::Disruption) {
        return Ok(None);
    }
    match (name, rest) {
        (Some(name), []) => Ok(Some(name)),
        (None, [name]) => Ok(Some(EntityKind::Disruption.name_in(name)?)),
        (None, []) => Err(CliError::usage(
            "cannot approve a disruption: none is named\ntry: chancery approve disruption NODE/NAME",
        )),
        _ => Err(CliError::usage("cannot approve several disruptions: must be approved one by one")),
    }
}

/// Returns an error if the arguments of `reject` name a disruption.
pub(super) fn not_rejected(words: &[String]) -> Result<(), CliError> {
    match named(words).unwrap_or(Some("NODE/NAME")) {
        None => Ok(()),
        Some(name) => Err(CliError::usage(format!(
            "cannot reject a disruption: it is called off by its completion\ntry: chancery complete disruption {name}"
        ))),
    }
}

pub(super) fn schedule(disrupt: &ScheduleArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let kind = disrupt.which.what.kind;
    if kind != EntityKind::Disruption {
        return Err(CliError::usage(format!(
            "cannot schedule {}: only disruptions are scheduled\ntry: chancery schedule disruption NODE/NAME",
            kind.word()
        )));
    }
    let name = disrupt.which.name()?;
    if let Some(start) = disrupt.start {
        // The flag may be a duration from now.
        io.client.repeats(RepeatAdvice::Key(format!("--start {start} ")));
    }
    let action = if disrupt.drain { DisruptionAction::Drain } else { DisruptionAction::None };
    let spec = DisruptionSpec { start: disrupt.start, action, reason: disrupt.reason.clone() };
    let (node, of) = EntityKind::Disruption.halves(&name)?;
    let (node, of) = (read(EntityKind::Node, node)?, read(EntityKind::Disruption, of)?);
    let intent = DisruptionSchedule { node, name: of, spec }.into();
    act::ask_as(io, "schedule", &format!("disruption/{name}"), &intent, "scheduled")?;
    let item: DisruptionItem = typed(&get::one(io.client, EntityKind::Disruption, &name)?)?;
    if item.row.approved_by.is_none() {
        note!(
            "hint: the disruption has no effect before its approval\ntry: chancery approve disruption {name}"
        );
    }
    Ok(())
}

/// Sends the intent `disruption.VERB`; `done` is the outcome that is shown.
pub(super) fn ask(
    verb: &str,
    done: &str,
    kind: EntityKind,
    name: &str,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let word = kind.word();
    let intent = match kind {
        EntityKind::Disruption => act::intent(kind, verb, name, &[])?,
        _ => None,
    };
    let Some(intent) = intent else {
        let advice = "only disruptions are completed; other entities end automatically";
        return Err(CliError::usage(format!("cannot {verb} {word}/{name}: {advice}")));
    };
    act::ask_as(io, verb, &format!("{word}/{name}"), &intent, done).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disruption_is_named_by_two_words_or_one_and_ids_are_not_taken_for_one() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (line, wanted) in [
            ("disruption node-1/switch", Some("node-1/switch")),
            ("disruption/node-1/switch", Some("node-1/switch")),
            ("dis/node-1/switch", Some("node-1/switch")),
            ("disruption disruption/node-1/switch", Some("node-1/switch")),
            ("00000000-0008-8802-8000-000000000007", None),
            ("operation/00000000-0008-8802-8000-000000000007 x", None),
            ("", None),
        ] {
            let words = words(line);
            assert_eq!(named(&words).expect(line), wanted, "{line}");
        }
        for line in ["disruption", "disruption a/b c/d", "disruption/a/b disruption/c/d"] {
            assert!(named(&words(line)).is_err(), "{line}");
        }
    }
}
