//! Journal on a real Kafka: the suite of every journal, and situations specific to Kafka.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use chancery_events::id::Position;
use chancery_events::record::RecordHash;
use chancery_journal::conformance::{FLEET, JournalFixture, TestWriter, run};
use chancery_journal::kafka::topics::{TopicAdmin, TopicRole};
use chancery_journal::kafka::{KafkaClient, KafkaJournal, KafkaOpenError, KafkaOptions};
use chancery_journal::segments::OpenEvidence;
use chancery_journal::{DeliverySink, Journal, JournalDelivery, JournalWitness};
use chancery_tests::kafka::{KafkaCluster, shared};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tempfile::TempDir;

/// Creates a separate topic on a shared cluster.
fn topic(cluster: &KafkaCluster) -> String {
    static TOPICS: AtomicU64 = AtomicU64::new(0);
    let name = format!("journal-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
    let copies = cluster.bootstrap().split(',').count();
    let made =
        async { TopicAdmin::of(&client(cluster))?.make(&name, TopicRole::Journal, 1, copies as i32).await };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    assert!(runtime.block_on(made).expect("made"), "it was there");
    name
}

fn client(cluster: &KafkaCluster) -> KafkaClient {
    KafkaClient::new(cluster.bootstrap(), std::collections::BTreeMap::new()).expect("a client")
}

struct OnKafka<const BROKERS: usize> {
    topic: String,
    directory: TempDir,
    opened: u64,
}

impl<const BROKERS: usize> OnKafka<BROKERS> {
    fn options(&self, mirror: &str) -> KafkaOptions {
        KafkaOptions::new(client(shared(BROKERS)), &self.topic, 0, self.directory.path().join(mirror), FLEET)
    }
}

impl<const BROKERS: usize> JournalFixture for OnKafka<BROKERS> {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        OnKafka { topic: topic(shared(BROKERS)), directory, opened: 0 }
    }

    fn open(&mut self, sink: DeliverySink) -> Box<dyn Journal> {
        Box::new(KafkaJournal::open(&self.options("mirror"), sink).expect("open").0)
    }

    fn open_alongside(&mut self, sink: DeliverySink) -> Option<Box<dyn Journal>> {
        self.opened += 1;
        let options = self.options(&format!("alongside-{}", self.opened));
        Some(Box::new(KafkaJournal::open(&options, sink).expect("open").0))
    }

    fn inject(&mut self, bytes: &[u8]) -> bool {
        put(shared(BROKERS), &self.topic, bytes);
        true
    }
}

/// Appends arbitrary bytes to the topic.
fn put(cluster: &KafkaCluster, topic: &str, bytes: &[u8]) {
    let config = client(cluster).producer(std::time::Duration::from_secs(20));
    let producer: BaseProducer = config.create().expect("a producer");
    let record = BaseRecord::<(), [u8]>::to(topic).partition(0).payload(bytes);
    producer.send(record).map_err(|(error, _)| error).expect("the queue has capacity");
    producer.flush(std::time::Duration::from_secs(20)).expect("written");
}

#[test]
fn the_journal_on_one_broker_conforms() {
    run::<OnKafka<1>>();
}

#[test]
fn the_journal_on_three_brokers_conforms() {
    run::<OnKafka<3>>();
}

/// Sink that forwards every delivery to a channel.
fn sink() -> (DeliverySink, std::sync::mpsc::Receiver<JournalDelivery>) {
    let (to, from) = channel();
    (Box::new(move |delivery| drop(to.send(delivery))), from)
}

fn nowhere() -> DeliverySink {
    Box::new(|_| ())
}

/// Writes a journal of `count` records and closes it. Returns its options and records.
fn written(count: usize) -> (TempDir, KafkaOptions, Vec<chancery_events::record::Record>) {
    let directory = tempfile::tempdir().expect("a directory");
    let cluster = shared(1);
    let options =
        KafkaOptions::new(client(cluster), &topic(cluster), 0, directory.path().join("mirror"), FLEET);
    let (sink, delivered) = sink();
    let (journal, _) = KafkaJournal::open(&options, sink).expect("open");
    let mut author = TestWriter::new(1, None);
    let mut records = vec![author.genesis()];
    records.extend((1..count).map(|_| author.record(2, 100)));
    for record in &records {
        journal.append(record.clone()).expect("appended");
    }
    let mut left = count;
    while left > 0 {
        match delivered.recv().expect("delivered") {
            JournalDelivery::Records(some) => left -= some.len(),
            other => panic!("{other:?}"),
        }
    }
    journal.close().expect("closed");
    (directory, options, records)
}

