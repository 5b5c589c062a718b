//! W3: latency of a verdict, compared with one write and fdatasync of a thread that waits for no other.

use anyhow::Result;

use crate::baseline::BaselineLog;
use crate::intents::caller;
use crate::load::by_turns;
use crate::server::BenchmarkServer;
use crate::table::{ResultRow, ValueBar};

/// Bars: maximum number of syncs, and of milliseconds.
const SYNCS: f64 = 1.5;
const MILLIS: f64 = 1.0;

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut rows = Vec::new();
    for callers in [1, 32] {
        let [ours, sync] = by_turns([
            Box::new(|| {
                BenchmarkServer::start()?.round(callers, |client, number| Ok(caller(client, number)))
            }),
            Box::new(BaselineLog::sync_alone),
        ])?;
        let (p50, bar) = (ours.p50_ms, SYNCS * sync.p50_ms + MILLIS);
        let row =
            ResultRow::new("W3", format!("{callers} callers"), ours).compared_with("one fdatasync", sync);
        rows.push(row.check("p50 of a verdict in ms", p50, ValueBar::Below(bar)));
    }
    Ok(rows)
}
