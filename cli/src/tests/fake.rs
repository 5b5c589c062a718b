//! Server for tests, which answers each connection by a script and records the requests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use clap::Parser;

use crate::args::{GlobalArgs, ServerCommand};
use crate::context::CliContext;
use crate::output::OutputChoice;

/// Command line with only the client commands.
#[derive(Parser, Debug)]
#[command(name = "chancery")]
pub(crate) struct FakeCli {
    #[command(flatten)]
    pub(crate) globals: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: ServerCommand,
}

/// Action on one connection.
#[derive(Clone)]
pub(crate) enum FakeAction {
    /// Sends an answer.
    Respond(u16, String),
    /// Closes the connection after the request.
    Drop,
}

/// Request that was received.
#[derive(Debug)]
pub(crate) struct FakeRequest {
    /// Method and path: `POST /v1/…`.
    pub(crate) line: String,
    pub(crate) body: String,
}

pub(crate) fn context(server: String, output: Option<OutputChoice>) -> CliContext {
    let (fleet, actor) = ("default".parse().expect("a name"), "local".parse().expect("a name"));
    let context = CliContext::new(server, fleet, actor, output);
    CliContext { person: false, shows_progress: false, backoff: Duration::from_millis(1), ..context }
}

/// Serves the script, then closes the port.
pub(crate) fn serve(script: Vec<FakeAction>) -> (String, Receiver<FakeRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        let mut script = script.into_iter().peekable();
        while script.peek().is_some() {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
            let (mut line, mut length) = (String::new(), 0);
            reader.read_line(&mut line).expect("a request");
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).expect("a header");
                if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
                if header.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            // Streams are opened in addition to the requests of the script.
            let streams = line.contains("/events");
            let act = if streams { Some(FakeAction::Respond(404, String::new())) } else { script.next() };
            let line = line.trim_end_matches("\r\n").trim_end_matches(" HTTP/1.1").to_owned();
            if !streams {
                let _ = sender.send(FakeRequest { line, body: String::from_utf8(body).expect("text") });
            }
            if let Some(FakeAction::Respond(status, text)) = act {
                let head = format!(
                    "HTTP/1.1 {status} So\r\nContent-Length: {}\r\nChancery-Position: 7\r\nConnection: close\r\n\r\n",
                    text.len()
                );
                stream.write_all((head + &text).as_bytes()).expect("an answer");
            }
        }
    });
    (server, asked)
}
