//! Checks of a plan at rest: the wanted replicas run, and are spread as the rule requires.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::REPLICAS;
use super::deployments::RequiredReplicas;
use super::observer::{ServingProcess, serving};
use crate::{TestClient, payloads};

/// Nodes of the fleet, alternately in two update domains.
const NODES: [&str; 4] = ["node-1", "node-2", "node-3", "node-4"];
/// Number of replicas that fit on a node.
const CAPACITY: usize = 3;

/// Sets each node's resources so that exactly [`ROOM`] replicas fit.
pub(super) fn set_capacity(client: &TestClient) {
    for node in NODES {
        let total = json!({"cpu": 100 * CAPACITY, "memory": 16u64 << 30, "disk": 0});
        let spec = json!({"domain": domain(node), "resources": total});
        client.must("node.apply", &json!({"name": node, "cluster": "local", "spec": spec}));
    }
}

/// Update domain of the node in the campaigns' fleet.
fn domain(node: &str) -> &'static str {
    if node.ends_with(['1', '3']) { "domain-1" } else { "domain-0" }
}

/// Waits until `ready` returns a value, for at most a minute.
pub(super) fn comes<T>(what: &str, mut ready: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = ready()? {
            return Ok(found);
        }
        ensure!(began.elapsed() < Duration::from_mins(1), "still waiting after a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the plan has no deployment, operation or rebalance in progress, and every replica runs.
pub(super) fn is_at_rest(plan: &Value) -> bool {
    let states = ["preparing", "pending_approval", "approved", "running"];
    let is_idle = |of: &Value| states.iter().all(|state| of[*state].as_u64().unwrap_or(0) == 0);
    let nothing = ["current", "next"].iter().all(|field| plan[*field].is_null());
    nothing
        && plan["spread"]["rebalance_requested_by"].is_null()
        && plan["operations"].as_object().is_some_and(|kinds| kinds.values().all(is_idle))
        && plan["replicas"]["running"] == plan["replicas"]["total"]
}

/// Checks that every replica of the plan's rows serves once, with the version and node of its row, and no
/// other replica runs. Superseded processes may take a moment to end.
pub(super) fn check_set(
    client: &TestClient,
    data: &Path,
    required: &RequiredReplicas,
) -> Result<Vec<ServingProcess>> {
    let mut seen = (Vec::new(), Vec::new(), 0);
    let came = comes("running replicas are those of the rows", || {
        let mut serving = serving(data);
        serving.sort();
        seen = (shown(client)?, serving, payloads(data).len());
        Ok((seen.0 == seen.1 && seen.1.len() == seen.2).then_some(()))
    });
    let (shown, serving, alive) = seen;
    came.with_context(|| format!("rows show {shown:?}; {alive} processes run, of which serve {serving:?}"))?;
    let versions: BTreeSet<_> = serving.iter().map(|serving| serving.version.clone()).collect();
    let count = REPLICAS..=required.most;
    ensure!(
        count.contains(&serving.len()) && versions.is_subset(&required.versions),
        "{count:?} replicas of {:?} are wanted, and {serving:?} serve",
        required.versions
    );
    Ok(serving)
}

/// Replicas that are ready according to their rows, in order.
fn shown(client: &TestClient) -> Result<Vec<ServingProcess>> {
    let mut versions = BTreeMap::new();
    for row in client.items("plans/web/deployments?limit=1000") {
        let version = row["coordinates"]["app"]["version"].as_str().unwrap_or_default().to_owned();
        versions.insert(row["name"].as_str().unwrap_or_default().to_owned(), version);
    }
    let rows = client.items("replicas?plan=web&limit=1000");
    let ready = rows.iter().filter(|row| row["phase"] == "running" && row["ready"] == true);
    let replicas = ready.map(|row| {
        let text = |field: &str| row[field].as_str().map(str::to_owned);
        let version = row["deployment"].as_str().and_then(|name| versions.get(name)).cloned();
        let found = text("name").zip(version).zip(text("node"));
        let ((replica, version), node) = found.ok_or_else(|| anyhow!("this row lacks something: {row}"))?;
        Ok(ServingProcess { replica, version, node })
    });
    let mut replicas = replicas.collect::<Result<Vec<_>>>()?;
    replicas.sort();
    Ok(replicas)
}

/// Number of replicas on each node.
pub(super) fn by_node(serving: &[ServingProcess]) -> BTreeMap<&str, usize> {
    let mut on: BTreeMap<&str, usize> = NODES.iter().map(|node| (*node, 0)).collect();
    for serving in serving {
        *on.entry(serving.node.as_str()).or_default() += 1;
    }
    on
}

/// Returns a move of one replica that makes the spread more even, if any. The target is an update domain, or
/// a node of the same domain, with at least two fewer replicas. The target node has capacity and is not
/// drained.
pub(super) fn better(on: &BTreeMap<&str, usize>, drained: Option<&str>) -> Option<String> {
    let in_domain = |of: &str| -> usize {
        on.iter().filter(|(node, _)| domain(node) == domain(of)).map(|(_, count)| count).sum()
    };
    let improves = |from: &str, to: &str| {
        if domain(from) == domain(to) { on[to] + 1 < on[from] } else { in_domain(to) + 1 < in_domain(from) }
    };
    let to = |from: &str| {
        let mut nodes = on.keys().copied().filter(|to| on[to] < CAPACITY && drained != Some(*to));
        nodes.find(|to| improves(from, to))
    };
    let mut from = on.iter().filter(|(_, count)| **count > 0).map(|(node, _)| *node);
    from.find_map(|from| to(from).map(|to| format!("from {from} to {to}")))
}

/// Checks that no move makes the spread more even, or the plan's row reports that. Returns whether the spread
/// is uneven.
pub(super) fn check_spread(
    client: &TestClient,
    serving: &[ServingProcess],
    drained: Option<&str>,
) -> Result<bool> {
    let on = by_node(serving);
    let mut domains = BTreeMap::new();
    for (node, count) in on.iter().filter(|(_, count)| **count > 0) {
        *domains.entry(domain(node)).or_insert(0) += *count;
    }
    let spread = client.read("plans/web")["spread"].clone();
    ensure!(spread["domains"] == json!(domains), "the row has {spread}, and on nodes are {on:?}");
    let Some(better) = better(&on, drained) else { return Ok(false) };
    check_balance(client, "uneven").with_context(|| format!("a move {better} would be better: {on:?}"))?;
    Ok(true)
}

/// Waits until the plan's row reports this balance. The decider checks at least every ten seconds.
pub(super) fn check_balance(client: &TestClient, balance: &str) -> Result<()> {
    comes(&format!("the plan's row reports a spread that is {balance}"), || {
        Ok((client.read("plans/web")["spread"]["balance"] == balance).then_some(()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_is_better_where_two_fewer_are_and_there_is_capacity() {
        let found = |counts: [usize; 4], drained: Option<&str>| {
            let on = NODES.into_iter().zip(counts).collect();
            better(&on, drained)
        };
        assert_eq!(found([1, 1, 1, 1], None), None);
        assert_eq!(found([2, 1, 0, 1], None).as_deref(), Some("from node-1 to node-3"));
        assert_eq!(found([2, 1, 0, 1], Some("node-3")), None);
        assert_eq!(
            found([2, 1, 1, 0], None).as_deref(),
            Some("from node-1 to node-2"),
            "three in one domain"
        );
        assert_eq!(found([1, 1, 1, 2], None), None);
        assert_eq!(found([3, 3, 0, 3], None).as_deref(), Some("from node-1 to node-3"));
        assert_eq!(found([2, 3, 2, 0], None).as_deref(), Some("from node-2 to node-4"));
    }
}
