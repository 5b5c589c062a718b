//! Consoles over HTTP, alongside a channel. As for the channel itself, all requests originate here: one long response carries the
//! server's requests, one per line, and replies go in separate requests. Output thus delays no heartbeat.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::console::ConsoleReply;
use hyper::StatusCode;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{DeciderEndpoint, PATIENCE, WAITING, forward, late};
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
    let path = format!("channels/{channel}/consoles");
    let body = late(timeout(PATIENCE, remote.post(&path, StatusCode::OK)).await)?.into_body();
    let (to_hub, requests) = mpsc::channel(WAITING);
    let (from_hub, replies) = mpsc::channel(WAITING);
    let to_server = format!("{path}/replies");
    let decode = |line: Vec<u8>| serde_json::from_slice(&line).map_err(io::Error::other);
    let encode = |reply: ConsoleReply| serde_json::to_vec(&reply).map_err(io::Error::other);
    tokio::select! {
        ended = forward(body, LONGEST, to_hub, decode, "consoles") => ended,
        ended = remote.send_lines(&to_server, replies, encode) => ended,
        () = serve_consoles(Arc::clone(hub), requests, from_hub) => Ok(()),
    }
}
