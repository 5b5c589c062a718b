//! Invariant 10, as far as a journal alone shows it: the watermark of the inbox, and its refused messages.

use std::sync::Arc;

use chancery_events::fact::{InboxAdvanced, InboxMessageRefused, InboxSkipped};
use chancery_events::record::{InboxWatermark, RecordHeader};

use super::violation::{RuleResult, demand};

/// Progress of answers to the inbox.
#[derive(Clone, Default, Debug)]
pub(super) struct InboxAnswers {
    /// Watermark after the record.
    now: Option<InboxWatermark>,
    /// First offset that the rest of the record may refuse.
    from: u64,
    /// Whether the record has a watermark.
    has_watermark: bool,
}

impl InboxAnswers {
    pub(super) fn take(&mut self, header: &RecordHeader) -> RuleResult {
        self.has_watermark = header.watermark.is_some();
        let Some(now) = &header.watermark else { return Ok(()) };
        if let Some(InboxWatermark { topic, next }) = &self.now {
            demand!(10, now.topic == *topic, "the inbox was {topic}, and is {}", now.topic);
            demand!(10, now.next >= *next, "the inbox was answered up to {next}, and is up to {}", now.next);
        }
        self.from = self.now.as_ref().map_or(0, |last| last.next);
        self.now = Some(now.clone());
        Ok(())
    }

    pub(super) fn message_refused(&mut self, fact: &InboxMessageRefused) -> RuleResult {
        let next = self.up_to(&fact.topic)?;
        self.answered(fact.offset, next)
    }

    pub(super) fn skipped(&mut self, fact: &InboxSkipped) -> RuleResult {
        let topic = self.now.as_ref().map(|now| Arc::clone(&now.topic)).unwrap_or_default();
        let next = self.up_to(&topic)?;
        self.answered(fact.offset, next)
    }

    fn answered(&mut self, offset: u64, next: u64) -> RuleResult {
        demand!(10, offset >= self.from, "offset {offset} of the inbox is answered again");
        demand!(10, offset < next, "offset {offset} is answered, and the watermark is {next}");
        self.from = offset + 1;
        Ok(())
    }

    pub(super) fn advanced(&self, fact: &InboxAdvanced) -> RuleResult {
        let next = self.up_to(&fact.topic)?;
        // Messages that were answered before the commit was closed may be included.
        let within = fact.next > self.from && fact.next <= next;
        demand!(10, within, "the inbox is called answered up to {}, from {} to {next}", fact.next, self.from);
        Ok(())
    }

    fn up_to(&self, topic: &str) -> Result<u64, super::InvariantViolation> {
        let known = self.now.as_ref().filter(|now| self.has_watermark && Arc::as_ref(&now.topic) == topic);
        known.map(|now| now.next).ok_or_else(|| {
            super::InvariantViolation::new(
                10,
                format!("a message of {topic} is answered, and no watermark is recorded"),
            )
        })
    }
}
