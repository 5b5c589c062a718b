//! Approval requests: an intent that ends or moves many replicas together, or weakens approval, is approved
//! as a whole.

use std::collections::BTreeSet;

use chancery_events::fact::{Fact, RequestEnd, RequestedChange};
use chancery_events::id::RequestId;
use chancery_events::intent::{Intent, IntentEnding, RequestApprove, RequestReject};
use chancery_events::name::{Actor, DomainName, PolicyName};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{
    ApprovalMode, ApprovalPolicy, ApprovalWindow, NodeState, OperationKind, PolicyKind, PolicyRule,
    PolicySpec, Weekday,
};
use chancery_events::subject::Subject;
use chancery_events::time::Time;
use serde_json::{Value, json};

use super::setting::{self, GB};
use crate::state::{ApprovalRequest, Incarnation, RequestState};
use crate::testing::{TestFleet, TestRandom, intent, name};

fn world(approval: &str, count: u32) -> TestFleet {
    let mut world = TestFleet::with_nodes(3);
    world.plan_with(approval, &json!({"restart": "never", "sharing": "allowed"}));
    world.running("d1", count);
    world
}

fn four_eyes(world: &mut TestFleet, policy: &str, kinds: &[&str]) {
    let spec = json!({"kinds": kinds, "rule": {"four_eyes": {}}});
    world.must("policy.apply", &json!({"name": policy, "spec": spec}));
}

fn waiting(world: &TestFleet) -> Vec<ApprovalRequest> {
    let all = world.fleet.approval_requests().sorted().into_iter();
    all.filter(|request| matches!(request.state, RequestState::Pending { .. })).cloned().collect()
}

fn ask_as(world: &mut TestFleet, actor: &str, intent: Intent) -> Result<Vec<Fact>, Refusal> {
    let mut request = world.request(intent);
    request.actor = name::<Actor>(actor);
    let facts = world.ask_request(&request);
    world.run();
    facts
}

fn approve_as(world: &mut TestFleet, actor: &str) -> Result<Vec<Fact>, Refusal> {
    let request = waiting(world).remove(0);
    ask_as(world, actor, RequestApprove { request: request.id, hash: request.hash }.into())
}

fn types(facts: &[Fact]) -> Vec<&str> {
    facts.iter().map(|fact| fact.type_name().trim_end_matches(".v1")).collect()
}

/// Intents that would bypass a second person, with the policy's kinds that each would pass.
fn ways() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let automatic = |world: &TestFleet| {
        let mut spec = (**world.fleet.plans().get("web").expect("the plan").specs.newest()).clone();
        spec.approval = ApprovalPolicy::all(ApprovalMode::Automatic);
        json!({"name": "web", "spec": spec})
    };
    let automatic = automatic(&world("manual", 1));
    let fewer = json!({"name": "two", "spec": {"kinds": ["create"], "rule": {"four_eyes": {}}}});
    let passed = json!({"name": "quick", "spec": {"kinds": ["delete"], "rule": {"approve": {}}}});
    vec![
        ("plan.delete", json!({"name": "web", "cascade": "yes"}), &["delete"]),
        ("node.delete", json!({"name": "node-1", "cascade": "yes"}), &["relocate"]),
        ("disruption.approve", json!({"node": "node-1", "name": "power"}), &["relocate"]),
        ("node.set_state", json!({"name": "node-1", "state": "expunged"}), &["expunge"]),
        ("plan.apply", automatic, &["stop", "delete"]),
        ("policy.apply", fewer, &["delete"]),
        ("policy.apply", passed, &["delete"]),
        ("policy.delete", json!({"name": "two"}), &["delete"]),
    ]
}

fn disrupted(approval: &str) -> TestFleet {
    let mut world = world(approval, 6);
    let spec = json!({"action": "drain"});
    world.must("disruption.schedule", &json!({"node": "node-1", "name": "power", "spec": spec}));
    world
}

#[test]
fn every_way_round_a_second_person_waits_for_one_and_is_carried_out_when_that_approves() {
    for (type_name, data, kinds) in ways() {
        let mut world = disrupted("manual");
        four_eyes(&mut world, "two", kinds);
        let facts = world.must(type_name, &data);
        assert_eq!(types(&facts), ["request.opened"], "{type_name} {data}");
        let request = waiting(&world).remove(0);
        assert_eq!(request.policies, [name("two")], "{type_name}");
        let refusal = approve_as(&mut world, "ann").expect_err("ann asked for it");
        assert!(
            refusal.code == RefusalCode::Denied && refusal.detail.contains("two"),
            "{type_name}: {refusal:?}"
        );
        let facts =
            approve_as(&mut world, "bob").unwrap_or_else(|refusal| panic!("{type_name}: {refusal:?}"));
        assert_eq!(types(&facts)[0], "request.approved", "{type_name}");
        assert!(facts.len() > 1, "{type_name} is carried out in the same commit: {facts:?}");
        let state = &world.fleet.approval_requests().get(&request.id).expect("it is kept").state;
        assert_eq!(*state, RequestState::Approved { approved_by: name("bob") }, "{type_name}");
    }
}

