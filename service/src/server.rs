//! Server: its fleets and the API in one process, and the order in which they start and stop. The server ends
//! when any of them ends.
//!
//! ```text
//! DATA/fleets/, DATA/executors/    its fleets: see `fleet`
//! DATA/address                     address on which the server listens
//! DATA/lock                        held by the server that uses the directory
//! ```

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use chancery_api::{AllowedHosts, ApiShared, ApiState};
use chancery_cli::CliExit;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::config::{JournalLocation, ServiceConfig};
use crate::data_dir::ServerDataDir;
use crate::executors::ProcessLimits;
use crate::fleet::PreparedFleet;
use crate::open_files::OpenFileLimit;

/// Checks that other servers have an address of this one.
fn check_advertise(config: &ServiceConfig) -> Result<()> {
    ensure!(
        !config.listen.ip().is_unspecified()
            || config.advertise.is_some()
            || config.journal == JournalLocation::Embedded,
        "invalid advertise: must be set, as other servers cannot reach {}",
        config.listen
    );
    Ok(())
}

/// Logs that other hosts can reach the server, if they can.
fn warn_if_exposed(address: SocketAddr) {
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "other hosts can reach this server: everyone who does can do everything");
    }
}

/// Runs a server in its directory until it is asked to stop.
pub async fn run(config: ServiceConfig, directory: ServerDataDir) -> Result<()> {
    let files = OpenFileLimit::raise();
    check_advertise(&config)?;
    let listener = TcpListener::bind(config.listen).await.map_err(|error| no_port(config.listen, error))?;
    let address = listener.local_addr().context("cannot read listening address")?;
    warn_if_exposed(address);
    let mut stop = stop_signal()?;
    let own: Arc<str> = config.advertise.clone().unwrap_or_else(|| address.to_string()).into();
    let mut limits = config.limits.clone();
    limits.connections = files.connections(limits.connections, config.fleets.len());
    let hosts = AllowedHosts::new(&config.allowed_hosts, config.advertise.as_deref())
        .with_origins(&config.cors_origins);
    let common = Arc::new(ApiShared::new(limits, hosts));
    let unfolded = Arc::new(Notify::new());
    let fleets = tokio::select! {
        fleets = open(&config, &own, &common, &unfolded) => fleets?,
        // This server has decided nothing yet, and opening may take minutes more.
        () = stop.comes() => std::process::exit(0),
    };

    let (stopping, stopped) = watch::channel(false);
    let (drain, drained) = watch::channel(false);
    let mut offices = JoinSet::new();
    let (mut apps, mut running) = (BTreeMap::new(), Vec::new());
    for fleet in fleets {
        let (name, router) = (fleet.name.clone(), fleet.router.clone());
        let (office, turns, app, rest) = fleet.begin(
            &config,
            ProcessLimits::of(&config, &files, directory.copies),
            &common,
            stopped.clone(),
        )?;
        let (drain, of) = (drained.clone(), name.clone());
        offices.spawn(async move {
            office.run(turns, drain).await.with_context(|| format!("cannot serve fleet {of}"))
        });
        apps.insert(name, Arc::new(app));
        running.push(rest);
        if config.journal == JournalLocation::Embedded {
            // No other server will decide: clients may send requests as soon as the server is announced.
            tokio::select! {
                () = router.decides() => {}
                // The server is not announced yet.
                () = stop.comes() => std::process::exit(0),
                Some(over) = offices.join_next() => return over.context("cannot join leader loop").flatten(),
            }
        }
    }

    let api = ApiState { fleets: apps, common };
    let mut http_stop = stopped;
    let http = tokio::spawn(chancery_api::serve(api, listener, async move {
        // A dropped sender means the same.
        let _ = http_stop.wait_for(|stop| *stop).await;
    }));
    directory.write_address(&address.to_string())?;
    greet(&config, &address.to_string());
    tracing::info!(%address, fleets = names(&config), data = %config.data_dir.display(), "ready");

    let early = tokio::select! {
        () = stop.comes() => None,
        over = offices.join_next() => over,
        // Reads would only become older: the server ends, and reports the reason below.
        () = unfolded.notified() => None,
    };
    if let Some(over) = early {
        // No further record can become durable, everything else is saved, and a wait would hide the error.
        return over.context("cannot join leader loop").flatten();
    }
    tokio::spawn(async move {
        // A second signal ends the server without waiting.
        stop.comes().await;
        std::process::exit(CliExit::Interrupted as i32);
    });
    tracing::info!("stopping");
    for fleet in &running {
        fleet.bound_outcomes();
    }
    let _ = stopping.send(true);
    http.await.context("cannot join API")?.context("cannot serve API")?;
    for fleet in &mut running {
        fleet.rests().await?;
    }
    let _ = drain.send(true);
    let mut why = Ok(());
    while let Some(ended) = offices.join_next().await {
        // The decider may have ended on its own meanwhile, and reports the reason.
        why = why.and(ended.context("cannot join leader loop").flatten());
    }
    let mut closing = JoinSet::new();
    for fleet in running {
        closing.spawn(fleet.close());
    }
    let mut closed = Ok(());
    while let Some(one) = closing.join_next().await {
        closed = closed.and(one.context("cannot join fleet").flatten());
    }
    // A decider that ended because its projector did reports that, but not the cause.
    closed.and(why)
}

