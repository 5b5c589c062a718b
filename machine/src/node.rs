//! Nodes: capacity that is allocated to clusters and evicted from them.
//!
//! | from \ to | unallocated | allocating | allocated | evicted | sanitizing | expunged |
//! |---|---|---|---|---|---|---|
//! | unallocated | same | yes | via allocating | – | – | yes |
//! | allocating | – | same | yes | if empty | – | yes |
//! | allocated | – | – | same | if empty | – | yes |
//! | evicted | – | – | to the cluster of its volumes | same | if without volumes | yes |
//! | sanitizing | yes | – | – | yes | same | yes |
//! | expunged | – | – | – | – | – | same |
//!
//! An apply with an active cluster allocates an unallocated node, and leaves an evicted or sanitizing node as it is.
//!
//! Allocating and allocated require a cluster, which must exist and be active, and stays the same between the
//! two. Expunged is final, on the operator's assertion: everything on the node is lost. If a policy covers
//! `expunge`, the change waits as an approval request ([`crate::request`]), unless `break_glass` states why
//! it cannot wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chancery_events::fact::{ApprovalBypassed, Fact, NodeApplied, NodeDeleted, NodeStateChanged};
use chancery_events::intent::{CascadePolicy, NodeApply, NodeDelete, NodeSetState};
use chancery_events::name::ClusterName;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{ClusterActivity, NodeSpec, NodeState};
use chancery_events::text::counted;

use crate::context::DecisionContext;
use crate::disruption;
use crate::fleet::{FleetState, FoldResult};
use crate::meta::{EntityMeta, FactPosition};
use crate::refuse::{BodyErrors, DecidedFacts, invalid_transition};
use crate::request;
use crate::state::{ApprovalBypass, Cluster, Node};
use crate::volume;

pub(crate) fn apply(fleet: &FleetState, ask: &NodeApply) -> DecidedFacts {
    check(fleet, &ask.spec)?;
    let now = fleet.nodes().get(&ask.name);
    let mut facts = Vec::new();
    if let Some(now) = now {
        check_not_expunged(now)?;
        check_held(fleet, now, &ask.spec)?;
    }
    if now.is_none_or(|now| *now.spec != ask.spec) {
        facts.push(NodeApplied { name: ask.name.clone(), spec: ask.spec.clone() }.into());
    }
    if let Some(cluster) = &ask.cluster {
        match now.map(|now| (now.state, now.cluster.as_ref())) {
            None | Some((NodeState::Unallocated, _)) => {
                check_cluster(fleet, cluster)?;
                facts.extend(allocate(ask, cluster));
            }
            Some((NodeState::Allocating | NodeState::Allocated, Some(at))) if at == cluster => {}
            // An eviction lasts: the manifest that the node was created with stays valid, and does not undo it. The state
            // does not have the cluster from which the node was evicted.
            Some((NodeState::Evicted | NodeState::Sanitizing, _)) => check_cluster(fleet, cluster)?,
            Some((state, _)) => {
                let detail = format!("node {} is {state} and cannot be allocated to {cluster}", ask.name);
                return Err(Refusal::new(RefusalCode::InvalidTransition, detail)
                    .at("/cluster", format!("cannot be changed: the node is {state}")));
            }
        }
    }
    Ok(facts)
}

/// Refuses a change of an expunged node.
pub(crate) fn check_not_expunged(node: &Node) -> Result<(), Refusal> {
    if node.state == NodeState::Expunged {
        let detail = format!("node {} is expunged", node.name);
        return Err(Refusal::new(RefusalCode::InvalidTransition, detail));
    }
    Ok(())
}

/// Returns both steps for one commit: a crash leaves the node unallocated or allocated, never between.
fn allocate(ask: &NodeApply, cluster: &ClusterName) -> [Fact; 2] {
    [NodeState::Allocating, NodeState::Allocated].map(|to| {
        NodeStateChanged { name: ask.name.clone(), state: to, cluster: Some(cluster.clone()) }.into()
    })
}

fn check(fleet: &FleetState, spec: &NodeSpec) -> Result<(), Refusal> {
    let mut faults = BodyErrors::default();
    faults.check(spec.resources.cpu > 0, "/spec/resources/cpu", "must be more than zero");
    faults.check(spec.resources.memory > 0, "/spec/resources/memory", "must be more than zero");
    faults.check(spec.reserved.fits(spec.resources), "/spec/reserved", "is more than the total");
    let mut classes = BTreeSet::new();
    for (i, storage) in spec.storage.iter().enumerate() {
        faults.check(classes.insert(&storage.class), format!("/spec/storage/{i}/class"), "is named twice");
    }
    let mut named = BTreeSet::new();
    for (i, capability) in spec.capabilities.iter().enumerate() {
        let pointer = format!("/spec/capabilities/{i}");
        faults.check(named.insert(capability), &pointer, "is named twice");
        faults.check(
            fleet.capabilities().get(capability).is_some(),
            &pointer,
            format!("capability {capability} does not exist"),
        );
    }
    faults.done()
}

