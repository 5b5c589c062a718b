//! Dry runs: answers, and what they leave behind, which is nothing.

use axum::http::Method;
use chancery_events::id::Position;
use chancery_journal::Journal as _;
use serde_json::{Value, json};

use super::world::{CompleteAnswer, ServedFleet, request};

const STRUCTURED: (&str, &str) = ("content-type", "application/cloudevents+json");
const BATCH: (&str, &str) = ("content-type", "application/cloudevents-batch+json");

fn event(id: &str, type_name: &str, data: &Value) -> Value {
    let type_name = format!("dev.chancery.{type_name}.v1");
    json!({"specversion": "1.0", "id": id, "source": "/ci", "type": type_name, "actor": "ann", "data": data})
}

async fn run(world: &ServedFleet, path: &str, body: &Value) -> CompleteAnswer {
    let form = if body.is_array() { BATCH } else { STRUCTURED };
    world.send(request(Method::POST, path, &[form], body.to_string())).await
}

fn types(facts: &Value) -> Vec<&str> {
    facts.as_array().expect("facts").iter().filter_map(|fact| fact["type"].as_str()).collect()
}

/// A plan and its deployment, for which a node is allocated first.
fn batch() -> Value {
    let total = json!({"domain": "d1", "resources": {"cpu": 4000, "memory": 1 << 30}});
    let payload = json!({"name": "app", "resources": {"cpu": 1000, "memory": 1}, "run": {"argv": ["app"]}});
    let spec = json!({"namespace": "ns", "service": "web", "payloads": [payload]});
    let two = json!({"kinds": ["create"], "plans": [], "domains": [], "rule": {"four_eyes": {}}});
    json!([
        event("1", "node.apply", &json!({"name": "node-1", "cluster": "local", "spec": total})),
        event("2", "policy.apply", &json!({"name": "two", "spec": two})),
        event("3", "plan.apply", &json!({"name": "web", "spec": spec})),
        event("4", "deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 2}})),
        event("5", "cluster.delete", &json!({"name": "nowhere"})),
        event("6", "plan.apply", &json!({"name": "WEB", "spec": spec})),
    ])
}

#[tokio::test]
async fn a_batch_has_verdicts_facts_and_a_digest_and_leaves_nothing() {
    let world = ServedFleet::new();
    let metrics = || async { String::from_utf8(world.get("//metrics").await.body.to_vec()).expect("text") };
    let verdicts = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains("intent_verdicts"));
        lines.map(str::to_owned).collect()
    };
    let before = (world.journal.head(), verdicts(&metrics().await));
    let answer = run(&world, "/dry-run", &batch()).await;
    assert_eq!((answer.status.as_u16(), answer.header("chancery-position")), (200, "5"), "{:?}", answer.body);
    assert_eq!((world.journal.head(), verdicts(&metrics().await)), before);
    assert!(world.asked.lock().expect("no panic").is_empty(), "the decider was asked");
    let json = answer.json();
    assert_eq!((&json["at"]["position"], &json["truncated"]), (&5.into(), &false.into()));
    let intents = json["intents"].as_array().expect("intents");
    let statuses: Vec<_> = intents.iter().map(|intent| intent["answer"]["status"].as_u64()).collect();
    assert_eq!(statuses, [Some(200), Some(201), Some(201), Some(202), Some(404), Some(422)]);
    assert_eq!(intents[2]["answer"]["verdict"], "accepted");
    assert_eq!(
        (&intents[2]["answer"]["subject"], &intents[2]["answer"]["version"]),
        (&"plan/web".into(), &1.into())
    );
    assert_eq!(types(&intents[2]["facts"]), ["intent.accepted.v1", "plan.applied.v1"]);
    assert_eq!(types(&intents[4]["facts"]), ["intent.refused.v1"]);
    assert_eq!((&intents[4]["answer"]["code"], types(&intents[5]["facts"]).len()), (&"not_found".into(), 0));
    assert_eq!(intents[5]["answer"]["errors"][0]["pointer"], "/5/data/name");
    assert_eq!(types(&json["due"]), Vec::<&str>::new());
    let follows = types(&json["follows"]);
    for wanted in
        ["replica.created.v1", "operation.created.v1", "incarnation.reserved.v1", "plan.unschedulable.v1"]
    {
        assert!(follows.contains(&wanted), "{wanted}: {follows:?}");
    }
    let operations = json["operations"].as_array().expect("operations");
    let placed = operations.iter().find(|row| row["node"] == "node-1").expect("a placement");
    assert_eq!((&placed["state"], &placed["kind"]), (&"pending_approval".into(), &"create".into()));
    assert_eq!(placed["placement"]["others"][0]["nodes"], json!(["node-2"]));
    let id = placed["id"].as_str().expect("an id");
    let approval = &json["approvals"][0];
    assert_eq!(
        (&approval["subject"], &approval["policies"], &approval["count"], &approval["requested_by"]),
        (&format!("operation/{id}").into(), &json!(["two"]), &1.into(), &"ann".into())
    );
    let unassigned = json["unassigned"].as_array().expect("values");
    assert!(unassigned.contains(&placed["id"]) && unassigned.contains(&placed["replica"]), "{unassigned:?}");
    assert!(!json["unschedulable"]["web"].as_array().expect("reasons").is_empty());
    let waits = json["waits"].as_array().expect("waits");
    assert!(waits.iter().any(|wait| wait["waits_for"] == "placement"), "{waits:?}");
    let again = run(&world, "/dry-run", &batch()).await.json();
    assert_eq!(types(&again["follows"]), follows, "the first dry run has left nothing");
}

