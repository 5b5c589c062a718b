//! Inbox: results of its messages, and the offset where the next decider continues.

use chancery_events::fact::{Fact, InboxMessageRefused};
use chancery_events::inbox_message::{InboxBinding, InboxMessage};
use chancery_events::record::InboxWatermark;
use chancery_events::refusal::Refusal;
use chancery_projector::JournalFold;

use super::*;
use crate::inbox::{InboxMismatch, InboxStart, InboxTopic, check};

const TOPIC: &str = "fleet.inbox/id-1/0";

fn topic(text: &str) -> InboxTopic {
    text.parse().expect("a topic")
}

fn binding() -> InboxBinding {
    InboxBinding {
        actor: name("pipeline"),
        allowed_intents: "capability.*,replica.*,plan.*,node.*".parse().expect("a scope"),
    }
}

/// Returns an inbox message with a request that is `id` of the source `ci`.
fn message(offset: u64, id: &str, type_name: &str, data: &serde_json::Value) -> InboxMessage {
    let type_name = format!("dev.chancery.{type_name}.v1");
    let headers = [
        ("ce_specversion", "1.0"),
        ("ce_id", id),
        ("ce_source", "ci"),
        ("ce_type", &type_name),
        ("ce_actor", "eve"),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).to_vec();
    InboxMessage { offset, headers, value: Some(data.to_string().into_bytes()), ..InboxMessage::default() }
}

fn capability(offset: u64, id: &str) -> InboxMessage {
    message(offset, id, "capability.apply", &json!({"name": id, "spec": {"type": "T", "score": 1}}))
}

fn nonsense(offset: u64) -> InboxMessage {
    InboxMessage { offset, value: Some(b"{".to_vec()), ..InboxMessage::default() }
}

impl DeciderFixture {
    /// Takes over the state of the records, with an inbox of these offsets.
    fn with_inbox(&mut self, log: std::ops::Range<u64>) {
        self.with_inbox_over(None, &log);
    }

    /// Takes over another state than that of the records.
    fn with_inbox_over(&mut self, fleet: Option<FleetState>, log: &std::ops::Range<u64>) {
        let fold = self.folded();
        let state = fold.state();
        let watermark = state.and_then(|state| state.watermark.as_ref());
        let inbox = InboxStart::take_up(topic(TOPIC), binding(), watermark, log).expect("all messages exist");
        let settings = DeciderSettings { inbox: Some(inbox), ..settings(3) };
        let fleet = fleet.or_else(|| state.map(|state| state.fleet.clone()));
        let fleet = fleet.unwrap_or_else(|| FleetState::new(Lineage::from_random(5)));
        self.durable = self.journal.len();
        self.take_over(settings, fleet, state.map(|state| &state.at), self.now);
    }

    /// Returns the fold of the records.
    fn folded(&self) -> JournalFold {
        let mut fold = JournalFold::default();
        for record in &self.journal {
            fold.take(record).expect("folds");
        }
        fold
    }

    /// Returns a rig whose journal starts with an inbox.
    fn reading(log: std::ops::Range<u64>) -> DeciderFixture {
        let mut rig = DeciderFixture::new();
        rig.journal.clear();
        rig.with_inbox(log);
        rig.settle();
        rig
    }

    fn post(&mut self, message: &InboxMessage) {
        self.give(CoreInput::InboxMessage(Box::new(message.clone())));
    }

    /// Returns the watermarks of the records from one on.
    fn watermarks(&self, from: usize) -> Vec<u64> {
        let watermark = |record: &Arc<Record>| {
            let InboxWatermark { topic, next } = record.header().watermark.clone().expect("a watermark");
            assert_eq!(&*topic, TOPIC);
            next
        };
        self.journal[from..].iter().map(watermark).collect()
    }

    fn refused(&self, from: usize) -> Vec<InboxMessageRefused> {
        let events = self.journal[from..].iter().flat_map(|record| record.events());
        events
            .filter_map(|(_, line)| match Event::read(line).expect("readable") {
                Event::Fact { fact: Fact::InboxMessageRefused(fact), .. } => Some(fact),
                _ => None,
            })
            .collect()
    }