#[test]
fn every_intent_that_may_wait_by_the_register_does_in_one_of_these_scenarios() {
    let mut waits: BTreeSet<_> = ways().iter().map(|(type_name, ..)| format!("{type_name}.v1")).collect();
    // In `a_volume_is_deleted_by_two_people_where_a_delete_takes_two`.
    waits.insert("volume.delete.v1".to_owned());
    let marked = Intent::REGISTER.iter().filter(|entry| entry.ending.may_wait());
    assert_eq!(waits, marked.map(|entry| entry.type_name.to_owned()).collect());
}

#[test]
fn where_no_policy_and_no_plan_requires_a_person_nothing_waits() {
    for (type_name, data, _) in ways() {
        if type_name.starts_with("policy.delete") {
            continue;
        }
        let mut world = disrupted("automatic");
        let facts = world.must(type_name, &data);
        assert!(!types(&facts).contains(&"request.opened"), "{type_name}: {facts:?}");
        // A plan with automatic approval passes four eyes, and so does everything that is approved by the
        // plan.
        let mut world = disrupted("automatic");
        four_eyes(&mut world, "two", &["delete", "relocate", "stop"]);
        if !type_name.starts_with("policy") {
            let facts = world.must(type_name, &data);
            assert!(!types(&facts).contains(&"request.opened"), "{type_name}: {facts:?}");
        }
    }
}

#[test]
fn a_cascade_of_a_manual_plan_waits_for_any_person() {
    let mut world = world("manual", 3);
    world.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    let request = waiting(&world).remove(0);
    assert!(request.policies.is_empty());
    assert_eq!((request.effects[0].kind, request.effects[0].count), (PolicyKind::Delete, 3));
    assert_eq!(request.effects[0].replicas.len(), 3, "they are named");
    let facts = approve_as(&mut world, "ann").expect("who asked may approve, as of a single delete");
    assert_eq!(types(&facts), ["request.approved", "plan.deletion_started"]);
    world.obey();
    world.run();
    assert!(world.fleet.plans().get("web").is_none(), "it is deleted, with everything it had");
}

#[test]
fn a_cascade_shows_replicas_whose_create_is_not_approved_and_needs_no_approval_for_these_alone() {
    let all = json!({"name": "web", "cascade": "yes"});
    let mut world = world("manual", 2);
    world.must("replica.create", &json!({"plan": "web"}));
    world.must("plan.delete", &all);
    let request = waiting(&world).remove(0);
    assert_eq!((request.effects[0].count, request.effects[0].replicas.len()), (3, 3));
    approve_as(&mut world, "ann").expect("an approval");
    world.obey();
    world.run();
    assert!(world.fleet.plans().get("web").is_none(), "it is deleted, with everything it had");

    let mut world = self::world("manual", 0);
    world.must("replica.create", &json!({"plan": "web"}));
    assert_eq!(world.fleet.replicas().sorted().len(), 1);
    let facts = world.must("plan.delete", &all);
    assert!(facts.iter().any(|fact| matches!(fact, Fact::PlanDeletionStarted(_))), "{facts:?}");
}

#[test]
fn the_same_again_is_one_request_and_something_else_supersedes_it() {
    let mut world = world("manual", 3);
    let all = json!({"name": "web", "cascade": "yes"});
    world.must("plan.delete", &all);
    let first = waiting(&world).remove(0);
    let again = ask_as(&mut world, "bob", intent("plan.delete", &all)).expect("one that waits");
    assert!(again.is_empty(), "{again:?}");
    let Some((_, Fact::IntentAccepted(accepted))) =
        world.folded.iter().rev().find(|(_, fact)| matches!(fact, Fact::IntentAccepted(_)))
    else {
        panic!("a verdict")
    };
    assert_eq!(accepted.subject, Some(Subject::Request(first.id)), "the verdict names the pending request");
    world.deploy("d2", 4);
    world.approve_all();
    let facts = world.must("plan.delete", &all);
    assert_eq!(types(&facts), ["request.opened", "request.ended"]);
    let second = waiting(&world).remove(0);
    assert_ne!(first.hash, second.hash);
    let state = &world.fleet.approval_requests().get(&first.id).expect("kept").state;
    assert_eq!(*state, RequestState::Ended(RequestEnd::Superseded { successor: second.id }));
}

