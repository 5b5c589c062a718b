//! Reachability of incarnations: looked up in the row of the cluster at each read. A cluster may have a
//! hundred thousand incarnations; a session that expires or starts changes only one row.

use std::collections::BTreeMap;

use chancery_events::id::IncarnationId;
use chancery_events::name::ClusterName;

use crate::kind::{ReadModelRow, RowKey};
use crate::query::RowTree;
use crate::rows::{ClusterRow, IncarnationRow, Reachability};
use crate::store::StoreError;

/// Executor through which an entity is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReachabilitySource {
    /// Executor of this cluster.
    Cluster(ClusterName),
    /// Executor of this incarnation's cluster.
    Incarnation(IncarnationId),
}

/// Fields of a row that show reachability.
#[derive(Debug)]
pub struct ReachabilityFields<'a> {
    reachability: &'a mut Reachability,
    message: &'a mut String,
}

impl<'a> ReachabilityFields<'a> {
    /// Returns `None` if no executor is required.
    pub(crate) fn of(
        reachability: &'a mut Reachability,
        message: &'a mut String,
    ) -> Option<ReachabilityFields<'a>> {
        (*reachability == Reachability::Unknown).then_some(ReachabilityFields { reachability, message })
    }

    /// Sets the reachability found for the cluster.
    pub(crate) fn set(self, found: Reachability, cluster: &ClusterName) {
        *self.reachability = found;
        if found == Reachability::Unknown && self.message.is_empty() {
            *self.message = format!("no executor of cluster {cluster} is connected");
        }
    }
}

/// Reachability of clusters, each read once.
pub(crate) struct ReachabilityLookup<'a, T> {
    reader: &'a T,
    known: BTreeMap<ClusterName, Reachability>,
}

impl<'a, T: RowTree> ReachabilityLookup<'a, T> {
    pub(crate) fn new(reader: &'a T) -> ReachabilityLookup<'a, T> {
        ReachabilityLookup { reader, known: BTreeMap::new() }
    }

    pub(crate) fn add<R: ReadModelRow>(&mut self, row: &mut R) -> Result<(), StoreError> {
        let Some((through, reached)) = row.reached_through() else { return Ok(()) };
        let cluster = match through {
            ReachabilitySource::Cluster(cluster) => cluster,
            ReachabilitySource::Incarnation(id) => {
                let row = self.reader.bytes::<IncarnationRow>(&RowKey::Incarnation(id).stored())?;
                // Deleted since: the next batch deletes the row that names it.
                let Some(row) = row else { return Ok(()) };
                row.cluster
            }
        };
        reached.set(self.of(&cluster)?, &cluster);
        Ok(())
    }

    fn of(&mut self, cluster: &ClusterName) -> Result<Reachability, StoreError> {
        if let Some(known) = self.known.get(cluster) {
            return Ok(*known);
        }
        let row = self.reader.bytes::<ClusterRow>(&RowKey::Cluster(cluster.clone()).stored())?;
        let found = reachability(row.is_some_and(|row| row.session.is_some()));
        self.known.insert(cluster.clone(), found);
        Ok(found)
    }
}

/// Returns the reachability of a cluster with or without a session.
pub(crate) fn reachability(has_session: bool) -> Reachability {
    if has_session { Reachability::Known } else { Reachability::Unknown }
}
