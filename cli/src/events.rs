//! `events` and `history`: the journal of the fleet or of one entity. A followed stream that fails is resumed
//! where it ended: every event is shown once and in order.

use std::io::{BufRead as _, BufReader, Write};
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::lineage::NamedPosition;
use serde_json::{Value, json};

use super::client::{ApiClient, CommandIo};
use super::context::OutputFormat;
use super::error::{CliError, CliExit};
use super::event_summary::EventSummary;
use super::flags::EventsArgs;
use super::get::json_text;
use super::kind::{EntityKind, KindNaming as _};
use super::short_id;
use super::table::{StreamTable, TextTable};

use crate::note;

/// Number of events in a page of a history.
const PAGE: usize = 500;
/// Maximum time before a failed stream is resumed.
const LONGEST: Duration = Duration::from_secs(5);

/// Minimum widths of the columns of a stream, in characters; later events are seldom wider.
const WIDTHS: [usize; 4] = [8, 20, 8, 24];

pub(super) fn run(events: &EventsArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let output = io.client.context.output(&[OutputFormat::Table, OutputFormat::Jsonl, OutputFormat::Json])?;
    let mut query = Vec::new();
    if let Some(subject) = &events.subject {
        // The server reports the error in a subject of another form.
        query.push((
            "subject",
            match EntityKind::split(subject) {
                Ok((kind, name)) => format!("{}/{}", kind.word(), short_id::resolve(io.client, kind, name)?),
                Err(_) => subject.clone(),
            },
        ));
    }
    if !events.types.is_empty() {
        query.push(("types", events.types.join(",")));
    }
    let mut show = EventPrinter {
        output,
        rows: TextTable::new(HEADS),
        lines: StreamTable::of(WIDTHS),
        out: &mut *io.out,
    };
    if !events.follow {
        query.push(("follow", "false".to_owned()));
        let mut next = events.from;
        pass_on(io.client, &query, &mut next, &mut |summary, line| show.keep(summary, line))?;
        return show.flush();
    }
    let mut each = |summary: &EventSummary<'_>, line: &str| {
        show.keep(summary, line)?;
        show.flush()
    };
    let mut lost = |error: &CliError| {
        note!("{}; resuming", error.message.lines().next().unwrap_or_default());
        Ok(())
    };
    follow(io.client, &query, events.from, &mut each, &mut lost)
}

const HEADS: [&str; 5] = ["POSITION", "TIME", "ACTOR", "SUBJECT", "WHAT"];

/// Printer of events.
struct EventPrinter<'a> {
    output: OutputFormat,
    /// Rows that wait until the widths of their columns are known; only the first ones have heads.
    rows: TextTable,
    lines: StreamTable,
    out: &'a mut dyn Write,
}

impl EventPrinter<'_> {
    fn keep(&mut self, summary: &EventSummary<'_>, line: &str) -> Result<(), CliError> {
        if self.output != OutputFormat::Table {
            return Ok(writeln!(self.out, "{line}")?);
        }
        self.rows.add([
            summary.position().to_string(),
            summary.time(),
            summary.initiator(),
            summary.subject().to_owned(),
            summary.what(),
        ]);
        if self.rows.cells().count() == PAGE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), CliError> {
        if !self.rows.is_empty() {
            let rows = std::mem::replace(&mut self.rows, TextTable::new(HEADS).without_heads());
            self.out.write_all(self.lines.lines(&rows, "").as_bytes())?;
        }
        Ok(self.out.flush()?)
    }
}

/// Callback for each event, with its line of JSON.
type EventCallback<'a> = dyn FnMut(&EventSummary<'_>, &str) -> Result<(), CliError> + 'a;

