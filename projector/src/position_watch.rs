//! Progress of the rows, for tasks that wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use chancery_events::id::Position;
use chancery_events::time::Time;
use tokio::sync::watch;

/// Progress of the rows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AppliedPosition {
    /// Position up to which every event is in the rows.
    pub position: Position,
    /// Time of the record at the position.
    pub time: Time,
    /// Reason why the projector has stopped, if it has.
    pub stopped: Option<Arc<str>>,
}

/// Reason why a position was not reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PositionWaitError {
    /// Timeout: try again.
    #[error("cannot reach position {wanted}: the rows are at {reached}")]
    Timeout {
        /// Requested position.
        wanted: Position,
        /// Position of the rows.
        reached: Position,
    },
    /// Stop of the projector: this process will not reach the position.
    #[error(
        "cannot reach position {wanted}: the rows are at {reached}, and the projector has stopped: {reason}"
    )]
    Stopped {
        /// Requested position.
        wanted: Position,
        /// Position of the rows.
        reached: Position,
        /// Reason of the stop.
        reason: Arc<str>,
    },
}

impl AppliedPosition {
    /// Whether the rows include the position; an error if they never will.
    pub fn reaches(&self, wanted: Position) -> Result<bool, PositionWaitError> {
        match &self.stopped {
            _ if self.position >= wanted => Ok(true),
            None => Ok(false),
            Some(reason) => {
                Err(PositionWaitError::Stopped { wanted, reached: self.position, reason: Arc::clone(reason) })
            }
        }
    }
}

/// Publishes the progress of the rows.
#[derive(Clone, Debug)]
pub struct PositionWatch(Arc<WatchShared>);

#[derive(Debug)]
struct WatchShared {
    tasks: watch::Sender<AppliedPosition>,
    /// Position of the last change of `tasks`, for readers that need not wait.
    position: AtomicU64,
    /// Whether a reader started to wait after the projector's last pause.
    wanted: Mutex<bool>,
    hurry: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is replaced as a whole, so a panic elsewhere cannot have left a partial value.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PositionWatch {
    /// Creates a watch of rows at a position.
    pub fn new(applied: AppliedPosition) -> PositionWatch {
        PositionWatch(Arc::new(WatchShared {
            position: AtomicU64::new(applied.position.get()),
            tasks: watch::Sender::new(applied),
            wanted: Mutex::new(false),
            hurry: Condvar::new(),
        }))
    }

    /// Returns the progress of the rows.
    pub fn now(&self) -> AppliedPosition {
        self.0.tasks.borrow().clone()
    }

    /// Returns the position up to which every event is in the rows. One load: most readers need not wait.
    pub fn position(&self) -> Position {
        Position::new(self.0.position.load(Ordering::Acquire))
    }

    /// Shortens the projector's pause: a reader waits.
    fn hurry(&self) {
        *lock(&self.0.wanted) = true;
        self.0.hurry.notify_all();
    }

    /// Waits on the projector's thread until `end`, or, once a reader waits, until `soon`.
    pub fn pause(&self, soon: Instant, end: Instant) {
        let mut wanted = lock(&self.0.wanted);
        loop {
            let until = if *wanted { soon } else { end };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *wanted = false;
                return;
            }
            (wanted, _) = self.0.hurry.wait_timeout(wanted, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits in a task until the position is in the rows. Callers must add a timeout.
    pub async fn reached(&self, wanted: Position) -> Result<AppliedPosition, PositionWaitError> {
        let mut tasks = self.0.tasks.subscribe();
        loop {
            let now = tasks.borrow_and_update().clone();
            if now.reaches(wanted)? {
                return Ok(now);
            }
            self.hurry();
            // The sender lives as long as this watch does.
            if tasks.changed().await.is_err() {
                return Err(PositionWaitError::Timeout { wanted, reached: now.position });
            }
        }
    }

    pub(crate) fn publish(&self, applied: AppliedPosition) {
        self.0.tasks.send_modify(|now| {
            self.0.position.store(applied.position.get(), Ordering::Release);
            *now = applied;
        });
    }

    /// Publishes that the projector has stopped; the first reason stays.
    pub(crate) fn stop(&self, reason: &str) {
        let now = self.now();
        if now.stopped.is_none() {
            self.publish(AppliedPosition { stopped: Some(reason.into()), ..now });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_waits_ends_the_pause_and_gets_the_position() {
        const LONG: Duration = Duration::from_mins(5);
        let watch = PositionWatch::new(AppliedPosition::default());
        let reached = AppliedPosition { position: Position::new(3), ..AppliedPosition::default() };
        let reader = watch.clone();
        let waiting = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(reader.reached(Position::new(3)))
        });
        let start = Instant::now();
        watch.pause(start, start + LONG);
        assert!(start.elapsed() < LONG, "the pause ended by its timeout");
        watch.publish(AppliedPosition { position: Position::new(2), ..AppliedPosition::default() });
        watch.publish(reached.clone());
        assert_eq!(waiting.join().expect("the thread ends"), Ok(reached));
    }
}
