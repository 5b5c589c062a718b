//! Runs callers on request: a line `CALLERS MILLISECONDS` on standard input, a line of JSON as the answer.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// Result of a round of all callers.
#[derive(Serialize)]
struct RoundResult {
    rate: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Reads one order; `None` at the end of the input.
pub fn order() -> Result<Option<(usize, Duration)>> {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let (callers, millis) = line.trim().split_once(' ').context("an order is CALLERS MILLISECONDS")?;
    Ok(Some((callers.parse()?, Duration::from_millis(millis.parse()?))))
}

/// Times of the calls of one caller.
pub struct CallerTimes {
    began: Instant,
    lasts: Duration,
    since: Option<Instant>,
    latencies: Vec<Duration>,
}

impl CallerTimes {
    /// Starts now, for this duration.
    pub fn begin(lasts: Duration) -> CallerTimes {
        CallerTimes { began: Instant::now(), lasts, since: None, latencies: Vec::with_capacity(1 << 16) }
    }

    /// Ends the current call, if any, and returns the number of the next; `None` at the end of the round.
    pub fn next(&mut self) -> Option<u64> {
        let now = Instant::now();
        self.latencies.extend(self.since.map(|since| now - since));
        self.since = Some(now);
        (now - self.began < self.lasts).then_some(self.latencies.len() as u64)
    }
}

/// Runs the callers and prints their result.
pub async fn round<C>(callers: Vec<C>) -> Result<()>
where
    C: Future<Output = Result<CallerTimes>> + Send + 'static,
{
    let began = Instant::now();
    let mut running: tokio::task::JoinSet<_> = callers.into_iter().collect();
    let mut all = Vec::new();
    while let Some(done) = running.join_next().await {
        all.extend(done??.latencies);
    }
    let took = began.elapsed();
    all.sort_unstable();
    let at = |share: f64| all.get((all.len() as f64 * share) as usize).map_or(0.0, |l| l.as_secs_f64() * 1e3);
    let result =
        RoundResult { rate: all.len() as f64 / took.as_secs_f64(), p50_ms: at(0.5), p99_ms: at(0.99) };
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &result)?;
    writeln!(out)?;
    Ok(out.flush()?)
}
