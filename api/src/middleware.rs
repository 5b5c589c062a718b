//! The edge: processing that is common to all requests.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use axum::response::IntoResponse as _;
use chancery_decider::leader_router::LeaderLocation;
use chancery_events::name::FleetName;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;
use uuid::Uuid;

use super::admission::{admit, admit_media};
use super::budget::{ByteBudget, ReservedBytes, SMALL};
use super::positions;
use super::problem::{
    BUSY, CLOCK_AHEAD, FLEET_BLOCKED, GONE, HEADERS_TOO_LARGE, INTERNAL, MALFORMED, NO_LEADER, NOT_FOUND,
    ProblemDetails, REQUEST_TIMEOUT, TIMEOUT, TOO_LARGE, URI_TOO_LONG, with_body,
};
use super::query::QueryParams;
use super::rate::RequestPrincipal;
use super::routes::{self, HttpRoute, RouteMatch, RouteResult, RouteTarget};
use super::{
    ApiShared, ApiState, FleetApi, HttpLimits, accept, catalogue, causes, channels, consoles, description,
    diff, discovery, disruptions, dry_run, forward, intents, logs, metrics, read, request_span, schemas,
    stream, write,
};

/// Media type of text.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// Request, as the outermost handler and the handler of its route see it.
#[derive(Debug)]
pub(super) struct RequestContext {
    pub(super) id: String,
    /// Target of the request as it was sent.
    target: Uri,
    /// Route of the request, set when one matches.
    route: OnceLock<&'static HttpRoute>,
}

/// Request with the route that it matched.
pub(super) struct RoutedRequest {
    pub(super) context: Arc<RequestContext>,
    pub(super) found: RouteMatch,
    pub(super) parts: Parts,
    pub(super) principal: RequestPrincipal,
}

/// Returns the API as a router, without its listener.
pub fn router(api: ApiState) -> Router {
    let api = Arc::new(api);
    let layers = option_layer(api.common.hosts.cors());
    let layers = (layers, CatchPanicLayer::custom(panicked));
    let routes = routes::router(answer_routed).with_state(Arc::clone(&api)).layer(layers);
    Router::new().fallback(answer).with_state((api, routes))
}

