//! Cursor of a follower of the journal: in the hub's ring, or in the journal for older records.

use std::sync::Arc;
use std::time::Duration;

use chancery_decider::hub::{EventHub, FollowerGuard, HubRead, RenderedRecord, show};
use chancery_events::event::EventLine;
use chancery_events::id::Position;
use chancery_events::text::counted;
use chancery_journal::{JournalReader, ReadError, RecordIter};
use tokio::sync::watch;

use super::FleetApi;
use super::event_filter::EventFilter;
use super::problem::{BUSY, ProblemDetails};
use super::read::in_turn;

/// Maximum number of records taken from the ring at one time.
const TAKE: usize = 64;
/// Bytes of records taken from the ring or the journal at one time; the last record may exceed the limit.
const READ_BYTES: usize = 128 << 10;
/// Maximum number of switches between ring and journal without a record.
const ROUNDS: u32 = 10;

/// Counts a stream until the result is dropped; `doing` describes the stream if there are too many.
pub(super) fn admit(app: &FleetApi, doing: &str) -> Result<FollowerGuard, ProblemDetails> {
    let most = app.common.limits.followers;
    app.hub.follow(most).ok_or_else(|| {
        let detail = format!("cannot {doing}: the limit of {} is reached", counted(most, "stream"));
        ProblemDetails::new(BUSY, detail)
    })
}

/// Result of a read by a follower.
pub(super) enum FollowerRead {
    Batches(Vec<Arc<RenderedRecord>>),
    Nothing,
    Failed,
}

/// Reason for the end of a wait.
pub(super) enum FollowerWake {
    New,
    Heartbeat,
    Closing,
}

/// Position of a follower, in the ring or in the journal.
pub(super) struct FollowerPosition {
    hub: Arc<EventHub>,
    source: Arc<dyn JournalReader>,
    tail: watch::Receiver<Position>,
    closing: watch::Receiver<bool>,
    heartbeat: tokio::time::Interval,
    /// Records of the journal, while the follower reads the journal.
    records: Option<RecordIter>,
    in_ring: bool,
    was_at_tail: bool,
}

impl FollowerPosition {
    pub(super) fn new(app: &FleetApi, next: Position) -> FollowerPosition {
        let mut heartbeat = tokio::time::interval(app.common.limits.heartbeat);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        heartbeat.reset();
        let in_ring = matches!(app.hub.read(next, 1, 0), HubRead::Batches(_));
        FollowerPosition {
            hub: app.hub.clone(),
            source: app.source.clone(),
            tail: app.hub.tail(),
            closing: app.hub.closing(),
            heartbeat,
            records: None,
            in_ring,
            was_at_tail: false,
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Whether the follower has reached the tail for the first time since it was behind.
    pub(super) fn is_new_at_tail(&mut self) -> bool {
        !std::mem::replace(&mut self.was_at_tail, true)
    }

    /// Returns the records from `next` on, from the ring or from the journal.
    pub(super) async fn next(&mut self, next: Position, wanted: &EventFilter) -> FollowerRead {
        let mut rounds = 0;
        loop {
            if self.in_ring {
                match self.hub.read(next, TAKE, READ_BYTES) {
                    HubRead::Batches(batches) => return FollowerRead::Batches(batches),
                    HubRead::Wait => return FollowerRead::Nothing,
                    HubRead::Behind => self.in_ring = false,
                }
            }
            self.was_at_tail = false;
            match self.read_journal(next, wanted).await {
                Ok(batches) if batches.is_empty() => {
                    self.records = None;
                    self.in_ring = true;
                    // The ring may have advanced since; the journal has the records that the ring dropped.
                    rounds += 1;
                    if rounds > ROUNDS {
                        return FollowerRead::Failed;
                    }
                }
                Ok(batches) => return FollowerRead::Batches(batches),
                Err(()) => return FollowerRead::Failed,
            }
        }
    }

    /// Returns the next records of the journal, rendered if they may match the filter; none at the journal's
    /// head. It reads files, so it does not run on the threads that serve connections.
    async fn read_journal(
        &mut self,
        next: Position,
        wanted: &EventFilter,
    ) -> Result<Vec<Arc<RenderedRecord>>, ()> {
        let (records, source, wanted) = (self.records.take(), self.source.clone(), wanted.clone());
        let read = in_turn(&self.hub.readers, "read the journal for a stream", move || {
            let mut records = match records {
                Some(records) => records,
                None => source.records(next)?,
            };
            let (mut batches, mut bytes) = (Vec::new(), 0);
            while bytes < READ_BYTES {
                let Some(record) = records.next().transpose()? else { break };
                bytes += record.bytes().len();
                let may = |line: &EventLine<'_>| wanted.may(line);
                let shown = show(&record, if wanted.is_all() { None } else { Some(&may) });
                batches.push(Arc::new(RenderedRecord::with(record, shown)));
            }
            Ok::<_, ReadError>((records, batches))
        });
        // The cause is in the log.
        let read = read.await.map_err(drop)?;
        let (records, batches) =
            read.map_err(|error| tracing::error!(%error, "journal read for stream failed"))?;
        self.records = Some(records);
        Ok(batches)
    }

    /// Waits until there is a record from `next` on.
    pub(super) async fn wait(&mut self, next: Position) -> FollowerWake {
        tokio::select! {
            biased;
            _ = self.closing.wait_for(|closing| *closing) => FollowerWake::Closing,
            _ = self.tail.wait_for(|tail| *tail >= next) => FollowerWake::New,
            _ = self.heartbeat.tick() => FollowerWake::Heartbeat,
        }
    }

    /// Waits when there are many followers, so that each write has more events: with 1,000 followers, 20 ms.
    pub(super) async fn pace(&mut self) {
        let pause = Duration::from_millis((self.hub.followers() / 50).min(50) as u64);
        if self.in_ring && !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}
