//! Filling an empty partition from a folder: with all records of its journal, byte for byte, or with none.
//!
//! A server that found half of a history would take it for the whole and go on from there. So all records are sent in
//! one transaction of Kafka, and readers take what is committed alone ([`super::client`]).
//!
//! | what happens | what counts in the partition afterwards |
//! |---|---|
//! | all goes well | every record |
//! | this process or its machine dies | nothing: whoever fills it next ends what was left open; else the brokers do, after the transaction's time |
//! | a broker dies | every record, once another one leads; if that takes too long, nothing |
//! | it takes longer than a transaction may | nothing |
//! | the brokers do not say whether they have committed | every record or nothing: whoever fills it next looks first |
//! | it holds these very records already | those: there is nothing to do |
//! | it holds anything else | that: nothing is sent |
//! | a server begins a journal there meanwhile | its own, if its record stands before the first of ours: then nothing is committed; else ours, as its record continues nothing |
//!
//! What must stay true: the folder says that it is a mirror before its records may count in the topic, so that no
//! server goes on from it by itself; and it is as it was if they do not.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chancery_events::id::Position;
use chancery_events::record::Record;
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::compare::{Comparison, Held, Other};
use super::open::{OpenError, Partition};
use super::place::{Before, Place};
use super::reader::PartitionReader;
use super::rest::{Rest, Unread, cluster, watermarks};
use super::{KafkaJournal, Options, lock};
use crate::chain::Cursor;
use crate::journal::{CloseError, Journal as _, ReadError, Source};
use crate::segments::{self, Outcome, SegmentJournal, VerifyError, verify};

/// How long the beginning and the end of a transaction may take.
const SETTLING: Duration = Duration::from_mins(1);
/// How long brokers may send nothing while what was written is read back.
const SILENCE: Duration = Duration::from_mins(2);
/// How long to wait before the brokers are asked again.
const PAUSE: Duration = Duration::from_millis(50);
const MEGABYTE: u64 = 1_000_000;
const WRITE: &str = "write to";
const COMMIT: &str = "commit what was written to";

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// Whether there was something to do.
    pub found: Found,
    /// How many records the partition holds now.
    pub records: u64,
    /// How many bytes they have.
    pub bytes: u64,
    /// The last of them.
    pub head: Cursor,
}

/// How the partition was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Without a record.
    Empty,
    /// With all of them, as a command that was cut off leaves it.
    Filled,
}

