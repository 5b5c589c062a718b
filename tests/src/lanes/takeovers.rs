//! Three servers on a Kafka of three brokers, four clients, two producers that only speak Kafka, and an executor outside;
//! one fault after the other:
//!
//! | fault | what must go on |
//! |---|---|
//! | `kill -9` of the server that decides | another one decides |
//! | it stands still past its session, and wakes | another one decides; nothing of the sleeper counts |
//! | it is asked to stop | another one decides at once |
//! | `kill -9` of the broker that leads the journal | another broker leads |
//! | a broker stands still, and wakes | as without it |
//! | `kill -9` of Kafka's controller | as without it, until it is back |
//! | two brokers of three die: fewer in sync than the topic wants | nothing is acknowledged; it goes on when one is back |
//! | every broker dies | it goes on when they are back |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use chancery_events::event::Event;
use chancery_events::record::Record;
use chancery_journal::kafka::Client;
use rdkafka::ClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rustix::process::Signal;
use serde_json::json;

use super::evidence::{Evidence, judge, records};
use super::fleet::{by_hand, empty, fill, set_up, sleeper};
use super::load::Load;
use crate::kafka::Cluster;
use crate::ledger::Tally;
use crate::sim::Random;
use crate::{Executor, Server, Standbys, decides, until};

/// What is struck.
#[derive(Clone, Copy)]
enum Blow {
    KillDecider,
    PauseDecider,
    KillLeader,
    StopDecider,
    PauseBroker,
    KillController,
    KillTwoBrokers,
    KillBrokers,
}

impl Blow {
    /// In the order in which they come.
    const ALL: [Blow; 8] = [
        Blow::KillDecider,
        Blow::PauseDecider,
        Blow::KillLeader,
        Blow::StopDecider,
        Blow::PauseBroker,
        Blow::KillController,
        Blow::KillTwoBrokers,
        Blow::KillBrokers,
    ];

    const fn word(self) -> &'static str {
        match self {
            Blow::KillDecider => "kill of the deciding server",
            Blow::PauseDecider => "pause of the deciding server past its session",
            Blow::KillLeader => "kill of the leading broker",
            Blow::StopDecider => "stop of the deciding server",
            Blow::PauseBroker => "pause of a broker",
            Blow::KillController => "kill of the controller",
            Blow::KillTwoBrokers => "fewer brokers in sync than wanted",
            Blow::KillBrokers => "kill of every broker",
        }
    }
}

/// What the group waits before a server that is silent is out of it.
const SESSION: Duration = Duration::from_secs(6);

pub(super) fn run(rounds: u64, seed: u64, tally: &mut Tally) -> Result<()> {
    let mut random = Random::new(seed);
    let cluster = Cluster::start(3);
    let settings = [
        ("CHANCERY_LEASE", "60s"),
        ("CHANCERY_INBOX_SCOPE", "capability.apply"),
        ("CHANCERY_INBOX_ACTOR", "letters"),
    ];
    let mut standbys = Standbys::start(&cluster, "fleet", 3, &settings);
    let client = standbys.servers[0].client();
    set_up(&client, &sleeper());
    by_hand(&client, &sleeper());
    let mut executor = Executor::start_for(standbys.servers[0].home(), &standbys.urls(), "e1", "--process");
    let file = standbys.servers[0].home().join("history.jsonl");
    let load = Load::begin(&standbys.servers[0].url(), 4, seed, Duration::from_secs(30), &file)?;
    let letters = Letters::begin(cluster.bootstrap(), 2);
    for round in 0..rounds {
        let blow = Blow::ALL[(round % Blow::ALL.len() as u64) as usize];
        let decider = standbys.decider();
        // Whom clients ask is not whom the fault hits, two times out of three.
        let asked = if random.chance(333) { decider } else { (decider + 1) % 3 };
        load.moved(&standbys.servers[asked].url());
        until("the fleet takes a deployment", || {
            let key = format!("round-{round}");
            let data = json!({"plan": "web", "name": key, "spec": {"count": random.below(7)}});
            let url = &standbys.servers[asked];
            (url.client().intent(&key, "deployment.create", &data).status / 100 == 2).then_some(())
        });
        std::thread::sleep(Duration::from_millis(random.below(500)));
        let began = Instant::now();
        let takeover = strike(blow, decider, &mut standbys, &cluster, &load, &mut random)?;
        tally.fault(blow.word());
        tally.rounds += 1;
        // Something is acknowledged again.
        let survivor = &standbys.servers[(decider + 1) % 3];
        let key = format!("after-{round}");
        let data = json!({"name": key, "spec": {"type": "T", "score": round}});
        until("intents are acknowledged again", || {
            (survivor.client().intent(&key, "capability.apply", &data).status / 100 == 2).then_some(())
        });
        println!(
            "round {round}: {}: {} acknowledged again after {:.1} s",
            blow.word(),
            takeover.map_or(String::new(), |after| format!(
                "another server decides after {:.1} s,",
                after.as_secs_f64()
            )),
            began.elapsed().as_secs_f64()
        );
    }
    let history = load.end()?;
    let acknowledged = letters.end();
    let survivor = &standbys.servers[0];
    at_rest(survivor);
    let mut evidence = vec![Evidence::gather(survivor)?];
    empty(survivor, "end");
    fill(survivor, "end", 5);
    evidence.push(Evidence::gather(survivor)?);
    empty(survivor, "over");
    for server in &standbys.servers {
        let logs = [
            ("in the journal does not count", "records that do not count"),
            ("has no outcome", "appends without an outcome"),
        ];
        let found = logs.map(|(text, what)| format!("{} {what}", server.log().matches(text).count()));
        println!("one server saw {}", found.join(", "));
    }
    let (code, log) = (executor.stop(), executor.log());
    ensure!(code == Some(0), "the executor does not stop as it is asked to:\n{log}");
    for server in &mut standbys.servers {
        let code = server.stop();
        ensure!(code == Some(0), "a server does not stop as it is asked to: {code:?}\n{}", server.log());
    }
    answered_once(&records(standbys.servers[0].data())?, &acknowledged)?;
    same_journals(&standbys)?;
    judge(standbys.servers[0].data(), &history, &evidence, tally)
}

