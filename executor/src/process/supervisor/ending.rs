//! End of everything that a supervisor runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chancery_events::observation::{IncarnationExit, ProcessStatus};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, wait};

use super::super::cgroup::{self, IncarnationCgroup, LimitHits};
use super::super::identity::{ProcStat, ProcessHandle, descendants};
use super::super::incarnation_dir::{ProcessEnd, ProcessEndCause, StartPhase, StartedProcess, remove_groups};
use super::super::log::log;
use super::super::proof::RemainingProcesses;
use super::super::sweeps::SweepDelay;
use super::super::trampoline::ExecFailure;
use super::super::{output, reboot, supervisor_protocol};
use super::{StartReason, Supervisor};

/// Time for which an unreadable control group is retried.
const UNREAD: Duration = Duration::from_secs(5);

/// Shutdown in progress.
pub(super) struct ShutdownState {
    /// Time of the next kill.
    pub(super) kill_at: Instant,
    pause: SweepDelay,
}

impl ShutdownState {
    /// Records that all processes were killed now.
    pub(super) fn swept(&mut self) {
        self.kill_at = Instant::now() + self.pause.length();
        self.pause.lengthen();
    }
}

/// Whether any descendant is left.
#[derive(PartialEq, Debug)]
pub(super) enum DescendantsLeft {
    Some,
    /// Descendants may be left in the control group only: no signal reports their end.
    InGroup,
    None,
}

/// Control group that cannot be read though no child is left.
pub(super) struct UnreadGroup {
    why: String,
    since: Instant,
}

impl UnreadGroup {
    /// Whether the group has been unreadable for longer than the limit: an executor must then prove the end.
    pub(super) fn has_lasted(&self) -> bool {
        self.since.elapsed() > UNREAD
    }
}

/// Returns whether the control group may contain descendants, after `wait` has reported no child.
fn left_behind(populated: Option<&RemainingProcesses>) -> DescendantsLeft {
    match populated {
        Some(RemainingProcesses::Something | RemainingProcesses::Unknown(_)) => DescendantsLeft::InGroup,
        Some(RemainingProcesses::Nothing) | None => DescendantsLeft::None,
    }
}

