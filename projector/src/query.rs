//! Readers of rows, of the present and of moments: one implementation over [`RowTree`], ordered keys with
//! stored values.
//!
//! A reader of the present waits for the projector only while a batch is applied, and reads each row from a
//! whole batch. A page reads many rows: it is read again if a batch was applied meanwhile, and after a few
//! attempts accepted as it is. Then its rows may be of neighbouring positions, none older than the page's;
//! each matches the filters. Otherwise all rows are those of the page's position. A row that exists throughout
//! is neither missing nor duplicated, because pages follow keys, not numbers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chancery_events::fact::UnschedulableReason;
use chancery_events::id::Position;
use chancery_events::name::{ClusterName, PlanName};
use chancery_events::record::RecordHash;
use sled::IVec;

use crate::build_row::waits_because;
use crate::filter::{self, AccessPath, RowFilter};
use crate::index::RowIndex;
use crate::kind::{ReadModelRow, RowKey, RowKind, with_row};
use crate::page::{
    JsonItems, JsonPage, JsonRow, LIMIT_DEFAULT, LIMIT_MAX, ListQuery, PageToken, QueryError, RowPage,
};
use crate::position_watch::{AppliedPosition, PositionWatch};
use crate::reachability::{ReachabilitySource, reachability};
use crate::rows::{ClusterRow, IncarnationRow, PlanRow, Reachability, ReplicaRow};
use crate::store::{StoreError, decode, failed};

/// Maximum number of reads of a page, if batches are applied meanwhile.
const ATTEMPTS: u32 = 4;
/// Maximum number of rows checked for one page.
const LOOKS: usize = 20_000;
/// Maximum number of entries counted of each index, to choose one.
const PROBES: usize = 200;

/// Counter that is odd while a batch is applied, and the position of the last batch.
#[derive(Debug)]
pub(crate) struct BatchCounter {
    epoch: AtomicU64,
    position: AtomicU64,
}

impl BatchCounter {
    /// Counts from rows at a position.
    pub(crate) fn at(position: Position) -> BatchCounter {
        BatchCounter { epoch: AtomicU64::new(0), position: AtomicU64::new(position.get()) }
    }

    /// Runs the function that applies a batch, after which the rows are at the position.
    pub(crate) fn batch<T, E>(
        &self,
        position: Position,
        apply: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let applied = apply();
        if applied.is_ok() {
            self.position.store(position.get(), Ordering::SeqCst);
        }
        self.epoch.fetch_add(1, Ordering::SeqCst);
        applied
    }

    fn position(&self) -> Position {
        Position::new(self.position.load(Ordering::SeqCst))
    }

    #[cfg(test)]
    pub(crate) fn batches(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst) / 2
    }
}

/// Keys and values of rows and index entries, in order, as the store has them.
pub(crate) trait RowTree: Sized {
    /// Returns the value of a key.
    fn value(&self, key: &[u8]) -> Result<Option<IVec>, StoreError>;

    /// Returns the pairs from a key on, which is one of the kind, or of its index entries. Pairs of later kinds
    /// may be missing.
    fn range(
        &self,
        kind: RowKind,
        from: Vec<u8>,
    ) -> Box<dyn Iterator<Item = Result<(IVec, IVec), StoreError>> + '_>;

    /// Runs a read with the position of the rows, again if the rows change meanwhile.
    fn steady<T>(&self, read: impl Fn(Position) -> Result<T, QueryError>) -> Result<T, QueryError>;

    /// Returns the record of the moment, to which page tokens are bound; `None` for the present.
    fn moment(&self) -> Option<RecordHash> {
        None
    }

    /// Returns why operations of a plan have no placement, as the row of the plan shows.
    fn unschedulable(&self, plan: &PlanName) -> Result<Vec<UnschedulableReason>, StoreError> {
        let row = self.bytes::<PlanRow>(&RowKey::Plan(plan.clone()).stored())?;
        Ok(row.map_or_else(Vec::new, |row| row.unschedulable))
    }

    /// Returns the row of a key, with the position at which it was read.
    fn row<R: ReadModelRow>(&self, key: &RowKey) -> Result<(Option<R>, Position), QueryError> {
        self.steady(|position| {
            let row = self.bytes::<R>(&key.stored())?;
            Ok((row.map(|row| CompletedRows::new(self).add(row)).transpose()?, position))
        })
    }

