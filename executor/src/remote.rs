//! Channels to a decider over HTTP. All requests originate here, so an executor may be behind a firewall.
//!
//! Any server of a fleet will do: one that is not the leader forwards messages. After a failure the next is
//! tried.
//!
//! One long response carries the decider's messages, one per line. The executor's messages go in separate
//! requests, one after the other, each with the number of messages sent before. A request whose response was
//! lost is repeated, and the server ignores what it already has. Any other failure ends the channel, and the
//! session starts again with a hello. The session judges silence, by its lease.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chancery_events::name::FleetName;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::console::ConsoleHub;
use crate::or_never;
use crate::run::DeciderChannel;

mod consoles;
mod line_splitter;

use line_splitter::LineSplitter;

/// Time limit for opening a channel, and for a response to a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of attempts for a request whose connection fails.
const TRIES: u32 = 3;
/// Pause before another attempt.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of messages after which a request is sent; the last message may exceed the limit.
const BATCH: usize = 256 << 10;
/// Maximum size of a decider message, in bytes. The longest is a part of the inventory: a quarter of a
/// mebibyte of commands, and one more. A command combines the specs of a plan and of a deployment, each from
/// a record of at most 1 MiB.
const LONGEST: usize = 4 << 20;
/// Maximum number of waiting messages per direction; few, so that a heartbeat does not wait behind them.
const WAITING: usize = 64;
/// Maximum number of bytes read from a problem response.
const PROBLEM: usize = 64 << 10;

/// Servers of a fleet.
#[derive(Clone, Debug)]
pub struct DeciderEndpoints {
    all: Vec<DeciderEndpoint>,
    /// Index of the server of the last channel.
    at: Arc<AtomicUsize>,
    /// Consoles of the executor's guests, if it has any.
    consoles: Option<Arc<ConsoleHub>>,
}

impl DeciderEndpoints {
    /// Parses addresses separated by commas, each `http://host[:port][/before]`.
    pub fn new(servers: &str, fleet: &FleetName) -> Result<DeciderEndpoints, InvalidServerUrl> {
        let all: Vec<_> = servers
            .split(',')
            .map(|one| DeciderEndpoint::new(one.trim(), fleet))
            .collect::<Result<_, _>>()?;
        Ok(DeciderEndpoints { all, at: Arc::default(), consoles: None })
    }

    /// Serves consoles over each channel too.
    #[must_use]
    pub fn with_consoles(mut self, consoles: Arc<ConsoleHub>) -> DeciderEndpoints {
        self.consoles = Some(consoles);
        self
    }

    /// Opens a channel, preferably to the server of the last one.
    pub async fn connect(&self) -> io::Result<DeciderChannel> {
        let first = self.at.load(Ordering::Relaxed);
        let mut failed = None;
        for tried in 0..self.all.len() {
            let at = (first + tried) % self.all.len();
            match self.all[at].connect_with(self.consoles.clone()).await {
                Ok(channel) => {
                    self.at.store(at, Ordering::Relaxed);
                    return Ok(channel);
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::other("no server configured")))
    }

    /// Returns a row of the fleet as JSON from the server of the last channel, for a path such as `clusters/NAME`; `None` if
    /// the server has no such row.
    pub async fn row(&self, path: &str) -> io::Result<Option<Value>> {
        let at = self.at.load(Ordering::Relaxed) % self.all.len().max(1);
        let Some(server) = self.all.get(at) else { return Err(io::Error::other("no server configured")) };
        let row = late(timeout(PATIENCE, server.row(path)).await);
        if row.is_err() {
            self.at.store(at + 1, Ordering::Relaxed);
        }
        row
    }
}

/// Endpoint of a decider.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeciderEndpoint {
    host: String,
    port: u16,
    authority: String,
    /// Path of the fleet, with its prefix.
    fleet: String,
}

/// Server address that is invalid; the message gives the form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid server {0:?}: must be like http://127.0.0.1:7440")]
pub struct InvalidServerUrl(String);

/// Used part of a problem (RFC 9457).
#[derive(Deserialize)]
struct RemoteProblem {
    detail: String,
}

impl DeciderEndpoint {
    /// Parses the address of a server, `http://host[:port][/before]`; the port is 80 by default.
    pub fn new(server: &str, fleet: &FleetName) -> Result<DeciderEndpoint, InvalidServerUrl> {
        let bad = || InvalidServerUrl(server.to_owned());
        let uri: Uri = server.parse().map_err(|_| bad())?;
        let (Some("http"), Some(authority), None) = (uri.scheme_str(), uri.authority(), uri.query()) else {
            return Err(bad());
        };
        Ok(DeciderEndpoint {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.to_string(),
            fleet: format!("{}/v1/fleets/{fleet}", uri.path().trim_end_matches('/')),
        })
    }

    /// Opens a channel without consoles.
    pub async fn connect(&self) -> io::Result<DeciderChannel> {
        self.connect_with(None).await
    }

    /// Opens a channel, and serves the consoles alongside it if there are any.
    async fn connect_with(&self, consoles: Option<Arc<ConsoleHub>>) -> io::Result<DeciderChannel> {
        let (id, body) = late(timeout(PATIENCE, self.open()).await)?;
        let (to_decider, outgoing) = mpsc::channel(WAITING);
        let (incoming, from_decider) = mpsc::channel(WAITING);
        let remote = self.clone();
        tokio::spawn(async move {
            let path = format!("channels/{id}/messages");
            let consoles = consoles.map(|hub| consoles::serve(&remote, &id, hub));
            let ended = tokio::select! {
                ended = forward(body, LONGEST, incoming, Ok, "channel") => ended,
                ended = remote.send_lines(&path, outgoing, Ok) => ended,
                never = or_never(consoles) => match never {},
            };
            if let Err(error) = ended {
                tracing::info!(%error, "channel to decider lost");
            }
        });
        Ok(DeciderChannel { to_decider, from_decider })
    }

