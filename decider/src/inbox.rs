//! Inbox: messages of a topic, each answered once and in order of offsets, however often a decider dies or
//! changes.
//!
//! No caller waits for the answer to an inbox message: the journal records it. The *watermark*, the offset of
//! the first unanswered message, is in each commit's header. So a message and its answer are durable
//! together, and the next decider continues after them.
//!
//! | an inbox message | what is recorded |
//! |---|---|
//! | requests an intent | the intent, its verdict, and its facts, as over HTTP |
//! | requests an intent that its topic must not request | the intent, refused as `denied` |
//! | repeats an intent | nothing: its verdict is recorded already |
//! | cannot be read, or failed in a way that must not happen | `inbox.message_refused` |
//! | is below the watermark | nothing: it is answered already |
//! | cannot be fetched from the topic | nothing, until a client requests `inbox.skip`: then `inbox.skipped` |
//! | is skipped by an operator at a start | `inbox.skipped`, by the takeover, before the inbox is read |
//!
//! If nothing was recorded, `inbox.advanced` carries the watermark: a second later, or after a thousand
//! messages.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chancery_events::event::Event;
use chancery_events::fact::{Fact, InboxAdvanced, InboxMessageRefused};
use chancery_events::inbox_message::{InboxBinding, InboxMessage};
use chancery_events::intent::{InboxSkip, Intent};
use chancery_events::name::Actor;
use chancery_events::record::InboxWatermark;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::time::Time;

use super::core::{DeciderCore, RequestOutcome, internal, panic_message};
use super::handle::UnchangedVerdict;

/// Time after which an inbox watermark that no commit contains gets a commit of its own.
const LAG: Duration = Duration::from_secs(1);
/// Number of messages after which an inbox watermark that no commit contains gets a commit of its own.
const MESSAGES: u64 = 1000;

/// Permanent name of an inbox: the name, id and partition of its topic, as text in the form that its reader
/// defines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxTopic(Arc<str>);

/// Error for text that names no topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid inbox topic: must have 1–400 visible ASCII characters, without quotes and backslashes")]
pub struct InvalidInboxTopic;

impl FromStr for InboxTopic {
    type Err = InvalidInboxTopic;
    /// Parses a topic. Its length is limited by the space that every record header reserves for it.
    fn from_str(text: &str) -> Result<InboxTopic, InvalidInboxTopic> {
        let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        let good = (1..=400).contains(&text.len()) && text.bytes().all(fits);
        if good { Ok(InboxTopic(text.into())) } else { Err(InvalidInboxTopic) }
    }
}

impl fmt::Display for InboxTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Error for an inbox that does not match the journal, so that a decider must not run with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InboxMismatch {
    /// Inbox other than the one whose messages the journal has answered.
    #[error(
        "cannot open inbox: the journal has answered {was} up to offset {next}, and the topic is now {is}\n\
         hint: restore the old topic, or run without an inbox; unanswered messages of a topic that was created again are \
         lost"
    )]
    Another {
        /// Topic that the journal has answered.
        was: Arc<str>,
        /// Offset of the first unanswered message.
        next: u64,
        /// Topic that exists now.
        is: Arc<str>,
    },
    /// Unanswered messages that have been removed.
    #[error(
        "cannot open inbox: {topic} starts at offset {start}, and is answered up to {next}: the messages between were \
         removed unanswered\nhint: restore them and retain them for longer, skip them (start one server once with \
         --skip-inbox {last}), or run without an inbox",
        last = .start - 1
    )]
    Removed {
        /// Name of the topic.
        topic: Arc<str>,
        /// First offset in the topic.
        start: u64,
        /// Offset of the first unanswered message.
        next: u64,
    },
    /// Answered messages that are missing: the topic was cut, or is an old copy.
    #[error(
        "cannot open inbox: {topic} ends at offset {end}, and is answered up to {next}: its tail is lost, and other \
         messages would get the same offsets\nhint: restore the topic, or run without an inbox"
    )]
    Cut {
        /// Name of the topic.
        topic: Arc<str>,
        /// Offset that the next message would get.
        end: u64,
        /// Offset of the first unanswered message.
        next: u64,
    },
    /// Offset to skip that is not below the end of the topic: no message has it yet.
    #[error(
        "cannot skip inbox message {skip}: {topic} ends at offset {end}\n\
         hint: --skip-inbox skips every unanswered message up to its offset; name an existing offset, or omit the \
         flag"
    )]
    SkipsTooFar {
        /// Name of the topic.
        topic: Arc<str>,
        /// Offset up to which the operator skips messages.
        skip: u64,
        /// Offset that the next message would get.
        end: u64,
    },
}

/// Returns the offset at which to start reading a topic. `log` starts at the first offset in the topic, and
/// ends at the offset of the next message.
pub fn check(
    watermark: Option<&InboxWatermark>,
    topic: &InboxTopic,
    log: &Range<u64>,
) -> Result<u64, InboxMismatch> {
    let Some(InboxWatermark { topic: was, next }) = watermark else { return Ok(log.start) };
    let (was, next, is) = (Arc::clone(was), *next, Arc::clone(&topic.0));
    if was != is {
        Err(InboxMismatch::Another { was, next, is })
    } else if log.start > next {
        Err(InboxMismatch::Removed { topic: is, start: log.start, next })
    } else if log.end < next {
        Err(InboxMismatch::Cut { topic: is, end: log.end, next })
    } else {
        Ok(next)
    }
}

