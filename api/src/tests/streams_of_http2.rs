//! HTTP/2 without TLS: several requests on one connection, within the limits of connections.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::listener::{read, start};
use super::world::ServedFleet;
use crate::HttpLimits;

const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const EVENTS: &str = "http://localhost/v1/fleets/default/events";
const NODES: &str = "http://localhost/v1/fleets/default/nodes";

type Http2Client = SendRequest<Body>;

async fn connect(address: SocketAddr) -> (Http2Client, JoinHandle<Result<(), hyper::Error>>) {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    (client, tokio::spawn(connection))
}

async fn get(client: &mut Http2Client, uri: &str) -> Response<Incoming> {
    let accept = if uri.contains("/events") { "text/event-stream" } else { "*/*" };
    let request = Request::get(uri).header("accept", accept).body(Body::empty());
    client.ready().await.expect("it is open");
    client.send_request(request.expect("a request")).await.expect("an answer")
}

async fn whole(response: Response<Incoming>) -> (StatusCode, Bytes) {
    let status = response.status();
    (status, response.into_body().collect().await.expect("a body").to_bytes())
}

/// Waits until the server has closed all connections.
async fn until_closed(world: &ServedFleet) {
    for _ in 0..500 {
        if world.app.common.metrics.connections.get() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it is still connected");
}

#[tokio::test]
async fn requests_on_one_connection_are_answered_concurrently() {
    let world = ServedFleet::new();
    let server = start(&world).await;
    let (mut client, _connection) = connect(server.address).await;
    let mut stream = get(&mut client, EVENTS).await.into_body();
    for _ in 0..20 {
        let (status, body) = whole(get(&mut client, NODES).await).await;
        assert_eq!(status, StatusCode::OK);
        let one = super::listener::ask(server.address, super::listener::NODES).await;
        assert!(one.ends_with(std::str::from_utf8(&body).expect("text")), "the same body: {one}");
    }
    world.touch("node-1", 1);
    let frame = stream.frame().await.expect("more").expect("no error").into_data().expect("data");
    assert!(!frame.is_empty());
    server.stop.send(()).expect("it runs");
    let rest = stream.collect().await.expect("it ends in order").to_bytes();
    assert!(String::from_utf8_lossy(&rest).contains("event: closed"), "{rest:?}");
    server.served.await.expect("no panic").expect("no error");
}

#[tokio::test]
async fn the_authority_is_the_host() {
    let world = ServedFleet::new();
    let server = start(&world).await;
    let (mut client, _connection) = connect(server.address).await;
    for (uri, status) in [
        ("http://localhost/livez", 200),
        ("http://127.0.0.1:7440/livez", 200),
        ("http://evil.example/livez", 421),
    ] {
        assert_eq!(get(&mut client, uri).await.status(), status, "{uri}");
    }
    let mut other = Request::get("http://localhost/livez").body(Body::empty()).expect("a request");
    other.headers_mut().insert("host", "evil.example".parse().expect("a value"));
    client.ready().await.expect("it is open");
    assert_eq!(client.send_request(other).await.expect("an answer").status(), 400);
}

#[tokio::test]
async fn each_stream_after_the_first_takes_a_slot() {
    let world = ServedFleet::with(HttpLimits { connections: 8, ..HttpLimits::default() });
    let server = start(&world).await;
    let (mut client, _connection) = connect(server.address).await;
    let mut streams = Vec::new();
    for _ in 0..6 {
        let response = get(&mut client, EVENTS).await;
        assert_eq!(response.status(), StatusCode::OK);
        streams.push(response);
    }
    // This address has three quarters of the slots.
    let (status, body) = whole(get(&mut client, NODES).await).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(String::from_utf8_lossy(&body).contains("\"code\":\"busy\""), "{body:?}");
    let refused = super::listener::ask(server.address, super::listener::NODES).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    streams.pop();
    for _ in 0..500 {
        if get(&mut client, NODES).await.status() == StatusCode::OK {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the slot of a stream that has ended was not given to another");
}

#[tokio::test]
async fn a_client_that_leaves_one_answer_and_takes_others_is_cut_off() {
    let world = ServedFleet::with(HttpLimits { stall: Duration::from_millis(200), ..HttpLimits::default() });
    let server = start(&world).await;
    let (mut client, _connection) = connect(server.address).await;
    let left = get(&mut client, EVENTS).await;
    // More than the window of a stream holds; the body is kept and never read.
    for _ in 0..200 {
        world.touch("node-1", 300);
        if client.ready().await.is_err() {
            break;
        }
        let request = Request::get("http://localhost/livez").body(Body::empty()).expect("a request");
        let Ok(response) = client.send_request(request).await else { break };
        drop(response.into_body().collect().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until_closed(&world).await;
    assert_eq!(world.app.hub.followers(), 0);
    drop(left);
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed() {
    let short = Duration::from_millis(100);
    let world = ServedFleet::with(HttpLimits { header_read: short, stall: short, ..HttpLimits::default() });
    let server = start(&world).await;
    // HTTP/2 starts with 24 bytes, and then each side sends its settings.
    for begun in ["", "PRI * HT", PREFACE, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0"] {
        let mut silent = TcpStream::connect(server.address).await.expect("a connection");
        silent.write_all(begun.as_bytes()).await.expect("sent");
        read(&mut silent).await;
    }
    until_closed(&world).await;
    let (mut client, connection) = connect(server.address).await;
    assert_eq!(get(&mut client, "http://localhost/livez").await.status(), StatusCode::OK);
    connection.await.expect("no panic").expect("it is closed in order");
}

#[tokio::test]
async fn what_is_no_http_2_behind_its_preface_ends_its_own_connection_alone() {
    let world = ServedFleet::new();
    let server = start(&world).await;
    for bytes in [&b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..], &[0; 64], b"GET /livez HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.address).await.expect("a connection");
        stream.write_all(PREFACE.as_bytes()).await.expect("sent");
        let _ = stream.write_all(bytes).await;
        let mut all = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut all)).await;
        drop(ended.expect("in time"));
        let (mut client, _connection) = connect(server.address).await;
        assert_eq!(get(&mut client, "http://localhost/livez").await.status(), StatusCode::OK);
    }
}
