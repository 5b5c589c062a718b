//! Pods of a Kubernetes cluster.
//!
//! The truth is in the API: records, pods and claims. This executor needs no disk, and any other executor with the same
//! credentials continues its work ([`store`]). [`state`] decides each step of an object; this module makes the requests.
//!
//! A request of an earlier epoch is refused by the API where the admission policy is installed
//! (`docs/operations.md`). Without it, an executor that slept can still create a pod; the watch finds the pod, and its
//! object's record decides whether it is deleted.
//!
//! Nothing is force-deleted. A pod that is being deleted, or whose node does not report, has not ended.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::name::{ClusterName, FleetName, Namespace};
use chancery_events::observation::{ObjectReport, ObservedState, RetryClass};
use chancery_events::protocol::{Command, IncarnationSpec, ObjectSpec};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::timeout;

mod api;
mod claims;
mod labels;
mod pods;
mod state;
mod store;

use api::{ApiFailure, RequestBackoff, answer, chain};
use claims::{ClaimBinding, ObservedClaim};
use labels::{INCARNATION, MANAGER, ObjectOwner, VOLUME, object_of};
use pods::ObservedPod;
use state::{ObjectDeletion, ObjectStep, ObjectView};
use store::{ObjectRecord, RecordStore, RecordedFailure, StartProgress};

pub use store::KubernetesStore;

use crate::executor_store::AcceptedCommand;
use crate::logs::{LogSource, NoLogSource};
use crate::orchestrator::{InventoryError, Orchestrator, WatchLost, WorkProgress};
use crate::reconcile::{
    KnownObject, ObjectTarget, ReconcileStep, StatusUpdate, UpdateSupport, accepted, misfit, report, step,
};
use crate::session::{ExecutorStop, HighestHead};
use crate::status_cache::StatusCache;

/// Maximum number of concurrent requests.
const REQUESTS: usize = 32;
/// Maximum number of objects in one answer to a list.
const PAGE: u32 = 500;
/// Time after which the API ends a watch, in seconds; the executor then continues it.
const WATCH: u32 = 290;
/// Time after which a watch without any event is lost: the API should have ended it.
const SILENCE: Duration = Duration::from_secs(WATCH as u64 + 10);
/// Time for which the record of a complete start waits until all processes are ready, so that one write has both.
const READY_SOON: Duration = Duration::from_secs(1);
/// Time between two readings of a pod that no watch shows.
const HIDDEN: Duration = Duration::from_secs(1);
/// Pause of a call that is not possible without the API.
const PAUSE: Duration = Duration::from_millis(100);

/// Access to a Kubernetes cluster.
#[derive(Clone, Debug)]
pub struct KubernetesConfig {
    /// File with the credentials; where absent, the environment's `KUBECONFIG`, `~/.kube/config`, or the service
    /// account of the executor's own pod.
    pub kubeconfig: Option<PathBuf>,
    /// Context in the file; its current one if absent.
    pub context: Option<String>,
    /// Namespace of the executor's records.
    pub namespace: Namespace,
    /// Name of the fleet.
    pub fleet: FleetName,
    /// Name of the cluster in the fleet.
    pub cluster: ClusterName,
}

/// Error of credentials that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read credentials of Kubernetes: {0}")]
pub struct InvalidCredentials(String);

impl KubernetesConfig {
    /// Reads the credentials, and returns a client. No request is made.
    pub async fn client(&self) -> Result<Client, InvalidCredentials> {
        let invalid = |error: &dyn std::error::Error| InvalidCredentials(chain(error));
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| invalid(&error))?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| invalid(&error))?
            }
            None if self.context.is_some() => {
                Config::from_kubeconfig(&options).await.map_err(|error| invalid(&error))?
            }
            None => Config::infer().await.map_err(|error| invalid(&error))?,
        };
        Client::try_from(config).map_err(|error| invalid(&error))
    }

    /// Opens the executor store: raises its epoch. A later executor ends the epoch of this one.
    pub async fn open_store(
        &self,
        client: Client,
    ) -> Result<(Arc<KubernetesStore>, Option<HighestHead>), ExecutorStop> {
        let owner = ObjectOwner { fleet: self.fleet.clone(), cluster: self.cluster.clone(), epoch: 0 };
        KubernetesStore::open(client, self.namespace.as_str(), owner).await
    }
}

/// Orchestrator of pods.
pub struct KubernetesOrchestrator {
    world: Arc<KubernetesWorld>,
}

