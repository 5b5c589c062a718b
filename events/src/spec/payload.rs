//! Payloads of plans, with their ports, volumes and processes.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MatchComparator, PortProtocol};
use crate::name::{
    CapabilityName, CapabilityType, KeyName, PayloadName, PortName, ReplicaName, StorageClass, VolumeName,
};
use crate::resources::Resources;

/// Condition on a node's capabilities of one type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilityMatcher {
    /// Type whose capabilities are compared.
    #[serde(rename = "type")]
    pub kind: CapabilityType,
    /// Comparison of the node's capabilities with the named ones.
    pub comparator: MatchComparator,
    /// Names of the capabilities to compare with.
    pub names: Vec<CapabilityName>,
}

/// Port of a payload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PayloadPort {
    /// Name of the port, for `${port.NAME}`.
    pub name: PortName,
    /// Protocol of the port.
    pub protocol: PortProtocol,
    /// Port number inside the incarnation, for runtimes with a network namespace. Processes are assigned free
    /// ports.
    pub port: u16,
}

/// Storage that a payload needs on its node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeClaim {
    /// Name of a named volume: no replica owns it, one incarnation uses it at a time, and plans can pass it
    /// on. Without a name, each replica has its own volume.
    #[serde(default)]
    pub volume: Option<VolumeName>,
    /// Action on a replica's own volume when the replica is deleted; `keep` if absent.
    #[serde(default)]
    pub on_delete: VolumeDeletion,
    /// Storage class of the volume.
    pub class: StorageClass,
    /// Capacity of the volume, in bytes. For a virtual machine a multiple of 512, and the size of the disk.
    pub capacity: u64,
    /// Path at which the payload sees the volume. For a virtual machine `/` and a name of at most 20 characters, which is the
    /// serial number of the disk: Linux has the disk `/data` as `/dev/disk/by-id/virtio-data`.
    pub mount: String,
}

words! {
    /// Action on a replica's own volume when the replica is deleted.
    #[derive(Default)]
    VolumeDeletion {
        /// The volume is kept with its data, until its deletion is requested. The default.
        #[default]
        Keep = "keep",
        /// The volume is destroyed once nothing can use it.
        Destroy = "destroy",
    }
}

impl VolumeClaim {
    /// Returns the name of the claim's volume for a payload of the replica.
    pub fn name(&self, replica: &ReplicaName, payload: &PayloadName) -> VolumeName {
        self.volume.clone().unwrap_or_else(|| VolumeName::of(replica, payload, &self.mount))
    }
}

/// Returns the environment variable with the number of a port: `PORT_HTTP` for `http`.
pub fn port_variable(name: &PortName) -> String {
    format!("PORT_{}", upper(name.as_str()))
}

/// Prefix of the environment variables that hold the paths of volumes.
pub const VOLUME_VARIABLE: &str = "CHANCERY_VOLUME_";

/// Returns the environment variable with the path of a volume: `CHANCERY_VOLUME_VAR_LIB_DB` for
/// `/var/lib/db`.
pub fn volume_variable(mount: &str) -> String {
    format!("{VOLUME_VARIABLE}{}", upper(mount).trim_start_matches('_'))
}

fn upper(name: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(upper).collect()
}

/// Program that a process executor starts.
///
/// `argv` and the values of `env` may contain `${KEY}` of the deployment's coordinates for the payload,
/// `${port.NAME}`, `${volume.MOUNT}` (the path of the volume for this mount), `${replica}`, `${incarnation}`,
/// `${node}` and `${process}`; `$$` is a dollar.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// Program and its arguments, without a shell.
    pub argv: Vec<String>,
    /// Environment of the process, complete except for variables that the executor adds (see
    /// docs/environment.md).
    #[serde(default)]
    pub env: BTreeMap<KeyName, String>,
}

