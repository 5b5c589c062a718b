//! Traces of the real program, built with the feature `otel`: one trace from the request to the outcome of the command.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};
use chancery_tests::{ServerProcess, until};

/// Span, as the collector received it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct ReceivedSpan {
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: u64,
}

/// Fields of a message of protobuf: number, and value of a number or of bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn number(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().expect("a number");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = number(&mut bytes);
        let (value, length) = match tag & 7 {
            0 => (number(&mut bytes), 0),
            1 => (0, 8),
            2 => (0, usize::try_from(number(&mut bytes)).expect("a length")),
            5 => (0, 4),
            other => panic!("unknown wire type {other}"),
        };
        let (part, rest) = bytes.split_at(length);
        all.push((tag >> 3, value, part));
        bytes = rest;
    }
    all
}

/// Values of one field of a message.
fn parts(bytes: &[u8], wanted: u64) -> Vec<&[u8]> {
    fields(bytes).into_iter().filter(|(of, ..)| *of == wanted).map(|(_, _, part)| part).collect()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text takes everything");
        text
    })
}

/// Reads the spans of an `ExportTraceServiceRequest`: resources, scopes, spans.
fn spans(request: &[u8]) -> Vec<ReceivedSpan> {
    let mut all = Vec::new();
    for scopes in parts(request, 1).into_iter().flat_map(|resource| parts(resource, 2)) {
        for span in parts(scopes, 2) {
            let mut found = ReceivedSpan::default();
            for (field, value, part) in fields(span) {
                match field {
                    1 => found.trace = hex(part),
                    2 => found.id = hex(part),
                    4 => found.parent = hex(part),
                    5 => found.name = String::from_utf8_lossy(part).into_owned(),
                    6 => found.kind = value,
                    _ => {}
                }
            }
            all.push(found);
        }
    }
    all
}

/// Collector of spans, which answers each export.
struct SpanCollector {
    address: String,
    received: Arc<Mutex<Vec<ReceivedSpan>>>,
}

fn answer(mut stream: TcpStream, received: &Mutex<Vec<ReceivedSpan>>) -> Option<()> {
    loop {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        let mut body = vec![0; length.trim().parse().expect("a number")];
        stream.read_exact(&mut body).ok()?;
        assert!(head.starts_with("post /v1/traces "), "{head}");
        received.lock().expect("no panic").extend(spans(&body));
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

impl SpanCollector {
    fn start() -> SpanCollector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let received = Arc::new(Mutex::default());
        let all = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let all = Arc::clone(&all);
                std::thread::spawn(move || answer(stream, &all));
            }
        });
        SpanCollector { address, received }
    }

    fn received(&self) -> Vec<ReceivedSpan> {
        self.received.lock().expect("no panic").clone()
    }
}

/// Starts a server that exports to `address`.
fn exporting(address: &str) -> ServerProcess {
    let settings = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", address),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "500"),
    ];
    ServerProcess::start_with(&settings)
}

/// Names of the spans from one to the first of its trace.
fn path(span: &ReceivedSpan, all: &BTreeMap<String, ReceivedSpan>) -> Vec<String> {
    let up = |span: &&ReceivedSpan| all.get(&span.parent);
    std::iter::successors(Some(span), up).map(|span| span.name.clone()).collect()
}

#[test]
fn one_trace_leads_from_a_request_to_the_outcome_of_its_command() {
    let collector = SpanCollector::start();
    let mut server = exporting(&collector.address);
    assert!(!server.log().contains("without the feature otel"), "build with --features chancery/otel");
    let client = server.client();
    set_up(&client, &sleeper());
    deploy(&client, "first", 1);
    until("a report of a ready replica is in the trace of its deployment", || {
        let all: BTreeMap<_, _> =
            collector.received().into_iter().map(|span| (span.id.clone(), span)).collect();
        let request = "POST /v1/fleets/{fleet}/intents";
        let is_whole =
            |name: &str, way: &[&str]| all.values().any(|span| span.name == name && path(span, &all) == way);
        let whole = is_whole("report", &["report", "execute", "command", request])
            && is_whole("orchestrator", &["orchestrator", "execute", "command", request])
            && ["decide", "append", "effects"].iter().all(|name| is_whole(name, &[*name, request]));
        whole.then_some(())
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_clients_trace_continues_and_the_last_spans_are_exported_at_the_end() {
    let collector = SpanCollector::start();
    let mut server = ServerProcess::new();
    server.set("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.address);
    // No export before the end.
    server.set("OTEL_BSP_SCHEDULE_DELAY", "600000");
    server.start_again();
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let body = r#"{"spec":{"type":"bench","score":1}}"#;
    let sent = ureq::put(format!("{}/v1/fleets/default/capabilities/c1", server.url()))
        .header("content-type", "application/json")
        .header("traceparent", traceparent)
        .send(body);
    assert_eq!(sent.expect("an answer").status(), 201);
    let unsampled = "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let read =
        ureq::get(format!("{}/v1/fleets/default/nodes", server.url())).header("traceparent", unsampled);
    assert_eq!(read.call().expect("an answer").status(), 200);
    assert_eq!(server.stop(), Some(0));
    let all = collector.received();
    let of_request = all.iter().find(|span| span.name.starts_with("PUT ")).expect("a span of the request");
    assert_eq!(
        (of_request.trace.as_str(), of_request.parent.as_str()),
        (&traceparent[3..35], &traceparent[36..52])
    );
    assert!(all.iter().all(|span| span.trace != unsampled[3..35]), "the client's decision counts");
    for name in ["decide", "append", "effects"] {
        assert!(all.iter().any(|span| span.name == name && span.parent == of_request.id), "{name}: {all:?}");
    }
}

#[test]
fn an_unreachable_collector_delays_neither_verdicts_nor_the_end() {
    // It accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut server = exporting(&format!("http://{}", silent.local_addr().expect("an address")));
    let client = server.client();
    // More spans than the queue has space for.
    for n in 0..1000 {
        let spec = serde_json::json!({"type": "bench", "score": n});
        client.must("capability.apply", &serde_json::json!({"name": "c", "spec": spec}));
    }
    assert_eq!(server.stop(), Some(0));
}
