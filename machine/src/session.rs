//! Sessions: an executor's lease on a cluster. A cluster has at most one live session.
//!
//! | session | hello, same executor and store | hello, same store | hello, other store | lease expired, goodbye |
//! |---|---|---|---|---|
//! | never any | opened | opened | opened | – |
//! | none | opened | opened | opened if nothing may be left in the old store, else refused | – |
//! | open | same | refused | refused | closed |
//!
//! The end of a session proves nothing about incarnations: reservations stay, and the next executor receives
//! them. A missing object is gone only if the executor uses the store in which it was started. So the cluster
//! remembers its last store. No other store is accepted while the old one may contain a live object. Two ways
//! remain: an executor on the old store, or the operator's assertion that the nodes are lost.

use chancery_events::fact::{Fact, OrphanResolution, OrphanResolved, SessionClosed, SessionOpened};
use chancery_events::id::{ExecutorStoreId, ObjectId, SessionId};
use chancery_events::observation::{OrphanReported, SessionEnded, SessionRequested};

use crate::fleet::{FleetState, FoldResult};
use crate::meta::{EntityMeta, FactPosition};
use crate::state::{Cluster, ClusterStore, Session};

/// Maximum number of closed sessions kept for each cluster.
const KEPT: usize = 20;

/// Reason why a hello is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionRefused {
    /// Cluster that does not exist (yet).
    #[error("cannot open session: cluster {0} does not exist")]
    NoCluster(String),
    /// Cluster of another runtime.
    #[error("cannot open session: cluster {cluster} has runtime {runtime}")]
    OtherRuntime {
        /// Name of the cluster.
        cluster: String,
        /// Runtime of the cluster.
        runtime: String,
    },
    /// Cluster whose session another executor has.
    #[error("cannot open session of cluster {cluster}: executor {holder} has one")]
    Held {
        /// Name of the cluster.
        cluster: String,
        /// Executor that has the session.
        holder: String,
    },
    /// Cluster whose session another executor of the same name has.
    #[error(
        "cannot open session of cluster {cluster}: executor {holder} with another executor store has one"
    )]
    Namesake {
        /// Name of the cluster.
        cluster: String,
        /// Name of both executors.
        holder: String,
    },
    /// Cluster that may have objects in another executor store.
    #[error(
        "cannot open session of cluster {cluster}: executor {holder} may have {what} in another executor store, {store}\n\
         hint: start the executor on that store, or expunge node {node} if its machine is lost"
    )]
    LeftElsewhere {
        /// Name of the cluster.
        cluster: String,
        /// Executor of the other store.
        holder: String,
        /// Id of the other store.
        store: ExecutorStoreId,
        /// First replica or volume that may be in the other store.
        what: String,
        /// Node of the replica or volume.
        node: String,
    },
}

/// Returns the session that a hello resumes, or `None` if a new one must be opened. Fails with the reason for
/// a refusal.
pub fn resumes(fleet: &FleetState, hello: &SessionRequested) -> Result<Option<SessionId>, SessionRefused> {
    let name = hello.cluster.to_string();
    let cluster = fleet.clusters().get(&hello.cluster).ok_or(SessionRefused::NoCluster(name.clone()))?;
    if cluster.spec.runtime != hello.runtime {
        let runtime = cluster.spec.runtime.to_string();
        return Err(SessionRefused::OtherRuntime { cluster: name, runtime });
    }
    let Some(session) = cluster.session.and_then(|id| fleet.sessions().get(&id)) else {
        return left_elsewhere(fleet, cluster, hello.store).map_or(Ok(None), Err);
    };
    let holder = session.executor.to_string();
    if session.executor == hello.executor {
        return if session.store == hello.store {
            Ok(Some(session.id))
        } else {
            Err(SessionRefused::Namesake { cluster: name, holder })
        };
    }
    Err(SessionRefused::Held { cluster: name, holder })
}

