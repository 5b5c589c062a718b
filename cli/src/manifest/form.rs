//! Forms of manifests, by kind, and the exact specs that they are converted to.
//!
//! Field names are the documented ones. Aliases accept existing bodies of plans and deployments:
//! `serviceName`, `applications`, `payload_coordinates`, `instance_count` and their like.

use std::collections::BTreeMap;

use chancery_events::intent::{DeploymentCreate, Intent, NodeApply, OverlapPolicy, PlanApply, PolicyApply};
use chancery_events::name::{
    CapabilityName, CapabilityType, ClusterName, DeploymentName, DomainName, KeyName, Namespace, NodeName,
    PayloadName, PlanName, PolicyName, PortName, ServiceName, StorageClass, VolumeName, ZoneName,
};
use chancery_events::resources::Resources;

use chancery_events::spec::{
    AffinityRule, ApprovalMode, ApprovalPolicy, CapabilityMatcher, ContainerSpec, DeploymentSpec, ExecSpec,
    MatchComparator, NodeSharing, NodeSpec, NodeStorage, PROGRESS_DEADLINE, Payload, PayloadCoordinates,
    PayloadPort, PlacementPolicy, PlanSpec, PlanTimeouts, PortProtocol, ProbeTiming, ReadinessProbe,
    RestartPolicy, UnreadyAction, UnreadyRule, UpdateOrder, VirtualMachineSpec, VolumeClaim, VolumeDeletion,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::approval::ApprovalForm;
use super::policy::PolicyForm;
use super::strategy::StrategyForm;
use super::units::{AnyCase, CpuAmount, DiskAmount, DurationText, MemoryAmount};

/// Spec as users write it, if that form differs from the stored one.
pub(super) trait SpecForm: DeserializeOwned + JsonSchema {
    /// Type of the entity's name.
    type Name: DeserializeOwned + JsonSchema + PartialEq;
    /// Whether [`SpecForm::intent`] gets the labels of the metadata, and takes or refuses them. If not, any label is an error.
    const HAS_LABELS: bool = false;
    /// Takes the name out of the spec, where older manifests have it; `None` if the spec has no name.
    fn inner_name(&mut self) -> Option<Self::Name> {
        None
    }
    /// Returns the intent of the document, or the error and the path of the field with the error.
    fn intent(self, name: Self::Name, labels: NodeLabels) -> Result<Intent, FormFault>;
}

/// Labels of a node.
pub(super) type NodeLabels = BTreeMap<KeyName, String>;
/// Error of a form, and the path of the field with the error; empty for the document.
pub(super) type FormFault = (String, String);

impl SpecForm for NodeForm {
    type Name = NodeName;
    const HAS_LABELS: bool = true;
    fn intent(self, name: NodeName, labels: NodeLabels) -> Result<Intent, FormFault> {
        let storage = |one: StorageForm| NodeStorage { class: one.class, capacity: one.capacity.0 };
        let spec = NodeSpec {
            domain: self.domain,
            zone: self.zone,
            labels,
            resources: self.resources.into(),
            reserved: self.reserved.into(),
            capabilities: self.capabilities,
            storage: self.storage.into_iter().map(storage).collect(),
        };
        Ok(NodeApply { name, spec, cluster: self.cluster }.into())
    }
}

impl SpecForm for PlanForm {
    type Name = PlanName;
    const HAS_LABELS: bool = true;
    fn inner_name(&mut self) -> Option<PlanName> {
        self.name.take()
    }
    fn intent(self, name: PlanName, labels: NodeLabels) -> Result<Intent, FormFault> {
        if !labels.is_empty() {
            let what = "invalid labels: labels of a plan must be in spec.labels, not in metadata.labels";
            return Err((what.to_owned(), "/metadata/labels".to_owned()));
        }
        Ok(PlanApply { name, spec: self.into() }.into())
    }
}

impl SpecForm for PolicyForm {
    type Name = PolicyName;
    fn intent(self, name: PolicyName, _: NodeLabels) -> Result<Intent, FormFault> {
        Ok(PolicyApply { name, spec: self.spec()? }.into())
    }
}

impl SpecForm for DeploymentForm {
    type Name = DeploymentName;
    fn inner_name(&mut self) -> Option<DeploymentName> {
        self.name.take()
    }
    fn intent(self, name: DeploymentName, _: NodeLabels) -> Result<Intent, FormFault> {
        let mut coordinates = self.coordinates;
        for (number, form) in self.payload_coordinates.into_iter().enumerate() {
            if coordinates.insert(form.payload_name.clone(), form.coordinates).is_some() {
                let what = format!("invalid coordinates: payload {} is given twice", form.payload_name);
                return Err((what, format!("/spec/payload_coordinates/{number}")));
            }
        }
        let spec = DeploymentSpec {
            coordinates,
            count: self.count,
            strategy: self.strategy.0,
            progress_deadline: millis(self.progress_deadline, PROGRESS_DEADLINE),
            auto_rollback: self.auto_rollback,
        };
        Ok(DeploymentCreate { plan: self.plan, name, spec, overlap: self.overlap }.into())
    }
}

/// Resources of a node or a payload.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct ResourcesForm {
    /// CPU, in cores (default: 0).
    #[serde(default, alias = "cores")]
    cpu: CpuAmount,
    /// Memory; a bare number counts in GiB (default: 0).
    #[serde(default)]
    memory: MemoryAmount,
    /// Disk; a bare number counts in GB (default: 0).
    #[serde(default)]
    disk: DiskAmount,
}

