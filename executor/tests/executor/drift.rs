//! Real processes whose directories, or they themselves, are changed behind the executor's back.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use chancery_events::fact::CommandEffect;
use chancery_events::observation::{
    IncarnationExit, ObjectReport, ObservedState, ProcessInfo, ProcessStatus,
};
use chancery_events::protocol::IncarnationSpec;
use chancery_executor::Orchestrator;
use chancery_executor::process::ProcessOrchestrator;
use rustix::fs::{CWD, RenameFlags};
use rustix::process::Signal;

use crate::world::{
    TestRoot, command, id, is_ended, is_ready, kill, payload, sleeper, spec, until, wait_until,
};

fn processes_of(report: &ObjectReport) -> &[ProcessInfo] {
    let (ObservedState::Ready { processes } | ObservedState::Ended { processes, .. }) = &report.observed
    else {
        panic!("{report:?}")
    };
    processes
}

fn reason(report: &ObjectReport) -> &str {
    let ObservedState::Ended { exit: IncarnationExit::Failed { reason }, .. } = &report.observed else {
        panic!("{report:?}")
    };
    reason
}

/// Returns a spec of two processes that ignore SIGTERM. Each has a child that left its group and session.
fn stubborn() -> IncarnationSpec {
    let script = "trap '' TERM; setsid sleep 3600 & while :; do sleep 3600; done";
    spec(vec![payload("web", 2, &["sh", "-c", script])])
}

/// Returns all processes under the root, also in directories that were deleted.
fn all_of(root: &TestRoot) -> Vec<i32> {
    let mark = format!("CHANCERY_DIRECTORY={}", root.path().display());
    let pids = std::fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_ours = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(mark.as_bytes()))
    };
    pids.filter(is_ours).collect()
}

async fn run(root: &TestRoot, position: u64, spec: &IncarnationSpec) -> (ProcessOrchestrator, ObjectReport) {
    let processes = root.open().await;
    processes.carry_out(command(id(position), 1, CommandEffect::Ensure, spec)).await;
    let ready = until(&processes, id(position), "it is ready", is_ready).await;
    (processes, ready)
}

fn kill_supervisors(root: &TestRoot) {
    for supervisor in root.supervisors() {
        kill(supervisor, Signal::KILL);
    }
    wait_until("the supervisor is dead", || root.supervisors().is_empty());
}

/// Whether this process has the lock of an incarnation's directory, as after adopting orphans.
fn is_locked_here(root: &TestRoot, position: u64) -> bool {
    let inode =
        std::fs::metadata(root.incarnation_directory(id(position)).join("supervisor.lock")).unwrap().ino();
    let held = format!("FLOCK  ADVISORY  WRITE {} ", std::process::id());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|lock| lock.contains(&held) && lock.contains(&format!(":{inode} ")))
}

pub(crate) async fn a_process_that_is_killed_from_outside_is_an_end_with_its_signal() {
    let root = TestRoot::new();
    let (processes, ready) = run(&root, 1, &sleeper(2)).await;
    kill(processes_of(&ready)[1].pid.unwrap() as i32, Signal::KILL);
    let ended = until(&processes, id(1), "it has ended", is_ended).await;
    assert_eq!(reason(&ended), "web-1 was ended by signal 9");
    assert_eq!(root.payloads(), Vec::<i32>::new(), "its sibling is ended");
    // An incarnation is not ready while its siblings are slow to end.
    let (processes, ready) = run(&root, 2, &stubborn()).await;
    // Each shell ignores the signal by the time its two children run.
    wait_until("the shells ignore the signal", || root.payloads_of(id(2)).len() == 6);
    kill(processes_of(&ready)[1].pid.unwrap() as i32, Signal::KILL);
    let seen = until(&processes, id(2), "the death is reported", |r| {
        matches!(r.observed, ObservedState::NotReady { .. })
    })
    .await;
    let ObservedState::NotReady { processes: seen } = &seen.observed else { unreachable!() };
    assert_eq!(seen[1].status, ProcessStatus::Signaled { signal: 9 });
    assert!(!root.payloads_of(id(2)).is_empty(), "its sibling has its grace");
}

