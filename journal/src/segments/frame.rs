//! Frames: the format of records in a segment file.
//!
//! ```text
//!  0  magic   4 bytes, two of which never occur in UTF-8: no record's text can be taken for a frame
//!  4  crc     u32, CRC-32C of everything after it
//!  8  len     u32, bytes of payload
//! 12  kind    1 byte: 1 record, 2 marker; then 3 zero bytes
//! 16  synced  u64, the position up to which the journal was synced when this frame was written
//! 24  payload the record's bytes; a marker has none
//! ```
//! Numbers are little-endian. Zeros follow the last frame. Invariant: `synced` is never ahead of what was
//! synced. Opening a journal truncates damage after the highest one and refuses damage before it.

use chancery_events::id::Position;
use chancery_events::record::MAX_BYTES;

/// Bytes before the payload.
pub(super) const HEAD: usize = 24;
const MAGIC: [u8; 4] = [0xff, b'C', b'h', 0xfe];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameKind {
    Record,
    Marker,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) kind: FrameKind,
    pub(super) synced: Position,
    pub(super) payload: &'a [u8],
}

impl Frame<'_> {
    /// Returns the length of the frame in the file, in bytes.
    pub(super) const fn len(&self) -> usize {
        HEAD + self.payload.len()
    }
}

/// Content of a segment at an offset.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameLookup<'a> {
    Frame(Frame<'a>),
    /// Only zeros from the offset to the end of the segment: no further frame.
    End,
    /// Neither a frame nor zeros.
    Damage(&'static str),
}

/// Appends a frame to `to`.
pub(super) fn write(to: &mut Vec<u8>, kind: FrameKind, synced: Position, payload: &[u8]) {
    let start = to.len();
    to.extend_from_slice(&MAGIC);
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let kind = match kind {
        FrameKind::Record => 1,
        FrameKind::Marker => 2,
    };
    to.extend_from_slice(&[kind, 0, 0, 0]);
    to.extend_from_slice(&synced.get().to_le_bytes());
    to.extend_from_slice(payload);
    let crc = crc32c::crc32c(&to[start + 8..]);
    to[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Returns the length of the frame with this head, or the reason why the head is invalid.
pub(super) fn len(head: &[u8; HEAD]) -> Result<usize, &'static str> {
    if head[..4] != MAGIC {
        return Err("no frame is stored there");
    }
    let payload = u32_at(head, 8) as usize;
    if payload > MAX_BYTES { Err("a frame's length is damaged") } else { Ok(HEAD + payload) }
}

/// Reads the frame that fills `bytes`, whose length is that of [`len`].
pub(super) fn read(bytes: &[u8]) -> Result<Frame<'_>, &'static str> {
    let Some((head, payload)) = bytes.split_first_chunk::<HEAD>() else {
        return Err("a frame is cut short");
    };
    if len(head)? != bytes.len() {
        return Err("a frame is cut short");
    }
    if u32_at(head, 4) != crc32c::crc32c(&bytes[8..]) {
        return Err("a frame's checksum does not match");
    }
    let kind = match (head[12], payload.is_empty()) {
        (1, false) => FrameKind::Record,
        (2, true) => FrameKind::Marker,
        _ => return Err("a frame is of an unknown kind"),
    };
    let synced = head[16..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Ok(Frame { kind, synced: Position::new(synced), payload })
}

/// Reads the start of `rest`, which extends to the end of the segment.
pub(super) fn find(rest: &[u8]) -> FrameLookup<'_> {
    // The search for zeros happens once per segment: at its end, or at damage.
    let Some(head) = rest.first_chunk::<HEAD>() else {
        return if is_zero(rest) { FrameLookup::End } else { FrameLookup::Damage("a frame is cut short") };
    };
    let found = len(head).and_then(|len| read(rest.get(..len).ok_or("a frame is cut short")?));
    match found {
        Ok(frame) => FrameLookup::Frame(frame),
        Err(_) if is_zero(rest) => FrameLookup::End,
        Err(reason) => FrameLookup::Damage(reason),
    }
}

/// Returns the highest position that any intact frame in `rest` names, at any offset: after damage the
/// offsets of frames are unknown.
pub(super) fn highest_named(rest: &[u8]) -> Option<Position> {
    // A frame may end in zeros, those of its number, but never consists of them.
    let rest = &rest[..rest.len().min(len_without_zeros(rest) + HEAD)];
    let mut highest = None;
    let mut at = 0;
    while let Some(next) = rest[at..].windows(MAGIC.len()).position(|window| window == MAGIC) {
        at += next;
        match find(&rest[at..]) {
            FrameLookup::Frame(frame) => {
                highest = highest.max(Some(frame.synced));
                at += frame.len();
            }
            FrameLookup::End | FrameLookup::Damage(_) => at += 1,
        }
    }
    highest
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| chunk == &[0; 64]) && rest.iter().all(|byte| *byte == 0)
}

/// Returns the length up to the last byte that is not zero.
pub(super) fn len_without_zeros(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)
}
