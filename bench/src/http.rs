//! Client with one persistent connection. It does minimal work, because it shares the cores with the server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, bail};

/// Persistent connection to a server.
pub(crate) struct BenchmarkClient {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl BenchmarkClient {
    pub(crate) fn connect(address: &str) -> Result<BenchmarkClient> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let answers = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        Ok(BenchmarkClient { stream, answers, line: String::new(), body: Vec::new() })
    }

    /// Sends a request and returns the answer's body; any status but success is an error.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<&[u8]> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.send(&request)
    }

    /// Sends a request without changes.
    pub(crate) fn send(&mut self, request: &str) -> Result<&[u8]> {
        self.stream.write_all(request.as_bytes())?;
        self.next_line()?;
        let status = self.line.clone();
        let mut length = 0;
        loop {
            self.next_line()?;
            let header = self.line.trim_end();
            if header.is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        self.body.resize(length, 0);
        self.answers.read_exact(&mut self.body).context("read the answer")?;
        if !status.starts_with("HTTP/1.1 2") {
            bail!("the server answers {status}{}", String::from_utf8_lossy(&self.body));
        }
        Ok(&self.body)
    }

    fn next_line(&mut self) -> Result<()> {
        self.line.clear();
        if self.answers.read_line(&mut self.line)? == 0 {
            bail!("the server hung up");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn answers_are_read_whole_and_refusals_are_errors() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("address").to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            for answer in
                ["200 OK\r\ncontent-length: 2\r\n\r\nok", "409 Conflict\r\nContent-Length: 3\r\n\r\nbad"]
            {
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).expect("read") > 0);
                stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).expect("write");
            }
        });
        let mut client = BenchmarkClient::connect(&address).expect("connect");
        assert_eq!(client.ask("PUT", "/x", "{}").expect("an answer"), b"ok");
        assert!(client.ask("GET", "/x", "").expect_err("a refusal").to_string().ends_with("bad"));
        server.join().expect("no panic");
    }
}
