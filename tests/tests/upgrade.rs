//! `chancery upgrade check` of the directories of real servers: what it compares, what it names, and that it changes
//! nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use chancery_journal::Journal as _;
use chancery_journal::segments::{SegmentJournal, SegmentOptions};
use chancery_tests::golden::appended;
use chancery_tests::{ServerProcess, program};
use serde_json::{Value, json};

use crate::replay::{assert_unchanged, fleet_with_a_past, forge, pause, snapshots, tree};

/// Exit code, standard output and standard error of a check, which leaves no copy of the rows behind.
fn check(data: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let copies = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(program());
    command.args(["upgrade", "check"]).arg(data).args(args).env("TMPDIR", copies.path());
    let done = command.output().expect("the program runs");
    assert_eq!(fs::read_dir(copies.path()).expect("listed").count(), 0, "no copy of the rows is left");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (done.status.code(), text(done.stdout), text(done.stderr))
}

/// Result of a check as JSON, with its exit code and standard error.
fn result(data: &Path, args: &[&str]) -> (Option<i32>, Value, String) {
    let (code, out, err) = check(data, &[args, &["-o", "json"]].concat());
    (code, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}")), err)
}

/// Stored rows of a stopped server.
fn rows(server: &ServerProcess) -> sled::Db {
    sled::open(server.data().join("fleets/default/rows")).expect("rows")
}

/// Changes the layout that is stored with the rows.
fn change_layout(server: &ServerProcess, change: impl FnOnce(&mut Value)) {
    let rows = rows(server);
    let stored = rows.get(b"\0layout").expect("read").expect("a layout");
    let mut layouts = serde_json::from_slice(&stored).expect("JSON");
    change(&mut layouts);
    rows.insert(b"\0layout", serde_json::to_vec(&layouts).expect("JSON")).expect("written");
    rows.flush().expect("flushed");
}

#[test]
fn an_upgrade_check_of_the_same_build_finds_no_difference_and_changes_nothing_while_a_server_runs() {
    let mut server = fleet_with_a_past();
    pause(&server);
    let before = tree(server.data());
    let (code, shown, err) = result(server.data(), &[]);
    let (text_code, text, _) = check(server.data(), &[]);
    let after = tree(server.data());
    server.signal(rustix::process::Signal::CONT);
    assert_eq!((code, text_code), (Some(0), Some(0)), "{err}");
    assert_unchanged(&before, &after);
    let found = &shown["rows"];
    assert_eq!(
        (&found["compared"], &found["count"], &found["rebuilt"]),
        (&json!(true), &json!(0), &json!(false))
    );
    assert_eq!((&found["differences"], &found["added"]), (&json!([]), &json!([])));
    assert!(found["rows"].as_u64() > Some(10), "{shown}");
    assert!(found["position"].as_u64() <= shown["last"]["position"].as_u64(), "{shown}");
    assert!(shown["snapshots"].as_array().is_some_and(|all| all.len() >= 2), "{shown}");
    assert!(text.contains("0 differences") && text.contains("continues with the rows"), "{text}");

    // After a clean end, the rows are those of the last record.
    server.stop();
    let (code, shown, err) = result(server.data(), &[]);
    assert_eq!((code, &shown["rows"]["position"]), (Some(0), &shown["last"]["position"]), "{err}");
    // A snapshot with another state is found, as by a replay.
    let all = snapshots(server.data());
    let [first, .., last] = &all[..] else { panic!("{all:?}") };
    forge(last, first, |meta, of_state| {
        meta["state_hash"] = of_state["state_hash"].clone();
        meta["len"] = of_state["len"].clone();
    });
    let (code, shown, err) = result(server.data(), &[]);
    assert_eq!((code, &shown["rows"]["count"]), (Some(1), &json!(0)));
    assert!(err.contains("has another state than the journal gives"), "{err}");
}

