//! Journal shorter than its witnesses prove: the start is refused until the operator accepts the loss.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};
use chancery_tests::{ServerProcess, TestClient, payloads, until};
use serde_json::{Value, json};

/// Damage to the last segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SegmentDamage {
    Missing,
    Empty,
    Zeroed,
    Flipped,
}

/// Witness alongside the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TestWitness {
    Snapshot,
    Rows,
    Store,
    Postings,
}

/// Data directory of a stopped server.
struct StoppedServer<'a>(&'a Path);

impl StoppedServer<'_> {
    fn journal(&self) -> PathBuf {
        self.0.join("fleets/default/journal")
    }

    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let all =
            fs::read_dir(self.journal()).expect("a journal").map(|entry| entry.expect("an entry").path());
        let mut found: Vec<_> =
            all.filter(|path| path.extension().is_some_and(|it| it == extension)).collect();
        found.sort();
        found
    }

    /// Path of the last segment, and its first position.
    fn last(&self) -> (PathBuf, u64) {
        let last = self.files("seg").pop().expect("a segment");
        let first = last.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).expect("a position");
        (last, first)
    }

    /// Paths of this witness's files.
    fn files_of(&self, what: TestWitness) -> Vec<PathBuf> {
        let fleet = self.0.join("fleets/default");
        let store = self.0.join("executors/default/local");
        match what {
            TestWitness::Snapshot => vec![fleet.join("snapshots")],
            TestWitness::Rows => vec![fleet.join("rows")],
            TestWitness::Store => vec![store.join("head.json"), store.join("head.copy")],
            TestWitness::Postings => self.files("post"),
        }
    }

    /// Moves all other witnesses away while `run` runs.
    fn with_only(&self, kept: TestWitness, run: impl FnOnce()) {
        let aside = self.0.join("aside");
        fs::create_dir_all(&aside).expect("a directory");
        let all = [TestWitness::Snapshot, TestWitness::Rows, TestWitness::Store, TestWitness::Postings];
        let others = all.into_iter().filter(|one| *one != kept).flat_map(|one| self.files_of(one));
        let moved: Vec<_> = others.enumerate().map(|(n, from)| (aside.join(n.to_string()), from)).collect();
        for (to, from) in &moved {
            fs::rename(from, to).expect("set aside");
        }
        run();
        for (to, from) in &moved {
            // A start may have created a new one; the original is restored.
            let _ = fs::remove_dir_all(from);
            fs::rename(to, from).expect("put back");
        }
    }

    /// Damages the last segment, and restores it after `run`.
    fn with_damage(&self, damage: SegmentDamage, run: impl FnOnce()) {
        let (last, _) = self.last();
        let whole = fs::read(&last).expect("read");
        let used = whole.iter().rposition(|byte| *byte != 0).expect("a frame") + 1;
        let mut bytes = whole.clone();
        match damage {
            SegmentDamage::Missing => fs::remove_file(&last).expect("removed"),
            SegmentDamage::Empty => fs::write(&last, "").expect("written"),
            SegmentDamage::Zeroed => fs::write(&last, vec![0; whole.len()]).expect("written"),
            SegmentDamage::Flipped => {
                bytes[used - 200..used].iter_mut().for_each(|byte| *byte ^= 0xff);
                fs::write(&last, bytes).expect("written");
            }
        }
        run();
        fs::write(&last, whole).expect("put back");
    }

    /// Files that a refusal must not change. sled's own log is excluded.
    fn bytes(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        fn add(dir: &Path, all: &mut BTreeMap<PathBuf, Vec<u8>>) {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let path = entry.expect("an entry").path();
                if path.is_dir() && !path.ends_with("rows") {
                    add(&path, all);
                } else if path.is_file() {
                    all.insert(path.clone(), fs::read(&path).expect("read"));
                }
            }
        }
        let mut all = BTreeMap::new();
        add(&self.0.join("fleets"), &mut all);
        add(&self.0.join("executors"), &mut all);
        all
    }
}

