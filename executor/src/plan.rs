//! What one order means for what is there, and what is to be reported of it. Pure; the same for every runtime.
//!
//! An order is *old* if its (revision, attempt) is below that of the last one recorded: it is answered with what is
//! there, and nothing is done. Any other:
//!
//! | there is | up (ensure) | down (stop, kill) | removed (judged; of a volume, kill) |
//! |---|---|---|---|
//! | nothing, or an order that was not begun | start | bury | bury |
//! | starting, up | adopt: only the revision rises, and the rule of starting again is taken over; with another spec: change, or fail, never, where the runtime cannot | end | end, then gone |
//! | being changed | adopt: it goes on; with yet another spec, or the old one: change | end | end, then gone |
//! | up, and could not be changed | adopt; with another spec: change; the same order again: answer | end | end, then gone |
//! | starting, up, being changed, and being ended | fails, retry | end, perhaps sooner | end, then gone |
//! | ended | adopt: it is reported at the new revision; the same order again: answer | adopt | bury |
//! | failed to start | start; the same order again: answer | bury | bury |
//! | gone | start; the same order again: answer | bury: the tombstone rises | bury |
//!
//! An order that had its outcome before starts and changes nothing: *start* is *bury* for it, and *change* is *adopt*.
//! *Bury* records the tombstone; `Gone` may be reported only after that. An order is recorded before it is begun, so
//! a crash between the two leaves one "that was not begun", or is "being changed".
//!
//! *Change* gives what runs another spec, in place. It ends as a start does, ready or failed, in one report at the
//! revision of its order; but when it fails, what ran before runs on as it was. That order is then answered with its
//! failure until a higher one comes, or it comes again as one that had its outcome: what runs is not what it asked for,
//! so nothing else may be reported at its revision but an end. What has not come up yet when another spec comes is
//! started with that one. Which runtimes can change what runs is [`Changes`].
//!
//! A volume is an object without processes: *start* makes it, *up* is that it is there, *end* destroys it with all that is
//! in it, and it is *ended* when it was there and is not any more, though nobody ordered that. It is never stopped
//! ([`misfit`]), and never changed: every spec is right for what is there, so that an ensure with another one is *adopt*,
//! and the newest is recorded.

use std::time::Duration;

use chancery_events::fact::Effect;
use chancery_events::id::ObjectId;
use chancery_events::observation::{Exit, Hope, Process, ProcessStatus, Report, Saw};
use chancery_events::protocol::{Command, ObjectSpec, Standing};
use serde::{Deserialize, Serialize};

/// What is wanted of an object, by a command or a judgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Order {
    /// A higher one closes all lower ones.
    pub revision: u32,
    /// Which attempt at it, from 1.
    pub attempt: u32,
    /// What.
    pub aim: Aim,
    /// Whether it still waits for its outcome.
    pub standing: Standing,
    /// From asking until killing, also when a sibling's end ends it.
    pub grace: Duration,
}

/// Whether a runtime can give what runs another spec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changes {
    /// It can.
    InPlace,
    /// What runs stays as it was started: another spec takes another incarnation.
    Never,
}

/// How an object is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// Running; of a volume, there.
    Up,
    /// Ended; how it ended is kept. Not of volumes.
    Down,
    /// Ended, and nothing kept but a tombstone.
    Removed,
}

impl Order {
    /// The order that a command gives.
    pub fn of(command: &Command) -> Order {
        let (aim, grace) = match (command.effect, command.object) {
            (Effect::Ensure, _) => (Aim::Up, command.grace),
            (Effect::Stop, _) => (Aim::Down, command.grace),
            (Effect::Kill, ObjectId::Incarnation(_)) => (Aim::Down, Duration::ZERO),
            (Effect::Kill, ObjectId::Volume(_)) => (Aim::Removed, Duration::ZERO),
        };
        Order { revision: command.revision, attempt: command.attempt, aim, standing: command.standing, grace }
    }

    /// The removal of an object that was judged.
    pub fn removal(revision: u32) -> Order {
        let (aim, standing, grace) = (Aim::Removed, Standing::Open, Duration::from_secs(10));
        Order { revision, attempt: u32::MAX, aim, standing, grace }
    }

    /// Whether it may start what is not there.
    pub(crate) fn may_start(&self) -> bool {
        self.aim == Aim::Up && self.standing == Standing::Open
    }

    /// What fences: an order below another one changes nothing.
    pub(crate) fn rank(&self) -> (u32, u32) {
        (self.revision, self.attempt)
    }
}

/// What a runtime durably knows of an object.
#[derive(Clone, PartialEq, Debug)]
pub struct Present {
    /// The highest order recorded.
    pub order: Order,
    /// What it is; not known of an object that was removed unseen.
    pub spec: Option<ObjectSpec>,
    /// What is there.
    pub state: State,
}

