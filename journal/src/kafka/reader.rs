//! Reader of one partition, in order from an offset on.

use std::collections::BTreeMap;
use std::fmt;
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

use super::client::KafkaClient;
use super::{discard, lock};

/// Timeout of a query to the brokers.
pub(super) const ASKING: Duration = Duration::from_secs(10);

/// Time until every broker knows a topic that was created.
pub(super) const NEWS: Duration = Duration::from_secs(3);
/// Pause before the brokers are queried again.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// Pause between queries whether a topic exists, and the timeout of each.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Number of readers that must fail at a message until it counts as unreadable.
const FAILURES: u32 = 3;
/// Time after which a topic that no broker knows counts as deleted.
const DELETED: Duration = Duration::from_secs(5);
/// Time without messages until the leader is asked for the end, and between these queries.
const QUIET: Duration = Duration::from_secs(5);
/// Number of consecutive answers that prove that the partition ends early, or that messages exist but do not
/// arrive. A leader that was just elected perhaps does not know the end yet.
const ANSWERS: u32 = 3;
/// Number of bytes of a message's value that are kept, to recognize the message.
const REMEMBERED: usize = 512;
/// Time after which an open transaction counts as abandoned.
const LEFT_OPEN: Duration = Duration::from_secs(10);

/// Time limit of an election: brokers count one as dead after nine seconds by default.
pub(super) const ELECTION: Duration = Duration::from_secs(30);

/// Returns the first offset and the end of a partition, as its leader reports them. Waits while a leader is
/// elected.
pub fn offsets(asking: &BaseConsumer, topic: &str, partition: i32) -> Result<(i64, i64), KafkaError> {
    let until = Instant::now() + ELECTION;
    let mut waits = false;
    loop {
        let code = match asking.fetch_watermarks(topic, partition, ASKING) {
            Err(KafkaError::MetadataFetch(code)) if passes(code) && Instant::now() < until => code,
            result => return result,
        };
        if !waits {
            tracing::warn!(%code, topic, partition, "partition leader not available, waiting");
        }
        waits = true;
        std::thread::sleep(AGAIN);
        // Metadata about the leader becomes stale unless the brokers are asked again.
        let Ok(metadata) = asking.fetch_metadata(Some(topic), ASKING) else { continue };
        let mut partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
        if !partitions.any(|is| is.id() == partition) {
            return Err(KafkaError::MetadataFetch(code));
        }
    }
}

/// Whether the error is temporary: the broker does not lead the partition, no broker does, or the leader does
/// not know the end yet. For a partition without a leader, the client reports that the partition is unknown.
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

/// Result of polling a partition.
pub enum PollResult<'a> {
    /// Next message.
    Message(BorrowedMessage<'a>),
    /// No message arrived in time; [`PartitionReader::reached`] shows whether more is known to exist.
    Nothing,
}

/// Message that existed, or whose offset is known, but cannot be read any more.
#[derive(Debug, thiserror::Error)]
#[error("cannot read partition {partition} of topic {topic} at offset {offset}: {reason}")]
pub struct UnreadablePartition {
    topic: String,
    partition: i32,
    /// Offset at which reading stopped.
    offset: i64,
    reason: UnreadableReason,
}

#[derive(Debug)]
enum UnreadableReason {
    Client(KafkaError),
    Deleted,
    Shorter(i64),
    Replaced,
}

impl fmt::Display for UnreadableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnreadableReason::Client(error) => fmt::Display::fmt(error, f),
            UnreadableReason::Deleted => f.write_str("the topic or the partition was deleted"),
            UnreadableReason::Shorter(offset) => {
                write!(f, "the partition has lost its end, and now ends before offset {offset}")
            }
            UnreadableReason::Replaced => f.write_str(
                "the partition has lost its end, and has another message at the last offset that was read",
            ),
        }
    }
}

impl UnreadablePartition {
    /// Returns the offset of the first message that was not read.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Returns the reason without topic, partition and offset.
    pub fn reason(&self) -> String {
        self.reason.to_string()
    }

    /// Whether the message was removed, as opposed to one with altered bytes, or in a format that this build
    /// does not read.
    pub fn is_removed(&self) -> bool {
        match &self.reason {
            UnreadableReason::Client(error) => is_gone(error),
            UnreadableReason::Deleted | UnreadableReason::Shorter(_) | UnreadableReason::Replaced => true,
        }
    }
}

