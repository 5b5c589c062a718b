//! Mistakes that can be switched on, to show that the tests find them.
//!
//! Only with the feature `planted`, which no release has: without it [`is`] is a constant, and nothing of a mistake is
//! compiled in. Each is one that somebody could make; where it would be made, the code asks for it by name.

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A mistake.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Bug {
            $($(#[$doc])* $name),*
        }

        impl Bug {
            /// Every one.
            pub const ALL: &[Bug] = &[$(Bug::$name),*];
        }
    };
}

bugs! {
    /// An answer leaves before it is durable.
    AnswersBeforeDurable,
    /// A command leaves before it is durable.
    SpeaksBeforeDurable,
    /// A repeat is answered although the first verdict is not durable.
    RepeatsBeforeDurable,
    /// A key that was used before is decided again.
    DecidesRepeats,
    /// The keys of refused intents are forgotten.
    ForgetsRefusedKeys,
    /// A snapshot does not hold the keys.
    SnapshotWithoutKeys,
    /// A snapshot does not hold what is asked of incarnations.
    SnapshotWithoutCommands,
    /// The fold leaves out the last of many events.
    FoldMissesLast,
    /// `gone` counts whatever it reflects.
    TakesOldGone,
    /// A lost session is taken for the death of what it held.
    LostSessionIsDeath,
    /// A run that does not answer its liveness probe is left as it is.
    LeavesHung,
    /// A run that was ended by its liveness probe is started again though the plan says never.
    RestartsHung,
    /// What does not end in time is taken for dead.
    TimeoutIsDeath,
    /// A deleted replica is forgotten before its run has ended.
    DeletesWithoutProof,
    /// What an incarnation held is given back twice.
    ReleasesTwice,
    /// What an incarnation held is never given back.
    NeverReleases,
    /// Placement does not look at what is held.
    IgnoresHeld,
    /// An incarnation gets the number of its operation.
    ReusesIds,
    /// An approval counts whatever was shown.
    ApprovesAnyHash,
    /// An approval counts although it comes too late.
    ApprovesExpired,
    /// The plan's rule approves what a person should.
    ApprovesByItself,
    /// A deployment that is cancelled waits for what has begun.
    WaitsForAborted,
    /// What was stopped for an update that is aborted stays down.
    LeavesAbortedDown,
    /// An update is aborted although its new run is ready, and the old one was asked to end.
    AbortsPastReturn,
    /// A rollback runs by the plan's latest generation.
    RollsBackToLatest,
    /// A rollback deploys a version that never completed.
    RollsBackToFailed,
    /// A deployment without progress is never called stalled.
    NeverStalls,
    /// Time that a deployment waits for people counts as time without progress.
    StallsForPeople,
    /// A rollback that fails is rolled back.
    RollbackLoops,
    /// A stopped replica is still wanted.
    StopDoesNotLast,
    /// A command that failed is never tried again.
    NeverRetries,
    /// A new decider forgets which commands are to be tried again.
    ForgetsRetries,
    /// What is started has no deadline.
    NoDeadline,
    /// A new decider goes on in the term of the last one.
    SameTermAgain,
    /// A new decider's clock may stand before the last one's.
    ClockGoesBack,
    /// The rule of the journal looks at positions alone.
    ChainIgnoresWriters,
    /// A commit that the journal has no room for is dropped.
    DropsBusyCommit,
    /// A second executor gets a cluster that another one holds.
    TwoHolders,
    /// An executor that looks elsewhere may say what has become of what runs.
    TakesAnyScope,
    /// Objects that are not ours are removed.
    RemovesForeign,
    /// An executor begins work after its lease.
    ActsAfterLease,
    /// An executor starts again what ran once in the same incarnation.
    StartsAgain,
    /// An executor never drops what is over.
    NeverForgets,
    /// An executor that comes back does not say what it has.
    KeepsLevelToItself,
    /// The decider forgets what it was told of a session's end, and keeps the cluster for the lost one.
    KeepsLostSession,
    /// The watermark of the inbox names the last letter that is answered, and not the next.
    WatermarkBehind,
    /// The watermark counts a letter that is still to be answered.
    WatermarkAhead,
    /// A letter below the watermark is answered again.
    AnswersLettersAgain,
    /// A letter that cannot be read leaves no trace.
    LosesBadLetters,
    /// A new decider does not wait for the letters that were there before it.
    RingsBeforeInbox,
    /// What should follow a run on its node begins before that is over.
    StartsBeforeStop,
    /// The run that lost its place is not stopped.
    KeepsOldRun,
    /// A run that follows another one on its node holds nothing that both need, also when that is over.
    FollowerHoldsNothing,
    /// What a disruption or an expunge takes the place of is not looked for a place again.
    ForgetsDisplaced,
    /// Placements go on on nodes of which a disruption is approved.
    PlacesOnDisturbed,
    /// A disruption moves as many replicas of a plan at once as there are.
    ExceedsBudget,
    /// Whoever asked for an operation may approve it, whatever a policy says.
    ApprovesOwn,
    /// A replacement is placed as if its predecessor stayed.
    CountsPredecessor,
    /// A rebalance moves replicas that are as well where they are.
    MovesForNothing,
    /// A policy approves more than it may at once.
    ApprovesTooMany,
    /// A policy approves outside its windows.
    ApprovesAnyTime,
    /// A replica that was stopped is started again by its plan's rule.
    RestartsStopped,
    /// A start by the plan's rule does not wait.
    NoCooldown,
    /// A deployment begins as many operations at once as are approved.
    IgnoresWave,
    /// A deployment goes on while what it brought up is not well.
    NoHealthGate,
    /// A graceful deployment cuts over before all of the new set are ready.
    CutsOverEarly,
    /// What a deployment built beside the old set stays when it fails.
    LeavesNewSet,
    /// A run begins to use a volume that another one uses.
    SharesVolume,
    /// A volume is destroyed while something uses it.
    DestroysUsed,
    /// A run begins to use a volume that is lost.
    UsesLost,
    /// An edit of a plan's policy has no effect before a deployment.
    PolicyWaits,
    /// An edit of a plan's policy makes its replicas of another version.
    PolicyMakesVersion,
    /// A reserved place stays where an edit of the plan's policy forbids it.
    KeepsForbiddenPlace,
    /// A cascade, a drain or an expunge does not wait for the approval that its operations need.
    CascadesAlone,
    /// A plan or a policy that asks for less approval does not wait for any.
    WeakensAlone,
    /// The actor who made an approval request can approve it, whatever a policy requires.
    ApprovesOwnRequest,
    /// A request is approved although it would end something else than was shown.
    ApprovesVoid,
}

/// Switches one on, or all off, for this thread.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    ON.set(bug);
}

#[cfg(feature = "planted")]
thread_local! {
    static ON: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether the mistake is to be made.
#[cfg(feature = "planted")]
pub fn is(bug: Bug) -> bool {
    ON.get() == Some(bug)
}

/// Whether the mistake is to be made: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline]
pub const fn is(_: Bug) -> bool {
    false
}
