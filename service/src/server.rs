//! A server: one fleet's journal, decider, projector and API in one process, and the order in which they start and
//! stop.
//!
//! ```text
//! DATA/fleets/FLEET/journal/     what has happened: the only thing that cannot be made again
//! DATA/fleets/FLEET/snapshots/   the state at some positions
//! DATA/fleets/FLEET/rows/        the read models
//! DATA/executors/CLUSTER/        what runs on this machine: outlives the server
//! DATA/address                   where the server listens
//! DATA/lock                      held by the server that has the folder
//! ```

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, bail};
use chancery_events::id::{IncarnationId, Position, Writer};
use chancery_events::name::ClusterName;
use chancery_executor::process;
use chancery_journal::segments::{Options, SegmentJournal};
use chancery_journal::snapshots::Snapshots;
use chancery_journal::{Cursor, Delivery, Journal, Sink, Source};
use chancery_projector::{Projector, Reader, Tuning};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::{Clusters, Config, Place};
use crate::decider::core::{PART, Settings};
use crate::decider::{Following, random};
use crate::duty::{Beside, Desk, Duty, Office, Turns};
use crate::executors::{self, Connections, Host, Means};
use crate::folder::Folder;
use crate::http::{App, Hub, Limits, Links, LogFile, LogStream, Logs, Metrics, Rates};
use crate::open_files::OpenFiles;
use crate::rows::{Queue, Rows, publisher};

/// The exit code when a second signal cuts a stop short, as a shell has it for SIGINT.
const EXIT_AT_ONCE: i32 = 130;
/// For builds without it.
pub const NO_KAFKA: &str = "this build has no Kafka in it: build it with --features kafka";
/// Whether a server says on standard output that it is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Greeting {
    /// For people who started it by hand.
    Spoken,
    /// For programs.
    Silent,
}

/// Runs a server in its folder until it is asked to stop.
pub async fn run(config: Config, folder: Folder, greeting: Greeting) -> Result<()> {
    let files = OpenFiles::raise();
    let listener = TcpListener::bind(config.listen).await.map_err(|error| no_port(config.listen, error))?;
    let address = listener.local_addr().context("read the address listened on")?;
    let mut stop = stop_signal()?;
    let own: Arc<str> = config.advertise.clone().unwrap_or_else(|| address.to_string()).into();
    let parts = {
        let (config, own) = (config.clone(), Arc::clone(&own));
        tokio::task::spawn_blocking(move || Parts::open(&config, &own)).await??
    };
    let Parts {
        journal,
        election,
        source,
        office,
        desk,
        hub,
        metrics,
        clusters,
        projector,
        mut unfolded,
        reader,
        root,
    } = parts;
    let (stopping, stopped) = watch::channel(false);
    let (drain, drained) = watch::channel(false);
    let mut office = tokio::spawn(office.run(drained));
    if config.journal == Place::Embedded {
        // Nobody else will: whoever is told that this server is up may ask it at once.
        tokio::select! {
            () = desk.decides() => {}
            over = &mut office => return over.context("join the decider")?,
        }
    }

    let mut limits = Limits::of(&config.limits);
    limits.connections = files.connections(limits.connections);
    let connections = Connections::default();
    // The decider loses a session after one lease; then nobody waits for its link.
    let links = Links::new(connections.clone(), config.lease * 2, limits.executors);
    let host = Host {
        root: root.clone(),
        desk: desk.clone(),
        reader: reader.clone(),
        means: Means::of(&config, &files),
        clusters: config.executors.clone(),
        connections,
    };
    let executors = tokio::spawn(host.run(clusters, stopped.clone()));
    let app = App {
        fleet: config.fleet.clone(),
        desk,
        reader,
        source,
        hub,
        metrics,
        logs: Arc::new(Files { root, clusters: config.executors.clone() }),
        links: Arc::new(links),
        rates: Arc::new(Rates::of(&limits)),
        limits,
    };
    let mut told = stopped;
    let http = tokio::spawn(crate::http::serve(app, listener, async move {
        // A sender that is gone says the same.
        let _ = told.wait_for(|stop| *stop).await;
    }));
    folder.write_address(&address.to_string())?;
    if greeting == Greeting::Spoken {
        greet(&config, &address.to_string());
    }
    tracing::info!(%address, fleet = %config.fleet, data = %config.data_dir.display(), "ready");

    let early = tokio::select! {
        () = stop.comes() => None,
        over = &mut office => Some(over),
        // Reads would only grow older: the server ends, and says why below.
        _ = &mut unfolded => None,
    };
    match early {
        None => {}
        // Nothing can be made durable any more: what could be saved is saved, and waiting would hide it.
        Some(over) => return over.context("join the decider")?,
    }
    tokio::spawn(async move {
        // Whoever asks twice does not want to wait.
        stop.comes().await;
        std::process::exit(EXIT_AT_ONCE);
    });
    tracing::info!("stopping");
    let _ = stopping.send(true);
    http.await.context("join the API")?.context("serve the API")?;
    executors.await.context("join the executors")?;
    let _ = drain.send(true);
    // It may have ended by itself meanwhile, and says why.
    let why = office.await;
    // With everything durable, another one may decide.
    drop(election);
    tokio::task::spawn_blocking(move || -> Result<()> {
        projector.join().map_err(|_| anyhow::anyhow!("the projector panicked"))??;
        journal.close().context("close the journal")
    })
    .await??;
    why.context("join the decider")?
}

