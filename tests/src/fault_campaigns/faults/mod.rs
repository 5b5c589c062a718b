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

mod epochs;
mod full_log;
mod journal;
mod mounts;
mod supervisors;

use std::fmt;
use std::str::FromStr;

use anyhow::Result;

pub(super) use supervisors::signal;

use super::CampaignKind;
use super::campaign::{CampaignTarget, RunningCampaign};
use crate::JournalBackend;
use crate::sim::RandomSource;

/// Fault; the module's table lists its permitted effects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
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

impl InjectedFault {
    /// All faults.
    pub const ALL: &[InjectedFault] = &[
        InjectedFault::Kill,
        InjectedFault::Mount,
        InjectedFault::CleanEnvironment,
        InjectedFault::FullLog,
        InjectedFault::Symlink,
        InjectedFault::PidNamespace,
        InjectedFault::StoppedSupervisor,
        InjectedFault::WrongClock,
        InjectedFault::ShortJournal,
        InjectedFault::CopiedDirectory,
    ];

    /// Name of the fault.
    pub const fn word(self) -> &'static str {
        match self {
            InjectedFault::Kill => "kill",
            InjectedFault::Mount => "mount",
            InjectedFault::CleanEnvironment => "clean-environment",
            InjectedFault::FullLog => "full-log",
            InjectedFault::Symlink => "symlink",
            InjectedFault::PidNamespace => "pid-namespace",
            InjectedFault::StoppedSupervisor => "stopped-supervisor",
            InjectedFault::WrongClock => "wrong-clock",
            InjectedFault::ShortJournal => "short-journal",
            InjectedFault::CopiedDirectory => "copied-directory",
        }
    }

    /// Name of the fault in the ledger.
    pub(super) const fn name(self, target: CampaignTarget) -> &'static str {
        match (self, target) {
            (InjectedFault::Kill, CampaignTarget::Executor) => "kill of an executor",
            _ => self.word(),
        }
    }

    /// Faults of a campaign that the journal's location and this host allow.
    pub fn of(campaign: CampaignKind, backend: JournalBackend) -> Vec<InjectedFault> {
        if backend != JournalBackend::Embedded {
            return vec![InjectedFault::Kill];
        }
        let is_possible = |fault: &&InjectedFault| match fault {
            InjectedFault::Mount | InjectedFault::FullLog | InjectedFault::PidNamespace => {
                rustix::process::geteuid().is_root()
            }
            InjectedFault::WrongClock => crate::clock::library().is_ok(),
            // An executor has no journal.
            InjectedFault::ShortJournal => campaign == CampaignKind::Kills,
            _ => true,
        };
        InjectedFault::ALL.iter().filter(is_possible).copied().collect()
    }

    /// Injects the fault. Afterwards the target runs as usual.
    pub(super) fn put(self, campaign: &mut RunningCampaign) -> Result<()> {
        match self {
            InjectedFault::Kill => {
                campaign.kill();
                campaign.start();
                Ok(())
            }
            InjectedFault::Mount => mounts::put(campaign),
            InjectedFault::CleanEnvironment => supervisors::kill(campaign),
            InjectedFault::StoppedSupervisor => supervisors::stop(campaign),
            InjectedFault::FullLog => full_log::put(campaign),
            InjectedFault::Symlink => epochs::by_link(campaign),
            InjectedFault::PidNamespace => epochs::in_pid_namespace(campaign),
            InjectedFault::WrongClock => epochs::ahead(campaign),
            InjectedFault::CopiedDirectory => epochs::on_a_copy(campaign),
            InjectedFault::ShortJournal => journal::shorten(campaign),
        }
    }
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for InjectedFault {
    type Err = String;
    fn from_str(text: &str) -> Result<InjectedFault, String> {
        let words: Vec<_> = InjectedFault::ALL.iter().map(|fault| fault.word()).collect();
        let found = InjectedFault::ALL.iter().copied().find(|fault| fault.word() == text);
        found.ok_or_else(|| format!("invalid fault {text:?}: must be one of {}", words.join(", ")))
    }
}

/// Deck that draws each fault once before any repeats.
pub(super) struct FaultDeck<'a, F> {
    faults: &'a [F],
    left: Vec<F>,
}

impl<F: Copy> FaultDeck<'_, F> {
    pub(super) fn new(faults: &[F]) -> FaultDeck<'_, F> {
        FaultDeck { faults, left: Vec::new() }
    }

    pub(super) fn draw(&mut self, random: &mut RandomSource) -> F {
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
    fn every_fault_is_drawn_once_before_any_is_repeated() {
        let (mut deck, mut random) = (FaultDeck::new(InjectedFault::ALL), RandomSource::new(1));
        for _ in 0..3 {
            let mut drawn: Vec<_> =
                InjectedFault::ALL.iter().map(|_| deck.draw(&mut random).word()).collect();
            drawn.sort_unstable();
            let mut all: Vec<_> = InjectedFault::ALL.iter().map(|fault| fault.word()).collect();
            all.sort_unstable();
            assert_eq!(drawn, all);
        }
    }
}