/// Reader of one partition of a topic, in order from an offset on.
///
/// [`PartitionReader::reached`] returns the offset up to which everything has been read. The offset follows
/// from answers of the partition's leader, never from a time without messages: a fetch may be slow.
///
/// A message counts as unreadable only if several consecutive readers failed to read it, and the leader
/// reports that it exists. A connection to a peer that is not a broker causes the same errors.
pub struct PartitionReader {
    client: KafkaClient,
    consumer: BaseConsumer<EndOfPartition>,
    topic: String,
    partition: i32,
    /// Offset after the last message read, or the end that was reached.
    reached: i64,
    /// Whether `reached` is confirmed by a message or an end.
    is_known: bool,
    /// Set when the brokers reported that they do not know the partition.
    doubt: Option<TopicDoubt>,
    /// Number of failures at `reached`.
    failures: u32,
    quiet: QuietPartition,
    /// Known end of the partition, if that is after `reached`.
    known_end: i64,
    /// Last message that was read.
    last: Option<KnownMessage>,
    /// Whether the consumer must be replaced: it skipped an unreadable message, or returns nothing.
    is_spoilt: bool,
    /// Whether the consumer is new and starts with the last message read, which must still be there.
    compares: bool,
}

/// Attributes by which a message is recognized.
#[derive(Clone, PartialEq, Eq, Debug)]
struct KnownMessage {
    offset: i64,
    timestamp: Option<i64>,
    length: usize,
    /// First bytes of the value: those of a record name the previous record.
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

/// Topic that brokers reported as unknown. A broker that has just started does so, too.
struct TopicDoubt {
    since: Instant,
    asked: Instant,
}

impl TopicDoubt {
    fn new() -> TopicDoubt {
        TopicDoubt { since: Instant::now(), asked: Instant::now() }
    }

    /// Asks the brokers once a second. Returns whether the partition exists, if that is certain.
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
            // Without an answer from the brokers, nothing is proved.
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

/// Partition from which no messages arrive. When another broker leads, the client library should detect a
/// truncation. If the library misses it, the reader would wait permanently, even when new messages have
/// replaced the lost ones.
///
/// The library knows only the brokers of the last metadata. If all die before another one is back, it must
/// restart with the configured brokers. But librdkafka 2.12 may miss that, and then asks the dead ones
/// permanently.
struct QuietPartition {
    since: Instant,
    /// Consecutive answers with an end before `reached` or the known end.
    shorter: u32,
    /// Consecutive answers with an end after `reached`.
    longer: u32,
    /// Consecutive queries without an answer.
    unanswered: u32,
}

/// Reason why no messages arrive, from the leader's answers.
enum QuietReason {
    /// The partition ends before messages that were read, or known to exist.
    Shorter(i64),
    /// Messages exist, but the client library does not read them.
    Stalled,
    /// The leader does not answer, with this error: another client may get an answer.
    Unanswered(KafkaError),
}

impl QuietPartition {
    fn new() -> QuietPartition {
        QuietPartition { since: Instant::now(), shorter: 0, longer: 0, unanswered: 0 }
    }