/// Answers any request: admits it, and completes the answer of its route.
async fn answer(
    State((api, routes)): State<(Arc<ApiState>, Router)>,
    mut request: Request<Body>,
) -> Response<Body> {
    let ApiShared { limits, hosts, metrics, rates, .. } = &*api.common;
    let began = Instant::now();
    let (id, target) = (Uuid::new_v4().to_string(), request.uri().clone());
    let context = Arc::new(RequestContext { id, target, route: OnceLock::new() });
    let (id, method, path) = (&context.id, request.method().clone(), context.target.path());
    let admitted = checked(limits, &request).and_then(|()| admit(hosts, &request));
    let response = match admitted.and_then(|()| rates.take_options(&request)) {
        Ok(()) => {
            if let Some(target) = routes::routed(request.uri()) {
                *request.uri_mut() = target;
            }
            take_weights(request.headers_mut());
            request.extensions_mut().insert(Arc::clone(&context));
            routes.oneshot(request).await.into_response()
        }
        Err(problem) => refuse(problem, request.into_body(), limits).await.into_response(),
    };
    let mut response = with_body(response, id);
    if !has_length(&method, &response) {
        *response.body_mut() = without_length();
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(id) {
        headers.insert("chancery-request-id", value);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    let status = response.status().as_u16();
    let taken = began.elapsed();
    let route = context.route.get();
    metrics.request(route.map_or("none", |route| &route.path), &method, status, taken);
    // Probes are frequent and carry no information.
    if !route.is_some_and(|route| {
        matches!(route.does, RouteTarget::Live | RouteTarget::Ready | RouteTarget::Metrics)
    }) {
        tracing::debug!(%method, path, status, request_id = id, ms = taken.as_secs_f64() * 1e3, "request");
    }
    response
}

/// Whether an answer has a body, or the length of the body that GET gets. A 304 has neither. An answer to HEAD has the length if the
/// body for GET was made: a stream has none, and a problem names the method, so that it has another length.
fn has_length(method: &Method, response: &Response<Body>) -> bool {
    let has_some = || response.headers().get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    match response.status() {
        StatusCode::NOT_MODIFIED => false,
        StatusCode::OK if *method == Method::HEAD => has_some(),
        _ => *method != Method::HEAD,
    }
}

/// Returns an empty body of unknown size. One of known size would add `Content-Length: 0` to the answer to HEAD and to a 304, which
/// must be the length of the body for GET (RFC 9110, section 8.6).
fn without_length() -> Body {
    Body::from_stream(async_stream::stream! {
        for bytes in Vec::<Result<Bytes, std::convert::Infallible>>::new() {
            yield bytes;
        }
    })
}

/// Removes an `Accept-Encoding` that excludes an encoding. For a header that excludes every encoding, the
/// compression layer would turn a finished answer into 406.
fn take_weights(headers: &mut HeaderMap) {
    let is_zero = |weight: &str| weight.trim().parse::<f32>().is_ok_and(|weight| weight == 0.0);
    let excludes = |value: &HeaderValue| {
        let mut parts = value.to_str().unwrap_or_default().split([',', ';']).map(str::trim);
        parts.any(|part| {
            part.strip_prefix(['q', 'Q']).and_then(|part| part.trim().strip_prefix('=')).is_some_and(is_zero)
        })
    };
    if headers.get_all(header::ACCEPT_ENCODING).iter().any(excludes) {
        headers.remove(header::ACCEPT_ENCODING);
    }
}

/// Answers a request whose route is known, within the limits of its principal, its body and its time.
async fn answer_routed(
    api: Arc<ApiState>,
    found: RouteResult,
    request: Request<Body>,
) -> Result<Response<Body>, ProblemDetails> {
    let ApiShared { limits, rates, bodies, .. } = &*api.common;
    let (mut parts, body) = request.into_parts();
    let context = parts.extensions.remove::<Arc<RequestContext>>();
    let context =
        context.ok_or_else(|| ProblemDetails::internal("answer the request", &"request without context"))?;
    parts.uri = context.target.clone();
    let principal = RequestPrincipal::of(&parts.headers, &parts.extensions);
    let asked = found.as_ref().ok().map(|found| found.route.does);
    let found = match admit_media(&parts.method, &parts.headers) {
        // OPTIONS has taken its token.
        Ok(()) if parts.method == Method::OPTIONS => found,
        Ok(()) => rates
            .take(asked, &principal)
            .and(found)
            .and_then(|found| accept::check(&parts.headers, found.route.does).map(|()| found)),
        // A request that is not admitted takes no token: a web page would spend those of local programs.
        Err(problem) => found.and(Err(problem)),
    };
    let found = match found {
        Ok(found) => found,
        Err(problem) => return Err(refuse(problem, body, limits).await),
    };
    context.route.get_or_init(|| found.route);
    let is_messages = found.route.does == RouteTarget::SendMessages;
    let most = if is_messages { limits.messages } else { limits.body_bytes };
    if body.size_hint().lower() > most as u64 {
        if !parts.headers.contains_key(header::EXPECT) {
            // A sender that reads the answer only after writing must be able to write.
            let (most, within) = (limits.body_bytes, limits.body_read);
            tokio::spawn(discard(body, most, within));
        }
        return Err(too_large(most));
    }
    let span = request_span::start(found.route, &parts);
    let (body, _reserved) = if is_messages {
        (RequestBody::Unread(body), None)
    } else {
        match reserved(bodies, body, most, SMALL, limits).await {
            Ok((body, reserved)) => (RequestBody::Read(Ok(body)), Some(reserved)),
            Err(problem) => (RequestBody::Read(Err(problem)), None),
        }
    };
    // The futures around it would otherwise each have, and copy, the memory of the largest handler.
    let answer = Box::pin(dispatch(&api, RoutedRequest { context, found, parts, principal }, body));
    let answer = chancery_spans::within(span.context(), answer);
    let answer = tokio::time::timeout(limits.request_timeout, answer)
        .await
        .unwrap_or_else(|_| Err(ProblemDetails::new(TIMEOUT, "cannot answer the request: timed out")));
    request_span::end(span, &answer);
    answer
}

/// Returns the problem after reading the body: a sender cut off while writing does not read the answer.
async fn refuse(problem: ProblemDetails, body: Body, limits: &HttpLimits) -> ProblemDetails {
    discard(body, limits.body_bytes, limits.body_read).await;
    problem
}

/// Factor on the largest body: that many bytes are read before a sender is cut off.
const DISCARDED: usize = 8;

/// Refuses a request that is too large before it is processed.
fn checked(limits: &HttpLimits, request: &Request<Body>) -> Result<(), ProblemDetails> {
    let uri = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    if uri > limits.uri {
        let detail = format!("invalid path of {uri} bytes: at most {} allowed", limits.uri);
        return Err(ProblemDetails::new(URI_TOO_LONG, detail));
    }
    let headers = request.headers();
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if headers.len() > limits.headers || bytes > limits.headers_bytes {
        let detail = format!(
            "invalid headers: {} with {bytes} bytes, at most {} with {} bytes allowed",
            headers.len(),
            limits.headers,
            limits.headers_bytes
        );
        return Err(ProblemDetails::new(HEADERS_TOO_LARGE, detail));
    }
    Ok(())
}

/// Body of a request, read or not.
enum RequestBody {
    /// Body that was read, or the reason why it cannot be read.
    Read(Result<Bytes, ProblemDetails>),
    /// Body of an executor's messages, which may be large. None of it is read before the executor is known.
    Unread(Body),
}

/// Returns the fleet that a request addresses.
fn fleet<'a>(api: &'a ApiState, call: &RoutedRequest) -> Result<&'a Arc<FleetApi>, ProblemDetails> {
    let name = call.found.param("fleet").unwrap_or_default();
    let found = name.parse::<FleetName>().ok().and_then(|name| api.fleets.get(&name));
    found.ok_or_else(|| {
        if forward::is_forwarded(&call.parts.headers) {
            // The sender took this server for the last leader, but this server has other fleets now.
            return forward::no_leader();
        }
        let shown: String = name.chars().take(100).collect();
        let here: Vec<_> = api.fleets.keys().map(|name| format!("{name:?}")).collect();
        ProblemDetails::new(
            NOT_FOUND,
            format!("there is no fleet {shown:?} on this server, only {}", here.join(", ")),
        )
    })
}

