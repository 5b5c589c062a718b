//! Who holds the lock of an incarnation's folder, and what is heard from there.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::KeeperProgram;
use super::drift::Loss;
use super::folder::{Folder, Phase, Record};
use super::foster::Foster;
use super::wire::{self, Request};
use crate::durable::{Lock, open_plain};

/// Bytes of a keeper's log that are read, at most.
const LAST_WORDS: u64 = 64 << 10;
/// Size in bytes above which the log of a keeper is emptied when the next keeper starts.
const LONGEST_LOG: u64 = 1 << 20;
const CONNECT_FIRST: Duration = Duration::from_millis(3);
const CONNECT_MOST: Duration = Duration::from_millis(100);
/// How long one start counts among those at once.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks, if the first failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time in which a supervisor that was asked to end everything must answer a request for its record.
const SILENCE: Duration = Duration::from_secs(10);
/// Between two such requests.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How long a keeper whose folder was lost may take to end everything; then that is done without it.
const LOST_PATIENCE: Duration = Duration::from_secs(2);

/// Who holds the lock.
#[derive(Debug)]
pub(super) enum Hold {
    /// There is no folder.
    Nothing,
    /// It could not be found out.
    Unknown,
    /// We, and nothing runs.
    Ours(#[expect(dead_code, reason = "held, not used")] File),
    /// We, and orphans run.
    Foster(Box<Foster>),
    /// We, and what ran before a reboot of the machine is to be started again when it is its turn.
    Again(File, Arc<Semaphore>),
    /// A keeper, or soon a keeper.
    Kept(KeeperLink),
}

/// What is heard.
#[derive(Debug)]
pub(super) enum Event {
    /// The keeper's record.
    Record(Box<Record>),
    /// No keeper holds the lock any more; or it is time to look again.
    Look,
    /// The supervisor was asked to end everything, and does not answer.
    Silent,
    /// An orphan died, by its number in the record; or it is time for another sweep.
    Orphan(Option<usize>),
    /// It is its turn to be started again.
    Turn(OwnedSemaphorePermit),
}

impl Hold {
    /// Waits for the next event. Safe to cancel.
    pub(super) async fn next(&mut self) -> Event {
        match self {
            Hold::Nothing | Hold::Ours(_) => std::future::pending().await,
            Hold::Unknown => {
                tokio::time::sleep(LOOK_AGAIN).await;
                Event::Look
            }
            Hold::Foster(foster) => Event::Orphan(foster.next().await),
            Hold::Again(_, starts) => match starts.clone().acquire_owned().await {
                Ok(permit) => Event::Turn(permit),
                // Nobody closes it.
                Err(_) => std::future::pending().await,
            },
            Hold::Kept(link) => link.next().await,
        }
    }
}

/// One of the starts that may happen at once, while this lives; but a keeper that hangs does not hold back others
/// for ever.
#[derive(Debug)]
pub(super) struct Start(#[expect(dead_code, reason = "its drop is what counts")] oneshot::Sender<()>);

impl Start {
    pub(super) fn new(permit: OwnedSemaphorePermit) -> Start {
        let (sender, dropped) = oneshot::channel();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(START_PATIENCE, dropped).await;
            drop(permit);
        });
        Start(sender)
    }
}

/// A connection to a keeper, or the way to one.
#[derive(Debug)]
pub(super) struct KeeperLink {
    folder: Folder,
    /// The keeper, if this executor started it: it is to be reaped.
    child: Option<Child>,
    /// Dropped when the keeper says that it has started everything, or is gone: another may start then.
    start: Option<Start>,
    connection: Option<Connection>,
    pause: Duration,
    /// To be said when connected: the shortest grace.
    stop: Option<Duration>,
    /// To be said when connected.
    look: bool,
    lost: Option<Loss>,
    answer: Answer,
    /// Until when a keeper whose folder was lost is waited for.
    until: Option<Instant>,
}

/// What is expected of a supervisor that was asked to end everything.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// It was not asked.
    None,
    /// It answered, and is asked again at this time.
    AskAt(Instant),
    /// Its record, before this time.
    DueAt(Instant),
}

