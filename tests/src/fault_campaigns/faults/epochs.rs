//! Epochs that differ from the one before: another path of the data directory, PID namespace or clock, or a
//! copy.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::supervisors::kill_all;
use crate::clock;
use crate::fault_campaigns::campaign::{CampaignTarget, RunningCampaign};
use crate::{StartConditions, until};

/// Maximum time until a start over a copy is refused.
const REFUSAL: Duration = Duration::from_secs(20);

/// Restarts by a link if the last epoch used the real path, and vice versa.
pub(super) fn by_link(campaign: &mut RunningCampaign) -> Result<()> {
    let link = campaign.processes.server.directory().join("link");
    let now = match campaign.target {
        CampaignTarget::Server => campaign.processes.server.data().to_owned(),
        CampaignTarget::Executor => {
            campaign.processes.executor.as_ref().context("an executor")?.data().to_owned()
        }
    };
    if !link.is_symlink() {
        std::os::unix::fs::symlink(&campaign.data, &link).context("cannot make a link")?;
    }
    let next = if now == link { campaign.data.clone() } else { link };
    campaign.kill();
    kill_all(campaign);
    campaign.set_data(&next);
    campaign.start();
    campaign.renew_volume_users()
}

/// Starts in another PID namespace, then here again; volumes get new users then.
pub(super) fn in_pid_namespace(campaign: &mut RunningCampaign) -> Result<()> {
    campaign.kill();
    if campaign.random.chance(750) {
        kill_all(campaign);
    }
    // The target may refuse; if it starts, it reports nothing of the other namespace as dead.
    if campaign.try_start(StartConditions::in_pid_namespace()).is_ok() {
        campaign.deploy(5);
        campaign.pause(1000);
        campaign.kill();
    }
    campaign.start();
    campaign.renew_volume_users()
}

/// Starts with a clock days ahead, which is accepted, or years ahead, which a server refuses. Executors
/// decide nothing by that clock.
pub(super) fn ahead(campaign: &mut RunningCampaign) -> Result<()> {
    let years = campaign.random.chance(500);
    let offset = if years {
        format!("+{}y", campaign.random.between(1, 10))
    } else {
        format!("+{}d", campaign.random.between(1, 20))
    };
    let library = clock::library()?.display().to_string();
    let env = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME", &offset),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let launch = StartConditions { env, ..StartConditions::default() };
    campaign.kill();
    if years && campaign.target == CampaignTarget::Server {
        let output = campaign.must_refuse(launch, &format!("its clock is wrong by {offset}"))?;
        ensure!(output.contains("clock"), "a refusal does not name the clock: {output}");
    } else {
        if let Err(not_up) = campaign.try_start(launch) {
            bail!("the server does not start with a clock of {offset}: {}\n{}", not_up.status, not_up.output);
        }
        campaign.deploy(3);
        campaign.pause(256);
        campaign.kill();
    }
    campaign.start();
    Ok(())
}

/// Starts over a copy, with the original stopped or running.
pub(super) fn on_a_copy(campaign: &mut RunningCampaign) -> Result<()> {
    // Stopping incarnations may end at any time.
    let client = campaign.client();
    until("no incarnation is stopping", || {
        let all = client.items("incarnations?limit=1000");
        all.iter().all(|incarnation| incarnation["state"] != "stopping").then_some(())
    });
    campaign.kill();
    let copy = campaign.processes.server.directory().join("copy");
    until("the directory is copied", || {
        let _ = std::fs::remove_dir_all(&copy);
        // Processes that end remove files.
        let copied = Command::new("cp").arg("-a").arg(&campaign.data).arg(&copy).output().expect("cp runs");
        copied.status.success().then_some(())
    });
    let _ = std::fs::remove_file(copy.join("address"));
    let original_runs = campaign.random.chance(500);
    if original_runs {
        campaign.start();
    }
    let before = campaign.host.alive_mains()?;
    refused_on(campaign, &copy)?;
    if !original_runs {
        for (incarnation, process) in before {
            ensure!(
                process.is_alive(),
                "{process} of incarnation {incarnation} ended by a start over a copy"
            );
        }
        campaign.start();
    }
    std::fs::remove_dir_all(&copy).context("cannot remove the copy")
}

/// Starts a second server or executor over the copy, which must refuse.
fn refused_on(campaign: &RunningCampaign, copy: &PathBuf) -> Result<()> {
    let log = campaign.processes.server.directory().join("copy.log");
    let file = std::fs::File::create(&log).context("cannot create a log")?;
    let mut command = Command::new(crate::program());
    match campaign.target {
        CampaignTarget::Server => command.args(["serve", "--listen", "127.0.0.1:0"]),
        CampaignTarget::Executor => command
            .args(["executor", "--server", &campaign.processes.server.url(), "--cluster", "local"])
            .args(["--name", "e1", "--process"]),
    };
    command.arg("--data-dir").arg(copy).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let mut child = command.spawn().context("cannot start the program")?;
    let began = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            break Some(status);
        }
        // A server writes its address before it serves; an executor writes nothing.
        if copy.join("address").exists() || began.elapsed() > REFUSAL {
            child.kill().context("cannot kill the program")?;
            child.wait().context("cannot wait for the program")?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let output = std::fs::read_to_string(&log).unwrap_or_default();
    match ended {
        Some(status) if status.code().is_some_and(|code| code != 0 && code != 101) => Ok(()),
        Some(status) => bail!("a start over a copy ends with {status}: {output}"),
        None => bail!("the program starts over a copy of its directory: {output}"),
    }
}
