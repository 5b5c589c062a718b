//! Real processes and reboots of their machine: everything dies, and the next executor sees another boot id.

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::id::IncarnationId;
use chancery_events::observation::{
    IncarnationExit, ObjectReport, ObservedState, ProcessInfo, ProcessStatus,
};
use chancery_events::protocol::IncarnationSpec;
use chancery_events::spec::RestartPolicy;
use chancery_executor::Orchestrator;
use chancery_executor::process::{BootId, ProcessConfig, ProcessOrchestrator};
use rustix::process::Signal;

use crate::world::{
    TestRoot, block_on, command, config, id, is_ended, is_ready, kill, payload, probed, spec, until,
    wait_until,
};

fn boot(number: u64) -> BootId {
    BootId { id: format!("boot {number}"), machine: Some("here".into()) }
}

fn config_of(root: &Path, boot: BootId) -> ProcessConfig {
    ProcessConfig { boot: Some(boot), ..config(root) }
}

async fn open(root: &TestRoot, number: u64) -> ProcessOrchestrator {
    ProcessOrchestrator::open(config_of(root.path(), boot(number))).await.unwrap()
}

/// Kills everything that runs under the root, as a power cut does.
pub(crate) fn power_cut(root: &TestRoot) {
    wait_until("all processes are dead", || {
        let left: Vec<i32> = root.supervisors().into_iter().chain(root.payloads()).collect();
        for pid in &left {
            kill(*pid, Signal::KILL);
        }
        left.is_empty() && root.trampolines() == 0
    });
}

/// Returns a spec whose process records each start in its directory, and runs on.
fn counted(restart: RestartPolicy) -> IncarnationSpec {
    let script = "echo started >> ../../starts; exec sleep 3600";
    IncarnationSpec { restart, ..spec(vec![payload("web", 1, &["sh", "-c", script])]) }
}

fn starts(root: &TestRoot, id: IncarnationId) -> usize {
    std::fs::read_to_string(root.incarnation_directory(id).join("starts")).unwrap_or_default().lines().count()
}

