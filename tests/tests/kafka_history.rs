//! Same history, same results, wherever the journal is: in a directory, on one broker, on three; moved there
//! or back.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::record::{Record, RecordHash};
use chancery_journal::kafka::{KafkaClient, KafkaJournal, KafkaOptions};
use chancery_journal::segments::{self, SegmentJournal};
use chancery_journal::{ChainCursor, DeliverySink, Journal};
use chancery_projector::{ListQuery, Projector, RowKind, StoreTuning};
use chancery_tests::fault_campaigns::fleet::{by_hand, deploy, set_up, sleeper};
use chancery_tests::kafka::{KafkaCluster, shared};
use chancery_tests::{ExecutorProcess, ServerProcess, StandbyServers, TestClient, payloads, program, until};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Value, json};
use tempfile::TempDir;

fn nowhere() -> DeliverySink {
    Box::new(|_| ())
}

fn name_of(row: &Value) -> &str {
    row["name"].as_str().expect("a name")
}

/// Produces many kinds of events: `client` returns a client of the leader, `harm` kills the leader.
fn live(
    client: &dyn Fn() -> TestClient,
    harm: &mut dyn FnMut(),
    executor: &mut ExecutorProcess,
    directory: &Path,
) {
    let now = client();
    set_up(&now, &sleeper());
    by_hand(&now, &sleeper());
    now.must("capability.apply", &json!({"name": "T", "spec": {"type": "T", "score": 3}}));
    deploy(&now, "d1", 4);
    let running = now.wait_for("web", "running", 4);
    now.must("deployment.create", &json!({"plan": "hand", "name": "h1", "spec": {"count": 2}}));
    let waiting = until("two wait for approval", || {
        let waiting = now.items("operations?state=pending_approval");
        (waiting.len() == 2).then_some(waiting)
    });
    let reject = json!({"operations": [waiting[0]["id"]], "reason": "not this one"});
    let shown = json!({"operation": waiting[1]["id"], "hash": waiting[1]["hash"]});
    now.must("operation.approve", &json!({"operations": [shown]}));
    now.wait_for("hand", "running", 1);
    now.must("operation.reject", &reject);
    // Refusals are in the journal too.
    let bad = json!({"plan": "nothing", "name": "d9", "spec": {"count": 1}});
    for (key, type_name, data) in [
        ("bad-1", "deployment.create", &bad),
        ("bad-1", "replica.stop", &json!({"name": name_of(&running[0])})),
        ("bad-2", "operation.reject", &reject),
    ] {
        let answer = now.decided(key, type_name, data);
        assert!((400..500).contains(&answer.status), "{type_name}: {}", answer.text);
    }
    now.must("replica.stop", &json!({"name": name_of(&running[0])}));
    now.must("replica.stop", &json!({"name": name_of(&running[1])}));
    now.wait_for("web", "stopped", 2);
    now.must("replica.start", &json!({"name": name_of(&running[0])}));
    now.must("replica.delete", &json!({"name": name_of(&running[1])}));
    now.wait_for("web", "running", 3);
    // An executor dies while a deployment is requested; then a payload dies, then the leader.
    executor.kill();
    deploy(&now, "d2", 6);
    executor.start_again();
    now.wait_for("web", "running", 6);
    let victim = payloads(directory).first().expect("something runs").pid;
    let victim = rustix::process::Pid::from_raw(i32::try_from(victim).expect("a pid")).expect("a pid");
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).expect("it can be killed");
    until("its end is known", || (!now.items("incarnations?state=failed").is_empty()).then_some(()));
    harm();
    let now = client();
    deploy(&now, "d3", 2);
    now.wait_for("web", "running", 2);
    now.must("deployment.create", &json!({"plan": "hand", "name": "h2", "spec": {"count": 0}}));
    until("nothing of it is left", || {
        now.approve_all();
        now.items("replicas?plan=hand").is_empty().then_some(())
    });
}

/// Results that a journal produces.
#[derive(PartialEq, Debug)]
struct JournalResults {
    head: ChainCursor,
    /// Hash of the state that a snapshot would contain.
    state: RecordHash,
    /// Pages of rows by kind.
    rows: BTreeMap<&'static str, Vec<String>>,
    verified: Value,
}

/// Reads the results of the journal in a directory, which `open` opens.
fn results(dir: &Path, open: impl FnOnce() -> Box<dyn Journal>) -> (JournalResults, Vec<Arc<Record>>) {
    let journal = open();
    let source = journal.source();
    let directory = tempfile::tempdir().expect("a directory");
    let mut projector = Projector::open(
        &directory.path().join("rows"),
        "default",
        Arc::clone(&source),
        None,
        StoreTuning::default(),
    )
    .expect("rows");
    projector.catch_up().expect("folded");
    let (head, state) = {
        let state = projector.state().expect("a state");
        (state.at, state.hash().expect("a hash"))
    };
    let reader = projector.reader();
    let mut rows = BTreeMap::new();
    for kind in RowKind::ALL {
        let (mut of, mut query) = (Vec::new(), ListQuery::all().limit(1000));
        loop {
            let page = reader.list_json(*kind, &query).expect("a page");
            of.push(page.start);
            match page.next {
                Some(next) => query = ListQuery::all().limit(1000).after(next),
                None => break,
            }
        }
        rows.insert(kind.word(), of);
    }
    assert_eq!(journal.head(), Some(head));
    let records = source.records(Position::FIRST).expect("readable");
    let records = records.map(|record| record.expect("a record")).collect();
    drop((projector, reader, source));
    journal.close().expect("closed");
    let output = Command::new(program()).args(["-o", "json", "verify"]).arg(dir).output().expect("it runs");
    let mut verified: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let about = verified.as_object_mut().expect("an object");
    for place in ["directory", "segments", "open"] {
        about.remove(place).expect("the field exists");
    }
    (JournalResults { head, state, rows, verified }, records)
}

