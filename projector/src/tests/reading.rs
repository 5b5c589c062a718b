//! Lists: filters compared with a check of all rows, pages while rows change.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Poll;

use serde_json::{Value, json};

use super::driver::TestDriver;
use super::{items_of, open};
use crate::build_row::WAITS;
use crate::filter::InvalidFilter;
use crate::kind::{RowKey, RowKind, with_row};
use crate::page::{LIMIT_MAX, ListQuery, QueryError};
use crate::position_watch::PositionWaitError;
use crate::query::RowReader;
use crate::rows::{ClusterRow, OperationRow, PlanRow, ReplicaRow};

/// Returns all rows of a list, page by page.
fn walk(reader: &RowReader, kind: RowKind, query: &ListQuery) -> Vec<Value> {
    let mut query = query.clone();
    let mut all = Vec::new();
    loop {
        let page = reader.list_json(kind, &query).expect("a page");
        let items = items_of(&page.start);
        assert_eq!(items.len(), page.count);
        assert!(items.len() <= query.limit.unwrap_or(100));
        all.extend(items);
        let Some(next) = page.next else { return all };
        query.token = Some(next.to_string().parse().expect("a token"));
    }
}

/// Applies a filter to the JSON of a row, independently of the index.
fn plain(row: &Value, name: &str, value: &str) -> bool {
    match name {
        "namespace" | "service" => row["spec"][name] == *value,
        "type" => row["type"] == *value,
        "capability" => row["capabilities"].as_array().is_some_and(|all| all.iter().any(|it| *it == *value)),
        "label" => {
            let (key, value) = value.split_once(':').expect("a pair");
            row["labels"][key] == *value
        }
        "remaining_cpu_gte" => {
            row["remaining"]["cpu"].as_u64() >= Some(value.parse::<u64>().expect("cores") * 1000)
        }
        "remaining_memory_gte" => {
            row["remaining"]["memory"].as_u64() >= Some(value.parse::<u64>().expect("GiB") << 30)
        }
        "id" => row["id"].as_str().is_some_and(|id| id.starts_with(value)),
        name => row[name] == *value,
    }
}

/// Returns values to filter by: those of the rows, and one that no row has.
fn values(rows: &[Value], name: &str) -> BTreeSet<String> {
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
    let mut found: BTreeSet<String> = match name {
        "namespace" | "service" => rows.iter().filter_map(|row| text(&row["spec"][name])).collect(),
        "type" => rows.iter().filter_map(|row| text(&row["type"])).collect(),
        "capability" => ["v100", "h100"].map(Into::into).into(),
        "label" => ["disk:ssd", "disk:hdd", "disk:tape"].map(Into::into).into(),
        "remaining_cpu_gte" | "remaining_memory_gte" => ["0", "2", "60", "100"].map(Into::into).into(),
        // Whole bytes, half a byte more, and the whole id.
        "id" => {
            let some = rows.iter().step_by(1 + rows.len() / 4).filter_map(|row| text(&row["id"]));
            some.flat_map(|id| [16, 17, 18, 36].map(|count| id[..count].to_owned())).collect()
        }
        name => rows.iter().filter_map(|row| text(&row[name])).collect(),
    };
    if ["plan", "node", "replica", "cluster", "deployment", "domain", "zone"].contains(&name) {
        found.insert("unknown".into());
    }
    found
}

fn sorted(mut rows: Vec<Value>) -> Vec<String> {
    let mut rows: Vec<_> = rows.drain(..).map(|row| row.to_string()).collect();
    rows.sort();
    rows
}

#[test]
fn every_filter_and_every_pair_of_them_gives_what_a_scan_of_all_rows_gives() {
    for seed in [50, 51, 52] {
        let mut driver = TestDriver::new(seed);
        driver.found(8, 4);
        (0..400).for_each(|_| driver.stir());
        driver.seal();
        let dir = tempfile::tempdir().expect("a directory");
        let mut projector = open(dir.path(), &driver, None);
        projector.catch_up().expect("caught up");
        let reader = projector.reader();
        for kind in RowKind::ALL {
            let all = walk(&reader, *kind, &ListQuery::all().limit(3));
            assert_eq!(sorted(all.clone()), sorted(walk(&reader, *kind, &ListQuery::all().limit(1000))));
            let asked: Vec<(&str, String)> = kind
                .filters()
                .into_iter()
                .flat_map(|name| values(&all, name).into_iter().map(move |value| (name, value)))
                .collect();
            for (i, (name, value)) in asked.iter().enumerate() {
                for (other, with) in asked[i..].iter().step_by(1 + asked.len() / 12) {
                    // Two values of one filter: one must match.
                    let query = if name == other {
                        ListQuery::all().by(name, format!("{value},{with}")).limit(2)
                    } else {
                        ListQuery::all().by(name, value).by(other, with).limit(2)
                    };
                    let fits = |row: &&Value| {
                        let (one, two) = (plain(row, name, value), plain(row, other, with));
                        if name == other { one || two } else { one && two }
                    };
                    let wanted: Vec<_> = all.iter().filter(fits).cloned().collect();
                    let found = walk(&reader, *kind, &query);
                    assert_eq!(sorted(found), sorted(wanted), "{kind} by {name}={value} and {other}={with}");
                }
            }
        }
    }
}

