//! W19: virtual machines of QEMU, next to QEMU alone. The guest is that of the tests: a kernel without an operating system,
//! which writes to its first serial port when it is ready.
//!
//! - *boot*: from the intent until the stream reports that the replica runs, which is when its guest has written that it is
//!   ready; compared with QEMU that this program starts with the same command line, until the same text. Both alternate.
//! - *idle*: processor time and memory of server, executor and supervisors for guests that do nothing, compared with those of
//!   their QEMU.
//! - *adoption*: the server with its executor is killed and started again while its guests run. A guest ends in between. The
//!   adoption is complete once every supervisor has a connection to the new executor, and the row of the ended guest has its
//!   end: an executor reports what has happened only after it has found all guests. Compared with a server that has few
//!   guests, and with a question to each QEMU, one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Sum;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::bare_machine::{BareMachine, ask_all};
use crate::machine_fleet::{MachineFleet, MachineProcesses, QUIET, WRITING, is_alive, kill, until};
use crate::process::{MeasuredProcess, proportional_mib, thread_times, waits};
use crate::table::{CellResult, ResultRow, ValueBar};

/// Boots of each side.
const BOOTS: usize = 30;
/// Maximum additional time of a boot, in milliseconds at the median.
const MORE_MS: f64 = 50.0;
/// Guests that do nothing.
const IDLE: usize = 16;
/// Duration of the measurement of idle guests.
const WINDOW: Duration = Duration::from_secs(30);
/// Time after which a server has returned the memory of its last load, and a deleted guest has left no work.
const CALM: Duration = Duration::from_secs(15);
/// Maximum share of a core for all idle guests together, in percent.
const PERCENT: f64 = 2.0;
/// Maximum memory for each guest in addition to its QEMU, in MiB.
const MEMORY_MIB: f64 = 4.0;
/// Guests that are adopted.
const ADOPTED: usize = 100;
/// Rounds of an adoption.
const ADOPTIONS: usize = 5;
/// Maximum time of an adoption, in seconds.
const ADOPTION: f64 = 2.0;
/// Time for work that follows the last event of a round.
const TRAILING: Duration = Duration::from_millis(300);

fn boots() -> Result<ResultRow> {
    let fleet = MachineFleet::start()?;
    let mut bare = None;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // The first boot reads files that are not in memory yet.
    for round in 0..=BOOTS {
        let plan = format!("boot-{round}");
        fleet.plan(&plan, WRITING)?;
        std::thread::sleep(TRAILING);
        let took = fleet.deploy(&plan, 1)?;
        let machines = fleet.machines()?;
        let bare = match &mut bare {
            Some(bare) => bare,
            none => none.insert(BareMachine::like(machines.first().context("a guest")?)?),
        };
        fleet.delete(&plan)?;
        std::thread::sleep(TRAILING);
        let took_alone = bare.boot()?;
        if round > 0 {
            ours.push(took);
            theirs.push(took_alone);
        }
    }
    let (ours, theirs) = (cell(ours), cell(theirs));
    let more = ours.p50_ms - theirs.p50_ms;
    let row = ResultRow::new("W19", "1 boot", ours).compared_with("QEMU alone", theirs);
    Ok(row.check("milliseconds more, p50", more, ValueBar::AtMost(MORE_MS)))
}

fn cell(took: Vec<Duration>) -> CellResult {
    let all = took.iter().sum();
    CellResult::of(took, all)
}

/// Use of processors and memory while guests run.
struct IdleUse {
    /// Busy cores of server, executor and supervisors.
    cores: f64,
    /// Memory of the same processes.
    mib: f64,
    /// Wake-ups a second of all supervisors.
    wakeups: f64,
    /// Busy cores of QEMU.
    qemu_cores: f64,
    /// Memory of QEMU.
    qemu_mib: f64,
}

