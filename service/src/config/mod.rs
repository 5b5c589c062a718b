//! Configuration: defaults, then the current context of client commands, then a file, then the environment, then flags,
//! of which one may name a context; each layer overrides earlier ones.
//!
//! One table ([`SETTINGS`]) defines all settings. Each value keeps its origin, which `chancery config show`
//! prints. An unknown or unreadable setting is refused with its location.

mod file;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chancery_api::HttpLimits;
use chancery_cli::manifest::suggest::nearest;
use chancery_cli::{CONTEXTS_ENV, SelectedContext};
use chancery_decider::wall_clock::{WallClock, is_synchronised};
use chancery_events::inbox_message::InboxBinding;
use chancery_events::name::{Actor, ClusterName, FleetName};
use chancery_executor::PAYLOAD_VARIABLES;
use chancery_executor::process::{CgroupSetting, OutputLimits, QemuSettings};
use chancery_projector::MomentLimits;
use tracing_subscriber::filter::Targets;

pub use settings::{SETTINGS, SettingEntry, SettingType, loopback};

/// File that is read if it exists and no other is named.
pub const FILE: &str = "chancery.toml";
/// Prefix of the environment variables of settings.
const PREFIX: &str = "CHANCERY_";
/// Environment variable that names another file.
pub const FILE_ENV: &str = "CHANCERY_CONFIG";

/// Origin of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingOrigin {
    /// Default of the setting.
    Default,
    /// Context of client commands.
    Context(String),
    /// Line of a file.
    File(String, usize),
    /// Environment variable.
    Env(&'static str),
    /// Flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Default => f.write_str("default"),
            SettingOrigin::Context(name) => write!(f, "context {name}"),
            SettingOrigin::File(file, line) => write!(f, "{file}:{line}"),
            SettingOrigin::Env(name) => f.write_str(name),
            SettingOrigin::Flag(name) => f.write_str(name),
        }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
}

/// Clusters whose executors run in the server's own process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EmbeddedClusters {
    /// All clusters.
    All,
    /// Only the listed clusters.
    Only(BTreeSet<ClusterName>),
}

impl EmbeddedClusters {
    /// Whether the cluster is included.
    pub fn has(&self, cluster: &ClusterName) -> bool {
        match self {
            EmbeddedClusters::All => true,
            EmbeddedClusters::Only(names) => names.contains(cluster),
        }
    }
}

/// Location of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JournalLocation {
    /// Server's directory: one server for each fleet.
    Embedded,
    /// Topics on Kafka: several servers, of which one is the leader.
    Kafka {
        /// Bootstrap brokers as `host:port`, separated by commas.
        brokers: String,
        /// Prefix of the topics' names.
        prefix: String,
    },
}

/// Handling of a journal with lost records at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnLoss {
    /// Refuses to start the server.
    Refuse,
    /// Continues under a new lineage; the operator accepts the loss for this start.
    Accept,
}

/// Settings for Kafka.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KafkaSettings {
    /// Time without contact until another server becomes leader.
    pub session_timeout: Duration,
    /// Whether topics that may lose records are allowed.
    pub allow_unsafe_topics: bool,
    /// Whether events are exported for consumers.
    pub export_events: bool,
    /// Whether this start corrects an events topic with another history than the journal, set by a flag of
    /// the operator.
    pub correct_events: bool,
    /// Offset up to which unanswered inbox messages are given up, set by a flag of this start.
    pub skip_inbox: Option<u64>,
    /// Actor and allowed intents of the inbox, if it is read.
    pub inbox: Option<InboxBinding>,
    /// Authentication of brokers and of servers.
    pub security: KafkaSecurity,
    /// Settings of librdkafka.
    pub client_properties: BTreeMap<String, String>,
}

/// Security of connections to brokers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KafkaSecurity {
    /// Whether connections use TLS.
    pub tls: bool,
    /// Certificates of the authorities that sign broker certificates; default: the system's authorities.
    pub ca_file: Option<PathBuf>,
    /// Credentials, if servers log in.
    pub login: Option<KafkaLogin>,
}