    /// Returns the reason why nothing arrives after `reached`, if it is certain. `known_end` is the known end
    /// of the partition.
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
            // An error proves nothing about the partition.
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
        // The remaining messages of a truncated partition are read first.
        if self.longer >= ANSWERS {
            self.longer = 0;
            return Some(QuietReason::Stalled);
        }
        (self.shorter >= ANSWERS && end <= reached).then_some(QuietReason::Shorter(end))
    }
}

impl PartitionReader {
    /// Opens a reader of the partition from the offset `from` on.
    pub fn open(
        client: &KafkaClient,
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

    /// Sets the known end: a partition that ends before it has lost its end.
    pub fn ended_at(&mut self, end: i64) {
        self.known_end = self.known_end.max(end);
    }

    /// Waits for the next message. Temporary errors (a missing broker, an election) only delay it.
    pub fn poll(&mut self, wait: Duration) -> Result<PollResult<'_>, UnreadablePartition> {
        if self.is_spoilt
            && let Err(error) = self.begin_again()
        {
            tracing::warn!(%error, topic = self.topic, "partition reader not restarted, retrying");
            return Ok(PollResult::Nothing);
        }
        // The client queues the messages before an end, then counts the end. So if an end was counted earlier
        // and the queue is empty now, all messages before that end have been read.
        let (end, callbacks) = self.consumer.context().seen();
        match self.consumer.poll(wait) {
            Some(Ok(message)) => {
                let known = KnownMessage::of(&message);
                if std::mem::take(&mut self.compares)
                    && let Some(last) = &self.last
                {
                    if known == *last {
                        return Ok(PollResult::Nothing);
                    }
                    return Err(self.unreadable(UnreadableReason::Replaced));
                }
                (self.reached, self.is_known) = (message.offset() + 1, true);
                (self.doubt, self.failures, self.last) = (None, 0, Some(known));
                self.quiet = QuietPartition::new();
                Ok(PollResult::Message(message))
            }
            None => {
                // A poll that served a callback may have ended without checking the queue.
                if let Some(offset) = end
                    && self.consumer.context().callbacks.load(Ordering::Acquire) == callbacks
                    && offset >= self.reached
                {
                    (self.reached, self.is_known) = (offset, true);
                }
                let (topic, partition) = (&self.topic, self.partition);
                let (reached, known_end) = (self.reached, self.known_end);
                match self.quiet.settle(&self.consumer, topic, partition, reached, known_end) {
                    Some(QuietReason::Shorter(end)) if self.is_known => {
                        return Err(self.unreadable(UnreadableReason::Shorter(end)));
                    }
                    Some(QuietReason::Stalled) => {
                        tracing::warn!(
                            topic,
                            partition,
                            reached,
                            "messages do not arrive, restarting partition reader"
                        );
                        self.is_spoilt = true;
                    }
                    Some(QuietReason::Unanswered(error)) => {
                        tracing::warn!(
                            %error,
                            topic,
                            partition,
                            reached,
                            "leader does not answer, restarting partition reader from the configured brokers"
                        );
                        self.is_spoilt = true;
                        // A client reports a missing topic after 30 s only, and a new client restarts that
                        // time.
                        if matches!(error, KafkaError::MetadataFetch(Code::UnknownPartition)) {
                            self.doubt.get_or_insert_with(TopicDoubt::new);
                        }
                    }
                    Some(QuietReason::Shorter(_)) | None => {}
                }
                let doubt = self.doubt.as_mut();
                match doubt.and_then(|doubt| doubt.settle(&self.consumer, topic, partition)) {
                    Some(false) => return Err(self.unreadable(UnreadableReason::Deleted)),
                    Some(true) => self.doubt = None,
                    None => {}
                }
                Ok(PollResult::Nothing)
            }
            // Of several ends in the queue this may be an earlier one: its offset is unknown.
            Some(Err(KafkaError::PartitionEOF(_))) => Ok(PollResult::Nothing),
            Some(Err(error)) if is_gone(&error) => Err(self.unreadable(UnreadableReason::Client(error))),
            Some(Err(error)) if is_unreadable(&error) => {
                (self.failures, self.is_spoilt) = (self.failures + 1, true);
                let is_there = || {
                    let ends = self.consumer.fetch_watermarks(&self.topic, self.partition, ASKING);
                    ends.is_ok_and(|(_, end)| self.reached < end)
                };
                if self.failures >= FAILURES && is_there() {
                    self.failures = 0;
                    return Err(self.unreadable(UnreadableReason::Client(error)));
                }
                tracing::warn!(%error, topic = self.topic, partition = self.partition, "message unreadable, reading it again");
                Ok(PollResult::Nothing)
            }
            Some(Err(error)) => {
                if is_unknown(&error) {
                    self.doubt.get_or_insert_with(TopicDoubt::new);
                }
                tracing::warn!(%error, topic = self.topic, partition = self.partition, "partition read failed, retrying");
                Ok(PollResult::Nothing)
            }
        }
    }

