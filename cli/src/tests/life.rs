//! Commands that change replicas, nodes and deployments.

use super::*;

#[test]
fn a_request_for_a_replica_shows_what_its_operation_waits_for() {
    let page = |items: Value| ok(&json!({ "items": items, "next_page_token": null, "position": 1 }));
    let id = operation_id();
    for (line, wanted, data, done) in [
        (
            "chancery relocate replica/web-7f3k --to node/node-2",
            "dev.chancery.replica.relocate.v1",
            json!({ "name": "web-7f3k", "node": "node-2" }),
            "relocation requested",
        ),
        (
            "chancery restart web-7f3k",
            "dev.chancery.replica.restart.v1",
            json!({ "name": "web-7f3k" }),
            "restart requested",
        ),
        (
            "chancery reboot web-7f3k",
            "dev.chancery.replica.reboot.v1",
            json!({ "name": "web-7f3k" }),
            "reboot requested",
        ),
        (
            "chancery start web-7f3k --node node-2",
            "dev.chancery.replica.start.v1",
            json!({ "name": "web-7f3k", "node": "node-2" }),
            "start requested",
        ),
        (
            "chancery stop web-7f3k",
            "dev.chancery.replica.stop.v1",
            json!({ "name": "web-7f3k" }),
            "stop requested",
        ),
    ] {
        // The operation is read again until it has a placement.
        let waits = ["preparing", "pending_approval"].map(|state| page(json!([operation(&id, state)])));
        let (result, asked) = run_line(line, [verdict()].into_iter().chain(waits).collect());
        assert_eq!(result.expect(line), format!("replica/web-7f3k {done}\n"));
        let event: Value = serde_json::from_str(&asked[0].body).expect("an event");
        assert_eq!((event["type"].as_str(), &event["data"]), (Some(wanted), &data), "{line}");
        let read = "GET /v1/fleets/default/operations?replica=web-7f3k&limit=1000&min_position=7";
        assert_eq!((asked[1].line.as_str(), asked.len()), (read, 3), "{line}");
    }
}

#[test]
fn a_snapshot_is_requested_and_awaited_and_fails_if_its_volume_goes() {
    let volume = |state: &str, message: &str| {
        ok(&json!({ "name": "copy", "kind": "volume", "state": state, "message": message }))
    };
    let line = "chancery snapshot volume/db --as copy --wait --timeout 1s";
    let (result, asked) = run_line(line, vec![verdict(), volume("creating", ""), volume("ready", "")]);
    assert_eq!(result.expect(line), "volume/db as volume/copy requested\nvolume/copy ready\n");
    let event: Value = serde_json::from_str(&asked[0].body).expect("an event");
    assert_eq!(event["type"], "dev.chancery.volume.snapshot.v1");
    assert_eq!(event["data"], json!({ "name": "db", "snapshot": "copy" }));
    let gone = problem(404, "not_found", false);
    let script = vec![verdict(), volume("creating", "cannot create snapshot: no space"), gone];
    let (result, _) = run_line(line, script);
    let error = result.expect_err("it was deleted").to_string();
    assert!(error.contains("cannot create volume/copy: cannot create snapshot: no space"), "{error}");
    let (result, _) = run_line("chancery snapshot replica/db --as copy", Vec::new());
    assert!(result.expect_err("no volume").to_string().contains("only volumes have snapshots"));
}

#[test]
fn a_replica_that_is_created_is_reported_by_its_name() {
    let page = |items: Value| ok(&json!({ "items": items, "next_page_token": null, "position": 1 }));
    let waiting = operation(&operation_id(), "pending_approval");
    let created =
        json!({ "position": 7, "verdict": "accepted", "subject": "replica/web-7f3k", "version": null });
    let script = vec![ok(&created), page(json!([waiting]))];
    let (result, asked) = run_line("chancery create replica --plan plan/web --node node-2", script);
    assert_eq!(result.expect("one more"), "replica/web-7f3k created\n");
    let event: Value = serde_json::from_str(&asked[0].body).expect("an event");
    assert_eq!(event["data"], json!({ "plan": "web", "node": "node-2" }));
}

