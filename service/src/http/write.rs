//! Writes: an intent goes to the decider, and its verdict comes back when it is durable.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode};
use chancery_events::digest::Digest;
use chancery_events::fact::Outcome;
use chancery_events::id::OperationId;
use chancery_events::intent::{Intent, OperationApprove, OperationReject, Request, Shown};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::App;
use super::edge::{Call, json};
use super::headers::{Media, Meta, media, unsupported};
use super::json::{Splice, check, read};
use super::problem::{BUSY, In, Problem, UNKNOWN_OUTCOME};
use super::routes::Shape;
use super::typed;
use crate::decider::{Decider, NoVerdict, Verdict};

/// Where intents over typed routes come from, if nothing else is said.
const SOURCE: &str = "http";

/// An intent was accepted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct Accepted {
    /// The position of the verdict: a read with it as `min_position` sees what the intent did.
    pub(super) position: u64,
    /// `accepted`, or `unchanged` if it was so already.
    pub(super) verdict: String,
    /// What it was about.
    pub(super) subject: Option<String>,
    /// The subject's version now.
    pub(super) version: Option<u64>,
}

/// Approves one operation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApproveOne {
    /// The hash of what it will do, as it was shown.
    hash: Digest,
}

/// Rejects one operation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RejectOne {
    /// Why not.
    #[serde(default)]
    reason: String,
}

/// A typed route.
pub(super) async fn typed(
    app: &Arc<App>,
    decider: &Decider,
    call: Call,
    body: Result<Bytes, Problem>,
    type_name: &'static str,
    shape: Shape,
) -> Result<Response<Body>, Problem> {
    let Call { found, parts, .. } = call;
    let meta = Meta::read(&parts.headers)?;
    let media = media(&parts.headers, &[Media::Json])?;
    let bytes = body?;
    if media.is_none() && !bytes.is_empty() {
        return Err(unsupported("", &[Media::Json]));
    }
    let params: Vec<_> = found.params().collect();
    // Where the path says everything, a body need not say it again.
    let text = if bytes.is_empty() && needs_no_body(type_name, shape) {
        "{}"
    } else {
        check(&bytes, app.common.limits.depth)?
    };
    let intent = match shape {
        Shape::Members => typed::intent(type_name, &Splice::new(text, &params)?)
            .map_err(|problem| in_path(problem, &params))?,
        Shape::ApproveOne => {
            let hash = read::<ApproveOne>(text)?.hash;
            OperationApprove { operations: vec![Shown { operation: operation(&params)?, hash }] }.into()
        }
        Shape::RejectOne => {
            let reason = read::<RejectOne>(text)?.reason;
            OperationReject { operations: vec![operation(&params)?], reason }.into()
        }
    };
    let was_if_match = meta.expect.is_some();
    let request = Request {
        id: meta.id.unwrap_or_else(|| Uuid::new_v4().to_string().parse().expect("a UUID is a name")),
        source: meta.source.unwrap_or_else(|| SOURCE.parse().expect("a name")),
        actor: meta.actor,
        time: meta.time,
        expect: meta.expect,
        claim: None,
        traceparent: meta.traceparent,
        intent,
    };
    let asked = Asked::of(&request, was_if_match);
    let verdict = ask(app, decider, request).await;
    asked.answer(decider, verdict).map(|(status, accepted)| response(status, &accepted))
}

fn needs_no_body(type_name: &str, shape: Shape) -> bool {
    let words = [".delete.", ".cancel.", "replica.start.", "replica.stop."];
    shape == Shape::RejectOne || words.iter().any(|word| type_name.contains(word))
}

