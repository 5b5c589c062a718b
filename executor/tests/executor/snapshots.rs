//! Snapshots of real volumes of processes.

use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::ObservedState;
use chancery_events::protocol::{Command as ObjectCommand, ObjectSpec};
use chancery_executor::Orchestrator as _;

use crate::volumes::{data, failed, fill, make, of, order, start_victim, volume, writer};
use crate::world::{TestRoot, command, id, is_ended, is_ready, until, wait_until};

/// Returns a command for the volume at this position, as a snapshot of the volume at position 1.
pub(crate) fn snapshot(position: u64, revision: u32, effect: CommandEffect) -> ObjectCommand {
    let ObjectSpec::Volume(mut spec) = of(1 << 20) else { unreachable!() };
    spec.source = Some(volume(1));
    command(volume(position), revision, effect, &ObjectSpec::Volume(spec))
}

fn attempt(position: u64, attempt: u32) -> ObjectCommand {
    ObjectCommand { attempt, ..snapshot(position, 1, CommandEffect::Ensure) }
}

pub(crate) async fn a_snapshot_has_the_content_of_its_source_and_is_independent_of_it() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    let source = data(&root, 1);
    fill(&source);
    std::fs::write(source.join("script"), "x").unwrap();
    std::fs::set_permissions(source.join("script"), std::fs::Permissions::from_mode(0o4750)).unwrap();
    symlink("/nowhere", source.join("link")).unwrap();
    std::fs::hard_link(source.join("script"), source.join("same")).unwrap();
    let sparse = std::fs::File::create(source.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(b"end", (64 << 20) - 3).unwrap();
    processes.carry_out(attempt(2, 1)).await;
    until(&processes, volume(2), "it is created", is_ready).await;
    std::fs::remove_file(source.join("script")).unwrap();
    let copy = data(&root, 2);
    assert_eq!(count(&copy), count(&source) + 1);
    let script = copy.join("script").metadata().unwrap();
    assert_eq!((script.permissions().mode() & 0o7777, script.nlink()), (0o4750, 2));
    assert_eq!(std::fs::read_link(copy.join("link")).unwrap(), Path::new("/nowhere"));
    let sparse = copy.join("sparse").metadata().unwrap();
    assert_eq!(sparse.len(), 64 << 20);
    assert!(sparse.blocks() < 1000, "holes stay holes: {} blocks", sparse.blocks());
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    assert!(!root.volume(volume(2)).join("data.new").exists());
    // The source can go.
    processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
    until(&processes, volume(1), "it is gone", |report| report.observed == ObservedState::Gone).await;
    drop(processes);
    let processes = root.open().await;
    until(&processes, volume(2), "it is there after a restart", is_ready).await;
    assert!(copy.join("script").exists());
    processes.carry_out(snapshot(3, 1, CommandEffect::Ensure)).await;
    let report = until(&processes, volume(3), "it failed", |report| failed(report).is_some()).await;
    assert!(failed(&report).unwrap().contains("not found"), "{report:?}");
    assert!(!root.volume(volume(3)).join("data.new").exists());
}

/// Number of files, directories and links in a tree.
fn count(tree: &Path) -> usize {
    let entries = std::fs::read_dir(tree).unwrap().flatten();
    entries.map(|entry| 1 + if entry.file_type().unwrap().is_dir() { count(&entry.path()) } else { 0 }).sum()
}

pub(crate) async fn a_volume_that_processes_use_is_copied_once_they_have_ended() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &writer(1))).await;
    until(&processes, id(1), "it runs", is_ready).await;
    processes.carry_out(attempt(2, 1)).await;
    let report = until(&processes, volume(2), "it failed", |report| failed(report).is_some()).await;
    let wanted = format!("cannot create snapshot: volume {} is in use by {}", volume(1), id(1));
    assert_eq!(failed(&report), Some(wanted.as_str()));
    processes.carry_out(command(id(1), 2, CommandEffect::Kill, &writer(1))).await;
    until(&processes, id(1), "it has ended", is_ended).await;
    processes.carry_out(attempt(2, 2)).await;
    until(&processes, volume(2), "it is created", is_ready).await;
    assert_eq!(
        std::fs::read(data(&root, 2).join("lines")).unwrap(),
        std::fs::read(data(&root, 1).join("lines")).unwrap()
    );
}

pub(crate) async fn a_copy_is_discarded_if_its_source_is_used_before_it_is_complete() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    let source = data(&root, 1);
    for folder in 0..40 {
        fill(&source.join(folder.to_string()));
    }
    processes.carry_out(attempt(2, 1)).await;
    let new = root.volume(volume(2)).join("data.new");
    wait_until("the copy has started", || new.join("0").exists() || data(&root, 2).exists());
    assert!(!data(&root, 2).exists(), "the copy takes longer than a start");
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &writer(1))).await;
    let report = until(&processes, volume(2), "it failed", |report| failed(report).is_some()).await;
    let message = failed(&report).unwrap();
    assert!(message.contains("is in use since the copy started"), "{message}");
    assert!(!new.exists() && !data(&root, 2).exists(), "nothing of it is left");
    until(&processes, id(1), "it runs", is_ready).await;
    // A deletion ends a copy too.
    processes.carry_out(command(id(1), 2, CommandEffect::Kill, &writer(1))).await;
    until(&processes, id(1), "it has ended", is_ended).await;
    processes.carry_out(attempt(2, 2)).await;
    wait_until("the copy has started", || new.join("0").exists());
    processes.carry_out(snapshot(2, 2, CommandEffect::Kill)).await;
    until(&processes, volume(2), "it is gone", |report| report.observed == ObservedState::Gone).await;
    assert!(!new.exists() && !data(&root, 2).exists(), "nothing of it is left");
    assert_eq!(count(&source.join("0")), count(&source.join("39")));
}

pub(crate) async fn killing_the_executor_while_it_copies_leaves_whole_snapshots_or_none() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    fill(&data(&root, 1));
    let whole = count(&data(&root, 1));
    drop(processes);
    let lives: u64 = std::env::var("LIVES").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    for epoch in 0..lives {
        let mut victim = start_victim(&root, "snapshot", epoch / 2 + 2);
        std::thread::sleep(Duration::from_micros(epoch * 79_190 % 500_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    let last = lives.div_ceil(2) + 1;
    let made = (2..=last).filter(|position| data(&root, *position).exists()).count();
    assert!(made > 0, "some were created in time");
    for position in (2..=last).filter(|position| data(&root, *position).exists()) {
        assert_eq!(count(&data(&root, position)), whole, "{position}");
    }
    let processes = root.open().await;
    for position in 2..=last {
        processes.carry_out(attempt(position, 2)).await;
    }
    for position in 2..=last {
        until(&processes, volume(position), "it is created", is_ready).await;
        assert_eq!(count(&data(&root, position)), whole, "{position}");
        assert!(!root.volume(volume(position)).join("data.new").exists());
    }
}
