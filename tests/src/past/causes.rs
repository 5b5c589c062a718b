//! Causes and effects of events, and the reasons for values.

use serde_json::Value;

use super::in_fleet;
use crate::TestClient;

/// Number of events on a page.
const PAGE: usize = 3;
/// Facts that are their own cause.
pub const FIRST_FACTS: [&str; 6] = [
    "term.started.v1",
    "lineage.started.v1",
    "inbox.message_refused.v1",
    "inbox.skipped.v1",
    "inbox.advanced.v1",
    "time.recorded.v1",
];

/// Returns the position of an event.
pub fn position(event: &Value) -> u64 {
    event["id"].as_str().and_then(|id| id.parse().ok()).expect("a position")
}

/// Returns the event at a position.
pub fn event(client: &TestClient, at: u64) -> Value {
    let event = client.read(&format!("events/{at}"));
    assert_eq!(position(&event), at);
    event
}

/// Returns the causes of an event, the nearest first.
pub fn causes(client: &TestClient, of: u64) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let mut next = Some(of);
    while let Some(event) = next {
        let page = client.read(&format!("events/{event}/causes?limit={PAGE}"));
        items.extend(page["items"].as_array().expect("items").iter().cloned());
        next = page["next_event"].as_u64();
    }
    items
}

/// Returns the facts that name an event as their cause.
pub fn effects(client: &TestClient, of: u64) -> Vec<Value> {
    let mut items = Vec::new();
    let mut next = Some(1);
    while let Some(from) = next {
        let page = client.read(&format!("events/{of}/effects?limit={PAGE}&from={from}"));
        items.extend(page["items"].as_array().expect("items").iter().cloned());
        next = page["next_from"].as_u64();
    }
    items
}

/// Checks that the causes of an event end at what needs no cause, and that effects are the inverse of causes.
pub fn check_causes(client: &TestClient, at: u64) {
    let event = event(client, at);
    let chain = causes(client, at);
    let first = chain.last().unwrap_or(&event);
    let type_name = first["type"].as_str().unwrap_or_default().trim_start_matches("dev.chancery.");
    assert!(first["kind"] != "fact" || FIRST_FACTS.contains(&type_name), "the causes of {at} end at {first}");
    if let Some(cause) = chain.first() {
        let found = effects(client, position(cause));
        assert!(found.iter().any(|effect| position(effect) == at), "{at} is no effect of {cause}");
    }
    for effect in effects(client, at) {
        let nearest = causes(client, position(&effect)).into_iter().next();
        assert_eq!(nearest.as_ref(), Some(&event), "the nearest cause of the effect {effect}");
    }
}

/// Checks that each approval among the reasons for the last change of a fact's entity has the hash that the operation
/// had when it was approved. Returns the number of approvals.
pub fn check_approvals(client: &TestClient, at: u64) -> usize {
    let event = event(client, at);
    let subject = event["subject"].as_str().unwrap_or_default();
    let Some((kind @ ("replica" | "incarnation" | "operation"), name)) = subject.split_once('/') else {
        return 0;
    };
    let answer = client.get(&in_fleet(&format!("{kind}s/{name}/why?as_of={at}")));
    assert_eq!(answer.status, 200, "{kind} {name} at {at}: {}", answer.text);
    let reasons = answer.json()["reasons"].as_array().expect("reasons").clone();
    assert!(!reasons.is_empty(), "{kind} {name} at {at}: {}", answer.text);
    let mut count = 0;
    for approval in reasons.iter().filter(|reason| reason["role"] == "approval") {
        let (fact, approved_at) = (&approval["event"]["data"], position(&approval["event"]));
        let id = fact["operation"].as_str().expect("an id");
        let operation = client.read(&format!("operations/{id}?as_of={approved_at}"));
        assert!(fact["hash"].is_string(), "{approval}");
        assert_eq!(fact["hash"], operation["hash"], "{approval}");
        count += 1;
    }
    count
}
