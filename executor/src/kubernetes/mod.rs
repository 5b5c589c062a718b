//! Pods of a Kubernetes cluster.
//!
//! The truth is in the API: records, pods and claims. This executor needs no disk, and any other executor with the same
//! credentials continues its work ([`store`]). [`state`] decides each step of an object, [`requests`] makes the requests of a
//! step, and [`watch`] shows their results. This module carries out commands.
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
use chancery_events::protocol::{Command, ObjectSpec};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Instant;

mod access;
mod api;
mod claims;
mod discovery;
mod labels;
mod logs;
mod objects;
mod pods;
mod requests;
mod state;
mod store;
mod watch;

use api::{ApiFailure, EpochEnd, RequestBackoff, answer, chain};
use labels::ObjectOwner;
use state::{ObjectStep, ObjectView};
use store::{ObjectRecord, RecordStore, StartProgress};

pub use access::{AccessError, AccessReport};
pub use discovery::{DiscoveredNode, DiscoveredNodes, DiscoveryError};
pub use store::KubernetesStore;

use crate::executor_store::AcceptedCommand;
use crate::logs::LogSource;
use crate::orchestrator::{InventoryError, Orchestrator, WatchLost, WorkProgress};
use crate::reconcile::{
    KnownObject, NO_VIRTUAL_MACHINE, ObjectTarget, ReconcileStep, StatusUpdate, UpdateSupport, accepted,
    report, step,
};
use crate::session::{ExecutorStop, HighestHead};
use crate::status_cache::StatusCache;

/// Maximum number of concurrent requests.
const REQUESTS: usize = 32;
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
    runtime: Handle,
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
    end: EpochEnd,
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
    /// Whether a list is being read, which may contain what was purged meanwhile: entries are kept until then.
    is_listing: bool,
}

#[derive(Debug)]
struct ObjectEntry {
    view: ObjectView,
    /// Resource version of the record.
    version: Option<String>,
    /// Excludes overlapping work on the object. The entry is kept while a task holds it.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Wakes the task that works on the object and waits.
    wake: Arc<Notify>,
    /// Number of the last change.
    changed: u64,
    /// Whether a task works on the object, and whether the object has changed since.
    settling: SettlingTask,
    /// Last report that was shown as a change.
    shown: Option<ObjectReport>,
}

impl ObjectEntry {
    /// Whether nothing is known of the object, and no task works on it.
    fn is_unused(&self) -> bool {
        self.view.is_empty() && self.settling == SettlingTask::None && Arc::strong_count(&self.turn) == 1
    }
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
        let owner = store.owner.clone();
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
            end: store.end.clone(),
        });
        let orchestrator = KubernetesOrchestrator { world, runtime: Handle::current() };
        let mut backoff = RequestBackoff::new(0);
        while let Err(error) = orchestrator.world.read_all().await {
            if orchestrator.world.requests.is_closed() {
                break;
            }
            tracing::warn!(%error, "cannot list objects of Kubernetes, retrying");
            tokio::time::sleep(backoff.pause()).await;
        }
        orchestrator
    }
}