#[test]
fn a_row_is_found_by_the_text_of_its_key_in_every_kind() {
    let mut driver = TestDriver::new(53);
    driver.found(4, 4);
    driver.deploy(0, "deployment-1", 2);
    driver.deploy(1, "deployment-1", 2);
    driver.apply_plan(3, "automatic");
    driver.deploy(3, "deployment-1", 1);
    driver.work(100);
    let rule = json!({ "four_eyes": {} });
    driver.ask("policy.apply.v1", &json!({ "name": "eyes", "spec": { "rule": rule } }));
    // Waits for another person.
    driver.ask("policy.delete.v1", &json!({ "name": "eyes" }));
    driver.seal();
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    projector.catch_up().expect("caught up");
    let reader = projector.reader();
    for kind in RowKind::ALL {
        let found = with_row!(kind, R => {
            let page = reader.list::<R>(&ListQuery::all()).expect("a page");
            page.items.iter().map(|row| (crate::kind::KeyedRow::key(row), serde_json::to_value(row).expect("JSON"))).collect::<Vec<_>>()
        });
        assert!(!found.is_empty(), "no rows of {kind}");
        for (key, row) in found {
            let parsed = RowKey::parse(*kind, &key.to_string()).expect("a key");
            assert_eq!(parsed, key);
            let json = reader.get_json(&parsed).expect("read").expect("present");
            assert_eq!(serde_json::from_str::<Value>(&json.body).expect("JSON"), row);
            assert_eq!(row["version"], json.version);
        }
        assert_eq!(RowKind::from_word(kind.word()), Some(*kind));
    }
    assert!(RowKey::parse(RowKind::Deployments, "nginx").is_err());
    assert!(RowKey::parse(RowKind::Operations, "nginx").is_err());
    let unknown = RowKey::parse(RowKind::Replicas, "unknown-1234").expect("a key");
    assert_eq!(reader.get_json(&unknown).expect("read"), None);
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    let driver = TestDriver::new(54);
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    projector.catch_up().expect("caught up");
    let reader = projector.reader();
    let error = |query: ListQuery| reader.list_json(RowKind::Operations, &query).expect_err("refused");
    let unknown = error(ListQuery::all().by("color", "red"));
    assert!(matches!(unknown, QueryError::Filter(InvalidFilter::Unknown { .. })));
    assert_eq!(
        unknown.to_string(),
        "invalid filter \"color\" for operations: must be one of id, plan, replica, kind, state, deployment, node"
    );
    let word = error(ListQuery::all().by("kind", "destroy")).to_string();
    assert_eq!(
        word,
        "invalid filter kind for operations: must be one of create, update, relocate, restart, start, stop, delete, reboot"
    );
    assert!(matches!(
        error(ListQuery::all().by("plan", "Not A Name")),
        QueryError::Filter(InvalidFilter::Value { .. })
    ));
    for limit in [0, LIMIT_MAX + 1] {
        assert!(matches!(error(ListQuery::all().limit(limit)), QueryError::Limit { .. }));
    }
    assert!("not a token!".parse::<crate::page::PageToken>().is_err());
}

#[test]
fn a_token_is_good_for_its_own_list_alone() {
    let mut driver = TestDriver::new(55);
    driver.found(20, 2);
    driver.deploy(0, "deployment-1", 9);
    driver.settle();
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    projector.catch_up().expect("caught up");
    let reader = projector.reader();
    let query = ListQuery::all().by("plan", "plan-0").limit(2);
    let token = reader.list_json(RowKind::Replicas, &query).expect("a page").next.expect("more");
    let list = |kind, query: ListQuery| reader.list_json(kind, &query.after(token.clone()));
    assert!(list(RowKind::Replicas, query.clone()).is_ok());
    assert!(
        list(RowKind::Replicas, ListQuery::all().by("plan", "plan-0").limit(5)).is_ok(),
        "another limit is the same list"
    );
    for (kind, other) in [
        (RowKind::Replicas, ListQuery::all()),
        (RowKind::Replicas, ListQuery::all().by("plan", "plan-1")),
        (RowKind::Replicas, query.clone().by("desired", "running")),
        (RowKind::Operations, query.clone()),
    ] {
        assert!(matches!(list(kind, other.clone()), Err(QueryError::OtherToken { .. })), "{kind} {other:?}");
    }
}

