//! Table of all routes. It dispatches requests, and the API's description is generated from it, so that
//! neither can contain a route that the other lacks.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::handler::Handler as _;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter};
use chancery_events::intent::{Intent, IntentEntry, OperationApprove, OperationReject};
use chancery_events::kind::EntityKind;
use chancery_projector::RowKind;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::SizeAbove;

use super::budget::SMALL;
use super::causes::EventRead;
use super::problem::{METHOD_NOT_ALLOWED, ProblemDetails, ProblemKind, ROUTE_NOT_FOUND, RequestPart};

/// Conversion of the body of a typed route into the body of the intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BodyShape {
    /// Body of the intent without the path's parameters, which are added to it as members.
    Members,
    /// Body `{hash}`: one operation to approve.
    ApproveOne,
    /// Body `{reason}`: one operation to reject.
    RejectOne,
}

/// Action of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RouteTarget {
    List(RowKind),
    Get(RowKind),
    History(RowKind),
    /// Returns the facts behind a value of one of this kind.
    Why(RowKind),
    /// Returns an event, its causes or its effects.
    Event(EventRead),
    /// Compares the rows of two moments.
    Diff,
    /// Submits one intent of this entry of the register.
    Intent(&'static IntentEntry, BodyShape),
    /// Submits any intents, as CloudEvents.
    Intents,
    /// Decides any intents on a copy of the state.
    DryRun,
    /// Opens a channel of an executor outside the server.
    OpenChannel,
    /// Accepts messages of such an executor.
    SendMessages,
    /// Offers the consoles of such an executor.
    OfferConsoles,
    /// Accepts replies of such an executor about consoles.
    SendReplies,
    /// Attaches a client to a console.
    AttachConsole,
    /// Accepts input of an attached client.
    SendInput,
    Events,
    Logs,
    Live,
    Ready,
    Metrics,
    OpenApi,
    Schema,
    ErrorEntry,
    /// Returns a disruption, which is part of the row of its node.
    Disruption,
    /// Returns the version of the server.
    Version,
    /// Returns the paths from which the API can be explored.
    Index,
    /// Lists the fleets of the server.
    Fleets,
    /// Returns one of the fleets.
    Fleet,
}

impl RouteTarget {
    /// Returns the media type of the answer; `None` if there is no answer, or if the client chooses among several.
    pub(super) const fn media_type(self) -> Option<&'static str> {
        match self {
            RouteTarget::Events
            | RouteTarget::Metrics
            | RouteTarget::SendMessages
            | RouteTarget::SendReplies
            | RouteTarget::SendInput => None,
            RouteTarget::Logs | RouteTarget::Live | RouteTarget::Ready => Some("text/plain"),
            RouteTarget::Event(EventRead::Event) => Some("application/cloudevents+json"),
            RouteTarget::OpenChannel | RouteTarget::OfferConsoles | RouteTarget::AttachConsole => {
                Some("application/x-ndjson")
            }
            RouteTarget::Schema => Some("application/schema+json"),
            RouteTarget::ErrorEntry => Some("text/markdown"),
            RouteTarget::List(_)
            | RouteTarget::Get(_)
            | RouteTarget::Disruption
            | RouteTarget::History(_)
            | RouteTarget::Why(_)
            | RouteTarget::Event(EventRead::Causes | EventRead::Effects)
            | RouteTarget::Diff
            | RouteTarget::Intent(..)
            | RouteTarget::Intents
            | RouteTarget::DryRun
            | RouteTarget::OpenApi
            | RouteTarget::Version
            | RouteTarget::Index
            | RouteTarget::Fleets
            | RouteTarget::Fleet => Some("application/json"),
        }
    }
}

/// Route of the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HttpRoute {
    pub(super) method: Method,
    /// Path with parameters in braces.
    pub(super) path: String,
    pub(super) does: RouteTarget,
    /// Id of the operation in the API's description.
    pub(super) id: String,
    /// Purpose of the route, in one sentence.
    pub(super) about: String,
}

/// Prefix of all routes of a fleet.
pub(super) const FLEET: &str = "/v1/fleets/{fleet}";

