//! W4: replay: read segments, check frames and chain, decode, fold, as a start without a snapshot does.
//!
//! The floor is the minimum work to get the events: read the same files and decode the same lines. Both use
//! one thread. `chancery replay` also opens the journal, counts events and decodes on a second thread. `CHANCERY_BENCH_EVENTS` sets the number of events (default: a million).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use chancery_events::event::{Event, EventKind, EventLine};
use chancery_events::extension::ExtensionAttributes;
use chancery_events::fact::Fact;
use chancery_events::id::{Lineage, Position, WriterId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::record::{Record, RecordDraft};
use chancery_events::time::Time;
use chancery_journal::segments::{FrozenSegments, SegmentJournal, SegmentOptions};
use chancery_journal::{AppendError, ChainCursor, Journal, JournalDelivery, WriterIdentity, genesis};
use chancery_machine::context::{DecisionContext, LevelLimits};
use chancery_machine::decide::{decide, evolve, pass, verdict};
use chancery_machine::fleet::FleetState;
use chancery_machine::meta::FactPosition;
use chancery_projector::JournalFold;
use chancery_projector::replay::replay;
use serde_json::json;

use crate::load::by_turns;
use crate::table::{CellResult, ResultRow, ValueBar};

/// Fleet of the journal.
pub(crate) const FLEET: &str = "bench";
/// Intents in a record: as many as accumulate under load. Each has three events.
const INTENTS: u64 = 100;
/// Entities that the intents are about.
const ENTITIES: u64 = 10_000;
/// Bytes of a frame before its payload, and the offset of its length in them.
const HEAD: usize = 24;
const LEN: usize = 8;

/// Returns the number of events from the environment, or else `events`.
pub(crate) fn wanted(events: u64) -> Result<u64> {
    std::env::var("CHANCERY_BENCH_EVENTS")
        .map_or(Ok(events), |text| text.parse())
        .context("CHANCERY_BENCH_EVENTS")
}

/// Creates a journal as a decider does: submits nodes and capabilities, decides, folds, appends. `each`
/// receives the state after each record.
pub(crate) fn make(
    dir: &Path,
    events: u64,
    mut each: impl FnMut(&FleetState, &Record) -> Result<()>,
) -> Result<()> {
    let sink = Box::new(|delivery| {
        if let JournalDelivery::Stopped(error) = delivery {
            eprintln!("the journal stopped: {error}");
        }
    });
    let (journal, opened) = SegmentJournal::open(&SegmentOptions::new(dir, FLEET), sink)?;
    ensure!(opened.head.is_none(), "the journal exists already");
    let lineage = Lineage::from_random(1);
    let mut maker =
        JournalMaker { fleet: FleetState::new(lineage), lineage, now: Time::from_micros(1), asked: 0 };
    let by = WriterIdentity { fleet: FLEET.into(), build: "bench".into(), writer: WriterId::from_random(1) };
    let mut at: Option<ChainCursor> = None;
    while at.is_none_or(|at| at.position.get() < events) {
        maker.now = maker.now + Duration::from_mins(1);
        let parts = match &at {
            None => genesis(&by, maker.now, lineage),
            Some(at) => at.follow(&by, maker.now, None),
        };
        let record = maker.draft(at.is_none())?.seal(parts)?;
        at = Some(ChainCursor::after(&record));
        each(&maker.fleet, &record)?;
        let mut waiting = Some(record);
        while let Some(record) = waiting.take() {
            match journal.append(record) {
                Ok(()) => {}
                Err(AppendError::Busy(record)) => {
                    std::thread::sleep(Duration::from_millis(1));
                    waiting = Some(*record);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(journal.close()?)
}

struct JournalMaker {
    fleet: FleetState,
    lineage: Lineage,
    now: Time,
    asked: u64,
}

impl JournalMaker {
    fn draft(&mut self, is_first: bool) -> Result<RecordDraft> {
        let mut draft = RecordDraft::new();
        if is_first {
            let term = Fact::read("term.started.v1", "{}").context("a type")??;
            self.take(&mut draft, Event::Fact { cause: Position::FIRST, fact: term })?;
            let cluster = json!({"name": "sim", "spec": {"runtime": "simulated"}});
            self.ask(&mut draft, "cluster.apply.v1", &cluster)?;
        }
        for _ in 0..INTENTS {
            let of = self.asked % ENTITIES;
            if of.is_multiple_of(2) {
                let total = json!({"cpu": 4000 + self.asked, "memory": 8_u64 << 30, "disk": 0});
                let spec = json!({"domain": format!("d{}", of % 16), "resources": total});
                let body = json!({"name": format!("node-{of}"), "cluster": "sim", "spec": spec});
                self.ask(&mut draft, "node.apply.v1", &body)?;
            } else {
                let spec = json!({"type": "GPU", "score": self.asked % 1_000_000});
                let body = json!({"name": format!("capability-{of}"), "spec": spec});
                self.ask(&mut draft, "capability.apply.v1", &body)?;
            }
        }
        Ok(draft)
    }

    fn ask(&mut self, draft: &mut RecordDraft, type_name: &str, body: &serde_json::Value) -> Result<()> {
        self.asked += 1;
        let request = IntentRequest {
            id: format!("id-{}", self.asked).parse()?,
            source: "bench".parse()?,
            actor: "bench".parse()?,
            time: None,
            expect: None,
            claim: None,
            traceparent: None,
            extensions: ExtensionAttributes::default(),
            intent: Intent::read(type_name, &body.to_string()).context("a type")??,
        };
        let cause = self.fleet.head().plus(1);
        let actor = Some(request.actor.clone());
        let context = DecisionContext {
            now: self.now,
            wall: self.now,
            next: cause.plus(2),
            lineage: self.lineage,
            actor,
            replicas: u32::MAX,
            levels: LevelLimits::ALONE,
        };
        let decided = decide(&self.fleet, &request, &context);
        let verdict_fact = verdict(&self.fleet, &request, &decided, &context);
        let facts = decided.map_err(|refusal| anyhow!("{refusal:?}"))?;
        self.take(draft, Event::Intent(request))?;
        std::iter::once(verdict_fact)
            .chain(facts)
            .try_for_each(|fact| self.take(draft, Event::Fact { cause, fact }))
    }

    fn take(&mut self, draft: &mut RecordDraft, event: Event) -> Result<()> {
        draft.push(&event.line())?;
        let position = self.fleet.head().plus(1);
        let Event::Fact { fact, .. } = event else {
            pass(&mut self.fleet, position);
            return Ok(());
        };
        let term = chancery_events::id::Term::FIRST;
        evolve(
            &mut self.fleet,
            &fact,
            FactPosition { position, time: self.now, term, lineage: self.lineage },
        )?;
        self.fleet.settle();
        Ok(())
    }
}

/// Steps of the replay that are measured.
#[derive(Clone, Copy)]
enum ReplayStep {
    /// Read, check frames and chain.
    Read,
    /// Read, check and decode.
    Decode,
    /// Read, check, decode and fold.
    Fold,
}

/// Measures the rate of events per second.
fn timed(run: impl FnOnce() -> Result<u64>) -> Result<CellResult> {
    let began = Instant::now();
    let events = run()?;
    Ok(CellResult::rate(events as f64 / began.elapsed().as_secs_f64()))
}

fn ours(journal: &SegmentJournal, stage: ReplayStep) -> Result<u64> {
    let (mut fold, mut events) = (JournalFold::default(), 0);
    for record in journal.source().records(Position::FIRST)? {
        let record = record?;
        match stage {
            ReplayStep::Read => {}
            ReplayStep::Decode => {
                for (_, line) in record.events() {
                    std::hint::black_box(decode(line)?);
                }
            }
            ReplayStep::Fold => {
                fold.take(&record)?;
            }
        }
        events += u64::from(record.header().count);
    }
    Ok(events)
}

/// Decodes as much as a fold needs: of intents and observations only the frame around the data.
fn decode(line: &[u8]) -> Result<Option<Fact>> {
    let line = EventLine::read(line)?;
    Ok(match line.kind {
        EventKind::Fact => Some(Fact::read(&line.type_name, line.data.get()).context("a known type")??),
        EventKind::Intent | EventKind::Observation => None,
    })
}

/// Reads and decodes without checks.
fn baseline(dir: &Path) -> Result<u64> {
    let mut files: Vec<_> = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "seg"));
    files.sort();
    let mut events = 0;
    for file in files {
        let bytes = std::fs::read(file)?;
        let mut rest = &bytes[..];
        while let Some((head, behind)) = rest.split_at_checked(HEAD) {
            if head[0] == 0 {
                break;
            }
            let len = head[LEN..].first_chunk().map_or(0, |len| u32::from_le_bytes(*len)) as usize;
            let Some((payload, behind)) = behind.split_at_checked(len) else { bail!("a frame is cut short") };
            rest = behind;
            for line in payload.strip_suffix(b"\n").unwrap_or_default().split(|byte| *byte == b'\n').skip(1) {
                std::hint::black_box(decode(line)?);
                events += 1;
            }
        }
    }
    Ok(events)
}

/// Replays as `chancery replay` does, from the directory alone.
fn offline(dir: &Path) -> Result<u64> {
    let frozen = FrozenSegments::open(dir)?.context("a journal")?;
    let replayed = replay(&*frozen.source(), frozen.fleet(), Vec::new(), |_| ())?;
    ensure!(replayed.state.map(|state| state.at) == frozen.source().head(), "the replay has another end");
    Ok(replayed.counts.events())
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let (directory, events) = (crate::directory()?, wanted(1_000_000)?);
    make(directory.path(), events, |_, _| Ok(()))?;
    let (journal, _) = SegmentJournal::open(&SegmentOptions::new(directory.path(), FLEET), Box::new(drop))?;
    let [floor, read, decode, fold, offline] = by_turns([
        Box::new(|| timed(|| baseline(directory.path()))),
        Box::new(|| timed(|| ours(&journal, ReplayStep::Read))),
        Box::new(|| timed(|| ours(&journal, ReplayStep::Decode))),
        Box::new(|| timed(|| ours(&journal, ReplayStep::Fold))),
        Box::new(|| timed(|| offline(directory.path()))),
    ])?;
    let (load, rate) = (format!("{events} events"), fold.rate);
    let row = ResultRow::new("W4", &load, fold.clone())
        .share_of("read + decode", floor, 0.6)
        .compared_with("ours, read", read)
        .compared_with("ours, + decode", decode)
        .check("events a second", rate, ValueBar::AtLeast(700_000.0));
    let offline = ResultRow::new("W4 chancery replay", load, offline).share_of("W4", fold, 0.9);
    Ok(vec![row, offline])
}
