//! Consoles of guests: attached clients, and the executors that have the guests.
//!
//! ```text
//! client                                   server                                   executor outside the server
//!   POST …/replicas/NAME/console   ─►        intent: console.opened is recorded
//!   POST …/consoles/POSITION/attach   ─►     ConsoleRequest::Attach    ─►  response of POST …/channels/ID/consoles
//!     ◄─ 200, one ConsoleLine per line
//!   POST …/attachments/ID/input?after=0   ─► ConsoleRequest::Input     ─►
//!     ◄─ 204                                 ◄─ POST …/channels/ID/consoles/replies?after=0
//! ```
//! An executor in the server's own process gets the same requests from memory.
//!
//! An attachment needs the verdict of an intent of the same actor, which counts once and for [`GRANT`]. So the journal has everyone
//! who could attach, whatever server is the leader. Attachments themselves are in memory alone: they end with their server, their
//! connection or their executor, and none can stay. Input reaches the guest once: a repeated request is compared by `after`.
//!
//! The answer to a client has at most [`WINDOW`](chancery_events::console::WINDOW) bytes that it has not read.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse as _;
use chancery_decider::leader_router::LeaderLocation;
use chancery_events::console::{
    AttachRefusal, ConsoleBytes, ConsoleLine, ConsoleReply, ConsoleRequest, MAX_INPUT, OUTPUT_COST, WINDOW,
};
use chancery_events::event::Event;
use chancery_events::fact::{ConsoleOpened, Fact};
use chancery_events::id::Position;
use chancery_events::name::ClusterName;
use chancery_events::spec::ConsoleAccess;
use chancery_events::time::Time;
use chancery_executor::console::{ConsoleHub, serve_consoles};
use chancery_journal::JournalReader;
use chancery_projector::rows::IncarnationRow;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use uuid::Uuid;

use super::FleetApi;
use super::channels::{LINES, OfferedConsoles};
use super::follower::admit;
use super::headers::IntentHeaders;
use super::middleware::{RoutedRequest, patience, too_large, with_type};
use super::problem::{
    BUSY, DENIED, GONE, IN_USE, INTERNAL, INVALID, NOT_FOUND, OUT_OF_ORDER, ProblemDetails, RequestPart,
    TIMEOUT,
};
use super::query::QueryParams;
use super::read::in_turn;
use super::routes::RouteTarget;
use super::{channels, forward};

/// Time after its verdict in which an intent permits an attachment.
const GRANT: Duration = Duration::from_mins(1);
/// Time that an executor has to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum number of attachments of a fleet on a server.
const ATTACHMENTS: usize = 256;
/// Maximum number of requests that wait for an executor.
pub(super) const REQUESTS: usize = 64;
/// Maximum number of replies that wait for a client: no more cost less than the window.
const REPLIES: usize = WINDOW / OUTPUT_COST + 4;
/// Media type of input.
const BYTES: &str = "application/octet-stream";

/// Attached clients of a fleet on this server.
#[derive(Default)]
pub(super) struct AttachmentTable {
    attachments: Mutex<BTreeMap<Uuid, Arc<ServedAttachment>>>,
    /// Positions of verdicts that were used, and when.
    used: Mutex<BTreeMap<Position, Instant>>,
    /// Requests to the executors in this process.
    embedded: Mutex<Option<mpsc::Sender<ConsoleRequest>>>,
}

/// Attachment, as requests about it find it.
struct ServedAttachment {
    /// Channel of the executor, if it is outside this process.
    channel: Option<Uuid>,
    access: ConsoleAccess,
    executor: mpsc::Sender<ConsoleRequest>,
    replies: mpsc::Sender<ConsoleReply>,
    /// Number of the last answered input, and how many of its bytes were taken.
    taken: watch::Sender<(u64, usize)>,
    /// Locked while an input is in flight.
    input: tokio::sync::Mutex<InputProgress>,
}

/// Progress of the input of an attachment.
#[derive(Default)]
struct InputProgress {
    /// Number of inputs.
    number: u64,
    /// Number of bytes that the guest's port has taken.
    total: u64,
}

