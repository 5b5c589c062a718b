//! Reasons for a value: the facts behind a field of a row, and how they came about.
//!
//! | role | event |
//! |---|---|
//! | `value` | fact that gave the field its value |
//! | `reservation` | reservation of the incarnation that the fact is about: the choice of the node |
//! | `operation` | creation of the operation that the fact is about, or that started the incarnation; for an end, that ended it |
//! | `deployment` | creation of the deployment that requested the operation |
//! | `disruption` | scheduling of the disruption that requested the operation |
//! | `approval` | approval of the operation, with the approved hash |
//! | `request` | approval request of a change that was approved as a whole |
//! | `request_approval` | approval of that request, with the approved hash |
//!
//! The fact of the value is the last one of a type that sets the field (`fields`), unless its data states another
//! value, or the value that an earlier fact had given. Each event has the chain of its causes. Everything here is
//! recorded; [`crate::FleetMoment::chosen_node`] computes reasons again.

mod fields;

use std::collections::{BTreeMap, BTreeSet};

use chancery_events::event::{Event, EventKind, EventLine, InvalidEvent};
use chancery_events::fact::{
    Fact, IncarnationEnded, OperationApproved, OperationEnd, OperationStarted, Requester,
};
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position};
use chancery_events::intent::Intent;
use chancery_events::name::{DeploymentName, DisruptionName, NodeName, PlanName, ReplicaName};
use chancery_events::record::Record;
use chancery_events::subject::Subject;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::causes::{CauseReader, RecordedEvent, recorded};
use crate::history::HistoryError;
use crate::kind::RowKind;

pub use fields::FieldFacts;
#[cfg(test)]
pub(crate) use fields::sets;

/// Maximum number of causes of one event in an answer.
const CAUSES: usize = 100;
/// Maximum number of approvals of one operation: it has another one for each placement.
const APPROVALS: usize = 20;

/// Part of an event in the reasons for a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasonRole {
    /// Fact that gave the field its value.
    Value,
    /// Reservation of an incarnation on a node.
    Reservation,
    /// Creation of an operation.
    Operation,
    /// Creation of a deployment.
    Deployment,
    /// Scheduling of a disruption.
    Disruption,
    /// Approval of the operation.
    Approval,
    /// Approval request that was opened for a change.
    Request,
    /// Approval of the approval request.
    RequestApproval,
}

/// Event behind a value, and the chain of its causes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ValueReason {
    /// Part of the event in the reasons.
    pub role: ReasonRole,
    /// CloudEvent of the event.
    #[schemars(with = "Value")]
    pub event: RecordedEvent,
    /// CloudEvents of its causes, the nearest first, at most 100.
    #[schemars(with = "Vec<Value>")]
    pub causes: Vec<RecordedEvent>,
    /// Whether the last cause is the first event of the chain.
    pub is_complete: bool,
}

impl ValueReason {
    /// Returns the bytes of its events.
    pub fn bytes(&self) -> usize {
        self.causes.iter().chain([&self.event]).map(|event| event.json.get().len()).sum()
    }
}

/// Field of which the reasons are requested.
#[derive(Clone, Copy, Debug)]
pub struct RowField<'a> {
    /// Name of the field.
    pub name: &'a str,
    /// Row that has the field.
    pub row: &'a Value,
}

/// Finds the reasons for values.
#[derive(Clone)]
pub struct ReasonReader(CauseReader);

impl ReasonReader {
    /// Creates a reader of the reasons in these events.
    pub fn new(events: CauseReader) -> ReasonReader {
        ReasonReader(events)
    }

    /// Returns the facts behind a field of an entity's row, or behind its last change. Empty if no fact changed
    /// the entity.
    pub fn reasons(
        &self,
        kind: RowKind,
        subject: &Subject,
        field: Option<RowField<'_>>,
    ) -> Result<Vec<ValueReason>, HistoryError> {
        let Some(position) = self.setter(kind, subject, field)? else { return Ok(Vec::new()) };
        let left = self.0.max_bytes;
        let mut reasons = CollectedReasons { events: &self.0, all: Vec::new(), seen: BTreeSet::new(), left };
        reasons.add(ReasonRole::Value, position)?;
        // The end of its predecessor may have made an incarnation the active one.
        let active =
            field.filter(|_| kind == RowKind::Replicas).and_then(|field| field.row["incarnation"].as_str());
        if let Some(active) = active.and_then(|id| id.parse::<IncarnationId>().ok()) {
            reasons.add(ReasonRole::Reservation, active.position())?;
        }
        Ok(reasons.all)
    }

