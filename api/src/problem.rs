//! Problems: all answers other than the requested one, in the form of RFC 9457. Only `problem/kinds.rs`
//! defines the status, meaning and remedy of a code, and whether the request can be retried.
//!
//! The reason for a 409 is elsewhere: a rule of an entity in `machine/src` refuses an intent with a
//! [`RefusalCode`]. [`ProblemDetails::refused`] maps the code to its status here.

mod kinds;

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use chancery_events::id::{Lineage, Position};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_projector::MomentEnd;
use serde::{Deserialize, Serialize};

use super::middleware::with_type;
pub use kinds::*;

/// Part of a request that an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RequestPart {
    /// Body of the request; the pointer is a JSON Pointer.
    Body,
    /// In the path; the pointer is the parameter's name after a slash.
    Path,
    /// In the query; the same.
    Query,
    /// In a header; the same.
    Header,
}

/// Error at one location of the request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FieldError {
    /// Location of the error: a JSON Pointer in the body, or `/name` elsewhere.
    pub pointer: String,
    /// Description of the error.
    pub detail: String,
    /// Part of the request that contains the error.
    #[serde(rename = "in")]
    pub part: RequestPart,
}

/// Problem, as the body of a response.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "Problem")]
pub struct ProblemBody {
    /// Path that serves the meaning and the remedy of the code: `/errors/{code}`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Title: the code in words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Stable code, for programs.
    pub code: String,
    /// Cause of this occurrence, and what to do about it.
    pub detail: String,
    /// Errors by location.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Id of the request, which the server's log also has.
    pub request_id: String,
    /// Current version of the subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Position of the refusal in the journal, or position that the rows or the journal have reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Id of the intent: repeat the request with this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Path of a page with more information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// Current lineage of the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// First position that is valid only under the current lineage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// First moment that can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<MomentBody>,
    /// Last moment that can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<MomentBody>,
}

/// Record of a moment, in a problem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "Moment")]
pub struct MomentBody {
    /// Last position of the record.
    pub position: u64,
    /// Time of the record.
    pub time: String,
}

impl From<MomentEnd> for MomentBody {
    fn from(end: MomentEnd) -> MomentBody {
        MomentBody { position: end.position.get(), time: end.time.to_string() }
    }
}

/// Problem that is being built.
#[derive(Clone, Debug)]
pub struct ProblemDetails {
    /// Kind of the problem.
    pub kind: &'static ProblemKind,
    /// Cause of this occurrence.
    pub detail: String,
    /// Optional parts, boxed so that results with problems stay small.
    more: Box<ProblemExtras>,
}

/// Optional parts of a problem.
#[derive(Clone, Default, Debug)]
struct ProblemExtras {
    /// Optional members of the body; its other members are set when the problem is shown.
    members: ProblemBody,
    allow: Option<String>,
    retry_after: Option<Duration>,
}

impl ProblemDetails {
    /// Returns a problem with only its reason.
    pub fn new(kind: &'static ProblemKind, detail: impl Into<String>) -> ProblemDetails {
        let retry_after = kind.retryable.then_some(Duration::from_secs(1));
        ProblemDetails {
            kind,
            detail: detail.into(),
            more: Box::new(ProblemExtras { retry_after, ..ProblemExtras::default() }),
        }
    }

    /// Whether the problem has the code of `kind`.
    pub fn is(&self, kind: &ProblemKind) -> bool {
        self.kind.code == kind.code
    }

    /// Returns the problem of an invalid parameter.
    pub fn parameter(part: RequestPart, name: &str, detail: impl Into<String>) -> ProblemDetails {
        let detail = detail.into();
        // An error of a value may name the kind of value as the parameter does.
        let detail = detail.strip_prefix(&format!("invalid {name}: ")).map_or(detail.clone(), str::to_owned);
        let part_word = match part {
            RequestPart::Body => "body member",
            RequestPart::Path => "path parameter",
            RequestPart::Query => "query parameter",
            RequestPart::Header => "header",
        };
        ProblemDetails::new(INVALID_PARAMETER, format!("invalid {part_word} {name}: {detail}")).at(
            part,
            pointer_to(name),
            detail,
        )
    }

