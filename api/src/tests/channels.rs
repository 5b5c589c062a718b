//! Channels of executors: messages reach the decider in order and once, and both halves end together.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Method;
use chancery_decider::{ChannelNumber, ChannelNumbers, DeciderInput, ExecutorOutbox, outbox};
use chancery_executor::remote::DeciderEndpoint;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::net::TcpListener;
use tower::ServiceExt as _;

use super::world::{ServedFleet, fleet, request};
use crate::{ExecutorChannels, HttpLimits, serve};

/// Media type of executors' messages.
const LINES: [(&str, &str); 1] = [("content-type", "application/x-ndjson")];
/// Limit on every wait, longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Channel, from the side of the decider and of the executor.
struct TestChannel {
    id: String,
    body: Body,
    connection: ChannelNumber,
    to_executor: ExecutorOutbox,
}

async fn open(world: &mut ServedFleet) -> TestChannel {
    let asked = request(Method::POST, "/channels", &LINES, "");
    let response = world.router().oneshot(asked).await.expect("an answer");
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let id = response.headers()["chancery-channel"].to_str().expect("an id").to_owned();
    let (connection, to_executor) = match next_input(world).await {
        DeciderInput::Connected(connection, executor) => (connection, executor),
        other => panic!("{other:?}"),
    };
    TestChannel { id, body: response.into_body(), connection, to_executor }
}

async fn next_input(world: &mut ServedFleet) -> DeciderInput {
    tokio::time::timeout(PATIENCE, world.received.recv()).await.expect("an input in time").expect("a decider")
}

/// Returns the next heartbeat of the channel.
async fn beat(world: &mut ServedFleet, of: ChannelNumber) -> u64 {
    match next_input(world).await {
        DeciderInput::ExecutorMessage(connection, text, _) if connection == of => {
            let message: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            message["heartbeat"]["sequence"].as_u64().expect("a heartbeat")
        }
        other => panic!("{other:?}"),
    }
}

async fn disconnected(world: &mut ServedFleet, of: ChannelNumber) {
    match next_input(world).await {
        DeciderInput::Disconnected(connection) if connection == of => {}
        other => panic!("{other:?}"),
    }
}

fn heartbeat(beat: u64) -> String {
    let line = json!({"heartbeat": {"connection": "0000000000000007", "sequence": beat}});
    format!("{line}\n")
}

impl TestChannel {
    async fn send(&self, world: &ServedFleet, after: u64, body: impl Into<Body>) -> (u16, String) {
        let path = format!("/channels/{}/messages?after={after}", self.id);
        let answer = world.send(request(Method::POST, &path, &LINES, body)).await;
        if answer.status == 204 { (204, String::new()) } else { (answer.problem().0, answer.problem().1) }
    }

    /// Has the decider accept the executor's hello.
    async fn welcome(&mut self) {
        self.to_executor.put(b"{\"welcome\":{}}".to_vec()).expect("it is open");
        self.read("welcome").await;
    }

    /// Reads until `wanted` arrives, without heartbeats.
    async fn read(&mut self, wanted: &str) -> String {
        let mut all = String::new();
        while !all.contains(wanted) {
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("in time");
            let frame = frame.expect("more data").expect("no error").into_data().expect("data");
            all.push_str(std::str::from_utf8(&frame).expect("text").trim_start_matches('\n'));
        }
        all
    }

    async fn ends(&mut self) {
        let all = async { while self.body.frame().await.is_some() {} };
        tokio::time::timeout(PATIENCE, all).await.expect("it ends");
    }
}

#[tokio::test]
async fn messages_are_delivered_in_order_and_once_however_often_they_are_sent() {
    let mut world = ServedFleet::new();
    let mut channel = open(&mut world).await;
    let on = channel.connection;
    assert_eq!(channel.send(&world, 0, heartbeat(1) + "\n" + &heartbeat(2)).await.0, 204);
    // The client does not know whether the message arrived: it sends it again, and again with one more.
    assert_eq!(channel.send(&world, 0, heartbeat(1) + &heartbeat(2)).await.0, 204);
    assert_eq!(channel.send(&world, 1, heartbeat(2) + &heartbeat(3)).await.0, 204);
    for wanted in 1..=3 {
        assert_eq!(beat(&mut world, on).await, wanted);
    }
    channel.to_executor.put(b"{\"a\":1}".to_vec()).expect("it is open");
    channel.to_executor.put(b"{\"a\":2}".to_vec()).expect("it is open");
    assert_eq!(channel.read("2}\n").await, "{\"a\":1}\n{\"a\":2}\n");
    // The fourth message is missing.
    assert_eq!(channel.send(&world, 4, heartbeat(5)).await, (409, "out_of_order".into()));
    channel.ends().await;
    disconnected(&mut world, on).await;
    assert_eq!(channel.send(&world, 3, heartbeat(4)).await, (410, "gone".into()));
    assert_eq!(world.app.channels.count(), 0);
}

