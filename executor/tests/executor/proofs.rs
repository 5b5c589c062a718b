//! Ends of real processes whose supervisor was killed or stopped: with control groups and without.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::{
    IncarnationExit, ObjectReport, ObservedState, ProcessInfo, ProcessStatus,
};
use chancery_events::protocol::{Command as ObjectCommand, IncarnationSpec, VolumeMount};
use chancery_executor::Orchestrator;
use chancery_executor::process::{CgroupSetting, ProcessConfig, ProcessOrchestrator};
use rustix::process::Signal;

use crate::volumes::{failed, make, order, volume};
use crate::world::{
    SilentMount, TestRoot, block_on, command, config, id, is_ended, is_ready, kill, payload, sleeper, spec,
    until, wait_until,
};

const WAYS: [CgroupSetting; 2] = [CgroupSetting::Detect, CgroupSetting::Off];

async fn open(root: &Path, cgroup: &CgroupSetting) -> ProcessOrchestrator {
    ProcessOrchestrator::open(ProcessConfig { cgroup: cgroup.clone(), ..config(root) }).await.unwrap()
}

/// Whether the host has control groups; prints a message if not.
fn has_groups(root: &TestRoot, cgroup: &CgroupSetting) -> bool {
    let has = *cgroup == CgroupSetting::Off || root.groups().is_some();
    if !has {
        eprintln!("skipped: this host has no usable control group");
    }
    has
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z") && !rest.starts_with(" X"))
}

fn processes_of(report: &ObjectReport) -> &[ProcessInfo] {
    match &report.observed {
        ObservedState::Started { processes }
        | ObservedState::Ready { processes }
        | ObservedState::NotReady { processes }
        | ObservedState::Ended { processes, .. } => processes,
        ObservedState::Failed { .. } | ObservedState::Gone => &[],
    }
}

fn kill_supervisors(root: &TestRoot) {
    for supervisor in root.supervisors() {
        kill(supervisor, Signal::KILL);
    }
    wait_until("the supervisors are dead", || root.supervisors().is_empty());
}

/// Process that is killed when the test ends, in any way.
struct KilledProcess(i32);

impl Drop for KilledProcess {
    fn drop(&mut self) {
        if is_alive(self.0) {
            kill(self.0, Signal::KILL);
        }
    }
}

/// Waits until a process has written its pid.
fn victim(file: &Path) -> KilledProcess {
    let mut pid = None;
    wait_until("it wrote its pid", || {
        pid = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        pid.is_some()
    });
    KilledProcess(pid.expect("a pid"))
}

/// Shell whose child has an empty environment and a session of its own. The child keeps its working
/// directory.
const CLEANED: &str = "env -i setsid sh -c 'echo $$$$ > ../../child; exec sleep 3600' & exec sleep 3600";

/// Daemon that forks twice, leaves session and directory, closes its descriptors and drops its environment.
const DAEMON: &str = "
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open('../../child.new', 'w') as file:
            file.write(str(os.getpid()))
        os.rename('../../child.new', '../../child')
        os.chdir('/')
        os.closerange(0, 1024)
        os.execve('/bin/sleep', ['sleep', '3600'], {})
    os._exit(0)
os.wait()
os.execvp('sleep', ['sleep', '3600'])
";

fn daemon() -> IncarnationSpec {
    let mut one = payload("web", 1, &["python3", "-c", DAEMON]);
    one.mounts = vec![VolumeMount { path: "/data".to_owned(), volume: volume(1) }];
    spec(vec![one])
}

fn cleaned() -> IncarnationSpec {
    spec(vec![payload("web", 1, &["sh", "-c", CLEANED])])
}

/// Starts an incarnation, and kills its supervisor and then each recorded process.
async fn start_and_kill(
    root: &TestRoot,
    cgroup: &CgroupSetting,
    spec: &IncarnationSpec,
) -> (ProcessOrchestrator, KilledProcess) {
    let processes = open(root.path(), cgroup).await;
    make(&processes, 1).await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, spec)).await;
    let ready = until(&processes, id(1), "it is ready", is_ready).await;
    let child = victim(&root.incarnation_directory(id(1)).join("child"));
    kill_supervisors(root);
    for process in processes_of(&ready) {
        kill(process.pid.unwrap() as i32, Signal::KILL);
    }
    (processes, child)
}

