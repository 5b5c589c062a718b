//! Payload processes of one server, found by what their environment says.

use std::collections::BTreeMap;
use std::path::Path;

/// A payload process that is alive.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Payload {
    /// Its replica.
    pub replica: String,
    /// Its incarnation.
    pub incarnation: String,
    /// Its payload and number.
    pub process: String,
    /// Its process id.
    pub pid: u32,
}

/// Every payload process that is alive and has its home under `root`, by process id.
pub fn payloads(root: &Path) -> Vec<Payload> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let mut found: Vec<Payload> = std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| payload(&root, pid))
        .collect();
    found.sort();
    found
}

fn payload(root: &Path, pid: u32) -> Option<Payload> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit(')').next()?.trim_start().chars().next()?;
    if matches!(state, 'Z' | 'X') {
        return None; // dead, and only not reaped yet
    }
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let environ: BTreeMap<String, String> = environ
        .split(|byte| *byte == 0)
        .filter_map(|pair| std::str::from_utf8(pair).ok()?.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let get = |key: &str| environ.get(key).cloned();
    if !Path::new(&get("HOME")?).starts_with(root) {
        return None;
    }
    let process = format!("{}-{}", get("CHANCERY_PAYLOAD")?, get("CHANCERY_PROCESS")?);
    Some(Payload {
        replica: get("CHANCERY_REPLICA")?,
        incarnation: get("CHANCERY_INCARNATION")?,
        process,
        pid,
    })
}
