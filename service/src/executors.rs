//! Executors in the server's own process: one for each cluster that the settings include.
//!
//! They use the same serialised messages as any executor; the channel is a pair of in-memory channels.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chancery_api::{ApiShared, ClusterLogSource, ServerMetrics};
use chancery_decider::leader_router::LeaderRouter;
use chancery_decider::{ChannelNumbers, outbox};
use chancery_events::console::AttachRefusal;
use chancery_events::id::{IncarnationId, Position};
use chancery_events::name::{ClusterName, ExecutorName, FleetName, Namespace, PayloadName};
use chancery_events::spec::ClusterRuntime;
#[cfg(feature = "kubernetes")]
use chancery_executor::Orchestrator as _;
use chancery_executor::console::{AttachError, ConsoleFiles, ConsoleSource};
use chancery_executor::directory::CopyPolicy;
#[cfg(feature = "kubernetes")]
use chancery_executor::kubernetes::{KubernetesConfig, KubernetesOrchestrator};
use chancery_executor::logs::{LogOutput, LogSource};
use chancery_executor::process::{
    CgroupSetting, OutputLimits, ProcessLogs, ProcessOrchestrator, QemuSettings, SupervisorProgram,
};
use chancery_executor::simulated::{FaultRules, SimulatedOrchestrator, SimulatedWorld};
use chancery_executor::{DeciderChannel, ExecutorStatus, ExecutorStop, open_directory, process};
use chancery_projector::rows::ClusterRow;
use chancery_projector::{ListQuery, QueryError, RowReader};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::{EmbeddedClusters, ServiceConfig};
use crate::data_dir::if_there;
use crate::open_files::OpenFileLimit;

/// Time before an executor that could not start is retried.
const PAUSE: Duration = Duration::from_secs(2);
/// Messages in each direction in flight between the decider's queue or outbox and an executor.
const WAITING: usize = 64;
/// Maximum number of work items that an executor starts concurrently.
const AT_ONCE: usize = 32;
/// Number of clusters that are read at one time.
const PAGE: usize = 1000;

/// Environment of the executors in this process.
#[derive(Clone)]
pub struct ExecutorHost {
    /// Fleet of the executors.
    pub fleet: FleetName,
    /// Metrics of the server.
    pub common: Arc<ApiShared>,
    /// Routes messages to the decider.
    pub leader_router: LeaderRouter,
    /// Reader of clusters.
    pub reader: RowReader,
    /// Clusters whose executors run in this process, their directories, and the output of their incarnations.
    pub logs: EmbeddedLogs,
    /// Limits of processes on this machine.
    pub means: ProcessLimits,
    /// Assigns numbers to connections.
    pub connections: ChannelNumbers,
}

impl ExecutorHost {
    /// Runs an executor for each cluster, until `stop` is true. Their processes continue.
    pub async fn run(self, mut clusters: watch::Receiver<Position>, stop: watch::Receiver<bool>) {
        let mut hosted = HostedExecutors::default();
        let mut running = JoinSet::new();
        let mut stopping = stop.clone();
        loop {
            // Rows follow the notification. A stopped projector ends the server; nothing is left to do here.
            let news = *clusters.borrow_and_update();
            tokio::select! {
                _ = self.reader.watch().reached(news) => {}
                _ = stopping.wait_for(|stop| *stop) => break,
            }
            match all_clusters(&self.reader, PAGE) {
                Ok(mut present) => {
                    present.retain(|name, _| self.logs.clusters.has(name));
                    for (name, runtime) in hosted.missing(&present) {
                        let (let_go, released) = watch::channel(false);
                        let number = hosted.begin(name.clone(), runtime.clone(), let_go);
                        let host = Box::pin(self.clone().host(name, runtime, clusters.clone(), released));
                        running.spawn(async move {
                            let ended = tokio::spawn(host).await;
                            if let Err(error) = &ended {
                                tracing::error!(%error, "embedded executor panicked, starting it again");
                                tokio::time::sleep(PAUSE).await;
                            }
                            (number, ended.is_err())
                        });
                    }
                }
                Err(error) => tracing::error!(%error, "cannot read clusters, starting no executor"),
            }
            let has_changed = loop {
                tokio::select! {
                    changed = clusters.changed() => break changed.is_ok(),
                    _ = stopping.wait_for(|stop| *stop) => break false,
                    Some(Ok((number, has_panicked))) = running.join_next() => {
                        hosted.end(number);
                        if has_panicked {
                            break true;
                        }
                    }
                }
            };
            if !has_changed {
                break;
            }
        }
        drop(hosted);
        while running.join_next().await.is_some() {}
    }

