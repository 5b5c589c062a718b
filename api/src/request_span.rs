//! Spans of requests, as the semantic conventions of OpenTelemetry for HTTP servers have them.

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};
use chancery_spans::{SpanRole, TraceSpan};

use super::headers::traceparent;
use super::problem::ProblemDetails;
use super::routes::{HttpRoute, RouteTarget};

/// Header of the trace context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Whether requests of the route have spans. Probes and an executor's messages are frequent and carry no information; those
/// of executors are in the spans of their commands.
fn has_span(does: RouteTarget) -> bool {
    !matches!(
        does,
        RouteTarget::Live
            | RouteTarget::Ready
            | RouteTarget::Metrics
            | RouteTarget::SendMessages
            | RouteTarget::SendReplies
            | RouteTarget::SendInput
    )
}

/// Starts the span of a request whose route is known.
pub(super) fn start(route: &HttpRoute, parts: &Parts) -> TraceSpan {
    if !has_span(route.does) || !chancery_spans::are_recorded() {
        return TraceSpan::default();
    }
    let parent = traceparent(&parts.headers);
    let mut span =
        TraceSpan::start(format!("{} {}", parts.method, route.path), SpanRole::Server, parent.as_deref());
    span.text("http.request.method", &parts.method);
    span.text("http.route", &route.path);
    span.text("url.path", parts.uri.path());
    span.text("url.scheme", "http");
    span
}

/// Ends the span of a request with its answer.
pub(super) fn end(mut span: TraceSpan, answer: &Result<Response<Body>, ProblemDetails>) {
    let status = match answer {
        Ok(response) => response.status().as_u16(),
        Err(problem) => problem.kind.status,
    };
    span.number("http.response.status_code", i64::from(status));
    if let Err(problem) = answer {
        span.text("error.type", problem.kind.code);
    }
    if status >= 500 {
        span.fail(status);
    }
}

/// Gives a request that is sent on for another one the context of its span.
pub(super) fn forward(headers: &mut HeaderMap) {
    if let Some(context) = chancery_spans::current().and_then(|context| HeaderValue::try_from(context).ok()) {
        headers.insert(TRACEPARENT, context);
    }
}
