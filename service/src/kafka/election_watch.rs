//! Whether a server is elected, derived from the brokers' answers about the group of deciders. The elected
//! server does not ask.
//!
//! | answer, three times in a row | no record arrived meanwhile | records arrive |
//! |---|---|---|
//! | a server of the fleet has the partition (once is enough) | no trouble | no trouble |
//! | no server of the fleet has it | no leader | no leader |
//! | the group's coordinator answers, another broker does not | as before | as before |
//! | the group's coordinator does not answer | unknown | as before |
//!
//! A coordinator that no server reaches equals none: every server loses the election with its session. If
//! only this server does not reach it, that is a trouble: it could not take over. If records arrive, a server
//! decides.

use super::group::GroupMember;

/// Consecutive answers, one in each session, that are a trouble and not an election in progress.
pub(super) const SESSIONS: u32 = 3;

/// Answer of the brokers on which member has the partition.
#[derive(Clone, Debug)]
pub(super) enum GroupAnswer {
    /// A server of the fleet has the partition.
    Server,
    /// No server of the fleet has the partition, but another member or none.
    NoServer(Option<GroupMember>),
    /// The coordinator of the group answers, but another broker does not: the member with the partition is
    /// unknown.
    Incomplete,
    /// The coordinator of the group does not answer.
    NoAnswer,
}

/// Reason why possibly no server is elected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ElectionTrouble {
    /// No server of the fleet has the partition, but perhaps another member.
    NoServer(Option<GroupMember>),
    /// The member with the partition is unknown.
    Unknown,
}

/// Summary of the answers so far.
#[derive(Default, Debug)]
pub(super) struct ElectionWatch {
    /// Number of consecutive answers that name no server.
    without: u32,
    /// Member that the last such answer names, if any.
    holder: Option<GroupMember>,
    /// Number of consecutive requests without an answer of the coordinator.
    unanswered: u32,
}

impl ElectionWatch {
    /// Records an answer.
    pub(super) fn take(&mut self, answer: GroupAnswer) {
        match answer {
            GroupAnswer::Server => *self = ElectionWatch::default(),
            GroupAnswer::NoServer(holder) => {
                (self.without, self.holder, self.unanswered) = (self.without + 1, holder, 0);
            }
            GroupAnswer::Incomplete => self.unanswered = 0,
            GroupAnswer::NoAnswer => self.unanswered += 1,
        }
    }

    /// Returns the reason that keeps servers from deciding, if any. `records_come` is whether a record has
    /// arrived during the last three requests.
    pub(super) fn trouble(&self, records_come: bool) -> Option<ElectionTrouble> {
        if self.unanswered >= SESSIONS && !records_come {
            Some(ElectionTrouble::Unknown)
        } else if self.without >= SESSIONS {
            Some(ElectionTrouble::NoServer(self.holder.clone()))
        } else {
            None
        }
    }

    /// Whether a new client is needed: the brokers that this one knows may no longer exist.
    pub(super) fn wants_another_client(&self) -> bool {
        self.unanswered > 0 && self.unanswered.is_multiple_of(SESSIONS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_that_does_not_answer_is_a_trouble_and_another_broker_is_none() {
        use ElectionTrouble::Unknown;
        use GroupAnswer::{Incomplete, NoAnswer, Server};
        let stranger =
            GroupMember { client: "a stranger".into(), host: "/10.0.0.1".into(), has_partition: true };
        let strange = || GroupAnswer::NoServer(Some(stranger.clone()));
        let without = || GroupAnswer::NoServer(None);
        let taken = ElectionTrouble::NoServer(Some(stranger.clone()));
        // Answers in their order, whether records arrive, and the expected result.
        let table: [(&str, Vec<GroupAnswer>, bool, Option<ElectionTrouble>); 12] = [
            ("no request was sent", vec![], false, None),
            ("an election takes a moment", vec![without(), without()], false, None),
            ("no member has the partition", vec![without(); 3], false, Some(ElectionTrouble::NoServer(None))),
            (
                "a foreign client has the partition",
                vec![without(), without(), strange()],
                false,
                Some(taken.clone()),
            ),
            (
                "a foreign client has the partition, and records arrive",
                vec![strange(); 3],
                true,
                Some(taken.clone()),
            ),
            ("a server has the partition again", vec![strange(), strange(), strange(), Server], false, None),
            ("single requests fail", vec![NoAnswer, NoAnswer, Server, NoAnswer], false, None),
            ("the coordinator does not answer", vec![NoAnswer; 3], false, Some(Unknown)),
            ("only this server does not reach the coordinator", vec![NoAnswer; 3], true, None),
            ("another broker does not answer", vec![Incomplete; 9], false, None),
            (
                "the coordinator answers again, another broker does not",
                vec![NoAnswer, NoAnswer, NoAnswer, Incomplete],
                false,
                None,
            ),
            (
                "a foreign client has the partition, and another broker does not answer",
                vec![strange(), strange(), strange(), Incomplete],
                false,
                Some(taken),
            ),
        ];
        for (name, answers, records_come, wanted) in table {
            let mut watch = ElectionWatch::default();
            for answer in answers {
                watch.take(answer);
            }
            assert_eq!(watch.trouble(records_come), wanted, "{name}");
        }
    }

    #[test]
    fn every_third_question_without_an_answer_is_the_last_of_its_client() {
        let mut watch = ElectionWatch::default();
        let mut wanted = Vec::new();
        for _ in 0..7 {
            watch.take(GroupAnswer::NoAnswer);
            wanted.push(watch.wants_another_client());
        }
        assert_eq!(wanted, [false, false, true, false, false, true, false]);
        watch.take(GroupAnswer::Incomplete);
        assert!(!watch.wants_another_client());
    }
}
