//! The filters of each kind, a table a kind.

use chancery_events::amount::{GIB, parse_bytes, parse_cpu};
use chancery_events::name::{
    CapabilityName, CapabilityType, ClusterName, DeploymentName, DomainName, Key, Namespace, NodeName,
    PlanName, ReplicaName, ServiceName, ZoneName,
};
use chancery_events::spec::{Activity, NodeState, OperationKind, Runtime};
use chancery_events::subject::Subject;

use crate::filter::{Def, Filter, Way};
use crate::index::Index;
use crate::kind::RowKind;
use crate::rows::{
    CapabilityRow, ClusterRow, CommandRow, DeploymentRow, DeploymentWord, IncarnationRow, IncarnationWord,
    NodeRow, OperationRow, OperationWord, PhaseWord, PlanRow, PolicyRow, ReplicaRow, RequestRow, RequestWord,
    RequestedKind, SessionRow, SessionWord, VolumeRow, VolumeWord, WillWord,
};

/// A way that every value has.
macro_rules! way {
    ($index:expr, $type:ty) => {
        |name: $type| Some(Way::Entries($index.of(name.as_str())))
    };
}

pub(crate) const CLUSTERS: &[Def<ClusterRow>] = &[
    Def {
        name: "runtime",
        read: |text| Filter::word(text, Runtime::ALL, |row: &ClusterRow| row.runtime, |_| None),
    },
    Def {
        name: "activity",
        read: |text| Filter::word(text, Activity::ALL, |row: &ClusterRow| row.activity, |_| None),
    },
];

pub(crate) const CAPABILITIES: &[Def<CapabilityRow>] = &[
    Def {
        name: "type",
        read: |text| Filter::named(text, |row: &CapabilityRow, kind: &CapabilityType| row.kind == *kind),
    },
    Def {
        name: "activity",
        read: |text| Filter::word(text, Activity::ALL, |row: &CapabilityRow| row.activity, |_| None),
    },
];

pub(crate) const NODES: &[Def<NodeRow>] = &[
    Def {
        name: "state",
        read: |text| Filter::word(text, NodeState::ALL, |row: &NodeRow| row.state, |_| None),
    },
    Def {
        name: "cluster",
        read: |text| {
            let way = way!(Index::NodeCluster, ClusterName);
            Filter::led(text, |row: &NodeRow, it: &ClusterName| row.cluster.as_ref() == Some(it), way)
        },
    },
    Def {
        name: "domain",
        read: |text| {
            let way = way!(Index::NodeDomain, DomainName);
            Filter::led(text, |row: &NodeRow, it: &DomainName| row.domain == *it, way)
        },
    },
    Def {
        name: "zone",
        read: |text| {
            let way = way!(Index::NodeZone, ZoneName);
            Filter::led(text, |row: &NodeRow, it: &ZoneName| row.zone.as_ref() == Some(it), way)
        },
    },
    Def {
        name: "capability",
        read: |text| {
            Filter::named(text, |row: &NodeRow, name: &CapabilityName| row.capabilities.contains(name))
        },
    },
    Def { name: "label", read: label },
    Def { name: "remaining_cpu_gte", read: |text| at_least(parse_cpu(text), |row| row.remaining.cpu) },
    Def {
        name: "remaining_memory_gte",
        read: |text| at_least(parse_bytes(text, GIB), |row| row.remaining.memory),
    },
];

/// `key:value`, as a selector asks.
fn label(text: &str) -> Result<Filter<NodeRow>, String> {
    let (key, value) = text.split_once(':').ok_or("write it as key:value")?;
    let key: Key = key.parse().map_err(|error: chancery_events::name::BadName| error.to_string())?;
    let value = value.to_owned();
    Ok(Filter { holds: Box::new(move |row: &NodeRow| row.labels.get(&key) == Some(&value)), way: None })
}

fn at_least(
    least: Result<u64, chancery_events::amount::BadAmount>,
    of: fn(&NodeRow) -> u64,
) -> Result<Filter<NodeRow>, String> {
    let least = least.map_err(|error| error.to_string())?;
    Ok(Filter { holds: Box::new(move |row: &NodeRow| of(row) >= least), way: None })
}

