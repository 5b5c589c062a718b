//! Workloads, each beside its floor in the same run: the disk's fdatasync drifts, so only ratios mean anything.
//!
//! Ours and the floor run alternately, several rounds; the table shows medians.

mod floor;
mod load;
mod table;
mod w1;
mod w2;

use anyhow::{Result, bail};

/// Rounds of each cell; ours and the floor by turns.
const ROUNDS: usize = 3;
/// How long a round lasts.
const ROUND: std::time::Duration = std::time::Duration::from_millis(1500);
/// Callers at a time.
const CALLERS: [usize; 4] = [1, 8, 32, 128];

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w.eq_ignore_ascii_case(name));
    for name in &wanted {
        if !["W1", "W2"].iter().any(|known| name.eq_ignore_ascii_case(known)) {
            bail!("there is no workload {name}: W1, W2");
        }
    }
    let mut rows = Vec::new();
    if wants("W1") {
        rows.extend(w1::run()?);
    }
    if wants("W2") {
        rows.extend(w2::run()?);
    }
    table::print(&rows);
    table::write(&rows)
}

/// A folder on the disk to measure, gone afterwards.
fn folder() -> Result<tempfile::TempDir> {
    let builder = tempfile::Builder::new().prefix("chancery-bench-").to_owned();
    Ok(match std::env::var_os("CHANCERY_BENCH_DIR") {
        Some(dir) => builder.tempdir_in(dir)?,
        None => builder.tempdir()?,
    })
}
