//! State of one object, and the next step towards its target. Pure.
//!
//! An object is a record in the executor's namespace, and pods or a claim in the namespace of its plan. The record is
//! written before the first of them is created. Everything follows from record and existing objects, so a later
//! executor continues where an earlier one stopped.
//!
//! | target | record and objects | next |
//! |---|---|---|
//! | up | accepted | nothing, until the command comes again |
//! | up | creating, by this executor; objects missing | create the next one |
//! | up | creating, by an earlier executor; a pod is missing | an end: the pod may have run |
//! | up | all objects exist | record that, with whether all are ready |
//! | up | created; a container ended, or an object is missing | record the exit, then delete the rest |
//! | down, or removed | objects exist | delete each by its uid |
//! | any | nothing exists, an end is due | prove that, then record the proved end, or the tombstone |
//! | any | tombstone or proved end, but a pod exists | delete it: a late request created it |
//!
//! Only a command destroys a claim: a claim that appears again after its loss may be a restored copy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::{IncarnationExit, ProcessInfo, ProcessStatus};
use chancery_events::protocol::{IncarnationSpec, ObjectSpec};

use super::claims::ObservedClaim;
use super::labels::pod_name;
use super::pods::{ObservedPod, exit, pod_count, processes};
use super::store::{ObjectRecord, RecordedEnd, StartProgress};
use crate::reconcile::{KnownObject, ObjectState, ObjectTarget, ReadyHistory, TargetGoal, lose_sight};

/// Time until the progress of an incarnation's start is recorded: one write has its creation and its readiness, and the
/// starts of a large deployment do not compete with these writes.
const PROGRESS: Duration = Duration::from_secs(10);
/// Time for which the record of a created claim waits until the claim is ready, so that one write has both.
const BOUND_SOON: Duration = Duration::from_secs(1);

/// Object as this executor knows it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct ObjectView {
    pub(super) object: ObjectId,
    pub(super) record: Option<ObjectRecord>,
    /// Target that counts: that of the record, or of a later stop, which is recorded with the end.
    pub(super) order: Option<ObjectTarget>,
    /// Whether this executor received the command. An accepted command of an earlier executor starts nothing until the
    /// same command comes again.
    pub(super) is_begun: bool,
    /// Whether this executor has seen the incarnation ready. The record states it later.
    pub(super) was_ready: bool,
    /// Existing pods, by uid.
    pub(super) pods: BTreeMap<String, ObservedPod>,
    /// Last state of pods that are not seen any more, by number.
    pub(super) gone: BTreeMap<u16, ObservedPod>,
    /// Uids of pods that are not seen any more: a late event about one changes nothing.
    pub(super) dead: BTreeSet<String>,
    /// Uids of pods that exist and that no list or watch shows: each must be read to find its end.
    pub(super) hidden: BTreeSet<String>,
    /// Existing claim of a volume.
    pub(super) claim: Option<ObservedClaim>,
    /// Shortest grace of a deletion that was requested, in seconds, by uid.
    pub(super) deleted: BTreeMap<String, i64>,
}

/// Next step of an object.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum ObjectStep {
    /// Nothing to do until something changes.
    Rest,
    /// Create the pod with this number.
    CreatePod(u16),
    /// Create the claim of the volume.
    CreateClaim,
    /// Delete an object that exists.
    Delete(ObjectDeletion),
    /// Write the record.
    Write(Box<ObjectRecord>),
    /// Write the record after this time: more may be recorded with it until then.
    WriteLater(Box<ObjectRecord>, Duration),
}

/// Deletion of a pod or a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ObjectDeletion {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Time until the processes are killed, in seconds; absent for claims.
    pub(super) grace: Option<i64>,
}

impl ObjectView {
    pub(super) fn new(object: ObjectId) -> ObjectView {
        ObjectView {
            object,
            record: None,
            order: None,
            is_begun: false,
            was_ready: false,
            pods: BTreeMap::new(),
            gone: BTreeMap::new(),
            dead: BTreeSet::new(),
            hidden: BTreeSet::new(),
            claim: None,
            deleted: BTreeMap::new(),
        }
    }