/// Returns the time that another server has to answer; it leaves time to report an unknown outcome.
pub(super) fn patience(app: &FleetApi) -> Duration {
    app.common.limits.request_timeout.mul_f32(0.8)
}

async fn dispatch(
    api: &ApiState,
    call: RoutedRequest,
    sent: RequestBody,
) -> Result<Response<Body>, ProblemDetails> {
    let does = call.found.route.does;
    let params = QueryParams::read(&call.parts.uri);
    match does {
        RouteTarget::Live => params?.end(&[]).map(|()| with_type(TEXT, "live\n")),
        RouteTarget::Ready => {
            params?.end(&[])?;
            api.ready().await
        }
        RouteTarget::Metrics => {
            params?.end(&[])?;
            metrics::show(api, &call.parts.headers).await
        }
        RouteTarget::OpenApi => params?.end(&[]).and_then(|()| description::get(&api.common, &call)),
        RouteTarget::Version => params?.end(&[]).and_then(|()| discovery::version()),
        RouteTarget::Index => params?.end(&[]).and_then(|()| discovery::index()),
        RouteTarget::Fleets => params?.end(&[]).and_then(|()| discovery::fleets(api)),
        RouteTarget::Fleet => {
            params?.end(&[])?;
            let app = fleet(api, &call)?;
            discovery::fleet(app, call.found.param("fleet").unwrap_or_default())
        }
        RouteTarget::Schema => {
            params?.end(&[]).and_then(|()| schemas::get(call.found.param("type").unwrap_or_default()))
        }
        RouteTarget::ErrorEntry => {
            params?.end(&[]).and_then(|()| catalogue::get(call.found.param("code").unwrap_or_default()))
        }
        RouteTarget::List(_)
        | RouteTarget::Get(_)
        | RouteTarget::Disruption
        | RouteTarget::History(_)
        | RouteTarget::Why(_)
        | RouteTarget::Event(_)
        | RouteTarget::Diff
        | RouteTarget::Events
        | RouteTarget::Logs => {
            let app = fleet(api, &call)?;
            read_of(app, &call, params?).await.map(|response| positions::named(app, response))
        }
        RouteTarget::DryRun => {
            let app = fleet(api, &call)?;
            let RequestBody::Read(body) = sent else {
                return Err(ProblemDetails::new(INTERNAL, "cannot decide intents: their body was not read"));
            };
            dry_run::take(app, &call, params?, body).await.map(|response| positions::named(app, response))
        }
        RouteTarget::Intents
        | RouteTarget::Intent(..)
        | RouteTarget::OpenChannel
        | RouteTarget::OfferConsoles
        | RouteTarget::SendReplies
        | RouteTarget::AttachConsole
        | RouteTarget::SendInput
        | RouteTarget::SendMessages => {
            let app = fleet(api, &call).and_then(|app| app.writable().map(|()| app));
            match sent {
                RequestBody::Read(body) => {
                    let app = app?;
                    let written = Box::pin(write_to(app, call, params?, body)).await;
                    written.map(|response| positions::named(app, response))
                }
                RequestBody::Unread(body) => {
                    Box::pin(say_to(app, &api.common.limits, call, params, body)).await
                }
            }
        }
    }
}

