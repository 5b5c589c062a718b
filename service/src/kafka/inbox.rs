//! The inbox topic: brings its letters to the decider, from where the journal says on, for as long as there is one here.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use chancery_events::letter::{Binding, Letter};
use chancery_events::record::Watermark;
use chancery_journal::kafka::{Client, is_gone, offsets};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _};
use tokio::runtime::Handle;

use crate::decider::inbox::{Inbox, Topic};
use crate::decider::{Decider, Input};

/// How long a question to the brokers may take.
const ASKING: Duration = Duration::from_secs(10);
/// How long nothing must come before the last offsets are taken to hold no letters.
const QUIET: Duration = Duration::from_secs(2);
/// How long to wait for a letter before looking whether there still is a decider.
const WAIT: Duration = Duration::from_millis(100);

/// Which topic, and for whom it speaks.
#[derive(Clone, Debug)]
pub(super) struct Letters {
    pub(super) client: Client,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) binding: Binding,
}

impl Letters {
    /// What the topic holds, beside what the journal has answered of it.
    pub(super) fn take_up(&self, watermark: Option<&Watermark>) -> Result<Inbox> {
        let asking = self.client.watcher().context("reach the brokers for the inbox")?;
        let (start, end) = offsets(&asking, &self.topic, self.partition)
            .with_context(|| format!("ask for the first and last offset of {}", self.topic))?;
        let cluster = asking.client().fetch_cluster_id(ASKING).context("ask for the cluster's id")?;
        // The name is the best identity that the client library tells of a topic.
        let topic: Topic = format!("{cluster}/{}/{}", self.topic, self.partition).parse()?;
        let log = u64::try_from(start)?..u64::try_from(end)?;
        Ok(Inbox::take_up(topic, self.binding.clone(), watermark, &log)?)
    }

    /// How far the topic goes, as the broker says that leads it.
    fn ends(&self, reader: &BaseConsumer) -> Option<u64> {
        match reader.fetch_watermarks(&self.topic, self.partition, ASKING) {
            Ok((_, end)) => u64::try_from(end).ok(),
            Err(error) => {
                tracing::warn!(%error, topic = self.topic, "nobody says how far the inbox goes");
                None
            }
        }
    }

    /// Brings letters to the decider until it has stopped. Blocks.
    pub(super) fn bring(&self, next: u64, tail: u64, decider: &Decider, runtime: &Handle) {
        let reader =
            match i64::try_from(next).map(|from| self.client.reader(&self.topic, self.partition, from)) {
                Ok(Ok(reader)) => reader,
                Ok(Err(error)) => return give_up(decider, runtime, &error.to_string()),
                Err(error) => return give_up(decider, runtime, &error.to_string()),
            };
        let mut end = End { tail, is_passed: false, since: None };
        let mut next = next;
        while !decider.has_stopped() {
            let told = match reader.poll(WAIT) {
                Some(Ok(message)) => {
                    let letter = letter(&message);
                    next = letter.offset + 1;
                    end.since = None;
                    runtime.block_on(decider.post(letter))
                }
                None | Some(Err(KafkaError::PartitionEOF(_))) => {
                    match end.passed(next, || self.ends(&reader)) {
                        Some(next) => runtime.block_on(decider.tell(Input::InboxPassed(next))),
                        None => continue,
                    }
                }
                Some(Err(error)) if is_gone(&error) => {
                    return give_up(decider, runtime, &error.to_string());
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, topic = self.topic, "reading the inbox waits");
                    continue;
                }
            };
            if told.is_err() {
                return;
            }
        }
    }
}

/// Whether everything has come that was there at the take-over.
///
/// The last offsets may hold no letters, so that the next offset says nothing by itself. Nor does it that nothing comes:
/// a broker that has just begun to lead may not know yet how far the topic goes. So the one that leads must say that it
/// goes as far, and then nothing must come for a while.
struct End {
    tail: u64,
    is_passed: bool,
    /// Since when nothing has come, although the topic goes to the tail.
    since: Option<Instant>,
}

impl End {
    /// Up to where the topic has been read, once, when that is as far as the tail; nothing came just now. `ends` asks
    /// how far the topic goes.
    fn passed(&mut self, next: u64, ends: impl FnOnce() -> Option<u64>) -> Option<u64> {
        if self.is_passed {
            return None;
        }
        let is_quiet = self.since.is_some_and(|since| since.elapsed() > QUIET);
        if next < self.tail && !is_quiet {
            if self.since.is_none() && ends().is_some_and(|ends| ends >= self.tail) {
                self.since = Some(Instant::now());
            }
            return None;
        }
        self.is_passed = true;
        Some(next.max(self.tail))
    }
}

/// Without its inbox nobody may decide here: whoever takes over next finds out what is wrong with it.
fn give_up(decider: &Decider, runtime: &Handle, why: &str) {
    tracing::error!(why, "the inbox cannot be read any more");
    let _ = runtime.block_on(decider.tell(Input::Drain));
}

fn letter(message: &BorrowedMessage<'_>) -> Letter {
    let headers = message.headers().into_iter().flat_map(rdkafka::message::Headers::iter);
    Letter {
        offset: u64::try_from(message.offset()).unwrap_or_default(),
        headers: headers
            .map(|header| (header.key.to_owned(), header.value.unwrap_or_default().to_vec()))
            .collect(),
        value: message.payload().map(<[u8]>::to_vec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_passed_that_a_broker_does_not_know_of_yet() {
        let mut end = End { tail: 100, is_passed: false, since: None };
        // A leader that is behind: what comes later must not be taken for answered.
        assert_eq!(end.passed(90, || Some(90)), None);
        assert!(end.since.is_none());
        assert_eq!(end.passed(90, || None), None);
        assert_eq!(end.passed(90, || Some(100)), None, "it may just not have come yet");
        end.since = Instant::now().checked_sub(QUIET * 2);
        assert_eq!(end.passed(90, || panic!("it was asked")), Some(100), "what is left there is no letter");
        assert_eq!(end.passed(90, || None), None, "it is told once");
        let mut end = End { tail: 100, is_passed: false, since: None };
        assert_eq!(end.passed(100, || None), Some(100), "all have come");
    }
}
