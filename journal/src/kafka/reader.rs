//! One partition, read in order from an offset on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::metadata::MetadataTopic;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::client::Client;

/// How long a question to the brokers may take.
pub(super) const ASKING: Duration = Duration::from_secs(10);

/// How long it may take until every broker has heard of a topic that was made.
pub(super) const NEWS: Duration = Duration::from_secs(3);
/// Before it is asked for again.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// How long a new leader may take: brokers count one as dead after nine seconds, unless they are told otherwise.
const ELECTION: Duration = Duration::from_secs(30);

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
fn passes(code: Code) -> bool {
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
            | Code::DestroyBroker
    )
}

/// What comes next.
pub(super) enum Next {
    /// A record's value, and its offset. One without a value is empty.
    Value(i64, Arc<[u8]>),
    /// Nothing stands behind what was read, as of now.
    End,
    /// Nothing came in the time given.
    Nothing,
}

/// What stood there is not there any more.
#[derive(Debug, thiserror::Error)]
#[error("read {topic} partition {partition}: {reason}")]
pub(super) struct Gone {
    topic: String,
    partition: i32,
    reason: KafkaError,
}

/// See the module.
pub(super) struct Reader {
    consumer: BaseConsumer,
    topic: String,
    partition: i32,
}

impl Reader {
    pub(super) fn open(
        client: &Client,
        topic: &str,
        partition: i32,
        from: i64,
    ) -> Result<Reader, KafkaError> {
        let consumer = client.reader(topic, partition, from)?;
        Ok(Reader { consumer, topic: topic.to_owned(), partition })
    }

    /// Waits for the next record. What passes by itself (a broker that is away, a leader that is elected) is waited for.
    pub(super) fn next(&self, wait: Duration) -> Result<Next, Gone> {
        match self.consumer.poll(wait) {
            None => Ok(Next::Nothing),
            Some(Ok(message)) => {
                Ok(Next::Value(message.offset(), message.payload().unwrap_or_default().into()))
            }
            Some(Err(KafkaError::PartitionEOF(_))) => Ok(Next::End),
            Some(Err(error)) if is_gone(&error) || is_unreadable(&error) => {
                Err(Gone { topic: self.topic.clone(), partition: self.partition, reason: error })
            }
            Some(Err(error)) => {
                tracing::warn!(%error, topic = self.topic, partition = self.partition, "reading waits");
                Ok(Next::Nothing)
            }
        }
    }
}

/// Whether what is read stands there no more, as against what passes by itself.
pub fn is_gone(error: &KafkaError) -> bool {
    match error {
        KafkaError::MessageConsumptionFatal(_) => true,
        KafkaError::MessageConsumption(code) => {
            matches!(code, Code::OffsetOutOfRange | Code::AutoOffsetReset)
        }
        // A broker that is away, a leader that is elected, and whatever a later library adds.
        _ => false,
    }
}

/// Whether the bytes that stand there are not those that were written. A journal cannot go on without them.
fn is_unreadable(error: &KafkaError) -> bool {
    matches!(error, KafkaError::MessageConsumption(Code::InvalidMessage | Code::BadMessage))
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::mocking::MockCluster;

    use super::*;

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