/// What is there of an object.
#[derive(Clone, PartialEq, Debug)]
pub enum State {
    /// Nothing: the order was recorded and not begun.
    Accepted,
    /// Some of it may exist.
    Starting {
        /// As far as they are known.
        processes: Vec<Process>,
    },
    /// Everything that the spec asks for was started.
    Up {
        /// Each process.
        processes: Vec<Process>,
        /// Whether it has been ready before.
        before: Before,
    },
    /// It is up, and is being given the spec that is recorded.
    Changing {
        /// Those that were there before.
        processes: Vec<Process>,
    },
    /// It is up as it was: it could not be given the spec that its last order brought. The one that is recorded is
    /// that of what runs.
    Unchanged {
        /// Each process.
        processes: Vec<Process>,
        /// Whether it has been ready before.
        before: Before,
        /// Why.
        message: String,
        /// Whether it is worth trying again.
        hope: Hope,
    },
    /// It ran, and nothing of it exists any more but how it ended.
    Ended {
        /// How.
        exit: Exit,
        /// Each process.
        processes: Vec<Process>,
    },
    /// It could not be started, and nothing of it exists.
    Failed {
        /// Why.
        message: String,
        /// Whether it is worth trying again.
        hope: Hope,
    },
    /// Nothing, and a tombstone.
    Gone,
}

impl State {
    /// Whether it was carried out to its end: nothing of it exists.
    pub fn is_over(&self) -> bool {
        match self {
            State::Accepted
            | State::Starting { .. }
            | State::Up { .. }
            | State::Changing { .. }
            | State::Unchanged { .. } => false,
            State::Ended { .. } | State::Failed { .. } | State::Gone => true,
        }
    }

    /// Its processes are not visible any more: nothing can be said of those that have not ended.
    pub(crate) fn lose_sight(&mut self) {
        let (State::Starting { processes }
        | State::Up { processes, .. }
        | State::Changing { processes }
        | State::Unchanged { processes, .. }) = self
        else {
            return;
        };
        for process in processes {
            match process.status {
                ProcessStatus::Online
                | ProcessStatus::Initializing
                | ProcessStatus::Unready { .. }
                | ProcessStatus::Unresponsive { .. } => process.status = ProcessStatus::Unknown,
                ProcessStatus::OomKilled
                | ProcessStatus::Exited { .. }
                | ProcessStatus::Signaled { .. }
                | ProcessStatus::Unknown => {}
            }
        }
    }

    /// Whether any of it may exist.
    fn is_alive(&self) -> bool {
        match self {
            State::Starting { .. } | State::Up { .. } | State::Changing { .. } | State::Unchanged { .. } => {
                true
            }
            State::Accepted | State::Ended { .. } | State::Failed { .. } | State::Gone => false,
        }
    }
}

/// Whether an incarnation has been ready before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// Not yet.
    NeverReady,
    /// It has been.
    Ready,
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// Record the order, then start what the spec asks for.
    Start,
    /// Record the order: it is met by what is there.
    Adopt,
    /// Record the order and its spec, then make what runs that.
    Change,
    /// Record the order, then ask everything to end, and kill it after the grace.
    End(Duration),
    /// Make sure that nothing can start any more, record the tombstone, drop the rest.
    Bury,
    /// Nothing: report again what is there.
    Answer,
    /// Nothing: report that the order cannot be carried out.
    Refuse(&'static str, Hope),
}

/// Why a command can never be carried out, by any runtime, if that is so.
pub fn misfit(command: &Command) -> Option<&'static str> {
    match (command.object, &command.spec, command.effect) {
        (ObjectId::Volume(_), ObjectSpec::Volume(_), Effect::Stop) => Some("a volume cannot be stopped"),
        (ObjectId::Volume(_), ObjectSpec::Volume(_), Effect::Ensure | Effect::Kill)
        | (ObjectId::Incarnation(_), ObjectSpec::Run(_), _) => None,
        (ObjectId::Volume(_), ObjectSpec::Run(_), _)
        | (ObjectId::Incarnation(_), ObjectSpec::Volume(_), _) => Some("its spec is that of something else"),
    }
}

