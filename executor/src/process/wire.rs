//! What an executor and a keeper say over `keeper.sock`: a JSON text a line.
//!
//! The keeper says its record at once to whoever connects, and again after each change. Clients come and go; one that
//! does not read is dropped, and finds the record when it connects again.

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

/// The line for a message.
pub(super) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message is always JSON");
    line.push(b'\n');
    line
}
