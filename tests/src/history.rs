//! History of producers: their intents and the verdicts that they received. Evidence next to the journal.
//!
//! Each intent that is sent is an invocation. An invocation ends as `ok` (a verdict was received), `fail`
//! (surely nothing was recorded) or `unknown` (no answer, or an ambiguous one). An invocation without an end
//! is `unknown`. The same intent sent again is another invocation with the same key.
//!
//! As text a history is one JSON object a line. Each object is written when it happens, so that a killed
//! process leaves all it knew.

use std::io::{BufRead, Write};
use std::sync::{Mutex, PoisonError};

use chancery_events::digest::Digest;
use chancery_events::id::Position;
use chancery_events::refusal::RefusalCode;
use serde::{Deserialize, Serialize};

/// Number of an invocation in its history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(usize);

/// Verdict that a producer received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The intent was accepted.
    Accepted,
    /// The intent changes nothing in the state at the position; the journal has no verdict on it.
    Unchanged,
    /// The intent was refused, for this reason.
    Refused(RefusalCode),
}

/// Outcome of an invocation, as far as its producer knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InvocationOutcome {
    /// A verdict was received.
    Ok {
        /// Position of the verdict in the journal; that of the state if the verdict is not recorded.
        position: Position,
        /// Received verdict.
        verdict: Verdict,
    },
    /// Surely nothing was recorded.
    Fail,
    /// The intent may be recorded or not.
    Unknown,
}

/// Intent that was sent once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IntentInvocation {
    /// Key, equal in repeats of the intent.
    pub key: Digest,
    /// Digest, equal if a repeat requests the same.
    pub digest: Digest,
    /// Type of the intent.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Outcome of the invocation.
    pub ending: InvocationOutcome,
}

/// Invocations of producers, in order.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct InvocationHistory {
    invocations: Vec<IntentInvocation>,
}

/// Line of a history as text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryLine {
    /// An intent is sent.
    Invoke {
        /// Number of the invocation, from 0.
        op: OpId,
        /// Key, equal in repeats of the intent.
        key: Digest,
        /// Digest, equal if a repeat requests the same.
        digest: Digest,
        /// Type of the intent.
        #[serde(rename = "type")]
        type_name: String,
    },
    /// An invocation has an outcome.
    End {
        /// Number of the invocation.
        op: OpId,
        /// Outcome of the invocation.
        ending: InvocationOutcome,
    },
}

/// Invalid line of a history.
#[derive(Debug, thiserror::Error)]
pub enum InvalidHistory {
    /// The line cannot be read.
    #[error("read line {line} of a history")]
    Read {
        /// Line number, from 1.
        line: usize,
        /// I/O error.
        source: std::io::Error,
    },
    /// The line is not JSON.
    #[error("read line {line} of a history as JSON")]
    Json {
        /// Line number, from 1.
        line: usize,
        /// JSON error.
        source: serde_json::Error,
    },
    /// The line names an invocation that does not exist, or not the next.
    #[error("cannot read line {line} of history: invocation out of order")]
    Order {
        /// Line number, from 1.
        line: usize,
    },
}

impl InvocationHistory {
    /// Returns an empty history.
    pub fn new() -> InvocationHistory {
        InvocationHistory::default()
    }

    /// Adds an invocation.
    pub fn invoke(&mut self, key: Digest, digest: Digest, type_name: &str) -> OpId {
        let type_name = type_name.to_owned();
        self.invocations.push(IntentInvocation {
            key,
            digest,
            type_name,
            ending: InvocationOutcome::Unknown,
        });
        OpId(self.invocations.len() - 1)
    }

    /// Notes a verdict.
    pub fn ok(&mut self, op: OpId, position: Position, verdict: Verdict) {
        self.end(op, InvocationOutcome::Ok { position, verdict });
    }

    /// Notes that surely nothing was recorded.
    pub fn fail(&mut self, op: OpId) {
        self.end(op, InvocationOutcome::Fail);
    }

    /// Notes an unknown outcome.
    pub fn unknown(&mut self, op: OpId) {
        self.end(op, InvocationOutcome::Unknown);
    }

    fn end(&mut self, op: OpId, ending: InvocationOutcome) {
        self.invocations[op.0].ending = ending;
    }

