//! Producers that send intents continuously, record answers, and retry without an answer.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use chancery_events::digest::Digest;
use chancery_events::extension::ExtensionAttributes;
use chancery_events::id::Position;
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::refusal::RefusalCode;
use serde_json::{Value, json};

use crate::history::{HistoryRecorder, InvocationHistory, InvocationOutcome, OpId, Verdict};
use crate::sim::RandomSource;
use crate::{ServerAnswer, TestClient};

/// Maximum number of attempts without an answer; then the outcome is unknown.
const TRIES: usize = 4;
/// Number of verdicts per read of the same server.
const READS: u64 = 4;

/// Kind and pace of the intents of producers.
#[derive(Clone, Copy, Debug)]
pub struct LoadShape {
    /// Requests for replicas of the plan `web`.
    pub verbs: &'static [&'static str],
    /// Maximum number of replicas of the plan `hand`.
    pub by_hand: u64,
    /// Time between two intents of a producer.
    pub interval: Duration,
}

impl LoadShape {
    /// Load for processes and pods: as many intents as the server decides.
    pub const FAST: LoadShape = LoadShape {
        verbs: &["replica.stop", "replica.start", "replica.start", "replica.relocate", "replica.restart"],
        by_hand: 2,
        interval: Duration::ZERO,
    };
}

/// Running producers.
pub struct ProducerLoad {
    shared: Arc<LoadShared>,
    producers: Vec<JoinHandle<Result<()>>>,
}

struct LoadShared {
    shape: LoadShape,
    stop: AtomicBool,
    /// Whether producers send nothing new.
    pause: AtomicBool,
    url: Mutex<String>,
    /// Time that a producer waits for an answer.
    patience: Duration,
    recorder: HistoryRecorder<File>,
}

impl ProducerLoad {
    /// Starts `count` producers. Their history is also written to `file`.
    pub fn begin(url: &str, count: u64, seed: u64, patience: Duration, file: &Path) -> Result<ProducerLoad> {
        ProducerLoad::begin_with(LoadShape::FAST, url, count, seed, patience, file)
    }

    /// Starts producers with load of this shape.
    pub fn begin_with(
        shape: LoadShape,
        url: &str,
        count: u64,
        seed: u64,
        patience: Duration,
        file: &Path,
    ) -> Result<ProducerLoad> {
        let file = File::create(file).with_context(|| format!("make {}", file.display()))?;
        let shared = Arc::new(LoadShared {
            shape,
            stop: AtomicBool::new(false),
            pause: AtomicBool::new(false),
            url: Mutex::new(url.to_owned()),
            patience,
            recorder: HistoryRecorder::new(file),
        });
        let producers = (0..count).map(|number| {
            let shared = Arc::clone(&shared);
            let random = RandomSource::new(seed.wrapping_mul(31).wrapping_add(number));
            std::thread::spawn(move || shared.produce(number, random))
        });
        let producers = producers.collect();
        Ok(ProducerLoad { shared, producers })
    }

    /// Directs producers to another server URL.
    pub fn moved(&self, url: &str) {
        url.clone_into(&mut self.shared.url.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets producers send nothing new until they resume. Requests that were sent may still be answered.
    pub fn pause(&self) {
        self.shared.pause.store(true, Ordering::Relaxed);
    }

    /// Lets producers send intents again.
    pub fn resume(&self) {
        self.shared.pause.store(false, Ordering::Relaxed);
    }

    /// Number of verdicts that producers have received.
    pub fn acknowledged(&self) -> u64 {
        self.shared.recorder.acknowledged()
    }

    /// Stops all producers and returns their history.
    pub fn end(self) -> Result<InvocationHistory> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for producer in self.producers {
            producer.join().map_err(|_| anyhow!("a producer panicked"))??;
        }
        let shared = Arc::into_inner(self.shared).context("every producer has ended")?;
        Ok(shared.recorder.into_history())
    }
}

impl LoadShared {
    fn client(&self) -> TestClient {
        let url = self.url.lock().unwrap_or_else(PoisonError::into_inner).clone();
        TestClient::patient(&url, self.patience)
    }

    fn produce(&self, number: u64, mut random: RandomSource) -> Result<()> {
        for i in 0.. {
            while self.pause.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(self.shape.interval);
            let key = format!("producer-{number}-{i}");
            let (type_name, data) = self.draw(number, i, &mut random);
            for _ in 0..TRIES {
                let client = self.client();
                let (op, answer) = self.ask(&client, &key, type_name, &data)?;
                let ending = ending(&answer);
                self.recorder.end(op, ending)?;
                if let InvocationOutcome::Ok { position, .. } = ending {
                    if i % READS == 0 {
                        follows(position, &client.get("/v1/fleets/default/clusters?limit=1"))?;
                    }
                    break;
                }
                // A takeover by another server takes seconds.
                let is_nobody_there = answer.json()["code"] == "no_leader";
                std::thread::sleep(Duration::from_millis(if is_nobody_there { 100 } else { 5 }));
            }
        }
        Ok(())
    }

    fn ask(
        &self,
        client: &TestClient,
        key: &str,
        type_name: &str,
        data: &Value,
    ) -> Result<(OpId, ServerAnswer)> {
        let (hash, digest) = identity(key, type_name, data)?;
        let op = self.recorder.invoke(hash, digest, &format!("{type_name}.v1"))?;
        Ok((op, client.intent(key, type_name, data)))
    }