async fn read_of(
    app: &Arc<FleetApi>,
    call: &RoutedRequest,
    params: QueryParams,
) -> Result<Response<Body>, ProblemDetails> {
    match call.found.route.does {
        RouteTarget::List(kind) => read::list(app, call, kind, params).await,
        RouteTarget::Get(kind) => read::get(app, call, kind, params).await,
        RouteTarget::Disruption => disruptions::get(app, call, params).await,
        RouteTarget::History(kind) => read::history(app, call, kind, params).await,
        RouteTarget::Why(kind) => causes::why(app, call, kind, params).await,
        RouteTarget::Event(read) => causes::of_event(app, call, read, params).await,
        RouteTarget::Diff => diff::get(app, call, params).await,
        RouteTarget::Events => stream::events(app, params, &call.parts.headers).await,
        RouteTarget::Logs => logs::read(app, call, params).await,
        other => Err(ProblemDetails::new(INTERNAL, format!("cannot read {other:?}: not a read"))),
    }
}

/// Answers a request that needs the decider: on this server, or through the server that is the leader.
async fn write_to(
    app: &Arc<FleetApi>,
    call: RoutedRequest,
    params: QueryParams,
    body: Result<Bytes, ProblemDetails>,
) -> Result<Response<Body>, ProblemDetails> {
    if let RouteTarget::OfferConsoles
    | RouteTarget::SendReplies
    | RouteTarget::AttachConsole
    | RouteTarget::SendInput = call.found.route.does
    {
        return consoles::answer(app, call, params, body).await;
    }
    let query_members = write::in_query(call.found.route.does, params)?;
    let decider = match app.router.find() {
        LeaderLocation::Local(decider) => decider,
        LeaderLocation::Remote(there) => {
            return forward::send(app, &there, &call.parts, body?.into(), patience(app)).await;
        }
        LeaderLocation::Unknown => return Err(forward::no_leader()),
    };
    forward::check(app, &call.parts.headers)?;
    match call.found.route.does {
        RouteTarget::Intents => intents::take(app, &decider, call, body).await,
        RouteTarget::Intent(entry, shape) => {
            write::typed(app, &decider, call, body, (entry, shape), query_members).await
        }
        RouteTarget::OpenChannel => channels::open(app, &decider, &call, body).await,
        other => Err(ProblemDetails::new(INTERNAL, format!("cannot write {other:?}: not a write"))),
    }
}

/// Accepts an executor's messages on its channel, which this server may have opened on the leader.
async fn say_to(
    app: Result<&Arc<FleetApi>, ProblemDetails>,
    limits: &HttpLimits,
    call: RoutedRequest,
    params: Result<QueryParams, ProblemDetails>,
    body: Body,
) -> Result<Response<Body>, ProblemDetails> {
    let found = app.and_then(|app| {
        forward::check(app, &call.parts.headers)?;
        Ok((app, channels::find(app, &call, params?)))
    });
    let problem = match found {
        Ok((app, Ok(saying))) => return saying.take(app, body).await,
        Ok((app, Err(problem))) => match app.router.find() {
            LeaderLocation::Remote(there) if problem.is(GONE) => {
                return forward::send(app, &there, &call.parts, body, patience(app)).await;
            }
            LeaderLocation::Remote(_) | LeaderLocation::Local(_) | LeaderLocation::Unknown => problem,
        },
        Err(problem) => problem,
    };
    Err(refuse(problem, body, limits).await)
}

impl ApiState {
    /// Reports ready if no part of any fleet is stalled, the leader is known (unless this server only reads), and
    /// the rows reach the durable position within one second.
    async fn ready(&self) -> Result<Response<Body>, ProblemDetails> {
        for (name, app) in &self.fleets {
            let head = app.source.head();
            if let Some(trouble) = app.router.clock_trouble(head.map(|head| head.time)).await {
                return Err(ProblemDetails::new(CLOCK_AHEAD, format!("fleet {name}: {trouble}")));
            }
            let troubles = app.troubles();
            if !troubles.is_empty() {
                let named = troubles.iter().map(|(part, trouble)| format!("fleet {name}, {part}: {trouble}"));
                return Err(ProblemDetails::new(FLEET_BLOCKED, named.collect::<Vec<_>>().join("\n")));
            }
            if let LeaderLocation::Unknown = app.router.find()
                && !app.router.is_read_only()
            {
                let what = format!("fleet {name}: this server knows no leader");
                return Err(ProblemDetails::new(NO_LEADER, what));
            }
            let tail = head.map_or_else(Default::default, |head| head.position);
            read::reached(app, tail, Duration::from_secs(1)).await.map_err(|mut problem| {
                problem.detail.insert_str(0, &format!("fleet {name}: "));
                problem
            })?;
        }
        Ok(with_type(TEXT, "ready\n"))
    }
}