impl KubernetesWorld {
    fn lock(&self) -> MutexGuard<'_, WorldState> {
        // Every change under the lock is complete, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        self.lost.notify_waiters();
    }

    /// Ends the epoch: another executor has taken over. No request is made any more.
    fn end_epoch(&self, reason: &str) {
        self.requests.close();
        if self.end.end(reason) {
            tracing::warn!(reason, "another executor has taken over: making no more requests");
        }
    }

    /// Ends the epoch if the failure proves that another executor has taken over.
    fn note(&self, failure: &ApiFailure) {
        if let ApiFailure::Superseded(reason) = failure {
            self.end_epoch(reason);
        }
    }

    /// Changes what is known of an object.
    fn change(&self, object: ObjectId, change: impl FnOnce(&mut ObjectView, u64)) {
        let mut state = self.lock();
        let at = state.changes + 1;
        let entry = state.entry(object);
        change(&mut entry.view, at);
        state.drop_unused(object);
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
                    entry.wake.notify_one();
                    return;
                }
            }
        }
        let world = self.clone();
        tokio::spawn(async move {
            let mut backoff = RequestBackoff::new(world.seed.fetch_add(0x9e37_79b9, Ordering::Relaxed));
            let mut since = Instant::now();
            loop {
                let outcome = Box::pin(world.settle_once(object, since)).await;
                world.show(object);
                if let Err(failure) = outcome {
                    world.note(&failure);
                    if world.requests.is_closed() {
                        return;
                    }
                    if matches!(failure, ApiFailure::Refused(..)) {
                        // As of an executor without the right to delete: only an operator can change that.
                        tracing::warn!(%object, %failure, "Kubernetes refuses change of object, retrying");
                    } else {
                        tracing::info!(%object, %failure, "cannot change object of Kubernetes, retrying");
                    }
                    tokio::time::sleep(backoff.pause()).await;
                    continue;
                }
                since = Instant::now();
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
                state.drop_unused(object);
                return;
            }
        });
    }

    /// Makes the requests that the object needs now. Records that can wait are put off from `since` on.
    async fn settle_once(&self, object: ObjectId, mut since: Instant) -> Result<(), ApiFailure> {
        let (turn, wake) = {
            let mut state = self.lock();
            let entry = state.entry(object);
            (entry.turn.clone(), entry.wake.clone())
        };
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
                ObjectStep::CreatePod(index) => {
                    self.create_pod(&view, index).await?;
                    since = Instant::now();
                }
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
                ObjectStep::WriteLater(record, delay) => {
                    if since.elapsed() < delay {
                        drop(guard);
                        self.show(object);
                        // Until the time, or the next change.
                        let _ = tokio::time::timeout_at(since + delay, wake.notified()).await;
                        continue;
                    }
                    self.write(*record).await?;
                }
            }
            self.show(object);
        }
    }

    /// Returns an incarnation that uses the volume.
    fn user_of(&self, volume: VolumeId) -> Option<ObjectId> {
        let state = self.lock();
        let uses = |view: &ObjectView| view.mounts(volume) && view.is_live();
        state.objects.values().find(|entry| uses(&entry.view)).map(|entry| entry.view.object)
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
            self.take_order(object, order, spec.as_ref()).await
        };
        drop(turn);
        self.lock().drop_unused(object);
        match done {
            Ok(Some(progress)) => progress,
            Ok(None) => {
                self.show_again(object);
                self.settle(object);
                WorkProgress::Begun
            }
            Err(failure @ (ApiFailure::NoAnswer(_) | ApiFailure::Superseded(_) | ApiFailure::Ended)) => {
                self.note(&failure);
                tokio::time::sleep(PAUSE).await;
                WorkProgress::PutOff
            }
            Err(failure) => {
                self.board.refuse(object, order.revision, failure.to_string(), RetryClass::Retryable);
                WorkProgress::Begun
            }
        }
    }

    /// Records an order, by the caller alone who works on the object. Returns the progress of an order that changes nothing.
    async fn take_order(
        &self,
        object: ObjectId,
        order: ObjectTarget,
        spec: Option<&ObjectSpec>,
    ) -> Result<Option<WorkProgress>, ApiFailure> {
        let view = self.view(object).unwrap_or_else(|| ObjectView::new(object));
        let known = view.known();
        let next = step(known.as_ref(), &order, spec, UpdateSupport::Never);
        let there = known.as_ref().and_then(|known| known.spec.clone());
        let kept = accepted(&next, there, spec);
        let command = AcceptedCommand { object, order, spec: kept };
        let again = view.record.clone().map(|record| ObjectRecord { command: command.clone(), ..record });
        let refuse = |message: String, retry| {
            self.board.refuse(object, order.revision, message, retry);
            Ok(Some(WorkProgress::Begun))
        };
        match next {
            ReconcileStep::Start => {
                let start = StartProgress::Creating;
                self.write(ObjectRecord { start, ..ObjectRecord::new(command) }).await?;
                self.change(object, |view, _| view.begin());
            }
            // A late request created a pod: nothing is gone before that pod is.
            ReconcileStep::WriteTombstone if view.exists() => {
                self.change(object, |view, _| view.order = Some(order));
            }
            ReconcileStep::Adopt | ReconcileStep::Change => {
                if let Some(record) = again {
                    self.write(record).await?;
                }
            }
            ReconcileStep::Stop(_) | ReconcileStep::WriteTombstone
                if let ObjectId::Volume(volume) = object
                    && let Some(user) = self.user_of(volume) =>
            {
                return refuse(format!("cannot destroy volume: {user} uses it"), RetryClass::Retryable);
            }
            ReconcileStep::Stop(_) if view.record.is_some() => {
                // Recorded with the end that it causes: until then, the same command comes again.
                self.reachable().await?;
                self.change(object, |view, _| view.order = Some(order));
            }
            ReconcileStep::Stop(_) => self.write(ObjectRecord::new(command)).await?,
            ReconcileStep::WriteTombstone => {
                let record = again.unwrap_or_else(|| ObjectRecord::new(command));
                let future = ObjectView { record: Some(record.clone()), ..view.clone() };
                let found = self.finds_leftover(&future).await;
                if found.map_err(|failure| ApiFailure::NoAnswer(failure.to_string()))? {
                    return Ok(Some(WorkProgress::PutOff));
                }
                self.write(ObjectRecord { tombstone: Some(order.revision), end: None, ..record }).await?;
            }
            ReconcileStep::ReportAgain => {}
            ReconcileStep::Reboot => return refuse(NO_VIRTUAL_MACHINE.to_owned(), RetryClass::Permanent),
            ReconcileStep::Refuse(message, retry) => return refuse(message.to_owned(), retry),
        }
        Ok(None)
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
            wake: Arc::default(),
            changed,
            settling: SettlingTask::None,
            shown: None,
        });
        entry.changed = changed;
        entry
    }

    /// Removes the entry of an object of which nothing is known, unless a task works on it: another task must wait for its turn.
    fn drop_unused(&mut self, object: ObjectId) {
        if !self.is_listing && self.objects.get(&object).is_some_and(ObjectEntry::is_unused) {
            self.objects.remove(&object);
        }
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
        self.is_listing = false;
        self.objects.retain(|_, entry| !entry.is_unused());
    }
}

