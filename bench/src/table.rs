//! What is measured: shown as a table, kept as JSON.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::{Value, json};

/// What one side did in one cell.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Calls a second.
    pub(crate) rate: f64,
    /// Of a call.
    pub(crate) p50: Duration,
    /// Of a call.
    pub(crate) p99: Duration,
}

/// One row: the same load on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) workload: &'static str,
    pub(crate) callers: usize,
    pub(crate) ours: Cell,
    pub(crate) floor: Cell,
}

/// The cell of the median rate.
pub(crate) fn median(mut cells: Vec<Cell>) -> Cell {
    cells.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    cells.swap_remove(cells.len() / 2)
}

impl Cell {
    /// From the latencies of every call of a round.
    pub(crate) fn of(mut latencies: Vec<Duration>, took: Duration) -> Cell {
        latencies.sort_unstable();
        let at = |share: f64| {
            latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or_default()
        };
        Cell { rate: latencies.len() as f64 / took.as_secs_f64(), p50: at(0.5), p99: at(0.99) }
    }

    fn json(&self) -> Value {
        json!({"rate": self.rate, "p50_us": self.p50.as_micros(), "p99_us": self.p99.as_micros()})
    }
}

pub(crate) fn print(rows: &[Row]) {
    let head = ["workload", "callers", "ours/s", "floor/s", "ratio", "ours p50/p99 ms", "floor p50/p99 ms"];
    println!(
        "{:9} {:>7} {:>10} {:>10} {:>6} {:>17} {:>17}",
        head[0], head[1], head[2], head[3], head[4], head[5], head[6]
    );
    let times =
        |cell: &Cell| format!("{:.2} / {:.2}", cell.p50.as_secs_f64() * 1e3, cell.p99.as_secs_f64() * 1e3);
    for row in rows {
        println!(
            "{:9} {:>7} {:>10.0} {:>10.0} {:>6.2} {:>17} {:>17}",
            row.workload,
            row.callers,
            row.ours.rate,
            row.floor.rate,
            row.ours.rate / row.floor.rate,
            times(&row.ours),
            times(&row.floor)
        );
    }
}

pub(crate) fn write(rows: &[Row]) -> Result<()> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{seconds}.json"));
    let rows: Vec<_> = rows
        .iter()
        .map(|r| json!({"workload": r.workload, "callers": r.callers, "ours": r.ours.json(), "floor": r.floor.json(), "ratio": r.ours.rate / r.floor.rate}))
        .collect();
    std::fs::write(&path, serde_json::to_vec_pretty(&json!({"time": seconds, "rows": rows}))?)?;
    println!("written to {}", path.display());
    Ok(())
}
