//! Bare client of a Kubernetes API: creates pods and watches them until they are ready. It stores nothing, and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_executor::kubernetes::KubernetesConfig;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::kubernetes::{BenchmarkKubernetes, CONTROL, PATIENCE, PODS};

/// Requests in flight, as many as an executor has.
const IN_FLIGHT: usize = 32;
/// Label of the client's pods.
const BARE: &str = "bare.test/pod";

/// Requests that the client makes for each pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BareRequests {
    /// As an executor: a config map, then the pod.
    Same,
    /// The pod alone.
    PodOnly,
}

/// Client whose pods are like those of an executor.
pub(crate) struct BarePods {
    runtime: Runtime,
    pods: Api<Pod>,
    maps: Api<ConfigMap>,
    model: Pod,
    model_map: ConfigMap,
    nodes: Vec<String>,
    created: usize,
}

/// Returns the selector of the client's pods.
fn selector() -> String {
    format!("{BARE}=yes")
}

/// Events of the client's pods.
type PodEvents = BoxStream<'static, kube::Result<WatchEvent<Pod>>>;

/// Lists the client's pods, and watches them from then on.
async fn list_and_watch(pods: &Api<Pod>) -> Result<(Vec<Pod>, PodEvents)> {
    let listed = pods.list(&ListParams::default().labels(&selector())).await?;
    let from = listed.metadata.resource_version.context("a version")?;
    let events = pods.watch(&WatchParams::default().labels(&selector()), &from).await?.boxed();
    Ok((listed.items, events))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

/// Returns as many labels as the object has, which the executor does not watch.
fn own_labels(of: &ObjectMeta) -> BTreeMap<String, String> {
    let labels = of.labels.clone().unwrap_or_default();
    let labels = labels.into_iter().map(|(key, value)| (key.replace("chancery.dev/", "bare.test/"), value));
    labels.chain([(BARE.to_owned(), "yes".to_owned())]).collect()
}

impl BarePods {
    /// Opens a client; its pods are like the only existing pod.
    pub(crate) fn open(api: &BenchmarkKubernetes, nodes: &[String]) -> Result<BarePods> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let config = KubernetesConfig {
            kubeconfig: Some(api.kubeconfig().to_owned()),
            context: None,
            namespace: CONTROL[0].parse()?,
            fleet: "default".parse()?,
            cluster: "pods".parse()?,
        };
        let client = runtime.block_on(config.client())?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), PODS);
        let maps: Api<ConfigMap> = Api::namespaced(client, CONTROL[0]);
        let records = ListParams::default().labels("chancery.dev/incarnation");
        let existing = runtime.block_on(maps.list(&records))?.items;
        let [record] = existing.as_slice() else { bail!("there are {} records, not one", existing.len()) };
        let model_map = ConfigMap {
            metadata: ObjectMeta { labels: Some(own_labels(&record.metadata)), ..ObjectMeta::default() },
            data: record.data.clone(),
            ..ConfigMap::default()
        };
        let existing = runtime.block_on(pods.list(&ListParams::default()))?.items;
        let [found] = existing.as_slice() else { bail!("there are {} pods, not one", existing.len()) };
        let model = Pod {
            metadata: ObjectMeta { labels: Some(own_labels(&found.metadata)), ..ObjectMeta::default() },
            spec: found.spec.clone(),
            status: None,
        };
        Ok(BarePods { runtime, pods, maps, model, model_map, nodes: nodes.to_vec(), created: 0 })
    }

    fn next_pod(&mut self) -> Pod {
        let mut pod = self.model.clone();
        pod.metadata.name = Some(format!("bare-{}", self.created));
        if let Some(spec) = &mut pod.spec {
            spec.node_name = Some(self.nodes[self.created % self.nodes.len()].clone());
        }
        self.created += 1;
        pod
    }

    /// Creates pods; returns the time until the watch has shown each as ready.
    pub(crate) fn create(&mut self, count: usize, requests: BareRequests) -> Result<Duration> {
        let new: Vec<Pod> = (0..count).map(|_| self.next_pod()).collect();
        let mut missing: BTreeSet<String> = new.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
        ensure!(missing.len() == count, "pods need names");
        let (api, maps, model_map) = (self.pods.clone(), self.maps.clone(), self.model_map.clone());
        self.runtime.block_on(async {
            let (_, mut events) = list_and_watch(&api).await?;
            // It leaves an open connection, as an executor has: the first request of a new one is late.
            api.list(&ListParams::default().limit(1)).await?;
            let began = Instant::now();
            let (permits, mut creating) = (Arc::new(Semaphore::new(IN_FLIGHT)), JoinSet::new());
            for pod in new {
                let (api, maps, permits) = (api.clone(), maps.clone(), permits.clone());
                let mut map = model_map.clone();
                map.metadata.name.clone_from(&pod.metadata.name);
                creating.spawn(async move {
                    let _permit = permits.acquire().await?;
                    if requests == BareRequests::Same {
                        maps.create(&PostParams::default(), &map).await?;
                    }
                    api.create(&PostParams::default(), &pod).await?;
                    anyhow::Ok(())
                });
            }
            while !missing.is_empty() {
                let seen = match timeout(PATIENCE, events.try_next()).await.context("no event")?? {
                    Some(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => vec![pod],
                    Some(WatchEvent::Deleted(_) | WatchEvent::Bookmark(_)) => continue,
                    // A busy API ends watches.
                    Some(WatchEvent::Error(_)) | None => {
                        let (listed, following) = list_and_watch(&api).await?;
                        events = following;
                        listed
                    }
                };
                for name in
                    seen.iter().filter(|pod| is_ready(pod)).filter_map(|pod| pod.metadata.name.as_ref())
                {
                    missing.remove(name);
                }
            }
            let took = began.elapsed();
            while let Some(created) = creating.join_next().await {
                created??;
            }
            Ok(took)
        })
    }

    /// Deletes the client's pods, and waits until none exists.
    pub(crate) fn clear(&self) -> Result<()> {
        let all = ListParams::default().labels(&selector());
        self.runtime.block_on(async {
            self.pods.delete_collection(&DeleteParams::default(), &all).await?;
            self.maps.delete_collection(&DeleteParams::default(), &all).await?;
            let began = Instant::now();
            while !self.pods.list(&all).await?.items.is_empty() {
                ensure!(began.elapsed() < PATIENCE, "pods are not deleted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        })
    }
}
