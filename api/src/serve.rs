//! The listener accepts connections, within limits, until shutdown.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Response;
use axum::response::IntoResponse as _;
use chancery_events::text::counted;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::ServiceExt as _;

use super::connection::{CloseReason, ConnectionRequests};
use super::problem::{BUSY, ProblemDetails, with_body};
use super::rate::PeerAddress;
use super::slots::{ConnectionSlot, ConnectionSlots, ProbeReserve};
use super::{ApiShared, ApiState, HttpLimits, router};

/// Time that a connection without a slot has to send its request, and again to receive the answer.
const PROBE: Duration = Duration::from_secs(2);

/// State of a listener and its connections.
struct ListenerState {
    common: Arc<ApiShared>,
    service: Router,
    slots: Arc<ConnectionSlots>,
    reserve: ProbeReserve,
    open: JoinSet<()>,
    stopped: watch::Receiver<bool>,
}

/// Serves requests until `shutdown` completes. The server then accepts no more connections, ends streams, and
/// lets requests in flight finish for as long as the limits allow.
pub async fn serve(
    api: ApiState,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let common = Arc::clone(&api.common);
    let hubs: Vec<_> = api.fleets.values().map(|app| Arc::clone(&app.hub)).collect();
    let (stop, stopped) = watch::channel(false);
    let mut connections = ListenerState {
        common: Arc::clone(&common),
        service: router(api),
        slots: Arc::new(ConnectionSlots::new(common.limits.connections)),
        reserve: ProbeReserve::default(),
        open: JoinSet::new(),
        stopped,
    };
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, from) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            _ = connections.open.join_next(), if !connections.open.is_empty() => continue,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // A connection was lost before it was accepted, or no descriptor is free until another one is
                // closed. Accepting fewer connections than there are descriptors avoids the latter.
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let _ = stream.set_nodelay(true);
        match connections.slots.take(from.ip()) {
            Some(slot) => connections.serve(stream, from.ip(), slot),
            None => connections.serve_probe(stream, from.ip()),
        }
    }
    drop(listener);
    for hub in hubs {
        hub.close();
    }
    stop.send_replace(true);
    let all = async { while connections.open.join_next().await.is_some() {} };
    if tokio::time::timeout(common.limits.drain, all).await.is_err() {
        tracing::warn!("shutdown timed out with requests in flight");
    }
    Ok(())
}

impl ListenerState {
    /// Serves a connection that has a slot.
    fn serve(&mut self, stream: TcpStream, peer: IpAddr, slot: ConnectionSlot) {
        let ApiShared { limits, metrics, .. } = &*self.common;
        let requests = ConnectionRequests::new(peer, Arc::clone(&self.common), Arc::clone(&self.slots));
        let (service, answering) = (self.service.clone(), Arc::clone(&requests));
        let answer = service_fn(move |request| Arc::clone(&answering).answer(service.clone(), request));
        let stall = limits.stall;
        let io = TokioIo::new(StallGuard::new(stream, stall));
        let connection = builder(limits).serve_connection(io, answer).into_owned();
        let (mut stopped, open) = (self.stopped.clone(), metrics.connections.clone());
        self.open.spawn(async move {
            let _slot = slot;
            open.inc();
            let mut connection = pin!(connection);
            let stop = async { stopped.wait_for(|stopped| *stopped).await.map(drop) };
            let early = tokio::select! {
                ended = connection.as_mut() => Some(ended),
                _ = stop => None,
                reason = requests.closing() => match reason {
                    CloseReason::Stalled => Some(Err("client does not read its answers".into())),
                    CloseReason::Idle => {
                        connection.as_mut().graceful_shutdown();
                        let ended = tokio::time::timeout(stall, connection.as_mut()).await;
                        Some(ended.unwrap_or_else(|_| Err("client does not read the end".into())))
                    }
                },
            };
            let ended = if let Some(ended) = early {
                ended
            } else {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    _ = requests.closing() => Err("client does not read its answers".into()),
                }
            };
            open.dec();
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended early");
            }
        });
    }

    /// Serves one request of a connection without a slot, above the limits: a probe is answered, any other
    /// request is refused.
    fn serve_probe(&mut self, stream: TcpStream, peer: IpAddr) {
        let limits = &self.common.limits;
        let asked = Arc::new(AtomicBool::new(false));
        let (service, common, has_asked) = (self.service.clone(), Arc::clone(&self.common), asked.clone());
        let answer = service_fn(move |request: Request<Incoming>| {
            has_asked.store(true, Ordering::Relaxed);
            let is_probe = matches!(request.uri().path(), "/livez" | "/healthz" | "/readyz");
            // The body is not waited for: a probe has none.
            let mut request = request.map(|_| Body::empty());
            request.extensions_mut().insert(PeerAddress(peer));
            let (service, common) = (service.clone(), Arc::clone(&common));
            async move {
                if is_probe {
                    return service.oneshot(request).await;
                }
                common.metrics.connection_rejected();
                Ok(busy(common.limits.connections))
            }
        });
        let mut builder = builder(limits).http1_only();
        builder.http1().keep_alive(false).header_read_timeout(limits.header_read.min(PROBE));
        let io = TokioIo::new(StallGuard::new(stream, limits.stall.min(PROBE)));
        let connection = builder.serve_connection(io, answer).into_owned();
        if self.reserve.make_space() {
            self.common.metrics.connection_rejected();
        }
        let task = self.open.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection without a slot ended early");
            }
        });
        self.reserve.add(task, asked);
    }
}

/// Maximum number of open streams on one HTTP/2 connection.
const STREAMS: u32 = 16;
/// Maximum number of unread bytes from the client on an HTTP/2 connection.
const WINDOW: u32 = 64 << 10;

fn builder(limits: &HttpLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Above these limits, hyper answers 431 without a body. The edge explains a small excess.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read)
        .max_headers(limits.headers + 28)
        .max_buf_size(limits.headers_bytes * 2);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(u32::try_from(limits.headers_bytes * 2).unwrap_or(u32::MAX));
    builder
}

/// Returns the refusal of non-probe requests when no slot is free; a client in a queue would learn nothing.
pub(super) fn busy(max: usize) -> Response<Body> {
    let detail = format!(
        "cannot serve request: the limit of {} is reached, or three quarters of it by one address; a stream of HTTP/2 \
         alongside others counts as one\n\
         hint: close unused connections, or raise limits.connections",
        counted(max, "connection")
    );
    with_body(ProblemDetails::new(BUSY, detail).into_response(), &uuid::Uuid::new_v4().to_string())
}

/// Connection that fails when its peer accepts no data for too long; nothing else would detect the stall.
struct StallGuard {
    stream: TcpStream,
    stall: Duration,
    /// Timer that runs while a write waits.
    until: Option<Pin<Box<Sleep>>>,
}

impl StallGuard {
    fn new(stream: TcpStream, stall: Duration) -> StallGuard {
        StallGuard { stream, stall, until: None }
    }

    fn watched<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let stall = self.stall;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + stall)));
        ready!(until.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "peer accepts no data")))
    }
}

impl AsyncRead for StallGuard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watched(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watched(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
