//! Real volumes: directories that outlive their users, and their supervisors.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::id::{Lineage, Position, VolumeId};
use chancery_events::observation::{IncarnationExit, ObjectReport, ObservedState, RetryClass};
use chancery_events::protocol::{
    Command as ObjectCommand, CommandStatus, IncarnationSpec, ObjectSpec, VolumeMount, VolumeSpec,
};
use chancery_events::spec::RestartPolicy;
use chancery_executor::Orchestrator;
use chancery_executor::process::{BootId, ProcessConfig, ProcessOrchestrator, VolumeUsage};

use crate::disks::machines;
use crate::reboots::power_cut;
use crate::snapshots::snapshot;
use crate::world::{
    PATIENCE, TestRoot, block_on, command, config, id, is_ended, is_ready, payload, spec, until, wait_until,
    write_state,
};

pub(crate) fn volume(position: u64) -> VolumeId {
    VolumeId::issue(Lineage::from_random(42), Position::new(position))
}

pub(crate) fn of(capacity: u64) -> ObjectSpec {
    let (name, node, class) = ("data".parse().unwrap(), "n1".parse().unwrap(), "disk".parse().unwrap());
    ObjectSpec::Volume(VolumeSpec {
        name,
        namespace: "ns".parse().unwrap(),
        node,
        class,
        capacity,
        source: None,
    })
}

pub(crate) fn order(position: u64, revision: u32, effect: CommandEffect) -> ObjectCommand {
    command(volume(position), revision, effect, &of(1 << 20))
}

pub(crate) fn data(root: &TestRoot, position: u64) -> PathBuf {
    root.volume(volume(position)).join("data")
}

/// Returns a spec that writes a line into its volume at each start, and runs on.
pub(crate) fn writer(position: u64) -> IncarnationSpec {
    let script = "echo ${incarnation} >> ${volume./data}/lines && exec sleep 3600";
    mounting(position, payload("web", 1, &["sh", "-c", script]))
}

fn mounting(position: u64, mut payload: chancery_events::protocol::IncarnationPayload) -> IncarnationSpec {
    payload.mounts = vec![VolumeMount { path: "/data".to_owned(), volume: volume(position) }];
    spec(vec![payload])
}

fn lines(root: &TestRoot, position: u64) -> usize {
    std::fs::read_to_string(data(root, position).join("lines")).unwrap_or_default().lines().count()
}

pub(crate) fn failed(report: &ObjectReport) -> Option<&str> {
    match &report.observed {
        ObservedState::Failed { message, retry: RetryClass::Retryable } => Some(message),
        _ => None,
    }
}

fn is_gone(report: &ObjectReport) -> bool {
    report.observed == ObservedState::Gone
}

pub(crate) async fn make(processes: &ProcessOrchestrator, position: u64) {
    processes.carry_out(order(position, 1, CommandEffect::Ensure)).await;
    until(processes, volume(position), "it is created", is_ready).await;
}

