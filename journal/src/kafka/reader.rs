//! One partition, read in order from an offset on.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::metadata::MetadataTopic;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::client::Client;
use super::{discard, lock};

/// How long a question to the brokers may take.
pub(super) const ASKING: Duration = Duration::from_secs(10);

/// How long it may take until every broker has heard of a topic that was made.
pub(super) const NEWS: Duration = Duration::from_secs(3);
/// Before it is asked for again.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// Pause between questions whether a topic is still there, and how long each may take.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Readers that must fail at a message until it is one that cannot be read.
const FAILURES: u32 = 3;
/// A topic that no broker knows for so long was deleted.
const DELETED: Duration = Duration::from_secs(5);
/// Where nothing comes for so long, the leader is asked how far the partition goes, and so often again.
const QUIET: Duration = Duration::from_secs(5);
/// So many answers in turn settle that the partition ends before what was read, or that it goes on although nothing comes: a
/// leader that was just elected may not know yet.
const ANSWERS: u32 = 3;
/// So much of a message's value is remembered, to know the message again.
const REMEMBERED: usize = 512;
/// A transaction that is open for so long is one that its producer has left.
const LEFT_OPEN: Duration = Duration::from_secs(10);

/// How long a new leader may take: brokers count one as dead after nine seconds, unless they are told otherwise.
pub(super) const ELECTION: Duration = Duration::from_secs(30);

/// The first and the last offset of a partition, as its leader says; one that is being elected is waited for.
pub fn offsets(asking: &BaseConsumer, topic: &str, partition: i32) -> Result<(i64, i64), KafkaError> {
    let until = Instant::now() + ELECTION;
    let mut waits = false;
    loop {
        let code = match asking.fetch_watermarks(topic, partition, ASKING) {
            Err(KafkaError::MetadataFetch(code)) if passes(code) && Instant::now() < until => code,
            told => return told,
        };
        if !waits {
            tracing::warn!(%code, topic, partition, "its leader is waited for");
        }
        waits = true;
        std::thread::sleep(AGAIN);
        // What is known of its leader grows old unless the brokers are asked again.
        let Ok(metadata) = asking.fetch_metadata(Some(topic), ASKING) else { continue };
        let mut partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
        if !partitions.any(|is| is.id() == partition) {
            return Err(KafkaError::MetadataFetch(code));
        }
    }
}

/// Whether whoever was asked does not lead the partition, or nobody does for now, or who does cannot tell yet how far it
/// goes. Of a partition without a leader the client says that it is unknown.
pub(super) fn passes(code: Code) -> bool {
    matches!(
        code,
        Code::NotLeaderForPartition
            | Code::LeaderNotAvailable
            | Code::ReplicaNotAvailable
            | Code::OffsetNotAvailable
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::UnknownPartition
            | Code::RequestTimedOut
            | Code::OperationTimedOut
            | Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::DestroyBroker
    )
}

/// What a poll of a partition gave.
pub enum Polled<'a> {
    /// The next message.
    Message(BorrowedMessage<'a>),
    /// No message came in the time given; see [`PartitionReader::reached`] for whether more is known to be there.
    Nothing,
}

/// A message that was there, or whose place is known, cannot be read any more.
#[derive(Debug, thiserror::Error)]
#[error("read {topic} partition {partition} behind offset {offset}: {reason}")]
pub struct UnreadablePartition {
    topic: String,
    partition: i32,
    /// The offset from which reading went on.
    offset: i64,
    reason: UnreadableReason,
}

