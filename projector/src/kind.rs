//! Kinds of rows and their keys: the words in a path, the typed keys, and the bytes under which rows are kept.

use std::fmt;
use std::str::FromStr;

use chancery_events::id::{IncarnationId, OperationId, Position, RequestId, SessionId};
use chancery_events::name::{
    CapabilityName, ClusterName, DeploymentName, NodeName, PlanName, PolicyName, ReplicaName, VolumeName,
};
use chancery_events::subject::Subject;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::filter::Def;
use crate::index::Entries;
use crate::reach::{Reached, Through};
use crate::rows::{
    CapabilityRow, ClusterRow, CommandRow, DeploymentRow, IncarnationRow, NodeRow, OperationRow, PlanRow,
    PolicyRow, ReplicaRow, RequestRow, SessionRow, VolumeRow,
};

/// The kinds of rows. The number stands before the keys of the kind in the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum RowKind {
    /// Clusters.
    Clusters = 1,
    /// Capabilities.
    Capabilities,
    /// Nodes.
    Nodes,
    /// Plans.
    Plans,
    /// Deployments.
    Deployments,
    /// Replicas.
    Replicas,
    /// Incarnations.
    Incarnations,
    /// Operations.
    Operations,
    /// Sessions.
    Sessions,
    /// Commands without an outcome.
    Commands,
    /// Policies.
    Policies,
    /// Volumes.
    Volumes,
    /// Approval requests.
    Requests,
}

impl RowKind {
    /// Every one, in order.
    pub const ALL: &[RowKind] = &[
        RowKind::Clusters,
        RowKind::Capabilities,
        RowKind::Nodes,
        RowKind::Plans,
        RowKind::Deployments,
        RowKind::Replicas,
        RowKind::Incarnations,
        RowKind::Operations,
        RowKind::Sessions,
        RowKind::Commands,
        RowKind::Policies,
        RowKind::Volumes,
        RowKind::Requests,
    ];

    /// The word in a path.
    pub const fn word(self) -> &'static str {
        match self {
            RowKind::Clusters => "clusters",
            RowKind::Capabilities => "capabilities",
            RowKind::Nodes => "nodes",
            RowKind::Plans => "plans",
            RowKind::Deployments => "deployments",
            RowKind::Replicas => "replicas",
            RowKind::Incarnations => "incarnations",
            RowKind::Operations => "operations",
            RowKind::Sessions => "sessions",
            RowKind::Commands => "commands",
            RowKind::Policies => "policies",
            RowKind::Volumes => "volumes",
            RowKind::Requests => "requests",
        }
    }

    /// The kind that the word in a path names.
    pub fn from_word(word: &str) -> Option<RowKind> {
        RowKind::ALL.iter().copied().find(|kind| kind.word() == word)
    }

    /// The names of the filters that a list of the kind takes.
    pub fn filters(self) -> Vec<&'static str> {
        fn names<R: Row>() -> Vec<&'static str> {
            R::FILTERS.iter().map(|def| def.name).collect()
        }
        with_row!(self, R => names::<R>())
    }
}

impl fmt::Display for RowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Runs an expression with the row type of a kind.
macro_rules! with_row {
    ($kind:expr, $row:ident => $run:expr) => {
        match $kind {
            $crate::kind::RowKind::Clusters => {
                type $row = $crate::rows::ClusterRow;
                $run
            }
            $crate::kind::RowKind::Capabilities => {
                type $row = $crate::rows::CapabilityRow;
                $run
            }
            $crate::kind::RowKind::Nodes => {
                type $row = $crate::rows::NodeRow;
                $run
            }
            $crate::kind::RowKind::Plans => {
                type $row = $crate::rows::PlanRow;
                $run
            }
            $crate::kind::RowKind::Deployments => {
                type $row = $crate::rows::DeploymentRow;
                $run
            }
            $crate::kind::RowKind::Replicas => {
                type $row = $crate::rows::ReplicaRow;
                $run
            }
            $crate::kind::RowKind::Incarnations => {
                type $row = $crate::rows::IncarnationRow;
                $run
            }
            $crate::kind::RowKind::Operations => {
                type $row = $crate::rows::OperationRow;
                $run
            }
            $crate::kind::RowKind::Sessions => {
                type $row = $crate::rows::SessionRow;
                $run
            }
            $crate::kind::RowKind::Commands => {
                type $row = $crate::rows::CommandRow;
                $run
            }
            $crate::kind::RowKind::Policies => {
                type $row = $crate::rows::PolicyRow;
                $run
            }
            $crate::kind::RowKind::Volumes => {
                type $row = $crate::rows::VolumeRow;
                $run
            }
            $crate::kind::RowKind::Requests => {
                type $row = $crate::rows::RequestRow;
                $run
            }
        }
    };
}
pub(crate) use with_row;

