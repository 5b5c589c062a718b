//! `init-topics`, `doctor` and `import`: create, check, or fill the topics of a fleet.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use chancery_events::name::FleetName;
use chancery_events::text::counted;
use chancery_journal::ChainCursor;
use chancery_journal::kafka::topics::{
    INBOX_BATCH, PartitionHealth, TopicAdmin, TopicFinding, TopicNames, TopicRole,
};
use chancery_journal::kafka::{ImportReport, KafkaClientError, PartitionState, import_journal, offsets};
use chancery_journal::segments::OpenEvidence;
use chancery_projector::{FoundRows, StoreTuning};

use super::group::{self, GroupMember};
use super::{client, election, options};
use crate::config::{JournalLocation, ServiceConfig};
use crate::data_dir::{ServerDataDir, journal_options};
use crate::loss;

/// Number of replicas that survive the loss of one broker and stay available without another.
const SAFE: u16 = 3;

/// Returns brokers and prefix of the configuration.
fn named(config: &ServiceConfig) -> Result<(&str, &str)> {
    match &config.journal {
        JournalLocation::Kafka { brokers, prefix } => Ok((brokers, prefix)),
        JournalLocation::Embedded => {
            bail!(
                "cannot reach Kafka: the journal is embedded\nhint: name a journal on Kafka, as in --journal \
                 kafka://host:9092/chancery"
            )
        }
    }
}

/// Returns the topics of the configuration, with their client.
fn place(config: &ServiceConfig) -> Result<(TopicAdmin, TopicNames)> {
    let (brokers, prefix) = named(config)?;
    Ok((TopicAdmin::of(&client(&config.kafka, brokers)?)?, TopicNames::of(prefix)))
}

fn all(names: &TopicNames) -> [(&str, TopicRole); 3] {
    [
        (&names.journal, TopicRole::Journal),
        (&names.inbox, TopicRole::Inbox),
        (&names.events, TopicRole::Events),
    ]
}

/// Creates missing topics; existing topics stay unchanged. Returns what was done.
pub async fn init_topics(
    config: &ServiceConfig,
    partitions: Option<u16>,
    replication_factor: u16,
) -> Result<String> {
    let (topics, names) = place(config)?;
    let needed = config.fleets.values().max().map_or(1, |last| last.saturating_add(1));
    let partitions = partitions.map_or(needed, i32::from);
    let brokers = topics.brokers()?;
    if brokers < usize::from(replication_factor) {
        bail!(
            "cannot create topics with {}: the cluster has {}\nhint: wait until all brokers are running, or write \
             --replication-factor {brokers}; data on a single broker is lost with it",
            counted(replication_factor, "copy"),
            counted(brokers, "broker")
        );
    }
    let mut text = String::new();
    let mut few = Vec::new();
    for (topic, role) in all(&names) {
        if topics.make(topic, role, partitions, i32::from(replication_factor)).await? {
            let copies = counted(replication_factor, "copy");
            writeln!(text, "{topic}: created, {}, {copies}", counted(partitions, "partition"))?;
        } else {
            writeln!(text, "{topic}: exists")?;
            few.extend(lacking(topics.partitions(topic)?.len(), config, topic)?);
        }
    }
    ensure!(few.is_empty(), "cannot use topics: too few partitions\n{text}{}", few.join("\n"));
    if replication_factor < SAFE {
        writeln!(
            text,
            "With fewer than {SAFE} copies, a server accepts the topics only with kafka.allow_unsafe_topics=yes: data that one \
             broker loses may be lost."
        )?;
    }
    Ok(text)
}

/// Note of `doctor` on topics that brokers do not sync. Kafka usually runs this way; it is no error.
const UNSYNCED: &str = "note: brokers acknowledge records that are only in memory (flush.messages is not set). If all brokers lose \
                        power together, the last acknowledged records may be lost; flush.messages=1 prevents this, and each \
                        append then waits for their disks";

/// Note of `doctor` on an inbox whose batches may be large.
const LARGE_BATCHES: &str = "note: max.message.bytes is more than 307200. Brokers check the compressed size of a batch: for the server \
                             that reads it, a gzip batch of zeros is a thousand times larger";

