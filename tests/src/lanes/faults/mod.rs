//! Faults of the campaigns `kills` and `executors`, each with what it may cause. Everything else is a violation.
//!
//! | fault | what is done | what it may cause |
//! |---|---|---|
//! | `kill` | `kill -9` of the server or executor at a random moment, as in each of the others | – |
//! | `mount` | a bind mount, a mount in a mount, or one that a payload makes, in a working directory that is removed | the directory stays while the mount does |
//! | `clean-environment` | supervisors are killed, whose payloads are shells and daemons with empty environments | exits that nobody saw |
//! | `full-log` | the file system of the data directory, logs included, is full or read-only while payloads end | the server ends, or does not start |
//! | `symlink` | the data directory is named by a link in one life and by its real path in the next, and supervisors are killed | exits that nobody saw |
//! | `pid-namespace` | a life in another PID namespace | a start that is refused; incarnations of unknown state |
//! | `stopped-supervisor` | supervisors get SIGSTOP while what they run is to end | – |
//! | `wrong-clock` | a life days or years ahead | years ahead: a start that is refused |
//! | `short-journal` | the last segment is missing, empty, zeroed or flipped in its last bytes | a start that is refused until the segment is back |
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

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// `kill -9`, and nothing else.
    Kill,
    /// A mount in a working directory.
    Mount,
    /// Supervisors die whose payloads cannot be found by their environment.
    CleanEnvironment,
    /// A full or read-only file system with the log on it.
    FullLog,
    /// A data directory reached by a link.
    Symlink,
    /// A second PID namespace over the same directory.
    PidNamespace,
    /// Supervisors stand still.
    StoppedSupervisor,
    /// A start with a clock that is ahead.
    WrongClock,
    /// A journal without its last segment.
    ShortJournal,
    /// A copy of the data directory.
    CopiedDirectory,
}

impl Fault {
    /// Every one.
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

    /// The word for it.
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

    /// As the ledger names it.
    pub(super) const fn name(self, target: Target) -> &'static str {
        match (self, target) {
            (Fault::Kill, Target::Executor) => "kill of an executor",
            _ => self.word(),
        }
    }

    /// Those that a lane has where the journal is there, and that this host allows.
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

    /// Puts it in. Afterwards the target runs as usual.
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

/// Draws every fault once before any comes again.
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