fn operation(params: &[(&'static str, &str)]) -> Result<OperationId, Problem> {
    let text = params.first().map_or("", |(_, value)| *value);
    text.parse()
        .map_err(|error: chancery_events::id::BadId| Problem::parameter(In::Path, "id", error.to_string()))
}

/// What is wrong with a member that the path says is wrong with the path; said twice, with the body.
fn in_path(mut problem: Problem, params: &[(&'static str, &str)]) -> Problem {
    let is_twice = problem.detail.contains("duplicate field");
    let fault = problem.errors_mut().first_mut();
    let name = fault.as_ref().and_then(|fault| fault.pointer.strip_prefix('/')).map(str::to_owned);
    let name = name.filter(|name| params.iter().any(|(known, _)| known == name));
    let (Some(fault), Some(name)) = (fault, name) else { return problem };
    if is_twice {
        "the path says it: leave it out".clone_into(&mut fault.detail);
        return problem;
    }
    Problem::parameter(In::Path, &name, fault.detail.clone())
}

/// Asks the decider, and counts the answer.
pub(super) async fn ask(app: &App, decider: &Decider, request: Request) -> Result<Verdict, NoVerdict> {
    // Less than the whole request may take, so that the answer can say what is not known.
    let timeout = app.common.limits.request.mul_f32(0.9);
    let verdict =
        tokio::time::timeout(timeout, decider.ask(request)).await.unwrap_or(Err(NoVerdict::Unknown));
    app.figures.verdict(match &verdict {
        Ok(verdict) => match &*verdict.result {
            Ok(accepted) => accepted.outcome.word(),
            Err(refusal) => refusal.code.word(),
        },
        Err(NoVerdict::Busy) => "busy",
        Err(NoVerdict::Unknown) => "unknown_outcome",
    });
    verdict
}

/// What an answer needs to know of what was asked.
#[derive(Debug)]
pub(super) struct Asked {
    id: String,
    type_name: &'static str,
    was_if_match: bool,
}

impl Asked {
    pub(super) fn of(request: &Request, was_if_match: bool) -> Asked {
        let type_name = Intent::type_name(&request.intent);
        Asked { id: request.id.to_string(), type_name, was_if_match }
    }

    /// The status and what it says, or the problem.
    pub(super) fn answer(
        &self,
        decider: &Decider,
        verdict: Result<Verdict, NoVerdict>,
    ) -> Result<(StatusCode, Accepted), Problem> {
        let verdict = verdict.map_err(|why| self.no_verdict(decider, why))?;
        let position = verdict.position.get();
        let accepted = verdict.result.as_ref().as_ref();
        let accepted = accepted.map_err(|refusal| Problem::refused(refusal, position, self.was_if_match))?;
        let (status, word) = match accepted.outcome {
            Outcome::Unchanged => (StatusCode::OK, "unchanged"),
            Outcome::Changed => (self.changed(accepted.version), "accepted"),
        };
        let subject = accepted.subject.as_ref().map(ToString::to_string);
        Ok((status, Accepted { position, verdict: word.to_owned(), subject, version: accepted.version }))
    }

    fn changed(&self, version: Option<u64>) -> StatusCode {
        match self.type_name {
            // Work follows.
            "deployment.create.v1"
            | "deployment.cancel.v1"
            | "operation.approve.v1"
            | "replica.start.v1"
            | "replica.stop.v1"
            | "replica.delete.v1" => StatusCode::ACCEPTED,
            applied if applied.contains(".apply.") && version == Some(1) => StatusCode::CREATED,
            _ => StatusCode::OK,
        }
    }

    fn no_verdict(&self, decider: &Decider, why: NoVerdict) -> Problem {
        match why {
            NoVerdict::Busy => Problem::new(
                BUSY,
                format!("ask the decider: {} inputs wait, or it stops; nothing was recorded", decider.backlog()),
            ),
            NoVerdict::Unknown => Problem::new(
                UNKNOWN_OUTCOME,
                format!(
                    "ask the decider: there was no answer, so it may or may not be recorded; repeat the request with \
                     the same actor, source, body and the id {:?}: the answer will be that of this one",
                    self.id
                ),
            ),
        }
        .id(&self.id)
    }
}

/// The answer to one intent that was accepted.
pub(super) fn response(status: StatusCode, accepted: &Accepted) -> Response<Body> {
    let mut response = json(serde_json::to_vec(accepted).unwrap_or_default());
    *response.status_mut() = status;
    response.headers_mut().insert("chancery-position", HeaderValue::from(accepted.position));
    response
}
