//! Manifests, and the intents or errors that they result in.

use chancery_events::intent::{NodeApply, OverlapPolicy, PlanApply};
use chancery_events::resources::{GB, GIB, Resources};
use chancery_events::spec::{
    ApprovalMode, ApprovalWindow, DeploymentStrategy, MatchComparator, OperationKind, PolicyKind, PolicyRule,
    PortProtocol, ProbeTiming, ReadinessProbe, RestartPolicy, TimeoutAction, UnreadyAction, UpdateOrder,
    Weekday,
};

use super::*;

mod reference;

fn only(text: &str) -> Intent {
    let manifests = read("f.yaml", text).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(manifests.len(), 1, "{text}");
    manifests[0].intent.clone()
}

fn header(kind: &str, spec: &str) -> String {
    let spec = spec.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n");
    format!("apiVersion: chancery/v1\nkind: {kind}\nmetadata:\n  name: x\nspec:\n{spec}\n")
}

/// Existing body of a plan, with older field names.
const SEED_PLAN: &str = r#"
name: "nginx-deployment-plan"
namespace: "nginx-namespace"
serviceName: "nginx-service"
matchingComputeCapabilities:
  - capabilityType: "GPU"
    comparator: "gte"
    capabilityNames:
      - "nvidia-v100"
      - "nvidia-p100"
  - capabilityType: "CPU"
    comparator: "eq"
    capabilityNames:
      - "intel-xeon"
applications:
  - payloadName: "nginx-payload"
    resources:
      cores: 4
      memory: 64
    ports:
      - protocol: "TCP"
        port: 80
      - protocol: "UDP"
        port: 53
    persistentVolumes:
      - storageClass: "standard"
        capacity: 100
        mountPath: "/data"
      - storageClass: "fast-ssd"
        capacity: 500
        mountPath: "/ssd"
"#;

/// Existing body of a deployment, with older field names.
const SEED_DEPLOYMENT: &str = r#"
deployment_plan_name: "nginx-deployment-plan"
deployment_id: "deployment-1"
payload_coordinates:
  - payload_name: "nginx-payload"
    coordinates:
      image: "nginx:latest"
instance_count: 1
"#;

fn under_header(kind: &str, body: &str) -> String {
    header(kind, body).replace("metadata:\n  name: x\n", "")
}

#[test]
fn a_plan_that_people_have_needs_a_header_and_nothing_else() {
    let Intent::PlanApply(PlanApply { name, spec }) = only(&under_header("Plan", SEED_PLAN)) else {
        panic!("a plan")
    };
    assert_eq!((name.as_str(), spec.service.as_str()), ("nginx-deployment-plan", "nginx-service"));
    let matchers: Vec<_> =
        spec.matchers.iter().map(|m| (m.kind.as_str(), m.comparator, m.names.len())).collect();
    assert_eq!(matchers, [("GPU", MatchComparator::Gte, 2), ("CPU", MatchComparator::Eq, 1)]);
    let payload = &spec.payloads[0];
    assert_eq!(payload.resources, Resources { cpu: 4000, memory: 64 * GIB, disk: 0 });
    let ports: Vec<_> = payload.ports.iter().map(|p| (p.name.as_str(), p.protocol, p.port)).collect();
    assert_eq!(ports, [("tcp-80", PortProtocol::Tcp, 80), ("udp-53", PortProtocol::Udp, 53)]);
    let volumes: Vec<_> =
        payload.volumes.iter().map(|v| (v.class.as_str(), v.capacity, v.mount.as_str())).collect();
    assert_eq!(volumes, [("standard", 100 * GB, "/data"), ("fast-ssd", 500 * GB, "/ssd")]);
}

#[test]
fn a_deployment_that_people_have_needs_a_header_and_nothing_else() {
    let Intent::DeploymentCreate(create) = only(&under_header("Deployment", SEED_DEPLOYMENT)) else {
        panic!("a deployment")
    };
    assert_eq!((create.plan.as_str(), create.name.as_str()), ("nginx-deployment-plan", "deployment-1"));
    assert_eq!(create.spec.count, 1);
    assert_eq!(create.spec.coordinates["nginx-payload"]["image"], "nginx:latest");
}