#[test]
fn pages_while_rows_change_neither_miss_nor_repeat_a_row_that_stays() {
    let mut driver = TestDriver::new(56);
    driver.found(40, 1);
    driver.apply_node(1000, 1_000_000);
    driver.deploy(0, "deployment-1", 10_000);
    driver.settle();
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    projector.catch_up().expect("caught up");
    let reader = projector.reader();
    let stays: BTreeSet<String> =
        driver.fleet.replicas().sorted().iter().map(|r| r.name.to_string()).collect();
    assert_eq!(stays.len(), 10_000);
    // From here on replicas are stopped, deleted and created; readers need not see deleted ones.
    let (stop, gone) = (std::sync::atomic::AtomicBool::new(false), std::sync::Mutex::new(BTreeSet::new()));
    let mut steps = Vec::new();
    for n in 0..150 {
        let names: Vec<_> = stays.iter().skip(n * 61 % 9000).step_by(997).take(3).cloned().collect();
        for (i, name) in names.iter().enumerate() {
            let what = ["replica.delete.v1", "replica.stop.v1", "replica.start.v1"][i];
            driver.ask(what, &serde_json::json!({ "name": name }));
            if i == 0 {
                gone.lock().expect("a lock").insert(name.clone());
            }
        }
        driver.work(20);
        driver.seal();
        steps.push(driver.records.len());
    }
    let gone = gone.into_inner().expect("a lock");
    std::thread::scope(|scope| {
        let walks = scope.spawn(|| {
            let mut walks = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) || walks < 3 {
                for query in [ListQuery::all().limit(300), ListQuery::all().by("plan", "plan-0").limit(700)] {
                    let rows = walk(&reader, RowKind::Replicas, &query);
                    let names: Vec<_> =
                        rows.iter().map(|row| row["name"].as_str().expect("a name").to_owned()).collect();
                    assert!(names.is_sorted(), "in the order of keys");
                    let seen: BTreeSet<_> = names.iter().cloned().collect();
                    assert_eq!(seen.len(), names.len(), "no row twice");
                    let missed: Vec<_> =
                        stays.iter().filter(|name| !seen.contains(*name) && !gone.contains(*name)).collect();
                    assert!(missed.is_empty(), "missed {missed:?}");
                }
                walks += 1;
            }
        });
        let mut taken = 0;
        for until in steps {
            projector.apply(&driver.records[taken..until]).expect("applied");
            taken = until;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        walks.join().expect("walked");
    });
}

#[test]
fn a_page_is_of_one_position_when_batches_leave_time() {
    // Each step moves the same plan: its replicas by phase always add up to the total in one read.
    let mut driver = TestDriver::new(57);
    driver.found(10, 2);
    driver.deploy(0, "deployment-1", 20);
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    let reader = projector.reader();
    for _ in 0..60 {
        driver.stir();
        driver.work(3);
        driver.seal();
        projector.catch_up().expect("caught up");
        let page = reader.list::<PlanRow>(&ListQuery::all()).expect("a page");
        assert_eq!(page.position, projector.position());
        for plan in page.items {
            let replicas = walk(&reader, RowKind::Replicas, &ListQuery::all().by("plan", &plan.name));
            let mut phases = BTreeMap::<String, u64>::new();
            for row in &replicas {
                *phases.entry(row["phase"].as_str().expect("a phase").into()).or_default() += 1;
            }
            phases.insert("total".into(), replicas.len() as u64);
            let counted: BTreeMap<_, _> =
                plan.replicas.into_iter().filter(|(word, n)| *n > 0 || word == "total").collect();
            assert_eq!(counted, phases);
        }
    }
}