    /// Returns the problem of an invalid query parameter.
    pub(super) fn query(name: &str, detail: impl Into<String>) -> ProblemDetails {
        ProblemDetails::parameter(RequestPart::Query, name, detail)
    }

    /// Returns an internal error; its cause is logged and not sent to the caller.
    pub fn internal(doing: &str, error: &dyn std::fmt::Display) -> ProblemDetails {
        tracing::error!(doing, %error, "request failed");
        ProblemDetails::new(
            INTERNAL,
            format!("cannot {doing}: internal error; the server's log has the cause"),
        )
    }

    /// Returns the problem of a refusal, with the position of its fact.
    pub fn refused(refusal: &Refusal, position: u64, was_if_match: bool) -> ProblemDetails {
        let kind = match refusal.code {
            RefusalCode::VersionConflict if was_if_match => PRECONDITION_FAILED,
            code => kind_of(code),
        };
        let mut problem = ProblemDetails::new(kind, refusal.detail.clone());
        problem.more.members.version = refusal.version;
        problem.more.members.position = Some(position);
        for (pointer, detail) in &refusal.errors {
            problem = problem.at(RequestPart::Body, pointer.clone(), detail.clone());
        }
        problem
    }

    /// Adds an error at a location of the request.
    #[must_use]
    pub fn at(
        mut self,
        part: RequestPart,
        pointer: impl Into<String>,
        detail: impl Into<String>,
    ) -> ProblemDetails {
        self.more.members.errors.push(FieldError { pointer: pointer.into(), detail: detail.into(), part });
        self
    }

    /// Prefixes the pointers into the body with `prefix`.
    #[must_use]
    pub fn below(mut self, prefix: &str) -> ProblemDetails {
        for fault in self.errors_mut().iter_mut().filter(|fault| fault.part == RequestPart::Body) {
            fault.pointer.insert_str(0, prefix);
        }
        self
    }

    /// Sets the current version of the subject.
    #[must_use]
    pub fn version(mut self, version: u64) -> ProblemDetails {
        self.more.members.version = Some(version);
        self
    }

    /// Sets the position of the refusal, or the position that the rows or the journal have reached.
    #[must_use]
    pub fn position(mut self, position: u64) -> ProblemDetails {
        self.more.members.position = Some(position);
        self
    }

    /// Sets the id of the intent.
    #[must_use]
    pub fn id(mut self, id: &str) -> ProblemDetails {
        self.more.members.id = Some(id.to_owned());
        self
    }

    /// Sets the path with further information.
    #[must_use]
    pub fn help(mut self, path: String) -> ProblemDetails {
        self.more.members.help = Some(path);
        self
    }

    /// Sets the lineage of the journal, and the first position that is valid only in that lineage.
    #[must_use]
    pub fn lineage(mut self, current: Lineage, since: Position) -> ProblemDetails {
        let members = &mut self.more.members;
        (members.lineage, members.since) = (Some(current.to_string()), Some(since.get()));
        self
    }

    /// Sets the first and the last moment that can be read, as far as they are known.
    #[must_use]
    pub fn moments(mut self, first: Option<MomentEnd>, last: Option<MomentEnd>) -> ProblemDetails {
        let members = &mut self.more.members;
        (members.first, members.last) = (first.map(MomentBody::from), last.map(MomentBody::from));
        self
    }

    /// Sets the time after which the client can retry.
    #[must_use]
    pub fn after(mut self, wait: Duration) -> ProblemDetails {
        self.more.retry_after = Some(wait);
        self
    }

    /// Sets the allowed methods.
    #[must_use]
    pub fn allow(mut self, methods: String) -> ProblemDetails {
        self.more.allow = Some(methods);
        self
    }

    /// Returns the errors of the problem.
    pub fn errors(&self) -> &[FieldError] {
        &self.more.members.errors
    }

