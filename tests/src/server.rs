//! The real program as a server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::host::HostProcess;
use crate::launch::StartConditions;
use crate::processes::end_groups_under;
use crate::{TestClient, payloads, until};

/// Returns the program under test: `CHANCERY_BIN`, else that of the target directory.
pub fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("CHANCERY_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().expect("a test has a path");
    let directory = test.parent().and_then(Path::parent).expect("tests are in target/<profile>/deps");
    let program = directory.join("chancery");
    assert!(program.exists(), "build the program first: cargo build -p chancery");
    program
}

/// Server on a free port with its own directory. A drop removes the directory and all its processes.
pub struct ServerProcess {
    directory: TempDir,
    data: PathBuf,
    settings: Vec<(String, String)>,
    flags: Vec<String>,
    /// Special conditions of the next start, or of the last one while the server runs.
    launch: StartConditions,
    /// Soft and hard limit of open files, if not those of this process.
    files: Option<(u64, u64)>,
    /// File for standard error, if not the default in the server's directory.
    log: Option<PathBuf>,
    child: Option<Child>,
    address: String,
    listen: String,
}

/// Server that ended before it became ready.
#[derive(Debug)]
pub struct NotUp {
    /// Exit status of the server.
    pub status: ExitStatus,
    /// Log of the failed start.
    pub output: String,
}

impl ServerProcess {
    /// Starts a server and waits until it is ready.
    pub fn start() -> ServerProcess {
        ServerProcess::start_with(&[])
    }

    /// Starts a server with settings, as environment variables.
    pub fn start_with(settings: &[(&str, &str)]) -> ServerProcess {
        let mut server = ServerProcess::new();
        for (name, value) in settings {
            server.set(name, value);
        }
        server.start_again();
        server
    }

    /// Keeps the current address for later starts, for clients that know it.
    pub fn stay_at_this_address(&mut self) {
        self.listen.clone_from(&self.address);
    }

    /// Returns a server that is not started yet.
    pub fn new() -> ServerProcess {
        let directory =
            tempfile::Builder::new().prefix("chancery-").tempdir().expect("a temporary directory");
        let data = directory.path().to_owned();
        let listen = "127.0.0.1:0".into();
        let (settings, flags, launch) = (Vec::new(), Vec::new(), StartConditions::default());
        let (files, log, child, address) = (None, None, None, String::new());
        ServerProcess { directory, data, settings, flags, launch, files, log, child, address, listen }
    }

    /// Sets an environment variable, from the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Sets the soft and hard limit of open files, from the next start.
    pub fn limit_files(&mut self, soft: u64, hard: u64) {
        self.files = Some((soft, hard));
    }

    /// Adds a flag, from the next start.
    pub fn flag(&mut self, flag: &str) {
        self.flags.push(flag.to_owned());
    }

    /// Sets the file of the log, from the next start; [`ServerProcess::log`] does not read it.
    pub fn log_to(&mut self, path: &str) {
        self.log = Some(path.into());
    }

    fn command(&self) -> Command {
        let Some((soft, hard)) = self.files else { return self.launch.command() };
        let mut shell = Command::new("sh");
        let limited = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
        shell.args(["-c", &limited]).arg(program());
        shell
    }