    /// Returns the row of a key as it is stored.
    fn bytes<R: ReadModelRow>(&self, key: &[u8]) -> Result<Option<R>, StoreError> {
        Ok(self.value(key)?.map(|bytes| decode(key, &bytes)).transpose()?)
    }

    /// Returns the row of a key of any kind, as JSON, with the position at which it was read.
    fn json_row(&self, key: &RowKey) -> Result<(Option<JsonRow>, Position), QueryError> {
        fn json<R: ReadModelRow>(row: &R) -> JsonRow {
            let body = serde_json::to_string(row).expect("rows can be encoded as JSON");
            JsonRow { body, version: row.version(), position: row.position() }
        }
        with_row!(key.kind(), R => {
            let (row, position) = self.row::<R>(key)?;
            Ok((row.as_ref().map(json), position))
        })
    }

    /// Returns a page of a list, as JSON.
    fn json_page<R: ReadModelRow>(&self, query: &ListQuery) -> Result<JsonPage, QueryError> {
        let max = query.max_bytes.unwrap_or(usize::MAX);
        let add = |items: &mut JsonItems, row: R| {
            if items.add(&row, max) { PageOutcome::Taken } else { PageOutcome::Full }
        };
        let (items, next, position) = self.page(query, add)?;
        Ok(JsonPage { count: items.count, start: items.end(), next, position })
    }

    /// Returns a page of a list, built by `add` row by row.
    fn page<R: ReadModelRow, T: Default>(
        &self,
        query: &ListQuery,
        add: impl Fn(&mut T, R) -> PageOutcome,
    ) -> Result<(T, Option<PageToken>, Position), QueryError> {
        let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
        if limit == 0 || limit > LIMIT_MAX {
            return Err(QueryError::Limit { kind: R::KIND, limit });
        }
        let filters = filter::read::<R>(&query.filters)?;
        let digest = query.digest(R::KIND, self.moment());
        if query.token.as_ref().is_some_and(|token| token.digest != digest) {
            return Err(QueryError::OtherToken { kind: R::KIND });
        }
        self.steady(|position| {
            let (way, after) = match &query.token {
                Some(token) => (token.way, Some(token.last.as_slice())),
                None => (self.best_way(&filters)?, None),
            };
            let mut rows = T::default();
            let Some(prefix) = self.prefix(&filters, way)? else {
                return Ok((rows, None, position));
            };
            let mut shown = CompletedRows::new(self);
            let last =
                self.scan(&filters, &prefix, after, limit, |row| Ok(add(&mut rows, shown.add(row)?)))?;
            let next = last.map(|last| PageToken { digest, way, last });
            Ok((rows, next, position))
        })
    }

    /// Returns the access path with the fewest entries: 0 is all of the kind, n is that of the n-th filter.
    fn best_way<R: ReadModelRow>(&self, filters: &[RowFilter<R>]) -> Result<u8, QueryError> {
        let ways: Vec<_> = (1..=filters.len().min(usize::from(u8::MAX)))
            .filter(|n| filters[n - 1].way.is_some())
            .map(|n| n as u8)
            .collect();
        if ways.len() < 2 {
            return Ok(ways.first().copied().unwrap_or(0));
        }
        let mut best = (usize::MAX, 0);
        for way in ways {
            let count = match self.prefix(filters, way)? {
                Some(prefix) => {
                    let entries = self.range(R::KIND, prefix.to_vec());
                    let is_within = |entry: &Result<(IVec, IVec), StoreError>| match entry {
                        Ok((key, _)) => key.starts_with(&prefix),
                        Err(_) => true,
                    };
                    entries.take_while(is_within).take(PROBES).count()
                }
                None => 0,
            };
            best = best.min((count, way));
        }
        Ok(best.1)
    }

