//! Directory of one incarnation, and its durable records.
//!
//! Each record `….json` has a second copy, `….copy` (`state_file`).
//!
//! | file | written by | holds |
//! |---|---|---|
//! | `spec.json` | the executor | the highest target, and the spec; makes the directory ours |
//! | `tombstone.json` | the executor, with `supervisor.lock` | the revision up to which nothing is carried out |
//! | `processes.json` | the holder of `supervisor.lock` | started processes and ends, or a pending restart |
//! | `supervisor.lock`, `supervisor.sock`, `supervisor.log` | the supervisor | |
//! | `ready` | the executor | exists once the incarnation was ready; the number of resets then; a hint, not synced |
//! | `<payload>-<index>.out.1`, `.err.1`, … | the supervisor | output of the process |
//! | `<payload>-<index>.out.pipe`, `.err.pipe` | the process | pipe to the supervisor |
//! | `<payload>-<index>/work` | the process | its working directory |
//! | `<payload>-<index>/qmp.sock`, `serial.sock` | QEMU | its control socket, and the second serial port of its guest |
//!
//! Processes are never started twice from one record.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use chancery_events::id::{IncarnationId, ObjectId};
use chancery_events::name::PayloadName;
use chancery_events::observation::{IncarnationExit, PortAddress, ProcessInfo, ProcessStatus, RetryClass};
use chancery_events::protocol::{IncarnationPayload, IncarnationSpec, ObjectSpec};
use serde::{Deserialize, Serialize};

use super::SupervisorProgram;
use super::capture::OutputLimits;
use super::cgroup::{self, CgroupParent, IncarnationCgroup, LimitHits};
use super::guest::{GuestRecord, GuestStatus, QemuSettings};
use super::identity::{self, BootId, ProcessIdentity};
use super::integrity::FileId;
use crate::executor_store::{CommandRecord, ObjectDirectory, StoreRecord, TombstoneFile};
use crate::reconcile::{KnownObject, ObjectState, ObjectTarget, ReadyHistory};
use crate::state_file::{self, LockAttempt};

/// Specification of an incarnation: `spec.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct SpecFile {
    pub(super) incarnation: IncarnationId,
    pub(super) order: ObjectTarget,
    /// Spec with replica, plan and node; the id identifies the lineage. Absent if it was removed before its
    /// spec was known.
    pub(super) spec: Option<IncarnationSpec>,
    pub(super) program: SupervisorProgram,
    pub(super) output: OutputLimits,
    pub(super) cgroup: Option<CgroupParent>,
    pub(super) files: Option<u64>,
    /// Settings of virtual machines, if the incarnation is one.
    pub(super) qemu: Option<QemuSettings>,
    pub(super) boot: Option<BootId>,
    /// Directory of all volumes.
    pub(super) volumes: PathBuf,
}

impl StoreRecord for SpecFile {
    const NAME: &'static str = "spec";
}

impl CommandRecord for SpecFile {
    fn object(&self) -> ObjectId {
        self.incarnation.into()
    }

    fn order(&self) -> ObjectTarget {
        self.order
    }
}

impl StoreRecord for ProcessesFile {
    const NAME: &'static str = "processes";
}

impl SpecFile {
    /// Returns the control group of a process and its memory limit in bytes, if either is needed.
    pub(super) fn group(
        &self,
        payload: &IncarnationPayload,
        index: u16,
    ) -> Option<(PathBuf, Option<NonZeroU64>)> {
        let parent = self.cgroup.as_ref()?;
        let memory = payload.memory.filter(|_| parent.memory);
        if memory.is_none() && parent.mount.is_none() {
            return None;
        }
        let path = parent.path_of(self.incarnation);
        // With controllers, only groups without subgroups may have processes.
        let path = if parent.memory { path.join(format!("{}-{index}", payload.name)) } else { path };
        Some((path, memory))
    }

    /// Makes the incarnation's control group, if groups can be made and a process needs one.
    pub(super) fn make_group(&self) -> io::Result<Option<IncarnationCgroup>> {
        let payloads = self.spec.iter().flat_map(|spec| &spec.payloads);
        let is_needed = payloads.into_iter().any(|payload| self.group(payload, 0).is_some());
        match self.cgroup.as_ref().filter(|_| is_needed) {
            Some(parent) => parent.make(self.incarnation),
            None => Ok(None),
        }
    }
}