pub(crate) async fn an_orphan_that_is_killed_from_outside_is_an_end_with_unknown_status() {
    let root = TestRoot::new();
    let (processes, ready) = run(&root, 1, &sleeper(2)).await;
    kill_supervisors(&root);
    kill(processes_of(&ready)[0].pid.unwrap() as i32, Signal::KILL);
    let ended = until(&processes, id(1), "it has ended", is_ended).await;
    assert_eq!(processes_of(&ended)[0].status, ProcessStatus::Unknown);
    assert_eq!(root.payloads(), Vec::<i32>::new(), "its sibling is ended");
}

type DirectoryChange = fn(&TestRoot, &Path);

fn remove(_: &TestRoot, directory: &Path) {
    // Files written in the meantime must be removed too.
    while let Err(error) = std::fs::remove_dir_all(directory) {
        match error.kind() {
            std::io::ErrorKind::NotFound => return,
            std::io::ErrorKind::DirectoryNotEmpty => {}
            _ => panic!("{error}"),
        }
    }
}

fn rename(root: &TestRoot, directory: &Path) {
    std::fs::rename(directory, root.path().join("aside")).unwrap();
}

fn rename_node(root: &TestRoot, directory: &Path) {
    std::fs::rename(directory.parent().unwrap(), root.path().join("aside")).unwrap();
}

fn replace(root: &TestRoot, directory: &Path) {
    let copy = root.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(directory).arg(&copy).status();
    assert!(copied.unwrap().success());
    // Exchanged atomically: a check in between would find it removed.
    rustix::fs::renameat_with(CWD, &copy, CWD, directory, RenameFlags::EXCHANGE).unwrap();
    std::fs::rename(copy, root.path().join("aside")).unwrap();
}

const LOSSES: [(&str, DirectoryChange, &str); 4] = [
    ("removed", remove, "incarnation directory removed"),
    ("renamed", rename, "incarnation directory removed"),
    ("its parent renamed", rename_node, "incarnation directory removed"),
    ("replaced by a copy", replace, "incarnation directory replaced"),
];

pub(crate) async fn what_loses_its_directory_is_ended_immediately_and_reported_with_the_reason() {
    for (what, lose, because) in LOSSES {
        for supervisor in ["lives", "was killed before", "is killed with it"] {
            let root = TestRoot::new();
            let (processes, _) = run(&root, 1, &stubborn()).await;
            wait_until("all run", || all_of(&root).len() >= 4);
            if supervisor == "was killed before" {
                kill_supervisors(&root);
                wait_until("they are adopted", || is_locked_here(&root, 1));
            }
            lose(&root, &root.incarnation_directory(id(1)));
            if supervisor == "is killed with it" {
                kill_supervisors(&root);
            }
            let ended = until(&processes, id(1), "it has ended", is_ended).await;
            assert_eq!(
                (reason(&ended), processes_of(&ended).len()),
                (because, 2),
                "{what}, supervisor {supervisor}"
            );
            assert_eq!(all_of(&root), Vec::<i32>::new(), "{what}: no process is left");
            wait_until("no supervisor is left", || root.supervisors().is_empty());
            // The end stays proved from then on.
            drop(processes);
            let processes = root.open().await;
            assert_eq!(until(&processes, id(1), "its end is kept", |_| true).await, ended, "{what}");
            processes.carry_out(command(id(1), 2, CommandEffect::Stop, &stubborn())).await;
            until(&processes, id(1), "a stop reports the same end", |r| r.revision == 2 && is_ended(r)).await;
            processes.forget(id(1).into()).await;
            assert!(!processes.list().await.unwrap().iter().any(|report| report.object == id(1).into()));
        }
    }
}

pub(crate) async fn a_supervisor_alone_ends_what_loses_its_directory() {
    let mut roots = Vec::new();
    for (what, lose, _) in LOSSES {
        let root = TestRoot::new();
        drop(run(&root, 1, &stubborn()).await);
        lose(&root, &root.incarnation_directory(id(1)));
        roots.push((what, root));
    }
    for (what, root) in roots {
        wait_until("no process is left", || all_of(&root).is_empty() && root.supervisors().is_empty());
        let processes = root.open().await;
        assert!(
            !processes.list().await.unwrap().iter().any(is_ready),
            "{what}: no report claims that it runs"
        );
    }
}