/// Credentials of servers at brokers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KafkaLogin {
    /// SASL mechanism, as librdkafka names it.
    pub mechanism: &'static str,
    /// User name of the server.
    pub username: String,
    /// File that contains the password.
    pub password_file: PathBuf,
}

/// All settings, read and checked, with the origin of each.
#[derive(Clone, PartialEq, Debug)]
pub struct ServiceConfig {
    /// Directory of the journal and everything derived from it.
    pub data_dir: PathBuf,
    /// Address on which the server listens.
    pub listen: SocketAddr,
    /// Location of the journal.
    pub journal: JournalLocation,
    /// Settings for Kafka, for a journal on Kafka.
    pub kafka: KafkaSettings,
    /// Address at which other servers reach this one, if it differs from `listen`.
    pub advertise: Option<String>,
    /// Hosts under which clients may address the server, in addition to loopback and `advertise`.
    pub allowed_hosts: BTreeSet<String>,
    /// Origins whose web pages may send requests and read the answers.
    pub cors_origins: BTreeSet<String>,
    /// URL of the server for client commands, without a slash at its end.
    pub server: String,
    /// Fleet for client commands.
    pub fleet: FleetName,
    /// Fleets of a server, each with its partition on Kafka.
    pub fleets: BTreeMap<FleetName, i32>,
    /// Actor of client commands.
    pub actor: Actor,
    /// Filter of log lines.
    pub log_filter: Targets,
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Time without a heartbeat until a session expires.
    pub session_lease: Duration,
    /// Maximum lead of the wall clock over journal time.
    pub clock_max_gap: Duration,
    /// Whether the operator confirms that the wall clock is right, by a flag of this start.
    pub accept_clock: bool,
    /// Clusters whose executors run in the server's own process.
    pub embedded_executors: EmbeddedClusters,
    /// Limits of requests.
    pub limits: HttpLimits,
    /// Maximum number of replicas of one deployment.
    pub replicas: u32,
    /// Maximum number of inputs that wait for the decider.
    pub decider_queue: usize,
    /// Limits of past states of each fleet.
    pub moments: MomentLimits,
    /// Limits of the stored output of processes.
    pub output: OutputLimits,
    /// Root of the control groups of processes.
    pub cgroup_root: CgroupSetting,
    /// Settings of virtual machines.
    pub qemu: QemuSettings,
    /// Size at which the journal starts another segment, in bytes.
    pub segment_bytes: u64,
    /// Memory for the store of the read models, in bytes.
    pub store_cache_bytes: u64,
    /// Handling of lost records at start; set only by a flag, never by a persistent setting.
    pub loss: OnLoss,
    values: SettingValues,
}

/// Value of each setting as it was written, with its origin, by name.
type SettingValues = BTreeMap<&'static str, (String, SettingOrigin)>;

/// Configuration error, with location and reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidConfig(String);

/// Layers above the defaults.
#[derive(Debug, Default)]
pub struct ConfigLayers<'a> {
    /// File named on the command line.
    pub file: Option<&'a Path>,
    /// Context of a client command.
    pub context: Option<SelectedContext>,
    /// Variables of the environment.
    pub env: Vec<(String, String)>,
    /// Values of flags: the setting, the flag and the value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

impl ServiceConfig {
    /// Reads the layers of this process.
    pub fn load(
        file: Option<&Path>,
        context: Option<SelectedContext>,
        flags: Vec<(&'static str, &'static str, String)>,
    ) -> Result<ServiceConfig, InvalidConfig> {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let ours = |(name, _): &(String, String)| name.starts_with(PREFIX);
        ServiceConfig::read(ConfigLayers {
            file,
            context,
            env: std::env::vars_os().filter_map(text).filter(ours).collect(),
            flags,
        })
    }

