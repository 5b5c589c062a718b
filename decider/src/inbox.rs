//! The inbox: letters of a topic, each answered once and in the order of their offsets, whoever decides and however
//! often a decider dies.
//!
//! Nobody waits for the answer to a letter: it stands in the journal. The *watermark*, the offset of the first letter
//! that is not answered, stands in the header of each commit, so that a letter and its answer are durable together, and
//! the next decider goes on where the last one was.
//!
//! | a letter | what is recorded |
//! |---|---|
//! | asks for something | the intent, its verdict, and what follows, as over HTTP |
//! | asks for what its topic may not ask for | the intent, refused as `denied` |
//! | repeats an intent | nothing: its verdict stands already |
//! | cannot be read, or failed in a way that must not happen | `inbox.refused` |
//! | stands below the watermark | nothing: it is answered already |
//! | cannot be got from the topic | nothing, until somebody asks for `inbox.skip`: then `inbox.skipped` |
//! | is given up by the operator who starts a server | `inbox.skipped`, by the takeover, before the inbox is read |
//!
//! Where nothing was recorded, `inbox.advanced` carries the watermark: a second later, or a thousand letters.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chancery_events::event::Event;
use chancery_events::fact::{Fact, InboxAdvanced, InboxRefused};
use chancery_events::intent::{InboxSkip, Intent, Request};
use chancery_events::letter::{Binding, Letter};
use chancery_events::record::Watermark;
use chancery_events::refusal::{Code, Refusal};
use chancery_events::time::Time;

use super::core::{Core, Settled, internal, told};

/// A watermark that no commit carries is carried by one of its own after this time,
const LAG: Duration = Duration::from_secs(1);
/// or when so many letters are behind it.
const LETTERS: u64 = 1000;

/// Names an inbox for ever: by the topic's name, id and partition, in whatever form its reader writes them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topic(Arc<str>);

/// Text that names no topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write 1 to 400 visible ASCII characters but quotes and backslashes")]
pub struct BadTopic;

impl FromStr for Topic {
    type Err = BadTopic;
    /// It stands in every header, where room is kept for it.
    fn from_str(text: &str) -> Result<Topic, BadTopic> {
        let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        let good = (1..=400).contains(&text.len()) && text.bytes().all(fits);
        if good { Ok(Topic(text.into())) } else { Err(BadTopic) }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The inbox does not hold what the journal needs of it: a decider must not run with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InboxGone {
    /// It is another one.
    #[error(
        "take the inbox up: the journal has answered {was} up to offset {next}, and the topic is now {is}. \
         If it was made anew, what was left in the old one is lost; put the old one back, or run without an inbox"
    )]
    Another {
        /// The one that the journal has answered.
        was: Arc<str>,
        /// Up to where.
        next: u64,
        /// The one that is there.
        is: Arc<str>,
    },
    /// Letters that were never answered have been removed.
    #[error(
        "take the inbox up: {topic} begins at offset {start}, and is answered up to {next} only: the letters between \
         were removed unanswered. Put them back and keep them for longer, give them up (start one server once with \
         --skip-inbox {last}), or run without an inbox",
        last = .start - 1
    )]
    Removed {
        /// Which.
        topic: Arc<str>,
        /// The first offset that is there.
        start: u64,
        /// The first that is not answered.
        next: u64,
    },
    /// Letters that were answered are not there: the topic was cut, or is an old copy.
    #[error(
        "take the inbox up: {topic} ends at offset {end}, and is answered up to {next}: its tail has been lost, and \
         other letters would get the same offsets. Put the topic back as it was, or run without an inbox"
    )]
    Cut {
        /// Which.
        topic: Arc<str>,
        /// The offset that the next letter would get.
        end: u64,
        /// The first that is not answered.
        next: u64,
    },
    /// An operator gave up an offset that no letter has got yet.
    #[error(
        "cannot skip inbox message {skip}: {topic} ends at offset {end}\n\
         hint: --skip-inbox gives up every unanswered message up to its offset; name an offset that is there, or leave the \
         flag out"
    )]
    SkipsTooFar {
        /// Name of the topic.
        topic: Arc<str>,
        /// The offset that was given up.
        skip: u64,
        /// The offset that the next letter would get.
        end: u64,
    },
}

/// Where to begin in a topic that holds the offsets of `log`: its start, and that which the next letter will get.
pub fn check(watermark: Option<&Watermark>, topic: &Topic, log: &Range<u64>) -> Result<u64, InboxGone> {
    let Some(Watermark { topic: was, next }) = watermark else { return Ok(log.start) };
    let (was, next, is) = (Arc::clone(was), *next, Arc::clone(&topic.0));
    if was != is {
        Err(InboxGone::Another { was, next, is })
    } else if log.start > next {
        Err(InboxGone::Removed { topic: is, start: log.start, next })
    } else if log.end < next {
        Err(InboxGone::Cut { topic: is, end: log.end, next })
    } else {
        Ok(next)
    }
}

