//! W1: durable appends of 400-byte events to the embedded journal, in process, in three ways.
//!
//! *W1*: the decider's work around its decisions, on a thread of its own. The thread collects waiting events
//! into one record, makes it durable itself if nothing else waits, and answers on delivery. *W1 left*: the
//! same, but the journal's thread always writes the record, as while a decider has more to decide. At most
//! two are in flight. *W1 alone*: each caller seals a record of its own on the chain, appends it and waits
//! for delivery. No program here writes that way, but it shows the cost of a record.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, bail};
use chancery_events::id::{Lineage, Position, Term, WriterId};
use chancery_events::record::{HeaderParts, RecordDraft, RecordHash, RecordStart};
use chancery_events::time::Time;
use chancery_journal::segments::{SegmentJournal, SegmentOptions};
use chancery_journal::{DeliverySink, Journal, JournalDelivery};

use crate::CALLERS;
use crate::baseline::BaselineLog;
use crate::load::{by_turns, round};
use crate::table::{CellResult, ResultRow};

/// Maximum number of records in flight.
const DEPTH: usize = 2;
/// Maximum number of requests collected before a record is sealed.
const BATCH: usize = 512;

/// Shared state of callers that append on their own.
struct DirectAppend {
    journal: SegmentJournal,
    end: Mutex<(Position, RecordHash)>,
    waiting: Arc<Mutex<VecDeque<SyncSender<()>>>>,
    _directory: tempfile::TempDir,
}

impl DirectAppend {
    fn open() -> Result<Arc<DirectAppend>> {
        let directory = crate::directory()?;
        let waiting: Arc<Mutex<VecDeque<SyncSender<()>>>> = Arc::default();
        let callers = Arc::clone(&waiting);
        let sink = Box::new(move |delivery: JournalDelivery| {
            if let JournalDelivery::Records(records) = delivery {
                let mut callers = callers.lock().expect("no holder panics");
                for caller in callers.drain(..records.len()) {
                    // A caller whose round has ended is dropped.
                    let _ = caller.send(());
                }
            }
        });
        let (journal, _) = SegmentJournal::open(&SegmentOptions::new(directory.path(), "bench"), sink)?;
        let end = Mutex::new((Position::ZERO, RecordHash::ZERO));
        let direct = Arc::new(DirectAppend { journal, end, waiting, _directory: directory });
        let (done, durable) = sync_channel(1);
        direct.append(
            br#"{"k":"fact","t":"term.started.v1","c":1,"d":{}}"#,
            Some(RecordStart::Term),
            done,
        )?;
        durable.recv().context("cannot receive first delivery")?;
        Ok(direct)
    }

    fn append(&self, line: &[u8], begins: Option<RecordStart>, done: SyncSender<()>) -> Result<()> {
        let mut draft = RecordDraft::new();
        draft.push(line)?;
        let mut end = self.end.lock().expect("no holder panics");
        let record = draft.seal(parts(end.0.plus(1), end.1, begins))?;
        *end = (record.last(), record.hash());
        self.waiting.lock().expect("no holder panics").push_back(done);
        Ok(self.journal.append(record)?)
    }

    fn round(callers: usize) -> Result<CellResult> {
        let direct = DirectAppend::open()?;
        let cell = round(callers, |_| Ok(direct.caller(line())))?;
        direct.journal.close()?;
        Ok(cell)
    }

    fn caller(self: &Arc<DirectAppend>, line: Vec<u8>) -> impl FnMut() -> Result<()> + Send + use<> {
        let direct = Arc::clone(self);
        let (done, durable) = sync_channel(1);
        move || {
            direct.append(&line, None, done.clone())?;
            durable.recv().context("wait")
        }
    }
}

fn parts(first: Position, prev: RecordHash, begins: Option<RecordStart>) -> HeaderParts {
    HeaderParts {
        fleet: Arc::from("bench"),
        lineage: Lineage::from_random(1),
        first,
        term: Term::FIRST,
        writer: WriterId::from_random(1),
        time: Time::from_micros(1),
        build: Arc::from("bench"),
        starts: begins,
        watermark: None,
        prev,
    }
}

/// Method of appending a group.
#[derive(Clone, Copy)]
pub(crate) enum AppendMethod {
    /// Always written by the journal's thread.
    Left,
    /// Written by the collecting thread if nothing else waits.
    Here,
}

enum CommitterInput {
    Append(Vec<u8>, SyncSender<()>),
    Durable(usize),
    Stopped(String),
    Close,
}

/// Committer that collects waiting requests.
pub(crate) struct GroupAppend {
    queue: Sender<CommitterInput>,
    committer: JoinHandle<Result<()>>,
    _directory: tempfile::TempDir,
}

