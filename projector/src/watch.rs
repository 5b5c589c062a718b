//! How far the rows have come, for whoever waits for it: threads and tasks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chancery_events::id::Position;
use chancery_events::time::Time;
use tokio::sync::watch;

/// How far the rows have come.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Every event up to this position is in the rows.
    pub position: Position,
    /// The time of its record.
    pub time: Time,
    /// Why the projector goes no further, if it has stopped.
    pub stopped: Option<Arc<str>>,
}

/// Why a position was not reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReached {
    /// Not in time: ask again.
    #[error("wait for position {wanted}: the rows stand at {reached}")]
    Timeout {
        /// The position wanted.
        wanted: Position,
        /// Where the rows stand.
        reached: Position,
    },
    /// It will not be reached by this process.
    #[error(
        "wait for position {wanted}: the rows stand at {reached}, and the projector has stopped: {reason}"
    )]
    Stopped {
        /// The position wanted.
        wanted: Position,
        /// Where the rows stand.
        reached: Position,
        /// Why.
        reason: Arc<str>,
    },
}

impl Applied {
    /// Whether that is far enough; an error if it never will be.
    pub fn reaches(&self, wanted: Position) -> Result<bool, NotReached> {
        match &self.stopped {
            _ if self.position >= wanted => Ok(true),
            None => Ok(false),
            Some(reason) => {
                Err(NotReached::Stopped { wanted, reached: self.position, reason: Arc::clone(reason) })
            }
        }
    }
}

/// Tells and hears how far the rows have come.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    now: Mutex<Applied>,
    /// That of `now`, for readers that need not wait.
    position: AtomicU64,
    moved: Condvar,
    tasks: watch::Sender<Applied>,
    /// Whether a reader waits that did not when the projector paused last.
    wanted: Mutex<bool>,
    hurry: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is replaced whole, so a panic elsewhere cannot have left half of one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    pub(crate) fn new(applied: Applied) -> Watch {
        let (tasks, _) = watch::channel(applied.clone());
        Watch(Arc::new(Shared {
            position: AtomicU64::new(applied.position.get()),
            now: Mutex::new(applied),
            moved: Condvar::new(),
            tasks,
            wanted: Mutex::new(false),
            hurry: Condvar::new(),
        }))
    }

    /// How far the rows have come.
    pub fn now(&self) -> Applied {
        lock(&self.0.now).clone()
    }

    /// Every event up to this position is in the rows. One load: most readers need not wait.
    pub fn position(&self) -> Position {
        Position::new(self.0.position.load(Ordering::Acquire))
    }

    /// Cuts the projector's pause short: a reader waits.
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

    /// For tasks: sees every change, the last one at least.
    pub fn subscribe(&self) -> watch::Receiver<Applied> {
        self.0.tasks.subscribe()
    }

    /// Waits on this thread until the position is in the rows.
    pub fn wait(&self, wanted: Position, timeout: Duration) -> Result<Applied, NotReached> {
        let until = Instant::now() + timeout;
        let mut now = lock(&self.0.now);
        while !now.reaches(wanted)? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NotReached::Timeout { wanted, reached: now.position });
            }
            (now, _) = self.0.moved.wait_timeout(now, left).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(now.clone())
    }

    /// Waits in a task until the position is in the rows. Put a timeout around it.
    pub async fn reached(&self, wanted: Position) -> Result<Applied, NotReached> {
        let mut tasks = self.subscribe();
        loop {
            let now = tasks.borrow_and_update().clone();
            if now.reaches(wanted)? {
                return Ok(now);
            }
            self.hurry();
            // The sender lives as long as this watch does.
            if tasks.changed().await.is_err() {
                return Err(NotReached::Timeout { wanted, reached: now.position });
            }
        }
    }

    pub(crate) fn tell(&self, applied: Applied) {
        *lock(&self.0.now) = applied.clone();
        self.0.position.store(applied.position.get(), Ordering::Release);
        self.0.moved.notify_all();
        self.0.tasks.send_replace(applied);
    }

    /// Says that it goes no further; the first reason stays.
    pub(crate) fn stop(&self, reason: &str) {
        let now = self.now();
        if now.stopped.is_none() {
            self.tell(Applied { stopped: Some(reason.into()), ..now });
        }
    }
}
