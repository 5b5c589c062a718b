//! Requests to the Kubernetes API, and what their failures mean.
//!
//! | the API | means |
//! |---|---|
//! | does not answer in time, closes the connection, answers 401, 408, 429 or 5xx, 404 without the API's reason, or with anything that is not of the API | nothing is known: the request is repeated |
//! | refuses with 409 | the object exists, or was changed since it was read |
//! | refuses with any other status | the request cannot succeed as it is |

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::core::Status;
use tokio::sync::watch;
use tokio::time::timeout;

/// Time limit of one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// First pause before a request is repeated; the pause doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before a request is repeated.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Failure of a request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum ApiFailure {
    /// Nothing is known about the effect of the request.
    #[error("{0}")]
    NoAnswer(String),
    /// Object that does not exist.
    #[error("{0}")]
    NotFound(String),
    /// Object that exists already, or that was changed since it was read.
    #[error("{0}")]
    Conflict(String),
    /// Name that an object of another party has.
    #[error("{0}")]
    Foreign(String),
    /// Request that was not made: the orchestrator was dropped, or its epoch has ended.
    #[error("cannot make request: the orchestrator has ended")]
    Ended,
    /// Request of an earlier epoch: another executor has taken over.
    #[error("{0}")]
    Superseded(String),
    /// Request that cannot succeed as it is, with its HTTP status.
    #[error("{1}")]
    Refused(u16, String),
}

/// Text in the refusals of the admission policy.
pub(super) const FENCED: &str = "of an earlier epoch";

/// Waits for the answer to a request.
pub(super) async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, ApiFailure> {
    answer_within(PATIENCE, request).await
}

/// Waits for the answer to a request, for at most `limit`.
pub(super) async fn answer_within<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApiFailure> {
    match timeout(limit, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(refusal(&status)),
        Ok(Err(error)) => Err(ApiFailure::NoAnswer(chain(&error))),
        Err(_) => Err(ApiFailure::NoAnswer(format!("no answer within {} s", limit.as_secs()))),
    }
}

/// Returns the object of an answer. An object without a uid is not of the API, and proves nothing.
pub(super) fn identified<K: ResourceExt>(object: K) -> Result<K, ApiFailure> {
    match object.uid() {
        Some(_) => Ok(object),
        None => Err(ApiFailure::NoAnswer("answer is no object of the API: it has no uid".to_owned())),
    }
}

fn refusal(status: &Status) -> ApiFailure {
    let message = status.message.clone();
    match status.code {
        // Only the API itself gives this reason; a proxy has another body.
        404 if status.reason == "NotFound" => ApiFailure::NotFound(message),
        409 => ApiFailure::Conflict(message),
        // An error of a proxy has no code, and often no message.
        0 => ApiFailure::NoAnswer(format!("error that is not of the API {message:?}")),
        401 | 404 | 408 | 429 | 500.. => ApiFailure::NoAnswer(message),
        _ if message.contains(FENCED) => ApiFailure::Superseded(message),
        code => ApiFailure::Refused(code, message),
    }
}

/// Returns the messages of an error and its causes: the outermost alone often states nothing.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}

/// End of an epoch: another executor has taken over.
#[derive(Clone, Debug, Default)]
pub(super) struct EpochEnd(Arc<watch::Sender<Option<String>>>);

impl EpochEnd {
    /// Ends the epoch. Whether it had not ended.
    pub(super) fn end(&self, reason: &str) -> bool {
        self.0.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert_with(|| reason.to_owned());
            is_first
        })
    }

    /// Waits until the epoch has ended, and returns the reason.
    pub(super) async fn wait(&self) -> String {
        let mut ended = self.0.subscribe();
        match ended.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone()) {
            Some(reason) => reason,
            // This end owns a sender: the wait cannot fail.
            None => std::future::pending().await,
        }
    }
}

/// Growing pauses between repeated requests.
#[derive(Debug)]
pub(super) struct RequestBackoff {
    next: Duration,
    /// Source of the jitter: requests of many objects must not be repeated at one time.
    jitter: u32,
}

impl RequestBackoff {
    pub(super) fn new(seed: u64) -> RequestBackoff {
        RequestBackoff { next: PAUSE, jitter: (seed as u32) | 1 }
    }

    /// Returns the next pause: from half of its length to its whole length.
    pub(super) fn pause(&mut self) -> Duration {
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 17;
        self.jitter ^= self.jitter << 5;
        let pause = self.next / 2 + (self.next / 2).mul_f64(f64::from(self.jitter) / f64::from(u32::MAX));
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        pause
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::objects::PodObject;
    use super::*;

    #[test]
    fn only_the_api_itself_refuses() {
        let no_answer = |text: &str| ApiFailure::NoAnswer(text.to_owned());
        for (answer, failure) in [
            // Errors of a proxy, which kube decodes with defaults.
            (json!({"error": "no healthy upstream"}), no_answer("error that is not of the API \"\"")),
            (json!({"code": 404, "message": "page not found"}), no_answer("page not found")),
            (json!({"code": 503, "message": "m"}), no_answer("m")),
            (json!({"code": 429, "message": "m"}), no_answer("m")),
            (json!({"code": 401, "message": "m"}), no_answer("m")),
            (json!({"code": 404, "reason": "NotFound", "message": "m"}), ApiFailure::NotFound("m".into())),
            (json!({"code": 409, "message": "m"}), ApiFailure::Conflict("m".into())),
            (json!({"code": 403, "message": "m"}), ApiFailure::Refused(403, "m".into())),
            (
                json!({"code": 422, "message": "object of an earlier epoch"}),
                ApiFailure::Superseded("object of an earlier epoch".into()),
            ),
        ] {
            let status: Status = serde_json::from_value(answer.clone()).expect("a status");
            assert_eq!(refusal(&status), failure, "{answer}");
        }
    }

    #[test]
    fn an_answer_that_is_no_object_proves_nothing() {
        let read = |answer| identified(serde_json::from_value::<PodObject>(answer).expect("an object"));
        for answer in
            [json!({}), json!({"kind": "Status", "metadata": {}}), json!({"metadata": {"name": "web-0"}})]
        {
            assert!(matches!(read(answer.clone()), Err(ApiFailure::NoAnswer(_))), "{answer}");
        }
        assert!(read(json!({"metadata": {"uid": "u"}})).is_ok());
    }
}
