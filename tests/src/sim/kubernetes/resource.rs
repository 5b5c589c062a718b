//! Objects of a simulated API, and the requests and answers of its clients.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use chancery_events::id::IncarnationId;
use hyper::body::{Body, Bytes, Frame};
use hyper::{Method, Response};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

/// Kind of objects that an executor uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum ResourceKind {
    /// Executor store, or record of an object.
    ConfigMap,
    /// Pod of an incarnation.
    Pod,
    /// Claim of a volume.
    Claim,
}

impl ResourceKind {
    /// Returns the kind with this plural name in a path.
    pub(super) fn of(plural: &str) -> Option<ResourceKind> {
        match plural {
            "configmaps" => Some(ResourceKind::ConfigMap),
            "pods" => Some(ResourceKind::Pod),
            "persistentvolumeclaims" => Some(ResourceKind::Claim),
            _ => None,
        }
    }
}

/// Object of a simulated API.
#[derive(Debug)]
pub(super) struct ApiObject {
    /// Object as clients read it.
    pub(super) value: Value,
    /// Incarnation of a pod.
    pub(super) incarnation: Option<IncarnationId>,
    /// Containers of a pod that may run.
    pub(super) running: usize,
    /// Whether the request for the pod arrived late: after a take-over, or after its sender had given up.
    pub(super) is_late: bool,
    /// Next change that the cluster makes, and when.
    pub(super) next: Option<(Duration, ClusterChange)>,
    /// Later changes of the pod, each with the time after the change before it.
    pub(super) plan: Vec<(Duration, ClusterChange)>,
}

/// Change that the cluster makes to a pod or a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClusterChange {
    /// Containers run, or the claim is bound.
    Run,
    /// Containers are ready.
    Ready,
    /// Containers are not ready any more.
    Unready,
    /// Containers end with this status.
    Exit(i32),
    /// The object is removed.
    Remove,
}

impl ApiObject {
    pub(super) fn new(value: Value) -> ApiObject {
        let incarnation = label(&value, "incarnation").and_then(|id| id.parse().ok());
        let running = value["spec"]["containers"].as_array().map_or(0, Vec::len);
        ApiObject { value, incarnation, running, is_late: false, next: None, plan: Vec::new() }
    }

    /// Whether the deletion was requested.
    pub(super) fn is_deleting(&self) -> bool {
        self.value["metadata"]["deletionTimestamp"].is_string()
    }

    /// Returns the names of the claims that the pod mounts.
    pub(super) fn claims(&self) -> impl Iterator<Item = &str> {
        let volumes = self.value["spec"]["volumes"].as_array().into_iter().flatten();
        volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
    }
}

/// Returns a label of the executor.
pub(super) fn label<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value["metadata"]["labels"][format!("chancery.dev/{key}")].as_str()
}

/// Returns the epoch of the executor that wrote the object.
pub(super) fn epoch_of(value: &Value) -> u64 {
    label(value, "epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default()
}

/// Request that the API has not answered.
#[derive(Debug)]
pub(super) struct ApiRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) body: Bytes,
    /// Earliest time at which the request arrives.
    pub(super) arrives: Duration,
    /// Sender of the answer; closed if the client does not wait for it any more.
    pub(super) answer: oneshot::Sender<Response<ApiBody>>,
}

impl ApiRequest {
    /// Returns a parameter of the query.
    pub(super) fn parameter(&self, key: &str) -> Option<&str> {
        self.query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
    }
}

/// Body of an answer.
#[derive(Debug)]
pub(super) enum ApiBody {
    /// Text; `None` once it was read.
    Whole(Option<Bytes>),
    /// Events of a watch.
    Events(mpsc::UnboundedReceiver<Bytes>),
}

impl Body for ApiBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            ApiBody::Whole(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            ApiBody::Events(events) => {
                events.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
        }
    }
}

/// Returns an answer with a text.
pub(super) fn text(status: u16, text: String) -> Response<ApiBody> {
    let mut response = Response::new(ApiBody::Whole(Some(text.into())));
    *response.status_mut() = status.try_into().expect("a status");
    response
}

/// Returns an answer with an object.
pub(super) fn found(value: &Value) -> Response<ApiBody> {
    text(200, value.to_string())
}

/// Returns an answer that refuses a request.
pub(super) fn refusal(status: u16, reason: &str, message: &str) -> Response<ApiBody> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status, "reason": reason,
        "message": message,
    });
    text(status, body.to_string())
}
