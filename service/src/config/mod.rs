//! Configuration: defaults, then a file, then the environment, then flags; each layer overrides the one before.
//!
//! One table ([`SETTINGS`]) says what may be set. What is set keeps where it came from, which `chancery config show`
//! tells. Whatever is not known or cannot be read is refused with its place.

mod file;
#[cfg(test)]
mod reference;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chancery_api::Limits;
use chancery_cli::manifest::suggest::nearest;
use chancery_decider::wall_clock::{WallClock, is_synchronised};
use chancery_events::letter::Binding;
use chancery_events::name::{Actor, ClusterName, FleetName};
use chancery_executor::process::{CgroupSetting, OutputLimits, PAYLOAD_VARIABLES};

pub use settings::{SETTINGS, Setting, Type};

/// The file that is read if it is there and no other is named.
pub const FILE: &str = "chancery.toml";
/// What variables of settings begin with.
const PREFIX: &str = "CHANCERY_";
/// The environment variable that names another file.
pub const FILE_ENV: &str = "CHANCERY_CONFIG";

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A line of a file.
    File(String, usize),
    /// An environment variable.
    Env(&'static str),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(file, line) => write!(f, "{file}:{line}"),
            Origin::Env(name) => f.write_str(name),
            Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// How log lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Which clusters are driven from the server's own process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Clusters {
    /// Every one.
    All,
    /// These, and no others.
    Only(BTreeSet<ClusterName>),
}

impl Clusters {
    /// Whether the cluster is one of them.
    pub fn has(&self, cluster: &ClusterName) -> bool {
        match self {
            Clusters::All => true,
            Clusters::Only(names) => names.contains(cluster),
        }
    }
}

/// Where the journal is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the server's folder: one server a fleet.
    Embedded,
    /// On Kafka: several servers, of which one decides.
    Kafka {
        /// Some brokers, `host:port` between commas.
        brokers: String,
        /// What the topics' names begin with.
        prefix: String,
    },
}

/// What a start does if the journal has lost something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnLoss {
    /// The server does not start.
    Refuse,
    /// It continues under a new lineage: somebody said so, for this start.
    Accept,
}

/// How Kafka is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kafka {
    /// How long a server may be silent before another one decides.
    pub session: Duration,
    /// Whether unsafe topics are taken.
    pub unsafe_topics: bool,
    /// Whether events are written for consumers.
    pub events: bool,
    /// Whether the operator has the events topic corrected where it holds another history than the journal, by a flag of
    /// this start.
    pub correct_events: bool,
    /// Offset up to which the operator gives up what is not answered of the inbox, by a flag of this start.
    pub skip_inbox: Option<u64>,
    /// For whom the inbox speaks, if it is read.
    pub inbox: Option<Binding>,
    /// How brokers are told from others, and servers from other clients.
    pub security: KafkaSecurity,
    /// Settings of librdkafka.
    pub client: BTreeMap<String, String>,
}

/// How the brokers are reached safely.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KafkaSecurity {
    /// Whether by TLS.
    pub tls: bool,
    /// Certificates of the authorities that sign those of brokers; without one, those of the system.
    pub ca_file: Option<PathBuf>,
    /// How to log in, if that is wanted.
    pub login: Option<KafkaLogin>,
}

/// How servers log in at brokers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KafkaLogin {
    /// The mechanism of SASL, as librdkafka names it.
    pub mechanism: &'static str,
    /// As whom.
    pub username: String,
    /// Where the password is.
    pub password_file: PathBuf,
}

