//! Volumes: invariant 3, one user at a time; invariant 4, each counted once in storage that fits. Invariant
//! 8: none is destroyed before its request, in use, or without proof.

use std::collections::BTreeMap;

use chancery_events::fact::{
    CommandEffect, IncarnationEnd, IncarnationReserved, Requester, VolumeCommandFailed, VolumeCreated,
    VolumeDeletionStarted, VolumeDestroyRequested, VolumeDestroyed, VolumeLost, VolumeReady,
    VolumeSnapshotStarted,
};
use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::intent::Intent;
use chancery_events::name::{ClusterName, NodeName, ReplicaName, StorageClass, VolumeName};
use chancery_events::observation::{ObjectReport, Observation, ObservedState};
use chancery_events::spec::{NodeState, PlanSpec, VolumeDeletion};

use super::state::{
    CheckedFleet, FactLocation, Incarnation, IncarnationProgress, LastInput, Node, OperationProgress,
};
use super::violation::{InvariantViolation, RuleResult, demand};

/// Storage with a name.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Volume {
    pub(super) id: VolumeId,
    cluster: ClusterName,
    pub(super) node: NodeName,
    class: StorageClass,
    capacity: u64,
    pub(super) owner: Option<ReplicaName>,
    on_delete: VolumeDeletion,
    is: VolumeProgress,
    /// Whether a deletion was requested.
    goes: bool,
    pub(super) user: Option<IncarnationId>,
    /// Whether an incarnation that uses the volume was started.
    used: bool,
    revision: u32,
    command: Option<(CommandEffect, u32)>,
}

/// State of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum VolumeProgress {
    Ensuring,
    Ready,
    Lost,
    Destroying,
}

impl Node {
    /// Reserves storage for a volume, existing or planned.
    fn store(&mut self, class: &StorageClass, bytes: u64) {
        let held = self.volumes.entry(class.clone()).or_default();
        *held = held.saturating_add(bytes);
    }

    fn unstore(&mut self, name: &NodeName, class: &StorageClass, bytes: u64) -> RuleResult {
        let more =
            || InvariantViolation::new(4, format!("more storage is freed on node {name} than was reserved"));
        let held = self.volumes.get_mut(class).ok_or_else(more)?;
        *held = held.checked_sub(bytes).ok_or_else(more)?;
        Ok(())
    }
}

impl CheckedFleet {
    fn volume(&mut self, name: &VolumeName) -> Result<&mut Volume, InvariantViolation> {
        let unknown = || InvariantViolation::new(5, format!("there is no volume {name}"));
        self.volumes.get_mut(name).ok_or_else(unknown)
    }

    fn storage_of(&mut self, name: &NodeName) -> Result<&mut Node, InvariantViolation> {
        let gone = || InvariantViolation::new(4, format!("node {name} was deleted while a volume was on it"));
        self.nodes.get_mut(name).ok_or_else(gone)
    }

    /// Checks the storage that a new incarnation reserves: as in its spec, less its existing volumes.
    pub(super) fn stores(&self, fact: &IncarnationReserved, spec: &PlanSpec) -> RuleResult {
        let mut mounts: Vec<_> = spec.claims(&fact.replica).map(|(name, _)| name).collect();
        mounts.sort();
        demand!(
            4,
            fact.mounts == mounts,
            "an incarnation of {} will use {:?}, not {mounts:?}",
            fact.replica,
            fact.mounts
        );
        let cluster = self.node(&fact.node)?.cluster.clone();
        let mut needed = BTreeMap::<StorageClass, u64>::new();
        for (name, claim) in spec.claims(&fact.replica) {
            let there = self.volumes.get(&name).filter(|volume| !volume.goes);
            if let Some(volume) = there {
                let near = Some(&volume.cluster) == cluster.as_ref();
                demand!(4, near, "an incarnation on {} will use volume {name} of another cluster", fact.node);
                demand!(
                    8,
                    volume.is != VolumeProgress::Lost,
                    "an incarnation will use volume {name}, which is lost"
                );
            }
            let needs = match there {
                Some(volume) if volume.node == fact.node => 0,
                Some(volume) => volume.capacity,
                None => claim.capacity,
            };
            *needed.entry(claim.class.clone()).or_default() += needs;
        }
        needed.retain(|_, bytes| *bytes > 0);
        demand!(
            4,
            fact.reserved_storage == needed,
            "an incarnation of {} reserves {:?} of storage, and needs {needed:?}",
            fact.replica,
            fact.reserved_storage
        );
        Ok(())
    }

