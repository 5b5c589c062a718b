//! Answer to a dry run: verdicts and facts, then a digest of them.

use std::collections::{BTreeMap, BTreeSet};

use chancery_decider::dry_run::{ChosenNode, DryRunResult, DryVerdict, OperationWait, facts};
use chancery_events::digest::Digest;
use chancery_events::event::{EventKind, EventLine};
use chancery_events::fact::{Fact, UnschedulableReason};
use chancery_events::id::Position;
use chancery_events::name::{Actor, PlanName, PolicyName};
use chancery_events::record::Record;
use chancery_events::size::json_bytes;
use chancery_events::subject::Subject;
use chancery_events::time::{Time, shown};
use chancery_journal::ChainCursor;
use chancery_projector::moment::EntityChange;
use chancery_projector::rows::{DeploymentRow, OperationRow, PlanRow, RequestRow};
use chancery_projector::{FleetMoment, MomentEnd, RowKey};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::changes::RowsBefore;
use crate::FleetApi;
use crate::intents::problem_value;
use crate::problem::{MomentBody, ProblemBody, ProblemDetails};
use crate::write::{AcceptedResponse, AnswerContext, first_facts, first_facts_in};

/// Answer to a dry run. Nothing of it was recorded. Positions after `at`, times, ids and the names of new replicas are
/// those that come next; a real run may assign others.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DryRunAnswer {
    /// Record after which the intents were decided.
    at: MomentBody,
    /// Time of the decisions.
    #[serde(with = "shown")]
    #[schemars(with = "String")]
    time: Time,
    /// Facts that were due before the intents, and would be recorded without them too.
    due: Vec<DryFact>,
    /// Answers to the intents, in their order.
    intents: Vec<DryIntent>,
    /// Entities that accepted intents name and whose rows differ, with each changed field: the values before the intents, and after
    /// all that follows.
    changes: Vec<EntityChange>,
    /// Facts that follow before any approval and any report of an executor.
    follows: Vec<DryFact>,
    /// Operations that the intents create, as they are then.
    operations: Vec<DryOperation>,
    /// Reasons why operations of a plan have no node, by plan, each with its nodes.
    unschedulable: BTreeMap<PlanName, Vec<UnschedulableReason>>,
    /// Approval requests that the intents open, as they are then.
    requests: Vec<RequestRow>,
    /// Approvals that are required next: one for each of these.
    approvals: Vec<RequiredApprovalEntry>,
    /// Entities that wait, and the entity or condition that each waits for.
    waits: Vec<DryWait>,
    /// Ids and names of replicas in this answer that are not assigned yet: a real run may assign others.
    unassigned: BTreeSet<String>,
    /// Whether the dry run stopped early: intents without an answer were not decided, and facts that follow are missing.
    truncated: bool,
    /// Reason for the early stop.
    truncated_because: Option<String>,
}

/// Answer to one intent.
#[derive(Serialize, JsonSchema)]
struct DryIntent {
    /// Answer of the real request, with its HTTP status; null if the intent was not decided.
    #[schemars(with = "Option<DryAnswer>")]
    answer: Option<Value>,
    /// Facts that would be recorded with the intent: its verdict first. Empty for the repeat of a decided intent.
    facts: Vec<DryFact>,
}

/// Answer to a request that submits an intent.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the form of a value, for its schema")]
enum DryAnswer {
    /// Intent accepted.
    Accepted(AcceptedResponse),
    /// Intent refused, or invalid.
    Problem(Box<ProblemBody>),
}

/// Fact that would be recorded.
#[derive(Serialize, JsonSchema)]
struct DryFact {
    /// Position that comes next; not assigned yet.
    position: Position,
    /// Type of the fact, with its version.
    #[serde(rename = "type")]
    type_name: String,
    /// First entity that the fact is about.
    subject: Option<String>,
    /// Position of the cause.
    cause: Option<Position>,
    /// Data of the fact.
    #[schemars(with = "serde_json::Value")]
    data: Box<RawValue>,
}

/// Operation that an intent creates.
#[derive(Serialize, JsonSchema)]
struct DryOperation {
    #[serde(flatten)]
    row: OperationRow,
    /// Reasons for the node; computed for the first placements of a dry run, and recorded nowhere.
    placement: Option<PlacementReasons>,
}

