//! Measured program, as a process of its own.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::http::BenchmarkClient;
use crate::load::round;
use crate::process::{MeasuredProcess, peak_mib};
use crate::table::CellResult;

/// Prefix of every route of the fleet.
pub(crate) const FLEET: &str = "/v1/fleets/default";

/// Server on a free port, with a directory of its own.
pub(crate) struct BenchmarkServer {
    child: Child,
    pub(crate) address: String,
    directory: tempfile::TempDir,
}

impl BenchmarkServer {
    pub(crate) fn start() -> Result<BenchmarkServer> {
        BenchmarkServer::start_with(&[])
    }

    /// Starts a server with settings from the environment.
    pub(crate) fn start_with(settings: &[(&str, &str)]) -> Result<BenchmarkServer> {
        let directory = crate::directory()?;
        let program =
            std::env::var_os("CHANCERY_BIN").context("CHANCERY_BIN names the program: use bench/run")?;
        let child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(directory.path())
            // One principal sends as much as the server can handle, on a fast disk above the default limit.
            .env("CHANCERY_LIMITS_WRITES_PER_SECOND", "10000000")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let mut server = BenchmarkServer { child, address: String::new(), directory };
        let (path, began) = (server.directory.path().join("address"), Instant::now());
        server.address = loop {
            match std::fs::read_to_string(&path) {
                Ok(text) if text.ends_with('\n') => break text.trim().to_owned(),
                _ => ensure!(began.elapsed() < Duration::from_secs(30), "the server does not listen"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Ok(server)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns the directory of the server, which is removed with it.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn client(&self) -> Result<BenchmarkClient> {
        BenchmarkClient::connect(&self.address)
    }

    /// Measures a round of callers, with the server's resource usage.
    pub(crate) fn round<C>(
        &self,
        callers: usize,
        mut caller: impl FnMut(BenchmarkClient, usize) -> Result<C>,
    ) -> Result<CellResult>
    where
        C: FnMut() -> Result<()> + Send,
    {
        self.watched(|| round(callers, |number| caller(self.client()?, number)))
    }

    /// Measures an action, with the server's resource usage.
    pub(crate) fn watched(&self, does: impl FnOnce() -> Result<CellResult>) -> Result<CellResult> {
        let watched = MeasuredProcess::begin(self.process())?;
        let cell = does()?;
        Ok(CellResult { cores: Some(watched.cores()?), memory_mib: Some(peak_mib(self.process())?), ..cell })
    }
}

impl Drop for BenchmarkServer {
    fn drop(&mut self) {
        // The process is not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
