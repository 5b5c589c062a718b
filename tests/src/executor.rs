//! The real program as an executor of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::rc::Rc;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::launch::Launch;
use crate::server::end_all_under;
use crate::{Payload, Server, payloads, until};

/// An executor with a folder of its own that goes when it does, and every process that it started.
pub struct Executor {
    dir: Rc<TempDir>,
    child: Option<Child>,
    args: Vec<String>,
    data: PathBuf,
    launch: Launch,
}

impl Executor {
    /// Starts one that drives `runtime` for the cluster `local` of a server.
    pub fn start(server: &Server, name: &str, runtime: &str) -> Executor {
        let dir = tempfile::Builder::new().prefix("chancery-executor-").tempdir().expect("a folder");
        let dir = Rc::new(dir);
        Executor::start_in(dir, server, name, runtime)
    }

    /// The same, with its folder in that of the server: what it runs is found with what the server runs.
    pub fn start_within(server: &Server, name: &str, runtime: &str) -> Executor {
        let dir = tempfile::Builder::new().prefix("executor-").tempdir_in(server.home()).expect("a folder");
        Executor::start_in(Rc::new(dir), server, name, runtime)
    }

    /// The same, for servers at those addresses.
    pub fn start_for(home: &Path, servers: &str, name: &str, runtime: &str) -> Executor {
        let dir = tempfile::Builder::new().prefix("executor-").tempdir_in(home).expect("a folder");
        Executor::start_at(Rc::new(dir), servers, name, runtime)
    }

    /// Starts another over the same folder.
    #[must_use]
    pub fn start_beside(&self, server: &Server, name: &str, runtime: &str) -> Executor {
        Executor::start_in(Rc::clone(&self.dir), server, name, runtime)
    }

    fn start_in(dir: Rc<TempDir>, server: &Server, name: &str, runtime: &str) -> Executor {
        Executor::start_at(dir, &server.url(), name, runtime)
    }

    fn start_at(dir: Rc<TempDir>, servers: &str, name: &str, runtime: &str) -> Executor {
        let words = ["executor", "--server", servers, "--cluster", "local", "--name", name, runtime];
        let (args, data) = (words.map(str::to_owned).to_vec(), dir.path().join("root"));
        let mut executor = Executor { dir, child: None, args, data, launch: Launch::default() };
        executor.start_again();
        executor
    }

    /// Starts the program again over the same folder.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let file = self.launch.stderr.clone().unwrap_or_else(|| self.dir().join("log"));
        let log = std::fs::File::options().create(true).append(true).open(file);
        let child = self
            .launch
            .command()
            .args(&self.args)
            .args(["--log", "info", "--data-dir"])
            .arg(&self.data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("the program starts");
        self.child = Some(child);
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Names its data directory in another way from now on, or takes another one.
    pub fn set_data(&mut self, data: PathBuf) {
        assert!(self.child.is_none(), "it runs");
        self.data = data;
    }

    /// What is special about its next start.
    pub fn set_launch(&mut self, launch: Launch) {
        assert!(self.child.is_none(), "it runs");
        self.launch = launch;
    }

    /// Whether it was started, and not ended from here.
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// How it ended, if it did by its own decision.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().expect("it is ours")?;
        self.child = None;
        Some(status)
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// The payloads that it started, in any life, and that are alive.
    pub fn payloads(&self) -> Vec<Payload> {
        payloads(self.dir())
    }

    fn pid(&self) -> Pid {
        let id = self.child.as_ref().expect("it runs").id();
        Pid::from_raw(i32::try_from(id).expect("a pid")).expect("a pid")
    }

    /// Lets it sleep in the middle of whatever it does.
    pub fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).expect("it can be stopped");
    }

    /// Wakes it.
    pub fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).expect("it can be woken");
    }

    /// Ends it as a power cut would end it alone.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        self.launch.kill(&mut child);
    }

    /// Asks it to stop, and waits. Its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        kill_process(self.pid(), Signal::TERM).expect("it can be asked");
        self.wait()
    }

    /// Waits until it ends. Its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        until("the executor ends", || child.try_wait().expect("it is ours")).code()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.launch.kill(&mut child);
        }
        end_all_under(self.dir());
    }
}