impl IdleUse {
    fn measure(fleet: &MachineFleet) -> Result<IdleUse> {
        let machines = fleet.machines()?;
        let supervisors: BTreeSet<_> = machines.iter().map(|machine| machine.supervisor).collect();
        ensure!(machines.len() == IDLE && supervisors.len() == IDLE, "not {IDLE} guests: {machines:?}");
        let supervisors = || supervisors.iter().copied();
        let qemu = || machines.iter().map(|machine| machine.qemu);
        let used = || {
            let times = (total(supervisors(), thread_times)?, total(qemu(), thread_times)?);
            anyhow::Ok((times.0, times.1, total(supervisors(), waits)?))
        };
        // A server has threads that end, whose time only its own total has.
        let server = MeasuredProcess::begin(fleet.server.process())?;
        let (before, began) = (used()?, Instant::now());
        std::thread::sleep(WINDOW);
        let (after, seconds) = (used()?, began.elapsed().as_secs_f64());
        let cores = |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64() / seconds;
        Ok(IdleUse {
            cores: server.cores()? + cores(before.0, after.0),
            mib: proportional_mib(fleet.server.process())? + total(supervisors(), proportional_mib)?,
            wakeups: after.2.saturating_sub(before.2) as f64 / seconds,
            qemu_cores: cores(before.1, after.1),
            qemu_mib: total(qemu(), proportional_mib)?,
        })
    }
}

/// Adds up an amount of each process.
fn total<T: Sum>(processes: impl Iterator<Item = u32>, amount: impl Fn(u32) -> Result<T>) -> Result<T> {
    processes.map(amount).sum()
}

fn idle() -> Result<Vec<ResultRow>> {
    let fleet = MachineFleet::start()?;
    let mut rows = Vec::new();
    for (what, cmdline) in [("idle", QUIET), ("writing", WRITING)] {
        std::thread::sleep(CALM);
        let before = proportional_mib(fleet.server.process())?;
        let empty = MeasuredProcess::begin(fleet.server.process())?;
        std::thread::sleep(CALM);
        let empty = empty.cores()?;
        fleet.plan(what, cmdline)?;
        fleet.deploy_many(what, IDLE)?;
        std::thread::sleep(CALM);
        let used = IdleUse::measure(&fleet)?;
        fleet.delete(what)?;
        let mib = (used.mib - before) / IDLE as f64;
        let ours = CellResult { cores: Some(used.cores), memory_mib: Some(mib), ..CellResult::default() };
        let qemu = CellResult {
            cores: Some(used.qemu_cores),
            memory_mib: Some(used.qemu_mib / IDLE as f64),
            ..CellResult::default()
        };
        let alone = CellResult { cores: Some(empty), ..CellResult::default() };
        let row = ResultRow::new("W19", format!("{IDLE} {what} guests"), ours)
            .compared_with("their QEMU", qemu)
            .compared_with("server without guests", alone);
        let percent = used.cores * 100.0;
        rows.push(if what == "idle" {
            row.check("percent of a core, together", percent, ValueBar::Below(PERCENT))
                .check("MiB for each guest in addition to QEMU", mib, ValueBar::AtMost(MEMORY_MIB))
                .check(
                    "wake-ups of a supervisor per second",
                    used.wakeups / IDLE as f64,
                    ValueBar::Below(1.0),
                )
        } else {
            row
        });
    }
    Ok(rows)
}

/// Server with guests, of which one ends in each round while no server runs.
struct AdoptionFleet {
    fleet: MachineFleet,
    /// Guests that will end.
    ending: Vec<MachineProcesses>,
    /// Guests that must not end.
    lasting: BTreeSet<MachineProcesses>,
}

/// Times of a start until it had these results.
#[derive(Clone, Copy, Debug, Default)]
struct AdoptionTimes {
    /// The server listens.
    listens: Duration,
    /// Each supervisor has a connection to the new executor.
    connected: Duration,
    /// The report of the new executor is in the rows.
    reported: Duration,
}

impl AdoptionTimes {
    fn complete(&self) -> Duration {
        self.connected.max(self.reported)
    }
}

