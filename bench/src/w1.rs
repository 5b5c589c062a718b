//! W1: durable appends of 400-byte events to the embedded journal, in process.
//!
//! Ours does what a decider does around its decisions: collects what waits, seals a record on the chain, appends it
//! and answers when it is delivered; at most two records are on their way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use chancery_events::id::{Lineage, Position, Term, Writer};
use chancery_events::record::{Begins, Draft, Hash, HeaderParts};
use chancery_events::time::Time;
use chancery_journal::segments::{Options, SegmentJournal};
use chancery_journal::{Delivery, Journal as _};

use crate::floor::Floor;
use crate::load::round;
use crate::table::{Row, median};
use crate::{CALLERS, ROUNDS};

/// Records on their way, at most.
const DEPTH: usize = 2;

enum Word {
    Append(Vec<u8>, SyncSender<()>),
    Durable(usize),
    Stopped(String),
    Close,
}

struct Ours {
    queue: Sender<Word>,
    committer: JoinHandle<Result<()>>,
    _folder: tempfile::TempDir,
}

impl Ours {
    fn open() -> Result<Ours> {
        let folder = crate::folder()?;
        let (queue, words) = channel();
        let told = queue.clone();
        let sink = Box::new(move |delivery: Delivery| {
            let word = match delivery {
                Delivery::Records(records) => Word::Durable(records.len()),
                other => Word::Stopped(format!("{other:?}")),
            };
            // The committer ends first.
            let _ = told.send(word);
        });
        let (journal, _) = SegmentJournal::open(&Options::new(folder.path(), "bench"), sink)?;
        let committer = std::thread::spawn(move || commit(&journal, &words));
        Ok(Ours { queue, committer, _folder: folder })
    }

    fn caller(&self, line: Vec<u8>) -> impl FnMut() -> Result<()> + Send + use<> {
        let queue = self.queue.clone();
        let (done, durable) = sync_channel(1);
        move || {
            queue.send(Word::Append(line.clone(), done.clone())).context("append")?;
            durable.recv().context("wait")
        }
    }

    fn close(self) -> Result<()> {
        self.queue.send(Word::Close).context("close")?;
        self.committer.join().map_err(|_| anyhow::anyhow!("the committer panicked"))?
    }
}

fn commit(journal: &SegmentJournal, words: &Receiver<Word>) -> Result<()> {
    let (mut draft, mut callers) = (Draft::new(), Vec::new());
    let mut flying: VecDeque<Vec<SyncSender<()>>> = VecDeque::new();
    let (mut first, mut prev, mut begins) = (Position::FIRST, Hash::ZERO, Some(Begins::Term));
    draft.push(br#"{"k":"fact","t":"term.started.v1","c":1,"d":{}}"#)?;
    loop {
        let word = match words.recv_timeout(Duration::from_secs(10)) {
            Ok(word) => word,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => bail!("nobody is left"),
        };
        for word in std::iter::once(word).chain(words.try_iter()) {
            match word {
                Word::Append(line, caller) => {
                    draft.push(&line)?;
                    callers.push(caller);
                }
                Word::Durable(records) => {
                    for caller in flying.drain(..records).flatten() {
                        caller.send(()).context("answer")?;
                    }
                }
                Word::Stopped(why) => bail!("the journal stopped: {why}"),
                Word::Close => return Ok(journal.close()?),
            }
        }
        if flying.len() < DEPTH && !draft.is_empty() {
            let parts = HeaderParts {
                fleet: Arc::from("bench"),
                lineage: Lineage::from_random(1),
                first,
                term: Term::FIRST,
                writer: Writer::from_random(1),
                time: Time::from_micros(1),
                build: Arc::from("bench"),
                begins: begins.take(),
                watermark: None,
                prev,
            };
            let record = std::mem::take(&mut draft).seal(parts)?;
            (first, prev) = (record.last().plus(1), record.hash());
            flying.push_back(std::mem::take(&mut callers));
            journal.append(record)?;
        }
    }
}

/// A line of 400 bytes.
fn line() -> Vec<u8> {
    let mut line = br#"{"k":"fact","t":"bench.appended.v1","c":1,"d":""#.to_vec();
    line.resize(398, b'x');
    line.extend_from_slice(br#""}"#);
    line
}

pub(crate) fn run() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for callers in CALLERS {
        let (mut ours, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let floor = Floor::open()?;
            floors.push(round(callers, |_| Ok(floor.caller(line())))?);
            floor.close()?;
            let journal = Ours::open()?;
            ours.push(round(callers, |_| Ok(journal.caller(line())))?);
            journal.close()?;
        }
        rows.push(Row { workload: "W1", callers, ours: median(ours), floor: median(floors) });
    }
    Ok(rows)
}