pub(crate) async fn a_directory_that_was_moved_away_holds_the_end_when_it_is_moved_back() {
    let root = TestRoot::new();
    let (processes, _) = run(&root, 1, &sleeper(1)).await;
    drop(processes);
    let aside = root.path().join("aside");
    std::fs::rename(root.incarnation_directory(id(1)), &aside).unwrap();
    wait_until("no process is left", || all_of(&root).is_empty() && root.supervisors().is_empty());
    std::fs::rename(&aside, root.incarnation_directory(id(1))).unwrap();
    let processes = root.open().await;
    let ended = until(&processes, id(1), "it has ended", is_ended).await;
    assert_eq!(reason(&ended), "incarnation directory removed");
}

pub(crate) async fn what_has_lost_directory_and_supervisor_is_found_by_the_next_executor_and_ended() {
    let root = TestRoot::new();
    let (processes, _) = run(&root, 1, &stubborn()).await;
    drop(processes);
    kill_supervisors(&root);
    std::fs::remove_dir_all(root.incarnation_directory(id(1))).unwrap();
    assert!(all_of(&root).len() >= 4, "processes continue to run");
    let processes = root.open().await;
    let ended = until(&processes, id(1), "it has ended", is_ended).await;
    assert_eq!((reason(&ended), ended.revision), ("incarnation directory removed", 0));
    assert_eq!(all_of(&root), Vec::<i32>::new(), "no process is left");
    processes.carry_out(command(id(1), 3, CommandEffect::Ensure, &stubborn())).await;
    until(&processes, id(1), "an end is final", |r| r.revision == 3 && is_ended(r)).await;
}

pub(crate) async fn records_that_are_removed_or_altered_are_written_again_and_end_nothing() {
    let altered: DirectoryChange = |_, file| std::fs::write(file, "rubbish").unwrap();
    let removed: DirectoryChange = |_, file| std::fs::remove_file(file).unwrap();
    let root = TestRoot::new();
    for (position, executor_lives, orphaned) in [(1, true, false), (2, false, false), (3, true, true)] {
        let spec = sleeper(1);
        let (processes, ready) = run(&root, position, &spec).await;
        let directory = root.incarnation_directory(id(position));
        if orphaned {
            for supervisor in root.supervisors() {
                kill(supervisor, Signal::KILL);
            }
            wait_until("the supervisors are dead", || root.supervisors().is_empty());
            wait_until("they are adopted", || is_locked_here(&root, position));
        }
        let mut living = Some(processes);
        if !executor_lives {
            living = None;
        }
        for act in [altered, removed] {
            let copies = ["spec.json", "spec.copy", "processes.json", "processes.copy"];
            let copies: Vec<PathBuf> = copies.iter().map(|copy| directory.join(copy)).collect();
            for copy in &copies {
                act(&root, copy);
            }
            let is_whole = |copy: &PathBuf| {
                std::fs::read(copy).is_ok_and(|bytes| bytes.starts_with(b"chancery-record "))
            };
            wait_until("all copies are restored", || copies.iter().all(is_whole));
        }
        drop(living);
        let processes = root.open().await;
        let adopted = until(&processes, id(position), "it is adopted", is_ready).await;
        assert_eq!(adopted, ready, "executor: {executor_lives}, orphaned: {orphaned}");
    }
}

pub(crate) async fn a_lock_and_a_socket_that_are_taken_away_are_made_again() {
    let root = TestRoot::new();
    let (processes, ready) = run(&root, 1, &sleeper(1)).await;
    let mut living = Some(processes);
    for alone in [false, true] {
        if alone {
            living = None;
        }
        let files =
            ["supervisor.lock", "supervisor.sock"].map(|file| root.incarnation_directory(id(1)).join(file));
        for file in &files {
            std::fs::remove_file(file).unwrap();
        }
        wait_until("the files are restored", || files.iter().all(|file| file.exists()));
        drop(living.take());
        let processes = root.open().await;
        assert_eq!(until(&processes, id(1), "it is adopted", is_ready).await, ready);
        assert_eq!((root.supervisors().len(), root.payloads().len()), (1, 1), "the supervisor is the same");
        living = Some(processes);
    }
    let processes = living.expect("the executor is open");
    processes.carry_out(command(id(1), 2, CommandEffect::Stop, &sleeper(1))).await;
    let ended = until(&processes, id(1), "it is stopped", is_ended).await;
    assert!(
        matches!(ended.observed, ObservedState::Ended { exit: IncarnationExit::Clean, .. }),
        "ended by its supervisor: {ended:?}"
    );
}
