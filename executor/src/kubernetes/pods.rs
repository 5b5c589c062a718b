//! Pods of an incarnation: what is created, and what their statuses mean.
//!
//! An incarnation has a pod for each process number. Pod `i` has a container for each payload with more than `i`
//! processes. A plan of single processes is one pod.
//!
//! | of the payload | in the pod |
//! |---|---|
//! | `container` | the container, with its init containers; without it, the image of the coordinate `image` |
//! | `resources` | requests and limits of cpu and memory; `disk` as ephemeral storage |
//! | `ports` | container ports; `PORT_NAME` has the port's number |
//! | `ready` | the readiness probe |
//! | `alive` | without `ready`, the readiness probe: a container that was ready and is not any more is unresponsive. With `ready`, the liveness probe: the kubelet ends the container, which ends the incarnation |
//! | `volumes` | persistent volume claims |

use std::collections::BTreeMap;
use std::path::PathBuf;

use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::name::{KeyName, PayloadName, PortName};
use chancery_events::observation::{
    IncarnationExit, PortAddress, ProbeError, ProcessInfo, ProcessStatus, RuntimeObject,
    WAITING_MESSAGE_BYTES, WAITING_REASON_BYTES,
};
use chancery_events::protocol::{IncarnationPayload, IncarnationSpec};
use chancery_events::size::cut;
use chancery_events::spec::{
    IMAGE, PortProtocol, ProbeTiming, ReadinessProbe, port_variable, volume_variable,
};
use chancery_events::template::InvalidTemplate;
use chancery_events::time::Time;
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, ContainerState, EnvVar, HTTPGetAction, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolumeClaimVolumeSource, Pod, PodSpec, Probe,
    ResourceRequirements, TCPSocketAction, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;

use super::labels::{ObjectOwner, pod_labels, pod_name, volume_name};
use super::objects::PodObject;
use crate::placeholders::{PlaceholderValues, fill, identity};
use crate::reconcile::{ReadyHistory, is_ended};

/// Reason why a spec cannot become pods. No other attempt can succeed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum InvalidPodSpec {
    /// Payload without a container.
    #[error("cannot start payload {0}: it has neither a container nor the coordinate image")]
    NoImage(PayloadName),
    /// Text that cannot be filled.
    #[error("cannot fill text of payload {0}: {1}")]
    Text(PayloadName, InvalidTemplate),
    /// Spec without processes.
    #[error("invalid spec: must have a process")]
    NoProcess,
}

/// Returns the number of pods of the spec.
pub(super) fn pod_count(spec: &IncarnationSpec) -> u16 {
    spec.payloads.iter().map(|payload| payload.processes).max().unwrap_or(0)
}

/// Returns the pod of an incarnation with this number.
pub(super) fn pod(
    owner: &ObjectOwner,
    incarnation: IncarnationId,
    spec: &IncarnationSpec,
    revision: u32,
    grace: std::time::Duration,
    index: u16,
) -> Result<Pod, InvalidPodSpec> {
    if index >= pod_count(spec) {
        return Err(InvalidPodSpec::NoProcess);
    }
    let (mut containers, mut init_containers, mut volumes) = (Vec::new(), Vec::new(), BTreeMap::new());
    for payload in spec.payloads.iter().filter(|payload| payload.processes > index) {
        let context = PayloadContext::new(incarnation, spec, payload, index);
        init_containers.extend(context.init_containers()?);
        containers.push(context.container()?);
        for mount in &payload.mounts {
            let (name, claim_name) = (short(mount.volume), volume_name(mount.volume));
            let claim = Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None });
            let volume = Volume { name: name.clone(), persistent_volume_claim: claim, ..Volume::default() };
            volumes.insert(name, volume);
        }
    }
    let selector = spec.labels.node_labels.as_ref().map(|labels| {
        labels.iter().map(|(key, value)| (key.as_str().to_owned(), value.clone())).collect::<BTreeMap<_, _>>()
    });
    let volumes: Vec<_> = volumes.into_values().collect();
    // A storage class that binds with the first pod needs the decision of the scheduler, which a node's name would skip.
    let by_affinity = selector.is_none() && !volumes.is_empty();
    let affinity = by_affinity.then(|| node_affinity(spec.node.as_str()));
    let tolerated: &[&str] = if by_affinity { &["NoExecute", "NoSchedule"] } else { &["NoExecute"] };
    Ok(Pod {
        metadata: ObjectMeta {
            name: Some(pod_name(incarnation, spec, index)),
            namespace: Some(spec.labels.namespace.to_string()),
            labels: Some(pod_labels(owner, incarnation.into(), spec, revision, index)),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: (selector.is_none() && !by_affinity).then(|| spec.node.to_string()),
            node_selector: selector,
            affinity,
            containers,
            init_containers: (!init_containers.is_empty()).then_some(init_containers),
            volumes: (!volumes.is_empty()).then_some(volumes),
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(seconds(grace)),
            // The fleet decides what leaves a node that does not report.
            tolerations: Some(tolerated.iter().map(|effect| tolerate(effect)).collect()),
            enable_service_links: Some(false),
            ..PodSpec::default()
        }),
        ..Pod::default()
    })
}

