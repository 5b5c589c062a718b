//! `get --watch`: shows the rows, and then each change of them, until it is interrupted.
//!
//! Rows are read as of a position; each event after that position causes another read, as of a later
//! position. A stream that fails is resumed after its last event, and no read is of an earlier position than
//! the read before. So no change is missed, repeated or reverted. Quick changes of one row are shown as one;
//! `events --follow` shows each of them.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use chancery_events::lineage::NamedPosition;
use serde_json::{Value, json};

use super::client::{ApiClient, CommandIo};
use super::columns;
use super::context::{CliContext, OutputFormat};
use super::error::{CliError, CliExit};
use super::events::follow;
use super::flags::GetArgs;
use super::get::{list_labelled, name_of, one};
use super::kind::EntityKind;
use super::order;
use super::screen::LiveScreen;
use super::table::{ABSENT, StreamTable};

use crate::note;

/// Time within which events cause only one read.
const TOGETHER: Duration = Duration::from_millis(100);

/// Word of a change that removes a row.
const REMOVED: &str = "removed";

/// Change of a row; for a removed row, with its last known content.
#[derive(Clone, PartialEq, Debug)]
struct WatchChange {
    /// Kind of the change: `added`, `changed` or `removed`.
    word: &'static str,
    name: String,
    row: Value,
}

/// Rows as last shown, by name.
#[derive(Debug, Default)]
struct WatchedRows(BTreeMap<String, Value>);

impl WatchedRows {
    /// Replaces the rows, and returns the differences in the order in which they happened.
    fn take(&mut self, kind: EntityKind, items: Vec<Value>) -> Vec<WatchChange> {
        let mut before = std::mem::take(&mut self.0);
        let mut changes = Vec::new();
        for row in items {
            let name = name_of(kind, &row);
            let word = match before.remove(&name) {
                Some(old) if old == row => None,
                Some(_) => Some("changed"),
                None => Some("added"),
            };
            changes.extend(word.map(|word| WatchChange { word, name: name.clone(), row: row.clone() }));
            self.0.insert(name, row);
        }
        changes.sort_by_key(|change| change.row["position"].as_u64());
        let removed = before.into_iter().map(|(name, row)| WatchChange { word: REMOVED, name, row });
        removed.chain(changes).collect()
    }
}

/// Signal of the thread that follows the stream.
enum WatchSignal {
    /// An event at this position.
    At(u64),
    /// The stream failed, and is being resumed.
    Lost(CliError),
    /// The server refused the stream.
    Over(CliError),
}

pub(super) fn run(get: &GetArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let output = io.client.context.output(&[
        OutputFormat::Table,
        OutputFormat::Wide,
        OutputFormat::Jsonl,
        OutputFormat::Json,
        OutputFormat::Name,
    ])?;
    let (kind, _) = get.watched()?;
    let mut view = WatchView::new(kind, output, io.client.context.person);
    let mut known = WatchedRows::default();
    let (items, since) = look(get, io.client)?;
    let changes = known.take(kind, items);
    view.show(&known, &changes, io.out)?;
    let woken = follower(io.client.context.clone(), io.client.named(since + 1));
    loop {
        match next(&woken)? {
            WatchSignal::At(position) => {
                io.client.after(position);
                let items = look_again(get, io.client)?;
                let changes = known.take(kind, items);
                view.show(&known, &changes, io.out)?;
            }
            WatchSignal::Lost(error) => {
                note!("{}; resuming", error.message.lines().next().unwrap_or_default());
            }
            WatchSignal::Over(error) => return Err(error),
        }
    }
}

/// Reads the selected rows, and a position that they are not older than.
fn look(get: &GetArgs, client: &ApiClient<'_>) -> Result<(Vec<Value>, u64), CliError> {
    let (kind, name) = get.watched()?;
    if let Some(name) = name {
        let row = one(client, kind, &name)?;
        let since = row["position"].as_u64().unwrap_or(0);
        return Ok((vec![row], since));
    }
    let filters: Vec<_> = get.filters.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let listed = list_labelled(client, kind, &filters, &get.selector, u64::MAX)?;
    Ok((listed.items, listed.since))
}