/// Inbox that passed its check, for a decider.
#[derive(Clone, Debug)]
pub struct InboxStart {
    topic: InboxTopic,
    binding: InboxBinding,
    next: u64,
    tail: u64,
    continues: Arc<AtomicU64>,
    /// Offset up to which unanswered messages are skipped at the takeover, which records the skip.
    skips: Option<u64>,
}

impl InboxStart {
    /// Checks a topic that holds the offsets of `log`, with the watermark of the decider's first state. See
    /// [`check`].
    pub fn take_up(
        topic: InboxTopic,
        binding: InboxBinding,
        watermark: Option<&InboxWatermark>,
        log: &Range<u64>,
    ) -> Result<InboxStart, InboxMismatch> {
        let next = check(watermark, &topic, log)?;
        Ok(InboxStart { topic, binding, next, tail: log.end, continues: Arc::default(), skips: None })
    }

    /// Checks an inbox whose unanswered messages up to offset `skip` an operator skipped. Such messages may
    /// be missing, or end a server that reads them. The takeover records the skip.
    pub fn take_up_behind(
        skip: u64,
        topic: InboxTopic,
        binding: InboxBinding,
        watermark: Option<&InboxWatermark>,
        log: &Range<u64>,
    ) -> Result<InboxStart, InboxMismatch> {
        let answered = watermark.map_or(log.start, |watermark| watermark.next);
        let next = skip.saturating_add(1);
        // An earlier takeover recorded the skip; or more messages are missing than are skipped.
        if skip < answered || log.start > next {
            return InboxStart::take_up(topic, binding, watermark, log);
        }
        let inbox = InboxStart::take_up(topic, binding, watermark, &(log.start.min(answered)..log.end))?;
        if skip >= log.end {
            return Err(InboxMismatch::SkipsTooFar { topic: inbox.topic.0, skip, end: log.end });
        }
        Ok(InboxStart { next, skips: Some(skip), ..inbox })
    }

    /// Returns the offset that the takeover records as skipped, if there is one.
    pub(super) fn skips(&self) -> Option<u64> {
        self.skips
    }

    /// Returns the offset of the first message to read.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the offset after the last skipped message, at which reading continues after an unreadable
    /// message.
    pub fn continues(&self) -> u64 {
        self.continues.load(Ordering::Acquire)
    }

    /// Returns the end of the topic at [`InboxStart::take_up`]: the offset of the next message at that time.
    pub fn tail(&self) -> u64 {
        self.tail
    }
}

/// Progress of a decider in its inbox.
#[derive(Debug)]
pub(super) struct InboxProgress {
    inbox: InboxStart,
    /// Watermark of the last commit.
    carried: u64,
    /// Time since which no commit contains the watermark.
    lags: Option<Time>,
    /// Offset of a message that cannot be read.
    stands_at: Option<u64>,
}

impl InboxProgress {
    pub(super) fn new(inbox: InboxStart) -> InboxProgress {
        InboxProgress { carried: inbox.next, inbox, lags: None, stands_at: None }
    }

    pub(super) fn skips(&self) -> Option<u64> {
        self.inbox.skips()
    }

    /// Returns the offset of the next message.
    pub(super) fn next(&self) -> u64 {
        self.inbox.next
    }

    /// Whether all messages from before this decider's takeover have been taken.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.inbox.next >= self.inbox.tail
    }

    /// Returns the watermark for the commit that is sealed now.
    pub(super) fn carry(&mut self) -> InboxWatermark {
        (self.carried, self.lags) = (self.inbox.next, None);
        InboxWatermark { topic: Arc::clone(&self.inbox.topic.0), next: self.inbox.next }
    }

    fn advance(&mut self, next: u64, now: Time) {
        if next > self.inbox.next {
            self.inbox.next = next;
            self.stands_at = None;
            self.lags.get_or_insert(now);
        }
    }

    /// Returns when the watermark is due for its own commit.
    pub(super) fn due(&self) -> Option<Time> {
        let lags = self.lags?;
        Some(if self.inbox.next - self.carried >= MESSAGES { lags } else { lags + LAG })
    }
}

impl DeciderCore {
    /// Returns the actor of inbox messages, if there is an inbox.
    pub(super) fn inbox_actor(&self) -> Option<&Actor> {
        self.inbox.as_ref().map(|reading| &reading.inbox.binding.actor)
    }

