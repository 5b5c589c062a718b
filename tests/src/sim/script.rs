//! What a seed draws before its world begins: how large it is, what may go wrong in it, and what people will ask.
//!
//! Apart from the order of things, which the same seed draws as the world runs, so that a failure can be made
//! smaller by leaving faults and inputs out.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::fault::Fault;
use super::random::Random;

/// What someone will ask. What it names beyond these words is chosen when it is asked, from what is read then.
#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// Exactly this.
    Ask {
        /// The type of the intent, without its version.
        type_name: &'static str,
        /// Its body.
        data: Value,
    },
    /// Something of a replica that exists then: `start`, `stop`, `delete`.
    OfReplica {
        /// What.
        verb: &'static str,
        /// Which, counted round.
        which: u64,
    },
    /// Approves what waits then, all or one.
    Approve {
        /// Which, counted round; all if absent.
        which: Option<u64>,
    },
    /// Rejects one of those that wait then.
    Reject {
        /// Which, counted round.
        which: u64,
    },
    /// Something that must be refused.
    Bad {
        /// In which way.
        which: u64,
    },
}

/// A world as drawn.
#[derive(Clone, Debug)]
pub struct Script {
    /// Of everything.
    pub seed: u64,
    /// What may go wrong.
    pub faults: BTreeSet<Fault>,
    /// What is asked, in this order.
    pub inputs: Vec<Input>,
    /// Steps while things may go wrong.
    pub steps: u64,
    /// Clusters, each with one orchestrator and one executor.
    pub clusters: u64,
    /// Servers that may decide.
    pub servers: u64,
    /// A session's lease.
    pub lease: Duration,
    /// So many of a thousand incarnations misbehave.
    pub misbehave: u64,
    /// So many of a thousand pieces of work fail.
    pub work_fails: u64,
    /// Whether there is a topic into which producers put some of what they ask for.
    pub inbox: bool,
}

/// What nobody may ask for by a letter.
pub(super) const APPROVALS: [&str; 2] = ["operation.approve.v1", "operation.reject.v1"];
const RULES: [&str; 2] = ["automatic", "manual"];

impl Script {
    /// What the seed draws.
    pub fn draw(seed: u64) -> Script {
        let mut random = Random::new(seed);
        // A swarm: most faults off in most worlds, so that each meets each other in some world, undisturbed.
        let share = *random.pick(&[0, 150, 300, 500]).unwrap_or(&0);
        let usual = Fault::ALL.iter().copied().filter(|fault| !fault.is_of_inbox());
        let mut faults: BTreeSet<_> = usual.filter(|_| random.chance(share)).collect();
        let clusters = random.between(1, 2);
        let mut inputs = setting(&mut random, clusters);
        let plans = random.between(1, 2);
        for plan in 0..plans {
            inputs.push(plan_apply(&mut random, plan, clusters));
        }
        let asked = random.between(4, 28);
        for number in 0..asked {
            inputs.push(ask(&mut random, plans, clusters, number));
        }
        let steps = random.between(300, 1200);
        let servers = random.between(1, 3);
        let lease = Duration::from_secs(random.between(3, 15));
        let misbehave = *random.pick(&[50, 200, 500]).unwrap_or(&200);
        let work_fails = *random.pick(&[200, 600, 950]).unwrap_or(&600);
        // The others are as they would be if there were no such thing.
        let inbox = seed.is_multiple_of(3);
        if inbox {
            let its_own = Fault::ALL.iter().copied().filter(|fault| fault.is_of_inbox());
            faults.extend(its_own.filter(|_| random.chance(share)));
        }
        Script { seed, faults, inputs, steps, clusters, servers, lease, misbehave, work_fails, inbox }
    }
}

fn input(type_name: &'static str, data: Value) -> Input {
    Input::Ask { type_name, data }
}

fn cluster(number: u64) -> String {
    format!("c{number}")
}

fn setting(random: &mut Random, clusters: u64) -> Vec<Input> {
    let mut inputs = Vec::new();
    for number in 0..clusters {
        inputs
            .push(input("cluster.apply", json!({"name": cluster(number), "spec": {"runtime": "simulated"}})));
    }
    if random.chance(300) {
        inputs.push(input("capability.apply", json!({"name": "GPU-1", "spec": {"type": "GPU", "score": 5}})));
    }
    for number in 0..random.between(1, 5) {
        inputs.push(node_apply(random, number, clusters));
    }
    inputs
}

