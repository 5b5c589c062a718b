//! The real program as a server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{Client, payloads, until};

/// The program under test: `CHANCERY_BIN`, else beside the test's own.
pub fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("CHANCERY_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(Path::parent).expect("tests stand in target/<profile>/deps");
    let program = folder.join("chancery");
    assert!(program.exists(), "build the program first: cargo build -p chancery");
    program
}

/// A server on a free port, with a folder of its own that goes when it does, and every process that it started.
pub struct Server {
    data: TempDir,
    child: Option<Child>,
    address: String,
    listen: String,
    settings: Vec<(String, String)>,
}

impl Server {
    /// Starts one and waits until it is ready.
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    /// Starts one with settings, as variables of its environment.
    pub fn start_with(settings: &[(&str, &str)]) -> Server {
        let data = tempfile::Builder::new().prefix("chancery-").tempdir().expect("a temporary folder");
        let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let listen = "127.0.0.1:0".into();
        let mut server = Server { data, child: None, address: String::new(), listen, settings };
        server.start_again();
        server
    }

    /// From now on it is started again where it listens now, so that those who know its address find it.
    pub fn stay_at_this_address(&mut self) {
        self.listen.clone_from(&self.address);
    }

    /// Starts the program again over the same folder.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let address = self.data().join("address");
        let _ = std::fs::remove_file(&address);
        let log = std::fs::File::options().create(true).append(true).open(self.data().join("server.log"));
        let child = Command::new(program())
            .args(["serve", "--listen", &self.listen, "--data-dir"])
            .arg(self.data())
            .envs(self.settings.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("the program starts");
        self.child = Some(child);
        let found = until("the server writes its address", || {
            let exited = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(exited.is_none(), "the server ended: {exited:?}\n{}", self.log());
            std::fs::read_to_string(&address).ok().filter(|text| text.ends_with('\n'))
        });
        found.trim().clone_into(&mut self.address);
        let client = self.client();
        until("the server is ready", || (client.get("/readyz").status == 200).then_some(()));
    }

    /// Its folder.
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.data().join("server.log")).unwrap_or_default()
    }

    /// `http://host:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(&self.url())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Ends it as a power cut would: no chance to do anything.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it is ours");
    }

    /// Asks it to stop, and waits. Its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
        kill_process(pid, Signal::TERM).expect("it can be asked");
        child.wait().expect("it is ours").code()
    }

    /// Runs the program as a client of the server.
    pub fn run(&self, args: &[&str]) -> Output {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Command::new(program())
            .args(args)
            .env("CHANCERY_SERVER", self.url())
            .current_dir(examples)
            .stdin(Stdio::null())
            .output()
            .expect("the program runs")
    }

    /// The same, and its output; it must succeed.
    pub fn cli(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "chancery {}: {}\n{out}{err}", args.join(" "), output.status);
        out.into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        end_all_under(self.data());
    }
}

/// Ends keepers and payloads, which outlive their executor on purpose: a test must not leave any.
pub(crate) fn end_all_under(root: &Path) {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    for round in 0..100 {
        let mut left = payloads(&root).into_iter().map(|payload| payload.pid).collect::<Vec<_>>();
        left.extend(keepers(&root));
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

/// Keepers whose folder is under `root`.
fn keepers(root: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let dead = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']));
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        let keeper = words.any(|word| word == b"keeper");
        let under = words.any(|word| Path::new(&*String::from_utf8_lossy(word)).starts_with(root));
        keeper && under && !dead
    })
    .collect()
}
