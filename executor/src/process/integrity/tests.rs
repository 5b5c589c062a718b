#![allow(clippy::disallowed_methods, reason = "the test plays an operator")]

use std::fs;

use super::*;

fn sight() -> (tempfile::TempDir, IncarnationDirectory, DirectoryInspector) {
    let root = tempfile::tempdir().unwrap();
    let directory = IncarnationDirectory::at(root.path().join("nodes/n1/it"));
    fs::create_dir_all(directory.path()).unwrap();
    for file in directory.records_of_what_runs() {
        fs::write(file, "as it was").unwrap();
    }
    let mut sight = DirectoryInspector::of(&directory, None, 0);
    assert_eq!(sight.look(), DirectoryCheck::Changed, "the first check has nothing to compare");
    assert_eq!(sight.look(), DirectoryCheck::Same);
    (root, directory, sight)
}

#[test]
fn what_is_done_to_records_and_names_is_a_change_once() {
    let (_root, directory, mut sight) = sight();
    let record = &directory.records_of_what_runs()[2];
    // Kernels before 6.13 count times of changes in steps of some milliseconds.
    let tick = || std::thread::sleep(Duration::from_millis(20));
    let mut seen = |what: &str| {
        assert_eq!((sight.look(), sight.look()), (DirectoryCheck::Changed, DirectoryCheck::Same), "{what}");
        tick();
    };
    tick();
    fs::write(record, "AS IT WAS").unwrap();
    seen("a record is overwritten in place, with as many bytes");
    fs::remove_file(record).unwrap();
    seen("a record is removed");
    fs::write(record, "as it was").unwrap();
    seen("a record is restored");
    fs::rename(record, directory.file("else")).unwrap();
    seen("a record is renamed");
    fs::write(directory.file("supervisor.lock"), "").unwrap();
    seen("there is a new file");
}

#[test]
fn a_moved_directory_is_lost_whatever_replaces_it() {
    type DirectoryChange = fn(&Path, &IncarnationDirectory);
    let cases: [(&str, DirectoryChange, DirectoryLoss); 5] = [
        (
            "it is removed",
            |_, directory| fs::remove_dir_all(directory.path()).unwrap(),
            DirectoryLoss::Removed,
        ),
        (
            "it is renamed",
            |root, incarnation_directory| {
                fs::rename(incarnation_directory.path(), root.join("aside")).unwrap();
            },
            DirectoryLoss::Removed,
        ),
        (
            "a parent directory is renamed",
            |root, _| fs::rename(root.join("nodes"), root.join("aside")).unwrap(),
            DirectoryLoss::Removed,
        ),
        (
            "a file replaces a parent directory",
            |root, _| {
                fs::rename(root.join("nodes"), root.join("aside")).unwrap();
                fs::write(root.join("nodes"), "").unwrap();
            },
            DirectoryLoss::Removed,
        ),
        (
            "another directory replaces it",
            |root, data_directory| {
                fs::rename(data_directory.path(), root.join("aside")).unwrap();
                fs::create_dir(data_directory.path()).unwrap();
            },
            DirectoryLoss::Replaced,
        ),
    ];
    for (what, act, loss) in cases {
        let (root, path, mut sight) = sight();
        let place = FileId::of(path.path()).unwrap().unwrap();
        assert_eq!(place.loss(path.path()), None);
        act(root.path(), &path);
        assert_eq!(
            (sight.look(), place.loss(path.path())),
            (DirectoryCheck::Lost(loss), Some(loss)),
            "{what}"
        );
    }
}