#[test]
fn what_waits_for_a_placement_shows_why_and_the_store_holds_it_once() {
    let mut driver = TestDriver::new(58);
    driver.found(2, 1);
    driver.apply_node(0, 1);
    driver.apply_node(1, 1);
    driver.deploy(0, "deployment-1", 5);
    driver.settle();
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    projector.catch_up().expect("caught up");
    let reader = projector.reader();
    let because = "waits for placement: too little cpu (2 nodes)";
    let waiting = ListQuery::all().by("state", "preparing");
    let operations = reader.list::<OperationRow>(&waiting).expect("a page").items;
    assert_eq!(operations.len(), 3);
    assert!(operations.iter().all(|row| row.message == because), "{operations:?}");
    let replicas = reader.list::<ReplicaRow>(&ListQuery::all().by("phase", "pending")).expect("a page").items;
    assert_eq!(replicas.len(), 3);
    assert!(replicas.iter().all(|row| row.message == because), "{replicas:?}");
    let state = &projector.state().expect("a state").fleet;
    assert_eq!(crate::build_row::operation(state, operations[0].id).expect("a row").message, WAITS);
    let plan: PlanRow = reader.get(&"plan-0".parse().expect("a name")).expect("read").expect("present");
    assert_eq!((plan.message.as_str(), plan.replicas["running"]), (because, 2));
    driver.apply_node(0, 64);
    driver.settle();
    projector.catch_up().expect("caught up");
    let plan: PlanRow = reader.get(&"plan-0".parse().expect("a name")).expect("read").expect("present");
    assert_eq!((plan.message.as_str(), plan.unschedulable.len(), plan.replicas["running"]), ("", 0, 5));
}

#[test]
fn a_reader_that_waits_for_a_position_is_notified_of_it_and_of_the_end() {
    let mut driver = TestDriver::new(59);
    driver.found(2, 1);
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    let reader = projector.reader();
    let head = driver.records.last().expect("a record").last();
    assert_eq!(reader.applied().reaches(head), Ok(false));
    projector.catch_up().expect("caught up");
    assert_eq!((reader.applied().reaches(head), reader.applied().position), (Ok(true), head));
    driver.apply_node(1, 7);
    driver.seal();
    let next = driver.records.last().expect("a record").last();
    let mut task = std::pin::pin!(reader.watch().reached(next));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(task.as_mut().poll(&mut context).is_pending());
    projector.catch_up().expect("caught up");
    assert!(matches!(task.as_mut().poll(&mut context), Poll::Ready(Ok(applied)) if applied.position == next));
    let mut task = std::pin::pin!(reader.watch().reached(next.plus(1)));
    assert!(task.as_mut().poll(&mut context).is_pending());
    drop(projector);
    assert_eq!(reader.applied().reaches(next), Ok(true), "a reached position stays reached");
    let stopped = task.as_mut().poll(&mut context);
    assert!(matches!(stopped, Poll::Ready(Err(PositionWaitError::Stopped { .. }))), "{stopped:?}");
}

#[test]
fn what_no_executor_reports_is_shown_so_and_nothing_else_of_it_changes() {
    let mut driver = TestDriver::new(54);
    driver.found(8, 4);
    (0..400).for_each(|_| driver.stir());
    // One cluster loses its executor, the other has one.
    for cluster in ["east", "west"] {
        let hello = json!({ "cluster": cluster, "executor": format!("exec-{cluster}"), "runtime": "simulated", "store": "0000000000000001" });
        driver.see("session.requested.v1", &hello);
    }
    driver.seal();
    let dir = tempfile::tempdir().expect("a directory");
    let mut projector = open(dir.path(), &driver, None);
    projector.catch_up().expect("caught up");
    let reader = projector.reader();
    let all = |kind| walk(&reader, kind, &ListQuery::all().limit(100));
    let (incarnations, replicas) = (all(RowKind::Incarnations), all(RowKind::Replicas));
    assert!(incarnations.iter().chain(&replicas).all(|row| row["reachability"] == "known"));
    let east: ClusterRow = reader.get(&"east".parse().expect("a name")).expect("read").expect("a cluster");
    driver.see("session.ended.v1", &json!({ "session": east.session, "end": "expired" }));
    driver.seal();
    projector.catch_up().expect("caught up");
    let lost = |incarnation: &Value| {
        let is_over = ["reserved", "destroyed", "powered_off", "failed", "unwound"];
        incarnation["cluster"] == "east" && !is_over.iter().any(|word| incarnation["state"] == *word)
    };
    let mut wanted = incarnations.clone();
    for row in wanted.iter_mut().filter(|row| lost(row)) {
        row["reachability"] = "unknown".into();
        if row["message"] == "" {
            row["message"] = "no executor of cluster east is connected".into();
        }
    }
    assert_ne!(wanted, incarnations, "no incarnation runs in the cluster");
    assert_eq!(all(RowKind::Incarnations), wanted);
    let (mut known, mut unknown) = (0, 0);
    for row in all(RowKind::Replicas) {
        let is_lost = incarnations.iter().any(|of| of["id"] == row["incarnation"] && lost(of));
        assert_eq!(row["reachability"], if is_lost { "unknown" } else { "known" }, "{row}");
        *(if is_lost { &mut unknown } else { &mut known }) += 1;
    }
    assert!(known > 0 && unknown > 0, "{known} known, {unknown} unknown");
}
