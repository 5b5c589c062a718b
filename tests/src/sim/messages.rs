//! Inbox of a simulated world: messages that producers put into its topic, reads by servers, and the check
//! that each message is answered once.

use std::collections::BTreeMap;

use chancery_decider::inbox::{InboxMismatch, InboxStart};
use chancery_events::digest::Digest;
use chancery_events::event::{Event, EventKind, EventLine};
use chancery_events::fact::{Fact, InboxMessageRefused, OperationEnd, SessionClosed};
use chancery_events::id::WriterId;
use chancery_events::inbox_message::{InboxBinding, InboxMessage};
use chancery_events::intent::IntentRequest;
use chancery_events::name::Actor;
use chancery_events::observation::SessionEnd;
use chancery_events::record::{InboxWatermark, Record, RecordHash};
use chancery_events::refusal::RefusalCode;

use super::fault::SimulatedFault;
use super::oracle::violation;
use super::script::APPROVALS;
use super::universe::{ScriptedWorld, trace_step};
use crate::check::InvariantViolation;

/// Name of the topic of every simulated world.
const TOPIC: &str = "sim.inbox/1/0";
/// Actor of the inbox messages.
const ACTOR: &str = "pipeline";
/// Intents that inbox messages may request.
const SCOPE: &str = "plan.*,deployment.*,replica.*,node.*,capability.*,disruption.*,policy.*";

/// Expected effect of an inbox message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpectedEffect {
    /// Intent with this key and digest.
    Asks(Digest, Digest),
    /// Unreadable, with the hash of its value.
    Nonsense(Option<RecordHash>),
}

/// Topic, with the meanings of its messages.
#[derive(Default, Debug)]
pub struct SimulatedTopic {
    messages: Vec<(InboxMessage, ExpectedEffect)>,
    /// Offset of the next message.
    pub end: u64,
}

impl SimulatedTopic {
    fn put(&mut self, mut message: InboxMessage, means: ExpectedEffect, hole: u64) {
        message.offset = self.end;
        self.end += 1 + hole;
        self.messages.push((message, means));
    }

    /// Returns the number of the first message at or after an offset.
    fn at(&self, offset: u64) -> usize {
        self.messages.partition_point(|(message, _)| message.offset < offset)
    }

    /// Returns an inbox for a decider that starts with this watermark.
    pub fn take_up(&self, watermark: Option<&InboxWatermark>) -> Result<InboxStart, InboxMismatch> {
        let binding = InboxBinding { actor: actor(), allowed_intents: SCOPE.parse().expect("a scope") };
        InboxStart::take_up(TOPIC.parse().expect("a topic"), binding, watermark, &(0..self.end))
    }
}

/// Returns the actor of the messages' intents.
pub fn actor() -> Actor {
    ACTOR.parse().expect("an actor")
}

/// Returns the inbox message of a request, in structured or binary form.
fn written(request: &IntentRequest, structured: bool) -> InboxMessage {
    let mut attributes = vec![
        ("specversion", "1.0".to_owned()),
        ("id", request.id.to_string()),
        ("source", request.source.to_string()),
        ("type", format!("dev.chancery.{}", request.intent.type_name())),
        // tidy: allow(somebody)
        ("actor", "somebody".to_owned()),
    ];
    attributes.extend(request.time.map(|time| ("time", time.to_string())));
    attributes.extend(request.expect.map(|version| ("expectedversion", version.to_string())));
    let data = request.intent.data_json();
    if !structured {
        let header = |(name, value): (&str, String)| (format!("ce_{name}"), value.into_bytes());
        let headers = attributes.into_iter().map(header).collect();
        return InboxMessage { headers, value: Some(data.into_bytes()), ..InboxMessage::default() };
    }
    let mut event: serde_json::Map<_, _> =
        attributes.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    event.insert("data".into(), serde_json::from_str(&data).expect("data is JSON"));
    let value = serde_json::Value::Object(event).to_string().into_bytes();
    let headers = vec![("content-type".into(), b"application/cloudevents+json".to_vec())];
    InboxMessage { headers, value: Some(value), ..InboxMessage::default() }
}

impl ScriptedWorld {
    /// Puts a request into the topic; no producer waits for its answer.
    pub fn put_into_topic(&mut self, request: IntentRequest) {
        let request = IntentRequest { actor: actor(), ..request };
        let means = ExpectedEffect::Asks(request.key(), request.digest());
        let message = written(&request, self.random.chance(500));
        trace_step!(
            self,
            "inbox message {}: {} ({})",
            self.topic.end,
            request.intent.type_name(),
            request.id
        );
        self.put(message, means);
        if self.strikes(SimulatedFault::BadMessage, 300) {
            self.put_a_bad_one(&request);
        }
    }

    fn put(&mut self, message: InboxMessage, means: ExpectedEffect) {
        let hole = if self.random.chance(100) { self.random.between(1, 3) } else { 0 };
        self.topic.put(message, means, hole);
        self.counts.add("inbox message");
    }

