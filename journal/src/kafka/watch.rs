//! Obstacles to reading a partition, for operators.

use std::time::{Duration, Instant};

use super::reader::PartitionReader;

/// Time without an answer, or without reaching the end, until an obstacle is reported.
const BEHIND: Duration = Duration::from_secs(10);

/// Monitor of one reader of a partition.
#[derive(Debug)]
pub struct ReaderWatch(WatchProgress);

impl ReaderWatch {
    /// Creates a monitor for a new reader.
    #[expect(clippy::new_without_default, reason = "a monitor starts at a point in time")]
    pub fn new() -> ReaderWatch {
        ReaderWatch(WatchProgress::new(Instant::now()))
    }

    /// Records that a message was read. With such calls an advancing reader has no trouble, however far away
    /// the end is.
    pub fn advanced(&mut self) {
        (self.0.last_answer, self.0.read) = (Instant::now(), Instant::now());
    }

    /// Returns the obstacle to reading the partition, if there is one. Call about once a second.
    pub fn trouble(&mut self, reader: &PartitionReader) -> Option<String> {
        let (tail, reached) = (reader.tail(), reader.reached());
        let found = self.0.check(tail.answers, tail.offset, reached, Instant::now());
        let waits = reader.open_transaction().filter(|_| found != Some(FollowingTrouble::Silent));
        let (topic, partition) = reader.place();
        let transaction = waits.map(|offset| waits_for_transaction(topic, partition, offset));
        transaction.or_else(|| found.map(|trouble| trouble.to_string()))
    }
}

#[derive(Debug)]
struct WatchProgress {
    answers: u64,
    /// Offset reached at the last check.
    reached: i64,
    /// Time of the last known answer from the brokers.
    last_answer: Instant,
    /// Time when everything was last known to have been read.
    read: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum FollowingTrouble {
    #[error("cannot read topic: the brokers do not answer")]
    Silent,
    #[error("cannot reach end of topic: offsets left: {0}")]
    Behind(i64),
    #[error(
        "cannot confirm end of topic: it was read up to offset {reached}, but its leader reports end offset {tail}: too few \
         brokers are in sync for the leader to know the end, or the topic has lost its end"
    )]
    Shorter { tail: i64, reached: i64 },
}

impl WatchProgress {
    fn new(now: Instant) -> WatchProgress {
        WatchProgress { answers: 0, reached: 0, last_answer: now, read: now }
    }

    /// Returns the obstacle that has lasted for [`BEHIND`]. `answers` counts the leader's answers; `tail` is
    /// the last end that the leader reported.
    fn check(
        &mut self,
        answers: u64,
        tail: i64,
        reached: Option<i64>,
        now: Instant,
    ) -> Option<FollowingTrouble> {
        // A client that was just created has no answers.
        if answers > 0 && answers != self.answers {
            (self.answers, self.last_answer) = (answers, now);
        }
        let reached = reached.unwrap_or(tail);
        // The last message may briefly be after the end that was reported last.
        if tail == reached || (tail < reached && reached != self.reached) {
            self.read = now;
        }
        self.reached = reached;
        if now.duration_since(self.last_answer) > BEHIND {
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

/// Describes the transaction that blocks a topic, and how an operator ends it.
fn waits_for_transaction(topic: &str, partition: i32, offset: i64) -> String {
    format!(
        "a transaction is open since offset {offset} of {topic} partition {partition}, and later messages cannot be read until \
         it ends; the brokers end it after its timeout (by default at most 15 minutes)\ntry: kafka-transactions abort \
         --topic {topic} --partition {partition} --start-offset {offset}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_followed_while_its_leader_answers_and_everything_it_reports_was_read() {
        use FollowingTrouble::{Behind, Shorter, Silent};
        // For each second: answers of the leader so far, the end that it reported last, the offset reached.
        // Then the expected result.
        type SecondOfAnswers = (u64, i64, i64);
        type AnswersBySecond = Box<dyn Fn(u64) -> SecondOfAnswers>;
        let steady = |second: SecondOfAnswers| move |_: u64| second;
        let answered = |tail: i64, reached: i64| move |at: u64| (at, tail, reached);
        let table: [(&str, AnswersBySecond, Option<FollowingTrouble>); 8] = [
            ("idle", Box::new(answered(20, 20)), None),
            ("no answer arrives", Box::new(steady((7, 20, 20))), Some(Silent)),
            (
                "a client without answers is created again and again",
                Box::new(|at| (at % 2 * 7, 20, 20)),
                Some(Silent),
            ),
            ("arriving messages are read", Box::new(|at| (at, at.cast_signed(), at.cast_signed())), None),
            (
                "the offset reached is newer than the report",
                Box::new(|at| (at, 20, 20 + at.cast_signed())),
                None,
            ),
            ("existing messages are not read", Box::new(answered(25, 20)), Some(Behind(5))),
            ("the end is lost", Box::new(answered(15, 20)), Some(Shorter { tail: 15, reached: 20 })),
            (
                "no end is known after one was",
                Box::new(answered(0, 20)),
                Some(Shorter { tail: 0, reached: 20 }),
            ),
        ];
        for (name, second, wanted) in table {
            let began = Instant::now();
            let mut following = WatchProgress::new(began);
            let mut found = None;
            for at in 1..=15 {
                let (answers, tail, reached) = second(at);
                found = following.check(answers, tail, Some(reached), began + Duration::from_secs(at));
            }
            assert_eq!(found, wanted, "{name}");
        }
    }
}
