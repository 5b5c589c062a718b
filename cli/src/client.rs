//! HTTP client of the server: reads, and intents that are safe to send again.
//!
//! All attempts of an intent carry one idempotency key and one time. When the connection fails after the
//! request may have been sent, the outcome is unknown until a later attempt is answered.
//!
//! | result of an attempt | next step |
//! |---|---|
//! | no connection | try the next server; after the last attempt: unreachable |
//! | connection lost, 504 | try again with the same key; after the last attempt: outcome unknown |
//! | 503, `no_leader` | try again, up to [`TAKEOVER`] times, without counting |
//! | 503, `retryable` | try again with the same key; after the last: busy, or unknown if an earlier one is |
//! | 429 | try again after the server's `Retry-After`, without counting; after [`PATIENCE`] as 503 |
//! | any other answer | return it |

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::time::Duration;

use chancery_events::id::{Lineage, Position};
use chancery_events::intent::Intent;
use chancery_events::lineage::NamedPosition;
use chancery_events::time::Time;
use serde::Deserialize;
use serde_json::{Value, json};

use super::context::CliContext;
use super::dry_run::SendMode;
use super::error::{CliError, CliExit};
use super::table::add;

use crate::note;

mod dry_run;
mod envelope;
mod input;
mod moment;
mod problem;
mod readiness;

use self::envelope::CommandKeys;
pub(super) use self::envelope::RepeatAdvice;
pub(super) use self::input::ConsoleSender;
use self::moment::{ClientMoment, last_before};
pub(super) use self::problem::not_ours;
pub use self::problem::problem;
use self::problem::{ProblemResponse, code, error_of, retryable};

/// Maximum number of attempts of a request, or the number of servers if that is higher.
pub(super) const TRIES: usize = 3;
/// Maximum time that one request waits for the server's rate limit.
const PATIENCE: Duration = Duration::from_mins(5);
/// Maximum time between two attempts, even if the server names a longer one.
const LONGEST: Duration = Duration::from_mins(1);
/// Maximum number of attempts while there is no leader: long enough for another server to become leader.
const TAKEOVER: u32 = 40;
/// Number of attempts without a leader after which a message informs the user.
const WORD: u32 = 2;

/// Server that a command uses, and its standard output.
pub(super) struct CommandIo<'a> {
    /// Client of the server.
    pub(super) client: &'a ApiClient<'a>,
    /// Destination of the command's data.
    pub(super) out: &'a mut dyn Write,
}

/// Answer to an intent.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct VerdictResponse {
    pub(super) position: u64,
    /// `accepted` or `unchanged`.
    #[serde(rename = "verdict")]
    pub(super) outcome: String,
    pub(super) version: Option<u64>,
    pub(super) subject: Option<String>,
    /// Fields that an edit of a plan changed.
    #[serde(default)]
    pub(super) changed: PlanChanges,
    /// Deployments that a new deployment supersedes.
    #[serde(default)]
    pub(super) superseded: Vec<String>,
}

/// Fields of a plan that an edit changed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PlanChanges {
    /// Fields whose edit takes effect immediately.
    pub(super) immediate: Vec<String>,
    /// Fields that a deployment puts into effect.
    pub(super) deployed: Vec<String>,
}

impl VerdictResponse {
    /// Writes which deployments end because of the new one.
    pub(super) fn note_superseded(&self, mode: SendMode) {
        for deployment in &self.superseded {
            note!("hint: {deployment} {} superseded", mode.will_be());
        }
    }

    /// Returns the outcome to show: `done` for a change.
    pub(super) fn shown<'d>(&self, done: &'d str) -> &'d str {
        match self.outcome.as_str() {
            _ if self.request().is_some() => "waits for approval",
            "unchanged" => "unchanged",
            _ => done,
        }
    }

    /// Returns the verdict as JSON output.
    pub(super) fn json(&self, name: &str, outcome: &str) -> Value {
        json!({ "subject": name, "outcome": outcome, "position": self.position, "version": self.version })
    }

    /// Id of the approval request that the intent became, if it waits for approval.
    pub(super) fn request(&self) -> Option<&str> {
        self.subject.as_deref()?.strip_prefix("request/")
    }
}

/// Answer to an attempt.
struct HttpReply {
    status: u16,
    body: String,
    /// Time that the server asks the client to wait before the next attempt.
    after: Option<Duration>,
}

/// Answer that needs no other attempt.
pub(super) struct FinalReply {
    pub(super) status: u16,
    pub(super) body: String,
    /// Whether the outcome of an earlier attempt is unknown.
    pub(super) was_lost: bool,
}