#[test]
fn documented_names_mean_the_same() {
    let native = header(
        "Deployment",
        "plan: nginx-deployment-plan\ncoordinates:\n  nginx-payload: {image: 'nginx:latest'}\ncount: 1",
    )
    .replace("name: x", "name: deployment-1");
    assert_eq!(only(&native), only(&under_header("Deployment", SEED_DEPLOYMENT)));
}

#[test]
fn a_node_has_the_labels_of_its_metadata_and_exact_amounts() {
    let text = "apiVersion: chancery/v1\nkind: Node\nmetadata: {name: node-1, labels: {disk: fast}}\nspec:\n  \
        cluster: local\n  updateDomain: a\n  resources: {cpu: 500m, memory: 512MiB, disk: 100}\n  \
        reserved: {cores: 0.25}\n  storage: [{class: fast-ssd, capacity: 1TiB}]\n";
    let Intent::NodeApply(NodeApply { spec, cluster, .. }) = only(text) else { panic!("a node") };
    assert_eq!(spec.labels["disk"], "fast");
    assert_eq!(cluster.expect("a cluster").as_str(), "local");
    assert_eq!(spec.resources, Resources { cpu: 500, memory: 512 << 20, disk: 100 * GB });
    assert_eq!((spec.reserved.cpu, spec.storage[0].capacity), (250, 1 << 40));
}

#[test]
fn approval_is_one_word_or_one_for_each_kind() {
    let plan = |approval: &str| {
        let spec = format!("namespace: n\nservice: s\npayloads: []\n{approval}\ntimeouts: {{stop: 30s}}");
        let Intent::PlanApply(plan) = only(&header("Plan", &spec)) else { panic!("a plan") };
        (
            plan.spec.approval.of(OperationKind::Create),
            plan.spec.approval.of(OperationKind::Delete),
            plan.spec.timeouts,
        )
    };
    assert_eq!(plan("approval: automatic").0, ApprovalMode::Automatic);
    let (create, delete, timeouts) = plan("approval: {create: automatic}");
    assert_eq!((create, delete), (ApprovalMode::Automatic, ApprovalMode::Manual));
    assert_eq!((timeouts.stop, timeouts.start), (30_000, 300_000));
    assert_eq!(plan("").0, ApprovalMode::Manual, "manual unless the plan has another value");
}

#[test]
fn every_kind_of_operation_has_a_value_of_its_own() {
    for kind in OperationKind::ALL {
        let spec = format!("namespace: n\nservice: s\npayloads: []\napproval: {{{kind}: automatic}}");
        let Intent::PlanApply(plan) = only(&header("Plan", &spec)) else { panic!("a plan") };
        let automatic: Vec<_> = OperationKind::ALL
            .iter()
            .filter(|kind| plan.spec.approval.of(**kind) == ApprovalMode::Automatic)
            .collect();
        assert_eq!(automatic, [kind]);
    }
}

#[test]
fn a_plan_sets_how_its_replicas_are_kept_alive_and_what_it_omits_is_the_default() {
    let plan = |lines: &str| {
        let spec = format!("namespace: n\nservice: s\npayloads: []\n{lines}");
        let Intent::PlanApply(plan) = only(&header("Plan", &spec)) else { panic!("a plan") };
        (
            plan.spec.restart,
            plan.spec.restart_delay,
            plan.spec.update_order,
            plan.spec.max_unavailable,
            plan.spec.affinity.len(),
        )
    };
    assert_eq!(plan(""), (RestartPolicy::OnFailure, 10_000, UpdateOrder::StartFirst, 1, 0));
    let all = "restart: never\nrestart_delay: 1m\nupdate_order: stop_first\nmax_unavailable: 2\n\
        affinity: [{group: caches, kind: anti_affinity, policy: allow}]";
    assert_eq!(plan(all), (RestartPolicy::Never, 60_000, UpdateOrder::StopFirst, 2, 1));
}