    /// Whether nothing of the object is known.
    pub(super) fn is_empty(&self) -> bool {
        self.record.is_none() && !self.exists()
    }

    /// Whether a pod or a claim of the object exists.
    pub(super) fn exists(&self) -> bool {
        !self.pods.is_empty() || self.claim.is_some()
    }

    /// Returns the recorded spec of an incarnation.
    pub(super) fn spec(&self) -> Option<&IncarnationSpec> {
        self.record.as_ref()?.command.spec.as_ref().and_then(ObjectSpec::incarnation)
    }

    fn history(&self) -> ReadyHistory {
        let is_recorded = self.record.as_ref().is_some_and(|record| record.start == StartProgress::Ready);
        if self.was_ready || is_recorded { ReadyHistory::Ready } else { ReadyHistory::NeverReady }
    }

    /// Returns each pod by its number: the existing one, or the last state of one that is not seen any more.
    fn by_number(&self) -> BTreeMap<u16, &ObservedPod> {
        self.gone.values().chain(self.pods.values()).map(|pod| (pod.index, pod)).collect()
    }

    /// Returns the statuses of all processes.
    fn processes(&self) -> Vec<ProcessInfo> {
        self.spec().map(|spec| processes(spec, &self.by_number(), self.history())).unwrap_or_default()
    }

    /// Returns namespaces and names of all pods that the incarnation can have.
    pub(super) fn pod_names(&self) -> Vec<(String, String)> {
        let ObjectId::Incarnation(id) = self.object else { return Vec::new() };
        let Some(spec) = self.spec() else { return Vec::new() };
        let namespace = spec.labels.namespace.to_string();
        (0..pod_count(spec)).map(|index| (namespace.clone(), pod_name(id, spec, index))).collect()
    }

    /// Whether every pod of the incarnation was seen to be deleted, and none was only missing from a list or a watch.
    pub(super) fn is_proved_gone(&self) -> bool {
        if self.is_volume() {
            return false;
        }
        let count = self.spec().map_or(0, pod_count);
        (0..count).all(|index| self.gone.get(&index).is_some_and(|pod| pod.deleting.is_some()))
    }

    fn is_ready(&self) -> bool {
        match self.object {
            ObjectId::Incarnation(_) => {
                let all = self.processes();
                !all.is_empty() && all.iter().all(|process| process.status == ProcessStatus::Ready)
            }
            ObjectId::Volume(_) => self.claim.as_ref().is_some_and(|claim| claim.is_ready),
        }
    }

    fn is_volume(&self) -> bool {
        matches!(self.object, ObjectId::Volume(_))
    }

    /// Whether incarnations may use the volume.
    pub(super) fn is_usable(&self) -> bool {
        let order = self.order.or_else(|| Some(self.record.as_ref()?.command.order));
        order.is_some_and(|order| order.aim == TargetGoal::Up) && self.is_ready()
    }

    /// Whether processes of the incarnation exist, or may be started.
    pub(super) fn is_live(&self) -> bool {
        self.exists() || self.known().is_some_and(|known| !known.state.is_over())
    }

    /// Whether the incarnation mounts the volume.
    pub(super) fn mounts(&self, volume: VolumeId) -> bool {
        self.spec().is_some_and(|spec| spec.mounts().any(|mounted| mounted == volume))
    }

    /// Number of objects that the incarnation or the volume consists of.
    fn wanted(&self) -> usize {
        match self.object {
            ObjectId::Incarnation(_) => self.spec().map_or(0, |spec| usize::from(pod_count(spec))),
            ObjectId::Volume(_) => 1,
        }
    }

    fn existing(&self) -> usize {
        self.pods.len() + usize::from(self.claim.is_some())
    }

