//! Opening: the mirror, the rest of the topic, and whether both have the same history.
//!
//! | the mirror | the topic | result |
//! |---|---|---|
//! | empty | from offset 0 on | the topic is read from its start |
//! | empty | its start was deleted | refused: a mirror must be restored first |
//! | with a checkpoint | contains the record of the checkpoint | the topic is read from that record on |
//! | with a checkpoint | has another record at its offset, or none | refused |
//! | without a checkpoint | from offset 0 on | read from its start, and compared |
//! | without a checkpoint | its start was deleted | refused: nothing to compare with |
//! | marked as the mirror of another partition | | refused |
//! | ends after the topic | | refused: the mirror may be the last good copy |
//! | equal to the topic | ends before a record that a witness names | refused: the topic has lost it |
//! | not marked as a mirror, and not empty | no records of this fleet | refused: the directory has an embedded journal, to be imported |
//! | empty | records of another fleet, and none of this fleet | refused: the partition belongs to that fleet |
//!
//! A refusal leaves the mirror unchanged.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, io};

use chancery_events::id::Position;
use chancery_events::record::RecordHash;

use super::backlog::{BacklogError, PartitionBacklog, cluster, watermarks};
use super::checkpoint::OffsetCheckpoint;
use super::client::KafkaClientError;
use super::delivery::DeliveryLoop;
use super::producer::AppendProducer;
use super::reader::PartitionReader;
use super::tail::UnmirroredTail;
use super::{KafkaOptions, KafkaShared, give, lock};
use crate::chain::{ChainCursor, ChainEntry, ChainError, ChainReader, SkipReason};
use crate::journal::{DeliverySink, Journal as _, JournalDelivery, JournalReader, ReadError, RecordIter};
use crate::mirror::is_mirror;
use crate::segments::{self, OpenEvidence, SegmentJournal, TruncatedTail};
use crate::witness::{JournalLoss, loss};

/// Result of opening a journal.
#[derive(Debug)]
pub struct OpenedKafkaJournal {
    /// Last valid record, as of the end of the topic.
    pub head: Option<ChainCursor>,
    /// Tail truncated from the mirror; the topic had it, or it was never delivered.
    pub cut: Option<TruncatedTail>,
    /// Number of records read from the topic.
    pub read: u64,
    /// Number of skipped records among them.
    pub skipped: u64,
}

