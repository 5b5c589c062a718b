//! Real processes, with records that are damaged on disk.

use std::path::Path;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::ObservedState;
use chancery_executor::Orchestrator;
use rustix::process::Signal;

use crate::world::{TestRoot, command, id, is_ended, is_ready, kill, sleeper, until, wait_until};

fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn damage_both(record: &Path) {
    for which in ["json", "copy"] {
        damage(&record.with_extension(which));
    }
}

pub(crate) async fn one_damaged_copy_of_each_record_loses_nothing() {
    let root = TestRoot::new();
    let spec = sleeper(2);
    let processes = root.open().await;
    for position in [1, 2] {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &spec)).await;
    }
    let before = until(&processes, id(1), "it is ready", is_ready).await;
    until(&processes, id(2), "it is ready", is_ready).await;
    processes.carry_out(command(id(2), 2, CommandEffect::Kill, &spec)).await;
    let ended = until(&processes, id(2), "it ended", is_ended).await;
    processes.carry_out(command(id(3), 4, CommandEffect::Stop, &spec)).await;
    let gone = until(&processes, id(3), "it is gone", |report| report.observed == ObservedState::Gone).await;
    drop(processes);
    for which in ["json", "copy"] {
        for (position, record) in
            [(1, "spec"), (1, "processes"), (2, "spec"), (2, "processes"), (3, "tombstone")]
        {
            damage(&root.incarnation_directory(id(position)).join(record).with_extension(which));
        }
        let processes = root.open().await;
        assert_eq!(until(&processes, id(1), "it is adopted", is_ready).await, before, "{which}");
        assert_eq!(until(&processes, id(2), "its end is kept", |_| true).await, ended, "{which}");
        assert_eq!(until(&processes, id(3), "its tombstone is kept", |_| true).await, gone, "{which}");
        assert_eq!(root.payloads().len(), 2, "no process was started or ended");
        drop(processes);
    }
}

pub(crate) async fn what_a_supervisor_has_recorded_is_written_again_by_it_though_no_copy_is_whole() {
    let root = TestRoot::new();
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(1))).await;
    let before = until(&processes, id(1), "it is ready", is_ready).await;
    drop(processes);
    damage_both(&root.incarnation_directory(id(1)).join("processes"));
    let processes = root.open().await;
    assert_eq!(until(&processes, id(1), "it is adopted", is_ready).await, before);
    drop(processes);
    for supervisor in root.supervisors() {
        kill(supervisor, Signal::KILL);
    }
    wait_until("the supervisor is dead", || root.supervisors().is_empty());
    let processes = root.open().await;
    assert_eq!(until(&processes, id(1), "its record can be read", is_ready).await, before);
}
