//! Reads at a moment: the same bytes as at the time, and the queue of folds.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::http::Method;
use chancery_events::id::{Lineage, Position};
use chancery_journal::{ChainCursor, JournalReader, ReadError, RecordIter};
use chancery_projector::{MomentCache, MomentLimits};
use rustix::process::getpriority_process;

use super::world::{CompleteAnswer, LINEAGE, ServedFleet, request};
use crate::MomentQueue;
use crate::moments::{FoldRest, in_fold_turn, in_read_turn};

/// Paths of each kind of read.
const READS: [&str; 7] = [
    "/nodes",
    "/nodes?limit=1",
    "/nodes?domain=d1&limit=1",
    "/nodes/node-1",
    "/capabilities/nvidia/v100",
    "/nodes/node-1/history",
    "/nodes/node-2/history?limit=2",
];

fn at(path: &str, moment: &str) -> String {
    let joint = if path.contains('?') { '&' } else { '?' };
    format!("{path}{joint}as_of={moment}")
}

/// Returns the body, without the token of the next page, which is of one moment.
fn body(answer: &CompleteAnswer) -> String {
    let text = String::from_utf8(answer.body.to_vec()).expect("text");
    match text.split_once("\"next_page_token\":\"") {
        Some((items, rest)) => {
            let (_, rest) = rest.split_once('"').expect("the end of a token");
            format!("{items}…{rest}")
        }
        None => text,
    }
}

async fn read_all(world: &ServedFleet, moment: Option<&str>) -> Vec<(u16, String, String, String)> {
    let mut all = Vec::new();
    for path in READS {
        let path = moment.map_or_else(|| path.to_owned(), |moment| at(path, moment));
        let answer = world.get(&path).await;
        let (position, tag) = (answer.header("chancery-position"), answer.header("etag"));
        all.push((answer.status.as_u16(), position.to_owned(), tag.to_owned(), body(&answer)));
    }
    all
}

#[tokio::test]
async fn a_read_at_a_moment_has_the_bytes_that_were_read_then() {
    let world = ServedFleet::new();
    let mut seen = vec![("5", read_all(&world, None).await)];
    world.touch("node-1", 1);
    seen.push(("6", read_all(&world, None).await));
    world.commit(&[
        r#"node.applied.v1 {"name":"node-0","spec":{"domain":"d1","resources":{"cpu":1}}}"#,
        r#"node.applied.v1 {"name":"node-2","spec":{"domain":"d1","resources":{"cpu":2}}}"#,
    ]);
    seen.push(("8", read_all(&world, None).await));
    world.touch("node-2", 3);
    for (moment, wanted) in &seen {
        assert_eq!(read_all(&world, Some(moment)).await, *wanted, "{moment}");
        let named = format!("{moment}.{LINEAGE}");
        assert_eq!(read_all(&world, Some(&named)).await, *wanted, "{named}");
    }
    // A position within a record is a moment after the record.
    assert_eq!(read_all(&world, Some("7")).await, seen[2].1);
    assert_eq!(read_all(&world, Some("1")).await, seen[0].1);
    let answer = world.get("/nodes/node-1?as_of=7").await;
    assert_eq!(answer.header("chancery-position"), "8");
    assert_eq!(answer.header("chancery-time"), "2026-11-21T09:00:00.000000Z");
    assert_eq!(world.get("/nodes/node-1").await.header("chancery-time"), "", "the present has no moment");
    let at_time = world.get("/nodes/node-1?as_of=2026-11-21T09:00:00Z").await;
    assert_eq!(at_time.header("chancery-position"), "11", "the last record that is not later");
    assert_eq!(world.get("/nodes/node-0").await.status, 200);
    assert_eq!(world.get("/nodes/node-0?as_of=6").await.problem().0, 404, "it did not exist then");
    assert_eq!(world.get("/nodes/node-0/history?as_of=6").await.problem().0, 404);
}

#[tokio::test]
async fn a_moment_that_does_not_exist_is_a_problem_that_names_both_ends() {
    let world = ServedFleet::new();
    world.touch("node-1", 2);
    let moments = ["0", "8", "2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z"];
    for (moment, path) in moments.iter().flat_map(|moment| READS.map(|path| (moment, path))) {
        let answer = world.get(&at(path, moment)).await;
        assert_eq!(answer.problem(), (400, "moment_out_of_range".into(), String::new()), "{path} {moment}");
        let json = answer.json();
        assert_eq!((&json["first"]["position"], &json["last"]["position"]), (&5.into(), &7.into()));
        assert_eq!(json["last"]["time"], "2026-11-21T09:00:00.000000Z");
    }
    for moment in ["", "x", "yesterday", "-1"] {
        let answer = world.get(&at("/nodes", moment)).await;
        assert_eq!(answer.problem(), (400, "invalid_parameter".into(), "/as_of".into()), "{moment:?}");
    }
    let other = format!("6.{}", Lineage::from_random(99));
    assert_eq!(world.get(&at("/nodes", &other)).await.problem().1, "other_lineage");
    let late = world.get("/nodes/node-1/history?as_of=5&from=7").await;
    assert_eq!(late.problem().1, "invalid_parameter", "it starts after the moment");
}