    /// Continues with another consumer, starting with the last message read.
    fn begin_again(&mut self) -> Result<(), KafkaError> {
        // A peer that is not a broker fails immediately, each time.
        std::thread::sleep(AGAIN);
        let context = EndOfPartition::of(self.partition);
        let begins = self.consumer.fetch_watermarks(&self.topic, self.partition, ASK_AGAIN);
        // A message removed by retention proves nothing about later ones.
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

    /// Returns the offset before which every message has been read; `None` before the brokers sent anything.
    /// The result may exceed the last message's offset, as transaction markers may follow.
    pub fn reached(&self) -> Option<i64> {
        self.is_known.then_some(self.reached)
    }

    /// Returns the offset at which reading waits for a transaction that was open for at least ten seconds.
    /// Until it ends, readers of committed messages receive nothing from there on.
    pub fn open_transaction(&self) -> Option<i64> {
        let waits = *lock(&self.consumer.context().waits);
        waits.filter(|waits| waits.since.elapsed() >= LEFT_OPEN).map(|waits| waits.offset)
    }

    /// Returns the offset after the last committed message that is known, of those that the leader has reported.
    pub fn known_end(&self) -> i64 {
        self.reached.max(self.tail().offset)
    }

    pub(super) fn place(&self) -> (&str, i32) {
        (&self.topic, self.partition)
    }

    pub(super) fn tail(&self) -> KnownTail {
        let EndOfPartition { tail, answers, .. } = &**self.consumer.context();
        KnownTail { offset: tail.load(Ordering::Acquire), answers: answers.load(Ordering::Acquire) }
    }
}

/// Context that takes the end of a consumer's one partition from the client's statistics: the end event has
/// no offset.
#[derive(Default)]
pub(super) struct EndOfPartition {
    partition: i32,
    /// Offset of the last end that the leader reported, plus one; zero before.
    end: AtomicI64,
    /// Number of callbacks served by polls.
    callbacks: AtomicU64,
    /// Offset after the last readable message, as the leader last reported it.
    tail: AtomicI64,
    /// Number of answers from the partition's leader.
    answers: AtomicU64,
    /// Open transaction that blocks messages, if there is one.
    waits: Mutex<Option<OpenTransaction>>,
}

/// Transaction that has not ended; messages after its first one cannot be read yet.
#[derive(Clone, Copy)]
struct OpenTransaction {
    /// Offset of the transaction's first message.
    offset: i64,
    since: Instant,
}

/// Known end of a partition.
pub(super) struct KnownTail {
    /// Offset after the last readable message.
    pub(super) offset: i64,
    /// Number of answers from the partition's leader; it grows while the leader answers.
    pub(super) answers: u64,
}

impl EndOfPartition {
    fn of(partition: i32) -> EndOfPartition {
        EndOfPartition { partition, ..EndOfPartition::default() }
    }

