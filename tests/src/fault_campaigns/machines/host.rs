//! Virtual machines as `/proc` and their output files show them, without Chancery.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use chancery_events::time::Time;

use super::MOST;
use crate::host::HostProcess;
use crate::ledger::CountMap;

/// Interval at which machines are listed.
const INTERVAL: Duration = Duration::from_millis(100);

/// Process of QEMU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MachineProcess {
    pub(super) process: HostProcess,
    /// Incarnation, from the name of the guest.
    pub(super) incarnation: String,
    pub(super) uuid: String,
    /// Files of the disks.
    pub(super) disks: Vec<PathBuf>,
    /// Directory of sockets and working directory.
    pub(super) directory: PathBuf,
}

/// Returns the processes of QEMU with the path `root` in their arguments or environment.
pub(super) fn machines(root: &Path) -> Result<Vec<MachineProcess>> {
    let root = root.display().to_string();
    Ok(HostProcess::all()?.into_iter().filter_map(|process| machine(&root, process)).collect())
}

fn machine(root: &str, process: HostProcess) -> Option<MachineProcess> {
    let words = |file: &str| -> Option<Vec<String>> {
        let bytes = std::fs::read(format!("/proc/{}/{file}", process.pid)).ok()?;
        Some(bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
    };
    let arguments = words("cmdline")?;
    let options = |option: &str| {
        let pairs = arguments.iter().zip(arguments.iter().skip(1));
        pairs.filter(|(name, _)| *name == option).map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let name = options("-name").pop()?;
    let (incarnation, _) = name.strip_prefix("guest=")?.split_once('/')?;
    let environment = words("environ")?;
    if !environment.iter().chain(&arguments).any(|word| word.contains(root)) {
        return None;
    }
    let home = environment.iter().find_map(|pair| pair.strip_prefix("HOME=")).unwrap_or_default();
    let disk = |node: String| {
        let node: serde_json::Value = serde_json::from_str(&node).ok()?;
        Some(PathBuf::from(node["file"]["filename"].as_str()?))
    };
    Some(MachineProcess {
        incarnation: incarnation.to_owned(),
        uuid: options("-uuid").pop()?,
        disks: options("-blockdev").into_iter().filter_map(disk).collect(),
        directory: Path::new(home).parent().unwrap_or(Path::new("")).to_owned(),
        process,
    })
}

impl MachineProcess {
    /// Whether the guest has started and counts beats.
    pub(super) fn is_beating(&self) -> bool {
        let Some(directory) = self.directory.parent() else { return false };
        let Some((_, newest)) = outputs(directory).pop() else { return false };
        let text = std::fs::read(newest).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.trim_end().lines().last().is_some_and(|line| line.starts_with("beat "))
    }
}

/// Output files of the first serial port below the directory of an incarnation, in order.
fn outputs(directory: &Path) -> Vec<(u64, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix("app-0.out.")?.parse().ok();
    let mut found: Vec<_> =
        entries.filter_map(|entry| Some((number(&entry.path())?, entry.path()))).collect();
    found.sort();
    found
}

/// Incarnation whose machine was seen.
#[derive(Clone, Debug)]
pub(super) struct SeenMachine {
    pub(super) uuid: String,
    /// Time of the last list that has it.
    pub(super) last: Time,
    /// Pid and start time.
    pub(super) processes: BTreeSet<(u32, u64)>,
}

/// All that the observer has seen.
#[derive(Clone, Default, Debug)]
pub(super) struct MachineSightings {
    pub(super) seen: BTreeMap<String, SeenMachine>,
    /// Number of beats that guests have counted.
    pub(super) beats: u64,
    pub(super) started_twice: BTreeSet<String>,
    pub(super) two_users: BTreeSet<String>,
    pub(super) others: BTreeSet<String>,
    /// Bytes read of each output file.
    pub(super) read: BTreeMap<PathBuf, u64>,
}

impl MachineSightings {
    fn note(&mut self, at: Time, machines: &[MachineProcess]) {
        for machine in machines {
            let process = (machine.process.pid, machine.process.start_time);
            let seen = self.seen.entry(machine.incarnation.clone()).or_insert_with(|| SeenMachine {
                uuid: machine.uuid.clone(),
                last: at,
                processes: BTreeSet::new(),
            });
            seen.last = at;
            if seen.processes.insert(process) && seen.processes.len() > 1 {
                let text = format!("incarnation {} has had {:?}", machine.incarnation, seen.processes);
                self.started_twice.insert(text);
            }
            if seen.uuid != machine.uuid {
                let text = format!("incarnation {} had {}: {machine:?}", machine.incarnation, seen.uuid);
                self.others.insert(text);
            }
            for disk in &machine.disks {
                let users: Vec<_> = machines.iter().filter(|other| other.disks.contains(disk)).collect();
                if users.len() > 1 {
                    let users: Vec<_> = users.iter().map(|user| &user.incarnation).collect();
                    self.two_users.insert(format!("{}: {users:?}", disk.display()));
                }
            }
        }
        if machines.len() > MOST {
            self.others.insert(format!("more machines than the nodes have memory for: {machines:?}"));
        }
    }

    /// Reads what guests have written since the last call. They count the pages of their memory that have another content than
    /// they have written.
    fn read_outputs(&mut self, executor: &Path) {
        let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
        let directories = entries(executor.join("nodes")).flat_map(|node| entries(node.path()));
        for (_, path) in directories.flat_map(|incarnation| outputs(&incarnation.path())) {
            let offset = self.read.entry(path.clone()).or_default();
            let mut bytes = Vec::new();
            let read = File::open(&path).and_then(|mut file| {
                file.seek(SeekFrom::Start(*offset))?;
                file.read_to_end(&mut bytes)
            });
            let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            if read.is_err() || end == 0 {
                continue; // removed meanwhile, or nothing new
            }
            *offset += end as u64;
            for line in String::from_utf8_lossy(&bytes[..end]).lines() {
                // A reset cuts a line off.
                let beat = line.strip_prefix("beat ").and_then(|line| line.split_once(" broken "));
                match beat.and_then(|(_, broken)| broken.trim().parse::<u64>().ok()) {
                    Some(0) => self.beats += 1,
                    Some(_) => {
                        self.others.insert(format!("broken memory: {line:?} in {}", path.display()));
                    }
                    None => {}
                }
            }
        }
    }

    /// Adds findings to the tally, and fails if there are any.
    pub(super) fn judge(&self, tally: &mut CountMap) -> Result<()> {
        tally.started_twice += self.started_twice.len() as u64;
        tally.volumes_with_two_users += self.two_users.len() as u64;
        let kinds = [
            ("started twice", &self.started_twice),
            ("disk with two users", &self.two_users),
            ("", &self.others),
        ];
        let found: Vec<_> = kinds
            .iter()
            .flat_map(|(kind, found)| found.iter().map(move |one| format!("{kind} {one}")))
            .collect();
        if found.is_empty() {
            return Ok(());
        }
        bail!("on the host:\n  {}", found.join("\n  "))
    }
}

/// Thread that lists machines, and reads their outputs, until it is dropped.
pub(super) struct MachineObserver {
    shared: Arc<SharedSightings>,
    thread: Option<JoinHandle<()>>,
}

struct SharedSightings {
    stop: AtomicBool,
    root: PathBuf,
    executor: PathBuf,
    sightings: Mutex<MachineSightings>,
}

impl MachineObserver {
    /// Observes the machines of a fleet, with the directory of its executor.
    pub(super) fn begin(root: &Path, executor: &Path) -> MachineObserver {
        let shared = Arc::new(SharedSightings {
            stop: AtomicBool::new(false),
            root: root.to_owned(),
            executor: executor.to_owned(),
            sightings: Mutex::default(),
        });
        let observed = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !observed.stop.load(Ordering::Relaxed) {
                observed.observe();
                std::thread::sleep(INTERVAL);
            }
        });
        MachineObserver { shared, thread: Some(thread) }
    }

    /// Returns what was seen until now.
    pub(super) fn sightings(&self) -> MachineSightings {
        self.shared.observe();
        self.shared.lock().clone()
    }
}

