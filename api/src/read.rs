//! Reads: rows of the projector, and histories from the journal.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse as _;
use chancery_events::event::{Event, EventLine};
use chancery_events::fact::Fact;
use chancery_events::id::Position;
use chancery_events::subject::Subject;
use chancery_journal::{ChainCursor, JournalReader};
use chancery_projector::history::HistoryEntry;
use chancery_projector::page::JsonPage;
use chancery_projector::rows::OperationRow;
use chancery_projector::{
    FleetMoment, HistoryReader, InvalidFilter, JsonRow, ListQuery, NamedMoment, OperationSearch, PageToken,
    PositionWaitError, QueryError, ReadConsistency, RowKey, RowKind, RowReader,
};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::FleetApi;
use super::entity_tag;
use super::middleware::RoutedRequest;
use super::moments;
use super::positions;
use super::problem::{
    GONE, INVALID_PARAMETER, NOT_FOUND, POSITION_NOT_APPLIED, PRECONDITION_FAILED, ProblemDetails,
    RequestPart, pointer_to,
};
use super::query::QueryParams;
use super::reserved_answer::{ReservedAnswer, compressor_of};

/// Default number of events on one page of a history.
const HISTORY: usize = 100;
/// Maximum number of events on one page of a history.
const HISTORY_MAX: u64 = 1000;

/// Waits until the rows include the position.
pub(super) async fn reached(
    app: &FleetApi,
    wanted: Position,
    timeout: Duration,
) -> Result<(), ProblemDetails> {
    let watch = app.reader.watch();
    if watch.position() >= wanted {
        return Ok(());
    }
    let behind = |why: String| {
        let applied = watch.position();
        let detail = format!("cannot answer: the rows are at position {applied}, not yet at {wanted}{why}");
        ProblemDetails::new(POSITION_NOT_APPLIED, detail).position(applied.get())
    };
    match tokio::time::timeout(timeout, watch.reached(wanted)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(PositionWaitError::Timeout { .. })) | Err(_) => Err(behind(String::new())),
        Ok(Err(PositionWaitError::Stopped { reason, .. })) => {
            Err(behind(format!(", and the projector has stopped: {reason}")))
        }
    }
}

/// Waits until this server has read the journal up to the position.
async fn reached_journal(app: &FleetApi, wanted: Position, timeout: Duration) -> Result<(), ProblemDetails> {
    let mut tail = app.hub.tail();
    let head = || app.source.head().map_or(Position::ZERO, |head| head.position);
    if *tail.borrow() >= wanted || head() >= wanted {
        return Ok(());
    }
    let reached = tokio::time::timeout(timeout, tail.wait_for(|tail| *tail >= wanted)).await;
    if reached.is_ok_and(|tail| tail.is_ok()) {
        return Ok(());
    }
    let head = head().max(*app.hub.tail().borrow());
    let detail =
        format!("cannot answer: this server has the journal up to position {head}, not yet up to {wanted}");
    Err(ProblemDetails::new(POSITION_NOT_APPLIED, detail).position(head.get()))
}

/// Source of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadFrom {
    /// Rows, which follow the journal.
    Rows,
    /// Journal itself.
    Journal,
}

/// Waits until this server is as recent as the read requires: at `min_position`, and at the last verdict that
/// this server gave. With `consistency=eventual` the client accepts rows before that verdict. Meanwhile the
/// request uses nothing of the server but its connection.
pub(super) async fn settle(
    app: &FleetApi,
    params: &mut QueryParams,
    from: ReadFrom,
) -> Result<(), ProblemDetails> {
    let consistency = match params.take("consistency")?.as_deref() {
        None => ReadConsistency::Verdicts,
        Some("eventual") => ReadConsistency::Eventual,
        Some(_) => {
            let what = "must be eventual; by default a read is at least as new as earlier verdicts";
            return Err(ProblemDetails::query("consistency", what));
        }
    };
    let named = params.parsed("min_position")?;
    let named = named.map(|named| positions::seen(app.hub.lineages().as_ref(), named)).transpose()?;
    settled(app, app.last_verdict.wanted(consistency, named), from).await
}