/// Reasons for a node.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PlacementReasons {
    /// Reason for the node, for people.
    reason: String,
    /// Reasons against other nodes. A node without a reason fits too, and ranks lower.
    others: Vec<UnschedulableReason>,
}

impl From<ChosenNode> for PlacementReasons {
    fn from(ChosenNode { reason, others }: ChosenNode) -> PlacementReasons {
        PlacementReasons { reason, others }
    }
}

/// Approval that is required.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RequiredApproval")]
struct RequiredApprovalEntry {
    /// Operation or approval request, as `operation/ID` or `request/ID`.
    subject: String,
    /// Hash that the approval must name.
    hash: Option<Digest>,
    /// Number of approvals.
    count: u32,
    /// Policies that require another approver than the requester; any actor can approve if empty.
    policies: Vec<PolicyName>,
    /// Actor who requested the change.
    requested_by: Option<Actor>,
}

/// Entity that waits.
#[derive(Serialize, JsonSchema)]
struct DryWait {
    /// Entity that waits, as `KIND/NAME`.
    subject: String,
    /// Entity that it waits for, as `KIND/NAME`, or `placement`, `approval`, `report`.
    waits_for: String,
    /// Reason, for people.
    reason: String,
}

/// Place of the answer to an intent.
pub(super) enum DrySlot {
    /// Intent that was decided, unless a bound was reached before.
    Decided(AnswerContext),
    /// Problem of an item that is no intent.
    Invalid(Value),
}

/// Source of an answer.
pub(super) struct AnswerWriter<'a> {
    pub(super) app: &'a FleetApi,
    pub(super) at: ChainCursor,
    pub(super) now: Time,
    pub(super) request_id: &'a str,
    /// Rows of the state at the end of the dry run.
    pub(super) rows: &'a FleetMoment,
}

