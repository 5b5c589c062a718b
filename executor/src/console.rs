//! Consoles of guests: who is attached, and the bytes in both directions.
//!
//! | direction | way | bound |
//! |---|---|---|
//! | output | read from the output files, from their end at the time of the attachment | [`WINDOW`] bytes that the client has not read; what rotation deletes before it is read is skipped |
//! | input | written to the guest's named pipe | one input at a time, the pipe's capacity |
//!
//! Nothing is kept for a client that is slow: it is behind in the files, and delays neither the guest nor others. One client may
//! write. Its place is locked in the kernel too, by a lock on the pipe, so no crash leaves the place taken.
//!
//! Each attachment has a thread, since files are read and written. Requests and replies are those of a server
//! ([`chancery_events::console`]), also for an executor in the server's own process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chancery_events::console::{
    AttachRefusal, ConsoleBytes, ConsoleReply, ConsoleRequest, MAX_INPUT, MAX_OUTPUT, OUTPUT_COST, WINDOW,
};
use chancery_events::id::IncarnationId;
use chancery_events::name::{Actor, PayloadName};
use chancery_events::spec::ConsoleAccess;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::logs::NoLogSource;
use crate::process::{OutputReader, open_console};

/// Maximum number of clients of one console.
const CLIENTS: usize = 8;
/// Maximum number of attachments of an executor.
const ATTACHMENTS: usize = 64;
/// Interval in which new output is checked.
const POLL: Duration = Duration::from_millis(15);
/// Interval in which it is checked whether the guest still runs.
const CHECK: Duration = Duration::from_secs(1);
/// Time that a guest has to take an input.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of bytes that are written at one time; the pipe takes all or none of them.
const PIECE: usize = 512;
/// Maximum number of requests that wait for the thread of an attachment.
const WAITING: usize = WINDOW / OUTPUT_COST + 4;

/// Error of a client that cannot attach.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{detail}")]
pub struct AttachError {
    /// Kind of the error.
    pub reason: AttachRefusal,
    /// Reason, for people.
    pub detail: String,
}

impl AttachError {
    /// Returns the error with this reason.
    pub fn new(reason: AttachRefusal, detail: impl Into<String>) -> AttachError {
        AttachError { reason, detail: detail.into() }
    }
}

/// Files of a console.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsoleFiles {
    /// Payload of the guest.
    pub payload: PayloadName,
    /// Named pipe for input.
    pub input: PathBuf,
    /// Path of each output file without its dot and number.
    pub output: PathBuf,
}

/// Source of the consoles of incarnations.
pub trait ConsoleSource: Send + Sync + 'static {
    /// Finds the console of an incarnation: of this payload, or of the only one. By default there is none.
    fn console(
        &self,
        _incarnation: IncarnationId,
        _payload: Option<&PayloadName>,
    ) -> Result<ConsoleFiles, AttachError> {
        Err(AttachError::new(AttachRefusal::Missing, "cannot attach: there is no console here"))
    }
}

impl ConsoleSource for NoLogSource {}

/// Clients of one console, by attachment.
type ConsoleClients = BTreeMap<Uuid, (Actor, ConsoleAccess)>;
type ConsoleKey = (IncarnationId, PayloadName);

/// Clients of all consoles of an executor.
pub struct ConsoleHub {
    source: Arc<dyn ConsoleSource>,
    clients: Mutex<BTreeMap<ConsoleKey, ConsoleClients>>,
}

impl std::fmt::Debug for ConsoleHub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsoleHub").field("clients", &self.lock()).finish_non_exhaustive()
    }
}