pub(super) async fn settled(app: &FleetApi, wanted: Position, from: ReadFrom) -> Result<(), ProblemDetails> {
    let limits = &app.common.limits;
    // Leaves time for an answer that names the awaited position.
    let timeout = limits.min_position.min(limits.request_timeout.mul_f32(0.8));
    match from {
        ReadFrom::Rows => reached(app, wanted, timeout).await,
        ReadFrom::Journal => reached_journal(app, wanted, timeout).await,
    }
}

/// Sets the position at which an answer is valid; of an answer at a moment, also the time.
pub(super) fn at_moment(
    mut response: Response<Body>,
    position: Position,
    at: Option<&ChainCursor>,
) -> Response<Body> {
    response.headers_mut().insert("chancery-position", HeaderValue::from(position.get()));
    match at {
        Some(at) => moments::named(response, at),
        None => response,
    }
}

/// Runs work that reads files or many rows on a thread that may block; threads that serve connections must
/// answer probes meanwhile. A permit lasts as long as the work, even if the request is cancelled, so that
/// executors of this process always find a thread.
pub(super) async fn in_turn<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    doing: &str,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ProblemDetails> {
    let turn = Arc::clone(turns).acquire_owned().await;
    let turn = turn.map_err(|error| ProblemDetails::internal(doing, &error))?;
    let read = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        read()
    });
    read.await.map_err(|error| ProblemDetails::internal(doing, &error))
}

