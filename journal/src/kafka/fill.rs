//! Import of a directory into an empty partition: all records of its journal, byte for byte, or none.
//!
//! A server that found half of a history would take it for all of it and continue there. So all records are
//! sent in one transaction of Kafka, and readers read only committed records ([`super::client`]).
//!
//! | event | valid records in the partition afterwards |
//! |---|---|
//! | success | all |
//! | this process or its machine dies | none: the next import ends the transaction; else the brokers do, after its timeout |
//! | a broker dies | all, once another one leads; if that takes too long, none |
//! | it takes longer than a transaction may | none |
//! | the brokers do not report whether they committed | all or none: the next import checks first |
//! | the partition contains exactly these records | these: there is nothing to do |
//! | the partition contains anything else | that: nothing is sent |
//! | a server starts a journal there meanwhile | its own, if its record precedes the first of ours: then nothing is committed; else ours, as its record continues nothing |
//!
//! Invariant: the directory is marked as a mirror before its records may count in the topic, so that no
//! server continues from it alone. The directory is restored if the records do not count.

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

/// Time limit for the start and the end of a transaction.
const SETTLING: Duration = Duration::from_mins(1);
/// Time without data from the brokers until reading back fails.
const SILENCE: Duration = Duration::from_mins(2);
/// Pause before the brokers are asked again.
const PAUSE: Duration = Duration::from_millis(50);
const MEGABYTE: u64 = 1_000_000;
const WRITE: &str = "write to";
const COMMIT: &str = "commit what was written to";

/// Result of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// State of the partition before.
    pub found: Found,
    /// Number of records in the partition.
    pub records: u64,
    /// Size of the records in bytes.
    pub bytes: u64,
    /// Cursor after the last record.
    pub head: Cursor,
}

/// State in which a partition was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// No records.
    Empty,
    /// All records already, as an interrupted command leaves it.
    Filled,
}

/// Reason why a partition could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// The directory cannot be read.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The journal is empty: the directory or the fleet is wrong.
    #[error("{} holds no record", .0.display())]
    Empty(PathBuf),
    /// The journal is damaged: another server's copy is needed.
    #[error(
        "{} is damaged at byte {}, position {}: {}. Take a copy of this journal that is whole",
        .0.file.display(), .0.offset, .0.position, .0.reason
    )]
    Damaged(segments::Finding),
    /// The tail is torn: a longer copy is needed, or the tail must be truncated.
    #[error(
        "{} is torn at byte {}, position {}: {}. Take a copy of this journal that reaches further, if there is one; \
         else start the folder's server once: whether it then goes on or refuses to, it cuts the tail, and keeps what it \
         cuts",
        .0.file.display(), .0.offset, .0.position, .0.reason
    )]
    Torn(segments::Finding),
    /// Another process has the directory open, or it cannot be opened.
    #[error(transparent)]
    Source(#[from] segments::OpenError),
    /// The directory's journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The directory's writer stopped.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The partition is in use: another destination or a new topic is needed.
    #[error("{place} is not empty: {found}")]
    NotEmpty {
        /// Partition concerned.
        place: Box<Partition>,
        /// Content of the partition.
        found: Other,
    },
    /// The directory mirrors another topic, where its history continues. An import is possible only if that
    /// topic is lost.
    #[error(
        "{} is the mirror of partition {partition} of topic {topic}: a second copy would begin a second history. If that \
         topic is lost, stop all servers of the fleet, and remove kafka.json there",
        .dir.display()
    )]
    Mirror {
        /// Directory of the mirror.
        dir: PathBuf,
        /// Topic of the mirror.
        topic: Arc<str>,
        /// Partition of the mirror.
        partition: i32,
    },
    /// The cluster did not answer.
    #[error(transparent)]
    Cluster(#[from] OpenError),
    /// Nothing that counts was written: the import can be retried.
    #[error("{doing} {place}; nothing of it counts, and the same may be tried again")]
    Refused {
        /// Failed operation.
        doing: &'static str,
        /// Partition concerned.
        place: Box<Partition>,
        /// Error of the client.
        source: Box<KafkaError>,
    },
    /// Nothing that counts was written: the import and the brokers must allow more time.
    #[error(
        "write to {place}: {sent} of {records} records ({sent_mb} of {mb} MB) were sent in {} s, and a transaction may take \
         no longer; nothing of it counts. For a longer one, raise transaction.max.timeout.ms of the brokers (15 minutes \
         unless set), and give --timeout a minute less than that", .time.as_secs()
    )]
    TooLong {
        /// Partition concerned.
        place: Box<Partition>,
        /// Number of records sent.
        sent: u64,
        /// Number of records in total.
        records: u64,
        /// Megabytes sent.
        sent_mb: u64,
        /// Megabytes in total.
        mb: u64,
        /// Time spent.
        time: Duration,
    },
    /// The commit may have succeeded: a retry checks.
    #[error(
        "{doing} {place}: all records count there, or none; which, is not known. The same command looks, and does what is \
         left to do"
    )]
    Unsettled {
        /// Failed operation.
        doing: &'static str,
        /// Partition concerned.
        place: Box<Partition>,
        /// Error of the client.
        source: Box<KafkaError>,
    },
    /// The directory cannot be marked as a mirror, or unmarked.
    #[error("keep in {} whether it is a mirror", .dir.display())]
    Mark {
        /// Directory of the journal.
        dir: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// The import was committed, but a server finds something else: another client writes there, or the
    /// brokers lost data.
    #[error("{place} was filled, and now a server finds something else there: {found}")]
    Differs {
        /// Partition concerned.
        place: Box<Partition>,
        /// Content found, in words.
        found: String,
    },
}