impl From<ResourcesForm> for Resources {
    fn from(form: ResourcesForm) -> Resources {
        Resources { cpu: form.cpu.0, memory: form.memory.0, disk: form.disk.0 }
    }
}

/// Storage of one class on a node.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StorageForm {
    /// Storage class, unique on the node.
    #[serde(alias = "storageClass")]
    class: StorageClass,
    /// Capacity of the class; a bare number counts in GB.
    capacity: DiskAmount,
}

/// Node with capacity for incarnations.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeForm {
    /// Cluster that the node is allocated to, if it is unallocated. An evicted node stays evicted.
    #[serde(default)]
    cluster: Option<ClusterName>,
    /// Update domain: nodes that may be out of service together.
    #[serde(alias = "updateDomain", alias = "update_domain")]
    domain: DomainName,
    /// Zone in which the node is located.
    #[serde(default)]
    zone: Option<ZoneName>,
    /// Total resources of the node.
    resources: ResourcesForm,
    /// Resources that are withheld from placements (default: none).
    #[serde(default)]
    reserved: ResourcesForm,
    /// Names of the node's capabilities.
    #[serde(default)]
    capabilities: Vec<CapabilityName>,
    /// Storage of the node, at most one entry for each class.
    #[serde(default)]
    storage: Vec<StorageForm>,
}

/// Condition on a node's capabilities of one type.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MatcherForm {
    /// Type of the capabilities that are compared.
    #[serde(rename = "type", alias = "capabilityType")]
    kind: CapabilityType,
    /// Comparison with the named capabilities: the node has one of them (`in`), none (`not_in`) or all
    /// (`eq`). Or it has one of the type whose score is at least (`gte`) or at most (`lte`) that of each of
    /// them.
    comparator: AnyCase<MatchComparator>,
    /// Names of the capabilities to compare with.
    #[serde(alias = "capabilityNames")]
    names: Vec<CapabilityName>,
}

impl From<MatcherForm> for CapabilityMatcher {
    fn from(form: MatcherForm) -> CapabilityMatcher {
        CapabilityMatcher { kind: form.kind, comparator: form.comparator.0, names: form.names }
    }
}

/// Port of a payload.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PortForm {
    /// Name of the port, for `${port.NAME}`; without a name, the protocol and number, as in `tcp-80`.
    #[serde(default)]
    name: Option<PortName>,
    /// Protocol of the port.
    protocol: AnyCase<PortProtocol>,
    /// Number inside the incarnation, if the runtime has an inside; processes are assigned free numbers.
    port: u16,
}

impl From<PortForm> for PayloadPort {
    fn from(form: PortForm) -> PayloadPort {
        let AnyCase(protocol) = form.protocol;
        let plain = || format!("{}-{}", protocol.word().to_ascii_lowercase(), form.port);
        let name = form.name.unwrap_or_else(|| plain().parse().expect("a word and digits are a label"));
        PayloadPort { name, protocol, port: form.port }
    }
}

