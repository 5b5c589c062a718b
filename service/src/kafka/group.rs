//! Members of the group of deciders, as reported by the brokers: detects a foreign member with the partition,
//! or no member.

use std::time::Duration;

use anyhow::{Context as _, Result};
use chancery_journal::kafka::{KafkaClient, KafkaClientError};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::groups::GroupInfo;

/// Timeout of a request to the brokers.
const ASKING: Duration = Duration::from_secs(3);
/// Timeout of a request to the coordinator: a hanging broker may be asked first for the coordinator, and
/// times out after 3 s (`socket.timeout.ms`).
const ASKING_COORDINATOR: Duration = Duration::from_secs(6);

/// Prefix of the client names of a fleet's servers, before the address of each.
pub(super) const SERVER: &str = "chancery@";

/// Member of the group of deciders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct GroupMember {
    /// Name of the member's client: `chancery@ADDRESS` for a server.
    pub(super) client: String,
    /// Host from which the member is connected.
    pub(super) host: String,
    /// Whether the fleet's partition is assigned to the member.
    pub(super) has_partition: bool,
}

/// Returns a client that reads the state of a group without being its member.
pub(super) fn observer(client: &KafkaClient, group: &str) -> Result<BaseConsumer> {
    client
        .of_group(group)
        .create()
        .map_err(KafkaClientError)
        .context("cannot create client for group of deciders")
}

/// Checks that the coordinator of the observer's group answers. Requests for members use every broker; a
/// request for the group's offsets uses only its coordinator.
pub(super) fn ask_coordinator(observer: &BaseConsumer, topic: &str, partition: i32) -> Result<()> {
    let mut asked = TopicPartitionList::new();
    asked.add_partition(topic, partition);
    observer
        .committed_offsets(asked, ASKING_COORDINATOR)
        .map_err(KafkaClientError)
        .context("cannot reach coordinator of group of deciders")?;
    Ok(())
}

/// Returns all members of a group, and whether the partition of the topic is assigned to each.
pub(super) fn members(
    asking: &BaseConsumer,
    group: &str,
    topic: &str,
    partition: i32,
) -> Result<Vec<GroupMember>> {
    let listed = asking.fetch_group_list(Some(group), ASKING).map_err(KafkaClientError);
    let listed = listed.context("cannot list group of deciders")?;
    let members = listed.groups().iter().filter(|one| one.name() == group).flat_map(GroupInfo::members);
    let members = members.map(|member| GroupMember {
        client: member.client_id().to_owned(),
        host: member.client_host().to_owned(),
        has_partition: member
            .assignment()
            .is_some_and(|bytes| assigned(bytes, topic, partition) == Some(true)),
    });
    Ok(members.collect())
}

/// Whether an assignment contains the partition; `None` if the bytes are no assignment.
///
/// Source: Kafka's consumer protocol, `ConsumerProtocolAssignment` version 0: version (int16), and for each topic its name
/// (int16 length, bytes) with its partitions (int32 count, int32 each). Later versions append members.
fn assigned(bytes: &[u8], topic: &str, partition: i32) -> Option<bool> {
    let mut bytes = bytes;
    let mut take = |count: usize| -> Option<&[u8]> {
        let (taken, left) = bytes.split_at_checked(count)?;
        bytes = left;
        Some(taken)
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
    take(2)?;
    for _ in 0..number(take(4)?) {
        let length = number(take(2)?) as usize;
        let is_topic = take(length)? == topic.as_bytes();
        for _ in 0..number(take(4)?) {
            if number(take(4)?) == u32::try_from(partition).ok()? && is_topic {
                return Some(true);
            }
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_read_and_what_is_none_is_not_believed() {
        let bytes =
            b"\0\0\0\0\0\x02\0\x01a\0\0\0\x01\0\0\0\x07\0\x02bb\0\0\0\x02\0\0\0\0\0\0\0\x03\xff\xff\xff\xff";
        for (topic, partition, is) in [
            ("a", 7, Some(true)),
            ("a", 3, Some(false)),
            ("bb", 3, Some(true)),
            ("bb", 0, Some(true)),
            ("bb", 7, Some(false)),
            ("c", 7, Some(false)),
        ] {
            assert_eq!(assigned(bytes, topic, partition), is, "{topic} {partition}");
        }
        for end in [0, 1, 5, 7, 12] {
            assert_eq!(assigned(&bytes[..end], "bb", 3), None, "{end}");
        }
    }
}
