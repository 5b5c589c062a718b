//! The forms that people fill in, by kind, and the exact specs that these become.
//!
//! The names here are the documented ones. Aliases take the bodies of plans and deployments that people already
//! have: `serviceName`, `applications`, `payload_coordinates`, `instance_count` and their like.

use std::collections::BTreeMap;

use chancery_events::amount::Resources;
use chancery_events::intent::{DeploymentCreate, Intent, NodeApply, OverlapPolicy, PlanApply, PolicyApply};
use chancery_events::name::{
    CapabilityName, CapabilityType, ClusterName, DeploymentName, DomainName, KeyName, Namespace, NodeName,
    PayloadName, PlanName, PolicyName, PortName, ServiceName, StorageClass, VolumeName, ZoneName,
};

use chancery_events::spec::{
    AffinityRule, ApprovalMode, ApprovalPolicy, CapabilityMatcher, DeploymentSpec, ExecSpec, MatchComparator,
    NodeSharing, NodeSpec, NodeStorage, PROGRESS_DEADLINE, Payload, PayloadCoordinates, PayloadPort,
    PlacementPolicy, PlanSpec, PlanTimeouts, PortProtocol, ProbeTiming, ReadinessProbe, RestartPolicy,
    UnreadyAction, UnreadyRule, UpdateOrder, VolumeClaim, VolumeDeletion,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_saphyr::{Location, Spanned};

use super::approval::ApprovalForm;
use super::edge::{AnyCase, CpuAmount, DiskAmount, DurationText, MemoryAmount};
use super::policy::PolicyForm;
use super::strategy::StrategyForm;

/// A spec as people write it, where that is not as it is kept.
pub(super) trait SpecForm: DeserializeOwned + JsonSchema {
    /// The type of the entity's name.
    type Name: DeserializeOwned + JsonSchema + PartialEq;
    /// Whether the metadata may have labels.
    const HAS_LABELS: bool = false;
    /// The name, where older bodies have it.
    fn inner_name(&mut self) -> Option<Spanned<Self::Name>> {
        None
    }
    /// What it asks for, or what is wrong and, if at a place of its own, where.
    fn intent(self, name: Self::Name, labels: NodeLabels) -> Result<Intent, FormFault>;
}

/// Labels of a node.
pub(super) type NodeLabels = BTreeMap<KeyName, String>;
/// What is wrong with a form and, if at a place of its own, where.
pub(super) type FormFault = (String, Option<Location>);

impl SpecForm for NodeForm {
    type Name = NodeName;
    const HAS_LABELS: bool = true;
    fn intent(self, name: NodeName, labels: NodeLabels) -> Result<Intent, FormFault> {
        let storage = |one: StorageForm| NodeStorage { class: one.class, capacity: one.capacity.0 };
        let spec = NodeSpec {
            domain: self.domain,
            zone: self.zone,
            labels,
            total: self.resources.into(),
            reserved: self.reserved.into(),
            capabilities: self.capabilities,
            storage: self.storage.into_iter().map(storage).collect(),
        };
        Ok(NodeApply { name, spec, cluster: self.cluster }.into())
    }
}

impl SpecForm for PlanForm {
    type Name = PlanName;
    fn inner_name(&mut self) -> Option<Spanned<PlanName>> {
        self.name.take()
    }
    fn intent(self, name: PlanName, _: NodeLabels) -> Result<Intent, FormFault> {
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
    fn inner_name(&mut self) -> Option<Spanned<DeploymentName>> {
        self.name.take()
    }
    fn intent(self, name: DeploymentName, _: NodeLabels) -> Result<Intent, FormFault> {
        let mut coordinates = self.coordinates;
        for Spanned { value: form, referenced, .. } in self.payload_coordinates {
            if coordinates.insert(form.payload_name.clone(), form.coordinates).is_some() {
                let what = format!("coordinates of payload {} are given twice", form.payload_name);
                return Err((what, Some(referenced)));
            }
        }
        let spec = DeploymentSpec {
            coordinates,
            count: self.count,
            strategy: self.strategy.0,
            progress_deadline: millis(self.progress_deadline, PROGRESS_DEADLINE),
            auto_rollback: self.auto_rollback,
        };
        Ok(DeploymentCreate { plan: self.plan, name, spec, turn: self.turn }.into())
    }
}

/// Amounts of a node or a payload.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct AmountsForm {
    /// Cores.
    #[serde(default, alias = "cores")]
    cpu: CpuAmount,
    /// Memory; a bare number is GiB.
    #[serde(default)]
    memory: MemoryAmount,
    /// Disk; a bare number is GB.
    #[serde(default)]
    disk: DiskAmount,
}

impl From<AmountsForm> for Resources {
    fn from(form: AmountsForm) -> Resources {
        Resources { cpu: form.cpu.0, memory: form.memory.0, disk: form.disk.0 }
    }
}

/// Storage of one class on a node.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StorageForm {
    /// Its class.
    #[serde(alias = "storageClass")]
    class: StorageClass,
    /// How much; a bare number is GB.
    capacity: DiskAmount,
}