#[test]
fn a_probe_has_its_settings_alongside_its_port_and_what_it_omits_is_the_default() {
    let plan = |lines: &str| {
        let payload = format!("payloads: [{{name: a, resources: {{}}, {lines}}}]");
        let spec = format!("namespace: n\nservice: s\nunready: {{after: 1m, action: restart}}\n{payload}");
        let Intent::PlanApply(plan) = only(&header("Plan", &spec)) else { panic!("a plan") };
        assert_eq!((plan.spec.unready.after, plan.spec.unready.action), (60_000, UnreadyAction::Restart));
        (plan.spec.payloads[0].ready.clone(), plan.spec.payloads[0].alive.clone())
    };
    let port = || "http".parse().expect("a name");
    let usual = ProbeTiming {
        initial_delay: 0,
        period: 2_000,
        timeout: 1_000,
        failure_threshold: 3,
        success_threshold: 1,
    };
    assert_eq!(
        plan("ready: {tcp: {port: http}}"),
        (Some(ReadinessProbe::Tcp { port: port(), timing: usual }), None)
    );
    let alive = "alive: {http: {port: http, path: /x, initial_delay: 5s, period: 500ms, timeout: 1m, failure_threshold: 5}}";
    let timing = ProbeTiming {
        initial_delay: 5_000,
        period: 500,
        timeout: 60_000,
        failure_threshold: 5,
        success_threshold: 1,
    };
    assert_eq!(plan(alive), (None, Some(ReadinessProbe::Http { port: port(), path: "/x".into(), timing })));
}

#[test]
fn a_strategy_is_a_word_or_one_block() {
    let rolling = |wave, per_domain, pause| DeploymentStrategy::Rolling {
        max_parallel: wave,
        per_domain,
        delay: pause,
    };
    for (text, wanted) in [
        ("", rolling(None, false, 0)),
        ("strategy: rolling", rolling(None, false, 0)),
        ("strategy: {rolling: {}}", rolling(None, false, 0)),
        (
            "strategy: {rolling: {max_parallel: 2, per_domain: true, delay: 10s}}",
            rolling(Some(2), true, 10_000),
        ),
        (
            "strategy:\n  blue_green:\n    timeout: 5m",
            DeploymentStrategy::BlueGreen { timeout: 300_000, on_timeout: TimeoutAction::Rollback },
        ),
        (
            "strategy: {blue_green: {timeout: 5m, on_timeout: cut_over}}",
            DeploymentStrategy::BlueGreen { timeout: 300_000, on_timeout: TimeoutAction::CutOver },
        ),
        ("strategy: {canary: {count: 1}}", DeploymentStrategy::Canary { count: 1 }),
    ] {
        let spec = format!("plan: p\ncount: 3\n{text}");
        let Intent::DeploymentCreate(create) = only(&header("Deployment", &spec)) else { panic!("one") };
        assert_eq!((create.spec.strategy, create.overlap), (wanted, OverlapPolicy::Queue), "{text}");
    }
    let spec = "plan: p\ncount: 3\noverlap: supersede";
    let Intent::DeploymentCreate(create) = only(&header("Deployment", spec)) else { panic!("one") };
    assert_eq!(create.overlap, OverlapPolicy::Supersede);
}

#[test]
fn a_policy_approves_at_times_or_wants_four_eyes() {
    let policy = |text: &str| {
        let Intent::PolicyApply(policy) = only(&header("Policy", text)) else { panic!("a policy") };
        assert_eq!(policy.name.as_str(), "x");
        policy.spec
    };
    let nightly = policy(
        "kinds: [update, Relocate]\nplans: [web]\ndomains: [a]\napprove:\n  windows:\n  \
         - {days: [sat, Sun], start: \"22:00\", duration: 8h}\n  - {start: 3:30, duration: 90m}\n  max_in_flight: 3",
    );
    assert_eq!(nightly.kinds, [PolicyKind::Update, PolicyKind::Relocate]);
    assert_eq!((nightly.plans[0].as_str(), nightly.domains[0].as_str()), ("web", "a"));
    let windows = vec![
        ApprovalWindow { days: vec![Weekday::Sat, Weekday::Sun], start: 1320, duration: 480 },
        ApprovalWindow { days: vec![], start: 210, duration: 90 },
    ];
    assert_eq!(nightly.rule, PolicyRule::Approve { windows, max_in_flight: Some(3) });
    assert_eq!(policy("approve: {}").rule, PolicyRule::Approve { windows: vec![], max_in_flight: None });
    assert_eq!(policy("kinds: [delete]\nfour_eyes: true").rule, PolicyRule::FourEyes {});
}

