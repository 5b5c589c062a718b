//! W8: placement. Plans differ in size, matchers, selectors and sharing; nodes differ in capabilities,
//! labels, size and update domain. Each replica is created, placed and approved by rule, on the pure machine.
//!
//! The measure is the processor time of its one thread, so that other load of the machine has little effect.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::maker::{CLUSTER, FleetMaker};
use crate::table::{CellResult, ResultRow, ValueBar, median};
use crate::{ROUNDS, process};

const DOMAINS: usize = 200;
const PLANS: usize = 20;
/// Numbers of replicas and nodes. The first sets the bar.
const LOADS: [(usize, usize); 4] = [(100_000, 10_000), (20_000, 10_000), (400_000, 40_000), (100_000, 2_500)];

/// Placement of all plans of a round.
#[derive(Clone, Copy, PartialEq)]
enum PlanPlacement {
    /// `placement: spread`: another node for each replica, as long as there is one with fewer.
    Spread,
    /// `placement: pack`: the fullest node.
    Pack,
    /// `sharing: never`: another node for each replica, whatever the placement.
    Apart,
}

const RULES: [(PlanPlacement, &str); 3] =
    [(PlanPlacement::Spread, "spread"), (PlanPlacement::Pack, "pack"), (PlanPlacement::Apart, "apart")];

fn node(n: usize) -> Value {
    // Sizes in proportion, except for every third: it has little memory, so its cores do not run out first.
    let cores = [64, 96, 128][n % 3];
    let memory = (cores as u64) << if n % 3 == 2 { 31 } else { 32 };
    let gpus = [vec![], vec!["a100"], vec!["h100", "a100"], vec!["v100"]][n % 4].clone();
    json!({"name": format!("node-{n}"), "cluster": CLUSTER, "spec": {
        "domain": format!("rack-{}", n % DOMAINS), "zone": format!("zone-{}", n % 4),
        "labels": {"disk": (["ssd", "hdd"][n % 2]), "tier": format!("tier-{}", n % 5)},
        "resources": {"cpu": cores * 1000, "memory": memory, "disk": 1_u64 << 42}, "capabilities": gpus,
    }})
}

/// Whether replicas of the plan share no node.
fn is_apart(n: usize, rule: PlanPlacement) -> bool {
    n % 10 == 9 || rule == PlanPlacement::Apart
}

fn plan(n: usize, rule: PlanPlacement) -> Value {
    let matchers = match n % 5 {
        0 => json!([{"type": "GPU", "comparator": "gte", "names": ["a100"]}]),
        1 => json!([{"type": "GPU", "comparator": "in", "names": ["v100", "a100"]}]),
        2 => json!([{"type": "GPU", "comparator": "not_in", "names": ["h100"]}]),
        _ => json!([]),
    };
    let selectors = if n % 4 == 3 { json!({"disk": "ssd"}) } else { json!({}) };
    let resources = json!({"cpu": 500 + 250 * (n % 3), "memory": 1_u64 << (30 + n % 3), "disk": 1_u64 << 30});
    json!({"name": format!("plan-{n}"), "spec": {
        "namespace": "bench", "service": format!("service-{n}"), "matchers": matchers, "selectors": selectors,
        "sharing": (if is_apart(n, rule) { "never" } else { "allowed" }),
        "payloads": [{"name": "app", "resources": resources}], "placement": (if rule == PlanPlacement::Pack { "pack" } else { "spread" }),
        "approval": {"create": "automatic"},
    }})
}

/// Places replicas on nodes by a rule of placement. Returns placements per second of processor time.
fn place(replicas: usize, nodes: usize, rule: PlanPlacement) -> Result<f64> {
    let mut maker = FleetMaker::new(None)?;
    for (name, score) in [("v100", 70), ("a100", 80), ("h100", 90)] {
        maker.ask("capability.apply.v1", &json!({"name": name, "spec": {"type": "GPU", "score": score}}))?;
    }
    for n in 0..nodes {
        maker.ask("node.apply.v1", &node(n))?;
    }
    let mut wanted = 0;
    for n in 0..PLANS {
        maker.ask("plan.apply.v1", &plan(n, rule))?;
        // Plans that share no node have as many replicas as their nodes have capacity for.
        let most = if is_apart(n, rule) { nodes / 8 } else { usize::MAX };
        let count = (replicas / PLANS).min(most);
        wanted += count;
        let ask = json!({"plan": format!("plan-{n}"), "name": "d1", "spec": {"count": count}});
        maker.ask("deployment.create.v1", &ask)?;
    }
    let began = process::thread_time();
    while maker.step()? {}
    let took = process::thread_time().saturating_sub(began);
    let placed = maker.fleet.incarnations().len();
    ensure!(placed * 10 >= wanted * 9, "{placed} of {wanted} are placed");
    Ok(placed as f64 / took.as_secs_f64())
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut rows = Vec::new();
    for (rule, name) in RULES {
        let mut first = None;
        for (replicas, nodes) in LOADS {
            let rates = (0..ROUNDS)
                .map(|_| place(replicas, nodes, rule).map(CellResult::rate))
                .collect::<Result<_>>()?;
            let cell = median(rates);
            let rate = cell.rate;
            let row = ResultRow::new(
                "W8",
                format!("{}k on {}k, {name}", replicas / 1000, nodes as f64 / 1000.0),
                cell,
            );
            rows.push(match first {
                None => row.check("placements a second", rate, ValueBar::AtLeast(100_000.0)),
                Some(first) => row.check("of the rate of the first", rate / first, ValueBar::AtLeast(0.7)),
            });
            first.get_or_insert(rate);
        }
    }
    Ok(rows)
}
