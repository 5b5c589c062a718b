//! Sessions: an executor's lease on a cluster. At most one lives for each cluster.
//!
//! | | hello, same executor and scope | hello, same scope | hello, another scope | lease over, goodbye |
//! |---|---|---|---|---|
//! | none was ever | opened | opened | opened | – |
//! | none | opened | opened | opened if nothing may be left in the old scope, else refused | – |
//! | open | same | refused | refused | closed |
//!
//! Losing one proves nothing about what runs: placements stay, and are handed out again to whoever comes next. What an
//! executor does not find is gone only if it looks where that was begun: so the cluster remembers the *scope* of its
//! last session, and no other one is taken while an incarnation is not over of which somebody there may have been told.
//! Two things lead out of that: an executor over the old scope, or the operator's word that the nodes are gone.

use chancery_events::fact::{Fact, Judgement, ObjectJudged, SessionClosed, SessionOpened};
use chancery_events::id::{ObjectId, ScopeId, SessionId};
use chancery_events::observation::{ObjectReported, SessionHello, SessionOver};

use crate::fleet::{Contradiction, Fleet};
use crate::meta::{At, Meta};
use crate::state::{Cluster, Scope, Session};

/// Closed sessions of a cluster are kept so many.
const KEPT: usize = 20;

/// Why a hello is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HelloRefused {
    /// The cluster does not exist, yet.
    #[error("there is no cluster {0}")]
    NoCluster(String),
    /// The cluster is of another runtime.
    #[error("cluster {cluster} is of runtime {runtime}")]
    OtherRuntime {
        /// The cluster.
        cluster: String,
        /// Its runtime.
        runtime: String,
    },
    /// Another executor holds it.
    #[error("executor {holder} holds cluster {cluster}")]
    Held {
        /// The cluster.
        cluster: String,
        /// Who holds it.
        holder: String,
    },
    /// An executor of this name holds it, which is another one.
    #[error("an executor {holder} with another folder holds cluster {cluster}")]
    Namesake {
        /// The cluster.
        cluster: String,
        /// What both are called.
        holder: String,
    },
    /// Something may be left where this executor does not look.
    #[error(
        "{what} of cluster {cluster} was given to executor {holder} in another folder (scope {scope}), and \
         may be there: start the executor over that folder, or expunge node {node} if its machine is lost"
    )]
    LeftElsewhere {
        /// The cluster.
        cluster: String,
        /// Whose that folder was.
        holder: String,
        /// Where that is.
        scope: ScopeId,
        /// The first replica or volume that may be left.
        what: String,
        /// Its place.
        node: String,
    },
}

/// The session that a hello resumes, if it may have one: `None` if a new one is to be opened.
pub fn resumes(fleet: &Fleet, hello: &SessionHello) -> Result<Option<SessionId>, HelloRefused> {
    let name = hello.cluster.to_string();
    let cluster = fleet.clusters().get(&hello.cluster).ok_or(HelloRefused::NoCluster(name.clone()))?;
    if cluster.spec.runtime != hello.runtime {
        let runtime = cluster.spec.runtime.to_string();
        return Err(HelloRefused::OtherRuntime { cluster: name, runtime });
    }
    let Some(session) = cluster.session.and_then(|id| fleet.sessions().get(&id)) else {
        return left_elsewhere(fleet, cluster, hello.scope).map_or(Ok(None), Err);
    };
    let holder = session.executor.to_string();
    if session.executor == hello.executor {
        return if session.scope == hello.scope {
            Ok(Some(session.id))
        } else {
            Err(HelloRefused::Namesake { cluster: name, holder })
        };
    }
    Err(HelloRefused::Held { cluster: name, holder })
}

