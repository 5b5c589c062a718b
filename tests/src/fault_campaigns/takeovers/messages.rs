//! Producers that send good inbox messages, with several codecs and some of them twice. A foreign client
//! sends everything else: values and headers that are not CloudEvents, aborted transactions, and invalid
//! records on the journal topic.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use chancery_events::event::Event;
use chancery_events::record::Record;
use chancery_journal::kafka::{KafkaClient, PartitionReader, PollResult, offsets};
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedHeaders, Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{
    BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer,
};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientContext, util::Timeout};
use serde_json::json;

use crate::until;

/// Topics of the campaign.
pub(super) const INBOX: &str = "fleet.inbox";
pub(super) const JOURNAL: &str = "fleet.journal";
pub(super) const EVENTS: &str = "fleet.events";

/// Compression codecs of the producers, in turn.
const CODECS: [&str; 5] = ["none", "gzip", "lz4", "snappy", "zstd"];
/// Time that a client waits for unavailable brokers.
const PATIENCE: Duration = Duration::from_mins(1);

/// Running producers.
pub(super) struct MessageProducers {
    shared: Arc<MessageOutcomes>,
    threads: Vec<JoinHandle<()>>,
}

/// Outcome of messages by the ids of their events.
#[derive(Default)]
struct MessageOutcomes {
    stop: AtomicBool,
    /// Whether the foreign client leaves the journal topic alone.
    spares_journal: AtomicBool,
    acknowledged: Mutex<BTreeSet<String>>,
    aborted: Mutex<BTreeSet<String>>,
}

/// Outcome of messages after their producers have ended.
pub(super) struct SentMessages {
    /// Good events that Kafka acknowledged.
    acknowledged: BTreeSet<String>,
    /// Events in aborted transactions.
    aborted: BTreeSet<String>,
}

struct OutcomeCollector(Arc<MessageOutcomes>);

impl ClientContext for OutcomeCollector {}

impl ProducerContext for OutcomeCollector {
    type DeliveryOpaque = Box<String>;

    fn delivery(&self, result: &DeliveryResult<'_>, id: Box<String>) {
        if result.is_ok() {
            lock(&self.0.acknowledged).insert(*id);
        }
    }
}

impl MessageProducers {
    /// Starts `count` good producers and a foreign one.
    pub(super) fn begin(brokers: &str, count: usize) -> MessageProducers {
        let shared = Arc::new(MessageOutcomes::default());
        let mut threads: Vec<_> = (0..count)
            .map(|number| {
                let (shared, brokers) = (Arc::clone(&shared), brokers.to_owned());
                std::thread::spawn(move || mail(&brokers, number, &shared))
            })
            .collect();
        let (foreign, brokers) = (Arc::clone(&shared), brokers.to_owned());
        threads.push(std::thread::spawn(move || disturb(&brokers, &foreign)));
        MessageProducers { shared, threads }
    }

    /// Sets whether the foreign client leaves the journal topic alone.
    pub(super) fn spare_journal(&self, spares: bool) {
        self.shared.spares_journal.store(spares, Ordering::Relaxed);
    }

    /// Stops all producers. Returns the outcome of their messages.
    pub(super) fn end(self) -> SentMessages {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a producer of inbox messages does not panic");
        }
        SentMessages {
            acknowledged: std::mem::take(&mut *lock(&self.shared.acknowledged)),
            aborted: std::mem::take(&mut *lock(&self.shared.aborted)),
        }
    }
}

impl SentMessages {
    /// Checks that each acknowledged event is in the journal once, and no event of an aborted transaction is.
    pub(super) fn judge(&self, records: &[Arc<Record>]) -> Result<()> {
        let mut found: BTreeMap<String, u64> = BTreeMap::new();
        for (_, line) in records.iter().flat_map(|record| record.events()) {
            if let Event::Intent(request) = Event::read(line)? {
                *found.entry(request.id.to_string()).or_default() += 1;
            }
        }
        let times = |id: &String| found.get(id).copied().unwrap_or(0);
        let wrong: Vec<_> = self.acknowledged.iter().filter(|id| times(id) != 1).take(5).collect();
        ensure!(
            wrong.is_empty(),
            "inbox messages that were acknowledged and are not in the journal once: {wrong:?}"
        );
        let wrong: Vec<_> = self.aborted.iter().filter(|id| times(id) != 0).take(5).collect();
        ensure!(
            wrong.is_empty(),
            "inbox messages of aborted transactions that are in the journal: {wrong:?}"
        );
        println!(
            "{} inbox messages, each answered once; {} of aborted transactions, none answered",
            self.acknowledged.len(),
            self.aborted.len()
        );
        Ok(())
    }
}

