//! Requests of people in a world: its setup, then any possible request, of which about half make sense.

use std::collections::BTreeMap;

use chancery_events::spec::{ClusterRuntime, FieldClass, PlanSpec};
use serde_json::{Value, json};

use super::fault::SimulatedFault;
use super::random::RandomSource;
use super::script::ScriptInput;
use super::server::EPOCH;

const RULES: [&str; 2] = ["automatic", "manual"];
/// Minutes from midnight at which every world starts, as defined by [`EPOCH`]; it was a Tuesday.
const BEGINS: u64 = 22 * 60 + 13;

/// Scripts in a thousand of those with volumes that have more snapshots of them.
const SNAPSHOTS: u64 = 400;

/// Parts of a world that its people act on.
struct WorldParts<'a> {
    clusters: &'a [ClusterRuntime],
    plans: u64,
    /// Number of plans in a thousand whose payload has a volume.
    claims: u64,
    habit: Option<MainActivity>,
}

/// Main activity of people in a world, with capacity for it, and with likely faults of its dependencies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MainActivity {
    /// Rolling out one version after another.
    Rollouts,
    /// Trying small versions, about half of which fail, and rolling them back.
    Trials,
    /// Rolling out whole sets, or a part of one for inspection.
    Sets,
    /// Draining nodes.
    Drains,
    /// Having policies, and searching for ways around them.
    Rules,
    /// Sending inbox messages while no leader reads them.
    InboxMessages,
}

impl MainActivity {
    /// Draws the habit of a world, if it has one.
    pub(super) fn draw(random: &mut RandomSource) -> Option<MainActivity> {
        match random.below(20) {
            0..=3 => Some(MainActivity::Rollouts),
            4..=6 => Some(MainActivity::Sets),
            7..=9 => Some(MainActivity::Drains),
            10..=11 => Some(MainActivity::InboxMessages),
            12..=14 => Some(MainActivity::Rules),
            15..=16 => Some(MainActivity::Trials),
            _ => None,
        }
    }

    /// Returns faults that are likely, in addition to all others.
    pub(super) const fn faults(self) -> &'static [SimulatedFault] {
        match self {
            MainActivity::Rollouts => {
                &[SimulatedFault::Unwell, SimulatedFault::Strike, SimulatedFault::BadBehaviour]
            }
            MainActivity::Trials => &[SimulatedFault::Strike, SimulatedFault::BadBehaviour],
            MainActivity::Sets => &[SimulatedFault::Unwell, SimulatedFault::Strike],
            MainActivity::Drains => &[SimulatedFault::Strike, SimulatedFault::ExecutorPause],
            MainActivity::Rules => &[SimulatedFault::ServerCrash],
            MainActivity::InboxMessages => {
                &[SimulatedFault::ServerCrash, SimulatedFault::WorkFails, SimulatedFault::MessageAgain]
            }
        }
    }
}

/// Returns the setup, the plans, and the requests that follow.
pub(super) fn all(
    random: &mut RandomSource,
    clusters: &[ClusterRuntime],
    plans: u64,
    habit: Option<MainActivity>,
) -> Vec<ScriptInput> {
    let claims = match habit {
        // Sets must not have any.
        Some(MainActivity::Sets) => 0,
        _ if random.chance(250) => 800,
        _ => 50,
    };
    let world = WorldParts { clusters, plans, claims, habit };
    let mut inputs = setting(random, &world);
    for plan in 0..plans {
        inputs.push(plan_apply(random, plan, &world));
    }
    let (least, most) = match habit {
        Some(MainActivity::InboxMessages) => (24, 48),
        Some(_) => (10, 32),
        None => (4, 32),
    };
    let asked = random.between(least, most);
    if matches!(habit, Some(MainActivity::Drains | MainActivity::Sets | MainActivity::Rules)) {
        // Replicas to be moved away, or to be replaced.
        for plan in 0..plans {
            inputs.push(update(random, plan, 0));
        }
        inputs.push(ScriptInput::Approve { which: None });
    }
    for number in 0..asked {
        let ask = match habit {
            _ if random.chance(60) => {
                let plan = random.below(plans);
                plan_apply(random, plan, &world)
            }
            Some(MainActivity::Rollouts) if random.chance(800) => rollout(random, plans, number),
            Some(MainActivity::Trials) if random.chance(800) => trial(random, plans, number),
            Some(MainActivity::Sets) if random.chance(600) => set(random, plans, number),
            Some(MainActivity::Drains) if random.chance(600) => drain(random, number),
            Some(MainActivity::Rules) if random.chance(800) => way_round(random, plans, number),
            _ => ask(random, &world, number),
        };
        inputs.push(ask);
    }
    keep_versions(random, &mut inputs);
    inputs
}

