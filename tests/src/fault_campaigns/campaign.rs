//! Campaign with a server or an executor that runs payloads, some with volumes, while producers use the
//! server. Covers the first round to the judgement.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::evidence::{ServerEvidence, judge, wind_up};
use super::faults::{FaultDeck, InjectedFault, signal};
use super::fleet::{by_hand, deploy, set_up};
use super::load::ProducerLoad;
use crate::host::{HostFindings, HostState, TestMount};
use crate::ledger::CountMap;
use crate::server::supervisors;
use crate::sim::RandomSource;
use crate::{FleetProcesses, JournalBackend, NotUp, StartConditions, TestClient, until};

/// Number of replicas with a volume each.
const VOLUME_USERS: usize = 2;
/// Maximum time until every volume has a new user.
const RENEWAL: Duration = Duration::from_secs(50);
/// Delay between two requests for a restart that was refused.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Size in mebibytes of an in-memory file system that will be filled.
const ROOM: u64 = 512;

/// Target of the faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CampaignTarget {
    /// Server with an embedded executor.
    Server,
    /// Executor outside the server.
    Executor,
}

/// Running campaign. Fields drop in this order: no mount must be left when directories are removed.
pub(super) struct RunningCampaign {
    /// In-memory file system of the data directory, if faults need one.
    disk: Option<TestMount>,
    pub(super) host: HostState,
    pub(super) processes: FleetProcesses,
    pub(super) target: CampaignTarget,
    load: Option<ProducerLoad>,
    pub(super) random: RandomSource,
    /// Real path of the data directory.
    pub(super) data: PathBuf,
    /// Incarnations without mounts, whose directories must be removed.
    pub(super) purged: Vec<String>,
    deployments: u64,
}

impl RunningCampaign {
    pub(super) fn begin(
        mut site: FleetProcesses,
        target: CampaignTarget,
        seed: u64,
        faults: &[InjectedFault],
    ) -> Result<RunningCampaign> {
        let host = HostState::new(site.server.directory())?;
        let mut disk = None;
        if target == CampaignTarget::Server && site.executor.is_none() {
            ensure!(!site.server.is_up(), "a server of a campaign is started by the campaign");
            let data = site.server.move_data("data");
            if faults.contains(&InjectedFault::FullLog) {
                disk = Some(TestMount::memory(&data, ROOM)?);
            }
            // Small segments, so that the journal has many.
            site.server.set("CHANCERY_SEGMENT_BYTES", "64KiB");
            site.server.start_again();
        }
        if let (CampaignTarget::Executor, Some(executor)) = (target, &mut site.executor)
            && faults.contains(&InjectedFault::FullLog)
        {
            executor.kill();
            std::fs::create_dir_all(executor.data()).context("cannot create the data directory")?;
            disk = Some(TestMount::memory(executor.data(), ROOM)?);
            executor.start_again();
        }
        let data = match (target, &site.executor) {
            (CampaignTarget::Executor, Some(executor)) => executor.data().to_owned(),
            _ => site.server.data().to_owned(),
        };
        let client = site.server.client();
        let payload = host.payload(false);
        set_up(&client, &payload);
        by_hand(&client, &payload);
        volume_users(&client, &host);
        let file = site.server.directory().join("history.jsonl");
        let load = Some(ProducerLoad::begin(&site.server.url(), 4, seed, Duration::from_secs(30), &file)?);
        let random = RandomSource::new(seed);
        Ok(RunningCampaign {
            disk,
            host,
            processes: site,
            target,
            load,
            random,
            data,
            purged: Vec::new(),
            deployments: 0,
        })
    }

    /// Injects a fault in each round, and judges the outcome.
    pub(super) fn run(mut self, rounds: u64, faults: &[InjectedFault], tally: &mut CountMap) -> Result<()> {
        let mut deck = FaultDeck::new(faults);
        for round in 0..rounds {
            let fault = deck.draw(&mut self.random);
            if let Some(how) = self.ended_by_itself() {
                bail!("round {round}: {how}");
            }
            let count = self.random.below(7) as u32;
            self.deploy(count);
            self.pause(128);
            tally.fault(fault.name(self.target));
            tally.rounds += 1;
            let named = || format!("round {round}, fault {fault}");
            fault.put(&mut self).with_context(named)?;
            let found = self.host.settle()?;
            tally.host_checks += 1;
            judge_host(&found, tally).with_context(named)?;
        }
        self.end(tally)
    }

