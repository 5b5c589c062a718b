//! `get --watch`: what there is, and then each change of it, until it is interrupted.
//!
//! Rows are read as of a position; the event stream from there on says when to read again, as of a later one. A stream
//! that breaks is taken up behind the last event that came, and no read is of an earlier position than the one before:
//! so no change is missed, none comes twice, and none is taken back. Changes of one row that follow each other
//! quickly are seen as one; `events --follow` tells each step.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use chancery_events::lineage::NamedPosition;
use serde_json::{Value, json};

use super::client::Client;
use super::columns;
use super::context::{Context, Output};
use super::error::{CliError, Exit};
use super::events::follow;
use super::flags::Get;
use super::get::{list, name_of, one};
use super::kind::Kind;
use super::screen::Screen;
use super::table::Lines;

use crate::note;

/// Events that come within this time are answered by one read.
const TOGETHER: Duration = Duration::from_millis(100);

/// A row that is not as it was; of one that was removed, the last that was known.
#[derive(Clone, PartialEq, Debug)]
struct Change {
    /// Kind of the change: `added`, `changed` or `removed`.
    word: &'static str,
    name: String,
    row: Value,
}

/// The rows as they were last shown, by name.
#[derive(Debug, Default)]
struct Known(BTreeMap<String, Value>);

impl Known {
    /// Takes in all rows that there are; gives what differs, in the order in which it changed.
    fn take(&mut self, kind: Kind, items: Vec<Value>) -> Vec<Change> {
        let mut before = std::mem::take(&mut self.0);
        let mut changes = Vec::new();
        for row in items {
            let name = name_of(kind, &row);
            let word = match before.remove(&name) {
                Some(old) if old == row => None,
                Some(_) => Some("changed"),
                None => Some("added"),
            };
            changes.extend(word.map(|word| Change { word, name: name.clone(), row: row.clone() }));
            self.0.insert(name, row);
        }
        changes.sort_by_key(|change| change.row["position"].as_u64());
        let removed = before.into_iter().map(|(name, row)| Change { word: "removed", name, row });
        removed.chain(changes).collect()
    }
}

/// What comes from the thread that follows the stream.
enum Woken {
    /// An event at this position.
    At(u64),
    /// The stream broke; it is being taken up again.
    Lost(CliError),
    /// The server refuses it.
    Over(CliError),
}

pub(super) fn run(get: &Get, client: &Client<'_>, out: &mut dyn Write) -> Result<(), CliError> {
    let output = client.context.output(&[Output::Table, Output::Wide, Output::Jsonl, Output::Name])?;
    let kind = get.kind();
    let mut view = View::new(kind, output, client.context.person);
    let mut known = Known::default();
    let (items, since) = look(get, client)?;
    let changes = known.take(kind, items);
    view.show(&known, &changes, out)?;
    let woken = follower(client.context.clone(), client.named(since + 1));
    loop {
        match next(&woken)? {
            Woken::At(position) => {
                client.after(position);
                let items = look_again(get, client)?;
                let changes = known.take(kind, items);
                view.show(&known, &changes, out)?;
            }
            Woken::Lost(error) => note!("{error}; it is taken up again"),
            Woken::Over(error) => return Err(error),
        }
    }
}

/// All that is asked for, and a position that it is not older than.
fn look(get: &Get, client: &Client<'_>) -> Result<(Vec<Value>, u64), CliError> {
    let kind = get.kind();
    if let Some(name) = get.name()? {
        let row = one(client, kind, &name)?;
        let since = row["position"].as_u64().unwrap_or(0);
        return Ok((vec![row], since));
    }
    let filters: Vec<_> = get.filters.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let listed = list(client, kind, &filters, u64::MAX)?;
    Ok((listed.items, listed.since))
}

