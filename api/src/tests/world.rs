//! A small fleet for the tests of the API.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use chancery_decider::leader_router::{LeaderRole, LeaderRouter};
use chancery_decider::{ChannelNumbers, DeciderHandle, DeciderInput, DeciderReading, EventHub, Verdict};
use chancery_events::event::Event;
use chancery_events::fact::Fact;
use chancery_events::id::{Lineage, Position, WriterId};
use chancery_events::intent;
use chancery_events::name::FleetName;
use chancery_events::record::{Record, RecordDraft};
use chancery_events::time::Time;
use chancery_executor::logs::NoLogSource;
use chancery_journal::memory::{MemoryJournal, MemoryLog};
use chancery_journal::{Journal, JournalDelivery, WriterIdentity, genesis};
use chancery_projector::{MomentCache, MomentLimits, Projector, StoreTuning};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tower::ServiceExt as _;

use crate::problem::{ABOUT_THE_API, API_TERMS};
use crate::{
    AllowedHosts, ApiShared, ApiState, ExecutorChannels, FleetApi, HttpLimits, LastVerdict, MomentQueue,
    router,
};

pub(super) const FLEET: &str = "/v1/fleets/default";
pub(super) const LINEAGE: Lineage = Lineage::from_random(7);
/// Time of the first records of a journal.
pub(super) const START: Time = Time::from_micros(1_795_251_600_000_000);

/// Verdict of the test decider for a request; `None` if it does not answer.
pub(super) type TestVerdict = dyn Fn(&intent::IntentRequest) -> Option<Verdict> + Send;

/// Test fleet, with the parts of the API that serve it.
pub(super) struct ServedFleet {
    pub(super) app: FleetApi,
    pub(super) journal: MemoryJournal,
    lineage: Lineage,
    by: WriterIdentity,
    /// Intents that were submitted to the decider.
    pub(super) asked: Arc<Mutex<Vec<intent::IntentRequest>>>,
    verdict: Arc<Mutex<Box<TestVerdict>>>,
    /// Inputs of executors that reached the decider.
    pub(super) received: mpsc::UnboundedReceiver<DeciderInput>,
    _directory: tempfile::TempDir,
}

/// Complete answer to a request.
pub(super) struct CompleteAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl CompleteAnswer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    /// Checks that the answer is a complete problem, and returns status, code and the first pointer.
    pub(super) fn problem(&self) -> (u16, String, String) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{:?}", self.body);
        let json = self.json();
        assert_eq!(json["status"], self.status.as_u16());
        assert_eq!(json["request_id"], self.header("chancery-request-id"));
        let code = json["code"].as_str().expect("a code");
        assert_eq!(json["type"], format!("/errors/{code}"));
        for text in ["title", "detail"] {
            assert!(!json[text].as_str().expect(text).is_empty());
        }
        assert!(json["retryable"].is_boolean());
        let detail = json["detail"].as_str().unwrap_or_default().to_lowercase();
        let is_about_the_api = ABOUT_THE_API.iter().any(|kind| kind.code == code);
        let term = API_TERMS.iter().find(|term| !is_about_the_api && detail.contains(**term));
        assert_eq!(term, None, "the command line shows {detail:?}");
        let pointer = json["errors"][0]["pointer"].as_str().unwrap_or_default();
        (self.status.as_u16(), code.to_owned(), pointer.to_owned())
    }
}

/// Returns the name of the test fleet.
pub(super) fn fleet() -> FleetName {
    "default".parse().expect("a name")
}

/// Returns a server with only this fleet.
pub(super) fn api_of(app: FleetApi) -> ApiState {
    let common = Arc::clone(&app.common);
    ApiState { fleets: [(fleet(), Arc::new(app))].into(), common }
}

impl ServedFleet {
    /// Returns the API as a server has it.
    pub(super) fn api(&self) -> ApiState {
        api_of(self.app.clone())
    }

    /// Returns a world with a term, a cluster, two nodes and a capability: positions 1 to 5.
    pub(super) fn new() -> ServedFleet {
        ServedFleet::with(HttpLimits { heartbeat: Duration::from_millis(50), ..HttpLimits::default() })
    }

