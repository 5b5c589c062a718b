//! Three servers with their own clocks, on a Kafka of three brokers behind proxies. Users are four clients,
//! good and foreign producers that only use Kafka, a stream reader that switches servers, and an executor
//! outside. Faults are injected one by one ([`TakeoverFault`]). An independent checker gives the final verdict
//! (`tests/clients/python/check.py`).

mod faults;
mod follower;
mod messages;
mod topics;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use chancery_events::record::Record;
use serde_json::{Value, json};

use super::evidence::{ServerEvidence, judge, records};
use super::fleet::{by_hand, empty, fill, set_up, sleeper};
use super::load::ProducerLoad;
use crate::clock::ServerClock;
use crate::kafka::KafkaCluster;
use crate::ledger::CountMap;
use crate::sim::RandomSource;
use crate::{ExecutorProcess, ServerProcess, StandbyServers, until};
use faults::{FaultTargets, TakeoverFault};
use follower::StreamFollower;
use messages::{MessageProducers, last_exported};

/// Maximum time of the exporter after the last record.
const EXPORT: Duration = Duration::from_mins(2);

pub(super) fn run(rounds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut random = RandomSource::new(seed);
    let cluster = KafkaCluster::start_with_proxies(3);
    let settings = [
        ("CHANCERY_SESSION_LEASE", "60s"),
        ("CHANCERY_INBOX_ALLOWED_INTENTS", "capability.apply"),
        ("CHANCERY_INBOX_ACTOR", "inbox"),
    ];
    let clocks = [0, 40, -40].map(ServerClock::apart);
    let mut standbys = StandbyServers::start_with_clocks(&cluster, "fleet", &clocks, &settings);
    let client = standbys.servers[0].client();
    set_up(&client, &sleeper());
    by_hand(&client, &sleeper());
    let mut executor =
        ExecutorProcess::start_for(standbys.servers[0].directory(), &standbys.urls(), "e1", "--process");
    let file = standbys.servers[0].directory().join("history.jsonl");
    let load = ProducerLoad::begin(&standbys.servers[0].url(), 4, seed, Duration::from_secs(30), &file)?;
    let messages = MessageProducers::begin(cluster.bootstrap(), 4);
    let follower = StreamFollower::begin(standbys.servers.iter().map(ServerProcess::url).collect());
    // Last position whose event was deleted from the events topic.
    let mut deleted = None;
    for round in 0..rounds {
        let fault = TakeoverFault::ALL
            [((seed.wrapping_mul(rounds) + round) % TakeoverFault::ALL.len() as u64) as usize];
        let decider = standbys.decider();
        // In two of three rounds, clients use a server that the fault does not hit.
        let asked = if random.chance(333) { decider } else { (decider + 1) % 3 };
        load.moved(&standbys.servers[asked].url());
        until("the fleet accepts a deployment", || {
            let key = format!("round-{round}");
            let data = json!({"plan": "web", "name": key, "spec": {"count": random.below(7)}});
            let url = &standbys.servers[asked];
            (url.client().intent(&key, "deployment.create", &data).status / 100 == 2).then_some(())
        });
        std::thread::sleep(Duration::from_millis(random.below(500)));
        let began = Instant::now();
        let (cluster, load, inbox_messages) = (&cluster, &load, &messages);
        let (standbys, clocks, random, deleted) = (&mut standbys, &clocks, &mut random, &mut deleted);
        let mut targets = FaultTargets {
            decider,
            standbys,
            cluster,
            load,
            messages: inbox_messages,
            clocks,
            random,
            deleted,
        };
        let takeover =
            fault.inject(&mut targets).with_context(|| format!("round {round}: {}", fault.word()))?;
        tally.fault(fault.word());
        tally.rounds += 1;
        // The round ends when intents are acknowledged again.
        let survivor = &standbys.servers[(decider + 1) % 3];
        let key = format!("after-{round}");
        let data = json!({"name": key, "spec": {"type": "T", "score": round}});
        until("intents are acknowledged again", || {
            (survivor.client().intent(&key, "capability.apply", &data).status / 100 == 2).then_some(())
        });
        println!(
            "round {round}: {}: {} acknowledged again after {:.1} s",
            fault.word(),
            takeover.map_or(String::new(), |after| format!(
                "another server is leader after {:.1} s,",
                after.as_secs_f64()
            )),
            began.elapsed().as_secs_f64()
        );
    }
    let history = load.end()?;
    let sent = messages.end();
    let survivor = &standbys.servers[0];
    at_rest(survivor);
    let mut evidence = vec![ServerEvidence::gather(survivor)?];
    empty(survivor, "end");
    fill(survivor, "end", 5);
    evidence.push(ServerEvidence::gather(survivor)?);
    empty(survivor, "over");
    for server in &standbys.servers {
        let logs =
            [("invalid record skipped", "invalid records"), ("has no outcome", "appends without an outcome")];
        let found = logs.map(|(text, what)| format!("{} {what}", server.log().matches(text).count()));
        println!("one server saw {}", found.join(", "));
    }
    let (code, log) = (executor.stop(), executor.log());
    ensure!(code == Some(0), "the executor does not stop on request:\n{log}");
    let head = at_rest(survivor);
    println!("the reader of the stream resumed {} times", follower.end(head)?);
    for server in &standbys.servers {
        // Causes of unreadiness have ended, whichever server was leader then.
        until("every server is ready", || (server.client().get("/readyz").status == 200).then_some(()));
    }
    exported(&cluster, head)?;
    outside(&cluster, &standbys, deleted)?;
    for server in &mut standbys.servers {
        let code = server.stop();
        ensure!(code == Some(0), "a server does not stop on request: {code:?}\n{}", server.log());
    }
    sent.judge(&records(standbys.servers[0].data())?)?;
    same_journals(&standbys)?;
    judge(standbys.servers[0].data(), &history, &evidence, tally)
}