pub(crate) async fn a_daemon_that_leaves_everything_behind_is_ended_with_its_group() {
    for spec in [daemon(), cleaned()] {
        let root = TestRoot::new();
        if !has_groups(&root, &CgroupSetting::Detect) {
            return;
        }
        let (processes, child) = start_and_kill(&root, &CgroupSetting::Detect, &spec).await;
        let ended = until(&processes, id(1), "it has ended", is_ended).await;
        assert!(!is_alive(child.0), "an end covers all processes: {ended:?}");
        assert_eq!(processes_of(&ended)[0].status, ProcessStatus::Unknown);
        wait_until("its group is removed", || !root.groups().unwrap().exists());
        // The proof frees the volume too.
        processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
        until(&processes, volume(1), "it is destroyed", |report| report.observed == ObservedState::Gone)
            .await;
    }
}

pub(crate) async fn without_groups_an_end_that_cannot_be_proved_is_unknown_and_the_volume_stays_in_use() {
    let root = TestRoot::new();
    let (processes, child) = start_and_kill(&root, &CgroupSetting::Off, &daemon()).await;
    let is_unknown = |report: &ObjectReport| matches!(&report.observed, ObservedState::NotReady { processes } if processes[0].status == ProcessStatus::Unknown);
    until(&processes, id(1), "its process is unknown", is_unknown).await;
    processes.carry_out(command(id(1), 2, CommandEffect::Stop, &daemon())).await;
    let refused = until(&processes, id(1), "a stop is answered", |report| failed(report).is_some()).await;
    // The named process, if any, depends on what other tests run and start meanwhile.
    let why = failed(&refused).unwrap();
    let names_a_process =
        why.starts_with("cannot prove end of incarnation: process ") && why.ends_with(" may belong to it");
    let is_outrun =
        why == "cannot prove end of incarnation: processes are started faster than all can be read";
    assert!(names_a_process || is_outrun, "{why}");
    assert_eq!(refused.revision, 2);
    processes
        .carry_out(ObjectCommand { attempt: 2, ..command(id(1), 2, CommandEffect::Kill, &daemon()) })
        .await;
    until(&processes, id(1), "each attempt is answered", |report| failed(report).is_some()).await;
    assert!(is_alive(child.0), "it may belong to another owner");
    processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
    let kept = until(&processes, volume(1), "the volume is kept", |report| failed(report).is_some()).await;
    assert!(failed(&kept).unwrap().ends_with(&format!("in use by {}", id(1))), "{kept:?}");
    // The next executor has no more proof.
    drop(processes);
    let processes = open(root.path(), &CgroupSetting::Off).await;
    assert!(!processes.list().await.unwrap().iter().any(is_ended));
    assert!(!root.incarnation_directory(id(1)).join("tombstone.json").exists());
    drop(child);
    let ended = until(&processes, id(1), "nothing is left: it has ended", is_ended).await;
    assert_eq!(processes_of(&ended)[0].status, ProcessStatus::Unknown);
    processes.carry_out(order(1, 3, CommandEffect::Kill)).await;
    until(&processes, volume(1), "it is destroyed", |report| report.observed == ObservedState::Gone).await;
}

pub(crate) async fn what_has_a_mark_is_ended_without_groups_too() {
    let root = TestRoot::new();
    let (processes, child) = start_and_kill(&root, &CgroupSetting::Off, &cleaned()).await;
    until(&processes, id(1), "it has ended", is_ended).await;
    assert!(!is_alive(child.0), "it is found by its working directory");
}

