//! Disks of virtual machines: volumes of an executor whose incarnations are virtual machines.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::{ObservedState, RetryClass};
use chancery_events::protocol::{IncarnationSpec, VolumeMount};
use chancery_events::spec::{GuestNetwork, MachineModel, VirtualMachineSpec};
use chancery_executor::Orchestrator as _;
use chancery_executor::process::{ProcessConfig, ProcessOrchestrator, QemuSettings};

use crate::volumes::{data, make, of, order, start_victim, volume};
use crate::world::{TestRoot, command, config, id, is_ended, is_ready, payload, spec, until};

/// Capacity of the volumes of `order`.
const CAPACITY: u64 = 1 << 20;

/// Configuration of an executor whose QEMU does nothing.
pub(crate) fn machines(root: &Path) -> ProcessConfig {
    let images = vec![root.join("images")];
    let qemu = Some(QemuSettings { program: "sleep".into(), images, ..QemuSettings::default() });
    ProcessConfig { qemu, ..config(root) }
}

async fn open(root: &TestRoot) -> ProcessOrchestrator {
    let images = root.path().join("images");
    std::fs::create_dir_all(&images).unwrap();
    std::fs::write(images.join("kernel"), "").unwrap();
    ProcessOrchestrator::open(machines(root.path())).await.unwrap()
}

fn disk(root: &TestRoot, position: u64) -> PathBuf {
    data(root, position).join("disk")
}

/// Returns a spec of a virtual machine with the volume as its disk.
fn machine(position: u64) -> IncarnationSpec {
    let mut payload = payload("vm", 1, &[]);
    payload.run = None;
    payload.memory = std::num::NonZeroU64::new(112 << 20);
    payload.vm = Some(VirtualMachineSpec {
        kernel: Some("kernel".to_owned()),
        initrd: None,
        cmdline: None,
        image: None,
        firmware: None,
        cpus: 1,
        machine: MachineModel::Q35,
        network: GuestNetwork::None,
    });
    payload.mounts = vec![VolumeMount { path: "/data".to_owned(), volume: volume(position) }];
    spec(vec![payload])
}

