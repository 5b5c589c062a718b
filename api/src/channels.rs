//! `POST …/channels`: connects executors outside the server with the decider, over requests of the executors.
//!
//! ```text
//! executor                                              server
//!   POST …/channels                                    ─►    opens a channel
//!                      ◄─ 201, Chancery-Channel: ID, then one line per DeciderMessage until the channel ends
//!   POST …/channels/ID/messages?after=0, lines         ─►    ExecutorMessage 1, 2, 3 …
//!                                               ◄─ 204
//! ```
//! A channel is a connection in the sense of the protocol. The decider gets the same inputs as from an
//! executor in its own process, and creates a connection token for it. `after` is the number of earlier
//! messages: a repeated request delivers nothing twice, and a lost one is detected. An empty line only keeps
//! the channel open.
//!
//! Invariants: messages of a channel reach the decider in order and exactly once. If one half ends, the other
//! ends too. The decider never waits for an executor; an executor that floods blocks only itself. No body is
//! read before its channel is known, and a channel reads one body at a time. A channel has [`OWN`] bytes of
//! memory. After the welcome of its executor it gets more, from a budget that all channels share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use chancery_decider::{
    ChannelNumbers, DeciderHandle, DeciderStopped, ExecutorOutbox, InputSender, OutboxReceiver, outbox,
};
use chancery_events::console::{ConsoleReply, ConsoleRequest};
use chancery_events::name::ClusterName;
use chancery_events::protocol::ExecutorMessage;
use chancery_events::text::counted;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};
use uuid::Uuid;

use super::consoles::{AttachmentTable, REQUESTS};
use super::headers::one;
use super::middleware::{self, RoutedRequest, with_type};
use super::problem::{
    BUSY, GONE, INVALID, OUT_OF_ORDER, ProblemDetails, RequestPart, UNSUPPORTED_MEDIA_TYPE, pointer_to,
};
use super::query::QueryParams;
use super::{ApiShared, FleetApi};

/// Header that carries the id of a channel.
const CHANNEL: &str = "chancery-channel";
/// Media type of lines of JSON.
pub(super) const LINES: &str = "application/x-ndjson";
/// Bytes of messages that are written at one time; the last message may exceed the limit.
const TAKE: usize = 64 << 10;
/// Bytes of a body that each channel may have in memory: more than any hello or heartbeat.
pub(super) const OWN: usize = 64 << 10;
/// Maximum number of pieces of a body that wait for the connection.
const PIECES: usize = 4;

/// Open channels of a server.
pub struct ExecutorChannels {
    connections: ChannelNumbers,
    silence: Duration,
    most: usize,
    open: Mutex<BTreeMap<Uuid, Arc<OpenChannel>>>,
    /// Clients of consoles.
    pub(super) consoles: AttachmentTable,
}

/// Channel that is open.
struct OpenChannel {
    way: InputSender,
    /// Number of messages passed to the decider; locked while a request passes messages.
    received: tokio::sync::Mutex<u64>,
    opened: Instant,
    /// Time of the last sign of life from the executor.
    last_data: watch::Sender<Instant>,
    /// Set when the channel must end.
    over: watch::Sender<bool>,
    /// Set when the decider has accepted the executor's hello.
    welcomed: AtomicBool,
    /// Cluster of the executor's hello.
    cluster: Mutex<Option<ClusterName>>,
    /// Way to the consoles that the executor offers.
    consoles: Mutex<Option<mpsc::Sender<ConsoleRequest>>>,
    /// Number of replies about these consoles.
    replied: Mutex<u64>,
}

impl ExecutorChannels {
    /// Returns a set of at most `most` channels, each closed after `silence` without data or a welcome.
    pub fn new(connections: ChannelNumbers, silence: Duration, most: usize) -> ExecutorChannels {
        ExecutorChannels {
            connections,
            silence,
            most,
            open: Mutex::default(),
            consoles: AttachmentTable::default(),
        }
    }

