//! Operating-system processes on the executor's own machine.
//!
//! Each incarnation has a folder (`folder`), and while it runs a keeper (`keeper`) that is its processes' parent and
//! outlives the executor; in the executor, a task tends it (`tender`). Whoever holds the folder's `keeper.lock` is
//! the only one to start, end or record anything: the keeper; or the executor itself, if nothing runs, or if the
//! keeper died and it looks after the orphans (`foster`). What is done to processes and folders behind their backs is
//! seen, and either put right or an end (`drift`). Volumes are folders too, and outlive all of that (`volumes`).
//!
//! A crash at any point leaves one of these, and the same command again ends in one set of processes:
//!
//! | crash after | what is found | what comes of it |
//! |---|---|---|
//! | making the folder | a folder without `spec.json` | not ours until the command comes again |
//! | writing `spec.json` | an order, no record, lock free | the command again starts a keeper |
//! | starting the keeper | the same, or lock held | both keepers want the lock, one gets it, the other exits |
//! | starting trampolines | keeper dead: they exit, having executed nothing | as after writing `spec.json` |
//! | recording | keeper dead: they exit | an end that nobody saw |
//! | telling them | keeper dead: they run | adopted by identity |
//!
//! After a reboot of the machine (`reboot`) everything that was recorded is dead. What is to run always is started again
//! without being told to, in the same incarnation and folder, from a record of that intent:
//!
//! | crash after | what is found | what comes of it |
//! |---|---|---|
//! | the reboot | a record of an earlier boot, without an end | when it is its turn, it is recorded that it is to be started again |
//! | recording that | that record of this boot, lock free | a keeper is started |
//! | starting the keeper, starting trampolines | the same, or lock held | as above: from this record nothing was executed |
//! | recording, telling them | a record of this boot, with processes | as above; it is not started again in this boot |
//! | another reboot, at any of these | a record of an earlier boot, without an end | it begins anew |

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chancery_events::id::{IncarnationId, ObjectId, VolumeId};
use chancery_events::name::NodeName;
use chancery_events::observation::{Hope, Report};
use chancery_events::protocol::{Command, ObjectSpec, RunSpec};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

mod capture;
mod client;
mod drift;
mod fill;
mod folder;
mod foster;
mod group;
mod hold;
mod identity;
mod keeper;
mod log;
mod lost;
mod output;
mod probe;
mod proof;
mod reader;
mod reboot;
mod removal;
mod start;
mod sweeps;
mod tender;
mod times;
mod trampoline;
mod volumes;
mod wire;

pub use capture::OutputLimits;
pub use group::detect::{CgroupSetting, CgroupSupport, EndProof};
pub use identity::Boot;
pub use keeper::keeper_main;
pub use output::{LogFile, ProcessLogs, log_files};
pub use reader::Reader;
pub use removal::{debts, remove_directory};
pub use start::PAYLOAD_VARIABLES;
pub use trampoline::trampoline_main;
pub use volumes::Used;

use crate::board::Board;
use crate::durable;
use crate::executor_store::{DirectoryStore, ExecutorStore as _, Found, ObjectStore as _, entries};
use crate::logs::LogSource;
use crate::orchestrator::{InventoryError, Orchestrator, WatchLost, WorkProgress};
use crate::plan::{self, Changes, Order};
use drift::{Loss, Watcher};
use folder::{Folder, Wanted};
use group::CgroupParent;
use removal::Removals;
use tender::{Ask, Tender};
use volumes::Warden;

/// Keepers that are being started at once: each writes to the disk and executes two programs.
const STARTS_AT_ONCE: usize = 16;
const TENDER_THREADS: usize = 4;
const VOLUME_THREADS: usize = 4;
/// How long the disk of volumes may take: a list waits so long until all of them were looked at, an order for what mounts one
/// until they are checked.
const ANSWER: Duration = Duration::from_secs(5);

