//! Clusters and capabilities: entries of the catalogue that nodes and plans name.
//!
//! ```text
//!             apply             set_activity      delete
//! (none)      active            refused           refused
//! active      same or new spec  inactive          (none), unless in use
//! inactive    same or new spec  active            (none), unless in use
//! ```
//! A cluster's spec cannot be edited. A cluster is in use while a node is in it, a capability while a node
//! names it. An intent that changes nothing is `unchanged`.

use chancery_events::fact::{
    CapabilityActivityChanged, CapabilityApplied, CapabilityDeleted, ClusterActivityChanged, ClusterApplied,
    ClusterDeleted, Fact, SessionClosed,
};
use chancery_events::id::ObjectId;
use chancery_events::intent::{
    CapabilityApply, CapabilityDelete, CapabilitySetActivity, ClusterApply, ClusterDelete, ClusterSetActivity,
};
use chancery_events::observation::SessionEnd;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{ClusterActivity, ClusterRuntime};
use chancery_events::text::counted;

use crate::fleet::{FleetState, FoldResult};
use crate::meta::{EntityMeta, FactPosition};
use crate::refuse::{BodyErrors, DecidedFacts};
use crate::state::{Capability, Cluster, Session};

pub(crate) fn cluster_apply(fleet: &FleetState, ask: &ClusterApply) -> DecidedFacts {
    let mut faults = BodyErrors::default();
    let (is_kubernetes, given) =
        (ask.spec.runtime == ClusterRuntime::Kubernetes, ask.spec.kubernetes.is_some());
    let rule = "must be given for runtime kubernetes, and for no other";
    faults.check(is_kubernetes == given, "/spec/kubernetes", rule);
    faults.done()?;
    match fleet.clusters().get(&ask.name) {
        Some(now) if now.spec == ask.spec => Ok(vec![]),
        Some(now) => {
            let field = if now.spec.runtime == ask.spec.runtime { "kubernetes" } else { "runtime" };
            let detail = format!("cluster {} has another {field}, which cannot be edited", ask.name);
            Err(Refusal::new(RefusalCode::InUse, detail).at(format!("/spec/{field}"), "cannot be edited"))
        }
        None => Ok(vec![ClusterApplied { name: ask.name.clone(), spec: ask.spec.clone() }.into()]),
    }
}

pub(crate) fn cluster_set_activity(fleet: &FleetState, ask: &ClusterSetActivity) -> DecidedFacts {
    let now = fleet.find::<Cluster>(&ask.name)?;
    if now.activity == ask.activity {
        return Ok(vec![]);
    }
    Ok(vec![ClusterActivityChanged { name: ask.name.clone(), activity: ask.activity }.into()])
}

pub(crate) fn cluster_delete(fleet: &FleetState, ask: &ClusterDelete) -> DecidedFacts {
    let now = fleet.find::<Cluster>(&ask.name)?;
    let nodes = fleet.nodes().unordered().filter(|node| node.cluster.as_ref() == Some(&ask.name)).count();
    if nodes > 0 {
        let detail = format!("cluster {} has {}", ask.name, counted(nodes, "node"));
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    // The inventory lists volumes first, and without nodes has nothing else.
    let first = fleet.index().inventory_after(&ask.name, None).next();
    if let Some(ObjectId::Volume(first)) = first
        && let Some(first) = fleet.index().volumes.name(first)
    {
        let detail = format!("cluster {} has volumes, such as {first}", ask.name);
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    let closed = now.session.map(|session| {
        let (cluster, end) = (ask.name.clone(), SessionEnd::ClusterDeleted);
        SessionClosed { session, cluster, end }.into()
    });
    Ok(closed.into_iter().chain([ClusterDeleted { name: ask.name.clone() }.into()]).collect())
}

pub(crate) fn capability_apply(fleet: &FleetState, ask: &CapabilityApply) -> Vec<Fact> {
    match fleet.capabilities().get(&ask.name) {
        Some(now) if now.spec == ask.spec => vec![],
        Some(_) | None => vec![CapabilityApplied { name: ask.name.clone(), spec: ask.spec.clone() }.into()],
    }
}

pub(crate) fn capability_set_activity(fleet: &FleetState, ask: &CapabilitySetActivity) -> DecidedFacts {
    let now = fleet.find::<Capability>(&ask.name)?;
    if now.activity == ask.activity {
        return Ok(vec![]);
    }
    Ok(vec![CapabilityActivityChanged { name: ask.name.clone(), activity: ask.activity }.into()])
}

pub(crate) fn capability_delete(fleet: &FleetState, ask: &CapabilityDelete) -> DecidedFacts {
    fleet.find::<Capability>(&ask.name)?;
    let mut nodes =
        fleet.nodes().sorted().into_iter().filter(|node| node.spec.capabilities.contains(&ask.name));
    if let Some(first) = nodes.next() {
        let more = nodes.count();
        let detail = format!("capability {} is used by node {} and {more} more", ask.name, first.name);
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    Ok(vec![CapabilityDeleted { name: ask.name.clone() }.into()])
}

pub(crate) fn cluster_applied(fleet: &mut FleetState, fact: &ClusterApplied, at: FactPosition) -> FoldResult {
    if fleet.clusters().get(&fact.name).is_some() {
        return fleet.bump::<Cluster>(&fact.name, at, |cluster| cluster.spec = fact.spec.clone());
    }
    let (name, spec) = (fact.name.clone(), fact.spec.clone());
    let activity = ClusterActivity::Active;
    fleet.put(Cluster { name, spec, activity, session: None, store: None, meta: EntityMeta::new(at) });
    Ok(())
}

pub(crate) fn cluster_activity_changed(
    fleet: &mut FleetState,
    fact: &ClusterActivityChanged,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Cluster>(&fact.name, at, |cluster| cluster.activity = fact.activity)
}

pub(crate) fn capability_applied(fleet: &mut FleetState, fact: &CapabilityApplied, at: FactPosition) {
    let mut meta = EntityMeta::new(at);
    let mut activity = ClusterActivity::Active;
    if let Some(now) = fleet.capabilities().get(&fact.name) {
        (meta, activity) = (now.meta, now.activity);
        meta.bump(at);
    }
    fleet.put(Capability { name: fact.name.clone(), spec: fact.spec.clone(), activity, meta });
}

pub(crate) fn capability_activity_changed(
    fleet: &mut FleetState,
    fact: &CapabilityActivityChanged,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Capability>(&fact.name, at, |capability| capability.activity = fact.activity)
}

/// Deletes the cluster and its retained sessions.
pub(crate) fn cluster_deleted(fleet: &mut FleetState, fact: &ClusterDeleted) -> FoldResult {
    let of_it = |session: &&Session| session.cluster == fact.name;
    let sessions: Vec<_> =
        fleet.sessions().sorted().into_iter().filter(of_it).map(|session| session.id).collect();
    for session in sessions {
        fleet.remove::<Session>(&session)?;
    }
    fleet.remove::<Cluster>(&fact.name)
}

pub(crate) fn capability_deleted(fleet: &mut FleetState, fact: &CapabilityDeleted) -> FoldResult {
    fleet.remove::<Capability>(&fact.name)
}
