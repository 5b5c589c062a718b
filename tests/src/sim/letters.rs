//! The inbox of a simulated world: what producers put into its topic, how servers read it, and who judges whether each
//! letter was answered once.

use std::collections::BTreeMap;

use chancery_decider::inbox::{Inbox, InboxGone};
use chancery_events::digest::Digest;
use chancery_events::event::{Event, EventKind, Line};
use chancery_events::fact::{Fact, InboxRefused, OperationEnd, SessionClosed};
use chancery_events::id::Writer;
use chancery_events::intent::Request;
use chancery_events::letter::{Binding, Letter};
use chancery_events::name::Actor;
use chancery_events::observation::SessionEnd;
use chancery_events::record::{Hash, Record, Watermark};
use chancery_events::refusal::Code;

use super::fault::Fault;
use super::judge::violation;
use super::script::APPROVALS;
use super::universe::{Universe, tell};
use crate::check::Violation;

/// Names the topic of every simulated world.
const TOPIC: &str = "sim.inbox/1/0";
/// Whose letters they are.
const ACTOR: &str = "pipeline";
/// What they may ask for.
const SCOPE: &str = "plan.*,deployment.*,replica.*,node.*,capability.*,disruption.*,policy.*";

/// What should become of a letter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Means {
    /// It asks for something: of which key and body.
    Asks(Digest, Digest),
    /// It cannot be read: of which value.
    Nonsense(Option<Hash>),
}

/// A topic, and what its letters mean.
#[derive(Default, Debug)]
pub struct Topic {
    letters: Vec<(Letter, Means)>,
    /// The offset of the next letter.
    pub end: u64,
}

impl Topic {
    fn put(&mut self, mut letter: Letter, means: Means, hole: u64) {
        letter.offset = self.end;
        self.end += 1 + hole;
        self.letters.push((letter, means));
    }

    /// The number of the first letter at an offset or behind it.
    fn at(&self, offset: u64) -> usize {
        self.letters.partition_point(|(letter, _)| letter.offset < offset)
    }

    /// An inbox for a decider that begins with this watermark.
    pub fn take_up(&self, watermark: Option<&Watermark>) -> Result<Inbox, InboxGone> {
        let binding = Binding { actor: actor(), scope: SCOPE.parse().expect("a scope") };
        Inbox::take_up(TOPIC.parse().expect("a topic"), binding, watermark, &(0..self.end))
    }
}

/// Whose intents those of letters are.
pub fn actor() -> Actor {
    ACTOR.parse().expect("an actor")
}

/// The letter that asks for it, in one form or the other.
fn written(request: &Request, structured: bool) -> Letter {
    let mut attributes = vec![
        ("specversion", "1.0".to_owned()),
        ("id", request.id.to_string()),
        ("source", request.source.to_string()),
        ("type", format!("chancery.{}", request.intent.type_name())),
        ("actor", "somebody".to_owned()),
    ];
    attributes.extend(request.time.map(|time| ("time", time.to_string())));
    attributes.extend(request.expect.map(|version| ("expect", version.to_string())));
    let data = request.intent.data_json();
    if !structured {
        let header = |(name, value): (&str, String)| (format!("ce_{name}"), value.into_bytes());
        let headers = attributes.into_iter().map(header).collect();
        return Letter { headers, value: Some(data.into_bytes()), ..Letter::default() };
    }
    let mut event: serde_json::Map<_, _> =
        attributes.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    event.insert("data".into(), serde_json::from_str(&data).expect("data is JSON"));
    let value = serde_json::Value::Object(event).to_string().into_bytes();
    let headers = vec![("content-type".into(), b"application/cloudevents+json".to_vec())];
    Letter { headers, value: Some(value), ..Letter::default() }
}

impl Universe {
    /// Puts a request into the topic; nobody waits for its answer.
    pub fn put_into_topic(&mut self, request: Request) {
        let request = Request { actor: actor(), ..request };
        let means = Means::Asks(request.key(), request.digest());
        let letter = written(&request, self.random.chance(500));
        tell!(self, "letter {}: {} ({})", self.topic.end, request.intent.type_name(), request.id);
        self.put(letter, means);
        if self.strikes(Fault::BadLetter, 300) {
            self.put_a_bad_one(&request);
        }
    }

    fn put(&mut self, letter: Letter, means: Means) {
        let hole = if self.random.chance(100) { self.random.between(1, 3) } else { 0 };
        self.topic.put(letter, means, hole);
        self.counts.add("letter");
    }

