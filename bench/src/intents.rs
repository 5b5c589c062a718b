//! W2: durable intents over HTTP with keep-alive: accepted, decided, and answered when durable, while the
//! projector runs. The floor is the raw program without HTTP, decision or read model. The peers are other
//! event stores. They append one event of 400 bytes; an intent, its verdict and its fact have 480.

use anyhow::{Context as _, Result};

use crate::CALLERS;
use crate::baseline::BaselineLog;
use crate::http::BenchmarkClient;
use crate::load::{MeasuredSide, all_by_turns};
use crate::peers::RunningPeers;
use crate::server::{BenchmarkServer, FLEET};
use crate::table::ResultRow;

/// Returns a caller. Every intent changes a capability of its own.
pub(crate) fn caller(mut client: BenchmarkClient, number: usize) -> impl FnMut() -> Result<()> + Send {
    let mut score = 0_u32;
    let path = format!("{FLEET}/capabilities/c-{number}");
    move || {
        score += 1;
        let body = format!(r#"{{"spec":{{"type":"bench","score":{score}}}}}"#);
        client.ask("PUT", &path, &body).map(drop)
    }
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut peers = RunningPeers::start()?;
    let mut rows = Vec::new();
    for callers in CALLERS {
        let mut named: Vec<(&str, MeasuredSide<'_>)> = vec![
            (
                "ours",
                Box::new(|| {
                    BenchmarkServer::start()?.round(callers, |client, number| Ok(caller(client, number)))
                }),
            ),
            ("baseline", Box::new(|| BaselineLog::round(callers))),
        ];
        if let Some(peers) = &mut peers {
            named.extend(peers.sides(callers));
        }
        let (labels, mut sides): (Vec<_>, Vec<_>) = named.into_iter().unzip();
        let mut cells = labels.into_iter().zip(all_by_turns(&mut sides)?);
        let (_, ours) = cells.next().context("ours")?;
        let (_, floor) = cells.next().context("the floor")?;
        let row = ResultRow::new("W2", format!("{callers} callers"), ours).compared_with("baseline", floor);
        rows.push(cells.fold(row, |row, (name, cell)| row.share_of(name, cell, 1.0)));
    }
    Ok(rows)
}
