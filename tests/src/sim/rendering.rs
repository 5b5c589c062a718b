//! Text of messages and work items for traces, in one line each.

use chancery_events::id::ObjectId;
use chancery_events::observation::{ObjectReport, ObservedState};
use chancery_events::protocol::{Command, DeciderEnvelope, DeciderMessage, ExecutorMessage};
use chancery_executor::session::ObjectWork;

/// Renders an object by the position of its creation.
fn short(id: ObjectId) -> String {
    let word = match id {
        ObjectId::Incarnation(_) => "inc",
        ObjectId::Volume(_) => "vol",
    };
    format!("{word}-{}", id.position())
}

/// Renders a report.
pub(super) fn report(report: &ObjectReport) -> String {
    let state = match &report.observed {
        ObservedState::Started { .. } => "started",
        ObservedState::Ready { .. } => "ready",
        ObservedState::NotReady { .. } => "not ready",
        ObservedState::Ended { .. } => "ended",
        ObservedState::Gone => "gone",
        ObservedState::Failed { .. } => "failed",
    };
    format!("{} {state} at revision {}", short(report.object), report.revision)
}

/// Renders all reports.
pub(super) fn reports(reports: &[ObjectReport]) -> String {
    reports.iter().map(report).collect::<Vec<_>>().join(", ")
}

fn command(command: &Command) -> String {
    let Command { object, revision, attempt, effect, status: command_status, .. } = command;
    format!("{effect} {} (revision {revision}, attempt {attempt}, {command_status:?})", short(*object))
}

/// Renders an executor's message.
pub(super) fn to_decider(message: &ExecutorMessage) -> String {
    match message {
        ExecutorMessage::Hello { executor, cluster, store: scope, seen, .. } => {
            let seen = seen.map_or("nothing".to_owned(), |(_, head)| format!("position {}", head.position));
            format!("hello from {executor} of store {scope} for {cluster}, which has seen {seen}")
        }
        ExecutorMessage::FullReport { reports: all, .. } => format!("level: {}", reports(all)),
        ExecutorMessage::Report { sequence, report: one, .. } => {
            format!("report {sequence}: {}", report(one))
        }
        ExecutorMessage::InventoryRequest { after, .. } => {
            format!("more of the inventory, behind {}", short(*after))
        }
        ExecutorMessage::Heartbeat { sequence: heartbeat, .. } => format!("heartbeat {heartbeat}"),
        ExecutorMessage::Goodbye { .. } => "goodbye".into(),
    }
}

/// Renders a decider's message.
pub(super) fn from_decider(message: &DeciderMessage) -> String {
    let all = |commands: &[Command]| commands.iter().map(command).collect::<Vec<_>>().join(", ");
    let by =
        |envelope: &DeciderEnvelope| format!("term {}, head {}", envelope.head.term, envelope.head.position);
    match message {
        DeciderMessage::Welcome { envelope, commands, .. } => {
            format!("welcome ({}): {}", by(envelope), all(commands))
        }
        DeciderMessage::Inventory { envelope, commands, .. } => {
            format!("more of the inventory ({}): {}", by(envelope), all(commands))
        }
        DeciderMessage::Refused { reason, retry: again } => format!("refused, {again:?}: {reason}"),
        DeciderMessage::Command { envelope, command: one } => format!("{} ({})", command(one), by(envelope)),
        DeciderMessage::ReportsAccepted { sequence, .. } => format!("report {sequence} is accepted"),
        DeciderMessage::Purge { object, .. } => format!("purge {}", short(*object)),
        DeciderMessage::OrphanResolved { object, resolution: judgement, revision, .. } => {
            format!("{judgement} {} (revision {revision})", short(*object))
        }
        DeciderMessage::HeartbeatAck { sequence: heartbeat, .. } => {
            format!("heartbeat {heartbeat} is answered")
        }
        DeciderMessage::ConnectionClosed { reason } => format!("closed: {reason}"),
    }
}

/// Renders a work item.
pub(super) fn work(work: &ObjectWork) -> String {
    match work {
        ObjectWork::CarryOut(one) => command(one),
        ObjectWork::Remove { object, revision } => {
            format!("remove {} (revision {revision})", short(*object))
        }
        ObjectWork::Purge(object) => format!("purge {}", short(*object)),
    }
}

/// Returns the envelope of a message, if any.
pub(super) fn envelope(message: &DeciderMessage) -> Option<&DeciderEnvelope> {
    match message {
        DeciderMessage::Welcome { envelope, .. }
        | DeciderMessage::Inventory { envelope, .. }
        | DeciderMessage::ReportsAccepted { envelope, .. }
        | DeciderMessage::HeartbeatAck { envelope, .. }
        | DeciderMessage::Command { envelope, .. }
        | DeciderMessage::Purge { envelope, .. }
        | DeciderMessage::OrphanResolved { envelope, .. } => Some(envelope),
        DeciderMessage::Refused { .. } | DeciderMessage::ConnectionClosed { .. } => None,
    }
}