#[test]
fn words_are_read_in_any_case() {
    for (word, wanted) in [
        ("gte", MatchComparator::Gte),
        ("GTE", MatchComparator::Gte),
        ("NOT_IN", MatchComparator::NotIn),
        ("In", MatchComparator::In),
    ] {
        let spec = format!(
            "namespace: n\nservice: s\npayloads: []\nmatchers: [{{type: GPU, comparator: {word}, names: [a]}}]"
        );
        let Intent::PlanApply(plan) = only(&header("Plan", &spec)) else { panic!("a plan") };
        assert_eq!(plan.spec.matchers[0].comparator, wanted, "{word}");
    }
}

#[test]
fn values_are_the_literal_text() {
    let spec = "plan: p\ncount: 1\ncoordinates: {web: {version: 1.10, flag: on, zip: 007}}";
    let Intent::DeploymentCreate(create) = only(&header("Deployment", spec)) else { panic!("a deployment") };
    let web = &create.spec.coordinates["web"];
    assert_eq!([web["version"].as_str(), web["flag"].as_str(), web["zip"].as_str()], ["1.10", "on", "007"]);
}

#[test]
fn kinds_are_applied_in_the_order_of_their_references() {
    let cluster = header("Cluster", "runtime: process");
    let node = header("Node", "domain: a\nresources: {cpu: 1, memory: 1}");
    let kinds = ["Deployment", "Policy", "Plan"].map(|kind| match kind {
        "Policy" => header(kind, "four_eyes: true"),
        "Plan" => header(kind, "namespace: n\nservice: s\npayloads: []"),
        _ => header(kind, "plan: x\ncount: 1"),
    });
    let mut manifests = read("f.yaml", &kinds.join("---\n")).expect("three documents");
    sort(&mut manifests);
    assert!(matches!(
        [&manifests[0].intent, &manifests[1].intent, &manifests[2].intent],
        [Intent::PlanApply(_), Intent::PolicyApply(_), Intent::DeploymentCreate(_)]
    ));
    let text = format!("# nothing yet\n---\n{node}---\n{cluster}...\n---\n# nothing\n");
    let mut manifests = read("f.yaml", &text).expect("two documents");
    let places: Vec<_> = manifests.iter().map(|m| m.place.to_string()).collect();
    assert_eq!(places, ["f.yaml:3:1", "f.yaml:11:1"]);
    sort(&mut manifests);
    assert!(matches!(manifests[0].intent, Intent::ClusterApply(_)));
}

#[test]
fn only_nodes_have_labels_in_their_metadata() {
    let text = header("Cluster", "runtime: process").replace("name: x", "name: x\n  labels: {a: b}");
    let error = read("f.yaml", &text).expect_err("labels").to_string();
    assert_eq!(error, "f.yaml:5:11: invalid labels: only nodes have labels");
}

#[test]
fn a_row_is_no_manifest() {
    let error = read("f.json", "{\"name\": \"web\", \"version\": 1}").expect_err("a row").to_string();
    assert!(error.starts_with("f.json:1:1: invalid manifest") && error.contains("-o yaml"), "{error}");
}