impl GroupAppend {
    fn open(how: AppendMethod) -> Result<GroupAppend> {
        GroupAppend::over(how, |directory, sink| {
            let (journal, _) = SegmentJournal::open(&SegmentOptions::new(directory, "bench"), sink)?;
            Ok(Box::new(journal))
        })
    }

    /// Returns a group over a journal that is opened in a directory of its own.
    pub(crate) fn over(
        method: AppendMethod,
        open: impl FnOnce(&Path, DeliverySink) -> Result<Box<dyn Journal>>,
    ) -> Result<GroupAppend> {
        let directory = crate::directory()?;
        let (queue, words) = channel();
        let deliveries = queue.clone();
        let sink = Box::new(move |delivery: JournalDelivery| {
            let input = match delivery {
                JournalDelivery::Records(records) => CommitterInput::Durable(records.len()),
                other => CommitterInput::Stopped(format!("{other:?}")),
            };
            // The committer ends first.
            let _ = deliveries.send(input);
        });
        let journal = open(directory.path(), sink)?;
        let committer = std::thread::spawn(move || commit(&*journal, &words, method));
        Ok(GroupAppend { queue, committer, _directory: directory })
    }

    fn round(callers: usize, how: AppendMethod) -> Result<CellResult> {
        let group = GroupAppend::open(how)?;
        let cell = round(callers, |_| Ok(group.caller(line())))?;
        group.close()?;
        Ok(cell)
    }

    pub(crate) fn caller(&self, line: Vec<u8>) -> impl FnMut() -> Result<()> + Send + use<> {
        let queue = self.queue.clone();
        let (done, durable) = sync_channel(1);
        move || {
            queue.send(CommitterInput::Append(line.clone(), done.clone())).context("append")?;
            durable.recv().context("wait")
        }
    }

    pub(crate) fn close(self) -> Result<()> {
        self.queue.send(CommitterInput::Close).context("close")?;
        self.committer.join().map_err(|_| anyhow::anyhow!("the committer panicked"))?
    }
}

fn commit(journal: &dyn Journal, words: &Receiver<CommitterInput>, how: AppendMethod) -> Result<()> {
    let (mut draft, mut callers) = (RecordDraft::new(), Vec::new());
    let mut flying: VecDeque<Vec<SyncSender<()>>> = VecDeque::new();
    let (mut first, mut prev, mut begins) = (Position::FIRST, RecordHash::ZERO, Some(RecordStart::Term));
    draft.push(br#"{"k":"fact","t":"term.started.v1","c":1,"d":{}}"#)?;
    let mut next = None;
    loop {
        if next.is_none() {
            next = Some(words.recv().context("no caller is left")?);
        }
        // As many as a decider takes before it checks for due work.
        for _ in 0..BATCH {
            let Some(word) = next.take() else { break };
            match word {
                CommitterInput::Append(line, caller) => {
                    draft.push(&line)?;
                    callers.push(caller);
                }
                CommitterInput::Durable(records) => {
                    for caller in flying.drain(..records).flatten() {
                        caller.send(()).context("answer")?;
                    }
                }
                CommitterInput::Stopped(why) => bail!("the journal stopped: {why}"),
                CommitterInput::Close => return Ok(journal.close()?),
            }
            next = words.try_recv().ok();
        }
        if flying.len() < DEPTH && !draft.is_empty() {
            let parts = parts(first, prev, begins.take());
            let record = std::mem::take(&mut draft).seal(parts)?;
            (first, prev) = (record.last().plus(1), record.hash());
            flying.push_back(std::mem::take(&mut callers));
            match how {
                AppendMethod::Here if next.is_none() => journal.append_here(record)?,
                AppendMethod::Here | AppendMethod::Left => journal.append(record)?,
            }
        }
    }
}

/// Returns a line of 400 bytes.
pub(crate) fn line() -> Vec<u8> {
    let mut line = br#"{"k":"fact","t":"bench.appended.v1","c":1,"d":""#.to_vec();
    line.resize(398, b'x');
    line.extend_from_slice(br#""}"#);
    line
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut rows = Vec::new();
    for callers in CALLERS {
        let [floor, here, left, alone] = by_turns([
            Box::new(|| BaselineLog::round(callers)),
            Box::new(|| GroupAppend::round(callers, AppendMethod::Here)),
            Box::new(|| GroupAppend::round(callers, AppendMethod::Left)),
            Box::new(|| DirectAppend::round(callers)),
        ])?;
        let load = format!("{callers} callers");
        rows.push(ResultRow::new("W1", &load, here).share_of("baseline", floor.clone(), 0.8));
        rows.push(ResultRow::new("W1 left", &load, left).compared_with("baseline", floor.clone()));
        rows.push(ResultRow::new("W1 alone", load, alone).compared_with("baseline", floor));
    }
    Ok(rows)
}
