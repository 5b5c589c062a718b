//! Everything that may go wrong in a simulated world, and how often it did.

use std::collections::BTreeMap;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $word:literal),* $(,)?) => {
        /// Something that may go wrong. A seed draws which of them do.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Fault {
            $($(#[$doc])* $name),*
        }

        impl Fault {
            /// Every one.
            pub const ALL: &[Fault] = &[$(Fault::$name),*];

            /// Its name in stories and ledgers.
            pub const fn word(self) -> &'static str {
                match self { $(Fault::$name => $word),* }
            }
        }
    };
}

faults! {
    /// A server dies between any two steps; what it had not made durable is lost, in whole or from some commit on.
    ServerCrash = "server crash",
    /// A server stands still and wakes later, believing what it believed.
    ServerPause = "server pause",
    /// A second server decides while the first believes that it does.
    SecondDecider = "second decider",
    /// A server starts from a snapshot of any age.
    OldSnapshot = "old snapshot",
    /// A server's wall clock leaps, forth or back.
    ClockLeap = "clock leap",
    /// An append whose outcome its writer is not told.
    AmbiguousAppend = "ambiguous append",
    /// What a dead or overtaken writer had sent lands when nobody expects it.
    LateAppend = "late append",
    /// A record comes a second time.
    DuplicateRecord = "duplicate record",
    /// Something in the log that is no record, or not one of this fleet's.
    Noise = "noise",
    /// The journal takes no more for a while.
    FullJournal = "full journal",
    /// A connection between an executor and a server breaks, with some of what was on its way.
    LinkBreak = "link break",
    /// A connection is gone for the executor, and the server is not told.
    HalfOpen = "half-open link",
    /// A message comes twice.
    DuplicateMessage = "duplicate message",
    /// An executor dies between any two steps.
    ExecutorCrash = "executor crash",
    /// An executor stands still and wakes later, perhaps after its lease.
    ExecutorPause = "executor pause",
    /// An executor says goodbye and comes again.
    ExecutorLeave = "executor leave",
    /// Another executor takes over the scope of one that is gone.
    ExecutorReplaced = "executor replaced",
    /// An executor is started over another folder than before, while what it ran goes on.
    OtherFolder = "other folder",
    /// A piece of work is done twice.
    WorkTwice = "work done twice",
    /// A piece of work is not done: the orchestrator does not answer.
    WorkFails = "work failed",
    /// Starting fails, times out although it succeeds, is slow, succeeds in part, or what runs ends by itself.
    BadBehaviour = "bad behaviour",
    /// What runs dies.
    Strike = "strike",
    /// A process of what runs is not well for a while, and goes on.
    Unwell = "unwell",
    /// There is an object on a machine that is another fleet's.
    ForeignObject = "foreign object",
    /// A machine loses everything.
    Wipe = "wipe",
    /// A list is old when it arrives.
    StaleList = "stale list",
    /// A change is not told until the next look around.
    MissedChange = "missed change",
    /// A request is lost on its way.
    LostRequest = "lost request",
    /// An answer is lost on its way.
    LostAnswer = "lost answer",
    /// A request is sent again although it was answered, or before it could be.
    RepeatedRequest = "repeated request",
    /// A request that cannot hold: of things that are not, of versions long past, with a key used before.
    BadRequest = "bad request",
    /// Nothing happens for so long that deadlines pass.
    LongSilence = "long silence",
    /// A letter that cannot be read, asks for what it may not, or comes a second time.
    BadLetter = "bad letter",
    /// Letters are read again that were read before.
    LetterAgain = "letter read again",
}

impl Fault {
    /// Whether it needs an inbox.
    pub const fn is_of_inbox(self) -> bool {
        matches!(self, Fault::BadLetter | Fault::LetterAgain)
    }
}

/// How often things happened.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    /// One more.
    pub fn add(&mut self, what: &'static str) {
        self.add_many(what, 1);
    }

    /// So many more.
    pub fn add_many(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// All of another's.
    pub fn merge(&mut self, other: &Counts) {
        for (what, count) in &other.0 {
            self.add_many(what, *count);
        }
    }

    /// How often.
    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// What was counted, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, count)| (*what, *count))
    }
}
