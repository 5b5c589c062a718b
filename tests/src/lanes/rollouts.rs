//! Random deployments of versions that work, crash, hang or are slow, and what people do about them: cancel, supersede,
//! roll back, drain a node, rebalance, or kill the server. The lane samples processes of this machine all the time: at
//! each moment as many replicas answer as the plan has, since every update and relocation starts the replacement first.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::evidence::{Evidence, judge};
use super::fleet::set_up;
use crate::ledger::Tally;
use crate::server::program;
use crate::sim::Random;
use crate::{Client, Server, payloads, until};

/// Replicas of the plan, at all times.
const REPLICAS: usize = 4;

/// What a version of the payload does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    /// Serves at once.
    Good,
    /// Serves after a second.
    Slow,
    /// Exits with status 1 before it serves.
    Crashing,
    /// Runs and never serves.
    Hung,
}

impl Version {
    const ALL: [Version; 4] = [Version::Good, Version::Slow, Version::Crashing, Version::Hung];

    const fn word(self) -> &'static str {
        match self {
            Version::Good => "good",
            Version::Slow => "slow",
            Version::Crashing => "crashing",
            Version::Hung => "hung",
        }
    }

    const fn serves(self) -> bool {
        matches!(self, Version::Good | Version::Slow)
    }
}

/// What people, or a fault, do while a deployment is in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Interference {
    /// The deployment is left alone.
    Nothing,
    /// The deployment is cancelled.
    Cancel,
    /// Another deployment supersedes it.
    Supersede,
    /// The plan is rolled back.
    Rollback,
    /// A node is drained.
    Drain,
    /// The plan is rebalanced.
    Rebalance,
    /// The server is killed and started again.
    Kill,
}

impl Interference {
    const ALL: [Interference; 7] = [
        Interference::Nothing,
        Interference::Cancel,
        Interference::Supersede,
        Interference::Rollback,
        Interference::Drain,
        Interference::Rebalance,
        Interference::Kill,
    ];

    const fn word(self) -> &'static str {
        match self {
            Interference::Nothing => "nothing",
            Interference::Cancel => "cancel",
            Interference::Supersede => "supersede",
            Interference::Rollback => "rollback",
            Interference::Drain => "drain",
            Interference::Rebalance => "rebalance",
            Interference::Kill => "kill of the server",
        }
    }
}

/// A payload that does what the first word of its version says.
fn payload() -> Value {
    let script = "case \"$$2\" in \
        slow-*) sleep 1 ;; \
        crashing-*) exit 1 ;; \
        hung-*) exec sleep 100000 ;; \
        esac; exec \"$$0\" demo-payload --port \"$$1\"";
    json!({
        "name": "app", "resources": {"cpu": 100, "memory": 256 << 20},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}], "ready": {"tcp": {"port": "http"}},
        "run": {"argv": ["bash", "-c", script, program().display().to_string(), "${port.http}", "${version}"]},
    })
}

pub(super) fn run(rounds: u64, seed: u64, tally: &mut Tally) -> Result<()> {
    let mut server = Server::start();
    server.stay_at_this_address();
    set_up(&server.client(), &payload());
    let mut rollouts = Rollouts { random: Random::new(seed), deployments: 0, wanted: BTreeSet::new() };
    let first = rollouts.deploy(&server, Version::Good, "queue");
    rollouts.completes(&server, &first)?;
    let sampler = Sampler::begin(server.data());
    for round in 0..rounds {
        let version = *rollouts.random.pick(&Version::ALL).context("a version")?;
        let interference = *rollouts.random.pick(&Interference::ALL).context("an interference")?;
        let played = rollouts.play(&mut server, version, interference);
        played.with_context(|| format!("round {round}: {version:?}, {interference:?}"))?;
        sampler.fine().with_context(|| format!("round {round}: {version:?}, {interference:?}"))?;
        tally.fault(&format!("{}, {}", version.word(), interference.word()));
        tally.rounds += 1;
    }
    let count = sampler.end()?;
    ensure!(count > rounds, "{count} samples in {rounds} rounds");
    let mut evidence = vec![Evidence::gather(&server)?];
    let client = server.client();
    client.must("deployment.create", &json!({"plan": "web", "name": "none", "spec": {"count": 0}}));
    until("no replica is left", || client.items("replicas?limit=1").is_empty().then_some(()));
    until("nothing runs", || payloads(server.data()).is_empty().then_some(()));
    evidence.push(Evidence::gather(&server)?);
    let code = server.stop();
    ensure!(code == Some(0), "the server ends with {code:?}:\n{}", server.log());
    judge(server.data(), &crate::history::History::default(), &evidence, tally)
}

