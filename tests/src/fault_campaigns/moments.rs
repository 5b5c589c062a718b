//! Reads of random moments by many clients, while another client posts intents. A round is a second.
//!
//! | checked | by |
//! |---|---|
//! | each read | an answer of the named moment, with the bytes of every other answer of that moment; `not_found` before the entity exists; or `busy` with the time after which to retry |
//! | memory | past states have at most `as_of.memory` by estimate; the server grows by at most that and a tenth |
//! | clients that disconnect | afterwards no request folds or waits for a fold, and no thread folds |
//! | intents | each is accepted; the time until their verdicts is printed, next to that without the other clients, and to that while these read the present as often |

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use chancery_events::time::Time;
use chancery_projector::moment::MomentPriority;
use serde_json::json;

use super::fleet::{deploy, set_up, sleeper};
use crate::ledger::CountMap;
use crate::past::answers::body;
use crate::past::in_fleet;
use crate::sim::RandomSource;
use crate::{ServerAnswer, ServerProcess, TestClient, resident_kib, until};

/// Number of clients that read.
const CLIENTS: u64 = 64;
/// Maximum memory of past states, in bytes. The allocator returns freed memory only after a second: frequent folds have
/// more resident memory than the estimate, by what they have freed in a second.
const MEMORY: u64 = 256 << 20;
/// Maximum time without a change between intents alone and intents next to the other clients, as the speed of a disk
/// drifts.
const SLICE: u64 = 5;
/// Minimum time between two intents. The keys of intents stay in memory, also in past states: without a limit, a fast machine
/// would measure those.
const PERIOD: Duration = Duration::from_millis(2);
/// Last position of the moments that are read often.
const REPEATED: u64 = 4;
/// Number of capabilities, each of which has three events.
const CAPABILITIES: u64 = 1500;
/// Lists that exist at each moment.
const LISTS: [&str; 5] = [
    "nodes",
    "capabilities?limit=100",
    "replicas?plan=web",
    "operations?plan=web&limit=20",
    "incarnations?limit=20",
];
/// Rows that exist from some moment on.
const ROWS: [&str; 4] = ["nodes/node-1", "plans/web", "capabilities/c-7", "plans/web/deployments/d-1"];

/// Load next to the client that posts intents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SliceLoad {
    Nothing,
    /// Each client reads the present, once a second: as often as clients read the past, whose answers are mostly `busy`.
    Present,
    Past,
}

/// Loads of the slices of a campaign.
const LOADS: [SliceLoad; 3] = [SliceLoad::Nothing, SliceLoad::Present, SliceLoad::Past];

/// Number of reads by their outcomes, and what they needed.
#[derive(Debug, Default)]
struct ReadCounts {
    answers: AtomicU64,
    busy: AtomicU64,
    /// Answers at moments of which the same was read before.
    compared: AtomicU64,
    disconnected: AtomicU64,
    /// Maximum memory of past states by estimate, in bytes.
    estimated: AtomicU64,
    /// Maximum memory of the server, in KiB.
    resident: AtomicU64,
}

/// Fleet whose past is read.
struct ReadFleet<'a> {
    server: &'a ServerProcess,
    /// Position from which every row exists.
    complete_from: u64,
    /// Times of the first event, and of one that is not later than the head.
    times: [Time; 2],
    /// Position of the last verdict.
    head: AtomicU64,
    /// Hash of each answer, by path and position.
    answers: Mutex<HashMap<(&'static str, u64), u64>>,
    counts: ReadCounts,
    /// Whether the intents of this slice are posted.
    is_done: Mutex<bool>,
    /// Notified when they are.
    done: Condvar,
}

