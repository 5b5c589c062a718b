//! Reads at a moment: the parameter `as_of`, and the queue of folds.
//!
//! | request | reads |
//! |---|---|
//! | history | the journal, up to the record of the moment |
//! | list or row at a cached moment | the moment |
//! | list or row at another moment | waits for its turn, then folds the moment |
//!
//! Each fold, and each read of rows of a moment, runs on a thread of its own with a [`MomentPriority`]: on a thread that has it, a
//! process without privileges cannot restore the default one.
//!
//! A request that is dropped releases its place in the queue, or stops its fold. While verdicts are recorded and further
//! requests wait, a fold is followed by a rest, so that folds have a bounded share of the processors. Invariants: one fold
//! of a fleet at a time; no fold on a thread that serves connections or decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, Response};
use chancery_decider::EventHub;
use chancery_journal::ChainCursor;
use chancery_projector::moment::MomentPriority;
use chancery_projector::{FleetMoment, MomentCache, MomentEnd, MomentError, NamedMoment};
use tokio::sync::{Semaphore, oneshot};

use super::FleetApi;
use super::positions;
use super::problem::{
    BUSY, MOMENT_OUT_OF_RANGE, MOMENT_TOO_LARGE, MOMENT_UNREADABLE, ProblemDetails, TIMEOUT,
};
use super::query::QueryParams;
use super::read::in_turn;

/// Maximum number of requests that wait for the fold of another moment.
const WAITING: usize = 8;

/// Rest after a fold, as a multiple of the time of the fold.
const REST: u32 = 16;
/// Minimum rest after a fold: a request has a cost apart from its fold.
const SHORTEST_REST: Duration = Duration::from_millis(100);
/// Maximum rest after a fold.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Time for which the growth of the journal counts: longer than a rest.
const RECENT: Duration = Duration::from_secs(2);
/// Events in that time from which threads of moments take no processor from the decider. A server that other programs keep from the
/// processors records fewer.
const MANY: u64 = 1_000;

/// Maximum number of reads of rows of moments, and of reasons for values, at one time.
const READS: usize = 2;

/// Moments of a fleet, and the queue of the requests that need another one.
pub struct MomentQueue {
    cache: Arc<MomentCache>,
    /// Permits to wait for a fold, or to fold.
    pub(super) places: Arc<Semaphore>,
    /// Permit to fold.
    pub(super) turn: Arc<Semaphore>,
    /// Permits to read rows of moments, which may be built for that, or the reasons for a value: lists of the present have
    /// permits of their own.
    pub(super) reads: Arc<Semaphore>,
}

impl MomentQueue {
    /// Returns an empty queue.
    pub fn new(cache: MomentCache) -> MomentQueue {
        MomentQueue {
            cache: Arc::new(cache),
            places: Arc::new(Semaphore::new(WAITING + 1)),
            turn: Arc::new(Semaphore::new(1)),
            reads: Arc::new(Semaphore::new(READS)),
        }
    }

    /// Returns the number of requests that fold or wait for a fold. A dropped request counts until its fold has ended.
    pub(super) fn requests(&self) -> usize {
        (WAITING + 1).saturating_sub(self.places.available_permits())
    }

    /// Returns the bytes of memory that are reserved for moments.
    pub(super) fn memory(&self) -> u64 {
        self.cache.used()
    }
}

/// Cancels a fold or a search when its request is dropped.
#[derive(Default)]
pub(super) struct RequestCancellation(Arc<AtomicBool>);

