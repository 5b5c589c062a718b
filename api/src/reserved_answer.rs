//! Memory of answers: reserved before an answer is built, and released when it is sent.

use axum::body::{Body, Bytes};
use axum::http::{Response, header};

use super::budget::{ReservedBytes, SMALL};
use super::middleware::{RoutedRequest, json};
use super::problem::{BUSY, ProblemDetails};
use super::{ApiShared, FleetApi};

/// Memory of the compressor of an answer, in bytes.
const COMPRESSOR: usize = 384 << 10;

/// Returns the bytes of a compressor if the client accepts compression, else 0.
pub(super) fn compressor_of(call: &RoutedRequest) -> usize {
    if call.parts.headers.contains_key(header::ACCEPT_ENCODING) { COMPRESSOR } else { 0 }
}

/// Memory of an answer, reserved until the answer is sent.
pub(super) struct ReservedAnswer {
    /// Bytes of the reservation for the compressor.
    compressor: usize,
    /// Maximum bytes of a page.
    max_bytes: usize,
    reserved: Option<ReservedBytes>,
}

/// Text of an answer, with its reserved memory.
struct ReservedText {
    text: String,
    _reserved: ReservedBytes,
}

impl AsRef<[u8]> for ReservedText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl ReservedAnswer {
    /// Reserves memory for a page; if there is none, the page is small.
    pub(super) fn reserve(common: &ApiShared, compressor: usize) -> ReservedAnswer {
        let page = common.limits.page;
        let reserved = common.answers.try_reserve(page + compressor);
        let max_bytes = if reserved.is_some() { page } else { page.min(SMALL) };
        ReservedAnswer { compressor, max_bytes, reserved }
    }

    /// Returns the maximum bytes of a page.
    pub(super) const fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Releases the memory that a text of this length does not need, before a long wait.
    pub(super) fn shrink(&mut self, bytes: usize) {
        if let Some(reserved) = &mut self.reserved {
            reserved.shrink(reserved.len().min(bytes + self.compressor));
        }
    }

    /// Returns the memory of an answer with one row, whose size is not known before.
    pub(super) const fn of_row() -> ReservedAnswer {
        ReservedAnswer { compressor: 0, max_bytes: usize::MAX, reserved: None }
    }

    /// Returns the answer with its memory. A row larger than a page is refused when there is no memory.
    pub(super) fn with(&mut self, app: &FleetApi, text: String) -> Result<Response<Body>, ProblemDetails> {
        let (size, reserved) = (text.len(), self.reserved.take());
        if size <= SMALL {
            return Ok(json(text));
        }
        let wanted = size + self.compressor;
        let reserved = match reserved {
            Some(mut reserved) if reserved.len() >= wanted => {
                reserved.shrink(wanted);
                Some(reserved)
            }
            too_small => {
                drop(too_small);
                app.common.answers.try_reserve(wanted)
            }
        };
        let busy = || {
            ProblemDetails::new(BUSY, format!("cannot send {size} bytes: too many answers are being sent"))
        };
        let text = ReservedText { text, _reserved: reserved.ok_or_else(busy)? };
        Ok(json(Bytes::from_owner(text)))
    }
}