    /// Sets the offset up to which the inbox is given up, if any; the server must read exactly one inbox.
    pub fn skip_inbox(&mut self, skip: Option<u64>) -> Result<(), InvalidConfig> {
        if skip.is_none() || (self.fleets.len() == 1 && self.kafka.inbox.is_some()) {
            self.kafka.skip_inbox = skip;
            return Ok(());
        }
        Err(InvalidConfig(
            "cannot skip inbox messages: the server must have one fleet, and read its inbox\n\
             hint: start a server with --fleets NAME=PARTITION for the fleet alone"
                .into(),
        ))
    }

    /// Returns a check of the wall clock for one fleet.
    pub fn wall_clock(&self) -> WallClock {
        WallClock::new(self.clock_max_gap, self.accept_clock, is_synchronised)
    }

    /// Combines the layers.
    pub fn read(layers: ConfigLayers<'_>) -> Result<ServiceConfig, InvalidConfig> {
        let default =
            |setting: &SettingEntry| (setting.name, (setting.default.to_owned(), SettingOrigin::Default));
        let mut values: SettingValues = SETTINGS.iter().map(default).collect();
        let check = |setting: &SettingEntry, origin: &SettingOrigin, text: &str| match setting.fault(text) {
            Some(fault) => Err(InvalidConfig(format!("invalid {} from {origin}: {fault}", setting.name))),
            None => Ok(()),
        };
        let of_context = |is_named: bool| -> Result<Vec<_>, InvalidConfig> {
            let Some(context) = layers.context.as_ref().filter(|context| context.is_named == is_named) else {
                return Ok(Vec::new());
            };
            let origin = SettingOrigin::Context(context.name.clone());
            let checked = |(name, text): (&'static str, String)| {
                check(SettingEntry::of(name).expect("a name of the table"), &origin, &text)?;
                Ok((name, (text, origin.clone())))
            };
            context.entry.settings().map(checked).collect()
        };
        values.extend(of_context(false)?);
        if let Some((path, text)) = open(&layers)? {
            for given in file::read(&path, &text).map_err(InvalidConfig)? {
                values.insert(given.name, (given.text, SettingOrigin::File(path.clone(), given.line)));
            }
        }
        for setting in SETTINGS {
            if let Some((_, text)) = layers.env.iter().find(|(name, _)| name == setting.env) {
                check(setting, &SettingOrigin::Env(setting.env), text)?;
                values.insert(setting.name, (text.clone(), SettingOrigin::Env(setting.env)));
            }
        }
        values.extend(of_context(true)?);
        for (name, flag, text) in layers.flags {
            let setting = SettingEntry::of(name).ok_or_else(|| InvalidConfig(file::unknown(name)))?;
            check(setting, &SettingOrigin::Flag(flag), &text)?;
            values.insert(name, (text, SettingOrigin::Flag(flag)));
        }
        ServiceConfig::typed(values).map_err(InvalidConfig)
    }