/// A partition could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// See to the folder's disk.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// There is nothing to fill it with: name another folder, or another fleet.
    #[error("{} holds no record", .0.display())]
    Empty(PathBuf),
    /// Take another server's copy.
    #[error(
        "{} is damaged at byte {}, position {}: {}. Take a copy of this journal that is whole",
        .0.file.display(), .0.offset, .0.position, .0.reason
    )]
    Damaged(segments::Finding),
    /// Take a copy that reaches further, or have the tail cut.
    #[error(
        "{} is torn at byte {}, position {}: {}. Take a copy of this journal that reaches further, if there is one; \
         else start the folder's server once: whether it then goes on or refuses to, it cuts the tail, and keeps what it \
         cuts",
        .0.file.display(), .0.offset, .0.position, .0.reason
    )]
    Torn(segments::Finding),
    /// Stop whoever has the folder open, or see why it cannot be opened.
    #[error(transparent)]
    Source(#[from] segments::OpenError),
    /// See to the folder's disk.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The folder's writer stopped.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// Say elsewhere where the records are to go, or have the topic made anew.
    #[error("{place} is not empty: {found}")]
    NotEmpty {
        /// Where.
        place: Box<Partition>,
        /// What it holds.
        found: Other,
    },
    /// Its history goes on elsewhere: import what was never on Kafka, or say that the other topic is lost.
    #[error(
        "{} is the mirror of partition {partition} of topic {topic}: a second copy would begin a second history. If that \
         topic is lost, stop all servers of the fleet, and remove kafka.json there",
        .dir.display()
    )]
    Mirror {
        /// The folder.
        dir: PathBuf,
        /// Of which topic.
        topic: Arc<str>,
        /// Of which partition.
        partition: i32,
    },
    /// The cluster could not be asked.
    #[error(transparent)]
    Cluster(#[from] OpenError),
    /// Nothing was written that counts: try again.
    #[error("{doing} {place}; nothing of it counts, and the same may be tried again")]
    Refused {
        /// What was being done.
        doing: &'static str,
        /// Where.
        place: Box<Partition>,
        /// Why not.
        source: Box<KafkaError>,
    },
    /// Nothing was written that counts: allow more time, here and by the brokers.
    #[error(
        "write to {place}: {sent} of {records} records ({sent_mb} of {mb} MB) were sent in {} s, and a transaction may take \
         no longer; nothing of it counts. For a longer one, raise transaction.max.timeout.ms of the brokers (15 minutes \
         unless set), and give --timeout a minute less than that", .time.as_secs()
    )]
    TooLong {
        /// Where.
        place: Box<Partition>,
        /// How many records were sent.
        sent: u64,
        /// Of how many.
        records: u64,
        /// How much was sent, in megabytes.
        sent_mb: u64,
        /// Of how much.
        mb: u64,
        /// How long it was tried.
        time: Duration,
    },
    /// It may be committed or not: try again, which looks.
    #[error(
        "{doing} {place}: all records count there, or none; which, is not known. The same command looks, and does what is \
         left to do"
    )]
    Unsettled {
        /// What was being done.
        doing: &'static str,
        /// Where.
        place: Box<Partition>,
        /// Why it is not known.
        source: Box<KafkaError>,
    },
    /// See to the folder's disk.
    #[error("keep in {} whether it is a mirror", .dir.display())]
    Mark {
        /// The folder.
        dir: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// It was committed, and is not what a server finds: somebody else writes there, or the brokers lost it.
    #[error("{place} was filled, and now a server finds something else there: {found}")]
    Differs {
        /// Where.
        place: Box<Partition>,
        /// What is found.
        found: String,
    },
}

/// Fills the partition with the records of the folder that is to be its mirror; reads it back, and opens it as a server
/// does. Blocks, as long as that takes. What is written is written within `time`, and what brokers allow a transaction is
/// a minute more: fifteen minutes, unless they are told otherwise.
pub fn fill(options: &Options, time: Duration) -> Result<Filled, FillError> {
    // What is read back must come: a server waits for brokers that are away, a command says so.
    let options = &Options { silence: Some(options.silence.unwrap_or(SILENCE)), ..options.clone() };
    let dir = &options.mirror.dir;
    let report = verify(dir)?;
    match report.outcome {
        _ if report.is_open => return Err(segments::OpenError::Locked { dir: dir.clone() }.into()),
        Outcome::Sound => {}
        Outcome::Torn(found) => return Err(FillError::Torn(found)),
        Outcome::Damaged(found) => return Err(FillError::Damaged(found)),
    }
    let Some(head) = report.head else { return Err(FillError::Empty(dir.clone())) };
    if let Some((topic, partition)) = Place::of_another(dir, &options.topic, options.partition) {
        return Err(FillError::Mirror { dir: dir.clone(), topic, partition });
    }
    let (journal, _) = SegmentJournal::open(&options.mirror, Box::new(|_| ()))?;
    let source = journal.source();
    let (records, bytes) = (report.records, report.bytes);
    let filling = Filling::begin(options, &*source, Size { records, bytes }, time)?;
    let found = filling.fill()?;
    drop(filling);
    drop(source);
    journal.close()?;
    open_as_a_server(options, &head)?;
    Ok(Filled { found, records, bytes, head })
}

/// The last look: what a server would find.
fn open_as_a_server(options: &Options, head: &Cursor) -> Result<(), FillError> {
    let (journal, opened) = KafkaJournal::open(options, Box::new(|_| ()))?;
    journal.close()?;
    match opened.head {
        Some(found) if found == *head => Ok(()),
        Some(found) => Err(differs(options, format!("its last record ends at position {}", found.position))),
        None => Err(differs(options, "nothing".into())),
    }
}

fn differs(options: &Options, found: String) -> FillError {
    FillError::Differs { place: Box::new(Partition::of(options)), found }
}

/// How much there is to write, or was.
#[derive(Clone, Copy)]
struct Size {
    records: u64,
    bytes: u64,
}

/// Hears why something could not be written.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Option<KafkaError>>>);