/// The deployments of the lane.
struct Rollouts {
    random: Random,
    deployments: u64,
    /// Versions that replicas may have now: more than one where a deployment ended halfway.
    wanted: BTreeSet<String>,
}

impl Rollouts {
    /// Creates a deployment of a new version, which has the deployment's name.
    fn deploy(&mut self, server: &Server, version: Version, turn: &str) -> String {
        self.deployments += 1;
        let name = format!("{}-{}", version.word(), self.deployments);
        let spec = json!({"count": REPLICAS, "coordinates": {"app": {"version": name}}});
        let body = json!({"plan": "web", "name": name, "spec": spec, "turn": turn});
        server.client().must("deployment.create", &body);
        name
    }

    fn play(&mut self, server: &mut Server, version: Version, interference: Interference) -> Result<()> {
        let before = self.wanted.clone();
        let name = self.deploy(server, version, "queue");
        std::thread::sleep(Duration::from_millis(self.random.below(900)));
        let client = server.client();
        match interference {
            Interference::Nothing => {}
            Interference::Cancel => {
                self.cancel(server, &name, version, &before)?;
            }
            Interference::Supersede => {
                let next = self.deploy(server, Version::Good, "supersede");
                self.completes(server, &next)?;
            }
            Interference::Rollback => self.roll_back(server)?,
            Interference::Drain => {
                let node = format!("node-{}", self.random.between(1, 4));
                server.cli(&["drain", &node]);
                self.settle(server, &name, version, &before)?;
                server.cli(&["undrain", &node]);
            }
            Interference::Rebalance => {
                // It is refused while the deployment places replicas itself.
                client.decided(&format!("rebalance-{name}"), "plan.rebalance", &json!({"name": "web"}));
            }
            Interference::Kill => {
                server.kill();
                std::thread::sleep(Duration::from_millis(self.random.below(300)));
                server.start_again();
            }
        }
        self.settle(server, &name, version, &before)?;
        self.is_wanted_set(server)?;
        rebalance(server);
        Ok(())
    }

    /// Waits for the end of the deployment. One that would wait for a hung version is cancelled.
    fn settle(
        &mut self,
        server: &Server,
        name: &str,
        version: Version,
        before: &BTreeSet<String>,
    ) -> Result<()> {
        let row = || server.client().read(&format!("plans/web/deployments/{name}"));
        if version == Version::Hung && row()["state"] == "in_progress" {
            return self.cancel(server, name, version, before);
        }
        let state = ended(server, name);
        match (version.serves(), state.as_str()) {
            (true, "completed") => self.note_completed(server),
            (true, "cancelled" | "superseded") | (false, "failed" | "cancelled" | "superseded") => {}
            (_, state) => return Err(anyhow!("{name} is {state}: {}", row())),
        }
        Ok(())
    }

    fn cancel(
        &mut self,
        server: &Server,
        name: &str,
        version: Version,
        before: &BTreeSet<String>,
    ) -> Result<()> {
        // One that is over cannot be cancelled.
        let key = format!("cancel-{name}");
        server.client().decided(&key, "deployment.cancel", &json!({"plan": "web", "name": name}));
        match ended(server, name).as_str() {
            "completed" => self.note_completed(server),
            "cancelled" | "failed" => {
                self.wanted.clone_from(before);
                if version.serves() {
                    self.wanted.insert(name.to_owned());
                }
            }
            state => return Err(anyhow!("{name}, which was cancelled, is {state}")),
        }
        Ok(())
    }

    fn completes(&mut self, server: &Server, name: &str) -> Result<()> {
        let state = ended(server, name);
        ensure!(state == "completed", "{name} is {state}");
        self.wanted = BTreeSet::from([name.to_owned()]);
        Ok(())
    }

    /// The version of the deployment that completed last counts.
    fn note_completed(&mut self, server: &Server) {
        let versions = versions(server);
        if versions.len() == 1 {
            self.wanted = versions;
        }
    }

