//! `GET …/events`: the journal as a stream, over server-sent events or as lines of JSON.
//!
//! | | server-sent events | lines of JSON |
//! |---|---|---|
//! | an event | `id: 5.LINEAGE`, `event: event`, `data: {…}` | `{…}` |
//! | progress of a filtered stream | `id: 9.LINEAGE`, `event: bookmark` | – |
//! | heartbeat | `: heartbeat` | an empty line |
//! | the end | `id: 9.LINEAGE`, `event: closed`, `data: {"reason":…}` | the body ends; aborted after an error |
//!
//! Nothing is buffered for a client: a stream takes shared events from the hub when its connection has room,
//! and older events from the journal. A client that reads nothing for too long is cut off, and can resume.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response, header};
use chancery_decider::hub::{FollowerGuard, RenderedEvent};
use chancery_events::id::{Lineage, Position};
use chancery_events::lineage::NamedPosition;
use chancery_projector::ReadConsistency;

use super::FleetApi;
use super::accept;
use super::event_filter::EventFilter;
use super::follower::{FollowerPosition, FollowerRead, FollowerWake, admit};
use super::middleware::with_type;
use super::positions;
use super::problem::{NOT_ACCEPTABLE, ProblemDetails, RequestPart, parsed};
use super::query::QueryParams;
use super::read::{ReadFrom, settled};

/// Maximum number of events that are filtered out before a bookmark.
const PASSED: u64 = 4096;

/// Format of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StreamFormat {
    /// Server-sent events, `text/event-stream`.
    Sse,
    /// Lines of JSON, `application/x-ndjson`.
    Lines,
}

impl StreamFormat {
    const fn media_type(self) -> &'static str {
        match self {
            StreamFormat::Sse => "text/event-stream",
            StreamFormat::Lines => "application/x-ndjson",
        }
    }

    fn cut(self, shown: &RenderedEvent) -> Bytes {
        match self {
            StreamFormat::Sse => shown.sse.clone(),
            StreamFormat::Lines => shown.line.clone(),
        }
    }

    /// Returns a heartbeat. Readers of JSON lines skip empty lines.
    fn heartbeat(self) -> Bytes {
        Bytes::from_static(match self {
            StreamFormat::Sse => b": heartbeat\n\n",
            StreamFormat::Lines => b"\n",
        })
    }
}

/// Reason why a stream ends.
#[derive(Clone, PartialEq, Eq, Debug)]
enum StreamEnd {
    /// Last requested position was sent.
    End,
    /// Requested number of events was sent.
    Limit,
    /// Server is stopping.
    Shutdown,
    /// Client read nothing for too long.
    Slow,
    /// Journal cannot be read further.
    Failed,
}

impl StreamEnd {
    const fn word(&self) -> &'static str {
        match self {
            StreamEnd::End => "end",
            StreamEnd::Limit => "limit",
            StreamEnd::Shutdown => "shutdown",
            StreamEnd::Slow => "slow",
            StreamEnd::Failed => "failed",
        }
    }
}

/// Parameters of a requested stream.
struct StreamRequest {
    next: Position,
    /// Lineage of the journal, if the journal has records.
    lineage: Option<Lineage>,
    wanted: EventFilter,
    form: StreamFormat,
    /// Last position of the stream, if the stream does not follow the journal.
    until: Option<Position>,
    limit: Option<u64>,
}

/// Returns the last position after which a stream can start.
fn tail_of(app: &FleetApi) -> Position {
    let head = app.source.head().map_or(Position::ZERO, |head| head.position);
    head.max(*app.hub.tail().borrow())
}