impl FinalReply {
    /// Reads the answer to a read. Another status than 200 is an error.
    fn value(&self, doing: &str) -> Result<Value, CliError> {
        if self.status != 200 {
            return Err(problem(doing, self.status, &self.body));
        }
        serde_json::from_str(&self.body).map_err(|error| not_ours(doing, error))
    }
}

/// Reason why an attempt has no answer.
enum AttemptError {
    /// No connection: nothing was sent.
    NotSent(String),
    /// The connection failed later: the server may have received the request.
    MaybeSent(String),
}

/// Client of one fleet, through one or more servers.
pub(super) struct ApiClient<'a> {
    pub(super) context: &'a CliContext,
    agent: ureq::Agent,
    streams: ureq::Agent,
    /// Index of the current server.
    at: Cell<usize>,
    /// Position of the last verdict; later reads reflect it.
    seen: Cell<u64>,
    /// Position of the last answer that has one.
    reached: Cell<u64>,
    /// Lineage of the server's positions, if an answer contained it.
    lineage: Cell<Option<Lineage>>,
    /// Moment of later reads; the present unless it is set.
    moment: ClientMoment,
    keys: CommandKeys,
    repeat: RefCell<RepeatAdvice>,
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
            reached: Cell::new(0),
            lineage: Cell::new(None),
            moment: ClientMoment::default(),
            keys: CommandKeys::of(context.idempotency_key.as_ref()),
            repeat: RefCell::default(),
        }
    }

    /// Makes later reads those of a moment: a position or a time. The record that the first answer names is
    /// the moment of all further ones.
    pub(super) fn read_at(&self, moment: Option<&String>) {
        self.moment.set(moment.cloned());
    }

    /// Makes later reads be of a moment that the user has not named, and is not shown.
    pub(super) fn read_silently_at(&self, moment: &str) {
        self.moment.set(Some(moment.to_owned()));
        self.moment.is_silent.set(true);
    }

    /// Time of the reads: that of their moment, if there is one.
    pub(super) fn time(&self) -> Time {
        self.moment.time.get().unwrap_or_else(|| Time::from_micros(chrono::Utc::now().timestamp_micros()))
    }

    /// Makes later reads reflect this position.
    pub(super) fn after(&self, position: u64) {
        self.seen.set(self.seen.get().max(position));
    }

    /// Position that the last read reflects; 0 if its answer has none.
    pub(super) fn reached(&self) -> u64 {
        self.reached.get()
    }

    /// Returns a position of the server with its lineage, as requests carry it.
    pub(super) fn named(&self, position: u64) -> NamedPosition {
        NamedPosition { position: Position::new(position), lineage: self.lineage.get() }
    }

    /// Reads an answer, and the lineage of its positions.
    fn answer(
        &self,
        result: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<HttpReply, AttemptError> {
        if let Ok(response) = &result {
            let lineage = response.headers().get("chancery-lineage");
            let lineage = lineage.and_then(|value| value.to_str().ok()?.parse().ok());
            // The first lineage is kept: the server refuses its positions under another lineage, with a
            // reason.
            self.lineage.set(self.lineage.get().or(lineage));
            self.moment.note(response.headers());
            let position = response.headers().get("chancery-position");
            let position = position.and_then(|value| value.to_str().ok()?.parse().ok());
            self.reached.set(position.unwrap_or(self.reached.get()));
        }
        answer(result)
    }

    fn url(&self, path: &str) -> String {
        format!("{}/v1/fleets/{}{path}", self.server(), self.context.fleet)
    }

    fn servers(&self) -> impl Iterator<Item = &str> {
        self.context.server.split(',').map(|server| server.trim().trim_end_matches('/'))
    }

    /// Selects the next server of the list for later requests.
    fn go_on(&self) {
        self.at.set((self.at.get() + 1) % self.servers().count().max(1));
    }

    /// Current server.
    fn server(&self) -> &str {
        self.servers().nth(self.at.get()).unwrap_or(&self.context.server)
    }

    /// Reads `path` of the fleet; errors start with `doing`, as in `cannot read node/node-1`.
    pub(super) fn get(&self, doing: &str, path: &str, query: &[(&str, String)]) -> Result<Value, CliError> {
        let mut reply = self.read(doing, path, query)?;
        if reply.status != 200 {
            let last = |text: &String| last_before(text, &reply.body).unwrap_or_else(|| text.clone());
            let again: Vec<_> = query.iter().map(|(name, text)| (*name, last(text))).collect();
            if self.moment.use_last(&reply.body) || again != query {
                reply = self.read(doing, path, &again)?;
            }
        }
        reply.value(doing)
    }

    fn read(&self, doing: &str, path: &str, query: &[(&str, String)]) -> Result<FinalReply, CliError> {
        let read = self.tried(|| {
            let request = self.agent.get(self.url(path)).query_pairs(query.iter().cloned());
            self.answer(request.query_pairs(self.state_query()).call())
        });
        read.map_err(|lost| self.unread(doing, &lost))
    }

    /// Returns the parameters that name the state to read: its moment, and the position that it must reflect.
    fn state_query(&self) -> impl Iterator<Item = (&'static str, String)> {
        let moment = self.moment.get().map(|moment| ("as_of", moment));
        let seen = Some(self.seen.get()).filter(|seen| *seen > 0);
        let seen = seen.map(|seen| ("min_position", self.named(seen).to_string()));
        moment.into_iter().chain(seen)
    }

    /// Reads `path` of the server, outside every fleet; `None` if the server does not have it.
    pub(super) fn find_root(&self, doing: &str, path: &str) -> Result<Option<Value>, CliError> {
        let read = self.tried(|| self.answer(self.agent.get(format!("{}{path}", self.server())).call()));
        match read.map_err(|lost| self.unread(doing, &lost))? {
            FinalReply { status: 404, .. } => Ok(None),
            reply => reply.value(doing).map(Some),
        }
    }

    /// Opens a stream, which ends when the server or the reader closes it.
    pub(super) fn stream(
        &self,
        doing: &str,
        path: &str,
        query: &[(&str, String)],
        accept: &str,
    ) -> Result<impl Read + use<>, CliError> {
        let mut left = self.servers().count();
        let response = loop {
            let request = self.streams.get(self.url(path)).header("accept", accept);
            let request = request.query_pairs(query.iter().cloned());
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
        opened(doing, response)
    }

    /// Attaches to the console that a verdict has opened; the stream ends when either end closes it.
    pub(super) fn attach(&self, doing: &str, verdict: u64) -> Result<impl Read + use<>, CliError> {
        let request = self.streams.post(self.url(&format!("/consoles/{verdict}/attach")));
        let request = request.header("content-type", "application/x-ndjson");
        let sent = request.header("chancery-actor", self.context.actor.as_str()).send_empty();
        opened(doing, sent.map_err(|error| self.unread(doing, &lost(error)))?)
    }

    /// Returns the sender of input to an attachment.
    pub(super) fn input_sender(&self, attachment: uuid::Uuid) -> ConsoleSender {
        ConsoleSender {
            agent: self.agent.clone(),
            url: self.url(&format!("/attachments/{attachment}/input")),
        }
    }

    /// Sends an intent, and returns its verdict.
    pub(super) fn ask(&self, doing: &str, intent: &Intent) -> Result<VerdictResponse, CliError> {
        self.send(doing, &self.envelope(intent, None))
    }

    fn send(&self, doing: &str, body: &str) -> Result<VerdictResponse, CliError> {
        let FinalReply { status, body, .. } = self.post(doing, "application/cloudevents+json", body)?;
        if !(200..300).contains(&status) {
            return Err(self.refused(doing, status, &body));
        }
        let verdict: VerdictResponse = serde_json::from_str(&body).map_err(|error| not_ours(doing, error))?;
        self.after(verdict.position);
        Ok(verdict)
    }

    /// Sends intents. Errors start with `doing`, which belongs to the first intent.
    pub(super) fn post(&self, doing: &str, content_type: &str, body: &str) -> Result<FinalReply, CliError> {
        let sent = self.tried(|| {
            let request = self.agent.post(self.url("/intents")).header("content-type", content_type);
            self.answer(request.send(body))
        });
        sent.map_err(|lost| self.unasked(doing, &lost))
    }

    /// Returns the error of an intent that was refused or has no verdict.
    pub(super) fn refused(&self, doing: &str, status: u16, body: &str) -> CliError {
        let mut error = problem(doing, status, body);
        if error.exit == CliExit::Unknown {
            add(&mut error.message, format_args!("\n{}", self.repeat_hint()));
        }
        error
    }

    /// Returns the error of an intent whose outcome stays unknown.
    pub(super) fn unknown(&self, doing: &str) -> CliError {
        self.unasked(doing, &AttemptError::MaybeSent("the server does not know the outcome".into()))
    }

    /// Reads the answer to the intent at `index` of a batch.
    pub(super) fn item(
        &self,
        doing: &str,
        index: usize,
        status: u16,
        item: Value,
    ) -> Result<VerdictResponse, CliError> {
        if (200..300).contains(&status) {
            let verdict: VerdictResponse =
                serde_json::from_value(item).map_err(|error| not_ours(doing, error))?;
            self.after(verdict.position);
            return Ok(verdict);
        }
        Err(ApiClient::item_error(doing, index, status, item))
    }

    /// Returns the error of the intent at `index` of a batch.
    pub(super) fn item_error(doing: &str, index: usize, status: u16, item: Value) -> CliError {
        let mut problem: ProblemResponse = match serde_json::from_value(item) {
            Ok(problem) => problem,
            Err(error) => return not_ours(doing, error),
        };
        let prefix = format!("/{index}");
        for fault in &mut problem.errors {
            if let Some(within) = fault.pointer.strip_prefix(&prefix) {
                fault.pointer = within.to_owned();
            }
        }
        error_of(doing, status, problem)
    }

    /// Selects the next server and waits, before attempt `tries`.
    pub(super) fn back_off(&self, tries: usize) {
        self.go_on();
        let round = u32::try_from(tries / self.servers().count().max(1)).unwrap_or(u32::MAX);
        std::thread::sleep(self.context.backoff * 4_u32.saturating_pow(round.min(4)));
    }

    /// Repeats a request until its answer needs no other attempt.
    ///
    /// After an unknown outcome, "busy" to a later attempt leaves the outcome unknown.
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
                    note!("chancery: rate limit of the server reached; waiting");
                }
                let wait = after.unwrap_or(self.context.backoff * 5).clamp(Duration::from_millis(1), LONGEST);
                waited += wait;
                tried -= 1;
                std::thread::sleep(wait);
                continue;
            }
            let answer = reply.map(|reply| (reply.status, reply.body));
            // An unreachable server does not contradict another that reported no leader.
            let is_vacant = match &answer {
                Ok((status, body)) => *status == 503 && code(body) == "no_leader",
                Err(AttemptError::NotSent(_)) => vacant > 0,
                Err(AttemptError::MaybeSent(_)) => false,
            };
            if is_vacant && vacant < TAKEOVER {
                vacant += 1;
                tried -= 1;
                if vacant == WORD {
                    note!("chancery: fleet {} has no leader; retrying", self.context.fleet);
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
                // Each server is tried once before the wait becomes longer.
                let round = u32::try_from((tried - 1) / count).unwrap_or(u32::MAX);
                std::thread::sleep(self.context.backoff * 4_u32.saturating_pow(round));
            }
        }
        Err(AttemptError::MaybeSent(unknown.unwrap_or_default()))
    }

    /// Returns the error of a read without an answer; a read changes nothing.
    fn unread(&self, doing: &str, lost: &AttemptError) -> CliError {
        let server = self.server();
        let message = match lost {
            AttemptError::NotSent(why) => {
                format!(
                    "{doing}: server {server} unreachable: {why}\nhint: start that server, or name another with \
                     --server; `chancery dev` starts one for development"
                )
            }
            AttemptError::MaybeSent(why) => {
                format!("{doing}: connection to {server} lost: {why}\nhint: try again")
            }
        };
        CliError::new(CliExit::Unreachable, message)
    }

    /// Returns the error of an intent that was not sent, or whose outcome is unknown.
    fn unasked(&self, doing: &str, lost: &AttemptError) -> CliError {
        match lost {
            AttemptError::NotSent(_) => self.unread(doing, lost),
            AttemptError::MaybeSent(why) => {
                let (server, hint) = (self.server(), self.repeat_hint());
                let message = format!("{doing}: outcome unknown, no answer from {server}: {why}\n{hint}");
                CliError::new(CliExit::Unknown, message)
            }
        }
    }
}

/// Returns the stream of an answer. Another status than 200 is an error.
fn opened(doing: &str, response: ureq::http::Response<ureq::Body>) -> Result<impl Read + use<>, CliError> {
    let status = response.status().as_u16();
    let mut body = response.into_body();
    if status != 200 {
        return Err(problem(doing, status, &body.read_to_string().unwrap_or_default()));
    }
    Ok(body.into_reader())
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
        ureq::Error::HostNotFound => AttemptError::NotSent("host not found".into()),
        ureq::Error::ConnectionFailed => AttemptError::NotSent("connection failed".into()),
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            AttemptError::NotSent("timeout".into())
        }
        ureq::Error::Io(error) => match error.kind() {
            ErrorKind::ConnectionRefused => AttemptError::NotSent("connection refused".into()),
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable => {
                AttemptError::NotSent(error.to_string())
            }
            // Errors of the resolver have no kind.
            _ if error.to_string().starts_with("failed to lookup address") => {
                AttemptError::NotSent("host not found".into())
            }
            _ => AttemptError::MaybeSent(error.to_string()),
        },
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
            AttemptError::NotSent(format!("invalid address: {error}"))
        }
        other => AttemptError::MaybeSent(other.to_string()),
    }
}
