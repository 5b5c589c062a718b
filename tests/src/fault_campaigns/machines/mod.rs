//! Virtual machines of the real QEMU under load, with an embedded executor (even seeds) or one outside the server. Each round
//! injects a fault ([`MachineFault`]). Then producers pause, and every machine must have its incarnation and every incarnation
//! its machine, as `/proc` itself shows them:
//!
//! | violation | found by |
//! |---|---|
//! | a machine without an incarnation that is not ended (leaked) | machines and rows, at rest after each round |
//! | an incarnation without its machine, two incarnations of a replica (duplicated) | the same |
//! | two machines of an incarnation, two users of a disk, more machines than fit | a list of the machines every 100 ms |
//! | a machine that was seen and has no end, or was seen after its end | the same, compared with the journal |
//! | an end without a cause, or with another one than the fault | facts of the journal |
//! | memory of a guest with another content than it has written | the guest counts broken pages in its output |
//! | a disk with another content than was acknowledged | later incarnations of its guest compare it |
//! | an invariant of the journal, a wrong row | the checkers of the other campaigns, with the machines as processes |
//! | a process, working directory or disk that is left | `/proc` and the directory of the executor, in the end |

mod disks;
mod evidence;
mod faults;
mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use chancery_events::id::IncarnationId;
use serde_json::{Value, json};

use self::disks::DiskContents;
use self::evidence::{CausedEnds, MachineEnd, judge_ends};
use self::faults::MachineFault;
use self::host::{MachineObserver, MachineProcess, machines};
use super::evidence::{ServerEvidence, judge, records};
use super::faults::FaultDeck;
use super::load::{LoadShape, ProducerLoad};
use crate::check::RunningProcesses;
use crate::ledger::CountMap;
use crate::qemu::{build_guest, build_qemu_without_space};
use crate::server::supervisors;
use crate::sim::RandomSource;
use crate::{ExecutorProcess, ServerProcess, TestClient, until};

/// Cluster of the machines.
const CLUSTER: &str = "machines";
/// Maximum number of machines: each of two nodes has memory for two.
const MOST: usize = 4;
/// Memory of a machine: 16 MiB for the guest, the rest for QEMU.
const MEMORY: u64 = 112 << 20;
/// Maximum time from the end of a fault until nothing is left to do.
const REST: Duration = Duration::from_mins(2);
/// Interval at which waits check their condition.
const INTERVAL: Duration = Duration::from_millis(100);
/// Load for machines: a guest needs a second to start.
const LOAD: LoadShape = LoadShape {
    verbs: &[
        "replica.stop",
        "replica.start",
        "replica.start",
        "replica.relocate",
        "replica.restart",
        "replica.reboot",
        "replica.reboot",
        "replica.delete",
    ],
    by_hand: 1,
    interval: Duration::from_millis(100),
};

pub(super) fn run(rounds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut campaign = MachineCampaign::begin(seed)?;
    let faults = MachineFault::of(campaign.executor.is_some());
    let mut deck = FaultDeck::new(&faults);
    for round in 0..rounds {
        let fault = deck.draw(&mut campaign.random);
        let began = Instant::now();
        let played = campaign.play(fault);
        tally.fault(fault.word());
        tally.rounds += 1;
        tally.host_checks += 1;
        let judged = campaign.observer.sightings().judge(tally);
        judged
            .and(played)
            .map_err(|error| campaign.explained(&error))
            .with_context(|| format!("round {round}: {}", fault.word()))?;
        println!("round {round}: {}: at rest after {:.1} s", fault.word(), began.elapsed().as_secs_f64());
    }
    campaign.end(tally)
}

fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Running campaign.
struct MachineCampaign {
    observer: MachineObserver,
    load: Option<ProducerLoad>,
    /// Executor outside the server; otherwise that of the server.
    executor: Option<ExecutorProcess>,
    server: ServerProcess,
    random: RandomSource,
    contents: DiskContents,
    caused: CausedEnds,
    /// Number of deployments, which name them.
    deployments: u64,
    /// Version of the plan `web`.
    version: u64,
}

