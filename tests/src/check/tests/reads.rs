//! Tests of invariant 13: right answers to readers pass, and each wrong one is found.

use std::collections::BTreeMap;

use chancery_events::id::Position;
use chancery_events::subject::Subject;
use serde_json::json;

use super::super::{RowStamp, StampList};
use super::check;
use crate::trace::{TraceStage, trace};

/// Returns the checker of a trace, and the positions of its `plan.applied` and its end. In between, a policy was
/// applied and the activity changed.
fn checked() -> (super::JournalChecker, u64, u64) {
    let mut s = trace(TraceStage::Fleet);
    let first = s.last();
    let request = json!({"name": "y", "spec": {"rule": {"four_eyes": {}}}});
    let cause = s.ask("policy.apply.v1", &request);
    s.fact(cause, "policy.applied.v1", &request);
    s.commit();
    let cause = s.ask("plan.set_activity.v1", &json!({"name": "web", "activity": "inactive"}));
    s.fact(cause, "plan.activity_changed.v1", &json!({"name": "web", "activity": "inactive"}));
    s.commit();
    (check(&s).expect("a journal that is right"), first, s.last())
}

fn shown(version: u64, changed: u64) -> RowStamp {
    RowStamp { version, changed: Position::new(changed) }
}

#[test]
fn a_row_is_what_the_facts_up_to_its_position_give() {
    let (checker, first, last) = checked();
    let plan: Subject = "plan/web".parse().expect("a subject");
    let policy: Subject = "policy/y".parse().expect("a subject");
    let cases = [
        (last, &plan, Some(shown(2, last)), true, "the second version"),
        (last, &plan, Some(shown(1, first)), false, "the first version, at a position that has the second"),
        (last, &plan, None, false, "there is one"),
        (first, &plan, Some(shown(1, first)), true, "the first version, where it was the last"),
        (first, &plan, Some(shown(2, last)), false, "the second version, before it came"),
        (first - 1, &plan, None, true, "nothing, before the first"),
        (first - 1, &plan, Some(shown(1, first)), false, "what comes later"),
        (last, &policy, Some(shown(1, first + 3)), true, "a policy"),
        (last, &policy, Some(shown(1, last)), false, "another fact was the last about it"),
        (last + 1, &plan, Some(shown(2, last)), false, "a position behind the end"),
    ];
    for (position, subject, row, right, why) in cases {
        let found = checker.reads().row(Position::ZERO, Position::new(position), subject, row);
        assert_eq!(
            found.map_err(|violation| violation.invariant),
            if right { Ok(()) } else { Err(13) },
            "{why}"
        );
    }
}

#[test]
fn a_list_has_all_that_is_there_at_its_position_and_nothing_else() {
    type ReadCase<'a> = (u64, &'a [(&'a str, u64)], bool, &'a str);
    let (checker, first, last) = checked();
    let listed = |rows: &[(&str, u64)]| -> StampList {
        let entry = |(name, version): &(&str, u64)| {
            (name.parse().expect("a subject"), RowStamp { version: *version, changed: Position::FIRST })
        };
        rows.iter().map(entry).collect::<BTreeMap<_, _>>()
    };
    let cases: [ReadCase<'_>; 5] = [
        (last, &[("plan/web", 2)], true, "all"),
        (last, &[("plan/web", 1)], false, "an earlier version"),
        (last, &[], false, "one is missing"),
        (last, &[("plan/web", 2), ("plan/other", 1)], false, "one too many"),
        (first - 1, &[], true, "none yet"),
    ];
    for (position, rows, right, why) in cases {
        let found = checker.reads().list(Position::ZERO, Position::new(position), "plan", &listed(rows));
        assert_eq!(
            found.map_err(|violation| violation.invariant),
            if right { Ok(()) } else { Err(13) },
            "{why}"
        );
    }
}

#[test]
fn an_answer_is_as_new_as_the_verdicts_of_its_server_and_refused_only_while_rows_are_behind() {
    let (mut checker, first, last) = checked();
    let [first, last] = [first, last].map(Position::new);
    checker.gave(1, last);
    // A repeated verdict.
    checker.gave(1, first);
    assert_eq!([0, 1].map(|server| checker.reads().least(server)), [Position::ZERO, last]);
    let of: Subject = "node/other".parse().expect("a subject");
    let answered = |least, at| checker.reads().row(least, at, &of, None).map_err(|found| found.invariant);
    assert_eq!(answered(last, last), Ok(()));
    assert_eq!(answered(last, first), Err(13), "before the verdict");
    assert_eq!(
        answered(first, first),
        Ok(()),
        "of a server that gave no later one, or by a reader who waived it"
    );
    let refused = |wanted, rows| checker.reads().not_applied(wanted, rows).map_err(|found| found.invariant);
    assert_eq!(refused(last, first), Ok(()));
    assert_eq!(refused(last, last), Err(13), "the rows are there");
    assert_eq!(refused(last.plus(1), last), Err(13), "there is no such position");
}