    /// Returns the position of the fact that gave the field its value.
    fn setter(
        &self,
        kind: RowKind,
        subject: &Subject,
        field: Option<RowField<'_>>,
    ) -> Result<Option<Position>, HistoryError> {
        let mut found = FoundSetter::default();
        let from = subject.issued().unwrap_or(Position::FIRST);
        for record in self.0.records_about(subject, from)? {
            let record = record?;
            for (position, line) in record.events() {
                let bad = |source| HistoryError::Event { position, source };
                let line = EventLine::read(line).map_err(bad)?;
                let of_field = field.is_none_or(|field| fields::sets(kind, field.name, &line.type_name));
                // Most events of an entity that is often applied are intents and verdicts: their data is not read.
                if line.kind != EventKind::Fact || !(of_field || ends(&line.type_name, subject)) {
                    continue;
                }
                let data = line.data;
                let Event::Fact { fact, .. } = line.event().map_err(bad)? else { continue };
                let is_verdict = matches!(fact, Fact::IntentAccepted(_) | Fact::IntentRefused(_));
                if is_verdict || !is_about(&fact, subject, &record, position) {
                    continue;
                }
                if ends(fact.type_name(), subject) {
                    found = FoundSetter::default();
                }
                match field {
                    None => found.position = Some(position),
                    Some(field) => {
                        let of_incarnation = incarnation_of(&fact, record.header().lineage, position);
                        if of_field && found.may_be(kind, field, &fact, of_incarnation) {
                            let data = serde_json::from_str(data.get()).map_err(InvalidEvent::Line);
                            found.take(position, stated(&fact, &data.map_err(bad)?, field));
                            found.is_running = matches!(fact, Fact::IncarnationRunning(_));
                        }
                    }
                }
            }
        }
        Ok(found.position)
    }
}

/// Relation of a fact's data to the value of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StatedValue {
    /// Data that states the value, under the name of the field.
    Same,
    /// Data that states another value.
    Other,
    /// Data without such a member.
    None,
}

/// Setter of a value, among the facts read so far.
#[derive(Default)]
struct FoundSetter {
    position: Option<Position>,
    /// Whether the data of that fact states the value, and no later fact states another one.
    is_stated: bool,
    /// Whether that fact reports that an incarnation runs.
    is_running: bool,
}

impl FoundSetter {
    /// Takes the next fact that sets the field. One that states the same value again did not give it, and one that
    /// states another value gave that to something that is no longer in the row.
    fn take(&mut self, position: Position, stated: StatedValue) {
        let is_stated = stated == StatedValue::Same;
        if stated != StatedValue::Other && !(is_stated && self.is_stated) {
            self.position = Some(position);
        }
        self.is_stated = is_stated;
    }

    /// Whether a fact about an incarnation may have set a field of its replica. It must be about the incarnation that
    /// the row shows, or have ended another one: the predecessor of one that did not run yet, or the last one.
    fn may_be(&self, kind: RowKind, field: RowField<'_>, fact: &Fact, about: Option<IncarnationId>) -> bool {
        let of_active = ["node", "incarnation", "ready", "processes", "unready_at"];
        let (RowKind::Replicas, Some(about)) = (kind, about) else { return true };
        if !of_active.contains(&field.name) || field.row["incarnation"] == about.to_string() {
            return true;
        }
        let is_end = matches!(fact, Fact::IncarnationEnded(_));
        is_end && (field.row["incarnation"].is_null() || !self.is_running)
    }
}

