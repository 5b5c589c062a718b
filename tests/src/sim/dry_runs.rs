//! Dry runs in a simulated world, compared with a decider that takes over (invariant 18).
//!
//! At each sampled state, a decider takes over and does what is due. Then some time passes, and a dry run must list what
//! this decider does next as due before the intents. Then another decider takes over, and decides intents of the
//! world. A dry run of these must have the same events, byte by byte, and must leave the state as it was.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use chancery_decider::core::{
    CoreInput, CoreOutput, DeciderCore, DeciderEffect, DeciderSettings, RequestTicket,
};
use chancery_decider::dry_run::{DryRunBounds, DryRunResult, DryRunStart, dry_run};
use chancery_decider::{UnchangedVerdict, Verdict};
use chancery_events::event::Event;
use chancery_events::id::{Position, WriterId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::record::Record;
use chancery_events::time::Time;
use chancery_journal::ChainCursor;
use chancery_journal::memory::MemoryLog;
use chancery_machine::context::LevelLimits;
use chancery_machine::fleet::FleetState;
use chancery_projector::FoldedState;

use super::oracle::violation;
use super::past::{RecordSamples, SampledRecord};
use super::random::RandomSource;
use super::server::FLEET;
use crate::check::InvariantViolation;

/// Maximum number of replicas of a deployment, for both.
const REPLICAS: u32 = 1000;
/// Times that pass before a dry run, in seconds: nothing, the interval of balance checks, a deadline, and more.
const PAUSES: [u64; 4] = [0, 11, 600, 200_000];
/// Time after which sessions of a lease without length have expired.
const EXPIRY: Duration = Duration::from_millis(1);
/// Maximum number of inputs until no work is due.
const TURNS: usize = 1000;

/// Decider whose records are delivered to it and dropped.
struct TrialDecider {
    core: DeciderCore,
    at: ChainCursor,
}

/// Outputs of one input.
#[derive(Default)]
struct TrialOutput {
    records: Vec<Arc<Record>>,
    answer: Option<Verdict>,
    is_more_due: bool,
}

/// Returns a violation of the invariant about dry runs.
fn wrong(sample: &SampledRecord, what: impl Into<String>) -> InvariantViolation {
    violation(18, what, Some(sample.record.last()))
}

impl TrialDecider {
    /// Returns a decider that has taken over and has done nothing else.
    fn take_over(state: &FleetState, at: ChainCursor, now: Time) -> TrialDecider {
        let settings = DeciderSettings {
            fleet: FLEET.parse().expect("a fleet's name"),
            writer: WriterId::from_random(0),
            build: env!("CARGO_PKG_VERSION").into(),
            address: None,
            lease: Duration::ZERO,
            part: 600,
            replicas: REPLICAS,
            levels: LevelLimits::ALONE,
            inbox: None,
        };
        let core = DeciderCore::take_over(settings, state.clone(), Some(&at), now, Box::new(|_| Ok(None)));
        let mut decider = TrialDecider { core, at };
        decider.give(now, CoreInput::Seal);
        decider
    }

    /// Returns the result of a dry run on the state of this decider.
    fn try_out(&self, now: Time, requests: &[IntentRequest]) -> (FleetState, DryRunResult) {
        let start = DryRunStart {
            fleet: FLEET.parse().expect("a fleet's name"),
            state: self.core.fleet().clone(),
            at: self.at,
            now,
            wall: now,
            replicas: REPLICAS,
            bounds: DryRunBounds::default(),
        };
        dry_run(start, requests.to_vec(), &|| true)
    }

    /// Passes an input to the core, and delivers the records.
    fn give(&mut self, now: Time, input: CoreInput) -> TrialOutput {
        self.core.set_wall(now);
        let mut found = TrialOutput::default();
        let mut outputs = VecDeque::from(self.core.handle(now, input));
        outputs.extend(self.core.handle(now, CoreInput::Seal));
        while let Some(output) = outputs.pop_front() {
            match output {
                CoreOutput::Append(record) => {
                    let record = Arc::new(record);
                    self.at = ChainCursor::after(&record);
                    outputs.extend(self.core.handle(now, CoreInput::Delivered(vec![Arc::clone(&record)])));
                    found.records.push(record);
                }
                CoreOutput::Effect(DeciderEffect::Answer(_, verdict)) => found.answer = Some(verdict),
                CoreOutput::More => found.is_more_due = true,
                CoreOutput::Effect(DeciderEffect::Send(..) | DeciderEffect::Close(_))
                | CoreOutput::Overtaken => {}
            }
        }
        found
    }

    /// Does due work until none is due.
    fn work(&mut self, now: Time) -> Vec<Arc<Record>> {
        let mut records = Vec::new();
        for _ in 0..TURNS {
            let output = self.give(now, CoreInput::Work);
            records.extend(output.records);
            if !output.is_more_due {
                break;
            }
        }
        records
    }
}

/// Returns the events of records, as stored.
fn texts<'a>(records: impl IntoIterator<Item = &'a Arc<Record>>) -> Vec<String> {
    let text = |(position, line): (Position, &[u8])| format!("{position} {}", String::from_utf8_lossy(line));
    records.into_iter().flat_map(|record| record.events().map(text).collect::<Vec<_>>()).collect()
}

