//! `wait`: waits until a field has a value, or the entity is deleted. The event stream wakes the command; it
//! also polls, so that it ends without a stream.
//!
//! | entity that does not exist | effect |
//! |---|---|
//! | of a kind with manifests | waits: it may be applied concurrently; the error of the timeout is `not there` |
//! | of a kind whose names the server issues, with a history | as above |
//! | of such a kind, without a history | error |
//! | without a history, with `--for deleted` | error |

use std::io::{BufRead as _, BufReader};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use chancery_events::lifecycle::{OperationStatus, RequestStatus};
use chancery_projector::rows::RequestedKind;
use serde_json::{Value, json};

use super::act::FORMS;
use super::client::{ApiClient, CommandIo};
use super::context::{CliContext, OutputFormat};
use super::error::{CliError, CliExit};
use super::events::past;
use super::fields;
use super::flags::WaitArgs;
use super::get::{find, list, name_of};
use super::kind::{EntityKind, KindNaming as _};
use super::short_id;
use super::table::plain;

/// Maximum time between two checks.
const LOOK: Duration = Duration::from_secs(1);

/// Condition to wait for.
#[derive(Debug, PartialEq, Eq)]
enum WaitCondition<'a> {
    Deleted,
    Field { path: Vec<&'a str>, value: &'a str },
}

/// Result of a check.
#[derive(Debug, PartialEq, Eq)]
enum WaitProgress {
    Reached,
    NotYet(String),
    /// The condition can no longer be reached.
    Over(String),
}

/// Waits for a condition, which the end of a request without approval makes impossible.
pub(super) fn run(wait: &WaitArgs, request: Option<&str>, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let output = io.client.context.output(FORMS)?;
    let (kind, name) = EntityKind::split(&wait.of)?;
    let name = &short_id::resolve(io.client, kind, name)?;
    let until = WaitCondition::read(&wait.until)?;
    if let WaitCondition::Field { path, value } = &until {
        fields::check(kind, path, value)?;
    }
    kind.path_of(name)?;
    let of = format!("{}/{name}", kind.word());
    let doing = format!("cannot wait for {of} to be {}", wait.until);
    // Events of a disruption are about its node.
    let subject = match kind {
        EntityKind::Disruption => format!("node/{}", kind.halves(name)?.0),
        _ => of.clone(),
    };
    let mut last = None;
    let reached = wait_for(io.client, subject, wait.timeout, &mut || {
        let row = find(io.client, &doing, kind, name)?;
        let is_issued =
            kind.entry().manifest.is_none() && !matches!(kind, EntityKind::Disruption | EntityKind::Volume);
        if row.is_none() && (until == WaitCondition::Deleted || is_issued) && last.is_none() {
            // An entity without a history never existed: its name has a typo. A name that no manifest gives is never
            // given later.
            past(kind, name, io.client)?;
        }
        match look(&until, kind, row.as_ref())? {
            WaitProgress::Reached => Ok(Some(())),
            WaitProgress::Over(what) => Err(CliError::failure(format!("{doing}: impossible, it is {what}"))),
            WaitProgress::NotYet(now) => {
                last = Some(now);
                if let Some(end) = request.map(|id| ended(io.client, id)).transpose()?.flatten() {
                    return Err(CliError::failure(format!("{doing}: impossible, {end}")));
                }
                Ok(None)
            }
        }
    })?;
    if reached.is_some() {
        let json = json!({ "subject": of, "outcome": wait.until });
        return output.outcome(&of, &wait.until, &json, io.out);
    }
    let now = last.unwrap_or_default();
    // The rest of another command's timeout has a fraction of a second.
    let seconds = wait.timeout.as_secs_f64();
    let timeout = if seconds > 1.0 { Duration::from_secs_f64(seconds.round()) } else { wait.timeout };
    Err(late(&until, kind, name, io.client, &format!("{doing}: after {timeout:?} it is {now}")))
}

/// Waits after a command, which may wait for the approval of a request. Only a table shows the end: other formats have the outcome
/// of the command.
pub(super) fn after(
    of: String,
    until: &str,
    (timeout, request): (Duration, Option<&str>),
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let wait = WaitArgs { of, until: until.to_owned(), timeout };
    if io.client.context.output(FORMS)? == OutputFormat::Table {
        return run(&wait, request, io);
    }
    run(&wait, request, &mut CommandIo { client: io.client, out: &mut std::io::sink() })
}

