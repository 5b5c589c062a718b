//! The one table of routes: it leads requests to what answers them, and it is what the API's description is made
//! from, so that neither can know a route that the other does not.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::Method;
use chancery_events::intent::{Intent, IntentEntry};
use chancery_projector::RowKind;
use percent_encoding::percent_decode_str;

use super::problem::{In, METHOD_NOT_ALLOWED, NO_SUCH_ROUTE, Problem};

/// How the body of a typed route becomes the intent's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// The path's parameters are members of it.
    Members,
    /// `{hash}`: one operation to approve.
    ApproveOne,
    /// `{reason}`: one operation to reject.
    RejectOne,
}

/// What answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Does {
    List(RowKind),
    Get(RowKind),
    History(RowKind),
    /// One intent, of this entry of the register.
    Intent(&'static IntentEntry, Shape),
    /// Any intents, as CloudEvents.
    Intents,
    /// A link of an executor outside the server.
    Link,
    /// What such an executor says.
    Say,
    Events,
    Logs,
    Live,
    Ready,
    Metrics,
    OpenApi,
    Schema,
}

/// One route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Route {
    pub(super) method: Method,
    /// Parameters stand in braces.
    pub(super) path: String,
    pub(super) does: Does,
    /// What for, in a sentence.
    pub(super) about: String,
}

/// Before every route of a fleet.
pub(super) const FLEET: &str = "/v1/fleets/{fleet}";

/// What approves or rejects one operation: the body of the intent has a list of them.
const OF_ONE: &[(&str, &str, Shape, &str)] = &[
    (
        "/operations/{id}/approve",
        "operation.approve.v1",
        Shape::ApproveOne,
        "Approves an operation, exactly as it was shown.",
    ),
    ("/operations/{id}/reject", "operation.reject.v1", Shape::RejectOne, "Rejects an operation."),
];

/// All routes.
pub(super) static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let mut all = Vec::new();
    let mut add = |method: Method, path: String, does: Does, about: &str| {
        all.push(Route { method, path, does, about: about.to_owned() });
    };
    for kind in RowKind::ALL.iter().copied() {
        let one = kind.kind().path();
        add(Method::GET, format!("{FLEET}/{kind}"), Does::List(kind), &format!("Lists {kind}."));
        add(Method::GET, format!("{FLEET}{one}"), Does::Get(kind), &format!("Reads one of {kind}."));
        let about = format!("Reads the events about one of {kind}.");
        add(Method::GET, format!("{FLEET}{one}/history"), Does::History(kind), &about);
    }
    let of_plan = format!("{FLEET}/plans/{{plan}}/deployments");
    add(Method::GET, of_plan, Does::List(RowKind::Deployments), "Lists a plan's deployments.");
    for entry in Intent::REGISTER {
        let method = Method::from_bytes(entry.method.as_bytes()).expect("a method");
        for (path, _, shape, about) in OF_ONE.iter().filter(|of_one| of_one.1 == entry.type_name) {
            add(Method::POST, format!("{FLEET}{path}"), Does::Intent(entry, *shape), about);
        }
        add(method, format!("{FLEET}{}", entry.path), Does::Intent(entry, Shape::Members), entry.about);
    }
    let intents = "Takes intents as CloudEvents: structured, binary or a batch.";
    add(Method::POST, format!("{FLEET}/intents"), Does::Intents, intents);
    add(Method::GET, format!("{FLEET}/events"), Does::Events, "Streams events.");
    let logs = "Reads what the processes of an incarnation have written.";
    add(Method::GET, format!("{FLEET}/incarnations/{{id}}/logs"), Does::Logs, logs);
    let link = "Opens an executor's link: the answer goes on with what the decider says.";
    add(Method::POST, format!("{FLEET}/links"), Does::Link, link);
    let say = "Takes what an executor says on its link, in order.";
    add(Method::POST, format!("{FLEET}/links/{{link}}/messages"), Does::Say, say);
    add(Method::GET, "/livez".into(), Does::Live, "Says that the process lives.");
    add(Method::GET, "/readyz".into(), Does::Ready, "Says whether the rows keep up with the journal.");
    add(Method::GET, "/metrics".into(), Does::Metrics, "Gives figures to Prometheus.");
    add(Method::GET, "/v1/openapi.json".into(), Does::OpenApi, "Describes this API.");
    add(Method::GET, "/v1/schemas/{type}".into(), Does::Schema, "Gives the JSON Schema of a type of event.");
    all
});

/// The routes of each path.
static PATHS: LazyLock<matchit::Router<Vec<&'static Route>>> = LazyLock::new(|| {
    let mut paths: BTreeMap<&str, Vec<&'static Route>> = BTreeMap::new();
    for route in ROUTES.iter() {
        paths.entry(&route.path).or_default().push(route);
    }
    let mut router = matchit::Router::new();
    for (path, routes) in paths {
        router.insert(path, routes).expect("the table has no two paths that clash");
    }
    router
});

