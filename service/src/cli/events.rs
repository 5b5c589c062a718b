//! `events` and `history`: what happened. A followed stream that breaks is taken up where it ended: every event
//! comes once and in order.

use std::io::{BufRead as _, BufReader, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::args::Events;
use super::client::Client;
use super::context::Output;
use super::error::{CliError, Exit};
use super::get::json_text;
use super::kind::Kind;
use super::table::{Rows, one_line};
use super::told::Told;

/// A history is read in pages of so many.
const PAGE: usize = 500;
/// The longest pause before a broken stream is taken up again.
const LONGEST: Duration = Duration::from_secs(5);

pub(super) fn run(events: &Events, client: &Client<'_>, out: &mut dyn Write) -> Result<(), CliError> {
    let output = client.context.output(&[Output::Table, Output::Jsonl, Output::Json])?;
    let mut next = events.from;
    let mut pause = client.context.backoff;
    loop {
        let before = next;
        let ended = pass_on(events, client, &mut next, output, out);
        match ended {
            // The output is closed, or the server refuses: another try would not better it.
            Err(error) if !events.follow || !matches!(error.exit, Exit::Unreachable | Exit::Unknown) => {
                return Err(error);
            }
            // The first connection fails at once; a later one is waited for.
            Err(error) if before == events.from && next == before => return Err(error),
            Ok(()) if !events.follow => return Ok(()),
            Ok(()) | Err(_) => {}
        }
        pause = if next > before { client.context.backoff } else { (pause * 2).min(LONGEST) };
        std::thread::sleep(pause);
    }
}

/// Shows what the stream brings until it ends, and moves `next` behind it.
fn pass_on(
    events: &Events,
    client: &Client<'_>,
    next: &mut u64,
    output: Output,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let mut query = vec![("from", next.to_string()), ("follow", events.follow.to_string())];
    query.extend(events.subject.clone().map(|subject| ("subject", subject)));
    if !events.types.is_empty() {
        query.push(("types", events.types.join(",")));
    }
    let stream = client.stream("read events", "/events", &query, "application/x-ndjson")?;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(|error| {
            CliError::new(
                Exit::Unknown,
                format!("read events: the stream broke off before position {next}: {error}"),
            )
        })?;
        if line.is_empty() {
            continue;
        }
        let event: Value = serde_json::from_str(&line)
            .map_err(|error| CliError::failure(format!("read events: a line is no event: {error}")))?;
        let told = Told(&event);
        match output {
            Output::Table => {
                let (position, time, who) = (told.position(), told.time(), told.who());
                let text =
                    format!("{position:>7}  {time}  {who:<12}  {:<48}  {}", told.subject(), told.what());
                writeln!(out, "{}", one_line(text.trim_end()))?;
            }
            _ => writeln!(out, "{line}")?,
        }
        if events.follow {
            out.flush()?;
        }
        *next = told.position() + 1;
    }
    Ok(())
}

pub(super) fn history(
    kind: Kind,
    name: &str,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let output = client.context.output(&[Output::Table, Output::Json, Output::Jsonl])?;
    let items = past(kind, name, client)?;
    match output {
        Output::Json => json_text(&json!({ "items": items }), out),
        Output::Jsonl => Ok(items.iter().try_for_each(|item| writeln!(out, "{item}"))?),
        _ => Ok(out.write_all(table(&items).lines("").as_bytes())?),
    }
}

/// All events about one entity.
pub(super) fn past(kind: Kind, name: &str, client: &Client<'_>) -> Result<Vec<Value>, CliError> {
    let doing = format!("read the history of {}/{name}", kind.word());
    let path = format!("{}/history", kind.path(name)?);
    let mut items: Vec<Value> = Vec::new();
    loop {
        let from = items.last().map_or(0, |item| Told(item).position() + 1);
        let query = [("from", from.to_string()), ("limit", PAGE.to_string())];
        let mut page = client.get(&doing, &path, &query)?;
        let Value::Array(found) = page["items"].take() else {
            return Err(CliError::failure(format!("{doing}: the answer has no items")));
        };
        let known = items.len();
        items.extend(found.into_iter().filter(|item| Told(item).position() >= from));
        if items.len() == known || items.len() - known < PAGE {
            return Ok(items);
        }
    }
}

pub(super) fn table(items: &[Value]) -> Rows {
    let mut rows = Rows::new(["POSITION", "TIME", "WHO", "WHAT", "WHY"]);
    for item in items {
        let told = Told(item);
        rows.add([told.position().to_string(), told.time(), told.who(), told.what(), told.why()]);
    }
    rows
}