    fn end(mut self, tally: &mut CountMap) -> Result<()> {
        until("directories without mounts are removed", || {
            self.purged.iter().all(|incarnation| !has_directory(&self.data, incarnation)).then_some(())
        });
        let history = self.load.take().context("producers are at work")?.end()?;
        let server = &self.processes.server;
        let mut evidence = vec![ServerEvidence::gather(server)?];
        server
            .client()
            .must("deployment.create", &json!({"plan": "store", "name": "over", "spec": {"count": 0}}));
        wind_up(server, &mut evidence)?;
        self.processes.stop()?;
        judge(self.processes.server.data(), &history, &evidence, tally)?;
        drop(self.disk.take());
        let found = self.host.settle_ended()?;
        judge_host(&found, tally)
    }

    /// Returns exit status and last log lines of a server that ended without a request.
    fn ended_by_itself(&mut self) -> Option<String> {
        let status = self.processes.server.ended()?;
        let log = self.processes.server.log();
        let last: Vec<_> = log.lines().skip(log.lines().count().saturating_sub(40)).collect();
        Some(format!("the server failed, {status}:\n{}", last.join("\n")))
    }

    pub(super) fn client(&self) -> TestClient {
        self.processes.server.client()
    }

    /// Requests `count` replicas of `web`.
    pub(super) fn deploy(&mut self, count: u32) {
        self.deployments += 1;
        deploy(&self.client(), &format!("round-{}", self.deployments), count);
    }

    /// Sleeps for less than `most` milliseconds.
    pub(super) fn pause(&mut self, most: u64) {
        std::thread::sleep(Duration::from_millis(self.random.below(most)));
    }

    /// Kills the target, if it is running.
    pub(super) fn kill(&mut self) {
        match (self.target, &mut self.processes.executor) {
            (CampaignTarget::Executor, Some(executor)) => executor.kill(),
            _ if self.processes.server.is_up() => self.processes.server.kill(),
            _ => {}
        }
    }

    /// Starts the target with default settings, and panics if it ends.
    pub(super) fn start(&mut self) {
        if let Err(NotUp { status, output }) = self.try_start(StartConditions::default()) {
            panic!("the target ended: {status}\n{output}");
        }
    }

    /// Starts the target as `launch` describes. Readiness is known for a server only.
    pub(super) fn try_start(&mut self, launch: StartConditions) -> Result<(), NotUp> {
        if let (CampaignTarget::Executor, Some(executor)) = (self.target, &mut self.processes.executor) {
            executor.set_launch(launch);
            executor.start_again();
            return Ok(());
        }
        let server = &mut self.processes.server;
        server.set_launch(launch);
        server.try_start_again()?;
        if let Some(load) = &self.load {
            load.moved(&server.url());
        }
        Ok(())
    }

    /// Starts the target, which must refuse. Returns its log.
    pub(super) fn must_refuse(&mut self, launch: StartConditions, why: &str) -> Result<String> {
        if let (CampaignTarget::Executor, Some(executor)) = (self.target, &mut self.processes.executor) {
            let before = executor.log().len();
            executor.set_launch(launch);
            executor.start_again();
            let status = until(&format!("the executor refuses: {why}"), || executor.ended());
            let output = executor.log().split_off(before);
            ensure!(!status.success(), "the executor refuses, and reports success: {output}");
            return Ok(output);
        }
        match self.try_start(launch) {
            Ok(()) => bail!("the server starts: {why}"),
            Err(NotUp { status, output }) => {
                ensure!(status.code().is_some_and(|code| code != 0 && code != 101), "{status}: {output}");
                Ok(output)
            }
        }
    }

    /// Changes the data directory's path for later starts.
    pub(super) fn set_data(&mut self, data: &Path) {
        match (self.target, &mut self.processes.executor) {
            (CampaignTarget::Executor, Some(executor)) => executor.set_data(data.to_owned()),
            _ => self.processes.server.set_data(data.to_owned()),
        }
    }