    pub(super) fn with(limits: HttpLimits) -> ServedFleet {
        ServedFleet::of(limits, LINEAGE)
    }

    /// Returns a server with a journal of the lineage that follows the leader at an address.
    pub(super) fn following(there: &str, lineage: Lineage) -> ServedFleet {
        let mut world = ServedFleet::of(HttpLimits::default(), lineage);
        let (_, role) = watch::channel(LeaderRole::Standby);
        let (_, decider) = watch::channel(Some(there.into()));
        let clock = Arc::clone(&world.app.router.clock);
        world.app.router = LeaderRouter {
            leader_role: role,
            decider,
            own: "127.0.0.1:1".into(),
            clock,
            troubles: Arc::default(),
        };
        world
    }

    fn of(limits: HttpLimits, lineage: Lineage) -> ServedFleet {
        let directory = tempfile::tempdir().expect("a directory");
        let log = MemoryLog::new("default");
        let hub = Arc::new(EventHub::new());
        let tuning = StoreTuning { cache: 1 << 20, ..StoreTuning::default() };
        let rows = directory.path().join("rows");
        let projector = Projector::open(&rows, "default", log.source(), None, tuning).expect("rows");
        let reader = projector.reader();
        let (projector, published) = (Arc::new(Mutex::new(projector)), hub.clone());
        let figures = Arc::clone(&projector);
        let sink = Box::new(move |delivery| {
            if let JournalDelivery::Records(records) = delivery {
                projector.lock().expect("no panic").apply(&records).expect("rows");
                for record in records {
                    published.publish(record);
                }
            }
        });
        let journal = log.open(sink).expect("a journal");
        let (queue, inputs) = mpsc::channel(8);
        let asked: Arc<Mutex<Vec<intent::IntentRequest>>> = Arc::default();
        let verdict: Arc<Mutex<Box<TestVerdict>>> = Arc::new(Mutex::new(Box::new(|_| None)));
        let (sender, received) = mpsc::unbounded_channel();
        tokio::spawn(decide(inputs, asked.clone(), verdict.clone(), sender));
        let common = Arc::new(ApiShared::new(limits, AllowedHosts::default()));
        let moments = MomentCache::new(
            "default".into(),
            log.source(),
            None,
            reader.watch().clone(),
            MomentLimits::default(),
        );
        let app = FleetApi {
            router: LeaderRouter::with(DeciderHandle::over(queue)),
            reader,
            moments: Arc::new(MomentQueue::new(moments)),
            replicas: 10_000,
            last_verdict: Arc::new(LastVerdict::default()),
            source: log.source(),
            hub,
            figures: Arc::new(common.metrics.of(&fleet())),
            figure_source: Arc::new(move || {
                let (answer, answered) = oneshot::channel();
                drop(answer.send(figures.lock().expect("no panic").figures()));
                answered
            }),
            directories: None,
            logs: Arc::new(NoLogSource),
            channels: Arc::new(ExecutorChannels::new(
                ChannelNumbers::default(),
                Duration::from_mins(1),
                common.limits.executors,
            )),
            common,
        };
        let by = WriterIdentity {
            fleet: "default".into(),
            build: "test".into(),
            writer: WriterId::from_random(1),
        };
        let world =
            ServedFleet { app, journal, lineage, by, asked, verdict, received, _directory: directory };
        world.begin();
        world
    }

    fn begin(&self) {
        self.commit(&[
            "term.started.v1 {}",
            r#"cluster.applied.v1 {"name":"local","spec":{"runtime":"simulated"}}"#,
            r#"node.applied.v1 {"name":"node-1","spec":{"domain":"d1","resources":{"cpu":4000}}}"#,
            r#"node.applied.v1 {"name":"node-2","spec":{"domain":"d2","resources":{"cpu":8000}}}"#,
            r#"capability.applied.v1 {"name":"nvidia/v100","spec":{"type":"GPU","score":70}}"#,
        ]);
    }