    pub(super) fn volume_created(&mut self, fact: &VolumeCreated, at: FactLocation) -> RuleResult {
        let name = &fact.name;
        demand!(5, !self.volumes.contains_key(name), "volume {name} is made a second time");
        let run = self.incarnation(fact.incarnation)?.clone();
        let begun = self.operation(run.operation)?.stage == OperationProgress::Running;
        let due = run.progress == IncarnationProgress::Reserved && begun && run.mounts.contains(name);
        demand!(6, due, "volume {name} is made for {}, which will not use it now", fact.incarnation);
        let waits = run
            .starts_after
            .is_some_and(|old| self.incarnation(old).is_ok_and(|old| !old.progress.is_over()));
        demand!(6, !waits, "volume {name} is made before its user's predecessor ended");
        demand!(
            4,
            run.node == fact.node,
            "volume {name} is made on {}, and its user is on {}",
            fact.node,
            run.node
        );
        let own = fact.owner.as_ref().is_none_or(|owner| *owner == run.replica);
        demand!(4, own, "volume {name} is made for {}, and is of {:?}", run.replica, fact.owner);
        // The volume now occupies the storage that was reserved for it.
        let held = run.reserved_storage.get(&fact.class).copied().unwrap_or(0).min(fact.capacity);
        if let Some(of) = self.incarnation_mut(fact.incarnation)?.reserved_storage.get_mut(&fact.class) {
            *of -= held;
        }
        let node = self.storage_of(&fact.node)?;
        node.unstore(&fact.node, &fact.class, held)?;
        node.store(&fact.class, fact.capacity);
        node.has_capacity(&fact.node)?;
        let volume = Volume {
            id: VolumeId::issue(at.lineage, at.position),
            cluster: run.cluster,
            node: fact.node.clone(),
            class: fact.class.clone(),
            capacity: fact.capacity,
            owner: fact.owner.clone(),
            on_delete: fact.on_delete,
            is: VolumeProgress::Ensuring,
            goes: false,
            user: None,
            used: false,
            revision: 1,
            command: Some((CommandEffect::Ensure, 1)),
        };
        self.volumes.insert(name.clone(), volume);
        Ok(())
    }

