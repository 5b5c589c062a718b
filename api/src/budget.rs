//! Budgets of bytes: memory that all requests of one purpose may use at one time.
//!
//! Invariant: a reservation is made before its bytes are read or produced, and lasts as long as the bytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes without reservation: every connection may use as many for a body, and as many for an answer.
pub(super) const SMALL: usize = 64 << 10;

/// Number of bytes that may be reserved at one time.
#[derive(Clone, Debug)]
pub struct ByteBudget {
    max: usize,
    free: Arc<Semaphore>,
}

/// Reserved bytes, which are released on drop.
#[derive(Debug)]
pub struct ReservedBytes(OwnedSemaphorePermit);

impl ByteBudget {
    /// Returns a budget of `max` bytes.
    pub fn new(max: usize) -> ByteBudget {
        let max = max.min(u32::MAX as usize);
        ByteBudget { max, free: Arc::new(Semaphore::new(max)) }
    }

    /// Reserves `bytes`, or the whole budget if it is smaller. Waits for them in the order of calls.
    pub async fn reserve(&self, bytes: usize) -> ReservedBytes {
        let permit = Arc::clone(&self.free).acquire_many_owned(self.count(bytes)).await;
        ReservedBytes(permit.expect("a budget is never closed"))
    }

    /// Reserves `bytes`, or the whole budget if it is smaller, if they are free now.
    pub fn try_reserve(&self, bytes: usize) -> Option<ReservedBytes> {
        Arc::clone(&self.free).try_acquire_many_owned(self.count(bytes)).ok().map(ReservedBytes)
    }

    /// Returns the number of bytes that are not reserved.
    pub fn free(&self) -> usize {
        self.free.available_permits()
    }

    fn count(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.max)).unwrap_or(u32::MAX)
    }
}

impl ReservedBytes {
    /// Returns the number of reserved bytes.
    pub fn len(&self) -> usize {
        self.0.num_permits()
    }

    /// Releases the bytes in excess of `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let excess = self.0.num_permits().saturating_sub(bytes);
        drop(self.0.split(excess));
    }
}