impl SharedSightings {
    fn lock(&self) -> MutexGuard<'_, MachineSightings> {
        self.sightings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn observe(&self) {
        // Before the list: whatever it has, was alive then or later.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Time::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX));
        let mut sightings = self.lock();
        match machines(&self.root) {
            Ok(machines) => sightings.note(now, &machines),
            Err(error) => {
                sightings.others.insert(format!("{error:#}"));
            }
        }
        sightings.read_outputs(&self.executor);
    }
}

impl Drop for MachineObserver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(number: u32, incarnation: &str, disk: &str) -> MachineProcess {
        let mut process = HostProcess::of(std::process::id()).expect("this process");
        process.pid = number;
        let (uuid, disks) = (format!("uuid of {incarnation}"), vec![disk.into()]);
        MachineProcess { process, incarnation: incarnation.into(), uuid, disks, directory: PathBuf::new() }
    }

    #[test]
    fn machines_that_must_not_exist_are_found_in_one_list_or_in_two() {
        let [one, two, other] = [machine(1, "a", "x"), machine(2, "a", "y"), machine(3, "b", "x")];
        let many: Vec<_> =
            (0..5).map(|number| machine(number, &number.to_string(), &number.to_string())).collect();
        let changed = MachineProcess { uuid: "another".into(), ..one.clone() };
        for (lists, wanted) in [
            (vec![vec![one.clone()], vec![one.clone(), machine(4, "b", "y")]], ""),
            (vec![vec![one.clone()], vec![other.clone()]], ""),
            (vec![vec![one.clone(), two.clone()]], "started twice incarnation a"),
            (vec![vec![one.clone()], vec![two]], "started twice incarnation a"),
            (vec![vec![one.clone(), other]], "disk with two users x"),
            (vec![many], "more machines"),
            (vec![vec![one], vec![changed]], "incarnation a had uuid of a"),
        ] {
            let mut sightings = MachineSightings::default();
            for list in &lists {
                sightings.note(Time::from_micros(1), list);
            }
            let found = sightings.judge(&mut CountMap::default());
            let text = found.as_ref().map_or_else(ToString::to_string, |()| String::new());
            assert!(found.is_ok() == wanted.is_empty() && text.contains(wanted), "{lists:?}: {text}");
        }
    }

    #[test]
    fn whole_lines_of_an_output_show_whether_memory_is_broken() {
        let executor = tempfile::tempdir().expect("a directory");
        let incarnation = executor.path().join("nodes/node-1/i");
        std::fs::create_dir_all(&incarnation).expect("a directory");
        let file = incarnation.join("app-0.out.1");
        let mut sightings = MachineSightings::default();
        let mut read = |text: &str| {
            std::fs::write(&file, text).expect("an output");
            sightings.read_outputs(executor.path());
            (sightings.beats, sightings.others.len())
        };
        let mut text = "READY \r\nbeat 1 broken 0\r\nbeat 2 bro".to_owned();
        assert_eq!(read(&text), (1, 0));
        text += "ken 0\r\nbeat 3 broREADY \r\nbeat 1 broken 0\r\n";
        assert_eq!(read(&text), (3, 0));
        text += "beat 2 broken 7\r\n";
        assert_eq!(read(&text), (3, 1));
    }
}
