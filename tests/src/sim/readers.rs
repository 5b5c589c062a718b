//! Readers of a simulated world: of what a verdict changed, directly after it, and of anything at other
//! times. Servers that readers use are leaders, new leaders, and standbys.
//!
//! Readers change nothing, and have their own random source: a world has the same log with and without
//! readers.

use std::time::Duration;

use chancery_decider::Verdict;
use chancery_events::id::Position;
use chancery_events::subject::Subject;
use chancery_projector::{JournalFold, ReadConsistency};
use serde_json::Value;

use super::oracle::violation;
use super::random::RandomSource;
use super::rows::{
    EndedRead, FoundRow, ListedKind, ReadAnswer, ReadTarget, RowDetail, ServerRead, ServerRows, row,
};
use super::script::WorldScript;
use super::universe::{ScriptedWorld, trace_step};
use crate::check::InvariantViolation;

/// One in this number of worlds compares whole rows with the log, which is folded again for that.
const WHOLE: u64 = 16;
/// Number of entities of the last verdicts that readers choose from.
const RECENT: usize = 16;

/// Row that was shown: the position, its subject, and the whole row.
type ShownRow = (Position, Subject, Option<Value>);

/// Readers of a world, with their random source.
pub struct WorldReaders {
    random: RandomSource,
    /// Whether requests go through standbys.
    forwards: bool,
    /// Entities of the last verdicts.
    recent: Vec<Subject>,
    /// Reads that will be sent after the oracle has read the log.
    sent: Vec<(usize, ReadTarget, Option<Position>)>,
    /// Rows that were shown whole; kept in some worlds.
    whole: Option<Vec<ShownRow>>,
    /// Number of server processes so far.
    processes: u64,
}

/// Server that forwards a request to the leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardingServer {
    seat: usize,
    process: u64,
}

impl WorldReaders {
    /// Returns the readers of a world.
    pub fn new(script: &WorldScript) -> WorldReaders {
        let mut random = RandomSource::new(script.seed ^ 0x7ead);
        WorldReaders {
            forwards: random.chance(250),
            random,
            recent: Vec::new(),
            sent: Vec::new(),
            whole: script.seed.is_multiple_of(WHOLE).then(Vec::new),
            processes: 0,
        }
    }

    /// Draws the delay of a server's rows behind its records.
    pub fn delay(&mut self) -> Duration {
        match self.random.below(100) {
            0..=39 => Duration::ZERO,
            40..=84 => Duration::from_micros(self.random.between(1, 8000)),
            85..=95 => Duration::from_millis(self.random.between(1, 500)),
            _ => Duration::from_millis(self.random.between(500, 9000)),
        }
    }

    /// Draws the number of records that the rows of a starting server lack.
    pub fn behind(&mut self) -> usize {
        if self.random.chance(500) { 0 } else { usize::try_from(self.random.below(6)).unwrap_or(0) }
    }

    /// Returns the number of a new server process.
    pub fn process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    fn is_so_often(&mut self, of_a_thousand: u64) -> bool {
        self.random.chance(of_a_thousand)
    }

    /// Draws an entity of a recent verdict, or a list.
    fn anything(&mut self) -> ReadTarget {
        let recent = if self.is_so_often(700) { self.random.pick(&self.recent).cloned() } else { None };
        recent.map_or_else(|| ReadTarget::List(self.list()), ReadTarget::Row)
    }

    fn list(&mut self) -> ListedKind {
        self.random.pick(&ListedKind::ALL).copied().unwrap_or(ListedKind::Plans)
    }

    fn remember(&mut self, subject: &Subject) {
        if !self.recent.contains(subject) {
            if self.recent.len() >= RECENT {
                self.recent.remove(0);
            }
            self.recent.push(subject.clone());
        }
    }
}

impl ScriptedWorld {
    /// Draws whether a request is sent through a standby, and chooses it; a standby without process is
    /// started.
    pub(super) fn draw_via(&mut self) -> Option<ForwardingServer> {
        if !self.readers.forwards || !self.readers.is_so_often(400) {
            return None;
        }
        let now = self.now;
        let stands_by = |seat: &usize| {
            let seat = &self.seats[*seat];
            seat.server.is_none() && (seat.rows.is_some() || seat.down <= now)
        };
        let idle: Vec<usize> = (0..self.seats.len()).filter(stands_by).collect();
        let seat = self.readers.random.pick(&idle).copied()?;
        if self.seats[seat].rows.is_none() {
            self.start_standby(seat)?;
        }
        let process = self.seats[seat].rows.as_ref()?.process;
        Some(ForwardingServer { seat, process })
    }

