//! Histories: each step in order, with its initiator.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use chancery_events::event::{Event, EventKind};
use chancery_events::fact::EntityQuarantined;
use chancery_events::id::{OperationId, Position};
use chancery_events::record::RecordDraft;
use chancery_events::subject::Subject;
use chancery_journal::{ChainCursor, WriterIdentity};

use super::driver::TestDriver;
use crate::OperationSearch;
use crate::causes::CauseReader;
use crate::history::{EventInitiator, HistoryReader};
use crate::rows::OperationRow;

fn ended_row(history: &HistoryReader, id: OperationId) -> Option<OperationRow> {
    let mut search = OperationSearch::new(history.clone(), id);
    loop {
        if let ControlFlow::Break(row) = search.read_page().expect("read") {
            return row;
        }
    }
}

fn history(driver: &TestDriver, subject: &Subject, limit: usize) -> Vec<(String, String)> {
    let history = HistoryReader::new(driver.source());
    let mut from = Position::ZERO;
    let mut all = Vec::new();
    let mut positions = Vec::new();
    loop {
        let page = history.of(subject, from, limit).expect("a page");
        assert!(page.entries.len() <= limit);
        for entry in page.entries {
            positions.push(entry.position);
            let who = match entry.initiator {
                EventInitiator::Actor(actor) => actor.to_string(),
                EventInitiator::Executor(executor) => executor.to_string(),
                EventInitiator::Rule(rule) => rule,
                EventInitiator::Decider => "decider".into(),
            };
            all.push((entry.type_name, who));
        }
        let Some(next) = page.next else { break };
        assert!(next > from);
        from = next;
    }
    assert!(positions.is_sorted_by(|a, b| a < b), "each event once, the newest last");
    all
}

fn same(found: &[(String, String)], wanted: &[(&str, &str)]) {
    let found: Vec<_> = found.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(found, wanted);
}

#[test]
fn the_history_of_a_replica_shows_every_step_and_its_initiator() {
    let mut driver = TestDriver::new(70);
    driver.record_events = 0; // causes are in other records
    driver.found(4, 2);
    driver.deploy(0, "deployment-1", 1);
    driver.settle();
    let replica = driver.fleet.replicas().sorted()[0].name.clone();
    let (operation, incarnation) = {
        let replica = driver.fleet.replicas().get(&replica).expect("present");
        (replica.operations[0], replica.incarnations[0])
    };
    driver.ask("replica.delete.v1", &serde_json::json!({ "name": replica }));
    driver.settle();
    let (by, rule) = ("tester", "plan/plan-0/approval/create");
    let goes = "plan/plan-0/approval/delete";
    let story = [
        ("replica.created.v1", by),
        ("operation.created.v1", by),
        ("incarnation.reserved.v1", by),
        ("operation.approved.v1", rule),
        ("incarnation.running.v1", "exec-1"),
        ("replica.delete.v1", by),
        ("intent.accepted.v1", by),
        ("operation.created.v1", by),
        ("operation.approved.v1", goes),
        ("incarnation.ended.v1", "exec-1"),
        ("operation.ended.v1", "exec-1"),
        ("replica.deleted.v1", "exec-1"),
    ];
    for limit in [1, 2, 5, 1000] {
        same(&history(&driver, &Subject::Replica(replica.clone()), limit), &story);
    }
    same(
        &history(&driver, &Subject::Operation(operation), 3),
        &[
            ("operation.created.v1", by),
            ("incarnation.reserved.v1", by),
            ("operation.approved.v1", rule),
            ("incarnation.running.v1", "exec-1"),
        ],
    );
    same(
        &history(&driver, &Subject::Incarnation(incarnation), 3),
        &[
            ("incarnation.reserved.v1", by),
            ("operation.approved.v1", rule),
            ("incarnation.reported.v1", "exec-1"),
            ("incarnation.running.v1", "exec-1"),
            ("operation.approved.v1", goes),
            ("incarnation.reported.v1", "exec-1"),
            ("incarnation.ended.v1", "exec-1"),
        ],
    );
    let deployment =
        Subject::Deployment("plan-0".parse().expect("a name"), "deployment-1".parse().expect("a name"));
    same(
        &history(&driver, &deployment, 2),
        &[
            ("deployment.create.v1", by),
            ("intent.accepted.v1", by),
            ("deployment.created.v1", by),
            ("deployment.started.v1", by),
            ("replica.created.v1", by),
            // The last success completed it.
            ("deployment.ended.v1", "exec-1"),
        ],
    );
    same(&history(&driver, &Subject::Fleet, 9), &[("term.started.v1", "decider")]);
    let unknown = Subject::Plan("plan".parse().expect("a name"));
    same(&history(&driver, &unknown, 9), &[]);
}

#[test]
fn every_history_holds_what_a_scan_of_all_events_finds() {
    let mut driver = TestDriver::new(71);
    driver.found(6, 4);
    (0..300).for_each(|_| driver.stir());
    driver.settle();
    let mut subjects = std::collections::BTreeMap::<Subject, usize>::new();
    for record in &driver.records {
        for (position, line) in record.events() {
            let event = chancery_events::event::Event::read(line).expect("an event");
            let mut about: std::collections::BTreeSet<_> = event.subjects().into_iter().collect();
            if let chancery_events::event::Event::Fact { fact, .. } = &event {
                about.extend(fact.issues(record.header().lineage, position));
            }
            for subject in about {
                *subjects.entry(subject).or_default() += 1;
            }
        }
    }
    assert!(subjects.len() > 50);
    for (subject, count) in subjects {
        assert_eq!(history(&driver, &subject, 7).len(), count, "{subject}");
    }
}