    fn intents(&self, from: usize) -> Vec<IntentRequest> {
        let events = self.journal[from..].iter().flat_map(|record| record.events());
        events
            .filter_map(|(_, line)| match Event::read(line).expect("readable") {
                Event::Intent(request) => Some(request),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn a_decider_takes_up_only_an_inbox_that_holds_what_it_has_not_answered() {
    let mark = |topic: &str, next| InboxWatermark { topic: topic.into(), next };
    let gone =
        |watermark: InboxWatermark, log: std::ops::Range<u64>| check(Some(&watermark), &topic(TOPIC), &log);
    assert_eq!(check(None, &topic(TOPIC), &(5..9)), Ok(5), "the first decider starts with the first message");
    for (next, log) in [(5, 5..9), (7, 5..9), (9, 5..9), (0, 0..0)] {
        assert_eq!(gone(mark(TOPIC, next), log), Ok(next));
    }
    for (watermark, log, words) in [
        (mark("fleet.inbox/id-2/0", 7), 5..9, ["fleet.inbox/id-2/0", TOPIC]),
        (mark(TOPIC, 4), 5..9, ["starts at offset 5", "up to 4"]),
        (mark(TOPIC, 10), 5..9, ["ends at offset 9", "up to 10"]),
        (mark(TOPIC, 1), 0..0, ["ends at offset 0", "up to 1"]),
    ] {
        let error = gone(watermark, log).expect_err(words[0]).to_string();
        assert!(
            words.iter().all(|word| error.contains(word)) && error.contains("without an inbox"),
            "{error}"
        );
    }
    assert!(matches!(gone(mark("another", 4), 5..9), Err(InboxMismatch::Another { .. })));
    for bad in ["", "a b", "a\"b", "a\\b", "ü", &"x".repeat(401)] {
        assert!(bad.parse::<InboxTopic>().is_err(), "{bad}");
    }
}

#[test]
fn every_message_leaves_one_trace_in_the_order_of_their_offsets() {
    let mut rig = DeciderFixture::reading(10..20);
    let from = rig.journal.len();
    let approve = json!({"operations": []});
    for inbox_message in [
        capability(10, "a"),
        nonsense(11),
        // Offsets may have holes.
        message(14, "b", "cluster.delete", &json!({"name": "local"})),
        message(15, "c", "operation.approve", &approve),
        message(16, "a", "capability.delete", &json!({"name": "a"})),
        message(17, "d", "capability.delete", &json!({"name": "nowhere"})),
        InboxMessage { offset: 18, ..InboxMessage::default() },
        message(19, "e", "moon.land", &json!({})),
    ] {
        rig.post(&inbox_message);
    }
    assert!(rig.settle().is_empty(), "no answer is sent");
    let types = [
        "capability.apply.v1",
        "intent.accepted.v1",
        "capability.applied.v1",
        "inbox.message_refused.v1",
        "cluster.delete.v1",
        "intent.refused.v1",
        "operation.approve.v1",
        "intent.refused.v1",
        "capability.delete.v1",
        "intent.refused.v1",
        "capability.delete.v1",
        "intent.refused.v1",
        "inbox.message_refused.v1",
        "inbox.message_refused.v1",
    ];
    assert_eq!(rig.types(from), types);
    assert_eq!(rig.watermarks(from), [20]);
    let refused = rig.refused(from);
    let reported: Vec<_> =
        refused.iter().map(|fact| (fact.offset, fact.code, fact.digest.is_some())).collect();
    assert_eq!(
        reported,
        [
            (11, RefusalCode::Invalid, true),
            (18, RefusalCode::Invalid, false),
            (19, RefusalCode::Unsupported, true)
        ]
    );
    assert!(refused.iter().all(|fact| fact.topic == TOPIC && !fact.detail.is_empty()));
    assert!(rig.intents(from).iter().all(|request| {
        request.actor.as_str() == "pipeline"
            && request.claim.as_ref().is_some_and(|claim| claim.as_str() == "eve")
    }));
    let events = rig.journal[from..].iter().flat_map(|record| record.events());
    let codes: Vec<_> = events
        .filter_map(|(_, line)| match Event::read(line).expect("readable") {
            Event::Fact { fact: Fact::IntentRefused(fact), .. } => Some(fact.code),
            _ => None,
        })
        .collect();
    assert_eq!(
        codes,
        [RefusalCode::Denied, RefusalCode::Denied, RefusalCode::IdempotencyKeyReused, RefusalCode::NotFound]
    );
}

#[test]
fn a_message_is_durable_with_its_answer_and_the_next_decider_continues_after_it() {
    let mut rig = DeciderFixture::reading(0..0);
    rig.post(&capability(0, "a"));
    rig.post(&nonsense(1));
    rig.settle();
    // Answers that were never durable: the messages are read again.
    rig.post(&capability(2, "b"));
    rig.post(&nonsense(3));
    let from = rig.journal.len();
    rig.with_inbox(0..4);
    rig.settle();
    assert_eq!(rig.watermarks(from), [2]);
    for message in [capability(0, "a"), nonsense(1), capability(2, "b"), nonsense(3), nonsense(3)] {
        rig.post(&message);
    }
    rig.settle();
    let types: Vec<_> = rig.types(from)[1..].to_vec();
    let once =
        ["capability.apply.v1", "intent.accepted.v1", "capability.applied.v1", "inbox.message_refused.v1"];
    assert_eq!(types, once, "messages below the watermark are answered already");
    assert_eq!(rig.watermarks(from), [2, 4]);
}

#[test]
fn a_commit_that_is_closed_before_a_message_does_not_count_it() {
    let mut rig = DeciderFixture::reading(0..0);
    let from = rig.journal.len();
    for offset in 0..400 {
        rig.post(&capability(offset, &format!("c{offset}")));
    }
    rig.settle();
    let watermarks = rig.watermarks(from);
    assert!(watermarks.len() > 3, "{watermarks:?}");
    let mut answered = 0;
    for (record, watermark) in rig.journal[from..].iter().zip(watermarks) {
        answered += u64::from(record.header().count) / 3;
        assert_eq!(answered, watermark);
    }
    assert_eq!(answered, 400);
}

#[test]
fn a_repeat_records_nothing_and_a_watermark_that_lags_is_carried_by_a_fact_of_its_own() {
    let mut rig = DeciderFixture::reading(0..0);
    rig.post(&capability(0, "a"));
    rig.settle();
    let from = rig.journal.len();
    rig.post(&capability(1, "a"));
    rig.settle();
    assert!(rig.types(from).is_empty(), "a repeat");
    assert_eq!(rig.core.next_due(), Some(rig.now + Duration::from_secs(1)));
    rig.now = rig.now + Duration::from_secs(1);
    rig.settle();
    assert_eq!((rig.types(from), rig.watermarks(from)), (vec!["inbox.advanced.v1"], vec![2]));
    assert_eq!(rig.core.next_due(), None, "once");
    // A record with another cause carries the watermark too.
    rig.post(&capability(2, "a"));
    rig.must("capability.apply", &json!({"name": "x", "spec": {"type": "T", "score": 1}}));
    rig.now = rig.now + Duration::from_secs(5);
    rig.settle();
    assert_eq!(rig.watermarks(from), [2, 3]);
    assert!(!rig.types(from)[1..].contains(&"inbox.advanced.v1"));
    // A thousand messages do not wait for a second.
    let from = rig.journal.len();
    for offset in 3..1002 {
        rig.post(&capability(offset, "a"));
        rig.settle();
    }
    assert!(rig.types(from).is_empty(), "one less");
    rig.post(&capability(1002, "a"));
    rig.settle();
    assert_eq!((rig.types(from), rig.watermarks(from)), (vec!["inbox.advanced.v1"], vec![1003]));
    // A drained decider leaves no watermark behind.
    rig.post(&capability(1003, "a"));
    rig.give(CoreInput::Drain);
    rig.give(CoreInput::Drain);
    rig.settle();
    assert_eq!(rig.watermarks(from), [1003, 1004]);
}

#[test]
fn where_offsets_hold_no_messages_the_reader_reports_it() {
    let mut rig = DeciderFixture::reading(0..0);
    let from = rig.journal.len();
    rig.give(CoreInput::InboxPassed(7));
    rig.give(CoreInput::InboxPassed(5));
    rig.now = rig.now + Duration::from_secs(1);
    rig.settle();
    assert_eq!(rig.watermarks(from), [7]);
}

fn stumbling(
    fleet: &FleetState,
    request: &IntentRequest,
    ctx: &DecisionContext,
) -> Result<Vec<Fact>, Refusal> {
    assert!(request.intent.type_name() != "node.delete.v1", "deliberate panic");
    chancery_machine::decide::decide(fleet, request, ctx)
}

#[test]
fn a_message_that_is_poison_is_refused_once_and_the_next_is_answered() {
    let mut rig = torn();
    let fleet = FleetSnapshot::of(rig.core.fleet()).fleet();
    rig.with_inbox_over(Some(fleet), &(0..0));
    rig.settle();
    rig.core.decide = stumbling;
    let from = rig.journal.len();
    let replica = rig.core.fleet().replicas().sorted()[0].name.clone();
    // The first cannot be folded; deciding the second panics.
    rig.post(&message(0, "p", "replica.delete", &json!({"name": replica})));
    rig.post(&message(1, "q", "node.delete", &json!({"name": "n1"})));
    rig.post(&capability(2, "a"));
    rig.settle();
    let types = [
        "replica.delete.v1",
        "intent.refused.v1",
        "node.delete.v1",
        "intent.refused.v1",
        "capability.apply.v1",
        "intent.accepted.v1",
        "capability.applied.v1",
    ];
    assert_eq!(rig.types(from), types);
    assert_eq!((rig.core.fleet().replicas().len(), rig.watermarks(from)), (1, vec![3]));
    // Other callers get the same answer.
    let request = rig.request("node.delete", &json!({"name": "n1"}));
    let ticket = rig.ask(&request);
    let answered = answers(&rig.settle());
    assert_eq!((answered[0].0, answered[0].2), (ticket, Some(RefusalCode::Internal)));
}

#[test]
fn an_unreadable_message_is_skipped_only_at_the_position_of_the_inbox() {
    let mut rig = DeciderFixture::reading(0..9);
    rig.post(&capability(0, "a"));
    rig.settle();
    let skip = |rig: &mut DeciderFixture, offset: u64| {
        let request = rig.request("inbox.skip", &json!({"offset": offset}));
        rig.ask(&request);
        answers(&rig.settle())[0].2
    };
    assert_eq!(skip(&mut rig, 1), Some(RefusalCode::InvalidTransition), "all can be read");
    // The offsets 1 and 2 hold no messages.
    rig.give(CoreInput::InboxBlocked(3));
    assert_eq!(
        skip(&mut rig, 2),
        Some(RefusalCode::InvalidTransition),
        "the inbox is blocked at another offset"
    );
    assert_eq!(
        skip(&mut rig, 4),
        Some(RefusalCode::InvalidTransition),
        "the decider does not know that it cannot be read"
    );
    let from = rig.journal.len();
    assert_eq!(skip(&mut rig, 3), None);
    assert_eq!(rig.types(from), ["inbox.skip.v1", "intent.accepted.v1", "inbox.skipped.v1"]);
    assert_eq!(rig.watermarks(from), [4], "in the record of the fact");
    assert_eq!(skip(&mut rig, 3), Some(RefusalCode::InvalidTransition), "the offset was skipped already");
    // A message that has become readable is answered, and not skipped.
    rig.give(CoreInput::InboxBlocked(4));
    rig.post(&capability(4, "b"));
    assert_eq!(skip(&mut rig, 4), Some(RefusalCode::InvalidTransition));
    // A late report about an answered offset changes nothing.
    rig.give(CoreInput::InboxBlocked(2));
    assert_eq!(skip(&mut rig, 2), Some(RefusalCode::InvalidTransition));
    rig.with_inbox(0..9);
    rig.settle();
    assert_eq!(
        skip(&mut rig, 5),
        Some(RefusalCode::InvalidTransition),
        "a new decider does not know where the inbox is blocked"
    );
    let from = rig.journal.len();
    rig.post(&message(5, "fifth", "inbox.skip", &json!({"offset": 5})));
    rig.settle();
    assert_eq!(rig.types(from), ["inbox.skip.v1", "intent.refused.v1"], "no message skips another");
}

#[test]
fn an_intent_that_no_commit_can_hold_is_answered_by_the_fact_alone() {
    let mut rig = DeciderFixture::reading(0..0);
    let from = rig.journal.len();
    // With all defaults filled in, the payloads are four times as long.
    let payloads = vec![json!({"name": "a", "resources": {}}); 9000];
    let spec = json!({"namespace": "ns", "service": "web", "payloads": payloads});
    let large = message(0, "large", "plan.apply", &json!({"name": "web", "spec": spec}));
    assert!(large.request(&name("x")).is_ok(), "{} bytes", large.bytes());
    rig.post(&large);
    rig.post(&capability(1, "a"));
    rig.settle();
    let refused: Vec<_> = rig.refused(from).into_iter().map(|fact| (fact.offset, fact.code)).collect();
    assert_eq!(refused, [(0, RefusalCode::TooLarge)]);
    assert_eq!((rig.types(from).len(), rig.watermarks(from)), (4, vec![2]));
}

#[test]
fn deadlines_wait_for_the_messages_that_were_there_and_a_lease_after_them() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.plan_and_deployment();
    rig.settle();
    rig.now = rig.now + Duration::from_hours(1);
    rig.with_inbox(0..3);
    let from = rig.journal.len();
    rig.post(&nonsense(0));
    rig.now = rig.now + Duration::from_hours(1);
    rig.settle();
    rig.post(&nonsense(1));
    rig.now = rig.now + Duration::from_hours(1);
    rig.settle();
    assert_eq!(rig.types(from), ["term.started.v1", "inbox.message_refused.v1", "inbox.message_refused.v1"]);
    // The last offset holds no message.
    rig.give(CoreInput::InboxPassed(3));
    rig.settle();
    rig.now = rig.now + LEASE.saturating_sub(Duration::from_secs(1));
    rig.settle();
    assert!(
        !rig.types(from).contains(&"incarnation.stop_requested.v1"),
        "every executor has a lease to reconnect"
    );
    rig.now = rig.now + Duration::from_secs(1);
    rig.settle();
    assert!(rig.types(from).contains(&"incarnation.stop_requested.v1"));
}

#[test]
fn a_skip_by_an_operator_at_a_start_is_recorded_once_with_the_next_watermark() {
    // Offsets of the topic, skipped offset, and offset where reading starts.
    let table = [
        (2..9, 4, Ok(5)),
        (4..9, 3, Ok(4)),
        (3..9, 8, Ok(9)),
        (9..9, 8, Ok(9)),
        // Answered already.
        (2..9, 1, Ok(2)),
        // More messages are missing than are skipped.
        (5..9, 3, Err("starts at offset 5")),
        (2..9, 9, Err("cannot skip inbox message 9: fleet.inbox/id-1/0 ends at offset 9")),
        (0..1, 4, Err("ends at offset 1")),
    ];
    for (log, skip, wanted) in table {
        let mut rig = DeciderFixture::reading(0..2);
        rig.post(&capability(0, "a"));
        rig.post(&capability(1, "b"));
        rig.settle();
        let watermark = InboxWatermark { topic: TOPIC.into(), next: 2 };
        let inbox = InboxStart::take_up_behind(skip, topic(TOPIC), binding(), Some(&watermark), &log);
        let (inbox, wanted) = match (inbox, wanted) {
            (Ok(inbox), Ok(wanted)) => (inbox, wanted),
            (Err(error), Err(part)) => {
                assert!(error.to_string().contains(part), "{error}");
                continue;
            }
            (inbox, _) => panic!("{skip} of {log:?}: {inbox:?}"),
        };
        assert_eq!(inbox.next(), wanted);
        let from = rig.journal.len();
        let fold = rig.folded();
        let state = fold.state().expect("a state");
        let settings = DeciderSettings { inbox: Some(inbox), ..settings(3) };
        rig.durable = rig.journal.len();
        rig.take_over(settings, state.fleet.clone(), Some(&state.at), rig.now);
        rig.settle();
        let recorded =
            if wanted > 2 { &["term.started.v1", "inbox.skipped.v1"][..] } else { &["term.started.v1"] };
        assert_eq!(
            (rig.types(from), rig.watermarks(from)),
            (recorded.to_vec(), vec![wanted]),
            "{skip} of {log:?}"
        );
        // A later start with the same flag finds the skip recorded.
        let again = InboxWatermark { topic: TOPIC.into(), next: wanted };
        let again = InboxStart::take_up_behind(skip, topic(TOPIC), binding(), Some(&again), &log)
            .expect("the message exists");
        assert_eq!((again.next(), again.skips()), (wanted, None));
    }
}

#[test]
fn without_an_inbox_no_watermark_is_written_and_the_last_one_stays() {
    let mut rig = DeciderFixture::reading(0..0);
    rig.post(&nonsense(0));
    rig.settle();
    let mut fold = JournalFold::default();
    rig.journal.iter().for_each(|record| assert!(fold.take(record).is_ok()));
    let state = fold.state().expect("a state").clone();
    rig.take_over(settings(4), state.fleet, Some(&state.at), rig.now);
    rig.post(&nonsense(1));
    rig.settle();
    let last = rig.journal.last().expect("a record");
    assert_eq!(
        (last.header().watermark.clone(), last.header().count),
        (None, 1),
        "the message is left to other deciders"
    );
    assert!(fold.take(last).is_ok());
    let kept = fold.state().and_then(|state| state.watermark.clone()).map(|watermark| watermark.next);
    assert_eq!(kept, Some(1));
}
