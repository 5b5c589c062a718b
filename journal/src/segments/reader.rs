//! Reading, concurrently with the writer, with its own files, up to what is durable.
//!
//! A reader checks each frame and the chain between records, so it returns what was written. If it starts in
//! the middle, only the frame verifies its first record.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::{Record, RecordHeader};
use chancery_events::subject::Subject;

use super::catalog::{Segment, SegmentCatalog};
use super::frame::{self, Frame, FrameKind, HEAD};
use super::postings::PostingKey;
use super::postings_reader::PostingsReader;
use crate::chain::{ChainCursor, ChainEntry, ChainReader};
use crate::journal::{JournalReader, ReadError, RecordIter, records_by};

/// Minimum bytes per read of a file.
const READ: usize = 256 << 10;
/// Minimum bytes per read when only some frames are needed.
const READ_SINGLE: usize = 8 << 10;

/// Reader of a directory's segments while they are written.
pub(super) struct SegmentSource(pub(super) Arc<SegmentCatalog>);

impl JournalReader for SegmentSource {
    fn head(&self) -> Option<ChainCursor> {
        self.0.head()
    }

    fn records_about(&self, subject: &Subject, from: Position) -> Result<RecordIter, ReadError> {
        let mut about = PostingsReader::new(self.0.clone(), PostingKey::of(subject), from);
        Ok(records_by(move || about.step()))
    }

    fn records_caused_by(&self, cause: Position, from: Position) -> Result<RecordIter, ReadError> {
        let mut caused = PostingsReader::new(self.0.clone(), PostingKey::of_cause(cause), from);
        Ok(records_by(move || caused.step()))
    }

    fn records(&self, from: Position) -> Result<RecordIter, ReadError> {
        let Some(segment) = self.0.holding(from) else { return Ok(Box::new(std::iter::empty())) };
        let offset = segment.seek(from)?;
        let chain = (from <= Position::FIRST).then(|| ChainReader::new(self.0.fleet.clone(), None));
        let part = SegmentBuffer::open(segment, offset)?;
        let mut reader = SegmentReader { catalog: self.0.clone(), from, chain, part };
        Ok(records_by(move || Ok(reader.step()?.map(Arc::new))))
    }
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> ReadError {
    move |source| ReadError::Io { place: path.display().to_string(), source }
}

/// Open segment and a buffered part of it.
pub(super) struct SegmentBuffer {
    segment: Arc<Segment>,
    file: File,
    buffer: Vec<u8>,
    /// Minimum bytes per read.
    piece: usize,
    /// File offset of the buffer.
    start: u64,
    /// File offset of the next frame.
    offset: u64,
    /// Length of the next frame, if known.
    len: usize,
}

impl SegmentBuffer {
    pub(super) fn open(segment: Arc<Segment>, offset: u64) -> Result<SegmentBuffer, ReadError> {
        segment.know()?;
        let file = File::open(&segment.path).map_err(io_error(&segment.path))?;
        Ok(SegmentBuffer { segment, file, buffer: Vec::new(), piece: READ, start: offset, offset, len: 0 })
    }

    /// Opens a segment to read single frames.
    pub(super) fn open_for_single(segment: Arc<Segment>) -> Result<SegmentBuffer, ReadError> {
        Ok(SegmentBuffer { piece: READ_SINGLE, ..SegmentBuffer::open(segment, 0)? })
    }

    /// Returns the `len` bytes at the next frame; `None` if fewer are durable.
    fn bytes(&mut self, len: usize) -> Result<Option<&[u8]>, ReadError> {
        let at = (self.offset - self.start) as usize;
        if self.buffer.len() < at + len {
            let durable = self.segment.end().saturating_sub(self.offset) as usize;
            if durable < len {
                return Ok(None);
            }
            self.buffer.resize(len.max(self.piece).min(durable), 0);
            self.start = self.offset;
            let read = self.file.read_exact_at(&mut self.buffer, self.start);
            read.map_err(io_error(&self.segment.path))?;
            return Ok(self.buffer.get(..len));
        }
        Ok(self.buffer.get(at..at + len))
    }

