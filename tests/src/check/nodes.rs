//! Catalogue, nodes, sessions; invariant 4 for resources, 5 for nodes and sessions, 8 for resolved orphans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chancery_events::fact::{
    ClusterApplied, NodeApplied, NodeStateChanged, OrphanResolution, OrphanResolved, SessionClosed,
    SessionOpened,
};
use chancery_events::id::{IncarnationId, ObjectId, SessionId};
use chancery_events::intent::Intent;
use chancery_events::name::{ClusterName, ExecutorName, NodeName};
use chancery_events::observation::{IncarnationReport, Observation, SessionEnd};
use chancery_events::resources::Resources;
use chancery_events::spec::{ClusterActivity, NodeState};

use super::chain::HeaderChain;
use super::state::{CheckedFleet, Cluster, FactLocation, Incarnation, LastInput, Node, Session};
use super::violation::{InvariantViolation, RuleResult, demand};

impl CheckedFleet {
    pub(super) fn node(&self, name: &NodeName) -> Result<&Node, InvariantViolation> {
        self.nodes.get(name).ok_or_else(|| InvariantViolation::new(5, format!("there is no node {name}")))
    }

    /// Returns the input that the fact follows from, if any.
    pub(super) fn input_of(&self, at: FactLocation) -> Option<Arc<LastInput>> {
        let carried = self.carried.as_ref().map(|carried| Arc::clone(&carried.input));
        carried.or_else(|| self.input.clone()).filter(|input| input.position == at.cause)
    }

    pub(super) fn node_applied(&mut self, fact: &NodeApplied) -> RuleResult {
        let Some(node) = self.nodes.get_mut(&fact.name) else {
            let node = Node {
                spec: fact.spec.clone(),
                state: NodeState::Unallocated,
                cluster: None,
                disruptions: BTreeMap::new(),
                held: Resources::ZERO,
                volumes: BTreeMap::new(),
                reservations: BTreeSet::new(),
            };
            self.nodes.insert(fact.name.clone(), node);
            return Ok(());
        };
        node.spec = fact.spec.clone();
        node.has_capacity(&fact.name)
    }

    pub(super) fn node_moved(&mut self, fact: &NodeStateChanged, at: FactLocation) -> RuleResult {
        use NodeState::{Allocated, Allocating, Evicted, Expunged, Sanitizing, Unallocated};
        let name = &fact.name;
        let node = self.node(name)?;
        let (from, to) = (node.state, fact.state);
        if to == Expunged {
            self.may_expunge(name, at)?;
        }
        demand!(5, from != Expunged, "node {name} is expunged, and becomes {to}");
        let allowed = matches!(
            (from, to),
            (_, Expunged)
                | (Unallocated, Allocating)
                | (Allocating, Allocated | Evicted)
                | (Allocated | Sanitizing, Evicted)
                | (Evicted, Sanitizing)
                | (Sanitizing, Unallocated)
        );
        // A node may return to the volumes that are on it.
        let returns = (from, to) == (Evicted, Allocating) && self.has_volumes_of(name, fact.cluster.as_ref());
        let allowed = allowed || returns;
        demand!(5, allowed, "node {name} changes from {from} to {to}");
        match &fact.cluster {
            Some(cluster) => {
                demand!(
                    5,
                    self.clusters.contains_key(cluster),
                    "node {name} is moved to cluster {cluster}, which does not exist"
                );
                let stays = from != Allocating || to == Evicted || node.cluster.as_ref() == Some(cluster);
                demand!(5, stays, "node {name} was being allocated to another cluster than {cluster}");
            }
            None => demand!(5, !matches!(to, Allocating | Allocated), "node {name} is {to}, in no cluster"),
        }
        if let Some(node) = self.nodes.get_mut(name) {
            node.state = to;
            node.cluster.clone_from(&fact.cluster);
        }
        Ok(())
    }

