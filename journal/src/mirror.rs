//! How a mirror is told from a journal of its own: by a file in its folder that says where in a topic it stands.
//!
//! Here and not with Kafka, because builds without Kafka must know it too: a server that went on from a mirror by
//! itself would begin a second history beside the one that goes on in the topic.

use std::io;
use std::path::Path;

/// Written before the first record that came from a topic, or went to one.
pub(crate) const FILE: &str = "kafka.json";

/// Whether the journal in a folder is the mirror of one on Kafka.
pub fn is_mirror(dir: &Path) -> io::Result<bool> {
    dir.join(FILE).try_exists()
}
