//! Settings of Kafka clients, and their reasons.
//!
//! | who | setting | why |
//! |---|---|---|
//! | all | `topic.metadata.refresh.interval.ms=1000` | a new leader is found within a second |
//! | all | `socket.timeout.ms=3000` | a broker that hangs is abandoned; with the default of a minute, its clients hang too |
//! | all | `reconnect.backoff.max.ms=500` | a broker that returns is found immediately |
//! | producer | `enable.idempotence=true`, `acks=all` | acknowledged data is on all brokers in sync, once and in order |
//! | producer | `linger.ms=0` | commits are batches already; waiting for more adds to each verdict |
//! | producer | `queue.buffering.max.kbytes=65536` | unsent data stays bounded |
//! | producer | `message.timeout.ms` | maximum time of an append without an outcome |
//! | producer | `compression.type=lz4` | records are JSON; hashes are of the uncompressed bytes |
//! | importer | `transactional.id` | one import per partition: the next ends the transaction of the last, and fences it |
//! | importer | `transaction.timeout.ms` | brokers then end an abandoned transaction; until then readers wait |
//! | importer | `message.timeout.ms` | as long as that of the transaction: a full queue takes minutes on a slow link |
//! | importer | `linger.ms=20` | records are many and nothing waits for one |
//! | reader | `fetch.wait.max.ms=100`, `fetch.queue.backoff.ms=5` | a fetch is answered when data arrives; these bound other delays |
//! | reader | `fetch.message.max.bytes=1048576` | it arrives within `socket.timeout.ms` even over a slow network |
//! | reader | `queued.max.messages.kbytes=16384` | data read ahead stays bounded |
//! | reader | `auto.offset.reset=error` | a deleted offset is a loss: reading must not continue elsewhere |
//! | reader | `isolation.level=read_committed` | an import counts completely or not at all; explicit, though the library's default today |
//! | reader | `statistics.interval.ms=200` | only they contain the partition's end as the leader reported it |
//! | reader | `check.crcs=true` | bytes that a broker's disk altered are an error, not a message that only this server sees |
//! | reader | `enable.auto.commit=false` | the journal and the mirror record the progress |

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

/// Maximum bytes of a record on a topic: a commit's mebibyte, its header, and a reserve.
pub const LARGEST: usize = 2 << 20;

/// Bytes requested per fetch. Brokers return a larger batch completely. A fetch that takes longer than
/// `socket.timeout.ms` returns nothing, however often it is repeated.
const FETCH: usize = 1 << 20;

/// Prefixes of settings that operators may add: connections to brokers and the client's identity.
const FREE: [&str; 9] =
    ["security.", "sasl.", "ssl.", "enable.ssl.", "https.", "client.", "broker.address.", "socket.", "debug"];

/// Cluster, and the settings to reach it.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaClient {
    brokers: String,
    extra: BTreeMap<String, String>,
}

/// Omits the values of settings: one may be a password.
impl fmt::Debug for KafkaClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings: Vec<_> = self.extra.keys().collect();
        f.debug_struct("Client").field("brokers", &self.brokers).field("settings", &settings).finish()
    }
}

/// Setting that users cannot choose.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid Kafka setting {0:?}: must match one of {list}", list = FREE.join("*, "))]
pub struct FixedKafkaSetting(pub String);

/// Failure of the client library. It has no source, because its text contains that of its source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KafkaClientError(pub KafkaError);

impl KafkaClient {
    /// Creates a client for the cluster of the brokers, `host:port` separated by commas. `extra` has
    /// librdkafka settings for TLS, SASL and the like.
    pub fn new(brokers: &str, extra: BTreeMap<String, String>) -> Result<KafkaClient, FixedKafkaSetting> {
        match extra.keys().find(|key| !FREE.iter().any(|free| key.starts_with(free))) {
            Some(key) => Err(FixedKafkaSetting(key.clone())),
            None => Ok(KafkaClient { brokers: brokers.to_owned(), extra }),
        }
    }

    /// Returns the configured brokers.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Returns the settings of all clients.
    pub fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "chancery")
            .set("topic.metadata.refresh.interval.ms", "1000")
            .set("socket.timeout.ms", "3000")
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "500");
        for (key, value) in &self.extra {
            config.set(key, value);
        }
        config
    }

    /// Returns the settings of a producer.
    pub fn producer(&self, outcome: Duration) -> ClientConfig {
        let mut config = self.config();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "0")
            .set("retry.backoff.ms", "50")
            .set("retry.backoff.max.ms", "500")
            .set("message.timeout.ms", outcome.as_millis().to_string())
            .set("message.max.bytes", LARGEST.to_string())
            .set("queue.buffering.max.kbytes", "65536")
            .set("compression.type", "lz4");
        config
    }

    /// Returns the settings of a producer that imports into a partition: its transactional id, and the time
    /// limit of the transaction. A record has the same limit, because a full queue takes minutes on a slow link.
    pub(super) fn filler(&self, name: &str, time: Duration) -> ClientConfig {
        let mut config = self.producer(time);
        config
            .set("transactional.id", name)
            .set("transaction.timeout.ms", time.as_millis().to_string())
            .set("linger.ms", "20");
        config
    }

    /// Creates a consumer of one partition from an offset on, with the callbacks of `context`.
    pub fn reader<C: ConsumerContext + 'static>(
        &self,
        topic: &str,
        partition: i32,
        from: i64,
        context: C,
    ) -> Result<BaseConsumer<C>, KafkaError> {
        let mut config = self.consumer();
        config.set("statistics.interval.ms", "200");
        let consumer: BaseConsumer<C> = config.create_with_context(context)?;
        let mut place = TopicPartitionList::new();
        place.add_partition_offset(topic, partition, Offset::Offset(from))?;
        consumer.assign(&place)?;
        Ok(consumer)
    }

    /// Creates a consumer for offset and metadata queries, which reads nothing.
    pub fn watcher(&self) -> Result<BaseConsumer, KafkaError> {
        self.consumer().create()
    }

    fn consumer(&self) -> ClientConfig {
        // The library requires a group for any assignment; nothing is ever committed.
        let mut config = self.of_group("chancery-readers");
        config
            .set("enable.partition.eof", "true")
            .set("check.crcs", "true")
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            .set("fetch.wait.max.ms", "100")
            .set("fetch.queue.backoff.ms", "5")
            .set("fetch.error.backoff.ms", "50")
            .set("fetch.message.max.bytes", FETCH.to_string())
            .set("queued.max.messages.kbytes", "16384");
        config
    }

    /// Returns the settings of a member of a group, or of a client that queries it: nothing is committed
    /// automatically.
    pub fn of_group(&self, group: &str) -> ClientConfig {
        let mut config = self.config();
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("allow.auto.create.topics", "false");
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_brokers_are_reached_is_free_and_what_makes_things_safe_is_not() {
        for (key, is_free) in [
            ("security.protocol", true),
            ("sasl.mechanism", true),
            ("ssl.ca.location", true),
            ("client.rack", true),
            ("acks", false),
            ("enable.idempotence", false),
            ("auto.offset.reset", false),
        ] {
            let made = KafkaClient::new("b:9092", [(key.to_owned(), "x".to_owned())].into());
            assert_eq!(made.is_ok(), is_free, "{key}");
        }
    }
}