/// Where processes are kept and what keeps them.
#[derive(Clone, Debug)]
pub struct Config {
    /// Holds `nodes/<node>/<incarnation>/` and `volumes/<volume>/`. May be the root of the executor.
    pub root: PathBuf,
    /// How a keeper is started.
    pub program: KeeperProgram,
    /// What is kept of what processes write.
    pub output: OutputLimits,
    /// Where each incarnation gets a control group of its own.
    pub cgroup: CgroupSetting,
    /// Descriptors that a process may have open to begin with: what this one may have, unless given. It may ask for
    /// more, up to the hard limit.
    pub files: Option<u64>,
    /// Which boot of which machine it is, also for keepers. For tests of reboots: without, what the machine itself says.
    pub boot: Option<Boot>,
}

/// The program that runs [`keeper_main`] and [`trampoline_main`], in production this one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeeperProgram {
    /// Its path, absolute.
    pub program: PathBuf,
    /// Its arguments as a keeper; the folder is added as the last one.
    pub keeper_args: Vec<String>,
    /// Its arguments as a trampoline.
    pub trampoline_args: Vec<String>,
}

/// An orchestrator of processes.
#[derive(Debug)]
pub struct Processes {
    shared: Arc<Shared>,
    tenders: Arc<Tenders>,
    /// What earlier lives left is not listed before it was looked at.
    settling: tokio::sync::Mutex<Settling>,
    runtimes: Option<[Runtime; 2]>,
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.shared.removals.stop();
        self.shared.is_closed.store(true, Ordering::Release);
        self.tenders.lock().clear();
        for runtime in self.runtimes.take().into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

/// What earlier lives left and was not looked at yet.
#[derive(Debug)]
struct Settling {
    incarnations: Vec<oneshot::Receiver<()>>,
    volumes: Option<JoinHandle<io::Result<()>>>,
    /// Volumes were waited for in vain.
    is_late: bool,
}

impl Settling {
    /// Waits for volumes, once, and not for long: of what is not listed nothing is concluded. It is asked for.
    async fn look_at_volumes(&mut self, shared: &Arc<Shared>, tenders: &Arc<Tenders>) {
        let folder = shared.volumes();
        let folder = folder.display();
        let Some(finding) = &mut self.volumes else { return };
        let patience = if self.is_late { Duration::ZERO } else { ANSWER };
        match tokio::time::timeout(patience, finding)
            .await
            .map(|found| found.map_err(io::Error::other).flatten())
        {
            Ok(Ok(())) => self.volumes = None,
            Ok(Err(error)) => {
                tracing::error!(%error, %folder, "find the volumes of earlier lives; the next list tries again");
                self.volumes = Some(tenders.start_to_find_volumes(shared));
            }
            Err(_) => {
                if !self.is_late {
                    tracing::error!(%folder, "the disk of volumes does not answer; what is not listed is told when it does");
                }
                self.is_late = true;
            }
        }
    }
}

/// The tasks that tend objects. They write to disks and look through `/proc`: on threads of their own, nobody else waits
/// for that. The disk that volumes are on is another one, perhaps, and may not answer: what looks at it has threads of its
/// own, and nothing else waits for those.
#[derive(Debug)]
struct Tenders {
    /// A tender ends when its sender is dropped; what it tends goes on.
    senders: Mutex<BTreeMap<ObjectId, mpsc::Sender<Ask>>>,
    incarnations: Handle,
    volumes: Handle,
}

impl Tenders {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectId, mpsc::Sender<Ask>>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tender of an object; a new one if there is none, or if the last one broke. What is new says through `settled`
    /// when it has looked at what is there.
    fn tender(
        &self,
        shared: &Arc<Shared>,
        tended: Tended,
        settled: Option<oneshot::Sender<()>>,
    ) -> mpsc::Sender<Ask> {
        let object = tended.object();
        let mut senders = self.lock();
        if let Some(known) = senders.get(&object).filter(|sender| !sender.is_closed()) {
            return known.clone();
        }
        let (sender, asks) = mpsc::channel(1);
        let shared = shared.clone();
        match tended {
            Tended::Incarnation(id, folder, lost) => {
                drop(self.incarnations.spawn(Tender::new(id, folder, shared, lost).tend(asks, settled)));
            }
            Tended::Volume(id) => drop(self.volumes.spawn(Warden::new(id, shared).tend(asks, settled))),
        }
        senders.insert(object, sender.clone());
        sender
    }

