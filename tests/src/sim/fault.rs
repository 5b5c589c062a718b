//! Faults of simulated worlds, and their counts.

use std::collections::BTreeMap;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $word:literal),* $(,)?) => {
        /// Possible fault. The seed of a world draws the allowed ones.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum SimulatedFault {
            $($(#[$doc])* $name),*
        }

        impl SimulatedFault {
            /// All faults.
            pub const ALL: &[SimulatedFault] = &[$(SimulatedFault::$name),*];

            /// Name of the fault in traces and ledgers.
            pub const fn word(self) -> &'static str {
                match self { $(SimulatedFault::$name => $word),* }
            }
        }
    };
}

faults! {
    /// A server dies between any two steps; non-durable commits are lost, all or from one commit on.
    ServerCrash = "server crash",
    /// A server is suspended and resumes later, with its old beliefs.
    ServerPause = "server pause",
    /// A second server becomes leader while the first believes that it still is.
    SecondDecider = "second decider",
    /// A server starts from a snapshot of any age.
    OldSnapshot = "old snapshot",
    /// A server's wall clock jumps, forward or back.
    ClockJump = "clock jump",
    /// An append whose outcome its writer does not learn.
    AmbiguousAppend = "ambiguous append",
    /// An append of a dead or fenced writer lands unexpectedly late.
    LateAppend = "late append",
    /// A record is stored a second time.
    DuplicateRecord = "duplicate record",
    /// Bytes in the log that are no record, or not of this fleet.
    InvalidRecord = "invalid record",
    /// The journal takes nothing more for a while.
    FullJournal = "full journal",
    /// A channel between an executor and a server breaks, with some messages in flight.
    ChannelBreak = "channel break",
    /// A channel is closed for the executor, and the server is not notified.
    HalfOpen = "half-open channel",
    /// A message arrives twice.
    DuplicateMessage = "duplicate message",
    /// An executor dies between any two steps.
    ExecutorCrash = "executor crash",
    /// An executor is suspended and resumes later, perhaps after its lease.
    ExecutorPause = "executor pause",
    /// An executor leaves and returns.
    ExecutorLeave = "executor leave",
    /// Another executor takes over the executor store of one that ended.
    ExecutorReplaced = "executor replaced",
    /// An executor is started with another directory, while its processes keep running.
    OtherDirectory = "other directory",
    /// A work item is done twice.
    WorkTwice = "work done twice",
    /// A work item is not done: the orchestrator does not answer.
    WorkFails = "work failed",
    /// A start fails, times out despite success, is slow or partial, or a process ends on its own.
    BadBehaviour = "bad behaviour",
    /// A running incarnation dies.
    Strike = "strike",
    /// A process is not ready for a while, and continues.
    Unwell = "unwell",
    /// A machine has an object of another fleet.
    ForeignObject = "foreign object",
    /// A machine loses everything.
    Wipe = "wipe",
    /// A list is old when it arrives.
    StaleList = "stale list",
    /// A change is not reported until the next list.
    MissedChange = "missed change",
    /// A request is lost in flight.
    LostRequest = "lost request",
    /// An answer is lost in flight.
    LostAnswer = "lost answer",
    /// A request is sent again although it was answered, or before it could be.
    RepeatedRequest = "repeated request",
    /// A request must be refused: for missing entities, outdated versions, or a key used before.
    BadRequest = "bad request",
    /// Nothing happens until deadlines pass.
    LongSilence = "long silence",
    /// An inbox message cannot be read, requests what it must not, or comes a second time.
    BadMessage = "bad inbox message",
    /// Inbox messages are read again.
    MessageAgain = "inbox message read again",
    /// The API of a Kubernetes cluster does not answer for minutes.
    ApiSilence = "silent API",
    /// A write of an executor of pods arrives late: after its sender has given up, has ended or was taken over.
    LateRequest = "late request",
    /// A pod or a claim exists for long after its deletion was requested.
    StuckDeletion = "stuck deletion",
    /// A second executor takes over the executor store of one that sleeps or continues.
    SecondExecutor = "second executor",
}

impl SimulatedFault {
    /// Whether the fault needs an inbox.
    pub const fn is_of_inbox(self) -> bool {
        matches!(self, SimulatedFault::BadMessage | SimulatedFault::MessageAgain)
    }

    /// Whether the fault needs a Kubernetes cluster.
    pub const fn is_of_kubernetes(self) -> bool {
        matches!(
            self,
            SimulatedFault::ApiSilence
                | SimulatedFault::LateRequest
                | SimulatedFault::StuckDeletion
                | SimulatedFault::SecondExecutor
        )
    }
}

/// Counts of occurrences, by name.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct OccurrenceCounts(BTreeMap<&'static str, u64>);

impl OccurrenceCounts {
    /// Adds one occurrence.
    pub fn add(&mut self, what: &'static str) {
        self.add_many(what, 1);
    }

    /// Adds occurrences.
    pub fn add_many(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &OccurrenceCounts) {
        for (what, count) in &other.0 {
            self.add_many(what, *count);
        }
    }

    /// Returns a count; 0 if missing.
    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Returns all counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, count)| (*what, *count))
    }
}