/// Waits until nothing has been recorded for a while: every letter was acknowledged long ago.
fn at_rest(server: &Server) {
    let position = || server.client().get("/v1/fleets/default/nodes?limit=1").json()["position"].as_u64();
    let (mut last, mut since) = (position(), Instant::now());
    until("nothing is recorded any more", || {
        let now = position();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        (since.elapsed() > Duration::from_secs(3)).then_some(())
    });
}

/// Does it, and has everything up again. How long it took until another server decided, if one had to.
fn strike(
    blow: Blow,
    decider: usize,
    standbys: &mut Standbys,
    cluster: &Cluster,
    load: &Load,
    random: &mut Random,
) -> Result<Option<Duration>> {
    let began = Instant::now();
    let others = |standbys: &Standbys| {
        until("another server decides", || standbys.decides().filter(|now| *now != decider));
        began.elapsed()
    };
    let survivor = standbys.servers[(decider + 1) % 3].url();
    match blow {
        Blow::KillDecider => {
            standbys.servers[decider].kill();
            load.moved(&survivor);
            let took = others(standbys);
            standbys.servers[decider].start_again();
            Ok(Some(took))
        }
        Blow::StopDecider => {
            let code = standbys.servers[decider].stop();
            ensure!(code == Some(0), "it stops with {code:?}:\n{}", standbys.servers[decider].log());
            load.moved(&survivor);
            let took = others(standbys);
            standbys.servers[decider].start_again();
            Ok(Some(took))
        }
        Blow::PauseDecider => {
            standbys.servers[decider].signal(Signal::STOP);
            load.moved(&survivor);
            std::thread::sleep(SESSION);
            // The sleeper does not answer: only the others are asked.
            let up = |at: &usize| *at != decider;
            until("another server decides", || {
                (0..3).filter(up).find(|at| decides(&standbys.servers[*at], "default") == Some(true))
            });
            let took = began.elapsed();
            std::thread::sleep(Duration::from_millis(random.below(2000)));
            standbys.servers[decider].signal(Signal::CONT);
            until("the sleeper has noticed", || {
                (decides(&standbys.servers[decider], "default") == Some(false)).then_some(())
            });
            ensure!(
                standbys.servers[decider].ended().is_none(),
                "the sleeper ended:\n{}",
                standbys.servers[decider].log()
            );
            Ok(Some(took))
        }
        Blow::KillLeader => {
            let leader = leader(cluster);
            cluster.kill(leader);
            std::thread::sleep(Duration::from_secs(3));
            cluster.restart(leader);
            Ok(None)
        }
        Blow::PauseBroker => {
            let broker = 1 + random.below(3) as u32;
            cluster.pause(broker);
            std::thread::sleep(Duration::from_millis(random.between(2000, 5000)));
            cluster.resume(broker);
            Ok(None)
        }
        Blow::KillController => {
            cluster.kill(100);
            std::thread::sleep(Duration::from_millis(random.between(500, 3000)));
            cluster.restart(100);
            Ok(None)
        }
        Blow::KillTwoBrokers => {
            cluster.kill(1);
            cluster.kill(2);
            std::thread::sleep(Duration::from_millis(random.between(1000, 4000)));
            cluster.restart(1);
            cluster.restart(2);
            Ok(None)
        }
        Blow::KillBrokers => {
            for broker in 1..=3 {
                cluster.kill(broker);
            }
            for broker in 1..=3 {
                cluster.restart(broker);
            }
            Ok(None)
        }
    }
}

