//! Observations: what an executor saw. Applied, stale or unchanged; refused only if its sender may not speak for it.
//!
//! Only those that change something stand in the journal.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::bodies;
use crate::id::{ExecutorStoreId, IncarnationId, ObjectId, Position, SessionId, VolumeId};
use crate::name::{ClusterName, ExecutorName, PayloadName, PortName, VolumeName};
use crate::size::{cut, json_bytes};
use crate::spec::{ClusterRuntime, words};
use crate::subject::Subject;

bodies! {
    /// What an executor saw, or what became of its session.
    Observation {
        /// An executor asks for a cluster that has no live session.
        SessionRequested = "session.hello.v1",
        /// A session's lease ran out, or its executor left.
        SessionEnded = "session.over.v1",
        /// Something about an incarnation.
        IncarnationReported = "incarnation.reported.v1",
        /// Something about a volume.
        VolumeReported = "volume.reported.v1",
        /// An object with our labels that the fleet does not want.
        OrphanReported = "object.reported.v1",
    }
}

/// Body of [`Observation::SessionRequested`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequested {
    /// Its scope.
    pub cluster: ClusterName,
    /// Who.
    pub executor: ExecutorName,
    /// What it drives.
    pub runtime: ClusterRuntime,
    /// Where it looks for what runs. Absent in what older builds wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ExecutorStoreId>,
}

words! {
    /// Why a session is over.
    SessionEnd {
        /// No heartbeat for a lease.
        Lost = "lost",
        /// The executor said goodbye.
        Left = "left",
        /// Its cluster is no more.
        Removed = "removed",
    }
}

/// Body of [`Observation::SessionEnded`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionEnded {
    /// Which.
    pub session: SessionId,
    /// Why.
    pub end: SessionEnd,
}

/// Body of [`Observation::IncarnationReported`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IncarnationReported {
    /// Whose report.
    pub session: SessionId,
    /// What was seen.
    pub report: IncarnationReport,
}

/// What was seen of one incarnation, reflecting every command up to `revision`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Report")]
pub struct IncarnationReport {
    /// Which.
    pub incarnation: IncarnationId,
    /// The command's revision that the report reflects.
    pub revision: u32,
    /// What.
    pub saw: ObservedState,
}

/// Body of [`Observation::VolumeReported`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeReported {
    /// Whose report.
    pub session: SessionId,
    /// Which volume it is about.
    pub name: VolumeName,
    /// What was seen.
    pub report: ObjectReport<VolumeId>,
}

/// What was seen of one object, reflecting every command up to `revision`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectReport<Of = ObjectId> {
    /// Which.
    pub object: Of,
    /// The command's revision that the report reflects.
    pub revision: u32,
    /// What.
    pub saw: ObservedState,
}

/// What an executor may see of an incarnation, or of a volume, which has no processes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ObservedState {
    /// The outcome of an ensure: everything that it asks for has been started.
    Ensured {
        /// Each process.
        processes: Vec<ProcessInfo>,
    },
    /// All processes are online. Stands for the outcome of an ensure as well.
    Ready {
        /// Each process.
        processes: Vec<ProcessInfo>,
    },
    /// Not all processes are online.
    NotReady {
        /// Each process.
        processes: Vec<ProcessInfo>,
    },
    /// It has ended, proved by the exits of its processes.
    Ended {
        /// How.
        exit: IncarnationExit,
        /// Each process.
        processes: Vec<ProcessInfo>,
    },
    /// Nothing of it exists, and nothing at or below the revision will ever be carried out: a tombstone.
    Gone,
    /// The command at the revision could not be carried out.
    Failed {
        /// What went wrong.
        message: String,
        /// Whether it is worth trying again.
        hope: RetryClass,
    },
}

/// Maximum size of the processes of one report as JSON, in bytes. A record stores them twice, in the observation and in
/// the fact, with what follows from them.
pub const PROCESSES_BYTES: usize = 320 << 10;
/// Maximum size of a process's address, in bytes, for which a plan has room. An IPv6 address with its port has 47.
pub const ADDRESS_BYTES: usize = 64;
/// Maximum size of a reason or message in a report, in bytes. Facts copy a reason several times.
pub const REASON_BYTES: usize = 1 << 10;