/// The same later: a server that is away comes back, and what was named may be gone.
fn look_again(get: &Get, client: &Client<'_>) -> Result<Vec<Value>, CliError> {
    let mut pause = client.context.backoff;
    loop {
        match look(get, client) {
            Ok((items, _)) => return Ok(items),
            Err(error) if error.exit == Exit::NotFound && get.name()?.is_some() => return Ok(Vec::new()),
            Err(error) if !matches!(error.exit, Exit::Unreachable | Exit::Unknown) => return Err(error),
            Err(_) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

/// Waits for news; events that come together are one.
fn next(woken: &Receiver<Woken>) -> Result<Woken, CliError> {
    let gone = || CliError::failure("follow events: the stream is no longer followed");
    let mut news = woken.recv().map_err(|_| gone())?;
    let until = Instant::now() + TOGETHER;
    while let Woken::At(_) = news {
        match woken.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(more @ Woken::At(_)) => news = more,
            // The read that follows answers for the events before it.
            Ok(Woken::Lost(_)) => {}
            Ok(over @ Woken::Over(_)) => news = over,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(news)
}

/// Follows all events: rows of one kind change with events about others.
fn follower(context: Context, from: NamedPosition) -> Receiver<Woken> {
    fn told(sender: &Sender<Woken>, news: Woken) -> Result<(), CliError> {
        // Nobody watches any more.
        sender.send(news).map_err(|_| CliError::new(Exit::Done, ""))
    }
    let (sender, woken) = channel();
    std::thread::spawn(move || {
        let client = Client::new(&context);
        let mut each = |event: &super::told::Told<'_>, _: &str| told(&sender, Woken::At(event.position()));
        let mut lost = |error: &CliError| told(&sender, Woken::Lost(error.clone()));
        loop {
            match follow(&client, &[], from, &mut each, &mut lost) {
                // Before the first event, though the rows were there: it is the same as a stream that breaks.
                Err(error) if error.exit == Exit::Unreachable => {
                    if told(&sender, Woken::Lost(error)).is_err() {
                        return;
                    }
                    std::thread::sleep(context.backoff * 5);
                }
                Err(error) => return told(&sender, Woken::Over(error)).unwrap_or(()),
                Ok(()) => return,
            }
        }
    });
    woken
}

/// How changes are shown.
enum View {
    /// All rows, drawn over what was drawn before.
    Live { kind: Kind, wide: bool, screen: Screen },
    /// A line a change.
    Lines { kind: Kind, wide: bool, lines: Lines },
    /// An object a change.
    Json(Kind),
    /// A name a change.
    Names(Kind),
}

impl View {
    fn new(kind: Kind, output: Output, person: bool) -> View {
        let wide = output == Output::Wide;
        match output {
            Output::Jsonl => View::Json(kind),
            Output::Name => View::Names(kind),
            _ if person => View::Live { kind, wide, screen: Screen::default() },
            _ => View::Lines { kind, wide, lines: Lines::default() },
        }
    }

    fn show(&mut self, known: &Known, changes: &[Change], out: &mut dyn Write) -> Result<(), CliError> {
        match self {
            View::Live { kind, wide, screen } => {
                let rows: Vec<_> = known.0.values().cloned().collect();
                let table = columns::table(*kind, &rows, *wide)?;
                let text = if rows.is_empty() { format!("no {}\n", kind.plural()) } else { table.lines("") };
                out.write_all(screen.draw(&text).as_bytes())?;
            }
            View::Lines { kind, wide, lines } => {
                for change in changes {
                    let rows = columns::table(*kind, std::slice::from_ref(&change.row), *wide)?;
                    if lines.is_new() {
                        let heads = ["CHANGE"].into_iter().chain(rows.heads());
                        out.write_all(lines.line(heads).as_bytes())?;
                    }
                    for cells in rows.cells() {
                        let cells = [change.word].into_iter().chain(cells);
                        out.write_all(lines.line(cells).as_bytes())?;
                    }
                }
            }
            View::Json(kind) => {
                for Change { word, name, row } in changes {
                    let subject = format!("{}/{name}", kind.word());
                    let line = json!({ "change": word, "subject": subject, "row": row });
                    writeln!(out, "{line}")?;
                }
            }
            View::Names(kind) => {
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

    fn words(changes: &[Change]) -> Vec<(&'static str, &str)> {
        changes.iter().map(|change| (change.word, change.name.as_str())).collect()
    }

    #[test]
    fn only_what_differs_is_told_in_the_order_of_its_change() {
        let mut known = Known::default();
        let mut take = |items: Vec<Value>| known.take(Kind::Node, items);
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
    fn events_that_come_together_are_one_and_an_end_is_not_lost() {
        let (sender, woken) = channel();
        for position in [4, 5, 6] {
            sender.send(Woken::At(position)).expect("it is listened to");
        }
        assert!(matches!(next(&woken), Ok(Woken::At(6))));
        sender.send(Woken::At(7)).expect("it is listened to");
        sender.send(Woken::Over(CliError::failure("no"))).expect("it is listened to");
        assert!(matches!(next(&woken), Ok(Woken::Over(_))));
        drop(sender);
        assert!(next(&woken).is_err());
    }
}
