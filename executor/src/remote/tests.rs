//! Channels over real connections, to a server that the test plays.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use super::*;

fn fleet() -> FleetName {
    "default".parse().expect("a name")
}

async fn server() -> (TcpListener, DeciderEndpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/before/", listener.local_addr().expect("an address"));
    (listener, DeciderEndpoint::new(&url, &fleet()).expect("an address"))
}

/// Returns the next request: connection, first line and body.
async fn asked(listener: &TcpListener) -> (TcpStream, String, String) {
    let (stream, _) = timeout(PATIENCE, listener.accept()).await.expect("in time").expect("a connection");
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).await.expect("a request");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.expect("a header");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.expect("a body");
    let first = first.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    (reader.into_inner(), first, String::from_utf8(body).expect("text"))
}

/// Opens a channel to the test, and the connection on which the test speaks for the decider.
async fn open(listener: &TcpListener, remote: &DeciderEndpoint) -> (TcpStream, DeciderChannel) {
    let (channel, mut stream) = tokio::join!(remote.connect(), async {
        let (mut stream, first, _) = asked(listener).await;
        assert_eq!(first, "POST /before/v1/fleets/default/channels");
        let head = "HTTP/1.1 201 Created\r\nchancery-channel: a-1\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.expect("written");
        stream
    });
    // A heartbeat, and the first half of a message.
    stream.write_all(b"1\r\n\n\r\n4\r\n{\"on\r\n").await.expect("written");
    (stream, channel.expect("a channel"))
}

#[tokio::test]
async fn a_request_without_an_answer_is_repeated_as_it_was() {
    let (listener, remote) = server().await;
    let (_stream, channel) = open(&listener, &remote).await;
    channel.to_decider.send(b"{\"m\":1}".to_vec()).await.expect("the channel is open");
    let (lost, first, body) = asked(&listener).await;
    drop(lost);
    let (mut stream, again, same) = asked(&listener).await;
    assert_eq!(first, "POST /before/v1/fleets/default/channels/a-1/messages?after=0");
    assert_eq!((&first, &body, body.as_str()), (&again, &same, "{\"m\":1}\n"));
    // The connection is closed after the response: the next request uses another one.
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.expect("written");
    drop(stream);
    channel.to_decider.send(b"{\"m\":2}".to_vec()).await.expect("the channel is open");
    let (_stream, next, body) = asked(&listener).await;
    assert_eq!((next.rsplit('=').next(), body.as_str()), (Some("1"), "{\"m\":2}\n"));
}

#[tokio::test]
async fn messages_of_the_decider_arrive_whole_and_the_end_closes_both_halves() {
    let (listener, remote) = server().await;
    let (mut stream, mut channel) = open(&listener, &remote).await;
    stream.write_all(b"8\r\ne\":1}\n{}\r\n1\r\n\n\r\n0\r\n\r\n").await.expect("written");
    assert_eq!(channel.from_decider.recv().await.as_deref(), Some(b"{\"one\":1}".as_slice()));
    assert_eq!(channel.from_decider.recv().await.as_deref(), Some(b"{}".as_slice()));
    assert_eq!(channel.from_decider.recv().await, None);
    channel.to_decider.closed().await;
}

#[tokio::test]
async fn a_server_that_refuses_is_quoted() {
    let (listener, remote) = server().await;
    let answer = async {
        let (mut stream, _, _) = asked(&listener).await;
        let text = r#"{"detail":"cannot open channel: the limit of 256 executors is reached","status":503}"#;
        let head = format!("HTTP/1.1 503 Busy\r\ncontent-length: {}\r\n\r\n", text.len());
        stream.write_all((head + text).as_bytes()).await.expect("written");
        stream
    };
    let (channel, _stream) = tokio::join!(remote.connect(), answer);
    let error = channel.expect_err("no channel").to_string();
    assert!(error.contains("503") && error.ends_with("256 executors is reached"), "{error}");
}

#[test]
fn a_server_url_is_an_address_with_plain_http() {
    for (url, host, port, path) in [
        ("http://127.0.0.1:7440", "127.0.0.1", 7440, "/v1/fleets/default"),
        ("http://[::1]:80/", "::1", 80, "/v1/fleets/default"),
        ("http://host.example/a/b/", "host.example", 80, "/a/b/v1/fleets/default"),
    ] {
        let remote = DeciderEndpoint::new(url, &fleet()).expect(url);
        assert_eq!((remote.host.as_str(), remote.port, remote.fleet.as_str()), (host, port, path));
    }
    for url in ["https://host", "host:80", "http://", "/channels", "http://host/?a=b", ""] {
        assert_eq!(DeciderEndpoint::new(url, &fleet()), Err(InvalidServerUrl(url.into())));
    }
}
