#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "the removal is compared with a plain one"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::{Command, Stdio};

use super::*;

static GO: AtomicBool = AtomicBool::new(false);

/// Bind mount of one directory at another, until this is dropped.
struct BindMount(PathBuf);

impl BindMount {
    /// Returns `None` where nothing can be mounted, and prints that.
    fn mount(from: &Path, at: &Path) -> Option<BindMount> {
        fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount").arg("--bind").args([from, at]).stderr(Stdio::null()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            println!("nothing can be mounted here: not tried");
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
    fs::create_dir_all(outside.path().join("a/b")).unwrap();
    fs::write(outside.path().join("a/b/file"), "precious").unwrap();
    outside
}

fn is_whole(outside: &tempfile::TempDir) -> bool {
    fs::read(outside.path().join("a/b/file")).is_ok_and(|text| text == b"precious")
}

#[test]
fn mount_points_are_read_as_they_are_written() {
    for (text, path) in [
        ("/a/b", "/a/b"),
        (r"/a\040b\134c", r"/a b\c"),
        (r"/a\04", r"/a\04"),
        (r"/\011", "/\t"),
        ("/a/b//deleted", "/a/b"),
    ] {
        assert_eq!(unescaped(text.as_bytes()), PathBuf::from(path), "{text}");
    }
    let mountinfo = b"22 1 0:1 / / rw - ext4 x rw\n23 22 0:1 /x /d/in\\040side/m rw - ext4 x rw\n";
    let found = |path: &str| first_inside(Path::new(path), mountinfo);
    assert_eq!(found("/d/in side"), Some("/d/in side/m".into()));
    assert_eq!(found("/d/in side/m"), Some("/d/in side/m".into()), "the directory itself");
    assert_eq!(found("/d/in"), None, "another directory with the same prefix");
}

#[test]
fn a_directory_is_not_removed_while_anything_is_mounted_inside_and_is_removed_afterwards() {
    let (root, outside) = (tempfile::tempdir().unwrap(), outside());
    let doomed = root.path().join("doomed");
    // One mount inside another, reached through a link in the path.
    let linked = root.path().join("link");
    std::os::unix::fs::symlink(root.path(), &linked).unwrap();
    let Some(first) = BindMount::mount(outside.path(), &doomed.join("work/a point")) else { return };
    let Some(second) = BindMount::mount(outside.path(), &doomed.join("work/a point/a")) else { return };
    fs::write(doomed.join("file"), "").unwrap();
    for path in [doomed.clone(), linked.join("doomed")] {
        let error = remove(&path, &GO).unwrap_err().to_string();
        let point = fs::canonicalize(&doomed).unwrap().join("work/a point");
        assert_eq!(error, format!("another file system is mounted inside: {}", point.display()));
        assert!(relocate(&path, &root.path().join("moved")).is_err());
    }
    assert!(is_whole(&outside) && doomed.join("file").exists(), "nothing was touched");
    drop(second);
    drop(first);
    remove(&doomed, &GO).unwrap();
    assert!(!doomed.exists() && is_whole(&outside));
}

#[test]
fn a_mount_created_between_check_and_removal_is_not_entered() {
    let (root, outside) = (tempfile::tempdir().unwrap(), outside());
    let doomed = root.path().join("doomed");
    let Some(bind) = BindMount::mount(outside.path(), &doomed.join("work/point")) else { return };
    let error = remove_unmounted(&doomed, &GO).unwrap_err().to_string();
    assert!(error.contains("mounted inside: point"), "{error}");
    // As on a kernel without openat2.
    let work = fs::File::open(doomed.join("work")).unwrap().into();
    let point = CString::new("point").unwrap();
    assert_eq!(open_on_same_mount(&work, &point, DIRECTORY).unwrap_err(), Errno::XDEV);
    assert!(is_whole(&outside));
    drop(bind);
    open_on_same_mount(&work, &point, DIRECTORY).unwrap();
    remove(&doomed, &GO).unwrap();
    assert!(!doomed.exists());
}

#[test]
fn mounts_created_and_removed_during_removals_lose_nothing() {
    let (root, outside) = (tempfile::tempdir().unwrap(), outside());
    let doomed = root.path().join("doomed");
    let point = doomed.join("work/deep/point");
    let Some(first) = BindMount::mount(outside.path(), &point) else { return };
    drop(first);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut mounted = 0;
            while mounted < 30 && is_whole(&outside) {
                // The directory may be removed again before the mount.
                let mut mount = Command::new("mount");
                mount.arg("--bind").args([outside.path(), &point]).stderr(Stdio::null());
                if fs::create_dir_all(&point).is_ok() && mount.status().unwrap().success() {
                    mounted += 1;
                    while !Command::new("umount").arg(&point).status().unwrap().success() {}
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let _ = remove(&doomed, &GO);
            // Sometimes this leaves time for a mount.
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(is_whole(&outside));
    remove(&doomed, &GO).unwrap();
}

#[test]
fn what_its_owner_may_not_write_is_removed_without_being_root() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let doomed = root.path().join("doomed");
    let make = || {
        let inner = doomed.join("work/read-only/closed");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), "").unwrap();
        let mut deep = doomed.join("work");
        for _ in 0..DEEPEST + 8 {
            deep.push("d");
            fs::create_dir(&deep).unwrap();
        }
        let allow = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        allow(&deep, 0o500);
        allow(&inner, 0);
        for path in [inner.parent().unwrap(), &doomed.join("work"), &doomed] {
            allow(path, 0o500);
        }
    };
    let target = root.path().join("aside/doomed");
    let removal = || {
        make();
        fs::create_dir(target.parent().unwrap()).unwrap();
        let plain = fs::remove_dir_all(&doomed).map_err(|error| error.kind());
        assert_eq!(plain, Err(io::ErrorKind::PermissionDenied), "a plain removal is refused");
        relocate(&doomed, &target).unwrap();
        remove(&target, &GO).unwrap();
    };
    // User and group belong to a thread.
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            if rustix::process::getuid().is_root() {
                let (group, user) = (rustix::fs::Gid::from_raw(65534), rustix::fs::Uid::from_raw(65534));
                rustix::thread::set_thread_gid(group).unwrap();
                rustix::thread::set_thread_uid(user).unwrap();
            }
            removal();
        });
        done.join().unwrap();
    });
    assert!(!doomed.exists() && !target.exists());
    // Directory of another user, as root.
    if rustix::process::getuid().is_root() {
        make();
        chown(&doomed, Some(65534), Some(65534)).unwrap();
        remove(&doomed, &GO).unwrap();
        assert!(!doomed.exists());
    }
}