/// A place with capacity.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeForm {
    /// The cluster that it is allocated to, if it is in none.
    #[serde(default)]
    cluster: Option<ClusterName>,
    /// The update domain: nodes that may go together.
    #[serde(alias = "updateDomain", alias = "update_domain")]
    domain: DomainName,
    /// Where it stands.
    #[serde(default)]
    zone: Option<ZoneName>,
    /// All that it has.
    #[serde(alias = "total")]
    resources: AmountsForm,
    /// What of it is not for placements.
    #[serde(default)]
    reserved: AmountsForm,
    /// What it has, by name.
    #[serde(default)]
    capabilities: Vec<CapabilityName>,
    /// Storage, at most one entry a class.
    #[serde(default)]
    storage: Vec<StorageForm>,
}

/// A condition on a node's capabilities of one type.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MatcherForm {
    /// The type whose capabilities are compared.
    #[serde(rename = "type", alias = "capabilityType")]
    kind: CapabilityType,
    /// How.
    comparator: AnyCase<MatchComparator>,
    /// With which.
    #[serde(alias = "capabilityNames")]
    names: Vec<CapabilityName>,
}

impl From<MatcherForm> for CapabilityMatcher {
    fn from(form: MatcherForm) -> CapabilityMatcher {
        CapabilityMatcher { kind: form.kind, comparator: form.comparator.0, names: form.names }
    }
}

/// A port of a payload.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PortForm {
    /// Its name, for `${port.NAME}`; without one, the protocol and the number, as in `tcp-80`.
    #[serde(default)]
    name: Option<PortName>,
    /// Its protocol.
    protocol: AnyCase<PortProtocol>,
    /// The number inside the run, where the runtime has an inside; processes are assigned free ones.
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
    /// The volume, if it is one with a name of its own, which plans may hand to each other. Without, each replica has
    /// its own.
    #[serde(default)]
    volume: Option<VolumeName>,
    /// What becomes of a replica's own volume when the replica is deleted: keep or destroy.
    #[serde(default, alias = "onDelete")]
    on_delete: VolumeDeletion,
    /// Its class.
    #[serde(alias = "storageClass")]
    class: StorageClass,
    /// How much; a bare number is GB.
    capacity: DiskAmount,
    /// Where the payload sees it.
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
        /// A check of a process from outside.
        #[derive(Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case", deny_unknown_fields)]
        pub(super) enum ProbeForm {
            $($(#[$doc])* $kind {
                $($(#[$field_doc])* $field: $type,)*
                /// Time before the first attempt: 0s unless set; at most 1h.
                #[serde(default)]
                initial_delay: Option<DurationText>,
                /// Time from one attempt to the next: 2s unless set; from 100ms to 1h. A readiness probe that does not pass
                /// makes its attempts every 200ms at least.
                #[serde(default)]
                period: Option<DurationText>,
                /// Time after which an attempt has failed: 1s unless set; from 1ms to 1h.
                #[serde(default)]
                timeout: Option<DurationText>,
                /// Number of failures in a row after which the probe fails: 3 unless set; from 1 to 1000.
                #[serde(default)]
                failure_threshold: Option<u32>,
                /// Number of successes in a row after which the probe passes: 1 unless set; from 1 to 1000; of `alive` 1.
                #[serde(default)]
                success_threshold: Option<u32>,
            },)*
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
                }
            }
        }
    };
}