pub(crate) async fn known_processes_block_no_end_without_groups() {
    let root = TestRoot::new();
    let processes = open(root.path(), &CgroupSetting::Off).await;
    for position in [1, 2, 3] {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &sleeper(2))).await;
        until(&processes, id(position), "it is ready", is_ready).await;
    }
    // A daemon of another owner, younger than all.
    let file = root.path().join("bystander");
    let script = format!("setsid sh -c 'echo $$ > {}; exec sleep 3600' &", file.display());
    assert!(Command::new("sh").args(["-c", &script]).current_dir("/").status().unwrap().success());
    let bystander = victim(&file);
    let supervisor = format!("as-supervisor\0{}", root.incarnation_directory(id(2)).display());
    let is_supervisor = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains(&supervisor)
    };
    assert!(root.supervisors().iter().any(is_supervisor));
    // Orphans of another incarnation are accounted for too.
    let other = root.incarnation_directory(id(1)).display().to_string();
    for pid in root.supervisors() {
        if is_supervisor(&pid)
            || std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().contains(&other)
        {
            kill(pid, Signal::KILL);
        }
    }
    processes.carry_out(command(id(2), 2, CommandEffect::Stop, &sleeper(2))).await;
    until(&processes, id(2), "its end is proved", is_ended).await;
    assert!(is_alive(bystander.0), "the bystander lives");
    assert_eq!(root.payloads().len(), 4, "the other incarnations run");
}

pub(crate) async fn a_directory_reached_by_a_link_and_by_its_real_path_is_one() {
    for cgroup in WAYS {
        let root = TestRoot::new();
        if !has_groups(&root, &cgroup) {
            continue;
        }
        let links = tempfile::tempdir().unwrap();
        let socket = links.path().join("link");
        symlink(root.path(), &socket).unwrap();
        // The child has another session, group and directory, and no pipe: its environment names the link.
        let script = "(cd / && exec setsid sh -c \
            'echo $$$$ > \"$$CHANCERY_DIRECTORY/child\"; exec sleep 3600 > /dev/null 2>&1') & exec sleep 3600";
        let spec = spec(vec![payload("web", 1, &["sh", "-c", script])]);
        let processes = open(&socket, &cgroup).await;
        processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
        let ready = until(&processes, id(1), "it is ready", is_ready).await;
        let child = victim(&root.incarnation_directory(id(1)).join("child"));
        drop(processes);
        let link_text = socket.display().to_string();
        let supervisor = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains(&link_text)
        };
        let all = || std::fs::read_dir("/proc").unwrap().flatten();
        let pids = || all().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        for pid in pids().filter(supervisor) {
            kill(pid, Signal::KILL);
        }
        wait_until("the supervisor is dead", || !pids().any(|pid| supervisor(&pid)));
        kill(processes_of(&ready)[0].pid.unwrap() as i32, Signal::KILL);
        let processes = open(root.path(), &cgroup).await;
        until(&processes, id(1), "it has ended", is_ended).await;
        assert!(!is_alive(child.0), "{cgroup:?}: a process that names the link belongs to the directory");
    }
}

/// Runs an executor in another PID namespace, and reports what it sees and the result of a kill.
pub(crate) fn neighbour(root: &Path, cgroup: &str, out: &Path) -> ExitCode {
    let cgroup = if cgroup == "none" { CgroupSetting::Off } else { CgroupSetting::Detect };
    block_on(async {
        let processes = match ProcessOrchestrator::open(ProcessConfig { cgroup, ..config(root) }).await {
            Ok(processes) => processes,
            Err(error) => return std::fs::write(out, error.to_string()).unwrap(),
        };
        let seen = processes.list().await.unwrap();
        processes.carry_out(command(id(1), 2, CommandEffect::Kill, &sleeper(1))).await;
        let is_answered = |report: &ObjectReport| is_ended(report) || failed(report).is_some();
        let then = until(&processes, id(1), "the kill is answered", is_answered).await;
        std::fs::write(out, serde_json::to_string(&(seen, then)).unwrap()).unwrap();
    });
    ExitCode::SUCCESS
}

/// Whether this machine allows these namespaces; prints a message if not.
fn is_allowed(flags: &[&str]) -> bool {
    let tried = Command::new("unshare").args(flags).arg("true").stderr(Stdio::null()).status();
    let is_allowed = tried.is_ok_and(|status| status.success());
    if !is_allowed {
        eprintln!("skipped: this machine does not allow a second PID namespace");
    }
    is_allowed
}

