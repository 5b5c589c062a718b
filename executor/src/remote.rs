//! Links to a decider over HTTP: all requests go out from here, so that an executor may stand behind a firewall.
//!
//! Of several servers any will do: one that does not decide passes on what it is told. After a failure the next one is
//! tried.
//!
//! One long answer carries what the decider says, a line a message. What the executor says goes in requests of its
//! own, one after the other, each naming how many messages were said before: one whose answer was lost is repeated,
//! and the server takes from it what it has not. Whatever else goes wrong ends the link, and the session begins
//! again from a hello. Silence is the session's to judge: it has a lease.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chancery_events::name::FleetName;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::run::Link;

mod lines;

use lines::Lines;

/// How long a link may take to be opened, and a request to be answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// So often a request is tried whose connection fails.
const TRIES: u32 = 3;
/// Before it is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// So many bytes of messages go in one request; the last may be over.
const BATCH: usize = 256 << 10;
/// One message of the decider has at most so many bytes. The longest is a part of the inventory: a quarter of a
/// mebibyte of commands, and one more. A command is made of a plan's spec and a deployment's, each of which stands in a
/// record of at most one mebibyte.
const LONGEST: usize = 4 << 20;
/// Messages in each direction that wait. Few, so that a heartbeat does not wait behind them.
const WAITING: usize = 64;
/// What is read of an answer that is a problem.
const PROBLEM: usize = 64 << 10;

/// The servers of a fleet.
#[derive(Clone, Debug)]
pub struct Remotes {
    all: Vec<Remote>,
    /// The one that was tried last.
    at: Arc<AtomicUsize>,
}

impl Remotes {
    /// Those at the addresses between commas, each `http://host[:port][/before]`.
    pub fn new(servers: &str, fleet: &FleetName) -> Result<Remotes, BadServer> {
        let all: Vec<_> =
            servers.split(',').map(|one| Remote::new(one.trim(), fleet)).collect::<Result<_, _>>()?;
        Ok(Remotes { all, at: Arc::default() })
    }

    /// Opens a link, to the server that had the last one if that can be.
    pub async fn connect(&self) -> io::Result<Link> {
        let first = self.at.load(Ordering::Relaxed);
        let mut failed = None;
        for tried in 0..self.all.len() {
            let at = (first + tried) % self.all.len();
            match self.all[at].connect().await {
                Ok(link) => {
                    self.at.store(at, Ordering::Relaxed);
                    return Ok(link);
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::other("no server is named")))
    }
}

/// Where a decider is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remote {
    host: String,
    port: u16,
    authority: String,
    /// The path of links, with whatever stands before it.
    links: String,
}

/// A server's address that makes no sense; says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write a server as in http://127.0.0.1:7440, not {0:?}")]
pub struct BadServer(String);

/// What is read of a problem (RFC 9457).
#[derive(Deserialize)]
struct Problem {
    detail: String,
}

impl Remote {
    /// The fleet's decider at a server, `http://host[:port][/before]`.
    pub fn new(server: &str, fleet: &FleetName) -> Result<Remote, BadServer> {
        let bad = || BadServer(server.to_owned());
        let uri: Uri = server.parse().map_err(|_| bad())?;
        let (Some("http"), Some(authority), None) = (uri.scheme_str(), uri.authority(), uri.query()) else {
            return Err(bad());
        };
        Ok(Remote {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.to_string(),
            links: format!("{}/v1/fleets/{fleet}/links", uri.path().trim_end_matches('/')),
        })
    }

    /// Opens a link.
    pub async fn connect(&self) -> io::Result<Link> {
        let (id, body) = late(timeout(PATIENCE, self.open()).await)?;
        let (to_decider, said) = mpsc::channel(WAITING);
        let (told, from_decider) = mpsc::channel(WAITING);
        let remote = self.clone();
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = hear(body, told) => ended,
                ended = remote.say(&id, said) => ended,
            };
            if let Err(error) = ended {
                tracing::info!(%error, "the link to the decider is lost");
            }
        });
        Ok(Link { to_decider, from_decider })
    }

    async fn open(&self) -> io::Result<(String, Incoming)> {
        let mut sender = self.dial().await?;
        let response = self.post(&mut sender, &self.links, Bytes::new()).await?;
        if response.status() != StatusCode::CREATED {
            return Err(refused(response).await);
        }
        let id = response.headers().get("chancery-link").and_then(|id| id.to_str().ok());
        let id = id.filter(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'));
        let id = id.ok_or_else(|| io::Error::other("the server does not name the link that it opened"))?;
        Ok((id.to_owned(), response.into_body()))
    }

    async fn dial(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the server ended early");
            }
        });
        Ok(sender)
    }

    async fn post(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        path: &str,
        body: Bytes,
    ) -> io::Result<Response<Incoming>> {
        sender.ready().await.map_err(io::Error::other)?;
        let request = Request::post(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/x-ndjson")
            .body(Full::new(body))
            .map_err(io::Error::other)?;
        sender.send_request(request).await.map_err(io::Error::other)
    }

    /// Says what the executor says, until it hangs up.
    async fn say(&self, id: &str, mut from: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
        let mut connection = None;
        let mut after = 0_u64;
        while let Some(first) = from.recv().await {
            let (mut body, mut count) = (first, 1);
            body.push(b'\n');
            while body.len() < BATCH
                && let Ok(message) = from.try_recv()
            {
                body.extend_from_slice(&message);
                body.push(b'\n');
                count += 1;
            }
            let path = format!("{}/{id}/messages?after={after}", self.links);
            self.deliver(&mut connection, &path, &body.into()).await?;
            after += count;
        }
        Ok(())
    }

    /// Delivers one request. Its connection may have been closed for want of use, or may fail.
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
                    tracing::debug!(%error, "a request to the server is tried again");
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
        self.post(sender, path, body).await
    }
}

/// Passes on what the decider says, until the executor hangs up or the server does.
async fn hear(mut body: Incoming, to: mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    let mut lines = Lines::new(LONGEST);
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = to.closed() => return Ok(()),
        };
        let Some(frame) = frame else { return Err(io::Error::other("the server closed it")) };
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        for line in lines.take(&data)? {
            if to.send(line).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Why the server does not do it.
async fn refused(response: Response<Incoming>) -> io::Error {
    let status = response.status();
    let body = timeout(PATIENCE, Limited::new(response.into_body(), PROBLEM).collect()).await;
    // What cannot be read says no more than its status.
    let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
    match serde_json::from_slice::<Problem>(&body) {
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
