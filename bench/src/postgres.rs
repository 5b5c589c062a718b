//! PostgreSQL in a directory of its own, reached by a socket there, every commit synced; and a message store.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::ROUND;
use crate::table::CellResult;

const SCHEMA: &str = include_str!("../peers/postgres/schema.sql");
const APPEND: &str = include_str!("../peers/postgres/append.sql");
/// Account of the server if the benchmark runs as root, which PostgreSQL refuses.
const ACCOUNT: &str = "postgres";

/// Running PostgreSQL server.
pub(crate) struct PostgresServer {
    child: Child,
    programs: PathBuf,
    directory: tempfile::TempDir,
}

impl PostgresServer {
    pub(crate) fn start() -> Result<PostgresServer> {
        let programs = programs()?;
        let directory = crate::directory()?;
        if rustix::process::getuid().is_root() {
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o711))?;
            succeed(Command::new("chown").arg(ACCOUNT).arg(directory.path()))?;
        }
        let data = directory.path().join("data");
        let init = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"];
        succeed(as_account(&programs.join("initdb")).args(init).arg("-D").arg(&data))?;
        let settings = [
            "fsync=on",
            "synchronous_commit=on",
            "full_page_writes=on",
            "listen_addresses=",
            "max_connections=300",
            "shared_buffers=256MB",
            // No checkpoint occurs in a round.
            "max_wal_size=8GB",
            "checkpoint_timeout=1h",
        ];
        let mut command = as_account(&programs.join("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(directory.path());
        for setting in settings {
            command.args(["-c", setting]);
        }
        let log = File::create(directory.path().join("log"))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut postgres = PostgresServer { child, programs, directory };
        postgres.wait()?;
        postgres.sql(SCHEMA)?;
        Ok(postgres)
    }

    fn wait(&mut self) -> Result<()> {
        let began = Instant::now();
        while !self.client("pg_isready").stdout(Stdio::null()).status()?.success() {
            if let Some(status) = self.child.try_wait()? {
                let log = std::fs::read_to_string(self.directory.path().join("log"))?;
                bail!("postgres ended with {status}:\n{log}");
            }
            ensure!(began.elapsed() < Duration::from_mins(1), "postgres does not get ready");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Returns the URL of the database.
    pub(crate) fn url(&self) -> String {
        format!("postgresql://postgres@localhost/postgres?host={}", self.directory.path().display())
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.args(["-U", "postgres", "-h"]).arg(self.directory.path());
        command
    }

    fn sql(&self, text: &str) -> Result<()> {
        succeed(self.client("psql").args(["-q", "-v", "ON_ERROR_STOP=1", "-c", text]))
    }

    /// Deletes all data, and completes the resulting work before the next round.
    pub(crate) fn empty(&self) -> Result<()> {
        self.sql("TRUNCATE message, events RESTART IDENTITY")?;
        self.sql("CHECKPOINT")
    }

    /// Measures callers that append 400 bytes to streams of their own, in `categories` categories.
    pub(crate) fn messages(&self, callers: usize, categories: usize) -> Result<CellResult> {
        self.empty()?;
        let directory = tempfile::tempdir()?;
        let script = directory.path().join("append.sql");
        std::fs::write(&script, APPEND)?;
        // pgbench counts in whole seconds.
        let seconds = ROUND.as_secs().max(1) + u64::from(ROUND.subsec_nanos() > 0);
        let out = self
            .client("pgbench")
            .args(["--no-vacuum", "--protocol=prepared", "--jobs=2", "--log"])
            .arg(format!("--log-prefix={}", directory.path().join("calls").display()))
            .args([format!("--client={callers}"), format!("--time={seconds}")])
            .arg(format!("--define=categories={categories}"))
            .args(["--define=version=0".to_owned(), format!("--define=data={}", data())])
            .arg("--file")
            .arg(&script)
            .arg("postgres")
            .output()?;
        let output = String::from_utf8_lossy(&out.stdout);
        ensure!(out.status.success(), "pgbench: {}{output}", String::from_utf8_lossy(&out.stderr));
        let rate =
            output.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        let rate = rate.with_context(|| format!("pgbench reports no rate: {output}"))?;
        Ok(CellResult { rate, ..CellResult::of(calls(directory.path())?, ROUND) })
    }
}

/// Returns an event's body of 400 bytes.
fn data() -> String {
    format!(r#"{{"text":"{}"}}"#, "x".repeat(389))
}

/// Returns the times of all calls, as logged by pgbench.
fn calls(directory: &Path) -> Result<Vec<Duration>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with("calls") {
            continue;
        }
        for line in std::fs::read_to_string(entry.path())?.lines() {
            // Client, number, microseconds, and more.
            let micros = line.split(' ').nth(2).with_context(|| format!("read {line:?}"))?;
            all.push(Duration::from_micros(micros.parse()?));
        }
    }
    Ok(all)
}

/// Returns the directory of PostgreSQL's programs: Debian does not put them into the path.
fn programs() -> Result<PathBuf> {
    let has_all =
        |directory: &Path| ["initdb", "postgres", "pgbench"].iter().all(|p| directory.join(p).exists());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<_> = std::env::split_paths(&path).collect();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        directories.extend(versions.filter_map(|version| Some(version.ok()?.path().join("bin"))));
    }
    let found = directories.into_iter().find(|directory| has_all(directory));
    found.context("find PostgreSQL's initdb, postgres and pgbench: apt-get install postgresql")
}

/// Returns a command of the program, under another account if this is root.
fn as_account(program: &Path) -> Command {
    if !rustix::process::getuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", ACCOUNT, "--regid", ACCOUNT, "--clear-groups"]).arg(program);
    command
}

fn succeed(command: &mut Command) -> Result<()> {
    let done = command.output().with_context(|| format!("start {}", command.get_program().display()))?;
    let output = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "{} ended with {}: {output}",
        command.get_program().display(),
        done.status
    );
    Ok(())
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // A fast stop: its processes must end before its directory is removed.
        if let Ok(process) = i32::try_from(self.child.id())
            && let Some(process) = rustix::process::Pid::from_raw(process)
        {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::INT);
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_400_bytes() {
        assert_eq!(data().len(), 400);
        assert!(serde_json::from_str::<serde_json::Value>(&data()).is_ok());
    }

    #[test]
    fn the_log_of_calls_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("calls.1"), "0 1 250 0 1795280009 1\n1 1 300 0 1795280009 2\n")
            .expect("write");
        std::fs::write(directory.path().join("append.sql"), "SELECT 1").expect("write");
        let calls = calls(directory.path()).expect("read");
        assert_eq!(calls.iter().map(Duration::as_micros).collect::<Vec<_>>(), [250, 300]);
    }
}