/// Returns the findings about unsafe topics with their fixes, and whether there are none.
pub async fn doctor(config: &ServiceConfig) -> Result<(String, bool)> {
    let (topics, names) = place(config)?;
    let mut text = String::new();
    let mut is_well = true;
    for (topic, role) in all(&names) {
        let findings = topics.check(topic, role).await?;
        is_well &= findings.is_empty();
        let troubles = troubles(&topics.partitions(topic)?, config, topic)?;
        is_well &= troubles.is_empty();
        if findings.is_empty() && troubles.is_empty() {
            writeln!(text, "{topic}: ok")?;
        }
        for trouble in troubles {
            writeln!(text, "{topic}: {trouble}")?;
        }
        if role == TopicRole::Inbox {
            text.push_str(&unread(config, topic, &topics.partitions(topic)?)?);
            if topics.largest_batch(topic).await?.is_some_and(|bytes| bytes > INBOX_BATCH) {
                writeln!(text, "{topic}: {LARGE_BATCHES}")?;
            }
        }
        if role != TopicRole::Events && topics.flushes(topic).await?.is_none() {
            writeln!(text, "{topic}: {UNSYNCED}")?;
        }
        for TopicFinding { setting, found, wanted, danger, fix, .. } in findings {
            writeln!(text, "{topic}: {setting} is {found}, and must be {wanted}: {danger}\n  {fix}")?;
        }
    }
    for (fleet, partition) in &config.fleets {
        let group = election::group_of(&names.inbox, *partition);
        let (brokers, _) = named(config)?;
        let asking = client(&config.kafka, brokers)?.watcher()?;
        let (lines, is_right) = match group::members(&asking, &group, &names.inbox, *partition) {
            Ok(members) => of_group(fleet, &group, &members),
            Err(error) => (format!("group {group} of fleet {fleet}: {error:#}\n"), false),
        };
        text.push_str(&lines);
        is_well &= is_right;
    }
    Ok((text, is_well))
}

/// Lists the members of the group that elects the leader of a fleet; returns whether all members are servers.
fn of_group(fleet: &FleetName, group: &str, members: &[GroupMember]) -> (String, bool) {
    if members.is_empty() {
        return (format!("group {group} of fleet {fleet}: no members, no server is running\n"), true);
    }
    let mut is_well = true;
    let lines = members.iter().map(|GroupMember { client, host, has_partition }| {
        let is_server = client.starts_with(group::SERVER);
        is_well &= is_server;
        let has = if *has_partition { ", has the partition" } else { "" };
        let stranger = if is_server {
            ""
        } else {
            "\n  the client is no server of the fleet: while it has the partition, the fleet has no leader. Stop the client, and \
             allow only servers to join the group (an ACL with READ on the group)"
        };
        format!("group {group} of fleet {fleet}: {client} at {host}{has}{stranger}\n")
    });
    (lines.collect(), is_well)
}

/// Fills the partitions of the configuration's fleets with the journals in a server's directory, which become
/// mirrors. Reports the result for each fleet. Blocks; must not be called in an async task.
pub fn import(
    config: &ServiceConfig,
    data: &Path,
    time: Duration,
    report: impl Fn(&str) -> Result<()>,
) -> Result<()> {
    let (brokers, prefix) = named(config)?;
    for fleet in config.fleets.keys() {
        let journal = journal_options(config, data, fleet).dir;
        ensure!(journal.is_dir(), "cannot import journal of fleet {fleet}: no journal in {}", data.display());
    }
    // Held to the end, so that no server of this directory starts meanwhile.
    let _folder = ServerDataDir::take(data)?;
    for (fleet, partition) in &config.fleets {
        let (mut journal, partition) = (journal_options(config, data, fleet), *partition);
        journal.against = OpenEvidence::Witnesses(loss::witnesses(data, fleet, rows(data, fleet)?)?);
        let options = options(&config.kafka, brokers, prefix, partition, journal)?;
        let filled = import_journal(&options, time)
            .with_context(|| format!("cannot import journal of fleet {fleet}"))?;
        let ImportReport { found, records, bytes, head } = filled;
        let did = match found {
            PartitionState::Empty => "imported",
            PartitionState::Filled => "already there:",
        };
        report(&format!(
            "fleet {fleet}: {did} {} ({bytes} bytes), positions 1 to {}, head hash {}\n\
             {} is now the mirror of partition {partition} of topic {}: start the server on this directory with --journal \
             kafka://{brokers}/{prefix}\n",
            counted(records, "record"),
            head.position,
            head.hash,
            options.mirror.dir.display(),
            options.topic
        ))?;
    }
    Ok(())
}