impl RequestCancellation {
    /// Returns the flag, which is true once the request was dropped.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for RequestCancellation {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Takes a moment out of a query; `None` if it has none.
pub(super) fn take(
    app: &FleetApi,
    params: &mut QueryParams,
    name: &str,
) -> Result<Option<NamedMoment>, ProblemDetails> {
    let Some(text) = params.take(name)? else { return Ok(None) };
    let moment: NamedMoment = text.parse().map_err(|_| {
        let what =
            "must be a position as in 120 or 120.1f3a5c7e9b2d4f60, or a time as in 2026-11-21T09:00:00Z";
        ProblemDetails::query(name, what)
    })?;
    if let NamedMoment::Position(named) = moment {
        positions::seen(app.hub.lineages().as_ref(), named)?;
    }
    Ok(Some(moment))
}

/// Returns the record of a moment.
pub(super) async fn find(app: &FleetApi, moment: NamedMoment) -> Result<ChainCursor, ProblemDetails> {
    let cache = Arc::clone(&app.moments.cache);
    let found = in_turn(&app.hub.readers, "find a moment", move || cache.find(moment)).await?;
    found.map_err(|error| unread(&error))
}

/// Refuses a moment that is not in the cache while no further request may wait for a fold. A search for the record of a time reads the
/// journal a dozen times or more, and must not come before the refusal.
pub(super) fn check_queue(app: &FleetApi, moment: NamedMoment) -> Result<(), ProblemDetails> {
    let is_cached = match moment {
        NamedMoment::Position(named) => app.moments.cache.has(named.position),
        NamedMoment::Time(_) => false,
    };
    if is_cached || app.moments.places.available_permits() > 0 { Ok(()) } else { Err(busy()) }
}

fn busy() -> ProblemDetails {
    ProblemDetails::new(BUSY, "cannot read a past state: too many others are requested")
}

/// Returns the state after a record: from the cache, or folded.
pub(super) async fn state(app: &FleetApi, at: ChainCursor) -> Result<Arc<FleetMoment>, ProblemDetails> {
    if let Some(moment) = app.moments.cache.cached(&at) {
        return Ok(moment);
    }
    let folded = in_fold_turn(app, move |cache, is_cancelled| match cache.cached(&at) {
        // The request before has folded the same moment.
        Some(moment) => (Ok(moment), FoldRest::None),
        None => (cache.fold(&at, is_cancelled), FoldRest::BeforeOthers),
    });
    folded.await?.map_err(|error| unread(&error))
}

/// Rest after the turn of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FoldRest {
    /// No rest.
    None,
    /// Rest while verdicts are recorded, if other requests wait.
    BeforeOthers,
}

impl FoldRest {
    /// Returns the rest after work that took some time, while other requests wait and records may have been added.
    fn after(self, taken: Duration, others: usize, is_recording: bool) -> Duration {
        match self {
            FoldRest::BeforeOthers if others > 0 && is_recording => {
                (taken * REST).clamp(SHORTEST_REST, LONGEST_REST)
            }
            FoldRest::BeforeOthers | FoldRest::None => Duration::ZERO,
        }
    }
}

/// Returns the number of events that were published in the last two seconds, of those that the hub keeps.
fn recent_events(hub: &EventHub) -> u64 {
    Instant::now().checked_sub(RECENT).map_or(0, |time| hub.published_since(time))
}

/// Runs work on a thread of its own. While many verdicts are recorded, the thread takes no processor from the decider.
fn start(hub: &EventHub, work: impl FnOnce() + Send + 'static) -> Result<(), ProblemDetails> {
    let priority = if recent_events(hub) >= MANY { MomentPriority::Idle } else { MomentPriority::Low };
    let run = move || {
        priority.set();
        work();
    };
    let started = std::thread::Builder::new().name("moment".into()).spawn(run);
    started.map(drop).map_err(|error| ProblemDetails::internal("start a thread for a moment", &error))
}

/// Waits for the turn to read rows of moments, then runs work that reads them. The work has the permit until it ends.
pub(super) async fn in_read_turn<T: Send + 'static>(
    app: &FleetApi,
    doing: &str,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ProblemDetails> {
    let turn = Arc::clone(&app.moments.reads).acquire_owned().await;
    let turn = turn.map_err(|error| ProblemDetails::internal(doing, &error))?;
    let (sender, done) = oneshot::channel();
    start(&app.hub, move || {
        let result = read();
        drop(turn);
        // The request may have been dropped.
        let _ = sender.send(result);
    })?;
    done.await.map_err(|error| ProblemDetails::internal(doing, &error))
}

