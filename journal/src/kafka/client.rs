//! How clients of Kafka are set up, and why.
//!
//! | who | setting | why |
//! |---|---|---|
//! | all | `topic.metadata.refresh.interval.ms=1000` | a new leader is found within a second |
//! | all | `socket.timeout.ms=3000` | a broker that hangs is given up; with the default of a minute, so does whoever waits for it |
//! | all | `reconnect.backoff.max.ms=500` | a broker that is back is found at once |
//! | producer | `enable.idempotence=true`, `acks=all` | what is acknowledged is on all brokers in sync, once and in order |
//! | producer | `linger.ms=0` | commits are batches already; waiting for more adds to each verdict |
//! | producer | `queue.buffering.max.kbytes=65536` | what waits to be sent stays bounded |
//! | producer | `message.timeout.ms` | how long an append may stay without an outcome |
//! | producer | `compression.type=lz4` | records are JSON; the bytes that are hashed are those before |
//! | filler | `transactional.id` | one fills a partition at a time: the next ends what the last left open, and shuts it out |
//! | filler | `transaction.timeout.ms` | brokers end by then what nobody else ended; until then readers wait |
//! | filler | `linger.ms=20` | records are many and wait for nobody |
//! | reader | `fetch.wait.max.ms=100`, `fetch.queue.backoff.ms=5` | a fetch is answered when something comes; these bound what else may delay it |
//! | reader | `fetch.message.max.bytes=1048576` | it comes within `socket.timeout.ms` also over a slow link |
//! | reader | `queued.max.messages.kbytes=16384` | what is read ahead stays bounded |
//! | reader | `auto.offset.reset=error` | an offset that is not there any more is a loss, never a place to go on |
//! | reader | `isolation.level=read_committed` | an import counts whole or not at all; the library's default today, and nothing to leave to a default |
//! | reader | `statistics.interval.ms=200` | how far the leader said that the partition goes is known from them alone |
//! | reader | `check.crcs=true` | bytes that a broker's disk has altered are an error, and no message that this server alone sees |
//! | reader | `enable.auto.commit=false` | the journal and the mirror say how far things are |

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

/// The largest record on a topic: a commit's mebibyte, its header, and room.
pub const LARGEST: usize = 2 << 20;

/// So many bytes are asked for at once. Brokers give a batch that is larger as a whole; a fetch that takes longer than
/// `socket.timeout.ms` gives nothing, however often it is repeated.
const FETCH: usize = 1 << 20;

/// Settings that whoever runs this may add: how brokers are reached and who we are.
const FREE: [&str; 9] =
    ["security.", "sasl.", "ssl.", "enable.ssl.", "https.", "client.", "broker.address.", "socket.", "debug"];

/// Which cluster, and how it is reached.
#[derive(Clone, PartialEq, Eq)]
pub struct Client {
    brokers: String,
    extra: BTreeMap<String, String>,
}

/// Without the values of settings: one may be a password.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings: Vec<_> = self.extra.keys().collect();
        f.debug_struct("Client").field("brokers", &self.brokers).field("settings", &settings).finish()
    }
}

/// A setting that is not for users to choose.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the Kafka setting {0:?} is not for choosing here: those of {list} are", list = FREE.join("*, "))]
pub struct NotFree(pub String);

impl Client {
    /// A cluster by some of its brokers, `host:port` between commas, and settings of librdkafka for TLS, SASL and the
    /// like.
    pub fn new(brokers: &str, extra: BTreeMap<String, String>) -> Result<Client, NotFree> {
        match extra.keys().find(|key| !FREE.iter().any(|free| key.starts_with(free))) {
            Some(key) => Err(NotFree(key.clone())),
            None => Ok(Client { brokers: brokers.to_owned(), extra }),
        }
    }

    /// Some of its brokers.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// What all clients have.
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

    /// What a producer has.
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

    /// What a producer has that fills a partition in a transaction: its name, how long the transaction may take, and how
    /// long one record.
    pub(super) fn filler(&self, name: &str, time: Duration, outcome: Duration) -> ClientConfig {
        let mut config = self.producer(outcome);
        config
            .set("transactional.id", name)
            .set("transaction.timeout.ms", time.as_millis().to_string())
            .set("linger.ms", "20");
        config
    }

    /// A consumer of one partition from an offset on, with the callbacks of `context`.
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

    /// A consumer that reads nothing: it asks for offsets and metadata.
    pub fn watcher(&self) -> Result<BaseConsumer, KafkaError> {
        self.consumer().create()
    }

    fn consumer(&self) -> ClientConfig {
        // Wanted by the library for any assignment; nothing is ever committed.
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

    /// Settings of a member of a group, or of a client that asks about it: nothing is committed automatically.
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
            let made = Client::new("b:9092", [(key.to_owned(), "x".to_owned())].into());
            assert_eq!(made.is_ok(), is_free, "{key}");
        }
    }
}
