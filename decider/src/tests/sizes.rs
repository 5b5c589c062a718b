//! Entities that must not grow until a record cannot contain their later facts.

use chancery_events::fact::CommandEffect;
use chancery_events::id::ObjectId;
use chancery_events::intent::PlanApply;
use chancery_events::observation::{IncarnationExit, PROCESSES_BYTES, PortAddress, RuntimeObject};
use chancery_events::spec::{Payload, PlanSpec};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

/// Size of a plan.
#[derive(Clone, Copy, Debug)]
struct PlanShape {
    payloads: usize,
    ports: usize,
    /// Characters in names of payloads and ports.
    name: usize,
    /// Processes, in hundredths of what fits into a report.
    fill: usize,
    volumes: usize,
    /// Characters in the mounts of volumes.
    mount: usize,
    /// Bytes of another plan in the same commit, before each report.
    before: usize,
}

fn shapes() -> impl Strategy<Value = PlanShape> {
    let ports = prop_oneof![Just(0), 0..10_usize, 0..=64_usize];
    let payloads = prop_oneof![Just(1), 1..=64_usize];
    (payloads, ports, 6..=63_usize, 1..=110_usize, 0..=66_usize, 8..=255_usize, 0..250_000_usize).prop_map(
        |(payloads, ports, name, fill, volumes, mount, before)| PlanShape {
            payloads,
            ports,
            name,
            fill,
            volumes,
            mount,
            before,
        },
    )
}