/// Returns the incarnation that a fact issues or changes, if any.
fn incarnation_of(fact: &Fact, lineage: Lineage, position: Position) -> Option<IncarnationId> {
    let mut subjects = fact.issues(lineage, position).into_iter().chain(fact.subjects());
    subjects.find_map(|subject| match subject {
        Subject::Incarnation(id) => Some(id),
        _ => None,
    })
}

/// Whether a fact of the type ends the entity, so that another one may have its name.
fn ends(type_name: &str, subject: &Subject) -> bool {
    let end = type_name.strip_prefix(subject.kind());
    end.is_some_and(|end| end.starts_with(".deleted.") || end.starts_with(".destroyed."))
}

fn is_about(fact: &Fact, subject: &Subject, record: &Record, position: Position) -> bool {
    fact.subjects().contains(subject)
        || fact.issues(record.header().lineage, position).as_ref() == Some(subject)
}

/// Returns what a fact states about the field in its data.
fn stated(fact: &Fact, data: &Value, field: RowField<'_>) -> StatedValue {
    // An end names what it ends, which is not in the row then.
    if matches!(fact, Fact::IncarnationEnded(_) | Fact::OperationEnded(_)) {
        return StatedValue::None;
    }
    let value = &field.row[field.name];
    let stated = [&data[field.name], &data["spec"][field.name]].into_iter().find(|stated| !stated.is_null());
    match stated {
        Some(stated) if stated == value => StatedValue::Same,
        // A report names the operation that it ends, which is not in the row then.
        Some(_) if !value.is_null() && field.name != "operation" => StatedValue::Other,
        _ => StatedValue::None,
    }
}

/// Reasons that are being collected.
struct CollectedReasons<'a> {
    events: &'a CauseReader,
    all: Vec<ValueReason>,
    seen: BTreeSet<Position>,
    /// Bytes that are left for causes. Without any, each event has only its nearest cause.
    left: usize,
}

