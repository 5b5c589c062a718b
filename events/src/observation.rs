//! Observations: reports of executors, and ends of sessions.
//!
//! An observation is applied, stale or unchanged. It is refused only if its sender must not report about its
//! subject. The journal stores only observations that change something.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::bodies;
use crate::id::{ExecutorStoreId, IncarnationId, ObjectId, Position, SessionId, VolumeId};
use crate::name::{ClusterName, ExecutorName, PayloadName, PortName, VolumeName};
use crate::size::{cut, json_bytes};
use crate::spec::{ClusterRuntime, words};
use crate::subject::Subject;
use crate::time::Time;

bodies! {
    /// Report of an executor, or end of its session.
    Observation {
        /// Executor requests a cluster that has no live session.
        SessionRequested = "session.requested.v1",
        /// Session ended: its lease expired, or its executor left.
        SessionEnded = "session.ended.v1",
        /// Observed state of an incarnation.
        IncarnationReported = "incarnation.reported.v1",
        /// Observed state of a volume.
        VolumeReported = "volume.reported.v1",
        /// Object with labels of this system that the fleet does not want.
        OrphanReported = "orphan.reported.v1",
    }
}

/// Body of [`Observation::SessionRequested`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequested {
    /// Cluster that the executor requests.
    pub cluster: ClusterName,
    /// Name of the executor.
    pub executor: ExecutorName,
    /// Runtime that the executor drives.
    pub runtime: ClusterRuntime,
    /// Id of the executor store.
    pub store: ExecutorStoreId,
}

words! {
    /// Reason why a session ended.
    SessionEnd {
        /// No heartbeat for the duration of a lease.
        Expired = "expired",
        /// Executor sent a goodbye.
        Left = "left",
        /// Cluster of the session was deleted.
        ClusterDeleted = "cluster_deleted",
    }
}

/// Body of [`Observation::SessionEnded`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionEnded {
    /// Session that ended.
    pub session: SessionId,
    /// Reason of the end.
    pub end: SessionEnd,
}

/// Body of [`Observation::IncarnationReported`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IncarnationReported {
    /// Session of the reporting executor.
    pub session: SessionId,
    /// Report about the incarnation.
    pub report: IncarnationReport,
}

/// Observed state of one incarnation, reflecting every command up to `revision`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Report")]
pub struct IncarnationReport {
    /// Incarnation that the report is about.
    pub incarnation: IncarnationId,
    /// Highest revision of a command that the report reflects.
    pub revision: u32,
    /// Observed state of the incarnation.
    pub observed: ObservedState,
}

/// Body of [`Observation::VolumeReported`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeReported {
    /// Session of the reporting executor.
    pub session: SessionId,
    /// Name of the volume.
    pub name: VolumeName,
    /// Report about the volume.
    pub report: ObjectReport<VolumeId>,
}

/// Observed state of one object, reflecting every command up to `revision`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectReport<Of = ObjectId> {
    /// Object that the report is about.
    pub object: Of,
    /// Highest revision of a command that the report reflects.
    pub revision: u32,
    /// Observed state of the object.
    pub observed: ObservedState,
}

/// Observed state of an incarnation, or of a volume, which has no processes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ObservedState {
    /// Outcome of `ensure`: everything that it requests was started.
    Started {
        /// All processes of the incarnation.
        processes: Vec<ProcessInfo>,
    },
    /// All processes are ready. Also counts as the outcome of `ensure`.
    Ready {
        /// All processes of the incarnation.
        processes: Vec<ProcessInfo>,
    },
    /// At least one process is not ready.
    NotReady {
        /// All processes of the incarnation.
        processes: Vec<ProcessInfo>,
    },
    /// Incarnation ended, as the exits of its processes prove.
    Ended {
        /// Result of the incarnation.
        exit: IncarnationExit,
        /// All processes of the incarnation.
        processes: Vec<ProcessInfo>,
    },
    /// Tombstone: the object does not exist, and no command at or below the revision will be carried out.
    Gone,
    /// Command at the revision failed.
    Failed {
        /// Error message, for people.
        message: String,
        /// Whether another attempt may succeed.
        retry: RetryClass,
    },
}