/// Opens all fleets concurrently: each may have much to read.
async fn open(
    config: &ServiceConfig,
    own: &Arc<str>,
    common: &Arc<ApiShared>,
    unfolded: &Arc<Notify>,
) -> Result<Vec<PreparedFleet>> {
    let mut opening = JoinSet::new();
    for (name, partition) in config.fleets.clone() {
        let (config, own) = (config.clone(), Arc::clone(own));
        let (common, unfolded) = (Arc::clone(common), Arc::clone(unfolded));
        opening.spawn_blocking(move || {
            PreparedFleet::open(&config, &name, partition, &own, &common, unfolded)
                .with_context(|| format!("cannot open fleet {name}"))
        });
    }
    let (mut fleets, mut errors) = (Vec::new(), Vec::new());
    while let Some(opened) = opening.join_next().await {
        match opened.context("cannot join fleet")? {
            Ok(fleet) => fleets.push(fleet),
            // All errors are shown: a loss accepted at the next start is accepted for every fleet.
            Err(error) if config.journal == JournalLocation::Embedded => errors.push(format!("{error:#}")),
            Err(error) => return Err(error),
        }
    }
    errors.sort();
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(fleets)
}

fn names(config: &ServiceConfig) -> String {
    config.fleets.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Receiver of SIGTERM and SIGINT.
pub(crate) struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
}

pub(crate) fn stop_signal() -> Result<StopSignal> {
    let terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
    Ok(StopSignal { terminate, interrupt })
}

impl StopSignal {
    pub(crate) async fn comes(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Returns the error of a server that cannot listen on the address, with a remedy.
pub(crate) fn no_port(listen: SocketAddr, error: std::io::Error) -> anyhow::Error {
    let (ip, port) = (listen.ip(), listen.port());
    let taken = error.kind() == std::io::ErrorKind::AddrInUse;
    let error = anyhow::Error::new(error).context(format!("cannot listen on {listen}"));
    if !taken {
        return error;
    }
    let other = SocketAddr::new(ip, port.checked_add(1).unwrap_or(port - 1));
    anyhow::anyhow!(
        "cannot start server: {error:#}\nhint: another program uses port {port}, perhaps another server: stop it, or write \
         --listen {other}, and --server http://{other} with commands"
    )
}

/// Prints that the server is running, and its address; nothing else is written to its standard output.
fn greet(config: &ServiceConfig, address: &str) {
    let _ = writeln!(
        std::io::stdout(),
        "chancery: {} {} on http://{}, data in {}",
        if config.fleets.len() == 1 { "fleet" } else { "fleets" },
        names(config),
        address,
        config.data_dir.display()
    );
}