/// Runs an executor in a new PID namespace; `None` if this machine does not allow that.
fn in_another_namespace(root: &TestRoot, cgroup: &CgroupSetting, flags: &[&str]) -> Option<String> {
    if !is_allowed(flags) {
        return None;
    }
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("report");
    let name = if *cgroup == CgroupSetting::Off { "none" } else { "" };
    let status = Command::new("unshare")
        .args(flags)
        .arg(std::env::current_exe().unwrap())
        .args(["as-neighbour", root.path().to_str().unwrap(), name, file.to_str().unwrap()])
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    Some(std::fs::read_to_string(file).unwrap())
}

pub(crate) async fn another_pid_namespace_ends_nothing_that_runs() {
    for cgroup in WAYS {
        let root = TestRoot::new();
        if !has_groups(&root, &cgroup) {
            continue;
        }
        let processes = open(root.path(), &cgroup).await;
        make(&processes, 1).await;
        let order = command(id(1), 1, CommandEffect::Ensure, &daemon());
        processes.carry_out(ObjectCommand { grace: LOOKS / 10, ..order }).await;
        let ready = until(&processes, id(1), "it is ready", is_ready).await;
        drop(processes);
        let child = victim(&root.incarnation_directory(id(1)).join("child"));
        kill_supervisors(&root);
        let flags = ["-p", "-f", "--mount-proc"];
        if cgroup == CgroupSetting::Detect && is_allowed(&flags) {
            // An executor that takes one process for dead ends the others by their group, after their grace.
            let observed = Command::new("unshare")
                .args(flags)
                .arg(std::env::current_exe().unwrap())
                .args(["as-observer", root.path().to_str().unwrap()])
                .status();
            assert!(observed.unwrap().success());
            assert!(is_alive(child.0) && root.payloads().len() == 1, "its end was not requested");
        }
        let Some(seen_there) = in_another_namespace(&root, &cgroup, &flags) else {
            return;
        };
        let (seen, then): (Vec<ObjectReport>, ObjectReport) = serde_json::from_str(&seen_there).unwrap();
        let seen = seen.iter().find(|report| report.object == id(1).into()).expect("it is listed");
        assert!(!is_ended(seen), "{cgroup:?}: pids of another namespace are not dead: {seen:?}");
        assert!(
            processes_of(seen).iter().all(|process| process.status == ProcessStatus::Unknown),
            "{seen:?}"
        );
        if cgroup == CgroupSetting::Off {
            let message = failed(&then).expect("no end");
            assert_eq!(message, "cannot prove end of incarnation: started in another PID namespace");
            assert!(is_alive(child.0) && root.payloads().len() == 1, "no process was ended by its pid");
            // Back in the first namespace, living processes are adopted.
            let processes = open(root.path(), &cgroup).await;
            assert_eq!(processes.list().await.unwrap().iter().filter(|report| is_ended(report)).count(), 0);
        } else {
            assert!(is_ended(&then), "proved by its control group: {then:?}");
            assert!(!is_alive(child.0) && !is_alive(processes_of(&ready)[0].pid.unwrap() as i32));
        }
    }
}

pub(crate) async fn an_executor_that_sees_the_processes_of_another_namespace_does_not_start() {
    let root = TestRoot::new();
    let Some(error) = in_another_namespace(&root, &CgroupSetting::Off, &["-p", "-f"]) else { return };
    assert!(error.starts_with("cannot use /proc: it belongs to another PID namespace"), "{error}");
}

/// Time for which an observer stays.
const LOOKS: Duration = Duration::from_secs(2);

/// Runs an executor that only lists.
pub(crate) fn observer(root: &Path) -> ExitCode {
    block_on(async {
        let processes = open(root, &CgroupSetting::Detect).await;
        processes.list().await.unwrap();
        tokio::time::sleep(LOOKS).await;
    });
    ExitCode::SUCCESS
}

