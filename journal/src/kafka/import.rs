//! Import of a directory into an empty partition: all records of its journal, byte for byte, or none.
//!
//! A server that found part of a history would treat it as complete and continue there. So all records are
//! sent in one transaction of Kafka, and readers read only committed records ([`super::client`]).
//!
//! | event | valid records in the partition afterwards |
//! |---|---|
//! | success | all |
//! | this process or its machine dies | none: the next import ends the transaction; else the brokers do, after its timeout |
//! | a broker dies | all, once another one leads; if that takes too long, none |
//! | the import exceeds the maximum time of a transaction | none |
//! | the brokers do not report whether they committed | all or none: the next import checks first |
//! | the partition contains exactly these records | these: there is nothing to do |
//! | the partition contains anything else | its content is unchanged: nothing is sent |
//! | a server starts a journal there meanwhile | the server's, if its record precedes the first imported one: then nothing is committed; else the imported ones, as the server's record continues nothing |
//!
//! Invariant: the directory is marked as a mirror before its records are committed to the topic, so that no
//! server continues from it alone. The directory is restored if the records were not committed.

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

use super::backlog::{BacklogError, PartitionBacklog, cluster, watermarks};
use super::checkpoint::{CheckpointBackup, OffsetCheckpoint};
use super::client::KafkaClientError;
use super::compare::{PartitionComparison, PartitionContent, PartitionMismatch};
use super::open::{KafkaOpenError, PartitionAddress};
use super::reader::PartitionReader;
use super::{KafkaJournal, KafkaOptions, lock};
use crate::chain::ChainCursor;
use crate::journal::{CloseError, Journal as _, JournalReader, ReadError};
use crate::segments::{self, SegmentJournal, VerifyError, VerifyOutcome, verify};

/// Time limit for the start of a transaction, for its end, and for the next acknowledgment of a record.
const SETTLING: Duration = Duration::from_mins(1);
/// Time limit for one call that starts or ends a transaction. It is longer than that of a request: each call of an abort
/// purges the records in the queue, among them those whose request has failed since the last call.
const CALL: Duration = Duration::from_secs(5);
/// Time without data from the brokers until reading back fails.
const SILENCE: Duration = Duration::from_mins(2);
/// Pause before the brokers are queried again.
const PAUSE: Duration = Duration::from_millis(50);
const MEGABYTE: u64 = 1_000_000;
const WRITE: &str = "write to";
const COMMIT: &str = "commit the records in";

/// Result of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImportReport {
    /// State of the partition before.
    pub found: PartitionState,
    /// Number of records in the partition.
    pub records: u64,
    /// Size of the records in bytes.
    pub bytes: u64,
    /// Cursor after the last record.
    pub head: ChainCursor,
}

/// State of a partition before an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartitionState {
    /// No records.
    Empty,
    /// All records: an interrupted import had committed them.
    Filled,
}

/// Reason why an import failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The directory cannot be read.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The journal is empty: the directory or the fleet is wrong.
    #[error("cannot import {}: it contains no records", .0.display())]
    Empty(PathBuf),
    /// The journal is damaged: another server's copy is needed.
    #[error(
        "cannot import {}: damaged at byte {}, position {}: {}\nhint: use an intact copy of this journal",
        .0.file.display(), .0.offset, .0.position, .0.reason
    )]
    Damaged(segments::VerifyFinding),
    /// The tail is torn: a longer copy is needed, or the tail must be truncated.
    #[error(
        "cannot import {}: torn at byte {}, position {}: {}\nhint: use a copy of this journal that reaches further; if there \
         is none, start the directory's server once: whether it then continues or refuses to, it truncates the tail and \
         keeps a copy of it",
        .0.file.display(), .0.offset, .0.position, .0.reason
    )]
    Torn(segments::VerifyFinding),
    /// Another process has the directory open, or it cannot be opened.
    #[error(transparent)]
    Source(#[from] segments::SegmentOpenError),
    /// The directory's journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The directory's writer stopped.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The partition is in use: another destination or a new topic is needed.
    #[error("cannot import into {place}: {found}")]
    NotEmpty {
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// Content of the partition.
        found: PartitionMismatch,
    },
    /// The directory mirrors another topic, where its history continues. An import is possible only if that
    /// topic is lost.
    #[error(
        "cannot import {}: it is the mirror of partition {partition} of topic {topic}, and a second copy would start a second \
         history\nhint: if that topic is lost, stop all servers of the fleet, and remove kafka.json there",
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
    Cluster(#[from] KafkaOpenError),
    /// Nothing was committed: the import can be retried.
    #[error("cannot {doing} {place} (nothing was committed; repeat the command)")]
    Refused {
        /// Failed operation.
        doing: &'static str,
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// Error of the client.
        source: Box<KafkaClientError>,
    },
    /// Nothing was committed: the import and the brokers must allow more time.
    #[error(
        "cannot write to {place}: only {sent} of {records} records ({sent_mb} of {mb} MB) were sent in {} s, the maximum time \
         of a transaction; nothing was committed\nhint: raise transaction.max.timeout.ms of the brokers (default: 15 \
         minutes), and set --timeout to a minute less than that", .time.as_secs()
    )]
    TooLong {
        /// Partition concerned.
        place: Box<PartitionAddress>,
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
        "cannot {doing} {place} (all records or none are committed, which is not known; repeat the command: it checks, and \
         completes the import)"
    )]
    Unsettled {
        /// Failed operation.
        doing: &'static str,
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// Error of the client.
        source: Box<KafkaClientError>,
    },
    /// The directory cannot be marked as a mirror, or unmarked.
    #[error("cannot mark or unmark {} as a mirror", .dir.display())]
    Mark {
        /// Directory of the journal.
        dir: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// The import was committed, but a server finds other content: another client writes to the partition, or
    /// the brokers lost data.
    #[error("cannot confirm import into {place}: a server now finds other content: {found}")]
    Differs {
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// Content found, in words.
        found: String,
    },
}