/// Sends `count` intents to fill segments.
fn fill(client: &TestClient, count: u64) {
    for score in 0..count {
        let name = format!("capability-{score:0>40}");
        client.must("capability.apply", &json!({"name": name, "spec": {"type": "T", "score": score}}));
    }
}

/// Returns a stopped server whose journal has several segments, whose closed segments have postings, and whose
/// executor started work in the last segment.
fn several_segments() -> ServerProcess {
    let mut server = ServerProcess::start_with(&[("CHANCERY_SEGMENT_BYTES", "32KiB")]);
    set_up(&server.client(), &sleeper());
    fill(&server.client(), 60);
    let store = server.data().join("executors/default/local");
    let works_in_last = |stopped: StoppedServer<'_>| {
        let seen = chancery_executor::remembered(&store).expect("read").expect("a head");
        seen.head.position.get() >= stopped.last().1
    };
    // A thread of the lowest priority writes postings, and a stop does not wait for the thread.
    let has_postings =
        |stopped: StoppedServer<'_>| stopped.files("post").len() + 1 == stopped.files("seg").len();
    let mut count = 0;
    loop {
        until("the executor has started work in the last segment", || {
            count += 1;
            deploy(&server.client(), &format!("d{count}"), count);
            server.client().wait_for("web", "running", count as usize);
            works_in_last(StoppedServer(server.data())).then_some(())
        });
        until("each closed segment has postings", || {
            has_postings(StoppedServer(server.data())).then_some(())
        });
        assert_eq!(server.stop(), Some(0), "{}", server.log());
        // The record of the stop may have started another segment.
        if works_in_last(StoppedServer(server.data())) && has_postings(StoppedServer(server.data())) {
            break;
        }
        server.start_again();
    }
    assert!(StoppedServer(server.data()).files("seg").len() > 1, "one segment only");
    server
}

#[test]
fn a_shortened_journal_is_refused_whichever_witness_is_left_and_nothing_is_changed() {
    let mut server = several_segments();
    let data = server.data().to_owned();
    let stopped = StoppedServer(&data);
    // The last record is the record of the stop, which no executor received; and a closed segment has a file
    // of postings.
    let cases = [
        (
            SegmentDamage::Missing,
            &[TestWitness::Snapshot, TestWitness::Rows, TestWitness::Store, TestWitness::Postings][..],
        ),
        (SegmentDamage::Empty, &[TestWitness::Snapshot, TestWitness::Rows, TestWitness::Store]),
        (SegmentDamage::Zeroed, &[TestWitness::Snapshot, TestWitness::Rows, TestWitness::Store]),
        (SegmentDamage::Flipped, &[TestWitness::Snapshot, TestWitness::Rows]),
    ];
    for (damage, witnesses) in cases {
        for witness in witnesses {
            stopped.with_only(*witness, || {
                stopped.with_damage(damage, || {
                    let before = stopped.bytes();
                    let Err(refused) = server.try_start_again() else {
                        panic!("{damage:?}: the server starts, though {witness:?} proves more");
                    };
                    let word = match witness {
                        TestWitness::Snapshot => "the snapshot ",
                        TestWitness::Rows => "the cursor of the read models",
                        TestWitness::Store => "the executor store ",
                        TestWitness::Postings => "the file of postings ",
                    };
                    let output = &refused.output;
                    assert!(output.contains(word), "{damage:?}, {witness:?}: {output}");
                    for part in ["ends at position ", "names a record at position ", "--accept-loss"] {
                        assert!(
                            output.contains(part),
                            "{damage:?}, {witness:?}: {part} is missing in: {output}"
                        );
                    }
                    assert_eq!(before, stopped.bytes(), "{damage:?}, {witness:?}: a refusal changes nothing");
                });
            });
        }
    }
    server.start_again();
}