    /// Returns the key prefix of an access path; `None` if it has no rows.
    fn prefix<R: ReadModelRow>(
        &self,
        filters: &[RowFilter<R>],
        way: u8,
    ) -> Result<Option<Cow<'_, [u8]>>, QueryError> {
        let filter = usize::from(way).checked_sub(1).and_then(|n| filters.get(n));
        Ok(match filter.and_then(|filter| filter.way.clone()) {
            None => Some(vec![R::KIND as u8].into()),
            Some(AccessPath::Rows(prefix) | AccessPath::Entries(prefix)) => Some(prefix.into()),
            Some(AccessPath::Replica(index, name)) => {
                let replica = self.bytes::<ReplicaRow>(&RowKey::Replica(name.clone()).stored())?;
                replica.map(|replica| RowIndex::of_replica(index, &replica.plan, &name).into())
            }
        })
    }

    /// Passes up to `limit` rows after `after` to `add`. Returns the key to continue after, if there may be
    /// more rows.
    fn scan<R: ReadModelRow>(
        &self,
        filters: &[RowFilter<R>],
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        mut add: impl FnMut(R) -> Result<PageOutcome, StoreError>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let is_index = prefix[0] >= RowIndex::ReplicaPlan as u8;
        let mut from = prefix.to_vec();
        if let Some(after) = after {
            from.extend_from_slice(after);
            from.push(0); // the smallest key after it
        }
        let mut count = 0;
        let mut last: Option<IVec> = None;
        let rest = |last: Option<IVec>| last.map(|last| last[prefix.len()..].to_vec());
        for (looks, entry) in self.range(R::KIND, from).enumerate() {
            let (key, value) = entry?;
            if !key.starts_with(prefix) {
                return Ok(None);
            }
            if count == limit || looks == LOOKS {
                return Ok(rest(last));
            }
            let row = if is_index {
                self.bytes::<R>(&row_key::<R>(&key, prefix.len()))?
            } else {
                Some(decode(&key, &value)?)
            };
            // After the entry was read, its row may have been deleted, or have changed so that it has no such
            // entry.
            if let Some(row) = row.filter(|row| filters.iter().all(|filter| (filter.holds)(row))) {
                if add(row)? == PageOutcome::Full {
                    return Ok(rest(last));
                }
                count += 1;
            }
            last = Some(key);
        }
        Ok(None)
    }
}

/// Reads rows: cheap to clone, for any thread.
#[derive(Clone, Debug)]
pub struct RowReader {
    tree: sled::Tree,
    watch: PositionWatch,
    epoch: Arc<BatchCounter>,
}

impl RowReader {
    pub(crate) fn new(tree: sled::Tree, watch: PositionWatch, epoch: Arc<BatchCounter>) -> RowReader {
        RowReader { tree, watch, epoch }
    }

    /// Returns the progress of the rows.
    pub fn applied(&self) -> AppliedPosition {
        self.watch.now()
    }

    /// Returns the watch on the rows' progress.
    pub fn watch(&self) -> &PositionWatch {
        &self.watch
    }

    /// Returns the row of a key.
    pub fn get<R: ReadModelRow>(&self, key: &R::Key) -> Result<Option<R>, QueryError> {
        Ok(self.row(&R::row_key(key))?.0)
    }

    /// Returns the row of a key of any kind, as JSON.
    pub fn get_json(&self, key: &RowKey) -> Result<Option<JsonRow>, QueryError> {
        Ok(self.json_row(key)?.0)
    }

    /// Returns the row of a key as [`RowReader::get_json`] does, with the position at which it was read.
    pub fn get_json_at(&self, key: &RowKey) -> Result<(Option<JsonRow>, Position), QueryError> {
        self.json_row(key)
    }

    /// Returns a page of a list of any kind, as JSON.
    pub fn list_json(&self, kind: RowKind, query: &ListQuery) -> Result<JsonPage, QueryError> {
        with_row!(kind, R => self.json_page::<R>(query))
    }

    /// Returns a page of a list.
    pub fn list<R: ReadModelRow>(&self, query: &ListQuery) -> Result<RowPage<R>, QueryError> {
        let add = |items: &mut Vec<R>, row: R| {
            items.push(row);
            PageOutcome::Taken
        };
        let (items, next, position) = self.page(query, add)?;
        Ok(RowPage { items, next, position })
    }
}

impl RowTree for RowReader {
    fn value(&self, key: &[u8]) -> Result<Option<IVec>, StoreError> {
        self.tree.get(key).map_err(failed("read"))
    }

