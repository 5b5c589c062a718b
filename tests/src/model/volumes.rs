//! Volumes: changes by facts, and their rows.

use std::collections::BTreeMap;

use chancery_events::fact::{Fact, IncarnationEnd, IncarnationRunning, IncarnationStarted, Requester};
use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::name::{ClusterName, NodeName, ReplicaName, StorageClass, VolumeName};
use chancery_events::spec::VolumeDeletion;
use chancery_projector::rows::{VolumeRow, VolumeStatus};

use super::entities::{FactLocation, Incarnation, IncarnationProgress, StampedEntity, VisibleEntities};

#[derive(Clone, Debug)]
pub(super) struct Volume {
    id: VolumeId,
    class: StorageClass,
    capacity: u64,
    owner: Option<ReplicaName>,
    source: Option<VolumeName>,
    cluster: Option<ClusterName>,
    node: NodeName,
    word: VolumeStatus,
    on_delete: VolumeDeletion,
    user: Option<IncarnationId>,
    used: bool,
    goes: Option<Requester>,
}

impl VisibleEntities {
    /// Takes a fact about volumes, or one that affects them.
    pub(super) fn stored(&mut self, fact: &Fact, at: FactLocation) {
        match fact {
            Fact::VolumeCreated(x) => {
                let volume = self.new_volume(&x.node, (&x.class, x.capacity), at);
                let volume = Volume { owner: x.owner.clone(), on_delete: x.on_delete, ..volume };
                self.add_volume(&x.name, volume, at);
                if let Some(run) = self.incarnations.get_mut(&x.incarnation) {
                    let held = run.is.stores.entry(x.class.clone()).or_default();
                    *held = held.saturating_sub(x.capacity);
                    run.is.stores.retain(|_, held| *held > 0);
                }
            }
            Fact::VolumeSnapshotStarted(x) => {
                let volume = self.new_volume(&x.node, (&x.class, x.capacity), at);
                self.add_volume(&x.name, Volume { source: Some(x.source.clone()), used: true, ..volume }, at);
            }
            Fact::VolumeReady(x) => self.volume(&x.name, |is| is.word = VolumeStatus::Ready),
            Fact::VolumeLost(x) => self.volume(&x.name, |is| is.word = VolumeStatus::Lost),
            Fact::VolumeDeletionStarted(x) => {
                self.volume(&x.name, |is| is.goes = Some(x.requested_by.clone()));
            }
            Fact::VolumeDestroyRequested(x) => self.volume(&x.name, |is| is.word = VolumeStatus::Destroying),
            Fact::VolumeDestroyed(x) => {
                self.volumes.remove(&x.name);
            }
            Fact::IncarnationStartRequested(x) if !x.mounts.is_empty() => {
                let Some(run) = self.incarnations.get_mut(&x.incarnation) else { return };
                run.is.stores.clear();
                let (node, replica) = (run.is.fact.node.clone(), run.is.fact.replica.clone());
                let version = run.is.deployment.clone();
                let of = self.replicas.get(&replica).map(|kept| kept.is.plan.clone());
                let plan = of.as_ref().and_then(|plan| Some(&self.plans.get(plan)?.is));
                let key = of.clone().map(|plan| (plan, version));
                let generation = key.and_then(|key| Some(self.deployments.get(&key)?.is.generation));
                let spec = plan.zip(generation).and_then(|(plan, generation)| plan.specs.get(&generation));
                let claims = spec.into_iter().flat_map(|spec| spec.claims(&replica));
                let on_delete: BTreeMap<_, _> = claims.map(|(name, claim)| (name, claim.on_delete)).collect();
                for name in &x.mounts {
                    self.volume(name, |is| {
                        (is.user, is.node) = (Some(x.incarnation), node.clone());
                        is.on_delete = on_delete.get(name).copied().unwrap_or(is.on_delete);
                    });
                }
            }
            Fact::IncarnationStarted(IncarnationStarted { incarnation: id, .. })
            | Fact::IncarnationRunning(IncarnationRunning { incarnation: id, .. }) => {
                for kept in self.volumes.values_mut().filter(|kept| kept.is.user == Some(*id)) {
                    kept.is.used = true;
                }
            }
            Fact::IncarnationEnded(x) => {
                let started = !matches!(x.end, IncarnationEnd::Unwound { .. });
                for name in &x.mounts {
                    self.volume(name, |is| (is.user, is.used) = (None, is.used || started));
                }
            }
            Fact::ReplicaDeleted(x) => {
                for name in &x.volumes {
                    let rule = |word| Requester::Rule(format!("replica/{}/{word}", x.name));
                    self.volume(name, |is| {
                        is.owner = None;
                        let why = match is.on_delete {
                            VolumeDeletion::Destroy => "on_delete",
                            VolumeDeletion::Keep if !is.used => "unused",
                            VolumeDeletion::Keep => return,
                        };
                        is.goes.get_or_insert_with(|| rule(why));
                    });
                }
            }
            // The outcome of a volume's command is only in its message; no other fact affects volumes.
            _ => {}
        }
    }

