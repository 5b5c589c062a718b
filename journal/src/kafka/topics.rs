//! Topics: unsafe settings, their fixes, and the creation of topics.
//!
//! | topic | content | retention |
//! |---|---|---|
//! | `PREFIX.journal` | commits: the only data that cannot be recreated | permanent, on three brokers |
//! | `PREFIX.inbox` | requests of producers | until they are answered, then as configured |
//! | `PREFIX.events` | events for consumers, made from the journal | as configured |

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataTopic;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::client::{KafkaClient, KafkaClientError, LARGEST};
use super::reader::{AGAIN, ASKING, NEWS};

/// Topics of a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicNames {
    /// Topic of commits.
    pub journal: String,
    /// Topic of producers' requests.
    pub inbox: String,
    /// Topic of events for consumers.
    pub events: String,
}

impl TopicNames {
    /// Returns the topics of a prefix.
    pub fn of(prefix: &str) -> TopicNames {
        let name = |what| format!("{prefix}.{what}");
        TopicNames { journal: name("journal"), inbox: name("inbox"), events: name("events") }
    }
}

/// Purpose of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopicRole {
    /// Topic of commits.
    Journal,
    /// Topic of requests.
    Inbox,
    /// Topic of events.
    Events,
}

/// Setting of a topic that may lose acknowledged data, or stop a fleet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicFinding {
    /// Name of the topic.
    pub topic: String,
    /// Name of the setting.
    pub setting: String,
    /// Current value.
    pub found: String,
    /// Required value.
    pub wanted: String,
    /// Possible damage.
    pub danger: &'static str,
    /// Command that fixes the setting.
    pub fix: String,
}

impl fmt::Display for TopicFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TopicFinding { topic, setting, found, wanted, danger, fix: _ } = self;
        write!(f, "topic {topic}: {setting} is {found}, and must be {wanted}: {danger}")
    }
}

/// Current state of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartitionHealth {
    /// Number of the partition.
    pub number: i32,
    /// Number of assigned brokers.
    pub copies: usize,
    /// Number of brokers in sync.
    pub in_sync: usize,
    /// Whether the partition can be written and read.
    pub has_leader: bool,
}

/// Failed cluster request.
#[derive(Debug, thiserror::Error)]
pub enum TopicError {
    /// The brokers refused the request, or did not answer.
    #[error("cannot {doing}")]
    Client {
        /// Failed operation.
        doing: String,
        /// Error of the client.
        source: KafkaClientError,
    },
    /// The answer of the brokers has no result.
    #[error("cannot {doing}: the brokers returned no result")]
    Silence {
        /// Failed operation.
        doing: String,
    },
    /// The topic does not exist.
    #[error("cannot find topic {topic} at {brokers}\ntry: chancery init-topics")]
    NoTopic {
        /// Name of the topic.
        topic: String,
        /// Brokers that were asked.
        brokers: String,
    },
}

fn failed(doing: impl Into<String>) -> impl FnOnce(KafkaError) -> TopicError {
    let doing = doing.into();
    move |error| TopicError::Client { doing, source: KafkaClientError(error) }
}

/// Rule about a setting: required value, and the danger otherwise.
struct TopicRule {
    setting: &'static str,
    wanted: &'static str,
    is_met: fn(&str) -> bool,
    danger: &'static str,
}

const COPIES: usize = 3;
/// Maximum bytes of an inbox batch: the largest inbox message, and a reserve.
pub const INBOX_BATCH: u64 = 300 << 10;

