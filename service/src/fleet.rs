//! Fleet of a server: its journal, decider, projector and executors in one process, and the order of their
//! start and stop.
//!
//! ```text
//! DATA/fleets/FLEET/journal/       the events: the only data that cannot be derived again
//! DATA/fleets/FLEET/snapshots/     the state at some positions
//! DATA/fleets/FLEET/rows/          the read models
//! DATA/executors/FLEET/CLUSTER/    the incarnations on this machine: outlives the server
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result, bail};
use chancery_api::{
    ApiShared, ExecutorChannels, FleetApi, FleetDirectories, FleetMetrics, LAST_OUTCOMES, LastVerdict,
    MomentQueue,
};
use chancery_decider::core::{DeciderSettings, PART};
use chancery_decider::leader_router::{LeaderRole, LeaderRouter};
use chancery_decider::troubles::FleetTroubles;
use chancery_decider::wall_clock::WallClock;
use chancery_decider::{ChannelNumbers, EventHub, JournalFollower, PublishFn, random};
use chancery_events::id::{Position, WriterId};
use chancery_events::name::FleetName;
use chancery_journal::segments::{OpenEvidence, SegmentJournal, SegmentOptions, SyncObserver};
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{ChainCursor, DeliverySink, Journal, JournalDelivery, JournalReader, is_mirror};
use chancery_machine::context::LevelLimits;
use chancery_projector::{FoundRows, MomentCache, Projector, RowReader, StoreTuning};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::config::{JournalLocation, OnLoss, ServiceConfig};
use crate::data_dir::journal_options;
use crate::executors::{EmbeddedLogs, ExecutorHost, ProcessLimits};
use crate::leadership::{LeaderLoop, LeaderTasks, LeadershipSource};
use crate::loss;
use crate::projector_thread::{ProjectorQueue, ProjectorThread, publisher};

/// Error of builds without Kafka.
pub const NO_KAFKA: &str = "cannot use Kafka: this build was made without --features kafka";

/// Parts of a fleet, of which only the projector runs yet.
pub struct PreparedFleet {
    /// Name of the fleet.
    pub name: FleetName,
    partition: i32,
    journal: Arc<dyn Journal>,
    source: Arc<dyn JournalReader>,
    office: LeaderLoop,
    /// Router to the leader.
    pub router: LeaderRouter,
    hub: Arc<EventHub>,
    figures: Arc<FleetMetrics>,
    clusters: watch::Receiver<Position>,
    projector: thread::JoinHandle<Result<()>>,
    reader: RowReader,
    moments: Arc<MomentQueue>,
    directories: FleetDirectories,
    root: PathBuf,
}

/// Fleet that is served, and decided while this server is the leader.
pub struct RunningFleet {
    name: FleetName,
    journal: Arc<dyn Journal>,
    /// Membership in the election, if there are other servers.
    election: Option<ElectionMember>,
    executors: JoinHandle<()>,
    projector: thread::JoinHandle<Result<()>>,
}

