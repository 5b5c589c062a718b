//! Writes: an intent is passed to the decider, and its verdict is returned when it is durable.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use chancery_decider::{DeciderHandle, UnchangedVerdict, Verdict, VerdictError};
use chancery_events::digest::Digest;
use chancery_events::event::Event;
use chancery_events::extension::ExtensionAttributes;
use chancery_events::fact::{
    DeploymentEnd, DeploymentEnded, DeploymentHalted, Fact, IntentOutcome, PlanApplied,
};
use chancery_events::id::Position;
use chancery_events::intent::{
    ApprovedOperation, BodyRule, Intent, IntentEntry, IntentRequest, OperationApprove, OperationReject,
    SuccessKind,
};
use chancery_events::record::Record;
use chancery_events::refusal::Refusal;
use chancery_events::spec::{FieldClass, PlanSpec};
use chancery_events::subject::Subject;
use chancery_events::text::counted;
use chancery_journal::JournalReader;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FleetApi;
use super::condition;
use super::headers::{BodyFormat, IntentHeaders, WriteCondition, media};
use super::intent_place::IntentPlace;
use super::json::{SplicedJson, check, read};
use super::middleware::{RoutedRequest, json};
use super::problem::{BUSY, PRECONDITION_FAILED, ProblemDetails, RequestPart, UNKNOWN_OUTCOME, parsed};
use super::query::QueryParams;
use super::read::in_turn;
use super::routes::{BodyShape, RouteMatch, RouteTarget};
use super::typed;

/// Default source of intents over typed routes.
const SOURCE: &str = "http";

/// Response to an accepted intent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct AcceptedResponse {
    /// Position of the verdict; of the state that the intent does not change, for an `unchanged` that is not
    /// recorded. Later reads of this server include the effect of the intent; reads of other servers include it with
    /// this position as `min_position`.
    pub(super) position: u64,
    /// Verdict: `accepted`, or `unchanged` if the requested state was set already. `unchanged` is recorded only with
    /// the header `chancery-unchanged: recorded`.
    pub(super) verdict: String,
    /// Whether the journal has the verdict, at `position`.
    pub(super) recorded: bool,
    /// Entity that the intent changes or creates; `request/ID` if the intent waits for approval as that request.
    pub(super) subject: Option<String>,
    /// Current version of the entity; null for a replica that the intent creates.
    pub(super) version: Option<u64>,
    /// Fields that an edit of a plan changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) changed: Option<ChangedFields>,
    /// Deployments that a new deployment supersedes, as `deployment/PLAN/NAME`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) superseded: Vec<String>,
}

/// Fields of a plan that an edit changed, by class.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(super) struct ChangedFields {
    /// Immediate fields; the edit applies to every later decision about any replica.
    pub(super) immediate: Vec<String>,
    /// Deployed fields; the next deployment of the plan applies them.
    pub(super) deployed: Vec<String>,
}

/// Approval of one operation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApproveOne {
    /// Hash of the proposed change, as it was shown.
    hash: Digest,
}

/// Rejection of one operation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RejectOne {
    /// Reason of the rejection, for people; empty if absent.
    #[serde(default)]
    reason: String,
}

/// Member that is given outside the body: its name and its value.
pub(super) type BodyMember = (&'static str, &'static str);

/// Returns the members that the query gives; the query must not contain anything else.
pub(super) fn in_query(
    does: RouteTarget,
    mut params: QueryParams,
) -> Result<Vec<BodyMember>, ProblemDetails> {
    let known = if let RouteTarget::Intent(entry, _) = does { entry.query } else { &[] };
    let mut query_members = Vec::new();
    for name in known {
        let word = match params.take(name)?.as_deref() {
            None => continue,
            Some("yes") => "yes",
            Some("no") => "no",
            Some(_) => return Err(ProblemDetails::query(name, "must be yes or no")),
        };
        query_members.push((*name, word));
    }
    params.end(known)?;
    Ok(query_members)
}

/// Whether a request must have a body. If the path contains everything, the body is optional.
pub(super) fn needs_body(entry: &IntentEntry, shape: BodyShape) -> bool {
    entry.body == BodyRule::Required && shape != BodyShape::RejectOne
}

