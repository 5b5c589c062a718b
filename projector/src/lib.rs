//! Folds the journal into read models.
//!
//! In reading order: the rows that readers see and their keys, how rows follow from the state ([`row_of`]), how
//! records are folded and which rows they change, the store that holds rows, the projector that drives all of it,
//! and who reads: lists and single rows ([`query`]), and histories.

mod changes;
mod counts;
mod fill;
mod filter;
mod filters;
pub mod fold;
pub mod history;
mod index;
pub mod kind;
pub mod page;
mod past;
pub mod projector;
pub mod query;
mod reach;
pub mod row_of;
pub mod rows;
pub mod snapshot;
mod store;
#[cfg(test)]
mod tests;
pub mod watch;

pub use counts::Counts;
pub use filter::BadFilter;
pub use fold::{Fold, FoldError, Folded, Folding, Touched, View};
pub use history::{History, HistoryError, HistoryPage};
pub use kind::{BadKey, Row, RowKey, RowKind};
pub use page::{JsonPage, JsonRow, Page, PageToken, Query, QueryError};
pub use past::OperationSearch;
pub use projector::{ProjectError, Projector};
pub use query::Reader;
pub use store::{FoundRows, StoreError, Tuning};
pub use watch::{Applied, NotReached, Watch};
