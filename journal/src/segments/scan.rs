//! Reading a whole segment, without changing anything: what counts, where it ends, what is wrong.

use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::{Header, Record};

use super::frame::{self, Found, Kind};
use crate::chain::{Broken, Chain, Cursor, Judgement, Link, SkipReason, judge};

/// How far apart the places are that an index knows.
const INDEX_STEP: u64 = 64 << 10;

/// Places of a segment: the first position of the record that begins at an offset.
#[derive(Clone, Default, Debug)]
pub(super) struct Index(Vec<(Position, u64)>);

impl Index {
    /// Notes the record at `offset`, if the last one noted is far enough away.
    pub(super) fn note(&mut self, first: Position, offset: u64) {
        if self.is_due(offset) {
            self.0.push((first, offset));
        }
    }

    /// Whether [`Index::note`] would note a record at `offset`.
    pub(super) fn is_due(&self, offset: u64) -> bool {
        offset >= self.0.last().map_or(0, |(_, offset)| *offset) + INDEX_STEP
    }

    /// Where to begin reading to find the record that holds `from`.
    pub(super) fn seek(&self, from: Position) -> u64 {
        let after = self.0.partition_point(|(first, _)| *first <= from);
        after.checked_sub(1).map_or(0, |at| self.0[at].1)
    }
}

/// Bytes that are not what the writer wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Damage {
    pub(super) offset: usize,
    /// The position that should stand there.
    pub(super) position: Position,
    pub(super) reason: String,
}

/// A segment that must not be touched by this build or under this name, whole as it is.
#[derive(Debug)]
pub(super) enum NotOurs {
    Broken { offset: usize, source: Broken },
    Fleet { offset: usize, position: Position, found: Arc<str> },
}

/// What a segment holds.
#[derive(Debug)]
pub(super) struct Scan {
    /// Stands behind the last record that counts.
    pub(super) chain: Chain,
    /// Behind the last frame that counts.
    pub(super) end: usize,
    /// Of each record that counts, the last position and the offset of its frame.
    pub(super) places: Vec<(Position, usize)>,
    pub(super) index: Index,
    /// The highest position that the segment names as synced: by its own name, by frames, also by those behind the
    /// damage.
    pub(super) named: Position,
    pub(super) damage: Option<Damage>,
}

impl Scan {
    /// Whether the damage is behind everything that is named: the last group, cut off while it was written.
    pub(super) fn is_torn_tail(&self) -> bool {
        self.damage.as_ref().is_some_and(|damage| damage.position > self.named)
    }

    /// The offset of the first record that no frame names as synced.
    pub(super) fn unnamed(&self) -> Option<usize> {
        let at = self.places.partition_point(|(last, _)| *last <= self.named);
        self.places.get(at).map(|(_, offset)| *offset)
    }
}

/// Reads the last segment, or any one that is to be checked through and through. `chain` stands behind the segment
/// before it; `each` is shown every record that counts.
pub(super) fn scan(bytes: &[u8], chain: Chain, mut each: impl FnMut(&Record)) -> Result<Scan, NotOurs> {
    let named = Position::new(chain.next().get() - 1);
    let mut scan = Scan { chain, end: 0, places: Vec::new(), index: Index::default(), named, damage: None };
    let mut was_marker = true;
    let reason = loop {
        let frame = match frame::find(&bytes[scan.end..]) {
            Found::Frame(frame) => frame,
            Found::End => return Ok(scan),
            Found::Damage(reason) => break reason.to_owned(),
        };
        let last = Position::new(scan.chain.next().get() - 1);
        if frame.synced > last {
            break "a frame names a position that was not written before it".into();
        }
        match frame.kind {
            Kind::Marker if was_marker || frame.synced != last => break "a marker is out of place".into(),
            Kind::Marker => was_marker = true,
            Kind::Record => {
                let offset = scan.end;
                let link = scan.chain.take(frame.payload);
                let record = match link.map_err(|source| NotOurs::Broken { offset, source })? {
                    Link::Record(record) => record,
                    Link::Skip(skipped) if skipped.reason == SkipReason::Fleet => {
                        let found = fleet_of(frame.payload).unwrap_or_default();
                        return Err(NotOurs::Fleet { offset, position: scan.chain.next(), found });
                    }
                    Link::Skip(skipped) => break skipped.reason.to_string(),
                };
                scan.places.push((record.last(), scan.end));
                scan.index.note(record.first(), scan.end as u64);
                each(&record);
                was_marker = false;
            }
        }
        scan.named = scan.named.max(frame.synced);
        scan.end += frame.len();
    };
    let behind = frame::highest_named(&bytes[scan.end..]);
    scan.named = scan.named.max(behind.unwrap_or_default());
    scan.damage = Some(Damage { offset: scan.end, position: scan.chain.next(), reason });
    Ok(scan)
}

