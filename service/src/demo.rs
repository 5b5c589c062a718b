//! `chancery demo`: the main job from the beginning to the end, on real processes, with what happened and why.
//!
//! It does what a person would: it starts the program as a server and runs the program's own commands against it,
//! so that every line it shows can be typed. Whatever it started it ends, also when it is interrupted.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Whoever reads may have gone; what was started is ended all the same.
macro_rules! say {
    ($($text:tt)*) => {
        let _ = writeln!(std::io::stdout(), $($text)*);
    };
}

const NODES: &str = include_str!("../../examples/nodes.yaml");
const PLAN: &str = include_str!("../../examples/web-plan.yaml");
const DEPLOYMENTS: [&str; 3] = [
    include_str!("../../examples/deployment-1.yaml"),
    include_str!("../../examples/deployment-2.yaml"),
    include_str!("../../examples/deployment-3.yaml"),
];
const NOTHING: &str =
    "apiVersion: chancery/v1\nkind: Deployment\nmetadata: {name: demo-end}\nspec: {plan: web, count: 0}\n";

/// What the server says goes there, in its folder.
const LOG: &str = "server.log";

/// The plan of the example, with the program that runs this as its payload: whatever its name, and wherever it is.
fn plan(program: &Path) -> Result<String> {
    let program = program.to_str().context("the program's path is not text")?;
    let argv = format!("argv: [{}, \"demo-payload\"", serde_json::to_string(&program.replace('$', "$$"))?);
    let plan = PLAN.replacen("argv: [\"chancery\", \"demo-payload\"", &argv, 1);
    ensure!(plan != PLAN, "the example plan does not run the program");
    Ok(plan)
}

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to keep everything; a temporary folder if none is named.
    pub data: Option<PathBuf>,
    /// What is to become of it all in the end.
    pub end: End,
}

/// What becomes of everything in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Everything that was started is ended.
    Clean,
    /// It is left running.
    Keep,
}

/// Runs the demonstration.
pub fn run(options: &Options) -> Result<()> {
    let interrupted = watch_signals()?;
    let (data, temporary) = match &options.data {
        Some(data) => {
            std::fs::create_dir_all(data).with_context(|| format!("make {}", data.display()))?;
            // Two at once see the folder empty; only one makes the file.
            let used = data.read_dir().is_ok_and(|mut entries| entries.next().is_some());
            let first = std::fs::File::create_new(data.join(LOG)).is_ok();
            ensure!(
                !used && first,
                "{} is not empty: the demonstration wants a folder of its own",
                data.display()
            );
            (std::path::absolute(data)?, false)
        }
        None => (temporary()?, true),
    };
    let mut demo =
        Demo { data, program: std::env::current_exe()?, server: None, url: String::new(), interrupted };
    let mut told = demo.play();
    let interrupted = demo.interrupted.load(Ordering::Relaxed);
    if interrupted {
        told = Err(anyhow::anyhow!("interrupted"));
    }
    if told.is_ok() && options.end == End::Keep {
        demo.keep(temporary);
        return Ok(());
    }
    if let Err(error) = demo.end() {
        eprintln!(
            "chancery demo: could not end everything: {error:#}\nTo end what is left: chancery serve --data-dir {}, and \
             deploy a count of 0. What the server said is in {}",
            demo.data.display(),
            demo.log().display()
        );
        return told.and(Err(error));
    }
    if told.is_err() && !interrupted {
        eprintln!(
            "Everything that the demonstration started has ended. What the server said is in {}",
            demo.log().display()
        );
        return told;
    }
    std::fs::remove_file(demo.log()).with_context(|| format!("remove {}", demo.log().display()))?;
    if temporary {
        remove(&demo.data).with_context(|| format!("remove {}", demo.data.display()))?;
        eprintln!("Everything that the demonstration started has ended, and its folder is gone.");
    }
    told
}

/// Keepers that are just leaving may still write their last line.
fn remove(folder: &Path) -> std::io::Result<()> {
    for _ in 0..50 {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
    std::fs::remove_dir_all(folder)
}

fn temporary() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("chancery-demo-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Ctrl-C, SIGTERM and a closed terminal are noticed between steps and while waiting.
fn watch_signals() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (armed, ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let kinds =
                [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
            let signals: Result<Vec<_>, _> = kinds.into_iter().map(signal).collect();
            let Ok(signals) = signals else { return };
            let Ok([mut term, mut interrupt, mut hangup, mut quit]) = <[_; 4]>::try_from(signals) else {
                return;
            };
            let _ = armed.send(());
            loop {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = interrupt.recv() => {}
                    _ = hangup.recv() => {}
                    _ = quit.recv() => {}
                }
                flag.store(true, Ordering::Relaxed);
            }
        });
    });
    ready.recv().context("watch for signals")?;
    Ok(interrupted)
}

struct Demo {
    data: PathBuf,
    program: PathBuf,
    server: Option<Child>,
    url: String,
    interrupted: Arc<AtomicBool>,
}