/// Answers a request whose handler has panicked; the connection and other requests continue. State that a
/// panic leaves incomplete belongs to that request alone, or is guarded by its own lock.
#[expect(clippy::needless_pass_by_value, reason = "the form that the layer takes")]
fn panicked(panic: Box<dyn Any + Send>) -> Response<Body> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    ProblemDetails::internal("answer the request", &text).into_response()
}

/// Reads a whole body of at most `most` bytes after reserving memory for all of it except `own` bytes, which
/// every request may use. With partial reservations, requests would wait for each other.
pub(super) async fn reserved(
    budget: &ByteBudget,
    body: Body,
    most: usize,
    own: usize,
    limits: &HttpLimits,
) -> Result<(Bytes, ReservedBytes), ProblemDetails> {
    let size = body.size_hint();
    if size.lower() > most as u64 {
        return Err(refuse(too_large(most), body, limits).await);
    }
    let likely = size.upper().and_then(|size| usize::try_from(size).ok()).unwrap_or(most).min(most);
    let reserved = budget.reserve(likely.saturating_sub(own));
    let Ok(reserved) = tokio::time::timeout(limits.body_read, reserved).await else {
        let problem = ProblemDetails::new(
            BUSY,
            "cannot read body: the memory for bodies is used by incomplete requests",
        );
        return Err(refuse(problem, body, limits).await);
    };
    Ok((whole(body, most, limits.body_read).await?, reserved))
}

/// Reads a whole body. A body that is too large is still read, up to a bound, and discarded.
pub(super) async fn whole(body: Body, most: usize, within: Duration) -> Result<Bytes, ProblemDetails> {
    let read = async {
        // Capacity is the announced size: growing by doubling would take twice as much.
        let size = usize::try_from(body.size_hint().lower()).unwrap_or(most).min(most);
        let (mut body, mut kept, mut taken) = (body, Vec::with_capacity(size), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame
                .map_err(|error| ProblemDetails::new(MALFORMED, format!("cannot read body: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            taken += data.len();
            if taken > most * DISCARDED {
                break;
            }
            if taken <= most {
                kept.extend_from_slice(&data);
            }
        }
        if taken > most {
            return Err(too_large(most));
        }
        Ok(kept.into())
    };
    let late = |_| ProblemDetails::new(REQUEST_TIMEOUT, "cannot read body: timed out");
    tokio::time::timeout(within, read).await.map_err(late)?
}

/// Reads and discards a body up to a bound, because its sender reads the answer only after writing.
async fn discard(body: Body, most: usize, within: Duration) {
    let taken = async {
        let (mut body, mut taken) = (body, 0);
        while let Some(Ok(frame)) = body.frame().await
            && taken <= most * DISCARDED
        {
            taken += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // Late or aborted: in both cases there is an answer already.
    let _ = tokio::time::timeout(within, taken).await;
}

/// Returns the problem of a body with more than `most` bytes.
pub(super) fn too_large(most: usize) -> ProblemDetails {
    ProblemDetails::new(TOO_LARGE, format!("cannot read body: it has more than {most} bytes"))
}

/// Returns an answer of a media type.
pub(super) fn with_type(media_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Returns an answer in JSON.
pub(super) fn json(body: impl Into<Body>) -> Response<Body> {
    with_type("application/json", body)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::Layer as _;

    use super::*;

    fn size_of<F>(_: fn(Arc<ApiState>, RouteResult, Request<Body>) -> F) -> usize {
        std::mem::size_of::<F>()
    }

    #[test]
    fn the_future_of_an_answer_is_small() {
        assert!(size_of(answer_routed) <= 4096, "{}", size_of(answer_routed));
    }

    #[tokio::test]
    async fn a_panic_is_a_problem_of_its_own_request() {
        let panics = tower::service_fn(async |_: Request<Body>| -> Result<Response<Body>, Infallible> {
            panic!("on purpose")
        });
        let answer = CatchPanicLayer::custom(panicked).layer(panics).oneshot(Request::default()).await;
        let problem =
            answer.expect("an answer").extensions_mut().remove::<ProblemDetails>().expect("a problem");
        assert_eq!((problem.kind.status, problem.detail.contains("purpose")), (500, false));
    }
}
