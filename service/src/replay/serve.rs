//! Read-only server of a replayed journal.
//!
//! It is the API of a server without a decider: rows, histories, streams and past states of the journal as far as it
//! was folded. Writes and executors are refused. The rows are in a temporary directory, which is removed at the end.
//! Past states are folded from the snapshots that the replay has compared.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use chancery_api::{AllowedHosts, ApiShared, ApiState, ExecutorChannels, FleetApi, LastVerdict, MomentQueue};
use chancery_cli::note;
use chancery_decider::leader_router::LeaderRouter;
use chancery_decider::{ChannelNumbers, EventHub};
use chancery_events::name::FleetName;
use chancery_executor::logs::NoLogSource;
use chancery_journal::snapshots::SnapshotStore;
use chancery_projector::{MomentCache, Projector, StoreTuning};
use tokio::sync::oneshot;

use super::ReplayedJournal;
use crate::config::ServiceConfig;
use crate::open_files::OpenFileLimit;
use crate::server::{no_port, stop_signal};
use crate::temporary_rows::TemporaryRows;

/// Accepts connections on an address, which wait until the journal is served. Called before the fold, which may take
/// long.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|error| no_port(address, error))?;
    listener.set_nonblocking(true).context("cannot listen without blocking")?;
    Ok(listener)
}

/// API of a replayed journal, and the projector that keeps its rows open.
struct ReplayedFleet {
    name: FleetName,
    app: FleetApi,
    projector: Projector,
}

impl ReplayedFleet {
    /// Builds the rows of a replayed journal in an empty directory. Blocks.
    fn open(config: &ServiceConfig, journal: ReplayedJournal, rows: &Path) -> Result<ReplayedFleet> {
        let ReplayedJournal { frozen, snapshots, replayed, .. } = journal;
        let fleet = Arc::clone(frozen.fleet());
        let name: FleetName = fleet.parse().with_context(|| format!("cannot serve fleet {fleet:?}"))?;
        let state = replayed.state.context("cannot serve journal: it is empty")?;
        let (head, lineages) = (state.at.position, state.fleet.lineages().clone());
        let tuning = StoreTuning { cache: config.store_cache_bytes, ..StoreTuning::default() };
        let source = frozen.source();
        let projector = Projector::open_at(rows, &fleet, Arc::clone(&source), state, tuning);
        let built = projector.and_then(|mut projector| projector.catch_up().map(|_| projector));
        let projector = built.with_context(|| format!("cannot build rows in {}", rows.display()))?;
        let (reader, figures) = (projector.reader(), projector.figures());
        let snapshots = snapshots.is_dir().then(|| SnapshotStore::read_only(snapshots));
        let watch = reader.watch().clone();
        let moments = MomentCache::new(fleet, Arc::clone(&source), snapshots, watch, config.moments);
        let mut limits = config.limits.clone();
        limits.connections = OpenFileLimit::raise().connections(limits.connections, 1);
        let hosts = AllowedHosts::new(&config.allowed_hosts, None).with_origins(&config.cors_origins);
        let common = Arc::new(ApiShared::new(limits, hosts));
        let (numbers, executors) = (ChannelNumbers::default(), common.limits.executors);
        let app = FleetApi {
            router: LeaderRouter::read_only(),
            reader,
            moments: Arc::new(MomentQueue::new(moments)),
            last_verdict: Arc::new(LastVerdict::at(head)),
            source,
            hub: Arc::new(EventHub::of(Some(lineages))),
            figures: Arc::new(common.metrics.of(&name)),
            figure_source: Arc::new(move || {
                let (answer, answered) = oneshot::channel();
                // The journal ends: its figures stay the same.
                let _ = answer.send(figures.clone());
                answered
            }),
            directories: None,
            logs: Arc::new(NoLogSource),
            replicas: config.replicas,
            channels: Arc::new(ExecutorChannels::new(numbers, config.session_lease, executors)),
            common,
        };
        Ok(ReplayedFleet { name, app, projector })
    }
}

/// Serves a replayed journal until SIGTERM or SIGINT.
pub async fn serve(config: ServiceConfig, journal: ReplayedJournal, listener: TcpListener) -> Result<()> {
    let mut stop = stop_signal()?;
    let listener = tokio::net::TcpListener::from_std(listener).context("cannot listen")?;
    let address = listener.local_addr().context("cannot read listening address")?;
    let rows = TemporaryRows::create()?;
    let path = rows.path().to_owned();
    let opening = tokio::task::spawn_blocking(move || ReplayedFleet::open(&config, journal, &path));
    let opened = tokio::select! {
        opened = opening => opened.context("cannot join the build of rows")??,
        () = stop.comes() => {
            drop(rows);
            std::process::exit(0)
        }
    };
    let ReplayedFleet { name, app, projector } = opened;
    let (head, common) = (projector.position(), Arc::clone(&app.common));
    let api = ApiState { fleets: [(name.clone(), Arc::new(app))].into(), common };
    note!("chancery: fleet {name} up to position {head}, read-only, on http://{address}");
    let served = chancery_api::serve(api, listener, async move { stop.comes().await }).await;
    drop(projector);
    drop(rows);
    served.context("cannot serve API")
}
