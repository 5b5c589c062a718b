//! Trust in the machine's wall clock.
//!
//! Journal time never runs backwards. With a wall clock set years ahead, deadlines would pass, disruptions
//! would start, and the journal would keep that time. Therefore:
//!
//! | the wall clock is ahead of journal time | a server takes over | a server is leader |
//! |---|---|---|
//! | by at most `clock.max_gap` | becomes leader | journal time follows the wall clock |
//! | by more, if the kernel calls it synchronised or the operator accepted it | becomes leader | the same |
//! | by more | ends with an error, records nothing | time follows the monotonic clock; `/readyz` is 503 |
//!
//! Trust applies to one gap and to no later gap: it ends as journal time reaches the wall clock. If a decider
//! starts at the accepted clock, that is immediately. `/readyz` of a standby is 503 while it would end with
//! that error. A leader records the time after a quarter of `clock.max_gap` without a record.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chancery_events::text::counted;
use chancery_events::time::Time;

/// Interval of the checks whether a clock that has jumped is synchronised.
const ASK_AGAIN: Duration = Duration::from_mins(1);
/// Maximum time for an answer of systemd.
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum number of checks of a clock that is set meanwhile.
const ANSWERS: u32 = 3;
/// Difference from the monotonic clock at which the wall clock counts as set.
const SET: Duration = Duration::from_secs(1);
/// Pause between checks for an answer.
const LOOK: Duration = Duration::from_millis(5);

/// Returns the wall clock.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Time::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Whether the kernel reports a synchronised clock, as in `adjtimex`. Asks systemd: safe code cannot.
pub fn is_synchronised() -> bool {
    let mut ask = Command::new("timedatectl");
    ask.args(["show", "--property=NTPSynchronized", "--value"]).stdin(Stdio::null());
    ask.stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = ask.spawn() else { return false };
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(None) if began.elapsed() < ANSWER => std::thread::sleep(LOOK),
            Ok(status) => break status,
            Err(_) => break None,
        }
    };
    let Some(status) = status else {
        // Without an answer the clock counts as not synchronised.
        let _ = (child.kill(), child.wait());
        return false;
    };
    let mut answer = Vec::new();
    let is_read = child.stdout.is_some_and(|mut output| output.read_to_end(&mut answer).is_ok());
    is_read && status.success() && answer.trim_ascii() == b"yes"
}

/// Error for a wall clock that is too far ahead of the journal.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "cannot decide: the wall clock is at {wall}, {} ahead of the journal's last record at {last}; clock.max_gap is {}, and \
     the kernel does not report a synchronised clock\nhint: set the clock; if it is right, as after the fleet was switched \
     off for so long, start the server once with --accept-clock",
    counted(*days, "day"),
    counted(*max_days, "day")
)]
pub struct ClockAhead {
    wall: Time,
    last: Time,
    days: u64,
    max_days: u64,
}

/// Wall clock that was judged, and the time of the judgement.
#[derive(Debug, Clone, Copy)]
pub struct JudgedClock {
    /// Wall clock when it was judged.
    pub wall: Time,
    /// Monotonic clock at the same moment.
    pub at: Instant,
}

impl JudgedClock {
    /// Returns the current clocks, for a journal without records.
    pub fn now() -> JudgedClock {
        JudgedClock { wall: now(), at: Instant::now() }
    }

    /// Whether the wall clock was not set since `before`.
    fn is_continued_from(self, before: JudgedClock) -> bool {
        let expected = before.wall + self.at.saturating_duration_since(before.at);
        self.wall.since(expected).max(expected.since(self.wall)) < SET
    }
}

/// Trust in the wall clock, for one fleet of a server.
#[derive(Debug)]
pub struct WallClock {
    max_gap: Duration,
    /// Microseconds beyond `max_gap` that the clock may be ahead.
    trusted_gap: AtomicU64,
    is_synchronised: fn() -> bool,
    /// Locked while the system is asked whether the clock is synchronised.
    asks: Mutex<()>,
    /// Last answer of the system.
    was_synchronised: AtomicBool,
    trouble: Mutex<Option<String>>,
}

const DAY: u64 = 24 * 60 * 60;