fn tolerate(effect: &str) -> Toleration {
    Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    }
}

/// Returns the affinity to the node with this name.
fn node_affinity(node: &str) -> Affinity {
    let by_name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![by_name]), match_expressions: None };
    let required = NodeSelector { node_selector_terms: vec![term] };
    let node = NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(required),
        ..NodeAffinity::default()
    };
    Affinity { node_affinity: Some(node), ..Affinity::default() }
}

/// Returns whole seconds, at least one: a grace of zero would delete a pod without proof of its end.
pub(super) fn seconds(grace: std::time::Duration) -> i64 {
    let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
    i64::try_from(seconds.max(1)).unwrap_or(i64::MAX)
}

/// Returns the name of a volume within a pod, at most 63 bytes.
fn short(volume: VolumeId) -> String {
    format!("volume-{volume}")
}

/// Payload of one pod, with the values of its placeholders.
struct PayloadContext<'a> {
    incarnation: IncarnationId,
    spec: &'a IncarnationSpec,
    payload: &'a IncarnationPayload,
    index: u16,
    ports: BTreeMap<PortName, u16>,
    mounts: BTreeMap<String, PathBuf>,
}

impl<'a> PayloadContext<'a> {
    fn new(
        incarnation: IncarnationId,
        spec: &'a IncarnationSpec,
        payload: &'a IncarnationPayload,
        index: u16,
    ) -> PayloadContext<'a> {
        PayloadContext {
            incarnation,
            spec,
            payload,
            index,
            ports: payload.ports.iter().map(|port| (port.name.clone(), port.port)).collect(),
            mounts: payload.mounts.iter().map(|mount| (mount.path.clone(), (&mount.path).into())).collect(),
        }
    }

    fn fill(&self, text: &str) -> Result<String, InvalidPodSpec> {
        let values = PlaceholderValues {
            incarnation: self.incarnation,
            spec: self.spec,
            index: self.index,
            ports: &self.ports,
            coordinates: &self.payload.coordinates,
            volumes: &self.mounts,
        };
        fill(text, &values).map_err(|error| InvalidPodSpec::Text(self.payload.name.clone(), error))
    }

    fn environment(&self, given: &BTreeMap<KeyName, String>) -> Result<Option<Vec<EnvVar>>, InvalidPodSpec> {
        let mut all = BTreeMap::new();
        for (key, value) in given {
            // A dollar of a filled text is a dollar: Kubernetes would expand `$(NAME)`.
            all.insert(key.as_str().to_owned(), self.fill(value)?.replace('$', "$$"));
        }
        // Last: a spec must not change the identity of a process.
        all.extend(identity(self.incarnation, self.spec, &self.payload.name, self.index, None));
        all.extend(self.ports.iter().map(|(name, number)| (port_variable(name), number.to_string())));
        all.extend(self.mounts.keys().map(|mount| (volume_variable(mount), mount.clone())));
        let variable = |(name, value)| EnvVar { name, value: Some(value), value_from: None };
        Ok(Some(all.into_iter().map(variable).collect()))
    }

    fn volume_mounts(&self) -> Option<Vec<VolumeMount>> {
        let mount = |mount: &chancery_events::protocol::VolumeMount| VolumeMount {
            name: short(mount.volume),
            mount_path: mount.path.clone(),
            ..VolumeMount::default()
        };
        (!self.payload.mounts.is_empty()).then(|| self.payload.mounts.iter().map(mount).collect())
    }

    fn init_containers(&self) -> Result<Vec<Container>, InvalidPodSpec> {
        let Some(container) = &self.payload.container else { return Ok(Vec::new()) };
        let init = |(number, init): (usize, &chancery_events::spec::InitContainer)| {
            Ok(Container {
                name: init_name(&self.payload.name, number),
                image: Some(self.fill(&init.image)?),
                command: self.escaped(&init.command)?,
                args: self.escaped(&init.args)?,
                env: self.environment(&init.env)?,
                volume_mounts: self.volume_mounts(),
                ..Container::default()
            })
        };
        container.init.iter().enumerate().map(init).collect()
    }

    /// Returns filled texts without references that Kubernetes would expand.
    fn escaped(&self, texts: &[String]) -> Result<Option<Vec<String>>, InvalidPodSpec> {
        let filled = texts.iter().map(|text| self.fill(text).map(|text| text.replace('$', "$$")));
        let filled = filled.collect::<Result<Vec<_>, _>>()?;
        Ok((!filled.is_empty()).then_some(filled))
    }

    fn container(&self) -> Result<Container, InvalidPodSpec> {
        let payload = self.payload;
        let empty = BTreeMap::new();
        let (image, command, args, env) = if let Some(of) = &payload.container {
            (self.fill(&of.image)?, self.escaped(&of.command)?, self.escaped(&of.args)?, &of.env)
        } else {
            let image = payload.coordinates.iter().find(|(key, _)| key.as_str() == IMAGE);
            let (_, image) = image.ok_or_else(|| InvalidPodSpec::NoImage(payload.name.clone()))?;
            (image.clone(), None, None, &empty)
        };
        let port = |port: &chancery_events::spec::PayloadPort| ContainerPort {
            container_port: i32::from(port.port),
            protocol: Some(
                match port.protocol {
                    PortProtocol::Tcp => "TCP",
                    PortProtocol::Udp => "UDP",
                }
                .to_owned(),
            ),
            ..ContainerPort::default()
        };
        let (readiness, liveness) = match (&payload.ready, &payload.alive) {
            (Some(ready), alive) => (Some(ready), alive.as_ref()),
            (None, alive) => (alive.as_ref(), None),
        };
        let ports: Vec<_> = payload.ports.iter().map(port).collect();
        Ok(Container {
            name: payload.name.to_string(),
            image: Some(image),
            command,
            args,
            env: self.environment(env)?,
            ports: (!ports.is_empty()).then_some(ports),
            readiness_probe: readiness.map(|probe| self.probe(probe)),
            liveness_probe: liveness.map(|probe| self.probe(probe)),
            resources: resources(payload),
            volume_mounts: self.volume_mounts(),
            ..Container::default()
        })
    }

    fn probe(&self, probe: &ReadinessProbe) -> Probe {
        let port = probe.port().and_then(|port| self.ports.get(port));
        let port = IntOrString::Int(port.map_or(0, |port| i32::from(*port)));
        let ProbeTiming { failure_threshold, success_threshold, .. } = probe.timing();
        let count = |threshold: u32| Some(i32::try_from(threshold).unwrap_or(i32::MAX));
        let whole = |span| Some(i32::try_from(seconds(span)).unwrap_or(i32::MAX));
        let delay = probe.timing().initial_delay();
        let path = probe.path().map(str::to_owned);
        Probe {
            initial_delay_seconds: if delay.is_zero() { None } else { whole(delay) },
            period_seconds: whole(probe.timing().period()),
            timeout_seconds: whole(probe.timing().timeout()),
            failure_threshold: count(failure_threshold),
            success_threshold: count(success_threshold),
            tcp_socket: path.is_none().then(|| TCPSocketAction { port: port.clone(), host: None }),
            http_get: path.map(|path| HTTPGetAction { path: Some(path), port, ..HTTPGetAction::default() }),
            ..Probe::default()
        }
    }
}

