//! To the server that decides, for what this one cannot answer: intents, and executors' links.
//!
//! The request goes there as it came, and the answer comes back as it is, also one that lasts. What must stay true:
//! nothing is sent twice; a request goes on once at most, so that two servers that each believe in the other do not
//! send it in circles; whether something may have been recorded is told truly; no decider of another journal takes it,
//! whatever answers at the address by now: a forwarded request names the lineage of its fleet and the term of the
//! decider that it is for.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use chancery_events::id::Lineage;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::App;
use super::admission::SEC_FETCH_SITE;
use super::problem::{MISDIRECTED, NO_DECIDER, Problem, UNKNOWN_OUTCOME};

/// Says that a request has come from another server, and for which decider: `LINEAGE/TERM`.
const FORWARDED: HeaderName = HeaderName::from_static("chancery-forwarded");
/// How long the other server may take to take a connection.
const PATIENCE: Duration = Duration::from_secs(2);
/// Those of a connection, those that this server sets itself, and those by which it has admitted the request.
const OURS: [HeaderName; 9] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::HOST,
    header::ORIGIN,
    SEC_FETCH_SITE,
    HeaderName::from_static("keep-alive"),
];

/// Whether it has come from another server.
pub(super) fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED)
}

/// Whether a request is for this server's decider. One of a client is; a forwarded one names the lineage, and no later
/// term than this server's.
pub(super) fn check(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(named) = headers.get(FORWARDED) else { return Ok(()) };
    let named = named.to_str().ok().and_then(|text| text.split_once('/'));
    let named = named.and_then(|(lineage, term)| Some((lineage.parse().ok()?, term.parse().ok()?)));
    let matches = |(lineage, term): (Lineage, u64)| {
        app.source.head().is_some_and(|head| head.lineage == lineage && head.term.get() >= term)
    };
    if named.is_some_and(matches) {
        return Ok(());
    }
    let detail = "take a forwarded request: it is for a decider of another journal or a later term; nothing was recorded";
    Err(Problem::new(MISDIRECTED, detail))
}

/// Nobody decides, as far as this server knows.
pub(super) fn nobody() -> Problem {
    Problem::new(NO_DECIDER, "ask the decider: no server decides for this fleet now; nothing was recorded")
}

/// Sends the request to the server at `there`.
///
/// There must be an answer within `patience`, which is less than the whole request may take, so that what is not known
/// can still be said.
pub(super) async fn send(
    app: &App,
    there: &Arc<str>,
    parts: &Parts,
    body: Body,
    patience: Duration,
) -> Result<Response<Body>, Problem> {
    if is_forwarded(&parts.headers) {
        return Err(nobody());
    }
    let unreachable = |why: String| {
        let detail = format!("ask the decider at {there}: {why}; nothing was recorded");
        Problem::new(NO_DECIDER, detail)
    };
    // The address is known from a record, so there is one.
    let head = app.source.head().ok_or_else(nobody)?;
    let stream = match timeout(PATIENCE, TcpStream::connect(&**there)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(unreachable(error.to_string())),
        Err(_) => return Err(unreachable("it does not take connections".into())),
    };
    let _ = stream.set_nodelay(true);
    let opened = handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(error.to_string()))?;
    let (mut sender, connection) = opened;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the deciding server ended early");
        }
    });
    let lineage = head.lineage;
    let decider = format!("{lineage}/{}", head.term);
    let request = request(there, &decider, parts, body).map_err(unreachable)?;
    // From here on it may have arrived, whatever is heard of it.
    let unknown = |why: String| {
        let detail = format!(
            "ask the decider at {there}: {why}; it may or may not be recorded: repeat the request with the same \
             idempotency key, and the answer will be that of this one"
        );
        Problem::new(UNKNOWN_OUTCOME, detail)
    };
    let answer = match timeout(patience, sender.send_request(request)).await {
        Ok(answer) => answer.map_err(|error| unknown(error.to_string()))?,
        Err(_) => return Err(unknown("there was no answer".into())),
    };
    if answer.status() == StatusCode::MISDIRECTED_REQUEST {
        return Err(unreachable(
            "another fleet's server, or one that no longer decides, answers there".into(),
        ));
    }
    let (mut head, body) = answer.into_parts();
    for name in &OURS {
        head.headers.remove(name);
    }
    app.last_verdict.note_forwarded(&head.headers, lineage);
    Ok(Response::from_parts(head, Body::new(body)))
}

fn request(there: &str, decider: &str, parts: &Parts, body: Body) -> Result<Request<Body>, String> {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(parts.method.clone())
        .uri(path)
        .body(body)
        .map_err(|error| error.to_string())?;
    *request.headers_mut() = parts.headers.clone();
    let headers = request.headers_mut();
    for name in &OURS {
        headers.remove(name);
    }
    headers.insert(header::HOST, HeaderValue::from_str(there).map_err(|error| error.to_string())?);
    headers.insert(FORWARDED, HeaderValue::from_str(decider).map_err(|error| error.to_string())?);
    Ok(request)
}