/// Returns a command prefix that hides this file of a process.
fn where_hidden(pid: i32, file: &str) -> [String; 5] {
    let script = format!("mount --bind /dev/null /proc/{pid}/{file} && exec \"$@\"");
    ["-m".to_owned(), "sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()]
}

pub(crate) async fn a_process_that_cannot_be_read_is_not_taken_for_absent() {
    for file in ["stat", "status"] {
        let root = TestRoot::new();
        let (processes, child) = start_and_kill(&root, &CgroupSetting::Off, &daemon()).await;
        drop(processes);
        let hidden = where_hidden(child.0, file);
        let flags = hidden.each_ref().map(String::as_str);
        let Some(seen_there) = in_another_namespace(&root, &CgroupSetting::Off, &flags) else { return };
        let (_, then): (Vec<ObjectReport>, ObjectReport) = serde_json::from_str(&seen_there).unwrap();
        assert!(is_alive(child.0));
        assert!(failed(&then).is_some(), "{file}: no end is proved: {then:?}");
    }
    // A process with a hidden file is not adopted either.
    let root = TestRoot::new();
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(2))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    kill_supervisors(&root);
    let hidden = where_hidden(root.payloads()[0], "stat");
    let observed = Command::new("unshare")
        .args(hidden)
        .arg(std::env::current_exe().unwrap())
        .args(["as-observer", root.path().to_str().unwrap()])
        .status();
    assert!(observed.unwrap().success());
    let processes = root.open().await;
    until(&processes, id(1), "both continue to run", is_ready).await;
}

/// PID namespace that no incarnation has created.
struct ForeignNamespace(std::process::Child);

impl ForeignNamespace {
    fn new() -> Option<ForeignNamespace> {
        let unshare = || Command::new("unshare").args(["-p", "-f", "--kill-child", "sleep", "3600"]).spawn();
        let is_there = Command::new("unshare").args(["-p", "-f", "true"]).stderr(Stdio::null()).status();
        is_there.is_ok_and(|status| status.success()).then(unshare)?.ok().map(ForeignNamespace)
    }

    fn init(&self) -> i32 {
        let pid = self.0.id();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let mut init = None;
        wait_until("the namespace has an init", || {
            let children = std::fs::read_to_string(&children).unwrap_or_default();
            init = children.split_ascii_whitespace().next().and_then(|child| child.parse().ok());
            init.is_some()
        });
        init.expect("an init")
    }
}

impl Drop for ForeignNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) async fn a_daemon_in_the_pid_namespace_of_others_ends_with_its_incarnation() {
    let root = TestRoot::new();
    if !has_groups(&root, &CgroupSetting::Detect) {
        return;
    }
    let Some(namespace) = ForeignNamespace::new() else {
        eprintln!("skipped: this machine does not allow a second PID namespace");
        return;
    };
    // The parent ends: the init of that namespace adopts the child, not the supervisor.
    let file = root.path().join("daemon");
    let script = format!(
        "nsenter -t {} -p sh -c '(exec setsid sleep 3600 < /dev/null > {} 2>&1 &)'; exec sleep 3600",
        namespace.init(),
        file.display()
    );
    let spec = spec(vec![payload("web", 1, &["sh", "-c", &script.replace('$', "$$")])]);
    let has_it_open =
        |pid: &i32| std::fs::read_link(format!("/proc/{pid}/fd/1")).is_ok_and(|socket| socket == file);
    let daemon = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| is_alive(*pid)).find(has_it_open)
    };
    let processes = root.open().await;
    for (position, effect) in [(1, CommandEffect::Stop), (2, CommandEffect::Kill)] {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &spec)).await;
        until(&processes, id(position), "it is ready", is_ready).await;
        wait_until("its daemon runs", || daemon().is_some());
        processes.carry_out(command(id(position), 2, effect, &spec)).await;
        let ended = until(&processes, id(position), "it has ended", is_ended).await;
        assert_eq!(daemon(), None, "an end covers all processes: {ended:?}");
    }
}

/// File system that never responds, and a process that has it open.
struct SilentFileSystem {
    mount: SilentMount,
    user: Child,
    _directory: tempfile::TempDir,
}