    /// Runs one executor, repeatedly, until the sender of `let_go` is dropped.
    pub(crate) async fn host(
        self,
        cluster: ClusterName,
        runtime: RuntimeAccess,
        mut clusters: watch::Receiver<Position>,
        mut let_go: watch::Receiver<bool>,
    ) {
        let root = self.logs.root.join(cluster.as_str());
        let mut role = self.leader_router.leader_role.clone();
        loop {
            clusters.mark_unchanged();
            role.mark_unchanged();
            let ended = self.execute(&cluster, &runtime, &root, let_go.clone()).await;
            match ended {
                Ok(()) if let_go.has_changed().is_err() => return,
                // The server is no longer the leader.
                Ok(()) => continue,
                Err(
                    stop @ (ExecutorStop::Diverged(_)
                    | ExecutorStop::StaleDecider(_)
                    | ExecutorStop::Refused(_)
                    | ExecutorStop::Copied(_)),
                ) => {
                    tracing::error!(%cluster, %stop, "executor stopped, its incarnations continue");
                    // The cause persists until the clusters change, or another server is the leader.
                    tokio::select! {
                        _ = let_go.changed() => return,
                        Ok(()) = clusters.changed() => {}
                        Ok(()) = role.changed() => {}
                    }
                    continue;
                }
                Err(
                    stop @ (ExecutorStop::StoreTaken | ExecutorStop::TakenOver(_) | ExecutorStop::Storage(_)),
                ) => {
                    let stop = format!("{:#}", anyhow::Error::new(stop));
                    tracing::warn!(%cluster, stop, "executor stopped, starting again");
                }
            }
            tokio::select! {
                _ = let_go.changed() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn execute(
        &self,
        cluster: &ClusterName,
        runtime: &RuntimeAccess,
        root: &Path,
        mut let_go: watch::Receiver<bool>,
    ) -> Result<(), ExecutorStop> {
        // The same name in every incarnation of the server, so that a session is resumed and not contested.
        let executor = format!("embedded-{cluster}").chars().take(63).collect::<String>();
        let executor =
            executor.trim_end_matches(['-', '.']).parse().expect("a cluster's name, prefixed and cut");
        // All servers of a fleet share the executor store of such a cluster: an executor of a standby would take over from
        // that of the leader.
        let is_shared = runtime.runtime() == ClusterRuntime::Kubernetes;
        if is_shared {
            tokio::select! {
                // The sender is never used: it is dropped.
                _ = let_go.changed() => return Ok(()),
                () = self.leader_router.decides() => {}
            }
        }
        let router = self.leader_router.clone();
        let shutdown = async move {
            tokio::select! {
                _ = let_go.changed() => {}
                () = router.stands_by(), if is_shared => {}
            }
        };
        let (fleet, cluster, runtime) = (self.fleet.clone(), cluster.clone(), runtime.clone());
        let who = ExecutorIdentity { fleet, executor, cluster, runtime };
        let status = who.status(&self.common.metrics);
        drive((who, status), root, &self.means, Some(&self.logs), || self.connect(), shutdown).await
    }

    async fn connect(&self) -> io::Result<DeciderChannel> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "no decider on this server");
        let decider = self.leader_router.here().ok_or_else(gone)?;
        let way = decider.way(self.connections.next());
        let (outbox, mut messages) = outbox();
        let (to_executor, from_decider) = mpsc::channel(WAITING);
        let (to_decider, mut outgoing) = mpsc::channel::<Vec<u8>>(WAITING);
        way.connected(outbox).await.map_err(|_| gone())?;
        tokio::spawn(async move {
            while let Some(message) = messages.take().await {
                if to_executor.send(message).await.is_err() {
                    return;
                }
            }
        });
        tokio::spawn(async move {
            while let Some(message) = outgoing.recv().await {
                if way.send(message).await.is_err() {
                    return;
                }
            }
            // If the decider has stopped, no notification is needed.
            let _ = way.disconnected().await;
        });
        Ok(DeciderChannel { to_decider, from_decider })
    }
}

/// Error of a program that was built without the feature.
#[cfg(not(feature = "kubernetes"))]
pub const NO_KUBERNETES: &str = "this program was built without the feature kubernetes";

/// Returns every cluster with its runtime. Inactive clusters are included: nothing new is placed there, but
/// existing incarnations are still managed.
fn all_clusters(reader: &RowReader, page: usize) -> Result<BTreeMap<ClusterName, RuntimeAccess>, QueryError> {
    let mut all = BTreeMap::new();
    let mut query = ListQuery::all().limit(page);
    loop {
        let page = reader.list::<ClusterRow>(&query)?;
        let accesses =
            page.items.into_iter().filter_map(|row| Some((row.name.clone(), RuntimeAccess::of(&row)?)));
        all.extend(accesses);
        let Some(next) = page.next else { return Ok(all) };
        query = query.after(next);
    }
}

/// Executors that run in this process, by cluster. Each executor ends when its handle is dropped.
#[derive(Default, Debug)]
struct HostedExecutors {
    by_cluster: BTreeMap<ClusterName, (RuntimeAccess, u64, watch::Sender<bool>)>,
    begun: u64,
}

impl HostedExecutors {
    /// Drops executors of unwanted clusters, and returns the clusters whose executors must start. A cluster
    /// that was created again with another runtime, perhaps between two checks, counts as another one.
    fn missing(
        &mut self,
        wanted: &BTreeMap<ClusterName, RuntimeAccess>,
    ) -> Vec<(ClusterName, RuntimeAccess)> {
        self.by_cluster.retain(|name, (runtime, ..)| wanted.get(name) == Some(runtime));
        let missing = wanted.iter().filter(|(name, _)| !self.by_cluster.contains_key(*name));
        missing.map(|(name, runtime)| (name.clone(), runtime.clone())).collect()
    }