impl MachineCampaign {
    fn begin(seed: u64) -> Result<MachineCampaign> {
        let is_remote = seed % 2 == 1;
        let mut server = ServerProcess::new();
        let images = server.directory().join("images");
        std::fs::create_dir(&images).context("cannot create the directory of images")?;
        build_guest(&images);
        let settings = [
            ("CHANCERY_QEMU_IMAGES", images.display().to_string()),
            ("CHANCERY_QEMU_PROGRAM", build_qemu_without_space(&images).display().to_string()),
        ];
        for (name, value) in &settings {
            server.set(name, value);
        }
        server.set("CHANCERY_SEGMENT_BYTES", "64KiB");
        if is_remote {
            server.set("CHANCERY_EMBEDDED_EXECUTORS", "none");
        }
        server.start_again();
        server.stay_at_this_address();
        let client = server.client();
        client.must("cluster.apply", &json!({"name": CLUSTER, "spec": {"runtime": "qemu"}}));
        for node in ["node-1", "node-2"] {
            let total = json!({"cpu": 8000, "memory": MOST as u64 / 2 * MEMORY, "disk": 0});
            let storage = json!([{"class": "ssd", "capacity": 1 << 30}]);
            let spec = json!({"domain": node, "resources": total, "storage": storage});
            client.must("node.apply", &json!({"name": node, "cluster": CLUSTER, "spec": spec}));
        }
        let executor = is_remote.then(|| ExecutorProcess::start_machines(&server, "e1", CLUSTER, &settings));
        let directory = executor.as_ref().map_or_else(
            || server.data().join("executors/default").join(CLUSTER),
            |executor| executor.data().to_owned(),
        );
        apply_plans(&client);
        let file = server.directory().join("history.jsonl");
        let load = ProducerLoad::begin_with(LOAD, &server.url(), 2, seed, Duration::from_secs(30), &file)?;
        let mut campaign = MachineCampaign {
            observer: MachineObserver::begin(server.directory(), &directory),
            load: Some(load),
            executor,
            server,
            random: RandomSource::new(seed),
            contents: DiskContents::default(),
            caused: BTreeMap::new(),
            deployments: 0,
            version: 1,
        };
        campaign.deploy(2);
        Ok(campaign)
    }

    /// Plays a round: changes, a fault, and the check at rest.
    fn play(&mut self, fault: MachineFault) -> Result<()> {
        self.replace_missing();
        if self.random.chance(300) {
            self.version += 1;
        }
        let count = 1 + self.random.below(2);
        self.deploy(count);
        self.pause(1500);
        self.exercise()?;
        fault.inject(self)?;
        self.pause(1500);
        self.check()
    }

    fn client(&self) -> TestClient {
        self.server.client()
    }

    fn images(&self) -> PathBuf {
        self.server.directory().join("images")
    }

    /// Requests `count` replicas of `web`.
    fn deploy(&mut self, count: u64) {
        self.deployments += 1;
        let version = json!({"app": {"version": self.version.to_string()}});
        let name = format!("round-{}", self.deployments);
        let spec = json!({"count": count, "coordinates": version});
        self.client().must("deployment.create", &json!({"plan": "web", "name": name, "spec": spec}));
    }

    /// Starts the replicas that were stopped, or powered themselves off. A start may be refused during another operation.
    fn start_stopped(&self) {
        let client = self.client();
        for replica in client.items("replicas?phase=stopped&limit=100") {
            let key = uuid::Uuid::new_v4().to_string();
            client.decided(&key, "replica.start", &json!({"name": replica["name"]}));
        }
    }

    /// Sleeps for less than `most` milliseconds.
    fn pause(&mut self, most: u64) {
        std::thread::sleep(Duration::from_millis(self.random.below(most)));
    }

    /// Kills what runs the executor.
    fn kill_executor(&mut self) {
        match &mut self.executor {
            Some(executor) => executor.kill(),
            None => self.server.kill(),
        }
    }

    fn start_executor(&mut self) {
        match &mut self.executor {
            Some(executor) => executor.start_again(),
            None => self.start_server(),
        }
    }

    fn start_server(&mut self) {
        self.server.start_again();
    }

    /// Notes that a fault causes this end, unless the machine ends before.
    fn expect(&mut self, machine: &MachineProcess, end: MachineEnd) {
        self.caused.entry(machine.incarnation.clone()).or_default().insert(end);
    }

    fn machines(&self) -> Result<Vec<MachineProcess>> {
        machines(self.server.directory())
    }

    /// Machines whose guests have started.
    fn running_guests(&self) -> Result<Vec<MachineProcess>> {
        Ok(self.machines()?.into_iter().filter(MachineProcess::is_beating).collect())
    }

    /// Waits until a guest has started, and returns one of those.
    fn running_guest(&mut self) -> Result<MachineProcess> {
        self.running_guest_with("a guest runs", |_| true)
    }

