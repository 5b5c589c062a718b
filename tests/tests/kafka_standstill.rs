//! Brokers that are partly unavailable or slow, and a server's reports about them.

use std::process::Command;
use std::time::{Duration, Instant};

use chancery_tests::kafka::proxy::ProxyFaults;
use chancery_tests::kafka::{KafkaCluster, shared};
use chancery_tests::resolver::ServerResolver;
use chancery_tests::{ServerProcess, StandbyServers, program, until};
use rdkafka::ClientConfig;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::json;

const INBOX: [(&str, &str); 2] =
    [("CHANCERY_INBOX_ALLOWED_INTENTS", "capability.*"), ("CHANCERY_INBOX_ACTOR", "mail")];
/// Time that a client waits for brokers.
const PATIENCE: Duration = Duration::from_secs(30);

fn apply(server: &ServerProcess, name: &str) {
    server.client().must("capability.apply", &json!({"name": name, "spec": {"type": "T", "score": 1}}));
}

fn is_ready(server: &ServerProcess) {
    until("the server is ready", || (server.client().get("/readyz").status == 200).then_some(()));
}

fn doctor(journal: &str) -> String {
    let done = Command::new(program()).args(["doctor", "--journal", journal]).output();
    String::from_utf8_lossy(&done.expect("the program runs").stdout).into_owned()
}

/// Id of the broker that coordinates all groups: the topic of their offsets has one partition.
fn coordinator(cluster: &KafkaCluster) -> i32 {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap()).set("group.id", "any");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    until("the groups have a coordinator", || {
        let mut asked = TopicPartitionList::new();
        asked.add_partition("any", 0);
        // The first request creates the topic.
        let _ = consumer.committed_offsets(asked, PATIENCE);
        let metadata = consumer.fetch_metadata(Some("__consumer_offsets"), PATIENCE).ok()?;
        let leader = metadata.topics().first()?.partitions().first()?.leader();
        (leader > 0).then_some(leader)
    })
}

#[test]
fn an_inbox_and_an_events_topic_whose_broker_is_paused_are_named_while_the_journal_continues() {
    let cluster = KafkaCluster::start(3);
    let groups = coordinator(&cluster);
    let [paused, other] = [1, 2, 3].into_iter().filter(|id| *id != groups).collect::<Vec<_>>()[..] else {
        panic!("three brokers, of which {groups} coordinates")
    };
    let replicas = [
        ("journal", format!("{other}:{groups}")),
        ("inbox", paused.to_string()),
        ("events", paused.to_string()),
    ];
    for (topic, replicas) in &replicas {
        let topic = format!("apart.{topic}");
        let made = ["--create", "--topic", &topic, "--replica-assignment", replicas];
        cluster.tool("kafka-topics", &[&made[..], &["--config", "min.insync.replicas=1"]].concat());
    }
    let standbys = StandbyServers::start(&cluster, "apart", 1, &INBOX);
    let server = &standbys.servers[0];
    apply(server, "before");
    is_ready(server);
    // Before its start, the exporter asks for the topic's offsets, and would report a failure of that
    // instead.
    let mut config = ClientConfig::new();
    let consumer: BaseConsumer =
        config.set("bootstrap.servers", cluster.bootstrap()).create().expect("a consumer");
    until("events are exported", || {
        let (_, end) = consumer.fetch_watermarks("apart.events", 0, PATIENCE).ok()?;
        (end > 0).then_some(())
    });
    let paused = u32::try_from(paused).expect("an id");
    cluster.pause(paused);
    apply(server, "meanwhile");
    let mut parts =
        vec!["inbox: cannot read topic: the brokers do not answer", "events: cannot write pending events"];
    until("both are named", || {
        let answer = server.client().get("/readyz");
        parts.retain(|part| answer.status != 503 || !answer.text.contains(part));
        parts.is_empty().then_some(())
    });
    apply(server, "still");
    cluster.resume(paused);
    is_ready(server);
}

