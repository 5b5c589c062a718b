//! W11: the journal on Kafka, on one broker and on three, compared with raw rdkafka. Measured are durable
//! appends of 400-byte events in this process, and durable intents over HTTP.
//!
//! *Appends* do the decider's work (see W1), on a topic of their own: a record is sealed, sent, read back,
//! judged, mirrored and delivered. Then its callers are answered. *Intents* are W2 with the journal on Kafka.
//! The *floor* does none of that: one thread collects waiting entries into one message and sends it with the
//! same settings. Another thread consumes the message, and then the callers are answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use chancery_journal::kafka::{KafkaClient, KafkaJournal, KafkaOptions};
use rdkafka::consumer::{BaseConsumer, Consumer as _, DefaultConsumerContext};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::append::{AppendMethod, GroupAppend, line};
use crate::brokers::{BenchmarkBrokers, decider, server};
use crate::load::{by_turns, round};
use crate::table::{CellResult, ResultRow, ValueBar};
use crate::{CALLERS, intents};

/// Maximum number of messages in flight: the decider's limit of commits.
const DEPTH: usize = 2;
/// Maximum time for an outcome; a later one fails the run.
const OUTCOME: Duration = Duration::from_secs(20);

/// Measures Chancery's journal in this process.
fn ours(brokers: &BenchmarkBrokers, callers: usize) -> Result<CellResult> {
    let (names, _) = brokers.fleet()?;
    let group = GroupAppend::over(AppendMethod::Left, |directory, sink| {
        let options = KafkaOptions::new(brokers.client.clone(), &names.journal, 0, directory, "bench");
        Ok(Box::new(KafkaJournal::open(&options, sink)?.0))
    })?;
    warm(group.caller(line()))?;
    let cell = round(callers, |_| Ok(group.caller(line())))?;
    group.close()?;
    Ok(cell)
}

/// Measures intents over HTTP on a complete server.
fn intents(brokers: &BenchmarkBrokers, callers: usize) -> Result<CellResult> {
    let (_, journal) = brokers.fleet()?;
    let servers = [server(&journal)?];
    decider(&servers)?;
    let [server] = servers;
    warm(intents::caller(server.client()?, callers))?;
    server.round(callers, |client, number| Ok(intents::caller(client, number)))
}

fn baseline(brokers: &BenchmarkBrokers, callers: usize, set: ActiveSet) -> Result<CellResult> {
    let raw = RawClients::open(&brokers.client, &brokers.fleet()?.0.journal, set)?;
    warm(raw.caller())?;
    let cell = round(callers, |_| Ok(raw.caller()))?;
    raw.close()?;
    Ok(cell)
}

/// Warms up: a new producer's first acknowledgement includes its registration.
fn warm(mut call: impl FnMut() -> Result<()>) -> Result<()> {
    (0..50).try_for_each(|_| call())
}

enum SenderInput {
    Send(SyncSender<()>),
    Consumed,
    Close,
}

/// Settings of the floor's clients.
#[derive(Clone, Copy)]
enum ActiveSet {
    /// Same settings as Chancery.
    Same,
    /// Defaults, except for settings that make a record safe.
    Defaults,
}

impl ActiveSet {
    fn clients(self, client: &KafkaClient, topic: &str) -> Result<(RawProducer, BaseConsumer)> {
        let producer = match self {
            ActiveSet::Same => client.producer(OUTCOME),
            ActiveSet::Defaults => {
                let mut config = ClientConfig::new();
                config.set("bootstrap.servers", client.brokers()).set("enable.idempotence", "true");
                config
            }
        };
        let reader = match self {
            ActiveSet::Same => client.reader(topic, 0, 0, DefaultConsumerContext)?,
            ActiveSet::Defaults => {
                let mut config = ClientConfig::new();
                config.set("bootstrap.servers", client.brokers()).set("group.id", "bench");
                let reader: BaseConsumer = config.create()?;
                let mut place = TopicPartitionList::new();
                place.add_partition_offset(topic, 0, Offset::Offset(0))?;
                reader.assign(&place)?;
                reader
            }
        };
        Ok((producer.create().context("cannot create producer")?, reader))
    }
}