const IN_SYNC: TopicRule = TopicRule {
    setting: "min.insync.replicas",
    wanted: "2",
    is_met: |value| value.parse::<u32>().is_ok_and(|value| value >= 2),
    danger: "data on a single broker is acknowledged, and lost with that broker",
};
const CLEAN_ELECTION: TopicRule = TopicRule {
    setting: "unclean.leader.election.enable",
    wanted: "false",
    is_met: |value| value == "false",
    danger: "a lagging broker may become leader, and data that it lacks is lost",
};
const LARGE: TopicRule = TopicRule {
    setting: "max.message.bytes",
    wanted: "2097152",
    is_met: |value| value.parse::<usize>().is_ok_and(|value| value >= LARGEST),
    danger: "a large message is refused, and the fleet cannot continue",
};
const NOT_COMPACTED: TopicRule = TopicRule {
    setting: "cleanup.policy",
    wanted: "delete",
    is_met: |value| value == "delete",
    danger: "messages are removed by key: missing commits break the chain, inbox messages stay unanswered, and an old event that \
             was written twice may replace the newest one",
};
const READABLE: TopicRule = TopicRule {
    setting: "compression.type",
    wanted: "producer",
    is_met: |value| ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"].contains(&value),
    danger: "the brokers write messages in a codec that no server reads",
};
const KEPT_LONG: TopicRule = TopicRule {
    setting: "retention.ms",
    wanted: "-1",
    is_met: |value| value == "-1",
    danger: "old messages are deleted: commits of the journal, and unanswered messages of the inbox",
};
const KEPT_MANY: TopicRule = TopicRule {
    setting: "retention.bytes",
    wanted: "-1",
    is_met: |value| value == "-1",
    danger: "excess messages are deleted: commits of the journal, and unanswered messages of the inbox",
};
/// Inbox messages are answered within moments, except while no server runs.
const KEPT_A_DAY: TopicRule = TopicRule {
    setting: "retention.ms",
    wanted: "604800000",
    is_met: |value| value == "-1" || value.parse::<u64>().is_ok_and(|ms| ms >= 24 * 60 * 60 * 1000),
    danger: "inbox messages are deleted after less than a day, even unanswered ones",
};

fn rules(role: TopicRole) -> &'static [TopicRule] {
    match role {
        TopicRole::Journal => {
            &[IN_SYNC, CLEAN_ELECTION, LARGE, NOT_COMPACTED, READABLE, KEPT_LONG, KEPT_MANY]
        }
        TopicRole::Inbox => &[IN_SYNC, CLEAN_ELECTION, NOT_COMPACTED, READABLE, KEPT_A_DAY, KEPT_MANY],
        // Events are made from the journal: lost ones can be recreated.
        TopicRole::Events => &[LARGE, NOT_COMPACTED, READABLE],
    }
}

/// Returns the rules of a role that a topic violates, with the values found. `found` returns the value of a
/// setting.
fn broken_rules(role: TopicRole, found: impl Fn(&str) -> String) -> Vec<(&'static TopicRule, String)> {
    let values = rules(role).iter().map(|rule| (rule, found(rule.setting)));
    values.filter(|(rule, value)| !(rule.is_met)(value)).collect()
}

/// Client that checks and creates topics.
pub struct TopicAdmin {
    admin: AdminClient<DefaultClientContext>,
    brokers: String,
}

impl TopicAdmin {
    /// Creates a client for the topics of a cluster.
    pub fn of(client: &KafkaClient) -> Result<TopicAdmin, TopicError> {
        let admin = client.config().create().map_err(failed("reach the brokers"))?;
        Ok(TopicAdmin { admin, brokers: client.brokers().to_owned() })
    }