#[test]
fn an_approval_is_void_when_something_else_than_was_shown_would_be_ended_or_replaced() {
    type FleetChange = fn(&mut TestFleet);
    let void: [(&str, Value, FleetChange); 6] = [
        ("plan.delete", json!({"name": "web", "cascade": "yes"}), |world| {
            world.deploy("d2", 7);
            world.approve_all();
        }),
        // Its create is not approved, and it would be deleted too.
        ("plan.delete", json!({"name": "web", "cascade": "yes"}), |world| {
            world.must("replica.create", &json!({"plan": "web"}));
        }),
        ("node.delete", json!({"name": "node-1", "cascade": "yes"}), |world| {
            let on_it = world.fleet.index().places.held(&name("node-1")).incarnations.first().cloned();
            let replica = world.fleet.incarnations().get(&on_it.expect("one").1).expect("it").replica.clone();
            world.must("replica.delete", &json!({"name": replica}));
            world.approve_all();
            world.obey();
        }),
        ("node.set_state", json!({"name": "node-1", "state": "expunged"}), |world| {
            world.must("replica.create", &json!({"plan": "web", "node": "node-1"}));
            world.run();
            world.approve_all();
        }),
        ("policy.delete", json!({"name": "two"}), |world| {
            let spec = json!({"rule": {"four_eyes": {}}});
            world.must("policy.apply", &json!({"name": "two", "spec": spec}));
        }),
        (
            "policy.apply",
            json!({"name": "two", "spec": {"kinds": ["stop"], "rule": {"four_eyes": {}}}}),
            |world| {
                let spec =
                    json!({"kinds": ["expunge", "delete", "stop", "start"], "rule": {"four_eyes": {}}});
                world.must("policy.apply", &json!({"name": "two", "spec": spec}));
            },
        ),
    ];
    for (type_name, data, change) in void {
        let mut world = world("manual", 6);
        four_eyes(&mut world, "two", &["expunge"]);
        world.must(type_name, &data);
        assert_eq!(waiting(&world).len(), 1, "{type_name}");
        change(&mut world);
        let refusal = approve_as(&mut world, "bob").expect_err(type_name);
        assert_eq!(refusal.code, RefusalCode::HashMismatch, "{type_name}: {refusal:?}");
        world.must(type_name, &data);
        approve_as(&mut world, "bob").unwrap_or_else(|refusal| panic!("{type_name}, again: {refusal:?}"));
    }
}

#[test]
fn a_request_is_rejected_by_anyone_and_expires_automatically() {
    let mut world = world("manual", 2);
    let all = json!({"name": "web", "cascade": "yes"});
    world.must("plan.delete", &all);
    let first = waiting(&world).remove(0);
    let refusal = ask_as(
        &mut world,
        "bob",
        RequestApprove { request: first.id, hash: "0".repeat(32).parse().expect("a digest") }.into(),
    );
    assert_eq!(refusal.expect_err("another hash").code, RefusalCode::HashMismatch);
    let reject = || Intent::from(RequestReject { request: first.id, reason: "not on a Friday".into() });
    ask_as(&mut world, "bob", reject()).expect("rejected");
    assert_eq!(ask_as(&mut world, "bob", reject()).expect_err("it has ended").code, RefusalCode::NotPending);
    world.must("plan.delete", &all);
    world.wait(24 * 60 * 60);
    assert!(waiting(&world).is_empty(), "it was not approved in a day");
    let last = world.fleet.approval_requests().sorted().into_iter().last().expect("kept").clone();
    assert_eq!(last.state, RequestState::Ended(RequestEnd::Expired));
    assert!(world.fleet.plans().get("web").is_some_and(|plan| plan.deletion_requested_by.is_none()));
    let gone: RequestId = RequestId::issue(last.id.lineage(), chancery_events::id::Position::new(999));
    let refusal = ask_as(&mut world, "bob", RequestReject { request: gone, reason: String::new() }.into());
    assert_eq!(refusal.expect_err("there is none").code, RefusalCode::NotFound);
}

#[test]
fn a_break_glass_expunge_does_not_wait_and_is_reported() {
    let mut world = world("manual", 6);
    four_eyes(&mut world, "two", &["expunge"]);
    let expunge = |reason: &str| json!({"name": "node-1", "state": "expunged", "break_glass": reason});
    for bad in ["", "a\nb", &"x".repeat(513)] {
        assert_eq!(
            world.ask("node.set_state", &expunge(bad)).expect_err("no reason").code,
            RefusalCode::Invalid
        );
    }
    let elsewhere = json!({"name": "node-1", "state": "evicted", "break_glass": "fire"});
    assert_eq!(
        world.ask("node.set_state", &elsewhere).expect_err("only an expunge").code,
        RefusalCode::Invalid
    );
    let facts = world.must("node.set_state", &expunge("fire in row 3"));
    assert_eq!(types(&facts), ["approval.bypassed", "node.state_changed"]);
    let node = world.fleet.nodes().get("node-1").expect("the node");
    let bypass = node.bypass.as_ref().expect("it stays with the node");
    assert_eq!((bypass.requested_by.as_str(), bypass.reason.as_str()), ("ann", "fire in row 3"));
    assert_eq!((node.state, &bypass.policies[..]), (NodeState::Expunged, &[name("two")][..]));
}