/// Returns how a request ended without approval; `None` if it has not.
fn ended(client: &ApiClient<'_>, id: &str) -> Result<Option<String>, CliError> {
    let Some(row) = find(client, "cannot read request", EntityKind::Request, id)? else { return Ok(None) };
    let [state, message] = ["state", "message"].map(|field| row[field].as_str().unwrap_or_default());
    let is_open = [RequestStatus::Pending, RequestStatus::Approved].iter().any(|open| open.word() == state);
    Ok((!is_open).then(|| format!("request/{id} is {state}: {message}")))
}

/// Checks with each event about `subject`, and each second, until there is a result; none after `timeout`.
pub(super) fn wait_for<T>(
    client: &ApiClient<'_>,
    subject: String,
    timeout: Duration,
    check: &mut dyn FnMut() -> Result<Option<T>, CliError>,
) -> Result<Option<T>, CliError> {
    let deadline = Instant::now() + timeout;
    let woken = wake(client.context.clone(), subject);
    loop {
        if let Some(result) = check()? {
            return Ok(Some(result));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        pause(&woken, left.min(LOOK));
    }
}

impl<'a> WaitCondition<'a> {
    fn read(text: &'a str) -> Result<WaitCondition<'a>, CliError> {
        match text.split_once('=') {
            None if text == "deleted" => Ok(WaitCondition::Deleted),
            Some((path, value)) if !path.is_empty() => {
                Ok(WaitCondition::Field { path: path.split('.').collect(), value })
            }
            _ => Err(CliError::usage(format!(
                "invalid condition {text:?}: must be FIELD=VALUE, as in phase=running, or deleted"
            ))),
        }
    }
}

fn look(until: &WaitCondition<'_>, kind: EntityKind, row: Option<&Value>) -> Result<WaitProgress, CliError> {
    let (path, value) = match (until, row) {
        (WaitCondition::Deleted, None) => return Ok(WaitProgress::Reached),
        (WaitCondition::Deleted, Some(_)) => return Ok(WaitProgress::NotYet("still there".into())),
        // The entity may still be created: manifests may be applied concurrently.
        (WaitCondition::Field { .. }, None) => return Ok(WaitProgress::NotYet("not there".into())),
        (WaitCondition::Field { path, value }, Some(row)) if row.get(path[0]).is_some() => (path, value),
        (WaitCondition::Field { path, .. }, Some(_)) => {
            // This client has the field; the server may be older.
            return Err(CliError::failure(format!(
                "cannot read field {:?} of a {}: the server does not have it",
                path[0],
                kind.word()
            )));
        }
    };
    let row = row.expect("a field is read from a row");
    let found = path.iter().fold(row, |inner, field| &inner[*field]);
    let text = match found {
        // A row omits counters that are zero.
        Value::Null if path.len() > 1 => "0".into(),
        Value::Null => "none".into(),
        other => plain(other),
    };
    if text == *value {
        return Ok(WaitProgress::Reached);
    }
    let message = row["message"].as_str().filter(|message| !message.is_empty());
    let now = message.map_or_else(|| text.clone(), |message| format!("{text}: {message}"));
    Ok(if path == &["state"] && kind.entry().ends.contains(&text.as_str()) {
        WaitProgress::Over(now)
    } else {
        WaitProgress::NotYet(now)
    })
}

/// Returns the error of a timeout, which names what is pending approval that the condition needs.
fn late(
    until: &WaitCondition<'_>,
    kind: EntityKind,
    name: &str,
    client: &ApiClient<'_>,
    what: &str,
) -> CliError {
    let advice = match until {
        WaitCondition::Deleted if kind == EntityKind::Replica => pending_operations(kind, name, client),
        WaitCondition::Deleted => pending_request(kind, name, client),
        // No operation changes the activity.
        WaitCondition::Field { path, .. } if path.first() == Some(&"activity") => None,
        WaitCondition::Field { .. } => pending_operations(kind, name, client),
    };
    match advice {
        Some(advice) => CliError::new(CliExit::Awaiting, format!("{what}\n{advice}")),
        None => CliError::new(CliExit::Unknown, what),
    }
}

/// Returns advice about operations that are pending approval. An answer that cannot be read adds nothing to the error.
fn pending_operations(kind: EntityKind, name: &str, client: &ApiClient<'_>) -> Option<String> {
    let (field, of) = match kind {
        EntityKind::Plan => ("plan", name),
        EntityKind::Deployment => ("plan", name.split('/').next().unwrap_or(name)),
        EntityKind::Replica => ("replica", name),
        _ => return None,
    };
    let filters = [(field, of.to_owned()), ("state", OperationStatus::PendingApproval.to_string())];
    let pending = list(client, EntityKind::Operation, &filters, 1).ok()?;
    let advice = format!("hint: operations are pending approval\ntry: chancery approve --{field} {of} --all");
    (!pending.items.is_empty()).then_some(advice)
}

/// Returns advice about a request to delete the entity that is pending approval, as [`pending_operations`] does.
fn pending_request(kind: EntityKind, name: &str, client: &ApiClient<'_>) -> Option<String> {
    let deletions = [
        RequestedKind::PlanDelete,
        RequestedKind::NodeDelete,
        RequestedKind::PolicyDelete,
        RequestedKind::VolumeDelete,
    ];
    let filters = [
        ("subject", format!("{}/{name}", kind.word())),
        ("kind", deletions.map(|kind| kind.to_string()).join(",")),
        ("state", RequestStatus::Pending.to_string()),
    ];
    let pending = list(client, EntityKind::Request, &filters, 1).ok()?;
    let id = name_of(EntityKind::Request, pending.items.first()?);
    Some(format!("hint: the deletion is pending approval\ntry: chancery approve request/{id}"))
}

/// Sends a signal for each event about the entity. Without the signals, checks are made by time alone.
fn wake(context: CliContext, subject: String) -> Receiver<()> {
    let (waker, woken) = channel();
    std::thread::spawn(move || {
        let client = ApiClient::new(&context);
        let query = [("from", "end".to_owned()), ("follow", "true".to_owned()), ("subject", subject)];
        let Ok(stream) = client.stream("follow events", "/events", &query, "application/x-ndjson") else {
            return;
        };
        for line in BufReader::new(stream).lines() {
            if line.is_err() || waker.send(()).is_err() {
                return;
            }
        }
    });
    woken
}

fn pause(woken: &Receiver<()>, most: Duration) {
    match woken.recv_timeout(most) {
        // The read model is updated shortly after the journal.
        Ok(()) => std::thread::sleep(Duration::from_millis(10)),
        Err(RecvTimeoutError::Timeout) => {}
        Err(RecvTimeoutError::Disconnected) => std::thread::sleep(most.min(Duration::from_millis(250))),
    }
    // The next check covers all events that arrived meanwhile.
    while woken.try_recv().is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_reports_reached_not_yet_and_never() {
        let row = json!({"state": "failed", "message": "web-0 exited 1", "replicas": {"running": 3}});
        let cases = [
            ("state=failed", EntityKind::Deployment, WaitProgress::Reached),
            ("state=completed", EntityKind::Deployment, WaitProgress::Over("failed: web-0 exited 1".into())),
            ("state=completed", EntityKind::Cluster, WaitProgress::NotYet("failed: web-0 exited 1".into())),
            ("replicas.running=3", EntityKind::Plan, WaitProgress::Reached),
            ("replicas.pending=0", EntityKind::Plan, WaitProgress::Reached),
            ("deleted", EntityKind::Replica, WaitProgress::NotYet("still there".into())),
        ];
        for (text, kind, wanted) in cases {
            assert_eq!(look(&WaitCondition::read(text).expect(text), kind, Some(&row)), Ok(wanted), "{text}");
        }
        assert_eq!(look(&WaitCondition::Deleted, EntityKind::Replica, None), Ok(WaitProgress::Reached));
        let error = look(&WaitCondition::read("stat=x").expect("a field"), EntityKind::Plan, Some(&row))
            .expect_err("no such field");
        assert_eq!(error.message, "cannot read field \"stat\" of a plan: the server does not have it");
        assert!(WaitCondition::read("gone").is_err() && WaitCondition::read("=x").is_err());
    }
}
