//! Moments: past states, and the rows that readers see of them.
//!
//! A moment is the state after a record ([`find`] returns the record). It is folded from the nearest state
//! before it ([`fold`]), and a few are kept ([`cache`]). Its rows are built from its state when they are read,
//! by the functions that build the stored rows, and are read as those are ([`crate::query`]). Invariants:
//! nothing of a moment is stored on disk; a moment never changes.

mod cache;
mod copy;
mod diff;
mod find;
mod fold;
mod memory;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use chancery_events::id::{OperationId, Position};
use chancery_events::lineage::NamedPosition;
use chancery_events::name::ClusterName;
use chancery_events::time::Time;
use chancery_journal::{ChainCursor, ReadError};
use chancery_machine::operation::ChosenNode;
use sled::IVec;

pub use cache::{MomentCache, MomentLimits};
pub use copy::MomentCopy;
pub use diff::{ChangeWord, DiffPage, EntityChange, FieldChange, diff, row_change};
pub use find::find;
pub use fold::MomentPriority;

use crate::counts::{CountSource, RowCounts};
use crate::fold::FoldedState;
use crate::kind::{RowKey, RowKind, with_row};
use crate::page::{JsonPage, JsonRow, ListQuery, QueryError};
use crate::query::RowTree as _;
use crate::store::encode;
use memory::ReservedMemory;
use rows::KindKeys;

/// Moment as a client names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamedMoment {
    /// State after the record that contains the position.
    Position(NamedPosition),
    /// State after the last record that is not later.
    Time(Time),
}

/// Text that names no moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid moment: must be a position as in 120 or 120.1f3a5c7e9b2d4f60, or a time as in 2026-11-21T09:00:00Z"
)]
pub struct InvalidMoment;

impl std::str::FromStr for NamedMoment {
    type Err = InvalidMoment;
    fn from_str(text: &str) -> Result<NamedMoment, InvalidMoment> {
        let position = text.parse().map(NamedMoment::Position);
        position.or_else(|_| text.parse().map(NamedMoment::Time)).map_err(|_| InvalidMoment)
    }
}

/// Record that ends at a position, and its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MomentEnd {
    /// Last position of the record.
    pub position: Position,
    /// Time of the record.
    pub time: Time,
}

impl From<ChainCursor> for MomentEnd {
    fn from(at: ChainCursor) -> MomentEnd {
        MomentEnd { position: at.position, time: at.time }
    }
}

impl std::fmt::Display for MomentEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "position {} at {}", self.position, self.time)
    }
}

/// Reason why a moment cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MomentError {
    /// Moment of an empty journal: wait for the first record.
    #[error("cannot read a past state: the journal is empty")]
    Empty,
    /// Moment before the first record or after the last one: name another moment.
    #[error(
        "cannot read the state {} record: the journal reaches from {first} to {last}",
        if *is_before { "before the first" } else { "after the last" }
    )]
    OutOfRange {
        /// Whether the moment is before the first record.
        is_before: bool,
        /// First record.
        first: MomentEnd,
        /// Last record.
        last: MomentEnd,
    },
    /// Records that are missing or damaged, or that this build cannot fold: name a later moment.
    #[error("cannot read the past state at position {position}: {reason}")]
    Unreadable {
        /// Position of the moment.
        position: Position,
        /// Problem of the records.
        reason: String,
        /// First later moment that can be read, if one is known.
        first: Option<MomentEnd>,
    },
    /// State that is larger than the memory for moments: configure more memory.
    #[error("cannot read the past state at position {position}: it needs more than {limit} bytes of memory")]
    TooLarge {
        /// Position of the moment.
        position: Position,
        /// Memory for moments.
        limit: u64,
    },
    /// Memory that is used by moments being read: try again later.
    #[error("cannot read a past state: the memory for past states is in use")]
    MemoryInUse,
    /// Fold that was stopped, because no client waits for it.
    #[error("cannot read a past state: the request was cancelled")]
    Cancelled,
    /// Journal that cannot be read now: try again.
    #[error(transparent)]
    Read(#[from] ReadError),
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// State at a moment, and the rows that follow from it.
#[derive(Debug)]
pub struct FleetMoment {
    state: FoldedState,
    /// Counts in rows; empty until a row that has some is read.
    counts: OnceLock<RowCounts>,
    /// Counts of nodes; empty until the row of a cluster is read.
    nodes: OnceLock<RowCounts>,
    /// Keys of each kind; empty until a list of the kind is read.
    keys: BTreeMap<RowKind, KindKeys>,
    reserved: ReservedMemory,
}

impl FleetMoment {
    fn new(state: FoldedState, reserved: ReservedMemory) -> FleetMoment {
        let keys = RowKind::ALL.iter().map(|kind| (*kind, KindKeys::default())).collect();
        FleetMoment { state, counts: OnceLock::new(), nodes: OnceLock::new(), keys, reserved }
    }

    /// Returns the record of the moment.
    pub fn at(&self) -> ChainCursor {
        self.state.at
    }

    /// Returns the row of a key, as JSON.
    pub fn get_json(&self, key: &RowKey) -> Result<Option<JsonRow>, QueryError> {
        Ok(self.json_row(key)?.0)
    }

    /// Returns a page of a list, as JSON. Its token is valid only for this moment.
    pub fn list_json(&self, kind: RowKind, query: &ListQuery) -> Result<JsonPage, QueryError> {
        with_row!(kind, R => self.json_page::<R>(query))
    }

    /// Explains the node that an operation has reserved. Computed from the state, and recorded nowhere.
    pub fn chosen_node(&self, operation: OperationId) -> Option<ChosenNode> {
        ChosenNode::of(&self.state.fleet, operation)
    }

    /// Returns the length of the encoded state from which its memory was estimated, in bytes.
    fn encoded(&self) -> u64 {
        memory::encoded_of(self.reserved.bytes)
    }

    /// Returns a row as the store has it.
    fn stored(&self, key: &RowKey) -> Option<IVec> {
        let fleet = &self.state.fleet;
        with_row!(key.kind(), R => {
            <R as crate::kind::ReadModelRow>::of_key(fleet, self, key).map(|row| encode(&row).into())
        })
    }
}

impl CountSource for FleetMoment {
    fn counts(&self) -> &RowCounts {
        self.counts.get_or_init(|| RowCounts::of(&self.state.fleet))
    }

    /// Reachability needs the row of a cluster, but no counts of replicas.
    fn nodes(&self, cluster: &ClusterName) -> u64 {
        self.nodes.get_or_init(|| RowCounts::of_nodes(&self.state.fleet)).nodes_of(cluster)
    }
}