/// Removes every control group of an incarnation, recorded or not, once nothing of it lives. Returns the
/// failures.
pub(super) fn remove_groups(wanted: Option<&SpecFile>, record: Option<&ProcessesFile>) -> Vec<io::Error> {
    let of_wanted = wanted.and_then(|wanted| Some(wanted.cgroup.as_ref()?.path_of(wanted.incarnation)));
    let recorded = record.and_then(|record| Some(record.group.as_ref()?.path.clone()));
    let all: BTreeSet<PathBuf> = of_wanted.into_iter().chain(recorded).collect();
    let remove = |path: &PathBuf| {
        let error = cgroup::remove(path).err()?;
        Some(io::Error::new(error.kind(), format!("cannot remove control group {}: {error}", path.display())))
    };
    let failures = all.iter().filter_map(remove).collect();
    for parent in all.iter().filter_map(|path| path.parent()) {
        // The directory of the executor's groups; fails while any group is left.
        let _ = std::fs::remove_dir(parent);
    }
    failures
}

/// Started processes: `processes.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct ProcessesFile {
    /// Boot in which the pids are valid.
    pub(super) boot: String,
    /// Machine of that boot, if known.
    pub(super) machine: Option<String>,
    /// Directory from which the processes were started, if known. In another directory the record is a copy, and its
    /// processes are not ours.
    pub(super) directory: Option<FileId>,
    /// PID namespace in which the pids are valid.
    pub(super) pid_namespace: u64,
    /// Supervisor that started the processes, then its ancestors at that time.
    pub(super) ancestors: Vec<ProcessIdentity>,
    /// Control group of all processes, if any.
    pub(super) group: Option<IncarnationCgroup>,
    /// Number of processes that the machine had started since its boot when the record was created, if known.
    pub(super) started_before: Option<u64>,
    pub(super) phase: StartPhase,
    pub(super) processes: Vec<StartedProcess>,
}

/// Phase of an incarnation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StartPhase {
    /// Processes exist, and wait to execute their programs, or were released.
    Recorded,
    /// All programs were executed.
    Started,
    /// Pending restart in this boot: no process exists, and the recorded ones are of an earlier boot.
    Again,
    /// End; nothing of the incarnation exists.
    Ended { exit: IncarnationExit },
    /// Failed start; nothing of the incarnation exists.
    Failed { message: String, retry: RetryClass },
}

/// Process that was started.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct StartedProcess {
    pub(super) payload: PayloadName,
    pub(super) index: u16,
    pub(super) pid: u32,
    /// Clock ticks since the boot; with the boot, they distinguish the process from a later one with the same
    /// pid.
    pub(super) start_time: u64,
    /// Control group of the process, if any.
    pub(super) group: Option<PathBuf>,
    pub(super) addresses: Vec<PortAddress>,
    /// Guest of the process, if the process is QEMU.
    pub(super) guest: Option<GuestRecord>,
    pub(super) end: Option<ProcessEnd>,
}

/// End of a process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct ProcessEnd {
    pub(super) status: ProcessStatus,
    pub(super) cause: ProcessEndCause,
    /// Number of times that the process reached its memory limit, if it had a group.
    pub(super) hits: LimitHits,
}

impl ProcessEnd {
    /// Returns an end that nothing observed.
    pub(super) fn unseen(cause: ProcessEndCause) -> ProcessEnd {
        ProcessEnd { status: ProcessStatus::Unknown, cause, hits: LimitHits::default() }
    }
}

/// Cause of a process's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProcessEndCause {
    /// End without a request.
    Itself,
    /// End by a request or kill of the supervisor or the executor.
    Asked,
    /// End without a request, after the supervisor received SIGTERM too: as in a shutdown of the machine.
    GoingDown,
}

impl StartedProcess {
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.payload, self.index)
    }

    /// Names of the process's outputs.
    pub(super) fn outputs(&self) -> [String; 2] {
        ["out", "err"].map(|stream| format!("{}.{stream}", self.name()))
    }
}

impl ProcessesFile {
    /// Creates the record of processes that this process will start, or that were lost.
    pub(super) fn begin(boot: &BootId) -> io::Result<ProcessesFile> {
        Ok(ProcessesFile {
            boot: boot.id.clone(),
            machine: boot.machine.clone(),
            directory: None,
            pid_namespace: identity::pid_namespace()?,
            ancestors: Vec::new(),
            group: None,
            started_before: identity::started_since_boot().ok(),
            phase: StartPhase::Recorded,
            processes: Vec::new(),
        })
    }

