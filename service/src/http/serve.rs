//! The listener: takes connections, within limits, until it is told to stop.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::util::MapRequest;

use super::problem::{BUSY, Problem};
use super::rate::Peer;
use super::{Api, Common, Limits, router};

/// Serves until `shutdown` comes: then it takes no more connections, ends streams, and lets requests in flight
/// finish for as long as the limits say.
pub async fn serve(api: Api, listener: TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let common = Arc::clone(&api.common);
    let Common { limits, metrics, .. } = &*common;
    let hubs: Vec<_> = api.fleets.values().map(|app| Arc::clone(&app.hub)).collect();
    let service = router(api);
    let builder = builder(limits);
    let room = Arc::new(Semaphore::new(limits.connections));
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, from) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            _ = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // A connection that was lost before it was taken; or no descriptor is free, which lasts until somebody
                // lets go of one. It is kept from happening by taking fewer connections than there are descriptors.
                Err(error) => {
                    tracing::warn!(%error, "taking a connection failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let _ = stream.set_nodelay(true);
        let Ok(permit) = room.clone().try_acquire_owned() else {
            metrics.turned_away();
            connections.spawn(turn_away(stream, limits.connections));
            continue;
        };
        let named = MapRequest::new(service.clone(), move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(from.ip()));
            request
        });
        let (io, service) =
            (TokioIo::new(Guarded::new(stream, limits.stall)), TowerToHyperService::new(named));
        let connection = builder.serve_connection(io, service);
        let (mut stopped, open) = (stopped.clone(), metrics.connections.clone());
        connections.spawn(async move {
            let _permit = permit;
            open.inc();
            let mut connection = pin!(connection);
            let stop = async { stopped.wait_for(|stopped| *stopped).await.map(drop) };
            let early = tokio::select! {
                ended = connection.as_mut() => Some(ended),
                _ = stop => None,
            };
            let ended = if let Some(ended) = early {
                ended
            } else {
                connection.as_mut().graceful_shutdown();
                connection.await
            };
            open.dec();
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listener);
    for hub in hubs {
        hub.close();
    }
    stop.send_replace(true);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.drain, all).await.is_err() {
        tracing::warn!("requests were still in flight when the time for them was over");
    }
    Ok(())
}

fn builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read)
        // Over these, hyper answers 431 without a body: what is a little over is told why by the edge.
        .max_headers(limits.headers + 28)
        .max_header_size(limits.headers_bytes * 2)
        .max_buf_size(limits.headers_bytes * 2 + (64 << 10));
    builder
}

/// Answers and closes: who waits in a queue learns nothing.
async fn turn_away(mut stream: TcpStream, most: usize) {
    let problem = Problem::new(BUSY, format!("{most} connections are open"));
    let body = serde_json::to_string(&problem.shown(&uuid::Uuid::new_v4().to_string())).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let write = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), write).await;
}

/// A connection that fails when the other side takes nothing for too long: nobody else would notice.
struct Guarded {
    stream: TcpStream,
    stall: Duration,
    /// Runs while a write waits.
    until: Option<Pin<Box<Sleep>>>,
}

impl Guarded {
    fn new(stream: TcpStream, stall: Duration) -> Guarded {
        Guarded { stream, stall, until: None }
    }

    fn watched<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let stall = self.stall;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + stall)));
        ready!(until.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side takes nothing")))
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for Guarded {
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
