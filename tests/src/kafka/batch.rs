//! Record batches on a broker's disk, altered without the broker's knowledge.
//!
//! Source: Kafka's record batch, version 2. Base offset (int64), length of the rest (int32), leader epoch
//! (int32), magic (int8). CRC-32C of the rest (uint32), attributes (int16) with the codec in the lowest three
//! bits.
//! bits.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::KafkaCluster;

/// Batch that contains a text, on one broker's disk. The text must be stored uncompressed and once.
#[derive(Debug)]
pub struct StoredBatch {
    segment: PathBuf,
    /// Offset of the batch in the segment file.
    at: u64,
    /// Original bytes of the whole batch.
    bytes: Vec<u8>,
    /// Offset of the text in the batch.
    text: usize,
}

impl StoredBatch {
    /// Returns the batch with the text in partition 0 of the topic, if the broker has the batch already.
    pub fn find(cluster: &KafkaCluster, broker: u32, topic: &str, text: &str) -> Option<StoredBatch> {
        let directory = cluster.dir().join(format!("node-{broker}/data/{topic}-0"));
        let files = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
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

    /// Offset of the batch's first message.
    pub fn offset(&self) -> i64 {
        self.bytes.first_chunk().map_or(-1, |bytes| i64::from_be_bytes(*bytes))
    }

    /// Alters a byte of the text, so that the checksum is wrong.
    pub fn damage(&self) {
        let mut bytes = self.bytes.clone();
        bytes[self.text] = b'#';
        self.write(&bytes);
    }

    /// Sets a codec that no client knows, with a correct checksum.
    pub fn set_unknown_codec(&self) {
        let mut bytes = self.bytes.clone();
        bytes[22] |= 7;
        let checksum = crc32c::crc32c(&bytes[21..]).to_be_bytes();
        bytes[17..21].copy_from_slice(&checksum);
        self.write(&bytes);
    }

    /// Restores the original bytes.
    pub fn restore(&self) {
        self.write(&self.bytes);
    }

    fn write(&self, bytes: &[u8]) {
        let file = File::options().write(true).open(&self.segment).expect("a segment");
        file.write_all_at(bytes, self.at).expect("it is written");
    }
}