impl AdoptionFleet {
    fn start(lasting: usize) -> Result<AdoptionFleet> {
        let fleet = MachineFleet::start()?;
        fleet.plan("ending", QUIET)?;
        fleet.deploy("ending", ADOPTIONS)?;
        let ending: Vec<_> = fleet.machines()?.into_iter().collect();
        fleet.plan("lasting", QUIET)?;
        if lasting > 0 {
            fleet.deploy_many("lasting", lasting)?;
        }
        let lasting_machines: BTreeSet<_> =
            fleet.machines()?.into_iter().filter(|machine| machine.plan == "lasting").collect();
        ensure!(ending.len() == ADOPTIONS && lasting_machines.len() == lasting, "guests have ended");
        Ok(AdoptionFleet { fleet, ending, lasting: lasting_machines })
    }

    /// Kills the server, and starts it again.
    fn round(&mut self) -> Result<AdoptionTimes> {
        let ending = self.ending.pop().context("a guest that will end")?;
        self.fleet.server.kill()?;
        kill(ending.qemu);
        until("the end of a supervisor", || Ok(!is_alive(ending.supervisor)))?;
        // A supervisor has closed the connection of the killed executor by then.
        std::thread::sleep(TRAILING);
        let supervisors = self.lasting.iter().chain(&self.ending).map(|machine| machine.supervisor);
        let mut unconnected: BTreeMap<u32, usize> =
            supervisors.map(|process| Ok((process, descriptors(process)?))).collect::<Result<_>>()?;
        let mut times = AdoptionTimes::default();
        let began = Instant::now();
        self.fleet.server.start_again()?;
        times.listens = began.elapsed();
        until("the adoption of all guests", || {
            if !unconnected.is_empty() {
                let mut left = BTreeMap::new();
                for (process, before) in std::mem::take(&mut unconnected) {
                    if descriptors(process)? <= before {
                        left.insert(process, before);
                    }
                }
                unconnected = left;
                times.connected = began.elapsed();
            }
            if times.reported.is_zero() && self.fleet.state(&ending.incarnation)? == "failed" {
                times.reported = began.elapsed();
            }
            Ok(unconnected.is_empty() && !times.reported.is_zero())
        })?;
        let left: BTreeSet<_> = self.lasting.iter().chain(&self.ending).cloned().collect();
        ensure!(self.fleet.machines()? == left, "a guest or a supervisor was replaced");
        for machine in &left {
            let state = self.fleet.state(&machine.incarnation)?;
            ensure!(state == "running", "{machine:?} is {state}");
        }
        Ok(times)
    }
}

/// Returns the number of open descriptors of a process: that of a supervisor grows by one for each connected executor.
fn descriptors(process: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{process}/fd"))?.count())
}

fn adoptions() -> Result<ResultRow> {
    let mut many = AdoptionFleet::start(ADOPTED)?;
    let mut few = AdoptionFleet::start(0)?;
    let (mut ours, mut theirs, mut asked) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ADOPTIONS {
        ours.push(many.round()?);
        theirs.push(few.round()?);
        std::thread::sleep(TRAILING);
        asked.push(ask_all(&many.lasting)?);
    }
    let guests = |took: Vec<Duration>, count: usize| {
        let cell = cell(took);
        CellResult { rate: count as f64 * cell.rate, ..cell }
    };
    let longest = ours.iter().map(AdoptionTimes::complete).max().unwrap_or_default().as_secs_f64();
    let part = |part: fn(&AdoptionTimes) -> Duration, all: &[AdoptionTimes]| {
        all.iter().map(part).collect::<Vec<_>>()
    };
    let row = ResultRow::new(
        "W19",
        format!("{ADOPTED} adopted"),
        guests(part(AdoptionTimes::complete, &ours), ADOPTED),
    );
    Ok(row
        .compared_with("until it listens", cell(part(|times| times.listens, &ours)))
        .compared_with("until connected", guests(part(|times| times.connected, &ours), ADOPTED))
        .compared_with("until reported", guests(part(|times| times.reported, &ours), ADOPTED))
        .compared_with("a server with few guests", cell(part(AdoptionTimes::complete, &theirs)))
        .compared_with("each QEMU asked", guests(asked, ADOPTED))
        .check("seconds, the longest", longest, ValueBar::Below(ADOPTION)))
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut rows = vec![boots()?];
    rows.extend(idle()?);
    rows.push(adoptions()?);
    Ok(rows)
}
