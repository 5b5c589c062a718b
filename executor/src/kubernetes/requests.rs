//! Requests that create, delete, read and record objects.

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::{REASON_BYTES, RetryClass};
use chancery_events::protocol::{IncarnationSpec, ObjectSpec};
use chancery_events::size::cut;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, ResourceExt};
use serde::Serialize;

use super::KubernetesWorld;
use super::api::{ApiFailure, answer, chain, identified};
use super::claims::{self, ClaimBinding, ObservedClaim};
use super::labels::{self, MANAGER, object_of};
use super::objects::{ApiObject, ClaimObject, ClassObject, PodObject};
use super::pods::{self, ObservedPod};
use super::state::{ObjectDeletion, ObjectView};
use super::store::{ObjectRecord, RecordedFailure};
use crate::reconcile::ObjectTarget;

impl KubernetesWorld {
    async fn request<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, ApiFailure> {
        let _permit = self.requests.acquire().await.map_err(|_| ApiFailure::Ended)?;
        answer(request).await
    }

    fn api<K: ApiObject<Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Returns the object with this name, if it exists.
    async fn find<K: ApiObject>(&self, api: &Api<K>, name: &str) -> Result<Option<K>, ApiFailure> {
        self.request(api.get_opt(name)).await?.map(identified).transpose()
    }

    /// Creates an object of an incarnation or a volume. An object of that name is taken over only if it is of the same
    /// incarnation or volume, as after a request whose answer was lost.
    async fn create<K: ApiObject>(
        &self,
        api: &Api<K>,
        object: ObjectId,
        new: &(impl ResourceExt + Serialize),
    ) -> Result<K, ApiFailure> {
        let by = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let invalid = |error: &dyn std::error::Error| ApiFailure::Refused(0, chain(error));
        let body = serde_json::to_vec(new).map_err(|error| invalid(&error))?;
        let request = Request::new(api.resource_url()).create(&by, body).map_err(|error| invalid(&error))?;
        let message = match self.request(self.client.request(request)).await {
            Err(ApiFailure::Conflict(message)) => message,
            answered => return identified(answered?),
        };
        let name = new.name_any();
        match self.find(api, &name).await? {
            Some(found) if object_of(found.meta().labels.as_ref()) == Some(object) => Ok(found),
            Some(_) => {
                Err(ApiFailure::Foreign(format!("{} {name} exists and is not of {object}", K::kind(&()))))
            }
            None => Err(ApiFailure::NoAnswer(message)),
        }
    }

    /// Whether a pod or claim of the object exists that neither list nor watch shows, as one whose labels were changed.
    /// Every possible name is read. What is found is known from then on, and is deleted before the end is proved.
    pub(super) async fn finds_leftover(&self, view: &ObjectView) -> Result<bool, ApiFailure> {
        for (namespace, name) in view.pod_names() {
            let api: Api<PodObject> = self.api(&namespace);
            let Some(mut pod) = self.find(&api, &name).await? else { continue };
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let is_ours = object_of(pod.metadata.labels.as_ref()) == Some(view.object);
            if !is_ours && !view.knows(&uid) {
                continue;
            }
            self.restore_labels(&mut pod, view.object);
            self.change(view.object, |view, at| {
                if let Some(seen) = ObservedPod::of(&pod, at) {
                    view.find_pod(seen);
                }
            });
            return Ok(true);
        }
        if let ObjectId::Volume(id) = view.object
            && let Some(ObjectSpec::Volume(spec)) =
                view.record.as_ref().and_then(|record| record.command.spec.as_ref())
        {
            let api: Api<ClaimObject> = self.api(spec.namespace.as_str());
            if let Some(claim) = self.find(&api, &labels::volume_name(id)).await?
                && object_of(claim.metadata.labels.as_ref()) == Some(view.object)
            {
                self.change(view.object, |view, at| view.claim = ObservedClaim::of(&claim, at));
                return Ok(true);
            }
        }
        self.change(view.object, |view, _| view.prove_gone());
        Ok(false)
    }

    /// Gives a pod that was read by its name the labels that another party changed: these do not change whose pod it is.
    fn restore_labels(&self, pod: &mut PodObject, object: ObjectId) {
        let index = pod.metadata.name.as_deref().and_then(|name| name.rsplit('-').next()).unwrap_or_default();
        let index = index.to_owned();
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.extend(self.owner.labels_of(object));
        labels.insert(labels::INDEX.to_owned(), index);
    }