impl KeeperLink {
    pub(super) fn new(folder: Folder, child: Option<Child>, start: Option<Start>) -> KeeperLink {
        KeeperLink {
            folder,
            child,
            start,
            connection: None,
            pause: CONNECT_FIRST,
            stop: None,
            look: false,
            lost: None,
            answer: Answer::None,
            until: None,
        }
    }

    /// Asks the keeper to end everything; now, or when it can be reached.
    pub(super) fn stop(&mut self, grace: Duration) {
        self.stop = Some(self.stop.map_or(grace, |stop| stop.min(grace)));
        if let Answer::None = self.answer {
            self.answer = Answer::AskAt(Instant::now());
        }
    }

    /// Asks the keeper to see whether everything in the folder is as it should be.
    pub(super) fn look(&mut self) {
        self.look = true;
    }

    /// Asks the keeper to end everything at once, because its folder is lost; it is not waited for without end.
    pub(super) fn lose(&mut self, loss: Loss) {
        self.lost = Some(loss);
        self.until = Some(Instant::now() + LOST_PATIENCE);
        // Also understood by a keeper of an earlier build.
        self.stop(Duration::ZERO);
    }

    /// Ends the keeper itself, if this executor started it.
    pub(super) fn kill(&mut self) {
        if let Some(Err(error)) = self.child.as_mut().map(Child::kill) {
            tracing::warn!(%error, "end a keeper");
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            let now = Instant::now();
            if self.until.is_some_and(|until| now >= until) {
                return Event::Look;
            }
            let mut status = false;
            match self.answer {
                Answer::DueAt(at) if now >= at => {
                    self.answer = Answer::AskAt(now);
                    return Event::Silent;
                }
                Answer::AskAt(at) if now >= at => {
                    self.answer = Answer::DueAt(now + SILENCE);
                    status = true;
                }
                Answer::None | Answer::AskAt(_) | Answer::DueAt(_) => {}
            }
            let Some(connection) = &mut self.connection else {
                if self.is_lost() {
                    return Event::Look;
                }
                tokio::time::sleep(self.pause).await;
                self.pause = (self.pause * 2).min(CONNECT_MOST);
                self.connection = connect(&self.folder).await.ok();
                continue;
            };
            let requests = [
                self.lost.map(|loss| Request::Lost { loss }),
                self.stop.map(|grace| Request::Stop { grace }),
                self.look.then_some(Request::Look),
                status.then_some(Request::Status),
            ];
            let frames = requests.iter().flatten().flat_map(wire::frame).collect::<Vec<_>>();
            // Never waited for: a supervisor that stands still may have left the buffer full. What it does not take whole
            // is said over the next connection.
            if !frames.is_empty() && connection.writer.try_write(&frames).ok() != Some(frames.len()) {
                self.connection = None;
                continue;
            }
            (self.lost, self.stop, self.look) = (None, None, false);
            let wake = match self.answer {
                Answer::None => self.until,
                Answer::AskAt(at) | Answer::DueAt(at) => Some(self.until.map_or(at, |until| until.min(at))),
            };
            let message = match wake {
                None => connection.next().await,
                Some(wake) => match tokio::time::timeout_at(wake, connection.next()).await {
                    Ok(message) => message,
                    // What is due is done above.
                    Err(_) => continue,
                },
            };
            let message = match message {
                Ok(message) => message,
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        tracing::error!(%error, folder = %self.folder.path().display(), "cannot read record");
                    }
                    self.connection = None;
                    continue;
                }
            };
            match serde_json::from_slice::<Record>(&message) {
                Ok(record) => {
                    // Not before: a keeper that sends none would be asked again and again.
                    self.pause = CONNECT_FIRST;
                    if record.phase != Phase::Recorded {
                        self.start = None;
                    }
                    if let Answer::DueAt(_) = self.answer {
                        self.answer = Answer::AskAt(Instant::now() + ASK_AGAIN);
                    }
                    return Event::Record(Box::new(record));
                }
                Err(error) => tracing::error!(%error, "a keeper says what cannot be read"),
            }
        }
    }

    /// Whether there is no keeper any more, nor one to come.
    fn is_lost(&mut self) -> bool {
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                // It may yet get to the lock.
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => self.child = None,
            }
        }
        // Another keeper, started by an earlier life, may have been quicker.
        match self.folder.lock() {
            Ok(Lock::Theirs) => false,
            Ok(Lock::Ours(_)) => true,
            Err(error) => {
                tracing::warn!(%error, "look for a keeper");
                error.kind() == io::ErrorKind::NotFound
            }
        }
    }
}

