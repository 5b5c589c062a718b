//! Real connections: limits, logs, shutdown.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use chancery_events::id::{IncarnationId, Position};
use chancery_events::name::ClusterName;
use chancery_executor::console::ConsoleSource;
use chancery_executor::logs::{LogOutput, LogSource, LogStream, OutputName};
use chancery_executor::process::OutputFile;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use super::world::{LINEAGE, ServedFleet, request};
use crate::{ClusterLogSource, HttpLimits, RESERVED, serve};

pub(super) struct TestServer {
    pub(super) address: SocketAddr,
    pub(super) stop: oneshot::Sender<()>,
    pub(super) served: JoinHandle<io::Result<()>>,
}

pub(super) async fn start(world: &ServedFleet) -> TestServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(serve(world.api(), listener, async { drop(stopped.await) }));
    TestServer { address, stop, served }
}

pub(super) async fn ask(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    // A refused client may be unable to write all of it.
    let _ = stream.write_all(text.as_bytes()).await;
    read(&mut stream).await
}

pub(super) async fn read(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let _ =
        tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut all)).await.expect("in time");
    String::from_utf8_lossy(&all).into_owned()
}

const LIVE: &str = "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
pub(super) const NODES: &str =
    "GET /v1/fleets/default/nodes HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn what_is_no_http_ends_its_own_connection_alone() {
    let world = ServedFleet::new();
    let server = start(&world).await;
    let many = "x-many: 1\r\n".repeat(200);
    for text in [
        "\u{1}\u{2}\u{3}\r\n\r\n".to_owned(),
        "GET /livez HTTP/9.9\r\n\r\n".into(),
        format!("GET /livez HTTP/1.1\r\n{many}\r\n"),
        format!("GET /livez HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(200 << 10)),
        format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(100 << 10)),
        "PUT /v1/fleets/default/nodes/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n".into(),
    ] {
        let answer = ask(server.address, &text).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert!(ask(server.address, LIVE).await.starts_with("HTTP/1.1 200"));
    }
}

#[tokio::test]
async fn a_request_names_its_host_once_and_no_other_than_the_server() {
    let world = ServedFleet::new();
    let server = start(&world).await;
    for (target, hosts, status) in [
        ("/livez", "host: localhost\r\n", 200),
        ("/livez", "host: 127.0.0.1:7440\r\n", 200),
        ("/livez", "", 400),
        ("/livez", "host: localhost\r\nhost: localhost\r\n", 400),
        ("/livez", "host: evil.example\r\n", 421),
        ("http://localhost/livez", "host: localhost\r\n", 200),
        ("http://evil.example/livez", "host: localhost\r\n", 400),
        ("http://evil.example/livez", "host: evil.example\r\n", 421),
        ("http://localhost/livez", "host: evil.example\r\n", 400),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        let answer = ask(server.address, &text).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{target} {hosts:?}: {answer}");
    }
    let old = ask(server.address, "GET /livez HTTP/1.0\r\n\r\n").await;
    assert!(old.contains("\"code\":\"invalid_host\""), "{old}");
}

#[tokio::test]
async fn an_answer_without_a_body_claims_no_length() {
    let world = ServedFleet::new();
    let server = start(&world).await;
    for path in ["/v1/fleets/default/nodes/node-1", "/v1/openapi.json"] {
        for method in ["GET", "HEAD"] {
            let ask = async |condition: &str| {
                let text = format!(
                    "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{condition}\r\n"
                );
                ask(server.address, &text).await.to_ascii_lowercase()
            };
            let known = ask("if-none-match: *\r\n").await;
            assert!(known.starts_with("http/1.1 304"), "{method} {path}: {known}");
            let claims = |name: &str| known.contains(&format!("\r\n{name}:"));
            assert!(!claims("content-length") && !claims("transfer-encoding"), "{method} {path}: {known}");
            let whole = ask("").await;
            assert!(whole.starts_with("http/1.1 200"), "{method} {path}: {whole}");
            assert!(whole.contains("\r\ncontent-length:"), "{method} {path}: {whole}");
        }
    }
}

