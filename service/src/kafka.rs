//! A fleet on Kafka: its topics, its journal, and whose turn it is to decide.

pub mod commands;
pub mod election;
mod export;
mod inbox;

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use chancery_events::record::Watermark;
use chancery_journal::kafka::topics::{Finding, Names, Role, Topics};
use chancery_journal::kafka::{Client, KafkaJournal, Options};
use chancery_journal::segments;
use chancery_journal::{Cursor, Journal, Sink, Source};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::Kafka;
use crate::decider::Decider;
use crate::decider::inbox::Inbox;
use crate::duty::Beside;
use election::Election;

/// The cluster as the settings have it.
pub fn client(settings: &Kafka, brokers: &str) -> Result<Client> {
    Ok(Client::new(brokers, settings.client.clone())?)
}

/// Opens the journal. Must not be called where other tasks would wait.
pub fn open(
    settings: &Kafka,
    brokers: &str,
    prefix: &str,
    partition: i32,
    mirror: segments::Options,
    sink: Sink,
) -> Result<(Arc<dyn Journal>, Option<Cursor>)> {
    let options = options(settings, brokers, prefix, partition, mirror)?;
    let (journal, opened) = KafkaJournal::open(&options, sink).context("open the journal on Kafka")?;
    tracing::info!(read = opened.read, skipped = opened.skipped, "the mirror holds what Kafka holds");
    Ok((Arc::new(journal), opened.head))
}

/// How the journal is opened, if its topics lose nothing that was acknowledged. Must not be called where other tasks
/// would wait.
fn options(
    settings: &Kafka,
    brokers: &str,
    prefix: &str,
    partition: i32,
    mirror: segments::Options,
) -> Result<Options> {
    let client = client(settings, brokers)?;
    let names = Names::of(prefix);
    let findings = Handle::current().block_on(check(&client, &names))?;
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
    Ok(Options { mirror, ..Options::new(client, &names.journal, partition, "", &fleet) })
}

/// Stands for election: once this server could take over at once.
pub fn stand(
    settings: &Kafka,
    brokers: &str,
    prefix: &str,
    partition: i32,
) -> Result<(Election, watch::Receiver<bool>)> {
    let client = client(settings, brokers)?;
    election::stand(&client, &Names::of(prefix).inbox, partition, settings.session)
}

/// What goes on beside a decider: letters come in, events go out.
pub struct Posts {
    letters: Option<inbox::Letters>,
    export: Option<export::Export>,
    runtime: Handle,
}

impl Posts {
    /// As the settings have it.
    pub fn new(settings: &Kafka, brokers: &str, prefix: &str, partition: i32) -> Result<Posts> {
        let (client, names) = (client(settings, brokers)?, Names::of(prefix));
        let letters = settings.inbox.clone().map(|binding| inbox::Letters {
            client: client.clone(),
            topic: names.inbox,
            partition,
            binding,
        });
        let export = settings.events.then_some(export::Export { client, topic: names.events, partition });
        Ok(Posts { letters, export, runtime: Handle::current() })
    }
}

impl Beside for Posts {
    fn take_up(&self, watermark: Option<&Watermark>) -> Result<Option<Inbox>> {
        self.letters.as_ref().map(|letters| letters.take_up(watermark)).transpose()
    }

    fn begin(&self, decider: &Decider, inbox: Option<(u64, u64)>, source: Arc<dyn Source>) -> Result<()> {
        if let (Some(letters), Some((next, tail))) = (self.letters.clone(), inbox) {
            let (decider, runtime) = (decider.clone(), self.runtime.clone());
            let bring = move || letters.bring(next, tail, &decider, &runtime);
            std::thread::Builder::new().name("inbox".into()).spawn(bring).context("start a thread")?;
        }
        if let Some(export) = self.export.clone() {
            let decider = decider.clone();
            let run = move || export.run(&*source, &decider);
            std::thread::Builder::new().name("export".into()).spawn(run).context("start a thread")?;
        }
        Ok(())
    }
}

/// What is unsafe about the topics.
pub async fn check(client: &Client, names: &Names) -> Result<Vec<Finding>> {
    let topics = Topics::of(client)?;
    let mut findings = topics.check(&names.journal, Role::Journal).await?;
    findings.extend(topics.check(&names.inbox, Role::Inbox).await?);
    Ok(findings)
}
