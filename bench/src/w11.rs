//! W11: durable appends of 400-byte events to the journal on Kafka, on one broker and on three, beside raw rdkafka.
//!
//! Ours is what the decider does (see W1), on a topic of its own: a record is sealed, sent, read back, judged, mirrored
//! and delivered; then its callers are answered. The *floor* is a program without any of that: one thread collects what
//! waits into one message, sends it with the same settings, and answers its callers when another thread has consumed it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use chancery_journal::kafka::topics::{Role, Topics};
use chancery_journal::kafka::{Client, KafkaJournal, Options};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};

use crate::CALLERS;
use crate::load::{by_turns, round};
use crate::table::{Bar, Cell, Row};
use crate::w1::{Group, How, line};

/// Messages on their way, at most: as the decider has commits.
const DEPTH: usize = 2;
/// What has no outcome after so long fails the run.
const OUTCOME: Duration = Duration::from_secs(20);

/// A cluster of its own; it goes when this does.
struct Brokers {
    client: Client,
    copies: i32,
    holder: Child,
}

impl Brokers {
    fn start(count: i32) -> Result<Brokers> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kafka/hold");
        let dir = crate::folder()?.keep();
        let mut holder = Command::new(script)
            .arg(count.to_string())
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start Kafka")?;
        let mut bootstrap = String::new();
        BufReader::new(holder.stdout.take().context("its words")?).read_line(&mut bootstrap)?;
        ensure!(!bootstrap.is_empty(), "Kafka did not start: see above");
        let client = Client::new(bootstrap.trim(), BTreeMap::new())?;
        Ok(Brokers { client, copies: count, holder })
    }

    /// A topic of its own.
    fn topic(&self) -> Result<String> {
        static TOPICS: AtomicU64 = AtomicU64::new(0);
        let name = format!("w11-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime
            .block_on(async { Topics::of(&self.client)?.make(&name, Role::Journal, 1, self.copies).await })?;
        Ok(name)
    }

    fn ours(&self, callers: usize) -> Result<Cell> {
        let topic = self.topic()?;
        let group = Group::over(How::Left, |folder, sink| {
            let options = Options::new(self.client.clone(), &topic, 0, folder, "bench");
            Ok(Box::new(KafkaJournal::open(&options, sink)?.0))
        })?;
        warm(group.caller(line()))?;
        let cell = round(callers, |_| Ok(group.caller(line())))?;
        group.close()?;
        Ok(cell)
    }

    fn floor(&self, callers: usize) -> Result<Cell> {
        let raw = Raw::open(&self.client, &self.topic()?)?;
        warm(raw.caller())?;
        let cell = round(callers, |_| Ok(raw.caller()))?;
        raw.close()?;
        Ok(cell)
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // It removes the cluster; there is nobody to tell.
        let _ = self.holder.wait();
    }
}

/// A new producer's first acknowledgement takes as long as it takes to introduce itself.
fn warm(mut call: impl FnMut() -> Result<()>) -> Result<()> {
    (0..50).try_for_each(|_| call())
}

enum Word {
    Send(SyncSender<()>),
    Consumed,
    Close,
}

/// The floor.
struct Raw {
    queue: Sender<Word>,
    sender: JoinHandle<Result<()>>,
    consumer: JoinHandle<Result<()>>,
    stop: Arc<AtomicBool>,
}

impl Raw {
    fn open(client: &Client, topic: &str) -> Result<Raw> {
        let (queue, words) = channel();
        let producer = client.producer(OUTCOME).create().context("make a producer")?;
        let (name, told, stop) = (topic.to_owned(), queue.clone(), Arc::new(AtomicBool::new(false)));
        let sender = std::thread::spawn(move || send(&producer, &name, &words));
        let (reader, stops) = (client.reader(topic, 0, 0)?, Arc::clone(&stop));
        let consumer = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                let Some(Ok(message)) = reader.poll(Duration::from_millis(20)) else { continue };
                let bytes: Arc<[u8]> = message.payload().unwrap_or_default().into();
                ensure!(!bytes.is_empty(), "an empty message");
                if told.send(Word::Consumed).is_err() {
                    break;
                }
            }
            Ok(())
        });
        Ok(Raw { queue, sender, consumer, stop })
    }

    fn caller(&self) -> impl FnMut() -> Result<()> + Send + use<> {
        let queue = self.queue.clone();
        let (done, durable) = sync_channel(1);
        move || {
            queue.send(Word::Send(done.clone())).context("send")?;
            durable.recv().context("wait")
        }
    }

    fn close(self) -> Result<()> {
        self.queue.send(Word::Close).context("close")?;
        self.sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        self.stop.store(true, Ordering::Relaxed);
        self.consumer.join().map_err(|_| anyhow::anyhow!("the consumer panicked"))?
    }
}

fn send(
    producer: &ThreadedProducer<DefaultProducerContext>,
    topic: &str,
    words: &Receiver<Word>,
) -> Result<()> {
    let (mut waiting, mut flying) = (Vec::new(), VecDeque::<Vec<SyncSender<()>>>::new());
    let mut payload = Vec::new();
    loop {
        let mut next = Some(words.recv().context("nobody is left")?);
        while let Some(word) = next {
            match word {
                Word::Send(caller) => {
                    payload.extend_from_slice(&line());
                    waiting.push(caller);
                }
                Word::Consumed => {
                    for caller in flying.pop_front().context("nothing was on its way")? {
                        caller.send(()).context("answer")?;
                    }
                }
                Word::Close => {
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

pub(crate) fn run() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for count in [1, 3] {
        let brokers = Brokers::start(count)?;
        for callers in CALLERS {
            let [floor, ours] =
                by_turns([Box::new(|| brokers.floor(callers)), Box::new(|| brokers.ours(callers))])?;
            let times = ours.p50_ms / floor.p50_ms;
            let load = format!("{callers} callers, {count} brokers");
            rows.push(Row::new("W11", load, ours).share_of("raw", floor, 0.7).check(
                "p50 to that of raw",
                times,
                Bar::Below(1.5),
            ));
        }
    }
    Ok(rows)
}