    /// Returns the state for [`crate::reconcile::step`] and [`crate::reconcile::report`].
    pub(super) fn known(&self) -> Option<KnownObject> {
        let Some(record) = &self.record else {
            // An object with the executor's labels and without a record: its record was removed by another party.
            let revision = self.pods.values().map(|pod| pod.revision).max().unwrap_or_default();
            let order = ObjectTarget { aim: TargetGoal::Up, attempt: 0, ..ObjectTarget::removal(revision) };
            let state = ObjectState::Starting { processes: Vec::new() };
            return self.exists().then_some(KnownObject { order, spec: None, state });
        };
        let order = self.order.unwrap_or(record.command.order);
        let spec = record.command.spec.clone();
        let up = || {
            let before = if self.is_ready() { ReadyHistory::Ready } else { self.history() };
            ObjectState::Up { processes: self.processes(), before }
        };
        let state = match (&record.end, &record.failure, record.start) {
            _ if record.tombstone.is_some() => ObjectState::Gone,
            (Some(end), ..) if end.is_proved => {
                ObjectState::Ended { exit: end.exit.clone(), processes: end.processes.clone() }
            }
            (_, Some(failure), _) if !self.exists() => {
                ObjectState::Failed { message: failure.message.clone(), retry: failure.retry }
            }
            // What is left of a failed start is being deleted.
            (_, Some(_), _) => ObjectState::Starting { processes: self.processes() },
            (None, None, StartProgress::Accepted) if !self.exists() && self.gone.is_empty() => {
                ObjectState::Accepted
            }
            (None, None, StartProgress::Accepted | StartProgress::Creating)
                if self.existing() < self.wanted() =>
            {
                ObjectState::Starting { processes: self.processes() }
            }
            // A claim without a volume is of no use yet.
            (None, None, start) if self.is_volume() && start < StartProgress::Ready && !self.is_ready() => {
                ObjectState::Starting { processes: Vec::new() }
            }
            (Some(_) | None, None, _) => up(),
        };
        Some(KnownObject { order, spec, state })
    }

    /// Returns the next step.
    pub(super) fn next(&self) -> ObjectStep {
        let Some(record) = &self.record else { return ObjectStep::Rest };
        let order = self.order.unwrap_or(record.command.order);
        let is_over = record.tombstone.is_some() || record.end.as_ref().is_some_and(|end| end.is_proved);
        let has_ended = is_over || record.end.is_some() || record.failure.is_some();
        if self.is_volume() && order.aim == TargetGoal::Up && has_ended && self.claim.is_some() {
            return ObjectStep::Rest;
        }
        if has_ended || order.aim != TargetGoal::Up {
            return self.down(record, &order, is_over);
        }
        match self.unrequested_exit(record) {
            Some(exit) => {
                let end = RecordedEnd { exit, processes: self.processes(), is_proved: !self.exists() };
                ObjectView::write(record, &order, Some(end))
            }
            None => self.up(record),
        }
    }

    /// Returns the exit of an incarnation that ended without a request.
    fn unrequested_exit(&self, record: &ObjectRecord) -> Option<IncarnationExit> {
        let pods = self.by_number();
        let found = exit(&self.processes(), &pods);
        if let Some(IncarnationExit::Failed { .. }) = found {
            return found;
        }
        // Nothing asked for the deletion: a status of 0 does not make its end a clean one.
        let deleted = pods.values().find(|pod| pod.deleting.is_some() || !self.pods.contains_key(&pod.uid));
        if let Some(pod) = deleted {
            return Some(IncarnationExit::Failed { reason: format!("pod {} was deleted", pod.name) });
        }
        if found.is_some() {
            return found;
        }
        let was_complete = match record.start {
            StartProgress::Created | StartProgress::Ready => true,
            // A missing pod may have run under an earlier executor. A claim has no processes.
            StartProgress::Creating => !self.is_begun && !self.is_volume(),
            StartProgress::Accepted => false,
        };
        (was_complete && self.existing() < self.wanted()).then(|| {
            let what = if self.is_volume() { "the claim of the volume" } else { "a pod" };
            IncarnationExit::Failed { reason: format!("{what} was deleted") }
        })
    }

