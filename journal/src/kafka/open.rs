//! Opening: the mirror, what the topic holds beyond it, and whether the two tell the same history.
//!
//! | the mirror | the topic | |
//! |---|---|---|
//! | empty | from offset 0 on | the topic is read from its beginning |
//! | empty | its beginning is gone | refused: a mirror must be put back first |
//! | with a place | the record of that place stands there | read from there on |
//! | with a place | another record, or none, stands there | refused |
//! | without a place | from offset 0 on | read from its beginning, and compared |
//! | without a place | its beginning is gone | refused: nothing to compare with |
//! | marked as that of another partition | | refused |
//! | ends behind the topic | | refused: the mirror may be the last good copy |
//! | as the topic | ends before a record that a witness names | refused: the topic has lost it |
//! | not marked as one, and not empty | nothing of this fleet | refused: it is a journal of its own, to be imported |
//! | empty | records of another fleet, and none of this | refused: it is that one's partition |
//!
//! Whatever is refused leaves the mirror as it is.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, io};

use chancery_events::id::Position;
use chancery_events::record::Hash;
use rdkafka::error::KafkaError;

use super::place::Place;
use super::reader::PartitionReader;
use super::recent::Recent;
use super::rest::{Rest, Unread, cluster, watermarks};
use super::writing::Writing;
use super::{Options, Shared, give, lock};
use crate::chain::{Broken, Chain, Cursor, Link, SkipReason};
use crate::journal::{Delivery, Journal as _, ReadError, Records, Sink, Source};
use crate::mirror::is_mirror;
use crate::segments::{self, Against, Cut, SegmentJournal};
use crate::witness::{Loss, loss};

/// What was found.
#[derive(Debug)]
pub struct Opened {
    /// The last valid record, as of the end of the topic.
    pub head: Option<Cursor>,
    /// What was cut off the mirror; the topic had it, or nobody was told of it.
    pub cut: Option<Cut>,
    /// Records that were read from the topic.
    pub read: u64,
    /// Those of them that do not count.
    pub skipped: u64,
}

/// A journal on Kafka could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// See to the brokers, and try again.
    #[error(
        "cannot read {place}: the brokers sent nothing for {} s, at offset {next} of {ends}", .silence.as_secs()
    )]
    Silent {
        /// Where.
        place: Box<Partition>,
        /// The offset that was waited for.
        next: i64,
        /// The end that was found.
        ends: i64,
        /// How long nothing came.
        silence: Duration,
    },
    /// The mirror could not be.
    #[error("open the mirror")]
    Mirror(#[from] segments::OpenError),
    /// The mirror could not be read.
    #[error("read the mirror")]
    Read(#[from] ReadError),
    /// The mirror could not be written.
    #[error("write the mirror: {0}")]
    Write(String),
    /// The mirror could not be marked as one.
    #[error("keep in the mirror that it is one")]
    Mark(#[source] io::Error),
    /// The cluster could not be asked, or refused.
    #[error("{doing} {place}")]
    Cluster {
        /// What was being done.
        doing: &'static str,
        /// Where.
        place: Box<Partition>,
        /// Why not.
        source: Box<KafkaError>,
    },
    /// There is no such partition.
    #[error("there is no {0}: `chancery init-topics` makes topics")]
    NoPartition(Box<Partition>),
    /// It is the partition of another fleet: one that began here would begin beside its own journal elsewhere.
    #[error(
        "{place} holds nothing of fleet {fleet}, and another fleet's record at offset {offset}: name {fleet}'s own partition"
    )]
    OtherFleet {
        /// Where.
        place: Box<Partition>,
        /// Where the other fleet's record stands.
        offset: i64,
        /// The fleet that was to be opened.
        fleet: Arc<str>,
    },
    /// The folder is the mirror of another partition: a wrong prefix, or another fleet's number.
    #[error(
        "{} is the mirror of partition {partition} of topic {topic}, and not of {place}: look at the prefix and the partition. \
         If that topic is lost and this one has its history, remove kafka.json there",
        place.mirror.display()
    )]
    MirrorOf {
        /// Where.
        place: Box<Partition>,
        /// The topic that it mirrors.
        topic: Arc<str>,
        /// Its partition.
        partition: i32,
    },
    /// The folder's journal has never been there.
    #[error(
        "{0} holds nothing of the journal in that folder, which was never on Kafka: `chancery import` moves it there"
    )]
    NotMoved(Box<Partition>),
    /// What is needed to go on has been deleted from the topic.
    #[error(
        "{place} begins at offset {begins}, and offset {wanted} is needed to go on: records were deleted from the topic. \
         Put back a mirror that reaches further, or copy this one into another topic"
    )]
    Deleted {
        /// Where.
        place: Box<Partition>,
        /// Where it begins.
        begins: i64,
        /// What is needed.
        wanted: i64,
    },
    /// Mirror and topic tell other histories.
    #[error(
        "{place} does not hold what the mirror holds at position {position}: {reason}. The mirror is kept as it is, and may \
         be the last good copy. If the topic is right, move the mirror away"
    )]
    Differs {
        /// Where.
        place: Box<Partition>,
        /// The first position that differs.
        position: Position,
        /// What differs.
        reason: String,
    },
    /// Something beside the mirror proves that the topic held more.
    #[error(
        "cannot open {place}: {loss}. hint: put back a mirror that reaches further and import it into a new topic; if there \
         is none, docs/operations.md says how to continue without what is missing"
    )]
    Short {
        /// Where.
        place: Box<Partition>,
        /// What is missing.
        loss: Box<Loss>,
    },
    /// A record continues the chain and cannot be taken.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The system does not start a thread.
    #[error("start a thread")]
    Thread(#[source] io::Error),
}