    /// Reads the states of pods that no list or watch shows.
    pub(super) async fn read_hidden(&self, view: &ObjectView) -> Result<(), ApiFailure> {
        for pod in view.pods.values().filter(|pod| view.hidden.contains(&pod.uid)) {
            let api: Api<PodObject> = self.api(&pod.namespace);
            match self.find(&api, &pod.name).await? {
                Some(mut found) if found.metadata.uid.as_ref() == Some(&pod.uid) => {
                    self.restore_labels(&mut found, view.object);
                    self.change(view.object, |view, at| {
                        if let Some(seen) = ObservedPod::of(&found, at) {
                            view.see_pod(seen, true);
                        }
                    });
                }
                Some(_) | None => self.change(view.object, |view, _| view.forget_uid(&pod.uid)),
            }
        }
        Ok(())
    }

    pub(super) async fn create_pod(&self, view: &ObjectView, index: u16) -> Result<(), ApiFailure> {
        let (object, Some(record)) = (view.object, &view.record) else { return Ok(()) };
        let (ObjectId::Incarnation(id), Some(spec)) = (object, view.spec()) else { return Ok(()) };
        let ObjectTarget { revision, grace, .. } = record.command.order;
        if let Some(missing) = self.missing_volume(spec) {
            let message = format!("volume {missing} does not exist, or is not ready");
            return self.fail(record, message, RetryClass::Retryable).await;
        }
        if let Some(message) = self.unreachable_volume(spec) {
            return self.fail(record, message, RetryClass::Permanent).await;
        }
        let pod = match pods::pod(&self.owner, id, spec, revision, grace, index) {
            Ok(pod) => pod,
            Err(invalid) => return self.fail(record, invalid.to_string(), RetryClass::Permanent).await,
        };
        let api = self.api::<PodObject>(spec.labels.namespace.as_str());
        let created = match self.create(&api, object, &pod).await {
            Ok(created) => created,
            Err(failure) => return self.refused(record, failure).await,
        };
        let Some(mut seen) = ObservedPod::of(&created, 0) else {
            // As after a change by an admission webhook. No watch shows the pod, so the request is repeated after a pause.
            return Err(ApiFailure::NoAnswer(format!(
                "pod {} has other labels than requested",
                created.name_any()
            )));
        };
        self.change(object, |view, at| {
            seen.seen_at = at;
            view.add_pod(seen);
        });
        Ok(())
    }

    /// Returns a volume that the incarnation mounts and that it cannot use.
    fn missing_volume(&self, spec: &IncarnationSpec) -> Option<VolumeId> {
        let state = self.lock();
        let is_missing = |id: &VolumeId| {
            state.objects.get(&ObjectId::Volume(*id)).is_none_or(|entry| !entry.view.is_usable())
        };
        spec.mounts().find(is_missing)
    }

    /// Returns why a volume that the incarnation mounts cannot be used in its namespace: a claim belongs to one namespace.
    fn unreachable_volume(&self, spec: &IncarnationSpec) -> Option<String> {
        let state = self.lock();
        let wanted = &spec.labels.namespace;
        spec.mounts().find_map(|id| {
            let entry = state.objects.get(&ObjectId::Volume(id))?;
            let Some(ObjectSpec::Volume(of)) = &entry.view.record.as_ref()?.command.spec else { return None };
            (of.namespace != *wanted).then(|| {
                format!(
                    "volume {id} is in namespace {}: a pod in namespace {wanted} cannot use it",
                    of.namespace
                )
            })
        })
    }