    /// Commits one record of facts, each written as its type and its data.
    pub(super) fn commit(&self, facts: &[&str]) {
        self.commit_at(START, facts);
    }

    /// Commits one record of facts at a time.
    pub(super) fn commit_at(&self, now: Time, facts: &[&str]) {
        let mut draft = RecordDraft::new();
        for text in facts {
            let (type_name, data) = text.split_once(' ').expect("type and data");
            let fact = Fact::read(type_name, data).expect("a known type").expect(text);
            draft.push(&Event::Fact { cause: Position::FIRST, fact }.line()).expect("space");
        }
        let parts = match self.journal.head() {
            None => genesis(&self.by, now, self.lineage),
            Some(head) => head.follow(&self.by, now, None),
        };
        let record: Record = draft.seal(parts).expect("a record");
        self.journal.append(record).expect("space");
    }

    /// Updates a node `count` times, each in a record of its own.
    pub(super) fn touch(&self, node: &str, count: usize) {
        for cpu in 1..=count {
            let spec = format!(r#"{{"domain":"d1","resources":{{"cpu":{cpu}}}}}"#);
            self.commit(&[&format!(r#"node.applied.v1 {{"name":"{node}","spec":{spec}}}"#)]);
        }
    }

    /// Sets the decider's verdicts from now on; with `None` it never answers.
    pub(super) fn decide(
        &self,
        verdict: impl Fn(&intent::IntentRequest) -> Option<Verdict> + Send + 'static,
    ) {
        *self.verdict.lock().expect("no panic") = Box::new(verdict);
    }

    pub(super) fn router(&self) -> Router {
        router(self.api())
    }

    /// Sends a request and returns the whole answer.
    pub(super) async fn send(&self, request: Request<Body>) -> CompleteAnswer {
        let (parts, body) = self.router().oneshot(request).await.expect("an answer").into_parts();
        // A stream that should have been refused must not hang the test.
        let body = tokio::time::timeout(Duration::from_secs(10), axum::body::to_bytes(body, 64 << 20)).await;
        let body = body.expect("in time").expect("a body");
        CompleteAnswer { status: parts.status, headers: parts.headers, body }
    }

    pub(super) async fn get(&self, path: &str) -> CompleteAnswer {
        self.send(request(Method::GET, path, &[], "")).await
    }

    /// Sends JSON with a method.
    pub(super) async fn put(&self, method: Method, path: &str, body: impl Into<Body>) -> CompleteAnswer {
        self.send(request(method, path, &[("content-type", "application/json")], body)).await
    }
}

/// Returns a request below the fleet, or at a path of its own if it starts with two slashes.
pub(super) fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Request<Body> {
    let uri = path
        .strip_prefix('/')
        .filter(|rest| rest.starts_with('/'))
        .map_or_else(|| format!("{FLEET}{path}"), str::to_owned);
    let mut request = Request::builder().method(method).uri(uri);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "localhost");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).expect("a request")
}

async fn decide(
    mut inputs: mpsc::Receiver<DeciderInput>,
    asked: Arc<Mutex<Vec<intent::IntentRequest>>>,
    verdict_of: Arc<Mutex<Box<TestVerdict>>>,
    received: mpsc::UnboundedSender<DeciderInput>,
) {
    let mut silent = Vec::new();
    while let Some(input) = inputs.recv().await {
        let (request, answer) = match input {
            DeciderInput::Intent(request, _, answer, _, _) => (request, answer),
            DeciderInput::Read(answer) => {
                let leases = [("local".parse().expect("a name"), Duration::from_millis(2500))].into();
                drop(answer.send(DeciderReading { leases, inbox_offset: None }));
                continue;
            }
            other => {
                // A finished test receives nothing.
                let _ = received.send(other);
                continue;
            }
        };
        let verdict = verdict_of.lock().expect("no panic")(&request);
        asked.lock().expect("no panic").push(*request);
        match verdict {
            Some(verdict) => drop(answer.send(verdict)),
            None => silent.push(answer),
        }
    }
}