#[tokio::test]
async fn a_dry_run_is_decided_at_a_moment() {
    let world = ServedFleet::new();
    let apply = event(
        "1",
        "node.apply",
        &json!({"name": "node-0", "spec": {"domain": "d1", "resources": {"cpu": 1, "memory": 1}}}),
    );
    world.commit(&[
        r#"node.applied.v1 {"name":"node-0","spec":{"domain":"d1","resources":{"cpu":1,"memory":1}}}"#,
    ]);
    let verdict = |answer: &CompleteAnswer| answer.json()["intents"][0]["answer"]["verdict"].clone();
    let now = run(&world, "/dry-run", &apply).await;
    assert_eq!((verdict(&now), now.header("chancery-position")), ("unchanged".into(), "6"));
    let then = run(&world, "/dry-run?as_of=5", &apply).await;
    assert_eq!((verdict(&then), then.header("chancery-position")), ("accepted".into(), "5"));
    assert_eq!(then.json()["time"], then.header("chancery-time"));
    // A client that dates its intents now may ask about the past.
    let mut dated = apply.clone();
    dated["time"] = chancery_decider::wall_clock::now().to_string().into();
    assert_eq!(verdict(&run(&world, "/dry-run?as_of=5", &dated).await), "accepted");
}

#[tokio::test]
async fn what_is_wrong_with_a_dry_run_is_reported() {
    let world = ServedFleet::new();
    let good = event("1", "cluster.delete", &json!({"name": "local"}));
    for (path, body, wanted) in [
        ("/dry-run?as_of=99", &good, (400, "moment_out_of_range", "")),
        ("/dry-run?as_of=x", &good, (400, "invalid_parameter", "/as_of")),
        ("/dry-run?limit=1", &good, (400, "invalid_parameter", "/limit")),
        ("/dry-run", &event("1", "cluster.purge", &json!({})), (422, "invalid", "/type")),
        ("/dry-run", &event("1", "cluster.delete", &json!({})), (422, "invalid", "/data/name")),
    ] {
        let (status, code, pointer) = run(&world, path, body).await.problem();
        assert_eq!((status, code.as_str(), pointer.as_str()), wanted, "{path} {body}");
    }
    let too_many: Vec<_> = (0..=world.app.common.limits.batch).map(|_| good.clone()).collect();
    assert_eq!(run(&world, "/dry-run", &too_many.into()).await.problem().0, 413);
    let refused = run(&world, "/dry-run", &event("1", "cluster.delete", &json!({"name": "none"}))).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["intents"][0]["answer"]["status"]),
        (200, &404.into())
    );
}

#[tokio::test]
async fn a_refusal_in_a_dry_run_points_to_the_data_of_its_event() {
    let world = ServedFleet::new();
    let spec = json!({"domain": "d1", "resources": {"cpu": 4000, "memory": 1}});
    let refused = event("1", "node.apply", &json!({"name": "node-1", "cluster": "nowhere", "spec": spec}));
    let batch = json!([event("2", "cluster.delete", &json!({"name": "local"})), refused]);
    for (body, index, pointer) in [(&refused, 0, "/data/cluster"), (&batch, 1, "/1/data/cluster")] {
        let answer = run(&world, "/dry-run", body).await.json();
        let answer = &answer["intents"][index]["answer"];
        assert_eq!(answer["errors"][0]["pointer"], pointer, "{answer}");
    }
}

#[tokio::test]
async fn dry_runs_wait_in_the_queue_of_folds() {
    let world = ServedFleet::new();
    let good = event("1", "cluster.delete", &json!({"name": "local"}));
    let turn = world.app.moments.turn.acquire().await.expect("it is never closed");
    let waiting: Vec<_> = (0..world.app.moments.places.available_permits())
        .map(|_| {
            let request = request(Method::POST, "/dry-run", &[STRUCTURED], good.to_string());
            tokio::spawn(tower::ServiceExt::oneshot(world.router(), request))
        })
        .collect();
    while world.app.moments.places.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let busy = run(&world, "/dry-run", &good).await;
    assert_eq!((busy.problem().1.as_str(), busy.header("retry-after")), ("busy", "1"));
    drop(turn);
    for answer in waiting {
        assert_eq!(answer.await.expect("no panic").expect("an answer").status(), 200);
    }
    assert_eq!(world.journal.head().map(|head| head.position), Some(Position::new(5)));
}