    fn start_to_find_volumes(self: &Arc<Tenders>, shared: &Arc<Shared>) -> JoinHandle<io::Result<()>> {
        let (tenders, shared) = (self.clone(), shared.clone());
        self.volumes.spawn(async move { tenders.find_volumes(shared).await })
    }

    /// Finds the volumes that earlier lives left, and tends them; returns when all were looked at.
    async fn find_volumes(&self, shared: Arc<Shared>) -> io::Result<()> {
        let root = shared.volumes();
        let found = tokio::task::spawn_blocking(move || volumes::find(&root)).await;
        let mut settling = Vec::new();
        for id in found.map_err(io::Error::other)?? {
            let (settled, settles) = oneshot::channel();
            self.tender(&shared, Tended::Volume(id), Some(settled));
            settling.push(settles);
        }
        for settles in settling {
            // An error says that the task broke, or that one was there before: it is listed when it says something.
            let _ = settles.await;
        }
        Ok(())
    }
}

/// What all tenders share.
#[derive(Debug)]
struct Shared {
    root: PathBuf,
    program: KeeperProgram,
    output: OutputLimits,
    cgroup: Option<CgroupParent>,
    files: Option<u64>,
    given_boot: Option<Boot>,
    boot: Boot,
    watcher: Arc<Watcher>,
    board: Board,
    starts: Arc<Semaphore>,
    /// The same for what mounts volumes: a keeper waits for their disk.
    volume_starts: Arc<Semaphore>,
    /// Held from looking whether volumes are there until the run that uses them is recorded, and from looking whether a
    /// volume is used until its end is.
    using: Arc<tokio::sync::Mutex<()>>,
    /// Where volumes are looked at.
    volume_threads: Handle,
    /// One volume is measured at a time.
    measures: Arc<Semaphore>,
    removals: Removals,
    /// Another executor may be at work over the root: what hung meanwhile changes nothing any more.
    is_closed: AtomicBool,
}

/// What a task tends.
enum Tended {
    Incarnation(IncarnationId, Folder, Option<Loss>),
    Volume(VolumeId),
}

impl Tended {
    fn object(&self) -> ObjectId {
        match self {
            Tended::Incarnation(id, ..) => ObjectId::Incarnation(*id),
            Tended::Volume(id) => ObjectId::Volume(*id),
        }
    }
}

impl Processes {
    /// Finds everything that earlier lives left under the root, and begins to tend it.
    pub async fn open(config: Config) -> io::Result<Processes> {
        let Config { root, program, output, cgroup, files, boot: given_boot } = config;
        // What this process was left by whoever started it is not for keepers, which outlive it.
        close_fds::set_fds_cloexec(3, &[]);
        let root = std::path::absolute(root)?;
        // Without the own processes nothing can be said of any.
        identity::pid_namespace()?;
        durable::make_folder(&root)?;
        let support = CgroupSupport::detect(&cgroup)?;
        match &support.proof {
            EndProof::Cgroup(path) => {
                tracing::debug!(path = %path.display(), "ends are proved by control groups");
            }
            EndProof::Search(_) if cgroup == CgroupSetting::Off => {}
            EndProof::Search(why) => tracing::warn!(why, "ends are proved without control groups"),
        }
        let cgroup = support.parent(&root)?;
        let starts = Arc::new(Semaphore::new(STARTS_AT_ONCE));
        let board = Board::default();
        let boot = given_boot.clone().map_or_else(Boot::of_this_machine, Ok)?;
        let watcher = Arc::new(Watcher::default());
        let looks = watcher.clone();
        let threads = |name: &str, count| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(count).thread_name(name).enable_all().build()
        };
        let runtime = threads("chancery-tender", TENDER_THREADS)?;
        let volumes = match threads("chancery-volume", VOLUME_THREADS) {
            Ok(volumes) => volumes,
            Err(error) => {
                // It must not be dropped where others run.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let shared = Arc::new(Shared {
            root,
            program,
            output,
            cgroup,
            files,
            given_boot,
            boot,
            watcher,
            board,
            starts,
            volume_starts: Arc::new(Semaphore::new(STARTS_AT_ONCE)),
            using: Arc::default(),
            volume_threads: volumes.handle().clone(),
            measures: Arc::new(Semaphore::new(1)),
            removals: Removals::default(),
            is_closed: AtomicBool::new(false),
        });
        runtime.spawn(async move { looks.look_for_ever().await });
        let handle = runtime.handle().clone();
        let tenders = Arc::new(Tenders {
            senders: Mutex::default(),
            incarnations: handle.clone(),
            volumes: volumes.handle().clone(),
        });
        let processes = Processes {
            shared: shared.clone(),
            tenders,
            settling: Settling { incarnations: Vec::new(), volumes: None, is_late: false }.into(),
            runtimes: Some([runtime, volumes]),
        };
        let looking = shared.clone();
        let found = tokio::task::spawn_blocking(move || looking.find(&handle)).await;
        let found = found.map_err(io::Error::other)??;
        let mut settling = processes.settling.lock().await;
        // Last: what hangs over it would outlive an open that fails.
        settling.volumes = Some(processes.tenders.start_to_find_volumes(&shared));
        for tended in found {
            let (settled, settles) = oneshot::channel();
            processes.tenders.tender(&processes.shared, tended, Some(settled));
            settling.incarnations.push(settles);
        }
        drop(settling);
        Ok(processes)
    }

