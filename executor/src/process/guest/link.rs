//! Link to the QEMU of one guest: asks for its state, presses its power button, resets it, ends it.
//!
//! A link never waits: its holder calls [`GuestLink::advance`] whenever the socket is ready or a time has come.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::json;

use super::qmp::{QmpMessage, QmpReader};
use super::{GuestRecord, GuestStatus};

/// Commands to QEMU whose replies are read.
const QUERY_NAME: &str = "query-name";
const QUERY_STATUS: &str = "query-status";
/// Time from one question for the state to the next.
const ASK: Duration = Duration::from_secs(5);
/// Time from one attempt to connect to the next.
const CONNECT: Duration = Duration::from_millis(20);
/// The longest of these times, which double.
const CONNECT_MOST: Duration = Duration::from_secs(1);
/// Time after which QEMU does not answer: a greeting, or a reply.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Maximum number of reads in one step: a guest that resets without pause must not delay others.
const READS: usize = 16;
/// Time from one press of the power button to the next: a starting guest can miss the first one.
const PRESS: Duration = Duration::from_secs(2);
/// Time in which further resets belong to the counted one: firmware resets again while it boots.
const BOOT: Duration = Duration::from_secs(3);
/// The longest time from one count of resets to the next. The time doubles: each count is recorded, and a guest may reset without
/// pause.
const COUNT_MOST: Duration = Duration::from_mins(5);

/// Request of the link's holder about the guest's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndRequest {
    None,
    /// Press the power button now and again.
    PowerDown(Instant),
    /// End QEMU: the guest's end is recorded.
    Quit,
    /// Quit was sent.
    Quitting,
}

/// Link to the QEMU of one guest.
#[derive(Debug)]
pub(in super::super) struct GuestLink {
    /// Number of the process in the record.
    pub(super) number: usize,
    directory: PathBuf,
    /// Name of the guest; another one has another name.
    name: String,
    connection: Option<QmpConnection>,
    /// Time of the next attempt to connect, and the time to the one after it.
    connect: (Instant, Duration),
    /// Time of the last step with a connection to the right guest.
    connected_at: Instant,
    request: EndRequest,
    resets: ResetCount,
}

/// Resets that are not in the record yet, and a requested one.
#[derive(Debug, Default)]
struct ResetCount {
    /// Whether the guest was reset, and that is not counted yet.
    is_pending: bool,
    /// Revision of the requested reset.
    requested: Option<u32>,
    /// Whether the request was sent on this connection.
    is_sent: bool,
    /// Time of the last count, and the time from it to the next one.
    last: Option<(Instant, Duration)>,
    /// Whether the awaited text was read after the last check of the events of QEMU. The event of a reset is sent before the guest
    /// writes anything new: the text may be from after a reset that is read now, and is never missed.
    is_line_new: bool,
}

impl ResetCount {
    /// Whether a request was not sent yet.
    const fn is_unsent(&self) -> bool {
        self.requested.is_some() && !self.is_sent
    }

    /// Time at which a pending reset is counted.
    fn due(&self) -> Option<Instant> {
        self.last.map(|(at, wait)| at + wait).filter(|_| self.is_pending)
    }

    /// Notes an event about a reset.
    fn note(&mut self, record: &mut GuestRecord, now: Instant) {
        if !self.is_line_new {
            record.note_line(false);
        }
        if let Some(revision) = self.requested.take_if(|_| self.is_sent) {
            record.reset_revision = revision;
            self.count(record, now);
        } else if self.last.is_none_or(|(at, _)| now >= at + BOOT) {
            self.is_pending = true;
            self.count_if_due(record, now);
        }
    }

    fn count_if_due(&mut self, record: &mut GuestRecord, now: Instant) {
        if self.is_pending && self.due().is_none_or(|at| now >= at) {
            self.count(record, now);
        }
    }

    fn count(&mut self, record: &mut GuestRecord, now: Instant) {
        record.resets = record.resets.saturating_add(1);
        let wait = match self.last {
            Some((at, wait)) if now < at + COUNT_MOST => (wait * 2).min(COUNT_MOST),
            _ => BOOT,
        };
        (self.is_pending, self.last) = (false, Some((now, wait)));
    }
}