#[derive(Debug, thiserror::Error)]
enum UnreadableReason {
    #[error(transparent)]
    Client(#[from] KafkaError),
    #[error("the brokers have no such topic, or no such partition of it, any more")]
    Deleted,
    #[error("the partition has lost its end: it ends before offset {0} now")]
    Shorter(i64),
    #[error("the partition has lost its end: another message stands where the last one that was read stood")]
    Replaced,
}

impl UnreadablePartition {
    /// The offset of the first message that was not read.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Whether the message is not there any more, as against one whose bytes are not those that were written, or are in
    /// a form that this build does not read.
    pub fn is_removed(&self) -> bool {
        match &self.reason {
            UnreadableReason::Client(error) => is_gone(error),
            UnreadableReason::Deleted | UnreadableReason::Shorter(_) | UnreadableReason::Replaced => true,
        }
    }
}

/// One partition of a topic, read in order from an offset on.
///
/// A reader says up to which offset everything has been read ([`PartitionReader::reached`]). That follows from what the
/// leader of the partition said, never from the time in which nothing came: a fetch may be slow.
///
/// A message counts as one that cannot be read only if several readers in turn could not read it, and the leader says that
/// it is there: a connection to something else than a broker gives the same errors.
pub struct PartitionReader {
    client: Client,
    consumer: BaseConsumer<EndOfPartition>,
    topic: String,
    partition: i32,
    /// The offset behind the last message that was read, or behind the end that was reached.
    reached: i64,
    /// Whether anything is known about `reached`: a message came, or an end.
    is_known: bool,
    /// Since the brokers said that they do not know the partition.
    doubt: Option<TopicDoubt>,
    /// How often reading has failed at `reached`.
    failures: u32,
    quiet: QuietPartition,
    /// Where the partition is known to have ended, if that is behind `reached`.
    known_end: i64,
    /// The last message that was read.
    last: Option<KnownMessage>,
    /// The consumer has gone past what it could not read, or gives nothing: another one is needed.
    is_spoilt: bool,
    /// The consumer is a new one and begins with the last message that was read: the message must stand there still.
    compares: bool,
}

/// A message, as far as it takes to know the message again.
#[derive(Clone, PartialEq, Eq, Debug)]
struct KnownMessage {
    offset: i64,
    timestamp: Option<i64>,
    length: usize,
    /// The first bytes of its value: those of a record name the record before.
    begins: Box<[u8]>,
}

impl KnownMessage {
    fn of(message: &BorrowedMessage<'_>) -> KnownMessage {
        let value = message.payload().unwrap_or_default();
        KnownMessage {
            offset: message.offset(),
            timestamp: message.timestamp().to_millis(),
            length: value.len(),
            begins: value[..value.len().min(REMEMBERED)].into(),
        }
    }
}

/// A topic of which brokers said that they do not know it. One that has just started says so, too.
struct TopicDoubt {
    since: Instant,
    asked: Instant,
}

impl TopicDoubt {
    fn new() -> TopicDoubt {
        TopicDoubt { since: Instant::now(), asked: Instant::now() }
    }

    /// Asks the brokers, once a second: whether the partition is there, if that is settled.
    fn settle(
        &mut self,
        consumer: &BaseConsumer<EndOfPartition>,
        topic: &str,
        partition: i32,
    ) -> Option<bool> {
        if self.asked.elapsed() < ASK_AGAIN {
            return None;
        }
        self.asked = Instant::now();
        let Ok(metadata) = consumer.fetch_metadata(Some(topic), ASK_AGAIN) else {
            // Brokers that do not answer say nothing about it.
            self.since = Instant::now();
            return None;
        };
        let mut partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
        if partitions.any(|is| is.id() == partition) {
            return Some(true);
        }
        (self.since.elapsed() > DELETED).then_some(false)
    }
}

/// A partition of which nothing comes. That it was cut off behind a reader is for the client library to find out, when
/// another broker leads; where the library misses that, the reader would wait permanently, also when new messages have taken
/// the place of those that were lost.
///
/// The library knows the brokers of the last metadata only. If all of them die before another one is back, it must begin
/// with the configured brokers again; librdkafka 2.12 may miss the moment, and then asks the dead ones permanently.
struct QuietPartition {
    since: Instant,
    /// Answers in turn that it ends before what was read.
    shorter: u32,
    /// Answers in turn that it goes on behind what was read.
    longer: u32,
    /// Questions in turn without an answer.
    unanswered: u32,
}

/// What the leader of a partition of which nothing comes has settled.
enum QuietReason {
    /// The partition ends before what was read, or was known to be there.
    Shorter(i64),
    /// The partition goes on: the client library does not read on.
    Stalled,
    /// The leader gives no answer, for that reason: another client may get one.
    Unanswered(KafkaError),
}

impl QuietPartition {
    fn new() -> QuietPartition {
        QuietPartition { since: Instant::now(), shorter: 0, longer: 0, unanswered: 0 }
    }