fn init_name(payload: &PayloadName, number: usize) -> String {
    let mut name = payload.as_str().replace('.', "-");
    cut(&mut name, 54);
    format!("{name}-init-{number}")
}

fn resources(payload: &IncarnationPayload) -> Option<ResourceRequirements> {
    let amounts = [
        ("cpu", payload.cpu.map(|cpu| format!("{cpu}m"))),
        ("memory", payload.memory.map(|bytes| bytes.to_string())),
        ("ephemeral-storage", payload.disk.map(|bytes| bytes.to_string())),
    ];
    let amounts = amounts.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), Quantity(amount?))));
    let amounts: BTreeMap<_, _> = amounts.collect();
    let both = ResourceRequirements {
        limits: Some(amounts.clone()),
        requests: Some(amounts.clone()),
        ..ResourceRequirements::default()
    };
    (!amounts.is_empty()).then_some(both)
}

/// Pod as last seen, reduced to what decisions and reports need.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct ObservedPod {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    /// Number of the pod in its incarnation.
    pub(super) index: u16,
    /// Revision of the command that created the pod.
    pub(super) revision: u32,
    /// Grace of the deletion in progress, in seconds, if one was requested.
    pub(super) deleting: Option<i64>,
    /// Addresses and statuses of the containers, by name of the payload.
    ip: Option<String>,
    containers: BTreeMap<String, ObservedContainer>,
    /// Reason and message of a pod that is not scheduled, or whose init containers cannot run.
    waiting: Option<(String, String)>,
    /// Whether the node of the pod reports.
    is_reachable: bool,
    /// Whether the pod failed as a whole, with the reason.
    failed: Option<String>,
    since: Option<Time>,
    /// Number of the change by which the pod was seen last.
    pub(super) seen_at: u64,
}

