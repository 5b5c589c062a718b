//! Holder of the lock of an incarnation's directory, and its events.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::SupervisorProgram;
use super::incarnation_dir::{IncarnationDirectory, ProcessesFile, StartPhase};
use super::integrity::DirectoryLoss;
use super::reader::end_of;
use super::supervisor_protocol::{self, SupervisorRequest};
use super::unsupervised::UnsupervisedProcesses;
use crate::state_file::LockAttempt;

/// Maximum number of bytes read from a supervisor's log.
const LAST_WORDS: u64 = 64 << 10;
/// Size in bytes above which the log of a supervisor is emptied when the next one starts.
const LONGEST_LOG: u64 = 1 << 20;
const CONNECT_FIRST: Duration = Duration::from_millis(3);
const CONNECT_MOST: Duration = Duration::from_millis(100);
/// Maximum time for which the start of a supervisor keeps its permit.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Delay before a failed check of the lock holder is repeated.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Maximum time until a supervisor that must end its processes answers a request for its record.
const SILENCE: Duration = Duration::from_secs(10);
/// Delay between an answer of a supervisor that must end its processes and the next request for its record.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Time in which a supervisor with a lost directory must end its processes, before the executor ends them.
const LOST_PATIENCE: Duration = Duration::from_secs(2);

/// Holder of the lock.
#[derive(Debug)]
pub(super) enum LockHolder {
    /// No holder: there is no directory.
    None,
    /// Undetermined holder.
    Unknown,
    /// This executor; no process runs.
    Executor(#[expect(dead_code, reason = "held, not used")] File),
    /// This executor; unsupervised processes run.
    Unsupervised(Box<UnsupervisedProcesses>),
    /// This executor; a restart after a reboot waits for a permit.
    RestartPending(File, Arc<Semaphore>),
    /// Supervisor, perhaps still starting.
    Supervisor(Box<SupervisorSocket>),
}

/// Event from the lock holder.
#[derive(Debug)]
pub(super) enum HolderEvent {
    /// Record of the supervisor.
    Record(Box<ProcessesFile>),
    /// A check of the lock is due: perhaps no supervisor has it any more.
    Look,
    /// A supervisor that must end its processes did not answer in time.
    Silent,
    /// Death of the unsupervised process with this number in the record, or, if `None`, a sweep that is due.
    Orphan(Option<usize>),
    /// Permit for the restart.
    Turn(OwnedSemaphorePermit),
}

impl LockHolder {
    /// Waits for the next event. Safe to cancel.
    pub(super) async fn next(&mut self) -> HolderEvent {
        match self {
            LockHolder::None | LockHolder::Executor(_) => std::future::pending().await,
            LockHolder::Unknown => {
                tokio::time::sleep(LOOK_AGAIN).await;
                HolderEvent::Look
            }
            LockHolder::Unsupervised(unsupervised) => HolderEvent::Orphan(unsupervised.next().await),
            LockHolder::RestartPending(_, starts) => match starts.clone().acquire_owned().await {
                Ok(permit) => HolderEvent::Turn(permit),
                // The semaphore is never closed.
                Err(_) => std::future::pending().await,
            },
            LockHolder::Supervisor(socket) => socket.next().await,
        }
    }
}

/// Permit for a concurrent start, while this lives. A supervisor that hangs does not delay others
/// permanently.
#[derive(Debug)]
pub(super) struct StartPermit(
    #[expect(dead_code, reason = "dropping it releases the permit")] oneshot::Sender<()>,
);

impl StartPermit {
    pub(super) fn new(permit: OwnedSemaphorePermit) -> StartPermit {
        let (sender, dropped) = oneshot::channel();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(START_PATIENCE, dropped).await;
            drop(permit);
        });
        StartPermit(sender)
    }
}

/// Connection to a supervisor, or attempts to connect.
#[derive(Debug)]
pub(super) struct SupervisorSocket {
    directory: IncarnationDirectory,
    /// Supervisor that this executor started, and must reap.
    child: Option<Child>,
    /// Permit, dropped when the supervisor has started everything or has ended: another may start then.
    start: Option<StartPermit>,
    connection: Option<SupervisorConnection>,
    pause: Duration,
    /// Shortest grace of stop requests, sent once connected.
    stop: Option<Duration>,
    /// Revision of a requested reset of the guests, and whether it was sent on this connection. A supervisor resets them once for
    /// each revision.
    reset: Option<(u32, bool)>,
    /// Whether the supervisor must check its directory once connected.
    look: bool,
    lost: Option<DirectoryLoss>,
    answer: ExpectedAnswer,
    /// Deadline of a supervisor whose directory was lost.
    until: Option<Instant>,
}

/// Answer expected from a supervisor that must end its processes.
#[derive(Clone, Copy, Debug)]
enum ExpectedAnswer {
    /// No answer is expected: the supervisor need not end its processes.
    None,
    /// Time of the next request for the record.
    AskAt(Instant),
    /// Deadline for the answer to the last request.
    DueAt(Instant),
}