impl AnswerWriter<'_> {
    /// Returns the answer as JSON.
    pub(super) fn answer(
        &self,
        slots: Vec<DrySlot>,
        before: &RowsBefore,
        result: &DryRunResult,
    ) -> Result<String, ProblemDetails> {
        let follows = result.follows.iter().map(|record| &**record);
        let own =
            || result.intents.iter().filter_map(|decided| decided.record.as_deref()).chain(follows.clone());
        // What is shown of rows is not bounded by the events.
        let mut left = self.app.common.limits.page;
        let operations = self.operations(result, &mut left)?;
        let unschedulable = self.unschedulable(result, &operations, &mut left)?;
        let changes = before.changes(self.rows, result, &mut left).map_err(|error| internal(&error))?;
        let requests = self.requests(own())?;
        let bound = result.bound.map(|bound| bound.to_string());
        let bound =
            bound.or_else(|| (left == 0).then(|| "the maximum size of the rows is reached".to_owned()));
        let answer = DryRunAnswer {
            at: MomentEnd::from(self.at).into(),
            time: self.now,
            due: self.facts(result.due.iter().map(|record| &**record))?,
            intents: self.intents(slots, &result.intents)?,
            changes,
            follows: self.facts(follows.clone())?,
            unschedulable,
            approvals: approvals(result, &operations, &requests),
            waits: self.waits(result, &operations, own())?,
            unassigned: self.unassigned(result.due.iter().map(|record| &**record).chain(own())),
            operations,
            requests,
            truncated: bound.is_some(),
            truncated_because: bound,
        };
        serde_json::to_string(&answer).map_err(|error| internal(&error))
    }

    fn intents(&self, slots: Vec<DrySlot>, decided: &[DryVerdict]) -> Result<Vec<DryIntent>, ProblemDetails> {
        let mut decided = decided.iter();
        let answer = |slot: DrySlot| match slot {
            DrySlot::Invalid(problem) => Ok(DryIntent { answer: Some(problem), facts: Vec::new() }),
            DrySlot::Decided(context) => match decided.next() {
                Some(decided) => Ok(DryIntent {
                    answer: Some(self.verdict(&context, decided)?),
                    facts: self.facts(decided.record.as_deref().into_iter())?,
                }),
                None => Ok(DryIntent { answer: None, facts: Vec::new() }),
            },
        };
        slots.into_iter().map(answer).collect()
    }

    /// Returns the answer to a decided intent, as the real request gets it.
    fn verdict(&self, context: &AnswerContext, decided: &DryVerdict) -> Result<Value, ProblemDetails> {
        let DryVerdict { verdict, record } = decided;
        let (mut status, mut accepted) = match context.verdict(verdict) {
            Ok(accepted) => accepted,
            Err(problem) => return Ok(problem_value(&problem, self.request_id)),
        };
        if context.needs_facts(&accepted) {
            let facts = match record {
                Some(record) => first_facts_in(record, verdict.position),
                None => first_facts(&*self.app.source, verdict.position),
            };
            (status, accepted) = AnswerContext::completed(status, accepted, &facts);
        }
        let mut value = serde_json::to_value(&accepted).map_err(|error| internal(&error))?;
        value["status"] = status.as_u16().into();
        Ok(value)
    }

    fn facts<'r>(&self, records: impl Iterator<Item = &'r Record>) -> Result<Vec<DryFact>, ProblemDetails> {
        let mut all = Vec::new();
        for (position, line) in records.flat_map(Record::events) {
            let event = EventLine::read(line).map_err(|error| internal(&error))?;
            if event.kind != EventKind::Fact {
                continue;
            }
            let fact = Fact::read(&event.type_name, event.data.get()).and_then(Result::ok);
            let subjects = fact.map(|fact| self.subjects(position, &fact)).unwrap_or_default();
            all.push(DryFact {
                position,
                subject: subjects.first().map(ToString::to_string),
                cause: event.cause,
                data: event.data.to_owned(),
                type_name: event.type_name.into_owned(),
            });
        }
        Ok(all)
    }

    /// Returns the entities that a fact is about, first the one whose id it issues.
    fn subjects(&self, position: Position, fact: &Fact) -> Vec<Subject> {
        fact.issues(self.at.lineage, position).into_iter().chain(fact.subjects()).collect()
    }

    /// Returns the row of a key, if the entity exists at the end.
    fn row<R: DeserializeOwned>(&self, key: &RowKey) -> Result<Option<R>, ProblemDetails> {
        let row = self.rows.get_json(key).map_err(|error| internal(&error))?;
        row.map(|row| serde_json::from_str(&row.body)).transpose().map_err(|error| internal(&error))
    }

    /// Returns the reasons of the plans of which operations have no node, as far as they fit the bytes that are left.
    fn unschedulable(
        &self,
        result: &DryRunResult,
        operations: &[DryOperation],
        left: &mut usize,
    ) -> Result<BTreeMap<PlanName, Vec<UnschedulableReason>>, ProblemDetails> {
        let waits = |operation: &&DryOperation| {
            result.operations.get(&operation.row.id) == Some(&Some(OperationWait::Placement))
        };
        let plans: BTreeSet<_> =
            operations.iter().filter(waits).map(|operation| &operation.row.plan).collect();
        let mut all = BTreeMap::new();
        for plan in plans {
            let Some(row) = self.row::<PlanRow>(&RowKey::Plan(plan.clone()))? else { continue };
            if !take_bytes(left, json_bytes(&row.unschedulable)) {
                break;
            }
            all.insert(plan.clone(), row.unschedulable);
        }
        Ok(all)
    }

    /// Returns the operations whose rows fit the bytes that are left.
    fn operations(
        &self,
        result: &DryRunResult,
        left: &mut usize,
    ) -> Result<Vec<DryOperation>, ProblemDetails> {
        let mut all = Vec::new();
        for id in result.operations.keys() {
            let row = self.rows.get_json(&RowKey::Operation(*id)).map_err(|error| internal(&error))?;
            let Some(row) = row else { continue };
            if !take_bytes(left, row.body.len()) {
                break;
            }
            let row = serde_json::from_str(&row.body).map_err(|error| internal(&error))?;
            let placement = result.placements.get(id).cloned().map(PlacementReasons::from);
            all.push(DryOperation { row, placement });
        }
        Ok(all)
    }

    fn requests<'r>(
        &self,
        records: impl Iterator<Item = &'r Record>,
    ) -> Result<Vec<RequestRow>, ProblemDetails> {
        let opened = records.flat_map(facts).filter(|(_, fact)| matches!(fact, Fact::RequestOpened(_)));
        let row = |(position, fact): (Position, Fact)| match fact.issues(self.at.lineage, position) {
            Some(Subject::Request(id)) => self.row(&RowKey::Request(id)).transpose(),
            _ => None,
        };
        opened.filter_map(row).collect()
    }

    fn waits<'r>(
        &self,
        result: &DryRunResult,
        operations: &[DryOperation],
        records: impl Iterator<Item = &'r Record>,
    ) -> Result<Vec<DryWait>, ProblemDetails> {
        let mut all = Vec::new();
        for DryOperation { row, .. } in operations {
            let Some(Some(wait)) = result.operations.get(&row.id) else { continue };
            let of_deployment = || {
                format!(
                    "deployment/{}/{}",
                    row.plan,
                    row.deployment.as_ref().unwrap_or(&row.target_deployment)
                )
            };
            let (waits_for, reason) = match wait {
                OperationWait::Placement => {
                    ("placement".to_owned(), format!("no node fits: see the reasons of plan {}", row.plan))
                }
                OperationWait::Approval { .. } => {
                    ("approval".to_owned(), "the operation needs an approval".to_owned())
                }
                OperationWait::Deployment => {
                    (of_deployment(), "its deployment starts the operation later".to_owned())
                }
                OperationWait::Incarnation(id) => {
                    (format!("incarnation/{id}"), "the incarnation ends first".to_owned())
                }
                OperationWait::Report => {
                    ("report".to_owned(), "an executor carries the operation out".to_owned())
                }
            };
            all.push(DryWait { subject: format!("operation/{}", row.id), waits_for, reason });
        }
        for (_, fact) in records.flat_map(facts) {
            let Fact::DeploymentCreated(created) = fact else { continue };
            let key = RowKey::Deployment(created.plan.clone(), created.name.clone());
            let plan = self.row::<PlanRow>(&RowKey::Plan(created.plan.clone()))?;
            let current =
                plan.filter(|plan| plan.next.as_ref() == Some(&created.name)).and_then(|plan| plan.current);
            if let (Some(current), Some(row)) = (current, self.row::<DeploymentRow>(&key)?) {
                let (subject, waits_for) =
                    (format!("deployment/{key}"), format!("deployment/{}/{current}", created.plan));
                all.push(DryWait { subject, waits_for, reason: row.message });
            }
        }
        Ok(all)
    }

    /// Returns the ids that facts issue, and the names of new replicas.
    fn unassigned<'r>(&self, records: impl Iterator<Item = &'r Record>) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for (position, fact) in records.flat_map(facts) {
            let issued = fact.issues(self.at.lineage, position).map(|subject| subject.to_string());
            all.extend(issued.and_then(|subject| Some(subject.split_once('/')?.1.to_owned())));
            if let Fact::ReplicaCreated(created) = fact {
                all.insert(created.name.to_string());
            }
        }
        all
    }
}

