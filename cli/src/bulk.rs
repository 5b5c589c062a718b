//! Many intents, sent in batches, in their order, and reported one by one.
//!
//! | answer | next step |
//! |---|---|
//! | to an intent: a verdict or a refusal | report it |
//! | to an intent: 503 or 504 | send it again with the same key, with the others without an answer |
//! | to the batch: too large | send smaller batches |
//! | to the batch: any other answer | as for one intent, see [`super::client`] |
//!
//! Invariants: no intent is sent before all intents of earlier batches have their answers, so that an intent
//! may depend on an earlier one. All attempts of an intent have one key and one time.

use std::io::Write as _;

use chancery_events::intent::Intent;
use serde_json::Value;

use super::client::{ApiClient, FinalReply, TRIES, VerdictResponse, not_ours};
use super::error::CliError;

/// Media type of a batch of intents.
pub(super) const BATCH: &str = "application/cloudevents-batch+json";
/// Maximum number of intents in a batch, which is the limit of servers.
const MOST: usize = 1000;
/// Maximum size of a batch in bytes, unless a single intent is larger: half of the default body limit of
/// servers.
const BYTES: usize = 512 << 10;

/// Intent, and the start of its errors, as in `nodes.yaml:3:1: cannot apply node/node-1`.
pub(super) struct BulkIntent<'i> {
    pub(super) doing: String,
    pub(super) intent: &'i Intent,
}

/// Outcome of an intent.
pub(super) type BulkOutcome = Result<VerdictResponse, CliError>;

/// Sends the intents, and reports the verdict on each in their order. An error of a batch stops the function
/// after the answers before it are reported. `what` names the intents in the progress, as in `documents`.
pub(super) fn ask_all(
    client: &ApiClient<'_>,
    what: &str,
    asks: &[BulkIntent<'_>],
    report: &mut dyn FnMut(usize, BulkOutcome) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let shows_progress = client.context.shows_progress && asks.len() > MOST;
    let progress = |text: &str| {
        if shows_progress {
            let mut screen = std::io::stderr().lock();
            // A closed terminal needs no progress.
            let _ = screen.write_all(text.as_bytes()).and_then(|()| screen.flush());
        }
    };
    let mut first = 0;
    let mut most = MOST;
    while first < asks.len() {
        // The cursor stays at the start of the line, so that the next output overwrites the progress.
        progress(&format!("\u{1b}[K{first} of {} {what}\r", asks.len()));
        let mut batch = IntentBatch::prepare(client, &asks[first..], most);
        let sent = batch.send(client);
        progress("\u{1b}[K");
        most = batch.most;
        let count = batch.answers.len();
        let mut answers = batch.answers.into_iter().enumerate();
        answers.try_for_each(|(at, answer)| answer.map_or(Ok(()), |answer| report(first + at, answer)))?;
        sent?;
        first += count;
    }
    Ok(())
}

/// Intents of one batch, and their answers.
struct IntentBatch<'a> {
    asks: &'a [BulkIntent<'a>],
    envelopes: Vec<String>,
    answers: Vec<Option<BulkOutcome>>,
    /// Maximum number of intents that the server accepts in a batch.
    most: usize,
}

impl<'a> IntentBatch<'a> {
    fn prepare(client: &ApiClient<'_>, asks: &'a [BulkIntent<'a>], most: usize) -> IntentBatch<'a> {
        let (mut envelopes, mut bytes) = (Vec::new(), 0);
        for ask in asks.iter().take(most) {
            let envelope = client.envelope(ask.intent, None);
            bytes += envelope.len() + 1;
            if bytes > BYTES && !envelopes.is_empty() {
                break;
            }
            envelopes.push(envelope);
        }
        let answers = envelopes.iter().map(|_| None).collect();
        IntentBatch { asks, envelopes, answers, most }
    }

    /// Sends the intents without an answer until all have one.
    fn send(&mut self, client: &ApiClient<'_>) -> Result<(), CliError> {
        let (mut tries, mut is_unknown) = (0, false);
        loop {
            let open: Vec<_> =
                (0..self.answers.len()).filter(|at| self.answers[*at].is_none()).take(self.most).collect();
            let Some(first) = open.first() else { return Ok(()) };
            let doing = &self.asks[*first].doing;
            let bodies: Vec<_> = open.iter().map(|at| self.envelopes[*at].as_str()).collect();
            let sent = client.post(doing, BATCH, &format!("[{}]", bodies.join(",")))?;
            let FinalReply { status, body, was_lost } = sent;
            is_unknown |= was_lost;
            if status == 413 && open.len() > 1 {
                self.most = open.len() / 2;
                continue;
            }
            if status != 200 {
                return Err(client.refused(doing, status, &body));
            }
            let items: Vec<Value> = serde_json::from_str(&body).map_err(|error| not_ours(doing, error))?;
            if items.len() != open.len() {
                return Err(not_ours(doing, "number of items differs from the request"));
            }
            let mut late = None;
            let mut answered = 0;
            for (index, (at, item)) in open.iter().zip(items).enumerate() {
                let status =
                    item["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or(0);
                if matches!(status, 503 | 504) {
                    is_unknown |= status == 504;
                    late.get_or_insert((*at, status, item.to_string()));
                    continue;
                }
                answered += 1;
                self.answers[*at] = Some(client.item(&self.asks[*at].doing, index, status, item));
            }
            tries = if answered > 0 { 0 } else { tries + 1 };
            let Some((at, status, item)) = late else { continue };
            if tries >= TRIES {
                let doing = &self.asks[at].doing;
                // After an unknown outcome, "busy" to a later attempt leaves the outcome unknown.
                return Err(if is_unknown {
                    client.unknown(doing)
                } else {
                    client.refused(doing, status, &item)
                });
            }
            client.back_off(tries);
        }
    }
}