#[test]
fn errors_name_the_location_and_what_to_write() {
    let plan = |extra: &str| header("Plan", &format!("namespace: n\nservice: s\npayloads: []\n{extra}"));
    let payload =
        |lines: &str| plan("").replace("payloads: []", &format!("payloads:\n  - name: web\n    {lines}"));
    let cases = [
        (header("Plam", "a: 1"), "2:7: invalid kind \"Plam\": did you mean \"Plan\"?"),
        (
            header("Pod", "a: 1").replace("/v1", "/v9"),
            "1:13: invalid apiVersion \"chancery/v9\": must be chancery/v1",
        ),
        ("kind: Plan\n".into(), "1:1: \"apiVersion\" is missing here"),
        ("kind: Plan\n  bad: : 1\n".into(), "2:6: mapping values are not allowed"),
        ("- a\n".into(), "1:1: a block of 'name: value' lines is expected here"),
        (plan("timeuots: {}"), "9:3: invalid field \"timeuots\": did you mean \"timeouts\"?"),
        (plan("timeouts: {start: 30}"), "9:21: invalid duration \"30\": must be as in 500ms, 30s, 5m or 24h"),
        (plan("namespace: m"), "9:3: \"namespace\" is given twice"),
        (plan("approval: automatc"), "9:13: invalid value \"automatc\": did you mean \"automatic\"?"),
        (plan("approval: {crate: manual}"), "9:14: invalid field \"crate\": did you mean \"create\"?"),
        (
            plan("matchers:\n  - {type: GPU, comparator: foo, names: [a]}"),
            "10:31: invalid comparator \"foo\": must be one of in, not_in, eq, gte, lte",
        ),
        (
            payload("resources: {cpu: 4, memroy: 64}"),
            "10:25: invalid field \"memroy\": did you mean \"memory\"?",
        ),
        (
            payload("resources: {cpu: 1e3}"),
            "10:22: invalid amount \"1e3\": must be cores as in 4, 1.5 or 500m",
        ),
        (payload("resources: {cpu: 1, cores: 1}"), "10:16: \"cpu\" is given twice"),
        (
            payload("resources: {}\n    ports: [{protocol: TCP, port: 70000}]"),
            "11:35: must be a whole number from 0 to 65535: \"70000\"",
        ),
        (payload("resources: {}\n    processes: x"), "11:16: must be a whole number from 0 to 65535: \"x\""),
        (
            plan("").replace("service: s", "service: A b"),
            "7:12: invalid character 'A' at position 1: use a-z, 0-9, '-' and '.', with a letter or digit at both ends: \"A b\"",
        ),
        (plan("").replace("service: s", "service:"), "7:"),
        (plan("").replace("  service: s\n", ""), "6:3: \"service\" is missing here"),
        (plan("name: y"), "9:9: invalid name: must equal metadata.name or be omitted"),
        (
            plan("").replace("name: x", "name: x\n  labels: {a: b}"),
            "5:11: invalid labels: labels of a plan must be in spec.labels, not in metadata.labels",
        ),
        (under_header("Cluster", "runtime: process"), "1:1: \"metadata.name\" is missing here"),
        (
            header("Cluster", "runtime: docker"),
            "6:12: invalid value \"docker\": must be one of process, simulated, kubernetes",
        ),
        (
            header("Deployment", "plan: p\ncount: -1"),
            "7:10: must be a whole number from 0 to 4294967295: \"-1\"",
        ),
        (
            header(
                "Deployment",
                "plan: p\ncount: 1\npayload_coordinates:\n- {payload_name: a, coordinates: {}}\n- {payload_name: a, coordinates: {}}",
            ),
            "10:5: invalid coordinates: payload a is given twice",
        ),
        (
            header("Deployment", "plan: p\ncount: 1\nstrategy: roling"),
            "8:13: invalid strategy \"roling\": did you mean \"rolling\"?",
        ),
        (
            header("Deployment", "plan: p\ncount: 1\nstrategy: blue_green"),
            "8:13: invalid strategy \"blue_green\": must have a timeout, as {blue_green: {timeout: 5m}}",
        ),
        (
            header("Deployment", "plan: p\ncount: 1\nstrategy: {canary: {count: 1}, rolling: {}}"),
            "8:13: invalid strategy: must be exactly one of rolling, blue_green, canary\n",
        ),
        (
            header("Deployment", "plan: p\ncount: 1\nstrategy: {rolling: {max_paralel: 2}}"),
            "8:24: invalid field \"max_paralel\": did you mean \"max_parallel\"?",
        ),
        (
            header("Policy", "approve: {windows: [{days: [satur], start: 25:00, duration: 90s}]}"),
            "6:31: invalid day \"satur\": did you mean \"sat\"?",
        ),
        (
            header("Policy", "kinds: [update]"),
            "1:1: invalid policy: must have \"spec.approve\" or \"spec.four_eyes\"",
        ),
        (header("Policy", "four_eyes: false"), "6:14: invalid four_eyes: must be true or omitted"),
        (
            header("Policy", "four_eyes: true\napprove: {}"),
            "6:14: invalid policy: must have either approve or four_eyes, or be divided into two policies",
        ),
    ];
    for (text, wanted) in cases {
        let faults = read("f.yaml", &text).expect_err(&text);
        assert!(
            format!("{faults}\n").starts_with(&format!("f.yaml:{wanted}")),
            "{faults}\nwanted {wanted}\n{text}"
        );
    }
}

