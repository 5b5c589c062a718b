//! Folds the journal into read models. Without the feature `store`, only the types of rows exist, for
//! clients.
//!
//! In reading order: rows and their keys, and how they follow from the state ([`build_row`]). Then how records
//! are folded and which rows change, the store, and the projector. Then reads: their required freshness,
//! lists and single rows ([`query`]), histories, past states ([`moment`]), the offline fold of a whole journal
//! ([`replay`]), and the comparison of stored rows with those of this build ([`upgrade`]).

#[cfg(feature = "store")]
pub mod build_row;
#[cfg(feature = "store")]
mod bulk_load;
#[cfg(feature = "store")]
pub mod causes;
#[cfg(feature = "store")]
mod changes;
#[cfg(feature = "store")]
mod counts;
#[cfg(feature = "store")]
pub mod figures;
#[cfg(feature = "store")]
mod filter;
#[cfg(feature = "store")]
pub mod fold;
#[cfg(feature = "store")]
pub mod history;
#[cfg(feature = "store")]
mod index;
#[cfg(feature = "store")]
pub mod kind;
#[cfg(feature = "store")]
pub mod last_verdict;
#[cfg(feature = "store")]
mod layout;
#[cfg(feature = "store")]
pub mod moment;
#[cfg(feature = "store")]
pub mod page;
#[cfg(feature = "store")]
mod past;
#[cfg(feature = "store")]
pub mod position_watch;
#[cfg(feature = "store")]
pub mod projector;
#[cfg(feature = "store")]
pub mod query;
#[cfg(feature = "store")]
mod reachability;
#[cfg(feature = "store")]
pub mod replay;
pub mod rows;
#[cfg(feature = "store")]
pub mod snapshot;
#[cfg(feature = "store")]
mod store;
#[cfg(all(test, feature = "store"))]
mod tests;
#[cfg(feature = "store")]
pub mod upgrade;
#[cfg(feature = "store")]
pub mod why;

#[cfg(feature = "store")]
pub use self::{
    counts::{CountSource, RowCounts},
    figures::{FleetFigures, PlanFigures},
    filter::InvalidFilter,
    fold::{FoldError, FoldOutcome, FoldedState, JournalFold, StateView, TouchedEntities},
    history::{HistoryError, HistoryPage, HistoryReader},
    kind::{InvalidKey, KeyedRow, ReadModelRow, RowKey, RowKind},
    last_verdict::{LastVerdict, ReadConsistency},
    moment::{FleetMoment, MomentCache, MomentEnd, MomentError, MomentLimits, NamedMoment},
    page::{JsonPage, JsonRow, ListQuery, PageToken, QueryError, RowPage},
    past::OperationSearch,
    position_watch::{AppliedPosition, PositionWaitError, PositionWatch},
    projector::{ProjectError, Projector},
    query::RowReader,
    store::{FoundRows, StoreError, StoreTuning},
};