    /// Returns the unsafe settings of a topic. Blocks for moments to query its partitions; for seconds if
    /// there are none.
    pub async fn check(&self, topic: &str, role: TopicRole) -> Result<Vec<TopicFinding>, TopicError> {
        let mut findings = Vec::new();
        let Some(copies) = self.copies(topic)? else {
            return Err(TopicError::NoTopic { topic: topic.to_owned(), brokers: self.brokers.clone() });
        };
        if copies < COPIES && role != TopicRole::Events {
            findings.push(TopicFinding {
                topic: topic.to_owned(),
                setting: "replication factor".into(),
                found: copies.to_string(),
                wanted: COPIES.to_string(),
                danger: "while one broker is unavailable, nothing can be written, or new data is on a single broker",
                fix: format!(
                    "kafka-reassign-partitions --bootstrap-server {} --reassignment-json-file FILE --execute, with three \
                     replicas for each partition in FILE",
                    self.brokers
                ),
            });
        }
        let config = self.config(topic).await?;
        let found =
            |setting: &str| config.get(setting).and_then(|entry| entry.value.clone()).unwrap_or_default();
        let broken = broken_rules(role, found);
        findings.extend(broken.into_iter().map(|(rule, found)| self.finding(topic, rule, found)));
        Ok(findings)
    }

    fn finding(&self, topic: &str, rule: &TopicRule, found: String) -> TopicFinding {
        let TopicRule { setting, wanted, danger, .. } = rule;
        TopicFinding {
            topic: topic.to_owned(),
            setting: (*setting).to_owned(),
            found,
            wanted: (*wanted).to_owned(),
            danger,
            fix: format!(
                "kafka-configs --bootstrap-server {} --alter --entity-type topics --entity-name {topic} --add-config \
                 {setting}={wanted}",
                self.brokers
            ),
        }
    }

    /// Returns the number of messages after which brokers flush the topic to disk; `None` if that is up to
    /// their kernels.
    pub async fn flushes(&self, topic: &str) -> Result<Option<u64>, TopicError> {
        let config = self.config(topic).await?;
        let found = config.get("flush.messages").and_then(|entry| entry.value.as_ref()?.parse::<u64>().ok());
        Ok(found.filter(|count| *count < i64::MAX as u64))
    }

    /// Returns the maximum bytes of a compressed batch of the topic; `None` if unknown.
    pub async fn largest_batch(&self, topic: &str) -> Result<Option<u64>, TopicError> {
        let config = self.config(topic).await?;
        Ok(config.get("max.message.bytes").and_then(|entry| entry.value.as_ref()?.parse().ok()))
    }

    /// Returns the lowest replication factor of the topic's partitions; `None` if there is no such topic.
    fn copies(&self, topic: &str) -> Result<Option<usize>, TopicError> {
        let until = Instant::now() + NEWS;
        loop {
            let metadata = self.admin.inner().fetch_metadata(Some(topic), ASKING);
            let metadata = metadata
                .map_err(failed(format!("query the brokers at {} for topic {topic}", self.brokers)))?;
            let found = metadata.topics().iter().find(|one| one.name() == topic && one.error().is_none());
            let copies =
                found.and_then(|topic| topic.partitions().iter().map(|one| one.replicas().len()).min());
            if copies.is_some() || Instant::now() > until {
                return Ok(copies);
            }
            std::thread::sleep(AGAIN);
        }
    }

    async fn config(&self, topic: &str) -> Result<ConfigResource, TopicError> {
        let doing = || format!("query settings of topic {topic}");
        let asked = self.admin.describe_configs(&[ResourceSpecifier::Topic(topic)], &options()).await;
        let answer = asked.map_err(failed(doing()))?.into_iter().next();
        match answer {
            Some(Ok(config)) => Ok(config),
            Some(Err(code)) => Err(failed(doing())(KafkaError::AdminOp(code))),
            None => Err(TopicError::Silence { doing: doing() }),
        }
    }

    /// Returns the current state of the topic's partitions. Blocks for moments.
    pub fn partitions(&self, topic: &str) -> Result<Vec<PartitionHealth>, TopicError> {
        let metadata = self.admin.inner().fetch_metadata(Some(topic), ASKING);
        let metadata = metadata.map_err(failed(format!("query topic {topic}")))?;
        let found = metadata.topics().iter().filter(|one| one.name() == topic);
        let shown = found.flat_map(MetadataTopic::partitions).map(|one| PartitionHealth {
            number: one.id(),
            copies: one.replicas().len(),
            in_sync: one.isr().len(),
            has_leader: one.leader() >= 0,
        });
        let mut all: Vec<_> = shown.collect();
        all.sort_by_key(|partition| partition.number);
        Ok(all)
    }