/// Adds snapshots of volumes, and deletions, to some scripts with volumes.
pub(super) fn add_snapshots(random: &mut RandomSource, inputs: &mut Vec<ScriptInput>) {
    let has_claims = |input: &ScriptInput| match input {
        ScriptInput::Ask { type_name: "plan.apply", data } => {
            data["spec"]["payloads"][0]["volumes"].is_array()
        }
        _ => false,
    };
    let Some(first) = inputs.iter().position(has_claims).filter(|_| random.chance(SNAPSHOTS)) else { return };
    for _ in 0..random.between(2, 5) {
        let at = random.between(first as u64 + 1, inputs.len() as u64);
        let which = random.below(8);
        let snapshot = random.chance(800).then(|| format!("s{}", random.below(3)));
        let at = usize::try_from(at).unwrap_or(inputs.len());
        inputs.insert(at, ScriptInput::OfVolume { which, snapshot });
    }
}

/// Makes most edits of plans edits of policy alone: incarnations stay unchanged.
fn keep_versions(random: &mut RandomSource, inputs: &mut [ScriptInput]) {
    let mut last = BTreeMap::<String, Value>::new();
    for input in inputs {
        let ScriptInput::Ask { type_name: "plan.apply", data } = input else { continue };
        let plan = data["name"].as_str().unwrap_or_default().to_owned();
        if let Some(before) = last.get(&plan).filter(|_| random.chance(700)) {
            for (field, _) in PlanSpec::FIELDS.iter().filter(|(_, class)| *class == FieldClass::Deployed) {
                data["spec"][*field] = before[*field].clone();
            }
        }
        last.insert(plan, data["spec"].clone());
    }
}

fn rollout(random: &mut RandomSource, plans: u64, number: u64) -> ScriptInput {
    if random.chance(550) {
        return ScriptInput::Approve { which: None };
    }
    let plan = random.below(plans);
    match random.below(10) {
        0 => ScriptInput::OfDeployment { verb: "cancel", which: random.below(4) },
        1..=2 => rollback(random, plan, number),
        _ => update(random, plan, number),
    }
}

fn trial(random: &mut RandomSource, plans: u64, number: u64) -> ScriptInput {
    let plan = random.below(plans);
    if random.chance(400) {
        return rollback(random, plan, number);
    }
    let coordinates = json!({"app": {"version": format!("v{number}")}});
    let mut spec = json!({
        "count": random.between(1, 2), "coordinates": coordinates, "strategy": {"rolling": {"max_parallel": 2}},
    });
    patience(random, &mut spec);
    let overlap = if random.chance(200) { "supersede" } else { "queue" };
    let name = format!("t{number}");
    input(
        "deployment.create",
        json!({"plan": format!("p{plan}"), "name": name, "spec": spec, "overlap": overlap}),
    )
}

fn rollback(random: &mut RandomSource, plan: u64, number: u64) -> ScriptInput {
    let which = random.chance(400).then(|| random.below(8));
    ScriptInput::Rollback { plan: format!("p{plan}"), name: format!("r{number}"), which }
}

/// Gives some specs a progress deadline and an automatic rollback.
fn patience(random: &mut RandomSource, spec: &mut Value) {
    if random.chance(500) {
        spec["progress_deadline"] = json!(random.between(1, 40) * 1000);
    }
    if random.chance(300) {
        spec["auto_rollback"] = json!(true);
    }
}

