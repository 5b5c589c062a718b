//! Payload processes of one server, found by their environment.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chancery_executor::process::{CgroupSetting, CgroupSupport, EndProof};

/// Running payload process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PayloadProcess {
    /// Name of the replica.
    pub replica: String,
    /// Id of the incarnation.
    pub incarnation: String,
    /// Name of the payload, and the number of the process.
    pub process: String,
    /// Process id.
    pub pid: u32,
}

/// Returns the running payload processes with their home under `root`, by process id, without their children.
/// Each payload process leads a process group.
pub fn payloads(root: &Path) -> Vec<PayloadProcess> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let mut found: Vec<(PayloadProcess, u32)> = std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| payload(&root, pid))
        .collect();
    let pids: BTreeSet<u32> = found.iter().map(|(payload, _)| payload.pid).collect();
    found.retain(|(_, parent)| !pids.contains(parent));
    let mut found: Vec<PayloadProcess> = found.into_iter().map(|(payload, _)| payload).collect();
    found.sort();
    found
}

/// Returns the resident memory of a process, in KiB.
pub fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line VmRSS");
    line.trim().strip_suffix(" kB").and_then(|kib| kib.trim().parse().ok()).expect("a number")
}

/// Ends processes in the cgroups of executors with directories under `root`; removes the cgroups.
pub(crate) fn end_groups_under(root: &Path) {
    let Ok(CgroupSupport { proof: EndProof::Cgroup(parent), .. }) =
        CgroupSupport::detect(&CgroupSetting::Detect)
    else {
        return;
    };
    let mut directories = vec![(root.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        let Ok(metadata) = directory.symlink_metadata() else { continue };
        let groups = parent.join(format!("{:x}-{:x}", metadata.dev(), metadata.ino()));
        if groups.exists() {
            let _ = std::fs::write(groups.join("cgroup.kill"), "1");
            for _ in 0..100 {
                for group in std::fs::read_dir(&groups).into_iter().flatten().flatten() {
                    let _ = std::fs::remove_dir(group.path());
                }
                if std::fs::remove_dir(&groups).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // Executors are at most this deep: executors/FLEET/CLUSTER.
        if depth < 4 && metadata.is_dir() {
            let below = std::fs::read_dir(&directory).into_iter().flatten().flatten();
            directories.extend(below.map(|entry| (entry.path(), depth + 1)));
        }
    }
}

/// Returns a payload process with its parent.
fn payload(root: &Path, pid: u32) -> Option<(PayloadProcess, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None; // dead, but not reaped yet
    }
    let parent = fields.next()?.parse().ok()?;
    if fields.next()?.parse() != Ok(pid) {
        return None; // in the group of the process that started it
    }
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let environ: BTreeMap<String, String> = environ
        .split(|byte| *byte == 0)
        .filter_map(|pair| std::str::from_utf8(pair).ok()?.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let get = |key: &str| environ.get(key).cloned();
    // Named as the data directory was at the start, which may have been by a link.
    let home = PathBuf::from(get("HOME")?);
    if !home.starts_with(root) && !home.canonicalize().is_ok_and(|home| home.starts_with(root)) {
        return None;
    }
    let process = format!("{}-{}", get("CHANCERY_PAYLOAD")?, get("CHANCERY_PROCESS")?);
    let (replica, incarnation) = (get("CHANCERY_REPLICA")?, get("CHANCERY_INCARNATION")?);
    Some((PayloadProcess { replica, incarnation, process, pid }, parent))
}
