//! Table of all settings: type, default, environment variable and meaning of each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use chancery_api::host_of;
use chancery_events::inbox_message::AllowedIntents;
use chancery_events::name::{Actor, FleetName, InvalidName};
use chancery_events::resources::parse_bytes;
use chancery_events::time::parse_span;

use chancery_executor::process::{CgroupSetting, GuestAccelerator, OutputLimits};
use tracing_subscriber::filter::Targets;

use super::{EmbeddedClusters, JournalLocation, LogFormat};

/// Type of a setting: a description and a parser.
#[derive(Debug)]
pub struct SettingType {
    /// Description for the reference of settings.
    pub what: &'static str,
    check: fn(&str) -> Result<(), String>,
}

macro_rules! types {
    ($($name:ident $what:literal $read:expr;)*) => {
        impl SettingType {$(
            const $name: &SettingType = &SettingType {
                what: $what,
                check: |text| $read(text).map(|_| ()).map_err(|error| error.to_string()),
            };
        )*}
    };
}

types! {
    DIRECTORY "directory" something;
    PROGRAM "program" something;
    DIRECTORIES "absolute paths of directories, separated by commas" directories;
    ACCELERATOR "`tcg`, `kvm`" accelerator;
    CGROUP "`auto`, `none`, or the absolute path of a directory" cgroup;
    LISTEN "address with its port" listen;
    URL "`http://…`, also several, separated by commas" urls;
    FLEET "name" str::parse::<FleetName>;
    FLEETS "names separated by commas, each also as `name=partition`, or nothing" fleets;
    ACTOR "name" str::parse::<Actor>;
    FILTER "levels and `target=level`, separated by commas" log_filter;
    LOG_FORMAT "`text`, `json`" log_format;
    CLUSTERS "`all`, `none`, or names separated by commas" clusters;
    SPAN "duration of at least `1s`: `30s`, `5m`, `24h`" span;
    BYTES "bytes, at least `1KiB`, also with a unit: `64MiB`" bytes;
    COUNT "whole number, at least 1" count;
    SESSION "duration of at least `6s`" session;
    SWITCH "`yes`, `no`" switch;
    JOURNAL "`embedded`, or `kafka://HOST:PORT,…/PREFIX`" journal;
    MAYBE_ADDRESS "host with its port, or nothing" address;
    HOSTS "names or addresses separated by commas, or nothing" hosts;
    ORIGINS "origins separated by commas, or nothing" origins;
    ALLOWED_INTENTS "types of intents separated by commas, also with `*`, or nothing" allowed_intents;
    PAIRS "`key=value` separated by commas, or nothing" pairs;
    MAYBE_FILE "path of a file, or nothing" anything;
    MAYBE_TEXT "text, or nothing" anything;
    SASL_MECHANISM "`scram-sha-512`, `scram-sha-256`, `plain`" sasl_mechanism;
}

/// Definition of a setting.
#[derive(Debug)]
pub struct SettingEntry {
    /// Name of the setting, as in the file; dots separate tables.
    pub name: &'static str,
    /// Type of the setting.
    pub kind: &'static SettingType,
    /// Default of the setting.
    pub default: &'static str,
    /// Environment variable of the setting.
    pub env: &'static str,
    /// Meaning of the setting.
    pub doc: &'static str,
}

macro_rules! settings {
    ($($name:literal $kind:ident $default:literal $env:literal $doc:literal;)*) => {
        /// Every setting, in the order in which they are shown.
        pub const SETTINGS: &[SettingEntry] = &[$(
            SettingEntry { name: $name, kind: SettingType::$kind, default: $default, env: $env, doc: $doc }
        ),*];
    };
}