/// Waits for the turn to fold, then runs work that reserves memory of moments and names the rest after it. The work has
/// the permits until it ends, and must end early once its flag is true.
pub(super) async fn in_fold_turn<T: Send + 'static>(
    app: &FleetApi,
    work: impl FnOnce(&MomentCache, &AtomicBool) -> (T, FoldRest) + Send + 'static,
) -> Result<T, ProblemDetails> {
    let MomentQueue { cache, places, turn, .. } = &*app.moments;
    let place = Arc::clone(places).try_acquire_owned().map_err(|_| busy())?;
    let closed = |error| ProblemDetails::internal("fold a moment", &error);
    let turn = Arc::clone(turn).acquire_owned().await.map_err(closed)?;
    let (sender, done) = oneshot::channel();
    let cancellation = RequestCancellation::default();
    let (is_cancelled, cache) = (cancellation.flag(), Arc::clone(cache));
    let (queue, hub) = (Arc::clone(&app.moments), Arc::clone(&app.hub));
    start(&app.hub, move || {
        let began = Instant::now();
        let (result, rest) = work(&cache, &is_cancelled);
        let others = queue.requests().saturating_sub(1);
        let pause = rest.after(began.elapsed(), others, recent_events(&hub) > 0);
        drop(place);
        // The request may have been dropped.
        let _ = sender.send(result);
        std::thread::sleep(pause);
        drop(turn);
    })?;
    let result = done.await;
    drop(cancellation);
    result.map_err(|error| ProblemDetails::internal("fold a moment", &error))
}

/// Returns the problem of a moment that cannot be read.
pub(super) fn unread(error: &MomentError) -> ProblemDetails {
    let text = error.to_string();
    match error {
        MomentError::Empty => ProblemDetails::new(MOMENT_OUT_OF_RANGE, text),
        MomentError::OutOfRange { first, last, .. } => {
            ProblemDetails::new(MOMENT_OUT_OF_RANGE, text).moments(Some(*first), Some(*last))
        }
        MomentError::Unreadable { first, .. } => {
            let hint = match first {
                Some(MomentEnd { position, time }) => {
                    format!("\nhint: the first moment that can be read is position {position} at {time}")
                }
                None => String::new(),
            };
            ProblemDetails::new(MOMENT_UNREADABLE, format!("{text}{hint}")).moments(*first, None)
        }
        MomentError::TooLarge { .. } => ProblemDetails::new(MOMENT_TOO_LARGE, text),
        MomentError::MemoryInUse => ProblemDetails::new(BUSY, text),
        MomentError::Cancelled => ProblemDetails::new(TIMEOUT, text),
        MomentError::Read(error) => ProblemDetails::internal("read the journal at a moment", error),
    }
}

/// Adds the time of the moment to its answer, as a header.
pub(super) fn named(mut response: Response<Body>, at: &ChainCursor) -> Response<Body> {
    if let Ok(time) = HeaderValue::from_str(&at.time.to_string()) {
        response.headers_mut().insert("chancery-time", time);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fold_rests_only_before_others_while_verdicts_are_recorded() {
        let (shortest, short, long) =
            (Duration::from_millis(3), Duration::from_millis(20), Duration::from_mins(1));
        for (rest, taken, others, is_recording, wanted) in [
            (FoldRest::BeforeOthers, shortest, 1, true, SHORTEST_REST),
            (FoldRest::BeforeOthers, short, 1, true, short * REST),
            (FoldRest::BeforeOthers, long, 8, true, LONGEST_REST),
            (FoldRest::BeforeOthers, short, 0, true, Duration::ZERO),
            (FoldRest::BeforeOthers, short, 1, false, Duration::ZERO),
            (FoldRest::None, short, 1, true, Duration::ZERO),
        ] {
            assert_eq!(
                rest.after(taken, others, is_recording),
                wanted,
                "{rest:?} {taken:?} {others} {is_recording}"
            );
        }
    }
}
