//! Kinds, names and labels that `get` selects.

use serde_json::{Value, json};

use super::*;

fn page(items: &Value) -> FakeAction {
    ok(&json!({ "items": items, "next_page_token": null, "position": 12 }))
}

fn capability(name: &str) -> Value {
    row(&json!({ "name": name, "type": "gpu", "score": 1, "activity": "active" }))
}

#[test]
fn several_names_of_one_kind_are_one_table_and_the_missing_ones_an_error() {
    for line in ["chancery get node b a -o name", "chancery get node/b node/a -o name"] {
        let (result, asked) = run_line(line, vec![ok(&node("b", "")), ok(&node("a", ""))]);
        assert_eq!(result.expect(line), "node/b\nnode/a\n");
        assert_eq!(asked[1].line, "GET /v1/fleets/default/nodes/a");
    }
    let missing = || problem(404, "not_found", false);
    // Neither the entity nor its history.
    let script = vec![ok(&node("node-10", "")), missing(), missing(), ok(&node("node-9", ""))];
    let (server, _) = serve(script);
    let line = "chancery get nodes node-10 node-7 node-9 -o name";
    let cli = FakeCli::try_parse_from(line.split(' ')).expect("a command line");
    let mut out = Vec::new();
    let error =
        run(&cli.command, &context(server, cli.globals.output), &mut out).expect_err("one is missing");
    assert_eq!(
        (error.exit, error.message.as_str()),
        (CliExit::NotFound, "cannot read node/node-7: so it is")
    );
    assert_eq!(String::from_utf8(out).expect("text"), "node/node-10\nnode/node-9\n");
}

#[test]
fn several_kinds_are_several_tables_with_the_kind_or_one_object() {
    let script =
        || vec![page(&json!([node("node-10", ""), node("node-9", "")])), page(&json!([capability("gpu")]))];
    let (result, asked) = run_line("chancery get nodes,caps,node", script());
    let text = result.expect("tables");
    let lines: Vec<_> =
        text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines, ["KIND NAME", "node node-9", "node node-10", "", "KIND NAME", "capability gpu"]);
    assert_eq!(asked.len(), 2, "each kind is read once");
    let (result, _) = run_line("chancery get nodes,caps -o json", script());
    let all: Value = serde_json::from_str(&result.expect("JSON")).expect("JSON");
    assert_eq!(
        all,
        json!({ "nodes": [node("node-10", ""), node("node-9", "")], "capabilities": [capability("gpu")] })
    );
    let (result, _) = run_line("chancery get nodes,caps -o jsonl", script());
    let text = result.expect("lines");
    assert!(
        text.ends_with(&format!("{}\n", json!({ "subject": "capability/gpu", "row": capability("gpu") }))),
        "{text}"
    );
    let (result, _) = run_line(
        "chancery get node/node-9 cap/gpu -o name",
        vec![ok(&node("node-9", "")), ok(&capability("gpu"))],
    );
    assert_eq!(result.expect("names"), "node/node-9\ncapability/gpu\n");
    let empty = || vec![page(&json!([])); 6];
    let (result, asked) = run_line("chancery get all", empty());
    assert_eq!(result.expect("nothing"), "");
    let kinds: Vec<_> =
        asked.iter().map(|asked| asked.line.split(['/', '?']).nth(4).expect("a kind")).collect();
    assert_eq!(kinds, ["clusters", "nodes", "plans", "deployments", "replicas", "volumes"]);
}

#[test]
fn labels_are_compared_in_the_rows_and_do_not_end_the_pages_early() {
    let labelled = |name: &str, disk: &str| {
        let mut node = node(name, "");
        node["labels"] = json!({ "disk": disk });
        node
    };
    let page =
        |items: Value, token: Value| ok(&json!({ "items": items, "next_page_token": token, "position": 1 }));
    let script = || {
        vec![
            page(json!([labelled("a", "slow"), labelled("b", "fast")]), json!("t")),
            page(json!([labelled("c", "fast"), labelled("d", "fast")]), json!("u")),
        ]
    };
    let line = "chancery get nodes -l disk=fast --limit 2 -o name";
    let (result, asked) = run_line(line, script());
    assert_eq!(result.expect("names"), "node/b\nnode/c\n");
    assert_eq!(asked[0].line, "GET /v1/fleets/default/nodes?limit=1000");
    assert_eq!(asked.len(), 2, "no page is read after the limit");
    for (line, wanted) in [
        (
            "chancery get replicas -l disk=fast",
            "invalid flag -l: replicas have no labels, only nodes and plans have",
        ),
        (
            "chancery get node a -l disk=fast",
            "invalid flags --filter, -l and --all: must not be used with a name",
        ),
        (
            "chancery get nodes,plans -w",
            "invalid flag --watch: must be used with one kind, or with one entity",
        ),
        ("chancery get nodes,plans/a", "invalid argument \"…/a\": a name has one kind, as in node/node-1"),
    ] {
        let error = run_line(line, Vec::new()).0.expect_err(line);
        assert_eq!(error.exit, CliExit::Usage, "{line}");
        assert!(error.message.starts_with(wanted), "{line}: {error}");
    }
}

#[test]
fn repeated_values_of_a_filter_of_disruptions_are_alternatives() {
    let mut both = node("node-1", "");
    let of = |name: &str, state: &str| {
        json!({
            "name": name, "state": state, "action": "drain", "start": null, "reason": "", "approved_by": null,
            "since": "2026-11-21T09:00:00Z",
        })
    };
    both["disruptions"] = json!([of("x", "approved"), of("y", "completed"), of("z", "scheduled")]);
    for line in [
        "chancery get disruptions --filter state=approved --filter state=scheduled -o name",
        "chancery get disruptions --filter state=approved,scheduled -o name",
    ] {
        let (result, _) = run_line(line, vec![page(&json!([both]))]);
        assert_eq!(result.expect(line), "disruption/node-1/x\ndisruption/node-1/z\n");
    }
}

#[test]
fn an_entity_that_has_events_only_is_named_with_the_command_that_shows_them() {
    for line in ["chancery get node a", "chancery describe node/a"] {
        let events = ok(&json!({ "items": [{ "position": 3 }], "next_from": null }));
        let (result, asked) = run_line(line, vec![problem(404, "not_found", false), events]);
        let error = result.expect_err(line);
        assert_eq!(
            (error.exit, error.message.as_str()),
            (
                CliExit::NotFound,
                "cannot read node/a: so it is\nhint: its events are kept: chancery history node a"
            )
        );
        assert_eq!(asked[1].line, "GET /v1/fleets/default/nodes/a/history?limit=1");
    }
}
