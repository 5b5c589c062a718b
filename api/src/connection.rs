//! Requests of one connection: one at a time over HTTP/1.1, several over HTTP/2, each of which is a *stream*.
//!
//! HTTP/2 is supported without TLS, for clients that start with its preface ("prior knowledge"). The limits
//! of an HTTP/1.1 connection apply to each stream:
//!
//! | limit | HTTP/1.1 | HTTP/2 |
//! |---|---|---|
//! | slots | one for the connection | one for the connection, and one for each concurrent stream after the first |
//! | first request | within `header_read` of the connection | the same |
//! | no request | closed after `header_read` | the same: open streams end first |
//! | answer that the client does not read | closed after `stall` (by the socket) | closed after `stall`, also if the client reads the answers of other streams |
//! | name of the server | the header `Host` | the pseudo-header `:authority`, or the header |
//!
//! HTTP/2 buffers at most 64 KiB of unread data from a client. Each answer is passed to the connection in
//! pieces of 16 KiB, when the client has room.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Response, Version, header};
use hyper::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::rate::PeerAddress;
use super::serve::busy;
use super::slots::{ConnectionSlot, ConnectionSlots};
use super::{ApiShared, HttpLimits};

/// Size of the pieces in which an answer is passed to an HTTP/2 connection, in bytes.
const PIECE: usize = 16 << 10;

/// State of the requests of one connection.
pub(super) struct ConnectionRequests {
    peer: IpAddr,
    common: Arc<ApiShared>,
    slots: Arc<ConnectionSlots>,
    state: Mutex<RequestsState>,
}

#[derive(Default)]
struct RequestsState {
    version: Option<Version>,
    /// Open streams, each with the time since which the client has to accept a piece of its answer.
    streams: Vec<(u64, Option<Instant>)>,
    issued: u64,
    /// Time at which the last stream ended.
    idle: Option<Instant>,
}

/// Reason for closing a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CloseReason {
    /// No request arrived within `header_read`.
    Idle,
    /// The client accepted no part of an answer within `stall`.
    Stalled,
}

impl ConnectionRequests {
    /// Returns the state of a connection from `peer` that was just accepted.
    pub(super) fn new(peer: IpAddr, common: Arc<ApiShared>, slots: Arc<ConnectionSlots>) -> Arc<Self> {
        let state = RequestsState { idle: Some(Instant::now()), ..RequestsState::default() };
        Arc::new(ConnectionRequests { peer, common, slots, state: Mutex::new(state) })
    }

    /// Answers one request with the service.
    pub(super) async fn answer(
        self: Arc<Self>,
        service: Router,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        request.extensions_mut().insert(PeerAddress(self.peer));
        if request.version() != Version::HTTP_2 {
            self.lock().version = Some(request.version());
            return service.oneshot(request).await;
        }
        let host = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        if let Some(host) = host.filter(|_| !request.headers().contains_key(header::HOST)) {
            request.headers_mut().insert(header::HOST, host);
        }
        let Some(stream) = self.open() else {
            self.common.metrics.connection_rejected();
            return Ok(busy(self.common.limits.connections));
        };
        let answered = service.oneshot(request).await;
        answered.map(|response| {
            // The client has to make room for the first piece as for any other.
            stream.waits(true);
            response.map(|answer| Body::new(StreamBody { answer, rest: Bytes::new(), stream }))
        })
    }

    /// Opens a stream. Returns `None` if other streams are open and no slot is free.
    fn open(self: &Arc<Self>) -> Option<OpenStream> {
        let mut state = self.lock();
        let slot = if state.streams.is_empty() { None } else { Some(self.slots.take(self.peer)?) };
        state.version = Some(Version::HTTP_2);
        state.idle = None;
        state.issued += 1;
        let number = state.issued;
        state.streams.push((number, None));
        Some(OpenStream { requests: Arc::clone(self), number, _slot: slot })
    }

    /// Waits until the connection must be closed. For HTTP/1.1, only the first request has a deadline here.
    pub(super) async fn closing(&self) -> CloseReason {
        let HttpLimits { header_read, stall, .. } = self.common.limits;
        loop {
            let now = Instant::now();
            let (at, reason) = match self.next_check(header_read, stall) {
                None => std::future::pending().await,
                Some(next) => next,
            };
            if at <= now {
                return reason;
            }
            // A stream that opens meanwhile has at least the shorter of both times.
            tokio::time::sleep_until(at.min(now + header_read.min(stall))).await;
        }
    }

    /// Returns the time at which the connection must be closed unless its state changes, and the reason.
    fn next_check(&self, header_read: Duration, stall: Duration) -> Option<(Instant, CloseReason)> {
        let state = self.lock();
        if state.version.is_some_and(|version| version != Version::HTTP_2) {
            return None;
        }
        let idle = state.idle.map(|idle| (idle + header_read, CloseReason::Idle));
        let waits = state.streams.iter().filter_map(|(_, since)| *since).min();
        let far = || (Instant::now() + stall, CloseReason::Stalled);
        Some(idle.or(waits.map(|since| (since + stall, CloseReason::Stalled))).unwrap_or_else(far))
    }

    fn lock(&self) -> MutexGuard<'_, RequestsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stream, from its request to the end of its answer.
struct OpenStream {
    requests: Arc<ConnectionRequests>,
    number: u64,
    /// Slot of the stream, if others were open before it.
    _slot: Option<ConnectionSlot>,
}

impl OpenStream {
    /// Records whether the client has to accept a piece of the answer before the next piece is requested.
    fn waits(&self, waits: bool) {
        let mut state = self.requests.lock();
        let since = waits.then(Instant::now);
        if let Some(stream) = state.streams.iter_mut().find(|(number, _)| *number == self.number) {
            stream.1 = since;
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut state = self.requests.lock();
        state.streams.retain(|(number, _)| *number != self.number);
        state.idle = state.streams.is_empty().then(Instant::now);
    }
}

/// Answer to the request of a stream, in pieces. The next piece is requested when the client has room for it.
struct StreamBody {
    answer: Body,
    rest: Bytes,
    stream: OpenStream,
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            // There is room, so that only the answer itself is waited for.
            self.stream.waits(false);
            match std::task::ready!(Pin::new(&mut self.answer).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        self.stream.waits(true);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of_answer, rest) = (self.answer.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(of_answer.lower() + rest);
        if let Some(upper) = of_answer.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
