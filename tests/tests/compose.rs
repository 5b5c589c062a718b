//! Container files, `Dockerfile` and `docker-compose.yml`, against the program: settings, command line, and
//! references between services. No container engine is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use chancery::cli::{CliArgs, CliCommand, LocalCommand};
use chancery::config::{ConfigLayers, FILE_ENV, JournalLocation, SETTINGS, ServiceConfig};
use chancery_tests::ServerProcess;
use clap::Parser as _;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct ComposeFile {
    services: BTreeMap<String, ComposeService>,
    volumes: BTreeMap<String, Option<Value>>,
}

#[derive(Deserialize)]
struct ComposeService {
    image: String,
    build: Option<String>,
    #[serde(default)]
    command: Vec<String>,
    environment: BTreeMap<String, Value>,
    network_mode: String,
    restart: String,
    healthcheck: Option<ServiceHealthcheck>,
    #[serde(default)]
    volumes: Vec<String>,
    #[serde(default)]
    depends_on: BTreeMap<String, ServiceDependency>,
}

#[derive(Deserialize)]
struct ServiceHealthcheck {
    test: Vec<String>,
}

#[derive(Deserialize)]
struct ServiceDependency {
    condition: String,
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn compose() -> ComposeFile {
    serde_saphyr::from_str(&read("docker-compose.yml")).expect("docker-compose.yml")
}

/// Arguments of the instruction's uses in the Dockerfile's last stage.
fn instructions(name: &str) -> Vec<String> {
    let text = read("Dockerfile");
    let stage = text.rsplit_once("\nFROM ").expect("two stages").1;
    let arguments = stage.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    arguments.map(str::to_owned).collect()
}

/// Argument of the instruction's last use in the Dockerfile's last stage.
fn instruction(name: &str) -> String {
    instructions(name).pop().unwrap_or_else(|| panic!("the Dockerfile has no {name}"))
}

/// Environment of the image.
fn image_environment() -> BTreeMap<String, String> {
    let pair = |line: &String| line.split_once('=').map(|(name, value)| (name.into(), value.into()));
    instructions("ENV").iter().map(|line| pair(line).expect("NAME=VALUE")).collect()
}

fn words(json: &str) -> Vec<String> {
    serde_json::from_str(json).expect("the form of an instruction that needs no shell")
}

impl ComposeFile {
    fn with_image(&self, name: &str) -> impl Iterator<Item = (&str, &ComposeService)> {
        let is = move |service: &ComposeService| service.image.starts_with(name);
        self.services.iter().filter(move |(_, service)| is(service)).map(|(name, it)| (name.as_str(), it))
    }

    fn brokers(&self) -> Vec<&ComposeService> {
        self.with_image("apache/kafka:").map(|(_, service)| service).collect()
    }

    /// Services that run this program.
    fn ours(&self) -> Vec<(&str, &ComposeService)> {
        self.with_image("chancery:").collect()
    }

    /// Whether another service waits for this one's end.
    fn ends(&self, name: &str) -> bool {
        let mut waits = self.services.values().filter_map(|service| service.depends_on.get(name));
        waits.any(|depends| depends.condition == "service_completed_successfully")
    }
}

impl ComposeService {
    fn setting(&self, name: &str) -> String {
        match self.environment.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => panic!("{name} is not set: {:?}", self.environment),
        }
    }

    /// Environment of the service over the image's.
    fn environment(&self) -> BTreeMap<String, String> {
        let own = self.environment.keys().map(|name| (name.clone(), self.setting(name)));
        image_environment().into_iter().chain(own).collect()
    }

    /// Configuration that the program reads.
    fn config(&self) -> ServiceConfig {
        let layers =
            ConfigLayers { env: self.environment().into_iter().collect(), ..ConfigLayers::default() };
        ServiceConfig::read(layers).unwrap_or_else(|error| panic!("{:?}: {error}", self.environment))
    }

    /// Command line of the service.
    fn cli(&self) -> CliArgs {
        let usual = words(&instruction("CMD"));
        let command = if self.command.is_empty() { &usual } else { &self.command };
        parse(words(&instruction("ENTRYPOINT")).iter().chain(command))
    }

    /// Command of the health check, as Compose passes it on.
    fn check(&self) -> Vec<String> {
        let test = &self.healthcheck.as_ref().expect("a check").test;
        test.iter().map(|word| word.replace("$$", "$")).collect()
    }

    /// Volume or directory that is mounted at this path.
    fn mounted(&self, place: &str) -> Option<&str> {
        let parts = |volume: &'_ str| volume.split(':').nth(1) == Some(place);
        self.volumes.iter().find(|volume| parts(volume)).and_then(|volume| volume.split(':').next())
    }
}