impl Demo {
    fn play(&mut self) -> Result<()> {
        step("A server: journal, decider, projector, API, and an executor for processes.");
        self.start()?;
        say!("  listening on {}, everything it keeps is in {}", self.url, self.data.display());

        step("Four nodes in two update domains, and a plan that asks for approval.");
        self.apply(NODES)?;
        self.apply(&plan(&self.program)?)?;

        step("Deploy one instance: nothing runs yet, an operation waits for approval and shows its node.");
        self.apply(DEPLOYMENTS[0])?;
        self.wait_for("operations?plan=web&state=pending_approval", 1)?;
        self.show(&["get", "operations"])?;

        step("Approve it: a real process starts, and answers.");
        self.show(&["approve", "--plan", "web", "--all"])?;
        let first = self.running(1)?;
        self.show(&["get", "replicas", "-o", "wide"])?;
        self.visit(&first[0])?;

        step("Scale to three: two creates, and nothing for the one that is already right.");
        self.apply(DEPLOYMENTS[1])?;
        self.wait_for("operations?plan=web&state=pending_approval", 2)?;
        self.show(&["get", "operations", "-l", "state=pending_approval"])?;
        self.show(&["approve", "--plan", "web", "--all"])?;
        let before = pids(&self.running(3)?);

        step("Kill the server with SIGKILL: the processes live on, and the next server adopts them.");
        self.kill()?;
        let alive = before.iter().filter(|(_, pid)| Path::new(&format!("/proc/{pid}")).exists()).count();
        say!("  the server is dead; {alive} of {} processes are alive", before.len());
        self.start()?;
        let after = pids(&self.running(3)?);
        ensure!(before == after, "the processes are not the same: {before:?}, then {after:?}");
        self.show(&["get", "replicas", "-o", "wide"])?;
        say!("  the same process ids as before: {}", list(&after));

        step("Scale to one: the two surplus replicas are deleted, after approval.");
        self.apply(DEPLOYMENTS[2])?;
        self.wait_for("operations?plan=web&state=pending_approval", 2)?;
        self.show(&["approve", "--plan", "web", "--all"])?;
        self.wait_for("replicas?plan=web", 1)?;
        let last = self.running(1)?;
        let name = last[0]["name"].as_str().unwrap_or_default().to_owned();

        step("The whole story of one replica: what happened, who, why.");
        self.show(&["history", "replica", &name])?;

        step("The journal's chain holds: nothing was altered, nothing is missing.");
        let data = self.data.display().to_string();
        self.show(&["verify", &data])
    }

    /// What the server says.
    fn log(&self) -> PathBuf {
        self.data.join(LOG)
    }