/// Runs an executor that creates or destroys `count` volumes, and then waits to be killed.
pub(crate) fn victim(root: &Path, what: &str, count: u64) -> ExitCode {
    let (revision, effect) =
        if what == "destroy" { (2, CommandEffect::Kill) } else { (1, CommandEffect::Ensure) };
    let config = if what == "make-disks" { machines(root) } else { config(root) };
    block_on(async {
        let processes = ProcessOrchestrator::open(config).await.expect("the root can be opened");
        for position in 1..=count {
            let order = order(position, revision, effect);
            let order =
                if what == "snapshot" && position > 1 { snapshot(position, 1, effect) } else { order };
            processes.carry_out(order).await;
        }
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

pub(crate) fn start_victim(root: &TestRoot, what: &str, count: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["as-maker", root.path().to_str().unwrap(), what, &count.to_string()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

pub(crate) async fn killing_the_executor_while_it_makes_them_neither_loses_nor_doubles() {
    let root = TestRoot::new();
    let lives: u64 = std::env::var("LIVES").ok().and_then(|n| n.parse().ok()).unwrap_or(80);
    for epoch in 0..lives {
        let count = epoch / 4 + 1;
        let mut victim = start_victim(&root, "make", count);
        std::thread::sleep(Duration::from_micros(epoch * 7919 % 25_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
        // Every volume that is reported as existing exists, and is used from then on.
        if epoch % 4 == 3 {
            let processes = root.open().await;
            if epoch % 8 == 7 {
                make(&processes, count).await;
            }
            for report in processes.list().await.unwrap().iter().filter(|report| is_ready(report)) {
                let inner = root.path().join("volumes").join(report.object.to_string()).join("data/kept");
                std::fs::write(inner, "x").unwrap();
            }
        }
    }
    let used = (1..=lives).filter(|position| data(&root, *position).join("kept").exists()).count();
    assert!(used > 0, "some were created in time");
    let processes = root.open().await;
    let count = lives.div_ceil(4);
    for position in 1..=count {
        make(&processes, position).await;
        let mode = std::fs::metadata(data(&root, position)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "only the executor has access");
        assert!(!root.volume(volume(position)).join("data.new").exists());
    }
    let kept = (1..=count).filter(|position| data(&root, *position).join("kept").exists()).count();
    assert_eq!(kept, used, "no content is lost");
    assert_eq!(processes.list().await.unwrap().len() as u64, count);
}

pub(crate) fn fill(directory: &Path) {
    for inner in 0..6 {
        let inner = directory.join(format!("folder-{inner}/a/b"));
        std::fs::create_dir_all(&inner).unwrap();
        for file in 0..30 {
            std::fs::write(inner.join(format!("{file}")), "x").unwrap();
        }
    }
}

pub(crate) async fn killing_the_executor_while_it_destroys_them_ends_in_none_and_takes_no_other() {
    let root = TestRoot::new();
    let count = 10;
    let processes = root.open().await;
    for position in 1..=count + 1 {
        make(&processes, position).await;
        fill(&data(&root, position));
    }
    drop(processes);
    for epoch in 0..60_u64 {
        let mut victim = start_victim(&root, "destroy", epoch / 8 + 1);
        std::thread::sleep(Duration::from_micros(epoch * 7919 % 25_000));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    let processes = root.open().await;
    for position in 1..=count {
        processes.carry_out(order(position, 2, CommandEffect::Kill)).await;
        until(&processes, volume(position), "it is gone", is_gone).await;
        let left = std::fs::read_dir(root.volume(volume(position))).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["volume.copy", "volume.json"], "only the tombstone is left");
        processes.forget(volume(position).into()).await;
        assert!(!root.volume(volume(position)).exists());
    }
    until(&processes, volume(count + 1), "the other volume is unchanged", is_ready).await;
    assert_eq!(std::fs::read_dir(data(&root, count + 1)).unwrap().count(), 6);
}

pub(crate) async fn what_has_started_to_be_destroyed_continues_without_a_command() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    fill(&data(&root, 1));
    let directory = root.volume(volume(1));
    let path = directory.join("volume.json");
    let before = std::fs::read_to_string(&path).unwrap();
    processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
    until(&processes, volume(1), "it is gone", is_gone).await;
    drop(processes);
    // State when its command was recorded.
    let json = before.lines().nth(1).unwrap();
    let json = json.replace("\"up\"", "\"removed\"").replace("\"revision\":1", "\"revision\":2");
    write_state(&path, &serde_json::from_str(&json).unwrap());
    for at in ["data", "doomed"] {
        std::fs::create_dir(directory.join(at)).unwrap();
        fill(&directory.join(at));
    }
    let processes = root.open().await;
    until(&processes, volume(1), "it is gone", |r| r.revision == 2 && is_gone(r)).await;
    assert!(!directory.join("data").exists() && !directory.join("doomed").exists());
}

pub(crate) async fn what_is_not_ours_is_never_touched() {
    let root = TestRoot::new();
    let directories = [1, 2, 3].map(|position| root.volume(volume(position)));
    let records = [None, Some("not json"), Some(r#"{"volume":"ID","order":{}}"#)];
    let processes = root.open().await;
    make(&processes, 9).await;
    drop(processes);
    let other = std::fs::read(root.volume(volume(9)).join("volume.json")).unwrap();
    for (directory, record) in directories.iter().zip(records) {
        fill(&directory.join("data"));
        if let Some(record) = record {
            std::fs::write(directory.join("volume.json"), record).unwrap();
        }
    }
    // The record of another volume, with one damaged copy.
    std::fs::write(directories[2].join("volume.json"), &other).unwrap();
    std::fs::write(directories[2].join("volume.copy"), "damaged").unwrap();
    // A file of an operator.
    std::fs::write(root.path().join("volumes/notes"), "x").unwrap();
    let listing = || {
        let all = std::process::Command::new("find")
            .arg(root.path().join("volumes"))
            .args(["-not", "-path", &format!("*{}*", volume(9)), "-printf", "%p %s %i %C@\n"])
            .output();
        String::from_utf8(all.unwrap().stdout).unwrap()
    };
    let before = listing();
    let processes = root.open().await;
    assert_eq!(processes.list().await.unwrap().len(), 1, "they are not reported");
    for position in [1, 2, 3] {
        for (revision, effect) in [(1, CommandEffect::Ensure), (2, CommandEffect::Kill)] {
            processes.carry_out(order(position, revision, effect)).await;
            let refused = until(&processes, volume(position), "it is refused", |report| {
                report.revision == revision && failed(report).is_some()
            });
            let refused = refused.await;
            assert!(failed(&refused).unwrap().contains("cannot use volume directory"), "{refused:?}");
        }
        processes.remove(volume(position).into(), 3).await;
        processes.forget(volume(position).into()).await;
    }
    assert_eq!(listing(), before);
}

/// Creates files outside of the volume, which must stay unchanged.
fn outside(root: &TestRoot) -> PathBuf {
    let outside = root.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    fill(&outside);
    outside
}

pub(crate) async fn links_that_lead_out_of_a_volume_are_removed_and_not_followed() {
    let root = TestRoot::new();
    let outside = outside(&root);
    let processes = root.open().await;
    make(&processes, 1).await;
    let inside = data(&root, 1);
    fill(&inside);
    symlink(&outside, inside.join("folder")).unwrap(); // tidy: allow(folder)
    symlink(outside.join("folder-0/a/b/1"), inside.join("folder-1/file")).unwrap();
    symlink("../../../../../outside", inside.join("folder-2/a/up")).unwrap();
    symlink("loop", inside.join("loop")).unwrap();
    // A second name of an outside file, and a directory deeper than descriptors go.
    std::fs::hard_link(outside.join("folder-0/a/b/2"), inside.join("linked")).unwrap();
    let deep = (0..300).fold(inside.join("deep"), |path, _| path.join("d"));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("file"), "x").unwrap();
    std::fs::set_permissions(inside.join("folder-3/a"), std::fs::Permissions::from_mode(0o000)).unwrap();
    processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
    until(&processes, volume(1), "it is gone", is_gone).await;
    assert!(!inside.exists());
    let all = std::process::Command::new("find").arg(&outside).args(["-type", "f"]).output().unwrap();
    assert_eq!(all.stdout.split(|byte| *byte == b'\n').count() - 1, 180, "files outside are unchanged");
    // A symbolic link in place of the whole directory.
    make(&processes, 2).await;
    std::fs::remove_dir(data(&root, 2)).unwrap();
    symlink(&outside, data(&root, 2)).unwrap();
    processes.carry_out(order(2, 2, CommandEffect::Kill)).await;
    until(&processes, volume(2), "it is gone", is_gone).await;
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 6);
}

/// Action that runs even if a test fails.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

pub(crate) async fn a_file_system_that_is_mounted_inside_is_left_and_named() {
    let root = TestRoot::new();
    let outside = outside(&root);
    let processes = root.open().await;
    make(&processes, 1).await;
    let point = data(&root, 1).join("a b/point");
    std::fs::create_dir_all(&point).unwrap();
    let mount = |args: &[&Path]| Command::new("mount").args(args).stderr(Stdio::null()).status();
    // The same file system: the device is no evidence.
    let is_mounted = mount(&[Path::new("--bind"), &outside, &point]).is_ok_and(|status| status.success());
    if !is_mounted {
        eprintln!("skipped: this machine allows no mount");
        return;
    }
    let unmount = AtEnd(|| {
        let _ = Command::new("umount").arg(&point).status();
    });
    processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
    let refused = until(&processes, volume(1), "it is refused", |report| failed(report).is_some()).await;
    let is_left = std::fs::read_dir(&outside).unwrap().count();
    drop(unmount);
    let message = failed(&refused).unwrap();
    assert!(message.contains("mounted inside") && message.ends_with("a b/point"), "{message}");
    assert_eq!(is_left, 6, "mounted files are unchanged");
    processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
    until(&processes, volume(1), "without the mount, it is destroyed", is_gone).await;
}

pub(crate) async fn what_is_in_a_volume_outlives_executor_run_and_reboot() {
    let root = TestRoot::new();
    let booted = |number: u64| {
        let boot = BootId { id: format!("boot {number}"), machine: Some("here".into()) };
        ProcessConfig { boot: Some(boot), ..config(root.path()) }
    };
    let always = IncarnationSpec { restart: RestartPolicy::Always, ..writer(1) };
    let mut processes = ProcessOrchestrator::open(booted(1)).await.unwrap();
    make(&processes, 1).await;
    for position in [1, 2] {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &always)).await;
        until(&processes, id(position), "it runs", is_ready).await;
        wait_until("it wrote", || lines(&root, 1) == position as usize);
        drop(processes);
        processes = ProcessOrchestrator::open(booted(1)).await.unwrap();
        until(&processes, volume(1), "it is found after a restart", is_ready).await;
        if position == 1 {
            processes.carry_out(command(id(1), 2, CommandEffect::Stop, &always)).await;
            until(&processes, id(1), "it ended", is_ended).await;
        }
    }
    drop(processes);
    power_cut(&root);
    let processes = ProcessOrchestrator::open(booted(2)).await.unwrap();
    until(&processes, volume(1), "it is found after a reboot", is_ready).await;
    until(&processes, id(2), "its user runs again", is_ready).await;
    wait_until("it wrote", || lines(&root, 1) == 3);
    drop(processes);
    power_cut(&root);
    // A missing volume is not used, whatever the records claim.
    std::fs::rename(data(&root, 1), root.path().join("aside")).unwrap();
    let processes = ProcessOrchestrator::open(booted(3)).await.unwrap();
    let ended = until(&processes, id(2), "it has ended", is_ended).await;
    let ObservedState::Ended { exit: IncarnationExit::Failed { reason }, .. } = &ended.observed else {
        panic!("{ended:?}")
    };
    assert!(
        reason.contains("restart incarnation after reboot: cannot use volume")
            && reason.ends_with("not found"),
        "{reason}"
    );
}

pub(crate) async fn a_volume_whose_data_is_removed_has_ended_and_is_not_made_again() {
    let root = TestRoot::new();
    let processes = root.open().await;
    for position in [1, 2] {
        make(&processes, position).await;
    }
    let is_lost = |report: &ObjectReport| {
        matches!(&report.observed, ObservedState::Ended { exit: IncarnationExit::Failed { reason }, processes }
            if processes.is_empty() && reason.contains("data is not a directory"))
    };
    std::fs::remove_dir(data(&root, 1)).unwrap();
    std::fs::rename(root.volume(volume(2)), root.path().join("aside")).unwrap();
    for position in [1, 2] {
        until(&processes, volume(position), "its loss is reported without a request", is_lost).await;
    }
    drop(processes);
    let processes = root.open().await;
    for position in [1, 2] {
        until(&processes, volume(position), "it stays lost", is_lost).await;
        processes.carry_out(order(position, 2, CommandEffect::Ensure)).await;
        let higher = |report: &ObjectReport| report.revision == 2 && is_lost(report);
        until(&processes, volume(position), "a command does not recreate it", higher).await;
        assert!(!data(&root, position).exists());
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &writer(position))).await;
        let waits = until(&processes, id(position), "no user runs without it", |r| failed(r).is_some()).await;
        assert!(failed(&waits).unwrap().ends_with("not found"), "{waits:?}");
    }
}

pub(crate) async fn one_damaged_copy_of_its_record_loses_nothing() {
    let root = TestRoot::new();
    let copies = ["volume.json", "volume.copy"];
    let processes = root.open().await;
    make(&processes, 1).await;
    drop(processes);
    for damaged in copies {
        std::fs::write(data(&root, 1).join(damaged), "x").unwrap();
        std::fs::write(root.volume(volume(1)).join(damaged), "damaged").unwrap();
        let processes = root.open().await;
        until(&processes, volume(1), "the volume exists", is_ready).await;
        let whole = copies.map(|copy| std::fs::read(root.volume(volume(1)).join(copy)).unwrap());
        assert_eq!(whole[0], whole[1], "the copy is written again");
    }
    assert_eq!(std::fs::read_dir(data(&root, 1)).unwrap().count(), 2);
}

pub(crate) async fn what_was_commanded_is_not_removed_for_lack_of_a_record() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    fill(&data(&root, 1));
    drop(processes);
    // As on a disk that falsely confirmed the last write.
    let path = root.volume(volume(1)).join("volume.json");
    let bytes = std::fs::read_to_string(&path).unwrap();
    let json = bytes.lines().nth(1).unwrap().replace("\"made\"", "\"accepted\"");
    write_state(&path, &serde_json::from_str(&json).unwrap());
    let processes = root.open().await;
    processes
        .carry_out(ObjectCommand { status: CommandStatus::Fulfilled, ..order(1, 1, CommandEffect::Ensure) })
        .await;
    until(&processes, volume(1), "the volume exists", is_ready).await;
    assert_eq!(std::fs::read_dir(data(&root, 1)).unwrap().count(), 6);
}

pub(crate) async fn a_process_finds_its_volume_by_placeholder_and_variable() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    let script = "echo \"$1 $$CHANCERY_VOLUME_VAR_LIB_DB_1\" > ${volume./var/lib/db-1}/out; exec sleep 3600";
    let mut one =
        payload("web", 1, &["sh", "-c", &script.replace("$1", "$$1"), "sh", "${volume./var/lib/db-1}"]);
    one.mounts = vec![VolumeMount { path: "/var/lib/db-1".to_owned(), volume: volume(1) }];
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec(vec![one]))).await;
    until(&processes, id(1), "it runs", is_ready).await;
    let (data, output) =
        (data(&root, 1), || std::fs::read_to_string(data(&root, 1).join("out")).unwrap_or_default());
    wait_until("it wrote", || output().ends_with('\n'));
    assert_eq!(output().trim(), format!("{0} {0}", data.display()));
}

