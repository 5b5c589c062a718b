//! API of a simulated cluster: stores objects, admits changes, and shows them to watches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chancery_events::id::{ExecutorStoreId, ObjectId};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::resource::{
    ApiBody, ApiObject, ApiRequest, ClusterChange, ResourceKind, epoch_of, found, label, refusal, text,
};
use crate::check::InvariantViolation;
use crate::sim::fault::{OccurrenceCounts, SimulatedFault};
use crate::sim::oracle::violation;
use crate::sim::random::RandomSource;
use crate::sim::server::FLEET;

/// Number of events from which a watch may continue.
const EVENTS: usize = 64;

/// Admission of requests of an earlier epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionPolicy {
    /// Without the policy every request is admitted.
    None,
    /// The policy refuses them once its copy of the executor store has followed.
    Refuse,
}

/// Reaction of an API that does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ApiSilence {
    /// Requests wait, and arrive in the end.
    Wait,
    /// Requests are refused with a status that proves nothing.
    Refuse,
}

/// Open watch.
#[derive(Debug)]
struct ApiWatch {
    kind: ResourceKind,
    events: mpsc::UnboundedSender<Bytes>,
}

/// API of a cluster: see the module.
#[derive(Debug)]
pub struct SimulatedApi {
    pub(super) now: Duration,
    pub(super) random: RandomSource,
    pub(super) faults: BTreeSet<SimulatedFault>,
    /// Misbehaving pods in a thousand.
    pub(super) misbehave: u64,
    pub(super) objects: BTreeMap<(ResourceKind, String), ApiObject>,
    version: u64,
    requests: VecDeque<ApiRequest>,
    watches: Vec<ApiWatch>,
    /// Last events, each with its resource version.
    events: VecDeque<(u64, ResourceKind, Bytes)>,
    policy: AdmissionPolicy,
    /// Epochs of the executor store, each with the time from which the policy knows it.
    epochs: Vec<(Duration, u64)>,
    /// Names of all pods that were created.
    created: BTreeSet<String>,
    silence: Option<(Duration, ApiSilence)>,
    /// First violation of an invariant, if any.
    pub violation: Option<InvariantViolation>,
    /// Counts of events, by name.
    pub counts: OccurrenceCounts,
}

/// Returns the state of an API that executors share.
pub(in crate::sim) fn lock(api: &Mutex<SimulatedApi>) -> MutexGuard<'_, SimulatedApi> {
    api.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a client of the API. A runtime must be entered.
pub(super) fn client(api: &Arc<Mutex<SimulatedApi>>) -> kube::Client {
    let api = Arc::clone(api);
    let service = tower::service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let (answer, answered) = oneshot::channel();
            let path = head.uri.path().to_owned();
            let query = head.uri.query().unwrap_or_default().to_owned();
            lock(&api).receive(ApiRequest {
                method: head.method,
                path,
                query,
                body,
                arrives: Duration::ZERO,
                answer,
            });
            answered.await.map_err(tower::BoxError::from)
        }
    });
    kube::Client::new(service, "default")
}

