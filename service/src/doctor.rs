//! `chancery doctor`: what this host offers to the processes of an executor.

use chancery_executor::process::{CgroupSupport, EndProof};

use crate::config::Config;

/// How ends of processes are proved here, and whether an executor with these settings can start.
pub fn host(config: &Config) -> (String, bool) {
    match CgroupSupport::detect(&config.cgroup) {
        Ok(CgroupSupport { proof: EndProof::Cgroup(path), .. }) => {
            (format!("processes: ends are proved by control groups in {}\n", path.display()), true)
        }
        Ok(CgroupSupport { proof: EndProof::Search(why), .. }) => {
            let text = format!(
                "processes: ends are proved by a search through /proc: {why}\n  \
                 When a supervisor dies, an end may stay unknown until the machine is booted again. Run the executor as root, \
                 or in a control group of its own (systemd: Delegate=yes), and this command in the same way.\n"
            );
            (text, true)
        }
        Err(error) => (format!("processes: no executor starts here: {error}\n"), false),
    }
}