    fn put_a_bad_one(&mut self, like: &IntentRequest) {
        let good = written(like, false);
        let (message, means) = match self.random.below(4) {
            // A repeat, as of a producer without acknowledgement by the topic.
            0 => (good, ExpectedEffect::Asks(like.key(), like.digest())),
            // Cut.
            1 => {
                let value = good.value.as_deref().map(|value| value[..value.len() / 2].to_vec());
                let inbox_message = InboxMessage { value, ..good };
                let digest = inbox_message.digest();
                (inbox_message, ExpectedEffect::Nonsense(digest))
            }
            // Empty.
            2 => (InboxMessage { value: None, ..good }, ExpectedEffect::Nonsense(None)),
            // An intent that a topic must not request.
            _ => {
                let intent = chancery_events::intent::Intent::read(APPROVALS[0], r#"{"operations":[]}"#);
                let id = format!("no{}", self.topic.end).parse().expect("an id");
                let intent = intent.expect("a type").expect("its data");
                let request = IntentRequest { id, expect: None, intent, ..like.clone() };
                (written(&request, true), ExpectedEffect::Asks(request.key(), request.digest()))
            }
        };
        trace_step!(self, "inbox message {}: a bad one", self.topic.end);
        self.put(message, means);
    }

    /// Makes a server take the next message, or notice that none is left up to the end.
    pub fn read_message(&mut self, seat: usize) {
        let now = self.now;
        let again = self.strikes(SimulatedFault::MessageAgain, 50);
        let back = if again { self.random.between(1, 3) } else { 0 };
        let Some(server) = &mut self.seats[seat].server else { return };
        let next = self.topic.at(server.reads);
        let next = next.saturating_sub(usize::try_from(back).unwrap_or(0));
        let message = self.topic.messages.get(next).map(|(inbox_message, _)| inbox_message);
        server.take_message(message, self.topic.end, now);
        trace_step!(self, "server {seat} reads the topic, message number {next}");
    }
}

/// Checks the answers to inbox messages.
#[derive(Default, Debug)]
pub struct AnswerChecker {
    /// Watermark of the last record.
    next: u64,
    /// Decided keys, with the digest of their intent.
    known: BTreeMap<Digest, Digest>,
    /// End of the topic when each decider started.
    tails: BTreeMap<WriterId, u64>,
}

impl AnswerChecker {
    /// Returns the offset of the first message that is not answered.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Notes that a decider started with this end of the topic.
    pub fn begins(&mut self, writer: WriterId, tail: u64) {
        self.tails.insert(writer, tail);
    }

    /// Takes the next record, which answers the messages since the last watermark, once and in order.
    pub fn take(&mut self, record: &Record, topic: &SimulatedTopic) -> Result<(), InvariantViolation> {
        let Some(InboxWatermark { next, .. }) = &record.header().watermark else { return Ok(()) };
        let mut inbox_messages = topic.messages[topic.at(self.next)..topic.at(*next)].iter();
        let early = self.tails.get(&record.header().writer).is_some_and(|tail| next < tail);
        for (position, line) in record.events() {
            let wrong = |what: String| violation(10, what, Some(position));
            let line = EventLine::read(line).map_err(|error| wrong(error.to_string()))?;
            let ours =
                line.kind == EventKind::Intent && line.by.as_ref().is_some_and(|by| by.as_str() == ACTOR);
            if line.kind != EventKind::Fact && !ours {
                continue;
            }
            let found = match line.event().map_err(|error| wrong(error.to_string()))? {
                Event::Intent(request) => ExpectedEffect::Asks(request.key(), request.digest()),
                Event::Fact {
                    fact: Fact::InboxMessageRefused(InboxMessageRefused { digest, .. }), ..
                } => ExpectedEffect::Nonsense(digest),
                Event::Fact { fact, .. } => {
                    if early && waits_for_messages(&fact) {
                        return Err(wrong(format!("{} before the pending inbox messages", fact.type_name())));
                    }
                    self.remember(&fact);
                    continue;
                }
                Event::Observation { .. } => continue,
            };
            let wanted = inbox_messages.find(|(_, means)| !self.repeats(*means));
            match wanted {
                Some((_, means)) if *means == found => {}
                Some((message, means)) => {
                    return Err(wrong(format!(
                        "inbox message {} means {means:?}, and the record has {found:?}",
                        message.offset
                    )));
                }
                None => return Err(wrong(format!("{found:?} answers no inbox message up to {next}"))),
            }
        }
        if let Some((inbox_message, _)) = inbox_messages.find(|(_, means)| !self.repeats(*means)) {
            let what = format!("inbox message {} is called answered, and is not", inbox_message.offset);
            return Err(violation(10, what, Some(record.last())));
        }
        self.next = *next;
        Ok(())
    }

    /// Whether a message requests what was decided already, and so has no effect.
    fn repeats(&self, means: ExpectedEffect) -> bool {
        matches!(means, ExpectedEffect::Asks(key, digest) if self.known.get(&key) == Some(&digest))
    }

    fn remember(&mut self, fact: &Fact) {
        let (key, digest) = match fact {
            Fact::IntentAccepted(fact) => (fact.key, fact.digest),
            Fact::IntentRefused(fact)
                if !matches!(
                    fact.code,
                    RefusalCode::IdempotencyKeyReused
                        | RefusalCode::IntentExpired
                        | RefusalCode::TimestampInFuture
                ) =>
            {
                (fact.key, fact.digest)
            }
            _ => return,
        };
        self.known.entry(key).or_insert(digest);
    }
}

/// Whether the fact results from a deadline, or from a lost session.
fn waits_for_messages(fact: &Fact) -> bool {
    match fact {
        Fact::OperationEnded(fact) => fact.end == OperationEnd::Expired,
        Fact::SessionClosed(SessionClosed { end, .. }) => *end == SessionEnd::Expired,
        _ => false,
    }
}