fn update(random: &mut RandomSource, plan: u64, number: u64) -> ScriptInput {
    let rolling = json!({"max_parallel": random.between(1, 2), "delay": random.below(3) * 20_000});
    let coordinates = json!({"app": {"version": format!("v{number}")}});
    let mut spec =
        json!({"count": random.between(2, 5), "coordinates": coordinates, "strategy": {"rolling": rolling}});
    patience(random, &mut spec);
    let (plan, name) = (format!("p{plan}"), format!("u{number}"));
    let overlap = if random.chance(200) { "supersede" } else { "queue" };
    input("deployment.create", json!({"plan": plan, "name": name, "spec": spec, "overlap": overlap}))
}

fn set(random: &mut RandomSource, plans: u64, number: u64) -> ScriptInput {
    if random.chance(500) {
        return ScriptInput::Approve { which: None };
    }
    let strategy = if random.chance(850) {
        let on_timeout = pick(random, &["rollback", "cut_over"]);
        json!({"blue_green": {"timeout": random.between(60, 600) * 1000, "on_timeout": on_timeout}})
    } else {
        json!({"canary": {"count": 1}})
    };
    let coordinates = json!({"app": {"version": format!("v{number}")}});
    let spec = json!({"count": random.between(2, 4), "coordinates": coordinates, "strategy": strategy});
    let (plan, name) = (format!("p{}", random.below(plans)), format!("d{number}"));
    input("deployment.create", json!({"plan": plan, "name": name, "spec": spec}))
}

fn drain(random: &mut RandomSource, number: u64) -> ScriptInput {
    match random.below(5) {
        0 => ScriptInput::Approve { which: None },
        // A node that was drained, or is back, leaves others fuller than it.
        1 => input("plan.rebalance", json!({"name": format!("p{}", random.below(2))})),
        2 => ScriptInput::OfDisruption { verb: "approve", which: random.below(8) },
        _ => {
            let node = format!("n{}", random.below(3));
            disruption_schedule(random, &node, number)
        }
    }
}

/// Ways to end or move replicas around policies, and people who approve or reject such requests.
fn way_round(random: &mut RandomSource, plans: u64, number: u64) -> ScriptInput {
    let (plan, node) = (format!("p{}", random.below(plans)), format!("n{}", random.below(3)));
    match random.below(20) {
        0..=2 => ScriptInput::OfRequest { verb: "approve", which: random.below(4) },
        3 => ScriptInput::OfRequest { verb: "reject", which: random.below(4) },
        4..=5 => ScriptInput::Approve { which: None },
        6 => input("plan.delete", json!({"name": plan, "cascade": "yes"})),
        7 => input("node.delete", json!({"name": node, "cascade": "yes"})),
        8 => disruption_schedule(random, &node, number),
        9..=10 => ScriptInput::OfDisruption { verb: "approve", which: random.below(8) },
        11 => expunge(random, &node),
        12..=13 => ScriptInput::Automatic { which: random.below(4) },
        14 => {
            let spec =
                json!({"kinds": four_eyes(random), "plans": [], "domains": [], "rule": {"four_eyes": {}}});
            input("policy.apply", json!({"name": format!("y{}", random.below(2)), "spec": spec}))
        }
        15 => policy_apply(random),
        16 => input("policy.delete", json!({"name": format!("y{}", random.below(2))})),
        17 => {
            let plan = random.below(plans);
            update(random, plan, number)
        }
        18 => of_replica(random, "delete"),
        _ => {
            let spec = json!({"count": 0});
            input("deployment.create", json!({"plan": plan, "name": format!("z{number}"), "spec": spec}))
        }
    }
}

/// Draws kinds of operations that require two people.
fn four_eyes(random: &mut RandomSource) -> Vec<&'static str> {
    let kinds = ["delete", "relocate", "expunge", "stop"];
    kinds.into_iter().filter(|_| random.chance(600)).collect()
}

fn expunge(random: &mut RandomSource, node: &str) -> ScriptInput {
    let mut data = json!({"name": node, "state": "expunged"});
    if random.chance(300) {
        data["break_glass"] = json!("the machine burns");
    }
    input("node.set_state", data)
}

fn input(type_name: &'static str, data: Value) -> ScriptInput {
    ScriptInput::Ask { type_name, data }
}

fn cluster(random: &mut RandomSource, clusters: &[ClusterRuntime]) -> String {
    format!("c{}", random.below(clusters.len() as u64))
}

