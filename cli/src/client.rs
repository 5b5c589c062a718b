//! Talking to the server: reads, and intents that are safe to send again.
//!
//! An intent has its idempotency key and time from the start; every try carries the same. When the connection
//! fails after something may have been sent, the outcome is unknown until a later try is answered.
//!
//! | what happened | next |
//! |---|---|
//! | no connection | try the next server; after the last try: unreachable |
//! | connection lost, 504 | try again with the same key; after the last: outcome unknown |
//! | 503, `no_decider` | try again for as long as one takes over, without counting |
//! | 503, `retryable` | try again with the same key; after the last: busy, unless an earlier try is unknown |
//! | 429 | try again after the time that the server names, without counting; after [`PATIENCE`] as 503 |
//! | any other answer | that is the answer |

use std::cell::Cell;
use std::io::Read;
use std::time::Duration;

use chancery_events::id::{Lineage, Position};
use chancery_events::intent::Intent;
use chancery_events::lineage::NamedPosition;
use chancery_events::time::Time;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::context::CliContext;
use super::error::{CliError, CliExit, PointerError, advice, exit_of};
use super::table::add;

use crate::note;

/// How often something is tried, and each server once.
pub(super) const TRIES: usize = 3;
/// Maximum time to wait, in one request, because the server takes no more requests a second.
const PATIENCE: Duration = Duration::from_mins(5);
/// Maximum time between two tries, whatever the server names.
const LONGEST: Duration = Duration::from_mins(1);
/// How often it is asked who decides: long enough for a server to take over.
const TAKEOVER: u32 = 40;
/// After so many of these, whoever waits is told what for.
const WORD: u32 = 2;

/// The answer to an intent.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct VerdictResponse {
    pub(super) position: u64,
    /// `accepted` or `unchanged`.
    #[serde(rename = "verdict")]
    pub(super) outcome: String,
    #[serde(default)]
    pub(super) version: Option<u64>,
    #[serde(default)]
    pub(super) subject: Option<String>,
    /// Of an edit of a plan: the fields that it changed.
    #[serde(default)]
    pub(super) changed: PlanChanges,
}

/// The fields of a plan that an edit changed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PlanChanges {
    /// In effect now.
    pub(super) policy: Vec<String>,
    /// In effect by a deployment.
    pub(super) version: Vec<String>,
}

impl VerdictResponse {
    /// The verdict in JSON output.
    pub(super) fn json(&self, name: &str, outcome: &str) -> Value {
        json!({ "subject": name, "outcome": outcome, "position": self.position, "version": self.version })
    }

    /// The id of the approval request that the intent waits as, if it does not hold yet.
    pub(super) fn request(&self) -> Option<&str> {
        self.subject.as_deref()?.strip_prefix("request/")
    }
}

/// An answer that is a problem (RFC 9457).
#[derive(Debug, Default, Deserialize)]
struct ProblemResponse {
    #[serde(default)]
    code: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    errors: Vec<PointerError>,
    #[serde(default)]
    retryable: bool,
}

/// An intent as every try sends it: with one idempotency key and one time.
pub(super) struct IntentEnvelope {
    pub(super) key: String,
    pub(super) body: String,
}

/// The answer to a try.
struct HttpReply {
    status: u16,
    body: String,
    /// Time after which the server asks to try again.
    after: Option<Duration>,
}

/// The answer that another try would not better.
pub(super) struct FinalReply {
    pub(super) status: u16,
    pub(super) body: String,
    /// Whether it is unknown what became of an earlier try.
    pub(super) was_lost: bool,
}

/// Why a try had no answer.
enum AttemptError {
    /// No connection: nothing was sent.
    NotSent(String),
    /// The connection failed later: whether the request was seen cannot be told.
    MaybeSent(String),
}

/// A connection to one fleet of one server.
pub(super) struct ApiClient<'a> {
    pub(super) context: &'a CliContext,
    agent: ureq::Agent,
    streams: ureq::Agent,
    /// Which of the servers is asked.
    at: Cell<usize>,
    /// The last verdict's position: reads after it see what it recorded.
    seen: Cell<u64>,
    /// Under which lineage the server gave positions last, if it said so.
    lineage: Cell<Option<Lineage>>,
}