/// Characters that a part of a path has only percent-encoded.
const NOT_IN_PATHS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Routes that approve or reject one operation: the body of the intent has a list of operations.
const OF_ONE: &[(&str, &IntentEntry, BodyShape, &str)] = &[
    (
        "/operations/{id}/approve",
        &OperationApprove::ENTRY,
        BodyShape::ApproveOne,
        "Approves an operation, exactly as it was shown.",
    ),
    ("/operations/{id}/reject", &OperationReject::ENTRY, BodyShape::RejectOne, "Rejects an operation."),
];

/// Table of all routes.
pub(super) static ROUTES: LazyLock<Vec<HttpRoute>> = LazyLock::new(|| {
    let mut all = Vec::new();
    let mut add = |method: Method, path: String, does: RouteTarget, id: &str, about: &str| {
        all.push(HttpRoute { method, path, does, id: id.to_owned(), about: about.to_owned() });
    };
    for kind in RowKind::ALL.iter().copied() {
        let (list, one, word) = (format!("{FLEET}/{kind}"), kind.kind().path(), kind.kind().word());
        let (about, id) = (format!("Lists {kind}."), format!("list_{kind}"));
        add(Method::GET, list, RouteTarget::List(kind), &id, &about);
        let (about, id) = (format!("Returns one of the {kind}."), format!("get_{word}"));
        add(Method::GET, format!("{FLEET}{one}"), RouteTarget::Get(kind), &id, &about);
        let about = format!("Lists the events about one of the {kind}.");
        let (path, id) = (format!("{FLEET}{one}/history"), format!("get_{word}_history"));
        add(Method::GET, path, RouteTarget::History(kind), &id, &about);
        let about = format!("Returns the facts behind a field of one of the {kind}, and their causes.");
        let (path, id) = (format!("{FLEET}{one}/why"), format!("get_{word}_why"));
        add(Method::GET, path, RouteTarget::Why(kind), &id, &about);
    }
    let (path, about) = (EntityKind::Disruption.path(), "Returns a disruption of a node.");
    add(Method::GET, format!("{FLEET}{path}"), RouteTarget::Disruption, "get_disruption", about);
    let diff = "Lists the entities whose rows differ between two moments.";
    add(Method::GET, format!("{FLEET}/diff"), RouteTarget::Diff, "get_diff", diff);
    let event = |path: &str| format!("{FLEET}/events/{{position}}{path}");
    add(Method::GET, event(""), RouteTarget::Event(EventRead::Event), "get_event", "Returns an event.");
    let about = "Lists the causes of an event, up to the first event of the chain.";
    add(Method::GET, event("/causes"), RouteTarget::Event(EventRead::Causes), "list_event_causes", about);
    let about = "Lists the facts that name an event as their cause.";
    add(Method::GET, event("/effects"), RouteTarget::Event(EventRead::Effects), "list_event_effects", about);
    let (of_plan, list) =
        (format!("{FLEET}/plans/{{plan}}/deployments"), RouteTarget::List(RowKind::Deployments));
    add(Method::GET, of_plan, list, "list_plan_deployments", "Lists a plan's deployments.");
    let intent_id = |entry: &IntentEntry| entry.type_name.trim_end_matches(".v1").replace('.', "_");
    for (path, entry, shape, about) in OF_ONE {
        let intent = RouteTarget::Intent(entry, *shape);
        add(Method::POST, format!("{FLEET}{path}"), intent, &intent_id(entry), about);
    }
    for entry in Intent::REGISTER {
        let method = Method::from_bytes(entry.method.as_bytes()).expect("a method");
        let (path, intent) =
            (format!("{FLEET}{}", entry.path), RouteTarget::Intent(entry, BodyShape::Members));
        // The routes of one operation have the ids with the singular.
        let id = intent_id(entry).replace("operation_", "operations_");
        add(method, path, intent, &id, entry.about);
    }
    let intents = "Submits intents as CloudEvents: structured, binary or a batch.";
    add(Method::POST, format!("{FLEET}/intents"), RouteTarget::Intents, "intents", intents);
    let dry_run =
        "Decides intents on a copy of the state, as CloudEvents like those of `intents`; records nothing.";
    add(Method::POST, format!("{FLEET}/dry-run"), RouteTarget::DryRun, "dry_run", dry_run);
    add(Method::GET, format!("{FLEET}/events"), RouteTarget::Events, "events", "Streams events.");
    let logs = "Returns the output of an incarnation's processes.";
    add(Method::GET, format!("{FLEET}/incarnations/{{id}}/logs"), RouteTarget::Logs, "logs", logs);
    let about = "Opens an executor's channel: the response continues with the decider's messages.";
    add(Method::POST, format!("{FLEET}/channels"), RouteTarget::OpenChannel, "open_channel", about);
    let channel = |path: &str| format!("{FLEET}/channels/{{channel}}/{path}");
    let about = "Accepts an executor's messages on its channel, in order.";
    add(Method::POST, channel("messages"), RouteTarget::SendMessages, "send_messages", about);
    let about = "Offers an executor's consoles: the response continues with requests about them.";
    add(Method::POST, channel("consoles"), RouteTarget::OfferConsoles, "offer_consoles", about);
    let about = "Accepts an executor's replies about consoles, in order.";
    add(Method::POST, channel("consoles/replies"), RouteTarget::SendReplies, "send_console_replies", about);
    let path = format!("{FLEET}/consoles/{{position}}/attach");
    let about = "Attaches to a console that an intent of the actor has opened: the response continues with its output.";
    add(Method::POST, path, RouteTarget::AttachConsole, "attach_console", about);
    let path = format!("{FLEET}/attachments/{{attachment}}/input");
    let about = "Gives input to the guest of an attachment.";
    add(Method::POST, path, RouteTarget::SendInput, "send_console_input", about);
    let alias = "Reports the same as `/livez`, for programs that have this path built in.";
    let error = "Describes an error code: its meaning and its remedy.";
    for (path, does, id, about) in [
        ("/livez", RouteTarget::Live, "live", "Reports that the process is live."),
        ("/healthz", RouteTarget::Live, "health", alias),
        ("/version", RouteTarget::Version, "version", "Returns the version of the server."),
        ("/v1", RouteTarget::Index, "index", "Returns the paths from which the API can be explored."),
        ("/v1/fleets", RouteTarget::Fleets, "list_fleets", "Lists the fleets of the server."),
        (FLEET, RouteTarget::Fleet, "get_fleet", "Returns one of the fleets."),
        ("/readyz", RouteTarget::Ready, "ready", "Reports whether the rows keep up with the journal."),
        ("/metrics", RouteTarget::Metrics, "metrics", "Returns metrics for Prometheus."),
        ("/v1/openapi.json", RouteTarget::OpenApi, "openapi", "Returns the description of this API."),
        ("/v1/schemas/{type}", RouteTarget::Schema, "schema", "Returns the JSON Schema of an event type."),
        ("/errors/{code}", RouteTarget::ErrorEntry, "error", error),
    ] {
        add(Method::GET, path.to_owned(), does, id, about);
    }
    all
});

