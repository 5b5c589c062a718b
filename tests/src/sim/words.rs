//! Text of messages and work items for traces, in one line each.

use chancery_events::id::ObjectId;
use chancery_events::observation::{Report, Saw};
use chancery_events::protocol::{Command, Envelope, FromDecider, ToDecider};
use chancery_executor::session::Work;

/// Renders an object by the position of its creation.
fn short(id: ObjectId) -> String {
    let word = match id {
        ObjectId::Incarnation(_) => "inc",
        ObjectId::Volume(_) => "vol",
    };
    format!("{word}-{}", id.position())
}

/// Renders a report.
pub(super) fn report(report: &Report) -> String {
    let saw = match &report.saw {
        Saw::Ensured { .. } => "ensured",
        Saw::Ready { .. } => "ready",
        Saw::NotReady { .. } => "not ready",
        Saw::Ended { .. } => "ended",
        Saw::Gone => "gone",
        Saw::Failed { .. } => "failed",
    };
    format!("{} {saw} at revision {}", short(report.object), report.revision)
}

/// Renders all reports.
pub(super) fn reports(reports: &[Report]) -> String {
    reports.iter().map(report).collect::<Vec<_>>().join(", ")
}

fn command(command: &Command) -> String {
    let Command { object, revision, attempt, effect, standing, .. } = command;
    format!("{effect} {} (revision {revision}, attempt {attempt}, {standing:?})", short(*object))
}

/// Renders an executor's message.
pub(super) fn to_decider(message: &ToDecider) -> String {
    match message {
        ToDecider::Hello { executor, cluster, scope, seen, .. } => {
            let seen = seen.map_or("nothing".to_owned(), |(_, head)| format!("position {}", head.position));
            format!("hello from {executor} of scope {scope} for {cluster}, which has seen {seen}")
        }
        ToDecider::Level { reports: all, .. } => format!("level: {}", reports(all)),
        ToDecider::Report { sequence, report: one, .. } => format!("report {sequence}: {}", report(one)),
        ToDecider::More { after, .. } => format!("more of the inventory, behind {}", short(*after)),
        ToDecider::Heartbeat { beat, .. } => format!("heartbeat {beat}"),
        ToDecider::Goodbye { .. } => "goodbye".into(),
    }
}

/// Renders a decider's message.
pub(super) fn from_decider(message: &FromDecider) -> String {
    let all = |commands: &[Command]| commands.iter().map(command).collect::<Vec<_>>().join(", ");
    let by = |envelope: &Envelope| format!("term {}, head {}", envelope.head.term, envelope.head.position);
    match message {
        FromDecider::Welcome { envelope, commands, .. } => {
            format!("welcome ({}): {}", by(envelope), all(commands))
        }
        FromDecider::Inventory { envelope, commands, .. } => {
            format!("more of the inventory ({}): {}", by(envelope), all(commands))
        }
        FromDecider::Refused { reason, again } => format!("refused, {again:?}: {reason}"),
        FromDecider::Command { envelope, command: one } => format!("{} ({})", command(one), by(envelope)),
        FromDecider::Accepted { sequence, .. } => format!("report {sequence} is accepted"),
        FromDecider::Forget { object, .. } => format!("forget {}", short(*object)),
        FromDecider::Judged { object, judgement, revision, .. } => {
            format!("{judgement} {} (revision {revision})", short(*object))
        }
        FromDecider::Beat { beat, .. } => format!("heartbeat {beat} is answered"),
        FromDecider::Closed { reason } => format!("closed: {reason}"),
    }
}

/// Renders a work item.
pub(super) fn work(work: &Work) -> String {
    match work {
        Work::CarryOut(one) => command(one),
        Work::Remove { object, revision } => {
            format!("remove {} (revision {revision})", short(*object))
        }
        Work::Forget(object) => format!("forget {}", short(*object)),
    }
}

/// Returns the envelope of a message, if any.
pub(super) fn envelope(message: &FromDecider) -> Option<&Envelope> {
    match message {
        FromDecider::Welcome { envelope, .. }
        | FromDecider::Inventory { envelope, .. }
        | FromDecider::Accepted { envelope, .. }
        | FromDecider::Beat { envelope, .. }
        | FromDecider::Command { envelope, .. }
        | FromDecider::Forget { envelope, .. }
        | FromDecider::Judged { envelope, .. } => Some(envelope),
        FromDecider::Refused { .. } | FromDecider::Closed { .. } => None,
    }
}
