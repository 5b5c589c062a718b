//! The members of the group of deciders, as the brokers know them: for finding out that a stranger has the partition, or
//! that nobody has.

use std::time::Duration;

use anyhow::{Context as _, Result};
use chancery_journal::kafka::Client;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::groups::GroupInfo;

/// How long a question to the brokers may take.
const ASKING: Duration = Duration::from_secs(3);
/// How long a question to the coordinator may take: a broker that hangs may be asked first which one that is, and is given up
/// after 3 s (`socket.timeout.ms`).
const ASKING_COORDINATOR: Duration = Duration::from_secs(6);

/// The name under which the servers of a fleet join, before the address of each.
pub(super) const SERVER: &str = "chancery@";

/// A member of the group of deciders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct GroupMember {
    /// The name that its client gave: `chancery@ADDRESS` for a server.
    pub(super) client: String,
    /// The host from which the member is connected.
    pub(super) host: String,
    /// Whether the fleet's partition is assigned to the member.
    pub(super) has_partition: bool,
}

/// A client that asks about a group and is no member of the group.
pub(super) fn observer(client: &Client, group: &str) -> Result<BaseConsumer> {
    client.of_group(group).create().context("make a client that asks for the group of deciders")
}

/// Asks the coordinator of the observer's group for an answer. Every broker is asked for the members of a group; for the
/// group's offsets its coordinator alone is asked.
pub(super) fn ask_coordinator(observer: &BaseConsumer, topic: &str, partition: i32) -> Result<()> {
    let mut asked = TopicPartitionList::new();
    asked.add_partition(topic, partition);
    observer
        .committed_offsets(asked, ASKING_COORDINATOR)
        .context("ask the coordinator of the group of deciders")?;
    Ok(())
}

/// The members of a group that were assigned partitions of a topic, or none yet.
pub(super) fn members(
    asking: &BaseConsumer,
    group: &str,
    topic: &str,
    partition: i32,
) -> Result<Vec<GroupMember>> {
    let listed = asking.fetch_group_list(Some(group), ASKING).context("ask for the group of deciders")?;
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

/// Whether an assignment contains the partition; none where the bytes are no assignment.
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