impl SilentFileSystem {
    fn new(privileges: &str) -> Option<SilentFileSystem> {
        let directory = tempfile::tempdir().unwrap();
        let mount = SilentMount::at(directory.path())?;
        let point = directory.path().display();
        let opened =
            format!("import os, time; os.open('{point}', os.O_PATH); print(1, flush=True); time.sleep(3600)");
        let mut user = Command::new("setpriv");
        user.args(privileges.split_ascii_whitespace())
            .args(["python3", "-c", &opened])
            .stdout(Stdio::piped());
        let mut user = user.spawn().unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(user.stdout.as_mut().unwrap(), &mut byte).unwrap();
        Some(SilentFileSystem { mount, user, _directory: directory })
    }
}

impl Drop for SilentFileSystem {
    fn drop(&mut self) {
        self.mount.end();
        let _ = self.user.kill();
        let _ = self.user.wait();
    }
}

pub(crate) async fn a_file_system_that_does_not_respond_blocks_no_end() {
    for cgroup in WAYS {
        let root = TestRoot::new();
        if !has_groups(&root, &cgroup) {
            continue;
        }
        let processes = open(root.path(), &cgroup).await;
        processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(2))).await;
        until(&processes, id(1), "it is ready", is_ready).await;
        // Without groups, a process that may belong to the incarnation blocks the proof: this one must be
        // another's.
        let privileges = if cgroup == CgroupSetting::Off { "--reuid=0" } else { "--no-new-privs" };
        let Some(_silent) = SilentFileSystem::new(privileges) else { return };
        for supervisor in root.supervisors() {
            kill(supervisor, Signal::STOP);
        }
        processes.carry_out(command(id(1), 2, CommandEffect::Stop, &sleeper(2))).await;
        until(&processes, id(1), "it is ended nevertheless", is_ended).await;
    }
}

/// Installed daemon of another owner: command, and the directory that identifies its processes.
fn installed(program: &str) -> Option<(Vec<String>, tempfile::TempDir)> {
    let runs = |program: &str, flag| {
        Command::new(program).arg(flag).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let directory = tempfile::Builder::new().prefix("chancery-daemon-").tempdir().unwrap();
    let path = directory.path().display().to_string();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    match program {
        "nginx" if runs("nginx", "-v") => {
            let text = format!(
                "daemon on; pid {path}/pid; error_log {path}/error.log; worker_processes 2;\n\
                 events {{}}\nhttp {{ access_log off; server {{ listen unix:{path}/socket; }} }}\n"
            );
            std::fs::write(directory.path().join("nginx.conf"), text).unwrap();
            let script = format!("nginx -c {path}/nginx.conf -p {path} && exec sleep 3600");
            Some((vec!["sh".into(), "-c".into(), script], directory))
        }
        "postgres" if runs("postgres", "--version") && runs("initdb", "--version") => {
            // PostgreSQL refuses to run as root.
            let unprivileged = "setpriv --reuid=65534 --regid=65534 --clear-groups";
            std::os::unix::fs::chown(directory.path(), Some(65534), Some(65534)).unwrap();
            // tidy: allow(nobody)
            let init = words(&format!("{unprivileged} initdb --no-sync -A trust -U nobody -D {path}/data"));
            let made = Command::new(&init[0]).args(&init[1..]).current_dir("/").output().unwrap();
            if !made.status.success() {
                eprintln!("skipped: initdb fails here: {}", String::from_utf8_lossy(&made.stderr));
                return None;
            }
            let run = format!("{unprivileged} postgres -D {path}/data -k {path} -c listen_addresses=");
            Some((words(&run), directory))
        }
        _ => None,
    }
}

/// Returns the processes that work in a directory, or name it.
fn at_work(directory: &Path) -> Vec<i32> {
    let text = directory.to_str().unwrap();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        cwd.starts_with(directory) || String::from_utf8_lossy(&read("cmdline")).contains(text)
    })
    .collect()
}