#[derive(Clone, PartialEq, Debug)]
struct ObservedContainer {
    status: ProcessStatus,
    /// Whether the container has started and is not ready.
    is_unready: bool,
    since: Option<Time>,
}

impl ObservedPod {
    /// Returns what a pod of an incarnation shows; `None` if its name is not that of the incarnation's pod with its number,
    /// as of a copy that another party made.
    pub(super) fn of(pod: &PodObject, seen_at: u64) -> Option<ObservedPod> {
        let metadata = &pod.metadata;
        let label = |key: &str| metadata.labels.as_ref()?.get(key);
        let status = pod.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let condition = |kind: &str| conditions.iter().find(|condition| condition.kind == kind);
        let unscheduled = condition("PodScheduled").filter(|of| of.status == "False");
        let unscheduled = unscheduled.map(|of| {
            let reason = of.reason.clone().unwrap_or_else(|| "Unschedulable".to_owned());
            (reason, of.message.clone().unwrap_or_default())
        });
        let init = status.init_container_statuses.unwrap_or_default();
        let init = init.into_iter().find_map(|of| match container_status(of.state.as_ref(), of.ready) {
            (ProcessStatus::Waiting { reason, message }, _) => Some((reason, message)),
            _ => None,
        });
        let waiting = unscheduled.or(init);
        let ready = condition("Ready");
        // The node controller changes this condition alone, when the node's lease has expired.
        let is_marked = ready.is_some_and(|of| of.status == "False")
            && condition("ContainersReady").is_some_and(|of| of.status == "True");
        let is_reachable = !is_marked && status.reason.as_deref() != Some("NodeLost");
        let failed = (status.phase.as_deref() == Some("Failed")).then(|| {
            let reason = status.reason.clone().unwrap_or_else(|| "Failed".to_owned());
            match &status.message {
                Some(message) => format!("{reason}: {message}"),
                None => reason,
            }
        });
        let containers = status.container_statuses.unwrap_or_default();
        let containers = containers.into_iter().map(|of| {
            let (seen, since) = container_status(of.state.as_ref(), of.ready);
            let is_unready = matches!(seen, ProcessStatus::Starting) && of.started == Some(true) && !of.ready;
            (of.name, ObservedContainer { status: seen, is_unready, since })
        });
        let since = ready.and_then(|of| of.last_transition_time.as_ref()).map(time);
        let index = label(super::labels::INDEX).and_then(|index| index.parse().ok())?;
        let name = metadata.name.clone()?;
        if !name.ends_with(&format!("-{}-{index}", label(super::labels::INCARNATION)?)) {
            return None;
        }
        Some(ObservedPod {
            name,
            namespace: metadata.namespace.clone()?,
            uid: metadata.uid.clone()?,
            index,
            revision: label(super::labels::REVISION).and_then(|text| text.parse().ok()).unwrap_or_default(),
            deleting: metadata
                .deletion_timestamp
                .as_ref()
                .map(|_| metadata.deletion_grace_period_seconds.unwrap_or(i64::MAX)),
            ip: status.pod_ip,
            containers: containers.collect(),
            waiting,
            is_reachable,
            failed,
            since,
            seen_at,
        })
    }
}

fn time(of: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time) -> Time {
    Time::from_micros(of.0.as_microsecond())
}

/// Number that a container's status has above the number of the signal that ended it.
const SIGNALS: i32 = 128;

fn container_status(state: Option<&ContainerState>, ready: bool) -> (ProcessStatus, Option<Time>) {
    let Some(state) = state else { return (ProcessStatus::Starting, None) };
    if let Some(ended) = &state.terminated {
        let status = match (ended.reason.as_deref(), ended.signal, ended.exit_code) {
            (Some("OOMKilled"), ..) => ProcessStatus::OomKilled,
            (_, Some(signal), _) if signal > 0 => ProcessStatus::Signaled { signal },
            (_, _, code) if (SIGNALS + 1..SIGNALS + 65).contains(&code) => {
                ProcessStatus::Signaled { signal: code - SIGNALS }
            }
            (_, _, code) => ProcessStatus::Exited { code },
        };
        return (status, ended.finished_at.as_ref().map(time));
    }
    if let Some(running) = &state.running {
        let status = if ready { ProcessStatus::Ready } else { ProcessStatus::Starting };
        return (status, running.started_at.as_ref().map(time));
    }
    let waiting = state.waiting.as_ref();
    let status = match waiting.and_then(|of| of.reason.as_deref()) {
        // Normal steps of a start.
        None | Some("ContainerCreating" | "PodInitializing") => ProcessStatus::Starting,
        Some(reason) => {
            waits(reason.to_owned(), waiting.and_then(|of| of.message.clone()).unwrap_or_default())
        }
    };
    (status, None)
}

