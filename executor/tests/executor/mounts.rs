//! Mounts that a program makes in its incarnation's directory, which survive the directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use chancery_events::fact::CommandEffect;
use chancery_executor::Orchestrator as _;
use chancery_executor::process::debts;

use crate::world::{TestRoot, command, id, is_ended, is_ready, sleeper, until, wait_until};

/// Bind mount of one directory on another, until dropped.
struct BindMount(PathBuf);

impl BindMount {
    /// Mounts `from`, or returns `None` with a message where nothing can be mounted.
    fn mount(from: &Path, at: &Path) -> Option<BindMount> {
        std::fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount").arg("--bind").args([from, at]).stderr(Stdio::null()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            println!("skipped: this machine allows no mount");
            return None;
        }
        Some(BindMount(at.to_owned()))
    }
}

impl Drop for BindMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn outside() -> tempfile::TempDir {
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(outside.path().join("a/b")).unwrap();
    std::fs::write(outside.path().join("a/b/file"), "precious").unwrap();
    outside
}

fn is_whole(outside: &tempfile::TempDir) -> bool {
    std::fs::read(outside.path().join("a/b/file")).is_ok_and(|text| text == b"precious")
}

fn reason_of(directory: &Path) -> Option<String> {
    debts().remove(directory)
}

pub(crate) async fn what_is_mounted_in_a_working_directory_survives_it_and_is_a_debt_until_it_is_unmounted() {
    let (root, outside) = (TestRoot::new(), outside());
    let processes = root.open().await;
    for position in [1, 2] {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &sleeper(1))).await;
        until(&processes, id(position), "it is ready", is_ready).await;
    }
    let point = root.incarnation_directory(id(1)).join("web-0/work/a point");
    // One mount, and another inside it.
    let Some(first) = BindMount::mount(outside.path(), &point) else { return };
    let Some(second) = BindMount::mount(outside.path(), &point.join("a")) else { return };
    for position in [1, 2] {
        processes.carry_out(command(id(position), 2, CommandEffect::Kill, &sleeper(1))).await;
        until(&processes, id(position), "it has ended", is_ended).await;
        processes.forget(id(position).into()).await;
    }
    assert!(is_whole(&outside), "the mounted directory is unchanged");
    assert!(point.join("a/a/b/file").exists(), "the mount is unchanged");
    let reason = reason_of(&root.incarnation_directory(id(1))).expect("a removal debt");
    assert_eq!(reason, format!("another file system is mounted inside: {}", point.display()));
    wait_until("another incarnation is removed meanwhile", || !root.incarnation_directory(id(2)).exists());
    drop(second);
    // Meanwhile another executor takes over, and receives the command too.
    drop(processes);
    let processes = root.open().await;
    assert_eq!(processes.list().await.unwrap().len(), 1, "it is kept until it can be removed");
    processes.forget(id(1).into()).await;
    assert!(is_whole(&outside) && reason_of(&root.incarnation_directory(id(1))).is_some());
    drop(first);
    wait_until("it is removed while the executor runs", || !root.incarnation_directory(id(1)).exists());
    assert!(is_whole(&outside));
    wait_until("the debt is settled", || reason_of(&root.incarnation_directory(id(1))).is_none());
    assert!(processes.list().await.unwrap().is_empty());
}

pub(crate) async fn a_mount_in_remains_of_a_dead_executor_is_not_entered_and_blocks_nothing() {
    let (root, outside) = (TestRoot::new(), outside());
    // tidy: allow(forgotten)
    let forgotten = root.path().join("forgotten").join(id(1).to_string());
    let kept = root.path().join("output").join(id(2).to_string());
    let Some(mounted) = BindMount::mount(outside.path(), &forgotten.join("web-0/work/point")) else { return };
    let Some(in_output) = BindMount::mount(outside.path(), &kept) else { return };
    for position in 3..110 {
        std::fs::create_dir_all(root.path().join("output").join(id(position).to_string())).unwrap();
    }
    // tidy: allow(forgotten)
    let free = root.path().join("forgotten").join(id(9).to_string());
    std::fs::create_dir_all(free.join("web-0/work")).unwrap();
    let processes = root.open().await;
    wait_until("the directory without a mount is removed", || !free.exists());
    processes.carry_out(command(id(200), 1, CommandEffect::Ensure, &sleeper(1))).await;
    until(&processes, id(200), "another incarnation starts", is_ready).await;
    for directory in [&forgotten, &kept] {
        wait_until("the removal is a debt", || reason_of(directory).is_some());
    }
    assert!(is_whole(&outside));
    drop((mounted, in_output));
    for directory in [forgotten, kept] {
        wait_until("it is removed while the executor runs", || {
            !directory.exists() && reason_of(&directory).is_none()
        });
    }
    assert!(is_whole(&outside));
}
