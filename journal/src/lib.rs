//! A fleet's journal: the one place where what has happened is kept.
//!
//! In reading order: the chain and the rule that says which records count, what every journal does, then the
//! journals (in memory, in segment files, on Kafka), how the mirror of one on Kafka is known, the files of snapshots,
//! what stands beside a journal and proves how far it has come ([`witness`]), the check that works offline, and the
//! suite that every journal passes.

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

pub use aside::{Wanted, set_aside};
pub use chain::{Broken, Chain, Cursor, Judgement, Signature, SkipReason, Skipped, genesis, judge};
pub use journal::{AppendError, CloseError, Delivery, Journal, ReadError, Records, Sink, Source};
pub use mirror::is_mirror;
pub use witness::{Loss, Witness};
