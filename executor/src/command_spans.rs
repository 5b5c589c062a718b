//! Spans of commands, from their receipt to the report of their outcome, in the trace that each command names.

use std::collections::BTreeMap;

use chancery_events::id::ObjectId;
use chancery_events::observation::{ObjectReport, ObservedState};
use chancery_events::protocol::Command;
use chancery_spans::{SpanRole, TraceSpan};

/// Maximum number of commands with an open span.
const OPEN: usize = 16_384;

/// Open spans of commands: the last one of each object, with its revision and attempt.
#[derive(Debug, Default)]
pub(crate) struct CommandSpans(BTreeMap<ObjectId, (u32, u32, TraceSpan)>);

fn outcome_word(observed: &ObservedState) -> &'static str {
    match observed {
        ObservedState::Started { .. } => "started",
        ObservedState::Ready { .. } => "ready",
        ObservedState::NotReady { .. } => "not_ready",
        ObservedState::Ended { .. } => "ended",
        ObservedState::Gone => "gone",
        ObservedState::Failed { .. } => "failed",
    }
}

impl CommandSpans {
    /// Starts the span of a command that arrived, unless that of the same command or of a later one is open.
    pub(crate) fn received(&mut self, command: &Command) {
        let Some(traceparent) = command.traceparent.as_deref().filter(|_| chancery_spans::are_recorded())
        else {
            return;
        };
        let number = (command.revision, command.attempt);
        if self.0.get(&command.object).is_some_and(|(revision, attempt, _)| (*revision, *attempt) >= number) {
            return;
        }
        if self.0.len() >= OPEN {
            self.0.clear();
        }
        let mut span = TraceSpan::start("execute", SpanRole::Consumer, Some(traceparent));
        span.text("chancery.object", command.object);
        span.text("chancery.command.effect", command.effect.word());
        span.number("chancery.command.revision", i64::from(command.revision));
        span.number("chancery.command.attempt", i64::from(command.attempt));
        self.0.insert(command.object, (command.revision, command.attempt, span));
    }

    /// Returns the span of the orchestrator's call for a command, until it is dropped. Commands of an inventory are first seen here.
    pub(crate) fn called(&mut self, command: &Command) -> Option<TraceSpan> {
        self.received(command);
        let (.., span) =
            self.0.get(&command.object).filter(|(revision, ..)| *revision == command.revision)?;
        Some(TraceSpan::start("orchestrator", SpanRole::Client, span.context().as_deref()))
    }

    /// Ends the span of a command whose outcome is reported.
    pub(crate) fn reported(&mut self, report: &ObjectReport) {
        let is_outcome = |(revision, ..): &(u32, u32, TraceSpan)| report.revision >= *revision;
        if !self.0.get(&report.object).is_some_and(is_outcome) {
            return;
        }
        let Some((.., mut command)) = self.0.remove(&report.object) else { return };
        let mut outcome = TraceSpan::start("report", SpanRole::Producer, command.context().as_deref());
        outcome.text("chancery.outcome", outcome_word(&report.observed));
        if let ObservedState::Failed { message, .. } = &report.observed {
            outcome.fail(message);
            command.fail(message);
        }
    }

    /// Ends all spans: the outcomes are part of the next full report.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