#[tokio::test]
async fn an_invalid_message_closes_only_its_channel_and_does_not_reach_the_decider() {
    let mut world = ServedFleet::new();
    let (mut bad, good) = (open(&mut world).await, open(&mut world).await);
    let text = heartbeat(1) + "{\"heartbeat\":{}}\n";
    assert_eq!(bad.send(&world, 0, text).await, (422, "invalid".into()));
    bad.ends().await;
    disconnected(&mut world, bad.connection).await;
    assert_eq!(good.send(&world, 0, heartbeat(1)).await.0, 204);
    assert_eq!(beat(&mut world, good.connection).await, 1);
    for (path, status) in [
        ("/channels/x/messages?after=0", 400),
        ("/channels/00000000-0008-8801-8000-000000000007/messages?after=0", 410),
        ("/channels/00000000-0008-8801-8000-000000000007/messages", 400),
        ("/channels/00000000-0008-8801-8000-000000000007/messages?after=0&before=1", 400),
    ] {
        let answer = world.send(request(Method::POST, path, &LINES, "")).await;
        assert_eq!(answer.problem().0, status, "{path}");
    }
    let json = [("content-type", "application/json")];
    assert_eq!(world.send(request(Method::POST, "/channels", &json, "")).await.problem().0, 415);
    assert_eq!(world.send(request(Method::POST, "/channels", &LINES, "{}")).await.problem().0, 422);
    assert_eq!(world.app.channels.count(), 1);
}

#[tokio::test]
async fn when_either_side_closes_the_other_half_ends_too() {
    let mut world = ServedFleet::new();
    let mut closed = open(&mut world).await;
    // The decider's end is dropped.
    closed.to_executor = outbox().0;
    closed.ends().await;
    disconnected(&mut world, closed.connection).await;
    let executor = open(&mut world).await;
    drop(executor.body);
    disconnected(&mut world, executor.connection).await;
    let mut stopped = open(&mut world).await;
    world.app.hub.close();
    stopped.ends().await;
    disconnected(&mut world, stopped.connection).await;
}

#[tokio::test]
async fn an_idle_channel_is_closed_and_their_number_is_limited() {
    let mut world = ServedFleet::new();
    world.app.channels =
        Arc::new(ExecutorChannels::new(ChannelNumbers::default(), Duration::from_millis(200), 1));
    let mut channel = open(&mut world).await;
    assert_eq!(world.send(request(Method::POST, "/channels", &LINES, "")).await.problem().0, 503);
    channel.ends().await;
    disconnected(&mut world, channel.connection).await;
    open(&mut world).await;
}

#[tokio::test]
async fn an_executor_reaches_the_decider_over_a_real_connection() {
    let mut world = ServedFleet::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(serve(world.api(), listener, std::future::pending()));
    let remote = DeciderEndpoint::new(&url, &fleet()).expect("an address");
    let mut channel = remote.connect().await.expect("a link");
    let DeciderInput::Connected(connection, to_executor) = next_input(&mut world).await else {
        panic!("no connection")
    };
    // More than one request or any queue can hold.
    let most = 20_000;
    let to_decider = channel.to_decider.clone();
    tokio::spawn(async move {
        for n in 1..=most {
            let message = heartbeat(n).trim_end().as_bytes().to_vec();
            to_decider.send(message).await.expect("it holds");
        }
    });
    for n in 1..=most {
        assert_eq!(beat(&mut world, connection).await, n);
    }
    let long = vec![b'x'; 3 << 20];
    to_executor.put(long.clone()).expect("it holds");
    assert!(channel.from_decider.recv().await.is_some_and(|message| message == long));
    drop(to_executor);
    assert!(channel.from_decider.recv().await.is_none());
    disconnected(&mut world, connection).await;
}

/// Returns a body of `pieces` mebibytes that counts the pieces taken from it.
fn counted(pieces: usize) -> (Body, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    let stream = async_stream::stream! {
        for _ in 0..pieces {
            counter.fetch_add(1, Ordering::Relaxed);
            yield Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'\n'; 1 << 20]));
        }
    };
    (Body::from_stream(stream), taken)
}

