//! Admission separates requests of programs and people from requests of web pages. A browser on this machine
//! sends requests of any page, also to loopback.
//!
//! | header | value | answer |
//! |---|---|---|
//! | `Host` | none, several, none that is a host, or another host than the target names | 400 `invalid_host` |
//! | | `localhost`, an address in 127.0.0.0/8, `[::1]`; with any port | admitted |
//! | | the host of `advertise`, a name in `allowed_hosts`; with any port | admitted |
//! | | an address, for `/livez`, `/healthz`, `/readyz` and `/metrics`; with any port | admitted |
//! | | any other | 421 `host_not_allowed` |
//! | `Origin` | none, or the authority that `Host` has | admitted |
//! | | an origin in `cors_origins` | admitted, whatever `Sec-Fetch-Site` |
//! | | several, `null`, or any other | 403 `origin_not_allowed` |
//! | `Sec-Fetch-Site` | none, `same-origin`, `none` | admitted |
//! | | several, `same-site`, `cross-site`, or any other | 403 `origin_not_allowed` |
//! | `Content-Type`, safe methods: GET, HEAD, OPTIONS, TRACE | anything | admitted |
//! | `Content-Type`, other methods | JSON, CloudEvents in JSON, lines of JSON | admitted |
//! | | none, several, or any other | 415 `unsupported_media_type`; 404 or 405 if there is no such route |
//! | `Content-Encoding`, other methods | none, `identity` | admitted |
//! | | any other | 415 `unsupported_media_type` |
//!
//! Attacks that each row stops:
//! - `Host`: DNS rebinding. `Host` carries the name of a page that was rebound to this machine. No page can
//!   have a name of loopback, whatever its port, so that ports (of tunnels, of containers) are not compared. No page can
//!   be rebound to an address either: probes and scrapes name that of a pod, which no setting has before the pod starts.
//! - `Origin` and `Sec-Fetch-Site`: requests between sites, also from a page on another port of this machine.
//! - `Content-Type`: forms and simple requests, which are sent without a preflight, also by browsers that
//!   send neither header. The rule does not depend on the body: a browser may omit the body.
//!
//! Answers permit cross-origin access (CORS) only to the origins in `cors_origins`. By default there are
//! none, and a preflight always fails.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer, ExposeHeaders};

use super::problem::{
    HOST_NOT_ALLOWED, INVALID_HOST, ORIGIN_NOT_ALLOWED, ProblemDetails, RequestPart, UNSUPPORTED_MEDIA_TYPE,
};

/// Header in which a browser reports the relation between the page and the server.
pub(super) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Media types that forms and simple requests of a browser cannot send.
const MEDIA_TYPES: [&str; 5] = [
    "application/json",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "application/x-ndjson",
    "application/octet-stream",
];

/// Paths of probes and scrapes.
const PROBES: [&str; 4] = ["/livez", "/healthz", "/readyz", "/metrics"];

/// Hosts for which a server accepts requests besides loopback, and origins of pages that may send them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AllowedHosts {
    /// Host names in lower case, without ports.
    hosts: BTreeSet<String>,
    /// Origins in lower case, such as `https://console.example`.
    origins: BTreeSet<String>,
}

impl AllowedHosts {
    /// Returns the hosts of `allowed_hosts`, and that of `advertise`, to which other servers forward
    /// requests.
    pub fn new(configured: &BTreeSet<String>, advertise: Option<&str>) -> AllowedHosts {
        let advertised = advertise.and_then(host_of);
        let all = configured.iter().map(String::as_str).chain(advertised);
        AllowedHosts { hosts: all.map(str::to_ascii_lowercase).collect(), origins: BTreeSet::new() }
    }

    /// Admits pages of the origins of the setting `cors_origins` as well.
    #[must_use]
    pub fn with_origins(self, origins: &BTreeSet<String>) -> AllowedHosts {
        AllowedHosts { origins: origins.clone(), ..self }
    }

