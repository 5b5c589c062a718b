//! Real processes: lives and deaths of executors, keepers and payloads.

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use chancery_events::fact::Effect;
use chancery_events::observation::{Exit, Hope, ProcessStatus, Report, Saw};
use chancery_events::protocol::RunSpec;
use chancery_events::spec::{Port, Probe, Protocol};
use chancery_executor::Orchestrator;
use chancery_executor::process::{Processes, log_files};
use rustix::process::Signal;

use crate::world::{
    Root, block_on, command, config, id, is_ended, is_ready, kill, payload, sleeper, spec, until, wait_until,
};

/// An executor that ensures so many incarnations and then waits to be killed.
pub(crate) fn victim(root: &Path, count: u64) -> ExitCode {
    block_on(async {
        let processes = Processes::open(config(root)).await.expect("the root can be opened");
        for position in 1..=count {
            processes.carry_out(command(id(position), 1, Effect::Ensure, &sleeper(1))).await;
        }
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

fn start_victim(root: &Root, count: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["as-victim", root.path().to_str().unwrap(), &count.to_string()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

pub(crate) async fn killing_the_executor_at_any_moment_neither_loses_nor_doubles() {
    let root = Root::new();
    let lives: u64 = std::env::var("LIVES").ok().and_then(|n| n.parse().ok()).unwrap_or(120);
    // Kills fall into every phase of the starts: after 0 to 12 ms and a bit, in an order without a pattern.
    for life in 0..lives {
        let mut victim = start_victim(&root, life / 4 + 1);
        std::thread::sleep(Duration::from_micros(life * 7919 % 25_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    let count = lives.div_ceil(4);
    let processes = root.open().await;
    for position in 1..=count {
        processes.carry_out(command(id(position), 1, Effect::Ensure, &sleeper(1))).await;
    }
    for position in 1..=count {
        until(&processes, id(position), "it is ready", is_ready).await;
    }
    wait_until("no trampoline is left", || root.trampolines() == 0);
    // Keepers that came too late for the lock give up after a while, without having started anything.
    wait_until("each has one keeper", || root.keepers().len() as u64 == count);
    assert_eq!(root.payloads().len() as u64, count, "one process for each that is wanted");
    for position in 1..=count {
        assert_eq!(root.payloads_of(id(position)).len(), 1);
    }
}

pub(crate) async fn adoption_keeps_pids_and_ports() {
    let root = Root::new();
    let mut with_port = payload("web", 3, &["sleep", "3600"]);
    with_port.ports = vec![Port { name: "http".parse().unwrap(), protocol: Protocol::Tcp, port: 80 }];
    let spec = spec(vec![with_port]);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, Effect::Ensure, &spec)).await;
    let before = until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    let processes = root.open().await;
    let after = until(&processes, id(1), "it is adopted", is_ready).await;
    assert_eq!(after, before, "pids and ports stay");
    let Saw::Ready { processes: told } = &after.saw else { unreachable!() };
    let mut pids: Vec<_> = told.iter().map(|p| p.pid.unwrap() as i32).collect();
    let mut seen = root.payloads();
    pids.sort_unstable();
    seen.sort_unstable();
    assert_eq!(pids, seen, "the pids told are those of the processes");
    let ports: std::collections::BTreeSet<_> = told.iter().map(|p| &p.addresses[0].address).collect();
    assert_eq!(ports.len(), 3, "each process has a port of its own");
}

/// A folder as a dead keeper leaves it, naming a process.
fn write_record(root: &Root, position: u64, pid: u32, start_time: u64, boot: &str) {
    let folder = root.folder(id(position));
    let program = serde_json::to_value(config(root.path()).program).unwrap();
    let order = serde_json::json!({
        "revision": 1, "attempt": 1, "aim": "up", "grace": {"secs": 1, "nanos": 0}
    });
    let wanted = serde_json::json!({
        "incarnation": id(position), "order": order, "spec": sleeper(1), "program": program
    });
    let record = serde_json::json!({"boot": boot, "phase": "started", "processes": [{
        "payload": "web", "index": 0, "pid": pid, "start_time": start_time, "addresses": [], "end": null
    }]});
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("spec.json"), wanted.to_string()).unwrap();
    std::fs::write(folder.join("processes.json"), record.to_string()).unwrap();
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

fn start_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

pub(crate) async fn a_pid_that_is_another_process_is_neither_adopted_nor_killed() {
    let root = Root::new();
    let mut bystander = Command::new("sleep").arg("3600").spawn().unwrap();
    let pid = bystander.id();
    write_record(&root, 1, pid, start_time(pid) - 1, &boot());
    write_record(&root, 2, pid, start_time(pid), "another boot");
    write_record(&root, 3, pid, start_time(pid), &boot());
    let processes = root.open().await;
    for position in [1, 2] {
        let ended = until(&processes, id(position), "what has another identity is dead", is_ended).await;
        let Saw::Ended { processes: told, .. } = &ended.saw else { unreachable!() };
        assert_eq!(told[0].status, ProcessStatus::Unknown);
        processes.carry_out(command(id(position), 2, Effect::Kill, &sleeper(1))).await;
        until(&processes, id(position), "it stays ended", |r| r.revision == 2 && is_ended(r)).await;
    }
    // Only now the third, so that whatever the first two do to the bystander would have been seen.
    assert!(bystander.try_wait().unwrap().is_none(), "the bystander lives");
    until(&processes, id(3), "the same identity is adopted", is_ready).await;
    processes.carry_out(command(id(3), 2, Effect::Stop, &sleeper(1))).await;
    let ended = until(&processes, id(3), "and ended", is_ended).await;
    assert!(matches!(&ended.saw, Saw::Ended { exit: Exit::Clean, .. }), "{ended:?}");
    bystander.wait().unwrap();
}

pub(crate) async fn stale_files_do_not_block() {
    let root = Root::new();
    let folder = root.folder(id(1));
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["keeper.lock", "keeper.sock", "keeper.log", "spec.new", "processes.new"] {
        std::fs::write(folder.join(file), "rubbish").unwrap();
    }
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, Effect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
}

pub(crate) async fn orphans_of_a_dead_keeper_are_adopted_and_ended() {
    let root = Root::new();
    // The second process leaves its group and session, and its parent.
    let script = "setsid sleep 3600 & exec sleep 3600";
    let spec = spec(vec![payload("web", 2, &["sh", "-c", script])]);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, Effect::Ensure, &spec)).await;
    let before = until(&processes, id(1), "it is ready", is_ready).await;
    wait_until("all four run", || root.payloads().len() == 4);
    for keeper in root.keepers() {
        kill(keeper, Signal::KILL);
    }
    wait_until("the keeper is dead", || root.keepers().is_empty());
    let mut processes = processes;
    for restarted in [false, true] {
        if restarted {
            drop(processes);
            processes = root.open().await;
        }
        processes.carry_out(command(id(1), 1, Effect::Ensure, &spec)).await;
        let after = until(&processes, id(1), "the orphans are adopted", is_ready).await;
        assert_eq!(
            (after, root.payloads().len()),
            (before.clone(), 4),
            "as they are; restarted: {restarted}"
        );
    }
    drop(processes);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 2, Effect::Stop, &spec)).await;
    let ended = until(&processes, id(1), "they are ended", is_ended).await;
    assert!(matches!(&ended.saw, Saw::Ended { exit: Exit::Clean, .. }), "{ended:?}");
    assert_eq!(root.payloads(), Vec::<i32>::new(), "ended means all of them");
}

pub(crate) async fn a_keeper_that_dies_before_it_tells_leaves_nothing() {
    let root = Root::new();
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

pub(crate) async fn one_that_dies_ends_its_siblings_and_their_children() {
    let root = Root::new();
    // Each leaves a child in a session of its own; the second dies.
    let script =
        "setsid sleep 3600 & while [ ! -e ../../die-$$CHANCERY_PROCESS ]; do sleep 0.01; done; exit 9";
    let spec = spec(vec![payload("web", 3, &["sh", "-c", script])]);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, Effect::Ensure, &spec)).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    std::fs::write(root.folder(id(1)).join("die-1"), "").unwrap();
    let ended = until(&processes, id(1), "it ended", is_ended).await;
    let Saw::Ended { exit: Exit::Failed { reason }, processes: told } = &ended.saw else {
        panic!("{ended:?}")
    };
    assert_eq!(reason, "web-1 ended with status 9");
    assert_eq!(told[1].status, ProcessStatus::Exited { code: 9 });
    assert!(matches!(told[0].status, ProcessStatus::Signaled { signal: 15 }), "{told:?}");
    assert_eq!(root.payloads(), Vec::<i32>::new(), "no descendant is left");
    wait_until("the keeper is done", || root.keepers().is_empty());
}

pub(crate) async fn what_ignores_the_asking_is_killed() {
    let root = Root::new();
    let script = "trap '' TERM; touch ../../deaf; while true; do sleep 0.05; done";
    let spec = spec(vec![payload("web", 1, &["sh", "-c", script])]);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, Effect::Ensure, &spec)).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    wait_until("it is deaf", || root.folder(id(1)).join("deaf").exists());
    let grace = Duration::from_millis(300);
    let begun = std::time::Instant::now();
    processes
        .carry_out(chancery_events::protocol::Command { grace, ..command(id(1), 2, Effect::Stop, &spec) })
        .await;
    let ended = until(&processes, id(1), "it is killed", is_ended).await;
    assert!(begun.elapsed() >= grace, "not before the grace is over");
    let Saw::Ended { exit: Exit::Clean, processes: told } = &ended.saw else { panic!("{ended:?}") };
    assert_eq!(told[0].status, ProcessStatus::Signaled { signal: 9 });
    // A kill does not wait for the grace of a stop.
    processes.carry_out(command(id(2), 1, Effect::Ensure, &spec)).await;
    until(&processes, id(2), "it is ready", is_ready).await;
    wait_until("it is deaf", || root.folder(id(2)).join("deaf").exists());
    let long = Duration::from_hours(1);
    processes
        .carry_out(chancery_events::protocol::Command {
            grace: long,
            ..command(id(2), 2, Effect::Stop, &spec)
        })
        .await;
    processes.carry_out(command(id(2), 3, Effect::Kill, &spec)).await;
    until(&processes, id(2), "it is killed at once", |r| r.revision == 3 && is_ended(r)).await;
}

