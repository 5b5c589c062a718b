//! Disk without space: the server ends with the reason, loses nothing that it acknowledged, and continues
//! when it is started with space again.
//!
//! The disk is a small in-memory file system. Where none can be mounted, the campaign fails with the reason.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use super::evidence::{ServerEvidence, judge};
use super::fleet::{by_hand, deploy, empty, fill, set_up, sleeper};
use super::load::ProducerLoad;
use crate::ledger::CountMap;
use crate::sim::RandomSource;
use crate::{ServerProcess, TestClient, until};

/// Size of the disk in mebibytes.
const ROOM: u64 = 512;

pub(super) fn run(rounds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut random = RandomSource::new(seed);
    let mut server = ServerProcess::new();
    let disk = MountedDisk::mount(server.move_data("disk"))?;
    server.start_again();
    set_up(&server.client(), &sleeper());
    by_hand(&server.client(), &sleeper());
    let file = server.directory().join("history.jsonl");
    let load = ProducerLoad::begin(&server.url(), 2, seed, Duration::from_secs(10), &file)?;
    for round in 0..rounds {
        deploy(&server.client(), &format!("round-{round}"), random.below(4) as u32);
        let before = server.log().len();
        disk.fill(random.between(0, 3000))?;
        // Large intents fill the disk quickly.
        let client = TestClient::patient(&server.url(), Duration::from_secs(2));
        let status = until("the server ends because the disk is full", || {
            grow(&client, &mut random);
            server.ended()
        });
        tally.fault("full disk");
        tally.rounds += 1;
        ensure!(!status.success(), "the disk is full, and the server reports success");
        let output = server.log().split_off(before);
        ensure!(
            output.contains("No space left on device"),
            "the server does not report why it ended:\n{output}"
        );
        // On a disk that is still full, the server may start or refuse, but it must not hang or do damage.
        match server.try_start_again() {
            Ok(()) => server.kill(),
            Err(not_up) => ensure!(
                !not_up.status.success() && not_up.output.contains("No space left on device"),
                "a server that cannot start does not report why: {}\n{}",
                not_up.status,
                not_up.output
            ),
        }
        disk.clear()?;
        server.start_again();
        load.moved(&server.url());
    }
    let history = load.end()?;
    empty(&server, "end");
    fill(&server, "end", 3);
    let evidence = [ServerEvidence::gather(&server)?];
    empty(&server, "over");
    ensure!(server.stop() == Some(0), "the server does not stop on request:\n{}", server.log());
    judge(server.data(), &history, &evidence, tally)
}

/// Sends an intent of about 128 KiB.
fn grow(client: &TestClient, random: &mut RandomSource) {
    let text = format!("{:016x}", random.bits()).repeat(8 << 10);
    let run = json!({"argv": ["true", text]});
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": run});
    let spec = json!({"namespace": "tests", "service": "ballast", "payloads": [payload]});
    let key = format!("ballast-{:016x}", random.bits());
    // Any answer is valid: the server may be ending.
    let _ = client.intent(&key, "plan.apply", &json!({"name": "ballast", "spec": spec}));
}

/// File system that is unmounted when this value is dropped.
struct MountedDisk(PathBuf);

impl MountedDisk {
    fn mount(at: PathBuf) -> Result<MountedDisk> {
        mount(&["-t", "tmpfs", "-o", &format!("size={ROOM}m"), "tmpfs"], &at)?;
        Ok(MountedDisk(at))
    }

    /// Leaves `left` kibibytes or slightly more: the server writes meanwhile, and may take space first.
    fn fill(&self, left: u64) -> Result<()> {
        let file = std::fs::File::create(self.0.join("ballast")).context("fill the disk")?;
        let mut left = left << 10;
        loop {
            let stat = rustix::fs::statvfs(&self.0).context("cannot read free space of the disk")?;
            let bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
            if bytes == 0 {
                return Ok(());
            }
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
                Err(rustix::io::Errno::NOSPC) => left += 64 << 10,
                done => return done.context("fill the disk"),
            }
        }
    }

    fn clear(&self) -> Result<()> {
        std::fs::remove_file(self.0.join("ballast")).context("make space on the disk")
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        // A lazy unmount: processes of the server, which is dropped later, still use the file system.
        if let Err(error) = run_command(Command::new("umount").arg("--lazy").arg(&self.0)) {
            eprintln!("{error:#}");
        }
    }
}

fn mount(args: &[&str], at: &Path) -> Result<()> {
    run_command(Command::new("mount").args(args).arg(at)).context("mount a file system in memory")
}

fn run_command(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
}
