//! Faults of the campaigns `kills` and `executors`, each with its permitted effects. Everything else is a
//! violation.
//!
//! | fault | what is done | permitted effect |
//! |---|---|---|
//! | `kill` | `kill -9` of the server or executor at a random moment, as in each of the others | – |
//! | `mount` | a bind mount, a nested mount, or a mount made by a payload, in a working directory that is removed | the directory stays while the mount does |
//! | `clean-environment` | supervisors are killed whose payloads are shells and daemons with empty environments | unobserved exits |
//! | `full-log` | the file system of the data directory, logs included, is full or read-only while payloads end | the server ends, or does not start |
//! | `symlink` | the data directory is a link in one epoch and the real path in the next, and supervisors are killed | unobserved exits |
//! | `pid-namespace` | an epoch in another PID namespace | a refused start; incarnations of unknown state |
//! | `stopped-supervisor` | supervisors get SIGSTOP while their processes must end | – |
//! | `wrong-clock` | an epoch days or years ahead | years ahead: a refused start |
//! | `short-journal` | the last segment is missing, empty, zeroed or flipped in its last bytes | starts are refused until the segment is back |
//! | `copied-directory` | a start over a copy of the data directory | that start is refused |

mod full_log;
mod journal;
mod lives;
mod mounts;
mod supervisors;

use std::fmt;
use std::str::FromStr;

use anyhow::Result;

pub(super) use supervisors::signal;

use super::Lane;
use super::campaign::{Campaign, Target};
use crate::Place;
use crate::sim::Random;

/// Fault; the module's table lists its permitted effects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Only `kill -9`.
    Kill,
    /// Mount in a working directory.
    Mount,
    /// Death of supervisors whose payloads cannot be found by their environment.
    CleanEnvironment,
    /// Full or read-only file system that also has the log.
    FullLog,
    /// Data directory that is named by a link.
    Symlink,
    /// Second PID namespace over the same directory.
    PidNamespace,
    /// Paused supervisors.
    StoppedSupervisor,
    /// Start with a clock that is ahead.
    WrongClock,
    /// Journal without its last segment.
    ShortJournal,
    /// Copy of the data directory.
    CopiedDirectory,
}

impl Fault {
    /// All faults.
    pub const ALL: &[Fault] = &[
        Fault::Kill,
        Fault::Mount,
        Fault::CleanEnvironment,
        Fault::FullLog,
        Fault::Symlink,
        Fault::PidNamespace,
        Fault::StoppedSupervisor,
        Fault::WrongClock,
        Fault::ShortJournal,
        Fault::CopiedDirectory,
    ];

    /// Name of the fault.
    pub const fn word(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Mount => "mount",
            Fault::CleanEnvironment => "clean-environment",
            Fault::FullLog => "full-log",
            Fault::Symlink => "symlink",
            Fault::PidNamespace => "pid-namespace",
            Fault::StoppedSupervisor => "stopped-supervisor",
            Fault::WrongClock => "wrong-clock",
            Fault::ShortJournal => "short-journal",
            Fault::CopiedDirectory => "copied-directory",
        }
    }

    /// Name of the fault in the ledger.
    pub(super) const fn name(self, target: Target) -> &'static str {
        match (self, target) {
            (Fault::Kill, Target::Executor) => "kill of an executor",
            _ => self.word(),
        }
    }

    /// Faults of a campaign that the journal's location and this host allow.
    pub fn of(lane: Lane, place: Place) -> Vec<Fault> {
        if place != Place::Embedded {
            return vec![Fault::Kill];
        }
        let is_possible = |fault: &&Fault| match fault {
            Fault::Mount | Fault::FullLog | Fault::PidNamespace => rustix::process::geteuid().is_root(),
            Fault::WrongClock => crate::clock::library().is_ok(),
            // An executor has no journal.
            Fault::ShortJournal => lane == Lane::Kills,
            _ => true,
        };
        Fault::ALL.iter().filter(is_possible).copied().collect()
    }

    /// Injects the fault. Afterwards the target runs as usual.
    pub(super) fn put(self, campaign: &mut Campaign) -> Result<()> {
        match self {
            Fault::Kill => {
                campaign.kill();
                campaign.start();
                Ok(())
            }
            Fault::Mount => mounts::put(campaign),
            Fault::CleanEnvironment => supervisors::kill(campaign),
            Fault::StoppedSupervisor => supervisors::stop(campaign),
            Fault::FullLog => full_log::put(campaign),
            Fault::Symlink => lives::by_link(campaign),
            Fault::PidNamespace => lives::in_pid_namespace(campaign),
            Fault::WrongClock => lives::ahead(campaign),
            Fault::CopiedDirectory => lives::on_a_copy(campaign),
            Fault::ShortJournal => journal::shorten(campaign),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for Fault {
    type Err = String;
    fn from_str(text: &str) -> Result<Fault, String> {
        let words: Vec<_> = Fault::ALL.iter().map(|fault| fault.word()).collect();
        let found = Fault::ALL.iter().copied().find(|fault| fault.word() == text);
        found.ok_or_else(|| format!("invalid fault {text:?}: must be one of {}", words.join(", ")))
    }
}

/// Deck that draws each fault once before any repeats.
pub(super) struct Deck<'a> {
    faults: &'a [Fault],
    left: Vec<Fault>,
}

impl Deck<'_> {
    pub(super) fn new(faults: &[Fault]) -> Deck<'_> {
        Deck { faults, left: Vec::new() }
    }

    pub(super) fn draw(&mut self, random: &mut Random) -> Fault {
        if self.left.is_empty() {
            self.left.extend(self.faults);
        }
        let at = random.below(self.left.len() as u64) as usize;
        self.left.swap_remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_drawn_once_before_any_comes_again() {
        let (mut deck, mut random) = (Deck::new(Fault::ALL), Random::new(1));
        for _ in 0..3 {
            let mut drawn: Vec<_> = Fault::ALL.iter().map(|_| deck.draw(&mut random).word()).collect();
            drawn.sort_unstable();
            let mut all: Vec<_> = Fault::ALL.iter().map(|fault| fault.word()).collect();
            all.sort_unstable();
            assert_eq!(drawn, all);
        }
    }
}
