//! Supervisors that die or are paused.

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};

use crate::fault_campaigns::campaign::RunningCampaign;
use crate::host::HostProcess;
use crate::until;

/// Kills all supervisors or one; then volumes get new users.
pub(super) fn kill(campaign: &mut RunningCampaign) -> Result<()> {
    let before = campaign.random.chance(500);
    if before {
        campaign.kill();
    }
    if campaign.random.chance(750) {
        kill_all(campaign);
    } else {
        kill_one(campaign);
    }
    campaign.pause(64);
    if !before {
        campaign.kill();
    }
    campaign.start();
    campaign.renew_volume_users()
}

pub(super) fn kill_all(campaign: &RunningCampaign) {
    for (pid, _) in campaign.supervisors() {
        signal(pid, Signal::KILL);
    }
}

fn kill_one(campaign: &mut RunningCampaign) {
    let all = campaign.supervisors();
    if let Some((pid, _)) = campaign.random.pick(&all) {
        signal(*pid, Signal::KILL);
    }
}

/// Pauses some supervisors while their processes must end.
pub(super) fn stop(campaign: &mut RunningCampaign) -> Result<()> {
    // No other incarnation is asked to end.
    let ending = &campaign.host.running_of("web")? | &campaign.host.volume_users()?;
    let mut stopped = Vec::new();
    for (pid, dir) in campaign.supervisors() {
        let incarnation = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if ending.contains(&incarnation)
            && (stopped.is_empty() || campaign.random.chance(500))
            && let Some(process) = HostProcess::of(pid)
        {
            signal(pid, Signal::STOP);
            stopped.push((process, incarnation));
        }
    }
    if campaign.random.chance(500) {
        campaign.kill();
        campaign.start();
    }
    campaign.deploy(0);
    let ended = campaign.renew_volume_users();
    until("the processes of a stopped supervisor have ended", || {
        let lives =
            |(_, incarnation): &(HostProcess, String)| campaign.host.is_alive(incarnation).unwrap_or(true);
        (!stopped.iter().any(lives)).then_some(())
    });
    for (process, _) in &stopped {
        if process.is_alive() {
            signal(process.pid, Signal::CONT);
        }
    }
    ended?;
    campaign.kill();
    campaign.start();
    Ok(())
}

/// Sends a signal, if the process is alive.
pub(in crate::fault_campaigns) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