    /// Starts a server as a standby. `None` if it cannot fold the log: the oracle finds that too.
    fn start_standby(&mut self, seat: usize) -> Option<()> {
        let mut fold = JournalFold::from(self.snapshots.last().cloned());
        for record in self.log.source().records(fold.position().plus(1)).ok()? {
            fold.take(&*record.ok()?).ok()?;
        }
        let head = fold.position();
        let mut rows = ServerRows::new(self.readers.process(), fold, head);
        rows.stand_by(&self.log);
        self.seats[seat].rows = Some(rows);
        self.counts.add("server starts as standby");
        trace_step!(self, "server {seat} starts as standby, at {head}");
        Some(())
    }

    /// Notes a verdict of a server, at the server and at the forwarding one, before the answer is written.
    /// Then people read.
    pub(super) fn gave(&mut self, seat: usize, call: usize, verdict: &Verdict) {
        let position = verdict.position;
        if let Some(rows) = &self.seats[seat].rows {
            rows.last.note(position);
            self.oracle.gave(seat, position);
        }
        let mut answering = seat;
        let own = self.oracle.state().map(|state| state.fleet.lineages().current);
        if let (Some(via), Some(own)) = (self.calls[call].via.take(), own)
            && let Some(rows) = self.seats[via.seat].rows.as_ref().filter(|rows| rows.process == via.process)
        {
            // Problems name no lineage.
            rows.last.note_forwarded(position, verdict.result.is_ok().then_some(own), own);
            self.oracle.gave(via.seat, position);
            self.counts.add("verdict forwarded");
            answering = via.seat;
        }
        let subject = match &*verdict.result {
            Ok(accepted) => accepted.subject.clone(),
            Err(_) => None,
        };
        let subject = subject.or_else(|| self.calls[call].request.intent.subject());
        if let Some(subject) = &subject {
            self.readers.remember(subject);
        }
        if self.readers.is_so_often(600) {
            let of = subject.clone().map_or_else(|| self.readers.anything(), ReadTarget::Row);
            self.readers.sent.push((answering, of, None));
        }
        if self.readers.is_so_often(150) {
            let list = self.readers.list();
            self.readers.sent.push((answering, ReadTarget::List(list), None));
        }
        if let Some(subject) = subject.filter(|_| self.readers.is_so_often(100)) {
            // Reads of another server name the position.
            let other = self.readers.random.below(self.seats.len() as u64);
            let other = usize::try_from(other).unwrap_or(0);
            self.readers.sent.push((other, ReadTarget::Row(subject), Some(position)));
        }
    }

    /// Notes that a server became leader: a reader may read there immediately.
    pub(super) fn may_read(&mut self, seat: usize) {
        if self.readers.is_so_often(400) {
            let of = self.readers.anything();
            self.readers.sent.push((seat, of, None));
        }
    }

    /// Lets rows catch up at the end, so that no reader waits any more.
    pub(super) fn hear_all(&mut self) -> Result<(), InvariantViolation> {
        let is_waited_for = |rows: &Option<ServerRows>| rows.as_ref().is_some_and(ServerRows::is_waited_for);
        for seat in 0..self.seats.len() {
            if !is_waited_for(&self.seats[seat].rows) {
                continue;
            }
            self.go_on(seat)?;
            if let Some(rows) = &mut self.seats[seat].rows {
                rows.catch_up();
            }
            self.go_on(seat)?;
            if is_waited_for(&self.seats[seat].rows) {
                return Err(violation(9, format!("a read of server {seat} has no answer"), None));
            }
        }
        Ok(())
    }

    /// Sends the pending reads, and takes the answers to waiting ones.
    pub(super) fn read_rows(&mut self) -> Result<(), InvariantViolation> {
        if self.readers.is_so_often(12) {
            let seat = usize::try_from(self.readers.random.below(self.seats.len() as u64)).unwrap_or(0);
            let of = self.readers.anything();
            self.readers.sent.push((seat, of, None));
        }
        for (seat, of, named) in std::mem::take(&mut self.readers.sent) {
            self.ask_rows(seat, of, named)?;
        }
        for seat in 0..self.seats.len() {
            if self.seats[seat].rows.as_ref().is_some_and(ServerRows::is_waited_for) {
                self.go_on(seat)?;
            }
        }
        Ok(())
    }

    fn ask_rows(
        &mut self,
        seat: usize,
        of: ReadTarget,
        named: Option<Position>,
    ) -> Result<(), InvariantViolation> {
        let eventual = self.readers.is_so_often(100);
        let consistency = if eventual { ReadConsistency::Eventual } else { ReadConsistency::Verdicts };
        // Everything due before the request has happened.
        self.go_on(seat)?;
        let parts = if self.readers.whole.is_some() { RowDetail::All } else { RowDetail::Stamps };
        let given = if eventual { Position::ZERO } else { self.oracle.reads().least(seat) };
        let least = named.map_or(given, |named| named.max(given));
        let now = self.now;
        let Some(rows) = self.seats[seat].rows.as_mut() else { return Ok(()) };
        if rows.position() < least {
            self.counts.add("read before its rows");
        }
        rows.ask(ServerRead { of, parts, consistency, named, least }, now);
        self.go_on(seat)
    }

