use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::time::Duration;

use chancery_events::id::{Lineage, Position};
use chancery_events::observation::RetryClass;
use chancery_events::protocol::{CommandStatus, VolumeSpec};

use super::super::directory::{VolumeDirectory, VolumeFile, VolumePhase, remove_unused as remove_directory};
use super::*;
use crate::reconcile::{ObjectTarget, TargetGoal};

const CAPACITY: u64 = 3 << 20;

/// Returns the directory of all volumes, and a volume in it that was not made yet.
fn volume() -> (tempfile::TempDir, VolumeId, VolumeDirectory) {
    let volumes = tempfile::tempdir().unwrap();
    let id = VolumeId::issue(Lineage::from_random(1), Position::FIRST);
    let directory = VolumeDirectory::of(volumes.path(), id);
    std::fs::create_dir_all(directory.path()).unwrap();
    (volumes, id, directory)
}

/// Records that the volume was made.
fn record(directory: &VolumeDirectory, volume: VolumeId, form: ContentForm) {
    let (aim, status, grace) = (TargetGoal::Up, CommandStatus::Pending, Duration::ZERO);
    let spec = VolumeSpec {
        name: "data".parse().unwrap(),
        namespace: "ns".parse().unwrap(),
        node: "n1".parse().unwrap(),
        class: "ssd".parse().unwrap(),
        capacity: CAPACITY,
        source: None,
    };
    let order = ObjectTarget { revision: 1, attempt: 1, aim, status, grace, is_reboot: false };
    let kept = VolumeFile { volume, order, spec: Some(spec), form, phase: VolumePhase::Made };
    let identity = directory.identity().unwrap();
    directory.keep(None, &kept, identity).unwrap();
}

/// Name of a state after a crash, and what makes it in the directory of a volume.
type CrashState<'a> = (&'static str, &'a dyn Fn(&Path));

#[test]
fn whatever_a_crash_left_the_disk_is_made_whole() {
    let content = |at: &Path| std::fs::DirBuilder::new().mode(0o700).create(at).unwrap();
    let complete = |at: &Path| create(at, CAPACITY).unwrap();
    let states: [CrashState<'_>; 5] = [
        ("nothing", &|_| {}),
        ("a directory", &|volume| content(&volume.join("data.new"))),
        ("a disk without its size", &|volume| {
            content(&volume.join("data.new"));
            std::fs::write(volume.join("data.new/disk"), "").unwrap();
        }),
        ("a disk that was not renamed", &|volume| {
            content(&volume.join("data.new"));
            complete(&volume.join("data.new"));
        }),
        ("a disk", &|volume| {
            content(&volume.join("data"));
            complete(&volume.join("data"));
        }),
    ];
    for (state, make) in states {
        let (volumes, id, directory) = volume();
        make(directory.path());
        directory.make_data(ContentForm::Disk, CAPACITY).unwrap();
        record(&directory, id, ContentForm::Disk);
        let disk = disk(volumes.path(), id).unwrap();
        let found = disk.metadata().unwrap();
        assert_eq!((found.len(), found.mode() & 0o7777), (CAPACITY, 0o600), "{state}");
        assert_eq!(found.blocks(), 0, "{state}: it is sparse");
        assert_eq!(directory.data().metadata().unwrap().mode() & 0o7777, 0o700, "{state}");
        assert!(!directory.file("data.new").exists(), "{state}");
    }
}

#[test]
fn a_disk_is_neither_made_again_nor_resized() {
    let (_volumes, _, directory) = volume();
    directory.make_data(ContentForm::Disk, CAPACITY).unwrap();
    std::fs::write(path(&directory.data()), "content").unwrap();
    directory.make_data(ContentForm::Disk, CAPACITY).unwrap();
    assert_eq!(std::fs::read_to_string(path(&directory.data())).unwrap(), "content");
    remove_directory(&directory.data(), ContentForm::Disk).unwrap_err();
    assert_eq!(std::fs::read_to_string(path(&directory.data())).unwrap(), "content");
    // Content without its disk is not completed, and is not removed.
    std::fs::rename(path(&directory.data()), directory.data().join("moved")).unwrap();
    let error = directory.make_data(ContentForm::Disk, CAPACITY).unwrap_err().to_string();
    assert_eq!(error, format!("{} does not exist", path(&directory.data()).display()));
    remove_directory(&directory.data(), ContentForm::Disk).unwrap_err();
    assert!(directory.data().join("moved").exists());
}