/// Fills the partition with the records of the directory that becomes its mirror, reads it back, and opens it
/// as a server does. Blocks until then. Writing may take `time`, and the transaction a minute more; brokers
/// allow fifteen minutes by default.
pub fn fill(options: &Options, time: Duration) -> Result<Filled, FillError> {
    // Reading back must succeed: a server waits for missing brokers, a command reports them.
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

/// Checks what a server would find.
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

#[derive(Clone, Copy)]
struct Size {
    records: u64,
    bytes: u64,
}

/// Delivery callback that keeps the first error.
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

/// Import, whose producer fences all others with its transactional id.
struct Filling<'a> {
    options: &'a Options,
    source: &'a dyn Source,
    size: Size,
    time: Duration,
    producer: ThreadedProducer<Heard>,
    heard: Heard,
}

impl<'a> Filling<'a> {
    /// Ends a transaction that an earlier producer of the same id left open, and fences that producer.
    fn begin(
        options: &'a Options,
        source: &'a dyn Source,
        size: Size,
        time: Duration,
    ) -> Result<Filling<'a>, FillError> {
        // Gives a clearer error if there are no brokers or no topic.
        watermarks(options)?;
        let name = format!("{}.import.{}", options.topic, options.partition);
        let config = options.client.filler(&name, time + SETTLING, SETTLING);
        let heard = Heard::default();
        let producer = config.create_with_context(heard.clone());
        let producer: ThreadedProducer<Heard> = producer.map_err(refused(options, "make a producer for"))?;
        patiently(|time| producer.init_transactions(time)).map_err(refused(options, "begin to write to"))?;
        Ok(Filling { options, source, size, time, producer, heard })
    }

    /// Writes everything if the partition is empty, then checks its content.
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

    /// Compares the committed content of the partition with the journal.
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

    /// Writes all records, or none, in one transaction.
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
                // After it no other history can start. One that started earlier wins.
                match self.held()? {
                    Held::Nothing => {}
                    Held::All(_) => return Err(self.not_empty(Other::Meanwhile)),
                    Held::Other(found) => return Err(self.not_empty(found)),
                }
            }
        }
        sending.flush()
    }

    /// Aborts the transaction and returns the error. Restores the directory if it is certain that nothing
    /// counts.
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

    /// Waits until the commit can be read: brokers confirm it before readers see it.
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

    /// Returns the place before every record of the partition.
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

/// Retries while the brokers report a retriable error.
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

struct Sending<'a> {
    filling: &'a Filling<'a>,
    began: Instant,
    sent: Size,
}

impl Sending<'_> {
    /// Passes a record to the producer, once there is space: its queue bounds the memory.
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

    /// Waits until everything is acknowledged.
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

    /// Returns the error or timeout that ends sending.
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
