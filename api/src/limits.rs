//! Limits on what one caller may take: everything that grows with what comes in has one.
//!
//! What may be set stands in the table of settings with its default, which a test of the service compares with the one
//! here.

use std::time::Duration;

/// The limits of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// A body has at most so many bytes.
    pub body: usize,
    /// So many bytes of an executor's messages come at once; one may be as large.
    pub messages: usize,
    /// So many bytes of such messages are in memory at one time, of all executors, beyond those that each may have.
    pub uploads: usize,
    /// So many bytes of other bodies are in memory at one time, of all requests, beyond those that each may have.
    pub bodies: usize,
    /// A page ends before it has more than so many bytes, except for its first row or event.
    pub page: usize,
    /// So many bytes of answers are in memory at one time, except for small ones. Pages are small when there is no room.
    pub answers: usize,
    /// Lists that are read at one time; the others wait for their turn.
    pub lists: usize,
    /// All headers together have at most so many bytes,
    pub headers_bytes: usize,
    /// and are at most so many.
    pub headers: usize,
    /// A path with its query has at most so many bytes.
    pub uri: usize,
    /// JSON is nested at most so deep.
    pub depth: usize,
    /// A batch has at most so many intents.
    pub batch: usize,
    /// Connections at one time, three quarters of them from one address; on one more only probes are answered.
    pub connections: usize,
    /// Streams at one time, of events and logs.
    pub followers: usize,
    /// Executors connected at one time.
    pub executors: usize,
    /// Intents that one principal may ask for in a second.
    pub writes_per_second: u64,
    /// Reads that it may ask for.
    pub reads_per_second: u64,
    /// Streams that it may open.
    pub streams_per_second: u64,
    /// The headers of a request come within this time, also after a wait on an open connection.
    pub header_read: Duration,
    /// A body comes within this time.
    pub body_read: Duration,
    /// A request is answered within this time; streams begin within it.
    pub request: Duration,
    /// A read waits at most so long for its `min_position`.
    pub min_position: Duration,
    /// A connection that takes nothing for this long is closed.
    pub stall: Duration,
    /// An idle stream says so this often.
    pub heartbeat: Duration,
    /// Requests in flight have this long after a shutdown began.
    pub drain: Duration,
}

impl Default for Limits {
    /// As they are when nobody sets any.
    fn default() -> Limits {
        Limits {
            body: 1 << 20,
            messages: 16 << 20,
            uploads: 64 << 20,
            bodies: 32 << 20,
            page: 4 << 20,
            answers: 64 << 20,
            lists: 4,
            headers_bytes: 64 << 10,
            headers: 100,
            uri: 8 << 10,
            depth: 64,
            batch: 1000,
            connections: 1024,
            followers: 256,
            executors: 256,
            writes_per_second: 20_000,
            reads_per_second: 20_000,
            streams_per_second: 1000,
            header_read: Duration::from_secs(10),
            body_read: Duration::from_secs(10),
            request: Duration::from_secs(30),
            min_position: Duration::from_secs(5),
            stall: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            drain: Duration::from_secs(30),
        }
    }
}