    fn typed(values: SettingValues) -> Result<ServiceConfig, String> {
        let text = |name: &str| values[name].0.as_str();
        let bytes = |name| settings::bytes(text(name));
        let count = |name| settings::count(text(name));
        let size =
            |value: Result<u64, String>| Ok::<_, String>(usize::try_from(value?).unwrap_or(usize::MAX));
        let limits = HttpLimits {
            body_bytes: size(bytes("limits.body_bytes"))?,
            headers_bytes: size(bytes("limits.header_bytes"))?,
            connections: size(count("limits.connections"))?,
            followers: size(count("limits.streams"))?,
            executors: size(count("limits.executors"))?,
            writes_per_second: count("limits.writes_per_second")?,
            reads_per_second: count("limits.reads_per_second")?,
            streams_per_second: count("limits.streams_per_second")?,
            request_timeout: settings::span(text("limits.request_timeout"))?,
            ..HttpLimits::default()
        };
        let journal = settings::journal(text("journal"))?;
        let executors = embedded_executors(
            &journal,
            settings::clusters(text("embedded_executors"))?,
            values["embedded_executors"].1 == SettingOrigin::Default,
        )?;
        let fleet: FleetName = text("fleet").parse().map_err(|error| format!("invalid fleet: {error}"))?;
        let fleets = fleets(settings::fleets(text("fleets"))?, &fleet, &journal)?;
        Ok(ServiceConfig {
            data_dir: text("data_dir").into(),
            listen: listen(&values)?,
            journal,
            kafka: KafkaSettings {
                session_timeout: settings::session(text("kafka.session_timeout"))?,
                export_events: settings::switch(text("kafka.export_events"))?,
                correct_events: false,
                skip_inbox: None,
                inbox: settings::allowed_intents(text("inbox.allowed_intents"))?
                    .map(|allowed_intents| {
                        let actor = text("inbox.actor").parse();
                        let actor = actor.map_err(|error| format!("invalid inbox.actor: {error}"))?;
                        Ok::<_, String>(InboxBinding { actor, allowed_intents })
                    })
                    .transpose()?,
                allow_unsafe_topics: settings::switch(text("kafka.allow_unsafe_topics"))?,
                security: KafkaSecurity {
                    tls: settings::switch(text("kafka.tls"))?,
                    ca_file: Some(text("kafka.ca_file")).filter(|path| !path.is_empty()).map(PathBuf::from),
                    login: login(
                        text("kafka.username"),
                        text("kafka.password_file"),
                        text("kafka.sasl_mechanism"),
                    )?,
                },
                client_properties: settings::pairs(text("kafka.client_properties"))?,
            },
            advertise: Some(text("advertise")).filter(|address| !address.is_empty()).map(str::to_owned),
            allowed_hosts: settings::hosts(text("allowed_hosts"))?,
            cors_origins: settings::origins(text("cors_origins"))?,
            server: text("server").trim_end_matches('/').to_owned(),
            fleet,
            fleets,
            actor: text("actor").parse().map_err(|error| format!("invalid actor: {error}"))?,
            log_filter: settings::log_filter(text("log_filter"))?,
            log_format: settings::log_format(text("log_format"))?,
            session_lease: settings::span(text("session_lease"))?,
            clock_max_gap: settings::span(text("clock.max_gap"))?,
            accept_clock: false,
            embedded_executors: executors,
            limits,
            // A deployment counts replicas in 32 bits: a larger limit has no effect.
            replicas: u32::try_from(count("limits.replicas")?).unwrap_or(u32::MAX),
            decider_queue: size(count("limits.decider_queue"))?,
            moments: MomentLimits {
                moments: size(count("as_of.moments"))?,
                memory: bytes("as_of.memory")?,
                snapshot_interval: count("snapshot_interval_events")?,
            },
            output: settings::output(text("output.max_file_bytes"), text("output.max_files"))?,
            cgroup_root: settings::cgroup(text("cgroup_root"))?,
            qemu: QemuSettings {
                program: text("qemu.program").into(),
                images: settings::directories(text("qemu.images"))?,
                accelerator: settings::accelerator(text("qemu.accelerator"))?,
            },
            segment_bytes: bytes("segment_bytes")?,
            store_cache_bytes: bytes("store_cache_bytes")?,
            loss: OnLoss::Refuse,
            values,
        })
    }

    /// Returns every setting with its value, as it was written, and the origin of the value.
    pub fn shown(&self) -> impl Iterator<Item = (&'static SettingEntry, &str, &SettingOrigin)> {
        SETTINGS.iter().map(|setting| {
            let (text, origin) = &self.values[setting.name];
            (setting, text.as_str(), origin)
        })
    }
}

/// Returns the address of the server: one of loopback, unless another setting permits any.
fn listen(values: &SettingValues) -> Result<SocketAddr, String> {
    let (text, origin) = &values["listen"];
    let address = settings::listen(text)?;
    if address.ip().is_loopback() || settings::switch(&values["allow_unsafe_listen"].0)? {
        return Ok(address);
    }
    Err(format!(
        "invalid listen from {origin}: {address} is not on the loopback interface, and this build has neither TLS nor \
         authentication\n\
         hint: listen on 127.0.0.1 or [::1], behind a proxy that has both; allow_unsafe_listen=yes permits other addresses"
    ))
}

