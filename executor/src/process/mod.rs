//! Operating-system processes on the executor's own machine.
//!
//! Each incarnation has a directory. While the incarnation runs, a supervisor is the parent of its processes,
//! and outlives the executor. In the executor, a task reconciles the incarnation (`tender`). Only the holder
//! of `supervisor.lock` starts, ends or records anything. The holder is the supervisor, or the executor if nothing
//! runs or the supervisor died (`unsupervised`). Outside changes to processes and directories are detected, and
//! repaired or treated as an end (`integrity`). Volumes are directories that outlive all of that (`volumes`).
//!
//! A crash at any point leaves one of these states, and repeating the command ends in one set of processes:
//!
//! | crash after | state found | result |
//! |---|---|---|
//! | making the directory | a directory without `spec.json` | foreign until the command is repeated |
//! | writing `spec.json` | a target, no record, lock free | the command starts a supervisor |
//! | starting the supervisor | the same, or lock held | one of two supervisors gets the lock, one exits |
//! | starting trampolines | supervisor dead: they exit, nothing executed | as after writing `spec.json` |
//! | recording | supervisor dead: they exit | an unobserved end |
//! | releasing trampolines | supervisor dead: they run | adopted by identity |
//!
//! A reboot of the machine (`reboot`) ends everything that was recorded. An incarnation that always restarts
//! is started again in the same directory without a command, from a record of that intent:
//!
//! | crash after | state found | result |
//! |---|---|---|
//! | the reboot | a record of an earlier boot, without an end | the intent is recorded once permitted |
//! | recording the intent | that record of this boot, lock free | a supervisor is started |
//! | starting supervisor or trampolines | the same, or lock held | as above: this record executed nothing |
//! | recording, releasing | a record of this boot, with processes | as above; no restart in this boot |
//! | another reboot, at any point | a record of an earlier boot, without an end | as after the first |

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chancery_events::id::{IncarnationId, ObjectId, VolumeId};
use chancery_events::name::NodeName;
use chancery_events::observation::ObjectReport;
use chancery_events::protocol::{Command, IncarnationSpec, ObjectSpec};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

mod capture;
mod cgroup;
mod console;
mod guest;
mod identity;
mod incarnation_dir;
mod integrity;
mod lock_holder;
mod log;
mod lost;
mod output;
mod probe;
mod proof;
mod reader;
mod reboot;
mod reconciler;
mod removal;
mod start;
mod supervisor;
mod supervisor_client;
mod supervisor_protocol;
mod sweeps;
mod times;
mod trampoline;
mod unsupervised;
mod volumes;

pub use capture::OutputLimits;
pub use cgroup::detect::{CgroupSetting, CgroupSupport, EndProof};
pub(crate) use console::open_writer as open_console;
use guest::AcceleratorCheck;
pub use guest::{GuestAccelerator, QemuSettings};
pub use identity::BootId;
pub use output::{OutputFile, ProcessLogs, log_files};
pub use reader::OutputReader;
pub use removal::{debts, remove_directory};
pub use supervisor::supervisor_main;
pub use trampoline::trampoline_main;
pub use volumes::VolumeUsage;

use crate::executor_store::{DirectoryStore, ExecutorStore as _, ObjectStore as _, VolumeLookup, entries};
use crate::logs::LogSource;
use crate::orchestrator::{InventoryError, Orchestrator, WatchLost, WorkProgress};
use crate::reconcile::{ObjectTarget, UpdateSupport};
use crate::state_file;
use crate::status_cache::StatusCache;
use cgroup::CgroupParent;
use incarnation_dir::{IncarnationDirectory, SpecFile};
use integrity::{DirectoryLoss, DirectoryWatcher};
use reconciler::{IncarnationReconciler, ReconcilerRequest};
use removal::RemovalTasks;
use volumes::VolumeReconciler;

/// Maximum number of concurrent supervisor starts: each writes to the disk and executes two programs.
const STARTS_AT_ONCE: usize = 16;
const RECONCILER_THREADS: usize = 4;
const VOLUME_THREADS: usize = 4;
/// Time limit for the disk of volumes: for an inventory to check all volumes, and for a start to check
/// mounted ones.
const ANSWER: Duration = Duration::from_secs(5);

