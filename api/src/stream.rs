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
use chancery_decider::hub::{Follower, Shown};
use chancery_events::id::{Lineage, Position};
use chancery_events::lineage::NamedPosition;

use super::App;
use super::place::{Found, Place, Woken};
use super::positions;
use super::problem::{BUSY, In, NOT_ACCEPTABLE, POSITION_NOT_APPLIED, Problem};
use super::query::Params;
use super::read::{ReadFrom, settle_by_default};
use super::wanted::Wanted;

/// Maximum number of events that are filtered out before a bookmark.
const PASSED: u64 = 4096;

/// Format of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Server-sent events, `text/event-stream`.
    Sse,
    /// Lines of JSON, `application/x-ndjson`.
    Lines,
}

impl Form {
    fn cut(self, shown: &Shown) -> Bytes {
        match self {
            Form::Sse => shown.sse.clone(),
            Form::Lines => shown.line.clone(),
        }
    }

    /// Returns a heartbeat. Readers of JSON lines skip empty lines.
    fn heartbeat(self) -> Bytes {
        Bytes::from_static(match self {
            Form::Sse => b": heartbeat\n\n",
            Form::Lines => b"\n",
        })
    }
}

/// Reason why a stream ends.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Closed {
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

impl Closed {
    const fn word(&self) -> &'static str {
        match self {
            Closed::End => "end",
            Closed::Limit => "limit",
            Closed::Shutdown => "shutdown",
            Closed::Slow => "slow",
            Closed::Failed => "failed",
        }
    }
}

/// Parameters of a requested stream.
struct Asked {
    next: Position,
    /// Lineage of the journal, if the journal has records.
    lineage: Option<Lineage>,
    wanted: Wanted,
    form: Form,
    /// Last position of the stream, if the stream does not follow the journal.
    until: Option<Position>,
    limit: Option<u64>,
}

/// Returns the last position after which a stream can start.
fn tail_of(app: &App) -> Position {
    let head = app.source.head().map_or(Position::ZERO, |head| head.position);
    head.max(*app.hub.tail().borrow())
}