#[test]
fn a_document_reports_all_its_faults_and_none_that_follows_from_another() {
    let spec = "namespace: A b\nserviice: s\npayloads:\n\
        - {name: web, resources: {cpu: 1e3, memroy: 64}, processes: x}\n\
        - {resources: {cpu: 4}, ports: [{protocol: SCTP, port: 80}, {protocol: TCP, port: 70000}]}\n\
        approval: {crate: manual, delete: automatc}\ntimeouts: {start: 30, stop: 5s}";
    let text = header("Plan", spec).replace("name: x", "name: X y\n  labls: {}");
    let faults = read("f.yaml", &text).expect_err("many errors");
    let wanted = [
        "4:9: invalid character 'X' at position 1: use a-z, 0-9, '-' and '.', with a letter or digit at both ends: \"X y\"",
        "5:3: invalid field \"labls\": did you mean \"labels\"?",
        "7:14: invalid character 'A' at position 1: use a-z, 0-9, '-' and '.', with a letter or digit at both ends: \"A b\"",
        "8:3: invalid field \"serviice\": did you mean \"service\"?",
        "10:34: invalid amount \"1e3\": must be cores as in 4, 1.5 or 500m",
        "10:39: invalid field \"memroy\": did you mean \"memory\"?",
        "10:63: must be a whole number from 0 to 65535: \"x\"",
        "11:46: invalid protocol \"SCTP\": must be one of TCP, UDP",
        "11:85: must be a whole number from 0 to 65535: \"70000\"",
        "12:14: invalid field \"crate\": did you mean \"create\"?",
        "12:37: invalid value \"automatc\": did you mean \"automatic\"?",
        "13:21: invalid duration \"30\": must be as in 500ms, 30s, 5m or 24h",
    ];
    let messages: Vec<_> = faults.to_string().lines().map(|line| line.replace("f.yaml:", "")).collect();
    assert_eq!(messages, wanted, "{text}");
    let many = format!("namespace: n\nservice: s\npayloads: [{}]", "x, ".repeat(100));
    assert_eq!(read("f.yaml", &header("Plan", &many)).expect_err("a hundred").0.len(), 20);
}

#[test]
fn what_a_server_points_to_is_found_in_the_file() {
    let seed = under_header("Plan", SEED_PLAN);
    let node = header("Node", "cluster: local\nupdateDomain: a\nresources: {cpu: 4, memory: 8}");
    let deployment = under_header("Deployment", SEED_DEPLOYMENT);
    let policy = header("Policy", "approve:\n  windows: [{start: 2:00, duration: 8h}]\n  max_in_flight: 0");
    let rolling = header("Deployment", "plan: p\ncount: 1\nstrategy: {rolling: {max_parallel: 0}}");
    let cases = [
        (&seed, "/name", "6:9", Some("nginx-deployment-plan")),
        (&seed, "/spec/matchers/1/type", "15:23", Some("CPU")),
        (&seed, "/spec/payloads/0/ports/1/port", "28:17", Some("53")),
        (&seed, "/spec/payloads/0/volumes/0/mount", "32:22", Some("/data")),
        (&seed, "/spec/payloads/0/run/argv/0", "20:7", None),
        (&seed, "/spec/timeouts/start", "6:3", None),
        (&node, "/name", "5:9", Some("x")),
        (&node, "/cluster", "7:12", Some("local")),
        (&node, "/spec/resources/cpu", "9:20", Some("4")),
        (&node, "/spec/domain", "8:17", Some("a")),
        (&deployment, "/spec/count", "12:19", Some("1")),
        (&deployment, "/spec/coordinates/web", "9:5", None),
        (&deployment, "/elsewhere", "2:1", None),
        (&policy, "/spec/rule/approve/max_in_flight", "9:20", Some("0")),
        (&policy, "/spec/rule/approve/windows/0/duration", "8:39", Some("8h")),
        (&rolling, "/spec/strategy/rolling/max_parallel", "9:38", Some("0")),
    ];
    for (text, pointer, place, value) in cases {
        let manifests = read("f.yaml", &format!("---\n{text}")).expect("a manifest");
        let (found, found_value) = manifests[0].locate(pointer);
        assert_eq!(
            (found.to_string(), found_value.as_deref()),
            (format!("f.yaml:{place}"), value),
            "{pointer}\n{text}"
        );
    }
}

