//! Real Kafka of one or three brokers on free ports of the loopback. Kafka needs Java and the files that
//! `tests/kafka/install` fetches.
//!
//! Its nodes belong to a script, `tests/kafka/hold`, which lives as long as a pipe from here. When the pipe
//! is closed, by `Drop` or any end of this process, the script kills every node and removes the directory.

pub mod batch;
pub mod proxy;

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use proxy::{BrokerProxy, ProxyFaults, ProxyListener};

/// Separate Kafka cluster, which ends when this value is dropped.
///
/// Brokers are 1, or 1, 2 and 3; three have a separate controller, 100. Topics are created only on request;
/// with three brokers they have three replicas, two of which must have a record before it is acknowledged.
#[derive(Debug)]
pub struct KafkaCluster {
    dir: PathBuf,
    bootstrap: String,
    holder: Child,
    /// Proxies, one before each broker, if clients use proxies.
    proxies: Vec<BrokerProxy>,
}

/// Returns the cluster of one or three brokers that this binary's tests share, and must not harm.
pub fn shared(brokers: usize) -> &'static KafkaCluster {
    static ONE: OnceLock<KafkaCluster> = OnceLock::new();
    static THREE: OnceLock<KafkaCluster> = OnceLock::new();
    let cluster = if brokers == 1 { &ONE } else { &THREE };
    cluster.get_or_init(|| KafkaCluster::start(brokers))
}

impl KafkaCluster {
    /// Starts a cluster and waits until every node is ready. `brokers` is 1 or 3.
    pub fn start(brokers: usize) -> KafkaCluster {
        KafkaCluster::start_behind(brokers, Vec::new(), false)
    }

    /// Starts a cluster of one broker that also accepts TLS and SCRAM: see [`KafkaCluster::secure`].
    pub fn start_secure() -> KafkaCluster {
        KafkaCluster::start_behind(1, Vec::new(), true)
    }

    /// Returns the TLS bootstrap address, and the file of the authority's certificate. The user is
    /// `chancery`, the password `secret`.
    pub fn secure(&self) -> (String, PathBuf) {
        let address = std::fs::read_to_string(self.dir.join("secure")).expect("the cluster has it");
        (address.trim_end().to_owned(), self.dir.join("ca.pem"))
    }

    /// Starts a cluster with a proxy before each broker, which clients connect through.
    pub fn start_with_proxies(brokers: usize) -> KafkaCluster {
        KafkaCluster::start_behind(brokers, (0..brokers).map(|_| BrokerProxy::listen()).collect(), false)
    }

    fn start_behind(
        brokers: usize,
        proxies: Vec<(BrokerProxy, ProxyListener)>,
        is_secure: bool,
    ) -> KafkaCluster {
        let ports: Vec<_> = proxies.iter().map(|(proxy, _)| proxy.port().to_string()).collect();
        let dir =
            tempfile::Builder::new().prefix("chancery-kafka-").tempdir().expect("a temporary directory");
        let mut holder = Command::new(script("hold"))
            .arg(brokers.to_string())
            .arg(dir.path())
            .env("CHANCERY_TEST_KAFKA_PROXIES", ports.join(" "))
            .env("CHANCERY_TEST_KAFKA_SECURE", if is_secure { "yes" } else { "" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0) // so that the end of this process group leaves it time to clean up
            .spawn()
            .expect("tests/kafka/hold starts");
        let mut bootstrap = String::new();
        let output = holder.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut bootstrap).expect("its words can be read");
        if bootstrap.is_empty() {
            let mut why = String::new();
            holder.stderr.take().expect("it is piped").read_to_string(&mut why).expect("it is text");
            let status = holder.wait().expect("it is ours");
            panic!("Kafka did not start: {status}\n{why}");
        }
        let dir = dir.keep(); // the holder removes it
        let mut bootstrap = bootstrap.trim_end().to_owned();
        let mut kept = Vec::new();
        if !proxies.is_empty() {
            let direct = bootstrap.split(',').map(|broker| broker.parse().expect("an address"));
            for ((proxy, listener), broker) in proxies.into_iter().zip(direct) {
                listener.lead_to(broker);
                kept.push(proxy);
            }
            bootstrap = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
        }
        KafkaCluster { dir, bootstrap, holder, proxies: kept }
    }

    /// Sets the faults of the responses of all brokers. Panics without proxies.
    pub fn set_faults(&self, faults: ProxyFaults) {
        assert!(!self.proxies.is_empty(), "the cluster was started without proxies");
        for proxy in &self.proxies {
            proxy.set(faults);
        }
    }

    /// Sets the faults of the responses of one broker, 1 to 3. Panics without proxies.
    pub fn set_faults_of(&self, broker: i32, faults: ProxyFaults) {
        let at = usize::try_from(broker - 1).expect("the id of a broker");
        self.proxies[at].set(faults);
    }

    /// Returns the bootstrap addresses: `host:port` of every broker, separated by commas.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Returns the directory of the nodes, with the log of each in `node-ID/log`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Kills a node, as a power cut would.
    pub fn kill(&self, id: u32) {
        self.node("kill", id);
    }

    /// Suspends a node, with its files and connections open.
    pub fn pause(&self, id: u32) {
        self.node("pause", id);
    }

    /// Resumes a node.
    pub fn resume(&self, id: u32) {
        self.node("resume", id);
    }

    /// Starts a killed node again with its data and port, and waits until it is ready.
    pub fn restart(&self, id: u32) {
        self.node("restart", id);
    }

    /// Empties the disk of a killed node.
    pub fn wipe(&self, id: u32) {
        self.node("wipe", id);
    }

    fn node(&self, what: &str, id: u32) {
        run(Command::new(script("node")).arg(what).arg(&self.dir).arg(id.to_string()));
    }

    /// Returns the bootstrap addresses of clients without proxy, such as Kafka's own tools.
    pub fn direct(&self) -> String {
        std::fs::read_to_string(self.dir.join("tools")).expect("the cluster has it").trim_end().to_owned()
    }

    /// Runs one of Kafka's own tools (`tests/kafka/tool` names them) with these brokers. Returns its output.
    pub fn tool(&self, name: &str, args: &[&str]) -> String {
        run(Command::new(script("tool")).args([name, "--bootstrap-server", &self.direct()]).args(args))
    }

    /// Sets a setting of a topic; `None` removes it, so that the default of the brokers applies.
    pub fn set_topic(&self, topic: &str, setting: &str, value: Option<&str>) {
        let (how, what) = match value {
            Some(value) => ("--add-config", format!("{setting}={value}")),
            None => ("--delete-config", setting.to_owned()),
        };
        let args = ["--alter", "--entity-type", "topics", "--entity-name", topic, how, &what];
        self.tool("kafka-configs", &args);
    }
}

impl Drop for KafkaCluster {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kafka").join(name)
}

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the script runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}
