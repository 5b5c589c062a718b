//! Checker that never asks Chancery. After each round of a fault campaign it checks `/proc`, every cgroup v2,
//! files, and the log that payloads write (`tests/payloads/witness`).
//!
//! | finding | evidence |
//! |---|---|
//! | started twice | two starts of one process of an incarnation, or the lock of its instance already held |
//! | volumes with two users | the volume's lock, held when an incarnation starts to use the volume |
//! | files outside touched | canaries: content, inode, mode, owner, time of the last change, and entries of their directories |
//!
//! The checker also finds leftovers: processes of an incarnation whose main process is dead, and unlogged
//! payload processes. Once everything has ended, any process, mount and cgroup is a leftover.

mod canaries;
mod cgroups;
mod mounts;
mod payload_log;
mod processes;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use canaries::HostCanaries;
pub use cgroups::is_writable as has_cgroups;
pub use mounts::{TestMount, mounts_under};
use payload_log::{LineKind, PayloadLog};
pub use processes::HostProcess;

/// Time that leftovers have to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Name of the cgroup that all executors of a host share.
const SHARED_CGROUP: &str = "chancery";

/// State of the host as the checker sees it.
pub struct HostState {
    /// Directory of the payload log and the canaries, outside every data directory.
    dir: PathBuf,
    /// Directory of everything in the campaign: data directories, their copies, and `dir`.
    campaign_directory: PathBuf,
    canaries: HostCanaries,
    /// Cgroups in which the campaign's processes were seen, except cgroups that existed before.
    cgroups: BTreeSet<PathBuf>,
    cgroups_before: BTreeSet<PathBuf>,
    patience: Duration,
}

/// Findings so far.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct HostFindings {
    /// Processes of incarnations that were started more than once.
    pub started_twice: Vec<String>,
    /// Incarnations that got a volume while another one used it.
    pub volumes_with_two_users: Vec<String>,
    /// Canaries that have changed.
    pub files_touched: Vec<String>,
    /// Leftovers that should have ended.
    pub left: Vec<String>,
}

impl HostFindings {
    /// Whether there are no findings.
    pub fn is_empty(&self) -> bool {
        *self == HostFindings::default()
    }

    fn lines(&self) -> String {
        let kinds = [
            ("started twice", &self.started_twice),
            ("volume with two users", &self.volumes_with_two_users),
            ("file outside touched", &self.files_touched),
            ("left", &self.left),
        ];
        let lines =
            kinds.iter().flat_map(|(kind, found)| found.iter().map(move |one| format!("{kind}: {one}")));
        lines.collect::<Vec<_>>().join("\n  ")
    }
}

impl HostState {
    /// Creates the log and the canaries in a separate directory in the campaign's directory.
    pub fn new(campaign_directory: &Path) -> Result<HostState> {
        let campaign_directory = campaign_directory
            .canonicalize()
            .with_context(|| format!("cannot find {}", campaign_directory.display()))?;
        let dir = campaign_directory.join("outside");
        std::fs::create_dir_all(dir.join("instances")).context("cannot create the checker's directory")?;
        std::fs::write(dir.join("log"), "").context("cannot create the log of payloads")?;
        let canaries = HostCanaries::plant(&dir.join("canaries"))?;
        let cgroups_before = cgroups::all()?;
        Ok(HostState {
            dir,
            campaign_directory,
            canaries,
            cgroups: BTreeSet::new(),
            cgroups_before,
            patience: PATIENCE,
        })
    }