#[test]
fn each_document_reports_its_faults() {
    let bad = header("Cluster", "runtme: process");
    let good = header("Cluster", "runtime: process");
    let faults = read("-", &format!("{bad}---\n{good}--- # again\n{bad}")).expect_err("two faults");
    let lines: Vec<_> = faults.0.iter().map(|fault| fault.place.to_string()).collect();
    assert_eq!(lines, ["-:6:3", "-:20:3"]);
}

#[test]
fn what_is_too_large_or_too_deep_is_refused() {
    let deep = format!("apiVersion: chancery/v1\nkind: {}{}", "[".repeat(100), "]".repeat(100));
    let long = "#".repeat(LARGEST + 1);
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (from, to) in ('a'..'h').zip('b'..='h') {
        use std::fmt::Write as _;
        let refs = vec![format!("*{from}"); 9].join(", ");
        writeln!(bomb, "{to}: &{to} [{refs}]").expect("text");
    }
    for text in [deep, long, bomb] {
        let faults = read("f.yaml", &text).expect_err("too much");
        assert!(
            ["larger or deeper", "limit exceeded", "bytes"].iter().any(|why| faults.0[0].what.contains(why)),
            "{faults}"
        );
    }
}

#[test]
fn every_kind_has_a_schema_that_refuses_unknown_fields() {
    let schemas = schemas();
    assert_eq!(schemas.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), *KINDS);
    for (kind, schema) in schemas {
        let json = schema.as_value();
        assert_eq!(json["properties"]["kind"]["const"], kind);
        assert_eq!(json["additionalProperties"], false, "{kind}");
        assert!(!json.to_string().contains("payload_coordinates"), "documented names only: {json}");
    }
}

#[test]
fn the_examples_are_manifests() {
    let files = [
        ("nodes.yaml", include_str!("../../../examples/nodes.yaml"), 5),
        ("web-plan.yaml", include_str!("../../../examples/web-plan.yaml"), 1),
        ("deployment-1.yaml", include_str!("../../../examples/deployment-1.yaml"), 1),
        ("deployment-2.yaml", include_str!("../../../examples/deployment-2.yaml"), 1),
        ("deployment-3.yaml", include_str!("../../../examples/deployment-3.yaml"), 1),
        ("deployment-4.yaml", include_str!("../../../examples/deployment-4.yaml"), 1),
        ("qemu.yaml", include_str!("../../../examples/qemu.yaml"), 4),
        ("policies.yaml", include_str!("../../../examples/policies.yaml"), 2),
        ("nginx/capabilities.yaml", include_str!("../../../examples/nginx/capabilities.yaml"), 4),
        ("nginx/nodes.yaml", include_str!("../../../examples/nginx/nodes.yaml"), 5),
    ];
    for (file, text, count) in files {
        let manifests = read(file, text).unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!(manifests.len(), count, "{file}");
    }
    let plan = include_str!("../../../examples/nginx/plan.yaml");
    assert_eq!(only(plan), only(&under_header("Plan", SEED_PLAN)));
    let deployment = include_str!("../../../examples/nginx/deployment-1.yaml");
    assert_eq!(only(deployment), only(&under_header("Deployment", SEED_DEPLOYMENT)));
}

/// Reads a document into untyped values.
fn untyped(text: &str) -> serde_json::Value {
    let tree =
        DocumentTree::read(text).unwrap_or_else(|error| panic!("{error}\n{text}")).expect("a document");
    reader::read(&tree).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
}

