//! Payloads of plans, with their ports, volumes and processes.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MatchComparator, PortProtocol};
use crate::amount::Resources;
use crate::name::{
    CapabilityName, CapabilityType, KeyName, PayloadName, PortName, ReplicaName, StorageClass, VolumeName,
};

/// A condition on a node's capabilities of one type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilityMatcher {
    /// The type whose capabilities are compared.
    #[serde(rename = "type")]
    pub kind: CapabilityType,
    /// Comparison of the node's capabilities with the named ones.
    pub comparator: MatchComparator,
    /// Names of the capabilities to compare with.
    pub names: Vec<CapabilityName>,
}

/// A port of a payload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PayloadPort {
    /// Name of the port, for `${port.NAME}`.
    pub name: PortName,
    /// Protocol of the port.
    pub protocol: PortProtocol,
    /// The number inside the run, where the runtime has an inside; processes are assigned free ones.
    pub port: u16,
}

/// Storage that a payload needs on its node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeClaim {
    /// The volume, if it is one with a name of its own, which plans may hand to each other: it has one user at a time.
    /// Without, each replica has its own.
    #[serde(default)]
    pub volume: Option<VolumeName>,
    /// Action on a replica's own volume when the replica is deleted; `keep` if absent.
    #[serde(default)]
    pub on_delete: VolumeDeletion,
    /// Storage class of the volume.
    pub class: StorageClass,
    /// Capacity of the volume, in bytes.
    pub capacity: u64,
    /// Path at which the payload sees the volume.
    pub mount: String,
}

words! {
    /// The action on a replica's own volume when the replica is deleted.
    #[derive(Default)]
    VolumeDeletion {
        /// The volume is kept, with all that is in it, until it is deleted by request. The default.
        #[default]
        Keep = "keep",
        /// The volume is destroyed, once nothing can use it any more.
        Destroy = "destroy",
    }
}

impl VolumeClaim {
    /// The name of the volume that it is for a payload of the replica.
    pub fn name(&self, replica: &ReplicaName, payload: &PayloadName) -> VolumeName {
        self.volume.clone().unwrap_or_else(|| VolumeName::of(replica, payload, &self.mount))
    }
}

/// The variable in which a process is told of a port: `PORT_HTTP` of `http`.
pub fn port_variable(name: &PortName) -> String {
    format!("PORT_{}", upper(name.as_str()))
}

/// Prefix of the environment variables that hold the paths of volumes.
pub const VOLUME_VARIABLE: &str = "CHANCERY_VOLUME_";

/// The variable in which a process is told where a volume is: `CHANCERY_VOLUME_VAR_LIB_DB` of `/var/lib/db`.
pub fn volume_variable(mount: &str) -> String {
    format!("{VOLUME_VARIABLE}{}", upper(mount).trim_start_matches('_'))
}

fn upper(name: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(upper).collect()
}

/// The program that a process executor starts.
///
/// `argv` and the values of `env` may name `${KEY}` of the deployment's coordinates for the payload,
/// `${port.NAME}`, `${volume.MOUNT}` (where the volume is that is to be mounted there), and `${replica}`, `${incarnation}`, `${node}`, `${process}`; `$$` is a dollar.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// The program and its arguments; no shell.
    pub argv: Vec<String>,
    /// The whole environment, but for what the executor adds (`docs`: executor).
    #[serde(default)]
    pub env: BTreeMap<KeyName, String>,
}

/// A check of a process from outside. Without a readiness probe a process is ready when it runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ReadinessProbe {
    /// The port accepts a connection.
    Tcp {
        /// The port's name.
        port: PortName,
        /// When attempts are made, and how many count.
        #[serde(default)]
        timing: ProbeTiming,
    },
    /// `GET path` at the port answers 2xx.
    Http {
        /// The port's name.
        port: PortName,
        /// The path, beginning with `/`.
        path: String,
        /// When attempts are made, and how many count.
        #[serde(default)]
        timing: ProbeTiming,
    },
}

