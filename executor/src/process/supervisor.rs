//! Supervisor: parent of one incarnation's processes, which outlives the executor.
//!
//! | state | program executed | not executed | unrequested end | stop requested | no process left |
//! |---|---|---|---|---|---|
//! | recorded | all: → started | → ending, keeps the failure | → ending | → ending | – |
//! | started | – | – | → ending | → ending | – |
//! | ending | – | keeps the failure | records the end | shorter grace counts | `failed` or `ended`; exits |
//!
//! A supervisor that receives SIGTERM continues: most likely the machine is going down, and its processes
//! receive the signal too. Their ends are recorded as such, and an executor draws the conclusion (`reboot`).
//!
//! A supervisor is synchronous, and single-threaded except briefly during the start. It starts processes only
//! once, and its record on disk is always ahead of its actions. The kernel proves that no process is left.
//! The supervisor is the subreaper: it has children while any descendant lives, and `wait` reports when there
//! is none. The exception is another PID namespace, whose init adopts orphaned processes. So a control group,
//! if there is one, must be empty too.
//!
//! The output of processes passes through the supervisor (`capture`). Changes to its directory are detected
//! and repaired (`files`), or end everything (`integrity`).

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::process::{Signal, getpid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

mod ending;
mod files;

use ending::{DescendantsLeft, ShutdownState, UnreadGroup};
use files::LockOwnership;

use super::capture::{OutputCapture, PipeRead};
use super::cgroup;
use super::guest::GuestWatch;
use super::identity::{self, BootId};
use super::incarnation_dir::{IncarnationDirectory, ProcessesFile, SpecFile, StartPhase};
use super::integrity::{DirectoryInspector, DirectoryLoss, FileId};
use super::log::log;
use super::start::{self, HeldTrampoline, prepare, trampoline};
use super::supervisor_client::SupervisorClient;
use super::supervisor_protocol::{self, SupervisorRequest};
use super::trampoline::ExecFailure;
use crate::executor_store::{ObjectStore as _, TombstoneFile};
use crate::reconcile::TargetGoal;
use crate::state_file::{FileAccess, LockAttempt, if_found, lock_existing};

/// Time that a supervisor waits for the lock, which an executor holds for moments while it checks the
/// directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Interval of checks while only the control group may be populated.
const GROUP: Duration = Duration::from_millis(50);
/// Maximum number of reads from one pipe before others are polled: a flood of output must not delay a
/// command.
const COPIES: usize = 16;

/// Runs as the supervisor of the incarnation in the directory `dir`.
///
/// Also returns success if there is nothing to supervise: another supervisor runs, or a start is no longer
/// allowed.
pub fn supervisor_main(dir: &Path) -> ExitCode {
    match keep(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(format_args!("cannot supervise {}: {error}", dir.display()));
            ExitCode::FAILURE
        }
    }
}

fn keep(dir: &Path) -> io::Result<()> {
    // Fails only for the leader of a group, as when an operator starts the supervisor from a shell.
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::set_child_subreaper(Some(getpid()))?;
    let (asked, ignored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    signal_hook::flag::register(SIGTERM, Arc::clone(&asked))?;
    for signal in [SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    // The working directory changes below.
    let incarnation_directory = IncarnationDirectory::at(std::path::absolute(dir)?);
    let Some(lock) = take_lock(&incarnation_directory)? else { return Ok(()) };
    let Some(wanted) = incarnation_directory.read::<SpecFile>(FileAccess::Observer)? else { return Ok(()) };
    let boot = wanted.boot.clone().map_or_else(BootId::of_this_machine, Ok)?;
    let tombstone = incarnation_directory.read::<TombstoneFile>(FileAccess::Observer)?;
    let record = incarnation_directory.read::<ProcessesFile>(FileAccess::Observer)?;
    let Some(start) = may_start(&wanted, tombstone, record.as_ref(), &boot) else { return Ok(()) };
    let (ended, child_ended) = UnixStream::pair()?;
    ended.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGCHLD, child_ended)?;
    std::env::set_current_dir(dir)?;
    // No other directory can be taken for it while it is the working directory.
    let place = FileId::of(Path::new("."))?.ok_or(io::ErrorKind::NotFound)?;
    let sight = DirectoryInspector::of(&incarnation_directory, Some(place), 0);
    let listener = files::listen()?;
    let ancestors = identity::self_and_ancestors();
    let record = ProcessesFile { ancestors, directory: Some(place), ..ProcessesFile::begin(&boot)? };
    let mut supervisor = Supervisor {
        lock,
        directory: incarnation_directory,
        sight,
        place,
        looked: Instant::now(),
        lost: None,
        wanted,
        start,
        record,
        asked,
        is_to_end: false,
        executing: Vec::new(),
        guests: GuestWatch::default(),
        captures: Vec::new(),
        chunk: Vec::new(),
        failure: None,
        unread: None,
        ending: None,
        ended,
        listener,
        clients: Vec::new(),
    };
    supervisor.start()?;
    supervisor.run()
}

/// Reason for a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StartReason {
    /// First start: on failure the incarnation has not run.
    Order,
    /// Restart after a reboot: on failure the incarnation ended with the reboot.
    Reboot,
}

