//! Consumer of the event stream: server-sent events on a connection of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::server::FLEET;

/// Timeout of every wait.
const PATIENCE: Duration = Duration::from_mins(5);

/// Open stream of events.
pub(crate) struct OutputStream {
    lines: BufReader<TcpStream>,
    line: String,
    position: u64,
}

impl OutputStream {
    /// Follows new events; `filter` starts with `&`, or is empty. The stream is open on return.
    pub(crate) fn open(address: &str, filter: &str) -> Result<OutputStream> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let path = format!("{FLEET}/events?from=end{filter}");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")?;
        let lines = BufReader::with_capacity(4096, stream);
        let mut opened = OutputStream { lines, line: String::new(), position: 0 };
        opened.next_line()?;
        ensure!(opened.line.starts_with("HTTP/1.1 200"), "the stream is not opened: {}", opened.line);
        // The first data of a stream.
        while !opened.line.starts_with("retry:") {
            opened.next_line()?;
        }
        Ok(opened)
    }

    /// Waits for an event, and returns its position. [`OutputStream::data`] returns its data.
    pub(crate) fn next_event(&mut self) -> Result<u64> {
        // Lines that frame a chunk of the transfer are not fields.
        loop {
            self.next_line()?;
            match self.line.split_once(':').map(|(field, value)| (field, value.trim())) {
                Some(("id", id)) => {
                    let (position, _) = id.split_once('.').context("read an id")?;
                    self.position = position.parse().context("read an id")?;
                }
                Some(("event", "event")) => {
                    self.next_line()?;
                    return Ok(self.position);
                }
                Some(("event", "closed")) => bail!("the server closed the stream"),
                _ => {}
            }
        }
    }

    /// Returns the position of the last event.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the data of the last event.
    pub(crate) fn data(&self) -> &str {
        self.line.trim_end().strip_prefix("data: ").unwrap_or_default()
    }

    fn next_line(&mut self) -> Result<()> {
        self.line.clear();
        ensure!(self.lines.read_line(&mut self.line)? > 0, "the stream ends");
        Ok(())
    }
}
