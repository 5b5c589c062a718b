//! `logs`: what the processes of an incarnation have written.

use std::io::{Read as _, Write};

use chancery_events::id::IncarnationId;
use serde_json::Value;

use super::client::ApiClient;
use super::context::OutputFormat;
use super::error::{CliError, CliExit};
use super::flags::LogsArgs;
use super::get::{list, one};
use super::kind::{self, EntityKind, KindNaming as _};

/// What to do when a stream ends before its time.
const AGAIN: &str = "ask again when it is back, --tail 0 shows only what comes then";

pub(super) fn run(logs: &LogsArgs, client: &ApiClient<'_>, out: &mut dyn Write) -> Result<(), CliError> {
    client.context.output(&[OutputFormat::Table])?;
    let incarnation = match (whose(&logs.of)?, logs.previous) {
        ((EntityKind::Incarnation, id), false) => id.to_owned(),
        ((EntityKind::Incarnation, id), true) => {
            let advice = "--previous is of a replica: name the incarnation itself, or its replica";
            return Err(CliError::usage(format!("{advice}, not {id}")));
        }
        ((_, replica), false) => latest(replica, client)?,
        ((_, replica), true) => previous(replica, client)?,
    };
    let stream = match (logs.stdout, logs.stderr) {
        (true, false) => Some("out"),
        (false, true) => Some("err"),
        (true, true) | (false, false) => None,
    };
    let mut query = vec![("marked", stream.is_none().to_string())];
    query.extend(stream.map(|stream| ("stream", stream.to_owned())));
    query.extend(logs.since.clone().map(|since| ("since", since)));
    query.extend(logs.payload.clone().map(|payload| ("payload", payload)));
    query.extend(logs.process.map(|process| ("process", process.to_string())));
    query.extend(logs.tail.map(|tail| ("tail", tail.to_string())));
    query.push(("follow", logs.follow.to_string()));
    let doing = format!("read the logs of incarnation/{incarnation}");
    let path = format!("{}/logs", EntityKind::Incarnation.path_of(&incarnation)?);
    let mut stream = client.stream(&doing, &path, &query, "text/plain")?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = stream.read(&mut buffer).map_err(|error| {
            CliError::new(CliExit::Unreachable, format!("{doing}: the stream broke off: {error}; {AGAIN}"))
        })?;
        if count == 0 && logs.follow {
            // Processes may end, but nobody ends what is followed except the server.
            let ended = format!("{doing}: the server has ended the stream; {AGAIN}");
            return Err(CliError::new(CliExit::Unreachable, ended));
        }
        if count == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..count])?;
        out.flush()?;
    }
}

/// What is meant by a name, with or without its kind.
fn whose(of: &str) -> Result<(EntityKind, &str), CliError> {
    let Some((kind, name)) = of.split_once('/') else {
        let is_id = of.parse::<IncarnationId>().is_ok();
        return Ok((if is_id { EntityKind::Incarnation } else { EntityKind::Replica }, of));
    };
    match kind::named(kind) {
        Some(kind @ (EntityKind::Replica | EntityKind::Incarnation)) => Ok((kind, name)),
        Some(other) => {
            let word = other.word();
            Err(CliError::usage(format!("logs are of a replica or an incarnation, not of a {word}: {of:?}")))
        }
        // The server says what is wrong with the name.
        None => Ok((EntityKind::Replica, of)),
    }
}

/// The incarnation that a replica had before the one that it has, or had last.
fn previous(replica: &str, client: &ApiClient<'_>) -> Result<String, CliError> {
    let latest = latest(replica, client)?;
    let past = list(client, EntityKind::Incarnation, &[("replica", replica.to_owned())], u64::MAX)?;
    // One that was only placed wrote nothing.
    let ran = |item: &&Value| !matches!(item["state"].as_str(), Some("reserved" | "unwound"));
    let ids = past.items.iter().filter(ran).filter_map(|item| item["id"].as_str());
    let id = ids.filter(|id| *id < latest.as_str()).max();
    id.map(str::to_owned).ok_or_else(|| {
        let detail =
            format!("read the logs of replica/{replica}: it has had no run before incarnation/{latest}");
        CliError::new(CliExit::NotFound, detail)
    })
}

/// The incarnation that a replica has, or had last: why it failed is asked most.
fn latest(replica: &str, client: &ApiClient<'_>) -> Result<String, CliError> {
    let row = one(client, EntityKind::Replica, replica)?;
    if let Some(id) = row["incarnation"].as_str() {
        return Ok(id.to_owned());
    }
    let past = list(client, EntityKind::Incarnation, &[("replica", replica.to_owned())], u64::MAX)?;
    // Ids sort in the order of their issue.
    let id = past.items.iter().filter_map(|item: &Value| item["id"].as_str()).max();
    id.map(str::to_owned).ok_or_else(|| {
        CliError::new(
            CliExit::NotFound,
            format!("read the logs of replica/{replica}: it has not run anywhere yet"),
        )
    })
}
