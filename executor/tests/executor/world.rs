//! Worlds for tests: a root of real processes that cleans up after itself, and nodes in memory.

use std::collections::BTreeMap;
use std::future::Future;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chancery_events::fact::CommandEffect;
use chancery_events::id::{IncarnationId, Lineage, ObjectId, Position, VolumeId};
use chancery_events::observation::{ObjectReport, ObservedState};
use chancery_events::protocol::{
    Command, CommandStatus, IncarnationPayload, IncarnationSpec, ObjectSpec, RunLabels,
};
use chancery_events::spec::{
    ExecSpec, PayloadPort, PortProtocol, ProbeTiming, ReadinessProbe, RestartPolicy,
};
use chancery_executor::Orchestrator;
use chancery_executor::process::{
    CgroupSetting, CgroupSupport, EndProof, OutputLimits, ProcessConfig, ProcessOrchestrator, QemuSettings,
    SupervisorProgram,
};
use chancery_executor::reconcile::ObjectTarget;
use chancery_executor::simulated::{FaultRules, SimulatedOrchestrator, SimulatedWorld};
use serde_json::json;

use super::conformance::{self, ApiAccess, GuestSupport, OrchestratorUnderTest, OutputAccess, TestBehaviour};

/// Time limit; long, because without control groups, orphans of another test delay the proof of an end.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

pub(crate) fn id(position: u64) -> IncarnationId {
    IncarnationId::issue(Lineage::from_random(42), Position::new(position))
}

pub(crate) fn config(root: &Path) -> ProcessConfig {
    ProcessConfig {
        root: root.to_owned(),
        program: SupervisorProgram {
            program: std::env::current_exe().unwrap(),
            supervisor_args: vec!["as-supervisor".into()],
            trampoline_args: vec!["as-trampoline".into()],
        },
        output: OutputLimits::default(),
        cgroup: CgroupSetting::Detect,
        files: None,
        qemu: None,
        boot: None,
    }
}

pub(crate) fn payload(name: &str, processes: u16, argv: &[&str]) -> IncarnationPayload {
    IncarnationPayload {
        name: name.parse().unwrap(),
        processes,
        cpu: None,
        memory: None,
        disk: None,
        ports: vec![],
        coordinates: BTreeMap::new(),
        run: Some(ExecSpec {
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            env: BTreeMap::new(),
        }),
        container: None,
        vm: None,
        ready: None,
        alive: None,
        mounts: vec![],
    }
}

pub(crate) fn spec(payloads: Vec<IncarnationPayload>) -> IncarnationSpec {
    let name = |name: &str| name.parse().unwrap();
    IncarnationSpec {
        replica: "web-1".parse().unwrap(),
        plan: "web".parse().unwrap(),
        node: name("n1"),
        restart: RestartPolicy::OnFailure,
        labels: Box::new(RunLabels {
            namespace: "ns".parse().unwrap(),
            service: "web".parse().unwrap(),
            labels: BTreeMap::new(),
            deployment: "d1".parse().unwrap(),
            domain: None,
            zone: None,
            node_labels: None,
        }),
        payloads,
    }
}

/// Writes both copies of a state file, as the executor does.
pub(crate) fn write_state(path: &Path, value: &serde_json::Value) {
    let json = value.to_string();
    let checksum = crc32c::crc32c(format!("1\n{json}").as_bytes());
    for copy in [path.to_owned(), path.with_extension("copy")] {
        std::fs::write(copy, format!("chancery-record 1 {checksum:08x}\n{json}")).unwrap();
    }
}

pub(crate) fn sleeper(processes: u16) -> IncarnationSpec {
    spec(vec![payload("web", processes, &["sleep", "3600"])])
}

pub(crate) fn command(
    object: impl Into<ObjectId>,
    revision: u32,
    effect: CommandEffect,
    spec: &(impl Clone + Into<ObjectSpec>),
) -> Command {
    Command {
        object: object.into(),
        revision,
        attempt: 1,
        status: CommandStatus::Pending,
        effect,
        grace: Duration::from_secs(20),
        spec: spec.clone().into(),
        traceparent: None,
    }
}

pub(crate) async fn until(
    orchestrator: &impl Orchestrator,
    id: impl Into<ObjectId>,
    what: &str,
    is: impl Fn(&ObjectReport) -> bool,
) -> ObjectReport {
    let id = id.into();
    let mut last = None;
    let found = tokio::time::timeout(PATIENCE, async {
        let mut reports = orchestrator.list().await.unwrap();
        loop {
            for report in reports.into_iter().filter(|report| report.object == id) {
                if is(&report) {
                    return report;
                }
                last = Some(report);
            }
            reports = orchestrator.changes(100).await.unwrap();
        }
    });
    match found.await {
        Ok(report) => report,
        Err(late) => panic!("{what}: not seen of {id} ({late}), but {last:?}"),
    }
}