impl<'a> ApiClient<'a> {
    pub(super) fn new(context: &'a CliContext) -> ApiClient<'a> {
        let config = || {
            ureq::Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .proxy(None)
                .timeout_connect(Some(Duration::from_secs(5)))
        };
        ApiClient {
            context,
            agent: config().timeout_global(Some(Duration::from_mins(1))).build().new_agent(),
            streams: config().build().new_agent(),
            at: Cell::new(0),
            seen: Cell::new(0),
            lineage: Cell::new(None),
        }
    }

    /// From now on reads see what was recorded up to there.
    pub(super) fn after(&self, position: u64) {
        self.seen.set(self.seen.get().max(position));
    }

    /// A position that the server gave, as it is to be given back.
    pub(super) fn named(&self, position: u64) -> NamedPosition {
        NamedPosition { position: Position::new(position), lineage: self.lineage.get() }
    }

    /// Takes in an answer, and under which lineage its positions are given.
    fn answer(
        &self,
        result: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<HttpReply, AttemptError> {
        if let Ok(response) = &result {
            let lineage = response.headers().get("chancery-lineage");
            let lineage = lineage.and_then(|value| value.to_str().ok()?.parse().ok());
            // What was recorded under another one is not asked for any more: the server says why.
            self.lineage.set(self.lineage.get().or(lineage));
        }
        answer(result)
    }

    fn url(&self, path: &str) -> String {
        format!("{}/v1/fleets/{}{path}", self.server(), self.context.fleet)
    }

    fn servers(&self) -> impl Iterator<Item = &str> {
        self.context.server.split(',').map(|server| server.trim().trim_end_matches('/'))
    }

    /// The next server is asked from now on.
    fn go_on(&self) {
        self.at.set((self.at.get() + 1) % self.servers().count().max(1));
    }

    /// The server that is asked now.
    fn server(&self) -> &str {
        self.servers().nth(self.at.get()).unwrap_or(&self.context.server)
    }

    /// Reads `path` of the fleet; `doing` says what for, as in `read node/node-1`.
    pub(super) fn get(&self, doing: &str, path: &str, query: &[(&str, String)]) -> Result<Value, CliError> {
        let read = self.tried(|| {
            let mut request = self.agent.get(self.url(path));
            for (name, value) in query {
                request = request.query(name, value);
            }
            if self.seen.get() > 0 {
                request = request.query("min_position", self.named(self.seen.get()).to_string());
            }
            self.answer(request.call())
        });
        let FinalReply { status, body, .. } = read.map_err(|lost| self.unread(doing, &lost))?;
        if status != 200 {
            return Err(problem(doing, status, &body));
        }
        serde_json::from_str(&body).map_err(|error| not_ours(doing, &error.to_string()))
    }

    /// The same, where there may be nothing.
    pub(super) fn find(&self, doing: &str, path: &str) -> Result<Option<Value>, CliError> {
        match self.get(doing, path, &[]) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.exit == CliExit::NotFound => Ok(None),
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
        let mut left = self.servers().count();
        let response = loop {
            let mut request = self.streams.get(self.url(path)).header("accept", accept);
            for (name, value) in query {
                request = request.query(name, value);
            }
            left = left.saturating_sub(1);
            match request.call() {
                Ok(response) => break response,
                Err(_) if left > 0 => self.go_on(),
                Err(error) => {
                    let error = self.unread(doing, &lost(error));
                    self.go_on();
                    return Err(error);
                }
            }
        };
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if status != 200 {
            let text = body.read_to_string().unwrap_or_default();
            return Err(problem(doing, status, &text));
        }
        Ok(body.into_reader())
    }

    /// The intent as a CloudEvent with a key of its own, dated now.
    pub(super) fn envelope(&self, intent: &Intent) -> IntentEnvelope {
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
        IntentEnvelope { key, body }
    }

    /// Asks for a verdict on an intent.
    pub(super) fn ask(&self, doing: &str, intent: &Intent) -> Result<VerdictResponse, CliError> {
        let IntentEnvelope { key, body } = self.envelope(intent);
        let FinalReply { status, body, .. } =
            self.post(doing, &key, "application/cloudevents+json", &body)?;
        if !(200..300).contains(&status) {
            return Err(ApiClient::refused(doing, status, &body, &key));
        }
        let verdict: VerdictResponse =
            serde_json::from_str(&body).map_err(|error| not_ours(doing, &error.to_string()))?;
        self.after(verdict.position);
        Ok(verdict)
    }

    /// Sends intents; `doing` and `key` are those of the first.
    pub(super) fn post(
        &self,
        doing: &str,
        key: &str,
        content_type: &str,
        body: &str,
    ) -> Result<FinalReply, CliError> {
        let sent = self.tried(|| {
            let request = self.agent.post(self.url("/intents")).header("content-type", content_type);
            self.answer(request.send(body))
        });
        sent.map_err(|lost| self.unasked(doing, &lost, key))
    }

    /// An intent that has no verdict, or was refused.
    pub(super) fn refused(doing: &str, status: u16, body: &str, key: &str) -> CliError {
        let mut error = problem(doing, status, body);
        if error.exit == CliExit::Unknown {
            add(&mut error.message, format_args!("\nits idempotency key is {key}"));
        }
        error
    }

    /// An intent of which no try has made known what became of it.
    pub(super) fn unknown(&self, doing: &str, key: &str) -> CliError {
        self.unasked(doing, &AttemptError::MaybeSent("the server does not know the outcome".into()), key)
    }

    /// The answer to the intent at `index` of a batch.
    pub(super) fn item(
        &self,
        doing: &str,
        index: usize,
        status: u16,
        item: Value,
    ) -> Result<VerdictResponse, CliError> {
        if (200..300).contains(&status) {
            let verdict: VerdictResponse =
                serde_json::from_value(item).map_err(|error| not_ours(doing, &error.to_string()))?;
            self.after(verdict.position);
            return Ok(verdict);
        }
        let mut problem: ProblemResponse =
            serde_json::from_value(item).map_err(|error| not_ours(doing, &error.to_string()))?;
        let prefix = format!("/{index}");
        for fault in &mut problem.errors {
            if let Some(within) = fault.pointer.strip_prefix(&prefix) {
                fault.pointer = within.to_owned();
            }
        }
        Err(error_of(doing, status, problem))
    }

    /// Before something is tried again, the `tries`th time: by the next server.
    pub(super) fn back_off(&self, tries: usize) {
        self.go_on();
        let round = u32::try_from(tries / self.servers().count().max(1)).unwrap_or(u32::MAX);
        std::thread::sleep(self.context.backoff * 4_u32.saturating_pow(round.min(4)));
    }

    /// Tries until there is an answer that another try would not better.
    ///
    /// Once it is unknown what became of a try, "busy" to a later one does not make it known.
    fn tried(
        &self,
        mut send: impl FnMut() -> Result<HttpReply, AttemptError>,
    ) -> Result<FinalReply, AttemptError> {
        let mut unknown = None;
        let count = self.servers().count();
        let most = TRIES.max(count);
        let mut vacant = 0;
        let mut tried = 0;
        let mut waited = Duration::ZERO;
        while tried < most {
            tried += 1;
            let last = tried == most;
            let reply = send();
            if let Ok(HttpReply { status: 429, after, .. }) = &reply
                && waited < PATIENCE
            {
                if waited.is_zero() {
                    note!(
                        "chancery: the server takes no more requests of this client at the moment; waiting"
                    );
                }
                let wait = after.unwrap_or(self.context.backoff * 5).clamp(Duration::from_millis(1), LONGEST);
                waited += wait;
                tried -= 1;
                std::thread::sleep(wait);
                continue;
            }
            let answer = reply.map(|reply| (reply.status, reply.body));
            // One that is gone says nothing against another that has said so.
            let is_vacant = match &answer {
                Ok((status, body)) => *status == 503 && code(body) == "no_decider",
                Err(AttemptError::NotSent(_)) => vacant > 0,
                Err(AttemptError::MaybeSent(_)) => false,
            };
            if is_vacant && vacant < TAKEOVER {
                vacant += 1;
                tried -= 1;
                if vacant == WORD {
                    note!(
                        "chancery: no server decides for fleet {} at the moment; asking again",
                        self.context.fleet
                    );
                }
                self.go_on();
                std::thread::sleep(self.context.backoff * 4);
                continue;
            }
            match answer {
                Ok((status, body)) if !retryable(status, &body) => {
                    return Ok(FinalReply { status, body, was_lost: unknown.is_some() });
                }
                Ok((status, body)) if last && unknown.is_none() => {
                    return Ok(FinalReply { status, body, was_lost: false });
                }
                Ok((504, _)) => unknown = Some("the server does not know the outcome".into()),
                Ok(_) => {}
                Err(AttemptError::MaybeSent(why)) => unknown = Some(why),
                Err(before) if last && unknown.is_none() => return Err(before),
                Err(AttemptError::NotSent(_)) => {}
            }
            self.go_on();
            if !last {
                // One round of the servers, before it is worth waiting.
                let round = u32::try_from((tried - 1) / count).unwrap_or(u32::MAX);
                std::thread::sleep(self.context.backoff * 4_u32.saturating_pow(round));
            }
        }
        Err(AttemptError::MaybeSent(unknown.unwrap_or_default()))
    }

    /// A read that came to nothing: nothing was changed by it.
    fn unread(&self, doing: &str, lost: &AttemptError) -> CliError {
        let server = self.server();
        let message = match lost {
            AttemptError::NotSent(why) => {
                format!("{doing}: cannot reach {server}: {why}; start a server with 'chancery dev'")
            }
            AttemptError::MaybeSent(why) => {
                format!("{doing}: lost {server} before its answer: {why}; try again")
            }
        };
        CliError::new(CliExit::Unreachable, message)
    }

    /// An intent that came to nothing, or to nobody knows what.
    fn unasked(&self, doing: &str, lost: &AttemptError, key: &str) -> CliError {
        match lost {
            AttemptError::NotSent(_) => self.unread(doing, lost),
            AttemptError::MaybeSent(why) => CliError::new(
                CliExit::Unknown,
                format!(
                    "{doing}: nobody knows whether it was done, {} gave no answer: {why}\n\
                     look before asking again; its idempotency key is {key}",
                    self.server()
                ),
            ),
        }
    }
}

fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<HttpReply, AttemptError> {
    let response = result.map_err(lost)?;
    let status = response.status().as_u16();
    let after = response.headers().get("retry-after");
    let after = after.and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
    let body = response.into_body().into_with_config().limit(256 << 20).read_to_string().map_err(lost)?;
    Ok(HttpReply { status, body, after })
}

fn lost(error: ureq::Error) -> AttemptError {
    use std::io::ErrorKind;
    match error {
        ureq::Error::HostNotFound => AttemptError::NotSent("there is no such host".into()),
        ureq::Error::ConnectionFailed => AttemptError::NotSent("the connection failed".into()),
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            AttemptError::NotSent("it did not answer in time".into())
        }
        ureq::Error::Io(error) => match error.kind() {
            ErrorKind::ConnectionRefused => AttemptError::NotSent("connection refused".into()),
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable => {
                AttemptError::NotSent(error.to_string())
            }
            // The resolver's errors have no kind of their own.
            _ if error.to_string().starts_with("failed to lookup address") => {
                AttemptError::NotSent("there is no such host".into())
            }
            _ => AttemptError::MaybeSent(error.to_string()),
        },
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
            AttemptError::NotSent(format!("no such address: {error}"))
        }
        other => AttemptError::MaybeSent(other.to_string()),
    }
}

