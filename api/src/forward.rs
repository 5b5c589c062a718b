//! Forwards requests that this server cannot answer to the leader: intents, and executors' channels.
//!
//! The request is forwarded unchanged, and the answer is returned unchanged, also a long-lived one.
//! Invariants: nothing is sent twice. A request is forwarded at most once, so that two servers that take each
//! other for the leader do not loop. The answer is truthful about whether something may have been recorded.
//! No decider of another journal accepts the request, whatever server has the address by now. A forwarded
//! request names the lineage of its fleet and the term of its decider.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use chancery_events::id::Lineage;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::FleetApi;
use super::admission::SEC_FETCH_SITE;
use super::last_verdict::note_forwarded;
use super::problem::{MISDIRECTED, NO_LEADER, ProblemDetails, UNKNOWN_OUTCOME};

/// Header of a request from another server, with the decider it is meant for: `LINEAGE/TERM`.
const FORWARDED: HeaderName = HeaderName::from_static("chancery-forwarded");
/// Time that an append may be without outcome after shutdown started: brokers may be unavailable.
pub const LAST_OUTCOMES: Duration = Duration::from_secs(4);
/// Time that the other server has to accept a connection.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time without a request after which a connection is closed. The time is short: on a connection to an
/// unreachable host, a request has an unknown outcome. A request that needs a new connection was not sent.
const IDLE: Duration = Duration::from_secs(1);
/// Maximum number of idle connections to one server.
const MAX_IDLE: usize = 32;
/// Headers of a connection, headers set by this server, and headers by which the request was admitted.
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

/// Client for connections to leaders.
pub(super) type DeciderClient = Client<HttpConnector, Body>;

/// Returns a client without connections. A reused connection that proves to be closed is replaced only if
/// nothing of the request was sent on it.
pub(super) fn client() -> DeciderClient {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(PATIENCE));
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MAX_IDLE)
        .build(connector)
}

/// Whether the request was forwarded by another server.
pub(super) fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED)
}

/// Whether a request is for this server's decider. A client's request is; a forwarded request must name the
/// lineage, and no later term than this server's.
pub(super) fn check(app: &FleetApi, headers: &HeaderMap) -> Result<(), ProblemDetails> {
    let Some(named) = headers.get(FORWARDED) else { return Ok(()) };
    let named = named.to_str().ok().and_then(|text| text.split_once('/'));
    let named = named.and_then(|(lineage, term)| Some((lineage.parse().ok()?, term.parse().ok()?)));
    let matches = |(lineage, term): (Lineage, u64)| {
        app.source.head().is_some_and(|head| head.lineage == lineage && head.term.get() >= term)
    };
    if named.is_some_and(matches) {
        return Ok(());
    }
    let detail = "cannot accept forwarded request: it is for a leader of another journal or a later term; nothing was recorded";
    Err(ProblemDetails::new(MISDIRECTED, detail))
}

/// Returns the problem for a fleet without a known leader.
pub(super) fn no_leader() -> ProblemDetails {
    ProblemDetails::new(
        NO_LEADER,
        "cannot process request: the fleet has no leader now; nothing was recorded",
    )
}