/// Whose record it is.
fn fleet_of(payload: &[u8]) -> Option<Arc<str>> {
    Header::peek(payload).ok().map(|(header, _)| header.fleet)
}

/// Whose journal it is that begins with this segment.
pub(super) fn fleet(bytes: &[u8]) -> Option<Arc<str>> {
    match frame::find(bytes) {
        Found::Frame(frame) => fleet_of(frame.payload),
        Found::End | Found::Damage(_) => None,
    }
}

/// What is known of a segment that has been read without checking the chain within it.
#[derive(Debug)]
pub(super) struct Sweep {
    pub(super) last: Cursor,
    pub(super) index: Index,
    pub(super) end: u64,
}

/// Checks the frames of a segment that is written no more, and that it links to the one before it, whose last
/// record `before` stands behind. Much faster than [`scan`]; readers check the chain as they read.
pub(super) fn sweep(bytes: &[u8], fleet: &str, before: Before, first: Position) -> Result<Sweep, Damage> {
    let damage = |offset, position, reason: &str| Damage { offset, position, reason: reason.to_owned() };
    let mut index = Index::default();
    let mut last_payload = None;
    let mut at = 0;
    let mut near = first;
    loop {
        let frame = match frame::find(&bytes[at..]) {
            Found::Frame(frame) => frame,
            Found::End => break,
            Found::Damage(reason) => return Err(damage(at, near, reason)),
        };
        if frame.kind == Kind::Record {
            let is_first = last_payload.replace((at, frame.payload)).is_none();
            if is_first || index.is_due(at as u64) {
                let Ok((header, _)) = Header::peek(frame.payload) else {
                    return Err(damage(at, near, "a frame holds no record"));
                };
                near = header.first;
                index.note(header.first, at as u64);
                if is_first {
                    before.check(fleet, &header, first).map_err(|reason| damage(at, first, &reason))?;
                }
            }
        }
        at += frame.len();
    }
    let Some((offset, payload)) = last_payload else {
        return Err(damage(0, first, "it is empty, but another one follows"));
    };
    match Record::decode(payload) {
        Ok(record) => Ok(Sweep { last: Cursor::after(&record), index, end: at as u64 }),
        Err(error) => Err(damage(offset, near, &error.to_string())),
    }
}

/// What stands before a segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Before {
    /// This, or nothing: it is the first.
    Known(Option<Cursor>),
    /// A segment that was not looked at.
    Unknown,
}

impl Before {
    fn check(self, fleet: &str, header: &Header, first: Position) -> Result<(), String> {
        if header.first != first {
            return Err("its first record is not the one that it is named after".into());
        }
        let Before::Known(cursor) = self else { return Ok(()) };
        // The hash is only carried into the cursor, which is not used here.
        match judge(cursor.as_ref(), fleet, header, header.prev) {
            Judgement::Valid(_) => Ok(()),
            Judgement::Skip(reason) => Err(reason.to_string()),
        }
    }
}
