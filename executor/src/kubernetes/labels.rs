//! Labels of Kubernetes objects, and their names.
//!
//! Every object of an executor has [`FLEET`], [`CLUSTER`] and [`EPOCH`]; an object of an incarnation or a volume has its
//! id, too. Objects without these labels belong to others and are never changed.

use std::collections::BTreeMap;

use chancery_events::id::ObjectId;
use chancery_events::name::{ClusterName, FleetName};
use chancery_events::protocol::IncarnationSpec;

/// Name of the executor as a manager of fields.
pub(super) const MANAGER: &str = "chancery";

/// Prefix of all labels.
const PREFIX: &str = "chancery.dev/";
/// Fleet of the object.
pub(super) const FLEET: &str = "chancery.dev/fleet";
/// Cluster of the object, as the fleet names it.
pub(super) const CLUSTER: &str = "chancery.dev/cluster";
/// Epoch of the executor that wrote the object last. The admission policy refuses objects of earlier epochs.
pub(super) const EPOCH: &str = "chancery.dev/epoch";
/// Lineage of the journal that issued the object's id.
pub(super) const LINEAGE: &str = "chancery.dev/lineage";
/// Incarnation of a pod or a record.
pub(super) const INCARNATION: &str = "chancery.dev/incarnation";
/// Volume of a claim or a record.
pub(super) const VOLUME: &str = "chancery.dev/volume";
/// Revision of the command that created a pod.
pub(super) const REVISION: &str = "chancery.dev/revision";
/// Number of the pod in its incarnation.
pub(super) const INDEX: &str = "chancery.dev/index";

/// Owner of Kubernetes objects: an executor's fleet and cluster, and its epoch.
#[derive(Clone, Debug)]
pub(super) struct ObjectOwner {
    pub(super) fleet: FleetName,
    pub(super) cluster: ClusterName,
    pub(super) epoch: u64,
}

impl ObjectOwner {
    /// Returns the selector of all objects of the fleet's cluster that have the label `key`.
    pub(super) fn selector(&self, key: &str) -> String {
        format!("{FLEET}={},{CLUSTER}={},{key}", self.fleet, self.cluster)
    }

    /// Returns the selector of the pods or claims of one incarnation or volume.
    pub(super) fn selector_of(&self, object: ObjectId) -> String {
        let (key, id) = id_label(object);
        format!("{}={id}", self.selector(key))
    }

    /// Whether an object with these labels is of the fleet's cluster.
    pub(super) fn owns(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let is = |key: &str, value: &str| {
            labels.is_some_and(|all| all.get(key).is_some_and(|found| found == value))
        };
        is(FLEET, self.fleet.as_str()) && is(CLUSTER, self.cluster.as_str())
    }

    /// Returns the labels that every object has.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (FLEET.to_owned(), self.fleet.to_string()),
            (CLUSTER.to_owned(), self.cluster.to_string()),
            (EPOCH.to_owned(), self.epoch.to_string()),
        ])
    }

    /// Returns the labels of the records, pods and claims of an object.
    pub(super) fn labels_of(&self, object: ObjectId) -> BTreeMap<String, String> {
        let mut labels = self.labels();
        labels.insert(LINEAGE.to_owned(), object.lineage().to_string());
        let (key, id) = id_label(object);
        labels.insert(key.to_owned(), id);
        labels
    }

    /// Returns the name of the object that stores the executor's id, epoch and head.
    pub(super) fn store_name(&self) -> String {
        format!("chancery-{}-{}", self.fleet, self.cluster)
    }
}

/// Returns the label with the id of an object.
fn id_label(object: ObjectId) -> (&'static str, String) {
    match object {
        ObjectId::Incarnation(id) => (INCARNATION, id.to_string()),
        ObjectId::Volume(id) => (VOLUME, id.to_string()),
    }
}

/// Returns the id of an object from its labels, if it has one.
pub(super) fn object_of(labels: Option<&BTreeMap<String, String>>) -> Option<ObjectId> {
    let labels = labels?;
    let incarnation = labels.get(INCARNATION).and_then(|id| id.parse().ok()).map(ObjectId::Incarnation);
    incarnation.or_else(|| labels.get(VOLUME)?.parse().ok().map(ObjectId::Volume))
}

/// Returns the name of the record of an object.
pub(super) fn record_name(object: ObjectId) -> String {
    match object {
        ObjectId::Incarnation(id) => format!("chancery-incarnation-{id}"),
        ObjectId::Volume(id) => volume_name(id),
    }
}

/// Returns the name of a volume's record and claim.
pub(super) fn volume_name(id: chancery_events::id::VolumeId) -> String {
    format!("chancery-volume-{id}")
}

/// Maximum number of characters of the plan's name in the name of a pod.
const PLAN: usize = 20;

/// Returns the name of a pod, at most 63 bytes: the plan for people, then the incarnation and the pod's number in it.
pub(super) fn pod_name(
    incarnation: chancery_events::id::IncarnationId,
    spec: &IncarnationSpec,
    index: u16,
) -> String {
    let plan = spec.plan.as_str();
    let plan = plan[..plan.len().min(PLAN)].trim_end_matches(['-', '.']).replace('.', "-");
    format!("{plan}-{incarnation}-{index}")
}

/// Returns the labels of a pod: those of the plan, then those of the executor, which a plan cannot change.
pub(super) fn pod_labels(
    owner: &ObjectOwner,
    object: ObjectId,
    spec: &IncarnationSpec,
    revision: u32,
    index: u16,
) -> BTreeMap<String, String> {
    let plan = spec.labels.labels.iter().filter(|(key, _)| !key.as_str().starts_with(PREFIX));
    let mut labels: BTreeMap<_, _> =
        plan.map(|(key, value)| (key.as_str().to_owned(), value.clone())).collect();
    labels.extend(owner.labels_of(object));
    for (key, value) in [
        ("plan", spec.plan.to_string()),
        ("service", spec.labels.service.to_string()),
        ("replica", spec.replica.to_string()),
        ("deployment", spec.labels.deployment.to_string()),
    ] {
        labels.insert(format!("{PREFIX}{key}"), value);
    }
    labels.insert(REVISION.to_owned(), revision.to_string());
    labels.insert(INDEX.to_owned(), index.to_string());
    labels
}
