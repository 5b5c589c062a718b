//! Executor store of a Kubernetes cluster: one object for the executor, and one for each object that it manages.
//!
//! All are config maps of one namespace. They are changed by their resource version alone, so a writer that has not
//! seen the last change is refused. The executor's object has a constant size. The admission policy compares the epoch
//! in it with the epoch of each pod and record.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::{EpochNonce, ExecutorStoreId, ObjectId};
use chancery_events::observation::{IncarnationExit, ProcessInfo, RetryClass};
use chancery_events::protocol::ExecutorEpoch;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::api::{ApiFailure, EpochEnd, answer, answer_within};
use super::labels::{EPOCH, LINEAGE, MANAGER, ObjectOwner, object_of, record_name};
use super::watch::ListedItems;
use crate::executor_store::AcceptedCommand;
use crate::locked_directory::random;
use crate::run::EpochStore;
use crate::session::{ExecutorStop, HighestHead};

/// Key of the epoch in the executor's object; the admission policy reads it.
const EPOCH_KEY: &str = "epoch";
/// Time after which a head is stored whose term and lineage are stored already.
const HEAD_AGE: Duration = Duration::from_secs(10);
/// Time until the API must refuse requests of the earlier epoch.
const FENCE: Duration = Duration::from_millis(500);
/// Time limit for storing a head: the executor's loop waits for it.
const HEAD_LIMIT: Duration = Duration::from_secs(1);
/// Attempts to raise the epoch, each after another executor did so.
const TRIES: u32 = 20;

/// Object of the executor, with the epoch that this executor has started.
#[derive(Debug)]
pub struct KubernetesStore {
    maps: Api<ConfigMap>,
    pub(super) owner: ObjectOwner,
    id: ExecutorStoreId,
    epoch: ExecutorEpoch,
    stored: Mutex<StoredHead>,
    pub(super) end: EpochEnd,
}

#[derive(Debug)]
struct StoredHead {
    version: Option<String>,
    seen: Option<HighestHead>,
    at: Instant,
    /// Whether the last write had no answer.
    put_off: bool,
}

impl KubernetesStore {
    /// Raises the epoch in the executor's object, which is created if it is missing. An executor of an earlier epoch
    /// can change nothing from then on.
    pub(super) async fn open(
        client: Client,
        namespace: &str,
        owner: ObjectOwner,
    ) -> Result<(Arc<KubernetesStore>, Option<HighestHead>), ExecutorStop> {
        let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
        let name = owner.store_name();
        for _ in 0..TRIES {
            let found = answer(maps.get_opt(&name))
                .await
                .map_err(|failure| stop(&format!("cannot read config map {namespace}/{name}"), &failure))?;
            let (mut data, version) = match found {
                Some(map) if !owner.owns(map.metadata.labels.as_ref()) => {
                    let text = format!(
                        "cannot use config map {namespace}/{name}: it is of another fleet or cluster"
                    );
                    return Err(ExecutorStop::Storage(io::Error::other(text)));
                }
                Some(map) => (map.data.unwrap_or_default(), map.metadata.resource_version),
                None => (BTreeMap::new(), None),
            };
            let id = match data.get("id") {
                Some(text) => text.parse().map_err(|_| invalid(namespace, &name, "id"))?,
                None if version.is_some() => return Err(invalid(namespace, &name, "id")),
                None => ExecutorStoreId::from_random(random().map_err(ExecutorStop::Storage)?),
            };
            let stored = match data.get(EPOCH_KEY) {
                Some(text) => text.parse::<u64>().map_err(|_| invalid(namespace, &name, EPOCH_KEY))?,
                None => 0,
            };
            // A store that was deleted, or restored from an earlier copy, must not fall behind the objects of its executors.
            let highest = highest_epoch(&maps, &owner)
                .await
                .map_err(|failure| stop(&format!("cannot list config maps of {namespace}"), &failure))?;
            let last = stored.max(highest);
            let seen = match data.get("head") {
                Some(text) => serde_json::from_str(text).map_err(|_| invalid(namespace, &name, "head"))?,
                None => None,
            };
            let instance = EpochNonce::from_random(random().map_err(ExecutorStop::Storage)?);
            let epoch = ExecutorEpoch { number: last + 1, instance };
            data.insert("id".to_owned(), id.to_string());
            data.insert(EPOCH_KEY.to_owned(), epoch.number.to_string());
            let owner = ObjectOwner { epoch: epoch.number, ..owner.clone() };
            let written = write(&maps, &name, owner.labels(), data, version).await;
            let version = match written {
                Ok(version) => version,
                Err(ApiFailure::Conflict(_)) => continue,
                Err(failure) => {
                    return Err(stop(&format!("cannot write config map {namespace}/{name}"), &failure));
                }
            };
            fence(&maps, &owner, last).await;
            let stored = Mutex::new(StoredHead { version, seen, at: Instant::now(), put_off: false });
            return Ok((
                Arc::new(KubernetesStore { maps, owner, id, epoch, stored, end: EpochEnd::default() }),
                seen,
            ));
        }
        Err(ExecutorStop::StoreTaken)
    }
}

