//! Answers of a live service with their positions, compared with later answers at the same positions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::in_fleet;
use crate::sim::RandomSource;
use crate::{ServerAnswer, TestClient};

/// Lists and rows that are read; names of replicas, incarnations, operations and sessions are added.
const PATHS: [&str; 16] = [
    "nodes",
    "nodes?domain=domain-1&limit=1",
    "nodes/node-1",
    "nodes/node-2/history?limit=5",
    "clusters/local",
    "clusters/local/history",
    "plans/web",
    "plans/web/deployments?limit=2",
    "deployments?state=completed",
    "replicas?plan=web&limit=2",
    "replicas?phase=running",
    "incarnations?limit=3",
    "operations?plan=web&limit=4",
    "capabilities?limit=20",
    "capabilities/cap-0-1",
    "capabilities/cap-0-1/history?limit=5",
];

/// Number of neighbouring positions that are compared one after the other.
const NEIGHBOURS: usize = 64;
/// Maximum number of repeats of a read that reaches the maximum time of a request.
const REPEATS: usize = 20;

/// Answers by position and path: their bodies.
type AnswersByPosition = BTreeMap<(u64, String), String>;

/// Answers of the live service.
#[derive(Debug, Default)]
pub struct LiveAnswers(Mutex<AnswersByPosition>);

impl LiveAnswers {
    /// Reads a path, and notes the answer with its position. A page may be of neighbouring positions while rows
    /// change, so only an answer that is read twice with one position counts.
    pub fn note(&self, client: &TestClient, path: &str) {
        let [first, second] = [(); 2].map(|()| client.get(&in_fleet(path)));
        let (Some(position), true) = (first.position, first.position == second.position) else { return };
        if first.status == 200 && second.status == 200 && first.text == second.text {
            let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            answers.insert((position, path.to_owned()), body(&first.text));
        }
    }

    /// Reads until `is_done`, also rows that exist for a while.
    pub fn record(&self, client: &TestClient, is_done: &AtomicBool) {
        while !is_done.load(Ordering::Relaxed) {
            for path in PATHS {
                self.note(client, path);
            }
            for kind in ["replicas", "incarnations", "operations", "sessions"] {
                let page = client.get(&in_fleet(&format!("{kind}?limit=1000"))).json();
                let items = page["items"].as_array().cloned().unwrap_or_default();
                let name = |item: &Value| item["name"].as_str().or(item["id"].as_str()).map(str::to_owned);
                if let Some(name) = items.iter().rev().find_map(name) {
                    self.note(client, &format!("{kind}/{name}"));
                    self.note(client, &format!("{kind}/{name}/history?limit=20"));
                }
            }
        }
    }

    /// Returns at most `count` of the answers, at random.
    pub fn sample(self, count: usize, random: &mut RandomSource) -> RecordedAnswers {
        let mut all: Vec<_> =
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect();
        while all.len() > count {
            let place = random.below(all.len() as u64);
            all.swap_remove(usize::try_from(place).expect("an index"));
        }
        RecordedAnswers(all.into_iter().collect())
    }
}

/// Answers that are compared with those of the past.
#[derive(Debug)]
pub struct RecordedAnswers(AnswersByPosition);

impl RecordedAnswers {
    /// Returns the number of answers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last position of an answer.
    pub fn last(&self) -> Option<u64> {
        self.0.keys().last().map(|(position, _)| *position)
    }

    /// Compares all answers with those at their positions. Some neighbouring positions at a time are read in their order
    /// or in reverse, of random places: a moment is then folded from a snapshot or from a cached moment.
    pub fn compare(&self, client: &TestClient, random: &mut RandomSource) {
        let positions: BTreeSet<u64> = self.0.keys().map(|(position, _)| *position).collect();
        let positions: Vec<u64> = positions.into_iter().collect();
        let mut groups: Vec<_> = positions.chunks(NEIGHBOURS).map(|group| (random.bits(), group)).collect();
        groups.sort_unstable();
        for position in groups.into_iter().flat_map(|(bits, group)| ordered(group, bits % 4 == 0)) {
            let range = (position, String::new())..(position + 1, String::new());
            for ((_, path), wanted) in self.0.range(range) {
                let joint = if path.contains('?') { '&' } else { '?' };
                let answer = read(client, &in_fleet(&format!("{path}{joint}as_of={position}")));
                assert_eq!(
                    (answer.status, answer.position),
                    (200, Some(position)),
                    "{path}: {}",
                    answer.text
                );
                assert_eq!(body(&answer.text), *wanted, "{path} at {position}");
            }
        }
    }
}

/// Reads a path. A fold has the lowest priority, so on a busy machine a long one reaches the maximum time of a request. It
/// continues where it was when it is repeated.
fn read(client: &TestClient, path: &str) -> ServerAnswer {
    let mut answer = client.get(path);
    for _ in 0..REPEATS {
        if answer.status != 0 && answer.json()["retryable"] != true {
            break;
        }
        println!("{path} is repeated after {}: {}", answer.status, answer.text);
        answer = client.get(path);
    }
    answer
}

/// Returns positions in their order, or in reverse.
fn ordered(positions: &[u64], is_reverse: bool) -> Vec<u64> {
    let mut positions = positions.to_vec();
    if is_reverse {
        positions.reverse();
    }
    positions
}

/// Returns the body of an answer without the token of the next page, which is of one moment.
pub fn body(text: &str) -> String {
    match text.split_once("\"next_page_token\":\"") {
        Some((items, rest)) => {
            let (_, rest) = rest.split_once('"').expect("the end of a token");
            format!("{items}…{rest}")
        }
        None => text.to_owned(),
    }
}