/// What forbids that an executor of this scope takes the cluster: something that may be in another one.
fn left_elsewhere(fleet: &Fleet, cluster: &Cluster, scope: Option<ScopeId>) -> Option<HelloRefused> {
    let old = cluster.scope.as_ref().filter(|old| Some(old.id) != scope)?;
    let mut wanted = fleet.index().inventory(&cluster.name);
    let (what, node) = wanted.find_map(|id| match id {
        ObjectId::Incarnation(id) => {
            let left = fleet.incarnations().get(&id).filter(|incarnation| old.may_hold(incarnation))?;
            Some((format!("replica {}", left.replica), left.node.to_string()))
        }
        ObjectId::Volume(id) => {
            let left = fleet.volumes().get(fleet.index().volumes.name(id)?)?;
            // What was on a node that is gone is gone with it, on the operator's word.
            let gone = fleet.index().places.is_expunged(&left.node);
            let may_be = !gone && old.until.is_none_or(|until| id.position() <= until);
            may_be.then(|| (format!("volume {}", left.name), left.node.to_string()))
        }
    })?;
    Some(HelloRefused::LeftElsewhere {
        cluster: cluster.name.to_string(),
        holder: old.executor.to_string(),
        scope: old.id,
        what,
        node,
    })
}

pub(crate) fn hello(fleet: &Fleet, saw: &SessionHello) -> Vec<Fact> {
    match resumes(fleet, saw) {
        Ok(None) => {
            let (cluster, executor) = (saw.cluster.clone(), saw.executor.clone());
            vec![SessionOpened { cluster, executor, runtime: saw.runtime, scope: saw.scope }.into()]
        }
        Ok(Some(_)) | Err(_) => Vec::new(),
    }
}

pub(crate) fn over(fleet: &Fleet, saw: &SessionOver) -> Vec<Fact> {
    let open = fleet.sessions().get(&saw.session).filter(|session| session.end.is_none());
    let closed =
        |s: &Session| SessionClosed { session: s.id, cluster: s.cluster.clone(), end: saw.end }.into();
    open.map(closed).into_iter().collect()
}

/// An object with our labels that has no place in the fleet. It is removed only if this journal issued its id and
/// its story is over; the head is past everything that the executor has seen, which is checked before this.
pub(crate) fn object(fleet: &Fleet, saw: &ObjectReported) -> Vec<Fact> {
    let Some(session) = fleet.sessions().get(&saw.session) else { return Vec::new() };
    let id = saw.object;
    let live = match id {
        ObjectId::Incarnation(id) => {
            fleet.incarnations().get(&id).is_some_and(crate::state::Incarnation::is_live)
        }
        ObjectId::Volume(id) => fleet.index().volumes.name(id).is_some(),
    };
    if live {
        return Vec::new();
    }
    // Data is destroyed by name alone: what is left of a volume, though it was called destroyed, is for people to see.
    let may_go = matches!(id, ObjectId::Incarnation(_));
    let ours = may_go && fleet.lineages().issued(id.lineage(), id.position(), fleet.head());
    let judgement = if ours { Judgement::Remove } else { Judgement::Quarantine };
    let revision = saw.revision.saturating_add(1);
    vec![ObjectJudged { cluster: session.cluster.clone(), object: id, judgement, revision }.into()]
}

pub(crate) fn opened(fleet: &mut Fleet, fact: &SessionOpened, at: At) -> Result<(), Contradiction> {
    let id = SessionId::issue(at.lineage, at.position);
    fleet.bump::<Cluster>(&fact.cluster, at, |cluster| {
        cluster.session = Some(id);
        if let Some(id) = fact.scope {
            cluster.scope = Some(Scope { id, executor: fact.executor.clone(), until: None });
        }
    })?;
    let (cluster, executor) = (fact.cluster.clone(), fact.executor.clone());
    let (runtime, scope) = (fact.runtime, fact.scope);
    fleet.put(Session { id, cluster, executor, runtime, scope, end: None, meta: Meta::new(at) });
    Ok(())
}

pub(crate) fn closed(fleet: &mut Fleet, fact: &SessionClosed, at: At) -> Result<(), Contradiction> {
    fleet.bump::<Session>(&fact.session, at, |session| session.end = Some(fact.end))?;
    fleet.touch::<Cluster>(&fact.cluster, at, |cluster| {
        cluster.session = None;
        if let Some(scope) = &mut cluster.scope {
            scope.until = Some(at.position);
        }
    })?;
    // Sessions are few: one a connection of an executor that was away for a lease.
    let over: Vec<_> = fleet
        .sessions()
        .sorted()
        .into_iter()
        .filter(|session| session.cluster == fact.cluster && session.end.is_some())
        .map(|session| session.id)
        .collect();
    for id in &over[..over.len().saturating_sub(KEPT)] {
        fleet.remove::<Session>(id)?;
    }
    Ok(())
}