struct KubernetesWorld {
    client: Client,
    owner: ObjectOwner,
    records: RecordStore,
    state: Mutex<WorldState>,
    board: StatusCache,
    requests: Semaphore,
    /// Whether changes may have been missed since the last list.
    is_lost: AtomicBool,
    lost: Notify,
    seed: AtomicU64,
}

#[derive(Debug, Default)]
struct WorldState {
    objects: BTreeMap<ObjectId, ObjectEntry>,
    /// Counts changes of entries.
    changes: u64,
    watches: Vec<AbortHandle>,
    /// Number of the list that the watches continue: events of earlier watches change nothing.
    list: u64,
    /// Whether the orchestrator was dropped: nothing that is known may be used for a request any more.
    has_ended: bool,
}

#[derive(Debug)]
struct ObjectEntry {
    view: ObjectView,
    /// Resource version of the record.
    version: Option<String>,
    /// Excludes overlapping work on the object.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Number of the last change.
    changed: u64,
    /// Whether a task works on the object, and whether the object has changed since.
    settling: SettlingTask,
    /// Last report that was shown as a change.
    shown: Option<ObjectReport>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SettlingTask {
    None,
    Running,
    RunningAgain,
}

impl Drop for KubernetesOrchestrator {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        for watch in state.watches.drain(..) {
            watch.abort();
        }
        state.has_ended = true;
        // Tasks that wait for a permit make no request any more.
        self.world.requests.close();
    }
}

impl KubernetesOrchestrator {
    /// Returns an orchestrator of the store's epoch, with all existing objects of the cluster. Waits for the API.
    pub async fn open(
        client: Client,
        namespace: &Namespace,
        store: &KubernetesStore,
    ) -> KubernetesOrchestrator {
        let owner = store.owner().clone();
        let world = Arc::new(KubernetesWorld {
            records: RecordStore::new(client.clone(), namespace.as_str(), owner.clone()),
            client,
            owner,
            state: Mutex::default(),
            board: StatusCache::default(),
            requests: Semaphore::new(REQUESTS),
            is_lost: AtomicBool::new(true),
            lost: Notify::new(),
            seed: AtomicU64::new(1),
        });
        let orchestrator = KubernetesOrchestrator { world };
        let mut backoff = RequestBackoff::new(0);
        while let Err(error) = orchestrator.world.read_all().await {
            tracing::warn!(%error, "cannot list objects of Kubernetes, retrying");
            tokio::time::sleep(backoff.pause()).await;
        }
        orchestrator
    }
}

/// Items of a list, and the resource version from which a watch continues it.
struct ListedItems<T> {
    items: Vec<T>,
    version: String,
}

/// Lists all objects that match, page by page, and keeps of each what `read` returns.
async fn list<K, T>(
    api: &Api<K>,
    selector: &str,
    read: impl Fn(&K) -> Option<T>,
) -> Result<ListedItems<T>, ApiFailure>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = ListParams::default().labels(selector).limit(PAGE);
    let mut items = Vec::new();
    loop {
        let page = answer(api.list(&params)).await?;
        items.extend(page.items.iter().filter_map(&read));
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else {
            let version = page.metadata.resource_version.unwrap_or_default();
            return Ok(ListedItems { items, version });
        };
        params = params.continue_token(&token);
    }
}