    /// Returns the number of brokers.
    pub fn brokers(&self) -> Result<usize, TopicError> {
        let metadata = self.admin.inner().fetch_metadata(None, ASKING);
        Ok(metadata.map_err(failed(format!("query the brokers at {}", self.brokers)))?.brokers().len())
    }

    /// Creates a topic with its role's settings. Returns whether it was created; an existing topic is
    /// unchanged.
    pub async fn make(
        &self,
        topic: &str,
        role: TopicRole,
        partitions: i32,
        copies: i32,
    ) -> Result<bool, TopicError> {
        let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(copies));
        let in_sync = (copies - 1).max(1).to_string();
        new = new.set("min.insync.replicas", &in_sync);
        for rule in rules(role).iter().filter(|rule| rule.setting != "min.insync.replicas") {
            new = new.set(rule.setting, rule.wanted);
        }
        let largest = INBOX_BATCH.to_string();
        if role == TopicRole::Inbox {
            new = new.set("max.message.bytes", &largest);
        }
        let doing = || format!("create topic {topic}");
        let made = self.admin.create_topics([&new], &options()).await.map_err(failed(doing()))?;
        match made.into_iter().next() {
            Some(Ok(_)) => Ok(true),
            Some(Err((_, Code::TopicAlreadyExists))) => Ok(false),
            Some(Err((_, code))) => Err(failed(doing())(KafkaError::AdminOp(code))),
            None => Err(TopicError::Silence { doing: doing() }),
        }
    }
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(Duration::from_secs(15)))
        .operation_timeout(Some(Duration::from_secs(10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_that_loses_or_blocks_messages_is_found_where_it_does() {
        use TopicRole::{Events, Inbox, Journal};
        let sound = |setting: &str| match setting {
            "min.insync.replicas" => "2",
            "unclean.leader.election.enable" => "false",
            "max.message.bytes" => "2097152",
            "cleanup.policy" => "delete",
            "compression.type" => "producer",
            "retention.ms" | "retention.bytes" => "-1",
            _ => panic!("no rule is about {setting}"),
        };
        for role in [Journal, Inbox, Events] {
            assert!(broken_rules(role, |setting| sound(setting).into()).is_empty(), "{role:?}");
        }
        let cases: &[(&str, &str, &[TopicRole])] = &[
            ("min.insync.replicas", "1", &[Journal, Inbox]),
            ("unclean.leader.election.enable", "true", &[Journal, Inbox]),
            ("max.message.bytes", "1048588", &[Journal, Events]),
            ("cleanup.policy", "compact", &[Journal, Inbox, Events]),
            ("cleanup.policy", "compact,delete", &[Journal, Inbox, Events]),
            ("compression.type", "zstd", &[]),
            ("compression.type", "brotli", &[Journal, Inbox, Events]),
            ("compression.type", "", &[Journal, Inbox, Events]),
            ("retention.ms", "604800000", &[Journal]),
            ("retention.ms", "3600000", &[Journal, Inbox]),
            ("retention.bytes", "1073741824", &[Journal, Inbox]),
        ];
        for (setting, value, wanted) in cases {
            for role in [Journal, Inbox, Events] {
                let found = |asked: &str| if asked == *setting { *value } else { sound(asked) }.to_owned();
                let broken = broken_rules(role, found);
                let named: Vec<_> = broken.iter().map(|(rule, value)| (rule.setting, &**value)).collect();
                let expected: &[_] = if wanted.contains(&role) { &[(*setting, *value)] } else { &[] };
                assert_eq!(named, expected, "{role:?}: {setting}={value}");
            }
        }
    }
}