    /// Starts the program as a server, and waits until it takes requests.
    fn start(&mut self) -> Result<()> {
        let address = self.data.join("address");
        let _ = std::fs::remove_file(&address);
        self.url.clear();
        let log = std::fs::File::options().create(true).append(true).open(self.log())?;
        let server = self
            .program()
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&self.data)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("start the server")?;
        self.server = Some(server);
        self.find()
    }

    /// Waits until the server that was started takes requests.
    fn find(&mut self) -> Result<()> {
        let address = self.data.join("address");
        let found = self.until("the server listens", |demo| {
            if let Some(status) = demo.server.as_mut().and_then(|server| server.try_wait().ok().flatten()) {
                let log = std::fs::read_to_string(demo.log()).unwrap_or_default();
                bail!("the server ended with {status}:\n{log}");
            }
            Ok(std::fs::read_to_string(&address).ok().filter(|text| text.ends_with('\n')))
        })?;
        self.url = format!("http://{}", found.trim());
        self.until("the server is ready", |demo| Ok(demo.get("/readyz").is_ok().then_some(())))
    }

    fn kill(&mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            server.kill().context("kill the server")?;
            server.wait().context("wait for the server")?;
        }
        Ok(())
    }

    /// The program, with nothing of this process's settings, and in a process group of its own: a terminal's Ctrl-C
    /// is for the demonstration to handle.
    fn program(&self) -> Command {
        let mut command = Command::new(&self.program);
        let settings = std::env::vars_os().map(|(name, _)| name);
        for name in settings.filter(|name| name.to_string_lossy().starts_with("CHANCERY_")) {
            command.env_remove(name);
        }
        command.args(["--config", "/dev/null"]).stdin(Stdio::null()).process_group(0);
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program();
        command.args(["--server", &self.url]).args(args);
        command
    }

    /// Runs one of the program's commands and shows it with what it printed.
    fn show(&self, args: &[&str]) -> Result<()> {
        self.check_interrupted()?;
        say!("  $ chancery {}", args.join(" "));
        let output = self.command(args).output().context("run the program")?;
        print_indented(&output.stdout);
        if !output.status.success() {
            bail!("chancery {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn apply(&self, manifests: &str) -> Result<()> {
        self.check_interrupted()?;
        let mut child = self
            .command(&["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run the program")?;
        child.stdin.take().context("its input")?.write_all(manifests.as_bytes())?;
        let output = child.wait_with_output()?;
        print_indented(&output.stdout);
        ensure!(output.status.success(), "apply: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    fn get(&self, path: &str) -> Result<String> {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(5))).build().into();
        Ok(agent.get(format!("{}{path}", self.url)).call()?.body_mut().read_to_string()?)
    }

    fn items(&self, query: &str) -> Result<Vec<Value>> {
        let body: Value = serde_json::from_str(&self.get(&format!("/v1/fleets/default/{query}"))?)?;
        Ok(body["items"].as_array().cloned().unwrap_or_default())
    }

    fn wait_for(&mut self, query: &str, count: usize) -> Result<Vec<Value>> {
        self.until(&format!("{count} of {query}"), |demo| {
            Ok(demo.items(query).ok().filter(|items| items.len() == count))
        })
    }

    fn running(&mut self, count: usize) -> Result<Vec<Value>> {
        self.until(&format!("{count} running replicas"), |demo| {
            let items = demo.items("replicas?plan=web&phase=running").unwrap_or_default();
            let ready = items.len() == count && items.iter().all(|replica| replica["ready"] == true);
            Ok(ready.then_some(items))
        })
    }

    /// Asks the replica's process who it is.
    fn visit(&self, replica: &Value) -> Result<()> {
        self.check_interrupted()?;
        let address =
            replica["processes"][0]["addresses"][0]["address"].as_str().context("the replica's address")?;
        say!("  $ curl http://{address}/");
        let mut answer = String::new();
        ureq::get(format!("http://{address}/")).call()?.body_mut().as_reader().read_to_string(&mut answer)?;
        print_indented(answer.as_bytes());
        Ok(())
    }

    fn until<T>(&mut self, what: &str, mut ready: impl FnMut(&mut Demo) -> Result<Option<T>>) -> Result<T> {
        let began = Instant::now();
        loop {
            self.check_interrupted()?;
            if let Some(found) = ready(self)? {
                return Ok(found);
            }
            ensure!(began.elapsed() < Duration::from_mins(1), "waited a minute for {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn check_interrupted(&self) -> Result<()> {
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    fn keep(mut self, temporary: bool) {
        let pid = self.server.take().map_or(0, |server| server.id());
        let data = self.data.display();
        say!("\nLeft running: server {pid}, everything it keeps in {data}. To look around:");
        say!("  export CHANCERY_SERVER={}", self.url);
        say!("  chancery describe plan web");
        say!("  chancery events --follow");
        say!("To end it, payloads first:");
        say!("  printf '{}' | chancery apply -f -", NOTHING.replace('\n', "\\n"));
        say!("  chancery wait plan/web --for operations.delete.pending_approval=1");
        say!("  chancery approve --plan web --all");
        say!("  chancery wait plan/web --for replicas.total=0");
        say!("  kill {pid}{}", if temporary { format!("; rm -r {data}") } else { String::new() });
    }

    /// Ends everything that was started: the payloads by the way they came, then the server.
    fn end(&mut self) -> Result<()> {
        self.interrupted.store(false, Ordering::Relaxed);
        if self.server.as_mut().is_some_and(|server| matches!(server.try_wait(), Ok(None))) {
            self.find()?;
        } else {
            self.server = None;
            self.start()?;
        }
        if !self.items("plans")?.is_empty() {
            self.apply_quietly(NOTHING)?;
            self.until("every replica is gone", |demo| {
                if !demo.items("operations?state=pending_approval")?.is_empty() {
                    let output = demo.command(&["approve", "--plan", "web", "--all"]).output()?;
                    tracing::debug!(status = %output.status, "approved what ends the demonstration");
                }
                Ok(demo.items("replicas")?.is_empty().then_some(()))
            })?;
        }
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let pid = i32::try_from(server.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .context("a process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("stop the server")?;
        server.wait().context("wait for the server")?;
        Ok(())
    }

    fn apply_quietly(&self, manifest: &str) -> Result<()> {
        let mut child = self
            .command(&["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        child.stdin.take().context("its input")?.write_all(manifest.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "end the replicas: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }
}

impl Drop for Demo {
    /// However the demonstration ends, its server does not outlive it; [`Demo::keep`] has let go of it before.
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn step(what: &str) {
    say!("\n# {what}");
}

fn print_indented(output: &[u8]) {
    let mut text = String::new();
    for line in String::from_utf8_lossy(output).lines() {
        let _ = writeln!(text, "  {line}");
    }
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Replica and process id of each, by name.
fn pids(replicas: &[Value]) -> Vec<(String, u64)> {
    let mut all: Vec<_> = replicas
        .iter()
        .map(|r| {
            (r["name"].as_str().unwrap_or("?").to_owned(), r["processes"][0]["pid"].as_u64().unwrap_or(0))
        })
        .collect();
    all.sort();
    all
}

fn list(pids: &[(String, u64)]) -> String {
    pids.iter().map(|(_, pid)| pid.to_string()).collect::<Vec<_>>().join(", ")
}