    /// Advances a server's rows until now, unless the server is suspended, and takes answers to reads.
    pub(super) fn go_on(&mut self, seat: usize) -> Result<(), InvariantViolation> {
        let now = self.now;
        let of = &mut self.seats[seat];
        if of.server.as_ref().is_some_and(|server| server.paused.is_some()) {
            return Ok(());
        }
        let Some(rows) = &mut of.rows else { return Ok(()) };
        if of.server.is_none() {
            rows.follow(now + self.readers.delay());
        }
        for done in rows.go_on(now) {
            self.read_is_over(seat, done)?;
        }
        Ok(())
    }

    fn read_is_over(&mut self, seat: usize, done: EndedRead) -> Result<(), InvariantViolation> {
        let EndedRead { waited: asked, position, answer } = done;
        let ServerRead { of, least, .. } = asked.read;
        trace_step!(
            self,
            "server {seat} answers a read of {of:?} that came at {:?} and must have reached {least}, at {position}: {}",
            asked.since,
            match &answer {
                ReadAnswer::Row(None) => "there is none".to_owned(),
                ReadAnswer::Row(Some(FoundRow { stamp, .. })) => format!("{stamp:?}"),
                ReadAnswer::List(list) => format!("{} rows", list.len()),
                ReadAnswer::NotApplied => format!("position {} is not applied", asked.wanted),
            }
        );
        let reads = self.oracle.reads();
        match (of, answer) {
            (_, ReadAnswer::NotApplied) => {
                reads.not_applied(asked.wanted, position)?;
                self.counts.add("read refused");
                return Ok(());
            }
            (ReadTarget::Row(subject), ReadAnswer::Row(row)) => {
                let shown = row.as_ref().map(|row| row.stamp);
                reads.row(least, position, &subject, shown)?;
                if let Some(whole) = &mut self.readers.whole {
                    whole.push((position, subject, row.and_then(|row| row.whole)));
                }
            }
            (ReadTarget::List(kind), ReadAnswer::List(list)) => {
                reads.list(least, position, kind.word(), &list)?;
            }
            (of, answer) => return Err(violation(13, format!("{of:?} is answered by {answer:?}"), None)),
        }
        let is_by_standby = self.seats[seat].server.is_none();
        self.counts.add(if is_by_standby { "read of a standby" } else { "read" });
        Ok(())
    }

    /// Checks that whole rows were those of the log, folded again, at the positions that the answers named.
    pub(super) fn read_again(&mut self) -> Result<(), InvariantViolation> {
        let mut seen = self.readers.whole.take().unwrap_or_default();
        seen.sort_by_key(|(position, ..)| *position);
        let mut seen = seen.into_iter().skip_while(|(position, ..)| *position == Position::ZERO).peekable();
        let mut fold = JournalFold::default();
        for record in self.log.source().records(Position::FIRST).expect("a log in memory can be read") {
            if seen.peek().is_none() {
                return Ok(());
            }
            let record = record.map_err(|error| violation(1, error.to_string(), None))?;
            fold.take(&record).map_err(|error| violation(2, error.to_string(), None))?;
            while let Some((position, subject, shown)) = seen.next_if(|(at, ..)| *at <= fold.position()) {
                let state = fold.state().filter(|state| state.at.position == position);
                let Some(state) = state else {
                    let what = "an answer names a position at which no record ends";
                    return Err(violation(13, what, Some(position)));
                };
                let own = row(&state.fleet, &subject, RowDetail::All).and_then(|found| found.whole);
                if own != shown {
                    let what = format!("{subject} was shown as {shown:?}, and is {own:?}");
                    return Err(violation(13, what, Some(position)));
                }
                self.counts.add("whole row compared");
            }
        }
        match seen.next() {
            None => Ok(()),
            Some((position, ..)) => {
                Err(violation(13, "an answer names a position behind the end", Some(position)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TraceOption, play, play_many};
    use super::*;

    #[test]
    fn readers_of_some_hundred_worlds_wait_are_refused_and_are_answered_by_every_server() {
        let all = play_many(1, 320);
        assert!(all.failed.is_empty(), "{:?}", all.failed);
        for what in [
            "read",
            "read of a standby",
            "read before its rows",
            "read refused",
            "verdict forwarded",
            "whole row compared",
        ] {
            assert!(all.counts.get(what) > 0, "no {what}");
        }
        let (answered, refused) = (all.counts.get("read"), all.counts.get("read refused"));
        assert!(answered > 10 * refused, "{answered} answered, {refused} refused");
    }

    #[test]
    fn traces_show_reads() {
        let trace = play(WorldScript::draw(1), TraceOption::Traced).trace;
        assert!(trace.iter().any(|line| line.contains("answers a read")), "{trace:#?}");
    }
}
