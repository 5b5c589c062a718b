//! `init-topics`, `doctor` and `import`: topics as a fleet needs them, made, looked at, or filled.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use chancery_journal::kafka::topics::{Finding, Names, Role, Topics};
use chancery_journal::kafka::{Filled, Found, fill};

use super::{client, options};
use crate::config::{Config, Place};
use crate::fleet::journal_options;
use crate::folder::Folder;

/// So many copies survive a broker and go on without another.
const SAFE: u16 = 3;

/// Brokers and prefix of the configuration.
fn named(config: &Config) -> Result<(&str, &str)> {
    match &config.journal {
        Place::Kafka { brokers, prefix } => Ok((brokers, prefix)),
        Place::Embedded => {
            bail!("the journal is embedded: name one on Kafka, as in --journal kafka://host:9092/chancery")
        }
    }
}

/// The cluster and the topics of the configuration.
fn place(config: &Config) -> Result<(Topics, Names)> {
    let (brokers, prefix) = named(config)?;
    Ok((Topics::of(&client(&config.kafka, brokers)?)?, Names::of(prefix)))
}

fn all(names: &Names) -> [(&str, Role); 3] {
    [(&names.journal, Role::Journal), (&names.inbox, Role::Inbox), (&names.events, Role::Events)]
}

/// Makes the topics that are not there; what is there stays as it is. What it did.
pub async fn init_topics(config: &Config, partitions: Option<u16>, copies: u16) -> Result<String> {
    let (topics, names) = place(config)?;
    let needed = config.fleets.values().max().map_or(1, |last| last + 1);
    let partitions = partitions.map_or(needed, i32::from);
    let brokers = topics.brokers()?;
    if brokers < usize::from(copies) {
        bail!(
            "make topics with {copies} copies: the cluster has {brokers} brokers; wait until all are up, or write --copies \
             {brokers}: what is on one broker alone is lost with it"
        );
    }
    let mut text = String::new();
    for (topic, role) in all(&names) {
        let made = topics.make(topic, role, partitions, i32::from(copies)).await?;
        let did =
            if made { format!("made, {partitions} partitions, {copies} copies") } else { "is there".into() };
        writeln!(text, "{topic}: {did}")?;
    }
    if copies < SAFE {
        writeln!(
            text,
            "With fewer than {SAFE} copies a server takes them with kafka.unsafe_topics=yes alone: what one broker loses \
             may be lost."
        )?;
    }
    Ok(text)
}

/// What is unsafe about the topics, and how to mend it; whether nothing is.
pub async fn doctor(config: &Config) -> Result<(String, bool)> {
    let (topics, names) = place(config)?;
    let mut text = String::new();
    let mut is_well = true;
    for (topic, role) in all(&names) {
        let findings = topics.check(topic, role).await?;
        is_well &= findings.is_empty();
        if findings.is_empty() {
            writeln!(text, "{topic}: well")?;
        }
        for Finding { setting, found, wanted, danger, mend, .. } in findings {
            writeln!(text, "{topic}: {setting} is {found}, and must be {wanted}: {danger}\n  {mend}")?;
        }
    }
    Ok((text, is_well))
}

/// Fills the partitions of the configuration's fleets with their journals in a server's folder, whose mirrors those are
/// then. Says of each fleet what it did. Must not be called where other tasks would wait.
pub fn import(config: &Config, data: &Path, time: Duration, out: &mut impl io::Write) -> Result<()> {
    let (brokers, prefix) = named(config)?;
    let mut wanted = Vec::new();
    for (fleet, partition) in &config.fleets {
        let journal = journal_options(config, data, fleet);
        ensure!(journal.dir.is_dir(), "there is no journal of fleet {fleet} in {}", data.display());
        wanted.push((fleet, *partition, journal));
    }
    // Held to the end: no server of this folder begins meanwhile.
    let _folder = Folder::take(data)?;
    for (fleet, partition, journal) in wanted {
        let options = options(&config.kafka, brokers, prefix, partition, journal)?;
        let filled = fill(&options, time).with_context(|| format!("import the journal of fleet {fleet}"))?;
        let Filled { found, records, bytes, head } = filled;
        let did = match found {
            Found::Empty => "imported",
            Found::Filled => "already there:",
        };
        let told = writeln!(
            out,
            "fleet {fleet}: {did} {records} records ({bytes} bytes), positions 1 to {}, head hash {}\n\
             {} is the mirror of partition {partition} of topic {} now: start the server over this folder with --journal \
             kafka://{brokers}/{prefix}",
            head.position,
            head.hash,
            options.mirror.dir.display(),
            options.topic
        );
        told.context("say what was done")?;
    }
    Ok(())
}
