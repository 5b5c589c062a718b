//! Executors in the server's own process: one for each cluster that the settings do not leave to others.
//!
//! They speak the same serialised messages as any executor; the link is a pair of channels.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chancery_events::id::{IncarnationId, Position};
use chancery_events::name::{ClusterName, ExecutorName};
use chancery_events::spec::Runtime;
use chancery_executor::process::{KeeperProgram, LogFile, OutputLimits, Processes};
use chancery_executor::simulated::{Faults, Simulated, World};
use chancery_executor::{Link, Stop, process};
use chancery_projector::rows::ClusterRow;
use chancery_projector::{Query, Reader};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::config::{Clusters, Config};
use crate::decider::{Connection, mailbox};
use crate::duty::Desk;

/// How long to wait before an executor that could not begin is tried again.
const PAUSE: Duration = Duration::from_secs(2);
/// Messages in each direction on their way between the decider's queue or mailbox and an executor.
const WAITING: usize = 64;
/// Work that an executor begins at once.
const AT_ONCE: usize = 32;

/// Numbers the connections of one run of the decider, whichever way executors come.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<AtomicU64>);

impl Connections {
    /// One that was not given before.
    pub(crate) fn next(&self) -> Connection {
        Connection(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// What an executor in this process needs.
#[derive(Clone)]
pub struct Host {
    /// Holds a folder for each cluster.
    pub root: PathBuf,
    /// Knows the decider that they speak to.
    pub desk: Desk,
    /// Where clusters are read.
    pub reader: Reader,
    /// What processes get on this machine.
    pub means: Means,
    /// Which clusters are driven from here.
    pub clusters: Clusters,
    /// Numbers what they connect with.
    pub connections: Connections,
}

impl Host {
    /// Runs an executor for each cluster, until `stop` says true. What they run goes on running.
    pub async fn run(self, mut clusters: watch::Receiver<Position>, stop: watch::Receiver<bool>) {
        let mut hosted: BTreeMap<ClusterName, watch::Sender<bool>> = BTreeMap::new();
        let mut running = JoinSet::new();
        let mut stopping = stop.clone();
        loop {
            // Rows come after the news. A projector that has stopped ends the server; nothing is to be done here.
            let news = *clusters.borrow_and_update();
            tokio::select! {
                _ = self.reader.watch().reached(news) => {}
                _ = stopping.wait_for(|stop| *stop) => break,
            }
            match self.reader.list::<ClusterRow>(&Query::all().limit(1000)) {
                Ok(page) => {
                    // Inactive ones too: nothing new is placed there, and what runs is still looked after.
                    let present: BTreeMap<_, _> =
                        page.items.into_iter().map(|row| (row.name, row.runtime)).collect();
                    hosted.retain(|name, _| present.contains_key(name));
                    for (name, runtime) in present.into_iter().filter(|(name, _)| self.clusters.has(name)) {
                        hosted.entry(name.clone()).or_insert_with(|| {
                            let (let_go, told) = watch::channel(false);
                            running.spawn(self.clone().host(name, runtime, told));
                            let_go
                        });
                    }
                }
                Err(error) => tracing::error!(%error, "clusters cannot be read; no executor is started"),
            }
            tokio::select! {
                changed = clusters.changed() => if changed.is_err() { break },
                _ = stopping.wait_for(|stop| *stop) => break,
                Some(_) = running.join_next() => {}
            }
        }
        drop(hosted);
        while running.join_next().await.is_some() {}
    }

    /// Runs one executor, again and again, until its sender is gone.
    async fn host(self, cluster: ClusterName, runtime: Runtime, let_go: watch::Receiver<bool>) {
        let root = self.root.join(cluster.as_str());
        loop {
            let ended = self.execute(&cluster, runtime, &root, let_go.clone()).await;
            match ended {
                Ok(()) => return,
                Err(stop @ (Stop::Diverged(_) | Stop::NewerElsewhere(_) | Stop::Refused(_))) => {
                    tracing::error!(%cluster, %stop, "the executor must not act any more; what it runs goes on running");
                    return;
                }
                Err(stop @ (Stop::ScopeTaken | Stop::Storage(_))) => {
                    tracing::warn!(%cluster, %stop, "the executor cannot begin; it is tried again");
                }
            }
            let mut gone = let_go.clone();
            tokio::select! {
                _ = gone.changed() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn execute(
        &self,
        cluster: &ClusterName,
        runtime: Runtime,
        root: &Path,
        mut let_go: watch::Receiver<bool>,
    ) -> Result<(), Stop> {
        // The same name in every life, so that a session is resumed and not fought over.
        let executor = format!("embedded-{cluster}").chars().take(63).collect::<String>();
        let executor =
            executor.trim_end_matches(['-', '.']).parse().expect("a cluster's name, prefixed and cut");
        let shutdown = async move {
            // The sender is never used: it is dropped.
            let _ = let_go.changed().await;
        };
        let who = Who { executor, cluster: cluster.clone(), runtime };
        drive(who, root, &self.means, || self.connect(), shutdown).await
    }

    async fn connect(&self) -> io::Result<Link> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "no decider is here");
        let decider = self.desk.here().ok_or_else(gone)?;
        let way = decider.way(self.connections.next());
        let (mailbox, mut letters) = mailbox();
        let (to_executor, from_decider) = mpsc::channel(WAITING);
        let (to_decider, mut said) = mpsc::channel::<Vec<u8>>(WAITING);
        way.connected(mailbox).await.map_err(|_| gone())?;
        tokio::spawn(async move {
            while let Some(message) = letters.take().await {
                if to_executor.send(message).await.is_err() {
                    return;
                }
            }
        });
        tokio::spawn(async move {
            while let Some(message) = said.recv().await {
                if way.said(message).await.is_err() {
                    return;
                }
            }
            // The decider may have stopped: then there is nobody to tell.
            let _ = way.disconnected().await;
        });
        Ok(Link { to_decider, from_decider })
    }
}

/// What processes get on a machine.
#[derive(Clone, Debug)]
pub struct Means {
    /// What is kept of what they write.
    pub output: OutputLimits,
    /// Where each that has a limit of memory gets a control group.
    pub cgroup: Option<PathBuf>,
}

impl Means {
    /// As configured.
    pub fn of(config: &Config) -> Means {
        Means { output: config.output, cgroup: config.cgroup.clone() }
    }
}

/// Who an executor is.
#[derive(Clone, Debug)]
pub struct Who {
    /// As it calls itself.
    pub executor: ExecutorName,
    /// Its scope.
    pub cluster: ClusterName,
    /// What it drives.
    pub runtime: Runtime,
}

/// Drives a runtime from `root` until `shutdown`, over links that `connect` gives.
pub async fn drive<C, F>(
    who: Who,
    root: &Path,
    means: &Means,
    connect: C,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Stop>
where
    C: FnMut() -> F,
    F: Future<Output = io::Result<Link>>,
{
    let Who { executor, cluster, runtime } = who;
    let config =
        chancery_executor::Config { executor, cluster, runtime, root: root.to_owned(), at_once: AT_ONCE };
    match runtime {
        Runtime::Process => {
            let program = KeeperProgram {
                program: std::env::current_exe().map_err(Stop::Storage)?,
                keeper_args: vec!["keeper".into()],
                trampoline_args: vec!["exec-when-told".into()],
            };
            let Means { output, cgroup } = means.clone();
            let processes = process::Config { root: root.to_owned(), program, output, cgroup };
            chancery_executor::run(config, Processes::open(processes), connect, shutdown).await
        }
        Runtime::Simulated => {
            let simulated = Simulated::new(World::shared(Faults::default()));
            chancery_executor::run(config, async { Ok(simulated) }, connect, shutdown).await
        }
    }
}

/// The outputs of an incarnation's processes, wherever under `root` it ran.
pub fn log_files(root: &Path, incarnation: IncarnationId) -> io::Result<Vec<LogFile>> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        found.extend(process::log_files(&entry?.path(), incarnation)?);
    }
    Ok(found)
}
