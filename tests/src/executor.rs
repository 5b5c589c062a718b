//! The real program as a separate executor.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::rc::Rc;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::kubernetes::KubernetesApi;
use crate::launch::StartConditions;
use crate::server::end_all_under;
use crate::{PayloadProcess, ServerProcess, payloads, until};

/// Executor with its own directory. A drop removes the directory and all its processes.
pub struct ExecutorProcess {
    dir: Rc<TempDir>,
    child: Option<Child>,
    args: Vec<String>,
    data: PathBuf,
    launch: StartConditions,
}

impl ExecutorProcess {
    /// Starts an executor that drives `runtime` for the cluster `local` of a server.
    pub fn start(server: &ServerProcess, name: &str, runtime: &str) -> ExecutorProcess {
        let dir = tempfile::Builder::new().prefix("chancery-executor-").tempdir().expect("a directory");
        let dir = Rc::new(dir);
        ExecutorProcess::start_in(dir, server, name, runtime)
    }

    /// Starts an executor of the cluster `local` with these flags, the runtime among them.
    pub fn start_with(server: &ServerProcess, name: &str, flags: &[&str]) -> ExecutorProcess {
        let dir = tempfile::Builder::new().prefix("chancery-executor-").tempdir().expect("a directory");
        ExecutorProcess::start_at(Rc::new(dir), &server.url(), "local", name, flags)
    }

    /// Starts an executor in the server's directory: its processes are found with the server's.
    pub fn start_within(server: &ServerProcess, name: &str, runtime: &str) -> ExecutorProcess {
        let dir =
            tempfile::Builder::new().prefix("executor-").tempdir_in(server.directory()).expect("a directory");
        ExecutorProcess::start_in(Rc::new(dir), server, name, runtime)
    }

    /// Starts an executor in `directory`, for servers at these addresses.
    pub fn start_for(directory: &Path, servers: &str, name: &str, runtime: &str) -> ExecutorProcess {
        let dir = tempfile::Builder::new().prefix("executor-").tempdir_in(directory).expect("a directory");
        ExecutorProcess::start_at(Rc::new(dir), servers, "local", name, &[runtime])
    }

    /// Starts another executor with the same directory.
    #[must_use]
    pub fn start_alongside(&self, server: &ServerProcess, name: &str, runtime: &str) -> ExecutorProcess {
        ExecutorProcess::start_in(Rc::clone(&self.dir), server, name, runtime)
    }

    /// Starts an executor of pods for a cluster of a server, with its records in the namespace of that name.
    pub fn start_pods(
        server: &ServerProcess,
        name: &str,
        api: &KubernetesApi,
        cluster: &str,
    ) -> ExecutorProcess {
        let dir =
            tempfile::Builder::new().prefix("executor-").tempdir_in(server.directory()).expect("a directory");
        let kubeconfig = api.kubeconfig().to_str().expect("text");
        let runtime = ["--kubernetes", "--namespace", cluster, "--kubeconfig", kubeconfig];
        ExecutorProcess::start_at(Rc::new(dir), &server.url(), cluster, name, &runtime)
    }

    /// Starts an executor of virtual machines for a cluster of a server, with settings as environment variables, in the
    /// server's directory.
    pub fn start_machines(
        server: &ServerProcess,
        name: &str,
        cluster: &str,
        settings: &[(&str, String)],
    ) -> ExecutorProcess {
        let dir =
            tempfile::Builder::new().prefix("executor-").tempdir_in(server.directory()).expect("a directory");
        let env = settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let launch = StartConditions { env, ..StartConditions::default() };
        ExecutorProcess::start_as(launch, Rc::new(dir), &server.url(), cluster, name, &["--qemu"])
    }

    fn start_in(dir: Rc<TempDir>, server: &ServerProcess, name: &str, runtime: &str) -> ExecutorProcess {
        ExecutorProcess::start_at(dir, &server.url(), "local", name, &[runtime])
    }

    fn start_at(
        dir: Rc<TempDir>,
        servers: &str,
        cluster: &str,
        name: &str,
        runtime: &[&str],
    ) -> ExecutorProcess {
        ExecutorProcess::start_as(StartConditions::default(), dir, servers, cluster, name, runtime)
    }

    fn start_as(
        launch: StartConditions,
        dir: Rc<TempDir>,
        servers: &str,
        cluster: &str,
        name: &str,
        runtime: &[&str],
    ) -> ExecutorProcess {
        let words =
            [&["executor", "--server", servers, "--cluster", cluster, "--name", name], runtime].concat();
        let (args, data) = (words.into_iter().map(str::to_owned).collect(), dir.path().join("root"));
        let mut executor = ExecutorProcess { dir, child: None, args, data, launch };
        executor.start_again();
        executor
    }

    /// Starts the program again with the same directory.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let file = self.launch.stderr.clone().unwrap_or_else(|| self.dir().join("log"));
        let log = std::fs::File::options().create(true).append(true).open(file);
        let child = self
            .launch
            .command()
            .args(&self.args)
            .args(["--log-filter", "info", "--data-dir"])
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

    /// Returns the data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Sets another path of the data directory for the next start.
    pub fn set_data(&mut self, data: PathBuf) {
        assert!(self.child.is_none(), "it runs");
        self.data = data;
    }

    /// Sets the special conditions of the next start.
    pub fn set_launch(&mut self, launch: StartConditions) {
        assert!(self.child.is_none(), "it runs");
        self.launch = launch;
    }

    /// Whether the executor was started, and not ended here.
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Returns the exit status if the executor ended on its own.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().expect("it is ours")?;
        self.child = None;
        Some(status)
    }

    /// Returns the log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// Returns the running payloads that the executor started, in any epoch.
    pub fn payloads(&self) -> Vec<PayloadProcess> {
        payloads(self.dir())
    }

    fn pid(&self) -> Pid {
        let id = self.child.as_ref().expect("it runs").id();
        Pid::from_raw(i32::try_from(id).expect("a pid")).expect("a pid")
    }

    /// Returns the state of each thread of the executor, and where in the kernel it waits: `S futex_do_wait`.
    pub fn threads(&self) -> String {
        let Some(child) = &self.child else { return String::new() };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id()));
        let state = |task: std::fs::DirEntry| {
            let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let state = read("stat").rsplit(')').next().unwrap_or_default().trim().chars().next();
            format!("{} {}", state.unwrap_or('?'), read("wchan"))
        };
        tasks.into_iter().flatten().flatten().map(state).collect::<Vec<_>>().join(", ")
    }

    /// Suspends the executor, whatever it is doing.
    pub fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).expect("it can be stopped");
    }

    /// Resumes the executor.
    pub fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).expect("it can be woken");
    }

    /// Kills the executor alone, as a power cut would.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        self.launch.kill(&mut child);
    }

    /// Stops the executor gracefully. Returns the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        kill_process(self.pid(), Signal::TERM).expect("it can be asked");
        self.wait()
    }

    /// Waits for the end. Returns the exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        until("the executor ends", || child.try_wait().expect("it is ours")).code()
    }
}

impl Drop for ExecutorProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.launch.kill(&mut child);
        }
        end_all_under(self.dir());
    }
}
