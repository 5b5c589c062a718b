//! Whether what runs is heard of: looked up in the row of its cluster when it is read. A cluster may hold a hundred
//! thousand incarnations, and a session that is lost or opened is one row.

use std::collections::BTreeMap;

use chancery_events::id::IncarnationId;
use chancery_events::name::ClusterName;

use crate::kind::{Row, RowKey};
use crate::query::Reader;
use crate::rows::{ClusterRow, IncarnationRow, Reachability};
use crate::store::StoreError;

/// Through what something is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Through {
    /// The executor of this cluster.
    Cluster(ClusterName),
    /// That of this incarnation's cluster.
    Incarnation(IncarnationId),
}

/// The parts of a row that say so.
#[derive(Debug)]
pub struct Reached<'a> {
    reachability: &'a mut Reachability,
    message: &'a mut String,
}

impl<'a> Reached<'a> {
    /// `None` if nobody need be heard of.
    pub(crate) fn of(reachability: &'a mut Reachability, message: &'a mut String) -> Option<Reached<'a>> {
        (*reachability == Reachability::Unknown).then_some(Reached { reachability, message })
    }

    /// Says what was found out of the cluster.
    pub(crate) fn say(self, found: Reachability, cluster: &ClusterName) {
        *self.reachability = found;
        if found == Reachability::Unknown && self.message.is_empty() {
            *self.message = format!("no executor of cluster {cluster} is heard of");
        }
    }
}

/// What clusters say, each read once.
pub(crate) struct Reach<'a> {
    reader: &'a Reader,
    known: BTreeMap<ClusterName, Reachability>,
}

impl<'a> Reach<'a> {
    pub(crate) fn new(reader: &'a Reader) -> Reach<'a> {
        Reach { reader, known: BTreeMap::new() }
    }

    pub(crate) fn add<R: Row>(&mut self, row: &mut R) -> Result<(), StoreError> {
        let Some((through, reached)) = row.reached_through() else { return Ok(()) };
        let cluster = match through {
            Through::Cluster(cluster) => cluster,
            Through::Incarnation(id) => {
                let row = self.reader.bytes::<IncarnationRow>(&RowKey::Incarnation(id).stored())?;
                // Gone since: the row that names it goes with the next batch.
                let Some(row) = row else { return Ok(()) };
                row.cluster
            }
        };
        reached.say(self.of(&cluster)?, &cluster);
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

/// What follows from whether the cluster has a session.
pub(crate) fn reachability(has_session: bool) -> Reachability {
    if has_session { Reachability::Known } else { Reachability::Unknown }
}
