//! Real processes: executors, supervisors and payloads that start and die.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::{IncarnationExit, ObservedState, ProcessStatus};
use chancery_events::protocol::IncarnationSpec;
use chancery_events::spec::{PayloadPort, PortProtocol};
use chancery_executor::Orchestrator;
use chancery_executor::process::{OutputLimits, ProcessOrchestrator};
use rustix::process::Signal;

use crate::world::{
    TestRoot, block_on, command, config, id, is_ended, is_ready, kill, payload, sleeper, spec, until,
    wait_until, write_state,
};

/// Ensures `count` incarnations and then waits to be killed.
pub(crate) fn victim(root: &Path, count: u64) -> ExitCode {
    block_on(async {
        let processes = ProcessOrchestrator::open(config(root)).await.expect("the root can be opened");
        for position in 1..=count {
            processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &sleeper(1))).await;
        }
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

fn start_victim(root: &TestRoot, count: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["as-victim", root.path().to_str().unwrap(), &count.to_string()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

pub(crate) async fn killing_the_executor_at_any_moment_neither_loses_nor_doubles() {
    let root = TestRoot::new();
    let lives: u64 = std::env::var("LIVES").ok().and_then(|n| n.parse().ok()).unwrap_or(120);
    // Kills hit every phase of the starts: after 0 to 25 ms, in an order without a pattern.
    for epoch in 0..lives {
        let mut victim = start_victim(&root, epoch / 4 + 1);
        std::thread::sleep(Duration::from_micros(epoch * 7919 % 25_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    let count = lives.div_ceil(4);
    let processes = root.open().await;
    for position in 1..=count {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &sleeper(1))).await;
    }
    for position in 1..=count {
        until(&processes, id(position), "it is ready", is_ready).await;
    }
    wait_until("no trampoline is left", || root.trampolines() == 0);
    // Supervisors that came too late for the lock exit after a while, without having started anything.
    wait_until("each has one supervisor", || root.supervisors().len() as u64 == count);
    assert_eq!(root.payloads().len() as u64, count, "one process for each incarnation");
    for position in 1..=count {
        assert_eq!(root.payloads_of(id(position)).len(), 1);
    }
}

pub(crate) async fn adoption_keeps_pids_and_ports() {
    let root = TestRoot::new();
    let mut with_port = payload("web", 3, &["sleep", "3600"]);
    with_port.ports =
        vec![PayloadPort { name: "http".parse().unwrap(), protocol: PortProtocol::Tcp, port: 80 }];
    let spec = spec(vec![with_port]);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
    let before = until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    let processes = root.open().await;
    let after = until(&processes, id(1), "it is adopted", is_ready).await;
    assert_eq!(after, before, "pids and ports stay");
    let ObservedState::Ready { processes: reported } = &after.observed else { unreachable!() };
    let mut pids: Vec<_> = reported.iter().map(|p| p.pid.unwrap() as i32).collect();
    let mut seen = root.payloads();
    pids.sort_unstable();
    seen.sort_unstable();
    assert_eq!(pids, seen, "the reported pids are those of the processes");
    let ports: std::collections::BTreeSet<_> = reported.iter().map(|p| &p.addresses[0].address).collect();
    assert_eq!(ports.len(), 3, "each process has a port of its own");
}

/// Writes a directory as left by an executor that dies before it starts a supervisor.
fn write_wanted(root: &TestRoot, position: u64, aim: &str, spec: &IncarnationSpec) {
    let directory = root.incarnation_directory(id(position));
    let program = serde_json::to_value(config(root.path()).program).unwrap();
    let order = serde_json::json!({
        "revision": 1, "attempt": 1, "aim": aim, "status": "pending", "grace": {"secs": 1, "nanos": 0}
    });
    let wanted = serde_json::json!({
        "incarnation": id(position), "order": order, "spec": spec, "program": program,
        "output": OutputLimits::default(), "volumes": root.path().join("volumes"),
    });
    std::fs::create_dir_all(&directory).unwrap();
    write_state(&directory.join("spec.json"), &wanted);
    std::fs::write(directory.join("supervisor.lock"), "").unwrap();
}

/// Writes a directory as left by a dead supervisor, with a recorded process.
fn write_record(root: &TestRoot, position: u64, pid: u32, start_time: u64, boot: &str) {
    write_wanted(root, position, "up", &sleeper(1));
    let namespace = std::fs::metadata("/proc/self/ns/pid").unwrap().ino();
    // A removed group proves that nothing is left, whatever else runs on this machine.
    let place = std::fs::metadata(root.path()).unwrap();
    let group = serde_json::json!({
        "path": root.path().join("groups/removed"), "mount": root.path(),
        "place": {"device": place.dev(), "inode": place.ino()},
    });
    let record = serde_json::json!({
        "boot": boot, "pid_namespace": namespace, "ancestors": [], "phase": "started", "group": group, "processes": [{
            "payload": "web", "index": 0, "pid": pid, "start_time": start_time, "addresses": [], "end": null
        }],
    });
    write_state(&root.incarnation_directory(id(position)).join("processes.json"), &record);
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

fn start_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

/// Process that does not belong to the executor.
struct ForeignProcess(Child);

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) async fn a_pid_that_is_another_process_is_neither_adopted_nor_killed() {
    let root = TestRoot::new();
    let mut bystander =
        ForeignProcess(Command::new("sleep").arg("3600").stdout(Stdio::null()).spawn().unwrap());
    let pid = bystander.0.id();
    write_record(&root, 1, pid, start_time(pid) - 1, &boot());
    write_record(&root, 2, pid, start_time(pid), "another boot");
    write_record(&root, 3, pid, start_time(pid), &boot());
    let processes = root.open().await;
    for position in [1, 2] {
        let ended =
            until(&processes, id(position), "a process with another identity is dead", is_ended).await;
        let ObservedState::Ended { processes: reported, .. } = &ended.observed else { unreachable!() };
        assert_eq!(reported[0].status, ProcessStatus::Unknown);
        processes.carry_out(command(id(position), 2, CommandEffect::Kill, &sleeper(1))).await;
        until(&processes, id(position), "it stays ended", |r| r.revision == 2 && is_ended(r)).await;
    }
    // The third comes last, so that any effect of the first two on the bystander would be visible.
    assert!(bystander.0.try_wait().unwrap().is_none(), "the bystander lives");
    until(&processes, id(3), "the same identity is adopted", is_ready).await;
    processes.carry_out(command(id(3), 2, CommandEffect::Stop, &sleeper(1))).await;
    let ended = until(&processes, id(3), "it is ended", is_ended).await;
    assert!(
        matches!(&ended.observed, ObservedState::Ended { exit: IncarnationExit::Clean, .. }),
        "{ended:?}"
    );
    bystander.0.wait().unwrap();
}

pub(crate) async fn stale_files_do_not_block() {
    let root = TestRoot::new();
    let directory = root.incarnation_directory(id(1));
    std::fs::create_dir_all(&directory).unwrap();
    for file in
        ["supervisor.lock", "supervisor.sock", "supervisor.log", "spec.json.new", "processes.copy.new"]
    {
        std::fs::write(directory.join(file), "rubbish").unwrap();
    }
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
}

pub(crate) async fn orphans_of_a_dead_supervisor_are_adopted_and_ended() {
    let root = TestRoot::new();
    // The second process leaves its group and session, and its parent.
    let script = "setsid sleep 3600 & exec sleep 3600";
    let spec = spec(vec![payload("web", 2, &["sh", "-c", script])]);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
    let before = until(&processes, id(1), "it is ready", is_ready).await;
    wait_until("all four run", || root.payloads().len() == 4);
    for supervisor in root.supervisors() {
        kill(supervisor, Signal::KILL);
    }
    wait_until("the supervisor is dead", || root.supervisors().is_empty());
    let mut processes = processes;
    for restarted in [false, true] {
        if restarted {
            drop(processes);
            processes = root.open().await;
        }
        processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
        let after = until(&processes, id(1), "the orphans are adopted", is_ready).await;
        assert_eq!(
            (after, root.payloads().len()),
            (before.clone(), 4),
            "adopted unchanged; restarted: {restarted}"
        );
    }
    drop(processes);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 2, CommandEffect::Stop, &spec)).await;
    let ended = until(&processes, id(1), "they are ended", is_ended).await;
    assert!(
        matches!(&ended.observed, ObservedState::Ended { exit: IncarnationExit::Clean, .. }),
        "{ended:?}"
    );
    assert_eq!(root.payloads(), Vec::<i32>::new(), "an end covers all processes");
}

pub(crate) async fn a_supervisor_that_dies_before_it_reports_leaves_nothing() {
    let root = TestRoot::new();
    // A trampoline whose socket ends without a line executes nothing.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut trampoline = Command::new(std::env::current_exe().unwrap())
        .arg("as-trampoline")
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .current_dir(root.path())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut &ours, b"{\"argv\":[\"touch\",\"executed\"],\"env\":{}}").unwrap();
    drop(ours);
    assert!(!trampoline.wait().unwrap().success());
    assert!(!root.path().join("executed").exists());
}

/// Starts a supervisor as an executor does, perhaps late.
fn start_supervisor(root: &TestRoot, position: u64) -> Child {
    let mut supervisor = Command::new(std::env::current_exe().unwrap());
    supervisor
        .arg("as-supervisor")
        .arg(root.incarnation_directory(id(position)))
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

pub(crate) async fn concurrent_supervisors_start_one_set() {
    let root = TestRoot::new();
    let positions = 1..=8;
    for position in positions.clone() {
        write_wanted(&root, position, "up", &sleeper(1));
    }
    let four = |position| (0..4).map(|_| start_supervisor(&root, position)).collect::<Vec<Child>>();
    let mut supervisors: Vec<Vec<Child>> = positions.clone().map(four).collect();
    for (position, started) in positions.clone().zip(&mut supervisors) {
        wait_until("one supervisor starts it", || root.payloads_of(id(position)).len() == 1);
        let left =
            |started: &mut Vec<Child>| started.iter_mut().filter_map(|k| k.try_wait().unwrap()).count();
        wait_until("the other supervisors exit", || left(started) == 3);
        assert_eq!(root.payloads_of(id(position)).len(), 1, "one of four supervisors starts it");
    }
    let processes = root.open().await;
    for position in positions {
        processes.carry_out(command(id(position), 2, CommandEffect::Kill, &sleeper(1))).await;
        until(&processes, id(position), "it ended", is_ended).await;
    }
    for mut supervisor in supervisors.into_iter().flatten() {
        supervisor.wait().unwrap();
    }
}

pub(crate) async fn a_late_supervisor_starts_nothing() {
    let root = TestRoot::new();
    let once = spec(vec![payload("web", 1, &["sh", "-c", "echo started >> ../../starts"])]);
    let starts = |position| {
        let lines = std::fs::read_to_string(root.incarnation_directory(id(position)).join("starts"))
            .unwrap_or_default();
        lines.lines().count()
    };
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &once)).await;
    until(&processes, id(1), "it ended automatically", is_ended).await;
    processes.carry_out(command(id(2), 2, CommandEffect::Stop, &once)).await;
    until(&processes, id(2), "it is gone", |r| r.observed == ObservedState::Gone).await;
    let tombstone =
        std::fs::read_to_string(root.incarnation_directory(id(2)).join("tombstone.json")).unwrap();
    assert!(tombstone.ends_with(r#"{"revision":2}"#), "{tombstone}");
    drop(processes);
    write_wanted(&root, 3, "down", &once);
    write_wanted(&root, 4, "up", &once);
    for position in 1..=4 {
        assert!(start_supervisor(&root, position).wait().unwrap().success());
    }
    let because = ["it ran once", "it has a tombstone", "its end is requested", "it is desired"];
    for (position, (then, because)) in (1..).zip([1, 0, 0, 1].into_iter().zip(because)) {
        assert_eq!(starts(position), then, "{because}");
    }
    // There is nothing to supervise.
    assert!(start_supervisor(&root, 5).wait().unwrap().success());
}

pub(crate) async fn a_directory_deeper_than_a_socket_path_works() {
    let root = TestRoot::new();
    let deep = root.path().join("a".repeat(100)).join("b".repeat(100));
    let processes = ProcessOrchestrator::open(config(&deep)).await.unwrap();
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    processes.carry_out(command(id(1), 2, CommandEffect::Stop, &sleeper(1))).await;
    until(&processes, id(1), "it ended", is_ended).await;
}
