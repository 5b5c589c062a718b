//! Inbox topic: its inbox messages are passed to the local decider, from the offset that the journal records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use chancery_api::FleetMetrics;
use chancery_decider::inbox::{InboxStart, InboxTopic};
use chancery_decider::troubles::{FleetPart, FleetTroubles};
use chancery_decider::{DeciderHandle, DeciderInput};
use chancery_events::inbox_message::{InboxBinding, InboxMessage, LARGEST, OversizedMessage};
use chancery_events::record::{InboxWatermark, RecordHash};
use chancery_journal::kafka::{
    KafkaClient, KafkaClientError, PartitionReader, PollResult, ReaderWatch, UnreadablePartition, offsets,
};
use rdkafka::consumer::Consumer as _;
use rdkafka::message::{BorrowedMessage, Message as _};
use tokio::runtime::Handle;

use super::headers;

/// Timeout of a request to the brokers.
const ASKING: Duration = Duration::from_secs(10);
/// Time to wait for an inbox message before checking whether the decider has stopped.
const WAIT: Duration = Duration::from_millis(100);
/// Interval at which it is checked whether the topic is read.
const WATCH: Duration = Duration::from_secs(1);
/// Interval between attempts to read an unreadable message.
const AGAIN: Duration = Duration::from_secs(5);

/// Reader of an inbox topic, with its binding.
#[derive(Clone, Debug)]
pub(super) struct InboxConsumer {
    pub(super) client: KafkaClient,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) binding: InboxBinding,
    /// Offset up to which the operator who started this server gives up unanswered messages.
    pub(super) skip: Option<u64>,
    pub(super) troubles: Arc<FleetTroubles>,
    pub(super) metrics: Arc<FleetMetrics>,
}

impl InboxConsumer {
    /// Compares the contents of the topic with the journal's answers.
    pub(super) fn take_up(&self, watermark: Option<&InboxWatermark>) -> Result<InboxStart> {
        let asking =
            self.client.watcher().map_err(KafkaClientError).context("cannot reach brokers for inbox")?;
        let (start, end) = offsets(&asking, &self.topic, self.partition)
            .map_err(KafkaClientError)
            .with_context(|| format!("cannot read offsets of {}", self.topic))?;
        let cluster = asking.client().fetch_cluster_id(ASKING).context("cannot read cluster id")?;
        // The name is the best identity of a topic that the client library offers.
        let topic: InboxTopic = format!("{cluster}/{}/{}", self.topic, self.partition).parse()?;
        let log = u64::try_from(start)?..u64::try_from(end)?;
        let binding = self.binding.clone();
        let inbox = match self.skip {
            Some(skip) => InboxStart::take_up_behind(skip, topic, binding, watermark, &log)?,
            None => InboxStart::take_up(topic, binding, watermark, &log)?,
        };
        // A message that ends its reading server is at this offset or soon after.
        tracing::info!(next = inbox.next(), end = inbox.tail(), topic = self.topic, "reading inbox");
        Ok(inbox)
    }