    /// Returns the number of open channels.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Uuid, Arc<OpenChannel>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the newest channel on which an executor of the cluster offers consoles, and the way there.
    pub(super) fn executor_of(&self, cluster: &ClusterName) -> Option<(Uuid, mpsc::Sender<ConsoleRequest>)> {
        let all = self.lock();
        let offers = all.iter().filter_map(|(id, open)| {
            let is_of =
                open.welcomed.load(Ordering::Relaxed) && held(&open.cluster).as_ref() == Some(cluster);
            let way = held(&open.consoles).clone().filter(|way| is_of && !way.is_closed())?;
            Some((open.opened, *id, way))
        });
        offers.max_by_key(|(opened, ..)| *opened).map(|(_, id, way)| (id, way))
    }

    /// Creates a channel if the maximum is not reached.
    fn draw(&self, decider: &DeciderHandle) -> Option<(Uuid, Arc<OpenChannel>)> {
        let mut all = self.lock();
        if all.len() >= self.most {
            return None;
        }
        // The id alone gives access to the channel: it must not be guessed.
        let id = Uuid::new_v4();
        let open = Arc::new(OpenChannel {
            way: decider.way(self.connections.next()),
            received: tokio::sync::Mutex::default(),
            opened: Instant::now(),
            last_data: watch::channel(Instant::now()).0,
            over: watch::channel(false).0,
            welcomed: AtomicBool::new(false),
            cluster: Mutex::default(),
            consoles: Mutex::default(),
            replied: Mutex::default(),
        });
        all.insert(id, open.clone());
        Some((id, open))
    }
}

/// Opens a channel; the answer lasts as long as the channel.
///
/// The id is returned only after the decider has the connection: an earlier hello would be lost.
pub(super) async fn open(
    app: &Arc<FleetApi>,
    decider: &DeciderHandle,
    call: &RoutedRequest,
    body: Result<Bytes, ProblemDetails>,
) -> Result<Response<Body>, ProblemDetails> {
    has_type(call, LINES)?;
    if !body?.is_empty() {
        let detail = "cannot open channel: the body must be empty; messages are sent later";
        return Err(ProblemDetails::new(INVALID, detail));
    }
    let (id, open) = app.channels.draw(decider).ok_or_else(|| {
        let most = counted(app.channels.most, "executor");
        ProblemDetails::new(BUSY, format!("cannot open channel: the limit of {most} is reached"))
    })?;
    let (outbox, messages) = outbox();
    let (pieces, mut body) = mpsc::channel::<Bytes>(PIECES);
    let mut heartbeat = interval(app.common.limits.heartbeat);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (closing, over) = (app.hub.closing(), open.over.subscribe());
    let pump = ChannelPump { app: app.clone(), id, open, messages, pieces, closing, over, heartbeat };
    let (given, has_it) = oneshot::channel();
    // The task also ends the channel if this request is cancelled while the decider is notified.
    tokio::spawn(pump.run(outbox, given));
    has_it.await.map_err(|_| ProblemDetails::new(BUSY, "cannot open channel: the decider has stopped"))?;
    let stream = async_stream::stream! {
        while let Some(piece) = body.recv().await {
            yield Ok::<_, std::convert::Infallible>(piece);
        }
    };
    let mut response = with_type(LINES, Body::from_stream(stream));
    *response.status_mut() = StatusCode::CREATED;
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(CHANNEL, id);
    }
    Ok(response)
}

/// Carries the decider's messages to one executor.
struct ChannelPump {
    app: Arc<FleetApi>,
    id: Uuid,
    open: Arc<OpenChannel>,
    messages: OutboxReceiver,
    pieces: mpsc::Sender<Bytes>,
    closing: watch::Receiver<bool>,
    over: watch::Receiver<bool>,
    heartbeat: Interval,
}

impl ChannelPump {
    async fn run(mut self, outbox: ExecutorOutbox, given: oneshot::Sender<()>) {
        if self.open.way.connected(outbox).await.is_ok() {
            // The client that requested the channel may have left; the other half is then closed.
            let _ = given.send(());
            let why = self.carry().await;
            tracing::info!(channel = %self.id, why, "channel closed");
        }
        self.app.channels.lock().remove(&self.id);
        self.app.channels.consoles.end_channel(self.id);
        // A stopped decider needs no notification.
        let _ = self.open.way.disconnected().await;
    }