/// Returns the highest epoch of the records of a cluster; zero without records.
async fn highest_epoch(maps: &Api<ConfigMap>, owner: &ObjectOwner) -> Result<u64, ApiFailure> {
    let epochs = super::watch::list(maps, &owner.selector(EPOCH), |map: &ConfigMap| epoch_of(map)).await?;
    Ok(epochs.items.into_iter().max().unwrap_or_default())
}

pub(super) fn epoch_of(map: &ConfigMap) -> Option<u64> {
    map.metadata.labels.as_ref()?.get(EPOCH)?.parse().ok()
}

/// Requests an object of the owner's epoch, which is not created. [`ApiFailure::Superseded`] if the API refuses the epoch.
pub(super) async fn probe_fence(maps: &Api<ConfigMap>, owner: &ObjectOwner) -> Result<(), ApiFailure> {
    let mut labels = owner.labels();
    labels.insert(super::labels::INCARNATION.to_owned(), "none".to_owned());
    let metadata = ObjectMeta {
        generate_name: Some("chancery-epoch-".to_owned()),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    let probe = ConfigMap { metadata, ..ConfigMap::default() };
    let only_ask = PostParams { dry_run: true, field_manager: Some(MANAGER.to_owned()) };
    answer(maps.create(&only_ask, &probe)).await.map(drop)
}

/// Waits until the API refuses requests of the earlier epoch: the admission policy reads the epoch from a cache.
async fn fence(maps: &Api<ConfigMap>, owner: &ObjectOwner, last: u64) {
    if last == 0 {
        return;
    }
    let earlier = ObjectOwner { epoch: last, ..owner.clone() };
    let until = Instant::now() + FENCE;
    while Instant::now() < until {
        if let Err(ApiFailure::Superseded(_)) = probe_fence(maps, &earlier).await {
            return;
        }
        tokio::time::sleep(FENCE / 20).await;
    }
    tracing::warn!(
        "the API does not refuse requests of earlier epochs: without the admission policy, an executor that slept can \
         still create pods"
    );
}

fn invalid(namespace: &str, name: &str, key: &str) -> ExecutorStop {
    let text = format!("cannot read config map {namespace}/{name}: invalid or missing key {key}");
    ExecutorStop::Storage(io::Error::new(io::ErrorKind::InvalidData, text))
}

fn stop(what: &str, failure: &ApiFailure) -> ExecutorStop {
    ExecutorStop::Storage(io::Error::other(format!("{what}: {failure}")))
}

/// Creates or replaces a config map, and returns its new resource version.
async fn write(
    maps: &Api<ConfigMap>,
    name: &str,
    labels: BTreeMap<String, String>,
    data: BTreeMap<String, String>,
    version: Option<String>,
) -> Result<Option<String>, ApiFailure> {
    let exists = version.is_some();
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(labels),
        resource_version: version,
        ..ObjectMeta::default()
    };
    let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    let by = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let written = if exists {
        answer(maps.replace(name, &by, &map)).await?
    } else {
        answer(maps.create(&by, &map)).await?
    };
    Ok(written.metadata.resource_version)
}

impl EpochStore for KubernetesStore {
    fn id(&self) -> ExecutorStoreId {
        self.id
    }

    fn epoch(&self) -> ExecutorEpoch {
        self.epoch
    }

