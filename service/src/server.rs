//! A server: its fleets and the API in one process, and the order in which they start and stop. It lives and dies with
//! all of them.
//!
//! ```text
//! DATA/fleets/, DATA/executors/    its fleets: see there
//! DATA/address                     where the server listens
//! DATA/lock                        held by the server that has the folder
//! ```

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use chancery_api::{AllowedHosts, Api, Common};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::config::{Config, Place};
use crate::executors::Means;
use crate::fleet::Fleet;
use crate::folder::Folder;
use crate::open_files::OpenFiles;

/// The exit code when a second signal cuts a stop short, as a shell has it for SIGINT.
const EXIT_AT_ONCE: i32 = 130;

/// Runs a server in its folder until it is asked to stop.
pub async fn run(config: Config, folder: Folder) -> Result<()> {
    let files = OpenFiles::raise();
    let listener = TcpListener::bind(config.listen).await.map_err(|error| no_port(config.listen, error))?;
    let address = listener.local_addr().context("read the address listened on")?;
    let mut stop = stop_signal()?;
    let own: Arc<str> = config.advertise.clone().unwrap_or_else(|| address.to_string()).into();
    let mut limits = config.limits.clone();
    limits.connections = files.connections(limits.connections, config.fleets.len());
    let hosts = AllowedHosts::new(&config.allowed_hosts, config.advertise.as_deref())
        .with_origins(&config.cors_origins);
    let common = Arc::new(Common::new(limits, hosts));
    let unfolded = Arc::new(Notify::new());
    let fleets = tokio::select! {
        fleets = open(&config, &own, &common, &unfolded) => fleets?,
        // Nothing has been decided here yet, and reading on may take minutes.
        () = stop.comes() => std::process::exit(0),
    };

    let (stopping, stopped) = watch::channel(false);
    let (drain, drained) = watch::channel(false);
    let mut offices = JoinSet::new();
    let (mut apps, mut running) = (BTreeMap::new(), Vec::new());
    for fleet in fleets {
        let (name, desk) = (fleet.name().clone(), fleet.desk().clone());
        let (office, turns, app, rest) =
            fleet.begin(&config, Means::of(&config, &files, folder.copies()), &common, stopped.clone())?;
        let (told, of) = (drained.clone(), name.clone());
        offices.spawn(async move {
            office.run(turns, told).await.with_context(|| format!("decide for fleet {of}"))
        });
        apps.insert(name, Arc::new(app));
        running.push(rest);
        if config.journal == Place::Embedded {
            // Nobody else will: whoever is told that this server is up may ask it at once.
            tokio::select! {
                () = desk.decides() => {}
                // Nothing was promised yet.
                () = stop.comes() => std::process::exit(0),
                Some(over) = offices.join_next() => return over.context("join the decider").flatten(),
            }
        }
    }

    let api = Api { fleets: apps, common };
    let mut told = stopped;
    let http = tokio::spawn(chancery_api::serve(api, listener, async move {
        // A sender that is gone says the same.
        let _ = told.wait_for(|stop| *stop).await;
    }));
    folder.write_address(&address.to_string())?;
    greet(&config, &address.to_string());
    tracing::info!(%address, fleets = names(&config), data = %config.data_dir.display(), "ready");

    let early = tokio::select! {
        () = stop.comes() => None,
        over = offices.join_next() => over,
        // Reads would only grow older: the server ends, and says why below.
        () = unfolded.notified() => None,
    };
    if let Some(over) = early {
        // Nothing can be made durable any more: what could be saved is saved, and waiting would hide it.
        return over.context("join the decider").flatten();
    }
    tokio::spawn(async move {
        // Whoever asks twice does not want to wait.
        stop.comes().await;
        std::process::exit(EXIT_AT_ONCE);
    });
    tracing::info!("stopping");
    for fleet in &running {
        fleet.bound_outcomes();
    }
    let _ = stopping.send(true);
    http.await.context("join the API")?.context("serve the API")?;
    for fleet in &mut running {
        fleet.rests().await?;
    }
    let _ = drain.send(true);
    let mut why = Ok(());
    while let Some(ended) = offices.join_next().await {
        // It may have ended by itself meanwhile, and says why.
        why = why.and(ended.context("join the decider").flatten());
    }
    let mut closing = JoinSet::new();
    for fleet in running {
        closing.spawn(fleet.close());
    }
    let mut closed = Ok(());
    while let Some(one) = closing.join_next().await {
        closed = closed.and(one.context("join a fleet").flatten());
    }
    // A decider that ended because its projector did knows that, and not why.
    closed.and(why)
}

/// Opens all fleets at once: each may have much to read.
async fn open(
    config: &Config,
    own: &Arc<str>,
    common: &Arc<Common>,
    unfolded: &Arc<Notify>,
) -> Result<Vec<Fleet>> {
    let mut opening = JoinSet::new();
    for (name, partition) in config.fleets.clone() {
        let (config, own) = (config.clone(), Arc::clone(own));
        let (common, unfolded) = (Arc::clone(common), Arc::clone(unfolded));
        opening.spawn_blocking(move || {
            Fleet::open(&config, &name, partition, &own, &common, unfolded)
                .with_context(|| format!("open fleet {name}"))
        });
    }
    let (mut fleets, mut errors) = (Vec::new(), Vec::new());
    while let Some(opened) = opening.join_next().await {
        match opened.context("join a fleet")? {
            Ok(fleet) => fleets.push(fleet),
            // All of them are shown: what an operator accepts at the next start holds for every fleet.
            Err(error) if config.journal == Place::Embedded => errors.push(format!("{error:#}")),
            Err(error) => return Err(error),
        }
    }
    errors.sort();
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(fleets)
}

fn names(config: &Config) -> String {
    config.fleets.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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

/// Says that it is up, and where; nothing else comes on its standard output.
fn greet(config: &Config, address: &str) {
    let _ = writeln!(
        std::io::stdout(),
        "chancery: {} {} on http://{}, everything it keeps is in {}",
        if config.fleets.len() == 1 { "fleet" } else { "fleets" },
        names(config),
        address,
        config.data_dir.display()
    );
}