fn parse<'a>(words: impl IntoIterator<Item = &'a String>) -> CliArgs {
    let words: Vec<_> = words.into_iter().collect();
    CliArgs::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

#[test]
fn every_service_has_settings_and_a_command_that_the_program_takes() {
    let compose = compose();
    let known: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.env).chain([FILE_ENV]).collect();
    for (name, service) in compose.ours() {
        for variable in service.environment().keys() {
            assert!(known.contains(variable.as_str()), "{name}: {variable} is no setting");
        }
        let config = service.config();
        match service.cli().command {
            CliCommand::Local(LocalCommand::Serve(_) | LocalCommand::InitTopics { .. }) => {
                assert!(
                    matches!(config.journal, JournalLocation::Kafka { .. }),
                    "{name} has its journal on Kafka"
                );
            }
            CliCommand::Local(LocalCommand::Executor(executor)) => {
                let dir = executor.dir();
                let kept = service.mounted(dir.to_str().expect("text"));
                assert!(kept.is_some(), "{name}: the executor store in {} is kept", dir.display());
            }
            CliCommand::Client(_) => {}
            other @ (CliCommand::Config { .. } | CliCommand::Context { .. } | CliCommand::Local(_)) => {
                panic!("{name}: {other:?}")
            }
        }
        // A check that asks a server is a command line too.
        if let Some(check) = service.healthcheck.as_ref().map(|_| service.check())
            && check[1] == "chancery"
        {
            assert_eq!(check[0], "CMD");
            parse(&check[1..]);
        }
    }
}

#[test]
fn services_are_where_the_others_expect_them() {
    let compose = compose();
    let (mut brokers, mut voters, mut taken) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for broker in compose.brokers() {
        let listeners = broker.setting("KAFKA_LISTENERS");
        let at: BTreeMap<_, _> = listeners.split(',').filter_map(|one| one.split_once("://")).collect();
        let (clients, controllers) = (at["PLAINTEXT"], at["CONTROLLER"]);
        assert_eq!(broker.setting("KAFKA_ADVERTISED_LISTENERS"), format!("PLAINTEXT://{clients}"));
        assert_eq!(broker.setting("BROKER"), clients, "its check asks the broker itself");
        brokers.insert(clients.to_owned());
        voters.insert(format!("{}@{controllers}", broker.setting("KAFKA_NODE_ID")));
        for address in [clients, controllers] {
            assert!(address.starts_with("127.0.0.1:"), "no other host reaches {address}");
            assert!(taken.insert(address.to_owned()), "{address} has one owner");
        }
    }
    for broker in compose.brokers() {
        let configured: BTreeSet<_> =
            broker.setting("KAFKA_CONTROLLER_QUORUM_VOTERS").split(',').map(str::to_owned).collect();
        assert_eq!(configured, voters);
    }

    let (mut servers, mut prefixes, mut directories) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (name, service) in compose.ours() {
        let config = service.config();
        if let JournalLocation::Kafka { brokers: asked, prefix } = &config.journal {
            assert_eq!(asked.split(',').map(str::to_owned).collect::<BTreeSet<_>>(), brokers, "{name}");
            prefixes.insert(prefix.clone());
        }
        if matches!(service.cli().command, CliCommand::Local(LocalCommand::Serve(_))) {
            let address = config.listen.to_string();
            assert!(taken.insert(address.clone()), "{address} has one owner");
            assert!(config.listen.ip().is_loopback(), "{name}: no other host reaches {address}");
            assert_eq!(
                config.server,
                format!("http://{address}"),
                "{name}: its check asks the server itself"
            );
            servers.insert(format!("http://{address}"));
            let kept = service.mounted(config.data_dir.to_str().expect("text"));
            assert!(
                directories.insert(kept.expect("a server keeps its mirror")),
                "{name} has its own directory"
            );
        }
    }
    assert_eq!((servers.len(), prefixes.len()), (3, 1), "three servers of one fleet");
    for (name, service) in compose.ours() {
        if service.environment.contains_key("CHANCERY_SERVER") {
            for server in service.config().server.split(',') {
                assert!(servers.contains(server), "{name} asks {server}, which is none of {servers:?}");
            }
        }
    }
    assert!(
        servers.contains(&ServiceConfig::read(ConfigLayers::default()).expect("defaults").server),
        "the usual one"
    );
    for (name, service) in &compose.services {
        assert_eq!(service.network_mode, "host", "{name}");
    }
}

#[test]
fn one_service_builds_the_image() {
    let compose = compose();
    let builders: Vec<_> =
        compose.ours().into_iter().filter(|(_, service)| service.build.is_some()).collect();
    assert_eq!(builders.len(), 1, "Compose builds one tag several times, and concurrently");
}

#[test]
fn a_container_without_settings_is_reached_through_a_published_port() {
    let layers =
        || ConfigLayers { env: image_environment().into_iter().collect(), ..ConfigLayers::default() };
    let config = ServiceConfig::read(layers()).expect("the settings of the image");
    assert!(config.listen.ip().is_unspecified(), "{} is not reached from outside", config.listen);
    assert_eq!(instruction("EXPOSE"), config.listen.port().to_string());
    let check = words(instruction("HEALTHCHECK").split_once(" CMD ").expect("a command").1);
    parse(&check);
    assert!(
        config.server.ends_with(&format!(":{}", config.listen.port())),
        "its check asks {}",
        config.server
    );
}