pub(crate) async fn daemons_of_others_end_with_their_incarnation() {
    for program in ["nginx", "postgres"] {
        for cgroup in WAYS {
            let root = TestRoot::new();
            if !has_groups(&root, &cgroup) {
                continue;
            }
            let Some((argv, directory)) = installed(program) else {
                eprintln!("skipped: {program} is not installed, or does not run here");
                break;
            };
            let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
            let spec = spec(vec![payload("web", 1, &argv)]);
            let processes = open(root.path(), &cgroup).await;
            processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
            let ready = until(&processes, id(1), "it is ready", is_ready).await;
            wait_until("it has started its workers", || at_work(directory.path()).len() >= 3);
            kill_supervisors(&root);
            // Workers that hang outlive the recorded processes.
            let recorded: Vec<i32> =
                processes_of(&ready).iter().map(|process| process.pid.unwrap() as i32).collect();
            for pid in at_work(directory.path()) {
                kill(pid, if recorded.contains(&pid) { Signal::KILL } else { Signal::STOP });
            }
            for pid in recorded {
                kill(pid, Signal::KILL);
            }
            processes.carry_out(command(id(1), 2, CommandEffect::Stop, &spec)).await;
            let is_answered = |report: &ObjectReport| is_ended(report) || failed(report).is_some();
            let then = until(&processes, id(1), "the stop is answered", is_answered).await;
            let left = at_work(directory.path());
            for pid in &left {
                kill(*pid, Signal::KILL);
            }
            assert!(
                !is_ended(&then) || left.is_empty(),
                "{program}, {cgroup:?}: {left:?} are left: {then:?}"
            );
            if cgroup == CgroupSetting::Detect {
                assert!(is_ended(&then), "{program}: {then:?}");
            }
            until(&processes, id(1), "it ends once no process is left", is_ended).await;
        }
    }
}

pub(crate) async fn a_group_of_an_incarnation_without_directory_is_ended() {
    let root = TestRoot::new();
    if !has_groups(&root, &CgroupSetting::Detect) {
        return;
    }
    let processes = root.open().await;
    make(&processes, 1).await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &daemon())).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    let child = victim(&root.incarnation_directory(id(1)).join("child"));
    drop(processes);
    kill_supervisors(&root);
    // Only the daemon is left, which names nothing, and nothing names it.
    for pid in root.payloads() {
        kill(pid, Signal::KILL);
    }
    std::fs::remove_dir_all(root.incarnation_directory(id(1))).unwrap();
    assert!(is_alive(child.0));
    let processes = root.open().await;
    let ended = until(&processes, id(1), "it has ended", is_ended).await;
    let ObservedState::Ended { exit: IncarnationExit::Failed { reason }, .. } = &ended.observed else {
        panic!("{ended:?}")
    };
    assert_eq!(reason, "incarnation directory removed");
    assert!(!is_alive(child.0));
}

pub(crate) async fn an_empty_group_that_cannot_be_removed_keeps_no_executor_from_its_start() {
    let root = TestRoot::new();
    let Some(groups) = root.groups() else { return };
    let inner = groups.join(id(1).to_string()).join("inner");
    std::fs::create_dir_all(&inner).unwrap();
    let mount = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).arg(&inner).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    };
    if mount("mount", &["-t", "tmpfs", "none"]) {
        let opened = ProcessOrchestrator::open(config(root.path())).await;
        assert!(mount("umount", &[]));
        opened.unwrap();
    } else {
        eprintln!("skipped: this machine allows no mount");
    }
    let _ = std::fs::remove_dir(&inner);
}

pub(crate) async fn a_pipe_of_an_output_that_was_replaced_blocks_no_end() {
    let root = TestRoot::new();
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    kill_supervisors(&root);
    let [out, err] =
        ["out", "err"].map(|name| root.incarnation_directory(id(1)).join(format!("web-0.{name}.pipe")));
    for pipe in [&out, &err] {
        std::fs::remove_file(pipe).unwrap();
    }
    std::fs::write(&out, "no pipe").unwrap();
    symlink(&err, &err).unwrap();
    let processes = root.open().await;
    processes.carry_out(command(id(1), 2, CommandEffect::Kill, &sleeper(1))).await;
    let is_answered = |report: &ObjectReport| is_ended(report) || failed(report).is_some();
    let then = until(&processes, id(1), "the kill is answered", is_answered).await;
    assert!(is_ended(&then), "{then:?}");
}