/// Route of a request, or the problem instead of a route.
pub(super) type RouteResult = Result<RouteMatch, ProblemDetails>;

/// Returns a router with all routes. `answer` gets each request with its route; `HEAD` is routed as `GET`.
pub(super) fn router<S, F>(answer: fn(S, RouteResult, Request) -> F) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    F: Future<Output: IntoResponse> + Send + 'static,
{
    let mut paths: BTreeMap<&str, Vec<&'static HttpRoute>> = BTreeMap::new();
    for route in ROUTES.iter() {
        paths.entry(&route.path).or_default().push(route);
    }
    let mut router = Router::new();
    for (path, routes) in paths {
        let allow = allowed(&routes);
        let mut methods = MethodRouter::new().fallback(move |State(state): State<S>, request: Request| {
            let allow = allow.clone();
            async move {
                if request.method() == Method::OPTIONS {
                    return (StatusCode::NO_CONTENT, [(header::ALLOW, allow)]).into_response();
                }
                let why = format!("the method must be one of {allow}");
                let problem = nothing(METHOD_NOT_ALLOWED, &request, &why).allow(allow);
                answer(state, Err(problem), request).await.into_response()
            }
        });
        for route in routes {
            let filter = MethodFilter::try_from(route.method.clone()).expect("a standard method");
            let found = move |State(state): State<S>, params: Result<RawPathParams, _>, request: Request| {
                let found = RouteMatch::new(route, params, request.uri());
                answer(state, found, request)
            };
            methods = match route.does {
                // All other answers are short, or are streamed.
                RouteTarget::List(_)
                | RouteTarget::History(_)
                | RouteTarget::Why(_)
                | RouteTarget::Event(_)
                | RouteTarget::Diff
                | RouteTarget::OpenApi => methods.on(filter, found.layer(compression())),
                _ => methods.on(filter, found),
            };
        }
        router = router.route(path, methods);
    }
    router.fallback(move |State(state): State<S>, request: Request| {
        let problem =
            nothing(ROUTE_NOT_FOUND, &request, "no such path; /v1/openapi.json describes all routes");
        answer(state, Err(problem), request)
    })
}

