//! Full or read-only file system with the log on it: payloads that end meanwhile end once, and no supervisor
//! dies.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::supervisors::signal;
use crate::fault_campaigns::campaign::RunningCampaign;
use crate::host::TestMount;
use crate::{NotUp, StartConditions, until};

pub(super) fn put(campaign: &mut RunningCampaign) -> Result<()> {
    // An epoch whose own log is on the same file system.
    campaign.kill();
    let stderr = Some(campaign.data.join("stderr"));
    let on_disk = StartConditions { stderr, ..StartConditions::default() };
    if let Err(not_up) = campaign.try_start(on_disk) {
        anyhow::bail!("the server does not start: {}\n{}", not_up.status, not_up.output);
    }
    campaign.deploy(5);
    let volume_users = campaign.host.volume_users()?;
    until("payloads run", || {
        (campaign.host.alive_mains().ok()?.len() > volume_users.len() + 1).then_some(())
    });
    let supervisors = supervised(campaign);
    let ballast = fill(&campaign.data)?;
    let staging = campaign.processes.server.directory().join("staging");
    let read_only =
        campaign.random.chance(500).then(|| TestMount::read_only(&campaign.data, &staging)).transpose()?;
    // Some payloads end by SIGKILL, or on their own by SIGTERM.
    let mut ended = Vec::new();
    for (incarnation, process) in campaign.host.alive_mains()? {
        if campaign.random.chance(400) || ended.is_empty() {
            let how = if campaign.random.chance(500) { Signal::KILL } else { Signal::TERM };
            signal(process.pid, how);
            ended.push(incarnation);
        }
    }
    campaign.pause(300);
    campaign.kill();
    // Without space and a writable log, the target may start or refuse; it must not panic.
    if read_only.is_none() && campaign.random.chance(500) {
        let stderr = Some("/dev/full".into());
        if let Err(NotUp { status, .. }) =
            campaign.try_start(StartConditions { stderr, ..StartConditions::default() })
        {
            ensure!(status.code().is_some_and(|code| code != 0 && code != 101), "a start ends with {status}");
        }
        campaign.pause(100);
        campaign.kill();
    }
    no_supervisor_died(campaign, &supervisors)?;
    drop(read_only);
    std::fs::remove_file(&ballast).context("cannot make space")?;
    campaign.start();
    until("ended incarnations are shown as ended", || {
        let lives = |incarnation: &String| campaign.host.is_alive(incarnation).unwrap_or(true);
        (!ended.iter().any(lives)).then_some(())
    });
    shown_is_running(campaign);
    Ok(())
}

/// Incarnations that have a supervisor.
fn supervised(campaign: &RunningCampaign) -> BTreeSet<String> {
    let dirs = campaign.supervisors().into_iter();
    dirs.filter_map(|(_, dir)| Some(dir.file_name()?.to_string_lossy().into_owned())).collect()
}

/// Checks that no supervisor ended before all processes that it started. (Of two supervisors for one
/// incarnation, one ends as not needed.)
fn no_supervisor_died(campaign: &RunningCampaign, before: &BTreeSet<String>) -> Result<()> {
    // In this order: a supervisor may end meanwhile because its processes have.
    let lived: Vec<_> = before.iter().filter(|one| campaign.host.is_alive(one).unwrap_or(false)).collect();
    let now = supervised(campaign);
    for incarnation in lived {
        ensure!(
            now.contains(incarnation) || !campaign.host.is_alive(incarnation)?,
            "the supervisor of incarnation {incarnation} died, and its processes live: {}",
            last_words(&campaign.data, incarnation)
        );
    }
    Ok(())
}

/// Log of an incarnation's supervisor.
fn last_words(data: &Path, incarnation: &str) -> String {
    let found =
        std::process::Command::new("find").arg(data).args(["-name", incarnation, "-type", "d"]).output();
    let found = found.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let logs = found.lines().map(|dir| std::fs::read_to_string(Path::new(dir).join("supervisor.log")));
    logs.map(|log| log.unwrap_or_else(|error| error.to_string())).collect::<Vec<_>>().join("\n")
}

/// Waits until the incarnations that are reported as running are those that run.
fn shown_is_running(campaign: &RunningCampaign) {
    let client = campaign.client();
    until("incarnations that are shown as running run", || {
        let rows = client.items("incarnations?state=running&limit=1000");
        let mut shown: Vec<_> = rows.iter().filter_map(|row| Some(row["id"].as_str()?.to_owned())).collect();
        let mains = campaign.host.alive_mains().ok()?;
        let mut running: Vec<_> = mains.into_iter().map(|(incarnation, _)| incarnation).collect();
        shown.sort();
        running.sort();
        (shown == running).then_some(())
    });
}

/// Fills the disk. Returns the path of the filling file.
fn fill(disk: &Path) -> Result<std::path::PathBuf> {
    let path = disk.join("ballast");
    let file = std::fs::File::create(&path).context("cannot fill the disk")?;
    let mut from = 0;
    loop {
        let stat = rustix::fs::statvfs(disk).context("cannot read free space of the disk")?;
        let bytes = stat.f_bavail * stat.f_frsize;
        if bytes == 0 {
            return Ok(path);
        }
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), from, bytes) {
            // Another writer was faster.
            Err(rustix::io::Errno::NOSPC) => {}
            done => {
                done.context("cannot fill the disk")?;
                from += bytes;
            }
        }
    }
}