/// Answers a request for a stream.
pub(super) async fn events(
    app: &Arc<App>,
    mut params: Params,
    headers: &HeaderMap,
) -> Result<Response<Body>, Problem> {
    let form = form(headers)?;
    let from = params.take("from")?;
    let wanted = {
        let (types, subject, kinds) = (params.take("types")?, params.take("subject")?, params.take("kinds")?);
        Wanted::read(types.as_deref(), subject.as_deref(), kinds.as_deref())?
    };
    let follow = params.flag("follow")?.unwrap_or(form == Form::Sse);
    let limit = params.number("limit")?;
    params.end(&["from", "types", "subject", "kinds", "follow", "limit"])?;
    if limit == Some(0) {
        return Err(Problem::parameter(In::Query, "limit", "ask for at least one event"));
    }
    if !follow {
        settle_by_default(app, ReadFrom::Journal).await?;
    }
    let mut tail = tail_of(app);
    let lineages = app.hub.lineages();
    let next = match headers.get("last-event-id") {
        Some(id) => positions::seen(lineages.as_ref(), last_event_id(id)?)?.plus(1),
        None => match from.as_deref() {
            None => Position::FIRST,
            Some("end") => tail.plus(1),
            Some(text) => positions::wanted(lineages.as_ref(), first_wanted(text)?)?,
        },
    };
    if next > tail.plus(1) {
        // The last verdict may have come directly from the leader, before its record came from the journal.
        settle_by_default(app, ReadFrom::Journal).await?;
        tail = tail_of(app);
    }
    if next > tail.plus(1) {
        return Err(Problem::new(
            POSITION_NOT_APPLIED,
            format!("read events from {next} on: the journal ends at {tail}"),
        )
        .position(tail.get()));
    }
    let follower = app.hub.follow(app.common.limits.followers).ok_or_else(|| {
        Problem::new(BUSY, format!("follow the journal: {} streams are open", app.common.limits.followers))
    })?;
    let lineage = lineages.map(|lineages| lineages.current);
    let asked = Asked { next, lineage, wanted, form, until: (!follow).then_some(tail), limit };
    let mut response = Response::new(stream(app.clone(), asked, follower));
    let headers = response.headers_mut();
    let media_type = match form {
        Form::Sse => "text/event-stream",
        Form::Lines => "application/x-ndjson",
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Returns server-sent events if the client names them, lines of JSON otherwise.
fn form(headers: &HeaderMap) -> Result<Form, Problem> {
    let mut has_any = false;
    for value in headers.get_all(header::ACCEPT) {
        let text =
            value.to_str().map_err(|_| Problem::parameter(In::Header, "accept", "write it in ASCII"))?;
        for range in text.split(',') {
            has_any = true;
            match range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
                "text/event-stream" | "text/*" => return Ok(Form::Sse),
                "application/x-ndjson"
                | "application/ndjson"
                | "application/json"
                | "application/*"
                | "*/*" => {
                    return Ok(Form::Lines);
                }
                _ => {}
            }
        }
    }
    if has_any {
        return Err(Problem::new(
            NOT_ACCEPTABLE,
            "stream events: accept text/event-stream or application/x-ndjson",
        ));
    }
    Ok(Form::Lines)
}

fn last_event_id(id: &HeaderValue) -> Result<NamedPosition, Problem> {
    let text = id.to_str().unwrap_or_default().trim();
    text.parse().map_err(|error| positions::invalid(In::Header, "last-event-id", error))
}

fn first_wanted(text: &str) -> Result<NamedPosition, Problem> {
    let wrong = |_| Problem::parameter(In::Query, "from", "write a position, or \"end\" for what is new");
    text.trim().parse().map_err(wrong)
}

/// Progress of a stream.
struct Progress {
    /// Next position to examine.
    next: Position,
    /// Last id that was sent to the client.
    told: Position,
    /// Number of events that may still be sent.
    left: u64,
    /// Lineage of the last examined record.
    lineage: Option<Lineage>,
}

impl Progress {
    fn new(asked: &Asked) -> Progress {
        let told = Position::new(asked.next.get().saturating_sub(1));
        let left = asked.limit.unwrap_or(u64::MAX);
        Progress { next: asked.next, told, left, lineage: asked.lineage }
    }

    /// Whether an event must be sent; an event that is not sent is skipped.
    fn sees(&mut self, shown: &Shown, asked: &Asked) -> bool {
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
        self.told = shown.position;
        self.left -= 1;
        true
    }

    fn is_over(&self, asked: &Asked) -> Option<Closed> {
        let is_done = asked.until.is_some_and(|until| self.next > until);
        if self.left == 0 { Some(Closed::Limit) } else { is_done.then_some(Closed::End) }
    }

    fn last(&self) -> Position {
        Position::new(self.next.get() - 1)
    }

    /// Returns the progress as an id, after which the client may resume.
    fn id(&self) -> NamedPosition {
        NamedPosition { position: self.last(), lineage: self.lineage }
    }

    /// Returns a bookmark if the client could resume later than at its last id.
    fn bookmark(&mut self, form: Form) -> Option<Bytes> {
        if form == Form::Lines || self.told >= self.last() {
            return None;
        }
        self.told = self.last();
        let (id, last) = (self.id(), self.told);
        Some(format!("id: {id}\nevent: bookmark\ndata: {{\"position\":{last}}}\n\n").into())
    }

    fn closed(&self, why: &Closed, form: Form) -> Result<Option<Bytes>, io::Error> {
        let (id, last, reason) = (self.id(), self.last(), why.word());
        match (form, why) {
            (Form::Sse, _) => Ok(Some(
                format!("id: {id}\nevent: closed\ndata: {{\"reason\":\"{reason}\",\"position\":{last}}}\n\n")
                    .into(),
            )),
            // Lines cannot carry a reason: an aborted transfer is not mistaken for a complete one.
            (Form::Lines, Closed::Slow | Closed::Failed) => Err(io::Error::other(reason)),
            (Form::Lines, Closed::End | Closed::Limit | Closed::Shutdown) => Ok(None),
        }
    }
}

fn stream(app: Arc<App>, asked: Asked, follower: Follower) -> Body {
    let stream = async_stream::stream! {
        let _follower = follower;
        let mut place = Place::new(&app, asked.next);
        let mut progress = Progress::new(&asked);
        if asked.form == Form::Sse {
            yield Ok(Bytes::from_static(b"retry: 1000\n\n"));
        }
        let why = 'end: loop {
            if let Some(why) = progress.is_over(&asked) {
                break why;
            }
            let batches = match place.next(progress.next, &asked.wanted).await {
                Found::Batches(batches) => batches,
                Found::Nothing if asked.until.is_some() => break Closed::End,
                Found::Nothing => {
                    // Checked first: a bookmark counts as sent once it is created.
                    if place.is_new_at_tail()
                        && let Some(bookmark) = progress.bookmark(asked.form)
                    {
                        yield Ok(bookmark);
                    }
                    match place.wait(progress.next).await {
                        Woken::New => {}
                        Woken::Closing => break Closed::Shutdown,
                        Woken::Heartbeat => {
                            yield Ok(progress.bookmark(asked.form).unwrap_or(asked.form.heartbeat()));
                        }
                    }
                    continue;
                }
                Found::Failed => break Closed::Failed,
            };
            for batch in batches {
                let Ok(all) = batch.shown() else { break 'end Closed::Failed };
                progress.lineage = Some(batch.lineage());
                for shown in all {
                    if progress.sees(shown, &asked) {
                        let since = Instant::now();
                        yield Ok(asked.form.cut(shown));
                        // Execution continues here when the connection has room for more.
                        if since.elapsed() > app.common.limits.stall {
                            break 'end Closed::Slow;
                        }
                    }
                }
                if progress.is_over(&asked).is_some() {
                    break;
                }
                progress.next = progress.next.max(batch.last().plus(1));
                if progress.last().get() - progress.told.get() >= PASSED
                    && let Some(bookmark) = progress.bookmark(asked.form)
                {
                    yield Ok(bookmark);
                }
            }
            if place.is_closing() {
                break Closed::Shutdown;
            }
            place.pace().await;
        };
        match progress.closed(&why, asked.form) {
            Ok(Some(last)) => yield Ok(last),
            Ok(None) => {}
            Err(error) => yield Err(error),
        }
    };
    Body::from_stream(stream)
}
