//! Backups of disks of a running guest, by a job of QEMU.
//!
//! The job copies what the disk held when the job started. A write of the guest to a block that was not copied yet waits until the old
//! content of the block is copied. If QEMU or this program ends meanwhile, the copy is incomplete and has no use; a job that is
//! left is cancelled by the next backup.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use serde_json::{Value, json};

use super::super::named;
use super::link::{SILENCE, connect};
use super::qmp::{QmpMessage, QmpReader};

/// Name of the job and of the copy in QEMU. One backup is made at a time.
const NAME: &str = "snapshot";
/// Time from one question for the progress to the next.
const ASK: Duration = Duration::from_millis(50);
/// Maximum time of one read, after which the flag that stops the backup is read.
const READ: Duration = Duration::from_millis(100);
/// Number of blocks of at most 1 MiB that are copied concurrently: they are in the memory of QEMU, which is limited.
const WORKERS: u32 = 4;

/// Copies a disk of a running guest to a file of the same size, as of one moment. The guest is that of a process's directory, and has
/// this name. Returns whether this QEMU has the disk: the copy is complete then. Fails with `Interrupted` once `stop` is set.
pub(in super::super) fn back_up(
    directory: &Path,
    name: &str,
    disk: &Path,
    copy: &Path,
    stop: &AtomicBool,
) -> io::Result<bool> {
    let mut qemu = QmpSession::open(directory, name, stop)?;
    let nodes = qemu.call("query-named-block-nodes", &json!({"flat": true}))?;
    let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |node: &Value, field: &str| node[field].as_str().unwrap_or_default().to_owned();
    let is_disk = |node: &&Value| node["drv"] == "raw" && Some(text(node, "file").as_str()) == disk.to_str();
    let Some(source) = nodes.iter().find(is_disk).map(|node| text(node, "node-name")) else {
        return Ok(false);
    };
    qemu.clean_up()?;
    let allocated = allocate(copy)?;
    let path = copy.to_str().ok_or_else(|| io::Error::other(format!("{} is not UTF-8", copy.display())))?;
    let file = json!({"driver": "file", "filename": path, "locking": "on"});
    qemu.call("blockdev-add", &json!({"driver": "raw", "node-name": NAME, "file": file}))?;
    let limits = json!({"max-workers": WORKERS});
    let job = json!({
        "job-id": NAME, "device": source, "target": NAME, "sync": "full", "auto-dismiss": false, "x-perf": limits,
    });
    let copied = qemu.call("blockdev-backup", &job).and_then(|_| qemu.wait_for_job());
    // The file is closed, and its content is that of the disk, only if this succeeds.
    let cleaned = qemu.clean_up();
    copied.and(cleaned)?;
    // Open since before the backup: an error of a write since then is reported here.
    allocated.sync_all()?;
    Ok(true)
}

/// Ends a backup to this file that is left, if there is one.
pub(in super::super) fn cancel_backup(directory: &Path, name: &str, copy: &Path) -> io::Result<()> {
    let never = AtomicBool::new(false);
    let mut qemu = QmpSession::open(directory, name, &never)?;
    let nodes = qemu.call("query-named-block-nodes", &json!({"flat": true}))?;
    let is_copy = |node: &Value| node["node-name"] == NAME && node["file"].as_str() == copy.to_str();
    if nodes.as_array().is_some_and(|nodes| nodes.iter().any(is_copy)) {
        qemu.clean_up()?;
    }
    Ok(())
}

/// Allocates the space of a file, and returns the file. Without space for the copy of a block, QEMU would fail the guest's write to that block.
fn allocate(copy: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).open(copy)?;
    let size = file.metadata()?.len();
    // An attempt to allocate more than there is would take all space from other disks for a while.
    let system = rustix::fs::fstatvfs(&file)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free <= size {
        return Err(io::Error::other(format!("{size} bytes needed, {free} free")));
    }
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size).map_err(|error| {
        io::Error::other(format!("cannot allocate {size} bytes: {}", io::Error::from(error)))
    })?;
    Ok(file)
}

