//! Kubelet and controllers of a simulated cluster: they run, end and remove pods, and bind claims.

use std::time::Duration;

use chancery_events::id::{IncarnationId, ObjectId};
use serde_json::{Value, json};

use super::api::SimulatedApi;
use super::resource::{ApiObject, ClusterChange, ResourceKind, label};
use crate::sim::fault::SimulatedFault;

/// Time after which a cluster without faults removes a pod.
const SOON: Duration = Duration::from_millis(500);

impl SimulatedApi {
    /// Plans what the kubelet does with a new pod.
    pub(super) fn plan_pod(&mut self, pod: &mut ApiObject) {
        let brief = Duration::from_millis(self.random.below(300));
        let behaves_badly =
            self.faults.contains(&SimulatedFault::BadBehaviour) && self.random.chance(self.misbehave);
        let after = Duration::from_millis(self.random.below(1000));
        let mut plan = vec![(brief, ClusterChange::Run), (Duration::ZERO, ClusterChange::Ready)];
        if behaves_badly {
            self.counts.add(SimulatedFault::BadBehaviour.word());
            match self.random.below(5) {
                0 => plan[0].0 = after * 30,
                1 => plan.truncate(1),
                2 => plan.push((after, ClusterChange::Exit(1))),
                3 => plan.push((after, ClusterChange::Exit(0))),
                _ => plan[1] = (after, ClusterChange::Exit(1)),
            }
        }
        pod.plan = plan;
        self.plan_next(pod);
    }

    fn plan_next(&self, pod: &mut ApiObject) {
        pod.next = (!pod.plan.is_empty()).then(|| pod.plan.remove(0));
        if let Some((due, _)) = &mut pod.next {
            *due += self.now;
        }
    }