    async fn ask(
        &self,
        object: ObjectId,
        node: Option<&NodeName>,
        ask: impl FnOnce(oneshot::Sender<WorkProgress>) -> Ask,
    ) -> WorkProgress {
        let whom = match object {
            ObjectId::Incarnation(id) => Tended::Incarnation(id, self.shared.folder(id, node), None),
            ObjectId::Volume(id) => Tended::Volume(id),
        };
        let (done, answered) = oneshot::channel();
        let tender = self.tenders.tender(&self.shared, whom, None);
        let sent = tender.send(ask(done)).await.is_ok();
        match answered.await {
            Ok(progress) if sent => progress,
            Ok(_) | Err(_) => {
                tracing::error!(%object, "an order was dropped; the decider will give it again");
                WorkProgress::Begun
            }
        }
    }
}

impl Orchestrator for Processes {
    /// What a process is, its arguments, environment and limits, is settled when it is started.
    const CHANGES: Changes = Changes::Never;

    async fn carry_out(&self, command: Command) -> WorkProgress {
        if let Some(message) = plan::misfit(&command) {
            self.shared.board.refuse(command.object, command.revision, message.to_owned(), Hope::Never);
            return WorkProgress::Begun;
        }
        let order = Order::of(&command);
        let (object, spec) = (command.object, command.spec);
        let node = match &spec {
            ObjectSpec::Run(spec) => Some(spec.node.clone()),
            ObjectSpec::Volume(_) => None,
        };
        self.ask(object, node.as_ref(), |done| Ask::Order { order, spec: Some(spec), done }).await
    }

    async fn remove(&self, object: ObjectId, revision: u32) -> WorkProgress {
        let order = Order::removal(revision);
        self.ask(object, None, |done| Ask::Order { order, spec: None, done }).await
    }

    async fn forget(&self, object: ObjectId) -> WorkProgress {
        if !self.tenders.lock().contains_key(&object) {
            return WorkProgress::Begun;
        }
        let progress = self.ask(object, None, Ask::Forget).await;
        let mut tenders = self.tenders.lock();
        if tenders.get(&object).is_some_and(mpsc::Sender::is_closed) {
            tenders.remove(&object);
        }
        progress
    }

