//! Ids that are given by their first characters, tables of short ids, and outcomes before an error.

use super::*;

fn page(items: &Value, next: &Value) -> FakeAction {
    ok(&json!({ "items": items, "next_page_token": next, "position": 12 }))
}

fn ids() -> [String; 2] {
    [8, 9].map(|at| OperationId::issue(Lineage::from_random(1), Position::new(at)).to_string())
}

#[test]
fn the_start_of_an_id_is_resolved_by_one_request_and_a_whole_id_by_none() {
    let [_, id] = ids();
    let short = &id[..18];
    let there = || ok(&operation(&id, "pending_approval"));
    let found = || page(&json!([operation(&id, "pending_approval")]), &Value::Null);
    let (result, asked) =
        run_line(&format!("chancery get operation {short} -o name"), vec![found(), there()]);
    assert_eq!(result.expect("an operation"), format!("operation/{id}\n"));
    assert_eq!(asked[0].line, format!("GET /v1/fleets/default/operations?id={short}&limit=5"));
    assert_eq!(asked[1].line, format!("GET /v1/fleets/default/operations/{id}"));
    let (result, asked) = run_line(&format!("chancery get op/{id} -o name"), vec![there()]);
    assert_eq!((result.expect("an operation"), asked.len()), (format!("operation/{id}\n"), 1));
    // The command acts on the one that it names by its whole id.
    let line = format!("chancery approve {short}");
    let (result, asked) = run_line(&line, vec![found(), there(), verdict()]);
    assert_eq!(result.expect("approved"), format!("operation/{id} approved: create web-7f3k on node-2\n"));
    let event: Value = serde_json::from_str(&asked[2].body).expect("an event");
    assert_eq!(event["data"]["operations"][0]["operation"], json!(id));
    let history = ok(&json!({ "items": [], "next_from": null }));
    let (result, asked) = run_line(&format!("chancery history op {short}"), vec![found(), history]);
    assert!(result.is_ok() && asked[1].line.contains(&format!("/operations/{id}/history?")), "{asked:?}");
    let (_, asked) = run_line("chancery get replica 00000000", vec![problem(404, "not_found", false)]);
    assert_eq!(asked.len(), 1, "a name is not completed");
}

#[test]
fn the_start_of_several_ids_is_refused_with_the_first_of_them() {
    let rows: Vec<_> = ids().iter().map(|id| operation(id, "running")).collect();
    for (next, end) in [(Value::Null, ""), (json!("t"), "\n  and more")] {
        // A page that is not the last has as many rows as were asked for.
        let rows = if next.is_null() { rows.clone() } else { [&rows[..], &rows, &rows[..1]].concat() };
        let names: Vec<_> =
            rows.iter().map(|row| format!("\n  operation/{}", row["id"].as_str().expect("an id"))).collect();
        let wanted =
            format!("invalid operation \"0\": more than one id starts with it{}{end}", names.concat());
        for line in ["chancery approve 0", "chancery get op 0", "chancery wait op/0 --for state=failed"] {
            let (result, asked) = run_line(line, vec![page(&json!(rows), &next)]);
            let error = result.expect_err(line);
            assert_eq!(
                (error.exit, error.message.as_str(), asked.len()),
                (CliExit::Usage, &*wanted, 1),
                "{line}"
            );
        }
    }
    let error = run_line("chancery describe op 0", vec![page(&json!([]), &Value::Null)]).0.expect_err("none");
    let wanted = "cannot read operation/0: no operation has an id that starts with it\nhint: a removed operation is found by its whole id";
    assert_eq!((error.exit, error.message.as_str()), (CliExit::NotFound, wanted));
}

#[test]
fn tables_have_short_ids_and_every_other_format_has_whole_ones() {
    let [_, id] = ids();
    let list = || page(&json!([operation(&id, "running")]), &Value::Null);
    let (result, _) = run_line("chancery get operations --no-headers", vec![list()]);
    assert!(result.expect("a table").starts_with("00000000-0000-8092  create "), "{id}");
    for format in ["wide", "json", "yaml", "name", "csv", "jsonl", "jsonpath={.items[0].id}"] {
        let (result, _) = run_line(&format!("chancery get operations -o {format}"), vec![list()]);
        let text = result.expect(format);
        assert!(text.contains(&id), "{format}: {text}");
    }
}

#[test]
fn logs_take_the_start_of_an_incarnation_id_only_if_no_replica_has_the_name() {
    let id = IncarnationId::issue(Lineage::from_random(1), Position::new(9)).to_string();
    let missing = || problem(404, "not_found", false);
    let found = page(&json!([{ "id": id }]), &Value::Null);
    let log = FakeAction::Respond(200, "out | hello\n".into());
    let (result, asked) = run_line("chancery logs 00000000-0000-809", vec![missing(), found, log]);
    assert_eq!(result.expect("output"), "out | hello\n");
    assert!(asked[2].line.contains(&format!("/incarnations/{id}/logs?")), "{asked:?}");
    let none = page(&json!([]), &Value::Null);
    let error = run_line("chancery logs abba", vec![missing(), none]).0.expect_err("no replica");
    assert_eq!(error.message, "cannot read replica/abba: so it is");
}

#[test]
fn what_was_approved_before_an_error_is_in_the_list() {
    let rows: Vec<_> = (1..=201)
        .map(|at| OperationId::issue(Lineage::from_random(1), Position::new(at)).to_string())
        .map(|id| operation(&id, "pending_approval"))
        .collect();
    for format in ["json", "yaml"] {
        let script = vec![page(&json!(rows), &Value::Null), verdict(), problem(403, "denied", false)];
        let (result, out, _) = run_shown(&format!("chancery approve --all -o {format}"), script);
        assert_eq!(result.expect_err("denied").exit, CliExit::Denied);
        assert_eq!(out.matches("approved").count(), 200, "{format}: {out}");
    }
}

#[test]
fn a_path_that_no_row_has_cannot_sort() {
    let rows = || page(&json!([node("a", ""), node("b", "")]), &Value::Null);
    let error = run_line("chancery get nodes --sort-by .nope", vec![rows()]).0.expect_err("no such field");
    let wanted =
        "invalid path \".nope\" of nodes: none of them has such a field\ntry: chancery get nodes -o json";
    assert_eq!((error.exit, error.message.as_str()), (CliExit::Usage, wanted));
    // A field without a value is one.
    let (result, _) = run_line("chancery get nodes --sort-by .zone -o name", vec![rows()]);
    assert_eq!(result.expect("sorted"), "node/a\nnode/b\n");
    let none = page(&json!([]), &Value::Null);
    assert!(run_line("chancery get nodes --sort-by .nope", vec![none]).0.is_ok());
}