#[test]
fn what_waits_does_not_outlive_a_hundred_others_that_ended() {
    let mut world = world("manual", 1);
    let all = json!({"name": "web", "cascade": "yes"});
    let mut first = None;
    for _ in 0..110 {
        world.must("plan.delete", &all);
        let request = waiting(&world).remove(0);
        first.get_or_insert(request.id);
        ask_as(&mut world, "bob", RequestReject { request: request.id, reason: String::new() }.into())
            .expect("rejected");
    }
    assert_eq!(world.fleet.approval_requests().sorted().len(), 100);
    assert!(world.fleet.approval_requests().get(&first.expect("one")).is_none(), "the oldest is removed");
}

/// Whether one person can have such an operation executed without another person.
fn alone(world: &TestFleet, plan: &str, kind: OperationKind, domain: Option<&str>, now: Time) -> bool {
    let automatic = world
        .fleet
        .plans()
        .get(plan)
        .is_some_and(|plan| plan.immediate().approval().of(kind) == ApprovalMode::Automatic);
    let about = |spec: &PolicySpec| {
        (spec.kinds.is_empty() || spec.kinds.contains(&kind.into()))
            && (spec.plans.is_empty() || spec.plans.iter().any(|named| named.as_str() == plan))
            && (spec.domains.is_empty()
                || domain.is_some_and(|domain| spec.domains.iter().any(|of| of.as_str() == domain)))
    };
    let policies: Vec<_> = world.fleet.policies().sorted().into_iter().map(|policy| &policy.spec).collect();
    let by_rule = policies.iter().any(|spec| match &spec.rule {
        PolicyRule::Approve { windows, max_in_flight: in_flight } => {
            // With two others in flight.
            about(spec) && in_flight.is_none_or(|most| most > 2) && is_open(windows, now)
        }
        PolicyRule::FourEyes {} => false,
    });
    let two = policies.iter().any(|spec| spec.rule == PolicyRule::FourEyes {} && about(spec));
    automatic || by_rule || !two
}

/// Whether a window is open, by the minute of the week, counted from a Monday.
fn is_open(windows: &[ApprovalWindow], now: Time) -> bool {
    let minute = now.micros() / 60_000_000 % (7 * 24 * 60);
    windows.is_empty()
        || windows.iter().any(|window| {
            let days = if window.days.is_empty() { Weekday::ALL } else { &window.days };
            days.iter().any(|day| {
                let from = (*day as i64) * 24 * 60 + i64::from(window.start);
                (minute - from).rem_euclid(7 * 24 * 60) < i64::from(window.duration)
            })
        })
}

fn some<'a>(dice: &mut TestRandom, all: &[&'a str]) -> Vec<&'a str> {
    if dice.below(2) == 0 {
        return Vec::new();
    }
    all.iter().copied().filter(|_| dice.below(2) == 0).collect()
}

fn random_policy(dice: &mut TestRandom) -> Value {
    let rule = if dice.below(3) > 0 {
        json!({"four_eyes": {}})
    } else {
        let window = |dice: &mut TestRandom| {
            let days = some(dice, &["mon", "wed", "sun"]);
            json!({"days": days, "start": dice.below(1440), "duration": 1 + dice.below(10080)})
        };
        let windows: Vec<_> = (0..dice.below(3)).map(|_| window(dice)).collect();
        let in_flight = dice.of(&[None, Some(1), Some(2), Some(5)]);
        json!({"approve": {"windows": windows, "max_in_flight": in_flight}})
    };
    let kinds = some(dice, &["create", "delete", "stop"]);
    json!({"kinds": kinds, "plans": some(dice, &["web", "other"]), "domains": some(dice, &["d1", "d2"]), "rule": rule})
}

