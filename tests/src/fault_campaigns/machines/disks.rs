//! Content of disks, as guests write and compare it.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::host::MachineProcess;
use crate::qemu::GuestPort;

/// Sectors of a disk.
pub(super) const SECTORS: u64 = 2048;
/// Sectors of one write.
const WRITE: u64 = 16;
/// Maximum time for an answer of a guest.
const PATIENCE: Duration = Duration::from_secs(5);
/// Attempts until the answer counts that there is no such disk, and the time between two of them.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// Number of sectors of each disk that were written and acknowledged, from the first on.
#[derive(Default, Debug)]
pub(super) struct DiskContents {
    written: BTreeMap<PathBuf, u64>,
    /// Number of sectors that were compared.
    pub(super) compared: u64,
}

impl DiskContents {
    /// Lets the guest compare everything that was written to its disks, in any incarnation, and write more.
    pub(super) fn exercise(&mut self, machine: &MachineProcess) -> Result<()> {
        for disk in &machine.disks {
            let written = self.written.entry(disk.clone()).or_default();
            let seed = seed(disk);
            if *written > 0 {
                let Some(answer) = ask(machine, &format!("v data 0 {written} {seed}")) else { return Ok(()) };
                ensure!(
                    answer == "ok",
                    "{written} sectors of {} were acknowledged, and are compared in incarnation {}: {answer}",
                    disk.display(),
                    machine.incarnation
                );
                self.compared += *written;
            }
            // The last sectors are those of the fault without space.
            if *written + 2 * WRITE > SECTORS {
                continue;
            }
            let Some(answer) = ask(machine, &format!("w data {written} {WRITE} {seed}")) else {
                return Ok(());
            };
            ensure!(answer == "ok", "a write to {} returned {answer}", disk.display());
            *written += WRITE;
        }
        Ok(())
    }
}

fn seed(disk: &Path) -> u32 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(disk.as_os_str().as_encoded_bytes());
    hasher.finish() as u32
}

/// Sends a command to the guest, and returns the answer; none if it ends or resets meanwhile.
pub(super) fn ask(machine: &MachineProcess, command: &str) -> Option<String> {
    let ask = || {
        let mut port = GuestPort::open(&machine.directory).ok()?;
        port.set_patience(PATIENCE).ok()?;
        port.ask(command).ok().filter(|answer| !answer.is_empty())
    };
    // A guest that resets meanwhile reads the rest of the command as another one.
    for _ in 0..ATTEMPTS {
        match ask() {
            Some(answer) if answer == "absent" => std::thread::sleep(PAUSE),
            answer => return answer,
        }
    }
    ask()
}

/// Sends a command without an answer to the guest, if it still runs.
pub(super) fn send(machine: &MachineProcess, command: &str) {
    if let Ok(mut port) = GuestPort::open(&machine.directory) {
        let _ = port.send(command);
    }
}