/// Waits until nothing is recorded for three seconds: inbox messages were acknowledged long ago. Returns the
/// head.
fn at_rest(server: &ServerProcess) -> u64 {
    let position = || server.client().get("/v1/fleets/default/nodes?limit=1").json()["position"].as_u64();
    let (mut last, mut since) = (position(), Instant::now());
    until("nothing is recorded any more", || {
        let now = position();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        last.filter(|_| since.elapsed() > Duration::from_secs(3))
    })
}

/// Waits until the events topic has the event at `head`: the exporter of a busy machine is late.
fn exported(cluster: &KafkaCluster, head: u64) -> Result<()> {
    let began = Instant::now();
    loop {
        let (_, last) = last_exported(cluster.bootstrap())?;
        if last >= head {
            return Ok(());
        }
        ensure!(
            began.elapsed() < EXPORT,
            "the last event of the events topic is {last}, and the journal's {head}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Runs the independent checker over topics, servers and mirrors. `deleted` is the last position whose event
/// was deleted from the events topic.
fn outside(cluster: &KafkaCluster, standbys: &StandbyServers, deleted: Option<u64>) -> Result<()> {
    let mut checker = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/run"));
    checker.args(["python", "check", &cluster.direct(), "fleet", "--at-rest"]);
    if let Some(deleted) = deleted {
        checker.args(["--events-deleted", &deleted.to_string()]);
    }
    for server in &standbys.servers {
        checker.args(["--server", &server.url(), "--mirror"]).arg(server.data());
    }
    let done = checker.output().context("cannot run checker")?;
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    ensure!(done.status.success(), "the checker reports errors, {}:\n{out}{err}", done.status);
    let found: Value =
        serde_json::from_str(&out).with_context(|| format!("cannot read output of the checker: {out}"))?;
    println!("the checker that is not ours: {found}");
    Ok(())
}

/// Checks that all servers have the same records.
fn same_journals(standbys: &StandbyServers) -> Result<()> {
    let mut first: Option<Vec<Arc<Record>>> = None;
    for server in &standbys.servers {
        let mut records = records(server.data())?;
        match &mut first {
            None => first = Some(records),
            Some(first) => {
                // A server that stopped earlier lacks later records.
                let common = first.len().min(records.len());
                records.truncate(common);
                ensure!(first[..common] == records[..], "two servers have different records");
            }
        }
    }
    Ok(())
}
