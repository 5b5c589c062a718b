//! Events topic after its journal has lost events, and after retention has deleted events.

use std::process::Command;

use chancery_tests::fault_campaigns::evidence::records;
use chancery_tests::kafka::shared;
use chancery_tests::{ServerProcess, StandbyServers, program, until};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use std::time::Duration;

/// Message of the events topic.
struct ExportedMessage {
    offset: i64,
    type_name: String,
    id: String,
    hash: Option<String>,
    data: Value,
}

impl ExportedMessage {
    fn position(&self) -> u64 {
        self.id.parse().unwrap_or_else(|_| panic!("{} is no position", self.id))
    }

    fn is_correction(&self) -> bool {
        self.type_name == "dev.chancery.events.corrected.v1"
    }
}

fn consumer() -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", shared(1).bootstrap())
        .set("group.id", "of-the-test")
        .set("enable.auto.commit", "false")
        .create()
        .expect("a consumer")
}

/// Messages of a prefix's events topic, in order.
fn exported(prefix: &str) -> Vec<ExportedMessage> {
    let (topic, consumer) = (format!("{prefix}.events"), consumer());
    let (begins, ends) =
        consumer.fetch_watermarks(&topic, 0, Duration::from_secs(30)).expect("the broker answers");
    let mut place = TopicPartitionList::new();
    place.add_partition_offset(&topic, 0, Offset::Offset(begins)).expect("a place");
    consumer.assign(&place).expect("assigned");
    let mut found: Vec<ExportedMessage> = Vec::new();
    while found.last().map_or(begins, |last| last.offset + 1) < ends {
        let message = consumer.poll(Duration::from_secs(30)).expect("a message").expect("it is read");
        let headers = message.headers().expect("headers");
        let text = |name: &str| {
            let header = headers.iter().find(|header| header.key == name)?;
            Some(String::from_utf8(header.value?.to_vec()).expect("text"))
        };
        found.push(ExportedMessage {
            offset: message.offset(),
            type_name: text("ce_type").expect("a type"),
            id: text("ce_id").expect("an id"),
            hash: text("ce_recordhash"),
            data: serde_json::from_slice(message.payload().expect("data")).expect("JSON"),
        });
    }
    found
}

/// Waits until the events topic ends with the journal's last event. Returns all messages.
fn all_exported(server: &ServerProcess, prefix: &str) -> Vec<ExportedMessage> {
    until("the last event is exported", || {
        let text = server.cli(&["events", "-o", "jsonl"]);
        let last: Value = serde_json::from_str(text.lines().last().expect("an event")).expect("JSON");
        let exported = exported(prefix);
        let is_there = exported.last().is_some_and(|event| last["id"] == event.id.as_str());
        is_there.then_some(exported)
    })
}

fn apply(server: &ServerProcess, names: &[&str]) {
    for name in names {
        server.client().must("capability.apply", &json!({"name": name, "spec": {"type": "T", "score": 1}}));
    }
}

#[test]
fn an_events_topic_that_retention_emptied_gets_every_event_that_was_not_exported() {
    let mut standbys = StandbyServers::start(shared(1), "emptied", 1, &[]);
    apply(&standbys.servers[0], &["a", "b", "c"]);
    let before = all_exported(&standbys.servers[0], "emptied");
    let last = before.last().expect("events").position();
    // The exporter commits its position with a delay.
    until("the position is committed", || {
        let groups =
            shared(1).tool("kafka-consumer-groups", &["--describe", "--group", "emptied.events.exporter.0"]);
        let end = (before.last().expect("events").offset + 1).to_string();
        groups.lines().any(|line| line.split_whitespace().any(|word| word == end)).then_some(())
    });
    assert_eq!(standbys.servers[0].stop(), Some(0));
    // Later events are not exported.
    standbys.servers[0].set("CHANCERY_KAFKA_EXPORT_EVENTS", "no");
    standbys.servers[0].start_again();
    standbys.decider();
    apply(&standbys.servers[0], &["d", "e", "f"]);
    assert_eq!(standbys.servers[0].stop(), Some(0));
    let file = standbys.servers[0].directory().join("delete.json");
    let all =
        json!({"partitions": [{"topic": "emptied.events", "partition": 0, "offset": -1}], "version": 1});
    std::fs::write(&file, all.to_string()).expect("a file");
    shared(1).tool("kafka-delete-records", &["--offset-json-file", file.to_str().expect("a path")]);
    standbys.servers[0].set("CHANCERY_KAFKA_EXPORT_EVENTS", "yes");
    standbys.servers[0].start_again();
    standbys.decider();
    let after = all_exported(&standbys.servers[0], "emptied");
    let positions: Vec<u64> = after.iter().map(ExportedMessage::position).collect();
    let expected: Vec<u64> = (last + 1..=*positions.last().expect("events")).collect();
    assert_eq!(positions, expected, "no position is left out behind {last}");
}