/// Configuration of [`ProcessOrchestrator`].
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// Directory of `nodes/<node>/<incarnation>/` and `volumes/<volume>/`. May be the root of the executor.
    pub root: PathBuf,
    /// Command that starts a supervisor.
    pub program: SupervisorProgram,
    /// Limits of captured output.
    pub output: OutputLimits,
    /// Directory in which each incarnation gets its own control group.
    pub cgroup: CgroupSetting,
    /// Soft limit of open descriptors of a process (default: that of this process). A process may raise the
    /// limit up to its hard limit.
    pub files: Option<u64>,
    /// Settings of virtual machines, if the incarnations are virtual machines instead of programs.
    pub qemu: Option<QemuSettings>,
    /// Identity of boot and machine, also for supervisors (default: as the machine reports). For tests of
    /// reboots.
    pub boot: Option<BootId>,
}

/// Program that runs [`supervisor_main`] and [`trampoline_main`], in production the current executable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SupervisorProgram {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Arguments of a supervisor; the directory is appended.
    pub supervisor_args: Vec<String>,
    /// Arguments of a trampoline.
    pub trampoline_args: Vec<String>,
}

/// Orchestrator of processes.
#[derive(Debug)]
pub struct ProcessOrchestrator {
    shared: Arc<ProcessShared>,
    /// Objects of earlier epochs, which are listed once they were checked.
    settling: tokio::sync::Mutex<SettlingObjects>,
    runtimes: Option<[Runtime; 2]>,
}