/// Sends good messages; one event of seven is sent twice.
fn mail(brokers: &str, number: usize, shared: &Arc<MessageOutcomes>) {
    let client = KafkaClient::new(brokers, BTreeMap::new()).expect("a client");
    let mut config = client.producer(PATIENCE);
    config.set("compression.type", CODECS[(number + 1) % CODECS.len()]);
    let producer: ThreadedProducer<OutcomeCollector> =
        config.create_with_context(OutcomeCollector(Arc::clone(shared))).expect("a producer");
    for i in 0_u64.. {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("message-{number}-{i}");
        let text = asks(&id, i % 20, i);
        for _ in 0..if i % 7 == 0 { 2 } else { 1 } {
            let record = BaseRecord::<(), str, Box<String>>::with_opaque_to(INBOX, Box::new(id.clone()));
            // A message that does not fit in the client's queue is not sent.
            let _ = producer.send(record.partition(0).payload(&text).headers(headers(&id)));
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    producer.flush(PATIENCE).expect("every message has an outcome");
}

/// Reason why the last undelivered message was not delivered.
#[derive(Default)]
struct UndeliveredReason(Mutex<Option<KafkaError>>);

impl ClientContext for UndeliveredReason {}

impl ProducerContext for UndeliveredReason {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            *lock(&self.0) = Some(error.clone());
        }
    }
}

/// Message for partition 0 of a topic.
type TopicMessage<'a> = BaseRecord<'a, (), str>;

/// Sends the messages, and waits until each has an outcome. Fails with the error of an undelivered message.
fn put<'a>(
    config: &ClientConfig,
    messages: impl IntoIterator<Item = TopicMessage<'a>>,
) -> Result<Option<KafkaError>> {
    let producer: BaseProducer<UndeliveredReason> =
        config.create_with_context(UndeliveredReason::default())?;
    for message in messages {
        producer.send(message).map_err(|(error, _)| error).context("send")?;
    }
    producer.flush(PATIENCE).context("flush")?;
    let undelivered = lock(&producer.context().0).take();
    Ok(undelivered)
}

/// Sends messages that are not CloudEvents to the inbox, each in its own batch and uncompressed. Waits until
/// all are acknowledged.
pub(super) fn put_foreign(brokers: &str, texts: &[String]) -> Result<()> {
    let mut config = KafkaClient::new(brokers, BTreeMap::new())?.producer(PATIENCE);
    // A batch of several messages may exceed the topic's limit.
    config.set("compression.type", "none").set("batch.num.messages", "1");
    let messages = texts.iter().map(|text| TopicMessage::to(INBOX).partition(0).payload(text));
    let undelivered = put(&config, messages)?;
    ensure!(undelivered.is_none(), "a message was not delivered: {undelivered:?}");
    Ok(())
}

/// Sends a good message to the inbox, and waits until it is acknowledged.
pub(super) fn put_good(brokers: &str, id: &str, name: u64) -> Result<()> {
    let config = KafkaClient::new(brokers, BTreeMap::new())?.producer(PATIENCE);
    let text = asks(id, name, 1);
    let message = TopicMessage::to(INBOX).partition(0).payload(&text).headers(headers(id));
    let undelivered = put(&config, [message])?;
    ensure!(undelivered.is_none(), "a message was not delivered: {undelivered:?}");
    Ok(())
}