/// Storage that a payload needs on its node.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct VolumeForm {
    /// Name of a named volume: no replica owns it, one incarnation uses it at a time, and plans can pass it
    /// on. Without a name, each replica has its own volume.
    #[serde(default)]
    volume: Option<VolumeName>,
    /// Action on a replica's own volume when the replica is deleted: keep or destroy.
    #[serde(default, alias = "onDelete")]
    on_delete: VolumeDeletion,
    /// Storage class of the volume.
    #[serde(alias = "storageClass")]
    class: StorageClass,
    /// Capacity of the volume; a bare number counts in GB. For a `vm`: size of the disk, a multiple of 512 bytes.
    capacity: DiskAmount,
    /// Path at which the payload sees the volume. For a `vm`: `/` and the serial number of the disk, at most 20 characters.
    #[serde(alias = "mountPath")]
    mount: String,
}

impl From<VolumeForm> for VolumeClaim {
    fn from(form: VolumeForm) -> VolumeClaim {
        let VolumeForm { volume, on_delete, class, capacity, mount } = form;
        VolumeClaim { volume, on_delete, class, capacity: capacity.0, mount }
    }
}

macro_rules! probes {
    ($($(#[$doc:meta])* $kind:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        /// Check of a process from outside.
        #[derive(Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case", deny_unknown_fields)]
        pub(super) enum ProbeForm {
            $($(#[$doc])* $kind {
                $($(#[$field_doc])* $field: $type,)*
                /// Time before the first attempt, at most 1h (default: 0s).
                #[serde(default)]
                initial_delay: Option<DurationText>,
                /// Time from one attempt to the next, from 100ms to 1h (default: 2s). While a readiness probe
                /// does not pass, attempts are made at least every 200ms.
                #[serde(default)]
                period: Option<DurationText>,
                /// Time after which an attempt has failed, from 1ms to 1h (default: 1s).
                #[serde(default)]
                timeout: Option<DurationText>,
                /// Number of consecutive failures after which the probe fails, from 1 to 1000 (default: 3).
                #[serde(default)]
                failure_threshold: Option<u32>,
                /// Number of consecutive successes after which the probe passes, from 1 to 1000 (default: 1);
                /// 1 for `alive`.
                #[serde(default)]
                success_threshold: Option<u32>,
            },)*
            /// Probe that passes once a guest has written a text to its first serial port. For `ready` of a `vm` only.
            Serial {
                /// Line, or a part of one, since the last start or reset of the guest: at most 256 bytes.
                line: String,
            },
        }

        impl From<ProbeForm> for ReadinessProbe {
            fn from(form: ProbeForm) -> ReadinessProbe {
                let mut timing = ProbeTiming::default();
                match form {
                    $(ProbeForm::$kind {
                        $($field,)* initial_delay, period, timeout, failure_threshold, success_threshold,
                    } => {
                        timing.initial_delay = millis(initial_delay, timing.initial_delay);
                        timing.period = millis(period, timing.period);
                        timing.timeout = millis(timeout, timing.timeout);
                        timing.failure_threshold = failure_threshold.unwrap_or(timing.failure_threshold);
                        timing.success_threshold = success_threshold.unwrap_or(timing.success_threshold);
                        ReadinessProbe::$kind { $($field,)* timing }
                    })*
                    ProbeForm::Serial { line } => ReadinessProbe::Serial { line },
                }
            }
        }
    };
}

probes! {
    /// Probe that passes if the port accepts a connection.
    Tcp {
        /// Name of the port.
        port: PortName,
    }
    /// Probe that passes if `GET path` at the port returns 2xx.
    Http {
        /// Name of the port.
        port: PortName,
        /// Path of the request, which starts with `/`.
        path: String,
    }
}

/// Returns a duration in milliseconds, or its default.
fn millis(given: Option<DurationText>, usual: u64) -> u64 {
    given.map_or(usual, |DurationText(millis)| millis)
}

/// Part of a plan's replica: one or more equal processes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PayloadForm {
    /// Name of the payload, unique in the plan.
    #[serde(alias = "payloadName")]
    name: PayloadName,
    /// Resources that each process needs; memory is also the limit.
    resources: ResourcesForm,
    /// Number of processes, from 1 to 1024.
    #[serde(default = "one")]
    processes: u16,
    /// Ports of the payload; each process has its own numbers.
    #[serde(default)]
    ports: Vec<PortForm>,
    /// Volumes of the payload.
    #[serde(default, alias = "persistentVolumes")]
    volumes: Vec<VolumeForm>,
    /// Program to start on clusters of runtime `process`.
    #[serde(default)]
    run: Option<ExecSpec>,
    /// Container to start on clusters of runtime `kubernetes`. A payload with neither `run` nor `container` starts
    /// the image that its coordinate `image` names.
    #[serde(default)]
    container: Option<ContainerSpec>,
    /// Virtual machine to boot on clusters of runtime `qemu`.
    #[serde(default)]
    vm: Option<VirtualMachineSpec>,
    /// Readiness probe; without a probe, a process is ready once it is started.
    #[serde(default)]
    ready: Option<ProbeForm>,
    /// Liveness probe, which starts when the incarnation is first ready. If the probe fails, the incarnation
    /// is stopped, and started again by the plan's `restart` rule.
    #[serde(default)]
    alive: Option<ProbeForm>,
}

fn one() -> u16 {
    1
}

impl From<PayloadForm> for Payload {
    fn from(form: PayloadForm) -> Payload {
        Payload {
            name: form.name,
            resources: form.resources.into(),
            processes: form.processes,
            ports: form.ports.into_iter().map(PayloadPort::from).collect(),
            volumes: form.volumes.into_iter().map(VolumeClaim::from).collect(),
            run: form.run,
            container: form.container,
            vm: form.vm,
            ready: form.ready.map(ReadinessProbe::from),
            alive: form.alive.map(ReadinessProbe::from),
        }
    }
}

/// Time limits of a plan's operations.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct TimeoutsForm {
    /// Maximum time that an operation waits for approval (default: 24h).
    #[serde(default)]
    approval: Option<DurationText>,
    /// Maximum time from the first command until all processes are ready (default: 5m).
    #[serde(default)]
    start: Option<DurationText>,
    /// Time from SIGTERM until SIGKILL (default: 10s).
    #[serde(default)]
    stop: Option<DurationText>,
}

impl From<TimeoutsForm> for PlanTimeouts {
    fn from(form: TimeoutsForm) -> PlanTimeouts {
        let usual = PlanTimeouts::default();
        PlanTimeouts {
            approval: millis(form.approval, usual.approval),
            start: millis(form.start, usual.start),
            stop: millis(form.stop, usual.stop),
        }
    }
}

/// Action on an incarnation that was ready and stays unready.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct UnreadyForm {
    /// Time of being unready after which the action is taken (default: 5m).
    #[serde(default)]
    after: Option<DurationText>,
    /// Action to take. `show`: the incarnation is shown as unready. `restart`: the
    /// incarnation is stopped, and started again by the `restart` rule.
    #[serde(default)]
    action: UnreadyAction,
}

impl From<UnreadyForm> for UnreadyRule {
    fn from(form: UnreadyForm) -> UnreadyRule {
        UnreadyRule { after: millis(form.after, UnreadyRule::default().after), action: form.action }
    }
}

/// Plan of a service: payloads, and rules of placement, approval and restart.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanForm {
    #[serde(default)]
    #[schemars(skip)]
    name: Option<PlanName>,
    /// Namespace of the plan's incarnations: a label, which isolates nothing.
    namespace: Namespace,
    /// Service that the plan provides; replicas are named after the service.
    #[serde(alias = "serviceName")]
    service: ServiceName,
    /// Labels of the plan's incarnations, on runtimes whose objects have labels.
    #[serde(default)]
    labels: BTreeMap<KeyName, String>,
    /// Cluster that placements are restricted to (default: any).
    #[serde(default)]
    cluster: Option<ClusterName>,
    /// Zone that placements are restricted to (default: any, if `zones` is absent, too).
    #[serde(default)]
    zone: Option<ZoneName>,
    /// Further zones that placements are restricted to: a node must be in one of them or in `zone`.
    #[serde(default)]
    zones: Vec<ZoneName>,
    /// Labels that a node must have.
    #[serde(default)]
    selectors: BTreeMap<KeyName, String>,
    /// Conditions on a node's capabilities, at most one for each type; all must hold.
    #[serde(default, alias = "matchingComputeCapabilities")]
    matchers: Vec<MatcherForm>,
    /// Whether replicas of the plan may share a node (default: `never`).
    #[serde(default)]
    sharing: Option<NodeSharing>,
    /// Placement of replicas on suitable nodes (default: spread). `spread`: in the update domain with the
    /// fewest replicas of the plan, there on the node with the fewest of them, then on the node with the
    /// least free capacity. `pack`: on the node with the least free capacity that suffices, in any domain.
    #[serde(default)]
    placement: Option<PlacementPolicy>,
    /// Payloads of a replica, at least one.
    #[serde(alias = "applications")]
    payloads: Vec<PayloadForm>,
    /// Affinities to groups of replicas, at most one for each group.
    #[serde(default)]
    affinity: Vec<AffinityRule>,
    /// Condition of an automatic restart after an end that was not requested (default: `on_failure`).
    #[serde(default)]
    restart: Option<RestartPolicy>,
    /// Delay between the first and the second automatic restart; the delay doubles each time, up to 32 times
    /// its first value (default: 10s). The first restart is immediate.
    #[serde(default)]
    restart_delay: Option<DurationText>,
    /// Order of the incarnations in an update (default: `start_first`). An update in place keeps its
    /// incarnation: only `simulated` clusters do that.
    #[serde(default)]
    update_order: Option<UpdateOrder>,
    /// Maximum number of replicas that disruptions move concurrently (default: 1).
    #[serde(default)]
    max_unavailable: Option<u32>,
    /// Approval of operations: a word for all kinds, or a word for each kind (default: manual).
    #[serde(default)]
    approval: Option<ApprovalForm>,
    /// Time limits of the plan's operations.
    #[serde(default)]
    timeouts: TimeoutsForm,
    /// Action on an incarnation that was ready and stays unready.
    #[serde(default)]
    unready: UnreadyForm,
}