    /// Pid and directory of each supervisor.
    pub(super) fn supervisors(&self) -> Vec<(u32, PathBuf)> {
        supervisors(&self.data)
    }

    /// Waits until each volume has a new user; its previous user must end first.
    pub(super) fn renew_volume_users(&self) -> Result<()> {
        let before = self.host.volume_users()?;
        let client = self.client();
        let (began, mut asked) = (Instant::now(), None::<Instant>);
        until("each volume has a new user", || {
            if asked.is_none_or(|asked| asked.elapsed() > ASK_AGAIN) {
                asked = Some(Instant::now());
                let rows = client.items("replicas?plan=store").into_iter();
                let is_old = |row: &Value| row["incarnation"].as_str().is_none_or(|id| before.contains(id));
                for replica in rows.filter(is_old) {
                    // A restart is refused during another operation of the replica.
                    let key = uuid::Uuid::new_v4().to_string();
                    client.decided(&key, "replica.restart", &json!({"name": replica["name"]}));
                }
            }
            let now = self.host.volume_users().ok()?;
            if now.len() == VOLUME_USERS && now.is_disjoint(&before) {
                return Some(Ok(()));
            }
            // Shorter than the timeout of `until`, so that an error gives the reason.
            (began.elapsed() > RENEWAL).then(|| {
                let rows = client.items("replicas?plan=store");
                Err(anyhow!("volumes of {before:?} have no new users, but {now:?}: {rows:#?}"))
            })
        })
    }
}

/// A failed campaign must start nothing more during cleanup.
impl Drop for RunningCampaign {
    fn drop(&mut self) {
        if let Some(how) = self.ended_by_itself() {
            eprintln!("{how}");
        }
        if let Some(executor) = self.processes.executor.as_mut().filter(|executor| executor.is_up()) {
            executor.kill();
        }
        if self.processes.server.is_up() {
            self.processes.server.kill();
        }
        for (pid, _) in supervisors(self.processes.server.directory()) {
            signal(pid, Signal::KILL);
        }
    }
}

/// Whether a directory of this name with a working directory exists below `dir`. Output is kept longer.
fn has_directory(dir: &Path, name: &str) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.any(|entry| {
        let path = entry.path();
        (entry.file_name() == name && path.join("app-0").exists()) || has_directory(&path, name)
    })
}

/// Adds findings on the host to the tally, and fails if there are any.
fn judge_host(found: &HostFindings, tally: &mut CountMap) -> Result<()> {
    tally.started_twice += found.started_twice.len() as u64;
    tally.volumes_with_two_users += found.volumes_with_two_users.len() as u64;
    tally.files_touched += found.files_touched.len() as u64;
    HostState::must_be_clean(found)
}

/// Creates a plan `store` whose replicas have a volume each, and its nodes.
fn volume_users(client: &TestClient, host: &HostState) {
    for number in 1..=2 {
        let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
        let storage = json!([{"class": "fast", "capacity": 16 << 20}]);
        let spec =
            json!({"domain": format!("domain-{}", number % 2), "resources": total, "storage": storage});
        client.must(
            "node.apply",
            &json!({"name": format!("store-{number}"), "cluster": "local", "spec": spec}),
        );
    }
    let mut spec = client.read("plans/web")["spec"].clone();
    spec["service"] = json!("store");
    spec["payloads"] = json!([host.payload(true)]);
    client.must("plan.apply", &json!({"name": "store", "spec": spec}));
    client.must(
        "deployment.create",
        &json!({"plan": "store", "name": "users", "spec": {"count": VOLUME_USERS}}),
    );
    client.wait_for("store", "running", VOLUME_USERS);
}

/// Site of a campaign that targets the server.
pub(super) fn servers(backend: JournalBackend) -> FleetProcesses {
    match backend {
        JournalBackend::Embedded => FleetProcesses { executor: None, server: crate::ServerProcess::new() },
        JournalBackend::OneBroker | JournalBackend::ThreeBrokers => backend.start(&[]),
    }
}
