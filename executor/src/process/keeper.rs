//! The keeper: the parent of one incarnation's processes, which outlives the executor.
//!
//! | state | a program executed | not executed | a process ends by itself | asked to stop | all gone |
//! |---|---|---|---|---|---|
//! | recorded | all: → started | → ending, remembers the failure | → ending | → ending | – |
//! | started | – | – | → ending | → ending | – |
//! | ending | – | remembers the failure | its end is noted | the shorter grace counts | `failed` or `ended`, and exits |
//!
//! Asked to end by a signal, it goes on: the machine is going down, most likely, and its processes are asked too. Their
//! ends are noted as such, and it is left to an executor to conclude from them (`reboot`).
//!
//! Synchronous and single-threaded. It starts processes once and never again; its record on disk is always ahead of
//! what it does. "All gone" is proved by the kernel: it is the subreaper, so that while any descendant lives it has
//! children, and when `wait` says that it has none, there is none.
//!
//! What processes write comes through here as well (`capture`).

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chancery_events::observation::{Exit, ProcessStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use super::capture::{Capture, Copied};
use super::client::Client;
use super::folder::{Cause, End, Folder, Phase, Record, Tombstone, Wanted, remove_groups};
use super::group;
use super::identity::{Boot, Handle, Stat, descendants};
use super::reboot;
use super::start::{Waiting, prepare, trampoline};
use super::trampoline::NotExecuted;
use super::wire::{self, Request};
use crate::durable::{Lock, Reader};
use crate::plan::Aim;

/// How long a keeper waits for the lock: an executor holds it for moments while it looks around.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Between two sweeps that kill what is left.
const SWEEP: Duration = Duration::from_millis(50);
/// So often a pipe is emptied before others are looked at: a flood of output must not hold back an order.
const COPIES: usize = 16;

/// Runs as the keeper of the incarnation whose folder is `dir`.
///
/// Exits with success also if there is nothing to keep: another keeper has it, or it must not be started any more.
pub fn keeper_main(dir: &Path) -> ExitCode {
    match keep(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keep {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn keep(dir: &Path) -> io::Result<()> {
    // Fails only for the leader of a group, as when a person starts it from a shell.
    let _ = rustix::process::setsid();
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::set_child_subreaper(Some(getpid()))?;
    let (asked, ignored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    signal_hook::flag::register(SIGTERM, Arc::clone(&asked))?;
    for signal in [SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    // The working folder changes below.
    let folder = Folder::at(std::path::absolute(dir)?);
    let Some(lock) = take_lock(&folder)? else { return Ok(()) };
    let Some(wanted) = folder.wanted(Reader::Another)? else { return Ok(()) };
    let boot = wanted.boot.clone().map_or_else(Boot::of_this_machine, Ok)?;
    let (tombstone, record) = (folder.tombstone(Reader::Another)?, folder.record(Reader::Another)?);
    let Some(start) = may_start(&wanted, tombstone, record.as_ref(), &boot) else { return Ok(()) };
    let (ended, child_ended) = UnixStream::pair()?;
    ended.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGCHLD, child_ended)?;
    // Relative, because the path of a socket may have about 100 bytes and no more.
    std::env::set_current_dir(dir)?;
    let _ = std::fs::remove_file("keeper.sock");
    let listener = UnixListener::bind("keeper.sock")?;
    listener.set_nonblocking(true)?;
    let Boot { id: boot, machine } = boot;
    let record = Record { boot, machine, phase: Phase::Recorded, processes: Vec::new() };
    let mut keeper = Keeper {
        _lock: lock,
        folder,
        wanted,
        start,
        record,
        asked,
        is_to_end: false,
        executing: Vec::new(),
        captures: Vec::new(),
        chunk: Vec::new(),
        failure: None,
        ending: None,
        ended,
        listener,
        clients: Vec::new(),
    };
    keeper.start()?;
    keeper.run()
}

/// Which start it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StartOf {
    /// That for which the incarnation was made: if it fails, it has not run.
    Order,
    /// One after a reboot: if it fails, what ran before has ended with that.
    Reboot,
}

/// Whether anything is to be started, and as what.
fn may_start(
    wanted: &Wanted,
    tombstone: Option<Tombstone>,
    record: Option<&Record>,
    boot: &Boot,
) -> Option<StartOf> {
    if tombstone.is_some_and(|tombstone| tombstone.revision >= wanted.order.revision) {
        return None;
    }
    match record {
        None => wanted.order.may_start().then_some(StartOf::Order),
        Some(record) => {
            let is_intended = record.phase == Phase::Again && record.boot == boot.id;
            (is_intended && wanted.order.aim == Aim::Up).then_some(StartOf::Reboot)
        }
    }
}

fn take_lock(folder: &Folder) -> io::Result<Option<std::fs::File>> {
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        match folder.lock_existing() {
            Ok(Lock::Ours(lock)) => return Ok(Some(lock)),
            Ok(Lock::Theirs) if Instant::now() < patience => std::thread::sleep(Duration::from_millis(10)),
            Ok(Lock::Theirs) => return Ok(None),
            // The folder was forgotten meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

struct Keeper {
    /// First, so that it is free before a client sees its connection end.
    _lock: std::fs::File,
    folder: Folder,
    /// Its grace is that for siblings of a process that ends by itself.
    wanted: Wanted,
    start: StartOf,
    record: Record,
    /// Somebody has sent it SIGTERM: whoever takes the machine down, most likely, who ends its processes as well.
    asked: Arc<AtomicBool>,
    /// An executor has said that everything is to end.
    is_to_end: bool,
    /// For each process, the socket at which it is seen whether its program is executed; none once that is known.
    executing: Vec<Option<UnixStream>>,
    /// What is still written.
    captures: Vec<Capture>,
    chunk: Vec<u8>,
    failure: Option<NotExecuted>,
    ending: Option<Ending>,
    /// Readable when a child has ended.
    ended: UnixStream,
    listener: UnixListener,
    clients: Vec<Client>,
}

struct Ending {
    kill_at: Instant,
}

/// Whether any descendant is left.
#[derive(PartialEq)]
enum Left {
    Some,
    None,
}

impl Keeper {
    /// Starts everything, or notes why it cannot be.
    fn start(&mut self) -> io::Result<()> {
        let wanted = &self.wanted;
        let waiting = prepare(&self.folder, wanted).and_then(|prepared| {
            prepared
                .into_iter()
                .map(|one| trampoline(&self.folder, wanted, one))
                .collect::<Result<Vec<_>, _>>()
        });
        let mut waiting: Vec<Waiting> = match waiting {
            Ok(waiting) => waiting,
            Err(not_executed) => {
                // Trampolines that were started exit, because their sockets are dropped.
                self.failure = Some(not_executed);
                self.end(Duration::ZERO);
                return Ok(());
            }
        };
        self.record.processes = waiting.iter().map(|one| one.started.clone()).collect();
        self.folder.write_record(&self.record)?;
        waiting.iter_mut().for_each(Waiting::release_ports);
        for mut one in waiting {
            // A trampoline that was killed cannot be told; its end is seen in any case.
            let _ = one.socket.write_all(&wire::line(&one.execute));
            one.socket.set_nonblocking(true)?;
            self.executing.push(Some(one.socket));
            self.captures.extend(one.captures);
        }
        Ok(())
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            drain(&self.ended);
            self.read_executing();
            let left = self.reap();
            if left == Left::None {
                self.finish();
                return Ok(());
            }
            if self.record.phase == Phase::Recorded
                && self.ending.is_none()
                && self.executing.iter().all(Option::is_none)
            {
                self.record.phase = Phase::Started;
                self.save();
            }
            if self.ending.as_ref().is_some_and(|ending| Instant::now() >= ending.kill_at) {
                self.sweep(Signal::KILL);
            }
            self.copy_output();
            self.serve();
            self.wait()?;
        }
    }

    /// Passes on what processes wrote.
    fn copy_output(&mut self) {
        let chunk = &mut self.chunk;
        self.captures.retain_mut(|capture| {
            (0..COPIES).map(|_| capture.copy(chunk)).find(|copied| *copied != Copied::More)
                != Some(Copied::Over)
        });
    }

    /// Sees whose programs are executed.
    fn read_executing(&mut self) {
        for slot in &mut self.executing {
            let Some(socket) = slot else { continue };
            let mut answer = Vec::new();
            match socket.read_to_end(&mut answer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && answer.is_empty() => continue,
                Ok(_) | Err(_) => *slot = None,
            }
            if !answer.is_empty() {
                let unreadable = |error| NotExecuted {
                    message: format!("read a trampoline's answer: {error}"),
                    hope: chancery_events::observation::Hope::Retry,
                };
                let not_executed = serde_json::from_slice(&answer).unwrap_or_else(unreadable);
                self.failure.get_or_insert(not_executed);
            }
        }
        if self.failure.is_some() {
            self.end(Duration::ZERO);
        }
    }

    /// Takes in every end, also those of descendants that were left to us.
    fn reap(&mut self) -> Left {
        let mut news = false;
        let left = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => news |= self.note_end(pid, status),
                Ok(None) => break Left::Some,
                Err(rustix::io::Errno::INTR) => {}
                // ECHILD.
                Err(_) => break Left::None,
            }
        };
        if news {
            // A program that was not executed is no end by itself.
            self.read_executing();
            if left == Left::Some {
                self.end(self.wanted.order.grace);
                self.save();
            }
        }
        left
    }

    fn note_end(&mut self, pid: Pid, status: WaitStatus) -> bool {
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        let status = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ProcessStatus::Exited { code },
            (None, Some(signal)) => ProcessStatus::Signaled { signal },
            (None, None) => return false,
        };
        let cause = match &self.ending {
            Some(_) => Cause::Asked,
            None if self.asked.load(Ordering::Relaxed) => Cause::GoingDown,
            None => Cause::Itself,
        };
        let Some(process) = self.record.processes.iter_mut().find(|p| p.pid == pid && p.end.is_none()) else {
            return false;
        };
        process.end = Some(End { status: why(status, cause, process.group.as_deref()), cause });
        true
    }

    /// Begins to end everything, or brings the time of killing nearer.
    fn end(&mut self, grace: Duration) {
        let kill_at = Instant::now() + grace.min(wire::LONGEST_GRACE);
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(kill_at);
        } else {
            self.ending = Some(Ending { kill_at });
            self.sweep(Signal::TERM);
        }
    }

    /// Signals everything that lives: the groups of processes not yet reaped, whose numbers are therefore still
    /// theirs, and every other descendant that can be found.
    fn sweep(&self, signal: Signal) {
        let mut groups = Vec::new();
        for process in self.record.processes.iter().filter(|process| process.end.is_none()) {
            if let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, signal);
                groups.push(process.pid);
            }
        }
        let me = getpid().as_raw_nonzero().get().unsigned_abs();
        let all = Stat::all().unwrap_or_default();
        for stat in descendants(me, &all) {
            if groups.contains(&stat.group) {
                continue;
            }
            if let Ok(Some(handle)) = Handle::open(stat.pid, stat.start_time) {
                handle.signal(signal);
            }
        }
    }

    /// Everything is gone: records that, says it, and is done.
    fn finish(&mut self) {
        // Before the end is told: who hears of it finds all that was written.
        for capture in self.captures.drain(..) {
            if let Err(error) = capture.finish() {
                eprintln!("{error}");
            }
        }
        // Also those of processes that came to nothing before they were recorded.
        for error in remove_groups(Some(&self.wanted), Some(&self.record)) {
            eprintln!("{error}");
        }
        let goes_down = self.record.processes.iter().filter_map(|process| process.end.as_ref());
        if !self.is_to_end && goes_down.into_iter().any(|end| end.cause == Cause::GoingDown) {
            // If the machine goes down, nobody is told of this end, and it is to be started again. If not, an executor
            // finds that nothing lives any more, and records it.
            self.save();
            return;
        }
        self.record.phase = match (self.failure.take(), self.start) {
            (Some(NotExecuted { message, hope }), StartOf::Order) => Phase::Failed { message, hope },
            (Some(NotExecuted { message, .. }), StartOf::Reboot) => {
                Phase::Ended { exit: Exit::Failed { reason: reboot::not_again(message) } }
            }
            (None, _) => Phase::Ended { exit: self.record.exit() },
        };
        // How it ended must not be lost for a disk that is full for a while.
        while let Err(error) = self.folder.write_record(&self.record) {
            eprintln!("write the record: {error}");
            std::thread::sleep(Duration::from_secs(1));
        }
        self.serve();
        self.say();
        let _ = std::fs::remove_file("keeper.sock");
    }

    /// Puts the record on disk, then says it. What cannot be written now is written with the next change; the end
    /// is not given up (see `finish`).
    fn save(&mut self) {
        if let Err(error) = self.folder.write_record(&self.record) {
            eprintln!("write the record: {error}");
        }
        self.say();
    }

    /// Sees to it that what stands on the disk is what is known here, though the disk or somebody altered it.
    fn check_record(&self) {
        let stands = match self.folder.record(Reader::Writer) {
            Ok(stands) => stands,
            Err(error) => {
                eprintln!("{error}");
                None
            }
        };
        // Before it is first written there are no processes yet.
        if stands.as_ref() != Some(&self.record) && !self.record.processes.is_empty() {
            eprintln!("the record is not as it was written, and is written again");
            if let Err(error) = self.folder.write_record(&self.record) {
                eprintln!("write the record: {error}");
            }
        }
    }

    fn say(&mut self) {
        let line = wire::line(&self.record);
        self.clients.retain_mut(|client| client.say(&line));
    }

    /// Takes in new clients, and what clients ask.
    fn serve(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            self.check_record();
            self.clients.extend(Client::greet(stream, &wire::line(&self.record)));
        }
        let mut requests = Vec::new();
        self.clients.retain_mut(|client| client.read(&mut requests));
        for request in requests {
            match request {
                Request::Status => self.say(),
                Request::Stop { grace } => {
                    self.is_to_end = true;
                    self.end(grace);
                }
            }
        }
    }

    /// Sleeps until something may have happened.
    fn wait(&self) -> io::Result<()> {
        let timeout = self.ending.as_ref().map(|ending| {
            let until = ending.kill_at.saturating_duration_since(Instant::now());
            if until.is_zero() { SWEEP } else { until }
        });
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut fds =
            vec![PollFd::new(&self.ended, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(self.executing.iter().flatten().map(|socket| PollFd::new(socket, PollFlags::IN)));
        fds.extend(self.captures.iter().map(|capture| PollFd::new(capture, PollFlags::IN)));
        fds.extend(self.clients.iter().map(|client| PollFd::new(client, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The status, as want of memory if the kernel has counted that.
fn why(status: ProcessStatus, cause: Cause, group: Option<&Path>) -> ProcessStatus {
    let killed = ProcessStatus::Signaled { signal: Signal::KILL.as_raw() };
    match group.filter(|_| status == killed && cause == Cause::Itself).map(group::was_ended) {
        Some(Ok(true)) => ProcessStatus::OomKilled,
        Some(Err(error)) => {
            eprintln!("look whether there was want of memory: {error}");
            status
        }
        Some(Ok(false)) | None => status,
    }
}

fn drain(mut pipe: &UnixStream) {
    let mut chunk = [0; 256];
    while matches!(pipe.read(&mut chunk), Ok(count) if count > 0) {}
}