/// Returns a page of rows.
pub(super) async fn list(
    app: &FleetApi,
    call: &RoutedRequest,
    kind: RowKind,
    mut params: QueryParams,
) -> Result<Response<Body>, ProblemDetails> {
    let limit = params.number("limit")?.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let token = params.parsed::<PageToken>("page_token")?;
    let moment = moments::take(app, &mut params, "as_of")?;
    settle(app, &mut params, source_of(moment)).await?;
    let mut filters = params.rest();
    if let Some(plan) = call.found.param("plan") {
        if filters.iter().any(|(name, _)| name == "plan") {
            return Err(ProblemDetails::query("plan", "must be absent: the path has it"));
        }
        filters.push(("plan".to_owned(), plan.to_owned()));
    }
    let (rows, at) = rows_at(app, moment).await?;
    let (common, compressor) = (Arc::clone(&app.common), compressor_of(call));
    let doing = "list rows";
    let read = move || {
        let answer = ReservedAnswer::reserve(&common, compressor);
        let query = ListQuery { filters, limit, token, max_bytes: Some(answer.max_bytes()) };
        (answer, rows.list_json(kind, &query))
    };
    let (mut answer, page) = match at {
        Some(_) => moments::in_read_turn(app, doing, read).await?,
        None => in_turn(&app.common.lists, doing, read).await?,
    };
    let page = page.map_err(|error| not_read(kind, error))?;
    if page.count == 0
        && let Some(plan) = call.found.param("plan")
    {
        has_plan(app, call, plan, moment).await?;
    }
    let next = page.next.map_or(serde_json::Value::Null, |token| token.to_string().into());
    let mut body = page.start;
    let _ = write!(body, r#","next_page_token":{next},"position":{}}}"#, page.position);
    Ok(at_moment(answer.with(app, body)?, page.position, at.as_ref()))
}

/// Refuses a list below a plan that does not exist.
async fn has_plan(
    app: &FleetApi,
    call: &RoutedRequest,
    plan: &str,
    moment: Option<NamedMoment>,
) -> Result<(), ProblemDetails> {
    let key = RowKey::parse(RowKind::Plans, plan)
        .map_err(|error| ProblemDetails::parameter(RequestPart::Path, "plan", error.reason))?;
    let (row, position, _) = row_at(app, &key, moment).await?;
    if row.is_some() {
        return Ok(());
    }
    let path = call.parts.uri.path();
    let path = path.rsplit_once('/').map_or(path, |(plan, _)| plan);
    Err(missing_at(app, &key, path, position).await.position(position.get()))
}

/// Rows of the present, or of a moment.
enum RowsAt {
    Present(RowReader),
    Moment(Arc<FleetMoment>),
}

impl RowsAt {
    fn list_json(&self, kind: RowKind, query: &ListQuery) -> Result<JsonPage, QueryError> {
        match self {
            RowsAt::Present(reader) => reader.list_json(kind, query),
            RowsAt::Moment(moment) => moment.list_json(kind, query),
        }
    }

    /// Returns a row, with the position at which it was read.
    fn get_json(&self, key: &RowKey) -> Result<(Option<JsonRow>, Position), QueryError> {
        match self {
            RowsAt::Present(reader) => reader.get_json_at(key),
            RowsAt::Moment(moment) => Ok((moment.get_json(key)?, moment.at().position)),
        }
    }
}

/// Returns the source that a read needs before it is answered: moments follow from the journal alone.
pub(super) fn source_of(moment: Option<NamedMoment>) -> ReadFrom {
    if moment.is_some() { ReadFrom::Journal } else { ReadFrom::Rows }
}

/// Returns the rows of the present, or those of a moment with its record.
async fn rows_at(
    app: &FleetApi,
    moment: Option<NamedMoment>,
) -> Result<(RowsAt, Option<ChainCursor>), ProblemDetails> {
    let Some(moment) = moment else { return Ok((RowsAt::Present(app.reader.clone()), None)) };
    moments::check_queue(app, moment)?;
    let at = moments::find(app, moment).await?;
    Ok((RowsAt::Moment(moments::state(app, at).await?), Some(at)))
}

pub(super) fn not_read(kind: RowKind, error: QueryError) -> ProblemDetails {
    match error {
        QueryError::Filter(InvalidFilter::Unknown { name, .. }) => {
            let name: String = name.chars().take(100).collect();
            let rule = format!("must be one of {}", kind.filters().join(", "));
            let text = format!("invalid filter {name:?} of {}: {rule}", kind.kind().plural());
            let what = format!("no such filter: {rule}");
            ProblemDetails::new(INVALID_PARAMETER, text).at(RequestPart::Query, pointer_to(&name), what)
        }
        QueryError::Filter(InvalidFilter::Value { name, reason, .. }) => ProblemDetails::query(name, reason),
        QueryError::OtherToken { .. } => ProblemDetails::query("page_token", error.to_string()),
        QueryError::Limit { .. } => ProblemDetails::query("limit", error.to_string()),
        QueryError::Store(error) => ProblemDetails::internal("read rows", &error),
    }
}

/// Returns the key that the path names.
pub(super) fn key(call: &RoutedRequest, kind: RowKind) -> Result<RowKey, ProblemDetails> {
    let parts: Vec<_> = call.found.params().collect();
    let text = parts.iter().map(|(_, value)| *value).collect::<Vec<_>>().join("/");
    RowKey::parse(kind, &text).map_err(|error| {
        // Of several parts, the last that breaks the rule on its own is usually at fault.
        let name = parts.last().map_or("", |(name, _)| *name);
        ProblemDetails::parameter(RequestPart::Path, name, error.reason.clone())
    })
}

/// Returns one row.
pub(super) async fn get(
    app: &FleetApi,
    call: &RoutedRequest,
    kind: RowKind,
    mut params: QueryParams,
) -> Result<Response<Body>, ProblemDetails> {
    let key = key(call, kind)?;
    let moment = moments::take(app, &mut params, "as_of")?;
    settle(app, &mut params, source_of(moment)).await?;
    params.end(&["as_of", "min_position", "consistency"])?;
    let (row, position, at) = row_at(app, &key, moment).await?;
    let Some(row) = row else {
        return Err(missing_at(app, &key, call.parts.uri.path(), position).await.position(position.get()));
    };
    let tag = entity_tag::of(&row);
    if !entity_tag::is_expected(&call.parts.headers, &row) {
        let detail =
            format!("cannot read {}: its version is {}, and its ETag {tag}", key.subject(), row.version);
        let problem = ProblemDetails::new(PRECONDITION_FAILED, detail).version(row.version);
        return Err(problem.position(position.get()));
    }
    let response = if entity_tag::is_known(&call.parts.headers, &tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ReservedAnswer::of_row().with(app, row.body)?
    };
    Ok(at_moment(entity_tag::named(response, &tag), position, at.as_ref()))
}

/// Returns a row of the present or of a moment, the position at which it was read, and the record of the moment.
pub(super) async fn row_at(
    app: &FleetApi,
    key: &RowKey,
    moment: Option<NamedMoment>,
) -> Result<(Option<JsonRow>, Position, Option<ChainCursor>), ProblemDetails> {
    let (rows, at) = rows_at(app, moment).await?;
    let read = match rows {
        // The first row of a moment counts what its rows show, and the last reader frees the state.
        RowsAt::Moment(_) => {
            let key = key.clone();
            moments::in_read_turn(app, "read a row", move || rows.get_json(&key)).await?
        }
        RowsAt::Present(_) => rows.get_json(key),
    };
    let (mut row, position) = read.map_err(|error| not_read(key.kind(), error))?;
    if row.is_none() {
        row = ended(app, key, position).await?;
    }
    Ok((row, position, at))
}

/// Returns the row of an operation that was removed from the rows up to a position, from the journal.
async fn ended(app: &FleetApi, key: &RowKey, until: Position) -> Result<Option<JsonRow>, ProblemDetails> {
    let Subject::Operation(id) = key.subject() else { return Ok(None) };
    let mut search = OperationSearch::new(HistoryReader::new(app.source.clone()).until(until), id);
    let row = loop {
        // One permit a page: others read in between, and nothing more is read once the request is cancelled.
        let (searched, read) = in_turn(&app.hub.readers, "read an operation", move || {
            let read = search.read_page();
            (search, read)
        })
        .await?;
        search = searched;
        match read.map_err(|error| ProblemDetails::internal("read an operation", &error))? {
            ControlFlow::Continue(()) => {}
            ControlFlow::Break(row) => break row,
        }
    };
    let json = |row: OperationRow| {
        let (version, position) = (row.version, row.position);
        serde_json::to_string(&row).map(|body| JsonRow { body, version, position })
    };
    row.map(json).transpose().map_err(|error| ProblemDetails::internal("show an operation", &error))
}

/// Returns the problem of an entity that never existed or was deleted.
pub(super) async fn missing(app: &FleetApi, key: &RowKey, path: &str) -> ProblemDetails {
    let until = app.source.head().map_or(Position::ZERO, |head| head.position);
    missing_at(app, key, path, until).await
}

/// Returns the problem of an entity that up to a position never existed, or was deleted.
pub(super) async fn missing_at(app: &FleetApi, key: &RowKey, path: &str, until: Position) -> ProblemDetails {
    let subject = key.subject();
    let never = || {
        ProblemDetails::new(
            NOT_FOUND,
            format!("there is no {} {key:?}", subject.kind(), key = key.to_string()),
        )
    };
    if matches!(key, RowKey::Command(..)) {
        return never();
    }
    let (source, issued) = (app.source.clone(), subject.clone());
    let was =
        in_turn(&app.hub.readers, "find a deleted entity", move || was_issued(&*source, &issued, until))
            .await;
    if !was.unwrap_or(false) {
        return never();
    }
    let history = format!("{path}/history");
    let detail = format!("{subject} is deleted; its history remains");
    ProblemDetails::new(GONE, detail).help(history)
}

/// Whether the journal has issued the subject's id up to a position. Ids and replicas' names contain the position of the fact
/// that created them, so only one record is read.
fn was_issued(source: &dyn JournalReader, subject: &Subject, until: Position) -> bool {
    let position = match subject {
        Subject::Replica(name) => position_of(name.as_str()),
        _ => subject.issued(),
    };
    let Some(position) = position else { return false };
    if position == Position::ZERO || position > until {
        return false;
    }
    let Some(Ok(record)) = source.records(position).ok().and_then(|mut records| records.next()) else {
        return false;
    };
    let lineage = record.header().lineage;
    let Some((_, line)) = record.events().find(|(at, _)| *at == position) else { return false };
    match EventLine::read(line).and_then(EventLine::event) {
        Ok(Event::Fact { fact: Fact::ReplicaCreated(created), .. }) => {
            *subject == Subject::Replica(created.name)
        }
        Ok(Event::Fact { fact, .. }) => fact.issues(lineage, position).as_ref() == Some(subject),
        _ => false,
    }
}

/// Returns the position in a replica's name: base 36 after the last dash, lowest digit first.
fn position_of(name: &str) -> Option<Position> {
    let (_, suffix) = name.rsplit_once('-')?;
    suffix
        .chars()
        .rev()
        .try_fold(0_u64, |sum, digit| sum.checked_mul(36)?.checked_add(u64::from(digit.to_digit(36)?)))
        .map(Position::new)
}

/// Answer with events of a history.
#[derive(Serialize)]
struct HistoryResponse {
    items: Vec<HistoryEntry>,
    next_from: Option<Position>,
    position: Position,
}

/// Takes the maximum number of events on a page out of a query.
pub(super) fn limit_of_events(params: &mut QueryParams) -> Result<usize, ProblemDetails> {
    match params.number("limit")? {
        None => Ok(HISTORY),
        Some(limit @ 1..=HISTORY_MAX) => Ok(limit as usize),
        Some(_) => {
            let what = format!("must be 1 to {HISTORY_MAX}");
            Err(ProblemDetails::query("limit", what))
        }
    }
}

/// Returns a page of an entity's history.
pub(super) async fn history(
    app: &Arc<FleetApi>,
    call: &RoutedRequest,
    kind: RowKind,
    mut params: QueryParams,
) -> Result<Response<Body>, ProblemDetails> {
    let key = key(call, kind)?;
    let from = match params.parsed("from")? {
        Some(from) => positions::wanted(app.hub.lineages().as_ref(), from)?,
        None => Position::FIRST,
    };
    let limit = limit_of_events(&mut params)?;
    let moment = moments::take(app, &mut params, "as_of")?;
    settle(app, &mut params, ReadFrom::Journal).await?;
    params.end(&["from", "limit", "as_of", "min_position", "consistency"])?;
    let at = match moment {
        Some(moment) => Some(moments::find(app, moment).await?),
        None => None,
    };
    // The page ends there, even if more is recorded meanwhile.
    let end = at.or_else(|| app.source.head()).map_or(Position::ZERO, |end| end.position);
    if from > end.plus(1) {
        let (what, kind) = match moment {
            Some(_) => ("the moment is", INVALID_PARAMETER),
            None => ("the journal ends", POSITION_NOT_APPLIED),
        };
        let detail = format!("cannot read history from {from}: {what} at {end}");
        return Err(ProblemDetails::new(kind, detail).position(end.get()));
    }
    let (common, compressor) = (Arc::clone(&app.common), compressor_of(call));
    let (histories, subject) = (HistoryReader::new(app.source.clone()).until(end), key.subject());
    let read = in_turn(&app.hub.readers, "read a history", move || {
        let answer = ReservedAnswer::reserve(&common, compressor);
        let page = histories.max_bytes(answer.max_bytes()).of(&subject, from, limit);
        (answer, page)
    });
    let (mut answer, page) = read.await?;
    let page = page.map_err(|error| ProblemDetails::internal("read a history", &error))?;
    if page.entries.is_empty() && page.next.is_none() && from == Position::FIRST {
        return Err(missing_at(app, &key, call.parts.uri.path(), end).await);
    }
    let page = HistoryResponse { items: page.entries, next_from: page.next, position: end };
    let page =
        serde_json::to_string(&page).map_err(|error| ProblemDetails::internal("show a history", &error))?;
    Ok(at_moment(answer.with(app, page)?, end, at.as_ref()))
}

#[cfg(test)]
mod tests {
    use chancery_events::name::{ReplicaName, ServiceName};

    use super::*;

    #[test]
    fn a_replicas_name_shows_where_it_was_made() {
        let service: ServiceName = "web-front".parse().expect("a name");
        for position in [1, 35, 36, 12_345, 1 << 40, Position::MAX.get()].map(Position::new) {
            let name = ReplicaName::issue(&service, position);
            assert_eq!(position_of(name.as_str()), Some(position), "{name}");
        }
        for other in ["nginx", "a-zzzzzzzzzzzzzzzzzzzzz", "a-b.c"] {
            assert_eq!(position_of(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_permit_lasts_as_long_as_the_work_though_no_client_waits_for_it() {
        let turns = Arc::new(Semaphore::new(1));
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let of = Arc::clone(&turns);
        let asked = tokio::spawn(async move {
            let work = move || {
                let _ = begun.send(());
                let _ = ends.recv();
            };
            in_turn(&of, "wait", work).await.map_err(drop)
        });
        has_begun.await.expect("it started");
        asked.abort();
        assert!(asked.await.expect_err("given up").is_cancelled());
        assert_eq!(turns.available_permits(), 0);
        drop(end);
        assert!(turns.acquire().await.is_ok(), "it is free when the work has ended");
    }
}
