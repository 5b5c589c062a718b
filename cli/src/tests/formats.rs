//! Output formats of `get`, and of commands that act.

use serde_json::{Value, json};

use super::*;

fn nodes(names: &[(&str, u64)]) -> FakeAction {
    let with = |(name, incarnations): &(&str, u64)| {
        let mut node = node(name, "");
        node["incarnations"] = json!(incarnations);
        node
    };
    let items: Vec<_> = names.iter().map(with).collect();
    ok(&json!({ "items": items, "next_page_token": null, "position": 12 }))
}

#[test]
fn named_entities_have_the_position_of_their_reads() {
    let node = |name: &str| ok(&json!({ "name": name, "state": "allocated" }));
    let (result, _) = run_line("chancery get node a b -o json", vec![node("a"), node("b")]);
    let listed: Value = serde_json::from_str(&result.expect("nodes")).expect("JSON");
    assert_eq!((&listed["position"], listed["items"].as_array().map(Vec::len)), (&json!(7), Some(2)));
}

#[test]
fn rows_are_sorted_by_a_column_or_a_path_in_every_format() {
    let script = || vec![nodes(&[("node-10", 7), ("node-2", 30), ("node-1", 100)])];
    for (flags, wanted) in [
        ("-o name", "node-10 node-2 node-1"),
        ("-o name --sort-by NAME", "node-1 node-2 node-10"),
        ("-o name --sort-by incarnations", "node-10 node-2 node-1"),
        ("-o name --sort-by .incarnations", "node-10 node-2 node-1"),
        ("-o name --sort-by {.name}", "node-1 node-2 node-10"),
        ("-o name --sort-by .zone", "node-10 node-2 node-1"),
    ] {
        let (result, _) = run_line(&format!("chancery get nodes {flags}"), script());
        let names = result.expect(flags).replace("node/", "").lines().collect::<Vec<_>>().join(" ");
        assert_eq!(names, wanted, "{flags}");
    }
    let (result, _) = run_line("chancery get nodes --no-headers", script());
    let text = result.expect("rows");
    let first: Vec<_> = text.lines().map(|line| line.split("  ").next().unwrap_or_default()).collect();
    assert_eq!(first, ["node-1", "node-2", "node-10"], "{text}");
    for (flags, wanted) in [
        ("--sort-by fase", "invalid column \"fase\" of nodes: must be one of NAME, STATE"),
        ("--sort-by .items[", "invalid JSON path \".items[\""),
    ] {
        let error = run_line(&format!("chancery get nodes {flags}"), script()).0.expect_err(flags);
        assert!(error.exit == CliExit::Usage && error.message.starts_with(wanted), "{error}");
    }
}

#[test]
fn templates_and_csv_show_what_json_and_wide_tables_have() {
    let script = || vec![nodes(&[("b", 1), ("a", 2)])];
    let (result, asked) = run_line("chancery get nodes -o jsonpath={.items[*].name}", script());
    assert_eq!((result.expect("names").as_str(), asked.len()), ("b a", 1));
    let (result, _) = run_line("chancery get node b -o jsonpath={.incarnations}", vec![ok(&node("b", ""))]);
    assert_eq!(result.expect("a number"), "1");
    let (result, _) =
        run_line("chancery get nodes,caps -o jsonpath={.nodes[0].name}", [script(), script()].concat());
    assert_eq!(result.expect("a name"), "b");
    let (result, _) = run_line("chancery get nodes -o csv", script());
    let text = result.expect("values");
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with("NAME,STATE,CLUSTER,DOMAIN,CPU FREE/TOTAL,") && lines[0].ends_with(",AGE"),
        "{text}"
    );
    assert!(lines[1].starts_with("a,allocated,local,a,3500m/4,8GiB/8GiB,2,,0B/0B,,intel-xeon,"), "{text}");
    let (result, _) = run_line("chancery get nodes -o csv --no-headers", script());
    assert!(result.expect("values").starts_with("a,"));
    let error =
        run_line("chancery get nodes,caps -o csv", [script(), script()].concat()).0.expect_err("two kinds");
    assert_eq!(error.exit, CliExit::Usage);
}

