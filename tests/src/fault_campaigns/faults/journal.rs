//! Journal that is shorter than the read models made from it: a start is refused until the journal is
//! complete again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use crate::fault_campaigns::campaign::RunningCampaign;
use crate::fault_campaigns::frames::{frames, segments};
use crate::{StartConditions, until};

/// Number of bytes flipped at the end.
const FLIPPED: usize = 200;

pub(super) fn shorten(campaign: &mut RunningCampaign) -> Result<()> {
    // After a stop on request, read models are as far as the journal, and witness its end.
    let server = &mut campaign.processes.server;
    server.signal(Signal::TERM);
    let status = until("the server stops", || server.ended());
    ensure!(status.success(), "the server does not stop on request: {status}");
    let journal = campaign.processes.server.data().join("fleets/default/journal");
    let (path, bytes, used) = last_used(&journal)?;
    let how = match campaign.random.below(4) {
        0 => {
            std::fs::remove_file(&path)?;
            "missing"
        }
        1 => {
            std::fs::write(&path, "")?;
            "empty"
        }
        2 => {
            std::fs::write(&path, vec![0; bytes.len()])?;
            "zeroed"
        }
        _ => {
            let mut flipped = bytes.clone();
            flipped[used.saturating_sub(FLIPPED)..used].iter_mut().for_each(|byte| *byte = !*byte);
            std::fs::write(&path, flipped)?;
            "flipped at its end"
        }
    };
    let shortened = contents(&journal)?;
    let why = format!("its last segment is {how}");
    let output = campaign.must_refuse(StartConditions::default(), &why)?;
    ensure!(output.contains("--accept-loss"), "a refusal does not show how to accept the loss: {output}");
    ensure!(contents(&journal)? == shortened, "a start that was refused has changed the journal: {why}");
    std::fs::write(&path, bytes)?;
    campaign.start();
    Ok(())
}

/// Last segment with a frame, its bytes, and the number of bytes used.
fn last_used(journal: &Path) -> Result<(PathBuf, Vec<u8>, usize)> {
    for path in segments(journal)?.into_iter().rev() {
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if let Some(used) = frames(&bytes).last().map(|frame| frame.end) {
            return Ok((path, bytes, used));
        }
    }
    anyhow::bail!("the journal has no frame")
}

/// Segments and their contents.
fn contents(journal: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    segments(journal)?.into_iter().map(|path| Ok((path.clone(), std::fs::read(path)?))).collect()
}