impl From<PlanForm> for PlanSpec {
    fn from(form: PlanForm) -> PlanSpec {
        PlanSpec {
            namespace: form.namespace,
            service: form.service,
            labels: form.labels,
            cluster: form.cluster,
            zone: form.zone,
            zones: form.zones,
            selectors: form.selectors,
            matchers: form.matchers.into_iter().map(CapabilityMatcher::from).collect(),
            sharing: form.sharing.unwrap_or(NodeSharing::Never),
            placement: form.placement.unwrap_or(PlacementPolicy::Spread),
            affinity: form.affinity,
            payloads: form.payloads.into_iter().map(Payload::from).collect(),
            restart: form.restart.unwrap_or(RestartPolicy::OnFailure),
            restart_delay: millis(form.restart_delay, 10_000),
            update_order: form.update_order.unwrap_or(UpdateOrder::StartFirst),
            max_unavailable: form.max_unavailable.unwrap_or(1),
            approval: form.approval.map_or(ApprovalPolicy::all(ApprovalMode::Manual), |form| form.0),
            timeouts: form.timeouts.into(),
            unready: form.unready.into(),
        }
    }
}

/// Version of one payload, as an element of a list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CoordinatesForm {
    #[serde(alias = "payloadName")]
    payload_name: PayloadName,
    coordinates: BTreeMap<KeyName, String>,
}

/// Deployment: a version of a plan's payloads, and a number of replicas.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeploymentForm {
    #[serde(default, alias = "deployment_id")]
    #[schemars(skip)]
    name: Option<DeploymentName>,
    /// Plan that the deployment belongs to.
    #[serde(alias = "deployment_plan_name")]
    plan: PlanName,
    /// Keys and values that select the version, for each payload that has any.
    #[serde(default)]
    coordinates: PayloadCoordinates,
    #[serde(default)]
    #[schemars(skip)]
    payload_coordinates: Vec<CoordinatesForm>,
    /// Desired number of replicas.
    #[serde(alias = "instance_count")]
    count: u32,
    /// Strategy of the deployment (default: rolling).
    #[serde(default)]
    #[schemars(with = "Option<StrategyForm>")]
    strategy: StrategyForm,
    /// Time without progress until the deployment is called stalled (default: 10m).
    #[serde(default)]
    progress_deadline: Option<DurationText>,
    /// Whether the deployment is rolled back when it fails or is stalled (default: false).
    #[serde(default)]
    auto_rollback: bool,
    /// Whether the deployment waits for the one that is being carried out, or supersedes it.
    #[serde(default)]
    overlap: OverlapPolicy,
}