pub(crate) fn is_ready(report: &ObjectReport) -> bool {
    matches!(report.observed, ObservedState::Ready { .. })
}

pub(crate) fn is_ended(report: &ObjectReport) -> bool {
    matches!(report.observed, ObservedState::Ended { .. })
}

pub(crate) fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Root whose processes are killed on drop.
pub(crate) struct TestRoot(tempfile::TempDir);

impl TestRoot {
    pub(crate) fn new() -> TestRoot {
        TestRoot(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn incarnation_directory(&self, id: IncarnationId) -> PathBuf {
        self.path().join("nodes/n1").join(id.to_string())
    }

    pub(crate) fn volume(&self, id: VolumeId) -> PathBuf {
        self.path().join("volumes").join(id.to_string())
    }

    pub(crate) async fn open(&self) -> ProcessOrchestrator {
        ProcessOrchestrator::open(config(self.path())).await.unwrap()
    }

    /// Returns the pids of living payloads: their working directory is under the root.
    pub(crate) fn payloads(&self) -> Vec<i32> {
        processes()
            .filter(|pid| {
                let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
                cwd.starts_with(self.path()) && cwd.ends_with("work") && !is_trampoline(*pid)
            })
            .collect()
    }

    pub(crate) fn payloads_of(&self, id: IncarnationId) -> Vec<i32> {
        let mine = |pid: &i32| {
            std::fs::read_link(format!("/proc/{pid}/cwd"))
                .unwrap_or_default()
                .starts_with(self.incarnation_directory(id))
        };
        self.payloads().into_iter().filter(mine).collect()
    }

    pub(crate) fn supervisors(&self) -> Vec<i32> {
        let root = self.path().to_str().unwrap().to_owned();
        processes().filter(|pid| command_line(*pid).contains(&format!("as-supervisor\0{root}"))).collect()
    }

    pub(crate) fn trampolines(&self) -> usize {
        let cwd = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        processes().filter(|pid| cwd(pid).starts_with(self.path()) && is_trampoline(*pid)).count()
    }
}

impl TestRoot {
    /// Returns the control group of the executor over this root, if this host has groups.
    pub(crate) fn groups(&self) -> Option<PathBuf> {
        let EndProof::Cgroup(parent) = CgroupSupport::detect(&CgroupSetting::Detect).unwrap().proof else {
            return None;
        };
        let root = std::fs::metadata(self.path()).unwrap();
        Some(parent.join(format!("{:x}-{:x}", root.dev(), root.ino())))
    }
}

impl Drop for TestRoot {
    fn drop(&mut self) {
        self.end_processes();
        // Processes that their executor did not end, and that no search finds.
        let Some(groups) = self.groups().filter(|groups| groups.exists()) else { return };
        let _ = std::fs::write(groups.join("cgroup.kill"), "1");
        for _ in 0..1000 {
            for group in std::fs::read_dir(&groups).into_iter().flatten().flatten() {
                let _ = std::fs::remove_dir(group.path());
            }
            if std::fs::remove_dir(&groups).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl TestRoot {
    fn end_processes(&self) {
        // Until nothing is left: a supervisor may be about to start a process, and so may a trampoline.
        for _ in 0..1000 {
            let left: Vec<i32> = self.supervisors().into_iter().chain(self.payloads()).collect();
            if left.is_empty() && self.trampolines() == 0 {
                return;
            }
            for pid in left {
                kill(pid, rustix::process::Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub(crate) fn kill(pid: i32, signal: rustix::process::Signal) {
    let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal);
}

fn processes() -> impl Iterator<Item = i32> {
    let all = std::fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn command_line(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

fn is_trampoline(pid: i32) -> bool {
    command_line(pid).contains("as-trampoline")
}

/// Returns a spec of listening processes. The first stops listening after one connection, of its readiness
/// probe.
fn one_closes(processes: u16) -> IncarnationSpec {
    let script = "
import os, socket, sys, time
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
if os.environ['CHANCERY_PROCESS'] == '0':
    server.accept()
    server.close()
time.sleep(3600)
";
    probed(processes, script)
}

/// Returns a spec of a Python program that receives a port, with readiness and liveness probes of that port.
pub(crate) fn probed(processes: u16, script: &str) -> IncarnationSpec {
    let probe = |failure_threshold| ReadinessProbe::Tcp {
        port: "http".parse().unwrap(),
        timing: ProbeTiming { period: 100, failure_threshold, ..ProbeTiming::default() },
    };
    let mut payload = payload("web", processes, &["python3", "-c", script, "${port.http}"]);
    payload.ports =
        vec![PayloadPort { name: "http".parse().unwrap(), protocol: PortProtocol::Tcp, port: 80 }];
    // Readiness is seen, however slow this machine is.
    payload.ready = Some(probe(50));
    payload.alive = Some(probe(2));
    spec(vec![payload])
}

impl TestRoot {
    /// Writes the files of an executor's directory for a command, by their names.
    pub(crate) fn record(&self, command: &Command, qemu: Option<&QemuSettings>) {
        let order = ObjectTarget::of(command);
        let program = config(self.path()).program;
        let (directory, name, record) = match (command.object, &command.spec) {
            (ObjectId::Incarnation(id), ObjectSpec::Incarnation(spec)) => {
                let output = OutputLimits::default();
                let volumes = self.path().join("volumes");
                let record = json!({
                    "incarnation": id, "order": order, "spec": spec, "program": program, "output": output, "volumes": volumes,
                    "qemu": qemu,
                });
                (self.incarnation_directory(id), "spec.json", record)
            }
            (ObjectId::Volume(id), ObjectSpec::Volume(spec)) => {
                let form = if qemu.is_some() { "disk" } else { "directory" };
                let record =
                    json!({"volume": id, "order": order, "spec": spec, "form": form, "phase": "accepted"});
                (self.volume(id), "volume.json", record)
            }
            (object, spec) => panic!("{object} does not match {spec:?}"),
        };
        std::fs::create_dir_all(&directory).unwrap();
        write_state(&directory.join(name), &record);
    }
}

pub(crate) struct RealProcesses(pub(crate) TestRoot);

impl OrchestratorUnderTest for RealProcesses {
    type Orchestrator = ProcessOrchestrator;

    async fn open(&self) -> ProcessOrchestrator {
        self.0.open().await
    }

    fn spec(&self, behaves: TestBehaviour, processes: u16) -> IncarnationSpec {
        match behaves {
            TestBehaviour::Stays => sleeper(processes),
            TestBehaviour::EndsWith(code) => {
                let script = format!("test $CHANCERY_PROCESS = 0 && exit {code}; exec sleep 3600");
                spec(vec![payload("web", processes, &["sh", "-c", &script.replace('$', "$$")])])
            }
            TestBehaviour::CannotStart => spec(vec![payload("web", processes, &["/no/such/program"])]),
            TestBehaviour::StopsAnswering => one_closes(processes),
            TestBehaviour::PowersOff | TestBehaviour::Resets => panic!("a process is no guest"),
            TestBehaviour::Writes => {
                let script = "echo oh >&2; echo one; sleep 0.1; echo two; exec sleep 3600";
                spec(vec![payload("web", processes, &["sh", "-c", script])])
            }
        }
    }

    fn running(&self, id: IncarnationId) -> usize {
        self.0.payloads_of(id).len()
    }

    fn holds(&self, volume: VolumeId) -> bool {
        let directory = self.0.volume(volume);
        ["data", "data.new", "doomed"].iter().any(|name| directory.join(name).exists())
    }

    fn lose(&self, volume: VolumeId) {
        std::fs::remove_dir(self.0.volume(volume).join("data")).unwrap();
    }

    fn output(&self) -> OutputAccess {
        OutputAccess::Kept
    }

    fn guests(&self) -> GuestSupport {
        GuestSupport::None
    }

    fn crash_after_record(&self, command: &Command) {
        self.0.record(command, None);
    }

    fn set_api(&self, _api: ApiAccess) -> bool {
        false
    }

    fn plant_foreign_things(&self) {
        let node = self.0.path().join("nodes/n1");
        std::fs::create_dir_all(node.join("someone-elses")).unwrap();
        std::fs::write(node.join("someone-elses/spec.json"), "{}").unwrap();
        std::fs::create_dir_all(node.join(id(1_000_000).to_string())).unwrap();
        std::fs::write(node.join(id(1_000_000).to_string()).join("spec.json"), "not json").unwrap();
        std::fs::write(node.join("a-file"), "x").unwrap();
        let volumes = self.0.path().join("volumes");
        std::fs::create_dir_all(volumes.join("someone-elses/data")).unwrap();
        std::fs::write(volumes.join("someone-elses/data/file"), "x").unwrap();
    }

    fn check_foreign_things(&self) {
        let node = self.0.path().join("nodes/n1");
        assert_eq!(std::fs::read(node.join("someone-elses/spec.json")).unwrap(), b"{}");
        let broken = node.join(id(1_000_000).to_string());
        assert_eq!(std::fs::read(broken.join("spec.json")).unwrap(), b"not json");
        assert_eq!(std::fs::read_dir(broken).unwrap().count(), 1, "no file was added");
        assert_eq!(std::fs::read(node.join("a-file")).unwrap(), b"x");
        let theirs = self.0.path().join("volumes/someone-elses/data/file");
        assert_eq!(std::fs::read(theirs).unwrap(), b"x");
    }
}

pub(crate) async fn processes_conform() {
    conformance::check(&RealProcesses(TestRoot::new())).await;
}

struct InMemory(Arc<Mutex<SimulatedWorld>>);

impl OrchestratorUnderTest for InMemory {
    type Orchestrator = SimulatedOrchestrator;

    async fn open(&self) -> SimulatedOrchestrator {
        SimulatedOrchestrator::new(self.0.clone())
    }

    fn spec(&self, behaves: TestBehaviour, processes: u16) -> IncarnationSpec {
        let mut spec = sleeper(processes);
        let behaviour = match behaves {
            TestBehaviour::Stays | TestBehaviour::Writes => return spec,
            TestBehaviour::EndsWith(0) => "exit:0@5ms".to_owned(),
            TestBehaviour::EndsWith(code) => format!("crash:{code}"),
            TestBehaviour::CannotStart => "fail".to_owned(),
            TestBehaviour::StopsAnswering => "hang@5ms".to_owned(),
            TestBehaviour::PowersOff => "poweroff@5ms".to_owned(),
            TestBehaviour::Resets => "reboot@5ms".to_owned(),
        };
        spec.payloads[0].coordinates.insert("simulate".parse().unwrap(), behaviour);
        spec
    }

    fn running(&self, id: IncarnationId) -> usize {
        self.0.lock().unwrap().running(id)
    }

    fn holds(&self, volume: VolumeId) -> bool {
        self.0.lock().unwrap().volumes().any(|id| id == volume)
    }

    fn lose(&self, volume: VolumeId) {
        self.0.lock().unwrap().strike(volume).unwrap();
    }

    fn output(&self) -> OutputAccess {
        OutputAccess::None
    }

    fn guests(&self) -> GuestSupport {
        GuestSupport::Guests
    }

    fn crash_after_record(&self, command: &Command) {
        self.0.lock().unwrap().crash_after_record(command);
    }

    fn set_api(&self, api: ApiAccess) -> bool {
        self.0.lock().unwrap().set_out_of_reach(api == ApiAccess::CutOff);
        true
    }

    // Foreign objects cannot exist in memory.
    fn plant_foreign_things(&self) {}
    fn check_foreign_things(&self) {}
}

pub(crate) async fn simulated_nodes_conform() {
    conformance::check(&InMemory(SimulatedWorld::shared(FaultRules::default()))).await;
}

/// File system in user space whose program never responds. When the program ends, every call to the file
/// system fails.
pub(crate) struct SilentMount {
    point: PathBuf,
    program: std::process::Child,
}

impl SilentMount {
    /// Mounts the file system, or returns `None` with a message where nothing can be mounted.
    pub(crate) fn at(point: &Path) -> Option<SilentMount> {
        let shown = point.display().to_string();
        let options = "fd=3,rootmode=40000,user_id=0,group_id=0";
        let script = format!(
            "exec 3<>/dev/fuse && mount -i -t fuse -o {options} none {shown} 2>/dev/null && exec sleep 3600"
        );
        let mut program = std::process::Command::new("sh");
        let program = program.args(["-c", &script]).stderr(std::process::Stdio::null()).spawn().unwrap();
        let mut mount = SilentMount { point: point.to_owned(), program };
        let is_mounted =
            || std::fs::read_to_string("/proc/mounts").unwrap().lines().any(|line| line.contains(&shown));
        while !is_mounted() {
            if mount.program.try_wait().unwrap().is_some() {
                println!("skipped: this machine does not allow a file system in user space");
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Some(mount)
    }

    pub(crate) fn end(&mut self) {
        let mut unmount = std::process::Command::new("umount");
        let _ = unmount.arg("-l").arg(&self.point).stderr(std::process::Stdio::null()).status();
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

impl Drop for SilentMount {
    fn drop(&mut self) {
        self.end();
    }
}
