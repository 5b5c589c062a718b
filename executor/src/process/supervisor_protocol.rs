//! Messages between executor and supervisor on `supervisor.sock`: JSON texts, each after its length (4 bytes,
//! little-endian).
//!
//! The supervisor sends its record immediately to each client, and again after each change. A client that
//! does not read is dropped, and receives the record when it connects again.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::integrity::DirectoryLoss;

/// Maximum grace; keeps times in the range of the clocks.
pub(super) const LONGEST_GRACE: Duration = Duration::from_hours(24);

/// Request to a supervisor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SupervisorRequest {
    /// Sends the record again.
    Status,
    /// Ends everything: requests the end, and kills what is left after `grace`. The shortest of several
    /// counts.
    Stop { grace: Duration },
    /// Resets the guests, unless they were reset for this or a higher revision.
    Reset { revision: u32 },
    /// Checks and repairs the directory.
    Look,
    /// Ends everything immediately: the directory is lost.
    Lost { loss: DirectoryLoss },
}

/// Maximum size of a request in bytes.
pub(super) const MAX_REQUEST: usize = 4096;
/// Maximum size of a record in bytes. A starting record has half of that: the ends of its processes are added
/// later.
pub(super) const MAX_RECORD: usize = 16 << 20;

/// Size of a length in bytes.
const HEAD: usize = 4;

/// Returns a message after its length.
pub(super) fn frame(message: &impl Serialize) -> Vec<u8> {
    let mut frame = vec![0; HEAD];
    serde_json::to_writer(&mut frame, message).expect("a message is always JSON");
    let length = u32::try_from(frame.len() - HEAD).expect("a message is shorter than 4 GiB");
    frame[..HEAD].copy_from_slice(&length.to_le_bytes());
    frame
}

/// Takes the first complete message from the received bytes. Fails if its length exceeds `max`.
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

/// Returns the line for a trampoline, or from one.
pub(super) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message is always JSON");
    line.push(b'\n');
    line
}
