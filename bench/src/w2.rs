//! W2: durable intents over HTTP with keep-alive: accepted, decided, and answered after they are durable; the
//! projector runs along. The floor is the raw program without HTTP, decision or read model.

use anyhow::Result;

use crate::CALLERS;
use crate::floor::Floor;
use crate::http::Client;
use crate::load::by_turns;
use crate::server::{FLEET, Server};
use crate::table::Row;

/// A caller. Every intent changes a capability of its own.
pub(crate) fn caller(mut client: Client, number: usize) -> impl FnMut() -> Result<()> + Send {
    let mut score = 0_u32;
    let path = format!("{FLEET}/capabilities/c-{number}");
    move || {
        score += 1;
        let body = format!(r#"{{"spec":{{"type":"bench","score":{score}}}}}"#);
        client.ask("PUT", &path, &body).map(drop)
    }
}

pub(crate) fn run() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for callers in CALLERS {
        let [floor, ours] = by_turns([
            Box::new(|| Floor::round(callers)),
            Box::new(|| Server::start()?.round(callers, |client, number| Ok(caller(client, number)))),
        ])?;
        rows.push(Row::new("W2", format!("{callers} callers"), ours).beside("floor", floor));
    }
    Ok(rows)
}