fn node_apply(random: &mut Random, number: u64, clusters: u64) -> Input {
    let domain = format!("d{}", random.below(3));
    let total = json!({"cpu": random.between(1, 4) * 1000, "memory": random.between(1, 4) << 30, "disk": 0});
    let cluster = cluster(random.below(clusters));
    let spec = json!({"domain": domain, "total": total});
    input("node.apply", json!({"name": format!("n{number}"), "cluster": cluster, "spec": spec}))
}

fn plan_apply(random: &mut Random, plan: u64, clusters: u64) -> Input {
    let mut approval = || RULES[usize::from(random.chance(400))];
    let approval =
        json!({"create": approval(), "start": approval(), "stop": approval(), "delete": approval()});
    let payload = |name: &str, cpu: u64, processes: u64| json!({"name": name, "resources": {"cpu": cpu, "memory": 256 << 20}, "processes": processes, "run": {"argv": ["app"]}});
    let mut payloads = vec![payload("app", random.between(1, 3) * 500, random.between(1, 2))];
    if random.chance(200) {
        payloads.push(payload("side", 100, 1));
    }
    // Some run out while a server is down, and somebody approves as it comes back.
    let long = random.between(20, 2000);
    let patience = if long.is_multiple_of(2) { long } else { long / 40 + 1 };
    let timeouts = json!({
        "approval": patience * 1000, "start": random.between(2, 60) * 1000,
        "stop": random.between(1, 10) * 1000,
    });
    let mut spec = json!({
        "namespace": "ns", "service": format!("s{plan}"), "payloads": payloads, "approval": approval,
        "timeouts": timeouts, "sharing": if random.chance(600) { "allowed" } else { "never" },
    });
    if random.chance(300) {
        spec["cluster"] = json!(cluster(random.below(clusters)));
    }
    input("plan.apply", json!({"name": format!("p{plan}"), "spec": spec}))
}

fn ask(random: &mut Random, plans: u64, clusters: u64, number: u64) -> Input {
    let plan = format!("p{}", random.below(plans));
    let node = format!("n{}", random.below(5));
    match random.below(100) {
        0..=24 => {
            let spec = json!({"count": random.below(6), "coordinates": {"app": {"version": format!("v{}", number / 6)}}});
            input("deployment.create", json!({"plan": plan, "name": format!("d{number}"), "spec": spec}))
        }
        25..=27 => input(
            "deployment.cancel",
            json!({"plan": plan, "name": format!("d{}", random.below(number + 1))}),
        ),
        28..=47 => Input::Approve { which: random.chance(600).then(|| random.below(16)) },
        48..=51 => Input::Reject { which: random.below(16) },
        52..=60 => Input::OfReplica { verb: "stop", which: random.below(16) },
        61..=69 => Input::OfReplica { verb: "start", which: random.below(16) },
        70..=75 => Input::OfReplica { verb: "delete", which: random.below(16) },
        76..=80 => {
            let to = ["expunged", "evicted", "allocated", "sanitizing", "unallocated"];
            let to = *random.pick(&to).unwrap_or(&"evicted");
            let mut data = json!({"name": node, "state": to});
            if to == "allocated" {
                data["cluster"] = json!(cluster(random.below(clusters)));
            }
            input("node.set_state", data)
        }
        81..=84 => {
            let number = random.below(6);
            node_apply(random, number, clusters)
        }
        85..=87 => {
            let plan = random.below(plans);
            plan_apply(random, plan, clusters)
        }
        88 => input("plan.set_activity", json!({"name": plan, "activity": "inactive"})),
        89..=90 => input("plan.set_activity", json!({"name": plan, "activity": "active"})),
        91 => input(
            "cluster.set_activity",
            json!({"name": cluster(random.below(clusters)), "activity": "inactive"}),
        ),
        92 => input(
            "cluster.set_activity",
            json!({"name": cluster(random.below(clusters)), "activity": "active"}),
        ),
        93 => input("cluster.delete", json!({"name": cluster(random.below(clusters))})),
        94 => input("plan.delete", json!({"name": plan})),
        95 => input("node.delete", json!({"name": node})),
        _ => Input::Bad { which: random.below(8) },
    }
}
