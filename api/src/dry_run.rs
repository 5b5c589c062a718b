//! `POST …/dry-run`: intents decided on a copy of the current or a past state, with everything that follows before
//! an approval or a report.
//!
//! A dry run has the turn of folds, as it copies a moment: one at a time, with their priority. It writes nothing.

mod answer;
mod changes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::Response;
use chancery_decider::dry_run::{DryRunBounds, DryRunResult, DryRunStart, DryVerdict, dry_run};
use chancery_decider::wall_clock;
use chancery_events::intent::IntentRequest;
use chancery_events::name::FleetName;
use chancery_events::record::MAX_BYTES;
use chancery_events::refusal::RefusalCode;
use chancery_events::time::Time;
use chancery_journal::ChainCursor;
use chancery_projector::{FleetMoment, MomentCache, MomentError, RowKey};
use rustix::time::{ClockId, clock_gettime};

use self::answer::{AnswerWriter, DrySlot, internal};
pub(super) use self::answer::{DryRunAnswer, PlacementReasons};
use self::changes::RowsBefore;
use super::FleetApi;
use super::condition;
use super::diff::last;
use super::headers::WriteCondition;
use super::intents::{ReadIntent, ReadIntents, problem_value, read};
use super::middleware::RoutedRequest;
use super::moments::{self, FoldRest, in_fold_turn};
use super::problem::{ProblemDetails, TIMEOUT};
use super::query::QueryParams;
use super::read::{ReadFrom, at_moment, settle};
use super::reserved_answer::ReservedAnswer;
use super::routes::RouteMatch;
use super::write::AnswerContext;

/// Maximum processor time of a dry run, after its state was folded. Time in which other programs use the processors does not count.
const PROCESSOR_TIME: Duration = Duration::from_secs(2);
/// Parameters of a dry run.
const OWN: [&str; 3] = ["as_of", "min_position", "consistency"];

/// Answers a dry run of one intent or a batch.
pub(super) async fn take(
    app: &Arc<FleetApi>,
    call: &RoutedRequest,
    mut params: QueryParams,
    body: Result<Bytes, ProblemDetails>,
) -> Result<Response<Body>, ProblemDetails> {
    params.only(&OWN)?;
    let named = moments::take(app, &mut params, "as_of")?;
    let intents = read(app, call, body)?;
    settle(app, &mut params, ReadFrom::Journal).await?;
    let at = moments::find(app, named.unwrap_or_else(|| last(app))).await?;
    let start = RunStart::new(app, &call.found, at, named.is_some())?;
    let condition = condition(&intents);
    let (mut slots, mut requests) = slots(intents, &call.context.id);
    let request_id = call.context.id.clone();
    let run = move |cache: &MomentCache, is_cancelled: &AtomicBool| {
        let moment = cache.fold(&at, is_cancelled)?;
        if let Some((condition, key)) = &condition {
            let row = match moment.get_json(key) {
                Ok(row) => row,
                Err(error) => return Ok(Err(internal(&error))),
            };
            if let Some(problem) = condition::refusal(condition, key, row.as_ref(), at.position) {
                requests.clear();
                slots = vec![DrySlot::Invalid(problem_value(&problem, &request_id))];
            }
        }
        // Read before the copy, which is the moment itself where memory is scarce.
        let before = RowsBefore::read(&moment, &requests, start.app.common.limits.page);
        let (app, now) = (Arc::clone(&start.app), start.now);
        let (rows, result) = start.run(cache, moment, requests, is_cancelled)?;
        let writer = AnswerWriter { app: &app, at, now, request_id: &request_id, rows: &rows };
        Ok(before.map_err(|error| internal(&error)).and_then(|before| writer.answer(slots, &before, &result)))
    };
    let ran = in_fold_turn(app, move |cache, is_cancelled| (run(cache, is_cancelled), FoldRest::None));
    let body = ran.await?.map_err(|error| moments::unread(&error))??;
    Ok(at_moment(ReservedAnswer::of_row().with(app, body)?, at.position, Some(&at)))
}

/// Whether the decider has decided the intent before, or knows its id from another intent. It then answers without a new decision.
/// A dry run on the current state shows it, as only the decider has the ids.
pub(super) async fn is_decided(
    app: &Arc<FleetApi>,
    found: &RouteMatch,
    request: &IntentRequest,
) -> Result<bool, ProblemDetails> {
    let at = moments::find(app, last(app)).await?;
    let start = RunStart::new(app, found, at, false)?;
    let request = request.clone();
    let run = move |cache: &MomentCache, is_cancelled: &AtomicBool| {
        let moment = cache.fold(&at, is_cancelled)?;
        start.run(cache, moment, vec![request], is_cancelled)
    };
    let ran = in_fold_turn(app, move |cache, is_cancelled| (run(cache, is_cancelled), FoldRest::None));
    let (_, result) = ran.await?.map_err(|error| moments::unread(&error))?;
    let Some(DryVerdict { verdict, record }) = result.intents.first() else {
        return Err(ProblemDetails::new(
            TIMEOUT,
            "cannot find whether the intent was decided before: timed out",
        ));
    };
    Ok(match verdict.result.as_ref() {
        Err(refusal) if refusal.code == RefusalCode::IdempotencyKeyReused => true,
        Ok(_) | Err(_) => verdict.is_recorded && record.is_none(),
    })
}