/// Reason why a journal on Kafka could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum KafkaOpenError {
    /// The brokers sent nothing: a retry may succeed.
    #[error(
        "cannot read {place}: the brokers sent nothing for {} s, at offset {next} of {ends}", .silence.as_secs()
    )]
    Silent {
        /// Partition that was read.
        place: Box<PartitionAddress>,
        /// Offset that was expected next.
        next: i64,
        /// End of the partition.
        ends: i64,
        /// Time without data.
        silence: Duration,
    },
    /// The mirror could not be opened.
    #[error("cannot open mirror")]
    Mirror(#[from] segments::SegmentOpenError),
    /// The mirror could not be read.
    #[error("cannot read mirror")]
    Read(#[from] ReadError),
    /// The mirror could not be written.
    #[error("cannot write mirror: {0}")]
    Write(String),
    /// The directory could not be marked as a mirror.
    #[error("cannot mark directory as a mirror")]
    Mark(#[source] io::Error),
    /// The cluster did not answer, or refused.
    #[error("cannot {doing} {place}")]
    Cluster {
        /// Failed operation.
        doing: &'static str,
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// Error of the client.
        source: Box<KafkaClientError>,
    },
    /// The partition does not exist.
    #[error("cannot find {0}\ntry: chancery init-topics")]
    NoPartition(Box<PartitionAddress>),
    /// The partition is another fleet's: a journal started here would duplicate this fleet's own elsewhere.
    #[error(
        "cannot open {place}: it contains another fleet's record at offset {offset}, and none of fleet {fleet}\nhint: name \
         {fleet}'s own partition"
    )]
    OtherFleet {
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// Offset of the other fleet's record.
        offset: i64,
        /// Fleet to be opened.
        fleet: Arc<str>,
    },
    /// The directory mirrors another partition: a wrong prefix, or another fleet's number.
    #[error(
        "cannot open {place}: {} is the mirror of partition {partition} of topic {topic}\nhint: check the prefix and the \
         partition; if that topic is lost and this one has its history, remove kafka.json there",
        place.mirror.display()
    )]
    MirrorOf {
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// Topic of the mirror.
        topic: Arc<str>,
        /// Partition of the mirror.
        partition: i32,
    },
    /// The directory's journal was never on this partition.
    #[error(
        "cannot open {0}: it has no records of the journal in that directory, which was never on Kafka\ntry: chancery import"
    )]
    NotMoved(Box<PartitionAddress>),
    /// Records needed to continue were deleted from the topic.
    #[error(
        "cannot open {place}: it starts at offset {begins}, but offset {wanted} is needed to continue: records were deleted \
         from the topic\nhint: restore a mirror that reaches further, or import this mirror into another topic"
    )]
    Deleted {
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// First offset of the partition.
        begins: i64,
        /// Offset that is needed.
        wanted: i64,
    },
    /// Mirror and topic have different histories.
    #[error(
        "cannot open {place}: topic and mirror differ at position {position}: {reason}. The mirror is unchanged, and may be \
         the last good copy\nhint: if the topic is right, move the mirror away"
    )]
    Differs {
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// First position that differs.
        position: Position,
        /// Difference, in words.
        reason: String,
    },
    /// A witness proves that the topic has lost records.
    #[error(
        "cannot open {place}: {loss}\nhint: restore a mirror that reaches further and import it into a new topic; if there is \
         none, docs/operations.md describes how to continue without the missing records"
    )]
    Short {
        /// Partition concerned.
        place: Box<PartitionAddress>,
        /// Records that are missing.
        loss: Box<JournalLoss>,
    },
    /// A record continues the chain but cannot be accepted.
    #[error(transparent)]
    Broken(#[from] ChainError),
    /// The system cannot start a thread.
    #[error("cannot start thread")]
    Thread(#[source] io::Error),
}

/// Address of a partition, with its mirror.
#[derive(Debug)]
pub struct PartitionAddress {
    topic: String,
    number: i32,
    brokers: String,
    mirror: PathBuf,
}

impl PartitionAddress {
    /// Returns the address in a box, as errors contain it.
    #[expect(clippy::unnecessary_box_returns, reason = "each caller needs the box")]
    pub(super) fn of(options: &KafkaOptions) -> Box<PartitionAddress> {
        Box::new(PartitionAddress {
            topic: options.topic.clone(),
            number: options.partition,
            brokers: options.client.brokers().to_owned(),
            mirror: options.mirror.dir.clone(),
        })
    }
}

impl fmt::Display for PartitionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PartitionAddress { topic, number, brokers, mirror } = self;
        write!(f, "partition {number} of topic {topic} at {brokers} (mirror {})", mirror.display())
    }
}