pub(crate) async fn a_stopped_supervisor_blocks_neither_stop_nor_kill() {
    for cgroup in WAYS {
        let root = TestRoot::new();
        if !has_groups(&root, &cgroup) {
            continue;
        }
        let processes = open(root.path(), &cgroup).await;
        let orders = [(1, CommandEffect::Stop), (2, CommandEffect::Kill)];
        for (position, _) in orders {
            processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &sleeper(2))).await;
            until(&processes, id(position), "it is ready", is_ready).await;
        }
        let supervisors = root.supervisors();
        assert_eq!(supervisors.len(), 2);
        for supervisor in supervisors {
            kill(supervisor, Signal::STOP);
        }
        for (position, effect) in orders {
            processes.carry_out(command(id(position), 2, effect, &sleeper(2))).await;
        }
        for (position, effect) in orders {
            let ended = until(&processes, id(position), "it is ended nevertheless", is_ended).await;
            let is_clean =
                matches!(&ended.observed, ObservedState::Ended { exit: IncarnationExit::Clean, .. });
            assert!(is_clean && ended.revision == 2, "{effect:?}, {cgroup:?}: {ended:?}");
        }
        assert_eq!((root.payloads(), root.supervisors()), (vec![], vec![]), "{cgroup:?}");
    }
}

/// Runs an executor in a mount namespace of its own, where another file system hides control groups while a
/// process ends. Writes the last report of the executor.
pub(crate) fn hider(root: &Path, groups: &Path, out: &Path) -> ExitCode {
    block_on(async {
        let processes = ProcessOrchestrator::open(config(root)).await.unwrap();
        processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(1))).await;
        let ready = until(&processes, id(1), "it is ready", is_ready).await;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
        let mounts = mounts.filter_map(|line| line.split(' ').nth(4)).filter(|at| groups.starts_with(at));
        let mount = mounts.max_by_key(|at| at.len()).expect("a mount contains the groups");
        let hidden = Command::new("mount").args(["-t", "tmpfs", "none", mount]).status();
        assert!(hidden.unwrap().success());
        kill(processes_of(&ready)[0].pid.unwrap() as i32, Signal::KILL);
        let ended = until(&processes, id(1), "it has ended", is_ended).await;
        std::fs::write(out, serde_json::to_string(&ended).unwrap()).unwrap();
    });
    ExitCode::SUCCESS
}

pub(crate) async fn a_supervisor_that_cannot_read_its_control_group_leaves_the_end_to_the_executor() {
    let root = TestRoot::new();
    let Some(groups) = root.groups() else { return };
    let tried = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this machine does not allow a second mount namespace");
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("report");
    let status = Command::new("unshare")
        .arg("-m")
        .arg(std::env::current_exe().unwrap())
        .args(["as-hider", root.path().to_str().unwrap(), groups.to_str().unwrap(), file.to_str().unwrap()])
        .stdin(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    let ended: ObjectReport = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(processes_of(&ended)[0].status, ProcessStatus::Signaled { signal: Signal::KILL.as_raw() });
    assert_eq!(root.supervisors(), Vec::<i32>::new());
}

pub(crate) async fn a_supervisor_that_never_answers_the_next_executor_is_replaced() {
    let root = TestRoot::new();
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    for supervisor in root.supervisors() {
        kill(supervisor, Signal::STOP);
    }
    let processes = root.open().await;
    let order = ObjectCommand {
        grace: Duration::from_secs(1),
        ..command(id(1), 2, CommandEffect::Stop, &sleeper(1))
    };
    processes.carry_out(order).await;
    until(&processes, id(1), "it is ended", is_ended).await;
    let nothing: Vec<PathBuf> = root.payloads().iter().map(|pid| format!("/proc/{pid}").into()).collect();
    assert!(nothing.is_empty() && root.supervisors().is_empty(), "{nothing:?}");
}