#[test]
fn what_one_person_can_do_alone_never_grows_without_another_person() {
    let (mut held, mut grown) = (0, 0);
    for seed in 1..=400 {
        let mut dice = TestRandom(seed * 0x9e37_79b9);
        let mut world = TestFleet::new();
        let kinds = [OperationKind::Create, OperationKind::Delete, OperationKind::Stop];
        world.plan_with("manual", &json!({}));
        for _ in 0..30 {
            let ops: Vec<_> = (0..40)
                .map(|_| {
                    let domain = dice.of(&[None, Some("d1"), Some("d2"), Some("d3")]);
                    // Since the epoch was a Thursday, `now` is counted from a Monday instead: any week is
                    // equivalent.
                    let now = Time::from_micros(
                        i64::try_from(dice.below(7 * 24 * 60)).expect("small") * 60_000_000,
                    );
                    (dice.of(&["web", "other"]), dice.of(&kinds), domain, now)
                })
                .collect();
            let all = |world: &TestFleet| -> Vec<bool> {
                ops.iter().map(|(plan, kind, domain, now)| alone(world, plan, *kind, *domain, *now)).collect()
            };
            let before = all(&world);
            let policy = dice.of(&["p", "q", "r"]);
            let (type_name, data) = match dice.below(4) {
                0 => ("policy.delete", json!({"name": policy})),
                1 => {
                    let mut spec = (**world.fleet.plans().get("web").expect("it").specs.newest()).clone();
                    spec.approval.delete = dice.of(ApprovalMode::ALL);
                    spec.approval.stop = dice.of(ApprovalMode::ALL);
                    ("plan.apply", json!({"name": "web", "spec": spec}))
                }
                _ => ("policy.apply", json!({"name": policy, "spec": random_policy(&mut dice)})),
            };
            let facts = world.ask(type_name, &data).unwrap_or_default();
            let after = all(&world);
            if types(&facts).contains(&"request.opened") {
                held += 1;
                assert_eq!(before, after, "nothing changes before it is approved");
                approve_as(&mut world, "bob").expect("bob did not ask");
                grown += usize::from(all(&world).iter().zip(&before).any(|(now, before)| *now && !before));
                continue;
            }
            for ((op, before), after) in ops.iter().zip(&before).zip(&after) {
                assert!(*before || !after, "seed {seed}: {type_name} {data} lets one person do {op:?} alone");
            }
        }
    }
    assert!(held > 500 && grown > 200, "{held} waited, {grown} of them made something possible alone");
}

#[test]
fn changes_that_require_as_much_or_more_hold_immediately() {
    let eyes = |more: Value| {
        let mut spec = json!({"rule": {"four_eyes": {}}});
        for (key, value) in more.as_object().expect("an object") {
            spec[key] = value.clone();
        }
        spec
    };
    let kinds: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.word()).collect();
    let nights = |from: u64, minutes: u64| json!({"kinds": ["delete"], "rule": {"approve": {"windows": [{"start": from, "duration": minutes}]}}});
    // The existing policy, the new one, and whether that is weaker.
    let table = [
        (eyes(json!({"kinds": ["stop"]})), eyes(json!({"kinds": ["stop", "delete"]})), false, "more kinds"),
        (eyes(json!({"kinds": ["stop", "delete"]})), eyes(json!({"kinds": ["stop"]})), true, "fewer kinds"),
        (eyes(json!({"kinds": ["stop"]})), eyes(json!({})), false, "every kind"),
        (eyes(json!({})), eyes(json!({"kinds": kinds})), false, "every kind by name"),
        (eyes(json!({})), eyes(json!({"plans": ["web"]})), true, "one plan of all"),
        (eyes(json!({"plans": ["web"]})), eyes(json!({"plans": ["web", "db"]})), false, "one plan more"),
        (eyes(json!({"domains": ["d1"]})), eyes(json!({"domains": ["d2"]})), true, "another domain"),
        (eyes(json!({})), json!({"rule": {"approve": {}}}), true, "a rule in the place of people"),
        (json!({"rule": {"approve": {}}}), eyes(json!({})), false, "people in the place of a rule"),
        (nights(22 * 60, 480), nights(23 * 60, 60), false, "a shorter window within"),
        (nights(23 * 60, 60), nights(22 * 60, 480), true, "a longer window"),
        (nights(22 * 60, 480), json!({"kinds": ["delete"], "rule": {"approve": {}}}), true, "any time"),
    ];
    for (from, to, less, why) in table {
        let mut world = TestFleet::new();
        // Operations that a rule approves.
        four_eyes(&mut world, "deletes", &["delete"]);
        if world
            .must("policy.apply", &json!({"name": "p", "spec": from}))
            .iter()
            .any(|fact| matches!(fact, Fact::RequestOpened(_)))
        {
            approve_as(&mut world, "bob").expect("the one that is there");
        }
        let facts = world.must("policy.apply", &json!({"name": "p", "spec": to}));
        assert_eq!(types(&facts) == ["request.opened"], less, "{why}: {facts:?}");
    }
    // Another policy still requires it.
    let mut world = TestFleet::new();
    four_eyes(&mut world, "all", &[]);
    four_eyes(&mut world, "deletes", &["delete"]);
    assert_eq!(types(&world.must("policy.delete", &json!({"name": "deletes"}))), ["policy.deleted"]);
    assert_eq!(types(&world.must("policy.delete", &json!({"name": "all"}))), ["request.opened"]);
}

#[test]
fn a_deployment_of_none_waits_for_another_person_as_each_delete_does() {
    let mut world = world("manual", 2);
    four_eyes(&mut world, "two", &["delete"]);
    world.deploy("d2", 0);
    let pending: Vec<_> = world.pending().iter().map(|operation| operation.id).collect();
    assert_eq!(pending.len(), 2);
    for id in pending {
        assert_eq!(world.approve(id).expect_err("ann deployed it").code, RefusalCode::Denied);
    }
    assert_eq!(world.fleet.replicas().sorted().len(), 2);
}