/// Returns the reason to start processes, if they must be started.
fn may_start(
    wanted: &SpecFile,
    tombstone: Option<TombstoneFile>,
    record: Option<&ProcessesFile>,
    boot: &BootId,
) -> Option<StartReason> {
    if tombstone.is_some_and(|tombstone| tombstone.covers(&wanted.order)) {
        return None;
    }
    match record {
        None => wanted.order.may_start().then_some(StartReason::Order),
        Some(record) => {
            let is_intended = record.phase == StartPhase::Again && record.boot == boot.id;
            (is_intended && wanted.order.aim == TargetGoal::Up).then_some(StartReason::Reboot)
        }
    }
}

fn take_lock(directory: &IncarnationDirectory) -> io::Result<Option<std::fs::File>> {
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        // An existing lock alone: a supervisor must create nothing in a directory that is being removed.
        match if_found(lock_existing(&directory.file("supervisor.lock")))? {
            Some(LockAttempt::Acquired(lock)) => return Ok(Some(lock)),
            Some(LockAttempt::HeldElsewhere) if Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(10));
            }
            // Without a file, the directory was purged meanwhile.
            Some(LockAttempt::HeldElsewhere) | None => return Ok(None),
        }
    }
}

/// Reason that nothing was started.
enum NotStarted {
    /// The start failed.
    Failed(ExecFailure),
    /// The end was requested.
    Ended,
    /// Another process has taken over.
    Taken,
}

impl From<ExecFailure> for NotStarted {
    fn from(not_executed: ExecFailure) -> NotStarted {
        NotStarted::Failed(not_executed)
    }
}

struct Supervisor {
    /// First field: the lock is free before a client sees its connection end.
    lock: std::fs::File,
    directory: IncarnationDirectory,
    sight: DirectoryInspector,
    /// Identity of the directory.
    place: FileId,
    /// Time of the last check of the directory.
    looked: Instant,
    /// Loss of the directory, if everything ends for that reason.
    lost: Option<DirectoryLoss>,
    /// Specification; its grace also applies to siblings of a process that ends unrequested.
    wanted: SpecFile,
    start: StartReason,
    record: ProcessesFile,
    /// Whether SIGTERM was received. Most likely the machine is going down, and the processes are ended as
    /// well.
    asked: Arc<AtomicBool>,
    /// Whether an executor has requested the end.
    is_to_end: bool,
    /// Sockets that report whether each program is executed; `None` once that is known.
    executing: Vec<Option<UnixStream>>,
    guests: GuestWatch,
    /// Outputs that are still written.
    captures: Vec<OutputCapture>,
    chunk: Vec<u8>,
    failure: Option<ExecFailure>,
    unread: Option<UnreadGroup>,
    ending: Option<ShutdownState>,
    /// Socket that is readable when a child has ended.
    ended: UnixStream,
    listener: UnixListener,
    clients: Vec<SupervisorClient>,
}

impl Supervisor {
    /// Starts all processes unless their end is requested first, or stores the failure.
    fn start(&mut self) -> io::Result<()> {
        // Concurrently: both wait about a millisecond for the kernel.
        let wanted = self.wanted.clone();
        let making = std::thread::spawn(move || wanted.make_group());
        let waiting = self.trampolines();
        let made = making
            .join()
            .map_err(|_| io::Error::other("the thread that creates control groups has panicked"))?;
        // Without a group, ends are proved otherwise; a process with a limit fails below.
        let group = made.unwrap_or_else(|error| {
            log(format_args!("cannot create control group: {error}"));
            None
        });
        let waiting = waiting.and_then(|mut waiting| {
            waiting.iter_mut().try_for_each(|one| one.limit(&self.wanted))?;
            self.record.processes = waiting.iter().map(|one| one.started.clone()).collect();
            check_size(&self.record)?;
            Ok(waiting)
        });
        let mut waiting: Vec<HeldTrampoline> = match waiting {
            Ok(waiting) => waiting,
            // In each case, started trampolines exit because their sockets are dropped.
            Err(NotStarted::Failed(not_executed)) => {
                self.record.processes.clear();
                self.failure = Some(not_executed);
                self.end(Duration::ZERO);
                return Ok(());
            }
            Err(NotStarted::Ended) => return Ok(()),
            Err(NotStarted::Taken) => return Err(io::Error::other("another process has the lock")),
        };
        self.record.group = group;
        self.guests = GuestWatch::of(&self.record, self.directory.path());
        self.record_and_group(&waiting)?;
        self.send_record();
        for one in &mut waiting {
            one.held.clear();
        }
        for (number, mut one) in waiting.into_iter().enumerate() {
            // A trampoline that was killed receives nothing; its end is detected in any case.
            let _ = one.socket.write_all(&supervisor_protocol::line(&one.execute));
            one.socket.set_nonblocking(true)?;
            self.executing.push(Some(one.socket));
            let line = one.started.guest.as_ref().and_then(|guest| guest.line.as_ref());
            if let Some(line) = line {
                one.captures[0].await_text(number, &line.text);
            }
            self.captures.extend(one.captures);
        }
        Ok(())
    }

