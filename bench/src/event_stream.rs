//! W7: consumers that follow the stream of events at 100 events per second. Each gets every event once and in
//! order, and the server must stay below one core with a thousand consumers.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::ROUNDS;
use crate::intents;
use crate::server::BenchmarkServer;
use crate::stream::OutputStream;
use crate::table::{CellResult, ResultRow, ValueBar, median};

const CONSUMERS: [usize; 3] = [1, 100, 1000];
/// Events per second; an intent creates three.
const EVENTS: u32 = 100;
const EVENTS_OF_INTENT: u32 = 3;
/// Intents in a round, which lasts about five seconds.
const INTENTS: u32 = 167;
/// Stack size of a consumer, which needs little more than its buffer.
const STACK: usize = 128 << 10;

/// Reads `events` events, checks that they are in order without a gap, and returns the arrival time of each.
fn consume(mut stream: OutputStream, events: u32) -> Result<Vec<(u64, Instant)>> {
    let mut seen: Vec<(u64, Instant)> = Vec::with_capacity(events as usize);
    while seen.len() < events as usize {
        let position = stream.next_event()?;
        if let Some((last, _)) = seen.last() {
            ensure!(position == last + 1, "after {last} comes {position}");
        }
        seen.push((position, Instant::now()));
    }
    Ok(seen)
}

/// Measures the time of each event from the verdict of its intent to each consumer.
fn follow(consumers: usize) -> Result<CellResult> {
    let server = BenchmarkServer::start_with(&[
        ("CHANCERY_LIMITS_STREAMS", "2000"),
        ("CHANCERY_LIMITS_CONNECTIONS", "2000"),
    ])?;
    let events = INTENTS * EVENTS_OF_INTENT;
    let (sender, all) = channel();
    for _ in 0..consumers {
        let stream = OutputStream::open(&server.address, "")?;
        let sender: Sender<Result<_>> = sender.clone();
        std::thread::Builder::new().stack_size(STACK).spawn(move || {
            // The round ends with the first failure.
            let _ = sender.send(consume(stream, events));
        })?;
    }
    let mut call = intents::caller(server.client()?, 0);
    server.watched(|| {
        let (began, mut asked) = (Instant::now(), Vec::new());
        for number in 0..INTENTS {
            let due = Duration::from_secs(1) * EVENTS_OF_INTENT / EVENTS * number;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            asked.push(Instant::now());
            call()?;
        }
        let mut late = Vec::new();
        for _ in 0..consumers {
            let seen = all.recv().context("wait for a consumer")??;
            ensure!(seen.len() == events as usize, "a consumer has seen {} events", seen.len());
            let of_intents = seen.iter().zip(asked.iter().flat_map(|at| [at; EVENTS_OF_INTENT as usize]));
            late.extend(of_intents.map(|((_, came), asked)| came.saturating_duration_since(*asked)));
        }
        Ok(CellResult::of(late, began.elapsed()))
    })
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut rows = Vec::new();
    for consumers in CONSUMERS {
        let cells = (0..ROUNDS).map(|_| follow(consumers)).collect::<Result<_>>()?;
        let cell = median(cells);
        let cores = cell.cores.context("the server is watched")?;
        let row = ResultRow::new("W7", format!("{consumers} consumers"), cell);
        rows.push(if consumers == 1000 { row.check("cores", cores, ValueBar::Below(1.0)) } else { row });
    }
    Ok(rows)
}