#[test]
fn an_upgrade_check_names_each_difference_and_counts_added_fields() {
    let mut server = fleet_with_a_past();
    server.stop();
    // Rows of a build whose capabilities had points, which this build does not have, and no score.
    change_layout(&server, |layouts| {
        let mut kinds = layouts.as_object_mut().expect("kinds").values_mut();
        let capabilities = kinds.find(|layout| layout["kind"] == "capabilities").expect("a kind");
        let fields = capabilities["row"]["fields"].as_array_mut().expect("fields");
        fields.iter_mut().find(|field| field[0] == "score").expect("a field")[0] = json!("points");
    });
    let (code, shown, err) = result(server.data(), &[]);
    let wanted: Vec<_> = (0..3)
        .map(|number| {
            let key = format!("c-{number}");
            json!({"kind": "capabilities", "key": key, "field": "points", "stored": 19, "built": null})
        })
        .collect();
    assert_eq!(shown["rows"]["differences"], json!(wanted), "{err}");
    assert_eq!(shown["rows"]["added"], json!([{"kind": "capabilities", "field": "score", "count": 3}]));
    assert!(code == Some(1) && err.contains("have 3 differences"), "{code:?} {err}");
    let (code, text, _) = check(server.data(), &["--limit", "1"]);
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines.contains(&vec!["capabilities", "c-0", "points", "19", "(none)"]), "{text}");
    assert!(lines.contains(&vec!["capabilities", "score", "3"]), "{text}");
    assert!(code == Some(1) && text.contains("(first 1 of 3)") && !text.contains("c-1 "), "{text}");

    // A row that the journal does not give, and one that is missing.
    let rows = rows(&server);
    let (key, row) = rows.scan_prefix([2]).next().expect("a row").expect("read");
    assert_eq!(&key[1..], b"c-0");
    rows.remove(&key).expect("removed");
    rows.insert([&key[..1], b"zz"].concat(), row).expect("written");
    rows.flush().expect("flushed");
    drop(rows);
    let (_, shown, err) = result(server.data(), &[]);
    let whole: Vec<_> = shown["rows"]["differences"].as_array().expect("a list").iter().collect();
    let whole: Vec<_> = whole.into_iter().filter(|one| one["field"].is_null()).collect();
    let keys: Vec<_> =
        whole.iter().map(|one| (&one["key"], one["stored"].is_null(), one["built"].is_null())).collect();
    assert_eq!(keys, [(&json!("c-0"), true, false), (&json!("zz"), false, true)], "{err}");
}

#[test]
fn an_upgrade_check_states_why_it_compares_no_rows() {
    let mut server = ServerProcess::start();
    server.client().must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": 1}}));
    server.stop();
    let data = server.data();
    let not_compared = |reason: &str| {
        let (code, text, err) = check(data, &[]);
        assert!(
            code == Some(0) && text.contains(&format!("cannot compare rows: {reason}")),
            "{code:?} {text}{err}"
        );
        assert!(text.contains("a server of this build builds the rows again"), "{text}");
        let (code, shown, _) = result(data, &[]);
        assert_eq!(
            (code, &shown["rows"]["compared"], &shown["rows"]["rebuilt"]),
            (Some(0), &json!(false), &json!(true))
        );
    };
    let stored = rows(&server);
    let layout = stored.remove(b"\0layout").expect("removed").expect("a layout");
    stored.flush().expect("flushed");
    drop(stored);
    not_compared("they have no layout that this build can read");
    let stored = rows(&server);
    stored.insert(b"\0layout", layout).expect("written");
    stored.remove(b"\0cursor").expect("removed");
    stored.flush().expect("flushed");
    drop(stored);
    not_compared("they are incomplete");

    let mut other = ServerProcess::start();
    other.stop();
    let (ours, theirs) = (data.join("fleets/default/rows"), other.data().join("fleets/default/rows"));
    fs::remove_dir_all(&ours).expect("removed");
    not_compared("there are none");
    fs::rename(theirs, ours).expect("moved");
    not_compared("the journal does not have their last record, at position ");
}

#[test]
fn an_upgrade_check_names_the_event_that_this_build_cannot_fold() {
    let lines = [
        (r#"{"k":"fact","t":"moon.landed.v1","c":1,"d":{}}"#, "unknown type moon.landed.v1"),
        (r#"{"k":"fact","t":"node.deleted.v1","c":1,"d":{}}"#, "cannot read data of node.deleted.v1"),
        (
            r#"{"k":"fact","t":"node.deleted.v1","c":1,"d":{"name":"no"}}"#,
            "node.deleted.v1 does not fit the state: cannot fold fact of node/no",
        ),
    ];
    for (line, wanted) in lines {
        let mut server = ServerProcess::start();
        server.stop();
        let position = append(server.data(), line);
        let (code, out, err) = check(server.data(), &[]);
        let at = format!("cannot fold event at position {position}");
        assert!(code == Some(1) && out.is_empty(), "{code:?} {out} {err}");
        assert!(err.contains(&at) && err.contains(wanted), "{err}");
    }
    let (code, _, err) = check(Path::new("/nonexistent"), &[]);
    assert!(code == Some(1) && err.contains("cannot read directory /nonexistent"), "{err}");
}

/// Appends an event to the journal of a stopped server. Returns its position.
fn append(data: &Path, line: &str) -> u64 {
    let options = SegmentOptions::new(data.join("fleets/default/journal"), "default");
    let (journal, _) = SegmentJournal::open(&options, Box::new(|_| ())).expect("a journal");
    let head = journal.head().expect("a record").position;
    let last = journal.source().records(head).expect("records").next().expect("one").expect("read");
    let record = appended(&last, &[line.as_bytes()]);
    let position = record.first().get();
    journal.append(record).expect("queued");
    journal.close().expect("synced");
    position
}