    fn range(
        &self,
        _kind: RowKind,
        from: Vec<u8>,
    ) -> Box<dyn Iterator<Item = Result<(IVec, IVec), StoreError>> + '_> {
        Box::new(self.tree.range(from..).map(|entry| entry.map_err(failed("read"))))
    }

    /// Repeats a read if a batch was applied meanwhile.
    fn steady<T>(&self, read: impl Fn(Position) -> Result<T, QueryError>) -> Result<T, QueryError> {
        for _ in 1..ATTEMPTS {
            let before = self.epoch.epoch.load(Ordering::SeqCst);
            let result = read(self.epoch.position())?;
            if before.is_multiple_of(2) && self.epoch.epoch.load(Ordering::SeqCst) == before {
                return Ok(result);
            }
        }
        read(self.epoch.position())
    }
}

/// Result of adding a row to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageOutcome {
    /// Row on the page.
    Taken,
    /// Row that is not added: the page is full.
    Full,
}

/// Returns the row key of an index entry: an id of the last 16 bytes, or a name after the prefix.
fn row_key<R: ReadModelRow>(entry: &[u8], prefix: usize) -> Vec<u8> {
    let is_id = matches!(R::KIND, RowKind::Incarnations | RowKind::Operations);
    let from = if is_id { entry.len().saturating_sub(16) } else { prefix };
    let mut key = vec![R::KIND as u8];
    key.extend_from_slice(&entry[from..]);
    key
}

/// Rows as readers see them: stored rows, with the fields that readers add. Each row that has their values is read once.
pub(crate) struct CompletedRows<'a, T> {
    tree: &'a T,
    /// Reasons for missing placements, from the rows of plans.
    reasons: BTreeMap<PlanName, String>,
    /// Reachability of clusters.
    reachable: BTreeMap<ClusterName, Reachability>,
}

impl<'a, T: RowTree> CompletedRows<'a, T> {
    pub(crate) fn new(tree: &'a T) -> CompletedRows<'a, T> {
        CompletedRows { tree, reasons: BTreeMap::new(), reachable: BTreeMap::new() }
    }

    /// Adds the fields to a stored row.
    fn add<R: ReadModelRow>(&mut self, mut row: R) -> Result<R, StoreError> {
        self.add_reasons(&mut row)?;
        self.add_reachability(&mut row)?;
        Ok(row)
    }

    /// Returns the row of a stored pair.
    pub(crate) fn show<R: ReadModelRow>(&mut self, key: &[u8], value: &[u8]) -> Result<R, StoreError> {
        self.add(decode(key, value)?)
    }

    fn add_reasons<R: ReadModelRow>(&mut self, row: &mut R) -> Result<(), StoreError> {
        let Some((plan, message)) = row.waits_with() else { return Ok(()) };
        if let Some(known) = self.reasons.get(plan) {
            message.clone_from(known);
            return Ok(());
        }
        let text = waits_because(&self.tree.unschedulable(plan)?);
        message.clone_from(&text);
        self.reasons.insert(plan.clone(), text);
        Ok(())
    }

    fn add_reachability<R: ReadModelRow>(&mut self, row: &mut R) -> Result<(), StoreError> {
        let Some((through, reached)) = row.reached_through() else { return Ok(()) };
        let cluster = match through {
            ReachabilitySource::Cluster(cluster) => cluster,
            ReachabilitySource::Incarnation(id) => {
                let row = self.tree.bytes::<IncarnationRow>(&RowKey::Incarnation(id).stored())?;
                // Deleted since: the next batch deletes the row that names it.
                let Some(row) = row else { return Ok(()) };
                row.cluster
            }
        };
        reached.set(self.reachability(&cluster)?, &cluster);
        Ok(())
    }

    fn reachability(&mut self, cluster: &ClusterName) -> Result<Reachability, StoreError> {
        if let Some(known) = self.reachable.get(cluster) {
            return Ok(*known);
        }
        let row = self.tree.bytes::<ClusterRow>(&RowKey::Cluster(cluster.clone()).stored())?;
        let found = reachability(row.is_some_and(|row| row.session.is_some()));
        self.reachable.insert(cluster.clone(), found);
        Ok(found)
    }
}