#[tokio::test]
async fn an_answer_to_head_has_the_length_of_that_to_get_or_none() {
    let mut world = ServedFleet::new();
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("0.out.1"), "one\n").expect("a file");
    world.app.logs = Arc::new(LogDirectory(directory));
    let server = start(&world).await;
    let id = IncarnationId::issue(LINEAGE, Position::new(3));
    let logs = format!("/v1/fleets/default/incarnations/{id}/logs?stream=out&process=0");
    for (path, status, has_length) in [
        ("/livez", 200, true),
        ("/v1/openapi.json", 200, true),
        ("/v1/fleets/default/nodes", 200, true),
        ("/v1/fleets/default/nodes/node-1", 200, true),
        ("/v1/fleets/default/events?follow=false", 200, false),
        (&logs, 200, false),
        ("/v1/fleets/default/nodes/node-9", 404, false),
        ("/v1/fleets/default/nodes?x=1", 400, false),
        ("/v1/fleets/default/intents", 405, false),
        ("/nowhere", 404, false),
    ] {
        let ask = async |method: &str, more: &str| {
            let text =
                format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n");
            let answer = ask(server.address, &text).await.to_ascii_lowercase();
            let length =
                answer.lines().find_map(|line| line.strip_prefix("content-length: ").map(str::to_owned));
            (answer, length)
        };
        let (head, length) = ask("HEAD", "").await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{path}: {head}");
        assert!(head.ends_with("\r\n\r\n"), "{path} has no body: {head}");
        assert_eq!(length.is_some(), has_length, "{path}: {head}");
        if has_length {
            assert_eq!(ask("GET", "").await.1, length, "{path}");
        }
    }
    let small = "HEAD /v1/openapi.json HTTP/1.1\r\nhost: localhost\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n";
    let small = ask(server.address, small).await.to_ascii_lowercase();
    assert!(small.contains("content-encoding: gzip") && !small.contains("content-length"), "{small}");
}

