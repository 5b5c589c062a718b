//! QEMU alone: a guest that this program starts with the command line that Chancery uses, and questions to the control sockets
//! of running guests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::machine_fleet::{MachineProcesses, READY};

/// Maximum time for a reply of QEMU.
const REPLY: Duration = Duration::from_secs(10);

/// Command line of QEMU, with a directory for the sockets of its guest.
pub(crate) struct BareMachine {
    arguments: Vec<String>,
    directory: tempfile::TempDir,
}

/// Running QEMU, which is killed on drop.
struct BareProcess(Child);

impl Drop for BareProcess {
    fn drop(&mut self) {
        // The process is not needed any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl BareMachine {
    /// Takes the command line of a guest that runs.
    pub(crate) fn like(machine: &MachineProcesses) -> Result<BareMachine> {
        let text = std::fs::read_to_string(format!("/proc/{}/cmdline", machine.qemu))?;
        let arguments: Vec<_> = text.split_terminator('\0').map(str::to_owned).collect();
        ensure!(arguments.iter().any(|argument| argument == "-qmp"), "not a command line of QEMU: {text}");
        let directory = crate::directory()?;
        // The sockets are in the directory above the working directory.
        std::fs::create_dir(directory.path().join("work"))?;
        Ok(BareMachine { arguments, directory })
    }

    /// Boots the guest; returns the time until it has written that it is ready, on its first serial port.
    pub(crate) fn boot(&self) -> Result<Duration> {
        let (program, arguments) = self.arguments.split_first().context("a program")?;
        let began = Instant::now();
        let mut process = BareProcess(
            Command::new(program)
                .args(arguments)
                .current_dir(self.directory.path().join("work"))
                .env("TMPDIR", ".")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()?,
        );
        let mut output = process.0.stdout.take().context("its output")?;
        let (mut read, mut chunk) = (Vec::new(), [0; 4096]);
        while !read.windows(READY.len()).any(|part| part == READY.as_bytes()) {
            let count = output.read(&mut chunk)?;
            ensure!(count > 0, "QEMU ended: {}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&chunk[..count]);
        }
        Ok(began.elapsed())
    }
}

/// Asks each guest for its state, one after the other: the least that a program does to continue with guests that it did not
/// start. Uses the control socket that Chancery leaves to others.
pub(crate) fn ask_all<'a>(machines: impl IntoIterator<Item = &'a MachineProcesses>) -> Result<Duration> {
    let began = Instant::now();
    for machine in machines {
        // A path of a socket is limited to about 100 bytes.
        let path = format!("/proc/{}/cwd/../backup.sock", machine.qemu);
        ensure!(is_running(Path::new(&path))?, "a guest does not run: {machine:?}");
    }
    Ok(began.elapsed())
}

fn is_running(socket: &Path) -> Result<bool> {
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(REPLY))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut next = || -> Result<Value> { Ok(serde_json::from_str(&lines.next().context("QEMU hung up")??)?) };
    ensure!(next()?["QMP"].is_object(), "QEMU has not greeted");
    stream.write_all(b"{\"execute\": \"qmp_capabilities\"}\n")?;
    next()?;
    stream.write_all(b"{\"execute\": \"query-status\"}\n")?;
    loop {
        if let Some(is_running) = next()?["return"]["running"].as_bool() {
            return Ok(is_running);
        }
    }
}
