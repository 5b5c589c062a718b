//! Peers: other event stores, started here, with the same events and the same callers.
//!
//! `bench/peers/install` builds or finds them. Each is loaded by a client of its own kind, in a process of
//! its own: `pgbench` for the message store on PostgreSQL, the crate's own client for the others. Standard
//! input gives the number of callers and the duration.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::ROUND;
use crate::load::MeasuredSide;
use crate::postgres::PostgresServer;
use crate::table::CellResult;

/// Environment variable for the directory of the peers' programs.
const FOLDER: &str = "CHANCERY_PEERS";

/// Running peers.
pub(crate) struct RunningPeers {
    postgres: PostgresServer,
    cqrs_es: LoadProcess,
    umadb: Option<LoadProcess>,
    _data: tempfile::TempDir,
}

impl RunningPeers {
    /// Starts all peers, or none if they are not installed.
    pub(crate) fn start() -> Result<Option<RunningPeers>> {
        let Some(directory) = std::env::var_os(FOLDER).map(PathBuf::from) else {
            eprintln!("peers are left out: bench/run installs them, {FOLDER} names their directory");
            return Ok(None);
        };
        let postgres = PostgresServer::start()?;
        let mut cqrs_es = Command::new(directory.join("release/chancery-peer-cqrs-es"));
        cqrs_es.arg(postgres.url());
        let data = crate::directory()?;
        let server = directory.join("bin/umadb");
        let umadb = if server.exists() {
            let mut umadb = Command::new(directory.join("release/chancery-peer-umadb"));
            umadb.arg(server).arg(data.path());
            Some(LoadProcess::start(umadb)?)
        } else {
            eprintln!("UmaDB is left out: {} does not exist", server.display());
            None
        };
        Ok(Some(RunningPeers { cqrs_es: LoadProcess::start(cqrs_es)?, postgres, umadb, _data: data }))
    }

    /// Returns a side for each peer, with `callers` callers.
    pub(crate) fn sides(&mut self, callers: usize) -> Vec<(&'static str, MeasuredSide<'_>)> {
        let RunningPeers { postgres, cqrs_es, umadb, .. } = self;
        let postgres = &*postgres;
        let mut sides: Vec<(&'static str, MeasuredSide<'_>)> = vec![
            ("messages, 1 category", Box::new(move || postgres.messages(callers, 1))),
            ("messages, 32", Box::new(move || postgres.messages(callers, 32))),
        ];
        let commands = move || {
            postgres.empty()?;
            cqrs_es.round(callers)
        };
        sides.push(("cqrs-es", Box::new(commands)));
        if let Some(umadb) = umadb {
            sides.push(("UmaDB", Box::new(move || umadb.round(callers))));
        }
        sides
    }
}

/// Process that runs callers on request.
struct LoadProcess {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl LoadProcess {
    fn start(mut command: Command) -> Result<LoadProcess> {
        let shown = format!("{}", command.get_program().display());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {shown}"))?;
        let orders = child.stdin.take().context("its standard input")?;
        let answers = BufReader::new(child.stdout.take().context("its standard output")?);
        Ok(LoadProcess { child, orders, answers })
    }

    fn round(&mut self, callers: usize) -> Result<CellResult> {
        writeln!(self.orders, "{callers} {}", ROUND.as_millis())
            .context("cannot start round of a peer's client")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a peer's client has ended");
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        // The process is not needed any more; between rounds it has no children that would outlive it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