impl WallClock {
    /// Follows the clock at most `max_gap` ahead, unless it is accepted or synchronised.
    pub fn new(max_gap: Duration, is_accepted: bool, is_synchronised: fn() -> bool) -> WallClock {
        WallClock {
            max_gap,
            trusted_gap: AtomicU64::new(if is_accepted { u64::MAX } else { 0 }),
            is_synchronised,
            asks: Mutex::default(),
            was_synchronised: AtomicBool::new(false),
            trouble: Mutex::default(),
        }
    }

    /// Returns a clock that is always followed.
    pub fn trusted() -> WallClock {
        WallClock::new(Duration::MAX, true, || true)
    }

    /// Returns how far ahead the clock is followed.
    fn max_gap(&self) -> Duration {
        match self.trusted_gap.load(Ordering::Acquire) {
            u64::MAX => Duration::MAX,
            trusted => self.max_gap.saturating_add(Duration::from_micros(trusted)),
        }
    }

    /// Whether a decider would follow the clock, if it is ahead of journal time by `gap`.
    pub fn follows(&self, gap: Duration) -> bool {
        gap <= self.max_gap()
    }

    /// Returns how far ahead a decider follows the clock, which is ahead of journal time by `gap`. Larger
    /// gaps are not trusted any more.
    pub fn follow_gap(&self, gap: Duration) -> Duration {
        let gap = u64::try_from(gap.as_micros()).unwrap_or(u64::MAX);
        if self.trusted_gap.load(Ordering::Acquire) > gap {
            self.trusted_gap.fetch_min(gap, Ordering::AcqRel);
        }
        self.max_gap()
    }

    /// Returns the interval without a record after which a decider records the time. It is short enough that
    /// the journal of a running server is never behind a correct clock. `None` if the clock is always
    /// followed.
    pub fn record_every(&self) -> Option<Duration> {
        (self.max_gap < Duration::MAX).then(|| (self.max_gap / 4).max(Duration::from_secs(1)))
    }

    /// Returns the clock to start a decider with after a record of time `last`. Blocks while systemd answers.
    pub fn admit(&self, last: Time) -> Result<JudgedClock, ClockAhead> {
        let _asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        self.judge(last, || self.ask())
    }

