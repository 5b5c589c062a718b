//! Reading a partition from an offset to the end found when it was opened or imported.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;

use super::KafkaOptions;
use super::client::KafkaClientError;
use super::open::{KafkaOpenError, PartitionAddress};
use super::reader::{
    AGAIN, ASKING, ELECTION, NEWS, PartitionReader, PollResult, UnreadablePartition, offsets, passes,
};

/// Time without data, before the topic's end, until a warning is logged.
const SILENCE: Duration = Duration::from_secs(10);

pub(super) fn cluster(
    options: &KafkaOptions,
    doing: &'static str,
) -> impl FnOnce(KafkaError) -> KafkaOpenError {
    let place = PartitionAddress::of(options);
    move |source| KafkaOpenError::Cluster { doing, place, source: Box::new(KafkaClientError(source)) }
}

/// Returns the first offset and the end of the partition.
pub(super) fn watermarks(options: &KafkaOptions) -> Result<(i64, i64), KafkaOpenError> {
    let watcher = options.client.watcher().map_err(cluster(options, "create a client for"))?;
    let mut until = Instant::now() + NEWS;
    let patience = Instant::now() + ELECTION;
    loop {
        let metadata = match watcher.fetch_metadata(Some(&options.topic), ASKING) {
            // With several brokers, a broker that hangs may have been asked.
            Err(KafkaError::MetadataFetch(code)) if passes(code) && Instant::now() < patience => {
                tracing::warn!(%code, topic = options.topic, "metadata query failed, retrying");
                std::thread::sleep(AGAIN);
                until = Instant::now() + NEWS;
                continue;
            }
            result => result.map_err(cluster(options, "query metadata of"))?,
        };
        let has_partition = metadata.topics().iter().any(|topic| {
            topic.error().is_none() && topic.partitions().iter().any(|one| one.id() == options.partition)
        });
        if has_partition {
            break;
        }
        if Instant::now() > until {
            return Err(KafkaOpenError::NoPartition(PartitionAddress::of(options)));
        }
        std::thread::sleep(AGAIN);
    }
    offsets(&watcher, &options.topic, options.partition).map_err(cluster(options, "query offsets of"))
}

/// Offset of a record, and its bytes.
pub(super) type PartitionValue = (i64, Arc<[u8]>);

/// Reason why the backlog of a partition cannot be read to its end.
pub(super) enum BacklogError {
    /// The partition cannot be read at an offset, for example because the records there were removed.
    Gone(UnreadablePartition),
    Cluster(KafkaOpenError),
}

/// Reader of the values before the end.
pub(super) struct PartitionBacklog<'a> {
    options: &'a KafkaOptions,
    reader: &'a mut PartitionReader,
    next: i64,
    ends: i64,
    /// Whether the first offset must have a record, whatever end the brokers report.
    has_first: bool,
    last_message: Instant,
    warned: Instant,
}

impl<'a> PartitionBacklog<'a> {
    /// Reads from the reader's offset up to `ends`, the offset after the last value. An empty partition ends
    /// where it starts.
    pub(super) fn new(
        options: &'a KafkaOptions,
        reader: &'a mut PartitionReader,
        from: i64,
        ends: i64,
    ) -> PartitionBacklog<'a> {
        let (last_message, warned) = (Instant::now(), Instant::now());
        reader.ended_at(ends);
        PartitionBacklog { options, reader, next: from, ends, has_first: false, last_message, warned }
    }

    /// Reads like [`PartitionBacklog::new`], where the first offset is known to have a record.
    pub(super) fn from_a_record(
        options: &'a KafkaOptions,
        reader: &'a mut PartitionReader,
        from: i64,
        ends: i64,
    ) -> PartitionBacklog<'a> {
        PartitionBacklog { has_first: true, ..PartitionBacklog::new(options, reader, from, ends) }
    }

    /// Returns the next value, with its offset; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<PartitionValue>, BacklogError> {
        while self.has_first || self.next < self.ends {
            // The last offsets may have no messages: then the leader reports that they were reached.
            if self.reader.reached().is_some_and(|reached| reached >= self.ends) {
                return Ok(None);
            }
            match self.reader.poll(Duration::from_millis(100)).map_err(BacklogError::Gone)? {
                PollResult::Message(message) => {
                    (self.last_message, self.warned) = (Instant::now(), Instant::now());
                    self.has_first = false;
                    self.next = message.offset() + 1;
                    let value = message.payload().unwrap_or_default().into();
                    return Ok(Some((message.offset(), value)));
                }
                PollResult::Nothing => {}
            }
            if self.options.silence.is_some_and(|most| self.last_message.elapsed() > most) {
                let (place, silence) = (PartitionAddress::of(self.options), self.last_message.elapsed());
                let (next, ends) = (self.next, self.ends);
                return Err(BacklogError::Cluster(KafkaOpenError::Silent { place, next, ends, silence }));
            }
            if self.warned.elapsed() > SILENCE {
                self.warned = Instant::now();
                tracing::warn!(topic = self.options.topic, "no data from the brokers, waiting");
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rdkafka::mocking::MockCluster;

    use super::super::KafkaClient;
    use super::*;

    #[test]
    fn brokers_that_send_nothing_of_what_they_hold_are_waited_for_no_longer_than_is_configured() {
        let cluster = MockCluster::new(1).expect("a cluster");
        cluster.create_topic("it", 1, 1).expect("a topic");
        let client = KafkaClient::new(&cluster.bootstrap_servers(), BTreeMap::new()).expect("a client");
        let dir = tempfile::tempdir().expect("a directory");
        let mut options = KafkaOptions::new(client, "it", 0, dir.path(), "default");
        options.silence = Some(Duration::from_millis(300));
        let mut reader = PartitionReader::open(&options.client, "it", 0, 0).expect("a reader");
        // The partition reports five records, and sends none.
        let mut rest = PartitionBacklog::new(&options, &mut reader, 0, 5);
        let Err(BacklogError::Cluster(error)) = rest.next() else { panic!("reading must fail") };
        assert!(matches!(error, KafkaOpenError::Silent { next: 0, ends: 5, .. }), "{error}");
        assert!(error.to_string().contains("offset 0 of 5"), "{error}");
    }
}