#[tokio::test]
async fn connections_are_limited_and_the_excess_is_notified() {
    let world = ServedFleet::with(HttpLimits { connections: 1, ..HttpLimits::default() });
    let server = start(&world).await;
    let mut first = TcpStream::connect(server.address).await.expect("a connection");
    first.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
    let mut byte = [0];
    first.read_exact(&mut byte).await.expect("an answer");
    let second = ask(server.address, NODES).await;
    assert!(second.starts_with("HTTP/1.1 503") && second.contains("\"code\":\"busy\""), "{second}");
    drop(first);
    for _ in 0..100 {
        if ask(server.address, NODES).await.starts_with("HTTP/1.1 200") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the place of a connection that is gone was not given to another");
}

#[tokio::test]
async fn probes_are_answered_however_many_slow_connections_there_are() {
    let world = ServedFleet::with(HttpLimits { connections: 8, ..HttpLimits::default() });
    let server = start(&world).await;
    let ready = LIVE.replace("livez", "readyz");
    let mut slow = Vec::new();
    // Unfinished heads, missing bodies, and silence: more than slots and reserve hold.
    let halves = [
        "GET /readyz HT",
        "PUT /v1/fleets/default/nodes/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: \
                   application/json\r\ncontent-length: 9\r\n\r\n{",
        "",
        "GET /readyz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n",
    ];
    for half in halves.iter().cycle().take(4 * (8 + RESERVED)) {
        let mut stream = TcpStream::connect(server.address).await.expect("a connection");
        let _ = stream.write_all(half.as_bytes()).await;
        slow.push(stream);
        for probe in [LIVE, &ready] {
            let answer = ask(server.address, probe).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "with {} slow ones: {answer}", slow.len());
        }
    }
    let other = ask(server.address, NODES).await;
    assert!(other.starts_with("HTTP/1.1 503") && other.contains("\"code\":\"busy\""), "{other}");
    drop(slow);
    while !ask(server.address, NODES).await.starts_with("HTTP/1.1 200") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_address_leaves_connections_to_others() {
    let world = ServedFleet::with(HttpLimits { connections: 8, ..HttpLimits::default() });
    let server = start(&world).await;
    let connect = async |from: &str| {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(format!("{from}:0").parse().expect("an address")).expect("an address of this machine");
        socket.connect(server.address).await.expect("a connection")
    };
    let mut slow = Vec::new();
    for _ in 0..20 {
        slow.push(connect("127.0.0.2").await);
    }
    for (from, status) in [("127.0.0.2", "503"), ("127.0.0.1", "200")] {
        let mut stream = connect(from).await;
        stream.write_all(NODES.as_bytes()).await.expect("sent");
        let answer = read(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{from}: {answer}");
    }
}

#[tokio::test]
async fn headers_that_do_not_arrive_time_out() {
    let world =
        ServedFleet::with(HttpLimits { header_read: Duration::from_millis(100), ..HttpLimits::default() });
    let server = start(&world).await;
    let mut slow = TcpStream::connect(server.address).await.expect("a connection");
    slow.write_all(b"GET /livez HT").await.expect("sent");
    let answer = read(&mut slow).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected() {
    let world = ServedFleet::with(HttpLimits { stall: Duration::from_millis(100), ..HttpLimits::default() });
    let server = start(&world).await;
    let mut lazy = TcpStream::connect(server.address).await.expect("a connection");
    lazy.write_all(
        b"GET /v1/fleets/default/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n",
    )
    .await
    .expect("sent");
    let mut byte = [0];
    lazy.read_exact(&mut byte).await.expect("it started");
    assert_eq!(world.app.hub.followers(), 1);
    // More than the system's buffers hold.
    for _ in 0..100 {
        world.touch("node-1", 300);
        tokio::time::sleep(Duration::from_millis(20)).await;
        if world.app.common.metrics.connections.get() == 0 {
            assert_eq!(world.app.hub.followers(), 0);
            return;
        }
    }
    panic!("it is still connected");
}

#[tokio::test]
async fn stopping_ends_streams_and_lets_requests_finish() {
    let world = ServedFleet::new();
    let server = start(&world).await;
    let mut stream = TcpStream::connect(server.address).await.expect("a connection");
    stream
        .write_all(
            b"GET /v1/fleets/default/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n",
        )
        .await
        .expect("sent");
    while world.app.hub.followers() == 0 {
        tokio::task::yield_now().await;
    }
    let mut asking = TcpStream::connect(server.address).await.expect("a connection");
    asking
        .write_all(b"GET /v1/fleets/default/nodes?min_position=6 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .expect("sent");
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.stop.send(()).expect("it runs");
    let text = read(&mut stream).await;
    assert!(text.contains("event: closed\ndata: {\"reason\":\"shutdown\",\"position\":5}"), "{text}");
    world.touch("node-1", 1);
    assert!(read(&mut asking).await.starts_with("HTTP/1.1 200"));
    server.served.await.expect("no panic").expect("no error");
    assert!(TcpStream::connect(server.address).await.is_err());
}

fn output(index: u16, stream: LogStream, base: PathBuf) -> Box<dyn LogOutput> {
    let name = OutputName { payload: "server".parse().expect("a name"), index, stream };
    Box::new(OutputFile { name, base })
}

struct LogDirectory(tempfile::TempDir);

impl ConsoleSource for LogDirectory {}

impl ClusterLogSource for LogDirectory {
    fn keeps(&self, _cluster: &ClusterName) -> bool {
        true
    }
}

impl LogSource for LogDirectory {
    fn outputs(&self, _id: IncarnationId) -> io::Result<Vec<Box<dyn LogOutput>>> {
        let files =
            [(0, LogStream::Out, "0.out"), (0, LogStream::Err, "0.err"), (1, LogStream::Out, "1.out")];
        Ok(files.map(|(index, stream, name)| output(index, stream, self.0.path().join(name))).into())
    }
}

/// Log source of an incarnation with many processes, which have written nothing.
struct ManyProcesses;

impl ConsoleSource for ManyProcesses {}

impl ClusterLogSource for ManyProcesses {
    fn keeps(&self, _cluster: &ClusterName) -> bool {
        true
    }
}

impl LogSource for ManyProcesses {
    fn outputs(&self, _id: IncarnationId) -> io::Result<Vec<Box<dyn LogOutput>>> {
        let file = |index| output(index, LogStream::Out, format!("nowhere/{index}.out").into());
        Ok((0..300).map(file).collect())
    }
}

#[tokio::test]
async fn logs_are_shown_and_followed() {
    let mut world = ServedFleet::new();
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("0.out.1");
    std::fs::write(&out, "one\ntwo\nthree\n").expect("a file");
    std::fs::write(directory.path().join("0.err.1"), "oh\n").expect("a file");
    let kept = Arc::new(LogDirectory(directory));
    world.app.logs = kept.clone();
    let id = IncarnationId::issue(LINEAGE, Position::new(3));
    let path = format!("/incarnations/{id}/logs");
    let text = |answer: super::world::CompleteAnswer| String::from_utf8(answer.body.to_vec()).expect("text");
    let one = text(world.get(&format!("{path}?stream=out&process=0&tail=2")).await);
    assert_eq!(one, "two\nthree\n");
    let all = text(world.get(&format!("{path}?tail=1")).await);
    assert_eq!(all, "==> server-0.out <==\nthree\n\n==> server-0.err <==\noh\n");
    let other = world.get(&format!("{path}?payload=other")).await;
    assert_eq!(other.problem().0, 404);
    assert!(text(other).contains("available: server-0.out, server-0.err, server-1.out"));

    world.app.logs = Arc::new(ManyProcesses);
    let many = world.get(&path).await;
    assert_eq!(many.problem().0, 400);
    assert!(text(many).contains("300 outputs match, at most 256 allowed: name a payload or a process"));
    assert_eq!(world.get(&format!("{path}?process=299")).await.status, 200);
    world.app.logs = kept;

    let follow = request(Method::GET, &format!("{path}?stream=out&process=0&tail=0&follow=true"), &[], "");
    let mut body = world.router().oneshot(follow).await.expect("an answer").into_body();
    let mut file = std::fs::OpenOptions::new().append(true).open(&out).expect("a file");
    io::Write::write_all(&mut file, b"four\n").expect("written");
    let frame = tokio::time::timeout(Duration::from_secs(5), body.frame()).await.expect("in time");
    assert_eq!(frame.expect("more").expect("no error").into_data().expect("data"), "four\n");
    std::fs::write(out.with_extension("2"), "new\n").expect("a file");
    let frame = tokio::time::timeout(Duration::from_secs(5), body.frame()).await.expect("in time");
    assert_eq!(frame.expect("more").expect("no error").into_data().expect("data"), "new\n");
    world.app.hub.close();
    assert!(tokio::time::timeout(Duration::from_secs(5), body.frame()).await.expect("in time").is_none());
}