fn waits(mut reason: String, mut message: String) -> ProcessStatus {
    cut(&mut reason, WAITING_REASON_BYTES);
    cut(&mut message, WAITING_MESSAGE_BYTES);
    ProcessStatus::Waiting { reason, message }
}

/// Returns the report of each process of the spec. `before` states whether the incarnation has been ready.
pub(super) fn processes(
    spec: &IncarnationSpec,
    pods: &BTreeMap<u16, &ObservedPod>,
    before: ReadyHistory,
) -> Vec<ProcessInfo> {
    let all = spec.payloads.iter().flat_map(|payload| {
        (0..payload.processes).map(move |index| process(payload, index, pods.get(&index).copied(), before))
    });
    all.collect()
}

fn process(
    payload: &IncarnationPayload,
    index: u16,
    pod: Option<&ObservedPod>,
    before: ReadyHistory,
) -> ProcessInfo {
    let mut info = ProcessInfo {
        payload: payload.name.clone(),
        index,
        pid: None,
        object: None,
        addresses: Vec::new(),
        status: ProcessStatus::Starting,
        since: None,
        resets: 0,
    };
    let Some(pod) = pod else { return info };
    info.object = Some(RuntimeObject { name: pod.name.clone(), uid: pod.uid.clone() });
    if let Some(ip) = &pod.ip {
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
        let address = |port: &chancery_events::spec::PayloadPort| PortAddress {
            port: port.name.clone(),
            address: format!("{host}:{}", port.port),
        };
        info.addresses = payload.ports.iter().map(address).collect();
    }
    let container = pod.containers.get(payload.name.as_str());
    let was_ready = before == ReadyHistory::Ready;
    (info.status, info.since) = match (container, &pod.waiting) {
        (Some(of), _) if is_ended(&of.status) => (of.status.clone(), of.since),
        _ if !pod.is_reachable => (ProcessStatus::Unreachable, pod.since),
        (Some(of), _) if of.is_unready && was_ready => {
            // The kubelet does not state why a probe failed.
            let error = ProbeError::Unreachable;
            let only_alive = payload.alive.is_some() && payload.ready.is_none();
            let status = if only_alive {
                ProcessStatus::Unresponsive { error }
            } else {
                ProcessStatus::Unready { error }
            };
            (status, pod.since)
        }
        (Some(of), None) => (of.status.clone(), of.since),
        (Some(of), Some(_)) if of.status != ProcessStatus::Starting => (of.status.clone(), of.since),
        (_, Some((reason, message))) => (waits(reason.clone(), message.clone()), pod.since),
        (None, None) => (ProcessStatus::Starting, None),
    };
    info
}

/// Returns the exit of an incarnation that ended without a request, from its processes and pods.
pub(super) fn exit(processes: &[ProcessInfo], pods: &BTreeMap<u16, &ObservedPod>) -> Option<IncarnationExit> {
    let failed = processes.iter().find_map(|process| {
        let how = match &process.status {
            ProcessStatus::Exited { code: 0 } => return None,
            ProcessStatus::Exited { code } => format!("ended with status {code}"),
            ProcessStatus::Signaled { signal } => format!("was ended by signal {signal}"),
            ProcessStatus::OomKilled => "was killed: out of memory".to_owned(),
            ProcessStatus::Ready
            | ProcessStatus::Starting
            | ProcessStatus::Unready { .. }
            | ProcessStatus::Unresponsive { .. }
            | ProcessStatus::Waiting { .. }
            | ProcessStatus::Unreachable
            | ProcessStatus::Rebooting
            | ProcessStatus::Unknown => return None,
        };
        Some(format!("{} {how}", process.name()))
    });
    let failed = failed.or_else(|| {
        pods.values().find_map(|pod| Some(format!("pod {} failed: {}", pod.name, pod.failed.as_ref()?)))
    });
    let mut containers = pods.values().flat_map(|pod| pod.containers.values());
    match failed {
        Some(reason) => Some(IncarnationExit::Failed { reason }),
        None => containers.any(|of| is_ended(&of.status)).then_some(IncarnationExit::Clean),
    }
}
