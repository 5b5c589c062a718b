//! `init-topics` and `doctor`: topics as a fleet needs them, made or looked at.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use chancery_journal::kafka::topics::{Finding, Names, Role, Topics};

use super::client;
use crate::config::{Config, Place};

/// As many copies as there are brokers, up to so many.
const COPIES: usize = 3;

/// The cluster and the topics of the configuration.
fn place(config: &Config) -> Result<(Topics, Names)> {
    match &config.journal {
        Place::Kafka { brokers, prefix } => {
            Ok((Topics::of(&client(&config.kafka, brokers)?)?, Names::of(prefix)))
        }
        Place::Embedded => {
            bail!("the journal is embedded: name one on Kafka, as in --journal kafka://host:9092/chancery")
        }
    }
}

fn all(names: &Names) -> [(&str, Role); 3] {
    [(&names.journal, Role::Journal), (&names.inbox, Role::Inbox), (&names.events, Role::Events)]
}

/// Makes the topics that are not there; what is there stays as it is. What it did.
pub async fn init_topics(config: &Config, partitions: u16) -> Result<String> {
    let (topics, names) = place(config)?;
    let copies = topics.brokers()?.min(COPIES);
    let mut text = String::new();
    for (topic, role) in all(&names) {
        let made = topics.make(topic, role, i32::from(partitions), i32::try_from(copies)?).await?;
        let did =
            if made { format!("made, {partitions} partitions, {copies} copies") } else { "is there".into() };
        writeln!(text, "{topic}: {did}")?;
    }
    if copies < COPIES {
        writeln!(
            text,
            "There are fewer than {COPIES} brokers: what one of them loses is lost. A server takes such topics with \
             kafka.unsafe_topics=yes alone."
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