/// Returns the value of `Allow` for a path with these routes.
fn allowed(routes: &[&HttpRoute]) -> String {
    let mut methods: Vec<_> = routes.iter().map(|route| route.method.as_str()).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods.push("OPTIONS");
    methods.join(", ")
}

/// Returns the layer that compresses answers with reserved memory, which includes that of the compressor.
fn compression() -> CompressionLayer<SizeAbove> {
    // Compression runs on the threads that serve connections.
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(SizeAbove::new(SMALL as u64 + 1))
}

/// Returns the problem of a request that has no route.
fn nothing(kind: &'static ProblemKind, request: &Request, why: &str) -> ProblemDetails {
    let shown: String = request.uri().path().chars().take(200).collect();
    ProblemDetails::new(kind, format!("cannot {} {shown}: {why}", request.method()))
}

/// Matched route, with the parameters of the path.
#[derive(Debug)]
pub(super) struct RouteMatch {
    pub(super) route: &'static HttpRoute,
    params: RawPathParams,
}

impl RouteMatch {
    fn new(
        route: &'static HttpRoute,
        params: Result<RawPathParams, RawPathParamsRejection>,
        target: &Uri,
    ) -> RouteResult {
        params.map(|params| RouteMatch { route, params }).map_err(|_| {
            let mut parts = route.path.split('/').zip(target.path().split('/'));
            let wrong = parts.find(|(_, part)| percent_decode_str(part).decode_utf8().is_err());
            let name = wrong.map_or("", |(name, _)| name.trim_matches(['{', '}']));
            ProblemDetails::parameter(RequestPart::Path, name, "must be percent-encoded UTF-8")
        })
    }

    /// Returns a parameter of the path.
    pub(super) fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Whether the path is that of a part of an entity, which has no version of its own.
    pub(super) fn is_part_of_entity(&self) -> bool {
        self.route.path.ends_with(&EntityKind::Disruption.path())
    }

    /// Returns the path of an entity of the fleet, given as `KIND/KEY`, if the entity has a row; for a part of an entity, its own path.
    pub(super) fn location(&self, subject: &str) -> Option<HeaderValue> {
        let (word, key) = subject.split_once('/')?;
        if self.is_part_of_entity() && word == EntityKind::Node.word() {
            let path = self.params.iter().fold(self.route.path.clone(), |path, (name, value)| {
                path.replace(&format!("{{{name}}}"), &utf8_percent_encode(value, NOT_IN_PATHS).to_string())
            });
            return HeaderValue::from_str(&path).ok();
        }
        let kind = RowKind::ALL.iter().find(|kind| kind.kind().word() == word)?.kind();
        let template = kind.path();
        let names: Vec<_> = template.split('/').filter(|part| part.starts_with('{')).collect();
        let parts = key.splitn(names.len(), '/');
        let path = names.iter().zip(parts).fold(template.clone(), |path, (name, part)| {
            path.replace(name, &utf8_percent_encode(part, NOT_IN_PATHS).to_string())
        });
        HeaderValue::from_str(&format!("/v1/fleets/{}{path}", self.param("fleet")?)).ok()
    }

    /// Returns the parameters of the path, except the fleet.
    pub(super) fn params(&self) -> impl Iterator<Item = (&str, &str)> {
        self.params.iter().filter(|(key, _)| *key != "fleet")
    }
}