    /// Payload that the checker can follow; with a volume of 1 MiB if `volume` is set. Without writable
    /// cgroups, a process that drops its environment and its parent cannot be found, so payloads have one
    /// process each.
    pub fn payload(&self, volume: bool) -> Value {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("payloads/witness");
        let shapes = if has_cgroups() { "any" } else { "plain" };
        let mut argv = vec![json!(program), json!(self.dir), json!(shapes)];
        let mut volumes = Vec::new();
        if volume {
            argv.push(json!("${volume./data}"));
            volumes.push(
                json!({"class": "fast", "capacity": 1 << 20, "mount": "/data", "on_delete": "destroy"}),
            );
        }
        json!({
            "name": "app", "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": argv}, "volumes": volumes,
        })
    }

    /// Directory of a canary that a fault may mount: `bound`, `nested` or `linked`.
    pub fn canary(&self, name: &str) -> PathBuf {
        self.dir.join("canaries").join(name)
    }

    /// Makes the next payload that starts mount a canary in its working directory.
    pub fn ask_for_mount(&self) -> Result<()> {
        std::fs::write(self.dir.join("mount-next"), "").context("cannot ask a payload for a mount")
    }

    /// Withdraws the request of [`HostState::ask_for_mount`] that no payload has fulfilled.
    pub fn unmount_volume(&self) {
        for name in ["mount-next", "mount-made"] {
            let _ = std::fs::remove_file(self.dir.join(name));
        }
    }

    /// Live payload processes that the log contains.
    pub fn alive(&self) -> Result<Vec<HostProcess>> {
        let log = self.log()?;
        let all = HostProcess::all()?;
        Ok(all.into_iter().filter(|process| log.role(process).is_some()).collect())
    }

    /// Live main processes of payloads, with their incarnations.
    pub fn alive_mains(&self) -> Result<Vec<(String, HostProcess)>> {
        let log = self.log()?;
        let all = HostProcess::all()?.into_iter();
        Ok(all
            .filter_map(|process| {
                let (incarnation, role) = log.role(&process)?;
                (role == "main").then(|| (incarnation.to_owned(), process))
            })
            .collect())
    }

    /// Incarnations whose main process lives and uses a volume.
    pub fn volume_users(&self) -> Result<BTreeSet<String>> {
        let mains = self.alive_mains()?.into_iter();
        Ok(mains.filter(|(_, process)| process.uses_volume()).map(|(incarnation, _)| incarnation).collect())
    }

    /// Incarnations of the plan whose main process lives.
    pub fn running_of(&self, plan: &str) -> Result<BTreeSet<String>> {
        let mains = self.alive_mains()?.into_iter();
        Ok(mains
            .filter(|(_, process)| process.is_of_plan(plan))
            .map(|(incarnation, _)| incarnation)
            .collect())
    }

    /// Whether a process of the incarnation lives.
    pub fn is_alive(&self, incarnation: &str) -> Result<bool> {
        let log = self.log()?;
        Ok(self.alive()?.iter().any(|process| log.role(process).is_some_and(|(of, _)| of == incarnation)))
    }

    /// Number of mounts that payloads have made.
    pub fn mounted(&self) -> Result<usize> {
        Ok(self.log()?.lines().filter(|line| line.kind == LineKind::Mounted).count())
    }

    fn log(&self) -> Result<PayloadLog> {
        PayloadLog::read(&self.dir.join("log"))
    }

    /// Current findings. Processes and cgroups may be about to end: see [`HostState::settle`].
    pub fn current_findings(&mut self) -> Result<HostFindings> {
        let log = self.log()?;
        let all = HostProcess::all()?;
        self.note_cgroups(&log, &all);
        let mut left = outliving(&log, &all);
        left.extend(self.unknown(&log, &all));
        Ok(HostFindings {
            started_twice: log.started_twice(),
            volumes_with_two_users: log.incarnations_with(LineKind::TwoUsers),
            files_touched: self.canaries.touched()?,
            left,
        })
    }

    /// Findings that remain after everything has had time to settle.
    pub fn settle(&mut self) -> Result<HostFindings> {
        self.wait(HostState::current_findings)
    }

    /// Findings after everything was asked to end: no process, mount or cgroup of the campaign may be left.
    /// The campaign's servers and executors must have been stopped.
    pub fn settle_ended(&mut self) -> Result<HostFindings> {
        self.wait(|host| {
            let mut found = host.current_findings()?;
            found.left.extend(host.left_at_the_end()?);
            Ok(found)
        })
    }

    /// Fails with all findings, if there are any.
    pub fn must_be_clean(found: &HostFindings) -> Result<()> {
        if found.is_empty() {
            return Ok(());
        }
        bail!("on the host:\n  {}", found.lines())
    }

    /// Repeats the check while there are leftovers: these may take a while to end, and count only if two
    /// checks in a row find them. All other findings are final.
    fn wait(&mut self, look: impl Fn(&mut HostState) -> Result<HostFindings>) -> Result<HostFindings> {
        let began = Instant::now();
        let mut before = None;
        loop {
            let mut found = look(self)?;
            let now: BTreeSet<String> = found.left.iter().cloned().collect();
            let same =
                |one: &String| before.as_ref().is_none_or(|before: &BTreeSet<String>| before.contains(one));
            found.left.retain(same);
            if found.left.is_empty() || began.elapsed() > self.patience {
                return Ok(found);
            }
            before = Some(now);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Notes the cgroups of the campaign's processes.
    fn note_cgroups(&mut self, log: &PayloadLog, all: &[HostProcess]) {
        for process in all.iter().filter(|process| log.role(process).is_some()) {
            let seen = process.cgroups().into_iter().filter(|cgroup| !self.cgroups_before.contains(cgroup));
            // The cgroup that executors share may stay for the next executor.
            self.cgroups.extend(seen.filter(|cgroup| !cgroup.ends_with(SHARED_CGROUP)));
        }
    }

    /// Processes with the environment of one of the campaign's payloads that are neither in the log nor
    /// children of a logged process.
    fn unknown(&self, log: &PayloadLog, all: &[HostProcess]) -> Vec<String> {
        let known: BTreeSet<u32> =
            all.iter().filter(|process| log.role(process).is_some()).map(|process| process.pid).collect();
        let unknown =
            all.iter().filter(|process| !known.contains(&process.pid) && !known.contains(&process.parent));
        let ours = unknown.filter(|process| process.is_payload_under(&self.campaign_directory));
        ours.map(|process| format!("{process}, which no payload has logged")).collect()
    }

    /// Leftovers that are never permitted: processes with any trace of the campaign, and its mounts and
    /// cgroups.
    fn left_at_the_end(&self) -> Result<Vec<String>> {
        let log = self.log()?;
        let this = std::process::id();
        let mut left: Vec<String> = HostProcess::all()?
            .into_iter()
            .filter(|process| process.pid != this)
            .filter(|process| {
                log.role(process).is_some() || process.has_anything_under(&self.campaign_directory)
            })
            .map(|process| format!("{process}, though everything has ended"))
            .collect();
        left.extend(
            mounts_under(&self.campaign_directory)?
                .into_iter()
                .map(|mount| format!("mount {}", mount.display())),
        );
        let incarnations = log.incarnations();
        let all = cgroups::all()?;
        let is_ours = |cgroup: &&PathBuf| {
            cgroups::names_one_of(cgroup, &incarnations) || self.cgroups.contains(*cgroup)
        };
        left.extend(all.iter().filter(is_ours).map(|cgroup| format!("cgroup {}", cgroup.display())));
        Ok(left)
    }

    /// Clears what a failed campaign left, so that later tests do not find it.
    fn clear(&self) -> Result<()> {
        for _ in 0..100 {
            let log = self.log()?;
            let is_ours = |process: &HostProcess| {
                log.role(process).is_some() || process.names(&self.campaign_directory)
            };
            let left: Vec<_> = HostProcess::all()?.into_iter().filter(is_ours).collect();
            if left.is_empty() {
                break;
            }
            for pid in left.iter().filter_map(|process| Pid::from_raw(i32::try_from(process.pid).ok()?)) {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        for mount in mounts_under(&self.campaign_directory)? {
            mounts::unmount(&mount)?;
        }
        let log = self.log()?;
        let incarnations = log.incarnations();
        for cgroup in cgroups::all()?.iter().rev() {
            if self.cgroups.contains(cgroup) || cgroups::names_one_of(cgroup, &incarnations) {
                cgroups::end(cgroup);
            }
        }
        Ok(())
    }
}

impl Drop for HostState {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("cannot clear the host: {error:#}");
        }
    }
}

/// Processes of incarnations whose main process is dead.
fn outliving(log: &PayloadLog, all: &[HostProcess]) -> Vec<String> {
    let mut alive: BTreeMap<&str, Vec<(&str, &HostProcess)>> = BTreeMap::new();
    for process in all {
        if let Some((incarnation, role)) = log.role(process) {
            alive.entry(incarnation).or_default().push((role, process));
        }
    }
    let mut found = Vec::new();
    for (incarnation, processes) in alive {
        if processes.iter().all(|(role, _)| *role != "main") {
            let of = processes.iter().map(|(role, process)| format!("{role} {process}"));
            found.push(format!(
                "{} of incarnation {incarnation}, whose main process is dead",
                of.collect::<Vec<_>>().join(", ")
            ));
        }
    }
    found
}
