//! Client of the API that hides nothing: it returns every answer, whatever its status.

use std::time::Duration;

use serde_json::{Value, json};

use crate::until;

/// Answer of a server.
#[derive(Clone, Default, Debug)]
pub struct ServerAnswer {
    /// HTTP status; 0 if there was no answer.
    pub status: u16,
    /// Content type of the body.
    pub content_type: String,
    /// Body as text.
    pub text: String,
    /// Position of the verdict, or at which a read was answered.
    pub position: Option<u64>,
    /// Seconds after which the server asks the client to retry.
    pub retry_after: Option<u64>,
}

impl ServerAnswer {
    /// Returns the body as JSON; null if invalid.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }
}

/// Client of one server, for one of its fleets.
#[derive(Clone, Debug)]
pub struct TestClient {
    agent: ureq::Agent,
    url: String,
    fleet: String,
}

impl TestClient {
    /// Creates a client of a server's fleet `default`, with a timeout of 30 seconds.
    pub fn new(url: &str) -> TestClient {
        TestClient::patient(url, Duration::from_secs(30))
    }

    /// Creates a client with this timeout.
    pub fn patient(url: &str, patience: Duration) -> TestClient {
        let config =
            ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(patience)).build();
        TestClient { agent: config.into(), url: url.to_owned(), fleet: "default".into() }
    }

    /// Returns a client of another fleet.
    #[must_use]
    pub fn of(&self, fleet: &str) -> TestClient {
        TestClient { fleet: fleet.into(), ..self.clone() }
    }

    /// Gets a path.
    pub fn get(&self, path: &str) -> ServerAnswer {
        answer(self.agent.get(format!("{}{path}", self.url)).call())
    }

    /// Gets a path under the fleet. Panics unless the status is 200.
    pub fn read(&self, path: &str) -> Value {
        let answer = self.get(&format!("/v1/fleets/{}/{path}", self.fleet));
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.text);
        answer.json()
    }

    /// Returns the rows of a list.
    pub fn items(&self, path: &str) -> Vec<Value> {
        self.read(path)["items"].as_array().cloned().unwrap_or_default()
    }

    /// Sends any method with any body.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> ServerAnswer {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.url));
        for (key, value) in headers {
            request = request.header(*key, *value);
        }
        match request.body(body) {
            Ok(request) => answer(self.agent.run(request)),
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// Posts an intent under a key, as the actor `ann`.
    pub fn intent(&self, key: &str, type_name: &str, data: &Value) -> ServerAnswer {
        let event = json!({
            "specversion": "1.0", "id": key, "source": "tests", "type": format!("dev.chancery.{type_name}.v1"),
            "actor": "ann", "data": data,
        });
        let headers = [("content-type", "application/cloudevents+json")];
        self.send(
            "POST",
            &format!("/v1/fleets/{}/intents", self.fleet),
            &headers,
            event.to_string().as_bytes(),
        )
    }

    /// Posts an intent, again while no server is the leader.
    pub fn decided(&self, key: &str, type_name: &str, data: &Value) -> ServerAnswer {
        until("a server is the leader", || {
            let answer = self.intent(key, type_name, data);
            (answer.json()["code"] != "no_leader").then_some(answer)
        })
    }

    /// Posts an intent that must be accepted. Returns the position.
    pub fn must(&self, type_name: &str, data: &Value) -> u64 {
        let answer = self.decided(&uuid::Uuid::new_v4().to_string(), type_name, data);
        assert!((200..300).contains(&answer.status), "{type_name} {data}: {} {}", answer.status, answer.text);
        answer.json()["position"].as_u64().expect("a position")
    }

    /// Approves all pending operations.
    pub fn approve_all(&self) {
        loop {
            let waiting = self.items("operations?state=pending_approval&limit=200");
            let shown: Vec<_> =
                waiting.iter().map(|o| json!({"operation": o["id"], "hash": o["hash"]})).collect();
            if shown.is_empty() {
                return;
            }
            let answer = self.intent(
                &uuid::Uuid::new_v4().to_string(),
                "operation.approve",
                &json!({"operations": shown}),
            );
            // An operation may have ended in between: list again.
            assert!(matches!(answer.status, 200..300 | 404 | 409), "{}", answer.text);
        }
    }

    /// Waits until this number of the plan's replicas is in the phase.
    pub fn wait_for(&self, plan: &str, phase: &str, count: usize) -> Vec<Value> {
        until(&format!("{count} replicas of {plan} {phase}"), || {
            let found = self.items(&format!("replicas?plan={plan}&phase={phase}&limit=1000"));
            (found.len() == count).then_some(found)
        })
    }
}

fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> ServerAnswer {
    match result {
        Ok(mut response) => {
            let header =
                |key| response.headers().get(key).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
            let (status, content_type) = (response.status().as_u16(), header("content-type"));
            let position = header("chancery-position").parse().ok();
            let retry_after = header("retry-after").parse().ok();
            let text = response.body_mut().read_to_string().unwrap_or_default();
            ServerAnswer { status, content_type, text, position, retry_after }
        }
        Err(error) => ServerAnswer { text: error.to_string(), ..ServerAnswer::default() },
    }
}