fn check_held(fleet: &FleetState, now: &Node, spec: &NodeSpec) -> Result<(), Refusal> {
    let held = fleet.index().places.held(&now.name);
    let capacity = spec.resources.checked_sub(spec.reserved).unwrap_or_default();
    if !held.resources.fits(capacity) {
        let detail = format!("placements reserve {} of node {}", held.resources, now.name);
        return Err(Refusal::new(RefusalCode::InUse, detail)
            .at("/spec/resources", "is less than the reserved amount"));
    }
    for class in held.reserved_storage.keys().chain(held.stored.keys()) {
        let bytes = held.storage(class);
        let has = spec.storage.iter().find(|s| s.class == *class).map_or(0, |s| s.capacity);
        if has < bytes {
            let detail =
                format!("placements and volumes reserve {bytes} bytes of class {class} on node {}", now.name);
            return Err(Refusal::new(RefusalCode::InUse, detail)
                .at("/spec/storage", "is less than the reserved amount"));
        }
    }
    let in_use = !held.incarnations.is_empty() || volume::on_node(fleet, &now.name).is_some();
    if in_use && spec.domain != now.spec.domain {
        let detail = format!("node {} has incarnations or volumes, so its domain cannot be edited", now.name);
        return Err(Refusal::new(RefusalCode::InUse, detail).at(
            "/spec/domain",
            format!("cannot be edited while the node has incarnations or volumes: it is {}", now.spec.domain),
        ));
    }
    Ok(())
}

fn check_cluster(fleet: &FleetState, cluster: &ClusterName) -> Result<(), Refusal> {
    let found = fleet.find::<Cluster>(cluster).map_err(|refusal| refusal.at("/cluster", "does not exist"))?;
    if found.activity == ClusterActivity::Inactive {
        let refusal = Refusal::new(RefusalCode::Inactive, format!("cluster {cluster} is inactive"));
        return Err(refusal.at("/cluster", "is inactive"));
    }
    Ok(())
}

/// Checks that `break_glass` is a valid reason for an expunge.
fn check_break_glass(ask: &NodeSetState) -> Result<(), Refusal> {
    let mut faults = BodyErrors::default();
    if let Some(reason) = &ask.break_glass {
        let plain = (1..=512).contains(&reason.len()) && !reason.chars().any(char::is_control);
        faults.check(plain, "/break_glass", "must be a reason of 1 to 512 bytes, without control characters");
        faults.check(ask.state == NodeState::Expunged, "/break_glass", "must be given only for expunged");
    }
    faults.done()
}

pub(crate) fn set_state(fleet: &FleetState, ask: &NodeSetState, ctx: &DecisionContext) -> DecidedFacts {
    use NodeState::{Allocated, Allocating, Evicted, Expunged, Sanitizing, Unallocated};
    let now = fleet.find::<Node>(&ask.name)?;
    let impossible = || invalid_transition(&format!("node {}", ask.name), now.state.word(), ask.state.word());
    if matches!(ask.state, Allocating | Allocated) != ask.cluster.is_some() {
        let what = "must be given for allocating and allocated, and for no other state";
        return Err(Refusal::new(RefusalCode::Invalid, format!("/cluster: {what}")).at("/cluster", what));
    }
    check_break_glass(ask)?;
    if now.state == ask.state {
        return if now.cluster == ask.cluster { Ok(vec![]) } else { Err(impossible()) };
    }
    let steps: &[NodeState] = match (now.state, ask.state) {
        (Unallocated, Allocating) => &[Allocating],
        (Unallocated, Allocated) => &[Allocating, Allocated],
        (Evicted, Allocated) if has_volumes_of(fleet, now, ask.cluster.as_ref()) => &[Allocating, Allocated],
        (Allocating, Allocated) if now.cluster == ask.cluster => &[Allocated],
        (Allocating | Allocated | Sanitizing, Evicted) => &[Evicted],
        (Evicted, Sanitizing) => &[Sanitizing],
        (Sanitizing, Unallocated) => &[Unallocated],
        (Unallocated | Allocating | Allocated | Evicted | Sanitizing, Expunged) => &[Expunged],
        (Unallocated | Allocating | Allocated | Evicted | Sanitizing | Expunged, _) => {
            return Err(impossible());
        }
    };
    if let (Unallocated | Evicted, Some(cluster)) = (now.state, &ask.cluster) {
        check_cluster(fleet, cluster)?;
    }
    if ask.state == Evicted {
        check_empty(fleet, now)?;
    }
    if ask.state == Sanitizing {
        check_without_volumes(fleet, now)?;
    }
    let moved = |to: &NodeState| {
        NodeStateChanged { name: ask.name.clone(), state: *to, cluster: ask.cluster.clone() }.into()
    };
    let mut facts = Vec::new();
    if let Some(reason) = ask.break_glass.clone() {
        let by = ctx.require_actor("a break-glass")?;
        let (node, policies) = (ask.name.clone(), request::bypassed(fleet, &ask.name));
        facts.push(ApprovalBypassed { node, requested_by: by, reason, policies }.into());
    }
    facts.extend(steps.iter().map(moved));
    Ok(facts)
}