    /// Returns the layer that allows pages of the origins and answers preflights; `None` without origins.
    pub(super) fn cors(&self) -> Option<CorsLayer> {
        let origins = self.origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
        let layer = CorsLayer::new()
            .allow_origin(AllowOrigin::list(origins))
            .allow_methods(AllowMethods::mirror_request())
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(ExposeHeaders::any());
        (!self.origins.is_empty()).then_some(layer)
    }

    fn contains(&self, host: &str) -> bool {
        is_loopback(host) || (!self.hosts.is_empty() && self.hosts.contains(&host.to_ascii_lowercase()))
    }
}

/// Whether host and origin of a request are admitted by the table above; otherwise the problem.
pub(super) fn admit<B>(hosts: &AllowedHosts, request: &Request<B>) -> Result<(), ProblemDetails> {
    let headers = request.headers();
    let authority = authority(request.uri(), headers)?;
    let host = host_of(authority).ok_or_else(|| invalid_host(&format!("{authority:?} is not a host")))?;
    let is_probe = PROBES.contains(&request.uri().path()) && is_address(host);
    if !is_probe && !hosts.contains(host) {
        let detail = format!(
            "cannot accept request: {host:?} is not a name of this server\nhint: add the name to the setting allowed_hosts"
        );
        let problem = ProblemDetails::new(HOST_NOT_ALLOWED, detail);
        return Err(problem.at(RequestPart::Header, "/host", "not a name of this server"));
    }
    let is_listed = |origin: &str| hosts.origins.contains(origin);
    let is_listed_page =
        headers.contains_key(header::ORIGIN) && !has_other(headers, &header::ORIGIN, is_listed);
    if !is_listed_page && has_other(headers, &header::ORIGIN, |origin| is_of(origin, authority)) {
        return Err(foreign("origin"));
    }
    if !is_listed_page && has_other(headers, &SEC_FETCH_SITE, |site| matches!(site, "same-origin" | "none")) {
        return Err(foreign("sec-fetch-site"));
    }
    Ok(())
}

/// Whether the media type of a request is admitted by the table above; otherwise the problem. Separate from [`admit`], as a
/// path that does not exist, or not with this method, is reported first.
pub(super) fn admit_media(method: &Method, headers: &HeaderMap) -> Result<(), ProblemDetails> {
    if method.is_safe() {
        return Ok(());
    }
    if !has_media_type(headers) {
        return Err(simple(method));
    }
    if has_other(headers, &header::CONTENT_ENCODING, |coding| coding.eq_ignore_ascii_case("identity")) {
        let detail = format!("cannot accept {method}: its body has a Content-Encoding, which must be absent");
        let problem = ProblemDetails::new(UNSUPPORTED_MEDIA_TYPE, detail);
        return Err(problem.at(RequestPart::Header, "/content-encoding", "must be absent"));
    }
    Ok(())
}

/// Returns the value of the header `Host`, which must be given once, and equal the host of the target if the
/// target has one.
fn authority<'a>(target: &Uri, headers: &'a HeaderMap) -> Result<&'a str, ProblemDetails> {
    let mut all = headers.get_all(header::HOST).iter();
    let (Some(value), None) = (all.next(), all.next()) else {
        return Err(invalid_host("the header Host must be given once"));
    };
    let authority = value.to_str().map_err(|_| invalid_host("the header Host must be visible ASCII"))?;
    match target.authority() {
        Some(other) if !other.as_str().eq_ignore_ascii_case(authority) => {
            Err(invalid_host("the target names another host than the header Host"))
        }
        _ => Ok(authority),
    }
}

/// Returns the host of `host`, `host:port`, or `[address]:port`.
pub fn host_of(authority: &str) -> Option<&str> {
    let end = match authority.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(end);
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let is_name = |host: &str| {
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    };
    (is_port && (bracketed(host).is_some() || is_name(host))).then_some(host)
}