impl Drop for KeeperLink {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It has let go of the lock, so it is about to end.
            drop(tokio::task::spawn_blocking(move || child.wait()));
        }
    }
}

/// Starts a keeper, which leaves our session at once and does not end with us.
pub(super) fn spawn_keeper(folder: &Folder, program: &KeeperProgram) -> io::Result<Child> {
    // A pipe in its place is not waited for, and a log that cannot be written keeps no keeper from its work.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut log = OpenOptions::new();
    log.append(true).create(true).mode(0o600).custom_flags(flags);
    let log = log.open(folder.file("keeper.log"));
    let log = log.or_else(|_| OpenOptions::new().write(true).open("/dev/null"))?;
    if log.metadata().is_ok_and(|found| found.is_file() && found.len() > LONGEST_LOG) {
        log.set_len(0)?;
    }
    Command::new(&program.program)
        .args(&program.keeper_args)
        .arg(folder.path())
        .env_clear()
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

/// Why a keeper ended before it started anything.
pub(super) fn last_words(folder: &Folder) -> String {
    let mut log = Vec::new();
    // Without it, there is nothing to say.
    let _ = open_plain(OpenOptions::new().read(true), &folder.file("keeper.log")).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)))?;
        file.take(LAST_WORDS).read_to_end(&mut log)
    });
    let log = String::from_utf8_lossy(&log);
    format!(
        "the keeper ended before it started anything: {}",
        log.lines().last().unwrap_or("it left no word")
    )
}

/// See `wire`.
#[derive(Debug)]
struct Connection {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    received: Vec<u8>,
}

impl Connection {
    /// The next message. Safe to cancel.
    async fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = wire::take(&mut self.received, wire::MAX_RECORD)? {
                return Ok(message);
            }
            if self.reader.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

async fn connect(folder: &Folder) -> io::Result<Connection> {
    // By way of a descriptor, because the path of a socket may have about 100 bytes and no more.
    let dir = File::open(folder.path())?;
    let stream = UnixStream::connect(format!("/proc/self/fd/{}/keeper.sock", dir.as_raw_fd())).await?;
    let (reader, writer) = stream.into_split();
    Ok(Connection { reader, writer, received: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_supervisor_that_reads_nothing_is_asked_to_end_over_another_connection() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::at(directory.path().into());
        let Lock::Ours(_lock) = folder.lock().unwrap() else { panic!("nobody else has it") };
        let supervisor = UnixListener::bind(folder.file("keeper.sock")).unwrap();
        let mut link = KeeperLink::new(folder, None, None);
        let patience = Duration::from_millis(1);
        let _ = tokio::time::timeout(Duration::from_millis(100), link.next()).await;
        for _ in 0..2000 {
            link.look();
            let _ = tokio::time::timeout(patience, link.next()).await;
        }
        link.stop(Duration::ZERO);
        let _ = tokio::time::timeout(Duration::from_secs(1), link.next()).await;
        drop(link);
        supervisor.set_nonblocking(true).unwrap();
        let mut last = Vec::new();
        while let Ok((mut connection, _)) = supervisor.accept() {
            last.clear();
            connection.set_nonblocking(false).unwrap();
            connection.read_to_end(&mut last).unwrap();
        }
        let mut requests = Vec::new();
        while let Some(message) = wire::take(&mut last, wire::MAX_REQUEST).unwrap() {
            requests.push(serde_json::from_slice::<Request>(&message).unwrap());
        }
        assert!(requests.contains(&Request::Stop { grace: Duration::ZERO }), "{} requests", requests.len());
    }
}