pub(super) fn run(seconds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let memory = MEMORY.to_string();
    let settings = [("CHANCERY_AS_OF_MEMORY", &*memory), ("CHANCERY_SNAPSHOT_INTERVAL_EVENTS", "1000")];
    let server = ServerProcess::start_with(&settings);
    let fleet = ReadFleet::fill(&server)?;
    let mut latencies = [const { Vec::new() }; LOADS.len()];
    let mut random = RandomSource::new(seed);
    let slices = seconds.div_ceil(SLICE);
    let span = Duration::from_secs(seconds) / slices as u32;
    let mut before = None;
    for first in 0..slices as usize {
        // The keys of intents and the snapshots with them grow: each load comes first, second and last.
        for load in (first..first + LOADS.len()).map(|turn| turn % LOADS.len()) {
            if LOADS[load] == SliceLoad::Past && before.is_none() {
                before = Some(resident_kib(server.pid()));
            }
            latencies[load].extend(fleet.post_and_read(span, LOADS[load], &mut random)?);
        }
    }
    let [alone, present, read] = latencies;
    fleet.check_nothing_folds()?;
    let counts = &fleet.counts;
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let grown = load(&counts.resident).saturating_sub(before.unwrap_or_default()) << 10;
    println!("intents alone: {}", shown(&alone));
    println!("intents next to {CLIENTS} clients that read the present: {}", shown(&present));
    println!("intents next to {CLIENTS} clients that read the past: {}", shown(&read));
    let (of_alone, of_present) = (rate(&read) / rate(&alone), rate(&read) / rate(&present));
    println!("rate: {of_alone:.2} of that alone, {of_present:.2} of that next to reads of the present");
    println!(
        "reads: {} answers, {} busy, {} disconnected",
        load(&counts.answers),
        load(&counts.busy),
        load(&counts.disconnected)
    );
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "memory in MiB: limit {}, past states {:.1} by estimate, server grown by {:.1}",
        MEMORY >> 20,
        mib(load(&counts.estimated)),
        mib(grown)
    );
    tally.rounds += seconds;
    tally.events += fleet.head.load(Ordering::Relaxed);
    tally.acknowledged += CAPABILITIES + (alone.len() + present.len() + read.len()) as u64;
    *tally.faults.entry("client that disconnects".into()).or_default() += load(&counts.disconnected);
    tally.check("answer at a random moment", load(&counts.answers));
    tally.check("equal answer at a moment", load(&counts.compared));
    tally.check("busy", load(&counts.busy));
    ensure!(load(&counts.estimated) <= MEMORY, "past states have more memory than {MEMORY} bytes");
    ensure!(grown <= MEMORY / 10 * 11, "the server has grown by {grown} bytes");
    ensure!(load(&counts.answers) > 0 && load(&counts.disconnected) > 0, "{counts:?}");
    Ok(())
}