/// Events as JSON values.
fn events(client: &TestClient, query: &str) -> Vec<Value> {
    let answer = client.get(&format!("/v1/fleets/default/events?follow=false{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Query of a client that resumes after this event.
fn behind(event: &Value) -> String {
    let position: u64 = event["id"].as_str().and_then(|id| id.parse().ok()).expect("a position");
    format!("&from={}.{}", position + 1, event["lineage"].as_str().expect("a lineage"))
}

#[test]
fn an_accepted_loss_continues_under_a_new_lineage_and_a_stream_of_the_old_one_is_notified() {
    let mut server = several_segments();
    let running =
        |data: &Path| payloads(data).into_iter().map(|payload| payload.pid).collect::<BTreeSet<_>>();
    let before = running(server.data());
    let data = server.data().to_owned();
    let (removed, first) = StoppedServer(&data).last();
    server.start_again();
    let old = events(&server.client(), "");
    let lost = old.last().expect("events").clone();
    let before_it = (first - 1).to_string();
    let kept = old.iter().find(|event| event["id"] == before_it.as_str()).expect("an event").clone();
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    for segment in StoppedServer(&data).files("seg").into_iter().filter(|path| *path >= removed) {
        fs::remove_file(segment).expect("removed");
    }
    let verified = server.run(&["verify", &data.display().to_string()]);
    let output = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(
        !verified.status.success() && output.contains("SHORT") && output.contains("--accept-loss"),
        "{output}"
    );
    assert!(server.try_start_again().is_err(), "the server starts on a shortened journal");
    server.start_with_flags(&["--accept-loss"]);
    let log = server.log();
    let missing =
        log.split_once(&format!("known to be missing: positions {first} to ")).map(|(_, rest)| rest);
    let through: Option<u64> = missing.and_then(|rest| rest.split(',').next()?.parse().ok());
    let seen: u64 = lost["id"].as_str().and_then(|id| id.parse().ok()).expect("a position");
    assert!(
        through.is_some_and(|through| through >= seen),
        "positions {first} to {seen} are missing in: {log}"
    );

    let client = server.client();
    let new = events(&client, "");
    let started =
        new.iter().find(|event| event["type"] == "dev.chancery.lineage.started.v1").expect("a new lineage");
    assert_eq!(started["id"], first.to_string());
    assert_eq!((&started["data"]["previous"], &started["data"]["at"]), (&lost["lineage"], &json!(first - 1)));
    assert_ne!(started["lineage"], lost["lineage"]);
    // Streams resume after a kept event, but not after a lost one.
    assert_eq!(events(&client, &behind(&kept))[0], *started);
    let gone = client.get(&format!("/v1/fleets/default/events?follow=false{}", behind(&lost)));
    assert_eq!((gone.status, gone.json()["code"].as_str()), (410, Some("other_lineage")), "{}", gone.text);
    assert_eq!((&gone.json()["lineage"], &gone.json()["since"]), (&started["lineage"], &json!(first)));
    let id =
        format!("{}.{}", lost["id"].as_str().expect("an id"), lost["lineage"].as_str().expect("a lineage"));
    let headers = [("last-event-id", id.as_str()), ("accept", "text/event-stream")];
    assert_eq!(client.send("GET", "/v1/fleets/default/events", &headers, b"").status, 410);
    let read = client.get(&format!("/v1/fleets/default/nodes?min_position={id}"));
    assert_eq!(read.status, 410, "{}", read.text);

    // The executor has seen later records: it continues, and ends no incarnation that is unknown to the
    // decider.
    assert!(running(&data).is_superset(&before), "incarnations keep running");
    client.must("plan.apply", &json!({"name": "after", "spec": plan()}));
    client.must("deployment.create", &json!({"plan": "after", "name": "first", "spec": {"count": 2}}));
    client.wait_for("after", "running", 2);
    assert!(running(&data).is_superset(&before), "incarnations of lost decisions are left in place");

    assert_eq!(server.stop(), Some(0), "{}", server.log());
    server.start_again();
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    server.start_with_flags(&["--accept-loss"]);
    assert!(server.log().contains("--accept-loss has no effect"), "{}", server.log());
    let lineages = events(&server.client(), "&types=lineage.started.v1");
    assert_eq!(lineages.len(), 1, "no second lineage without a second loss");
}

fn plan() -> Value {
    let automatic = json!({
        "create": "automatic", "update": "automatic", "relocate": "automatic", "restart": "automatic",
        "start": "automatic", "stop": "automatic", "delete": "automatic",
    });
    json!({
        "namespace": "tests", "service": "after", "payloads": [sleeper()], "approval": automatic, "sharing": "allowed",
    })
}

#[test]
fn a_journal_that_is_lost_whole_is_refused_and_continues_empty_under_a_new_lineage() {
    let mut server = ServerProcess::start();
    set_up(&server.client(), &sleeper());
    deploy(&server.client(), "d1", 1);
    server.client().wait_for("web", "running", 1);
    server.kill();
    let data = server.data().to_owned();
    fs::remove_dir_all(StoppedServer(&data).journal()).expect("removed");
    let Err(refused) = server.try_start_again() else {
        panic!("a server starts an empty journal although an executor store exists")
    };
    assert!(refused.output.contains("the journal is empty"), "{}", refused.output);
    server.start_with_flags(&["--accept-loss"]);
    set_up(&server.client(), &sleeper());
    deploy(&server.client(), "again", 1);
    server.client().wait_for("web", "running", 1);
    assert_eq!(
        payloads(&data).len(),
        2,
        "running incarnations are not the fleet's any more, and are left in place"
    );
    server.kill();
    server.start_again();
}

/// Copies the journal's files.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a journal").map(|entry| entry.expect("an entry")) {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

#[test]
fn a_longer_copy_of_an_abandoned_history_is_refused_until_its_loss_is_accepted() {
    let mut server = ServerProcess::start();
    let data = server.data().to_owned();
    let (journal, [short, long]) =
        (StoppedServer(&data).journal(), ["short", "long"].map(|name| data.join(name)));
    fill(&server.client(), 2);
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    copy(&journal, &short);
    server.start_again();
    fill(&server.client(), 20);
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    copy(&journal, &long);
    copy(&short, &journal);
    server.start_with_flags(&["--accept-loss"]);
    let name = "decided-after-the-loss";
    server.client().must("capability.apply", &json!({"name": name, "spec": {"type": "T", "score": 1}}));
    assert_eq!(server.stop(), Some(0), "{}", server.log());

    // This copy has a higher position than the records acknowledged since, and contains none of these
    // records.
    copy(&long, &journal);
    let Err(refused) = server.try_start_again() else {
        panic!("acknowledged records are lost without an error")
    };
    assert!(refused.output.contains("names a record of another history at position "), "{}", refused.output);
    let verified = server.run(&["verify", &data.display().to_string()]);
    assert!(!verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    server.start_with_flags(&["--accept-loss"]);
    let lineages = events(&server.client(), "&types=lineage.started.v1");
    assert_eq!(lineages.len(), 1, "the copy has no other lineage");
    let abandoned = lineages[0]["data"]["abandoned"].as_array().map(Vec::len);
    assert_eq!(abandoned, Some(1), "{}", lineages[0]);
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    server.start_again();
}

#[test]
fn every_fleet_that_has_lost_something_is_named_before_a_loss_is_accepted() {
    let mut server = ServerProcess::start_with(&[("CHANCERY_FLEETS", "one,two,whole")]);
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    let lost = ["one", "two"].map(|fleet| server.data().join("fleets").join(fleet).join("journal"));
    for journal in &lost {
        fs::remove_dir_all(journal).expect("removed");
    }
    let Err(refused) = server.try_start_again() else { panic!("two journals are gone") };
    for journal in &lost {
        assert!(refused.output.contains(&journal.display().to_string()), "{}", refused.output);
    }
}