probes! {
    /// The port accepts a connection.
    Tcp {
        /// The port's name.
        port: PortName,
    }
    /// `GET path` at the port answers 2xx.
    Http {
        /// The port's name.
        port: PortName,
        /// The path, beginning with `/`.
        path: String,
    }
}

/// A duration in milliseconds, or what is usual.
fn millis(given: Option<DurationText>, usual: u64) -> u64 {
    given.map_or(usual, |DurationText(millis)| millis)
}

/// A part of a plan's replica: one or more equal processes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PayloadForm {
    /// Its name, unique in the plan.
    #[serde(alias = "payloadName")]
    name: PayloadName,
    /// What each of its processes needs, and of memory may have at most.
    resources: AmountsForm,
    /// How many processes, at least one.
    #[serde(default = "one")]
    processes: u16,
    /// Its ports, each process its own.
    #[serde(default)]
    ports: Vec<PortForm>,
    /// Its storage.
    #[serde(default, alias = "persistentVolumes")]
    volumes: Vec<VolumeForm>,
    /// What to start.
    #[serde(default)]
    run: Option<ExecSpec>,
    /// When it is ready.
    #[serde(default)]
    ready: Option<ProbeForm>,
    /// Whether it still answers, from when the run was first ready. A run whose probe fails is ended, and started again
    /// by the plan's `restart` rule.
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
            ready: form.ready.map(ReadinessProbe::from),
            alive: form.alive.map(ReadinessProbe::from),
        }
    }
}

/// How long things may take.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct TimeoutsForm {
    /// An operation waits for approval at most this long: 24h unless set.
    #[serde(default)]
    approval: Option<DurationText>,
    /// From the first command until ready: 5m unless set.
    #[serde(default)]
    start: Option<DurationText>,
    /// From SIGTERM until SIGKILL: 10s unless set.
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

/// What is done about a run that was ready and stays unready.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct UnreadyForm {
    /// Time of being unready after which the action is taken: 5m unless set.
    #[serde(default)]
    after: Option<DurationText>,
    /// `show`: it is shown as unready, and nothing is done. `restart`: it is ended, and started again by the `restart`
    /// rule. show, unless set.
    #[serde(default)]
    action: UnreadyAction,
}

impl From<UnreadyForm> for UnreadyRule {
    fn from(form: UnreadyForm) -> UnreadyRule {
        UnreadyRule { after: millis(form.after, UnreadyRule::default().after), action: form.action }
    }
}