/// Maximum size of the processes of one report as JSON, in bytes. A record stores them twice, in the observation and in
/// the fact, with what follows from them.
pub const PROCESSES_BYTES: usize = 320 << 10;
/// Maximum size of a process's address, in bytes, for which a plan has room. An IPv6 address with its port has 47.
pub const ADDRESS_BYTES: usize = 64;
/// Maximum size of the name of a runtime's object, in bytes.
pub const OBJECT_NAME_BYTES: usize = 63;
/// Maximum size of the id that a runtime gives an object, in bytes.
pub const OBJECT_UID_BYTES: usize = 36;
/// Maximum size of the reason for which a process waits, in bytes.
pub const WAITING_REASON_BYTES: usize = 64;
/// Maximum size of the message about a process that waits, in bytes.
pub const WAITING_MESSAGE_BYTES: usize = 256;
/// Maximum size of a reason or message in a report, in bytes. Facts copy a reason several times.
pub const REASON_BYTES: usize = 1 << 10;

impl ObservedState {
    /// Returns the report with its texts and processes cut to what a record holds. Processes first lose the messages
    /// about why they wait, then their addresses; then an ended incarnation loses its processes. `None` if any
    /// other report is still too large.
    pub fn shortened(mut self) -> Option<ObservedState> {
        match &mut self {
            ObservedState::Started { processes }
            | ObservedState::Ready { processes }
            | ObservedState::NotReady { processes } => {
                if !shorten(processes) {
                    return None;
                }
            }
            ObservedState::Ended { exit, processes } => {
                if let IncarnationExit::Failed { reason } = exit {
                    cut(reason, REASON_BYTES);
                }
                if !shorten(processes) {
                    processes.clear();
                }
            }
            ObservedState::Failed { message, .. } => cut(message, REASON_BYTES),
            ObservedState::Gone => {}
        }
        Some(self)
    }
}

/// Drops messages, then addresses, of processes that are too large. Whether the processes then fit.
fn shorten(processes: &mut [ProcessInfo]) -> bool {
    for process in processes.iter_mut() {
        if let ProcessStatus::Waiting { reason, message } = &mut process.status {
            cut(reason, WAITING_REASON_BYTES);
            cut(message, WAITING_MESSAGE_BYTES);
        }
        if let Some(object) = &mut process.object {
            cut(&mut object.name, OBJECT_NAME_BYTES);
            cut(&mut object.uid, OBJECT_UID_BYTES);
        }
    }
    if json_bytes(processes) <= PROCESSES_BYTES {
        return true;
    }
    for process in processes.iter_mut() {
        if let ProcessStatus::Waiting { message, .. } = &mut process.status {
            message.clear();
        }
    }
    if json_bytes(processes) <= PROCESSES_BYTES {
        return true;
    }
    for process in processes.iter_mut() {
        process.addresses.clear();
    }
    json_bytes(processes) <= PROCESSES_BYTES
}

words! {
    /// Whether another attempt of a failed command may succeed.
    RetryClass {
        /// Another attempt may succeed.
        Retryable = "retryable",
        /// No attempt can succeed.
        Permanent = "permanent",
    }
}

/// Result of an incarnation that ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IncarnationExit {
    /// Every process exited with status 0, or all processes were requested to stop.
    Clean,
    /// The guest of a virtual machine powered itself off without a request to stop, and no process failed.
    PoweredOff,
    /// A process ended without a request to stop, and not with status 0.
    Failed {
        /// Process that failed, and its exit status or signal.
        reason: String,
    },
}

/// Process of an incarnation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProcessInfo {
    /// Payload of the process.
    pub payload: PayloadName,
    /// Number of the process in its payload, from 0.
    pub index: u16,
    /// Process id, if the runtime has one.
    pub pid: Option<u32>,
    /// Object of the runtime that contains the process, if the runtime has such objects instead of process ids.
    pub object: Option<RuntimeObject>,
    /// Assigned addresses of the process.
    pub addresses: Vec<PortAddress>,
    /// Status of the process.
    pub status: ProcessStatus,
    /// Number of resets of the process's guest since its start, as far as they were observed. Resets in quick succession count as
    /// one. 0 for a process that is no guest.
    #[serde(default)]
    pub resets: u32,
    /// Time at which the status started by the runtime's own clock, if the runtime records one.
    pub since: Option<Time>,
}

/// Object of a runtime, such as a pod.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RuntimeObject {
    /// Name of the object in the runtime, at most 63 bytes.
    pub name: String,
    /// Id that the runtime gave the object, at most 36 bytes. No other object of the runtime ever has the same id.
    pub uid: String,
}

/// Assigned address of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PortAddress {
    /// Name of the port.
    pub port: PortName,
    /// Address as `host:port`.
    pub address: String,
}