/// An inbox that may be taken up: what a decider needs to know of it.
#[derive(Clone, Debug)]
pub struct Inbox {
    topic: Topic,
    binding: Binding,
    next: u64,
    tail: u64,
    continues: Arc<AtomicU64>,
    /// Offset up to which unanswered messages are given up at the takeover, which records that.
    skips: Option<u64>,
}

impl Inbox {
    /// The topic holds the offsets of `log` now; the watermark is that of the state that the decider begins with. See
    /// [`check`].
    pub fn take_up(
        topic: Topic,
        binding: Binding,
        watermark: Option<&Watermark>,
        log: &Range<u64>,
    ) -> Result<Inbox, InboxGone> {
        let next = check(watermark, &topic, log)?;
        Ok(Inbox { topic, binding, next, tail: log.end, continues: Arc::default(), skips: None })
    }

    /// Takes up an inbox of which an operator gave up every unanswered letter up to the offset `skip`, also letters that are
    /// not there any more, and those that end a server that reads them. The takeover records that.
    pub fn take_up_behind(
        skip: u64,
        topic: Topic,
        binding: Binding,
        watermark: Option<&Watermark>,
        log: &Range<u64>,
    ) -> Result<Inbox, InboxGone> {
        let answered = watermark.map_or(log.start, |watermark| watermark.next);
        let next = skip.saturating_add(1);
        // A takeover before has recorded it; or more letters are missing than were given up.
        if skip < answered || log.start > next {
            return Inbox::take_up(topic, binding, watermark, log);
        }
        let inbox = Inbox::take_up(topic, binding, watermark, &(log.start.min(answered)..log.end))?;
        if skip >= log.end {
            return Err(InboxGone::SkipsTooFar { topic: inbox.topic.0, skip, end: log.end });
        }
        Ok(Inbox { next, skips: Some(skip), ..inbox })
    }

    /// The offset that the takeover records as skipped, if there is one.
    pub(super) fn skips(&self) -> Option<u64> {
        self.skips
    }

    /// The offset of the first letter that is to be read.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The offset from which to read on where a message cannot be read: behind the last one that was skipped.
    pub fn continues(&self) -> u64 {
        self.continues.load(Ordering::Acquire)
    }

    /// The offset that the next letter would have got when it was taken up.
    pub fn tail(&self) -> u64 {
        self.tail
    }
}

/// How far a decider has come.
#[derive(Debug)]
pub(super) struct Reading {
    inbox: Inbox,
    /// The watermark that the last commit carries.
    carried: u64,
    /// Since when no commit carries what has been answered.
    lags: Option<Time>,
    /// The offset of a message that cannot be read.
    stands_at: Option<u64>,
}

impl Reading {
    pub(super) fn new(inbox: Inbox) -> Reading {
        Reading { carried: inbox.next, inbox, lags: None, stands_at: None }
    }

    pub(super) fn skips(&self) -> Option<u64> {
        self.inbox.skips()
    }

    /// Whether everything has been taken that was there when this decider took over.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.inbox.next >= self.inbox.tail
    }

    /// For the header of the commit that is closed now.
    pub(super) fn carry(&mut self) -> Watermark {
        (self.carried, self.lags) = (self.inbox.next, None);
        Watermark { topic: Arc::clone(&self.inbox.topic.0), next: self.inbox.next }
    }

    fn advance(&mut self, next: u64, now: Time) {
        if next > self.inbox.next {
            self.inbox.next = next;
            self.stands_at = None;
            self.lags.get_or_insert(now);
        }
    }

    /// When a commit of its own is due for the watermark.
    pub(super) fn due(&self) -> Option<Time> {
        let lags = self.lags?;
        Some(if self.inbox.next - self.carried >= LETTERS { lags } else { lags + LAG })
    }
}

impl Core {
    /// Answers a letter. One below the watermark is answered already.
    pub(super) fn letter(&mut self, letter: &Letter, now: Time) {
        let Some(reading) = &self.inbox else {
            tracing::error!(offset = letter.offset, "a letter came, and there is no inbox; it is left");
            return;
        };
        if letter.offset < reading.inbox.next {
            return;
        }
        self.set_time(now);
        // Its commit must not be closed between the answer and the watermark.
        self.make_room();
        let Some(reading) = &self.inbox else { return };
        let binding = &reading.inbox.binding;
        let read = catch_unwind(AssertUnwindSafe(|| {
            let request = letter.request(&binding.actor)?;
            let allowed = binding.check(&request.intent);
            Ok((request, allowed))
        }));
        match read.unwrap_or_else(|panic| Err(internal(&told(&*panic)))) {
            Ok((request, allowed)) => self.letter_asks(letter, &request, allowed),
            Err(refusal) => self.refuse_letter(letter, refusal),
        }
        self.inbox_passed(letter.offset.saturating_add(1), now);
    }