/// Answers a request of a typed route.
pub(super) async fn typed(
    app: &Arc<FleetApi>,
    decider: &DeciderHandle,
    call: RoutedRequest,
    body: Result<Bytes, ProblemDetails>,
    (entry, shape): (&'static IntentEntry, BodyShape),
    query_members: Vec<BodyMember>,
) -> Result<Response<Body>, ProblemDetails> {
    let RoutedRequest { context, found, parts, .. } = call;
    let meta = IntentHeaders::read(&parts.headers)?;
    if parts.headers.contains_key(header::IF_NONE_MATCH) && found.is_part_of_entity() {
        let what = "must be absent: the path is part of an entity, whose version If-Match names";
        return Err(ProblemDetails::parameter(RequestPart::Header, "if-none-match", what));
    }
    media(&parts.headers, &[BodyFormat::Json])?;
    let (bytes, depth) = (body?, app.common.limits.depth);
    let params: Vec<_> = found.params().collect();
    let is_empty = bytes.is_empty() && !needs_body(entry, shape);
    let text = if is_empty { "{}" } else { check(&bytes, depth)? };
    let operation = || parsed(RequestPart::Path, "id", found.param("id").unwrap_or_default());
    let intent = match shape {
        BodyShape::Members => {
            let members = [params.as_slice(), &query_members].concat();
            typed::intent(entry.type_name, &SplicedJson::new(text, &members)?)
                .map_err(|problem| elsewhere(problem, &params, &query_members))?
        }
        BodyShape::ApproveOne => {
            let hash = read::<ApproveOne>(text)?.hash;
            OperationApprove { operations: vec![ApprovedOperation { operation: operation()?, hash }] }.into()
        }
        BodyShape::RejectOne => {
            let reason = read::<RejectOne>(text)?.reason;
            OperationReject { operations: vec![operation()?], reason }.into()
        }
    };
    meta.check_condition()?;
    let request = IntentRequest {
        // The log of a request then names its intent.
        id: meta.id.clone().unwrap_or_else(|| context.id.parse().expect("a UUID is a name")),
        actor: meta.actor_or_local(),
        expect: meta.expect(),
        source: meta.source.unwrap_or_else(|| SOURCE.parse().expect("a name")),
        time: meta.time,
        claim: None,
        traceparent: meta.traceparent,
        extensions: ExtensionAttributes::default(),
        intent,
    };
    condition::check(app, &found, meta.condition.as_ref(), &request, meta.id.as_ref()).await?;
    let place = IntentPlace::typed(shape, &params, &query_members);
    let asked = AnswerContext::of(&request, meta.condition.as_ref(), place);
    let verdict = ask(app, decider, request, meta.unchanged, bytes.len()).await;
    let (status, accepted) = asked.answered(app, decider, verdict).await?;
    Ok(response(status, &accepted, &found))
}

/// Reports an error of a member from the path as an error of the path. Members from the path or the query
/// must not be repeated in the body.
fn elsewhere(
    mut problem: ProblemDetails,
    params: &[(&str, &str)],
    query_members: &[BodyMember],
) -> ProblemDetails {
    let is_twice = problem.detail.contains("duplicate field");
    let is_given = |name: &str| params.iter().chain(query_members).any(|(known, _)| *known == name);
    if let Some(fault) =
        problem.errors_mut().first_mut().filter(|fault| fault.pointer.matches('/').count() == 1)
        && let Some(detail) = known_of_body(&fault.detail, is_given)
    {
        let before = std::mem::replace(&mut fault.detail, detail.clone());
        let head = problem.detail.strip_suffix(&before).unwrap_or_default();
        problem.detail = format!("{head}{detail}");
        return problem;
    }
    let fault = problem.errors_mut().first_mut();
    let name = fault.as_ref().and_then(|fault| fault.pointer.strip_prefix('/')).map(str::to_owned);
    let (Some(fault), Some(name)) = (fault, name) else { return problem };
    let within = |all: &[(&str, &str)]| all.iter().any(|(known, _)| *known == name);
    let rule = match (within(params), within(query_members)) {
        (true, _) if is_twice => "must be absent: the path has it",
        (_, true) if is_twice => "must be absent: the query has it",
        (true, _) => return ProblemDetails::parameter(RequestPart::Path, &name, fault.detail.clone()),
        _ => return problem,
    };
    // The body has the member once: the other one was inserted.
    let before = std::mem::replace(&mut fault.detail, rule.to_owned());
    let head = problem.detail.strip_suffix(&before).unwrap_or("invalid body: ");
    problem.detail = format!("{head}member {name:?} {rule}");
    problem
}

/// Returns the error of an unknown member without the known members that are given outside the body; `None` if it is
/// another error.
fn known_of_body(error: &str, is_given: impl Fn(&str) -> bool) -> Option<String> {
    let (unknown, known) = error.rsplit_once(", expected ")?;
    if !unknown.starts_with("unknown field `") {
        return None;
    }
    let names = known.split('`').skip(1).step_by(2).filter(|name| !is_given(name));
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    Some(match names.as_slice() {
        [] => format!("{unknown}, the body has no fields"),
        [name] => format!("{unknown}, expected {name}"),
        [first, second] => format!("{unknown}, expected {first} or {second}"),
        _ => format!("{unknown}, expected one of {}", names.join(", ")),
    })
}

/// Submits an intent that was received in `bytes` bytes to the decider, and counts the answer.
pub(super) async fn ask(
    app: &FleetApi,
    decider: &DeciderHandle,
    request: IntentRequest,
    unchanged: UnchangedVerdict,
    bytes: usize,
) -> Result<Verdict, VerdictError> {
    // Less than the limit of the request, so that the answer can report an unknown outcome.
    let timeout = app.common.limits.request_timeout.mul_f32(0.9);
    let breaks_glass = matches!(&request.intent, Intent::NodeSetState(ask) if ask.break_glass.is_some());
    let verdict = tokio::time::timeout(timeout, decider.ask(request, unchanged, bytes))
        .await
        .unwrap_or(Err(VerdictError::Unknown));
    if let Ok(verdict) = &verdict {
        app.last_verdict.note(verdict.position);
    }
    let done = verdict.as_ref().is_ok_and(|verdict| {
        verdict.result.as_ref().as_ref().is_ok_and(|accepted| accepted.outcome == IntentOutcome::Changed)
    });
    if breaks_glass && done {
        app.figures.bypassed();
    }
    app.figures.verdict(match &verdict {
        Ok(verdict) => match &*verdict.result {
            Ok(accepted) => accepted.outcome.word(),
            Err(refusal) => refusal.code.word(),
        },
        Err(VerdictError::Busy) => "busy",
        Err(VerdictError::Unknown) => "unknown_outcome",
    });
    verdict
}

/// Context of a request that its answer needs.
#[derive(Debug)]
pub(super) struct AnswerContext {
    id: String,
    subject: Option<Subject>,
    done: SuccessKind,
    /// Header with the condition of the intent, which is then a precondition of HTTP.
    condition_header: Option<&'static str>,
    place: IntentPlace,
    /// Whether the facts of the intent show more than its verdict.
    has_more_in_facts: bool,
    /// Whether the intent also allocates a node that it creates.
    allocates: bool,
}

/// Version of a node after its creation with a cluster: applied, allocating, allocated.
const ALLOCATED: u64 = 3;

/// Returns the status for an accepted intent that changed something.
fn status(done: SuccessKind, version: Option<u64>) -> StatusCode {
    match done {
        SuccessKind::Later => StatusCode::ACCEPTED,
        SuccessKind::Created => StatusCode::CREATED,
        SuccessKind::Applied if version == Some(1) => StatusCode::CREATED,
        SuccessKind::Applied | SuccessKind::Now => StatusCode::OK,
    }
}

/// Returns the possible statuses for an accepted intent of the entry.
pub(super) fn statuses(entry: &IntentEntry) -> BTreeSet<StatusCode> {
    let is_later = entry.ending.may_wait() || !entry.query.is_empty();
    let all = [StatusCode::OK, status(entry.done, Some(1)), status(entry.done, Some(2))];
    all.into_iter().chain(is_later.then_some(StatusCode::ACCEPTED)).collect()
}

impl AnswerContext {
    pub(super) fn of(
        request: &IntentRequest,
        condition: Option<&WriteCondition>,
        place: IntentPlace,
    ) -> AnswerContext {
        let intent = &request.intent;
        AnswerContext {
            id: request.id.to_string(),
            subject: intent.subject(),
            done: if intent.cascades() { SuccessKind::Later } else { intent.entry().done },
            condition_header: condition.map(|condition| condition.header),
            place,
            has_more_in_facts: matches!(
                intent,
                Intent::PlanApply(_)
                    | Intent::ReplicaCreate(_)
                    | Intent::DeploymentCreate(_)
                    | Intent::PlanRollback(_)
            ),
            allocates: matches!(intent, Intent::NodeApply(apply) if apply.cluster.is_some()),
        }
    }

    /// Whether the verdict's subject is an approval request other than the subject of the intent.
    fn waits(&self, subject: Option<&Subject>) -> bool {
        matches!(subject, Some(Subject::Request(_))) && subject != self.subject.as_ref()
    }

    /// Returns the status and the answer, or the problem.
    pub(super) async fn answered(
        &self,
        app: &FleetApi,
        decider: &DeciderHandle,
        verdict: Result<Verdict, VerdictError>,
    ) -> Result<(StatusCode, AcceptedResponse), ProblemDetails> {
        let verdict = self.verdict(&verdict.map_err(|why| self.no_verdict(decider, why))?);
        let (status, accepted) = verdict?;
        if !self.needs_facts(&accepted) {
            return Ok((status, accepted));
        }
        let (source, verdict) = (app.source.clone(), Position::new(accepted.position));
        let facts = in_turn(&app.hub.readers, "read an edit", move || first_facts(&*source, verdict)).await;
        Ok(AnswerContext::completed(status, accepted, &facts.unwrap_or_default()))
    }

    /// Whether the answer depends on the first facts after the verdict.
    pub(super) fn needs_facts(&self, accepted: &AcceptedResponse) -> bool {
        let may_have_created = self.allocates && accepted.version == Some(ALLOCATED);
        (self.has_more_in_facts || may_have_created) && accepted.verdict == "accepted"
    }

    /// Completes the answer with what the first facts after the verdict show: the fields that an edit changed, the replica that was
    /// created, the deployments that were superseded, or that a node was created. A node of that version that was applied and allocated by the intent had no version before.
    pub(super) fn completed(
        status: StatusCode,
        mut accepted: AcceptedResponse,
        facts: &[Fact],
    ) -> (StatusCode, AcceptedResponse) {
        match facts {
            // The intent gives no name, so that the verdict is about the plan.
            [Fact::ReplicaCreated(created), ..] => {
                accepted.version = None;
                accepted.subject = Some(Subject::Replica(created.name.clone()).to_string());
            }
            [Fact::PlanApplied(applied), ..] => accepted.changed = ChangedFields::of(applied),
            [Fact::NodeApplied(_), Fact::NodeStateChanged(_)] => return (StatusCode::CREATED, accepted),
            _ => accepted.superseded = facts.iter().filter_map(superseded).collect(),
        }
        (status, accepted)
    }

    /// Returns the status and the answer to a verdict, or its problem.
    pub(super) fn verdict(
        &self,
        verdict: &Verdict,
    ) -> Result<(StatusCode, AcceptedResponse), ProblemDetails> {
        let position = verdict.position.get();
        let accepted = verdict.result.as_ref().as_ref();
        let accepted = accepted.map_err(|refusal| self.refused(refusal, position))?;
        let (status, word) = match accepted.outcome {
            IntentOutcome::Unchanged => (StatusCode::OK, "unchanged"),
            IntentOutcome::Changed => (status(self.done, accepted.version), "accepted"),
        };
        // The intent waits for approval, as a new request or as one that was opened before.
        let waits = self.waits(accepted.subject.as_ref());
        let response = AcceptedResponse {
            position,
            verdict: word.to_owned(),
            recorded: verdict.is_recorded,
            subject: accepted.subject.as_ref().map(ToString::to_string),
            version: accepted.version,
            changed: None,
            superseded: Vec::new(),
        };
        Ok((if waits { StatusCode::ACCEPTED } else { status }, response))
    }

    /// Returns the problem of a refusal.
    fn refused(&self, refusal: &Refusal, position: u64) -> ProblemDetails {
        let mut problem = ProblemDetails::refused(refusal, position, self.condition_header.is_some());
        if self.condition_header == Some("if-none-match")
            && problem.is(PRECONDITION_FAILED)
            && let Some(subject) = &self.subject
        {
            let version = refusal.version.map_or(String::new(), |version| format!(", at version {version}"));
            problem.detail = format!("cannot create {subject}: it exists{version}");
        }
        self.place.in_request(problem)
    }

    fn no_verdict(&self, decider: &DeciderHandle, why: VerdictError) -> ProblemDetails {
        match why {
            VerdictError::Busy => ProblemDetails::new(
                BUSY,
                format!(
                    "cannot submit intent: the queue has {}, or the decider is stopping; nothing was recorded",
                    counted(decider.backlog(), "input")
                ),
            ),
            VerdictError::Unknown => ProblemDetails::new(
                UNKNOWN_OUTCOME,
                format!(
                    "cannot get verdict: no answer in time, so whether the intent was recorded is unknown\n\
                     hint: repeat the request with the same actor, source, body and the id {:?} to get its verdict",
                    self.id
                ),
            ),
        }
        .id(&self.id)
    }
}

/// Returns the deployment that a fact supersedes.
fn superseded(fact: &Fact) -> Option<String> {
    let (plan, name, end) = match fact {
        Fact::DeploymentEnded(DeploymentEnded { plan, name, end }) => (plan, name, end),
        Fact::DeploymentHalted(DeploymentHalted { plan, name, end }) => (plan, name, end),
        _ => return None,
    };
    let is_superseded = matches!(end, DeploymentEnd::Superseded { .. });
    is_superseded.then(|| Subject::Deployment(plan.clone(), name.clone()).to_string())
}

/// Returns the first two facts after a verdict, also for a repeat.
pub(super) fn first_facts(source: &dyn JournalReader, verdict: Position) -> Vec<Fact> {
    let record = source.records(verdict).ok().and_then(|mut records| records.next()?.ok());
    record.map(|record| first_facts_in(&record, verdict)).unwrap_or_default()
}

/// Returns the first two facts after a verdict, from its record.
pub(super) fn first_facts_in(record: &Record, verdict: Position) -> Vec<Fact> {
    let after = record.events().filter(|(at, _)| *at > verdict).take(2);
    let facts = after.map_while(|(_, line)| match Event::read(line) {
        Ok(Event::Fact { fact, .. }) => Some(fact),
        Ok(Event::Intent(_) | Event::Observation { .. }) | Err(_) => None,
    });
    facts.collect()
}

impl ChangedFields {
    /// Returns the fields that an edit changed; `None` for a new plan.
    fn of(applied: &PlanApplied) -> Option<ChangedFields> {
        let of = |class| {
            let known = PlanSpec::FIELDS.iter().filter(move |(_, of)| *of == class);
            let names = known.map(|(field, _)| (*field).to_owned());
            names.filter(|field| applied.changed.contains(field)).collect()
        };
        let fields =
            ChangedFields { immediate: of(FieldClass::Immediate), deployed: of(FieldClass::Deployed) };
        Some(fields).filter(|fields| *fields != ChangedFields::default())
    }
}

/// Returns the answer to one accepted intent.
pub(super) fn response(
    status: StatusCode,
    accepted: &AcceptedResponse,
    found: &RouteMatch,
) -> Response<Body> {
    let mut response = json(serde_json::to_vec(accepted).unwrap_or_default());
    *response.status_mut() = status;
    if status != StatusCode::OK
        && let Some(subject) = &accepted.subject
        && let Some(location) = found.location(subject)
    {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response.headers_mut().insert("chancery-position", HeaderValue::from(accepted.position));
    response
}