/// The key of a row. Its text is what stands behind the kind in a path: `nginx-7f3k`, `nginx/deployment-1`,
/// `<uuid>/3`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RowKey {
    /// A cluster.
    Cluster(ClusterName),
    /// A capability.
    Capability(CapabilityName),
    /// A node.
    Node(NodeName),
    /// A plan.
    Plan(PlanName),
    /// A deployment of a plan.
    Deployment(PlanName, DeploymentName),
    /// A replica.
    Replica(ReplicaName),
    /// An incarnation.
    Incarnation(IncarnationId),
    /// An operation.
    Operation(OperationId),
    /// A session.
    Session(SessionId),
    /// A command: its incarnation, and its revision.
    Command(IncarnationId, u32),
    /// A policy.
    Policy(PolicyName),
    /// A volume.
    Volume(VolumeName),
    /// An approval request.
    Request(RequestId),
}

/// Text that is no key of the kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read {text:?} as the key of one of {kind}: {reason}")]
pub struct BadKey {
    /// The kind.
    pub kind: RowKind,
    /// The text, cut short.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

impl RowKey {
    /// Reads what stands behind the kind in a path.
    pub fn parse(kind: RowKind, text: &str) -> Result<RowKey, BadKey> {
        fn part<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, String> {
            text.parse().map_err(|error: T::Err| error.to_string())
        }
        fn two<'a>(text: &'a str, form: &str) -> Result<(&'a str, &'a str), String> {
            text.split_once('/').ok_or_else(|| format!("write it as {form}"))
        }
        let read = || {
            Ok(match kind {
                RowKind::Clusters => RowKey::Cluster(part(text)?),
                RowKind::Capabilities => RowKey::Capability(part(text)?),
                RowKind::Nodes => RowKey::Node(part(text)?),
                RowKind::Plans => RowKey::Plan(part(text)?),
                RowKind::Deployments => {
                    let (plan, name) = two(text, "plan/name")?;
                    RowKey::Deployment(part(plan)?, part(name)?)
                }
                RowKind::Replicas => RowKey::Replica(part(text)?),
                RowKind::Incarnations => RowKey::Incarnation(part(text)?),
                RowKind::Operations => RowKey::Operation(part(text)?),
                RowKind::Sessions => RowKey::Session(part(text)?),
                RowKind::Commands => {
                    let (incarnation, revision) = two(text, "incarnation/revision")?;
                    RowKey::Command(part(incarnation)?, part(revision)?)
                }
                RowKind::Policies => RowKey::Policy(part(text)?),
                RowKind::Volumes => RowKey::Volume(part(text)?),
                RowKind::Requests => RowKey::Request(part(text)?),
            })
        };
        read().map_err(|reason| BadKey { kind, text: text.chars().take(100).collect(), reason })
    }

    /// The kind.
    pub const fn kind(&self) -> RowKind {
        match self {
            RowKey::Cluster(_) => RowKind::Clusters,
            RowKey::Capability(_) => RowKind::Capabilities,
            RowKey::Node(_) => RowKind::Nodes,
            RowKey::Plan(_) => RowKind::Plans,
            RowKey::Deployment(..) => RowKind::Deployments,
            RowKey::Replica(_) => RowKind::Replicas,
            RowKey::Incarnation(_) => RowKind::Incarnations,
            RowKey::Operation(_) => RowKind::Operations,
            RowKey::Session(_) => RowKind::Sessions,
            RowKey::Command(..) => RowKind::Commands,
            RowKey::Policy(_) => RowKind::Policies,
            RowKey::Volume(_) => RowKind::Volumes,
            RowKey::Request(_) => RowKind::Requests,
        }
    }