#[test]
fn an_operation_that_ended_reads_alike_from_its_row_and_from_the_journal() {
    let mut kept = std::collections::BTreeMap::new();
    let mut left = 0;
    for seed in [72, 73, 74] {
        let mut driver = TestDriver::new(seed);
        driver.found(6, 4);
        kept.clear();
        for _ in 0..300 {
            driver.stir();
            for operation in driver.fleet.operations().sorted() {
                if !operation.is_open() {
                    kept.insert(operation.id, crate::build_row::operation(&driver.fleet, operation.id));
                }
            }
        }
        driver.seal();
        let history = HistoryReader::new(driver.source());
        for (id, row) in &kept {
            assert_eq!(&ended_row(&history, *id), row, "seed {seed}, operation {id}");
            left += usize::from(driver.fleet.operations().get(id).is_none());
        }
        for operation in
            driver.fleet.operations().sorted().into_iter().filter(|operation| operation.is_open())
        {
            let open = ended_row(&history, operation.id);
            assert_eq!(open, None, "the operation still has a row");
        }
    }
    assert!(left > 10, "{left} have left the rows");
}

#[test]
fn the_root_of_a_long_chain_of_causes_is_its_first_event() {
    let mut driver = TestDriver::new(5);
    driver.found(2, 1);
    driver.seal();
    let last = driver.records.last().expect("a record");
    let (header, first) = (last.header(), last.last().plus(1));
    let by =
        WriterIdentity { fleet: header.fleet.clone(), build: header.build.clone(), writer: header.writer };
    let mut draft = RecordDraft::new();
    let intent =
        r#"{"k":"intent","t":"plan.delete.v1","id":"i","src":"cli","by":"ann","d":{"name":"chained"}}"#;
    draft.push(intent.as_bytes()).expect("space");
    let subject = Subject::Plan("chained".parse().expect("a name"));
    for number in 0..100 {
        let fact = EntityQuarantined { subject: subject.clone(), detail: String::new() }.into();
        draft.push(&Event::Fact { cause: first.plus(number), fact }.line()).expect("space");
    }
    let parts = ChainCursor::after(last).follow(&by, header.time, None);
    driver.append(draft.seal(parts).expect("a record"));
    let history = HistoryReader::new(driver.source());
    // Alone on its page, the last entry has the same root as after all others.
    for (from, limit, count) in [(first, 1000, 101), (first.plus(100), 1, 1)] {
        let page = history.of(&subject, from, limit).expect("a page");
        assert_eq!(page.entries.len(), count);
        for entry in page.entries {
            assert_eq!(entry.initiator, EventInitiator::Actor("ann".parse().expect("a name")));
            let root = entry.root_cause.map_or(entry.position, |root| root.position);
            assert_eq!(root, first, "root of {}", entry.position);
        }
    }
}

#[test]
fn causes_end_at_the_first_event_and_effects_are_their_inverse() {
    for record_events in [0, 200] {
        let mut driver = TestDriver::new(71);
        driver.record_events = record_events;
        driver.found(6, 4);
        (0..300).for_each(|_| driver.stir());
        driver.seal();
        let head = driver.records.last().expect("a record").last();
        let reader = CauseReader::new(driver.source(), head);
        let mut wanted: BTreeMap<Position, Vec<Position>> = BTreeMap::new();
        let mut longest = 0;
        for position in (1..=head.get()).map(Position::new) {
            let event = reader.event(position).expect("readable").expect("an event");
            if let Some(cause) = event.cause {
                wanted.entry(cause).or_default().push(position);
            }
            // In pages of two, the chain is the same.
            let all = reader.causes(position, 1000).expect("readable").expect("an event");
            let chain: Vec<_> = all.events.iter().map(|event| event.position).collect();
            let (mut paged, mut from) = (Vec::new(), Some(position));
            while let Some(at) = from {
                let page = reader.causes(at, 2).expect("readable").expect("an event");
                paged.extend(page.events.iter().map(|event| event.position));
                from = page.next.and(page.events.last()).map(|last| last.position);
            }
            assert_eq!((&chain, chain.first().copied(), all.next), (&paged, event.cause, None));
            assert!(chain.is_sorted_by(|a, b| a > b));
            longest = longest.max(chain.len());
            let root = all.events.last().unwrap_or(&event);
            assert!(
                root.kind != EventKind::Fact || root.type_name == "term.started.v1" || root.cause.is_none(),
                "{position}: {root:?}"
            );
        }
        assert!(longest > 3, "{longest}");
        for position in (1..=head.get()).map(Position::new) {
            let mut found = Vec::new();
            let mut from = Some(Position::FIRST);
            while let Some(at) = from {
                let page = reader.effects(position, at, 2).expect("readable").expect("an event");
                found.extend(page.events.iter().map(|event| event.position));
                from = page.next;
            }
            assert_eq!(found, wanted.remove(&position).unwrap_or_default(), "effects of {position}");
        }
        assert!(reader.event(head.plus(1)).expect("readable").is_none());
        assert!(reader.effects(Position::ZERO, Position::FIRST, 1).expect("readable").is_none());
    }
}