/// Whether brokers refuse a write to partition 0 of the topic because too few of them are in sync.
pub(super) fn is_refused(brokers: &str, topic: &str) -> Result<bool> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("acks", "all").set("message.send.max.retries", "0");
    config.set("message.timeout.ms", "5000");
    let undelivered = put(&config, [TopicMessage::to(topic).partition(0).payload("{}")])?;
    let refusals = [RDKafkaErrorCode::NotEnoughReplicas, RDKafkaErrorCode::NotEnoughReplicasAfterAppend];
    let code = undelivered.and_then(|error| error.rdkafka_error_code());
    Ok(code.is_some_and(|code| refusals.contains(&code)))
}

/// Whether partition 0 of the topic has a committed message at the offset. Some message must follow.
pub(super) fn holds_message(brokers: &str, topic: &str, offset: i64) -> Result<bool> {
    let client = KafkaClient::new(brokers, BTreeMap::new())?;
    let mut reader = PartitionReader::open(&client, topic, 0, offset)?;
    let first = until("a message is read", || match reader.poll(Duration::from_millis(100)) {
        Ok(PollResult::Message(message)) => Some(Ok(message.offset())),
        Ok(PollResult::Nothing) => None,
        Err(error) => Some(Err(error)),
    });
    Ok(first? == offset)
}

/// End offset of partition 0 of the events topic, and the position of the last event before it.
pub(super) fn last_exported(brokers: &str) -> Result<(i64, u64)> {
    let client = KafkaClient::new(brokers, BTreeMap::new())?;
    let (begins, end) = offsets(&client.watcher()?, EVENTS, 0)?;
    // The topic also has foreign messages, but fewer in a row.
    let mut reader = PartitionReader::open(&client, EVENTS, 0, begins.max(end - 1000))?;
    let (mut last, began) = (None, Instant::now());
    while reader.reached().is_none_or(|reached| reached < end) {
        ensure!(began.elapsed() < PATIENCE, "the events topic cannot be read up to {end}");
        let PollResult::Message(message) = reader.poll(Duration::from_millis(50))? else { continue };
        if message.offset() >= end {
            break;
        }
        let headers = message.headers().into_iter().flat_map(BorrowedHeaders::iter);
        let id = headers.filter(|header| header.key == "ce_id").find_map(|header| header.value);
        let id = id.and_then(|id| str::from_utf8(id).ok()).and_then(|id| id.parse().ok());
        last = id.or(last);
    }
    Ok((end, last.context("no event among the last messages of the events topic")?))
}

fn asks(id: &str, name: u64, score: u64) -> String {
    let of = id.rsplit_once('-').map_or(id, |(of, _)| of);
    json!({"name": format!("by-{of}-{name}"), "spec": {"type": "T", "score": score}}).to_string()
}

fn headers(id: &str) -> OwnedHeaders {
    let attributes = [
        ("ce_specversion", "1.0"),
        ("ce_id", id),
        ("ce_source", "tests"),
        ("ce_type", "dev.chancery.capability.apply.v1"),
        ("content-type", "application/json"),
    ];
    attributes
        .into_iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
}

