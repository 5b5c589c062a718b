//! Spans that the decider's loop reports of an intent, up to the command that follows from it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use chancery_events::protocol::Command;
use chancery_spans::{RecordedSpan, SpanRecorder, SpanStart};

use super::*;
use crate::traces::DecisionTraces;

/// Name and context of each span that has ended, with the context of its parent.
static ENDED: Mutex<Vec<(String, String, Option<String>)>> = Mutex::new(Vec::new());
static SPANS: AtomicU64 = AtomicU64::new(1);

struct TestRecorder;

struct TestSpan {
    name: String,
    context: String,
    parent: Option<String>,
}

impl SpanRecorder for TestRecorder {
    fn start(&self, start: SpanStart<'_>) -> Box<dyn RecordedSpan> {
        let trace = start.parent.map_or("none", |parent| &parent[3..35]);
        let context = format!("00-{trace}-{:016x}-01", SPANS.fetch_add(1, Ordering::Relaxed));
        let parent = start.parent.map(str::to_owned);
        Box::new(TestSpan { name: start.name.into_owned(), context, parent })
    }
}

impl RecordedSpan for TestSpan {
    fn context(&self) -> String {
        self.context.clone()
    }
    fn text(&mut self, _: &'static str, _: String) {}
    fn number(&mut self, _: &'static str, _: i64) {}
    fn fail(&mut self, _: String) {}
}

impl Drop for TestSpan {
    fn drop(&mut self) {
        let ended = (self.name.clone(), self.context.clone(), self.parent.take());
        ENDED.lock().expect("no panic").push(ended);
    }
}

/// Decider whose loop is played by hand, with its traces.
struct TracedDecider {
    rig: DeciderFixture,
    traces: DecisionTraces,
}

impl TracedDecider {
    fn start() -> TracedDecider {
        chancery_spans::install(Box::new(TestRecorder));
        let traces = DecisionTraces::start(&name("default")).expect("a recorder");
        TracedDecider { rig: DeciderFixture::new(), traces }
    }

    /// Decides an intent of a request in this context.
    fn decide(&mut self, context: &str, type_name: &str, data: &serde_json::Value) {
        let request = self.rig.request(type_name, data);
        drop(self.traces.decide(&request, context));
        self.rig.ask(&request);
    }

    /// Makes everything durable, and returns the commands that are sent.
    fn settle(&mut self) -> Vec<Command> {
        let before = self.rig.journal.len();
        let effects = self.rig.settle();
        for record in &self.rig.journal[before..] {
            drop(self.traces.delivered(record, self.rig.core.fleet()));
        }
        let commands = effects.into_iter().filter_map(|effect| match effect {
            DeciderEffect::Send(_, message) => match *message {
                DeciderMessage::Command { command, .. } => Some(command),
                _ => None,
            },
            _ => None,
        });
        let mut commands: Vec<_> = commands.collect();
        for command in &mut commands {
            self.traces.send(command);
        }
        commands
    }

    /// Opens a session, and returns its token.
    fn session(&mut self) -> ConnectionToken {
        self.rig.cluster();
        self.rig.hello(1, "ex", None);
        let effects = self.rig.settle();
        let [DeciderMessage::Welcome { envelope, .. }] = sent(&effects)[..] else { panic!("{effects:?}") };
        let connection = envelope.connection;
        self.rig.send(1, ExecutorMessage::FullReport { connection, reports: vec![], part: ReportPart::Last });
        connection
    }
}

fn context(trace: u8) -> String {
    format!("00-{trace:032x}-00f067aa0ba902b7-01")
}

/// Returns the names of the ended spans of a trace, in order.
fn names(trace: u8) -> Vec<String> {
    let ended = ENDED.lock().expect("no panic");
    let of = &context(trace)[..35];
    ended.iter().filter(|(_, context, _)| context.starts_with(of)).map(|(name, ..)| name.clone()).collect()
}

#[test]
fn a_command_is_in_the_trace_of_its_intent_until_its_outcome() {
    let mut decider = TracedDecider::start();
    let token = decider.session();
    let plan = decider.rig.request("plan.apply", &json!({"name": "web", "spec": {
        "namespace": "ns", "service": "web",
        "payloads": [{"name": "app", "resources": {"cpu": 1000, "memory": 1}, "run": {"argv": ["app"]}}],
        "approval": {"create": "automatic", "start": "automatic", "stop": "automatic", "delete": "automatic"}}}));
    decider.rig.ask(&plan);
    decider.settle();
    let create = json!({"plan": "web", "name": "d1", "spec": {"count": 1}});
    decider.decide(&context(1), "deployment.create", &create);
    let commands = decider.settle();
    let [command] = &commands[..] else { panic!("{commands:?}") };
    let start = command.traceparent.clone().expect("a trace");
    assert_eq!(start[..35], context(1)[..35]);
    assert_eq!(names(1), ["decide", "append", "effects"], "the command has no outcome yet");

    // Another connection gets the same span.
    let mut again = command.clone();
    again.traceparent = None;
    decider.traces.send(&mut again);
    assert_eq!(again.traceparent.as_deref(), Some(&*start));

    let process = ProcessInfo {
        payload: name("app"),
        index: 0,
        pid: Some(9),
        object: None,
        addresses: vec![],
        status: ProcessStatus::Ready,
        since: None,
        resets: 0,
    };
    let observed = ObservedState::Ready { processes: vec![process] };
    let report = ObjectReport { object: command.object, revision: command.revision, observed };
    decider.rig.send(1, ExecutorMessage::Report { connection: token, sequence: 1, report });
    assert_eq!(decider.settle(), []);
    assert_eq!(names(1).last().map(String::as_str), Some("command"), "{:?}", names(1));

    // The next command follows from another intent.
    let replica = decider.rig.core.fleet().replicas().sorted()[0].name.to_string();
    decider.decide(&context(2), "replica.stop", &json!({"name": replica}));
    let commands = decider.settle();
    let [command] = &commands[..] else { panic!("{commands:?}") };
    let stop = command.traceparent.as_deref().expect("a trace");
    assert_eq!(stop[..35], context(2)[..35]);
    assert_eq!(names(1).iter().filter(|name| *name == "command").count(), 1);
}

#[test]
fn an_intent_whose_record_is_of_another_decider_has_the_trace_of_its_client() {
    let mut decider = TracedDecider::start();
    decider.session();
    let mut request =
        decider.rig.request("capability.apply", &json!({"name": "gpu", "spec": {"type": "GPU", "score": 1}}));
    request.traceparent = Some(context(3));
    decider.rig.ask(&request);
    decider.settle();
    assert!(names(3).is_empty(), "it was not decided here, and has no spans");
}
