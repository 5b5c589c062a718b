//! Lanes: one kind of real fault each, put into the real program while producers use it, again and again; then what
//! is left is judged by the checker and the second model.
//!
//! | lane | fault | a round |
//! |---|---|---|
//! | `kills` | `kill -9` of the server, and the other faults of [`Fault`] | a deployment, a random moment, the fault, the next start, a look at the host |
//! | `executors` | the same for an executor outside the server, which goes on | the same |
//! | `pauses` | SIGSTOP and SIGCONT of the server, executors in it included | past lease and every timeout of requests |
//! | `relocates` | every third start of what takes the place of a replica fails | a relocate, while somebody looks |
//! | `clock` | the server's wall clock leaps by seconds or days, forth or back | every third time while the server is down |
//! | `disk-full` | no space on the disk of the server's folder | it ends and says why; space comes back; it goes on |
//! | `rollouts` | versions that crash, hang or are slow, and kills of the server | a deployment, and what people do about it; processes are sampled all the time |
//! | `takeovers` | on a real Kafka of three brokers: see there | the next of the faults there |
//! | `damage` | a torn tail, flipped bits in the journal's files, between two runs | it is found and named, before anything is served |
//!
//! The first four are played wherever the journal is: in the server's folder, or on a real Kafka ([`Place`]).
//!
//! In reading order: the fleet, producers, the evidence, the campaign with its faults, then the lanes.

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
mod pauses;
mod relocates;
mod rollouts;
mod takeovers;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use anyhow::{Result, anyhow};

pub use faults::Fault;

use crate::Place;
use crate::ledger::Tally;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// `kill -9` of the server.
    Kills,
    /// `kill -9` of an executor outside the server.
    Executors,
    /// The server stands still, and goes on.
    Pauses,
    /// Starts fail while replicas are relocated.
    Relocates,
    /// Deployments of good and bad versions are interfered with.
    Rollouts,
    /// The wall clock of the server leaps.
    Clock,
    /// No space on the disk.
    DiskFull,
    /// Files of the journal are torn or altered.
    Damage,
    /// Servers and brokers of a fleet on Kafka die and stand still.
    Takeovers,
}

impl Lane {
    /// Every one.
    pub const ALL: &[Lane] = &[
        Lane::Kills,
        Lane::Executors,
        Lane::Pauses,
        Lane::Relocates,
        Lane::Rollouts,
        Lane::Clock,
        Lane::DiskFull,
        Lane::Damage,
        Lane::Takeovers,
    ];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Lane::Kills => "kills",
            Lane::Executors => "executors",
            Lane::Pauses => "pauses",
            Lane::Relocates => "relocates",
            Lane::Rollouts => "rollouts",
            Lane::Clock => "clock",
            Lane::DiskFull => "disk-full",
            Lane::Damage => "damage",
            Lane::Takeovers => "takeovers",
        }
    }

    /// Rounds of one run, at most: then it begins anew, with an empty folder and another seed.
    const fn rounds(self) -> u64 {
        match self {
            Lane::Kills | Lane::Executors => 50,
            Lane::Relocates => 100,
            Lane::Pauses | Lane::DiskFull => 5,
            Lane::Clock | Lane::Damage => 20,
            Lane::Takeovers | Lane::Rollouts => 25,
        }
    }

    /// Where the journal may be.
    pub const fn places(self) -> &'static [Place] {
        match self {
            Lane::Kills | Lane::Executors | Lane::Pauses | Lane::Relocates => Place::ALL,
            // With the journal on Kafka, the clock leaps in the lane of takeovers.
            Lane::Clock => &[Place::Embedded],
            // They are about the files that are the journal; what is on Kafka is a copy.
            Lane::DiskFull | Lane::Damage => &[Place::Embedded],
            // What is sampled are processes: the journal's place makes no difference.
            Lane::Rollouts => &[Place::Embedded],
            Lane::Takeovers => &[Place::ThreeBrokers],
        }
    }

    /// Runs so many rounds, from the seed on, with the journal in one of the lane's places. What was seen, and the first
    /// violation if there is one.
    pub fn run(self, place: Place, rounds: u64, seed: u64) -> (Tally, Result<()>) {
        self.run_with(place, rounds, seed, &Fault::of(self, place))
    }

    /// The same, with those faults alone, if the lane has any ([`Fault::of`]).
    pub fn run_with(self, place: Place, rounds: u64, seed: u64, faults: &[Fault]) -> (Tally, Result<()>) {
        let mut tally = Tally::default();
        let mut left = rounds;
        for seed in seed.. {
            if left == 0 {
                break;
            }
            let now = left.min(self.rounds());
            left -= now;
            tally.seeds += 1;
            let mut run = || match self {
                Lane::Kills => kills::run(place, now, seed, faults, &mut tally),
                Lane::Executors => executors::run(place, now, seed, faults, &mut tally),
                Lane::Pauses => pauses::run(place, now, seed, &mut tally),
                Lane::Relocates => relocates::run(place, now, seed, &mut tally),
                Lane::Rollouts => rollouts::run(now, seed, &mut tally),
                Lane::Clock => clock::run(now, seed, &mut tally),
                Lane::DiskFull => disk_full::run(now, seed, &mut tally),
                Lane::Damage => damage::run(now, seed, &mut tally),
                Lane::Takeovers => takeovers::run(now, seed, &mut tally),
            };
            // What does not come to pass in a minute panics: that is a finding like any other.
            let ran = catch_unwind(AssertUnwindSafe(&mut run))
                .unwrap_or_else(|panic| Err(anyhow!("{}", told(&*panic))));
            if let Err(error) = ran {
                tally.violations += 1;
                return (tally, Err(error.context(format!("{self} {place}, seed {seed}"))));
            }
        }
        (tally, Ok(()))
    }
}

fn told(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for Lane {
    type Err = String;
    fn from_str(text: &str) -> Result<Lane, String> {
        let words: Vec<_> = Lane::ALL.iter().map(|lane| lane.word()).collect();
        let found = Lane::ALL.iter().copied().find(|lane| lane.word() == text);
        found.ok_or_else(|| format!("there is no lane {text:?}: {}", words.join(", ")))
    }
}