impl PreparedFleet {
    /// Opens the journal, folds it, and starts the projector, which notifies if it ends on its own. Blocks.
    pub fn open(
        config: &ServiceConfig,
        name: &FleetName,
        partition: i32,
        own: &Arc<str>,
        common: &ApiShared,
        unfolded: Arc<Notify>,
    ) -> Result<PreparedFleet> {
        let fleet = name.as_str();
        let directory = config.data_dir.join("fleets").join(fleet);
        let (sender, deliveries) = mpsc::unbounded_channel();
        let sink = Box::new(move |delivery: JournalDelivery| {
            // The decider ends before the journal: later deliveries have no receiver.
            let _ = sender.send(delivery);
        });
        let mut options = journal_options(config, &config.data_dir, name);
        let tuning = StoreTuning { cache: config.store_cache_bytes, ..StoreTuning::default() };
        // Before the journal, which is compared with the cursor of the rows.
        let rows = FoundRows::open(&directory.join("rows"), tuning).context("cannot open read models")?;
        options.against = OpenEvidence::Witnesses(loss::witnesses(&config.data_dir, name, rows.cursor())?);
        let figures = Arc::new(common.metrics.of(name));
        let synced = Arc::clone(&figures);
        options.synced = SyncObserver::new(move |taken| synced.synced(taken));
        let troubles = Arc::new(FleetTroubles::default());
        let OpenedFleetJournal { journal, head, tasks } =
            OpenedFleetJournal::open(config, partition, options, (&troubles, &figures), sink)?;
        let source = journal.source();
        let snapshots = SnapshotStore::open(directory.join("snapshots"))?;
        let mut projector = Projector::open_found(rows, fleet, Arc::clone(&source), Some(&snapshots))
            .context("cannot open read models")?;
        projector.catch_up().context("cannot fold journal")?;
        let reader = projector.reader();
        let moments = moments_of(config, fleet, &source, &snapshots, &reader);
        let last = projector.state().and_then(|state| state.fleet.decider().cloned());
        let lineages = projector.state().map(|state| state.fleet.lineages().clone());
        let hub = Arc::new(EventHub::of(lineages));
        let (changed, clusters) = watch::channel(Position::ZERO);
        let (terms, decider) = watch::channel(last);
        let (records, states, queue) = ProjectorQueue::open();
        let publisher = publisher(Arc::clone(&hub), changed, terms, records);
        let settings = DeciderSettings {
            fleet: name.clone(),
            writer: WriterId::from_random(random()),
            build: env!("CARGO_PKG_VERSION").into(),
            address: Some(own.to_string()),
            lease: config.session_lease,
            part: PART,
            replicas: config.replicas,
            levels: LevelLimits { has_standbys: tasks.is_some(), ..LevelLimits::ALONE },
            inbox: None,
        };
        let clock = clock_of(config, head.as_ref());
        let (role, leader_role) = watch::channel(LeaderRole::Standby);
        let office = LeaderLoop {
            settings,
            journal: Arc::clone(&journal),
            following: follower_of(&figures, deliveries, publisher, head.as_ref()),
            states,
            queue: config.decider_queue.min(1 << 20),
            tasks,
            duty: role,
            clock: Arc::clone(&clock),
            troubles: Arc::clone(&troubles),
        };
        let router = LeaderRouter { leader_role, decider, own: Arc::clone(own), clock, troubles };
        let mut rows = ProjectorThread {
            projector,
            source: Arc::clone(&source),
            snapshots,
            fleet: fleet.into(),
            every: config.moments.snapshot_interval,
        };
        let ends = ThreadEndGuard(unfolded);
        let run = move || {
            let done = rows.follow(&queue);
            drop(ends);
            if done.is_err() {
                // Closing the store may wait for a disk that does not answer; rows can be derived again.
                std::mem::forget(rows);
            }
            done
        };
        let projector =
            thread::Builder::new().name("projector".into()).spawn(run).context("cannot start projector")?;
        let root = config.data_dir.join("executors").join(fleet);
        let directories =
            FleetDirectories { journal: directory.join("journal"), snapshots: directory.join("snapshots") };
        let name = name.clone();
        Ok(PreparedFleet {
            name,
            partition,
            journal,
            source,
            office,
            router,
            hub,
            figures,
            clusters,
            projector,
            reader,
            moments,
            directories,
            root,
        })
    }

    /// Joins the election, and starts to host executors, until `stopped` is true. Returns the leader loop
    /// with its source of leadership, the state for the API, and the remaining parts.
    pub fn begin(
        self,
        config: &ServiceConfig,
        means: ProcessLimits,
        common: &Arc<ApiShared>,
        stopped: watch::Receiver<bool>,
    ) -> Result<(LeaderLoop, LeadershipSource, FleetApi, RunningFleet)> {
        // Not before all fleets are open: the leadership may come from a server that still decides.
        let (turns, election) = stand(config, self.partition, &self.router, &self.source)?;
        let connections = ChannelNumbers::default();
        // The session expires after one lease; then no decider waits for the channel.
        let channels =
            ExecutorChannels::new(connections.clone(), config.session_lease * 2, common.limits.executors);
        let logs = EmbeddedLogs::new(self.root, config.embedded_executors.clone());
        let host = ExecutorHost {
            fleet: self.name.clone(),
            common: Arc::clone(common),
            logs: logs.clone(),
            leader_router: self.router.clone(),
            reader: self.reader.clone(),
            means,
            connections,
        };
        let executors = tokio::spawn(host.run(self.clusters, stopped));
        let head = self.source.head().map_or(Position::ZERO, |head| head.position);
        let states = self.office.states.clone();
        let app = FleetApi {
            common: Arc::clone(common),
            router: self.router,
            reader: self.reader,
            moments: self.moments,
            replicas: self.office.settings.replicas,
            last_verdict: Arc::new(LastVerdict::at(head)),
            source: self.source,
            hub: self.hub,
            figures: self.figures,
            figure_source: Arc::new(move || states.figures()),
            directories: Some(self.directories),
            logs: Arc::new(logs),
            channels: Arc::new(channels),
        };
        let PreparedFleet { name, journal, projector, office, .. } = self;
        Ok((office, turns, app, RunningFleet { name, journal, election, executors, projector }))
    }
}

