//! Fleet on Kafka: its topics, its journal, and the election of its leader.

pub mod commands;
pub mod election;
mod election_watch;
mod export;
mod exported;
mod group;
mod headers;
mod inbox;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use chancery_api::FleetMetrics;
use chancery_decider::inbox::InboxStart;
use chancery_decider::leader_router::LeaderRouter;
use chancery_decider::troubles::{FleetPart, FleetTroubles};
use chancery_decider::{DeciderHandle, DeciderInput};
use chancery_events::id::WriterId;
use chancery_events::record::InboxWatermark;
use chancery_journal::kafka::topics::{TopicAdmin, TopicFinding, TopicNames, TopicRole};
use chancery_journal::kafka::{KafkaClient, KafkaJournal, KafkaOptions};
use chancery_journal::segments;
use chancery_journal::{ChainCursor, DeliverySink, Journal, JournalReader};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::{KafkaLogin, KafkaSecurity, KafkaSettings};
use crate::leadership::LeaderTasks;
use election::{ElectionCandidate, ElectionMember};

/// Returns a client for the configured Kafka cluster.
pub fn client(settings: &KafkaSettings, brokers: &str) -> Result<KafkaClient> {
    let mut properties = security(&settings.security)?;
    // A property of the library must not undo the configured security.
    let is_set = |key: &&String| properties.contains_key(*key) || key.starts_with("sasl.");
    if let (Some(key), false) = (settings.client_properties.keys().find(is_set), properties.is_empty()) {
        bail!(
            "invalid kafka.client_properties: must not set {key}, which follows from kafka.tls, kafka.ca_file and kafka.username"
        );
    }
    properties.extend(settings.client_properties.clone());
    Ok(KafkaClient::new(brokers, properties)?)
}

/// Returns the settings of librdkafka for TLS and SASL.
fn security(settings: &KafkaSecurity) -> Result<BTreeMap<String, String>> {
    let KafkaSecurity { tls, ca_file, login } = settings;
    let has_tls = cfg!(feature = "kafka-tls");
    ensure!(
        !tls || has_tls,
        "invalid kafka.tls \"yes\": this build has no TLS\nhint: set kafka.tls to no, or build with --features kafka-tls"
    );
    ensure!(*tls || ca_file.is_none(), "invalid kafka.ca_file: requires kafka.tls=yes");
    let mut set = BTreeMap::new();
    let protocol = match (tls, login) {
        (true, Some(_)) => "sasl_ssl",
        (true, None) => "ssl",
        (false, Some(_)) => "sasl_plaintext",
        (false, None) => return Ok(set),
    };
    let mut add = |name: &str, value: &str| set.insert(name.to_owned(), value.to_owned());
    add("security.protocol", protocol);
    if *tls {
        add("enable.ssl.certificate.verification", "true");
        add("ssl.endpoint.identification.algorithm", "https");
    }
    if let Some(file) = ca_file {
        let shown = file.display();
        std::fs::File::open(file).with_context(|| format!("cannot read kafka.ca_file {shown}"))?;
        add(
            "ssl.ca.location",
            file.to_str().with_context(|| format!("invalid kafka.ca_file {shown}: must be UTF-8"))?,
        );
    }
    if *tls && ca_file.is_none() {
        // The OpenSSL that is compiled in does not know where the system keeps its certificates.
        add("ssl.ca.location", "probe");
    }
    if let Some(KafkaLogin { mechanism, username, password_file }) = login {
        ensure!(
            *tls || *mechanism != "PLAIN",
            "invalid kafka.sasl_mechanism \"plain\": requires kafka.tls=yes, as the password would be sent in clear text"
        );
        ensure!(
            has_tls || *mechanism == "PLAIN",
            "invalid kafka.sasl_mechanism: this build has no SCRAM\nhint: set it to plain, or build with --features kafka-tls"
        );
        let password = std::fs::read_to_string(password_file);
        let password = password
            .with_context(|| format!("cannot read kafka.password_file {}", password_file.display()))?;
        add("sasl.mechanism", mechanism);
        add("sasl.username", username);
        add("sasl.password", password.strip_suffix('\n').unwrap_or(&password));
    }
    Ok(set)
}

