//! Replacements of volumes, or of their disk: they do not belong to the executor, and prove nothing about the
//! originals.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::{ObjectReport, ObservedState};
use chancery_events::protocol::{Command as ObjectCommand, CommandStatus};
use chancery_executor::process::ProcessOrchestrator;
use chancery_executor::{Orchestrator as _, WorkProgress};
use tokio::task::JoinSet;

use crate::volumes::{data, failed, fill, make, order, volume, writer};
use crate::world::{
    PATIENCE, SilentMount, TestRoot, command, id, is_ended, is_ready, sleeper, until, wait_until,
};

/// Returns the observed states of the executor's objects.
async fn observed(processes: &ProcessOrchestrator) -> Vec<ObservedState> {
    processes.list().await.unwrap().into_iter().map(|report| report.observed).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = std::fs::read_dir(directory).unwrap().map(name).collect();
    names.sort();
    names
}

pub(crate) async fn a_directory_that_replaces_a_volume_is_not_touched_and_the_volume_is_known_when_it_is_back()
 {
    for linked in [false, true] {
        let root = TestRoot::new();
        let processes = root.open().await;
        make(&processes, 1).await;
        fill(&data(&root, 1));
        let (directory, aside, foreign) =
            (root.volume(volume(1)), root.path().join("aside"), root.path().join("foreign"));
        std::fs::rename(&directory, &aside).unwrap();
        std::fs::create_dir_all(foreign.join("data")).unwrap();
        std::fs::write(foreign.join("data/treasure"), "x").unwrap();
        if linked {
            symlink(&foreign, &directory).unwrap();
        } else {
            std::fs::rename(&foreign, &directory).unwrap();
        }
        let there = if linked { &foreign } else { &directory };
        processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
        let is_refused = |report: &ObjectReport| {
            failed(report).is_some_and(|why| why.contains("cannot use volume directory"))
        };
        until(&processes, volume(1), "it is refused", is_refused).await;
        assert_eq!(
            (names(there), names(&there.join("data"))),
            (vec!["data".into()], vec!["treasure".to_owned()])
        );
        if linked {
            std::fs::remove_file(&directory).unwrap();
        } else {
            std::fs::rename(&directory, &foreign).unwrap();
        }
        std::fs::rename(&aside, &directory).unwrap();
        processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
        until(&processes, volume(1), "it is destroyed", |report| report.observed == ObservedState::Gone)
            .await;
        assert!(!directory.join("data").exists());
    }
}

pub(crate) async fn without_the_disk_that_volumes_are_on_nothing_is_reported_of_them_and_none_is_made() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    fill(&data(&root, 1));
    let (volumes, aside) = (root.path().join("volumes"), root.path().join("aside"));
    let unmount = || {
        std::fs::rename(&volumes, &aside).unwrap();
        std::fs::create_dir(&volumes).unwrap();
    };
    let mount = || {
        std::fs::remove_dir(&volumes).unwrap();
        std::fs::rename(&aside, &volumes).unwrap();
    };
    // Under a running executor, and under one that starts before the disk is mounted.
    unmount();
    tokio::time::sleep(PATIENCE / 10).await;
    assert!(
        matches!(observed(&processes).await[..], [ObservedState::Ready { .. }]),
        "{:?}",
        observed(&processes).await
    );
    drop(processes);
    let processes = root.open().await;
    let met = ObjectCommand { status: CommandStatus::Fulfilled, ..order(1, 1, CommandEffect::Ensure) };
    let orders =
        [(1, met.clone()), (1, order(1, 2, CommandEffect::Kill)), (2, order(2, 1, CommandEffect::Ensure))];
    for (position, order) in orders {
        let revision = order.revision;
        processes.carry_out(order).await;
        let is_refused = |report: &ObjectReport| {
            let why = failed(report).unwrap_or_default();
            report.revision == revision && why.contains("hint: mount its disk")
        };
        until(&processes, volume(position), "it is refused", is_refused).await;
    }
    assert!(names(&volumes).is_empty(), "{:?}", names(&volumes));
    mount();
    processes.carry_out(met).await;
    until(&processes, volume(1), "the volume exists", is_ready).await;
    assert_eq!(names(&data(&root, 1)).len(), 6);
}

pub(crate) async fn a_disk_of_volumes_that_does_not_respond_blocks_nothing_else() {
    let root = TestRoot::new();
    let processes = root.open().await;
    for position in 1..=8 {
        make(&processes, position).await;
    }
    processes.carry_out(command(id(11), 1, CommandEffect::Ensure, &sleeper(1))).await;
    until(&processes, id(11), "it is ready", is_ready).await;
    let Some(mut silent) = SilentMount::at(&root.path().join("volumes")) else { return };
    // Under a running executor, and under one that starts then.
    let met = |position| ObjectCommand {
        status: CommandStatus::Fulfilled,
        ..order(position, 1, CommandEffect::Ensure)
    };
    let mut running = processes;
    for round in [1, 2] {
        // More than there are threads.
        let users = (12..=17).map(|position| command(id(position), round, CommandEffect::Ensure, &writer(1)));
        let shared = Arc::new(running);
        let mut orders = JoinSet::new();
        for order in (1..=8).map(met).chain(users) {
            let shared = shared.clone();
            orders.spawn(async move { shared.carry_out(order).await });
        }
        // The calls hang in different places; the caller waits for none of them.
        tokio::time::sleep(PATIENCE / 100).await;
        orders.shutdown().await;
        running = Arc::into_inner(shared).unwrap();
        // A start that hangs does not block its stop.
        let hangs = id(30 + u64::from(round));
        let start = command(hangs, 1, CommandEffect::Ensure, &writer(1));
        let stop = command(hangs, 2, CommandEffect::Stop, &writer(1));
        let both = async { (running.carry_out(start).await, running.carry_out(stop).await) };
        let both = tokio::time::timeout(PATIENCE / 2, both).await.expect("both are answered");
        assert_eq!(both, (WorkProgress::PutOff, WorkProgress::Begun));
        until(&running, hangs, "it is stopped", |report| report.revision == 2).await;
        let fresh = id(20 + u64::from(round));
        running.carry_out(command(fresh, 1, CommandEffect::Ensure, &sleeper(1))).await;
        until(&running, fresh, "a new incarnation is ready", is_ready).await;
        running.carry_out(command(fresh, 2, CommandEffect::Stop, &sleeper(1))).await;
        until(&running, fresh, "the new incarnation ends", is_ended).await;
        running.forget(fresh.into()).await;
        assert!(
            running.list().await.unwrap().iter().any(|report| report.object == id(11).into()),
            "it is listed"
        );
        if round == 1 {
            drop(running);
            running = root.open().await;
        }
    }
    silent.end();
    for position in 1..=8 {
        running.carry_out(met(position)).await;
        until(&running, volume(position), "the volume exists", is_ready).await;
    }
    for position in 12..=17 {
        running.carry_out(command(id(position), 3, CommandEffect::Ensure, &writer(1))).await;
    }
    let users = || (12..=17).map(|position| root.payloads_of(id(position)).len()).sum::<usize>();
    wait_until("one incarnation starts", || users() > 0);
    let is_refused = |report: &ObjectReport| failed(report).is_some_and(|why| why.contains("in use by"));
    let refused = (12..=17).filter(|position| root.payloads_of(id(*position)).is_empty());
    for position in refused {
        until(&running, id(position), "the second user is refused", is_refused).await;
    }
    assert_eq!(users(), 1, "a volume has one user");
}
