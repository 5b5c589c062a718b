//! Mounts in a working directory that is removed: the mounted files must survive.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::fault_campaigns::campaign::RunningCampaign;
use crate::host::{TestMount, mounts_under};
use crate::until;

pub(super) fn put(campaign: &mut RunningCampaign) -> Result<()> {
    let (incarnation, work) = some_work(campaign);
    std::os::unix::fs::symlink(campaign.host.canary("linked"), work.join("link"))
        .context("cannot make a link")?;
    match campaign.random.below(3) {
        0 => bind(&campaign.host.canary("bound"), &work.join("mounted"))?,
        1 => {
            let outer = work.join("outer");
            std::fs::create_dir(&outer).context("cannot make a mount point")?;
            TestMount::memory(&outer, 1)?.keep();
            bind(&campaign.host.canary("nested"), &outer.join("inner"))?;
        }
        _ => {
            let before = campaign.host.mounted()?;
            campaign.deploy(7);
            until("a payload mounts something", || {
                // The payload that took the token may have been stopped before it mounted anything.
                campaign.host.ask_for_mount().ok()?;
                (campaign.host.mounted().ok()? > before).then_some(())
            });
            campaign.host.unmount_volume();
        }
    }
    let mounts = mounts_in(campaign)?;
    // All payloads end now, and their directories are removed both before the kill and after the next start.
    campaign.deploy(0);
    campaign.pause(128);
    campaign.kill();
    campaign.start();
    until("the incarnation with a mount ends", || {
        (!campaign.host.is_alive(&incarnation).ok()?).then_some(())
    });
    let client = campaign.client();
    until("no replica of web is left", || client.items("replicas?plan=web&limit=1").is_empty().then_some(()));
    // A directory may be moved aside with its mounts, and payloads that took the token late add mounts.
    let now = mounts_in(campaign)?;
    ensure!(now.len() >= mounts.len(), "mounts in working directories were {mounts:?}, are {now:?}");
    campaign.purged.push(incarnation);
    for mount in now {
        drop(TestMount::taken_over(mount));
    }
    Ok(())
}

/// Mounts a canary at a new directory.
fn bind(canary: &Path, at: &Path) -> Result<()> {
    std::fs::create_dir(at).context("cannot make a mount point")?;
    TestMount::bind(canary, at)?.keep();
    Ok(())
}

/// Running incarnation of `web`, and the working directory of its main process.
fn some_work(campaign: &mut RunningCampaign) -> (String, PathBuf) {
    campaign.deploy(3);
    let client = campaign.client();
    until("three replicas of web run, and no other is left", || {
        let all = client.items("replicas?plan=web&limit=1000");
        (all.len() == 3 && all.iter().all(|replica| replica["phase"] == "running")).then_some(())
    });
    until("a payload runs", || {
        let mains = campaign.host.alive_mains().ok()?.into_iter();
        // Replicas of other plans are not removed when `web` is scaled to 0.
        let mut mains = mains.filter(|(_, process)| process.is_of_plan("web"));
        mains.find_map(|(incarnation, process)| {
            // An incarnation may be about to end.
            let work =
                process.directory().filter(|work| work.is_dir() && work.starts_with(&campaign.data))?;
            Some((incarnation, work))
        })
    })
}

/// Mounts below the data directory, which may be a mount itself.
fn mounts_in(campaign: &RunningCampaign) -> Result<Vec<PathBuf>> {
    Ok(mounts_under(&campaign.data)?.into_iter().filter(|mount| *mount != campaign.data).collect())
}
