//! What an executor and a supervisor send over `keeper.sock`: JSON texts, each behind its length of four bytes,
//! little-endian.
//!
//! The supervisor sends its record immediately to each client, and again after each change. Clients come and go; one
//! that does not read is dropped, and finds the record when it connects again.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::drift::Loss;

/// No grace is longer; times stay in the range of the clocks.
pub(super) const LONGEST_GRACE: Duration = Duration::from_hours(24);

/// What a keeper is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Say the record again.
    Status,
    /// End everything: ask, and kill what is left after this time. The shortest of several counts.
    Stop { grace: Duration },
    /// See whether everything in the folder is as it should be.
    Look,
    /// End everything at once: its folder is not what it was.
    Lost { loss: Loss },
}

/// Most bytes of a request.
pub(super) const MAX_REQUEST: usize = 4096;
/// Most bytes of a record. One that is being started has half of that: the ends of its processes come later.
pub(super) const MAX_RECORD: usize = 16 << 20;

/// Bytes of a length.
const HEAD: usize = 4;

/// A message behind its length.
pub(super) fn frame(message: &impl Serialize) -> Vec<u8> {
    let mut frame = vec![0; HEAD];
    serde_json::to_writer(&mut frame, message).expect("a message is always JSON");
    let length = u32::try_from(frame.len() - HEAD).expect("a message is shorter than 4 GiB");
    frame[..HEAD].copy_from_slice(&length.to_le_bytes());
    frame
}

/// Takes the first message out of what was received, once it is whole. One that is longer than `max` is an error.
pub(super) fn take(received: &mut Vec<u8>, max: usize) -> io::Result<Option<Vec<u8>>> {
    let Some(head) = received.first_chunk::<HEAD>() else { return Ok(None) };
    let length = u32::from_le_bytes(*head) as usize;
    if length > max {
        let text = format!("invalid message of {length} bytes: must have {max} or less");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let Some(message) = received.get(HEAD..HEAD + length).map(<[u8]>::to_vec) else { return Ok(None) };
    received.drain(..HEAD + length);
    Ok(Some(message))
}

/// The line for a trampoline.
pub(super) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message is always JSON");
    line.push(b'\n');
    line
}
