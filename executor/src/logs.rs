//! What processes write, as an orchestrator gives it: the outputs of an incarnation, and a reader of each.
//!
//! | asked for | given by |
//! |---|---|
//! | the last lines, or what was written since a time | [`LogStart`] |
//! | the output of the run before | the outputs of that incarnation: the newest that have ended are kept |
//! | what is written from now on | a reader at its end, which is asked again |
//!
//! Calls may block, and are made on threads that may. Readers keep nothing open while they are at the end: an incarnation
//! may have thousands of outputs.

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

/// Where a reader begins: at the later of both, if both are given; without either, at the earliest line that is kept and
/// read at once.
#[derive(Clone, Copy, Default, Debug)]
pub struct LogStart {
    /// Maximum number of lines before the end.
    pub tail: Option<u64>,
    /// Time before which nothing is wanted. What was written a few seconds earlier may be given too.
    pub since: Option<SystemTime>,
}

/// Source of what the processes of incarnations have written.
pub trait LogSource: Send + Sync + 'static {
    /// Outputs of the incarnation, sorted by name; none if nothing is kept of it.
    fn outputs(&self, incarnation: IncarnationId) -> io::Result<Vec<Box<dyn LogOutput>>>;
}

/// One output of one process.
pub trait LogOutput: Send + Sync {
    /// Name, unique in the incarnation.
    fn name(&self) -> &OutputName;

    /// Opens the output for reading.
    fn open(&self, start: LogStart) -> io::Result<Box<dyn LogReader>>;
}

/// Position in an output. Lines that were dropped before they were read are passed over.
pub trait LogReader: Send {
    /// When the next bytes were written, in microseconds since 1970; `None` if nothing is new now. Later there may be.
    fn next_time(&mut self) -> io::Result<Option<u64>>;

    /// The next bytes that were written about one time, at most `most`, with that time; no bytes if nothing is new now.
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
