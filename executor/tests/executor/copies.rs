//! Copies of an executor's directory: the recorded processes belong to the original.

use std::process::Command;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::ObservedState;
use chancery_events::protocol::IncarnationSpec;
use chancery_events::spec::RestartPolicy;
use chancery_executor::Orchestrator as _;
use chancery_executor::process::{BootId, ProcessConfig, ProcessOrchestrator};
use rustix::process::Signal;

use crate::reboots::power_cut;
use crate::volumes::failed;
use crate::world::{TestRoot, command, config, id, is_ended, is_ready, kill, sleeper, until, wait_until};

/// Copies everything under the root, with names, times and pipes.
fn copy_of(root: &TestRoot) -> TestRoot {
    let copy = TestRoot::new();
    let status = Command::new("cp").arg("-a").arg(root.path().join(".")).arg(copy.path()).status().unwrap();
    assert!(status.success());
    copy
}

pub(crate) async fn a_copy_touches_nothing_that_the_original_runs_and_reports_no_end_of_it() {
    let root = TestRoot::new();
    let processes = root.open().await;
    for position in 1..=3 {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &sleeper(2))).await;
        until(&processes, id(position), "it is ready", is_ready).await;
    }
    processes.carry_out(command(id(3), 2, CommandEffect::Kill, &sleeper(2))).await;
    until(&processes, id(3), "it has ended", is_ended).await;
    drop(processes);
    // One incarnation with its supervisor, and one without.
    let orphans = root.payloads_of(id(2));
    for supervisor in root.supervisors() {
        let line = std::fs::read_to_string(format!("/proc/{supervisor}/cmdline")).unwrap_or_default();
        if line.contains(&id(2).to_string()) {
            kill(supervisor, Signal::KILL);
        }
    }
    wait_until("one supervisor is left", || root.supervisors().len() == 1);
    let before = root.payloads();
    assert_eq!((before.len(), orphans.len()), (4, 2));

    let copy = copy_of(&root);
    let processes = copy.open().await;
    let listed = processes.list().await.unwrap();
    assert_eq!(listed.len(), 1, "only ended incarnations have a known state: {listed:?}");
    assert_eq!(listed[0].object, id(3).into());
    for position in [1, 2] {
        for (revision, effect) in [(2, CommandEffect::Stop), (3, CommandEffect::Kill)] {
            processes.carry_out(command(id(position), revision, effect, &sleeper(2))).await;
            let refused = |report: &chancery_events::observation::ObjectReport| {
                report.revision == revision && failed(report).is_some()
            };
            let report = until(&processes, id(position), "it is refused", refused).await;
            assert!(failed(&report).unwrap().contains("its directory is a copy"), "{report:?}");
        }
        processes.remove(id(position).into(), 4).await;
        processes.forget(id(position).into()).await;
        assert!(
            copy.incarnation_directory(id(position)).join("processes.json").exists(),
            "nothing of it is purged"
        );
    }
    let reports: Vec<_> =
        processes.list().await.unwrap().into_iter().filter(|report| report.object != id(3).into()).collect();
    assert!(
        reports.iter().all(|report| matches!(report.observed, ObservedState::Failed { .. })),
        "no end is reported: {reports:?}"
    );
    drop(processes);
    let mut after = root.payloads();
    after.sort_unstable();
    assert_eq!(
        after,
        before.iter().copied().collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    );

    // The original is unchanged.
    let processes = root.open().await;
    for position in [1, 2] {
        until(&processes, id(position), "it is ready", is_ready).await;
        processes.carry_out(command(id(position), 2, CommandEffect::Kill, &sleeper(2))).await;
        until(&processes, id(position), "it has ended", is_ended).await;
    }
}

pub(crate) async fn what_a_copy_names_is_dead_after_a_reboot_and_not_started_again_from_it() {
    let open = |root: &TestRoot, number: u64| {
        let boot = Some(BootId { id: format!("boot {number}"), machine: Some("here".into()) });
        ProcessOrchestrator::open(ProcessConfig { boot, ..config(root.path()) })
    };
    let root = TestRoot::new();
    let processes = open(&root, 1).await.unwrap();
    let always = IncarnationSpec { restart: RestartPolicy::Always, ..sleeper(1) };
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &always)).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    let copy = copy_of(&root);
    power_cut(&root);
    let adopted = open(&copy, 2).await.unwrap();
    until(&adopted, id(1), "it has ended with its boot", is_ended).await;
    assert!(copy.payloads().is_empty() && copy.supervisors().is_empty(), "the copy starts nothing");
    let processes = open(&root, 2).await.unwrap();
    until(&processes, id(1), "the original starts it", is_ready).await;
    processes.carry_out(command(id(1), 2, CommandEffect::Kill, &always)).await;
    until(&processes, id(1), "it has ended", is_ended).await;
}