impl RunningFleet {
    /// Limits every wait for the journal's storage from now on.
    pub fn bound_outcomes(&self) {
        self.journal.bound_outcomes(LAST_OUTCOMES);
    }

    /// Waits until all executors have ended.
    pub async fn rests(&mut self) -> Result<()> {
        (&mut self.executors).await.context("cannot join executors")
    }

    /// Gives up leadership and closes all parts; the decider must have ended, and everything must be durable.
    pub async fn close(self) -> Result<()> {
        let RunningFleet { name, journal, election, projector, .. } = self;
        let close = move || -> Result<()> {
            if let Some(election) = election {
                election.leave();
            }
            projector.join().map_err(|_| anyhow::anyhow!("cannot join projector: it panicked"))??;
            journal.close().context("cannot close journal")
        };
        let closed = tokio::task::spawn_blocking(close).await;
        closed
            .context("cannot join closing task")
            .flatten()
            .with_context(|| format!("cannot close fleet {name}"))
    }
}

/// Returns the follower of a journal, which counts in the metrics of the fleet.
fn follower_of(
    figures: &Arc<FleetMetrics>,
    deliveries: mpsc::UnboundedReceiver<JournalDelivery>,
    publisher: PublishFn,
    head: Option<&ChainCursor>,
) -> JournalFollower {
    let (counts, commits) = (Arc::clone(figures), Arc::clone(figures));
    JournalFollower {
        deliveries,
        publisher,
        skipped: Box::new(move || counts.record_skipped()),
        committed: Box::new(move |taken| commits.committed(taken)),
        published: head.map_or(Position::ZERO, |head| head.position),
    }
}

/// Returns the past states of a fleet, of which none is folded yet.
fn moments_of(
    config: &ServiceConfig,
    fleet: &str,
    source: &Arc<dyn JournalReader>,
    snapshots: &SnapshotStore,
    reader: &RowReader,
) -> Arc<MomentQueue> {
    let (source, snapshots) = (Arc::clone(source), Some(snapshots.clone()));
    let cache = MomentCache::new(fleet.into(), source, snapshots, reader.watch().clone(), config.moments);
    Arc::new(MomentQueue::new(cache))
}

/// Returns the check of the wall clock. A follower logs early that its clock would prevent it from deciding.
fn clock_of(config: &ServiceConfig, head: Option<&ChainCursor>) -> Arc<WallClock> {
    let clock = Arc::new(config.wall_clock());
    if let (JournalLocation::Kafka { .. }, Some(head)) = (&config.journal, head)
        && let Err(error) = clock.admit(head.time)
    {
        tracing::error!("{error}");
    }
    clock
}

/// Notifies when its thread ends, for whatever reason.
struct ThreadEndGuard(Arc<Notify>);

