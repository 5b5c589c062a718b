//! Data directory of a server: its permissions, and entries of the wrong type in it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};
use chancery_tests::{ServerProcess, payloads};

/// Collects files and directories under a path that others than the owner may use, except a payload's own.
fn open_to_others(path: &Path, found: &mut Vec<(PathBuf, u32)>) {
    for entry in fs::read_dir(path).expect("a directory") {
        let path = entry.expect("an entry").path();
        let metadata = path.symlink_metadata().expect("it is there");
        let mode = metadata.permissions().mode() & 0o777;
        if (metadata.is_dir() || metadata.is_file()) && mode & 0o077 != 0 {
            found.push((path.clone(), mode));
        }
        if metadata.is_dir() && !path.ends_with("work") {
            open_to_others(&path, found);
        }
    }
}

fn all_open(data: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for own in ["fleets", "executors"] {
        open_to_others(&data.join(own), &mut found);
    }
    found
}

#[test]
fn no_other_user_can_read_a_data_directory_and_doctor_narrows_a_wider_one() {
    let mut server = ServerProcess::new();
    let data = server.move_data("data");
    fs::remove_dir(&data).expect("the server makes it");
    server.start_again();
    set_up(&server.client(), &sleeper());
    deploy(&server.client(), "d1", 2);
    server.client().wait_for("web", "running", 2);
    assert_eq!(payloads(&data).len(), 2);
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    let modes = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(
        (modes(&data), modes(&data.join("lock")), modes(&data.join("address"))),
        (0o700, 0o600, 0o600)
    );
    assert_eq!(all_open(&data), [], "open to others");

    let journal = data.join("fleets/default/journal");
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o755)).expect("set");
    server.start_again();
    assert!(server.log().contains("data readable by other users"), "{}", server.log());
    let named = data.display().to_string();
    let looked = server.run(&["doctor", "--data-dir", &named]);
    let output = String::from_utf8_lossy(&looked.stdout).into_owned();
    assert!(!looked.status.success() && output.contains("mode 0755") && output.contains("--fix"), "{output}");
    assert_eq!(modes(&journal), 0o755, "it only checks");
    server.cli(&["doctor", "--fix", "--data-dir", &named]);
    assert_eq!(modes(&journal), 0o700);
    server.cli(&["doctor", "--data-dir", &named]);
}

/// Type of an entry that replaces the expected one.
#[derive(Clone, Copy)]
enum EntityKind {
    File,
    Directory,
    Pipe,
}

#[test]
fn what_is_rebuildable_and_of_the_wrong_type_is_set_aside_and_the_start_continues() {
    let mut server = ServerProcess::start();
    set_up(&server.client(), &sleeper());
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    let fleet = server.data().join("fleets/default");
    let in_the_way = |path: PathBuf, kind: EntityKind| {
        let _ = fs::remove_dir_all(&path);
        let _ = fs::remove_file(&path);
        match kind {
            EntityKind::Directory => {
                fs::create_dir(&path).expect("made");
                fs::write(path.join("kept"), "").expect("written");
            }
            EntityKind::File => fs::write(&path, "kept").expect("written"),
            EntityKind::Pipe => {
                let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo");
                assert!(made.success(), "{}", path.display());
            }
        }
        path
    };
    let rounds = [
        vec![(fleet.join("rows"), EntityKind::File), (fleet.join("snapshots"), EntityKind::File)],
        vec![
            (fleet.join("journal/spare"), EntityKind::Directory),
            (fleet.join("journal/00000000000000000001.post-new"), EntityKind::Directory),
            (fleet.join("snapshots/00000000000000000009.tmp"), EntityKind::Directory),
            (fleet.join("snapshots/00000000000000000003.snap"), EntityKind::Directory),
            // Opening a pipe would wait for a writer.
            (fleet.join("snapshots/00000000000000000004.snap"), EntityKind::Pipe),
            (server.data().join("address.tmp"), EntityKind::Directory),
        ],
    ];
    for round in rounds {
        let wrong: Vec<_> = round.into_iter().map(|(path, kind)| in_the_way(path, kind)).collect();
        let before = server.log().len();
        server.start_again();
        let log = server.log().split_off(before);
        for path in wrong {
            let aside = PathBuf::from(format!("{}.set-aside-1", path.display()));
            assert!(aside.exists(), "{} is not set aside: {log}", path.display());
            assert!(log.contains(&path.display().to_string()), "{} is not named: {log}", path.display());
        }
        assert_eq!(server.client().items("nodes").len(), 4, "the rows are created again");
        assert_eq!(server.stop(), Some(0), "{}", server.log());
    }
}