#[tokio::test]
async fn of_one_channel_one_body_is_read_at_a_time_and_nothing_of_the_next() {
    let mut world = ServedFleet::new();
    let mut channel = open(&mut world).await;
    channel.welcome().await;
    // The queue of this decider is short and unread: the first request waits in the middle.
    let many: String = (1..=100).map(heartbeat).collect();
    let path = format!("/channels/{}/messages?after=", channel.id);
    let router = world.router();
    let first = tokio::spawn(router.oneshot(request(Method::POST, &format!("{path}0"), &LINES, many)));
    assert_eq!(beat(&mut world, channel.connection).await, 1);
    let (body, taken) = counted(4);
    let router = world.router();
    let mut second = pin!(router.oneshot(request(Method::POST, &format!("{path}100"), &LINES, body)));
    for _ in 0..100 {
        tokio::task::yield_now().await;
        let waits = poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending())).await;
        assert!(waits, "the first is not through");
    }
    assert_eq!(taken.load(Ordering::Relaxed), 0, "something was read while the first is not through");
    for wanted in 2..=100 {
        assert_eq!(beat(&mut world, channel.connection).await, wanted);
    }
    assert_eq!(first.await.expect("no panic").expect("an answer").status(), 204);
    assert_eq!(second.await.expect("an answer").status(), 204);
    assert_eq!(taken.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn halves_of_messages_on_all_channels_have_one_budget_and_small_ones_pass() {
    let limits = HttpLimits { messages: 1 << 20, uploads: 2 << 20, ..HttpLimits::default() };
    let mut world = ServedFleet::with(limits);
    let taken = Arc::new(AtomicUsize::new(0));
    let (mut channels, mut sending) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let mut channel = open(&mut world).await;
        channel.welcome().await;
        let counter = Arc::clone(&taken);
        let half = async_stream::stream! {
            for _ in 0..8 {
                counter.fetch_add(64 << 10, Ordering::Relaxed);
                yield Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 64 << 10]));
            }
            std::future::pending::<()>().await;
        };
        let path = format!("/channels/{}/messages?after=0", channel.id);
        let asked = request(Method::POST, &path, &LINES, Body::from_stream(half));
        sending.push(tokio::spawn(world.router().oneshot(asked)));
        channels.push(channel);
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(taken.load(Ordering::Relaxed), 1 << 20, "the halves of two, which is all that two may have");
    assert!(world.app.common.uploads.free() < 1 << 20);
    let beating = open(&mut world).await;
    assert_eq!(beating.send(&world, 0, heartbeat(1)).await.0, 204);
    for one in sending {
        one.abort();
    }
    while world.app.common.uploads.free() < 2 << 20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn before_its_hello_is_accepted_a_channel_takes_little() {
    let mut world = ServedFleet::new();
    let mut channel = open(&mut world).await;
    let (body, taken) = counted(1000);
    assert_eq!(channel.send(&world, 0, body).await.0, 413);
    assert!(taken.load(Ordering::Relaxed) <= 2, "{taken:?} MiB");
    assert_eq!(channel.send(&world, 0, heartbeat(1)).await.0, 204, "a small one is taken");
    channel.welcome().await;
    let (body, taken) = counted(4);
    assert_eq!(channel.send(&world, 1, body).await.0, 204);
    assert_eq!(taken.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn of_what_is_sent_on_no_channel_not_more_is_read_than_of_any_other_request() {
    let world = ServedFleet::new();
    let (body, taken) = counted(1000);
    let path = "/channels/00000000-0008-8801-8000-000000000007/messages?after=0";
    assert_eq!(world.send(request(Method::POST, path, &LINES, body)).await.problem().0, 410);
    let most = world.app.common.limits.body_bytes * 8 / (1 << 20);
    assert!(taken.load(Ordering::Relaxed) <= most + 2, "{taken:?} of {most} MiB");
}

#[tokio::test]
async fn the_decider_has_a_channel_before_anything_can_be_sent_on_it() {
    let mut world = ServedFleet::new();
    let response =
        world.router().oneshot(request(Method::POST, "/channels", &LINES, "")).await.expect("an answer");
    let id = response.headers()["chancery-channel"].to_str().expect("an id");
    let upload = request(Method::POST, &format!("/channels/{id}/messages?after=0"), &LINES, heartbeat(1));
    assert_eq!(world.send(upload).await.status, 204);
    let DeciderInput::Connected(connection, _mailbox) = next_input(&mut world).await else {
        panic!("the decider has no link")
    };
    assert_eq!(beat(&mut world, connection).await, 1);
}

#[tokio::test]
async fn a_channel_without_a_welcome_is_closed_whatever_it_receives() {
    let mut world = ServedFleet::new();
    world.app.channels =
        Arc::new(ExecutorChannels::new(ChannelNumbers::default(), Duration::from_millis(300), 1));
    let mut channel = open(&mut world).await;
    let mut ended = pin!(async { while channel.body.frame().await.is_some() {} });
    let path = format!("/channels/{}/messages?after=0", channel.id);
    let is_over = async |ended: &mut std::pin::Pin<&mut _>| {
        tokio::time::timeout(Duration::from_millis(50), ended).await.is_ok()
    };
    let end = tokio::time::Instant::now() + PATIENCE;
    while !is_over(&mut ended).await {
        assert!(tokio::time::Instant::now() < end, "empty messages keep it open");
        world.send(request(Method::POST, &path, &LINES, "\n")).await;
    }
    disconnected(&mut world, channel.connection).await;
}
