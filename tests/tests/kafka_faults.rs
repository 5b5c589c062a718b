//! Effects of foreign clients and damaged disks on a fleet's topics, and what servers report.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chancery_tests::kafka::batch::StoredBatch;
use chancery_tests::kafka::shared;
use chancery_tests::{ServerProcess, StandbyServers, program, until};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rustix::process::Signal;
use serde_json::{Value, json};

const SETTINGS: [(&str, &str); 2] =
    [("CHANCERY_INBOX_ALLOWED_INTENTS", "capability.*"), ("CHANCERY_INBOX_ACTOR", "mail")];
/// Time that a client waits for brokers.
const PATIENCE: Duration = Duration::from_secs(30);

fn config() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", shared(1).bootstrap());
    config
}

/// Sends an inbox message that applies a capability of this name.
fn put(producer: &BaseProducer, inbox: &str, name: &str) {
    let event = json!({
        "specversion": "1.0", "id": name, "source": "elsewhere", "type": "dev.chancery.capability.apply.v1",
        "datacontenttype": "application/json", "data": {"name": name, "spec": {"type": "T", "score": 1}},
    });
    let media = Header { key: "content-type", value: Some("application/cloudevents+json") };
    let text = event.to_string();
    let record = BaseRecord::<(), str>::to(inbox).partition(0).payload(&text);
    producer
        .send(record.headers(OwnedHeaders::new().insert(media)))
        .map_err(|(error, _)| error)
        .expect("sent");
    producer.flush(PATIENCE).expect("acknowledged");
}

fn producer(codec: &str) -> BaseProducer {
    config().set("compression.type", codec).create().expect("a producer")
}

/// Waits until the server reports this part as blocked. Returns the report.
fn is_blocked(server: &ServerProcess, part: &str) -> String {
    until("a part is blocked", || {
        let answer = server.client().get("/readyz");
        (answer.status == 503 && answer.text.contains("fleet_blocked") && answer.text.contains(part))
            .then_some(answer.text)
    })
}

fn is_ready(server: &ServerProcess) {
    until("the server is ready", || (server.client().get("/readyz").status == 200).then_some(()));
}