/// All settings, read and checked, with where each came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Where the journal and everything made from it are kept.
    pub data_dir: PathBuf,
    /// Where the server takes requests.
    pub listen: SocketAddr,
    /// Where the journal is.
    pub journal: Place,
    /// How Kafka is used, if it is.
    pub kafka: Kafka,
    /// Where other servers reach this one, if that is not where it listens.
    pub advertise: Option<String>,
    /// Hosts under which clients may address the server, in addition to loopback and `advertise`.
    pub allowed_hosts: BTreeSet<String>,
    /// Origins whose web pages may send requests and read the answers.
    pub cors_origins: BTreeSet<String>,
    /// The server that commands talk to, without a slash at its end.
    pub server: String,
    /// The fleet that commands are about.
    pub fleet: FleetName,
    /// The fleets of a server, each with its partition on Kafka.
    pub fleets: BTreeMap<FleetName, i32>,
    /// Who asks.
    pub actor: Actor,
    /// Which log lines are written.
    pub log: String,
    /// How they are written.
    pub log_format: LogFormat,
    /// How long an executor may be silent.
    pub lease: Duration,
    /// How far the wall clock may be ahead of journal time.
    pub clock_max_gap: Duration,
    /// Whether the operator says that the wall clock is right, by a flag of this start.
    pub accept_clock: bool,
    /// The clusters that the server's own process drives.
    pub executors: Clusters,
    /// What a request may cost.
    pub limits: Limits,
    /// Replicas that one deployment may ask for.
    pub replicas: u32,
    /// Inputs that may wait for the decider.
    pub queue: usize,
    /// What is kept of what processes write.
    pub output: OutputLimits,
    /// Where processes get control groups.
    pub cgroup: CgroupSetting,
    /// The size at which the journal begins another segment.
    pub segment_bytes: u64,
    /// Memory for the store of the read models.
    pub sled_cache: u64,
    /// Events between snapshots of the state.
    pub snapshot_events: u64,
    /// What a start does if the journal has lost something: said by a flag alone, never by a setting that stays.
    pub loss: OnLoss,
    values: Vec<(String, Origin)>,
}

/// The configuration cannot be had; says where and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadConfig(String);

/// The layers above the defaults.
#[derive(Debug, Default)]
pub struct Layers<'a> {
    /// The file named on the command line.
    pub file: Option<&'a Path>,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// What flags set, by setting, with the flag.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

impl Config {
    /// Reads the layers of this process.
    pub fn load(
        file: Option<&Path>,
        flags: Vec<(&'static str, &'static str, String)>,
    ) -> Result<Config, BadConfig> {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let ours = |(name, _): &(String, String)| name.starts_with(PREFIX);
        Config::read(Layers { file, env: std::env::vars_os().filter_map(text).filter(ours).collect(), flags })
    }

    /// Has the inbox given up to the offset, if there is one, where the server reads one inbox alone.
    pub fn skip_inbox(&mut self, skip: Option<u64>) -> Result<(), BadConfig> {
        if skip.is_none() || (self.fleets.len() == 1 && self.kafka.inbox.is_some()) {
            self.kafka.skip_inbox = skip;
            return Ok(());
        }
        Err(BadConfig(
            "cannot skip inbox messages: the server must have one fleet, and read its inbox\n\
             hint: start a server with --fleets NAME=PARTITION for the fleet alone"
                .into(),
        ))
    }

    /// Trust in the wall clock, for one fleet.
    pub fn wall_clock(&self) -> WallClock {
        WallClock::new(self.clock_max_gap, self.accept_clock, is_synchronised)
    }

    /// Puts the layers on each other.
    pub fn read(layers: Layers<'_>) -> Result<Config, BadConfig> {
        let mut values = defaults();
        let mut set = |name: &str, text: String, origin: Origin| {
            let index = SETTINGS.iter().position(|setting| setting.name == name);
            values[index.expect("only names of the table are set")] = (text, origin);
        };
        if let Some((path, text)) = open(&layers)? {
            for given in file::read(&path, &text).map_err(BadConfig)? {
                set(given.name, given.text, Origin::File(path.clone(), given.line));
            }
        }
        let check = |setting: &Setting, origin: &Origin, text: &str| match setting.fault(text) {
            Some(fault) => Err(BadConfig(format!("read {} from {origin}: {fault}", setting.name))),
            None => Ok(()),
        };
        for setting in SETTINGS {
            if let Some((_, text)) = layers.env.iter().find(|(name, _)| name == setting.env) {
                check(setting, &Origin::Env(setting.env), text)?;
                set(setting.name, text.clone(), Origin::Env(setting.env));
            }
        }
        for (name, flag, text) in layers.flags {
            let setting = Setting::of(name).ok_or_else(|| BadConfig(file::unknown(name)))?;
            check(setting, &Origin::Flag(flag), &text)?;
            set(name, text, Origin::Flag(flag));
        }
        Config::typed(values).map_err(BadConfig)
    }