    fn new_volume(&self, node: &NodeName, size: (&StorageClass, u64), at: FactLocation) -> Volume {
        Volume {
            id: VolumeId::issue(at.lineage, at.position),
            class: size.0.clone(),
            capacity: size.1,
            owner: None,
            source: None,
            cluster: self.nodes.get(node).and_then(|node| node.is.cluster.clone()),
            node: node.clone(),
            word: VolumeStatus::Creating,
            on_delete: VolumeDeletion::Keep,
            user: None,
            used: false,
            goes: None,
        }
    }

    fn add_volume(&mut self, name: &VolumeName, volume: Volume, at: FactLocation) {
        let mut kept = at.stamp(volume);
        kept.stamps.version = 0;
        self.volumes.insert(name.clone(), kept);
    }

    fn volume(&mut self, name: &VolumeName, how: impl FnOnce(&mut Volume)) {
        if let Some(volume) = self.volumes.get_mut(name) {
            how(&mut volume.is);
        }
    }

    /// Sums the bytes of the node's storage, by class, of its volumes and of reservations for future ones.
    pub(super) fn storage(&self, node: &NodeName) -> BTreeMap<StorageClass, u64> {
        let mut sums = BTreeMap::<StorageClass, u64>::new();
        let volumes = self.volumes.values().filter(|kept| kept.is.node == *node);
        for volume in volumes.map(|kept| &kept.is) {
            *sums.entry(volume.class.clone()).or_default() += volume.capacity;
        }
        let runs = self.incarnations.values().map(|kept| &kept.is);
        for run in runs.filter(|run| run.fact.node == *node && !run.is_over()) {
            for (class, bytes) in &run.stores {
                *sums.entry(class.clone()).or_default() += bytes;
            }
        }
        sums
    }
}

pub(super) fn row(all: &VisibleEntities, name: &VolumeName, kept: &StampedEntity<Volume>) -> VolumeRow {
    let is = &kept.is;
    let user = is.user.and_then(|user| all.incarnations.get(&user));
    row!(VolumeRow, kept, {
        name: name.clone(),
        id: is.id,
        state: is.word,
        cluster: is.cluster.clone().expect("volumes are made on nodes of clusters"),
        node: is.node.clone(),
        class: is.class.clone(),
        capacity: is.capacity,
        owner: is.owner.clone(),
        on_delete: is.on_delete,
        replica: user.map(|user| user.is.fact.replica.clone()),
        incarnation: is.user,
        source: is.source.clone(),
        deletion_requested_by: is.goes.clone(),
        message: String::new(),
    })
}

/// Whether the incarnation waits for its volumes; then nothing is requested of it at first.
pub(super) fn waits(run: &Incarnation) -> bool {
    run.progress == IncarnationProgress::Reserved && !run.fact.mounts.is_empty()
}