#[test]
fn a_coordinator_that_no_server_reaches_is_named_by_all_and_another_broker_by_none() {
    let cluster = KafkaCluster::start_with_proxies(3);
    let groups = coordinator(&cluster);
    let [leads, other] = [1, 2, 3].into_iter().filter(|id| *id != groups).collect::<Vec<_>>()[..] else {
        panic!("three brokers, of which {groups} coordinates")
    };
    for topic in ["journal", "inbox", "events"] {
        let topic = format!("unreached.{topic}");
        let made = ["--create", "--topic", &topic, "--replica-assignment", &leads.to_string()];
        cluster.tool("kafka-topics", &[&made[..], &["--config", "min.insync.replicas=1"]].concat());
    }
    let log = ("CHANCERY_LOG_FILTER", "info,chancery::kafka=debug");
    let standbys = StandbyServers::start(&cluster, "unreached", 2, &[log]);
    standbys.servers.iter().for_each(is_ready);
    let hangs = ProxyFaults { stalls: true, ..ProxyFaults::default() };
    cluster.set_faults_of(other, hangs);
    // Several requests to all brokers get no answer meanwhile.
    for _ in 0..45 {
        for server in &standbys.servers {
            let answer = server.client().get("/readyz");
            assert!(!answer.text.contains("election"), "{}", answer.text);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    standbys.servers.iter().for_each(is_ready);
    cluster.set_faults_of(other, ProxyFaults::default());
    // The brokers still reach the coordinator, so no other is elected.
    cluster.set_faults_of(groups, hangs);
    for server in &standbys.servers {
        until("the server reports that no leader is known", || {
            let answer = server.client().get("/readyz");
            (answer.status == 503 && answer.text.contains("unknown whether there is a leader")).then_some(())
        });
    }
    cluster.set_faults_of(groups, ProxyFaults::default());
    standbys.servers.iter().for_each(is_ready);
}

#[test]
fn a_server_whose_name_server_does_not_answer_ends_soon_when_it_is_stopped() {
    let (cluster, resolver) = (KafkaCluster::start(1), ServerResolver::new());
    let settings = resolver.settings();
    let mut all: Vec<(&str, &str)> = INBOX.to_vec();
    all.extend(settings.iter().map(|(name, value)| (*name, value.as_str())));
    let mut standbys = StandbyServers::start(&cluster, "unresolved", 1, &all);
    let server = &mut standbys.servers[0];
    apply(server, "a");
    resolver.hang();
    cluster.kill(1);
    // By then every client resolves the broker's name again.
    std::thread::sleep(Duration::from_secs(5));
    let began = Instant::now();
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}: {}", began.elapsed(), server.log());
}

#[test]
fn a_backlog_is_read_over_a_slow_link() {
    let cluster = KafkaCluster::start_with_proxies(1);
    let mut standbys = StandbyServers::start(&cluster, "slow-link", 1, &INBOX);
    assert_eq!(standbys.servers[0].stop(), Some(0));
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap());
    let producer: BaseProducer = config.create().expect("a producer");
    let put = |value: &str| {
        let record = BaseRecord::<(), str>::to("slow-link.inbox").partition(0).payload(value);
        producer.send(record).map_err(|(error, _)| error).expect("sent");
        producer.flush(PATIENCE).expect("acknowledged");
    };
    // Only the last message is an intent. 12 MB, of which 1 MB arrives per second.
    let noise = "no CloudEvent ".repeat(8_000);
    for _ in 0..110 {
        put(&noise);
    }
    let last = json!({
        "specversion": "1.0", "id": "last", "source": "elsewhere", "type": "dev.chancery.capability.apply.v1",
        "datacontenttype": "application/json", "data": {"name": "last", "spec": {"type": "T", "score": 1}},
    });
    put(&last.to_string());
    cluster.set_faults(ProxyFaults { bytes_per_second: 1_000_000, ..ProxyFaults::default() });
    standbys.servers[0].start_again();
    until("the last one is answered", || {
        let row = standbys.servers[0].client().get("/v1/fleets/default/capabilities/last");
        (row.status == 200).then_some(())
    });
}

#[test]
fn a_journal_whose_topic_compresses_by_zstd_is_read_by_every_server() {
    let mut standbys = StandbyServers::start(shared(1), "recompressed", 2, &[]);
    shared(1).set_topic("recompressed.journal", "compression.type", Some("zstd"));
    for name in ["a", "b", "c"] {
        apply(&standbys.servers[standbys.decider()], name);
    }
    assert!(!doctor(standbys.journal()).contains("compression.type"), "every server reads zstd");
    shared(1).set_topic("recompressed.journal", "compression.type", None);
    apply(&standbys.servers[standbys.decider()], "d");
    // A server without any records reads them from the topic.
    for server in &mut standbys.servers {
        assert_eq!(server.stop(), Some(0));
        std::fs::remove_dir_all(server.data().join("fleets")).expect("its directory");
        server.start_again();
        is_ready(server);
    }
    for server in &standbys.servers {
        until("it has all", || {
            (server.client().get("/v1/fleets/default/capabilities/d").status == 200).then_some(())
        });
        assert!(!server.log().contains("PartitionEOF"), "the end of a partition is no error");
    }
}

#[test]
fn doctor_reports_which_topics_brokers_do_not_sync_and_that_large_batches_cost_memory() {
    let standbys = StandbyServers::start(shared(1), "unsynced", 1, &[]);
    let unsynced =
        |topic: &str| format!("unsynced.{topic}: note: brokers acknowledge records that are only in memory");
    let large = "unsynced.inbox: note: max.message.bytes is more than 307200";
    let report = doctor(standbys.journal());
    assert!(report.contains(&unsynced("journal")) && report.contains(&unsynced("inbox")), "{report}");
    assert!(!report.contains(&unsynced("events")), "made from the journal: {report}");
    assert!(!report.contains(large), "{report}");
    shared(1).set_topic("unsynced.journal", "flush.messages", Some("1"));
    shared(1).set_topic("unsynced.inbox", "max.message.bytes", Some("2097152"));
    let report = doctor(standbys.journal());
    assert!(!report.contains(&unsynced("journal")) && report.contains(&unsynced("inbox")), "{report}");
    assert!(report.contains(large), "{report}");
}
