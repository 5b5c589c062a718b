//! Dry runs of random intents, compared with the effect of the same intents.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Value, json};

use super::in_fleet;
use crate::fault_campaigns::fleet::{set_up, sleeper};
use crate::{TestClient, until};

fn event(id: &str, actor: &str, type_name: &str, data: &Value) -> Value {
    let type_name = format!("dev.chancery.{type_name}.v1");
    json!({"specversion": "1.0", "id": id, "source": "/test", "type": type_name, "actor": actor, "data": data})
}

fn post(client: &TestClient, path: &str, event: &Value) -> (u16, Value) {
    let form = ("content-type", "application/cloudevents+json");
    let answer = client.send("POST", &in_fleet(path), &[form], event.to_string().as_bytes());
    (answer.status, answer.json())
}

/// Returns the position of the last event.
pub fn head(client: &TestClient) -> u64 {
    client.get(&in_fleet("nodes?limit=1")).position.expect("a position")
}

/// Returns the facts after a position, in order.
fn facts_after(client: &TestClient, position: u64) -> Vec<Value> {
    let path = format!("events?from={}&follow=false&kinds=fact", position + 1);
    let text = client.get(&in_fleet(&path)).text;
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect()
}

/// Form of facts that does not depend on positions, times and ids: each is replaced by the number of its first
/// occurrence.
#[derive(Default)]
struct ValueNames(BTreeMap<String, usize>);

impl ValueNames {
    fn of(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) if is_id(text) => {
                let next = self.0.len();
                json!(format!("id {}", self.0.entry(text.clone()).or_insert(next)))
            }
            // Microseconds since 1970.
            Value::Number(number) if number.as_u64().is_some_and(|number| number > 1 << 50) => {
                json!("a time")
            }
            Value::Array(items) => items.iter().map(|item| self.of(item)).collect(),
            Value::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), self.of(value))).collect()
            }
            other => other.clone(),
        }
    }

    /// Returns the type, the subject and the data of a fact.
    fn fact(&mut self, fact: &Value) -> Value {
        let type_name = fact["type"].as_str().unwrap_or_default().trim_start_matches("dev.chancery.");
        let subject = fact["subject"].as_str().unwrap_or_default();
        let subject = subject.split('/').map(|part| self.of(&part.into())).collect::<Vec<_>>();
        json!({"type": type_name, "subject": subject, "data": self.of(&fact["data"])})
    }
}

fn is_id(text: &str) -> bool {
    text.len() == 36 && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
}

/// Returns whether a fact is the result of a check of the balance of plans, which servers do every ten seconds.
fn is_check(fact: &Value) -> bool {
    fact["type"].as_str().is_some_and(|name| name.starts_with("dev.chancery.plan.balance_changed."))
}

/// Waits until no work is due: then the facts that follow are those of the next intent.
pub fn rest(client: &TestClient) {
    let nothing = event("none", "ann", "cluster.delete", &json!({"name": "none"}));
    until("no work is due", || {
        let (status, answer) = post(client, "dry-run", &nothing);
        (status == 200 && answer["due"].as_array().is_some_and(Vec::is_empty)).then_some(())
    });
}

/// Returns a row at random, if there is one.
fn some(client: &TestClient, random: &mut Rng, path: &str) -> Option<Value> {
    let items = client.items(path);
    (!items.is_empty()).then(|| items[random.usize(..items.len())].clone())
}

/// Timeouts that no run of the test reaches: what follows from an intent follows from no time.
fn timeouts() -> Value {
    json!({"start": 86_400_000, "stop": 3_600_000})
}

/// Draws an intent that some caller may send in any state.
fn draw(client: &TestClient, random: &mut Rng, number: usize) -> (&'static str, Value) {
    // Without an executor nothing completes, so that older plans change less and less.
    let recent = format!("p{}", number / 25 + random.usize(..3));
    let plan = if random.u8(..4) == 0 { "web".to_owned() } else { recent };
    let node = format!("node-{}", random.u8(1..=6));
    let replica = some(client, random, "replicas").map_or_else(|| json!("none-1"), |row| row["name"].clone());
    match random.u8(..24) {
        0..=4 => {
            let spec = json!({"count": random.u8(..5), "coordinates": {"app": {"version": format!("v{}", random.u8(..3))}}});
            let overlap = ["queue", "supersede"][random.usize(..2)];
            (
                "deployment.create",
                json!({"plan": plan, "name": format!("d{number}"), "spec": spec, "overlap": overlap}),
            )
        }
        5..=8 => match some(client, random, "operations?state=pending_approval") {
            Some(row) => {
                ("operation.approve", json!({"operations": [{"operation": row["id"], "hash": row["hash"]}]}))
            }
            None => ("operation.reject", json!({"operations": [], "reason": ""})),
        },
        9 => match some(client, random, "operations?state=pending_approval") {
            Some(row) => ("operation.reject", json!({"operations": [row["id"]], "reason": "no"})),
            None => ("replica.start", json!({"name": replica})),
        },
        10 => ("replica.stop", json!({"name": replica})),
        11 => ("replica.start", json!({"name": replica})),
        12 => ("replica.delete", json!({"name": replica})),
        13 => ("replica.relocate", json!({"name": replica, "node": node})),
        14 => {
            let total = json!({"cpu": 1000 * u32::from(random.u8(1..9)), "memory": 16u64 << 30, "disk": 0});
            let spec = json!({"domain": format!("domain-{}", random.u8(..3)), "resources": total});
            ("node.apply", json!({"name": node, "cluster": "local", "spec": spec}))
        }
        15 => {
            let spec = json!({"action": "drain", "reason": "work"});
            ("disruption.schedule", json!({"node": node, "name": format!("x{number}"), "spec": spec}))
        }
        16 => {
            let spec =
                json!({"kinds": ["delete", "stop"], "plans": [], "domains": [], "rule": {"four_eyes": {}}});
            ("policy.apply", json!({"name": "two", "spec": spec}))
        }
        17 if random.bool() => ("plan.delete", json!({"name": plan, "cascade": "yes"})),
        18 => match some(client, random, "requests?state=pending") {
            Some(row) => ("request.approve", json!({"request": row["id"], "hash": row["hash"]})),
            None => ("plan.delete", json!({"name": "none"})),
        },
        _ => {
            let rule = ["manual", "automatic", "automatic"][number % 3];
            let approval = json!({"create": rule, "start": rule, "stop": "automatic", "delete": rule});
            let placement = ["spread", "pack"][random.usize(..2)];
            let spec = json!({
                "namespace": "tests", "service": plan, "payloads": [sleeper()], "sharing": "allowed",
                "approval": approval, "placement": placement, "timeouts": timeouts(),
            });
            ("plan.apply", json!({"name": plan, "spec": spec}))
        }
    }
}