    /// There is no letter below `next` that has not come: what the reader knows at the end of its topic, where offsets
    /// may hold no letters.
    pub(super) fn inbox_passed(&mut self, next: u64, now: Time) {
        self.set_time(now);
        let time = self.time;
        let Some(reading) = &mut self.inbox else { return };
        let was = reading.is_up_to_date();
        reading.advance(next, time);
        if !was && reading.is_up_to_date() {
            // What was asked meanwhile has been taken; now everybody has a lease to come back.
            self.agenda.grace = chancery_machine::grace::DeadlineGrace::until(time + self.settings.lease);
        }
    }

    /// The message at `offset` cannot be read; there is no other below that has not come.
    pub(super) fn inbox_stands(&mut self, offset: u64, now: Time) {
        self.inbox_passed(offset, now);
        if let Some(reading) = &mut self.inbox
            && offset == reading.inbox.next
        {
            reading.stands_at = Some(offset);
        }
    }

    /// Whether an intent may be decided, as far as the inbox is concerned: no message may be skipped that can be read.
    pub(super) fn may_skip(&self, intent: &Intent) -> Result<(), Refusal> {
        let Intent::InboxSkip(InboxSkip { offset }) = intent else { return Ok(()) };
        let stands_at = self.inbox.as_ref().and_then(|reading| reading.stands_at);
        if stands_at == Some(*offset) {
            return Ok(());
        }
        let detail = match stands_at {
            Some(at) => format!("the inbox stands at offset {at}, not at {offset}"),
            None => "the inbox stands at no message".to_owned(),
        };
        Err(Refusal::new(Code::BadTransition, detail))
    }

    /// What was decided of an intent, as far as the inbox is concerned. In the commit of the verdict.
    pub(super) fn skip(&mut self, intent: &Intent) {
        let (Intent::InboxSkip(skip), time) = (intent, self.time) else { return };
        self.inbox_passed(skip.offset.saturating_add(1), time);
        if let Some(reading) = &self.inbox {
            reading.inbox.continues.store(reading.inbox.next, Ordering::Release);
        }
    }

    fn letter_asks(&mut self, letter: &Letter, request: &Request, allowed: Result<(), Refusal>) {
        match self.settle(request, allowed) {
            // It was answered when it came first, in this commit or an earlier one.
            Settled::Before(_) | Settled::Now(_) => {}
            Settled::Failed(refusal) => self.refuse_letter(letter, refusal),
        }
    }

    fn refuse_letter(&mut self, letter: &Letter, Refusal { code, detail, .. }: Refusal) {
        let Some(reading) = &self.inbox else { return };
        let topic = reading.inbox.topic.to_string();
        if code == Code::Internal {
            tracing::error!(topic, offset = letter.offset, detail, "a letter could not be answered");
        }
        let (offset, digest) = (letter.offset, letter.digest());
        self.commit_own(InboxRefused { topic, offset, digest, code, detail }.into());
    }

    /// Carries the watermark, if it has been due for a commit of its own.
    pub(super) fn carry_watermark(&mut self) {
        if self.inbox.as_ref().and_then(Reading::due).is_some_and(|due| due <= self.time) {
            self.advance_inbox();
        }
    }

    /// Carries the watermark, if no commit does: nothing more comes.
    pub(super) fn last_letter(&mut self, now: Time) {
        self.set_time(now);
        if self.inbox.as_ref().is_some_and(|reading| reading.lags.is_some()) {
            self.advance_inbox();
        }
    }

    fn advance_inbox(&mut self) {
        // The commit in the making carries it too.
        if !self.draft.is_empty() {
            return;
        }
        let Some(Reading { inbox, .. }) = &self.inbox else { return };
        let (topic, next) = (inbox.topic.to_string(), inbox.next);
        self.commit_own(InboxAdvanced { topic, next }.into());
    }

    /// A fact about the inbox, or the time, has no cause in the journal: it is its own, as a takeover is.
    pub(super) fn commit_own(&mut self, fact: Fact) {
        let (cause, type_name) = (self.next(), fact.type_name());
        if let Err(failure) = self.commit_events(&[Event::Fact { cause, fact }]) {
            tracing::error!(type_name, %failure, "a fact without a cause could not be folded");
        }
    }
}
