//! Fault campaigns. Each injects one kind of real fault into the real program repeatedly, while producers use
//! the program. Then the checker and the second model judge the outcome.
//!
//! | campaign | fault | one round |
//! |---|---|---|
//! | `kills` | `kill -9` of the server, and the other faults of [`InjectedFault`] | a deployment, a random delay, the fault, a restart, a check of the host |
//! | `executors` | the same for an executor outside the server, which keeps running | the same |
//! | `pauses` | SIGSTOP and SIGCONT of the server and its embedded executors | a pause longer than the lease and every request timeout |
//! | `relocates` | every third start of a replacement replica fails | a relocate, observed by a watcher |
//! | `clock` | the server's wall clock jumps by seconds or days, forward or back | every third jump happens while the server is down |
//! | `disk-full` | no space on the disk of the server's data directory | the server ends with the reason; space is freed; the server continues |
//! | `rollouts` | versions that crash, hang or are slow, and kills of the server | a deployment and operator actions on it; processes are sampled continuously |
//! | `takeovers` | faults of a real Kafka with three brokers: see the module | the next fault of the module's list |
//! | `kubernetes` | faults of a real Kubernetes API, its nodes and pods, and of the executor: see the module | the next fault of the module's list; then every pod has its incarnation and every incarnation its pod |
//! | `machines` | kills of server, executor, supervisors and QEMU, ends of guests, disks without space: see the module | a drawn fault; then every machine has its incarnation and every incarnation its machine |
//! | `moments` | none: 64 clients read random past states, some of which disconnect early | a second |
//! | `past` | `kill -9` of the server, loss of snapshots and rows | an intent; afterwards the past is read and compared |
//! | `damage` | a torn tail, or flipped bits in the journal's files, while the server is down | the damage is found and named before anything is served |
//!
//! The first four run with the journal in the server's directory, or on a real Kafka ([`JournalBackend`]).
//!
//! Reading order: the fleet, producers, the evidence, the campaign with its faults, then the others.

mod campaign;
mod clock;
mod damage;
mod disk_full;
pub mod evidence;
mod executors;
mod faults;
pub mod fleet;
mod frames;
mod kills;
pub mod load;
mod machines;
mod moments;
mod past;
mod pauses;
mod pods;
mod relocates;
mod rollouts;
mod takeovers;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use anyhow::{Result, anyhow};

pub use faults::InjectedFault;

use crate::JournalBackend;
use crate::ledger::CountMap;

/// Kind of fault campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CampaignKind {
    /// `kill -9` of the server.
    Kills,
    /// `kill -9` of an executor outside the server.
    Executors,
    /// Pause and resumption of the server.
    Pauses,
    /// Failed starts while replicas are relocated.
    Relocates,
    /// Interference with deployments of good and bad versions.
    Rollouts,
    /// Jumps of the server's wall clock.
    Clock,
    /// Disk without space.
    DiskFull,
    /// Torn or altered files of the journal.
    Damage,
    /// Kills and pauses of servers and brokers of a fleet on Kafka.
    Takeovers,
    /// Faults of a Kubernetes API, its nodes and pods, and of the executor.
    Kubernetes,
    /// Faults of virtual machines of QEMU, and of what runs them.
    Machines,
    /// Reads of random past states by many clients.
    Moments,
    /// Kills of the server, and reads of the past.
    Past,
}

impl CampaignKind {
    /// All campaigns.
    pub const ALL: &[CampaignKind] = &[
        CampaignKind::Kills,
        CampaignKind::Executors,
        CampaignKind::Pauses,
        CampaignKind::Relocates,
        CampaignKind::Rollouts,
        CampaignKind::Clock,
        CampaignKind::DiskFull,
        CampaignKind::Damage,
        CampaignKind::Takeovers,
        CampaignKind::Kubernetes,
        CampaignKind::Machines,
        CampaignKind::Moments,
        CampaignKind::Past,
    ];