impl Drop for ProcessOrchestrator {
    fn drop(&mut self) {
        self.shared.removals.stop();
        self.shared.is_closed.store(true, Ordering::Release);
        lock(&self.shared.senders).clear();
        for runtime in self.runtimes.take().into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

/// Objects of earlier executor epochs that were not checked yet.
#[derive(Debug)]
struct SettlingObjects {
    incarnations: Vec<oneshot::Receiver<()>>,
    volumes: Option<JoinHandle<io::Result<()>>>,
    /// Whether a wait for volumes has timed out.
    is_late: bool,
}

impl SettlingObjects {
    /// Waits for volumes, once and briefly. No conclusion follows from an unlisted volume: the decider asks
    /// for the volume.
    async fn look_at_volumes(&mut self, shared: &Arc<ProcessShared>) {
        let directory = shared.volumes();
        let incarnation_directory = directory.display();
        let Some(finding) = &mut self.volumes else { return };
        let patience = if self.is_late { Duration::ZERO } else { ANSWER };
        match tokio::time::timeout(patience, finding)
            .await
            .map(|found| found.map_err(io::Error::other).flatten())
        {
            Ok(Ok(())) => self.volumes = None,
            Ok(Err(error)) => {
                tracing::error!(%error, %incarnation_directory, "cannot find existing volumes, retrying with next list");
                self.volumes = Some(shared.start_to_find_volumes());
            }
            Err(_) => {
                if !self.is_late {
                    tracing::error!(%incarnation_directory, "volume disk does not answer; its volumes are reported later");
                }
                self.is_late = true;
            }
        }
    }
}

/// State that all reconcilers share.
#[derive(Debug)]
struct ProcessShared {
    root: PathBuf,
    program: SupervisorProgram,
    output: OutputLimits,
    cgroup: Option<CgroupParent>,
    files: Option<u64>,
    qemu: Option<QemuSettings>,
    accelerator: AcceleratorCheck,
    given_boot: Option<BootId>,
    boot: BootId,
    watcher: Arc<DirectoryWatcher>,
    board: StatusCache,
    starts: Arc<Semaphore>,
    /// Permits for starts that mount volumes: their supervisors wait for the disk of the volumes.
    volume_starts: Arc<Semaphore>,
    /// Lock held from the check of volumes until their user is recorded, and from the check for users until a
    /// volume's end is recorded.
    using: Arc<tokio::sync::Mutex<()>>,
    /// Senders of the reconcilers. A reconciler ends when its sender is dropped; its object keeps running.
    senders: Mutex<BTreeMap<ObjectId, mpsc::Sender<ReconcilerRequest>>>,
    /// Threads of the reconcilers of incarnations, which write to disks and read `/proc`.
    incarnation_threads: Handle,
    /// Threads of the reconcilers of volumes, and on which volumes are checked: they may be on another disk, which might not
    /// answer.
    volume_threads: Handle,
    /// Permit to measure a volume, one at a time.
    measures: Arc<Semaphore>,
    /// Permit to make a snapshot, one at a time.
    snapshots: Arc<Semaphore>,
    /// Volume that is copied for a snapshot while nothing uses it, and the flag that interrupts the copy.
    copied: Mutex<Option<(VolumeId, Arc<AtomicBool>)>>,
    removals: RemovalTasks,
    /// Whether the executor was closed. Another executor may use the root from then on, so a call that is
    /// still running must change nothing.
    is_closed: AtomicBool,
}

/// Object of a reconciler.
enum ReconcilerKey {
    Incarnation(IncarnationId, IncarnationDirectory, Option<DirectoryLoss>),
    Volume(VolumeId),
}

impl ReconcilerKey {
    fn object(&self) -> ObjectId {
        match self {
            ReconcilerKey::Incarnation(id, ..) => ObjectId::Incarnation(*id),
            ReconcilerKey::Volume(id) => ObjectId::Volume(*id),
        }
    }
}

impl ProcessOrchestrator {
    /// Finds all objects that earlier executor epochs left under the root, and reconciles them.
    pub async fn open(config: ProcessConfig) -> io::Result<ProcessOrchestrator> {
        let ProcessConfig { root, program, output, cgroup, files, qemu, boot: given_boot } = config;
        // Supervisors outlive this process: they must not inherit its descriptors.
        close_fds::set_fds_cloexec(3, &[]);
        let root = std::path::absolute(root)?;
        // Without its own entries in `/proc`, nothing can be determined about any process.
        identity::pid_namespace()?;
        state_file::make_directory(&root)?;
        let support = CgroupSupport::detect(&cgroup)?;
        match &support.proof {
            EndProof::Cgroup(path) => {
                tracing::debug!(path = %path.display(), "proving process ends by control groups");
            }
            EndProof::Search(_) if cgroup == CgroupSetting::Off => {}
            EndProof::Search(why) => tracing::warn!(why, "proving process ends without control groups"),
        }
        let cgroup = support.parent(&root)?;
        let boot = given_boot.clone().map_or_else(BootId::of_this_machine, Ok)?;
        let threads = |name: &str, count| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(count).thread_name(name).enable_all().build()
        };
        let runtime = threads("chancery-reconc", RECONCILER_THREADS)?;
        let volumes = match threads("chancery-volume", VOLUME_THREADS) {
            Ok(volumes) => volumes,
            Err(error) => {
                // A runtime must not be dropped in an asynchronous context.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let shared = Arc::new(ProcessShared {
            root,
            program,
            output,
            cgroup,
            files,
            qemu,
            accelerator: AcceleratorCheck::default(),
            given_boot,
            boot,
            watcher: Arc::default(),
            board: StatusCache::default(),
            starts: Arc::new(Semaphore::new(STARTS_AT_ONCE)),
            volume_starts: Arc::new(Semaphore::new(STARTS_AT_ONCE)),
            using: Arc::default(),
            senders: Mutex::default(),
            incarnation_threads: runtime.handle().clone(),
            volume_threads: volumes.handle().clone(),
            measures: Arc::new(Semaphore::new(1)),
            snapshots: Arc::new(Semaphore::new(1)),
            copied: Mutex::default(),
            removals: RemovalTasks::default(),
            is_closed: AtomicBool::new(false),
        });
        let watcher = shared.watcher.clone();
        runtime.spawn(async move { watcher.check_periodically().await });
        let processes = ProcessOrchestrator {
            shared: shared.clone(),
            settling: SettlingObjects { incarnations: Vec::new(), volumes: None, is_late: false }.into(),
            runtimes: Some([runtime, volumes]),
        };
        let looking = shared.clone();
        let found = tokio::task::spawn_blocking(move || looking.find()).await;
        let found = found.map_err(io::Error::other)??;
        let mut settling = processes.settling.lock().await;
        // Last: a search that hangs would outlive a failed call.
        settling.volumes = Some(shared.start_to_find_volumes());
        for tended in found {
            let (settled, settles) = oneshot::channel();
            shared.reconciler(tended, Some(settled));
            settling.incarnations.push(settles);
        }
        drop(settling);
        Ok(processes)
    }

    async fn ask(
        &self,
        object: ObjectId,
        node: Option<&NodeName>,
        ask: impl FnOnce(oneshot::Sender<WorkProgress>) -> ReconcilerRequest,
    ) -> WorkProgress {
        let whom = match object {
            ObjectId::Incarnation(id) => {
                ReconcilerKey::Incarnation(id, self.shared.directory(id, node), None)
            }
            ObjectId::Volume(id) => ReconcilerKey::Volume(id),
        };
        let (done, answered) = oneshot::channel();
        let reconciler = self.shared.reconciler(whom, None);
        let sent = reconciler.send(ask(done)).await.is_ok();
        match answered.await {
            Ok(progress) if sent => progress,
            Ok(_) | Err(_) => {
                tracing::error!(%object, "command dropped; the decider will repeat it");
                WorkProgress::Begun
            }
        }
    }
}

impl Orchestrator for ProcessOrchestrator {
    /// Arguments, environment and limits of a process are fixed at its start.
    const CHANGES: UpdateSupport = UpdateSupport::Never;

