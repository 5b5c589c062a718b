//! Effect of one target on an object's state, and the report of that state. Pure; the same for every runtime.
//!
//! A target is *old* if its (revision, attempt) is below that of the last one recorded: the state is reported
//! again, and nothing is done. For any other target:
//!
//! | state | up (ensure) | down (stop, kill) | removed (orphan; kill of a volume) |
//! |---|---|---|---|
//! | none, or target not started | start | tombstone | tombstone |
//! | starting, up | adopt: only the revision rises, and the restart rule is taken over; with another spec: change, or refuse (permanent) where the runtime cannot | stop | stop, then gone |
//! | changing | adopt: the change continues; with yet another spec, or the old one: change | stop | stop, then gone |
//! | up, and could not be changed | adopt; with another spec: change; same target again: report | stop | stop, then gone |
//! | starting, up or changing, and being stopped | refuse (retryable) | stop, perhaps sooner | stop, then gone |
//! | ended | adopt: reported at the new revision; same target again: report | adopt | tombstone |
//! | failed to start | start; same target again: report | tombstone | tombstone |
//! | gone | start; same target again: report | tombstone at the new revision | tombstone |
//!
//! A target of a reboot is as *up*, except that it starts and changes nothing: a running object is reset, a starting or changing one
//! is refused (retryable), a missing one gets a tombstone.
//!
//! A target whose command already had its outcome starts and changes nothing: for it, *start* is *tombstone*
//! and *change* is *adopt*. `Gone` may be reported only after the tombstone is recorded. A target is recorded
//! before its work starts. A crash between the two leaves a target that was not started, or an object that is
//! changing.
//!
//! *Change* gives a running object another spec, in place. It ends as a start does, ready or failed, in one
//! report at the target's revision. If the change fails, the object runs on as before. Such a target is
//! answered with its failure until a higher one arrives, or the same one whose command had its outcome. The
//! running object is not what the target asked for, so only an end may be reported at its revision. An object
//! that is not up yet when another spec arrives is started with that spec. [`UpdateSupport`] lists what
//! runtimes can do.
//!
//! A volume is an object without processes. *Start* creates it, *up* means that it exists, *stop* destroys it
//! with its data. A volume has *ended* if it disappeared although no command asked for that. It is never
//! stopped on request ([`misfit`]) and never changed: an existing volume fits every spec. An ensure with
//! another spec is therefore *adopt*, and the newest spec is recorded.

use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::id::ObjectId;
use chancery_events::observation::{
    IncarnationExit, ObjectReport, ObservedState, ProcessInfo, ProcessStatus, RetryClass,
};
use chancery_events::protocol::{Command, CommandStatus, ObjectSpec};
use serde::{Deserialize, Serialize};

/// Target of an object, set by a command or an orphan resolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectTarget {
    /// Revision of the target; a higher revision supersedes all lower ones.
    pub revision: u32,
    /// Attempt at the revision, from 1.
    pub attempt: u32,
    /// State that the object must reach.
    pub aim: TargetGoal,
    /// Whether the guests of the object must be reset once, and the command still waits for its outcome.
    #[serde(default)]
    pub is_reboot: bool,
    /// Whether the command still waits for its outcome.
    pub status: CommandStatus,
    /// Time from the request to end until the kill, also when a sibling's end stops the object.
    pub grace: Duration,
}

/// Support for giving a running object another spec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdateSupport {
    /// Running processes are changed.
    InPlace,
    /// Running processes stay as started; another spec needs another incarnation.
    Never,
}

/// State that an object must reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetGoal {
    /// Running; for a volume, existing.
    Up,
    /// Ended; how the object ended is kept. Not for volumes.
    Down,
    /// Ended, only a tombstone is kept.
    Removed,
}

impl ObjectTarget {
    /// Returns the target that a command sets.
    pub fn of(command: &Command) -> ObjectTarget {
        let (aim, grace) = match (command.effect, command.object) {
            (CommandEffect::Ensure | CommandEffect::Reboot, _) => (TargetGoal::Up, command.grace),
            (CommandEffect::Stop, _) => (TargetGoal::Down, command.grace),
            (CommandEffect::Kill, ObjectId::Incarnation(_)) => (TargetGoal::Down, Duration::ZERO),
            (CommandEffect::Kill, ObjectId::Volume(_)) => (TargetGoal::Removed, Duration::ZERO),
        };
        ObjectTarget {
            revision: command.revision,
            attempt: command.attempt,
            aim,
            is_reboot: command.effect == CommandEffect::Reboot && command.status == CommandStatus::Pending,
            status: command.status,
            grace,
        }
    }

