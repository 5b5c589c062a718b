//! Requests of people in a world: its setup, then any possible request, of which about half make sense.

use std::collections::BTreeMap;

use chancery_events::spec::{ClusterRuntime, FieldClass, PlanSpec};
use serde_json::{Value, json};

use super::fault::Fault;
use super::random::Random;
use super::script::Input;
use super::server::EPOCH;

const RULES: [&str; 2] = ["automatic", "manual"];
/// Minutes from midnight at which every world starts, as defined by [`EPOCH`]; it was a Tuesday.
const BEGINS: u64 = 22 * 60 + 13;

/// Parts of a world that its people act on.
struct World<'a> {
    clusters: &'a [ClusterRuntime],
    plans: u64,
    /// Number of plans in a thousand whose payload has a volume.
    claims: u64,
    habit: Option<Habit>,
}

/// Main activity of people in a world, with capacity for it, and with likely faults of its dependencies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Habit {
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
    Letters,
}

impl Habit {
    /// Draws the habit of a world, if it has one.
    pub(super) fn draw(random: &mut Random) -> Option<Habit> {
        match random.below(20) {
            0..=3 => Some(Habit::Rollouts),
            4..=6 => Some(Habit::Sets),
            7..=9 => Some(Habit::Drains),
            10..=11 => Some(Habit::Letters),
            12..=14 => Some(Habit::Rules),
            15..=16 => Some(Habit::Trials),
            _ => None,
        }
    }

    /// Returns faults that are likely, in addition to all others.
    pub(super) const fn faults(self) -> &'static [Fault] {
        match self {
            Habit::Rollouts => &[Fault::Unwell, Fault::Strike, Fault::BadBehaviour],
            Habit::Trials => &[Fault::Strike, Fault::BadBehaviour],
            Habit::Sets => &[Fault::Unwell, Fault::Strike],
            Habit::Drains => &[Fault::Strike, Fault::ExecutorPause],
            Habit::Rules => &[Fault::ServerCrash],
            Habit::Letters => &[Fault::ServerCrash, Fault::WorkFails, Fault::LetterAgain],
        }
    }
}

/// Returns the setup, the plans, and the requests that follow.
pub(super) fn all(
    random: &mut Random,
    clusters: &[ClusterRuntime],
    plans: u64,
    habit: Option<Habit>,
) -> Vec<Input> {
    let claims = match habit {
        // Sets must not have any.
        Some(Habit::Sets) => 0,
        _ if random.chance(250) => 800,
        _ => 50,
    };
    let world = World { clusters, plans, claims, habit };
    let mut inputs = setting(random, &world);
    for plan in 0..plans {
        inputs.push(plan_apply(random, plan, &world));
    }
    let (least, most) = match habit {
        Some(Habit::Letters) => (24, 48),
        Some(_) => (10, 32),
        None => (4, 32),
    };
    let asked = random.between(least, most);
    if matches!(habit, Some(Habit::Drains | Habit::Sets | Habit::Rules)) {
        // Replicas to be moved away, or to be replaced.
        for plan in 0..plans {
            inputs.push(update(random, plan, 0));
        }
        inputs.push(Input::Approve { which: None });
    }
    for number in 0..asked {
        let ask = match habit {
            _ if random.chance(60) => {
                let plan = random.below(plans);
                plan_apply(random, plan, &world)
            }
            Some(Habit::Rollouts) if random.chance(800) => rollout(random, plans, number),
            Some(Habit::Trials) if random.chance(800) => trial(random, plans, number),
            Some(Habit::Sets) if random.chance(600) => set(random, plans, number),
            Some(Habit::Drains) if random.chance(600) => drain(random, number),
            Some(Habit::Rules) if random.chance(800) => way_round(random, plans, number),
            _ => ask(random, &world, number),
        };
        inputs.push(ask);
    }
    keep_versions(random, &mut inputs);
    inputs
}

/// Makes most edits of plans edits of policy alone: incarnations stay unchanged.
fn keep_versions(random: &mut Random, inputs: &mut [Input]) {
    let mut last = BTreeMap::<String, Value>::new();
    for input in inputs {
        let Input::Ask { type_name: "plan.apply", data } = input else { continue };
        let plan = data["name"].as_str().unwrap_or_default().to_owned();
        if let Some(before) = last.get(&plan).filter(|_| random.chance(700)) {
            for (field, _) in PlanSpec::FIELDS.iter().filter(|(_, class)| *class == FieldClass::Version) {
                data["spec"][*field] = before[*field].clone();
            }
        }
        last.insert(plan, data["spec"].clone());
    }
}

fn rollout(random: &mut Random, plans: u64, number: u64) -> Input {
    if random.chance(550) {
        return Input::Approve { which: None };
    }
    let plan = random.below(plans);
    match random.below(10) {
        0 => Input::OfDeployment { verb: "cancel", which: random.below(4) },
        1..=2 => rollback(random, plan, number),
        _ => update(random, plan, number),
    }
}

