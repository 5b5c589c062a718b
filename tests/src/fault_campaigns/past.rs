//! Reads of the past after intents with kills of the server. A round is an intent.
//!
//! | compared | with | how many |
//! |---|---|---|
//! | answers of the live service | answers at their positions, after a restart, without snapshots, without rows, and of `replay --listen` | one for two intents, four times |
//! | causes of facts | what needs no cause; effects are their inverse; approvals in `why` have the hash of the operation | one for 20 intents |
//! | dry runs | the effect of the same intents, in another fleet | one for 40 intents |

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::evidence::{ServerEvidence, judge, wind_up};
use super::fleet::{by_hand, deploy, set_up, sleeper};
use super::load::{LoadShape, ProducerLoad};
use crate::history::InvocationHistory;
use crate::ledger::CountMap;
use crate::past::answers::{LiveAnswers, RecordedAnswers};
use crate::past::causes::{check_approvals, check_causes, event};
use crate::past::dry_runs::{compare_dry_runs, head};
use crate::sim::RandomSource;
use crate::{ReplayProcess, ServerProcess, TestClient, until};

/// Load that leaves reads with equal positions in between.
const LOAD: LoadShape = LoadShape { interval: Duration::from_millis(10), ..LoadShape::FAST };
const PRODUCERS: u64 = 4;
const READERS: usize = 2;
/// Number of intents between two kills, if there are at least four kills.
const KILL_EVERY: u64 = 1000;

pub(super) fn run(intents: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut random = RandomSource::new(seed);
    let mut server = ServerProcess::new();
    server.set("CHANCERY_SNAPSHOT_INTERVAL_EVENTS", &(intents / 20).max(250).to_string());
    server.set("CHANCERY_SEGMENT_BYTES", "256KiB");
    server.start_again();
    server.stay_at_this_address();
    set_up(&server.client(), &sleeper());
    by_hand(&server.client(), &sleeper());
    let (answers, history) = work(&mut server, intents, &mut random, tally)?;
    let answers = answers.sample((intents / 2) as usize, &mut random);
    ensure!(!answers.is_empty(), "no answer was recorded");
    compare(&mut server, &answers, &mut random, tally)?;
    check_facts(&server.client(), intents / 20, &mut random, tally)?;
    let mut evidence = vec![ServerEvidence::gather(&server)?];
    wind_up(&server, &mut evidence)?;
    let code = server.stop();
    ensure!(code == Some(0), "the server ends with {code:?}:\n{}", server.log());
    judge(server.data(), &history, &evidence, tally)?;
    let other = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    let dry_runs = (intents / 40) as usize;
    let counts = compare_dry_runs(&other.client(), seed, dry_runs);
    ensure!(counts.compared >= dry_runs * 2 / 3, "something else was recorded: {counts:?}");
    tally.check("dry run", counts.compared as u64);
    tally.rounds += intents;
    Ok(())
}

/// Sends intents, kills the server in between, and records answers meanwhile.
fn work(
    server: &mut ServerProcess,
    intents: u64,
    random: &mut RandomSource,
    tally: &mut CountMap,
) -> Result<(LiveAnswers, InvocationHistory)> {
    let file = server.directory().join("history.jsonl");
    let load = ProducerLoad::begin_with(
        LOAD,
        &server.url(),
        PRODUCERS,
        random.bits(),
        Duration::from_secs(30),
        &file,
    )?;
    let (answers, is_done) = (LiveAnswers::default(), AtomicBool::new(false));
    let kills = (intents / KILL_EVERY).max(4);
    let client = server.client();
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| answers.record(&client, &is_done));
        }
        for kill in 1..=kills {
            let wanted = intents * kill / kills;
            until("the next intents have verdicts", || (load.acknowledged() >= wanted).then_some(()));
            deploy(&client, &format!("d-{kill}"), 2 + random.below(4) as u32);
            std::thread::sleep(Duration::from_millis(random.below(300)));
            server.kill();
            server.start_again();
            tally.fault("kill");
        }
        is_done.store(true, Ordering::Relaxed);
    });
    Ok((answers, load.end()?))
}

/// Compares the answers after each loss that a server continues from, and with those of a replay.
fn compare(
    server: &mut ServerProcess,
    answers: &RecordedAnswers,
    random: &mut RandomSource,
    tally: &mut CountMap,
) -> Result<()> {
    let data = server.data().join("fleets/default");
    let snapshots = data.join("snapshots").read_dir().context("cannot list snapshots")?.count();
    ensure!(snapshots > 1, "only {snapshots} snapshots were written");
    let mut compared = |what: &str, client: &TestClient| {
        let start = Instant::now();
        answers.compare(client, random);
        println!("{} answers compared, {what}: {} s", answers.len(), start.elapsed().as_secs());
        tally.check(&format!("answer {what}"), answers.len() as u64);
    };
    for (what, lost) in [
        ("after a restart", None),
        ("after snapshots were removed", Some("snapshots")),
        ("after rows were dropped", Some("rows")),
    ] {
        let code = server.stop();
        ensure!(code == Some(0), "the server ends with {code:?}:\n{}", server.log());
        if let Some(lost) = lost {
            std::fs::remove_dir_all(data.join(lost)).with_context(|| format!("cannot remove {lost}"))?;
        }
        server.start_again();
        compared(what, &server.client());
    }
    server.stop();
    let replay = ReplayProcess::start(server.data(), &[]);
    compared("of a replay", &replay.client());
    drop(replay);
    server.start_again();
    Ok(())
}

/// Checks the causes and effects of at least `count` random facts, and approvals among their reasons.
fn check_facts(
    client: &TestClient,
    count: u64,
    random: &mut RandomSource,
    tally: &mut CountMap,
) -> Result<()> {
    let (head, mut approvals, mut checked) = (head(client), 0, 0);
    // Few facts have an approval among their reasons.
    for _ in 0..count * 50 {
        if checked >= count && approvals > 0 {
            break;
        }
        let at = random.between(1, head);
        if event(client, at)["kind"] == "fact" {
            check_causes(client, at);
            approvals += check_approvals(client, at);
            checked += 1;
        }
    }
    ensure!(checked >= count && approvals > 0, "{approvals} approvals among the reasons for {checked} facts");
    tally.check("causes of a fact", checked);
    tally.check("approval in why", approvals as u64);
    Ok(())
}