settings! {
    "data_dir" DIRECTORY "./chancery-data" "CHANCERY_DATA_DIR" "directory of the journal and everything derived from it";
    "listen" LISTEN "127.0.0.1:7440" "CHANCERY_LISTEN" "address on which the server accepts requests; loopback only, unless allow_unsafe_listen is yes";
    "allow_unsafe_listen" SWITCH "no" "CHANCERY_ALLOW_UNSAFE_LISTEN" "whether listen may be an address that other hosts reach: as there is neither TLS nor authentication, everyone who reaches it can do everything";
    "server" URL "http://127.0.0.1:7440" "CHANCERY_SERVER" "URL of the server for client commands; of several, separated by commas, the first that answers is used";
    "journal" JOURNAL "embedded" "CHANCERY_JOURNAL" "location of the journal: embedded, or on Kafka";
    "advertise" MAYBE_ADDRESS "" "CHANCERY_ADVERTISE" "address at which other servers reach this server; listen unless set";
    "allowed_hosts" HOSTS "" "CHANCERY_ALLOWED_HOSTS" "hosts under which clients may address the server, in addition to loopback and advertise; without ports";
    "cors_origins" ORIGINS "" "CHANCERY_CORS_ORIGINS" "origins whose web pages may send requests and read the answers, as in https://console.example; none unless set";
    "fleet" FLEET "default" "CHANCERY_FLEET" "fleet of client commands";
    "fleets" FLEETS "" "CHANCERY_FLEETS" "fleets of the server, on Kafka each with its partition of the topics; the value of fleet unless set";
    "actor" ACTOR "local" "CHANCERY_ACTOR" "actor of client commands, as recorded in the journal";
    "log_filter" FILTER "warn" "CHANCERY_LOG_FILTER" "filter of log lines, as in warn,chancery=debug";
    "log_format" LOG_FORMAT "text" "CHANCERY_LOG_FORMAT" "format of log lines: text or json";
    "session_lease" SPAN "15s" "CHANCERY_SESSION_LEASE" "time without a heartbeat until a session expires";
    "clock.max_gap" SPAN "31d" "CHANCERY_CLOCK_MAX_GAP" "maximum lead of the wall clock over journal time; with a larger lead the server does not decide, unless the clock is synchronised or accepted";
    "embedded_executors" CLUSTERS "all" "CHANCERY_EMBEDDED_EXECUTORS" "clusters whose executors run in the server's own process: all, none, or names separated by commas";
    "limits.body_bytes" BYTES "1MiB" "CHANCERY_LIMITS_BODY_BYTES" "maximum size of a request's body";
    "limits.header_bytes" BYTES "64KiB" "CHANCERY_LIMITS_HEADER_BYTES" "maximum size of a request's head";
    "limits.connections" COUNT "1024" "CHANCERY_LIMITS_CONNECTIONS" "maximum number of connections, three quarters of them from one address; each further HTTP/2 stream of a connection counts as one; fewer if the system allows too few open files. Probes are always answered";
    "limits.streams" COUNT "256" "CHANCERY_LIMITS_STREAMS" "maximum number of event and log streams of each fleet";
    "limits.executors" COUNT "256" "CHANCERY_LIMITS_EXECUTORS" "maximum number of executors of each fleet that are connected over HTTP";
    "limits.writes_per_second" COUNT "20000" "CHANCERY_LIMITS_WRITES_PER_SECOND" "maximum number of intents per second and principal";
    "limits.reads_per_second" COUNT "20000" "CHANCERY_LIMITS_READS_PER_SECOND" "maximum number of reads per second and principal";
    "limits.streams_per_second" COUNT "1000" "CHANCERY_LIMITS_STREAMS_PER_SECOND" "maximum number of streams opened per second and principal";
    "limits.replicas" COUNT "10000" "CHANCERY_LIMITS_REPLICAS" "maximum number of replicas of one deployment";
    "limits.decider_queue" COUNT "4096" "CHANCERY_LIMITS_DECIDER_QUEUE" "maximum number of inputs that wait for the decider of each fleet";
    "limits.request_timeout" SPAN "30s" "CHANCERY_LIMITS_REQUEST_TIMEOUT" "maximum duration of a request, except streams";
    "as_of.moments" COUNT "4" "CHANCERY_AS_OF_MOMENTS" "maximum number of past states of each fleet that are kept in memory for reads with as_of";
    "as_of.memory" BYTES "1GiB" "CHANCERY_AS_OF_MEMORY" "maximum memory of past states of each fleet, by estimate; a larger past state cannot be read";
    "output.max_file_bytes" BYTES "10MiB" "CHANCERY_OUTPUT_MAX_FILE_BYTES" "size at which an output of a process continues in another file";
    "output.max_files" COUNT "3" "CHANCERY_OUTPUT_MAX_FILES" "maximum number of files of each output of a process";
    "kafka.session_timeout" SESSION "10s" "CHANCERY_KAFKA_SESSION_TIMEOUT" "time without contact to a server until another one becomes leader";
    "kafka.allow_unsafe_topics" SWITCH "no" "CHANCERY_KAFKA_ALLOW_UNSAFE_TOPICS" "whether topics that may lose acknowledged records are accepted";
    "kafka.export_events" SWITCH "yes" "CHANCERY_KAFKA_EXPORT_EVENTS" "whether events are written to the events topic for consumers";
    "inbox.allowed_intents" ALLOWED_INTENTS "" "CHANCERY_INBOX_ALLOWED_INTENTS" "intents that inbox messages may request, as in plan.*,deployment.create; the inbox is not read unless set";
    "inbox.actor" ACTOR "inbox" "CHANCERY_INBOX_ACTOR" "actor of intents from the inbox";
    "kafka.tls" SWITCH "no" "CHANCERY_KAFKA_TLS" "whether connections to brokers use TLS, with a check of certificates and names; requires a build with the feature kafka-tls";
    "kafka.ca_file" MAYBE_FILE "" "CHANCERY_KAFKA_CA_FILE" "certificates, in PEM, of the authorities that sign broker certificates; the system's authorities unless set";
    "kafka.username" MAYBE_TEXT "" "CHANCERY_KAFKA_USERNAME" "user name of servers at brokers, by SASL; no login unless set";
    "kafka.password_file" MAYBE_FILE "" "CHANCERY_KAFKA_PASSWORD_FILE" "file with the password, read at each start; a line feed at its end is ignored";
    "kafka.sasl_mechanism" SASL_MECHANISM "scram-sha-512" "CHANCERY_KAFKA_SASL_MECHANISM" "mechanism of the login: scram-sha-512 or scram-sha-256, which require a build with the feature kafka-tls, or plain";
    "kafka.client_properties" PAIRS "" "CHANCERY_KAFKA_CLIENT_PROPERTIES" "settings of librdkafka for connections to brokers, as in client.rack=a";
    "cgroup_root" CGROUP "auto" "CHANCERY_CGROUP_ROOT" "root of the control groups of processes: auto, none, or a directory of cgroup v2 that delegates the memory controller";
    "qemu.program" PROGRAM "qemu-system-x86_64" "CHANCERY_QEMU_PROGRAM" "program of QEMU, as a path or as a name in the search path";
    "qemu.images" DIRECTORIES "/var/lib/chancery/images" "CHANCERY_QEMU_IMAGES" "directories of kernels, disk images and firmware for virtual machines, separated by commas; the first that has a file counts";
    "qemu.accelerator" ACCELERATOR "tcg" "CHANCERY_QEMU_ACCELERATOR" "how QEMU runs the processors of virtual machines: tcg emulates them, kvm uses the kernel; with kvm, no virtual machine starts before a test guest has run on it";
    "segment_bytes" BYTES "64MiB" "CHANCERY_SEGMENT_BYTES" "size at which the journal starts another segment";
    "store_cache_bytes" BYTES "64MiB" "CHANCERY_STORE_CACHE_BYTES" "memory for the store of the read models of each fleet";
    "snapshot_interval_events" COUNT "100000" "CHANCERY_SNAPSHOT_INTERVAL_EVENTS" "minimum number of events between snapshots of the state; in a fleet with more than twice as many entities, half their number";
}