fn bracketed(host: &str) -> Option<Ipv6Addr> {
    host.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

fn is_address(host: &str) -> bool {
    host.parse::<Ipv4Addr>().is_ok() || bracketed(host).is_some()
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || bracketed(host).is_some_and(|address| address.is_loopback())
}

/// Whether a header exists and is not a single one with an admitted value.
fn has_other(headers: &HeaderMap, name: &HeaderName, is_admitted: impl Fn(&str) -> bool) -> bool {
    let mut all = headers.get_all(name).iter();
    let first = all.next();
    all.next().is_some() || first.is_some_and(|value| !value.to_str().is_ok_and(&is_admitted))
}

/// Whether an origin has the authority to which the request was sent.
fn is_of(origin: &str, authority: &str) -> bool {
    let found = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    found.is_some_and(|found| found.eq_ignore_ascii_case(authority))
}

fn has_media_type(headers: &HeaderMap) -> bool {
    let is_known = |text: &str| {
        let essence = text.split(';').next().unwrap_or_default().trim();
        MEDIA_TYPES.iter().any(|known| known.eq_ignore_ascii_case(essence))
    };
    headers.contains_key(header::CONTENT_TYPE) && !has_other(headers, &header::CONTENT_TYPE, is_known)
}

fn invalid_host(why: &str) -> ProblemDetails {
    ProblemDetails::new(INVALID_HOST, format!("cannot accept request: {why}")).at(
        RequestPart::Header,
        "/host",
        why,
    )
}

fn foreign(name: &str) -> ProblemDetails {
    let detail = format!("cannot accept request: header {name} names a page of another site");
    ProblemDetails::new(ORIGIN_NOT_ALLOWED, detail).at(
        RequestPart::Header,
        format!("/{name}"),
        "not of this server",
    )
}

fn simple(method: &Method) -> ProblemDetails {
    let types = MEDIA_TYPES.join(", ");
    let detail = format!(
        "cannot accept {method}: its Content-Type is none of {types}\nhint: send \"Content-Type: application/json\" with \
         every request that changes something, also without a body"
    );
    ProblemDetails::new(UNSUPPORTED_MEDIA_TYPE, detail).at(
        RequestPart::Header,
        "/content-type",
        "not accepted by this server",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = "content-type: application/json";

    fn answer(method: &str, target: &str, head: &[&str]) -> u16 {
        answer_of(&AllowedHosts::default(), method, target, head)
    }

    fn answer_of(origins: &AllowedHosts, method: &str, target: &str, head: &[&str]) -> u16 {
        let hosts = AllowedHosts::new(&["chancery.example".to_owned()].into(), Some("Server-1:7440"));
        let hosts = hosts.with_origins(&origins.origins);
        let mut request = Request::builder().method(method).uri(target).body(()).expect("a request");
        for line in head {
            let (name, value) = line.split_once(": ").expect("a header");
            let name: HeaderName = name.parse().expect("a name");
            request.headers_mut().append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        match admit(&hosts, &request).and_then(|()| admit_media(request.method(), request.headers())) {
            Ok(()) => 200,
            Err(problem) => problem.kind.status,
        }
    }

    #[test]
    fn a_host_is_that_of_loopback_or_one_that_is_configured() {
        let too_many = ["host: localhost", "host: localhost"];
        assert_eq!(answer("GET", "/", &[]), 400, "no Host");
        assert_eq!(answer("GET", "/", &too_many), 400, "two");
        for (host, status, why) in [
            ("localhost", 200, "a name of loopback"),
            ("LocalHost:7440", 200, "in any case"),
            ("127.0.0.1:7440", 200, "an address of loopback"),
            ("127.9.9.9:1", 200, "another one, and another port, as of a tunnel"),
            ("[::1]:7440", 200, "IPv6"),
            ("[0:0:0:0:0:0:0:1]", 200, "IPv6, written out"),
            ("server-1:7440", 200, "where other servers find this one"),
            ("chancery.EXAMPLE", 200, "configured"),
            ("evil.example:7440", 421, "a page that was rebound"),
            ("chancery.example.evil.example", 421, "a name behind one that is configured"),
            ("localhost.evil.example", 421, "and behind localhost"),
            ("127.0.0.1.nip.io", 421, "a name that resolves to loopback"),
            ("x.localhost", 421, "only localhost itself"),
            ("0.0.0.0:7440", 421, "leads to loopback, and is not of it"),
            ("192.168.0.1", 421, "another interface"),
            ("[::ffff:127.0.0.1]", 421, "IPv4 in IPv6"),
            ("127.1", 421, "short for 127.0.0.1, which no browser sends"),
            ("", 400, "empty"),
            (":7440", 400, "a port alone"),
            ("localhost:", 400, "no port"),
            ("localhost:99999", 400, "too large a port"),
            ("localhost:7440:7440", 400, "two ports"),
            ("localhost, evil.example", 400, "two hosts"),
            ("me@localhost", 400, "a user"),
            ("[::1", 400, "half of brackets"),
            ("[localhost]", 400, "a name in brackets"),
            ("::1", 400, "no brackets"),
            ("l\u{f6}calhost", 400, "not ASCII"),
        ] {
            assert_eq!(answer("GET", "/", &[&format!("host: {host}")]), status, "{host}: {why}");
        }
        for (path, host, status, why) in [
            ("/livez", "10.1.2.3:7440", 200, "a probe of a pod"),
            ("/readyz", "[fd00::1]:7440", 200, "the same"),
            ("/metrics", "10.1.2.3:7440", 200, "a scrape of a pod"),
            ("/metrics", "evil.example", 421, "a page that was rebound"),
            ("/v1/fleets", "10.1.2.3:7440", 421, "not a probe"),
            ("/livez/x", "10.1.2.3:7440", 421, "not a probe"),
        ] {
            assert_eq!(answer("GET", path, &[&format!("host: {host}")]), status, "{path} {host}: {why}");
        }
        for (target, host, status, why) in [
            ("http://localhost/", "localhost", 200, "the same"),
            ("http://evil.example/", "localhost", 400, "the target is another"),
            ("http://localhost/", "evil.example", 400, "the header is another"),
            ("http://evil.example/", "evil.example", 421, "both, and not ours"),
            ("http://localhost:1/", "localhost:2", 400, "other ports"),
        ] {
            assert_eq!(answer("GET", target, &[&format!("host: {host}")]), status, "{target} {host}: {why}");
        }
    }

    #[test]
    fn no_page_of_another_site_gets_an_answer() {
        for (header, status, why) in [
            ("origin: http://localhost:7440", 200, "the same"),
            ("origin: https://LOCALHOST:7440", 200, "the same, behind a proxy with TLS"),
            ("origin: http://localhost:3000", 403, "another program of this machine"),
            ("origin: http://127.0.0.1:7440", 403, "another name of this server is another origin"),
            ("origin: http://evil.example", 403, "another site"),
            ("origin: null", 403, "a page in a sandbox, a file"),
            ("origin: ", 403, "empty"),
            ("origin: localhost:7440", 403, "no scheme"),
            ("sec-fetch-site: none", 200, "typed by a person"),
            ("sec-fetch-site: same-origin", 200, "the same"),
            ("sec-fetch-site: same-site", 403, "another port"),
            ("sec-fetch-site: cross-site", 403, "another site"),
            ("sec-fetch-site: ", 403, "empty"),
        ] {
            for (method, path) in [("GET", "/readyz"), ("POST", "/"), ("DELETE", "/")] {
                let head = ["host: localhost:7440", header, JSON];
                assert_eq!(answer(method, path, &head), status, "{method} {header}: {why}");
            }
        }
        for twice in ["origin: http://localhost:7440", "sec-fetch-site: none"] {
            assert_eq!(answer("GET", "/", &["host: localhost:7440", twice, twice]), 403, "{twice} twice");
        }
    }

    #[test]
    fn pages_of_listed_origins_alone_are_admitted() {
        let listed = AllowedHosts::default().with_origins(&["https://console.example".to_owned()].into());
        let asks = "access-control-request-method: PUT";
        for (origin, status, why) in [
            ("https://console.example", 200, "listed"),
            ("http://localhost", 200, "that of the server"),
            ("http://console.example", 403, "another scheme"),
            ("https://console.example:8443", 403, "another port"),
            ("https://console.example.evil.example", 403, "a name behind it"),
            ("null", 403, "a page in a sandbox"),
        ] {
            let origin = format!("origin: {origin}");
            let site = if status == 200 && why == "listed" { "cross-site" } else { "same-origin" };
            let site = format!("sec-fetch-site: {site}");
            for method in ["GET", "PUT"] {
                let head = ["host: localhost", &origin, &site, JSON];
                assert_eq!(answer_of(&listed, method, "/", &head), status, "{method} {origin}: {why}");
            }
        }
        let listed_page = "origin: https://console.example";
        for (head, method, status, why) in [
            (&["host: localhost", listed_page, asks][..], "OPTIONS", 200, "a preflight"),
            (&["host: localhost", listed_page], "OPTIONS", 200, "no preflight"),
            (&["host: localhost", listed_page, asks], "PUT", 415, "no preflight"),
            (&["host: localhost", "origin: http://localhost", asks], "OPTIONS", 200, "its own page"),
            (&["host: localhost", "origin: http://other.example", asks], "OPTIONS", 403, "not listed"),
            (&["host: evil.example", listed_page, asks], "OPTIONS", 421, "another host"),
            (&["host: localhost", listed_page, listed_page], "GET", 403, "twice"),
            (&["host: localhost", "sec-fetch-site: cross-site"], "GET", 403, "no origin"),
        ] {
            assert_eq!(answer_of(&listed, method, "/", head), status, "{method} {head:?}: {why}");
        }
    }

    #[test]
    fn what_changes_something_has_a_content_type_that_no_form_can_send() {
        for (content_type, status, why) in [
            (Some("application/json"), 200, "a typed route"),
            (Some("Application/JSON; charset=utf-8"), 200, "with a parameter"),
            (Some("application/cloudevents+json"), 200, "an event"),
            (Some("application/cloudevents-batch+json"), 200, "a batch"),
            (Some("application/x-ndjson"), 200, "an executor"),
            (Some("application/octet-stream"), 200, "input of a console"),
            (None, 415, "a request without a body, of any page"),
            (Some(""), 415, "empty"),
            (Some("text/plain"), 415, "a form"),
            (Some("text/plain; application/json"), 415, "a form in disguise"),
            (Some("text/plain, application/json"), 415, "the same"),
            (Some("application/x-www-form-urlencoded"), 415, "a form"),
            (Some("multipart/form-data; boundary=x"), 415, "a form"),
            (Some("application/jsonp"), 415, "another type"),
        ] {
            let header = content_type.map(|text| format!("content-type: {text}"));
            let head: Vec<_> = ["host: localhost"].into_iter().chain(header.as_deref()).collect();
            for method in ["POST", "PUT", "DELETE", "PATCH"] {
                assert_eq!(answer(method, "/", &head), status, "{method} {content_type:?}: {why}");
            }
            for method in ["GET", "HEAD", "OPTIONS"] {
                assert_eq!(answer(method, "/", &head), 200, "{method} {content_type:?}");
            }
        }
        assert_eq!(answer("POST", "/", &["host: localhost", JSON, JSON]), 415, "two");
        for (coding, status) in [("identity", 200), ("gzip", 415), ("identity, br", 415), ("", 415)] {
            let header = format!("content-encoding: {coding}");
            assert_eq!(answer("POST", "/", &["host: localhost", JSON, &header]), status, "{coding}");
            assert_eq!(answer("GET", "/", &["host: localhost", &header]), 200, "{coding}");
        }
    }
}