    /// Carries messages until the channel ends, and returns the reason.
    async fn carry(&mut self) -> &'static str {
        loop {
            let until = self.open.last_data() + self.app.channels.silence;
            let piece = tokio::select! {
                biased;
                _ = self.closing.wait_for(|closing| *closing) => return "server is stopping",
                _ = self.over.wait_for(|over| *over) => return "invalid message from the executor",
                () = self.pieces.closed() => return "executor disconnected",
                taken = self.messages.take_many(TAKE) => match taken.as_slice() {
                    [] => return "closed by the decider",
                    taken => {
                        self.open.note_welcome(taken);
                        lines(taken)
                    }
                },
                () = sleep_until(until) => {
                    if self.open.last_data() + self.app.channels.silence <= Instant::now() {
                        return "no data from the executor in time";
                    }
                    continue;
                }
                _ = self.heartbeat.tick() => Bytes::from_static(b"\n"),
            };
            // If the executor accepts no data, its connection ends, which drops the other end.
            tokio::select! {
                biased;
                _ = self.closing.wait_for(|closing| *closing) => return "server is stopping",
                sent = self.pieces.send(piece) => if sent.is_err() { return "executor disconnected" },
            }
        }
    }
}

impl OpenChannel {
    /// Returns the time of the last data, or before the welcome that of the opening, so that every channel
    /// ends.
    fn last_data(&self) -> Instant {
        if self.welcomed.load(Ordering::Relaxed) { *self.last_data.borrow() } else { self.opened }
    }

    /// Records whether the decider's messages include a welcome.
    fn note_welcome(&self, messages: &[Vec<u8>]) {
        #[derive(Deserialize)]
        struct MessageWelcome {
            welcome: Option<IgnoredAny>,
        }
        let is_welcome = |text: &Vec<u8>| {
            serde_json::from_slice::<MessageWelcome>(text).is_ok_and(|kind| kind.welcome.is_some())
        };
        if !self.welcomed.load(Ordering::Relaxed) && messages.iter().any(is_welcome) {
            self.welcomed.store(true, Ordering::Relaxed);
        }
    }
}