    /// Returns the target that removes an orphan.
    pub fn removal(revision: u32) -> ObjectTarget {
        let (aim, command_status, grace) =
            (TargetGoal::Removed, CommandStatus::Pending, Duration::from_secs(10));
        ObjectTarget { revision, attempt: u32::MAX, aim, is_reboot: false, status: command_status, grace }
    }

    /// Whether the target may start a missing object.
    pub(crate) fn may_start(&self) -> bool {
        self.aim == TargetGoal::Up && self.status == CommandStatus::Pending && !self.is_reboot
    }

    /// Returns the fencing rank: a target below another one changes nothing.
    pub(crate) fn rank(&self) -> (u32, u32) {
        (self.revision, self.attempt)
    }
}

/// Durable state of an object in a runtime.
#[derive(Clone, PartialEq, Debug)]
pub struct KnownObject {
    /// Highest target recorded.
    pub order: ObjectTarget,
    /// Spec of the object; `None` for an object that was removed unseen.
    pub spec: Option<ObjectSpec>,
    /// State of the object.
    pub state: ObjectState,
}

/// State of an object in its runtime.
#[derive(Clone, PartialEq, Debug)]
pub enum ObjectState {
    /// Target recorded, nothing started.
    Accepted,
    /// The start is in progress: parts of the object may exist.
    Starting {
        /// Processes, as far as known.
        processes: Vec<ProcessInfo>,
    },
    /// Everything that the spec asks for was started.
    Up {
        /// All processes of the object.
        processes: Vec<ProcessInfo>,
        /// Whether the incarnation has been ready before.
        before: ReadyHistory,
    },
    /// Running, and being changed to the recorded spec.
    Changing {
        /// Processes from before the change.
        processes: Vec<ProcessInfo>,
    },
    /// Running as before: the change to the last target's spec failed. The running spec is recorded.
    Unchanged {
        /// All processes of the object.
        processes: Vec<ProcessInfo>,
        /// Whether the incarnation has been ready before.
        before: ReadyHistory,
        /// Reason of the failure.
        message: String,
        /// Whether a retry can help.
        retry: RetryClass,
    },
    /// Ended after running; only the record of the end exists.
    Ended {
        /// Exit of the object.
        exit: IncarnationExit,
        /// All processes of the object.
        processes: Vec<ProcessInfo>,
    },
    /// Start failed; nothing exists.
    Failed {
        /// Reason of the failure.
        message: String,
        /// Whether a retry can help.
        retry: RetryClass,
    },
    /// Nothing exists but a tombstone.
    Gone,
}

impl ObjectState {
    /// Whether the object has ended: nothing of it exists.
    pub fn is_over(&self) -> bool {
        match self {
            ObjectState::Accepted
            | ObjectState::Starting { .. }
            | ObjectState::Up { .. }
            | ObjectState::Changing { .. }
            | ObjectState::Unchanged { .. } => false,
            ObjectState::Ended { .. } | ObjectState::Failed { .. } | ObjectState::Gone => true,
        }
    }

    /// Marks the status of all processes that have not ended as unknown: they are no longer visible.
    pub(crate) fn lose_sight(&mut self) {
        let (ObjectState::Starting { processes }
        | ObjectState::Up { processes, .. }
        | ObjectState::Changing { processes }
        | ObjectState::Unchanged { processes, .. }) = self
        else {
            return;
        };
        lose_sight(processes);
    }

    /// Whether parts of the object may exist.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            ObjectState::Starting { .. }
            | ObjectState::Up { .. }
            | ObjectState::Changing { .. }
            | ObjectState::Unchanged { .. } => true,
            ObjectState::Accepted
            | ObjectState::Ended { .. }
            | ObjectState::Failed { .. }
            | ObjectState::Gone => false,
        }
    }
}

/// Marks the status of all processes that have not ended as unknown.
pub(crate) fn lose_sight(processes: &mut [ProcessInfo]) {
    for process in processes.iter_mut().filter(|process| !is_ended(&process.status)) {
        process.status = ProcessStatus::Unknown;
    }
}

/// Whether a process with this status has ended.
pub(crate) fn is_ended(status: &ProcessStatus) -> bool {
    matches!(status, ProcessStatus::OomKilled | ProcessStatus::Exited { .. } | ProcessStatus::Signaled { .. })
}