/// SIGTERM or SIGINT.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

pub(crate) fn stop_signal() -> Result<Stop> {
    let terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("watch for SIGINT")?;
    Ok(Stop { terminate, interrupt })
}

impl Stop {
    pub(crate) async fn comes(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Why no requests can be taken there, and what to do about it.
fn no_port(listen: SocketAddr, error: std::io::Error) -> anyhow::Error {
    let (ip, port) = (listen.ip(), listen.port());
    let taken = error.kind() == std::io::ErrorKind::AddrInUse;
    let error = anyhow::Error::new(error).context(format!("listen on {listen}"));
    if !taken {
        return error;
    }
    let other = SocketAddr::new(ip, port.checked_add(1).unwrap_or(port - 1));
    anyhow::anyhow!(
        "{error:#}: another program has port {port}, perhaps another server; stop it, or write --listen {other}, and \
         --server http://{other} with commands"
    )
}

struct Files {
    root: PathBuf,
    clusters: Clusters,
}

impl Logs for Files {
    fn keeps(&self, cluster: &ClusterName) -> bool {
        self.clusters.has(cluster)
    }

    fn files(&self, id: IncarnationId) -> std::io::Result<Vec<LogFile>> {
        let shown = |file: process::LogFile| LogFile {
            payload: file.payload,
            index: file.index,
            stream: match file.stream {
                process::Stream::Out => LogStream::Out,
                process::Stream::Err => LogStream::Err,
            },
            base: file.base,
        };
        Ok(executors::log_files(&self.root, id)?.into_iter().map(shown).collect())
    }
}

/// A server's parts, running.
struct Parts {
    journal: Arc<dyn Journal>,
    /// Stands for election, if there are others.
    election: Option<Election>,
    source: Arc<dyn Source>,
    office: Office,
    desk: Desk,
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
    clusters: watch::Receiver<Position>,
    projector: JoinHandle<Result<()>>,
    /// Fires when the projector's thread ends.
    unfolded: oneshot::Receiver<()>,
    reader: Reader,
    root: PathBuf,
}

impl Parts {
    /// Opens the journal, folds it, and starts the projector.
    fn open(config: &Config, own: &Arc<str>) -> Result<Parts> {
        let fleet = config.fleet.as_str();
        let home = config.data_dir.join("fleets").join(fleet);
        let (told, deliveries) = mpsc::unbounded_channel();
        let sink = Box::new(move |delivery: Delivery| {
            // The decider ends before the journal: what comes then is for nobody.
            let _ = told.send(delivery);
        });
        let mut options = Options::new(home.join("journal"), fleet);
        options.largest_segment = config.segment_bytes;
        options.first_segment = options.first_segment.min(config.segment_bytes);
        let dir = options.dir.clone();
        let Opened { journal, head, beside } = Opened::open(config, options, sink)?;
        let source = journal.source();
        let snapshots = Snapshots::open(home.join("snapshots"))?;
        if head.is_none()
            && let Some((position, file)) = snapshots.list()?.last()
        {
            bail!(
                "the journal in {} is empty, and {} is a snapshot at position {position}: the journal has been lost. \
                 Put it back from a copy; to begin a new fleet, take another folder",
                dir.display(),
                file.display()
            );
        }
        let tuning = Tuning { cache: config.sled_cache, ..Tuning::default() };
        let mut projector =
            Projector::open(&home.join("rows"), fleet, Arc::clone(&source), Some(&snapshots), tuning)
                .context("open the read models")?;
        projector.catch_up().context("fold the journal")?;
        let (turns, election) = stand(config)?;
        let reader = projector.reader();
        let last = projector.state().and_then(|state| state.fleet.decider().cloned());
        let hub = Arc::new(Hub::new());
        let (changed, clusters) = watch::channel(Position::ZERO);
        let (terms, decider) = watch::channel(last);
        let (records, states, queue) = Queue::open();
        let metrics = Arc::new(Metrics::new());
        let counts = Arc::clone(&metrics);
        let publisher = publisher(Arc::clone(&hub), changed, terms, records);
        let settings = Settings {
            fleet: config.fleet.clone(),
            writer: Writer::from_random(random()),
            build: env!("CARGO_PKG_VERSION").into(),
            address: Some(own.to_string()),
            lease: config.lease,
            part: PART,
            replicas: config.limits.replicas,
            inbox: None,
        };
        let (duty, told) = watch::channel(Duty::StandsBy);
        let office = Office {
            settings,
            journal: Arc::clone(&journal),
            following: Following {
                deliveries,
                publisher,
                skipped: Box::new(move || counts.skipped()),
                published: head.map_or(Position::ZERO, |head| head.position),
            },
            states,
            queue: usize::try_from(config.limits.queue).unwrap_or(usize::MAX).min(1 << 20),
            turns,
            beside,
            duty,
        };
        let desk = Desk { duty: told, decider, own: Arc::clone(own) };
        let mut rows = Rows {
            projector,
            source: Arc::clone(&source),
            snapshots,
            fleet: fleet.into(),
            every: config.snapshot_events,
        };
        let (alive, unfolded) = oneshot::channel::<()>();
        let run = move || {
            let done = rows.follow(&queue);
            drop(alive);
            if done.is_err() {
                // Closing the store may wait for a disk that gives no answer; rows can be made again.
                std::mem::forget(rows);
            }
            done
        };
        let projector =
            std::thread::Builder::new().name("projector".into()).spawn(run).context("start the projector")?;
        let root = config.data_dir.join("executors");
        Ok(Parts {
            journal,
            election,
            source,
            office,
            desk,
            hub,
            metrics,
            clusters,
            projector,
            unfolded,
            reader,
            root,
        })
    }
}

/// The journal as it was found.
struct Opened {
    journal: Arc<dyn Journal>,
    /// Deliveries begin behind it.
    head: Option<Cursor>,
    beside: Option<Arc<dyn Beside>>,
}

#[cfg(feature = "kafka")]
use crate::kafka::election::Election;
/// There is none without Kafka.
#[cfg(not(feature = "kafka"))]
struct Election(std::convert::Infallible);

/// Whose turn it is to decide: with an embedded journal always this server's.
fn stand(config: &Config) -> Result<(Turns, Option<Election>)> {
    match &config.journal {
        #[cfg(feature = "kafka")]
        Place::Kafka { brokers, prefix } => {
            let (election, turns) = crate::kafka::stand(&config.kafka, brokers, prefix)?;
            Ok((Turns::Told(turns), Some(election)))
        }
        #[cfg(not(feature = "kafka"))]
        Place::Kafka { .. } => bail!(NO_KAFKA),
        Place::Embedded => Ok((Turns::Ours, None)),
    }
}

impl Opened {
    fn open(config: &Config, options: Options, sink: Sink) -> Result<Opened> {
        match &config.journal {
            Place::Embedded => Opened::embedded(&options, sink),
            #[cfg(feature = "kafka")]
            Place::Kafka { brokers, prefix } => {
                let (journal, head) = crate::kafka::open(&config.kafka, brokers, prefix, options, sink)?;
                let posts = crate::kafka::Posts::new(&config.kafka, brokers, prefix)?;
                Ok(Opened { journal, head, beside: Some(Arc::new(posts)) })
            }
            #[cfg(not(feature = "kafka"))]
            Place::Kafka { .. } => bail!(NO_KAFKA),
        }
    }

    fn embedded(options: &Options, sink: Sink) -> Result<Opened> {
        let (journal, opened) = SegmentJournal::open(options, sink)?;
        if let Some(cut) = &opened.cut {
            eprintln!(
                "chancery: the journal's tail was cut from position {} on ({} bytes, {}): what was never acknowledged, \
                 or the last group before a power cut; it is kept in {}",
                cut.from,
                cut.bytes,
                cut.reason,
                cut.kept.display()
            );
        }
        Ok(Opened { journal: Arc::new(journal), head: opened.head, beside: None })
    }
}

fn greet(config: &Config, address: &str) {
    let _ = writeln!(
        std::io::stdout(),
        "chancery: fleet {} on http://{}, everything it keeps is in {}",
        config.fleet,
        address,
        config.data_dir.display()
    );
}