    pub(super) fn node_deleted(&mut self, name: &NodeName, at: FactLocation) -> RuleResult {
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::NodeDelete(ask)) if ask.name == *name
        );
        let emptied = self.now.emptied.contains(name);
        demand!(6, asked || emptied, "node {name} is deleted without a request");
        let held = self.node(name)?.reservations.len();
        demand!(4, held == 0, "node {name} is deleted, and has {held} reservations");
        let volumes = self.volumes_on(name);
        demand!(4, volumes == 0, "node {name} is deleted, and {volumes} volumes are on it");
        self.nodes.remove(name);
        Ok(())
    }

    /// Makes a reservation on a node.
    pub(super) fn hold(&mut self, id: IncarnationId, incarnation: &Incarnation) -> RuleResult {
        let name = &incarnation.node;
        let node = self
            .nodes
            .get_mut(name)
            .ok_or_else(|| InvariantViolation::new(4, format!("there is no node {name}")))?;
        let allocated =
            node.state == NodeState::Allocated && node.cluster.as_ref() == Some(&incarnation.cluster);
        demand!(4, allocated, "capacity is reserved on node {name}, which is {}", node.state);
        demand!(
            4,
            !node.is_disrupted(),
            "capacity is reserved on node {name}, which has an approved disruption"
        );
        node.take(name, incarnation.holds)?;
        for (class, bytes) in &incarnation.reserved_storage {
            let held = node.volumes.entry(class.clone()).or_default();
            *held = held.saturating_add(*bytes);
        }
        node.reservations.insert(id);
        self.node(name)?.has_capacity(name)
    }

    /// Reserves the rest of an incarnation's resources after the end of the one that it followed there.
    pub(super) fn hold_all(&mut self, id: IncarnationId) -> RuleResult {
        let incarnation = self.incarnation_mut(id)?;
        let more = incarnation.resources.less(incarnation.holds);
        incarnation.holds = incarnation.resources;
        let name = incarnation.node.clone();
        let gone =
            || InvariantViolation::new(4, format!("node {name} was deleted while it had a reservation"));
        let node = self.nodes.get_mut(&name).ok_or_else(gone)?;
        node.take(&name, more)?;
        node.has_capacity(&name)
    }

    /// Releases exactly the reservation of an incarnation.
    pub(super) fn release(&mut self, id: IncarnationId, incarnation: &Incarnation) -> RuleResult {
        let name = &incarnation.node;
        let gone =
            || InvariantViolation::new(4, format!("node {name} was deleted while it had a reservation"));
        let node = self.nodes.get_mut(name).ok_or_else(gone)?;
        let more = || InvariantViolation::new(4, format!("more is freed on node {name} than was held"));
        node.held = node.held.checked_sub(incarnation.holds).ok_or_else(more)?;
        for (class, bytes) in &incarnation.reserved_storage {
            let held = node.volumes.get_mut(class).ok_or_else(more)?;
            *held = held.checked_sub(*bytes).ok_or_else(more)?;
        }
        demand!(4, node.reservations.remove(&id), "a reservation on node {name} is freed that did not exist");
        Ok(())
    }

    pub(super) fn session_opened(&mut self, fact: &SessionOpened, at: FactLocation) -> RuleResult {
        let name = &fact.cluster;
        let cluster = self.clusters.get(name).ok_or_else(|| no_cluster(name))?;
        demand!(5, cluster.session.is_none(), "a session of cluster {name} opens while another one is open");
        let input = self.input_of(at);
        let asked = input.as_deref().and_then(LastInput::observation).is_some_and(|(by, observation)| {
            matches!(observation, Observation::SessionRequested(hello)
                if hello.cluster == *name && hello.executor == fact.executor && hello.store == fact.store)
                && *by == fact.executor
        });
        demand!(6, asked, "a session of cluster {name} opens, and its executor did not ask");
        let id = SessionId::issue(at.lineage, at.position);
        if let Some(cluster) = self.clusters.get_mut(name) {
            cluster.session = Some(id);
        }
        let session = Session { cluster: name.clone(), executor: fact.executor.clone(), is_open: true };
        self.sessions.insert(id, session);
        Ok(())
    }

    pub(super) fn session_closed(&mut self, fact: &SessionClosed, at: FactLocation) -> RuleResult {
        let id = fact.session;
        let input = self.input_of(at);
        let observation =
            input.as_deref().and_then(LastInput::observation).map(|(_, observation)| observation);
        let is_caused = match fact.end {
            SessionEnd::Expired | SessionEnd::Left => {
                matches!(observation, Some(Observation::SessionEnded(over)) if over.session == id && over.end == fact.end)
            }
            SessionEnd::ClusterDeleted => input.as_deref().is_some_and(|input| input.request().is_some()),
        };
        demand!(6, is_caused, "session {id} closes as {} without a cause", fact.end);
        let unknown = || InvariantViolation::new(5, format!("session {id} was never opened"));
        let session = self.sessions.get_mut(&id).ok_or_else(unknown)?;
        demand!(5, session.is_open, "session {id} closes a second time");
        demand!(5, session.cluster == fact.cluster, "session {id} is of cluster {}", session.cluster);
        session.is_open = false;
        if let Some(cluster) = self.clusters.get_mut(&fact.cluster) {
            cluster.session = None;
        }
        Ok(())
    }

    pub(super) fn cluster_applied(&mut self, fact: &ClusterApplied) {
        let runtime = fact.spec.runtime;
        let cluster = self.clusters.entry(fact.name.clone());
        cluster.and_modify(|known| known.runtime = runtime).or_insert(Cluster {
            runtime,
            activity: ClusterActivity::Active,
            session: None,
        });
    }

    pub(super) fn cluster_deleted(&mut self, name: &ClusterName) -> RuleResult {
        let cluster = self.clusters.remove(name).ok_or_else(|| no_cluster(name))?;
        demand!(5, cluster.session.is_none(), "cluster {name} is deleted, and its session continues");
        let used = self.nodes.values().any(|node| node.cluster.as_ref() == Some(name));
        demand!(4, !used, "cluster {name} is deleted, and has nodes");
        Ok(())
    }

    /// Returns the report behind a fact about an incarnation, from its cluster's session alone.
    pub(super) fn report(
        &self,
        id: IncarnationId,
        at: FactLocation,
    ) -> Result<Option<IncarnationReport>, InvariantViolation> {
        let Some(input) = self.input_of(at) else { return Ok(None) };
        let Some((by, Observation::IncarnationReported(reported))) = input.observation() else {
            return Ok(None);
        };
        demand!(5, reported.report.incarnation == id, "a report about another incarnation changes {id}");
        let cluster = &self.incarnation(id)?.cluster;
        self.speaks_for(reported.session, by, cluster)?;
        Ok(Some(reported.report.clone()))
    }

    pub(super) fn speaks_for(&self, id: SessionId, by: &ExecutorName, cluster: &ClusterName) -> RuleResult {
        let unknown = || InvariantViolation::new(5, format!("session {id} was never opened"));
        let session = self.sessions.get(&id).ok_or_else(unknown)?;
        demand!(5, session.is_open, "a report of session {id}, which has ended, changes something");
        demand!(
            5,
            session.cluster == *cluster,
            "a report of session {id} changes something of cluster {cluster}"
        );
        demand!(5, session.executor == *by, "executor {by} reports in session {id} of {}", session.executor);
        Ok(())
    }

    pub(super) fn resolved(
        &mut self,
        fact: &OrphanResolved,
        chain: &HeaderChain,
        at: FactLocation,
    ) -> RuleResult {
        let id = fact.object;
        let input = self.input_of(at);
        let Some((by, Observation::OrphanReported(reported))) =
            input.as_deref().and_then(LastInput::observation)
        else {
            return Err(InvariantViolation::new(8, format!("object {id} is resolved without a report")));
        };
        demand!(8, reported.object == id, "another object than {id} was reported");
        self.speaks_for(reported.session, by, &fact.cluster)?;
        demand!(
            8,
            reported.seen < at.position,
            "its executor has seen more than this decider: {}",
            reported.seen
        );
        if fact.resolution == OrphanResolution::Remove {
            demand!(
                8,
                chain.is_ours(id.lineage(), id.position()),
                "object {id} of another journal is removed"
            );
            let over = match id {
                ObjectId::Incarnation(id) => {
                    self.incarnations.get(&id).is_some_and(|it| it.progress.is_over())
                }
                // Data is destroyed by name alone.
                ObjectId::Volume(_) => false,
            };
            demand!(8, over, "object {id} is removed, and is no issued and ended incarnation");
            demand!(
                8,
                fact.revision > reported.revision,
                "object {id} is removed by a command older than what is known of it"
            );
        }
        Ok(())
    }
}

impl Node {
    /// Reserves additional resources.
    fn take(&mut self, name: &NodeName, more: Resources) -> RuleResult {
        let many =
            || InvariantViolation::new(4, format!("node {name} has more reserved than can be counted"));
        self.held = self.held.checked_add(more).ok_or_else(many)?;
        Ok(())
    }

    /// Checks that reservations are at most the resources for placements.
    pub(super) fn has_capacity(&self, name: &NodeName) -> RuleResult {
        let capacity = self.spec.resources.checked_sub(self.spec.reserved).unwrap_or_default();
        demand!(4, self.held.fits(capacity), "node {name} has {capacity}, and {} are held", self.held);
        for (class, held) in &self.volumes {
            let has = self.spec.storage.iter().find(|has| has.class == *class).map_or(0, |has| has.capacity);
            demand!(4, *held <= has, "node {name} has {has} bytes of {class}, and {held} are reserved");
        }
        Ok(())
    }
}

fn no_cluster(name: &ClusterName) -> InvariantViolation {
    InvariantViolation::new(5, format!("there is no cluster {name}"))
}
