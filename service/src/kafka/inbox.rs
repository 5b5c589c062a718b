//! The inbox topic: brings its letters to the decider, from where the journal says on, for as long as there is one here.

use std::time::Duration;

use anyhow::{Context as _, Result};
use chancery_events::letter::{Binding, Letter};
use chancery_events::record::Watermark;
use chancery_journal::kafka::Client;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::runtime::Handle;

use crate::decider::inbox::{Inbox, Topic};
use crate::decider::{Decider, Input};

/// How long a question to the brokers may take.
const ASKING: Duration = Duration::from_secs(10);
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
        let (start, end) = asking
            .fetch_watermarks(&self.topic, self.partition, ASKING)
            .with_context(|| format!("ask for the first and last offset of {}", self.topic))?;
        let cluster = asking.client().fetch_cluster_id(ASKING).context("ask for the cluster's id")?;
        // The name is the best identity that the client library tells of a topic.
        let topic: Topic = format!("{cluster}/{}/{}", self.topic, self.partition).parse()?;
        let log = u64::try_from(start)?..u64::try_from(end)?;
        Ok(Inbox::take_up(topic, self.binding.clone(), watermark, &log)?)
    }

    /// Brings letters to the decider until it has stopped. Blocks.
    pub(super) fn bring(&self, next: u64, tail: u64, decider: &Decider, runtime: &Handle) {
        let reader =
            match i64::try_from(next).map(|from| self.client.reader(&self.topic, self.partition, from)) {
                Ok(Ok(reader)) => reader,
                Ok(Err(error)) => return give_up(decider, runtime, &error.to_string()),
                Err(error) => return give_up(decider, runtime, &error.to_string()),
            };
        let mut passed = false;
        let mut next = next;
        while !decider.has_stopped() {
            let told = match reader.poll(WAIT) {
                None => continue,
                Some(Ok(message)) => {
                    let letter = letter(&message);
                    next = letter.offset + 1;
                    runtime.block_on(decider.post(letter))
                }
                // The last offsets may hold nothing that is a letter. What was there at the take-over has come by now.
                Some(Err(KafkaError::PartitionEOF(_))) if !passed => {
                    passed = true;
                    runtime.block_on(decider.tell(Input::InboxPassed(next.max(tail))))
                }
                Some(Err(KafkaError::PartitionEOF(_))) => continue,
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

/// Without its inbox nobody may decide here: whoever takes over next finds out what is wrong with it.
fn give_up(decider: &Decider, runtime: &Handle, why: &str) {
    tracing::error!(why, "the inbox cannot be read any more");
    let _ = runtime.block_on(decider.tell(Input::Drain));
}

fn is_gone(error: &KafkaError) -> bool {
    match error {
        KafkaError::MessageConsumptionFatal(_) => true,
        KafkaError::MessageConsumption(code) => {
            matches!(code, Code::OffsetOutOfRange | Code::AutoOffsetReset)
        }
        _ => false,
    }
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