    /// Adds a started executor, and returns its number for [`HostedExecutors::end`].
    fn begin(&mut self, name: ClusterName, runtime: RuntimeAccess, let_go: watch::Sender<bool>) -> u64 {
        self.begun += 1;
        self.by_cluster.insert(name, (runtime, self.begun, let_go));
        self.begun
    }

    /// Removes an ended executor. Another executor that was started for the same cluster meanwhile stays.
    fn end(&mut self, number: u64) {
        self.by_cluster.retain(|_, (_, begun, _)| *begun != number);
    }
}

/// Limits of processes on a machine.
#[derive(Clone, Debug)]
pub struct ProcessLimits {
    /// Limits of the stored output of processes.
    pub output: OutputLimits,
    /// Root of the control groups of incarnations.
    pub cgroup: CgroupSetting,
    /// Initial limit of open descriptors of processes, if it differs from this process's limit.
    pub files: Option<u64>,
    /// Handling of an executor's directory that is a copy.
    pub copies: CopyPolicy,
    /// Settings of virtual machines.
    pub qemu: QemuSettings,
}

impl ProcessLimits {
    /// Returns the configured limits, in a process that has raised its own limit of descriptors.
    pub fn of(config: &ServiceConfig, files: &OpenFileLimit, copies: CopyPolicy) -> ProcessLimits {
        ProcessLimits {
            output: config.output,
            cgroup: config.cgroup_root.clone(),
            files: files.began,
            copies,
            qemu: config.qemu.clone(),
        }
    }
}

/// Runtime that an executor drives, with its access to the runtime.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuntimeAccess {
    /// Processes of this machine.
    Process,
    /// Virtual machines on this machine.
    Qemu,
    /// Simulated nodes.
    Simulated,
    /// Pods of a Kubernetes cluster.
    Kubernetes(KubernetesAccess),
}

/// Access to a Kubernetes cluster. Credentials are read from files and never stored elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KubernetesAccess {
    /// Namespace of the executor's records.
    pub namespace: Namespace,
    /// File with the credentials; found as kubectl does, if absent.
    pub kubeconfig: Option<PathBuf>,
    /// Context in the file; its current one, if absent.
    pub context: Option<String>,
}