/// Opens the journal. Blocks; must not be called in an async task.
pub fn open(
    settings: &KafkaSettings,
    brokers: &str,
    prefix: &str,
    partition: i32,
    mirror: segments::SegmentOptions,
    sink: DeliverySink,
) -> Result<(Arc<dyn Journal>, Option<ChainCursor>)> {
    let options = options(settings, brokers, prefix, partition, mirror)?;
    let (journal, opened) = KafkaJournal::open(&options, sink)?;
    tracing::info!(read = opened.read, skipped = opened.skipped, "mirror caught up");
    Ok((Arc::new(journal), opened.head))
}

/// Returns the options of the journal, after a check that its topics lose no acknowledged record. Blocks;
/// must not be called in an async task.
fn options(
    settings: &KafkaSettings,
    brokers: &str,
    prefix: &str,
    partition: i32,
    mirror: segments::SegmentOptions,
) -> Result<KafkaOptions> {
    let client = client(settings, brokers)?;
    let names = TopicNames::of(prefix);
    let findings = Handle::current().block_on(check(&client, &names))?;
    for finding in &findings {
        tracing::warn!(fix = finding.fix, "{finding}");
    }
    if let (Some(first), false) = (findings.first(), settings.allow_unsafe_topics) {
        bail!(
            "cannot use topics: {first}\ntry: {}\nhint: `chancery doctor` lists all findings ({}); kafka.allow_unsafe_topics=yes \
             accepts them",
            first.fix,
            findings.len()
        );
    }
    let fleet = Arc::clone(&mirror.fleet);
    Ok(KafkaOptions { mirror, ..KafkaOptions::new(client, &names.journal, partition, "", &fleet) })
}

/// Joins the election, once this server could take over immediately.
pub fn stand(
    settings: &KafkaSettings,
    brokers: &str,
    prefix: &str,
    partition: i32,
    router: &LeaderRouter,
    source: Arc<dyn JournalReader>,
) -> Result<(ElectionMember, watch::Receiver<bool>)> {
    election::stand(ElectionCandidate {
        client: client(settings, brokers)?,
        inbox: TopicNames::of(prefix).inbox,
        partition,
        session: settings.session_timeout,
        address: Arc::clone(&router.own),
        source,
        troubles: Arc::clone(&router.troubles),
    })
}

/// Tasks alongside a decider: the inbox is read, and events are exported.
pub struct KafkaLeaderTasks {
    messages: Option<inbox::InboxConsumer>,
    export: Option<export::EventExporter>,
    troubles: Arc<FleetTroubles>,
    runtime: Handle,
}

impl KafkaLeaderTasks {
    /// Returns the tasks that the settings configure.
    pub fn new(
        settings: &KafkaSettings,
        brokers: &str,
        prefix: &str,
        partition: i32,
        fleet: &Arc<str>,
        (troubles, metrics): (&Arc<FleetTroubles>, &Arc<FleetMetrics>),
    ) -> Result<KafkaLeaderTasks> {
        let (client, names) = (client(settings, brokers)?, TopicNames::of(prefix));
        let inbox_messages = settings.inbox.clone().map(|binding| inbox::InboxConsumer {
            client: client.clone(),
            topic: names.inbox,
            partition,
            binding,
            skip: settings.skip_inbox,
            troubles: Arc::clone(troubles),
            metrics: Arc::clone(metrics),
        });
        let export = settings.export_events.then(|| export::EventExporter {
            fleet: Arc::clone(fleet),
            corrects: settings.correct_events,
            client,
            topic: names.events,
            partition,
            troubles: Arc::clone(troubles),
            metrics: Arc::clone(metrics),
        });
        Ok(KafkaLeaderTasks {
            messages: inbox_messages,
            export,
            troubles: Arc::clone(troubles),
            runtime: Handle::current(),
        })
    }
}

impl LeaderTasks for KafkaLeaderTasks {
    fn take_up(&self, watermark: Option<&InboxWatermark>) -> Result<Option<InboxStart>> {
        self.messages.as_ref().map(|inbox_messages| inbox_messages.take_up(watermark)).transpose()
    }