/// Answers a request for a stream.
pub(super) async fn events(
    app: &Arc<FleetApi>,
    mut params: QueryParams,
    headers: &HeaderMap,
) -> Result<Response<Body>, ProblemDetails> {
    let form = form(headers)?;
    let from = params.take("from")?;
    let wanted = {
        let (types, subject, kinds) = (params.take("types")?, params.take("subject")?, params.take("kinds")?);
        EventFilter::read(types.as_deref(), subject.as_deref(), kinds.as_deref())?
    };
    let follow = params.flag("follow")?.unwrap_or(form == StreamFormat::Sse);
    let limit = params.number("limit")?;
    params.end(&["from", "types", "subject", "kinds", "follow", "limit"])?;
    if limit == Some(0) {
        return Err(ProblemDetails::query("limit", "must be at least 1"));
    }
    if !follow {
        settled(app, app.last_verdict.wanted(ReadConsistency::Verdicts, None), ReadFrom::Journal).await?;
    }
    let mut tail = tail_of(app);
    let lineages = app.hub.lineages();
    let next = match headers.get("last-event-id") {
        Some(id) => {
            let text = id.to_str().unwrap_or_default().trim();
            let last = parsed(RequestPart::Header, "last-event-id", text)?;
            positions::seen(lineages.as_ref(), last)?.plus(1)
        }
        None => match from.as_deref() {
            None => Position::FIRST,
            Some("end") => tail.plus(1),
            Some(text) => positions::wanted(lineages.as_ref(), first_wanted(text)?)?,
        },
    };
    if next > tail.plus(1) {
        // The client may have the position from the leader, or from a server that is ahead of this one.
        let before = Position::new(next.get() - 1);
        settled(app, app.last_verdict.wanted(ReadConsistency::Verdicts, Some(before)), ReadFrom::Journal)
            .await?;
        tail = tail_of(app);
    }
    let follower = admit(app, "follow journal")?;
    let lineage = lineages.map(|lineages| lineages.current);
    let asked = StreamRequest { next, lineage, wanted, form, until: (!follow).then_some(tail), limit };
    let mut response = with_type(form.media_type(), stream(app.clone(), asked, follower));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Returns the format that the client prefers; lines of JSON without a preference.
fn form(headers: &HeaderMap) -> Result<StreamFormat, ProblemDetails> {
    let of = |form: StreamFormat| accept::preference(headers, form.media_type());
    match (of(StreamFormat::Sse), of(StreamFormat::Lines)) {
        (Some(sse), lines) if lines.is_none_or(|lines| sse > lines) => Ok(StreamFormat::Sse),
        (_, Some(_)) => Ok(StreamFormat::Lines),
        (_, None) => Err(ProblemDetails::new(
            NOT_ACCEPTABLE,
            "cannot stream events: the client must accept text/event-stream or application/x-ndjson",
        )),
    }
}

fn first_wanted(text: &str) -> Result<NamedPosition, ProblemDetails> {
    let wrong = |_| ProblemDetails::query("from", "must be a position, or \"end\" for new events");
    text.trim().parse().map_err(wrong)
}

/// Progress of a stream.
struct StreamProgress {
    /// Next position to examine.
    next: Position,
    /// Last id that was sent to the client.
    last_sent: Position,
    /// Number of events that may still be sent.
    left: u64,
    /// Lineage of the last examined record.
    lineage: Option<Lineage>,
}

impl StreamProgress {
    fn new(asked: &StreamRequest) -> StreamProgress {
        let last_sent = Position::new(asked.next.get().saturating_sub(1));
        let left = asked.limit.unwrap_or(u64::MAX);
        StreamProgress { next: asked.next, last_sent, left, lineage: asked.lineage }
    }

    /// Whether an event must be sent; an event that is not sent is skipped.
    fn sees(&mut self, shown: &RenderedEvent, asked: &StreamRequest) -> bool {
        if shown.position < self.next
            || self.left == 0
            || asked.until.is_some_and(|until| shown.position > until)
        {
            return false;
        }
        self.next = shown.position.plus(1);
        if !asked.wanted.fits(&shown.about) {
            return false;
        }
        self.last_sent = shown.position;
        self.left -= 1;
        true
    }

    fn is_over(&self, asked: &StreamRequest) -> Option<StreamEnd> {
        let is_done = asked.until.is_some_and(|until| self.next > until);
        if self.left == 0 { Some(StreamEnd::Limit) } else { is_done.then_some(StreamEnd::End) }
    }

    fn last(&self) -> Position {
        Position::new(self.next.get() - 1)
    }

    /// Returns the progress as an id, after which the client may resume.
    fn id(&self) -> NamedPosition {
        NamedPosition { position: self.last(), lineage: self.lineage }
    }

    /// Returns a bookmark if the client could resume later than at its last id.
    fn bookmark(&mut self, form: StreamFormat) -> Option<Bytes> {
        if form == StreamFormat::Lines || self.last_sent >= self.last() {
            return None;
        }
        self.last_sent = self.last();
        let (id, last) = (self.id(), self.last_sent);
        Some(format!("id: {id}\nevent: bookmark\ndata: {{\"position\":{last}}}\n\n").into())
    }

    fn closed(&self, why: &StreamEnd, form: StreamFormat) -> Option<Result<Bytes, io::Error>> {
        let (id, last, reason) = (self.id(), self.last(), why.word());
        match (form, why) {
            (StreamFormat::Sse, _) => Some(Ok(format!(
                "id: {id}\nevent: closed\ndata: {{\"reason\":\"{reason}\",\"position\":{last}}}\n\n"
            )
            .into())),
            // Lines cannot carry a reason: an aborted transfer is not mistaken for a complete one.
            (StreamFormat::Lines, StreamEnd::Slow | StreamEnd::Failed) => Some(Err(io::Error::other(reason))),
            (StreamFormat::Lines, StreamEnd::End | StreamEnd::Limit | StreamEnd::Shutdown) => None,
        }
    }
}

fn stream(app: Arc<FleetApi>, asked: StreamRequest, follower: FollowerGuard) -> Body {
    let stream = async_stream::stream! {
        let _follower = follower;
        let mut place = FollowerPosition::new(&app, asked.next);
        let mut progress = StreamProgress::new(&asked);
        if asked.form == StreamFormat::Sse {
            yield Ok(Bytes::from_static(b"retry: 1000\n\n"));
        }
        let why = 'end: loop {
            if let Some(why) = progress.is_over(&asked) {
                break why;
            }
            let batches = match place.next(progress.next, &asked.wanted).await {
                FollowerRead::Batches(batches) => batches,
                FollowerRead::Nothing if asked.until.is_some() => break StreamEnd::End,
                FollowerRead::Nothing => {
                    // Checked first: a bookmark counts as sent once it is created.
                    if place.is_new_at_tail()
                        && let Some(bookmark) = progress.bookmark(asked.form)
                    {
                        yield Ok(bookmark);
                    }
                    match place.wait(progress.next).await {
                        FollowerWake::New => {}
                        FollowerWake::Closing => break StreamEnd::Shutdown,
                        FollowerWake::Heartbeat => {
                            yield Ok(progress.bookmark(asked.form).unwrap_or(asked.form.heartbeat()));
                        }
                    }
                    continue;
                }
                FollowerRead::Failed => break StreamEnd::Failed,
            };
            for batch in batches {
                let Ok(all) = batch.shown() else { break 'end StreamEnd::Failed };
                progress.lineage = Some(batch.lineage());
                for shown in all {
                    if progress.sees(shown, &asked) {
                        let since = Instant::now();
                        yield Ok(asked.form.cut(shown));
                        // Execution continues here when the connection has room for more.
                        if since.elapsed() > app.common.limits.stall {
                            break 'end StreamEnd::Slow;
                        }
                    }
                }
                if progress.is_over(&asked).is_some() {
                    break;
                }
                progress.next = progress.next.max(batch.last().plus(1));
                if progress.last().get() - progress.last_sent.get() >= PASSED
                    && let Some(bookmark) = progress.bookmark(asked.form)
                {
                    yield Ok(bookmark);
                }
            }
            if place.is_closing() {
                break StreamEnd::Shutdown;
            }
            place.pace().await;
        };
        if let Some(last) = progress.closed(&why, asked.form) {
            yield last;
        }
    };
    Body::from_stream(stream)
}