/// Session with a control socket of QEMU, which waits for each reply.
struct QmpSession<'a> {
    stream: UnixStream,
    reader: QmpReader,
    received: VecDeque<QmpMessage>,
    next_id: u64,
    stop: &'a AtomicBool,
}

impl QmpSession<'_> {
    fn open<'a>(directory: &Path, name: &str, stop: &'a AtomicBool) -> io::Result<QmpSession<'a>> {
        let stream =
            connect(directory, "backup.sock").map_err(named("cannot connect to the socket for backups"))?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(READ))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let (reader, received) = (QmpReader::default(), VecDeque::new());
        let mut qemu = QmpSession { stream, reader, received, next_id: 1, stop };
        qemu.receive(|message| match message {
            QmpMessage::Greeting(_) => Some(()),
            _ => None,
        })?;
        qemu.call("qmp_capabilities", &json!({}))?;
        if qemu.call("query-name", &json!({}))?["name"] != name {
            return Err(io::Error::other("the control socket is that of another guest"));
        }
        Ok(qemu)
    }

    fn call(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let id = self.next_id;
        self.next_id += 1;
        let text = json!({"execute": command, "arguments": arguments, "id": id});
        self.stream.write_all(format!("{text}\n").as_bytes())?;
        let reply = self.receive(|message| match message {
            QmpMessage::Reply(of, result) if of == id => Some(result),
            _ => None,
        })?;
        reply.map_err(|reason| io::Error::other(format!("QEMU refused {command}: {reason}")))
    }

    /// Reads messages until one is chosen. Events are of no interest here.
    fn receive<T>(&mut self, choose: impl Fn(QmpMessage) -> Option<T>) -> io::Result<T> {
        let deadline = Instant::now() + SILENCE;
        let mut chunk = [0; 4096];
        loop {
            while let Some(message) = self.received.pop_front() {
                if let Some(chosen) = choose(message) {
                    return Ok(chosen);
                }
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::Error::other("QEMU ended")),
                Ok(count) => self.received.extend(self.reader.read(&chunk[..count])?),
                Err(error) if is_wait(&error) && Instant::now() < deadline => {}
                Err(error) if is_wait(&error) => return Err(io::Error::other("QEMU does not answer")),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the state of the job, if it exists.
    fn job(&mut self) -> io::Result<Option<Value>> {
        let jobs = self.call("query-jobs", &json!({}))?;
        Ok(jobs.as_array().and_then(|jobs| jobs.iter().find(|job| job["id"] == NAME)).cloned())
    }

    /// Waits until the job is concluded, and returns its error.
    fn wait_for_job(&mut self) -> io::Result<()> {
        loop {
            let Some(job) = self.job()? else { return Err(io::Error::other("the job of QEMU has vanished")) };
            if job["status"] == "concluded" {
                let failed =
                    job["error"].as_str().map(|error| io::Error::other(format!("job of QEMU: {error}")));
                return failed.map_or(Ok(()), Err);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            std::thread::sleep(ASK);
        }
    }

    /// Removes the job and the copy's node, of this backup or of an interrupted one.
    fn clean_up(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + SILENCE;
        while let Some(job) = self.job()? {
            let command = if job["status"] == "concluded" { "job-dismiss" } else { "job-cancel" };
            let called = self.call(command, &json!({"id": NAME}));
            if Instant::now() >= deadline {
                called?;
                return Err(io::Error::other("QEMU does not end its job"));
            }
            std::thread::sleep(ASK);
        }
        let nodes = self.call("query-named-block-nodes", &json!({"flat": true}))?;
        if nodes.as_array().is_some_and(|nodes| nodes.iter().any(|node| node["node-name"] == NAME)) {
            self.call("blockdev-del", &json!({"node-name": NAME}))?;
        }
        Ok(())
    }
}

fn is_wait(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}