/// A route that was found, with what the path says.
#[derive(Debug)]
pub(super) struct Match {
    pub(super) route: &'static Route,
    params: Vec<(&'static str, String)>,
}

impl Match {
    /// What the path says.
    pub(super) fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    /// What the path says, but for the fleet.
    pub(super) fn params(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.params.iter().filter(|(key, _)| *key != "fleet").map(|(key, value)| (*key, value.as_str()))
    }
}

/// Finds the route. `HEAD` goes where `GET` does.
pub(super) fn find(method: &Method, path: &str) -> Result<Match, Problem> {
    let deep = deep_names(path);
    let path = deep.as_deref().unwrap_or(path);
    let shown: String = path.chars().take(200).collect();
    let found = PATHS.at(path).map_err(|_| {
        Problem::new(
            NO_SUCH_ROUTE,
            format!("{method} {shown}: nothing is here; /v1/openapi.json tells what is where"),
        )
    })?;
    let wanted = if method == Method::HEAD { &Method::GET } else { method };
    let Some(route) = found.value.iter().find(|route| route.method == *wanted) else {
        let allow: Vec<_> = found.value.iter().map(|route| route.method.as_str()).collect();
        let allow = allow.join(", ");
        return Err(
            Problem::new(METHOD_NOT_ALLOWED, format!("{method} {shown}: allowed are {allow}")).allow(allow)
        );
    };
    let names = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let params = names.map(|name| {
        let raw = found.params.get(name).unwrap_or_default();
        let value = percent_decode_str(raw)
            .decode_utf8()
            .map_err(|_| Problem::parameter(In::Path, name, "percent-encode UTF-8"))?;
        Ok((name, value.into_owned()))
    });
    Ok(Match { route, params: params.collect::<Result<_, Problem>>()? })
}

/// Names of capabilities may hold slashes, as in `capabilities/nvidia/v100/history`: all that stands before a last
/// `history` or `activity` is the name. A name that ends so itself is written with `%2F`.
fn deep_names(path: &str) -> Option<String> {
    let rest = path.strip_prefix("/v1/fleets/")?;
    let (fleet, rest) = rest.split_once('/')?;
    let name = rest.strip_prefix("capabilities/")?;
    let (name, tail) = match name.rsplit_once('/') {
        Some((name, tail @ ("history" | "activity"))) => (name, format!("/{tail}")),
        _ => (name, String::new()),
    };
    let is_deep = name.contains('/');
    is_deep.then(|| format!("/v1/fleets/{fleet}/capabilities/{}{tail}", name.replace('/', "%2F")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_intent_has_a_typed_route() {
        for type_name in Intent::TYPES {
            let is_routed =
                |route: &Route| matches!(route.does, Does::Intent(entry, _) if entry.type_name == *type_name);
            assert!(ROUTES.iter().any(is_routed), "{type_name}");
        }
        for route in ROUTES.iter() {
            if let Does::Intent(entry, _) = route.does {
                assert!(Intent::TYPES.contains(&entry.type_name), "{}", entry.type_name);
            }
        }
    }

    #[test]
    fn every_route_is_found_by_its_own_path_and_no_two_are_the_same() {
        for (index, route) in ROUTES.iter().enumerate() {
            let path = route.path.replace("{id}", "x").replace(['{', '}'], "");
            assert_eq!(find(&route.method, &path).expect(&path).route, route);
            assert!(
                !ROUTES[..index]
                    .iter()
                    .any(|other| (&other.path, &other.method) == (&route.path, &route.method))
            );
        }
    }

    #[test]
    fn names_of_capabilities_go_deep() {
        let fleet = "/v1/fleets/default/capabilities";
        for (path, name, does) in [
            ("/nvidia/v100", "nvidia/v100", Does::Get(RowKind::Capabilities)),
            ("/nvidia%2Fv100", "nvidia/v100", Does::Get(RowKind::Capabilities)),
            ("/nvidia/v100/history", "nvidia/v100", Does::History(RowKind::Capabilities)),
            ("/v100/history", "v100", Does::History(RowKind::Capabilities)),
            ("/a%2Fhistory", "a/history", Does::Get(RowKind::Capabilities)),
        ] {
            let found = find(&Method::GET, &format!("{fleet}{path}")).expect(path);
            assert_eq!((found.param("name"), found.route.does), (Some(name), does), "{path}");
        }
    }

    #[test]
    fn what_is_not_there_and_what_is_not_allowed_are_told_apart() {
        assert_eq!(find(&Method::GET, "/v2").expect_err("no route").kind.status, 404);
        assert_eq!(find(&Method::PATCH, "/livez").expect_err("no method").kind.status, 405);
        assert_eq!(
            find(&Method::GET, "/v1/fleets/default/nodes/%ff").expect_err("no UTF-8").kind.status,
            400
        );
    }
}