    /// A head of the stored term and lineage is stored every ten seconds: a request for each command would double the
    /// requests. Without an answer of the API the head is stored later; then no command can be carried out either.
    async fn remember(self: Arc<Self>, seen: HighestHead) -> Result<(), ExecutorStop> {
        let mut stored = self.stored.lock().await;
        let is_recent = stored
            .seen
            .is_some_and(|known| known.lineage == seen.lineage && known.head.term == seen.head.term);
        let is_recent = (is_recent || stored.put_off) && stored.at.elapsed() < HEAD_AGE;
        if is_recent {
            return Ok(());
        }
        let head =
            serde_json::to_string(&seen).map_err(|error| ExecutorStop::Storage(io::Error::other(error)))?;
        let data = BTreeMap::from([
            ("id".to_owned(), self.id.to_string()),
            (EPOCH_KEY.to_owned(), self.epoch.number.to_string()),
            ("head".to_owned(), head),
        ]);
        let name = self.owner.store_name();
        for _ in 0..TRIES {
            let writing = write(&self.maps, &name, self.owner.labels(), data.clone(), stored.version.clone());
            match tokio::time::timeout(HEAD_LIMIT, writing).await {
                Ok(Ok(version)) => {
                    *stored = StoredHead { version, seen: Some(seen), at: Instant::now(), put_off: false };
                    return Ok(());
                }
                // The answer to an earlier write was lost, or another party edited the object.
                Ok(Err(ApiFailure::Conflict(_))) => {
                    match answer_within(HEAD_LIMIT, self.maps.get_opt(&name)).await {
                        Ok(Some(map)) if epoch_of(&map) == Some(self.epoch.number) => {
                            stored.version = map.metadata.resource_version;
                        }
                        Ok(Some(_)) | Err(ApiFailure::Superseded(_)) => return Err(taken_over()),
                        Ok(None) => stored.version = None,
                        Err(failure) => {
                            stored.put_off(&failure.to_string());
                            return Ok(());
                        }
                    }
                }
                Ok(Err(ApiFailure::NotFound(_))) => stored.version = None,
                Ok(Err(ApiFailure::Superseded(_))) => return Err(taken_over()),
                // Where config maps cannot be written, no command can be carried out either.
                Ok(Err(failure)) => {
                    stored.put_off(&failure.to_string());
                    return Ok(());
                }
                Err(_) => {
                    stored.put_off("no answer in time");
                    return Ok(());
                }
            }
        }
        stored.put_off("the object changes too often");
        Ok(())
    }

    async fn taken_over(&self) -> ExecutorStop {
        ExecutorStop::TakenOver(self.end.wait().await)
    }
}

fn taken_over() -> ExecutorStop {
    ExecutorStop::TakenOver("its epoch is in the executor store".to_owned())
}

impl StoredHead {
    /// Stores the head later.
    fn put_off(&mut self, reason: &str) {
        tracing::warn!(reason, "cannot store head, retrying");
        (self.at, self.put_off) = (Instant::now(), true);
    }
}

/// Durable record of an object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct ObjectRecord {
    /// Highest accepted target, and the spec.
    pub(super) command: AcceptedCommand,
    /// Progress of the start.
    pub(super) start: StartProgress,
    /// End of the object, once it was observed or requested.
    pub(super) end: Option<RecordedEnd>,
    /// Failure of the start: nothing was left.
    pub(super) failure: Option<RecordedFailure>,
    /// Revision at or below which nothing will be carried out. Nothing of the object exists.
    pub(super) tombstone: Option<u32>,
}

/// Progress of a start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StartProgress {
    /// Command accepted, nothing created.
    Accepted,
    /// Command accepted by an executor that creates what is missing.
    Creating,
    /// Everything was created: an object that does not exist any more has ended.
    Created,
    /// Ready at least once.
    Ready,
}

/// End of an object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct RecordedEnd {
    pub(super) exit: IncarnationExit,
    pub(super) processes: Vec<ProcessInfo>,
    /// Whether nothing of the object existed when this was written.
    pub(super) is_proved: bool,
}

/// Failure of a start.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct RecordedFailure {
    pub(super) message: String,
    pub(super) retry: RetryClass,
}