impl SupervisorSocket {
    pub(super) fn new(
        incarnation_directory: IncarnationDirectory,
        child: Option<Child>,
        start: Option<StartPermit>,
    ) -> SupervisorSocket {
        SupervisorSocket {
            directory: incarnation_directory,
            child,
            start,
            connection: None,
            pause: CONNECT_FIRST,
            stop: None,
            reset: None,
            look: false,
            lost: None,
            answer: ExpectedAnswer::None,
            until: None,
        }
    }

    /// Requests the end of everything, now or once connected.
    pub(super) fn stop(&mut self, grace: Duration) {
        self.stop = Some(self.stop.map_or(grace, |stop| stop.min(grace)));
        self.ask_status();
    }

    /// Requests the reset of the guests for a target of this revision, now or once connected.
    pub(super) fn reset(&mut self, revision: u32) {
        self.reset = Some((revision, false));
    }

    /// Requests a status, by which a supervisor that hangs is noticed.
    fn ask_status(&mut self) {
        if let ExpectedAnswer::None = self.answer {
            self.answer = ExpectedAnswer::AskAt(Instant::now());
        }
    }

    /// Requests a check of the directory.
    pub(super) fn look(&mut self) {
        self.look = true;
    }

    /// Requests the immediate end of everything, because the directory is lost. The wait for that is bounded.
    pub(super) fn lose(&mut self, loss: DirectoryLoss) {
        self.lost = Some(loss);
        self.until = Some(Instant::now() + LOST_PATIENCE);
        self.ask_status();
    }

    /// Kills the supervisor, if this executor started it.
    pub(super) fn kill(&mut self) {
        if let Some(Err(error)) = self.child.as_mut().map(Child::kill) {
            tracing::warn!(%error, "cannot kill supervisor");
        }
    }

    async fn next(&mut self) -> HolderEvent {
        loop {
            let now = Instant::now();
            if self.until.is_some_and(|until| now >= until) {
                return HolderEvent::Look;
            }
            let mut status = false;
            match self.answer {
                ExpectedAnswer::DueAt(at) if now >= at => {
                    self.answer = ExpectedAnswer::AskAt(now);
                    return HolderEvent::Silent;
                }
                ExpectedAnswer::AskAt(at) if now >= at => {
                    self.answer = ExpectedAnswer::DueAt(now + SILENCE);
                    status = true;
                }
                ExpectedAnswer::None | ExpectedAnswer::AskAt(_) | ExpectedAnswer::DueAt(_) => {}
            }
            let Some(connection) = &mut self.connection else {
                if self.is_lost() {
                    return HolderEvent::Look;
                }
                tokio::time::sleep(self.pause).await;
                self.pause = (self.pause * 2).min(CONNECT_MOST);
                self.connection = connect(&self.directory).await.ok();
                self.reset = self.reset.map(|(revision, _)| (revision, false));
                continue;
            };
            let requests = [
                self.lost.map(|loss| SupervisorRequest::Lost { loss }),
                self.stop.map(|grace| SupervisorRequest::Stop { grace }),
                self.reset
                    .filter(|(_, is_sent)| !is_sent)
                    .map(|(revision, _)| SupervisorRequest::Reset { revision }),
                self.look.then_some(SupervisorRequest::Look),
                status.then_some(SupervisorRequest::Status),
            ];
            let frames = requests.iter().flatten().flat_map(supervisor_protocol::frame).collect::<Vec<_>>();
            // Never waits: a supervisor that hangs may have left the buffer full. Unsent requests are sent on
            // the next connection.
            if !frames.is_empty() && connection.stream.try_write(&frames).ok() != Some(frames.len()) {
                self.connection = None;
                continue;
            }
            (self.lost, self.stop, self.look) = (None, None, false);
            self.reset = self.reset.map(|(revision, _)| (revision, true));
            let wake = match self.answer {
                ExpectedAnswer::None => self.until,
                ExpectedAnswer::AskAt(at) | ExpectedAnswer::DueAt(at) => {
                    Some(self.until.map_or(at, |until| until.min(at)))
                }
            };
            let message = match wake {
                None => connection.next().await,
                Some(wake) => match tokio::time::timeout_at(wake, connection.next()).await {
                    Ok(message) => message,
                    // The loop handles what is due.
                    Err(_) => continue,
                },
            };
            let message = match message {
                Ok(message) => message,
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        tracing::error!(%error, directory = %self.directory.path().display(), "cannot read record");
                    }
                    self.connection = None;
                    continue;
                }
            };
            match serde_json::from_slice::<ProcessesFile>(&message) {
                Ok(record) => {
                    // Not before: a supervisor that sends no record would be asked again and again.
                    self.pause = CONNECT_FIRST;
                    if record.phase != StartPhase::Recorded {
                        self.start = None;
                    }
                    if let ExpectedAnswer::DueAt(_) = self.answer {
                        self.answer = ExpectedAnswer::AskAt(Instant::now() + ASK_AGAIN);
                    }
                    return HolderEvent::Record(Box::new(record));
                }
                Err(error) => tracing::error!(%error, "cannot decode record of supervisor"),
            }
        }
    }

    /// Whether there is no supervisor any more, and none is starting.
    fn is_lost(&mut self) -> bool {
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                // The child may still acquire the lock.
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => self.child = None,
            }
        }
        // A supervisor started in an earlier executor epoch may have been quicker.
        match self.directory.lock() {
            Ok(LockAttempt::HeldElsewhere) => false,
            Ok(LockAttempt::Acquired(_)) => true,
            Err(error) => {
                tracing::warn!(%error, "cannot check lock of supervisor");
                error.kind() == io::ErrorKind::NotFound
            }
        }
    }
}

