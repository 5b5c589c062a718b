//! The loop that delivers: what the topic holds, to the mirror, to whoever reads, to the sink.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chancery_events::record::Record;
use rdkafka::message::Message as _;

use super::place::Place;
use super::reader::{PartitionReader, Polled};
use super::{Options, Shared, give, lock};
use crate::chain::{Chain, Link};
use crate::journal::{Delivery, Journal as _, Sink};

/// How long to wait for a record before looking at everything else.
const WAIT: Duration = Duration::from_millis(20);
/// Records, or bytes of them, that are delivered together, at most.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 4 << 20;
/// How long brokers may be silent, or the end of the topic away, before that is a trouble.
const BEHIND: Duration = Duration::from_secs(10);
/// So often is the place in the topic kept.
const KEEP: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Loop {
    shared: Arc<Shared>,
    reader: PartitionReader,
    chain: Chain,
    sink: Sink,
    dir: PathBuf,
    topic: Arc<str>,
    partition: i32,
    outcome: Duration,
    batch: Vec<Arc<Record>>,
    bytes: usize,
    /// Of records that may not be durable in the mirror yet.
    places: VecDeque<Place>,
    kept: Instant,
    /// The offset that was kept last.
    stored: Option<i64>,
    closes: Option<Instant>,
    /// Whether the mirror takes records.
    has_mirror: bool,
    following: Following,
}

/// How the topic is followed.
struct Following {
    answers: u64,
    /// Up to where it was read when that was checked last.
    reached: i64,
    /// When the brokers were last known to have answered.
    heard: Instant,
    /// When everything was last known to have been read.
    read: Instant,
}

/// What keeps a topic from being followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum FollowingTrouble {
    #[error("the brokers do not answer")]
    Silent,
    #[error("it is read, and the end is {0} offsets away")]
    Behind(i64),
    #[error(
        "its leader reports that the topic ends at offset {tail}, and it was read up to offset {reached}: the leader does not \
         know the end yet, as too few brokers are in sync, or the topic has lost its end"
    )]
    Shorter { tail: i64, reached: i64 },
}

impl Following {
    fn new(now: Instant) -> Following {
        Following { answers: 0, reached: 0, heard: now, read: now }
    }

    /// What has kept the topic from being followed for [`BEHIND`]. The leader has given so many answers, and reported
    /// last that the topic ends at `tail`.
    fn check(
        &mut self,
        answers: u64,
        tail: i64,
        reached: Option<i64>,
        now: Instant,
    ) -> Option<FollowingTrouble> {
        // A client that was just made has had none.
        if answers > 0 && answers != self.answers {
            (self.answers, self.heard) = (answers, now);
        }
        let reached = reached.unwrap_or(tail);
        // What was just read may be behind the end that was reported last, for a moment.
        if tail == reached || (tail < reached && reached != self.reached) {
            self.read = now;
        }
        self.reached = reached;
        if now.duration_since(self.heard) > BEHIND {
            Some(FollowingTrouble::Silent)
        } else if now.duration_since(self.read) <= BEHIND {
            None
        } else if tail < reached {
            Some(FollowingTrouble::Shorter { tail, reached })
        } else {
            Some(FollowingTrouble::Behind(tail - reached))
        }
    }
}

/// That a transaction holds up a topic, and how an operator ends it.
pub fn waits_for_transaction(topic: &str, partition: i32, offset: i64) -> String {
    format!(
        "a transaction is open since offset {offset} of {topic} partition {partition}, and nothing behind it is read until it \
         ends: the brokers end it after its timeout (15 minutes at most, by default), `kafka-transactions abort --topic \
         {topic} --partition {partition} --start-offset {offset}` at once"
    )
}

/// The loop has ended, having told the sink why.
struct Stopped;

impl Loop {
    pub(super) fn new(
        options: &Options,
        shared: Arc<Shared>,
        reader: PartitionReader,
        chain: Chain,
        place: Option<Place>,
        sink: Sink,
    ) -> Loop {
        Loop {
            shared,
            reader,
            chain,
            sink,
            dir: options.mirror.dir.clone(),
            topic: options.topic.as_str().into(),
            partition: options.partition,
            outcome: options.outcome,
            batch: Vec::new(),
            bytes: 0,
            places: place.into_iter().collect(),
            kept: Instant::now(),
            stored: None,
            closes: None,
            has_mirror: true,
            following: Following::new(Instant::now()),
        }
    }