fn served(script: &str, ready: Probe) -> RunSpec {
    let mut served = payload("web", 1, &["python3", "-c", script, "${port.http}", "${version}"]);
    served.ports = vec![Port { name: "http".parse().unwrap(), protocol: Protocol::Tcp, port: 80 }];
    served.coordinates.insert("version".parse().unwrap(), "v1".to_owned());
    served.ready = Some(ready);
    spec(vec![served])
}

pub(crate) async fn placeholders_and_readiness() {
    let root = Root::new();
    let script = r"
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = self.path == '/health' and os.path.exists('healthy')
        self.send_response(200 if ok else 503); self.end_headers()
print(sys.argv[2], os.environ['PORT_HTTP'] == sys.argv[1], os.getcwd() == os.environ['HOME'], sorted(os.environ), flush=True)
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";
    let http = Probe::Http { port: "http".parse().unwrap(), path: "/health".to_owned() };
    let script = script.replace('$', "$$");
    let spec = served(&script, http);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, Effect::Ensure, &spec)).await;
    until(&processes, id(1), "it is started, not ready", |r| matches!(r.saw, Saw::Ensured { .. })).await;
    let healthy = root.folder(id(1)).join("web-0/work/healthy");
    std::fs::write(&healthy, "").unwrap();
    let ready = until(&processes, id(1), "it is ready", is_ready).await;
    std::fs::remove_file(&healthy).unwrap();
    until(&processes, id(1), "it is not ready any more", |r| matches!(r.saw, Saw::NotReady { .. })).await;
    std::fs::write(&healthy, "").unwrap();
    let again = until(&processes, id(1), "it is ready again", is_ready).await;
    assert_eq!(again, ready);
    let logs = log_files(root.path(), id(1)).unwrap();
    assert_eq!(
        logs.iter().map(|log| log.path.file_name().unwrap().to_str().unwrap()).collect::<Vec<_>>(),
        ["web-0.out", "web-0.err"]
    );
    let out = std::fs::read_to_string(&logs[0].path).unwrap();
    assert!(out.starts_with("v1 True True"), "{out}");
    for name in
        ["CHANCERY_REPLICA", "CHANCERY_NODE", "CHANCERY_PAYLOAD", "CHANCERY_PROCESS", "CHANCERY_INCARNATION"]
    {
        assert!(out.contains(name), "{name} is in {out}");
    }
    assert!(!out.contains("CARGO"), "the environment is scrubbed: {out}");
}

