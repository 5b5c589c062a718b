//! Talking to the server: reads, and intents that are safe to send again.
//!
//! An intent has its idempotency key and time from the start; every try carries the same. When the connection
//! fails after something may have been sent, the outcome is unknown until a later try is answered.
//!
//! | what happened | next |
//! |---|---|
//! | no connection | try again; after the last: unreachable |
//! | connection lost, 503, `retryable` | try again with the same key; after the last: outcome unknown, or busy |
//! | any other answer | that is the answer |

use std::cell::Cell;
use std::io::Read;
use std::time::Duration;

use chancery_events::intent::Intent;
use chancery_events::time::Time;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::context::Context;
use super::error::{CliError, Exit, advice, exit_of};

/// How often something is tried.
const TRIES: u32 = 3;

/// The answer to an intent.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Verdict {
    pub(super) position: u64,
    /// `accepted` or `unchanged`.
    pub(super) verdict: String,
    #[serde(default)]
    pub(super) subject: Option<String>,
    #[serde(default)]
    pub(super) version: Option<u64>,
}

/// An answer that is a problem (RFC 9457).
#[derive(Debug, Default, Deserialize)]
struct Problem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    errors: Vec<Pointed>,
    #[serde(default)]
    retryable: bool,
}

#[derive(Debug, Deserialize)]
struct Pointed {
    pointer: String,
    detail: String,
}

/// Why a try had no answer.
enum Lost {
    /// No connection: nothing was sent.
    Before(String),
    /// The connection failed later: whether the request was seen cannot be told.
    Midway(String),
}

/// A connection to one fleet of one server.
pub(super) struct Client<'a> {
    pub(super) context: &'a Context,
    agent: ureq::Agent,
    streams: ureq::Agent,
    /// The last verdict's position: reads after it see what it recorded.
    seen: Cell<u64>,
}