impl Orchestrator for KubernetesOrchestrator {
    const CHANGES: UpdateSupport = UpdateSupport::Never;

    async fn carry_out(&self, command: Command) -> WorkProgress {
        if self.world.board.refuse_misfit(&command) {
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
                let purged = self.world.purge(object, version).await;
                if purged.is_ok() {
                    let mut state = self.world.lock();
                    let entry = state.entry(object);
                    // Late requests may have created these meanwhile.
                    let (pods, claim) = (std::mem::take(&mut entry.view.pods), entry.view.claim.take());
                    // A list that is being read may contain pods that are gone.
                    let dead = std::mem::take(&mut entry.view.dead);
                    entry.view = ObjectView { pods, dead, claim, ..ObjectView::new(object) };
                    (entry.version, entry.shown) = (None, None);
                    entry.wake.notify_one();
                }
                Some(purged)
            } else {
                // The end is not proved: the object is reported again.
                None
            }
        };
        drop(turn);
        self.world.lock().drop_unused(object);
        match purged {
            Some(Ok(())) => {
                self.world.board.clear(object);
                if self.world.view(object).is_some_and(|view| view.exists()) {
                    // Only a list reports what has no record.
                    self.world.lose();
                }
            }
            Some(Err(failure)) => {
                self.world.note(&failure);
                tracing::info!(%object, %failure, "cannot purge record, retrying");
                tokio::time::sleep(PAUSE).await;
                return WorkProgress::PutOff;
            }
            None => {
                let state = self.world.known(object).map(|known| known.state);
                // The pod of a late request still exists after the proved end: a report would only ask for the purge again.
                if state.is_some_and(|state| state.is_over()) || self.world.reachable().await.is_err() {
                    tokio::time::sleep(PAUSE).await;
                    return WorkProgress::PutOff;
                }
                if self.world.view(object).is_some_and(|view| view.record.is_none()) {
                    self.world.lose();
                } else {
                    self.world.show_again(object);
                }
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
            return Err(WatchLost);
        }
        tokio::select! {
            biased;
            reports = self.world.board.read(limit) => Ok(reports),
            () = lost => Err(WatchLost),
        }
    }

    fn logs(&self) -> Arc<dyn LogSource> {
        let (client, owner) = (self.world.client.clone(), self.world.owner.clone());
        Arc::new(logs::KubernetesLogs { client, owner, runtime: self.runtime.clone() })
    }
}