impl KubernetesWorld {
    fn lock(&self) -> MutexGuard<'_, WorldState> {
        // Every change under the lock is complete, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pods(&self) -> Api<Pod> {
        Api::all(self.client.clone())
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::all(self.client.clone())
    }

    fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        self.lost.notify_waiters();
    }

    /// Reads records, pods and claims, and watches pods and claims from there on.
    async fn read_all(self: &Arc<Self>) -> Result<(), ApiFailure> {
        let before = self.lock().changes;
        // Records first: an object that is created meanwhile has its record.
        let records = self.records.list().await?;
        let pod = |pod: &Pod| Some((object_of(pod.metadata.labels.as_ref())?, ObservedPod::of(pod, before)?));
        let pods = list(&self.pods(), &self.owner.selector(INCARNATION), pod).await?;
        let claim = |claim: &PersistentVolumeClaim| {
            Some((object_of(claim.metadata.labels.as_ref())?, ObservedClaim::of(claim, before)?))
        };
        let claims = list(&self.claims(), &self.owner.selector(VOLUME), claim).await?;
        let mut views: BTreeMap<ObjectId, (ObjectView, Option<String>)> = BTreeMap::new();
        for (object, record, version) in records {
            let view = ObjectView { record: Some(record), ..ObjectView::new(object) };
            views.insert(object, (view, Some(version)));
        }
        for (object, pod) in pods.items {
            let (view, _) = views.entry(object).or_insert_with(|| (ObjectView::new(object), None));
            view.pods.insert(pod.uid.clone(), pod);
        }
        for (object, claim) in claims.items {
            let (view, _) = views.entry(object).or_insert_with(|| (ObjectView::new(object), None));
            view.claim = Some(claim);
        }
        let (number, due) = {
            let mut state = self.lock();
            for watch in state.watches.drain(..) {
                watch.abort();
            }
            state.list += 1;
            state.merge(before, views);
            let due = state.objects.iter().filter(|(_, entry)| entry.view.next() != ObjectStep::Rest);
            (state.list, due.map(|(object, _)| *object).collect::<Vec<_>>())
        };
        self.is_lost.store(false, Ordering::Relaxed);
        let watch_pods =
            tokio::spawn(self.clone().watch(self.pods(), INCARNATION, pods.version, move |world, event| {
                world.pod_changed(number, event);
            }));
        let watch_claims =
            tokio::spawn(self.clone().watch(self.claims(), VOLUME, claims.version, move |world, event| {
                world.claim_changed(number, event);
            }));
        self.lock().watches.extend([watch_pods.abort_handle(), watch_claims.abort_handle()]);
        for object in due {
            self.settle(object);
        }
        Ok(())
    }

    /// Watches from a resource version on, until events may have been missed.
    async fn watch<K>(
        self: Arc<Self>,
        api: Api<K>,
        key: &'static str,
        mut version: String,
        changed: impl Fn(&Arc<Self>, WatchEvent<K>) + Send,
    ) where
        K: Clone + DeserializeOwned + std::fmt::Debug + kube::Resource<DynamicType = ()> + Send + 'static,
    {
        let params = WatchParams::default().labels(&self.owner.selector(key)).timeout(WATCH);
        loop {
            let stream = match answer(api.watch(&params, &version)).await {
                Ok(stream) => stream,
                Err(failure) => {
                    tracing::info!(%failure, key, "cannot watch objects of Kubernetes");
                    return self.lose();
                }
            };
            let opened = tokio::time::Instant::now();
            let mut stream = std::pin::pin!(stream);
            loop {
                let event = match timeout(SILENCE, stream.next()).await {
                    Ok(Some(event)) => event,
                    Ok(None) => break,
                    // A connection that the network dropped reports no error.
                    Err(_) => return self.lose(),
                };
                match event {
                    Ok(WatchEvent::Bookmark(at)) => version = at.metadata.resource_version,
                    // Also 410: the version is too old. The list that follows has the last state of each object.
                    Ok(WatchEvent::Error(status)) => {
                        tracing::info!(code = status.code, reason = %status.message, key, "watch of Kubernetes ended");
                        return self.lose();
                    }
                    Ok(event) => {
                        if let WatchEvent::Added(of) | WatchEvent::Modified(of) | WatchEvent::Deleted(of) =
                            &event
                            && let Some(at) = &of.meta().resource_version
                        {
                            version.clone_from(at);
                        }
                        changed(&self, event);
                    }
                    Err(error) => {
                        tracing::info!(error = chain(&error), key, "watch of Kubernetes lost");
                        return self.lose();
                    }
                }
            }
            if opened.elapsed() < PAUSE {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn pod_changed(self: &Arc<Self>, list: u64, event: WatchEvent<Pod>) {
        let (pod, exists) = match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, true),
            WatchEvent::Deleted(pod) => (pod, false),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return,
        };
        let Some(object) = object_of(pod.metadata.labels.as_ref()) else { return };
        self.see(list, object, |view, at| {
            if let Some(seen) = ObservedPod::of(&pod, at) {
                view.see_pod(seen, exists);
            }
        });
    }

    fn claim_changed(self: &Arc<Self>, list: u64, event: WatchEvent<PersistentVolumeClaim>) {
        let (claim, exists) = match event {
            WatchEvent::Added(claim) | WatchEvent::Modified(claim) => (claim, true),
            WatchEvent::Deleted(claim) => (claim, false),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return,
        };
        let Some(object) = object_of(claim.metadata.labels.as_ref()) else { return };
        self.see(list, object, |view, at| {
            if let Some(seen) = ObservedClaim::of(&claim, at) {
                view.see_claim(seen, exists);
            }
        });
    }

    /// Takes over an event of the watch that continues a list.
    fn see(self: &Arc<Self>, list: u64, object: ObjectId, change: impl FnOnce(&mut ObjectView, u64)) {
        {
            let mut state = self.lock();
            if state.list != list || state.has_ended {
                return;
            }
            let at = state.changes + 1;
            let entry = state.entry(object);
            change(&mut entry.view, at);
            if entry.view.is_empty() && entry.settling == SettlingTask::None {
                state.objects.remove(&object);
                drop(state);
                // An object without a record has ended: only a list shows that it is absent.
                return self.lose();
            }
        }
        self.settle(object);
    }

    /// Changes what is known of an object.
    fn change(&self, object: ObjectId, change: impl FnOnce(&mut ObjectView, u64)) {
        let mut state = self.lock();
        let at = state.changes + 1;
        let entry = state.entry(object);
        change(&mut entry.view, at);
        if entry.view.is_empty() && entry.settling == SettlingTask::None {
            state.objects.remove(&object);
        }
    }

    fn view(&self, object: ObjectId) -> Option<ObjectView> {
        self.lock().objects.get(&object).map(|entry| entry.view.clone())
    }

    fn known(&self, object: ObjectId) -> Option<KnownObject> {
        self.view(object)?.known()
    }

    fn turn(&self, object: ObjectId) -> Arc<tokio::sync::Mutex<()>> {
        self.lock().entry(object).turn.clone()
    }

    /// Shows the state of an object, if it differs from the last one shown.
    fn show(&self, object: ObjectId) {
        let mut state = self.lock();
        let Some(entry) = state.objects.get_mut(&object) else { return };
        let Some(known) = entry.view.known() else { return };
        let update = report(object, &known);
        if let StatusUpdate::Change(shown) = &update {
            if entry.shown.as_ref() == Some(shown) {
                return;
            }
            entry.shown = Some(shown.clone());
        }
        // Under the lock, so that reports keep the order of the states.
        self.board.show_update(update);
    }

    /// Shows the state of an object again, as the answer to a command.
    fn show_again(&self, object: ObjectId) {
        if let Some(entry) = self.lock().objects.get_mut(&object) {
            entry.shown = None;
        }
        self.show(object);
    }

    /// Starts a task that brings the object to its target, unless one does so already.
    fn settle(self: &Arc<Self>, object: ObjectId) {
        {
            let mut state = self.lock();
            if state.has_ended {
                return;
            }
            let Some(entry) = state.objects.get_mut(&object) else { return };
            match entry.settling {
                SettlingTask::None => entry.settling = SettlingTask::Running,
                SettlingTask::Running | SettlingTask::RunningAgain => {
                    entry.settling = SettlingTask::RunningAgain;
                    return;
                }
            }
        }
        let world = self.clone();
        tokio::spawn(async move {
            let mut backoff = RequestBackoff::new(world.seed.fetch_add(0x9e37_79b9, Ordering::Relaxed));
            loop {
                let outcome = Box::pin(world.settle_once(object)).await;
                world.show(object);
                if let Err(failure) = outcome {
                    if let ApiFailure::Superseded(reason) = &failure {
                        tracing::warn!(%object, reason, "another executor has taken over: making no more requests");
                        world.requests.close();
                    }
                    if world.requests.is_closed() {
                        return;
                    }
                    tracing::info!(%object, %failure, "cannot change object of Kubernetes, retrying");
                    tokio::time::sleep(backoff.pause()).await;
                    continue;
                }
                let mut state = world.lock();
                if state.has_ended {
                    return;
                }
                let Some(entry) = state.objects.get_mut(&object) else { return };
                if entry.settling == SettlingTask::RunningAgain {
                    entry.settling = SettlingTask::Running;
                    continue;
                }
                entry.settling = SettlingTask::None;
                if entry.view.is_empty() {
                    state.objects.remove(&object);
                }
                return;
            }
        });
    }

    /// Makes the requests that the object needs now.
    async fn settle_once(&self, object: ObjectId) -> Result<(), ApiFailure> {
        let began = tokio::time::Instant::now();
        let turn = self.turn(object);
        loop {
            let guard = turn.lock().await;
            let Some(view) = self.view(object) else { return Ok(()) };
            match view.next() {
                ObjectStep::Rest if view.hidden.is_empty() => return Ok(()),
                ObjectStep::Rest => {
                    drop(guard);
                    tokio::time::sleep(HIDDEN).await;
                    self.read_hidden(&view).await?;
                }
                ObjectStep::CreatePod(index) => self.create_pod(&view, index).await?,
                ObjectStep::CreateClaim => self.create_claim(&view).await?,
                ObjectStep::Delete(deletion) => self.delete(object, &deletion).await?,
                ObjectStep::Write(record) => {
                    let is_proof =
                        record.tombstone.is_some() || record.end.as_ref().is_some_and(|end| end.is_proved);
                    if is_proof && !view.is_proved_gone() && self.finds_leftover(&view).await? {
                        continue;
                    }
                    self.write(*record).await?;
                }
                ObjectStep::WriteLater(record) => {
                    if began.elapsed() < READY_SOON {
                        drop(guard);
                        self.show(object);
                        tokio::time::sleep(READY_SOON / 10).await;
                        continue;
                    }
                    self.write(*record).await?;
                }
            }
            self.show(object);
        }
    }

    async fn request<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, ApiFailure> {
        let _permit = self.requests.acquire().await.map_err(|_| ApiFailure::Ended)?;
        answer(request).await
    }

    /// Whether a pod or claim of the object exists that neither list nor watch shows, as one whose labels were changed.
    /// Every possible name is read. What is found is known from then on, and is deleted before the end is proved.
    async fn finds_leftover(&self, view: &ObjectView) -> Result<bool, ApiFailure> {
        for (namespace, name) in view.pod_names() {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
            let Some(mut pod) = self.request(api.get_opt(&name)).await? else { continue };
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
            let api: Api<PersistentVolumeClaim> =
                Api::namespaced(self.client.clone(), spec.namespace.as_str());
            if let Some(claim) = self.request(api.get_opt(&labels::volume_name(id))).await?
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
    fn restore_labels(&self, pod: &mut Pod, object: ObjectId) {
        let index = pod.metadata.name.as_deref().and_then(|name| name.rsplit('-').next()).unwrap_or_default();
        let index = index.to_owned();
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.extend(self.owner.labels_of(object));
        labels.insert(labels::INDEX.to_owned(), index);
    }

    /// Reads the states of pods that no list or watch shows.
    async fn read_hidden(&self, view: &ObjectView) -> Result<(), ApiFailure> {
        for pod in view.pods.values().filter(|pod| view.hidden.contains(&pod.uid)) {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
            match self.request(api.get_opt(&pod.name)).await? {
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

    async fn create_pod(&self, view: &ObjectView, index: u16) -> Result<(), ApiFailure> {
        let (object, Some(record)) = (view.object, &view.record) else { return Ok(()) };
        let (ObjectId::Incarnation(id), Some(spec)) =
            (object, record.command.spec.as_ref().and_then(ObjectSpec::incarnation))
        else {
            return Ok(());
        };
        let ObjectTarget { revision, grace, .. } = record.command.order;
        if let Some(missing) = self.missing_volume(spec) {
            let message = format!("volume {missing} does not exist, or is not ready");
            return self.fail(record, message, RetryClass::Retryable).await;
        }
        let pod = match pods::pod(&self.owner, id, spec, revision, grace, index) {
            Ok(pod) => pod,
            Err(invalid) => return self.fail(record, invalid.to_string(), RetryClass::Permanent).await,
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), spec.labels.namespace.as_str());
        let by = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let created = match self.request(api.create(&by, &pod)).await {
            Ok(created) => created,
            // A repeated request, or an object of another party.
            Err(ApiFailure::Conflict(message)) => {
                let name = pod.metadata.name.clone().unwrap_or_default();
                match self.request(api.get_opt(&name)).await? {
                    Some(found) if object_of(found.metadata.labels.as_ref()) == Some(object) => found,
                    Some(_) => {
                        let message = format!("pod {name} exists and is not of this incarnation: {message}");
                        return self.fail(record, message, RetryClass::Permanent).await;
                    }
                    None => return Err(ApiFailure::NoAnswer(message)),
                }
            }
            Err(failure) => return self.refused(record, failure).await,
        };
        self.change(object, |view, at| {
            if let Some(seen) = ObservedPod::of(&created, at) {
                view.add_pod(seen);
            }
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

    /// Returns an incarnation that uses the volume.
    fn user_of(&self, volume: VolumeId) -> Option<ObjectId> {
        let state = self.lock();
        let uses = |view: &ObjectView| view.mounts(volume) && view.is_live();
        state.objects.values().find(|entry| uses(&entry.view)).map(|entry| entry.view.object)
    }

    async fn create_claim(&self, view: &ObjectView) -> Result<(), ApiFailure> {
        let (object, Some(record)) = (view.object, &view.record) else { return Ok(()) };
        let (ObjectId::Volume(id), Some(ObjectSpec::Volume(spec))) = (object, &record.command.spec) else {
            return Ok(());
        };
        let classes: Api<StorageClass> = Api::all(self.client.clone());
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
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), spec.namespace.as_str());
        let by = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let created = match self.request(api.create(&by, &claim)).await {
            Ok(created) => created,
            Err(ApiFailure::Conflict(message)) => {
                let name = labels::volume_name(id);
                match self.request(api.get_opt(&name)).await? {
                    Some(found) if object_of(found.metadata.labels.as_ref()) == Some(object) => found,
                    Some(_) => {
                        let message = format!("claim {name} exists and is not of this volume: {message}");
                        return self.fail(record, message, RetryClass::Permanent).await;
                    }
                    None => return Err(ApiFailure::NoAnswer(message)),
                }
            }
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
            ApiFailure::Refused(400 | 422, message) => (message, RetryClass::Permanent),
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
        chancery_events::size::cut(&mut message, chancery_events::observation::REASON_BYTES);
        let failure = Some(RecordedFailure { message, retry });
        self.write(ObjectRecord { failure, ..record.clone() }).await
    }

    async fn delete(&self, object: ObjectId, deletion: &ObjectDeletion) -> Result<(), ApiFailure> {
        let ObjectDeletion { namespace, name, uid, grace } = deletion;
        let only = Preconditions { uid: Some(uid.clone()), resource_version: None };
        let mut params = DeleteParams::default().preconditions(only);
        params.grace_period_seconds = grace.and_then(|grace| u32::try_from(grace).ok());
        let client = self.client.clone();
        let deleted = match object {
            ObjectId::Incarnation(_) => {
                let api: Api<Pod> = Api::namespaced(client, namespace);
                self.request(api.delete(name, &params)).await.map(|_| ())
            }
            ObjectId::Volume(_) => {
                let api: Api<PersistentVolumeClaim> = Api::namespaced(client, namespace);
                self.request(api.delete(name, &params)).await.map(|_| ())
            }
        };
        match deleted {
            Ok(()) => {
                let grace = grace.unwrap_or_default();
                self.change(object, |view, _| _ = view.deleted.insert(uid.clone(), grace));
                Ok(())
            }
            // The API has no such object, or another one has its name: only reading it decides.
            Err(failure @ (ApiFailure::NotFound(_) | ApiFailure::Conflict(_))) => {
                let client = self.client.clone();
                let found = match object {
                    ObjectId::Incarnation(_) => {
                        let api: Api<Pod> = Api::namespaced(client, namespace);
                        self.request(api.get_opt(name)).await?.and_then(|pod| pod.metadata.uid)
                    }
                    ObjectId::Volume(_) => {
                        let api: Api<PersistentVolumeClaim> = Api::namespaced(client, namespace);
                        self.request(api.get_opt(name)).await?.and_then(|claim| claim.metadata.uid)
                    }
                };
                if found.as_ref() == Some(uid) {
                    return Err(ApiFailure::NoAnswer(failure.to_string()));
                }
                self.change(object, |view, _| view.forget_uid(uid));
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Writes a record. A record that another party changed or removed is written again: the executor's own view is
    /// the newer one, as long as no later epoch has written.
    async fn write(&self, record: ObjectRecord) -> Result<(), ApiFailure> {
        let object = record.command.object;
        let mut version = self.lock().entry(object).version.clone();
        let written = loop {
            let _permit = self.requests.acquire().await.map_err(|_| ApiFailure::Ended)?;
            match self.records.write(&record, version.clone()).await {
                Ok(written) => break written,
                Err(ApiFailure::NotFound(_)) if version.is_some() => version = None,
                Err(ApiFailure::Conflict(message)) => match self.records.read(object).await? {
                    Some((.., epoch)) if epoch > self.owner.epoch => {
                        return Err(ApiFailure::Superseded(format!("epoch {epoch} has written: {message}")));
                    }
                    Some((_, found, _)) => version = Some(found),
                    None => version = None,
                },
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

    /// Carries out an order, and shows the object's state.
    async fn meet(
        self: &Arc<Self>,
        object: ObjectId,
        order: ObjectTarget,
        spec: Option<ObjectSpec>,
    ) -> WorkProgress {
        let turn = self.turn(object);
        let done = {
            let _turn = turn.lock().await;
            let view = self.view(object).unwrap_or_else(|| ObjectView::new(object));
            let known = view.known();
            let next = step(known.as_ref(), &order, spec.as_ref(), UpdateSupport::Never);
            let there = known.as_ref().and_then(|known| known.spec.clone());
            let kept = accepted(&next, there, spec.as_ref());
            let command = AcceptedCommand { object, order, spec: kept };
            let again = view.record.clone().map(|record| ObjectRecord { command: command.clone(), ..record });
            match next {
                ReconcileStep::Start => {
                    let start = StartProgress::Creating;
                    let written = self.write(ObjectRecord { start, ..ObjectRecord::new(command) }).await;
                    if written.is_ok() {
                        self.change(object, |view, _| view.begin());
                    }
                    written
                }
                // A late request created a pod: nothing is gone before that pod is.
                ReconcileStep::WriteTombstone if view.exists() => {
                    self.change(object, |view, _| view.order = Some(order));
                    Ok(())
                }
                ReconcileStep::Adopt | ReconcileStep::Change => match again {
                    Some(record) => self.write(record).await,
                    None => Ok(()),
                },
                ReconcileStep::Stop(_) | ReconcileStep::WriteTombstone
                    if let ObjectId::Volume(volume) = object
                        && let Some(user) = self.user_of(volume) =>
                {
                    let message = format!("cannot destroy volume: {user} uses it");
                    self.board.refuse(object, order.revision, message, RetryClass::Retryable);
                    return WorkProgress::Begun;
                }
                ReconcileStep::Stop(_) if view.record.is_some() => {
                    // Recorded with the end that it causes: until then, the same command comes again.
                    self.reachable().await.map(|()| {
                        self.change(object, |view, _| view.order = Some(order));
                    })
                }
                ReconcileStep::Stop(_) => self.write(ObjectRecord::new(command)).await,
                ReconcileStep::WriteTombstone => {
                    let record = again.unwrap_or_else(|| ObjectRecord::new(command));
                    let future = ObjectView { record: Some(record.clone()), ..view.clone() };
                    match self.finds_leftover(&future).await {
                        Ok(false) => {}
                        Ok(true) => return WorkProgress::PutOff,
                        Err(_) => {
                            tokio::time::sleep(PAUSE).await;
                            return WorkProgress::PutOff;
                        }
                    }
                    self.write(ObjectRecord { tombstone: Some(order.revision), end: None, ..record }).await
                }
                ReconcileStep::ReportAgain => Ok(()),
                ReconcileStep::Refuse(message, retry) => {
                    self.board.refuse(object, order.revision, message.to_owned(), retry);
                    return WorkProgress::Begun;
                }
            }
        };
        match done {
            Ok(()) => {
                self.show_again(object);
                self.settle(object);
                WorkProgress::Begun
            }
            Err(ApiFailure::NoAnswer(_) | ApiFailure::Superseded(_) | ApiFailure::Ended) => {
                self.drop_empty(object);
                tokio::time::sleep(PAUSE).await;
                WorkProgress::PutOff
            }
            Err(failure) => {
                self.drop_empty(object);
                self.board.refuse(object, order.revision, failure.to_string(), RetryClass::Retryable);
                WorkProgress::Begun
            }
        }
    }

    fn drop_empty(&self, object: ObjectId) {
        self.change(object, |_, _| ());
    }

    /// Whether the API answers.
    async fn reachable(&self) -> Result<(), ApiFailure> {
        if !self.is_lost.load(Ordering::Relaxed) {
            return Ok(());
        }
        answer(self.client.apiserver_version()).await.map(|_| ())
    }
}

impl WorldState {
    /// Returns the entry of an object, which counts as changed.
    fn entry(&mut self, object: ObjectId) -> &mut ObjectEntry {
        self.changes += 1;
        let changed = self.changes;
        let entry = self.objects.entry(object).or_insert_with(|| ObjectEntry {
            view: ObjectView::new(object),
            version: None,
            turn: Arc::default(),
            changed,
            settling: SettlingTask::None,
            shown: None,
        });
        entry.changed = changed;
        entry
    }

    /// Takes over a list that started after `before` changes. What was seen since is newer than the list.
    fn merge(&mut self, before: u64, mut listed: BTreeMap<ObjectId, (ObjectView, Option<String>)>) {
        for (object, entry) in &mut self.objects {
            let found = listed.remove(object);
            let (view, version) = found.unwrap_or_else(|| (ObjectView::new(*object), None));
            // This executor alone writes records, so its own view is not older.
            if entry.changed <= before && entry.settling == SettlingTask::None {
                (entry.view.record, entry.version) = (view.record.clone(), version);
            }
            entry.view.take_list(view, before);
        }
        for (object, (view, version)) in listed {
            let entry = self.entry(object);
            (entry.view, entry.version) = (view, version);
        }
        self.objects.retain(|_, entry| !entry.view.is_empty() || entry.settling != SettlingTask::None);
    }
}

impl Orchestrator for KubernetesOrchestrator {
    const CHANGES: UpdateSupport = UpdateSupport::Never;

    async fn carry_out(&self, command: Command) -> WorkProgress {
        if let Some(message) = misfit(&command) {
            self.world.board.refuse(
                command.object,
                command.revision,
                message.to_owned(),
                RetryClass::Permanent,
            );
            return WorkProgress::Begun;
        }
        let order = ObjectTarget::of(&command);
        self.world.meet(command.object, order, Some(command.spec)).await
    }

    async fn remove(&self, object: ObjectId, revision: u32) -> WorkProgress {
        self.world.meet(object, ObjectTarget::removal(revision), None).await
    }

    async fn forget(&self, object: ObjectId) -> WorkProgress {
        let turn = self.world.turn(object);
        let purged = {
            let _turn = turn.lock().await;
            let (view, version) = {
                let state = self.world.lock();
                let entry = state.objects.get(&object);
                (entry.map(|entry| entry.view.clone()), entry.and_then(|entry| entry.version.clone()))
            };
            let is_over =
                |view: &ObjectView| !view.exists() && view.known().is_none_or(|known| known.state.is_over());
            if view.as_ref().is_none_or(is_over) {
                Some(self.world.records.purge(object, version).await)
            } else {
                // The end is not proved: the object is reported again.
                None
            }
        };
        match purged {
            Some(Ok(())) => {
                let mut state = self.world.lock();
                state.changes += 1;
                state.objects.remove(&object);
                drop(state);
                self.world.board.clear(object);
            }
            Some(Err(failure)) => {
                tracing::info!(%object, %failure, "cannot purge record, retrying");
                tokio::time::sleep(PAUSE).await;
                return WorkProgress::PutOff;
            }
            None => {
                if self.world.reachable().await.is_err() {
                    return WorkProgress::PutOff;
                }
                self.world.show_again(object);
            }
        }
        WorkProgress::Begun
    }

    async fn list(&self) -> Result<Vec<ObjectReport>, InventoryError> {
        // Refusals are no states of objects: a list does not contain them.
        let unread = self.world.board.unread(usize::MAX);
        self.world.board.list();
        for refusal in unread {
            if matches!(refusal.observed, ObservedState::Failed { .. }) {
                self.world.board.show(refusal);
            }
        }
        if let Err(failure) = self.world.read_all().await {
            self.world.lose();
            let unreachable = "the Kubernetes API".to_owned();
            return Err(InventoryError { unreachable, reason: failure.to_string() });
        }
        let known: Vec<_> = self.world.lock().objects.keys().copied().collect();
        let reports = known.into_iter().filter_map(|object| {
            let update = report(object, &self.world.known(object)?);
            Some(match update {
                StatusUpdate::Change(report) | StatusUpdate::ListOnly(report) => report,
            })
        });
        Ok(reports.collect())
    }

    async fn changes(&self, limit: usize) -> Result<Vec<ObjectReport>, WatchLost> {
        let lost = self.world.lost.notified();
        if self.world.is_lost.load(Ordering::Relaxed) {
            tokio::time::sleep(PAUSE).await;
            return Err(WatchLost);
        }
        tokio::select! {
            biased;
            reports = self.world.board.read(limit) => Ok(reports),
            () = lost => Err(WatchLost),
        }
    }

    fn logs(&self) -> Arc<dyn LogSource> {
        Arc::new(NoLogSource)
    }
}
