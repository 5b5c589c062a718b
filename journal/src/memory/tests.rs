//! Tests of the misbehavior of the journal in memory.

use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::conformance::{FLEET, TestWriter};

fn opened(log: &MemoryLog) -> (MemoryJournal, Receiver<String>) {
    let (to, delivered) = channel();
    let sink: DeliverySink = Box::new(move |delivery| {
        let text = match delivery {
            JournalDelivery::Records(records) => {
                format!(
                    "records {}",
                    records.iter().map(|one| one.last().to_string()).collect::<Vec<_>>().join(" ")
                )
            }
            JournalDelivery::Skipped(skipped) => format!("skipped {:?}", skipped.reason),
            JournalDelivery::OutcomeUnknown(_) => "indefinite".into(),
            JournalDelivery::Stopped(_) => "stopped".into(),
        };
        drop(to.send(text));
    });
    (log.open(sink).expect("open"), delivered)
}

#[test]
fn durability_is_reached_in_steps_and_can_be_lost() {
    let log = MemoryLog::new(FLEET);
    let (journal, delivered) = opened(&log);
    let mut author = TestWriter::new(1, None);
    log.hold();
    journal.append(author.genesis()).expect("queued");
    journal.append(author.record(1, 1)).expect("queued");
    journal.append(author.record(1, 1)).expect("queued");
    assert_eq!((journal.head(), journal.waiting()), (None, 3));
    assert_eq!(log.step(2), 2);
    assert_eq!(delivered.try_iter().collect::<Vec<_>>(), ["records 1 2"]);
    assert_eq!((journal.lose_waiting(), log.step(9)), (1, 0));
    assert_eq!(journal.head().map(|head| head.position.get()), Some(2));
}

#[test]
fn an_append_of_unknown_outcome_is_written_lost_or_too_late() {
    for (fate, wanted) in [
        (AppendFate::Landed, vec!["records 1", "indefinite", "records 2", "skipped Taken"]),
        (AppendFate::Lost, vec!["records 1", "indefinite", "records 2"]),
        (AppendFate::Late, vec!["records 1", "indefinite", "records 2", "skipped Taken"]),
    ] {
        let log = MemoryLog::new(FLEET);
        let (journal, delivered) = opened(&log);
        let mut author = TestWriter::new(1, None);
        journal.append(author.genesis()).expect("queued");
        let mut next = TestWriter::new(2, author.at());
        journal.blur_next(fate);
        journal.append(author.record(1, 1)).expect("queued");
        // Only a new term by a new writer proves the outcome.
        journal.append(next.takeover()).expect("queued");
        assert_eq!(log.land_late(), fate == AppendFate::Late);
        assert_eq!(delivered.try_iter().collect::<Vec<_>>(), wanted, "{fate:?}");
    }
}

#[test]
fn a_record_that_continues_but_cannot_be_read_stops_every_reader() {
    let log = MemoryLog::new(FLEET);
    let (journal, delivered) = opened(&log);
    let mut author = TestWriter::new(1, None);
    journal.append(author.genesis()).expect("queued");
    let next = author.record(1, 1);
    log.inject(&next.bytes()[..next.bytes().len() - 1]);
    log.inject(next.bytes().clone());
    assert_eq!(delivered.try_iter().collect::<Vec<_>>(), ["records 1", "stopped"]);
    assert!(matches!(journal.append(next), Err(AppendError::Closed)));
    let read: Vec<_> =
        log.source().records(Position::ZERO).expect("readable").map(|one| one.is_ok()).collect();
    assert_eq!(read, [true, false]);
    assert!(log.open(Box::new(|_| ())).is_err());
}
