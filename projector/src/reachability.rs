//! Reachability of incarnations: looked up in the row of the cluster at each read. A cluster may have a
//! hundred thousand incarnations; a session that expires or starts changes only one row.

use chancery_events::id::IncarnationId;
use chancery_events::name::ClusterName;

use crate::rows::Reachability;

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

/// Returns the reachability of a cluster with or without a session.
pub(crate) fn reachability(has_session: bool) -> Reachability {
    if has_session { Reachability::Known } else { Reachability::Unknown }
}
