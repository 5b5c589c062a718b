//! Progress of a replay on standard error: position, rate and time left.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use chancery_cli::note;
use chancery_events::id::Position;

/// Time between two reports on a terminal.
const ON_TERMINAL: Duration = Duration::from_millis(500);
/// Time between two reports elsewhere.
const ELSEWHERE: Duration = Duration::from_secs(10);

/// Reports the progress of a fold from the first position to the last one.
pub(super) struct ReplayProgress {
    last: Position,
    now: Position,
    since: Instant,
    reported: Instant,
    is_terminal: bool,
}

impl ReplayProgress {
    pub(super) fn new(last: Position) -> ReplayProgress {
        let since = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        ReplayProgress { last, now: Position::ZERO, since, reported: since, is_terminal }
    }

    /// Notes the position, and reports it if the last report is old.
    pub(super) fn show(&mut self, now: Position) {
        self.now = now;
        let (pause, elapsed) =
            (if self.is_terminal { ON_TERMINAL } else { ELSEWHERE }, self.reported.elapsed());
        if elapsed < pause {
            return;
        }
        self.reported = Instant::now();
        let line = line(now, self.last, self.since.elapsed());
        if self.is_terminal {
            // A line that cannot be written is dropped, as by `note!`.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        } else {
            note!("chancery: {line}");
        }
    }

    /// Reports the end.
    pub(super) fn end(self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        let (events, elapsed) = (self.now.get(), self.since.elapsed());
        note!(
            "chancery: {events} events folded in {:.1} s, {:.0} events/s",
            elapsed.as_secs_f64(),
            rate(events, elapsed)
        );
    }
}

fn rate(events: u64, elapsed: Duration) -> f64 {
    events as f64 / elapsed.as_secs_f64().max(1e-6)
}

/// Returns a report.
fn line(now: Position, last: Position, elapsed: Duration) -> String {
    let rate = rate(now.get(), elapsed);
    let left = (last.get().saturating_sub(now.get())) as f64 / rate.max(1.0);
    let percent = now.get() * 100 / last.get().max(1);
    format!("position {now} of {last}, {percent} %, {rate:.0} events/s, {left:.0} s left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_position_rate_and_time_left() {
        let shown = line(Position::new(500_000), Position::new(2_000_000), Duration::from_secs(2));
        assert_eq!(shown, "position 500000 of 2000000, 25 %, 250000 events/s, 6 s left");
        let shown = line(Position::new(1), Position::new(1), Duration::ZERO);
        assert_eq!(shown, "position 1 of 1, 100 %, 1000000 events/s, 0 s left");
    }
}