    fn typed(values: Vec<(String, Origin)>) -> Result<Config, String> {
        let text = |name: &str| {
            let index = SETTINGS.iter().position(|setting| setting.name == name);
            values[index.expect("only names of the table are asked for")].0.as_str()
        };
        let is_default = |name: &str| {
            let index = SETTINGS.iter().position(|setting| setting.name == name);
            index.is_some_and(|index| values[index].1 == Origin::Default)
        };
        let bytes = |name| settings::bytes(text(name));
        let count = |name| settings::count(text(name));
        let size =
            |value: Result<u64, String>| Ok::<_, String>(usize::try_from(value?).unwrap_or(usize::MAX));
        let limits = Limits {
            body: size(bytes("limits.body"))?,
            headers_bytes: size(bytes("limits.header_bytes"))?,
            connections: size(count("limits.connections"))?,
            followers: size(count("limits.streams"))?,
            executors: size(count("limits.executors"))?,
            writes_per_second: count("limits.writes_per_second")?,
            reads_per_second: count("limits.reads_per_second")?,
            streams_per_second: count("limits.streams_per_second")?,
            request: settings::span(text("limits.request_time"))?,
            ..Limits::default()
        };
        let journal = settings::journal(text("journal"))?;
        let executors = match (&journal, settings::clusters(text("executors"))?) {
            (Place::Embedded, clusters) => clusters,
            // Each would drive them from the server that decides at the time.
            (Place::Kafka { .. }, Clusters::All) if is_default("executors") => {
                Clusters::Only(BTreeSet::new())
            }
            (Place::Kafka { .. }, Clusters::Only(names)) if names.is_empty() => Clusters::Only(names),
            (Place::Kafka { .. }, _) => {
                return Err("executors: with the journal on Kafka no server drives clusters, as another one may decide: write \
                            none, and run `chancery executor` for each cluster"
                    .into());
            }
        };
        let fleet: FleetName = text("fleet").parse().map_err(|error| format!("fleet: {error}"))?;
        let fleets = fleets(settings::fleets(text("fleets"))?, &fleet, &journal)?;
        Ok(Config {
            data_dir: text("data_dir").into(),
            listen: settings::listen(text("listen"))?,
            journal,
            kafka: Kafka {
                session: settings::session(text("kafka.session"))?,
                events: settings::switch(text("kafka.events"))?,
                correct_events: false,
                skip_inbox: None,
                inbox: match settings::scope(text("inbox.scope"))? {
                    Some(scope) => {
                        let actor =
                            text("inbox.actor").parse().map_err(|error| format!("inbox.actor: {error}"))?;
                        Some(Binding { actor, scope })
                    }
                    None => None,
                },
                unsafe_topics: settings::switch(text("kafka.unsafe_topics"))?,
                security: KafkaSecurity {
                    tls: settings::switch(text("kafka.tls"))?,
                    ca_file: Some(text("kafka.ca_file")).filter(|path| !path.is_empty()).map(PathBuf::from),
                    login: login(
                        text("kafka.username"),
                        text("kafka.password_file"),
                        text("kafka.sasl_mechanism"),
                    )?,
                },
                client: settings::pairs(text("kafka.client"))?,
            },
            advertise: Some(text("advertise")).filter(|address| !address.is_empty()).map(str::to_owned),
            allowed_hosts: settings::hosts(text("allowed_hosts"))?,
            cors_origins: settings::origins(text("cors_origins"))?,
            server: text("server").trim_end_matches('/').to_owned(),
            fleet,
            fleets,
            actor: text("actor").parse().map_err(|error| format!("actor: {error}"))?,
            log: text("log").to_owned(),
            log_format: settings::log_format(text("log_format"))?,
            lease: settings::span(text("lease"))?,
            clock_max_gap: settings::span(text("clock.max_gap"))?,
            accept_clock: false,
            executors,
            limits,
            // A deployment cannot name more than fit: a larger bound is none.
            replicas: u32::try_from(count("limits.replicas")?).unwrap_or(u32::MAX),
            queue: size(count("limits.queue"))?,
            output: settings::output(text("output.file_bytes"), text("output.files"))?,
            cgroup: settings::cgroup(text("cgroup"))?,
            segment_bytes: bytes("segment_bytes")?,
            sled_cache: bytes("sled_cache")?,
            snapshot_events: count("snapshot_events")?,
            loss: OnLoss::Refuse,
            values,
        })
    }

