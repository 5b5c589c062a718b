//! What keeps a partition from being read, for operators.

use std::time::{Duration, Instant};

use super::reader::PartitionReader;

/// How long brokers may be silent, or the end of the topic away, before that is a trouble.
const BEHIND: Duration = Duration::from_secs(10);

/// Checks whether a partition is read, for as long as one reader reads it.
#[derive(Debug)]
pub struct ReaderWatch(Following);

impl ReaderWatch {
    /// For a reader that begins.
    #[expect(clippy::new_without_default, reason = "it begins at a time")]
    pub fn new() -> ReaderWatch {
        ReaderWatch(Following::new(Instant::now()))
    }

    /// A message was read. Where that is called a reader that advances is no trouble, however far the end is.
    pub fn advanced(&mut self) {
        (self.0.heard, self.0.read) = (Instant::now(), Instant::now());
    }

    /// What keeps the partition from being read, if anything does. To be asked about once a second.
    pub fn trouble(&mut self, reader: &PartitionReader) -> Option<String> {
        let (tail, reached) = (reader.tail(), reader.reached());
        let found = self.0.check(tail.answers, tail.offset, reached, Instant::now());
        let waits = reader.open_transaction().filter(|_| found != Some(FollowingTrouble::Silent));
        let (topic, partition) = reader.place();
        let transaction = waits.map(|offset| waits_for_transaction(topic, partition, offset));
        transaction.or_else(|| found.map(|trouble| trouble.to_string()))
    }
}

/// How a partition is followed.
#[derive(Debug)]
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
fn waits_for_transaction(topic: &str, partition: i32, offset: i64) -> String {
    format!(
        "a transaction is open since offset {offset} of {topic} partition {partition}, and nothing behind it is read until it \
         ends: the brokers end it after its timeout (15 minutes at most, by default), `kafka-transactions abort --topic \
         {topic} --partition {partition} --start-offset {offset}` at once"
    )
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
        type Seconds = Box<dyn Fn(u64) -> Second>;
        let steady = |second: Second| move |_: u64| second;
        let answered = |tail: i64, reached: i64| move |at: u64| (at, tail, reached);
        let table: [(&str, Seconds, Option<FollowingTrouble>); 8] = [
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