    /// Why nothing comes behind `reached`, if that is settled. The partition is known to have ended at `known_end`.
    fn settle(
        &mut self,
        consumer: &BaseConsumer<EndOfPartition>,
        topic: &str,
        partition: i32,
        reached: i64,
        known_end: i64,
    ) -> Option<QuietReason> {
        if self.since.elapsed() < QUIET {
            return None;
        }
        self.since = Instant::now();
        let end = consumer.fetch_watermarks(topic, partition, ASK_AGAIN).map(|(_, end)| end);
        self.answered(end, reached, known_end)
    }

    fn answered(
        &mut self,
        end: Result<i64, KafkaError>,
        reached: i64,
        known_end: i64,
    ) -> Option<QuietReason> {
        let end = match end {
            Ok(end) => end,
            // It says nothing about the partition.
            Err(error) => {
                self.unanswered += 1;
                if self.unanswered < ANSWERS {
                    return None;
                }
                self.unanswered = 0;
                return Some(QuietReason::Unanswered(error));
            }
        };
        self.unanswered = 0;
        self.shorter = if end < reached.max(known_end) { self.shorter + 1 } else { 0 };
        self.longer = if end > reached { self.longer + 1 } else { 0 };
        // What is left of one that has lost its end is read first.
        if self.longer >= ANSWERS {
            self.longer = 0;
            return Some(QuietReason::Stalled);
        }
        (self.shorter >= ANSWERS && end <= reached).then_some(QuietReason::Shorter(end))
    }
}

impl PartitionReader {
    /// Reads the partition from the offset `from` on.
    pub fn open(
        client: &Client,
        topic: &str,
        partition: i32,
        from: i64,
    ) -> Result<PartitionReader, KafkaError> {
        let consumer = client.reader(topic, partition, from, EndOfPartition::of(partition))?;
        Ok(PartitionReader {
            client: client.clone(),
            consumer,
            topic: topic.to_owned(),
            partition,
            reached: from,
            is_known: false,
            doubt: None,
            failures: 0,
            quiet: QuietPartition::new(),
            known_end: from,
            last: None,
            is_spoilt: false,
            compares: false,
        })
    }

    /// The partition was found to end there: if it ends before, it has lost its end.
    pub fn ended_at(&mut self, end: i64) {
        self.known_end = self.known_end.max(end);
    }

    /// Waits for the next message. What passes by itself (a broker that is away, a leader that is elected) is waited for.
    pub fn poll(&mut self, wait: Duration) -> Result<Polled<'_>, UnreadablePartition> {
        if self.is_spoilt
            && let Err(error) = self.begin_again()
        {
            tracing::warn!(%error, topic = self.topic, "reading waits");
            return Ok(Polled::Nothing);
        }
        // The client puts the messages before an end into its queue before it counts the end. So where an end was counted
        // before, and the queue is empty now, all messages before that end have been read.
        let ends = self.consumer.context().seen();
        match self.consumer.poll(wait) {
            Some(Ok(message)) => {
                let known = KnownMessage::of(&message);
                if std::mem::take(&mut self.compares)
                    && let Some(last) = &self.last
                {
                    if known == *last {
                        return Ok(Polled::Nothing);
                    }
                    return Err(self.unreadable(UnreadableReason::Replaced));
                }
                (self.reached, self.is_known) = (message.offset() + 1, true);
                (self.doubt, self.failures, self.last) = (None, 0, Some(known));
                self.quiet = QuietPartition::new();
                Ok(Polled::Message(message))
            }
            None => {
                let callbacks = &self.consumer.context().callbacks;
                // A poll that served a callback may have ended without a look at the queue.
                if let Some(offset) = ends.offset
                    && callbacks.load(Ordering::Acquire) == ends.callbacks
                    && offset >= self.reached
                {
                    (self.reached, self.is_known) = (offset, true);
                }
                let (reached, known_end) = (self.reached, self.known_end);
                match self.quiet.settle(&self.consumer, &self.topic, self.partition, reached, known_end) {
                    Some(QuietReason::Shorter(end)) if self.is_known => {
                        return Err(self.unreadable(UnreadableReason::Shorter(end)));
                    }
                    Some(QuietReason::Stalled) => {
                        let (topic, partition) = (&self.topic, self.partition);
                        tracing::warn!(
                            topic,
                            partition,
                            reached,
                            "nothing comes of what is there: it is read again"
                        );
                        self.is_spoilt = true;
                    }
                    Some(QuietReason::Unanswered(error)) => {
                        let (topic, partition) = (&self.topic, self.partition);
                        tracing::warn!(
                            %error,
                            topic,
                            partition,
                            reached,
                            "its leader gives no answer: it is read again, beginning with the configured brokers"
                        );
                        self.is_spoilt = true;
                        // A client reports a topic that does not exist after 30 s only, and a new one begins to count again.
                        if matches!(error, KafkaError::MetadataFetch(Code::UnknownPartition)) {
                            self.doubt.get_or_insert_with(TopicDoubt::new);
                        }
                    }
                    Some(QuietReason::Shorter(_)) | None => {}
                }
                let doubt = self.doubt.as_mut();
                match doubt.and_then(|doubt| doubt.settle(&self.consumer, &self.topic, self.partition)) {
                    Some(false) => {
                        return Err(self.unreadable(UnreadableReason::Deleted));
                    }
                    Some(true) => self.doubt = None,
                    None => {}
                }
                Ok(Polled::Nothing)
            }
            // Of several ends in the queue this may be an earlier one: its offset is not given.
            Some(Err(KafkaError::PartitionEOF(_))) => Ok(Polled::Nothing),
            Some(Err(error)) if is_gone(&error) => Err(self.unreadable(error.into())),
            Some(Err(error)) if is_unreadable(&error) => {
                (self.failures, self.is_spoilt) = (self.failures + 1, true);
                let is_there = || {
                    let ends = self.consumer.fetch_watermarks(&self.topic, self.partition, ASKING);
                    ends.is_ok_and(|(_, end)| self.reached < end)
                };
                if self.failures >= FAILURES && is_there() {
                    self.failures = 0;
                    return Err(self.unreadable(error.into()));
                }
                tracing::warn!(%error, topic = self.topic, partition = self.partition, "it is read again");
                Ok(Polled::Nothing)
            }
            Some(Err(error)) => {
                if is_unknown(&error) {
                    self.doubt.get_or_insert_with(TopicDoubt::new);
                }
                tracing::warn!(%error, topic = self.topic, partition = self.partition, "reading waits");
                Ok(Polled::Nothing)
            }
        }
    }

