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
use chancery_api::{App, Common, Figures, LAST_OUTCOMES, LastVerdict, Links, Logs};
use chancery_decider::core::{PART, Settings};
use chancery_decider::desk::{Desk, Duty};
use chancery_decider::troubles::FleetTroubles;
use chancery_decider::wall_clock::WallClock;
use chancery_decider::{Connections, Following, Hub, random};
use chancery_events::id::{IncarnationId, Position, Writer};
use chancery_events::name::{ClusterName, FleetName};
use chancery_executor::logs::{LogOutput, LogSource};
use chancery_journal::segments::{Against, Options, SegmentJournal};
use chancery_journal::snapshots::Snapshots;
use chancery_journal::{Cursor, Delivery, Journal, Sink, Source, is_mirror};
use chancery_projector::{FoundRows, Projector, Reader, Tuning};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::config::{Clusters, Config, OnLoss, Place};
use crate::duty::{Beside, Office, Turns};
use crate::executors::{self, Host, Means};
use crate::folder::journal_options;
use crate::loss;
use crate::rows::{Queue, Rows, publisher};

/// Error of builds without Kafka.
pub const NO_KAFKA: &str = "this build has no Kafka in it: build it with --features kafka";

/// Parts of a fleet, of which only the projector runs yet.
pub struct Fleet {
    name: FleetName,
    partition: i32,
    journal: Arc<dyn Journal>,
    source: Arc<dyn Source>,
    office: Office,
    desk: Desk,
    hub: Arc<Hub>,
    figures: Arc<Figures>,
    clusters: watch::Receiver<Position>,
    projector: thread::JoinHandle<Result<()>>,
    reader: Reader,
    root: PathBuf,
}

/// Fleet that is served, and decided while this server is the leader.
pub struct Running {
    name: FleetName,
    journal: Arc<dyn Journal>,
    /// Membership in the election, if there are other servers.
    election: Option<Election>,
    executors: JoinHandle<()>,
    projector: thread::JoinHandle<Result<()>>,
}

