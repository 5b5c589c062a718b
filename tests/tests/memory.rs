//! Memory of the real program after a load.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use chancery_tests::{ServerProcess, resident_kib, until};
use serde_json::json;

/// Number of rows: a page has a thousand of them, and about 300 KB.
const ROWS: usize = 3_000;
/// Number of clients that read slowly and concurrently.
const READERS: usize = 100;

/// Reads a page in small parts, and returns the number of its bytes.
fn read_slowly(address: &str, path: &str) -> usize {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("sent");
    let (mut total, mut part) = (0, vec![0; 16 << 10]);
    loop {
        let count = stream.read(&mut part).expect("it can be read");
        if count == 0 {
            return total;
        }
        total += count;
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn memory_that_slow_readers_needed_is_returned_to_the_system_while_the_server_is_idle() {
    let server = ServerProcess::start();
    let client = server.client();
    for i in 0..ROWS {
        let spec = json!({"type": "GPU", "score": i});
        client.must("capability.apply", &json!({"name": format!("gpu-{i}"), "spec": spec}));
    }
    let address = server.url().trim_start_matches("http://").to_owned();
    // What the first pages need is kept.
    for list in ["capabilities", "events"] {
        read_slowly(&address, &format!("/v1/fleets/default/{list}?limit=1000"));
    }
    let (pid, before) = (server.pid(), resident_kib(server.pid()));
    let readers: Vec<_> = (0..READERS)
        .map(|i| {
            let address = address.clone();
            std::thread::spawn(move || {
                (0..5)
                    .map(|j| {
                        let list = if (i + j) % 2 == 0 { "capabilities" } else { "events" };
                        read_slowly(&address, &format!("/v1/fleets/default/{list}?limit=1000"))
                    })
                    .sum::<usize>()
            })
        })
        .collect();
    let mut most = before;
    while readers.iter().any(|reader| !reader.is_finished()) {
        most = most.max(resident_kib(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent: usize = readers.into_iter().map(|reader| reader.join().expect("it reads")).sum();
    assert!(sent > 50 << 20, "{sent} bytes");
    let grown = most - before;
    assert!(grown > 50 << 10, "the load needs memory: {grown} KiB");
    until("at least half of that memory is returned", || {
        (resident_kib(pid) < before + grown / 2).then_some(())
    });
}