/// Returns the cursor of the read models of a fleet, if there are any.
fn rows(data: &Path, fleet: &FleetName) -> Result<Option<ChainCursor>> {
    let dir = data.join("fleets").join(fleet.as_str()).join("rows");
    if !dir.is_dir() {
        return Ok(None);
    }
    Ok(FoundRows::open(&dir, StoreTuning::default())?.cursor())
}

/// Returns the current problems of partitions.
fn troubles(partitions: &[PartitionHealth], config: &ServiceConfig, topic: &str) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for PartitionHealth { number, copies, in_sync, has_leader } in partitions {
        if !has_leader {
            problems.push(format!(
                "partition {number} has no leader: no broker that has it is available ({})",
                counted(*copies, "broker")
            ));
        } else if in_sync < copies {
            problems.push(format!(
                "partition {number} is in sync on {in_sync} of {}: the others are unavailable or lag",
                counted(*copies, "broker")
            ));
        }
    }
    problems.extend(lacking(partitions.len(), config, topic)?);
    Ok(problems)
}

/// Returns a note on messages in inbox partitions without fleet: a producer that names no partition chooses
/// one automatically.
fn unread(config: &ServiceConfig, topic: &str, partitions: &[PartitionHealth]) -> Result<String> {
    let (brokers, _) = named(config)?;
    let asking = client(&config.kafka, brokers)?.watcher()?;
    let mut text = String::new();
    let others = partitions.iter().filter(|one| one.has_leader).map(|one| one.number);
    for number in others.filter(|number| !config.fleets.values().any(|partition| partition == number)) {
        let (begins, ends) = offsets(&asking, topic, number)
            .map_err(KafkaClientError)
            .with_context(|| format!("cannot read offsets of {topic} partition {number}"))?;
        if begins < ends {
            writeln!(
                text,
                "{topic}: note: partition {number} belongs to no configured fleet, and has messages up to offset {ends}. \
                 If no other server uses it, they are never read: a producer must name the partition of its fleet"
            )?;
        }
    }
    Ok(text)
}

/// Returns the missing partitions of configured fleets.
fn lacking(count: usize, config: &ServiceConfig, topic: &str) -> Result<Vec<String>> {
    let (brokers, _) = named(config)?;
    let count = i32::try_from(count)?;
    let lack = config.fleets.iter().filter(|(_, partition)| **partition >= count);
    let problems = lack.map(|(fleet, partition)| {
        format!(
            "fleet {fleet} needs partition {partition} of {topic}, which has {}\n  kafka-topics --bootstrap-server {brokers} \
             --alter --topic {topic} --partitions {}",
            counted(count, "partition"),
            partition.saturating_add(1)
        )
    });
    Ok(problems.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigLayers;

    #[test]
    fn troubles_of_partitions_are_named() {
        let env = vec![
            ("CHANCERY_JOURNAL".to_owned(), "kafka://h:1/c".to_owned()),
            ("CHANCERY_FLEETS".to_owned(), "a=0,b=3".to_owned()),
        ];
        let config = ServiceConfig::read(ConfigLayers { env, ..ConfigLayers::default() }).expect("settings");
        let partition =
            |number, in_sync| PartitionHealth { number, copies: 3, in_sync, has_leader: in_sync > 0 };
        let problems =
            troubles(&[partition(0, 3), partition(1, 2), partition(2, 0)], &config, "t").expect("on Kafka");
        assert!(problems[0].starts_with("partition 1 is in sync on 2 of 3 brokers"), "{problems:?}");
        assert!(problems[1].starts_with("partition 2 has no leader"), "{problems:?}");
        assert!(
            problems[2].starts_with("fleet b needs partition 3 of t, which has 3 partitions"),
            "{problems:?}"
        );
        assert!(
            problems[2].ends_with("--bootstrap-server h:1 --alter --topic t --partitions 4"),
            "{problems:?}"
        );
        assert_eq!(problems.len(), 3);
    }
}
