//! Faults of virtual machines and of what runs them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::evidence::MachineEnd;
use super::host::MachineProcess;
use super::{MachineCampaign, disks};
use crate::fault_campaigns::faults::signal;
use crate::host::HostProcess;
use crate::server::supervisors;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// Fault of a round.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum MachineFault {
            $($(#[$doc])* $name,)*
        }

        impl MachineFault {
            /// All faults.
            pub(super) const ALL: &[MachineFault] = &[$(MachineFault::$name),*];

            /// Name of the fault in the ledger.
            pub(super) const fn word(self) -> &'static str {
                match self {
                    $(MachineFault::$name => $word,)*
                }
            }
        }
    };
}

faults! {
    /// The server is killed, with the executor if that is embedded.
    ServerKilled = "kill -9 of the server",
    /// The executor outside the server is killed.
    ExecutorKilled = "kill -9 of the executor",
    /// One supervisor is killed, or all of them; the executor with them, or not.
    SupervisorKilled = "kill -9 of supervisors",
    /// QEMU is killed.
    QemuKilled = "kill -9 of QEMU",
    /// QEMU is killed after everything that could notice it.
    AllKilled = "kill -9 of executor, supervisor and QEMU",
    /// QEMU is stopped, for less or more than the time after which it is unreachable, and continues.
    QemuPaused = "SIGSTOP of QEMU",
    /// The file system of a disk is full for a while.
    NoSpace = "full disk under a volume",
    /// Another party removes the directory of an incarnation.
    DirectoryRemoved = "directory of an incarnation removed",
    /// A guest powers itself off.
    PowerOff = "power-off by the guest",
    /// A guest resets.
    Reset = "reset by the guest",
    /// A guest panics.
    Panic = "panic of the guest",
}

impl MachineFault {
    /// Faults of a campaign with an executor outside the server, or an embedded one.
    pub(super) fn of(is_remote: bool) -> Vec<MachineFault> {
        let all = MachineFault::ALL.iter().copied();
        all.filter(|fault| is_remote || *fault != MachineFault::ExecutorKilled).collect()
    }

    /// Injects the fault and ends it.
    pub(super) fn inject(self, campaign: &mut MachineCampaign) -> Result<()> {
        match self {
            MachineFault::ServerKilled => {
                campaign.server.kill();
                campaign.pause(1000);
                campaign.start_server();
                Ok(())
            }
            MachineFault::ExecutorKilled => {
                campaign.kill_executor();
                campaign.pause(1000);
                campaign.start_executor();
                Ok(())
            }
            MachineFault::SupervisorKilled => {
                supervisors_killed(campaign);
                Ok(())
            }
            MachineFault::QemuKilled => {
                let machine = campaign.running_guest()?;
                campaign.expect(&machine, MachineEnd::Failed);
                signal(machine.process.pid, Signal::KILL);
                Ok(())
            }
            MachineFault::AllKilled => {
                let machine = campaign.running_guest()?;
                campaign.kill_executor();
                kill_supervisor(&machine);
                campaign.expect(&machine, MachineEnd::Failed);
                signal(machine.process.pid, Signal::KILL);
                campaign.pause(500);
                campaign.start_executor();
                Ok(())
            }
            MachineFault::QemuPaused => {
                let machine = campaign.running_guest()?;
                signal(machine.process.pid, Signal::STOP);
                if campaign.random.chance(300) {
                    // Unreachable after ten seconds.
                    std::thread::sleep(Duration::from_secs(12));
                } else {
                    campaign.pause(3000);
                }
                // Its pid is not used again: it can only be dead.
                if machine.process.is_alive() {
                    signal(machine.process.pid, Signal::CONT);
                }
                Ok(())
            }
            MachineFault::NoSpace => no_space(campaign),
            MachineFault::DirectoryRemoved => directory_removed(campaign),
            MachineFault::PowerOff => guest_ends(campaign, "o", Some(MachineEnd::PoweredOff)),
            MachineFault::Reset => guest_ends(campaign, "r", None),
            MachineFault::Panic => guest_ends(campaign, "p", Some(MachineEnd::Failed)),
        }
    }
}

/// Kills the supervisor of a machine, if it has one.
fn kill_supervisor(machine: &MachineProcess) {
    let Some(now) = HostProcess::of(machine.process.pid) else { return };
    if now.start_time == machine.process.start_time && now.parent > 1 {
        signal(now.parent, Signal::KILL);
    }
}

fn supervisors_killed(campaign: &mut MachineCampaign) {
    let kills_executor = campaign.random.chance(500);
    if kills_executor {
        campaign.kill_executor();
    }
    let all = supervisors(campaign.server.directory());
    if campaign.random.chance(500) {
        for (pid, _) in &all {
            signal(*pid, Signal::KILL);
        }
    } else if let Some((pid, _)) = campaign.random.pick(&all) {
        signal(*pid, Signal::KILL);
    }
    campaign.pause(500);
    if kills_executor {
        campaign.start_executor();
    }
}

/// The guest gets errors while there is no space, and runs on.
fn no_space(campaign: &mut MachineCampaign) -> Result<()> {
    let machine = campaign.running_guest_with("a guest with a disk runs", |guest| !guest.disks.is_empty())?;
    let file = campaign.images().join("full");
    std::fs::write(&file, "").context("cannot fill the disk")?;
    let write = format!("w data {} 16 1", disks::SECTORS - 16);
    let refused = disks::ask(&machine, &write);
    campaign.pause(2000);
    let again = disks::ask(&machine, &write);
    std::fs::remove_file(&file).context("cannot free the disk")?;
    let written = disks::ask(&machine, &write);
    // Without an answer, the guest was stopped meanwhile.
    for (answer, wanted) in [(refused, "error 1"), (again, "error 1"), (written, "ok")] {
        let is_as_wanted = answer.as_deref().is_none_or(|answer| answer == wanted);
        ensure!(
            is_as_wanted,
            "a write returned {answer:?}, not {wanted}, in incarnation {}",
            machine.incarnation
        );
    }
    Ok(())
}

fn directory_removed(campaign: &mut MachineCampaign) -> Result<()> {
    let machine = campaign.running_guest()?;
    let kills_executor = campaign.random.chance(500);
    if kills_executor {
        campaign.kill_executor();
        if campaign.random.chance(500) {
            kill_supervisor(&machine);
        }
    }
    campaign.expect(&machine, MachineEnd::Failed);
    let directory = machine.directory.parent().context("a directory of an incarnation")?;
    // Its owner may create files in it meanwhile, or remove it.
    let began = std::time::Instant::now();
    while let Err(error) = std::fs::remove_dir_all(directory) {
        if error.kind() == std::io::ErrorKind::NotFound {
            break;
        }
        let is_late = began.elapsed() > Duration::from_secs(10);
        ensure!(!is_late, "cannot remove {}: {error}", directory.display());
    }
    campaign.pause(500);
    if kills_executor {
        campaign.start_executor();
    }
    Ok(())
}

/// Sends a command to a guest, while its executor and supervisor run, or not.
fn guest_ends(campaign: &mut MachineCampaign, command: &str, end: Option<MachineEnd>) -> Result<()> {
    let machine = campaign.running_guest()?;
    let kills_executor = campaign.random.chance(500);
    if kills_executor {
        campaign.kill_executor();
        if campaign.random.chance(500) {
            kill_supervisor(&machine);
        }
    }
    if let Some(end) = end {
        campaign.expect(&machine, end);
    }
    disks::send(&machine, command);
    campaign.pause(1500);
    if kills_executor {
        campaign.start_executor();
    }
    Ok(())
}