    pub(super) async fn create_claim(&self, view: &ObjectView) -> Result<(), ApiFailure> {
        let (object, Some(record)) = (view.object, &view.record) else { return Ok(()) };
        let (ObjectId::Volume(id), Some(ObjectSpec::Volume(spec))) = (object, &record.command.spec) else {
            return Ok(());
        };
        if spec.source.is_some() {
            let message = "cannot create snapshot: this runtime has none".to_owned();
            return self.fail(record, message, RetryClass::Permanent).await;
        }
        let classes: Api<ClassObject> = Api::all(self.client.clone());
        let binding = match self.request(classes.get_opt(spec.class.as_str())).await {
            Ok(Some(class)) if class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer") => {
                ClaimBinding::WithFirstPod
            }
            Ok(Some(_)) => ClaimBinding::Immediate,
            Ok(None) => {
                let message = format!("there is no storage class {}", spec.class);
                return self.fail(record, message, RetryClass::Permanent).await;
            }
            Err(failure) => return self.refused(record, failure).await,
        };
        let claim = claims::claim(&self.owner, id, spec, binding);
        let api = self.api::<ClaimObject>(spec.namespace.as_str());
        let created = match self.create(&api, object, &claim).await {
            Ok(created) => created,
            Err(failure) => return self.refused(record, failure).await,
        };
        self.change(object, |view, at| {
            if view.claim.is_none() {
                view.claim = ObservedClaim::of(&created, at);
            }
        });
        Ok(())
    }

    /// Records the failure of a start that the API refused. Without an answer nothing has failed.
    async fn refused(&self, record: &ObjectRecord, failure: ApiFailure) -> Result<(), ApiFailure> {
        let (message, retry) = match failure {
            ApiFailure::NoAnswer(_) | ApiFailure::Superseded(_) | ApiFailure::Ended => return Err(failure),
            ApiFailure::Foreign(message) | ApiFailure::Refused(400 | 422, message) => {
                (message, RetryClass::Permanent)
            }
            // A missing namespace or right, or a quota: an administrator can correct each.
            ApiFailure::Refused(_, message)
            | ApiFailure::NotFound(message)
            | ApiFailure::Conflict(message) => (message, RetryClass::Retryable),
        };
        self.fail(record, message, retry).await
    }

    async fn fail(
        &self,
        record: &ObjectRecord,
        mut message: String,
        retry: RetryClass,
    ) -> Result<(), ApiFailure> {
        cut(&mut message, REASON_BYTES);
        let failure = Some(RecordedFailure { message, retry });
        self.write(ObjectRecord { failure, ..record.clone() }).await
    }

    pub(super) async fn delete(&self, object: ObjectId, deletion: &ObjectDeletion) -> Result<(), ApiFailure> {
        let ObjectDeletion { namespace, uid, grace, .. } = deletion;
        let exists = match object {
            ObjectId::Incarnation(_) => self.delete_from(&self.api::<PodObject>(namespace), deletion).await?,
            ObjectId::Volume(_) => self.delete_from(&self.api::<ClaimObject>(namespace), deletion).await?,
        };
        self.change(object, |view, _| {
            if exists {
                view.deleted.insert(uid.clone(), grace.unwrap_or_default());
            } else {
                view.forget_uid(uid);
            }
        });
        Ok(())
    }

    /// Requests a deletion by uid. Whether an object with this uid may still exist.
    async fn delete_from<K: ApiObject>(
        &self,
        api: &Api<K>,
        deletion: &ObjectDeletion,
    ) -> Result<bool, ApiFailure> {
        let ObjectDeletion { name, uid, grace, .. } = deletion;
        let only = Preconditions { uid: Some(uid.clone()), resource_version: None };
        let mut params = DeleteParams::default().preconditions(only);
        params.grace_period_seconds = grace.and_then(|grace| u32::try_from(grace).ok());
        match self.request(api.delete(name, &params)).await {
            Ok(_) => Ok(true),
            // The API has no such object, or another one has its name: only reading it decides.
            Err(failure @ (ApiFailure::NotFound(_) | ApiFailure::Conflict(_))) => {
                let found = self.find(api, name).await?;
                if found.and_then(|found| found.uid()).as_ref() == Some(uid) {
                    return Err(ApiFailure::NoAnswer(failure.to_string()));
                }
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Removes the record of an object.
    pub(super) async fn purge(&self, object: ObjectId, version: Option<String>) -> Result<(), ApiFailure> {
        let _permit = self.requests.acquire().await.map_err(|_| ApiFailure::Ended)?;
        self.records.purge(object, version).await
    }

    /// Writes a record. A record that another party changed or removed is written again: the executor's own view is
    /// the newer one, as long as no later epoch has written.
    pub(super) async fn write(&self, record: ObjectRecord) -> Result<(), ApiFailure> {
        let object = record.command.object;
        let mut version = self.lock().entry(object).version.clone();
        let written = loop {
            let _permit = self.requests.acquire().await.map_err(|_| ApiFailure::Ended)?;
            match self.records.write(&record, version.clone()).await {
                Ok(written) => break written,
                Err(ApiFailure::NotFound(_)) if version.is_some() => version = None,
                Err(ApiFailure::Conflict(message)) => {
                    version = self.records.version_after(object, &message).await?;
                }
                Err(failure) => return Err(failure),
            }
        };
        let mut state = self.lock();
        if state.has_ended {
            return Err(ApiFailure::Ended);
        }
        let entry = state.entry(object);
        entry.version = written;
        // A later stop that is not recorded yet still counts.
        let is_met = entry.view.order.is_some_and(|order| order.rank() <= record.command.order.rank());
        if is_met {
            entry.view.order = None;
        }
        entry.view.record = Some(record);
        Ok(())
    }
}
