//! Fleets on a real Kafka: producers and consumers that use only Kafka, and state that outlives a server.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_tests::fault_campaigns::CampaignKind;
use chancery_tests::fault_campaigns::evidence::records;
use chancery_tests::kafka::proxy::ProxyFaults;
use chancery_tests::kafka::{KafkaCluster, shared};
use chancery_tests::{
    ExecutorProcess, JournalBackend, ServerProcess, StandbyServers, payloads, program, until,
};
use serde_json::{Value, json};

const SCOPE: (&str, &str) = ("CHANCERY_INBOX_ALLOWED_INTENTS", "capability.*,cluster.apply");

fn kcat(args: &[&str], input: &str) -> String {
    let mut kcat = Command::new("kcat")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("kcat runs (on Debian: apt-get install kcat)");
    kcat.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("kcat reads");
    let output = kcat.wait_with_output().expect("kcat ends");
    assert!(output.status.success(), "kcat {args:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Events that consumers find, as kcat shows them.
fn exported(prefix: &str) -> Vec<Value> {
    let topic = format!("{prefix}.events");
    let text = kcat(&["-b", shared(1).bootstrap(), "-t", &topic, "-C", "-e", "-J", "-q"], "");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn header<'a>(event: &'a Value, name: &str) -> &'a str {
    let headers = event["headers"].as_array().expect("headers");
    let at = headers.iter().position(|header| header == name).unwrap_or_else(|| panic!("{name} in {event}"));
    headers[at + 1].as_str().expect("text")
}

/// Events of this type in the journal.
fn events_of(server: &ServerProcess, type_name: &str) -> Vec<Value> {
    let text = server.cli(&["events", "-o", "jsonl", "--types", type_name]);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_fleet_continues_where_its_last_server_was_killed_and_every_server_answers() {
    let mut standbys = StandbyServers::start(shared(1), "goes-on", 3, &[]);
    let decider = standbys.decider();
    let (other, third) = ((decider + 1) % 3, (decider + 2) % 3);
    let apply = json!({"name": "T", "spec": {"type": "T", "score": 1}});
    // Sent to a standby, and read from another standby at the returned position.
    let answer = standbys.servers[other].client().decided("key-1", "capability.apply", &apply);
    assert_eq!(answer.status, 201, "{}", answer.text);
    let position = answer.json()["position"].as_u64().expect("a position");
    let row = standbys.servers[third]
        .client()
        .get(&format!("/v1/fleets/default/capabilities/T?min_position={position}"));
    assert_eq!(row.status, 200, "{}", row.text);
    // An executor outside that knows all three servers.
    let directory = tempfile::tempdir().expect("a directory");
    let client = standbys.servers[other].client();
    chancery_tests::fault_campaigns::fleet::set_up(
        &client,
        &chancery_tests::fault_campaigns::fleet::sleeper(),
    );
    let mut executor = ExecutorProcess::start_for(directory.path(), &standbys.urls(), "e1", "--process");
    chancery_tests::fault_campaigns::fleet::deploy(&client, "d1", 3);
    client.wait_for("web", "running", 3);
    let before = payloads(directory.path());
    standbys.servers[decider].kill();
    let now = until("another server decides", || standbys.decides());
    assert_ne!(now, decider);
    // The same key gets the same verdict from every server.
    let again = until("the key is answered", || {
        let answer = standbys.servers[third].client().intent("key-1", "capability.apply", &apply);
        (answer.status == 201).then_some(answer)
    });
    assert_eq!(again.json()["position"].as_u64(), Some(position));
    chancery_tests::fault_campaigns::fleet::deploy(&standbys.servers[now].client(), "d2", 4);
    standbys.servers[now].client().wait_for("web", "running", 4);
    let after = payloads(directory.path());
    assert!(
        before.iter().all(|payload| after.contains(payload)),
        "no process was lost: {before:?} {after:?}"
    );
    chancery_tests::fault_campaigns::fleet::deploy(&standbys.servers[now].client(), "d3", 0);
    until("nothing runs", || payloads(directory.path()).is_empty().then_some(()));
    assert_eq!(executor.stop(), Some(0));
    standbys.servers[decider].start_again();
    for server in &mut standbys.servers {
        assert_eq!(server.stop(), Some(0), "{}", server.log());
    }
    let all: Vec<Vec<Arc<Record>>> =
        standbys.servers.iter().map(|server| records(server.data()).expect("a mirror")).collect();
    let shortest = all.iter().map(Vec::len).min().expect("three");
    assert!(all.iter().all(|records| records[..shortest] == all[0][..shortest]), "all have the same bytes");
    let checked = standbys.servers[0].cli(&["verify", standbys.servers[0].data().to_str().expect("a path")]);
    assert!(checked.contains("the chain holds"), "{checked}");
}

#[test]
fn messages_are_answered_once_and_bad_ones_are_refused_and_block_no_other() {
    let settings = [SCOPE, ("CHANCERY_INBOX_ACTOR", "mail")];
    let mut standbys = StandbyServers::start(shared(1), "messages", 2, &settings);
    let brokers = shared(1).bootstrap();
    let binary = |id: &str, type_name: &str, data: &str| {
        let headers = [
            "ce_specversion=1.0".to_owned(),
            format!("ce_id={id}"),
            "ce_source=elsewhere".into(),
            format!("ce_type=dev.chancery.{type_name}.v1"),
            "content-type=application/json".into(),
        ];
        let mut args = vec!["-b", brokers, "-t", "messages.inbox", "-P", "-p", "0"];
        for header in &headers {
            args.extend(["-H", header]);
        }
        kcat(&args, data);
    };
    let capability = |name: &str| json!({"name": name, "spec": {"type": "T", "score": 1}}).to_string();
    binary("a", "capability.apply", &capability("one"));
    binary("a", "capability.apply", &capability("one"));
    let structured = json!({
        "specversion": "1.0", "id": "b", "source": "elsewhere", "type": "dev.chancery.capability.apply.v1",
        "datacontenttype": "application/json", "actor": "mallory", "data": {"name": "two", "spec": {"type": "T", "score": 2}},
    });
    let args = [
        "-b",
        brokers,
        "-t",
        "messages.inbox",
        "-P",
        "-p",
        "0",
        "-H",
        "content-type=application/cloudevents+json",
    ];
    kcat(&args, &structured.to_string());
    kcat(&["-b", brokers, "-t", "messages.inbox", "-P", "-p", "0"], "no CloudEvent at all");
    binary("c", "capability.invent", "{}");
    binary("d", "capability.apply", "{\"name\": ");
    binary("e", "plan.delete", "{\"name\": \"web\"}");
    binary("f", "operation.approve", "{\"operations\": []}");
    let decider = standbys.decider();
    let server = &standbys.servers[decider];
    until("the last inbox message is answered", || {
        (events_of(server, "operation.approve.v1").len() == 1).then_some(())
    });
    assert_eq!(events_of(server, "capability.apply.v1").len(), 2, "each asked for once");
    let applied = events_of(server, "capability.apply.v1");
    assert!(applied.iter().all(|event| event["actor"] == "mail"), "{applied:?}");
    assert_eq!(applied[1]["claimedactor"], "mallory");
    let refused = events_of(server, "inbox.message_refused.v1");
    assert_eq!(refused.len(), 3, "{refused:?}");
    let denied = events_of(server, "intent.refused.v1");
    assert!(denied.len() == 2 && denied.iter().all(|event| event["data"]["code"] == "denied"), "{denied:?}");
    // Sent again, and the leader dies: the next leader knows the verdict.
    standbys.servers[decider].kill();
    binary("a", "capability.apply", &capability("one"));
    binary("g", "capability.apply", &capability("three"));
    let now = until("another server decides", || standbys.decides());
    let server = &standbys.servers[now];
    until("the last inbox message is answered", || {
        (events_of(server, "capability.apply.v1").len() == 3).then_some(())
    });
    let row = server.client().get("/v1/fleets/default/capabilities/one").json();
    assert_eq!(row["version"], 1, "{row}");
}

#[test]
fn messages_that_arrive_slowly_after_a_takeover_are_all_answered() {
    let cluster = KafkaCluster::start_with_proxies(1);
    let settings = [SCOPE, ("CHANCERY_INBOX_ACTOR", "mail")];
    let mut standbys = StandbyServers::start(&cluster, "slow", 1, &settings);
    standbys.servers[0].kill();
    for i in 0..20 {
        let name = format!("message-{i}");
        let event = json!({
            "specversion": "1.0", "id": name, "source": "elsewhere", "type": "dev.chancery.capability.apply.v1",
            "datacontenttype": "application/json", "data": {"name": name, "spec": {"type": "T", "score": 1}},
        });
        let type_is = "content-type=application/cloudevents+json";
        kcat(
            &["-b", cluster.bootstrap(), "-t", "slow.inbox", "-P", "-p", "0", "-H", type_is],
            &event.to_string(),
        );
    }
    // Longer than any time after which a reader might take an empty poll for the topic's end. Below the 4 s
    // after which a client abandons a fetch and retries.
    cluster.set_faults(ProxyFaults { slow_fetches: Duration::from_secs(3), ..ProxyFaults::default() });
    standbys.servers[0].start_again();
    standbys.decider();
    // Recorded after all messages: once this intent is answered, no further message arrives.
    standbys.servers[0]
        .client()
        .must("capability.apply", &json!({"name": "over-http", "spec": {"type": "T", "score": 1}}));
    until("the inbox messages are answered", || {
        (events_of(&standbys.servers[0], "capability.apply.v1").len() == 21).then_some(())
    });
    assert!(events_of(&standbys.servers[0], "inbox.message_refused.v1").is_empty());
}

#[test]
fn a_message_with_a_header_name_that_is_not_utf_8_is_refused_and_blocks_no_other() {
    let settings = [SCOPE, ("CHANCERY_INBOX_ACTOR", "mail")];
    let standbys = StandbyServers::start(shared(1), "header-names", 1, &settings);
    let kcat_message = |headers: &[&OsStr], value: &str| {
        let mut kcat = Command::new("kcat")
            .args(["-b", shared(1).bootstrap(), "-t", "header-names.inbox", "-P", "-p", "0"])
            .args(headers.iter().flat_map(|header| [OsStr::new("-H"), *header]))
            .stdin(Stdio::piped())
            .spawn()
            .expect("kcat runs");
        kcat.stdin.take().expect("it is piped").write_all(value.as_bytes()).expect("kcat reads");
        assert!(kcat.wait().expect("kcat ends").success());
    };
    let event = |name: &str| {
        json!({
            "specversion": "1.0", "id": name, "source": "elsewhere", "type": "dev.chancery.capability.apply.v1",
            "datacontenttype": "application/json", "data": {"name": name, "spec": {"type": "T", "score": 1}},
        })
        .to_string()
    };
    let good = OsStr::new("content-type=application/cloudevents+json");
    let bad = OsStr::from_bytes(b"na\xffme=value");
    kcat_message(&[good, bad], &event("bad"));
    kcat_message(&vec![bad; 2000], &event("worse"));
    kcat_message(&[good], &event("good"));
    let server = &standbys.servers[standbys.decider()];
    until("the inbox message behind is answered", || {
        (events_of(server, "capability.apply.v1").len() == 1).then_some(())
    });
    let refused = events_of(server, "inbox.message_refused.v1");
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused.iter().all(|event| event.to_string().contains("must be UTF-8")), "{refused:?}");
    // The client library panics at such a name, and each panic is in the log: once for a message.
    let panics = server.log().matches("panicked at").count();
    assert!((1..10).contains(&panics), "{panics} panics for two messages");
    assert_eq!(server.client().get("/readyz").status, 200);
    // The exporter reads headers as well: a foreign message in the events topic does not stop it.
    let mut kcat = Command::new("kcat")
        .args(["-b", shared(1).bootstrap(), "-t", "header-names.events", "-P", "-p", "0", "-H"])
        .arg(bad)
        .stdin(Stdio::piped())
        .spawn()
        .expect("kcat runs");
    kcat.stdin.take().expect("it is piped").write_all(b"{}").expect("kcat reads");
    assert!(kcat.wait().expect("kcat ends").success());
}

#[test]
fn a_server_whose_brokers_are_away_ends_soon_when_it_is_stopped() {
    let cluster = KafkaCluster::start_with_proxies(1);
    let mut standbys = StandbyServers::start(&cluster, "away", 1, &[SCOPE, ("CHANCERY_INBOX_ACTOR", "mail")]);
    let server = &mut standbys.servers[0];
    server.client().must("capability.apply", &json!({"name": "a", "spec": {"type": "T", "score": 1}}));
    cluster.set_faults(ProxyFaults { cuts: true, ..ProxyFaults::default() });
    until("the server reports that no broker answers", || {
        let answer = server.client().get("/readyz");
        (answer.status == 503
            && answer.text.contains("journal: cannot read topic: the brokers do not answer"))
        .then_some(())
    });
    // A client waits for an answer that cannot arrive.
    let client = server.client();
    let asking = std::thread::spawn(move || {
        client.intent("b", "capability.apply", &json!({"name": "b", "spec": {"type": "T", "score": 1}}))
    });
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let answer = asking.join().expect("it is answered");
    assert!(answer.status >= 500, "{}: {}", answer.status, answer.text);
}

#[test]
fn a_server_that_forwards_ends_soon_when_it_is_stopped_though_no_answer_arrives() {
    let cluster = KafkaCluster::start_with_proxies(1);
    let mut standbys = StandbyServers::start(&cluster, "unanswered", 2, &[]);
    let follower = 1 - standbys.decider();
    let follower = &mut standbys.servers[follower];
    follower.client().must("capability.apply", &json!({"name": "a", "spec": {"type": "T", "score": 1}}));
    cluster.set_faults(ProxyFaults { cuts: true, ..ProxyFaults::default() });
    // The leader has the request, and cannot record it.
    let client = follower.client();
    let asking = std::thread::spawn(move || {
        client.intent("b", "capability.apply", &json!({"name": "b", "spec": {"type": "T", "score": 1}}))
    });
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    follower.stop();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let answer = asking.join().expect("it is answered");
    assert!(answer.status >= 500 && answer.text.contains("unknown_outcome"), "{answer:?}");
}

#[test]
fn a_server_whose_journal_topic_is_deleted_ends_and_reports_why() {
    let mut standbys = StandbyServers::start(shared(1), "deleted", 2, &[]);
    shared(1).tool("kafka-topics", &["--delete", "--topic", "deleted.journal"]);
    for server in &mut standbys.servers {
        let status = until("the server ends", || server.ended());
        assert!(!status.success(), "{status}");
        assert!(server.log().contains("the topic or the partition was deleted"), "{}", server.log());
    }
}

#[test]
fn consumers_find_every_event_once_and_in_order_also_after_a_takeover() {
    let mut standbys = StandbyServers::start(shared(1), "consumed", 2, &[]);
    let ask = |standbys: &StandbyServers, at: usize, from: u64, to: u64| {
        for i in from..to {
            let data = json!({"name": format!("c{i}"), "spec": {"type": "T", "score": i}});
            standbys.servers[at].client().must("capability.apply", &data);
        }
    };
    let decider = standbys.decider();
    ask(&standbys, decider, 0, 20);
    standbys.servers[decider].kill();
    let now = until("another server decides", || standbys.decides());
    ask(&standbys, now, 20, 40);
    until("all are there to be read", || {
        (standbys.servers[now].client().items("capabilities?limit=100").len() == 40).then_some(())
    });
    let events = until("the last event is exported", || {
        let events = exported("consumed");
        events.iter().any(|event| header(event, "ce_subject") == "capability/c39").then_some(events)
    });
    let mut next = 1;
    for event in &events {
        let id: u64 = header(event, "ce_id").parse().expect("a number");
        // At-least-once delivery: a repeated event is not above the last.
        assert!(id <= next, "{id} after {next}: {event}");
        if id == next {
            next += 1;
            assert_eq!(header(event, "content-type"), "application/json");
            let source = format!("/lineages/{}/fleets/default", header(event, "ce_lineage"));
            assert_eq!(header(event, "ce_source"), source);
            assert!(header(event, "ce_type").starts_with("dev.chancery."));
            let _: Value = serde_json::from_str(event["payload"].as_str().expect("data")).expect("JSON");
        }
    }
    assert!(Position::new(next) > Position::new(100), "only {next} events");
}

#[test]
fn unsafe_topics_are_refused_and_named_with_what_fixes_them() {
    let journal = format!("kafka://{}/unsafe", shared(1).bootstrap());
    let run = |args: &[&str]| Command::new(program()).args(args).output().expect("the program runs");
    let missing = run(&["doctor", "--journal", &journal]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("try: chancery init-topics"), "{missing:?}");
    let few = run(&["init-topics", "--journal", &journal]);
    assert!(String::from_utf8_lossy(&few.stderr).contains("the cluster has 1 broker\n"), "{few:?}");
    let made = run(&["init-topics", "--journal", &journal, "--replication-factor", "1"]);
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(text.contains("unsafe.journal: created, 1 partition, 1 copy"), "{text}");
    let again = run(&["init-topics", "--journal", &journal, "--replication-factor", "1"]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("unsafe.journal: exists"), "{again:?}");
    let doctor = run(&["doctor", "--journal", &journal]);
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert_eq!(doctor.status.code(), Some(1));
    assert!(
        text.contains("min.insync.replicas is 1, and must be 2") && text.contains("kafka-configs"),
        "{text}"
    );
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().to_str().expect("a path");
    let refused = run(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data, "--journal", &journal]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("and must be"), "{refused:?}");
}

#[test]
fn faults_of_servers_brokers_topics_and_clocks_lose_nothing_and_decide_nothing_twice() {
    // The first 19 of the 23 faults: the campaign plays the others, including an unclean election. One test,
    // because two fleets of three brokers alongside the other tests are more than two cores can do in time.
    let (tally, ran) = CampaignKind::Takeovers.run(JournalBackend::ThreeBrokers, 19, 0);
    println!("{tally:?}");
    ran.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((tally.rounds, tally.lost, tally.decided_twice, tally.violations), (19, 0, 0, 0));
    assert_eq!(tally.faults.len(), 19, "one of each kind");
    assert!(tally.acknowledged > 100, "only {} intents were acknowledged", tally.acknowledged);
}