/// Waits until an incarnation has recorded this many starts: it is ready once its shell runs, before the
/// shell has written anything.
fn wait_for_starts(root: &TestRoot, id: IncarnationId, count: usize) {
    wait_until(&format!("{id} records {count} starts"), || starts(root, id) >= count);
    assert_eq!(starts(root, id), count, "{id}");
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

/// Runs an executor that loads its store after a reboot and then waits to be killed.
pub(crate) fn victim(root: &Path, number: u64) -> ExitCode {
    block_on(async {
        let _processes =
            ProcessOrchestrator::open(config_of(root, boot(number))).await.expect("the root can be opened");
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

fn start_victim(root: &TestRoot, number: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["as-rebooted", root.path().to_str().unwrap(), &number.to_string()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

pub(crate) async fn a_slow_start_after_a_reboot_does_not_count_as_unresponsive() {
    // The second start takes two seconds before the process listens.
    let script = "
import os, socket, sys, time
if os.path.exists('../../started'):
    time.sleep(2)
open('../../started', 'w').close()
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
time.sleep(3600)
";
    let root = TestRoot::new();
    let slow = IncarnationSpec { restart: RestartPolicy::Always, ..probed(1, script) };
    let processes = open(&root, 1).await;
    processes.carry_out(command(id(1), 3, CommandEffect::Ensure, &slow)).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    power_cut(&root);
    let processes = open(&root, 2).await;
    let answers = |report: &ObjectReport| {
        let hung = |process: &ProcessInfo| matches!(process.status, ProcessStatus::Unresponsive { .. });
        assert!(!processes_of(report).iter().any(hung), "it has not been ready since the reboot: {report:?}");
        is_ready(report)
    };
    until(&processes, id(1), "it is ready again", answers).await;
    processes.carry_out(command(id(1), 4, CommandEffect::Kill, &slow)).await;
    until(&processes, id(1), "it is ended", |r| r.revision == 4 && is_ended(r)).await;
}

pub(crate) async fn only_incarnations_with_restart_always_restart_after_a_reboot_without_a_decider() {
    let root = TestRoot::new();
    let (always, once) = (counted(RestartPolicy::Always), counted(RestartPolicy::OnFailure));
    let processes = open(&root, 1).await;
    for (position, spec) in [
        (1, &always),
        (2, &once),
        (3, &counted(RestartPolicy::Never)),
        (4, &always),
        (5, &IncarnationSpec { restart: RestartPolicy::Always, ..spec(vec![payload("web", 1, &["false"])]) }),
        (
            6,
            &IncarnationSpec {
                restart: RestartPolicy::Always,
                ..spec(vec![payload("web", 1, &["/no/such/program"])])
            },
        ),
    ] {
        processes.carry_out(command(id(position), 3, CommandEffect::Ensure, spec)).await;
    }
    let before = until(&processes, id(1), "it is ready", is_ready).await;
    for position in [2, 3, 4] {
        until(&processes, id(position), "it is ready", is_ready).await;
    }
    for position in 1..=4 {
        wait_for_starts(&root, id(position), 1);
    }
    processes.carry_out(command(id(4), 4, CommandEffect::Stop, &always)).await;
    let stopped = until(&processes, id(4), "it is stopped", is_ended).await;
    let ended = until(&processes, id(5), "it ended automatically", is_ended).await;
    let failed =
        until(&processes, id(6), "it fails", |r| matches!(r.observed, ObservedState::Failed { .. })).await;
    processes.carry_out(command(id(7), 4, CommandEffect::Stop, &always)).await;
    let gone = until(&processes, id(7), "it is gone", |r| r.observed == ObservedState::Gone).await;
    drop(processes);
    power_cut(&root);
    let processes = open(&root, 2).await;
    // No end is reported before it is certain.
    let first = processes.list().await.unwrap();
    let first = first.iter().find(|report| report.object == id(1).into()).expect("it is listed");
    assert!(
        matches!(first.observed, ObservedState::NotReady { .. } | ObservedState::Ready { .. }),
        "{first:?}"
    );
    assert!(
        processes_of(first).iter().all(|process| process.pid != processes_of(&before)[0].pid),
        "dead processes are not reported"
    );
    let after = until(&processes, id(1), "it runs again", is_ready).await;
    assert_eq!(after.revision, 3, "the revision is unchanged");
    assert_ne!(processes_of(&after)[0].pid, processes_of(&before)[0].pid, "the process is new");
    // The directory is the same.
    wait_for_starts(&root, id(1), 2);
    for position in [2, 3] {
        let ended = until(&processes, id(position), "it has ended with the machine", is_ended).await;
        assert_eq!(processes_of(&ended)[0].status, ProcessStatus::Unknown);
        assert_eq!(starts(&root, id(position)), 1);
    }
    for (position, then) in [(4, stopped), (5, ended), (6, failed), (7, gone)] {
        assert_eq!(until(&processes, id(position), "it is unchanged", |_| true).await, then);
    }
    assert_eq!((starts(&root, id(4)), root.payloads().len()), (1, 1), "no other process was started");
    // Commands apply as to any incarnation: the ensure is met, and a stop works.
    processes.carry_out(command(id(1), 3, CommandEffect::Ensure, &always)).await;
    assert_eq!(until(&processes, id(1), "it is adopted", is_ready).await, after);
    processes.carry_out(command(id(1), 4, CommandEffect::Stop, &always)).await;
    until(&processes, id(1), "it is stopped", |r| r.revision == 4 && is_ended(r)).await;
    drop(processes);
    let processes = open(&root, 3).await;
    until(&processes, id(1), "it stays ended after the next reboot", |r| r.revision == 4 && is_ended(r))
        .await;
    assert_eq!((starts(&root, id(1)), root.payloads().len()), (2, 0));
}

pub(crate) async fn killing_the_executor_at_any_moment_after_a_reboot_starts_each_once_a_boot() {
    const COUNT: u64 = 12;
    let root = TestRoot::new();
    let always = counted(RestartPolicy::Always);
    let processes = open(&root, 1).await;
    for position in 1..=COUNT {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &always)).await;
    }
    for position in 1..=COUNT {
        until(&processes, id(position), "it is ready", is_ready).await;
        wait_for_starts(&root, id(position), 1);
    }
    drop(processes);
    let lives: u64 = std::env::var("LIVES").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    for number in 2..=3 {
        power_cut(&root);
        for epoch in 0..lives {
            let mut victim = start_victim(&root, number);
            std::thread::sleep(Duration::from_micros(epoch * 7919 % 30_000));
            victim.kill().unwrap();
            victim.wait().unwrap();
        }
        let processes = open(&root, number).await;
        for position in 1..=COUNT {
            until(&processes, id(position), "it runs again", is_ready).await;
        }
        drop(processes);
        wait_until("no trampoline is left", || root.trampolines() == 0);
        wait_until("each has one supervisor", || root.supervisors().len() as u64 == COUNT);
        for position in 1..=COUNT {
            assert_eq!(root.payloads_of(id(position)).len(), 1, "one set of processes");
            // Once in each boot.
            wait_for_starts(&root, id(position), usize::try_from(number).unwrap());
        }
    }
}

pub(crate) async fn a_second_reboot_before_anything_was_started_restarts_the_same_incarnations() {
    let root = TestRoot::new();
    let always = counted(RestartPolicy::Always);
    let processes = open(&root, 1).await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &always)).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    // The power cut hits any moment between detecting the reboot and starting the program.
    for number in 2..30 {
        power_cut(&root);
        let mut victim = start_victim(&root, number);
        std::thread::sleep(Duration::from_micros(number * 1009 % 15_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    power_cut(&root);
    let processes = open(&root, 30).await;
    until(&processes, id(1), "it runs again", is_ready).await;
    assert_eq!(root.payloads().len(), 1);
}

pub(crate) async fn one_that_cannot_be_started_again_has_ended_with_its_reason_and_holds_back_no_other() {
    let root = TestRoot::new();
    let program = root.path().join("program");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let argv = [program.to_str().unwrap(), "3600"];
    let removed = IncarnationSpec { restart: RestartPolicy::Always, ..spec(vec![payload("web", 1, &argv)]) };
    let always = counted(RestartPolicy::Always);
    let processes = open(&root, 1).await;
    // More than may start concurrently.
    for position in 1..=40 {
        let spec = if position <= 20 { &removed } else { &always };
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, spec)).await;
    }
    for position in 1..=40 {
        until(&processes, id(position), "it is ready", is_ready).await;
    }
    drop(processes);
    power_cut(&root);
    std::fs::remove_file(&program).unwrap();
    let processes = open(&root, 2).await;
    for position in 1..=20 {
        let ended = until(&processes, id(position), "it has ended", is_ended).await;
        let ObservedState::Ended { exit: IncarnationExit::Failed { reason }, .. } = &ended.observed else {
            panic!("{ended:?}")
        };
        assert!(reason.contains("after reboot") && reason.contains("program: No such file"), "{reason}");
    }
    for position in 21..=40 {
        until(&processes, id(position), "it runs again", is_ready).await;
    }
    drop(processes);
    let processes = open(&root, 2).await;
    let reports = processes.list().await.unwrap();
    let ended = reports.iter().filter(|report| is_ended(report)).count();
    assert_eq!((ended, root.payloads().len()), (20, 20), "an end is final");
}

pub(crate) async fn a_supervisor_that_cannot_start_after_a_reboot_is_an_end_with_its_reason() {
    let root = TestRoot::new();
    let processes = open(&root, 1).await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &counted(RestartPolicy::Always))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    power_cut(&root);
    let mut broken = config_of(root.path(), boot(2));
    broken.program.program = "/bin/false".into();
    let processes = ProcessOrchestrator::open(broken).await.unwrap();
    let ended = until(&processes, id(1), "it has ended", is_ended).await;
    let ObservedState::Ended { exit: IncarnationExit::Failed { reason }, .. } = &ended.observed else {
        panic!("{ended:?}")
    };
    assert!(reason.contains("supervisor exited before it started processes"), "{reason}");
}

pub(crate) async fn a_stop_of_an_incarnation_that_waits_for_its_restart_is_not_undone() {
    let root = TestRoot::new();
    let always = counted(RestartPolicy::Always);
    let processes = open(&root, 1).await;
    for position in 1..=40 {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &always)).await;
    }
    for position in 1..=40 {
        until(&processes, id(position), "it is ready", is_ready).await;
        wait_for_starts(&root, id(position), 1);
    }
    drop(processes);
    power_cut(&root);
    let processes = open(&root, 2).await;
    for position in (1..=40).rev() {
        processes.carry_out(command(id(position), 2, CommandEffect::Stop, &always)).await;
    }
    for position in 1..=40 {
        until(&processes, id(position), "it is stopped", |r| r.revision == 2 && is_ended(r)).await;
    }
    let never_started = (1..=40).filter(|position| starts(&root, id(*position)) == 1).count();
    assert!(never_started > 0, "some were not started yet");
    assert_eq!(root.payloads(), Vec::<i32>::new());
}