impl<'a> Client<'a> {
    pub(super) fn new(context: &'a Context) -> Client<'a> {
        let config = || {
            ureq::Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .proxy(None)
                .timeout_connect(Some(Duration::from_secs(5)))
        };
        Client {
            context,
            agent: config().timeout_global(Some(Duration::from_secs(60))).build().new_agent(),
            streams: config().build().new_agent(),
            seen: Cell::new(0),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/v1/fleets/{}{path}", self.context.server, self.context.fleet)
    }

    /// Reads `path` of the fleet; `doing` says what for, as in `read node/node-1`.
    pub(super) fn get(&self, doing: &str, path: &str, query: &[(&str, String)]) -> Result<Value, CliError> {
        let (status, body) = self.tried(doing, |_| {
            let mut request = self.agent.get(self.url(path));
            for (name, value) in query {
                request = request.query(name, value);
            }
            if self.seen.get() > 0 {
                request = request.query("min_position", self.seen.get().to_string());
            }
            answer(request.call())
        })?;
        if status != 200 {
            return Err(problem(doing, status, &body));
        }
        serde_json::from_str(&body).map_err(|error| not_ours(doing, &error.to_string()))
    }

    /// The same, where there may be nothing.
    pub(super) fn find(&self, doing: &str, path: &str) -> Result<Option<Value>, CliError> {
        match self.get(doing, path, &[]) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.exit == Exit::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a stream; it ends when the server or a reader closes it.
    pub(super) fn stream(
        &self,
        doing: &str,
        path: &str,
        query: &[(&str, String)],
        accept: &str,
    ) -> Result<impl Read + use<>, CliError> {
        let mut request = self.streams.get(self.url(path)).header("accept", accept);
        for (name, value) in query {
            request = request.query(name, value);
        }
        let response = request.call().map_err(|error| self.unreachable(doing, &lost(error)))?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if status != 200 {
            let text = body.read_to_string().unwrap_or_default();
            return Err(problem(doing, status, &text));
        }
        Ok(body.into_reader())
    }

    /// Asks for a verdict on an intent.
    pub(super) fn ask(&self, doing: &str, intent: &Intent) -> Result<Verdict, CliError> {
        let key = uuid::Uuid::new_v4().to_string();
        let time = Time::from_micros(chrono::Utc::now().timestamp_micros()).to_string();
        let data = RawValue::from_string(intent.data_json()).expect("the data is JSON");
        let head = json!({
            "specversion": "1.0",
            "id": key,
            "source": "cli",
            "type": format!("chancery.{}", intent.type_name()),
            "time": time,
            "actor": self.context.actor.as_str(),
            "datacontenttype": "application/json",
        });
        // The data goes as its own text: numbers beyond what a generic value holds stay exact.
        let head = head.to_string();
        let body = format!("{},\"data\":{}}}", head.trim_end_matches('}'), data.get());
        let url = self.url("/intents");
        let sent = self.tried(doing, |_| {
            let request = self.agent.post(&url).header("content-type", "application/cloudevents+json");
            answer(request.send(body.as_str()))
        });
        let with_key = |error: CliError| match error.exit {
            Exit::Unknown => CliError::new(Exit::Unknown, format!("{}\nits idempotency key is {key}", error.message)),
            _ => error,
        };
        let (status, body) = sent.map_err(with_key)?;
        if !(200..300).contains(&status) {
            return Err(with_key(problem(doing, status, &body)));
        }
        let verdict: Verdict = serde_json::from_str(&body).map_err(|error| not_ours(doing, &error.to_string()))?;
        self.seen.set(self.seen.get().max(verdict.position));
        Ok(verdict)
    }

    /// Tries until there is an answer that another try would not better.
    fn tried(
        &self,
        doing: &str,
        mut send: impl FnMut(u32) -> Result<(u16, String), Lost>,
    ) -> Result<(u16, String), CliError> {
        let mut unknown = None;
        for tried in 1..=TRIES {
            let last = tried == TRIES;
            match send(tried) {
                Ok((status, body)) if !last && retryable(status, &body) => {}
                Ok((status, body)) => return Ok((status, body)),
                Err(Lost::Midway(why)) => unknown = Some(why),
                Err(Lost::Before(why)) if last && unknown.is_none() => {
                    return Err(self.unreachable(doing, &Lost::Before(why)));
                }
                Err(Lost::Before(_)) => {}
            }
            if !last {
                std::thread::sleep(self.context.backoff * 4_u32.pow(tried - 1));
            }
        }
        let why = unknown.unwrap_or_default();
        Err(self.unreachable(doing, &Lost::Midway(why)))
    }

    fn unreachable(&self, doing: &str, lost: &Lost) -> CliError {
        let server = &self.context.server;
        match lost {
            Lost::Before(why) => CliError::new(
                Exit::Unreachable,
                format!("{doing}: cannot reach {server}: {why}; start a server with 'chancery dev'"),
            ),
            Lost::Midway(why) => CliError::new(
                Exit::Unknown,
                format!("{doing}: lost {server} before its answer: {why}; look whether it was done before asking again"),
            ),
        }
    }
}

fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<(u16, String), Lost> {
    let response = result.map_err(lost)?;
    let status = response.status().as_u16();
    let body = response.into_body().into_with_config().limit(256 << 20).read_to_string().map_err(lost)?;
    Ok((status, body))
}

fn lost(error: ureq::Error) -> Lost {
    use std::io::ErrorKind;
    match error {
        ureq::Error::HostNotFound => Lost::Before("there is no such host".into()),
        ureq::Error::ConnectionFailed => Lost::Before("the connection failed".into()),
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            Lost::Before("it did not answer in time".into())
        }
        ureq::Error::Io(error) => match error.kind() {
            ErrorKind::ConnectionRefused => Lost::Before("connection refused".into()),
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable => {
                Lost::Before(error.to_string())
            }
            _ => Lost::Midway(error.to_string()),
        },
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => Lost::Before(format!("no such address: {error}")),
        other => Lost::Midway(other.to_string()),
    }
}

fn retryable(status: u16, body: &str) -> bool {
    status == 503 || (status >= 429 && serde_json::from_str::<Problem>(body).is_ok_and(|problem| problem.retryable))
}

fn problem(doing: &str, status: u16, body: &str) -> CliError {
    let Ok(problem) = serde_json::from_str::<Problem>(body) else {
        return CliError::new(exit_of("", status), format!("{doing}: the server answered {status}"));
    };
    let what = if problem.detail.is_empty() { &problem.title } else { &problem.detail };
    let mut message = format!("{doing}: {what}");
    for Pointed { pointer, detail } in &problem.errors {
        message.push_str(&format!("\n  {pointer} {detail}"));
    }
    let advice = advice(&problem.code);
    if !advice.is_empty() {
        message.push_str(&format!("\n{advice}"));
    }
    CliError::new(exit_of(&problem.code, status), message)
}

fn not_ours(doing: &str, why: &str) -> CliError {
    CliError::failure(format!("{doing}: the answer is not of a Chancery that this client knows: {why}"))
}
