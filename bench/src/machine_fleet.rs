//! Server with a cluster of virtual machines, and the processes of these on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use chancery_executor::process::{CgroupSetting, CgroupSupport, EndProof};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::server::{BenchmarkServer, FLEET};
use crate::stream::OutputStream;

/// Text that the guest writes when it is ready.
pub(crate) const READY: &str = "READY";
/// Command line of a guest that stops its processor after its first line of output.
pub(crate) const QUIET: &str = "do=h after=1";
/// Command line of a guest that writes ten lines of output a second.
pub(crate) const WRITING: &str = "";
/// Memory of a guest, and of the QEMU that runs it, in bytes.
const MEMORY: u64 = 112 << 20;
/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_mins(3);
/// Number of guests that boot at the same time.
const BATCH: usize = 10;

/// Server with a cluster of virtual machines on one node. Its guests end with it.
pub(crate) struct MachineFleet {
    pub(crate) server: BenchmarkServer,
    /// Directory of the guest's kernel.
    images: tempfile::TempDir,
}

/// Process of QEMU, and its supervisor.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct MachineProcesses {
    pub(crate) plan: String,
    pub(crate) incarnation: String,
    pub(crate) qemu: u32,
    pub(crate) supervisor: u32,
}

impl MachineFleet {
    pub(crate) fn start() -> Result<MachineFleet> {
        let images = crate::directory()?;
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/qemu/build");
        let output = Command::new(build).arg(images.path()).output().context("build the guest")?;
        ensure!(output.status.success(), "build the guest: {}", String::from_utf8_lossy(&output.stderr));
        let directory = images.path().to_str().context("a path that is text")?;
        let server = BenchmarkServer::start_with(&[("CHANCERY_QEMU_IMAGES", directory)])?;
        let fleet = MachineFleet { server, images };
        let cluster = json!({"spec": {"runtime": "qemu"}});
        fleet.ask("PUT", &format!("{FLEET}/clusters/machines"), &cluster.to_string())?;
        let total = json!({"cpu": 64_000, "memory": 64u64 << 30, "disk": 0});
        let node = json!({"spec": {"domain": "d-1", "resources": total}, "cluster": "machines"});
        fleet.ask("PUT", &format!("{FLEET}/nodes/node-1"), &node.to_string())?;
        // The executor has opened its session by then.
        fleet.plan("first", WRITING)?;
        fleet.deploy("first", 1)?;
        fleet.delete("first")?;
        Ok(fleet)
    }

    /// Sends a request on a new connection: the server closes one that is idle while others are measured.
    fn ask(&self, method: &str, path: &str, body: &str) -> Result<Value> {
        Ok(serde_json::from_slice(self.server.client()?.ask(method, path, body)?)?)
    }

    fn follow(&self, event: &str) -> Result<OutputStream> {
        OutputStream::open(&self.server.address, &format!("&types={event}"))
    }

    /// Creates a plan whose guests get this command line. Its operations need no manual approval.
    pub(crate) fn plan(&self, name: &str, cmdline: &str) -> Result<()> {
        let kinds = ["create", "start", "stop", "delete", "update"];
        let rule: BTreeMap<_, _> = kinds.into_iter().map(|kind| (kind, "automatic")).collect();
        let payload = json!({
            "name": "app", "resources": {"cpu": 100, "memory": MEMORY}, "vm": {"kernel": "guest", "cmdline": cmdline},
            "ready": {"serial": {"line": READY}},
        });
        let spec = json!({
            "namespace": "bench", "service": name, "cluster": "machines", "sharing": "allowed", "restart": "never",
            "payloads": [payload], "approval": rule, "timeouts": {"stop": 1000},
        });
        self.ask("PUT", &format!("{FLEET}/plans/{name}"), &json!({"spec": spec}).to_string()).map(drop)
    }

    /// Deploys a plan, and waits until the stream reports the deployment's end: all guests have written that they are ready.
    pub(crate) fn deploy(&self, plan: &str, count: usize) -> Result<Duration> {
        let mut ended = self.follow("deployment.ended.v1")?;
        let began = Instant::now();
        let body = json!({"name": format!("to-{count}"), "spec": {"count": count}}).to_string();
        self.ask("POST", &format!("{FLEET}/plans/{plan}/deployments"), &body)?;
        ended.next_event()?;
        let took = began.elapsed();
        let event: Value = serde_json::from_str(ended.data())?;
        ensure!(event["data"]["plan"] == plan && event["data"]["end"] == "completed", "{event}");
        Ok(took)
    }