/// Which partition, and its mirror.
#[derive(Debug)]
pub struct Partition {
    topic: String,
    number: i32,
    brokers: String,
    mirror: PathBuf,
}

impl Partition {
    pub(super) fn of(options: &Options) -> Partition {
        Partition {
            topic: options.topic.clone(),
            number: options.partition,
            brokers: options.client.brokers().to_owned(),
            mirror: options.mirror.dir.clone(),
        }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Partition { topic, number, brokers, mirror } = self;
        write!(f, "partition {number} of topic {topic} at {brokers}, with its mirror in {}", mirror.display())
    }
}

/// Everything that a journal consists of, not yet delivering.
pub(super) struct Ready {
    pub(super) shared: Arc<Shared>,
    pub(super) reader: PartitionReader,
    pub(super) chain: Chain,
    pub(super) place: Option<Place>,
    pub(super) opened: Opened,
}

pub(super) fn open(options: &Options) -> Result<Ready, OpenError> {
    if let Some((topic, partition)) =
        Place::of_another(&options.mirror.dir, &options.topic, options.partition)
    {
        return Err(OpenError::MirrorOf { place: Box::new(Partition::of(options)), topic, partition });
    }
    let recent = Arc::new(Recent::default());
    let broken = Arc::new(Mutex::new(None));
    // The topic is the truth: what the mirror lacks of it comes from there, and then the witnesses are weighed.
    let bare = segments::Options { against: Against::Nothing, ..options.mirror.clone() };
    let (mirror, found) = SegmentJournal::open(&bare, follow(&recent, &broken))?;
    let (begins, ends) = watermarks(options)?;
    let start = Start::find(options, &*mirror.source(), begins)?;
    let reader = PartitionReader::open(&options.client, &options.topic, options.partition, start.offset);
    let mut reader = reader.map_err(cluster(options, "read"))?;
    let mut filling = Filling {
        options,
        same: mirror.source().records(start.chain.next())?,
        mirror: &mirror,
        held: found.head.map_or(Position::ZERO, |head| head.position),
        chain: start.chain,
        place: start.place,
        is_marked: is_mirror(&options.mirror.dir).map_err(OpenError::Mark)?,
        other: None,
        read: 0,
        skipped: 0,
    };
    filling.fill(&mut reader, start.offset, ends)?;
    let Filling { chain, place, read, skipped, .. } = filling;
    let head = chain.at().copied();
    wait_for(&mirror, head.as_ref(), &broken)?;
    if let Against::Witnesses(witnesses) | Against::AcceptedLoss(witnesses) = &options.mirror.against
        && let Some(loss) = loss(&*mirror.source(), witnesses)?
    {
        return Err(OpenError::Short { place: Box::new(Partition::of(options)), loss: Box::new(loss) });
    }
    recent.begin(head);
    let writing = Writing::new(options, Arc::clone(chain.fleet()), head);
    let writing = writing.map_err(cluster(options, "make a producer for"))?;
    let shared = Shared { writing, recent, mirror, broken, closes: AtomicBool::new(false) };
    let opened = Opened { head, cut: found.cut, read, skipped };
    Ok(Ready { shared: Arc::new(shared), reader, chain, place, opened })
}

/// What the mirror tells: what it holds need not be kept in memory any more.
fn follow(recent: &Arc<Recent>, broken: &Arc<Mutex<Option<String>>>) -> Sink {
    let (recent, broken) = (Arc::clone(recent), Arc::clone(broken));
    Box::new(move |delivery| match delivery {
        Delivery::Records(records) => {
            if let Some(last) = records.last() {
                recent.forget(last.last());
            }
        }
        Delivery::Stopped(error) | Delivery::Indefinite(error) => *lock(&broken) = Some(error.to_string()),
        // It judges before it takes, so that nothing in it is ever skipped.
        Delivery::Skipped(skipped) => *lock(&broken) = Some(skipped.to_string()),
    })
}

/// Where reading begins.
struct Start {
    offset: i64,
    chain: Chain,
    /// The record that must stand at the offset, if one is known.
    place: Option<Place>,
}