/// Status of a process: ready, or the reason why not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessStatus {
    /// Process started and is ready.
    Ready,
    /// Process started and is not ready yet.
    Starting,
    /// Process started, and its readiness probe fails.
    Unready {
        /// Last probe error that lasted for as many attempts as the failure threshold.
        error: ProbeError,
    },
    /// Process was ready, and its liveness probe fails.
    Unresponsive {
        /// Last error of the probe.
        error: ProbeError,
    },
    /// Runtime has accepted the process and cannot start it at present, as when its image cannot be pulled.
    Waiting {
        /// Reason as the runtime names it, at most 64 bytes: `ErrImagePull`.
        reason: String,
        /// Message of the runtime, at most 256 bytes, for people. Empty if there is none.
        message: String,
    },
    /// Machine of the process does not report to the runtime: the process is neither ready nor proved to have ended.
    Unreachable,
    /// Guest of a virtual machine was reset, and is not ready again.
    Rebooting,
    /// Process was killed because memory ran out.
    OomKilled,
    /// Process exited with a status.
    Exited {
        /// Exit status.
        code: i32,
    },
    /// Process was ended by a signal.
    Signaled {
        /// Number of the signal.
        signal: i32,
    },
    /// Status is unknown: no supervisor saw the end of the process, or it is in another PID namespace.
    Unknown,
}

/// Reason why an attempt of a probe failed. A closed set without free text, so that reports do not differ by
/// wording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeError {
    /// No program listens at the port.
    Refused,
    /// No answer within the probe's timeout.
    Timeout,
    /// The connection ended before an answer.
    Closed,
    /// The answer is not HTTP.
    NotHttp,
    /// The answer has a status other than 2xx.
    Status {
        /// The HTTP status.
        code: u16,
    },
    /// The connection could not be made for another reason.
    Unreachable,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::Refused => f.write_str("connection refused"),
            ProbeError::Timeout => f.write_str("timeout"),
            ProbeError::Closed => f.write_str("connection closed without an answer"),
            ProbeError::NotHttp => f.write_str("answer is not HTTP"),
            ProbeError::Status { code } => write!(f, "status {code}"),
            ProbeError::Unreachable => f.write_str("cannot connect"),
        }
    }
}

impl ProcessInfo {
    /// Payload and number of the process, as in `web-0`.
    pub fn name(&self) -> String {
        format!("{}-{}", self.payload, self.index)
    }

    /// Reason why the process is not ready; `None` if it is ready.
    pub fn trouble(&self) -> Option<String> {
        let what = match &self.status {
            ProcessStatus::Ready => return None,
            ProcessStatus::Starting => "is not ready".to_owned(),
            ProcessStatus::Unready { error } => {
                return Some(format!("readiness probe of {}: {error}", self.name()));
            }
            ProcessStatus::Unresponsive { error } => {
                return Some(format!("liveness probe of {} failed: {error}", self.name()));
            }
            ProcessStatus::Waiting { reason, message } if message.is_empty() => format!("waits: {reason}"),
            ProcessStatus::Waiting { reason, message } => format!("waits: {reason}: {message}"),
            ProcessStatus::Unreachable => "is unreachable: its machine does not report".to_owned(),
            ProcessStatus::Rebooting => "was reset, and is not ready again".to_owned(),
            ProcessStatus::OomKilled => "was killed for want of memory".to_owned(),
            ProcessStatus::Exited { code } => format!("exited with status {code}"),
            ProcessStatus::Signaled { signal } => format!("was ended by signal {signal}"),
            ProcessStatus::Unknown => "is unknown: no supervisor saw its end".to_owned(),
        };
        Some(format!("process {} of {} {what}", self.index, self.payload))
    }
}

/// Body of [`Observation::OrphanReported`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrphanReported {
    /// Session of the reporting executor.
    pub session: SessionId,
    /// Id in the object's labels.
    pub object: ObjectId,
    /// Highest revision of the object that the executor knows.
    pub revision: u32,
    /// Highest position that the executor has seen.
    pub seen: Position,
}

impl Observation {
    /// Entity that the observation is about.
    pub fn subject(&self) -> Subject {
        match self {
            Observation::SessionRequested(x) => Subject::Cluster(x.cluster.clone()),
            Observation::SessionEnded(x) => Subject::Session(x.session),
            Observation::IncarnationReported(x) => Subject::Incarnation(x.report.incarnation),
            Observation::VolumeReported(x) => Subject::Volume(x.name.clone()),
            Observation::OrphanReported(x) => match x.object {
                ObjectId::Incarnation(id) => Subject::Incarnation(id),
                // The name of the volume is not known here.
                ObjectId::Volume(_) => Subject::Session(x.session),
            },
        }
    }
}