/// Events of this type in the journal.
fn events_of(server: &ServerProcess, type_name: &str) -> Vec<Value> {
    let text = server.cli(&["events", "-o", "jsonl", "--types", type_name]);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn names(server: &ServerProcess) -> Vec<String> {
    let events = events_of(server, "capability.applied.v1");
    events.iter().map(|event| event["data"]["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn messages_of_every_codec_are_answered() {
    let standbys = StandbyServers::start(shared(1), "codecs", 1, &SETTINGS);
    let codecs = ["none", "gzip", "snappy", "lz4", "zstd"];
    for codec in codecs {
        put(&producer(codec), "codecs.inbox", codec);
    }
    until("all are answered", || (names(&standbys.servers[0]).len() == codecs.len()).then_some(()));
    assert_eq!(names(&standbys.servers[0]), codecs);
}

/// Checks that the unreadable second of three messages blocks the inbox until it is skipped.
fn blocks_until_it_is_skipped(prefix: &str, harm: fn(&StoredBatch)) {
    let mut standbys = StandbyServers::start(shared(1), prefix, 1, &SETTINGS);
    assert_eq!(standbys.servers[0].stop(), Some(0));
    let topic = format!("{prefix}.inbox");
    for name in ["first", "broken", "behind"] {
        put(&producer("none"), &topic, name);
    }
    harm(&StoredBatch::find(shared(1), 1, &topic, "broken").expect("the broker has it"));
    standbys.servers[0].start_again();
    let server = &standbys.servers[0];
    let why = is_blocked(server, "inbox");
    assert!(why.contains("offset 1") && why.contains("chancery inbox skip 1"), "{why}");
    assert_eq!(names(server), ["first"], "no message after it is read");
    let refused = server.run(&["inbox", "skip", "0"]);
    assert!(!refused.status.success());
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("the inbox is blocked at offset 1"), "{refused}");
    assert_eq!(server.cli(&["inbox", "skip", "1"]), "inbox message 1 skipped\n");
    until("the message behind it is answered", || (names(server) == ["first", "behind"]).then_some(()));
    let skipped = events_of(server, "inbox.skipped.v1");
    assert!(skipped.len() == 1 && skipped[0]["data"]["offset"] == 1, "{skipped:?}");
    is_ready(server);
    // The next leader does not meet the message again.
    assert_eq!(standbys.servers[0].stop(), Some(0));
    standbys.servers[0].start_again();
    let server = &standbys.servers[0];
    is_ready(server);
    assert_eq!(names(server).len(), 2);
}

#[test]
fn a_message_whose_bytes_are_damaged_blocks_the_inbox_until_it_is_skipped() {
    blocks_until_it_is_skipped("damaged", StoredBatch::damage);
}

#[test]
fn a_message_of_an_unknown_codec_blocks_the_inbox_until_it_is_skipped() {
    blocks_until_it_is_skipped("unknown-codec", StoredBatch::set_unknown_codec);
}

/// Sends a message in a transaction, and aborts the transaction: its message and its end have an offset each.
fn abort(topic: &str) {
    let producer: BaseProducer = config().set("transactional.id", topic).create().expect("a producer");
    producer.init_transactions(PATIENCE).expect("it starts");
    producer.begin_transaction().expect("it starts");
    let record = BaseRecord::<(), str>::to(topic).partition(0).payload("aborted");
    producer.send(record).map_err(|(error, _)| error).expect("sent");
    producer.flush(PATIENCE).expect("acknowledged");
    producer.abort_transaction(PATIENCE).expect("it is aborted");
}

#[test]
fn offsets_without_a_message_are_skipped_before_one_that_cannot_be_read() {
    let mut standbys = StandbyServers::start(shared(1), "no-message", 1, &SETTINGS);
    assert_eq!(standbys.servers[0].stop(), Some(0));
    put(&producer("none"), "no-message.inbox", "first");
    abort("no-message.inbox");
    for name in ["broken", "behind"] {
        put(&producer("none"), "no-message.inbox", name);
    }
    StoredBatch::find(shared(1), 1, "no-message.inbox", "broken")
        .expect("the broker has it")
        .set_unknown_codec();
    standbys.servers[0].start_again();
    let server = &standbys.servers[0];
    for offset in 1..=3 {
        let hint = format!("cannot continue inbox at offset {offset}: ");
        until("the next offset is named", || {
            server.client().get("/readyz").text.contains(&hint).then_some(())
        });
        assert_eq!(names(server), ["first"], "nothing behind it is taken");
        assert_eq!(
            server.cli(&["inbox", "skip", &offset.to_string()]),
            format!("inbox message {offset} skipped\n")
        );
    }
    until("what is behind it is answered", || (names(server) == ["first", "behind"]).then_some(()));
    let skipped = events_of(server, "inbox.skipped.v1");
    let offsets: Vec<_> = skipped.iter().map(|event| event["data"]["offset"].clone()).collect();
    assert_eq!(offsets, [1, 2, 3]);
    is_ready(server);
}

#[test]
fn unreadable_and_missing_messages_are_skipped_by_a_flag_at_the_start() {
    let mut standbys = StandbyServers::start(shared(1), "given-up", 1, &SETTINGS);
    let server = &mut standbys.servers[0];
    assert_eq!(server.stop(), Some(0));
    for name in ["removed", "deadly", "behind"] {
        put(&producer("none"), "given-up.inbox", name);
    }
    let before =
        json!({"version": 1, "partitions": [{"topic": "given-up.inbox", "partition": 0, "offset": 1}]});
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), before.to_string()).expect("it is written");
    let path = file.path().to_str().expect("a path");
    shared(1).tool("kafka-delete-records", &["--offset-json-file", path]);
    // The server may end before or after its start is seen.
    for (flags, why) in [(&[][..], "--skip-inbox 0"), (&["--skip-inbox", "3"], "cannot skip inbox message 3")]
    {
        if server.try_start(flags).is_ok() {
            assert!(!until("the server ends", || server.ended()).success());
        }
        assert!(server.log().contains(why), "{}", server.log());
    }
    server.start_with_flags(&["--skip-inbox", "1"]);
    until("the message behind it is answered", || (names(server) == ["behind"]).then_some(()));
    is_ready(server);
    for restart in 0..2 {
        let skipped = events_of(server, "inbox.skipped.v1");
        assert!(skipped.len() == 1 && skipped[0]["data"]["offset"] == 1, "{skipped:?}");
        assert_eq!(names(server), ["behind"]);
        assert_eq!(server.stop(), Some(0));
        // The flag skips nothing more at another start.
        server.start_with_flags(if restart == 0 { &["--skip-inbox", "1"] } else { &[] });
        is_ready(server);
    }
}

/// Leaves a transaction open, with a message on partition 0 of the topic.
fn leave_open(topic: &str) {
    let mut config = config();
    config.set("transactional.id", topic).set("transaction.timeout.ms", "600000");
    let producer: BaseProducer = config.create().expect("a producer");
    producer.init_transactions(PATIENCE).expect("it starts");
    producer.begin_transaction().expect("it starts");
    let record = BaseRecord::<(), str>::to(topic).partition(0).payload("left open");
    producer.send(record).map_err(|(error, _)| error).expect("sent");
    producer.flush(PATIENCE).expect("acknowledged");
    // The brokers keep the transaction, as nothing ends it.
}