    async fn carry_out(&self, command: Command) -> WorkProgress {
        if self.shared.board.refuse_misfit(&command) {
            return WorkProgress::Begun;
        }
        let order = ObjectTarget::of(&command);
        let (object, spec) = (command.object, command.spec);
        let node = match &spec {
            ObjectSpec::Incarnation(spec) => Some(spec.node.clone()),
            ObjectSpec::Volume(_) => None,
        };
        self.ask(object, node.as_ref(), |done| ReconcilerRequest::Order { order, spec: Some(spec), done })
            .await
    }

    async fn remove(&self, object: ObjectId, revision: u32) -> WorkProgress {
        let order = ObjectTarget::removal(revision);
        self.ask(object, None, |done| ReconcilerRequest::Order { order, spec: None, done }).await
    }

    async fn forget(&self, object: ObjectId) -> WorkProgress {
        if !lock(&self.shared.senders).contains_key(&object) {
            return WorkProgress::Begun;
        }
        let progress = self.ask(object, None, ReconcilerRequest::Forget).await;
        let mut senders = lock(&self.shared.senders);
        if senders.get(&object).is_some_and(mpsc::Sender::is_closed) {
            senders.remove(&object);
        }
        progress
    }

    async fn list(&self) -> Result<Vec<ObjectReport>, InventoryError> {
        let mut settling = self.settling.lock().await;
        while let Some(settles) = settling.incarnations.last_mut() {
            // On an error the reconciler panicked: its object still exists, but is not listed.
            let _ = settles.await;
            settling.incarnations.pop();
        }
        settling.look_at_volumes(&self.shared).await;
        drop(settling);
        Ok(self.shared.board.list())
    }

    async fn changes(&self, limit: usize) -> Result<Vec<ObjectReport>, WatchLost> {
        Ok(self.shared.board.read(limit).await)
    }

    fn logs(&self) -> Arc<dyn LogSource> {
        Arc::new(ProcessLogs { root: self.shared.root.clone() })
    }
}

impl ProcessShared {
    /// Returns the reconciler of an object; starts one if there is none or the last one panicked. A new
    /// reconciler notifies `settled` once it has checked its object.
    fn reconciler(
        self: &Arc<ProcessShared>,
        tended: ReconcilerKey,
        settled: Option<oneshot::Sender<()>>,
    ) -> mpsc::Sender<ReconcilerRequest> {
        let object = tended.object();
        let mut senders = lock(&self.senders);
        if let Some(known) = senders.get(&object).filter(|sender| !sender.is_closed()) {
            return known.clone();
        }
        let (sender, asks) = mpsc::channel(1);
        drop(match tended {
            ReconcilerKey::Incarnation(id, directory, lost) => {
                let reconciler = IncarnationReconciler::new(id, directory, self.clone(), lost);
                self.incarnation_threads.spawn(reconciler.tend(asks, settled))
            }
            ReconcilerKey::Volume(id) => {
                self.volume_threads.spawn(VolumeReconciler::new(id, self.clone()).tend(asks, settled))
            }
        });
        senders.insert(object, sender.clone());
        sender
    }

    fn start_to_find_volumes(self: &Arc<ProcessShared>) -> JoinHandle<io::Result<()>> {
        self.volume_threads.spawn(self.clone().find_volumes())
    }

    /// Finds the volumes of earlier executor epochs and reconciles them; returns once all were checked.
    async fn find_volumes(self: Arc<ProcessShared>) -> io::Result<()> {
        let root = self.volumes();
        let found = tokio::task::spawn_blocking(move || volumes::find(&root)).await;
        let mut settling = Vec::new();
        for id in found.map_err(io::Error::other)?? {
            let (settled, settles) = oneshot::channel();
            self.reconciler(ReconcilerKey::Volume(id), Some(settled));
            settling.push(settles);
        }
        for settles in settling {
            // On an error the task panicked, or a reconciler existed: the volume is listed once it is
            // reported.
            let _ = settles.await;
        }
        Ok(())
    }