/// Returns the clusters whose executors run in the server.
fn embedded_executors(
    journal: &JournalLocation,
    clusters: EmbeddedClusters,
    is_default: bool,
) -> Result<EmbeddedClusters, String> {
    match (journal, clusters) {
        (JournalLocation::Embedded, clusters) => Ok(clusters),
        // Each server would drive them, from whichever server is the leader.
        (JournalLocation::Kafka { .. }, EmbeddedClusters::All) if is_default => {
            Ok(EmbeddedClusters::Only(BTreeSet::new()))
        }
        (JournalLocation::Kafka { .. }, EmbeddedClusters::Only(names)) if names.is_empty() => {
            Ok(EmbeddedClusters::Only(names))
        }
        (JournalLocation::Kafka { .. }, _) => {
            Err("invalid embedded_executors: must be none with a journal on Kafka, as any server may become leader\n\
                 hint: run `chancery executor` for each cluster"
                .into())
        }
    }
}

/// Returns the credentials, if any are set.
fn login(username: &str, password_file: &str, mechanism: &str) -> Result<Option<KafkaLogin>, String> {
    match (username, password_file) {
        ("", "") => Ok(None),
        ("", _) => Err("invalid kafka.password_file: requires kafka.username".into()),
        (_, "") => Err("invalid kafka.username: requires kafka.password_file".into()),
        (username, file) => Ok(Some(KafkaLogin {
            mechanism: settings::sasl_mechanism(mechanism)?,
            username: username.to_owned(),
            password_file: file.into(),
        })),
    }
}

/// Returns the fleets of a server, each with its partition, which has no meaning for an embedded journal.
fn fleets(
    mut named: BTreeMap<FleetName, Option<i32>>,
    fleet: &FleetName,
    journal: &JournalLocation,
) -> Result<BTreeMap<FleetName, i32>, String> {
    if named.is_empty() {
        named.insert(fleet.clone(), None);
    }
    let mut of = BTreeMap::new();
    for (name, partition) in &named {
        if let (JournalLocation::Embedded, Some(partition)) = (journal, partition) {
            return Err(format!(
                "invalid fleets \"{name}={partition}\": an embedded journal has no partitions\nhint: check CHANCERY_JOURNAL"
            ));
        }
        if let (JournalLocation::Kafka { .. }, Some(other)) =
            (journal, of.insert(partition.unwrap_or(0), name))
        {
            return Err(format!(
                "invalid fleets: {other} and {name} have the same partition\nhint: write {other}=0,{name}=1"
            ));
        }
    }
    Ok(named.into_iter().map(|(name, partition)| (name, partition.unwrap_or(0))).collect())
}

/// Returns unknown variables that resemble variables of settings. Other variables may share the prefix:
/// processes and pods receive some.
pub fn typos(names: impl Iterator<Item = String>) -> Vec<String> {
    let words: Vec<_> = SETTINGS.iter().filter_map(|setting| setting.env.strip_prefix(PREFIX)).collect();
    let slip = |name: String| {
        let word = name.strip_prefix(PREFIX)?;
        // Kubernetes sets variables of services in every pod; a service `chancery` yields the prefix.
        let is_of_a_service = word.contains("SERVICE_") || word.starts_with("PORT");
        let is_of_a_process = PAYLOAD_VARIABLES.iter().any(|(variable, _)| *variable == name);
        if words.contains(&word)
            || name == FILE_ENV
            || name == CONTEXTS_ENV
            || is_of_a_service
            || is_of_a_process
        {
            return None;
        }
        let meant = nearest(word, &words)?;
        Some(format!("unknown variable {name}: did you mean {PREFIX}{meant}?"))
    };
    names.filter_map(slip).collect()
}

/// Returns the file and its text. A file that a flag or the environment names must exist.
fn open(layers: &ConfigLayers<'_>) -> Result<Option<(String, String)>, InvalidConfig> {
    let named = layers.env.iter().find(|(name, _)| name == FILE_ENV).map(|(_, value)| Path::new(value));
    let named = layers.file.or(named);
    let path = named.unwrap_or(Path::new(FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.display().to_string(), text))),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(InvalidConfig(format!("cannot read configuration file {}: {error}", path.display())))
        }
    }
}