impl CollectedReasons<'_> {
    /// Adds an event, its causes, and the events that belong to it.
    fn add(&mut self, role: ReasonRole, position: Position) -> Result<(), HistoryError> {
        if !self.seen.insert(position) {
            return Ok(());
        }
        let Some(record) = self.events.record(position)? else { return Ok(()) };
        let event = recorded(&record, position)?;
        let chain = self.events.clone().max_bytes(self.left).causes(position, CAUSES)?;
        let (causes, is_complete) =
            chain.map_or((Vec::new(), true), |chain| (chain.events, chain.next.is_none()));
        let root = causes.last().filter(|cause| cause.kind == EventKind::Intent).map(|cause| cause.position);
        let reason = ValueReason { role, event, causes, is_complete };
        self.left = self.left.saturating_sub(reason.bytes());
        self.all.push(reason);
        if let Some(root) = root {
            self.add_request(root)?;
        }
        let Some(Event::Fact { fact, .. }) = event_of(&record, position)? else { return Ok(()) };
        // The entities of a creation or an approval are not how the value came about.
        if !matches!(role, ReasonRole::Value | ReasonRole::Reservation) {
            return Ok(());
        }
        let ending = match &fact {
            Fact::IncarnationEnded(ended) => self.ending(ended, position)?,
            Fact::ReplicaDeleted(deleted) => deleting(&record, &deleted.name)?,
            // Other facts end nothing.
            _ => None,
        };
        if let Some(ending) = ending {
            return self.add_operation(ending, position);
        }
        let issued = fact.issues(record.header().lineage, position);
        for subject in issued.into_iter().chain(fact.subjects()) {
            match subject {
                Subject::Incarnation(id) => self.add(ReasonRole::Reservation, id.position())?,
                Subject::Operation(id) => self.add_operation(id, position)?,
                // Other entities are not how the fact came about.
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the operation that ended an incarnation, whose end is at a position: it commanded the stop, started a
    /// successor, or superseded the operation that did. `None` if the incarnation ended without one.
    fn ending(&self, ended: &IncarnationEnded, end: Position) -> Result<Option<OperationId>, HistoryError> {
        let (id, started) = (Some(ended.incarnation), ended.incarnation.position());
        let (mut ending, mut successors) = (None, BTreeSet::new());
        // Operations with a reservation, by its position.
        let mut operations = BTreeMap::new();
        for record in self.events.records_about(&Subject::Replica(ended.replica.clone()), started)? {
            let record = record?;
            for (position, fact) in facts(&record) {
                if position >= end {
                    return Ok(ending);
                }
                match fact? {
                    Fact::IncarnationReserved(fact) => {
                        operations.insert(position, fact.operation);
                        if fact.starts_after == id {
                            successors.insert(fact.operation);
                        }
                    }
                    Fact::OperationApproved(OperationApproved { operation, incarnation, .. })
                    | Fact::OperationStarted(OperationStarted { operation, incarnation, .. })
                        if operations.get(&started) != Some(&operation)
                            && (incarnation == id || successors.contains(&operation)) =>
                    {
                        ending = Some(operation);
                    }
                    Fact::IncarnationRunning(fact) if fact.replaces == id => {
                        ending = operations.get(&fact.incarnation.position()).copied();
                    }
                    Fact::OperationEnded(fact)
                        if [ending.as_ref(), operations.get(&started)].contains(&Some(&fact.operation)) =>
                    {
                        ending = match fact.end {
                            OperationEnd::Superseded { successor } => Some(successor),
                            OperationEnd::Succeeded => ending,
                            // It may have failed, or was never approved: then it has ended nothing.
                            OperationEnd::Failed { .. }
                            | OperationEnd::Rejected { .. }
                            | OperationEnd::Expired
                            | OperationEnd::Cancelled { .. } => {
                                ending.filter(|ending| *ending != fact.operation)
                            }
                        };
                    }
                    // Other facts end no incarnation.
                    _ => {}
                }
            }
        }
        Ok(ending)
    }

    /// Adds the creation of an operation, who requested it, and the approvals of what the fact at a
    /// position did: of the placement, if it reserved one, else those up to the fact.
    fn add_operation(&mut self, id: OperationId, fact: Position) -> Result<(), HistoryError> {
        let created = id.position();
        if !self.seen.contains(&created) {
            self.add(ReasonRole::Operation, created)?;
            self.add_requester(created)?;
        }
        let approvals = self.approvals(id, fact)?;
        let last = approvals.len().saturating_sub(APPROVALS);
        approvals[last..].iter().try_for_each(|position| self.add(ReasonRole::Approval, *position))
    }

    /// Adds the deployment or the disruption that requested the operation created at a position, if one did.
    fn add_requester(&mut self, operation: Position) -> Result<(), HistoryError> {
        let record = self.events.record(operation)?;
        let event = record.map(|record| event_of(&record, operation)).transpose()?.flatten();
        let Some(Event::Fact { fact: Fact::OperationCreated(created), .. }) = event else { return Ok(()) };
        let requester = match (created.deployment, created.requested_by) {
            (Some(deployment), _) => self.deployment(created.replica, deployment)?,
            (None, Some(Requester::Disruption { node, name })) => self.disruption(node, &name, operation)?,
            (None, _) => None,
        };
        requester.map_or(Ok(()), |(role, position)| self.add(role, position))
    }

    /// Returns the creation of the deployment of a replica.
    fn deployment(
        &self,
        replica: ReplicaName,
        deployment: DeploymentName,
    ) -> Result<Option<(ReasonRole, Position)>, HistoryError> {
        let of_replica = |_, fact| match fact {
            Fact::ReplicaCreated(created) => Some(created.plan),
            _ => None,
        };
        let plan: Option<PlanName> = self.first(&Subject::Replica(replica), of_replica)?;
        let Some(plan) = plan else { return Ok(None) };
        let creation = |position, fact| {
            matches!(fact, Fact::DeploymentCreated(_)).then_some((ReasonRole::Deployment, position))
        };
        self.first(&Subject::Deployment(plan, deployment), creation)
    }

    /// Returns the last scheduling of a disruption before a position: its name may have been that of an earlier one.
    fn disruption(
        &self,
        node: NodeName,
        name: &DisruptionName,
        before: Position,
    ) -> Result<Option<(ReasonRole, Position)>, HistoryError> {
        let mut scheduled = None;
        for record in self.events.records_about(&Subject::Node(node), Position::FIRST)? {
            let record = record?;
            if record.first() > before {
                break;
            }
            for (position, fact) in facts(&record) {
                if matches!(fact?, Fact::DisruptionScheduled(fact) if fact.name == *name) && position < before
                {
                    scheduled = Some((ReasonRole::Disruption, position));
                }
            }
        }
        Ok(scheduled)
    }

    /// Returns the positions of the approvals of what the fact at a position did for an operation.
    fn approvals(&self, id: OperationId, fact: Position) -> Result<Vec<Position>, HistoryError> {
        let mut approvals = Vec::new();
        // An operation that needs another placement is approved again.
        let mut is_placement = false;
        for record in self.events.records_about(&Subject::Operation(id), id.position())? {
            let record = record?;
            for (position, event) in facts(&record) {
                let event = event?;
                if position > self.events.until {
                    return Ok(approvals);
                }
                match event {
                    Fact::IncarnationReserved(reserved) if reserved.operation == id => {
                        if position > fact {
                            return Ok(approvals);
                        }
                        is_placement = position == fact;
                        approvals.clear();
                    }
                    Fact::OperationApproved(approved) if approved.operation == id => {
                        if position > fact && !is_placement {
                            return Ok(approvals);
                        }
                        approvals.push(position);
                    }
                    // Other facts approve nothing.
                    _ => {}
                }
            }
        }
        Ok(approvals)
    }

    /// Adds the approval request that an intent approved, if it did.
    fn add_request(&mut self, intent: Position) -> Result<(), HistoryError> {
        let Some(record) = self.events.record(intent)? else { return Ok(()) };
        let Some(Event::Intent(request)) = event_of(&record, intent)? else { return Ok(()) };
        let Intent::RequestApprove(approve) = request.intent else { return Ok(()) };
        self.add(ReasonRole::Request, approve.request.position())?;
        let approval = |position, fact| match fact {
            Fact::RequestApproved(fact) if fact.request == approve.request => Some(position),
            _ => None,
        };
        let approved = self.first(&Subject::Request(approve.request), approval)?;
        approved.map_or(Ok(()), |position| self.add(ReasonRole::RequestApproval, position))
    }

    /// Returns the first result of `find` for a fact about the subject.
    fn first<T>(
        &self,
        subject: &Subject,
        find: impl Fn(Position, Fact) -> Option<T>,
    ) -> Result<Option<T>, HistoryError> {
        for record in self.events.records_about(subject, Position::FIRST)? {
            let record = record?;
            for (position, fact) in facts(&record) {
                let fact = fact?;
                if fact.subjects().contains(subject)
                    && let Some(found) = find(position, fact)
                {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }
}

/// Returns the operation that succeeded in the record in which it deleted its replica, if one did.
fn deleting(record: &Record, replica: &ReplicaName) -> Result<Option<OperationId>, HistoryError> {
    for (_, fact) in facts(record) {
        if let Fact::OperationEnded(fact) = fact?
            && fact.replica == *replica
            && fact.end == OperationEnd::Succeeded
        {
            return Ok(Some(fact.operation));
        }
    }
    Ok(None)
}

/// Returns the facts of a record, with their positions.
fn facts(record: &Record) -> impl Iterator<Item = (Position, Result<Fact, HistoryError>)> {
    record.events().filter_map(|(position, line)| match Event::read(line) {
        Ok(Event::Fact { fact, .. }) => Some((position, Ok(fact))),
        Ok(Event::Intent(_) | Event::Observation { .. }) => None,
        Err(source) => Some((position, Err(HistoryError::Event { position, source }))),
    })
}

/// Returns an event of a record; `None` if the record does not contain the position.
fn event_of(record: &Record, position: Position) -> Result<Option<Event>, HistoryError> {
    let line = record.events().find(|(at, _)| *at == position);
    line.map(|(_, line)| Event::read(line).map_err(|source| HistoryError::Event { position, source }))
        .transpose()
}
