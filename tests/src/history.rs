//! What producers asked and what they were told: the other half of the evidence, beside the journal.
//!
//! Each intent that is sent is an invocation. It ends in `ok` (a verdict was told), `fail` (surely nothing was
//! recorded by it) or `unknown` (no answer, or one that does not say). One that has not ended yet is `unknown`. The
//! same intent sent again is another invocation with the same key.
//!
//! As text a history is one JSON object a line, written when it happens, so that a run that is killed leaves what
//! it knew.

use std::io::{BufRead, Write};
use std::sync::{Mutex, PoisonError};

use chancery_events::digest::Digest;
use chancery_events::id::Position;
use chancery_events::refusal::Code;
use serde::{Deserialize, Serialize};

/// Names an invocation in its history: its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(usize);

/// What a producer was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The intent holds.
    Accepted,
    /// It does not, for this reason.
    Refused(Code),
}

/// What became of an invocation, as far as its producer knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// A verdict was told.
    Ok {
        /// Where the journal holds the verdict.
        position: Position,
        /// What it says.
        verdict: Verdict,
    },
    /// Surely nothing was recorded by it.
    Fail,
    /// It may be recorded, or may never be.
    Unknown,
}

/// One intent, sent once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Invocation {
    /// Which repeats are the same intent.
    pub key: Digest,
    /// Whether a repeat asks for the same.
    pub digest: Digest,
    /// The type of the intent.
    #[serde(rename = "type")]
    pub type_name: String,
    /// What became of it.
    pub ending: Ending,
}

/// What producers asked and were told, in the order in which they asked.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct History {
    invocations: Vec<Invocation>,
}

/// One line of a history as text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// An intent is sent.
    Invoke {
        /// Which, from 0 in order.
        op: OpId,
        /// Which repeats are the same intent.
        key: Digest,
        /// Whether a repeat asks for the same.
        digest: Digest,
        /// The type of the intent.
        #[serde(rename = "type")]
        type_name: String,
    },
    /// What became of it.
    End {
        /// Which.
        op: OpId,
        /// What.
        ending: Ending,
    },
}

/// A line of a history that makes no sense where it stands.
#[derive(Debug, thiserror::Error)]
pub enum BadHistory {
    /// It cannot be read at all.
    #[error("read line {line} of a history")]
    Read {
        /// Which, from 1.
        line: usize,
        /// What failed.
        source: std::io::Error,
    },
    /// It is none.
    #[error("read line {line} of a history as JSON")]
    Json {
        /// Which, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// It names an invocation that is not there, or not the next.
    #[error("read line {line} of a history: it names an invocation out of order")]
    Order {
        /// Which, from 1.
        line: usize,
    },
}

impl History {
    /// Nothing has been asked yet.
    pub fn new() -> History {
        History::default()
    }

    /// An intent is sent.
    pub fn invoke(&mut self, key: Digest, digest: Digest, type_name: &str) -> OpId {
        let type_name = type_name.to_owned();
        self.invocations.push(Invocation { key, digest, type_name, ending: Ending::Unknown });
        OpId(self.invocations.len() - 1)
    }

    /// A verdict was told.
    pub fn ok(&mut self, op: OpId, position: Position, verdict: Verdict) {
        self.end(op, Ending::Ok { position, verdict });
    }

    /// Surely nothing was recorded by it.
    pub fn fail(&mut self, op: OpId) {
        self.end(op, Ending::Fail);
    }

    /// It may be recorded, or may never be.
    pub fn unknown(&mut self, op: OpId) {
        self.end(op, Ending::Unknown);
    }

    fn end(&mut self, op: OpId, ending: Ending) {
        self.invocations[op.0].ending = ending;
    }

    /// Every invocation, in order.
    pub fn invocations(&self) -> &[Invocation] {
        &self.invocations
    }

    /// How many were told a verdict.
    pub fn acknowledged(&self) -> u64 {
        self.invocations.iter().filter(|op| matches!(op.ending, Ending::Ok { .. })).count() as u64
    }

    /// Reads a history that a [`Recorder`] wrote. A last line without its line feed was being written when the run
    /// ended, and counts for nothing.
    pub fn read(from: impl BufRead) -> Result<History, BadHistory> {
        let mut history = History::new();
        let mut lines = (1..).zip(from.split(b'\n')).peekable();
        while let Some((line, text)) = lines.next() {
            let text = text.map_err(|source| BadHistory::Read { line, source })?;
            match serde_json::from_slice(&text) {
                Ok(Line::Invoke { op, key, digest, type_name }) => {
                    if history.invoke(key, digest, &type_name) != op {
                        return Err(BadHistory::Order { line });
                    }
                }
                Ok(Line::End { op, ending }) => {
                    let found = history.invocations.get_mut(op.0).ok_or(BadHistory::Order { line })?;
                    found.ending = ending;
                }
                // Cut in the middle: only the last line can be.
                Err(source) if source.is_eof() && lines.peek().is_none() => {}
                Err(source) => return Err(BadHistory::Json { line, source }),
            }
        }
        Ok(history)
    }
}

/// A history that several producers write at once, kept as text when it happens.
#[derive(Debug)]
pub struct Recorder<W> {
    inner: Mutex<(History, W)>,
}

impl<W: Write> Recorder<W> {
    /// Writes to `to`, unbuffered: a line is there when the call returns.
    pub fn new(to: W) -> Recorder<W> {
        Recorder { inner: Mutex::new((History::new(), to)) }
    }

    /// An intent is sent.
    pub fn invoke(&self, key: Digest, digest: Digest, type_name: &str) -> std::io::Result<OpId> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let op = inner.0.invoke(key, digest, type_name);
        write_line(&mut inner.1, &Line::Invoke { op, key, digest, type_name: type_name.to_owned() })?;
        Ok(op)
    }

    /// What became of it.
    pub fn end(&self, op: OpId, ending: Ending) -> std::io::Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0.end(op, ending);
        write_line(&mut inner.1, &Line::End { op, ending })
    }

    /// How many were told a verdict so far.
    pub fn acknowledged(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).0.acknowledged()
    }

    /// What it holds.
    pub fn into_history(self) -> History {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).0
    }
}

fn write_line(to: &mut impl Write, line: &Line) -> std::io::Result<()> {
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
        let recorder = Recorder::new(&mut file);
        let key = |k: &str| Digest::of(&[k.as_bytes()]);
        let ops: Vec<_> = ["a", "b", "c", "a"]
            .map(|k| recorder.invoke(key(k), key("body"), "plan.apply.v1").expect("it is written"))
            .to_vec();
        let told = |at, verdict| Ending::Ok { position: Position::new(at), verdict };
        for (op, ending) in [
            (ops[1], Ending::Fail),
            (ops[0], told(9, Verdict::Refused(Code::InUse))),
            (ops[3], told(9, Verdict::Accepted)),
        ] {
            recorder.end(op, ending).expect("it is written");
        }
        let history = recorder.into_history();
        assert_eq!(history.acknowledged(), 2);
        assert_eq!(history.invocations()[2].ending, Ending::Unknown);
        assert_eq!(History::read(&*file).expect("a history"), history);

        // Whatever the moment at which the run was killed, what is whole is read.
        for end in 0..file.len() {
            let read = History::read(&file[..end]).expect("a history cut short");
            assert!(read.invocations().len() <= history.invocations().len());
        }
        let twice = [&file[..], &file[..]].concat();
        assert!(matches!(History::read(&*twice), Err(BadHistory::Order { .. })));
    }
}