impl SettingEntry {
    /// Returns the setting of that name.
    pub fn of(name: &str) -> Option<&'static SettingEntry> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// Returns the reason why the text is invalid, or `None`.
    pub(super) fn fault(&self, text: &str) -> Option<String> {
        (self.kind.check)(text).err()
    }
}

fn something(text: &str) -> Result<(), &'static str> {
    if text.is_empty() { Err("must not be empty") } else { Ok(()) }
}

#[expect(clippy::unnecessary_wraps, reason = "a parser as the others")]
fn anything(_: &str) -> Result<(), &'static str> {
    Ok(())
}

pub(super) fn log_filter(text: &str) -> Result<Targets, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '=');
    let parts: Vec<_> = text.split(',').map(str::trim).collect();
    // An empty level would be taken for `error`.
    let fits = |part: &str| !part.is_empty() && !part.ends_with('=') && part.chars().all(plain);
    let read = parts.iter().all(|part| fits(part)).then(|| parts.join(",").parse().ok()).flatten();
    read.ok_or_else(|| format!("must be levels and target=level, separated by commas, not {text:?}"))
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("must be text or json, not {text:?}")),
    }
}

fn address(text: &str) -> Result<(), String> {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let is_address = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port));
    if text.is_empty() || is_address {
        return Ok(());
    }
    Err(format!("must be a host with its port as in server-1:7440, not {text:?}"))
}

pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("must be an address with its port as in 127.0.0.1:7440, not {text:?}"))
}

/// Parses the address of a listener that must be on loopback.
pub fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = listen(text)?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "{address} is not on the loopback interface, and this build has neither TLS nor authentication\n\
             hint: listen on 127.0.0.1 or [::1], behind a proxy that has both"
        ));
    }
    Ok(address)
}

fn urls(text: &str) -> Result<(), String> {
    // Not shown: the text may have a password.
    if text.contains('@') {
        return Err("must have no user and no password, as this build has no authentication".into());
    }
    text.split(',').try_for_each(|one| url(one.trim()))
}

fn url(text: &str) -> Result<(), String> {
    match text.split_once("://") {
        Some(("http", rest)) if !rest.is_empty() && !rest.contains(['?', '#', ' ']) => Ok(()),
        Some(("https", _)) => Err("must be http://…, as this build has no TLS".into()),
        _ => Err(format!("must be a URL as in http://127.0.0.1:7440, not {text:?}")),
    }
}

pub(super) fn clusters(text: &str) -> Result<EmbeddedClusters, String> {
    let names =
        |text: &str| text.split(',').map(|name| name.trim().parse()).collect::<Result<_, InvalidName>>();
    match text {
        "all" => Ok(EmbeddedClusters::All),
        "none" => Ok(EmbeddedClusters::Only(BTreeSet::new())),
        names_of => names(names_of)
            .map(EmbeddedClusters::Only)
            .map_err(|error| format!("must be all, none, or names of clusters separated by commas: {error}")),
    }
}

pub(super) fn span(text: &str) -> Result<Duration, String> {
    let span = parse_span(text).map_err(|error| error.to_string())?;
    if span < Duration::from_secs(1) { Err("must be a duration of at least 1s".into()) } else { Ok(span) }
}

pub(super) fn session(text: &str) -> Result<Duration, String> {
    let session = span(text)?;
    if session < Duration::from_secs(6) {
        return Err("must be at least 6s: brokers refuse less, and the fleet would have no leader".into());
    }
    Ok(session)
}

pub(super) fn bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text, 1) {
        Ok(bytes) if bytes < 1024 => Err("must be at least 1KiB".into()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    let found = text.parse::<u64>().ok().filter(|count| *count >= 1);
    found.ok_or_else(|| format!("must be a whole number, at least 1, not {text:?}"))
}

pub(super) fn fleets(text: &str) -> Result<BTreeMap<FleetName, Option<i32>>, String> {
    let mut fleets = BTreeMap::new();
    for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let (name, partition) = match one.split_once('=') {
            None => (one, None),
            Some((name, number)) => {
                let partition = number.trim().parse::<i32>().ok().filter(|number| *number >= 0);
                let fault = || format!("must have the number of a partition as in {name}=0, not {number:?}");
                (name.trim(), Some(partition.ok_or_else(fault)?))
            }
        };
        let name: FleetName = name.parse().map_err(|error| format!("{error}"))?;
        if fleets.insert(name.clone(), partition).is_some() {
            return Err(format!("{name} is listed twice"));
        }
    }
    Ok(fleets)
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("must be yes or no, not {text:?}")),
    }
}

