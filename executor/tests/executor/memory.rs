//! Memory limits of real processes.
//!
//! A plain directory simulates cgroup v2. The kernel's own is tested where `CHANCERY_TEST_CGROUP` names a
//! cgroup v2 directory that delegates the memory controller.

use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use chancery_events::fact::CommandEffect;
use chancery_events::id::IncarnationId;
use chancery_events::observation::{IncarnationExit, ObjectReport, ObservedState, ProcessStatus, RetryClass};
use chancery_events::protocol::IncarnationSpec;
use chancery_executor::Orchestrator;
use chancery_executor::process::{CgroupSetting, ProcessConfig, ProcessOrchestrator};
use rustix::process::Signal;

use crate::world::{TestRoot, command, config, id, is_ended, is_ready, kill, payload, spec, until};

const MIB: u64 = 1 << 20;

fn limited(memory: u64, argv: &[&str]) -> IncarnationSpec {
    let mut limited = payload("web", 1, argv);
    limited.memory = NonZeroU64::new(memory);
    spec(vec![limited])
}

fn exit_and_status(report: &ObjectReport) -> (&IncarnationExit, &ProcessStatus) {
    let ObservedState::Ended { exit, processes } = &report.observed else { panic!("{report:?}") };
    (exit, &processes[0].status)
}

pub(crate) async fn what_requests_more_than_its_limit_is_refused_it() {
    let root = TestRoot::new();
    let processes = root.open().await;
    let asks = ["python3", "-c", "bytearray(256 << 20)"];
    for (position, memory, code) in [(1, 0, 0), (2, 512 * MIB, 0), (3, 128 * MIB, 1)] {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &limited(memory, &asks))).await;
        let ended = until(&processes, id(position), "it ended", is_ended).await;
        assert_eq!(exit_and_status(&ended).1, &ProcessStatus::Exited { code }, "with {memory} bytes");
    }
}

/// Creates a directory for groups, or a simulated one.
fn groups(root: &TestRoot) -> PathBuf {
    let parent = root.path().join("groups");
    std::fs::create_dir(&parent).unwrap();
    std::fs::write(parent.join("cgroup.subtree_control"), "memory").unwrap();
    parent
}

async fn open(root: &TestRoot, parent: &Path) -> ProcessOrchestrator {
    ProcessOrchestrator::open(ProcessConfig {
        cgroup: CgroupSetting::At(parent.to_owned()),
        ..config(root.path())
    })
    .await
    .unwrap()
}

fn group(root: &TestRoot, parent: &Path, id: IncarnationId) -> PathBuf {
    let root = std::fs::metadata(root.path()).unwrap();
    parent.join(format!("{:x}-{:x}", root.dev(), root.ino())).join(id.to_string()).join("web-0")
}

pub(crate) async fn a_limit_is_that_of_a_group_where_there_are_groups() {
    let root = TestRoot::new();
    let parent = groups(&root);
    let processes = open(&root, &parent).await;
    processes
        .carry_out(command(id(1), 1, CommandEffect::Ensure, &limited(64 * MIB, &["sleep", "3600"])))
        .await;
    until(&processes, id(1), "it is ready", is_ready).await;
    let read = |name: &str| std::fs::read_to_string(group(&root, &parent, id(1)).join(name)).unwrap();
    let [pid] = root.payloads_of(id(1))[..] else { panic!("one process") };
    assert_eq!(
        (read("memory.max"), read("memory.oom.group"), read("cgroup.procs")),
        ((64 * MIB).to_string(), "1".to_owned(), pid.to_string())
    );
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let data: Vec<_> =
        limits.lines().find(|line| line.starts_with("Max data")).unwrap().split_whitespace().collect();
    assert_eq!(data[3..5], ["unlimited", "unlimited"]);
    // No limit needs no group.
    processes.carry_out(command(id(2), 1, CommandEffect::Ensure, &limited(0, &["sleep", "3600"]))).await;
    until(&processes, id(2), "it is ready", is_ready).await;
    assert!(!group(&root, &parent, id(2)).exists());
    // An incarnation whose limit cannot be enforced is not started.
    std::fs::remove_dir_all(&parent).unwrap();
    processes.carry_out(command(id(3), 1, CommandEffect::Ensure, &limited(MIB, &["sleep", "3600"]))).await;
    let failed =
        |r: &ObjectReport| matches!(r.observed, ObservedState::Failed { retry: RetryClass::Retryable, .. });
    until(&processes, id(3), "its group cannot be created", failed).await;
    assert!(root.payloads_of(id(3)).is_empty());
}

