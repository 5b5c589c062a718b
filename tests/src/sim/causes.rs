//! Causes, effects and histories in a simulated world, compared with a scan of the log (invariant 17).

use chancery_events::event::{Event, EventKind, EventLine};
use chancery_events::fact::{ApprovalActor, Fact, OperationApproved};
use chancery_events::id::Position;
use chancery_events::subject::Subject;
use chancery_journal::memory::MemoryLog;
use chancery_projector::HistoryReader;
use chancery_projector::causes::CauseReader;

use super::oracle::violation;
use super::random::RandomSource;
use crate::check::InvariantViolation;
use crate::past::causes::FIRST_FACTS;

/// Number of events of a world that are checked.
const CHOSEN: usize = 8;
/// Number of events on a page.
const PAGE: usize = 2;

/// Event as a scan of the log finds it.
struct ScannedEvent {
    kind: EventKind,
    type_name: String,
    /// Cause of a fact, which may be the fact itself.
    cause: Option<Position>,
    /// Whether it is an approval by a rule, which is the initiator of what follows.
    is_rule: bool,
    about: Vec<Subject>,
}

/// Events of the log, in order; the first one has position 1.
struct ScannedLog(Vec<ScannedEvent>);

/// Returns a violation of the invariant about causes.
fn wrong(position: Position, what: impl Into<String>) -> InvariantViolation {
    violation(17, what, Some(position))
}

/// Returns a violation: the reader failed.
fn failed(position: Position, error: Option<&dyn std::error::Error>) -> InvariantViolation {
    let error = error.map_or_else(|| "there is no event".to_owned(), ToString::to_string);
    wrong(position, format!("cannot read: {error}"))
}

/// Result of a check of causes.
type CauseCheck<T = ()> = Result<T, InvariantViolation>;

impl ScannedLog {
    fn scan(log: &MemoryLog) -> CauseCheck<ScannedLog> {
        let mut all = Vec::new();
        let records = log.source().records(Position::FIRST).expect("a log in memory can be read");
        for record in records.flatten() {
            for (position, bytes) in record.events() {
                let bad = |error| failed(position, Some(&error));
                let line = EventLine::read(bytes).map_err(bad)?;
                let (kind, cause, type_name) = (line.kind, line.cause, line.type_name.to_string());
                let event = line.event().map_err(bad)?;
                let (mut about, mut is_rule) = (event.subjects(), false);
                if let Event::Fact { fact, .. } = &event {
                    about.extend(fact.issues(record.header().lineage, position));
                    let by_rule = |by: &OperationApproved| matches!(by.approved_by, ApprovalActor::Rule(_));
                    is_rule = matches!(fact, Fact::OperationApproved(approved) if by_rule(approved));
                }
                all.push(ScannedEvent { kind, type_name, cause, is_rule, about });
            }
        }
        Ok(ScannedLog(all))
    }

    fn event(&self, position: Position) -> &ScannedEvent {
        &self.0[usize::try_from(position.get() - 1).expect("a position of this log")]
    }

    fn positions(&self) -> impl Iterator<Item = Position> {
        (1..=self.0.len() as u64).map(Position::new)
    }

    /// Returns the causes of an event, the nearest first.
    fn causes(&self, position: Position) -> Vec<Position> {
        let before = |at: &Position| self.event(*at).cause.filter(|cause| cause < at);
        std::iter::successors(before(&position), before).collect()
    }

    /// Returns the initiator of an event: the nearest rule, or else the first event of the chain.
    fn root(&self, position: Position) -> Position {
        let chain: Vec<_> = std::iter::once(position).chain(self.causes(position)).collect();
        let nearest = chain.iter().find(|at| self.event(**at).is_rule);
        *nearest.or(chain.last()).unwrap_or(&position)
    }
}

/// Checks the causes, effects and histories of some events that the seed chooses.
pub(super) fn check_causes(log: &MemoryLog, random: &mut RandomSource) -> CauseCheck {
    let scanned = ScannedLog::scan(log)?;
    let head = scanned.0.len() as u64;
    let reader = CauseReader::new(log.source(), Position::new(head));
    let history = HistoryReader::new(log.source()).until(Position::new(head));
    for _ in 0..CHOSEN {
        let position = Position::new(random.between(1, head));
        check_chain(&scanned, &reader, position)?;
        check_effects(&scanned, &reader, position)?;
        if let Some(cause) = scanned.causes(position).first() {
            check_effects(&scanned, &reader, *cause)?;
        }
        if let Some(subject) = random.pick(&scanned.event(position).about) {
            check_history(&scanned, &history, subject, position)?;
        }
    }
    Ok(())
}

/// Checks that the causes of an event are those in the log, and end at what needs no cause.
fn check_chain(log: &ScannedLog, reader: &CauseReader, position: Position) -> CauseCheck {
    let (mut found, mut from) = (Vec::new(), Some(position));
    while let Some(at) = from {
        let page = reader.causes(at, PAGE).map_err(|error| failed(at, Some(&error)))?;
        let page = page.ok_or_else(|| failed(at, None))?;
        found.extend(page.events.iter().map(|event| (event.position, event.type_name.clone())));
        from = page.next.and(page.events.last()).map(|last| last.position);
    }
    let wanted = log.causes(position).into_iter().map(|at| (at, log.event(at).type_name.clone()));
    let wanted: Vec<_> = wanted.collect();
    if found != wanted {
        return Err(wrong(position, format!("its causes are shown as {found:?}, not {wanted:?}")));
    }
    let root = log.event(wanted.last().map_or(position, |(root, _)| *root));
    if root.kind == EventKind::Fact && !FIRST_FACTS.contains(&root.type_name.as_str()) {
        return Err(wrong(position, format!("its causes end at {}", root.type_name)));
    }
    Ok(())
}

/// Checks that the effects of an event are the facts that name it as their cause.
fn check_effects(log: &ScannedLog, reader: &CauseReader, position: Position) -> CauseCheck {
    let (mut found, mut from) = (Vec::new(), Some(Position::FIRST));
    while let Some(at) = from {
        let page = reader.effects(position, at, PAGE).map_err(|error| failed(position, Some(&error)))?;
        let page = page.ok_or_else(|| failed(position, None))?;
        found.extend(page.events.iter().map(|event| event.position));
        from = page.next;
    }
    let is_effect = |at: &Position| *at != position && log.event(*at).cause == Some(position);
    let wanted: Vec<_> = log.positions().filter(is_effect).collect();
    if found != wanted {
        return Err(wrong(position, format!("its effects are shown as {found:?}, not {wanted:?}")));
    }
    Ok(())
}

/// Checks that the history of an entity has each event about it, with its initiator.
fn check_history(
    log: &ScannedLog,
    history: &HistoryReader,
    subject: &Subject,
    position: Position,
) -> CauseCheck {
    let (mut found, mut from) = (Vec::new(), Some(Position::FIRST));
    while let Some(at) = from {
        let page = history.of(subject, at, PAGE).map_err(|error| failed(position, Some(&error)))?;
        let root = |because: Option<Position>, at| because.unwrap_or(at);
        found.extend(page.entries.into_iter().map(|entry| {
            (entry.position, root(entry.root_cause.map(|because| because.position), entry.position))
        }));
        from = page.next;
    }
    let about = log.positions().filter(|at| log.event(*at).about.contains(subject));
    let wanted: Vec<_> = about.map(|at| (at, log.root(at))).collect();
    if found != wanted {
        let what = format!("the history of {subject} is shown as {found:?}, not {wanted:?}");
        return Err(wrong(position, what));
    }
    Ok(())
}