/// Writes the records of a directory, which becomes a mirror, to its partition, reads them back, and opens
/// the journal as a server does. Blocks until then. The maximum time of writing is `time`, and that of the
/// transaction a minute more; brokers allow fifteen minutes by default.
pub fn import_journal(options: &KafkaOptions, time: Duration) -> Result<ImportReport, ImportError> {
    // Reading back must succeed: a server waits for missing brokers, a command reports them.
    let options = &KafkaOptions { silence: Some(options.silence.unwrap_or(SILENCE)), ..options.clone() };
    let dir = &options.mirror.dir;
    let report = verify(dir)?;
    match report.outcome {
        _ if report.is_open => return Err(segments::SegmentOpenError::Locked { dir: dir.clone() }.into()),
        VerifyOutcome::Intact => {}
        VerifyOutcome::TornTail(found) => return Err(ImportError::Torn(found)),
        VerifyOutcome::Damaged(found) => return Err(ImportError::Damaged(found)),
    }
    let Some(head) = report.head else { return Err(ImportError::Empty(dir.clone())) };
    if let Some((topic, partition)) = OffsetCheckpoint::of_another(dir, &options.topic, options.partition) {
        return Err(ImportError::Mirror { dir: dir.clone(), topic, partition });
    }
    let (journal, _) = SegmentJournal::open(&options.mirror, Box::new(|_| ()))?;
    let source = journal.source();
    let (records, bytes) = (report.records, report.bytes);
    let filling = ImportProducer::begin(options, &*source, ImportSize { records, bytes }, time)?;
    let found = filling.fill()?;
    drop(filling);
    drop(source);
    journal.close()?;
    open_as_a_server(options, &head)?;
    Ok(ImportReport { found, records, bytes, head })
}

/// Opens the journal as a server does, and checks its head.
fn open_as_a_server(options: &KafkaOptions, head: &ChainCursor) -> Result<(), ImportError> {
    let (journal, opened) = KafkaJournal::open(options, Box::new(|_| ()))?;
    journal.close()?;
    match opened.head {
        Some(found) if found == *head => Ok(()),
        Some(found) => Err(differs(options, format!("its last record ends at position {}", found.position))),
        None => Err(differs(options, "no records".into())),
    }
}

fn differs(options: &KafkaOptions, found: String) -> ImportError {
    ImportError::Differs { place: PartitionAddress::of(options), found }
}

#[derive(Clone, Copy)]
struct ImportSize {
    records: u64,
    bytes: u64,
}

/// Delivery callback that counts acknowledged records and keeps the first error.
#[derive(Clone, Default)]
struct ImportDeliveries(Arc<Mutex<ImportAcknowledgments>>);

#[derive(Default)]
struct ImportAcknowledgments {
    records: u64,
    error: Option<KafkaError>,
}

impl ClientContext for ImportDeliveries {}

impl ProducerContext for ImportDeliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let mut acknowledgments = lock(&self.0);
        match result {
            Ok(_) => acknowledgments.records += 1,
            Err((error, _)) => drop(acknowledgments.error.get_or_insert_with(|| error.clone())),
        }
    }
}