fn disrupted(disruptions: &Value, runs: u64) -> Value {
    let mut node = node("node-1", "");
    node["disruptions"] = disruptions.clone();
    node["incarnations"] = json!(runs);
    node
}

fn disruption(name: &str, state: &str, evict: &str) -> Value {
    json!({
        "name": name, "state": state, "action": evict, "start": null, "reason": "new disks", "approved_by": "ann",
        "since": "2026-11-21T09:00:00Z",
    })
}

#[test]
fn disruptions_are_listed_with_their_nodes() {
    let first = disrupted(
        &json!([disruption("drain", "completed", "drain"), disruption("switch", "approved", "none")]),
        1,
    );
    let page = json!({ "items": [first, node("node-2", "")], "next_page_token": null, "position": 12 });
    let wanted = "\
NODE    NAME    STATE      ACTION  START  APPROVED BY  REASON
node-1  drain   completed  drain   -      ann          new disks
node-1  switch  approved   none    -      ann          new disks
";
    assert_eq!(run_line("chancery get disruptions", vec![ok(&page)]).0.expect("a table"), wanted);
    let (result, _) = run_line("chancery get disruptions --filter state=approved -o name", vec![ok(&page)]);
    assert_eq!(result.expect("names"), "disruption/node-1/switch\n");
    let (result, _) = run_line("chancery get nodes -o wide", vec![ok(&page)]);
    assert!(
        result.expect("a table").contains("  switch approved  "),
        "only disruptions that are not completed"
    );
    let (result, asked) = run_line("chancery get disruption node-1/drain -o name", vec![ok(&first)]);
    assert_eq!(
        (result.expect("a name").as_str(), asked[0].line.as_str()),
        ("disruption/node-1/drain\n", "GET /v1/fleets/default/nodes/node-1")
    );
    let error =
        run_line("chancery get disruption node-1/other", vec![ok(&first)]).0.expect_err("no such disruption");
    assert_eq!(
        (error.exit, error.message.as_str()),
        (
            CliExit::NotFound,
            "cannot read disruption/node-1/other: disruption \"node-1/other\" does not exist"
        )
    );
    let error =
        run_line("chancery get disruptions --filter approved_by=ann", vec![]).0.expect_err("no such filter");
    assert_eq!(error.exit, CliExit::Usage);
    let line = "chancery wait disruption/node-1/drain --for state=completed";
    assert!(run_line(line, vec![ok(&first)]).0.is_ok());
}

#[test]
fn a_drain_of_an_evicted_empty_node_changes_nothing() {
    let mut evicted = disrupted(&json!([disruption("drain", "completed", "drain")]), 0);
    evicted["state"] = json!("evicted");
    let (result, asked) = run_line("chancery drain node-1 --wait", vec![ok(&evicted)]);
    assert_eq!((result.expect("nothing to do").as_str(), asked.len()), ("node/node-1 unchanged\n", 1));
}

#[test]
fn a_wait_for_an_entity_that_never_existed_ends_if_no_manifest_can_create_it() {
    let missing = || problem(404, "not_found", false);
    let line = "chancery wait replica/web-typo --for phase=running --timeout 1s";
    let error = run_line(line, vec![missing(), missing()]).0.expect_err("no such replica");
    assert_eq!(error.exit, CliExit::NotFound);
    let line = "chancery wait plan/web --for generation=1 --timeout 1ms";
    let error = run_line(line, vec![missing(); 9]).0.expect_err("not in time");
    assert!(error.message.contains("it is not there"), "{error}");
}