    /// What its history is about; of a command, the incarnation's.
    pub fn subject(&self) -> Subject {
        match self {
            RowKey::Cluster(name) => Subject::Cluster(name.clone()),
            RowKey::Capability(name) => Subject::Capability(name.clone()),
            RowKey::Node(name) => Subject::Node(name.clone()),
            RowKey::Plan(name) => Subject::Plan(name.clone()),
            RowKey::Deployment(plan, name) => Subject::Deployment(plan.clone(), name.clone()),
            RowKey::Replica(name) => Subject::Replica(name.clone()),
            RowKey::Incarnation(id) | RowKey::Command(id, _) => Subject::Incarnation(*id),
            RowKey::Operation(id) => Subject::Operation(*id),
            RowKey::Session(id) => Subject::Session(*id),
            RowKey::Policy(name) => Subject::Policy(name.clone()),
            RowKey::Volume(name) => Subject::Volume(name.clone()),
            RowKey::Request(id) => Subject::Request(*id),
        }
    }

    /// Appends the bytes that follow the kind in the store. Names hold no zero byte; ids have 16 bytes and sort in
    /// the order of their issue.
    pub(crate) fn put(&self, to: &mut Vec<u8>) {
        match self {
            RowKey::Cluster(name) => to.extend_from_slice(name.as_str().as_bytes()),
            RowKey::Capability(name) => to.extend_from_slice(name.as_str().as_bytes()),
            RowKey::Node(name) => to.extend_from_slice(name.as_str().as_bytes()),
            RowKey::Plan(name) => to.extend_from_slice(name.as_str().as_bytes()),
            RowKey::Deployment(plan, name) => {
                to.extend_from_slice(plan.as_str().as_bytes());
                to.push(0);
                to.extend_from_slice(name.as_str().as_bytes());
            }
            RowKey::Replica(name) => to.extend_from_slice(name.as_str().as_bytes()),
            RowKey::Incarnation(id) => to.extend_from_slice(id.uuid().as_bytes()),
            RowKey::Operation(id) => to.extend_from_slice(id.uuid().as_bytes()),
            RowKey::Session(id) => to.extend_from_slice(id.uuid().as_bytes()),
            RowKey::Policy(name) => to.extend_from_slice(name.as_str().as_bytes()),
            RowKey::Volume(name) => to.extend_from_slice(name.as_str().as_bytes()),
            RowKey::Request(id) => to.extend_from_slice(id.uuid().as_bytes()),
            RowKey::Command(id, revision) => {
                to.extend_from_slice(id.uuid().as_bytes());
                to.extend_from_slice(&revision.to_be_bytes());
            }
        }
    }

    /// The row's key in the store.
    pub(crate) fn stored(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(40);
        bytes.push(self.kind() as u8);
        self.put(&mut bytes);
        bytes
    }
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowKey::Cluster(name) => write!(f, "{name}"),
            RowKey::Capability(name) => write!(f, "{name}"),
            RowKey::Node(name) => write!(f, "{name}"),
            RowKey::Plan(name) => write!(f, "{name}"),
            RowKey::Deployment(plan, name) => write!(f, "{plan}/{name}"),
            RowKey::Replica(name) => write!(f, "{name}"),
            RowKey::Incarnation(id) => write!(f, "{id}"),
            RowKey::Operation(id) => write!(f, "{id}"),
            RowKey::Session(id) => write!(f, "{id}"),
            RowKey::Command(id, revision) => write!(f, "{id}/{revision}"),
            RowKey::Policy(name) => write!(f, "{name}"),
            RowKey::Volume(name) => write!(f, "{name}"),
            RowKey::Request(id) => write!(f, "{id}"),
        }
    }
}

/// A row of some kind.
pub trait Row:
    Serialize + DeserializeOwned + Clone + PartialEq + fmt::Debug + JsonSchema + Send + Sync + 'static
{
    /// The kind.
    const KIND: RowKind;
    /// The filters that a list of the kind takes.
    #[doc(hidden)]
    const FILTERS: &'static [Def<Self>];

    /// Its typed key.
    type Key;

    /// The key as one of any kind.
    fn row_key(key: &Self::Key) -> RowKey;
    /// Its own key.
    fn key(&self) -> RowKey;
    /// Its version, for `ETag`.
    fn version(&self) -> u64;
    /// The position of the fact that last changed it.
    fn position(&self) -> Position;

    /// Its index entries.
    #[doc(hidden)]
    fn index(&self, _to: &mut Entries) {}

    /// Whether it has the same index entries as another row of its key.
    #[doc(hidden)]
    fn is_indexed_as(&self, _other: &Self) -> bool {
        true
    }

    /// The plan whose reasons belong into the message, because the row waits for a place.
    #[doc(hidden)]
    fn waits_with(&mut self) -> Option<(&PlanName, &mut String)> {
        None
    }

    /// Whoever must be heard of for it to be reachable, if anybody must, and what that says of it.
    #[doc(hidden)]
    fn reached_through(&mut self) -> Option<(Through, Reached<'_>)> {
        None
    }
}