#[test]
fn commands_that_act_have_output_for_programs() {
    let id = operation_id();
    let pending = || ok(&operation(&id, "pending_approval"));
    let line = format!("chancery approve {id} -o json");
    let (result, _) = run_line(&line, vec![pending(), verdict()]);
    let subject = format!("operation/{id}");
    let wanted = json!([{ "subject": subject, "outcome": "approved", "position": 7 }]);
    assert_eq!(serde_json::from_str::<Value>(&result.expect("JSON")).expect("JSON"), wanted);
    let none = ok(&json!({ "items": [], "next_page_token": null, "position": 1 }));
    let (result, _) = run_line("chancery approve --all -o json", vec![none.clone(), none]);
    assert_eq!(result.expect("JSON"), "[]\n");
    let wait = "chancery wait node/node-1 --for state=allocated";
    let (result, _) = run_line(&format!("{wait} -o json"), vec![ok(&node("node-1", ""))]);
    assert_eq!(result.expect("JSON"), "{\"outcome\":\"state=allocated\",\"subject\":\"node/node-1\"}\n");
    let (result, _) = run_line(&format!("{wait} -o name"), vec![ok(&node("node-1", ""))]);
    assert_eq!(result.expect("a name"), "node/node-1\n");
    let (result, _) = run_line("chancery evict node-1 -o yaml", vec![verdict()]);
    let text = result.expect("YAML");
    assert!(text.starts_with("outcome: evicted\n") && text.contains("subject: node/node-1\n"), "{text}");
}

#[test]
fn a_wrong_format_is_refused_before_an_intent_is_sent() {
    let drained = |disruptions: Value| {
        let mut node = node("node-1", "");
        node["disruptions"] = disruptions;
        vec![ok(&node)]
    };
    let drain = json!([{
        "name": "drain", "state": "approved", "action": "drain", "start": null, "reason": "", "approved_by": null,
        "since": "2026-11-21T09:00:00Z",
    }]);
    for (line, script) in [
        ("chancery drain node-1 -o csv", drained(json!([]))),
        ("chancery undrain node-1 -o csv", drained(drain)),
        ("chancery create replica --plan web -o csv", vec![]),
        ("chancery rebalance web -o csv", vec![]),
    ] {
        let (result, asked) = run_line(line, script);
        let error = result.expect_err("a wrong format");
        assert!(error.exit == CliExit::Usage && error.message.contains("output format"), "{line}: {error}");
        assert!(asked.iter().all(|asked| asked.body.is_empty()), "{line}: {asked:?}");
    }
}

#[test]
fn a_command_is_repeated_with_the_key_of_its_first_run() {
    let ids = |asked: &[FakeRequest]| -> Vec<String> {
        let bodies = asked.iter().filter_map(|asked| serde_json::from_str::<Value>(&asked.body).ok());
        bodies.filter_map(|body| body["id"].as_str().map(str::to_owned)).collect()
    };
    let drained = || {
        let mut node = node("node-1", "");
        node["disruptions"] = json!([]);
        vec![ok(&node), verdict(), verdict()]
    };
    let (_, asked) = run_line("chancery drain node-1 --idempotency-key k", drained());
    assert_eq!(ids(&asked), ["k", "k-2"]);
    let (result, asked) = run_line("chancery evict node-1", vec![FakeAction::Drop; 3]);
    let error = result.expect_err("no answer");
    let first = &ids(&asked)[0];
    assert!(
        error
            .message
            .ends_with(&format!("hint: to repeat the command safely, add --idempotency-key {first}")),
        "{error}"
    );
    // These commands read first what is left: a repeated one has other intents.
    let id = operation_id();
    let there = || ok(&operation(&id, "pending_approval"));
    let lost = || vec![FakeAction::Drop; 3];
    for (line, before) in [
        (format!("chancery approve {id}"), vec![there()]),
        (format!("chancery reject {id}"), vec![there()]),
        ("chancery drain node-1".to_owned(), drained()[..1].to_vec()),
    ] {
        let error = run_line(&line, [before, lost()].concat()).0.expect_err("no answer");
        assert_eq!(error.exit, CliExit::Unknown, "{line}");
        let wanted = "hint: the command can be repeated without --idempotency-key: what was decided is not decided again";
        assert!(error.message.ends_with(wanted), "{line}: {error}");
    }
    // These name a new deployment after the time.
    let (result, asked) = run_line("chancery rollback web", lost());
    let event: Value = serde_json::from_str(&asked[0].body).expect("an event");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let (name, key) = (text(&event["data"]["name"]), text(&event["id"]));
    let wanted = format!("hint: to repeat the command safely, add --name {name} --idempotency-key {key}");
    let error = result.expect_err("no answer");
    assert!(error.message.ends_with(&wanted), "{error}");
    let error = run_line("chancery get nodes --idempotency-key k", Vec::new()).0.expect_err("a read");
    assert_eq!(error.exit, CliExit::Usage);
}