    fn up(&self, record: &ObjectRecord) -> ObjectStep {
        match (record.start, self.object) {
            (StartProgress::Accepted, _) => return ObjectStep::Rest,
            (StartProgress::Creating, ObjectId::Incarnation(_)) => {
                let existing: BTreeSet<u16> = self.pods.values().map(|pod| pod.index).collect();
                let count = self.spec().map_or(0, pod_count);
                if let Some(missing) = (0..count).find(|index| !existing.contains(index)) {
                    return ObjectStep::CreatePod(missing);
                }
            }
            (StartProgress::Creating, ObjectId::Volume(_)) if self.claim.is_none() => {
                return ObjectStep::CreateClaim;
            }
            (StartProgress::Creating | StartProgress::Created | StartProgress::Ready, _) => {}
        }
        let is_ready = self.is_ready();
        let reached = if self.was_ready || is_ready { StartProgress::Ready } else { StartProgress::Created };
        if record.start >= reached {
            return ObjectStep::Rest;
        }
        let next = Box::new(ObjectRecord { start: reached, ..record.clone() });
        match (self.object, reached) {
            // The pods do not show any more that they were ready.
            (ObjectId::Incarnation(_), StartProgress::Ready) if !is_ready => ObjectStep::Write(next),
            // Until then, a later executor takes a missing pod for an end as well: it may have run.
            (ObjectId::Incarnation(_), _) => ObjectStep::WriteLater(next, PROGRESS),
            (ObjectId::Volume(_), StartProgress::Ready) => ObjectStep::Write(next),
            (ObjectId::Volume(_), _) => ObjectStep::WriteLater(next, BOUND_SOON),
        }
    }

    fn down(&self, record: &ObjectRecord, order: &ObjectTarget, is_over: bool) -> ObjectStep {
        let grace = super::pods::seconds(order.grace);
        let pod = self.pods.values().find(|pod| {
            let asked = self.deleted.get(&pod.uid).copied().or(pod.deleting);
            asked.is_none_or(|asked| asked > grace)
        });
        if let Some(pod) = pod {
            return ObjectStep::Delete(ObjectDeletion {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                grace: Some(grace),
            });
        }
        if let Some(claim) = self.claim.as_ref().filter(|claim| !self.deleted.contains_key(&claim.uid)) {
            return ObjectStep::Delete(ObjectDeletion {
                namespace: claim.namespace.clone(),
                name: claim.name.clone(),
                uid: claim.uid.clone(),
                grace: None,
            });
        }
        let is_buried = record.tombstone.is_some() || (is_over && order.aim != TargetGoal::Removed);
        if self.exists() || is_buried {
            return ObjectStep::Rest;
        }
        // A missing pod may have run under an earlier executor.
        let created_nothing = match record.start {
            StartProgress::Accepted => true,
            StartProgress::Creating => self.is_begun && self.gone.is_empty(),
            StartProgress::Created | StartProgress::Ready => false,
        };
        let never_ran = record.failure.is_some() || (created_nothing && record.end.is_none());
        match (order.aim, &record.end) {
            (TargetGoal::Up, None) => ObjectStep::Rest, // a failure, or a lost volume
            (TargetGoal::Removed, _) => ObjectView::bury(record, order),
            (TargetGoal::Down, _) if never_ran => ObjectView::bury(record, order),
            (TargetGoal::Up | TargetGoal::Down, Some(end)) => {
                let end = RecordedEnd { is_proved: true, ..end.clone() };
                ObjectView::write(record, order, Some(end))
            }
            (TargetGoal::Down, None) => {
                let mut processes = self.processes();
                lose_sight(&mut processes);
                let end = RecordedEnd { exit: IncarnationExit::Clean, processes, is_proved: true };
                ObjectView::write(record, order, Some(end))
            }
        }
    }

    fn write(record: &ObjectRecord, order: &ObjectTarget, end: Option<RecordedEnd>) -> ObjectStep {
        let mut next = ObjectRecord { end, ..record.clone() };
        next.command.order = *order;
        ObjectStep::Write(Box::new(next))
    }

