//! Copies of moments, for readers that change the state.

use std::sync::Arc;

use chancery_journal::ChainCursor;
use chancery_machine::fleet::FleetState;

use super::cache::MomentCache;
use super::memory::{ReservedMemory, memory_of};
use super::{FleetMoment, MomentError};
use crate::fold::FoldedState;

/// Copy of a moment that may change. Its memory is reserved until it is dropped, with the rows of the result.
#[derive(Debug)]
pub struct MomentCopy {
    state: FoldedState,
    reserved: ReservedMemory,
}

impl MomentCache {
    /// Returns a copy of a moment whose state may grow by events of `growth` bytes. Where memory is scarce, the copy
    /// is the moment itself, which leaves the cache. Memory is reserved as in [`MomentCache::fold`]: by one
    /// caller at a time.
    pub fn copy(&self, moment: Arc<FleetMoment>, growth: u64) -> Result<MomentCopy, MomentError> {
        let (position, encoded) = (moment.at().position, moment.encoded());
        let resize = |reserved: &mut ReservedMemory, bytes| self.resize(reserved, bytes, position);
        let (state, memory) = self.start_from_moment(moment, &resize)?;
        let mut reserved = memory.reserved;
        resize(&mut reserved, memory_of(encoded.saturating_add(growth)))?;
        Ok(MomentCopy { state, reserved })
    }
}

impl MomentCopy {
    /// Returns the record of the copied moment.
    pub fn at(&self) -> ChainCursor {
        self.state.at
    }

    /// Changes the state. Returns its rows, which have the record of the copied moment.
    pub fn change<T>(self, change: impl FnOnce(FleetState) -> (FleetState, T)) -> (FleetMoment, T) {
        let MomentCopy { state: FoldedState { fleet, at, watermark }, reserved } = self;
        let (fleet, result) = change(fleet);
        (FleetMoment::new(FoldedState { fleet, at, watermark }, reserved), result)
    }
}