/// Container that a runtime of container images starts.
///
/// `image`, `command`, `args` and the values of `env` may contain the placeholders of [`ExecSpec`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContainerSpec {
    /// Image of the container, as the runtime's nodes pull it: `registry.example/shop/web:1.4`.
    pub image: String,
    /// Entry point of the container; that of the image if absent.
    #[serde(default)]
    pub command: Vec<String>,
    /// Arguments of the entry point; those of the image if `args` and `command` are absent.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment of the container, in addition to that of the image and the variables that the executor adds
    /// (see docs/environment.md).
    #[serde(default)]
    pub env: BTreeMap<KeyName, String>,
    /// Containers that run to completion in this order before the container starts; none if absent.
    #[serde(default)]
    pub init: Vec<InitContainer>,
}

/// Container that runs to completion before the container of its payload starts, with the same volumes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitContainer {
    /// Image of the container.
    pub image: String,
    /// Entry point of the container; that of the image if absent.
    #[serde(default)]
    pub command: Vec<String>,
    /// Arguments of the entry point; those of the image if `args` and `command` are absent.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment of the container, in addition to that of the image.
    #[serde(default)]
    pub env: BTreeMap<KeyName, String>,
}

words! {
    /// Model of the board of a virtual machine.
    #[derive(Default)]
    MachineModel {
        /// PC with PCI Express. The default.
        #[default]
        Q35 = "q35",
        /// PC with PCI.
        Pc = "pc",
    }
    /// Network of a virtual machine.
    #[derive(Default)]
    GuestNetwork {
        /// The ports of the payload are forwarded to the guest, and the guest reaches nothing outside. The default.
        #[default]
        Forwarded = "forwarded",
        /// The guest has no network device.
        None = "none",
    }
}

/// Memory of a virtual machine's process that its guest does not have, in bytes: a payload's memory is that of the
/// guest and this.
pub const VM_OVERHEAD: u64 = 96 << 20;

/// Virtual machine that a runtime of virtual machines boots. Exactly one of `kernel` and `image` is given.
///
/// Files are named relative to the image directories of the executor. `cmdline` may contain the placeholders of
/// [`ExecSpec`], without those of ports and volumes. The volumes of the payload are disks of the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VirtualMachineSpec {
    /// Kernel that is booted. Exactly one of `kernel` and `image` is given.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Initial RAM disk of the kernel, if any. Only with `kernel`.
    #[serde(default)]
    pub initrd: Option<String>,
    /// Command line of the kernel, if any. Only with `kernel`.
    #[serde(default)]
    pub cmdline: Option<String>,
    /// Disk image that is booted, raw unless its name ends with `.qcow2`. Exactly one of `kernel` and `image` is given.
    /// Changes of the guest are discarded with the incarnation.
    #[serde(default)]
    pub image: Option<String>,
    /// Firmware; that of QEMU if absent.
    #[serde(default)]
    pub firmware: Option<String>,
    /// Number of virtual processors, from 1 to 255; 1 if absent.
    #[serde(default = "one")]
    pub cpus: u16,
    /// Model of the board.
    #[serde(default)]
    pub machine: MachineModel,
    /// Network of the guest.
    #[serde(default)]
    pub network: GuestNetwork,
}

/// Probe: a check of a process from outside. Without a readiness probe a process is ready when it runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ReadinessProbe {
    /// Passes if the port accepts a connection.
    Tcp {
        /// Name of the port.
        port: PortName,
        /// Times of the attempts, and their thresholds.
        #[serde(default)]
        timing: ProbeTiming,
    },
    /// Passes if `GET path` at the port answers with a status 2xx.
    Http {
        /// Name of the port.
        port: PortName,
        /// Path of the request, starting with `/`.
        path: String,
        /// Times of the attempts, and their thresholds.
        #[serde(default)]
        timing: ProbeTiming,
    },
    /// Passes once a guest has written the text to its first serial port, since its last start or reset. For `vm` only.
    Serial {
        /// Line, or part of a line.
        line: String,
    },
}

