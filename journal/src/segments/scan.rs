//! Read-only scan of a whole segment: valid records, the end, damage.

use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::{Record, RecordHeader};

use super::frame::{self, FrameKind, FrameLookup};
use crate::chain::{self, ChainCursor, ChainEntry, ChainError, ChainReader, SkipReason, judge};

/// Minimum distance in bytes between indexed records.
const INDEX_STEP: u64 = 64 << 10;

/// Index of a segment: first positions of records and their offsets.
#[derive(Clone, Default, Debug)]
pub(super) struct OffsetIndex(Vec<(Position, u64)>);

impl OffsetIndex {
    /// Adds the record at `offset`, if the last indexed one is far enough away.
    pub(super) fn note(&mut self, first: Position, offset: u64) {
        if self.is_due(offset) {
            self.0.push((first, offset));
        }
    }

    /// Whether [`OffsetIndex::note`] would add a record at `offset`.
    pub(super) fn is_due(&self, offset: u64) -> bool {
        offset >= self.0.last().map_or(0, |(_, offset)| *offset) + INDEX_STEP
    }

    /// Returns the index of the part of the segment before `end`.
    pub(super) fn before(&self, end: u64) -> OffsetIndex {
        OffsetIndex(self.0.iter().copied().filter(|(_, offset)| *offset < end).collect())
    }

    /// Returns the offset to start reading from to find the record that contains `from`.
    pub(super) fn seek(&self, from: Position) -> u64 {
        let after = self.0.partition_point(|(first, _)| *first <= from);
        after.checked_sub(1).map_or(0, |at| self.0[at].1)
    }
}

/// Bytes that differ from what was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DamagedBytes {
    pub(super) offset: usize,
    /// Position expected at the offset.
    pub(super) position: Position,
    pub(super) reason: String,
}

/// Intact segment that this build or this fleet must not change.
#[derive(Debug)]
pub(super) enum ForeignSegment {
    Broken { offset: usize, source: ChainError },
    Fleet { offset: usize, position: Position, found: Arc<str> },
}

#[derive(Debug)]
pub(super) struct SegmentScan {
    /// Chain after the last valid record.
    pub(super) chain: ChainReader,
    /// Offset after the last valid frame.
    pub(super) end: usize,
    /// Last position and frame offset of each valid record.
    pub(super) places: Vec<(Position, usize)>,
    pub(super) index: OffsetIndex,
    /// Highest position that the segment names as synced: by its name, or by a frame, even after the damage.
    pub(super) named: Position,
    pub(super) damage: Option<DamagedBytes>,
}

impl SegmentScan {
    /// Whether the segment is damaged only after the highest position named as synced: the last group of
    /// records was cut off while it was written.
    pub(super) fn is_torn_tail(&self) -> bool {
        self.damage.as_ref().is_some_and(|damage| damage.position > self.named)
    }

    /// Returns the offset of the first record that no frame names as synced.
    pub(super) fn unnamed(&self) -> Option<usize> {
        let at = self.places.partition_point(|(last, _)| *last <= self.named);
        self.places.get(at).map(|(_, offset)| *offset)
    }
}