fn approvals(
    result: &DryRunResult,
    operations: &[DryOperation],
    requests: &[RequestRow],
) -> Vec<RequiredApprovalEntry> {
    let of_operation = |DryOperation { row, .. }: &DryOperation| match result.operations.get(&row.id)? {
        Some(OperationWait::Approval { requested_by, four_eyes }) => Some(RequiredApprovalEntry {
            subject: format!("operation/{}", row.id),
            hash: row.hash,
            count: 1,
            policies: four_eyes.iter().cloned().collect(),
            requested_by: requested_by.clone(),
        }),
        _ => None,
    };
    let of_request = |row: &RequestRow| {
        row.expires.is_some().then(|| RequiredApprovalEntry {
            subject: format!("request/{}", row.id),
            hash: Some(row.hash),
            count: 1,
            policies: row.policies.clone(),
            requested_by: Some(row.requested_by.clone()),
        })
    };
    operations.iter().filter_map(of_operation).chain(requests.iter().filter_map(of_request)).collect()
}

/// Takes bytes of those that are left; takes all and returns false if there are too few.
pub(super) fn take_bytes(left: &mut usize, bytes: usize) -> bool {
    *left = left.saturating_sub(bytes);
    *left > 0
}

pub(super) fn internal(error: &dyn std::fmt::Display) -> ProblemDetails {
    ProblemDetails::internal("write the answer of a dry run", error)
}
