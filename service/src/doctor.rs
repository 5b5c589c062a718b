//! `chancery doctor`: the features of this host for processes of an executor, and the trust in its clock.

use std::fmt::Write as _;

use anyhow::Result;
use chancery_executor::process::{CgroupSupport, EndProof};
use chancery_journal::segments::verify;

use crate::config::ServiceConfig;
use crate::data_dir::journal_options;

/// Returns how the end of processes is proved here, and whether an executor with these settings can start.
pub fn host(config: &ServiceConfig) -> (String, bool) {
    match CgroupSupport::detect(&config.cgroup_root) {
        Ok(CgroupSupport { proof: EndProof::Cgroup(path), .. }) => (
            format!("processes: the end of a process is proved by control groups in {}\n", path.display()),
            true,
        ),
        Ok(CgroupSupport { proof: EndProof::Search(why), .. }) => {
            let text = format!(
                "processes: the end of a process is proved by a search through /proc: {why}\n  \
                 If a supervisor dies, the end may stay unknown until the machine restarts. Run the executor as root, or in \
                 a control group of its own (systemd: Delegate=yes), and run this command in the same way.\n"
            );
            (text, true)
        }
        Err(error) => (format!("processes: cannot start an executor on this host: {error}\n"), false),
    }
}

/// Compares the wall clock with the last record of each local journal; returns whether servers may decide.
pub fn clock(config: &ServiceConfig) -> Result<(String, bool)> {
    let (mut text, mut is_well) = (String::new(), true);
    for fleet in config.fleets.keys() {
        let dir = journal_options(config, &config.data_dir, fleet).dir;
        if !dir.is_dir() {
            writeln!(text, "clock of fleet {fleet}: no journal in {}", dir.display())?;
            continue;
        }
        let report = verify(&dir)?;
        match report.head.map_or(Ok(()), |head| config.wall_clock().try_admit(head.time)) {
            Ok(()) => writeln!(text, "clock of fleet {fleet}: ok")?,
            Err(error) => {
                is_well = false;
                writeln!(text, "clock of fleet {fleet}: {error}")?;
            }
        }
    }
    Ok((text, is_well))
}