impl Supervisor {
    /// Reaps all ended processes, adopted descendants included.
    pub(super) fn reap(&mut self) -> DescendantsLeft {
        let mut news = false;
        let left = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => news |= self.note_end(pid, status),
                Ok(None) => break DescendantsLeft::Some,
                Err(rustix::io::Errno::INTR) => {}
                // ECHILD.
                Err(_) => break DescendantsLeft::None,
            }
        };
        // Descendants in another PID namespace leave orphaned processes to its init.
        let populated = || self.record.group.as_ref().map(IncarnationCgroup::populated);
        let populated = if left == DescendantsLeft::None { populated() } else { None };
        let left = if left == DescendantsLeft::None { left_behind(populated.as_ref()) } else { left };
        match populated {
            Some(RemainingProcesses::Unknown(why)) => {
                if self.unread.as_ref().is_none_or(|unread| unread.why != why) {
                    log(format_args!("cannot record end: control group unreadable: {why}"));
                }
                let since = self.unread.take().map_or_else(Instant::now, |unread| unread.since);
                self.unread = Some(UnreadGroup { why, since });
            }
            Some(RemainingProcesses::Something | RemainingProcesses::Nothing) | None => self.unread = None,
        }
        if news {
            // A program that was not executed has not ended unrequested.
            self.read_executing();
            if left != DescendantsLeft::None {
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
            Some(_) => ProcessEndCause::Asked,
            None if self.asked.load(Ordering::Relaxed) => ProcessEndCause::GoingDown,
            None => ProcessEndCause::Itself,
        };
        let Some(process) = self.record.processes.iter_mut().find(|p| p.pid == pid && p.end.is_none()) else {
            return false;
        };
        let hits = process.group.as_deref().map(LimitHits::of).unwrap_or_default();
        process.end = Some(ProcessEnd { status: why(status, cause, process.group.as_deref()), cause, hits });
        true
    }

    /// Starts to end everything, or moves the kill closer.
    pub(super) fn end(&mut self, grace: Duration) {
        let kill_at = Instant::now() + grace.min(supervisor_protocol::LONGEST_GRACE);
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(kill_at);
        } else {
            self.ending = Some(ShutdownState { kill_at, pause: SweepDelay::default() });
            self.sweep(Signal::TERM);
        }
        self.guests.end(&self.record);
    }

    /// Signals all living processes: groups of unreaped processes, whose numbers cannot be reused yet, and
    /// every other descendant and control group member found.
    pub(super) fn sweep(&self, signal: Signal) {
        if let Some(group) = self.record.group.as_ref().filter(|_| signal == Signal::KILL)
            && let Err(error) = group.kill()
        {
            log(format_args!("cannot kill control group {}: {error}", group.path.display()));
        }
        let mut groups = Vec::new();
        for process in self.record.processes.iter().filter(|process| process.end.is_none()) {
            // QEMU would end immediately, without its guest.
            if signal == Signal::TERM && process.guest.is_some() {
                groups.push(process.pid);
                continue;
            }
            if let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, signal);
                groups.push(process.pid);
            }
        }
        let me = getpid().as_raw_nonzero().get().unsigned_abs();
        let all = ProcStat::shown().unwrap_or_default();
        let members = self.record.group.as_ref().map(IncarnationCgroup::pids).unwrap_or_default();
        let in_group = all.iter().filter(|stat| members.contains(&stat.pid)).copied();
        let others = descendants(me, &all).into_iter().chain(in_group).map(|stat| (stat.pid, stat));
        // Each process is signaled once.
        let others: BTreeMap<u32, ProcStat> =
            others.filter(|(_, stat)| !groups.contains(&stat.group)).collect();
        for stat in others.into_values() {
            if let Ok(Some(handle)) = ProcessHandle::open(stat.pid, stat.start_time) {
                handle.signal(signal);
            }
        }
    }

    /// Records and reports that nothing is left.
    pub(super) fn finish(&mut self) {
        // Before the end is reported: its receivers find the whole output.
        for capture in self.captures.drain(..) {
            if let Err(error) = capture.finish() {
                log(format_args!("{error}"));
            }
        }
        // Including groups of processes that failed before they were recorded.
        for error in remove_groups(Some(&self.wanted), Some(&self.record)) {
            log(format_args!("{error}"));
        }
        if self.is_going_down() {
            // If the machine shuts down, this end is not reported, and the incarnation is started again.
            // Otherwise an executor finds that nothing is left, and records the end.
            self.save();
            return;
        }
        self.record.phase = match (self.failure.take(), self.start, self.lost) {
            (Some(ExecFailure { message, retry }), StartReason::Order, _) => {
                StartPhase::Failed { message, retry }
            }
            (Some(ExecFailure { message, .. }), StartReason::Reboot, _) => {
                StartPhase::Ended { exit: IncarnationExit::Failed { reason: reboot::not_again(message) } }
            }
            (None, _, Some(loss)) => {
                StartPhase::Ended { exit: IncarnationExit::Failed { reason: loss.to_string() } }
            }
            (None, _, None) => {
                let errors = |process: &StartedProcess| self.directory.file(&process.outputs()[1]);
                let exit = self.record.exit_with(|process| output::last_line(&errors(process)));
                StartPhase::Ended { exit }
            }
        };
        self.record_end();
        let _ = self.serve();
        self.send_record();
        let _ = std::fs::remove_file("supervisor.sock");
    }

    fn is_going_down(&self) -> bool {
        let mut ends = self.record.processes.iter().filter_map(|process| process.end.as_ref());
        !self.is_to_end
            && !self.record.has_ended_guest()
            && self.lost.is_none()
            && ends.any(|end| end.cause == ProcessEndCause::GoingDown)
    }
}

/// Returns the status, or `OomKilled` if the kernel has counted that.
fn why(status: ProcessStatus, cause: ProcessEndCause, group: Option<&Path>) -> ProcessStatus {
    let killed = ProcessStatus::Signaled { signal: Signal::KILL.as_raw() };
    match group.filter(|_| status == killed && cause == ProcessEndCause::Itself).map(cgroup::was_ended) {
        Some(Ok(true)) => ProcessStatus::OomKilled,
        Some(Err(error)) => {
            log(format_args!("cannot check whether memory ran out: {error}"));
            status
        }
        Some(Ok(false)) | None => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_recorded_only_where_the_group_is_known_to_be_empty() {
        for (populated, wanted) in [
            (None, DescendantsLeft::None),
            (Some(RemainingProcesses::Nothing), DescendantsLeft::None),
            (Some(RemainingProcesses::Something), DescendantsLeft::InGroup),
            (Some(RemainingProcesses::Unknown("no descriptors".into())), DescendantsLeft::InGroup),
        ] {
            assert_eq!(left_behind(populated.as_ref()), wanted, "{populated:?}");
        }
    }
}