pub(crate) async fn a_process_that_is_left_of_a_lost_run_keeps_its_volume() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    // A process that an incarnation started, and that kept nothing but its environment.
    let data = data(&root, 1);
    let mut left = Command::new("sleep").arg("3600").env("CHANCERY_VOLUME_DATA", data).spawn().unwrap();
    let number = left.id();
    let end = AtEnd(move || {
        let _ = left.kill();
        let _ = left.wait();
    });
    processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
    let refused = until(&processes, volume(1), "it is refused", |report| failed(report).is_some()).await;
    drop(end);
    assert!(failed(&refused).unwrap().ends_with(&format!("in use by process {number}")), "{refused:?}");
    processes.carry_out(order(1, 2, CommandEffect::Kill)).await;
    until(&processes, volume(1), "it is destroyed once unused", is_gone).await;
}

pub(crate) async fn a_volume_without_free_capacity_waits_and_what_one_uses_is_reported() {
    let root = TestRoot::new();
    let processes = root.open().await;
    processes.carry_out(command(volume(1), 1, CommandEffect::Ensure, &of(u64::MAX))).await;
    let waits =
        until(&processes, volume(1), "the disk is too small", |report| failed(report).is_some()).await;
    let message = failed(&waits).unwrap();
    assert!(
        message.starts_with(&format!("cannot create volume: {} bytes requested, ", u64::MAX)),
        "{message}"
    );
    assert!(message.ends_with(" free") && !data(&root, 1).exists(), "{message}");
    let second = ObjectCommand { attempt: 2, ..order(1, 1, CommandEffect::Ensure) };
    processes.carry_out(second).await;
    until(&processes, volume(1), "with a smaller size, it is created", is_ready).await;
    std::fs::write(data(&root, 1).join("file"), vec![1; 1 << 20]).unwrap();
    drop(processes);
    let _processes = root.open().await;
    let block = std::fs::metadata(data(&root, 1)).unwrap().blksize();
    wait_until("it is measured", || {
        let used = VolumeUsage::of(root.path(), volume(1)).filter(|used| used.files == 2);
        used.is_some_and(|used| used.whole && (1 << 20..(1 << 20) + 4 * block).contains(&used.bytes))
    });
}