    /// Waits until a guest that fulfils a condition has started, and returns one of those.
    fn running_guest_with(
        &mut self,
        what: &str,
        is_right: fn(&MachineProcess) -> bool,
    ) -> Result<MachineProcess> {
        let running = self.within(what, |campaign| {
            let mut guests = campaign.running_guests().ok()?;
            guests.retain(is_right);
            if guests.is_empty() {
                campaign.replace_missing();
            }
            (!guests.is_empty()).then_some(guests)
        })?;
        Ok(self.random.pick(&running).expect("one runs").clone())
    }

    /// Starts replicas that are off, and creates one of `web` if all were deleted.
    fn replace_missing(&self) {
        let client = self.client();
        if client.items("replicas?plan=web&limit=1").is_empty() {
            client.decided(&uuid::Uuid::new_v4().to_string(), "replica.create", &json!({"plan": "web"}));
        }
        self.start_stopped();
    }

    /// Lets guests compare and write their disks.
    fn exercise(&mut self) -> Result<()> {
        for machine in self.running_guests()? {
            self.contents.exercise(&machine)?;
        }
        Ok(())
    }

    /// Waits for at most [`REST`] until `ready` returns a value.
    fn within<T>(&self, what: &str, ready: impl Fn(&MachineCampaign) -> Option<T>) -> Result<T> {
        let began = Instant::now();
        loop {
            if let Some(found) = ready(self) {
                return Ok(found);
            }
            ensure!(began.elapsed() < REST, "still waiting after {} s: {what}", REST.as_secs());
            std::thread::sleep(INTERVAL);
        }
    }

    /// Waits with paused producers until nothing is left to do, and compares machines with rows.
    fn check(&mut self) -> Result<()> {
        self.load.as_ref().context("producers are at work")?.pause();
        let began = Instant::now();
        let last = loop {
            let found = self.differences()?;
            if found.is_empty() || began.elapsed() > REST {
                break found;
            }
            std::thread::sleep(INTERVAL);
        };
        ensure!(last.is_empty(), "{} s after the fault:\n  {}", REST.as_secs(), last.join("\n  "));
        self.exercise()?;
        self.load.as_ref().context("producers are at work")?.resume();
        Ok(())
    }

    /// Returns what distinguishes the present state from one at rest.
    fn differences(&self) -> Result<Vec<String>> {
        let client = self.client();
        let mut found = Vec::new();
        for operation in client.items("operations?limit=1000") {
            let state = operation["state"].as_str().unwrap_or_default();
            // A relocate waits while the other node is full.
            if ["approved", "running"].contains(&state)
                || (state == "preparing" && operation["kind"] != "relocate")
            {
                found.push(format!("an operation is not ended: {operation}"));
            }
        }
        let live: Vec<_> = client
            .items("incarnations?limit=1000")
            .into_iter()
            .filter(|row| {
                let state = row["state"].as_str().unwrap_or_default();
                !["reserved", "destroyed", "failed", "unwound", "powered_off"].contains(&state)
            })
            .collect();
        let mut replicas = BTreeSet::new();
        for row in &live {
            if !replicas.insert(row["replica"].to_string()) {
                found.push(format!("a replica has two incarnations: {row}"));
            }
        }
        let machines = self.machines()?;
        for machine in &machines {
            if !live.iter().any(|row| row["id"] == machine.incarnation) {
                found.push(format!("a machine has no incarnation: {machine:?}"));
            }
        }
        for row in &live {
            let count = machines.iter().filter(|machine| row["id"] == machine.incarnation).count();
            if count != 1 {
                found.push(format!("an incarnation has {count} machines: {row}"));
            }
        }
        Ok(found)
    }

    /// Returns an error with the state of machines and rows.
    fn explained(&mut self, error: &anyhow::Error) -> anyhow::Error {
        let machines = self.machines().unwrap_or_default();
        let ended = self.server.ended();
        let executor = self.executor.as_ref().map(|executor| last_lines(&executor.log())).unwrap_or_default();
        anyhow!(
            "{error:#}\nmachines: {machines:#?}\nserver ended: {ended:?}\nlog of the executor:\n{executor}\nlog of the \
             server:\n{}",
            last_lines(&self.server.log())
        )
    }

