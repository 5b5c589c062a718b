//! List of all objects of a cluster, and the watches that continue it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chancery_events::id::ObjectId;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::api::{ApiFailure, answer, chain};
use super::claims::ObservedClaim;
use super::labels::{EPOCH, INCARNATION, VOLUME, object_of};
use super::objects::{ApiObject, ClaimObject, PodObject};
use super::pods::ObservedPod;
use super::state::{ObjectStep, ObjectView};
use super::store::epoch_of;
use super::{KubernetesWorld, PAUSE};

/// Maximum number of objects in one answer to a list.
const PAGE: u32 = 500;
/// Time after which the API ends a watch, in seconds; the executor then continues it.
const WATCH: u32 = 290;
/// Time after which a watch without any event is lost: the API should have ended it.
const SILENCE: Duration = Duration::from_secs(WATCH as u64 + 10);

/// Items of a list, and the resource version from which a watch continues it.
pub(super) struct ListedItems<T> {
    pub(super) items: Vec<T>,
    pub(super) version: String,
}

/// Lists all objects that match, page by page, and keeps of each what `read` returns.
pub(super) async fn list<K, T>(
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
            let version = page.metadata.resource_version.filter(|version| !version.is_empty());
            let version = version.ok_or_else(|| {
                ApiFailure::NoAnswer("answer is no list of the API: it has no resource version".to_owned())
            })?;
            return Ok(ListedItems { items, version });
        };
        params = params.continue_token(&token);
    }
}

/// Returns the object of an event, its API object, and whether that exists.
fn changed<K: ApiObject>(event: WatchEvent<K>) -> Option<(ObjectId, K, bool)> {
    let (of, exists) = match event {
        WatchEvent::Added(of) | WatchEvent::Modified(of) => (of, true),
        WatchEvent::Deleted(of) => (of, false),
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return None,
    };
    Some((object_of(of.meta().labels.as_ref())?, of, exists))
}

impl KubernetesWorld {
    fn pods(&self) -> Api<PodObject> {
        Api::all(self.client.clone())
    }

    fn claims(&self) -> Api<ClaimObject> {
        Api::all(self.client.clone())
    }

    /// Reads records, pods and claims, and watches all of them from there on.
    pub(super) async fn read_all(self: &Arc<Self>) -> Result<(), ApiFailure> {
        let before = {
            let mut state = self.lock();
            state.is_listing = true;
            state.changes
        };
        // Records first: an object that is created meanwhile has its record.
        let records = self.records.list().await.inspect_err(|failure| self.note(failure))?;
        let pod =
            |pod: &PodObject| Some((object_of(pod.metadata.labels.as_ref())?, ObservedPod::of(pod, before)?));
        let pods = list(&self.pods(), &self.owner.selector(INCARNATION), pod).await?;
        let claim = |claim: &ClaimObject| {
            Some((object_of(claim.metadata.labels.as_ref())?, ObservedClaim::of(claim, before)?))
        };
        let claims = list(&self.claims(), &self.owner.selector(VOLUME), claim).await?;
        let mut views: BTreeMap<ObjectId, (ObjectView, Option<String>)> = BTreeMap::new();
        for (object, record, version) in records.items {
            let view = ObjectView { record: Some(record), ..ObjectView::new(object) };
            views.insert(object, (view, Some(version)));
        }
        for (object, pod) in pods.items {
            let (view, _) = views.entry(object).or_insert_with(|| (ObjectView::new(object), None));
            view.see_pod(pod, true);
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
        let world = || self.clone();
        let watches = [
            tokio::spawn(world().watch(self.pods(), INCARNATION, pods.version, number, Self::pod_changed)),
            tokio::spawn(world().watch(self.claims(), VOLUME, claims.version, number, Self::claim_changed)),
            tokio::spawn(world().watch(
                self.records.maps.clone(),
                EPOCH,
                records.version,
                number,
                Self::record_changed,
            )),
        ];
        self.lock().watches.extend(watches.iter().map(JoinHandle::abort_handle));
        for object in due {
            self.settle(object);
        }
        Ok(())
    }

    /// Watches from the resource version of a list on, until events may have been missed.
    async fn watch<K: ApiObject>(
        self: Arc<Self>,
        api: Api<K>,
        key: &'static str,
        mut version: String,
        list: u64,
        changed: fn(&Arc<Self>, u64, WatchEvent<K>),
    ) {
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
                        changed(&self, list, event);
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

    fn pod_changed(self: &Arc<Self>, list: u64, event: WatchEvent<PodObject>) {
        let Some((object, pod, exists)) = changed(event) else { return };
        self.see(list, object, |view, at| {
            if let Some(seen) = ObservedPod::of(&pod, at) {
                view.see_pod(seen, exists);
            }
        });
    }

    fn claim_changed(self: &Arc<Self>, list: u64, event: WatchEvent<ClaimObject>) {
        let Some((object, claim, exists)) = changed(event) else { return };
        self.see(list, object, |view, at| {
            if let Some(seen) = ObservedClaim::of(&claim, at) {
                view.see_claim(seen, exists);
            }
        });
    }

    /// A store or record of a later epoch ends this one. A record that an executor of an earlier epoch creates after its object
    /// was purged is found by a list: without it, the record would stay. Other changes of records by other parties change
    /// nothing that is known.
    fn record_changed(self: &Arc<Self>, list: u64, event: WatchEvent<ConfigMap>) {
        let (WatchEvent::Added(map) | WatchEvent::Modified(map)) = event else { return };
        let epoch = epoch_of(&map).unwrap_or_default();
        if epoch > self.owner.epoch {
            return self.end_epoch(&format!("epoch {epoch} has started"));
        }
        let Some(object) = object_of(map.metadata.labels.as_ref()) else { return };
        let is_late = {
            let state = self.lock();
            let is_unknown = state.objects.get(&object).is_none_or(|entry| entry.view.record.is_none());
            let is_earlier = epoch < self.owner.epoch;
            state.list == list && !state.has_ended && is_unknown && is_earlier
        };
        if is_late {
            tracing::info!(%object, "found record of an earlier epoch");
            self.lose();
        }
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
            let was_empty = entry.view.is_empty();
            change(&mut entry.view, at);
            if entry.view.is_empty() || (was_empty && entry.view.record.is_none()) {
                state.drop_unused(object);
                drop(state);
                // Only a list reports an object without a record, as one that a late request created, and its absence.
                return self.lose();
            }
        }
        self.settle(object);
    }
}