    /// Answers an inbox message, unless its offset is below the watermark.
    pub(super) fn take_message(&mut self, message: &InboxMessage, now: Time) {
        let Some(reading) = &self.inbox else {
            tracing::error!(offset = message.offset, "inbox message ignored: no inbox");
            return;
        };
        if message.offset < reading.inbox.next {
            return;
        }
        self.set_time(now);
        // The commit must not be sealed between the answer and the watermark.
        self.seal_if_full();
        let Some(reading) = &self.inbox else { return };
        let binding = &reading.inbox.binding;
        let read = catch_unwind(AssertUnwindSafe(|| {
            let request = message.request(&binding.actor)?;
            let allowed = binding.check(&request.intent);
            Ok((request, allowed))
        }));
        let answered = read.unwrap_or_else(|panic| Err(internal(&panic_message(&*panic)))).and_then(
            // The journal is the only answer to a message, so a verdict that changes nothing is recorded too.
            |(request, allowed)| match self.settle(&request, allowed, UnchangedVerdict::Recorded) {
                // A repeat was answered before, in this commit or an earlier one. Every other accepted message is recorded.
                RequestOutcome::Before(_) | RequestOutcome::Now(_) | RequestOutcome::Unrecorded(Ok(_)) => {
                    Ok(())
                }
                RequestOutcome::Unrecorded(Err(refusal)) => Err(refusal),
            },
        );
        if let Err(refusal) = answered {
            self.refuse_message(message, refusal);
        }
        self.inbox_passed(message.offset.saturating_add(1), now);
    }

    /// Advances the watermark to `next`, below which no message is outstanding. The reader knows that at the
    /// end of its topic, where offsets may hold no messages.
    pub(super) fn inbox_passed(&mut self, next: u64, now: Time) {
        self.set_time(now);
        let time = self.time;
        let Some(reading) = &mut self.inbox else { return };
        let was = reading.is_up_to_date();
        reading.advance(next, time);
        if !was && reading.is_up_to_date() {
            // Older messages have been taken; now executors have a lease to reconnect.
            self.agenda.grace = chancery_machine::grace::DeadlineGrace::until(time + self.settings.lease);
        }
    }

    /// Notes that the message at `offset` cannot be read; no message below is outstanding.
    pub(super) fn inbox_blocked(&mut self, offset: u64, now: Time) {
        self.inbox_passed(offset, now);
        if let Some(reading) = &mut self.inbox
            && offset == reading.inbox.next
        {
            reading.stands_at = Some(offset);
        }
    }

    /// Checks an intent against the inbox: a message that can be read must not be skipped.
    pub(super) fn may_skip(&self, intent: &Intent) -> Result<(), Refusal> {
        let Intent::InboxSkip(InboxSkip { offset }) = intent else { return Ok(()) };
        let stands_at = self.inbox.as_ref().and_then(|reading| reading.stands_at);
        if stands_at == Some(*offset) {
            return Ok(());
        }
        let detail = match stands_at {
            Some(at) => format!("the inbox is blocked at offset {at}, not at {offset}"),
            None => "the inbox is not blocked".to_owned(),
        };
        Err(Refusal::new(RefusalCode::InvalidTransition, detail))
    }

    /// Applies an accepted intent that skips a message, in the commit of its verdict. Other intents have no
    /// effect.
    pub(super) fn skip(&mut self, intent: &Intent) {
        let (Intent::InboxSkip(skip), time) = (intent, self.time) else { return };
        self.inbox_passed(skip.offset.saturating_add(1), time);
        if let Some(reading) = &self.inbox {
            reading.inbox.continues.store(reading.inbox.next, Ordering::Release);
        }
    }

    fn refuse_message(&mut self, message: &InboxMessage, Refusal { code, detail, .. }: Refusal) {
        let Some(reading) = &self.inbox else { return };
        let topic = reading.inbox.topic.to_string();
        if code == RefusalCode::Internal {
            tracing::error!(topic, offset = message.offset, detail, "cannot answer inbox message");
        }
        let (offset, digest) = (message.offset, message.digest());
        self.commit_own(InboxMessageRefused { topic, offset, digest, code, detail }.into());
    }

    /// Commits the watermark, if its own commit is due.
    pub(super) fn carry_watermark(&mut self) {
        if self.inbox.as_ref().and_then(InboxProgress::due).is_some_and(|due| due <= self.time) {
            self.advance_inbox();
        }
    }

    /// Commits the watermark after the last input, unless an earlier commit or the draft commit contains it.
    pub(super) fn last_message(&mut self, now: Time) {
        self.set_time(now);
        if self.inbox.as_ref().is_some_and(|reading| reading.lags.is_some()) {
            self.advance_inbox();
        }
    }

    fn advance_inbox(&mut self) {
        // The draft commit contains the watermark anyway.
        if !self.draft.is_empty() {
            return;
        }
        let Some(InboxProgress { inbox, .. }) = &self.inbox else { return };
        let (topic, next) = (inbox.topic.to_string(), inbox.next);
        self.commit_own(InboxAdvanced { topic, next }.into());
    }

    /// Commits a fact about the inbox or the time, which is its own cause, as a takeover is.
    pub(super) fn commit_own(&mut self, fact: Fact) {
        let (cause, type_name) = (self.next(), fact.type_name());
        if let Err(failure) = self.commit_events(&[Event::Fact { cause, fact }]) {
            tracing::error!(type_name, %failure, "cannot fold fact");
        }
    }
}
