//! Journal of a fleet: the only authoritative record of its events.
//!
//! In reading order: the chain and the validity rule, the interface of every journal, the journals themselves
//! (in memory, in segment files, on Kafka). Then the detection of Kafka mirrors, snapshot files, the
//! [`witness`]es that prove how far a journal reached, the offline check, and the conformance suite.

mod aside;
pub mod chain;
mod journal;

#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;
mod mirror;
pub mod private;
pub mod segments;
pub mod snapshots;
pub mod witness;

pub mod conformance;

pub use aside::{ExpectedType, set_aside};
pub use chain::{
    ChainCursor, ChainError, ChainReader, SkipReason, SkippedRecord, WriterIdentity, genesis, judge,
};
pub use journal::{
    AppendError, CloseError, DeliverySink, Journal, JournalDelivery, JournalReader, ReadError, RecordIter,
};
pub use mirror::is_mirror;
pub use witness::{JournalLoss, JournalWitness};