pub(crate) async fn killing_the_executor_while_it_makes_disks_leaves_whole_ones_or_none() {
    let root = TestRoot::new();
    let lives: u64 = std::env::var("LIVES").ok().and_then(|n| n.parse().ok()).unwrap_or(80);
    let count = lives.div_ceil(4);
    for epoch in 0..lives {
        let mut victim = start_victim(&root, "make-disks", epoch / 4 + 1);
        std::thread::sleep(Duration::from_micros(epoch * 7919 % 50_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
        for position in 1..=count {
            if let Ok(found) = disk(&root, position).metadata() {
                assert_eq!(found.len(), CAPACITY, "no incomplete disk has the name");
            }
        }
    }
    let found: Vec<_> = (1..=count).map(|position| disk(&root, position).metadata().ok()).collect();
    assert!(found.iter().any(Option::is_some), "some were created in time");
    let processes = open(&root).await;
    for (position, before) in (1..).zip(found) {
        make(&processes, position).await;
        let after = disk(&root, position).metadata().unwrap();
        assert_eq!((after.len(), after.permissions().mode() & 0o7777), (CAPACITY, 0o600));
        assert!(before.is_none_or(|before| before.ino() == after.ino()), "none was made again");
        assert!(!root.volume(volume(position)).join("data.new").exists());
    }
}

pub(crate) async fn a_disk_that_is_removed_is_a_loss_and_is_not_made_again() {
    let root = TestRoot::new();
    let mut processes = open(&root).await;
    make(&processes, 1).await;
    std::fs::write(disk(&root, 1), vec![7; 1 << 20]).unwrap();
    let aside = root.path().join("aside");
    std::fs::rename(disk(&root, 1), &aside).unwrap();
    for _ in 0..2 {
        let lost = until(&processes, volume(1), "it is lost", is_ended).await;
        let wanted = format!("volume content is missing: {} does not exist", disk(&root, 1).display());
        assert!(format!("{lost:?}").contains(&wanted), "{lost:?}");
        processes.carry_out(order(1, 1, CommandEffect::Ensure)).await;
        drop(processes);
        processes = open(&root).await;
    }
    assert!(!disk(&root, 1).exists());
    // Something else in its place is not the disk.
    std::fs::write(disk(&root, 1), "x").unwrap();
    processes.carry_out(order(1, 2, CommandEffect::Ensure)).await;
    until(&processes, volume(1), "it stays lost", |report| report.revision == 2 && is_ended(report)).await;
    std::fs::rename(&aside, disk(&root, 1)).unwrap();
    until(&processes, volume(1), "it is found again", is_ready).await;
    assert_eq!(std::fs::read(disk(&root, 1)).unwrap(), vec![7; 1 << 20]);
    std::fs::rename(disk(&root, 1), &aside).unwrap();
    until(&processes, volume(1), "it is lost", is_ended).await;
    processes.carry_out(order(1, 3, CommandEffect::Kill)).await;
    until(&processes, volume(1), "it is gone", |report| report.observed == ObservedState::Gone).await;
    assert_eq!(aside.metadata().unwrap().len(), 1 << 20);
}

pub(crate) async fn a_start_without_a_fitting_disk_fails_and_changes_nothing() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    std::fs::write(data(&root, 1).join("file"), "x").unwrap();
    drop(processes);
    let processes = open(&root).await;
    for position in [2, 3, 4] {
        make(&processes, position).await;
    }
    std::fs::File::options().write(true).open(disk(&root, 2)).unwrap().set_len(CAPACITY + 512).unwrap();
    let outside = root.path().join("outside");
    std::fs::rename(disk(&root, 3), &outside).unwrap();
    symlink(&outside, disk(&root, 3)).unwrap();
    let failures = [
        (1, format!("{} was made for processes", data(&root, 1).display())),
        (2, format!("{} has 1049088 bytes, not 1048576", disk(&root, 2).display())),
        (3, format!("{} is not a regular file", disk(&root, 3).display())),
    ];
    for (position, wanted) in failures {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &machine(position))).await;
        let is_failed = |report: &_| matches!(report, ObservedState::Failed { .. });
        let failed = until(&processes, id(position), "it failed", |report| is_failed(&report.observed)).await;
        let ObservedState::Failed { message, retry } = failed.observed else { unreachable!() };
        assert_eq!(message, format!("cannot use volume {} as a disk: {wanted}", volume(position)));
        assert_eq!(retry, RetryClass::Permanent);
    }
    assert_eq!(disk(&root, 2).metadata().unwrap().len(), CAPACITY + 512);
    assert_eq!(std::fs::read_to_string(data(&root, 1).join("file")).unwrap(), "x");
    // A fitting one is used, by one incarnation.
    processes.carry_out(command(id(4), 1, CommandEffect::Ensure, &machine(4))).await;
    let ended = until(&processes, id(4), "it has ended: its QEMU is another program", is_ended).await;
    let wanted =
        "vm-0 was ended with its virtual machine, status 1: Try 'sleep --help' for more information.";
    assert!(format!("{ended:?}").contains(wanted), "{ended:?}");
}

pub(crate) async fn a_disk_without_whole_sectors_is_not_made() {
    let root = TestRoot::new();
    let processes = open(&root).await;
    processes.carry_out(command(volume(1), 1, CommandEffect::Ensure, &of(1000))).await;
    let is_failed = |report: &_| matches!(report, ObservedState::Failed { .. });
    let failed = until(&processes, volume(1), "it failed", |report| is_failed(&report.observed)).await;
    let ObservedState::Failed { message, retry } = failed.observed else { unreachable!() };
    assert_eq!(message, "cannot create disk: capacity 1000 is not a positive multiple of 512 bytes");
    assert_eq!(retry, RetryClass::Permanent);
    processes.forget(volume(1).into()).await;
    assert!(!root.volume(volume(1)).exists());
}