impl Drop for ThreadEndGuard {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Opened journal of a fleet.
struct OpenedFleetJournal {
    journal: Arc<dyn Journal>,
    /// Head of the journal; deliveries start after it.
    head: Option<ChainCursor>,
    tasks: Option<Arc<dyn LeaderTasks>>,
}

#[cfg(feature = "kafka")]
use crate::kafka::election::ElectionMember;
/// Builds without Kafka have no election.
#[cfg(not(feature = "kafka"))]
struct NoElection(std::convert::Infallible);
#[cfg(not(feature = "kafka"))]
use self::NoElection as ElectionMember;

#[cfg(not(feature = "kafka"))]
impl NoElection {
    fn leave(self) {
        match self.0 {}
    }
}

/// Returns the source of leadership: with an embedded journal, this server always decides.
#[cfg_attr(not(feature = "kafka"), expect(unused_variables, reason = "there is no election"))]
fn stand(
    config: &ServiceConfig,
    partition: i32,
    router: &LeaderRouter,
    source: &Arc<dyn JournalReader>,
) -> Result<(LeadershipSource, Option<ElectionMember>)> {
    match &config.journal {
        #[cfg(feature = "kafka")]
        JournalLocation::Kafka { brokers, prefix } => {
            let (election, turns) =
                crate::kafka::stand(&config.kafka, brokers, prefix, partition, router, Arc::clone(source))?;
            Ok((LeadershipSource::Elected(turns), Some(election)))
        }
        #[cfg(not(feature = "kafka"))]
        JournalLocation::Kafka { .. } => bail!("cannot reach partition {partition}: {NO_KAFKA}"),
        JournalLocation::Embedded => Ok((LeadershipSource::Ours, None)),
    }
}

impl OpenedFleetJournal {
    #[cfg_attr(
        not(feature = "kafka"),
        expect(clippy::needless_pass_by_value, reason = "they become the options of a mirror")
    )]
    #[cfg_attr(
        not(feature = "kafka"),
        expect(unused_variables, reason = "an embedded journal has no partitions and no tasks")
    )]
    fn open(
        config: &ServiceConfig,
        partition: i32,
        options: SegmentOptions,
        reports: (&Arc<FleetTroubles>, &Arc<FleetMetrics>),
        sink: DeliverySink,
    ) -> Result<OpenedFleetJournal> {
        match &config.journal {
            JournalLocation::Embedded => OpenedFleetJournal::embedded(config, &options, sink),
            JournalLocation::Kafka { .. } if config.loss == OnLoss::Accept => bail!(
                "cannot accept a loss in a journal on Kafka: every server of the fleet reads the topic\nhint: stop all \
                 of them, remove kafka.json from {}, run chancery serve --accept-loss on this data directory with an \
                 embedded journal, stop that server, and import its journal into a new topic",
                options.dir.display()
            ),
            #[cfg(feature = "kafka")]
            JournalLocation::Kafka { brokers, prefix } => {
                let fleet = Arc::clone(&options.fleet);
                let (journal, head) =
                    crate::kafka::open(&config.kafka, brokers, prefix, partition, options, sink)?;
                let posts = crate::kafka::KafkaLeaderTasks::new(
                    &config.kafka,
                    brokers,
                    prefix,
                    partition,
                    &fleet,
                    reports,
                )?;
                Ok(OpenedFleetJournal { journal, head, tasks: Some(Arc::new(posts)) })
            }
            #[cfg(not(feature = "kafka"))]
            JournalLocation::Kafka { .. } => bail!("cannot reach partition {partition}: {NO_KAFKA}"),
        }
    }

    fn embedded(
        config: &ServiceConfig,
        options: &SegmentOptions,
        sink: DeliverySink,
    ) -> Result<OpenedFleetJournal> {
        let dir = options.dir.display();
        if is_mirror(&options.dir).with_context(|| format!("cannot check whether {dir} is a mirror"))? {
            bail!(
                "cannot open embedded journal {dir}: its file kafka.json marks it as the mirror of a journal on Kafka, and an \
                 embedded journal would start a second history\nhint: start the server with --journal \
                 kafka://HOST:PORT/PREFIX. If the topic is lost permanently and one server will continue from this \
                 directory, stop all servers of the fleet, and remove that file"
            );
        }
        if config.loss == OnLoss::Accept {
            loss::accept(options)?;
        }
        let (journal, opened) = SegmentJournal::open(options, sink)?;
        if let Some(cut) = &opened.cut {
            loss::report_cut(cut);
        }
        Ok(OpenedFleetJournal { journal: Arc::new(journal), head: opened.head, tasks: None })
    }
}