    /// Returns the offset of the last end, if there was one, and the number of callbacks.
    fn seen(&self) -> (Option<i64>, u64) {
        let end = self.end.load(Ordering::Acquire);
        ((end > 0).then(|| end - 1), self.callbacks.load(Ordering::Acquire))
    }
}

impl ClientContext for EndOfPartition {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.callbacks.fetch_add(1, Ordering::AcqRel);
        DefaultClientContext.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The library reports the end of a partition as an error.
        if error != KafkaError::Global(Code::PartitionEOF) {
            DefaultClientContext.error(error, reason);
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.callbacks.fetch_add(1, Ordering::AcqRel);
        match serde_json::from_slice::<ClientStatistics>(statistics) {
            Ok(statistics) => {
                // The statistics include the topic's other partitions.
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
                // Without a known leader, its number is that of the configured brokers.
                let leader = statistics.brokers.values().find(|broker| broker.nodeid == own.broker);
                if let Some(leader) = leader.filter(|leader| leader.nodeid >= 0) {
                    self.answers.store(leader.rx, Ordering::Release);
                }
            }
            Err(error) => tracing::error!(%error, "cannot read statistics of the Kafka client"),
        }
    }
}

impl ConsumerContext for EndOfPartition {}

/// Required parts of the client's statistics (librdkafka, STATISTICS.md).
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

/// Whether the message was removed, as opposed to a temporary error.
fn is_gone(error: &KafkaError) -> bool {
    match error {
        KafkaError::MessageConsumptionFatal(_) => true,
        KafkaError::MessageConsumption(code) => {
            matches!(code, Code::OffsetOutOfRange | Code::AutoOffsetReset)
        }
        // A missing broker, an election, and future errors of the library.
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

/// Whether the bytes are not those that were written, or use a codec that the client lacks. A journal cannot
/// continue without them.
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
        let client = KafkaClient::new(&cluster.bootstrap_servers(), BTreeMap::new()).unwrap();
        for partition in 0..3 {
            let mut reader = PartitionReader::open(&client, "it", partition, 0).unwrap();
            assert_eq!(reader.reached(), None, "no end is known before the leader has reported one");
            let until = Instant::now() + ELECTION;
            while reader.reached() != Some(0) {
                assert!(Instant::now() < until, "partition {partition}: {:?}", reader.reached());
                assert!(matches!(reader.poll(Duration::from_millis(50)).unwrap(), PollResult::Nothing));
            }
        }
    }

    #[test]
    fn what_a_configured_broker_answers_is_no_answer_of_a_leader() {
        // Known leader of the partition; the answers that are counted.
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
    fn successive_answers_determine_why_no_record_arrives() {
        const NOTHING: &str = "nothing";
        /// Missing answer.
        const NONE: i64 = -1;
        // Known end of the partition; the ends that its leader reports, in order; the result. Everything
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
            let results: Vec<_> =
                ends.iter().map(|end| quiet.answered(answer(*end), 10, known_end)).collect();
            let settled = match results.last().expect("an answer") {
                Some(QuietReason::Shorter(_)) => "shorter",
                Some(QuietReason::Stalled) => "stalled",
                Some(QuietReason::Unanswered(_)) => "unanswered",
                None => NOTHING,
            };
            assert_eq!(settled, wanted, "{known_end}, {ends:?}");
            assert!(results[..results.len() - 1].iter().all(Option::is_none), "{known_end}, {ends:?}");
        }
    }

    #[test]
    fn a_reader_that_starts_again_repeats_nothing_and_finds_another_message_instead_of_the_last() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("it", 1, 1).unwrap();
        let servers = cluster.bootstrap_servers();
        let client = KafkaClient::new(&servers, BTreeMap::new()).unwrap();
        let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
        let send = |value: &str| {
            producer.send(BaseRecord::<(), str>::to("it").partition(0).payload(value)).unwrap();
            producer.flush(ELECTION).unwrap();
        };
        let next = |reader: &mut PartitionReader| {
            let until = Instant::now() + ELECTION;
            loop {
                assert!(Instant::now() < until, "no message arrives");
                if let PollResult::Message(message) = reader.poll(Duration::from_millis(50))? {
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
        let replaced = next(&mut reader).expect_err("the message was replaced");
        assert!(replaced.is_removed() && replaced.offset() == 3, "{replaced}");
    }

    #[test]
    fn a_reader_whose_client_knows_only_removed_brokers_restarts_with_those_of_the_settings() {
        let [gone, cluster] = [(); 2].map(|()| {
            let cluster = MockCluster::new(1).unwrap();
            cluster.create_topic("it", 1, 1).unwrap();
            cluster
        });
        let [stale, client] = [&gone, &cluster]
            .map(|cluster| KafkaClient::new(&cluster.bootstrap_servers(), BTreeMap::new()).unwrap());
        let mut reader = PartitionReader::open(&stale, "it", 0, 0).unwrap();
        let until = Instant::now() + ELECTION;
        while reader.reached().is_none() {
            assert!(Instant::now() < until, "the first cluster answers");
            assert!(matches!(reader.poll(Duration::from_millis(50)).unwrap(), PollResult::Nothing));
        }
        drop(gone);
        reader.client = client;
        let producer: BaseProducer =
            ClientConfig::new().set("bootstrap.servers", cluster.bootstrap_servers()).create().unwrap();
        producer.send(BaseRecord::<(), str>::to("it").partition(0).payload("one")).unwrap();
        producer.flush(ELECTION).unwrap();
        let until = Instant::now() + ELECTION;
        loop {
            assert!(Instant::now() < until, "no message arrives");
            // Simulates a long time without messages.
            reader.quiet.since = Instant::now().checked_sub(QUIET).expect("the uptime is long enough");
            if let PollResult::Message(message) = reader.poll(Duration::from_millis(50)).unwrap() {
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
                let query = scope.spawn(|| offsets(&asking, "it", 0));
                // Longer than the client takes to detect that the partition has no leader.
                std::thread::sleep(Duration::from_secs(2));
                assert!(!query.is_finished(), "{:?}", query.join());
                cluster.partition_leader("it", 0, Some(2)).unwrap();
                assert_eq!(query.join().unwrap(), Ok((0, 0)));
            });
        }
    }
}