fn trial(random: &mut Random, plans: u64, number: u64) -> Input {
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

fn rollback(random: &mut Random, plan: u64, number: u64) -> Input {
    let which = random.chance(400).then(|| random.below(8));
    Input::Rollback { plan: format!("p{plan}"), name: format!("r{number}"), which }
}

/// Gives some specs a progress deadline and an automatic rollback.
fn patience(random: &mut Random, spec: &mut Value) {
    if random.chance(500) {
        spec["progress_deadline"] = json!(random.between(1, 40) * 1000);
    }
    if random.chance(300) {
        spec["auto_rollback"] = json!(true);
    }
}

fn update(random: &mut Random, plan: u64, number: u64) -> Input {
    let rolling = json!({"max_parallel": random.between(1, 2), "delay": random.below(3) * 20_000});
    let coordinates = json!({"app": {"version": format!("v{number}")}});
    let mut spec =
        json!({"count": random.between(2, 5), "coordinates": coordinates, "strategy": {"rolling": rolling}});
    patience(random, &mut spec);
    let (plan, name) = (format!("p{plan}"), format!("u{number}"));
    let overlap = if random.chance(200) { "supersede" } else { "queue" };
    input("deployment.create", json!({"plan": plan, "name": name, "spec": spec, "overlap": overlap}))
}

fn set(random: &mut Random, plans: u64, number: u64) -> Input {
    if random.chance(500) {
        return Input::Approve { which: None };
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

fn drain(random: &mut Random, number: u64) -> Input {
    match random.below(5) {
        0 => Input::Approve { which: None },
        // A node that was drained, or is back, leaves others fuller than it.
        1 => input("plan.rebalance", json!({"name": format!("p{}", random.below(2))})),
        2 => Input::OfDisruption { verb: "approve", which: random.below(8) },
        _ => {
            let node = format!("n{}", random.below(3));
            disruption_schedule(random, &node, number)
        }
    }
}

/// Ways to end or move replicas around policies, and people who approve or reject such requests.
fn way_round(random: &mut Random, plans: u64, number: u64) -> Input {
    let (plan, node) = (format!("p{}", random.below(plans)), format!("n{}", random.below(3)));
    match random.below(20) {
        0..=2 => Input::OfRequest { verb: "approve", which: random.below(4) },
        3 => Input::OfRequest { verb: "reject", which: random.below(4) },
        4..=5 => Input::Approve { which: None },
        6 => input("plan.delete", json!({"name": plan, "cascade": "yes"})),
        7 => input("node.delete", json!({"name": node, "cascade": "yes"})),
        8 => disruption_schedule(random, &node, number),
        9..=10 => Input::OfDisruption { verb: "approve", which: random.below(8) },
        11 => expunge(random, &node),
        12..=13 => Input::Automatic { which: random.below(4) },
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
fn four_eyes(random: &mut Random) -> Vec<&'static str> {
    let kinds = ["delete", "relocate", "expunge", "stop"];
    kinds.into_iter().filter(|_| random.chance(600)).collect()
}

fn expunge(random: &mut Random, node: &str) -> Input {
    let mut data = json!({"name": node, "state": "expunged"});
    if random.chance(300) {
        data["break_glass"] = json!("the machine burns");
    }
    input("node.set_state", data)
}

fn input(type_name: &'static str, data: Value) -> Input {
    Input::Ask { type_name, data }
}

fn cluster(random: &mut Random, clusters: &[ClusterRuntime]) -> String {
    format!("c{}", random.below(clusters.len() as u64))
}

fn pick(random: &mut Random, words: &[&'static str]) -> &'static str {
    random.pick(words).copied().unwrap_or_default()
}

fn setting(random: &mut Random, world: &World) -> Vec<Input> {
    let clusters = world.clusters;
    let mut inputs = Vec::new();
    for (number, runtime) in clusters.iter().enumerate() {
        let data = json!({"name": format!("c{number}"), "spec": {"runtime": runtime}});
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
    if world.habit == Some(Habit::Rules) {
        let spec = json!({"kinds": four_eyes(random), "plans": [], "domains": [], "rule": {"four_eyes": {}}});
        inputs.push(input("policy.apply", json!({"name": "y0", "spec": spec})));
    }
    if random.chance(200) {
        inputs.push(policy_apply(random));
    }
    inputs
}

fn node_apply(random: &mut Random, number: u64, clusters: &[ClusterRuntime]) -> Input {
    let domain = format!("d{}", random.below(3));
    let total = json!({"cpu": random.between(1, 4) * 1000, "memory": random.between(1, 4) << 30, "disk": 0});
    let cluster = cluster(random, clusters);
    let storage = json!([{"class": "s", "capacity": random.between(1, 4)}]);
    let spec = json!({"domain": domain, "resources": total, "storage": storage});
    input("node.apply", json!({"name": format!("n{number}"), "cluster": cluster, "spec": spec}))
}

fn plan_apply(random: &mut Random, plan: u64, world: &World) -> Input {
    let drains = matches!(world.habit, Some(Habit::Drains | Habit::Rules));
    let asks = match world.habit {
        Some(Habit::Trials) => 0,
        Some(Habit::Drains) => 50,
        Some(Habit::Sets) => 200,
        Some(Habit::Rules) => 700,
        _ => 400,
    };
    let mut approval = || RULES[usize::from(random.chance(asks))];
    let approval = json!({
        "create": approval(), "start": approval(), "stop": approval(), "delete": approval(),
        "update": approval(), "relocate": approval(), "restart": approval(),
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
    // Some expire while a server is down, and a person approves as it returns.
    let long = random.between(20, 2000);
    let patience = if long.is_multiple_of(2) { long } else { long / 40 + 1 };
    let timeouts = json!({
        "approval": patience * 1000, "start": random.between(2, 60) * 1000,
        "stop": random.between(1, 10) * 1000,
    });
    let mut spec = json!({
        "namespace": "ns", "service": format!("s{plan}"), "payloads": payloads, "approval": approval,
        "timeouts": timeouts,
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
fn claims(random: &mut Random) -> Value {
    let claim = if random.chance(400) {
        json!({"volume": pick(random, &["v", "w"]), "class": "s", "capacity": random.between(1, 2), "mount": "/data"})
    } else {
        let on_delete = pick(random, &["keep", "destroy"]);
        json!({"on_delete": on_delete, "class": "s", "capacity": random.between(1, 2), "mount": "/data"})
    };
    json!([claim])
}

fn deployment_create(random: &mut Random, plan: &str, number: u64) -> Input {
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

fn policy_apply(random: &mut Random) -> Input {
    let some = |random: &mut Random, of: &[&'static str]| match random.below(3) {
        0 => vec![pick(random, of)],
        _ => vec![],
    };
    let kinds = ["create", "update", "relocate", "restart", "start", "stop", "delete", "expunge"];
    let rule = if random.chance(350) {
        json!({"four_eyes": {}})
    } else {
        let window = |random: &mut Random| {
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

fn disruption_schedule(random: &mut Random, node: &str, number: u64) -> Input {
    let start = random.chance(400).then(|| EPOCH + i64::try_from(random.below(600)).unwrap_or(0) * 1_000_000);
    let action = pick(random, &["none", "drain", "drain", "drain_and_delete"]);
    let spec = json!({"start": start, "action": action, "reason": "for people"});
    input("disruption.schedule", json!({"node": node, "name": format!("x{number}"), "spec": spec}))
}

fn ask(random: &mut Random, world: &World, number: u64) -> Input {
    let World { clusters, plans, .. } = *world;
    let plan = format!("p{}", random.below(plans));
    let node = format!("n{}", random.below(5));
    match random.below(157) {
        0..=29 => deployment_create(random, &plan, number),
        30..=31 => Input::OfDeployment { verb: "cancel", which: random.below(4) },
        32..=34 => Input::OfDeployment { verb: "pause", which: random.below(4) },
        35..=37 => Input::OfDeployment { verb: "resume", which: random.below(4) },
        38..=39 => Input::OfDeployment { verb: "promote", which: random.below(4) },
        40 => Input::OfDeployment { verb: "rollback", which: random.below(4) },
        41..=44 => input("replica.create", json!({"plan": plan})),
        45..=64 => Input::Approve { which: random.chance(600).then(|| random.below(16)) },
        65..=67 => Input::Reject { which: random.below(16) },
        68..=74 => of_replica(random, "stop"),
        75..=80 => of_replica(random, "start"),
        81..=85 => of_replica(random, "delete"),
        86..=90 => {
            let node = random.chance(400).then_some(node);
            Input::OfReplica { verb: "relocate", which: random.below(16), node }
        }
        91..=94 => of_replica(random, "restart"),
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
        120..=124 => Input::OfDisruption { verb: "approve", which: random.below(8) },
        125 => Input::OfDisruption { verb: "complete", which: random.below(8) },
        126 => Input::OfDisruption { verb: "delete", which: random.below(8) },
        127..=129 => policy_apply(random),
        130 => input("policy.delete", json!({"name": format!("y{}", random.below(2))})),
        131..=134 => Input::OfVolume { which: random.below(8) },
        143..=146 => {
            let plan = random.below(plans);
            rollback(random, plan, number)
        }
        147..=151 => input("plan.rebalance", json!({"name": plan})),
        // An approval of what was not shown.
        135..=137 => Input::Bad { which: 4 },
        138..=140 => Input::OfRequest { verb: "approve", which: random.below(4) },
        141 => Input::OfRequest { verb: "reject", which: random.below(4) },
        142 => Input::Automatic { which: random.below(4) },
        _ => Input::Bad { which: random.below(8) },
    }
}

fn of_replica(random: &mut Random, verb: &'static str) -> Input {
    Input::OfReplica { verb, which: random.below(16), node: None }
}
