//! `chancery demo`: the main workflow from start to end, on real processes, with events and causes.
//!
//! The demonstration starts the program as a server and runs the program's own commands against it. An
//! operator can type every line it shows. Everything it started is ended, also on interruption.

mod stage;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use chancery_cli::note;
use chancery_executor::process::remove_directory;
use serde_json::Value;

/// Prints a line and ignores errors: if the reader has left, everything that was started must still be ended.
macro_rules! say {
    ($($text:tt)*) => {
        let _ = writeln!(std::io::stdout(), $($text)*);
    };
}
use say;

const NODES: &str = include_str!("../../examples/nodes.yaml");
const PLAN: &str = include_str!("../../examples/web-plan.yaml");
const DEPLOYMENTS: [&str; 4] = [
    include_str!("../../examples/deployment-1.yaml"),
    include_str!("../../examples/deployment-2.yaml"),
    include_str!("../../examples/deployment-3.yaml"),
    include_str!("../../examples/deployment-4.yaml"),
];
const NOTHING: &str =
    "apiVersion: chancery/v1\nkind: Deployment\nmetadata: {name: demo-end}\nspec: {plan: web, count: 0}\n";

/// Name of the file for the server's output, in the directory of the demonstration.
const LOG: &str = "server.log";

/// Returns the example plan with this program as its payload, whatever the name and path of the program.
fn plan(program: &Path) -> Result<String> {
    let program = program.to_str().context("cannot start demonstration: path of the program is not UTF-8")?;
    let argv = format!("argv: [{}, \"demo-payload\"", serde_json::to_string(&program.replace('$', "$$"))?);
    let plan = PLAN.replacen("argv: [\"chancery\", \"demo-payload\"", &argv, 1);
    ensure!(plan != PLAN, "cannot adapt example plan: it does not run the program");
    Ok(plan)
}

/// Handling of the server and its data after the demonstration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DemoCleanup {
    /// Ends everything that was started.
    Clean,
    /// Leaves everything running.
    Keep,
}

/// Runs the demonstration, with its data in a directory, or else in a temporary one.
pub fn run(directory: Option<&Path>, end: DemoCleanup) -> Result<()> {
    let interrupted = watch_signals()?;
    let (data, temporary) = match directory {
        Some(data) => {
            std::fs::create_dir_all(data)
                .with_context(|| format!("cannot create directory {}", data.display()))?;
            // Two concurrent demonstrations see the directory empty; only one creates the file.
            let used = data.read_dir().is_ok_and(|mut entries| entries.next().is_some());
            let first = std::fs::File::create_new(data.join(LOG)).is_ok();
            ensure!(!used && first, "cannot use directory {}: must be empty", data.display());
            (std::path::absolute(data)?, false)
        }
        None => (temporary()?, true),
    };
    let mut demo =
        DemoRun { data, program: std::env::current_exe()?, server: None, url: String::new(), interrupted };
    let mut result = demo.play();
    let interrupted = demo.interrupted.load(Ordering::Relaxed);
    if interrupted {
        result = Err(anyhow::anyhow!("cannot continue demonstration: interrupted"));
    }
    if result.is_ok() && end == DemoCleanup::Keep {
        demo.keep(temporary);
        return Ok(());
    }
    if let Err(error) = demo.end() {
        note!(
            "chancery demo: cannot end everything: {error:#}\nTo end the rest: chancery serve --data-dir {}, then deploy a \
             count of 0. The server log is {}",
            demo.data.display(),
            demo.log().display()
        );
        return result.and(Err(error));
    }
    if result.is_err() && !interrupted {
        note!(
            "Everything that the demonstration started has ended. The server log is {}",
            demo.log().display()
        );
        return result;
    }
    std::fs::remove_file(demo.log()).with_context(|| format!("cannot remove {}", demo.log().display()))?;
    if temporary {
        remove(&demo.data).with_context(|| format!("cannot remove {}", demo.data.display()))?;
        note!("Everything that the demonstration started has ended, and its directory is removed.");
    }
    result
}