    /// Delivers until it is asked to stop, or must. Whether all is well.
    pub(super) fn run(mut self) -> bool {
        let mut is_well = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break true,
                Err(Stopped) => break false,
            }
        };
        self.shared.writing.close();
        self.shared.writing.end();
        // A disk that does not answer would not let it close. Where the topic has lost its end, the mirror may be the last
        // good copy.
        is_well = self.has_mirror && self.shared.mirror.close().is_ok() && is_well;
        if is_well {
            self.keep_place();
        }
        is_well
    }

    /// One look at everything; whether there is to be another one.
    fn turn(&mut self) -> Result<bool, Stopped> {
        let broken = lock(&self.shared.broken).take();
        if let Some(why) = broken {
            self.has_mirror = false;
            return Err(self.stop(format!("the mirror stopped: {why}")));
        }
        if let Some(why) = self.shared.writing.take_unknown(self.chain.at()) {
            (self.sink)(Delivery::Indefinite(why.into()));
            if let Err(error) = self.shared.writing.renew() {
                return Err(self.stop(format!("make a producer: {error}")));
            }
        }
        if self.shared.closes.load(Ordering::Acquire) {
            let since = *self.closes.get_or_insert_with(Instant::now);
            if self.shared.writing.is_quiet() || since.elapsed() > self.shared.writing.outcome() {
                return Ok(false);
            }
        }
        if self.kept.elapsed() > KEEP {
            self.keep_place();
            self.watch();
        }
        let mut wait = WAIT;
        loop {
            match self.reader.poll(wait) {
                Ok(Polled::Message(message)) => {
                    let (offset, value) = (message.offset(), message.payload().unwrap_or_default().into());
                    drop(message);
                    self.take(offset, value)?;
                }
                Ok(Polled::Nothing) => break,
                Err(gone) => return Err(self.stop(gone)),
            }
            if self.batch.len() >= BATCH || self.bytes >= BATCH_BYTES {
                break;
            }
            // Whatever has come already goes along.
            wait = Duration::ZERO;
        }
        self.deliver();
        Ok(true)
    }

    fn take(&mut self, offset: i64, value: Arc<[u8]>) -> Result<(), Stopped> {
        match self.chain.take(value) {
            Ok(Link::Record(record)) => {
                self.bytes += record.bytes().len();
                let place = Place {
                    topic: Arc::clone(&self.topic),
                    partition: self.partition,
                    offset,
                    position: record.last(),
                    hash: record.hash(),
                };
                // Between two that are kept, the last alone is of use.
                if self.places.len() > 1 && self.kept.elapsed() < KEEP {
                    self.places.pop_back();
                }
                self.places.push_back(place);
                let record = Arc::new(record);
                self.shared.recent.push(&record);
                self.shared.writing.read_back(&record);
                self.mirror(&record)?;
                self.batch.push(record);
            }
            Ok(Link::Skip(skipped)) => {
                self.deliver();
                self.shared.writing.skipped(skipped.hash);
                (self.sink)(Delivery::Skipped(skipped));
            }
            Err(broken) => return Err(self.stop(broken)),
        }
        Ok(())
    }

    fn mirror(&mut self, record: &Record) -> Result<(), Stopped> {
        give(&self.shared.mirror, record.clone(), self.outcome).map_err(|error| {
            self.has_mirror = false;
            let why = lock(&self.shared.broken).take().unwrap_or(error);
            self.stop(format!("the mirror takes nothing more: {why}"))
        })
    }

    fn deliver(&mut self) {
        self.bytes = 0;
        if !self.batch.is_empty() {
            (self.sink)(Delivery::Records(std::mem::take(&mut self.batch)));
        }
    }

    fn stop(&mut self, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Stopped {
        self.deliver();
        (self.sink)(Delivery::Stopped(why.into()));
        Stopped
    }

    /// Says what keeps the topic from being followed.
    fn watch(&mut self) {
        let (tail, reached) = (self.reader.tail(), self.reader.reached());
        let found = self.following.check(tail.answers, tail.offset, reached, Instant::now());
        let waits = self.reader.open_transaction().filter(|_| found != Some(FollowingTrouble::Silent));
        let transaction = waits.map(|offset| waits_for_transaction(&self.topic, self.partition, offset));
        self.shared.recent.set_trouble(transaction.or_else(|| found.map(|trouble| trouble.to_string())));
    }

    /// Keeps the place of the last record that is durable in the mirror.
    fn keep_place(&mut self) {
        self.kept = Instant::now();
        let Some(durable) = self.shared.mirror.head() else { return };
        let mut found = None;
        while self.places.front().is_some_and(|place| place.position <= durable.position) {
            found = self.places.pop_front();
        }
        let Some(place) = found else { return };
        let is_new = self.stored != Some(place.offset);
        self.stored = Some(place.offset);
        if is_new && let Err(error) = place.store(&self.dir) {
            tracing::warn!(%error, "the place in the topic could not be kept; a start will read more of it");
        }
        // The newest stays, for when nothing else comes.
        if self.places.is_empty() {
            self.places.push_front(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_followed_while_its_leader_answers_and_everything_it_reports_was_read() {
        use FollowingTrouble::{Behind, Shorter, Silent};
        // Each second: answers of the leader so far, the end that the leader reported last, up to where it was read. What is
        // found in the end.
        type Second = (u64, i64, i64);
        let steady = |second: Second| move |_: u64| second;
        let answered = |tail: i64, reached: i64| move |at: u64| (at, tail, reached);
        let table: [(&str, Box<dyn Fn(u64) -> Second>, Option<FollowingTrouble>); 8] = [
            ("idle", Box::new(answered(20, 20)), None),
            ("no answer comes", Box::new(steady((7, 20, 20))), Some(Silent)),
            (
                "a client without answers is made again and again",
                Box::new(|at| (at % 2 * 7, 20, 20)),
                Some(Silent),
            ),
            ("what comes is read", Box::new(|at| (at, at.cast_signed(), at.cast_signed())), None),
            ("what was read is newer than the report", Box::new(|at| (at, 20, 20 + at.cast_signed())), None),
            ("nothing is read of what is there", Box::new(answered(25, 20)), Some(Behind(5))),
            ("the end is lost", Box::new(answered(15, 20)), Some(Shorter { tail: 15, reached: 20 })),
            (
                "no end is known after one was",
                Box::new(answered(0, 20)),
                Some(Shorter { tail: 0, reached: 20 }),
            ),
        ];
        for (name, second, wanted) in table {
            let began = Instant::now();
            let mut following = Following::new(began);
            let mut found = None;
            for at in 1..=15 {
                let (answers, tail, reached) = second(at);
                found = following.check(answers, tail, Some(reached), began + Duration::from_secs(at));
            }
            assert_eq!(found, wanted, "{name}");
        }
    }
}