impl Fleet {
    /// Opens the journal, folds it, and starts the projector, which notifies if it ends on its own. Blocks.
    pub fn open(
        config: &Config,
        name: &FleetName,
        partition: i32,
        own: &Arc<str>,
        common: &Common,
        unfolded: Arc<Notify>,
    ) -> Result<Fleet> {
        let fleet = name.as_str();
        let home = config.data_dir.join("fleets").join(fleet);
        let (told, deliveries) = mpsc::unbounded_channel();
        let sink = Box::new(move |delivery: Delivery| {
            // The decider ends before the journal: later deliveries have no receiver.
            let _ = told.send(delivery);
        });
        let mut options = journal_options(config, &config.data_dir, name);
        let tuning = Tuning { cache: config.sled_cache, ..Tuning::default() };
        // Before the journal, which is compared with the cursor of the rows.
        let rows = FoundRows::open(&home.join("rows"), tuning).context("open the read models")?;
        options.against = Against::Witnesses(loss::witnesses(&config.data_dir, name, rows.cursor())?);
        let troubles = Arc::new(FleetTroubles::default());
        let Opened { journal, head, beside } = Opened::open(config, partition, options, &troubles, sink)?;
        let source = journal.source();
        let snapshots = Snapshots::open(home.join("snapshots"))?;
        let mut projector = Projector::open_found(rows, fleet, Arc::clone(&source), Some(&snapshots))
            .context("open the read models")?;
        projector.catch_up().context("fold the journal")?;
        let reader = projector.reader();
        let last = projector.state().and_then(|state| state.fleet.decider().cloned());
        let lineages = projector.state().map(|state| state.fleet.lineages().clone());
        let hub = Arc::new(Hub::of(lineages));
        let (changed, clusters) = watch::channel(Position::ZERO);
        let (terms, decider) = watch::channel(last);
        let (records, states, queue) = Queue::open();
        let figures = Arc::new(common.metrics.of(name));
        let counts = Arc::clone(&figures);
        let publisher = publisher(Arc::clone(&hub), changed, terms, records);
        let settings = Settings {
            fleet: name.clone(),
            writer: Writer::from_random(random()),
            build: env!("CARGO_PKG_VERSION").into(),
            address: Some(own.to_string()),
            lease: config.lease,
            part: PART,
            replicas: config.replicas,
            inbox: None,
        };
        let clock = clock_of(config, head.as_ref());
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
            queue: config.queue.min(1 << 20),
            beside,
            duty,
            clock: Arc::clone(&clock),
            troubles: Arc::clone(&troubles),
        };
        let desk = Desk { duty: told, decider, own: Arc::clone(own), clock, troubles };
        let mut rows = Rows {
            projector,
            source: Arc::clone(&source),
            snapshots,
            fleet: fleet.into(),
            every: config.snapshot_events,
        };
        let ends = Ends(unfolded);
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
            thread::Builder::new().name("projector".into()).spawn(run).context("start the projector")?;
        let root = config.data_dir.join("executors").join(fleet);
        let name = name.clone();
        Ok(Fleet {
            name,
            partition,
            journal,
            source,
            office,
            desk,
            hub,
            figures,
            clusters,
            projector,
            reader,
            root,
        })
    }

    /// Returns the name of the fleet.
    pub fn name(&self) -> &FleetName {
        &self.name
    }

    /// Returns the router to the leader.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Joins the election, and starts to host executors, until `stopped` is true. Returns the leader loop
    /// with its source of leadership, the state for the API, and the remaining parts.
    pub fn begin(
        self,
        config: &Config,
        means: Means,
        common: &Arc<Common>,
        stopped: watch::Receiver<bool>,
    ) -> Result<(Office, Turns, App, Running)> {
        // Not before all fleets are open: the leadership may come from a server that still decides.
        let (turns, election) = stand(config, self.partition, &self.desk, &self.source)?;
        let connections = Connections::default();
        // The session expires after one lease; then no decider waits for the channel.
        let links = Links::new(connections.clone(), config.lease * 2, common.limits.executors);
        let host = Host {
            root: self.root.clone(),
            desk: self.desk.clone(),
            reader: self.reader.clone(),
            means,
            clusters: config.executors.clone(),
            connections,
        };
        let executors = tokio::spawn(host.run(self.clusters, stopped));
        let head = self.source.head().map_or(Position::ZERO, |head| head.position);
        let app = App {
            common: Arc::clone(common),
            desk: self.desk,
            reader: self.reader,
            last_verdict: Arc::new(LastVerdict::at(head)),
            source: self.source,
            hub: self.hub,
            figures: self.figures,
            logs: Arc::new(Files { root: self.root, clusters: config.executors.clone() }),
            links: Arc::new(links),
        };
        let Fleet { name, journal, projector, office, .. } = self;
        Ok((office, turns, app, Running { name, journal, election, executors, projector }))
    }
}

impl Running {
    /// Limits every wait for the journal's storage from now on.
    pub fn bound_outcomes(&self) {
        self.journal.bound_outcomes(LAST_OUTCOMES);
    }

    /// Waits until all executors have ended.
    pub async fn rests(&mut self) -> Result<()> {
        (&mut self.executors).await.context("join the executors")
    }

    /// Gives up leadership and closes all parts; the decider must have ended, and everything must be durable.
    pub async fn close(self) -> Result<()> {
        let Running { name, journal, election, projector, .. } = self;
        let close = move || -> Result<()> {
            if let Some(election) = election {
                election.leave();
            }
            projector.join().map_err(|_| anyhow::anyhow!("the projector panicked"))??;
            journal.close().context("close the journal")
        };
        let closed = tokio::task::spawn_blocking(close).await;
        closed.context("join what closes").flatten().with_context(|| format!("close fleet {name}"))
    }
}

/// Returns the check of the wall clock. A follower reports early what would keep it from deciding.
fn clock_of(config: &Config, head: Option<&Cursor>) -> Arc<WallClock> {
    let clock = Arc::new(config.wall_clock());
    if let (Place::Kafka { .. }, Some(head)) = (&config.journal, head)
        && let Err(error) = clock.admit(head.time)
    {
        tracing::error!("{error}");
    }
    clock
}