    /// Writes the record, and concurrently moves the processes to their groups: the kernel may delay that.
    fn record_and_group(&mut self, waiting: &[HeldTrampoline]) -> io::Result<()> {
        let groups = waiting.iter().filter_map(|one| Some((one.group()?, one.started.pid)));
        let (written, moved) = std::thread::scope(|scope| {
            let moves = scope
                .spawn(|| groups.map(|(path, pid)| cgroup::put(path, pid)).collect::<io::Result<Vec<_>>>());
            (self.directory.write(&self.record), moves.join())
        });
        written?;
        let moved = moved.map_err(|_| io::Error::other("the thread that moves processes has panicked"))?;
        let Err(error) = moved else { return Ok(()) };
        log(format_args!("cannot move process into its control group: {error}"));
        // A process started outside of the group could outlive it.
        self.record.group = None;
        self.directory.write(&self.record)
    }

    /// Starts a trampoline for each process. Clients are served between any two, so that a stop request takes
    /// effect.
    fn trampolines(&mut self) -> Result<Vec<HeldTrampoline>, NotStarted> {
        let (directory, wanted) = (self.directory.clone(), self.wanted.clone());
        let mut prepared = Vec::new();
        for one in start::processes(&wanted)? {
            self.check_wanted()?;
            prepared.push(prepare(&directory, &wanted, &one)?);
        }
        let mut waiting = Vec::new();
        for one in prepared {
            self.check_wanted()?;
            waiting.push(trampoline(&directory, &wanted, one)?);
        }
        self.check_wanted()?;
        Ok(waiting)
    }

    /// Checks that processes must still be started.
    fn check_wanted(&mut self) -> Result<(), NotStarted> {
        match self.serve() {
            LockOwnership::Yes if self.ending.is_none() => Ok(()),
            LockOwnership::Yes => Err(NotStarted::Ended),
            LockOwnership::No => Err(NotStarted::Taken),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            drain(&self.ended);
            self.read_executing();
            let left = self.reap();
            if left == DescendantsLeft::None {
                self.finish();
                return Ok(());
            }
            if self.unread.as_ref().is_some_and(UnreadGroup::has_lasted) {
                // As if this process had been killed: an executor determines what can be proved.
                log(format_args!("cannot read control group: the executor determines the end"));
                self.save();
                return Ok(());
            }
            if self.record.phase == StartPhase::Recorded
                && self.ending.is_none()
                && self.executing.iter().all(Option::is_none)
            {
                self.record.phase = StartPhase::Started;
                self.save();
            }
            if self.ending.as_ref().is_some_and(|ending| Instant::now() >= ending.kill_at) {
                self.sweep(Signal::KILL);
                self.ending.iter_mut().for_each(ShutdownState::swept);
            }
            self.advance_guests();
            self.copy_output();
            if self.serve() == LockOwnership::No {
                // As if this process had died: the lock holder has adopted the processes.
                log(format_args!("supervisor stopped: another process has the lock"));
                return Ok(());
            }
            self.wait(&left)?;
        }
    }

    /// Copies the output of processes.
    fn copy_output(&mut self) {
        let chunk = &mut self.chunk;
        self.captures.retain_mut(|capture| {
            (0..COPIES).map(|_| capture.copy(chunk)).find(|copied| *copied != PipeRead::More)
                != Some(PipeRead::Over)
        });
        let found = self.captures.iter_mut().filter_map(OutputCapture::take_found);
        if self.guests.note_lines(&mut self.record, found) {
            self.save();
        }
    }