    /// Reads on with another consumer, beginning with the last message that was read.
    fn begin_again(&mut self) -> Result<(), KafkaError> {
        // A peer that is no broker fails at once, each time.
        std::thread::sleep(AGAIN);
        let context = EndOfPartition::of(self.partition);
        let begins = self.consumer.fetch_watermarks(&self.topic, self.partition, ASK_AGAIN);
        // One that retention has removed says nothing about what follows.
        self.last.take_if(|last| begins.is_ok_and(|(begins, _)| begins > last.offset));
        let from = self.last.as_ref().map_or(self.reached, |last| last.offset);
        let consumer = self.client.reader(&self.topic, self.partition, from, context)?;
        discard(std::mem::replace(&mut self.consumer, consumer));
        self.is_spoilt = false;
        self.compares = self.last.is_some();
        Ok(())
    }

    fn unreadable(&self, reason: UnreadableReason) -> UnreadablePartition {
        let (topic, partition) = (self.topic.clone(), self.partition);
        UnreadablePartition { topic, partition, offset: self.reached, reason }
    }

    /// The offset before which every message has been read; `None` before the brokers sent anything. The last offsets of
    /// a partition may hold no message (markers of transactions), so that it may be above that of the last message.
    pub fn reached(&self) -> Option<i64> {
        self.is_known.then_some(self.reached)
    }

    /// The offset at which reading waits, if the producer of the message there has left its transaction open for ten
    /// seconds: until it ends, no message from there on is given to readers of what is committed.
    pub fn open_transaction(&self) -> Option<i64> {
        let waits = *lock(&self.consumer.context().waits);
        waits.filter(|waits| waits.since.elapsed() >= LEFT_OPEN).map(|waits| waits.offset)
    }

    /// The topic and the partition.
    pub(super) fn place(&self) -> (&str, i32) {
        (&self.topic, self.partition)
    }

    /// How far the partition is known to go.
    pub(super) fn tail(&self) -> KnownTail {
        let EndOfPartition { tail, answers, .. } = &**self.consumer.context();
        KnownTail { offset: tail.load(Ordering::Acquire), answers: answers.load(Ordering::Acquire) }
    }
}