/// Number of compared dry runs.
#[derive(Clone, Debug, Default)]
pub struct DryRunCounts {
    /// Number of dry runs that were compared: none is while something else is recorded.
    pub compared: usize,
    /// Number of their intents by verdict or code.
    pub outcomes: BTreeMap<String, usize>,
    /// Number of facts that followed from the intents.
    pub following: usize,
}

/// Compares dry runs of random intents with the effect of the same intents, on an empty fleet without executors.
pub fn compare_dry_runs(client: &TestClient, seed: u64, runs: usize) -> DryRunCounts {
    set_up(client, &sleeper());
    for (plan, rule) in [("web", "automatic"), ("hand", "manual")] {
        let approval = json!({"create": rule, "start": rule, "stop": rule, "delete": rule});
        let spec = json!({
            "namespace": "tests", "service": plan, "payloads": [sleeper()], "sharing": "allowed",
            "approval": approval, "timeouts": timeouts(),
        });
        client.must("plan.apply", &json!({"name": plan, "spec": spec}));
    }
    let mut random = Rng::with_seed(seed);
    let mut counts = DryRunCounts::default();
    for number in 0..runs {
        rest(client);
        let (type_name, data) = draw(client, &mut random, number);
        let actor = ["ann", "ben"][random.usize(..2)];
        let intent = event(&format!("e{number}"), actor, type_name, &data);
        // A check of the balance may be recorded meanwhile, and a slow machine may reach the bound of time.
        let (dry, before) = until("a whole dry run is recorded nowhere", || {
            let before = head(client);
            let (status, dry) = post(client, "dry-run", &intent);
            assert_eq!(status, 200, "{intent}: {dry}");
            let is_whole = dry["truncated"] == false;
            assert!(is_whole || dry["truncated_because"] == "the maximum time is reached", "{intent}: {dry}");
            let is_same = (head(client), &dry["at"]["position"]) == (before, &json!(before));
            (is_whole && is_same).then_some((dry, before))
        });
        let (_, real) = post(client, "intents", &intent);
        let position = real["position"].as_u64().expect("a position");
        rest(client);
        let found = facts_after(client, before);
        // Positions in facts after such a check, or after something else, differ.
        if position != before + 2
            || found.iter().skip_while(|fact| !is_check(fact)).any(|fact| !is_check(fact))
        {
            continue;
        }
        let answer = &dry["intents"][0]["answer"];
        for member in ["verdict", "subject", "version", "code", "detail", "errors", "changed"] {
            let mut names = [ValueNames::default(), ValueNames::default()];
            let [of_dry, of_real] = [names[0].of(&answer[member]), names[1].of(&real[member])];
            if !is_id(of_dry.as_str().unwrap_or_default()) {
                assert_eq!(of_dry, of_real, "seed {seed}: {member} of {intent}");
            }
        }
        let outcome = real["verdict"].as_str().or(real["code"].as_str()).unwrap_or_default();
        *counts.outcomes.entry(outcome.to_owned()).or_default() += 1;
        let parts = [&dry["intents"][0]["facts"], &dry["follows"]]
            .map(|facts| facts.as_array().cloned().expect("facts"));
        counts.following += parts[1].len();
        let mut all_names = [ValueNames::default(), ValueNames::default()];
        let mut of = |names: usize, facts: &[Value]| -> Vec<Value> {
            facts.iter().filter(|fact| !is_check(fact)).map(|fact| all_names[names].fact(fact)).collect()
        };
        let (expected, found) = (of(0, &parts.concat()), of(1, &found));
        assert_eq!(expected, found, "seed {seed}: {intent}");
        counts.compared += 1;
    }
    counts
}