fn check_empty(fleet: &FleetState, node: &Node) -> Result<(), Refusal> {
    let held = &fleet.index().places.held(&node.name).incarnations;
    let Some((_, first)) = held.first() else { return Ok(()) };
    let first = fleet.incarnations().get(first);
    let replica = first.map_or(String::new(), |first| format!(", such as {}", first.replica));
    let detail = format!("node {} has {}{replica}", node.name, counted(held.len(), "incarnation"));
    Err(Refusal::new(RefusalCode::InUse, detail))
}

/// Whether volumes of the cluster are on the node, which then returns without being sanitized.
fn has_volumes_of(fleet: &FleetState, node: &Node, cluster: Option<&ClusterName>) -> bool {
    let first = volume::on_node(fleet, &node.name).and_then(|(first, _)| fleet.volumes().get(first));
    first.is_some_and(|volume| Some(&volume.cluster) == cluster)
}

fn check_without_volumes(fleet: &FleetState, node: &Node) -> Result<(), Refusal> {
    let Some((first, count)) = volume::on_node(fleet, &node.name) else { return Ok(()) };
    let detail = format!("node {} has {count} volumes, such as {first}", node.name);
    Err(Refusal::new(RefusalCode::InUse, detail))
}

pub(crate) fn delete(fleet: &FleetState, ask: &NodeDelete, ctx: &DecisionContext) -> DecidedFacts {
    let now = fleet.find::<Node>(&ask.name)?;
    match (check_empty(fleet, now), ask.cascade) {
        (Ok(()), _) => {}
        (Err(in_use), CascadePolicy::No) => return Err(in_use),
        // Incarnations of an expunged node are ending, and their replicas are placed elsewhere.
        (Err(in_use), CascadePolicy::Yes) if now.state == NodeState::Expunged => return Err(in_use),
        (Err(_), CascadePolicy::Yes) => return disruption::remove_node(fleet, ask, ctx),
    }
    check_without_volumes(fleet, now)?;
    Ok(vec![NodeDeleted { name: ask.name.clone() }.into()])
}

pub(crate) fn applied(fleet: &mut FleetState, fact: &NodeApplied, at: FactPosition) -> FoldResult {
    let spec = Arc::new(fact.spec.clone());
    if fleet.nodes().get(&fact.name).is_some() {
        return fleet.bump::<Node>(&fact.name, at, |node| node.spec = spec);
    }
    fleet.put(Node {
        name: fact.name.clone(),
        spec,
        state: NodeState::Unallocated,
        cluster: None,
        disruptions: BTreeMap::new(),
        bypass: None,
        meta: EntityMeta::new(at),
    });
    Ok(())
}

pub(crate) fn state_changed(fleet: &mut FleetState, fact: &NodeStateChanged, at: FactPosition) -> FoldResult {
    fleet.bump::<Node>(&fact.name, at, |node| {
        node.state = fact.state;
        node.cluster.clone_from(&fact.cluster);
    })
}

pub(crate) fn bypassed(fleet: &mut FleetState, fact: &ApprovalBypassed, at: FactPosition) -> FoldResult {
    let ApprovalBypassed { node, requested_by: by, reason, policies } = fact.clone();
    fleet.bump::<Node>(&node, at, |node| {
        node.bypass = Some(ApprovalBypass { requested_by: by, reason, policies });
    })
}

pub(crate) fn deleted(fleet: &mut FleetState, fact: &NodeDeleted) -> FoldResult {
    fleet.remove::<Node>(&fact.name)
}
