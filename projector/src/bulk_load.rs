//! Fills an empty store with all rows of a state.
//!
//! Rows that no reader sees yet need no atomic batches, only an order that suits the store: sorted, a few
//! leaves at a time. So each row is written several times as fast as a later one. The cursor is written last:
//! a store without a cursor is not used.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use crate::build_row::{RowVisitor, every};
use crate::changes::RowWrites;
use crate::counts::CountSource;
use crate::fold::FoldedState;
use crate::index::IndexEntries;
use crate::kind::ReadModelRow;
use crate::store::{RowStore, StoreError, encode};

/// Number of rows and index entries sorted together. Rows of a kind come in order, their entries do not.
const SORTED: usize = 40_000;
/// Number of sorted pairs written at a time: by measurement, more or fewer are slower.
const WRITTEN: usize = 1_000;

/// Row or index entry, as it is stored.
type StoreEntry = (Vec<u8>, Vec<u8>);

/// Writes all rows of the state, while another thread builds them. Returns the number of rows and index
/// entries.
pub(crate) fn bulk_load(
    store: &RowStore,
    state: &FoldedState,
    counts: &dyn CountSource,
) -> Result<u64, StoreError> {
    tracing::info!(position = %state.at.position, "building rows from the state");
    thread::scope(|scope| {
        let (filled, pairs) = sync_channel::<Vec<StoreEntry>>(1);
        let writer = scope.spawn(move || -> Result<u64, StoreError> {
            let mut count = 0;
            for mut pairs in pairs {
                count += pairs.len() as u64;
                pairs.sort_unstable();
                let mut pairs = pairs.into_iter().map(|(key, value)| (key, Some(value))).peekable();
                while pairs.peek().is_some() {
                    store.apply(RowWrites(pairs.by_ref().take(WRITTEN).collect()), None)?.wait()?;
                }
            }
            Ok(count)
        });
        let mut filling = BulkLoader { filled, pairs: Vec::with_capacity(SORTED) };
        let is_whole = every(&state.fleet, counts, &mut filling).and_then(|()| filling.pass_on()).is_ok();
        drop(filling);
        let count = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        debug_assert!(is_whole, "a writer that ends early returns an error");
        store.complete(&state.at)?;
        Ok(count)
    })
}

struct BulkLoader {
    filled: SyncSender<Vec<StoreEntry>>,
    pairs: Vec<StoreEntry>,
}

/// Error for a writer that has ended; the writer returns the reason.
struct WriterEnded;

impl BulkLoader {
    fn pass_on(&mut self) -> Result<(), WriterEnded> {
        let pairs = std::mem::replace(&mut self.pairs, Vec::with_capacity(SORTED));
        self.filled.send(pairs).map_err(|_| WriterEnded)
    }
}

impl RowVisitor for BulkLoader {
    type Error = WriterEnded;

    fn row<R: ReadModelRow>(&mut self, row: &R) -> Result<(), WriterEnded> {
        let mut entries = IndexEntries::default();
        row.index(&mut entries);
        self.pairs.push((row.key().stored(), encode(row)));
        self.pairs.extend(entries.0.into_iter().map(|entry| (entry, Vec::new())));
        if self.pairs.len() < SORTED { Ok(()) } else { self.pass_on() }
    }
}