#[test]
fn one_server_alone_publishes_its_port_on_loopback() {
    let file: Value = serde_saphyr::from_str(&read("docker-compose.single.yml")).expect("the file");
    let server = &file["services"]["server"];
    let ports: Vec<String> = serde_json::from_value(server["ports"].clone()).expect("ports");
    let published = format!("127.0.0.1:{0}:{0}", instruction("EXPOSE"));
    assert_eq!(ports, [published], "other hosts reach the server");
    let check: Vec<String> = serde_json::from_value(server["healthcheck"]["test"].clone()).expect("a check");
    parse(&check[1..]);
    let known: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.env).collect();
    for variable in server["environment"].as_object().expect("variables").keys() {
        assert!(known.contains(variable.as_str()), "{variable} is no setting");
    }
}

#[test]
fn brokers_keep_what_they_acknowledge() {
    let compose = compose();
    let brokers = compose.brokers();
    assert_eq!(brokers.len(), 3);
    let common = read("tests/kafka/common.sh");
    let version = common.lines().find_map(|line| line.strip_prefix("version=")).expect("a version");
    let mut kept = BTreeSet::new();
    for broker in &brokers {
        assert_eq!(broker.image, format!("apache/kafka:{version}"), "as in the tests");
        for (name, value) in [
            ("KAFKA_DEFAULT_REPLICATION_FACTOR", "3"),
            ("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", "3"),
            ("KAFKA_MIN_INSYNC_REPLICAS", "2"),
            ("KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE", "false"),
            ("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false"),
        ] {
            assert_eq!(broker.setting(name), value, "{name}");
        }
        assert_eq!(broker.setting("CLUSTER_ID"), brokers[0].setting("CLUSTER_ID"));
        let volume = broker.mounted(&broker.setting("KAFKA_LOG_DIRS")).expect("a volume");
        assert!(kept.insert(volume), "{volume} is of one broker");
    }
}

#[test]
fn permanent_services_have_a_health_check_and_restart_and_every_dependency_can_be_fulfilled() {
    let compose = compose();
    for (name, service) in &compose.services {
        if compose.ends(name) {
            assert_eq!((service.restart.as_str(), service.healthcheck.is_none()), ("no", true), "{name}");
        } else {
            assert_eq!(
                (service.restart.as_str(), service.healthcheck.is_some()),
                ("unless-stopped", true),
                "{name}"
            );
        }
        for (other, depends) in &service.depends_on {
            let stays = !compose.ends(other);
            let wanted = if stays { "service_healthy" } else { "service_completed_successfully" };
            assert!(compose.services.contains_key(other), "{name} waits for {other}");
            assert_eq!(depends.condition, wanted, "{name} waits for {other}");
        }
        for volume in service.volumes.iter().filter_map(|volume| volume.split(':').next()) {
            let is_there = if volume.starts_with('.') {
                file(volume).exists()
            } else {
                compose.volumes.contains_key(volume)
            };
            assert!(is_there, "{name}: {volume}");
        }
    }
}

#[test]
fn the_image_is_made_with_the_pinned_toolchain_from_all_crates_and_runs_as_a_user() {
    let (dockerfile, toolchain) = (read("Dockerfile"), read("rust-toolchain.toml"));
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).expect("a channel");
    let base = format!("ARG RUST_IMAGE=rust:{}-trixie", channel.trim_matches('"'));
    for line in [&base, "ARG RUNTIME_IMAGE=debian:trixie-slim", "FROM ${RUST_IMAGE} AS build"] {
        assert!(dockerfile.lines().any(|found| found == line), "{line}");
    }
    let version = format!("org.opencontainers.image.version=\"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(dockerfile.contains(&version), "{version}");
    assert!(dockerfile.contains("--locked"));
    assert_eq!(words(&instruction("ENTRYPOINT")), ["chancery"]);
    let user = instruction("USER");
    assert!(
        user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)),
        "{user} is a number and not root"
    );

    let (ignored, manifest) = (read(".dockerignore"), read("Cargo.toml"));
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).expect("members");
    for member in words(members) {
        assert!(ignored.lines().any(|line| line == format!("!{member}")), "{member} is of the workspace");
    }
}

#[test]
fn the_check_of_a_server_distinguishes_one_that_is_ready_from_one_that_has_ended() {
    let compose = compose();
    let is_server = |service: &&ComposeService| {
        matches!(service.cli().command, CliCommand::Local(LocalCommand::Serve(_)))
    };
    let service = compose.ours().into_iter().map(|(_, service)| service).find(is_server).expect("a server");
    let check = service.check();
    assert_eq!(check[0], "CMD");
    let mut server = ServerProcess::start();
    let url = server.url();
    assert_eq!(check[1], "chancery");
    let run = || {
        let mut check = Command::new(chancery_tests::program())
            .args(&check[2..])
            .env("CHANCERY_SERVER", &url)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        check.wait().expect("it ends").success()
    };
    assert!(run(), "it is ready");
    server.kill();
    assert!(!run(), "it is gone");
}