fn in_a_directory(dir: &Path) -> (JournalResults, Vec<Arc<Record>>) {
    let options = segments::SegmentOptions::new(dir, "default");
    results(dir, || Box::new(SegmentJournal::open(&options, nowhere()).expect("open").0))
}

/// Reads a journal on Kafka like a server without a mirror. Also returns the number of invalid records.
fn on_kafka(cluster: &KafkaCluster, prefix: &str) -> (JournalResults, Vec<Arc<Record>>, u64) {
    let directory = tempfile::tempdir().expect("a directory");
    let client = KafkaClient::new(cluster.bootstrap(), BTreeMap::new()).expect("a client");
    let options = KafkaOptions::new(client, &format!("{prefix}.journal"), 0, directory.path(), "default");
    let mut skipped = 0;
    let (gives, records) = results(directory.path(), || {
        let (journal, opened) = KafkaJournal::open(&options, nowhere()).expect("open");
        skipped = opened.skipped;
        Box::new(journal)
    });
    (gives, records, skipped)
}

fn run(args: &[&str]) {
    let output = Command::new(program())
        .args(args)
        .env("CHANCERY_KAFKA_ALLOW_UNSAFE_TOPICS", "yes")
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_a_server_alone_wrote_gives_the_same_on_one_broker_and_on_three() {
    let mut server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    server.stay_at_this_address();
    let mut executor = ExecutorProcess::start_within(&server, "e1", "--process");
    let server = std::cell::RefCell::new(server);
    let directory = server.borrow().directory().to_owned();
    let mut harm = || {
        server.borrow_mut().kill();
        server.borrow_mut().start_again();
    };
    live(&|| server.borrow().client(), &mut harm, &mut executor, &directory);
    let mut server = server.into_inner();
    assert_eq!(server.stop(), Some(0));
    assert_eq!(executor.stop(), Some(0));
    let journal = server.data().join("fleets/default/journal");
    let (wanted, records) = in_a_directory(&journal);
    assert_eq!((&wanted.verified["terms"], &wanted.verified["holds"]), (&json!(2), &json!(true)));
    assert!(wanted.rows.values().filter(|pages| pages[0] != "[]").count() > 5, "{:?}", wanted.rows);
    for brokers in [1, 3] {
        let (cluster, copies) = (shared(brokers), brokers.to_string());
        let url = format!("kafka://{}/history-{brokers}", cluster.bootstrap());
        run(&["init-topics", "--journal", &url, "--replication-factor", &copies]);
        run(&["import", server.data().to_str().expect("a path"), "--journal", &url]);
        // As if that topic were lost.
        std::fs::remove_file(journal.join("kafka.json")).expect("a mirror");
        let (found, same, skipped) = on_kafka(cluster, &format!("history-{brokers}"));
        assert_eq!(skipped, 0);
        assert!(same == records, "the same bytes on {brokers}");
        assert_eq!(found, wanted, "on {brokers}");
    }
    assert_eq!(in_a_directory(&journal).0, wanted, "the directory is unchanged");
}

#[test]
fn what_servers_on_kafka_wrote_gives_the_same_in_a_directory() {
    let prefix = "history-back";
    let standbys = std::cell::RefCell::new(StandbyServers::start(shared(1), prefix, 2, &[]));
    let directory = tempfile::tempdir().expect("a directory");
    let mut executor =
        ExecutorProcess::start_for(directory.path(), &standbys.borrow().urls(), "e1", "--process");
    let noise = |bytes: &[u8]| {
        let client = KafkaClient::new(shared(1).bootstrap(), BTreeMap::new()).expect("a client");
        let producer: BaseProducer = client.producer(Duration::from_secs(20)).create().expect("a producer");
        let topic = format!("{prefix}.journal");
        let record = BaseRecord::<(), [u8]>::to(&topic).partition(0).payload(bytes);
        producer.send(record).map_err(|(error, _)| error).expect("the queue has capacity");
        producer.flush(Duration::from_secs(20)).expect("written");
    };
    let mut harm = || {
        let mut standbys = standbys.borrow_mut();
        let decider = standbys.decider();
        noise(b"what is no record");
        standbys.servers[decider].kill();
        until("another server decides", || standbys.decides());
        standbys.servers[decider].start_again();
    };
    let client = || {
        let standbys = standbys.borrow();
        standbys.servers[standbys.decider()].client()
    };
    live(&client, &mut harm, &mut executor, directory.path());
    let mut standbys = standbys.into_inner();
    assert_eq!(executor.stop(), Some(0));
    for server in &mut standbys.servers {
        assert_eq!(server.stop(), Some(0), "{}", server.log());
    }
    let (wanted, records, skipped) = on_kafka(shared(1), prefix);
    assert!(skipped > 0, "invalid records do not count");
    assert!(wanted.verified["terms"].as_u64() >= Some(2), "{}", wanted.verified);
    let directory: TempDir = tempfile::tempdir().expect("a directory");
    let (journal, _) =
        SegmentJournal::open(&segments::SegmentOptions::new(directory.path(), "default"), nowhere())
            .expect("open");
    for record in &records {
        journal.append((**record).clone()).expect("appended");
    }
    journal.close().expect("closed");
    let (found, same) = in_a_directory(directory.path());
    assert!(same == records, "the same bytes");
    assert_eq!(found, wanted);
}