#[test]
fn a_start_reads_newer_records_and_a_lost_checkpoint_costs_only_time() {
    let (_home, options, records) = written(20);
    let open = |options: &KafkaOptions| {
        let (journal, opened) = KafkaJournal::open(options, nowhere()).expect("open");
        journal.close().expect("closed");
        opened
    };
    assert_eq!(open(&options).read, 0, "it knows where it was");
    std::fs::remove_file(options.mirror.dir.join("kafka.json")).expect("a place");
    assert_eq!(open(&options).read, 20, "it compares everything");
    assert_eq!(open(&options).read, 0, "it knows again");
    let fresh = KafkaOptions {
        mirror: chancery_journal::segments::SegmentOptions::new(options.mirror.dir.join("../new"), FLEET),
        ..options
    };
    let opened = open(&fresh);
    assert_eq!(
        (opened.read, opened.head.map(|head| head.hash)),
        (20, records.last().map(chancery_events::record::Record::hash))
    );
}

#[test]
fn a_topic_that_is_behind_what_the_data_directory_proves_is_refused() {
    let (_home, options, records) = written(20);
    let last = records.last().expect("records");
    let named = |name: &str, position: Position, hash: RecordHash| JournalWitness {
        name: name.into(),
        lineage: last.header().lineage,
        position,
        hash: Some(hash),
    };
    let right = named("the snapshot of the end", last.last(), last.hash());
    // The mirror is new: missing records come from the topic before witnesses are checked.
    let open = |witnesses: &[&JournalWitness]| {
        let mut mirror =
            chancery_journal::segments::SegmentOptions::new(options.mirror.dir.join("../another"), FLEET);
        mirror.against =
            OpenEvidence::Witnesses(witnesses.iter().map(|witness| (*witness).clone()).collect());
        KafkaJournal::open(&KafkaOptions { mirror, ..options.clone() }, nowhere()).map(|(journal, _)| journal)
    };
    open(&[&right]).expect("the topic holds it").close().expect("closed");
    let ahead = named("the snapshot of more", last.last().plus(1), last.hash());
    let differs = named("the snapshot of another history", records[9].last(), last.hash());
    for (wrong, phrase) in [(&ahead, "names a record at"), (&differs, "names another record at")] {
        let Err(KafkaOpenError::Short { loss, .. }) = open(&[&right, wrong]).map(|_| ()) else {
            panic!("{}: the topic is taken", wrong.name)
        };
        let error = loss.to_string();
        assert!(error.contains(&format!("{} {phrase} position {}", wrong.name, wrong.position)), "{error}");
        assert!(!error.contains(&right.name), "{error}");
    }
    open(&[&right]).expect("a refusal leaves the mirror as it was").close().expect("closed");
}

