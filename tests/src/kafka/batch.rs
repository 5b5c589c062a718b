//! Batches of records as a broker keeps them, altered without the broker's knowledge.
//!
//! Source: Kafka's record batch, version 2: base offset (int64), length of what follows (int32), leader epoch (int32), magic
//! (int8), CRC-32C of what follows (uint32), attributes (int16) with the codec in the lowest three bits.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::Cluster;

/// The batch that holds a text, on one broker's disk. The text must be stored as it is, once.
#[derive(Debug)]
pub struct StoredBatch {
    segment: PathBuf,
    /// Where the batch begins in the segment.
    at: u64,
    /// The whole batch, as it was found.
    bytes: Vec<u8>,
    /// Where the text is in the batch.
    text: usize,
}

impl StoredBatch {
    /// The batch of partition 0 of the topic, if that broker has it already.
    pub fn find(cluster: &Cluster, broker: u32, topic: &str, text: &str) -> Option<StoredBatch> {
        let folder = cluster.dir().join(format!("node-{broker}/data/{topic}-0"));
        let files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let mut found =
            files.filter(|path| path.extension().is_some_and(|is| is == "log")).filter_map(|path| {
                let bytes = std::fs::read(&path).ok()?;
                let place = bytes.windows(text.len()).position(|window| window == text.as_bytes())?;
                let mut begins = 0;
                loop {
                    let length = u32::from_be_bytes(*bytes.get(begins + 8..)?.first_chunk()?);
                    let ends = begins + 12 + length as usize;
                    if place < ends {
                        let (at, text) = (begins as u64, place - begins);
                        return Some(StoredBatch {
                            segment: path,
                            at,
                            bytes: bytes.get(begins..ends)?.to_vec(),
                            text,
                        });
                    }
                    begins = ends;
                }
            });
        found.next()
    }

    /// The offset of its first message.
    pub fn offset(&self) -> i64 {
        self.bytes.first_chunk().map_or(-1, |bytes| i64::from_be_bytes(*bytes))
    }

    /// Alters a byte of the text: the checksum is not that of the bytes any more.
    pub fn damage(&self) {
        let mut bytes = self.bytes.clone();
        bytes[self.text] = b'#';
        self.write(&bytes);
    }

    /// Names a codec that no client knows, with a checksum that is right.
    pub fn set_unknown_codec(&self) {
        let mut bytes = self.bytes.clone();
        bytes[22] |= 7;
        let checksum = crc32c::crc32c(&bytes[21..]).to_be_bytes();
        bytes[17..21].copy_from_slice(&checksum);
        self.write(&bytes);
    }

    /// Puts it back as it was found.
    pub fn restore(&self) {
        self.write(&self.bytes);
    }

    fn write(&self, bytes: &[u8]) {
        let file = File::options().write(true).open(&self.segment).expect("a segment");
        file.write_all_at(bytes, self.at).expect("it is written");
    }
}