impl AttachmentTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uuid, Arc<ServedAttachment>>> {
        self.attachments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses a verdict, which counts once.
    fn take_grant(&self, position: Position) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, at| at.elapsed() <= GRANT * 2);
        used.insert(position, Instant::now()).is_none()
    }

    /// Passes an executor's reply to its client. `channel` is that of the executor: it has no say about others.
    pub(super) fn reply(&self, channel: Option<Uuid>, reply: ConsoleReply) {
        let id = reply.attachment();
        let found = self.lock().get(&id).filter(|served| served.channel == channel).cloned();
        let Some(served) = found else { return };
        if let ConsoleReply::Taken { number, taken, .. } = reply {
            served.taken.send_replace((number, taken));
        } else if served.replies.try_send(reply).is_err() {
            // More than the window: the client is detached.
            self.lock().remove(&id);
        }
    }

    /// Ends the attachments to an executor whose channel has ended.
    pub(super) fn end_channel(&self, channel: Uuid) {
        self.lock().retain(|_, served| served.channel != Some(channel));
    }

    /// Returns the way to the executors in this process.
    fn embedded(app: &Arc<FleetApi>) -> mpsc::Sender<ConsoleRequest> {
        let mut embedded = app.channels.consoles.embedded.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = || {
            let (to_hub, requests) = mpsc::channel(REQUESTS);
            let (from_hub, mut replies) = mpsc::channel(REQUESTS);
            tokio::spawn(serve_consoles(ConsoleHub::new(app.logs.clone()), requests, from_hub));
            let channels = Arc::clone(&app.channels);
            tokio::spawn(async move {
                while let Some(reply) = replies.recv().await {
                    channels.consoles.reply(None, reply);
                }
            });
            to_hub
        };
        embedded.get_or_insert_with(begin).clone()
    }
}

/// Client of a console. The client is detached when this is dropped.
struct ClientGuard {
    app: Arc<FleetApi>,
    id: Uuid,
    executor: mpsc::Sender<ConsoleRequest>,
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.app.channels.consoles.lock().remove(&self.id);
        let detach = ConsoleRequest::Detach { attachment: self.id };
        if let Err(mpsc::error::TrySendError::Full(detach)) = self.executor.try_send(detach) {
            let executor = self.executor.clone();
            // An executor that takes no requests loses its channel, and with it all clients.
            tokio::spawn(async move { timeout(GRANT, executor.send(detach)).await });
        }
    }
}

/// Answers a request about consoles, on this server or through the leader.
pub(super) async fn answer(
    app: &Arc<FleetApi>,
    call: RoutedRequest,
    params: QueryParams,
    body: Result<Bytes, ProblemDetails>,
) -> Result<Response<Body>, ProblemDetails> {
    let elsewhere = match (call.found.route.does, app.router.find()) {
        (RouteTarget::OfferConsoles | RouteTarget::SendReplies, LeaderLocation::Remote(there)) => {
            Some(there).filter(|_| channels::offered(app, &call).is_err_and(|problem| problem.is(GONE)))
        }
        (RouteTarget::OfferConsoles | RouteTarget::SendReplies, _) => None,
        (_, LeaderLocation::Remote(there)) => Some(there),
        (_, LeaderLocation::Local(_)) => None,
        (_, LeaderLocation::Unknown) => return Err(forward::no_leader()),
    };
    if let Some(there) = elsewhere {
        return forward::send(app, &there, &call.parts, body?.into(), patience(app)).await;
    }
    forward::check(app, &call.parts.headers)?;
    match call.found.route.does {
        RouteTarget::AttachConsole => {
            params.end(&[])?;
            channels::has_type(&call, LINES)?;
            no_body(&body?)?;
            attach(app, &call).await
        }
        RouteTarget::SendInput => send_input(app, &call, params, body?).await,
        RouteTarget::OfferConsoles => {
            params.end(&[])?;
            no_body(&body?)?;
            Ok(offer(app, channels::offered(app, &call)?))
        }
        RouteTarget::SendReplies => send_replies(app, &call, params, &body?),
        other => Err(ProblemDetails::new(INTERNAL, format!("cannot answer {other:?}: not about consoles"))),
    }
}

fn no_body(body: &Bytes) -> Result<(), ProblemDetails> {
    if body.is_empty() {
        return Ok(());
    }
    Err(ProblemDetails::new(INVALID, "invalid body: must be empty"))
}

/// Returns the fact that follows a verdict, and the time of its record, if the fact opens a console.
fn opened(source: &dyn JournalReader, verdict: Position) -> Option<(Time, ConsoleOpened)> {
    let record = source.records(verdict).ok()?.next()?.ok()?;
    let (_, line) = record.events().find(|(at, _)| *at == verdict.plus(1))?;
    let Ok(Event::Fact { fact: Fact::ConsoleOpened(opened), .. }) = Event::read(line) else { return None };
    Some((record.header().time, opened))
}