fn spec(shape: PlanShape) -> PlanSpec {
    let long =
        |prefix: &str, i: usize, most: usize| format!("{prefix}{i:0>width$}", width = most - prefix.len());
    let ports: Vec<_> = (0..shape.ports)
        .map(|i| json!({"name": long("p", i, shape.name), "protocol": "TCP", "port": 80}))
        .collect();
    let payload = |i: usize| {
        let volumes = if i == 0 { shape.volumes } else { 0 };
        let volumes: Vec<_> = (0..volumes)
            .map(|i| json!({"class": "c", "capacity": 1, "mount": long("/v", i, shape.mount), "on_delete": "destroy"}))
            .collect();
        json!({"name": long("a", i, shape.name), "resources": {"cpu": 0, "memory": 0}, "ports": ports, "volumes": volumes,
               "run": {"argv": ["app"]}})
    };
    let payloads: Vec<_> = (0..shape.payloads).map(payload).collect();
    let kinds = ["create", "update", "relocate", "restart", "start", "stop", "delete"];
    let approval: serde_json::Value = kinds
        .iter()
        .map(|kind| ((*kind).to_owned(), json!("automatic")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let spec = json!({"namespace": "ns", "service": "web", "payloads": payloads, "approval": approval});
    let mut spec: PlanSpec = serde_json::from_value(spec).expect("a spec");
    let each = PROCESSES_BYTES * shape.fill / 100 / spec.processes_bytes().max(1);
    for payload in &mut spec.payloads {
        payload.processes = u16::try_from(each.clamp(1, 1024)).expect("few");
    }
    spec
}

/// Returns variables with `bytes` bytes in all.
fn texts(bytes: usize) -> serde_json::Value {
    let all = (0..bytes.div_ceil(100_000)).map(|i| (format!("T{i}"), json!("x".repeat(bytes.min(100_000)))));
    all.collect::<serde_json::Map<_, _>>().into()
}

/// Returns the largest report of all processes of the plan.
fn processes(spec: &PlanSpec) -> Vec<ProcessInfo> {
    let address = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
    let process = |payload: &Payload, index| ProcessInfo {
        payload: payload.name.clone(),
        index,
        pid: None,
        object: Some(RuntimeObject { name: "p".repeat(63), uid: "u".repeat(36) }),
        addresses: payload
            .ports
            .iter()
            .map(|port| PortAddress { port: port.name.clone(), address: address.into() })
            .collect(),
        status: ProcessStatus::Waiting { reason: "r".repeat(64), message: String::new() },
        since: Some(Time::FAR),
        resets: u32::MAX,
    };
    spec.payloads
        .iter()
        .flat_map(|payload| (0..payload.processes).map(move |i| process(payload, i)))
        .collect()
}

impl DeciderFixture {
    /// Returns a cluster with a node that has storage, and its executor on connection 1.
    fn with_storage() -> DeciderFixture {
        let mut rig = DeciderFixture::new();
        rig.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
        let total = json!({"cpu": 4000, "memory": 8u64 << 30, "disk": 0});
        let storage = json!([{"class": "c", "capacity": 1_000_000}]);
        let spec = json!({"domain": "d", "resources": total, "storage": storage});
        rig.must("node.apply", &json!({"name": "n1", "cluster": "local", "spec": spec}));
        rig.hello(1, "ex", None);
        rig.settle();
        rig
    }

    fn asked(&self) -> Option<ObjectId> {
        self.core.fleet().index().pending_commands.first().map(|(_, object)| *object)
    }

    /// Reports about an object at its last revision.
    fn report_object(&mut self, object: ObjectId, observed: ObservedState) {
        self.tickets += 1;
        let sequence = self.tickets;
        let revision = match object {
            ObjectId::Incarnation(id) => {
                self.core.fleet().incarnations().get(&id).map_or(1, |it| it.revision)
            }
            ObjectId::Volume(id) => {
                let name = self.core.fleet().index().volumes.name(id).expect("a volume");
                self.core.fleet().volumes().get(name).map_or(1, |volume| volume.revision)
            }
        };
        let report = ObjectReport { object, revision, observed };
        self.send(
            1,
            ExecutorMessage::Report { connection: ConnectionToken::from_random(1), sequence, report },
        );
    }

    /// Executes all commands, with the largest possible reports.
    fn obey(&mut self, spec: &PlanSpec, shape: PlanShape) {
        loop {
            self.settle();
            let Some(object) = self.asked() else { return };
            if shape.before > 0 {
                let mut env = texts(shape.before);
                env["N"] = json!(self.tickets.to_string());
                let run = json!({"argv": ["x"], "env": env});
                let payload = json!({"name": "a", "resources": {"cpu": 0, "memory": 0}, "run": run});
                let other = json!({"namespace": "ns", "service": "other", "payloads": [payload]});
                self.must("plan.apply", &json!({"name": "other", "spec": other}));
            }
            let observed = match object {
                ObjectId::Volume(id) => {
                    let name = self.core.fleet().index().volumes.name(id).expect("a volume");
                    let asked = self.core.fleet().volumes().get(name).and_then(|volume| volume.command);
                    match asked.map(|command| command.effect) {
                        Some(CommandEffect::Ensure) => ObservedState::Ready { processes: vec![] },
                        _ => ObservedState::Gone,
                    }
                }
                ObjectId::Incarnation(id) => {
                    let asked = self.core.fleet().incarnations().get(&id).and_then(|it| it.last_effect);
                    if asked == Some(CommandEffect::Ensure) {
                        ObservedState::Ready { processes: processes(spec) }
                    } else {
                        let mut processes = processes(spec);
                        for process in &mut processes {
                            process.status = ProcessStatus::Signaled { signal: i32::MIN };
                        }
                        ObservedState::Ended {
                            exit: IncarnationExit::Failed { reason: "\u{1}".repeat(100_000) },
                            processes,
                        }
                    }
                }
            };
            self.report_object(object, observed);
            self.settle();
            assert_ne!(self.asked(), Some(object), "what was reported is not recorded: {shape:?}");
        }
    }
}

/// Whether the plan is accepted. An accepted plan has started, and is deleted again.
fn is_accepted(shape: PlanShape) -> bool {
    let mut rig = DeciderFixture::with_storage();
    let spec = spec(shape);
    let bytes = spec.processes_bytes();
    let intent = PlanApply { name: name("web"), spec: spec.clone() }.into();
    let request = IntentRequest { intent, ..rig.request("cluster.delete", &json!({"name": "none"})) };
    rig.ask(&request);
    let answered = answers(&rig.settle()).pop().expect("an answer").2;
    if let Some(code) = answered {
        let is_right = match code {
            RefusalCode::Invalid => bytes > PROCESSES_BYTES || shape.volumes > 64,
            code => code == RefusalCode::TooLarge,
        };
        assert!(is_right, "{code:?} of {bytes} bytes: {shape:?}");
        return false;
    }
    assert!(bytes <= PROCESSES_BYTES, "a plan is accepted whose processes have {bytes} bytes: {shape:?}");
    rig.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
    rig.obey(&spec, shape);
    let replica = rig.core.fleet().replicas().sorted().first().expect("a replica").name.clone();
    let ready = rig
        .core
        .fleet()
        .incarnations()
        .sorted()
        .iter()
        .all(|it| it.ready && it.processes == processes(&spec));
    assert!(ready, "{shape:?}");
    rig.must("replica.delete", &json!({"name": replica}));
    rig.obey(&spec, shape);
    assert!(rig.core.fleet().replicas().is_empty(), "{shape:?}");
    assert!(rig.core.fleet().volumes().is_empty(), "{shape:?}");
    assert!(
        rig.journal.iter().all(|record| record.header().count <= 1000 && record.bytes().len() <= 1 << 20)
    );
    true
}

#[test]
fn every_plan_that_validates_can_be_created_reported_and_ended() {
    let shape = PlanShape { payloads: 1, ports: 0, name: 6, fill: 100, volumes: 0, mount: 8, before: 0 };
    let largest = [
        shape,
        PlanShape { name: 63, ports: 9, before: 240_000, ..shape },
        PlanShape { payloads: 64, name: 63, volumes: 64, mount: 255, before: 250_000, ..shape },
        PlanShape { payloads: 8, ports: 64, name: 63, volumes: 64, mount: 255, before: 250_000, ..shape },
    ];
    for shape in largest {
        assert!(is_accepted(shape), "{shape:?}");
    }
    // As many processes as each payload may have: 64 payloads of 1024, and 1024 with nine ports.
    for shape in [PlanShape { payloads: 64, ..shape }, PlanShape { ports: 9, ..shape }] {
        assert!(!is_accepted(PlanShape { fill: 100_000, ..shape }), "{shape:?}");
    }
    let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    let lived = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&shapes(), |shape| {
            lived.set(lived.get() + u32::from(is_accepted(shape)));
            Ok(())
        })
        .expect("every plan that validates");
    assert!(lived.get() > 20, "{lived:?}");
}

#[test]
fn an_ending_larger_than_any_plan_allows_is_recorded_without_its_processes() {
    let mut rig = DeciderFixture::with_storage();
    rig.plan_and_deployment();
    rig.settle();
    let object = rig.asked().expect("an ensure");
    let process = ProcessInfo {
        payload: name("app"),
        index: 0,
        pid: Some(1),
        object: None,
        addresses: vec![],
        status: ProcessStatus::Ready,
        since: None,
        resets: 0,
    };
    let many = vec![process.clone(); 65_536];
    rig.report_object(object, ObservedState::Ready { processes: many.clone() });
    rig.settle();
    assert_eq!(rig.asked(), Some(object), "the state of processes that the plan does not have is ignored");
    let far = PortAddress { port: name("http"), address: "x".repeat(PROCESSES_BYTES) };
    rig.report_object(
        object,
        ObservedState::Ready { processes: vec![ProcessInfo { addresses: vec![far], ..process.clone() }] },
    );
    rig.settle();
    let shown = rig.core.fleet().incarnations().sorted()[0].processes.clone();
    assert_eq!(shown, [process], "its addresses are omitted");
    let exit = IncarnationExit::Failed { reason: "x".repeat(2 << 20) };
    rig.report_object(object, ObservedState::Ended { exit, processes: many });
    rig.settle();
    let first = *rig.core.fleet().incarnations().sorted().first().expect("the one that was reported");
    assert!(!first.is_live(), "{first:?}");
}

#[test]
fn an_intent_that_no_record_can_hold_is_too_large_and_not_an_internal_error() {
    let mut rig = DeciderFixture::new();
    let from = rig.journal.len();
    rig.must("cluster.delete", &json!({"name": "none"}));
    let run = json!({"argv": ["app"], "env": texts(600_000)});
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": run});
    let spec = json!({"namespace": "ns", "service": "web", "payloads": [payload]});
    rig.must("plan.apply", &json!({"name": "web", "spec": spec}));
    let codes: Vec<_> = answers(&rig.settle()).into_iter().map(|(_, _, code)| code).collect();
    assert_eq!(codes, [Some(RefusalCode::NotFound), Some(RefusalCode::TooLarge)]);
    let refused = rig.types(from).iter().filter(|t| **t == "intent.refused.v1").count();
    assert_eq!(refused, 2, "the refusal is recorded");
}