type RawProducer = ThreadedProducer<DefaultProducerContext>;

/// Clients of the floor.
struct RawClients {
    queue: Sender<SenderInput>,
    sender: JoinHandle<Result<()>>,
    consumer: JoinHandle<Result<()>>,
    stop: Arc<AtomicBool>,
}

impl RawClients {
    fn open(client: &KafkaClient, topic: &str, set: ActiveSet) -> Result<RawClients> {
        let (queue, words) = channel();
        let (producer, reader) = set.clients(client, topic)?;
        let (name, inputs, stop) = (topic.to_owned(), queue.clone(), Arc::new(AtomicBool::new(false)));
        let sender = std::thread::spawn(move || send(&producer, &name, &words));
        let stops = Arc::clone(&stop);
        let consumer = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                let Some(Ok(message)) = reader.poll(Duration::from_millis(20)) else { continue };
                let bytes: Arc<[u8]> = message.payload().unwrap_or_default().into();
                ensure!(!bytes.is_empty(), "an empty message");
                if inputs.send(SenderInput::Consumed).is_err() {
                    break;
                }
            }
            Ok(())
        });
        Ok(RawClients { queue, sender, consumer, stop })
    }

    fn caller(&self) -> impl FnMut() -> Result<()> + Send + use<> {
        let queue = self.queue.clone();
        let (done, durable) = sync_channel(1);
        move || {
            queue.send(SenderInput::Send(done.clone())).context("send")?;
            durable.recv().context("wait")
        }
    }

    fn close(self) -> Result<()> {
        self.queue.send(SenderInput::Close).context("close")?;
        self.sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        self.stop.store(true, Ordering::Relaxed);
        self.consumer.join().map_err(|_| anyhow::anyhow!("the consumer panicked"))?
    }
}

fn send(producer: &RawProducer, topic: &str, words: &Receiver<SenderInput>) -> Result<()> {
    let (mut waiting, mut flying) = (Vec::new(), VecDeque::<Vec<SyncSender<()>>>::new());
    let mut payload = Vec::new();
    loop {
        let mut next = Some(words.recv().context("no caller is left")?);
        while let Some(word) = next {
            match word {
                SenderInput::Send(caller) => {
                    payload.extend_from_slice(&line());
                    waiting.push(caller);
                }
                SenderInput::Consumed => {
                    for caller in flying.pop_front().context("nothing was in flight")? {
                        caller.send(()).context("answer")?;
                    }
                }
                SenderInput::Close => {
                    producer.flush(OUTCOME)?;
                    return Ok(());
                }
            }
            next = words.try_recv().ok();
        }
        if flying.len() < DEPTH && !waiting.is_empty() {
            let record = BaseRecord::<(), [u8]>::to(topic).partition(0).payload(&payload);
            producer.send(record).map_err(|(error, _)| error).context("send")?;
            payload.clear();
            flying.push_back(std::mem::take(&mut waiting));
        }
    }
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut rows = Vec::new();
    for count in [1, 3] {
        let brokers = BenchmarkBrokers::start(count)?;
        for callers in CALLERS {
            let [raw, plain, ours, intents] = by_turns([
                Box::new(|| baseline(&brokers, callers, ActiveSet::Same)),
                Box::new(|| baseline(&brokers, callers, ActiveSet::Defaults)),
                Box::new(|| ours(&brokers, callers)),
                Box::new(|| intents(&brokers, callers)),
            ])?;
            for (what, cell) in [("appends", ours), ("intents", intents)] {
                let times = cell.p50_ms / raw.p50_ms;
                let load = format!("{callers} {what}, {count} br");
                let row = ResultRow::new("W11", load, cell).share_of("raw", raw.clone(), 0.7);
                let row = row.compared_with("raw, defaults", plain.clone());
                rows.push(row.check("p50 to that of raw", times, ValueBar::Below(1.5)));
            }
        }
    }
    Ok(rows)
}