    /// Returns the exit that follows from all ends: the first unrequested failure, else an unrequested shutdown of a guest.
    pub(super) fn exit(&self) -> IncarnationExit {
        self.exit_with(|_| None)
    }

    /// Returns the same, with the last words of a process whose guest never ran.
    pub(super) fn exit_with(
        &self,
        last_words: impl Fn(&StartedProcess) -> Option<String>,
    ) -> IncarnationExit {
        let mut exit = IncarnationExit::Clean;
        for process in &self.processes {
            if let Some(guest) = &process.guest
                && let Some(end) = guest.end
            {
                match end.reason() {
                    _ if guest.is_end_requested => {}
                    Some(reason) => {
                        return IncarnationExit::Failed { reason: format!("{} {reason}", process.name()) };
                    }
                    None => exit = IncarnationExit::PoweredOff,
                }
                continue;
            }
            if let Some(ProcessEnd {
                status,
                cause: ProcessEndCause::Itself | ProcessEndCause::GoingDown,
                hits,
            }) = &process.end
            {
                let how = match status {
                    // As after a signal to QEMU.
                    ProcessStatus::Exited { code } if let Some(guest) = &process.guest => {
                        let never_ran = guest.status == GuestStatus::Starting;
                        let words = never_ran.then(|| last_words(process)).flatten();
                        let words = words.map_or_else(String::new, |words| format!(": {words}"));
                        format!("was ended with its virtual machine, status {code}{words}")
                    }
                    ProcessStatus::Exited { code: 0 } => continue,
                    ProcessStatus::Exited { code } => format!("ended with status {code}"),
                    ProcessStatus::Signaled { signal } => format!("was ended by signal {signal}"),
                    ProcessStatus::OomKilled => "was killed: out of memory".to_owned(),
                    ProcessStatus::Unknown
                    | ProcessStatus::Ready
                    | ProcessStatus::Starting
                    | ProcessStatus::Waiting { .. }
                    | ProcessStatus::Unreachable
                    | ProcessStatus::Rebooting
                    | ProcessStatus::Unready { .. }
                    | ProcessStatus::Unresponsive { .. } => "ended with unknown status".to_owned(),
                };
                let hits = if *status == ProcessStatus::OomKilled { LimitHits::default() } else { *hits };
                return IncarnationExit::Failed { reason: format!("{} {how}{hits}", process.name()) };
            }
        }
        exit
    }

    fn guests(&self) -> impl Iterator<Item = &GuestRecord> {
        self.processes.iter().filter_map(|process| process.guest.as_ref())
    }

    /// Whether a process is QEMU with a guest.
    pub(super) fn has_guests(&self) -> bool {
        self.guests().next().is_some()
    }

    /// Number of resets of all guests.
    pub(super) fn resets(&self) -> u32 {
        self.guests().fold(0, |all, guest| all.saturating_add(guest.resets))
    }

    /// Whether every guest, if any, was reset for a target of this or a higher revision. A guest that
    /// has ended first was not reset: while its QEMU ends, the incarnation must not be reported as rebooted.
    pub(super) fn is_reset_for(&self, revision: u32) -> bool {
        self.guests().all(|guest| guest.reset_revision >= revision)
    }

    /// Notes that processes without a recorded end have ended, unobserved and, for all that is known,
    /// unrequested.
    pub(super) fn end_unseen(&mut self) {
        for process in &mut self.processes {
            process.end.get_or_insert(ProcessEnd::unseen(ProcessEndCause::Itself));
        }
    }

    /// Returns the origin of the recorded processes, if the record was found in the directory.
    pub(super) fn origin(&self, directory: Option<FileId>, boot: &BootId) -> RecordOrigin {
        let in_this_boot = self.boot == boot.id;
        let (Some(recorded), Some(found)) = (self.directory, directory) else { return RecordOrigin::Here };
        if found.is(recorded, in_this_boot) {
            RecordOrigin::Here
        } else if !in_this_boot && self.machine.is_some() && self.machine == boot.machine {
            RecordOrigin::EarlierBoot
        } else {
            RecordOrigin::Elsewhere
        }
    }

