//! A real Kafka of one or three brokers on free ports of the loopback. It needs what `tests/kafka/install` fetches, and
//! Java.
//!
//! Its nodes belong to a script, `tests/kafka/hold`, which lives as long as a pipe from here: when that is closed, by
//! `Drop` or because this process ended, in whatever way, the script kills every node and removes the folder.

pub mod batch;
pub mod proxy;

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use proxy::{Proxy, ProxyFaults, ProxyListener};

/// A cluster of its own, which goes when this does. Brokers are 1, or 1, 2 and 3; beside three there is a controller,
/// 100. Topics are made by nobody but who asks for them; with three brokers they have three replicas, of which two
/// must have a record before it is acknowledged.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    bootstrap: String,
    holder: Child,
    /// One before each broker, if clients are led through proxies.
    proxies: Vec<Proxy>,
}

/// The cluster of one or of three brokers that the tests of this binary share. It is not for those that harm a node.
pub fn shared(brokers: usize) -> &'static Cluster {
    static ONE: OnceLock<Cluster> = OnceLock::new();
    static THREE: OnceLock<Cluster> = OnceLock::new();
    let cluster = if brokers == 1 { &ONE } else { &THREE };
    cluster.get_or_init(|| Cluster::start(brokers))
}

impl Cluster {
    /// Starts one and waits until every node is up. `brokers` is 1 or 3.
    pub fn start(brokers: usize) -> Cluster {
        Cluster::start_behind(brokers, Vec::new(), false)
    }

    /// Starts one of a broker that may be reached by TLS and SCRAM, too: see [`Cluster::secure`].
    pub fn start_secure() -> Cluster {
        Cluster::start_behind(1, Vec::new(), true)
    }

    /// Where clients begin by TLS, and the file with the certificate of the authority. The user is `chancery`, the password
    /// `secret`.
    pub fn secure(&self) -> (String, PathBuf) {
        let address = std::fs::read_to_string(self.dir.join("secure")).expect("the cluster has it");
        (address.trim_end().to_owned(), self.dir.join("ca.pem"))
    }

    /// The same, with a proxy before each broker, through which clients reach the broker.
    pub fn start_with_proxies(brokers: usize) -> Cluster {
        Cluster::start_behind(brokers, (0..brokers).map(|_| Proxy::listen()).collect(), false)
    }

    fn start_behind(brokers: usize, proxies: Vec<(Proxy, ProxyListener)>, is_secure: bool) -> Cluster {
        let ports: Vec<_> = proxies.iter().map(|(proxy, _)| proxy.port().to_string()).collect();
        let dir = tempfile::Builder::new().prefix("chancery-kafka-").tempdir().expect("a temporary folder");
        let mut holder = Command::new(script("hold"))
            .arg(brokers.to_string())
            .arg(dir.path())
            .env("CHANCERY_TEST_KAFKA_PROXIES", ports.join(" "))
            .env("CHANCERY_TEST_KAFKA_SECURE", if is_secure { "yes" } else { "" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0) // what ends this process's group leaves it the time to tidy up
            .spawn()
            .expect("tests/kafka/hold starts");
        let mut bootstrap = String::new();
        let said = holder.stdout.take().expect("it is piped");
        BufReader::new(said).read_line(&mut bootstrap).expect("its words can be read");
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
        Cluster { dir, bootstrap, holder, proxies: kept }
    }

    /// What happens to the responses of all brokers from now on. There must be proxies.
    pub fn set_faults(&self, faults: ProxyFaults) {
        assert!(!self.proxies.is_empty(), "the cluster was started without proxies");
        for proxy in &self.proxies {
            proxy.set(faults);
        }
    }

    /// What happens to the responses of one broker, 1 to 3, from now on. There must be proxies.
    pub fn set_faults_of(&self, broker: i32, faults: ProxyFaults) {
        let at = usize::try_from(broker - 1).expect("the id of a broker");
        self.proxies[at].set(faults);
    }

    /// Where clients begin: `host:port` of every broker, between commas.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// The folder of its nodes, with the log of each in `node-ID/log`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ends a node as a power cut would.
    pub fn kill(&self, id: u32) {
        self.node("kill", id);
    }

    /// Lets a node sleep, with everything open that it has open.
    pub fn pause(&self, id: u32) {
        self.node("pause", id);
    }

    /// Wakes it.
    pub fn resume(&self, id: u32) {
        self.node("resume", id);
    }

    /// Starts a killed node again with its data and port, and waits until it is up.
    pub fn restart(&self, id: u32) {
        self.node("restart", id);
    }

    /// Gives a killed node an empty disk.
    pub fn wipe(&self, id: u32) {
        self.node("wipe", id);
    }

    fn node(&self, what: &str, id: u32) {
        run(Command::new(script("node")).arg(what).arg(&self.dir).arg(id.to_string()));
    }

    /// Where clients begin that never come through a proxy, as Kafka's own tools.
    pub fn direct(&self) -> String {
        std::fs::read_to_string(self.dir.join("tools")).expect("the cluster has it").trim_end().to_owned()
    }

    /// Runs one of Kafka's own tools (`tests/kafka/tool` names them) with these brokers. What it printed.
    pub fn tool(&self, name: &str, args: &[&str]) -> String {
        run(Command::new(script("tool")).args([name, "--bootstrap-server", &self.direct()]).args(args))
    }

    /// Sets a setting of a topic; with no value, the topic has it as the brokers have it.
    pub fn set_topic(&self, topic: &str, setting: &str, value: Option<&str>) {
        let (how, what) = match value {
            Some(value) => ("--add-config", format!("{setting}={value}")),
            None => ("--delete-config", setting.to_owned()),
        };
        let args = ["--alter", "--entity-type", "topics", "--entity-name", topic, how, &what];
        self.tool("kafka-configs", &args);
    }
}

impl Drop for Cluster {
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
