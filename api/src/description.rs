//! Answers with the description of the API: not sent again to a client that has it, and compressed on request.

use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use chancery_events::digest::Digest;

use super::ApiShared;
use super::budget::ReservedBytes;
use super::entity_tag;
use super::middleware::{RoutedRequest, json};
use super::openapi;
use super::problem::{BUSY, ProblemDetails};
use super::reserved_answer::compressor_of;

/// Tag of the text. It is sent as a weak one, as the compressed text has other bytes.
static TAG: LazyLock<String> =
    LazyLock::new(|| format!("\"{:012x}\"", Digest::of(&[openapi::text().as_bytes()]).prefix()));

/// Description, with the reserved memory of its compressor.
struct SentDescription {
    _reserved: ReservedBytes,
}

impl AsRef<[u8]> for SentDescription {
    fn as_ref(&self) -> &[u8] {
        openapi::text().as_bytes()
    }
}

/// Answers a request for the description.
pub(super) fn get(common: &ApiShared, call: &RoutedRequest) -> Result<Response<Body>, ProblemDetails> {
    let tag = format!("W/{}", *TAG);
    if entity_tag::is_known(&call.parts.headers, &TAG) {
        let mut response = entity_tag::named(StatusCode::NOT_MODIFIED.into_response(), &tag);
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        return Ok(response);
    }
    let reserved = common.answers.try_reserve(compressor_of(call));
    let busy = || ProblemDetails::new(BUSY, "cannot send description: too many answers are being sent");
    let sent = SentDescription { _reserved: reserved.ok_or_else(busy)? };
    Ok(entity_tag::named(json(Bytes::from_owner(sent)), &tag))
}