macro_rules! rows {
    ($($row:ident, $kind:ident, $key:ty, |$k:ident| $of:expr, |$r:ident| $own:expr, $filters:ident, $index:ident, $waits:ident, $through:ident;)*) => {$(
        impl Row for $row {
            const KIND: RowKind = RowKind::$kind;
            const FILTERS: &'static [Def<$row>] = crate::filters::$filters;
            type Key = $key;

            fn row_key($k: &$key) -> RowKey {
                $of
            }
            fn key(&self) -> RowKey {
                let $r = self;
                $own
            }
            fn version(&self) -> u64 {
                self.version
            }
            fn position(&self) -> Position {
                self.position
            }
            rows!(@index $index);
            rows!(@waits $waits);
            rows!(@through $through);
        }
    )*};
    (@index no) => {};
    (@index yes) => {
        fn index(&self, to: &mut Entries) {
            self.entries(to);
        }
        fn is_indexed_as(&self, other: &Self) -> bool {
            self.has_entries_of(other)
        }
    };
    (@waits no) => {};
    (@waits yes) => {
        fn waits_with(&mut self) -> Option<(&PlanName, &mut String)> {
            (self.message == crate::row_of::WAITS).then_some((&self.plan, &mut self.message))
        }
    };
    (@through no) => {};
    (@through cluster) => {
        fn reached_through(&mut self) -> Option<(Through, Reached<'_>)> {
            Reached::of(&mut self.reachability, &mut self.message)
                .map(|reached| (Through::Cluster(self.cluster.clone()), reached))
        }
    };
    (@through incarnation) => {
        fn reached_through(&mut self) -> Option<(Through, Reached<'_>)> {
            let id = self.incarnation?;
            Reached::of(&mut self.reachability, &mut self.message)
                .map(|reached| (Through::Incarnation(id), reached))
        }
    };
}

rows! {
    ClusterRow, Clusters, ClusterName, |k| RowKey::Cluster(k.clone()), |r| RowKey::Cluster(r.name.clone()), CLUSTERS, no, no, no;
    CapabilityRow, Capabilities, CapabilityName, |k| RowKey::Capability(k.clone()), |r| RowKey::Capability(r.name.clone()), CAPABILITIES, no, no, no;
    NodeRow, Nodes, NodeName, |k| RowKey::Node(k.clone()), |r| RowKey::Node(r.name.clone()), NODES, yes, no, no;
    PlanRow, Plans, PlanName, |k| RowKey::Plan(k.clone()), |r| RowKey::Plan(r.name.clone()), PLANS, no, no, no;
    DeploymentRow, Deployments, (PlanName, DeploymentName), |k| RowKey::Deployment(k.0.clone(), k.1.clone()), |r| RowKey::Deployment(r.plan.clone(), r.name.clone()), DEPLOYMENTS, yes, no, no;
    ReplicaRow, Replicas, ReplicaName, |k| RowKey::Replica(k.clone()), |r| RowKey::Replica(r.name.clone()), REPLICAS, yes, yes, incarnation;
    IncarnationRow, Incarnations, IncarnationId, |k| RowKey::Incarnation(*k), |r| RowKey::Incarnation(r.id), INCARNATIONS, yes, no, cluster;
    OperationRow, Operations, OperationId, |k| RowKey::Operation(*k), |r| RowKey::Operation(r.id), OPERATIONS, yes, yes, no;
    SessionRow, Sessions, SessionId, |k| RowKey::Session(*k), |r| RowKey::Session(r.id), SESSIONS, no, no, no;
    CommandRow, Commands, (IncarnationId, u32), |k| RowKey::Command(k.0, k.1), |r| RowKey::Command(r.incarnation, r.revision), COMMANDS, no, no, no;
    PolicyRow, Policies, PolicyName, |k| RowKey::Policy(k.clone()), |r| RowKey::Policy(r.name.clone()), POLICIES, no, no, no;
    VolumeRow, Volumes, VolumeName, |k| RowKey::Volume(k.clone()), |r| RowKey::Volume(r.name.clone()), VOLUMES, no, no, no;
    RequestRow, Requests, RequestId, |k| RowKey::Request(*k), |r| RowKey::Request(r.id), REQUESTS, no, no, no;
}