impl ClientContext for Heard {}

impl ProducerContext for Heard {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            lock(&self.0).get_or_insert_with(|| error.clone());
        }
    }
}

/// A producer whose transactions are the only ones of its name.
struct Filling<'a> {
    options: &'a Options,
    source: &'a dyn Source,
    size: Size,
    time: Duration,
    producer: ThreadedProducer<Heard>,
    heard: Heard,
}

impl<'a> Filling<'a> {
    /// Ends whatever an earlier one of the same name has left open, and shuts it out.
    fn begin(
        options: &'a Options,
        source: &'a dyn Source,
        size: Size,
        time: Duration,
    ) -> Result<Filling<'a>, FillError> {
        // Says more clearly what is wrong, if there are no brokers or no topic.
        watermarks(options)?;
        let name = format!("{}.import.{}", options.topic, options.partition);
        let config = options.client.filler(&name, time + SETTLING, SETTLING);
        let heard = Heard::default();
        let producer = config.create_with_context(heard.clone());
        let producer: ThreadedProducer<Heard> = producer.map_err(refused(options, "make a producer for"))?;
        patiently(|time| producer.init_transactions(time)).map_err(refused(options, "begin to write to"))?;
        Ok(Filling { options, source, size, time, producer, heard })
    }

    /// Writes everything if nothing is there, and looks what is there then.
    fn fill(&self) -> Result<Found, FillError> {
        let (found, place) = match self.held()? {
            Held::All(place) => (Found::Filled, place),
            Held::Other(found) => return Err(self.not_empty(found)),
            Held::Nothing => {
                self.write()?;
                (Found::Empty, self.written()?)
            }
        };
        self.mark(&place)?;
        Ok(found)
    }

    /// What is committed in the partition, beside the journal.
    fn held(&self) -> Result<Held, FillError> {
        let options = self.options;
        let (begins, ends) = watermarks(options)?;
        if begins > 0 {
            return Ok(Held::Other(Other::BeginsLate(begins)));
        }
        let reader = PartitionReader::open(&options.client, &options.topic, options.partition, begins);
        let mut reader = reader.map_err(cluster(options, "read"))?;
        let mut rest = Rest::new(options, &mut reader, begins, ends);
        let mut comparison = Comparison::new(self.source, &options.mirror.fleet, self.unknown())?;
        loop {
            match rest.next() {
                Ok(Some(value)) => {
                    if let Some(other) = comparison.take(value)? {
                        return Ok(Held::Other(other));
                    }
                }
                Ok(None) => return Ok(comparison.end()?),
                Err(Unread::Gone(gone)) => return Ok(Held::Other(Other::Gone(gone.to_string()))),
                Err(Unread::Cluster(error)) => return Err(error.into()),
            }
        }
    }

    /// One transaction: all records, or nothing.
    fn write(&self) -> Result<(), FillError> {
        let dir = &self.options.mirror.dir;
        let before = Before::read(dir).map_err(|error| self.unmarked(error))?;
        self.producer.begin_transaction().map_err(refused(self.options, "begin to write to"))?;
        if let Err(error) = self.send_all().and_then(|()| self.mark(&self.unknown())) {
            return Err(self.take_back(&before, error));
        }
        match patiently(|time| self.producer.commit_transaction(time)) {
            Ok(()) => Ok(()),
            Err(KafkaError::Transaction(error)) if error.txn_requires_abort() => {
                let error = refused(self.options, COMMIT)(KafkaError::Transaction(error));
                Err(self.take_back(&before, error))
            }
            Err(error) => Err(self.unsettled(COMMIT, error)),
        }
    }

    /// Sends everything, and waits until it is on all brokers in sync.
    fn send_all(&self) -> Result<(), FillError> {
        let mut sending =
            Sending { filling: self, began: Instant::now(), sent: Size { records: 0, bytes: 0 } };
        for record in self.source.records(Position::FIRST)? {
            let record = record?;
            sending.send(&record)?;
            if sending.sent.records == 1 {
                sending.flush()?;
                // Behind it no other history can begin any more. One that began before has its way.
                match self.held()? {
                    Held::Nothing => {}
                    Held::All(_) => return Err(self.not_empty(Other::Meanwhile)),
                    Held::Other(found) => return Err(self.not_empty(found)),
                }
            }
        }
        sending.flush()
    }

    /// Gives the transaction up, and says why. The folder is as it was then, if it is certain that nothing counts.
    fn take_back(&self, before: &Before, why: FillError) -> FillError {
        match patiently(|time| self.producer.abort_transaction(time)) {
            Ok(()) => match before.put_back(&self.options.mirror.dir) {
                Ok(()) => why,
                Err(error) => self.unmarked(error),
            },
            Err(error) => {
                tracing::warn!(why = &why as &dyn std::error::Error, "what was written is given up");
                self.unsettled("give up what was written to", error)
            }
        }
    }

    /// Waits until what was committed can be read: the brokers say that it is decided before readers see it.
    fn written(&self) -> Result<Place, FillError> {
        let began = Instant::now();
        loop {
            match self.held()? {
                Held::All(place) => return Ok(place),
                Held::Other(found) => return Err(differs(self.options, found.to_string())),
                Held::Nothing if began.elapsed() > SETTLING => {
                    return Err(differs(self.options, "nothing".into()));
                }
                Held::Nothing => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Before every record of the partition.
    fn unknown(&self) -> Place {
        Place::unknown(&self.options.topic, self.options.partition)
    }

    fn mark(&self, place: &Place) -> Result<(), FillError> {
        place.mark(&self.options.mirror.dir).map_err(|error| self.unmarked(error))
    }

    fn unmarked(&self, source: io::Error) -> FillError {
        FillError::Mark { dir: self.options.mirror.dir.clone(), source }
    }

    fn not_empty(&self, found: Other) -> FillError {
        FillError::NotEmpty { place: Box::new(Partition::of(self.options)), found }
    }

    fn unsettled(&self, doing: &'static str, error: KafkaError) -> FillError {
        FillError::Unsettled { doing, place: Box::new(Partition::of(self.options)), source: Box::new(error) }
    }
}

fn refused(options: &Options, doing: &'static str) -> impl FnOnce(KafkaError) -> FillError {
    let place = Box::new(Partition::of(options));
    move |source| FillError::Refused { doing, place, source: Box::new(source) }
}

/// Asks the brokers again while they say that this may help.
fn patiently(mut ask: impl FnMut(Duration) -> Result<(), KafkaError>) -> Result<(), KafkaError> {
    let until = Instant::now() + SETTLING;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match ask(left) {
            Err(KafkaError::Transaction(error)) if error.is_retriable() && !left.is_zero() => {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// What is on its way.
struct Sending<'a> {
    filling: &'a Filling<'a>,
    began: Instant,
    sent: Size,
}

impl Sending<'_> {
    /// Leaves a record to the producer, once there is room: what waits in memory is bounded by its queue.
    fn send(&mut self, record: &Record) -> Result<(), FillError> {
        let Filling { options, producer, .. } = self.filling;
        loop {
            let to = BaseRecord::<(), [u8]>::to(&options.topic).partition(options.partition);
            match producer.send(to.payload(record.bytes())) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(Code::QueueFull), _)) => self.wait()?,
                Err((error, _)) => return Err(refused(options, WRITE)(error)),
            }
        }
        self.sent.records += 1;
        self.sent.bytes += record.bytes().len() as u64;
        self.look()
    }

    /// Waits until everything is where it is to be.
    fn flush(&self) -> Result<(), FillError> {
        while self.filling.producer.in_flight_count() > 0 {
            self.wait()?;
        }
        self.look()
    }

    fn wait(&self) -> Result<(), FillError> {
        std::thread::sleep(PAUSE);
        self.look()
    }

    /// Whether to go on.
    fn look(&self) -> Result<(), FillError> {
        let Filling { options, size, time, heard, .. } = self.filling;
        if let Some(error) = lock(&heard.0).take() {
            return Err(refused(options, WRITE)(error));
        }
        if self.began.elapsed() > *time {
            return Err(FillError::TooLong {
                place: Box::new(Partition::of(options)),
                sent: self.sent.records,
                records: size.records,
                sent_mb: self.sent.bytes / MEGABYTE,
                mb: size.bytes / MEGABYTE,
                time: *time,
            });
        }
        Ok(())
    }
}