impl ObjectRecord {
    pub(super) fn new(command: AcceptedCommand) -> ObjectRecord {
        ObjectRecord { command, start: StartProgress::Accepted, end: None, failure: None, tombstone: None }
    }
}

/// Records of objects.
#[derive(Clone, Debug)]
pub(super) struct RecordStore {
    pub(super) maps: Api<ConfigMap>,
    owner: ObjectOwner,
}

/// Key of the record in its config map.
const RECORD_KEY: &str = "record";

impl RecordStore {
    pub(super) fn new(client: Client, namespace: &str, owner: ObjectOwner) -> RecordStore {
        RecordStore { maps: Api::namespaced(client, namespace), owner }
    }

    /// Returns all records with their resource versions. [`ApiFailure::Superseded`] if a later epoch has started.
    pub(super) async fn list(&self) -> Result<ListedItems<(ObjectId, ObjectRecord, String)>, ApiFailure> {
        let read = |map: &ConfigMap| {
            let record = parse(map);
            // Only records have a lineage: the executor store has none.
            let is_record = map.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LINEAGE));
            if is_record && record.is_none() {
                tracing::warn!(name = ?map.metadata.name, "cannot read record, ignored");
            }
            // Another party may have changed the label.
            Some((epoch_of(map).unwrap_or_default(), record))
        };
        let listed = super::watch::list(&self.maps, &self.owner.selector(EPOCH), read).await?;
        let ListedItems { items, version } = listed;
        // The store and records of a later executor must not be taken for those of this one.
        if let Some((epoch, _)) = items.iter().find(|(epoch, _)| *epoch > self.owner.epoch) {
            return Err(ApiFailure::Superseded(format!("epoch {epoch} has started")));
        }
        Ok(ListedItems { items: items.into_iter().filter_map(|(_, record)| record).collect(), version })
    }

    /// Creates or replaces a record, and returns its new resource version.
    pub(super) async fn write(
        &self,
        record: &ObjectRecord,
        version: Option<String>,
    ) -> Result<Option<String>, ApiFailure> {
        let object = record.command.object;
        let text = serde_json::to_string(record)
            .map_err(|error| ApiFailure::Refused(0, format!("cannot write record: {error}")))?;
        let data = BTreeMap::from([(RECORD_KEY.to_owned(), text)]);
        write(&self.maps, &record_name(object), self.owner.labels_of(object), data, version).await
    }

    /// Returns the resource version of a record after a conflict; `None` if it does not exist. [`ApiFailure::Superseded`]
    /// if a later epoch has written it.
    pub(super) async fn version_after(
        &self,
        object: ObjectId,
        conflict: &str,
    ) -> Result<Option<String>, ApiFailure> {
        let Some(map) = answer(self.maps.get_opt(&record_name(object))).await? else { return Ok(None) };
        let epoch = epoch_of(&map).unwrap_or_default();
        if epoch > self.owner.epoch {
            return Err(ApiFailure::Superseded(format!("epoch {epoch} has written: {conflict}")));
        }
        Ok(Some(map.metadata.resource_version.unwrap_or_default()))
    }

    /// Removes the record with this resource version; a missing one is no error. A record that another party has changed
    /// since is removed too, unless a later epoch has written it.
    pub(super) async fn purge(
        &self,
        object: ObjectId,
        mut version: Option<String>,
    ) -> Result<(), ApiFailure> {
        loop {
            let only = kube::api::Preconditions { uid: None, resource_version: version };
            let params = kube::api::DeleteParams::default().preconditions(only);
            match answer(self.maps.delete(&record_name(object), &params)).await {
                Ok(_) | Err(ApiFailure::NotFound(_)) => return Ok(()),
                Err(ApiFailure::Conflict(message)) => match self.version_after(object, &message).await? {
                    None => return Ok(()),
                    found => version = found,
                },
                Err(failure) => return Err(failure),
            }
        }
    }
}

fn parse(map: &ConfigMap) -> Option<(ObjectId, ObjectRecord, String)> {
    let object = object_of(map.metadata.labels.as_ref())?;
    let record: ObjectRecord = serde_json::from_str(map.data.as_ref()?.get(RECORD_KEY)?).ok()?;
    let version = map.metadata.resource_version.clone()?;
    (record.command.object == object).then_some((object, record, version))
}
