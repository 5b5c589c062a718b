//! Problems: all answers other than the requested one, in the form of RFC 9457. Only this module defines the
//! status and title of a code, and whether the request can be retried.
//!
//! The reason for a 409 is elsewhere: a rule of an entity in `machine/src` refuses an intent with a [`Code`],
//! and [`Problem::refused`] maps the code to its status here.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use chancery_events::id::{Lineage, Position};
use chancery_events::refusal::{Refusal, RefusalCode};
use serde::{Deserialize, Serialize};

/// Where in a request something is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RequestPart {
    /// In the body; the pointer is a JSON Pointer.
    Body,
    /// In the path; the pointer is the parameter's name after a slash.
    Path,
    /// In the query; the same.
    Query,
    /// In a header; the same.
    Header,
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FieldError {
    /// Where: a JSON Pointer in the body, or `/name` elsewhere.
    pub pointer: String,
    /// What is wrong there.
    pub detail: String,
    /// In which part of the request.
    #[serde(rename = "in")]
    pub part: RequestPart,
}

/// Kind of problem: code, status and title.
#[derive(PartialEq, Eq, Debug)]
pub struct ProblemKind {
    /// Stable code for programs.
    pub code: &'static str,
    /// HTTP status, from 400 to 599.
    pub status: u16,
    /// Short title that is the same for each occurrence.
    pub title: &'static str,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $status:literal $code:literal $retry:ident $title:literal;)*) => {
        $($(#[$doc])* pub const $name: &ProblemKind = &ProblemKind { code: $code, status: $status, title: $title, retryable: kinds!(@ $retry) };)*
        /// Every kind of problem.
        pub const KINDS: &[&ProblemKind] = &[$($name),*];
    };
    (@ retry) => { true };
    (@ final) => { false };
}

kinds! {
    // Refusals: answers of the decider, which are recorded in the journal.
    /// [`Code::NotFound`]; also a read that finds nothing.
    NOT_FOUND = 404 "not_found" final "Not found";
    /// [`Code::AlreadyExists`].
    ALREADY_EXISTS = 409 "already_exists" final "The name is taken";
    /// [`Code::VersionConflict`], the version having come in the body.
    VERSION_CONFLICT = 409 "version_conflict" final "Not the version expected";
    /// [`Code::VersionConflict`], the version having come in `If-Match`.
    PRECONDITION_FAILED = 412 "version_conflict" final "Not the version expected";
    /// [`Code::Invalid`]; also a body that has not the form it should have.
    INVALID = 422 "invalid" final "The body is not valid";
    /// [`Code::BadTransition`].
    BAD_TRANSITION = 409 "bad_transition" final "Its state does not allow it";
    /// [`Code::InUse`].
    IN_USE = 409 "in_use" final "Something still needs it";
    /// [`Code::Inactive`].
    INACTIVE = 409 "inactive" final "Not in use";
    /// [`Code::HashMismatch`].
    HASH_MISMATCH = 409 "hash_mismatch" final "Not what would be done now";
    /// [`Code::NotPending`].
    NOT_PENDING = 409 "not_pending" final "It does not wait for approval";
    /// [`Code::KeyReused`].
    KEY_REUSED = 422 "key_reused" final "The idempotency key was used for something else";
    /// [`Code::Expired`].
    EXPIRED = 409 "expired" final "Too old to tell whether it was decided";
    /// [`Code::FromTheFuture`].
    FROM_THE_FUTURE = 422 "from_the_future" final "Dated too far ahead";
    /// [`Code::Unsupported`].
    UNSUPPORTED = 422 "unsupported" final "Not possible with this build";
    /// [`Code::TooLarge`]; also a body over its limit.
    TOO_LARGE = 413 "too_large" final "Too large";
    /// [`Code::Internal`]; also any other mistake of ours.
    INTERNAL = 500 "internal" final "A mistake of the server";
    /// [`Code::Denied`].
    DENIED = 403 "denied" final "Not allowed";

    // Everything else: nothing was recorded, unless the outcome is unknown.
    /// The body is not JSON of a form that is taken anywhere.
    MALFORMED = 400 "malformed" final "The body cannot be read";
    /// The header `Host` is missing, doubled, or contradicts the target.
    INVALID_HOST = 400 "invalid_host" final "Invalid host";
    /// The request is for a host that is not this server's.
    HOST_NOT_ALLOWED = 421 "host_not_allowed" final "Host not allowed";
    /// The request comes from a web page of another site.
    ORIGIN_NOT_ALLOWED = 403 "origin_not_allowed" final "Origin not allowed";
    /// A parameter in path, query or headers is not right.
    BAD_PARAMETER = 400 "bad_parameter" final "A parameter is not right";
    /// The path leads nowhere.
    NO_SUCH_ROUTE = 404 "no_such_route" final "Nothing is here";
    /// The path does not take the method.
    METHOD_NOT_ALLOWED = 405 "method_not_allowed" final "Not with this method";
    /// None of the media types that are accepted is offered.
    NOT_ACCEPTABLE = 406 "not_acceptable" final "Not in this form";
    /// The request did not come in time.
    REQUEST_TIMEOUT = 408 "request_timeout" retry "The request did not come in time";
    /// What came before it has not come.
    OUT_OF_ORDER = 409 "out_of_order" final "Not the next one";
    /// It was, and is no more.
    GONE = 410 "gone" final "It is no more";
    /// The position that the client has is not, or not any more, one of this journal.
    OTHER_LINEAGE = 410 "other_lineage" final "Other lineage";
    /// The path is too long.
    URI_TOO_LONG = 414 "uri_too_long" final "The path is too long";
    /// The body's media type is not taken here.
    UNSUPPORTED_MEDIA_TYPE = 415 "unsupported_media_type" final "Not of this media type";
    /// It is for a decider of another journal, or of a later term.
    MISDIRECTED = 421 "misdirected" final "Misdirected";
    /// Its principal asks too often.
    TOO_MANY = 429 "too_many_requests" retry "Too often";
    /// The headers are too large.
    HEADERS_TOO_LARGE = 431 "headers_too_large" final "The headers are too large";
    /// There is no room now.
    BUSY = 503 "busy" retry "Busy";
    /// No server decides for the fleet, or it cannot be reached.
    NO_DECIDER = 503 "no_decider" retry "Nobody decides now";
    /// The wall clock is too far ahead of the journal to be followed.
    CLOCK_AHEAD = 503 "clock_ahead" retry "Clock ahead";
    /// The inbox, the events topic or the election does not work; `/readyz` alone says so.
    STANDS_STILL = 503 "stands_still" retry "A part of the fleet stands still";
    /// The position that the read needs is not applied on this server yet.
    POSITION_NOT_APPLIED = 503 "position_not_applied" retry "Position not applied";
    /// The answer did not come in time; nothing was asked of the decider.
    TIMEOUT = 503 "timeout" retry "Not in time";
    /// The answer is not known: it may or may not be recorded.
    UNKNOWN_OUTCOME = 504 "unknown_outcome" retry "The outcome is not known";
}

/// Returns the kind of problem of a refusal code.
pub fn kind_of(code: RefusalCode) -> &'static ProblemKind {
    match code {
        RefusalCode::NotFound => NOT_FOUND,
        RefusalCode::AlreadyExists => ALREADY_EXISTS,
        RefusalCode::VersionConflict => VERSION_CONFLICT,
        RefusalCode::Invalid => INVALID,
        RefusalCode::BadTransition => BAD_TRANSITION,
        RefusalCode::InUse => IN_USE,
        RefusalCode::Inactive => INACTIVE,
        RefusalCode::HashMismatch => HASH_MISMATCH,
        RefusalCode::NotPending => NOT_PENDING,
        RefusalCode::KeyReused => KEY_REUSED,
        RefusalCode::Expired => EXPIRED,
        RefusalCode::FromTheFuture => FROM_THE_FUTURE,
        RefusalCode::Unsupported => UNSUPPORTED,
        RefusalCode::TooLarge => TOO_LARGE,
        RefusalCode::Internal => INTERNAL,
        RefusalCode::Denied => DENIED,
    }
}

