//! Memory of moments: reserved before it is used, and released with the moment.
//!
//! The memory of a state is not measured but estimated from the length of its encoding. The benchmark W20 compares
//! the estimate with the memory that states occupy: half of it, for a fleet of 200,000 entities. Moments share entities; each is counted as if it shared none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of memory for each byte of an encoded state, with its indexes and its keys in lists.
const FACTOR: u64 = 8;
/// Memory of the smallest state.
const LEAST: u64 = 64 << 10;

/// Returns the estimated memory of a state with an encoding of this length, in bytes.
pub(super) fn memory_of(encoded: u64) -> u64 {
    encoded.saturating_mul(FACTOR).saturating_add(LEAST)
}

/// Returns the length of an encoding from the memory that [`memory_of`] estimated for it.
pub(super) const fn encoded_of(memory: u64) -> u64 {
    memory.saturating_sub(LEAST) / FACTOR
}

/// Reserved memory of one moment.
#[derive(Debug)]
pub(super) struct ReservedMemory {
    used: Arc<AtomicU64>,
    pub(super) bytes: u64,
}

impl ReservedMemory {
    pub(super) fn none(used: &Arc<AtomicU64>) -> ReservedMemory {
        ReservedMemory { used: Arc::clone(used), bytes: 0 }
    }

    /// Changes the number of reserved bytes, if at most `limit` bytes are reserved then. Returns whether it did.
    pub(super) fn resize(&mut self, bytes: u64, limit: u64) -> bool {
        // One fold at a time reserves memory; moments only release it.
        let others = self.used.load(Ordering::Acquire) - self.bytes;
        if bytes > self.bytes && others.saturating_add(bytes) > limit {
            return false;
        }
        self.used.fetch_add(bytes, Ordering::AcqRel);
        self.used.fetch_sub(self.bytes, Ordering::AcqRel);
        self.bytes = bytes;
        true
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
