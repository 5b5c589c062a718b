//! Tests of the validity rule, case by case.

use chancery_events::record::{LINEAGE_STARTED, TERM_STARTED};

use super::*;

const L: [Lineage; 2] = [Lineage::from_random(1), Lineage::from_random(2)];
const W: [WriterId; 2] = [WriterId::from_random(1), WriterId::from_random(2)];

fn at() -> ChainCursor {
    ChainCursor {
        position: Position::new(9),
        hash: RecordHash::of(b"the last one"),
        term: Term::new(3),
        writer: W[0],
        lineage: L[0],
        time: Time::from_micros(100),
    }
}

fn by(writer: WriterId) -> WriterIdentity {
    WriterIdentity { fleet: "f".into(), build: "0".into(), writer }
}

fn sealed(parts: HeaderParts) -> Record {
    let mut draft = chancery_events::record::RecordDraft::new();
    let first = match parts.starts {
        None => "thing.happened.v1",
        Some(RecordStart::Term) => TERM_STARTED,
        Some(RecordStart::Lineage { .. }) => LINEAGE_STARTED,
    };
    draft.push(format!(r#"{{"t":"{first}"}}"#).as_bytes()).expect("an event fits");
    draft.seal(parts).expect("a record")
}

/// Returns the result of the rule for a record like `parts`: `None` if it is valid.
fn verdict(at: Option<ChainCursor>, parts: HeaderParts) -> Option<SkipReason> {
    let record = sealed(parts);
    match judge(at.as_ref(), "f", record.header(), record.hash()) {
        Ok(cursor) => {
            assert_eq!(cursor, ChainCursor::after(&record));
            None
        }
        Err(reason) => Some(reason),
    }
}

#[test]
fn the_rule_has_an_answer_for_every_record() {
    let now = Time::from_micros(200);
    let next = || at().follow(&by(W[0]), now, None);
    let takeover = || at().take_over(&by(W[1]), now, None);
    let renewal = || at().renew(&by(W[1]), now, L[1]);
    let (two, four, five) = (Term::new(2), Term::new(4), Term::new(5));
    let next_lineage = |previous| HeaderParts { starts: Some(RecordStart::Lineage { previous }), ..next() };
    let itself = Some(RecordStart::Lineage { previous: L[1] });
    let cases = [
        ("the next record of the same writer", next(), None),
        ("a takeover", takeover(), None),
        ("the same writer starts a term", at().take_over(&by(W[0]), now, None), None),
        ("a new lineage", renewal(), None),
        ("of another fleet", HeaderParts { fleet: "g".into(), ..next() }, Some(SkipReason::Fleet)),
        ("written again", HeaderParts { first: Position::new(9), ..next() }, Some(SkipReason::Taken)),
        ("with a gap", HeaderParts { first: Position::new(11), ..next() }, Some(SkipReason::Gap)),
        ("after another record", HeaderParts { prev: RecordHash::ZERO, ..next() }, Some(SkipReason::Prev)),
        ("by another writer", HeaderParts { writer: W[1], ..next() }, Some(SkipReason::Writer)),
        ("of an old term", HeaderParts { term: two, ..next() }, Some(SkipReason::Term)),
        ("of a term that was not started", HeaderParts { term: four, ..next() }, Some(SkipReason::Term)),
        ("of another lineage", HeaderParts { lineage: L[1], ..next() }, Some(SkipReason::Lineage)),
        (
            "a takeover of the same term",
            HeaderParts { term: at().term, ..takeover() },
            Some(SkipReason::Term),
        ),
        ("a takeover that skips a term", HeaderParts { term: five, ..takeover() }, Some(SkipReason::Term)),
        (
            "a takeover in another lineage",
            HeaderParts { lineage: L[1], ..takeover() },
            Some(SkipReason::Lineage),
        ),
        ("a lineage after another", HeaderParts { starts: itself, ..renewal() }, Some(SkipReason::Lineage)),
        ("the same lineage again", HeaderParts { lineage: L[0], ..renewal() }, Some(SkipReason::Lineage)),
        (
            "the lineage in progress started again by its writer",
            next_lineage(L[0]),
            Some(SkipReason::Lineage),
        ),
        ("the same lineage after another by its writer", next_lineage(L[1]), Some(SkipReason::Lineage)),
        ("a lineage in the same term", HeaderParts { term: at().term, ..renewal() }, Some(SkipReason::Term)),
    ];
    for (what, parts, wanted) in cases {
        assert_eq!(verdict(Some(at()), parts), wanted, "{what}");
    }
}

#[test]
fn a_journal_starts_with_a_first_term_and_nothing_else() {
    let first = || genesis(&by(W[0]), Time::from_micros(1), L[0]);
    let lineage = Some(RecordStart::Lineage { previous: L[1] });
    let cases = [
        ("genesis", first(), None),
        ("a second term", HeaderParts { term: Term::new(2), ..first() }, Some(SkipReason::Term)),
        ("starts no term", HeaderParts { starts: None, ..first() }, Some(SkipReason::Term)),
        ("a lineage", HeaderParts { starts: lineage, ..first() }, Some(SkipReason::Lineage)),
        ("a later position", HeaderParts { first: Position::new(2), ..first() }, Some(SkipReason::Gap)),
        ("a previous record", HeaderParts { prev: RecordHash::of(b"x"), ..first() }, Some(SkipReason::Prev)),
    ];
    for (what, parts, wanted) in cases {
        assert_eq!(verdict(None, parts), wanted, "{what}");
    }
}

#[test]
fn what_continues_but_cannot_be_taken_stops_the_reader() {
    let chain = || ChainReader::new("f".into(), Some(at()));
    let next = at().follow(&by(W[0]), Time::from_micros(200), None);
    let back = sealed(HeaderParts { time: Time::from_micros(99), ..next.clone() });
    assert!(matches!(chain().take(back.bytes().clone()), Err(ChainError::Time { .. })));
    let begun = sealed(HeaderParts { starts: Some(RecordStart::Term), ..next.clone() });
    assert!(matches!(chain().take(begun.bytes().clone()), Err(ChainError::Begun { .. })));
    let whole = sealed(next);
    let cut = &whole.bytes()[..whole.bytes().len() - 1];
    assert!(matches!(chain().take(cut), Err(ChainError::Body { .. })));
    let mut chain = chain();
    assert!(matches!(
        chain.take(&b"stray bytes"[..]),
        Ok(ChainEntry::Skip(SkippedRecord { reason: SkipReason::Noise, .. }))
    ));
    assert!(matches!(chain.take(whole.bytes().clone()), Ok(ChainEntry::Record(_))));
    assert!(matches!(
        chain.take(whole.bytes().clone()),
        Ok(ChainEntry::Skip(SkippedRecord { reason: SkipReason::Taken, .. }))
    ));
}
