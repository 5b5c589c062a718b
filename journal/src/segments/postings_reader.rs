//! Reading by postings: only the records that they point to.
//!
//! Each record is checked on its own, by its frame; only the postings ensure that no record between two
//! of them is missing. An entry that does not match its position shows that the postings belong to another
//! segment. Such postings are deleted and computed again.

use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::Record;

use super::catalog::{Segment, SegmentCatalog};
use super::frame::FrameKind;
use super::postings::{PostingEntry, PostingKey};
use super::postings_cache;
use super::reader::SegmentBuffer;
use crate::journal::ReadError;

/// Records that may be about a subject, or have facts with a cause.
pub(super) struct PostingsReader {
    catalog: Arc<SegmentCatalog>,
    key: PostingKey,
    /// Lower bound of the positions not returned yet.
    from: Position,
    /// Current segment; `None` after the last one.
    segment: Option<Arc<Segment>>,
    /// Remaining entries of the segment; `None` before the lookup.
    places: Option<PostingsLookup>,
}

struct PostingsLookup {
    part: SegmentBuffer,
    places: std::vec::IntoIter<PostingEntry>,
    /// Fresh postings are not computed again.
    is_fresh: bool,
    /// The segment was open during the lookup, so it may have grown since.
    was_open: bool,
}

impl PostingsReader {
    pub(super) fn new(catalog: Arc<SegmentCatalog>, key: PostingKey, from: Position) -> PostingsReader {
        let segment = catalog.holding(from);
        PostingsReader { catalog, key, from, segment, places: None }
    }

    /// Returns the next record; `None` at the head.
    pub(super) fn step(&mut self) -> Result<Option<Arc<Record>>, ReadError> {
        while let Some(segment) = &self.segment {
            let asked = match &mut self.places {
                Some(asked) => asked,
                None => self.places.insert(self.catalog.ask(segment, self.key, false)?),
            };
            let next = asked.places.find(|place| place.position >= self.from);
            let Some(place) = next else {
                let behind = self.catalog.behind(segment.first);
                // The segment is final now, and is searched once more for entries added meanwhile.
                if behind.is_none() || !asked.was_open {
                    self.segment = behind;
                }
                self.places = None;
                continue;
            };
            match asked.part.record(place) {
                Ok(record) => {
                    self.from = record.last().plus(1);
                    return Ok(Some(Arc::new(record)));
                }
                Err(error) if asked.is_fresh => return Err(error),
                Err(_) => {
                    postings_cache::forget(segment, self.catalog.is_frozen);
                    self.places = Some(self.catalog.ask(segment, self.key, true)?);
                }
            }
        }
        Ok(None)
    }
}

impl SegmentCatalog {
    fn ask(
        &self,
        segment: &Arc<Segment>,
        key: PostingKey,
        is_fresh: bool,
    ) -> Result<PostingsLookup, ReadError> {
        let was_open = self.behind(segment.first).is_none();
        let places = postings_cache::places(segment, key)?.into_iter();
        if !postings_cache::is_filed(segment) {
            if self.is_frozen && !was_open {
                // Nothing files them, so the postings of all closed segments would stay in memory.
                postings_cache::release(segment);
            } else {
                self.want(segment);
            }
        }
        Ok(PostingsLookup {
            part: SegmentBuffer::open_for_single(segment.clone())?,
            places,
            is_fresh,
            was_open,
        })
    }
}

impl SegmentBuffer {
    /// Returns the record of an entry; an error if another record is stored there.
    fn record(&mut self, place: PostingEntry) -> Result<Record, ReadError> {
        self.seek(place.offset);
        let position = place.position;
        let record = match self.frame()? {
            Some(frame) if frame.kind == FrameKind::Record => Record::decode(frame.payload),
            _ => return Err(self.damage(position, "no record is stored there")),
        };
        let record = record.map_err(|error| self.damage(position, &error.to_string()))?;
        if record.first() <= position && position <= record.last() {
            return Ok(record);
        }
        Err(self.damage(position, "another record is stored there"))
    }
}