pub(crate) async fn incarnations_ended_by_a_shutdown_restart_after_the_boot() {
    let root = TestRoot::new();
    let processes = open(&root, 1).await;
    let always = counted(RestartPolicy::Always);
    // As in a shutdown: everything receives SIGTERM, supervisors too.
    let end_everything = || {
        for pid in root.supervisors().into_iter().chain(root.payloads()) {
            kill(pid, Signal::TERM);
        }
    };
    processes.carry_out(command(id(3), 1, CommandEffect::Ensure, &always)).await;
    until(&processes, id(3), "it is ready", is_ready).await;
    end_everything();
    let seen = until(&processes, id(3), "a running executor reports the end", is_ended).await;
    assert_eq!(processes_of(&seen)[0].status, ProcessStatus::Signaled { signal: 15 });
    for position in [1, 2] {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &always)).await;
        until(&processes, id(position), "it is ready", is_ready).await;
    }
    drop(processes);
    end_everything();
    wait_until("everything has ended", || root.supervisors().is_empty() && root.payloads().is_empty());
    let directory = root.incarnation_directory(id(2));
    let aside = root.path().join("aside");
    std::fs::rename(&directory, &aside).unwrap();
    let processes = open(&root, 2).await;
    until(&processes, id(1), "it runs again", is_ready).await;
    assert_eq!(until(&processes, id(3), "a reported end is final", |_| true).await, seen);
    drop(processes);
    // The machine did not go down after all: only this incarnation was ended.
    std::fs::rename(&aside, &directory).unwrap();
    let processes = open(&root, 1).await;
    let ended = until(&processes, id(2), "it has ended", is_ended).await;
    assert_eq!(
        processes_of(&ended)[0].status,
        ProcessStatus::Signaled { signal: 15 },
        "as the supervisor observed it"
    );
    drop(processes);
    let processes = open(&root, 3).await;
    assert_eq!(
        until(&processes, id(2), "an end that may have been reported is final", |_| true).await,
        ended
    );
}

pub(crate) async fn a_copy_of_the_directory_on_another_machine_starts_nothing() {
    let root = TestRoot::new();
    let processes = open(&root, 1).await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &counted(RestartPolicy::Always))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    wait_for_starts(&root, id(1), 1);
    drop(processes);
    power_cut(&root);
    let elsewhere = BootId { machine: Some("elsewhere".into()), ..boot(2) };
    let processes = ProcessOrchestrator::open(config_of(root.path(), elsewhere)).await.unwrap();
    until(&processes, id(1), "it has ended on this machine", is_ended).await;
    assert_eq!(starts(&root, id(1)), 1);
}