impl ReadFleet<'_> {
    /// Creates entities, and some thousand events.
    fn fill(server: &ServerProcess) -> Result<ReadFleet<'_>> {
        let client = server.client();
        set_up(&client, &sleeper());
        deploy(&client, "d-1", 3);
        client.wait_for("web", "running", 3);
        let mut last = 0;
        for number in 0..CAPABILITIES {
            last = post(&client, number)?;
        }
        let time = |position: u64| -> Result<Time> {
            let event = client.get(&in_fleet(&format!("events/{position}"))).json();
            let text = event["time"].as_str().with_context(|| format!("event {position} has no time"))?;
            text.parse().with_context(|| format!("event {position} has the time {text}"))
        };
        Ok(ReadFleet {
            server,
            complete_from: last,
            times: [time(1)?, time(last)?],
            head: last.into(),
            answers: Mutex::default(),
            counts: ReadCounts::default(),
            is_done: Mutex::default(),
            done: Condvar::new(),
        })
    }

    /// Posts intents for some time. Returns the time until each verdict.
    fn post_for(&self, span: Duration) -> Result<Vec<Duration>> {
        let (client, start, mut latencies) = (self.server.client(), Instant::now(), Vec::new());
        for number in 0.. {
            if start.elapsed() >= span {
                break;
            }
            let sent = Instant::now();
            let position = post(&client, number)?;
            let latency = sent.elapsed();
            latencies.push(latency);
            self.head.store(position, Ordering::Relaxed);
            std::thread::sleep(PERIOD.saturating_sub(latency));
        }
        Ok(latencies)
    }

    /// Posts intents like [`ReadFleet::post_for`], while clients read and the memory of the server is measured.
    fn post_and_read(
        &self,
        span: Duration,
        load: SliceLoad,
        random: &mut RandomSource,
    ) -> Result<Vec<Duration>> {
        *self.is_done.lock().unwrap_or_else(PoisonError::into_inner) = false;
        std::thread::scope(|scope| {
            let clients = if load == SliceLoad::Nothing { 0 } else { CLIENTS };
            let clients: Vec<_> = (0..clients)
                .map(|_| {
                    let random = RandomSource::new(random.bits());
                    scope.spawn(move || match load {
                        SliceLoad::Past => self.read(random),
                        SliceLoad::Present | SliceLoad::Nothing => self.read_present(random),
                    })
                })
                .collect();
            let measure = scope.spawn(|| self.measure_memory());
            let latencies = self.post_for(span);
            *self.is_done.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.done.notify_all();
            for client in clients {
                client.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            measure.join().map_err(|_| anyhow!("the measurement panicked"))??;
            latencies
        })
    }

    fn is_done(&self) -> bool {
        self.is_done_after(Duration::ZERO)
    }

    /// Waits for some time, or until the intents are posted. Returns whether they are.
    fn is_done_after(&self, wait: Duration) -> bool {
        let is_done = self.is_done.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.done.wait_timeout_while(is_done, wait, |is_done| !*is_done);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Reads random moments until the other client has posted its intents. Its requests take no processor time from the server.
    fn read(&self, mut random: RandomSource) -> Result<()> {
        MomentPriority::Idle.set();
        let client = self.server.client();
        while !self.is_done() {
            let is_repeated = random.chance(250);
            let last = if is_repeated { REPEATED } else { self.head.load(Ordering::Relaxed) };
            let position = random.between(1, last);
            let is_row = random.chance(500);
            let path = *random.pick(if is_row { &ROWS } else { &LISTS[..] }).context("a path")?;
            let by_time = random.chance(250);
            let moment = if by_time { self.time(&mut random).to_string() } else { position.to_string() };
            let joint = if path.contains('?') { '&' } else { '?' };
            let whole = in_fleet(&format!("{path}{joint}as_of={moment}"));
            if random.chance(125) {
                self.disconnect(&whole, &mut random)?;
                continue;
            }
            let answer = client.get(&whole);
            if let Some(wait) = busy(&answer) {
                self.counts.busy.fetch_add(1, Ordering::Relaxed);
                self.is_done_after(wait);
                continue;
            }
            let named = (!by_time).then_some(position);
            self.check(path, is_row, named, &answer).with_context(|| {
                format!("{whole}: {} at {:?}: {}", answer.status, answer.position, answer.text)
            })?;
            self.counts.answers.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads the present until the other client has posted its intents.
    fn read_present(&self, mut random: RandomSource) -> Result<()> {
        MomentPriority::Idle.set();
        let client = self.server.client();
        while !self.is_done_after(Duration::from_secs(1)) {
            let all = if random.chance(500) { &ROWS } else { &LISTS[..] };
            let path = in_fleet(random.pick(all).context("a path")?);
            let answer = client.get(&path);
            ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text);
        }
        Ok(())
    }

    fn time(&self, random: &mut RandomSource) -> Time {
        let [first, last] = self.times.map(Time::micros);
        Time::from_micros(first + random.below((last - first + 1) as u64) as i64)
    }

    /// Sends a request, and disconnects without reading its answer.
    fn disconnect(&self, path: &str, random: &mut RandomSource) -> Result<()> {
        let url = self.server.url();
        let address = url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).context("cannot connect")?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").context("cannot send")?;
        std::thread::sleep(Duration::from_millis(random.below(20)));
        self.counts.disconnected.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Checks an answer at a moment, which `named` has if it was a position.
    fn check(
        &self,
        path: &'static str,
        is_row: bool,
        named: Option<u64>,
        answer: &ServerAnswer,
    ) -> Result<()> {
        let body_position = || answer.json()["position"].as_u64();
        let position = answer.position.or_else(body_position).context("the answer has no position")?;
        ensure!(named.is_none_or(|named| named <= position), "the answer is of an earlier moment");
        let is_absent = is_row && position < self.complete_from && answer.json()["code"] == "not_found";
        ensure!(answer.status == 200 || (answer.status == 404 && is_absent), "neither an answer nor busy");
        if answer.status != 200 {
            return Ok(());
        }
        let mut hasher = DefaultHasher::new();
        body(&answer.text).hash(&mut hasher);
        let hash = hasher.finish();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = answers.insert((path, position), hash) {
            ensure!(first == hash, "another answer of this moment differed");
            self.counts.compared.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Measures memory until the intents are posted.
    fn measure_memory(&self) -> Result<()> {
        let (client, counts) = (self.server.client(), &self.counts);
        loop {
            counts.resident.fetch_max(resident_kib(self.server.pid()), Ordering::Relaxed);
            let estimated = gauge(&client, "moment_memory_bytes")?;
            counts.estimated.fetch_max(estimated, Ordering::Relaxed);
            if self.is_done_after(Duration::from_millis(50)) {
                return Ok(());
            }
        }
    }

    /// Checks that no request folds or waits, and that no thread folds.
    fn check_nothing_folds(&self) -> Result<()> {
        let client = self.server.client();
        let requests = || gauge(&client, "moment_requests");
        until("no request folds or waits for a fold", || match requests() {
            Ok(0) => Some(Ok(())),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })?;
        until("no thread folds", || (moment_threads(self.server.pid()) == 0).then_some(()));
        Ok(())
    }
}

/// Posts an intent, which must be accepted. Returns the position of the verdict.
fn post(client: &TestClient, number: u64) -> Result<u64> {
    let spec = json!({"type": "T", "score": number});
    let data = json!({"name": format!("c-{}", number % CAPABILITIES), "spec": spec});
    let answer = client.intent(&uuid::Uuid::new_v4().to_string(), "capability.apply", &data);
    ensure!((200..300).contains(&answer.status), "intent {data}: {} {}", answer.status, answer.text);
    answer.json()["position"].as_u64().context("a verdict has a position")
}

/// Returns the time after which to retry, if the answer is `busy`.
fn busy(answer: &ServerAnswer) -> Option<Duration> {
    let body = answer.json();
    let is_busy =
        matches!((answer.status, body["code"].as_str()?), (503, "busy") | (429, "too_many_requests"));
    answer.retry_after.filter(|_| is_busy).map(Duration::from_secs)
}

/// Returns the value of a gauge of the fleet.
fn gauge(client: &TestClient, name: &str) -> Result<u64> {
    let (start, text) = (format!("chancery_{name}{{fleet=\"default\"}} "), client.get("/metrics").text);
    let value = text.lines().find_map(|line| line.strip_prefix(&start));
    value.with_context(|| format!("no gauge {name} in {text}"))?.parse().context("a gauge is a number")
}

/// Returns the number of threads that fold or read moments.
fn moment_threads(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the server runs");
    let name = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.flatten().filter_map(|task| name(&task)).filter(|name| name.trim_end() == "moment").count()
}

/// Returns the number of verdicts in each second.
fn rate(latencies: &[Duration]) -> f64 {
    latencies.len() as f64 / latencies.iter().sum::<Duration>().as_secs_f64()
}

fn shown(latencies: &[Duration]) -> String {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| sorted.get(sorted.len() * percent / 100).map_or(0.0, Duration::as_secs_f64);
    let [p50, p95, p99] = [50, 95, 99].map(|percent| at(percent) * 1e3);
    format!("{:.0} verdicts a second, p50 {p50:.2} ms, p95 {p95:.2} ms, p99 {p99:.2} ms", rate(latencies))
}