/// Opens a journal that does not deliver yet. Returns it with the loop that will deliver to the sink.
pub(super) fn open(
    options: &KafkaOptions,
    sink: DeliverySink,
) -> Result<(Arc<KafkaShared>, DeliveryLoop, OpenedKafkaJournal), KafkaOpenError> {
    if let Some((topic, partition)) =
        OffsetCheckpoint::of_another(&options.mirror.dir, &options.topic, options.partition)
    {
        return Err(KafkaOpenError::MirrorOf { place: PartitionAddress::of(options), topic, partition });
    }
    let recent = Arc::new(UnmirroredTail::default());
    let broken = Arc::new(Mutex::new(None));
    // The topic is authoritative: the mirror is completed from it before the witnesses are weighed.
    let bare = segments::SegmentOptions { against: OpenEvidence::Nothing, ..options.mirror.clone() };
    let (mirror, found) = SegmentJournal::open(&bare, follow(&recent, &broken))?;
    let (begins, ends) = watermarks(options)?;
    let start = ReadStart::find(options, &*mirror.source(), begins)?;
    let reader = PartitionReader::open(&options.client, &options.topic, options.partition, start.offset);
    let mut reader = reader.map_err(cluster(options, "read"))?;
    let mut filling = MirrorCatchUp {
        options,
        same: mirror.source().records(start.chain.next())?,
        mirror: &mirror,
        held: found.head.map_or(Position::ZERO, |head| head.position),
        chain: start.chain,
        place: start.place,
        is_marked: is_mirror(&options.mirror.dir).map_err(KafkaOpenError::Mark)?,
        other: None,
        read: 0,
        skipped: 0,
    };
    filling.fill(&mut reader, start.offset, ends)?;
    let MirrorCatchUp { chain, place, read, skipped, .. } = filling;
    let head = chain.at().copied();
    wait_for(&mirror, head.as_ref(), &broken)?;
    if let OpenEvidence::Witnesses(witnesses) | OpenEvidence::AcceptedLoss(witnesses) =
        &options.mirror.against
        && let Some(loss) = loss(&*mirror.source(), witnesses)?
    {
        return Err(KafkaOpenError::Short { place: PartitionAddress::of(options), loss: Box::new(loss) });
    }
    recent.begin(head);
    let writing = AppendProducer::new(options, Arc::clone(chain.fleet()), head);
    let writing = writing.map_err(cluster(options, "create a producer for"))?;
    let shared = Arc::new(KafkaShared { writing, recent, mirror, broken, closes: AtomicBool::new(false) });
    let looping = DeliveryLoop::new(options, Arc::clone(&shared), reader, chain, place, sink);
    Ok((shared, looping, OpenedKafkaJournal { head, cut: found.cut, read, skipped }))
}

/// Returns the mirror's sink, which removes mirrored records from memory.
fn follow(recent: &Arc<UnmirroredTail>, broken: &Arc<Mutex<Option<String>>>) -> DeliverySink {
    let (recent, broken) = (Arc::clone(recent), Arc::clone(broken));
    Box::new(move |delivery| match delivery {
        JournalDelivery::Records(records) => {
            if let Some(last) = records.last() {
                recent.forget(last.last());
            }
        }
        JournalDelivery::Stopped(error) | JournalDelivery::OutcomeUnknown(error) => {
            *lock(&broken) = Some(error.to_string());
        }
        // The mirror checks records before it accepts them, so no record in it is ever skipped.
        JournalDelivery::Skipped(skipped) => *lock(&broken) = Some(skipped.to_string()),
    })
}

struct ReadStart {
    offset: i64,
    chain: ChainReader,
    /// Record that must be at the offset, if one is known.
    place: Option<OffsetCheckpoint>,
}

impl ReadStart {
    fn find(
        options: &KafkaOptions,
        mirror: &dyn JournalReader,
        begins: i64,
    ) -> Result<ReadStart, KafkaOpenError> {
        let fleet = Arc::clone(&options.mirror.fleet);
        let place = OffsetCheckpoint::load(&options.mirror.dir, &options.topic, options.partition);
        let known = match place {
            Some(place) => cursor_at(mirror, &place)?.map(|cursor| (place, cursor)),
            None => None,
        };
        let wanted = known.as_ref().map_or(0, |(place, _)| place.offset);
        if begins > wanted {
            return Err(KafkaOpenError::Deleted { place: PartitionAddress::of(options), begins, wanted });
        }
        Ok(match known {
            Some((place, cursor)) => ReadStart {
                offset: place.offset,
                chain: ChainReader::new(fleet, Some(cursor)),
                place: Some(place),
            },
            None => ReadStart { offset: 0, chain: ChainReader::new(fleet, None), place: None },
        })
    }
}

/// Returns the cursor after the record of the checkpoint, if the mirror contains it.
fn cursor_at(
    mirror: &dyn JournalReader,
    place: &OffsetCheckpoint,
) -> Result<Option<ChainCursor>, KafkaOpenError> {
    let record = mirror.records(place.position)?.next().transpose()?;
    let record = record.filter(|record| record.last() == place.position && record.hash() == place.hash);
    Ok(record.map(|record| ChainCursor::after(&record)))
}

