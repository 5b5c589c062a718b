//! Independent programs against a fleet on a real Kafka. They use the CloudEvents SDKs of Go, Java, Python and
//! JavaScript, each with a Kafka client in that language alone (`tests/clients`, installed by
//! `tests/clients/install`). Events that they read from the topic equal the HTTP stream's; each inbox message
//! they send is answered once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use chancery_events::time::Time;
use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};
use chancery_tests::kafka::shared;
use chancery_tests::{ExecutorProcess, ServerProcess, StandbyServers, until};
use serde_json::{Value, json};
use tempfile::TempDir;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const MODES: [&str; 2] = ["binary", "structured"];
/// Number of inbox messages in each mode before the kill, and after it.
const MESSAGES: usize = 5;

fn program(language: &str, name: &str) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/run"));
    command.args([language, name]);
    command
}

fn client(language: &str, name: &str, topic: &str) -> Command {
    let mut command = program(language, name);
    command.args([shared(1).bootstrap(), topic]);
    command
}

/// Consumer that reads from the start of the topic until it is dropped.
struct ClientConsumer {
    child: Child,
    lines: Receiver<String>,
    read: Vec<Value>,
    directory: TempDir,
}

impl ClientConsumer {
    fn start(language: &str, topic: &str) -> ClientConsumer {
        let directory = tempfile::tempdir().expect("a directory");
        let mut child = client(language, "consume", topic)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(directory.path().join("errors")).expect("a file"))
            .spawn()
            .expect("tests/clients/run starts");
        let printed = BufReader::new(child.stdout.take().expect("it is piped"));
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in printed.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = to.send(line);
            }
        });
        ClientConsumer { child, lines, read: Vec::new(), directory }
    }

    /// Waits for the first `count` events.
    fn first(&mut self, count: usize) -> &[Value] {
        until("the consumer has read all events", || {
            let lines = self.lines.try_iter();
            self.read.extend(lines.map(|line| serde_json::from_str::<Value>(&line).expect("a line of JSON")));
            let ended = self.child.try_wait().expect("it is ours");
            let output = || std::fs::read_to_string(self.directory.path().join("errors")).unwrap_or_default();
            assert!(ended.is_none(), "the consumer ended: {ended:?}\n{}", output());
            (self.read.len() >= count).then_some(())
        });
        &self.read[..count]
    }
}

impl Drop for ClientConsumer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Inbox message: most create a capability; the last of each half changes the half's first capability at its
/// creation version.
fn message(language: &str, mode: &str, number: usize) -> Value {
    let changes = number % MESSAGES == MESSAGES - 1;
    let of = if changes { number + 1 - MESSAGES } else { number };
    let name = format!("{mode}-{of}");
    let mut inbox_message = json!({
        "id": format!("{mode}-message-{number}"), "source": format!("clients/{language}"),
        "type": "dev.chancery.capability.apply.v1", "subject": format!("capability/{name}"),
        "actor": "carol", "traceparent": TRACE,
        "data": {"name": name, "spec": {"type": "T", "score": number}},
    });
    if changes {
        inbox_message["expectedversion"] = json!(1);
    }
    inbox_message
}

/// Sends inbox messages, each twice.
fn send(language: &str, topic: &str, mode: &str, messages: &[Value]) {
    let mut producer = client(language, "produce", topic)
        .arg(mode)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tests/clients/run starts");
    let mut to = producer.stdin.take().expect("it is piped");
    for message in messages {
        writeln!(to, "{message}\n{message}").expect("it reads");
    }
    drop(to);
    let output = producer.wait_with_output().expect("it ends");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.lines().count() == 2 * messages.len(), "{out}{err}");
}