    pub(super) fn snapshot_started(&mut self, fact: &VolumeSnapshotStarted, at: FactLocation) -> RuleResult {
        let name = &fact.name;
        demand!(5, !self.volumes.contains_key(name), "volume {name} is made a second time");
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::VolumeSnapshot(ask)) if ask.name == fact.source && ask.snapshot == *name
        );
        demand!(8, asked, "a snapshot {name} of volume {} is made without a request", fact.source);
        let source = self.volume(&fact.source)?.clone();
        demand!(5, source.id == fact.source_id, "the source of {name} is another volume");
        demand!(
            6,
            source.is == VolumeProgress::Ready,
            "volume {} is copied, and does not exist",
            fact.source
        );
        demand!(8, !source.goes, "volume {} is copied, and being deleted", fact.source);
        let same = (&source.node, &source.class, source.capacity);
        let is_same = same == (&fact.node, &fact.class, fact.capacity);
        demand!(4, is_same, "snapshot {name} is unlike its source {}", fact.source);
        let node = self.storage_of(&fact.node)?;
        node.store(&fact.class, fact.capacity);
        node.has_capacity(&fact.node)?;
        let volume = Volume {
            id: VolumeId::issue(at.lineage, at.position),
            owner: None,
            on_delete: VolumeDeletion::Keep,
            is: VolumeProgress::Ensuring,
            goes: false,
            user: None,
            used: true,
            revision: 1,
            command: Some((CommandEffect::Ensure, 1)),
            ..source
        };
        self.volumes.insert(name.clone(), volume);
        Ok(())
    }

    /// Returns the report behind a fact about a volume, from its cluster's session alone.
    fn report_of(
        &mut self,
        name: &VolumeName,
        at: FactLocation,
    ) -> Result<Option<ObjectReport<VolumeId>>, InvariantViolation> {
        let volume = self.volume(name)?.clone();
        let Some(input) = self.input_of(at) else { return Ok(None) };
        let Some((by, Observation::VolumeReported(reported))) = input.observation() else { return Ok(None) };
        demand!(5, reported.report.object == volume.id, "a report about another volume changes {name}");
        self.speaks_for(reported.session, by, &volume.cluster)?;
        demand!(5, reported.report.revision >= volume.revision, "a stale report changes volume {name}");
        Ok(Some(reported.report.clone()))
    }

    pub(super) fn volume_ready(&mut self, fact: &VolumeReady, at: FactLocation) -> RuleResult {
        let report = self.report_of(&fact.name, at)?;
        let seen = report.is_some_and(|report| matches!(report.observed, ObservedState::Ready { .. }));
        demand!(5, seen, "volume {} is called ready without a report", fact.name);
        let volume = self.volume(&fact.name)?;
        let was = matches!(volume.is, VolumeProgress::Ensuring | VolumeProgress::Lost);
        demand!(5, was, "volume {} is made a second time", fact.name);
        (volume.is, volume.command) = (VolumeProgress::Ready, None);
        Ok(())
    }

    pub(super) fn volume_failed(&mut self, fact: &VolumeCommandFailed, at: FactLocation) -> RuleResult {
        let name = &fact.name;
        let report = self.report_of(name, at)?;
        let seen = report.is_some_and(|report| matches!(report.observed, ObservedState::Failed { .. }));
        demand!(5, seen, "a command of volume {name} has failed without a report");
        let volume = self.volume(name)?;
        demand!(
            5,
            fact.revision == volume.revision,
            "command {} of volume {name} is not the last",
            fact.revision
        );
        let Some((effect, attempt)) = volume.command else {
            return Err(InvariantViolation::new(
                6,
                format!("a command of volume {name} has a second outcome"),
            ));
        };
        demand!(5, fact.attempt == attempt, "attempt {} of volume {name} is not the last", fact.attempt);
        let is_tried_again = fact.not_before.is_some();
        demand!(
            6,
            is_tried_again || effect == CommandEffect::Ensure,
            "a {effect} of volume {name} is given up"
        );
        volume.command = is_tried_again.then_some((effect, attempt + 1));
        Ok(())
    }

    pub(super) fn volume_lost(&mut self, fact: &VolumeLost, at: FactLocation) -> RuleResult {
        let name = &fact.name;
        let report = self.report_of(name, at)?;
        let seen = report.is_some_and(|report| {
            matches!(report.observed, ObservedState::Ended { .. } | ObservedState::Gone)
        });
        let node = self.volume(name)?.node.clone();
        let expunged = self.node(&node)?.state == NodeState::Expunged;
        demand!(8, seen || expunged, "volume {name} is called lost, and nothing proves it");
        let volume = self.volume(name)?;
        let was = matches!(volume.is, VolumeProgress::Ensuring | VolumeProgress::Ready);
        demand!(5, was, "volume {name} is called lost, and was not there");
        (volume.is, volume.command) = (VolumeProgress::Lost, None);
        Ok(())
    }

    pub(super) fn volume_removing(&mut self, fact: &VolumeDeletionStarted, at: FactLocation) -> RuleResult {
        let name = &fact.name;
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::VolumeDelete(ask)) if ask.name == *name
        );
        let volume = self.volume(name)?;
        let unmade = volume.is == VolumeProgress::Ensuring && volume.command.is_none();
        let may = match &fact.requested_by {
            Requester::Actor(_) => asked,
            Requester::Rule(rule) => unmade && rule == "volume/unmade",
            Requester::Disruption { .. } => false,
        };
        demand!(8, may, "volume {name} is being deleted without a request");
        if asked {
            self.may_delete_volume(name, at)?;
        }
        let volume = self.volume(name)?;
        demand!(5, !volume.goes, "volume {name} is being deleted already");
        volume.goes = true;
        Ok(())
    }

    pub(super) fn volume_destroying(&mut self, fact: &VolumeDestroyRequested) -> RuleResult {
        let name = &fact.name;
        let volume = self.volume(name)?;
        demand!(8, volume.goes, "volume {name} is destroyed without a request");
        demand!(8, volume.user.is_none(), "volume {name} is destroyed while {:?} uses it", volume.user);
        demand!(5, volume.is != VolumeProgress::Destroying, "volume {name} is being destroyed already");
        volume.is = VolumeProgress::Destroying;
        volume.revision += 1;
        volume.command = Some((CommandEffect::Kill, 1));
        Ok(())
    }

    pub(super) fn volume_destroyed(&mut self, fact: &VolumeDestroyed, at: FactLocation) -> RuleResult {
        let name = &fact.name;
        let report = self.report_of(name, at)?;
        let seen = report.is_some_and(|report| report.observed == ObservedState::Gone);
        let volume = self.volume(name)?.clone();
        let expunged = self.node(&volume.node)?.state == NodeState::Expunged;
        let proved = seen && volume.is == VolumeProgress::Destroying;
        demand!(8, proved || (expunged && volume.goes), "volume {name} is called destroyed without proof");
        demand!(8, volume.user.is_none(), "volume {name} is destroyed while {:?} uses it", volume.user);
        self.storage_of(&volume.node)?.unstore(&volume.node, &volume.class, volume.capacity)?;
        self.volumes.remove(name);
        Ok(())
    }

    /// Makes a started incarnation the only user of its volumes, on its node.
    pub(super) fn take_volumes(
        &mut self,
        id: IncarnationId,
        run: &Incarnation,
        mounts: &[VolumeName],
    ) -> RuleResult {
        demand!(6, *mounts == run.mounts, "incarnation {id} starts with {mounts:?}, not {:?}", run.mounts);
        for (class, bytes) in &run.reserved_storage {
            self.storage_of(&run.node)?.unstore(&run.node, class, *bytes)?;
        }
        self.incarnation_mut(id)?.reserved_storage.clear();
        let plan = self.replica(&run.replica)?.plan.clone();
        let spec = self.plan(&plan)?.spec_of(&run.deployment)?;
        let on_delete: BTreeMap<_, _> =
            spec.claims(&run.replica).map(|(name, claim)| (name, claim.on_delete)).collect();
        for name in mounts {
            let volume = self.volume(name)?;
            volume.on_delete = on_delete.get(name).copied().unwrap_or(volume.on_delete);
            demand!(
                6,
                volume.is == VolumeProgress::Ready,
                "incarnation {id} starts, and volume {name} does not exist"
            );
            demand!(8, !volume.goes, "incarnation {id} starts to use volume {name}, which is being deleted");
            let user = volume.user.replace(id);
            demand!(3, user.is_none(), "incarnation {id} starts to use volume {name}, which {user:?} uses");
            demand!(4, volume.cluster == run.cluster, "volume {name} leaves cluster {}", volume.cluster);
            let from = std::mem::replace(&mut volume.node, run.node.clone());
            let (class, capacity) = (volume.class.clone(), volume.capacity);
            self.storage_of(&from)?.unstore(&from, &class, capacity)?;
            self.storage_of(&run.node)?.store(&class, capacity);
        }
        self.node(&run.node)?.has_capacity(&run.node)
    }

    /// Notes that a started incarnation may have written to its volumes.
    pub(super) fn fill_volumes(&mut self, id: IncarnationId) {
        for volume in self.volumes.values_mut().filter(|volume| volume.user == Some(id)) {
            volume.used = true;
        }
    }

    /// Whether volumes of the cluster are counted on the node.
    pub(super) fn has_volumes_of(&self, node: &NodeName, cluster: Option<&ClusterName>) -> bool {
        self.volumes.values().any(|volume| volume.node == *node && Some(&volume.cluster) == cluster)
    }

    /// Frees what an ended incarnation used, and nothing else.
    pub(super) fn free_volumes(
        &mut self,
        id: IncarnationId,
        mounts: &[VolumeName],
        end: &IncarnationEnd,
    ) -> RuleResult {
        let used: Vec<_> = self
            .volumes
            .iter()
            .filter(|(_, volume)| volume.user == Some(id))
            .map(|(name, _)| name.clone())
            .collect();
        demand!(3, used == mounts, "incarnation {id} used {used:?}, and frees {mounts:?}");
        let started = !matches!(end, IncarnationEnd::Unwound { .. });
        for name in mounts {
            let volume = self.volume(name)?;
            volume.user = None;
            volume.used |= started;
        }
        Ok(())
    }

    /// Deletes or keeps a deleted replica's volumes, as the last version defines; deletes empty ones.
    pub(super) fn leave_volumes(&mut self, replica: &ReplicaName, volumes: &[VolumeName]) -> RuleResult {
        let own = |volume: &Volume| volume.owner.as_ref() == Some(replica);
        let owned: Vec<_> =
            self.volumes.iter().filter(|(_, volume)| own(volume)).map(|(name, _)| name.clone()).collect();
        demand!(8, owned == volumes, "replica {replica} had {owned:?}, and leaves {volumes:?}");
        for name in volumes {
            let volume = self.volume(name)?;
            volume.owner = None;
            volume.goes |= volume.on_delete == VolumeDeletion::Destroy || !volume.used;
        }
        Ok(())
    }

    /// Counts the volumes on the node.
    pub(super) fn volumes_on(&self, node: &NodeName) -> usize {
        self.volumes.values().filter(|volume| volume.node == *node).count()
    }
}