/// Notifies when its thread ends, for whatever reason.
struct Ends(Arc<Notify>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Journal as it was opened.
struct Opened {
    journal: Arc<dyn Journal>,
    /// Head of the journal; deliveries start after it.
    head: Option<Cursor>,
    beside: Option<Arc<dyn Beside>>,
}

#[cfg(feature = "kafka")]
use crate::kafka::election::Election;
/// Builds without Kafka have no election.
#[cfg(not(feature = "kafka"))]
struct Election(std::convert::Infallible);

#[cfg(not(feature = "kafka"))]
impl Election {
    fn leave(self) {
        match self.0 {}
    }
}

/// Returns the source of leadership: with an embedded journal, this server always decides.
#[cfg_attr(not(feature = "kafka"), expect(unused_variables, reason = "there is no election"))]
fn stand(
    config: &Config,
    partition: i32,
    desk: &Desk,
    source: &Arc<dyn Source>,
) -> Result<(Turns, Option<Election>)> {
    match &config.journal {
        #[cfg(feature = "kafka")]
        Place::Kafka { brokers, prefix } => {
            let (election, turns) =
                crate::kafka::stand(&config.kafka, brokers, prefix, partition, desk, Arc::clone(source))?;
            Ok((Turns::Told(turns), Some(election)))
        }
        #[cfg(not(feature = "kafka"))]
        Place::Kafka { .. } => bail!("reach partition {partition}: {NO_KAFKA}"),
        Place::Embedded => Ok((Turns::Ours, None)),
    }
}

impl Opened {
    #[cfg_attr(
        not(feature = "kafka"),
        expect(clippy::needless_pass_by_value, reason = "they become those of a mirror")
    )]
    #[cfg_attr(
        not(feature = "kafka"),
        expect(unused_variables, reason = "an embedded journal has no such parts")
    )]
    fn open(
        config: &Config,
        partition: i32,
        options: Options,
        troubles: &Arc<FleetTroubles>,
        sink: Sink,
    ) -> Result<Opened> {
        match &config.journal {
            Place::Embedded => Opened::embedded(config, &options, sink),
            Place::Kafka { .. } if config.loss == OnLoss::Accept => bail!(
                "cannot accept a loss in a journal on Kafka: every server of the fleet reads the topic. hint: stop all of \
                 them, remove kafka.json from {}, run chancery serve --accept-loss over this data directory with an embedded \
                 journal, stop that server, and import its journal into a new topic",
                options.dir.display()
            ),
            #[cfg(feature = "kafka")]
            Place::Kafka { brokers, prefix } => {
                let fleet = Arc::clone(&options.fleet);
                let (journal, head) =
                    crate::kafka::open(&config.kafka, brokers, prefix, partition, options, sink)?;
                let posts =
                    crate::kafka::Posts::new(&config.kafka, brokers, prefix, partition, &fleet, troubles)?;
                Ok(Opened { journal, head, beside: Some(Arc::new(posts)) })
            }
            #[cfg(not(feature = "kafka"))]
            Place::Kafka { .. } => bail!("reach partition {partition}: {NO_KAFKA}"),
        }
    }

    fn embedded(config: &Config, options: &Options, sink: Sink) -> Result<Opened> {
        let dir = options.dir.display();
        if is_mirror(&options.dir).with_context(|| format!("look whether {dir} is a mirror"))? {
            bail!(
                "the journal in {dir} is the mirror of one on Kafka, as the file kafka.json in it says; embedded it would \
                 begin a history of its own beside the one that goes on there. Start the server with --journal \
                 kafka://HOST:PORT/PREFIX. If the topic is lost for good and one server is to go on from here, stop all \
                 servers of the fleet, and remove that file"
            );
        }
        if config.loss == OnLoss::Accept {
            loss::accept(options)?;
        }
        let (journal, opened) = SegmentJournal::open(options, sink)?;
        if let Some(cut) = &opened.cut {
            loss::tell(cut);
        }
        Ok(Opened { journal: Arc::new(journal), head: opened.head, beside: None })
    }
}

struct Files {
    root: PathBuf,
    clusters: Clusters,
}

impl LogSource for Files {
    fn outputs(&self, id: IncarnationId) -> std::io::Result<Vec<Box<dyn LogOutput>>> {
        executors::outputs(&self.root, id)
    }
}

impl Logs for Files {
    fn keeps(&self, cluster: &ClusterName) -> bool {
        self.clusters.has(cluster)
    }
}