    /// Returns the next frame; `None` at the end of what is durable.
    pub(super) fn frame(&mut self) -> Result<Option<Frame<'_>>, ReadError> {
        let (segment, offset) = (self.segment.clone(), self.offset);
        if offset == segment.end() {
            return Ok(None);
        }
        let damage = |reason: &str| damage(&segment, offset, segment.first, reason);
        let head = self.bytes(HEAD)?.and_then(|bytes| bytes.first_chunk());
        let len = head.ok_or("a frame is cut short").and_then(frame::len).map_err(damage)?;
        self.len = len;
        let bytes = self.bytes(len)?.ok_or("a frame is cut short");
        bytes.and_then(frame::read).map_err(damage).map(Some)
    }

    /// Advances past the last returned frame.
    pub(super) fn step(&mut self) {
        self.offset += std::mem::take(&mut self.len) as u64;
    }

    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn seek(&mut self, offset: u64) {
        let end = self.start + self.buffer.len() as u64;
        if !(self.start..=end).contains(&offset) {
            self.buffer.clear();
            self.start = offset;
        }
        self.offset = offset;
        self.len = 0;
    }

    /// Returns the error that `position` is not stored at this offset.
    pub(super) fn damage(&self, position: Position, reason: &str) -> ReadError {
        damage(&self.segment, self.offset, position, reason)
    }
}

pub(super) fn damage(segment: &Segment, offset: u64, position: Position, reason: &str) -> ReadError {
    let place = format!("{} at offset {offset}", segment.path.display());
    ReadError::Damaged { place, position, reason: reason.to_owned() }
}

struct SegmentReader {
    catalog: Arc<SegmentCatalog>,
    from: Position,
    /// Chain; `None` until the first record is found, unless that is the journal's first.
    chain: Option<ChainReader>,
    part: SegmentBuffer,
}

impl SegmentReader {
    fn step(&mut self) -> Result<Option<Record>, ReadError> {
        loop {
            if self.part.offset == self.part.segment.end() && !self.cross()? {
                return Ok(None);
            }
            let Some(head) = self.part.bytes(HEAD)?.and_then(|bytes| bytes.first_chunk()) else {
                return Err(self.damage("a frame is cut short"));
            };
            let len = frame::len(head);
            let len = len.map_err(|reason| self.damage(reason))?;
            let frame = self.part.bytes(len)?.ok_or("a frame is cut short").and_then(frame::read);
            let taken = match frame {
                Err(reason) => Err(reason.to_owned()),
                Ok(frame) if frame.kind == FrameKind::Marker => Ok(None),
                Ok(frame) => take(&mut self.chain, &self.catalog.fleet, self.from, frame.payload)?,
            };
            let taken = taken.map_err(|reason| self.damage(&reason))?;
            self.part.offset += len as u64;
            if taken.is_some() {
                return Ok(taken);
            }
        }
    }

    /// Advances to the next segment, if there is one.
    fn cross(&mut self) -> Result<bool, ReadError> {
        let Some(next) = self.catalog.behind(self.part.segment.first) else { return Ok(false) };
        // The end may have moved before the next segment appeared; now it is final.
        if self.part.offset == self.part.segment.end() {
            self.part = SegmentBuffer::open(next, 0)?;
        }
        Ok(self.part.offset < self.part.segment.end())
    }

    fn damage(&self, reason: &str) -> ReadError {
        let position = self.chain.as_ref().map_or(self.from.max(self.part.segment.first), ChainReader::next);
        self.part.damage(position, reason)
    }
}

/// Accepts the next record: `None` if it is before `from`, the inner error if it does not belong there.
fn take(
    chain: &mut Option<ChainReader>,
    fleet: &Arc<str>,
    from: Position,
    payload: &[u8],
) -> Result<Result<Option<Record>, String>, ReadError> {
    if let Some(chain) = chain {
        return match chain.take(payload)? {
            ChainEntry::Record(record) => Ok(Ok(Some(record).filter(|record| record.last() >= from))),
            ChainEntry::Skip(skipped) => Ok(Err(skipped.reason.to_string())),
        };
    }
    let last = match RecordHeader::peek(payload) {
        Ok((header, _)) => header.last(),
        Err(error) => return Ok(Err(error.to_string())),
    };
    if last < from {
        return Ok(Ok(None));
    }
    match Record::decode(payload) {
        Ok(record) => {
            *chain = Some(ChainReader::new(fleet.clone(), Some(ChainCursor::after(&record))));
            Ok(Ok(Some(record)))
        }
        Err(error) => Ok(Err(error.to_string())),
    }
}