impl Start {
    fn find(options: &Options, mirror: &dyn Source, begins: i64) -> Result<Start, OpenError> {
        let fleet = Arc::clone(&options.mirror.fleet);
        let place = Place::load(&options.mirror.dir, &options.topic, options.partition);
        let known = match place {
            Some(place) => cursor_at(mirror, &place)?.map(|cursor| (place, cursor)),
            None => None,
        };
        let wanted = known.as_ref().map_or(0, |(place, _)| place.offset);
        if begins > wanted {
            return Err(OpenError::Deleted { place: Box::new(Partition::of(options)), begins, wanted });
        }
        Ok(match known {
            Some((place, cursor)) => {
                Start { offset: place.offset, chain: Chain::new(fleet, Some(cursor)), place: Some(place) }
            }
            None => Start { offset: 0, chain: Chain::new(fleet, None), place: None },
        })
    }
}

/// Behind the record of the place, if the mirror holds it.
fn cursor_at(mirror: &dyn Source, place: &Place) -> Result<Option<Cursor>, OpenError> {
    let record = mirror.records(place.position)?.next().transpose()?;
    let record = record.filter(|record| record.last() == place.position && record.hash() == place.hash);
    Ok(record.map(|record| Cursor::after(&record)))
}

/// Brings the mirror to the topic's end.
struct Filling<'a> {
    options: &'a Options,
    mirror: &'a SegmentJournal,
    /// What the mirror held before.
    held: Position,
    /// The records of the mirror that the topic must repeat.
    same: Records,
    chain: Chain,
    /// Of the last valid record.
    place: Option<Place>,
    /// Whether the folder says that it is a mirror.
    is_marked: bool,
    /// Where a record of another fleet stands.
    other: Option<i64>,
    read: u64,
    skipped: u64,
}

impl Filling<'_> {
    fn fill(&mut self, reader: &mut PartitionReader, from: i64, ends: i64) -> Result<(), OpenError> {
        let (options, mut is_placed) = (self.options, self.place.is_none());
        let mut rest = match self.place {
            Some(_) => Rest::from_a_record(options, reader, from, ends),
            None => Rest::new(options, reader, from, ends),
        };
        while let Some((offset, value)) = rest.next().map_err(|unread| match unread {
            Unread::Gone(gone) => self.differs(self.at(), &gone.to_string()),
            Unread::Cluster(error) => error,
        })? {
            if is_placed {
                self.take(offset, value)?;
            } else if self.place.as_ref().is_some_and(|p| p.offset == offset && p.hash == Hash::of(&value)) {
                is_placed = true;
            } else {
                return Err(self.differs(self.at(), "another record stands in its place"));
            }
        }
        if !self.is_marked && self.held > Position::ZERO && self.chain.at().is_none() {
            return Err(OpenError::NotMoved(Box::new(Partition::of(options))));
        }
        if !is_placed || self.chain.next() <= self.held {
            return Err(self.differs(self.at(), "the topic ends before it"));
        }
        if let (None, Some(offset)) = (self.chain.at(), self.other) {
            let fleet = Arc::clone(self.chain.fleet());
            return Err(OpenError::OtherFleet { place: Box::new(Partition::of(options)), offset, fleet });
        }
        self.mark()
    }

    /// Says that the folder is a mirror: before anything comes into it from the topic, and not before all that it holds
    /// was found there.
    fn mark(&mut self) -> Result<(), OpenError> {
        let Options { topic, partition, mirror, .. } = self.options;
        if !self.is_marked {
            Place::unknown(topic, *partition).mark(&mirror.dir).map_err(OpenError::Mark)?;
            self.is_marked = true;
        }
        Ok(())
    }

    fn take(&mut self, offset: i64, value: Arc<[u8]>) -> Result<(), OpenError> {
        self.read += 1;
        let record = match self.chain.take(value)? {
            Link::Record(record) => record,
            Link::Skip(skipped) => {
                self.skipped += 1;
                if skipped.reason == SkipReason::Fleet {
                    self.other.get_or_insert(offset);
                }
                return Ok(());
            }
        };
        let topic = self.options.topic.as_str().into();
        self.place = Some(Place::of(&topic, self.options.partition, offset, &record));
        if record.first() > self.held {
            self.mark()?;
            return give(self.mirror, record, self.options.outcome).map_err(OpenError::Write);
        }
        match self.same.next().transpose()? {
            Some(held) if held.hash() == record.hash() => Ok(()),
            _ => Err(self.differs(record.first(), "another record stands there")),
        }
    }

    /// The place that must be found, or the next position.
    fn at(&self) -> Position {
        let place = self.place.as_ref().map(|place| place.position);
        place.filter(|_| self.read == 0).unwrap_or_else(|| self.chain.next())
    }

    fn differs(&self, position: Position, reason: &str) -> OpenError {
        OpenError::Differs {
            place: Box::new(Partition::of(self.options)),
            position,
            reason: reason.to_owned(),
        }
    }
}

/// Waits until the mirror holds everything up to the head.
fn wait_for(
    mirror: &SegmentJournal,
    head: Option<&Cursor>,
    broken: &Mutex<Option<String>>,
) -> Result<(), OpenError> {
    while mirror.head().as_ref() != head {
        if let Some(why) = lock(broken).take() {
            return Err(OpenError::Write(why));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