/// What kind of problem it is, if it is one.
fn code(body: &str) -> String {
    serde_json::from_str::<ProblemResponse>(body).map_or(String::new(), |problem| problem.code)
}

fn retryable(status: u16, body: &str) -> bool {
    status == 503
        || (status >= 429
            && serde_json::from_str::<ProblemResponse>(body).is_ok_and(|problem| problem.retryable))
}

fn problem(doing: &str, status: u16, body: &str) -> CliError {
    match serde_json::from_str::<ProblemResponse>(body) {
        Ok(problem) => error_of(doing, status, problem),
        Err(_) => CliError::new(exit_of("", status), format!("{doing}: the server answered {status}")),
    }
}

fn error_of(doing: &str, status: u16, problem: ProblemResponse) -> CliError {
    let what = if problem.detail.is_empty() { &problem.title } else { &problem.detail };
    let mut message = format!("{doing}: ");
    // One is told by the detail already; of several, the detail is the first of them.
    if problem.errors.len() > 1 {
        message.push_str(&problem.title);
        for PointerError { pointer, detail } in &problem.errors {
            add(&mut message, format_args!("\n  {pointer}: {detail}"));
        }
    } else {
        message.push_str(what);
    }
    let advice = advice(&problem.code);
    if !advice.is_empty() {
        add(&mut message, format_args!("\n{advice}"));
    }
    let mut faults = problem.errors;
    // The intent is the data of what was sent.
    for fault in &mut faults {
        if let Some(within) = fault.pointer.strip_prefix("/data") {
            fault.pointer = within.to_owned();
        }
    }
    CliError { exit: exit_of(&problem.code, status), message, faults }
}

pub(super) fn not_ours(doing: &str, why: &str) -> CliError {
    CliError::failure(format!("{doing}: the answer is not of a Chancery that this client knows: {why}"))
}