/// Takes the end of the one partition that a consumer reads from the client's statistics: the event of an end has no
/// offset there.
pub(super) struct EndOfPartition {
    partition: i32,
    /// The offset of the last end that the leader told, plus one; zero before.
    end: AtomicI64,
    /// How many callbacks were served by polls.
    callbacks: AtomicU64,
    /// The offset behind the last message that may be read, as the leader told it last.
    tail: AtomicI64,
    /// How many answers the partition's leader has given.
    answers: AtomicU64,
    /// The open transaction behind which messages stand, if there is one.
    waits: Mutex<Option<OpenTransaction>>,
}

/// A transaction that has not ended, with messages behind its first one that may not be read yet.
#[derive(Clone, Copy)]
struct OpenTransaction {
    /// The offset of its first message.
    offset: i64,
    since: Instant,
}

/// How far a partition is known to go.
pub(super) struct KnownTail {
    /// The offset behind the last message that may be read.
    pub(super) offset: i64,
    /// How many answers the partition's leader has given; it grows for as long as the leader answers.
    pub(super) answers: u64,
}

/// What was known when a poll began.
struct SeenEnd {
    offset: Option<i64>,
    callbacks: u64,
}

impl EndOfPartition {
    fn of(partition: i32) -> EndOfPartition {
        EndOfPartition {
            partition,
            end: AtomicI64::new(0),
            callbacks: AtomicU64::new(0),
            tail: AtomicI64::new(0),
            answers: AtomicU64::new(0),
            waits: Mutex::new(None),
        }
    }

    fn seen(&self) -> SeenEnd {
        let end = self.end.load(Ordering::Acquire);
        SeenEnd { offset: (end > 0).then(|| end - 1), callbacks: self.callbacks.load(Ordering::Acquire) }
    }
}

impl ClientContext for EndOfPartition {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.callbacks.fetch_add(1, Ordering::AcqRel);
        DefaultClientContext.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The library counts the end of a partition among errors.
        if error != KafkaError::Global(Code::PartitionEOF) {
            DefaultClientContext.error(error, reason);
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.callbacks.fetch_add(1, Ordering::AcqRel);
        match serde_json::from_slice::<ClientStatistics>(statistics) {
            Ok(statistics) => {
                // The topic's other partitions are there, too.
                let number = self.partition.to_string();
                let own = statistics.topics.values().find_map(|topic| topic.partitions.get(&number));
                let Some(own) = own else { return };
                self.end.store(own.eof_offset.max(-1) + 1, Ordering::Release);
                self.tail.store(own.ls_offset.max(0), Ordering::Release);
                let mut waits = lock(&self.waits);
                *waits = (own.ls_offset < own.hi_offset).then(|| match *waits {
                    Some(open) if open.offset == own.ls_offset => open,
                    _ => OpenTransaction { offset: own.ls_offset, since: Instant::now() },
                });
                // Where no leader is known, its number is that of the configured brokers.
                let leader = statistics.brokers.values().find(|broker| broker.nodeid == own.broker);
                if let Some(leader) = leader.filter(|leader| leader.nodeid >= 0) {
                    self.answers.store(leader.rx, Ordering::Release);
                }
            }
            Err(error) => tracing::error!(%error, "the statistics of the Kafka client cannot be read"),
        }
    }
}

impl ConsumerContext for EndOfPartition {}

/// What is needed of the client's statistics (librdkafka, STATISTICS.md).
#[derive(serde::Deserialize)]
struct ClientStatistics {
    #[serde(default)]
    brokers: BTreeMap<String, BrokerStatistics>,
    #[serde(default)]
    topics: BTreeMap<String, TopicStatistics>,
}

#[derive(serde::Deserialize)]
struct BrokerStatistics {
    nodeid: i32,
    rx: u64,
}

#[derive(serde::Deserialize)]
struct TopicStatistics {
    #[serde(default)]
    partitions: BTreeMap<String, PartitionStatistics>,
}

#[derive(serde::Deserialize)]
struct PartitionStatistics {
    broker: i32,
    eof_offset: i64,
    ls_offset: i64,
    hi_offset: i64,
}

/// Whether what is read stands there no more, as against what passes by itself.
fn is_gone(error: &KafkaError) -> bool {
    match error {
        KafkaError::MessageConsumptionFatal(_) => true,
        KafkaError::MessageConsumption(code) => {
            matches!(code, Code::OffsetOutOfRange | Code::AutoOffsetReset)
        }
        // A broker that is away, a leader that is elected, and whatever a later library adds.
        _ => false,
    }
}

