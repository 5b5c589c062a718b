//! Consoles over HTTP, alongside a channel. As for the channel itself, all requests originate here: one long response carries the
//! server's requests, one per line, and replies go in separate requests. Output thus delays no heartbeat.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::console::{ConsoleReply, ConsoleRequest};
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, StatusCode};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::line_splitter::LineSplitter;
use super::{BATCH, DeciderEndpoint, PATIENCE, WAITING, late, refused};
use crate::console::{ConsoleHub, serve_consoles};

/// Maximum size of a request in bytes.
const LONGEST: usize = 64 << 10;
/// Pause before consoles are offered again.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves consoles alongside a channel until that ends. After a failure all clients are detached, and may attach again.
pub(super) async fn serve(remote: &DeciderEndpoint, channel: &str, hub: Arc<ConsoleHub>) -> Infallible {
    loop {
        if let Err(error) = serve_once(remote, channel, &hub).await {
            tracing::debug!(%error, "consoles cannot be reached, retrying");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn serve_once(remote: &DeciderEndpoint, channel: &str, hub: &Arc<ConsoleHub>) -> io::Result<()> {
    let body = late(timeout(PATIENCE, open(remote, channel)).await)?;
    let (to_hub, requests) = mpsc::channel(WAITING);
    let (from_hub, replies) = mpsc::channel(WAITING);
    tokio::select! {
        ended = forward_requests(body, to_hub) => ended,
        ended = send_replies(remote, channel, replies) => ended,
        () = serve_consoles(Arc::clone(hub), requests, from_hub) => Ok(()),
    }
}

async fn open(remote: &DeciderEndpoint, channel: &str) -> io::Result<Incoming> {
    let mut sender = remote.dial().await?;
    let path = format!("{}/channels/{channel}/consoles", remote.fleet);
    let response = remote.send(&mut sender, Method::POST, &path, Bytes::new()).await?;
    if response.status() != StatusCode::OK {
        return Err(refused(response).await);
    }
    Ok(response.into_body())
}

async fn forward_requests(mut body: Incoming, to: mpsc::Sender<ConsoleRequest>) -> io::Result<()> {
    let mut lines = LineSplitter::new(LONGEST);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        for line in lines.take(&data)? {
            let request = serde_json::from_slice(&line).map_err(io::Error::other)?;
            if to.send(request).await.is_err() {
                return Ok(());
            }
        }
    }
    Err(io::Error::other("the server closed the consoles"))
}

async fn send_replies(
    remote: &DeciderEndpoint,
    channel: &str,
    mut replies: mpsc::Receiver<ConsoleReply>,
) -> io::Result<()> {
    let (mut connection, mut after) = (None, 0_u64);
    while let Some(first) = replies.recv().await {
        let (mut body, mut count) = (line(&first)?, 1);
        while body.len() < BATCH
            && let Ok(reply) = replies.try_recv()
        {
            body.extend(line(&reply)?);
            count += 1;
        }
        let path = format!("{}/channels/{channel}/consoles/replies?after={after}", remote.fleet);
        remote.deliver(&mut connection, &path, &body.into()).await?;
        after += count;
    }
    Ok(())
}

fn line(reply: &ConsoleReply) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(reply).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}