/// Whether an incarnation has been ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadyHistory {
    /// The incarnation has never been ready.
    NeverReady,
    /// The incarnation has been ready at least once.
    Ready,
}

/// Action to take for a target.
#[derive(Clone, PartialEq, Debug)]
pub enum ReconcileStep {
    /// Record the target, then start what the spec asks for.
    Start,
    /// Record the target: the existing object meets it.
    Adopt,
    /// Record the target and its spec, then change the running object to that spec.
    Change,
    /// Record the target, then reset the guests, unless they were reset for this target already.
    Reboot,
    /// Record the target, then ask all processes to end, and kill them after the grace.
    Stop(Duration),
    /// Ensure that nothing can start any more, record the tombstone, drop the rest.
    WriteTombstone,
    /// Change nothing, and report the state again.
    ReportAgain,
    /// Change nothing, and report that the target cannot be met.
    Refuse(&'static str, RetryClass),
}

/// Reason why a runtime without guests refuses a reboot.
pub const NO_VIRTUAL_MACHINE: &str = "cannot reboot incarnation: it is no virtual machine";

/// Returns the reason why no runtime can carry out a command; `None` if a runtime can.
pub fn misfit(command: &Command) -> Option<&'static str> {
    match (command.object, &command.spec, command.effect) {
        (ObjectId::Volume(_), ObjectSpec::Volume(_), CommandEffect::Stop | CommandEffect::Reboot) => {
            Some("cannot stop or reboot volume: only ensure and kill apply")
        }
        (ObjectId::Volume(_), ObjectSpec::Volume(_), CommandEffect::Ensure | CommandEffect::Kill)
        | (ObjectId::Incarnation(_), ObjectSpec::Incarnation(_), _) => None,
        (ObjectId::Volume(_), ObjectSpec::Incarnation(_), _)
        | (ObjectId::Incarnation(_), ObjectSpec::Volume(_), _) => {
            Some("invalid spec: must match the kind of the object")
        }
    }
}

/// Returns the step for `order`, which comes with `spec`, on a runtime that supports `changes`.
pub fn step(
    present: Option<&KnownObject>,
    order: &ObjectTarget,
    spec: Option<&ObjectSpec>,
    changes: UpdateSupport,
) -> ReconcileStep {
    // A command with an outcome was met by a start. An incarnation is never started twice.
    let begin = if order.may_start() { ReconcileStep::Start } else { ReconcileStep::WriteTombstone };
    let Some(present) = present else {
        return begin;
    };
    if order.rank() < present.order.rank() {
        return ReconcileStep::ReportAgain;
    }
    let again = order.rank() == present.order.rank();
    let is_open = order.status == CommandStatus::Pending;
    let alive = present.state.is_alive();
    let as_it_runs = runs_as(present.spec.as_ref(), spec);
    match (&present.state, order.aim) {
        (_, TargetGoal::Up) if alive && present.order.aim != TargetGoal::Up => {
            ReconcileStep::Refuse("cannot start object: it is being ended", RetryClass::Retryable)
        }
        // Repeated, because a crash may have come between recording the target and the reset.
        (ObjectState::Up { .. } | ObjectState::Unchanged { .. }, _) if order.is_reboot => {
            ReconcileStep::Reboot
        }
        (ObjectState::Starting { .. } | ObjectState::Changing { .. }, _) if order.is_reboot => {
            ReconcileStep::Refuse("cannot reboot object: it is being started", RetryClass::Retryable)
        }
        (ObjectState::Unchanged { .. }, TargetGoal::Up) if again && is_open => ReconcileStep::ReportAgain,
        (_, TargetGoal::Up) if alive && is_open && !as_it_runs => match changes {
            UpdateSupport::InPlace => ReconcileStep::Change,
            UpdateSupport::Never => ReconcileStep::Refuse(
                "cannot update running object: its runtime supports no updates in place",
                RetryClass::Permanent,
            ),
        },
        // Also the same target, once its command no longer waits for an outcome.
        (ObjectState::Unchanged { .. }, TargetGoal::Up) => ReconcileStep::Adopt,
        (ObjectState::Accepted, TargetGoal::Up) => begin,
        (_, TargetGoal::Up) if again && alive && as_it_runs && spec != present.spec.as_ref() => {
            ReconcileStep::Adopt
        }
        (_, TargetGoal::Up) if again => ReconcileStep::ReportAgain,
        (ObjectState::Failed { .. } | ObjectState::Gone, TargetGoal::Up) => begin,
        (
            ObjectState::Starting { .. }
            | ObjectState::Up { .. }
            | ObjectState::Changing { .. }
            | ObjectState::Ended { .. },
            TargetGoal::Up,
        ) => ReconcileStep::Adopt,
        // Repeated, because a crash may have come between recording the target and asking.
        (
            ObjectState::Starting { .. }
            | ObjectState::Up { .. }
            | ObjectState::Changing { .. }
            | ObjectState::Unchanged { .. },
            TargetGoal::Down | TargetGoal::Removed,
        ) => ReconcileStep::Stop(order.grace),
        (ObjectState::Ended { .. }, TargetGoal::Down) => ReconcileStep::Adopt,
        (ObjectState::Gone, TargetGoal::Down | TargetGoal::Removed) if again => ReconcileStep::ReportAgain,
        (
            ObjectState::Accepted | ObjectState::Failed { .. } | ObjectState::Gone,
            TargetGoal::Down | TargetGoal::Removed,
        ) => ReconcileStep::WriteTombstone,
        (ObjectState::Ended { .. }, TargetGoal::Removed) => ReconcileStep::WriteTombstone,
    }
}