    /// Every setting with its value, as it was written, and where that came from.
    pub fn shown(&self) -> impl Iterator<Item = (&'static Setting, &str, &Origin)> {
        SETTINGS.iter().zip(&self.values).map(|(setting, (text, origin))| (setting, text.as_str(), origin))
    }
}

/// How servers log in, if they are to.
fn login(username: &str, password_file: &str, mechanism: &str) -> Result<Option<KafkaLogin>, String> {
    match (username, password_file) {
        ("", "") => Ok(None),
        ("", _) => Err("kafka.password_file is set, and kafka.username is not".into()),
        (_, "") => Err("kafka.username is set, and kafka.password_file is not".into()),
        (username, file) => Ok(Some(KafkaLogin {
            mechanism: settings::sasl_mechanism(mechanism)?,
            username: username.to_owned(),
            password_file: file.into(),
        })),
    }
}

/// The fleets of a server, each with its partition, which means nothing to an embedded journal.
fn fleets(
    mut named: BTreeMap<FleetName, Option<i32>>,
    fleet: &FleetName,
    journal: &Place,
) -> Result<BTreeMap<FleetName, i32>, String> {
    if named.is_empty() {
        named.insert(fleet.clone(), None);
    }
    let mut of = BTreeMap::new();
    for (name, partition) in &named {
        if let (Place::Embedded, Some(partition)) = (journal, partition) {
            return Err(format!(
                "fleets: {name}={partition}: an embedded journal has no partitions; is CHANCERY_JOURNAL set?"
            ));
        }
        if let (Place::Kafka { .. }, Some(other)) = (journal, of.insert(partition.unwrap_or(0), name)) {
            return Err(format!(
                "fleets: {other} and {name} have the same partition: write another one for each, as in {other}=0,{name}=1"
            ));
        }
    }
    Ok(named.into_iter().map(|(name, partition)| (name, partition.unwrap_or(0))).collect())
}

/// Variables that look like one of a setting, and are none. Others may begin with our name too: processes and pods are
/// given some.
pub fn slips(names: impl Iterator<Item = String>) -> Vec<String> {
    let words: Vec<_> = SETTINGS.iter().filter_map(|setting| setting.env.strip_prefix(PREFIX)).collect();
    let slip = |name: String| {
        let word = name.strip_prefix(PREFIX)?;
        // Kubernetes tells every pod of services; one of our name begins as our settings do.
        let is_of_a_service = word.contains("SERVICE_") || word.starts_with("PORT");
        let is_of_a_process = PAYLOAD_VARIABLES.iter().any(|(variable, _)| *variable == name);
        if words.contains(&word) || name == FILE_ENV || is_of_a_service || is_of_a_process {
            return None;
        }
        let meant = nearest(word, &words)?;
        Some(format!("the variable {name} sets nothing: did you mean {PREFIX}{meant}?"))
    };
    names.filter_map(slip).collect()
}

/// Every setting as it is when nobody sets it.
fn defaults() -> Vec<(String, Origin)> {
    SETTINGS.iter().map(|setting| (setting.default.to_owned(), Origin::Default)).collect()
}

/// The file and its text: the one named by a flag or the environment must be there.
fn open(layers: &Layers<'_>) -> Result<Option<(String, String)>, BadConfig> {
    let named = layers.env.iter().find(|(name, _)| name == FILE_ENV).map(|(_, value)| Path::new(value));
    let named = layers.file.or(named);
    let path = named.unwrap_or(Path::new(FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.display().to_string(), text))),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(BadConfig(format!("read the configuration file {}: {error}", path.display()))),
    }
}