    /// Passes inbox messages to the decider until it has stopped. Blocks.
    ///
    /// An unreadable message blocks later messages until it can be read or is skipped.
    pub(super) fn bring(&self, inbox: &InboxStart, decider: &DeciderHandle, runtime: &Handle) -> Result<()> {
        let mut way = InboxPassage { next: inbox.next(), inbox, has_passed: false, decider, runtime };
        while !decider.has_stopped() {
            let reader =
                PartitionReader::open(&self.client, &self.topic, self.partition, i64::try_from(way.next)?);
            let mut reader = reader
                .map_err(KafkaClientError)
                .with_context(|| format!("cannot read {} from offset {}", self.topic, way.next))?;
            reader.ended_at(i64::try_from(inbox.tail())?);
            match self.read(reader, &mut way) {
                Err(unreadable) if unreadable.is_removed() => return Err(unreadable.into()),
                Err(unreadable) => self.stand(&unreadable, &mut way)?,
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Reads until the decider has stopped, or a message is unreadable.
    fn read(
        &self,
        mut reader: PartitionReader,
        way: &mut InboxPassage<'_>,
    ) -> Result<(), UnreadablePartition> {
        let (mut watch, mut watched) = (ReaderWatch::new(), Instant::now());
        while !way.decider.has_stopped() {
            let inbox_message = match reader.poll(WAIT)? {
                PollResult::Message(message) => Some(inbox_message(&message)),
                PollResult::Nothing => None,
            };
            if inbox_message.is_some() {
                watch.advanced();
            }
            if watched.elapsed() > WATCH {
                watched = Instant::now();
                self.metrics.inbox_end(u64::try_from(reader.known_end()).unwrap_or_default());
                match watch.trouble(&reader) {
                    Some(trouble) => self.troubles.report(FleetPart::Inbox, trouble),
                    // A message that was unreadable before must have been read since.
                    None if reader.reached().is_some() => self.troubles.clear(FleetPart::Inbox),
                    None => {}
                }
            }
            // The last offsets may have no inbox messages. Only the leader of the partition can confirm that
            // they were reached: missing messages prove nothing, as a fetch may be slow.
            if let Some(reached) = reader.reached().and_then(|reached| u64::try_from(reached).ok()) {
                way.next = way.next.max(reached);
            }
            way.pass(inbox_message);
        }
        Ok(())
    }

    /// Waits until the next attempt to read the message, or until it is skipped.
    fn stand(&self, unreadable: &UnreadablePartition, way: &mut InboxPassage<'_>) -> Result<()> {
        let offset = u64::try_from(unreadable.offset())?;
        way.next = offset;
        self.troubles.report(
            FleetPart::Inbox,
            format!(
                "cannot continue inbox at offset {offset}: {}\ntry: chancery inbox skip {offset}",
                unreadable.reason()
            ),
        );
        // A stopped decider needs no input.
        let _ = way.runtime.block_on(way.decider.send(DeciderInput::InboxBlocked(offset)));
        let began = Instant::now();
        while began.elapsed() < AGAIN && !way.decider.has_stopped() {
            let continues = way.inbox.continues();
            if continues > offset {
                way.next = continues;
                break;
            }
            std::thread::sleep(WAIT);
        }
        Ok(())
    }
}

/// Progress of passing the inbox to a decider.
struct InboxPassage<'a> {
    /// Next offset; all lower offsets have been read.
    next: u64,
    inbox: &'a InboxStart,
    /// Whether the decider was notified that the end was reached.
    has_passed: bool,
    decider: &'a DeciderHandle,
    runtime: &'a Handle,
}

impl InboxPassage<'_> {
    /// Passes an inbox message to the decider, and notifies it at the end. A stopped decider ignores both.
    fn pass(&mut self, message: Option<InboxMessage>) {
        if let Some(inbox_message) = message {
            let _ = self.runtime.block_on(self.decider.post(inbox_message));
        }
        if !self.has_passed && self.next >= self.inbox.tail() {
            self.has_passed = true;
            let _ = self.runtime.block_on(self.decider.send(DeciderInput::InboxPassed(self.next)));
        }
    }
}

/// Converts a message. One that is too large is not copied: brokers check the compressed size of its batch,
/// which may become a thousand times larger.
fn inbox_message(message: &BorrowedMessage<'_>) -> InboxMessage {
    let offset = u64::try_from(message.offset()).unwrap_or_default();
    let (headers, unreadable_header) = headers::of(message);
    let value = message.payload();
    let bytes = headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
        + value.map_or(0, <[u8]>::len);
    if bytes > LARGEST {
        let oversized = Some(OversizedMessage { bytes, digest: value.map(RecordHash::of) });
        return InboxMessage { offset, oversized, ..InboxMessage::default() };
    }
    let owned = |(name, value): (&str, &[u8])| (name.to_owned(), value.to_vec());
    InboxMessage {
        offset,
        headers: headers.into_iter().map(owned).collect(),
        unreadable_header,
        value: value.map(<[u8]>::to_vec),
        oversized: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use chancery_events::refusal::RefusalCode;
    use rdkafka::message::{Header, OwnedHeaders};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

    use super::*;

    const TOPIC: &str = "it.inbox";
    const PATIENCE: Duration = Duration::from_mins(1);

    #[test]
    fn of_a_message_that_is_too_large_size_and_hash_alone_are_kept() {
        let cluster = MockCluster::new(1).expect("a cluster");
        cluster.create_topic(TOPIC, 1, 1).expect("a topic");
        let client = KafkaClient::new(&cluster.bootstrap_servers(), BTreeMap::new()).expect("a client");
        let mut config = client.config();
        config.set("message.max.bytes", "100000000").set("compression.type", "gzip");
        let producer: BaseProducer = config.create().expect("a producer");
        let zeros = vec![0; 64 << 20];
        // Large parts, and whether the inbox message is kept whole.
        let table: [(&[u8], &[u8], bool); 3] =
            [(b"value", b"small", true), (&zeros, b"small", false), (b"value", &zeros, false)];
        for (value, header, _) in table {
            let header = Header { key: "note", value: Some(header) };
            let record = BaseRecord::<(), [u8]>::to(TOPIC).partition(0).payload(value);
            let sent = producer.send(record.headers(OwnedHeaders::new().insert(header)));
            sent.map_err(|(error, _)| error).expect("sent");
            producer.flush(PATIENCE).expect("acknowledged");
        }
        let mut reader = PartitionReader::open(&client, TOPIC, 0, 0).expect("a reader");
        for (value, header, is_whole) in table {
            let until = Instant::now() + PATIENCE;
            let inbox_message = loop {
                assert!(Instant::now() < until, "no message arrives");
                if let PollResult::Message(message) = reader.poll(WAIT).expect("it is read") {
                    break inbox_message(&message);
                }
            };
            assert_eq!(inbox_message.bytes(), value.len() + header.len() + "note".len());
            assert_eq!(inbox_message.digest(), Some(RecordHash::of(value)));
            assert_eq!(
                (inbox_message.value.is_some(), inbox_message.headers.len()),
                (is_whole, usize::from(is_whole))
            );
            let refusal =
                inbox_message.request(&"mail".parse().expect("a name")).expect_err("it is no CloudEvent");
            assert_eq!(refusal.code == RefusalCode::TooLarge, !is_whole, "{refusal:?}");
        }
    }
}