/// A problem, as it is shown.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "Problem")]
pub struct ProblemBody {
    /// Names the kind of problem: `/problems/{code}`.
    #[serde(rename = "type")]
    pub kind: String,
    /// In a few words; the same for each occurrence.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// For programs. Stable.
    pub code: String,
    /// What is wrong this time, and what to do about it.
    pub detail: String,
    /// Where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Whether the same request may hold later.
    pub retryable: bool,
    /// Names the request, in the server's log too.
    pub request_id: String,
    /// The subject's version now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The position of the refusal in the journal, or of what is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The intent's id: repeat the request with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Where to read on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub see: Option<String>,
    /// The lineage of the journal now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// The first position that counts under that lineage alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
}

/// Problem that is being built.
#[derive(Clone, Debug)]
pub struct ProblemDetails {
    /// Kind of the problem.
    pub kind: &'static ProblemKind,
    /// Cause of this occurrence.
    pub detail: String,
    /// Optional members, boxed so that results with problems stay small.
    more: Box<ProblemExtras>,
}

#[derive(Clone, Default, Debug)]
struct ProblemExtras {
    errors: Vec<FieldError>,
    version: Option<u64>,
    position: Option<u64>,
    id: Option<String>,
    see: Option<String>,
    lineage: Option<(Lineage, Position)>,
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
        let part_word = match part {
            RequestPart::Body => "body's",
            RequestPart::Path => "path's",
            RequestPart::Query => "query's",
            RequestPart::Header => "header",
        };
        ProblemDetails::new(BAD_PARAMETER, format!("read the {part_word} {name}: {detail}")).at(
            part,
            pointer_to(name),
            detail,
        )
    }

    /// Returns an internal error; its cause is logged and not sent to the caller.
    pub fn internal(doing: &str, error: &dyn std::fmt::Display) -> ProblemDetails {
        tracing::error!(doing, %error, "a request failed");
        ProblemDetails::new(INTERNAL, format!("{doing}: it failed; the server's log says why"))
    }

    /// Returns the problem of a refusal, with the position of its fact.
    pub fn refused(refusal: &Refusal, position: u64, was_if_match: bool) -> ProblemDetails {
        let kind = match refusal.code {
            RefusalCode::VersionConflict if was_if_match => PRECONDITION_FAILED,
            code => kind_of(code),
        };
        let mut problem = ProblemDetails::new(kind, refusal.detail.clone());
        problem.more.version = refusal.version;
        problem.more.position = Some(position);
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
        self.more.errors.push(FieldError { pointer: pointer.into(), detail: detail.into(), part });
        self
    }

    /// Prefixes the pointers into the body with `prefix`.
    #[must_use]
    pub fn below(mut self, prefix: &str) -> ProblemDetails {
        for fault in self.more.errors.iter_mut().filter(|fault| fault.part == RequestPart::Body) {
            fault.pointer.insert_str(0, prefix);
        }
        self
    }

    /// Sets the position.
    #[must_use]
    pub fn position(mut self, position: u64) -> ProblemDetails {
        self.more.position = Some(position);
        self
    }

    /// Sets the id of the intent.
    #[must_use]
    pub fn id(mut self, id: &str) -> ProblemDetails {
        self.more.id = Some(id.to_owned());
        self
    }

    /// Sets the path with further information.
    #[must_use]
    pub fn see(mut self, path: String) -> ProblemDetails {
        self.more.see = Some(path);
        self
    }

    /// Sets the lineage of the journal, and the first position that is valid only in that lineage.
    #[must_use]
    pub fn lineage(mut self, current: Lineage, since: Position) -> ProblemDetails {
        self.more.lineage = Some((current, since));
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
        &self.more.errors
    }

    /// Returns the errors of the problem for modification.
    pub fn errors_mut(&mut self) -> &mut Vec<FieldError> {
        &mut self.more.errors
    }

    /// Returns the problem in the form of an answer's body.
    pub fn shown(&self, request_id: &str) -> ProblemBody {
        ProblemBody {
            kind: format!("/problems/{}", self.kind.code),
            title: self.kind.title.to_owned(),
            status: self.kind.status,
            code: self.kind.code.to_owned(),
            detail: self.detail.clone(),
            errors: self.more.errors.clone(),
            retryable: self.kind.retryable,
            request_id: request_id.to_owned(),
            version: self.more.version,
            position: self.more.position,
            id: self.more.id.clone(),
            see: self.more.see.clone(),
            lineage: self.more.lineage.map(|(lineage, _)| lineage.to_string()),
            since: self.more.lineage.map(|(_, since)| since.get()),
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
        let mut response = Response::new(Body::empty());
        *response.status_mut() =
            StatusCode::from_u16(self.kind.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(value) = self.more.allow.as_deref().and_then(|allow| HeaderValue::from_str(allow).ok()) {
            headers.insert(header::ALLOW, value);
        }
        if let Some(after) = self.more.retry_after {
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(after.as_millis().div_ceil(1000).max(1) as u64),
            );
        }
        if let Some(position) = self.more.position {
            headers.insert("chancery-position", HeaderValue::from(position));
        }
        response.extensions_mut().insert(self);
        response
    }
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
            ("bad_transition", 409),
            ("in_use", 409),
            ("inactive", 409),
            ("hash_mismatch", 409),
            ("not_pending", 409),
            ("key_reused", 422),
            ("expired", 409),
            ("from_the_future", 422),
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
}