/// Runs a client that does not know what belongs in the topics. It acts four times a second; an action that
/// finds no broker is skipped.
fn disturb(brokers: &str, shared: &MessageOutcomes) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("message.max.bytes", "1048576");
    let plain = |codec: &str| -> BaseProducer {
        config
            .clone()
            .set("compression.type", codec)
            .set("message.timeout.ms", "5000")
            .create()
            .expect("a producer")
    };
    let producers = CODECS.map(plain);
    let (large, larger) = (vec![b'x'; 100_000], vec![b'x'; 300_000]);
    for i in 0_usize.. {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let (id, producer) = (format!("foreign-{i}"), &producers[(i + i / 15) % CODECS.len()]);
        let good = asks(&id, 0, i as u64);
        let put = |topic: &str, value: Option<&[u8]>, headers: OwnedHeaders| {
            let mut record = BaseRecord::<(), [u8]>::to(topic).partition(0).headers(headers);
            if let Some(value) = value {
                record = record.payload(value);
            }
            let _ = producer.send(record);
        };
        let more = |key: &str, value: &[u8]| headers(&id).insert(Header { key, value: Some(value) });
        match i % 15 {
            0 => put(INBOX, None, headers(&id)),
            1 => put(INBOX, Some(b""), headers(&id)),
            2 => put(INBOX, None, OwnedHeaders::new()),
            3 => put(INBOX, Some(b"\xff\xfe\x00 no text"), headers(&id)),
            4 => put(INBOX, Some(good.as_bytes()), more("ce_comment", b"\xff\xfe")),
            5 => put(INBOX, Some(good.as_bytes()), more("note", &large)),
            6 => put(INBOX, Some(good.as_bytes()), more("note", &larger)),
            7 => {
                let many = (0..2000).fold(headers(&id), |all, number| {
                    all.insert(Header { key: &format!("note-{number}"), value: Some("x") })
                });
                put(INBOX, Some(good.as_bytes()), many);
            }
            8 => put(INBOX, Some(format!("{{{}}}", " ".repeat(300_000)).as_bytes()), headers(&id)),
            9 => put(INBOX, Some("[".repeat(100_000).as_bytes()), headers(&id)),
            10 => put(INBOX, Some(good.as_bytes()), more("ce_id", b"given twice")),
            11 => foreign_header_name(brokers, &good),
            12 if shared.spares_journal.load(Ordering::Relaxed) => {}
            12 => put(JOURNAL, Some(b"{\"chancery\":2} no record"), OwnedHeaders::new()),
            13 => put(EVENTS, Some(b"{}"), OwnedHeaders::new()),
            // Without a broker there is no transaction.
            _ => drop(abort(&config, &id, &good, shared)),
        }
        producer.poll(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(250));
    }
    for producer in &producers {
        // Messages that are not acknowledged by then are dropped.
        let _ = producer.flush(Duration::from_secs(10));
    }
}

/// Sends a message with a header name that is not UTF-8, which Rust's client cannot send.
fn foreign_header_name(brokers: &str, value: &str) {
    let kcat = Command::new("kcat")
        .args(["-b", brokers, "-t", INBOX, "-P", "-p", "0", "-X", "message.timeout.ms=5000", "-H"])
        .arg(OsStr::from_bytes(b"na\xffme=value"))
        .stdin(Stdio::piped())
        .stderr(Stdio::null()) // kcat reports every unavailable broker
        .spawn();
    let mut kcat = kcat.expect("kcat runs (on Debian: apt-get install kcat)");
    // A `kcat` that has already ended reads nothing.
    let _ = kcat.stdin.take().expect("it is piped").write_all(value.as_bytes());
    kcat.wait().expect("it is ours");
}

/// Sends a good message in a transaction, and aborts the transaction.
fn abort(config: &ClientConfig, id: &str, value: &str, shared: &MessageOutcomes) -> Result<()> {
    let producer = transaction(config, "aborting", Duration::from_secs(10))?;
    lock(&shared.aborted).insert(id.to_owned());
    let record = BaseRecord::<(), str>::to(INBOX).partition(0).payload(value).headers(headers(id));
    producer.send(record).map_err(|(error, _)| error).context("send")?;
    producer.flush(Timeout::After(Duration::from_secs(5))).context("flush")?;
    producer.abort_transaction(Duration::from_secs(5)).context("abort")
}

/// Producer with a started transaction.
fn transaction(config: &ClientConfig, name: &str, time: Duration) -> Result<BaseProducer> {
    let producer: BaseProducer = config
        .clone()
        .set("transactional.id", name)
        .set("transaction.timeout.ms", time.as_millis().to_string())
        .create()
        .context("cannot create producer")?;
    producer.init_transactions(Duration::from_secs(5)).context("cannot initialize transactions")?;
    producer.begin_transaction().context("cannot start transaction")?;
    Ok(producer)
}

/// Opens a transaction with a message on the journal and inbox topics, and leaves it open: the brokers end
/// the transaction after `time`.
pub(super) fn leave_transaction_open(brokers: &str, time: Duration) -> Result<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    let producer = transaction(&config, "left-open", time)?;
    for topic in [JOURNAL, INBOX] {
        let record = BaseRecord::<(), str>::to(topic).partition(0).payload("left open");
        producer.send(record).map_err(|(error, _)| error).context("send")?;
    }
    producer.flush(Timeout::After(Duration::from_secs(10))).context("flush")?;
    // A dropped producer does not end its transaction.
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