    fn begin(
        &self,
        decider: &DeciderHandle,
        writer: WriterId,
        inbox: Option<InboxStart>,
        source: Arc<dyn JournalReader>,
    ) -> Result<()> {
        if let (Some(inbox_messages), Some(inbox)) = (self.messages.clone(), inbox) {
            let runtime = self.runtime.clone();
            self.run_alongside(FleetPart::Inbox, decider, move |decider| {
                inbox_messages.bring(&inbox, decider, &runtime)
            })?;
        }
        if let Some(export) = self.export.clone() {
            self.run_alongside(FleetPart::Events, decider, move |decider| {
                export.run(&*source, decider, writer);
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl KafkaLeaderTasks {
    /// Starts a thread that works while the decider runs. If the thread ends earlier, the decider ends too.
    fn run_alongside(
        &self,
        part: FleetPart,
        decider: &DeciderHandle,
        work: impl FnOnce(&DeciderHandle) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let (troubles, runtime) = (Arc::clone(&self.troubles), self.runtime.clone());
        let ends = StepDown { part, decider: decider.clone(), troubles, runtime };
        let run = move || match work(&ends.decider) {
            // The next decider, here or elsewhere, must detect for itself what kept the part from working.
            _ if ends.decider.has_stopped() => ends.troubles.clear(part),
            Ok(()) => {}
            Err(error) => ends.troubles.report(part, format!("{error:#}")),
        };
        std::thread::Builder::new().name(part.name().into()).spawn(run).context("cannot start thread")?;
        Ok(())
    }
}

/// Ends the decider when a thread alongside it has ended, also by a panic. No server must decide for a fleet
/// whose inbox or events topic is stalled. The server that takes over starts both again.
struct StepDown {
    part: FleetPart,
    decider: DeciderHandle,
    troubles: Arc<FleetTroubles>,
    runtime: Handle,
}

impl Drop for StepDown {
    fn drop(&mut self) {
        if self.decider.has_stopped() {
            return;
        }
        if std::thread::panicking() {
            self.troubles.report(self.part, "its thread panicked; the log has the reason".to_owned());
        }
        tracing::error!(part = %self.part, "thread ended before the decider, stepping down");
        // A decider that has stopped meanwhile needs no input.
        let _ = self.runtime.block_on(self.decider.send(DeciderInput::Drain));
    }
}

/// Returns the findings about unsafe topics.
pub async fn check(client: &KafkaClient, names: &TopicNames) -> Result<Vec<TopicFinding>> {
    let topics = TopicAdmin::of(client)?;
    let mut findings = topics.check(&names.journal, TopicRole::Journal).await?;
    findings.extend(topics.check(&names.inbox, TopicRole::Inbox).await?);
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_decider_is_drained_when_a_thread_alongside_it_ends_in_whatever_way() {
        type ThreadWork = fn(&DeciderHandle) -> Result<()>;
        // The end of the thread, and the reported trouble.
        let table: [(ThreadWork, Option<&str>); 3] = [
            (|_| Ok(()), None),
            (|_| bail!("the topic is gone"), Some("the topic is gone")),
            (|_| panic!("a mistake"), Some("its thread panicked")),
        ];
        for (work, reported) in table {
            let (queue, mut inputs) = mpsc::channel(16);
            let decider = DeciderHandle::over(queue);
            let troubles: Arc<FleetTroubles> = Arc::default();
            let posts = KafkaLeaderTasks {
                messages: None,
                export: None,
                troubles: Arc::clone(&troubles),
                runtime: Handle::current(),
            };
            posts.run_alongside(FleetPart::Inbox, &decider, work).expect("a thread");
            let input = tokio::time::timeout(Duration::from_mins(1), inputs.recv()).await;
            assert!(matches!(input, Ok(Some(DeciderInput::Drain))), "{reported:?}: {input:?}");
            let found = troubles.all();
            assert_eq!(found.len(), usize::from(reported.is_some()), "{found:?}");
            assert!(
                found.iter().all(|(_, why)| reported.is_some_and(|part| why.contains(part))),
                "{found:?}"
            );
        }
    }
}