/// Object that may be in another store, which forbids a session of this one.
fn left_elsewhere(
    fleet: &FleetState,
    cluster: &Cluster,
    executor_store: ExecutorStoreId,
) -> Option<SessionRefused> {
    let old = cluster.store.as_ref().filter(|old| old.id != executor_store)?;
    let mut wanted = fleet.index().inventory_after(&cluster.name, None);
    let (what, node) = wanted.find_map(|id| match id {
        ObjectId::Incarnation(id) => {
            let left = fleet.incarnations().get(&id).filter(|incarnation| old.may_hold(incarnation))?;
            Some((format!("replica {}", left.replica), left.node.to_string()))
        }
        ObjectId::Volume(id) => {
            let left = fleet.volumes().get(fleet.index().volumes.name(id)?)?;
            // A volume of an expunged node is lost with it, on the operator's assertion.
            let gone = fleet.index().places.is_expunged(&left.node);
            let may_be = !gone && old.until.is_none_or(|until| id.position() <= until);
            may_be.then(|| (format!("volume {}", left.name), left.node.to_string()))
        }
    })?;
    Some(SessionRefused::LeftElsewhere {
        cluster: cluster.name.to_string(),
        holder: old.executor.to_string(),
        store: old.id,
        what,
        node,
    })
}

pub(crate) fn hello(fleet: &FleetState, request: &SessionRequested) -> Vec<Fact> {
    match resumes(fleet, request) {
        Ok(None) => {
            let (cluster, executor) = (request.cluster.clone(), request.executor.clone());
            vec![SessionOpened { cluster, executor, runtime: request.runtime, store: request.store }.into()]
        }
        Ok(Some(_)) | Err(_) => Vec::new(),
    }
}

pub(crate) fn ended(fleet: &FleetState, observation: &SessionEnded) -> Vec<Fact> {
    let open = fleet.sessions().get(&observation.session).filter(|session| session.end.is_none());
    let closed = |s: &Session| {
        SessionClosed { session: s.id, cluster: s.cluster.clone(), end: observation.end }.into()
    };
    open.map(closed).into_iter().collect()
}

/// Resolves an object with the fleet's labels that the fleet does not contain. The object is removed only if
/// this journal issued its id and it has ended. The head is past everything that the executor has seen, which
/// is checked before.
pub(crate) fn object(fleet: &FleetState, report: &OrphanReported) -> Vec<Fact> {
    let Some(session) = fleet.sessions().get(&report.session) else { return Vec::new() };
    let id = report.object;
    let live = match id {
        ObjectId::Incarnation(id) => {
            fleet.incarnations().get(&id).is_some_and(crate::state::Incarnation::is_live)
        }
        ObjectId::Volume(id) => fleet.index().volumes.name(id).is_some(),
    };
    if live {
        return Vec::new();
    }
    // A volume is destroyed only by name: remains of a destroyed volume stay for an operator to inspect.
    let may_go = matches!(id, ObjectId::Incarnation(_));
    let ours = may_go && fleet.lineages().issued(id.lineage(), id.position(), fleet.head());
    let resolution = if ours { OrphanResolution::Remove } else { OrphanResolution::Leave };
    let revision = report.revision.saturating_add(1);
    vec![OrphanResolved { cluster: session.cluster.clone(), object: id, resolution, revision }.into()]
}

pub(crate) fn opened(fleet: &mut FleetState, fact: &SessionOpened, at: FactPosition) -> FoldResult {
    let id = SessionId::issue(at.lineage, at.position);
    fleet.bump::<Cluster>(&fact.cluster, at, |cluster| {
        cluster.session = Some(id);
        let executor = fact.executor.clone();
        cluster.store = Some(ClusterStore { id: fact.store, executor, until: None });
    })?;
    fleet.put(Session {
        id,
        cluster: fact.cluster.clone(),
        executor: fact.executor.clone(),
        runtime: fact.runtime,
        store: fact.store,
        end: None,
        meta: EntityMeta::new(at),
    });
    Ok(())
}

pub(crate) fn closed(fleet: &mut FleetState, fact: &SessionClosed, at: FactPosition) -> FoldResult {
    fleet.bump::<Session>(&fact.session, at, |session| session.end = Some(fact.end))?;
    fleet.touch::<Cluster>(&fact.cluster, at, |cluster| {
        cluster.session = None;
        if let Some(executor_store) = &mut cluster.store {
            executor_store.until = Some(at.position);
        }
    })?;
    // Sessions are few: one for each absence of an executor beyond its lease.
    let is_over = |session: &&Session| session.cluster == fact.cluster && session.end.is_some();
    let over = fleet.sessions().sorted().into_iter().filter(is_over);
    let over: Vec<_> = over.map(|session| session.id).collect();
    for id in &over[..over.len().saturating_sub(KEPT)] {
        fleet.remove::<Session>(id)?;
    }
    Ok(())
}
