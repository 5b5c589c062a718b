//! Size of a value as JSON, computed without building the text.

use std::io;

use serde::Serialize;

/// Size of the value as compact JSON, in bytes.
pub fn json_bytes<T: Serialize + ?Sized>(value: &T) -> usize {
    let mut counter = ByteCounter(0);
    serde_json::to_writer(&mut counter, value).expect("the value can be written as JSON");
    counter.0
}

struct ByteCounter(usize);

impl io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Cuts the text to at most `most` bytes, between two characters.
pub fn cut(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
}