    /// Returns the permits that limit concurrent starts: incarnations that mount volumes have their own.
    fn starts_of(&self, spec: Option<&IncarnationSpec>) -> Arc<Semaphore> {
        if spec.is_some_and(volumes::mounts_any) { self.volume_starts.clone() } else { self.starts.clone() }
    }

    /// Interrupts the copy of a volume that something uses from now on. The lock of users is held.
    fn interrupt_copy(&self, volume: VolumeId) {
        if let Some((_, stop)) = lock(&self.copied).as_ref().filter(|(source, _)| *source == volume) {
            stop.store(true, Ordering::Relaxed);
        }
    }

    /// Fails if the executor was closed.
    fn check_open(&self) -> io::Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(io::Error::other("executor closed while the disk of volumes did not answer"));
        }
        Ok(())
    }

    /// Directory of an incarnation, existing or not. An incarnation that was removed before its spec was
    /// known has no node.
    fn directory(&self, id: IncarnationId, node: Option<&NodeName>) -> IncarnationDirectory {
        let store = match node {
            Some(node) => self.root.join("nodes").join(node.as_str()),
            None => self.root.join("removed"),
        };
        IncarnationDirectory::at(DirectoryStore::at(store).object(id.into()))
    }

    /// Directory of all volumes.
    fn volumes(&self) -> PathBuf {
        volumes::root(&self.root)
    }

    /// Directory to which others are moved before their files are removed, so that none is partly removed in
    /// its place.
    fn forgotten(&self) -> PathBuf {
        self.root.join("forgotten") // tidy: allow(forgotten)
    }

    /// Keeps the output of a purged incarnation and removes the rest, in a separate task. The next start
    /// completes what a crash interrupts.
    fn clear_forgotten(&self, incarnation: IncarnationId, moved: PathBuf) {
        let (root, directory, removals) = (self.root.clone(), moved.clone(), self.removals.clone());
        let keep_output = move || {
            if let Err(error) = output::keep(&root, incarnation, &directory) {
                tracing::warn!(%error, directory = %directory.display(), "cannot keep purged incarnation's output");
            }
            match output::surplus(&root) {
                Ok(surplus) => {
                    for old in surplus {
                        removals.start(&Handle::current(), old, || ());
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot list kept output"),
            }
        };
        self.removals.start(&self.incarnation_threads, moved, keep_output);
    }

    /// Incarnations that earlier executor epochs left: directories, and processes whose directory was lost.
    fn find(&self) -> io::Result<Vec<ReconcilerKey>> {
        for path in entries(&self.forgotten())? {
            let id = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            match id {
                Some(id) => self.clear_forgotten(id, path),
                None => leave(&path, "name is not an incarnation id"),
            }
        }
        let listed = lost::listed(self.cgroup.as_ref())?;
        let mut found = Vec::new();
        let mut parents = vec![self.root.join("removed")];
        parents.extend(entries(&self.root.join("nodes"))?);
        let mut kept = BTreeSet::new();
        for parent in parents {
            for (id, path) in DirectoryStore::at(parent).list()? {
                let Some(ObjectId::Incarnation(id)) = id else {
                    leave(&path, "name is not an incarnation id");
                    continue;
                };
                kept.insert(id);
                match path.look::<SpecFile>(id.into()) {
                    Ok(VolumeLookup::Ours(_)) => {
                        found.push(ReconcilerKey::Incarnation(id, IncarnationDirectory::at(path), None));
                    }
                    Ok(VolumeLookup::Nothing) => leave(&path, "directory has no record"),
                    Ok(VolumeLookup::Foreign(why)) => leave(&path, &format!("directory {why}")),
                    Err(error) => leave(&path, &error.to_string()),
                }
            }
        }
        found.extend(lost::find(&self.root, self.cgroup.as_ref(), listed, &kept)?);
        Ok(found)
    }
}

/// Returns a function that puts a text before an error, whose kind stays.
fn named(text: impl std::fmt::Display) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{text}: {error}"))
}

/// Locks a mutex, also after a panic of another holder: every change under a lock is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs that an entry in a directory of the executor is left in place.
fn leave(path: &Path, why: &str) {
    tracing::warn!(why, directory = %path.display(), "unknown entry left in place");
}