/// Returns the console that the actor has opened with the verdict at the position of the path.
async fn granted(app: &Arc<FleetApi>, call: &RoutedRequest) -> Result<ConsoleOpened, ProblemDetails> {
    let actor = IntentHeaders::read(&call.parts.headers)?.actor_or_local();
    let position = call.found.param("position").unwrap_or_default().parse().map(Position::new);
    let position = position.map_err(|_| {
        ProblemDetails::parameter(RequestPart::Path, "position", "must be the position of a verdict")
    })?;
    let source = app.source.clone();
    let found = in_turn(&app.hub.readers, "read a verdict", move || opened(&*source, position)).await?;
    let Some((time, opened)) = found else {
        let detail = format!("cannot attach: the verdict at position {position} opens no console");
        return Err(ProblemDetails::new(NOT_FOUND, detail));
    };
    if opened.opened_by.as_ref() != Some(&actor) {
        let detail = format!("cannot attach: {actor} has not opened the console at position {position}");
        return Err(ProblemDetails::new(DENIED, detail));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_micros(u64::try_from(time.micros()).unwrap_or(0)));
    if age > GRANT || !app.channels.consoles.take_grant(position) {
        let detail = format!(
            "cannot attach: the console was opened at position {position} for one attachment within {} s\n\
             hint: open it again",
            GRANT.as_secs()
        );
        return Err(ProblemDetails::new(GONE, detail));
    }
    Ok(opened)
}

/// Returns the way to the executor of a cluster, and its channel.
fn executor_of(
    app: &Arc<FleetApi>,
    cluster: &ClusterName,
) -> Result<(Option<Uuid>, mpsc::Sender<ConsoleRequest>), ProblemDetails> {
    if let Some((channel, executor)) = app.channels.executor_of(cluster) {
        return Ok((Some(channel), executor));
    }
    if app.logs.keeps(cluster) {
        return Ok((None, AttachmentTable::embedded(app)));
    }
    let detail = format!("cannot attach: no executor of cluster {cluster} with consoles is connected");
    Err(ProblemDetails::new(BUSY, detail))
}

/// Attaches a client; the answer lasts as long as the attachment.
async fn attach(app: &Arc<FleetApi>, call: &RoutedRequest) -> Result<Response<Body>, ProblemDetails> {
    let follower = admit(app, "attach")?;
    let ConsoleOpened { replica, incarnation, payload, access, opened_by } = granted(app, call).await?;
    let row = app.reader.get::<IncarnationRow>(&incarnation);
    let row = row.map_err(|error| ProblemDetails::internal("read rows", &error))?;
    let row = row.filter(|row| !row.state.is_over()).ok_or_else(|| {
        ProblemDetails::new(GONE, format!("cannot attach: incarnation {incarnation} has ended"))
    })?;
    let (channel, executor) = executor_of(app, &row.cluster)?;
    let id = Uuid::new_v4();
    let (to_client, mut replies) = mpsc::channel(REPLIES);
    {
        let mut all = app.channels.consoles.lock();
        if all.len() >= ATTACHMENTS {
            let detail = format!("cannot attach: the limit of {ATTACHMENTS} attachments is reached");
            return Err(ProblemDetails::new(BUSY, detail));
        }
        let served = ServedAttachment {
            channel,
            access,
            executor: executor.clone(),
            replies: to_client,
            taken: watch::channel((0, 0)).0,
            input: tokio::sync::Mutex::default(),
        };
        all.insert(id, Arc::new(served));
    }
    let guard = ClientGuard { app: Arc::clone(app), id, executor: executor.clone() };
    let Some(actor) = opened_by else {
        return Err(ProblemDetails::new(DENIED, "cannot attach: the console was opened for no actor"));
    };
    let request =
        ConsoleRequest::Attach { attachment: id, incarnation, payload, access, actor: actor.clone() };
    let exchanged = timeout(ANSWER, async {
        executor.send(request).await.ok()?;
        replies.recv().await
    });
    match exchanged.await {
        Ok(Some(ConsoleReply::Attached { .. })) => {}
        Ok(Some(ConsoleReply::Refused { reason, detail, .. })) => {
            let kind = match reason {
                AttachRefusal::Missing => GONE,
                AttachRefusal::InUse => IN_USE,
                AttachRefusal::Failed => INTERNAL,
            };
            return Err(ProblemDetails::new(kind, detail));
        }
        Ok(_) | Err(_) => return Err(no_answer(&row.cluster)),
    }
    tracing::info!(%replica, %incarnation, %actor, ?access, "console attached");
    Ok(stream(app, guard, replies, follower))
}

fn no_answer(cluster: &ClusterName) -> ProblemDetails {
    let detail = format!(
        "cannot use console: the executor of cluster {cluster} did not answer within {} s",
        ANSWER.as_secs()
    );
    ProblemDetails::new(TIMEOUT, detail)
}

