//! Mounts as `/proc/self/mountinfo` lists them, and mounts that are removed when dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Mount that is removed when this value is dropped.
#[derive(Debug)]
pub struct TestMount(PathBuf);

impl TestMount {
    /// Mounts a directory at a second path.
    pub fn bind(what: &Path, at: &Path) -> Result<TestMount> {
        run(Command::new("mount").arg("--bind").arg(what).arg(at))?;
        Ok(TestMount(at.to_owned()))
    }

    /// Mounts an in-memory file system of this size in mebibytes.
    pub fn memory(at: &Path, mebibytes: u64) -> Result<TestMount> {
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
            .arg(at))?;
        Ok(TestMount(at.to_owned()))
    }

    /// Mounts a directory read-only over itself; files that are open stay writable. The staging directory
    /// must be unused: a mount with a file open for writing cannot become read-only.
    pub fn read_only(at: &Path, staging: &Path) -> Result<TestMount> {
        std::fs::create_dir_all(staging).with_context(|| format!("cannot create {}", staging.display()))?;
        let staged = TestMount::bind(at, staging)?;
        run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(staging))?;
        let mount = TestMount::bind(staging, at)?;
        drop(staged);
        Ok(mount)
    }

    /// Takes over a mount that another process has made.
    pub fn taken_over(at: PathBuf) -> TestMount {
        TestMount(at)
    }

    /// Leaves the mount for the checker to find.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.0) {
            eprintln!("{error:#}");
        }
    }
}

/// Unmounts lazily: a process with a file open there keeps the file.
pub(super) fn unmount(at: &Path) -> Result<()> {
    run(Command::new("umount").arg("--lazy").arg(at))
}

/// Mounts under a directory, the innermost first.
pub fn mounts_under(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<_> = table()?.into_iter().map(|(at, _)| at).filter(|at| at.starts_with(dir)).collect();
    found.sort();
    found.reverse();
    Ok(found)
}

/// Mount points of file systems of this type.
pub(super) fn of_type(name: &str) -> Result<Vec<PathBuf>> {
    Ok(table()?.into_iter().filter(|(_, kind)| kind == name).map(|(at, _)| at).collect())
}

/// Mount point and type of each mount.
fn table() -> Result<Vec<(PathBuf, String)>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").context("cannot read mountinfo")?;
    let entry = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let at = left.split(' ').nth(4)?;
        // Bytes that would break a line or a word are written in octal.
        let at =
            at.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
        Some((PathBuf::from(at), right.split(' ').next()?.to_owned()))
    };
    Ok(text.lines().filter_map(entry).collect())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("cannot run {command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
}
