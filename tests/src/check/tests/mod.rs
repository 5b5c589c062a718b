//! Tests of the checker: a valid journal passes, and each breach is found under its invariant.

mod breaches;
mod reads;

use chancery_events::id::{IncarnationId, Position};
use chancery_events::refusal::RefusalCode;
use serde_json::json;

use super::{InvariantViolation, JournalChecker, RunningProcesses};
use crate::history::{InvocationHistory, Verdict};
use crate::trace::{JournalTrace, TraceStage, lineage, trace};

fn check(trace: &JournalTrace) -> Result<JournalChecker, InvariantViolation> {
    let mut checker = JournalChecker::new();
    for record in trace.records() {
        checker.take(&record)?;
    }
    Ok(checker)
}

#[test]
fn a_journal_that_is_right_passes_at_every_stage() {
    for &stage in TraceStage::ALL {
        let checked = check(&trace(stage));
        assert!(checked.is_ok(), "{stage:?}: {}", checked.err().map(|e| e.to_string()).unwrap_or_default());
    }
}

#[test]
fn what_producers_received_is_compared_with_the_journal() {
    let mut s = trace(TraceStage::Fleet);
    let refused = s.intent("refused", "plan.delete.v1", &json!({"name": "web"}));
    let verdict = s.refuse(refused, "in_use");
    let request = s.request(refused);
    let checker = check(&s).expect("a journal that is right");
    let received = |position: u64, verdict| {
        let mut history = InvocationHistory::new();
        let op = history.invoke(request.key(), request.digest(), request.intent.type_name());
        history.ok(op, Position::new(position), verdict);
        checker.history(&history).map_err(|violation| violation.invariant)
    };
    assert_eq!(received(verdict, Verdict::Refused(RefusalCode::InUse)), Ok(()));
    assert_eq!(received(verdict, Verdict::Accepted), Err(1), "another verdict");
    assert_eq!(received(verdict, Verdict::Refused(RefusalCode::Invalid)), Err(1), "another reason");
    assert_eq!(received(verdict + 1, Verdict::Refused(RefusalCode::InUse)), Err(1), "behind the end");
    assert_eq!(received(3, Verdict::Accepted), Err(1), "the verdict of another intent");

    let mut history = InvocationHistory::new();
    let op = history.invoke(request.key(), request.digest(), request.intent.type_name());
    history.fail(op);
    assert_eq!(checker.history(&history).map_err(|v| v.invariant), Err(1), "called failed, and recorded");
    let again = history.invoke(request.key(), request.digest(), request.intent.type_name());
    history.unknown(again);
    assert_eq!(checker.history(&history), Ok(()), "the second sending may have been recorded");
}

#[test]
fn what_runs_is_compared_with_the_journal() {
    let alive = |stage, processes| {
        let s = trace(stage);
        let incarnation = s.incarnation.expect("an incarnation");
        check(&s).expect("a journal that is right").alive(&[RunningProcesses { incarnation, processes }])
    };
    assert_eq!(alive(TraceStage::Approved, 1), Ok(()));
    assert_eq!(alive(TraceStage::Stopping, 1), Ok(()), "nothing proves that it ended");
    let invariant = |found: Result<(), InvariantViolation>| found.map_err(|violation| violation.invariant);
    assert_eq!(invariant(alive(TraceStage::Reserved, 1)), Err(6), "it was not commanded");
    assert_eq!(invariant(alive(TraceStage::Stopped, 1)), Err(4), "it has no reservation");
    assert_eq!(invariant(alive(TraceStage::Running, 2)), Err(3), "it has one process");
    let s = trace(TraceStage::Running);
    let unknown =
        RunningProcesses { incarnation: IncarnationId::issue(lineage(), Position::new(1)), processes: 1 };
    assert_eq!(invariant(check(&s).expect("right").alive(&[unknown])), Err(6), "it was never issued");
    // Not visible in a valid journal: an incarnation counted twice represents two of one replica.
    let twice = RunningProcesses { incarnation: s.incarnation.expect("an incarnation"), processes: 1 };
    assert_eq!(invariant(check(&s).expect("right").alive(&[twice, twice])), Err(3), "both of one replica");
}