/// What to run and where it may run.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanForm {
    #[serde(default)]
    #[schemars(skip)]
    name: Option<Spanned<PlanName>>,
    /// The namespace that its runs live in.
    namespace: Namespace,
    /// The service that it provides; replicas are named after it.
    #[serde(alias = "serviceName")]
    service: ServiceName,
    /// Only nodes of this cluster.
    #[serde(default)]
    cluster: Option<ClusterName>,
    /// Only nodes of this zone.
    #[serde(default)]
    zone: Option<ZoneName>,
    /// Only nodes with these labels.
    #[serde(default)]
    selectors: BTreeMap<KeyName, String>,
    /// Only nodes with such capabilities; all must hold, at most one a type.
    #[serde(default, alias = "matchingComputeCapabilities")]
    matchers: Vec<MatcherForm>,
    /// Whether its replicas may share a node.
    #[serde(default)]
    sharing: Option<NodeSharing>,
    /// Where its replicas are placed, among the nodes that will do. `spread`: in the update domain with the fewest of the
    /// plan's replicas, there on the node with the fewest of them, then on the node with the least free. `pack`: on the
    /// node with the least free that has enough, whatever its domain. `spread`, unless set.
    #[serde(default)]
    placement: Option<PlacementPolicy>,
    /// Its parts, at least one.
    #[serde(alias = "applications")]
    payloads: Vec<PayloadForm>,
    /// Where its replicas may be, given those of groups.
    #[serde(default)]
    affinity: Vec<AffinityRule>,
    /// When what ended by itself is started again: when it failed, unless set.
    #[serde(default)]
    restart: Option<RestartPolicy>,
    /// From the first to the second such start; twice as long each time in a row, up to 32 times. 10s, unless set.
    #[serde(default)]
    cooldown: Option<DurationText>,
    /// How an update gives way where it cannot be done in place: beside, unless set.
    #[serde(default)]
    update: Option<UpdateOrder>,
    /// How many of its replicas disruptions may move at once: one, unless set.
    #[serde(default)]
    budget: Option<u32>,
    /// Who approves: a word for all, or by kind of operation. A person, unless set.
    #[serde(default)]
    approval: Option<ApprovalForm>,
    /// How long things may take.
    #[serde(default)]
    timeouts: TimeoutsForm,
    /// What is done about a run that was ready and stays unready.
    #[serde(default)]
    unready: UnreadyForm,
}

impl From<PlanForm> for PlanSpec {
    fn from(form: PlanForm) -> PlanSpec {
        PlanSpec {
            namespace: form.namespace,
            service: form.service,
            cluster: form.cluster,
            zone: form.zone,
            selectors: form.selectors,
            matchers: form.matchers.into_iter().map(CapabilityMatcher::from).collect(),
            sharing: form.sharing.unwrap_or(NodeSharing::Never),
            placement: form.placement.unwrap_or(PlacementPolicy::Spread),
            affinity: form.affinity,
            payloads: form.payloads.into_iter().map(Payload::from).collect(),
            restart: form.restart.unwrap_or(RestartPolicy::BestEffort),
            cooldown: millis(form.cooldown, 10_000),
            update: form.update.unwrap_or(UpdateOrder::Beside),
            budget: form.budget.unwrap_or(1),
            approval: form.approval.map_or(ApprovalPolicy::all(ApprovalMode::Manual), |form| form.0),
            timeouts: form.timeouts.into(),
            unready: form.unready.into(),
        }
    }
}

/// Which version of one payload to run, as a list has it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CoordinatesForm {
    #[serde(alias = "payloadName")]
    payload_name: PayloadName,
    coordinates: BTreeMap<KeyName, String>,
}

/// A version of a plan's payloads, and a count.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeploymentForm {
    #[serde(default, alias = "deployment_id")]
    #[schemars(skip)]
    name: Option<Spanned<DeploymentName>>,
    /// Of which plan.
    #[serde(alias = "deployment_plan_name")]
    plan: PlanName,
    /// For each payload that has any: its keys and their values.
    #[serde(default)]
    coordinates: PayloadCoordinates,
    #[serde(default)]
    #[schemars(skip)]
    payload_coordinates: Vec<Spanned<CoordinatesForm>>,
    /// How many replicas.
    #[serde(alias = "instance_count")]
    count: u32,
    /// How the plan's replicas come to be so: a few at a time, unless set.
    #[serde(default)]
    #[schemars(with = "Option<StrategyForm>")]
    strategy: StrategyForm,
    /// Time without progress until the deployment is called stalled (default: 10m).
    #[serde(default)]
    progress_deadline: Option<DurationText>,
    /// Whether the deployment is rolled back when it fails or is stalled (default: false).
    #[serde(default)]
    auto_rollback: bool,
    /// Whether it waits for one that is being carried out, or takes its place.
    #[serde(default)]
    turn: OverlapPolicy,
}