/// Events as the stream over HTTP returns them.
fn shown(server: &ServerProcess) -> Vec<Value> {
    let accept = [("accept", "application/x-ndjson")];
    let answer = server.client().send("GET", "/v1/fleets/default/events", &accept, b"");
    assert_eq!(answer.status, 200, "{}", answer.text);
    let lines = answer.text.lines().filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Sends inbox messages before and after the leader dies, and reads events all the time.
fn asks_and_reads(language: &str) {
    let settings = [("CHANCERY_INBOX_ALLOWED_INTENTS", "capability.*"), ("CHANCERY_INBOX_ACTOR", "inbox")];
    let mut standbys = StandbyServers::start(shared(1), &format!("by-{language}"), 2, &settings);
    let (inbox, events) = (format!("by-{language}.inbox"), format!("by-{language}.events"));
    let mut consumer = ClientConsumer::start(language, &events);
    // Events of every kind: intents, observations of an executor, and facts.
    let directory = tempfile::tempdir().expect("a directory");
    let decider = standbys.decider();
    let of = standbys.servers[decider].client();
    set_up(&of, &sleeper());
    let _executor = ExecutorProcess::start_for(directory.path(), &standbys.urls(), "e1", "--process");
    deploy(&of, "d1", 2);
    of.wait_for("web", "running", 2);
    let messages =
        |mode, from| (from..from + MESSAGES).map(|i| message(language, mode, i)).collect::<Vec<_>>();
    for mode in MODES {
        send(language, &inbox, mode, &messages(mode, 0));
    }
    until("an inbox message is answered", || {
        let row = of.get("/v1/fleets/default/capabilities/binary-0");
        (row.status == 200).then_some(())
    });
    standbys.servers[decider].kill();
    for mode in MODES {
        send(language, &inbox, mode, &messages(mode, 0));
        send(language, &inbox, mode, &messages(mode, MESSAGES));
    }
    let now = until("another server decides", || standbys.decides());
    let server = &standbys.servers[now];
    let shown = until("the last inbox message is answered", || {
        let shown = shown(server);
        let last = format!("structured-message-{}", 2 * MESSAGES - 1);
        shown.iter().any(|event| event["intentid"] == *last).then_some(shown)
    });
    answered_once(language, &shown);
    for name in MODES.iter().flat_map(|mode| [format!("{mode}-0"), format!("{mode}-{MESSAGES}")]) {
        let row = server.client().get(&format!("/v1/fleets/default/capabilities/{name}")).json();
        assert_eq!(row["version"], 2, "made once and changed once: {row}");
    }
    same(consumer.first(shown.len()), &shown);
}

/// Checks that each inbox message became one intent with its content, and has one verdict.
fn answered_once(language: &str, events: &[Value]) {
    let source = format!("clients/{language}");
    let intents: Vec<_> = events.iter().filter(|event| event["intentsource"] == *source).collect();
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for intent in &intents {
        *found.entry(intent["intentid"].as_str().expect("text")).or_default() += 1;
        assert_eq!(intent["actor"], "inbox", "{intent}");
        assert_eq!(intent["claimedactor"], "carol", "{intent}");
        assert_eq!(intent["traceparent"], TRACE, "{intent}");
        let _: Time = intent["intenttime"].as_str().expect("the SDK adds the time").parse().expect("a time");
        let verdicts = events.iter().filter(|event| {
            let is_verdict =
                event["type"].as_str().is_some_and(|word| word.starts_with("dev.chancery.intent."));
            is_verdict && event["causationid"] == intent["id"]
        });
        let verdicts: Vec<_> = verdicts.map(|verdict| &verdict["type"]).collect();
        assert_eq!(verdicts, ["dev.chancery.intent.accepted.v1"], "{intent}");
    }
    let sent = MODES.iter().flat_map(|mode| (0..2 * MESSAGES).map(move |i| format!("{mode}-message-{i}")));
    let sent: Vec<_> = sent.collect();
    let sent: BTreeMap<&str, usize> = sent.iter().map(|id| (id.as_str(), 1)).collect();
    assert_eq!(found, sent);
    let refused = events.iter().find(|event| event["type"] == "dev.chancery.inbox.message_refused.v1");
    assert_eq!(refused, None);
}

/// Checks that the SDK read every event of the HTTP stream, once and in order, with every promised attribute.
fn same(read: &[Value], shown: &[Value]) {
    let (mut kinds, mut traced) = (BTreeMap::<String, usize>::new(), 0);
    for (number, (event, shown)) in (1..).zip(read.iter().zip(shown)) {
        let text =
            |name: &str| event[name].as_str().unwrap_or_else(|| panic!("{name} of {event}")).to_owned();
        let type_name = text("type");
        let stored = type_name.strip_prefix("dev.chancery.").expect("own types have this prefix");
        assert_eq!(text("id"), number.to_string(), "none is missing: {event}");
        assert_eq!(text("sequence"), format!("{number:020}"));
        assert_eq!(text("specversion"), "1.0");
        assert_eq!(text("source"), format!("/lineages/{}/fleets/default", text("lineage")));
        assert_eq!(text("datacontenttype"), "application/json");
        assert_eq!(text("dataschema"), format!("chancery:/v1/schemas/{stored}"));
        assert_eq!(event["subject"], event["partitionkey"], "the key is the subject: {event}");
        let kind = text("kind");
        match &*kind {
            "fact" => {
                assert!(text("causationid").parse::<u64>().is_ok_and(|cause| cause <= number), "{event}");
            }
            "intent" | "observation" => assert_ne!(text("actor"), ""),
            _ => panic!("of no kind: {event}"),
        }
        *kinds.entry(kind).or_default() += 1;
        traced += usize::from(event["traceparent"] == TRACE);
        // JavaScript's times have milliseconds.
        let time = |event: &Value| -> Time { event["time"].as_str().expect("text").parse().expect("a time") };
        let apart = time(shown).micros() - time(event).micros();
        assert!((0..1000).contains(&apart), "{event}\n{shown}");
        let timeless = |event: &Value| {
            let mut event = event.clone();
            event["time"] = Value::Null;
            event
        };
        // Only messages of the topic have the hash of the record.
        let mut read = timeless(event);
        let hash = read.as_object_mut().expect("an object").remove("recordhash");
        assert!(hash.is_some_and(|hash| hash.as_str().is_some_and(|hash| hash.len() == 64)), "{event}");
        assert_eq!(read, timeless(shown));
    }
    assert_eq!(read.len(), shown.len());
    assert_eq!(kinds.keys().collect::<Vec<_>>(), ["fact", "intent", "observation"]);
    // The intent, its verdict and its fact.
    assert_eq!(traced, 3 * MODES.len() * 2 * MESSAGES, "each inbox message was traced");
}

#[test]
fn a_program_with_the_python_sdk_reads_every_event_and_sends_intents_by_messages() {
    asks_and_reads("python");
}

#[test]
fn a_program_with_the_javascript_sdk_reads_every_event_and_sends_intents_by_messages() {
    asks_and_reads("javascript");
}

#[test]
fn a_program_with_the_go_sdk_reads_every_event_and_sends_intents_by_messages() {
    asks_and_reads("go");
}

#[test]
fn a_program_with_the_java_sdk_reads_every_event_and_sends_intents_by_messages() {
    asks_and_reads("java");
}

#[test]
fn the_checker_of_kafka_topics_finds_each_fault_that_it_is_for() {
    let check = program("python", "check").arg("--self-test").output().expect("tests/clients/run starts");
    assert!(check.status.success(), "{check:?}");
    let printed: Value = serde_json::from_slice(&check.stdout).expect("JSON");
    assert!(printed["found"].as_array().is_some_and(|found| found.len() >= 37), "{printed}");
}