pub(crate) const PLANS: &[Def<PlanRow>] = &[
    Def {
        name: "activity",
        read: |text| Filter::word(text, Activity::ALL, |row: &PlanRow| row.activity, |_| None),
    },
    Def {
        name: "namespace",
        read: |text| Filter::named(text, |row: &PlanRow, it: &Namespace| row.spec.namespace == *it),
    },
    Def {
        name: "service",
        read: |text| Filter::named(text, |row: &PlanRow, it: &ServiceName| row.spec.service == *it),
    },
];

pub(crate) const DEPLOYMENTS: &[Def<DeploymentRow>] = &[
    Def {
        name: "plan",
        read: |text| {
            Filter::led(
                text,
                |row: &DeploymentRow, plan: &PlanName| row.plan == *plan,
                |plan: PlanName| {
                    let mut prefix = vec![RowKind::Deployments as u8];
                    prefix.extend_from_slice(plan.as_str().as_bytes());
                    prefix.push(0);
                    Some(Way::Rows(prefix))
                },
            )
        },
    },
    Def {
        name: "state",
        read: |text| Filter::word(text, DeploymentWord::ALL, |row: &DeploymentRow| row.state, |_| None),
    },
    Def {
        name: "stalled",
        read: |text| {
            let way = |stalled: YesNo| {
                (stalled == YesNo::Yes).then(|| Way::Entries(Index::DeploymentStalled.of_word(1)))
            };
            Filter::word(
                text,
                &[YesNo::Yes, YesNo::No],
                |row: &DeploymentRow| YesNo::of(row.stalled_at.is_some()),
                way,
            )
        },
    },
];

/// The answer to a question of a filter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum YesNo {
    Yes,
    No,
}

impl YesNo {
    const fn of(holds: bool) -> YesNo {
        if holds { YesNo::Yes } else { YesNo::No }
    }
}

impl std::fmt::Display for YesNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            YesNo::Yes => "yes",
            YesNo::No => "no",
        })
    }
}

pub(crate) const REPLICAS: &[Def<ReplicaRow>] = &[
    Def {
        name: "plan",
        read: |text| {
            let way = way!(Index::ReplicaPlan, PlanName);
            Filter::led(text, |row: &ReplicaRow, plan: &PlanName| row.plan == *plan, way)
        },
    },
    Def {
        name: "deployment",
        read: |text| Filter::named(text, |row: &ReplicaRow, name: &DeploymentName| row.deployment == *name),
    },
    Def {
        name: "node",
        read: |text| {
            let way = way!(Index::ReplicaNode, NodeName);
            Filter::led(text, |row: &ReplicaRow, node: &NodeName| row.node.as_ref() == Some(node), way)
        },
    },
    Def {
        name: "phase",
        read: |text| {
            Filter::word(
                text,
                PhaseWord::ALL,
                |row: &ReplicaRow| row.phase,
                |phase| {
                    let is_kept = phase != PhaseWord::Running;
                    is_kept.then(|| Way::Entries(Index::ReplicaPhase.of_word(phase as u8)))
                },
            )
        },
    },
    Def {
        name: "will",
        read: |text| Filter::word(text, WillWord::ALL, |row: &ReplicaRow| row.will, |_| None),
    },
];

pub(crate) const INCARNATIONS: &[Def<IncarnationRow>] = &[
    Def {
        name: "replica",
        read: |text| {
            Filter::led(
                text,
                |row: &IncarnationRow, replica: &ReplicaName| row.replica == *replica,
                |replica| Some(Way::Replica(Index::IncarnationReplica, replica)),
            )
        },
    },
    Def {
        name: "plan",
        read: |text| {
            let way = way!(Index::IncarnationReplica, PlanName);
            Filter::led(text, |row: &IncarnationRow, plan: &PlanName| row.plan == *plan, way)
        },
    },
    Def {
        name: "node",
        read: |text| {
            let way = way!(Index::IncarnationNode, NodeName);
            Filter::led(text, |row: &IncarnationRow, node: &NodeName| row.node == *node, way)
        },
    },
    Def {
        name: "cluster",
        read: |text| {
            Filter::named(text, |row: &IncarnationRow, cluster: &ClusterName| row.cluster == *cluster)
        },
    },
    Def {
        name: "state",
        read: |text| Filter::word(text, IncarnationWord::ALL, |row: &IncarnationRow| row.state, |_| None),
    },
];