/// Whether the brokers do not know the partition.
fn is_unknown(error: &KafkaError) -> bool {
    matches!(
        error,
        KafkaError::MessageConsumption(
            Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition
        )
    )
}

/// Whether the bytes that stand there are not those that were written, or of a codec that the client lacks. A journal cannot
/// go on without them.
fn is_unreadable(error: &KafkaError) -> bool {
    matches!(
        error,
        KafkaError::MessageConsumption(
            Code::InvalidMessage | Code::BadMessage | Code::BadCompression | Code::NotImplemented
        )
    )
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

    use super::*;

    #[test]
    fn the_end_of_each_partition_is_known_and_an_empty_one_has_an_end_too() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("it", 3, 1).unwrap();
        let client = Client::new(&cluster.bootstrap_servers(), BTreeMap::new()).unwrap();
        for partition in 0..3 {
            let mut reader = PartitionReader::open(&client, "it", partition, 0).unwrap();
            assert_eq!(reader.reached(), None, "nothing is known before the leader has said anything");
            let until = Instant::now() + ELECTION;
            while reader.reached() != Some(0) {
                assert!(Instant::now() < until, "partition {partition}: {:?}", reader.reached());
                assert!(matches!(reader.poll(Duration::from_millis(50)).unwrap(), Polled::Nothing));
            }
        }
    }

    #[test]
    fn what_a_configured_broker_answers_is_no_answer_of_a_leader() {
        // Leader of the partition, as far as it is known; whether its answers count.
        for (leader, wanted) in [(-1, 0), (2, 7)] {
            let statistics = serde_json::json!({
                "brokers": {"b:1/bootstrap": {"nodeid": -1, "rx": 5}, "b:1/2": {"nodeid": 2, "rx": 7}},
                "topics": {"it": {"partitions": {"0": {
                    "broker": leader, "eof_offset": -1001, "ls_offset": -1001, "hi_offset": -1001,
                }}}},
            });
            let context = EndOfPartition::of(0);
            context.stats_raw(statistics.to_string().as_bytes());
            assert_eq!(context.answers.load(Ordering::Acquire), wanted, "leader {leader}");
        }
    }

    #[test]
    fn answers_in_turn_settle_why_nothing_comes() {
        const NOTHING: &str = "nothing";
        /// No answer.
        const NONE: i64 = -1;
        // Where the partition ended, as it was found; the ends that its leader tells of it, in their order; what is settled. Everything
        // before offset 10 was read.
        let table: [(i64, &[i64], &str); 13] = [
            (0, &[10, 10, 10, 10], NOTHING),
            (0, &[9, 9], NOTHING),
            (0, &[9, 9, 9], "shorter"),
            (0, &[9, 9, 10, 9, 9], NOTHING),
            (0, &[11, 12, 13], "stalled"),
            (0, &[11, 12, 10, 12, 13], NOTHING),
            (20, &[10, 10, 10], "shorter"),
            (20, &[15, 15, 15], "stalled"),
            (0, &[NONE, NONE], NOTHING),
            (0, &[NONE, NONE, NONE], "unanswered"),
            (0, &[NONE, NONE, 10, NONE, NONE], NOTHING),
            (0, &[9, NONE, 9, NONE, 9], "shorter"),
            (0, &[11, NONE, NONE, 12, 13], "stalled"),
        ];
        for (known_end, ends, wanted) in table {
            let mut quiet = QuietPartition::new();
            let answer = |end: i64| {
                if end == NONE { Err(KafkaError::MetadataFetch(Code::OffsetNotAvailable)) } else { Ok(end) }
            };
            let told: Vec<_> = ends.iter().map(|end| quiet.answered(answer(*end), 10, known_end)).collect();
            let settled = match told.last().expect("an answer") {
                Some(QuietReason::Shorter(_)) => "shorter",
                Some(QuietReason::Stalled) => "stalled",
                Some(QuietReason::Unanswered(_)) => "unanswered",
                None => NOTHING,
            };
            assert_eq!(settled, wanted, "{known_end}, {ends:?}");
            assert!(told[..told.len() - 1].iter().all(Option::is_none), "{known_end}, {ends:?}");
        }
    }

    #[test]
    fn a_reader_that_begins_anew_repeats_nothing_and_finds_another_message_in_the_place_of_the_last() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("it", 1, 1).unwrap();
        let servers = cluster.bootstrap_servers();
        let client = Client::new(&servers, BTreeMap::new()).unwrap();
        let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
        let send = |value: &str| {
            producer.send(BaseRecord::<(), str>::to("it").partition(0).payload(value)).unwrap();
            producer.flush(ELECTION).unwrap();
        };
        let next = |reader: &mut PartitionReader| {
            let until = Instant::now() + ELECTION;
            loop {
                assert!(Instant::now() < until, "nothing comes");
                if let Polled::Message(message) = reader.poll(Duration::from_millis(50))? {
                    return Ok(String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned());
                }
            }
        };
        let mut reader = PartitionReader::open(&client, "it", 0, 0).unwrap();
        for value in ["one", "two"] {
            send(value);
            assert_eq!(next(&mut reader).map_err(|it: UnreadablePartition| it.to_string()).unwrap(), value);
        }
        reader.is_spoilt = true;
        send("three");
        assert_eq!(next(&mut reader).unwrap(), "three");
        reader.last.as_mut().expect("a message").length += 1;
        reader.is_spoilt = true;
        send("four");
        let replaced = next(&mut reader).expect_err("another message stands there");
        assert!(replaced.is_removed() && replaced.offset() == 3, "{replaced}");
    }

    #[test]
    fn a_reader_whose_client_knows_only_brokers_that_are_gone_begins_again_with_those_of_the_settings() {
        let [gone, cluster] = [(); 2].map(|()| {
            let cluster = MockCluster::new(1).unwrap();
            cluster.create_topic("it", 1, 1).unwrap();
            cluster
        });
        let [stale, client] = [&gone, &cluster]
            .map(|cluster| Client::new(&cluster.bootstrap_servers(), BTreeMap::new()).unwrap());
        let mut reader = PartitionReader::open(&stale, "it", 0, 0).unwrap();
        let until = Instant::now() + ELECTION;
        while reader.reached().is_none() {
            assert!(Instant::now() < until, "the first cluster answers");
            assert!(matches!(reader.poll(Duration::from_millis(50)).unwrap(), Polled::Nothing));
        }
        drop(gone);
        reader.client = client;
        let producer: BaseProducer =
            ClientConfig::new().set("bootstrap.servers", cluster.bootstrap_servers()).create().unwrap();
        producer.send(BaseRecord::<(), str>::to("it").partition(0).payload("one")).unwrap();
        producer.flush(ELECTION).unwrap();
        let until = Instant::now() + ELECTION;
        loop {
            assert!(Instant::now() < until, "nothing comes");
            // It has been quiet for long.
            reader.quiet.since = Instant::now().checked_sub(QUIET).expect("the machine has run for so long");
            if let Polled::Message(message) = reader.poll(Duration::from_millis(50)).unwrap() {
                assert_eq!(message.payload(), Some(&b"one"[..]));
                return;
            }
        }
    }

    #[test]
    fn a_partition_without_a_leader_is_waited_for_and_one_that_does_not_exist_is_not() {
        let cluster = MockCluster::new(2).unwrap();
        cluster.create_topic("it", 1, 2).unwrap();
        let asking: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", cluster.bootstrap_servers()).create().unwrap();
        assert_eq!(offsets(&asking, "it", 0), Ok((0, 0)));
        assert!(offsets(&asking, "it", 7).is_err());
        for knows in [true, false] {
            let asking: BaseConsumer =
                ClientConfig::new().set("bootstrap.servers", cluster.bootstrap_servers()).create().unwrap();
            if knows {
                offsets(&asking, "it", 0).unwrap();
            }
            cluster.partition_leader("it", 0, None).unwrap();
            std::thread::scope(|scope| {
                let told = scope.spawn(|| offsets(&asking, "it", 0));
                // Longer than the client takes to find out that nobody leads it.
                std::thread::sleep(Duration::from_secs(2));
                assert!(!told.is_finished(), "{:?}", told.join());
                cluster.partition_leader("it", 0, Some(2)).unwrap();
                assert_eq!(told.join().unwrap(), Ok((0, 0)));
            });
        }
    }
}