#[test]
fn a_topic_that_does_not_hold_what_the_mirror_holds_is_refused_and_the_mirror_kept() {
    let (_home, options, _) = written(20);
    let other = KafkaOptions { topic: topic(shared(1)), ..options.clone() };
    let refused = |options: &KafkaOptions| match KafkaJournal::open(options, nowhere()) {
        Err(error) => error,
        Ok((_, opened)) => panic!("it opened: {opened:?}"),
    };
    // The settings name another topic.
    assert!(matches!(refused(&other), KafkaOpenError::MirrorOf { partition: 0, .. }));
    // An empty topic with the recorded name of the mirrored one.
    let place = options.mirror.dir.join("kafka.json");
    let kept = std::fs::read_to_string(&place).expect("a place");
    std::fs::write(&place, kept.replace(&options.topic, &other.topic)).expect("written");
    assert!(matches!(refused(&other), KafkaOpenError::Differs { .. }));
    // A topic with another history.
    let (sink, delivered) = sink();
    let fresh = chancery_journal::segments::SegmentOptions::new(options.mirror.dir.join("../other"), FLEET);
    let (journal, _) =
        KafkaJournal::open(&KafkaOptions { mirror: fresh, ..other.clone() }, sink).expect("open");
    let mut author = TestWriter::new(2, None);
    journal.append(author.genesis()).expect("appended");
    delivered.recv().expect("delivered");
    journal.close().expect("closed");
    assert!(matches!(refused(&other), KafkaOpenError::Differs { .. }));
    std::fs::write(&place, kept).expect("written");
    // A partition of another fleet, for a mirror without records.
    let mut mirror =
        chancery_journal::segments::SegmentOptions::new(options.mirror.dir.join("../stray"), "stray");
    assert!(matches!(
        refused(&KafkaOptions { mirror: mirror.clone(), ..options.clone() }),
        KafkaOpenError::OtherFleet { offset: 0, .. }
    ));
    mirror.fleet = FLEET.into();
    let (journal, opened) =
        KafkaJournal::open(&KafkaOptions { mirror, ..options.clone() }, nowhere()).expect("open");
    assert_eq!(opened.read, 20);
    journal.close().expect("closed");
    // A topic whose start is deleted, for a mirror that needs it.
    let cluster = shared(1);
    let file = options.mirror.dir.join("../delete.json");
    let list = format!(
        r#"{{"partitions": [{{"topic": "{}", "partition": 0, "offset": 5}}], "version": 1}}"#,
        options.topic
    );
    std::fs::write(&file, list).expect("written");
    cluster.tool("kafka-delete-records", &["--offset-json-file", file.to_str().expect("a path")]);
    let empty = chancery_journal::segments::SegmentOptions::new(options.mirror.dir.join("../empty"), FLEET);
    assert!(matches!(
        refused(&KafkaOptions { mirror: empty, ..options.clone() }),
        KafkaOpenError::Deleted { begins: 5, wanted: 0, .. }
    ));
    // The mirror that does not need the start continues.
    let (journal, opened) = KafkaJournal::open(&options, nowhere()).expect("open");
    assert_eq!(opened.read, 0);
    journal.close().expect("closed");
    std::fs::remove_file(&place).expect("a place");
    let missing = KafkaOptions { topic: "no-such-topic".into(), ..options };
    assert!(matches!(refused(&missing), KafkaOpenError::NoPartition(_)));
}

#[test]
fn a_writer_whose_brokers_are_unreachable_is_notified_that_its_append_has_no_outcome() {
    let cluster = KafkaCluster::start(1);
    let directory = tempfile::tempdir().expect("a directory");
    let mut options =
        KafkaOptions::new(client(&cluster), &topic(&cluster), 0, directory.path().join("mirror"), FLEET);
    options.outcome = std::time::Duration::from_secs(10);
    let (sink, delivered) = sink();
    let (journal, _) = KafkaJournal::open(&options, sink).expect("open");
    let mut author = TestWriter::new(1, None);
    journal.append(author.genesis()).expect("appended");
    assert!(matches!(delivered.recv().expect("delivered"), JournalDelivery::Records(_)));
    cluster.pause(1);
    let lost = author.record(1, 10);
    journal.append(lost.clone()).expect("sent");
    assert!(matches!(delivered.recv().expect("delivered"), JournalDelivery::OutcomeUnknown(_)));
    cluster.resume(1);
    // Only the topic shows whether it arrived; another term settles the question either way.
    let mut seen = Vec::new();
    let mut next = TestWriter::new(2, journal.head());
    let mut takeover = next.takeover();
    journal.append(takeover.clone()).expect("sent");
    loop {
        match delivered.recv_timeout(std::time::Duration::from_secs(30)).expect("delivered") {
            JournalDelivery::Records(records) => seen.extend(records.iter().map(|record| record.hash())),
            JournalDelivery::Skipped(skipped) if skipped.hash == takeover.hash() => {
                next = TestWriter::new(3, journal.head());
                takeover = next.takeover();
                journal.append(takeover.clone()).expect("sent");
            }
            JournalDelivery::Skipped(_) => {}
            other => panic!("{other:?}"),
        }
        if seen.contains(&takeover.hash()) {
            break;
        }
    }
    let after = next.record(1, 10);
    journal.append(after.clone()).expect("sent");
    assert!(
        matches!(delivered.recv().expect("delivered"), JournalDelivery::Records(records) if records[0].hash() == after.hash())
    );
    journal.close().expect("closed");
}