impl RuntimeAccess {
    /// Kind of the runtime.
    pub const fn runtime(&self) -> ClusterRuntime {
        match self {
            RuntimeAccess::Process => ClusterRuntime::Process,
            RuntimeAccess::Qemu => ClusterRuntime::Qemu,
            RuntimeAccess::Simulated => ClusterRuntime::Simulated,
            RuntimeAccess::Kubernetes(_) => ClusterRuntime::Kubernetes,
        }
    }

    /// Returns the access of an executor in the server to a cluster; `None` if the cluster's spec lacks what its
    /// runtime needs, which no accepted spec does.
    fn of(cluster: &ClusterRow) -> Option<RuntimeAccess> {
        Some(match cluster.runtime {
            ClusterRuntime::Process => RuntimeAccess::Process,
            ClusterRuntime::Qemu => RuntimeAccess::Qemu,
            ClusterRuntime::Simulated => RuntimeAccess::Simulated,
            ClusterRuntime::Kubernetes => RuntimeAccess::Kubernetes(KubernetesAccess {
                namespace: cluster.kubernetes.as_ref()?.namespace.clone(),
                kubeconfig: None,
                context: None,
            }),
        })
    }
}

/// Identity of an executor.
#[derive(Clone, Debug)]
pub struct ExecutorIdentity {
    /// Fleet of the executor.
    pub fleet: FleetName,
    /// Name of the executor.
    pub executor: ExecutorName,
    /// Cluster of the executor.
    pub cluster: ClusterName,
    /// Runtime that the executor drives.
    pub runtime: RuntimeAccess,
}

impl ExecutorIdentity {
    /// Returns the status of an executor that will start, which is in the metrics from now on.
    pub fn status(&self, metrics: &ServerMetrics) -> Arc<ExecutorStatus> {
        let status = ExecutorStatus::new();
        metrics.add_executor(&self.fleet, &self.cluster, &self.executor, &status);
        status
    }
}