    /// Campaign name.
    pub const fn word(self) -> &'static str {
        match self {
            CampaignKind::Kills => "kills",
            CampaignKind::Executors => "executors",
            CampaignKind::Pauses => "pauses",
            CampaignKind::Relocates => "relocates",
            CampaignKind::Rollouts => "rollouts",
            CampaignKind::Clock => "clock",
            CampaignKind::DiskFull => "disk-full",
            CampaignKind::Damage => "damage",
            CampaignKind::Takeovers => "takeovers",
            CampaignKind::Kubernetes => "kubernetes",
            CampaignKind::Machines => "machines",
            CampaignKind::Moments => "moments",
            CampaignKind::Past => "past",
        }
    }

    /// Maximum number of rounds per seed; the next seed starts with an empty directory.
    const fn rounds(self) -> u64 {
        match self {
            CampaignKind::Kills | CampaignKind::Executors => 50,
            CampaignKind::Relocates => 100,
            CampaignKind::Pauses | CampaignKind::DiskFull => 5,
            CampaignKind::Clock | CampaignKind::Damage => 20,
            CampaignKind::Takeovers
            | CampaignKind::Rollouts
            | CampaignKind::Kubernetes
            | CampaignKind::Machines => 25,
            // Rounds are seconds.
            CampaignKind::Moments => 3600,
            // Rounds are intents.
            CampaignKind::Past => 1_000_000,
        }
    }

    /// Number of rounds of a campaign for which none is given.
    pub const fn default_rounds(self) -> u64 {
        match self {
            CampaignKind::Moments => 60,
            CampaignKind::Past => 20_000,
            CampaignKind::Kills
            | CampaignKind::Pauses
            | CampaignKind::Clock
            | CampaignKind::DiskFull
            | CampaignKind::Damage
            | CampaignKind::Executors
            | CampaignKind::Relocates
            | CampaignKind::Rollouts
            | CampaignKind::Takeovers
            | CampaignKind::Kubernetes
            | CampaignKind::Machines => 50,
        }
    }

    /// Supported journal locations.
    pub const fn backends(self) -> &'static [JournalBackend] {
        match self {
            CampaignKind::Kills
            | CampaignKind::Executors
            | CampaignKind::Pauses
            | CampaignKind::Relocates => JournalBackend::ALL,
            // On Kafka, `takeovers` includes clock jumps.
            CampaignKind::Clock => &[JournalBackend::Embedded],
            // Faults of the journal's own files; on Kafka, the local files are a copy.
            CampaignKind::DiskFull | CampaignKind::Damage => &[JournalBackend::Embedded],
            // Only processes, pods, machines or answers are observed: the journal's location makes no difference.
            CampaignKind::Rollouts
            | CampaignKind::Kubernetes
            | CampaignKind::Machines
            | CampaignKind::Moments
            | CampaignKind::Past => &[JournalBackend::Embedded],
            CampaignKind::Takeovers => &[JournalBackend::ThreeBrokers],
        }
    }

    /// Runs `rounds` rounds with seeds from `seed` on, and the journal at `backend`. Returns the tally and the
    /// first violation, if any.
    pub fn run(self, backend: JournalBackend, rounds: u64, seed: u64) -> (CountMap, Result<()>) {
        self.run_with(backend, rounds, seed, &InjectedFault::of(self, backend))
    }

    /// Runs rounds like [`CampaignKind::run`], with the given faults only, if the campaign has any ([`InjectedFault::of`]).
    pub fn run_with(
        self,
        backend: JournalBackend,
        rounds: u64,
        seed: u64,
        faults: &[InjectedFault],
    ) -> (CountMap, Result<()>) {
        let mut tally = CountMap::default();
        let mut left = rounds;
        for seed in seed.. {
            if left == 0 {
                break;
            }
            let now = left.min(self.rounds());
            left -= now;
            tally.seeds += 1;
            let mut run = || match self {
                CampaignKind::Kills => kills::run(backend, now, seed, faults, &mut tally),
                CampaignKind::Executors => executors::run(backend, now, seed, faults, &mut tally),
                CampaignKind::Pauses => pauses::run(backend, now, seed, &mut tally),
                CampaignKind::Relocates => relocates::run(backend, now, seed, &mut tally),
                CampaignKind::Rollouts => rollouts::run(now, seed, &mut tally),
                CampaignKind::Clock => clock::run(now, seed, &mut tally),
                CampaignKind::DiskFull => disk_full::run(now, seed, &mut tally),
                CampaignKind::Damage => damage::run(now, seed, &mut tally),
                CampaignKind::Takeovers => takeovers::run(now, seed, &mut tally),
                CampaignKind::Kubernetes => pods::run(now, seed, &mut tally),
                CampaignKind::Machines => machines::run(now, seed, &mut tally),
                CampaignKind::Moments => moments::run(now, seed, &mut tally),
                CampaignKind::Past => past::run(now, seed, &mut tally),
            };
            // A condition not fulfilled within a minute panics: a finding like any other.
            let ran = catch_unwind(AssertUnwindSafe(&mut run))
                .unwrap_or_else(|panic| Err(anyhow!("{}", panic_text(&*panic))));
            if let Err(error) = ran {
                tally.violations += 1;
                return (tally, Err(error.context(format!("{self} {backend}, seed {seed}"))));
            }
        }
        (tally, Ok(()))
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

impl fmt::Display for CampaignKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for CampaignKind {
    type Err = String;
    fn from_str(text: &str) -> Result<CampaignKind, String> {
        let words: Vec<_> = CampaignKind::ALL.iter().map(|campaign| campaign.word()).collect();
        let found = CampaignKind::ALL.iter().copied().find(|campaign| campaign.word() == text);
        found.ok_or_else(|| format!("invalid campaign {text:?}: must be one of {}", words.join(", ")))
    }
}