/// Catch-up of the mirror to the topic's end.
struct MirrorCatchUp<'a> {
    options: &'a KafkaOptions,
    mirror: &'a SegmentJournal,
    /// Last position in the mirror before the catch-up.
    held: Position,
    /// Records of the mirror that the topic must repeat.
    same: RecordIter,
    chain: ChainReader,
    /// Checkpoint of the last valid record.
    place: Option<OffsetCheckpoint>,
    /// Whether the directory is marked as a mirror.
    is_marked: bool,
    /// Offset of a record of another fleet.
    other: Option<i64>,
    read: u64,
    skipped: u64,
}

impl MirrorCatchUp<'_> {
    fn fill(&mut self, reader: &mut PartitionReader, from: i64, ends: i64) -> Result<(), KafkaOpenError> {
        let (options, mut is_placed) = (self.options, self.place.is_none());
        let mut rest = match self.place {
            Some(_) => PartitionBacklog::from_a_record(options, reader, from, ends),
            None => PartitionBacklog::new(options, reader, from, ends),
        };
        while let Some((offset, value)) = rest.next().map_err(|unread| match unread {
            BacklogError::Gone(gone) => self.differs(self.at(), &gone.to_string()),
            BacklogError::Cluster(error) => error,
        })? {
            if is_placed {
                self.take(offset, value)?;
            } else if self
                .place
                .as_ref()
                .is_some_and(|p| p.offset == offset && p.hash == RecordHash::of(&value))
            {
                is_placed = true;
            } else {
                return Err(self.differs(self.at(), "the topic has another record at its offset"));
            }
        }
        if !self.is_marked && self.held > Position::ZERO && self.chain.at().is_none() {
            return Err(KafkaOpenError::NotMoved(PartitionAddress::of(options)));
        }
        if !is_placed || self.chain.next() <= self.held {
            return Err(self.differs(self.at(), "the topic ends before this position"));
        }
        if let (None, Some(offset)) = (self.chain.at(), self.other) {
            let fleet = Arc::clone(self.chain.fleet());
            return Err(KafkaOpenError::OtherFleet { place: PartitionAddress::of(options), offset, fleet });
        }
        self.mark()
    }

    /// Marks the directory as a mirror: before it receives records of the topic, and only after all of its
    /// own records were found there.
    fn mark(&mut self) -> Result<(), KafkaOpenError> {
        let KafkaOptions { topic, partition, mirror, .. } = self.options;
        if !self.is_marked {
            OffsetCheckpoint::unknown(topic, *partition).mark(&mirror.dir).map_err(KafkaOpenError::Mark)?;
            self.is_marked = true;
        }
        Ok(())
    }

    fn take(&mut self, offset: i64, value: Arc<[u8]>) -> Result<(), KafkaOpenError> {
        self.read += 1;
        let record = match self.chain.take(value)? {
            ChainEntry::Record(record) => record,
            ChainEntry::Skip(skipped) => {
                self.skipped += 1;
                if skipped.reason == SkipReason::Fleet {
                    self.other.get_or_insert(offset);
                }
                return Ok(());
            }
        };
        let topic = self.options.topic.as_str().into();
        self.place = Some(OffsetCheckpoint::of(&topic, self.options.partition, offset, &record));
        if record.first() > self.held {
            self.mark()?;
            return give(self.mirror, record, self.options.outcome).map_err(KafkaOpenError::Write);
        }
        match self.same.next().transpose()? {
            Some(held) if held.hash() == record.hash() => Ok(()),
            _ => Err(self.differs(record.first(), "the topic has another record")),
        }
    }

    /// Returns the position of the checkpoint that must be found, or the next position.
    fn at(&self) -> Position {
        let place = self.place.as_ref().map(|place| place.position);
        place.filter(|_| self.read == 0).unwrap_or_else(|| self.chain.next())
    }

    fn differs(&self, position: Position, reason: &str) -> KafkaOpenError {
        KafkaOpenError::Differs {
            place: PartitionAddress::of(self.options),
            position,
            reason: reason.to_owned(),
        }
    }
}

/// Waits until the mirror contains all records up to the head.
fn wait_for(
    mirror: &SegmentJournal,
    head: Option<&ChainCursor>,
    broken: &Mutex<Option<String>>,
) -> Result<(), KafkaOpenError> {
    while mirror.head().as_ref() != head {
        if let Some(why) = lock(broken).take() {
            return Err(KafkaOpenError::Write(why));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