fn pick(random: &mut RandomSource, words: &[&'static str]) -> &'static str {
    random.pick(words).copied().unwrap_or_default()
}

fn setting(random: &mut RandomSource, world: &WorldParts) -> Vec<ScriptInput> {
    let clusters = world.clusters;
    let mut inputs = Vec::new();
    for (number, runtime) in clusters.iter().enumerate() {
        let mut data = json!({"name": format!("c{number}"), "spec": {"runtime": runtime}});
        if *runtime == ClusterRuntime::Kubernetes {
            data["spec"]["kubernetes"] = json!({"namespace": "system"});
        }
        inputs.push(input("cluster.apply", data));
    }
    if random.chance(300) {
        inputs.push(input("capability.apply", json!({"name": "GPU-1", "spec": {"type": "GPU", "score": 5}})));
    }
    // A habit needs capacity.
    let (least, clusters) = match world.habit {
        Some(_) => (3, &clusters[..1]),
        None => (1, clusters),
    };
    for number in 0..random.between(least, 5) {
        inputs.push(node_apply(random, number, clusters));
    }
    if world.habit == Some(MainActivity::Rules) {
        let spec = json!({"kinds": four_eyes(random), "plans": [], "domains": [], "rule": {"four_eyes": {}}});
        inputs.push(input("policy.apply", json!({"name": "y0", "spec": spec})));
    }
    if random.chance(200) {
        inputs.push(policy_apply(random));
    }
    inputs
}

fn node_apply(random: &mut RandomSource, number: u64, clusters: &[ClusterRuntime]) -> ScriptInput {
    let domain = format!("d{}", random.below(3));
    let total = json!({"cpu": random.between(1, 4) * 1000, "memory": random.between(1, 4) << 30, "disk": 0});
    let cluster = cluster(random, clusters);
    let storage = json!([{"class": "s", "capacity": random.between(1, 4)}]);
    let spec = json!({"domain": domain, "resources": total, "storage": storage});
    input("node.apply", json!({"name": format!("n{number}"), "cluster": cluster, "spec": spec}))
}

fn plan_apply(random: &mut RandomSource, plan: u64, world: &WorldParts) -> ScriptInput {
    let drains = matches!(world.habit, Some(MainActivity::Drains | MainActivity::Rules));
    let asks = match world.habit {
        Some(MainActivity::Trials) => 0,
        Some(MainActivity::Drains) => 50,
        Some(MainActivity::Sets) => 200,
        Some(MainActivity::Rules) => 700,
        _ => 400,
    };
    let mut approval = || RULES[usize::from(random.chance(asks))];
    let approval = json!({
        "create": approval(), "start": approval(), "stop": approval(), "delete": approval(),
        "update": approval(), "relocate": approval(), "restart": approval(),
        "reboot": approval(),
    });
    let payload = |name: &str, cpu: u64, processes: u64| json!({"name": name, "resources": {"cpu": cpu, "memory": 256 << 20}, "processes": processes, "run": {"argv": ["app"]}});
    let most = if world.habit.is_some() { 1 } else { 3 };
    let mut payloads = vec![payload("app", random.between(1, most) * 500, random.between(1, 2))];
    if random.chance(world.claims) {
        payloads[0]["volumes"] = claims(random);
    }
    if random.chance(200) {
        payloads.push(payload("side", 100, 1));
    }
    if world.clusters.contains(&ClusterRuntime::Kubernetes) {
        for payload in &mut payloads {
            payload["container"] = json!({"image": "app"});
        }
    }
    // Some expire while a server is down, and a person approves as it returns.
    let long = random.between(20, 2000);
    let patience = if long.is_multiple_of(2) { long } else { long / 40 + 1 };
    let timeouts = json!({
        "approval": patience * 1000, "start": random.between(2, 60) * 1000,
        "stop": random.between(1, 10) * 1000,
    });
    let mut spec = json!({
        "namespace": "ns", "service": format!("s{plan}"), "payloads": payloads, "approval": approval,
        "timeouts": timeouts, "labels": {"tier": format!("t{plan}")},
        "sharing": if drains || random.chance(600) { "allowed" } else { "never" },
        "placement": if random.chance(850) { "spread" } else { "pack" },
        "restart": pick(random, &["always", "on_failure", "never"]),
        "restart_delay": random.between(1, 60) * 100,
        "update_order": pick(random, &["start_first", "stop_first"]),
        "max_unavailable": random.between(1, 2),
    });
    if random.chance(300) {
        spec["unready"] =
            json!({"after": random.between(1, 60) * 1000, "action": pick(random, &["show", "restart"])});
    }
    if random.chance(300) {
        spec["cluster"] = json!(cluster(random, world.clusters));
    }
    if world.habit.is_none() && random.chance(250) {
        spec["affinity"] = json!([{
            "group": "g", "kind": pick(random, &["anti_affinity", "affinity"]),
            "policy": pick(random, &["fail", "allow"]),
        }]);
    }
    input("plan.apply", json!({"name": format!("p{plan}"), "spec": spec}))
}

/// Draws a claim of a replica's own volume, or of one that plans hand over to each other.
fn claims(random: &mut RandomSource) -> Value {
    let claim = if random.chance(400) {
        json!({"volume": pick(random, &["v", "w"]), "class": "s", "capacity": random.between(1, 2), "mount": "/data"})
    } else {
        let on_delete = pick(random, &["keep", "destroy"]);
        json!({"on_delete": on_delete, "class": "s", "capacity": random.between(1, 2), "mount": "/data"})
    };
    json!([claim])
}

fn deployment_create(random: &mut RandomSource, plan: &str, number: u64) -> ScriptInput {
    let count = random.below(6);
    let strategy = match random.below(10) {
        0..=3 => json!({"rolling": {}}),
        4..=6 => {
            let max_parallel = random.chance(700).then(|| random.between(1, 3));
            let delay = if random.chance(300) { random.between(1, 100) * 100 } else { 0 };
            json!({"rolling": {"max_parallel": max_parallel, "per_domain": random.chance(300), "delay": delay}})
        }
        7..=8 => json!({"blue_green": {
            "timeout": random.between(1, 120) * 1000, "on_timeout": pick(random, &["rollback", "cut_over"]),
        }}),
        _ if count > 0 => json!({"canary": {"count": random.between(1, count)}}),
        _ => json!({"rolling": {}}),
    };
    // Sometimes an earlier version.
    let version = if random.chance(300) { 0 } else { number / 4 };
    let coordinates = json!({"app": {"version": format!("v{version}")}});
    let mut spec = json!({"count": count, "coordinates": coordinates, "strategy": strategy});
    patience(random, &mut spec);
    let overlap = if random.chance(400) { "supersede" } else { "queue" };
    let name = format!("d{number}");
    input("deployment.create", json!({"plan": plan, "name": name, "spec": spec, "overlap": overlap}))
}

fn policy_apply(random: &mut RandomSource) -> ScriptInput {
    let some = |random: &mut RandomSource, of: &[&'static str]| match random.below(3) {
        0 => vec![pick(random, of)],
        _ => vec![],
    };
    let kinds = ["create", "update", "relocate", "restart", "start", "stop", "delete", "reboot", "expunge"];
    let rule = if random.chance(350) {
        json!({"four_eyes": {}})
    } else {
        let window = |random: &mut RandomSource| {
            let from = (BEGINS + random.below(30)) % (24 * 60);
            json!({"days": some(random, &["tue", "wed", "mon"]), "start": from, "duration": random.between(1, 120)})
        };
        let windows: Vec<_> = (0..random.below(3)).map(|_| window(random)).collect();
        json!({"approve": {"windows": windows, "max_in_flight": random.chance(600).then(|| random.between(1, 2))}})
    };
    let (kinds, plans) = (some(random, &kinds), some(random, &["p0", "p1"]));
    let spec =
        json!({"kinds": kinds, "plans": plans, "domains": some(random, &["d0", "d1", "d2"]), "rule": rule});
    input("policy.apply", json!({"name": format!("y{}", random.below(2)), "spec": spec}))
}

fn disruption_schedule(random: &mut RandomSource, node: &str, number: u64) -> ScriptInput {
    let start = random.chance(400).then(|| EPOCH + i64::try_from(random.below(600)).unwrap_or(0) * 1_000_000);
    let action = pick(random, &["none", "drain", "drain", "drain_and_delete"]);
    let spec = json!({"start": start, "action": action, "reason": "for people"});
    input("disruption.schedule", json!({"node": node, "name": format!("x{number}"), "spec": spec}))
}

fn ask(random: &mut RandomSource, world: &WorldParts, number: u64) -> ScriptInput {
    let WorldParts { clusters, plans, .. } = *world;
    let plan = format!("p{}", random.below(plans));
    let node = format!("n{}", random.below(5));
    match random.below(163) {
        0..=29 => deployment_create(random, &plan, number),
        30..=31 => ScriptInput::OfDeployment { verb: "cancel", which: random.below(4) },
        32..=34 => ScriptInput::OfDeployment { verb: "pause", which: random.below(4) },
        35..=37 => ScriptInput::OfDeployment { verb: "resume", which: random.below(4) },
        38..=39 => ScriptInput::OfDeployment { verb: "promote", which: random.below(4) },
        40 => ScriptInput::OfDeployment { verb: "rollback", which: random.below(4) },
        41..=44 => input("replica.create", json!({"plan": plan})),
        45..=64 => ScriptInput::Approve { which: random.chance(600).then(|| random.below(16)) },
        65..=67 => ScriptInput::Reject { which: random.below(16) },
        68..=74 => of_replica(random, "stop"),
        75..=80 => of_replica(random, "start"),
        81..=85 => of_replica(random, "delete"),
        86..=90 => {
            let node = random.chance(400).then_some(node);
            ScriptInput::OfReplica { verb: "relocate", which: random.below(16), node }
        }
        91..=94 => of_replica(random, "restart"),
        157..=160 => of_replica(random, "reboot"),
        161..=162 => of_replica(random, "console"),
        95..=98 => {
            let to = ["expunged", "evicted", "allocated", "sanitizing", "unallocated"];
            let to = pick(random, &to);
            let mut data = json!({"name": node, "state": to});
            if to == "allocated" {
                data["cluster"] = json!(cluster(random, clusters));
            }
            input("node.set_state", data)
        }
        99..=102 => {
            let number = random.below(6);
            node_apply(random, number, clusters)
        }
        103..=106 => {
            let plan = random.below(plans);
            plan_apply(random, plan, world)
        }
        107 => input("plan.set_activity", json!({"name": plan, "activity": "inactive"})),
        108..=109 => input("plan.set_activity", json!({"name": plan, "activity": "active"})),
        110 => {
            let name = cluster(random, clusters);
            input("cluster.set_activity", json!({"name": name, "activity": "inactive"}))
        }
        111 => {
            let name = cluster(random, clusters);
            input("cluster.set_activity", json!({"name": name, "activity": "active"}))
        }
        112 => input("cluster.delete", json!({"name": cluster(random, clusters)})),
        113 => input("plan.delete", json!({"name": plan, "cascade": pick(random, &["no", "yes"])})),
        114 => input("node.delete", json!({"name": node, "cascade": pick(random, &["no", "yes"])})),
        115..=119 => disruption_schedule(random, &node, number),
        120..=124 => ScriptInput::OfDisruption { verb: "approve", which: random.below(8) },
        125 => ScriptInput::OfDisruption { verb: "complete", which: random.below(8) },
        126 => ScriptInput::OfDisruption { verb: "delete", which: random.below(8) },
        127..=129 => policy_apply(random),
        130 => input("policy.delete", json!({"name": format!("y{}", random.below(2))})),
        131..=133 => ScriptInput::OfVolume { which: random.below(8), snapshot: None },
        134 => {
            ScriptInput::OfVolume { which: random.below(8), snapshot: Some(format!("s{}", random.below(3))) }
        }
        143..=146 => {
            let plan = random.below(plans);
            rollback(random, plan, number)
        }
        147..=151 => input("plan.rebalance", json!({"name": plan})),
        // An approval of what was not shown.
        135..=137 => ScriptInput::Bad { which: 4 },
        138..=140 => ScriptInput::OfRequest { verb: "approve", which: random.below(4) },
        141 => ScriptInput::OfRequest { verb: "reject", which: random.below(4) },
        142 => ScriptInput::Automatic { which: random.below(4) },
        _ => ScriptInput::Bad { which: random.below(8) },
    }
}

fn of_replica(random: &mut RandomSource, verb: &'static str) -> ScriptInput {
    ScriptInput::OfReplica { verb, which: random.below(16), node: None }
}