    /// Draws the next intent: mostly small, sometimes one that causes operations or changes nothing.
    fn draw(&self, number: u64, i: u64, random: &mut RandomSource) -> (&'static str, Value) {
        let small = || {
            let name = format!("cap-{number}-{}", i % 50);
            ("capability.apply", json!({"name": name, "spec": {"type": "T", "score": i}}))
        };
        match random.below(20) {
            0 => self.one_of("replicas?plan=web&limit=100", random).map_or_else(small, |replica| {
                let verb = random.pick(self.shape.verbs).copied().unwrap_or("replica.start");
                (verb, json!({"name": replica["name"]}))
            }),
            1 => self.one_of("operations?state=pending_approval&limit=100", random).map_or_else(
                small,
                |operation| {
                    let id = &operation["id"];
                    if random.chance(800) {
                        let shown = json!({"operation": id, "hash": operation["hash"]});
                        ("operation.approve", json!({"operations": [shown]}))
                    } else {
                        (
                            "operation.reject",
                            json!({"operations": [id], "reason": "the random choice is valid"}),
                        )
                    }
                },
            ),
            2 => {
                let name = format!("by-{number}-{i}");
                (
                    "deployment.create",
                    json!({"plan": "hand", "name": name, "spec": {"count": random.below(self.shape.by_hand + 1)}}),
                )
            }
            // Changes nothing but the first time.
            3..6 => (
                "capability.apply",
                json!({"name": format!("cap-{number}"), "spec": {"type": "T", "score": 1}}),
            ),
            _ => small(),
        }
    }

    fn one_of(&self, path: &str, random: &mut RandomSource) -> Option<Value> {
        let answer = self.client().get(&format!("/v1/fleets/default/{path}"));
        random.pick(answer.json()["items"].as_array()?).cloned()
    }
}

/// Key and digest of an intent as the client sends it.
fn identity(key: &str, type_name: &str, data: &Value) -> Result<(Digest, Digest)> {
    let intent = Intent::read(&format!("{type_name}.v1"), &data.to_string())
        .with_context(|| format!("unknown intent {type_name}"))??;
    let request = IntentRequest {
        id: key.parse()?,
        source: "tests".parse()?,
        actor: "ann".parse()?,
        time: None,
        expect: None,
        claim: None,
        traceparent: None,
        extensions: ExtensionAttributes::default(),
        intent,
    };
    Ok((request.key(), request.digest()))
}

/// Checks that a read of the server that gave a verdict is not older, also after a restart or a takeover. A
/// read without an answer passes.
fn follows(verdict: Position, read: &ServerAnswer) -> Result<()> {
    match (read.status, read.position) {
        (200, Some(position)) if position >= verdict.get() => Ok(()),
        (200, position) => {
            bail!("a read after the verdict at position {verdict} was answered at {position:?}")
        }
        _ => Ok(()),
    }
}

/// Outcome of the intent according to an answer.
fn ending(answer: &ServerAnswer) -> InvocationOutcome {
    let body = answer.json();
    let position = body["position"].as_u64().map(Position::new);
    let code = body["code"].as_str();
    let refusal = code.and_then(|code| RefusalCode::ALL.iter().find(|known| known.word() == code));
    match (answer.status, position, refusal) {
        (200..300, Some(position), _) => {
            let verdict = if body["recorded"] == true { Verdict::Accepted } else { Verdict::Unchanged };
            InvocationOutcome::Ok { position, verdict }
        }
        (400..600, Some(position), Some(code)) => {
            InvocationOutcome::Ok { position, verdict: Verdict::Refused(*code) }
        }
        // Nothing was recorded.
        (503, None, _) if matches!(code, Some("busy" | "timeout" | "no_leader")) => InvocationOutcome::Fail,
        // No server received the request.
        (0, ..) if answer.text.contains("Connection refused") => InvocationOutcome::Fail,
        _ => InvocationOutcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_is_older_than_the_verdict_before_it_is_found() {
        let read = |status, position| ServerAnswer { status, position, ..ServerAnswer::default() };
        let verdict = Position::new(7);
        for (read, is_fine) in [
            (read(200, Some(7)), true),
            (read(200, Some(9)), true),
            (read(200, Some(6)), false),
            (read(200, None), false),
            (read(503, Some(6)), true),
            (read(0, None), true),
        ] {
            assert_eq!(follows(verdict, &read).is_ok(), is_fine, "{read:?}");
        }
    }

    #[test]
    fn an_answer_reports_what_is_known_and_no_more() {
        let outcome = |status, text: &str| {
            ending(&ServerAnswer { status, text: text.into(), ..ServerAnswer::default() })
        };
        let ok = |verdict| InvocationOutcome::Ok { position: Position::new(7), verdict };
        assert_eq!(outcome(202, r#"{"position": 7, "recorded": true}"#), ok(Verdict::Accepted));
        assert_eq!(outcome(200, r#"{"position": 7, "recorded": false}"#), ok(Verdict::Unchanged));
        assert_eq!(
            outcome(409, r#"{"position": 7, "code": "in_use"}"#),
            ok(Verdict::Refused(RefusalCode::InUse))
        );
        for (status, text) in [(503, r#"{"code": "busy"}"#), (0, "io: Connection refused (os error 111)")] {
            assert_eq!(outcome(status, text), InvocationOutcome::Fail, "{text}");
        }
        for (status, text) in [
            (0, "timeout: global"),
            (0, "io: Connection reset by peer"),
            (504, r#"{"code": "unknown_outcome"}"#),
            (202, "cut sho"),
            (500, r#"{"code": "internal"}"#),
        ] {
            assert_eq!(outcome(status, text), InvocationOutcome::Unknown, "{text}");
        }
    }
}