    /// Returns all invocations, in order.
    pub fn invocations(&self) -> &[IntentInvocation] {
        &self.invocations
    }

    /// Counts invocations with a verdict.
    pub fn acknowledged(&self) -> u64 {
        self.invocations.iter().filter(|op| matches!(op.ending, InvocationOutcome::Ok { .. })).count() as u64
    }

    /// Reads a history that a [`HistoryRecorder`] wrote. A last line without its line feed was cut by the end of the
    /// process, and is ignored.
    pub fn read(from: impl BufRead) -> Result<InvocationHistory, InvalidHistory> {
        let mut history = InvocationHistory::new();
        let mut lines = (1..).zip(from.split(b'\n')).peekable();
        while let Some((line, text)) = lines.next() {
            let text = text.map_err(|source| InvalidHistory::Read { line, source })?;
            match serde_json::from_slice(&text) {
                Ok(HistoryLine::Invoke { op, key, digest, type_name }) => {
                    if history.invoke(key, digest, &type_name) != op {
                        return Err(InvalidHistory::Order { line });
                    }
                }
                Ok(HistoryLine::End { op, ending }) => {
                    let found = history.invocations.get_mut(op.0).ok_or(InvalidHistory::Order { line })?;
                    found.ending = ending;
                }
                // Cut in the middle: only the last line can be.
                Err(source) if source.is_eof() && lines.peek().is_none() => {}
                Err(source) => return Err(InvalidHistory::Json { line, source }),
            }
        }
        Ok(history)
    }
}

/// History that several producers write concurrently, written as text when it happens.
#[derive(Debug)]
pub struct HistoryRecorder<W> {
    inner: Mutex<(InvocationHistory, W)>,
}

impl<W: Write> HistoryRecorder<W> {
    /// Records to `to`, unbuffered: each line is written when its call returns.
    pub fn new(to: W) -> HistoryRecorder<W> {
        HistoryRecorder { inner: Mutex::new((InvocationHistory::new(), to)) }
    }

    /// Adds an invocation.
    pub fn invoke(&self, key: Digest, digest: Digest, type_name: &str) -> std::io::Result<OpId> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let op = inner.0.invoke(key, digest, type_name);
        write_line(&mut inner.1, &HistoryLine::Invoke { op, key, digest, type_name: type_name.to_owned() })?;
        Ok(op)
    }

    /// Sets the outcome of an invocation.
    pub fn end(&self, op: OpId, ending: InvocationOutcome) -> std::io::Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0.end(op, ending);
        write_line(&mut inner.1, &HistoryLine::End { op, ending })
    }

    /// Counts invocations with a verdict so far.
    pub fn acknowledged(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).0.acknowledged()
    }

    /// Returns the history.
    pub fn into_history(self) -> InvocationHistory {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).0
    }
}

fn write_line(to: &mut impl Write, line: &HistoryLine) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    to.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_read_back_is_the_one_that_was_recorded() {
        let mut file = Vec::new();
        let recorder = HistoryRecorder::new(&mut file);
        let key = |k: &str| Digest::of(&[k.as_bytes()]);
        let ops: Vec<_> = ["a", "b", "c", "a"]
            .map(|k| recorder.invoke(key(k), key("body"), "plan.apply.v1").expect("it is written"))
            .to_vec();
        let outcome = |at, verdict| InvocationOutcome::Ok { position: Position::new(at), verdict };
        for (op, ending) in [
            (ops[1], InvocationOutcome::Fail),
            (ops[0], outcome(9, Verdict::Refused(RefusalCode::InUse))),
            (ops[3], outcome(9, Verdict::Accepted)),
        ] {
            recorder.end(op, ending).expect("it is written");
        }
        let history = recorder.into_history();
        assert_eq!(history.acknowledged(), 2);
        assert_eq!(history.invocations()[2].ending, InvocationOutcome::Unknown);
        assert_eq!(InvocationHistory::read(&*file).expect("a history"), history);

        // Whenever the process was killed, complete lines are read.
        for end in 0..file.len() {
            let read = InvocationHistory::read(&file[..end]).expect("a history cut short");
            assert!(read.invocations().len() <= history.invocations().len());
        }
        let twice = [&file[..], &file[..]].concat();
        assert!(matches!(InvocationHistory::read(&*twice), Err(InvalidHistory::Order { .. })));
    }
}
