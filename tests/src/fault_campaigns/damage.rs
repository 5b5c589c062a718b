//! Torn tail, and flipped bits, in the journal's own files while no server runs. Damage is found and named
//! before anything is served, and no acknowledged record is lost when the damage is undone.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::evidence::{ServerEvidence, judge};
use super::fleet::{by_hand, deploy, empty, fill, set_up, sleeper};
use super::frames::{Frame, frames, segments};
use super::load::ProducerLoad;
use crate::ServerProcess;
use crate::history::InvocationHistory;
use crate::ledger::CountMap;
use crate::sim::RandomSource;

pub(super) fn run(rounds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut random = RandomSource::new(seed);
    let mut server = ServerProcess::start();
    set_up(&server.client(), &sleeper());
    by_hand(&server.client(), &sleeper());
    let file = server.directory().join("history.jsonl");
    let load = ProducerLoad::begin(&server.url(), 2, seed, Duration::from_secs(30), &file)?;
    for round in 0..rounds {
        deploy(&server.client(), &format!("round-{round}"), random.below(4) as u32);
        std::thread::sleep(Duration::from_millis(random.between(50, 200)));
        server.kill();
        tally.rounds += 1;
        let tail = SegmentTail::of(&server)?;
        if random.chance(500) {
            tear(&mut server, &tail, &mut random, tally)?;
        } else {
            flip(&mut server, &tail, &mut random, tally)?;
        }
        load.moved(&server.url());
    }
    let history: InvocationHistory = load.end()?;
    empty(&server, "end");
    fill(&server, "end", 3);
    let evidence = [ServerEvidence::gather(&server)?];
    empty(&server, "over");
    ensure!(server.stop() == Some(0), "the server does not stop on request:\n{}", server.log());
    judge(server.data(), &history, &evidence, tally)
}

/// Last segment with a frame.
struct SegmentTail {
    path: PathBuf,
    frames: Vec<Frame>,
}

impl SegmentTail {
    fn of(server: &ServerProcess) -> Result<SegmentTail> {
        let mut all = segments(&server.data().join("fleets/default/journal"))?;
        while let Some(path) = all.pop() {
            let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            let frames = frames(&bytes);
            if !frames.is_empty() {
                return Ok(SegmentTail { path, frames });
            }
        }
        anyhow::bail!("the journal has no frame")
    }

    fn end(&self) -> u64 {
        self.frames.last().map_or(0, |frame| frame.end as u64)
    }
}

/// Tears a write: appends the start of a frame after the last complete one, as a power cut leaves an
/// unacknowledged write. The server cuts it off and logs that.
fn tear(
    server: &mut ServerProcess,
    tail: &SegmentTail,
    random: &mut RandomSource,
    tally: &mut CountMap,
) -> Result<()> {
    tally.fault("torn tail");
    let bytes = std::fs::read(&tail.path)?;
    let copied = random.pick(&tail.frames).copied().context("a frame")?;
    let len = random.between(1, (copied.end - copied.offset - 1) as u64) as usize;
    write(&tail.path, tail.end(), &bytes[copied.offset..copied.offset + len])?;
    let verified = server.run(&["verify", &server.data().display().to_string()]);
    let output = String::from_utf8_lossy(&verified.stdout).into_owned();
    ensure!(!verified.status.success(), "verify finds nothing wrong with a torn tail:\n{output}");
    named(&output, &tail.path)?;
    let before = server.log().len();
    server.start_again();
    let log = server.log().split_off(before);
    ensure!(log.contains("cut"), "a torn tail was cut off without a message:\n{log}");
    Ok(())
}

/// Flips a bit in synced data. No server starts until the bit is restored.
fn flip(
    server: &mut ServerProcess,
    tail: &SegmentTail,
    random: &mut RandomSource,
    tally: &mut CountMap,
) -> Result<()> {
    // Data that the newest frame records as synced ends before that frame.
    let last = tail.frames.last().context("a frame")?;
    let reaches = tail.frames.iter().rposition(|frame| frame.synced < last.synced);
    let sure = &tail.frames[..reaches.map_or(0, |index| index.saturating_sub(1))];
    let Some(frame) = random.pick(sure).copied() else {
        server.start_again();
        return Ok(());
    };
    tally.fault("flipped bit");
    let offset = random.between(frame.offset as u64, frame.end as u64 - 1);
    let bytes = std::fs::read(&tail.path)?;
    let right = bytes[offset as usize];
    write(&tail.path, offset, &[right ^ (1 << random.below(8))])?;
    let verified = server.run(&["verify", &server.data().display().to_string()]);
    let output = String::from_utf8_lossy(&verified.stdout).into_owned();
    ensure!(!verified.status.success(), "verify does not find a flipped bit at {offset}:\n{output}");
    named(&output, &tail.path)?;
    match server.try_start_again() {
        Ok(()) => anyhow::bail!("a server starts on a journal with a flipped bit at {offset}"),
        Err(not_up) => {
            ensure!(!not_up.status.success(), "a server refuses, and reports success");
            named(&not_up.output, &tail.path)?;
        }
    }
    write(&tail.path, offset, &[right])?;
    server.start_again();
    Ok(())
}

/// Checks that the output names the file.
fn named(output: &str, path: &Path) -> Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    ensure!(output.contains(&name), "{name} is not named in:\n{output}");
    Ok(())
}

fn write(path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
    let doing = || format!("damage {}", path.display());
    let file = std::fs::File::options().write(true).open(path).with_context(doing)?;
    file.write_all_at(bytes, offset).with_context(doing)
}