#[tokio::test]
async fn a_page_token_is_valid_for_its_moment_only() {
    let world = ServedFleet::new();
    world.touch("node-1", 2);
    let token =
        |answer: &CompleteAnswer| answer.json()["next_page_token"].as_str().expect("a token").to_owned();
    let of_moment = token(&world.get("/nodes?limit=1&as_of=6").await);
    let of_present = token(&world.get("/nodes?limit=1").await);
    let next = world.get(&format!("/nodes?limit=1&as_of=6&page_token={of_moment}")).await;
    assert_eq!((next.status.as_u16(), &next.json()["items"][0]["name"]), (200, &"node-2".into()));
    for path in [
        format!("/nodes?limit=1&as_of=7&page_token={of_moment}"),
        format!("/nodes?limit=1&page_token={of_moment}"),
        format!("/nodes?limit=1&as_of=6&page_token={of_present}"),
    ] {
        let answer = world.get(&path).await;
        assert_eq!(answer.problem(), (400, "invalid_parameter".into(), "/page_token".into()), "{path}");
    }
}

/// Returns the value of a gauge of the fleet.
async fn metric(world: &ServedFleet, name: &str) -> u64 {
    let text = String::from_utf8(world.get("//metrics").await.body.to_vec()).expect("text");
    let start = format!("chancery_{name}{{fleet=\"default\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&start)).expect("the gauge");
    value.parse().expect("a number")
}

#[tokio::test]
async fn threads_of_moments_have_a_low_priority_and_the_lowest_while_many_records_are_added() {
    let started = Instant::now();
    let world = ServedFleet::new();
    // Value 41 is the policy, 5 is SCHED_IDLE.
    let priority = || {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("a thread");
        let policy = stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(38));
        (getpriority_process(None).expect("a thread has one"), policy == Some("5"))
    };
    let (others, _) = priority();
    let low = Some(((others + 10).min(19), false));
    let read = || async { in_read_turn(&world.app, "read a priority", priority).await.ok() };
    let fold = || async { in_fold_turn(&world.app, move |_, _| (priority(), FoldRest::None)).await.ok() };
    assert_eq!([read().await, fold().await], [low, low]);
    assert_eq!(priority(), (others, false));
    let touched = Instant::now();
    // One record, so that a slow machine publishes its events at the same time.
    let facts = (1..=1_000).map(|cpu| {
        format!(r#"node.applied.v1 {{"name":"node-1","spec":{{"domain":"d1","resources":{{"cpu":{cpu}}}}}}}"#)
    });
    let facts: Vec<_> = facts.collect();
    world.commit(&facts.iter().map(String::as_str).collect::<Vec<_>>());
    let published = [started, touched, Instant::now()].map(|time| world.app.hub.published_since(time));
    assert_eq!(published, [1_005, 1_000, 0]);
    assert!(read().await.is_some_and(|(_, is_idle)| is_idle));
    assert!(fold().await.is_some_and(|(_, is_idle)| is_idle));
}

#[tokio::test]
async fn requests_for_other_moments_wait_in_a_bounded_queue() {
    let world = ServedFleet::new();
    world.touch("node-1", 2);
    assert_eq!(world.get("/nodes?as_of=5").await.status, 200);
    let turn = world.app.moments.turn.acquire().await.expect("it is never closed");
    let mut waiting = Vec::new();
    while world.app.moments.places.available_permits() > 0 {
        let mut request = Box::pin(world.get("/nodes?as_of=6"));
        // The request is pending, perhaps before it has read the journal.
        let before = world.app.moments.places.available_permits();
        while world.app.moments.places.available_permits() == before {
            let is_pending =
                poll_fn(|context| Poll::Ready(request.as_mut().poll(context).is_pending())).await;
            assert!(is_pending);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        waiting.push(request);
    }
    assert_eq!(metric(&world, "moment_requests").await, 9);
    let busy = world.get("/nodes?as_of=7").await;
    assert_eq!((busy.problem().1.as_str(), busy.header("retry-after")), ("busy", "1"));
    assert_eq!(world.get("/nodes?as_of=5").await.status, 200, "a cached moment needs no fold");
    let by_time = world.get("/nodes?as_of=1970-01-01T00:00:00Z").await;
    assert_eq!(by_time.problem().1, "busy", "no record is searched, also not before the first one");
    assert_eq!(world.get("/nodes/node-1/history?as_of=6").await.status, 200, "and neither does a history");
    assert_eq!(world.get("/nodes").await.status, 200);
    // A client that leaves frees its place.
    waiting.pop();
    let mut last = pin!(world.get("/nodes?as_of=7"));
    while world.app.moments.places.available_permits() > 0 {
        let is_pending = poll_fn(|context| Poll::Ready(last.as_mut().poll(context).is_pending())).await;
        assert!(is_pending);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(turn);
    for request in waiting {
        assert_eq!(request.await.status, 200);
    }
    assert_eq!(last.await.header("chancery-position"), "7");
    assert_eq!(metric(&world, "moment_requests").await, 0);
    assert!(metric(&world, "moment_memory_bytes").await > 0, "three moments are cached");
}

#[tokio::test]
async fn a_difference_of_two_moments_has_what_changed_with_both_values() {
    let world = ServedFleet::new();
    world.touch("node-1", 1);
    world.commit(&[
        r#"node.applied.v1 {"name":"node-0","spec":{"domain":"d1","resources":{"cpu":1}}}"#,
        r#"capability.deleted.v1 {"name":"nvidia/v100"}"#,
    ]);
    let answer = world.get("/diff?from=5").await;
    assert_eq!((answer.status.as_u16(), answer.header("chancery-position")), (200, "8"));
    let json = answer.json();
    assert_eq!((&json["from"]["position"], &json["to"]["position"]), (&5.into(), &8.into()));
    let items = json["items"].as_array().expect("items");
    let changes: Vec<_> = items
        .iter()
        .map(|item| (item["kind"].as_str(), item["key"].as_str(), item["change"].as_str()))
        .collect();
    assert_eq!(
        changes,
        [
            (Some("capabilities"), Some("nvidia/v100"), Some("deleted")),
            (Some("nodes"), Some("node-0"), Some("created")),
            (Some("nodes"), Some("node-1"), Some("changed")),
        ]
    );
    let fields = items[2]["fields"].as_array().expect("fields");
    let cpu = fields.iter().find(|field| field["field"] == "resources.cpu").expect("a changed field");
    assert_eq!((&cpu["old"], &cpu["new"]), (&4000.into(), &1.into()));
    assert_eq!((&items[2]["old_position"], &items[2]["new_position"]), (&3.into(), &6.into()));
    let nodes = world.get("/diff?from=5&to=7&kinds=nodes&domain=d2").await.json();
    assert_eq!(nodes["items"].as_array().map(Vec::len), Some(0), "neither was in the domain");
    let token =
        world.get("/diff?from=5&limit=1").await.json()["next_page_token"].as_str().expect("more").to_owned();
    let next = world.get(&format!("/diff?from=5&to=8&limit=5&page_token={token}")).await.json();
    assert_eq!(next["items"].as_array().map(Vec::len), Some(2));
    for (path, pointer) in [
        ("/diff".to_owned(), "/from"),
        ("/diff?from=x".to_owned(), "/from"),
        ("/diff?from=7&to=5".to_owned(), "/from"),
        ("/diff?from=5&kinds=cars".to_owned(), "/kinds"),
        ("/diff?from=5&kinds=nodes&color=red".to_owned(), "/color"),
        (format!("/diff?from=6&page_token={token}"), "/page_token"),
    ] {
        assert_eq!(
            world.get(&path).await.problem(),
            (400, "invalid_parameter".into(), pointer.into()),
            "{path}"
        );
    }
    assert_eq!(world.get("/diff?from=5&to=99").await.problem().1, "moment_out_of_range");
}

/// Journal whose records are read slowly, and the number of those that were.
struct SlowJournal {
    source: Arc<dyn JournalReader>,
    read: Arc<AtomicUsize>,
}

impl JournalReader for SlowJournal {
    fn head(&self) -> Option<ChainCursor> {
        self.source.head()
    }

    fn records(&self, from: Position) -> Result<RecordIter, ReadError> {
        let read = Arc::clone(&self.read);
        Ok(Box::new(self.source.records(from)?.inspect(move |_| {
            std::thread::sleep(Duration::from_millis(1));
            read.fetch_add(1, Ordering::Relaxed);
        })))
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_fold() {
    let mut world = ServedFleet::new();
    world.touch("node-1", 2000);
    let read = Arc::new(AtomicUsize::new(0));
    let slow = Arc::new(SlowJournal { source: world.app.source.clone(), read: Arc::clone(&read) });
    let watch = world.app.reader.watch().clone();
    let cache = MomentCache::new("default".into(), slow, None, watch, MomentLimits::default());
    world.app.moments = Arc::new(MomentQueue::new(cache));
    let request = request(Method::GET, "/nodes/node-1?as_of=2000", &[], "");
    let asked = tokio::spawn(tower::ServiceExt::oneshot(world.router(), request));
    while read.load(Ordering::Relaxed) < 20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asked.abort();
    drop(world.app.moments.turn.acquire().await.expect("it is never closed"));
    assert!(read.load(Ordering::Relaxed) < 2000, "the fold ended early");
    let answer = world.get("/nodes/node-1?as_of=7").await;
    assert_eq!((answer.status.as_u16(), answer.header("chancery-position")), (200, "7"));
}
