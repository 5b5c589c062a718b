//! Index entries: other keys that lead to a row.
//!
//! | index | entry | leads to |
//! |---|---|---|
//! | in a cluster, domain, zone | name of that 0 node | nodes |
//! | of a plan | plan 0 replica | replicas |
//! | of a node | node 0 replica | replicas |
//! | in a phase other than `running` | phase, replica | replicas |
//! | of a replica | plan 0 replica 0 id | incarnations, operations |
//! | of a node | node 0 id | incarnations, operations |
//! | in a state other than `succeeded` | state, id | operations |
//! | stalled | 1, plan 0 deployment | deployments |
//!
//! In the table, 0 is a zero byte. An entry costs about as much to write as a row, so only selective values
//! have entries. Common values (`running`, `succeeded`) are found by checking all rows. Ids have 16 bytes, so
//! that the key of a row can be distinguished from the end of an entry.

use chancery_events::name::{PlanName, ReplicaName};

/// Indexes of rows. The number precedes the entries in the store, after all kinds of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum RowIndex {
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

impl RowIndex {
    /// Returns the prefix of the entries of a name.
    pub(crate) fn of(self, name: &str) -> Vec<u8> {
        let mut prefix = Vec::with_capacity(80);
        prefix.push(self as u8);
        prefix.extend_from_slice(name.as_bytes());
        prefix.push(0);
        prefix
    }

    /// Returns the prefix of the entries of a replica of a plan.
    pub(crate) fn of_replica(self, plan: &PlanName, replica: &ReplicaName) -> Vec<u8> {
        let mut prefix = self.of(plan.as_str());
        prefix.extend_from_slice(replica.as_str().as_bytes());
        prefix.push(0);
        prefix
    }

    /// Returns the prefix of the entries of a value, by its number.
    pub(crate) fn of_word(self, word: u8) -> Vec<u8> {
        vec![self as u8, word]
    }
}

/// Index entries of a row, as they are stored.
#[derive(Default, Debug)]
pub struct IndexEntries(pub(crate) Vec<Vec<u8>>);

impl IndexEntries {
    /// Adds the entry that leads from a prefix to a key.
    pub(crate) fn put(&mut self, mut prefix: Vec<u8>, key: &[u8]) {
        prefix.extend_from_slice(key);
        self.0.push(prefix);
    }
}