#[test]
fn an_open_transaction_is_named_and_everything_continues_when_it_ends() {
    let standbys = StandbyServers::start(shared(1), "left-open", 1, &SETTINGS);
    let server = &standbys.servers[0];
    let end = |topic: &str, why: &str| {
        let (_, rest) = why.split_once("--start-offset ").expect("it is named");
        let offset: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let args = ["abort", "--topic", topic, "--partition", "0", "--start-offset", &offset];
        shared(1).tool("kafka-transactions", &args);
    };
    leave_open("left-open.inbox");
    put(&producer("none"), "left-open.inbox", "behind");
    let why = is_blocked(server, "inbox: a transaction is open since offset 0");
    assert!(names(server).is_empty(), "the message behind it waits");
    end("left-open.inbox", &why);
    until("the message behind it is answered", || (names(server) == ["behind"]).then_some(()));
    is_ready(server);

    leave_open("left-open.journal");
    let why = is_blocked(server, "journal: a transaction is open since offset");
    end("left-open.journal", &why);
    until("an intent is acknowledged", || {
        let data = json!({"name": "again", "spec": {"type": "T", "score": 1}});
        (server.client().intent("again", "capability.apply", &data).status / 100 == 2).then_some(())
    });
    is_ready(server);
}

#[test]
fn a_foreign_member_that_takes_the_partition_is_named_and_its_end_is_that_of_the_trouble() {
    let standbys = StandbyServers::start(shared(1), "captured", 1, &SETTINGS);
    let server = &standbys.servers[0];
    let stop = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&stop);
    let foreign: BaseConsumer = config()
        .set("group.id", "captured.inbox.deciders.0")
        .set("client.id", "a stranger")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .create()
        .expect("a consumer");
    foreign.subscribe(&["captured.inbox"]).expect("it joins");
    let member = std::thread::spawn(move || {
        while !stops.load(Ordering::Relaxed) {
            let _ = foreign.poll(Duration::from_millis(100));
        }
    });
    // A member that is silent past its session loses its partitions.
    until("it has joined", || {
        let members = shared(1).tool("kafka-consumer-groups", &["--describe", "--members", "--all-groups"]);
        members.contains("a stranger").then_some(())
    });
    server.signal(Signal::STOP);
    until("the stranger has the partition", || {
        let group = ["--describe", "--group", "captured.inbox.deciders.0"];
        let members = shared(1).tool("kafka-consumer-groups", &group);
        members
            .lines()
            .any(|line| line.contains("captured.inbox") && line.contains("a stranger"))
            .then_some(())
    });
    server.signal(Signal::CONT);
    let why = is_blocked(server, "no leader");
    assert!(why.contains("a stranger") && why.contains("no server of the fleet"), "{why}");
    let metrics = server.client().get("/metrics").text;
    assert!(metrics.contains("chancery_trouble{fleet=\"default\",part=\"election\"} 1"), "{metrics}");
    let doctor = Command::new(program()).args(["doctor", "--journal", standbys.journal()]).output();
    let doctor = doctor.expect("the program runs");
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        doctor.contains("a stranger at") && doctor.contains("the client is no server of the fleet"),
        "{doctor}"
    );
    stop.store(true, Ordering::Relaxed);
    member.join().expect("it does not panic");
    is_ready(server);
}

#[test]
fn an_import_that_is_killed_while_a_server_decides_changes_nothing() {
    let standbys = StandbyServers::start(shared(1), "deciding", 1, &SETTINGS);
    let server = &standbys.servers[0];
    let mut other = ServerProcess::start();
    other.client().must("capability.apply", &json!({"name": "other", "spec": {"type": "T", "score": 1}}));
    assert_eq!(other.stop(), Some(0));
    for round in 0..8 {
        let mut import = Command::new(program())
            .args(["import", "--journal", standbys.journal()])
            .arg(other.data())
            .env("CHANCERY_KAFKA_ALLOW_UNSAFE_TOPICS", "yes")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(60 * round));
        // The import may have ended on its own.
        let _ = import.kill();
        import.wait().expect("it is ours");
        let (key, data) =
            (format!("key-{round}"), json!({"name": "T", "spec": {"type": "T", "score": round}}));
        let answer = server.client().intent(&key, "capability.apply", &data);
        assert_eq!(answer.status / 100, 2, "{}: {}", answer.status, answer.text);
    }
    assert_eq!(names(server).len(), 8, "no other history has come in");
}

#[test]
fn messages_in_a_partition_that_no_fleet_has_are_named_by_doctor() {
    let standbys = StandbyServers::start(shared(1), "raised", 1, &SETTINGS);
    for topic in ["raised.journal", "raised.inbox", "raised.events"] {
        shared(1).tool("kafka-topics", &["--alter", "--topic", topic, "--partitions", "3"]);
    }
    let doctor = || {
        let mut doctor = Command::new(program());
        let done =
            doctor.args(["doctor", "--journal", standbys.journal()]).output().expect("the program runs");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    assert!(!doctor().contains("no configured fleet"), "nothing was put there");
    let producer = producer("none");
    let record = BaseRecord::<(), str>::to("raised.inbox").partition(2).payload("{}");
    producer.send(record).map_err(|(error, _)| error).expect("sent");
    producer.flush(PATIENCE).expect("acknowledged");
    let report = doctor();
    assert!(
        report.contains("partition 2 belongs to no configured fleet, and has messages up to offset 1"),
        "{report}"
    );
    put(&producer, "raised.inbox", "named");
    until("the fleet's own is answered", || (names(&standbys.servers[0]) == ["named"]).then_some(()));
    assert!(standbys.servers[0].client().get("/readyz").status == 200);
}