fn leader(cluster: &Cluster) -> u32 {
    let told = cluster.tool("kafka-topics", &["--describe", "--topic", "fleet.journal"]);
    let leader = told.split("Leader: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    leader.and_then(|leader| leader.parse().ok()).unwrap_or(1)
}

/// Producers of letters: each is sent twice now and then.
struct Letters {
    shared: Arc<Mailed>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Mailed {
    stop: AtomicBool,
    acknowledged: Mutex<BTreeSet<String>>,
}

struct Outcomes(Arc<Mailed>);

impl ClientContext for Outcomes {}

impl ProducerContext for Outcomes {
    type DeliveryOpaque = Box<String>;

    fn delivery(&self, result: &DeliveryResult<'_>, id: Box<String>) {
        if result.is_ok() {
            self.0.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).insert(*id);
        }
    }
}

impl Letters {
    fn begin(brokers: &str, count: u64) -> Letters {
        let shared = Arc::new(Mailed::default());
        let threads = (0..count).map(|number| {
            let (shared, brokers) = (Arc::clone(&shared), brokers.to_owned());
            std::thread::spawn(move || mail(&brokers, number, &shared))
        });
        Letters { threads: threads.collect(), shared }
    }

    /// Those that Kafka acknowledged.
    fn end(self) -> BTreeSet<String> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a producer of letters does not panic");
        }
        std::mem::take(&mut *self.shared.acknowledged.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn mail(brokers: &str, number: u64, shared: &Arc<Mailed>) {
    let client = Client::new(brokers, BTreeMap::new()).expect("a client");
    let config = client.producer(Duration::from_mins(1));
    let producer: ThreadedProducer<Outcomes> =
        config.create_with_context(Outcomes(Arc::clone(shared))).expect("a producer");
    for i in 0_u64.. {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("letter-{number}-{i}");
        let data =
            json!({"name": format!("by-letter-{number}-{}", i % 20), "spec": {"type": "T", "score": i}});
        for _ in 0..if i % 7 == 0 { 2 } else { 1 } {
            let record =
                BaseRecord::<(), str, Box<String>>::with_opaque_to("fleet.inbox", Box::new(id.clone()));
            let text = data.to_string();
            let record = record.partition(0).payload(&text).headers(headers(&id));
            // What finds no room in the client's queue is sent by nobody.
            let _ = producer.send(record);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    producer.flush(Duration::from_mins(1)).expect("every letter has an outcome");
}

fn headers(id: &str) -> OwnedHeaders {
    let attributes = [
        ("ce_specversion", "1.0"),
        ("ce_id", id),
        ("ce_source", "tests"),
        ("ce_type", "chancery.capability.apply.v1"),
        ("content-type", "application/json"),
    ];
    attributes
        .into_iter()
        .fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
}

/// Each letter that was acknowledged stands in the journal once.
fn answered_once(records: &[Arc<Record>], acknowledged: &BTreeSet<String>) -> Result<()> {
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for (_, line) in records.iter().flat_map(|record| record.events()) {
        if let Event::Intent(request) = Event::read(line)? {
            *found.entry(request.id.to_string()).or_default() += 1;
        }
    }
    let wrong: Vec<_> =
        acknowledged.iter().filter(|id| found.get(*id).copied().unwrap_or(0) != 1).take(5).collect();
    ensure!(
        wrong.is_empty(),
        "letters that were acknowledged and do not stand in the journal once: {wrong:?}"
    );
    println!("{} letters, each answered once", acknowledged.len());
    Ok(())
}

/// All servers hold the same records.
fn same_journals(standbys: &Standbys) -> Result<()> {
    let mut first: Option<Vec<Arc<Record>>> = None;
    for server in &standbys.servers {
        let mut records = records(server.data())?;
        match &mut first {
            None => first = Some(records),
            Some(first) => {
                // One that stopped earlier lacks what came later.
                let common = first.len().min(records.len());
                records.truncate(common);
                ensure!(first[..common] == records[..], "two servers hold other records");
            }
        }
    }
    Ok(())
}