impl ReadinessProbe {
    /// The word for its kind, as in manifests.
    pub const fn kind(&self) -> &'static str {
        match self {
            ReadinessProbe::Tcp { .. } => "tcp",
            ReadinessProbe::Http { .. } => "http",
        }
    }

    /// Name of the port that is probed.
    pub const fn port(&self) -> &PortName {
        match self {
            ReadinessProbe::Tcp { port, .. } | ReadinessProbe::Http { port, .. } => port,
        }
    }

    /// Path of the request, if one is sent.
    pub fn path(&self) -> Option<&str> {
        match self {
            ReadinessProbe::Tcp { .. } => None,
            ReadinessProbe::Http { path, .. } => Some(path),
        }
    }

    /// When attempts are made, and how many count.
    pub const fn timing(&self) -> ProbeTiming {
        match self {
            ReadinessProbe::Tcp { timing, .. } | ReadinessProbe::Http { timing, .. } => *timing,
        }
    }
}

/// When a probe makes its attempts, and how many of them count. Times in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeTiming {
    /// Time before the first attempt: 0 unless set.
    #[serde(default)]
    pub initial_delay: u64,
    /// Time from the end of an attempt to the next one: 2000 unless set. A readiness probe that does not pass makes its
    /// attempts every 200 ms at least.
    #[serde(default = "ProbeTiming::default_period")]
    pub period: u64,
    /// Time after which an attempt has failed: 1000 unless set.
    #[serde(default = "ProbeTiming::default_timeout")]
    pub timeout: u64,
    /// Number of failures in a row after which the probe fails: 3 unless set.
    #[serde(default = "ProbeTiming::default_failures")]
    pub failure_threshold: u32,
    /// Number of successes in a row after which the probe passes: 1 unless set.
    #[serde(default = "ProbeTiming::default_successes")]
    pub success_threshold: u32,
}

impl ProbeTiming {
    const fn default_period() -> u64 {
        2_000
    }
    const fn default_timeout() -> u64 {
        1_000
    }
    const fn default_failures() -> u32 {
        3
    }
    const fn default_successes() -> u32 {
        1
    }

    /// Time before the first attempt.
    pub const fn initial_delay(self) -> Duration {
        Duration::from_millis(self.initial_delay)
    }

    /// Time from the end of an attempt to the next one.
    pub const fn period(self) -> Duration {
        Duration::from_millis(self.period)
    }

    /// Time after which an attempt has failed.
    pub const fn timeout(self) -> Duration {
        Duration::from_millis(self.timeout)
    }
}

impl Default for ProbeTiming {
    fn default() -> ProbeTiming {
        ProbeTiming {
            initial_delay: 0,
            period: ProbeTiming::default_period(),
            timeout: ProbeTiming::default_timeout(),
            failure_threshold: ProbeTiming::default_failures(),
            success_threshold: ProbeTiming::default_successes(),
        }
    }
}

/// A part of a plan's replica: one or more equal processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// Name of the payload, unique in the plan.
    pub name: PayloadName,
    /// Resources that each process of the payload needs; of memory, also the limit.
    pub resources: Resources,
    /// Number of processes of the payload, at least one; 1 if absent.
    #[serde(default = "one")]
    pub processes: u16,
    /// Ports of the payload, each process its own.
    #[serde(default)]
    pub ports: Vec<PayloadPort>,
    /// Storage of the payload.
    #[serde(default)]
    pub volumes: Vec<VolumeClaim>,
    /// Program that the payload starts, if any.
    #[serde(default)]
    pub run: Option<ExecSpec>,
    /// When it is ready.
    #[serde(default)]
    pub ready: Option<ReadinessProbe>,
    /// Whether it still answers. The probe starts when the run was first ready; a run whose probe fails is ended, and
    /// started again by the plan's `restart` rule.
    #[serde(default)]
    pub alive: Option<ReadinessProbe>,
}

fn one() -> u16 {
    1
}