    /// Checks whether a decider could start after a record of time `last`, for a report. While another report
    /// asks the system, the last answer counts, so that all reports block one thread at most.
    pub fn try_admit(&self, last: Time) -> Result<(), ClockAhead> {
        let _asks = match self.asks.try_lock() {
            Ok(asks) => asks,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return self.judge(last, || self.was_synchronised.load(Ordering::Acquire)).map(drop);
            }
        };
        self.judge(last, || self.ask()).map(drop)
    }

    fn ask(&self) -> bool {
        let answer = (self.is_synchronised)();
        self.was_synchronised.store(answer, Ordering::Release);
        answer
    }

    fn judge(&self, last: Time, is_synchronised: impl Fn() -> bool) -> Result<JudgedClock, ClockAhead> {
        let (mut wall, mut ahead) = (last, Duration::ZERO);
        for _ in 0..ANSWERS {
            let judged = JudgedClock::now();
            wall = judged.wall;
            ahead = wall.since(last);
            if ahead <= self.max_gap() {
                return Ok(judged);
            }
            if !is_synchronised() {
                break;
            }
            // The answer is about the current clock, which may have been set while the system was asked.
            let answered = JudgedClock::now();
            if answered.is_continued_from(judged) {
                return Ok(answered);
            }
        }
        let (days, max_days) = (ahead.as_secs() / DAY, self.max_gap.as_secs() / DAY);
        Err(ClockAhead { wall, last, days, max_days })
    }

    /// Ends trust in a gap, with the decider that followed the clock.
    pub fn unfollow(&self) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        *trouble = None;
        self.trusted_gap.store(0, Ordering::Release);
    }

    /// Follows the clock from the start of a decider.
    pub fn follow(&self) {
        self.set_trouble(None);
    }

    /// Reports that the clock of a running decider jumped ahead by `jump`, or is back.
    pub fn jumped(self: &Arc<Self>, jump: Option<Duration>) {
        let Some(jump) = jump else {
            tracing::info!("journal time follows the wall clock again");
            return self.set_trouble(None);
        };
        let days = counted(jump.as_secs() / DAY, "day");
        let text = format!(
            "the wall clock has jumped {days} ahead and is not followed: set the clock, or restart the server with --accept-clock"
        );
        tracing::error!("{text}");
        self.set_trouble(Some(text));
        let clock = Arc::clone(self);
        let wait = move || {
            while clock.trouble().is_some() {
                if (clock.is_synchronised)() {
                    // Under the lock, so that a decider that ended meanwhile leaves no trust behind.
                    let trouble = clock.trouble.lock().unwrap_or_else(PoisonError::into_inner);
                    if trouble.is_some() {
                        clock.trusted_gap.store(u64::MAX, Ordering::Release);
                    }
                    return;
                }
                std::thread::sleep(ASK_AGAIN);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("clock".into()).spawn(wait) {
            tracing::warn!(%error, "cannot start the check whether the clock is synchronised");
        }
    }

    /// Reason why a running decider does not follow the clock, if any.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static ASKED: AtomicBool = AtomicBool::new(false);
    static ANSWERED: AtomicBool = AtomicBool::new(false);

    fn answers_late() -> bool {
        ASKED.store(true, Ordering::Release);
        while !ANSWERED.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        true
    }

    #[test]
    fn trust_is_in_the_gap_that_was_accepted_or_found_synchronised_and_in_no_later_one() {
        const DAYS: Duration = Duration::from_hours(24);
        let last = now().before(DAYS * 40);
        assert!(WallClock::new(DAYS * 31, false, || false).admit(last).is_err());
        let clock = Arc::new(WallClock::new(DAYS * 31, true, || true));
        let judged = clock.admit(last).expect("it is accepted");
        assert_eq!(clock.max_gap(), Duration::MAX, "until a decider starts");
        assert_eq!(
            clock.follow_gap(Duration::ZERO),
            DAYS * 31,
            "it started at {judged:?}: the gap has closed"
        );
        clock.jumped(Some(DAYS * 100));
        while clock.max_gap() < Duration::MAX {
            std::thread::yield_now();
        }
        assert_eq!(clock.follow_gap(DAYS * 100), DAYS * 131, "that jump is followed");
        assert_eq!(clock.follow_gap(DAYS * 120), DAYS * 131, "no more of another");
        assert_eq!(clock.follow_gap(DAYS * 50), DAYS * 81, "less, as journal time catches up");
        assert_eq!(clock.follow_gap(Duration::ZERO), DAYS * 31);
        assert_eq!(clock.follow_gap(DAYS * 32), DAYS * 31);
        // Trust ends with a decider, whatever the system reports afterwards.
        clock.jumped(Some(DAYS * 100));
        while clock.max_gap() < Duration::MAX {
            std::thread::yield_now();
        }
        clock.unfollow();
        assert_eq!((clock.max_gap(), clock.trouble()), (DAYS * 31, None));
    }

    #[test]
    fn a_clock_that_was_set_while_the_system_was_queried_is_another_clock() {
        let before = JudgedClock::now();
        let at = before.at + Duration::from_secs(5);
        for (wall, is_continued) in [
            (before.wall + Duration::from_secs(5), true),
            (before.wall + Duration::from_millis(5900), true),
            (before.wall + Duration::from_millis(6100), false),
            (before.wall.before(Duration::from_hours(24 * 365)), false),
        ] {
            assert_eq!(JudgedClock { wall, at }.is_continued_from(before), is_continued, "{wall}");
        }
    }

    #[test]
    fn while_the_system_does_not_answer_no_other_thread_waits_for_it() {
        let clock = WallClock::new(Duration::from_secs(1), false, answers_late);
        let last = Time::EPOCH;
        std::thread::scope(|scope| {
            let first = scope.spawn(|| clock.try_admit(last).is_ok());
            while !ASKED.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert!(clock.try_admit(last).is_err(), "nothing is known yet");
            ANSWERED.store(true, Ordering::Release);
            assert!(first.join().expect("no panic"));
        });
        ASKED.store(false, Ordering::Release);
        ANSWERED.store(false, Ordering::Release);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| clock.try_admit(last).is_ok());
            while !ASKED.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert!(clock.try_admit(last).is_ok(), "the last answer counts");
            ANSWERED.store(true, Ordering::Release);
            assert!(second.join().expect("no panic"));
        });
    }
}
