//! Budgets of bytes: what all requests of one purpose may have in memory at one time.
//!
//! What must stay true: a reservation is made before the bytes it is for are read or made, and lasts as long as they do.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes for which nothing is reserved: every connection may have as many of a body, and of an answer.
pub(super) const SMALL: usize = 64 << 10;

/// Bytes that may be reserved at one time.
#[derive(Clone, Debug)]
pub struct ByteBudget {
    max: usize,
    free: Arc<Semaphore>,
}

/// Reserved bytes. They are free when this is dropped.
#[derive(Debug)]
pub struct ReservedBytes(OwnedSemaphorePermit);

impl ByteBudget {
    /// Budget of `max` bytes.
    pub fn new(max: usize) -> ByteBudget {
        let max = max.min(u32::MAX as usize);
        ByteBudget { max, free: Arc::new(Semaphore::new(max)) }
    }

    /// Reserves so many bytes, or all that there are: waits for them in the order of asking.
    pub async fn reserve(&self, bytes: usize) -> ReservedBytes {
        let permit = Arc::clone(&self.free).acquire_many_owned(self.count(bytes)).await;
        ReservedBytes(permit.expect("a budget is never closed"))
    }

    /// Reserves so many bytes, or all that there are, if they are free now.
    pub fn try_reserve(&self, bytes: usize) -> Option<ReservedBytes> {
        Arc::clone(&self.free).try_acquire_many_owned(self.count(bytes)).ok().map(ReservedBytes)
    }

    /// Bytes that are not reserved.
    pub fn free(&self) -> usize {
        self.free.available_permits()
    }

    fn count(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.max)).unwrap_or(u32::MAX)
    }
}

impl ReservedBytes {
    /// Reserved bytes.
    pub fn len(&self) -> usize {
        self.0.num_permits()
    }

    /// Frees what is more than `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let excess = self.0.num_permits().saturating_sub(bytes);
        drop(self.0.split(excess));
    }
}