#[derive(Debug)]
struct QmpConnection {
    stream: UnixStream,
    reader: QmpReader,
    unsent: Vec<u8>,
    next_id: u64,
    /// Commands without reply, and when they were sent.
    waiting: BTreeMap<u64, (&'static str, Instant)>,
    /// Time of the connection, until the greeting.
    greeting: Option<Instant>,
    /// Time of the next question for the state; absent until the name is known to be right.
    ask: Option<Instant>,
}

impl GuestLink {
    /// Creates a link to the guest with this name, whose control socket is `qmp.sock` in the directory.
    pub(in super::super) fn new(number: usize, directory: &Path, name: String) -> GuestLink {
        let now = Instant::now();
        GuestLink {
            number,
            directory: directory.to_owned(),
            name,
            connection: None,
            connect: (now, CONNECT),
            connected_at: now,
            request: EndRequest::None,
            resets: ResetCount::default(),
        }
    }

    /// Socket to wait for, if it is connected.
    pub(in super::super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(|connection| connection.stream.as_fd())
    }

    /// Time of the next step, if the socket does not become ready.
    pub(in super::super) fn due(&self) -> Instant {
        let Some(connection) = &self.connection else {
            return self.resets.due().map_or(self.connect.0, |at| at.min(self.connect.0));
        };
        let press = match self.request {
            EndRequest::PowerDown(at) if connection.ask.is_some() => Some(at),
            EndRequest::Quit if connection.ask.is_some() => Some(Instant::now()),
            _ if connection.ask.is_some() && self.resets.is_unsent() => Some(Instant::now()),
            _ => None,
        };
        let sent = connection.waiting.values().map(|(_, sent)| *sent).min();
        let silent = sent.or(connection.greeting).map(|since| since + SILENCE);
        let all = [connection.ask, press, self.resets.due(), silent.filter(|at| *at > Instant::now())];
        all.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + ASK)
    }

    /// Notes that the awaited text was read from the guest's output.
    pub(super) fn note_line(&mut self) {
        self.resets.is_line_new = true;
    }

    /// Requests that the guest powers itself off.
    pub(in super::super) fn power_down(&mut self) {
        if self.request == EndRequest::None {
            self.request = EndRequest::PowerDown(Instant::now());
        }
    }

    /// Requests a reset of the guest, for a target of this revision.
    pub(in super::super) fn reset(&mut self, revision: u32) {
        if self.resets.requested != Some(revision) {
            (self.resets.requested, self.resets.is_sent) = (Some(revision), false);
        }
    }

    /// Requests that QEMU ends. The end of the guest must be recorded before.
    pub(in super::super) fn quit(&mut self) {
        if self.request != EndRequest::Quitting {
            self.request = EndRequest::Quit;
        }
    }

    /// Reads what QEMU has sent, notes it in the guest's record, and sends what is due.
    pub(in super::super) fn advance(&mut self, record: &mut GuestRecord) {
        let now = Instant::now();
        if self.connection.is_none() && now >= self.connect.0 {
            match connect(&self.directory, "qmp.sock") {
                Ok(stream) => self.connection = Some(QmpConnection::new(stream, now)),
                // QEMU makes the socket when it starts.
                Err(_) => self.connect = (now + self.connect.1, (self.connect.1 * 2).min(CONNECT_MOST)),
            }
        }
        if record.status == GuestStatus::Running && now >= self.connected_at + SILENCE {
            record.status = GuestStatus::Unreachable;
        }
        let had_ended = record.end.is_some();
        self.resets.count_if_due(record, now);
        let Some(connection) = &mut self.connection else { return };
        let exchanged = connection.exchange(&self.name, record, &mut self.resets, now).and_then(|()| {
            if connection.ask.is_some() {
                if self.resets.is_unsent() {
                    self.resets.is_sent = true;
                    connection.send("system_reset", now);
                }
                match self.request {
                    EndRequest::PowerDown(at) if now >= at => {
                        self.request = EndRequest::PowerDown(now + PRESS);
                        connection.send("system_powerdown", now);
                    }
                    EndRequest::Quit => {
                        self.request = EndRequest::Quitting;
                        connection.send("quit", now);
                    }
                    _ => {}
                }
            }
            connection.flush()
        });
        self.resets.is_line_new = false;
        record.is_end_requested |= !had_ended && record.end.is_some() && self.request != EndRequest::None;
        if exchanged.is_ok() && connection.ask.is_some() {
            (self.connected_at, self.connect.1) = (now, CONNECT);
        }
        if exchanged.is_err() {
            // Every command without reply has failed. Whether QEMU has ended is for others to find out.
            self.connection = None;
            self.resets.is_sent = false;
            self.connect = (now + self.connect.1, (self.connect.1 * 2).min(CONNECT_MOST));
            if self.request == EndRequest::Quitting {
                self.request = EndRequest::Quit;
            }
        }
    }
}