/// Condition of a single intent, with the key of its entity.
fn condition(intents: &ReadIntents) -> Option<(WriteCondition, RowKey)> {
    let ReadIntents::One(ReadIntent { request, condition, .. }) = intents else { return None };
    Some((condition.clone()?, RowKey::of(request.intent.subject()?)?))
}

/// Circumstances of a run.
struct RunStart {
    app: Arc<FleetApi>,
    fleet: FleetName,
    /// Last record before the run.
    at: ChainCursor,
    now: Time,
    wall: Time,
}

impl RunStart {
    fn new(
        app: &Arc<FleetApi>,
        found: &RouteMatch,
        at: ChainCursor,
        is_past: bool,
    ) -> Result<RunStart, ProblemDetails> {
        let (now, wall) = times(app, &at, is_past);
        let fleet = found.param("fleet").unwrap_or_default().parse();
        let fleet = fleet.map_err(|error| ProblemDetails::internal("read the name of the fleet", &error))?;
        Ok(RunStart { app: Arc::clone(app), fleet, at, now, wall })
    }

    /// Decides the intents on a copy of the moment.
    fn run(
        self,
        cache: &MomentCache,
        moment: Arc<FleetMoment>,
        requests: Vec<IntentRequest>,
        is_cancelled: &AtomicBool,
    ) -> Result<(FleetMoment, DryRunResult), MomentError> {
        let RunStart { app, fleet, at, now, wall } = self;
        let bounds = DryRunBounds::default();
        // A bound may be exceeded by a record.
        let copy = cache.copy(moment, (bounds.bytes + MAX_BYTES) as u64)?;
        let limit = RunLimit::from_now(app.common.limits.request_timeout.mul_f32(0.4), PROCESSOR_TIME);
        let may_continue = || !is_cancelled.load(Ordering::Relaxed) && !limit.is_reached();
        let ran = copy.change(|state| {
            let start = DryRunStart { fleet, state, at, now, wall, replicas: app.replicas, bounds };
            dry_run(start, requests, &may_continue)
        });
        if is_cancelled.load(Ordering::Relaxed) { Err(MomentError::Cancelled) } else { Ok(ran) }
    }
}

/// End of the time that a run on this thread may take.
struct RunLimit {
    end: Instant,
    /// Processor time of the thread.
    processor_end: Duration,
}

impl RunLimit {
    fn from_now(time: Duration, of_processor: Duration) -> RunLimit {
        RunLimit { end: Instant::now() + time, processor_end: processor_time() + of_processor }
    }

    fn is_reached(&self) -> bool {
        Instant::now() >= self.end || processor_time() >= self.processor_end
    }
}

/// Returns the processor time that this thread has used.
fn processor_time() -> Duration {
    // The conversion fails only for negative times.
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// Returns the time of the decisions and the wall clock. The current state is decided on at the current time, as a
/// leader would; a past one at the time of its record.
fn times(app: &FleetApi, at: &ChainCursor, is_past: bool) -> (Time, Time) {
    let wall = wall_clock::now();
    let is_followed = app.router.clock.follows(wall.since(at.time));
    match (is_past, is_followed) {
        (true, _) => (at.time, wall.max(at.time)),
        (false, true) => (wall.max(at.time), wall.max(at.time)),
        (false, false) => (at.time, at.time),
    }
}

/// Returns a slot for each answer, and the intents to decide.
fn slots(intents: ReadIntents, request_id: &str) -> (Vec<DrySlot>, Vec<IntentRequest>) {
    let items = match intents {
        ReadIntents::One(intent) => vec![Ok(intent)],
        ReadIntents::Batch(items) => items,
    };
    let (mut slots, mut requests) = (Vec::new(), Vec::new());
    for item in items {
        slots.push(match item {
            Ok(ReadIntent { request, condition, place, .. }) => {
                let slot = DrySlot::Decided(AnswerContext::of(&request, condition.as_ref(), place));
                requests.push(*request);
                slot
            }
            Err(problem) => DrySlot::Invalid(problem_value(&problem, request_id)),
        });
    }
    (slots, requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses as much processor time of this thread.
    fn use_processor(time: Duration) {
        let end = processor_time() + time;
        while processor_time() < end {}
    }

    #[test]
    fn only_processor_time_of_the_own_thread_counts_towards_its_limit() {
        let (short, long) = (Duration::from_millis(50), Duration::from_mins(10));
        let limit = RunLimit::from_now(long, short);
        std::thread::sleep(2 * short);
        assert!(!limit.is_reached(), "a thread that sleeps uses none");
        std::thread::spawn(move || use_processor(2 * short)).join().expect("no panic");
        assert!(!limit.is_reached(), "another thread used it");
        use_processor(short);
        assert!(limit.is_reached());
        let of_all = RunLimit::from_now(short, long);
        std::thread::sleep(short);
        assert!(of_all.is_reached(), "the time in all has passed");
    }
}
