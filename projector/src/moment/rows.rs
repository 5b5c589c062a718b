//! Keys and values of a moment, as the store would have them.

use std::sync::OnceLock;

use chancery_events::fact::UnschedulableReason;
use chancery_events::id::Position;
use chancery_events::name::PlanName;
use chancery_events::record::RecordHash;
use sled::IVec;

use super::FleetMoment;
use crate::build_row::unschedulable;
use crate::index::{IndexEntries, RowIndex};
use crate::kind::{ReadModelRow, RowKey, RowKind, each_key, with_row};
use crate::page::QueryError;
use crate::query::RowTree;
use crate::store::StoreError;

/// Keys of the rows and index entries of a kind, each sorted; empty until they are read.
#[derive(Default, Debug)]
pub(super) struct KindKeys {
    rows: OnceLock<SortedKeys>,
    entries: OnceLock<SortedKeys>,
}

/// Sorted keys, without an allocation for each.
#[derive(Default, Debug)]
struct SortedKeys {
    bytes: Vec<u8>,
    /// Start and end of each key.
    spans: Vec<(u32, u32)>,
}

impl SortedKeys {
    fn push(&mut self, key: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        // A moment with 4 GiB of keys does not fit the memory for moments.
        let offset = |at: usize| u32::try_from(at).expect("fewer than 4 GiB of keys");
        self.spans.push((offset(start), offset(self.bytes.len())));
    }

    fn sorted(mut self) -> SortedKeys {
        let SortedKeys { bytes, spans } = &mut self;
        let key = |(start, end): (u32, u32)| &bytes[start as usize..end as usize];
        let first = spans.first().map_or(&[][..], |span| key(*span));
        let shared =
            spans.iter().fold(first.len(), |shared, span| shared_prefix(&first[..shared], key(*span)));
        // The bytes after those that all keys share decide most comparisons, without a read of both keys.
        spans.sort_by_cached_key(|span| {
            let key = key(*span);
            (leading_number(&key[shared..]), key)
        });
        self
    }

    fn key(&self, (start, end): (u32, u32)) -> &[u8] {
        &self.bytes[start as usize..end as usize]
    }

    /// Returns the keys that are not before `from`.
    fn range<'a>(&'a self, from: &[u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let first = self.spans.partition_point(|span| self.key(*span) < from);
        self.spans[first..].iter().map(|span| self.key(*span))
    }
}

/// Returns the number of leading bytes that are equal.
fn shared_prefix(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Returns the first eight bytes as a number with the same order; missing bytes are zero.
fn leading_number(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    for (to, from) in first.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_be_bytes(first)
}

impl FleetMoment {
    fn row_keys(&self, kind: RowKind) -> &SortedKeys {
        self.keys[&kind].rows.get_or_init(|| {
            let mut keys = SortedKeys::default();
            each_key(&self.state.fleet, kind, &mut |key| keys.push(&key.stored()));
            keys.sorted()
        })
    }

    fn entries(&self, kind: RowKind) -> &SortedKeys {
        self.keys[&kind].entries.get_or_init(|| {
            let mut keys = SortedKeys::default();
            each_key(&self.state.fleet, kind, &mut |key| {
                with_row!(kind, R => {
                    let mut entries = IndexEntries::default();
                    if let Some(row) = R::of_key(&self.state.fleet, self, &key) {
                        row.index(&mut entries);
                    }
                    entries.0.iter().for_each(|entry| keys.push(entry));
                });
            });
            keys.sorted()
        })
    }
}

impl RowTree for FleetMoment {
    fn value(&self, key: &[u8]) -> Result<Option<IVec>, StoreError> {
        Ok(RowKey::from_stored(key).and_then(|key| self.stored(&key)))
    }

    fn range(
        &self,
        kind: RowKind,
        from: Vec<u8>,
    ) -> Box<dyn Iterator<Item = Result<(IVec, IVec), StoreError>> + '_> {
        if from.first().is_some_and(|first| *first >= RowIndex::ReplicaPlan as u8) {
            let entries = self.entries(kind).range(&from);
            return Box::new(entries.map(|entry| Ok((entry.into(), IVec::default()))));
        }
        let rows = self.row_keys(kind).range(&from);
        Box::new(rows.filter_map(|key| Some(Ok((key.into(), self.stored(&RowKey::from_stored(key)?)?)))))
    }

    fn steady<T>(&self, read: impl Fn(Position) -> Result<T, QueryError>) -> Result<T, QueryError> {
        read(self.state.at.position)
    }

    /// Without the counts that the row of the plan has.
    fn unschedulable(&self, plan: &PlanName) -> Result<Vec<UnschedulableReason>, StoreError> {
        let fleet = &self.state.fleet;
        Ok(fleet.plans().get(plan).map_or_else(Vec::new, |plan| unschedulable(fleet, plan).to_vec()))
    }

    fn moment(&self) -> Option<RecordHash> {
        Some(self.state.at.hash)
    }
}