    /// Creates and returns a new data directory in the server's directory.
    pub fn move_data(&mut self, directory: &str) -> PathBuf {
        assert!(self.child.is_none(), "it runs");
        self.data = self.directory.path().join(directory);
        std::fs::create_dir_all(&self.data).expect("a directory");
        self.data.clone()
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

    /// Starts the program again with the same directory.
    pub fn start_again(&mut self) {
        if let Err(NotUp { status, output }) = self.try_start_again() {
            panic!("the server ended: {status}\n{output}");
        }
    }

    /// Starts the program once with additional flags.
    pub fn start_with_flags(&mut self, flags: &[&str]) {
        if let Err(NotUp { status, output }) = self.try_start(flags) {
            panic!("the server ended: {status}\n{output}");
        }
    }

    /// Starts the program, which may refuse its directory.
    pub fn try_start_again(&mut self) -> Result<(), NotUp> {
        self.try_start(&[])
    }

    /// Starts the program with flags, which it may refuse.
    pub fn try_start(&mut self, flags: &[&str]) -> Result<(), NotUp> {
        assert!(self.child.is_none(), "it runs");
        let address = self.data().join("address");
        let _ = std::fs::remove_file(&address);
        let log_before = self.log().len();
        let usual = || self.directory.path().join("server.log");
        let file = self.launch.stderr.clone().or_else(|| self.log.clone()).unwrap_or_else(usual);
        let log = std::fs::File::options().create(true).append(true).open(file);
        let child = self
            .command()
            .args(["serve", "--listen", &self.listen, "--data-dir"])
            .arg(self.data())
            .args(&self.flags)
            .args(flags)
            .envs(self.settings.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("the program starts");
        self.child = Some(child);
        let found = until("the server writes its address or ends", || {
            if let Some(status) = self.ended() {
                return Some(Err(status));
            }
            let text = std::fs::read_to_string(&address).ok().filter(|text| text.ends_with('\n'));
            text.map(Ok)
        });
        let not_up =
            |server: &ServerProcess, status| NotUp { status, output: server.log().split_off(log_before) };
        match found {
            Ok(text) => text.trim().clone_into(&mut self.address),
            Err(status) => return Err(not_up(self, status)),
        }
        let client = self.client();
        let up = until("the server is ready or ends", || match self.ended() {
            Some(status) => Some(Err(status)),
            None => (client.get("/readyz").status == 200).then_some(Ok(())),
        });
        up.map_err(|status| not_up(self, status))
    }

    /// Whether the server was started, and not ended here.
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Returns the exit status if the server ended on its own.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().expect("it is ours")?;
        self.child = None;
        Some(status)
    }

    /// Returns the data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the directory of log and default data.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("server.log")).unwrap_or_default()
    }

    /// Returns the URL: `http://host:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns a client of the server.
    pub fn client(&self) -> TestClient {
        TestClient::new(&self.url())
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Kills the server, as a power cut would: without any cleanup.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        self.launch.kill(&mut child);
    }

    /// Stops the server gracefully. Returns the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        let mut child = self.child.take().expect("it runs");
        child.wait().expect("it is ours").code()
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a pid")).expect("a pid");
        kill_process(pid, signal).expect("it can be signalled");
    }

    /// Runs the program as a client of the server.
    pub fn run(&self, args: &[&str]) -> Output {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Command::new(program())
            .args(args)
            .env("CHANCERY_SERVER", self.url())
            // The contexts of the user who runs the tests have no effect.
            .env("CHANCERY_CONTEXTS", self.directory.path().join("contexts.yaml"))
            .current_dir(examples)
            .stdin(Stdio::null())
            .output()
            .expect("the program runs")
    }

    /// Runs a client that must succeed. Returns the output.
    pub fn cli(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "chancery {}: {}\n{out}{err}", args.join(" "), output.status);
        out.into_owned()
    }
}

impl Default for ServerProcess {
    fn default() -> ServerProcess {
        ServerProcess::new()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.launch.kill(&mut child);
        }
        end_all_under(self.directory());
    }
}

/// Ends supervisors and payloads, which outlive their executor on purpose, and removes their cgroups: a test
/// must leave none.
pub(crate) fn end_all_under(root: &Path) {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    end_processes_under(&root);
    end_groups_under(&root);
}

fn end_processes_under(root: &Path) {
    for round in 0..100 {
        let mut left = payloads(root).into_iter().map(|payload| payload.pid).collect::<Vec<_>>();
        left.extend(supervisors(root).into_iter().map(|(pid, _)| pid));
        if left.is_empty() {
            return;
        }
        for pid in left {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(10 * round));
    }
}

/// Returns supervisors of incarnations with directories under `root`, with the directory as given.
pub(crate) fn supervisors(root: &Path) -> Vec<(u32, PathBuf)> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let found = HostProcess::all().expect("/proc").into_iter().filter_map(|process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).ok()?;
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let at = words.iter().position(|word| word == "supervisor")?;
        let dir = PathBuf::from(words.get(at + 1)?.as_ref());
        let real = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        (dir.starts_with(&root) || real.starts_with(&root)).then_some((process.pid, dir))
    });
    found.collect()
}