/// Removes the directory. Supervisors that are just ending may still write their last line.
fn remove(directory: &Path) -> std::io::Result<()> {
    for _ in 0..50 {
        match remove_directory(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
    remove_directory(directory)
}

fn temporary() -> Result<PathBuf> {
    let directory = std::env::temp_dir().join(format!("chancery-demo-{}", std::process::id()));
    std::fs::create_dir(&directory)
        .with_context(|| format!("cannot create directory {}", directory.display()))?;
    Ok(directory)
}

/// Detects Ctrl-C, SIGTERM and a closed terminal, between steps and while waiting.
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
            let [Ok(mut term), Ok(mut interrupt), Ok(mut hangup), Ok(mut quit)] = kinds.map(signal) else {
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
    ready.recv().context("cannot watch signals")?;
    Ok(interrupted)
}

struct DemoRun {
    data: PathBuf,
    program: PathBuf,
    server: Option<Child>,
    url: String,
    interrupted: Arc<AtomicBool>,
}

impl DemoRun {
    fn play(&mut self) -> Result<()> {
        step("A server: journal, decider, projector, API, and an executor for processes.");
        self.start()?;
        say!("  listening on {}, data in {}", self.url, self.data.display());

        step("Four nodes in two update domains, and a plan that requires approval.");
        self.apply(NODES)?;
        self.apply(&plan(&self.program)?)?;

        step("Deploy one replica: nothing runs yet; an operation waits for approval and shows its node.");
        self.apply(DEPLOYMENTS[0])?;
        self.wait_for("operations?plan=web&state=pending_approval", 1)?;
        self.show(&["get", "operations"])?;

        step("Approve it: a real process starts, and answers.");
        self.show(&["approve", "--plan", "web", "--all"])?;
        let first = self.running(1)?;
        self.show(&["get", "replicas", "-o", "wide"])?;
        self.visit(&first[0])?;

        step("Scale to three: two operations create replicas; the existing one needs no change.");
        self.apply(DEPLOYMENTS[1])?;
        self.wait_for("operations?plan=web&state=pending_approval", 2)?;
        self.show(&["get", "operations", "--filter", "state=pending_approval"])?;
        self.show(&["approve", "--plan", "web", "--all"])?;
        self.running(3)?;

        step(
            "A new version: replicas are updated in turn; each new incarnation is ready before the old one is stopped.",
        );
        self.apply(DEPLOYMENTS[2])?;
        self.wait_for("operations?plan=web&state=pending_approval", 3)?;
        self.show(&["get", "operations", "--filter", "state=pending_approval"])?;
        self.show(&["approve", "--plan", "web", "--all"])?;
        self.show(&["wait", "deployment/web/deployment-3", "--for", "state=completed"])?;
        let before = self.running(3)?;
        self.visit(&before[0])?;
        let before = pids(&before);

        step("Kill the server with SIGKILL: the processes continue, and the next server adopts them.");
        self.kill()?;
        let alive = before.iter().filter(|(_, pid)| Path::new(&format!("/proc/{pid}")).exists()).count();
        say!("  the server is dead; {alive} of {} processes are alive", before.len());
        self.start()?;
        let after = pids(&self.running(3)?);
        ensure!(before == after, "cannot adopt processes: expected {before:?}, found {after:?}");
        self.show(&["get", "replicas", "-o", "wide"])?;
        say!("  the same process ids as before: {}", list(&after));

        step("Scale to one: the two surplus replicas are deleted, after approval.");
        self.apply(DEPLOYMENTS[3])?;
        self.wait_for("operations?plan=web&state=pending_approval", 2)?;
        self.show(&["approve", "--plan", "web", "--all"])?;
        self.wait_for("replicas?plan=web", 1)?;
        let last = self.running(1)?;
        let name = last[0]["name"].as_str().unwrap_or_default().to_owned();
        self.move_and_restart(&name)?;

        step("The history of one replica: what happened, who requested it, and why.");
        self.show(&["history", "replica", &name])?;

        step("The journal's chain is intact: no record was altered, none is missing.");
        let data = self.data.display().to_string();
        self.show(&["verify", &data])
    }

    /// Moves the last replica to another node, and restarts it there.
    fn move_and_restart(&mut self, name: &str) -> Result<()> {
        step("Move it to another node: the incarnation there is ready before the old one is stopped.");
        self.show(&["relocate", name])?;
        self.approve(name, "relocate")?;
        self.show(&["get", "replicas", "-o", "wide"])?;

        step("Restart it: its incarnation ends, then another one replaces it.");
        self.show(&["restart", name])?;
        self.approve(name, "restart")?;
        let again = self.running(1)?;
        self.visit(&again[0])
    }

    /// Approves the pending operations of the replica, and waits until they are completed.
    fn approve(&mut self, name: &str, kind: &str) -> Result<()> {
        let of = |state: &str| format!("operations?replica={name}&kind={kind}&state={state}");
        self.wait_for(&of("pending_approval"), 1)?;
        self.show(&["approve", "--replica", name, "--all"])?;
        self.wait_for(&of("succeeded"), 1)?;
        Ok(())
    }
}

impl Drop for DemoRun {
    /// The server never outlives the demonstration, unless [`DemoRun::keep`] has released it.
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

/// Returns name and process id of each replica, by name.
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