/// Returns what an intent can end, and what approves that; `None` if it ends nothing.
fn documented(type_name: &str, ending: IntentEnding) -> Option<(&'static str, &'static str)> {
    const RULE: &str = "each operation by the plan's rule, a policy or a person";
    Some(match (ending, type_name) {
        (IntentEnding::Nothing, _) => return None,
        (IntentEnding::Request(PolicyKind::Delete), "plan.delete.v1") => (
            "with `cascade`: every replica of the plan",
            "a request, where the plan's `delete` is manual: any person; another person where a four-eyes policy covers a delete",
        ),
        (IntentEnding::Request(PolicyKind::Delete), "volume.delete.v1") => (
            "the data of the volume, once no incarnation uses it",
            "a request for another person where a four-eyes policy covers a delete, unless the `delete` of the owner's plan is automatic",
        ),
        (IntentEnding::Request(PolicyKind::Relocate), "node.delete.v1") => (
            "with `cascade`: every incarnation on the node, replaced elsewhere",
            "a request, where a plan's `relocate` is manual: any person; another person where a four-eyes policy covers a move",
        ),
        (IntentEnding::Request(PolicyKind::Relocate), "disruption.approve.v1") => (
            "every incarnation on the node, replaced elsewhere, if the disruption drains the node",
            "the intent itself; a request for another person where a four-eyes policy covers a move that is manual",
        ),
        (IntentEnding::Request(PolicyKind::Expunge), "node.set_state.v1") => (
            "`expunged`: every incarnation and volume on the node",
            "a request for another person where a four-eyes policy covers `expunge`; none with `break_glass`",
        ),
        (IntentEnding::Weakens, "plan.apply.v1") => (
            "nothing; a kind that becomes automatic needs no person any more",
            "a request for another person where a four-eyes policy covers that kind",
        ),
        (IntentEnding::Weakens, "policy.apply.v1" | "policy.delete.v1") => (
            "nothing; less may need a second person afterwards",
            "a request for another person where one person could do alone what took two",
        ),
        (IntentEnding::Operations, "deployment.create.v1") => {
            ("replicas beyond `count`, and replaced incarnations; with `supersede`, what a cancel ends", RULE)
        }
        (IntentEnding::Operations, "plan.rollback.v1") => {
            ("replicas beyond the count, and replaced incarnations; what a cancel ends", RULE)
        }
        (IntentEnding::Operations, "plan.rebalance.v1") => ("incarnations that are moved, replaced", RULE),
        (IntentEnding::Operations, "deployment.promote.v1") => ("the replicas of the old set", RULE),
        (IntentEnding::Operations, "deployment.cancel.v1") => (
            "incarnations that are not ready yet, of operations that are aborted; replicas of the new set, which does not \
             count yet, and those that are being created",
            "none for what is aborted; the rule `deployment/PLAN/NAME/rollback` for replicas",
        ),
        (IntentEnding::Operations, "deployment.rollback.v1") => {
            ("replicas of the new set, which does not count yet", "the rule `deployment/PLAN/NAME/rollback`")
        }
        (IntentEnding::Operations, "deployment.resume.v1") => ("what the deployment ends", RULE),
        (IntentEnding::Operations, "replica.create.v1" | "replica.start.v1") => ("nothing that runs", RULE),
        (IntentEnding::Operations, "replica.delete.v1") => ("the replica", RULE),
        (IntentEnding::Operations, "replica.stop.v1") => ("the incarnation; the replica stays", RULE),
        (IntentEnding::Operations, "replica.relocate.v1" | "replica.restart.v1") => {
            ("the incarnation, replaced", RULE)
        }
        (IntentEnding::Operations, "replica.reboot.v1") => ("what the guest has not written to a disk", RULE),
        (IntentEnding::Approves, "operation.approve.v1") => {
            ("what the operations end", "this is the approval, on their hashes")
        }
        (IntentEnding::Approves, "request.approve.v1") => {
            ("what the request ends or changes", "this is the approval, on its hash")
        }
        (IntentEnding::Withdraws, "operation.reject.v1" | "request.reject.v1") => ("only what waits", "none"),
        (IntentEnding::Withdraws, "disruption.complete.v1") => ("only moves that were not started", "none"),
        (ending, type_name) => {
            panic!("{type_name} ends something by {ending:?}: say what, and what approves it")
        }
    })
}