impl Drop for SupervisorSocket {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The supervisor has released the lock, so it is about to end.
            drop(tokio::task::spawn_blocking(move || child.wait()));
        }
    }
}

/// Setting of mimalloc, the allocator of the program: a supervisor commits memory when it is used. Otherwise it requests huge
/// pages, and has 6 MiB more. A trampoline must not have the setting: it allocates after its memory was limited.
const ALLOCATOR: (&str, &str) = ("MIMALLOC_ARENA_EAGER_COMMIT", "0");

/// Starts a supervisor, which leaves this session immediately and outlives this process.
pub(super) fn spawn_supervisor(
    directory: &IncarnationDirectory,
    program: &SupervisorProgram,
) -> io::Result<Child> {
    // A pipe at that path does not block, and an unwritable log prevents no start.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut log = OpenOptions::new();
    log.append(true).create(true).mode(0o600).custom_flags(flags);
    let log = log.open(directory.file("supervisor.log"));
    let log = log.or_else(|_| OpenOptions::new().write(true).open("/dev/null"))?;
    if log.metadata().is_ok_and(|found| found.is_file() && found.len() > LONGEST_LOG) {
        log.set_len(0)?;
    }
    Command::new(&program.program)
        .args(&program.supervisor_args)
        .arg(directory.path())
        .env_clear()
        .env(ALLOCATOR.0, ALLOCATOR.1)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

/// Returns why a supervisor ended before it started anything.
pub(super) fn last_words(directory: &IncarnationDirectory) -> String {
    // Without a log, there is no reason to return.
    let end = end_of(&directory.file("supervisor.log"), LAST_WORDS).ok().flatten();
    let (_, log) = end.unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    format!("supervisor exited before it started processes: {}", log.lines().last().unwrap_or("no log"))
}

/// Connection to a supervisor (`supervisor_protocol`).
#[derive(Debug)]
struct SupervisorConnection {
    stream: UnixStream,
    received: Vec<u8>,
}

impl SupervisorConnection {
    /// Returns the next message. Safe to cancel.
    async fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) =
                supervisor_protocol::take(&mut self.received, supervisor_protocol::MAX_RECORD)?
            {
                return Ok(message);
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

async fn connect(directory: &IncarnationDirectory) -> io::Result<SupervisorConnection> {
    // By way of a descriptor: the path of a socket is limited to about 100 bytes.
    let dir = File::open(directory.path())?;
    let stream = UnixStream::connect(format!("/proc/self/fd/{}/supervisor.sock", dir.as_raw_fd())).await?;
    Ok(SupervisorConnection { stream, received: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_supervisor_that_reads_nothing_is_stopped_over_another_connection() {
        let directory = tempfile::tempdir().unwrap();
        let incarnation_directory = IncarnationDirectory::at(directory.path().into());
        let LockAttempt::Acquired(_lock) = incarnation_directory.lock().unwrap() else {
            panic!("the lock is held elsewhere")
        };
        let supervisor = UnixListener::bind(incarnation_directory.file("supervisor.sock")).unwrap();
        let mut socket = SupervisorSocket::new(incarnation_directory, None, None);
        let patience = Duration::from_millis(1);
        let _ = tokio::time::timeout(Duration::from_millis(100), socket.next()).await;
        for _ in 0..2000 {
            socket.look();
            let _ = tokio::time::timeout(patience, socket.next()).await;
        }
        socket.stop(Duration::ZERO);
        let _ = tokio::time::timeout(Duration::from_secs(1), socket.next()).await;
        drop(socket);
        supervisor.set_nonblocking(true).unwrap();
        let mut last = Vec::new();
        while let Ok((mut connection, _)) = supervisor.accept() {
            last.clear();
            connection.set_nonblocking(false).unwrap();
            connection.read_to_end(&mut last).unwrap();
        }
        let mut requests = Vec::new();
        while let Some(message) =
            supervisor_protocol::take(&mut last, supervisor_protocol::MAX_REQUEST).unwrap()
        {
            requests.push(serde_json::from_slice::<SupervisorRequest>(&message).unwrap());
        }
        assert!(
            requests.contains(&SupervisorRequest::Stop { grace: Duration::ZERO }),
            "{} requests",
            requests.len()
        );
    }
}