/// Reads the rows again: waits for an unreachable server, and treats a deleted entity as no rows.
fn look_again(get: &GetArgs, client: &ApiClient<'_>) -> Result<Vec<Value>, CliError> {
    let mut pause = client.context.backoff;
    loop {
        match look(get, client) {
            Ok((items, _)) => return Ok(items),
            Err(error) if error.exit == CliExit::NotFound && get.watched()?.1.is_some() => {
                return Ok(Vec::new());
            }
            Err(error) if !matches!(error.exit, CliExit::Unreachable | CliExit::Unknown) => {
                return Err(error);
            }
            Err(_) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

/// Waits for a signal; events that arrive together are one signal.
fn next(woken: &Receiver<WatchSignal>) -> Result<WatchSignal, CliError> {
    let gone = || CliError::failure("cannot follow events: the stream thread ended");
    let mut news = woken.recv().map_err(|_| gone())?;
    let until = Instant::now() + TOGETHER;
    while let WatchSignal::At(_) = news {
        match woken.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(more @ WatchSignal::At(_)) => news = more,
            // The next read covers the events before the failure.
            Ok(WatchSignal::Lost(_)) => {}
            Ok(over @ WatchSignal::Over(_)) => news = over,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(news)
}

/// Follows all events: rows of one kind change with events about others.
fn follower(context: CliContext, from: NamedPosition) -> Receiver<WatchSignal> {
    fn notify(sender: &Sender<WatchSignal>, news: WatchSignal) -> Result<(), CliError> {
        // The receiver has ended.
        sender.send(news).map_err(|_| CliError::new(CliExit::Done, ""))
    }
    let (sender, woken) = channel();
    std::thread::spawn(move || {
        let client = ApiClient::new(&context);
        let mut each = |event: &super::event_summary::EventSummary<'_>, _: &str| {
            notify(&sender, WatchSignal::At(event.position()))
        };
        let mut lost = |error: &CliError| notify(&sender, WatchSignal::Lost(error.clone()));
        loop {
            match follow(&client, &[], from, &mut each, &mut lost) {
                // A failure before the first event is treated like a stream that fails later.
                Err(error) if error.exit == CliExit::Unreachable => {
                    if notify(&sender, WatchSignal::Lost(error)).is_err() {
                        return;
                    }
                    std::thread::sleep(context.backoff * 5);
                }
                Err(error) => return notify(&sender, WatchSignal::Over(error)).unwrap_or(()),
                Ok(()) => return,
            }
        }
    });
    woken
}

/// View of changes.
enum WatchView {
    /// Table of all rows, redrawn in place.
    Live { kind: EntityKind, wide: bool, screen: LiveScreen },
    /// A line for each change.
    Lines { kind: EntityKind, wide: bool, lines: StreamTable },
    /// A JSON object for each change.
    Json(EntityKind),
    /// A name for each change.
    Names(EntityKind),
}

impl WatchView {
    fn new(kind: EntityKind, output: OutputFormat, person: bool) -> WatchView {
        let wide = output == OutputFormat::Wide;
        match output {
            OutputFormat::Jsonl | OutputFormat::Json => WatchView::Json(kind),
            OutputFormat::Name => WatchView::Names(kind),
            _ if person => WatchView::Live { kind, wide, screen: LiveScreen::default() },
            _ => WatchView::Lines { kind, wide, lines: StreamTable::default() },
        }
    }

    fn show(
        &mut self,
        known: &WatchedRows,
        changes: &[WatchChange],
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        match self {
            WatchView::Live { kind, wide, screen } => {
                let mut rows: Vec<_> = known.0.values().cloned().collect();
                order::sort(*kind, &mut rows);
                let table = columns::table(*kind, &rows, *wide)?;
                let text = if rows.is_empty() { format!("no {}\n", kind.plural()) } else { table.lines("") };
                out.write_all(screen.draw(&text).as_bytes())?;
            }
            WatchView::Lines { kind, wide, lines } => {
                for change in changes {
                    let rows = columns::table(*kind, std::slice::from_ref(&change.row), *wide)?;
                    if lines.is_new() {
                        let heads = ["CHANGE"].into_iter().chain(rows.heads());
                        out.write_all(lines.line(heads).as_bytes())?;
                    }
                    // Of a removed entity, only the name is still true.
                    let known =
                        if change.word == REMOVED { kind.entry().key.len() } else { rows.heads().count() };
                    for cells in rows.cells() {
                        let cells =
                            cells.enumerate().map(|(at, text)| if at < known { text } else { ABSENT });
                        let cells = [change.word].into_iter().chain(cells);
                        out.write_all(lines.line(cells).as_bytes())?;
                    }
                }
            }
            WatchView::Json(kind) => {
                for WatchChange { word, name, row } in changes {
                    let subject = format!("{}/{name}", kind.word());
                    let line = json!({ "change": word, "subject": subject, "row": row });
                    writeln!(out, "{line}")?;
                }
            }
            WatchView::Names(kind) => {
                for change in changes {
                    writeln!(out, "{}/{}", kind.word(), change.name)?;
                }
            }
        }
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, position: u64) -> Value {
        json!({ "name": name, "position": position })
    }

    fn words(changes: &[WatchChange]) -> Vec<(&'static str, &str)> {
        changes.iter().map(|change| (change.word, change.name.as_str())).collect()
    }

    #[test]
    fn only_what_differs_is_reported_in_the_order_of_its_change() {
        let mut known = WatchedRows::default();
        let mut take = |items: Vec<Value>| known.take(EntityKind::Node, items);
        assert_eq!(words(&take(vec![row("b", 3), row("a", 5)])), [("added", "b"), ("added", "a")]);
        assert_eq!(words(&take(vec![row("a", 5), row("b", 3)])), []);
        assert_eq!(
            words(&take(vec![row("a", 9), row("c", 7), row("b", 3)])),
            [("added", "c"), ("changed", "a")]
        );
        assert_eq!(words(&take(vec![row("a", 10)])), [("removed", "b"), ("removed", "c"), ("changed", "a")]);
        assert_eq!(words(&take(vec![row("a", 10), row("b", 12)])), [("added", "b")]);
    }

    #[test]
    fn a_removed_row_keeps_only_its_name() {
        let row = json!({
            "name": "gpu", "type": "GPU", "score": 3, "activity": "active", "version": 1,
            "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:00Z", "position": 3,
        });
        let mut known = WatchedRows::default();
        let mut view = WatchView::new(EntityKind::Capability, OutputFormat::Table, false);
        let mut out = Vec::new();
        for items in [vec![row], Vec::new()] {
            let changes = known.take(EntityKind::Capability, items);
            view.show(&known, &changes, &mut out).expect("shown");
        }
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["added", "gpu", "GPU", "3", "active"]);
        assert_eq!(lines[2], ["removed", "gpu", "-", "-", "-"]);
    }

    #[test]
    fn concurrent_events_are_merged_and_an_end_is_not_lost() {
        let (sender, woken) = channel();
        for position in [4, 5, 6] {
            sender.send(WatchSignal::At(position)).expect("the receiver exists");
        }
        assert!(matches!(next(&woken), Ok(WatchSignal::At(6))));
        sender.send(WatchSignal::At(7)).expect("the receiver exists");
        sender.send(WatchSignal::Over(CliError::failure("no"))).expect("the receiver exists");
        assert!(matches!(next(&woken), Ok(WatchSignal::Over(_))));
        drop(sender);
        assert!(next(&woken).is_err());
    }
}