#[test]
fn a_tree_has_the_values_that_the_parser_reads() {
    for text in [
        "a: 1\nb: -2\nc: 1.5\nd: true\ne: on\nf: ~\ng:\nh: null\ni: 1e3\nj: 0x1f\nk: 0o17\nl: 007\nm: 1_000",
        "a: '1'\nb: \"true\"\nc: ''\nd: \"null\"\ne: 22:00\nf: 2026-01-01\ng: 1.2.3\nh: \"\\u00e9\\n\"",
        "a: !!str 1\nb: !!int \"2\"\nc: !!float 3\nd: ! 4",
        "a: |\n  one\n  two\nb: >-\n  one\n  two\nc: one\n  two\n",
        "x: &x {a: 1, b: [1, 2]}\ny: *x\nz: {<<: *x, b: 3}\nw: [*x, *x]",
        "? a\n: 1\n1: 2\ntrue: 3\n",
        "[]",
        "[{}, [], [[1]], {a: {b: {c: [1, {d: 2}]}}}]",
        "18446744073709551615",
        "-9223372036854775808",
        "99999999999999999999",
    ] {
        let wanted: serde_json::Value = serde_saphyr::from_str(text).expect("a document");
        assert_eq!(untyped(text), wanted, "{text}");
    }
}

#[test]
fn values_have_their_text_through_quotes_aliases_and_tags() {
    let spec = "plan: p\ncount: \"3\"\nauto_rollback: 'true'\ncoordinates:\n  web: &web {a: &one 1.10, b: *one, c: !!str 1.20, d: '1.30'}\n  \
        api:\n    <<: *web\n    b: .inf\n    c: 1e999\n    e: >-\n      7\n      8\n";
    let text = format!("# é ü 東\n{}", header("Deployment", spec));
    let Intent::DeploymentCreate(create) = only(&text) else { panic!("a deployment") };
    assert_eq!((create.spec.count, create.spec.auto_rollback), (3, true));
    let text = |payload: &str| {
        let values = &create.spec.coordinates[payload];
        values.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(text("web"), "a=1.10 b=1.10 c=1.20 d=1.30");
    assert_eq!(text("api"), "a=1.10 b=.inf c=1e999 d=1.30 e=7 8");
}

#[test]
fn fields_that_are_given_twice_do_not_hide_other_errors() {
    let spec = "namespace: n\nnamespace: m\nservice: s\nservce: t\npayloads:\n- name: a\n  name: b\n  resources: {}\n  \
        ready: {tcp: {port: A b}}\n  alive: {http: {port: x, port: y, path: 1}, tcp: {port: z}}\n  run: {argv: x}\n\
        labels: {a: b, a: c, A b: c}\nsharing: {never: 1}\nrestart: []\nunready: {action: }";
    let faults = read("f.yaml", &header("Plan", spec)).expect_err("errors");
    let wanted = [
        "7:3: \"namespace\" is given twice",
        "9:3: invalid field \"servce\": did you mean \"service\"?",
        "12:5: \"name\" is given twice",
        "14:25: invalid character 'A' at position 1: use a-z, 0-9, '-' and '.', with a letter or digit at both ends: \"A b\"",
        "15:12: a word or a block of one line is expected here",
        "16:17: a list is expected here",
        "17:18: \"a\" is given twice",
        "17:24: invalid character ' ' at position 2: use A-Z, a-z, 0-9, '-', '.', '_' and '/', with a letter or digit first and last: \"A b\"",
        "18:12: a word is expected here",
        "19:12: a word or a block of one line is expected here",
        "20:19: missing value: give a value, or omit the field",
    ];
    let messages: Vec<_> = faults.to_string().lines().map(|line| line.replace("f.yaml:", "")).collect();
    assert_eq!(messages, wanted, "{faults}");
}

#[test]
fn values_of_another_form_are_refused_where_they_are() {
    let cases = [
        (
            header("Deployment", "plan: p\ncount: 010"),
            "7:10: must be a whole number from 0 to 4294967295: \"010\"",
        ),
        (
            header("Deployment", "plan: p\ncount: \"007\""),
            "7:10: must be a whole number from 0 to 4294967295: \"007\"",
        ),
        (header("Deployment", "plan: {{ name }}\ncont: 1"), "6:9: a single value is expected here"),
        (
            header("Deployment", "plan: p\ncount: 1\n? [a]\n: b"),
            "8:5: a name, then ':' and a value is expected here",
        ),
    ];
    for (text, wanted) in cases {
        let faults = read("f.yaml", &text).expect_err(&text).to_string();
        assert!(faults.starts_with(&format!("f.yaml:{wanted}")), "{faults}\nwanted {wanted}\n{text}");
    }
}