/// What `order` means for what is there; `spec` is what it brings along, and `changes` what the runtime can do.
pub fn step(present: Option<&Present>, order: &Order, spec: Option<&ObjectSpec>, changes: Changes) -> Step {
    // Met: it was up once. What is not there any more is never started a second time in the same incarnation.
    let begin = if order.may_start() { Step::Start } else { Step::Bury };
    let Some(present) = present else {
        return begin;
    };
    if order.rank() < present.order.rank() {
        return Step::Answer;
    }
    let again = order.rank() == present.order.rank();
    let is_open = order.standing == Standing::Open;
    let alive = present.state.is_alive();
    let as_it_runs = runs_as(present.spec.as_ref(), spec);
    match (&present.state, order.aim) {
        (_, Aim::Up) if alive && present.order.aim != Aim::Up => {
            Step::Refuse("it is being ended", Hope::Retry)
        }
        (State::Unchanged { .. }, Aim::Up) if again && is_open => Step::Answer,
        (_, Aim::Up) if alive && is_open && !as_it_runs => match changes {
            Changes::InPlace => Step::Change,
            Changes::Never => {
                Step::Refuse("it runs with another spec, and what runs is not changed", Hope::Never)
            }
        },
        // Also the same order, once nobody waits for its outcome any more.
        (State::Unchanged { .. }, Aim::Up) => Step::Adopt,
        (State::Accepted, Aim::Up) => begin,
        (_, Aim::Up) if again && alive && as_it_runs && spec != present.spec.as_ref() => Step::Adopt,
        (_, Aim::Up) if again => Step::Answer,
        (State::Failed { .. } | State::Gone, Aim::Up) => begin,
        (
            State::Starting { .. } | State::Up { .. } | State::Changing { .. } | State::Ended { .. },
            Aim::Up,
        ) => Step::Adopt,
        // Repeated, because a crash may have come between recording the order and asking.
        (
            State::Starting { .. } | State::Up { .. } | State::Changing { .. } | State::Unchanged { .. },
            Aim::Down | Aim::Removed,
        ) => Step::End(order.grace),
        (State::Ended { .. }, Aim::Down) => Step::Adopt,
        (State::Gone, Aim::Down | Aim::Removed) if again => Step::Answer,
        (State::Accepted | State::Failed { .. } | State::Gone, Aim::Down | Aim::Removed) => Step::Bury,
        (State::Ended { .. }, Aim::Removed) => Step::Bury,
    }
}

fn runs_as(there: Option<&ObjectSpec>, brought: Option<&ObjectSpec>) -> bool {
    match (there, brought) {
        (Some(there), Some(brought)) => there.is_as(brought),
        (there, brought) => there.is_none() && brought.is_none(),
    }
}

/// The spec to record with an order: what is started or changed is what it brought. Of something else that is there the
/// spec stays, but for what may be taken over: of something that runs alike, the rule of starting again; of a volume,
/// everything.
pub fn accepted(step: &Step, there: Option<ObjectSpec>, brought: Option<&ObjectSpec>) -> Option<ObjectSpec> {
    match step {
        Step::Start | Step::Change => brought.cloned(),
        Step::Adopt | Step::End(_) | Step::Bury | Step::Answer | Step::Refuse(..)
            if there.is_some() && !runs_as(there.as_ref(), brought) =>
        {
            there
        }
        Step::Adopt | Step::End(_) | Step::Bury | Step::Answer | Step::Refuse(..) => brought.cloned(),
    }
}

/// Whether a report is worth a message of its own, or only a line in a list.
#[derive(Clone, PartialEq, Debug)]
pub enum Told {
    /// A change, or an outcome.
    Change(Report),
    /// Something between an order and its outcome: named in lists, so that nobody takes it for absent.
    ListOnly(Report),
}

/// What is to be reported of what is there.
pub fn report(object: ObjectId, present: &Present) -> Told {
    let Order { revision, aim, .. } = present.order;
    let report = |revision, saw| Report { object, revision, saw };
    // It reflects less than what is ordered now.
    let below = |saw| Told::ListOnly(report(revision.saturating_sub(1), saw));
    match &present.state {
        State::Accepted => below(Saw::NotReady { processes: Vec::new() }),
        State::Starting { processes } | State::Changing { processes } => {
            below(Saw::NotReady { processes: processes.clone() })
        }
        State::Up { processes, before: been } => match aim {
            Aim::Up => Told::Change(report(revision, saw(processes, *been))),
            // What is still being ended reflects no revision of the order that ends it.
            Aim::Down | Aim::Removed => below(saw(processes, *been)),
        },
        State::Unchanged { processes, before: been, message, hope } => match aim {
            Aim::Up => Told::Change(report(revision, Saw::Failed { message: message.clone(), hope: *hope })),
            Aim::Down | Aim::Removed => below(saw(processes, *been)),
        },
        State::Ended { exit, processes } => {
            Told::Change(report(revision, Saw::Ended { exit: exit.clone(), processes: processes.clone() }))
        }
        State::Failed { message, hope } => {
            Told::Change(report(revision, Saw::Failed { message: message.clone(), hope: *hope }))
        }
        State::Gone => Told::Change(report(revision, Saw::Gone)),
    }
}

/// What is seen of processes that were started.
fn saw(processes: &[Process], before: Before) -> Saw {
    let processes = processes.to_vec();
    let online = processes.iter().all(|p| p.status == ProcessStatus::Online);
    match before {
        _ if online => Saw::Ready { processes },
        Before::NeverReady => Saw::Ensured { processes },
        Before::Ready => Saw::NotReady { processes },
    }
}

#[cfg(test)]
mod tests;