pub(crate) async fn what_is_wrong_with_a_run_is_said() {
    let root = Root::new();
    let processes = root.open().await;
    let mut nothing = payload("web", 1, &[]);
    nothing.run = None;
    let cases = [
        (vec![payload("web", 1, &["/no/such"])], "/no/such"),
        (
            vec![payload("web", 2, &["sleep", "3600"]), payload("bad", 1, &["/etc/passwd"])],
            "Permission denied",
        ),
        (vec![payload("web", 1, &["sleep", "${port.nope}"])], "${port.nope}"),
        (vec![payload("web", 1, &[])], "argv is empty"),
        (vec![nothing], "nothing to run"),
        (vec![], "no process"),
    ];
    for (position, (payloads, says)) in (1..).zip(cases) {
        processes.carry_out(command(id(position), 1, Effect::Ensure, &spec(payloads))).await;
        let failed = |r: &Report| matches!(r.saw, Saw::Failed { .. });
        let report = until(&processes, id(position), says, failed).await;
        let Saw::Failed { message, hope: Hope::Never } = &report.saw else { panic!("{report:?}") };
        assert!(message.contains(says), "{message:?} says {says:?}");
    }
    assert_eq!(root.payloads(), Vec::<i32>::new(), "what was started beside is not left");
    // What is wrong here, and not with the plan, may be better later.
    let mut broken = config(root.path());
    broken.root = root.path().join("broken");
    broken.program.keeper_args = vec!["as-keeper".into(), "too".into(), "many".into(), "--help".into()];
    let processes = Processes::open(broken).await.unwrap();
    processes.carry_out(command(id(1), 1, Effect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "a keeper that cannot be", |r| {
        matches!(r.saw, Saw::Failed { hope: Hope::Retry, .. })
    })
    .await;
}

pub(crate) async fn two_keepers_start_one_set() {
    let root = Root::new();
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, Effect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    let keeper = |root: &Root| {
        let mut keeper = Command::new(std::env::current_exe().unwrap());
        keeper.arg("as-keeper").arg(root.folder(id(1))).stdin(Stdio::null()).spawn().unwrap()
    };
    // One that comes late, while another keeps; and one that comes when all is over.
    assert!(keeper(&root).wait().unwrap().success());
    assert_eq!(root.payloads().len(), 1);
    processes.carry_out(command(id(1), 2, Effect::Stop, &sleeper(1))).await;
    until(&processes, id(1), "it ended", is_ended).await;
    drop(processes);
    assert!(keeper(&root).wait().unwrap().success());
    assert_eq!(root.payloads().len(), 0);
}

pub(crate) async fn a_folder_deeper_than_a_socket_path_works() {
    let root = Root::new();
    let deep = root.path().join("a".repeat(100)).join("b".repeat(100));
    let processes = Processes::open(config(&deep)).await.unwrap();
    processes.carry_out(command(id(1), 1, Effect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    processes.carry_out(command(id(1), 2, Effect::Stop, &sleeper(1))).await;
    until(&processes, id(1), "it ended", is_ended).await;
}
