//! Executor that is connected to a supervisor. The supervisor never waits for it: unsent bytes are kept up to
//! a bound, and sent when the socket accepts more.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;

use super::log::log;
use super::supervisor_protocol::{self, MAX_RECORD, MAX_REQUEST, SupervisorRequest};

/// Maximum number of unsent bytes: a client that does not read is dropped when it would have more.
const MAX_UNSENT: usize = MAX_RECORD + 4;

/// Connected executor.
pub(super) struct SupervisorClient {
    stream: UnixStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// Number of bytes of `unsent` that were sent meanwhile.
    sent: usize,
}

impl AsFd for SupervisorClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl SupervisorClient {
    /// Creates a client from its connection.
    pub(super) fn new(stream: UnixStream) -> io::Result<SupervisorClient> {
        stream.set_nonblocking(true)?;
        Ok(SupervisorClient { stream, received: Vec::new(), unsent: Vec::new(), sent: 0 })
    }

    /// Sends a message, or as much as the socket accepts now. Returns whether the client stays.
    pub(super) fn send(&mut self, frame: &[u8]) -> bool {
        self.unsent.drain(..self.sent);
        self.sent = 0;
        if self.unsent.len() + frame.len() > MAX_UNSENT {
            log(format_args!("client dropped: it does not read"));
            return false;
        }
        self.unsent.extend_from_slice(frame);
        self.flush()
    }

    /// Sends unsent bytes. Returns whether the client stays.
    pub(super) fn flush(&mut self) -> bool {
        while self.sent < self.unsent.len() {
            match self.stream.write(&self.unsent[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        (self.unsent, self.sent) = (Vec::new(), 0);
        true
    }

    /// Returns the events to wait for.
    pub(super) fn awaits(&self) -> PollFlags {
        if self.unsent.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Reads available requests. Returns whether the client stays.
    pub(super) fn read(&mut self, requests: &mut Vec<SupervisorRequest>) -> bool {
        let mut chunk = [0; 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
            loop {
                match supervisor_protocol::take(&mut self.received, MAX_REQUEST) {
                    Ok(None) => break,
                    Ok(Some(message)) => match serde_json::from_slice(&message) {
                        Ok(request) => requests.push(request),
                        Err(error) => log(format_args!("cannot read request: {error}")),
                    },
                    Err(error) => {
                        log(format_args!("cannot read request: {error}"));
                        return false;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_any_size_arrives_whole_however_slowly_it_is_read() {
        let record = "x".repeat(MAX_RECORD - 2);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut client = SupervisorClient::new(ours).unwrap();
        assert!(client.send(&supervisor_protocol::frame(&record)));
        assert!(client.awaits().contains(PollFlags::OUT), "the socket accepts only a part");
        let mut received = Vec::new();
        let mut chunk = vec![0; 100_000];
        loop {
            if let Some(message) = supervisor_protocol::take(&mut received, MAX_RECORD).unwrap() {
                assert!(serde_json::from_slice::<String>(&message).unwrap() == record, "the record differs");
                break;
            }
            let count = theirs.read(&mut chunk).unwrap();
            received.extend_from_slice(&chunk[..count]);
            assert!(client.flush());
        }
        assert!(received.is_empty());
        assert!(!client.awaits().contains(PollFlags::OUT), "no bytes are unsent");
    }

    #[test]
    fn a_client_that_does_not_read_is_dropped_and_never_waited_for() {
        let frame = supervisor_protocol::frame(&"x".repeat(1 << 20));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut client = SupervisorClient::new(ours).unwrap();
        let sent = (0..100).take_while(|_| client.send(&frame)).count();
        assert!((8..=17).contains(&sent), "{sent} messages of a mebibyte");
        drop(theirs);
    }

    #[test]
    fn requests_are_read_whole_and_one_that_is_too_long_ends_its_client() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut client = SupervisorClient::new(ours).unwrap();
        let mut requests = Vec::new();
        let two = [
            supervisor_protocol::frame(&SupervisorRequest::Look),
            supervisor_protocol::frame(&SupervisorRequest::Status),
        ]
        .concat();
        theirs.write_all(&two[..7]).unwrap();
        assert!(client.read(&mut requests) && requests.is_empty(), "the message is incomplete");
        theirs.write_all(&two[7..]).unwrap();
        assert!(client.read(&mut requests));
        assert_eq!(requests, [SupervisorRequest::Look, SupervisorRequest::Status]);
        theirs.write_all(&5000_u32.to_le_bytes()).unwrap();
        assert!(!client.read(&mut requests));
    }
}