fn lines(batch: &[Vec<u8>]) -> Bytes {
    let mut all = Vec::with_capacity(batch.iter().map(|message| message.len() + 1).sum());
    for message in batch {
        all.extend_from_slice(message);
        all.push(b'\n');
    }
    all.into()
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Consoles that the executor of a channel offers.
pub(super) struct OfferedConsoles {
    app: Arc<FleetApi>,
    id: Uuid,
    open: Arc<OpenChannel>,
}

/// Finds the channel of a request about consoles.
pub(super) fn offered(app: &Arc<FleetApi>, call: &RoutedRequest) -> Result<OfferedConsoles, ProblemDetails> {
    has_type(call, LINES)?;
    let (id, open) = found(app, call)?;
    Ok(OfferedConsoles { app: Arc::clone(app), id, open })
}

impl OfferedConsoles {
    /// Whether the channel is open.
    pub(super) fn is_open(&self) -> bool {
        self.app.channels.lock().contains_key(&self.id)
    }

    /// Starts with new consoles: attachments to earlier ones end.
    pub(super) fn begin(&self) -> mpsc::Receiver<ConsoleRequest> {
        let (way, requests) = mpsc::channel(REQUESTS);
        *held(&self.open.consoles) = Some(way);
        *held(&self.open.replied) = 0;
        self.app.channels.consoles.end_channel(self.id);
        requests
    }

    /// Passes replies to their clients. `after` is the number of earlier replies: a repeated request passes none twice.
    pub(super) fn take(&self, after: u64, replies: Vec<ConsoleReply>) -> Result<(), ProblemDetails> {
        let mut taken = held(&self.open.replied);
        let Some(known) = taken.checked_sub(after) else {
            let detail = format!("cannot accept replies after {after}: only {taken} received");
            return Err(ProblemDetails::new(OUT_OF_ORDER, detail));
        };
        for reply in replies.into_iter().skip(usize::try_from(known).unwrap_or(usize::MAX)) {
            self.app.channels.consoles.reply(Some(self.id), reply);
            *taken += 1;
        }
        Ok(())
    }
}

/// Upload of messages by an executor, before any message is read.
pub(super) struct ChannelUpload {
    open: Arc<OpenChannel>,
    /// Number of messages sent before the upload.
    after: u64,
}

/// Finds the channel to which messages are sent.
pub(super) fn find(
    app: &FleetApi,
    call: &RoutedRequest,
    mut params: QueryParams,
) -> Result<ChannelUpload, ProblemDetails> {
    let after = params.number("after")?;
    params.end(&["after"])?;
    has_type(call, LINES)?;
    let after = after.ok_or_else(|| {
        let rule = "must be the number of earlier messages on the channel";
        ProblemDetails::query("after", rule)
    })?;
    let (_, open) = found(app, call)?;
    Ok(ChannelUpload { open, after })
}

/// Finds the channel in the path of a request.
fn found(app: &FleetApi, call: &RoutedRequest) -> Result<(Uuid, Arc<OpenChannel>), ProblemDetails> {
    let id: Uuid = call.found.param("channel").unwrap_or_default().parse().map_err(|_| {
        let rule = "must be the id that the server gave the channel";
        ProblemDetails::parameter(RequestPart::Path, "channel", rule)
    })?;
    let open = app.channels.lock().get(&id).cloned();
    let open = open.ok_or_else(|| {
        let detail = format!("cannot send messages on channel {id}: closed\nhint: open another channel");
        ProblemDetails::new(GONE, detail)
    })?;
    Ok((id, open))
}

impl ChannelUpload {
    /// Passes the messages to the decider, in order.
    pub(super) async fn take(self, app: &FleetApi, body: Body) -> Result<Response<Body>, ProblemDetails> {
        let open = &*self.open;
        open.last_data.send_replace(Instant::now());
        // A concurrent upload on the same channel waits here, unread.
        let mut received = open.received.lock().await;
        let ApiShared { limits, uploads, .. } = &*app.common;
        let most = if open.welcomed.load(Ordering::Relaxed) { limits.messages } else { OWN };
        let (body, _reserved) = middleware::reserved(uploads, body, most, OWN, limits).await?;
        let result = deliver(open, &mut received, self.after, &body).await;
        if result.is_err() {
            // Later messages would leave a gap.
            open.over.send_replace(true);
        }
        result.map(|()| StatusCode::NO_CONTENT.into_response())
    }
}

/// Refuses other media types than this one.
pub(super) fn has_type(call: &RoutedRequest, media: &str) -> Result<(), ProblemDetails> {
    let form = one(&call.parts.headers, &header::CONTENT_TYPE)?;
    if form.is_some_and(|form| form.split(';').next().is_some_and(|form| form.trim() == media)) {
        return Ok(());
    }
    Err(ProblemDetails::new(
        UNSUPPORTED_MEDIA_TYPE,
        format!("cannot accept messages: the media type must be {media}"),
    ))
}

async fn deliver(
    open: &OpenChannel,
    received: &mut u64,
    after: u64,
    body: &Bytes,
) -> Result<(), ProblemDetails> {
    open.last_data.send_replace(Instant::now());
    let messages = read(body)?;
    let Some(known) = received.checked_sub(after) else {
        let detail = format!(
            "cannot accept messages after {after}: only {received} received\nhint: open another channel"
        );
        return Err(ProblemDetails::new(OUT_OF_ORDER, detail));
    };
    for message in messages.into_iter().skip(usize::try_from(known).unwrap_or(usize::MAX)) {
        if *open.over.borrow() {
            return Err(ProblemDetails::new(
                GONE,
                "cannot send messages on channel: closed meanwhile\nhint: open another channel",
            ));
        }
        if held(&open.cluster).is_none()
            && let Ok(ExecutorMessage::Hello { cluster, .. }) = serde_json::from_slice(message)
        {
            *held(&open.cluster) = Some(cluster);
        }
        let result = open.way.send(message.to_vec()).await;
        result.map_err(|DeciderStopped| {
            ProblemDetails::new(BUSY, "cannot deliver message: the decider has stopped")
        })?;
        *received += 1;
    }
    // The decider may have been slow.
    open.last_data.send_replace(Instant::now());
    Ok(())
}

/// Returns the messages of a body. All must be valid, so that the decider spends no time on invalid data.
fn read(body: &[u8]) -> Result<Vec<&[u8]>, ProblemDetails> {
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let checked = lines.enumerate().map(|(index, line)| {
        serde_json::from_slice::<ExecutorMessage>(line).map(|_| line).map_err(|error| {
            ProblemDetails::new(INVALID, format!("cannot read message {} of the body: {error}", index + 1))
                .at(RequestPart::Body, pointer_to(&index.to_string()), error.to_string())
        })
    });
    checked.collect()
}