impl ObservedState {
    /// The report with its texts and processes cut to what a record holds. Processes lose their addresses first; an
    /// ending loses its processes then. `None` for anything else that is still too large.
    pub fn shortened(mut self) -> Option<ObservedState> {
        match &mut self {
            ObservedState::Ensured { processes }
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

/// Drops the addresses of processes that are too large. Whether the rest fits.
fn shorten(processes: &mut [ProcessInfo]) -> bool {
    if json_bytes(processes) <= PROCESSES_BYTES {
        return true;
    }
    for process in processes.iter_mut() {
        process.addresses.clear();
    }
    json_bytes(processes) <= PROCESSES_BYTES
}

words! {
    /// Whether a failed command is worth trying again.
    RetryClass {
        /// It may work later.
        Retry = "retry",
        /// It never will.
        Never = "never",
    }
}

/// How an incarnation ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IncarnationExit {
    /// Every process ended by itself with status 0, or all were asked to stop.
    Clean,
    /// A process ended by itself otherwise.
    Failed {
        /// Which, and how.
        reason: String,
    },
}

/// One process of an incarnation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProcessInfo {
    /// Its payload.
    pub payload: PayloadName,
    /// Its number in the payload, from 0.
    pub index: u16,
    /// Its process id, where the runtime has one.
    pub pid: Option<u32>,
    /// Its assigned addresses.
    pub addresses: Vec<PortAddress>,
    /// Whether it is online.
    pub status: ProcessStatus,
}

/// An assigned port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PortAddress {
    /// The port's name.
    pub port: PortName,
    /// `host:port`.
    pub address: String,
}

/// Whether a process is online, and if not, why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessStatus {
    /// Started and ready.
    Online,
    /// Started, not ready yet.
    Initializing,
    /// Started, and its readiness probe fails.
    Unready {
        /// Last error of the probe that held for as many attempts as its failure threshold.
        error: ProbeError,
    },
    /// Was ready, and its liveness probe fails.
    Unresponsive {
        /// Last error of the probe.
        error: ProbeError,
    },
    /// Killed for want of memory, at this death.
    OomKilled,
    /// Ended by itself with this status.
    Exited {
        /// Its exit status.
        code: i32,
    },
    /// Ended by a signal.
    Signaled {
        /// The signal's number.
        signal: i32,
    },
    /// Not known: no supervisor saw its end, or it is in another PID namespace.
    Unknown,
}

/// Why an attempt of a probe failed. A closed set without free text, so that reports do not differ by wording.
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
    /// Its payload and number, as in `web-0`.
    pub fn name(&self) -> String {
        format!("{}-{}", self.payload, self.index)
    }

    /// Why it is not online, if it is not.
    pub fn trouble(&self) -> Option<String> {
        let what = match &self.status {
            ProcessStatus::Online => return None,
            ProcessStatus::Initializing => "is not ready".to_owned(),
            ProcessStatus::Unready { error } => {
                return Some(format!("readiness probe of {}: {error}", self.name()));
            }
            ProcessStatus::Unresponsive { error } => {
                return Some(format!("liveness probe of {} failed: {error}", self.name()));
            }
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
    /// Whose report.
    pub session: SessionId,
    /// What it says it is. Called after what all objects were at first.
    #[serde(rename = "incarnation")]
    pub object: ObjectId,
    /// The highest revision that the executor knows of it.
    pub revision: u32,
    /// The highest position that the executor has seen.
    pub seen: Position,
}

impl Observation {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Observation::SessionRequested(x) => Subject::Cluster(x.cluster.clone()),
            Observation::SessionEnded(x) => Subject::Session(x.session),
            Observation::IncarnationReported(x) => Subject::Incarnation(x.report.incarnation),
            Observation::VolumeReported(x) => Subject::Volume(x.name.clone()),
            Observation::OrphanReported(x) => match x.object {
                ObjectId::Incarnation(id) => Subject::Incarnation(id),
                // Its name is not known here.
                ObjectId::Volume(_) => Subject::Session(x.session),
            },
        }
    }
}