pub(crate) const OPERATIONS: &[Def<OperationRow>] = &[
    Def {
        name: "plan",
        read: |text| {
            let way = way!(Index::OperationReplica, PlanName);
            Filter::led(text, |row: &OperationRow, plan: &PlanName| row.plan == *plan, way)
        },
    },
    Def {
        name: "replica",
        read: |text| {
            Filter::led(
                text,
                |row: &OperationRow, replica: &ReplicaName| row.replica == *replica,
                |replica| Some(Way::Replica(Index::OperationReplica, replica)),
            )
        },
    },
    Def {
        name: "kind",
        read: |text| Filter::word(text, OperationKind::ALL, |row: &OperationRow| row.kind, |_| None),
    },
    Def {
        name: "state",
        read: |text| {
            Filter::word(
                text,
                OperationWord::ALL,
                |row: &OperationRow| row.state,
                |state| {
                    let is_kept = state != OperationWord::Succeeded;
                    is_kept.then(|| Way::Entries(Index::OperationState.of_word(state as u8)))
                },
            )
        },
    },
    Def {
        name: "deployment",
        read: |text| {
            Filter::named(text, |row: &OperationRow, name: &DeploymentName| {
                row.deployment.as_ref() == Some(name)
            })
        },
    },
    Def {
        name: "node",
        read: |text| {
            let way = way!(Index::OperationNode, NodeName);
            Filter::led(text, |row: &OperationRow, node: &NodeName| row.node.as_ref() == Some(node), way)
        },
    },
];

pub(crate) const SESSIONS: &[Def<SessionRow>] = &[
    Def {
        name: "cluster",
        read: |text| Filter::named(text, |row: &SessionRow, cluster: &ClusterName| row.cluster == *cluster),
    },
    Def {
        name: "state",
        read: |text| Filter::word(text, SessionWord::ALL, |row: &SessionRow| row.state, |_| None),
    },
];

pub(crate) const COMMANDS: &[Def<CommandRow>] = &[
    Def {
        name: "cluster",
        read: |text| Filter::named(text, |row: &CommandRow, cluster: &ClusterName| row.cluster == *cluster),
    },
    Def {
        name: "node",
        read: |text| Filter::named(text, |row: &CommandRow, node: &NodeName| row.node == *node),
    },
];

pub(crate) const POLICIES: &[Def<PolicyRow>] = &[];

pub(crate) const REQUESTS: &[Def<RequestRow>] = &[
    Def {
        name: "state",
        read: |text| Filter::word(text, RequestWord::ALL, |row: &RequestRow| row.state, |_| None),
    },
    Def {
        name: "kind",
        read: |text| Filter::word(text, RequestedKind::ALL, |row: &RequestRow| row.kind, |_| None),
    },
    Def {
        name: "subject",
        read: |text| Filter::named(text, |row: &RequestRow, subject: &Subject| row.subject == *subject),
    },
];

pub(crate) const VOLUMES: &[Def<VolumeRow>] = &[
    Def {
        name: "cluster",
        read: |text| Filter::named(text, |row: &VolumeRow, cluster: &ClusterName| row.cluster == *cluster),
    },
    Def {
        name: "node",
        read: |text| Filter::named(text, |row: &VolumeRow, node: &NodeName| row.node == *node),
    },
    Def {
        name: "owner",
        read: |text| {
            Filter::named(text, |row: &VolumeRow, owner: &ReplicaName| row.owner.as_ref() == Some(owner))
        },
    },
    Def {
        name: "replica",
        read: |text| {
            Filter::named(text, |row: &VolumeRow, replica: &ReplicaName| {
                row.replica.as_ref() == Some(replica)
            })
        },
    },
    Def {
        name: "state",
        read: |text| Filter::word(text, VolumeWord::ALL, |row: &VolumeRow| row.state, |_| None),
    },
];