#[test]
fn every_intent_that_can_end_something_is_in_the_table_of_approvals() {
    let mut lines = vec!["| intent | what it can end | approval |\n|---|---|---|\n".to_owned()];
    let mut others = Vec::new();
    for entry in Intent::REGISTER {
        let short = entry.type_name.trim_end_matches(".v1");
        match documented(entry.type_name, entry.ending) {
            Some((what, by)) => lines.push(format!("| `{short}` | {what} | {by} |\n")),
            None => others.push(format!("`{short}`")),
        }
    }
    lines.push(format!("\nAll other intents end nothing: {}.\n", others.join(", ")));
    let table = lines.concat();
    let path = format!("{}/../docs/approvals.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("the page");
    let (before, rest) = text.split_once("<!-- intents -->\n").expect("the start of the table");
    let (found, after) = rest.split_once("<!-- end -->").expect("the end of the table");
    if std::env::var_os("UPDATE").is_some() {
        let text = format!("{before}<!-- intents -->\n{table}<!-- end -->{after}");
        std::fs::write(&path, text).expect("written");
    } else {
        assert_eq!(found, table, "docs/approvals.md: run this test with UPDATE=1");
    }
}

#[test]
fn an_approval_of_a_disruption_is_void_for_another_one_of_the_same_name() {
    for spec in [
        json!({"action": "drain_and_delete"}),
        json!({"action": "drain", "start": 2_000_000_000_000_000_u64}),
    ] {
        let mut world = disrupted("manual");
        four_eyes(&mut world, "two", &["relocate"]);
        let ask = json!({"node": "node-1", "name": "power"});
        world.must("disruption.approve", &ask);
        world.must("disruption.complete", &ask);
        world.must("disruption.delete", &ask);
        world.must("disruption.schedule", &json!({"node": "node-1", "name": "power", "spec": spec}));
        let refusal = approve_as(&mut world, "bob").expect_err("another disruption was shown");
        assert_eq!(refusal.code, RefusalCode::HashMismatch, "{spec}: {refusal:?}");
    }
}

#[test]
fn an_approval_of_an_expunge_is_void_when_more_volumes_would_be_lost() {
    let mut world = setting::world(1, 10 * GB);
    setting::apply(&mut world, "web", &setting::own(), &json!({"restart": "never"}));
    setting::put(&mut world, "web", "d1", 1);
    world.obey();
    four_eyes(&mut world, "two", &["expunge"]);
    let ask = json!({"name": "node-1", "state": "expunged"});
    world.must("node.set_state", &ask);
    let RequestedChange::NodeExpunge { volumes, .. } = waiting(&world)[0].change else {
        panic!("an expunge")
    };
    assert_eq!(volumes, 1);
    // A second replica is stopped again: its volume alone is left on the node.
    let first = world.replica();
    setting::put(&mut world, "web", "d2", 2);
    world.obey();
    let all = world.fleet.replicas().sorted();
    let second = all.into_iter().find(|replica| replica.name != first).expect("a second").name.clone();
    world.must("replica.stop", &json!({"name": second}));
    world.run();
    world.obey();
    assert_eq!(world.fleet.volumes().len(), 2);
    let refusal = approve_as(&mut world, "bob").expect_err("one volume was shown");
    assert_eq!(refusal.code, RefusalCode::HashMismatch, "{refusal:?}");
}

#[test]
fn a_volume_is_deleted_by_two_people_where_a_delete_takes_two() {
    for (approval, kinds, waits) in [
        ("manual", vec!["delete"], true),
        ("manual", vec![], true),
        ("manual", vec!["expunge"], false),
        ("automatic", vec!["delete"], false),
    ] {
        let mut world = setting::world(1, 10 * GB);
        setting::apply(&mut world, "web", &setting::own(), &json!({"restart": "never"}));
        setting::put(&mut world, "web", "d1", 1);
        world.obey();
        let volume = world.fleet.volumes().sorted()[0].clone();
        let approval: serde_json::Map<_, _> =
            OperationKind::ALL.iter().map(|kind| (kind.word().to_owned(), approval.into())).collect();
        setting::apply(
            &mut world,
            "web",
            &setting::own(),
            &json!({"restart": "never", "approval": approval}),
        );
        four_eyes(&mut world, "two", &kinds);
        let facts = world.must("volume.delete", &json!({"name": volume.name}));
        if !waits {
            assert_eq!(types(&facts), ["volume.deletion_started"], "{kinds:?}");
            continue;
        }
        assert_eq!(types(&facts), ["request.opened"], "{kinds:?}");
        assert_eq!(approve_as(&mut world, "ann").expect_err("ann asked").code, RefusalCode::Denied);
        approve_as(&mut world, "bob").expect("another person");
        world.run();
        assert!(world.fleet.volumes().get(&volume.name).expect("in use").deletion_requested_by.is_some());
    }
    // A volume without owner may be kept for any plan.
    let mut world = setting::world(1, 10 * GB);
    setting::apply(&mut world, "web", &setting::named("kept"), &json!({"restart": "never"}));
    setting::put(&mut world, "web", "d1", 1);
    world.obey();
    let spec = json!({"kinds": ["delete"], "plans": ["other"], "rule": {"four_eyes": {}}});
    world.must("policy.apply", &json!({"name": "two", "spec": spec}));
    assert_eq!(types(&world.must("volume.delete", &json!({"name": "kept"}))), ["request.opened"]);
}

fn four_eyes_in(world: &mut TestFleet, domain: &str, kinds: &[&str]) {
    let spec = json!({"kinds": kinds, "domains": [domain], "rule": {"four_eyes": {}}});
    world.must("policy.apply", &json!({"name": "two", "spec": spec}));
}

#[test]
fn a_move_needs_another_person_by_the_domain_that_it_leaves_and_by_the_one_that_it_is_to() {
    // Of the nodes, node-1 and node-3 are in d1, node-2 is in d2.
    for domain in ["d1", "d2"] {
        for (type_name, data) in [
            ("node.delete", json!({"name": "node-1", "cascade": "yes"})),
            ("disruption.approve", json!({"node": "node-1", "name": "power"})),
        ] {
            let mut world = disrupted("manual");
            four_eyes_in(&mut world, domain, &["relocate"]);
            let facts = world.must(type_name, &data);
            assert_eq!(types(&facts), ["request.opened"], "{type_name}, {domain}");
            assert_eq!(waiting(&world)[0].policies, [name("two")], "{type_name}, {domain}");
        }
        let mut world = disrupted("manual");
        four_eyes_in(&mut world, domain, &["relocate"]);
        let first = |run: &&Incarnation| run.is_live() && run.node.as_str() == "node-1";
        let replica =
            world.fleet.incarnations().sorted().into_iter().find(first).expect("one").replica.clone();
        world.must("replica.relocate", &json!({"name": replica, "node": "node-2"}));
        world.run();
        let id = world.pending()[0].id;
        assert_eq!(world.approve(id).expect_err("ann asked").code, RefusalCode::Denied, "{domain}");
    }
}

#[test]
fn a_delete_queued_after_a_move_applies_to_the_new_domain_of_the_replica() {
    let mut world = world("manual", 1);
    four_eyes_in(&mut world, "d2", &["delete"]);
    let quick = json!({"kinds": ["delete"], "domains": ["d1"], "rule": {"approve": {"windows": [{"days": ["mon"], "start": 0, "duration": 1}]}}});
    world.must("policy.apply", &json!({"name": "quick", "spec": quick}));
    let replica = world.replica();
    world.must("replica.relocate", &json!({"name": replica, "node": "node-2"}));
    world.run();
    world.approve_all();
    world.must("replica.delete", &json!({"name": replica}));
    world.run();
    world.obey();
    let delete = world.pending()[0].clone();
    assert_eq!(
        (delete.kind, delete.domain.as_ref().map(DomainName::as_str)),
        (OperationKind::Delete, Some("d2"))
    );
    assert_eq!(world.approve(delete.id).expect_err("ann asked").code, RefusalCode::Denied);
    assert!(
        world.fleet.index().policies.approving[&name::<PolicyName>("quick")].waiting.is_empty(),
        "it is not in d1 any more"
    );
}

#[test]
fn a_node_with_volumes_keeps_its_domain_and_a_kept_volume_needs_what_any_plan_does() {
    // The replica is stopped: its volume alone is left on the node.
    for (volumes, limits) in [
        (setting::own(), json!({"domains": ["d1"]})),
        (setting::named("ledger"), json!({"plans": ["web"]})),
        (setting::named("ledger"), json!({"domains": ["d1"], "plans": ["web"]})),
    ] {
        let mut world = setting::world(1, 10 * GB);
        setting::running(&mut world, "web", 1, &volumes, &json!({"restart": "never"}));
        let domain = world.fleet.nodes().get("node-1").expect("it").spec.domain.to_string();
        let mut spec = json!({"kinds": ["expunge"], "rule": {"four_eyes": {}}});
        for (key, value) in limits.as_object().expect("limits") {
            spec[key] = if key == "domains" { json!([domain]) } else { value.clone() };
        }
        world.must("policy.apply", &json!({"name": "two", "spec": spec}));
        let replica = world.replica();
        world.must("replica.stop", &json!({"name": replica}));
        world.run();
        world.obey();
        let mut node = (*world.fleet.nodes().get("node-1").expect("it").spec).clone();
        node.domain = name("elsewhere");
        let refusal = world.ask("node.apply", &json!({"name": "node-1", "cluster": "local", "spec": node}));
        assert_eq!(refusal.expect_err("it has a volume").code, RefusalCode::InUse);
        let facts = world.must("node.set_state", &json!({"name": "node-1", "state": "expunged"}));
        assert_eq!(types(&facts), ["request.opened"], "{limits}");
    }
}

#[test]
fn a_policy_that_approves_moves_meets_a_four_eyes_policy_of_another_domain() {
    for (kind, waits) in [("relocate", true), ("update", true), ("restart", true), ("delete", false)] {
        let mut world = world("manual", 2);
        four_eyes_in(&mut world, "d1", &[kind]);
        let quick = json!({"kinds": [kind], "domains": ["d2"], "rule": {"approve": {}}});
        let facts = world.must("policy.apply", &json!({"name": "quick", "spec": quick}));
        assert_eq!(types(&facts) == ["request.opened"], waits, "{kind}: {facts:?}");
    }
}
