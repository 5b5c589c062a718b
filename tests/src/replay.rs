//! The real program as a read-only server of a replayed journal.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{TestClient, program, until};

/// Read-only server on a free port. A drop kills it.
pub struct ReplayProcess {
    /// Directory of its log and its rows.
    directory: TempDir,
    child: Option<Child>,
    address: String,
}

impl ReplayProcess {
    /// Replays the journal of a data directory, and waits until it is served.
    pub fn start(data: &Path, args: &[&str]) -> ReplayProcess {
        let directory =
            tempfile::Builder::new().prefix("chancery-").tempdir().expect("a temporary directory");
        let log = std::fs::File::create(directory.path().join("log")).expect("a log");
        let rows = directory.path().join("rows");
        std::fs::create_dir(&rows).expect("a directory");
        let child = Command::new(program())
            .arg("replay")
            .arg(data)
            .args(["--listen", "127.0.0.1:0"])
            .args(args)
            .env("TMPDIR", rows)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let mut replay = ReplayProcess { directory, child: Some(child), address: String::new() };
        replay.address = until("the journal is served", || {
            let ended = replay.child.as_mut().and_then(|child| child.try_wait().expect("it is ours"));
            let log = replay.log();
            assert!(ended.is_none(), "the replay ended: {log}");
            log.lines().find_map(|line| Some(line.split_once("read-only, on ")?.1.to_owned()))
        });
        replay
    }

    /// Returns what was written to standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns a client of the server.
    pub fn client(&self) -> TestClient {
        TestClient::new(&self.address)
    }

    /// Runs the program as a client of the server.
    pub fn run(&self, args: &[&str]) -> Output {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut command = Command::new(program());
        command.args(args).env("CHANCERY_SERVER", &self.address).current_dir(examples);
        command.stdin(Stdio::null()).output().expect("the program runs")
    }

    /// Stops the server gracefully. Returns the exit code, and the number of entries that are left in its directory
    /// of temporary files.
    pub fn stop(mut self) -> (Option<i32>, usize) {
        let mut child = self.child.take().expect("it runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
        kill_process(pid, Signal::TERM).expect("it can be signalled");
        let code = child.wait().expect("it is ours").code();
        let left = self.directory.path().join("rows").read_dir().expect("its directory").count();
        (code, left)
    }
}

impl Drop for ReplayProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it is ours");
        }
    }
}
