//! Output byte by byte, exit codes, and idempotency keys that are kept on a retry.

use chancery_events::id::{IncarnationId, Lineage, OperationId, Position};
use chancery_events::intent::{CascadePolicy, NodeDelete};
use clap::Parser as _;
use serde_json::{Value, json};

use super::*;
use fake::{FakeAction, FakeCli, FakeRequest, context, serve};

mod bulk;
pub(crate) mod fake;
mod formats;
mod ids;
mod life;
mod selection;
mod verbs;

fn ok(body: &Value) -> FakeAction {
    FakeAction::Respond(200, body.to_string())
}

fn problem(status: u16, code: &str, retryable: bool) -> FakeAction {
    let body =
        json!({ "status": status, "code": code, "title": "T", "detail": "so it is", "retryable": retryable });
    FakeAction::Respond(status, body.to_string())
}

fn verdict() -> FakeAction {
    ok(&json!({ "position": 7, "verdict": "accepted", "subject": "node/node-1", "version": 3 }))
}

/// Answer to a batch.
fn batch(items: &[Value]) -> FakeAction {
    ok(&json!(items))
}

/// Verdict, as an item of a batch.
fn accepted(position: u64) -> Value {
    json!({ "position": position, "verdict": "accepted", "subject": null, "version": 1, "status": 200 })
}

/// Refusal, as an item of a batch.
fn refusal(status: u16, code: &str) -> Value {
    let retryable = matches!(status, 503 | 504);
    json!({ "status": status, "code": code, "title": "T", "detail": "so it is", "retryable": retryable })
}

/// Runs a command line against a script of answers.
fn run_line(line: &str, script: Vec<FakeAction>) -> (Result<String, CliError>, Vec<FakeRequest>) {
    let (result, out, asked) = run_shown(line, script);
    (result.map(|()| out), asked)
}

/// Runs a command line, and returns also what it wrote before an error.
fn run_shown(line: &str, script: Vec<FakeAction>) -> (Result<(), CliError>, String, Vec<FakeRequest>) {
    let (server, asked) = serve(script);
    let cli = FakeCli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{error}"));
    let mut out = Vec::new();
    let GlobalArgs { output, idempotency_key, .. } = cli.globals;
    let context = CliContext { idempotency_key, ..context(server, output) };
    let result = run(&cli.command, &context, &mut out);
    (result, String::from_utf8(out).expect("text"), asked.try_iter().collect())
}

