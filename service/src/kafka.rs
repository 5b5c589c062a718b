//! A fleet on Kafka: its topics, its journal, and whose turn it is to decide.

pub mod commands;
pub mod election;

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use chancery_journal::kafka::topics::{Finding, Names, Role, Topics};
use chancery_journal::kafka::{Client, KafkaJournal, Options};
use chancery_journal::segments;
use chancery_journal::{Journal, Sink};
use tokio::sync::watch;

use crate::config::Kafka;
use election::Election;

/// The cluster as the settings have it.
pub fn client(settings: &Kafka, brokers: &str) -> Result<Client> {
    Ok(Client::new(brokers, settings.client.clone())?)
}

/// Opens the journal and stands for election. Must not be called where other tasks would wait.
pub fn open(
    settings: &Kafka,
    brokers: &str,
    prefix: &str,
    mirror: segments::Options,
    sink: Sink,
) -> Result<(Arc<dyn Journal>, Election, watch::Receiver<bool>)> {
    let client = client(settings, brokers)?;
    let names = Names::of(prefix);
    let findings = tokio::runtime::Handle::current().block_on(check(&client, &names))?;
    for finding in &findings {
        tracing::warn!("{finding}");
    }
    if let (Some(first), false) = (findings.first(), settings.unsafe_topics) {
        bail!(
            "{first}. `chancery doctor` names all {}; kafka.unsafe_topics=yes takes them as they are",
            findings.len()
        );
    }
    let fleet = Arc::clone(&mirror.fleet);
    let options =
        Options { mirror, ..Options::new(client.clone(), &names.journal, settings.partition, "", &fleet) };
    let (journal, opened) = KafkaJournal::open(&options, sink).context("open the journal on Kafka")?;
    tracing::info!(read = opened.read, skipped = opened.skipped, "the mirror holds what Kafka holds");
    let (election, turns) = election::stand(&client, &names.inbox, settings.partition, settings.session)?;
    Ok((Arc::new(journal), election, turns))
}

/// What is unsafe about the topics.
pub async fn check(client: &Client, names: &Names) -> Result<Vec<Finding>> {
    let topics = Topics::of(client)?;
    let mut findings = topics.check(&names.journal, Role::Journal).await?;
    findings.extend(topics.check(&names.inbox, Role::Inbox).await?);
    Ok(findings)
}