/// Returns the hash of a state, with its idempotency keys.
fn hash(fleet: &FleetState, at: ChainCursor) -> String {
    let state = FoldedState { fleet: fleet.clone(), at, watermark: None };
    state.hash().expect("memory stores everything").to_string()
}

/// Returns the intents of the log that a dry run can decide.
fn intents(log: &MemoryLog) -> Vec<(Position, IntentRequest)> {
    let records = log.source().records(Position::FIRST).expect("a log in memory can be read");
    let mut found = Vec::new();
    for record in records.flatten() {
        for (position, line) in record.events() {
            if let Ok(Event::Intent(request)) = Event::read(line)
                && !matches!(request.intent, Intent::InboxSkip(_) | Intent::FleetRaise(_))
            {
                found.push((position, request));
            }
        }
    }
    found
}

/// Checks dry runs at the sampled states, of the intent that the world records next and of any other one.
pub(super) fn check_dry_runs(samples: &mut RecordSamples, log: &MemoryLog) -> Result<(), InvariantViolation> {
    let all = intents(log);
    let RecordSamples { random, kept, .. } = samples;
    for sample in kept {
        let next = all.iter().find(|(position, _)| *position > sample.record.last());
        let chosen = next.into_iter().chain(random.pick(&all)).map(|(_, request)| request.clone());
        check_dry_run(sample, &chosen.collect::<Vec<_>>(), random)?;
    }
    Ok(())
}

fn check_dry_run(
    sample: &SampledRecord,
    requests: &[IntentRequest],
    random: &mut RandomSource,
) -> Result<(), InvariantViolation> {
    let FoldedState { fleet, at, .. } = &sample.state;
    let mut first = TrialDecider::take_over(fleet, *at, at.time);
    first.work(at.time);
    first.work(at.time + EXPIRY);
    let now = at.time + EXPIRY + Duration::from_secs(*random.pick(&PAUSES).unwrap_or(&0));
    let due = texts(&first.try_out(now, requests).1.due);
    compare(sample, "due work of a dry run", &[due], &[texts(&first.work(now))])?;
    // A dry run has no memory of earlier steps, as a decider that takes over.
    let mut second = TrialDecider::take_over(first.core.fleet(), first.at, now);
    let before = hash(second.core.fleet(), second.at);
    let (after, result) = second.try_out(now, requests);
    let (_, again) = second.try_out(now, requests);
    if hash(second.core.fleet(), second.at) != before {
        return Err(wrong(sample, "a dry run has changed the state that it started from"));
    }
    compare(sample, "a second dry run", &parts(&again), &parts(&result))?;
    let (mut real, mut verdicts) = (vec![Vec::new()], Vec::new());
    for request in requests {
        let input =
            CoreInput::Intent(RequestTicket(0), Box::new(request.clone()), UnchangedVerdict::default());
        let output = second.give(now, input);
        real.push(texts(&output.records));
        verdicts.extend(output.answer);
    }
    real.push(texts(&second.work(now)));
    compare(sample, "a dry run", &parts(&result), &real)?;
    let dry: Vec<_> = result.intents.iter().map(|decided| decided.verdict.clone()).collect();
    if dry != verdicts {
        return Err(wrong(sample, format!("a dry run has the verdicts {dry:?}, not {verdicts:?}")));
    }
    if hash(&after, second.at) != hash(second.core.fleet(), second.at) {
        return Err(wrong(sample, "a dry run ends in another state than the decider"));
    }
    Ok(())
}

/// Returns the events of a dry run: those that were due, those of each intent, and those that follow.
fn parts(result: &DryRunResult) -> Vec<Vec<String>> {
    let mut parts = vec![texts(&result.due)];
    parts.extend(result.intents.iter().map(|decided| texts(&decided.record)));
    parts.push(texts(&result.follows));
    parts
}

/// Compares the events of a dry run with others.
fn compare(
    sample: &SampledRecord,
    what: &str,
    found: &[Vec<String>],
    wanted: &[Vec<String>],
) -> Result<(), InvariantViolation> {
    if found == wanted {
        return Ok(());
    }
    let line = |parts: &[Vec<String>], part: usize, at: usize| parts.get(part)?.get(at).cloned();
    for part in 0..found.len().max(wanted.len()) {
        let count = found.get(part).map_or(0, Vec::len).max(wanted.get(part).map_or(0, Vec::len));
        for at in 0..count {
            let (one, other) = (line(found, part, at), line(wanted, part, at));
            if one != other {
                let what = format!("{what} has in part {part} the event {one:?}, not {other:?}");
                return Err(wrong(sample, what));
            }
        }
    }
    Err(wrong(sample, format!("{what} has another number of parts")))
}