/// Sends the request to the server at `there`.
///
/// The answer must arrive within `patience`, which is below the request's limit, so that an unknown outcome
/// can still be reported. Once this server stops, it waits no longer than for its own appends.
pub(super) async fn send(
    app: &FleetApi,
    there: &Arc<str>,
    parts: &Parts,
    body: Body,
    patience: Duration,
) -> Result<Response<Body>, ProblemDetails> {
    if is_forwarded(&parts.headers) {
        return Err(no_leader());
    }
    let unreachable = |why: String| {
        let detail =
            format!("cannot forward request: leader at {there} unreachable: {why}; nothing was recorded");
        ProblemDetails::new(NO_LEADER, detail)
    };
    // The address is known from a record, so the journal has one.
    let head = app.source.head().ok_or_else(no_leader)?;
    let lineage = head.lineage;
    let decider = format!("{lineage}/{}", head.term);
    let request = request(there, &decider, parts, body).map_err(unreachable)?;
    // The request may have arrived, whatever the error, unless there was no connection.
    let unknown = |why: String| {
        let detail = format!(
            "cannot forward request: no answer of leader at {there}: {why}; whether the request was recorded is unknown\n\
             hint: repeat it with the same idempotency key to get its answer"
        );
        ProblemDetails::new(UNKNOWN_OUTCOME, detail)
    };
    let failed =
        |error: Error| if error.is_connect() { unreachable(cause(&error)) } else { unknown(cause(&error)) };
    let answer = tokio::select! {
        biased;
        answer = timeout(patience, app.common.deciders.request(request)) => match answer {
            Ok(answer) => answer.map_err(failed)?,
            Err(_) => return Err(unknown("no answer in time".into())),
        },
        () = stops(app.hub.closing(), LAST_OUTCOMES) => {
            return Err(unknown("this server is stopping, and there was no answer".into()));
        }
    };
    if answer.status() == StatusCode::MISDIRECTED_REQUEST {
        return Err(unreachable("the server there is of another fleet, or no longer the leader".into()));
    }
    let (mut head, body) = answer.into_parts();
    for name in &OURS {
        head.headers.remove(name);
    }
    note_forwarded(&app.last_verdict, &head.headers, lineage);
    Ok(Response::from_parts(head, Body::new(ForwardedBody::new(body, app.hub.closing()))))
}

/// Returns the root cause of an error; its wrappers add nothing for the reader.
fn cause(error: &Error) -> String {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::TimedOut => "connection timed out".into(),
        _ => cause.to_string(),
    }
}

/// Waits until this server has been stopping for `since`.
async fn stops(mut closing: watch::Receiver<bool>, since: Duration) {
    if closing.wait_for(|closing| *closing).await.is_err() {
        // Without its hub no fleet is served; the connection ends with the server.
        std::future::pending::<()>().await;
    }
    sleep(since).await;
}

/// Body of a forwarded answer. On shutdown, a body of unknown size ends, and one of known size soon after.
struct ForwardedBody {
    body: Incoming,
    stops: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl ForwardedBody {
    fn new(body: Incoming, closing: watch::Receiver<bool>) -> ForwardedBody {
        let since = if body.size_hint().exact().is_some() { LAST_OUTCOMES } else { Duration::ZERO };
        ForwardedBody { body, stops: Box::pin(stops(closing, since)) }
    }
}

impl HttpBody for ForwardedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        // The client must not take the received part for all of it.
        self.stops.as_mut().poll(cx).map(|()| Some(Err(io::Error::other("this server is stopping"))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn request(there: &str, decider: &str, parts: &Parts, body: Body) -> Result<Request<Body>, String> {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(parts.method.clone())
        .uri(format!("http://{there}{path}"))
        .body(body)
        .map_err(|error| error.to_string())?;
    *request.headers_mut() = parts.headers.clone();
    let headers = request.headers_mut();
    for name in &OURS {
        headers.remove(name);
    }
    headers.insert(FORWARDED, HeaderValue::from_str(decider).map_err(|error| error.to_string())?);
    crate::request_span::forward(headers);
    Ok(request)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns the body of an answer that starts with `answer` and does not end.
    async fn unfinished(answer: &'static [u8]) -> Incoming {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            // An answer before its request would be discarded.
            let read = stream.read(&mut [0; 4096]).await.expect("a request");
            assert!(read > 0, "a request");
            stream.write_all(answer).await.expect("it reads");
            // Until the peer closes the connection.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let request = Request::builder().uri(format!("http://{address}/")).body(Body::empty());
        client().request(request.expect("a request")).await.expect("an answer").into_body()
    }

    #[tokio::test]
    async fn the_body_of_a_forwarded_answer_that_does_not_end_is_cut_off_when_the_server_stops() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na",
        ] {
            let (stop, closing) = watch::channel(false);
            let mut body = ForwardedBody::new(unfinished(answer).await, closing);
            let frame = body.frame().await.expect("a frame").expect("it came");
            assert_eq!(frame.into_data().ok().as_deref(), Some(&b"a"[..]));
            stop.send_replace(true);
            let end = timeout(Duration::from_mins(1), body.frame())
                .await
                .expect("it ends")
                .expect("and reports why");
            assert_eq!(end.expect_err("not all of it came").to_string(), "this server is stopping");
        }
    }
}
