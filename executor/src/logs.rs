//! Output of processes, as an orchestrator provides it: the outputs of an incarnation, and a reader of each.
//!
//! | requested | provided by |
//! |---|---|
//! | last lines, or lines since a time | [`LogStart`] |
//! | output of an earlier incarnation | outputs of that incarnation: those of the newest ended incarnations are kept |
//! | future output | a reader at its end, which is read again |
//!
//! Calls may block, and are made on threads that may block. Readers keep nothing open at the end of an
//! output: an incarnation may have thousands of outputs.

use std::fmt;
use std::io;
use std::time::SystemTime;

use chancery_events::id::IncarnationId;
use chancery_events::name::PayloadName;

/// Standard output or standard error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl fmt::Display for LogStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogStream::Out => "out",
            LogStream::Err => "err",
        })
    }
}

/// Name of an output: `PAYLOAD-INDEX.STREAM`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OutputName {
    /// Payload of the process.
    pub payload: PayloadName,
    /// Number of the process in its payload, from 0.
    pub index: u16,
    /// Output of the process.
    pub stream: LogStream,
}

impl fmt::Display for OutputName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}.{}", self.payload, self.index, self.stream)
    }
}

/// Start of a reader: the later of both positions, if both are given. Without either, the earliest kept line
/// that a single read reaches.
#[derive(Clone, Copy, Default, Debug)]
pub struct LogStart {
    /// Maximum number of lines before the end.
    pub tail: Option<u64>,
    /// Earliest time of interest. Output from a few seconds earlier may be included.
    pub since: Option<SystemTime>,
}

/// Source of the output of incarnations.
pub trait LogSource: Send + Sync + 'static {
    /// Returns the outputs of the incarnation, sorted by name; none if nothing is kept.
    fn outputs(&self, incarnation: IncarnationId) -> io::Result<Vec<Box<dyn LogOutput>>>;
}

/// Output of one process on one stream.
pub trait LogOutput: Send + Sync {
    /// Returns the output's name, unique in the incarnation.
    fn name(&self) -> &OutputName;

    /// Opens the output for reading.
    fn open(&self, start: LogStart) -> io::Result<Box<dyn LogReader>>;
}

/// Position in an output. Lines that were dropped before they were read are skipped.
pub trait LogReader: Send {
    /// Returns when the next bytes were written, in microseconds since 1970; `None` if nothing is new yet.
    fn next_time(&mut self) -> io::Result<Option<u64>>;

    /// Returns the next bytes written at about one time, at most `most`, with that time; no bytes if nothing
    /// is new yet.
    fn read_block(&mut self, most: usize) -> io::Result<(u64, Vec<u8>)>;
}

/// Source of an orchestrator whose processes write nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoLogSource;

impl LogSource for NoLogSource {
    fn outputs(&self, _incarnation: IncarnationId) -> io::Result<Vec<Box<dyn LogOutput>>> {
        Ok(Vec::new())
    }
}