pub(crate) async fn lack_of_memory_is_reported_as_the_cause_of_death() {
    let root = TestRoot::new();
    let parent = groups(&root);
    let processes = open(&root, &parent).await;
    let script = "while [ ! -e exit ]; do sleep 0.01; done; exit 1";
    let spec = limited(64 * MIB, &["sh", "-c", script]);
    let killed = ProcessStatus::Signaled { signal: 9 };
    for (position, counted, how, wanted) in [
        (1, "oom_kill 1", "killed", ProcessStatus::OomKilled),
        (2, "oom_kill 0", "killed", killed.clone()),
        (3, "oom_kill 1", "exits", ProcessStatus::Exited { code: 1 }),
        (4, "oom_kill 1", "asked", killed),
    ] {
        let id = id(position);
        processes.carry_out(command(id, 1, CommandEffect::Ensure, &spec)).await;
        let ready = until(&processes, id, "it is ready", is_ready).await;
        let ObservedState::Ready { processes: started } = ready.observed else { unreachable!() };
        std::fs::write(group(&root, &parent, id).join("memory.events"), counted).unwrap();
        match how {
            "killed" => kill(started[0].pid.unwrap() as i32, Signal::KILL),
            "exits" => std::fs::write(root.incarnation_directory(id).join("web-0/work/exit"), "").unwrap(),
            _ => drop(processes.carry_out(command(id, 2, CommandEffect::Kill, &spec)).await),
        }
        let ended = until(&processes, id, "it ended", is_ended).await;
        let (exit, status) = exit_and_status(&ended);
        if how == "asked" {
            // A kill asks first: either signal may win here.
            assert!(matches!(status, ProcessStatus::Signaled { .. }), "{status:?}");
            continue;
        }
        assert_eq!(*status, wanted, "{counted} and {how}");
        if wanted == ProcessStatus::OomKilled {
            let reason = "web-0 was killed: out of memory".to_owned();
            assert_eq!(*exit, IncarnationExit::Failed { reason });
        }
    }
}

pub(crate) async fn a_group_of_a_dead_supervisor_is_removed_with_its_incarnation() {
    let root = TestRoot::new();
    let parent = groups(&root);
    let processes = open(&root, &parent).await;
    // The supervisor created the group and died before it recorded anything; then the incarnation was no
    // longer desired.
    for position in [1, 2] {
        std::fs::create_dir_all(group(&root, &parent, id(position))).unwrap();
    }
    let spec = limited(64 * MIB, &["sleep", "3600"]);
    processes.carry_out(command(id(1), 2, CommandEffect::Stop, &spec)).await;
    until(&processes, id(1), "it is gone", |report| report.observed == ObservedState::Gone).await;
    processes.forget(id(1).into()).await;
    assert!(!group(&root, &parent, id(1)).exists());
    assert!(group(&root, &parent, id(2)).exists(), "the group of another incarnation stays");
}

/// Returns the cgroup v2 directory that this machine lends to the test.
pub(crate) fn lent() -> Option<PathBuf> {
    std::env::var_os("CHANCERY_TEST_CGROUP").map(PathBuf::from)
}

pub(crate) async fn the_kernel_ends_a_group_that_exceeds_its_limit() {
    let root = TestRoot::new();
    let parent = lent().expect("a directory of cgroup v2");
    let processes = open(&root, &parent).await;
    // A helper takes too much: the whole group ends, and no other.
    let greedy = limited(32 * MIB, &["sh", "-c", "tail /dev/zero & wait; exit 3"]);
    let modest = limited(32 * MIB, &["sleep", "3600"]);
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &modest)).await;
    until(&processes, id(1), "the small incarnation is ready", is_ready).await;
    processes.carry_out(command(id(2), 1, CommandEffect::Ensure, &greedy)).await;
    let ended = until(&processes, id(2), "the incarnation over its limit is ended", is_ended).await;
    assert_eq!(exit_and_status(&ended).1, &ProcessStatus::OomKilled);
    assert_eq!(root.payloads_of(id(1)).len(), 1, "the small incarnation continues to run");
    assert!(group(&root, &parent, id(1)).exists() && !group(&root, &parent, id(2)).exists());
    kill(root.payloads_of(id(1))[0], Signal::KILL);
    let ended = until(&processes, id(1), "the small incarnation is killed", is_ended).await;
    assert_eq!(exit_and_status(&ended).1, &ProcessStatus::Signaled { signal: 9 });
}