pub(super) fn journal(text: &str) -> Result<JournalLocation, String> {
    if text == "embedded" {
        return Ok(JournalLocation::Embedded);
    }
    let kafka = text.strip_prefix("kafka://").and_then(|rest| rest.split_once('/'));
    match kafka {
        Some((brokers, prefix)) if !brokers.is_empty() && is_topic(prefix) => {
            Ok(JournalLocation::Kafka { brokers: brokers.to_owned(), prefix: prefix.to_owned() })
        }
        _ => Err(format!(
            "must be embedded, or brokers and the prefix of the topics' names as in kafka://host-1:9092,host-2:9092/chancery, \
             not {text:?}"
        )),
    }
}

/// Whether names of topics may start with the prefix.
fn is_topic(prefix: &str) -> bool {
    let messages = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    !prefix.is_empty() && prefix.len() <= 200 && prefix.chars().all(messages)
}

pub(super) fn hosts(text: &str) -> Result<BTreeSet<String>, String> {
    let hosts = text.split(',').map(str::trim).filter(|host| !host.is_empty());
    hosts
        .map(|host| match host_of(host) {
            Some(whole) if whole == host => Ok(host.to_owned()),
            _ => Err(format!("{host:?} must be a name or an address, without scheme and port")),
        })
        .collect()
}

pub(super) fn origins(text: &str) -> Result<BTreeSet<String>, String> {
    let origins = text.split(',').map(str::trim).filter(|origin| !origin.is_empty());
    origins
        .map(|origin| match origin.split_once("://") {
            Some((scheme @ ("http" | "https"), authority)) if is_as_sent(scheme, authority) => {
                Ok(origin.to_ascii_lowercase())
            }
            _ => Err(format!("{origin:?} must be as in https://console.example:8443")),
        })
        .collect()
}

/// Whether browsers send an origin of this authority as written: without the scheme's default port.
fn is_as_sent(scheme: &str, authority: &str) -> bool {
    let Some(port) = host_of(authority).and_then(|host| authority.strip_prefix(host)) else { return false };
    let default = if scheme == "http" { 80 } else { 443 };
    port.strip_prefix(':').is_none_or(|port| {
        port.parse::<u16>().is_ok_and(|number| number != default && number.to_string() == port)
    })
}

pub(super) fn allowed_intents(text: &str) -> Result<Option<AllowedIntents>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| format!("{error}"))
}

pub(super) fn pairs(text: &str) -> Result<BTreeMap<String, String>, String> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok((key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Err(format!("must be key=value separated by commas, not {pair:?}")),
        })
        .collect()
}

/// Returns the mechanism as librdkafka names it.
pub(super) fn sasl_mechanism(text: &str) -> Result<&'static str, &'static str> {
    match text {
        "scram-sha-512" => Ok("SCRAM-SHA-512"),
        "scram-sha-256" => Ok("SCRAM-SHA-256"),
        "plain" => Ok("PLAIN"),
        _ => Err("must be scram-sha-512, scram-sha-256 or plain"),
    }
}

pub(super) fn cgroup(text: &str) -> Result<CgroupSetting, String> {
    match text {
        "auto" => Ok(CgroupSetting::Detect),
        "none" => Ok(CgroupSetting::Off),
        path if path.starts_with('/') => Ok(CgroupSetting::At(path.into())),
        _ => Err(format!("must be auto, none, or an absolute path, not {text:?}")),
    }
}

pub(super) fn accelerator(text: &str) -> Result<GuestAccelerator, String> {
    GuestAccelerator::parse(text).ok_or_else(|| format!("must be tcg or kvm, not {text:?}"))
}

pub(super) fn directories(text: &str) -> Result<Vec<PathBuf>, String> {
    let directory = |path: &str| match path.trim() {
        path if path.starts_with('/') => Ok(path.into()),
        path => Err(format!("must be absolute paths, not {path:?}")),
    };
    text.split(',').map(directory).collect()
}

pub(super) fn output(file_bytes: &str, files: &str) -> Result<OutputLimits, String> {
    let file_bytes = NonZeroU64::new(bytes(file_bytes)?).ok_or("must be at least 1KiB")?;
    let files = u16::try_from(count(files)?).ok().and_then(NonZeroU16::new);
    let files = files.ok_or_else(|| format!("invalid output.max_files: must be at most {}", u16::MAX))?;
    Ok(OutputLimits { max_file_bytes: file_bytes, max_files: files })
}