    /// Deploys a plan in steps, so that few guests boot at the same time.
    pub(crate) fn deploy_many(&self, plan: &str, count: usize) -> Result<()> {
        for count in (BATCH..count).step_by(BATCH).chain([count]) {
            self.deploy(plan, count)?;
        }
        Ok(())
    }

    /// Deletes a plan with its replicas, and waits until none of its processes is left.
    pub(crate) fn delete(&self, plan: &str) -> Result<()> {
        let mut deleted = self.follow("plan.deleted.v1")?;
        self.ask("DELETE", &format!("{FLEET}/plans/{plan}?cascade=yes"), "")?;
        deleted.next_event()?;
        until("the end of all processes", || Ok(self.machines()?.iter().all(|machine| machine.plan != plan)))
    }

    /// Returns the state of an incarnation.
    pub(crate) fn state(&self, incarnation: &str) -> Result<String> {
        let row = self.ask("GET", &format!("{FLEET}/incarnations/{incarnation}"), "")?;
        row["state"].as_str().map(str::to_owned).with_context(|| format!("a row without a state: {row}"))
    }

    /// Returns all running guests.
    pub(crate) fn machines(&self) -> Result<BTreeSet<MachineProcesses>> {
        Ok(processes_in(self.server.directory())?.into_iter().filter_map(machine).collect())
    }
}

impl Drop for MachineFleet {
    fn drop(&mut self) {
        // The server starts no process from then on. It may have ended before.
        let _ = self.server.kill();
        end_all_in(self.server.directory());
        remove_groups(self.server.directory());
        debug_assert!(self.images.path().exists(), "guests need their kernel until they have ended");
    }
}

/// Waits until the condition holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !holds()? {
        ensure!(began.elapsed() < PATIENCE, "cannot wait longer for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns the processes whose working directory is in the directory: supervisors and guests.
fn processes_in(directory: &Path) -> Result<Vec<u32>> {
    let directory = directory.canonicalize()?;
    let numbers =
        std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_in = |process: &u32| {
        // The process may have ended.
        std::fs::read_link(format!("/proc/{process}/cwd")).is_ok_and(|path| path.starts_with(&directory))
    };
    Ok(numbers.filter(is_in).collect())
}

/// Returns the guest of a process; `None` if it is another process, or has ended.
fn machine(process: u32) -> Option<MachineProcesses> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // proc(5): the name is in parentheses; the state and the parent follow.
    let supervisor = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    let environment = std::fs::read_to_string(format!("/proc/{process}/environ")).ok()?;
    let value = |name: &str| {
        let mut pairs = environment.split('\0').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    let (plan, incarnation) = (value("CHANCERY_PLAN")?, value("CHANCERY_INCARNATION")?);
    Some(MachineProcesses { plan, incarnation, qemu: process, supervisor })
}

/// Kills a process. It may have ended.
pub(crate) fn kill(process: u32) {
    if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        let _ = kill_process(process, Signal::KILL);
    }
}

/// Whether the process has not ended. A process that has ended and was not reaped counts as ended.
pub(crate) fn is_alive(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

fn end_all_in(directory: &Path) {
    let began = Instant::now();
    while let Ok(left) = processes_in(directory)
        && !left.is_empty()
        && began.elapsed() < PATIENCE
    {
        left.into_iter().for_each(kill);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Removes the control groups of ended guests.
fn remove_groups(directory: &Path) {
    let executor = directory.join("executors/default/machines");
    let (Ok(CgroupSupport { proof: EndProof::Cgroup(parent), .. }), Ok(executor)) =
        (CgroupSupport::detect(&CgroupSetting::Detect), executor.metadata())
    else {
        return;
    };
    let groups = parent.join(format!("{:x}-{:x}", executor.dev(), executor.ino()));
    let began = Instant::now();
    // An ended process leaves its group a moment later.
    while groups.exists() && began.elapsed() < Duration::from_secs(5) {
        remove_group(&groups);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn remove_group(group: &PathBuf) {
    for below in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&below.path());
        }
    }
    // It fails while the group has processes.
    let _ = std::fs::remove_dir(group);
}
