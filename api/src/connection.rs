//! The requests of one connection: one at a time over HTTP/1.1, several over HTTP/2, each of which is a *stream*.
//!
//! HTTP/2 is spoken without TLS, to clients that begin with its preface ("prior knowledge"). What limits an HTTP/1.1
//! connection limits each stream:
//!
//! | limit | HTTP/1.1 | HTTP/2 |
//! |---|---|---|
//! | slots | one for the connection | one for the connection, and one for each stream beside the first |
//! | first request | within `header_read` of the connection | the same |
//! | no request | closed after `header_read` | the same: streams that are open end first |
//! | answer that the client does not take | closed after `stall` (by the socket) | closed after `stall`, also where the client takes the answers of other streams |
//! | name of the server | the header `Host` | the pseudo-header `:authority`, or the header |
//!
//! HTTP/2 keeps at most 64 KiB of what a client sent and nobody has read, and gives an answer to the connection in pieces
//! of 16 KiB, each when the client has room for it.

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

use super::rate::Peer;
use super::serve::busy;
use super::slots::{ConnectionSlot, ConnectionSlots};
use super::{Common, Limits};

/// Bytes of an answer that are given to an HTTP/2 connection at one time.
const PIECE: usize = 16 << 10;

/// Requests of one connection.
pub(super) struct ConnectionRequests {
    peer: IpAddr,
    common: Arc<Common>,
    slots: Arc<ConnectionSlots>,
    state: Mutex<RequestsState>,
}

#[derive(Default)]
struct RequestsState {
    version: Option<Version>,
    /// Streams that are open; each with the time since which the client has to take a piece of its answer.
    streams: Vec<(u64, Option<Instant>)>,
    issued: u64,
    /// Time at which the last stream ended.
    idle: Option<Instant>,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CloseReason {
    /// No request has come for as long as one may take.
    Idle,
    /// The client has not taken an answer for as long as that may take.
    Stalled,
}

impl ConnectionRequests {
    /// Requests of a connection from `peer` that was accepted now.
    pub(super) fn new(peer: IpAddr, common: Arc<Common>, slots: Arc<ConnectionSlots>) -> Arc<Self> {
        let state = RequestsState { idle: Some(Instant::now()), ..RequestsState::default() };
        Arc::new(ConnectionRequests { peer, common, slots, state: Mutex::new(state) })
    }

    /// Answers one request by the service.
    pub(super) async fn answer(
        self: Arc<Self>,
        service: Router,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        request.extensions_mut().insert(Peer(self.peer));
        if request.version() != Version::HTTP_2 {
            self.lock().version = Some(request.version());
            return service.oneshot(request).await;
        }
        let host = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        if let Some(host) = host.filter(|_| !request.headers().contains_key(header::HOST)) {
            request.headers_mut().insert(header::HOST, host);
        }
        let Some(stream) = self.open() else {
            self.common.metrics.turned_away();
            return Ok(busy(self.common.limits.connections));
        };
        let answered = service.oneshot(request).await;
        answered.map(|response| {
            // The client has to make room for the first piece as for any other.
            stream.waits(true);
            response.map(|answer| Body::new(StreamBody { answer, rest: Bytes::new(), stream }))
        })
    }

    /// Opens a stream: nothing, if it is not the only one and no slot is free.
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

    /// Waits until the connection is to be closed. Of HTTP/1.1, only the first request is waited for here.
    pub(super) async fn closing(&self) -> CloseReason {
        let Limits { header_read, stall, .. } = self.common.limits;
        loop {
            let now = Instant::now();
            let (at, reason) = match self.next_check(header_read, stall) {
                None => std::future::pending().await,
                Some(next) => next,
            };
            if at <= now {
                return reason;
            }
            // What is opened meanwhile has at least as long as the shorter of both.
            tokio::time::sleep_until(at.min(now + header_read.min(stall))).await;
        }
    }

    /// When the connection is to be closed unless something changes, and why.
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

/// One stream, from its request to the end of its answer.
struct OpenStream {
    requests: Arc<ConnectionRequests>,
    number: u64,
    /// Of a stream beside others.
    _slot: Option<ConnectionSlot>,
}

impl OpenStream {
    /// Notes whether the client has to take a piece of the answer before the next one is asked for.
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

/// Answer to the request of a stream, in pieces. The next piece is asked for when the client has room for it.
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
            // There is room, so that nothing but the answer itself is waited for.
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