/// Drives a runtime from `root` until `shutdown`, over channels that `connect` returns. `logs` receives the source of output that
/// only the running executor can read.
pub async fn drive<C, F>(
    (who, status): (ExecutorIdentity, Arc<ExecutorStatus>),
    root: &Path,
    means: &ProcessLimits,
    logs: Option<&EmbeddedLogs>,
    connect: C,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ExecutorStop>
where
    C: FnMut() -> F,
    F: Future<Output = io::Result<DeciderChannel>>,
{
    let ExecutorIdentity { fleet, executor, cluster, runtime } = who;
    let (copies, root) = (means.copies, root.to_owned());
    let config = chancery_executor::ExecutorConfig {
        executor,
        cluster: cluster.clone(),
        runtime: runtime.runtime(),
        at_once: AT_ONCE,
        status,
    };
    match runtime {
        RuntimeAccess::Process | RuntimeAccess::Qemu => {
            let store = open_directory(root.clone(), copies).await?;
            let program = SupervisorProgram {
                program: std::env::current_exe().map_err(ExecutorStop::Storage)?,
                supervisor_args: vec!["supervisor".into()],
                trampoline_args: vec!["trampoline".into()],
            };
            let ProcessLimits { output, cgroup, files, qemu, .. } = means.clone();
            let qemu = (runtime == RuntimeAccess::Qemu).then_some(qemu);
            let processes = process::ProcessConfig { root, program, output, cgroup, files, qemu, boot: None };
            let open = ProcessOrchestrator::open(processes);
            chancery_executor::run(config, store, open, connect, shutdown).await
        }
        RuntimeAccess::Simulated => {
            let store = open_directory(root, copies).await?;
            let simulated = SimulatedOrchestrator::new(SimulatedWorld::shared(FaultRules::default()));
            chancery_executor::run(config, store, async { Ok(simulated) }, connect, shutdown).await
        }
        RuntimeAccess::Kubernetes(access) => {
            drive_kubernetes(config, fleet, access, logs, connect, shutdown).await
        }
    }
}

#[cfg(feature = "kubernetes")]
async fn drive_kubernetes<C, F>(
    config: chancery_executor::ExecutorConfig,
    fleet: FleetName,
    access: KubernetesAccess,
    logs: Option<&EmbeddedLogs>,
    mut connect: C,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ExecutorStop>
where
    C: FnMut() -> F,
    F: Future<Output = io::Result<DeciderChannel>>,
{
    let mut shutdown = std::pin::pin!(shutdown);
    // Opening the store ends the epoch of another executor, so it waits for a decider: of several servers, one has it.
    loop {
        tokio::select! {
            connected = connect() => if connected.is_ok() { break },
            () = &mut shutdown => return Ok(()),
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = &mut shutdown => return Ok(()),
        }
    }
    let KubernetesAccess { namespace, kubeconfig, context } = access;
    let cluster = config.cluster.clone();
    let kubernetes = KubernetesConfig { kubeconfig, context, namespace, fleet, cluster };
    let client = kubernetes.client().await.map_err(|error| ExecutorStop::Storage(io::Error::other(error)))?;
    let store = tokio::select! {
        opened = kubernetes.open_store(client.clone()) => opened?,
        () = &mut shutdown => return Ok(()),
    };
    let epoch = store.0.clone();
    let cluster = config.cluster.clone();
    let mut source = None;
    let open = async {
        let orchestrator = KubernetesOrchestrator::open(client, &kubernetes.namespace, &epoch).await;
        if let Some(logs) = logs {
            let source = source.insert(orchestrator.logs());
            logs.running().insert(cluster.clone(), Arc::clone(source));
        }
        Ok(orchestrator)
    };
    let ended = chancery_executor::run(config, store, open, connect, shutdown).await;
    if let (Some(logs), Some(source)) = (logs, source) {
        // Another executor of the cluster may have started.
        logs.running().retain(|_, running| !Arc::ptr_eq(running, &source));
    }
    ended
}

#[cfg(not(feature = "kubernetes"))]
#[expect(clippy::unused_async, reason = "the signature is that of the other build")]
async fn drive_kubernetes<C, F>(
    _config: chancery_executor::ExecutorConfig,
    _fleet: FleetName,
    _access: KubernetesAccess,
    _logs: Option<&EmbeddedLogs>,
    _connect: C,
    _shutdown: impl Future<Output = ()>,
) -> Result<(), ExecutorStop>
where
    C: FnMut() -> F,
    F: Future<Output = io::Result<DeciderChannel>>,
{
    Err(ExecutorStop::Storage(io::Error::new(io::ErrorKind::Unsupported, NO_KUBERNETES)))
}

/// Output of the executors in this process: files under their root, and what running executors read from their runtime.
#[derive(Clone)]
pub struct EmbeddedLogs {
    root: PathBuf,
    clusters: EmbeddedClusters,
    running: Arc<Mutex<BTreeMap<ClusterName, Arc<dyn LogSource>>>>,
}

impl EmbeddedLogs {
    /// Returns the output of executors of `clusters`, each with its directory under `root`.
    pub fn new(root: PathBuf, clusters: EmbeddedClusters) -> EmbeddedLogs {
        EmbeddedLogs { root, clusters, running: Arc::default() }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<ClusterName, Arc<dyn LogSource>>> {
        // Every change under the lock is complete, so a panic leaves nothing half done.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the files of each executor, also of a cluster that was deleted.
    fn stored(&self) -> io::Result<impl Iterator<Item = io::Result<ProcessLogs>>> {
        let entries = if_there(std::fs::read_dir(&self.root))?.into_iter().flatten();
        Ok(entries.map(|entry| Ok(ProcessLogs { root: entry?.path() })))
    }
}

impl LogSource for EmbeddedLogs {
    /// Returns the outputs of an incarnation from any executor, also of a cluster that was deleted.
    fn outputs(&self, incarnation: IncarnationId) -> io::Result<Vec<Box<dyn LogOutput>>> {
        let mut found = Vec::new();
        for logs in self.stored()? {
            found.extend(logs?.outputs(incarnation)?);
        }
        // Reading from a runtime takes requests: files come first.
        let running: Vec<_> = self.running().values().cloned().collect();
        for source in running {
            if found.is_empty() {
                found = source.outputs(incarnation)?;
            }
        }
        Ok(found)
    }
}

impl ConsoleSource for EmbeddedLogs {
    fn console(
        &self,
        incarnation: IncarnationId,
        payload: Option<&PayloadName>,
    ) -> Result<ConsoleFiles, AttachError> {
        let failed = |error: io::Error| AttachError::new(AttachRefusal::Failed, error.to_string());
        let mut last = AttachError::new(
            AttachRefusal::Missing,
            "cannot attach: no executor of this server has the incarnation",
        );
        for logs in self.stored().map_err(failed)? {
            match logs.map_err(failed)?.console(incarnation, payload) {
                Ok(console) => return Ok(console),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl ClusterLogSource for EmbeddedLogs {
    fn keeps(&self, cluster: &ClusterName) -> bool {
        self.clusters.has(cluster)
    }
}

#[cfg(test)]
mod tests {
    use chancery_events::event::Event;
    use chancery_events::fact::Fact;
    use chancery_events::id::{Lineage, WriterId};
    use chancery_events::record::RecordDraft;
    use chancery_events::time::Time;
    use chancery_journal::memory::MemoryLog;
    use chancery_journal::{Journal, WriterIdentity, genesis};
    use chancery_projector::{Projector, StoreTuning};

    use super::*;

    fn wanted(clusters: &[(&str, RuntimeAccess)]) -> BTreeMap<ClusterName, RuntimeAccess> {
        clusters.iter().map(|(name, runtime)| (name.parse().expect("a name"), runtime.clone())).collect()
    }

    fn begin(hosted: &mut HostedExecutors, clusters: &[(&str, RuntimeAccess)]) -> Vec<(String, u64)> {
        let missing = hosted.missing(&wanted(clusters));
        missing
            .into_iter()
            .map(|(name, runtime)| (name.to_string(), hosted.begin(name, runtime, watch::channel(false).0)))
            .collect()
    }

    #[test]
    fn a_cluster_that_is_created_again_with_another_runtime_gets_another_executor() {
        let mut hosted = HostedExecutors::default();
        let (a, b) = (("a", RuntimeAccess::Process), ("b", RuntimeAccess::Process));
        assert_eq!(begin(&mut hosted, &[a.clone(), b.clone()]), [("a".into(), 1), ("b".into(), 2)]);
        assert_eq!(begin(&mut hosted, &[a.clone(), b.clone()]), [], "they run");
        let other = ("b", RuntimeAccess::Simulated);
        assert_eq!(begin(&mut hosted, &[a.clone(), other.clone()]), [("b".into(), 3)]);
        hosted.end(2);
        assert_eq!(
            begin(&mut hosted, &[a.clone(), other.clone()]),
            [],
            "the end of the old executor does not remove the new one"
        );
        hosted.end(1);
        assert_eq!(
            begin(&mut hosted, &[a.clone(), other.clone()]),
            [("a".into(), 4)],
            "an ended executor starts again"
        );
        assert_eq!(begin(&mut hosted, std::slice::from_ref(&other)), []);
        assert_eq!(
            begin(&mut hosted, &[a.clone(), other.clone()]),
            [("a".into(), 5)],
            "a dropped executor, too"
        );
    }

    #[test]
    fn clusters_are_read_to_the_last_page() {
        let log = MemoryLog::new("default");
        let journal = log.open(Box::new(|_| {})).expect("a journal");
        let by = WriterIdentity {
            fleet: "default".into(),
            build: "test".into(),
            writer: WriterId::from_random(1),
        };
        let cluster =
            |n| ("cluster.applied.v1", format!(r#"{{"name":"c-{n}","spec":{{"runtime":"simulated"}}}}"#));
        let mut draft = RecordDraft::new();
        for (type_name, data) in std::iter::once(("term.started.v1", "{}".into())).chain((0..7).map(cluster))
        {
            let fact = Fact::read(type_name, &data).expect("a known type").expect("data");
            draft.push(&Event::Fact { cause: Position::FIRST, fact }.line()).expect("space");
        }
        let now = Time::from_micros(1_795_251_600_000_000);
        journal
            .append(draft.seal(genesis(&by, now, Lineage::from_random(7))).expect("a record"))
            .expect("space");
        let directory = tempfile::tempdir().expect("a directory");
        let mut projector =
            Projector::open(directory.path(), "default", log.source(), None, StoreTuning::default())
                .expect("rows");
        projector.catch_up().expect("caught up");
        for page in [2, 7, 1000] {
            assert_eq!(all_clusters(&projector.reader(), page).expect("read").len(), 7, "by {page}");
        }
    }
}