/// Returns the answer to an attached client; `held` lives as long as the answer.
fn stream(
    app: &Arc<FleetApi>,
    guard: ClientGuard,
    mut replies: mpsc::Receiver<ConsoleReply>,
    held: impl Send + 'static,
) -> Response<Body> {
    let (mut closing, heartbeat) = (app.hub.closing(), app.common.limits.heartbeat);
    let lines = async_stream::stream! {
        let _held = held;
        let mut heartbeat = interval(heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        yield Ok::<_, Infallible>(line(&ConsoleLine::Attached(guard.id)));
        // Cost of the output that was passed on.
        let mut read = 0;
        let ended = loop {
            let next = tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => Err(Some("the server is stopping".to_owned())),
                reply = replies.recv() => match reply {
                    Some(ConsoleReply::Output { data, .. }) => {
                        read += data.cost();
                        Ok(line(&ConsoleLine::Output(data)))
                    }
                    Some(ConsoleReply::Ended { error, .. }) => Err(error),
                    // Other replies are no part of the answer.
                    Some(_) => continue,
                    None => Err(Some("the connection to the executor was lost".to_owned())),
                },
                _ = heartbeat.tick() => Ok(Bytes::from_static(b"\n")),
            };
            match next {
                Ok(bytes) => yield Ok(bytes),
                Err(reason) => break reason,
            }
            // The client has room for more.
            let request = ConsoleRequest::Read { attachment: guard.id, cost: read };
            if read > 0 && guard.executor.try_send(request).is_ok() {
                read = 0;
            }
        };
        yield Ok(line(&ConsoleLine::Ended(ended)));
    };
    with_type(LINES, Body::from_stream(lines))
}

fn line(message: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// Gives input to a guest. Answers when the guest's port has taken all of it.
async fn send_input(
    app: &Arc<FleetApi>,
    call: &RoutedRequest,
    mut params: QueryParams,
    body: Bytes,
) -> Result<Response<Body>, ProblemDetails> {
    let after = params.number("after")?;
    params.end(&["after"])?;
    channels::has_type(call, BYTES)?;
    let after = after.ok_or_else(|| {
        let rule = "must be the number of bytes that were sent before";
        ProblemDetails::query("after", rule)
    })?;
    let id: Uuid = call.found.param("attachment").unwrap_or_default().parse().map_err(|_| {
        let rule = "must be the id that the server gave the attachment";
        ProblemDetails::parameter(RequestPart::Path, "attachment", rule)
    })?;
    let ended = || ProblemDetails::new(GONE, "cannot send input: the attachment has ended");
    let served = app.channels.consoles.lock().get(&id).cloned().ok_or_else(ended)?;
    if served.access == ConsoleAccess::ReadOnly {
        return Err(ProblemDetails::new(DENIED, "cannot send input: the attachment is read-only"));
    }
    if body.len() > MAX_INPUT {
        return Err(too_large(MAX_INPUT));
    }
    let app = Arc::clone(app);
    // A client that leaves does not end the exchange: what reaches the guest is counted, and not taken again.
    let taking = tokio::spawn(async move { take_input(&app, id, &served, after, &body).await });
    match taking.await {
        Ok(taken) => taken.map(|()| StatusCode::NO_CONTENT.into_response()),
        Err(error) => Err(ProblemDetails::new(INTERNAL, format!("cannot send input: {error}"))),
    }
}

/// Passes input that follows a number of bytes to the guest, without what was passed before.
async fn take_input(
    app: &FleetApi,
    id: Uuid,
    served: &ServedAttachment,
    after: u64,
    body: &Bytes,
) -> Result<(), ProblemDetails> {
    let mut progress = served.input.lock().await;
    let known = progress.total.checked_sub(after).ok_or_else(|| {
        let detail = format!("cannot take input after {after} bytes: only {} received", progress.total);
        ProblemDetails::new(OUT_OF_ORDER, detail)
    })?;
    let rest = body.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or_default();
    if !rest.is_empty() {
        progress.number += 1;
        let (number, mut answers) = (progress.number, served.taken.subscribe());
        let data = ConsoleBytes(rest.to_vec());
        let exchanged = timeout(ANSWER, async {
            served.executor.send(ConsoleRequest::Input { attachment: id, number, data }).await.ok()?;
            answers.wait_for(|(answered, _)| *answered == number).await.ok().map(|answer| answer.1)
        });
        let Ok(Some(taken)) = exchanged.await else {
            // The bytes may reach the guest: they are not sent a second time.
            let error = Some("the executor did not answer".to_owned());
            // A client that has left needs no reason.
            let _ = served.replies.try_send(ConsoleReply::Ended { attachment: id, error });
            app.channels.consoles.lock().remove(&id);
            let detail = "cannot send input: the executor did not answer; the attachment has ended";
            return Err(ProblemDetails::new(TIMEOUT, detail));
        };
        progress.total += taken.min(rest.len()) as u64;
        if taken < rest.len() {
            return Err(ProblemDetails::new(BUSY, "cannot send input: the guest reads none now"));
        }
    }
    Ok(())
}

/// Answers an executor that offers its consoles; the answer lasts as long as its channel.
fn offer(app: &Arc<FleetApi>, offered: OfferedConsoles) -> Response<Body> {
    let (mut closing, heartbeat) = (app.hub.closing(), app.common.limits.heartbeat);
    let mut requests = offered.begin();
    let lines = async_stream::stream! {
        let mut heartbeat = interval(heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next = tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => None,
                request = requests.recv() => request.map(|request| line(&request)),
                _ = heartbeat.tick() => offered.is_open().then(|| Bytes::from_static(b"\n")),
            };
            match next {
                Some(bytes) => yield Ok::<_, Infallible>(bytes),
                None => return,
            }
        }
    };
    with_type(LINES, Body::from_stream(lines))
}

