//! Payload of the demonstration: a small HTTP server that is part of the program, so that it works anywhere.
//!
//! It answers every request with its identity. Like any other payload, it uses no part of the control plane.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use chancery_cli::note;

/// Answers on the loopback port until the process is ended.
pub fn serve(port: u16) -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    print_line(format_args!("listening on {}", listener.local_addr()?));
    for stream in listener.incoming() {
        // An error with one client is written to standard error, and the next client is served.
        if let Err(error) = stream.and_then(answer) {
            note!("cannot answer request: {error}");
        }
    }
    Ok(())
}

/// Writes a line to the standard output; a line that cannot be written is dropped.
fn print_line(line: std::fmt::Arguments<'_>) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut request = String::new();
    BufReader::new(&stream).read_line(&mut request)?;
    let variable = |key: &str| std::env::var(key).unwrap_or_else(|_| "?".into());
    let body = format!(
        "{} version {} here, on {}, process {}\n",
        variable("CHANCERY_REPLICA"),
        variable("VERSION"),
        variable("CHANCERY_NODE"),
        std::process::id()
    );
    print_line(format_args!("{}", request.trim_end()));
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
