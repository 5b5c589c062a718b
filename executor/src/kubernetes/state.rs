//! State of one object, and the next step towards its target. Pure.
//!
//! An object is a record in the executor's namespace, and pods or a claim in the namespace of its plan. The record is
//! written before the first of them is created, so an object without a record is not of this executor. Everything
//! follows from record and existing objects, so a later executor continues where an earlier one stopped.
//!
//! | target | record and objects | next |
//! |---|---|---|
//! | up | accepted, objects missing | create the next one |
//! | up | all objects exist | record that, with whether all are ready |
//! | up | created; a container ended, or an object is missing | record the exit, then delete the rest |
//! | down, or removed | objects exist | delete each by its uid |
//! | any | nothing exists, an end is due | record the proved end, or the tombstone |
//! | any | tombstone or proved end, but an object exists | delete it: a late request created it |

use std::collections::BTreeMap;

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::{IncarnationExit, ProcessInfo, ProcessStatus};
use chancery_events::protocol::{IncarnationSpec, ObjectSpec};

use super::claims::ObservedClaim;
use super::pods::{ObservedPod, exit, pod_count, processes};
use super::store::{ObjectRecord, RecordedEnd, StartProgress};
use crate::reconcile::{KnownObject, ObjectState, ObjectTarget, ReadyHistory, TargetGoal};

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
    /// Existing pods, by number.
    pub(super) pods: BTreeMap<u16, ObservedPod>,
    /// Last state of pods that no longer exist.
    pub(super) gone: BTreeMap<u16, ObservedPod>,
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
    /// Write the record after a while: more may soon be recorded with it.
    WriteLater(Box<ObjectRecord>),
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
            pods: BTreeMap::new(),
            gone: BTreeMap::new(),
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

    fn spec(&self) -> Option<&IncarnationSpec> {
        self.record.as_ref()?.command.spec.as_ref().and_then(ObjectSpec::incarnation)
    }

    fn history(&self) -> ReadyHistory {
        match self.record.as_ref().map(|record| record.start) {
            Some(StartProgress::Ready) => ReadyHistory::Ready,
            Some(StartProgress::Accepted | StartProgress::Created) | None => ReadyHistory::NeverReady,
        }
    }

    /// Returns the statuses of all processes.
    fn processes(&self) -> Vec<ProcessInfo> {
        let mut pods = self.gone.clone();
        pods.extend(self.pods.clone());
        self.spec().map(|spec| processes(spec, &pods, self.history())).unwrap_or_default()
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
            let state = ObjectState::Up { processes: Vec::new(), before: ReadyHistory::NeverReady };
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
            (_, None, StartProgress::Accepted) if !self.exists() && self.gone.is_empty() => {
                ObjectState::Accepted
            }
            (None, None, StartProgress::Accepted)
                if self.existing() < self.wanted() || (self.is_volume() && !self.is_ready()) =>
            {
                ObjectState::Starting { processes: self.processes() }
            }
            _ => up(),
        };
        Some(KnownObject { order, spec, state })
    }

    /// Returns the next step.
    pub(super) fn next(&self) -> ObjectStep {
        let Some(record) = &self.record else { return ObjectStep::Rest };
        let order = self.order.unwrap_or(record.command.order);
        let is_over = record.tombstone.is_some() || record.end.as_ref().is_some_and(|end| end.is_proved);
        if is_over || record.failure.is_some() || record.end.is_some() || order.aim != TargetGoal::Up {
            return self.down(record, &order, is_over);
        }
        match self.unrequested_exit(record) {
            Some(exit) => {
                let end = RecordedEnd { exit, processes: self.processes(), is_proved: !self.exists() };
                self.write(record, &order, Some(end))
            }
            None => self.up(record),
        }
    }

    /// Returns the exit of an incarnation that ended without a request.
    fn unrequested_exit(&self, record: &ObjectRecord) -> Option<IncarnationExit> {
        let processes = self.processes();
        let mut pods = self.gone.clone();
        pods.extend(self.pods.clone());
        if let Some(exit) = exit(&processes, &pods) {
            return Some(exit);
        }
        let was_complete = record.start > StartProgress::Accepted || !self.gone.is_empty();
        let is_leaving = self.pods.values().find(|pod| pod.deleting.is_some());
        if was_complete && self.existing() < self.wanted() {
            let reason = match self.object {
                ObjectId::Incarnation(_) => {
                    let missing =
                        self.gone.values().next().map(|pod| format!("pod {} was deleted", pod.name));
                    missing.unwrap_or_else(|| "a pod was deleted".to_owned())
                }
                ObjectId::Volume(_) => "the claim of the volume was deleted".to_owned(),
            };
            return Some(IncarnationExit::Failed { reason });
        }
        is_leaving.map(|pod| IncarnationExit::Failed { reason: format!("pod {} is being deleted", pod.name) })
    }

    fn up(&self, record: &ObjectRecord) -> ObjectStep {
        if record.start == StartProgress::Accepted {
            if !self.exists() && !self.is_begun {
                return ObjectStep::Rest;
            }
            match self.object {
                ObjectId::Incarnation(_) => {
                    let count = self.spec().map_or(0, pod_count);
                    if let Some(missing) = (0..count).find(|index| !self.pods.contains_key(index)) {
                        return ObjectStep::CreatePod(missing);
                    }
                }
                ObjectId::Volume(_) if self.claim.is_none() => return ObjectStep::CreateClaim,
                ObjectId::Volume(_) => {}
            }
        }
        let reached = if self.is_ready() { StartProgress::Ready } else { StartProgress::Created };
        if record.start >= reached {
            return ObjectStep::Rest;
        }
        let next = Box::new(ObjectRecord { start: reached, ..record.clone() });
        if reached == StartProgress::Ready { ObjectStep::Write(next) } else { ObjectStep::WriteLater(next) }
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
        if self.exists() || is_over {
            return ObjectStep::Rest;
        }
        let never_ran = record.failure.is_some()
            || (record.start == StartProgress::Accepted && self.gone.is_empty() && record.end.is_none());
        match (order.aim, &record.end) {
            (TargetGoal::Up, None) => ObjectStep::Rest,
            (TargetGoal::Removed, _) => self.bury(record, order),
            (TargetGoal::Down, _) if never_ran => self.bury(record, order),
            (TargetGoal::Up | TargetGoal::Down, Some(end)) => {
                let end = RecordedEnd { is_proved: true, ..end.clone() };
                self.write(record, order, Some(end))
            }
            (TargetGoal::Down, None) => {
                let mut processes = self.processes();
                for process in &mut processes {
                    if matches!(process.status, ProcessStatus::Ready | ProcessStatus::Starting) {
                        process.status = ProcessStatus::Unknown;
                    }
                }
                let end = RecordedEnd { exit: IncarnationExit::Clean, processes, is_proved: true };
                self.write(record, order, Some(end))
            }
        }
    }

    fn write(&self, record: &ObjectRecord, order: &ObjectTarget, end: Option<RecordedEnd>) -> ObjectStep {
        let mut next = ObjectRecord { end, ..record.clone() };
        next.command.order = *order;
        ObjectStep::Write(Box::new(next))
    }

    fn bury(&self, record: &ObjectRecord, order: &ObjectTarget) -> ObjectStep {
        let mut next = ObjectRecord { tombstone: Some(order.revision), ..record.clone() };
        next.command.order = *order;
        ObjectStep::Write(Box::new(next))
    }
}

impl ObjectView {
    /// Notes that a start was recorded: nothing of an earlier one counts.
    pub(super) fn begin(&mut self) {
        self.is_begun = true;
        self.gone.clear();
    }

    /// Takes over the state of a pod that was read or created.
    pub(super) fn see_pod(&mut self, pod: ObservedPod, exists: bool) {
        let index = pod.index;
        let known = self.pods.get(&index).is_some_and(|known| known.uid != pod.uid);
        match (exists, known) {
            (true, _) => {
                self.pods.insert(index, pod);
            }
            // An event about an earlier pod of this name.
            (false, true) => {}
            (false, false) => {
                self.pods.remove(&index);
                self.deleted.remove(&pod.uid);
                self.gone.insert(index, pod);
            }
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

    /// Notes that the object with this uid does not exist any more.
    pub(super) fn forget_uid(&mut self, uid: &str) {
        if self.claim.as_ref().is_some_and(|claim| claim.uid == uid) {
            self.claim = None;
        }
        let index = self.pods.iter().find(|(_, pod)| pod.uid == uid).map(|(index, _)| *index);
        if let Some((index, pod)) = index.and_then(|index| Some((index, self.pods.remove(&index)?))) {
            self.gone.insert(index, pod);
        }
    }
}