pub(crate) async fn a_concurrent_start_and_destruction_have_one_outcome() {
    let root = TestRoot::new();
    let processes = root.open().await;
    for position in 1..=20 {
        make(&processes, position).await;
        let run = writer(position);
        tokio::join!(
            processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &run)),
            processes.carry_out(order(position, 2, CommandEffect::Kill)),
        );
        let over = tokio::time::timeout(PATIENCE, async {
            until(&processes, id(position), "it runs or waits", |r| is_ready(r) || failed(r).is_some()).await
        });
        let runs = is_ready(&over.await.unwrap());
        let outcome =
            |report: &ObjectReport| report.revision == 2 && (is_gone(report) || failed(report).is_some());
        let gone = is_gone(&until(&processes, volume(position), "it is gone or kept", outcome).await);
        assert_ne!(runs, gone, "exactly one succeeds");
        assert_eq!(data(&root, position).exists(), runs);
    }
}

pub(crate) async fn a_volume_that_an_orphan_uses_gets_no_second_user() {
    let root = TestRoot::new();
    let processes = root.open().await;
    make(&processes, 1).await;
    // No command ends it, as with decisions in a lost part of the journal.
    processes.carry_out(command(id(2), 1, CommandEffect::Ensure, &writer(1))).await;
    until(&processes, id(2), "the first user is ready", is_ready).await;
    wait_until("it wrote", || lines(&root, 1) == 1);
    processes.carry_out(command(id(3), 1, CommandEffect::Ensure, &writer(1))).await;
    let refused = until(&processes, id(3), "the second is refused", |report| failed(report).is_some()).await;
    let user = format!("cannot use volume {}: in use by {}", volume(1), id(2));
    assert!(failed(&refused).is_some_and(|message| message.contains(&user)), "{refused:?}");
    assert_eq!(lines(&root, 1), 1, "the second was not started");
    processes.carry_out(command(id(2), 2, CommandEffect::Kill, &writer(1))).await;
    until(&processes, id(2), "the first user has ended", is_ended).await;
    processes.carry_out(command(id(3), 2, CommandEffect::Ensure, &writer(1))).await;
    until(&processes, id(3), "the second is ready", is_ready).await;
    wait_until("the second wrote", || lines(&root, 1) == 2);
    processes.carry_out(command(id(3), 3, CommandEffect::Kill, &writer(1))).await;
    until(&processes, id(3), "the second has ended", is_ended).await;
}