    /// Whether a guest has ended.
    pub(super) fn has_ended_guest(&self) -> bool {
        self.guests().any(|guest| guest.end.is_some())
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, StartPhase::Ended { .. } | StartPhase::Failed { .. })
    }

    /// Returns the report of each process; `probed` returns the status of a process that has not ended, by
    /// its number.
    pub(super) fn processes(&self, probed: impl Fn(usize) -> ProcessStatus) -> Vec<ProcessInfo> {
        let info = |(number, process): (usize, &StartedProcess)| ProcessInfo {
            payload: process.payload.clone(),
            index: process.index,
            pid: Some(process.pid),
            object: None,
            addresses: process.addresses.clone(),
            status: match (&process.end, process.guest.as_ref().map(|guest| guest.status)) {
                (Some(end), _) => end.status.clone(),
                (None, Some(GuestStatus::Unreachable)) => ProcessStatus::Unreachable,
                (None, Some(GuestStatus::Starting)) => ProcessStatus::Starting,
                (None, _) if self.phase == StartPhase::Started => probed(number),
                (None, _) => ProcessStatus::Starting,
            },
            since: None,
            resets: process.guest.as_ref().map_or(0, |guest| guest.resets),
        };
        self.processes.iter().enumerate().map(info).collect()
    }
}

/// Directory from which the processes of a record were started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordOrigin {
    /// Directory of the record.
    Here,
    /// Another directory, of which this one is a copy: its processes may run, and are supervised from there.
    Elsewhere,
    /// Another directory, in an earlier boot of this machine: the processes are dead.
    EarlierBoot,
}

/// Directory of an incarnation.
#[derive(Clone, Debug)]
pub(super) struct IncarnationDirectory {
    path: PathBuf,
}

impl ObjectDirectory for IncarnationDirectory {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl IncarnationDirectory {
    pub(super) fn at(path: PathBuf) -> IncarnationDirectory {
        IncarnationDirectory { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the files without which running processes could not be adopted.
    pub(super) fn records_of_what_runs(&self) -> [PathBuf; 4] {
        let [a, b] = state_file::copies(&self.record::<SpecFile>());
        let [c, d] = state_file::copies(&self.record::<ProcessesFile>());
        [a, b, c, d]
    }

    /// Tries to acquire `supervisor.lock`.
    pub(super) fn lock(&self) -> io::Result<LockAttempt> {
        state_file::lock(&self.file("supervisor.lock"))
    }

    /// Returns whether the incarnation was ready, and the number of resets of its guests then.
    pub(super) fn was_ready(&self) -> (ReadyHistory, u32) {
        let Ok(file) = state_file::open_plain(File::options().read(true), &self.file("ready")) else {
            return (ReadyHistory::NeverReady, 0);
        };
        let mut text = String::new();
        // A crash may have left the file empty: then the guests are rebooting until they are ready.
        let resets = file.take(16).read_to_string(&mut text).ok().and_then(|_| text.parse().ok());
        (ReadyHistory::Ready, resets.unwrap_or_default())
    }

    /// Removes the note that the incarnation was ready.
    pub(super) fn forget_ready(&self) -> io::Result<()> {
        state_file::if_found(std::fs::remove_file(self.file("ready"))).map(drop)
    }

    /// Notes that the incarnation is ready after this number of resets.
    pub(super) fn note_ready(&self, resets: u32) {
        let mut options = File::options();
        let file =
            state_file::open_plain(options.write(true).create(true).truncate(true), &self.file("ready"));
        if let Err(error) = file.and_then(|mut file| write!(file, "{resets}")) {
            tracing::warn!(%error, directory = %self.path.display(), "cannot record readiness");
        }
    }
}

/// Returns the state that follows from the records.
pub(super) fn present(
    wanted: &SpecFile,
    tombstone: Option<TombstoneFile>,
    record: Option<&ProcessesFile>,
    before: ReadyHistory,
    probed: impl Fn(usize) -> ProcessStatus,
) -> KnownObject {
    let state = match record {
        _ if tombstone.is_some_and(|tombstone| tombstone.covers(&wanted.order)) => ObjectState::Gone,
        None => ObjectState::Accepted,
        Some(record) => {
            let processes = record.processes(probed);
            match &record.phase {
                StartPhase::Recorded => ObjectState::Starting { processes },
                StartPhase::Started => ObjectState::Up { processes, before },
                StartPhase::Again => ObjectState::Starting { processes: Vec::new() },
                StartPhase::Ended { exit } => ObjectState::Ended { exit: exit.clone(), processes },
                StartPhase::Failed { message, retry: retry_class } => {
                    ObjectState::Failed { message: message.clone(), retry: *retry_class }
                }
            }
        }
    };
    KnownObject { order: wanted.order, spec: wanted.spec.clone().map(ObjectSpec::Incarnation), state }
}