    /// Reads what QEMU reports of the guests. The end of a guest is written to disk, and only then its QEMU ends.
    fn advance_guests(&mut self) {
        if self.guests.advance(&mut self.record) {
            let is_written = self.save();
            self.guests.note_written(is_written);
        }
        if self.guests.is_over(&self.record) {
            if self.ending.is_none() {
                self.end(self.wanted.order.grace);
            }
            self.guests.end(&self.record);
        }
    }

    /// Reads which programs are executed.
    fn read_executing(&mut self) {
        for slot in &mut self.executing {
            let Some(socket) = slot else { continue };
            let mut answer = Vec::new();
            match socket.read_to_end(&mut answer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && answer.is_empty() => continue,
                Ok(_) | Err(_) => *slot = None,
            }
            if !answer.is_empty() {
                let unreadable =
                    |error| ExecFailure::retryable(format!("cannot read answer of trampoline: {error}"));
                let not_executed = serde_json::from_slice(&answer).unwrap_or_else(unreadable);
                self.failure.get_or_insert(not_executed);
            }
        }
        if self.failure.is_some() {
            self.end(Duration::ZERO);
        }
    }

    /// Writes the record to disk, then sends it. A failed write is repeated with the next change; `finish`
    /// insists on the end. Returns whether the record was written.
    fn save(&mut self) -> bool {
        let written = self.directory.write(&self.record);
        let written = written.inspect_err(|error| log(format_args!("cannot write record: {error}")));
        self.send_record();
        written.is_ok()
    }

    fn send_record(&mut self) {
        if let Some(frame) = self.record_frame() {
            self.clients.retain_mut(|client| client.send(&frame));
        }
    }

    /// Frame of the record, once it is on disk: before that, nothing was started.
    fn record_frame(&self) -> Option<Vec<u8>> {
        let is_written = self.record.is_over() || !self.record.processes.is_empty();
        is_written.then(|| supervisor_protocol::frame(&self.record))
    }

    /// Accepts clients and handles their requests.
    fn serve(&mut self) -> LockOwnership {
        let mut looks = self.looks_at().is_some_and(|at| Instant::now() >= at);
        while let Ok((stream, _)) = self.listener.accept() {
            // A new client may have found decay on the disk, which no check sees.
            self.sight.again();
            if self.look_around() == LockOwnership::No {
                return LockOwnership::No;
            }
            let Ok(mut client) = SupervisorClient::new(stream) else { continue };
            if let Some(frame) = self.record_frame() {
                // A client that has disconnected may have sent requests: it is read below, and then dropped.
                client.send(&frame);
            }
            self.clients.push(client);
        }
        let mut requests = Vec::new();
        self.clients.retain_mut(|client| client.read(&mut requests) && client.flush());
        for request in requests {
            match request {
                SupervisorRequest::Status => self.send_record(),
                SupervisorRequest::Stop { grace } => {
                    self.is_to_end = true;
                    self.end(grace);
                }
                SupervisorRequest::Reset { revision } => self.guests.reset(&self.record, revision),
                SupervisorRequest::Look => looks = true,
                SupervisorRequest::Lost { loss } => self.lose(loss),
            }
        }
        if looks { self.look_around() } else { LockOwnership::Yes }
    }

    /// Sleeps until the next event or deadline.
    fn wait(&self, left: &DescendantsLeft) -> io::Result<()> {
        let now = Instant::now();
        let group = (*left == DescendantsLeft::InGroup).then_some(now + GROUP);
        let sweep = self.ending.as_ref().map(|ending| ending.kill_at);
        let next = [group, sweep, self.looks_at(), self.guests.due()].into_iter().flatten().min();
        let timeout = next.map(|at| Timespec::try_from(at.saturating_duration_since(now)));
        let timeout = timeout.transpose().map_err(io::Error::other)?;
        let mut fds =
            vec![PollFd::new(&self.ended, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(self.executing.iter().flatten().map(|socket| PollFd::new(socket, PollFlags::IN)));
        fds.extend(self.captures.iter().map(|capture| PollFd::new(capture, PollFlags::IN)));
        fds.extend(self.guests.sockets().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        fds.extend(self.clients.iter().map(|client| PollFd::new(client, client.awaits())));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Ensures that a record can be sent, even with the ends of all processes.
fn check_size(record: &ProcessesFile) -> Result<(), ExecFailure> {
    let (bytes, max) = (supervisor_protocol::frame(record).len(), supervisor_protocol::MAX_RECORD / 2);
    if bytes <= max {
        return Ok(());
    }
    let count = record.processes.len();
    Err(ExecFailure::permanent(format!(
        "cannot start {count} processes: record has {bytes} bytes, maximum {max}"
    )))
}

fn drain(mut pipe: &UnixStream) {
    let mut chunk = [0; 256];
    while matches!(pipe.read(&mut chunk), Ok(count) if count > 0) {}
}
