//! Measured program, as a process of its own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
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
    settings: Vec<(String, String)>,
}

impl BenchmarkServer {
    pub(crate) fn start() -> Result<BenchmarkServer> {
        BenchmarkServer::start_with(&[])
    }

    /// Starts a server with settings from the environment.
    pub(crate) fn start_with(settings: &[(&str, &str)]) -> Result<BenchmarkServer> {
        BenchmarkServer::prepared(settings, |_| Ok(()))
    }

    /// Starts a server with settings in a directory that `prepare` fills.
    pub(crate) fn prepared(
        settings: &[(&str, &str)],
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<BenchmarkServer> {
        let directory = crate::directory()?;
        prepare(directory.path())?;
        // As the server would create it.
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o700))?;
        let settings: Vec<_> =
            settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let child = spawn(directory.path(), &settings)?;
        let mut server = BenchmarkServer { child, address: String::new(), directory, settings };
        server.wait()?;
        Ok(server)
    }

    /// Waits until the server listens.
    fn wait(&mut self) -> Result<()> {
        let (path, began) = (self.directory.path().join("address"), Instant::now());
        self.address = loop {
            match std::fs::read_to_string(&path) {
                Ok(text) if text.ends_with('\n') => break text.trim().to_owned(),
                _ => ensure!(began.elapsed() < Duration::from_mins(3), "the server does not listen"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Ok(())
    }

    /// Kills the server. Its directory stays, and what its executors have started runs on.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        // The next server writes its own address.
        Ok(std::fs::remove_file(self.directory.path().join("address"))?)
    }

    /// Starts a killed server again, on another port, and waits until it listens.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.child = spawn(self.directory.path(), &self.settings)?;
        self.wait()
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

fn spawn(directory: &Path, settings: &[(String, String)]) -> Result<Child> {
    let program =
        std::env::var_os("CHANCERY_BIN").context("CHANCERY_BIN names the program: use bench/run")?;
    let child = Command::new(program)
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(directory)
        // One principal sends as much as the server can handle, on a fast disk above the default limit.
        .env("CHANCERY_LIMITS_WRITES_PER_SECOND", "10000000")
        .envs(settings.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    Ok(child)
}

impl Drop for BenchmarkServer {
    fn drop(&mut self) {
        // The process is not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
