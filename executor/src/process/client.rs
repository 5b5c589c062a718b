//! An executor that is connected to a keeper.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use super::log::log;
use super::wire::Request;

/// A request is one short line.
const LONGEST_REQUEST: usize = 4096;

/// See the module.
pub(super) struct Client {
    stream: UnixStream,
    unread: Vec<u8>,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Client {
    /// Says the first line to one that has connected; none if it does not take it.
    pub(super) fn greet(stream: UnixStream, line: &[u8]) -> Option<Client> {
        let mut client = Client { stream, unread: Vec::new() };
        (client.stream.set_nonblocking(true).is_ok() && client.say(line)).then_some(client)
    }

    /// Says a line, which is short enough for the socket's buffer; whether the client stays.
    pub(super) fn say(&mut self, line: &[u8]) -> bool {
        self.stream.write_all(line).is_ok()
    }

    /// Reads what is there; whether the client stays.
    pub(super) fn read(&mut self, requests: &mut Vec<Request>) -> bool {
        let mut chunk = [0; 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
            while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(request) => requests.push(request),
                    Err(error) => log(format_args!("read a request: {error}")),
                }
            }
            if self.unread.len() > LONGEST_REQUEST {
                return false;
            }
        }
        true
    }
}