impl QmpConnection {
    fn new(stream: UnixStream, now: Instant) -> QmpConnection {
        QmpConnection {
            stream,
            reader: QmpReader::default(),
            unsent: Vec::new(),
            next_id: 1,
            waiting: BTreeMap::new(),
            greeting: Some(now),
            ask: None,
        }
    }

    fn send(&mut self, command: &'static str, now: Instant) {
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.insert(id, (command, now));
        let text = json!({ "execute": command, "id": id });
        self.unsent.extend_from_slice(text.to_string().as_bytes());
        self.unsent.push(b'\n');
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads everything that was received, and asks for the state when it is time.
    fn exchange(
        &mut self,
        name: &str,
        record: &mut GuestRecord,
        resets: &mut ResetCount,
        now: Instant,
    ) -> io::Result<()> {
        let mut chunk = [0; 4096];
        for _ in 0..READS {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    for message in self.reader.read(&chunk[..count])? {
                        self.take(message, name, record, resets, now)?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let oldest = self.waiting.values().map(|(_, sent)| *sent).min().or(self.greeting);
        if oldest.is_some_and(|since| now >= since + SILENCE) {
            // As of a stopped QEMU, or of one whose socket has another client.
            record.status = GuestStatus::Unreachable;
        }
        let is_asked = self.waiting.values().any(|(command, _)| *command == QUERY_STATUS);
        if self.ask.is_some_and(|at| now >= at) {
            self.ask = Some(now + ASK);
            if !is_asked {
                self.send(QUERY_STATUS, now);
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        message: QmpMessage,
        name: &str,
        record: &mut GuestRecord,
        resets: &mut ResetCount,
        now: Instant,
    ) -> io::Result<()> {
        match message {
            QmpMessage::Greeting(_) => {
                self.greeting = None;
                self.send("qmp_capabilities", now);
                self.send(QUERY_NAME, now);
            }
            QmpMessage::Event(event) => {
                record.note_event(&event);
                if event.name == "RESET" {
                    resets.note(record, now);
                }
                if event.name == "STOP" {
                    // For its reason.
                    self.ask = self.ask.map(|_| now);
                }
            }
            QmpMessage::Reply(id, result) => {
                match (self.waiting.remove(&id).map(|(command, _)| command), result) {
                    (Some(QUERY_NAME), Ok(found)) if found["name"] == name => self.ask = Some(now),
                    (Some(QUERY_NAME), _) => {
                        return Err(io::Error::other("the control socket is that of another guest"));
                    }
                    (Some(QUERY_STATUS), Ok(found)) => {
                        let runs = found["running"].as_bool().unwrap_or_default();
                        record.note_status(found["status"].as_str().unwrap_or_default(), runs);
                    }
                    // A refusal, as of a button that the machine does not have: the grace ends the guest.
                    _ => {}
                }
            }
            QmpMessage::Unknown(_) => {}
        }
        Ok(())
    }
}

/// Connects to a control socket of a directory. The path of a socket is limited to about 100 bytes, so the directory is named
/// by its descriptor.
pub(super) fn connect(directory: &Path, socket: &str) -> io::Result<UnixStream> {
    let directory =
        rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{socket}", directory.as_raw_fd());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Without waiting: a stopped QEMU accepts no connection.
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}
