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
use chancery_events::time::Time;
use serde_json::{Value, json};

use super::client::{ApiClient, CommandIo};
use super::context::{CliContext, OutputFormat};
use super::error::{CliError, CliExit};
use super::events::follow;
use super::flags::GetArgs;
use super::get::{self, list_labelled, name_of, one};
use super::kind::EntityKind;
use super::order;
use super::screen::LiveScreen;
use super::table::{ABSENT, StreamTable, TextTable};

use crate::note;

/// Time within which events cause only one read.
const TOGETHER: Duration = Duration::from_millis(100);

/// Word of a change that adds a row.
const ADDED: &str = "added";
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
    /// Takes the first rows, and returns them as added, in their order.
    fn start(&mut self, kind: EntityKind, items: Vec<Value>) -> Vec<WatchChange> {
        let added = items.into_iter().map(|row| WatchChange { word: ADDED, name: name_of(kind, &row), row });
        let added: Vec<_> = added.collect();
        self.0.extend(added.iter().map(|change| (change.name.clone(), change.row.clone())));
        added
    }

    /// Replaces the rows, and returns the differences in the order in which they happened.
    fn take(&mut self, kind: EntityKind, items: Vec<Value>) -> Vec<WatchChange> {
        let mut before = std::mem::take(&mut self.0);
        let mut changes = Vec::new();
        for row in items {
            let name = name_of(kind, &row);
            let word = match before.remove(&name) {
                Some(old) if old == row => None,
                Some(_) => Some("changed"),
                None => Some(ADDED),
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
    let mut view = WatchView::new(get, kind, output, io.client.context.person);
    let mut known = WatchedRows::default();
    let (mut items, since) = look(get, io.client)?;
    sort(get, kind, &mut items)?;
    let changes = known.start(kind, items);
    view.show(&known, &changes, io.client.time(), io.out)?;
    let woken = follower(io.client.context.clone(), io.client.named(since + 1));
    loop {
        match next(&woken)? {
            WatchSignal::At(position) => {
                io.client.after(position);
                let items = look_again(get, io.client)?;
                let changes = known.take(kind, items);
                view.show(&known, &changes, io.client.time(), io.out)?;
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

/// Sorts the rows as requested, or by name.
fn sort(get: &GetArgs, kind: EntityKind, rows: &mut Vec<Value>) -> Result<(), CliError> {
    if let Some(field) = &get.sort_by {
        return order::sort_by(kind, rows, field);
    }
    order::sort(kind, rows);
    Ok(())
}

/// View of changes.
struct WatchView<'a> {
    get: &'a GetArgs,
    kind: EntityKind,
    is_wide: bool,
    form: WatchForm,
}

/// Form in which changes are shown.
enum WatchForm {
    /// Table of all rows, redrawn in place.
    Live(LiveScreen),
    /// A line for each change; heads before the first.
    Lines { lines: StreamTable, is_new: bool },
    /// A JSON object for each change.
    Json,
    /// A name for each change.
    Names,
}

impl<'a> WatchView<'a> {
    fn new(get: &'a GetArgs, kind: EntityKind, output: OutputFormat, person: bool) -> WatchView<'a> {
        let form = match output {
            OutputFormat::Jsonl | OutputFormat::Json => WatchForm::Json,
            OutputFormat::Name => WatchForm::Names,
            _ if person => WatchForm::Live(LiveScreen::default()),
            // Later lines have longer words in the first column.
            _ => WatchForm::Lines { lines: StreamTable::of([REMOVED.len()]), is_new: true },
        };
        WatchView { get, kind, is_wide: output == OutputFormat::Wide, form }
    }

    fn show(
        &mut self,
        known: &WatchedRows,
        changes: &[WatchChange],
        now: Time,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let kind = self.kind;
        match &mut self.form {
            WatchForm::Live(screen) => {
                let mut rows: Vec<_> = known.0.values().cloned().collect();
                // A field that no row has any more orders nothing.
                if sort(self.get, kind, &mut rows).is_err() {
                    order::sort(kind, &mut rows);
                }
                let table = get::table(kind, &rows, self.is_wide, now)?;
                let table = if self.get.no_headers { table.without_heads() } else { table };
                let text = if rows.is_empty() { format!("no {}\n", kind.plural()) } else { table.lines("") };
                out.write_all(screen.draw(&text).as_bytes())?;
            }
            WatchForm::Lines { lines, is_new } if !changes.is_empty() => {
                let mut rows = changed(kind, changes, self.is_wide, now)?;
                if !std::mem::take(is_new) || self.get.no_headers {
                    rows = rows.without_heads();
                }
                out.write_all(lines.lines(&rows, "").as_bytes())?;
            }
            WatchForm::Lines { .. } => {}
            WatchForm::Json => {
                for WatchChange { word, name, row } in changes {
                    let subject = format!("{}/{name}", kind.word());
                    let line = json!({ "change": word, "subject": subject, "row": row });
                    writeln!(out, "{line}")?;
                }
            }
            WatchForm::Names => {
                for change in changes {
                    writeln!(out, "{}/{}", kind.word(), change.name)?;
                }
            }
        }
        Ok(out.flush()?)
    }
}

/// Returns a line for each change. Of a removed entity, only the name is still true.
fn changed(
    kind: EntityKind,
    changes: &[WatchChange],
    is_wide: bool,
    now: Time,
) -> Result<TextTable, CliError> {
    let rows: Vec<_> = changes.iter().map(|change| change.row.clone()).collect();
    let rows = get::table(kind, &rows, is_wide, now)?;
    let mut table = TextTable::new(["CHANGE"].into_iter().chain(rows.heads()));
    for (change, cells) in changes.iter().zip(rows.cells()) {
        let known = if change.word == REMOVED { kind.entry().key.len() } else { usize::MAX };
        let cells = cells.enumerate().map(|(at, text)| if at < known { text } else { ABSENT });
        table.add([change.word].into_iter().chain(cells));
    }
    Ok(table)
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

    /// Returns the lines of changes that these states cause, with further flags of `get capabilities --watch`.
    fn watched(flags: &[&str], states: &[&[Value]]) -> String {
        #[derive(clap::Parser)]
        struct TestCommand {
            #[command(flatten)]
            get: GetArgs,
        }
        let words = ["get", "capabilities", "--watch"].iter().chain(flags);
        let get = <TestCommand as clap::Parser>::try_parse_from(words).expect("flags").get;
        let mut known = WatchedRows::default();
        let mut view = WatchView::new(&get, EntityKind::Capability, OutputFormat::Table, false);
        let mut out = Vec::new();
        let now = "2026-11-21T09:30:00Z".parse().expect("a time");
        for (at, items) in states.iter().enumerate() {
            let mut items = items.to_vec();
            sort(&get, EntityKind::Capability, &mut items).expect("sorted");
            let start = at == 0;
            let changes = if start {
                known.start(EntityKind::Capability, items)
            } else {
                known.take(EntityKind::Capability, items)
            };
            view.show(&known, &changes, now, &mut out).expect("shown");
        }
        String::from_utf8(out).expect("text")
    }

    fn capability(name: &str, score: u64) -> Value {
        json!({
            "name": name, "type": "GPU", "score": score, "activity": "active", "version": 1, "position": score,
            "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:00Z",
        })
    }

    #[test]
    fn the_first_rows_are_aligned_and_sorted_as_requested() {
        let rows = [capability("a-very-long-name", 3), capability("b", 20), capability("c", 1)];
        let text = watched(&[], &[&rows]);
        let ends: Vec<_> =
            text.lines().map(|line| line.find(if line.contains("TYPE") { "TYPE" } else { "GPU" })).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "{text}");
        let text = watched(&["--no-headers", "--sort-by", "score"], &[&rows, &rows[..2]]);
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
        let wanted = [["added", "c"], ["added", "a-very-long-name"], ["added", "b"], ["removed", "c"]];
        assert_eq!(lines, wanted, "{text}");
    }

    #[test]
    fn a_removed_row_keeps_only_its_name() {
        let row = capability("gpu", 3);
        let text = watched(&[], &[&[row], &[]]);
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["added", "gpu", "GPU", "3", "active", "30m"]);
        assert_eq!(lines[2], ["removed", "gpu", "-", "-", "-", "-"]);
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