    async fn list(&self) -> Result<Vec<Report>, InventoryError> {
        let mut settling = self.settling.lock().await;
        while let Some(settles) = settling.incarnations.last_mut() {
            // An error says that the tender broke; what it tends is then not listed, and still there.
            let _ = settles.await;
            settling.incarnations.pop();
        }
        settling.look_at_volumes(&self.shared, &self.tenders).await;
        drop(settling);
        Ok(self.shared.board.list())
    }

    async fn changes(&self, limit: usize) -> Result<Vec<Report>, WatchLost> {
        Ok(self.shared.board.read(limit).await)
    }

    fn logs(&self) -> Arc<dyn LogSource> {
        Arc::new(ProcessLogs { root: self.shared.root.clone() })
    }
}

impl Shared {
    /// What bounds the starts of something like this that happen at once.
    fn starts_of(&self, spec: Option<&RunSpec>) -> Arc<Semaphore> {
        if spec.is_some_and(volumes::mounts_any) { self.volume_starts.clone() } else { self.starts.clone() }
    }

    /// Fails when the executor was closed.
    fn check_open(&self) -> io::Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(io::Error::other("the executor was closed while the disk of volumes did not answer"));
        }
        Ok(())
    }

    /// Where an incarnation is kept, or will be. One that was removed unseen has no node.
    fn folder(&self, id: IncarnationId, node: Option<&NodeName>) -> Folder {
        let store = match node {
            Some(node) => self.root.join("nodes").join(node.as_str()),
            None => self.root.join("removed"),
        };
        Folder::at(DirectoryStore::at(store).object(id.into()))
    }

    /// Where volumes are kept.
    fn volumes(&self) -> PathBuf {
        volumes::root(&self.root)
    }

    /// Where a folder is moved before its files are removed one by one, so that half of it is never taken for whole.
    fn forgotten(&self) -> PathBuf {
        self.root.join("forgotten")
    }

    /// Keeps the output of a forgotten incarnation, and removes the rest, in a task of its own. Whatever a crash leaves
    /// undone of it, the next start does.
    fn clear_forgotten(&self, on: &Handle, incarnation: IncarnationId, moved: PathBuf) {
        let (root, folder, removals) = (self.root.clone(), moved.clone(), self.removals.clone());
        let keep_output = move || {
            if let Err(error) = output::keep(&root, incarnation, &folder) {
                tracing::warn!(%error, folder = %folder.display(), "the output of a forgotten incarnation cannot be kept");
            }
            match output::surplus(&root) {
                Ok(surplus) => {
                    for old in surplus {
                        removals.start(&Handle::current(), old, || ());
                    }
                }
                Err(error) => tracing::warn!(%error, "list the output that is kept"),
            }
        };
        self.removals.start(on, moved, keep_output);
    }

    /// What earlier lives left of incarnations: folders, and what runs though its folder was lost.
    fn find(&self, on: &Handle) -> io::Result<Vec<Tended>> {
        for path in entries(&self.forgotten())? {
            let id = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            match id {
                Some(id) => self.clear_forgotten(on, id, path),
                None => leave(&path, "its name is that of no incarnation"),
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
                    leave(&path, "its name is that of no incarnation");
                    continue;
                };
                kept.insert(id);
                match path.look::<Wanted>(id.into()) {
                    Ok(Found::Ours(_)) => found.push(Tended::Incarnation(id, Folder::at(path), None)),
                    Ok(Found::Nothing) => leave(&path, "it has no record of ours"),
                    Ok(Found::Foreign(why)) => leave(&path, &format!("it {why}")),
                    Err(error) => leave(&path, &error.to_string()),
                }
            }
        }
        found.extend(lost::find(&self.root, self.cgroup.as_ref(), listed, &kept)?);
        Ok(found)
    }
}

/// Logs that something in a directory of ours is not touched.
fn leave(path: &Path, why: &str) {
    tracing::warn!(why, folder = %path.display(), "not ours: left as it is");
}
