//! Whether a server has the turn to decide, from what the brokers answer about the group of deciders. A server that has the
//! turn does not ask.
//!
//! | answer, three times in a row | no record came meanwhile | records come |
//! |---|---|---|
//! | a server of the fleet has the partition (once is enough) | no trouble | no trouble |
//! | no server of the fleet has it | no server decides | no server decides |
//! | the group's coordinator answers, another broker does not | as before | as before |
//! | the group's coordinator does not answer | not known | as before |
//!
//! A coordinator that no server reaches is as good as none: every server loses its turn with its session. One that this
//! server alone does not reach is a trouble too, as this server could not take over. Where records come, a server decides.

use super::group::GroupMember;

/// Number of answers in a row, one in each session, that are a trouble and no election in progress.
pub(super) const SESSIONS: u32 = 3;

/// What the brokers answer about who has the partition.
#[derive(Clone, Debug)]
pub(super) enum GroupAnswer {
    /// A server of the fleet.
    Server,
    /// No server of the fleet: a member that is none, or no member.
    NoServer(Option<GroupMember>),
    /// The coordinator of the group answers, and another broker does not: the members are not known.
    Incomplete,
    /// The coordinator of the group does not answer.
    NoAnswer,
}

/// Why no server may have the turn to decide.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ElectionTrouble {
    /// No server has it, but perhaps a member that is none.
    NoServer(Option<GroupMember>),
    /// It is not known.
    Unknown,
}

/// The answers so far.
#[derive(Default, Debug)]
pub(super) struct ElectionWatch {
    /// Number of answers in a row that name no server, and what the last of them names.
    without: u32,
    holder: Option<GroupMember>,
    /// Number of questions in a row to which the coordinator gave no answer.
    unanswered: u32,
}

impl ElectionWatch {
    /// Takes an answer.
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

    /// What keeps servers from deciding, if anything does. `records_come`: whether a record has come in the time of the last
    /// three questions.
    pub(super) fn trouble(&self, records_come: bool) -> Option<ElectionTrouble> {
        if self.unanswered >= SESSIONS && !records_come {
            Some(ElectionTrouble::Unknown)
        } else if self.without >= SESSIONS {
            Some(ElectionTrouble::NoServer(self.holder.clone()))
        } else {
            None
        }
    }

    /// Whether another client must ask: the brokers that this one knows may be gone.
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
        // Answers in their order, whether records come, and what is found in the end.
        let table: [(&str, Vec<GroupAnswer>, bool, Option<ElectionTrouble>); 12] = [
            ("nothing was asked", vec![], false, None),
            ("an election takes a moment", vec![without(), without()], false, None),
            ("no member has the turn", vec![without(); 3], false, Some(ElectionTrouble::NoServer(None))),
            ("a stranger has it", vec![without(), without(), strange()], false, Some(taken.clone())),
            ("what a stranger has, no decider has", vec![strange(); 3], true, Some(taken.clone())),
            ("a server has it again", vec![strange(), strange(), strange(), Server], false, None),
            ("a question fails now and then", vec![NoAnswer, NoAnswer, Server, NoAnswer], false, None),
            ("the coordinator is away", vec![NoAnswer; 3], false, Some(Unknown)),
            ("this server alone does not reach it", vec![NoAnswer; 3], true, None),
            ("another broker is away", vec![Incomplete; 9], false, None),
            (
                "the coordinator is back, another broker is not",
                vec![NoAnswer, NoAnswer, NoAnswer, Incomplete],
                false,
                None,
            ),
            (
                "a stranger has it, and another broker is away",
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