impl SimulatedApi {
    /// Creates the API of a cluster with the executor store `id`.
    pub fn new(
        cluster: usize,
        id: ExecutorStoreId,
        policy: AdmissionPolicy,
        faults: BTreeSet<SimulatedFault>,
        misbehave: u64,
        random: RandomSource,
    ) -> SimulatedApi {
        let name = format!("chancery-{FLEET}-c{cluster}");
        let store = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": name, "namespace": "system", "uid": "0", "resourceVersion": "1",
                "labels": {"chancery.dev/fleet": FLEET, "chancery.dev/cluster": format!("c{cluster}"), "chancery.dev/epoch": "0"},
            },
            "data": {"id": id.to_string(), "epoch": "0"},
        });
        let objects = BTreeMap::from([((ResourceKind::ConfigMap, name), ApiObject::new(store))]);
        SimulatedApi {
            now: Duration::ZERO,
            random,
            faults,
            misbehave,
            objects,
            version: 1,
            requests: VecDeque::new(),
            watches: Vec::new(),
            events: VecDeque::new(),
            policy,
            epochs: Vec::new(),
            created: BTreeSet::new(),
            silence: None,
            violation: None,
            counts: OccurrenceCounts::default(),
        }
    }

    /// Whether the fault happens now, with this probability in thousandths.
    pub(super) fn strikes(&mut self, fault: SimulatedFault, of_a_thousand: u64) -> bool {
        let strikes = self.faults.contains(&fault) && self.random.chance(of_a_thousand);
        if strikes {
            self.counts.add(fault.word());
        }
        strikes
    }

    /// Ends all faults: the API answers, what is under way arrives, and pods behave well.
    pub fn settle(&mut self) {
        self.faults.clear();
        self.silence = None;
        for request in &mut self.requests {
            request.arrives = self.now;
        }
        self.hurry();
    }

    /// Makes the API silent until a time.
    pub fn silence(&mut self, until: Duration) {
        let kind = *self.random.pick(&[ApiSilence::Wait, ApiSilence::Refuse]).unwrap_or(&ApiSilence::Wait);
        self.silence = Some((until, kind));
        self.watches.clear();
    }

    fn receive(&mut self, mut request: ApiRequest) {
        request.arrives = self.now;
        let is_write = request.method != Method::GET;
        if is_write && self.strikes(SimulatedFault::LateRequest, 150) {
            request.arrives += Duration::from_millis(self.random.between(100, 90_000));
        }
        self.requests.push_back(request);
    }

    /// Whether a request can be answered now.
    pub fn has_work(&self) -> bool {
        let is_waiting = matches!(self.silence, Some((_, ApiSilence::Wait)));
        !is_waiting && self.requests.iter().any(|request| request.arrives <= self.now)
    }

    /// Returns when something happens without a request.
    pub fn due(&self) -> Option<Duration> {
        let requests = self.requests.iter().map(|request| request.arrives);
        let silence = self.silence.map(|(until, _)| until);
        let changes = self.objects.values().filter_map(|object| Some(object.next?.0));
        requests.chain(silence).chain(changes).filter(|due| *due > self.now).min()
    }

    /// Lets time pass.
    pub fn advance(&mut self, now: Duration) {
        self.now = now;
        if self.silence.is_some_and(|(until, _)| until <= now) {
            self.silence = None;
        }
        self.change_due();
    }

    /// Answers up to `most` requests, and returns their number.
    pub fn serve(&mut self, most: u64) -> u64 {
        let mut served = 0;
        while served < most && self.has_work() {
            let first = self.requests.iter().position(|request| request.arrives <= self.now);
            let Some(request) = first.and_then(|first| self.requests.remove(first)) else { break };
            served += 1;
            let response = if self.silence.is_some() {
                refusal(503, "ServiceUnavailable", "no answer: the API is not available")
            } else {
                self.handle(&request)
            };
            // A client that has given up, or ended, has no use for the answer.
            drop(request.answer.send(response));
        }
        served
    }

    fn handle(&mut self, request: &ApiRequest) -> Response<ApiBody> {
        let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        let (plural, name) = match parts[..] {
            ["version"] => {
                let info = [
                    "major",
                    "minor",
                    "gitVersion",
                    "gitCommit",
                    "gitTreeState",
                    "buildDate",
                    "goVersion",
                    "compiler",
                    "platform",
                ];
                return found(&info.into_iter().map(|key| (key.to_owned(), json!("1"))).collect());
            }
            ["apis", "storage.k8s.io", "v1", "storageclasses", name] => {
                return found(&json!({"metadata": {"name": name}, "provisioner": "simulated"}));
            }
            ["api", "v1", plural] | ["api", "v1", "namespaces", _, plural] => (plural, None),
            ["api", "v1", "namespaces", _, plural, name] => (plural, Some(name.to_owned())),
            _ => return refusal(400, "BadRequest", &request.path),
        };
        let Some(kind) = ResourceKind::of(plural) else { return refusal(400, "BadRequest", plural) };
        match (&request.method, name) {
            (&Method::GET, None) if request.parameter("watch") == Some("true") => self.watch(kind, request),
            (&Method::GET, None) => self.list(kind, request),
            (&Method::GET, Some(name)) => match self.objects.get(&(kind, name)) {
                Some(object) => found(&object.value),
                None => refusal(404, "NotFound", "not found"),
            },
            (&Method::POST, None) => self.create(kind, request),
            (&Method::PUT, Some(name)) => self.replace(kind, name, request),
            (&Method::DELETE, Some(name)) => self.delete(kind, name, request),
            _ => refusal(405, "MethodNotAllowed", &request.path),
        }
    }

    fn list(&self, kind: ResourceKind, request: &ApiRequest) -> Response<ApiBody> {
        let selector = request.parameter("labelSelector").unwrap_or_default();
        let key = ["incarnation", "volume", "epoch"].into_iter().find(|key| selector.ends_with(key));
        let Some(key) = key else { return refusal(400, "BadRequest", selector) };
        let of_kind = self.objects.iter().filter(|((of, _), _)| *of == kind);
        let items = of_kind.filter(|(_, object)| label(&object.value, key).is_some());
        let items: Vec<String> = items.map(|(_, object)| object.value.to_string()).collect();
        let version = self.version;
        let items = items.join(",");
        text(200, format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#))
    }

    fn watch(&mut self, kind: ResourceKind, request: &ApiRequest) -> Response<ApiBody> {
        let from = request.parameter("resourceVersion").and_then(|version| version.parse::<u64>().ok());
        let from = from.unwrap_or_default();
        if self.events.len() == EVENTS && self.events.front().is_some_and(|(first, ..)| *first > from + 1) {
            return refusal(410, "Expired", "too old resource version");
        }
        let (sender, events) = mpsc::unbounded_channel();
        let missed = self.events.iter().filter(|(version, of, _)| *of == kind && *version > from);
        for (.., event) in missed {
            // The receiver is below.
            drop(sender.send(event.clone()));
        }
        self.watches.retain(|watch| !watch.events.is_closed());
        self.watches.push(ApiWatch { kind, events: sender });
        Response::new(ApiBody::Events(events))
    }

    /// Stores a changed object and shows it to watches.
    pub(super) fn put(&mut self, kind: ResourceKind, name: &str, mut object: ApiObject, event: &str) {
        self.version += 1;
        object.value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.show(kind, &object.value, event);
        self.objects.insert((kind, name.to_owned()), object);
    }

    /// Removes an object and shows that to watches.
    pub(super) fn remove(&mut self, kind: ResourceKind, name: &str) {
        let Some(mut object) = self.objects.remove(&(kind, name.to_owned())) else { return };
        self.version += 1;
        object.value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.show(kind, &object.value, "DELETED");
    }

    fn show(&mut self, kind: ResourceKind, value: &Value, event: &str) {
        let line = Bytes::from(format!("{{\"type\":\"{event}\",\"object\":{value}}}\n"));
        self.watches.retain(|watch| watch.kind != kind || watch.events.send(line.clone()).is_ok());
        self.events.push_back((self.version, kind, line));
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Returns the epoch in the executor store.
    fn epoch(&self) -> u64 {
        self.epochs.last().map_or(0, |(_, epoch)| *epoch)
    }

    /// Returns the refusal of an object of an earlier epoch, if the policy knows the later one.
    fn refused(&self, value: &Value) -> Option<Response<ApiBody>> {
        if self.policy == AdmissionPolicy::None
            || label(value, "incarnation").or(label(value, "volume")).is_none()
        {
            return None;
        }
        let known = self.epochs.iter().filter(|(from, _)| *from <= self.now).map(|(_, epoch)| *epoch).max();
        let message = "the object is of an earlier epoch";
        (epoch_of(value) < known.unwrap_or_default()).then(|| refusal(403, "Forbidden", message))
    }

    fn create(&mut self, kind: ResourceKind, request: &ApiRequest) -> Response<ApiBody> {
        let Ok(mut value) = serde_json::from_slice::<Value>(&request.body) else {
            return refusal(400, "BadRequest", "no JSON");
        };
        if let Some(refused) = self.refused(&value) {
            return refused;
        }
        if request.parameter("dryRun").is_some() {
            return found(&value);
        }
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.objects.contains_key(&(kind, name.clone())) {
            return refusal(409, "AlreadyExists", &format!("{name} exists"));
        }
        value["metadata"]["uid"] = json!(format!("u{}", self.version));
        let mut object = ApiObject::new(value);
        let is_superseded = epoch_of(&object.value) < self.epoch();
        object.is_late = is_superseded || request.answer.is_closed();
        match kind {
            ResourceKind::Pod => {
                if object.is_late {
                    self.counts.add(if is_superseded { "late pod after a take-over" } else { "late pod" });
                }
                self.check_users(&object);
                if !self.created.insert(name.clone()) && !object.is_late {
                    let what = format!("pod {name} is created a second time");
                    self.violation.get_or_insert(violation(14, what, None));
                }
                self.plan_pod(&mut object);
            }
            ResourceKind::Claim => object.next = Some((self.now, ClusterChange::Run)),
            ResourceKind::ConfigMap => {}
        }
        self.put(kind, &name, object, "ADDED");
        self.change_due();
        self.get(kind, name)
    }

    fn get(&self, kind: ResourceKind, name: String) -> Response<ApiBody> {
        self.objects
            .get(&(kind, name))
            .map_or_else(|| refusal(404, "NotFound", "not found"), |object| found(&object.value))
    }

    /// Checks that no other incarnation uses a claim of a new pod: only a late pod may be a second user.
    fn check_users(&mut self, new: &ApiObject) {
        if new.is_late {
            return;
        }
        let pods = self.objects.iter().filter(|((kind, _), _)| *kind == ResourceKind::Pod);
        let others =
            pods.map(|(_, pod)| pod).filter(|pod| pod.incarnation != new.incarnation && !pod.is_late);
        for pod in others.filter(|pod| pod.running > 0) {
            if let Some(claim) = new.claims().find(|claim| pod.claims().any(|used| used == *claim)) {
                let (old, new) = (&pod.value["metadata"]["name"], &new.value["metadata"]["name"]);
                let what = format!("claim {claim} is used by pods {old} and {new}");
                self.violation.get_or_insert(violation(14, what, None));
                return;
            }
        }
    }

    fn replace(&mut self, kind: ResourceKind, name: String, request: &ApiRequest) -> Response<ApiBody> {
        let Ok(value) = serde_json::from_slice::<Value>(&request.body) else {
            return refusal(400, "BadRequest", "no JSON");
        };
        let Some(old) = self.objects.get(&(kind, name.clone())) else {
            return refusal(404, "NotFound", "not found");
        };
        if old.value["metadata"]["resourceVersion"] != value["metadata"]["resourceVersion"] {
            return refusal(409, "Conflict", "the object has been modified");
        }
        let (before, after) = (epoch_of(&old.value), epoch_of(&value));
        let uid = old.value["metadata"]["uid"].clone();
        if let Some(refused) = self.refused(&value) {
            return refused;
        }
        if after < before {
            let what =
                format!("an executor of epoch {after} replaces {name}, which one of epoch {before} wrote");
            self.violation.get_or_insert(violation(14, what, None));
        }
        let is_store = label(&value, "lineage").is_none();
        if is_store && after == before && value["data"] == old.value["data"] {
            let what = format!("an executor takes over {name} without a new epoch: {after}");
            self.violation.get_or_insert(violation(14, what, None));
        }
        if is_store && after > before {
            let lag = Duration::from_millis(self.random.below(20));
            self.epochs.push((self.now + lag, after));
        }
        let mut object = ApiObject::new(value);
        object.value["metadata"]["uid"] = uid;
        self.put(kind, &name, object, "MODIFIED");
        self.get(kind, name)
    }

    fn delete(&mut self, kind: ResourceKind, name: String, request: &ApiRequest) -> Response<ApiBody> {
        let Some(object) = self.objects.get(&(kind, name.clone())) else {
            return refusal(404, "NotFound", "not found");
        };
        let options: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let metadata = &object.value["metadata"];
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if wanted.is_string() && *wanted != metadata[field] {
                return refusal(409, "Conflict", "the precondition is not met");
            }
        }
        let was = found(&object.value);
        if kind == ResourceKind::ConfigMap {
            self.remove(kind, &name);
            return was;
        }
        self.request_deletion(kind, &name, options["gracePeriodSeconds"].as_i64());
        self.get(kind, name)
    }

    /// Returns the record of an object, if there is one.
    pub fn record(&self, object: ObjectId) -> Option<Value> {
        let name = match object {
            ObjectId::Incarnation(id) => format!("chancery-incarnation-{id}"),
            ObjectId::Volume(id) => format!("chancery-volume-{id}"),
        };
        let map = &self.objects.get(&(ResourceKind::ConfigMap, name))?.value;
        serde_json::from_str(map["data"]["record"].as_str()?).ok()
    }
}
