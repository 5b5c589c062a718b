//! Unsupervised processes: their supervisor died. They are adopted by identity, watched, and ended like
//! others. Only their exit status stays unknown, because the parent that could have read it is dead.
//!
//! Descendants are found by the incarnation's control group, or else by a search of all processes. The search
//! may leave it unknown whether anything is left (`proof`). Then no end is recorded, and the search is
//! repeated until an end is proved.
//!
//! Processes that were started in another PID namespace are not adopted: their pids are invalid here.
//!
//! The output of unsupervised processes is copied here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use chancery_events::observation::{IncarnationExit, RetryClass};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::capture::{self, OutputCapture, PipeRead};
use super::guest::{GuestRecord, GuestWatch};
use super::identity::{BootId, ProcessHandle};
use super::incarnation_dir::{
    IncarnationDirectory, ProcessEnd, ProcessEndCause, ProcessesFile, SpecFile, StartPhase, remove_groups,
};
use super::integrity::FileId;
use super::proof::{self, ProcessSearch, RemainingProcesses, StartedIn};
use super::reader::OutputReader;
use super::supervisor_protocol::LONGEST_GRACE;
use super::sweeps::SweepDelay;
use super::trampoline::retry_class;
use crate::executor_store::ObjectStore as _;
use crate::state_file::LockAttempt;

/// Time for trampolines of a dead supervisor to exit; a process that lives afterwards was released.
const TRAMPOLINES_GONE: Duration = Duration::from_secs(1);
/// Interval in which guests of virtual machines are asked.
const GUESTS: Duration = Duration::from_millis(250);
/// Maximum number of bytes of output that are searched for an awaited text.
const KEPT: usize = 1 << 20;
/// Interval of searches for what cannot be found now.
const SEARCH: Duration = Duration::from_secs(1);
/// Time until an unprovable end is reported: processes that end meanwhile may allow the proof.
const DOUBT: Duration = Duration::from_secs(3);

/// Unsupervised processes of one incarnation.
#[derive(Debug)]
pub(super) struct UnsupervisedProcesses {
    /// Lock that keeps supervisors from starting anything. `None` if the directory is lost.
    lock: Option<File>,
    directory: IncarnationDirectory,
    /// Record at the adoption.
    record: ProcessesFile,
    origin: StartedIn,
    /// Time since which it is unknown whether anything is left.
    doubted: Option<Instant>,
    living: Vec<(usize, AsyncFd<ProcessHandle>)>,
    captures: Vec<AsyncFd<OutputCapture>>,
    guests: GuestWatch,
    /// Time at which the guests are asked next.
    guests_at: Instant,
    chunk: Vec<u8>,
    kill_at: Option<Instant>,
    pause: SweepDelay,
    /// Time of the next check, even if no process died.
    next: Option<Instant>,
}

impl UnsupervisedProcesses {
    /// Adopts recorded processes that live; notes that the others ended.
    pub(super) fn adopt(
        lock: Option<File>,
        incarnation_directory: IncarnationDirectory,
        wanted: Option<&SpecFile>,
        record: &mut ProcessesFile,
        boot: &BootId,
    ) -> io::Result<UnsupervisedProcesses> {
        let origin = match StartedIn::of(record, boot)? {
            // A pending restart names processes of an earlier boot.
            StartedIn::Here if record.phase == StartPhase::Again => StartedIn::OtherBoot,
            origin => origin,
        };
        let output = wanted.map(|wanted| wanted.output).unwrap_or_default();
        let (mut living, mut captures) = (Vec::new(), Vec::new());
        for (number, process) in record.processes.iter_mut().enumerate() {
            if process.end.is_some() || origin == StartedIn::OtherNamespace {
                continue;
            }
            match ProcessHandle::open(process.pid, process.start_time)? {
                Some(handle) if origin == StartedIn::Here => {
                    living.push((number, watched(handle)?));
                    for name in process.outputs() {
                        let base = incarnation_directory.file(&name);
                        match capture::take_over(&base, output) {
                            Ok(mut capture) => {
                                if name == process.outputs()[0] {
                                    await_line(&mut capture, process.guest.as_mut(), number, &base);
                                }
                                captures.push(watched(capture)?);
                            }
                            Err(error) if retry_class(&error) == RetryClass::Retryable => return Err(error),
                            // A process whose output has another destination is adopted all the same.
                            Err(error) => {
                                tracing::warn!(
                                    %error,
                                    output = name,
                                    "cannot capture output of unsupervised process"
                                );
                            }
                        }
                    }
                }
                Some(_) | None => process.end = Some(ProcessEnd::unseen(ProcessEndCause::Itself)),
            }
        }
        let is_new = record.phase == StartPhase::Recorded || origin == StartedIn::OtherNamespace;
        let guests = match origin {
            StartedIn::Here => GuestWatch::of(record, incarnation_directory.path()),
            StartedIn::OtherBoot | StartedIn::OtherNamespace => GuestWatch::default(),
        };
        let next = is_new.then(|| Instant::now() + TRAMPOLINES_GONE);
        Ok(UnsupervisedProcesses {
            lock,
            directory: incarnation_directory,
            record: record.clone(),
            origin,
            doubted: None,
            living,
            captures,
            guests,
            guests_at: Instant::now(),
            chunk: Vec::new(),
            kill_at: None,
            pause: SweepDelay::default(),
            next,
        })
    }