#[test]
fn a_disk_that_was_never_used_is_removed_with_its_content() {
    for content in ["data", "data.new"] {
        let (_volumes, _, directory) = volume();
        let content = directory.file(content);
        std::fs::create_dir(&content).unwrap();
        create(&content, CAPACITY).unwrap();
        remove_directory(&content, ContentForm::Directory).unwrap_err();
        remove_directory(&content, ContentForm::Disk).unwrap();
        assert!(!content.exists());
        remove_directory(&content, ContentForm::Disk).unwrap();
    }
}

#[test]
fn what_cannot_be_a_disk_fails_the_start_and_stays() {
    type FoundCase = (&'static str, &'static dyn Fn(&Path), &'static str);
    let cases: [FoundCase; 5] = [
        ("shorter", &|disk| std::fs::write(disk, "short").unwrap(), "/data/disk has 5 bytes, not 3145728"),
        (
            "longer",
            &|disk| std::fs::File::create(disk).unwrap().set_len(CAPACITY + 512).unwrap(),
            " bytes, not ",
        ),
        (
            "a link",
            &|disk| {
                create(disk.parent().unwrap().parent().unwrap(), CAPACITY).unwrap();
                symlink("../disk", disk).unwrap();
            },
            "/data/disk is not a regular file",
        ),
        ("a directory", &|disk| std::fs::create_dir(disk).unwrap(), "/data/disk is not a regular file"),
        ("a broken link", &|disk| symlink("nowhere", disk).unwrap(), "/data/disk is not a regular file"),
    ];
    for (case, make, wanted) in cases {
        let (volumes, id, directory) = volume();
        std::fs::create_dir(directory.data()).unwrap();
        make(&path(&directory.data()));
        record(&directory, id, ContentForm::Disk);
        let before = std::fs::symlink_metadata(path(&directory.data())).unwrap();
        let ExecFailure { message, retry } = disk(volumes.path(), id).expect_err(case);
        assert!(message.starts_with("cannot use volume ") && message.contains(wanted), "{case}: {message}");
        assert_eq!(retry, RetryClass::Permanent, "{case}");
        let after = std::fs::symlink_metadata(path(&directory.data())).unwrap();
        assert_eq!((before.ino(), before.len()), (after.ino(), after.len()), "{case}");
    }
}

#[test]
fn content_of_processes_is_no_disk_and_a_missing_disk_may_return() {
    let (volumes, id, directory) = volume();
    directory.make_data(ContentForm::Directory, CAPACITY).unwrap();
    std::fs::write(directory.data().join("file"), "x").unwrap();
    record(&directory, id, ContentForm::Directory);
    let ExecFailure { message, retry } = disk(volumes.path(), id).expect_err("a directory");
    assert!(message.ends_with("/data was made for processes"), "{message}");
    assert_eq!(retry, RetryClass::Permanent);
    let (volumes, id, directory) = volume();
    std::fs::create_dir(directory.data()).unwrap();
    record(&directory, id, ContentForm::Disk);
    let ExecFailure { message, retry } = disk(volumes.path(), id).expect_err("no disk");
    assert!(message.ends_with(": not found"), "{message}");
    assert_eq!(retry, RetryClass::Retryable, "the volume is lost, and it may be found again");
}

#[test]
fn a_disk_has_whole_sectors() {
    for (capacity, fits) in [(0, false), (511, false), (512, true), (513, false), (1 << 40, true)] {
        assert_eq!(unfit(capacity).is_none(), fits, "{capacity}");
    }
}
