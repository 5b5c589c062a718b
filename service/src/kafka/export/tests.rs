//! The events topic of brokers that refuse events, or that are unavailable.

use chancery_api::ServerMetrics;
use chancery_decider::DeciderInput;
use chancery_journal::conformance::{FLEET, TestWriter};
use chancery_journal::memory::MemoryLog;
use rdkafka::Offset;
use rdkafka::consumer::Consumer as _;
use rdkafka::message::Headers as _;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::{RDKafkaApiKey as ApiKey, RDKafkaRespErr as Refusal};
use tokio::sync::mpsc;

use super::*;

const TOPIC: &str = "it.events";
const PATIENCE: Duration = Duration::from_mins(1);

type MockBrokers = MockCluster<'static, DefaultProducerContext>;

/// Returns a broker with an events topic, an export to it, and its decider.
fn rig() -> (MockBrokers, EventExporter, DeciderHandle, mpsc::Receiver<DeciderInput>) {
    let cluster = MockCluster::new(1).expect("a cluster");
    cluster.create_topic(TOPIC, 1, 1).expect("a topic");
    let export = EventExporter {
        fleet: FLEET.into(),
        corrects: false,
        client: KafkaClient::new(&cluster.bootstrap_servers(), BTreeMap::new()).expect("a client"),
        topic: TOPIC.into(),
        partition: 0,
        troubles: Arc::default(),
        metrics: Arc::new(ServerMetrics::new().of(&FLEET.parse().expect("a name"))),
    };
    let (queue, inputs) = mpsc::channel(16);
    (cluster, export, DeciderHandle::over(queue), inputs)
}

/// Returns `count` events, each with its position.
fn events(count: usize, size: usize) -> Vec<(Position, CloudMessage)> {
    let mut author = TestWriter::new(1, None);
    author.genesis();
    let record = author.record(count, size);
    let message = |(position, line): (Position, &[u8])| {
        (position, CloudMessage::of(&RecordRenderer::of(&record), "hash", position, line).expect("a message"))
    };
    record.events().map(message).collect()
}

/// Returns the ids of the events in the topic, in their order.
fn ids(cluster: &MockBrokers) -> Vec<String> {
    let client = KafkaClient::new(&cluster.bootstrap_servers(), BTreeMap::new()).expect("a client");
    let consumer = client.watcher().expect("a consumer");
    let (_, end) = consumer.fetch_watermarks(TOPIC, 0, PATIENCE).expect("it answers");
    let mut place = TopicPartitionList::new();
    place.add_partition_offset(TOPIC, 0, Offset::Beginning).expect("an offset");
    consumer.assign(&place).expect("assigned");
    let (mut ids, until) = (Vec::new(), Instant::now() + PATIENCE);
    while (ids.len() as i64) < end {
        assert!(Instant::now() < until, "{ids:?} of {end}");
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
        let headers = message.headers().expect("headers");
        let id = headers.iter().find(|header| header.key == "ce_id").expect("an id");
        ids.push(String::from_utf8(id.value.expect("a value").to_vec()).expect("text"));
    }
    ids
}

#[test]
fn no_event_is_in_the_topic_while_one_before_it_was_refused() {
    // The brokers' error for the first event, and the ids in the topic, with the repeats of the producer.
    let table = [
        (Refusal::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, &["2", "3"][..]),
        (Refusal::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, &[]),
    ];
    for (refusal, expected) in table {
        let (cluster, export, decider, _inputs) = rig();
        let log = MemoryLog::new(FLEET);
        let source = log.source();
        let mut writer = EventWriter::new(&export, &*source, &decider).expect("a writer");
        writer.producer.client().fetch_metadata(Some(TOPIC), PATIENCE).expect("it answers");
        // The producer gets its id meanwhile, so that each later event is sent immediately.
        std::thread::sleep(Duration::from_secs(3));
        cluster.request_errors(ApiKey::Produce, &[refusal]);
        cluster.broker_round_trip_time(1, Duration::from_millis(300)).expect("it is slow");
        for (position, event) in events(2, 10) {
            // Sent alone, while the answer to the previous event may be in flight.
            if writer.put(position, &event).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = writer.producer.flush(PATIENCE);
        assert_eq!(ids(&cluster), expected, "{refusal:?}");
    }
}

#[test]
fn an_exporter_whose_queue_is_full_ends_with_its_decider() {
    let (cluster, export, decider, inputs) = rig();
    let log = MemoryLog::new(FLEET);
    let source = log.source();
    let mut writer = EventWriter::new(&export, &*source, &decider).expect("a writer");
    let events = events(2, 500_000);
    writer.put(events[0].0, &events[0].1).expect("it is acknowledged");
    cluster.broker_down(1).expect("it is down");
    let full = std::thread::scope(|scope| {
        let filling = scope.spawn(|| {
            loop {
                if let Err(error) = writer.put(events[1].0, &events[1].1) {
                    break error.to_string();
                }
            }
        });
        // It fills 64 MB, and then waits.
        std::thread::sleep(Duration::from_secs(3));
        assert!(!filling.is_finished());
        drop(inputs);
        filling.join().expect("it ends")
    });
    assert_eq!(full, "cannot write event: the decider has stopped");
}

#[test]
fn events_that_wait_too_long_are_left_to_another_producer() {
    let (cluster, export, decider, inputs) = rig();
    let log = MemoryLog::new(FLEET);
    let mut author = TestWriter::new(1, None);
    log.inject(author.genesis().bytes().clone());
    log.inject(author.record(1, 10).bytes().clone());
    let source = log.source();
    let mut writer = EventWriter::new(&export, &*source, &decider).expect("a writer");
    writer.max_wait = Duration::from_secs(2);
    cluster.broker_down(1).expect("it is down");
    let events = events(1, 10);
    let mut inputs = Some(inputs);
    let ended = std::thread::scope(|scope| {
        let writing =
            scope.spawn(|| writer.put(events[0].0, &events[0].1).map_err(|error| error.to_string()));
        let until = Instant::now() + PATIENCE;
        while !writing.is_finished() {
            if Instant::now() > until {
                drop(inputs.take());
            }
            std::thread::sleep(PAUSE);
        }
        writing.join().expect("it does not panic").expect_err("no broker takes it")
    });
    assert!(ended.contains("continuing with another producer"), "{ended}");
    cluster.broker_up(1).expect("the broker runs");
    let mut another = EventWriter::new(&export, &*source, &decider).expect("a writer");
    another.put(events[0].0, &events[0].1).expect("it is acknowledged");
    // The first producer may have written it as well.
    assert!(ids(&cluster).iter().all(|id| id == "2"));
}