#[test]
fn a_drain_schedules_and_approves_what_empties_a_node_and_waits_until_it_is_empty() {
    let page = |items: Value| ok(&json!({ "items": items, "next_page_token": null, "position": 1 }));
    let before = disrupted(&json!([disruption("drain", "completed", "drain")]), 1);
    let during = disrupted(&json!([disruption("drain-2", "approved", "drain")]), 1);
    let after = disrupted(&json!([disruption("drain-2", "completed", "drain")]), 0);
    let left = json!([{ "replica": "web-7f3k", "state": "running" }, { "replica": "web-0100", "state": "destroyed" }]);
    let script = vec![ok(&before), verdict(), verdict(), ok(&during), page(left), ok(&after)];
    let (result, asked) = run_line("chancery drain node/node-1 --reason disks --wait", script);
    assert_eq!(result.expect("empty"), "node/node-1 drain requested\nnode/node-1 is empty\n");
    let events: Vec<Value> =
        asked[1..3].iter().map(|asked| serde_json::from_str(&asked.body).expect("an event")).collect();
    assert_eq!(events[0]["type"], "dev.chancery.disruption.schedule.v1");
    let spec = json!({ "start": null, "action": "drain", "reason": "disks" });
    assert_eq!(events[0]["data"], json!({ "node": "node-1", "name": "drain-2", "spec": spec }));
    assert_eq!(events[1]["type"], "dev.chancery.disruption.approve.v1");
    assert_eq!(events[1]["data"], json!({ "node": "node-1", "name": "drain-2" }));

    // A second `drain` joins a drain in progress.
    let (result, asked) = run_line("chancery drain node-1", vec![ok(&during), verdict()]);
    assert!(result.is_ok() && asked[1].body.contains(r#""name":"drain-2""#), "{result:?} {asked:?}");
    // The disruption is completed and incarnations remain: an operator has put the node back into use.
    let given_up = disrupted(&json!([disruption("drain-2", "completed", "drain")]), 1);
    let script = vec![ok(&during), verdict(), ok(&given_up)];
    let error = run_line("chancery drain node-1 --wait", script).0.expect_err("the disruption was completed");
    assert!(error.exit == CliExit::Failure && error.message.ends_with("before it was empty"), "{error}");
    let script = vec![ok(&during), verdict(), ok(&during), page(json!([])), page(json!([]))];
    let error = run_line("chancery drain node-1 --wait --timeout 0s", script).0.expect_err("timeout");
    assert_eq!(error.exit, CliExit::Unknown, "{error}");
}

#[test]
fn an_undrain_ends_what_empties_a_node_or_puts_it_back_into_its_last_cluster() {
    let types = |asked: &[FakeRequest]| {
        let events = asked.iter().filter(|asked| !asked.body.is_empty());
        let event_of = |asked: &FakeRequest| {
            let event: Value = serde_json::from_str(&asked.body).expect("an event");
            (event["type"].as_str().unwrap_or_default().to_owned(), event["data"].clone())
        };
        events.map(event_of).collect::<Vec<_>>()
    };
    let during = disrupted(&json!([disruption("drain", "approved", "drain")]), 1);
    let (result, asked) =
        run_line("chancery undrain node-1", vec![ok(&during), verdict(), ok(&node("node-1", ""))]);
    assert_eq!(result.expect("in use"), "node/node-1 is in use again\n");
    let wanted = json!({ "node": "node-1", "name": "drain" });
    assert_eq!(types(&asked), [("dev.chancery.disruption.complete.v1".to_owned(), wanted)]);

    let mut emptied = disrupted(&json!([disruption("drain", "completed", "drain")]), 0);
    (emptied["state"], emptied["cluster"]) = (json!("evicted"), Value::Null);
    let moved = |position: u64, to: &str, cluster: Value| json!({ "position": position, "type": "node.state_changed.v1", "data": { "name": "node-1", "state": to, "cluster": cluster } });
    let items = json!([moved(3, "allocated", json!("local")), moved(9, "evicted", Value::Null)]);
    let past = ok(&json!({ "items": items, "next_from": null, "position": 9 }));
    let volumes = |items: Value| ok(&json!({ "items": items, "next_page_token": null, "position": 1 }));
    let script = vec![ok(&emptied), volumes(json!([])), past.clone(), verdict(), verdict(), verdict()];
    let (result, asked) = run_line("chancery undrain node-1", script);
    assert_eq!(result.expect("in use"), "node/node-1 is in use again\n");
    let states: Vec<_> =
        types(&asked).into_iter().map(|(_, data)| (data["state"].clone(), data["cluster"].clone())).collect();
    let wanted = [("sanitizing", Value::Null), ("unallocated", Value::Null), ("allocated", json!("local"))];
    assert_eq!(states, wanted.map(|(state, cluster)| (json!(state), cluster)));

    // Sanitizing would destroy the data of its volumes.
    let kept = volumes(json!([{ "name": "web-7f3k-app-data" }]));
    let (result, asked) =
        run_line("chancery undrain node-1", vec![ok(&emptied), kept, past.clone(), verdict()]);
    assert_eq!(result.expect("in use"), "node/node-1 is in use again\n");
    let wanted = json!({ "name": "node-1", "state": "allocated", "cluster": "local" });
    assert_eq!(types(&asked), [("dev.chancery.node.set_state.v1".to_owned(), wanted)]);

    // The node becomes empty at the same moment.
    let mut script = vec![ok(&during), verdict(), ok(&emptied), volumes(json!([])), past];
    script.extend([verdict(), verdict(), verdict()]);
    let (result, asked) = run_line("chancery undrain node-1", script);
    assert_eq!((result.expect("in use").as_str(), types(&asked).len()), ("node/node-1 is in use again\n", 4));

    let (result, asked) = run_line("chancery undrain node-1", vec![ok(&node("node-1", ""))]);
    assert_eq!((result.expect("nothing to do").as_str(), asked.len()), ("node/node-1 unchanged\n", 1));
}

#[test]
fn deployments_are_applied_queued_or_superseding_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("d.yaml");
    let text =
        "apiVersion: chancery/v1\nkind: Deployment\nmetadata: {name: d-1}\nspec: {plan: web, count: 1}\n";
    std::fs::write(&file, text).expect("a file");
    for (flag, turn) in [("", Value::Null), (" --supersede", json!("supersede"))] {
        let line = format!("chancery apply -f {}{flag}", file.display());
        let (result, asked) = run_line(&line, vec![problem(404, "not_found", false), batch(&[accepted(7)])]);
        assert_eq!(result.expect("applied"), "deployment/web/d-1 created\n");
        let events: Value = serde_json::from_str(&asked[1].body).expect("events");
        assert_eq!(events[0]["data"]["overlap"], turn);
    }
}

#[test]
fn what_is_in_use_is_reported_with_the_way_to_delete_it_all_the_same() {
    let error =
        run_line("chancery delete plan web", vec![problem(409, "in_use", false)]).0.expect_err("in use");
    assert!(error.message.ends_with("\ntry: chancery delete plan web --cascade"), "{error}");
    let error =
        run_line("chancery delete cluster x", vec![problem(409, "in_use", false)]).0.expect_err("in use");
    assert!(!error.message.contains("cascade"), "{error}");
}

#[test]
fn a_server_is_ready_if_it_reports_that_and_is_asked_once() {
    let (result, asked) = run_line("chancery ready", vec![FakeAction::Respond(200, "ready\n".into())]);
    assert_eq!((result.expect("ready").as_str(), asked.len()), ("ready\n", 1));
    assert_eq!(asked[0].line, "GET /readyz");
    let (result, asked) = run_line("chancery ready", vec![problem(503, "no_leader", true)]);
    let refused = result.expect_err("not ready");
    assert_eq!((refused.exit, asked.len()), (CliExit::Unreachable, 1));
    assert!(refused.message.starts_with("cannot use server: so it is"), "{}", refused.message);
    let (result, asked) = run_line("chancery ready", vec![FakeAction::Drop]);
    assert_eq!((result.expect_err("no answer").exit, asked.len()), (CliExit::Unreachable, 1));
}