    /// Requests the deletion of a pod or a claim: the object exists until its containers have ended.
    pub(super) fn request_deletion(&mut self, kind: ResourceKind, name: &str, grace: Option<i64>) {
        let Some(mut object) = self.objects.remove(&(kind, name.to_owned())) else { return };
        let grace = grace.unwrap_or(0);
        let before = object.value["metadata"]["deletionGracePeriodSeconds"].as_i64();
        if object.is_deleting() && before.is_some_and(|before| before <= grace) {
            self.objects.insert((kind, name.to_owned()), object);
            return;
        }
        let millis = u64::try_from(grace).unwrap_or(0) * 1000;
        let mut due = self.now + Duration::from_millis(self.random.below(millis + 1));
        if let Some((earlier, ClusterChange::Remove)) = object.next {
            due = earlier;
        } else if self.strikes(SimulatedFault::StuckDeletion, 300) {
            due = self.now + Duration::from_secs(self.random.between(60, 1200));
        }
        object.value["metadata"]["deletionTimestamp"] = json!("2026-11-21T09:00:00Z");
        object.value["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        object.next = Some((due, ClusterChange::Remove));
        object.plan.clear();
        self.put(kind, name, object, "MODIFIED");
        self.change_due();
    }

    /// Removes soon what stays deleting.
    pub(super) fn hurry(&mut self) {
        let soon = self.now + SOON;
        for (due, change) in self.objects.values_mut().filter_map(|object| object.next.as_mut()) {
            if *change == ClusterChange::Remove {
                *due = soon.min(*due);
            }
        }
    }

    /// Makes all changes that are due.
    pub(super) fn change_due(&mut self) {
        loop {
            let due = self.objects.iter().find_map(|(key, object)| {
                let (_, change) = object.next.filter(|(due, _)| *due <= self.now)?;
                Some((key.clone(), change))
            });
            let Some(((kind, name), change)) = due else { return };
            self.make_change(kind, &name, change);
        }
    }

    fn make_change(&mut self, kind: ResourceKind, name: &str, change: ClusterChange) {
        if change == ClusterChange::Remove {
            // A claim is removed after the pods that use it.
            let mut pods = self.objects.iter().filter(|((kind, _), _)| *kind == ResourceKind::Pod);
            let is_used =
                kind == ResourceKind::Claim && pods.any(|(_, pod)| pod.claims().any(|used| used == name));
            let Some(object) = self.objects.get_mut(&(kind, name.to_owned())) else { return };
            if is_used {
                object.next = Some((self.now + Duration::from_secs(1), change));
                return;
            }
            if object.running > 0 {
                set_status(&mut object.value, ClusterChange::Exit(143));
            }
            self.remove(kind, name);
            return;
        }
        let Some(mut object) = self.objects.remove(&(kind, name.to_owned())) else { return };
        match kind {
            ResourceKind::Claim => object.value["status"] = json!({"phase": "Bound"}),
            ResourceKind::Pod | ResourceKind::ConfigMap => set_status(&mut object.value, change),
        }
        if matches!(change, ClusterChange::Exit(_)) {
            object.running = 0;
            object.plan.clear();
        }
        self.plan_next(&mut object);
        self.put(kind, name, object, "MODIFIED");
    }

    /// Makes a change to a running pod of an incarnation. Whether there is one.
    pub fn strike(&mut self, change: ClusterChange) -> bool {
        let runs = |object: &ApiObject| {
            object.running > 0 && !object.is_deleting() && object.value["status"].is_object()
        };
        let pods =
            self.objects.iter().filter(|((kind, _), object)| *kind == ResourceKind::Pod && runs(object));
        let names: Vec<String> = pods.map(|((_, name), _)| name.clone()).collect();
        let Some(name) = self.random.pick(&names).cloned() else { return false };
        if change == ClusterChange::Unready
            && let Some(pod) = self.objects.get_mut(&(ResourceKind::Pod, name.clone()))
        {
            let again = Duration::from_millis(self.random.between(1000, 60_000));
            pod.plan.insert(0, (again, ClusterChange::Ready));
        }
        self.make_change(ResourceKind::Pod, &name, change);
        true
    }

    /// Returns the incarnations whose containers may run, and the number of containers of each. Late pods are left out:
    /// they may run although their incarnation has ended.
    pub fn alive(&self) -> impl Iterator<Item = (IncarnationId, usize)> {
        let pods = self.objects.values().filter(|object| object.running > 0 && !object.is_late);
        let mut all = std::collections::BTreeMap::new();
        for pod in pods {
            if let Some(incarnation) = pod.incarnation {
                *all.entry(incarnation).or_default() += pod.running;
            }
        }
        all.into_iter()
    }

    /// Returns the incarnations whose containers may run, with those of late pods.
    pub fn running(&self) -> impl Iterator<Item = IncarnationId> {
        self.objects.values().filter(|object| object.running > 0).filter_map(|object| object.incarnation)
    }

    /// Returns the objects that have a record, a pod or a claim.
    pub fn known(&self) -> impl Iterator<Item = ObjectId> {
        self.objects.values().filter_map(|object| {
            let incarnation = label(&object.value, "incarnation").and_then(|id| id.parse().ok());
            let volume = || label(&object.value, "volume").and_then(|id| id.parse().ok());
            incarnation.map(ObjectId::Incarnation).or_else(|| volume().map(ObjectId::Volume))
        })
    }
}

/// Changes the status of all containers of a pod.
fn set_status(pod: &mut Value, change: ClusterChange) {
    let state = match change {
        ClusterChange::Exit(code) => json!({"terminated": {"exitCode": code}}),
        ClusterChange::Run | ClusterChange::Ready | ClusterChange::Unready | ClusterChange::Remove => {
            json!({"running": {}})
        }
    };
    let is_ready = change == ClusterChange::Ready;
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let statuses: Vec<Value> = containers
        .iter()
        .map(|container| {
            json!({
                "name": container["name"], "image": "", "imageID": "", "restartCount": 0, "ready": is_ready,
                "started": true, "state": state,
            })
        })
        .collect();
    pod["status"] = json!({"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": statuses});
}