    fn bury(record: &ObjectRecord, order: &ObjectTarget) -> ObjectStep {
        let mut next = ObjectRecord { tombstone: Some(order.revision), ..record.clone() };
        next.command.order = *order;
        ObjectStep::Write(Box::new(next))
    }
}

impl ObjectView {
    /// Notes that a start was recorded: nothing of an earlier one counts.
    pub(super) fn begin(&mut self) {
        self.is_begun = true;
        self.was_ready = false;
        self.gone.clear();
    }

    /// Takes over the state of a pod from an event.
    pub(super) fn see_pod(&mut self, pod: ObservedPod, exists: bool) {
        if self.dead.contains(&pod.uid) {
            return;
        }
        if exists {
            self.pods.insert(pod.uid.clone(), pod);
            self.was_ready |= self.is_ready();
        } else {
            self.lose_pod(pod);
        }
    }

    /// Takes over the answer to a request that created a pod, unless an event was faster.
    pub(super) fn add_pod(&mut self, pod: ObservedPod) {
        if !self.dead.contains(&pod.uid) {
            self.pods.entry(pod.uid.clone()).or_insert(pod);
        }
    }

    /// Whether the object had a pod with this uid.
    pub(super) fn knows(&self, uid: &str) -> bool {
        self.dead.contains(uid) || self.pods.contains_key(uid)
    }

    /// Takes over a pod that was read by its name, though neither list nor watch shows it.
    pub(super) fn find_pod(&mut self, pod: ObservedPod) {
        self.dead.remove(&pod.uid);
        self.hidden.insert(pod.uid.clone());
        self.gone.remove(&pod.index);
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// Notes that a pod is not seen any more.
    fn lose_pod(&mut self, pod: ObservedPod) {
        self.pods.remove(&pod.uid);
        self.deleted.remove(&pod.uid);
        self.hidden.remove(&pod.uid);
        self.dead.insert(pod.uid.clone());
        self.gone.insert(pod.index, pod);
    }

    /// Takes over a list that started after change `before`. Pods that were seen since are newer than the list.
    pub(super) fn take_list(&mut self, listed: ObjectView, before: u64) {
        let is_missing = |uid: &String, pod: &mut ObservedPod| {
            pod.seen_at <= before && !listed.pods.contains_key(uid) && !self.hidden.contains(uid)
        };
        let missing: Vec<_> = self.pods.extract_if(.., is_missing).collect();
        for (_, pod) in missing {
            self.lose_pod(pod);
        }
        for (uid, pod) in listed.pods {
            let is_newer = self.pods.get(&uid).is_some_and(|known| known.seen_at > before);
            if !is_newer && !self.dead.contains(&uid) {
                self.pods.insert(uid, pod);
            }
        }
        self.was_ready |= !self.is_volume() && self.is_ready();
        if self.claim.as_ref().is_none_or(|claim| claim.seen_at <= before) {
            self.claim = listed.claim;
        }
    }

    /// Takes over the state of a claim that was read or created.
    pub(super) fn see_claim(&mut self, claim: ObservedClaim, exists: bool) {
        if exists {
            self.claim = Some(claim);
        } else if self.claim.as_ref().is_some_and(|known| known.uid == claim.uid) {
            self.deleted.remove(&claim.uid);
            self.claim = None;
        }
    }

    /// Notes that the API has no object with this uid.
    pub(super) fn forget_uid(&mut self, uid: &str) {
        if self.claim.as_ref().is_some_and(|claim| claim.uid == uid) {
            self.claim = None;
        }
        if let Some(mut pod) = self.pods.remove(uid) {
            // As the API itself states: nothing else proves more.
            pod.deleting = pod.deleting.or(Some(0));
            self.lose_pod(pod);
        }
    }

    /// Notes that no pod of the incarnation exists, as the API states of each name.
    pub(super) fn prove_gone(&mut self) {
        for pod in self.gone.values_mut() {
            pod.deleting = pod.deleting.or(Some(0));
        }
    }
}

#[cfg(test)]
mod tests;