/// Replaces the ages of a table, which grow.
fn aged(table: &str) -> String {
    let lines = table.lines().map(|line| match line.rsplit_once("  ") {
        Some((cells, age)) if age.starts_with(|c: char| c.is_ascii_digit()) => format!("{cells}  AGE\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

fn delete_node() -> chancery_events::intent::Intent {
    NodeDelete { name: "node-1".parse().expect("a name"), cascade: CascadePolicy::No }.into()
}

fn meta() -> Value {
    json!({ "version": 3, "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:01.5Z", "position": 12 })
}

fn row(fields: &Value) -> Value {
    let mut row = fields.clone();
    let map = row.as_object_mut().expect("an object");
    map.extend(meta().as_object().expect("an object").clone());
    row
}

fn node(name: &str, message: &str) -> Value {
    let resources = |cpu: u64| json!({ "cpu": cpu, "memory": 8_589_934_592_u64, "disk": 0 });
    row(&json!({
        "name": name, "state": "allocated", "cluster": "local", "domain": "a", "zone": null, "labels": {},
        "resources": resources(4000), "reserved": resources(0), "remaining": resources(3500), "capabilities": ["intel-xeon"],
        "storage": [{ "class": "fast-ssd", "capacity": 100_000_000_000_u64, "remaining": 50_000_000_000_u64 }],
        "incarnations": 1, "disruptions": [], "message": message,
    }))
}

fn operation_id() -> String {
    OperationId::issue(Lineage::from_random(1), Position::new(9)).to_string()
}

fn operation(id: &str, state: &str) -> Value {
    row(&json!({
        "id": id, "replica": "web-7f3k", "plan": "web", "kind": "create", "deployment": "deployment-1", "state": state,
        "requested_by": null, "target_deployment": "deployment-1", "hash": "00112233445566778899aabbccddeeff", "node": "node-2",
        "incarnation": null, "approved_by": null, "message": "",
    }))
}

#[test]
fn a_kind_and_a_name_are_two_words_or_one() {
    let wanted = "GET /v1/fleets/default/nodes/node-1";
    for line in ["chancery get node node-1", "chancery get node/node-1", "chancery get no/node-1 -o json"] {
        let (result, asked) = run_line(line, vec![ok(&node("node-1", ""))]);
        assert!(result.is_ok(), "{line}: {result:?}");
        assert_eq!(asked[0].line, wanted, "{line}");
    }
    let (result, asked) = run_line("chancery get node node/node-1", vec![ok(&node("node-1", ""))]);
    assert!(result.is_ok() && asked[0].line == wanted, "{result:?} {asked:?}");
    for (line, wanted) in [
        ("chancery delete node/node-1", r#""name":"node-1""#),
        ("chancery delete node node/node-1", r#""name":"node-1""#),
        ("chancery cancel deployment/web/d-1", r#""plan":"web""#),
        ("chancery cancel deployment web/d-1", r#""plan":"web""#),
        ("chancery evict node/node-1", r#""name":"node-1""#),
        ("chancery activate cluster/local", r#""name":"local""#),
        ("chancery cancel deployment deployment/web/d-1", r#""plan":"web""#),
        ("chancery expunge node/node-1 --yes", r#""state":"expunged""#),
        ("chancery pause deployment web/d-1", r#""type":"dev.chancery.deployment.pause.v1""#),
        ("chancery resume deployment/web/d-1", r#""data":{"plan":"web","name":"d-1"}"#),
        ("chancery promote dep/web/d-1", r#""type":"dev.chancery.deployment.promote.v1""#),
        ("chancery rollback deployment/web/d-1", r#""type":"dev.chancery.deployment.rollback.v1""#),
        ("chancery approve disruption node-1/switch", r#""data":{"node":"node-1","name":"switch"}"#),
        ("chancery approve disruption/node-1/switch", r#""type":"dev.chancery.disruption.approve.v1""#),
        ("chancery complete disruption node-1/switch", r#""type":"dev.chancery.disruption.complete.v1""#),
        ("chancery delete disruption/node-1/switch", r#""type":"dev.chancery.disruption.delete.v1""#),
        ("chancery delete policy weekends", r#""type":"dev.chancery.policy.delete.v1""#),
        ("chancery delete plan/web --cascade", r#""data":{"name":"web","cascade":"yes"}"#),
        ("chancery delete node node-1", r#""data":{"name":"node-1"}"#),
        ("chancery rebalance web", r#""type":"dev.chancery.plan.rebalance.v1""#),
        ("chancery rebalance plan/web", r#""data":{"name":"web"}"#),
    ] {
        let (result, asked) = run_line(line, vec![verdict()]);
        assert!(result.is_ok() && asked[0].body.contains(wanted), "{line}: {result:?} {asked:?}");
    }
    for (line, wanted) in [
        (
            "chancery get node/node-1 node-2",
            "invalid entity \"node-2\": must be KIND/NAME, as in replica/web-7f3k",
        ),
        ("chancery get node replica/x", "invalid node \"replica/x\": must name a node, not a replica"),
        (
            "chancery cancel deployment",
            "invalid argument \"deployment\": must name one, as deployment NAME or deployment/NAME",
        ),
        (
            "chancery cancel node/x",
            "cannot cancel node/x: only deployments are cancelled\nhint: reject operations, stop or delete replicas, \
             complete disruptions",
        ),
        (
            "chancery promote plan/web",
            "cannot promote plan/web: only deployments are promoted\nhint: approve or reject operations",
        ),
        (
            "chancery complete node/x",
            "cannot complete node/x: only disruptions are completed; other entities end automatically",
        ),
        (
            "chancery delete cluster/x --cascade",
            "invalid flag --cascade: must be used with nodes and plans, not clusters",
        ),
        (
            "chancery create plan --plan web",
            "cannot create plan: only replicas are created this way\ntry: chancery apply -f FILE",
        ),
        (
            "chancery approve disruption",
            "cannot approve a disruption: none is named\ntry: chancery approve disruption NODE/NAME",
        ),
        (
            "chancery get disruption node-1",
            "invalid disruption \"node-1\": must be NODE/NAME\ntry: chancery get disruptions",
        ),
        ("chancery relocate node/x", "invalid replica \"node/x\": must name a replica, not a node"),
        (
            "chancery relocate web-7f3k --to replica/x",
            "invalid node \"replica/x\": must name a node, not a replica",
        ),
        (
            "chancery logs node/x",
            "invalid name \"node/x\": must name a replica or an incarnation, not a node",
        ),
        ("chancery describe node", "invalid argument \"node\": must name one, as node NAME or node/NAME"),
        ("chancery evict replica/x", "invalid node \"replica/x\": must name a node, not a replica"),
        ("chancery approve --plan node/x --all", "invalid plan \"node/x\": must name a plan, not a node"),
    ] {
        let error = run_line(line, vec![]).0.expect_err(line);
        assert_eq!((error.exit, error.message.as_str()), (CliExit::Usage, wanted), "{line}");
    }
    let error =
        FakeCli::try_parse_from(["chancery", "get", "replcas/x"]).expect_err("no such kind").to_string();
    assert!(error.contains("a similar value exists: 'replicas'"), "{error}");
}

#[test]
fn help_and_errors_name_only_the_kinds_that_a_command_takes() {
    for (line, wanted) in [
        ("chancery cancel --help", "PLAN/NAME of the deployment, unless given before"),
        ("chancery complete --help", "NODE/NAME of the disruption, unless given before"),
        ("chancery reject --help", "Ids of operations, or request/ID (default"),
    ] {
        let help = FakeCli::try_parse_from(line.split(' ')).expect_err(line).to_string();
        assert!(help.contains(wanted), "{line}: {help}");
    }
    for (line, wanted) in [
        (
            "chancery reject disruption node-1/d1",
            "cannot reject a disruption: it is called off by its completion\n\
             try: chancery complete disruption node-1/d1",
        ),
        (
            "chancery describe operation incarnation/x",
            "invalid operation \"incarnation/x\": must name an operation, not an incarnation",
        ),
        (
            "chancery delete session/x",
            "cannot delete sessions: they are deleted with the entities that they belong to",
        ),
    ] {
        let error = run_line(line, vec![]).0.expect_err(line);
        assert_eq!((error.exit, error.message.as_str()), (CliExit::Usage, wanted), "{line}");
    }
}

#[test]
fn a_description_shows_what_belongs_to_it_and_what_it_waits_for() {
    let replica = row(&json!({ "name": "web-7f3k", "plan": "web", "phase": "pending", "message": "" }));
    let (id, page) = (operation_id(), |items: Value| {
        ok(&json!({ "items": items, "next_page_token": null, "position": 1 }))
    });
    let operations = json!([operation(&id, "succeeded"), operation(&id, "pending_approval")]);
    let script = vec![ok(&replica), page(json!([])), page(json!([])), page(operations), page(json!([]))];
    let (result, asked) = run_line("chancery describe replica/web-7f3k", script);
    let text = result.expect("a description");
    assert!(text.contains("\nOperations\n  ID ") && !text.contains("Incarnations"), "{text}");
    let waits = format!("\nWaits for\n  approval to create: chancery approve {id}\n\nRecent events\n");
    assert!(text.contains(&waits), "{text}");
    assert_eq!(asked[3].line, "GET /v1/fleets/default/operations?replica=web-7f3k&limit=1000");
}

#[test]
fn a_node_is_not_expunged_by_a_typo() {
    let (result, asked) = run_line("chancery expunge node-1", vec![ok(&node("node-1", ""))]);
    let error = result.expect_err("not confirmed");
    let wanted = "cannot expunge without confirmation: declares node/node-1 permanently lost, with its 1 incarnation\n\
         hint: confirm with --yes";
    assert_eq!((error.exit, error.message.as_str()), (CliExit::Usage, wanted));
    assert_eq!(asked.len(), 1, "no intent is sent: {asked:?}");
}

#[test]
fn tables_are_read_at_a_glance_and_wide_ones_show_more() {
    let page = json!({ "items": [node("node-1", ""), node("node-22", "")], "next_page_token": null, "position": 12 });
    let (result, asked) = run_line("chancery get nodes --filter state=allocated", vec![ok(&page)]);
    let wanted = "\
NAME     STATE      CLUSTER  DOMAIN  CPU FREE/TOTAL  MEMORY     INCARNATIONS  DISRUPTIONS  AGE
node-1   allocated  local    a       3500m/4         8GiB/8GiB  1             -            AGE
node-22  allocated  local    a       3500m/4         8GiB/8GiB  1             -            AGE
";
    assert_eq!(aged(&result.expect("a table")), wanted);
    assert_eq!(asked[0].line, "GET /v1/fleets/default/nodes?state=allocated&limit=500");
    let (result, _) = run_line("chancery get node node-1 -o wide", vec![ok(&node("node-1", ""))]);
    assert!(result.expect("a table").contains("intel-xeon    fast-ssd 50GB/100GB  3        "));
    let (result, _) = run_line("chancery get nodes -o name", vec![ok(&page)]);
    assert_eq!(result.expect("names"), "node/node-1\nnode/node-22\n");
    let (result, _) = run_line("chancery get node node-1 -o json", vec![ok(&node("node-1", ""))]);
    assert_eq!(serde_json::from_str::<Value>(&result.expect("JSON")).expect("JSON"), node("node-1", ""));
    let (result, _) = run_line("chancery get replica r -o yaml", vec![ok(&json!({ "a": { "b": [1] } }))]);
    assert_eq!(result.expect("YAML"), "a:\n  b:\n  - 1\n");
    let (result, _) = run_line("chancery get node node-1 -o yaml", vec![ok(&node("node-1", ""))]);
    let wanted = "---\napiVersion: chancery/v1\nkind: Node\nmetadata:\n";
    let manifest = result.expect("YAML");
    assert!(manifest.starts_with(wanted) && manifest.contains("\nstatus:\n"), "{manifest}");
}

#[test]
fn lists_read_all_pages() {
    let page = |names: &[&str], token: Value| {
        let items: Vec<_> = names.iter().map(|name| node(name, "")).collect();
        ok(&json!({ "items": items, "next_page_token": token, "position": 1 }))
    };
    let script = vec![page(&["a", "b"], json!("t k")), page(&["c"], Value::Null)];
    let (result, asked) = run_line("chancery get nodes --all -o name", script);
    assert_eq!(result.expect("names"), "node/a\nnode/b\nnode/c\n");
    assert!(
        asked[1].line.ends_with("&page_token=t%20k") || asked[1].line.ends_with("&page_token=t+k"),
        "{asked:?}"
    );
    let script = vec![page(&[], json!("t")), page(&["a"], json!("u")), page(&[], Value::Null)];
    let (result, asked) = run_line("chancery get nodes --all -o name", script);
    assert_eq!(
        (result.expect("names").as_str(), asked.len()),
        ("node/a\n", 3),
        "an empty page is not the last"
    );
    let (result, asked) =
        run_line("chancery get nodes --limit 2 -o name", vec![page(&["a", "b"], json!("t"))]);
    assert_eq!((result.expect("names").as_str(), asked.len()), ("node/a\nnode/b\n", 1));
}

#[test]
fn a_retry_carries_the_same_key_and_time() {
    let (server, asked) = serve(vec![problem(503, "busy", true), FakeAction::Drop, verdict()]);
    let context = context(server, None);
    let found = ApiClient::new(&context).ask("delete node/node-1", &delete_node()).expect("a verdict");
    assert_eq!((found.position, found.version), (7, Some(3)));
    let bodies: Vec<_> = asked.try_iter().map(|asked| asked.body).collect();
    assert_eq!(bodies.len(), 3);
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    let event: Value = serde_json::from_str(&bodies[0]).expect("an event");
    assert_eq!(event["type"], "dev.chancery.node.delete.v1");
    assert_eq!(event["data"], json!({ "name": "node-1" }));
    assert_eq!((event["actor"].as_str(), event["source"].as_str()), (Some("local"), Some("cli")));
    assert!(event["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
    assert_eq!(event["id"].as_str().map(str::len), Some(36));
}

#[test]
fn a_stopped_server_is_skipped_and_a_pending_takeover_is_awaited() {
    // A port without a listener. It stays in use, so that no other test listens there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let used =
        std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let gone = used.local_addr().expect("an address");
    let vacant = || problem(503, "no_leader", true);
    let script: Vec<_> = (0..6).map(|_| vacant()).chain([verdict()]).collect();
    let (server, asked) = serve(script);
    let context = context(format!("http://{gone},{server}"), None);
    let found = ApiClient::new(&context).ask("delete node/node-1", &delete_node()).expect("a verdict");
    assert_eq!((found.position, asked.try_iter().count()), (7, 7));
}

#[test]
fn what_went_wrong_decides_the_exit_code() {
    let cases = [
        (vec![problem(404, "not_found", false)], CliExit::NotFound),
        (vec![problem(409, "in_use", false)], CliExit::Conflict),
        (vec![problem(403, "denied", false)], CliExit::Denied),
        (vec![problem(422, "invalid", false)], CliExit::Failure),
        (vec![FakeAction::Respond(500, "<html>".into())], CliExit::Failure),
        (vec![FakeAction::Respond(200, "{}".into())], CliExit::Failure),
        (vec![problem(503, "busy", true); 3], CliExit::Unreachable),
        (vec![problem(504, "unknown_outcome", true); 3], CliExit::Unknown),
        (vec![FakeAction::Drop; 3], CliExit::Unknown),
        // The server is busy now; the first attempt may have been recorded.
        (vec![FakeAction::Drop, problem(503, "busy", true), problem(503, "busy", true)], CliExit::Unknown),
        (vec![FakeAction::Drop, problem(409, "in_use", false)], CliExit::Conflict),
        // No listener afterwards: the outcome of the first attempt stays unknown.
        (vec![FakeAction::Drop], CliExit::Unknown),
        (vec![], CliExit::Unreachable),
    ];
    for (script, exit) in cases {
        let tries = script.len();
        let (server, asked) = serve(script);
        // An empty script closes its port after a moment.
        std::thread::sleep(std::time::Duration::from_millis(if tries == 0 { 50 } else { 0 }));
        let context = context(server, None);
        let error =
            ApiClient::new(&context).ask("delete node/node-1", &delete_node()).expect_err("no verdict");
        assert_eq!(error.exit, exit, "{error}");
        assert!(error.message.starts_with("delete node/node-1: "), "{error}");
        assert_eq!(error.message.contains("--idempotency-key"), exit == CliExit::Unknown, "{error}");
        let asked: Vec<_> = asked.try_iter().collect();
        assert_eq!(asked.len(), tries, "{error}");
        if exit == CliExit::Unknown {
            let event: Value = serde_json::from_str(&asked[0].body).expect("an event");
            assert!(
                error.message.ends_with(event["id"].as_str().expect("a key")),
                "the key that was sent: {error}"
            );
        }
    }
}

#[test]
fn an_unreachable_server_is_reported_with_what_to_try() {
    let (server, _) = serve(vec![]);
    std::thread::sleep(std::time::Duration::from_millis(50));
    let context = context(server.clone(), None);
    let error = ApiClient::new(&context).get("list nodes", "/nodes", &[]).expect_err("no listener");
    let wanted = format!(
        "list nodes: server {server} unreachable: connection refused\nhint: start that server, or name another with --server; `chancery dev` starts one for development"
    );
    assert_eq!((error.exit, error.message), (CliExit::Unreachable, wanted));
}

#[test]
fn apply_reports_created_configured_or_unchanged() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("n.yaml");
    let text = "apiVersion: chancery/v1\nkind: Node\nmetadata: {name: node-1}\nspec: {domain: a, resources: {cpu: 1, memory: 1}}\n";
    std::fs::write(&file, text).expect("a file");
    let line = format!("chancery apply -f {}", directory.path().display());
    let unchanged =
        || batch(&[json!({ "position": 7, "verdict": "unchanged", "version": 3, "status": 200 })]);
    let cases = [
        (vec![problem(404, "not_found", false), batch(&[accepted(7)])], "created"),
        (vec![ok(&node("node-1", "")), batch(&[accepted(7)])], "configured"),
        (vec![ok(&node("node-1", "")), unchanged()], "unchanged"),
    ];
    for (script, wanted) in cases {
        let (result, _) = run_line(&line, script);
        assert_eq!(result.expect(wanted), format!("node/node-1 {wanted}\n"));
    }
    let (result, _) =
        run_line(&line, vec![problem(404, "not_found", false), batch(&[refusal(422, "invalid")])]);
    assert_eq!(result.expect_err("refused").exit, CliExit::Failure);
    std::fs::write(&file, format!("{text}---\nkind: x\n")).expect("a file");
    let (result, asked) = run_line(&line, vec![]);
    assert_eq!(result.expect_err("a typo").message, "nothing was applied", "the errors are written before");
    assert!(asked.is_empty(), "an error in one document stops all requests");
}

#[test]
fn approving_sends_the_hash_that_was_shown() {
    let id = operation_id();
    let page =
        json!({ "items": [operation(&id, "pending_approval")], "next_page_token": null, "position": 1 });
    let (result, asked) = run_line("chancery approve --plan web --all", vec![ok(&page), verdict()]);
    assert_eq!(result.expect("approved"), format!("operation/{id} approved: create web-7f3k on node-2\n"));
    assert_eq!(asked[0].line, "GET /v1/fleets/default/operations?state=pending_approval&plan=web&limit=1000");
    let event: Value = serde_json::from_str(&asked[1].body).expect("an event");
    let shown = json!([{ "operation": id, "hash": "00112233445566778899aabbccddeeff" }]);
    assert_eq!(
        (event["type"].as_str(), &event["data"]["operations"]),
        (Some("dev.chancery.operation.approve.v1"), &shown)
    );

    let nothing = json!({ "items": [], "next_page_token": null, "position": 1 });
    let script = vec![ok(&nothing), problem(404, "not_found", false)];
    let (result, asked) = run_line("chancery approve --plan wbe --all", script);
    assert_eq!((result.expect_err("a typo").exit, asked.len()), (CliExit::NotFound, 2));
    let (result, _) = run_line("chancery approve --plan web --all", vec![ok(&nothing), ok(&json!({}))]);
    assert_eq!(result.expect("nothing to do"), "");

    let (result, asked) = run_line("chancery approve --plan web", vec![]);
    assert_eq!((result.expect_err("no operation named").exit, asked.len()), (CliExit::Usage, 0));
    let line = format!("chancery reject {id} --reason no");
    let (result, asked) = run_line(&line, vec![ok(&operation(&id, "running"))]);
    assert_eq!((result.expect_err("not pending").exit, asked.len()), (CliExit::Conflict, 1));
}

#[test]
fn logs_are_requested_by_any_name_of_an_incarnation_and_do_not_end_silently() {
    let id = IncarnationId::issue(Lineage::from_random(1), Position::new(9)).to_string();
    let wanted = format!("GET /v1/fleets/default/incarnations/{id}/logs?marked=true&follow=false");
    let text = || FakeAction::Respond(200, "hello\n".into());
    for name in [id.clone(), format!("incarnation/{id}"), format!("inc/{id}")] {
        let (result, asked) = run_line(&format!("chancery logs {name}"), vec![text()]);
        assert_eq!((result.expect("text").as_str(), &asked[0].line), ("hello\n", &wanted), "{name}");
    }
    for name in ["web-7f3k", "replica/web-7f3k", "rep/web-7f3k"] {
        let replica = ok(&json!({ "incarnation": id }));
        let (result, asked) = run_line(&format!("chancery logs {name}"), vec![replica, text()]);
        assert_eq!((result.expect("text").as_str(), &asked[1].line), ("hello\n", &wanted), "{name}");
        assert_eq!(asked[0].line, "GET /v1/fleets/default/replicas/web-7f3k");
    }
    let error =
        run_line(&format!("chancery logs -f {id}"), vec![text()]).0.expect_err("the server ended the stream");
    let wanted = format!(
        "cannot read logs of incarnation/{id}: the server ended the stream\nhint: retry when the server is back, with \
         --tail 0 for new output only"
    );
    assert_eq!((error.exit, error.message), (CliExit::Unreachable, wanted));
}

#[test]
fn logs_are_of_one_output_since_a_time_or_of_the_previous_incarnation() {
    let id = |position| IncarnationId::issue(Lineage::from_random(1), Position::new(position)).to_string();
    let text = || FakeAction::Respond(200, "hello\n".into());
    for (flags, wanted) in [
        ("--stdout", "marked=false&stream=out&follow=false"),
        ("--stderr --tail 3", "marked=false&stream=err&tail=3&follow=false"),
        ("--since 5m", "marked=true&since=5m&follow=false"),
    ] {
        let (_, asked) = run_line(&format!("chancery logs {} {flags}", id(9)), vec![text()]);
        assert!(asked[0].line.ends_with(&format!("/logs?{wanted}")), "{flags}: {}", asked[0].line);
    }
    let run = |position, state: &str| json!({ "id": id(position), "state": state });
    let all = [run(3, "failed"), run(5, "failed"), run(7, "unwound"), run(9, "running")];
    let page = |items: &[Value]| ok(&json!({ "items": items, "next_page_token": null, "position": 1 }));
    let line = "chancery logs web-7f3k --previous";
    let replica = || ok(&json!({ "incarnation": id(9) }));
    let (result, asked) = run_line(line, vec![replica(), page(&all), text()]);
    assert_eq!(result.expect("text"), "hello\n");
    assert!(asked[2].line.contains(&format!("/incarnations/{}/logs?", id(5))), "{}", asked[2].line);
    let error = run_line(line, vec![replica(), page(&all[2..])]).0.expect_err("no previous incarnation");
    assert_eq!(error.exit, CliExit::NotFound, "{error}");
    let error =
        run_line(&format!("chancery logs {} --previous", id(9)), vec![]).0.expect_err("not a replica");
    assert_eq!(error.exit, CliExit::Usage, "{error}");
}

#[test]
fn a_wait_for_an_approval_that_fails_is_reported() {
    let row = row(&json!({ "state": "in_progress", "message": "" }));
    let page = json!({ "items": [operation(&operation_id(), "pending_approval")], "next_page_token": null, "position": 1 });
    let line = "chancery wait deployment/web/d-1 --for state=completed --timeout 0s";
    let error = run_line(line, vec![ok(&row), ok(&page)]).0.expect_err("not approved");
    assert_eq!(error.exit, CliExit::Awaiting, "{error}");
    assert!(error.message.ends_with("chancery approve --plan web --all"), "{error}");
    let nothing = json!({ "items": [], "next_page_token": null, "position": 1 });
    let error = run_line(line, vec![ok(&row), ok(&nothing), ok(&nothing)]).0.expect_err("timeout");
    assert_eq!(error.exit, CliExit::Unknown, "{error}");
    let request =
        json!({ "items": [{ "id": operation_id(), "subject": "plan/web" }], "next_page_token": null });
    let line_of_plan = "chancery wait plan/web --for deleted --timeout 0s";
    let error = run_line(line_of_plan, vec![ok(&row), ok(&request)]).0.expect_err("not approved");
    assert_eq!(error.exit, CliExit::Awaiting, "{error}");
    assert!(error.message.contains("try: chancery approve request/"), "{error}");
    let line = "chancery wait replica/web-7f3k --for deleted";
    for gone in [problem(404, "not_found", false), problem(410, "gone", false)] {
        let (result, _) = run_line(line, vec![ok(&row), gone]);
        assert_eq!(result.expect("gone"), "replica/web-7f3k deleted\n");
    }
}
