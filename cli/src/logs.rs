//! `logs`: output of the processes of an incarnation.

use std::collections::BTreeSet;
use std::io::Read as _;

use chancery_events::id::IncarnationId;
use serde_json::Value;

use super::client::{ApiClient, CommandIo};
use super::context::OutputFormat;
use super::error::{CliError, CliExit};
use super::event_summary::EventSummary;
use super::events;
use super::flags::LogsArgs;
use super::get::{list, one};
use super::kind::{self, EntityKind, KindNaming as _};
use super::short_id;

/// Advice after a stream that ended early.
const AGAIN: &str = "retry when the server is back, with --tail 0 for new output only";

pub(super) fn run(logs: &LogsArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    io.client.context.output(&[OutputFormat::Table])?;
    let incarnation = match (whose(&logs.of)?, logs.previous) {
        ((EntityKind::Incarnation, id), false) => short_id::resolve(io.client, EntityKind::Incarnation, id)?,
        ((EntityKind::Incarnation, id), true) => {
            let advice = "invalid flag --previous: must be used with a replica";
            return Err(CliError::usage(format!("{advice}, not incarnation {id}")));
        }
        ((_, replica), false) => match latest(replica, io.client) {
            // No replica has the name: it may be the first characters of an id.
            Err(error) if error.exit == CliExit::NotFound && short_id::is_prefix(&logs.of) => {
                short_id::resolve(io.client, EntityKind::Incarnation, replica)
                    .map_err(|other| if other.exit == CliExit::NotFound { error } else { other })?
            }
            found => found.map_err(|error| with_past(error, replica, logs, io.client))?,
        },
        ((_, replica), true) => {
            previous(replica, io.client).map_err(|error| with_past(error, replica, logs, io.client))?
        }
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
    let doing = format!("cannot read logs of incarnation/{incarnation}");
    let path = format!("{}/logs", EntityKind::Incarnation.path_of(&incarnation)?);
    let mut stream = io.client.stream(&doing, &path, &query, "text/plain")?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = stream.read(&mut buffer).map_err(|error| {
            CliError::new(CliExit::Unreachable, format!("{doing}: stream failed: {error}\nhint: {AGAIN}"))
        })?;
        if count == 0 && logs.follow {
            // A followed stream does not end with its processes; only the server ends it.
            let ended = format!("{doing}: the server ended the stream\nhint: {AGAIN}");
            return Err(CliError::new(CliExit::Unreachable, ended));
        }
        if count == 0 {
            return Ok(());
        }
        io.out.write_all(&buffer[..count])?;
        io.out.flush()?;
    }
}

/// Returns the kind and name that an argument means, with or without its kind.
fn whose(of: &str) -> Result<(EntityKind, &str), CliError> {
    let Some((kind, name)) = of.split_once('/') else {
        let is_id = of.parse::<IncarnationId>().is_ok();
        return Ok((if is_id { EntityKind::Incarnation } else { EntityKind::Replica }, of));
    };
    match kind::named(kind) {
        Some(kind @ (EntityKind::Replica | EntityKind::Incarnation)) => Ok((kind, name)),
        Some(other) => {
            let word = other.word();
            Err(CliError::usage(format!(
                "invalid name {of:?}: must name a replica or an incarnation, not a {word}"
            )))
        }
        // The server reports the error in the name.
        None => Ok((EntityKind::Replica, of)),
    }
}

/// Adds to the error about a replica that does not exist which command shows its last output, if the journal has an incarnation
/// of it: the rows of its incarnations were deleted with it, and the output of the newest ended incarnations is kept.
fn with_past(error: CliError, replica: &str, logs: &LogsArgs, client: &ApiClient<'_>) -> CliError {
    // An error that names incarnations is about a replica that exists.
    if error.exit != CliExit::NotFound
        || !error.message.starts_with(&format!("cannot read replica/{replica}: "))
    {
        return error;
    }
    // A history that cannot be read adds nothing to the error.
    let events = events::past(EntityKind::Replica, replica, client).unwrap_or_default();
    match started(&events, logs.previous) {
        None => error,
        Some(id) => {
            CliError { message: format!("{}\ntry: chancery logs incarnation/{id}", error.message), ..error }
        }
    }
}

/// Returns the last incarnation that the events of a replica start, or the one before it; of a single one, that one.
fn started(events: &[Value], before: bool) -> Option<&str> {
    let starts = events.iter().filter(|event| EventSummary(event).type_name() == "incarnation.started");
    // Ids sort in the order of their issue.
    let ids: BTreeSet<_> = starts.filter_map(|event| event["data"]["incarnation"].as_str()).collect();
    let mut newest = ids.into_iter().rev();
    let last = newest.next();
    if before { newest.next().or(last) } else { last }
}

/// Returns the incarnation of a replica before its current or last one.
fn previous(replica: &str, client: &ApiClient<'_>) -> Result<String, CliError> {
    let latest = latest(replica, client)?;
    let past = list(client, EntityKind::Incarnation, &[("replica", replica.to_owned())], u64::MAX)?;
    // An incarnation that was never started has no output.
    let ran = |item: &&Value| !matches!(item["state"].as_str(), Some("reserved" | "unwound"));
    let ids = past.items.iter().filter(ran).filter_map(|item| item["id"].as_str());
    let id = ids.filter(|id| *id < latest.as_str()).max();
    id.map(str::to_owned).ok_or_else(|| {
        let detail =
            format!("cannot read logs of replica/{replica}: no incarnation ran before incarnation/{latest}");
        CliError::new(CliExit::NotFound, detail)
    })
}

/// Returns the current incarnation of a replica, or its last one, whose failure is the most frequent
/// question.
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
            format!("cannot read logs of replica/{replica}: it has had no incarnation"),
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::tests::fake::{FakeAction, FakeCli, context, serve};

    #[test]
    fn the_error_about_a_deleted_replica_names_its_incarnation() {
        let event =
            |kind: &str, id: &str| json!({ "position": 9, "type": kind, "data": { "incarnation": id } });
        let (first, second, unwound) = ("id-1", "id-2", "id-3");
        let events = [
            event("incarnation.reserved.v1", first),
            event("incarnation.started.v1", first),
            event("incarnation.started.v1", second),
            event("incarnation.ended.v1", unwound),
        ];
        let gone = "web-7f3k is deleted; its history remains";
        let advice = |id: &str| format!("\ntry: chancery logs incarnation/{id}");
        for (events, previous, wanted) in [
            (&events[..], false, advice(second)),
            (&events[..], true, advice(first)),
            (&events[..2], true, advice(first)),
            (&events[..1], false, String::new()),
        ] {
            let problem = json!({
                "status": 410, "code": "gone", "title": "T", "detail": format!("replica/{gone}"), "retryable": false,
            });
            let page = json!({ "items": events, "next_from": null });
            let (server, asked) = serve(vec![
                FakeAction::Respond(410, problem.to_string()),
                FakeAction::Respond(200, page.to_string()),
            ]);
            let flag = if previous { " --previous" } else { "" };
            let line = format!("chancery logs web-7f3k{flag}");
            let cli = FakeCli::try_parse_from(line.split(' ')).expect("a command line");
            let error =
                crate::run(&cli.command, &context(server, None), &mut Vec::new()).expect_err("deleted");
            let message = format!("cannot read replica/web-7f3k: replica/{gone}{wanted}");
            assert_eq!((error.exit, error.message), (CliExit::NotFound, message));
            let asked: Vec<_> = asked.try_iter().map(|request| request.line).collect();
            assert!(asked[1].contains("/replicas/web-7f3k/history?"), "{asked:?}");
        }
    }
}