    /// Waits for a death, returned as the number in the record, or until [`UnsupervisedProcesses::go_on`] is
    /// due. Safe to cancel.
    pub(super) async fn next(&mut self) -> Option<usize> {
        let dead = std::future::poll_fn(|context| {
            let chunk = &mut self.chunk;
            self.captures.retain_mut(|capture| {
                // The runtime bounds how often this is ready in one poll.
                while let Poll::Ready(Ok(mut ready)) = capture.poll_read_ready_mut(context) {
                    match ready.get_inner_mut().copy(chunk) {
                        PipeRead::More => {}
                        PipeRead::Nothing => ready.clear_ready(),
                        PipeRead::Over => return false,
                    }
                }
                true
            });
            for (place, (_, fd)) in self.living.iter().enumerate() {
                if fd.poll_read_ready(context).is_ready() {
                    return Poll::Ready(place);
                }
            }
            Poll::Pending
        });
        let guests = (!self.guests.is_empty()).then_some(self.guests_at);
        let next = self.next.into_iter().chain(guests).min();
        tokio::select! {
            place = dead => Some(self.living.swap_remove(place).0),
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => None,
        }
    }

    /// Records a death, and does what is due.
    pub(super) fn go_on(&mut self, dead: Option<usize>, record: &mut ProcessesFile, grace: Duration) {
        let cause = if self.kill_at.is_some() { ProcessEndCause::Asked } else { ProcessEndCause::Itself };
        if let Some(process) = dead.and_then(|number| record.processes.get_mut(number)) {
            process.end.get_or_insert(ProcessEnd::unseen(cause));
        }
        let is_due = self.guests.is_empty() || self.next.is_some_and(|next| Instant::now() >= next);
        self.advance_guests(record, grace);
        if dead.is_none() && !is_due {
            return;
        }
        if record.processes.iter().any(|process| process.end.is_some()) {
            self.end(grace);
        }
        let now = Instant::now();
        if let Some(kill_at) = self.kill_at {
            if now >= kill_at {
                self.signal_all(Signal::KILL);
                if dead.is_none() {
                    self.pause.lengthen();
                }
            }
            self.next = Some(self.look_again(now));
        } else {
            if record.phase == StartPhase::Recorded {
                record.phase = StartPhase::Started;
            }
            self.next = (self.origin == StartedIn::OtherNamespace).then(|| now + SEARCH);
        }
    }

    /// Reads what QEMU reports of the guests. The end of a guest is written to disk, and only then its QEMU ends.
    fn advance_guests(&mut self, record: &mut ProcessesFile, grace: Duration) {
        self.guests_at = Instant::now() + GUESTS;
        let found = self.captures.iter_mut().filter_map(|capture| capture.get_mut().take_found());
        if self.guests.note_lines(record, found)
            && let Err(error) = self.directory.write(record)
        {
            tracing::warn!(%error, directory = %self.directory.path().display(), "cannot record line of guest");
        }
        if self.guests.advance(record) {
            let written = self.directory.write(record);
            if let Err(error) = &written {
                tracing::warn!(%error, directory = %self.directory.path().display(), "cannot record state of guest");
            }
            self.guests.note_written(written.is_ok());
        }
        if self.guests.is_over(record) {
            if self.kill_at.is_none() {
                self.end(grace);
            }
            self.guests.end(record);
        }
    }

    /// Time of the next check during a shutdown: deaths of watched processes wake this task, other deaths are
    /// searched for.
    fn look_again(&self, now: Instant) -> Instant {
        let kill_at = self.kill_at.unwrap_or(now);
        if self.doubted.is_some_and(|since| now > since + DOUBT) {
            return now + SEARCH;
        }
        if self.living.is_empty() || kill_at <= now { now + self.pause.length() } else { kill_at }
    }