/// Scans the last segment, or any segment that needs a complete check. `chain` is that after the previous
/// segment; `each` receives every valid record.
pub(super) fn scan(
    bytes: &[u8],
    chain: ChainReader,
    mut each: impl FnMut(&Record),
) -> Result<SegmentScan, ForeignSegment> {
    let named = Position::new(chain.next().get() - 1);
    let mut scan =
        SegmentScan { chain, end: 0, places: Vec::new(), index: OffsetIndex::default(), named, damage: None };
    let mut was_marker = true;
    let reason = loop {
        let frame = match frame::find(&bytes[scan.end..]) {
            FrameLookup::Frame(frame) => frame,
            FrameLookup::End => return Ok(scan),
            FrameLookup::Damage(reason) => break reason.to_owned(),
        };
        let last = Position::new(scan.chain.next().get() - 1);
        if frame.synced > last {
            break "a frame names a position that was not written before it".into();
        }
        match frame.kind {
            FrameKind::Marker if was_marker || frame.synced != last => {
                break "a marker is out of place".into();
            }
            FrameKind::Marker => was_marker = true,
            FrameKind::Record => {
                let offset = scan.end;
                let link = scan.chain.take(frame.payload);
                let record = match link.map_err(|source| ForeignSegment::Broken { offset, source })? {
                    ChainEntry::Record(record) => record,
                    ChainEntry::Skip(skipped) if skipped.reason == SkipReason::Fleet => {
                        let found = fleet_of(frame.payload).unwrap_or_default();
                        return Err(ForeignSegment::Fleet { offset, position: scan.chain.next(), found });
                    }
                    ChainEntry::Skip(skipped) => break skipped.reason.to_string(),
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
    scan.damage = Some(DamagedBytes { offset: scan.end, position: scan.chain.next(), reason });
    Ok(scan)
}

fn fleet_of(payload: &[u8]) -> Option<Arc<str>> {
    RecordHeader::peek(payload).ok().map(|(header, _)| header.fleet)
}

/// Returns the fleet of the journal that starts with this segment.
pub(super) fn fleet(bytes: &[u8]) -> Option<Arc<str>> {
    match frame::find(bytes) {
        FrameLookup::Frame(frame) => fleet_of(frame.payload),
        FrameLookup::End | FrameLookup::Damage(_) => None,
    }
}

/// Returns the error for a segment whose first record has a format before this build's.
pub(super) fn old_format(bytes: &[u8]) -> Option<ChainError> {
    let FrameLookup::Frame(frame) = frame::find(bytes) else { return None };
    chain::old_format(&RecordHeader::peek(frame.payload).ok()?.0)
}

/// Result of reading a segment without checking the chain within it.
#[derive(Debug)]
pub(super) struct SegmentSweep {
    pub(super) last: ChainCursor,
    pub(super) index: OffsetIndex,
    pub(super) end: u64,
}

/// Checks the frames of a closed segment, and its link to the previous one. Much faster than [`scan`];
/// readers check the chain as they read.
pub(super) fn sweep(
    bytes: &[u8],
    fleet: &str,
    before: PreviousSegment,
    first: Position,
) -> Result<SegmentSweep, DamagedBytes> {
    let damage =
        |offset, position, reason: &str| DamagedBytes { offset, position, reason: reason.to_owned() };
    let mut index = OffsetIndex::default();
    let mut last_payload = None;
    let mut at = 0;
    let mut near = first;
    loop {
        let frame = match frame::find(&bytes[at..]) {
            FrameLookup::Frame(frame) => frame,
            FrameLookup::End => break,
            FrameLookup::Damage(reason) => return Err(damage(at, near, reason)),
        };
        if frame.kind == FrameKind::Record {
            let is_first = last_payload.replace((at, frame.payload)).is_none();
            if is_first || index.is_due(at as u64) {
                let Ok((header, _)) = RecordHeader::peek(frame.payload) else {
                    return Err(damage(at, near, "a frame contains no record"));
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
        return Err(damage(0, first, "the segment is empty, but another one follows"));
    };
    match Record::decode(payload) {
        Ok(record) => Ok(SegmentSweep { last: ChainCursor::after(&record), index, end: at as u64 }),
        Err(error) => Err(damage(offset, near, &error.to_string())),
    }
}

/// Cursor before a segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum PreviousSegment {
    /// Known cursor; `None` before the first segment.
    Known(Option<ChainCursor>),
    /// The previous segment was not read.
    Unknown,
}

impl PreviousSegment {
    fn check(self, fleet: &str, header: &RecordHeader, first: Position) -> Result<(), String> {
        if header.first != first {
            return Err("the first record does not match the name of the segment".into());
        }
        let PreviousSegment::Known(cursor) = self else { return Ok(()) };
        // The hash is only copied into the cursor, which is not used here.
        let judgement = judge(cursor.as_ref(), fleet, header, header.prev);
        judgement.map(drop).map_err(|reason| reason.to_string())
    }
}