impl ConsoleHub {
    /// Returns a hub without clients.
    pub fn new(source: Arc<dyn ConsoleSource>) -> Arc<ConsoleHub> {
        Arc::new(ConsoleHub { source, clients: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConsoleKey, ConsoleClients>> {
        // Every change under the lock is complete, so a panic leaves nothing half done.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place at a console.
    fn take(
        self: &Arc<Self>,
        key: ConsoleKey,
        attachment: Uuid,
        actor: Actor,
        access: ConsoleAccess,
    ) -> Result<ConsolePlace, AttachError> {
        let in_use = |detail: String| Err(AttachError::new(AttachRefusal::InUse, detail));
        let mut all = self.lock();
        if all.values().map(BTreeMap::len).sum::<usize>() >= ATTACHMENTS {
            return in_use(format!("cannot attach: the executor has {ATTACHMENTS} attachments, its maximum"));
        }
        let clients = all.entry(key.clone()).or_default();
        if clients.len() >= CLIENTS {
            return in_use(format!("cannot attach: the console has {CLIENTS} clients, its maximum"));
        }
        let writer = clients.values().find(|(_, access)| *access == ConsoleAccess::ReadWrite);
        if let Some((writer, _)) = writer.filter(|_| access == ConsoleAccess::ReadWrite) {
            return in_use(format!(
                "cannot attach: {writer} writes to the console\nhint: wait, or attach with --read-only"
            ));
        }
        clients.insert(attachment, (actor, access));
        Ok(ConsolePlace { hub: Arc::clone(self), key, attachment })
    }
}

/// Place of a client at a console.
struct ConsolePlace {
    hub: Arc<ConsoleHub>,
    key: ConsoleKey,
    attachment: Uuid,
}

impl Drop for ConsolePlace {
    fn drop(&mut self) {
        let mut all = self.hub.lock();
        if let Some(clients) = all.get_mut(&self.key) {
            clients.remove(&self.attachment);
            if clients.is_empty() {
                all.remove(&self.key);
            }
        }
    }
}

/// Client that attaches.
struct ConsoleClient {
    attachment: Uuid,
    incarnation: IncarnationId,
    payload: Option<PayloadName>,
    access: ConsoleAccess,
    actor: Actor,
}

/// Attached client.
struct AttachedClient {
    attachment: Uuid,
    _place: ConsolePlace,
    files: ConsoleFiles,
    /// Writing end of the pipe, which has the lock of the writer.
    input: Option<File>,
    output: OutputReader,
    /// Cost of the output that may be sent.
    credit: usize,
    pending: Option<PendingInput>,
}

/// Input that the pipe has not taken as a whole.
struct PendingInput {
    number: u64,
    data: Vec<u8>,
    taken: usize,
    until: Instant,
}

/// Whether no process has the other end of a guest's pipe. Another error, as of missing descriptors, shows no end.
fn has_ended(pipe: &Path) -> bool {
    let opened = open_console(pipe).map_err(|error| Errno::from_io_error(&error));
    matches!(opened, Err(Some(Errno::NXIO | Errno::NOENT)))
}

impl AttachedClient {
    fn attach(hub: &Arc<ConsoleHub>, client: ConsoleClient) -> Result<AttachedClient, AttachError> {
        let ConsoleClient { attachment, incarnation, payload, access, actor } = client;
        let failed = |error: io::Error| {
            AttachError::new(AttachRefusal::Failed, format!("cannot use console: {error}"))
        };
        let files = hub.source.console(incarnation, payload.as_ref())?;
        let place = hub.take((incarnation, files.payload.clone()), attachment, actor, access)?;
        let input = open_console(&files.input).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NXIO | Errno::NOENT) => {
                AttachError::new(AttachRefusal::Missing, "cannot attach: the guest has ended")
            }
            _ => failed(error),
        })?;
        let input = Some(input).filter(|_| access == ConsoleAccess::ReadWrite);
        if let Some(input) = &input
            && let Err(error) = flock(input, FlockOperation::NonBlockingLockExclusive)
        {
            let taken = "cannot attach: another process writes to the console";
            let taken = AttachError::new(AttachRefusal::InUse, taken);
            return Err(if error == Errno::WOULDBLOCK { taken } else { failed(error.into()) });
        }
        let output = OutputReader::last(&files.output, 0).map_err(failed)?;
        let credit = WINDOW;
        Ok(AttachedClient { attachment, _place: place, files, input, output, credit, pending: None })
    }

    /// Carries bytes until the client detaches. Returns before that if the guest has ended, or the error.
    fn run(
        mut self,
        requests: &Receiver<ConsoleRequest>,
        replies: &mpsc::Sender<ConsoleReply>,
    ) -> Option<Result<(), String>> {
        let attachment = self.attachment;
        let mut check_at = Instant::now() + CHECK;
        loop {
            match requests.recv_timeout(POLL) {
                Ok(ConsoleRequest::Input { number, data, .. }) => {
                    if self.input.is_none() || self.pending.is_some() || data.0.len() > MAX_INPUT {
                        return Some(Err("invalid input".to_owned()));
                    }
                    let until = Instant::now() + PATIENCE;
                    self.pending = Some(PendingInput { number, data: data.0, taken: 0, until });
                }
                Ok(ConsoleRequest::Read { cost, .. }) => self.credit = (self.credit + cost).min(WINDOW),
                Ok(ConsoleRequest::Detach { .. } | ConsoleRequest::Attach { .. })
                | Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let is_alive = match self.write() {
                Ok(reply) => match reply.map(|reply| replies.blocking_send(reply)) {
                    Some(Err(_)) => return None,
                    Some(Ok(())) | None => true,
                },
                // QEMU has ended: no process has the other end.
                Err(_) => false,
            };
            let is_alive = is_alive && (Instant::now() < check_at || !has_ended(&self.files.input));
            if Instant::now() >= check_at {
                check_at = Instant::now() + CHECK;
            }
            // After the check: all output of a guest that has ended is read.
            loop {
                match self.read() {
                    Ok(Some(data)) => {
                        if replies.blocking_send(ConsoleReply::Output { attachment, data }).is_err() {
                            return None;
                        }
                    }
                    Ok(None) if !is_alive && self.has_credit() => {
                        return Some(Ok(()));
                    }
                    Ok(None) => break,
                    Err(error) => return Some(Err(format!("cannot read output: {error}"))),
                }
            }
        }
    }

    fn has_credit(&self) -> bool {
        self.credit > OUTPUT_COST
    }

    /// Reads new output, as much as the client has room for.
    fn read(&mut self) -> io::Result<Option<ConsoleBytes>> {
        if !self.has_credit() {
            return Ok(None);
        }
        let data = ConsoleBytes(self.output.read((self.credit - OUTPUT_COST).min(MAX_OUTPUT))?);
        if data.0.is_empty() {
            return Ok(None);
        }
        self.credit -= data.cost();
        Ok(Some(data))
    }

    /// Writes what the pipe takes of the input. Returns the answer once it has all, or the time has passed.
    fn write(&mut self) -> io::Result<Option<ConsoleReply>> {
        let (Some(pending), Some(input)) = (&mut self.pending, &mut self.input) else { return Ok(None) };
        while pending.taken < pending.data.len() {
            let rest = &pending.data[pending.taken..];
            match input.write(&rest[..rest.len().min(PIECE)]) {
                Ok(count) => pending.taken += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if pending.taken < pending.data.len() && Instant::now() < pending.until {
            return Ok(None);
        }
        let (number, taken, attachment) = (pending.number, pending.taken, self.attachment);
        self.pending = None;
        Ok(Some(ConsoleReply::Taken { attachment, number, taken }))
    }
}

/// Serves one client in a thread of its own.
fn serve_client(
    hub: &Arc<ConsoleHub>,
    client: ConsoleClient,
    requests: &Receiver<ConsoleRequest>,
    replies: &mpsc::Sender<ConsoleReply>,
) {
    let attachment = client.attachment;
    let last = match AttachedClient::attach(hub, client) {
        Ok(attached) => match replies.blocking_send(ConsoleReply::Attached { attachment }) {
            Ok(()) => attached
                .run(requests, replies)
                .map(|ended| ConsoleReply::Ended { attachment, error: ended.err() }),
            Err(_) => None,
        },
        Err(AttachError { reason, detail }) => Some(ConsoleReply::Refused { attachment, reason, detail }),
    };
    if let Some(last) = last {
        // Without a server no client is left to notify.
        let _ = replies.blocking_send(last);
    }
}

/// Serves the requests of one server until they end. Then all its clients are detached.
pub async fn serve_consoles(
    hub: Arc<ConsoleHub>,
    mut requests: mpsc::Receiver<ConsoleRequest>,
    replies: mpsc::Sender<ConsoleReply>,
) {
    let mut open: BTreeMap<Uuid, (SyncSender<ConsoleRequest>, JoinHandle<()>)> = BTreeMap::new();
    while let Some(request) = requests.recv().await {
        let attachment = request.attachment();
        let ConsoleRequest::Attach { incarnation, payload, access, actor, .. } = request else {
            let is_detached = matches!(request, ConsoleRequest::Detach { .. });
            let sent = open.get(&attachment).map(|(client, _)| client.try_send(request));
            // A server that sends more than it may loses the attachment.
            if is_detached || sent.is_some_and(|sent| sent.is_err()) {
                open.remove(&attachment);
            }
            continue;
        };
        open.retain(|_, (_, thread)| !thread.is_finished());
        let (sender, receiver) = sync_channel(WAITING);
        let client = ConsoleClient { attachment, incarnation, payload, access, actor };
        let (hub, to_server) = (Arc::clone(&hub), replies.clone());
        let thread = std::thread::Builder::new()
            .name("console".to_owned())
            .spawn(move || serve_client(&hub, client, &receiver, &to_server));
        match thread {
            Ok(thread) => {
                open.insert(attachment, (sender, thread));
            }
            Err(error) => {
                let detail = format!("cannot use console: {error}");
                let refused = ConsoleReply::Refused { attachment, reason: AttachRefusal::Failed, detail };
                if replies.send(refused).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