    /// Rolls the plan back: the deployment that does so completes, whatever was in progress. There may be no version to
    /// return to.
    fn roll_back(&mut self, server: &Server) -> Result<()> {
        self.deployments += 1;
        let new = format!("rollback-{}", self.deployments);
        let verdict = server.client().decided(&new, "plan.rollback", &json!({"plan": "web", "name": new}));
        if verdict.status >= 400 {
            return Ok(());
        }
        let state = ended(server, &new);
        ensure!(state == "completed", "{new}, which rolls back, is {state}");
        self.wanted = versions(server);
        ensure!(self.wanted.len() == 1, "after a rollback there are the versions {:?}", self.wanted);
        Ok(())
    }

    /// Every replica runs, and is of a version that it may have.
    fn is_wanted_set(&self, server: &Server) -> Result<()> {
        let client = server.client();
        until("every replica runs and no operation is under way", || {
            let rows = client.items("replicas?plan=web&limit=1000");
            let well = rows.iter().all(|row| row["phase"] == "running" && row["ready"] == true);
            (rows.len() == REPLICAS && well && at_rest(&client)).then_some(())
        });
        until("what runs is what is wanted", || (payloads(server.data()).len() == REPLICAS).then_some(()));
        let versions = versions(server);
        ensure!(versions.is_subset(&self.wanted), "{versions:?} run, of {:?}", self.wanted);
        Ok(())
    }
}

/// Waits until the deployment is over: its state.
fn ended(server: &Server, name: &str) -> String {
    until("the deployment is over", || {
        let row = server.client().read(&format!("plans/web/deployments/{name}"));
        let state = row["state"].as_str().unwrap_or_default().to_owned();
        matches!(state.as_str(), "completed" | "failed" | "cancelled" | "superseded").then_some(state)
    })
}

/// Whether no operation of the plan is under way.
fn at_rest(client: &Client) -> bool {
    let states = ["preparing", "pending_approval", "approved", "running"];
    states.iter().all(|state| client.items(&format!("operations?plan=web&state={state}&limit=1")).is_empty())
}

/// Rebalances the plan until no move is left: replicas are spread evenly over domains, and over nodes.
fn rebalance(server: &Server) {
    let client = server.client();
    client.must("plan.rebalance", &json!({"name": "web"}));
    until("replicas are spread evenly", || {
        // There are as many nodes as replicas.
        let rows = client.items("replicas?plan=web&limit=1000");
        let nodes: BTreeSet<&str> = rows.iter().filter_map(|row| row["node"].as_str()).collect();
        (nodes.len() == REPLICAS && at_rest(&client)).then_some(())
    });
}

/// Versions that replicas have: those of the deployments that they run by.
fn versions(server: &Server) -> BTreeSet<String> {
    let client = server.client();
    let rows = client.items("replicas?plan=web&limit=1000");
    let names: BTreeSet<&str> = rows.iter().filter_map(|row| row["deployment"].as_str()).collect();
    let version = |name: &str| {
        let row = client.read(&format!("plans/web/deployments/{name}"));
        row["coordinates"]["app"]["version"].as_str().unwrap_or(name).to_owned()
    };
    names.into_iter().map(version).collect()
}

/// Samples the processes of this machine.
struct Sampler {
    stop: Arc<AtomicBool>,
    samples: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Sampler {
    fn begin(data: &Path) -> Sampler {
        let (stop, samples) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted, data) = (Arc::clone(&stop), Arc::clone(&samples), PathBuf::from(data));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // One that ends between the list and the look had another in its place before: that is in the next list.
                if serving(&data).len() < REPLICAS {
                    let serving = serving(&data);
                    ensure!(serving.len() >= REPLICAS, "only {serving:?} serve");
                }
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        });
        Sampler { stop, samples, thread }
    }

    /// Whether every sample was as it should be.
    fn fine(&self) -> Result<()> {
        ensure!(!self.thread.is_finished(), "too few replicas served");
        Ok(())
    }

    fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the sampler panicked"))??;
        Ok(self.samples.load(Ordering::Relaxed))
    }
}

/// Replicas of which a process accepts connections.
fn serving(data: &Path) -> BTreeSet<String> {
    let serves = |pid: u32| -> Option<()> {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<_> =
            line.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok()).collect();
        let at = words.iter().position(|word| *word == "demo-payload")?;
        let port: u16 = words.get(at + 2)?.parse().ok()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok().map(drop)
    };
    let payloads = payloads(data).into_iter();
    payloads.filter(|payload| serves(payload.pid).is_some()).map(|payload| payload.replica).collect()
}