    fn put_a_bad_one(&mut self, like: &Request) {
        let good = written(like, false);
        let (letter, means) = match self.random.below(4) {
            // The same again, as a producer does that was not told that the topic has it.
            0 => (good, Means::Asks(like.key(), like.digest())),
            // Cut.
            1 => {
                let value = good.value.as_deref().map(|value| value[..value.len() / 2].to_vec());
                let letter = Letter { value, ..good };
                let digest = letter.digest();
                (letter, Means::Nonsense(digest))
            }
            // With nothing in it.
            2 => (Letter { value: None, ..good }, Means::Nonsense(None)),
            // What a topic may not ask for.
            _ => {
                let intent = chancery_events::intent::Intent::read(APPROVALS[0], r#"{"operations":[]}"#);
                let id = format!("no{}", self.topic.end).parse().expect("an id");
                let intent = intent.expect("a type").expect("its data");
                let request = Request { id, expect: None, intent, ..like.clone() };
                (written(&request, true), Means::Asks(request.key(), request.digest()))
            }
        };
        tell!(self, "letter {}: a bad one", self.topic.end);
        self.put(letter, means);
    }

    /// A server takes the next letter, or finds that there is none up to the end.
    pub fn read_letter(&mut self, seat: usize) {
        let now = self.now;
        let again = self.strikes(Fault::LetterAgain, 50);
        let back = if again { self.random.between(1, 3) } else { 0 };
        let Some(server) = &mut self.seats[seat].server else { return };
        let next = self.topic.at(server.reads);
        let next = next.saturating_sub(usize::try_from(back).unwrap_or(0));
        let letter = self.topic.letters.get(next).map(|(letter, _)| letter);
        server.letter(letter, self.topic.end, now);
        tell!(self, "server {seat} reads the topic, letter number {next}");
    }
}

/// Judges what became of letters.
#[derive(Default, Debug)]
pub struct Answers {
    /// The watermark of the last record.
    next: u64,
    /// Keys that are remembered, and for which body.
    known: BTreeMap<Digest, Digest>,
    /// What was in the topic when a decider began.
    tails: BTreeMap<Writer, u64>,
}

impl Answers {
    /// The offset of the first letter that is not answered.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// A decider begins; so much was in the topic.
    pub fn begins(&mut self, writer: Writer, tail: u64) {
        self.tails.insert(writer, tail);
    }

    /// The next record: the letters between its watermark and the last one are answered in it, each once and in order.
    pub fn take(&mut self, record: &Record, topic: &Topic) -> Result<(), Violation> {
        let Some(Watermark { next, .. }) = &record.header().watermark else { return Ok(()) };
        let mut letters = topic.letters[topic.at(self.next)..topic.at(*next)].iter();
        let early = self.tails.get(&record.header().writer).is_some_and(|tail| next < tail);
        for (position, line) in record.events() {
            let wrong = |what: String| violation(10, what, Some(position));
            let line = Line::read(line).map_err(|error| wrong(error.to_string()))?;
            let ours =
                line.kind == EventKind::Intent && line.by.as_ref().is_some_and(|by| by.as_str() == ACTOR);
            if line.kind != EventKind::Fact && !ours {
                continue;
            }
            let found = match line.event().map_err(|error| wrong(error.to_string()))? {
                Event::Intent(request) => Means::Asks(request.key(), request.digest()),
                Event::Fact { fact: Fact::InboxRefused(InboxRefused { digest, .. }), .. } => {
                    Means::Nonsense(digest)
                }
                Event::Fact { fact, .. } => {
                    if early && waits_for_letters(&fact) {
                        return Err(wrong(format!(
                            "{} before the letters that were there",
                            fact.type_name()
                        )));
                    }
                    self.remember(&fact);
                    continue;
                }
                Event::Observation { .. } => continue,
            };
            let wanted = letters.find(|(_, means)| !self.repeats(*means));
            match wanted {
                Some((_, means)) if *means == found => {}
                Some((letter, means)) => {
                    return Err(wrong(format!(
                        "letter {} means {means:?}, and {found:?} stands here",
                        letter.offset
                    )));
                }
                None => return Err(wrong(format!("{found:?} answers no letter up to {next}"))),
            }
        }
        if let Some((letter, _)) = letters.find(|(_, means)| !self.repeats(*means)) {
            let what = format!("letter {} is called answered, and is not", letter.offset);
            return Err(violation(10, what, Some(record.last())));
        }
        self.next = *next;
        Ok(())
    }

    /// Whether a letter asks for what was decided: nothing comes of it.
    fn repeats(&self, means: Means) -> bool {
        matches!(means, Means::Asks(key, digest) if self.known.get(&key) == Some(&digest))
    }

    fn remember(&mut self, fact: &Fact) {
        let (key, digest) = match fact {
            Fact::IntentAccepted(fact) => (fact.key, fact.digest),
            Fact::IntentRefused(fact)
                if !matches!(fact.code, Code::KeyReused | Code::Expired | Code::FromTheFuture) =>
            {
                (fact.key, fact.digest)
            }
            _ => return,
        };
        self.known.entry(key).or_insert(digest);
    }
}

/// Whether it comes of a deadline, or of a session's end that nobody saw.
fn waits_for_letters(fact: &Fact) -> bool {
    match fact {
        Fact::OperationEnded(fact) => fact.end == OperationEnd::Expired,
        Fact::SessionClosed(SessionClosed { end, .. }) => *end == SessionEnd::Lost,
        _ => false,
    }
}
