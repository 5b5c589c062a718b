//! Limits on what one caller may use. Everything that grows with input has a limit.
//!
//! Configurable limits are listed in the table of settings with their defaults. A test of the service
//! compares those defaults with the defaults here.

use std::time::Duration;

/// Limits of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpLimits {
    /// Maximum size of a body, in bytes.
    pub body_bytes: usize,
    /// Maximum size of the messages of one executor request, and of one message, in bytes.
    pub messages: usize,
    /// Maximum bytes of executor messages in memory, of all executors, beyond the allowance of each.
    pub uploads: usize,
    /// Maximum bytes of other bodies in memory, of all requests, beyond the allowance of each.
    pub bodies: usize,
    /// Maximum size of a page in bytes, except for its first row or event.
    pub page: usize,
    /// Maximum bytes of answers in memory, except for small ones. Pages are small when no memory is free.
    pub answers: usize,
    /// Maximum number of lists that are read concurrently; further requests wait.
    pub lists: usize,
    /// Maximum size of all headers together, in bytes.
    pub headers_bytes: usize,
    /// Maximum number of headers.
    pub headers: usize,
    /// Maximum size of a path with its query, in bytes.
    pub uri: usize,
    /// Maximum nesting depth of JSON.
    pub depth: usize,
    /// Maximum number of intents in a batch.
    pub batch: usize,
    /// Maximum number of connections, three quarters of them from one address; one more serves only probes.
    pub connections: usize,
    /// Maximum number of open streams of events and logs.
    pub followers: usize,
    /// Maximum number of connected executors.
    pub executors: usize,
    /// Intents per second that one principal may submit.
    pub writes_per_second: u64,
    /// Reads per second that one principal may request.
    pub reads_per_second: u64,
    /// Streams per second that one principal may open.
    pub streams_per_second: u64,
    /// Time for the headers of a request, also after a wait on an open connection.
    pub header_read: Duration,
    /// Time for a body to arrive.
    pub body_read: Duration,
    /// Time for a request to be answered, and for a stream to start.
    pub request_timeout: Duration,
    /// Maximum time that a read waits for its `min_position`.
    pub min_position: Duration,
    /// Time without accepted data until a connection is closed.
    pub stall: Duration,
    /// Interval of heartbeats on an idle stream.
    pub heartbeat: Duration,
    /// Time for requests in flight after a shutdown started.
    pub drain: Duration,
}

impl Default for HttpLimits {
    /// Returns the limits without settings.
    fn default() -> HttpLimits {
        HttpLimits {
            body_bytes: 1 << 20,
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
            request_timeout: Duration::from_secs(30),
            min_position: Duration::from_secs(5),
            stall: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            drain: Duration::from_secs(30),
        }
    }
}