#[test]
fn an_events_topic_with_events_that_the_journal_lost_is_not_continued_before_it_is_corrected() {
    let prefix = "histories";
    let mut standbys = StandbyServers::start(shared(1), prefix, 2, &[]);
    let (ahead, behind) = (standbys.decider(), 1 - standbys.decider());
    apply(&standbys.servers[ahead], &["a", "b"]);
    let shown = "/v1/fleets/default/capabilities/b";
    until("the other one has it", || {
        (standbys.servers[behind].client().get(shown).status == 200).then_some(())
    });
    assert_eq!(standbys.servers[behind].stop(), Some(0));
    let kept = records(standbys.servers[behind].data()).expect("a mirror");
    apply(&standbys.servers[ahead], &["lost-1", "lost-2", "lost-3"]);
    let before = all_exported(&standbys.servers[ahead], prefix);
    standbys.servers[ahead].kill();

    // The topic is lost together with the only server that had all of it.
    shared(1).tool("kafka-topics", &["--delete", "--topic", &format!("{prefix}.journal")]);
    until("the topic is gone", || {
        let topics = shared(1).tool("kafka-topics", &["--list"]);
        (!topics.lines().any(|topic| topic == format!("{prefix}.journal"))).then_some(())
    });
    let run = |args: &[&str]| {
        let done = Command::new(program())
            .args(args)
            .args(["--journal", standbys.journal()])
            .env("CHANCERY_KAFKA_ALLOW_UNSAFE_TOPICS", "yes")
            .output()
            .expect("the program runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    run(&["init-topics", "--replication-factor", "1"]);
    let data = standbys.servers[behind].data().to_owned();
    std::fs::remove_file(data.join("fleets/default/journal/kafka.json")).expect("a file");
    run(&["import", data.to_str().expect("a path")]);
    let server = &mut standbys.servers[behind];
    server.start_again();
    until("the server is not ready", || {
        let answer = server.client().get("/readyz");
        (answer.status == 503 && answer.text.contains("fleet_blocked")).then_some(answer)
    });
    let why = server.client().get("/readyz").text;
    assert!(why.contains("events") && why.contains("--correct-events"), "{why}");
    assert!(
        server
            .client()
            .get("/metrics")
            .text
            .contains("chancery_trouble{fleet=\"default\",part=\"events\"} 1")
    );
    apply(server, &["new-1", "new-2"]);
    assert_eq!(exported(prefix).len(), before.len(), "nothing is written after the lost events");
    assert_eq!(server.stop(), Some(0));

    server.start_with_flags(&["--correct-events"]);
    let after = all_exported(server, prefix);
    let corrections: Vec<&ExportedMessage> = after.iter().filter(|event| event.is_correction()).collect();
    let [correction] = corrections[..] else { panic!("{} corrections", corrections.len()) };
    let common = correction.data["continues_after"].as_u64().expect("a position");
    assert!(common >= kept.last().expect("records").last().get(), "{}", correction.data);
    assert_eq!(correction.data["lost_through"].as_u64(), before.last().map(ExportedMessage::position));
    let behind: Vec<u64> = after
        .iter()
        .skip_while(|event| !event.is_correction())
        .skip(1)
        .map(ExportedMessage::position)
        .collect();
    assert_eq!(behind, (common + 1..=*behind.last().expect("events")).collect::<Vec<_>>());
    assert_eq!(server.client().get("/readyz").status, 200);
    // The messages that count are the journal's events, including the hashes.
    assert_eq!(server.stop(), Some(0));
    let journal = records(server.data()).expect("a mirror");
    let counts = after.iter().filter(|event| {
        !event.is_correction() && (event.offset > correction.offset || event.position() <= common)
    });
    for event in counts {
        let position = event.position();
        let record = journal
            .iter()
            .find(|record| record.first().get() <= position && position <= record.last().get())
            .unwrap_or_else(|| panic!("position {position} is in no record"));
        assert_eq!(event.hash.as_deref(), Some(record.hash().to_string().as_str()), "position {position}");
    }
}