    /// Resets each guest that was not reset for this or a higher revision.
    pub(super) fn reset(&mut self, record: &ProcessesFile, revision: u32) {
        self.guests.reset(record, revision);
        self.guests_at = Instant::now();
    }

    /// Starts to end everything, or moves the kill closer.
    pub(super) fn end(&mut self, grace: Duration) {
        let kill_at = Instant::now() + grace.min(LONGEST_GRACE);
        if let Some(at) = &mut self.kill_at {
            *at = kill_at.min(*at);
        } else {
            self.kill_at = Some(kill_at);
            if self.guests.is_empty() {
                self.signal_all(Signal::TERM);
            }
            self.guests.end(&self.record);
            self.guests_at = Instant::now();
        }
        self.next = Some(self.look_again(Instant::now()));
    }

    /// Acquires the lock again, if its file was removed: it excludes no process then.
    pub(super) fn check_lock(&mut self) -> io::Result<()> {
        let Some(lock) = &self.lock else { return Ok(()) };
        if FileId::of(&self.directory.file("supervisor.lock"))? == Some(FileId::of_file(lock)?) {
            return Ok(());
        }
        match self.directory.lock()? {
            LockAttempt::Acquired(lock) => self.lock = Some(lock),
            // A supervisor checks whether it may start, and finds that it must not.
            LockAttempt::HeldElsewhere => {
                return Err(io::Error::other("cannot acquire lock: another process has it"));
            }
        }
        Ok(())
    }

    /// Returns what is left. `RemainingProcesses::Unknown` is returned only once it has lasted.
    pub(super) fn rest(&mut self) -> RemainingProcesses {
        if !self.living.is_empty() {
            return RemainingProcesses::Something;
        }
        let rest = self.search().rest;
        let now = Instant::now();
        match &rest {
            RemainingProcesses::Unknown(_) if now < *self.doubted.get_or_insert(now) + DOUBT => {
                return RemainingProcesses::Something;
            }
            RemainingProcesses::Unknown(_) => {}
            RemainingProcesses::Nothing | RemainingProcesses::Something => self.doubted = None,
        }
        rest
    }

    /// Whether the pids of the record are invalid here.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.origin == StartedIn::OtherNamespace
    }

    /// Copies the last output, once nothing lives any more.
    pub(super) fn finish_output(&mut self) {
        for capture in self.captures.drain(..) {
            if let Err(error) = capture.into_inner().finish() {
                tracing::warn!(
                    %error,
                    directory = %self.directory.path().display(),
                    "cannot copy last output of unsupervised process"
                );
            }
        }
    }

    fn signal_all(&self, signal: Signal) {
        if self.origin == StartedIn::OtherBoot {
            return;
        }
        for (_, fd) in &self.living {
            fd.get_ref().signal(signal);
        }
        if let Some(group) = self.record.group.as_ref().filter(|_| signal == Signal::KILL)
            && let Err(error) = group.kill()
        {
            tracing::warn!(%error, group = %group.path.display(), "cannot kill control group");
        }
        for handle in self.search().ours {
            handle.signal(signal);
        }
    }

    /// Searches all processes. The search takes long on a large host; probes run on the same threads.
    fn search(&self) -> ProcessSearch {
        tokio::task::block_in_place(|| proof::search(&self.directory, &self.record, self.origin))
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe, for types that may lie about their descriptor; these own theirs"
)]
fn watched<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}

/// Records the end of the incarnation, and removes its control groups. The caller must hold the lock.
pub(super) fn finish(
    directory: &IncarnationDirectory,
    wanted: Option<&SpecFile>,
    record: &mut ProcessesFile,
    exit: IncarnationExit,
) -> io::Result<()> {
    for error in remove_groups(wanted, Some(record)) {
        tracing::warn!(%error, directory = %directory.path().display(), "control group left in place");
    }
    record.phase = StartPhase::Ended { exit };
    directory.write(record)
}

/// Awaits the text of a guest. A supervisor that died may have read it and not recorded that: unless the guest was reset, the end of
/// the output shows it.
fn await_line(capture: &mut OutputCapture, guest: Option<&mut GuestRecord>, number: usize, base: &Path) {
    let Some(guest) = guest else { return };
    let (is_awaited, resets) = (guest.awaits_line(), guest.resets);
    let Some(line) = &mut guest.line else { return };
    capture.await_text(number, &line.text);
    if is_awaited && resets == 0 {
        let kept = OutputReader::last(base, u64::MAX).and_then(|mut reader| reader.read(KEPT));
        let text = line.text.as_bytes();
        line.is_seen = kept.is_ok_and(|kept| kept.windows(text.len().max(1)).any(|window| window == text));
    }
}