/// Accepts the replies of an executor, in order.
fn send_replies(
    app: &Arc<FleetApi>,
    call: &RoutedRequest,
    mut params: QueryParams,
    body: &Bytes,
) -> Result<Response<Body>, ProblemDetails> {
    let after = params.number("after")?.unwrap_or(0);
    params.end(&["after"])?;
    let offered = channels::offered(app, call)?;
    let replies = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let replies: Vec<ConsoleReply> = replies
        .map(serde_json::from_slice)
        .collect::<Result<_, _>>()
        .map_err(|error| ProblemDetails::new(INVALID, format!("cannot read replies: {error}")))?;
    offered.take(after, replies)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(table: &AttachmentTable, channel: Option<Uuid>) -> (Uuid, mpsc::Receiver<ConsoleReply>) {
        let (id, (replies, to_client)) = (Uuid::new_v4(), mpsc::channel(REPLIES));
        let served = ServedAttachment {
            channel,
            access: ConsoleAccess::ReadWrite,
            executor: mpsc::channel(1).0,
            replies,
            taken: watch::channel((0, 0)).0,
            input: tokio::sync::Mutex::default(),
        };
        table.lock().insert(id, Arc::new(served));
        (id, to_client)
    }

    fn output(attachment: Uuid, bytes: usize) -> ConsoleReply {
        ConsoleReply::Output { attachment, data: ConsoleBytes(vec![b'x'; bytes]) }
    }

    #[test]
    fn an_executor_reaches_its_own_clients_alone_and_as_long_as_its_channel_is_open() {
        let table = AttachmentTable::default();
        let [one, other] = [(); 2].map(|()| Some(Uuid::new_v4()));
        let (id, mut client) = served(&table, one);
        for channel in [other, None] {
            table.reply(channel, output(id, 1));
        }
        assert!(client.try_recv().is_err(), "it is of another channel");
        table.reply(one, output(id, 1));
        assert_eq!(client.try_recv().ok(), Some(output(id, 1)));
        table.end_channel(other.expect("an id"));
        table.reply(one, output(id, 2));
        assert_eq!(client.try_recv().ok(), Some(output(id, 2)));
        table.end_channel(one.expect("an id"));
        assert_eq!(client.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    }

    #[test]
    fn a_client_gets_a_window_and_is_detached_if_an_executor_sends_more() {
        let table = AttachmentTable::default();
        let (id, mut client) = served(&table, None);
        // The most messages that fit the window.
        let most = WINDOW / (OUTPUT_COST + 1);
        for _ in 0..most {
            table.reply(None, output(id, 1));
        }
        assert!(table.lock().contains_key(&id));
        for _ in 0..REPLIES {
            table.reply(None, output(id, 1));
        }
        assert!(!table.lock().contains_key(&id));
        let mut received = 0;
        while client.try_recv().is_ok() {
            received += 1;
        }
        assert!((most..=REPLIES).contains(&received), "{received}");
    }

    #[test]
    fn a_verdict_counts_once() {
        let table = AttachmentTable::default();
        assert!(table.take_grant(Position::new(7)));
        assert!(!table.take_grant(Position::new(7)));
        assert!(table.take_grant(Position::new(8)));
    }
}