    /// Ends everything, starts two replicas, and judges the journal with the machines as processes.
    fn end(mut self, tally: &mut CountMap) -> Result<()> {
        let history = self.load.take().context("producers are at work")?.end()?;
        let root = self.server.directory().to_owned();
        let alive = || alive(&root);
        let mut evidence = vec![ServerEvidence::gather_with(&self.server, alive)?];
        self.empty("end");
        self.deploy(2);
        self.client().wait_for("web", "running", 2);
        self.within("two guests run", |campaign| {
            campaign.running_guests().ok().filter(|guests| guests.len() == 2).map(|_| ())
        })?;
        // Written, then compared.
        self.exercise()?;
        self.exercise()?;
        evidence.push(ServerEvidence::gather_with(&self.server, alive)?);
        self.empty("over");
        self.within("no supervisor, working directory or disk is left", |campaign| {
            let is_left = !supervisors(campaign.server.directory()).is_empty()
                || has_any(campaign.server.directory(), &["app-0", "disk"]);
            (!is_left).then_some(())
        })?;
        let mut stopped = Vec::new();
        if let Some(executor) = &mut self.executor {
            stopped.push((executor.stop(), executor.log()));
        }
        stopped.push((self.server.stop(), self.server.log()));
        for (code, log) in stopped {
            ensure!(code == Some(0), "it does not stop on request: {code:?}\n{}", last_lines(&log));
        }
        let sightings = self.observer.sightings();
        sightings.judge(tally)?;
        judge_ends(&records(self.server.data())?, &sightings, &self.caused)?;
        ensure!(self.contents.compared > 0, "no disk was compared");
        println!(
            "{} machines, {} beats, {} sectors compared",
            sightings.seen.len(),
            sightings.beats,
            self.contents.compared
        );
        judge(self.server.data(), &history, &evidence, tally)
    }

    /// Deletes every replica. No machine is left.
    fn empty(&mut self, name: &str) {
        self.deploy(0);
        let client = self.client();
        let none = json!({"plan": "hand", "name": format!("{name}-none"), "spec": {"count": 0}});
        client.must("deployment.create", &none);
        until("no replica is left", || {
            client.approve_all();
            client.items("replicas?limit=1").is_empty().then_some(())
        });
        until("no machine is left", || {
            machines(self.server.directory()).ok().filter(Vec::is_empty).map(|_| ())
        });
    }
}

/// Applies a plan `web` of machines with disks, whose operations are approved by rule, and a plan `hand` without disks.
fn apply_plans(client: &TestClient) {
    let kinds = ["create", "update", "relocate", "restart", "start", "stop", "delete", "reboot"];
    let approval: serde_json::Map<_, _> =
        kinds.iter().map(|kind| ((*kind).to_owned(), json!("automatic"))).collect();
    let volume =
        json!({"class": "ssd", "capacity": disks::SECTORS * 512, "mount": "/data", "on_delete": "destroy"});
    let spec = |name: &str, payload: Value| {
        json!({
            "namespace": "tests", "service": name, "payloads": [payload], "sharing": "allowed", "restart_delay": 100,
            "timeouts": {"stop": 2000},
        })
    };
    let mut web = spec("web", payload("version=${version}", &json!([volume])));
    (web["approval"], web["restart"]) = (json!(approval), json!("on_failure"));
    client.must("plan.apply", &json!({"name": "web", "spec": web}));
    let mut hand = spec("hand", payload("by hand", &json!([])));
    hand["restart"] = json!("always");
    client.must("plan.apply", &json!({"name": "hand", "spec": hand}));
}

fn payload(cmdline: &str, volumes: &Value) -> Value {
    json!({
        "name": "app", "resources": {"cpu": 100, "memory": MEMORY}, "vm": {"kernel": "guest", "cmdline": cmdline},
        "volumes": volumes,
    })
}

/// Live machines of each incarnation.
fn alive(root: &Path) -> Result<Vec<RunningProcesses>> {
    let mut found: BTreeMap<IncarnationId, usize> = BTreeMap::new();
    for machine in machines(root)? {
        let id = machine.incarnation.parse().map_err(|error| anyhow!("{machine:?}: {error}"))?;
        *found.entry(id).or_default() += 1;
    }
    let found = found.into_iter();
    Ok(found.map(|(incarnation, processes)| RunningProcesses { incarnation, processes }).collect())
}

/// Whether the directory has an entry with one of these names, at any depth.
fn has_any(directory: &Path, names: &[&str]) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut entries = entries.filter(|entry| !entry.path().is_symlink());
    entries.any(|entry| names.iter().any(|name| entry.file_name() == *name) || has_any(&entry.path(), names))
}