fn runs_as(there: Option<&ObjectSpec>, brought: Option<&ObjectSpec>) -> bool {
    match (there, brought) {
        (Some(there), Some(brought)) => there.is_as(brought),
        (there, brought) => there.is_none() && brought.is_none(),
    }
}

/// Returns the spec to record with a target: the new spec if the object is started or changed. Otherwise an
/// existing object keeps its spec, except for what may be adopted. An object that runs alike takes over the
/// restart rule; a volume takes over the whole spec.
pub fn accepted(
    step: &ReconcileStep,
    there: Option<ObjectSpec>,
    brought: Option<&ObjectSpec>,
) -> Option<ObjectSpec> {
    let is_started = matches!(step, ReconcileStep::Start | ReconcileStep::Change);
    if !is_started && there.is_some() && !runs_as(there.as_ref(), brought) { there } else { brought.cloned() }
}

/// Report with a message of its own, or in lists only.
#[derive(Clone, PartialEq, Debug)]
pub enum StatusUpdate {
    /// Change, or outcome.
    Change(ObjectReport),
    /// State between a target and its outcome: listed, so that the object does not count as absent.
    ListOnly(ObjectReport),
}

/// Returns the report of an object's state.
pub fn report(object: ObjectId, present: &KnownObject) -> StatusUpdate {
    let ObjectTarget { revision, aim, .. } = present.order;
    let report = |revision, observed| ObjectReport { object, revision, observed };
    // The state reflects a lower revision than that of the target.
    let below = |observed| StatusUpdate::ListOnly(report(revision.saturating_sub(1), observed));
    let change = |observed| StatusUpdate::Change(report(revision, observed));
    match &present.state {
        ObjectState::Accepted => below(ObservedState::NotReady { processes: Vec::new() }),
        ObjectState::Starting { processes } | ObjectState::Changing { processes } => {
            below(ObservedState::NotReady { processes: processes.clone() })
        }
        // An object that is still ending reflects no revision of the target that ends it.
        ObjectState::Up { processes, before } | ObjectState::Unchanged { processes, before, .. }
            if aim != TargetGoal::Up =>
        {
            below(observed_state(processes, *before))
        }
        ObjectState::Up { processes, before } => change(observed_state(processes, *before)),
        ObjectState::Ended { exit, processes } => {
            change(ObservedState::Ended { exit: exit.clone(), processes: processes.clone() })
        }
        ObjectState::Unchanged { message, retry, .. } | ObjectState::Failed { message, retry } => {
            change(ObservedState::Failed { message: message.clone(), retry: *retry })
        }
        ObjectState::Gone => change(ObservedState::Gone),
    }
}

/// Returns the observed state of started processes.
fn observed_state(processes: &[ProcessInfo], before: ReadyHistory) -> ObservedState {
    let processes = processes.to_vec();
    let all_ready = processes.iter().all(|p| p.status == ProcessStatus::Ready);
    match before {
        _ if all_ready => ObservedState::Ready { processes },
        ReadyHistory::NeverReady => ObservedState::Started { processes },
        ReadyHistory::Ready => ObservedState::NotReady { processes },
    }
}

#[cfg(test)]
mod tests;