/// Passes events on from a position, without end. A stream that fails is resumed after its last event.
pub(super) fn follow(
    client: &ApiClient<'_>,
    query: &[(&str, String)],
    from: NamedPosition,
    each: &mut EventCallback<'_>,
    lost: &mut dyn FnMut(&CliError) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let query = [query, &[("follow", "true".to_owned())]].concat();
    let (mut next, mut pause, mut connected, mut reported) = (from, client.context.backoff, false, false);
    loop {
        let before = next;
        let ended = pass_on(client, &query, &mut next, &mut |event, line| {
            reported = false;
            each(event, line)
        });
        let error = match ended {
            Ok(()) => CliError::new(CliExit::Unreachable, "cannot read events: the server ended the stream"),
            // The output is closed, or the server refuses: another attempt would fail too.
            Err(error) if !matches!(error.exit, CliExit::Unreachable | CliExit::Unknown) => {
                return Err(error);
            }
            // The first connection fails immediately; later connections are retried.
            Err(error) if !connected && error.exit == CliExit::Unreachable => return Err(error),
            Err(error) => error,
        };
        connected = true;
        if !std::mem::replace(&mut reported, true) {
            lost(&error)?;
        }
        pause =
            if next.position > before.position { client.context.backoff } else { (pause * 2).min(LONGEST) };
        std::thread::sleep(pause);
    }
}

/// Passes on the events of one stream until it ends, and moves `next` behind the last of them.
fn pass_on(
    client: &ApiClient<'_>,
    query: &[(&str, String)],
    next: &mut NamedPosition,
    each: &mut EventCallback<'_>,
) -> Result<(), CliError> {
    let query = [query, &[("from", next.to_string())]].concat();
    let stream = client.stream("cannot read events", "/events", &query, "application/x-ndjson")?;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(|error| {
            CliError::new(
                CliExit::Unknown,
                format!("cannot read events: the stream failed before position {}: {error}", next.position),
            )
        })?;
        if line.is_empty() {
            continue;
        }
        let event: Value = serde_json::from_str(&line)
            .map_err(|error| CliError::failure(format!("cannot read events: invalid line: {error}")))?;
        let summary = EventSummary(&event);
        each(&summary, &line)?;
        // With its lineage, a position of another history is refused instead of continued.
        *next = NamedPosition { position: Position::new(summary.position() + 1), lineage: summary.lineage() };
    }
    Ok(())
}

pub(super) fn history(kind: EntityKind, name: &str, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let output = io.client.context.output(&[OutputFormat::Table, OutputFormat::Json, OutputFormat::Jsonl])?;
    let items = past(kind, &short_id::resolve(io.client, kind, name)?, io.client)?;
    match output {
        OutputFormat::Json => json_text(&json!({ "items": items }), io.out),
        OutputFormat::Jsonl => Ok(items.iter().try_for_each(|item| writeln!(io.out, "{item}"))?),
        _ => Ok(io.out.write_all(table(&items).lines("").as_bytes())?),
    }
}

/// Returns all events about one entity.
pub(super) fn past(kind: EntityKind, name: &str, client: &ApiClient<'_>) -> Result<Vec<Value>, CliError> {
    let doing = format!("cannot read history of {}/{name}", kind.word());
    // The history of a disruption is part of its node's.
    let own = match kind {
        EntityKind::Disruption => Some(kind.halves(name)?.1),
        _ => None,
    };
    let path = format!("{}/history", kind.path_of(name)?);
    let (mut items, mut from) = (Vec::new(), 0);
    loop {
        let query = [("from", from.to_string()), ("limit", PAGE.to_string())];
        let mut page = client.get(&doing, &path, &query)?;
        let Value::Array(found) = page["items"].take() else {
            return Err(CliError::failure(format!("{doing}: the answer has no items")));
        };
        items.extend(found.into_iter().filter(|item| own.is_none_or(|own| is_about_disruption(item, own))));
        match page["next_from"].as_u64() {
            Some(next) => from = next,
            None => return Ok(items),
        }
    }
}

fn is_about_disruption(item: &Value, name: &str) -> bool {
    EventSummary(item).type_name().starts_with("disruption.") && item["data"]["name"] == name
}

pub(super) fn table(items: &[Value]) -> TextTable {
    let mut rows = TextTable::new(["POSITION", "TIME", "INITIATOR", "WHAT", "WHY"]);
    for item in items {
        let summary = EventSummary(item);
        rows.add([
            summary.position().to_string(),
            summary.time(),
            summary.initiator(),
            summary.what(),
            summary.why(),
        ]);
    }
    rows
}
