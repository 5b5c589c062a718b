//! Detection of mirrors: a file in a mirror's directory records its offset in a topic.
//!
//! This module is separate from Kafka because builds without Kafka must detect mirrors too. A server that
//! wrote to a mirror on its own would start a second history next to the one in the topic.

use std::io;
use std::path::Path;

/// File written before the first record that came from a topic or was sent to one.
pub(crate) const FILE: &str = "kafka.json";

/// Whether the journal in a directory is the mirror of a Kafka journal.
pub fn is_mirror(dir: &Path) -> io::Result<bool> {
    dir.join(FILE).try_exists()
}