impl ReadinessProbe {
    /// Kind of the probe, as in manifests.
    pub const fn kind(&self) -> &'static str {
        match self {
            ReadinessProbe::Tcp { .. } => "tcp",
            ReadinessProbe::Http { .. } => "http",
            ReadinessProbe::Serial { .. } => "serial",
        }
    }

    /// Name of the port that is probed, if one is.
    pub const fn port(&self) -> Option<&PortName> {
        match self {
            ReadinessProbe::Tcp { port, .. } | ReadinessProbe::Http { port, .. } => Some(port),
            ReadinessProbe::Serial { .. } => None,
        }
    }

    /// Text that is awaited on the first serial port, if one is.
    pub fn line(&self) -> Option<&str> {
        match self {
            ReadinessProbe::Tcp { .. } | ReadinessProbe::Http { .. } => None,
            ReadinessProbe::Serial { line } => Some(line),
        }
    }

    /// Path of the request, if one is sent.
    pub fn path(&self) -> Option<&str> {
        match self {
            ReadinessProbe::Tcp { .. } | ReadinessProbe::Serial { .. } => None,
            ReadinessProbe::Http { path, .. } => Some(path),
        }
    }

    /// Times of the attempts, and their thresholds; the default without attempts.
    pub fn timing(&self) -> ProbeTiming {
        match self {
            ReadinessProbe::Tcp { timing, .. } | ReadinessProbe::Http { timing, .. } => *timing,
            ReadinessProbe::Serial { .. } => ProbeTiming::default(),
        }
    }
}

/// Times of a probe's attempts, in milliseconds, and its thresholds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProbeTiming {
    /// Delay before the first attempt, in milliseconds; 0 if absent.
    pub initial_delay: u64,
    /// Time from the end of an attempt to the next attempt, in milliseconds; 2000 if absent. A readiness
    /// probe that has not passed makes an attempt at least every 200 ms.
    pub period: u64,
    /// Time after which an attempt fails, in milliseconds; 1000 if absent.
    pub timeout: u64,
    /// Number of consecutive failures after which the probe fails; 3 if absent.
    pub failure_threshold: u32,
    /// Number of consecutive successes after which the probe passes; 1 if absent.
    pub success_threshold: u32,
}

impl ProbeTiming {
    /// Delay before the first attempt.
    pub const fn initial_delay(self) -> Duration {
        Duration::from_millis(self.initial_delay)
    }

    /// Time from the end of an attempt to the next attempt.
    pub const fn period(self) -> Duration {
        Duration::from_millis(self.period)
    }

    /// Time after which an attempt fails.
    pub const fn timeout(self) -> Duration {
        Duration::from_millis(self.timeout)
    }
}

impl Default for ProbeTiming {
    fn default() -> ProbeTiming {
        ProbeTiming {
            initial_delay: 0,
            period: 2_000,
            timeout: 1_000,
            failure_threshold: 3,
            success_threshold: 1,
        }
    }
}

/// Payload: a part of a plan's replica, with one or more equal processes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// Name of the payload, unique in the plan.
    pub name: PayloadName,
    /// Resources that each process of the payload needs; the memory is also the limit.
    pub resources: Resources,
    /// Number of processes of the payload, at least one; 1 if absent.
    #[serde(default = "one")]
    pub processes: u16,
    /// Ports of the payload; each process has its own.
    #[serde(default)]
    pub ports: Vec<PayloadPort>,
    /// Storage of the payload.
    #[serde(default)]
    pub volumes: Vec<VolumeClaim>,
    /// Program that the payload starts on clusters of runtime `process`, if any.
    #[serde(default)]
    pub run: Option<ExecSpec>,
    /// Container that the payload starts on clusters of runtime `kubernetes`, if any. A payload with neither
    /// `run` nor `container` starts the image that its coordinate `image` names.
    #[serde(default)]
    pub container: Option<ContainerSpec>,
    /// Virtual machine that the payload boots on clusters of runtime `qemu`, if any.
    #[serde(default)]
    pub vm: Option<VirtualMachineSpec>,
    /// Readiness probe of the payload, if any.
    #[serde(default)]
    pub ready: Option<ReadinessProbe>,
    /// Liveness probe of the payload, if any. It starts when the incarnation was first ready. An incarnation
    /// whose probe fails is ended, and started again by the plan's `restart` rule.
    #[serde(default)]
    pub alive: Option<ReadinessProbe>,
}

fn one() -> u16 {
    1
}
