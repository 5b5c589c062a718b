//! Results: shown as a table, stored as JSON.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Result of one side in one cell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CellResult {
    /// Operations per second.
    pub(crate) rate: f64,
    /// Median latency of an operation, in milliseconds; zero if single operations are not timed.
    pub(crate) p50_ms: f64,
    /// 99th percentile of the latency of an operation, in milliseconds.
    pub(crate) p99_ms: f64,
    /// Peak memory of the measured process, in MiB.
    pub(crate) memory_mib: Option<f64>,
    /// Average number of busy cores of the measured process.
    pub(crate) cores: Option<f64>,
}

/// Result row: the same load on Chancery and on its floors and peers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResultRow {
    workload: String,
    /// Amount of load, such as `32 callers`.
    load: String,
    ours: CellResult,
    compared: Vec<ComparedResult>,
    checks: Vec<BarCheck>,
}

/// Result of a floor or a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ComparedResult {
    name: String,
    cell: CellResult,
    /// Ratio of Chancery's rate to the rate of the floor or peer; zero if there are no rates.
    ratio: f64,
}

/// Bar, and whether the value reaches it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct BarCheck {
    what: String,
    value: f64,
    bar: ValueBar,
    reached: bool,
}

/// Bar for a value.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ValueBar {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl ResultRow {
    pub(crate) fn new(workload: impl Into<String>, load: impl Into<String>, ours: CellResult) -> ResultRow {
        ResultRow {
            workload: workload.into(),
            load: load.into(),
            ours,
            compared: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// Adds a floor or peer.
    pub(crate) fn compared_with(mut self, name: &str, cell: CellResult) -> ResultRow {
        let ratio = if cell.rate > 0.0 { self.ours.rate / cell.rate } else { 0.0 };
        self.compared.push(ComparedResult { name: name.to_owned(), cell, ratio });
        self
    }

    /// Adds a floor or peer; Chancery's rate should be at least `share` of its rate.
    pub(crate) fn share_of(self, name: &str, cell: CellResult, share: f64) -> ResultRow {
        let ratio = self.ours.rate / cell.rate;
        self.compared_with(name, cell).check(&format!("ratio to {name}"), ratio, ValueBar::AtLeast(share))
    }

    /// Adds a value that should reach a bar.
    pub(crate) fn check(mut self, what: &str, value: f64, bar: ValueBar) -> ResultRow {
        let reached = match bar {
            ValueBar::AtLeast(bar) => value >= bar,
            ValueBar::AtMost(bar) => value <= bar,
            ValueBar::Below(bar) => value < bar,
        };
        self.checks.push(BarCheck { what: what.to_owned(), value, bar, reached });
        self
    }
}

/// Returns the cell with the median rate.
pub(crate) fn median(mut cells: Vec<CellResult>) -> CellResult {
    cells.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let middle = cells.len() / 2;
    cells.into_iter().nth(middle).unwrap_or_default()
}

impl CellResult {
    /// Returns the cell for the latencies of every call of a round.
    pub(crate) fn of(mut latencies: Vec<Duration>, took: Duration) -> CellResult {
        latencies.sort_unstable();
        let at = |share: f64| {
            let index = (latencies.len() as f64 * share) as usize;
            latencies.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
        };
        let rate = latencies.len() as f64 / took.as_secs_f64();
        CellResult { p50_ms: at(0.5), p99_ms: at(0.99), ..CellResult::rate(rate) }
    }

    /// Returns a cell if only the total is timed.
    pub(crate) fn rate(rate: f64) -> CellResult {
        CellResult { rate, ..CellResult::default() }
    }
}

pub(crate) fn print(rows: &[ResultRow]) {
    let line = |cells: [&str; 9]| {
        let [workload, load, who, rate, ratio, p50, p99, memory, cores] = cells;
        println!(
            "{workload:9} {load:16} {who:22} {rate:>10} {ratio:>6} {p50:>8} {p99:>8} {memory:>7} {cores:>6}"
        );
    };
    line(["workload", "load", "", "a second", "ratio", "p50 ms", "p99 ms", "MiB", "cores"]);
    for row in rows {
        let ours = std::iter::once(("ours", &row.ours, None));
        let others = row.compared.iter().map(|b| (b.name.as_str(), &b.cell, Some(b.ratio)));
        for (index, (who, cell, ratio)) in ours.chain(others).enumerate() {
            let (workload, load) = if index == 0 { (&*row.workload, &*row.load) } else { ("", "") };
            let some = |value: Option<f64>, digits: usize| {
                value.filter(|value| *value > 0.0).map_or(String::new(), |value| format!("{value:.digits$}"))
            };
            line([
                workload,
                load,
                who,
                &some(Some(cell.rate), 0),
                &some(ratio, 2),
                &some(Some(cell.p50_ms), 2),
                &some(Some(cell.p99_ms), 2),
                &some(cell.memory_mib, 0),
                &some(cell.cores, 2),
            ]);
        }
        for check in &row.checks {
            let (word, bar) = match check.bar {
                ValueBar::AtLeast(bar) => ("at least", bar),
                ValueBar::AtMost(bar) => ("at most", bar),
                ValueBar::Below(bar) => ("below", bar),
            };
            let verdict = if check.reached { "reached" } else { "MISSED" };
            println!("          {verdict}: {} {:.2}, {word} {bar:.2}", check.what, check.value);
        }
    }
}

pub(crate) fn write(rows: &[ResultRow]) -> Result<()> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{seconds}.json"));
    std::fs::write(&path, serde_json::to_vec_pretty(&json!({"time": seconds, "rows": rows}))?)?;
    println!("written to {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_reported_by_its_rate_and_its_percentiles() {
        let latencies = (1..=100).rev().map(Duration::from_millis).collect();
        let cell = CellResult::of(latencies, Duration::from_secs(2));
        let shown = format!("{:.1} {:.1} {:.1}", cell.rate, cell.p50_ms, cell.p99_ms);
        assert_eq!(shown, "50.0 51.0 100.0");
        assert!(CellResult::of(Vec::new(), Duration::from_secs(1)).p50_ms.abs() < f64::EPSILON);
    }

    #[test]
    fn the_median_is_of_the_rates() {
        let cells = [3.0, 1.0, 2.0].map(CellResult::rate).to_vec();
        assert!((median(cells).rate - 2.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_bar_is_reached_or_missed() {
        let row = ResultRow::new("W0", "1", CellResult::rate(80.0))
            .share_of("floor", CellResult::rate(100.0), 0.8)
            .check("seconds", 3.0, ValueBar::Below(3.0))
            .check("requests", 3.0, ValueBar::AtMost(3.0))
            .check("requests", 4.0, ValueBar::AtMost(3.0));
        let reached: Vec<_> = row.checks.iter().map(|check| check.reached).collect();
        assert_eq!(reached, [true, false, true, false]);
    }
}
