//! Index entries: which other keys lead to a row.
//!
//! | index | entry | leads to |
//! |---|---|---|
//! | in a cluster, domain, zone | its name 0 node | nodes |
//! | of a plan | plan 0 replica | replicas |
//! | of a node | node 0 replica | replicas |
//! | in a phase, but `running` | phase, replica | replicas |
//! | of a replica | plan 0 replica 0 id | incarnations, operations |
//! | of a node | node 0 id | incarnations, operations |
//! | in a state, but `succeeded` | state, id | operations |
//! | stalled | 1, plan 0 deployment | deployments |
//!
//! An entry costs about as much to write as a row, so there is one only where it selects: what most rows have in
//! common (`running`, `succeeded`) is found by looking at all of them. Ids have 16 bytes, so that the key of a row
//! can be told from the end of an entry.

use chancery_events::name::{NodeName, PlanName, ReplicaName};

use crate::rows::{
    DeploymentRow, IncarnationRow, NodeRow, OperationRow, OperationWord, PhaseWord, ReplicaRow,
};

/// The indexes. The number stands before the entries in the store, behind all kinds of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Index {
    ReplicaPlan = 0x80,
    ReplicaNode,
    ReplicaPhase,
    IncarnationReplica,
    IncarnationNode,
    OperationReplica,
    OperationNode,
    OperationState,
    NodeCluster,
    NodeDomain,
    NodeZone,
    DeploymentStalled,
}

impl Index {
    /// The beginning of the entries of a name.
    pub(crate) fn of(self, name: &str) -> Vec<u8> {
        let mut prefix = Vec::with_capacity(80);
        prefix.push(self as u8);
        prefix.extend_from_slice(name.as_bytes());
        prefix.push(0);
        prefix
    }

    /// The beginning of the entries of a replica of a plan.
    pub(crate) fn of_replica(self, plan: &PlanName, replica: &ReplicaName) -> Vec<u8> {
        let mut prefix = self.of(plan.as_str());
        prefix.extend_from_slice(replica.as_str().as_bytes());
        prefix.push(0);
        prefix
    }

    /// The beginning of the entries of a word, by its number.
    pub(crate) fn of_word(self, word: u8) -> Vec<u8> {
        vec![self as u8, word]
    }
}

/// The entries of a row, as they stand in the store.
#[derive(Default, Debug)]
pub struct Entries(pub(crate) Vec<Vec<u8>>);

impl Entries {
    fn put(&mut self, mut prefix: Vec<u8>, key: &[u8]) {
        prefix.extend_from_slice(key);
        self.0.push(prefix);
    }

    fn node(&mut self, index: Index, node: Option<&NodeName>, key: &[u8]) {
        if let Some(node) = node {
            self.put(index.of(node.as_str()), key);
        }
    }
}

impl NodeRow {
    /// What else its entries are made of never changes.
    pub(crate) fn has_entries_of(&self, other: &NodeRow) -> bool {
        self.cluster == other.cluster && self.domain == other.domain && self.zone == other.zone
    }

    pub(crate) fn entries(&self, to: &mut Entries) {
        let key = self.name.as_str().as_bytes();
        if let Some(cluster) = &self.cluster {
            to.put(Index::NodeCluster.of(cluster.as_str()), key);
        }
        to.put(Index::NodeDomain.of(self.domain.as_str()), key);
        if let Some(zone) = &self.zone {
            to.put(Index::NodeZone.of(zone.as_str()), key);
        }
    }
}

impl DeploymentRow {
    /// What else its entries are made of never changes.
    pub(crate) fn has_entries_of(&self, other: &DeploymentRow) -> bool {
        self.stalled_at.is_some() == other.stalled_at.is_some()
    }

    pub(crate) fn entries(&self, to: &mut Entries) {
        if self.stalled_at.is_some() {
            let key = format!("{}\0{}", self.plan, self.name);
            to.put(Index::DeploymentStalled.of_word(1), key.as_bytes());
        }
    }
}

impl ReplicaRow {
    /// What else its entries are made of never changes.
    pub(crate) fn has_entries_of(&self, other: &ReplicaRow) -> bool {
        self.node == other.node && self.phase == other.phase
    }

    pub(crate) fn entries(&self, to: &mut Entries) {
        let key = self.name.as_str().as_bytes();
        to.put(Index::ReplicaPlan.of(self.plan.as_str()), key);
        to.node(Index::ReplicaNode, self.node.as_ref(), key);
        if self.phase != PhaseWord::Running {
            to.put(Index::ReplicaPhase.of_word(self.phase as u8), key);
        }
    }
}

impl IncarnationRow {
    /// What its entries are made of never changes.
    #[expect(clippy::unused_self, reason = "as the other rows have it")]
    pub(crate) fn has_entries_of(&self, _other: &IncarnationRow) -> bool {
        true
    }

    pub(crate) fn entries(&self, to: &mut Entries) {
        let id = self.id.uuid();
        to.put(Index::IncarnationReplica.of_replica(&self.plan, &self.replica), id.as_bytes());
        to.node(Index::IncarnationNode, Some(&self.node), id.as_bytes());
    }
}

impl OperationRow {
    /// What else its entries are made of never changes.
    pub(crate) fn has_entries_of(&self, other: &OperationRow) -> bool {
        self.node == other.node && self.state == other.state
    }

    pub(crate) fn entries(&self, to: &mut Entries) {
        let id = self.id.uuid();
        to.put(Index::OperationReplica.of_replica(&self.plan, &self.replica), id.as_bytes());
        to.node(Index::OperationNode, self.node.as_ref(), id.as_bytes());
        if self.state != OperationWord::Succeeded {
            to.put(Index::OperationState.of_word(self.state as u8), id.as_bytes());
        }
    }
}