/// Import, whose producer fences all others with its transactional id.
struct ImportProducer<'a> {
    options: &'a KafkaOptions,
    source: &'a dyn JournalReader,
    size: ImportSize,
    time: Duration,
    producer: ThreadedProducer<ImportDeliveries>,
    deliveries: ImportDeliveries,
}

impl<'a> ImportProducer<'a> {
    /// Ends a transaction that an earlier producer of the same id left open, and fences that producer.
    fn begin(
        options: &'a KafkaOptions,
        source: &'a dyn JournalReader,
        size: ImportSize,
        time: Duration,
    ) -> Result<ImportProducer<'a>, ImportError> {
        // Gives a clearer error if there are no brokers or no topic.
        watermarks(options)?;
        let name = format!("{}.import.{}", options.topic, options.partition);
        let config = options.client.filler(&name, time + SETTLING);
        let deliveries = ImportDeliveries::default();
        let producer = config.create_with_context(deliveries.clone());
        let producer: ThreadedProducer<ImportDeliveries> =
            producer.map_err(refused(options, "create a producer for"))?;
        patiently(|time| producer.init_transactions(time)).map_err(refused(options, "start writing to"))?;
        Ok(ImportProducer { options, source, size, time, producer, deliveries })
    }

    /// Writes all records if the partition is empty, then checks its content.
    fn fill(&self) -> Result<PartitionState, ImportError> {
        let (found, place) = match self.held()? {
            PartitionContent::All(place) => (PartitionState::Filled, place),
            PartitionContent::Other(found) => return Err(self.not_empty(found)),
            PartitionContent::Nothing => {
                self.write()?;
                (PartitionState::Empty, self.written()?)
            }
        };
        self.mark(&place)?;
        Ok(found)
    }

    /// Compares the committed content of the partition with the journal.
    fn held(&self) -> Result<PartitionContent, ImportError> {
        let options = self.options;
        let (begins, ends) = watermarks(options)?;
        if begins > 0 {
            return Ok(PartitionContent::Other(PartitionMismatch::BeginsLate(begins)));
        }
        let reader = PartitionReader::open(&options.client, &options.topic, options.partition, begins);
        let mut reader = reader.map_err(cluster(options, "read"))?;
        let mut rest = PartitionBacklog::new(options, &mut reader, begins, ends);
        let mut comparison = PartitionComparison::new(self.source, &options.mirror.fleet, self.unknown())?;
        loop {
            match rest.next() {
                Ok(Some(value)) => {
                    if let Some(other) = comparison.take(value)? {
                        return Ok(PartitionContent::Other(other));
                    }
                }
                Ok(None) => return Ok(comparison.end()?),
                Err(BacklogError::Gone(gone)) => {
                    return Ok(PartitionContent::Other(PartitionMismatch::Gone(gone.to_string())));
                }
                Err(BacklogError::Cluster(error)) => return Err(error.into()),
            }
        }
    }

    /// Writes all records, or none, in one transaction.
    fn write(&self) -> Result<(), ImportError> {
        let dir = &self.options.mirror.dir;
        let before = CheckpointBackup::read(dir).map_err(|error| self.unmarked(error))?;
        self.producer.begin_transaction().map_err(refused(self.options, "start writing to"))?;
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

    /// Sends all records, and waits until they are on all brokers in sync.
    fn send_all(&self) -> Result<(), ImportError> {
        let mut sending = ImportProgress {
            filling: self,
            began: Instant::now(),
            sent: ImportSize { records: 0, bytes: 0 },
            acknowledged: 0,
            pauses: 0,
        };
        for record in self.source.records(Position::FIRST)? {
            let record = record?;
            sending.send(&record)?;
            if sending.sent.records == 1 {
                sending.flush()?;
                // After this record no other history can start. A history that started earlier wins.
                match self.held()? {
                    PartitionContent::Nothing => {}
                    PartitionContent::All(_) => return Err(self.not_empty(PartitionMismatch::Meanwhile)),
                    PartitionContent::Other(found) => return Err(self.not_empty(found)),
                }
            }
        }
        sending.flush()
    }

    /// Aborts the transaction and returns the error. Restores the directory if it is certain that nothing was
    /// committed.
    fn take_back(&self, before: &CheckpointBackup, why: ImportError) -> ImportError {
        match patiently(|time| self.producer.abort_transaction(time)) {
            Ok(()) => match before.put_back(&self.options.mirror.dir) {
                Ok(()) => why,
                Err(error) => self.unmarked(error),
            },
            Err(error) => {
                tracing::warn!(why = &why as &dyn std::error::Error, "import transaction not aborted");
                self.unsettled("abort the transaction in", error)
            }
        }
    }

    /// Waits until the commit can be read: brokers confirm it before readers see it.
    fn written(&self) -> Result<OffsetCheckpoint, ImportError> {
        let began = Instant::now();
        loop {
            match self.held()? {
                PartitionContent::All(place) => return Ok(place),
                PartitionContent::Other(found) => return Err(differs(self.options, found.to_string())),
                PartitionContent::Nothing if began.elapsed() > SETTLING => {
                    return Err(differs(self.options, "no records".into()));
                }
                PartitionContent::Nothing => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Returns the checkpoint before every record of the partition.
    fn unknown(&self) -> OffsetCheckpoint {
        OffsetCheckpoint::unknown(&self.options.topic, self.options.partition)
    }

    fn mark(&self, place: &OffsetCheckpoint) -> Result<(), ImportError> {
        place.mark(&self.options.mirror.dir).map_err(|error| self.unmarked(error))
    }

    fn unmarked(&self, source: io::Error) -> ImportError {
        ImportError::Mark { dir: self.options.mirror.dir.clone(), source }
    }

    fn not_empty(&self, found: PartitionMismatch) -> ImportError {
        ImportError::NotEmpty { place: PartitionAddress::of(self.options), found }
    }

    fn unsettled(&self, doing: &'static str, error: KafkaError) -> ImportError {
        ImportError::Unsettled {
            doing,
            place: PartitionAddress::of(self.options),
            source: Box::new(KafkaClientError(error)),
        }
    }
}

fn refused(options: &KafkaOptions, doing: &'static str) -> impl FnOnce(KafkaError) -> ImportError {
    let place = PartitionAddress::of(options);
    move |source| ImportError::Refused { doing, place, source: Box::new(KafkaClientError(source)) }
}

/// Retries for `SETTLING` while the brokers report a retriable error. A call counts for at most `CALL`, however long the
/// process was stopped during the call.
fn patiently(mut ask: impl FnMut(Duration) -> Result<(), KafkaError>) -> Result<(), KafkaError> {
    let mut left = SETTLING;
    loop {
        let began = Instant::now();
        match ask(left.min(CALL)) {
            Err(KafkaError::Transaction(error)) if error.is_retriable() && !left.is_zero() => {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
        left = left.saturating_sub(began.elapsed().min(CALL));
    }
}

struct ImportProgress<'a> {
    filling: &'a ImportProducer<'a>,
    began: Instant,
    sent: ImportSize,
    acknowledged: u64,
    /// Number of pauses since the last acknowledgment.
    pauses: u32,
}

impl ImportProgress<'_> {
    /// Passes a record to the producer, once its queue has space: the queue bounds the memory.
    fn send(&mut self, record: &Record) -> Result<(), ImportError> {
        let ImportProducer { options, producer, .. } = self.filling;
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

    /// Waits until all records are acknowledged.
    fn flush(&mut self) -> Result<(), ImportError> {
        while self.filling.producer.in_flight_count() > 0 {
            self.wait()?;
        }
        self.look()
    }

    /// Pauses. Returns an error if the pauses since the last acknowledgment add up to `SETTLING`. Time in which the
    /// process was stopped does not count.
    fn wait(&mut self) -> Result<(), ImportError> {
        std::thread::sleep(PAUSE);
        self.look()?;
        let ImportProducer { options, deliveries, .. } = self.filling;
        let acknowledged = lock(&deliveries.0).records;
        if acknowledged > self.acknowledged {
            (self.acknowledged, self.pauses) = (acknowledged, 0);
        } else {
            self.pauses += 1;
        }
        if PAUSE * self.pauses > SETTLING {
            return Err(refused(options, WRITE)(KafkaError::MessageProduction(Code::MessageTimedOut)));
        }
        Ok(())
    }

    /// Returns the error or timeout that ends sending.
    fn look(&self) -> Result<(), ImportError> {
        let ImportProducer { options, size, time, deliveries, .. } = self.filling;
        if let Some(error) = lock(&deliveries.0).error.take() {
            return Err(refused(options, WRITE)(error));
        }
        if self.began.elapsed() > *time {
            return Err(ImportError::TooLong {
                place: PartitionAddress::of(options),
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