/// Returns the target as the router needs it, if it differs from the sent target.
pub(super) fn routed(target: &Uri) -> Option<Uri> {
    let path = deep_names(target.path())?;
    let target_path = target.query().map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
    let mut parts = target.clone().into_parts();
    parts.path_and_query = Some(target_path.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Encodes slashes in names of capabilities, as in `capabilities/nvidia/v100/history`: the name ends before a
/// last `history`, `activity` or `why`. A name that ends with such a word is written with `%2F`.
fn deep_names(path: &str) -> Option<String> {
    let rest = path.strip_prefix("/v1/fleets/")?;
    let (fleet, rest) = rest.split_once('/')?;
    let name = rest.strip_prefix("capabilities/")?;
    let (name, tail) = match name.rsplit_once('/') {
        Some((name, tail @ ("history" | "activity" | "why"))) => (name, format!("/{tail}")),
        _ => (name, String::new()),
    };
    let is_deep = name.contains('/');
    is_deep.then(|| format!("/v1/fleets/{fleet}/capabilities/{}{tail}", name.replace('/', "%2F")))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::body::Body;
    use tower::ServiceExt as _;

    use super::*;

    #[test]
    fn every_intent_has_a_typed_route() {
        for type_name in Intent::TYPES {
            let is_routed = |route: &HttpRoute| matches!(route.does, RouteTarget::Intent(entry, _) if entry.type_name == *type_name);
            assert!(ROUTES.iter().any(is_routed), "{type_name}");
        }
        for route in ROUTES.iter() {
            if let RouteTarget::Intent(entry, _) = route.does {
                assert!(Intent::TYPES.contains(&entry.type_name), "{}", entry.type_name);
            }
        }
    }

    /// Returns the router's result: the route and its parameters, or the status of the problem.
    async fn find(method: &Method, path: &str) -> Result<(&'static HttpRoute, Vec<(String, String)>), u16> {
        type FoundRoute = Arc<Mutex<Option<Result<RouteMatch, ProblemDetails>>>>;
        let seen = FoundRoute::default();
        let router = router(|seen: FoundRoute, found, _| async move {
            *seen.lock().expect("no panic") = Some(found);
        });
        let mut target: Uri = path.parse().expect("a path");
        target = routed(&target).unwrap_or(target);
        let request = Request::builder().method(method).uri(target).body(Body::empty()).expect("a request");
        router.with_state(Arc::clone(&seen)).oneshot(request).await.expect("an answer");
        let found = seen.lock().expect("no panic").take().expect("it was asked");
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        found
            .map(|found| (found.route, found.params().map(owned).collect()))
            .map_err(|problem| problem.kind.status)
    }

    #[tokio::test]
    async fn every_route_is_found_by_its_own_path_and_no_two_are_the_same() {
        for (index, route) in ROUTES.iter().enumerate() {
            let path = route.path.replace("{id}", "x").replace(['{', '}'], "");
            assert_eq!(find(&route.method, &path).await.expect(&path).0, route);
            assert!(
                !ROUTES[..index]
                    .iter()
                    .any(|other| (&other.path, &other.method) == (&route.path, &route.method))
            );
        }
    }

    #[tokio::test]
    async fn names_of_capabilities_have_many_segments() {
        let fleet = "/v1/fleets/default/capabilities";
        for (path, name, does) in [
            ("/nvidia/v100", "nvidia/v100", RouteTarget::Get(RowKind::Capabilities)),
            ("/nvidia%2Fv100", "nvidia/v100", RouteTarget::Get(RowKind::Capabilities)),
            ("/nvidia/v100/history", "nvidia/v100", RouteTarget::History(RowKind::Capabilities)),
            ("/nvidia/v100/history?limit=1", "nvidia/v100", RouteTarget::History(RowKind::Capabilities)),
            ("/v100/history", "v100", RouteTarget::History(RowKind::Capabilities)),
            ("/a%2Fhistory", "a/history", RouteTarget::Get(RowKind::Capabilities)),
        ] {
            let (route, params) = find(&Method::GET, &format!("{fleet}{path}")).await.expect(path);
            assert_eq!((params, route.does), (vec![("name".to_owned(), name.to_owned())], does), "{path}");
        }
    }

    #[tokio::test]
    async fn what_is_not_there_and_what_is_not_allowed_are_distinguished() {
        for (method, path, status) in [
            (Method::GET, "/v2", 404),
            (Method::PATCH, "/livez", 405),
            (Method::GET, "/v1/fleets/default/nodes/%ff", 400),
        ] {
            assert_eq!(find(&method, path).await.expect_err(path), status);
        }
    }
}