    /// Returns the errors of the problem for modification.
    pub fn errors_mut(&mut self) -> &mut Vec<FieldError> {
        &mut self.more.members.errors
    }

    /// Returns the problem in the form of an answer's body.
    pub fn shown(&self, request_id: &str) -> ProblemBody {
        ProblemBody {
            kind: self.kind.path(),
            title: self.kind.title(),
            status: self.kind.status,
            code: self.kind.code.to_owned(),
            detail: self.detail.clone(),
            retryable: self.kind.retryable,
            request_id: request_id.to_owned(),
            ..self.more.members.clone()
        }
    }
}

/// Returns the response with its problem as body, if it has a problem.
pub(super) fn with_body(mut response: Response<Body>, request_id: &str) -> Response<Body> {
    if let Some(problem) = response.extensions_mut().remove::<ProblemDetails>() {
        *response.body_mut() = serde_json::to_vec(&problem.shown(request_id)).unwrap_or_default().into();
        // This is the length of the empty body before.
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response
}

/// Head of the answer. The problem is in its extensions: only the outermost handler knows the body's id.
impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response<Body> {
        let mut response = with_type("application/problem+json", Body::empty());
        *response.status_mut() =
            StatusCode::from_u16(self.kind.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        if let Some(value) = self.more.allow.as_deref().and_then(|allow| HeaderValue::from_str(allow).ok()) {
            headers.insert(header::ALLOW, value);
        }
        if let Some(after) = self.more.retry_after {
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(after.as_millis().div_ceil(1000).max(1) as u64),
            );
        }
        if let Some(position) = self.more.members.position {
            headers.insert("chancery-position", HeaderValue::from(position));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Parses the text of a parameter.
pub(super) fn parsed<T: FromStr<Err: Display>>(
    part: RequestPart,
    name: &str,
    text: &str,
) -> Result<T, ProblemDetails> {
    text.parse().map_err(|error: T::Err| ProblemDetails::parameter(part, name, error.to_string()))
}

/// Returns a JSON Pointer (RFC 6901) to a member of the root.
pub fn pointer_to(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_status_that_clients_know() {
        let table = [
            ("not_found", 404),
            ("already_exists", 409),
            ("version_conflict", 409),
            ("invalid", 422),
            ("invalid_transition", 409),
            ("in_use", 409),
            ("inactive", 409),
            ("hash_mismatch", 409),
            ("not_pending", 409),
            ("idempotency_key_reused", 422),
            ("intent_expired", 409),
            ("timestamp_in_future", 422),
            ("unsupported", 422),
            ("too_large", 413),
            ("internal", 500),
            ("denied", 403),
        ];
        assert_eq!(table.len(), RefusalCode::ALL.len());
        for (code, (word, status)) in RefusalCode::ALL.iter().zip(table) {
            assert_eq!((code.word(), kind_of(*code).status), (word, status));
            assert_eq!(kind_of(*code).code, word);
        }
        let refusal =
            Refusal { version: Some(3), ..Refusal::new(RefusalCode::VersionConflict, "it is at 3") };
        assert_eq!(ProblemDetails::refused(&refusal, 9, true).kind.status, 412);
        assert_eq!(ProblemDetails::refused(&refusal, 9, false).kind.status, 409);
    }

    #[test]
    fn statuses_are_errors_and_what_is_unknown_may_be_tried_again() {
        for kind in KINDS {
            assert!((400..600).contains(&kind.status), "{kind:?}");
            assert_eq!(kind.retryable, [408, 429, 503, 504].contains(&kind.status), "{kind:?}");
        }
    }

    #[test]
    fn titles_are_codes_in_words_and_texts_are_sentences() {
        assert_eq!(ROUTE_NOT_FOUND.title(), "Route not found");
        assert_eq!(PRECONDITION_FAILED.title(), "Version conflict");
        for kind in KINDS {
            assert!(kind.meaning.ends_with('.') && kind.remedy.ends_with('.'), "{kind:?}");
        }
    }
}