    async fn row(&self, path: &str) -> io::Result<Option<Value>> {
        let mut sender = self.dial().await?;
        let response = self.send(&mut sender, Method::GET, path, Bytes::new()).await?;
        match response.status() {
            StatusCode::OK => {
                let body = Limited::new(response.into_body(), LONGEST).collect().await;
                let body = body.map_err(io::Error::other)?.to_bytes();
                serde_json::from_slice(&body).map(Some).map_err(io::Error::other)
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(refused(response).await),
        }
    }

    async fn open(&self) -> io::Result<(String, Incoming)> {
        let response = self.post("channels", StatusCode::CREATED).await?;
        let id = response.headers().get("chancery-channel").and_then(|id| id.to_str().ok());
        let id = id.filter(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'));
        let id = id.ok_or_else(|| io::Error::other("invalid response: must name the opened channel"))?;
        Ok((id.to_owned(), response.into_body()))
    }

    /// Posts a request without a body on a connection of its own. An answer with another status is an error.
    async fn post(&self, path: &str, wanted: StatusCode) -> io::Result<Response<Incoming>> {
        let mut sender = self.dial().await?;
        let response = self.send(&mut sender, Method::POST, path, Bytes::new()).await?;
        if response.status() == wanted { Ok(response) } else { Err(refused(response).await) }
    }

    async fn dial(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to server ended early");
            }
        });
        Ok(sender)
    }

    /// Sends a request for a path of the fleet.
    async fn send(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> io::Result<Response<Incoming>> {
        sender.ready().await.map_err(io::Error::other)?;
        let request = Request::builder()
            .method(method)
            .uri(format!("{}/{path}", self.fleet))
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/x-ndjson")
            .body(Full::new(body))
            .map_err(io::Error::other)?;
        sender.send_request(request).await.map_err(io::Error::other)
    }

    /// Sends messages in requests, one message per line, until their sender ends.
    async fn send_lines<T>(
        &self,
        path: &str,
        mut from: mpsc::Receiver<T>,
        encode: impl Fn(T) -> io::Result<Vec<u8>>,
    ) -> io::Result<()> {
        let mut connection = None;
        let mut after = 0_u64;
        while let Some(first) = from.recv().await {
            let (mut body, mut count) = (encode(first)?, 1);
            body.push(b'\n');
            while body.len() < BATCH
                && let Ok(message) = from.try_recv()
            {
                body.extend(encode(message)?);
                body.push(b'\n');
                count += 1;
            }
            let path = format!("{path}?after={after}");
            self.deliver(&mut connection, &path, &body.into()).await?;
            after += count;
        }
        Ok(())
    }

    /// Delivers one request. An idle connection may have been closed, and any connection may fail.
    async fn deliver(
        &self,
        connection: &mut Option<SendRequest<Full<Bytes>>>,
        path: &str,
        body: &Bytes,
    ) -> io::Result<()> {
        let mut tried = 0;
        loop {
            tried += 1;
            let posted = late(timeout(PATIENCE, self.try_deliver(connection, path, body.clone())).await);
            match posted {
                Ok(response) if response.status() == StatusCode::NO_CONTENT => return Ok(()),
                Ok(response) => return Err(refused(response).await),
                Err(error) if tried == TRIES => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "request to server failed, retrying");
                    *connection = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn try_deliver(
        &self,
        connection: &mut Option<SendRequest<Full<Bytes>>>,
        path: &str,
        body: Bytes,
    ) -> io::Result<Response<Incoming>> {
        let sender = match connection {
            Some(sender) if !sender.is_closed() => sender,
            _ => connection.insert(self.dial().await?),
        };
        self.send(sender, Method::POST, path, body).await
    }
}

/// Forwards the lines of a response, of at most `longest` bytes each, until their receiver or the server ends. The error of an
/// end by the server has the name of what it closed.
async fn forward<T>(
    mut body: Incoming,
    longest: usize,
    to: mpsc::Sender<T>,
    decode: impl Fn(Vec<u8>) -> io::Result<T>,
    name: &str,
) -> io::Result<()> {
    let mut lines = LineSplitter::new(longest);
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = to.closed() => return Ok(()),
        };
        let Some(frame) = frame else {
            return Err(io::Error::other(format!("the server closed the {name}")));
        };
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        for line in lines.take(&data)? {
            if to.send(decode(line)?).await.is_err() {
                return Ok(());
            }
        }
    }
}

async fn refused(response: Response<Incoming>) -> io::Error {
    let status = response.status();
    let body = timeout(PATIENCE, Limited::new(response.into_body(), PROBLEM).collect()).await;
    // An unreadable body adds nothing to the status.
    let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
    match serde_json::from_slice::<RemoteProblem>(&body) {
        Ok(problem) => io::Error::other(format!("the server answered {status}: {}", problem.detail)),
        Err(_) => io::Error::other(format!("the server answered {status}")),
    }
}

fn late<T>(result: Result<io::Result<T>, tokio::time::error::Elapsed>) -> io::Result<T> {
    result
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time")))
}

#[cfg(test)]
mod tests;
